// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// benchStream is a clear and batches of a steady state: chains of 64 blocks
// with 16 tokens come, and the oldest of 128 chains goes. Applied in a circle
// it ends as it begins, with a clear.
func benchStream(b *testing.B) (payloads [][]byte, blocks int) {
	b.Helper()
	const chains, alive, length, size = 512, 128, 64, 16
	encoder, err := wire.NewEncoder(wire.Config{})
	if err != nil {
		b.Fatal(err)
	}
	add := func(events ...event.Event) {
		payload, err := encoder.AppendBatch(nil, 1e9, events, 0)
		if err != nil {
			b.Fatal(err)
		}
		payloads = append(payloads, payload)
	}
	add(&event.AllBlocksCleared{})
	var stored [][]uint64
	for c := range chains {
		e := &event.BlockStored{BlockSize: size, Medium: "GPU", HasMedium: true}
		key := rootKey(&wire.Event{})
		for i := range length {
			in := key[:]
			for j := range size {
				token := uint32((c*length+i)*size+j) % 128256
				e.Tokens = append(e.Tokens, token)
				in = binary.LittleEndian.AppendUint32(in, token)
			}
			key = sha256.Sum256(in)
			e.Hashes = append(e.Hashes, wire.Reduce(key, event.Signed64))
		}
		stored = append(stored, e.Hashes)
		events := []event.Event{e}
		blocks += length
		if c >= alive {
			gone := &event.BlockRemoved{Medium: "GPU", HasMedium: true}
			for i := length - 1; i >= 0; i-- {
				gone.Hashes = append(gone.Hashes, stored[c-alive][i])
			}
			events = append(events, gone)
			blocks += length
		}
		add(events...)
	}
	return payloads, blocks
}

// What a subscriber does with each block: decode, and mirror or verify.
func BenchmarkStream(b *testing.B) {
	payloads, blocks := benchStream(b)
	for name, newTake := range map[string]func() func(int, *wire.Batch) error{
		"decode": func() func(int, *wire.Batch) error {
			return func(int, *wire.Batch) error { return nil }
		},
		"mirror": func() func(int, *wire.Batch) error {
			m := NewMirror(0)
			return func(_ int, batch *wire.Batch) error { return m.Apply(batch.Events) }
		},
		"verify": func() func(int, *wire.Batch) error {
			v := NewVerifier(VerifierOptions{})
			return func(i int, batch *wire.Batch) error { return v.Check(uint64(i), batch) }
		},
	} {
		b.Run(name, func(b *testing.B) {
			decoder, err := wire.NewDecoder(wire.Limits{})
			if err != nil {
				b.Fatal(err)
			}
			take := newTake()
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				for i, payload := range payloads {
					batch, err := decoder.Decode(payload)
					if err != nil {
						b.Fatal(err)
					}
					if err := take(i, batch); err != nil {
						b.Fatal(err)
					}
				}
				n++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*blocks), "ns/block")
		})
	}
}

// What receiving a live message of 1 kB over loopback costs, by a client alone
// and by a follower, which looks at the state of the connection each time. The
// sender takes processor time too.
func BenchmarkReceive(b *testing.B) {
	const burst, size = 1000, 1000
	for name, open := range map[string]func(endpoint string) (receive func() error, end func() error){
		"client": func(endpoint string) (func() error, func() error) {
			c, err := Connect(ClientOptions{Endpoint: endpoint})
			if err != nil {
				b.Fatal(err)
			}
			return func() error { _, err := c.Receive(deadline); return err }, c.Close
		},
		"follower": func(endpoint string) (func() error, func() error) {
			f, err := Follow(FollowerOptions{Client: ClientOptions{Endpoint: endpoint}})
			if err != nil {
				b.Fatal(err)
			}
			return func() error { _, err := f.Next(deadline); return err }, f.Close
		},
	} {
		b.Run(name, func(b *testing.B) {
			pub, endpoint := newPublisher(b, "tcp://127.0.0.1:*")
			receive, end := open(endpoint)
			defer end()
			if _, err := pub.RecvBytes(0); err != nil {
				b.Fatal(err)
			}
			payload := make([]byte, size)
			seq := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				for range burst {
					if _, err := pub.SendMessage("", wire.AppendSeq(nil, seq), payload); err != nil {
						b.Fatal(err)
					}
					seq++
				}
				for range burst {
					if err := receive(); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(seq), "ns/message")
		})
	}
}
