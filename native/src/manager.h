// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The manager: page pool, prefix tree and sequences under one lock.
//
// Lock order: a stream's host mutex, then the manager's lock, then the
// device's own mutex. Under the lock the manager calls the sink and the
// device; neither waits (event_sink.h, device.h).
//
// Invariants (Check verifies them):
//  1. Each page is in one state: live + cached + free + quarantined + leaving == total.
//     Those that leave, or have no memory, are on no list; a free page is not doomed.
//  2. A node has a page and the page has that node; both or neither.
//  3. A page is cached if and only if it has a node and no holder.
//  4. Whoever holds a block holds all blocks before it, and a block is listed
//     under no lower class than its children; so the order of eviction has
//     children before parents. One without children is listed under its own.
//  5. A sequence's blocks in the tree are its first ones; a suspended sequence
//     has none, only their tokens, and holds no page but those it keeps.
//     Pages outside the tree are shared by forks, and hold committed tokens of each.
//  6. announced = stored - removed - cleared; no announced block has an
//     unannounced parent; a node is deferred if and only if it is on the
//     deferred list, where parents come before children; a node is suppressed
//     if and only if the stream suppresses multimodal blocks and the node or one
//     before it has digest tokens.
//  7. Each digest token of a node, of a partly filled tail or of a suspended
//     sequence's path is one use of an interned digest; there are no other uses between calls.
//  8. A kept tail is the page of a node that is partly filled: nobody holds it, nothing
//     hangs on it, the table does not have it and the stream is not told of it.
//  9. A sequence has marks of the blocks that follow those it has in the tree, a
//     contiguous run; it is active and attached. Who waits for it is suspended and waits
//     for blocks that it has marked.
#ifndef KVCAST_NATIVE_SRC_MANAGER_H_
#define KVCAST_NATIVE_SRC_MANAGER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/block_table.h"
#include "native/src/capture_marks.h"
#include "native/src/digest_table.h"
#include "native/src/event_sink.h"
#include "native/src/fence_pool.h"
#include "native/src/host_device.h"
#include "native/src/mixed_hash.h"
#include "native/src/page_pool.h"
#include "native/src/pending_table.h"
#include "native/src/pin_table.h"
#include "native/src/prefix_tree.h"
#include "native/src/recency_frequency.h"
#include "native/src/sequence.h"
#include "native/src/timer_wheel.h"
#include "native/src/writer_first_mutex.h"

namespace kvcast {

// What the prompts of one call point into.
struct PromptArrays {
  const uint32_t* tokens = nullptr;
  uint64_t token_count = 0;
  const kvc_scope* scopes = nullptr;
  uint32_t scope_count = 0;
  const uint8_t* bytes = nullptr;
  uint64_t byte_count = 0;
};

// What the items of a commit point into.
struct CommitArrays {
  const uint32_t* tokens = nullptr;
  uint64_t token_count = 0;
  const uint8_t* bytes = nullptr;
  uint64_t byte_count = 0;
};

// Where a call tells what it evicted: the caller's array.
struct EvictedList {
  kvc_evicted_block* blocks = nullptr;
  uint32_t capacity = 0;
  uint32_t count = 0;
  bool whole = false;  // nothing may be evicted that has no room here

