// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import "fmt"

// ItemKind says what an Item tells.
type ItemKind uint8

// What a Follower hands out.
const (
	// ItemBatch: the next batch of the stream.
	ItemBatch ItemKind = iota
	// ItemGap: numbers are lost for good; what they said is not known.
	ItemGap
	// ItemReset: forget everything. What follows is not a continuation.
	ItemReset
)

// ResetReason says why a Follower begins anew.
type ResetReason uint8

// Reasons of a reset.
const (
	// ResetMark: the publisher sent the mark of a new life.
	ResetMark ResetReason = iota
	// ResetReplaced: asked for the last batch, the publisher sent another one
	// under its number, or has none: it is not the life that sent the batch, or
	// its history does not reach back to it.
	ResetReplaced
	// ResetLower: a live number ran back and nobody could be asked.
	ResetLower
	// ResetUnproven: what was known came as a replay, or before a new
	// connection, and nobody says whether what comes live continues it.
	ResetUnproven
	// ResetSnapshot: the publisher's history does not reach back any more; what
	// follows is a snapshot of what is announced.
	ResetSnapshot
	// ResetRebuilt: after a loss that could not be made good when it was
	// noticed, the history has become available, and comes from its beginning.
	ResetRebuilt
)

// Item is one step of a followed stream.
type Item struct {
	Kind ItemKind
	// Message is the batch of an ItemBatch, nil otherwise. Its payload may be
	// kept but must not be changed: the follower compares it later.
	Message *Message
	// Replayed tells that the batch came as the answer to a request.
	Replayed bool
	// Snapshot tells that the batch is one of those that say all that was
	// announced at one moment, the first of which begins with a clear. Its number
	// is only where it stood in the answer; the next batch without Snapshot may
	// have any number, and nothing is missing before it.
	Snapshot bool
	// From is the first number of an ItemGap and Lost how many are missing.
	From, Lost uint64
	// Reason is that of an ItemReset, Before the newest number until then,
	// if HasBefore; Seq is the number that ran back, with ResetLower.
	Reason    ResetReason
	Before    uint64
	HasBefore bool
	Seq       uint64
}

func snapshotWord(snapshot bool) string {
	if snapshot {
		return ", snapshot"
	}
	return ""
}

// String describes the item in one line.
func (i Item) String() string {
	switch i.Kind {
	case ItemBatch:
		if i.Replayed {
			return fmt.Sprintf("batch %d (replayed%s)", i.Message.Seq, snapshotWord(i.Snapshot))
		}
		return fmt.Sprintf("batch %d", i.Message.Seq)
	case ItemGap:
		return fmt.Sprintf("%d batches are missing before %d", i.Lost, i.From+i.Lost)
	}
	switch i.Reason {
	case ResetMark:
		return "mark of a new publisher life"
	case ResetLower:
		return fmt.Sprintf("number %d comes after %d: the publisher began anew, or batches came again",
			i.Seq, i.Before)
	case ResetUnproven:
		return "nobody answers whether what comes live continues what is known"
	case ResetSnapshot:
		return "the history is too short and a snapshot takes its place"
	case ResetRebuilt:
		return "the history can be had again and is read from its beginning"
	}
	return fmt.Sprintf("batch %d is another one now or cannot be had any more: beginning anew",
		i.Before)
}
