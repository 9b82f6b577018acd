// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Costs of the core per block of 16 tokens: match, probe, commit + evict and
// release. Prompts of 64 blocks, chosen at random, so that the tree is walked
// where the caches are cold. Plain program: `core_bench [blocks...]`.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "native/src/manager.h"
#include "native/src/mixed_hash.h"

namespace {

using kvcast::Manager;
using kvcast::MixedHash;

constexpr uint32_t kBlock = 16;
constexpr uint32_t kPrompt = 64;  // blocks

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Fill(std::vector<uint32_t>* tokens, uint64_t prompt) {
  for (uint32_t i = 0; i < kPrompt * kBlock; ++i) {
    (*tokens)[i] = static_cast<uint32_t>(MixedHash::SplitMix64(prompt * 4096 + i) % 128256);
  }
}

struct Driver {
  explicit Driver(uint32_t blocks) {
    kvc_config config{};
    kvc_config_init(&config);
    config.capacity_blocks = blocks;
    config.max_sequences = 64;
    config.seed = 1;
    manager = std::make_unique<Manager>(config, nullptr);
  }
  uint64_t Create(const std::vector<uint32_t>& tokens, uint64_t* matched) {
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    kvc_create_result result{};
    manager->Create(1, &prompt, {tokens.data(), tokens.size()}, &result, nullptr);
    *matched = result.matched_tokens / kBlock;
    return result.sequence;
  }
  void GrowCommit(uint64_t id, const std::vector<uint32_t>& tokens, uint64_t matched) {
    kvc_grow_item grow{id, tokens.size()};
    kvc_grow_result grown{};
    manager->Grow(1, &grow, &grown, nullptr);
    if (grown.status != KVC_OK) std::abort();
    kvc_commit_item commit{id, matched * kBlock, tokens.size() - matched * kBlock, 0, 0, {}, 0};
    kvc_commit_result committed{};
    manager->Commit(1, &commit, {tokens.data(), tokens.size()}, &committed, nullptr);
  }
  void Release(uint64_t id) {
    kvc_status status = KVC_OK;
    manager->Release(1, &id, &status, nullptr);
  }
  std::unique_ptr<Manager> manager;
};

void Run(uint32_t blocks) {
  Driver driver(blocks);
  const uint64_t prompts = blocks / kPrompt;
  std::vector<uint32_t> tokens(kPrompt * kBlock);
  uint64_t matched = 0;
  uint64_t next = 0;
  for (; next < prompts; ++next) {
    Fill(&tokens, next);
    const uint64_t id = driver.Create(tokens, &matched);
    driver.GrowCommit(id, tokens, matched);
    driver.Release(id);
  }
  // The prompts are made before the clock starts, in sets small enough to keep.
  const uint32_t set = 512;
  std::vector<std::vector<uint32_t>> ready(set, tokens);
  double match = 0, release = 0, probe = 0, commit = 0;
  uint64_t rounds = 8, hits = 0, count = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    for (uint32_t i = 0; i < set; ++i) {
      Fill(&ready[i], MixedHash::SplitMix64(round * set + i) % prompts);
    }
    for (uint32_t i = 0; i < set; ++i) {
      const double t0 = Seconds();
      const uint64_t id = driver.Create(ready[i], &matched);
      const double t1 = Seconds();
      driver.Release(id);
      const double t2 = Seconds();
      match += t1 - t0;
      release += t2 - t1;
      hits += matched;
      count += kPrompt;
    }
    for (uint32_t i = 0; i < set; ++i) {
      Fill(&ready[i], MixedHash::SplitMix64(1000000 + round * set + i) % prompts);
    }
    const double t0 = Seconds();
    for (uint32_t i = 0; i < set; ++i) {
      kvc_prompt prompt{};
      prompt.token_count = ready[i].size();
      prompt.scope = KVC_NO_SCOPE;
      prompt.must_compute = KVC_COMPUTE_NOTHING;
      kvc_probe_result result{};
      driver.manager->Probe(1, &prompt, {ready[i].data(), ready[i].size()}, &result, nullptr);
    }
    probe += Seconds() - t0;
  }
  const double warm = static_cast<double>(count);
  for (uint64_t round = 0; round < rounds; ++round) {
    for (uint32_t i = 0; i < set; ++i) Fill(&ready[i], next++);
    const double t0 = Seconds();
    for (uint32_t i = 0; i < set; ++i) {
      const uint64_t id = driver.Create(ready[i], &matched);
      driver.GrowCommit(id, ready[i], matched);
      driver.Release(id);
    }
    commit += Seconds() - t0;
  }
  kvc_stats stats{};
  kvc_stats_init(&stats);
  driver.manager->Stats(&stats);
  std::printf(
      "%8u blocks: match %5.1f ns/block (hits %.3f), release %5.1f, probe %5.1f, "
      "create+grow+commit+evict+release %6.1f ns/block, metadata %5.1f B/block, prefault %.1f ms\n",
      blocks, match / warm * 1e9, static_cast<double>(hits) / warm, release / warm * 1e9,
      probe / warm * 1e9, commit / static_cast<double>(rounds * set * kPrompt) * 1e9,
      static_cast<double>(stats.metadata_bytes) / blocks,
      static_cast<double>(stats.prefault_ns) / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    for (const uint32_t blocks : {10000u, 200000u, 1000000u}) Run(blocks);
  }
  for (int i = 1; i < argc; ++i) Run(static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10)));
  return 0;
}
