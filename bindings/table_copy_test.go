// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"errors"
	"slices"

	"github.com/kvcast/kvcast/bindings"
)

// tableCopy is a block table as a caller keeps it, brought up to date by deltas.
// A sequence's row is the index in its id, so that rows change hands as slots do.
type tableCopy struct {
	state   []bindings.TableRow
	entries [][]int32
}

// check brings the copy up to date and compares it with the model's pages.
func (c *tableCopy) check(l *lockstep) {
	l.t.Helper()
	columns := max(l.m.total, l.m.elastic.most)
	want := make([][]int32, len(c.state))
	for _, s := range l.m.sequences {
		row := int(uint32(s.id))
		for len(c.state) <= row {
			c.state = append(c.state, bindings.TableRow{Row: len(c.state)})
			c.entries = append(c.entries, slices.Repeat([]int32{-1}, columns))
			want = append(want, nil)
		}
		c.state[row].Sequence = s.id // stays behind when the sequence has gone
		if s.suspended {
			continue
		}
		for _, p := range s.pages {
			want[row] = append(want[row], int32(p.id))
		}
	}
	deltas := make([]bindings.TableDelta, columns+1) // so little that rows have to wait
	out := make([]bindings.TableResult, len(c.state))
	for again := true; again; {
		n, err := l.manager.TablesDelta(bindings.TableFormat{}, c.state, columns, deltas, out)
		l.same("tables delta", err, nil)
		for _, d := range deltas[:n] {
			c.entries[d.Row][d.Column] = d.Value
		}
		again = slices.ContainsFunc(out, func(r bindings.TableResult) bool {
			return errors.Is(r.Err, bindings.ErrNotNow)
		})
		if again && n == 0 {
			l.t.Fatal("a delta does not fit where a whole row does")
		}
	}
	for row, pages := range want {
		for len(pages) < columns {
			pages = append(pages, -1)
		}
		if !slices.Equal(c.entries[row], pages) {
			l.t.Fatalf("row %d is %v, the model says %v", row, c.entries[row], pages)
		}
	}
}
