// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/page_copier.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace kvcast::cuda {

namespace page_copier {

// A table takes at most this part of the ring, so that a few are in flight.
constexpr uint64_t kRingParts = 4;

void* HostPointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// Who is told that there is no room now comes again: not with what never fits.
void RequireFits(const PinnedRing& ring, uint64_t bytes) {
  if (bytes <= ring.size()) return;
  throw Error(KVC_INVALID_ARGUMENT, "a list of " + std::to_string(bytes) +
                                        " bytes does not fit the ring of " +
                                        std::to_string(ring.size()) + ": make several calls");
}

// Launches a kernel that reads a table of the ring.
template <typename Launch>
void WithTable(PinnedRing& ring, const PinnedRing::Space& table, StreamHandle stream,
               Launch&& launch) {
  try {
    launch();
  } catch (...) {
    ring.Release(table);
    throw;
  }
  (void)ring.ReleaseAfter(table, stream);
}

// The same; false if the driver does not take the kernel now.
template <typename Launch>
bool TryWithTable(PinnedRing& ring, const PinnedRing::Space& table, StreamHandle stream,
                  Launch&& launch) {
  try {
    WithTable(ring, table, stream, launch);
  } catch (const Error& error) {
    if (Lasting(error.system_code())) throw;
    return false;
  }
  return true;
}

}  // namespace page_copier

PageCopier::PageCopier(const DeviceContext& context, const KernelImage& kernels, PinnedRing& ring,
                       const CopyPolicy& policy)
    : context_(context), kernels_(kernels), ring_(ring), policy_(policy) {}

void PageCopier::set_policy(const CopyPolicy& policy) {
  std::lock_guard<std::mutex> lock(mutex_);
  policy_ = policy;
}

CopyPolicy PageCopier::policy() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return policy_;
}

CopyCounters PageCopier::counters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

// What a graph records runs again with the graph: our fences and tables do not.
void PageCopier::RequireNotCapturing(StreamHandle stream) const {
  int status = kCaptureNone;
  const Result result = Tried([&] { return context_.api().stream_capturing(stream, &status); });
  // The NULL stream cannot be asked while another stream, which it would join, is.
  const bool implicit = result == kErrorStreamCaptureImplicit;
  if (!implicit) Check(context_.api(), "stream_capturing", result);
  if (implicit || status != kCaptureNone) {
    throw Error(KVC_BAD_STATE,
                "the device stream is being captured into a graph: copy before or after");
  }
}

// With the mutex: a body that queues copies. A capture that has begun on the stream since it was
// asked has the driver refuse them. What of them has been queued before may be queued again if
// they do not depend on each other: their sources are kept until all of them have been made.
template <typename Body>
void PageCopier::Whole(Body&& body) {
  queued_ = 0;
  ordered_ = false;
  try {
    body();
  } catch (const Error& error) {
    if (!OfACapture(error.system_code()) || (ordered_ && queued_ != 0)) throw;
    throw Error(KVC_BAD_STATE,
                std::string("the device stream has come to be captured into a graph: copy before "
                            "or after (") +
                    error.what() + ")",
                error.system_code());
  }
}

