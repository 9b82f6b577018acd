// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Copies: that they are right whoever makes them, and the kernels behind them.

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda/src/page_copier.h"
#include "cuda/src/staging.h"
#include "tests/native/cuda_copies.h"

namespace kvcast::cuda {
namespace {

using kernels::TableEntry;

struct Way {
  const char* name;
  Method method;
  bool batch;  // the driver has cuMemcpyBatchAsync
};

class CudaCopyEach : public CudaCopy, public ::testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    batch_ = GetParam().batch;
    CudaCopy::SetUp();
  }
};

TEST_P(CudaCopyEach, MovesPagesOutAndInAndAbout) {
  for (const uint64_t page_bytes : {uint64_t{48}, uint64_t{4096}, uint64_t{40000}}) {
    SCOPED_TRACE(page_bytes);
    if (context_ != nullptr) TearDown();
    CudaCopy::SetUp();
    Open(page_bytes);
    Force(GetParam().method);
    std::mt19937_64 random(TestSeed() + page_bytes);
    for (int round = 0; round < 6; ++round) {
      // Out: some pages to the host, in a random order.
      std::vector<uint32_t> pages(kPages);
      std::iota(pages.begin(), pages.end(), 0u);
      std::shuffle(pages.begin(), pages.end(), random);
      std::vector<PagePair> out;
      for (uint32_t i = 0; i < 12; ++i) out.push_back({pages[i], i});
      CopyPages(Direction::kToHost, Pool(), Host(), out);
      // About: these pages to others, on the device.
      std::vector<PagePair> about;
      for (uint32_t i = 0; i < 12; ++i) about.push_back({pages[i], pages[i + 12]});
      CopyPages(Direction::kOnDevice, Pool(), Pool(), about);
      // In: what went out comes back to where it came from, shifted by one.
      std::vector<PagePair> in;
      for (uint32_t i = 0; i < 12; ++i) in.push_back({i, pages[(i + 1) % 12]});
      CopyPages(Direction::kToDevice, Host(), Pool(), in);
      Wait();
      const auto page = [&](std::vector<uint8_t>& bytes, uint32_t p) {
        return bytes.begin() + static_cast<std::ptrdiff_t>(p * page_bytes);
      };
      std::vector<uint8_t> before = shadow_;
      const auto n = static_cast<std::ptrdiff_t>(page_bytes);
      for (const PagePair& pair : about) {
        std::copy_n(page(before, pair.from), n, page(shadow_, pair.to));
      }
      for (const PagePair& pair : in) {
        std::copy_n(page(before, out[pair.from].from), n, page(shadow_, pair.to));
      }
      ASSERT_EQ(PoolBytes(), shadow_) << "round " << round;
    }
    const CopyCounters counters = copier_->counters();
    EXPECT_EQ(counters.pieces, 6u * 36);
    EXPECT_EQ(counters.bytes, 6u * 36 * page_bytes);
    if (GetParam().method == Method::kKernel) {
      EXPECT_EQ(counters.kernel_launches, 18u);
    }
    if (GetParam().method == Method::kEngine) {
      EXPECT_EQ(counters.kernel_launches, 0u);
    }
    if (GetParam().method != Method::kKernel) {
      EXPECT_EQ(counters.batch_calls > 0, GetParam().batch);
      EXPECT_EQ(counters.engine_calls > 0, !GetParam().batch);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, CudaCopyEach,
                         ::testing::Values(Way{"Auto", Method::kAuto, true},
                                           Way{"Engine", Method::kEngine, true},
                                           Way{"EngineOneByOne", Method::kEngine, false},
                                           Way{"AutoOneByOne", Method::kAuto, false},
                                           Way{"Kernel", Method::kKernel, true}),
                         [](const auto& way) { return way.param.name; });

TEST_F(CudaCopy, PartsOfPagesOfAnySizeAndAlignment) {
  Open(4096);
  std::mt19937_64 random(TestSeed());
  for (const Method method : {Method::kAuto, Method::kEngine, Method::kKernel}) {
    Force(method);
    for (int round = 0; round < 40; ++round) {
      // One piece each from a page of the first half to one of the second.
      std::vector<Piece> pieces;
      for (uint64_t p = 0; p < kPages / 2; ++p) {
        const uint64_t bytes = random() % 4000;
        const uint64_t from = p * 4096 + random() % (4096 - bytes);
        const uint64_t to = (p + kPages / 2) * 4096 + random() % (4096 - bytes);
        pieces.push_back({pool_ + from, pool_ + to, bytes});
        std::copy_n(shadow_.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    shadow_.begin() + static_cast<std::ptrdiff_t>(to));
      }
      const ContextScope scope(*context_);
      copier_->CopyPieces(stream_, Direction::kOnDevice, pieces.data(),
                          static_cast<uint32_t>(pieces.size()), false);
    }
    Wait();
    ASSERT_EQ(PoolBytes(), shadow_) << "method " << static_cast<int>(method);
  }
}

TEST_F(CudaCopy, CopiesThatDependOnEachOtherKeepTheirOrder) {
  Open(4096);
  for (const Method method : {Method::kAuto, Method::kEngine, Method::kKernel}) {
    Force(method);
    // A chain: each page becomes the one before it, front to back.
    std::vector<PagePair> chain;
    for (uint32_t p = 0; p + 1 < kPages; ++p) chain.push_back({p, p + 1});
    CopyPages(Direction::kOnDevice, Pool(), Pool(), chain);
    Wait();
    for (uint64_t p = 1; p < kPages; ++p) {
      std::copy_n(shadow_.begin(), 4096, shadow_.begin() + static_cast<std::ptrdiff_t>(p * 4096));
    }
    ASSERT_EQ(PoolBytes(), shadow_);
    std::mt19937_64 random(TestSeed() + static_cast<uint64_t>(method));
    for (uint8_t& byte : shadow_) byte = static_cast<uint8_t>(random());
    Upload(*context_, pool_, shadow_);
  }
  EXPECT_EQ(copier_->counters().dependent, 3u);
  EXPECT_EQ(fakecuda_calls("cuMemcpyBatchAsync"), 0u);
}

TEST_F(CudaCopy, NeighboursAreOneCopyOfTheEngine) {
  Open(4096);
  std::vector<PagePair> all;
  for (uint32_t p = 0; p < kPages; ++p) all.push_back({p, p});
  CopyPages(Direction::kToHost, Pool(), Host(), all);
  Wait();
  EXPECT_EQ(copier_->counters().merged, kPages - 1);
  EXPECT_EQ(copier_->counters().engine_calls, 1u);
  EXPECT_EQ(std::memcmp(host_, shadow_.data(), shadow_.size()), 0);
}

TEST_F(CudaCopy, AStableSourceMayBeReadEarly) {
  Open(4096);
  Force(Method::kEngine);
  std::vector<PagePair> pairs;
  for (uint32_t p = 0; p < kPages; p += 2) pairs.push_back({p, p + 1});
  for (int round = 0; round < 20; ++round) {
    std::mt19937_64 random(TestSeed() + static_cast<uint64_t>(round));
    for (uint64_t i = 0; i < kPages * 4096; ++i) host_[i] = static_cast<uint8_t>(random());
    CopyPages(Direction::kToDevice, Host(), Pool(), pairs, true);
    Wait();
    for (const PagePair& pair : pairs) {
      std::copy_n(host_ + pair.from * 4096, 4096, shadow_.begin() + pair.to * 4096);
    }
    ASSERT_EQ(PoolBytes(), shadow_);
  }
  EXPECT_EQ(copier_->counters().batch_calls, 20u);
}

// The driver reads a source early when it is told that it may, and only then.
TEST_F(CudaCopy, OnlyAStableSourceIsReadEarly) {
  Open(4096);
  Force(Method::kEngine);
  std::vector<PagePair> pairs;
  for (uint32_t p = 0; p < kPages; p += 2) pairs.push_back({p, p + 1});
  for (const bool stable : {false, true}) {
    SCOPED_TRACE(stable);
    std::fill_n(host_, kPages * 4096, uint8_t{1});
    fakecuda_gate(stream_);
    CopyPages(Direction::kToDevice, Host(), Pool(), pairs, stable);
    std::fill_n(host_, kPages * 4096, uint8_t{2});  // which who calls it stable does not do
    fakecuda_open_gate(stream_);
    Wait();
    const std::vector<uint8_t> bytes = PoolBytes();
    size_t early = 0;
    for (const PagePair& pair : pairs) early += bytes[pair.to * 4096] == 1 ? 1 : 0;
    EXPECT_EQ(early != 0, stable) << early;
  }
}

// The batch call takes no piece of no bytes.
TEST_F(CudaCopy, PiecesOfNoBytesAreLeftOut) {
  Open(4096);
  Force(Method::kEngine);
  const Piece pieces[] = {{pool_, pool_ + 40960, 100},
                          {pool_ + 8192, pool_ + 49152, 0},
                          {pool_ + 4096, pool_ + 45056, 200}};
  {
    const ContextScope scope(*context_);
    copier_->CopyPieces(stream_, Direction::kOnDevice, pieces, 3, false);
    copier_->CopyPieces(stream_, Direction::kOnDevice, &pieces[1], 1, false);
  }
  Wait();
  std::copy_n(shadow_.begin(), 100, shadow_.begin() + 40960);
  std::copy_n(shadow_.begin() + 4096, 200, shadow_.begin() + 45056);
  EXPECT_EQ(PoolBytes(), shadow_);
  EXPECT_EQ(copier_->counters().pieces, 2u);
  EXPECT_EQ(copier_->counters().batch_calls, 1u);
}

// The NULL stream joins what is captured beside it: that is refused, and harms no capture.
TEST_F(CudaCopy, ACaptureBesideTheNullStreamIsATypedErrorThere) {
  Open(4096);
  const ContextScope scope(*context_);
  StreamHandle beside = nullptr;
  ASSERT_EQ(api_.stream_create(&beside, 0), kSuccess);
  fakecuda_capture_begin(beside, 2);
  const PagePair pair{0, 9};
  try {
    copier_->CopyPages(nullptr, Direction::kOnDevice, Pool(), Pool(), 4096, &pair, 1, false);
    ADD_FAILURE() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), KVC_BAD_STATE) << error.what();
  }
  EXPECT_EQ(fakecuda_capture_end(beside), 0) << "spoilt, or with work of ours in it";
  copier_->CopyPages(nullptr, Direction::kOnDevice, Pool(), Pool(), 4096, &pair, 1, false);
  ASSERT_EQ(api_.stream_synchronize(nullptr), kSuccess);
  std::copy_n(shadow_.begin(), 4096, shadow_.begin() + 9 * 4096);
  EXPECT_EQ(PoolBytes(), shadow_);
  EXPECT_EQ(api_.stream_destroy(beside), kSuccess);
}

