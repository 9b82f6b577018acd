// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

var encodings = []wire.Encoding{wire.Map, wire.Array, wire.ArrayShort}

// Both ways into a publisher, in all encodings: what comes out of the socket is,
// byte for byte, the batch as package wire encodes it.
func TestEncodings(t *testing.T) {
	for _, encoding := range encodings {
		for _, attached := range []bool{false, true} {
			t.Run(encoding.String()+map[bool]string{false: " queue", true: " source"}[attached], func(t *testing.T) {
				o := localOptions(t)
				o.Encoding = encoding
				p := mustNew(t, o)
				src := newFakeSource()
				if attached {
					if err := p.Attach(src); err != nil {
						t.Fatal(err)
					}
				}
				mustStart(t, p)
				s := subscribe(t, p)
				stored := chain(1<<40, 3)
				stored.LoRAName = "adapter"
				events := []event.Event{stored, removal(1<<40 + 2)}
				if attached {
					src.record(events...)
					src.flush()
				} else if err := p.Publish(events...); err != nil {
					t.Fatal(err)
				}
				topic, seq, payload := s.nextFrames()
				if len(topic) != 0 || len(seq) != wire.SeqLen {
					t.Errorf("topic %q, sequence %x", topic, seq)
				}
				b, err := wire.Decode(payload, wire.Limits{})
				if err != nil {
					t.Fatal(err)
				}
				encoder, err := wire.NewEncoder(wire.Config{Encoding: encoding})
				if err != nil {
					t.Fatal(err)
				}
				want, err := encoder.AppendBatch(nil, b.TS, events, 0)
				if err != nil {
					t.Fatal(err)
				}
				if string(payload) != string(want) {
					t.Errorf("payload\n%x, want\n%x", payload, want)
				}
			})
		}
	}
}

// What an encoding has no place for is refused by itself and leaves the rest of
// the batch alone; also by a publisher that encodes nothing.
func TestKeysWithoutAPlace(t *testing.T) {
	grouped := chain(10, 1)
	grouped.Extra = &event.StoredExtra{HasGroupIdx: true, GroupIdx: 1, SpecKind: "full_attention"}
	local := chain(20, 1)
	local.Extra = &event.StoredExtra{Locality: "LOCAL"}
	for _, kind := range []Kind{KindZMQ, KindNull} {
		for encoding, bad := range map[wire.Encoding][]event.Event{
			wire.Map: nil, wire.Array: {local}, wire.ArrayShort: {grouped, local},
		} {
			t.Run(string(kind)+" "+encoding.String(), func(t *testing.T) {
				o := localOptions(t)
				o.Kind, o.Encoding = kind, encoding
				p := mustNew(t, o)
				mustStart(t, p)
				for _, ev := range bad {
					err := p.Publish(ev, removal(1))
					if !errors.Is(err, ErrInvalidEvent) || !errors.Is(err, wire.ErrNoSlot) {
						t.Errorf("%v", err)
					}
				}
				refused := len(bad)
				for _, ev := range []event.Event{grouped, local}[:2-refused] {
					if err := p.Publish(ev, removal(1)); err != nil {
						t.Error(err)
					}
				}
				if err := p.Flush(withPatience(t)); err != nil {
					t.Fatal(err)
				}
				st := p.Stats()
				checkBalance(t, st, true)
				if st.InvalidEvents != uint64(refused) || st.BurntNumbers != uint64(refused) || st.PublishedBatches != 3 {
					t.Errorf("%+v", st)
				}
			})
		}
	}
}
