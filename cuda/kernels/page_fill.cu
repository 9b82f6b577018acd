// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Fills pages with a value: zeros of padding pages, poison, the stamps of tests.

#include "cuda/kernels/access.h"
#include "cuda/kernels/page_index.h"

extern "C" __global__ void __launch_bounds__(kvcast::kernels::kThreads)
    kvcast_fill_pages(const kvcast::kernels::FillPagesArgs args) {
  using namespace kvcast::kernels;
  const u64 vectors = args.words / 2;
  // An odd last word makes one more, half vector.
  const u64 units = vectors + (args.words & 1);
  const u64 tiles = TilesOf(units);
  const u32 low = static_cast<u32>(args.value);
  const u32 high = static_cast<u32>(args.value >> 32);
  TileRun run = RunOf(tiles * args.count, blockIdx.x, gridDim.x);
  while (run.begin < run.end) {
    const PageTiles part = TakePage(&run, tiles);
    const u32 page = Load<u32>(args.pages + part.item * sizeof(u32));
    const u64 to = PageAddress(args.base, args.stride, page);
    KVCAST_DO_NOT_UNROLL
    for (u64 tile = part.begin; tile < part.end; ++tile) {
      KVCAST_UNROLL
      for (u32 k = 0; k < kVectorsInFlight; ++k) {
        const u64 v = VectorOf(tile, k, threadIdx.x);
        if (v < vectors) {
          Store<Vec16>(to + v * sizeof(Vec16), Vec16{low, high, low, high});
        } else if (v < units) {
          Store<u64>(to + v * sizeof(Vec16), args.value);
        }
      }
    }
  }
}
