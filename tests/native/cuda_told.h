// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The stream of a manager on the fake driver, and a subscriber that believes it.
#ifndef KVCAST_TESTS_NATIVE_CUDA_TOLD_H_
#define KVCAST_TESTS_NATIVE_CUDA_TOLD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/abi_support.h"

namespace kvcast::cuda {

class Told {
 public:
  Told() : mirror_(KVC_HASH_SIGNED64, kBlock) {
    kvc_stream_config config;
    kvc_stream_config_init(&config);
    config.max_entries = 64;
    if (kvc_stream_create(&config, &stream_, nullptr) != KVC_OK) stream_ = nullptr;
  }
  ~Told() { kvc_stream_destroy(stream_); }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;

  static constexpr uint32_t kBlock = 16;  // tokens, as a config has by default

  [[nodiscard]] kvc_stream* stream() const { return stream_; }
  // Blocks that the subscriber knows.
  [[nodiscard]] size_t blocks() const { return mirror_.blocks().size(); }
  // Drains everything; what is wrong with it, or with what the subscriber then knows, or "".
  [[nodiscard]] std::string Wrong(kvc_manager* manager) {
    for (;;) {
      kvc_borrowed_batch batch{};
      kvc_error error{};
      if (kvc_stream_drain(stream_, 0, 0, &batch, &error) != KVC_OK) return error.message;
      if (batch.event_count == 0) break;
      if (const std::string wrong = mirror_.Apply(batch); !wrong.empty()) return wrong;
    }
    kvc_stats stats{};
    stats.struct_size = sizeof stats;
    kvc_error error{};
    if (kvc_manager_stats_get(manager, &stats, &error) != KVC_OK) return error.message;
    std::vector<kvc_resident_block> resident(stats.blocks);
    uint64_t count = 0;
    if (kvc_manager_resident(manager, KVC_HASH_SIGNED64, resident.size(), resident.data(), &count,
                             &error) != KVC_OK) {
      return error.message;
    }
    resident.resize(count);
    return mirror_.Compare(resident, true);
  }

 private:
  kvc_stream* stream_ = nullptr;
  testing::WireMirror mirror_;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_TESTS_NATIVE_CUDA_TOLD_H_
