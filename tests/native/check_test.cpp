// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The check must be able to fail: each case breaks one invariant, expects its
// name, and mends it again. Without this the other tests' passing checks would
// prove nothing.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "native/src/manager.h"
#include "tests/native/recording_sink.h"

namespace kvcast {

struct ManagerPeer {
  explicit ManagerPeer(Manager& manager) : m(manager) {}
  Page& page(PageId id) { return m.pages_[id]; }
  Node& node(NodeId id) { return m.tree_.node(id); }
  uint32_t* tokens(NodeId id) { return m.tree_.tokens(id); }
  NodeId high_water() { return m.tree_.high_water(); }
  Sequence& sequence(uint64_t id) { return m.sequences_[static_cast<uint32_t>(id)]; }
  uint64_t& held_pages() { return m.held_pages_; }
  uint64_t& kept_pages() { return m.kept_pages_; }
  uint32_t& active_sequences() { return m.active_sequences_; }
  std::vector<uint32_t>& strip() { return m.strip_; }
  PrefixTree& tree() { return m.tree_; }
  uint32_t& open_sequences() { return m.open_sequences_; }
  uint64_t& deferred_count() { return m.deferred_count_; }
  uint64_t& deferred_at(NodeId id) { return m.deferred_at_[id]; }
  NodeId& deferred_head() { return m.deferred_head_; }
  DeferralCounters& deferral() { return *m.deferral_; }
  PageId first_evictable() { return m.pages_.order().First(); }
  static uint32_t& table_version(Sequence& seq) { return seq.table.version_; }
  PageId free_top() { return m.pages_.FirstFree(); }
  uint32_t& leaving() { return m.pages_.leaving_; }
  uint32_t& limit() { return m.pages_.limit_; }
  PageBits& out() { return m.pages_.out_; }
  bool& resizing() { return m.resizing_; }
  FencePool& fences() { return m.fences_; }
  uint32_t& pinned_pages() { return m.pins_.pages_; }
  std::vector<NodeId>& removals() { return m.removals_; }
  uint32_t& free_sequence() { return m.free_sequence_; }
  PendingSequence& pending(uint64_t id) { return m.pending_.of(static_cast<uint32_t>(id)); }
  PendingMark& mark(uint32_t id) { return m.pending_.marks_[id]; }
  uint32_t& marks() { return m.pending_.size_; }
  uint32_t& waiting() { return m.pending_.waiting_; }
  uint32_t& told_first() { return m.pending_.told_head_; }
  uint64_t& marked_blocks() { return m.counters_.marked_blocks; }
  Manager& m;
};

namespace {

constexpr uint32_t kBlock = 2;

class CheckTest : public ::testing::Test {
 protected:
  CheckTest() : sink_(std::make_shared<RecordingSink>()) {
    kvc_config config{};
    kvc_config_init(&config);
    config.tokens_per_block = kBlock;
    config.capacity_blocks = 16;
    config.max_sequences = 4;
    config.seed = 1;
    config.partial_reuse = 1;
    m_ = std::make_unique<Manager>(config, sink_);
    peer_ = std::make_unique<ManagerPeer>(*m_);
    // Two announced blocks held by one sequence with a page to spare, three
    // cached ones of which two are deferred, pages behind a fence, free pages.
    stream_ = m_->OpenDeviceStream();
    held_ = Store({1, 2}, 3, 0);
    sink_->room = 1;
    sink_->heal_room = 0;
    Release(Store({3, 4, 5}, 3, 0));
    const uint64_t fenced = Store({}, 2, stream_);
    const kvc_host_fill fill{0, 0, 1};
    m_->EnqueueFill(stream_, 1, &fill);
    Release(fenced);
    Expect(nullptr);
  }

