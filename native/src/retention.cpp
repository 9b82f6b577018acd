// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// How long blocks are worth keeping: priorities, their end, ended conversations.
#include <algorithm>
#include <mutex>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

namespace retention {

// Of one sequence: a prompt in a few parts, and what is generated.
constexpr size_t kMostRules = 16;

}  // namespace retention

// The block has the class from now on. Whoever calls holds it.
void Manager::SetPriority(NodeId id, uint8_t own, uint64_t expires_ns) {
  timers_.Cancel(id);
  if (expires_ns != 0) timers_.Set(id, expires_ns);
  const Node& n = tree_.node(id);
  Page& page = pages_[n.page];
  page.own = own;
  page.SetExpired(false);
  page.listed = n.children == 0 ? own : std::max(page.listed, own);
  RaiseAbove(id);
}

// The blocks before a held one are held as well, so none of them stands in the
// order of eviction, and only what they will be listed under has to be raised.
void Manager::RaiseAbove(NodeId id) {
  const uint8_t listed = pages_[tree_.node(id).page].listed;
  for (ParentId above = tree_.node(id).parent; !IsRoot(above); above = tree_.node(above).parent) {
    Page& page = pages_[tree_.node(above).page];
    if (page.listed >= listed) return;
    page.listed = listed;
  }
}

// Whatever used a block has used those before it, so they are worth as much, also
// if their ghosts have been forgotten. Blocks [first, end) are new in the path.
void Manager::LevelScores(const Sequence& sequence, uint64_t first, uint64_t end) {
  for (uint64_t i = end; i-- > 1;) {
    const uint32_t score = pages_[sequence.pages[i]].score;
    Page& above = pages_[sequence.pages[i - 1]];
    if (above.score < score) {
      above.score = score;
    } else if (i <= first) {
      return;
    }
  }
}

// Blocks [first, end) have just become the sequence's.
void Manager::FollowRules(const Sequence& sequence, uint64_t first, uint64_t end) {
  size_t after = sequence.rules.size();
  for (uint64_t i = end; i > first; --i) {
    while (after != 0 && sequence.rules[after - 1].from > (i - 1) * block_size_) --after;
    if (after == 0) return;
    const RetentionRule& rule = sequence.rules[after - 1];
    SetPriority(pages_[sequence.pages[i - 1]].node, rule.own, rule.expires_ns);
  }
}

// Memory is taken once in the life of a sequence's slot.
void Manager::ReserveRule(Sequence* seq) {
  const size_t before = seq->rules.capacity();
  if (before != 0) return;
  seq->rules.reserve(retention::kMostRules);
  sequence_bytes_ += seq->rules.capacity() * sizeof(RetentionRule);
}

kvc_status Manager::RetainOne(const kvc_retain_item& item, Turn* turn, kvc_error* error) {
  using sequences::Item;
  if (item.priority > kMaxPriority) {
    return Item(error, KVC_INVALID_ARGUMENT, "a priority is above 100");
  }
  if (item.end_token < item.first_token) {
    return Item(error, KVC_INVALID_ARGUMENT, "a range ends before it begins");
  }
  if (item.expires_ns != 0 && item.priority <= kDefaultPriority) {
    return Item(error, KVC_INVALID_ARGUMENT,
                "a priority that ends must be above the default, 35, to which it returns");
  }
  turn->Enter();
  Sequence* seq = Find(item.sequence);
  if (seq == nullptr) return sequences::Stale(error);
  if (seq->suspended) return sequences::Suspended(error);
  const bool open_end = item.end_token == KVC_TO_THE_END;
  if (!open_end && item.end_token > seq->committed) {
    return Item(error, KVC_BAD_STATE,
                "the range goes beyond what is committed; only KVC_TO_THE_END does");
  }
  if (!Attached(*seq)) return KVC_OK;  // its blocks are gone
  const uint8_t own = ClassOf(item.priority);
  // Before anything points into the rules.
  if (open_end) ReserveRule(seq);
  std::vector<RetentionRule>& rules = seq->rules;
  const auto over =
      std::lower_bound(rules.begin(), rules.end(), item.first_token,
                       [](const RetentionRule& rule, uint64_t from) { return rule.from < from; });
  auto passed = rules.begin();
  if (open_end && over - rules.begin() == static_cast<ptrdiff_t>(retention::kMostRules)) {
    // Those that the next block is beyond make room.
    const uint64_t next = uint64_t{seq->linked} * block_size_;
    while (passed + 1 != over && (passed + 1)->from <= next) ++passed;
    if (passed == rules.begin()) {
      return Item(error, KVC_NOT_NOW,
                  "16 ranges of later blocks wait for them already; say more when they are there");
    }
  }
  // From here on nothing throws.
  // Last block first: then a block that is raised has raised those before it.
  const uint64_t full = seq->linked;
  const uint64_t first =
      item.first_token / block_size_ + (item.first_token % block_size_ != 0 ? 1 : 0);
  const uint64_t end = open_end ? full
                                : std::min(full, item.end_token / block_size_ +
                                                     (item.end_token % block_size_ != 0 ? 1 : 0));
  for (uint64_t i = end; i > first; --i) {
    SetPriority(pages_[seq->pages[i - 1]].node, own, item.expires_ns);
  }
  if (open_end) {
    rules.erase(over, rules.end());
    rules.erase(rules.begin(), passed);
    rules.push_back({item.first_token, item.expires_ns, own});
  }
  return KVC_OK;
}

void Manager::Retain(uint32_t count, const kvc_retain_item* items, kvc_status* results,
                     kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i] = Guard(story, [&] {
      Turn turn(this);
      return RetainOne(items[i], &turn, story);
    });
  }
}

// The sequence's last blocks that nobody else holds and nothing else is built
// on go first from now on.
void Manager::EndTail(const Sequence& sequence) {
  NodeId after = kNil;
  if (sequence.suspended) return;
  for (uint64_t i = sequence.linked; i > 0; --i) {
    Page& page = pages_[sequence.pages[i - 1]];
    const Node& n = tree_.node(page.node);
    if (page.holders != 1 || n.children != (after == kNil ? 0u : 1u)) return;
    timers_.Cancel(page.node);
    page.own = page.listed = kEndedClass;
    page.SetExpired(false);
    after = page.node;
  }
}

void Manager::End(uint32_t count, const uint64_t* sequences, kvc_status* results,
                  kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i] = Guard(story, [&] {
      Turn turn(this);
      return ReleaseOne(sequences[i], Closing::kEnd, &turn, story);
    });
  }
}

uint32_t Manager::Expire(uint64_t now_ns, uint32_t max_blocks, bool* more) {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  Heal(4);
  uint32_t expired = 0;
  *more = !timers_.Advance(now_ns, max_blocks == 0 ? UINT64_MAX : max_blocks, [&](NodeId id) {
    const Node& n = tree_.node(id);
    pages_[n.page].own = kDefaultClass;
    pages_[n.page].SetExpired(true);
    if (n.children == 0) pages_.ListUnderOwn(n.page);
    ++expired;
  });
  counters_.expired_blocks += expired;
  return expired;
}

}  // namespace kvcast
