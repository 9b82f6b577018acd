// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A sink for tests of the core: keeps everything, admits as much as it is told.
#ifndef KVCAST_TESTS_NATIVE_RECORDING_SINK_H_
#define KVCAST_TESTS_NATIVE_RECORDING_SINK_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "native/src/event_sink.h"

namespace kvcast {

class RecordingSink final : public EventSink {
 public:
  void Attach(const SinkGeometry& geometry, SinkHost* host) override {
    geometry_ = geometry;
    host_ = host;
  }
  uint32_t Store(const StoreRun& run, bool healing) noexcept override {
    EXPECT_EQ(run.parent == StoreRun::kRoot, run.scope != nullptr);
    if (run.parent != StoreRun::kRoot) {
      EXPECT_TRUE(announced_.count(run.parent)) << "a store before its parent's";
    }
    const uint32_t admitted = std::min(run.count, healing ? heal_room : room);
    (healing ? heal_room : room) -= admitted;
    uint32_t parent = run.parent;
    for (uint32_t i = 0; i < admitted; ++i) {
      const uint32_t id = run.nodes[i];
      EXPECT_TRUE(announced_.emplace(id, parent).second) << "stored twice";
      if (parent != StoreRun::kRoot) ++children_[parent];
      const uint32_t* tokens = geometry_.Tokens(id);
      log.push_back("+" + std::to_string(tokens[0]));
      parent = id;
    }
    return admitted;
  }
  void Remove(const uint32_t* nodes, const uint8_t* reasons, uint32_t count) noexcept override {
    for (uint32_t i = 0; i < count; ++i) {
      EXPECT_TRUE(reasons[i] >= KVC_EVICTED_CAPACITY && reasons[i] <= KVC_EVICTED_SCOPE);
      const auto it = announced_.find(nodes[i]);
      if (it == announced_.end()) {
        ADD_FAILURE() << "removed without having been stored";
        continue;
      }
      EXPECT_EQ(children_[nodes[i]], 0u) << "removed before a child";
      if (it->second != StoreRun::kRoot) --children_[it->second];
      announced_.erase(it);
      log.push_back("-");
    }
  }
  void Clear() noexcept override {
    if (log.empty()) return;
    announced_.clear();
    children_.clear();
    log.push_back("clear");
  }
  void Seal() noexcept override { host_ = nullptr; }
  DeferralCounters& deferral_counters() noexcept override { return counters; }
  bool suppresses_multimodal() const noexcept override { return suppress; }
  uint64_t announced_blocks() const noexcept override { return announced_.size(); }

  SinkHost* host() { return host_; }

  uint32_t room = UINT32_MAX;       // new stores still admitted
  uint32_t heal_room = UINT32_MAX;  // healed ones still admitted
  bool suppress = false;            // asked when a manager is created on it
  std::vector<std::string> log;     // "+first token", "-", "clear"
  DeferralCounters counters;

 private:
  SinkGeometry geometry_;
  SinkHost* host_ = nullptr;
  std::map<uint32_t, uint32_t> announced_;  // node -> parent
  std::map<uint32_t, uint32_t> children_;
};

}  // namespace kvcast

#endif  // KVCAST_TESTS_NATIVE_RECORDING_SINK_H_