void PageCopier::CopyPages(StreamHandle stream, Direction direction, const PageSide& from,
                           const PageSide& to, uint64_t bytes, const kernels::PagePair* pairs,
                           uint32_t count, bool stable_source) {
  if (count == 0 || bytes == 0) return;
  RequireNotCapturing(stream);
  std::lock_guard<std::mutex> lock(mutex_);
  const bool aligned = ((from.base | from.stride | to.base | to.stride | bytes) & 15) == 0;
  pieces_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    pieces_.push_back({kernels::PageAddress(from.base, from.stride, pairs[i].from),
                       kernels::PageAddress(to.base, to.stride, pairs[i].to), bytes});
  }
  const uint64_t most = ring_.size() / page_copier::kRingParts / sizeof(kernels::PagePair);
  if (Choose(policy_, direction, bytes, count, aligned) == Method::kKernel && aligned &&
      count <= most && Independent(pieces_, &scratch_)) {
    // Pages on a grid need 8 bytes of table each, and the faster of the kernels.
    const PinnedRing::Space table = ring_.Take(uint64_t{count} * sizeof *pairs);
    if (table.host != nullptr) {
      std::memcpy(table.host, pairs, table.bytes);
      kernels::CopyPagesArgs args{};
      args.from_base = from.base;
      args.from_stride = from.stride;
      args.to_base = to.base;
      args.to_stride = to.stride;
      args.pairs = table.device;
      args.vectors = bytes / sizeof(kernels::Vec16);
      args.count = count;
      if (page_copier::TryWithTable(ring_, table, stream,
                                    [&] { kernels_.CopyPages(stream, args); })) {
        ++counters_.kernel_launches;
        counters_.pieces += count;
        counters_.bytes += bytes * count;
        return;
      }
      ++counters_.refused_launches;
    } else {
      ++counters_.without_table;
    }
  }
  Whole([&] { Submit(stream, direction, stable_source); });
}

void PageCopier::CopyPieces(StreamHandle stream, Direction direction, const Piece* pieces,
                            uint32_t count, bool stable_source) {
  if (count == 0) return;
  RequireNotCapturing(stream);
  std::lock_guard<std::mutex> lock(mutex_);
  pieces_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    if (pieces[i].bytes != 0) pieces_.push_back(pieces[i]);
  }
  if (!pieces_.empty()) Whole([&] { Submit(stream, direction, stable_source); });
}

// The pieces in pieces_.
void PageCopier::Submit(StreamHandle stream, Direction direction, bool stable_source) {
  counters_.pieces += pieces_.size();
  for (const Piece& piece : pieces_) counters_.bytes += piece.bytes;
  const bool independent = Independent(pieces_, &scratch_);
  if (!independent) {
    ++counters_.dependent;
    ordered_ = true;
    EngineLocked(stream, direction, stable_source, false);
    return;
  }
  counters_.merged += MergeNeighbours(&pieces_);
  uint64_t longest = 0;
  for (const Piece& piece : pieces_) longest = std::max(longest, piece.bytes);
  const Method method = Choose(policy_, direction, longest, pieces_.size(), Aligned(pieces_));
  if (method == Method::kKernel && KernelLocked(stream)) return;
  EngineLocked(stream, direction, stable_source, true);
}

bool PageCopier::KernelLocked(StreamHandle stream) {
  const size_t most =
      std::max<size_t>(ring_.size() / page_copier::kRingParts / sizeof(kernels::CopyRange), 1);
  size_t done = 0;
  while (done < pieces_.size()) {
    const size_t count = std::min(most, pieces_.size() - done);
    const PinnedRing::Space table = ring_.Take(count * sizeof(kernels::CopyRange));
    // What has been launched stays; the engine makes the rest.
    const auto leave = [&] {
      pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<std::ptrdiff_t>(done));
    };
    if (table.host == nullptr) {
      ++counters_.without_table;
      leave();
      return false;
    }
    auto* ranges = static_cast<kernels::CopyRange*>(table.host);
    uint64_t longest = 0;
    for (size_t i = 0; i < count; ++i) {
      const Piece& piece = pieces_[done + i];
      ranges[i] = {piece.from, piece.to, piece.bytes};
      longest = std::max(longest, piece.bytes);
    }
    kernels::CopyRangesArgs args{};
    args.ranges = table.device;
    args.count = static_cast<kernels::u32>(count);
    if (!page_copier::TryWithTable(ring_, table, stream,
                                   [&] { kernels_.CopyRanges(stream, args, longest); })) {
      ++counters_.refused_launches;
      leave();
      return false;
    }
    ++queued_;
    ++counters_.kernel_launches;
    done += count;
  }
  return true;
}

