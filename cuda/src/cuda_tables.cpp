// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/cuda_tables.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

namespace kvcast::cuda {

namespace cuda_tables {

constexpr uint32_t kMaxTables = 256;
constexpr uint64_t kIndexMask = kMaxTables - 1;
constexpr uint64_t kMaxEntries = uint64_t{1} << 32;  // of a table: 16 GiB

static_assert(sizeof(kvc_table_delta) == sizeof(kernels::TableEntry));
// What tables of about the same size take: an eighth too much at most, beyond 4 KiB.
constexpr uint64_t SizeClass(uint64_t bytes) {
  uint64_t power = 4096;
  if (bytes <= power) return power;
  while (power * 2 <= bytes) power *= 2;
  const uint64_t unit = power / 8;
  return (bytes + unit - 1) / unit * unit;
}

template <typename Triple>
bool Before(const Triple& a, const Triple& b) {
  return a.row != b.row ? a.row < b.row : a.column < b.column;
}

// The kernel writes in any order: of triples for one cell only the last one stays. Those in
// ascending order, as kvc_tables_delta tells them, are all different: nothing is to be done.
// `given` are the same triples where the host reads them faster. Returns how many stay.
uint32_t KeepLast(kernels::TableEntry* entries, const kvc_table_delta* given, uint32_t count) {
  uint32_t ascending = 1;
  while (ascending < count && Before(given[ascending - 1], given[ascending])) ++ascending;
  if (ascending == count) return count;
  std::stable_sort(entries, entries + count,
                   [](const auto& a, const auto& b) { return Before(a, b); });
  uint32_t kept = 0;
  for (uint32_t i = 1; i < count; ++i) {
    entries[Before(entries[kept], entries[i]) ? ++kept : kept] = entries[i];
  }
  return kept + 1;
}

constexpr uint64_t kTriple = sizeof(kvc_table_delta) / sizeof(int32_t);

}  // namespace cuda_tables

// Space in a table's staging, which comes back when its upload is forgotten unqueued.
struct CudaTables::Staged {
  explicit Staged(std::shared_ptr<Table> of) : table(std::move(of)) {}
  ~Staged() {
    if (space.host != nullptr && !queued) table->memory.ring->Release(space);
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;

  std::shared_ptr<Table> table;
  PinnedRing::Space space;
  bool queued = false;
};

CudaTables::CudaTables(const DeviceContext& context, EventPool& events, const KernelImage& kernels,
                       StreamTable& streams)
    : context_(context), events_(events), kernels_(kernels), streams_(streams) {}

CudaTables::~CudaTables() {
  for (const std::shared_ptr<Table>& table : tables_) {
    if (table != nullptr) Keep(table->memory);
  }
  if (ForkedSinceOpen()) return;
  try {
    const ContextScope scope(context_);
    FreeSpare(/*all=*/true);
  } catch (const std::exception&) {
    // The context is gone, and with it its memory.
  }
}

// Under a ContextScope. May wait for the device.
void CudaTables::FreeSpare(bool all) noexcept {
  for (;;) {
    Memory going;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto goes = std::find_if(spare_.begin(), spare_.end(), [&](const Memory& memory) {
        return all || !memory.ring->has_lost();
      });
      if (goes == spare_.end()) return;
      going = std::move(*goes);
      spare_.erase(goes);
      --allocated_;
    }
    going.ring.reset();  // first: it waits for uploads that are lost
    context_.api().memory_free(going.address);
  }
}

void CudaTables::Keep(Memory memory) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  spare_.push_back(std::move(memory));
}

// Under a ContextScope.
CudaTables::Memory CudaTables::TakeMemory(uint64_t bytes, uint64_t staging) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto like = [&](const Memory& memory) {
      return memory.bytes == bytes && memory.ring->size() == PinnedRing::SizeFor(staging) &&
             memory.ring->in_flight() == 0 && !memory.ring->has_lost() && !memory.filling;
    };
    const auto spare = std::find_if(spare_.begin(), spare_.end(), like);
    if (spare != spare_.end()) {
      Memory taken = std::move(*spare);
      spare_.erase(spare);
      return taken;
    }
  }
  try {
    return Allocate(bytes, staging);
  } catch (const Error& error) {
    if (error.status() != KVC_OUT_OF_MEMORY) throw;
  }
  FreeSpare(/*all=*/false);
  return Allocate(bytes, staging);
}

