// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"math"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/cgo"
)

// Policy says which of the blocks of one priority goes first.
type Policy uint32

// The policies.
const (
	// PolicyLRU: the least recently used.
	PolicyLRU Policy = cgo.PolicyLRU
	// PolicyLRFU: the one that is worth least, each use being worth 1 at first and
	// half of it Config.LRFUTau requests later. Blocks that went are remembered.
	// Better when pages are scarce.
	PolicyLRFU Policy = cgo.PolicyLRFU
)

// CopyMethod says who copies pages on a CUDA device.
type CopyMethod uint32

// The methods.
const (
	// CopyCalibrated: whoever was faster when the manager was made, which takes up
	// to 50 ms.
	CopyCalibrated CopyMethod = cgo.CopyCalibrated
	// CopyPublished: by figures that others have published, without measuring.
	CopyPublished CopyMethod = cgo.CopyPublished
	// CopyEngine: always the copy engine.
	CopyEngine CopyMethod = cgo.CopyEngine
	// CopyKernel: always a kernel, but for pieces that are no multiples of 16 bytes.
	CopyKernel CopyMethod = cgo.CopyKernel
)

// Config says how a Manager is made. Zero fields take the defaults of the C
// library (kvc_config_init), which are named here.
type Config struct {
	// TokensPerBlock is 1..4096; default 16.
	TokensPerBlock int
	// CapacityBlocks is the number of pages in the pool, 1..2^27; default 20000.
	CapacityBlocks int
	// MaxSequences may be open at once, 1..2^20; default 4096.
	MaxSequences int
	// ResumeGatePermille: no sequence becomes active while more than this share
	// of the pool is live, unless none is; 1..1000, 1000 being no gate; default
	// 970.
	ResumeGatePermille int
	// Device holds the pages; default DeviceHost. DeviceCUDA needs OpenCUDA
	// first.
	Device DeviceKind
	// DeviceOrdinal says which of the device's kind; default 0.
	DeviceOrdinal int
	// CallersContext: CUDA work is done in the context that is current on the
	// thread that calls NewManager (lock it to its goroutine), not in the
	// primary one.
	CallersContext bool
	// PageBytes of device memory belong to each page; default 0, which keeps
	// the books only.
	PageBytes uint64
	// Seed of the tree's hash and of the host device's order; default 0, which
	// draws one. Fix it in tests only: clients choose the tokens.
	Seed uint64
	// Policy says which of the blocks of one priority goes first; default
	// PolicyLRU.
	Policy Policy
	// LRFUTau is, with PolicyLRFU, the number of requests in which a use loses
	// half of its worth; default 1000.
	LRFUTau int
	// LRFUGhosts are, with PolicyLRFU, the blocks to remember that went, 8 bytes
	// each; default CapacityBlocks.
	LRFUGhosts int
	// MaxPinnedPages may be pinned by all pins together, a page counting once for
	// each; default a quarter of CapacityBlocks.
	MaxPinnedPages int
	// MaxDigests is how many different multimodal digests may be in use at once,
	// up to 2^24; default 0: as many as blocks and partly filled tails can hold.
	// Memory for them (72 bytes each) is taken as they come.
	MaxDigests int
	// Copies says who copies pages on a CUDA device; default CopyCalibrated.
	Copies CopyMethod
	// MaxPendingBlocks may be marked at once (Prompt.Mark), up to 2^27; default
	// CapacityBlocks. Memory for them (40 bytes each) is taken as they come.
	MaxPendingBlocks int
	// PartialReuse keeps the partly filled last block of a released sequence. Whoever
	// begins with its first tokens, or with those of a whole block, gets a copy of
	// them (CreateResult.CopiedTokens), if a page can be had without an eviction;
	// else the kept block itself, if all of it is in common. Default off: whole
	// blocks only.
	PartialReuse bool
	// MaxBlocks makes the pool elastic: Manager.Resize can grow it to so many pages, for
	// which there are arenas and addresses from the start; up to 2^27; default 0, a pool of
	// CapacityBlocks for ever.
	MaxBlocks int
	// MinBlocks is, with MaxBlocks, what the pool can shrink to: the memory of so many
	// pages is never given back; default CapacityBlocks.
	MinBlocks int
	// Poison makes the host device fill freed pages with a pattern and check
	// it before they are handed out again, so that a late write shows.
	Poison bool
	// Stream receives the events. It must not have served another manager.
	// Nil: no events are recorded.
	Stream *Stream
}