  // Room for `wanted` blocks, whole or not at all.
  [[nodiscard]] kvc_evicted_block* Room(uint32_t wanted) const {
    return wanted != 0 && wanted <= capacity - count ? blocks + count : nullptr;
  }
};

// Where a fence is noted or told. Tests take away one of them to show that it is
// needed (ManagerTestHooks::without).
enum class FenceSite : uint32_t {
  kNone,
  kCommitReady,      // on the pages that a commit publishes
  kCommitGivenBack,  // on those given back for somebody else's
  kCommitWait,       // of those, told to the committer
  kImportReady,      // the caller's own, on pages filled from outside
  kCreateWait,       // of the pages matched, told to the creator
  kResumeWait,       // told to whoever resumes
  kRelease,          // on the pages of a released or cancelled sequence
  kHoldEnd,          // on the pages of a hold that ends
  kSuspend,          // on the pages that a suspended sequence lets go
  kSuspendKept,      // on those it keeps
  kTruncate,         // on room given back
  kForkReady,        // of the forked sequence's stream, on what it shares outside the tree
  kForkWait,         // of that, told to whoever forks
  kCopyAfter,        // that a copy waits for
  kCopyRead,         // of the copy, on the page that it reads
  kCopyReady,        // and on the page that it writes
  kCopyWait,         // of that, told to whoever grows
  kTailReady,        // on the page of a tail that is kept at release
  kMoveAfter,        // as the first three of a copy, for pages that a shrink moves
  kMoveRead,
  kMoveReady,
  kMoveKeptAfter,  // of the sequence's own stream, that a copy of a kept page waits for
  kCount,
};

// What tests may turn and users may not.
struct ManagerTestHooks {
  uint32_t hash_bits = 61;  // fewer make the tree's hash collide
  // Called by a probe, under the shared lock, where it would let a writer pass.
  void (*on_probe_step)(void* context) = nullptr;
  void* context = nullptr;
  FenceSite without = FenceSite::kNone;
};

class Manager final : public SinkHost {
 public:
  // Throws Error for a config that can never be right.
  Manager(const kvc_config& config, std::shared_ptr<EventSink> sink,
          const ManagerTestHooks& hooks = {});
  ~Manager();
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  // Batch calls, see kvcast.h. `error` takes the story of the first item that failed.
  void Create(uint32_t count, const kvc_prompt* prompts, const PromptArrays& in,
              kvc_create_result* results, kvc_error* error);
  void Probe(uint32_t count, const kvc_prompt* prompts, const PromptArrays& in,
             kvc_probe_result* results, kvc_error* error);
  void Residency(uint32_t count, const kvc_prompt* prompts, const PromptArrays& in,
                 uint64_t block_capacity, kvc_block_residency* blocks,
                 kvc_residency_result* results, kvc_error* error);
  void Grow(uint32_t count, const kvc_grow_item* items, kvc_grow_result* results, kvc_error* error,
            EvictedList* told = nullptr);
  void Commit(uint32_t count, const kvc_commit_item* items, const CommitArrays& in,
              kvc_commit_result* results, kvc_error* error);
  void Fork(uint32_t count, const kvc_fork_item* items, kvc_fork_result* results, kvc_error* error);
  void Release(uint32_t count, const uint64_t* sequences, kvc_status* results, kvc_error* error);
  void Cancel(uint32_t count, const uint64_t* sequences, kvc_status* results, kvc_error* error);
  void ReleaseHeld(uint32_t count, const kvc_hold_item* items, kvc_hold_result* results,
                   kvc_error* error);
  void ReleaseHolds(uint32_t count, const uint64_t* holds, kvc_status* results, kvc_error* error);
  void Suspend(uint32_t count, const kvc_suspend_item* items, kvc_status* results,
               kvc_error* error);
  void Resume(uint32_t count, const uint64_t* sequences, kvc_resume_result* results,
              kvc_error* error);
  void Truncate(uint32_t count, const kvc_truncate_item* items, kvc_truncate_result* results,
                kvc_error* error);
  uint32_t Waiters(uint32_t capacity, kvc_waiter* out);
  void Stop(uint32_t count, const kvc_stop_item* items, kvc_status* results, kvc_error* error);
  kvc_status Waits(uint64_t sequence, uint32_t capacity, kvc_fence* fences, uint32_t* count,
                   kvc_error* error);
  kvc_status Get(uint64_t sequence, uint32_t first_block, uint32_t capacity, PageId* pages,
                 uint32_t* written, kvc_sequence_info* info, kvc_error* error);

  void Retain(uint32_t count, const kvc_retain_item* items, kvc_status* results, kvc_error* error);
  void End(uint32_t count, const uint64_t* sequences, kvc_status* results, kvc_error* error);
  void PinPrompts(uint32_t count, const kvc_prompt* prompts, const PromptArrays& in,
                  kvc_pin_result* results, kvc_error* error);
  void PinSequences(uint32_t count, const uint64_t* sequences, kvc_pin_result* results,
                    kvc_error* error);
  void Unpin(uint32_t count, const uint64_t* pins, kvc_status* results, kvc_error* error);
  void DropScopes(uint32_t count, const kvc_drop_item* items, const PromptArrays& in,
                  kvc_drop_result* results, EvictedList* told, kvc_error* error);
  void Histograms(kvc_histograms* out);
  // Returns how many blocks went back to the default priority; *more says
  // whether there may be others.
  uint32_t Expire(uint64_t now_ns, uint32_t max_blocks, bool* more);