TEST_F(CudaCopy, NoBatchCallOnTheNullStream) {
  Open(4096);
  Force(Method::kEngine);
  const std::vector<PagePair> apart = {{0, 0}, {2, 2}, {4, 4}};
  const ContextScope scope(*context_);
  copier_->CopyPages(nullptr, Direction::kToHost, Pool(), Host(), 4096, apart.data(), 3, false);
  KVCAST_CUDA(context_->api(), stream_synchronize, nullptr);
  EXPECT_EQ(fakecuda_calls("cuMemcpyBatchAsync"), 0u);
  EXPECT_EQ(copier_->counters().engine_calls, 3u);
}

TEST_F(CudaCopy, AStreamThatIsCapturedIsATypedErrorAndNothingIsQueued) {
  Open(4096);
  const ContextScope scope(*context_);
  fakecuda_stream_capture(stream_, 1);
  const uint64_t calls = fakecuda_calls("cuMemcpyBatchAsync") + fakecuda_calls("cuLaunchKernel");
  const std::vector<PagePair> pairs = {{0, 5}, {1, 9}};
  const Piece piece{pool_, pool_ + 8192, 100};
  const uint32_t page = 3;
  const TableEntry entry{0, 0, 1};
  const std::function<void()> operations[] = {
      [&] {
        copier_->CopyPages(stream_, Direction::kOnDevice, Pool(), Pool(), 4096, pairs.data(), 2,
                           false);
      },
      [&] { copier_->CopyPieces(stream_, Direction::kOnDevice, &piece, 1, false); },
      [&] { (void)copier_->FillPages(stream_, Pool(), 4096, 1, &page, 1); },
      [&] { (void)copier_->UpdateTable(stream_, pool_, 8, 1, 8, &entry, 1); },
  };
  for (const auto& operation : operations) {
    try {
      operation();
      ADD_FAILURE() << "a captured stream was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_BAD_STATE);
    }
  }
  EXPECT_EQ(fakecuda_calls("cuMemcpyBatchAsync") + fakecuda_calls("cuLaunchKernel"), calls);
  EXPECT_EQ(ring_->in_flight(), 0u);
  fakecuda_stream_capture(stream_, 0);
}