func (c *Config) raw() (cgo.Config, error) {
	var raw cgo.Config
	raw.Init()
	for _, f := range []struct {
		name  string
		value int
		to    *uint32
	}{
		{"TokensPerBlock", c.TokensPerBlock, &raw.TokensPerBlock},
		{"CapacityBlocks", c.CapacityBlocks, &raw.CapacityBlocks},
		{"MaxBlocks", c.MaxBlocks, &raw.MaxBlocks},
		{"MinBlocks", c.MinBlocks, &raw.MinBlocks},
		{"MaxSequences", c.MaxSequences, &raw.MaxSequences},
		{"MaxDigests", c.MaxDigests, &raw.MaxDigests},
		{"MaxPendingBlocks", c.MaxPendingBlocks, &raw.MaxPendingBlocks},
		{"ResumeGatePermille", c.ResumeGatePermille, &raw.ResumeGatePermille},
		{"LRFUTau", c.LRFUTau, &raw.LRFUTau},
		{"LRFUGhosts", c.LRFUGhosts, &raw.LRFUGhosts},
		{"MaxPinnedPages", c.MaxPinnedPages, &raw.MaxPinnedPages},
		{"DeviceOrdinal", c.DeviceOrdinal, &raw.DeviceOrdinal},
	} {
		if err := set32("new manager", f.name, f.value, f.to); err != nil {
			return raw, err
		}
	}
	raw.Policy = uint32(c.Policy)
	raw.Copies = uint32(c.Copies)
	if c.PageBytes != 0 {
		raw.PageBytes = c.PageBytes
	}
	if c.Seed != 0 {
		raw.Seed = c.Seed
	}
	raw.Device = uint32(c.Device)
	if c.PartialReuse {
		raw.PartialReuse = 1
	}
	if c.CallersContext {
		raw.Flags |= cgo.ConfigCallersContext
	}
	if c.Poison {
		raw.Flags |= cgo.ConfigPoison
	}
	return raw, nil
}

// StreamConfig says how a Stream is made. Zero fields take the defaults of the
// C library (kvc_stream_config_init), which are named here.
type StreamConfig struct {
	// Form is how block keys become wire hashes; default event.Signed64.
	Form event.Form
	// MaxEntries stored blocks may wait undrained; default 50000. What does
	// not fit is deferred and announced later.
	MaxEntries int
	// MaxBlocksPerEvent splits longer chains; default 0, as many as the wire
	// allows (65536).
	MaxBlocksPerEvent int
	// Multimodal is what the stream tells of blocks with digest tokens; default
	// SuppressMultimodal.
	Multimodal Multimodal
}

// Multimodal is what a stream tells of blocks with digest tokens.
type Multimodal uint32

const (
	// SuppressMultimodal tells nothing of them nor of the blocks below them:
	// StreamStats.MultimodalBlocksSuppressed counts them. They are reused like all
	// others. It is for drainers that have no words for them.
	SuppressMultimodal = Multimodal(cgo.MultimodalSuppress)
	// AnnounceMultimodal tells of them as of all others, with
	// BlockStored.MMDigests. It is for drainers that write them in a form of their
	// own, as a publisher does with some of its options (its StreamConfig chooses).
	AnnounceMultimodal = Multimodal(cgo.MultimodalAnnounce)
)

func (c *StreamConfig) raw() (cgo.StreamConfig, error) {
	var raw cgo.StreamConfig
	raw.Init()
	raw.HashForm = uint32(c.Form)
	raw.Multimodal = uint32(c.Multimodal)
	if err := set32("new stream", "MaxEntries", c.MaxEntries, &raw.MaxEntries); err != nil {
		return raw, err
	}
	err := set32("new stream", "MaxBlocksPerEvent", c.MaxBlocksPerEvent, &raw.MaxBlocksPerEvent)
	return raw, err
}

// set32 stores a non-zero value that fits; the library checks its range.
func set32(op, name string, value int, to *uint32) error {
	if value < 0 || value > math.MaxUint32 {
		return argumentError(op, "%s is %d", name, value)
	}
	if value != 0 {
		*to = uint32(value)
	}
	return nil
}
