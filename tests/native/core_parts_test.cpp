// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The parts below the manager, each against something slow and obvious.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <shared_mutex>
#include <thread>
#include <utility>
#include <vector>

#include "native/src/fence_pool.h"
#include "native/src/host_device.h"
#include "native/src/mixed_hash.h"
#include "native/src/prefix_tree.h"
#include "native/src/status.h"
#include "native/src/utf8.h"
#include "native/src/writer_first_mutex.h"

namespace kvcast {
namespace {

// ------------------------------------------------------------- mixed hash

TEST(MixedHash, EqualsAPlainPolynomialForEveryBlockSize) {
  std::mt19937_64 random(1);
  for (const uint32_t size : {1u, 2u, 16u, 17u, 512u, kMaxTokensPerBlock}) {
    const MixedHash hash(42, size);
    std::vector<uint32_t> tokens(size);
    // One token at a time: h -> (h + t + 1) x point, from the definition; the
    // point is found from one-token blocks of the same seed.
    const MixedHash unit(42, 1);
    const uint32_t zero = 0;
    const uint64_t point = unit.Block(0, &zero);
    for (uint32_t round = 0; round < 3; ++round) {
      for (uint32_t& t : tokens) {
        t = round == 0 ? kTokenLimit - 1 : static_cast<uint32_t>(random() % kTokenLimit);
      }
      const uint64_t parent = round == 0 ? MixedHash::kPrime - 1 : random() % MixedHash::kPrime;
      auto times = [&](uint64_t a, uint64_t b) {
        return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b % MixedHash::kPrime);
      };
      uint64_t want = times(parent, point);
      for (const uint32_t t : tokens) want = times((want + t + 1) % MixedHash::kPrime, point);
      EXPECT_EQ(hash.Block(parent, tokens.data()), want) << size;
    }
  }
}

TEST(MixedHash, DependsOnSeedParentAndOrder) {
  const uint32_t a[2] = {1, 2};
  const uint32_t b[2] = {2, 1};
  const MixedHash one(1, 2), two(2, 2);
  EXPECT_NE(one.Block(5, a), two.Block(5, a));
  EXPECT_NE(one.Block(5, a), one.Block(6, a));
  EXPECT_NE(one.Block(5, a), one.Block(5, b));
}

TEST(Scope, EqualityFollowsTheKey) {
  const MixedHash hash(9, 4);
  ScopeView none, id0, id7, salt0, name, name_id, salted;
  id0.parts = KVC_SCOPE_LORA_ID;
  id7.parts = KVC_SCOPE_LORA_ID;
  id7.lora_id = 7;
  salt0.parts = KVC_SCOPE_SALT;
  name.parts = KVC_SCOPE_LORA_NAME;
  name.lora_name = "x";
  name_id = name;
  name_id.parts |= KVC_SCOPE_LORA_ID;
  name_id.lora_id = 3;
  salted.parts = KVC_SCOPE_SALT_BYTES;
  salted.salt_bytes = "x";
  const std::vector<ScopeView> distinct = {none, id0, id7, salt0, name, salted};
  for (size_t i = 0; i < distinct.size(); ++i) {
    for (size_t k = 0; k < distinct.size(); ++k) {
      EXPECT_EQ(distinct[i] == distinct[k], i == k) << i << " " << k;
      EXPECT_EQ(hash.Root(distinct[i]) == hash.Root(distinct[k]), i == k) << i << " " << k;
    }
  }
  EXPECT_TRUE(name == name_id);  // a name stands in for the id
  EXPECT_EQ(hash.Root(name), hash.Root(name_id));
}

TEST(Utf8, IsStrict) {
  for (const char* good :
       {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xe2\x82", "a\xff"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
}

// ------------------------------------------------------------- prefix tree

// Against a map from (parent, tokens); with few hash bits nearly every probe collides.
TEST(PrefixTree, EqualsAMapAlsoWhenHashesCollide) {
  for (const uint32_t bits : {61u, 3u, 0u}) {
    const uint32_t kNodes = 300;
    const MixedHash hash(11, 2, bits);
    PrefixTree tree(kNodes, 2, hash, true);
    std::map<std::pair<ParentId, std::pair<uint32_t, uint32_t>>, NodeId> model;
    std::map<NodeId, uint32_t> children;
    std::mt19937 random(bits);
    ScopeView scope;
    std::vector<RootId> roots;
    for (uint64_t salt = 0; salt < 3; ++salt) {
      scope.parts = KVC_SCOPE_SALT;
      scope.salt = salt;
      roots.push_back(tree.AcquireRoot(scope));
    }
    EXPECT_EQ(tree.root_count(), 3u);
    for (int step = 0; step < 20000; ++step) {
      const uint32_t tokens[2] = {static_cast<uint32_t>(random() % 4),
                                  static_cast<uint32_t>(random() % 2)};
      ParentId parent = RootParent(roots[random() % roots.size()]);
      if (!model.empty() && random() % 4 != 0) {
        auto it = model.begin();
        std::advance(it, random() % model.size());
        parent = it->second;
      }
      const uint64_t parent_hash =
          IsRoot(parent) ? tree.root(ToRoot(parent)).hash : tree.node(parent).hash;
      const uint64_t h = hash.Block(parent_hash, tokens);
      const auto key = std::make_pair(parent, std::make_pair(tokens[0], tokens[1]));
      const auto known = model.find(key);
      const NodeId found = tree.Find(h, parent, tokens);
      ASSERT_EQ(found, known == model.end() ? kNil : known->second);
      if (found == kNil && model.size() < kNodes) {
        model[key] = tree.Insert(h, parent, tokens, 0);
        if (!IsRoot(parent)) ++children[parent];
      } else if (!model.empty() && random() % 2 == 0) {
        auto it = model.begin();
        std::advance(it, random() % model.size());
        if (children[it->second] == 0) {
          if (!IsRoot(it->first.first)) --children[it->first.first];
          tree.Erase(it->second);
          model.erase(it);
        }
      }
      ASSERT_EQ(tree.size(), model.size());
      if (step % 1000 == 0) {
        NodeId where = kNil;
        ASSERT_EQ(tree.Check(&where), nullptr) << where;
      }
    }
    tree.Clear();
    EXPECT_EQ(tree.size(), 0u);
    EXPECT_EQ(tree.root_count(), 0u);
    NodeId where = kNil;
    EXPECT_EQ(tree.Check(&where), nullptr);
  }
}

TEST(PrefixTree, ManyScopesComeAndGo) {
  const MixedHash hash(3, 2);
  PrefixTree tree(4, 2, hash, false);
  std::vector<std::string> names;
  std::vector<RootId> ids;
  for (int i = 0; i < 500; ++i) names.push_back("tenant-with-a-long-name-" + std::to_string(i));
  ScopeView scope;
  scope.parts = KVC_SCOPE_SALT_BYTES;
  for (const std::string& name : names) {
    scope.salt_bytes = name;
    ids.push_back(tree.AcquireRoot(scope));
    ASSERT_EQ(tree.AcquireRoot(scope), ids.back());
    tree.ReleaseRoot(ids.back());
  }
  for (size_t i = 0; i < names.size(); i += 2) tree.ReleaseRoot(ids[i]);
  for (size_t i = 0; i < names.size(); ++i) {
    scope.salt_bytes = names[i];
    ASSERT_EQ(tree.FindRoot(scope), i % 2 == 0 ? kNil : ids[i]) << i;
  }
  EXPECT_EQ(tree.root_count(), 250u);
  EXPECT_EQ(tree.root_slots(), 500u);
  scope.salt_bytes = names[0];
  (void)tree.AcquireRoot(scope);
  EXPECT_EQ(tree.root_slots(), 500u) << "slots are used again";
}

// ------------------------------------------------------------- host device

TEST(HostDevice, RunsLateAndInStreamOrder) {
  HostDevice device(2, 0, 16, 1, false);
  const uint32_t s = device.OpenStream();
  EXPECT_EQ(device.Record(s), 0u) << "nothing is outstanding";
  device.EnqueueFill(s, 0, 1);
  device.EnqueueFill(s, 0, 2);
  const uint64_t position = device.Record(s);
  uint64_t word = 9;
  ASSERT_TRUE(device.Read(0, 8, 8, reinterpret_cast<uint8_t*>(&word)));
  EXPECT_EQ(word, 0u);
  EXPECT_EQ(device.Advance(s, 1), 1u);
  EXPECT_FALSE(device.Reached(s, position));
  EXPECT_EQ(device.Advance(s, 100), 1u);
  EXPECT_TRUE(device.Reached(s, position));
  ASSERT_TRUE(device.Read(0, 8, 8, reinterpret_cast<uint8_t*>(&word)));
  EXPECT_EQ(word, 2u);
  EXPECT_FALSE(device.Read(2, 0, 1, reinterpret_cast<uint8_t*>(&word)));
  EXPECT_FALSE(device.Read(0, 9, 8, reinterpret_cast<uint8_t*>(&word)));
}

TEST(HostDevice, WaitsHoldBackAStreamAndAdvanceFollowsThem) {
  HostDevice device(3, 0, 8, 1, false);
  const uint32_t a = device.OpenStream(), b = device.OpenStream();
  device.EnqueueFill(a, 0, 5);
  device.EnqueueFill(a, 1, 6);
  device.Wait(b, {a, device.Record(a)});
  device.EnqueueFill(b, 2, 7);
  const uint64_t last = device.Record(b);
  EXPECT_EQ(device.Advance(b, 1), 1u) << "runs what b waits for";
  EXPECT_FALSE(device.Reached(b, last));
  EXPECT_EQ(device.Advance(b, 100), 2u);
  EXPECT_TRUE(device.Reached(b, last));
}

TEST(HostDevice, OrderAmongStreamsIsDrawnFromTheSeed) {
  auto order = [](uint64_t seed) {
    HostDevice device(1, 0, 8, seed, false);
    std::vector<uint32_t> streams;
    for (int i = 0; i < 4; ++i) streams.push_back(device.OpenStream());
    for (int k = 0; k < 8; ++k) {
      for (const uint32_t s : streams) device.EnqueueFill(s, 0, s);
    }
    std::vector<uint64_t> seen;
    while (device.Advance(0, 1) == 1) {
      uint64_t word = 0;
      EXPECT_TRUE(device.Read(0, 0, 8, reinterpret_cast<uint8_t*>(&word)));
      seen.push_back(word);
    }
    EXPECT_EQ(seen.size(), 32u);
    return seen;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(HostDevice, PoisonShowsALateWriteOnce) {
  HostDevice device(1, 0, 64, 1, true);
  EXPECT_TRUE(device.Intact(0));
  device.EnterPool(0);
  device.EnqueueFill(0, 0, 3);  // the host's own work runs at once
  EXPECT_FALSE(device.Intact(0));
  EXPECT_TRUE(device.Intact(0));
}

TEST(HostDevice, CopiesRunLateAndBehindWhatTheyWaitFor) {
  HostDevice device(4, 0, 16, 1, false);
  const uint32_t a = device.OpenStream(), b = device.OpenStream();
  const auto word = [&](PageId page, uint64_t offset) {
    uint64_t value = 0;
    EXPECT_TRUE(device.Read(page, offset, 8, reinterpret_cast<uint8_t*>(&value)));
    return value;
  };
  device.EnqueueFill(a, 0, 5);
  FenceList after;
  after.Add({a, device.Record(a)});
  device.ReserveCopies(2);
  EXPECT_EQ(device.CopySlot(b), b);
  EXPECT_EQ(device.Copy(b, {0, 1, 0}, after), 16u);
  const uint64_t copied = device.Record(b);
  EXPECT_EQ(word(1, 0), 0u);
  EXPECT_EQ(device.Advance(b, 1), 1u) << "the fill";
  EXPECT_FALSE(device.Reached(b, copied));
  EXPECT_EQ(device.Advance(b, 1), 1u);
  EXPECT_TRUE(device.Reached(b, copied));
  EXPECT_EQ(word(1, 0), 5u);
  EXPECT_EQ(word(1, 8), 5u);
  // The host and steps have no queue: a stream of the device's own, which waits for
  // steps as well.
  const uint32_t steps = device.OpenStepStream();
  const uint32_t own = device.CopySlot(0);
  EXPECT_EQ(device.CopySlot(steps), own);
  EXPECT_NE(own, steps);
  device.BeginStep(steps, 3);
  FenceList step;
  step.Add({steps, device.Record(steps)});
  device.SetParts({{{0, 8}}, {{0, 16}}});
  EXPECT_EQ(device.Copy(own, {1, 2, 1}, step), 8u);
  EXPECT_EQ(device.Advance(0, 9), 0u);
  device.EndStep(steps, 3);
  EXPECT_EQ(device.Advance(0, 9), 1u);
  EXPECT_EQ(word(2, 0), 5u);
  EXPECT_EQ(word(2, 8), 0u) << "the second token was not copied";
  device.FailReservation(2);
  EXPECT_NO_THROW(device.ReserveCopies(1));
  EXPECT_THROW(device.ReserveCopies(1), Error);
  EXPECT_NO_THROW(device.ReserveCopies(1));
}

TEST(HostDevice, SlotsComeBackOnlyWhenTheirWorkHasRun) {
  HostDevice device(1, 0, 8, 1, false);
  std::vector<uint32_t> slots;
  for (uint32_t s = device.OpenStream(); s != 0; s = device.OpenStream()) slots.push_back(s);
  EXPECT_EQ(slots.size(), kDeviceSlots - 1);
  device.EnqueueFill(slots[3], 0, 1);
  device.CloseStream(slots[3]);
  EXPECT_EQ(device.OpenStream(), 0u);
  EXPECT_EQ(device.Advance(0, 1), 1u);
  EXPECT_EQ(device.OpenStream(), slots[3]);
}

// -------------------------------------------------------------- fence pool

class FencePoolTest : public ::testing::Test {
 protected:
  FencePoolTest() : device_(1, 0, 8, 1, false), pool_(device_) {
    for (int i = 0; i < 6; ++i) {
      streams_.push_back(device_.OpenStream());
      device_.EnqueueFill(streams_.back(), 0, 1);
      device_.EnqueueFill(streams_.back(), 0, 2);
    }
  }
  FenceSetId At(size_t stream, uint64_t position) {
    return pool_.Single({streams_[stream], position});
  }
  uint32_t Count(FenceSetId set) {
    uint32_t count = 0;
    pool_.ForEach(set, [&count](const Fence&) { ++count; });
    return count;
  }
  HostDevice device_;
  FencePool pool_;
  std::vector<uint32_t> streams_;
};

TEST_F(FencePoolTest, ALaterFenceOfTheSameStreamWins) {
  const FenceSetId set = pool_.Merge(At(0, 1), At(0, 2));
  EXPECT_EQ(Count(set), 1u);
  EXPECT_EQ(pool_.FirstPosition(set), 2u);
  EXPECT_EQ(pool_.SingleSlot(set), streams_[0]);
  EXPECT_EQ(pool_.live(), 1u);
  pool_.Release(set);
  EXPECT_EQ(pool_.live(), 0u);
}

TEST_F(FencePoolTest, StreamsAreKeptApartAndReachedOnesDropped) {
  FenceSetId set = pool_.Merge(At(0, 1), At(1, 2));
  EXPECT_EQ(Count(set), 2u);
  EXPECT_EQ(pool_.SingleSlot(set), 0u);
  EXPECT_FALSE(pool_.Reached(set));
  EXPECT_FALSE(pool_.UsableBy(set, streams_[0]));
  EXPECT_EQ(device_.Advance(streams_[1], 2), 2u);
  EXPECT_TRUE(pool_.UsableBy(set, streams_[0]));
  const FenceSetId shared = pool_.Retain(set);
  set = pool_.Prune(set);
  EXPECT_EQ(pool_.SingleSlot(set), streams_[0]);
  EXPECT_EQ(Count(shared), 2u) << "others share it, it stays as it was";
  pool_.Release(shared);
  set = pool_.Merge(set, At(2, 1));
  EXPECT_EQ(Count(set), 2u);
  pool_.Release(set);
  EXPECT_EQ(pool_.live(), 0u);
}

TEST_F(FencePoolTest, ASetMayHoldAFenceOfEveryStream) {
  FenceSetId set = 0;
  for (size_t i = 0; i < streams_.size(); ++i) set = pool_.Merge(set, At(i, 2));
  EXPECT_EQ(Count(set), streams_.size());
  EXPECT_EQ(pool_.live(), 1u);
  for (size_t i = 0; i + 1 < streams_.size(); ++i) (void)device_.Advance(streams_[i], 2);
  EXPECT_FALSE(pool_.Reached(set)) << "one stream is still missing";
  set = pool_.Prune(set);
  EXPECT_EQ(pool_.SingleSlot(set), streams_.back());
  (void)device_.Advance(streams_.back(), 2);
  EXPECT_TRUE(pool_.Reached(set));
  EXPECT_EQ(pool_.Prune(set), 0u);
  EXPECT_EQ(pool_.live(), 0u);
}

TEST_F(FencePoolTest, RoomIsForTheStreamsThatHaveBeenSeen) {
  FenceList all;
  for (size_t i = 0; i < streams_.size(); ++i) {
    pool_.Release(At(i, 2));
    all.Add({streams_[i], 2});
  }
  // As many pieces as there are free, if a set took one; it takes two.
  pool_.Reserve(1000);
  const size_t bytes = pool_.bytes();
  std::vector<FenceSetId> sets;
  for (int i = 0; i < 1000; ++i) sets.push_back(pool_.Make(all));
  EXPECT_EQ(pool_.bytes(), bytes);
  for (const FenceSetId set : sets) pool_.Release(set);
  EXPECT_EQ(pool_.live(), 0u);
}

TEST_F(FencePoolTest, ReservedSetsNeedNoAllocation) {
  FenceList all;
  for (size_t i = 0; i < streams_.size(); ++i) all.Add({streams_[i], 2});
  pool_.Reserve(5000);
  const size_t bytes = pool_.bytes();
  std::vector<FenceSetId> sets;
  for (int i = 0; i < 5000; ++i) sets.push_back(pool_.Make(all));
  EXPECT_EQ(pool_.bytes(), bytes);
  for (const FenceSetId set : sets) pool_.Release(set);
  pool_.Reserve(5000);
  EXPECT_EQ(pool_.bytes(), bytes);
}

// Whatever is free and however near the room's end is: the pieces that are reserved are there, also
// for the stream that the call itself adds.
TEST(FencePool, RoomIsEnoughAtItsVeryEnd) {
  for (uint32_t live = 1012; live <= 1024; ++live) {
    for (uint32_t free = 0; free <= 4; ++free) {
      for (uint32_t sets = 1; sets <= 3; ++sets) {
        HostDevice device(1, 0, 8, 1, false);
        FencePool pool(device);
        std::vector<uint32_t> streams;
        for (int i = 0; i < 5; ++i) streams.push_back(device.OpenStream());
        std::vector<FenceSetId> held;
        for (size_t i = 0; i < 4; ++i) device.EnqueueFill(streams[i], 0, 1);  // a whole piece
        for (uint32_t i = 0; i < live; ++i) held.push_back(pool.Single({streams[i % 4], 1}));
        for (uint32_t i = 0; i < free; ++i) {
          pool.Release(held.back());
          held.pop_back();
        }
        pool.Reserve(sets);
        const size_t bytes = pool.bytes();
        device.EnqueueFill(streams[4], 0, 1);
        FenceList all;
        for (const uint32_t stream : streams) all.Add({stream, 1});
        for (uint32_t i = 0; i < sets; ++i) held.push_back(pool.Make(all));
        ASSERT_EQ(pool.bytes(), bytes) << live << " sets, " << free << " free, " << sets;
        for (const FenceSetId set : held) pool.Release(set);
      }
    }
  }
}

// To make room for one set after the other costs no copy of all of them each time.
TEST(FencePool, RoomGrowsByMoreThanIsAskedFor) {
  HostDevice device(1, 0, 8, 1, false);
  FencePool pool(device);
  const uint32_t stream = device.OpenStream();
  device.EnqueueFill(stream, 0, 1);
  std::vector<FenceSetId> held;
  int grown = 0;
  for (int i = 0; i < 20000; ++i) {
    const size_t before = pool.bytes();
    pool.Reserve(1);
    grown += pool.bytes() != before ? 1 : 0;
    held.push_back(pool.Single({stream, 1}));
  }
  EXPECT_LE(grown, 6);
  for (const FenceSetId set : held) pool.Release(set);
}

// ------------------------------------------------------------------- mutex

// What the suite would miss without it: a reader that never rests must not
// keep a writer out. The test hangs (and is killed) if it can.
TEST(WriterFirstMutex, WritersPassReadersThatNeverRest) {
  WriterFirstMutex mutex;
  std::atomic<bool> stop{false};
  uint64_t value = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      uint64_t last = 0;
      while (!stop.load()) {
        std::shared_lock<WriterFirstMutex> lock(mutex);
        EXPECT_GE(value, last);
        last = value;
      }
    });
  }
  for (int i = 0; i < 2000; ++i) {
    std::unique_lock<WriterFirstMutex> lock(mutex);
    ++value;
  }
  stop.store(true);
  for (std::thread& t : readers) t.join();
  EXPECT_EQ(value, 2000u);
  EXPECT_TRUE(mutex.try_lock());
  EXPECT_FALSE(mutex.try_lock_shared());
  mutex.unlock();
}

}  // namespace
}  // namespace kvcast
