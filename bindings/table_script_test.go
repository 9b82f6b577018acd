// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvcast/kvcast/bindings"
)

const (
	scriptRows    = 4
	scriptColumns = 8
)

// tableScript is what the scripts' operations on block tables keep: rows that
// deltas bring up to date, and a table in the device's memory.
type tableScript struct {
	rows   [][]int32
	state  []bindings.TableRow
	deltas []bindings.TableDelta
	device *bindings.DeviceTable
}

func newTableScript() tableScript {
	t := tableScript{state: make([]bindings.TableRow, scriptRows)}
	for row := range scriptRows {
		t.rows = append(t.rows, slices.Repeat([]int32{-1}, scriptColumns))
		t.state[row].Row = row
	}
	return t
}

func tableFormat(o *operation) bindings.TableFormat {
	return bindings.TableFormat{
		IndexScale: o.count("scale", 1), IndexOffset: o.count("offset", 0),
		Expansion: o.count("expansion", 1),
	}
}

// expected is what stands in a row, from the pages and the formula.
func (s *script) expected(f bindings.TableFormat, id bindings.SequenceID, columns int) []int32 {
	row := []int32{}
	pages, _ := s.manager.Pages(id, nil) // none of a sequence that is gone
	for _, page := range pages {
		for i := range f.Expansion {
			row = append(row, int32((int(page)*f.IndexScale+f.IndexOffset)*f.Expansion+i))
		}
	}
	for len(row) < columns {
		row = append(row, -1)
	}
	return row[:columns]
}

func verdict(equal bool) string {
	if equal {
		return "equal"
	}
	return "different"
}

func (s *script) dense(o *operation) string {
	item := bindings.TableItem{Sequence: s.sequence(o.next()).id, NewTokens: o.count("new", 0)}
	columns := o.count("columns", scriptColumns)
	f := tableFormat(o)
	t := bindings.DenseTable{Entries: make([]int32, columns), Columns: columns, Lengths: make([]int32, 1)}
	var out [1]bindings.TableResult
	if err := s.manager.TablesDense(f, []bindings.TableItem{item}, t, out[:]); err != nil {
		return outcome(err)
	}
	if out[0].Err != nil {
		return outcome(out[0].Err)
	}
	return fmt.Sprintf("entries %d, length %d, %s", out[0].Entries, t.Lengths[0],
		verdict(slices.Equal(t.Entries, s.expected(f, item.Sequence, columns))))
}

func (s *script) indexed(o *operation) string {
	more, f := o.count("new", 0), tableFormat(o)
	var items []bindings.TableItem
	for first := true; first || len(o.plain) > 0; first = false {
		items = append(items, bindings.TableItem{Sequence: s.sequence(o.next()).id, NewTokens: more})
	}
	var t bindings.IndexedTable
	out := make([]bindings.TableResult, len(items))
	if err := s.manager.TablesIndexed(f, items, &t, out); err != nil {
		return outcome(err)
	}
	equal := true
	text := fmt.Sprintf("indptr %s, last", strings.Trim(fmt.Sprint(t.Indptr), "[]"))
	for i := range items {
		text += fmt.Sprintf(" %d", t.LastPageLen[i])
		got := t.Indices[t.Indptr[i]:t.Indptr[i+1]]
		equal = equal && slices.Equal(got, s.expected(f, items[i].Sequence, len(got)))
		if out[i].Err != nil {
			text += " (" + outcome(out[i].Err) + ")"
		}
	}
	return text + ", " + verdict(equal)
}

func (s *script) delta(o *operation) string {
	row := number(o.next())
	r := &s.tables.state[row]
	r.Sequence = 0
	if name := o.next(); name != "-" {
		r.Sequence = s.sequence(name).id
	}
	room, f := o.count("room", scriptColumns), tableFormat(o)
	s.tables.deltas = make([]bindings.TableDelta, room)
	var out [1]bindings.TableResult
	n, err := s.calls().TablesDelta(f, s.tables.state[row:row+1], scriptColumns, s.tables.deltas, out[:])
	if err != nil {
		return outcome(err)
	}
	s.tables.deltas = s.tables.deltas[:n]
	text := "columns"
	if out[0].Err != nil {
		text = outcome(out[0].Err) + ": columns"
	}
	for _, d := range s.tables.deltas {
		text += fmt.Sprintf(" %d", d.Column)
		if d.Value < 0 {
			text += "-"
		}
		s.tables.rows[d.Row][d.Column] = d.Value
	}
	if n == 0 {
		text += " none"
	}
	if out[0].Entries != n {
		text += fmt.Sprintf(" of %d", out[0].Entries)
	}
	return text + ", " + verdict(slices.Equal(s.tables.rows[row], s.expected(f, r.Sequence, scriptColumns)))
}

func (s *script) deviceTable() *bindings.DeviceTable {
	if s.tables.device == nil {
		t, err := s.manager.NewDeviceTable(bindings.DeviceTableConfig{
			Rows: scriptRows, Columns: scriptColumns,
		})
		if err != nil {
			bad("%v", err)
		}
		s.tables.device = t
	}
	return s.tables.device
}

func (s *script) upload(o *operation) string {
	return outcome(s.deviceTable().Update(s.deviceStream(o.next()), s.tables.deltas))
}

func (s *script) deviceRows() string {
	text := "rows"
	got := make([]int32, scriptColumns)
	for row := range scriptRows {
		if err := s.deviceTable().HostRead(row, 0, got); err != nil {
			return outcome(err)
		}
		if slices.Equal(got, s.tables.rows[row]) {
			text += " equal"
		} else {
			text += " behind"
		}
	}
	return text
}