void PageCopier::CopyOne(StreamHandle stream, Direction direction, const Piece& piece) {
  const DriverApi& api = context_.api();
  switch (direction) {
    case Direction::kOnDevice:
      KVCAST_CUDA_TRIED(api, copy_on_device, piece.to, piece.from, piece.bytes, stream);
      break;
    case Direction::kToDevice:
      KVCAST_CUDA_TRIED(api, copy_to_device, piece.to, page_copier::HostPointer(piece.from),
                        piece.bytes, stream);
      break;
    case Direction::kToHost:
      KVCAST_CUDA_TRIED(api, copy_to_host, page_copier::HostPointer(piece.to), piece.from,
                        piece.bytes, stream);
      break;
  }
  ++queued_;
  ++counters_.engine_calls;
}

void PageCopier::EngineLocked(StreamHandle stream, Direction direction, bool stable_source,
                              bool independent) {
  const DriverApi& api = context_.api();
  // The batch call's copies run in any order, and it refuses the legacy NULL stream.
  if (api.copy_batch == nullptr || stream == nullptr || !independent || pieces_.size() < 2) {
    for (const Piece& piece : pieces_) CopyOne(stream, direction, piece);
    return;
  }
  batch_to_.clear();
  batch_from_.clear();
  batch_bytes_.clear();
  for (const Piece& piece : pieces_) {
    batch_to_.push_back(piece.to);
    batch_from_.push_back(piece.from);
    batch_bytes_.push_back(piece.bytes);
  }
  MemcpyAttributes attributes;
  const bool any = stable_source && direction == Direction::kToDevice;
  attributes.source_order = any ? kSourceOrderAny : kSourceOrderStream;
  size_t start = 0;
  size_t failed = 0;
  KVCAST_CUDA_TRIED(api, copy_batch, batch_to_.data(), batch_from_.data(), batch_bytes_.data(),
                    pieces_.size(), &attributes, &start, 1, &failed, stream);
  ++queued_;
  ++counters_.batch_calls;
}

bool PageCopier::FillPages(StreamHandle stream, const PageSide& pool, uint64_t bytes,
                           uint64_t value, const uint32_t* pages, uint32_t count) {
  if (((pool.base | pool.stride) & 15) != 0 || bytes % 8 != 0) {
    throw Error(KVC_INVALID_ARGUMENT,
                "pages to fill must lie on multiples of 16 and be multiples of 8 bytes");
  }
  if (count == 0 || bytes == 0) return true;
  page_copier::RequireFits(ring_, uint64_t{count} * sizeof *pages);
  RequireNotCapturing(stream);
  const PinnedRing::Space table = ring_.Take(uint64_t{count} * sizeof *pages);
  if (table.host == nullptr) return false;
  std::memcpy(table.host, pages, table.bytes);
  kernels::FillPagesArgs args{};
  args.base = pool.base;
  args.stride = pool.stride;
  args.pages = table.device;
  args.words = bytes / 8;
  args.value = value;
  args.count = count;
  page_copier::WithTable(ring_, table, stream, [&] { kernels_.FillPages(stream, args); });
  std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.kernel_launches;
  return true;
}

bool PageCopier::UpdateTable(StreamHandle stream, DevicePtr table, uint64_t row_stride,
                             uint32_t rows, uint32_t columns, const kernels::TableEntry* entries,
                             uint32_t count) {
  if (table % sizeof(int32_t) != 0 || columns > row_stride) {
    throw Error(KVC_INVALID_ARGUMENT,
                "a block table must be aligned to 4 bytes, its rows at "
                "least as long as they have columns");
  }
  if (count == 0) return true;
  page_copier::RequireFits(ring_, uint64_t{count} * sizeof *entries);
  RequireNotCapturing(stream);
  const PinnedRing::Space space = ring_.Take(uint64_t{count} * sizeof *entries);
  if (space.host == nullptr) return false;
  std::memcpy(space.host, entries, space.bytes);
  kernels::UpdateTableArgs args{};
  args.table = table;
  args.row_stride = row_stride;
  args.entries = space.device;
  args.rows = rows;
  args.columns = columns;
  args.count = count;
  page_copier::WithTable(ring_, space, stream, [&] { kernels_.UpdateTable(stream, args); });
  std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.kernel_launches;
  return true;
}

}  // namespace kvcast::cuda
