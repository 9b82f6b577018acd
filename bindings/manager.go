// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/cgo"
)

// Manager owns the pages, the prefix tree and the sequences. Its methods may
// be called from any goroutine.
type Manager struct {
	raw    cgo.Manager
	stream *Stream // kept alive, and woken by Close
	block  int     // tokens per block

	streams atomic.Int64 // asked for so far: no fewer than there have been at once

	// Calls hold mu for reading, Close for writing: so it waits for them.
	mu      sync.RWMutex
	closed  bool
	cleanup runtime.Cleanup
	scratch scratchList
}

// NewManager allocates everything the manager will ever need. ErrBusy: the
// stream has served another manager; ErrClosed: the stream has been closed.
func NewManager(config Config) (*Manager, error) {
	const op = "new manager"
	if err := checkABI(op); err != nil {
		return nil, err
	}
	raw, err := config.raw()
	if err != nil {
		return nil, err
	}
	var stream cgo.Stream
	if config.Stream != nil && config.Stream.wake == nil {
		return nil, argumentError(op, "Config.Stream was not made by NewStream")
	}
	if config.Stream != nil {
		// Held during the call, so that the stream cannot be closed meanwhile.
		config.Stream.mu.Lock()
		defer config.Stream.mu.Unlock()
		if config.Stream.closing {
			return nil, closedError(op)
		}
		stream = config.Stream.raw
	}
	var e cgo.Error
	handle, status := cgo.ManagerCreate(&raw, stream, &e)
	if status != cgo.OK {
		return nil, callError(op, status, &e)
	}
	m := &Manager{raw: handle, stream: config.Stream, block: int(raw.TokensPerBlock)}
	m.cleanup = runtime.AddCleanup(m, func(struct{}) { leakedManagers.Add(1) }, struct{}{})
	return m, nil
}

// checkABI refuses a library of another layout.
func checkABI(op string) error {
	if v := cgo.LinkedABIVersion(); v != cgo.ABIVersion {
		return &Error{Op: op, Status: StatusInternal,
			Detail: fmt.Sprintf("linked with ABI version %d, built for %d", v, cgo.ABIVersion)}
	}
	return nil
}

// TokensPerBlock is the block size the manager was made with.
func (m *Manager) TokensPerBlock() int { return m.block }

// enter begins a call; leave ends it.
func (m *Manager) enter(op string) error {
	m.mu.RLock()
	if m.closed {
		m.mu.RUnlock()
		return closedError(op)
	}
	return nil
}

func (m *Manager) leave() {
	m.mu.RUnlock()
	// The cleanup must not count m as leaked while native code runs for it.
	runtime.KeepAlive(m)
}

// Close waits for calls in flight and frees the manager. With open sequences
// it returns ErrBusy and changes nothing. What the stream has recorded can
// still be drained; then the drainer gets io.EOF. Closing again is harmless.
func (m *Manager) Close() error {
	const op = "close manager"
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	var e cgo.Error
	if s := m.raw.Destroy(&e); s != cgo.OK {
		return callError(op, s, &e)
	}
	m.closed = true
	m.raw = cgo.Manager{}
	m.cleanup.Stop()
	runtime.KeepAlive(m)
	if m.stream != nil {
		m.stream.Flush()
	}
	return nil
}

// Reset empties the tree, usually because the weights changed. Open sequences
// keep their pages but are detached: what they commit later is not reused.
func (m *Manager) Reset() error {
	const op = "reset"
	if err := m.enter(op); err != nil {
		return err
	}
	defer m.leave()
	var e cgo.Error
	if s := m.raw.Reset(&e); s != cgo.OK {
		return callError(op, s, &e)
	}
	return nil
}

// Check verifies every invariant of the manager; ErrCorrupt names the first
// breach. For tests: it holds the manager's lock and takes time and memory in
// proportion to the pool.
func (m *Manager) Check() error {
	const op = "check"
	if err := m.enter(op); err != nil {
		return err
	}
	defer m.leave()
	var e cgo.Error
	if s := m.raw.Check(&e); s != cgo.OK {
		return callError(op, s, &e)
	}
	return nil
}

// ResidentBlock is one reusable block, read from the tree itself.
type ResidentBlock struct {
	// Hash in the form asked for; with event.Bytes the digest's first 8 bytes,
	// big-endian.
	Hash uint64
	// Announced says that the stream has recorded the block as stored.
	Announced bool
	// Digest is the block's key.
	Digest event.Digest
}

// Resident walks the tree, parents before children. The keys are computed anew
// from the tokens, independently of the stream. For tests and tools.
func (m *Manager) Resident(form event.Form) ([]ResidentBlock, error) {
	const op = "resident"
	if err := m.enter(op); err != nil {
		return nil, err
	}
	defer m.leave()
	var raw []cgo.ResidentBlock
	for {
		var e cgo.Error
		count, s := m.raw.Resident(uint32(form), raw, &e)
		if s == cgo.InvalidArgument && count > uint64(len(raw)) {
			// Asking again with some room to spare: the tree may grow meanwhile.
			raw = make([]cgo.ResidentBlock, count+count/8+16)
			continue
		}
		if s != cgo.OK {
			return nil, callError(op, s, &e)
		}
		raw = raw[:count]
		break
	}
	blocks := make([]ResidentBlock, len(raw))
	for i := range raw {
		blocks[i] = ResidentBlock{
			Hash:      raw[i].Hash,
			Announced: raw[i].Announced != 0,
			Digest:    raw[i].Digest,
		}
	}
	return blocks, nil
}
