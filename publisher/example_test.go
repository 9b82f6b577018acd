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

// A host that has its own cache manager publishes its events itself.
func Example() {
	subscriber := make(chan *zmq.Socket, 1)

	options := publisher.DefaultOptions()
	options.Endpoint = "tcp://127.0.0.1:0"
	options.WaitSubscribers = 1 // nothing is sent before somebody listens
	options.OnBound = func(endpoint string) {
		s, err := zmq.NewSocket(zmq.SUB)
		if err != nil {
			log.Fatal(err)
		}
		s.SetSubscribe("")
		s.Connect(endpoint)
		subscriber <- s
	}
	p, err := publisher.New(options)
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		log.Fatal(err)
	}
	err = p.Publish(&event.BlockStored{
		Hashes: []uint64{11, 12}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2,
		Medium: "GPU", HasMedium: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	p.Close()

	s := <-subscriber
	defer s.Close()
	for range 3 {
		frames, err := s.RecvMessageBytes(0)
		if err != nil {
			log.Fatal(err)
		}
		m, err := wire.ParseMessage(frames)
		if err != nil {
			log.Fatal(err)
		}
		batch, err := wire.Decode(m.Payload, wire.Limits{})
		if err != nil {
			log.Fatal(err)
		}
		for _, ev := range batch.Events {
			fmt.Println(m.Seq, ev.Type, ev.Hashes, ev.Tokens)
		}
	}
	// Output:
	// 0 AllBlocksCleared [] []
	// 1 BlockStored [11 12] [1 2 3 4]
	// 2 AllBlocksCleared [] []
}
