// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// All of a manager's state and of its stream's records, to be compared: a call that is
// refused leaves both as they were.
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

// Everything but what counts refusals, which lines begin to name; records of pages and
// nodes and the words of the ring byte for byte.
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
          << " rules " << s.rules.size() << " path";
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
