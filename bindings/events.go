// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import "github.com/kvcast/kvcast/bindings/event"

// The event types live in package event, which needs no cgo; these are the
// same types under the names most programs use.
type (
	// Event is one of *BlockStored, *BlockRemoved and *AllBlocksCleared.
	Event = event.Event
	// BlockStored says that a chain of blocks became reusable.
	BlockStored = event.BlockStored
	// BlockRemoved says that blocks are no longer reusable.
	BlockRemoved = event.BlockRemoved
	// AllBlocksCleared says that nothing announced before is reusable.
	AllBlocksCleared = event.AllBlocksCleared
	// Digest is a block key.
	Digest = event.Digest
	// Form says how a key becomes the hash on the wire.
	Form = event.Form
)

// DigestToken is the token that stands for the i-th of a prompt's or commit's
// Digests, or of an event's MMDigests.
func DigestToken(i int) uint32 { return event.DigestToken(i) }

// The wire hash forms.
const (
	Signed64   = event.Signed64
	Unsigned64 = event.Unsigned64
	Portable63 = event.Portable63
	Bytes      = event.Bytes
)
