// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import "github.com/kvcast/kvcast/cgo"

// BlockID names a block of one manager's tree. It carries a generation, so no
// two blocks ever have the same one.
type BlockID uint64

// NoBlock stands where there is no block, such as before a prompt's first.
const NoBlock = BlockID(cgo.NoBlockID)

// EvictedReason says why a block left the tree.
type EvictedReason uint32

// The reasons.
const (
	// EvictedCapacity: its page was needed.
	EvictedCapacity EvictedReason = cgo.EvictedCapacity
)

// String is the reason in a word or two.
func (r EvictedReason) String() string {
	switch r {
	case EvictedCapacity:
		return "capacity"
	default:
		return "unknown"
	}
}

// EvictedBlock is a block that left the tree.
type EvictedBlock struct {
	Block BlockID
	// Parent is the block before it, NoBlock if it was a prompt's first.
	Parent BlockID
	// Page held it; whoever evicted it has it now.
	Page   uint32
	Reason EvictedReason
	// Copies hold its content still, over all tiers: 0 with one tier.
	Copies int
	// Announced says that the stream had told of the block and tells of its
	// removal.
	Announced bool
}

// BlockResidency is a block of a prompt that is resident.
type BlockResidency struct {
	Block BlockID
	// Copies hold its content, over all tiers: 1 with one tier.
	Copies int
	// Announced says that the stream has told of the block.
	Announced bool
	// Held says that somebody holds the block, so that it cannot be evicted.
	Held bool
}

// Residency appends the resident blocks of a prompt to dst, from the first one
// on. What is not found is not resident, nor is any block after it. Like Probe
// it changes nothing and is a hint.
func (m *Manager) Residency(p Prompt, dst []BlockResidency) ([]BlockResidency, error) {
	op := opResidency
	if err := m.enter(op.name); err != nil {
		return dst, err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	prompts := [1]Prompt{p}
	tokens, err := sc.flatten(op.name, prompts[:])
	if err != nil {
		return dst, err
	}
	sc.residency = sized(sc.residency, len(p.Tokens)/m.block)
	var results [1]cgo.ResidencyResult
	s := m.raw.Residency(sc.prompts, tokens, sc.scopes, sc.bytes, sc.residency, results[:], &sc.err)
	if s != cgo.OK {
		return dst, callError(op.name, s, &sc.err)
	}
	if err := op.item(results[0].Status); err != nil {
		return dst, err
	}
	for _, b := range sc.residency[:results[0].ResidentBlocks] {
		dst = append(dst, BlockResidency{
			Block:     BlockID(b.Block),
			Copies:    int(b.Copies),
			Announced: b.Flags&cgo.BlockAnnounced != 0,
			Held:      b.Flags&cgo.BlockHeld != 0,
		})
	}
	return dst, nil
}

// evictedBlocks turns what a call told into dst, which is at least as long.
func evictedBlocks(dst []EvictedBlock, raw []cgo.EvictedBlock) []EvictedBlock {
	for i := range raw {
		b := &raw[i]
		dst[i] = EvictedBlock{
			Block:     BlockID(b.Block),
			Parent:    BlockID(b.Parent),
			Page:      b.Page,
			Reason:    EvictedReason(b.Reason),
			Copies:    int(b.Copies),
			Announced: b.Announced != 0,
		}
	}
	return dst[:len(raw)]
}
