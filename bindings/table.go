// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"math"

	"github.com/kvcast/kvcast/cgo"
)

// TableFormat says what stands in a block table for the pages of a sequence:
// kernel block i of page p becomes (p*IndexScale+IndexOffset)*Expansion+i. The
// zero value names pages by their ids. A TensorView has the one of its kernels.
type TableFormat struct {
	// IndexScale is that of a kernel's buffer; 0 = 1.
	IndexScale  int
	IndexOffset int
	// Expansion is how many entries a page has, a divisor of the manager's
	// TokensPerBlock; 0 = 1.
	Expansion int
	// Absent stands where there is no page; nil = -1. A geometry's padding page is
	// for kernels that read it all the same.
	Absent *int32
}

// TableItem is a sequence whose table is wanted.
type TableItem struct {
	Sequence SequenceID
	// NewTokens are computed by this step, behind the committed ones.
	NewTokens int
}

// TableResult is the outcome of one item.
type TableResult struct {
	// Err: ErrStaleHandle; ErrBadState: NewTokens exceed the capacity;
	// ErrInvalidArgument: too few columns; ErrNotNow: deltas has no room for it.
	Err error
	// Entries of the whole sequence (dense), of its KVTokens (indexed), or triples
	// (delta), also when there was not enough room for them.
	Entries int
	// KVTokens are the committed and the new tokens.
	KVTokens int
}

// DenseTable is a table of the caller with a row per item, as FlashAttention and
// vLLM take it.
type DenseTable struct {
	// Entries holds the rows, Stride apart; it must have room for them.
	Entries []int32
	Columns int
	// Stride is at least Columns; 0 = Columns.
	Stride int
	// Lengths gets the KVTokens of each item; nil if they are not wanted.
	Lengths []int32
}

// IndexedTable has the entries of all items one behind the other, as FlashInfer
// takes it: those of item i are Indices[Indptr[i]:Indptr[i+1]], and the last of
// them holds LastPageLen[i] tokens. Its slices keep their memory from call to call.
type IndexedTable struct {
	Indptr, Indices, LastPageLen []int32
}

// TableRow is a row of a table that the caller keeps up to date by deltas. Its
// zero value is an empty row; the rest is its own.
type TableRow struct {
	// Sequence whose table the row is to hold; 0 empties it.
	Sequence SequenceID
	// Row is its number, for the triples.
	Row int

	cookie cgo.TableCookie
	at     int // its place among the rows of the step it came in last
}

// TableDelta says that an entry has changed.
type TableDelta struct {
	Row    uint32
	Column uint32
	Value  int32
}

var (
	opDense   = newOp("tables dense")
	opIndexed = newOp("tables indexed")
	opDelta   = newOp("tables delta")
)

// TablesDense writes the entries of each item's sequence into a row of t, as far
// as the columns go, and fills the rest. out must be at least as long as items.
func (m *Manager) TablesDense(f TableFormat, items []TableItem, t DenseTable,
	out []TableResult) error {
	op := opDense.name
	if t.Stride == 0 {
		t.Stride = t.Columns
	}
	if t.Columns < 0 || t.Columns > math.MaxUint32 || t.Stride < t.Columns {
		return argumentError(op, "%d columns, stride %d", t.Columns, t.Stride)
	}
	if n := len(items); n > 0 && (t.Stride > math.MaxInt/n ||
		len(t.Entries) < (n-1)*t.Stride+t.Columns || t.Lengths != nil && len(t.Lengths) < n) {
		return argumentError(op, "%d entries, %d lengths for %d rows of %d", len(t.Entries),
			len(t.Lengths), n, t.Columns)
	}
	sc, err := m.tableCall(opDense, f, items, out)
	if err != nil {
		return err
	}
	defer m.leave()
	defer m.scratch.put(sc)
	s := m.raw.TablesDense(&sc.format, sc.tables, t.Columns, t.Stride, t.Entries, t.Lengths,
		sc.tabled, &sc.err)
	return opDense.tableResults(s, sc, out)
}

// TablesIndexed fills t with the entries of the items' KVTokens. out must be at
// least as long as items.
func (m *Manager) TablesIndexed(f TableFormat, items []TableItem, t *IndexedTable,
	out []TableResult) error {
	sc, err := m.tableCall(opIndexed, f, items, out)
	if err != nil {
		return err
	}
	defer m.leave()
	defer m.scratch.put(sc)
	t.Indptr, t.LastPageLen = sized(t.Indptr, len(items)+1), sized(t.LastPageLen, len(items))
	for {
		n, s := m.raw.TablesIndexed(&sc.format, sc.tables, t.Indptr, t.Indices[:cap(t.Indices)],
			t.LastPageLen, sc.tabled, &sc.err)
		if s == cgo.InvalidArgument && n > uint64(cap(t.Indices)) && n <= math.MaxInt32 {
			t.Indices = make([]int32, 0, n+n/4) // sequences may grow meanwhile
			continue
		}
		if s == cgo.OK {
			t.Indices = t.Indices[:n]
		}
		return opIndexed.tableResults(s, sc, out)
	}
}

