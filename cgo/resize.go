// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // As for the calls in sequence.go: arrays are read and written during the
// // call only, and there are no callbacks.
// #cgo noescape kvc_pool_resize
// #cgo nocallback kvc_pool_resize
import "C"

import "unsafe"

// PageMove is kvc_page_move.
type PageMove struct {
	From   uint32
	To     uint32
	Tokens uint32
	_      uint32
}

// ResizeResult is kvc_resize_result.
type ResizeResult struct {
	TargetPages   uint32
	TotalPages    uint32
	GrowingPages  uint32
	DoomedPages   uint32
	HeldPages     uint32
	LeavingPages  uint32
	MovedPages    uint32
	EvictedBlocks uint32
	Done          uint32
	_             uint32
	Copied        Fence
}

var (
	// kvc_page_move
	_ [0]struct{} = [unsafe.Sizeof(PageMove{}) - unsafe.Sizeof(C.kvc_page_move{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(PageMove{}.From) - unsafe.Offsetof(C.kvc_page_move{}.from)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(PageMove{}.From) - unsafe.Sizeof(C.kvc_page_move{}.from)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(PageMove{}.To) - unsafe.Offsetof(C.kvc_page_move{}.to)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(PageMove{}.To) - unsafe.Sizeof(C.kvc_page_move{}.to)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(PageMove{}.Tokens) - unsafe.Offsetof(C.kvc_page_move{}.tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(PageMove{}.Tokens) - unsafe.Sizeof(C.kvc_page_move{}.tokens)]struct{}{}

	// kvc_resize_result
	_ [0]struct{} = [unsafe.Sizeof(ResizeResult{}) - unsafe.Sizeof(C.kvc_resize_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResizeResult{}.TargetPages) - unsafe.Offsetof(C.kvc_resize_result{}.target_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResizeResult{}.TargetPages) - unsafe.Sizeof(C.kvc_resize_result{}.target_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResizeResult{}.TotalPages) - unsafe.Offsetof(C.kvc_resize_result{}.total_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResizeResult{}.TotalPages) - unsafe.Sizeof(C.kvc_resize_result{}.total_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResizeResult{}.GrowingPages) - unsafe.Offsetof(C.kvc_resize_result{}.growing_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResizeResult{}.GrowingPages) - unsafe.Sizeof(C.kvc_resize_result{}.growing_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResizeResult{}.DoomedPages) - unsafe.Offsetof(C.kvc_resize_result{}.doomed_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResizeResult{}.DoomedPages) - unsafe.Sizeof(C.kvc_resize_result{}.doomed_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResizeResult{}.HeldPages) - unsafe.Offsetof(C.kvc_resize_result{}.held_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResizeResult{}.HeldPages) - unsafe.Sizeof(C.kvc_resize_result{}.held_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResizeResult{}.LeavingPages) - unsafe.Offsetof(C.kvc_resize_result{}.leaving_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResizeResult{}.LeavingPages) - unsafe.Sizeof(C.kvc_resize_result{}.leaving_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResizeResult{}.MovedPages) - unsafe.Offsetof(C.kvc_resize_result{}.moved_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResizeResult{}.MovedPages) - unsafe.Sizeof(C.kvc_resize_result{}.moved_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResizeResult{}.EvictedBlocks) - unsafe.Offsetof(C.kvc_resize_result{}.evicted_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResizeResult{}.EvictedBlocks) - unsafe.Sizeof(C.kvc_resize_result{}.evicted_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResizeResult{}.Done) - unsafe.Offsetof(C.kvc_resize_result{}.done)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResizeResult{}.Done) - unsafe.Sizeof(C.kvc_resize_result{}.done)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResizeResult{}.Copied) - unsafe.Offsetof(C.kvc_resize_result{}.copied)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResizeResult{}.Copied) - unsafe.Sizeof(C.kvc_resize_result{}.copied)]struct{}{}
)

// PoolResize sets the pool's target and goes on towards it. moves and evicted may be
// empty; what counts of them is in result.
func (m Manager) PoolResize(target, maxPages uint32, moves []PageMove, evicted []EvictedBlock,
	result *ResizeResult, err *Error) Status {
	return Status(C.kvc_pool_resize(m.c, C.uint32_t(target), C.uint32_t(maxPages),
		(*C.kvc_page_move)(unsafe.Pointer(unsafe.SliceData(moves))), C.uint32_t(len(moves)),
		(*C.kvc_evicted_block)(unsafe.Pointer(unsafe.SliceData(evicted))), C.uint32_t(len(evicted)),
		(*C.kvc_resize_result)(unsafe.Pointer(result)), err.c()))
}
