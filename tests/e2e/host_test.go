// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/publisher"
)

// A host program that serves its own prompts: one token repeated gives blocks
// with different hashes, since each depends on all before it; LoRA scopes keep
// equal tokens apart and are recomputed by the tap, salted ones cannot be; a
// reset is a clear.
func TestHostProgram(t *testing.T) {
	t.Parallel()
	endpoint := "ipc://" + filepath.Join(shortTemp(t), "s")
	tap := startPiped(t, "tap", endpoint, "--verify")

	stream, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	manager, err := bindings.NewManager(bindings.Config{TokensPerBlock: 4, CapacityBlocks: 1000, Stream: stream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = manager.Close() })
	options := publisher.DefaultOptions()
	options.Endpoint, options.WaitSubscribers = endpoint, 1
	sender, err := publisher.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sender.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := sender.Attach(stream); err != nil {
		t.Fatal(err)
	}
	if err := sender.Start(ctx); err != nil {
		t.Fatal(err)
	}

	tokens := slices.Repeat([]uint32{7}, 64)
	id, salt := uint64(3), uint64(5)
	for _, scope := range []*bindings.Scope{nil, {LoRAID: &id}, {LoRAID: &id, LoRAName: "adapter"}, {Salt: &salt}} {
		s, err := manager.Open(bindings.Prompt{Tokens: tokens, Scope: scope})
		if err != nil {
			t.Fatal(err)
		}
		if s.MatchedTokens() != 0 {
			t.Errorf("%+v found %d tokens of another scope", scope, s.MatchedTokens())
		}
		if _, err := s.Grow(len(tokens)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(tokens); err != nil {
			t.Fatal(err)
		}
		if err := s.Release(); err != nil {
			t.Fatal(err)
		}
		stream.Flush()
		if err := sender.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := manager.Reset(); err != nil {
		t.Fatal(err)
	}
	if err := sender.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	batches := int(sender.Stats().PublishedBatches)

	r := newReader(t, "signed64")
	seen := map[uint64]bool{}
	var names []string
	clears := 0
	for r.next < batches {
		var line tapLine
		tap.line(&line)
		r.take(line)
		for _, e := range line.Events {
			if e.Type == "AllBlocksCleared" {
				clears++
				continue
			}
			for _, h := range e.Hashes {
				seen[r.pattern(h)] = true
			}
			if e.LoRAName != "" && (e.LoRAID == nil || *e.LoRAID != id) {
				t.Errorf("LoRA %q without its id", e.LoRAName)
			}
			names = append(names, e.LoRAName)
			if !slices.Equal(e.Tokens, tokens[:len(e.Tokens)]) {
				t.Errorf("tokens %v", e.Tokens)
			}
		}
	}
	if r.stored != 64 || len(seen) != 64 {
		t.Errorf("%d hashes, %d of them different, want 64", r.stored, len(seen))
	}
	if clears != 2 || len(r.resident) != 0 {
		t.Errorf("%d clears, %d blocks left", clears, len(r.resident))
	}
	if !slices.Contains(names, "adapter") {
		t.Errorf("LoRA names %q", names)
	}

	for _, c := range []interface{ Close() error }{sender, manager, stream} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var line tapLine
	tap.line(&line) // a third clear, at the end
	r.take(line)
	tap.signal(os.Interrupt)
	tap.line(&line)
	tap.good()
	if v := line.Verified; v == nil || !v.Good || v.VerifiedKeys != 48 || v.UnverifiedKeys != 16 {
		t.Errorf("the tap ends with %+v", line)
	}
}
