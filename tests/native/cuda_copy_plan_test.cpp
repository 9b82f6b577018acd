// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Who makes a copy: by the published figures, and by what is measured.

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "cuda/src/calibrate.h"
#include "cuda/src/copy_plan.h"
#include "tests/native/cuda_copies.h"

namespace kvcast::cuda {
namespace {

TEST(CudaCopyPlan, TheMethodFollowsDirectionAndSize) {
  const CopyPolicy pcie = PublishedPolicy(false);
  EXPECT_EQ(Choose(pcie, Direction::kToHost, 4096, 1000, true), Method::kEngine);
  EXPECT_EQ(Choose(pcie, Direction::kToDevice, 28 << 10, 1000, true), Method::kEngine);
  EXPECT_EQ(Choose(pcie, Direction::kToDevice, (28 << 10) - 1, 16, true), Method::kKernel);
  EXPECT_EQ(Choose(pcie, Direction::kToDevice, 4096, 15, true), Method::kEngine);
  EXPECT_EQ(Choose(pcie, Direction::kOnDevice, 1 << 20, 2, true), Method::kKernel);
  EXPECT_EQ(Choose(pcie, Direction::kOnDevice, 1 << 20, 1, true), Method::kEngine);
  EXPECT_EQ(Choose(pcie, Direction::kOnDevice, 1 << 20, 2, false), Method::kEngine);
  const CopyPolicy coherent = PublishedPolicy(true);
  EXPECT_EQ(Choose(coherent, Direction::kToHost, 1 << 20, 1, true), Method::kKernel);
  EXPECT_EQ(Choose(coherent, Direction::kToDevice, 1 << 20, 1, true), Method::kKernel);
  CopyPolicy forced = pcie;
  forced.forced = Method::kKernel;
  EXPECT_EQ(Choose(forced, Direction::kToHost, 1, 1, false), Method::kKernel);
}

TEST(CudaCopyPlan, NeighboursBecomeOneWhateverTheirOrder) {
  std::vector<Piece> pieces = {{300, 1300, 100}, {100, 1100, 100}, {200, 1200, 100},
                               {400, 2000, 50},  {450, 2050, 50},  {600, 3000, 1}};
  EXPECT_EQ(MergeNeighbours(&pieces), 3u);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0].from, 100u);
  EXPECT_EQ(pieces[0].to, 1100u);
  EXPECT_EQ(pieces[0].bytes, 300u);
  EXPECT_EQ(pieces[1].bytes, 100u);
  EXPECT_EQ(pieces[2].bytes, 1u);
}

TEST(CudaCopyPlan, IndependentMeansAnyOrder) {
  // Against the definition, on small random batches.
  std::mt19937_64 random(TestSeed());
  std::vector<Piece> scratch;
  int dependent = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<Piece> pieces;
    for (uint64_t i = 1 + random() % 4; i > 0; --i) {
      pieces.push_back({random() % 40, random() % 40, random() % 6});
    }
    bool independent = true;
    const auto overlap = [](uint64_t a, uint64_t b, uint64_t a_bytes, uint64_t b_bytes) {
      return a < b + b_bytes && b < a + a_bytes;
    };
    for (size_t i = 0; i < pieces.size(); ++i) {
      for (size_t j = 0; j < pieces.size(); ++j) {
        if (pieces[i].bytes == 0 || pieces[j].bytes == 0) continue;
        independent =
            independent && !overlap(pieces[i].to, pieces[j].from, pieces[i].bytes, pieces[j].bytes);
        independent = independent && (i == j || !overlap(pieces[i].to, pieces[j].to,
                                                         pieces[i].bytes, pieces[j].bytes));
      }
    }
    EXPECT_EQ(Independent(pieces, &scratch), independent) << "round " << round;
    dependent += independent ? 0 : 1;
  }
  EXPECT_GT(dependent, 500);
  EXPECT_LT(dependent, 2500);
}