  // block_table.cpp
  void TablesDense(const kvc_table_format* format, uint32_t count, const kvc_table_item* items,
                   uint32_t columns, uint64_t row_stride, int32_t* table, int32_t* lengths,
                   kvc_table_result* results, kvc_error* error);
  kvc_status TablesIndexed(const kvc_table_format* format, uint32_t count,
                           const kvc_table_item* items, uint64_t capacity, int32_t* indptr,
                           int32_t* indices, int32_t* last_page_len, uint64_t* needed,
                           kvc_table_result* results, kvc_error* error);
  void TablesDelta(const kvc_table_format* format, uint32_t count,
                   const kvc_table_delta_item* items, uint32_t columns, kvc_table_cookie* cookies,
                   uint32_t capacity, kvc_table_delta* deltas, uint32_t* written,
                   kvc_table_result* results, kvc_error* error);

  // step.cpp
  void Step(uint32_t count, const kvc_op* ops, const kvc_step_input& in, kvc_op_result* results,
            kvc_step_output* out, kvc_error* error);

  // page_copy.cpp
  void SetPageLayout(const kvc_geometry& geometry, uint32_t count, const kvc_buffer* buffers);

  // resize.cpp
  kvc_status Resize(uint32_t target, uint32_t max_pages, kvc_page_move* moves,
                    uint32_t move_capacity, kvc_evicted_block* evicted, uint32_t evicted_capacity,
                    kvc_resize_result* out, kvc_error* error);

  // device_table.cpp
  [[nodiscard]] uint64_t OpenDeviceTable(uint32_t rows, uint32_t columns, int32_t absent,
                                         uint32_t staging, uint64_t* address);
  void CloseDeviceTable(uint64_t table);
  void UpdateDeviceTable(uint64_t table, uint64_t device_stream, uint32_t count,
                         const kvc_table_delta* deltas);
  void WriteDeviceTable(uint64_t table, uint64_t device_stream, const TableRows& rows);
  void ReadDeviceTable(uint64_t table, uint32_t row, uint32_t column, uint32_t count, int32_t* out);

  void Reset();
  void Stats(kvc_stats* out);
  kvc_status Check(kvc_error* error);
  kvc_status Resident(kvc_hash_form form, uint64_t capacity, kvc_resident_block* blocks,
                      uint64_t* count, kvc_error* error);

  [[nodiscard]] uint64_t OpenDeviceStream();
  [[nodiscard]] uint64_t OpenStepStream();
  // A stream that the device has made, or adopted, in that slot (0: it had none).
  [[nodiscard]] uint64_t AddDeviceStream(uint32_t slot);
  [[nodiscard]] uint32_t DeviceSlot(uint64_t device_stream) const;
  [[nodiscard]] Device& device() { return device_; }
  // Looks which streams of sequences, and which of `named` (slots, a bit for each), are
  // being captured, without the lock: until the next look calls refuse them.
  void LookForCaptures(uint64_t named) noexcept;
  // The bit of a stream's slot, whatever the id.
  [[nodiscard]] static uint64_t SlotBit(uint64_t device_stream) {
    return device_stream == 0 ? 0 : uint64_t{1} << (device_stream % kDeviceSlots);
  }
  [[nodiscard]] kvc_device_memory Memory() const;
  void BeginStep(uint64_t device_stream, uint64_t step);
  void EndStep(uint64_t device_stream, uint64_t step);
  void CloseDeviceStream(uint64_t device_stream);
  void QueryFences(uint32_t count, const kvc_fence* fences, uint8_t* done);
  void StreamWait(uint64_t device_stream, uint32_t count, const kvc_fence* fences);
  void EnqueueFill(uint64_t device_stream, uint32_t count, const kvc_host_fill* fills);
  uint64_t Advance(uint64_t device_stream, uint64_t max_ops);
  void ReadPage(PageId page, uint64_t offset, uint64_t size, uint8_t* out);

