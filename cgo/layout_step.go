// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
import "C"

import "unsafe"

// As in layout.go: a difference between the Go and the C struct does not compile.
var (
	// kvc_op
	_ [0]struct{} = [unsafe.Sizeof(Op{}) - unsafe.Sizeof(C.kvc_op{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Op{}.Kind) - unsafe.Offsetof(C.kvc_op{}.kind)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Op{}.Kind) - unsafe.Sizeof(C.kvc_op{}.kind)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Op{}.Args) - unsafe.Offsetof(C.kvc_op{}.args)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Op{}.Args) - unsafe.Sizeof(C.kvc_op{}.args)]struct{}{}

	// kvc_op_table
	_ [0]struct{} = [unsafe.Sizeof(OpTableItem{}) - unsafe.Sizeof(C.kvc_op_table{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpTableItem{}.Sequence) - unsafe.Offsetof(C.kvc_op_table{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpTableItem{}.Sequence) - unsafe.Sizeof(C.kvc_op_table{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpTableItem{}.Group) - unsafe.Offsetof(C.kvc_op_table{}.group)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpTableItem{}.Group) - unsafe.Sizeof(C.kvc_op_table{}.group)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpTableItem{}.Row) - unsafe.Offsetof(C.kvc_op_table{}.row)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpTableItem{}.Row) - unsafe.Sizeof(C.kvc_op_table{}.row)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpTableItem{}.Cookie) - unsafe.Offsetof(C.kvc_op_table{}.cookie)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpTableItem{}.Cookie) - unsafe.Sizeof(C.kvc_op_table{}.cookie)]struct{}{}

	// kvc_op_result
	_ [0]struct{} = [unsafe.Sizeof(OpResult{}) - unsafe.Sizeof(C.kvc_op_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpResult{}.Status) - unsafe.Offsetof(C.kvc_op_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpResult{}.Status) - unsafe.Sizeof(C.kvc_op_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpResult{}.FirstWait) - unsafe.Offsetof(C.kvc_op_result{}.first_wait)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpResult{}.FirstWait) - unsafe.Sizeof(C.kvc_op_result{}.first_wait)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpResult{}.WaitCount) - unsafe.Offsetof(C.kvc_op_result{}.wait_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpResult{}.WaitCount) - unsafe.Sizeof(C.kvc_op_result{}.wait_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpResult{}.Sequence) - unsafe.Offsetof(C.kvc_op_result{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpResult{}.Sequence) - unsafe.Sizeof(C.kvc_op_result{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpResult{}.Of) - unsafe.Offsetof(C.kvc_op_result{}.of)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpResult{}.Of) - unsafe.Sizeof(C.kvc_op_result{}.of)]struct{}{}

	// kvc_op_created
	_ [0]struct{} = [unsafe.Sizeof(OpCreated{}) - unsafe.Sizeof(C.kvc_op_created{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpCreated{}.MatchedTokens) - unsafe.Offsetof(C.kvc_op_created{}.matched_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpCreated{}.MatchedTokens) - unsafe.Sizeof(C.kvc_op_created{}.matched_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpCreated{}.PendingTokens) - unsafe.Offsetof(C.kvc_op_created{}.pending_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpCreated{}.PendingTokens) - unsafe.Sizeof(C.kvc_op_created{}.pending_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpCreated{}.PendingSequence) - unsafe.Offsetof(C.kvc_op_created{}.pending_sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpCreated{}.PendingSequence) - unsafe.Sizeof(C.kvc_op_created{}.pending_sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpCreated{}.CopiedTokens) - unsafe.Offsetof(C.kvc_op_created{}.copied_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpCreated{}.CopiedTokens) - unsafe.Sizeof(C.kvc_op_created{}.copied_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpCreated{}.CopiedFrom) - unsafe.Offsetof(C.kvc_op_created{}.copied_from)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpCreated{}.CopiedFrom) - unsafe.Sizeof(C.kvc_op_created{}.copied_from)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpCreated{}.CopiedTo) - unsafe.Offsetof(C.kvc_op_created{}.copied_to)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpCreated{}.CopiedTo) - unsafe.Sizeof(C.kvc_op_created{}.copied_to)]struct{}{}

	// kvc_op_grown
	_ [0]struct{} = [unsafe.Sizeof(OpGrown{}) - unsafe.Sizeof(C.kvc_op_grown{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpGrown{}.AddedPages) - unsafe.Offsetof(C.kvc_op_grown{}.added_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpGrown{}.AddedPages) - unsafe.Sizeof(C.kvc_op_grown{}.added_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpGrown{}.EvictedBlocks) - unsafe.Offsetof(C.kvc_op_grown{}.evicted_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpGrown{}.EvictedBlocks) - unsafe.Sizeof(C.kvc_op_grown{}.evicted_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpGrown{}.LeavingPages) - unsafe.Offsetof(C.kvc_op_grown{}.leaving_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpGrown{}.LeavingPages) - unsafe.Sizeof(C.kvc_op_grown{}.leaving_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpGrown{}.FirstEvicted) - unsafe.Offsetof(C.kvc_op_grown{}.first_evicted)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpGrown{}.FirstEvicted) - unsafe.Sizeof(C.kvc_op_grown{}.first_evicted)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpGrown{}.CopiedBlock) - unsafe.Offsetof(C.kvc_op_grown{}.copied_block)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpGrown{}.CopiedBlock) - unsafe.Sizeof(C.kvc_op_grown{}.copied_block)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpGrown{}.CopiedFrom) - unsafe.Offsetof(C.kvc_op_grown{}.copied_from)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpGrown{}.CopiedFrom) - unsafe.Sizeof(C.kvc_op_grown{}.copied_from)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpGrown{}.CopiedTo) - unsafe.Offsetof(C.kvc_op_grown{}.copied_to)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpGrown{}.CopiedTo) - unsafe.Sizeof(C.kvc_op_grown{}.copied_to)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpGrown{}.CopiedTokens) - unsafe.Offsetof(C.kvc_op_grown{}.copied_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpGrown{}.CopiedTokens) - unsafe.Sizeof(C.kvc_op_grown{}.copied_tokens)]struct{}{}

	// kvc_op_committed
	_ [0]struct{} = [unsafe.Sizeof(OpCommitted{}) - unsafe.Sizeof(C.kvc_op_committed{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpCommitted{}.StoredBlocks) - unsafe.Offsetof(C.kvc_op_committed{}.stored_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpCommitted{}.StoredBlocks) - unsafe.Sizeof(C.kvc_op_committed{}.stored_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpCommitted{}.DeduplicatedBlocks) - unsafe.Offsetof(C.kvc_op_committed{}.deduplicated_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpCommitted{}.DeduplicatedBlocks) - unsafe.Sizeof(C.kvc_op_committed{}.deduplicated_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpCommitted{}.FirstChangedBlock) - unsafe.Offsetof(C.kvc_op_committed{}.first_changed_block)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpCommitted{}.FirstChangedBlock) - unsafe.Sizeof(C.kvc_op_committed{}.first_changed_block)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpCommitted{}.CommittedTokens) - unsafe.Offsetof(C.kvc_op_committed{}.committed_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpCommitted{}.CommittedTokens) - unsafe.Sizeof(C.kvc_op_committed{}.committed_tokens)]struct{}{}

	// kvc_op_resumed
	_ [0]struct{} = [unsafe.Sizeof(OpResumed{}) - unsafe.Sizeof(C.kvc_op_resumed{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpResumed{}.CommittedTokens) - unsafe.Offsetof(C.kvc_op_resumed{}.committed_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpResumed{}.CommittedTokens) - unsafe.Sizeof(C.kvc_op_resumed{}.committed_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpResumed{}.LostTokens) - unsafe.Offsetof(C.kvc_op_resumed{}.lost_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpResumed{}.LostTokens) - unsafe.Sizeof(C.kvc_op_resumed{}.lost_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpResumed{}.PendingTokens) - unsafe.Offsetof(C.kvc_op_resumed{}.pending_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpResumed{}.PendingTokens) - unsafe.Sizeof(C.kvc_op_resumed{}.pending_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpResumed{}.PendingSequence) - unsafe.Offsetof(C.kvc_op_resumed{}.pending_sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpResumed{}.PendingSequence) - unsafe.Sizeof(C.kvc_op_resumed{}.pending_sequence)]struct{}{}

	// kvc_op_pinned
	_ [0]struct{} = [unsafe.Sizeof(OpPinned{}) - unsafe.Sizeof(C.kvc_op_pinned{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpPinned{}.Pin) - unsafe.Offsetof(C.kvc_op_pinned{}.pin)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpPinned{}.Pin) - unsafe.Sizeof(C.kvc_op_pinned{}.pin)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpPinned{}.PinnedBlocks) - unsafe.Offsetof(C.kvc_op_pinned{}.pinned_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpPinned{}.PinnedBlocks) - unsafe.Sizeof(C.kvc_op_pinned{}.pinned_blocks)]struct{}{}

	// kvc_op_tabled
	_ [0]struct{} = [unsafe.Sizeof(OpTabled{}) - unsafe.Sizeof(C.kvc_op_tabled{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpTabled{}.Entries) - unsafe.Offsetof(C.kvc_op_tabled{}.entries)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpTabled{}.Entries) - unsafe.Sizeof(C.kvc_op_tabled{}.entries)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpTabled{}.FirstDelta) - unsafe.Offsetof(C.kvc_op_tabled{}.first_delta)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpTabled{}.FirstDelta) - unsafe.Sizeof(C.kvc_op_tabled{}.first_delta)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(OpTabled{}.KVTokens) - unsafe.Offsetof(C.kvc_op_tabled{}.kv_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(OpTabled{}.KVTokens) - unsafe.Sizeof(C.kvc_op_tabled{}.kv_tokens)]struct{}{}
)
