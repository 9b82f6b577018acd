// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"errors"
	"fmt"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

func Example() {
	// The publisher's side: check, then append to a buffer that is reused.
	stored := &event.BlockStored{
		Hashes: []uint64{0x1122334455667788, ^uint64(0)},
		Tokens: []uint32{101, 102, 103, 104}, BlockSize: 2,
		Medium: "GPU", HasMedium: true,
	}
	var checker wire.Checker
	if err := checker.Check(stored); err != nil {
		fmt.Println(err)
		return
	}
	encoder, err := wire.NewEncoder(wire.Config{Form: event.Signed64})
	if err != nil {
		fmt.Println(err)
		return
	}
	var buf []byte
	buf, err = encoder.AppendBatch(buf[:0], 1700000000.5, []event.Event{stored}, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	frames := [][]byte{[]byte("topic"), wire.AppendSeq(nil, 258), buf}

	// The subscriber's side.
	m, err := wire.ParseMessage(frames)
	if err != nil {
		fmt.Println(err)
		return
	}
	decoder, err := wire.NewDecoder(wire.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	batch, err := decoder.Decode(m.Payload)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, ev := range batch.Events {
		fmt.Println(m.Seq, ev.Type, ev.Hashes, ev.Tokens, ev.Medium)
	}
	// Output: 258 BlockStored [1234605616436508552 -1] [101 102 103 104] GPU
}

func ExampleChecker() {
	var checker wire.Checker
	err := checker.Check(&event.BlockStored{
		Hashes: []uint64{1, 2, 1}, Tokens: []uint32{7, 8, 9}, BlockSize: 1,
	})
	fmt.Println(errors.Is(err, wire.ErrDuplicateHash))
	fmt.Println(err)
	// Output:
	// true
	// wire: check event: block_hashes: duplicate block hash (hash 2)
}

func ExampleConfig() {
	// For a reader from before the map form: 3 elements, whatever is set.
	config := wire.Config{Encoding: wire.ArrayShort, MinimalHashes: true}
	encoder, err := wire.NewEncoder(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	removed := &event.BlockRemoved{Hashes: []uint64{5}, Medium: "GPU", HasMedium: true}
	payload, err := encoder.AppendBatch(nil, 0, []event.Event{removed}, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%q\n", payload[11:]) // behind the time

	// A key without a place is refused before it costs a batch.
	removed.GroupIdx, removed.HasGroupIdx = 1, true
	err = config.CheckEvent(removed)
	fmt.Println(errors.Is(err, wire.ErrNoSlot))
	fmt.Println(err)
	// Output:
	// "\x93\xacBlockRemoved\x91\x05\xa3GPU\x00"
	// true
	// wire: check event: group_idx: no place for the key (in array-short form)
}

func ExampleCheck() {
	// A list that claims four billion elements.
	err := wire.Check([]byte{0xdd, 0xff, 0xff, 0xff, 0xff}, wire.Limits{})
	fmt.Println(err)
	// Output: wire: check: truncated at byte 0
}

func ExampleDecode() {
	// An array event of another engine between an envelope with a nil rank.
	payload := []byte("\x93\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x91\x93\xacBlockRemoved\x91\x05\xa3GPU\xc0")
	batch, err := wire.Decode(payload, wire.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(batch.Events[0].Type, batch.Events[0].Hashes)
	fmt.Println(batch.Remarks)
	// Output:
	// BlockRemoved [5]
	// [nil rank "data_parallel_rank" at byte 31]
}

func ExampleHash_String() {
	pattern := ^uint64(0)
	fmt.Println(wire.HashOf(pattern, event.Signed64), wire.HashOf(pattern, event.Unsigned64))
	fmt.Println(wire.HashOfBytes([]byte{1, 0xff}))
	// Output:
	// -1 18446744073709551615
	// 0x01ff
}

func ExampleReduce() {
	digest := event.Digest{0: 0xff, 31: 0x01}
	fmt.Println(wire.HashOf(wire.Reduce(digest, event.Signed64), event.Signed64))
	fmt.Println(wire.HashOf(wire.Reduce(digest, event.Unsigned64), event.Unsigned64))
	fmt.Println(wire.HashOf(wire.Reduce(digest, event.Portable63), event.Portable63))
	// Output:
	// -72057594037927936
	// 1
	// 9187343239835811840
}
