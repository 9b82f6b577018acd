// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // Go memory that C is given must hold no pointers to Go memory, so that the two
// // structs of pointers are filled on this side. used: deltas, evicted,
// // waits, waiters.
// static kvc_status kvcast_go_step(kvc_manager* manager, uint32_t count, const kvc_op* ops,
//                                  const uint32_t* tokens, uint64_t token_count,
//                                  const kvc_scope* scopes, uint32_t scope_count,
//                                  const uint8_t* bytes, uint64_t byte_count,
//                                  const kvc_prompt* prompts, uint32_t prompt_count,
//                                  const kvc_table_format* format, uint32_t columns,
//                                  kvc_op_result* results, kvc_table_cookie* cookies,
//                                  uint32_t cookie_count, kvc_table_delta* deltas,
//                                  uint32_t delta_capacity, kvc_evicted_block* evicted,
//                                  uint32_t evicted_capacity, kvc_fence* waits,
//                                  uint32_t wait_capacity, kvc_waiter* waiters,
//                                  uint32_t waiter_capacity, uint32_t* used, kvc_error* error) {
//   kvc_step_input in;
//   kvc_step_output out;
//   kvc_status status;
//   kvc_step_input_init(&in);
//   in.tokens = tokens;
//   in.token_count = token_count;
//   in.scopes = scopes;
//   in.scope_count = scope_count;
//   in.bytes = bytes;
//   in.byte_count = byte_count;
//   in.prompts = prompts;
//   in.prompt_count = prompt_count;
//   in.format = format;
//   in.columns = columns;
//   kvc_step_output_init(&out);
//   out.cookies = cookies;
//   out.cookie_count = cookie_count;
//   out.deltas = deltas;
//   out.delta_capacity = delta_capacity;
//   out.evicted = evicted;
//   out.evicted_capacity = evicted_capacity;
//   out.waits = waits;
//   out.wait_capacity = wait_capacity;
//   out.waiters = waiters;
//   out.waiter_capacity = waiter_capacity;
//   status = kvc_step(manager, count, ops, &in, results, &out, error);
//   used[0] = out.delta_count;
//   used[1] = out.evicted_count;
//   used[2] = out.wait_count;
//   used[3] = out.waiter_count;
//   return status;
// }
//
// // Arrays are read and written during the call only, and there are no callbacks.
// #cgo noescape kvcast_go_step
// #cgo nocallback kvcast_go_step
import "C"

import "unsafe"

// The kinds of operations.
const (
	OpCreate      uint32 = C.KVC_OP_CREATE
	OpGrow        uint32 = C.KVC_OP_GROW
	OpCommit      uint32 = C.KVC_OP_COMMIT
	OpTruncate    uint32 = C.KVC_OP_TRUNCATE
	OpStop        uint32 = C.KVC_OP_STOP
	OpSuspend     uint32 = C.KVC_OP_SUSPEND
	OpResume      uint32 = C.KVC_OP_RESUME
	OpRelease     uint32 = C.KVC_OP_RELEASE
	OpCancel      uint32 = C.KVC_OP_CANCEL
	OpEnd         uint32 = C.KVC_OP_END
	OpHold        uint32 = C.KVC_OP_HOLD
	OpReleaseHold uint32 = C.KVC_OP_RELEASE_HOLD
	OpRetain      uint32 = C.KVC_OP_RETAIN
	OpPin         uint32 = C.KVC_OP_PIN
	OpUnpin       uint32 = C.KVC_OP_UNPIN
	OpTable       uint32 = C.KVC_OP_TABLE
	OpFork        uint32 = C.KVC_OP_FORK
)

// StepResult, or-ed with the index of a create or a fork, stands for the sequence that it
// opens.
const StepResult uint64 = C.KVC_STEP_RESULT

// Op is kvc_op. Args holds the arguments of its kind; the methods that are named
// after the members of the C union give access to them.
type Op struct {
	Kind uint32
	_    uint32
	Args [7]uint64
}

// Grow is the member grow.
func (o *Op) Grow() *GrowItem { return (*GrowItem)(unsafe.Pointer(&o.Args)) }

// Commit is the member commit.
func (o *Op) Commit() *CommitItem { return (*CommitItem)(unsafe.Pointer(&o.Args)) }

// Truncate is the member truncate.
func (o *Op) Truncate() *TruncateItem { return (*TruncateItem)(unsafe.Pointer(&o.Args)) }

// Stop is the member stop.
func (o *Op) Stop() *StopItem { return (*StopItem)(unsafe.Pointer(&o.Args)) }

// Suspend is the member suspend.
func (o *Op) Suspend() *SuspendItem { return (*SuspendItem)(unsafe.Pointer(&o.Args)) }

// Hold is the member hold.
func (o *Op) Hold() *HoldItem { return (*HoldItem)(unsafe.Pointer(&o.Args)) }

// Retain is the member retain.
func (o *Op) Retain() *RetainItem { return (*RetainItem)(unsafe.Pointer(&o.Args)) }

// Table is the member table.
func (o *Op) Table() *OpTableItem { return (*OpTableItem)(unsafe.Pointer(&o.Args)) }

// Fork is the member fork.
func (o *Op) Fork() *ForkItem { return (*ForkItem)(unsafe.Pointer(&o.Args)) }

// Handle is the members prompt, sequence and handle.
func (o *Op) Handle() *uint64 { return &o.Args[0] }

