// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A manager's whole life on a CUDA device, for the tests of what can go wrong in it.
#ifndef KVCAST_TESTS_NATIVE_CUDA_LIFE_H_
#define KVCAST_TESTS_NATIVE_CUDA_LIFE_H_

#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_support.h"
#include "tests/native/cuda_told.h"
#include "tests/native/owned_handle.h"

namespace kvcast::cuda {

class CudaLife : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ASSERT_EQ(kvc_cuda_open(nullptr, &error_), KVC_OK) << error_.message;
  }
  kvc_manager* Create(uint32_t flags = 0, kvc_stream* stream = nullptr, uint32_t partial = 0) {
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.flags = flags;
    config.partial_reuse = partial;
    config.capacity_blocks = 16;
    config.page_bytes = 1000;  // no multiple of 16
    config.seed = 1;
    config.copies = KVC_COPY_PUBLISHED;  // a calibration makes as many calls as it has time for
    testing::OwnedManager manager;
    status_ = Again([&] { return kvc_manager_create(&config, stream, manager.out(), &error_); });
    return manager.Take();
  }
  // Makes a call. When it fails and the device is not lost the same call must succeed now.
  template <typename Call>
  kvc_status Again(Call&& call) {
    kvc_status status = call();
    if (status == KVC_OK) return status;
    ++told_;
    EXPECT_TRUE(status == KVC_DEVICE_ERROR || status == KVC_OUT_OF_MEMORY ||
                status == KVC_INVALID_ARGUMENT)
        << status << ": " << error_.message;
    if (!again_) return status;
    const std::string first = error_.message;
    status = call();
    EXPECT_EQ(status, KVC_OK) << error_.message << ", after " << first;
    return status;
  }
  kvc_status Sequence(kvc_manager* manager, uint64_t stream, uint32_t first, uint64_t* id) {
    std::vector<uint32_t> tokens(21);  // a block and a tail
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = first + i;
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.device_stream = stream;
    prompt.scope = KVC_NO_SCOPE;
    kvc_create_result made{};
    kvc_status status = Again([&] {
      const kvc_status whole =
          kvc_sequences_create(manager, 1, &prompt, tokens.data(), tokens.size(), nullptr, 0,
                               nullptr, 0, &made, &error_);
      return whole != KVC_OK ? whole : made.status;
    });
    if (status != KVC_OK) return status;
    *id = made.sequence;
    if (const kvc_status grown = Grow(manager, *id, 32); grown != KVC_OK) return grown;
    kvc_commit_item commit{};
    commit.sequence = *id;
    commit.token_count = tokens.size();
    kvc_commit_result committed{};
    return Again([&] {
      status = kvc_sequences_commit(manager, 1, &commit, tokens.data(), tokens.size(), nullptr, 0,
                                    &committed, &error_);
      return status != KVC_OK ? status : committed.status;
    });
  }
  kvc_status Grow(kvc_manager* manager, uint64_t id, uint64_t tokens) {
    const kvc_grow_item item{id, tokens};
    kvc_grow_result grown{};
    return Again([&] {
      const kvc_status status =
          kvc_sequences_grow(manager, 1, &item, &grown, nullptr, 0, nullptr, &error_);
      return status != KVC_OK ? status : grown.status;
    });
  }
  // Everything a manager does with a device. Stops where something fails.
  kvc_status Live(kvc_manager* manager, void* callers, std::vector<uint64_t>* open) {
    uint64_t streams[2] = {};
    uint64_t steps = 0;
    uint64_t table = 0;
    uint64_t address = 0;
    const std::vector<kvc_table_delta> deltas = {{0, 0, 1}, {1, 3, 2}, {0, 0, 3}};
    const std::vector<int32_t> row(8, 5);
    const std::function<kvc_status()> calls[] = {
        [&] { return kvc_device_stream_create(manager, &streams[0], &error_); },
        [&] { return kvc_cuda_stream_adopt(manager, callers, &streams[1], &error_); },
        [&] { return kvc_step_stream_create(manager, &steps, &error_); },
        [&] { return kvc_device_table_create(manager, 2, 8, -1, 64, &table, &address, &error_); },
        [&] { return kvc_step_begin(manager, steps, 1, &error_); },
        [&] {
          return kvc_device_table_update(manager, table, streams[0],
                                         static_cast<uint32_t>(deltas.size()), deltas.data(),
                                         &error_);
        },
        [&] {
          return kvc_device_table_write(manager, table, streams[1], 0, 1, 8, row.data(), &error_);
        },
        [&] { return kvc_step_done(manager, steps, 1, &error_); },
        [&] { return kvc_device_table_destroy(manager, table, &error_); },
    };
    const auto make = [&](size_t from, size_t to) -> kvc_status {
      for (size_t i = from; i < to; ++i) {
        if (const kvc_status status = Again(calls[i]); status != KVC_OK) return status;
        fakecuda_settle();  // so that each run makes the same calls
      }
      return KVC_OK;
    };
    if (const kvc_status status = make(0, 5); status != KVC_OK) return status;
    const uint64_t on[] = {streams[0], streams[1], steps, 0};
    for (uint32_t i = 0; i < std::size(on); ++i) {
      const kvc_status status = Open(manager, on[i], 100 * (i + 1), open);
      if (status != KVC_OK) return status;
      fakecuda_settle();
    }
    // Each is forked onto its own stream and the fork copies the tail.
    const kvc_status forked = ForkEach(manager, {on[0], on[1], on[2], on[3]}, open);
    if (forked != KVC_OK) return forked;
    fakecuda_settle();
    return make(5, std::size(calls));
  }
  kvc_status Open(kvc_manager* manager, uint64_t stream, uint32_t first,
                  std::vector<uint64_t>* open) {
    uint64_t id = 0;
    const kvc_status status = Sequence(manager, stream, first, &id);
    if (id != 0) open->push_back(id);
    return status;
  }
  kvc_status ForkEach(kvc_manager* manager, const std::vector<uint64_t>& streams,
                      std::vector<uint64_t>* open) {
    for (size_t i = 0; i < streams.size(); ++i) {
      const kvc_fork_item item{(*open)[i], streams[i]};
      kvc_fork_result forked{};
      const kvc_status status = Again([&] {
        const kvc_status whole = kvc_sequences_fork(manager, 1, &item, &forked, &error_);
        return whole != KVC_OK ? whole : forked.status;
      });
      if (status != KVC_OK) return status;
      open->push_back(forked.sequence);
      if (const kvc_status grown = Grow(manager, forked.sequence, 40); grown != KVC_OK) {
        return grown;
      }
    }
    return KVC_OK;
  }
  // What is left of a manager must be in order, and go.
  void End(kvc_manager* manager, const std::vector<uint64_t>& open, Told* told = nullptr) {
    if (manager == nullptr) return;
    EXPECT_EQ(kvc_manager_check(manager, &error_), KVC_OK) << error_.message;
    for (const uint64_t id : open) {
      kvc_status status = KVC_INTERNAL;
      EXPECT_EQ(kvc_sequences_release(manager, 1, &id, &status, &error_), KVC_OK);
      EXPECT_EQ(status, KVC_OK);
    }
    EXPECT_EQ(kvc_manager_check(manager, &error_), KVC_OK) << error_.message;
    if (told != nullptr) {
      EXPECT_EQ(told->Wrong(manager), "");
    }
    EXPECT_EQ(kvc_manager_destroy(manager, &error_), KVC_OK) << error_.message;
  }
  void Ask(kvc_manager* manager) {
    EXPECT_EQ(kvc_device_fences_query(manager, 0, nullptr, nullptr, &error_), KVC_OK);
  }
  kvc_stats Stats(kvc_manager* manager) {
    kvc_stats stats;
    kvc_stats_init(&stats);
    EXPECT_EQ(kvc_manager_stats_get(manager, &stats, &error_), KVC_OK);
    return stats;
  }

  kvc_error error_{};
  kvc_status status_ = KVC_OK;
  bool again_ = false;
  uint64_t told_ = 0;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_TESTS_NATIVE_CUDA_LIFE_H_