  [[nodiscard]] uint32_t open_sequences() const;
  // Ends the stream; nothing may be called afterwards but the destructor.
  void SealSink() noexcept;

  uint32_t TryHeal(uint32_t max_blocks, uint64_t max_ns) noexcept override;
  void DetachSink() noexcept override;

 private:
  friend struct ManagerPeer;  // tests that break invariants on purpose

  struct DeviceStreamSlot {
    uint64_t id = 0;  // generation << 6 | slot; never used twice
    bool open = false;
    uint32_t sequences = 0;  // open ones that run on it
    bool steps = false;
    bool own = false;   // of the device itself, for copies: never open to anybody
    uint64_t base = 0;  // position of step 0
  };
  // A copy that has been planned: where it is queued (0: the engine makes it), and
  // behind what.
  struct CopyPlan {
    uint32_t slot = 0;
    FenceList after;
    bool move = false;  // of a shrink: tests tell its fences apart from those of others
  };
  // Tokens as the caller gave them: a digest token names one of `digests`.
  struct TokenView {
    const uint32_t* tokens = nullptr;
    const uint8_t* digests = nullptr;  // nullptr: no token is one
  };
  struct PromptView {
    TokenView tokens;
    uint64_t most = 0;    // tokens that may be matched
    uint64_t blocks = 0;  // the whole blocks of these
    uint64_t whole = 0;   // that are full
    ScopeView scope;
  };
  // The manager's lock over one item, or over all items of a step: taken when the
  // first of them needs it, then kept. Each item heals a little.
  class Turn {
   public:
    explicit Turn(Manager* manager) : manager_(manager), lock_(manager->mutex_, std::defer_lock) {}
    void Lock() {
      if (!lock_.owns_lock()) lock_.lock();
    }
    void Enter() {
      Lock();
      if (manager_->resizing_) manager_->Settle();
      manager_->Heal(4);
    }

   private:
    Manager* manager_;
    std::unique_lock<WriterFirstMutex> lock_;
  };
  enum class Closing { kRelease, kCancel, kEnd };
  struct Match {
    RootId root = kNil;
    ParentId last = kNil;
    uint64_t last_hash = 0;
    uint64_t blocks = 0;
  };

  // manager.cpp
  [[nodiscard]] uint32_t SlotOf(uint64_t device_stream) const;
  [[nodiscard]] HostDevice& Host() const;
  [[nodiscard]] uint32_t QueueOf(uint64_t device_stream) const;
  [[nodiscard]] Fence ToFence(const kvc_fence& fence) const;
  [[nodiscard]] kvc_fence FromFence(const Fence& fence) const;
  uint32_t Heal(uint32_t max_blocks);
  void AppendDeferred(NodeId id, uint64_t now);
  void UnlinkDeferred(NodeId id);
  void NoteOldestDeferred();
  void Announce(ParentId parent, const NodeId* nodes, uint32_t count);
  void ForgetNode(NodeId id, kvc_evicted_reason reason);
  [[nodiscard]] uint64_t BlockId(NodeId id) const {
    return uint64_t{tree_.node(id).generation} << 32 | id;
  }
  void FlushRemovals();

  // create.cpp
  static kvc_status ValidateScope(uint32_t index, const PromptArrays& in, ScopeView* scope,
                                  kvc_error* error);
  kvc_status ValidatePrompt(const kvc_prompt& prompt, const PromptArrays& in, PromptView* out,
                            kvc_error* error) const;
  template <typename Visit>
  void Walk(Match* match, const uint32_t* tokens, uint64_t blocks, Visit&& visit) const;
  void BackOff(Match* match, uint32_t tokens) const;
  template <typename Visit>
  void WalkItem(Match* match, const TokenView& tokens, uint64_t first, uint64_t blocks,
                Visit&& visit) const;
  kvc_status CreateOne(const kvc_prompt& prompt, const PromptArrays& in, kvc_create_result* result,
                       Turn* turn, kvc_error* error);
  template <typename Visit>
  uint64_t ProbeOne(const PromptView& prompt, Visit&& visit, uint64_t* pending = nullptr) const;

