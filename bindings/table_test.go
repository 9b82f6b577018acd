// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"errors"
	"fmt"
	"log"
	"slices"
	"testing"

	"github.com/kvcast/kvcast/bindings"
)

// tablePair is a manager with two sequences: 3 pages with 5 tokens, 2 with 8.
func tablePair(t testing.TB) (*bindings.Manager, []bindings.SequenceID, *bindings.Sequence) {
	m := newManager(t, bindings.Config{TokensPerBlock: 4, CapacityBlocks: 16})
	ids := make([]bindings.SequenceID, 2)
	var first *bindings.Sequence
	for i, n := range []int{5, 8} {
		q := open(t, m, bindings.Prompt{})
		t.Cleanup(func() { _ = q.Release() })
		if _, err := q.Grow([]int{12, 8}[i]); err != nil {
			t.Fatal(err)
		}
		text := make([]uint32, n)
		for j := range text {
			text[j] = uint32(100*i + j)
		}
		if _, err := q.Commit(text); err != nil {
			t.Fatal(err)
		}
		ids[i] = q.ID()
		if i == 0 {
			first = q
		}
	}
	return m, ids, first
}

func pagesOf(t testing.TB, m *bindings.Manager, id bindings.SequenceID) []int32 {
	pages, err := m.Pages(id, nil)
	if err != nil {
		t.Fatal(err)
	}
	entries := make([]int32, len(pages))
	for i, p := range pages {
		entries[i] = int32(p)
	}
	return entries
}

func TestTables(t *testing.T) {
	m, ids, first := tablePair(t)
	a, b := pagesOf(t, m, ids[0]), pagesOf(t, m, ids[1])
	items := []bindings.TableItem{{Sequence: ids[0], NewTokens: 1}, {Sequence: ids[1]}, {Sequence: 99}}
	out := make([]bindings.TableResult, 3)

	dense := bindings.DenseTable{Entries: make([]int32, 14), Columns: 4, Stride: 5, Lengths: make([]int32, 3)}
	if err := m.TablesDense(bindings.TableFormat{}, items, dense, out); err != nil {
		t.Fatal(err)
	}
	want := []int32{a[0], a[1], a[2], -1, 0, b[0], b[1], -1, -1, 0, -1, -1, -1, -1}
	if !slices.Equal(dense.Entries, want) || !slices.Equal(dense.Lengths, []int32{6, 8, 0}) {
		t.Errorf("%v %v, want %v", dense.Entries, dense.Lengths, want)
	}
	if out[0] != (bindings.TableResult{Entries: 3, KVTokens: 6}) ||
		out[1] != (bindings.TableResult{Entries: 2, KVTokens: 8}) ||
		!errors.Is(out[2].Err, bindings.ErrStaleHandle) {
		t.Errorf("%+v", out)
	}

	var indexed bindings.IndexedTable
	absent := int32(-7)
	f := bindings.TableFormat{IndexScale: 10, IndexOffset: 3, Expansion: 2, Absent: &absent}
	if err := m.TablesIndexed(f, items, &indexed, out); err != nil {
		t.Fatal(err)
	}
	entry := func(page int32, i int32) int32 { return (page*10+3)*2 + i }
	want = []int32{entry(a[0], 0), entry(a[0], 1), entry(a[1], 0), entry(b[0], 0), entry(b[0], 1),
		entry(b[1], 0), entry(b[1], 1)}
	if !slices.Equal(indexed.Indices, want) || !slices.Equal(indexed.Indptr, []int32{0, 3, 7, 7}) ||
		!slices.Equal(indexed.LastPageLen, []int32{2, 2, 0}) {
		t.Errorf("%+v, want %v", indexed, want)
	}

	got, err := first.Table(f, []int32{1})
	want = []int32{1, entry(a[0], 0), entry(a[0], 1), entry(a[1], 0), entry(a[1], 1), entry(a[2], 0),
		entry(a[2], 1)}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if _, err := (bindings.Sequence{}).Table(f, nil); !errors.Is(err, bindings.ErrStaleHandle) {
		t.Error(err)
	}
}

