// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The part of the C ABI for snapshots of a stream.

#include <memory>
#include <utility>

#include "kvcast/kvcast.h"
#include "native/src/handles.h"
#include "native/src/status.h"
#include "sink/src/snapshot.h"
#include "sink/src/streaming_event_sink.h"

// What a kvc_snapshot* points to. It shares the sink: the stream may be
// destroyed first.
struct kvc_snapshot {
  kvc_snapshot(std::shared_ptr<kvcast::EventSink> of, std::unique_ptr<kvcast::Snapshot> pinned)
      : sink(std::move(of)), snapshot(std::move(pinned)) {
    kvcast::live_handles().snapshots.fetch_add(1, std::memory_order_relaxed);
  }
  ~kvc_snapshot() { kvcast::live_handles().snapshots.fetch_sub(1, std::memory_order_relaxed); }
  kvc_snapshot(const kvc_snapshot&) = delete;
  kvc_snapshot& operator=(const kvc_snapshot&) = delete;

  std::shared_ptr<kvcast::EventSink> sink;  // goes last
  std::unique_ptr<kvcast::Snapshot> snapshot;
};

extern "C" {

kvc_status kvc_stream_snapshot_open(kvc_stream* stream, kvc_snapshot** out,
                                    kvc_error* error) KVC_NOEXCEPT {
  kvcast::ClearError(error);
  return kvcast::Guard(error, [&] {
    if (stream == nullptr) return kvcast::Fail(error, KVC_INVALID_ARGUMENT, "stream is NULL");
    if (out == nullptr) return kvcast::Fail(error, KVC_INVALID_ARGUMENT, "out is NULL");
    // Streams of the ABI have no other sink.
    auto& sink = static_cast<kvcast::StreamingEventSink&>(*stream->sink);
    std::unique_ptr<kvcast::Snapshot> snapshot;
    switch (sink.Pin(&snapshot)) {
      case kvcast::PinResult::kDraining:
        return kvcast::Fail(error, KVC_BUSY, "a drain of this stream is running");
      case kvcast::PinResult::kPinned:
        return kvcast::Fail(error, KVC_BUSY, "another snapshot of this stream is open");
      case kvcast::PinResult::kDone:
        break;
    }
    *out = std::make_unique<kvc_snapshot>(stream->sink, std::move(snapshot)).release();
    return kvc_status{KVC_OK};
  });
}

kvc_status kvc_stream_snapshot_next(kvc_snapshot* snapshot, uint64_t max_events,
                                    uint64_t max_blocks, kvc_borrowed_batch* out,
                                    kvc_error* error) KVC_NOEXCEPT {
  kvcast::ClearError(error);
  return kvcast::Guard(error, [&] {
    if (snapshot == nullptr) return kvcast::Fail(error, KVC_INVALID_ARGUMENT, "snapshot is NULL");
    if (out == nullptr) return kvcast::Fail(error, KVC_INVALID_ARGUMENT, "out is NULL");
    if (!snapshot->snapshot->Next(max_events, max_blocks, out)) {
      return kvcast::Fail(error, KVC_END, "the snapshot has been read to its end");
    }
    return kvc_status{KVC_OK};
  });
}

void kvc_stream_snapshot_close(kvc_snapshot* snapshot) KVC_NOEXCEPT { delete snapshot; }

}  // extern "C"
