// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

// Whatever publisher, replay server and network do: between two resets numbers
// rise by one or by exactly what a gap tells, little is held, and a tracker that
// is left in peace ends up waiting for live messages alone.
func FuzzTracker(f *testing.F) {
	f.Add(true, []byte("a0a1qr0r1ea3qr1r2r3e"))
	f.Add(true, []byte("qea5qtWqtWqtWa7Wqr0r1e"))
	f.Add(true, []byte("qr0r1eCqr1r2Ca5qr0eM\x00a0a0a0qea1a0"))
	f.Add(false, []byte("a5a3a9Ma0C"))
	f.Fuzz(func(t *testing.T, asks bool, script []byte) {
		p := newPlay(t, asks)
		tr := p.tr
		have, want := false, uint64(0)
		take := func() {
			for item, ok := tr.next(); ok; item, ok = tr.next() {
				switch item.Kind {
				case ItemReset:
					have, want = false, 0
				case ItemGap:
					if item.From != want || item.Lost == 0 {
						t.Fatalf("gap %d+%d, want %d", item.From, item.Lost, want)
					}
					want += item.Lost
					have = true
				case ItemBatch:
					if have && item.Message.Seq != want {
						t.Fatalf("batch %d, want %d", item.Message.Seq, want)
					}
					have, want = true, item.Message.Seq+1
				}
			}
			if len(tr.pending) > tr.messages || tr.pendingBytes < 0 {
				t.Fatalf("%d messages, %d bytes held", len(tr.pending), tr.pendingBytes)
			}
		}
		message := func(b byte) *Message {
			// A few numbers near each other and the largest ones.
			seq := uint64(b & 15)
			if b&0x60 == 0x60 {
				seq = wire.EndSeq - 1 - seq
			}
			return &Message{Seq: seq, Payload: []byte{b & 15, b >> 7}}
		}
		for i := 0; i < len(script); i++ {
			arg := byte(0)
			if i+1 < len(script) {
				arg = script[i+1]
			}
			switch script[i] {
			case 'a':
				tr.live(message(arg), false)
				i++
			case 's':
				tr.live(message(arg), true)
				i++
			case 'r':
				if tr.request != nil {
					tr.answer(p.now, message(arg))
				}
				i++
			case 'e':
				if tr.request != nil {
					tr.end(p.now)
				}
			case 'q':
				tr.wants(p.now)
			case 't':
				tr.waited(p.now, 5*time.Second)
			case 'W':
				p.now = p.now.Add(time.Minute)
			case 'C':
				tr.connected(p.now, arg&1 == 0)
			case 'M':
				tr.mark()
			default:
				take()
			}
		}
		for range 8 {
			take()
			p.now = p.now.Add(2 * rebuildPauseMax)
			if tr.wants(p.now); tr.request != nil {
				tr.answer(p.now, &Message{Seq: tr.request.start, Payload: tr.payload})
				if tr.request != nil {
					tr.end(p.now)
				}
			}
		}
		take()
		if tr.busy() || tr.degraded || len(tr.pending) > 0 {
			t.Fatalf("never ends: degraded %t, due %t, %d held", tr.degraded, tr.due, len(tr.pending))
		}
	})
}
