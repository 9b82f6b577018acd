// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/publisher"
)

// The main use: an allocator's stream is attached, and its events go out while
// the scheduler works.
func ExamplePublisher_Attach() {
	must := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	stream, err := bindings.NewStream(bindings.StreamConfig{})
	must(err)
	pool, err := bindings.NewManager(bindings.Config{TokensPerBlock: 4, CapacityBlocks: 100, Stream: stream})
	must(err)

	options := publisher.DefaultOptions()
	options.Endpoint = "tcp://127.0.0.1:0" // any free port; p.Endpoint tells which
	p, err := publisher.New(options)
	must(err)
	must(p.Attach(stream)) // before Start
	must(p.Start(context.Background()))

	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	sequence, err := pool.Open(bindings.Prompt{Tokens: prompt})
	must(err)
	_, err = sequence.Grow(len(prompt))
	must(err)
	_, err = sequence.Commit(prompt[sequence.MatchedTokens():])
	must(err)
	must(sequence.Release())
	stream.Flush() // end of a step: wakes the publisher, waits for nothing

	must(p.Flush(context.Background())) // everything is with the socket
	fmt.Println(p.Stats().PublishedBatches, "batches: a clear, then the blocks")
	must(p.Close())
	must(pool.Close())
	must(stream.Close())
	// Output:
	// 2 batches: a clear, then the blocks
}