  // grow.cpp
  struct GrowPlan;
  class UploadSlot;
  bool PlanPages(const Sequence& seq, GrowPlan* plan);
  kvc_status GrowOne(const kvc_grow_item& item, kvc_grow_result* result, EvictedList* told,
                     Turn* turn, kvc_error* error);
  kvc_status NotNow(kvc_grow_result* result, kvc_error* error);

  // commit.cpp
  kvc_status CommitOne(const kvc_commit_item& item, const TokenView& view,
                       kvc_commit_result* result, Turn* turn, kvc_error* error);
  kvc_status CommitItem(const kvc_commit_item& item, const CommitArrays& in,
                        kvc_commit_result* result, Turn* turn, kvc_error* error);

  // digests.cpp
  uint64_t Translate(const TokenView& from, uint64_t first, uint64_t count, uint32_t* to) const;
  kvc_status Intern(const TokenView& from, uint64_t count, kvc_error* error);
  void ForgetTailDigests(Sequence* seq);
  uint32_t Suppress(ParentId parent, const NodeId* nodes, uint32_t count);
  [[nodiscard]] bool AnyDigestBlock(const NodeId* nodes, uint32_t count) const;

  // partial.cpp
  struct PartialHit {
    NodeId node = kNil;
    uint32_t tokens = 0;  // from its first one on; 0: none
    bool takes = false;   // all it has, and its page itself: none can be had for a copy
    CopyPlan copy;
  };
  [[nodiscard]] PartialHit FindPartial(const Match& match, const PromptView& view, uint32_t slot);
  void TakePartial(Sequence* seq, const PartialHit& hit, uint32_t slot, FenceList* waits,
                   kvc_create_result* result);
  [[nodiscard]] bool KeepsTail(const Sequence& sequence, Closing how) const;
  void KeepTail(uint32_t index, FenceSetId fence);
  void Supersede(NodeId whole);
  void DropPartial(NodeId id);

  // pending.cpp
  [[nodiscard]] bool SameTokens(const TokenView& view, uint64_t first, uint64_t count,
                                const uint32_t* interned) const;
  [[nodiscard]] uint32_t FindPending(const Match& match, const TokenView& view, uint64_t limit,
                                     uint32_t* owner) const;
  void MarkPath(Sequence* seq);
  void CommitMarks(Sequence* seq);
  void EndMarks(Sequence* seq, uint32_t keep);
  void EndAllMarks();
  uint32_t TakeWaiters(uint32_t capacity, kvc_waiter* out);
  void WaitFor(uint32_t index, uint32_t owner, uint64_t from, uint32_t blocks);

  // release.cpp
  kvc_status ReleaseOne(uint64_t id, Closing how, Turn* turn, kvc_error* error);
  void CloseSequence(uint32_t index, Closing how, FenceSite site);
  kvc_status HoldOne(const kvc_hold_item& item, kvc_hold_result* result, Turn* turn,
                     kvc_error* error);
  kvc_status ReleaseHoldOne(uint64_t id, Turn* turn, kvc_error* error);

  // suspend.cpp
  [[nodiscard]] bool GateIsOpen() const;
  kvc_status GateClosed(kvc_error* error);
  void ReservePath(Sequence* seq, size_t tokens);
  void ForgetPath(Sequence* seq);
  kvc_status SuspendOne(const kvc_suspend_item& item, Turn* turn, kvc_error* error);
  void FallAsleep(Sequence* seq);
  void StripKept(Sequence* seq);
  kvc_status ResumeOne(uint64_t id, kvc_resume_result* result, Turn* turn, kvc_error* error);
  [[nodiscard]] uint32_t PlanStrip(uint32_t demand, uint32_t slot, PageId unshare = kNil);

  // truncate.cpp
  kvc_status TruncateOne(const kvc_truncate_item& item, kvc_truncate_result* result, Turn* turn,
                         kvc_error* error);
  kvc_status StopOne(const kvc_stop_item& item, Turn* turn, kvc_error* error);

