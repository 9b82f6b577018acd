// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Writes the changed entries of a block table.

#include "cuda/kernels/access.h"
#include "cuda/kernels/page_index.h"

extern "C" __global__ void __launch_bounds__(kvcast::kernels::kThreads)
    kvcast_update_table(const kvcast::kernels::UpdateTableArgs args) {
  using namespace kvcast::kernels;
  const u64 threads = u64{gridDim.x} * blockDim.x;
  for (u64 i = u64{blockIdx.x} * blockDim.x + threadIdx.x; i < args.count; i += threads) {
    const TableEntry entry = Load<TableEntry>(args.entries + i * sizeof(TableEntry));
    // Outside the table there is somebody else's memory.
    if (entry.row >= args.rows || entry.column >= args.columns) continue;
    Store<int>(args.table + CellOf(args.row_stride, entry.row, entry.column) * sizeof(int),
               entry.value);
  }
}
