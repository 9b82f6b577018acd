// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // The calls of every scheduler step. The library reads the argument arrays,
// // writes the result arrays and keeps no pointer to either once it returns, so
// // they may stay on the goroutine's stack; it has no callbacks at all.
// #cgo noescape kvc_sequences_create
// #cgo nocallback kvc_sequences_create
// #cgo noescape kvc_probe
// #cgo nocallback kvc_probe
// #cgo noescape kvc_sequences_grow
// #cgo nocallback kvc_sequences_grow
// #cgo noescape kvc_sequences_commit
// #cgo nocallback kvc_sequences_commit
// #cgo noescape kvc_sequences_release
// #cgo nocallback kvc_sequences_release
// #cgo noescape kvc_sequence_get
// #cgo nocallback kvc_sequence_get
import "C"

import "unsafe"

// Limits and marks of the ABI.
const (
	// MaxWaits is how many fences a result names itself; SequenceWaits has all.
	MaxWaits = C.KVC_MAX_WAITS
	// NoScope in Prompt.Scope stands for the empty scope.
	NoScope uint32 = C.KVC_NO_SCOPE
	// ComputeNothing in Prompt.MustCompute allows a full hit; 0 there means 1.
	ComputeNothing uint32 = C.KVC_COMPUTE_NOTHING
	// DigestBit marks tokens that name a digest.
	DigestBit uint32 = C.KVC_DIGEST_BIT
	// NoBlock in CommitResult.FirstChangedBlock says that no page changed.
	NoBlock uint32 = 1<<32 - 1
)

// The parts of a scope that are present.
const (
	ScopeLoRAID    = C.KVC_SCOPE_LORA_ID
	ScopeSalt      = C.KVC_SCOPE_SALT
	ScopeLoRAName  = C.KVC_SCOPE_LORA_NAME
	ScopeSaltBytes = C.KVC_SCOPE_SALT_BYTES
)

// Scope is kvc_scope.
type Scope struct {
	Parts           uint32
	_               uint32
	LoRAID          uint64
	Salt            uint64
	LoRANameOffset  uint64
	SaltBytesOffset uint64
	LoRANameSize    uint32
	SaltBytesSize   uint32
}

// Fence is kvc_fence.
type Fence struct {
	DeviceStream uint64
	Position     uint64
}

// Prompt is kvc_prompt.
type Prompt struct {
	TokenOffset  uint64
	TokenCount   uint64
	DeviceStream uint64
	Scope        uint32
	MustCompute  uint32
	Flags        uint32
	MatchBackoff uint32
	StopBefore   uint64
	DigestOffset uint64
	DigestCount  uint32
	_            uint32
}

// CreateResult is kvc_create_result.
type CreateResult struct {
	Status        Status
	WaitCount     uint32
	Sequence      uint64
	MatchedTokens uint64
	// The part of the prompt that an older sequence computes.
	PendingTokens   uint64
	PendingSequence uint64
	// Of a partly filled block that was matched: 0 tokens if there is none.
	CopiedTokens uint32
	CopiedFrom   uint32
	CopiedTo     uint32
	_            uint32
	Waits        [MaxWaits]Fence
}

// ProbeResult is kvc_probe_result.
type ProbeResult struct {
	Status        Status
	_             uint32
	MatchedTokens uint64
	PendingTokens uint64
}

// GrowItem is kvc_grow_item.
type GrowItem struct {
	Sequence       uint64
	CapacityTokens uint64
}

// GrowResult is kvc_grow_result.
type GrowResult struct {
	Status        Status
	AddedPages    uint32
	EvictedBlocks uint32
	LeavingPages  uint32
	FirstEvicted  uint32
	CopiedBlock   uint32
	CopiedFrom    uint32
	CopiedTo      uint32
	CopiedTokens  uint32
	WaitCount     uint32
	Wait          Fence
}

// NoCopy is KVC_NO_COPY.
const NoCopy uint32 = C.KVC_NO_COPY

// CommitItem is kvc_commit_item.
type CommitItem struct {
	Sequence     uint64
	TokenOffset  uint64
	TokenCount   uint64
	Flags        uint32
	DigestCount  uint32
	Fence        Fence
	DigestOffset uint64
}

// CommitResult is kvc_commit_result.
type CommitResult struct {
	Status             Status
	StoredBlocks       uint32
	DeduplicatedBlocks uint32
	FirstChangedBlock  uint32
	CommittedTokens    uint64
	WaitCount          uint32
	_                  uint32
	Waits              [MaxWaits]Fence
}

// SequenceInfo is kvc_sequence_info.
type SequenceInfo struct {
	CommittedTokens uint64
	MatchedTokens   uint64
	CapacityTokens  uint64
	DeviceStream    uint64
	PageCount       uint32
	Detached        uint32
	State           uint32
	ReusableBlocks  uint32
}

