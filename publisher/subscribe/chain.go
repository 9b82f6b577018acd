// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
	"time"
)

// The live stream and the answers come over connections of their own, and what a
// dead publisher has sent may wait in the one long after its successor has
// answered over the other. Both lives' messages are in one queue, in order, with
// CURVE without a sharp mark between them, and a new connection is known of as soon
// as there is one. So which life a live message is from is found out by what it
// holds:
//
//   - The batch that was handed out last comes live too, the same byte for byte.
//     Then the connection is with its life, and all that comes behind it
//     continues it, until there is another connection (chained). Of that the
//     follower knows before it looks at a message that came over it.
//   - A request that is made after a message has come is answered by its life or
//     by a later one. In the first case the answer has it; in the second it must
//     be dropped. So after a whole answer all messages that came before its
//     request have had their turn, and none of them is needed.
//
// Lives follow each other, so a life that has answered after a new connection
// became known and of which a message has come, over this or an earlier
// connection, is the one that the connection is with. While nobody answers,
// only what has certainly come over the newest connection is handed out.

// maxMisses is how many answers in a row may lack what had come live before they
// were asked for. Above the burst of requests, so that it takes a while: a dead
// publisher's messages come to an end.
const maxMisses = askBurst + 2

// unchain forgets that live messages continue what was handed out. Those that
// wait may be from a life that is over.
func (t *tracker) unchain() {
	t.chained = false
	for i := range t.pending {
		t.pending[i].stale = true
	}
}

// join deals with the oldest message that waits, of which it is not known
// whether it continues what was handed out. It returns true if that does not
// matter any more.
func (t *tracker) join() bool {
	switch {
	case !t.degraded:
		t.due = true
	case t.pending[0].stale:
		t.stats.Foreign++
		t.pop()
	case t.have:
		t.emitReset(ResetUnproven, 0)
	default:
		return true
	}
	return false
}

// prove looks for the batch that was handed out last among the messages that
// wait.
func (t *tracker) prove() {
	if !t.have {
		return
	}
	for i := range t.pending {
		m := t.pending[i].m
		if m.Seq != t.last || !bytes.Equal(m.Payload, t.payload) {
			continue
		}
		// What is before it has come before it.
		for range i + 1 {
			t.stats.Duplicates++
			t.pop()
		}
		t.chained, t.misses = true, 0
		t.float = floating{}
		return
	}
}

// judge deals with the messages that wait at the end of the answer to a request.
func (t *tracker) judge(now time.Time, r *request) {
	t.prove()
	if t.chained || len(t.pending) == 0 || t.pending[0].asked == t.asked {
		return
	}
	if !t.have && !r.probe {
		// A server may have no history to give, and yet what was just sent.
		t.probe = true
		return
	}
	missed := false
	for len(t.pending) > 0 && t.pending[0].asked < t.asked {
		if h := t.pending[0]; t.have && h.m.Seq <= t.last {
			t.stats.Duplicates++
		} else {
			t.stats.Foreign++
			missed = missed || !h.stale
		}
		t.pop()
	}
	if !missed {
		return
	}
	if t.misses++; t.misses >= maxMisses {
		// Such answers are as good as none.
		t.degrade(now)
	}
}
