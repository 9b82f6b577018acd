// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"errors"
	"testing"

	"github.com/kvcast/kvcast/cgo"
)

// TestAFailedCreateNamesWhatIsOpen: a GPU that refuses what Create has promised fails the
// call, but sequences have been opened, and nobody else could name them.
func TestAFailedCreateNamesWhatIsOpen(t *testing.T) {
	failed := errors.New("refused")
	m := new(Manager)
	for name, c := range map[string]struct {
		raw  cgo.CreateResult
		call error
		want CreateResult
	}{
		"opened":           {cgo.CreateResult{Sequence: 7, MatchedTokens: 16}, nil, CreateResult{MatchedTokens: 16}},
		"opened, refused":  {cgo.CreateResult{Sequence: 7, MatchedTokens: 16}, failed, CreateResult{MatchedTokens: 16}},
		"not opened":       {cgo.CreateResult{Status: cgo.NotNow}, failed, CreateResult{Err: ErrNotNow}},
		"nothing was done": {cgo.CreateResult{}, failed, CreateResult{Err: failed}},
	} {
		sc := &scratch{created: []cgo.CreateResult{c.raw}}
		// What the result held before is no answer.
		out := []CreateResult{{Sequence: Sequence{m: m, id: 1}, MatchedTokens: 99, Err: failed}}
		m.tellCreated(sc, out, c.call)
		if !errors.Is(out[0].Err, c.want.Err) || out[0].MatchedTokens != c.want.MatchedTokens {
			t.Errorf("%s: got %+v, want %+v", name, out[0], c.want)
		}
		if got, want := out[0].Sequence.ID(), SequenceID(c.raw.Sequence); got != want {
			t.Errorf("%s: the sequence is %d, want %d", name, got, want)
		}
	}
}