CudaTables::Memory CudaTables::Allocate(uint64_t bytes, uint64_t staging) {
  Memory memory{0, bytes, std::make_shared<PinnedRing>(context_, events_, staging)};
  KVCAST_CUDA(context_.api(), memory_alloc, &memory.address, bytes);
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    spare_.reserve(allocated_ + 1);  // so that Keep never allocates
    ++allocated_;
  } catch (...) {
    context_.api().memory_free(memory.address);
    throw;
  }
  return memory;
}

uint64_t CudaTables::Open(uint32_t rows, uint32_t columns, int32_t absent, uint32_t staging,
                          uint64_t* address) {
  if (rows == 0 || columns == 0 || uint64_t{rows} * columns > cuda_tables::kMaxEntries) {
    throw Error(
        KVC_INVALID_ARGUMENT,
        "rows x columns is " + std::to_string(uint64_t{rows} * columns) + ", must be 1 to 2^32");
  }
  if (staging == 0) throw Error(KVC_INVALID_ARGUMENT, "staging is 0, must be at least 1");
  const DriverApi& api = context_.api();
  auto made = std::make_shared<Table>();
  made->rows = rows;
  made->columns = columns;
  const ContextScope scope(context_);
  const uint64_t entries = uint64_t{rows} * columns;
  StreamHandle stream = nullptr;
  KVCAST_CUDA(api, stream_create, &stream, kStreamNonBlocking);
  try {
    made->memory = TakeMemory(cuda_tables::SizeClass(entries * sizeof(int32_t)),
                              uint64_t{staging} * sizeof(int32_t));
    made->memory.filling = true;
    KVCAST_CUDA(api, fill_words, made->memory.address, static_cast<unsigned>(absent), entries,
                stream);
    KVCAST_CUDA(api, stream_synchronize, stream);
    made->memory.filling = false;
    std::lock_guard<std::mutex> lock(mutex_);
    size_t index = 0;
    while (index < tables_.size() && tables_[index] != nullptr) ++index;
    if (index == cuda_tables::kMaxTables) {
      throw Error(KVC_NOT_NOW, "256 device tables are open; destroy one");
    }
    if (index == tables_.size()) tables_.emplace_back();
    made->id = next_generation_++ * cuda_tables::kMaxTables + index;
    tables_[index] = made;
  } catch (...) {
    api.stream_destroy(stream);
    if (made->memory.address != 0) Keep(made->memory);
    throw;
  }
  api.stream_destroy(stream);
  *address = made->memory.address;
  return made->id;
}

std::shared_ptr<CudaTables::Table> CudaTables::Find(uint64_t id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return FindLocked(id);
}

const std::shared_ptr<CudaTables::Table>& CudaTables::FindLocked(uint64_t id) const {
  const uint64_t index = id & cuda_tables::kIndexMask;
  if (index >= tables_.size() || tables_[index] == nullptr || tables_[index]->id != id) {
    throw Error(KVC_STALE_HANDLE, "the device table is not open (destroyed, or never was)");
  }
  return tables_[index];
}

void CudaTables::Close(uint64_t id) {
  const std::shared_ptr<Table> table = Find(id);
  // On a broken device nothing runs any more.
  const bool alive = streams_.broken() == nullptr;
  if (alive) table->memory.ring->Poll();
  std::lock_guard<std::mutex> lock(mutex_);
  (void)FindLocked(id);  // others may have closed it meanwhile
  // Nobody stages on it from here on.
  if (alive && table->memory.ring->in_flight() != 0) {
    throw Error(KVC_BUSY, "uploads to the device table have not been executed");
  }
  tables_[id & cuda_tables::kIndexMask].reset();
  spare_.push_back(table->memory);
}

template <typename Visit>
void CudaTables::ForEach(Visit&& visit) {
  for (size_t i = 0; i < cuda_tables::kMaxTables; ++i) {
    std::shared_ptr<Table> table;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (i >= tables_.size()) return;
      table = tables_[i];
    }
    if (table != nullptr) visit(*table->memory.ring);
  }
}

void CudaTables::Poll() noexcept {
  if (!staged_.exchange(false)) return;
  ForEach([&](PinnedRing& ring) {
    try {
      ring.Poll();
    } catch (const std::exception&) {
      // It stays in flight, and is asked for again.
    }
    if (ring.in_flight() != 0) staged_.store(true);
  });
}

void CudaTables::Abandon(StreamHandle stream) noexcept {
  ForEach([&](PinnedRing& ring) { ring.Abandon(stream); });
}

