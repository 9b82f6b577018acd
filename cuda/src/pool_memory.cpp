// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/pool_memory.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace kvcast::cuda {

namespace pool_memory {

// A pool of hundreds of GiB in chunks of 2 MiB would take minutes to create.
constexpr uint64_t kBaseChunks = 1024;
// What drivers map at a time, and what growing should move by.
constexpr uint64_t kTailChunk = uint64_t{2} << 20;

// Drivers say 2 MiB, some platforms 32 or 512.
constexpr uint64_t kMostGranularity = uint64_t{1} << 40;

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

MemAllocationProp Property(DeviceId device) {
  MemAllocationProp prop;
  prop.location = {kLocationDevice, device};
  return prop;
}

// All sizes are rounded up to multiples of it: to none there are none, and beyond what a chunk
// of a pool can be the sums would not fit.
void RequireUsable(uint64_t granularity) {
  if (granularity == 0 || granularity > kMostGranularity) {
    throw Error(KVC_DEVICE_ERROR,
                "cuMemGetAllocationGranularity: the driver maps memory by " +
                    std::to_string(granularity) +
                    " bytes, with which no pool can be made; reinstall the driver");
  }
}

}  // namespace pool_memory

PoolMemory::PoolMemory(const DeviceContext& context, const PoolSize& size) : context_(context) {
  const DriverApi& api = context.api();
  if (size.bytes == 0) throw Error(KVC_INVALID_ARGUMENT, "a pool of no bytes");
  const uint64_t first = std::max(size.bytes, size.first_bytes);
  mapped_ = size.max_bytes > size.bytes && context.virtual_memory();
  const ContextScope scope(context);
  if (!mapped_) {
    // One plain allocation: nothing could be gained by chunks, or there are none.
    KVCAST_CUDA(api, memory_alloc, &base_, first);
    base_bytes_ = base_chunk_ = first;
    return;
  }
  size_t granularity = 0;
  const MemAllocationProp prop = pool_memory::Property(context.device());
  KVCAST_CUDA(api, chunk_granularity, &granularity, &prop, kGranularityMinimum);
  pool_memory::RequireUsable(granularity);
  base_chunk_ = pool_memory::RoundUp(
      std::max<uint64_t>(granularity, size.bytes / pool_memory::kBaseChunks), granularity);
  base_bytes_ = pool_memory::RoundUp(size.bytes, granularity);
  tail_chunk_ = pool_memory::RoundUp(pool_memory::kTailChunk, granularity);
  tail_limit_ = size.max_bytes > base_bytes_
                    ? pool_memory::RoundUp(size.max_bytes - base_bytes_, tail_chunk_)
                    : 0;
  reserve_target_ = size.reserve_chunks;
  reserved_ = base_bytes_ + tail_limit_;
  // These never allocate later: growing and shrinking must not fail half way.
  tail_.reserve(tail_limit_ / tail_chunk_);
  reserve_.reserve(std::max<size_t>(reserve_target_, tail_limit_ / tail_chunk_));
  KVCAST_CUDA(api, range_reserve, &base_, reserved_, 0, 0, 0);
  try {
    MapFirst(first);
    FillReserve();
  } catch (...) {
    Unwind();
    throw;
  }
}

PoolMemory::~PoolMemory() {
  if (ForkedSinceOpen()) return;
  try {
    const ContextScope scope(context_);
    if (mapped_) {
      Unwind();
    } else {
      context_.api().memory_free(base_);
    }
  } catch (const std::exception&) {
    // Without the context there is no memory either.
  }
}