// TablesDelta writes into deltas what makes each row the table of its sequence:
// all of it for a row that held none or another, else what has been appended,
// taken away or replaced. It returns the number of triples. The row of a sequence
// that is gone is emptied, with ErrStaleHandle; an item that finds no room gets
// ErrNotNow and is told by the next call. rows must be distinct, out at least as
// long as they are.
func (m *Manager) TablesDelta(f TableFormat, rows []TableRow, columns int, deltas []TableDelta,
	out []TableResult) (int, error) {
	op := opDelta.name
	if err := checkCounts(op, len(rows), len(out)); err != nil {
		return 0, err
	}
	if columns < 0 || columns > math.MaxUint32 {
		return 0, argumentError(op, "%d columns", columns)
	}
	format, err := f.raw(op)
	if err != nil {
		return 0, err
	}
	if err := m.enter(op); err != nil {
		return 0, err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.format = format
	sc.rows, sc.cookies = sized(sc.rows, len(rows)), sized(sc.cookies, len(rows))
	sc.tabled = sized(sc.tabled, len(rows))
	for i := range rows {
		r := &rows[i]
		if r.Row < 0 || r.Row > math.MaxUint32 {
			return 0, argumentError(op, "row %d: its number is %d", i, r.Row)
		}
		sc.rows[i] = cgo.TableDeltaItem{Sequence: uint64(r.Sequence), Row: uint32(r.Row)}
		sc.cookies[i] = r.cookie
	}
	room := deltas[:min(len(deltas), math.MaxUint32)]
	n, s := cgo.TablesDelta(m.raw, &sc.format, sc.rows, columns, sc.cookies, room, sc.tabled, &sc.err)
	if err := opDelta.tableResults(s, sc, out); err != nil {
		return 0, err
	}
	for i := range rows {
		rows[i].cookie = sc.cookies[i]
	}
	return n, nil
}

// Table appends the entries of all pages of the sequence to dst.
func (s Sequence) Table(f TableFormat, dst []int32) ([]int32, error) {
	if s.m == nil {
		return dst, opDense.item(cgo.StaleHandle)
	}
	items, out := [1]TableItem{{Sequence: s.id}}, [1]TableResult{}
	for start := len(dst); ; {
		room := min(cap(dst)-start, math.MaxUint32)
		err := s.m.TablesDense(f, items[:], DenseTable{Entries: dst[start : start+room], Columns: room},
			out[:])
		if err != nil {
			return dst, err
		}
		n := out[0].Entries
		if n <= room {
			return dst[:start+n], out[0].Err
		}
		grown := make([]int32, start, start+n+n/4)
		copy(grown, dst)
		dst = grown
	}
}

// tableCall enters a call on items; with no error the caller leaves it and gives
// the scratch back.
func (m *Manager) tableCall(o *op, f TableFormat, items []TableItem,
	out []TableResult) (*scratch, error) {
	if err := checkCounts(o.name, len(items), len(out)); err != nil {
		return nil, err
	}
	format, err := f.raw(o.name)
	if err != nil {
		return nil, err
	}
	for i := range items {
		if n := items[i].NewTokens; n < 0 || n > math.MaxUint32 {
			return nil, argumentError(o.name, "item %d: NewTokens is %d", i, n)
		}
	}
	if err := m.enter(o.name); err != nil {
		return nil, err
	}
	sc := m.scratch.get()
	sc.format = format
	sc.tables, sc.tabled = sized(sc.tables, len(items)), sized(sc.tabled, len(items))
	for i := range items {
		sc.tables[i] = cgo.TableItem{
			Sequence: uint64(items[i].Sequence), NewTokens: uint32(items[i].NewTokens),
		}
	}
	return sc, nil
}

func (o *op) tableResults(s cgo.Status, sc *scratch, out []TableResult) error {
	if s != cgo.OK {
		return callError(o.name, s, &sc.err)
	}
	for i := range sc.tabled {
		r := &sc.tabled[i]
		out[i] = TableResult{o.item(r.Status), int(r.Entries), int(r.KVTokens)}
	}
	return nil
}

func (f *TableFormat) raw(op string) (cgo.TableFormat, error) {
	var raw cgo.TableFormat
	raw.Init()
	// No loop over pointers to the fields: it would move raw to the heap.
	scale, err1 := table32(op, "IndexScale", f.IndexScale, raw.IndexScale)
	offset, err2 := table32(op, "IndexOffset", f.IndexOffset, raw.IndexOffset)
	expansion, err3 := table32(op, "Expansion", f.Expansion, raw.Expansion)
	for _, err := range [...]error{err1, err2, err3} {
		if err != nil {
			return raw, err
		}
	}
	raw.IndexScale, raw.IndexOffset, raw.Expansion = scale, offset, expansion
	if f.Absent != nil {
		raw.Absent = *f.Absent
	}
	return raw, nil
}

// table32 is a value that fits, or the default for 0.
func table32(op, name string, value int, otherwise uint32) (uint32, error) {
	if value < 0 || value > math.MaxUint32 {
		return 0, argumentError(op, "%s is %d", name, value)
	}
	if value == 0 {
		return otherwise, nil
	}
	return uint32(value), nil
}
