// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // The library reads the argument arrays, writes the result arrays and keeps no
// // pointer to either once it returns; it has no callbacks at all.
// #cgo noescape kvc_sequences_fork
// #cgo nocallback kvc_sequences_fork
// #cgo noescape kvc_sequences_cancel
// #cgo nocallback kvc_sequences_cancel
// #cgo noescape kvc_sequences_release_held
// #cgo nocallback kvc_sequences_release_held
// #cgo noescape kvc_holds_release
// #cgo nocallback kvc_holds_release
// #cgo noescape kvc_sequences_suspend
// #cgo nocallback kvc_sequences_suspend
// #cgo noescape kvc_sequences_resume
// #cgo nocallback kvc_sequences_resume
// #cgo noescape kvc_sequences_truncate
// #cgo nocallback kvc_sequences_truncate
// #cgo noescape kvc_sequences_stop
// #cgo nocallback kvc_sequences_stop
import "C"

import "unsafe"

// The flags of Prompt and SuspendItem, the states of SequenceInfo.
const (
	PromptSuspended  uint32 = C.KVC_PROMPT_SUSPENDED
	PromptStopBefore uint32 = C.KVC_PROMPT_STOP_BEFORE
	PromptMark       uint32 = C.KVC_PROMPT_MARK
	PromptWait       uint32 = C.KVC_PROMPT_WAIT

	CommitFence uint32 = C.KVC_COMMIT_FENCE

	HoldCancel uint32 = C.KVC_HOLD_CANCEL

	SuspendKeep uint32 = C.KVC_SUSPEND_KEEP

	SequenceSuspended uint32 = C.KVC_SEQUENCE_SUSPENDED
	SequenceActive    uint32 = C.KVC_SEQUENCE_ACTIVE
)

// ForkItem is kvc_fork_item.
type ForkItem struct {
	Sequence     uint64
	DeviceStream uint64
}

// ForkResult is kvc_fork_result.
type ForkResult struct {
	Status          Status
	WaitCount       uint32
	Sequence        uint64
	CommittedTokens uint64
	Waits           [MaxWaits]Fence
}

// HoldItem is kvc_hold_item.
type HoldItem struct {
	Sequence uint64
	Count    uint32
	Flags    uint32
}

// HoldResult is kvc_hold_result.
type HoldResult struct {
	Status Status
	_      uint32
	Hold   uint64
}

// SuspendItem is kvc_suspend_item.
type SuspendItem struct {
	Sequence uint64
	Flags    uint32
	_        uint32
}

// ResumeResult is kvc_resume_result.
type ResumeResult struct {
	Status          Status
	WaitCount       uint32
	CommittedTokens uint64
	LostTokens      uint64
	PendingTokens   uint64
	PendingSequence uint64
	Waits           [MaxWaits]Fence
}

// TruncateItem is kvc_truncate_item.
type TruncateItem struct {
	Sequence       uint64
	CapacityTokens uint64
}

// TruncateResult is kvc_truncate_result.
type TruncateResult struct {
	Status     Status
	FreedPages uint32
}

// StopItem is kvc_stop_item.
type StopItem struct {
	Sequence   uint64
	StopBefore uint64
}

// SequencesCancel closes sequences; results must be as long as sequences.
func (m Manager) SequencesCancel(sequences []uint64, results []Status, err *Error) Status {
	_ = results[:len(sequences)]
	return Status(C.kvc_sequences_cancel(m.c, C.uint32_t(len(sequences)),
		(*C.uint64_t)(unsafe.SliceData(sequences)),
		(*C.kvc_status)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// SequencesReleaseHeld turns sequences into holds; results must be as long as
// items.
func (m Manager) SequencesReleaseHeld(items []HoldItem, results []HoldResult, err *Error) Status {
	_ = results[:len(items)]
	return Status(C.kvc_sequences_release_held(m.c, C.uint32_t(len(items)),
		(*C.kvc_hold_item)(unsafe.Pointer(unsafe.SliceData(items))),
		(*C.kvc_hold_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// HoldsRelease releases holds once each; results must be as long as holds.
func (m Manager) HoldsRelease(holds []uint64, results []Status, err *Error) Status {
	_ = results[:len(holds)]
	return Status(C.kvc_holds_release(m.c, C.uint32_t(len(holds)),
		(*C.uint64_t)(unsafe.SliceData(holds)),
		(*C.kvc_status)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// SequencesSuspend suspends sequences; results must be as long as items.
func (m Manager) SequencesSuspend(items []SuspendItem, results []Status, err *Error) Status {
	_ = results[:len(items)]
	return Status(C.kvc_sequences_suspend(m.c, C.uint32_t(len(items)),
		(*C.kvc_suspend_item)(unsafe.Pointer(unsafe.SliceData(items))),
		(*C.kvc_status)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// SequencesFork opens forks of sequences; results must be as long as items.
func (m Manager) SequencesFork(items []ForkItem, results []ForkResult, err *Error) Status {
	_ = results[:len(items)]
	return Status(C.kvc_sequences_fork(m.c, C.uint32_t(len(items)),
		(*C.kvc_fork_item)(unsafe.Pointer(unsafe.SliceData(items))),
		(*C.kvc_fork_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// SequencesResume makes sequences active; results must be as long as sequences.
func (m Manager) SequencesResume(sequences []uint64, results []ResumeResult, err *Error) Status {
	_ = results[:len(sequences)]
	return Status(C.kvc_sequences_resume(m.c, C.uint32_t(len(sequences)),
		(*C.uint64_t)(unsafe.SliceData(sequences)),
		(*C.kvc_resume_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// SequencesTruncate gives room back; results must be as long as items.
func (m Manager) SequencesTruncate(items []TruncateItem, results []TruncateResult,
	err *Error) Status {
	_ = results[:len(items)]
	return Status(C.kvc_sequences_truncate(m.c, C.uint32_t(len(items)),
		(*C.kvc_truncate_item)(unsafe.Pointer(unsafe.SliceData(items))),
		(*C.kvc_truncate_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// SequencesStop ends the making of reusable blocks; results must be as long as
// items.
func (m Manager) SequencesStop(items []StopItem, results []Status, err *Error) Status {
	_ = results[:len(items)]
	return Status(C.kvc_sequences_stop(m.c, C.uint32_t(len(items)),
		(*C.kvc_stop_item)(unsafe.Pointer(unsafe.SliceData(items))),
		(*C.kvc_status)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}
