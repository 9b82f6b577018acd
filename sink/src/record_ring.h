// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The buffer between the scheduler and the drainer: words from one writer to
// one reader, without a lock.
#ifndef KVCAST_SINK_SRC_RECORD_RING_H_
#define KVCAST_SINK_SRC_RECORD_RING_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace kvcast {

// Sixteen words are a block of the common size: a few moves instead of a call.
inline void CopyWords(uint32_t* out, const uint32_t* words, size_t count) {
  if (count == 16) {
    std::memcpy(out, words, 64);
  } else {
    std::memcpy(out, words, count * sizeof *words);
  }
}

// Positions count words from the start of the stream and never wrap; an index
// is a position modulo the capacity. Records wrap like everything else: no
// padding, so that room can be reckoned in words exactly.
//
// The writer is whoever holds the manager's lock, the reader whoever drains.
class RecordRing {
 public:
  RecordRing() = default;
  RecordRing(const RecordRing&) = delete;
  RecordRing& operator=(const RecordRing&) = delete;

  // Takes and touches the memory. Before any other use, once.
  void Allocate(uint64_t words) {
    if (words > buffer_.max_size()) throw std::bad_alloc();
    buffer_.assign(static_cast<size_t>(words), 0);
  }
  [[nodiscard]] size_t capacity() const { return buffer_.size(); }

  // ---- writer

  // Free words as of the last look at the reader's position: a lower bound.
  [[nodiscard]] uint64_t KnownFree() const {
    return capacity() - (writer_.position - writer_.known_tail);
  }
  // Free words now. Touches the reader's cache line.
  [[nodiscard]] uint64_t Free() {
    writer_.known_tail = tail_.load(std::memory_order_acquire);
    return KnownFree();
  }
  // The caller has made sure that there is room. Not visible before Publish.
  void Put(uint32_t word) {
    buffer_[writer_.index] = word;
    writer_.index = writer_.index + 1 == capacity() ? 0 : writer_.index + 1;
    ++writer_.position;
  }
  void Put(const uint32_t* words, size_t count) {
    const size_t first = std::min(count, capacity() - writer_.index);
    CopyWords(&buffer_[writer_.index], words, first);
    if (first != count) {
      CopyWords(buffer_.data(), words + first, count - first);
    }
    writer_.index = Advance(writer_.index, count);
    writer_.position += count;
  }
  // Where the next word goes.
  [[nodiscard]] uint64_t write_position() const { return writer_.position; }
  // Shows the reader everything that has been put.
  void Publish() { head_.store(writer_.position, std::memory_order_release); }

  // ---- reader

  // Where the next unread word is.
  [[nodiscard]] uint64_t read_position() const { return tail_.load(std::memory_order_relaxed); }
  // The end of what may be read.
  [[nodiscard]] uint64_t ReadableEnd() const { return head_.load(std::memory_order_acquire); }
  [[nodiscard]] size_t Index(uint64_t position) const {
    return static_cast<size_t>(position % capacity());
  }
  // `count` is at most the capacity.
  [[nodiscard]] size_t Advance(size_t index, size_t count) const {
    const size_t next = index + count;
    return next >= capacity() ? next - capacity() : next;
  }
  [[nodiscard]] uint32_t At(size_t index) const { return buffer_[index]; }
  // Calls take(pointer, count) for one or two pieces of the words at `index`.
  template <typename Take>
  void Visit(size_t index, size_t count, Take&& take) const {
    const size_t first = std::min(count, capacity() - index);
    take(&buffer_[index], first);
    if (first != count) take(buffer_.data(), count - first);
  }
  void Read(size_t index, uint32_t* out, size_t count) const {
    Visit(index, count, [&out](const uint32_t* words, size_t n) {
      CopyWords(out, words, n);
      out += n;
    });
  }
  // Gives everything before `position` back to the writer.
  void Release(uint64_t position) { tail_.store(position, std::memory_order_release); }

  // ---- anyone

  // Words waiting for the reader; at most the capacity.
  [[nodiscard]] uint64_t Used() const {
    // The tail first: then the difference cannot be negative.
    const uint64_t tail = tail_.load(std::memory_order_acquire);
    const uint64_t head = head_.load(std::memory_order_acquire);
    return std::min<uint64_t>(head - tail, capacity());
  }

 private:
  std::vector<uint32_t> buffer_;
  // Each on a cache line of its own: the writer's working state, what it
  // publishes, what the reader publishes.
  struct alignas(64) Writer {
    uint64_t position = 0;
    uint64_t known_tail = 0;
    size_t index = 0;
  };
  Writer writer_;
  alignas(64) std::atomic<uint64_t> head_{0};
  alignas(64) std::atomic<uint64_t> tail_{0};
};

}  // namespace kvcast

#endif  // KVCAST_SINK_SRC_RECORD_RING_H_
