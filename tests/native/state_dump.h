// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A manager's state and its stream's records, to be compared: a call that is refused leaves
// both as they were. Not told are the insides of the tables of pending marks and of digests
// (but for how many are in use), of the fence sets that nobody names, of the device, the
// bounded memory of histograms of ages, and how much memory lists have taken: a refused call
// may have reserved some.
#ifndef KVCAST_TESTS_NATIVE_STATE_DUMP_H_
#define KVCAST_TESTS_NATIVE_STATE_DUMP_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>

#include "native/src/manager.h"
#include "sink/src/streaming_event_sink.h"

namespace kvcast {

// Without what counts refusals. Lines begin to name what they tell; records of pages, nodes,
// pins and ghosts, tokens of tails and the words of the ring byte for byte.
struct ManagerPeer {
  static std::string Dump(const Manager& m, const StreamingEventSink& sink) {
    std::ostringstream out;
    const auto raw = [&out](const void* data, size_t size) {
      static const char* const kDigits = "0123456789abcdef";
      const auto* bytes = static_cast<const unsigned char*>(data);
      std::string text(2 * size, ' ');
      for (size_t i = 0; i < size; ++i) {
        text[2 * i] = kDigits[bytes[i] >> 4];
        text[2 * i + 1] = kDigits[bytes[i] & 15];
      }
      out << text;
    };
    const auto set = [&](FenceSetId id) {
      out << " (" << id << " x" << (id != 0 ? m.fences_.refs(id) : 0);
      m.fences_.ForEach(id, [&](const Fence& f) { out << " " << f.slot << "@" << f.position; });
      out << ")";
    };
    for (PageId id = 0; id < m.pages_.most(); ++id) {
      const Page& p = m.pages_[id];
      out << "page " << id << " node " << p.node << " holders " << p.holders << " prev " << p.prev
          << " next " << p.next << " state " << static_cast<uint32_t>(p.state) << " out "
          << m.pages_.IsOut(id);
      set(p.ready);
      set(p.used);
      out << " ";
      raw(&p, sizeof p);
      out << "\n";
    }
    out << "free from " << (m.pages_.elastic() ? kNil : m.pages_.FirstFree()) << ", counts "
        << m.pages_.free() << " " << m.pages_.live() << " " << m.pages_.cached() << " "
        << m.pages_.quarantined() << " " << m.pages_.leaving() << " of " << m.pages_.total()
        << ", limit " << m.pages_.limit() << ", asked " << m.asked_ << " " << m.asked_pages_
        << ", scan " << m.resize_scan_ << "\n";
    for (NodeId id = 0; id < m.tree_.high_water(); ++id) {
      const Node& n = m.tree_.node(id);
      out << "node " << id << " generation " << n.generation << " parent " << n.parent
          << " children " << n.children << " page " << n.page << " deferred " << n.deferred_prev
          << " " << n.deferred_next << " victims " << n.victims << " announce "
          << static_cast<uint32_t>(n.announce) << " ";
      raw(&n, sizeof n + size_t{m.block_size_} * sizeof(uint32_t));
      out << "\n";
    }
    for (RootId id = 0; id < m.tree_.root_slots(); ++id) {
      const Root& r = m.tree_.root(id);
      out << "root " << id << " " << r.hash << " refs " << r.refs << " sleepers " << r.sleepers
          << " next " << r.next_free << " child " << r.first_child << "\n";
    }
    for (const Sequence& s : m.sequences_) {
      out << "sequence " << s.generation << " open " << s.open << " suspended " << s.suspended
          << s.fresh << s.rest_kept << s.marking << " slot " << s.slot << " holds " << s.holds
          << " epoch " << s.epoch << " root " << s.root << " last " << s.last << " " << s.last_hash
          << " committed " << s.committed << " matched " << s.matched << " linked " << s.linked
          << " stop " << s.stop_blocks << " table " << s.table.version() << " next " << s.next_free
          << " at " << s.suspended_at << " awaits " << s.awaits << s.will_mark << " backoff "
          << s.backoff << " digests " << s.path_digests << s.tail_digests << " stream "
          << s.device_stream << " rules";
      for (const RetentionRule& rule : s.rules) {
        out << " " << rule.from << ":" << uint32_t{rule.own} << "@" << rule.expires_ns;
      }
      out << " path";
      for (const uint32_t token : s.path) out << " " << token;
      out << " pages";
      for (const PageId id : s.pages) out << " " << id;
      set(s.waits);
      out << "\n";
    }
    out << "deferred " << m.deferred_head_ << " " << m.deferred_tail_ << " " << m.deferred_count_
        << ", plans " << m.victims_.size() << " " << m.removals_.size() << " " << m.strip_.size()
        << ", fences " << m.fences_.live() << ", changes " << m.changes_ << ", kept "
        << m.kept_pages_ << ", open " << m.open_sequences_ << ", active " << m.active_sequences_
        << ", suspensions " << m.suspensions_ << ", marks " << m.pending_.size() << ", pinned "
        << m.pins_.pages() << ", digests " << m.digests_.live() << "\n";
    out << "tails ";
    raw(m.tails_.data(), m.tails_.size());
    out << "\npins " << m.pins_.pins_ << " free " << m.pins_.free_ << " ";
    raw(m.pins_.entries_, size_t{m.pins_.capacity_} * sizeof *m.pins_.entries_);
    out << "\ntimers " << m.timers_.size_ << " done " << m.timers_.done_;
    for (size_t i = 0; i < m.timers_.slots_.size(); ++i) {
      const auto& list = m.timers_.slots_[i];
      if (list.size != 0) out << " " << i << ":" << list.head << "x" << list.size;
    }
    if (m.scores_ != nullptr) {
      out << "\nnow " << m.scores_->now() << ", ghosts ";
      raw(m.scores_->slab_.data(), m.scores_->slab_.size());
    }
    out << "\n";
    kvc_stats counted = m.counters_;
    counted.refused_not_now = counted.refused_never_fits = counted.refused_gate = 0;
    out << "counters ";
    raw(&counted, sizeof counted);
    kvc_stream_stats stats;
    kvc_stream_stats_init(&stats);
    sink.GetStats(&stats);
    out << "\nstream " << stats.buffer_used_bytes << ", stored " << stats.stored_blocks
        << ", removed " << stats.removed_blocks << ", announced " << stats.announced_blocks
        << ", deferred " << stats.deferred_blocks << ", healed " << stats.healed_blocks << "\n";
    const RecordRing& ring = sink.ring();
    out << "ring written " << ring.write_position() << ", shown " << ring.ReadableEnd() << ", read "
        << ring.read_position() << "\n";
    for (size_t i = 0; i < ring.capacity(); i += 64) {
      out << "words from " << i << " ";
      for (size_t j = i; j < ring.capacity() && j < i + 64; ++j) {
        const uint32_t word = ring.At(j);
        raw(&word, sizeof word);
      }
      out << "\n";
    }
    return out.str();
  }
  // What a grow may ask for without being told that it never fits.
  static uint32_t Reachable(const Manager& m) { return m.pages_.Reachable(); }
};

inline std::string DumpState(const Manager& m, const StreamingEventSink& sink) {
  return ManagerPeer::Dump(m, sink);
}

// The first line that is not the same, of both; empty if all are.
inline std::string FirstDifference(const std::string& before, const std::string& after) {
  std::istringstream one(before), two(after);
  for (std::string a, b;;) {
    const bool more_a = static_cast<bool>(std::getline(one, a));
    const bool more_b = static_cast<bool>(std::getline(two, b));
    if (!more_a && !more_b) return "";
    if (more_a != more_b || a != b) return "\n- " + a + "\n+ " + b;
  }
}

}  // namespace kvcast

#endif  // KVCAST_TESTS_NATIVE_STATE_DUMP_H_