TEST_F(CudaCopy, WithoutRoomForATableTheEngineCopies) {
  Open(4096, 256);
  fakecuda_hold(1);
  const std::vector<PagePair> pairs = {{0, 8}, {2, 10}, {4, 12}, {6, 14}};
  for (int i = 0; i < 12; ++i) CopyPages(Direction::kOnDevice, Pool(), Pool(), pairs);
  EXPECT_GT(copier_->counters().without_table, 0u);
  EXPECT_LE(ring_->in_flight(), 256u);
  uint32_t page = 1;
  {
    const ContextScope scope(*context_);
    EXPECT_FALSE(copier_->FillPages(stream_, Pool(), 4096, 0, &page, 1)) << "the ring is full";
  }
  fakecuda_hold(0);
  Wait();
  for (const PagePair& pair : pairs) {
    std::copy_n(shadow_.begin() + pair.from * 4096, 4096, shadow_.begin() + pair.to * 4096);
  }
  EXPECT_EQ(PoolBytes(), shadow_);
  const ContextScope scope(*context_);
  EXPECT_TRUE(copier_->FillPages(stream_, Pool(), 4096, 0, &page, 1)) << "and empty again";
}

// More pieces than one launch's table holds: several launches, in any order.
TEST_F(CudaCopy, ABatchThatIsLongerThanATableTakesSeveralLaunches) {
  Open(4096, 2048);
  Force(Method::kKernel);
  std::vector<Piece> pieces;
  for (uint64_t i = 0; i < 300; ++i) {
    const uint64_t from = i * 64;
    const uint64_t to = kPages / 2 * 4096 + (299 - i) * 64;
    pieces.push_back({pool_ + from, pool_ + to, 33});
    std::copy_n(shadow_.begin() + static_cast<std::ptrdiff_t>(from), 33,
                shadow_.begin() + static_cast<std::ptrdiff_t>(to));
  }
  {
    const ContextScope scope(*context_);
    copier_->CopyPieces(stream_, Direction::kOnDevice, pieces.data(), 300, false);
  }
  Wait();
  EXPECT_EQ(PoolBytes(), shadow_);
  EXPECT_GT(copier_->counters().kernel_launches, 3u);
  EXPECT_LE(ring_->in_flight(), ring_->size());
}