  uint64_t Store(const std::vector<uint32_t>& blocks, uint64_t room, uint64_t stream) {
    std::vector<uint32_t> tokens;
    for (const uint32_t b : blocks) tokens.insert(tokens.end(), kBlock, b);
    const uint32_t none = 0;
    const uint32_t* data = tokens.empty() ? &none : tokens.data();
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.device_stream = stream;
    kvc_create_result made{};
    m_->Create(1, &prompt, {data, tokens.size()}, &made, nullptr);
    const kvc_grow_item grow{made.sequence, room * kBlock};
    kvc_grow_result grown{};
    m_->Grow(1, &grow, &grown, nullptr);
    EXPECT_EQ(grown.status, KVC_OK);
    const kvc_commit_item commit{made.sequence, 0, tokens.size(), 0, 0, {}, 0};
    kvc_commit_result committed{};
    m_->Commit(1, &commit, {data, tokens.size()}, &committed, nullptr);
    EXPECT_EQ(committed.status, KVC_OK);
    return made.sequence;
  }
  void Release(uint64_t id) {
    kvc_status status = KVC_INTERNAL;
    m_->Release(1, &id, &status, nullptr);
    EXPECT_EQ(status, KVC_OK);
  }
  // The node of the block that repeats `token`.
  NodeId Of(uint32_t token) {
    for (NodeId id = 0; id < peer_->high_water(); ++id) {
      if (peer_->node(id).parent != kNil && peer_->tokens(id)[0] == token) return id;
    }
    ADD_FAILURE() << "no block " << token;
    return 0;
  }
  void Expect(const char* message) {
    kvc_error error{};
    const kvc_status status = m_->Check(&error);
    if (message == nullptr) {
      EXPECT_EQ(status, KVC_OK) << error.message;
    } else {
      EXPECT_EQ(status, KVC_CORRUPT) << "expected: " << message;
      EXPECT_NE(std::string(error.message).find(message), std::string::npos)
          << "said: " << error.message << "\nexpected: " << message;
    }
  }
  // Sets a field, expects the message, sets it back, expects peace.
  template <typename T, typename V>
  void Break(T& field, V value, const char* message) {
    const T before = field;
    field = static_cast<T>(value);
    Expect(message);
    field = before;
    Expect(nullptr);
  }

