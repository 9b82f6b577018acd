// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/manager.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "native/src/device_registry.h"
#include "native/src/handles.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

namespace manager {

constexpr uint64_t kSlotBits = 6;
constexpr uint64_t kSlotMask = (uint64_t{1} << kSlotBits) - 1;
static_assert((uint32_t{1} << kSlotBits) == kDeviceSlots, "a stream id holds its slot");

// How many blocks a heal offers between two looks at the clock.
constexpr uint32_t kHealStep = 16;
constexpr uint32_t kHealRun = 256;

const kvc_config& Validated(const kvc_config& c) {
  auto bad = [](const char* key, uint64_t value, const char* rule) {
    throw Error(KVC_INVALID_ARGUMENT,
                std::string(key) + " is " + std::to_string(value) + ", must be " + rule);
  };
  if (c.tokens_per_block == 0 || c.tokens_per_block > kMaxTokensPerBlock) {
    bad("tokens_per_block", c.tokens_per_block, "1 to 4096");
  }
  if (c.capacity_blocks == 0 || c.capacity_blocks > kMaxPages) {
    bad("capacity_blocks", c.capacity_blocks, "1 to 2^27");
  }
  if (c.max_sequences == 0 || c.max_sequences > kMaxSequences) {
    bad("max_sequences", c.max_sequences, "1 to 2^20");
  }
  if (c.device >= kDeviceKinds) {
    bad("device", c.device, "KVC_DEVICE_HOST (0) or KVC_DEVICE_CUDA (1)");
  }
  if (c.device == KVC_DEVICE_HOST && c.device_ordinal != 0) {
    bad("device_ordinal", c.device_ordinal, "0 for the host device");
  }
  if (c.max_digests > DigestTable::kMaxDigests) {
    bad("max_digests", c.max_digests, "0 to 2^24");
  }
  if (c.policy != KVC_POLICY_LRU && c.policy != KVC_POLICY_LRFU) {
    bad("policy", c.policy, "KVC_POLICY_LRU (0) or KVC_POLICY_LRFU (1)");
  }
  if (c.copies > KVC_COPY_KERNEL) {
    bad("copies", c.copies, "KVC_COPY_CALIBRATED (0) to KVC_COPY_KERNEL (3)");
  }
  if (c.lrfu_ghosts > 8 * uint64_t{kMaxPages}) bad("lrfu_ghosts", c.lrfu_ghosts, "0 to 2^30");
  if (c.lrfu_tau == 0) bad("lrfu_tau", c.lrfu_tau, "at least 1");
  if (c.max_pinned_pages > kMaxPages) bad("max_pinned_pages", c.max_pinned_pages, "0 to 2^27");
  if (c.max_pending_blocks > kMaxPages) {
    bad("max_pending_blocks", c.max_pending_blocks, "0 to 2^27");
  }
  if (c.resume_gate_permille == 0 || c.resume_gate_permille > 1000) {
    bad("resume_gate_permille", c.resume_gate_permille, "1 to 1000");
  }
  if (c.max_blocks != 0 && (c.max_blocks < c.capacity_blocks || c.max_blocks > kMaxPages)) {
    bad("max_blocks", c.max_blocks, "0, or capacity_blocks to 2^27");
  }
  if (c.min_blocks > (c.max_blocks != 0 ? c.capacity_blocks : 0)) {
    bad("min_blocks", c.min_blocks, "0 to capacity_blocks, and 0 without max_blocks");
  }
  const uint32_t flags =
      c.device == KVC_DEVICE_CUDA ? KVC_CONFIG_CALLERS_CONTEXT : KVC_CONFIG_POISON;
  if (c.partial_reuse > 1) bad("partial_reuse", c.partial_reuse, "0 or 1");
  if ((c.flags & ~flags) != 0) {
    bad("flags", c.flags,
        "KVC_CONFIG_POISON (host device), KVC_CONFIG_CALLERS_CONTEXT (CUDA) or 0");
  }
  return c;
}

std::unique_ptr<HostDevice> MakeHost(const kvc_config& c, uint64_t seed) {
  if (c.device != KVC_DEVICE_HOST) return nullptr;
  return std::make_unique<HostDevice>(c.capacity_blocks, c.max_blocks, c.page_bytes, seed,
                                      (c.flags & KVC_CONFIG_POISON) != 0);
}

// That the arenas are for.
uint32_t MostPages(const kvc_config& c) {
  return c.max_blocks != 0 ? c.max_blocks : c.capacity_blocks;
}

// By default as many as blocks and tails can hold: a host that sets no limit
// meets none below the greatest one.
uint32_t MaxDigests(const kvc_config& c) {
  if (c.max_digests != 0) return c.max_digests;
  const uint64_t most = (uint64_t{MostPages(c)} + c.max_sequences) * c.tokens_per_block;
  return static_cast<uint32_t>(std::min<uint64_t>(most, DigestTable::kMaxDigests));
}

// The point of the hash must be unknown to whoever chooses tokens.
uint64_t Seed(uint64_t given) {
  if (given != 0) return given;
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace manager

Manager::Manager(const kvc_config& config, std::shared_ptr<EventSink> sink,
                 const ManagerTestHooks& hooks)
    : created_ns_(SteadyNs()),
      hooks_(hooks),
      block_size_(manager::Validated(config).tokens_per_block),
      max_sequences_(config.max_sequences),
      resume_gate_permille_(config.resume_gate_permille),
      partial_reuse_(config.partial_reuse != 0),
      hash_(manager::Seed(config.seed), config.tokens_per_block, hooks.hash_bits),
      page_bytes_(config.page_bytes),
      host_(manager::MakeHost(config, manager::Seed(config.seed))),
      other_(host_ == nullptr ? MakeRegisteredDevice(config) : nullptr),
      device_(host_ != nullptr ? *host_ : *other_),
      fences_(device_),
      pages_(config.capacity_blocks, config.max_blocks, config.policy == KVC_POLICY_LRFU, device_,
             fences_),
      tree_(manager::MostPages(config), config.tokens_per_block, hash_, config.partial_reuse != 0),
      timers_(tree_),
      pins_(config.max_pinned_pages != 0 ? config.max_pinned_pages
                                         : std::max(1u, config.capacity_blocks / 4)),
      pending_(
          config.max_pending_blocks != 0 ? config.max_pending_blocks : manager::MostPages(config),
          config.max_sequences, hash_),
      scores_(config.policy == KVC_POLICY_LRFU
                  ? std::make_unique<RecencyFrequency>(
                        config.lrfu_tau,
                        config.lrfu_ghosts != 0 ? config.lrfu_ghosts : manager::MostPages(config))
                  : nullptr),
      digests_(manager::Seed(config.seed), manager::MaxDigests(config), hooks.hash_bits),
      sink_(std::move(sink)),
      asked_pages_(config.capacity_blocks),
      min_pages_(config.min_blocks != 0 ? config.min_blocks : config.capacity_blocks) {
  sequences_.resize(max_sequences_);
  for (uint32_t i = max_sequences_; i-- > 0;) {
    sequences_[i].next_free = free_sequence_;
    free_sequence_ = i;
  }
  tails_ = Slab(size_t{max_sequences_} * block_size_ * sizeof(uint32_t),
                "the tails of sequences (max_sequences x tokens_per_block)");
  strip_.reserve(max_sequences_);
  victims_.reserve(pages_.most());
  removals_.reserve(pages_.most());
  reasons_.reserve(pages_.most());
  if (sink_ != nullptr) {
    SinkGeometry geometry;
    geometry.tokens_per_block = block_size_;
    geometry.max_blocks = pages_.most();
    geometry.tokens_base = tree_.tokens_base();
    geometry.node_stride = tree_.stride();
    geometry.digests = &digests_;
    sink_->Attach(geometry, this);
    sink_attached_ = true;
    deferral_ = &sink_->deferral_counters();
    deferred_at_.resize(pages_.most());
    suppress_multimodal_ = sink_->suppresses_multimodal();
  }
  prefault_ns_ = SteadyNs() - created_ns_;
  ++live_handles().managers;
}

Manager::~Manager() {
  live_handles().sequences -= open_sequences_;  // only tests leave any
  --live_handles().managers;
}

// ------------------------------------------------------------------- healing

void Manager::AppendDeferred(NodeId id, uint64_t now) {
  Node& n = tree_.node(id);
  n.announce = Announce::kDeferred;
  n.deferred_prev = deferred_tail_;
  n.deferred_next = kNil;
  (deferred_tail_ != kNil ? tree_.node(deferred_tail_).deferred_next : deferred_head_) = id;
  deferred_tail_ = id;
  ++deferred_count_;
  deferred_at_[id] = now;
  if (deferred_head_ == id) NoteOldestDeferred();
}

void Manager::NoteOldestDeferred() {
  const uint64_t at = deferred_head_ == kNil ? 0 : deferred_at_[deferred_head_];
  deferral_->oldest_deferred_ns.store(at, std::memory_order_relaxed);
}

void Manager::UnlinkDeferred(NodeId id) {
  const Node& n = tree_.node(id);
  const bool oldest = deferred_head_ == id;
  (n.deferred_prev != kNil ? tree_.node(n.deferred_prev).deferred_next : deferred_head_) =
      n.deferred_next;
  (n.deferred_next != kNil ? tree_.node(n.deferred_next).deferred_prev : deferred_tail_) =
      n.deferred_prev;
  --deferred_count_;
  if (oldest) NoteOldestDeferred();
}

// Blocks are deferred in commit order, so a parent always stands before its
// children and the head of the list can always be announced if there is room.
uint32_t Manager::Heal(uint32_t max_blocks) {
  if (!sink_attached_) return 0;
  uint32_t healed = 0;
  NodeId run[manager::kHealRun];
  while (healed < max_blocks && deferred_head_ != kNil) {
    const ParentId parent = tree_.node(deferred_head_).parent;
    uint32_t count = 0;
    for (NodeId id = deferred_head_;
         id != kNil && count < manager::kHealRun && count < max_blocks - healed;
         id = tree_.node(id).deferred_next) {
      if (count != 0 && tree_.node(id).parent != run[count - 1]) break;
      run[count++] = id;
    }
    StoreRun store;
    if (IsRoot(parent)) {
      store.scope = &tree_.root(ToRoot(parent)).scope;
    } else {
      store.parent = parent;
    }
    store.nodes = run;
    store.count = count;
    store.digests = AnyDigestBlock(run, count);
    const uint32_t admitted = sink_->Store(store, /*healing=*/true);
    for (uint32_t i = 0; i < admitted; ++i) {
      UnlinkDeferred(run[i]);
      tree_.node(run[i]).announce = Announce::kAnnounced;
    }
    Bump(deferral_->healed_blocks, admitted);
    Drop(deferral_->pending_blocks, admitted);
    healed += admitted;
    if (admitted < count) break;
  }
  return healed;
}

uint32_t Manager::TryHeal(uint32_t max_blocks, uint64_t max_ns) noexcept {
  std::unique_lock<WriterFirstMutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return 0;
  const uint64_t begin = SteadyNs();
  uint32_t healed = 0;
  while (healed < max_blocks) {
    const uint32_t step = std::min(manager::kHealStep, max_blocks - healed);
    const uint32_t done = Heal(step);
    healed += done;
    if (done < step || SteadyNs() - begin >= max_ns) break;
  }
  return healed;
}

void Manager::DetachSink() noexcept {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  if (!sink_attached_) return;
  for (NodeId id = 0; id < tree_.high_water(); ++id) {
    if (tree_.alive(id) && !tree_.node(id).partial()) tree_.node(id).announce = Announce::kNone;
  }
  Bump(deferral_->deferred_evicted_blocks, deferred_count_);
  Drop(deferral_->pending_blocks, deferred_count_);
  deferred_head_ = deferred_tail_ = kNil;
  deferred_count_ = 0;
  NoteOldestDeferred();
  deferral_->suppressed_blocks.store(0, std::memory_order_relaxed);
  sink_attached_ = false;
  deferral_ = nullptr;
  sink_.reset();
}

// The stream may be destroyed at the same moment: whoever comes second finds
// nothing left to do, and the copy keeps the sink alive meanwhile. Not under
// the lock: a heal holds the stream's host mutex while it takes ours.
void Manager::SealSink() noexcept {
  std::shared_ptr<EventSink> sink;
  {
    std::unique_lock<WriterFirstMutex> lock(mutex_);
    if (sink_attached_) sink = sink_;
  }
  if (sink != nullptr) sink->Seal();
}

void Manager::Announce(ParentId parent, const NodeId* nodes, uint32_t count) {
  if (!sink_attached_ || count == 0) return;
  StoreRun run;
  if (digests_.live() != 0) {
    if (suppress_multimodal_) count = Suppress(parent, nodes, count);
    if (count == 0) return;
    run.digests = AnyDigestBlock(nodes, count);
  }
  bool reachable = true;
  if (IsRoot(parent)) {
    run.scope = &tree_.root(ToRoot(parent)).scope;
  } else {
    run.parent = parent;
    reachable = tree_.node(parent).announce == Announce::kAnnounced;
  }
  run.nodes = nodes;
  run.count = count;
  const uint32_t admitted = reachable ? sink_->Store(run, /*healing=*/false) : 0;
  for (uint32_t i = 0; i < admitted; ++i) tree_.node(nodes[i]).announce = Announce::kAnnounced;
  if (admitted == count) return;
  const uint64_t now = SteadyNs();
  for (uint32_t i = admitted; i < count; ++i) AppendDeferred(nodes[i], now);
  const uint32_t deferred = count - admitted;
  Bump(deferral_->dropped_events, deferred);
  Bump(deferral_->deferred_blocks, deferred);
  Bump(deferral_->pending_blocks, deferred);
}

// The node leaves the tree; its page is the caller's business.
void Manager::ForgetNode(NodeId id, kvc_evicted_reason reason) {
  const Node& n = tree_.node(id);
  switch (n.announce) {
    case Announce::kAnnounced:
      removals_.push_back(id);
      reasons_.push_back(static_cast<uint8_t>(reason));
      break;
    case Announce::kDeferred:
      UnlinkDeferred(id);
      Drop(deferral_->pending_blocks);
      Bump(deferral_->deferred_evicted_blocks);
      Bump(deferral_->unannounced_removals);
      break;
    case Announce::kSuppressed:
      Drop(deferral_->suppressed_blocks);
      Bump(deferral_->unannounced_removals);
      break;
    case Announce::kNone:
    case Announce::kPartial:
      break;
  }
  if (n.digests) digests_.ReleaseAll(tree_.tokens(id), tree_.count(id));
  timers_.Cancel(id);
  const ParentId parent = tree_.node(id).parent;
  tree_.Erase(id);
  if (IsRoot(parent)) return;
  const Node& above = tree_.node(parent);
  if (above.children == 0) pages_.ListUnderOwn(above.page);
}

// Before any id of the removed nodes can be taken again.
void Manager::FlushRemovals() {
  if (removals_.empty()) return;
  if (sink_attached_) {
    sink_->Remove(removals_.data(), reasons_.data(), static_cast<uint32_t>(removals_.size()));
  }
  removals_.clear();
  reasons_.clear();
}

// --------------------------------------------------------------- whole cache

void Manager::Reset() {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  pages_.GiveUpCached(kept_pages_);
  // From here on nothing throws.
  EndAllMarks();
  // What suspended sequences kept is of the old
  // weights too; they go on in the new tree, where their blocks are not.
  for (uint32_t i = 0; kept_pages_ != 0 && i < max_sequences_; ++i) {
    Sequence& seq = sequences_[i];
    if (seq.open && seq.suspended && Attached(seq)) StripKept(&seq);
  }
  counters_.reset_blocks += tree_.size();
  ++counters_.resets;
  ++changes_;
  for (NodeId id = 0; id < tree_.high_water(); ++id) {
    // Pages that were given up have been cut from their nodes already, the
    // others stay with the sequences that hold them.
    if (!tree_.alive(id)) continue;
    const Node& n = tree_.node(id);
    pages_[n.page].node = kNil;
    if (n.digests) digests_.ReleaseAll(tree_.tokens(id), tree_.count(id));
  }
  if (sink_attached_) {
    sink_->Clear();
    Bump(deferral_->deferred_evicted_blocks, deferred_count_);
    const uint64_t suppressed = deferral_->suppressed_blocks.load(std::memory_order_relaxed);
    Bump(deferral_->unannounced_removals, deferred_count_ + suppressed);
    Drop(deferral_->suppressed_blocks, suppressed);
    Drop(deferral_->pending_blocks, deferred_count_);
  }
  deferred_head_ = deferred_tail_ = kNil;
  deferred_count_ = 0;
  if (sink_attached_) NoteOldestDeferred();
  tree_.Clear();
  timers_.Clear();
  ++epoch_;
  for (uint32_t i = 0; active_sequences_ + holds_ != open_sequences_ && i < max_sequences_; ++i) {
    Sequence& seq = sequences_[i];
    if (seq.open && seq.suspended && seq.epoch + 1 == epoch_) seq.epoch = epoch_;
  }
}

void Manager::Stats(kvc_stats* out) {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  pages_.Poll();
  pages_.PollShared();
  Settle();
  const uint32_t struct_size = out->struct_size;
  *out = counters_;
  out->struct_size = struct_size;
  out->total_pages = pages_.total();
  out->live_pages = pages_.live();
  out->pinned_pages = pins_.pages();
  out->pins = pins_.pins();
  out->peak_quarantined_pages = pages_.peak_quarantined();
  out->cached_pages = pages_.cached();
  out->free_pages = pages_.free();
  out->quarantined_pages = pages_.quarantined();
  out->leaving_pages = pages_.leaving();
  out->target_pages = pages_.limit();
  out->doomed_pages = pages_.CountDoomed();
  out->mapped_bytes = page_bytes_ != 0 ? device_.mapped_bytes() : 0;
  out->unreturned_bytes = page_bytes_ != 0 ? device_.unreturned_bytes() : 0;
  out->blocks = tree_.size();
  out->roots = tree_.root_count();
  out->partial_blocks = tree_.partials();
  out->sequences = open_sequences_ - holds_;
  out->metadata_bytes =
      pages_.bytes() + tree_.bytes() + timers_.bytes() + pins_.bytes() + digests_.bytes() +
      pending_.bytes() + (scores_ != nullptr ? scores_->bytes() : 0) + fences_.bytes() +
      tails_.size() + sequences_.capacity() * sizeof(Sequence) + sequence_bytes_ +
      (victims_.capacity() + interned_.capacity() + removals_.capacity() + strip_.capacity()) *
          sizeof(uint32_t) +
      kept_.capacity() * sizeof(KeptPage) + reasons_.capacity();
  out->prefault_ns = prefault_ns_;
  out->suspended_sequences = open_sequences_ - holds_ - active_sequences_;
  out->kept_pages = kept_pages_;
  out->holds = holds_;
  out->held_pages = held_pages_;
  out->digests = digests_.live();
  out->pending_blocks = pending_.size();
  out->waiting_sequences = pending_.waiting();
}

void Manager::Histograms(kvc_histograms* out) {
  std::shared_lock<WriterFirstMutex> lock(mutex_);
  const PagePool::Ages& ages = pages_.ages();
  const auto tell = [](const uint64_t* counts, uint64_t* slots) {
    std::copy_n(counts, KVC_HISTOGRAM_SLOTS, slots);
    slots[KVC_HISTOGRAM_SLOTS - 1] += counts[KVC_HISTOGRAM_SLOTS];
  };
  tell(ages.idle_at_reuse, out->idle_at_reuse);
  tell(ages.idle_at_eviction, out->idle_at_eviction);
  tell(ages.reuses_at_eviction, out->reuses_at_eviction);
}

uint32_t Manager::open_sequences() const {
  std::shared_lock<WriterFirstMutex> lock(mutex_);
  return open_sequences_;
}

// -------------------------------------------------------------------- device

uint32_t Manager::SlotOf(uint64_t device_stream) const {
  if (device_stream == 0) return 0;
  const auto slot = static_cast<uint32_t>(device_stream & manager::kSlotMask);
  if (!streams_[slot].open || streams_[slot].id != device_stream) {
    throw Error(KVC_STALE_HANDLE, "device stream " + std::to_string(device_stream) +
                                      " is not open; create it with kvc_device_stream_create");
  }
  return slot;
}

// What is queued on a stream of steps would count as a step.
uint32_t Manager::QueueOf(uint64_t device_stream) const {
  const uint32_t slot = SlotOf(device_stream);
  if (streams_[slot].steps) {
    throw Error(KVC_INVALID_ARGUMENT, "nothing can be queued on a stream of steps");
  }
  return slot;
}

Fence Manager::ToFence(const kvc_fence& fence) const {
  if (fence.device_stream == 0) return {};
  const auto slot = static_cast<uint32_t>(fence.device_stream & manager::kSlotMask);
  const bool current = fence.device_stream == streams_[slot].id;
  const uint64_t base = current ? streams_[slot].base : 0;
  if (fence.device_stream > streams_[slot].id || fence.position > device_.Submitted(slot) - base) {
    throw Error(KVC_INVALID_ARGUMENT, "fence (" + std::to_string(fence.device_stream) + ", " +
                                          std::to_string(fence.position) +
                                          ") was never handed out");
  }
  // A slot has a new stream only after all work of the one before it.
  if (!current || fence.position == 0) return {};
  return {slot, base + fence.position};
}

kvc_fence Manager::FromFence(const Fence& fence) const {
  const DeviceStreamSlot& stream = streams_[fence.slot];
  // A fence of the stream that had the slot before has been reached: 0 says so.
  return {stream.id, fence.position > stream.base ? fence.position - stream.base : 0};
}

void Manager::LookForCaptures(uint64_t named) noexcept {
  const uint64_t asked = queues_.load(std::memory_order_relaxed) | (named & ~uint64_t{1});
  if (asked == 0) return;
  const uint64_t begin = captured_.Begin();
  captured_.End(begin, asked, device_.Capturing(asked));
}

void Manager::EnterStream(uint32_t slot) {
  if (slot == 0) return;
  ++streams_[slot].sequences;
  if (!streams_[slot].steps) queues_.fetch_or(uint64_t{1} << slot, std::memory_order_relaxed);
}

void Manager::LeaveStream(uint32_t slot) {
  if (slot == 0 || --streams_[slot].sequences != 0) return;
  queues_.fetch_and(~(uint64_t{1} << slot), std::memory_order_relaxed);
}

uint64_t Manager::NewStreamId(uint32_t slot, bool steps) {
  if (slot == 0) {
    throw Error(KVC_NOT_NOW, "all 63 device streams are open or still have work; destroy one");
  }
  DeviceStreamSlot& stream = streams_[slot];
  stream.id = ++next_stream_generation_ << manager::kSlotBits | slot;
  stream.open = true;
  captured_.Clear(slot);
  top_slot_ = std::max(top_slot_, slot);
  stream.steps = steps;
  // Positions of a slot grow from user to user, steps begin at 1 each time.
  stream.base = steps ? device_.Submitted(slot) : 0;
  return stream.id;
}

uint64_t Manager::OpenDeviceStream() { return AddDeviceStream(device_.OpenStream()); }

uint64_t Manager::AddDeviceStream(uint32_t slot) {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  return NewStreamId(slot, false);
}

uint32_t Manager::DeviceSlot(uint64_t device_stream) const {
  std::shared_lock<WriterFirstMutex> lock(mutex_);
  return SlotOf(device_stream);
}

kvc_device_memory Manager::Memory() const {
  const DeviceMemory memory = device_.memory();
  if (page_bytes_ == 0) return {};
  return {memory.base, memory.bytes, page_bytes_};
}

HostDevice& Manager::Host() const {
  if (host_ == nullptr) {
    throw Error(KVC_INVALID_ARGUMENT, "the call is for the host device; the manager has another");
  }
  return *host_;
}

uint64_t Manager::OpenStepStream() {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  return NewStreamId(device_.OpenStepStream(), true);
}

void Manager::BeginStep(uint64_t device_stream, uint64_t step) {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  const uint32_t slot = SlotOf(device_stream);
  if (slot != 0 && !streams_[slot].steps) {
    throw Error(KVC_INVALID_ARGUMENT, "the device stream is not one of steps");
  }
  if (step == 0 || step > INT64_MAX) {
    throw Error(KVC_INVALID_ARGUMENT, "steps are numbered from 1 to 2^63 - 1");
  }
  if (slot != 0 && step < device_.Submitted(slot) - streams_[slot].base) {
    throw Error(KVC_INVALID_ARGUMENT, "a later step has begun already");
  }
  const auto meant = [&](uint32_t s) {
    return streams_[s].open && streams_[s].steps && (slot == 0 || s == slot);
  };
  for (uint32_t s = 1; s < kDeviceSlots; ++s) {
    if (meant(s) && step > UINT64_MAX - streams_[s].base) {
      throw Error(KVC_INVALID_ARGUMENT,
                  "the step is too large: streams in its place before had such steps already");
    }
  }
  for (uint32_t s = 1; s < kDeviceSlots; ++s) {
    if (meant(s)) device_.BeginStep(s, streams_[s].base + step);
  }
}

void Manager::EndStep(uint64_t device_stream, uint64_t step) {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  const uint32_t slot = SlotOf(device_stream);
  if (slot != 0 && !streams_[slot].steps) {
    throw Error(KVC_INVALID_ARGUMENT, "the device stream is not one of steps");
  }
  if (slot != 0 && step > device_.Submitted(slot) - streams_[slot].base) {
    throw Error(KVC_INVALID_ARGUMENT, "the step has not begun");
  }
  for (uint32_t s = 1; s < kDeviceSlots; ++s) {
    if (streams_[s].open && streams_[s].steps && (slot == 0 || s == slot)) {
      const uint64_t begun = device_.Submitted(s) - streams_[s].base;
      device_.EndStep(s, streams_[s].base + std::min(step, begun));
    }
  }
}

void Manager::CloseDeviceStream(uint64_t device_stream) {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  const uint32_t slot = SlotOf(device_stream);
  if (slot == 0) throw Error(KVC_INVALID_ARGUMENT, "device stream 0 is the host itself");
  if (streams_[slot].sequences != 0) {
    throw Error(KVC_BUSY, "sequences run on the device stream; release them first");
  }
  if (streams_[slot].steps && device_.Record(slot) != 0) {
    throw Error(KVC_BUSY, "a step of the stream is not done yet; end it with kvc_step_done");
  }
  streams_[slot].open = false;
  device_.CloseStream(slot);
}

void Manager::QueryFences(uint32_t count, const kvc_fence* fences, uint8_t* done) {
  std::shared_lock<WriterFirstMutex> lock(mutex_);
  for (uint32_t i = 0; i < count; ++i) (void)ToFence(fences[i]);  // all or nothing
  for (uint32_t i = 0; i < count; ++i) {
    const Fence fence = ToFence(fences[i]);
    done[i] = device_.Reached(fence.slot, fence.position) ? 1 : 0;
  }
}

void Manager::StreamWait(uint64_t device_stream, uint32_t count, const kvc_fence* fences) {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  const uint32_t slot = SlotOf(device_stream);
  if (!TakesWork(slot)) throw Error(KVC_BAD_STATE, sequences::kCaptured);
  // All or none: what a stream is to wait for is told once.
  for (uint32_t i = 0; i < count; ++i) {
    const Fence fence = ToFence(fences[i]);
    if (Queues(slot) && fence.slot != slot && device_.Withheld(fence)) {
      throw Error(KVC_NOT_NOW,
                  "a fence stands for work that the device does not have yet, as it waits for a "
                  "step or for the end of a capture, or was refused by the driver: retry when "
                  "that is over");
    }
  }
  for (uint32_t i = 0; i < count; ++i) {
    const Fence fence = ToFence(fences[i]);
    if (slot == 0 || streams_[slot].steps) {
      if (!device_.Reached(fence.slot, fence.position)) {
        throw Error(KVC_INVALID_ARGUMENT,
                    "the host itself (stream 0) and streams of steps cannot be made to wait");
      }
    } else if (fence.slot != slot && !device_.Reached(fence.slot, fence.position)) {
      device_.Wait(slot, fence);
    }
  }
}

void Manager::EnqueueFill(uint64_t device_stream, uint32_t count, const kvc_host_fill* fills) {
  HostDevice& host = Host();
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  const uint32_t slot = QueueOf(device_stream);
  for (uint32_t i = 0; i < count; ++i) {
    if (fills[i].page >= pages_.total()) {
      throw Error(KVC_INVALID_ARGUMENT,
                  "page " + std::to_string(fills[i].page) + " is beyond the pool");
    }
  }
  for (uint32_t i = 0; i < count; ++i) host.EnqueueFill(slot, fills[i].page, fills[i].value);
}

uint64_t Manager::Advance(uint64_t device_stream, uint64_t max_ops) {
  HostDevice& host = Host();
  uint32_t slot = 0;
  {
    std::shared_lock<WriterFirstMutex> lock(mutex_);
    // Who waits for a copy may advance the device's own stream, too.
    const auto own = static_cast<uint32_t>(device_stream & manager::kSlotMask);
    const bool copies = streams_[own].own && streams_[own].id == device_stream;
    slot = copies ? own : SlotOf(device_stream);
  }
  // Without the manager's lock: a device works beside the scheduler.
  return host.Advance(slot, max_ops);
}

void Manager::ReadPage(PageId page, uint64_t offset, uint64_t size, uint8_t* out) {
  if (!Host().Read(page, offset, size, out)) {
    throw Error(KVC_INVALID_ARGUMENT, "the range is outside the page or the pool");
  }
}

}  // namespace kvcast
