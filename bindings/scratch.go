// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"math"
	"sync"

	"github.com/kvcast/kvcast/cgo"
)

// scratch holds the flat arrays of one call. A manager keeps a few, so that
// the steady state allocates nothing; a sync.Pool would lose them at each
// garbage collection.
type scratch struct {
	err cgo.Error

	tokens  []uint32
	bytes   []byte
	scopes  []cgo.Scope
	prompts []cgo.Prompt
	created []cgo.CreateResult
	probed  []cgo.ProbeResult
	grow    []cgo.GrowItem
	evicted []cgo.EvictedBlock
	moves   []cgo.PageMove
	resized cgo.ResizeResult
	grown   []cgo.GrowResult
	commit  []cgo.CommitItem
	commits []cgo.CommitResult
	ids     []uint64
	status  []cgo.Status
	fences  []cgo.Fence
	format  cgo.TableFormat
	tables  []cgo.TableItem
	rows    []cgo.TableDeltaItem
	cookies []cgo.TableCookie
	tabled  []cgo.TableResult
	done    []uint8

	residency []cgo.BlockResidency

	hold      []cgo.HoldItem
	held      []cgo.HoldResult
	suspend   []cgo.SuspendItem
	resumed   []cgo.ResumeResult
	fork      []cgo.ForkItem
	forked    []cgo.ForkResult
	truncate  []cgo.TruncateItem
	truncated []cgo.TruncateResult
	stop      []cgo.StopItem
	retain    []cgo.RetainItem
	pinned    []cgo.PinResult
	waiters   []cgo.Waiter
}

const (
	// As many calls at once find their arrays kept; more than that allocate.
	keptScratches = 16
	// Token arrays beyond this (64 MiB) are not kept: one huge call should not
	// hold its memory for ever.
	keptTokens = 1 << 24
)

type scratchList struct {
	mu   sync.Mutex
	free []*scratch
}

func (l *scratchList) get() *scratch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.free); n > 0 {
		s := l.free[n-1]
		l.free = l.free[:n-1]
		return s
	}
	return new(scratch)
}

func (l *scratchList) put(s *scratch) {
	if cap(s.tokens) > keptTokens {
		s.tokens = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.free) < keptScratches {
		l.free = append(l.free, s)
	}
}

// sized gives s the length n, keeping its memory if that is enough. The
// contents are undefined.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
}

// checkCounts refuses result slices that are too short, and counts that the
// ABI's 32 bits cannot hold.
func checkCounts(op string, items, results int) error {
	if results < items {
		return argumentError(op, "%d results for %d items", results, items)
	}
	if items > math.MaxUint32 {
		return argumentError(op, "%d items", items)
	}
	return nil
}

// flatten fills s.prompts, s.scopes and s.bytes and returns the token array
// that the prompts refer to. The tokens of a single prompt are not copied.
func (s *scratch) flatten(op string, prompts []Prompt) ([]uint32, error) {
	s.prompts = sized(s.prompts, len(prompts))
	s.scopes, s.bytes, s.tokens = s.scopes[:0], s.bytes[:0], s.tokens[:0]
	alone := len(prompts) == 1
	var last *Scope
	for i := range prompts {
		p := &prompts[i]
		raw, bad, value := s.prompt(p, &last)
		if bad != "" {
			return nil, argumentError(op, "prompt %d: %s is %d", i, bad, value)
		}
		raw.TokenOffset = uint64(len(s.tokens))
		s.prompts[i] = raw
		if !alone {
			s.tokens = append(s.tokens, p.Tokens...)
		}
	}
	if alone {
		return prompts[0].Tokens, nil
	}
	return s.tokens, nil
}

// prompt is the raw form of p but for where its tokens are; its scope is added, if
// it is not *last. bad names the field, of that value, that can never be right.
func (s *scratch) prompt(p *Prompt, last **Scope) (raw cgo.Prompt, bad string, value int) {
	raw = cgo.Prompt{
		TokenCount:   uint64(len(p.Tokens)),
		DeviceStream: uint64(p.DeviceStream),
		Scope:        cgo.NoScope,
		MustCompute:  uint32(p.MustCompute),
	}
	switch {
	case p.MustCompute == ComputeNothing:
		raw.MustCompute = cgo.ComputeNothing
	case p.MustCompute < 0 || int64(p.MustCompute) >= int64(cgo.ComputeNothing):
		return raw, "MustCompute", p.MustCompute
	}
	if p.MatchBackoff < 0 || int64(p.MatchBackoff) > math.MaxUint32 {
		return raw, "MatchBackoff", p.MatchBackoff
	}
	raw.MatchBackoff = uint32(p.MatchBackoff)
	if p.Suspended {
		raw.Flags |= cgo.PromptSuspended
	}
	if p.Mark {
		raw.Flags |= cgo.PromptMark
	}
	if p.Wait {
		raw.Flags |= cgo.PromptWait
	}
	switch {
	case p.StopBefore == StopNow:
		raw.Flags |= cgo.PromptStopBefore
	case p.StopBefore < 0:
		return raw, "StopBefore", p.StopBefore
	case p.StopBefore > 0:
		raw.Flags |= cgo.PromptStopBefore
		raw.StopBefore = uint64(p.StopBefore)
	}
	raw.DigestOffset, raw.DigestCount = s.addDigests(p.Digests)
	if p.Scope != nil {
		// Neighbours often share their scope.
		if p.Scope != *last {
			s.addScope(p.Scope)
			*last = p.Scope
		}
		raw.Scope = uint32(len(s.scopes) - 1)
	}
	return raw, "", 0
}

func (s *scratch) addScope(scope *Scope) {
	var raw cgo.Scope
	if scope.LoRAID != nil {
		raw.Parts |= cgo.ScopeLoRAID
		raw.LoRAID = *scope.LoRAID
	}
	if scope.Salt != nil {
		raw.Parts |= cgo.ScopeSalt
		raw.Salt = *scope.Salt
	}
	if scope.LoRAName != "" {
		raw.Parts |= cgo.ScopeLoRAName
		raw.LoRANameOffset = uint64(len(s.bytes))
		raw.LoRANameSize = size32(len(scope.LoRAName))
		s.bytes = append(s.bytes, scope.LoRAName...)
	}
	if scope.SaltBytes != nil {
		raw.Parts |= cgo.ScopeSaltBytes
		raw.SaltBytesOffset = uint64(len(s.bytes))
		raw.SaltBytesSize = size32(len(scope.SaltBytes))
		s.bytes = append(s.bytes, scope.SaltBytes...)
	}
	s.scopes = append(s.scopes, raw)
}

// addDigests puts an item's digests among the bytes.
func (s *scratch) addDigests(digests []Digest) (offset uint64, count uint32) {
	offset = uint64(len(s.bytes))
	for i := range digests {
		s.bytes = append(s.bytes, digests[i][:]...)
	}
	return offset, size32(len(digests))
}

// size32 saturates: the library refuses sizes above 255 anyway.
func size32(n int) uint32 { return uint32(min(n, math.MaxUint32)) }