func TestTableDeltas(t *testing.T) {
	m, ids, _ := tablePair(t)
	rows := []bindings.TableRow{{Sequence: ids[0], Row: 4}, {Sequence: ids[1], Row: 7}}
	deltas, out := make([]bindings.TableDelta, 4), make([]bindings.TableResult, 2)
	delta := func(want ...bindings.TableDelta) {
		t.Helper()
		n, err := m.TablesDelta(bindings.TableFormat{}, rows, 8, deltas, out)
		if err != nil || !slices.Equal(deltas[:n], want) {
			t.Errorf("%v, %v, want %v", deltas[:n], err, want)
		}
	}
	a, b := pagesOf(t, m, ids[0]), pagesOf(t, m, ids[1])
	delta(bindings.TableDelta{Row: 4, Column: 0, Value: a[0]}, bindings.TableDelta{Row: 4, Column: 1, Value: a[1]},
		bindings.TableDelta{Row: 4, Column: 2, Value: a[2]})
	if !errors.Is(out[1].Err, bindings.ErrNotNow) || out[1].Entries != 2 {
		t.Errorf("no room, but %+v", out[1])
	}
	delta(bindings.TableDelta{Row: 7, Column: 0, Value: b[0]}, bindings.TableDelta{Row: 7, Column: 1, Value: b[1]})
	delta()
	rows[0].Sequence, rows[1].Sequence = 0, ids[0]
	delta(bindings.TableDelta{Row: 4, Column: 0, Value: -1}, bindings.TableDelta{Row: 4, Column: 1, Value: -1},
		bindings.TableDelta{Row: 4, Column: 2, Value: -1})
	delta(bindings.TableDelta{Row: 7, Column: 0, Value: a[0]}, bindings.TableDelta{Row: 7, Column: 1, Value: a[1]},
		bindings.TableDelta{Row: 7, Column: 2, Value: a[2]})
	delta()
}

