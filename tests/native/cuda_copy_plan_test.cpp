// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Who makes a copy: by the published figures, and by what is measured.

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <tuple>
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

// What a copy takes, as a test says it: the driver's clock is asked once for each round.
struct Script {
  static constexpr uint64_t kPieces = 32;
  static constexpr uint64_t kSizes[] = {8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10};

  // Of a direction: the sizes at which the kernel is to be faster.
  std::map<Direction, std::vector<uint64_t>> kernel_wins;
  bool tie = false;  // as fast as the engine where it is not
  std::map<std::tuple<Direction, uint64_t, bool>, int> rounds;
  int strange = 0;  // work that is no batch of one kind

  static float Milliseconds(const fakecuda_work* work, void* script) {
    return static_cast<Script*>(script)->Answer(*work);
  }
  float Answer(const fakecuda_work& work) {
    const bool kernel = work.kernels == 1 && work.copies == 0;
    const bool engine = work.kernels == 0 && work.copies == kPieces;
    const bool one_side = work.host_bytes == 0 || work.host_bytes == work.bytes;
    if (!(kernel || engine) || !one_side || work.bytes % kPieces != 0) {
      ++strange;
      return 1;
    }
    const Direction direction = work.host_bytes != 0 ? Direction::kToDevice : Direction::kOnDevice;
    const uint64_t size = work.bytes / kPieces;
    const std::vector<uint64_t>& wins = kernel_wins[direction];
    const bool kernel_is_faster = std::find(wins.begin(), wins.end(), size) != wins.end();
    const int round = rounds[{direction, size, kernel}]++;
    // Who loses was by far the faster one in the round that warms up.
    const bool loser = kernel != kernel_is_faster;
    if (round == 0) return loser ? 0.0f : 100.0f;
    // The winner's slow round is slower than the loser's, which are all alike.
    if (loser) return tie ? 1.0f : 2.0f;
    return round == (size < (32 << 10) ? 1 : 2) ? 1.0f : 50.0f;
  }
};

TEST_F(CudaCalibration, TheKernelCopiesUpToTheLargestSizeAtWhichItWasFaster) {
  Open(4096);
  const auto still = [] { return std::chrono::steady_clock::time_point(); };
  struct Case {
    const char* name;
    std::vector<uint64_t> to_device;
    uint64_t to_device_below;
    std::vector<uint64_t> on_device;
    uint64_t on_device_below;
    bool tie;
  };
  const std::vector<uint64_t> all(std::begin(Script::kSizes), std::end(Script::kSizes));
  for (const Case& c : std::vector<Case>{
           {"small", {8 << 10, 16 << 10}, (16 << 10) + 1, all, UINT64_MAX, false},
           {"never", {}, 0, {8 << 10, 64 << 10}, (64 << 10) + 1, false},
           {"never faster, as fast", {}, 0, {}, 0, true},
           {"the largest", {128 << 10}, UINT64_MAX, {8 << 10}, (8 << 10) + 1, false}}) {
    SCOPED_TRACE(c.name);
    Script script;
    script.kernel_wins = {{Direction::kToDevice, c.to_device}, {Direction::kOnDevice, c.on_device}};
    script.tie = c.tie;
    fakecuda_script_elapsed(Script::Milliseconds, &script);
    const Calibration result =
        Calibrate(*context_, *events_, *kernels_, std::chrono::milliseconds(50), still);
    fakecuda_script_elapsed(nullptr, nullptr);
    EXPECT_EQ(script.strange, 0);
    // Both directions, five sizes and both ways, each round of them.
    EXPECT_EQ(script.rounds.size(), 20u);
    for (const auto& [what, rounds] : script.rounds) EXPECT_EQ(rounds, 3) << std::get<1>(what);
    const Threshold* kernel = result.policy.kernel;
    EXPECT_EQ(kernel[static_cast<int>(Direction::kToDevice)].below, c.to_device_below);
    EXPECT_EQ(kernel[static_cast<int>(Direction::kOnDevice)].below, c.on_device_below);
    EXPECT_TRUE(result.measured[static_cast<int>(Direction::kToDevice)]);
    EXPECT_TRUE(result.measured[static_cast<int>(Direction::kOnDevice)]);
    EXPECT_FALSE(result.measured[static_cast<int>(Direction::kToHost)]);
    EXPECT_EQ(result.policy.forced, Method::kAuto);
    // How many pieces it takes is not measured.
    EXPECT_EQ(kernel[static_cast<int>(Direction::kToDevice)].pieces, 16u);
    EXPECT_EQ(kernel[static_cast<int>(Direction::kOnDevice)].pieces, 2u);
  }
}

// What has been measured of a direction that was not done is not used.
TEST_F(CudaCalibration, ADirectionForWhichTimeRunsOutKeepsWhatIsPublished) {
  Open(4096);
  Script script;
  script.kernel_wins = {{Direction::kToDevice, {64 << 10}}};
  fakecuda_script_elapsed(Script::Milliseconds, &script);
  const uint64_t before = fakecuda_calls("cuEventElapsedTime");
  const auto now = [&] {
    const bool late = fakecuda_calls("cuEventElapsedTime") - before == 30 + 24;
    return std::chrono::steady_clock::time_point(std::chrono::hours(late ? 1 : 0));
  };
  const Calibration result =
      Calibrate(*context_, *events_, *kernels_, std::chrono::milliseconds(50), now);
  EXPECT_EQ(fakecuda_calls("cuEventElapsedTime") - before, 30u + 24u);
  EXPECT_EQ(script.strange, 0);
  const auto to_device = static_cast<int>(Direction::kToDevice);
  const auto on_device = static_cast<int>(Direction::kOnDevice);
  EXPECT_TRUE(result.measured[to_device]);
  EXPECT_EQ(result.policy.kernel[to_device].below, (64u << 10) + 1);
  EXPECT_FALSE(result.measured[on_device]);
  EXPECT_EQ(result.policy.kernel[on_device].below, PublishedPolicy(false).kernel[on_device].below);
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
