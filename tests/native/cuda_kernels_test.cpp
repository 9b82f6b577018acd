// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The kernels' index arithmetic, on the CPU, and that the PTX in the tree is the
// sources' own.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/kernels/page_index.h"
#include "native/src/sha256.h"

namespace kvcast::kernels {
namespace {

TEST(KernelIndex, EachVectorOfAPageOnce) {
  for (const u64 vectors : {u64{1}, u64{127}, u64{512}, u64{513}, u64{4096}, u64{4097}}) {
    std::vector<int> seen(vectors, 0);
    for (u64 tile = 0; tile < TilesOf(vectors); ++tile) {
      for (u32 k = 0; k < kVectorsInFlight; ++k) {
        for (u32 thread = 0; thread < kThreads; ++thread) {
          const u64 v = VectorOf(tile, k, thread);
          if (v < vectors) ++seen[v];
        }
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(vectors))
        << vectors;
  }
}

TEST(KernelIndex, EachTileOfEachPageOnceWhateverTheGrid) {
  for (const u64 tiles : {1u, 2u, 3u, 8u, 100u}) {
    for (const u32 count : {1u, 2u, 5u, 31u, 64u}) {
      const u64 work = tiles * count;
      for (const u32 blocks : {1u, 2u, 3u, 7u, 32u, 33u, 64u, 200u, 7000u}) {
        SCOPED_TRACE(::testing::Message() << tiles << " x " << count << " / " << blocks);
        std::vector<int> seen(work, 0);
        u64 loads = 0;
        u64 shortest = work;
        u64 longest = 0;
        for (u32 block = 0; block < blocks; ++block) {
          TileRun run = RunOf(work, block, blocks);
          ASSERT_LE(run.begin, run.end);
          shortest = std::min(shortest, run.end - run.begin);
          longest = std::max(longest, run.end - run.begin);
          while (run.begin < run.end) {
            const u64 left = run.end - run.begin;
            const PageTiles page = TakePage(&run, tiles);
            ++loads;
            ASSERT_LT(page.item, count);
            ASSERT_LT(page.begin, page.end);
            ASSERT_LE(page.end, tiles);
            ASSERT_EQ(run.end - run.begin, left - (page.end - page.begin));
            for (u64 tile = page.begin; tile < page.end; ++tile) ++seen[page.item * tiles + tile];
          }
        }
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(work));
        EXPECT_LE(longest - shortest, 1u) << "the work is shared out evenly";
        // Beyond one for each page, the table is read once more only where a run begins in one.
        EXPECT_LE(loads, count + std::min<u64>(blocks, work) - 1);
        EXPECT_GE(loads, count);
      }
    }
  }
}

TEST(KernelIndex, RunsOfMoreTilesThan32BitsCount) {
  const u64 work = (u64{1} << 40) + 5;
  EXPECT_EQ(RunOf(work, 0, 2112).begin, 0u);
  for (u32 block = 1; block < 2112; ++block) {
    ASSERT_EQ(RunOf(work, block, 2112).begin, RunOf(work, block - 1, 2112).end);
  }
  EXPECT_EQ(RunOf(work, 2111, 2112).end, work);
  TileRun run{work - 3, work};
  const PageTiles page = TakePage(&run, u64{1} << 33);
  EXPECT_EQ(page.item, 128u);
  EXPECT_EQ(page.begin, 2u);
  EXPECT_EQ(page.end, 5u);
}

TEST(KernelIndex, NeighbouringThreadsTakeNeighbouringVectors) {
  for (u32 thread = 1; thread < kThreads; ++thread) {
    EXPECT_EQ(VectorOf(7, 2, thread), VectorOf(7, 2, thread - 1) + 1);
  }
}

TEST(KernelIndex, AddressesBeyond32Bits) {
  EXPECT_EQ(PageAddress(0x7F0000000000u, u64{2} << 20, 100000),
            0x7F0000000000u + (200000ull << 20));
  EXPECT_EQ(PageAddress(0, 0xFFFFFFFFu, 0xFFFFFFFFu), 0xFFFFFFFFull * 0xFFFFFFFFull);
  EXPECT_EQ(CellOf(1u << 20, 1u << 20, 5), (u64{1} << 40) + 5);
  EXPECT_EQ(VectorOf(u64{1} << 40, 1, 1), (u64{1} << 49) + 129);
  EXPECT_EQ(TilesOf(u64{1} << 40), u64{1} << 31);
}

TEST(KernelIndex, RangesSplitIntoBytesAndAlignedVectors) {
  for (u64 from = 0; from < 18; ++from) {
    for (u64 to = 0; to < 18; ++to) {
      for (const u64 count : {0u, 1u, 15u, 16u, 17u, 31u, 47u, 64u, 1000u}) {
        const RangeSplit split = SplitRange({4096 + from, 8192 + to, count});
        EXPECT_EQ(split.head + 16 * split.vectors + split.tail, count);
        EXPECT_LE(split.head, count);  // sums wrap
        EXPECT_LE(split.vectors, count / 16);
        EXPECT_LE(split.tail, count);
        if (split.vectors != 0) {
          EXPECT_EQ((4096 + from + split.head) % 16, 0u);
          EXPECT_EQ((8192 + to + split.head) % 16, 0u);
          EXPECT_LT(split.head, 16u);
          EXPECT_LT(split.tail, 16u);
        } else if ((from ^ to) % 16 != 0) {
          EXPECT_EQ(split.head, count);
        }
      }
    }
  }
}

TEST(KernelIndex, ArgumentsAreWhatTheHostFills) {
  // The device reads these structs as bytes; padding would not be the same to all compilers.
  EXPECT_EQ(sizeof(PagePair), 8u);
  EXPECT_EQ(sizeof(CopyPagesArgs), 56u);
  EXPECT_EQ(sizeof(CopyRange), 24u);
  EXPECT_EQ(sizeof(CopyRangesArgs), 16u);
  EXPECT_EQ(sizeof(FillPagesArgs), 48u);
  EXPECT_EQ(sizeof(TableEntry), 12u);
  EXPECT_EQ(sizeof(UpdateTableArgs), 40u);
}

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path << ": run from the repository's root";
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Hex(const std::string& text) {
  Sha256 hash;
  hash.Update(text.data(), text.size());
  uint8_t digest[kSha256Bytes];
  hash.Final(digest);
  std::string hex;
  for (const uint8_t byte : digest) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", byte);
    hex += two;
  }
  return hex;
}

TEST(Ptx, IsMadeFromTheSourcesInTheTree) {
  const std::string folder = "cuda/kernels/";
  const std::string ptx = Slurp(folder + "kernels.ptx");
  std::vector<std::string> expected;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const std::string extension = entry.path().extension().string();
    if (extension != ".cu" && extension != ".h") continue;
    expected.push_back("// sha256 " + Hex(Slurp(folder + name)) + " " + name);
  }
  std::vector<std::string> said;
  std::stringstream lines(ptx);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("// sha256 ", 0) == 0) said.push_back(line);
  }
  std::sort(expected.begin(), expected.end());
  std::sort(said.begin(), said.end());
  EXPECT_EQ(said, expected) << "a kernel changed: run `make ptx`";
}

TEST(Ptx, IsOfTheVersionAndTargetThatWePromise) {
  const std::string ptx = Slurp("cuda/kernels/kernels.ptx");
  EXPECT_NE(ptx.find("\n.version 7.8\n"), std::string::npos);
  EXPECT_NE(ptx.find("\n.target sm_80\n"), std::string::npos);
  for (const char* name :
       {"kvcast_copy_pages", "kvcast_copy_ranges", "kvcast_fill_pages", "kvcast_update_table"}) {
    EXPECT_NE(ptx.find(std::string(".visible .entry ") + name + "("), std::string::npos) << name;
  }
  // Pages move by 16 bytes: loads and stores of four words.
  EXPECT_NE(ptx.find("ld.v4.u32"), std::string::npos);
  EXPECT_NE(ptx.find("st.v4.u32"), std::string::npos);
}

TEST(Ptx, TheArrayIsTheText) {
  static const char kArray[] = {
#include "cuda/kernels/kernels_ptx.inc"
  };
  const std::string ptx = Slurp("cuda/kernels/kernels.ptx");
  ASSERT_EQ(sizeof kArray, ptx.size() + 1);
  EXPECT_EQ(std::string(kArray), ptx);
}

}  // namespace
}  // namespace kvcast::kernels
