// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"

	"github.com/kvcast/kvcast/bindings/event"
)

// Reduce turns a block key into the 64-bit pattern that goes on the wire in
// the given form. For event.Signed64 it is the two's-complement pattern. For
// event.Bytes, which sends the whole digest, it is the first 8 bytes, the
// number under which such a block is listed in resident-set files.
//
// It is written independently of the native reduction, so that each can check
// the other.
func Reduce(d event.Digest, form event.Form) uint64 {
	switch form {
	case event.Unsigned64:
		return binary.BigEndian.Uint64(d[len(d)-8:])
	case event.Portable63:
		p := binary.BigEndian.Uint64(d[:8]) >> 1
		if p < 1<<32 {
			p |= 1 << 62
		}
		return p
	default:
		return binary.BigEndian.Uint64(d[:8])
	}
}
