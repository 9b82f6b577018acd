// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/kvcast/kvcast/bindings"
)

// A request comes, is computed and goes; the next one finds its blocks.
func Example() {
	stream, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()
	manager, err := bindings.NewManager(bindings.Config{
		TokensPerBlock: 4, CapacityBlocks: 100, Stream: stream,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()

	prompt := []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for range 2 {
		s, err := manager.Open(bindings.Prompt{Tokens: prompt, MustCompute: 1})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("found", s.MatchedTokens(), "tokens")
		if _, err := s.Grow(len(prompt)); err != nil {
			log.Fatal(err)
		}
		// ... the model computes the rest ...
		if _, err := s.Commit(prompt[s.MatchedTokens():]); err != nil {
			log.Fatal(err)
		}
		if err := s.Release(); err != nil {
			log.Fatal(err)
		}
	}

	batch, err := stream.Drain(0, 0)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range batch.Events {
		if e, ok := e.(*bindings.BlockStored); ok {
			fmt.Println("stored", e.Hashes, e.Tokens)
		}
	}
	batch.Release()
	// Output:
	// found 0 tokens
	// found 8 tokens
	// stored [8901721255985266736 1735720619063549889] [0 1 2 3 4 5 6 7]
}

// A scheduler step hands over all its requests in one call and looks at each
// item's own error.
func ExampleManager_Grow() {
	manager, err := bindings.NewManager(bindings.Config{TokensPerBlock: 4, CapacityBlocks: 3})
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()

	created := make([]bindings.CreateResult, 3)
	if err := manager.Create(make([]bindings.Prompt, 3), created); err != nil {
		log.Fatal(err)
	}
	items := make([]bindings.GrowItem, 3)
	for i, tokens := range []int{8, 8, 16} {
		items[i] = bindings.GrowItem{Sequence: created[i].Sequence.ID(), CapacityTokens: tokens}
	}
	results := make([]bindings.GrowResult, 3)
	if err := manager.Grow(items, results); err != nil {
		log.Fatal(err)
	}
	for _, r := range results {
		switch {
		case r.Err == nil:
			fmt.Println(r.AddedPages, "pages")
		case errors.Is(r.Err, bindings.ErrNotNow):
			fmt.Println("again later")
		case errors.Is(r.Err, bindings.ErrNeverFits):
			fmt.Println("refuse the request")
		}
	}
	for _, c := range created {
		if err := c.Sequence.Release(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 2 pages
	// again later
	// refuse the request
}

// The goroutine that publishes sleeps until the scheduler has flushed.
func ExampleStream_Drain() {
	stream, err := bindings.NewStream(bindings.StreamConfig{Form: bindings.Portable63})
	if err != nil {
		log.Fatal(err)
	}
	manager, err := bindings.NewManager(bindings.Config{TokensPerBlock: 2, CapacityBlocks: 2, Stream: stream})
	if err != nil {
		log.Fatal(err)
	}
	stored, removed := 0, 0
	published := make(chan struct{})
	go func() {
		defer close(published)
		for {
			batch, err := stream.Drain(128, 8192)
			if err != nil {
				return // io.EOF: the manager is closed and everything drained
			}
			for _, e := range batch.Events {
				switch e := e.(type) {
				case *bindings.BlockStored:
					stored += len(e.Hashes)
				case *bindings.BlockRemoved:
					removed += len(e.Hashes)
				}
			}
			if len(batch.Events) == 0 {
				<-stream.Wake()
			}
			batch.Release()
		}
	}()

	for request := range uint32(3) {
		tokens := []uint32{request, 1, request, 2}
		s, err := manager.Open(bindings.Prompt{Tokens: tokens})
		if err != nil {
			log.Fatal(err)
		}
		if _, err := s.Grow(len(tokens)); err != nil {
			log.Fatal(err)
		}
		if _, err := s.Commit(tokens); err != nil {
			log.Fatal(err)
		}
		if err := s.Release(); err != nil {
			log.Fatal(err)
		}
		stream.Flush() // the end of a step
	}
	if err := manager.Close(); err != nil {
		log.Fatal(err)
	}
	<-published
	if err := stream.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(stored, "stored,", removed, "removed")
	// Output:
	// 6 stored, 4 removed
}