// Under a ContextScope. Undoes whatever has been done, and goes on over errors.
void PoolMemory::Unwind() noexcept {
  const DriverApi& api = context_.api();
  const uint64_t tail = tail_.size() * tail_chunk_;
  // Each chunk by itself: the driver unmaps a range only if it is mapped whole.
  for (uint64_t at = 0; at < tail; at += tail_chunk_) {
    api.chunk_unmap(base_ + base_bytes_ + at, tail_chunk_);
  }
  for (uint64_t at = 0; at < base_mapped_; at += base_chunk_) {
    api.chunk_unmap(base_ + at, std::min(base_chunk_, base_bytes_ - at));
  }
  for (const MemHandle handle : tail_) api.chunk_release(handle);
  for (const MemHandle handle : reserve_) api.chunk_release(handle);
  api.range_free(base_, reserved_);
}

MemHandle PoolMemory::CreateChunk(uint64_t bytes) const {
  MemHandle handle = 0;
  const MemAllocationProp prop = pool_memory::Property(context_.device());
  KVCAST_CUDA(context_.api(), chunk_create, &handle, bytes, &prop, 0);
  return handle;
}

void PoolMemory::GiveAccess(uint64_t from, uint64_t bytes) const {
  const MemAccess access{{kLocationDevice, context_.device()}, kAccessReadWrite};
  KVCAST_CUDA(context_.api(), set_access, base_ + from, bytes, &access, 1);
}

// What of the tail `bytes` from base() on need.
uint64_t PoolMemory::TailFor(uint64_t bytes) const {
  if (!mapped_ || bytes <= base_bytes_) return 0;
  return pool_memory::RoundUp(bytes - base_bytes_, tail_chunk_);
}

void PoolMemory::MapFirst(uint64_t bytes) {
  const DriverApi& api = context_.api();
  while (base_mapped_ < base_bytes_) {
    const uint64_t chunk = std::min(base_chunk_, base_bytes_ - base_mapped_);
    const MemHandle handle = CreateChunk(chunk);
    const Result mapped = api.chunk_map(base_ + base_mapped_, chunk, 0, handle, 0);
    // The mapping holds the memory; the base part needs no handle any more.
    api.chunk_release(handle);
    Check(api, "chunk_map", mapped);
    base_mapped_ += chunk;
  }
  const uint64_t tail = TailFor(bytes);
  for (uint64_t at = 0; at < tail; at += tail_chunk_) {
    const MemHandle handle = CreateChunk(tail_chunk_);
    const Result mapped = api.chunk_map(base_ + base_bytes_ + at, tail_chunk_, 0, handle, 0);
    if (mapped != kSuccess) api.chunk_release(handle);
    Check(api, "chunk_map", mapped);
    tail_.push_back(handle);
  }
  GiveAccess(0, base_bytes_ + tail);
  tail_bytes_ = tail;
}

uint64_t PoolMemory::bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return base_bytes_ + tail_bytes_;
}

uint64_t PoolMemory::mapped_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return base_bytes_ + tail_.size() * tail_chunk_;
}

uint32_t PoolMemory::reserve() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<uint32_t>(reserve_.size());
}

uint64_t PoolMemory::given_up_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t spare = reserve_.size() - std::min<size_t>(reserve_.size(), reserve_target_);
  return (tail_.size() + spare) * tail_chunk_ - tail_bytes_;
}

uint32_t PoolMemory::leaving() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<uint32_t>(tail_.size() - tail_bytes_ / std::max<uint64_t>(tail_chunk_, 1));
}

void PoolMemory::FillReserve(const std::function<bool()>& stop) {
  if (!mapped_) return;
  const ContextScope scope(context_);
  while (!stop()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // No more than the range has room for.
      const uint64_t room = tail_limit_ / tail_chunk_ - tail_.size();
      if (reserve_.size() >= std::min<uint64_t>(reserve_target_, room)) return;
    }
    // Without the lock: this is the slow part.
    const MemHandle handle = CreateChunk(tail_chunk_);
    std::lock_guard<std::mutex> lock(mutex_);
    reserve_.push_back(handle);
  }
}

