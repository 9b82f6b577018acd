// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The inside of the fake driver: one world under one mutex. Operations run on a
// thread per stream, without it.
#ifndef KVCAST_TESTS_FAKECUDA_STATE_H_
#define KVCAST_TESTS_FAKECUDA_STATE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/src/driver_types.h"
#include "tests/fakecuda/fakecuda.h"

namespace fakecuda {

using kvcast::cuda::Result;
using Lock = std::unique_lock<std::mutex>;

// Handles are numbers that are never used twice: a stale one is found, not followed.
enum class Kind : uint64_t { kContext = 1, kStream, kEvent, kModule, kFunction, kChunk };

struct Point {  // where an operation is in its stream
  bool done = false;
  std::chrono::steady_clock::time_point when;
  fakecuda_work work{};  // of a recorded event: what had run on its stream until then
};
using PointRef = std::shared_ptr<Point>;

struct Span {
  uint64_t begin = 0;
  uint64_t end = 0;
};

using Spans = std::vector<Span>;

struct Op {
  std::function<Result()> run;
  std::vector<PointRef> after;
  Spans touches;
  std::function<Spans()> kernel_touches;  // of a kernel, which reads its tables to know
  PointRef point = std::make_shared<Point>();
};

// A capture, shared by the streams that have joined it.
struct Capture {
  int mode = 0;
  std::thread::id thread;
  bool spoilt = false;
  int64_t captured = 0;  // operations that went into the graph
};
using CaptureRef = std::shared_ptr<Capture>;

struct Stream {
  uint64_t id = 0;
  uint64_t context = 0;
  bool blocking = true;
  CaptureRef capture;    // null: none
  bool closing = false;  // destroyed: it goes, and its thread ends, when its work has been done
  std::deque<PointRef> gates;
  std::deque<Op> queue;  // the head stays in it while it runs
  PointRef last;         // of the newest operation
  uint64_t random = 0;
  std::thread thread;
};

struct Context {
  int device = 0;
  bool primary = false;
  int retained = 0;
  bool going = false;  // nobody gets it any more, though what is queued there still runs
  Result sticky = 0;
  uint64_t null_stream = 0;
};

struct Event {
  uint64_t context = 0;
  bool timed = false;
  PointRef point;      // null: never recorded
  CaptureRef capture;  // whose graph has got the newest record, instead
};

struct Module {
  uint64_t context = 0;
  std::string functions;  // " name name " of the PTX, "" = all (fat binary)
};

struct Chunk {
  int memfd = -1;
  uint64_t bytes = 0;
  int device = 0;
  bool released = false;
  int maps = 0;
};

enum class Where { kDevice, kMapped, kHost };

// Memory that operations may name, by its first address.
struct Region {
  uint64_t bytes = 0;
  Where where = Where::kDevice;
  bool access = true;  // mapped chunks: set by cuMemSetAccess
  uint64_t chunk = 0;
  bool registered = false;  // host memory that is the caller's
  int device = 0;
  uint64_t context = 0;
};

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  fakecuda_options options;
  bool initialised = false;
  bool held = false;
  uint64_t next_id = 1;
  uint64_t executed = 0;
  uint64_t blocked = 0;
  uint64_t violations = 0;
  std::string first_violation;
  std::map<std::string, uint64_t> calls;
  uint64_t all_calls = 0;
  std::string inject_call;
  uint64_t inject_in = 0;
  uint64_t inject_times = 0;
  int inject_code = 0;
  bool inject_loss = false;
  bool injected = false;
  std::string injected_call;
  std::string stall_call;
  uint64_t stall_in = 0;
  bool stalled = false;
  std::condition_variable_any let_go;
  std::function<float(const fakecuda_work&)> elapsed;  // instead of the time that has passed
  std::FILE* log = nullptr;
  std::string lacks;         // an entry that the driver does not have
  bool others_held = false;  // calls of threads but the holder's wait
  std::thread::id holder;
  uint64_t others_allowed = 0;            // of the calls that are held
  std::map<std::thread::id, int> depths;  // contexts that a thread has pushed
  std::set<std::thread::id> waiting;      // threads whose call is held

  std::map<uint64_t, Context> contexts;
  std::map<uint64_t, std::unique_ptr<Stream>> streams;
  std::set<uint64_t> destroyed;    // streams, by cuStreamDestroy
  std::vector<std::thread> ended;  // of streams that are gone, not joined yet
  std::map<uint64_t, Event> events;
  std::map<uint64_t, Module> modules;
  std::map<uint64_t, std::string> functions;
  std::map<uint64_t, Chunk> chunks;
  std::map<uint64_t, uint64_t> ranges;  // reserved: first address -> bytes
  std::map<uint64_t, Region> regions;
  // Streams that CU_STREAM_PER_THREAD stands for, of a context and a thread.
  std::map<std::pair<uint64_t, std::thread::id>, uint64_t> per_thread;
  std::map<int, uint64_t> used;  // device -> bytes
};

