// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A bounded piece of pinned host memory, from which whatever work in flight needs
// on the host side is taken: tables of kernels, staged bytes.
#ifndef KVCAST_CUDA_SRC_PINNED_RING_H_
#define KVCAST_CUDA_SRC_PINNED_RING_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/src/event_pool.h"

namespace kvcast::cuda {

// Space is taken in order and comes back in order, when the event behind its work
// has been reached. Nothing waits: when the ring is full, Take says so. So the
// bytes in flight are bounded by its size. Any thread.
//
// Space that nothing can show to be free again is lost: the ring goes on without it. That is
// so when the stream of its work is none any more before an event was taken, and when the
// event has gone into a graph, as the work may have: then it runs whenever that is launched.
class PinnedRing {
 public:
  struct Space {
    void* host = nullptr;
    DevicePtr device = 0;  // the same bytes as a kernel addresses them
    uint64_t bytes = 0;
    uint64_t ticket = 0;
  };

  // Throws Error when the driver pins no more memory.
  PinnedRing(const DeviceContext& context, EventPool& events, uint64_t bytes);
  // Waits for the work that uses its space; for what is owed or lost, for all of the context.
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  // Take calls the driver only when the ring is full, TryTake never; the rest, but for
  // Poll, under a ContextScope.
  // Space of `bytes`, aligned to 16; host == nullptr when there is none now, or
  // never (more than the ring has).
  [[nodiscard]] Space Take(uint64_t bytes) { return Take(bytes, true); }
  // What has not been polled is in use.
  [[nodiscard]] Space TryTake(uint64_t bytes) { return Take(bytes, false); }
  // The space comes back when all that is queued on the stream by now has run. False when
  // the driver refuses to record that: the event is owed, until Settle, or another release
  // after the same stream, succeeds. Throws only when the device is lost.
  bool ReleaseAfter(const Space& space, StreamHandle stream);
  // Tries again for what is owed of a stream; costs nothing when nothing is.
  bool Settle(StreamHandle stream);
  // The stream is none any more: what is owed of it is lost.
  void Abandon(StreamHandle stream);
  // Nothing was queued that uses it.
  void Release(const Space& space);
  // Takes back what has been reached.
  void Poll();

  [[nodiscard]] uint64_t size() const { return size_; }
  // Of a ring that is asked for `bytes`.
  [[nodiscard]] static uint64_t SizeFor(uint64_t bytes);
  // What is lost is not.
  [[nodiscard]] uint64_t in_flight() const;
  [[nodiscard]] bool has_lost() const;

 private:
  struct Part {
    uint64_t ticket;
    uint64_t begin;  // positions, counted without wrapping; what was passed over lies before
    uint64_t end;    // where the next part begins at the earliest
    EventHandle event = nullptr;
    bool free = false;
    bool owed = false;  // an event, on the stream
    bool lost = false;
    uint64_t behind = 0;  // ticket of the part whose event serves this one, too
    uint64_t release = 0;
    StreamHandle stream = nullptr;
  };
  struct Range {
    uint64_t begin;
    uint64_t end;
  };

  [[nodiscard]] Space Take(uint64_t bytes, bool poll);
  [[nodiscard]] std::optional<uint64_t> Fit(uint64_t start, uint64_t need) const;
  [[nodiscard]] EventHandle TakeBackLocked();
  void LoseLocked();

  const DeviceContext& context_;
  EventPool& events_;
  uint64_t size_;
  void* host_ = nullptr;
  DevicePtr device_ = 0;
  std::atomic<uint32_t> owed_{0};
  std::mutex poll_mutex_;     // whose turn it is to ask for events; taken before mutex_
  mutable std::mutex mutex_;  // never held over a call of the driver
  std::deque<Part> parts_;    // oldest first
  std::vector<Range> lost_;   // places
  uint64_t begin_ = 0;        // of parts_; positions grow for ever, modulo size_ is the place
  uint64_t end_ = 0;
  uint64_t next_ticket_ = 1;
  uint64_t releases_ = 0;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_PINNED_RING_H_