// More than there are blocks for: each takes several.
TEST_F(CudaCopy, MorePiecesThanBlocksAreCopiedByOneLaunch) {
  options_.multiprocessors = 1;
  Restart();
  Open(4096);
  Force(Method::kKernel);
  std::vector<Piece> pieces;
  for (uint64_t i = 0; i < 40; ++i) {
    const uint64_t from = i * 128;
    const uint64_t to = kPages / 2 * 4096 + (39 - i) * 128;
    pieces.push_back({pool_ + from, pool_ + to, 100});
    std::copy_n(shadow_.begin() + static_cast<std::ptrdiff_t>(from), 100,
                shadow_.begin() + static_cast<std::ptrdiff_t>(to));
  }
  {
    const ContextScope scope(*context_);
    copier_->CopyPieces(stream_, Direction::kOnDevice, pieces.data(), 40, false);
  }
  Wait();
  EXPECT_EQ(copier_->counters().kernel_launches, 1u);
  EXPECT_EQ(PoolBytes(), shadow_);
}

// The worker has queued its copy and waits for it: whatever can run has run then.
void AwaitStagedCopy() {
  while (fakecuda_calls("cuEventSynchronize") == 0) std::this_thread::yield();
  fakecuda_settle();
}

TEST_F(CudaCopy, AStagedCopyReadsWhatWasWrittenBeforeItsEvent) {
  Open(4096);
  const uint64_t bytes = kPages * page_bytes_;
  Staging staging(*context_, bytes);
  EventHandle after = nullptr;
  {
    const ContextScope scope(*context_);
    KVCAST_CUDA(api_, event_create, &after, kEventDisableTiming);
    fakecuda_gate(stream_);
    KVCAST_CUDA(api_, fill_words, pool_, 0x05060708, bytes / 4, stream_);
    KVCAST_CUDA(api_, event_record, after, stream_);
  }
  fakecuda_clear_log();
  std::vector<uint32_t> got(bytes / 4);
  const uint64_t ticket = staging.Submit({true, pool_, got.data(), bytes, after});
  AwaitStagedCopy();
  EXPECT_FALSE(staging.Done(ticket));
  fakecuda_open_gate(stream_);
  staging.WaitFor(ticket);
  EXPECT_EQ(staging.Outcome(ticket), KVC_OK);
  EXPECT_EQ(got, std::vector<uint32_t>(bytes / 4, 0x05060708));
  const ContextScope scope(*context_);
  KVCAST_CUDA(api_, event_destroy, after);
}

