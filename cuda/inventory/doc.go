// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package inventory lists the NVIDIA GPUs of a machine through NVML, the
// management library that comes with the driver. The library is opened at run
// time: the package builds and runs without a driver, and says so.
//
// Only programs should import it, never a library: the wrapper of NVML makes
// the linker accept unresolved symbols in the whole program.
package inventory