  // sequences.cpp
  [[nodiscard]] Sequence* Find(uint64_t id);
  [[nodiscard]] uint64_t IdOf(uint32_t index) const {
    return uint64_t{sequences_[index].generation} << 32 | index;
  }
  void ReservePages(Sequence* seq, size_t count);
  uint32_t TellWaits(Sequence* seq, const FenceList& list, kvc_fence* waits);
  [[nodiscard]] bool Attached(const Sequence& sequence) const { return sequence.epoch == epoch_; }
  // Leading blocks of the sequence that are in the tree.
  [[nodiscard]] uint32_t Linked(const Sequence& sequence) const {
    return Attached(sequence) ? sequence.linked : 0;
  }
  // A partly filled last block, with its page.
  [[nodiscard]] bool HasTail(const Sequence& sequence) const {
    return sequence.committed % block_size_ != 0 && (!sequence.suspended || sequence.rest_kept);
  }
  // Whole blocks before a position.
  [[nodiscard]] uint32_t StopBlocks(uint64_t position) const {
    return static_cast<uint32_t>(std::min<uint64_t>(position / block_size_, kNil));
  }
  [[nodiscard]] FenceSetId RecordFence(uint32_t slot);
  // The fence, unless a test does without it here.
  [[nodiscard]] FenceSetId At(FenceSite site, FenceSetId fence) const {
    return hooks_.without == site ? 0 : fence;
  }
  uint64_t NewStreamId(uint32_t slot, bool steps);
  [[nodiscard]] uint32_t* Tail(uint32_t index) {
    return reinterpret_cast<uint32_t*>(tails_.data()) + size_t{index} * block_size_;
  }

  // victims.cpp
  [[nodiscard]] uint32_t PlanVictims(uint32_t demand, uint32_t slot, bool any = false);
  [[nodiscard]] kvc_evicted_reason ReasonOf(PageId id) const {
    const Page& page = pages_[id];
    if (page.own == kEndedClass) return KVC_EVICTED_ENDED;
    return page.expired() ? KVC_EVICTED_TTL : KVC_EVICTED_CAPACITY;
  }
  void Describe(NodeId id, kvc_evicted_reason reason, kvc_evicted_block* out) const;

  // retention.cpp
  kvc_status RetainOne(const kvc_retain_item& item, Turn* turn, kvc_error* error);
  void SetPriority(NodeId id, uint8_t own, uint64_t expires_ns);
  void RaiseAbove(NodeId id);
  void ReserveRule(Sequence* seq);
  void FollowRules(const Sequence& sequence, uint64_t first, uint64_t end);
  void EndTail(const Sequence& sequence);
  // A held block was used again, or has entered the tree.
  void UseBlock(PageId id) { pages_[id].score = scores_->Used(pages_[id].score); }
  void EnterBlock(PageId id) {
    pages_[id].score = scores_->Entered(tree_.node(pages_[id].node).hash);
  }
  void LevelScores(const Sequence& sequence, uint64_t first, uint64_t end);
  void CountRequest() {
    ++counters_.created_sequences;
    pages_.SetRequest(counters_.created_sequences);
    if (scores_ == nullptr) return;
    scores_->SetTime(counters_.created_sequences);
    pages_.SetScoreNow(scores_->now());
  }
  // One more holder of a block.
  void HoldBlock(PageId id) {
    if (pages_.Hold(id)) RaiseAbove(pages_[id].node);
  }
  // Of a path, first block first; adds the fences to wait for on `slot`.
  void HoldPath(const std::vector<PageId>& path, bool used, uint32_t slot, FenceList* waits);

  // fork.cpp
  kvc_status ForkOne(const kvc_fork_item& item, kvc_fork_result* result, Turn* turn,
                     kvc_error* error);
  // The partly filled last block of an active sequence has a page that others hold:
  // forks. So nobody may write it; blocks of the tree, which many hold, are full.
  [[nodiscard]] bool SharesTail(const Sequence& sequence) const {
    if (sequence.committed % block_size_ == 0) return false;
    return pages_[sequence.pages[sequence.committed / block_size_]].holders > 1;
  }
  void TakeCopy(Sequence* seq, const CopyPlan& plan, PageId page, kvc_grow_result* result);
  [[nodiscard]] uint32_t Keepers(PageId page) const;
  [[nodiscard]] bool Queues(uint32_t slot) const {
    return slot != 0 && !device_.IsStepStream(slot);
  }
  // A sequence more, or less, runs on the slot.
  void EnterStream(uint32_t slot);
  void LeaveStream(uint32_t slot);
  // Whether fences can be recorded on the slot, and work queued: not while its stream is
  // being captured. Before anything changes.
  [[nodiscard]] bool TakesWork(uint32_t slot) const { return !captured_.Has(slot); }

