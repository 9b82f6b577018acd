// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import "github.com/kvcast/kvcast/cgo"

// ForkItem forks a sequence.
type ForkItem struct {
	Sequence SequenceID
	// DeviceStream of the fork; 0, the default, is the host itself.
	DeviceStream DeviceStream
}

// ForkResult is what became of one ForkItem.
type ForkResult struct {
	// Err is nil, ErrBadState (suspended), ErrNotNow (MaxSequences are open, or the
	// gate, see Config.ResumeGatePermille), ErrStaleHandle, ErrInvalidArgument (also
	// device streams, steps apart, of pages without memory) or ErrOutOfMemory; then
	// nothing changed.
	Err error
	// Sequence is the fork.
	Sequence Sequence
	// CommittedTokens it has in common with the other.
	CommittedTokens int
	// Waits are fences that the fork's device stream must wait for before it reads
	// the pages. The slice's memory is reused if the result is.
	Waits []Fence
}

// Fork opens sequences that go on from what others have committed: beams, several
// answers to one prompt. A fork shares the pages of all committed tokens, the
// partly filled last block included, and takes none; from then on they go separate
// ways. Whoever shares the last block grows before it writes (GrowResult.CopiedBlock): the
// first ones are given a copy, the last one writes in place. out must be at least as
// long as items.
func (m *Manager) Fork(items []ForkItem, out []ForkResult) error {
	if err := checkCounts(opFork.name, len(items), len(out)); err != nil {
		return err
	}
	if err := m.enter(opFork.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.fork, sc.forked = sized(sc.fork, len(items)), sized(sc.forked, len(items))
	for i := range items {
		sc.fork[i] = cgo.ForkItem{
			Sequence:     uint64(items[i].Sequence),
			DeviceStream: uint64(items[i].DeviceStream),
		}
	}
	if s := m.raw.SequencesFork(sc.fork, sc.forked, &sc.err); s != cgo.OK {
		return callError(opFork.name, s, &sc.err)
	}
	for i := range sc.forked {
		r := &sc.forked[i]
		waits := out[i].Waits[:0]
		out[i] = ForkResult{Err: opFork.item(r.Status), Waits: waits}
		if r.Status != cgo.OK {
			continue
		}
		out[i].Sequence = Sequence{m: m, id: SequenceID(r.Sequence)}
		out[i].CommittedTokens = int(r.CommittedTokens)
		out[i].Waits = m.appendWaits(waits, r.Sequence, r.WaitCount, &r.Waits, sc)
	}
	return nil
}

// Fork is Manager.Fork with one item, whose error is returned. The fork's Waits are
// what its device stream must wait for.
func (s Sequence) Fork(stream DeviceStream) (*Sequence, error) {
	if s.m == nil {
		return nil, opFork.item(cgo.StaleHandle)
	}
	items, out := [1]ForkItem{{Sequence: s.id, DeviceStream: stream}}, [1]ForkResult{}
	if err := s.m.Fork(items[:], out[:]); err != nil {
		return nil, err
	}
	if out[0].Err != nil {
		return nil, out[0].Err
	}
	fork := out[0].Sequence
	fork.waits = out[0].Waits
	return &fork, nil
}

// Fork adds one to the step; its sequence is op.Sequence() for later operations.
func (s *Step) Fork(item ForkItem) StepOp {
	op, at := s.add(cgo.OpFork)
	*op.Fork() = cgo.ForkItem{Sequence: uint64(item.Sequence), DeviceStream: uint64(item.DeviceStream)}
	s.tellers++
	return at
}
