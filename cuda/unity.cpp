// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The one file that cgo compiles; CMake compiles the same sources one by one.
#include "cuda/src/budget.cpp"
#include "cuda/src/calibrate.cpp"
#include "cuda/src/context.cpp"
#include "cuda/src/copy_plan.cpp"
#include "cuda/src/cuda_capi.cpp"
#include "cuda/src/cuda_device.cpp"
#include "cuda/src/cuda_tables.cpp"
#include "cuda/src/device_loss.cpp"
#include "cuda/src/driver_api.cpp"
#include "cuda/src/event_pool.cpp"
#include "cuda/src/kernel_image.cpp"
#include "cuda/src/page_copier.cpp"
#include "cuda/src/pinned_ring.cpp"
#include "cuda/src/pool_memory.cpp"
#include "cuda/src/pool_worker.cpp"
#include "cuda/src/staging.cpp"
#include "cuda/src/stream_table.cpp"
#include "cuda/src/submission.cpp"