TEST_F(CudaCopy, AStagedCopyLeavesAloneWhatIsReadBeforeItsEvent) {
  Open(4096);
  const uint64_t bytes = kPages * page_bytes_;
  Staging staging(*context_, bytes);
  EventHandle after = nullptr;
  {
    const ContextScope scope(*context_);
    KVCAST_CUDA(api_, event_create, &after, kEventDisableTiming);
    fakecuda_gate(stream_);
    KVCAST_CUDA(api_, copy_to_host, host_, pool_, bytes, stream_);
    KVCAST_CUDA(api_, event_record, after, stream_);
  }
  fakecuda_clear_log();
  std::vector<uint8_t> fresh(bytes, 0x5A);
  const uint64_t ticket = staging.Submit({false, pool_, fresh.data(), bytes, after});
  AwaitStagedCopy();
  EXPECT_FALSE(staging.Done(ticket));
  fakecuda_open_gate(stream_);
  staging.WaitFor(ticket);
  EXPECT_EQ(staging.Outcome(ticket), KVC_OK);
  EXPECT_EQ(std::vector<uint8_t>(host_, host_ + bytes), shadow_);
  EXPECT_EQ(PoolBytes(), fresh);
  const ContextScope scope(*context_);
  KVCAST_CUDA(api_, event_destroy, after);
}

TEST_F(CudaCopy, AKernelThatReachesOutsideTheMemoryBreaksTheDevice) {
  Open(4096);
  Force(Method::kKernel);
  try {
    CopyPages(Direction::kOnDevice, Pool(), Pool(), {{0, 1000000}});
  } catch (const Error& error) {
    // The kernel was faster than the record of the event behind it.
    EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
  }
  while (fakecuda_context_depth() > 0) fakecuda_context_pop();
  const ContextScope scope(*context_);
  EXPECT_EQ(context_->api().stream_synchronize(stream_), kErrorIllegalAddress);
  // It sticks.
  EXPECT_EQ(context_->api().stream_synchronize(stream_), kErrorIllegalAddress);
}

// A failure that passes is not noticed, one that does not is thrown.
TEST_F(CudaCopy, AFailureOfEachCallAndTheNextCopyIsRight) {
  Open(4096);
  bool more = true;
  int struck = 0;
  for (uint64_t n = 1; more; ++n) {
    Force(n % 4 < 2 ? Method::kEngine : Method::kKernel);
    const bool passes = n % 2 == 0;
    fakecuda_inject(nullptr, (n + 3) / 4, passes ? kErrorUnknown : kErrorLaunchTimeout);
    try {
      CopyPages(Direction::kOnDevice, Pool(), Pool(), {{0, 10}, {2, 12}});
    } catch (const Error& error) {
      EXPECT_FALSE(passes) << error.what();
      EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
      ++struck;
    }
    while (fakecuda_context_depth() > 0) fakecuda_context_pop();
    more = fakecuda_injected() != 0 || n % 4 != 0;
    fakecuda_inject(nullptr, 0, 0);
    CopyPages(Direction::kOnDevice, Pool(), Pool(), {{1, 11}, {3, 13}});
    Wait();
    const std::vector<uint8_t> now = PoolBytes();
    EXPECT_TRUE(std::equal(now.begin() + 4096, now.begin() + 8192, now.begin() + 11 * 4096));
    ASSERT_LT(n, 100u);
  }
  EXPECT_GT(struck, 6);
}

}  // namespace
}  // namespace kvcast::cuda