std::shared_ptr<CudaTables::Staged> CudaTables::Stage(std::shared_ptr<Table> table,
                                                      uint64_t entries) {
  const uint64_t bytes = entries * sizeof(int32_t);
  if (bytes > table->memory.ring->size()) {
    throw Error(KVC_NEVER_FITS, "the upload takes " + std::to_string(entries) +
                                    " int32s of staging and the table has " +
                                    std::to_string(table->memory.ring->size() / sizeof(int32_t)) +
                                    "; split it");
  }
  // Poll, at the beginning of the call, has asked the driver.
  auto staged = std::make_shared<Staged>(std::move(table));
  PinnedRing& ring = *staged->table->memory.ring;
  {
    // A table is closed, and its memory another's, only while nothing is staged on it.
    std::lock_guard<std::mutex> lock(mutex_);
    (void)FindLocked(staged->table->id);
    staged->space = ring.TryTake(bytes);
  }
  staged_.store(true);
  if (staged->space.host == nullptr) {
    if (ring.in_flight() == 0) {
      throw Error(
          KVC_NEVER_FITS,
          "the upload does not fit what is left of the table's staging, of which uploads on "
          "a stream that was destroyed keep the rest; split it, or make a new table");
    }
    throw Error(KVC_NOT_NOW, "the table's staging is full; retry when fences have been reached");
  }
  return staged;
}

void CudaTables::Update(const SlotNow& slot, uint64_t id, uint32_t count,
                        const kvc_table_delta* deltas) {
  const std::shared_ptr<Table> table = Find(id);
  for (uint32_t i = 0; i < count; ++i) {
    if (deltas[i].row >= table->rows || deltas[i].column >= table->columns) {
      throw Error(KVC_INVALID_ARGUMENT, "deltas[" + std::to_string(i) + "] is outside the table");
    }
  }
  if (count == 0) return void(slot());
  std::shared_ptr<Staged> upload = Stage(table, count * cuda_tables::kTriple);
  auto* entries = static_cast<kernels::TableEntry*>(upload->space.host);
  std::memcpy(entries, deltas, count * sizeof *deltas);
  kernels::UpdateTableArgs args{};
  args.table = table->memory.address;
  args.row_stride = table->columns;
  args.entries = upload->space.device;
  args.rows = table->rows;
  args.columns = table->columns;
  args.count = cuda_tables::KeepLast(entries, deltas, count);
  NoteUpload(slot, std::move(upload),
             [this, args](StreamHandle stream) { kernels_.UpdateTable(stream, args); });
}

void CudaTables::Write(const SlotNow& slot, uint64_t id, const TableRows& rows) {
  const std::shared_ptr<Table> table = Find(id);
  if (rows.first > table->rows || rows.count > table->rows - rows.first) {
    throw Error(KVC_INVALID_ARGUMENT, "the rows are outside the table");
  }
  if (rows.stride < table->columns) {
    throw Error(KVC_INVALID_ARGUMENT, "row_stride is less than the table's columns");
  }
  if (rows.count == 0) return void(slot());
  const uint64_t columns = table->columns;
  std::shared_ptr<Staged> upload = Stage(table, rows.count * columns);
  const void* const from = upload->space.host;
  auto* staged = static_cast<int32_t*>(upload->space.host);
  for (uint32_t i = 0; i < rows.count; ++i) {
    std::memcpy(staged + i * columns, rows.entries + i * rows.stride, columns * sizeof(int32_t));
  }
  const DevicePtr to = table->memory.address + rows.first * columns * sizeof(int32_t);
  const uint64_t bytes = rows.count * columns * sizeof(int32_t);
  NoteUpload(slot, std::move(upload), [this, from, to, bytes](StreamHandle stream) {
    KVCAST_CUDA_TRIED(context_.api(), copy_to_device, to, from, bytes, stream);
  });
}

// The upload is queued once. What the driver refuses after that is only when its staging
// is free again, which may be found out later.
template <typename Queue>
void CudaTables::NoteUpload(const SlotNow& slot, std::shared_ptr<Staged> staged, Queue&& queue) {
  const uint32_t on = slot();
  if (on == 0) {
    throw Error(KVC_INVALID_ARGUMENT,
                "an upload to a CUDA device needs a device stream: the host has no order with its "
                "kernels");
  }
  streams_.Note(
      on, [staged = std::move(staged), queue = std::forward<Queue>(queue)](StreamHandle stream) {
        PinnedRing& ring = *staged->table->memory.ring;
        if (staged->queued) return ring.Settle(stream);
        queue(stream);
        staged->queued = true;
        return ring.ReleaseAfter(staged->space, stream);
      });
}

}  // namespace kvcast::cuda
