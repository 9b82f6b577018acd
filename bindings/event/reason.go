// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package event

// EvictedReason says why a block left the tree.
type EvictedReason uint8

// The reasons. The numbers are those of kvc_evicted_reason.
const (
	// EvictedCapacity: its page was needed.
	EvictedCapacity EvictedReason = iota + 1
	// EvictedTTL: so, and the time of a higher priority was up.
	EvictedTTL
	// EvictedEnded: so, and its conversation was over.
	EvictedEnded
	// EvictedScope: its scope was dropped.
	EvictedScope
)

// String is the reason in a word.
func (r EvictedReason) String() string {
	switch r {
	case EvictedCapacity:
		return "capacity"
	case EvictedTTL:
		return "ttl"
	case EvictedEnded:
		return "ended"
	case EvictedScope:
		return "scope"
	default:
		return "unknown"
	}
}
