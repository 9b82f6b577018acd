// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"slices"

	"github.com/kvcast/kvcast/bindings/event"
)

// The number of elements follows from the type and the encoding alone, so that
// header and type are one constant.
const (
	storedArrayHead       = "\x9c" + vStored
	storedArrayShortHead  = "\x99" + vStored
	removedArrayHead      = "\x94" + vRemoved
	removedArrayShortHead = "\x93" + vRemoved
	clearedArray          = "\x91" + vCleared

	// nilExtra is extra_keys and the three group fields, none of them set.
	nilExtra = "\xc0\xc0\xc0\xc0"

	// storedArrayFixed bounds a stored event without hashes, tokens and strings:
	// two list headers, block_size and lora_id, two string headers.
	storedArrayFixed  = len(storedArrayHead) + 4*headerMax + 2*intMax + len(nilExtra) + wordSlack
	removedArrayFixed = len(removedArrayHead) + 2*headerMax + intMax
)

// appendStoredArray writes one of the array forms. checkStored has found that
// the event holds nothing without a place.
func (e *Encoder) appendStoredArray(dst []byte, s *event.BlockStored) []byte {
	dst = slices.Grow(dst, storedArrayFixed+len(s.Medium)+len(s.LoRAName)+
		e.hashBound(len(s.Hashes)+1, len(s.Digests)+1)+5*len(s.Tokens))
	b, p := dst[:cap(dst)], len(dst)

	x := s.Extra
	if e.encoding == ArrayShort {
		p += copy(b[p:], storedArrayShortHead)
	} else {
		p += copy(b[p:], storedArrayHead)
	}
	p = e.putHashes(b, p, s.Hashes, s.Digests)
	if s.HasParent {
		p = e.putHash(b, p, s.ParentHash, &s.ParentDigest)
	} else {
		b[p] = 0xc0
		p++
	}
	p = putArrayHeader(b, p, len(s.Tokens))
	if x == nil || x.HexTokens == nil {
		p = putTokens(b, p, s.Tokens)
	} else {
		dst = appendHexTokens(b[:p], s.Tokens, x.HexTokens)
		dst = slices.Grow(dst, storedArrayFixed+len(s.Medium)+len(s.LoRAName))
		b, p = dst[:cap(dst)], len(dst)
	}
	p = putUint(b, p, uint64(s.BlockSize))
	p = putUintOrNil(b, p, s.LoRAID, s.HasLoRAID)
	p = putStringOrNil(b, p, s.Medium, s.HasMedium)
	p = putStringOrNil(b, p, s.LoRAName, s.LoRAName != "")
	switch {
	case x != nil:
		return e.appendArrayExtra(b[:p], x)
	case e.encoding == ArrayShort:
		b[p] = 0xc0
		return b[:p+1]
	}
	return b[:p+copy(b[p:], nilExtra)]
}

// appendArrayExtra writes the elements from extra_keys on.
func (e *Encoder) appendArrayExtra(dst []byte, x *event.StoredExtra) []byte {
	if x.ExtraKeys == nil {
		dst = append(dst, 0xc0)
	} else {
		dst = appendExtraKeysList(dst, x.ExtraKeys)
	}
	if e.encoding == ArrayShort {
		return dst
	}
	dst = slices.Grow(dst, 2*intMax+headerMax+len(x.SpecKind))
	b, p := dst[:cap(dst)], len(dst)
	p = putUintOrNil(b, p, x.GroupIdx, x.HasGroupIdx)
	p = putStringOrNil(b, p, x.SpecKind, x.SpecKind != "")
	return b[:putUintOrNil(b, p, x.SlidingWindow, x.HasWindow)]
}

// appendRemovedArray writes one of the array forms. checkRemoved has found that
// the event holds nothing without a place.
func (e *Encoder) appendRemovedArray(dst []byte, r *event.BlockRemoved) []byte {
	dst = slices.Grow(dst, removedArrayFixed+len(r.Medium)+e.hashBound(len(r.Hashes), len(r.Digests)))
	b, p := dst[:cap(dst)], len(dst)
	if e.encoding == ArrayShort {
		p += copy(b[p:], removedArrayShortHead)
	} else {
		p += copy(b[p:], removedArrayHead)
	}
	p = e.putHashes(b, p, r.Hashes, r.Digests)
	p = putStringOrNil(b, p, r.Medium, r.HasMedium)
	if e.encoding == ArrayShort {
		return b[:p]
	}
	return b[:putUintOrNil(b, p, r.GroupIdx, r.HasGroupIdx)]
}