bool PoolMemory::Grow(uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (bytes <= base_bytes_ + tail_bytes_) return true;
  if (bytes > limit() || tail_.size() * tail_chunk_ != tail_bytes_) return false;
  const uint64_t wanted = TailFor(bytes);
  const uint64_t chunks = (wanted - tail_bytes_) / tail_chunk_;
  if (chunks > reserve_.size()) return false;
  const ContextScope scope(context_);
  const DriverApi& api = context_.api();
  const size_t before = tail_.size();
  const auto undo = [&]() noexcept {
    while (tail_.size() > before) {
      const uint64_t at = base_bytes_ + (tail_.size() - 1) * tail_chunk_;
      if (api.chunk_unmap(base_ + at, tail_chunk_) != kSuccess) return;
      reserve_.push_back(tail_.back());
      tail_.pop_back();
    }
  };
  try {
    for (uint64_t i = 0; i < chunks; ++i) {
      KVCAST_CUDA(api, chunk_map, base_ + base_bytes_ + tail_.size() * tail_chunk_, tail_chunk_, 0,
                  reserve_.back(), 0);
      tail_.push_back(reserve_.back());
      reserve_.pop_back();
    }
    GiveAccess(base_bytes_ + tail_bytes_, wanted - tail_bytes_);
  } catch (...) {
    undo();
    throw;
  }
  tail_bytes_ = wanted;
  return true;
}

uint64_t PoolMemory::Shrink(uint64_t bytes, std::function<bool()> reached) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t keep = TailFor(bytes);
  if (keep < tail_bytes_) {
    leaving_.push_back({base_bytes_ + keep, base_bytes_ + tail_bytes_, std::move(reached)});
    tail_bytes_ = keep;
  }
  return base_bytes_ + tail_bytes_;
}

uint32_t PoolMemory::Collect(const std::function<bool()>& stop) {
  uint32_t unmapped = 0;
  std::optional<ContextScope> scope;
  const DriverApi& api = context_.api();
  // The first shrink took the highest part, the next one what lies below it. The lock is
  // let go after each chunk: others ask for bytes().
  while (!stop()) {
    std::lock_guard<std::mutex> lock(mutex_);
    while (!leaving_.empty() && base_bytes_ + tail_.size() * tail_chunk_ <= leaving_.front().from) {
      leaving_.pop_front();
    }
    // What a growth could not undo has never been anybody's.
    const bool undone = leaving_.empty() && tail_.size() * tail_chunk_ > tail_bytes_;
    if (!undone && (leaving_.empty() || !leaving_.front().reached())) {
      if (reserve_.size() <= reserve_target_) break;
      // What the driver did not take back before.
      if (!scope) scope.emplace(context_);
      Check(api, "chunk_release", TrimReserve());
      break;
    }
    if (!scope) scope.emplace(context_);
    const uint64_t at = base_bytes_ + (tail_.size() - 1) * tail_chunk_;
    KVCAST_CUDA(api, chunk_unmap, base_ + at, tail_chunk_);
    ++unmapped;
    reserve_.push_back(tail_.back());
    tail_.pop_back();
    (void)TrimReserve();  // one that the driver does not take back may serve again
  }
  return unmapped;
}

// Under the lock and a ContextScope.
Result PoolMemory::TrimReserve() {
  while (reserve_.size() > reserve_target_) {
    const Result result = context_.api().chunk_release(reserve_.back());
    if (result != kSuccess) return result;
    reserve_.pop_back();
  }
  return kSuccess;
}

uint64_t PoolMemory::TakeBack(uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t wanted = TailFor(bytes);
  // The part that was given up last lies lowest.
  while (tail_bytes_ < wanted && !leaving_.empty() && leaving_.back().reached()) {
    Leaving& lowest = leaving_.back();
    const uint64_t mapped = std::min(lowest.to - base_bytes_, tail_.size() * tail_chunk_);
    tail_bytes_ = std::min(wanted, mapped);
    if (tail_bytes_ < mapped) {
      lowest.from = base_bytes_ + tail_bytes_;
    } else {
      leaving_.pop_back();
    }
  }
  return base_bytes_ + tail_bytes_;
}

}  // namespace kvcast::cuda
