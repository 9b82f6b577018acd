// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package cuda is the place of the CUDA device. This version of kvcast has the
// host device only; what is here already is package inventory, which tells
// which NVIDIA GPUs a machine has.
package cuda
