// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package cuda compiles the CUDA device into Go programs. It has no Go API.
// Nothing of CUDA is needed to build it, and nothing to start what was built:
// the driver is looked for at run time, when a CUDA device is first asked for.
//
// Package inventory, below, tells which NVIDIA GPUs a machine has; package
// cuinterop, with the build tag cuda, hands over contexts and streams of
// gorgonia.org/cu.
package cuda
