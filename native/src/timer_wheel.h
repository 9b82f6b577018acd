// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Blocks whose priority ends at some time.
#ifndef KVCAST_NATIVE_SRC_TIMER_WHEEL_H_
#define KVCAST_NATIVE_SRC_TIMER_WHEEL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/src/prefix_tree.h"

namespace kvcast {

// A hashed wheel: a block is on the list of the slot that its tick falls into,
// modulo the number of slots, so that one turn of nine minutes meets every
// block at most once. Setting and cancelling take a few steps and no memory; the
// links are in the nodes. Time is what the caller says it is.
class TimerWheel {
 public:
  // 2^27 ns = 134 ms: far finer than a time to live needs to be.
  static constexpr uint32_t kTickShift = 27;
  static constexpr uint32_t kSlotBits = 12;
  static constexpr uint32_t kSlots = 1u << kSlotBits;
  // A node has 36 bits for a tick, four of them beside its slot: 292 years, so that
  // times on any clock of 63 bits are told apart. What is later counts as this.
  static constexpr uint64_t kLastTick = (uint64_t{1} << (32 + 16 - kSlotBits)) - 1;

  [[nodiscard]] static uint32_t SlotOf(const Node& n) { return n.timer_slot % kSlots; }
  [[nodiscard]] static uint64_t DueOf(const Node& n) {
    return uint64_t{n.timer_slot} >> kSlotBits << 32 | n.due;
  }

  explicit TimerWheel(PrefixTree& tree) : tree_(tree), slots_(kSlots) {}

  [[nodiscard]] uint32_t size() const { return size_; }

  // Rounds down: a block is due at its time, or within a tick before it. The
  // block must have no timer.
  void Set(NodeId id, uint64_t at_ns) {
    Node& n = tree_.node(id);
    uint64_t tick = std::min(at_ns >> kTickShift, kLastTick);
    n.due = static_cast<uint32_t>(tick) != 0 ? static_cast<uint32_t>(tick) : 1;  // 0: none
    const uint64_t high = tick >> 32 << kSlotBits;
    // Into a slot that is still to come; the one being looked at has its number
    // of blocks already.
    if (started_) tick = std::max(tick, done_ + (left_ != 0 ? 2 : 1));
    n.timer_slot = static_cast<uint16_t>(high | tick % kSlots);
    Append(slots_[SlotOf(n)], id);
    ++size_;
  }
  void Cancel(NodeId id) {
    Node& n = tree_.node(id);
    if (n.due == 0) return;
    Unlink(slots_[SlotOf(n)], id);
    n.due = 0;
    --size_;
  }
  // Forgets all timers of a tree that is cleared.
  void Clear() {
    slots_.assign(kSlots, {});
    size_ = 0;
    left_ = 0;
  }

  // Takes blocks that are due at now_ns off the wheel and hands them to
  // due(id), looking at no more than `limit` blocks. False if it stopped there
  // before it was through.
  template <typename Due>
  bool Advance(uint64_t now_ns, uint64_t limit, Due&& due) {
    const uint64_t now = now_ns >> kTickShift;
    started_ = true;
    while (done_ < now && size_ != 0) {
      // Everything that can be due is met within one turn.
      if (left_ == 0 && now - done_ > kSlots) done_ = now - kSlots;
      List& list = slots_[(done_ + 1) % kSlots];
      left_ = left_ == 0 ? list.size : std::min(left_, list.size);
      for (; left_ != 0; --left_) {
        if (limit-- == 0) return false;
        const NodeId id = list.head;
        Unlink(list, id);
        if (now >= DueOf(tree_.node(id))) {
          tree_.node(id).due = 0;
          --size_;
          due(id);
        } else {
          Append(list, id);
        }
      }
      ++done_;
    }
    if (now > done_) {
      done_ = now;
      left_ = 0;
    }
    return true;
  }

  // For Check: calls visit(id, slot) for each block on the wheel.
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      uint32_t left = slots_[slot].size;
      for (NodeId id = slots_[slot].head; id != kNil && left-- != 0;
           id = tree_.node(id).timer_next) {
        visit(id, slot);
      }
    }
  }
  [[nodiscard]] size_t bytes() const { return slots_.capacity() * sizeof(List); }

 private:
  friend struct ManagerPeer;  // tests that compare all of it

  struct List {
    NodeId head = kNil;
    NodeId tail = kNil;
    uint32_t size = 0;
  };
  void Append(List& list, NodeId id) {
    Node& n = tree_.node(id);
    n.timer_prev = list.tail;
    n.timer_next = kNil;
    (list.tail != kNil ? tree_.node(list.tail).timer_next : list.head) = id;
    list.tail = id;
    ++list.size;
  }
  void Unlink(List& list, NodeId id) {
    const Node& n = tree_.node(id);
    (n.timer_prev != kNil ? tree_.node(n.timer_prev).timer_next : list.head) = n.timer_next;
    (n.timer_next != kNil ? tree_.node(n.timer_next).timer_prev : list.tail) = n.timer_prev;
    --list.size;
  }

  PrefixTree& tree_;
  std::vector<List> slots_;
  uint32_t size_ = 0;
  bool started_ = false;
  uint64_t done_ = 0;  // all ticks up to this one have been looked at
  uint32_t left_ = 0;  // of the slot being looked at: blocks not looked at yet
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_TIMER_WHEEL_H_
