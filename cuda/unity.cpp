// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The one file that cgo compiles; CMake compiles the same sources one by one.
#include "cuda/src/context.cpp"
#include "cuda/src/driver_api.cpp"
