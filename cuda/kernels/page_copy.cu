// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Copies of pages, whole and in part.

#include "cuda/kernels/access.h"
#include "cuda/kernels/page_index.h"

// Each block takes a run of tiles, so any grid does.
extern "C" __global__ void __launch_bounds__(kvcast::kernels::kThreads)
    kvcast_copy_pages(const kvcast::kernels::CopyPagesArgs args) {
  using namespace kvcast::kernels;
  const u64 tiles = TilesOf(args.vectors);
  TileRun run = RunOf(tiles * args.count, blockIdx.x, gridDim.x);
  while (run.begin < run.end) {
    const PageTiles page = TakePage(&run, tiles);
    const PagePair pair = Load<PagePair>(args.pairs + page.item * sizeof(PagePair));
    const u64 from = PageAddress(args.from_base, args.from_stride, pair.from);
    const u64 to = PageAddress(args.to_base, args.to_stride, pair.to);
    KVCAST_DO_NOT_UNROLL
    for (u64 tile = page.begin; tile < page.end; ++tile) {
      Vec16 held[kVectorsInFlight];
      KVCAST_UNROLL
      for (u32 k = 0; k < kVectorsInFlight; ++k) {
        const u64 v = VectorOf(tile, k, threadIdx.x);
        if (v < args.vectors) held[k] = Load<Vec16>(from + v * sizeof(Vec16));
      }
      KVCAST_UNROLL
      for (u32 k = 0; k < kVectorsInFlight; ++k) {
        const u64 v = VectorOf(tile, k, threadIdx.x);
        if (v < args.vectors) Store<Vec16>(to + v * sizeof(Vec16), held[k]);
      }
    }
  }
}

// blockIdx.y walks the ranges, the threads of all blockIdx.x walk one range.
extern "C" __global__ void __launch_bounds__(kvcast::kernels::kThreads)
    kvcast_copy_ranges(const kvcast::kernels::CopyRangesArgs args) {
  using namespace kvcast::kernels;
  const u64 thread = u64{blockIdx.x} * blockDim.x + threadIdx.x;
  const u64 threads = u64{gridDim.x} * blockDim.x;
  for (u32 r = blockIdx.y; r < args.count; r += gridDim.y) {
    const CopyRange range = Load<CopyRange>(args.ranges + u64{r} * sizeof(CopyRange));
    const RangeSplit split = SplitRange(range);
    for (u64 i = thread; i < split.head; i += threads) {
      Store<unsigned char>(range.to + i, Load<unsigned char>(range.from + i));
    }
    const u64 body = split.head;
    for (u64 i = thread; i < split.vectors; i += threads) {
      Store<Vec16>(range.to + body + i * 16, Load<Vec16>(range.from + body + i * 16));
    }
    const u64 rest = body + split.vectors * 16;
    for (u64 i = thread; i < split.tail; i += threads) {
      Store<unsigned char>(range.to + rest + i, Load<unsigned char>(range.from + rest + i));
    }
  }
}
