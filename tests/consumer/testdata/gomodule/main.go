// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Command consumer stores a prompt of three blocks and prints the events.
package main

import (
	"fmt"
	"log"

	"github.com/kvcast/kvcast/bindings"
	_ "github.com/kvcast/kvcast/publisher" // its dependencies must be found too
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	stream, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		return err
	}
	defer stream.Close()
	pool, err := bindings.NewManager(bindings.Config{TokensPerBlock: 4, CapacityBlocks: 4, Stream: stream})
	if err != nil {
		return err
	}
	defer pool.Close()
	prompt := []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	sequence, err := pool.Open(bindings.Prompt{Tokens: prompt})
	if err != nil {
		return err
	}
	if _, err := sequence.Grow(len(prompt)); err != nil {
		return err
	}
	if _, err := sequence.Commit(prompt); err != nil {
		return err
	}
	if err := sequence.Release(); err != nil {
		return err
	}
	batch, err := stream.Drain(0, 0)
	if err != nil {
		return err
	}
	defer batch.Release()
	for _, e := range batch.Events {
		stored, ok := e.(*bindings.BlockStored)
		if !ok {
			return fmt.Errorf("unexpected event %T", e)
		}
		for _, hash := range stored.Hashes {
			fmt.Println("stored block", hash)
		}
	}
	return nil
}
