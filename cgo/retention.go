// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // As for the calls in sequence.go: arrays are read and written during the
// // call only, and there are no callbacks.
// #cgo noescape kvc_residency
// #cgo nocallback kvc_residency
// #cgo noescape kvc_sequences_end
// #cgo nocallback kvc_sequences_end
// #cgo noescape kvc_sequences_retain
// #cgo nocallback kvc_sequences_retain
// #cgo noescape kvc_expire
// #cgo nocallback kvc_expire
// #cgo noescape kvc_pin_prompts
// #cgo nocallback kvc_pin_prompts
// #cgo noescape kvc_pin_sequences
// #cgo nocallback kvc_pin_sequences
// #cgo noescape kvc_unpin
// #cgo nocallback kvc_unpin
import "C"

import "unsafe"

// Marks of the ABI.
const (
	// NoBlockID in EvictedBlock.Parent says that the block was a prompt's first.
	NoBlockID uint64 = C.KVC_NO_BLOCK
	// NotTold in GrowResult.FirstEvicted says that nothing was evicted or that
	// there was no room to tell it.
	NotTold uint32 = C.KVC_NOT_TOLD
	// DefaultPriority and MaxPriority of blocks.
	DefaultPriority = C.KVC_DEFAULT_PRIORITY
	MaxPriority     = C.KVC_MAX_PRIORITY
	// ToTheEnd in RetainItem.EndToken takes in blocks that are committed later.
	ToTheEnd uint64 = C.KVC_TO_THE_END
)

// Why a block was evicted.
const (
	EvictedCapacity = C.KVC_EVICTED_CAPACITY
	EvictedTTL      = C.KVC_EVICTED_TTL
	EvictedEnded    = C.KVC_EVICTED_ENDED
	EvictedScope    = C.KVC_EVICTED_SCOPE
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
	Priority  uint32
	_         uint32
}

// PinResult is kvc_pin_result.
type PinResult struct {
	Status       Status
	PinnedBlocks uint32
	Pin          uint64
}

// DropEvery is KVC_DROP_EVERY.
const DropEvery = C.KVC_DROP_EVERY

// DropItem is kvc_drop_item.
type DropItem struct {
	Scope uint32
	Flags uint32
}

// DropResult is kvc_drop_result.
type DropResult struct {
	Status            Status
	DroppedScopes     uint32
	DroppedBlocks     uint32
	DetachedSequences uint32
	FirstEvicted      uint32
	_                 uint32
}

// RetainItem is kvc_retain_item.
type RetainItem struct {
	Sequence   uint64
	FirstToken uint64
	EndToken   uint64
	ExpiresNs  uint64
	Priority   uint32
	_          uint32
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

// SequencesEnd closes sequences whose conversations are over; results must be
// as long as sequences.
func (m Manager) SequencesEnd(sequences []uint64, results []Status, err *Error) Status {
	_ = results[:len(sequences)]
	return Status(C.kvc_sequences_end(m.c, C.uint32_t(len(sequences)),
		(*C.uint64_t)(unsafe.SliceData(sequences)),
		(*C.kvc_status)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// SequencesRetain says how long blocks are worth keeping; results must be as
// long as items.
func (m Manager) SequencesRetain(items []RetainItem, results []Status, err *Error) Status {
	_ = results[:len(items)]
	return Status(C.kvc_sequences_retain(m.c, C.uint32_t(len(items)),
		(*C.kvc_retain_item)(unsafe.Pointer(unsafe.SliceData(items))),
		(*C.kvc_status)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// Expire tells the time; it returns how many blocks went back to the default
// priority and whether there may be more.
func (m Manager) Expire(nowNs uint64, maxBlocks uint32, err *Error) (uint32, bool, Status) {
	var expired, more C.uint32_t
	s := C.kvc_expire(m.c, C.uint64_t(nowNs), C.uint32_t(maxBlocks), &expired, &more, err.c())
	return uint32(expired), more != 0, Status(s)
}

// PinPrompts pins the resident blocks of prompts; results must be as long as
// prompts.
func (m Manager) PinPrompts(prompts []Prompt, tokens []uint32, scopes []Scope, bytes []byte,
	results []PinResult, err *Error) Status {
	_ = results[:len(prompts)]
	return Status(C.kvc_pin_prompts(m.c, C.uint32_t(len(prompts)),
		(*C.kvc_prompt)(unsafe.Pointer(unsafe.SliceData(prompts))),
		(*C.uint32_t)(unsafe.SliceData(tokens)), C.uint64_t(len(tokens)),
		(*C.kvc_scope)(unsafe.Pointer(unsafe.SliceData(scopes))), C.uint32_t(len(scopes)),
		(*C.uint8_t)(unsafe.SliceData(bytes)), C.uint64_t(len(bytes)),
		(*C.kvc_pin_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// PinSequences pins blocks of open sequences; results must be as long as
// sequences.
func (m Manager) PinSequences(sequences []uint64, results []PinResult, err *Error) Status {
	_ = results[:len(sequences)]
	return Status(C.kvc_pin_sequences(m.c, C.uint32_t(len(sequences)),
		(*C.uint64_t)(unsafe.SliceData(sequences)),
		(*C.kvc_pin_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// Unpin ends pins; results must be as long as pins.
func (m Manager) Unpin(pins []uint64, results []Status, err *Error) Status {
	_ = results[:len(pins)]
	return Status(C.kvc_unpin(m.c, C.uint32_t(len(pins)),
		(*C.uint64_t)(unsafe.SliceData(pins)),
		(*C.kvc_status)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// DropScopes takes scopes out of the tree; results must be as long as items. It
// returns how many entries of evicted it has written; evicted may be empty.
func (m Manager) DropScopes(items []DropItem, scopes []Scope, bytes []byte, results []DropResult,
	evicted []EvictedBlock, err *Error) (int, Status) {
	_ = results[:len(items)]
	var told C.uint32_t
	s := C.kvc_drop_scopes(m.c, C.uint32_t(len(items)),
		(*C.kvc_drop_item)(unsafe.Pointer(unsafe.SliceData(items))),
		(*C.kvc_scope)(unsafe.Pointer(unsafe.SliceData(scopes))), C.uint32_t(len(scopes)),
		(*C.uint8_t)(unsafe.SliceData(bytes)), C.uint64_t(len(bytes)),
		(*C.kvc_drop_result)(unsafe.Pointer(unsafe.SliceData(results))),
		(*C.kvc_evicted_block)(unsafe.Pointer(unsafe.SliceData(evicted))),
		C.uint32_t(len(evicted)), &told, err.c())
	return int(told), Status(s)
}
