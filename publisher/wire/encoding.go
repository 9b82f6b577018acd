// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"strconv"

	"github.com/kvcast/kvcast/bindings/event"
)

// Encoding chooses the shape of the events in a payload. The envelope is an
// array of three in all of them. The array forms are for readers older than the
// map form (wire contract 4.2): a place stands for a key there, and what has no
// place cannot be said.
type Encoding uint8

const (
	// Map writes tagged maps that hold the keys which are set.
	Map Encoding = iota
	// Array writes arrays of 12 elements for BlockStored, 4 for BlockRemoved and
	// 1 for AllBlocksCleared, with nil for what is not set. There is no place for
	// locality, ownership, session_id and mm_keys.
	Array
	// ArrayShort writes the first 9, 3 and 1 elements of Array: there is no place
	// for the group fields either.
	ArrayShort
)

// String returns the name that configurations use: map, array or array-short.
func (e Encoding) String() string {
	switch e {
	case Map:
		return "map"
	case Array:
		return "array"
	case ArrayShort:
		return "array-short"
	}
	return "encoding(" + strconv.Itoa(int(e)) + ")"
}

// detail names the encoding where it is the reason of an error.
func (e Encoding) detail(err error) string {
	if err == ErrNoSlot {
		return "in " + e.String() + " form"
	}
	return ""
}

// storedSlots returns ErrNoSlot and the key of the first part of a stored event
// that the encoding has no place for.
func (e Encoding) storedSlots(s *event.BlockStored) (key string, err error) {
	x := s.Extra
	if e == Map || x == nil {
		return "", nil
	}
	if e == ArrayShort {
		switch {
		case x.HasGroupIdx:
			return "group_idx", ErrNoSlot
		case x.SpecKind != "":
			return "kv_cache_spec_kind", ErrNoSlot
		case x.HasWindow:
			return "kv_cache_spec_sliding_window", ErrNoSlot
		}
	}
	switch {
	case x.Locality != "":
		return "locality", ErrNoSlot
	case x.Ownership != "":
		return "ownership", ErrNoSlot
	case x.SessionID != "":
		return "session_id", ErrNoSlot
	case x.MMKeys != nil:
		return "mm_keys", ErrNoSlot
	}
	return "", nil
}

// removedSlots is storedSlots for a removed event.
func (e Encoding) removedSlots(r *event.BlockRemoved) (key string, err error) {
	switch {
	case e == Map:
		return "", nil
	case e == ArrayShort && r.HasGroupIdx:
		return "group_idx", ErrNoSlot
	case r.Locality != "":
		return "locality", ErrNoSlot
	case r.Ownership != "":
		return "ownership", ErrNoSlot
	}
	return "", nil
}
