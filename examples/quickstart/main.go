// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Command quickstart stores two prompts in a pool of four blocks and prints
// the events: the second prompt pushes out part of the first one.
package main

import (
	"fmt"
	"log"

	"github.com/kvcast/kvcast/bindings"
)

func main() {
	stream := must(bindings.NewStream(bindings.StreamConfig{}))
	defer stream.Close()
	pool := must(bindings.NewManager(bindings.Config{TokensPerBlock: 4, CapacityBlocks: 4, Stream: stream}))
	defer pool.Close()
	for _, prompt := range [][]uint32{{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 9, 9, 9, 9, 8, 8, 8, 8, 7, 7, 7, 7}} {
		sequence := must(pool.Open(bindings.Prompt{Tokens: prompt}))
		must(sequence.Grow(len(prompt)))
		must(sequence.Commit(prompt[sequence.MatchedTokens():]))
		fmt.Printf("%d of %d tokens were there already\n", sequence.MatchedTokens(), len(prompt))
		check(sequence.Release())
	}
	batch := must(stream.Drain(0, 0))
	defer batch.Release()
	for _, e := range batch.Events {
		switch e := e.(type) {
		case *bindings.BlockStored:
			fmt.Println("stored ", e.Hashes, "tokens", e.Tokens)
		case *bindings.BlockRemoved:
			fmt.Println("removed", e.Hashes)
		}
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
