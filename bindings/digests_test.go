// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

// In tests DigestToken(k) stands for the k-th test digest, wherever it occurs,
// and DigestToken(0) for a token that names no digest of its call. So the model
// and the scripts treat digests like any other token.

// testDigest is the k-th test digest; the C++ tests make the same ones.
func testDigest(k uint32) event.Digest {
	var d event.Digest
	for i := range d {
		d[i] = byte(k*31 + uint32(i)*7)
	}
	binary.LittleEndian.PutUint32(d[:], k)
	return d
}

// itemTokens are tokens as a call takes them, with their digests in the order of
// first use.
func itemTokens(tokens []uint32) ([]uint32, []event.Digest) {
	tokens = slices.Clone(tokens)
	var names []uint32
	var digests []event.Digest
	for i, token := range tokens {
		k, ok := event.IsDigestToken(token)
		if !ok {
			continue
		}
		if k == 0 {
			tokens[i] = 1<<32 - 1
			continue
		}
		at := slices.Index(names, token)
		if at < 0 {
			at = len(names)
			names = append(names, token)
			digests = append(digests, testDigest(uint32(k)))
		}
		tokens[i] = bindings.DigestToken(at)
	}
	return tokens, digests
}

// eventTokens are the tokens of an event as tests write them.
func eventTokens(e *event.BlockStored) ([]uint32, error) {
	tokens := slices.Clone(e.Tokens)
	next := 0
	for i, token := range tokens {
		at, ok := event.IsDigestToken(token)
		if !ok {
			continue
		}
		if at != next || at >= len(e.MMDigests) {
			return nil, fmt.Errorf("token %d names digest %d of %d", i, at, len(e.MMDigests))
		}
		k := binary.LittleEndian.Uint32(e.MMDigests[at][:])
		if testDigest(k) != e.MMDigests[at] {
			return nil, fmt.Errorf("digest %x, which nobody committed", e.MMDigests[at])
		}
		tokens[i] = bindings.DigestToken(int(k))
		next++
	}
	if next != len(e.MMDigests) {
		return nil, fmt.Errorf("%d digests for %d tokens", len(e.MMDigests), next)
	}
	return tokens, nil
}

// tokensText is a block in scripts: [1 2 @a].
func tokensText(tokens []uint32) string {
	var words []string
	for _, token := range tokens {
		if k, ok := event.IsDigestToken(token); ok {
			words = append(words, "@"+string(rune('a'+k-1)))
		} else {
			words = append(words, fmt.Sprint(token))
		}
	}
	return "[" + strings.Join(words, " ") + "]"
}

// What a program sees: digests with prompts, commits and events, several items
// in one call, and what a stream tells of them.
func TestDigests(t *testing.T) {
	for _, multimodal := range []bindings.Multimodal{bindings.SuppressMultimodal, bindings.AnnounceMultimodal} {
		stream, err := bindings.NewStream(bindings.StreamConfig{Multimodal: multimodal})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stream.Close() })
		if stream.Multimodal() != multimodal {
			t.Errorf("Multimodal is %d, want %d", stream.Multimodal(), multimodal)
		}
		m, err := bindings.NewManager(bindings.Config{TokensPerBlock: 2, CapacityBlocks: 8, MaxDigests: 3, Stream: stream})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		a, b := testDigest(1), testDigest(2)
		image := bindings.DigestToken
		prompts := []bindings.Prompt{
			{Tokens: []uint32{image(0), 7}, Digests: []event.Digest{a}},
			{Tokens: []uint32{image(1), 7}, Digests: []event.Digest{a, b}},
			{Tokens: []uint32{1, image(0)}},
		}
		created := make([]bindings.CreateResult, 3)
		if err := m.Create(prompts, created); err != nil {
			t.Fatal(err)
		}
		if created[0].Err != nil || created[1].Err != nil {
			t.Fatal(created[0].Err, created[1].Err)
		}
		if created[2].Err == nil {
			t.Error("a digest token without digests was taken")
		}
		ids := []bindings.SequenceID{created[0].Sequence.ID(), created[1].Sequence.ID()}
		grow := []bindings.GrowItem{{Sequence: ids[0], CapacityTokens: 4}, {Sequence: ids[1], CapacityTokens: 4}}
		if err := m.Grow(grow, make([]bindings.GrowResult, 2)); err != nil {
			t.Fatal(err)
		}
		items := []bindings.CommitItem{
			{Sequence: ids[0], Tokens: prompts[0].Tokens, Digests: prompts[0].Digests},
			{Sequence: ids[1], Tokens: []uint32{image(0), 7, image(0), image(1)}, Digests: []event.Digest{b, a}},
		}
		committed := make([]bindings.CommitResult, 2)
		if err := m.Commit(items, committed); err != nil {
			t.Fatal(err)
		}
		if committed[0].StoredBlocks != 1 || committed[1].StoredBlocks != 2 {
			t.Fatalf("committed %+v", committed)
		}
		probed := make([]bindings.ProbeResult, 2)
		for i := range prompts {
			prompts[i].MustCompute = bindings.ComputeNothing
		}
		if err := m.Probe(prompts[:2], probed); err != nil {
			t.Fatal(err)
		}
		if probed[0].MatchedTokens != 2 || probed[1].MatchedTokens != 2 {
			t.Errorf("probed %+v", probed)
		}
		stats, err := m.Stats()
		if err != nil || stats.Digests != 2 {
			t.Errorf("%d digests, %v", stats.Digests, err)
		}
		batch, err := stream.Drain(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if multimodal == bindings.SuppressMultimodal {
			if len(batch.Events) != 0 {
				t.Errorf("told %d events of suppressed blocks", len(batch.Events))
			}
			s, err := stream.Stats()
			if err != nil || s.MultimodalBlocksSuppressed != 3 || s.SuppressedBlocks != 3 {
				t.Errorf("suppressed %d, %d now, %v", s.MultimodalBlocksSuppressed, s.SuppressedBlocks, err)
			}
		} else {
			if len(batch.Events) != 2 {
				t.Fatalf("%d events", len(batch.Events))
			}
			kept := batch.Clone()
			batch.Release()
			first, second := kept.Events[0].(*event.BlockStored), kept.Events[1].(*event.BlockStored)
			if !slices.Equal(first.MMDigests, []event.Digest{a}) || !slices.Equal(first.Tokens, []uint32{image(0), 7}) {
				t.Errorf("first event: %v with %x", first.Tokens, first.MMDigests)
			}
			if !slices.Equal(second.MMDigests, []event.Digest{b, b, a}) ||
				!slices.Equal(second.Tokens, []uint32{image(0), 7, image(1), image(2)}) {
				t.Errorf("second event: %v with %x", second.Tokens, second.MMDigests)
			}
		}
		batch.Release()
		if err := m.Release(ids, make([]error, 2)); err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if err := stream.Close(); err != nil {
			t.Error(err)
		}
	}
}
