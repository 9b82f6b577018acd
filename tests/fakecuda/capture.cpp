// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Captures of streams into graphs. No graph is made: what goes into one is counted
// and does not run. The driver's manual calls "potentially unsafe" what a capture
// refuses and gives no list; here it is what allocates, frees or waits, queries of
// events included, as frameworks have found.

#include "tests/fakecuda/declarations.h"
#include "tests/fakecuda/state.h"

namespace fakecuda {

using namespace kvcast::cuda;  // NOLINT: numbers of the driver, in this file's calls

int& CaptureMode() {
  thread_local int mode = kCaptureGlobal;
  return mode;
}

Result RefuseWhileCapturing(World& world) {
  if (CaptureMode() == kCaptureRelaxed) return 0;
  for (const auto& [id, stream] : world.streams) {
    if (stream->capture == nullptr || stream->capture->mode == kCaptureRelaxed) continue;
    const bool everybody =
        stream->capture->mode == kCaptureGlobal && CaptureMode() == kCaptureGlobal;
    if (!everybody && stream->capture->thread != std::this_thread::get_id()) continue;
    stream->capture->spoilt = true;
    return kErrorStreamCaptureUnsupported;
  }
  return 0;
}

Result Captured(World& world, Stream* stream, bool* taken) {
  *taken = stream->capture != nullptr;
  if (stream->capture == nullptr) {
    // The legacy NULL stream would wait for the blocking streams, which cannot be.
    const auto context = world.contexts.find(stream->context);
    if (context == world.contexts.end() || context->second.null_stream != stream->id) return 0;
    for (const auto& [id, other] : world.streams) {
      if (other->context != stream->context || !other->blocking || !other->capture) continue;
      other->capture->spoilt = true;
      return kErrorStreamCaptureImplicit;
    }
    return 0;
  }
  if (stream->capture->spoilt) return kErrorStreamCaptureInvalidated;
  ++stream->capture->captured;
  return 0;
}

extern "C" {

Result fake_cuThreadExchangeStreamCaptureMode(int* mode) {
  FAKE_ENTER("cuThreadExchangeStreamCaptureMode");
  if (mode == nullptr || *mode < kCaptureGlobal || *mode > kCaptureRelaxed) {
    return kErrorInvalidValue;
  }
  std::swap(*mode, CaptureMode());
  return 0;
}

Result fake_cuStreamIsCapturing(StreamHandle stream, int* status) {
  FAKE_ENTER("cuStreamIsCapturing");
  Stream* queue = nullptr;
  if (const Result found = FindStream(world, Id(stream), &queue); found != 0) return found;
  if (stream == nullptr) {
    // It cannot be asked while a stream is captured that it would join. (Unlike its
    // use the question spoils nothing.)
    for (const auto& [id, other] : world.streams) {
      if (other->context == queue->context && other->blocking && other->capture) {
        return kErrorStreamCaptureImplicit;
      }
    }
  }
  *status = queue->capture == nullptr ? kCaptureNone : queue->capture->spoilt ? 2 : 1;
  return 0;
}

}  // extern "C"

}  // namespace fakecuda

using fakecuda::Lock;
using fakecuda::TheWorld;
using fakecuda::World;

extern "C" {

void fakecuda_capture_begin(void* stream, int mode) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  const auto found = world.streams.find(fakecuda::Id(stream));
  if (found == world.streams.end()) return;
  found->second->capture = std::make_shared<fakecuda::Capture>();
  found->second->capture->mode = mode;
  found->second->capture->thread = std::this_thread::get_id();
}

int64_t fakecuda_capture_end(void* stream) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  const auto found = world.streams.find(fakecuda::Id(stream));
  if (found == world.streams.end() || !found->second->capture) return -1;
  const fakecuda::CaptureRef ended = found->second->capture;
  for (const auto& [id, other] : world.streams) {
    if (other->capture == ended) other->capture.reset();
  }
  return ended->spoilt ? -1 : ended->captured;
}

void fakecuda_stream_capture(void* stream, int capturing) {
  if (capturing != 0) {
    fakecuda_capture_begin(stream, kvcast::cuda::kCaptureRelaxed);
  } else {
    (void)fakecuda_capture_end(stream);
  }
}

}  // extern "C"
