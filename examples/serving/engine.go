// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"

	"github.com/kvcast/kvcast/bindings"
)

// engine stands in for a model on a GPU. Instead of keys and values a page holds one
// number that follows from all tokens up to the end of its block. It knows pages by
// the block table only.
type engine struct {
	m      *bindings.Manager
	stream bindings.DeviceStream
	table  [rows][columns]int32
	read   int
}

func newEngine(m *bindings.Manager) (*engine, error) {
	stream, err := m.NewDeviceStream()
	e := &engine{m: m, stream: stream}
	for row := range e.table {
		for column := range e.table[row] {
			e.table[row][column] = -1
		}
	}
	return e, err
}

// update is what a kernel would do with the triples of a step.
func (e *engine) update(deltas []bindings.TableDelta) {
	for _, d := range deltas {
		e.table[d.Row][d.Column] = d.Value
	}
}

// mark is what the page of the block that ends behind these tokens holds.
func mark(text []uint32) uint64 {
	state := uint64(1469598103934665603)
	for _, token := range text {
		state = (state ^ uint64(token)) * 1099511628211
	}
	return state
}

// forward computes the tokens of the text behind the first `have` and returns the next
// one. It reads what is there and queues what it writes, as kernels do.
func (e *engine) forward(row int, text []uint32, have int) (uint32, error) {
	var page [8]byte
	for end := block; end <= have; end += block {
		at := e.table[row][end/block-1]
		if at < 0 {
			return 0, fmt.Errorf("no page for tokens %d to %d", end-block, end)
		}
		if err := e.m.HostRead(uint32(at), 0, page[:]); err != nil {
			return 0, err
		}
		if got, want := binary.LittleEndian.Uint64(page[:]), mark(text[:end]); got != want {
			return 0, fmt.Errorf("page %d holds %x, not %x", at, got, want)
		}
		e.read++
	}
	var fills []bindings.Fill
	for end := have - have%block + block; end-block < len(text); end += block {
		at := e.table[row][end/block-1]
		if at < 0 {
			return 0, fmt.Errorf("no page for tokens from %d on", end-block)
		}
		fills = append(fills, bindings.Fill{Page: uint32(at), Value: mark(text[:min(end, len(text))])})
	}
	if err := e.m.HostFill(e.stream, fills); err != nil {
		return 0, err
	}
	// The fake device works when it is told to: here at the end of a pass.
	if _, err := e.m.HostAdvance(e.stream, 1<<20); err != nil {
		return 0, err
	}
	return uint32(mark(text) % 1000), nil
}