// SequencesCreate opens len(prompts) sequences; results must be as long.
func (m Manager) SequencesCreate(prompts []Prompt, tokens []uint32, scopes []Scope, bytes []byte,
	results []CreateResult, err *Error) Status {
	_ = results[:len(prompts)]
	return Status(C.kvc_sequences_create(m.c, C.uint32_t(len(prompts)),
		(*C.kvc_prompt)(unsafe.Pointer(unsafe.SliceData(prompts))),
		(*C.uint32_t)(unsafe.SliceData(tokens)), C.uint64_t(len(tokens)),
		(*C.kvc_scope)(unsafe.Pointer(unsafe.SliceData(scopes))), C.uint32_t(len(scopes)),
		(*C.uint8_t)(unsafe.SliceData(bytes)), C.uint64_t(len(bytes)),
		(*C.kvc_create_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// Probe looks up len(prompts) prompts; results must be as long.
func (m Manager) Probe(prompts []Prompt, tokens []uint32, scopes []Scope, bytes []byte,
	results []ProbeResult, err *Error) Status {
	_ = results[:len(prompts)]
	return Status(C.kvc_probe(m.c, C.uint32_t(len(prompts)),
		(*C.kvc_prompt)(unsafe.Pointer(unsafe.SliceData(prompts))),
		(*C.uint32_t)(unsafe.SliceData(tokens)), C.uint64_t(len(tokens)),
		(*C.kvc_scope)(unsafe.Pointer(unsafe.SliceData(scopes))), C.uint32_t(len(scopes)),
		(*C.uint8_t)(unsafe.SliceData(bytes)), C.uint64_t(len(bytes)),
		(*C.kvc_probe_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// SequencesGrow gives sequences room; results must be as long as items. It
// returns how many entries of evicted it has written; evicted may be empty.
func (m Manager) SequencesGrow(items []GrowItem, results []GrowResult, evicted []EvictedBlock,
	err *Error) (int, Status) {
	_ = results[:len(items)]
	var told C.uint32_t
	s := C.kvc_sequences_grow(m.c, C.uint32_t(len(items)),
		(*C.kvc_grow_item)(unsafe.Pointer(unsafe.SliceData(items))),
		(*C.kvc_grow_result)(unsafe.Pointer(unsafe.SliceData(results))),
		(*C.kvc_evicted_block)(unsafe.Pointer(unsafe.SliceData(evicted))),
		C.uint32_t(len(evicted)), &told, err.c())
	return int(told), Status(s)
}

// SequencesCommit appends tokens, whose digests are in bytes; results must be as
// long as items.
func (m Manager) SequencesCommit(items []CommitItem, tokens []uint32, bytes []byte,
	results []CommitResult, err *Error) Status {
	_ = results[:len(items)]
	return Status(C.kvc_sequences_commit(m.c, C.uint32_t(len(items)),
		(*C.kvc_commit_item)(unsafe.Pointer(unsafe.SliceData(items))),
		(*C.uint32_t)(unsafe.SliceData(tokens)), C.uint64_t(len(tokens)),
		(*C.uint8_t)(unsafe.SliceData(bytes)), C.uint64_t(len(bytes)),
		(*C.kvc_commit_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// SequencesRelease closes sequences; results must be as long as sequences.
func (m Manager) SequencesRelease(sequences []uint64, results []Status, err *Error) Status {
	_ = results[:len(sequences)]
	return Status(C.kvc_sequences_release(m.c, C.uint32_t(len(sequences)),
		(*C.uint64_t)(unsafe.SliceData(sequences)),
		(*C.kvc_status)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// SequenceWaits reads all fences that the last create, resume or commit of a sequence
// named, and returns their number (at most 63) also when fences is too short.
func (m Manager) SequenceWaits(sequence uint64, fences []Fence, err *Error) (int, Status) {
	var count C.uint32_t
	s := C.kvc_sequence_waits(m.c, C.uint64_t(sequence), C.uint32_t(len(fences)),
		(*C.kvc_fence)(unsafe.Pointer(unsafe.SliceData(fences))), &count, err.c())
	return int(count), Status(s)
}

// SequenceGet reads a sequence's pages from firstBlock on into pages and
// returns how many were written. info must not be nil.
func (m Manager) SequenceGet(sequence uint64, firstBlock uint32, pages []uint32,
	info *SequenceInfo, err *Error) (int, Status) {
	var written C.uint32_t
	s := C.kvc_sequence_get(m.c, C.uint64_t(sequence), C.uint32_t(firstBlock),
		C.uint32_t(len(pages)), (*C.uint32_t)(unsafe.SliceData(pages)), &written,
		(*C.kvc_sequence_info)(unsafe.Pointer(info)), err.c())
	return int(written), Status(s)
}
