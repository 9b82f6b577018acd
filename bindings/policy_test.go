// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"bufio"
	"container/list"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/kvcast/kvcast/bindings"
)

// conversations reads the shipped part of a trace: the blocks of 512 tokens of
// each prompt, by their ids. A block's id determines all blocks before it.
func conversations(t *testing.T) [][]uint32 {
	t.Helper()
	file, err := os.Open("../tests/data/mooncake_conversation_2000.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var prompts [][]uint32
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var request struct {
			InputLength int      `json:"input_length"`
			HashIDs     []uint32 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			t.Fatal(err)
		}
		prompts = append(prompts, request.HashIDs[:request.InputLength/512])
	}
	if len(prompts) != 2000 {
		t.Fatalf("%d requests", len(prompts))
	}
	return prompts
}

// replayed is the number of blocks that the manager finds, one request at a
// time, an id standing for a block.
func replayed(t *testing.T, prompts [][]uint32, config bindings.Config) int {
	t.Helper()
	config.TokensPerBlock, config.Seed = 1, 1
	m, err := bindings.NewManager(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	for _, ids := range prompts {
		s, err := m.Open(bindings.Prompt{Tokens: ids, MustCompute: bindings.ComputeNothing})
		if err != nil {
			t.Fatal(err)
		}
		if len(ids) <= config.CapacityBlocks {
			if _, err := s.Grow(len(ids)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Commit(ids[s.MatchedTokens():]); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Release(); err != nil {
			t.Fatal(err)
		}
	}
	stats, err := m.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return int(stats.MatchedBlocks)
}

// simulateLRU is the plainest of caches: a list of ids. A prompt's blocks are
// found up to the first that is missing; then all of them are put in front, the
// first one foremost, and what is too much falls off the end.
func simulateLRU(prompts [][]uint32, capacity int) int {
	hits := 0
	order, at := list.New(), map[uint32]*list.Element{}
	for _, ids := range prompts {
		found := 0
		for found < len(ids) && at[ids[found]] != nil {
			found++
		}
		hits += found
		if len(ids) > capacity {
			ids = ids[:found]
		}
		for i := len(ids) - 1; i >= 0; i-- {
			if e := at[ids[i]]; e != nil {
				order.MoveToFront(e)
			} else {
				at[ids[i]] = order.PushFront(ids[i])
			}
		}
		for order.Len() > capacity {
			delete(at, order.Remove(order.Back()).(uint32))
		}
	}
	return hits
}

// TestLRUAgainstSimulation: a list of pages in a tree evicts what a plain list of
// ids does, to the block.
func TestLRUAgainstSimulation(t *testing.T) {
	prompts := conversations(t)
	for _, capacity := range []int{100, 300, 1000, 3000, 10000} {
		got := replayed(t, prompts, bindings.Config{CapacityBlocks: capacity})
		if want := simulateLRU(prompts, capacity); got != want {
			t.Errorf("%d blocks: %d hits, the simulation has %d", capacity, got, want)
		}
	}
}

// simulateLRFU follows the definition: the worth of a block is the sum of 2^-age
// over all its uses, ages in halvings, in full precision and never forgotten. Of the
// blocks without children the one that is worth least goes, in linear search.
func simulateLRFU(prompts [][]uint32, capacity int, tau float64) int {
	type block struct {
		parent   uint32
		root     bool
		children int
		used     int // order of use
	}
	resident := map[uint32]*block{}
	worth := map[uint32]float64{} // log2, at time 0; of all blocks that ever were
	hits, clock := 0, 0
	for n, ids := range prompts {
		now := float64(n) / tau
		found := 0
		for found < len(ids) && resident[ids[found]] != nil {
			found++
		}
		hits += found
		if len(ids) > capacity {
			ids = ids[:found]
		}
		held := map[uint32]bool{}
		for _, id := range ids {
			held[id] = true
		}
		for i, id := range ids {
			if w, ok := worth[id]; ok {
				worth[id] = max(w, now) + math.Log2(1+math.Exp2(-math.Abs(w-now)))
			} else {
				worth[id] = now
			}
			if i < found {
				continue
			}
			if len(resident) == capacity {
				least := uint32(math.MaxUint32)
				for other, b := range resident {
					if b.children != 0 || held[other] {
						continue
					}
					if least == math.MaxUint32 || worth[other] < worth[least] ||
						worth[other] == worth[least] && b.used < resident[least].used {
						least = other
					}
				}
				if b := resident[least]; !b.root {
					resident[b.parent].children--
				}
				delete(resident, least)
			}
			b := &block{root: i == 0}
			if i > 0 {
				b.parent = ids[i-1]
				resident[b.parent].children++
			}
			resident[id] = b
		}
		for i := len(ids) - 1; i >= 0; i-- {
			clock++
			resident[ids[i]].used = clock
		}
	}
	return hits
}

// TestLRFUAgainstSimulation: fixed point, ranges of scores and a bounded memory
// of what went cost little, and the policy is better than recency when pages are scarce.
func TestLRFUAgainstSimulation(t *testing.T) {
	prompts := conversations(t)
	asked := 0
	for _, ids := range prompts {
		asked += len(ids)
	}
	percent := func(hits int) float64 { return 100 * float64(hits) / float64(asked) }
	for _, capacity := range []int{300, 1000} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			config := bindings.Config{CapacityBlocks: capacity, Policy: bindings.PolicyLRFU, LRFUTau: 1000}
			few := percent(replayed(t, prompts, config))
			config.LRFUGhosts = 1 << 20
			many := percent(replayed(t, prompts, config))
			lru := percent(simulateLRU(prompts, capacity))
			exact := percent(simulateLRFU(prompts, capacity, 1000))
			t.Logf("lru %.2f %%, lrfu %.2f %% with as many ghosts as pages, %.2f %% with all; in full precision %.2f %%",
				lru, few, many, exact)
			if math.Abs(many-exact) > 0.3 {
				t.Errorf("%.2f %% hits, the simulation has %.2f %%", many, exact)
			}
			if few < lru+0.3 {
				t.Errorf("%.2f %% hits, recency alone has %.2f %%", few, lru)
			}
		})
	}
}
