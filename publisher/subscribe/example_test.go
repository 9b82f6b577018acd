// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher"
	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// A router comes when the publisher has been at work for a while, and keeps a
// mirror of what can be reused over there.
func ExampleFollower() {
	options := publisher.DefaultOptions()
	options.Endpoint = "tcp://127.0.0.1:0"
	options.ReplayEndpoint = "tcp://127.0.0.1:0"
	p, err := publisher.New(options)
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	err = p.Publish(&event.BlockStored{
		Hashes: []uint64{11, 12}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2,
		Medium: "GPU", HasMedium: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Flush(context.Background()); err != nil {
		log.Fatal(err)
	}

	f, err := subscribe.Follow(subscribe.FollowerOptions{
		Client: subscribe.ClientOptions{Endpoint: p.Endpoint()},
		Replay: p.ReplayEndpoint(),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	mirror := subscribe.NewMirror(0)
	for {
		item, err := f.Next(50 * time.Millisecond)
		if errors.Is(err, subscribe.ErrTimeout) && !f.Busy() {
			break // this example ends here, a router goes on
		} else if errors.Is(err, subscribe.ErrTimeout) {
			continue
		} else if err != nil {
			log.Fatal(err)
		}
		switch item.Kind {
		case subscribe.ItemReset:
			mirror.Reset()
		case subscribe.ItemGap:
			fmt.Println(item) // the mirror may be wrong until the next clear
		case subscribe.ItemBatch:
			batch, err := wire.Decode(item.Message.Payload, wire.Limits{})
			if err != nil {
				log.Fatal(err)
			}
			if err := mirror.Apply(batch.Events); err != nil {
				log.Fatal(err)
			}
			fmt.Println(item)
		}
	}
	fmt.Println(mirror.Patterns())
	// Output:
	// batch 0 (replayed)
	// batch 1 (replayed)
	// [11 12]
}
