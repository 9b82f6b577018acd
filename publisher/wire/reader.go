// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"math"
)

// reader reads msgpack values at a position. Its methods return the position
// after the value, or, with an error, the position that the error is about.
// Errors are bare sentinels, so that reading never allocates; no method looks
// or slices beyond the bytes, whatever a header claims.
type reader struct {
	b        []byte
	maxDepth int
}

// errMemory ends the reading of a batch that would take too much; Decoder makes
// an ErrLimit of it.
var errMemory = errors.New("memory limit exceeded")

// structural reports whether err refuses the whole payload: it makes it
// impossible to pass over the value in which it occurred, or is about the batch
// and not about one event.
func structural(err error) bool {
	switch err {
	case ErrTruncated, ErrReserved, ErrDepth, errMemory:
		return true
	}
	return false
}

// isNil reports whether a nil stands at p.
func (r *reader) isNil(p int) bool { return p < len(r.b) && r.b[p] == 0xc0 }

// wrongType is the error for the byte at p being of another type than wanted.
func (r *reader) wrongType(p int) error {
	switch {
	case p >= len(r.b):
		return ErrTruncated
	case r.b[p] == 0xc1:
		return ErrReserved
	}
	return ErrShape
}

// be reads a big-endian number of n = 1, 2, 4 or 8 bytes at p.
func (r *reader) be(p, n int) (uint64, error) {
	if len(r.b)-p < n {
		return 0, ErrTruncated
	}
	switch n {
	case 1:
		return uint64(r.b[p]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(r.b[p:])), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(r.b[p:])), nil
	default:
		return binary.BigEndian.Uint64(r.b[p:]), nil
	}
}

// count reads an n-byte count behind the format byte at p and checks it
// against the bytes left, at least per bytes for each thing counted.
func (r *reader) count(p, n, per int) (int, int, error) {
	v, err := r.be(p+1, n)
	if err != nil {
		return 0, p, err
	}
	end := p + 1 + n
	if v > uint64(len(r.b)-end)/uint64(per) {
		return 0, p, ErrTruncated
	}
	return int(v), end, nil
}

// fixed checks a count that is part of the format byte.
func (r *reader) fixed(p, v, per int) (int, int, error) {
	if v > (len(r.b)-p-1)/per {
		return 0, p, ErrTruncated
	}
	return v, p + 1, nil
}

// array reads the header of a list and returns its length, which is never more
// than the bytes that are left.
func (r *reader) array(p int) (int, int, error) {
	if p < len(r.b) {
		switch c := r.b[p]; {
		case c&0xf0 == 0x90:
			return r.fixed(p, int(c&0x0f), 1)
		case c == 0xdc:
			return r.count(p, 2, 1)
		case c == 0xdd:
			return r.count(p, 4, 1)
		}
	}
	return 0, p, r.wrongType(p)
}

// mapping reads the header of a map and returns the number of its entries,
// each of which takes at least two of the bytes that are left.
func (r *reader) mapping(p int) (int, int, error) {
	if p < len(r.b) {
		switch c := r.b[p]; {
		case c&0xf0 == 0x80:
			return r.fixed(p, int(c&0x0f), 2)
		case c == 0xde:
			return r.count(p, 2, 2)
		case c == 0xdf:
			return r.count(p, 4, 2)
		}
	}
	return 0, p, r.wrongType(p)
}

// str reads a str and returns its bytes, which alias the payload.
func (r *reader) str(p int) (s []byte, next int, err error) {
	n, next := 0, 0
	if p < len(r.b) {
		switch c := r.b[p]; {
		case c&0xe0 == 0xa0:
			n, next, err = r.fixed(p, int(c&0x1f), 1)
		case c == 0xd9:
			n, next, err = r.count(p, 1, 1)
		case c == 0xda:
			n, next, err = r.count(p, 2, 1)
		case c == 0xdb:
			n, next, err = r.count(p, 4, 1)
		default:
			return nil, p, r.wrongType(p)
		}
		if err != nil {
			return nil, p, err
		}
		return r.b[next : next+n], next + n, nil
	}
	return nil, p, ErrTruncated
}

// isBin reports whether a bin stands at p.
func (r *reader) isBin(p int) bool { return p < len(r.b) && r.b[p] >= 0xc4 && r.b[p] <= 0xc6 }

// isStr reports whether a str stands at p.
func (r *reader) isStr(p int) bool {
	return p < len(r.b) && (r.b[p]&0xe0 == 0xa0 || r.b[p] >= 0xd9 && r.b[p] <= 0xdb)
}

// bin reads a bin and returns its bytes, which alias the payload.
func (r *reader) bin(p int) (s []byte, next int, err error) {
	if !r.isBin(p) {
		return nil, p, r.wrongType(p)
	}
	n, next, err := r.count(p, 1<<(r.b[p]-0xc4), 1)
	if err != nil {
		return nil, p, err
	}
	return r.b[next : next+n], next + n, nil
}

