// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // As for the calls in sequence.go: arrays are read and written during the
// // call only, and there are no callbacks.
// #cgo noescape kvc_residency
// #cgo nocallback kvc_residency
import "C"

import "unsafe"

// Marks of the ABI.
const (
	// NoBlockID in EvictedBlock.Parent says that the block was a prompt's first.
	NoBlockID uint64 = C.KVC_NO_BLOCK
	// NotTold in GrowResult.FirstEvicted says that nothing was evicted or that
	// there was no room to tell it.
	NotTold uint32 = C.KVC_NOT_TOLD
)

// Why a block was evicted.
const (
	EvictedCapacity = C.KVC_EVICTED_CAPACITY
)

// Flags of a resident block.
const (
	BlockAnnounced = C.KVC_BLOCK_ANNOUNCED
	BlockHeld      = C.KVC_BLOCK_HELD
)

// EvictedBlock is kvc_evicted_block.
type EvictedBlock struct {
	Block     uint64
	Parent    uint64
	Page      uint32
	Reason    uint32
	Copies    uint32
	Announced uint32
}

// BlockResidency is kvc_block_residency.
type BlockResidency struct {
	Block  uint64
	Copies uint32
	Flags  uint32
}

// ResidencyResult is kvc_residency_result.
type ResidencyResult struct {
	Status         Status
	ResidentBlocks uint32
	FirstBlock     uint64
}

// Residency says where the blocks of prompts are; results must be as long as
// prompts.
func (m Manager) Residency(prompts []Prompt, tokens []uint32, scopes []Scope, bytes []byte,
	blocks []BlockResidency, results []ResidencyResult, err *Error) Status {
	_ = results[:len(prompts)]
	return Status(C.kvc_residency(m.c, C.uint32_t(len(prompts)),
		(*C.kvc_prompt)(unsafe.Pointer(unsafe.SliceData(prompts))),
		(*C.uint32_t)(unsafe.SliceData(tokens)), C.uint64_t(len(tokens)),
		(*C.kvc_scope)(unsafe.Pointer(unsafe.SliceData(scopes))), C.uint32_t(len(scopes)),
		(*C.uint8_t)(unsafe.SliceData(bytes)), C.uint64_t(len(bytes)),
		C.uint64_t(len(blocks)),
		(*C.kvc_block_residency)(unsafe.Pointer(unsafe.SliceData(blocks))),
		(*C.kvc_residency_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}
