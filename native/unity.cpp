// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The one file that cgo compiles: cgo compiles serially, and one unit takes a
// fifth of the time of many. CMake compiles the same sources one by one.
#include "native/src/block_key.cpp"
#include "native/src/capi.cpp"
#include "native/src/check.cpp"
#include "native/src/commit.cpp"
#include "native/src/create.cpp"
#include "native/src/fence_pool.cpp"
#include "native/src/geometry.cpp"
#include "native/src/geometry_capi.cpp"
#include "native/src/grow.cpp"
#include "native/src/host_device.cpp"
#include "native/src/host_memory.cpp"
#include "native/src/kernel_view.cpp"
#include "native/src/manager.cpp"
#include "native/src/page_pool.cpp"
#include "native/src/prefix_tree.cpp"
#include "native/src/release.cpp"
#include "native/src/residency.cpp"
#include "native/src/sequence_capi.cpp"
#include "native/src/sequences.cpp"
#include "native/src/sha256.cpp"
#include "native/src/suspend.cpp"
#include "native/src/truncate.cpp"
