// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"reflect"
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// What is made without an error is of no use with a value that cannot be, and says so
// with the first batch, also an empty one.
func TestConstructorsWithoutAnError(t *testing.T) {
	for name, c := range map[string]struct {
		use  func() error
		good bool
	}{
		"mirror":           {func() error { return NewMirror(0).Apply(nil) }, true},
		"mirror of less":   {func() error { return NewMirror(-1).Apply(nil) }, false},
		"tokens":           {func() error { return NewTokenMirror(1).Apply(nil) }, true},
		"tokens of less":   {func() error { return NewTokenMirror(-1).Apply(nil) }, false},
		"verifier":         {func() error { return NewVerifier(VerifierOptions{}).Check(1, new(wire.Batch)) }, true},
		"verifier of less": {func() error { return NewVerifier(VerifierOptions{MaxBlocks: -1}).Check(1, new(wire.Batch)) }, false},
		"verifier of a snapshot": {func() error {
			return NewVerifier(VerifierOptions{MaxBlocks: -1}).CheckSnapshot(1, new(wire.Batch))
		}, false},
		"last form": {func() error {
			return NewVerifier(VerifierOptions{HasForm: true, Form: event.Bytes}).Check(1, new(wire.Batch))
		}, true},
		"no form": {func() error {
			return NewVerifier(VerifierOptions{HasForm: true, Form: event.Bytes + 1}).Check(1, new(wire.Batch))
		}, false},
	} {
		if err := c.use(); (err == nil) != c.good || err != nil && !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := reflect.TypeFor[VerifierOptions]().NumField(); n != 3 {
		t.Errorf("%d options, of 3 bad values are tried", n)
	}
}