World& TheWorld();

template <typename Handle>
uint64_t Id(Handle handle) {
  return reinterpret_cast<uint64_t>(handle);
}
template <typename Handle>
Handle ToHandle(uint64_t id) {
  return reinterpret_cast<Handle>(id);
}
uint64_t NewId(World& world, Kind kind);

// state.cpp. A call begins with Enter: the log, injected failures, cuInit.
Result Enter(World& world, const char* call, bool needs_init);
// A context by its id that has neither gone nor is going; else null.
Context* FindContext(World& world, uint64_t id);
// The calling thread has pushed a context (1) or popped one (-1).
void NoteDepth(World& world, int change);
// The calling thread's context, or an error: none, or broken.
Result Current(World& world, Context** context, uint64_t* id = nullptr);
std::vector<uint64_t>& ContextStack();
void Violation(World& world, const std::string& what);
// 0 when no thread can be started for its NULL stream.
uint64_t NewPrimaryOrCreated(World& world, int device, bool primary);
void DestroyContext(World& world, Lock& lock, uint64_t id);

// capture.cpp
// The capture mode of the calling thread: cuThreadExchangeStreamCaptureMode.
int& CaptureMode();
// Refuses a call that could wait while somebody captures; 0 where it is allowed.
Result RefuseWhileCapturing(World& world);
// What becomes of an operation on a stream that is being captured: it goes into the
// graph. With *taken false the stream is not captured.
Result Captured(World& world, Stream* stream, bool* taken);

// streams.cpp
// A stream of the current context by handle; null and 1 (CU_STREAM_LEGACY) are the
// context's NULL stream, 2 (CU_STREAM_PER_THREAD) is the calling thread's.
Result FindStream(World& world, uint64_t handle, Stream** stream);
// 0 when no thread can be started for it.
uint64_t NewStream(World& world, uint64_t context, bool blocking);
// Queues; waits while the stream's queue is full.
Result Enqueue(World& world, Lock& lock, Stream* stream, Op op, PointRef* point = nullptr);
void WaitFor(World& world, Lock& lock, PointRef point);
// Whether the head of its queue can run, or does.
bool MayStart(const World& world, const Stream& stream);
void OpenGate(World& world, Stream* stream);
// The handle is none from now on. What is queued goes on, and the stream goes behind it.
void CloseStream(World& world, uint64_t id);
// Waits for that as well.
void EndStream(World& world, Lock& lock, uint64_t id);
// Of streams that are gone: their threads hold nothing any more.
void JoinEnded(World& world);
void Drain(World& world, Lock& lock, uint64_t context);  // 0 = of all contexts

// copies.cpp
// On a stream's thread: what has run there, for the events that are recorded behind it.
fakecuda_work& WorkOfThisThread();
// Memory to memory has been copied. Under the regions' lock.
void NoteCopied(uint64_t from, uint64_t bytes);

// memory.cpp
// Copies with checks, in an operation: 0 or kErrorIllegalAddress.
Result CopyBytes(uint64_t to, uint64_t from, uint64_t bytes);
// Throws IllegalAccess unless all bytes may be touched. Under the regions' lock.
struct IllegalAccess {};
void RequireAccess(uint64_t address, uint64_t bytes);
// Runs a body while no memory can be unmapped; IllegalAccess becomes 700.
Result WithMemory(const std::function<void()>& body);
// Copies to or from this host memory are asynchronous.
bool Pinned(World& world, uint64_t address, uint64_t bytes);
// Whether the world's tables know all the bytes, with or without access.
bool Known(World& world, uint64_t address, uint64_t bytes, Where* where);
void ForgetMemory(World& world);
// A broken context takes its memory along; a sound one has none left, or leaks.
void ForgetMemoryOf(World& world, uint64_t context);

// kernels.cpp
// The number of bytes of a kernel's one argument, 0 for an unknown kernel.
uint64_t KernelArgumentBytes(const std::string& name);
// The memory that a launch with this argument reads and writes, its tables included;
// they must be as they will be when it runs.
Spans KernelTouches(const std::string& name, const void* argument);
void RunKernel(const std::string& name, const void* argument, const unsigned grid[3],
               unsigned threads, uint64_t seed);

// How the driver's entries begin: FAKE_ENTER, and FAKE_CONTEXT where the calling
// thread must have a context.
#define FAKE_ENTER(name)     \
  World& world = TheWorld(); \
  Lock lock(world.mutex);    \
  if (const Result entered = Enter(world, name, true); entered != 0) return entered

// The same for calls that are refused while a capture goes on that they could harm.
#define FAKE_ENTER_WAITING(name) \
  FAKE_ENTER(name);              \
  if (const Result refused = RefuseWhileCapturing(world); refused != 0) return refused

#define FAKE_CONTEXT()        \
  Context* context = nullptr; \
  if (const Result current = Current(world, &context); current != 0) return current

}  // namespace fakecuda

#endif  // KVCAST_TESTS_FAKECUDA_STATE_H_
