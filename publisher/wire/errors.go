// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"strconv"
	"strings"
)

// Sentinels, matched with errors.Is. Every error of this package is an *Error
// that wraps exactly one of them.
var (
	// ErrConfig: a Config or a Limits value is outside its range.
	ErrConfig = errors.New("bad configuration")
	// ErrTimestamp: a batch time is not finite.
	ErrTimestamp = errors.New("timestamp is not finite")
	// ErrEventType: an event is nil, or of no type this package knows.
	ErrEventType = errors.New("unknown event type")
	// ErrHashForm: an event carries integer hashes where digests are wanted, or
	// the other way round.
	ErrHashForm = errors.New("hashes have the wrong form")
	// ErrShape: the parts of an event do not fit together, or a value on the
	// wire has the wrong msgpack type.
	ErrShape = errors.New("wrong type or shape")
	// ErrNoSlot: an event has a key that the chosen array form has no place for.
	ErrNoSlot = errors.New("no place for the key")

	// ErrNoHashes: a stored or removed event names no block.
	ErrNoHashes = errors.New("no block hashes")
	// ErrDuplicateHash: invariant I1, a hash occurs twice in one stored event
	// (its parent counts).
	ErrDuplicateHash = errors.New("duplicate block hash")
	// ErrTokenCount: invariant I2, the number of tokens (or of entries that
	// are given per block or per token) does not fit the number of blocks.
	ErrTokenCount = errors.New("count does not fit the blocks")
	// ErrMultimodal: the event has digest tokens, which no encoder writes: package
	// publisher turns them into one of the forms of section 7 before.
	ErrMultimodal = errors.New("multimodal digests")
	// ErrLoRAID: invariant I4, a LoRA id above 2^63-1.
	ErrLoRAID = errors.New("LoRA id above 2^63-1")
	// ErrBlockSize: invariant I6, a block size of 0.
	ErrBlockSize = errors.New("block size is 0")
	// ErrUTF8: invariant I9, a string is not UTF-8.
	ErrUTF8 = errors.New("string is not UTF-8")

	// ErrTruncated: a header claims more than the bytes that are left.
	ErrTruncated = errors.New("truncated")
	// ErrReserved: the byte 0xc1, which msgpack never uses.
	ErrReserved = errors.New("reserved msgpack byte")
	// ErrTrailing: bytes are left over after the value.
	ErrTrailing = errors.New("trailing bytes")
	// ErrDepth: nesting deeper than Limits.MaxDepth.
	ErrDepth = errors.New("nested too deeply")
	// ErrLimit: a size beyond one of the other Limits.
	ErrLimit = errors.New("size limit exceeded")
	// ErrRange: an integer outside the range of its field.
	ErrRange = errors.New("integer out of range")
	// ErrMissing: a required key is absent.
	ErrMissing = errors.New("required key is missing")
	// ErrFrames: a message has the wrong number or shape of frames.
	ErrFrames = errors.New("malformed frames")
)

// Error says what failed and where. The zero Offset is a valid place; -1 in
// Offset or Event means that there is none.
type Error struct {
	// Op is the failed operation: "encode", "decode", "check" and so on.
	Op string
	// Event is the index of the event in its batch, or -1.
	Event int
	// Key is the wire name of the field, or "".
	Key string
	// Offset is the byte offset in the payload, or -1.
	Offset int
	// Err is one of the sentinels of this package.
	Err error
	// Detail adds figures; may be empty.
	Detail string
}

// Error returns one line, such as
// "wire: decode: event 3: token_ids: truncated at byte 118".
func (e *Error) Error() string {
	var s strings.Builder
	s.WriteString("wire: ")
	s.WriteString(e.Op)
	if e.Event >= 0 {
		s.WriteString(": event ")
		s.WriteString(strconv.Itoa(e.Event))
	}
	if e.Key != "" {
		s.WriteString(": ")
		s.WriteString(e.Key)
	}
	s.WriteString(": ")
	s.WriteString(e.Err.Error())
	if e.Detail != "" {
		s.WriteString(" (")
		s.WriteString(e.Detail)
		s.WriteString(")")
	}
	if e.Offset >= 0 {
		s.WriteString(" at byte ")
		s.WriteString(strconv.Itoa(e.Offset))
	}
	return s.String()
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Err }
