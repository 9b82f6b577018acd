// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Costs of block tables per entry: whole dense tables, indexed tables, deltas of
// whole rows and of what a decode step changes, and what an idle delta costs per
// sequence. Plain program: `table_bench [sequences [tokens]]`.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "native/src/manager.h"

namespace {

constexpr uint32_t kBlock = 16;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The best of several runs: others share the machine.
template <typename Body>
double Best(Body&& body) {
  double best = 1e9;
  for (int run = 0; run < 9; ++run) {
    const double start = Seconds();
    body();
    best = std::min(best, Seconds() - start);
  }
  return best;
}

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "table_bench: %s\n", what);
  std::exit(1);
}

void Run(uint32_t sequences, uint32_t tokens) {
  const uint32_t columns = tokens / kBlock + 64;
  kvc_config config{};
  kvc_config_init(&config);
  config.capacity_blocks = sequences * columns;
  config.max_sequences = sequences;
  config.seed = 1;
  kvcast::Manager manager(config, nullptr);
  std::vector<uint64_t> ids(sequences);
  std::vector<kvc_table_item> items(sequences);
  std::vector<kvc_table_delta_item> rows(sequences);
  for (uint32_t i = 0; i < sequences; ++i) {
    kvc_prompt prompt{};
    prompt.scope = KVC_NO_SCOPE;
    kvc_create_result made{};
    manager.Create(1, &prompt, {&i, 0}, &made, nullptr);
    ids[i] = made.sequence;
    items[i] = {ids[i], 0, tokens};
    rows[i] = {ids[i], 0, i};
  }
  const auto grow = [&](uint64_t to) {
    for (const uint64_t id : ids) {
      const kvc_grow_item item{id, to};
      kvc_grow_result grown{};
      manager.Grow(1, &item, &grown, nullptr);
      Require(grown.status == KVC_OK, "the pool is too small");
    }
  };
  grow(tokens);
  const uint64_t entries = uint64_t{sequences} * (tokens / kBlock);
  std::vector<int32_t> table(uint64_t{sequences} * columns), indices(entries);
  std::vector<int32_t> indptr(sequences + 1), last(sequences), lengths(sequences);
  std::vector<kvc_table_result> results(sequences);
  std::vector<kvc_table_cookie> cookies(sequences);
  std::vector<kvc_table_delta> deltas(uint64_t{sequences} * columns);
  const kvc_table_format scaled{64, 11, 1, -1};
  uint64_t needed = 0;
  uint32_t written = 0;
  const auto delta = [&] {
    manager.TablesDelta(&scaled, sequences, rows.data(), columns, cookies.data(),
                        static_cast<uint32_t>(deltas.size()), deltas.data(), &written,
                        results.data(), nullptr);
  };
  const double dense = Best([&] {
    manager.TablesDense(&scaled, sequences, items.data(), columns, columns, table.data(),
                        lengths.data(), results.data(), nullptr);
  });
  const double indexed = Best([&] {
    Require(manager.TablesIndexed(&scaled, sequences, items.data(), entries, indptr.data(),
                                  indices.data(), last.data(), &needed, results.data(),
                                  nullptr) == KVC_OK,
            "indexed failed");
  });
  const double whole = Best([&] {
    std::fill(cookies.begin(), cookies.end(), kvc_table_cookie{});
    delta();
    Require(written == entries, "a whole delta has every entry");
  });
  const double idle = Best([&] {
    delta();
    Require(written == 0, "an idle delta has no entry");
  });
  // One page more each step, as every 16th decode step brings it.
  double step = 1e9;
  for (uint32_t i = 1; i <= 9; ++i) {
    grow(tokens + i * kBlock);
    const double start = Seconds();
    delta();
    step = std::min(step, Seconds() - start);
    Require(written == sequences, "a step has one entry per sequence");
  }
  const double n = static_cast<double>(entries);
  std::printf(
      "%5u sequences of %6u tokens: dense %5.2f ns/column, indexed %5.2f ns/entry, delta %5.2f "
      "ns/entry; idle delta %5.1f ns/sequence, one new page each %5.1f ns/sequence\n",
      sequences, tokens, dense / static_cast<double>(table.size()) * 1e9, indexed / n * 1e9,
      whole / n * 1e9, idle / sequences * 1e9, step / sequences * 1e9);
  std::vector<kvc_status> statuses(sequences);
  manager.Release(sequences, ids.data(), statuses.data(), nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i) {
    return static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10));
  };
  if (argc > 1) {
    Run(number(1), argc > 2 ? number(2) : 4096);
    return 0;
  }
  Run(256, 512);
  Run(256, 4096);
  Run(64, 131072);
  return 0;
}