// integer reads an integer of any format. bits is its two's complement;
// negative tells which of the two readings is meant.
func (r *reader) integer(p int) (bits uint64, negative bool, next int, err error) {
	if p >= len(r.b) {
		return 0, false, p, ErrTruncated
	}
	c := r.b[p]
	switch {
	case c < 0x80:
		return uint64(c), false, p + 1, nil
	case c >= 0xe0:
		return uint64(int64(int8(c))), true, p + 1, nil
	case c >= 0xcc && c <= 0xcf:
		n := 1 << (c - 0xcc)
		if bits, err = r.be(p+1, n); err != nil {
			return 0, false, p, err
		}
		return bits, false, p + 1 + n, nil
	case c >= 0xd0 && c <= 0xd3:
		n := 1 << (c - 0xd0)
		if bits, err = r.be(p+1, n); err != nil {
			return 0, false, p, err
		}
		unused := 64 - 8*n
		v := int64(bits<<unused) >> unused
		return uint64(v), v < 0, p + 1 + n, nil
	}
	return 0, false, p, r.wrongType(p)
}

// unsigned reads an integer from 0 to most.
func (r *reader) unsigned(p int, most uint64) (uint64, int, error) {
	v, negative, next, err := r.integer(p)
	if err != nil {
		return 0, next, err
	}
	if negative || v > most {
		return 0, p, ErrRange
	}
	return v, next, nil
}

// signed reads an integer that fits an int64.
func (r *reader) signed(p int) (int64, int, error) {
	v, negative, next, err := r.integer(p)
	if err != nil {
		return 0, next, err
	}
	if !negative && v > math.MaxInt64 {
		return 0, p, ErrRange
	}
	return int64(v), next, nil
}

// number reads an integer or a float of either width. exact reports a float64.
func (r *reader) number(p int) (v float64, exact bool, next int, err error) {
	if p < len(r.b) {
		switch r.b[p] {
		case 0xca:
			u, err := r.be(p+1, 4)
			if err != nil {
				return 0, false, p, err
			}
			return float64(math.Float32frombits(uint32(u))), false, p + 5, nil
		case 0xcb:
			u, err := r.be(p+1, 8)
			if err != nil {
				return 0, false, p, err
			}
			return math.Float64frombits(u), true, p + 9, nil
		}
	}
	bits, negative, next, err := r.integer(p)
	if negative {
		return float64(int64(bits)), false, next, err
	}
	return float64(bits), false, next, err
}

// scalarWidths holds the size of the values whose size follows from their
// format byte alone and that may be a map key: nil, booleans and numbers. 0
// stands for all others. Most of a payload is tokens, and a table has no
// branches to mispredict.
var scalarWidths = func() (t [256]uint8) {
	for c := range 0x80 {
		t[c] = 1
	}
	for c := 0xe0; c <= 0xff; c++ {
		t[c] = 1
	}
	t[0xc0], t[0xc2], t[0xc3] = 1, 1, 1
	t[0xca], t[0xcb] = 5, 9
	for i := range 4 {
		t[0xcc+i], t[0xd0+i] = 1+1<<i, 1+1<<i
	}
	return t
}()

// skip passes over one value that stands inside depth lists and maps.
func (r *reader) skip(p, depth int) (int, error) { return r.walk(p, depth, false) }

// walk passes over one value without recursion. With scalarKeys a map key that
// is a bin, list, map or extension is ErrShape: readers that keep maps in Go
// maps cannot take it.
func (r *reader) walk(p, depth int, scalarKeys bool) (int, error) {
	// A level holds how many values are still to come, shifted left by one,
	// and in bit 0 whether they are the keys and values of a map.
	var stack [maxDepth]uint64
	sp := 0
	level := uint64(1) << 1
	for {
		for level < 2 {
			if sp == 0 {
				return p, nil
			}
			sp--
			level = stack[sp]
		}
		// In a map an even number of values is left in front of a key.
		isKey := level&3 == 1
		level -= 2
		if p >= len(r.b) {
			return p, ErrTruncated
		}
		c := r.b[p]
		if w := int(scalarWidths[c]); w != 0 {
			if len(r.b)-p < w {
				return p, ErrTruncated
			}
			p += w
			continue
		}
		n, next := 0, p+1
		var err error
		children, isMap := false, uint64(0)
		composite := false // not fit for a key
		switch {
		case c < 0x90, c == 0xde, c == 0xdf:
			n, next, err = r.mapping(p)
			n *= 2
			children, isMap, composite = true, 1, true
		case c < 0xa0, c == 0xdc, c == 0xdd:
			n, next, err = r.array(p)
			children, composite = true, true
		case c < 0xc0:
			n, next, err = r.fixed(p, int(c&0x1f), 1)
		case c == 0xc1:
			return p, ErrReserved
		case c <= 0xc6:
			n, next, err = r.count(p, 1<<(c-0xc4), 1)
			composite = true
		case c <= 0xc9: // ext: the type byte comes after the count
			n, next, err = r.count(p, 1<<(c-0xc7), 1)
			n++
			composite = true
		case c <= 0xd8: // fixext; what lies between has a scalar width
			n = 1 + 1<<(c-0xd4)
			composite = true
		default: // d9, da, db
			n, next, err = r.count(p, 1<<(c-0xd9), 1)
		}
		if err != nil {
			return p, err
		}
		if composite && isKey && scalarKeys {
			return p, ErrShape
		}
		if !children {
			if len(r.b)-next < n {
				return p, ErrTruncated
			}
			p = next + n
			continue
		}
		if depth+sp+1 > r.maxDepth {
			return p, ErrDepth
		}
		p = next
		if n > 0 {
			// sp+1 <= depth+sp+1 <= maxDepth of the limits <= len(stack).
			stack[sp] = level
			sp++
			level = uint64(n)<<1 | isMap
		}
	}
}
