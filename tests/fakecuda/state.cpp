// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/fakecuda/state.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fakecuda {

namespace {

void Set(fakecuda_options* options, const std::string& name, const std::string& value) {
  const auto number = std::strtoull(value.c_str(), nullptr, 0);
  const int small = static_cast<int>(number);
  if (name == "devices")
    options->devices = small;
  else if (name == "counted")
    options->counted = small;
  else if (name == "driver_version")
    options->driver_version = small;
  else if (name == "init_result")
    options->init_result = small;
  else if (name == "stub")
    options->stub = small;
  else if (name == "virtual_memory")
    options->virtual_memory = small;
  else if (name == "refuse_fat_binary")
    options->refuse_fat_binary = small;
  else if (name == "host_page_tables")
    options->host_page_tables = small;
  else if (name == "unified_addressing")
    options->unified_addressing = small;
  else if (name == "capability")
    options->capability = small;
  else if (name == "multiprocessors")
    options->multiprocessors = small;
  else if (name == "memory_bytes")
    options->memory_bytes = number;
  else if (name == "granularity")
    options->granularity = number;
  else if (name == "reserved_bytes")
    options->reserved_bytes = number;
  else if (name == "queue_depth")
    options->queue_depth = static_cast<unsigned>(number);
  else if (name == "max_delay_us")
    options->max_delay_us = static_cast<unsigned>(number);
  else if (name == "seed")
    options->seed = number;
  else {
    std::fprintf(stderr, "fakecuda: KVC_FAKECUDA: no option %s\n", name.c_str());
    std::abort();
  }
}

void FromEnvironment(World* world) {
  const char* text = std::getenv("KVC_FAKECUDA");
  std::string rest = text != nullptr ? text : "";
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string item = rest.substr(0, comma);
    const size_t equals = item.find('=');
    const std::string name = item.substr(0, equals);
    const std::string value = equals == std::string::npos ? "1" : item.substr(equals + 1);
    if (name == "refuse") {
      world->inject_call = value;
      world->inject_in = 1;
      world->inject_times = UINT64_MAX;
      world->inject_code = 801;
    } else if (name == "lacks") {
      world->lacks = value;
    } else {
      Set(&world->options, name, value);
    }
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
}

}  // namespace

World& TheWorld() {
  // Never destroyed by itself: threads of streams use it. End() below stops them.
  static World* const world = [] {
    auto* made = new World;
    FromEnvironment(made);
    const char* path = std::getenv("KVC_FAKECUDA_LOG");
    if (path != nullptr && *path != '\0') made->log = std::fopen(path, "ae");
    return made;
  }();
  return *world;
}

uint64_t NewId(World& world, Kind kind) {
  // Unlike any address, so that a pointer is never taken for a handle.
  return world.next_id++ << 8 | static_cast<uint64_t>(kind);
}

std::vector<uint64_t>& ContextStack() {
  thread_local std::vector<uint64_t> stack;
  return stack;
}

void Violation(World& world, const std::string& what) {
  if (world.violations++ == 0) world.first_violation = what;
  std::fprintf(stderr, "fakecuda: misuse: %s\n", what.c_str());
  if (world.log != nullptr) std::fprintf(world.log, "misuse: %s\n", what.c_str());
}

namespace {

void WaitForLeave(World& world, const std::string& call) {
  const std::thread::id me = std::this_thread::get_id();
  if (!world.others_held || me == world.holder) return;
  // Who has begun to put a context away is done with it.
  if (call == "cuCtxPopCurrent" || call == "cuThreadExchangeStreamCaptureMode") return;
  world.waiting.insert(me);
  world.changed.notify_all();
  world.let_go.wait(world.mutex, [&] { return !world.others_held || world.others_allowed != 0; });
  world.waiting.erase(me);
  if (world.others_held) --world.others_allowed;
}

// Whether no thread but the holder can go on by itself.
bool OthersRest(const World& world) {
  if (world.others_allowed != 0 && !world.waiting.empty()) return false;
  for (const auto& [thread, depth] : world.depths) {
    if (thread != world.holder && world.waiting.count(thread) == 0) return false;
  }
  return true;
}

constexpr std::chrono::minutes kOthersMayTake{1};

}  // namespace

void NoteDepth(World& world, int change) {
  const std::thread::id me = std::this_thread::get_id();
  if ((world.depths[me] += change) <= 0) world.depths.erase(me);
  if (world.others_held) world.changed.notify_all();
}