  // page_copy.cpp
  kvc_status PlanCopy(uint32_t slot, PageId from, CopyPlan* plan, kvc_error* error);
  void MakeCopy(const CopyPlan& plan, uint32_t slot, const PageCopy& copy, FenceList* waits);
  void NoteOwnStream(uint32_t slot);

  // block_table.cpp
  kvc_status TableOf(uint64_t sequence, uint32_t group, const Sequence** out,
                     kvc_error* error) const;
  kvc_status TableLength(const kvc_table_item& item, const Sequence** out, kvc_table_result* result,
                         kvc_error* error) const;
  kvc_status TableDelta(const TableFormat& f, uint64_t id, const Sequence* seq, uint32_t row,
                        uint32_t columns, kvc_table_cookie* cookie, uint32_t room,
                        kvc_table_delta* out, uint32_t* entries, kvc_error* error) const;

  // resize.cpp
  struct ResizeCall;
  // A page that one suspended sequence keeps, and nobody else holds.
  struct KeptPage {
    PageId page;
    uint32_t sequence;
    uint32_t index;  // in its list
  };
  struct KeptScan {
    uint32_t sequence = 0;
    uint32_t index = 0;  // in its list
  };
  [[nodiscard]] KeptScan FindKept();
  void AskForPages(uint32_t pages);
  void TakeIn();
  void Settle();
  void Retarget(uint32_t target);
  kvc_status MoveOne(PageId from, const KeptPage* kept, ResizeCall* call, kvc_error* error);
  void PlanEvictions(uint32_t most);
  PageId EvictPlanned(NodeId id, ResizeCall* call);
  kvc_status ClearDoomed(ResizeCall* call, kvc_error* error);
  void TellResize(kvc_resize_result* out) const;
  kvc_status GrowthFailed(kvc_resize_result* out, kvc_error* error);

  // pins.cpp
  kvc_status Pin(kvc_pin_result* result, kvc_error* error);
  kvc_status PinOne(uint64_t sequence, kvc_pin_result* result, Turn* turn, kvc_error* error);
  kvc_status UnpinOne(uint64_t pin, Turn* turn, kvc_error* error);

  // step.cpp
  struct StepCall;
  void FetchAhead(const kvc_op& op) const;
  kvc_status WaitRoom(uint32_t own_slot, const StepCall& call, kvc_op_result* result,
                      kvc_error* error, uint32_t more = 0) const;
  void StepWaits(uint64_t sequence, StepCall* call, kvc_op_result* result);
  kvc_status StepCreate(const kvc_prompt& prompt, StepCall* call, kvc_op_result* result,
                        kvc_error* error);
  kvc_status StepGrow(const kvc_grow_item& item, StepCall* call, kvc_op_result* result,
                      kvc_error* error);
  kvc_status StepCommit(const kvc_commit_item& item, StepCall* call, kvc_op_result* result,
                        kvc_error* error);
  kvc_status StepFork(const kvc_fork_item& item, StepCall* call, kvc_op_result* result,
                      kvc_error* error);
  kvc_status StepResume(uint64_t sequence, StepCall* call, kvc_op_result* result, kvc_error* error);
  kvc_status StepTable(const kvc_op_table& item, StepCall* call, kvc_op_result* result,
                       kvc_error* error);
  kvc_status StepOne(uint32_t index, StepCall* call, kvc_op_result* result, kvc_error* error);

  // drop_scope.cpp
  kvc_status DropOne(const kvc_drop_item& item, const PromptArrays& in, kvc_drop_result* result,
                     EvictedList* told, kvc_error* error);

