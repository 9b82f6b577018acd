// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Memory of the fake device: ordinary memory of the process, at the addresses
// that the driver gives. Virtual memory management is memfd files mapped into a
// reserved range. What a device would fault on is found in the table of regions.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <shared_mutex>

#include "tests/fakecuda/state.h"

namespace fakecuda {

namespace {

// Taken exclusively, inside the world's mutex, by what changes the table of
// regions; shared by operations, so that nothing is unmapped under them.
std::shared_mutex& RegionsMutex() {
  static auto* const mutex = new std::shared_mutex;
  return *mutex;
}

const Region* Covering(const World& world, uint64_t address, uint64_t* end) {
  auto it = world.regions.upper_bound(address);
  if (it == world.regions.begin()) return nullptr;
  --it;
  *end = it->first + it->second.bytes;
  return address < *end ? &it->second : nullptr;
}

}  // namespace

// Chunks that lie side by side are one memory.
void RequireAccess(uint64_t address, uint64_t bytes) {
  const uint64_t stop = address + bytes;
  if (stop < address) throw IllegalAccess();
  while (address < stop) {
    uint64_t end = 0;
    const Region* region = Covering(TheWorld(), address, &end);
    if (region == nullptr || !region->access) throw IllegalAccess();
    address = end;
  }
}

bool Known(World& world, uint64_t address, uint64_t bytes, Where* where) {
  const uint64_t stop = address + bytes;
  if (stop < address) return false;
  bool first = true;
  do {
    uint64_t end = 0;
    const Region* region = Covering(world, address, &end);
    if (region == nullptr) return false;
    if (first) *where = region->where;
    first = false;
    address = end;
  } while (address < stop);
  return true;
}

Result WithMemory(const std::function<void()>& body) {
  std::shared_lock<std::shared_mutex> lock(RegionsMutex());
  try {
    body();
  } catch (const IllegalAccess&) {
    return kvcast::cuda::kErrorIllegalAddress;
  }
  return 0;
}

void ForgetMemory(World& world) {
  std::lock_guard<std::shared_mutex> lock(RegionsMutex());
  for (const auto& [address, region] : world.regions) {
    if (region.where == Where::kDevice) munmap(ToHandle<void*>(address), region.bytes);
    if (region.where == Where::kHost && !region.registered) std::free(ToHandle<void*>(address));
  }
  world.regions.clear();
  for (const auto& [address, bytes] : world.ranges) munmap(ToHandle<void*>(address), bytes);
  world.ranges.clear();
  for (const auto& [id, chunk] : world.chunks) {
    if (chunk.memfd >= 0) close(chunk.memfd);
  }
}

void ForgetMemoryOf(World& world, uint64_t context) {
  std::lock_guard<std::shared_mutex> lock(RegionsMutex());
  for (auto it = world.regions.begin(); it != world.regions.end();) {
    const Region& region = it->second;
    if (region.context != context) {
      ++it;
      continue;
    }
    if (region.where == Where::kDevice) {
      munmap(ToHandle<void*>(it->first), region.bytes);
      world.used[region.device] -= region.bytes;
    }
    if (region.where == Where::kHost && !region.registered) std::free(ToHandle<void*>(it->first));
    it = world.regions.erase(it);
  }
}

namespace {

using namespace kvcast::cuda;  // NOLINT: numbers of the driver, in this file's calls

// Whether something queued, or running, uses any of these bytes.
bool Busy(const World& world, uint64_t begin, uint64_t end) {
  const auto in = [&](const Spans& spans) {
    return std::any_of(spans.begin(), spans.end(),
                       [&](const Span& span) { return span.begin < end && begin < span.end; });
  };
  for (const auto& [id, stream] : world.streams) {
    for (const Op& op : stream->queue) {
      if (in(op.touches) || (op.kernel_touches && in(op.kernel_touches()))) return true;
    }
  }
  return false;
}

bool Fits(World& world, int device, uint64_t bytes) {
  const uint64_t used = world.used[device] + world.options.reserved_bytes;
  return used <= world.options.memory_bytes && bytes <= world.options.memory_bytes - used;
}

void DropChunk(World& world, uint64_t id) {
  const auto found = world.chunks.find(id);
  if (found == world.chunks.end() || !found->second.released || found->second.maps != 0) return;
  close(found->second.memfd);
  world.used[found->second.device] -= found->second.bytes;
  world.chunks.erase(found);
}

}  // namespace

extern "C" {

Result fake_cuMemGetInfo(size_t* free_bytes, size_t* total) {
  FAKE_ENTER("cuMemGetInfo");
  FAKE_CONTEXT();
  const uint64_t used = world.used[context->device] + world.options.reserved_bytes;
  *total = world.options.memory_bytes;
  *free_bytes = used < *total ? *total - used : 0;
  return 0;
}

Result fake_cuMemAlloc(DevicePtr* address, size_t bytes) {
  FAKE_ENTER_WAITING("cuMemAlloc");
  FAKE_CONTEXT();
  if (bytes == 0) return kErrorInvalidValue;
  if (!Fits(world, context->device, bytes)) return kErrorOutOfMemory;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return kErrorOutOfMemory;
  world.used[context->device] += bytes;
  std::lock_guard<std::shared_mutex> regions(RegionsMutex());
  world.regions[Id(memory)] = {bytes,           Where::kDevice,       true, 0, false,
                               context->device, ContextStack().back()};
  *address = Id(memory);
  return 0;
}

Result fake_cuMemFree(DevicePtr address) {
  FAKE_ENTER_WAITING("cuMemFree");
  FAKE_CONTEXT();
  const auto found = world.regions.find(address);
  if (found == world.regions.end() || found->second.where != Where::kDevice) {
    return kErrorInvalidValue;
  }
  // Freeing waits for the device, as the driver's does.
  Drain(world, lock, 0);
  std::lock_guard<std::shared_mutex> regions(RegionsMutex());
  const auto gone = world.regions.find(address);
  if (gone == world.regions.end()) return kErrorInvalidValue;
  munmap(ToHandle<void*>(address), gone->second.bytes);
  world.used[gone->second.device] -= gone->second.bytes;
  world.regions.erase(gone);
  return 0;
}

Result fake_cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  FAKE_ENTER_WAITING("cuMemHostAlloc");
  FAKE_CONTEXT();
  if (bytes == 0) return kErrorInvalidValue;
  void* memory = nullptr;
  if (posix_memalign(&memory, 4096, bytes) != 0) return kErrorOutOfMemory;
  std::lock_guard<std::shared_mutex> regions(RegionsMutex());
  world.regions[Id(memory)] = {bytes, Where::kHost, true, 0, false, 0, ContextStack().back()};
  *address = memory;
  return 0;
}

Result fake_cuMemFreeHost(void* address) {
  FAKE_ENTER_WAITING("cuMemFreeHost");
  FAKE_CONTEXT();
  const auto found = world.regions.find(Id(address));
  if (found == world.regions.end() || found->second.where != Where::kHost ||
      found->second.registered) {
    return kErrorInvalidValue;
  }
  if (Busy(world, Id(address), Id(address) + found->second.bytes)) {
    Violation(world, "cuMemFreeHost of memory that queued work uses");
  }
  std::lock_guard<std::shared_mutex> regions(RegionsMutex());
  std::free(address);
  world.regions.erase(found);
  return 0;
}

Result fake_cuMemHostRegister(void* address, size_t bytes, unsigned) {
  FAKE_ENTER_WAITING("cuMemHostRegister");
  FAKE_CONTEXT();
  if (address == nullptr || bytes == 0) return kErrorInvalidValue;
  Where where{};
  if (Known(world, Id(address), 1, &where)) return 712;  // already registered
  std::lock_guard<std::shared_mutex> regions(RegionsMutex());
  world.regions[Id(address)] = {bytes, Where::kHost, true, 0, true, 0, ContextStack().back()};
  return 0;
}

Result fake_cuMemHostUnregister(void* address) {
  FAKE_ENTER_WAITING("cuMemHostUnregister");
  FAKE_CONTEXT();
  const auto found = world.regions.find(Id(address));
  if (found == world.regions.end() || !found->second.registered) return 713;  // not registered
  if (Busy(world, Id(address), Id(address) + found->second.bytes)) {
    Violation(world, "cuMemHostUnregister of memory that queued work uses");
  }
  std::lock_guard<std::shared_mutex> regions(RegionsMutex());
  world.regions.erase(found);
  return 0;
}

Result fake_cuMemHostGetDevicePointer(DevicePtr* address, void* host, unsigned flags) {
  FAKE_ENTER("cuMemHostGetDevicePointer");
  FAKE_CONTEXT();
  Where where{};
  if (flags != 0 || !Known(world, Id(host), 1, &where) || where != Where::kHost) {
    return kErrorInvalidValue;
  }
  *address = Id(host);
  return 0;
}

Result fake_cuPointerGetAttribute(void* value, int attribute, DevicePtr address) {
  FAKE_ENTER("cuPointerGetAttribute");
  FAKE_CONTEXT();
  Where where{};
  // Memory that the driver does not know has no attributes.
  if (attribute != kPointerMemoryType || !Known(world, address, 1, &where)) {
    return kErrorInvalidValue;
  }
  *static_cast<unsigned*>(value) = where == Where::kHost ? kMemoryTypeHost : kMemoryTypeDevice;
  return 0;
}

Result fake_cuMemGetAllocationGranularity(size_t* bytes, const MemAllocationProp* prop, int) {
  FAKE_ENTER("cuMemGetAllocationGranularity");
  if (world.options.virtual_memory == 0) return kErrorNotSupported;
  if (prop->type != kAllocationPinned || prop->location.type != kLocationDevice) {
    return kErrorInvalidValue;
  }
  *bytes = world.options.granularity;
  return 0;
}

Result fake_cuMemAddressReserve(DevicePtr* address, size_t bytes, size_t alignment, DevicePtr,
                                unsigned long long flags) {
  FAKE_ENTER("cuMemAddressReserve");
  if (world.options.virtual_memory == 0) return kErrorNotSupported;
  const uint64_t granularity = world.options.granularity;
  if (bytes == 0 || bytes % granularity != 0 || flags != 0 || (alignment & (alignment - 1)) != 0) {
    return kErrorInvalidValue;
  }
  void* memory =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return kErrorOutOfMemory;
  world.ranges[Id(memory)] = bytes;
  *address = Id(memory);
  return 0;
}

Result fake_cuMemAddressFree(DevicePtr address, size_t bytes) {
  FAKE_ENTER("cuMemAddressFree");
  const auto found = world.ranges.find(address);
  if (found == world.ranges.end() || found->second != bytes) return kErrorInvalidValue;
  const auto mapped = world.regions.lower_bound(address);
  if (mapped != world.regions.end() && mapped->first < address + bytes) {
    Violation(world, "cuMemAddressFree of a range with chunks mapped");
    return kErrorInvalidValue;
  }
  munmap(ToHandle<void*>(address), bytes);
  world.ranges.erase(found);
  return 0;
}

Result fake_cuMemCreate(MemHandle* handle, size_t bytes, const MemAllocationProp* prop,
                        unsigned long long flags) {
  FAKE_ENTER("cuMemCreate");
  if (world.options.virtual_memory == 0) return kErrorNotSupported;
  if (bytes == 0 || bytes % world.options.granularity != 0 || flags != 0 ||
      prop->type != kAllocationPinned || prop->location.type != kLocationDevice ||
      prop->location.id < 0 || prop->location.id >= world.options.devices) {
    return kErrorInvalidValue;
  }
  if (!Fits(world, prop->location.id, bytes)) return kErrorOutOfMemory;
  const int memfd = memfd_create("fakecuda", MFD_CLOEXEC);
  if (memfd < 0 || ftruncate(memfd, static_cast<off_t>(bytes)) != 0) {
    if (memfd >= 0) close(memfd);
    return kErrorOutOfMemory;
  }
  const uint64_t id = NewId(world, Kind::kChunk);
  world.chunks[id] = {memfd, bytes, prop->location.id, false, 0};
  world.used[prop->location.id] += bytes;
  *handle = id;
  return 0;
}

Result fake_cuMemRelease(MemHandle handle) {
  FAKE_ENTER("cuMemRelease");
  const auto found = world.chunks.find(handle);
  if (found == world.chunks.end() || found->second.released) return kErrorInvalidValue;
  found->second.released = true;
  DropChunk(world, handle);
  return 0;
}

Result fake_cuMemMap(DevicePtr address, size_t bytes, size_t offset, MemHandle handle,
                     unsigned long long flags) {
  FAKE_ENTER("cuMemMap");
  const auto chunk = world.chunks.find(handle);
  if (chunk == world.chunks.end() || chunk->second.released) return kErrorInvalidValue;
  if (bytes != chunk->second.bytes || offset != 0 || flags != 0) return kErrorInvalidValue;
  auto range = world.ranges.upper_bound(address);
  if (range == world.ranges.begin()) return kErrorInvalidValue;
  --range;
  if (address + bytes > range->first + range->second) return kErrorInvalidValue;
  if ((address - range->first) % world.options.granularity != 0) return kErrorInvalidValue;
  uint64_t end = 0;
  const auto next = world.regions.lower_bound(address);
  if (Covering(world, address, &end) != nullptr ||
      (next != world.regions.end() && next->first < address + bytes)) {
    return kErrorInvalidValue;  // something is mapped there
  }
  std::lock_guard<std::shared_mutex> regions(RegionsMutex());
  if (mmap(ToHandle<void*>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, chunk->second.memfd,
           0) == MAP_FAILED) {
    return kErrorOutOfMemory;
  }
  ++chunk->second.maps;
  world.regions[address] = {bytes, Where::kMapped, false, handle, false, chunk->second.device, 0};
  return 0;
}

Result fake_cuMemSetAccess(DevicePtr address, size_t bytes, const MemAccess* access, size_t count) {
  FAKE_ENTER("cuMemSetAccess");
  if (count != 1 || access->flags != kAccessReadWrite || access->location.type != kLocationDevice) {
    return kErrorInvalidValue;
  }
  std::lock_guard<std::shared_mutex> regions(RegionsMutex());
  const uint64_t stop = address + bytes;
  for (uint64_t at = address; at < stop;) {  // whole mapped chunks only
    const auto found = world.regions.find(at);
    if (found == world.regions.end() || found->second.where != Where::kMapped ||
        at + found->second.bytes > stop) {
      return kErrorInvalidValue;
    }
    // No device here reaches another one's memory.
    if (access->location.id != found->second.device) return kErrorInvalidDevice;
    at += found->second.bytes;
  }
  for (uint64_t at = address; at < stop;) {
    Region& region = world.regions[at];
    if (mprotect(ToHandle<void*>(at), region.bytes, PROT_READ | PROT_WRITE) != 0) {
      return kErrorUnknown;
    }
    region.access = true;
    at += region.bytes;
  }
  return 0;
}

Result fake_cuMemUnmap(DevicePtr address, size_t bytes) {
  FAKE_ENTER("cuMemUnmap");
  if (Busy(world, address, address + bytes)) {
    Violation(world, "cuMemUnmap of memory that queued work uses");
  }
  std::lock_guard<std::shared_mutex> regions(RegionsMutex());
  const uint64_t stop = address + bytes;
  for (uint64_t at = address; at < stop;) {
    const auto found = world.regions.find(at);
    if (found == world.regions.end() || found->second.where != Where::kMapped ||
        at + found->second.bytes > stop) {
      return kErrorInvalidValue;
    }
    at += found->second.bytes;
  }
  for (uint64_t at = address; at < stop;) {
    const auto found = world.regions.find(at);
    const Region region = found->second;
    if (mmap(ToHandle<void*>(at), region.bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
      return kErrorUnknown;
    }
    world.regions.erase(found);
    --world.chunks[region.chunk].maps;
    DropChunk(world, region.chunk);
    at += region.bytes;
  }
  return 0;
}

}  // extern "C"

}  // namespace fakecuda
