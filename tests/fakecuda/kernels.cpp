// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The kernels, compiled for the CPU from the sources that the device gets, and
// run thread by thread: blocks in random order, and the threads of each. They use
// no shared memory and no barrier, so that is a legal order.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "cuda/kernels/page_index.h"
#include "tests/fakecuda/state.h"

// What CUDA C++ has and C++ has not.
#define __global__
#define __launch_bounds__(threads)
namespace {
struct Dim3 {
  unsigned x = 0, y = 0, z = 0;
};
thread_local Dim3 blockIdx;
thread_local Dim3 threadIdx;
thread_local Dim3 blockDim;
thread_local Dim3 gridDim;
}  // namespace

void KvcastKernelAccess(unsigned long long address, unsigned long long bytes, bool write) {
  (void)write;
  if (address % std::min<unsigned long long>(bytes, 16) != 0 && (bytes & (bytes - 1)) == 0) {
    throw fakecuda::IllegalAccess();  // a device faults on misaligned access
  }
  fakecuda::RequireAccess(address, bytes);
}

#include "cuda/kernels/kernels.cu"

namespace fakecuda {

namespace {

namespace k = kvcast::kernels;

template <typename Args>
void Call(void (*kernel)(Args), const void* argument) {
  Args args;
  std::memcpy(&args, argument, sizeof args);
  kernel(args);
}

}  // namespace

uint64_t KernelArgumentBytes(const std::string& name) {
  if (name == "kvcast_copy_pages") return sizeof(k::CopyPagesArgs);
  if (name == "kvcast_copy_ranges") return sizeof(k::CopyRangesArgs);
  if (name == "kvcast_fill_pages") return sizeof(k::FillPagesArgs);
  if (name == "kvcast_update_table") return sizeof(k::UpdateTableArgs);
  return 0;
}

namespace {

// The entries of a kernel's table; none if that is in memory that is gone, which is
// found when the kernel runs.
template <typename Entry>
std::vector<Entry> TableOf(uint64_t address, uint64_t count, Spans* spans) {
  std::vector<Entry> entries(count);
  const uint64_t bytes = count * sizeof(Entry);
  spans->push_back({address, address + bytes});
  Where where{};
  if (count == 0 || !Known(TheWorld(), address, bytes, &where)) return {};
  std::memcpy(static_cast<void*>(entries.data()), ToHandle<const void*>(address), bytes);
  return entries;
}

template <typename Args>
Args ArgumentOf(const void* argument) {
  Args args;
  std::memcpy(&args, argument, sizeof args);
  return args;
}

}  // namespace

Spans KernelTouches(const std::string& name, const void* argument) {
  Spans spans;
  const auto touch = [&](uint64_t from, uint64_t bytes) { spans.push_back({from, from + bytes}); };
  if (name == "kvcast_copy_pages") {
    const auto args = ArgumentOf<k::CopyPagesArgs>(argument);
    for (const auto& pair : TableOf<k::PagePair>(args.pairs, args.count, &spans)) {
      touch(k::PageAddress(args.from_base, args.from_stride, pair.from), args.vectors * 16);
      touch(k::PageAddress(args.to_base, args.to_stride, pair.to), args.vectors * 16);
    }
  } else if (name == "kvcast_copy_ranges") {
    const auto args = ArgumentOf<k::CopyRangesArgs>(argument);
    for (const auto& range : TableOf<k::CopyRange>(args.ranges, args.count, &spans)) {
      touch(range.from, range.bytes);
      touch(range.to, range.bytes);
    }
  } else if (name == "kvcast_fill_pages") {
    const auto args = ArgumentOf<k::FillPagesArgs>(argument);
    for (const k::u32 page : TableOf<k::u32>(args.pages, args.count, &spans)) {
      touch(k::PageAddress(args.base, args.stride, page), args.words * 8);
    }
  } else if (name == "kvcast_update_table") {
    const auto args = ArgumentOf<k::UpdateTableArgs>(argument);
    for (const auto& entry : TableOf<k::TableEntry>(args.entries, args.count, &spans)) {
      if (entry.row >= args.rows || entry.column >= args.columns) continue;
      touch(args.table + k::CellOf(args.row_stride, entry.row, entry.column) * sizeof(int),
            sizeof(int));
    }
  }
  return spans;
}

void RunKernel(const std::string& name, const void* argument, const unsigned grid[3],
               unsigned threads, uint64_t seed) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {threads, 1, 1};
  std::mt19937_64 random(seed);
  std::vector<unsigned> blocks(size_t{grid[0]} * grid[1]);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::shuffle(blocks.begin(), blocks.end(), random);
  std::vector<unsigned> order(threads);
  std::iota(order.begin(), order.end(), 0u);
  for (const unsigned block : blocks) {
    blockIdx = {block % grid[0], block / grid[0], 0};
    std::shuffle(order.begin(), order.end(), random);
    for (const unsigned thread : order) {
      threadIdx = {thread, 0, 0};
      if (name == "kvcast_copy_pages") Call(kvcast_copy_pages, argument);
      if (name == "kvcast_copy_ranges") Call(kvcast_copy_ranges, argument);
      if (name == "kvcast_fill_pages") Call(kvcast_fill_pages, argument);
      if (name == "kvcast_update_table") Call(kvcast_update_table, argument);
    }
  }
  ++WorkOfThisThread().kernels;
  if (name != "kvcast_copy_pages" && name != "kvcast_copy_ranges") return;
  const Spans spans = KernelTouches(name, argument);  // the table, then source and destination
  for (size_t i = 1; i < spans.size(); i += 2) {
    NoteCopied(spans[i].begin, spans[i].end - spans[i].begin);
  }
}

}  // namespace fakecuda