  // check.cpp
  [[nodiscard]] const char* CheckPages(uint32_t* where);
  [[nodiscard]] const char* CheckOrder(uint32_t* where);
  [[nodiscard]] const char* CheckNodes(uint32_t* where);
  [[nodiscard]] bool SharesRoom(const Sequence& seq, uint64_t before) const;
  [[nodiscard]] const char* CheckSequences(uint32_t* where);
  [[nodiscard]] const char* CheckDigests(uint32_t* where);
  [[nodiscard]] const char* CheckPending(uint32_t* where);

  uint64_t created_ns_;  // first, so that the arenas below are timed
  const ManagerTestHooks hooks_;
  const uint32_t block_size_;
  const uint32_t max_sequences_;
  const uint32_t resume_gate_permille_;
  const bool partial_reuse_;
  MixedHash hash_;
  const uint64_t page_bytes_;
  const std::unique_ptr<HostDevice> host_;  // or null
  const std::unique_ptr<Device> other_;     // then this one
  Device& device_;                          // that of the two which is
  FencePool fences_;
  PagePool pages_;
  PrefixTree tree_;
  TimerWheel timers_;
  PinTable pins_;
  PendingTable pending_;
  std::unique_ptr<RecencyFrequency> scores_;  // none: plain recency
  DigestTable digests_;

  mutable WriterFirstMutex mutex_;
  std::shared_ptr<EventSink> sink_;  // kept until the end; not called once detached
  bool sink_attached_ = false;
  DeferralCounters* deferral_ = nullptr;  // the sink's
  NodeId deferred_head_ = kNil;
  NodeId deferred_tail_ = kNil;
  uint64_t deferred_count_ = 0;
  // When a block was deferred; by id, and only with a sink.
  std::vector<uint64_t> deferred_at_;
  bool suppress_multimodal_ = false;
  bool page_layout_ = false;  // the device knows where tokens lie

  std::vector<Sequence> sequences_;
  uint32_t free_sequence_ = kNil;
  uint32_t open_sequences_ = 0;
  uint32_t active_sequences_ = 0;
  uint32_t holds_ = 0;       // released sequences whose pages are held for a transfer
  uint64_t held_pages_ = 0;  // in those
  uint64_t suspensions_ = 0;
  uint64_t kept_pages_ = 0;         // in the lists of suspended sequences
  std::vector<uint32_t> strip_;     // plan of taking those; never grows
  Slab tails_;                      // partly filled last blocks' tokens
  std::vector<uint32_t> interned_;  // a commit's tokens, when some are digests
  std::vector<NodeId> victims_;     // plan of an eviction; never grows
  uint32_t doomed_cached_ = 0;      // in doomed pages, of those that the last such plan saw
  std::vector<NodeId> removals_;    // announced blocks that go with this step
  std::vector<uint8_t> reasons_;    // and why each of them does
  uint64_t epoch_ = 1;              // grows with each reset
  uint64_t changes_ = 0;            // grows whenever pages may have become available
  size_t sequence_bytes_ = 0;       // of the sequences' lists
  // The last "not now": while nothing has changed it is still the answer, and a
  // scheduler that asks again and again does not pay for a walk each time.
  struct Refusal {
    uint64_t changes = UINT64_MAX;
    uint64_t progress = 0;
    uint32_t slot = 0;
    uint32_t demand = 0;
    uint32_t leaving = 0;
  };
  Refusal refused_;
  // An elastic pool on its way to its limit, pages_.limit().
  bool resizing_ = false;
  bool growth_failed_ = false;  // and nobody has been told
  bool settled_ = true;         // the device has done what it was asked last:
  uint64_t asked_ = 0;
  uint32_t asked_pages_;
  uint32_t resize_scan_ = kNil;  // doomed pages below this have not been looked at
  KeptScan kept_scan_;           // and of what is kept, that before this has been
  std::vector<KeptPage> kept_;   // of one call that shrinks: those in doomed pages, last first
  const uint32_t min_pages_;
  uint64_t next_stream_generation_ = 1;
  uint32_t top_slot_ = 0;  // the highest that has had a device stream
  DeviceStreamSlot streams_[kDeviceSlots];
  // A bit per slot; both are read without the lock.
  std::atomic<uint64_t> queues_{0};  // streams of sequences, but for steps
  CaptureMarks captured_;

  kvc_stats counters_{};  // the counting fields only
  uint64_t prefault_ns_ = 0;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_MANAGER_H_
