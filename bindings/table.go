// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

// TableFormat says what stands in a block table for the pages of a sequence:
// kernel block i of page p becomes (p*IndexScale+IndexOffset)*Expansion+i. The
// zero value names pages by their ids. A TensorView has the one of its kernels.
type TableFormat struct {
	// IndexScale is that of a kernel's buffer; 0 = 1.
	IndexScale  int
	IndexOffset int
	// Expansion is how many entries a page has, a divisor of the manager's
	// TokensPerBlock; 0 = 1.
	Expansion int
	// Absent stands where there is no page; nil = -1. A geometry's padding page is
	// for kernels that read it all the same.
	Absent *int32
}
