// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
)

// benchTokens is how many tokens a block has in the benchmarks.
const benchTokens = 16

// benchEvents makes n stored events of the given number of blocks, with token
// ids spread evenly over a vocabulary of 128,256, as in the replayed traces.
func benchEvents(n, blocks int) []event.Event {
	rng := rand.New(rand.NewPCG(1, 2))
	events := make([]event.Event, n)
	for i := range events {
		s := &event.BlockStored{
			BlockSize: benchTokens, Medium: "GPU", HasMedium: true,
			HasParent: true, ParentHash: rng.Uint64(),
		}
		for range blocks {
			s.Hashes = append(s.Hashes, rng.Uint64())
		}
		for range blocks * benchTokens {
			s.Tokens = append(s.Tokens, rng.Uint32N(128256))
		}
		events[i] = s
	}
	return events
}

func reportBlocks(b *testing.B, blocks int) {
	b.ReportAllocs()
	ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(blocks)
	b.ReportMetric(ns, "ns/block")
	b.ReportMetric(1e9/ns, "blocks/s")
}

func BenchmarkEncode(b *testing.B) {
	for _, events := range []int{1, 16, 256, 4096} {
		for _, blocks := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("events=%d/blocks=%d", events, blocks), func(b *testing.B) {
				benchEncode(b, Config{}, events, blocks)
			})
		}
	}
	for _, encoding := range encodings {
		for _, minimal := range []bool{false, true} {
			width := "full"
			if minimal {
				width = "minimal"
			}
			for _, blocks := range []int{1, 8, 64} {
				b.Run(fmt.Sprintf("%v/%s/events=128/blocks=%d", encoding, width, blocks), func(b *testing.B) {
					benchEncode(b, Config{Encoding: encoding, MinimalHashes: minimal}, 128, blocks)
				})
			}
		}
	}
}

func benchEncode(b *testing.B, c Config, n, blocks int) {
	e, err := NewEncoder(c)
	if err != nil {
		b.Fatal(err)
	}
	events := benchEvents(n, blocks)
	var buf []byte
	for b.Loop() {
		if buf, err = e.AppendBatch(buf[:0], 1, events, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(len(buf)))
	reportBlocks(b, n*blocks)
}

func BenchmarkEncodeStruct(b *testing.B) {
	for _, encoding := range encodings {
		b.Run(encoding.String(), func(b *testing.B) {
			events := benchEvents(128, 8)
			for b.Loop() {
				if _, err := EncodeStruct(Config{Encoding: encoding}, 1, events, 0); err != nil {
					b.Fatal(err)
				}
			}
			reportBlocks(b, 128*8)
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, blocks := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("events=128/blocks=%d", blocks), func(b *testing.B) {
			payload := benchPayload(b, 128, blocks)
			d, err := NewDecoder(Limits{})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := d.Decode(payload); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(len(payload)))
			reportBlocks(b, 128*blocks)
		})
	}
}

func BenchmarkPrecheck(b *testing.B) {
	payload := benchPayload(b, 128, 8)
	for b.Loop() {
		if err := Check(payload, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
	reportBlocks(b, 128*8)
}

func benchPayload(b *testing.B, n, blocks int) []byte {
	e, err := NewEncoder(Config{})
	if err != nil {
		b.Fatal(err)
	}
	payload, err := e.AppendBatch(nil, 1, benchEvents(n, blocks), 0)
	if err != nil {
		b.Fatal(err)
	}
	return payload
}

func BenchmarkChecker(b *testing.B) {
	for _, blocks := range []int{1, 8, 16, 17, 64, 4096} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			events := benchEvents(16, blocks)
			var c Checker
			for b.Loop() {
				for _, ev := range events {
					if err := c.Check(ev); err != nil {
						b.Fatal(err)
					}
				}
			}
			reportBlocks(b, 16*blocks)
		})
	}
}
