// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"context"
	"fmt"
	"log"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher"
	"github.com/kvcast/kvcast/publisher/wire"
)

// A publisher that keeps its newest batches, and a client that asks for them.
func ExampleOptions_replay() {
	options := publisher.DefaultOptions()
	options.Endpoint = "tcp://127.0.0.1:0"
	options.ReplayEndpoint = "tcp://127.0.0.1:0"
	p, err := publisher.New(options)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	if err := p.Start(context.Background()); err != nil {
		log.Fatal(err)
	}
	for hash := range uint64(3) {
		if err := p.Publish(&event.BlockRemoved{Hashes: []uint64{hash}, Medium: "GPU", HasMedium: true}); err != nil {
			log.Fatal(err)
		}
	}
	if err := p.Flush(context.Background()); err != nil {
		log.Fatal(err)
	}

	client, err := zmq.NewSocket(zmq.DEALER)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := client.Connect(p.ReplayEndpoint()); err != nil {
		log.Fatal(err)
	}
	// An empty delimiter, and the number of the first batch that is wanted.
	if _, err := client.SendMessage("", wire.AppendSeq(nil, 1)); err != nil {
		log.Fatal(err)
	}
	for {
		frames, err := client.RecvMessageBytes(0)
		if err != nil {
			log.Fatal(err)
		}
		m, err := wire.ParseMessage(frames[1:]) // behind the delimiter
		if err != nil {
			log.Fatal(err)
		}
		if m.Seq == wire.EndSeq {
			break
		}
		batch, err := wire.Decode(m.Payload, wire.Limits{})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(m.Seq, batch.Events[0].Type, batch.Events[0].Hashes)
	}
	fmt.Println("end")
	// Output:
	// 1 BlockRemoved [0]
	// 2 BlockRemoved [1]
	// 3 BlockRemoved [2]
	// end
}