  std::shared_ptr<RecordingSink> sink_;
  std::unique_ptr<Manager> m_;
  std::unique_ptr<ManagerPeer> peer_;
  uint64_t stream_ = 0;
  uint64_t held_ = 0;
};

TEST_F(CheckTest, Pages) {
  const NodeId one = Of(1), two = Of(2), three = Of(3);
  Page& live = peer_->page(peer_->node(one).page);
  Page& cached = peer_->page(peer_->node(three).page);
  Page& free = peer_->page(peer_->free_top());
  Break(live.holders, 2, "holders are miscounted");
  Break(live.state, PageState::kCached, "live without a holder, or held without being live");
  Break(free.state, PageState::kLive, "live without a holder, or held without being live");
  Break(cached.node, kNil, "a cached page has no block");
  Break(cached.node, two, "a page and its block do not name each other");
  Break(free.node, three, "a page given up has a block");
  Break(peer_->node(one).page, peer_->node(two).page,
        "a page and its block do not name each other");
  Break(cached.state, static_cast<PageState>(9), "a page has an unknown state");
  Break(peer_->sequence(held_).pages[2], 16, "a sequence holds a page beyond the pool");
  Break(free.next, kNil, "the free pages are miscounted");
  const PageId head = peer_->first_evictable();
  Break(peer_->page(head).next, kNil, "the order of eviction is broken");
  Break(peer_->page(peer_->page(head).next).prev, kNil, "the order of eviction is broken");
}

// An elastic pool on its way down: pages that leave, a doomed one that is held, one in quarantine.
TEST_F(CheckTest, ElasticPools) {
  Release(held_);
  kvc_config config{};
  kvc_config_init(&config);
  config.tokens_per_block = kBlock;
  config.capacity_blocks = 12;
  config.max_blocks = 16;
  config.min_blocks = 2;
  config.page_bytes = 8;
  config.max_sequences = 4;
  config.seed = 1;
  sink_ = std::make_shared<RecordingSink>();
  m_ = std::make_unique<Manager>(config, sink_);
  peer_ = std::make_unique<ManagerPeer>(*m_);
  stream_ = m_->OpenDeviceStream();
  held_ = Store({1, 2, 3}, 6, 0);
  const uint64_t fenced = Store({}, 3, stream_);
  const kvc_host_fill fill{0, 0, 1};
  m_->EnqueueFill(stream_, 1, &fill);
  Release(fenced);
  kvc_resize_result result{};
  ASSERT_EQ(m_->Resize(5, 8, nullptr, 0, nullptr, 0, &result, nullptr), KVC_OK);
  ASSERT_EQ(result.doomed_pages, 4u);
  ASSERT_EQ(result.leaving_pages, 3u);
  Expect(nullptr);
  // Page 5 is held, 6 to 8 are in quarantine, 9 to 11 leave, 12 to 15 never were.
  Break(peer_->page(9).state, PageState::kLive, "a page was withdrawn and is in use");
  Break(peer_->leaving(), 2, "leaving differ from the total");
  Break(peer_->page(5).state, PageState::kFree, "a doomed page is free");
  Break(peer_->limit(), 7, "a page is in the wrong quarantine");
  Break(peer_->page(6).quarantine, peer_->page(6).quarantine - kDeviceSlots,
        "a page is in the wrong quarantine");
  peer_->out().Remove(13);
  Expect("a page is in the pool without memory");
  peer_->out().Add(13);
  peer_->out().Add(8);
  Expect("a page was withdrawn and is in use");
  peer_->out().Remove(8);
  Break(peer_->resizing(), false, "the pool is not as large as it was to be");
  Expect(nullptr);
}

TEST_F(CheckTest, Fences) {
  PageId quarantined = 0;
  while (peer_->page(quarantined).state != PageState::kQuarantined) ++quarantined;
  Page& page = peer_->page(quarantined);
  Break(page.quarantine, 0, "a page is in the wrong quarantine");
  Break(page.used, 0, "a set of fences is miscounted");
  Page& free = peer_->page(peer_->free_top());
  Break(free.used, page.used, "a free page has fences");
  const FenceSetId leaked = peer_->fences().Single({1, 1});
  Expect("a set of fences has leaked");
  peer_->fences().Release(leaked);
  Expect(nullptr);
}

TEST_F(CheckTest, Tree) {
  const NodeId one = Of(1), two = Of(2), three = Of(3);
  Break(peer_->node(one).children, 2, "a block's children are miscounted");
  Break(peer_->node(two).hash, 5, "a table entry has a wrong tag");
  Break(peer_->tokens(two)[1], 9, "a node's hash is not its content's");
  Break(peer_->node(two).parent, three, "a node's hash is not its content's");
  Break(peer_->node(two).victims, 1, "an eviction plan was not cleared");
  peer_->removals().push_back(one);
  Expect("a step left work undone");
  peer_->removals().clear();
  Expect(nullptr);
}

TEST_F(CheckTest, Announcements) {
  const NodeId one = Of(1), four = Of(4), five = Of(5);
  Break(peer_->node(one).announce, Announce::kDeferred, "a block was announced before its parent");
  Break(peer_->node(five).announce, Announce::kAnnounced,
        "a block was announced before its parent");
  Break(peer_->node(one).announce, Announce::kNone, "neither announced nor deferred");
  Break(peer_->deferred_count(), 1, "the deferred blocks are miscounted");
  Break(peer_->deferred_head(), five, "the deferred list is broken");
  Break(peer_->node(four).deferred_next, kNil, "the deferred blocks are miscounted");
  Bump(peer_->deferral().healed_blocks);
  Expect("deferred differs from healed + deferred evicted + pending");
  Drop(peer_->deferral().healed_blocks);
  Expect(nullptr);
  Break(peer_->deferred_at(five), 1, "the deferred list is not in the order of time");
  Bump(peer_->deferral().oldest_deferred_ns);
  Expect("the oldest deferred block is another one");
  Drop(peer_->deferral().oldest_deferred_ns);
  Expect(nullptr);
  // Parents come before their children, also when the list itself is whole.
  Node& parent = peer_->node(four);
  Node& child = peer_->node(five);
  std::swap(parent.deferred_prev, child.deferred_next);
  std::swap(parent.deferred_next, child.deferred_prev);
  peer_->node(five).deferred_next = four;
  peer_->node(five).deferred_prev = kNil;
  peer_->node(four).deferred_next = kNil;
  peer_->node(four).deferred_prev = five;
  peer_->deferred_head() = five;
  Expect("a deferred block stands before its parent on the list");
}

TEST_F(CheckTest, Sequences) {
  Sequence& seq = peer_->sequence(held_);
  Break(seq.committed, 100, "matched <= committed <= capacity does not hold");
  Break(seq.matched, 5, "matched <= committed <= capacity does not hold");
  Break(seq.committed, kBlock, "more blocks in the tree than were committed");
  Break(seq.linked, 1, "an uncommitted block has a place in the tree");
  Break(seq.last, Of(1), "a sequence does not end where its last block does");
  Break(peer_->open_sequences(), 2, "the open sequences are miscounted");
  Break(peer_->free_sequence(), kNil, "the free sequences are miscounted");
  Break(seq.root, kNil, "a sequence hangs on a root that never was");
  Break(ManagerPeer::table_version(seq), 1, "a sequence's table has changed nowhere");
}

TEST_F(CheckTest, SuspendedSequences) {
  const uint64_t id = Store({6, 7}, 3, 0);
  const kvc_suspend_item item{id, KVC_SUSPEND_KEEP, 0};
  kvc_status status = KVC_INTERNAL;
  m_->Suspend(1, &item, &status, nullptr);
  ASSERT_EQ(status, KVC_OK);
  Expect(nullptr);
  Sequence& seq = peer_->sequence(id);
  Break(seq.suspended, false, "active sequence has a path");
  Break(seq.rest_kept, false, "a suspended sequence keeps a torn rest");
  Break(seq.linked, 1, "a suspended sequence has blocks in the tree");
  Break(seq.matched, 9, "a suspended sequence's path is no whole blocks");
  Break(peer_->kept_pages(), 2, "the kept pages are miscounted");
  Break(peer_->active_sequences(), 2, "the active sequences are miscounted");
  peer_->tree().SleepOn(seq.root);
  Expect("a root's sleepers are miscounted");
  peer_->tree().WakeOn(seq.root);
  peer_->strip().push_back(0);
  Expect("a step left work undone");
  peer_->strip().clear();
  Expect(nullptr);
}

TEST_F(CheckTest, Holds) {
  const kvc_hold_item item{Store({8}, 2, 0), 1, 0};
  kvc_hold_result held{};
  m_->ReleaseHeld(1, &item, &held, nullptr);
  ASSERT_EQ(held.status, KVC_OK);
  Expect(nullptr);
  Sequence& seq = peer_->sequence(held.hold);
  Break(seq.suspended, true, "a hold of a suspended sequence");
  Break(seq.holds, 0, "the holds are miscounted");
  Break(peer_->held_pages(), 1, "the holds are miscounted");
  kvc_status status = KVC_INTERNAL;
  m_->ReleaseHolds(1, &held.hold, &status, nullptr);
  EXPECT_EQ(status, KVC_OK);
}

TEST_F(CheckTest, Forks) {
  const uint64_t id = Store({8}, 3, 0);
  const uint32_t token = 1;
  const kvc_commit_item more{id, 0, 1, 0, 0, {}, 0};
  kvc_commit_result committed{};
  m_->Commit(1, &more, {&token, 1}, &committed, nullptr);
  ASSERT_EQ(committed.status, KVC_OK);
  const kvc_fork_item item{id, 0};
  kvc_fork_result forked{};
  m_->Fork(1, &item, &forked, nullptr);
  ASSERT_EQ(forked.status, KVC_OK);
  Expect(nullptr);
  Sequence& fork = peer_->sequence(forked.sequence);
  ASSERT_EQ(fork.pages.size(), 2u);
  Break(peer_->page(fork.pages[1]).holders, 1, "a page's holders are miscounted");
  Break(fork.committed, kBlock, "a sequence shares room");
  const kvc_suspend_item suspend{forked.sequence, KVC_SUSPEND_KEEP, 0};
  kvc_status status = KVC_INTERNAL;
  m_->Suspend(1, &suspend, &status, nullptr);
  ASSERT_EQ(status, KVC_OK);
  Break(fork.committed, kBlock, "a sequence shares room");
}

TEST_F(CheckTest, KeptTails) {
  const uint64_t id = Store({}, 1, 0);
  const uint32_t token = 7;
  const kvc_commit_item more{id, 0, 1, 0, 0, {}, 0};
  kvc_commit_result committed{};
  m_->Commit(1, &more, {&token, 1}, &committed, nullptr);
  ASSERT_EQ(committed.status, KVC_OK);
  Release(id);
  const NodeId tail = Of(token);
  Node& n = peer_->node(tail);
  ASSERT_TRUE(n.partial());
  Expect(nullptr);
  Break(n.hash, 0, "a kept tail is not partly filled");
  Break(n.hash, kBlock, "a kept tail is not partly filled");
  Break(n.children, 1, "a kept tail has children");
  Break(n.announce, Announce::kDeferred, "a node is not found by its content");
  Break(n.parent, tail, "a kept tail does not follow a block");
  Break(n.older, kNil, "the lists of children are miscounted");
  Break(n.newer, tail, "a list of children is broken");
  Break(n.digests, true, "a block does not know whether it has digests");
  Break(peer_->page(n.page).holders, 1, "a kept tail is held");
  Break(peer_->page(n.page).own, 0, "a block is listed under a wrong class");
}

TEST_F(CheckTest, Pending) {
  const auto open = [&](uint32_t flags) {
    const std::vector<uint32_t> tokens(2 * kBlock, 9);
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    prompt.flags = flags;
    kvc_create_result made{};
    m_->Create(1, &prompt, {tokens.data(), tokens.size()}, &made, nullptr);
    EXPECT_EQ(made.status, KVC_OK);
    return made.sequence;
  };
  const uint64_t owner = open(KVC_PROMPT_MARK);
  const uint64_t waiter = open(KVC_PROMPT_WAIT);
  Expect(nullptr);
  Sequence& seq = peer_->sequence(owner);
  PendingSequence& marks = peer_->pending(owner);
  PendingSequence& wait = peer_->pending(waiter);
  PendingMark& mark = peer_->mark(marks.first);
  Break(seq.marking, false, "an active sequence has a path");
  Break(seq.stop_blocks, 1, "a sequence's marks are not of its next blocks");
  Break(peer_->sequence(held_).marking, true, "a sequence does not know that it has marks");
  Break(marks.begin, 1, "a sequence's marks are not of its next blocks");
  Break(marks.last, marks.first, "a sequence's marks are miscounted");
  Break(mark.block, 1, "a sequence's marks are broken");
  Break(mark.hash, mark.hash + 1, "a mark's hash is not its content's");
  Break(mark.next_own, kNil, "a sequence's marks are miscounted");
  Break(peer_->marks(), 3, "the marks are miscounted");
  Break(seq.path[1], 8, "a mark's hash is not its content's");
  Break(peer_->sequence(waiter).path[1], 8, "a sequence waits for other blocks than its own");
  Break(wait.until, 3, "a sequence waits for what nobody computes");
  Break(wait.owner, 0, "a list of waiting sequences is broken");
  Break(wait.prev, 0, "a list of waiting sequences is broken");
  Break(peer_->sequence(waiter).fresh, false, "a sequence waits that is not suspended");
  Break(peer_->waiting(), 2, "the waiting sequences are miscounted");
  Break(peer_->marked_blocks(), 3, "marked differs from committed + given up + pending");
  Release(owner);
  Expect(nullptr);
  Break(peer_->told_first(), kNil, "the list of those to be told is broken");
}

TEST_F(CheckTest, EvictionOrder) {
  // Swap the two oldest cached pages: the parent comes before its child then.
  const PageId a = peer_->first_evictable();
  const PageId b = peer_->page(a).next;
  Page& pa = peer_->page(a);
  Page& pb = peer_->page(b);
  std::swap(pa.node, pb.node);
  std::swap(peer_->node(pa.node).page, peer_->node(pb.node).page);
  Expect("a parent stands before its child in the order of eviction");
}

TEST_F(CheckTest, Classes) {
  const NodeId four = Of(4), five = Of(5);
  Page& parent = peer_->page(peer_->node(four).page);
  Page& child = peer_->page(peer_->node(five).page);
  Break(child.own, ClassOf(40), "a block is listed under a wrong class");
  Break(child.own, ClassOf(10), "a block is listed under a wrong class");
  Break(parent.listed, kClasses, "a page is in the list of another class");
  Break(parent.own, ClassOf(40), "a block is listed under a wrong class");
  Page& held = peer_->page(peer_->node(Of(1)).page);
  Page& after = peer_->page(peer_->node(Of(2)).page);
  Break(held.own, kEndedClass, "a held block counts as ended");
  after.own = after.listed = ClassOf(40);
  Expect("a block is listed under a higher class than its parent");
  held.listed = ClassOf(40);
  Expect(nullptr);
  Break(peer_->node(four).due, 7, "a priority that is not above the default has an end");
  Break(peer_->node(Of(2)).due, 7, "the timers are miscounted");
}

TEST_F(CheckTest, Pins) {
  kvc_pin_result pin{};
  m_->PinSequences(1, &held_, &pin, nullptr);
  ASSERT_EQ(pin.status, KVC_OK);
  ASSERT_EQ(pin.pinned_blocks, 2u);
  Expect(nullptr);
  Break(peer_->page(peer_->node(Of(1)).page).holders, 1, "a page's holders are miscounted");
  Break(peer_->pinned_pages(), 1, "the pinned pages are miscounted");
}

TEST_F(CheckTest, Timers) {
  const kvc_retain_item item{held_, 0, 2 * kBlock, 1, 80, 0};
  kvc_status status = KVC_INTERNAL;
  m_->Retain(1, &item, &status, nullptr);
  ASSERT_EQ(status, KVC_OK);
  Expect(nullptr);
  Node& one = peer_->node(Of(1));
  Break(one.timer_slot, 77, "a timer is not its block's");
  Break(one.due, 0, "a timer is not its block's");
}

}  // namespace
}  // namespace kvcast