using CudaCalibration = CudaCopy;

TEST_F(CudaCalibration, EndsInTimeAndGivesThresholdsThatCanBe) {
  Open(4096);
  const Calibration result = Calibrate(*context_, *events_, *kernels_);
  EXPECT_EQ(result.policy.forced, Method::kAuto);
  for (const Direction direction : {Direction::kOnDevice, Direction::kToDevice}) {
    const Threshold& kernel = result.policy.kernel[static_cast<int>(direction)];
    if (!result.measured[static_cast<int>(direction)]) continue;
    EXPECT_TRUE(kernel.below == 0 || kernel.below == UINT64_MAX ||
                (kernel.below >= (8 << 10) && kernel.below <= (128 << 10) + 1))
        << kernel.below;
  }
  EXPECT_FALSE(result.measured[static_cast<int>(Direction::kToHost)]);
  EXPECT_EQ(Choose(result.policy, Direction::kToHost, 4096, 1000, true), Method::kEngine);
  // No time at all: the published thresholds, and everything given back.
  const Calibration none = Calibrate(*context_, *events_, *kernels_, std::chrono::nanoseconds(0));
  EXPECT_FALSE(none.measured[0] || none.measured[1]);
  EXPECT_EQ(none.policy.kernel[1].below, PublishedPolicy(false).kernel[1].below);
}

// With a clock by which each timed batch takes as long as the test says.
TEST_F(CudaCalibration, BeginsNothingThatWouldNotEndInTime) {
  Open(4096);
  using Milliseconds = std::chrono::milliseconds;
  struct Case {
    const char* name;
    std::vector<int> batches;  // ms, the last one again and again
    int taking;                // ms for each pinned allocation; there are two
    uint64_t made;
    int64_t ended;
  };
  // Four fifths of 50 ms are for measuring.
  for (const Case& c : std::vector<Case>{{"even", {5}, 0, 8, 40},
                                         {"growing", {2, 4, 8, 16}, 0, 4, 30},
                                         {"one slow batch", {5, 60, 5}, 0, 2, 65},
                                         {"a first one that is too slow", {49}, 0, 1, 49},
                                         {"giving back takes as long", {5}, 8, 3, 31},
                                         {"no time left at all", {5}, 26, 0, 52}}) {
    SCOPED_TRACE(c.name);
    const uint64_t timed = fakecuda_calls("cuEventElapsedTime");
    const uint64_t pinned = fakecuda_calls("cuMemHostAlloc");
    const auto now = [&] {
      int64_t at = static_cast<int64_t>(fakecuda_calls("cuMemHostAlloc") - pinned) * c.taking;
      const uint64_t batches = fakecuda_calls("cuEventElapsedTime") - timed;
      for (uint64_t i = 0; i < batches; ++i) {
        at += c.batches[std::min<size_t>(i, c.batches.size() - 1)];
      }
      return std::chrono::steady_clock::time_point(Milliseconds(at));
    };
    const Calibration result = Calibrate(*context_, *events_, *kernels_, Milliseconds(50), now);
    EXPECT_EQ(fakecuda_calls("cuEventElapsedTime") - timed, c.made);
    EXPECT_EQ(result.milliseconds, static_cast<double>(c.ended));
    // Too little to compare both ways at all sizes: what is published stands.
    EXPECT_FALSE(result.measured[0] || result.measured[1]);
    EXPECT_EQ(result.policy.kernel[1].below, PublishedPolicy(false).kernel[1].below);
  }
}

TEST_F(CudaCalibration, WithoutMemoryToSpareKeepsThePublishedThresholds) {
  options_.memory_bytes = 1 << 20;
  Restart();
  Open(4096);
  const Calibration result = Calibrate(*context_, *events_, *kernels_);
  EXPECT_FALSE(result.measured[0] || result.measured[1]);
}

}  // namespace
}  // namespace kvcast::cuda
