// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What the kernels are given, and their index arithmetic. Compiled by NVRTC and
// nvcc for the device, and by the C++ compiler for tests, for the host side that
// fills the arguments, and for the fake driver, which runs the kernels on the
// CPU. So it includes nothing: NVRTC has no headers.
//
// All arithmetic on bytes is 64-bit: a pool is larger than 2^32 bytes.
#ifndef KVCAST_CUDA_KERNELS_PAGE_INDEX_H_
#define KVCAST_CUDA_KERNELS_PAGE_INDEX_H_

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define KVCAST_KERNEL_INLINE __device__ __forceinline__
#define KVCAST_UNROLL _Pragma("unroll")
#define KVCAST_DO_NOT_UNROLL _Pragma("unroll 1")
#else
#define KVCAST_KERNEL_INLINE inline
#define KVCAST_UNROLL
#define KVCAST_DO_NOT_UNROLL
#endif

namespace kvcast::kernels {

using u32 = unsigned int;
using u64 = unsigned long long;

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8);

// What one thread moves at a time: the widest load there is on each architecture.
struct alignas(16) Vec16 {
  u32 x, y, z, w;
};

// Threads of a block, in all kernels. 128 are four warps: enough of them fit on a
// multiprocessor whatever registers they take.
inline constexpr u32 kThreads = 128;
// Independent loads that a thread has in flight before its first store; without
// them each thread waits a memory latency per vector.
inline constexpr u32 kVectorsInFlight = 4;
// A block takes a page piece by piece, in tiles of 8 KiB.
inline constexpr u32 kTileVectors = kThreads * kVectorsInFlight;

// Page `from` of one pool becomes page `to` of another (or the same) one. A
// gather has 0, 1, 2, ... in `to`, a scatter in `from`.
struct alignas(8) PagePair {
  u32 from;
  u32 to;
};

struct CopyPagesArgs {
  u64 from_base;  // all addresses and strides are multiples of 16
  u64 from_stride;
  u64 to_base;
  u64 to_stride;
  u64 pairs;    // address of PagePair[count]
  u64 vectors;  // of a page that are copied
  u32 count;
  u32 reserved;
};

// A part of a page, of any size and alignment.
struct CopyRange {
  u64 from;
  u64 to;
  u64 bytes;
};

struct CopyRangesArgs {
  u64 ranges;  // address of CopyRange[count]
  u32 count;
  u32 reserved;
};

struct FillPagesArgs {
  u64 base;  // a multiple of 16, as stride
  u64 stride;
  u64 pages;  // address of u32[count]
  u64 words;  // of 8 bytes, of a page
  u64 value;  // of each word
  u32 count;
  u32 reserved;
};

// One changed entry of a block table.
struct TableEntry {
  u32 row;
  u32 column;
  int value;
};

struct UpdateTableArgs {
  u64 table;  // address of int[rows][row_stride]
  u64 row_stride;
  u64 entries;  // address of TableEntry[count]; each (row, column) at most once
  u32 rows;
  u32 columns;
  u32 count;
  u32 reserved;
};

KVCAST_KERNEL_INLINE u64 TilesOf(u64 vectors) {
  return (vectors + kTileVectors - 1) / kTileVectors;
}

// The tiles, of those of all pages one after the other, that a block takes: neighbours, and as
// many as any other block, or one more. Where a page comes from and goes to is said by a table in
// host memory, each read of which goes over the bus: a block reads it once for each page that it
// comes to, not once for each tile.
struct TileRun {
  u64 begin;
  u64 end;
};

KVCAST_KERNEL_INLINE TileRun RunOf(u64 work, u32 block, u32 blocks) {
  const u64 each = work / blocks;
  const u64 longer = work - each * blocks;  // so many blocks take one more
  const u64 begin = each * block + (block < longer ? block : longer);
  return {begin, begin + each + (block < longer ? 1 : 0)};
}

// What a run begins with: tiles of one page.
struct PageTiles {
  u64 item;  // the page's place in the table
  u64 begin;
  u64 end;
};

// Takes it off the run, which has something left. Each page has `tiles` tiles.
KVCAST_KERNEL_INLINE PageTiles TakePage(TileRun* run, u64 tiles) {
  const u64 item = run->begin / tiles;
  const u64 begin = run->begin - item * tiles;
  const u64 left = run->end - run->begin;
  const u64 end = left < tiles - begin ? begin + left : tiles;
  run->begin += end - begin;
  return {item, begin, end};
}

KVCAST_KERNEL_INLINE u64 PageAddress(u64 base, u64 stride, u32 page) {
  return base + stride * page;
}

// The k-th vector of a thread in a tile: neighbouring threads take neighbouring
// vectors, so that a warp's access is one run of 512 bytes.
KVCAST_KERNEL_INLINE u64 VectorOf(u64 tile, u32 k, u32 thread) {
  return tile * kTileVectors + u64{k} * kThreads + thread;
}

// A range as bytes, whole vectors, bytes. Source and destination that are not
// equally far from a multiple of 16 can share no vectors: all are bytes then.
struct RangeSplit {
  u64 head;
  u64 vectors;
  u64 tail;
};

KVCAST_KERNEL_INLINE RangeSplit SplitRange(const CopyRange& range) {
  if (((range.from ^ range.to) & 15) != 0) return {range.bytes, 0, 0};
  const u64 to_boundary = (16 - (range.from & 15)) & 15;
  const u64 head = to_boundary < range.bytes ? to_boundary : range.bytes;
  const u64 vectors = (range.bytes - head) / 16;
  return {head, vectors, range.bytes - head - vectors * 16};
}

// Where an entry's cell is, in elements from the table's start.
KVCAST_KERNEL_INLINE u64 CellOf(u64 row_stride, u32 row, u32 column) {
  return row_stride * row + column;
}

}  // namespace kvcast::kernels

#endif  // KVCAST_CUDA_KERNELS_PAGE_INDEX_H_