func TestTableRefusals(t *testing.T) {
	m, ids, _ := tablePair(t)
	items, out := []bindings.TableItem{{Sequence: ids[0]}}, make([]bindings.TableResult, 1)
	f := bindings.TableFormat{}
	wrong := map[string]error{
		"short results": m.TablesDense(f, items, bindings.DenseTable{Columns: 1, Entries: make([]int32, 1)}, nil),
		"short entries": m.TablesDense(f, items, bindings.DenseTable{Columns: 2, Entries: make([]int32, 1)}, out),
		"short lengths": m.TablesDense(f, items,
			bindings.DenseTable{Columns: 1, Entries: make([]int32, 1), Lengths: []int32{}}, out),
		"stride":      m.TablesDense(f, items, bindings.DenseTable{Columns: 2, Stride: 1, Entries: make([]int32, 2)}, out),
		"columns":     m.TablesDense(f, items, bindings.DenseTable{Columns: -1}, out),
		"new tokens":  m.TablesDense(f, []bindings.TableItem{{NewTokens: -1}}, bindings.DenseTable{}, out),
		"scale":       m.TablesDense(bindings.TableFormat{IndexScale: -1}, items, bindings.DenseTable{}, out),
		"expansion":   m.TablesIndexed(bindings.TableFormat{Expansion: 3}, items, new(bindings.IndexedTable), out),
		"large scale": m.TablesIndexed(bindings.TableFormat{IndexScale: 1 << 30}, items, new(bindings.IndexedTable), out),
	}
	_, wrong["row"] = m.TablesDelta(f, []bindings.TableRow{{Row: -1}}, 1, nil, out)
	_, wrong["delta columns"] = m.TablesDelta(f, []bindings.TableRow{{}}, -1, nil, out)
	_, wrong["delta results"] = m.TablesDelta(f, []bindings.TableRow{{}}, 1, nil, nil)
	_, wrong["device rows"] = m.NewDeviceTable(bindings.DeviceTableConfig{Columns: 1})
	_, wrong["device columns"] = m.NewDeviceTable(bindings.DeviceTableConfig{Rows: 1, Columns: -1})
	for name, err := range wrong {
		if !errors.Is(err, bindings.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDeviceTable(t *testing.T) {
	m, ids, _ := tablePair(t)
	stream, err := m.NewDeviceStream()
	if err != nil {
		t.Fatal(err)
	}
	table, err := m.NewDeviceTable(bindings.DeviceTableConfig{Rows: 2, Columns: 4, Staging: 12})
	if err != nil {
		t.Fatal(err)
	}
	if table.Address() == 0 {
		t.Error("no address")
	}
	rows := []bindings.TableRow{{Sequence: ids[0]}, {Sequence: ids[1], Row: 1}}
	deltas, out := make([]bindings.TableDelta, 8), make([]bindings.TableResult, 2)
	n, err := m.TablesDelta(bindings.TableFormat{}, rows, 4, deltas, out)
	if err != nil || n != 5 {
		t.Fatal(n, err)
	}
	if err := table.Update(stream, deltas[:1]); err != nil {
		t.Fatal(err)
	}
	if err := table.Update(stream, deltas[1:n]); !errors.Is(err, bindings.ErrNotNow) {
		t.Fatal("12 int32s into the 9 that are left:", err)
	}
	got := make([]int32, 4)
	read := func(row int, want ...int32) {
		t.Helper()
		if err := table.HostRead(row, 0, got); err != nil || !slices.Equal(got, want) {
			t.Errorf("row %d: %v, %v, want %v", row, got, err, want)
		}
	}
	read(0, -1, -1, -1, -1)
	if err := table.Close(); !errors.Is(err, bindings.ErrBusy) {
		t.Error(err)
	}
	if _, err := m.HostAdvance(stream, 1); err != nil {
		t.Fatal(err)
	}
	a := pagesOf(t, m, ids[0])
	read(0, a[0], -1, -1, -1)
	if err := table.Write(0, 1, []int32{5, 6, 7, 8}); err != nil {
		t.Fatal(err)
	}
	read(1, 5, 6, 7, 8)
	for name, err := range map[string]error{
		"part of a row": table.Write(0, 0, got[:3]),
		"row":           table.Write(0, 2, got),
		"first row":     table.Write(0, -1, got),
		"column":        table.HostRead(0, -1, got),
		"entry":         table.Update(0, []bindings.TableDelta{{Row: 2}}),
	} {
		if !errors.Is(err, bindings.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := table.Update(0, make([]bindings.TableDelta, 5)); !errors.Is(err, bindings.ErrNeverFits) {
		t.Error(err)
	}
	for range 2 {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := table.Update(0, deltas[:1]); !errors.Is(err, bindings.ErrStaleHandle) {
		t.Error(err)
	}
}

// TestTablesNoAllocations: exports and uploads take no memory of the Go heap.
func TestTablesNoAllocations(t *testing.T) {
	m, ids, first := tablePair(t)
	device, err := m.NewDeviceTable(bindings.DeviceTableConfig{Rows: 2, Columns: 8, Staging: 64})
	if err != nil {
		t.Fatal(err)
	}
	items := []bindings.TableItem{{Sequence: ids[0]}, {Sequence: ids[1]}, {Sequence: 5}}
	rows := []bindings.TableRow{{Sequence: ids[0]}, {Sequence: ids[1], Row: 1}}
	out := make([]bindings.TableResult, 3)
	dense := bindings.DenseTable{Entries: make([]int32, 24), Columns: 8, Lengths: make([]int32, 3)}
	var indexed bindings.IndexedTable
	deltas, row := make([]bindings.TableDelta, 16), make([]int32, 0, 8)
	format := bindings.TableFormat{IndexScale: 3}
	step := func() {
		err := m.TablesDense(format, items, dense, out)
		err = errors.Join(err, m.TablesIndexed(format, items, &indexed, out))
		rows[0].Sequence, rows[1].Sequence = rows[1].Sequence, rows[0].Sequence // never at rest
		n, e := m.TablesDelta(format, rows, 8, deltas, out)
		err = errors.Join(err, e, device.Update(0, deltas[:n]), device.Write(0, 1, dense.Entries[:8]))
		_, e = first.Table(format, row)
		err = errors.Join(err, e, device.HostRead(1, 0, dense.Entries[:8]))
		if err = errors.Join(err, e); err != nil || n == 0 {
			t.Error(n, err)
		}
	}
	step()
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// ExampleManager_TablesDelta keeps a table on the device up to date.
func ExampleManager_TablesDelta() {
	manager, err := bindings.NewManager(bindings.Config{TokensPerBlock: 4, CapacityBlocks: 100})
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	table, err := manager.NewDeviceTable(bindings.DeviceTableConfig{Rows: 8, Columns: 32})
	if err != nil {
		log.Fatal(err)
	}
	request, err := manager.Open(bindings.Prompt{})
	if err != nil {
		log.Fatal(err)
	}
	rows := []bindings.TableRow{{Sequence: request.ID(), Row: 3}}
	deltas := make([]bindings.TableDelta, 64)
	results := make([]bindings.TableResult, len(rows))
	for _, tokens := range []int{9, 10, 13} {
		if _, err := request.Grow(tokens); err != nil {
			log.Fatal(err)
		}
		n, err := manager.TablesDelta(bindings.TableFormat{}, rows, 32, deltas, results)
		if err != nil {
			log.Fatal(err)
		}
		if err := table.Update(0, deltas[:n]); err != nil {
			log.Fatal(err)
		}
		fmt.Println(n, "entries for", tokens, "tokens")
	}
	if err := request.Release(); err != nil {
		log.Fatal(err)
	}
	n, err := manager.TablesDelta(bindings.TableFormat{}, rows, 32, deltas, results)
	fmt.Println(n, "entries emptied:", results[0].Err, err)
	// Output:
	// 3 entries for 9 tokens
	// 0 entries for 10 tokens
	// 1 entries for 13 tokens
	// 4 entries emptied: bindings: tables delta: stale handle <nil>
}

// BenchmarkTables speaks of 256 sequences of 4,096 tokens in blocks of 16.
func BenchmarkTables(b *testing.B) {
	const sequences, pages = 256, 256
	m := newManager(b, bindings.Config{
		TokensPerBlock: 16, CapacityBlocks: sequences * pages, MaxSequences: sequences,
	})
	items := make([]bindings.TableItem, sequences)
	rows := make([]bindings.TableRow, sequences)
	for i := range items {
		q := open(b, m, bindings.Prompt{})
		b.Cleanup(func() { _ = q.Release() })
		if _, err := q.Grow(16 * pages); err != nil {
			b.Fatal(i, err)
		}
		items[i] = bindings.TableItem{Sequence: q.ID(), NewTokens: 16 * pages}
		rows[i] = bindings.TableRow{Sequence: q.ID(), Row: i}
	}
	out := make([]bindings.TableResult, sequences)
	deltas := make([]bindings.TableDelta, sequences*pages)
	run := func(name string, entries int, call func() error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := call(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(entries), "ns/entry")
		})
	}
	dense := bindings.DenseTable{Entries: make([]int32, sequences*pages), Columns: pages}
	run("dense", sequences*pages, func() error {
		return m.TablesDense(bindings.TableFormat{}, items, dense, out)
	})
	var indexed bindings.IndexedTable
	run("indexed", sequences*pages, func() error {
		return m.TablesIndexed(bindings.TableFormat{}, items, &indexed, out)
	})
	run("delta", sequences*pages, func() error {
		for i := range rows {
			rows[i] = bindings.TableRow{Sequence: rows[i].Sequence, Row: i}
		}
		n, err := m.TablesDelta(bindings.TableFormat{}, rows, pages, deltas, out)
		if n != sequences*pages {
			b.Fatal(n)
		}
		return err
	})
	run("idle", sequences, func() error {
		_, err := m.TablesDelta(bindings.TableFormat{}, rows, pages, deltas, out)
		return err
	})
}
