// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Copies, fills, events, streams: what is queued.

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/fakecuda/state.h"

namespace fakecuda {

using namespace kvcast::cuda;  // NOLINT: numbers of the driver, in this file's calls

bool Pinned(World& world, uint64_t address, uint64_t bytes) {
  Where where{};
  return Known(world, address, bytes, &where) && where == Where::kHost;
}

fakecuda_work& WorkOfThisThread() {
  thread_local fakecuda_work work{};
  return work;
}

void NoteCopied(uint64_t from, uint64_t bytes) {
  fakecuda_work& work = WorkOfThisThread();
  work.bytes += bytes;
  if (Pinned(TheWorld(), from, bytes)) work.host_bytes += bytes;
}

Result CopyBytes(uint64_t to, uint64_t from, uint64_t bytes) {
  return WithMemory([&] {
    RequireAccess(to, bytes);
    RequireAccess(from, bytes);
    std::memmove(ToHandle<void*>(to), ToHandle<const void*>(from), bytes);
    ++WorkOfThisThread().copies;
    NoteCopied(from, bytes);
  });
}

namespace {

bool OnDevice(World& world, uint64_t address, uint64_t bytes) {
  Where where{};
  return Known(world, address, bytes, &where) && where != Where::kHost;
}

// The driver takes the bytes of pageable memory before the call returns.
Op FromSnapshot(World& world, uint64_t to, const void* from, uint64_t bytes) {
  const uint64_t pinned = Pinned(world, Id(from), bytes) ? bytes : 0;
  const auto* begin = static_cast<const uint8_t*>(from);
  auto held = std::make_shared<std::vector<uint8_t>>(begin, begin + bytes);
  Op op;
  op.touches = {{to, to + bytes}};
  op.run = [to, held, pinned] {
    return WithMemory([&] {
      RequireAccess(to, held->size());
      std::memcpy(ToHandle<void*>(to), held->data(), held->size());
      fakecuda_work& work = WorkOfThisThread();
      ++work.copies;
      work.bytes += held->size();
      work.host_bytes += pinned;
    });
  };
  return op;
}

Op Plain(uint64_t to, uint64_t from, uint64_t bytes) {
  Op op;
  op.touches = {{to, to + bytes}, {from, from + bytes}};
  op.run = [to, from, bytes] { return CopyBytes(to, from, bytes); };
  return op;
}

bool Overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

extern "C" {

Result fake_cuMemcpyHtoDAsync(DevicePtr to, const void* from, size_t bytes, StreamHandle stream) {
  FAKE_ENTER("cuMemcpyHtoDAsync");
  Stream* queue = nullptr;
  if (const Result found = FindStream(world, Id(stream), &queue); found != 0) return found;
  if (bytes == 0) return 0;
  if (!OnDevice(world, to, bytes)) return kErrorInvalidValue;
  return Enqueue(world, lock, queue,
                 Pinned(world, Id(from), bytes) ? Plain(to, Id(from), bytes)
                                                : FromSnapshot(world, to, from, bytes));
}

Result fake_cuMemcpyDtoHAsync(void* to, DevicePtr from, size_t bytes, StreamHandle stream) {
  FAKE_ENTER("cuMemcpyDtoHAsync");
  Stream* queue = nullptr;
  if (const Result found = FindStream(world, Id(stream), &queue); found != 0) return found;
  if (bytes == 0) return 0;
  if (!OnDevice(world, from, bytes)) return kErrorInvalidValue;
  if (Pinned(world, Id(to), bytes)) {
    return Enqueue(world, lock, queue, Plain(Id(to), from, bytes));
  }
  // To pageable memory the call returns when the bytes are there.
  Op op;
  op.touches = {{from, from + bytes}};
  op.run = [to, from, bytes] {
    return WithMemory([&] {
      RequireAccess(from, bytes);
      std::memcpy(to, ToHandle<const void*>(from), bytes);
      ++WorkOfThisThread().copies;
      NoteCopied(from, bytes);
    });
  };
  PointRef point;
  if (const Result queued = Enqueue(world, lock, queue, std::move(op), &point); queued != 0) {
    return queued;
  }
  WaitFor(world, lock, point);
  FAKE_CONTEXT();
  return 0;
}

Result fake_cuMemcpyDtoDAsync(DevicePtr to, DevicePtr from, size_t bytes, StreamHandle stream) {
  FAKE_ENTER("cuMemcpyDtoDAsync");
  Stream* queue = nullptr;
  if (const Result found = FindStream(world, Id(stream), &queue); found != 0) return found;
  if (bytes == 0) return 0;
  if (!OnDevice(world, to, bytes) || !OnDevice(world, from, bytes)) return kErrorInvalidValue;
  if (Overlap(to, bytes, from, bytes)) {
    Violation(world, "cuMemcpyDtoDAsync between overlapping ranges");
  }
  return Enqueue(world, lock, queue, Plain(to, from, bytes));
}

// 12.8's. The copies of a batch run in any order.
Result fake_cuMemcpyBatchAsync(DevicePtr* to, DevicePtr* from, size_t* bytes, size_t count,
                               MemcpyAttributes* attributes, size_t* starts, size_t attribute_count,
                               size_t* failed, StreamHandle stream) {
  FAKE_ENTER("cuMemcpyBatchAsync");
  if (failed != nullptr) *failed = SIZE_MAX;
  if (stream == nullptr) return kErrorInvalidHandle;
  Stream* queue = nullptr;
  if (const Result found = FindStream(world, Id(stream), &queue); found != 0) return found;
  if (queue->capture != nullptr) {
    queue->capture->spoilt = true;
    return kErrorStreamCaptureUnsupported;
  }
  if (count == 0 || attribute_count == 0 || attribute_count > count || starts[0] != 0) {
    return kErrorInvalidValue;
  }
  std::vector<Op> ops;
  std::mt19937_64 random(world.options.seed + world.all_calls);
  size_t attribute = 0;
  for (size_t i = 0; i < count; ++i) {
    while (attribute + 1 < attribute_count && starts[attribute + 1] <= i) ++attribute;
    const bool from_device = OnDevice(world, from[i], bytes[i]);
    const bool to_device = OnDevice(world, to[i], bytes[i]);
    const bool known = (from_device || Pinned(world, from[i], bytes[i])) &&
                       (to_device || Pinned(world, to[i], bytes[i]));
    if (bytes[i] == 0 || !known || (!from_device && !to_device)) {
      if (failed != nullptr) *failed = i;
      return kErrorInvalidValue;
    }
    // Device memory is written by kernels that nobody has waited for: no driver checks it.
    if (attributes[attribute].source_order == kSourceOrderAny && from_device) {
      Violation(world, "cuMemcpyBatchAsync may read device memory in any order");
    }
    const bool early =
        attributes[attribute].source_order == kSourceOrderAny && !from_device && random() % 2 == 0;
    ops.push_back(early ? FromSnapshot(world, to[i], ToHandle<const void*>(from[i]), bytes[i])
                        : Plain(to[i], from[i], bytes[i]));
  }
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      const bool after = Overlap(to[i], bytes[i], from[j], bytes[j]);
      const bool same = i != j && Overlap(to[i], bytes[i], to[j], bytes[j]);
      if (after || same) {
        Violation(world, "cuMemcpyBatchAsync with copies that depend on each other");
        i = count - 1;
        break;
      }
    }
  }
  std::shuffle(ops.begin(), ops.end(), random);
  // One operation of the queue, as the driver's batch is one submission.
  Op batch;
  for (Op& op : ops) {
    batch.touches.insert(batch.touches.end(), op.touches.begin(), op.touches.end());
  }
  batch.run = [held = std::make_shared<std::vector<Op>>(std::move(ops))]() -> Result {
    for (Op& op : *held) {
      if (const Result result = op.run(); result != 0) return result;
    }
    return 0;
  };
  return Enqueue(world, lock, queue, std::move(batch));
}

// What 13.0 calls cuMemcpyBatchAsync. Whoever gets it without having asked for
// 13.0 passes one argument too many.
Result fake_cuMemcpyBatchAsync_13(DevicePtr*, DevicePtr*, size_t*, size_t, MemcpyAttributes*,
                                  size_t*, size_t, StreamHandle) {
  FAKE_ENTER("cuMemcpyBatchAsync");
  Violation(world, "the prototype of another release was called");
  return kErrorInvalidValue;
}
Result fake_cuCtxSynchronize_13(ContextHandle) {
  FAKE_ENTER("cuCtxSynchronize");
  Violation(world, "the prototype of another release was called");
  return kErrorInvalidValue;
}
Result fake_cuCtxGetDevice_13(DeviceId*, ContextHandle) {
  FAKE_ENTER("cuCtxGetDevice");
  Violation(world, "the prototype of another release was called");
  return kErrorInvalidValue;
}

Result fake_cuMemsetD32Async(DevicePtr to, unsigned value, size_t words, StreamHandle stream) {
  FAKE_ENTER("cuMemsetD32Async");
  Stream* queue = nullptr;
  if (const Result found = FindStream(world, Id(stream), &queue); found != 0) return found;
  if (to % 4 != 0 || !OnDevice(world, to, words * 4)) return kErrorInvalidValue;
  Op op;
  op.touches = {{to, to + words * 4}};
  op.run = [to, value, words] {
    return WithMemory([&] {
      RequireAccess(to, words * 4);
      std::fill_n(ToHandle<unsigned*>(to), words, value);
    });
  };
  return Enqueue(world, lock, queue, std::move(op));
}

Result fake_cuStreamCreate(StreamHandle* stream, unsigned flags) {
  FAKE_ENTER("cuStreamCreate");
  Context* context = nullptr;
  uint64_t id = 0;
  if (const Result current = Current(world, &context, &id); current != 0) return current;
  if (flags > kStreamNonBlocking) return kErrorInvalidValue;
  const uint64_t made = NewStream(world, id, flags == 0);
  if (made == 0) return kErrorOutOfMemory;
  *stream = ToHandle<StreamHandle>(made);
  return 0;
}

Result fake_cuStreamDestroy(StreamHandle stream) {
  FAKE_ENTER("cuStreamDestroy");
  Stream* queue = nullptr;
  // A broken context does not keep its streams from going.
  const Result found = FindStream(world, Id(stream), &queue);
  if (found == kErrorInvalidHandle || found == kErrorInvalidContext) return found;
  CloseStream(world, Id(stream));
  world.destroyed.insert(Id(stream));
  return found;
}

Result fake_cuStreamSynchronize(StreamHandle stream) {
  FAKE_ENTER_WAITING("cuStreamSynchronize");
  Stream* queue = nullptr;
  if (const Result found = FindStream(world, Id(stream), &queue); found != 0) return found;
  if (queue->capture != nullptr) {
    queue->capture->spoilt = true;
    return kErrorStreamCaptureUnsupported;
  }
  WaitFor(world, lock, queue->last);
  FAKE_CONTEXT();
  return 0;
}

Result fake_cuStreamQuery(StreamHandle stream) {
  FAKE_ENTER_WAITING("cuStreamQuery");
  Stream* queue = nullptr;
  if (const Result found = FindStream(world, Id(stream), &queue); found != 0) return found;
  if (queue->capture != nullptr) {
    queue->capture->spoilt = true;
    return kErrorStreamCaptureUnsupported;
  }
  return queue->last && !queue->last->done ? kErrorNotReady : 0;
}

Result fake_cuStreamGetCtx(StreamHandle stream, ContextHandle* context) {
  FAKE_ENTER("cuStreamGetCtx");
  const bool special = stream == kStreamLegacy || stream == kStreamPerThread;
  if (stream == nullptr || special) {
    uint64_t current = 0;
    Context* ours = nullptr;
    if (const Result result = Current(world, &ours, &current); result != 0) return result;
    *context = ToHandle<ContextHandle>(current);
    return 0;
  }
  const auto found = world.streams.find(Id(stream));
  if (found == world.streams.end() || found->second->closing) return kErrorInvalidHandle;
  *context = ToHandle<ContextHandle>(found->second->context);
  return 0;
}

Result fake_cuEventCreate(EventHandle* event, unsigned flags) {
  FAKE_ENTER("cuEventCreate");
  Context* context = nullptr;
  uint64_t id = 0;
  if (const Result current = Current(world, &context, &id); current != 0) return current;
  const uint64_t made = NewId(world, Kind::kEvent);
  world.events[made] = {id, (flags & kEventDisableTiming) == 0, nullptr, nullptr};
  *event = ToHandle<EventHandle>(made);
  return 0;
}

Result fake_cuEventRecord(EventHandle event, StreamHandle stream) {
  FAKE_ENTER("cuEventRecord");
  Stream* queue = nullptr;
  if (const Result found = FindStream(world, Id(stream), &queue); found != 0) return found;
  const auto it = world.events.find(Id(event));
  if (it == world.events.end() || it->second.context != queue->context) {
    return kErrorInvalidHandle;
  }
  PointRef point;
  Op op;
  op.run = [at = op.point.get()]() -> Result {  // the operation's own, which outlives it
    at->work = WorkOfThisThread();
    return 0;
  };
  if (const Result queued = Enqueue(world, lock, queue, std::move(op), &point); queued != 0) {
    return queued;
  }
  const auto again = world.events.find(Id(event));
  if (again != world.events.end()) {
    again->second.point = point;
    again->second.capture = queue->capture;
  }
  return 0;
}

Result fake_cuStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned) {
  FAKE_ENTER("cuStreamWaitEvent");
  Stream* queue = nullptr;
  if (const Result found = FindStream(world, Id(stream), &queue); found != 0) return found;
  const auto it = world.events.find(Id(event));
  if (it == world.events.end()) return kErrorInvalidHandle;
  if (it->second.capture != nullptr && queue->capture == nullptr) {
    queue->capture = it->second.capture;  // the stream joins the capture
  }
  // Bound to the newest record, now; without any there is nothing to wait for.
  Op op;
  if (it->second.point) op.after.push_back(it->second.point);
  return Enqueue(world, lock, queue, std::move(op));
}

