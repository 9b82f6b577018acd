// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import "fmt"

// Limits bound what a decoder takes from the network. A zero field means its
// default.
type Limits struct {
	// MaxBytes is the longest payload; default 32 MiB, the longest that a
	// snapshot batch may have.
	MaxBytes int
	// MaxMemory is how many bytes the parts of one batch may take together:
	// events, hashes, tokens, extra_keys, mm_keys and strings. A batch beyond it
	// is refused as a whole. Default 256 MiB, enough for 16 million tokens and
	// a million hashes in whatever events. Whatever it is, a batch may not take
	// more than 4 MiB and 12 bytes for each byte of its payload; what the
	// decoder holds in all is at most one third above that.
	MaxMemory int
	// MaxDepth is the deepest nesting of lists and maps, the envelope being 1;
	// default 16; 6 (what a multimodal event takes) to 64.
	MaxDepth int
	// MaxEvents is the most events in a batch; default 1,048,576.
	MaxEvents int
	// MaxHashes is the most hashes in an event; default 1,048,576.
	MaxHashes int
	// MaxTokens is the most tokens in an event; default 16,777,216.
	MaxTokens int
	// MaxString is the longest string or bytes hash that is kept, in bytes;
	// default 65,536.
	MaxString int
	// MaxInvalid is the most events of a batch that may be unknown or invalid;
	// beyond it the batch is refused; default 1024.
	MaxInvalid int
	// MaxRemarks is the most remarks that are kept; default 64.
	MaxRemarks int
}

const (
	// minDepth is what the contract itself nests: envelope, events, event,
	// mm_keys, list of a block, map.
	minDepth = 6
	// maxDepth is the size of the fixed stack that replaces recursion.
	maxDepth = 64
)

func (l Limits) withDefaults() (Limits, error) {
	var bad error
	l.MaxBytes = bounded(l.MaxBytes, 32<<20, 1, 1<<30, "MaxBytes", &bad)
	l.MaxMemory = bounded(l.MaxMemory, 256<<20, 1, 1<<30, "MaxMemory", &bad)
	l.MaxDepth = bounded(l.MaxDepth, 16, minDepth, maxDepth, "MaxDepth", &bad)
	l.MaxEvents = bounded(l.MaxEvents, 1<<20, 1, 1<<30, "MaxEvents", &bad)
	l.MaxHashes = bounded(l.MaxHashes, 1<<20, 1, 1<<30, "MaxHashes", &bad)
	l.MaxTokens = bounded(l.MaxTokens, 1<<24, 1, 1<<30, "MaxTokens", &bad)
	l.MaxString = bounded(l.MaxString, 1<<16, 1, 1<<30, "MaxString", &bad)
	l.MaxInvalid = bounded(l.MaxInvalid, 1024, 1, 1<<30, "MaxInvalid", &bad)
	l.MaxRemarks = bounded(l.MaxRemarks, 64, 1, 1<<20, "MaxRemarks", &bad)
	return l, bad
}

// bounded returns v, or the default in place of 0; out of range it sets *bad.
func bounded(v, def, least, most int, name string, bad *error) int {
	if v == 0 {
		return def
	}
	if v < least || v > most {
		*bad = &Error{Op: "limits", Event: -1, Key: name, Offset: -1, Err: ErrConfig,
			Detail: fmt.Sprintf("%d, want %d..%d", v, least, most)}
	}
	return v
}
