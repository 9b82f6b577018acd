// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import "fmt"

// Check tells whether payload is exactly one well-formed msgpack value within
// MaxBytes and MaxDepth of the limits: every header is backed by bytes, no
// reserved byte, nothing left over, and map keys are numbers, strings,
// booleans or nil. It allocates nothing on success.
//
// A general msgpack library must see network bytes only after this check. The
// library used here recurses per nesting level and panics when a map key is a
// bin. Also after it, decode into an interface value only: a bin that meets a
// struct field of another slice type makes that library panic, too.
func Check(payload []byte, l Limits) error {
	l, err := l.withDefaults()
	if err != nil {
		return err
	}
	if len(payload) > l.MaxBytes {
		return tooLong("check", len(payload), l.MaxBytes)
	}
	r := reader{b: payload, maxDepth: l.MaxDepth}
	p, err := r.walk(0, 0, true)
	if err == nil && p != len(payload) {
		err = ErrTrailing
	}
	if err != nil {
		return &Error{Op: "check", Event: -1, Offset: p, Err: err}
	}
	return nil
}

func tooLong(op string, n, most int) error {
	return &Error{Op: op, Event: -1, Offset: -1, Err: ErrLimit,
		Detail: fmt.Sprintf("payload of %d bytes, at most %d", n, most)}
}