Result Enter(World& world, const char* call, bool needs_init) {
  ++world.calls[call];
  ++world.all_calls;
  if (world.log != nullptr) {
    const Context* const current =
        ContextStack().empty() ? nullptr : FindContext(world, ContextStack().back());
    std::fprintf(world.log, "%s", call);
    if (current != nullptr) std::fprintf(world.log, " %d", current->device);
    std::fprintf(world.log, "\n");
    std::fflush(world.log);
  }
  if (world.options.stub != 0) return kvcast::cuda::kErrorStubLibrary;
  WaitForLeave(world, call);
  if (world.stall_in != 0 && world.stall_call == call && --world.stall_in == 0) {
    world.stalled = true;
    world.let_go.wait(world.mutex, [&] { return !world.stalled; });
  }
  if (world.inject_in != 0 && (world.inject_call.empty() || world.inject_call == call)) {
    if (--world.inject_in == 0) {
      if (--world.inject_times != 0) world.inject_in = 1;
      world.injected = true;
      world.injected_call = call;
      for (auto& [id, context] : world.contexts) {
        if (world.inject_loss) context.sticky = world.inject_code;
      }
      return world.inject_code;
    }
  }
  return needs_init && !world.initialised ? kvcast::cuda::kErrorNotInitialized : 0;
}

Result Current(World& world, Context** context, uint64_t* id) {
  if (ContextStack().empty()) return kvcast::cuda::kErrorInvalidContext;
  const uint64_t top = ContextStack().back();
  // A context that has been destroyed stays on the stacks of threads.
  Context* const found = FindContext(world, top);
  if (found == nullptr) return kvcast::cuda::kErrorInvalidContext;
  *context = found;
  if (id != nullptr) *id = top;
  return found->sticky;
}

Context* FindContext(World& world, uint64_t id) {
  const auto found = world.contexts.find(id);
  return found == world.contexts.end() || found->second.going ? nullptr : &found->second;
}

uint64_t NewPrimaryOrCreated(World& world, int device, bool primary) {
  const uint64_t id = NewId(world, Kind::kContext);
  Context& context = world.contexts[id];
  context.device = device;
  context.primary = primary;
  context.null_stream = NewStream(world, id, true);
  if (context.null_stream != 0) return id;
  world.contexts.erase(id);
  return 0;
}

// Its streams are waited for without the lock: what others ask for meanwhile is another context.
void DestroyContext(World& world, Lock& lock, uint64_t id) {
  world.contexts[id].going = true;
  std::vector<uint64_t> streams;
  for (const auto& [stream_id, stream] : world.streams) {
    if (stream->context == id) streams.push_back(stream_id);
  }
  for (const uint64_t stream : streams) EndStream(world, lock, stream);
  for (auto it = world.events.begin(); it != world.events.end();) {
    it = it->second.context == id ? world.events.erase(it) : std::next(it);
  }
  for (auto it = world.modules.begin(); it != world.modules.end();) {
    it = it->second.context == id ? world.modules.erase(it) : std::next(it);
  }
  if (world.contexts[id].sticky != 0) ForgetMemoryOf(world, id);
  world.contexts.erase(id);
}

namespace {

// Threads must be gone before the process's static data is.
struct End {
  ~End() {
    World& world = TheWorld();
    Lock lock(world.mutex);
    world.held = false;
    for (const auto& [id, stream] : world.streams) {
      while (!stream->gates.empty()) OpenGate(world, stream.get());
    }
    while (!world.streams.empty()) EndStream(world, lock, world.streams.begin()->first);
    JoinEnded(world);
  }
} end;

}  // namespace

}  // namespace fakecuda

using fakecuda::Lock;
using fakecuda::TheWorld;
using fakecuda::World;

extern "C" {

void fakecuda_reset(const fakecuda_options* options) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.held = false;
  for (const auto& [id, stream] : world.streams) {
    while (!stream->gates.empty()) fakecuda::OpenGate(world, stream.get());
  }
  world.inject_in = 0;
  world.others_held = false;
  world.let_go.notify_all();
  while (!world.contexts.empty()) {
    fakecuda::DestroyContext(world, lock, world.contexts.begin()->first);
  }
  fakecuda::ForgetMemory(world);
  world.functions.clear();
  world.chunks.clear();
  world.used.clear();
  world.executed = world.blocked = world.violations = 0;
  world.first_violation.clear();
  world.calls.clear();
  world.all_calls = 0;
  world.injected = false;
  world.injected_call.clear();
  world.elapsed = nullptr;
  world.options = options != nullptr ? *options : fakecuda_options();
}

void fakecuda_inject(const char* call, uint64_t nth, int code) {
  fakecuda_inject_many(call, nth, 1, code);
}

void fakecuda_inject_many(const char* call, uint64_t nth, uint64_t times, int code) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.inject_call = call != nullptr ? call : "";
  world.inject_in = times != 0 ? nth : 0;
  world.inject_times = times;
  world.inject_code = code;
  world.inject_loss = false;
  world.injected = false;
  world.injected_call.clear();
}

void fakecuda_inject_loss(uint64_t nth, int code) {
  fakecuda_inject(nullptr, nth, code);
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.inject_loss = true;
}

int fakecuda_injected() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  return world.injected ? 1 : 0;
}

const char* fakecuda_injected_call() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  return world.injected_call.c_str();
}

