// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

func TestMirrorReset(t *testing.T) {
	m := NewMirror(0)
	h := wire.HashOf(7, 0)
	e := wire.Event{Kind: wire.KindStored, Hashes: []wire.Hash{h}}
	if err := m.Apply([]wire.Event{e}); err != nil || !m.Has(h) {
		t.Fatalf("%v, has it: %t", err, m.Has(h))
	}
	if m.Reset(); m.Has(h) || m.Len() != 0 || len(m.Patterns()) != 0 {
		t.Errorf("still holds %v", m.Patterns())
	}
}

// After a reset another stream is joined where it is, and what the one before
// announced is forgotten.
func TestVerifierReset(t *testing.T) {
	const s = event.Signed64
	v := NewVerifier(VerifierOptions{})
	check := func(messages ...msg) {
		t.Helper()
		for _, m := range messages {
			if err := v.Check(m.seq, decode(t, s, m)); err != nil {
				t.Fatal(err)
			}
		}
	}
	check(one(0, cleared()), one(1, store(s, 0, 2)))
	v.Reset()
	if r := v.Report(); v.Mirror().Len() != 0 || r.Complete {
		t.Errorf("knows %d blocks, %+v", v.Mirror().Len(), r)
	}
	check(one(7, store(s, 1, 2)), one(8, remove(s, 0)))
	r := v.Report()
	if r.FirstSeq != 7 || r.LastSeq != 8 || r.Lives != 2 || r.Complete || r.UnknownRemovals != 1 || v.Mirror().Len() != 1 {
		t.Errorf("%+v, %d blocks", r, v.Mirror().Len())
	}
	err := v.Check(10, decode(t, s, one(10)))
	if want := "batch 10: the number before was 8: 1 batches are missing"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