Result fake_cuEventQuery(EventHandle event) {
  FAKE_ENTER_WAITING("cuEventQuery");
  const auto it = world.events.find(Id(event));
  if (it == world.events.end()) return kErrorInvalidHandle;
  if (it->second.capture != nullptr) return kErrorCapturedEvent;
  FAKE_CONTEXT();
  return it->second.point && !it->second.point->done ? kErrorNotReady : 0;
}

Result fake_cuEventSynchronize(EventHandle event) {
  FAKE_ENTER_WAITING("cuEventSynchronize");
  const auto it = world.events.find(Id(event));
  if (it == world.events.end()) return kErrorInvalidHandle;
  if (it->second.capture != nullptr) return kErrorCapturedEvent;
  WaitFor(world, lock, it->second.point);
  FAKE_CONTEXT();
  return 0;
}

Result fake_cuEventElapsedTime(float* milliseconds, EventHandle start, EventHandle end) {
  FAKE_ENTER("cuEventElapsedTime");
  const auto a = world.events.find(Id(start));
  const auto b = world.events.find(Id(end));
  if (a == world.events.end() || b == world.events.end() || !a->second.timed || !b->second.timed ||
      !a->second.point || !b->second.point) {
    return kErrorInvalidHandle;
  }
  if (!a->second.point->done || !b->second.point->done) return kErrorNotReady;
  if (world.elapsed) {
    const fakecuda_work& before = a->second.point->work;
    const fakecuda_work& after = b->second.point->work;
    *milliseconds =
        world.elapsed({after.kernels - before.kernels, after.copies - before.copies,
                       after.bytes - before.bytes, after.host_bytes - before.host_bytes});
    return 0;
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(b->second.point->when - a->second.point->when)
          .count();
  return 0;
}

Result fake_cuEventDestroy(EventHandle event) {
  FAKE_ENTER("cuEventDestroy");
  return world.events.erase(Id(event)) != 0 ? 0 : kErrorInvalidHandle;
}

#pragma GCC visibility push(default)
void fakecuda_script_elapsed(float (*milliseconds)(const fakecuda_work* work, void* user),
                             void* user) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.elapsed = nullptr;
  if (milliseconds == nullptr) return;
  world.elapsed = [milliseconds, user](const fakecuda_work& work) {
    return milliseconds(&work, user);
  };
}
#pragma GCC visibility pop

}  // extern "C"

}  // namespace fakecuda
