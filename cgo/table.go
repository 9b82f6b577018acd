// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // The exports and uploads of every scheduler step: the library reads and writes
// // the arrays, keeps no pointer to any of them once it returns and has no callbacks.
// #cgo noescape kvc_table_format_init
// #cgo nocallback kvc_table_format_init
// #cgo noescape kvc_tables_dense
// #cgo nocallback kvc_tables_dense
// #cgo noescape kvc_tables_indexed
// #cgo nocallback kvc_tables_indexed
// #cgo noescape kvc_tables_delta
// #cgo nocallback kvc_tables_delta
// #cgo noescape kvc_device_table_update
// #cgo nocallback kvc_device_table_update
// #cgo noescape kvc_device_table_write
// #cgo nocallback kvc_device_table_write
// #cgo noescape kvc_host_table_read
// #cgo nocallback kvc_host_table_read
import "C"

import "unsafe"

// TableFormat is kvc_table_format.
type TableFormat struct {
	IndexScale  uint32
	IndexOffset uint32
	Expansion   uint32
	Absent      int32
}

// Init sets the library's defaults.
func (f *TableFormat) Init() { C.kvc_table_format_init((*C.kvc_table_format)(unsafe.Pointer(f))) }

// TableItem is kvc_table_item.
type TableItem struct {
	Sequence  uint64
	Group     uint32
	NewTokens uint32
}

// TableResult is kvc_table_result.
type TableResult struct {
	Status   Status
	Entries  uint32
	KVTokens uint64
}

// TableCookie is kvc_table_cookie.
type TableCookie struct {
	Sequence uint64
	Version  uint32
	Pages    uint32
}

// TableDeltaItem is kvc_table_delta_item.
type TableDeltaItem struct {
	Sequence uint64
	Group    uint32
	Row      uint32
}

// TableDelta is kvc_table_delta.
type TableDelta struct {
	Row    uint32
	Column uint32
	Value  int32
}

// TableDeltas are structs of the same fields: a package may pass slices of a type
// of its own, uncopied.
type TableDeltas interface {
	~struct {
		Row    uint32
		Column uint32
		Value  int32
	}
}

// TablesDense writes len(items) rows of columns entries, stride apart, into
// table; lengths may be nil. results must be as long as items.
func (m Manager) TablesDense(format *TableFormat, items []TableItem, columns, stride int,
	table, lengths []int32, results []TableResult, err *Error) Status {
	_ = results[:len(items)]
	if len(items) > 0 {
		_ = table[:(len(items)-1)*stride+columns]
	}
	if lengths != nil {
		_ = lengths[:len(items)]
	}
	return Status(C.kvc_tables_dense(m.c, (*C.kvc_table_format)(unsafe.Pointer(format)),
		C.uint32_t(len(items)), (*C.kvc_table_item)(unsafe.Pointer(unsafe.SliceData(items))),
		C.uint32_t(columns), C.uint64_t(stride), (*C.int32_t)(unsafe.SliceData(table)),
		(*C.int32_t)(unsafe.SliceData(lengths)),
		(*C.kvc_table_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c()))
}

// TablesIndexed writes the entries of all items into indices and returns their
// number, which may exceed len(indices); then the status is InvalidArgument.
func (m Manager) TablesIndexed(format *TableFormat, items []TableItem, indptr, indices,
	lastPageLen []int32, results []TableResult, err *Error) (uint64, Status) {
	_, _, _ = results[:len(items)], indptr[:len(items)+1], lastPageLen[:len(items)]
	var needed C.uint64_t
	s := C.kvc_tables_indexed(m.c, (*C.kvc_table_format)(unsafe.Pointer(format)),
		C.uint32_t(len(items)), (*C.kvc_table_item)(unsafe.Pointer(unsafe.SliceData(items))),
		C.uint64_t(len(indices)), (*C.int32_t)(unsafe.SliceData(indptr)),
		(*C.int32_t)(unsafe.SliceData(indices)), (*C.int32_t)(unsafe.SliceData(lastPageLen)), &needed,
		(*C.kvc_table_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c())
	return uint64(needed), Status(s)
}

// TablesDelta writes what has changed since cookies into deltas and returns the
// number of triples. cookies and results must be as long as items.
func TablesDelta[D TableDeltas](m Manager, format *TableFormat, items []TableDeltaItem,
	columns int, cookies []TableCookie, deltas []D, results []TableResult, err *Error) (int, Status) {
	_, _ = results[:len(items)], cookies[:len(items)]
	var written C.uint32_t
	s := C.kvc_tables_delta(m.c, (*C.kvc_table_format)(unsafe.Pointer(format)),
		C.uint32_t(len(items)), (*C.kvc_table_delta_item)(unsafe.Pointer(unsafe.SliceData(items))),
		C.uint32_t(columns), (*C.kvc_table_cookie)(unsafe.Pointer(unsafe.SliceData(cookies))),
		C.uint32_t(len(deltas)), (*C.kvc_table_delta)(unsafe.Pointer(unsafe.SliceData(deltas))),
		&written, (*C.kvc_table_result)(unsafe.Pointer(unsafe.SliceData(results))), err.c())
	return int(written), Status(s)
}

// DeviceTableCreate makes a table in the device's memory and returns its id and
// its address.
func (m Manager) DeviceTableCreate(rows, columns uint32, absent int32, staging uint32,
	err *Error) (table, address uint64, status Status) {
	var id, at C.uint64_t
	s := C.kvc_device_table_create(m.c, C.uint32_t(rows), C.uint32_t(columns), C.int32_t(absent),
		C.uint32_t(staging), &id, &at, err.c())
	return uint64(id), uint64(at), Status(s)
}

// DeviceTableDestroy frees a table whose uploads have been executed.
func (m Manager) DeviceTableDestroy(table uint64, err *Error) Status {
	return Status(C.kvc_device_table_destroy(m.c, C.uint64_t(table), err.c()))
}

// DeviceTableUpdate queues triples.
func DeviceTableUpdate[D TableDeltas](m Manager, table, stream uint64, deltas []D,
	err *Error) Status {
	return Status(C.kvc_device_table_update(m.c, C.uint64_t(table), C.uint64_t(stream),
		C.uint32_t(len(deltas)), (*C.kvc_table_delta)(unsafe.Pointer(unsafe.SliceData(deltas))),
		err.c()))
}

// DeviceTableWrite queues rows rows, stride apart in entries, from firstRow on. The
// entries must be there.
func (m Manager) DeviceTableWrite(table, stream uint64, firstRow, rows uint32, stride int,
	entries []int32, err *Error) Status {
	return Status(C.kvc_device_table_write(m.c, C.uint64_t(table), C.uint64_t(stream),
		C.uint32_t(firstRow), C.uint32_t(rows), C.uint64_t(stride),
		(*C.int32_t)(unsafe.SliceData(entries)), err.c()))
}

// HostTableRead reads len(out) entries of a row.
func (m Manager) HostTableRead(table uint64, row, column uint32, out []int32, err *Error) Status {
	return Status(C.kvc_host_table_read(m.c, C.uint64_t(table), C.uint32_t(row),
		C.uint32_t(column), C.uint32_t(len(out)), (*C.int32_t)(unsafe.SliceData(out)), err.c()))
}
