// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe_test

import (
	"fmt"
	"log"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// A router sends a prompt to the worker that has most of it. It needs the tokens
// and nothing of how the engines hash; here each hashes in its own way.
func ExampleTokenMirror() {
	encoder, err := wire.NewEncoder(wire.Config{})
	if err != nil {
		log.Fatal(err)
	}
	announce := func(worker subscribe.TokenMirror, e event.Event) {
		payload, err := encoder.AppendBatch(nil, 0, []event.Event{e}, 0)
		if err != nil {
			log.Fatal(err)
		}
		// From here on as with the batches of a Follower.
		batch, err := wire.Decode(payload, wire.Limits{})
		if err != nil {
			log.Fatal(err)
		}
		if err := worker.Apply(batch.Events); err != nil {
			log.Fatal(err)
		}
	}
	workers := []subscribe.TokenMirror{subscribe.NewTokenMirror(1000), subscribe.NewTokenMirror(1000)}
	announce(workers[0], &event.BlockStored{Hashes: []uint64{11, 12}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2})
	announce(workers[1], &event.BlockStored{Hashes: []uint64{91}, Tokens: []uint32{1, 2}, BlockSize: 2})
	announce(workers[1], &event.BlockStored{Hashes: []uint64{92, 93}, Tokens: []uint32{3, 4, 5, 6}, BlockSize: 2,
		ParentHash: 91, HasParent: true})

	route := func(p subscribe.Prompt) {
		best, most := 0, -1
		for i, worker := range workers {
			if n := worker.Match(p); n > most {
				best, most = i, n
			}
		}
		fmt.Printf("worker %d has %d blocks\n", best, most)
	}
	prompt := subscribe.Prompt{Tokens: []uint32{1, 2, 3, 4, 5, 6, 7}}
	route(prompt)
	announce(workers[1], &event.BlockRemoved{Hashes: []uint64{93, 92}})
	route(prompt)
	prompt.LoRAName = "adapter"
	route(prompt)
	// Output:
	// worker 1 has 3 blocks
	// worker 0 has 2 blocks
	// worker 0 has 0 blocks
}
