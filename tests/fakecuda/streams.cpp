// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Streams and events: each stream is a thread that takes operations off a queue,
// late by a random time. Events bind when they are recorded and waited for, not
// when the work gets there.

#include <system_error>

#include "tests/fakecuda/state.h"

namespace fakecuda {

namespace {

uint64_t Draw(uint64_t* state) {
  *state += 0x9E3779B97F4A7C15u;
  uint64_t x = *state;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

void Serve(World* world, Stream* stream) {
  Lock lock(world->mutex);
  for (;;) {
    world->changed.wait(lock, [&] {
      return MayStart(*world, *stream) || (stream->closing && stream->queue.empty());
    });
    if (stream->queue.empty()) break;
    Op& op = stream->queue.front();  // a deque: later operations do not move it
    const auto context = world->contexts.find(stream->context);
    const bool broken = context == world->contexts.end() || context->second.sticky != 0;
    const uint64_t draw = Draw(&stream->random);
    const unsigned delay = world->options.max_delay_us;
    lock.unlock();
    // Three in four start late.
    if (delay != 0 && (draw & 3) != 0) {
      std::this_thread::sleep_for(std::chrono::microseconds((draw >> 8) % delay));
    }
    const Result result = broken || !op.run ? 0 : op.run();
    lock.lock();
    if (result != 0) {
      const auto hit = world->contexts.find(stream->context);
      if (hit != world->contexts.end() && hit->second.sticky == 0) hit->second.sticky = result;
    }
    op.point->when = std::chrono::steady_clock::now();
    op.point->done = true;
    ++world->executed;
    stream->queue.pop_front();
    world->changed.notify_all();
  }
  world->ended.push_back(std::move(stream->thread));
  world->streams.erase(uint64_t{stream->id});
  world->changed.notify_all();
}

}  // namespace

bool MayStart(const World& world, const Stream& stream) {
  if (stream.queue.empty() || world.held) return false;
  for (const PointRef& point : stream.queue.front().after) {
    if (!point->done) return false;
  }
  return true;
}

void OpenGate(World& world, Stream* stream) {
  stream->gates.front()->done = true;
  stream->gates.pop_front();
  world.changed.notify_all();
}

uint64_t NewStream(World& world, uint64_t context, bool blocking) {
  JoinEnded(world);
  auto stream = std::make_unique<Stream>();
  stream->id = NewId(world, Kind::kStream);
  stream->context = context;
  stream->blocking = blocking;
  stream->random = world.options.seed * 1000003 + stream->id;
  Stream* const raw = stream.get();
  const uint64_t id = raw->id;
  world.streams[id] = std::move(stream);
  try {
    raw->thread = std::thread(Serve, &world, raw);
  } catch (const std::system_error&) {
    world.streams.erase(id);
    return 0;
  }
  return id;
}

Result FindStream(World& world, uint64_t handle, Stream** stream) {
  Context* context = nullptr;
  uint64_t id = 0;
  if (const Result result = Current(world, &context, &id); result != 0) return result;
  if (handle == Id(kvcast::cuda::kStreamLegacy)) handle = 0;
  if (handle == Id(kvcast::cuda::kStreamPerThread)) {
    uint64_t& mine = world.per_thread[{id, std::this_thread::get_id()}];
    if (world.streams.count(mine) == 0) mine = NewStream(world, id, true);
    if (mine == 0) return kvcast::cuda::kErrorOutOfMemory;
    handle = mine;
  }
  // Whoever destroys a stream by itself must know that it is none any more: a real driver may
  // have the handle point to freed memory, or to another stream.
  if (world.destroyed.count(handle) != 0) Violation(world, "a destroyed stream is used");
  const auto found = world.streams.find(handle == 0 ? context->null_stream : handle);
  if (found == world.streams.end() || found->second->closing || found->second->context != id) {
    return kvcast::cuda::kErrorInvalidHandle;
  }
  *stream = found->second.get();
  return 0;
}

Result Enqueue(World& world, Lock& lock, Stream* stream, Op op, PointRef* point) {
  bool taken = false;
  if (const Result refused = Captured(world, stream, &taken); refused != 0 || taken) {
    // What goes into a graph is nowhere in the stream: nobody finds it done or not.
    if (point != nullptr) *point = nullptr;
    return refused;
  }
  const uint64_t id = stream->id;
  if (stream->queue.size() >= world.options.queue_depth) {
    ++world.blocked;
    world.changed.wait(lock, [&] {
      return world.streams.count(id) == 0 || stream->closing ||
             stream->queue.size() < world.options.queue_depth;
    });
    if (world.streams.count(id) == 0 || stream->closing) return kvcast::cuda::kErrorInvalidHandle;
  }
  // The NULL stream comes after all earlier work of blocking streams, and their
  // later work after it.
  const auto context = world.contexts.find(stream->context);
  if (context != world.contexts.end() && stream->blocking) {
    const uint64_t null_stream = context->second.null_stream;
    for (const auto& [other_id, other] : world.streams) {
      const bool related = other->context == stream->context && other->blocking &&
                           (id == null_stream || other_id == null_stream);
      if (related && other_id != id && other->last) op.after.push_back(other->last);
    }
  }
  stream->last = op.point;
  if (point != nullptr) *point = op.point;
  stream->queue.push_back(std::move(op));
  world.changed.notify_all();
  return 0;
}

void WaitFor(World& world, Lock& lock, PointRef point) {
  if (point) world.changed.wait(lock, [&] { return point->done; });
}

void CloseStream(World& world, uint64_t id) {
  const auto found = world.streams.find(id);
  if (found == world.streams.end()) return;
  found->second->closing = true;
  world.changed.notify_all();
}

void EndStream(World& world, Lock& lock, uint64_t id) {
  CloseStream(world, id);
  world.changed.wait(lock, [&] { return world.streams.count(id) == 0; });
  JoinEnded(world);
}

// Under the world's mutex, which a thread that ends has let go and does not take again.
void JoinEnded(World& world) {
  for (std::thread& thread : world.ended) thread.join();
  world.ended.clear();
}

void Drain(World& world, Lock& lock, uint64_t context) {
  std::vector<PointRef> points;
  for (const auto& [id, stream] : world.streams) {
    if (context == 0 || stream->context == context) points.push_back(stream->last);
  }
  for (const PointRef& point : points) WaitFor(world, lock, point);
}

}  // namespace fakecuda