void fakecuda_stall(const char* call, uint64_t nth) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.stall_call = call;
  world.stall_in = nth;
}

int fakecuda_stalled() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  return world.stalled ? 1 : 0;
}

void fakecuda_let_go() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.stall_in = 0;
  world.stalled = false;
  world.let_go.notify_all();
}

void fakecuda_hold_others(int held) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.others_held = held != 0;
  world.holder = std::this_thread::get_id();
  world.others_allowed = 0;
  world.let_go.notify_all();
}

int fakecuda_await_others() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  return world.changed.wait_for(lock, fakecuda::kOthersMayTake,
                                [&] { return !world.waiting.empty(); })
             ? 1
             : 0;
}

int fakecuda_let_others(uint64_t calls) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.others_allowed = calls;
  world.let_go.notify_all();
  const bool rest = world.changed.wait_for(lock, fakecuda::kOthersMayTake,
                                           [&] { return fakecuda::OthersRest(world); });
  world.others_allowed = 0;
  return rest ? 1 : 0;
}

uint64_t fakecuda_calls(const char* call) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  if (call == nullptr) return world.all_calls;
  const auto found = world.calls.find(call);
  return found != world.calls.end() ? found->second : 0;
}

void fakecuda_clear_log() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.calls.clear();
  world.all_calls = 0;
}

void fakecuda_hold(int held) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.held = held != 0;
  world.changed.notify_all();
}

void fakecuda_gate(void* stream) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  const auto found = world.streams.find(fakecuda::Id(stream));
  if (found == world.streams.end()) return;
  fakecuda::Stream* const queue = found->second.get();
  queue->gates.push_back(std::make_shared<fakecuda::Point>());
  fakecuda::Op op;
  op.after.push_back(queue->gates.back());
  (void)fakecuda::Enqueue(world, lock, queue, std::move(op));
}

void fakecuda_open_gate(void* stream) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  const auto found = world.streams.find(fakecuda::Id(stream));
  if (found == world.streams.end() || found->second->gates.empty()) return;
  fakecuda::OpenGate(world, found->second.get());
}

void fakecuda_settle() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.changed.wait(lock, [&] {
    for (const auto& [id, stream] : world.streams) {
      if (fakecuda::MayStart(world, *stream)) return false;
    }
    return true;
  });
}

uint64_t fakecuda_executed() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  return world.executed;
}

uint64_t fakecuda_blocked() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  return world.blocked;
}

uint64_t fakecuda_violations() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  return world.violations;
}

const char* fakecuda_first_violation() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  return world.first_violation.c_str();
}

void fakecuda_forgive() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.violations = 0;
  world.first_violation.clear();
}

fakecuda_live fakecuda_live_objects() {
  World& world = TheWorld();
  Lock lock(world.mutex);
  fakecuda_live live{};
  for (const auto& [id, context] : world.contexts) {
    live.contexts += !context.going && (!context.primary || context.retained > 0) ? 1 : 0;
    live.streams -= 1;  // its NULL stream, which is nobody's
  }
  for (const auto& [id, stream] : world.streams) live.streams += stream->closing ? 0 : 1;
  live.events = world.events.size();
  live.modules = world.modules.size();
  for (const auto& [address, region] : world.regions) {
    live.allocations += region.where == fakecuda::Where::kDevice ? 1 : 0;
    live.pinned += region.where == fakecuda::Where::kHost ? 1 : 0;
  }
  live.ranges = world.ranges.size();
  live.chunks = world.chunks.size();
  return live;
}

void* fakecuda_context_create(int device) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.initialised = true;
  return fakecuda::ToHandle<void*>(fakecuda::NewPrimaryOrCreated(world, device, false));
}

void fakecuda_context_destroy(void* context) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  fakecuda::DestroyContext(world, lock, fakecuda::Id(context));
}

void fakecuda_context_push(void* context) {
  fakecuda::ContextStack().push_back(fakecuda::Id(context));
}

void* fakecuda_context_pop() {
  void* const top = fakecuda_context_current();
  if (top != nullptr) fakecuda::ContextStack().pop_back();
  return top;
}

void* fakecuda_context_current() {
  const auto& stack = fakecuda::ContextStack();
  return stack.empty() ? nullptr : fakecuda::ToHandle<void*>(stack.back());
}

int fakecuda_context_depth() { return static_cast<int>(fakecuda::ContextStack().size()); }

void* fakecuda_stream_create(void* context, int blocking) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  return fakecuda::ToHandle<void*>(
      fakecuda::NewStream(world, fakecuda::Id(context), blocking != 0));
}

void fakecuda_stream_destroy(void* stream) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  fakecuda::CloseStream(world, fakecuda::Id(stream));
}

void fakecuda_break(int device, int code) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  for (auto& [id, context] : world.contexts) {
    if (context.device == device) context.sticky = code;
  }
}

}  // extern "C"
