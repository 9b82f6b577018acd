// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"slices"
)

// The put functions write at b[p:] and return the next position; the caller
// has made room (intMax or headerMax bytes, plus the body). The append
// functions grow as append does.

// putUint writes the smallest unsigned form.
func putUint(b []byte, p int, v uint64) int {
	switch {
	case v < 0x80:
		b[p] = byte(v)
		return p + 1
	case v < 1<<8:
		b[p], b[p+1] = 0xcc, byte(v)
		return p + 2
	case v < 1<<16:
		b[p] = 0xcd
		binary.BigEndian.PutUint16(b[p+1:], uint16(v))
		return p + 3
	case v < 1<<32:
		b[p] = 0xce
		binary.BigEndian.PutUint32(b[p+1:], uint32(v))
		return p + 5
	default:
		b[p] = 0xcf
		binary.BigEndian.PutUint64(b[p+1:], v)
		return p + 9
	}
}

// putNegative writes the smallest signed form of a number below 0.
func putNegative(b []byte, p int, v int64) int {
	switch {
	case v >= -32:
		b[p] = byte(v)
		return p + 1
	case v >= -1<<7:
		b[p], b[p+1] = 0xd0, byte(v)
		return p + 2
	case v >= -1<<15:
		b[p] = 0xd1
		binary.BigEndian.PutUint16(b[p+1:], uint16(v))
		return p + 3
	case v >= -1<<31:
		b[p] = 0xd2
		binary.BigEndian.PutUint32(b[p+1:], uint32(v))
		return p + 5
	default:
		b[p] = 0xd3
		binary.BigEndian.PutUint64(b[p+1:], uint64(v))
		return p + 9
	}
}

// putHeader writes the header of a list or map: a fix form up to 15, then a
// 16-bit and a 32-bit form.
func putHeader(b []byte, p, n int, fix, wide byte) int {
	switch {
	case n < 16:
		b[p] = fix | byte(n)
		return p + 1
	case n < 1<<16:
		b[p] = wide
		binary.BigEndian.PutUint16(b[p+1:], uint16(n))
		return p + 3
	default:
		b[p] = wide + 1
		binary.BigEndian.PutUint32(b[p+1:], uint32(n))
		return p + 5
	}
}

func putArrayHeader(b []byte, p, n int) int { return putHeader(b, p, n, 0x90, 0xdc) }

func putMapHeader(b []byte, p, n int) int { return putHeader(b, p, n, 0x80, 0xde) }

// putStringHeader writes the header of a str of n bytes.
func putStringHeader(b []byte, p, n int) int {
	switch {
	case n < 32:
		b[p] = 0xa0 | byte(n)
		return p + 1
	case n < 1<<8:
		b[p], b[p+1] = 0xd9, byte(n)
		return p + 2
	case n < 1<<16:
		b[p] = 0xda
		binary.BigEndian.PutUint16(b[p+1:], uint16(n))
		return p + 3
	default:
		b[p] = 0xdb
		binary.BigEndian.PutUint32(b[p+1:], uint32(n))
		return p + 5
	}
}

func putUintOrNil(b []byte, p int, v uint64, set bool) int {
	if !set {
		b[p] = 0xc0
		return p + 1
	}
	return putUint(b, p, v)
}

func putStringOrNil(b []byte, p int, s string, set bool) int {
	if !set {
		b[p] = 0xc0
		return p + 1
	}
	p = putStringHeader(b, p, len(s))
	return p + copy(b[p:], s)
}

func appendUint(dst []byte, v uint64) []byte {
	dst = slices.Grow(dst, intMax)
	return dst[:putUint(dst[:cap(dst)], len(dst), v)]
}

func appendInt(dst []byte, v int64) []byte {
	if v >= 0 {
		return appendUint(dst, uint64(v))
	}
	dst = slices.Grow(dst, intMax)
	return dst[:putNegative(dst[:cap(dst)], len(dst), v)]
}

func appendArrayHeader(dst []byte, n int) []byte {
	dst = slices.Grow(dst, headerMax)
	return dst[:putArrayHeader(dst[:cap(dst)], len(dst), n)]
}

func appendString(dst []byte, s string) []byte {
	dst = slices.Grow(dst, headerMax+len(s))
	dst = dst[:putStringHeader(dst[:cap(dst)], len(dst), len(s))]
	return append(dst, s...)
}

// appendStringKey appends a key that is left out when its value is empty.
func appendStringKey(dst []byte, key, s string) []byte {
	if s == "" {
		return dst
	}
	return appendString(append(dst, key...), s)
}

func appendBin(dst []byte, v []byte) []byte {
	switch n := len(v); {
	case n < 1<<8:
		dst = append(dst, 0xc4, byte(n))
	case n < 1<<16:
		dst = append(dst, 0xc5, byte(n>>8), byte(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xc6), uint32(n))
	}
	return append(dst, v...)
}
