// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
import "C"

import "unsafe"

// As in layout.go: a difference between the Go and the C struct does not compile.
var (
	// kvc_table_format
	_ [0]struct{} = [unsafe.Sizeof(TableFormat{}) - unsafe.Sizeof(C.kvc_table_format{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableFormat{}.IndexScale) - unsafe.Offsetof(C.kvc_table_format{}.index_scale)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableFormat{}.IndexScale) - unsafe.Sizeof(C.kvc_table_format{}.index_scale)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableFormat{}.IndexOffset) - unsafe.Offsetof(C.kvc_table_format{}.index_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableFormat{}.IndexOffset) - unsafe.Sizeof(C.kvc_table_format{}.index_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableFormat{}.Expansion) - unsafe.Offsetof(C.kvc_table_format{}.expansion)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableFormat{}.Expansion) - unsafe.Sizeof(C.kvc_table_format{}.expansion)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableFormat{}.Absent) - unsafe.Offsetof(C.kvc_table_format{}.absent)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableFormat{}.Absent) - unsafe.Sizeof(C.kvc_table_format{}.absent)]struct{}{}

	// kvc_table_item
	_ [0]struct{} = [unsafe.Sizeof(TableItem{}) - unsafe.Sizeof(C.kvc_table_item{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableItem{}.Sequence) - unsafe.Offsetof(C.kvc_table_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableItem{}.Sequence) - unsafe.Sizeof(C.kvc_table_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableItem{}.Group) - unsafe.Offsetof(C.kvc_table_item{}.group)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableItem{}.Group) - unsafe.Sizeof(C.kvc_table_item{}.group)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableItem{}.NewTokens) - unsafe.Offsetof(C.kvc_table_item{}.new_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableItem{}.NewTokens) - unsafe.Sizeof(C.kvc_table_item{}.new_tokens)]struct{}{}

	// kvc_table_result
	_ [0]struct{} = [unsafe.Sizeof(TableResult{}) - unsafe.Sizeof(C.kvc_table_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableResult{}.Status) - unsafe.Offsetof(C.kvc_table_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableResult{}.Status) - unsafe.Sizeof(C.kvc_table_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableResult{}.Entries) - unsafe.Offsetof(C.kvc_table_result{}.entries)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableResult{}.Entries) - unsafe.Sizeof(C.kvc_table_result{}.entries)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableResult{}.KVTokens) - unsafe.Offsetof(C.kvc_table_result{}.kv_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableResult{}.KVTokens) - unsafe.Sizeof(C.kvc_table_result{}.kv_tokens)]struct{}{}

	// kvc_table_cookie
	_ [0]struct{} = [unsafe.Sizeof(TableCookie{}) - unsafe.Sizeof(C.kvc_table_cookie{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableCookie{}.Sequence) - unsafe.Offsetof(C.kvc_table_cookie{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableCookie{}.Sequence) - unsafe.Sizeof(C.kvc_table_cookie{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableCookie{}.Version) - unsafe.Offsetof(C.kvc_table_cookie{}.version)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableCookie{}.Version) - unsafe.Sizeof(C.kvc_table_cookie{}.version)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableCookie{}.Pages) - unsafe.Offsetof(C.kvc_table_cookie{}.pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableCookie{}.Pages) - unsafe.Sizeof(C.kvc_table_cookie{}.pages)]struct{}{}

	// kvc_table_delta_item
	_ [0]struct{} = [unsafe.Sizeof(TableDeltaItem{}) - unsafe.Sizeof(C.kvc_table_delta_item{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableDeltaItem{}.Sequence) - unsafe.Offsetof(C.kvc_table_delta_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableDeltaItem{}.Sequence) - unsafe.Sizeof(C.kvc_table_delta_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableDeltaItem{}.Group) - unsafe.Offsetof(C.kvc_table_delta_item{}.group)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableDeltaItem{}.Group) - unsafe.Sizeof(C.kvc_table_delta_item{}.group)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableDeltaItem{}.Row) - unsafe.Offsetof(C.kvc_table_delta_item{}.row)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableDeltaItem{}.Row) - unsafe.Sizeof(C.kvc_table_delta_item{}.row)]struct{}{}

	// kvc_table_delta
	_ [0]struct{} = [unsafe.Sizeof(TableDelta{}) - unsafe.Sizeof(C.kvc_table_delta{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableDelta{}.Row) - unsafe.Offsetof(C.kvc_table_delta{}.row)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableDelta{}.Row) - unsafe.Sizeof(C.kvc_table_delta{}.row)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableDelta{}.Column) - unsafe.Offsetof(C.kvc_table_delta{}.column)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableDelta{}.Column) - unsafe.Sizeof(C.kvc_table_delta{}.column)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TableDelta{}.Value) - unsafe.Offsetof(C.kvc_table_delta{}.value)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TableDelta{}.Value) - unsafe.Sizeof(C.kvc_table_delta{}.value)]struct{}{}
)