// OpTableItem is kvc_op_table.
type OpTableItem struct {
	Sequence uint64
	Group    uint32
	Row      uint32
	Cookie   uint32
	_        uint32
}

// OpResult is kvc_op_result, with methods as Op has them.
type OpResult struct {
	Status    Status
	FirstWait uint32
	WaitCount uint32
	_         uint32
	Sequence  uint64
	Of        [5]uint64
}

// Number is the members freed_pages, hold and forked_tokens.
func (r *OpResult) Number() uint64 { return r.Of[0] }

// Created is the member created.
func (r *OpResult) Created() *OpCreated { return (*OpCreated)(unsafe.Pointer(&r.Of)) }

// Grown is the member grown.
func (r *OpResult) Grown() *OpGrown { return (*OpGrown)(unsafe.Pointer(&r.Of)) }

// Committed is the member committed.
func (r *OpResult) Committed() *OpCommitted { return (*OpCommitted)(unsafe.Pointer(&r.Of)) }

// Resumed is the member resumed.
func (r *OpResult) Resumed() *OpResumed { return (*OpResumed)(unsafe.Pointer(&r.Of)) }

// Pinned is the member pinned.
func (r *OpResult) Pinned() *OpPinned { return (*OpPinned)(unsafe.Pointer(&r.Of)) }

// Tabled is the member tabled.
func (r *OpResult) Tabled() *OpTabled { return (*OpTabled)(unsafe.Pointer(&r.Of)) }

// OpCreated is kvc_op_created.
type OpCreated struct {
	MatchedTokens   uint64
	PendingTokens   uint64
	PendingSequence uint64
	CopiedTokens    uint32
	CopiedFrom      uint32
	CopiedTo        uint32
	_               uint32
}

// OpGrown is kvc_op_grown.
type OpGrown struct {
	AddedPages    uint32
	EvictedBlocks uint32
	LeavingPages  uint32
	FirstEvicted  uint32
	CopiedBlock   uint32
	CopiedFrom    uint32
	CopiedTo      uint32
	CopiedTokens  uint32
}

// OpCommitted is kvc_op_committed.
type OpCommitted struct {
	StoredBlocks       uint32
	DeduplicatedBlocks uint32
	FirstChangedBlock  uint32
	_                  uint32
	CommittedTokens    uint64
}

// OpResumed is kvc_op_resumed.
type OpResumed struct {
	CommittedTokens uint64
	LostTokens      uint64
	PendingTokens   uint64
	PendingSequence uint64
}

// OpPinned is kvc_op_pinned.
type OpPinned struct {
	Pin          uint64
	PinnedBlocks uint32
	_            uint32
}

// OpTabled is kvc_op_tabled.
type OpTabled struct {
	Entries    uint32
	FirstDelta uint32
	KVTokens   uint64
}

// StepInput is what the operations of a step point into.
type StepInput struct {
	Tokens  []uint32
	Scopes  []Scope
	Bytes   []byte
	Prompts []Prompt
	Format  TableFormat
	Columns uint32
}

// StepUsed is how much of the output arrays of a step was written.
type StepUsed struct {
	Deltas  uint32
	Evicted uint32
	Waits   uint32
	Waiters uint32
}

// Step executes operations; results must be as long as ops.
func Step[D TableDeltas](m Manager, ops []Op, in *StepInput, results []OpResult,
	cookies []TableCookie, deltas []D, evicted []EvictedBlock, waits []Fence, waiters []Waiter,
	err *Error) (StepUsed, Status) {
	_ = results[:len(ops)]
	var used StepUsed
	s := C.kvcast_go_step(m.c, C.uint32_t(len(ops)),
		(*C.kvc_op)(unsafe.Pointer(unsafe.SliceData(ops))),
		(*C.uint32_t)(unsafe.SliceData(in.Tokens)), C.uint64_t(len(in.Tokens)),
		(*C.kvc_scope)(unsafe.Pointer(unsafe.SliceData(in.Scopes))), C.uint32_t(len(in.Scopes)),
		(*C.uint8_t)(unsafe.SliceData(in.Bytes)), C.uint64_t(len(in.Bytes)),
		(*C.kvc_prompt)(unsafe.Pointer(unsafe.SliceData(in.Prompts))), C.uint32_t(len(in.Prompts)),
		(*C.kvc_table_format)(unsafe.Pointer(&in.Format)), C.uint32_t(in.Columns),
		(*C.kvc_op_result)(unsafe.Pointer(unsafe.SliceData(results))),
		(*C.kvc_table_cookie)(unsafe.Pointer(unsafe.SliceData(cookies))), C.uint32_t(len(cookies)),
		(*C.kvc_table_delta)(unsafe.Pointer(unsafe.SliceData(deltas))), C.uint32_t(len(deltas)),
		(*C.kvc_evicted_block)(unsafe.Pointer(unsafe.SliceData(evicted))), C.uint32_t(len(evicted)),
		(*C.kvc_fence)(unsafe.Pointer(unsafe.SliceData(waits))), C.uint32_t(len(waits)),
		(*C.kvc_waiter)(unsafe.Pointer(unsafe.SliceData(waiters))), C.uint32_t(len(waiters)),
		(*C.uint32_t)(unsafe.Pointer(&used)), err.c())
	return used, Status(s)
}
