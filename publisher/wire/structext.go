// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"reflect"

	"github.com/shamaton/msgpack/v2"
)

// fullHash is an integer hash that shamaton/msgpack is to write in 9 bytes,
// whatever its value. The library always chooses the smallest form; the one
// way round is a coder for a type of one's own.
type fullHash struct {
	bits     uint64
	negative bool
}

// fullHashCode is the code of the timestamp type, for which the library keeps
// its own decoder and ignores ours: so no code that another user of the library
// may want is taken. It is never written.
const fullHashCode = -1

// fullHashEncoder is the library's ext.Encoder for fullHash. It has no state.
type fullHashEncoder struct{}

// Code returns the extension code under which the coder is registered.
func (fullHashEncoder) Code() int8 { return fullHashCode }

// Type returns the type that the coder writes.
func (fullHashEncoder) Type() reflect.Type { return reflect.TypeFor[fullHash]() }

// CalcByteSize returns the length of what WriteToBytes writes, in bytes.
func (fullHashEncoder) CalcByteSize(reflect.Value) (int, error) { return intMax, nil }

// WriteToBytes writes the hash at offset and returns the offset after it. The
// library has made room for it.
func (fullHashEncoder) WriteToBytes(v reflect.Value, offset int, b *[]byte) int {
	h := v.Interface().(fullHash)
	(*b)[offset] = 0xcf
	if h.negative {
		(*b)[offset] = 0xd3
	}
	binary.BigEndian.PutUint64((*b)[offset+1:], h.bits)
	return offset + intMax
}

// fullHashDecoder completes the pair that the library asks for; it is not
// registered in fact (see fullHashCode) and claims nothing: on the wire such a
// hash is a plain integer.
type fullHashDecoder struct{}

// Code returns the extension code under which the coder is registered.
func (fullHashDecoder) Code() int8 { return fullHashCode }

// IsType reports that no bytes are this coder's.
func (fullHashDecoder) IsType(int, *[]byte) bool { return false }

// AsValue always fails; after IsType nobody calls it.
func (fullHashDecoder) AsValue(int, reflect.Kind, *[]byte) (any, int, error) {
	return nil, 0, errors.New("wire: a full-width hash is a plain integer")
}

// The one global registration of this module. shamaton/msgpack keeps its
// coders in plain package variables without a lock, so that a registration at
// first use would race with whoever encodes at that moment; during
// initialisation nobody does. It concerns one unexported type and changes
// nothing for other users of the library.
func init() {
	if err := msgpack.AddExtCoder(fullHashEncoder{}, fullHashDecoder{}); err != nil {
		panic(err) // only if the two codes above differed
	}
}
