// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/tests/seeds"
)

// wireKey is how a block is named on the wire: by hash or, with Bytes, by digest.
type wireKey struct {
	hash   uint64
	digest event.Digest
}

func keyOnWire(digest event.Digest, form event.Form) wireKey {
	if form == event.Bytes {
		return wireKey{digest: digest}
	}
	return wireKey{hash: wireHash(digest, form)}
}

// mirror is what a subscriber knows: it is built from events alone, and each
// event is judged by what the model knows of the blocks that ever existed.
type mirror struct {
	form     event.Form
	maxRun   int
	blocks   map[wireKey]wireKey // to the parent; the zero key is the root
	children map[wireKey]int
	known    map[wireKey]*mKnown
	// went has why a block went, each time that it did and no removal has told yet.
	went map[wireKey][]bindings.EvictedReason
}

func newMirror(form event.Form, maxRun int) *mirror {
	return &mirror{
		form:     form,
		maxRun:   maxRun,
		blocks:   map[wireKey]wireKey{},
		children: map[wireKey]int{},
		known:    map[wireKey]*mKnown{},
		went:     map[wireKey][]bindings.EvictedReason{},
	}
}

// gone notes that the model's block went; if it had been announced, the stream
// will say why.
func (w *mirror) gone(b *mBlock, reason bindings.EvictedReason) {
	key := keyOnWire(b.key, w.form)
	w.went[key] = append(w.went[key], reason)
}

// learn tells the mirror's judge of blocks the model has stored.
func (w *mirror) learn(m *model) {
	for digest, k := range m.known {
		w.known[keyOnWire(digest, w.form)] = k
	}
}

func (w *mirror) keys(hashes []uint64, digests []event.Digest) ([]wireKey, error) {
	if w.form == event.Bytes && len(hashes) != 0 || w.form != event.Bytes && len(digests) != 0 {
		return nil, fmt.Errorf("%d hashes and %d digests in form %d", len(hashes), len(digests), w.form)
	}
	var keys []wireKey
	for _, h := range hashes {
		keys = append(keys, wireKey{hash: h})
	}
	for _, d := range digests {
		keys = append(keys, wireKey{digest: d})
	}
	if len(keys) == 0 {
		return nil, errors.New("an event without hashes")
	}
	return keys, nil
}

// apply applies one event and says what is wrong with it.
func (w *mirror) apply(e event.Event, blockSize int) error {
	switch e := e.(type) {
	case *event.BlockStored:
		keys, err := w.keys(e.Hashes, e.Digests)
		if err != nil {
			return err
		}
		if w.maxRun > 0 && len(keys) > w.maxRun {
			return fmt.Errorf("%d blocks in one event, the limit is %d", len(keys), w.maxRun)
		}
		if int(e.BlockSize) != blockSize || len(e.Tokens) != len(keys)*blockSize {
			return fmt.Errorf("block size %d and %d tokens for %d blocks", e.BlockSize, len(e.Tokens),
				len(keys))
		}
		tokens, err := eventTokens(e)
		if err != nil {
			return err
		}
		if !e.HasMedium || e.Medium != "GPU" || e.Extra != nil {
			return fmt.Errorf("medium %q, extra %v", e.Medium, e.Extra)
		}
		parent := wireKey{}
		if e.HasParent {
			parent = wireKey{e.ParentHash, e.ParentDigest}
			if _, ok := w.blocks[parent]; !ok {
				return fmt.Errorf("stored under %x, which is not announced", parent)
			}
		}
		for i, key := range keys {
			k := w.known[key]
			if k == nil {
				return fmt.Errorf("stored %x, which never existed", key)
			}
			expected := wireKey{}
			if !k.isRoot {
				expected = keyOnWire(k.parent, w.form)
			}
			if parent != expected {
				return fmt.Errorf("stored %x under %x instead of %x", key, parent, expected)
			}
			if got := tokens[i*blockSize:][:blockSize]; !slices.Equal(got, k.tokens) {
				return fmt.Errorf("stored %x with tokens %v instead of %v", key, got, k.tokens)
			}
			if _, ok := w.blocks[key]; ok {
				return fmt.Errorf("stored %x, which is announced already", key)
			}
			if err := checkLoRA(e, k.scope.scope); err != nil {
				return err
			}
			w.blocks[key] = parent
			w.children[parent]++
			parent = key
		}
	case *event.BlockRemoved:
		keys, err := w.keys(e.Hashes, e.Digests)
		if err != nil {
			return err
		}
		if len(e.Reasons) != len(keys) {
			return fmt.Errorf("%d reasons for %d blocks", len(e.Reasons), len(keys))
		}
		for i, key := range keys {
			// Times that it went unannounced, or that a clear made up for, are passed over.
			at := slices.Index(w.went[key], e.Reasons[i])
			if at < 0 {
				return fmt.Errorf("removed %x for %v, it went for %v", key, e.Reasons[i], w.went[key])
			}
			w.went[key] = w.went[key][at+1:]
			parent, ok := w.blocks[key]
			if !ok {
				return fmt.Errorf("removed %x, which is not announced", key)
			}
			if w.children[key] != 0 {
				return fmt.Errorf("removed %x before its children", key)
			}
			delete(w.blocks, key)
			w.children[parent]--
		}
	case *event.AllBlocksCleared:
		clear(w.blocks)
		clear(w.children)
	default:
		return fmt.Errorf("an event of type %T", e)
	}
	return nil
}

// checkLoRA: names are exact; under a name the id is the one of whoever opened
// the root first, so any id that goes with the name will do.
func checkLoRA(e *event.BlockStored, s *bindings.Scope) error {
	name, id := "", (*uint64)(nil)
	if s != nil {
		name, id = s.LoRAName, s.LoRAID
	}
	if e.LoRAName != name {
		return fmt.Errorf("LoRA name %q instead of %q", e.LoRAName, name)
	}
	if name != "" {
		return nil
	}
	if e.HasLoRAID != (id != nil) || id != nil && e.LoRAID != *id {
		return fmt.Errorf("LoRA id %d, %v", e.LoRAID, e.HasLoRAID)
	}
	return nil
}

func u64(v uint64) *uint64 { return &v }

// modelScopes hold every part, and two that share their blocks.
func modelScopes() []*mScope {
	var scopes []*mScope
	for _, s := range []*bindings.Scope{
		nil,
		{LoRAID: u64(7)},
		{LoRAID: u64(0)},
		{Salt: u64(5), SaltBytes: []byte{0, 255}},
		{LoRAName: "adapter", LoRAID: u64(7)},
		{LoRAName: "adapter", LoRAID: u64(9)},
	} {
		scopes = append(scopes, &mScope{s, rootKey(s)})
	}
	return scopes
}

// lockstep runs the model and the manager side by side.
type lockstep struct {
	t       *rapid.T
	m       *model
	manager *bindings.Manager
	stream  *bindings.Stream
	mirror  *mirror
	scopes  []*mScope
	ample   bool // the record buffer is large: nothing may ever be deferred
	stale   []bindings.SequenceID
	ids     map[bindings.BlockID]bool // of blocks
	tables  tableCopy
	steps   *int
	images  bool // some tokens are digests
	calls   *stepCalls
	pins    int // pages that can be pinned
}

func newLockstep(t *rapid.T, steps *int) *lockstep {
	blockSize := rapid.SampledFrom([]int{1, 2, 3, 5}).Draw(t, "block size")
	total := rapid.SampledFrom([]int{1, 4, 8, 12, 16, 24, 64}).Draw(t, "pages")
	maxSequences := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "max sequences")
	entries := rapid.SampledFrom([]int{1, 4, 4, 4, 8, 12, 50000}).Draw(t, "entries")
	form := event.Form(rapid.IntRange(0, 3).Draw(t, "form"))
	maxRun := rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "blocks per event")
	gate := rapid.SampledFrom([]int{1000, 1000, 970, 500, 250}).Draw(t, "gate")
	pending := rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(t, "pending")
	partial := rapid.Bool().Draw(t, "partial reuse")
	images := rapid.SampledFrom([]bool{true, false, false}).Draw(t, "images")
	most, least := 0, 0
	if rapid.Bool().Draw(t, "elastic") {
		most = total * rapid.IntRange(1, 2).Draw(t, "times as many pages")
		least = rapid.SampledFrom([]int{total, 1, max(1, total/2)}).Draw(t, "fewest pages")
	}
	seed := rapid.Uint64Min(1).Draw(t, "seed")

	multimodal := rapid.SampledFrom([]bindings.Multimodal{bindings.AnnounceMultimodal,
		bindings.SuppressMultimodal}).Draw(t, "multimodal")
	digests := rapid.SampledFrom([]int{3, 3, 2, 1}).Draw(t, "digests") // of the three that there are
	policy := bindings.PolicyLRU
	// A digest that has made way for another hashes otherwise when it returns, so that ghosts of
	// its blocks are not known again: there is room for all three.
	if rapid.Bool().Draw(t, "lrfu") {
		policy, digests = bindings.PolicyLRFU, 3
	}
	tau := rapid.SampledFrom([]int{1, 3, 20, 1000}).Draw(t, "tau")
	ghosts := rapid.SampledFrom([]int{oneSet, ampleSets}).Draw(t, "ghosts")

	stream, err := bindings.NewStream(bindings.StreamConfig{
		Form: form, MaxEntries: entries, MaxBlocksPerEvent: maxRun, Multimodal: multimodal,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	manager, err := bindings.NewManager(bindings.Config{
		TokensPerBlock: blockSize, CapacityBlocks: total, MaxSequences: maxSequences,
		PageBytes: 16, Seed: seed, Poison: true, Stream: stream,
		ResumeGatePermille: gate, MaxPendingBlocks: pending, PartialReuse: partial,
		MaxDigests: digests, Policy: policy, LRFUTau: tau, LRFUGhosts: ghosts,
		MaxBlocks: most, MinBlocks: least,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = manager.Close() })
	if pending == 0 {
		pending = max(total, most)
	}
	l := &lockstep{
		t:       t,
		m:       newModel(blockSize, total, maxSequences, gate, pending),
		manager: manager,
		stream:  stream,
		mirror:  newMirror(form, maxRun),
		scopes:  modelScopes(),
		ample:   entries == 50000,
		ids:     map[bindings.BlockID]bool{},
		steps:   steps,
		images:  images,
	}
	l.m.partialReuse, l.m.maxDigests = partial, digests
	l.m.suppress = multimodal == bindings.SuppressMultimodal
	l.m.scores = mScores{on: policy == bindings.PolicyLRFU, tau: tau, ghosts: ghosts}
	l.calls = &stepCalls{l: l}
	l.m.elastic.most, l.m.elastic.least = most, least
	l.pins = max(1, total/4)
	for i := range rapid.SampledFrom([]int{0, 1, 2, 3, 3, 4}).Draw(t, "device streams") {
		l.newDeviceStream(i == 2)
	}
	return l
}

func (l *lockstep) newDeviceStream(steps bool) {
	id, err := bindings.DeviceStream(0), error(nil)
	if steps {
		id, err = l.manager.NewStepStream()
	} else {
		id, err = l.manager.NewDeviceStream()
	}
	if err != nil {
		l.t.Fatal(err)
	}
	if l.m.streams[id] != nil {
		l.t.Fatalf("device stream id %d used twice", id)
	}
	l.m.streams[id] = &mStream{open: true, steps: steps}
	l.m.order = append(l.m.order, id)
}

func (l *lockstep) openStreams() []bindings.DeviceStream {
	open := []bindings.DeviceStream{0}
	for _, id := range l.m.order {
		if l.m.streams[id].open {
			open = append(open, id)
		}
	}
	return open
}

// worked counts an operation that was carried out.
func (l *lockstep) worked() { *l.steps++ }

// same fails unless the error is of the expected kind.
func (l *lockstep) same(what string, got, want error) {
	l.t.Helper()
	if want == nil && got != nil || want != nil && !errors.Is(got, want) {
		l.t.Fatalf("%s: error %v, the model says %v", what, got, want)
	}
}

func (l *lockstep) equal(what string, got, want any) {
	l.t.Helper()
	if got != want {
		l.t.Fatalf("%s: %v, the model says %v", what, got, want)
	}
}

// waits compares fences. Positions and order are the device's own business, so
// only the streams are compared, and that none has been reached yet. Whoever
// waits for them does so in the order given, so the model's take that order.
func (l *lockstep) waits(what string, got []bindings.Fence, want []mFence) {
	l.t.Helper()
	var gotStreams, wantStreams []bindings.DeviceStream
	for _, f := range got {
		gotStreams = append(gotStreams, f.Stream)
	}
	for _, f := range want {
		wantStreams = append(wantStreams, f.stream)
	}
	slices.Sort(gotStreams)
	slices.Sort(wantStreams)
	if !slices.Equal(gotStreams, wantStreams) {
		l.t.Fatalf("%s: waits for streams %v, the model says %v", what, gotStreams, wantStreams)
	}
	done := make([]bool, len(got))
	l.same("query fences", l.manager.FencesReached(got, done), nil)
	if slices.Contains(done, true) {
		l.t.Fatalf("%s: waits for a fence that has been reached: %v %v", what, got, done)
	}
	slices.SortFunc(want, func(a, b mFence) int {
		at := func(f mFence) int {
			return slices.IndexFunc(got, func(g bindings.Fence) bool { return g.Stream == f.stream })
		}
		return at(a) - at(b)
	})
}

// pageTokens writes the marker of a block or scribbles on a private page.
func (l *lockstep) hostFill(s *mSequence, page *mPage, value uint64) {
	stream := s.stream
	if l.countsSteps(stream) {
		stream = 0 // whoever counts steps has its kernels elsewhere: here they run at once
	}
	l.same("host fill", l.manager.HostFill(stream, []bindings.Fill{{Page: page.id, Value: value}}), nil)
	l.m.fill(stream)
}

// fillNow is what a transfer does that is over.
func (l *lockstep) fillNow(page *mPage, value uint64) {
	l.same("host fill", l.manager.HostFill(0, []bindings.Fill{{Page: page.id, Value: value}}), nil)
}

// streamWait lets a sequence's stream wait, if that is the device's business.
func (l *lockstep) streamWait(s *mSequence, got []bindings.Fence, want []mFence) {
	if s.stream == 0 || l.countsSteps(s.stream) {
		return
	}
	l.same("stream wait", l.manager.StreamWait(s.stream, got), nil)
	l.m.streamWait(s.stream, want)
}

func (l *lockstep) countsSteps(stream bindings.DeviceStream) bool {
	return stream != 0 && l.m.streams[stream].steps
}

func marker(key event.Digest) uint64 { return binary.BigEndian.Uint64(key[8:]) }

// sequence compares everything that can be read of one sequence, and learns
// the ids of pages that are new.
func (l *lockstep) sequence(s *mSequence) {
	l.t.Helper()
	info, err := l.manager.Info(s.id)
	l.same("info", err, nil)
	want := bindings.SequenceInfo{
		CommittedTokens: s.committed,
		MatchedTokens:   s.matched,
		CapacityTokens:  len(s.pages) * l.m.blockSize,
		DeviceStream:    s.stream,
		Pages:           len(s.pages),
		Detached:        s.epoch != l.m.epoch,
		State:           bindings.Active,
	}
	if !want.Detached {
		want.ReusableBlocks = len(s.blocks)
	}
	if s.suspended {
		want.State, want.CapacityTokens = bindings.Suspended, 0
	}
	l.equal("info", info, want)
	pages, err := l.manager.Pages(s.id, nil)
	l.same("pages", err, nil)
	if s.suspended {
		l.equal("pages while suspended", len(pages), 0)
		return
	}
	l.equal("pages", len(pages), len(s.pages))
	for i, p := range s.pages {
		if l.m.owner[pages[i]] == nil && p.holders == 1 && p.block == nil && !l.owned(p) {
			l.m.learn(p, pages[i])
			if int(p.id) >= l.m.elastic.limit {
				l.t.Fatalf("page %d was handed out, and is doomed", p.id)
			}
		}
		if l.m.owner[pages[i]] != p {
			l.t.Fatalf("block %d of sequence %d is in page %d, which belongs to another", i, s.id,
				pages[i])
		}
	}
}

func (l *lockstep) owned(p *mPage) bool { return l.m.owner[p.id] == p }

// ------------------------------------------------------------------- actions

func (l *lockstep) drawPrompt(t *rapid.T) (*mScope, []uint32) {
	scope := l.scopes[rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1, 2, 3, 4, 5}).Draw(t, "scope")]
	var tokens []uint32
	if n := len(l.m.sequences); n > 0 && rapid.Bool().Draw(t, "continue") {
		s := l.m.sequences[rapid.IntRange(0, n-1).Draw(t, "of")]
		scope = s.scope
		tokens = slices.Clone(s.tokens[:rapid.IntRange(0, len(s.tokens)).Draw(t, "keep")])
		if q := l.m.pending.of(s); q != nil && rapid.Bool().Draw(t, "what is computed") {
			tokens = slices.Clone(q.tokens)
		}
	}
	// Rapid prefers small numbers, which would keep everything shallow; what is
	// sampled from a list is drawn evenly.
	n := rapid.SampledFrom([]int{0, 1, 2, 3, 4, 12}).Draw(t, "blocks")*l.m.blockSize +
		rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "more")
	if l.m.partialReuse {
		n += rapid.SampledFrom([]int{0, 1, 2}).Draw(t, "tail") % l.m.blockSize
	}
	more := l.tokens(n, n).Draw(t, "tokens")
	return scope, append(tokens, more...)
}

// drawRequest draws a prompt with all that can be said of a sequence when it is opened.
func (l *lockstep) drawRequest(t *rapid.T) (*mScope, bindings.Prompt) {
	scope, tokens := l.drawPrompt(t)
	return scope, bindings.Prompt{
		Tokens:       tokens,
		Scope:        scope.scope,
		MustCompute:  rapid.SampledFrom([]int{bindings.ComputeNothing, bindings.ComputeNothing, 0, 1, 2, 3}).Draw(t, "must compute"),
		DeviceStream: rapid.SampledFrom(l.openStreams()).Draw(t, "device stream"),
		MatchBackoff: rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2, 7}).Draw(t, "match backoff"),
		Suspended:    rapid.SampledFrom([]bool{true, false, false, false}).Draw(t, "suspended"),
		StopBefore: rapid.SampledFrom([]int{0, 0, 0, 0, bindings.StopNow, 1,
			len(tokens) + l.m.blockSize}).Draw(t, "stop before"),
		Mark: rapid.Bool().Draw(t, "mark"),
		Wait: rapid.Bool().Draw(t, "wait"),
	}
}

func (l *lockstep) create(t *rapid.T) {
	l.worked()
	prompts := make([]bindings.Prompt, rapid.IntRange(1, 3).Draw(t, "prompts"))
	scopes := make([]*mScope, len(prompts))
	for i := range prompts {
		scopes[i], prompts[i] = l.drawRequest(t)
	}
	out := make([]bindings.CreateResult, len(prompts))
	l.same("create", l.manager.Create(items(prompts...), out), nil)
	made, waits := make([]*mSequence, len(prompts)), make([][]mFence, len(prompts))
	for i, p := range prompts {
		made[i], waits[i] = l.created(scopes[i], p, &out[i])
	}
	// What the streams do next comes after all of the call, in the library too.
	for i := range out {
		l.waits("create", out[i].Waits, waits[i])
	}
	for i, s := range made {
		if s != nil {
			l.streamWait(s, out[i].Waits, waits[i])
		}
	}
	for _, s := range made {
		if s != nil {
			l.waitItself(s.stream, s.matched%l.m.blockSize != 0)
			l.sequence(s)
		}
	}
}

func (l *lockstep) probe(t *rapid.T) {
	l.worked()
	prompts := make([]bindings.Prompt, rapid.IntRange(1, 3).Draw(t, "prompts"))
	want := make([]bindings.ProbeResult, len(prompts))
	for i := range prompts {
		scope, tokens := l.drawPrompt(t)
		must := rapid.IntRange(bindings.ComputeNothing, 3).Draw(t, "must compute")
		backoff := rapid.SampledFrom([]int{0, 0, 0, 1, 7}).Draw(t, "match backoff")
		prompts[i] = bindings.Prompt{Tokens: tokens, Scope: scope.scope, MustCompute: must,
			MatchBackoff: backoff}
		computed, _ := l.m.computed(scope, tokens, must)
		want[i].MatchedTokens = len(l.m.match(scope, tokens, must, backoff)) * l.m.blockSize
		want[i].PendingTokens = computed.blocks * l.m.blockSize
	}
	out := make([]bindings.ProbeResult, len(prompts))
	l.same("probe", l.manager.Probe(items(prompts...), out), nil)
	for i := range out {
		l.equal("probe", out[i], want[i])
	}
}

// meet: a block keeps its id, and no other block ever gets it.
func (l *lockstep) meet(b *mBlock, id bindings.BlockID) {
	l.t.Helper()
	if b.id == bindings.NoBlock && !l.ids[id] {
		b.id, l.ids[id] = id, true
	}
	l.equal("block id", id, b.id)
}

func (l *lockstep) where(t *rapid.T) {
	l.worked()
	scope, tokens := l.drawPrompt(t)
	must := rapid.IntRange(bindings.ComputeNothing, 3).Draw(t, "must compute")
	want := l.m.match(scope, tokens, must, 0)
	got, err := l.manager.Residency(
		items(bindings.Prompt{Tokens: tokens, Scope: scope.scope, MustCompute: must})[0], nil)
	l.same("residency", err, nil)
	l.equal("resident blocks of a prompt", len(got), len(want))
	for i, b := range want {
		l.equal("copies", got[i].Copies, 1)
		l.equal("held", got[i].Held, b.page.holders != 0)
		l.meet(b, got[i].Block)
	}
}

// told compares what a call said of evicted blocks.
func (l *lockstep) told(told []bindings.EvictedBlock, victims []*mBlock) {
	l.t.Helper()
	l.equal("evicted blocks told", len(told), len(victims))
	for i, b := range victims {
		l.equal("page of an evicted block", told[i].Page, b.page.id)
		l.equal("copies of an evicted block", told[i].Copies, 0)
		reason := bindings.EvictedCapacity
		switch {
		case b.own < 0:
			reason = bindings.EvictedEnded
		case b.expired:
			reason = bindings.EvictedTTL
		}
		l.equal("reason of an eviction", told[i].Reason, reason)
		l.mirror.gone(b, reason)
		l.equal("priority of an evicted block", told[i].Priority, max(b.own, 0))
		l.meet(b, told[i].Block)
		if b.parent == nil {
			l.equal("parent of a first block", told[i].Parent, bindings.NoBlock)
		} else {
			l.meet(b.parent, told[i].Parent)
		}
	}
}

// pick draws an open sequence, nil if there is none. An action that has nothing
// to work on returns: rapid gives up on inputs that skip too often.
func (l *lockstep) pick(t *rapid.T) *mSequence {
	if len(l.m.sequences) == 0 {
		return nil
	}
	return l.m.sequences[rapid.IntRange(0, len(l.m.sequences)-1).Draw(t, "sequence")]
}

func (l *lockstep) grow(t *rapid.T) {
	s := l.pick(t)
	if s == nil {
		return
	}
	capacity := s.committed + rapid.SampledFrom([]int{0, 1, 1, 2, 4, 12}).Draw(t, "room")*l.m.blockSize
	if rapid.IntRange(0, 30).Draw(t, "never") == 30 {
		capacity = l.m.total*l.m.blockSize + 1
	}
	l.growTo(s, capacity)
}

func (l *lockstep) growTo(s *mSequence, capacity int) bool {
	l.worked()
	out := make([]bindings.GrowResult, 1)
	evicted, err := l.calls.of().GrowTold(
		[]bindings.GrowItem{{Sequence: s.id, CapacityTokens: capacity}}, out,
		make([]bindings.EvictedBlock, max(l.m.total, l.m.elastic.most)))
	l.same("grow", err, nil)
	r := out[0]
	l.equal("evicted blocks told", len(evicted), l.grown(s, capacity, &r, evicted, 0))
	l.waitItself(s.stream, r.Wait.Stream != 0)
	l.sequence(s)
	return r.Err == nil
}

// grown judges a grow of a call that had told of so many blocks before; it returns how
// many it has told of then.
func (l *lockstep) grown(s *mSequence, capacity int, r *bindings.GrowResult,
	told []bindings.EvictedBlock, before int) int {
	l.t.Helper()
	want := l.m.grow(s, capacity, r.Wait.Stream)
	l.copied(s, r, &want)
	first, after := -1, before+len(want.victims)
	if after > before {
		first = before
	}
	l.equal("first evicted", r.FirstEvicted, first)
	if after > len(told) {
		l.t.Fatalf("%d evicted blocks told, the model says at least %d", len(told), after)
	}
	l.told(told[before:after], want.victims)
	l.same("grow", r.Err, want.err)
	l.equal("added pages", r.AddedPages, want.added)
	l.equal("evicted blocks", r.EvictedBlocks, want.evicted)
	l.equal("leaving pages", r.LeavingPages, want.leaving)
	return after
}

func (l *lockstep) commit(t *rapid.T) {
	s := l.pick(t)
	if s == nil {
		return
	}
	n := l.drawCount(t, s)
	filled := l.drawFilled(t, s)
	l.commitTokens(s, l.next(t, s, l.tokens(n, n).Draw(t, "tokens")), filled)
}

// drawCount draws how many tokens are committed.
func (l *lockstep) drawCount(t *rapid.T, s *mSequence) int {
	room := len(s.pages)*l.m.blockSize - s.committed
	if s.suspended {
		room = 1
	}
	if rapid.IntRange(0, 30).Draw(t, "too many") == 30 {
		return room + 1
	}
	return rapid.SampledFrom([]int{0, min(1, room), room / 2, room, room}).Draw(t, "count")
}

// drawFilled: now and then the sequence's pages are filled from outside, which a step
// ends. Whoever fills them comes after all that the sequence's stream has been given:
// what is there when the fence is reached must be what stays there.
func (l *lockstep) drawFilled(t *rapid.T, s *mSequence) *mFence {
	stream := rapid.SampledFrom(l.openStreams()).Draw(t, "filled by")
	if !l.countsSteps(stream) || !rapid.Bool().Draw(t, "from outside") {
		return nil
	}
	if s.stream != 0 && !l.countsSteps(s.stream) {
		l.run(s.stream, 1<<30)
		if own := l.m.streams[s.stream]; own.executed != own.submitted {
			return nil // it waits for a step
		}
	}
	// Mostly by the latest step, which is not likely to be done.
	submitted := l.m.streams[stream].submitted
	return &mFence{stream, submitted - rapid.IntRange(0, submitted).Draw(t, "steps before")}
}

func (l *lockstep) commitTokens(s *mSequence, tokens []uint32, filled *mFence) {
	l.worked()
	l.compute(s, tokens, filled)
	out := make([]bindings.CommitResult, 1)
	l.same("commit", l.calls.of().Commit([]bindings.CommitItem{commitItem(s, tokens, filled)}, out), nil)
	l.streamWait(s, out[0].Waits, l.committed(s, tokens, filled, &out[0]))
	l.sequence(s)
}

// compute is what the fake engine does before a commit: the pages of blocks that become
// full get a mark that follows from the key. It is there at once if they are filled from
// outside; the sequence's own stream then writes it once more, and so has work that its
// fences stand for.
func (l *lockstep) compute(s *mSequence, tokens []uint32, filled *mFence) {
	if s.suspended || l.m.sharesTail(s) || s.committed+len(tokens) > len(s.pages)*l.m.blockSize {
		return
	}
	all := append(slices.Clone(s.tokens), tokens...)
	key := s.scope.root
	for i := 0; (i+1)*l.m.blockSize <= len(all); i++ {
		key = blockKey(key, all[i*l.m.blockSize:][:l.m.blockSize])
		if i >= s.committed/l.m.blockSize {
			if filled != nil {
				l.fillNow(s.pages[i], marker(key))
			}
			l.hostFill(s, s.pages[i], marker(key))
		}
	}
}

func commitItem(s *mSequence, tokens []uint32, filled *mFence) bindings.CommitItem {
	item := bindings.CommitItem{Sequence: s.id}
	item.Tokens, item.Digests = itemTokens(tokens)
	if filled != nil {
		item.Filled = &bindings.Fence{Stream: filled.stream, Position: uint64(filled.position)}
	}
	return item
}

// committed judges a commit and returns what is to be waited for.
func (l *lockstep) committed(s *mSequence, tokens []uint32, filled *mFence, r *bindings.CommitResult) []mFence {
	l.t.Helper()
	want := l.m.commit(s, tokens, filled)
	l.same("commit", r.Err, want.err)
	l.equal("first changed block", r.FirstChangedBlock, want.firstChanged)
	l.equal("stored blocks", r.StoredBlocks, want.stored)
	l.equal("deduplicated blocks", r.DeduplicatedBlocks, want.deduplicated)
	if want.err == nil {
		l.equal("committed tokens", r.CommittedTokens, s.committed)
	}
	l.waits("commit", r.Waits, want.waits)
	l.mirror.learn(l.m)
	return want.waits
}

// request is what an engine does all day: create, grow, commit the rest, and
// sometimes release.
func (l *lockstep) request(t *rapid.T) {
	if l.m.full() {
		return
	}
	scope, tokens := l.drawPrompt(t)
	l.serve(t, scope, tokens, rapid.Bool().Draw(t, "release"))
}

func (l *lockstep) serve(t *rapid.T, scope *mScope, tokens []uint32, release bool) {
	stream := rapid.SampledFrom(l.openStreams()).Draw(t, "device stream")
	l.worked()
	s := l.open(scope, bindings.Prompt{Tokens: tokens, Scope: scope.scope, DeviceStream: stream})
	if s == nil {
		return
	}
	if l.growTo(s, len(tokens)) {
		l.commitTokens(s, tokens[s.committed:], nil)
	}
	if release {
		l.releaseAll([]*mSequence{s}, false)
	}
}

// open creates one sequence; nil if that is refused.
func (l *lockstep) open(scope *mScope, p bindings.Prompt) *mSequence {
	out := make([]bindings.CreateResult, 1)
	l.same("create", l.calls.of().Create(items(p), out), nil)
	s, waits := l.created(scope, p, &out[0])
	if s == nil {
		return nil
	}
	l.waits("create", out[0].Waits, waits)
	l.streamWait(s, out[0].Waits, waits)
	l.waitItself(s.stream, s.matched%l.m.blockSize != 0)
	l.sequence(s)
	return s
}

// scribble leaves late writes behind on pages that are not committed.
func (l *lockstep) scribble(t *rapid.T) {
	s := l.pick(t)
	if s == nil || s.suspended || l.m.sharesTail(s) {
		return
	}
	for i := s.committed / l.m.blockSize; i < len(s.pages); i++ {
		l.hostFill(s, s.pages[i], rapid.Uint64().Draw(t, "value"))
	}
}

func (l *lockstep) release(t *rapid.T) {
	s := l.pick(t)
	if s == nil {
		return
	}
	l.releaseAll([]*mSequence{s}, false)
}

func (l *lockstep) releaseMany(t *rapid.T) {
	n := rapid.IntRange(0, len(l.m.sequences)).Draw(t, "count")
	if n == 0 {
		return
	}
	l.releaseAll(slices.Clone(l.m.sequences[:n]), rapid.Bool().Draw(t, "ended"))
}

func (l *lockstep) releaseAll(sequences []*mSequence, ended bool) {
	l.worked()
	var ids []bindings.SequenceID
	for _, s := range sequences {
		ids = append(ids, s.id)
	}
	l.stale = append(l.stale, ids...)
	if l.calls.through && len(sequences) == 1 {
		l.releaseOne(sequences[0], ended)
		return
	}
	l.calls.settle()
	errs := make([]error, len(ids)+1)
	// The first one twice: the second time it is stale.
	if ended {
		l.same("end", l.manager.End(append(ids, ids[0]), errs), nil)
	} else {
		l.same("release", l.manager.Release(append(ids, ids[0]), errs), nil)
	}
	for i, s := range sequences {
		l.same("release", errs[i], nil)
		l.m.release(s, false, ended)
	}
	l.same("release", errs[len(ids)], bindings.ErrStaleHandle)
}

func (l *lockstep) releaseOne(s *mSequence, ended bool) {
	release := l.calls.of().Release
	if ended {
		release = l.calls.of().End
	}
	errs := make([]error, 1)
	l.same("release", release([]bindings.SequenceID{s.id}, errs), nil)
	l.same("release", errs[0], nil)
	l.m.release(s, false, ended)
}

func (l *lockstep) cancel(t *rapid.T) {
	s := l.pick(t)
	if s == nil || rapid.Bool().Draw(t, "rather not") {
		return
	}
	l.worked()
	l.stale = append(l.stale, s.id)
	errs := make([]error, 2)
	l.same("cancel", l.manager.Cancel([]bindings.SequenceID{s.id, s.id}, errs), nil)
	l.same("cancel", errs[0], nil)
	l.same("cancel", errs[1], bindings.ErrStaleHandle)
	l.m.release(s, true, false)
}

func (l *lockstep) hold(t *rapid.T) {
	s := l.pick(t)
	if s == nil || rapid.Bool().Draw(t, "rather not") {
		return
	}
	l.worked()
	item := drawHold(t)
	item.Sequence = s.id
	out := make([]bindings.HoldResult, 1)
	l.same("hold", l.calls.of().ReleaseHeld([]bindings.HoldItem{item}, out), nil)
	l.held(s, item, &out[0])
}

func drawHold(t *rapid.T) bindings.HoldItem {
	return bindings.HoldItem{Count: rapid.IntRange(1, 3).Draw(t, "count"),
		Cancel: rapid.Bool().Draw(t, "cancel")}
}

func (l *lockstep) held(s *mSequence, item bindings.HoldItem, r *bindings.HoldResult) {
	l.t.Helper()
	err := l.m.releaseHeld(s, item.Count, item.Cancel, r.Hold)
	l.same("hold", r.Err, err)
	if err == nil {
		l.stale = append(l.stale, s.id)
	}
}

func (l *lockstep) endHold(t *rapid.T) {
	if len(l.m.holds) == 0 {
		return
	}
	l.worked()
	h := rapid.SampledFrom(l.m.holds).Draw(t, "hold")
	times := rapid.IntRange(1, h.count+1).Draw(t, "times")
	holds, errs := make([]bindings.HoldID, times), make([]error, times)
	for i := range holds {
		holds[i] = h.id
	}
	l.same("end hold", l.manager.ReleaseHolds(holds, errs), nil)
	for _, err := range errs {
		if h.count == 0 {
			l.same("end hold", err, bindings.ErrStaleHandle)
			continue
		}
		l.same("end hold", err, nil)
		l.m.releaseHold(h)
	}
}

// step begins the next step of a step stream, or ends one.
func (l *lockstep) step(t *rapid.T) {
	stream := rapid.SampledFrom(l.openStreams()).Draw(t, "stream")
	if !l.countsSteps(stream) {
		return
	}
	l.worked()
	s := l.m.streams[stream]
	if rapid.Bool().Draw(t, "begin") {
		step := s.submitted + rapid.IntRange(1, 2).Draw(t, "steps")
		l.same("begin step", l.manager.BeginStep(stream, uint64(step)), nil)
		s.submitted = step
		l.same("begin an older step", l.manager.BeginStep(stream, uint64(step-1)), bindings.ErrInvalidArgument)
		return
	}
	step := rapid.IntRange(0, s.submitted).Draw(t, "step")
	l.same("step done", l.manager.StepDone(stream, uint64(step)), nil)
	l.m.endStep(stream, step)
	l.same("step done too early", l.manager.StepDone(stream, uint64(s.submitted+1)), bindings.ErrInvalidArgument)
}

func (l *lockstep) suspend(t *rapid.T) {
	s := l.pick(t)
	if s == nil {
		return
	}
	l.worked()
	if !s.suspended && rapid.SampledFrom([]bool{true, false, false}).Draw(t, "grow first") {
		// With much to keep, so that others come to need it.
		room := rapid.IntRange(0, l.m.total).Draw(t, "room") * l.m.blockSize
		if !l.growTo(s, s.committed+room) {
			return
		}
	}
	keep := rapid.SampledFrom([]bool{true, true, true, false}).Draw(t, "keep")
	errs := make([]error, 1)
	l.same("suspend", l.calls.of().Suspend([]bindings.SuspendItem{{Sequence: s.id, Keep: keep}}, errs), nil)
	l.same("suspend", errs[0], l.m.suspend(s, keep))
	l.sequence(s)
}

func (l *lockstep) resume(t *rapid.T) {
	if s := l.pick(t); s != nil {
		l.worked()
		l.resumeOne(s)
	}
}

func (l *lockstep) resumeOne(s *mSequence) {
	out := make([]bindings.ResumeResult, 1)
	l.same("resume", l.calls.of().Resume([]bindings.SequenceID{s.id}, out), nil)
	l.streamWait(s, out[0].Waits, l.resumed(s, &out[0]))
	// What it kept may have moved meanwhile, and its copy is still under way.
	l.waitItself(s.stream, len(out[0].Waits) > 0)
	l.sequence(s)
}

// resumed judges a resume and returns what is to be waited for.
func (l *lockstep) resumed(s *mSequence, r *bindings.ResumeResult) []mFence {
	l.t.Helper()
	want := l.m.resume(s)
	l.same("resume", r.Err, want.err)
	l.equal("pending tokens", r.PendingTokens, want.computed.blocks*l.m.blockSize)
	l.equal("pending sequence", r.PendingSequence, want.computed.id())
	if want.err == nil {
		l.equal("surviving tokens", r.CommittedTokens, s.committed)
		l.equal("lost tokens", r.LostTokens, want.lost)
	}
	l.waits("resume", r.Waits, want.waits)
	return want.waits
}

func (l *lockstep) truncate(t *rapid.T) {
	s := l.pick(t)
	if s == nil {
		return
	}
	l.worked()
	capacity := s.committed + rapid.IntRange(0, 2*l.m.blockSize).Draw(t, "room")
	if rapid.SampledFrom([]bool{true, false, false, false, false}).Draw(t, "too little") {
		capacity = s.committed / 2
	}
	out := make([]bindings.TruncateResult, 1)
	l.same("truncate", l.calls.of().Truncate([]bindings.TruncateItem{{Sequence: s.id, CapacityTokens: capacity}}, out), nil)
	l.truncated(s, capacity, &out[0])
	l.sequence(s)
}

func (l *lockstep) truncated(s *mSequence, capacity int, r *bindings.TruncateResult) {
	l.t.Helper()
	freed, err := l.m.truncate(s, capacity)
	l.same("truncate", r.Err, err)
	l.equal("freed pages", r.FreedPages, freed)
}

func (l *lockstep) stop(t *rapid.T) {
	s := l.pick(t)
	if s == nil || rapid.Bool().Draw(t, "rather not") {
		return
	}
	l.worked()
	position := rapid.IntRange(0, s.committed+2*l.m.blockSize).Draw(t, "position")
	errs := make([]error, 1)
	l.same("stop", l.calls.of().Stop([]bindings.StopItem{{Sequence: s.id, StopBefore: position}}, errs), nil)
	l.same("stop", errs[0], l.m.stop(s, position))
}

func (l *lockstep) end(t *rapid.T) {
	if s := l.pick(t); s != nil {
		l.releaseAll([]*mSequence{s}, true)
	}
}

func (l *lockstep) pin(t *rapid.T) {
	l.worked()
	out := make([]bindings.PinResult, 1)
	if rapid.Bool().Draw(t, "prompt") {
		scope, tokens := l.drawPrompt(t)
		path := l.m.match(scope, tokens, bindings.ComputeNothing, 0)
		l.same("pin", l.manager.PinPrompts(items(bindings.Prompt{Tokens: tokens, Scope: scope.scope,
			MustCompute: bindings.ComputeNothing}), out), nil)
		l.pinned(path, &out[0])
	} else if s := l.pick(t); s != nil {
		l.same("pin", l.calls.of().PinSequences([]bindings.SequenceID{s.id}, out), nil)
		l.pinnedSequence(s, &out[0])
	}
}

func (l *lockstep) pinnedSequence(s *mSequence, r *bindings.PinResult) {
	l.t.Helper()
	switch {
	case s.suspended:
		l.same("pin", r.Err, bindings.ErrBadState)
		l.equal("pin", *r, bindings.PinResult{Err: r.Err})
	case s.epoch == l.m.epoch:
		l.pinned(s.blocks, r)
	default:
		l.pinned(nil, r)
	}
}

func (l *lockstep) pinned(path []*mBlock, r *bindings.PinResult) {
	l.t.Helper()
	pages, want := l.m.pin(path, l.pins)
	l.same("pin", r.Err, want)
	l.equal("pinned blocks", r.Blocks, len(pages))
	l.equal("pin", r.Pin != 0, len(pages) > 0)
	if len(pages) > 0 {
		l.m.pins = append(l.m.pins, mPin{r.Pin, pages})
	}
}

func (l *lockstep) unpin(t *rapid.T) {
	if len(l.m.pins) == 0 {
		return
	}
	l.worked()
	i := rapid.IntRange(0, len(l.m.pins)-1).Draw(t, "pin")
	id := l.m.pins[i].id
	errs := make([]error, 2)
	l.same("unpin", l.manager.Unpin([]bindings.Pin{id, id}, errs), nil)
	l.same("unpin", errs[0], nil)
	l.same("unpin", errs[1], bindings.ErrStaleHandle)
	l.m.unpin(i)
}

func (l *lockstep) dropScopes(t *rapid.T) {
	if !rapid.SampledFrom([]bool{true, false, false}).Draw(t, "really") {
		return
	}
	l.worked()
	scope := rapid.SampledFrom(l.scopes).Draw(t, "scope")
	out := make([]bindings.DropResult, 1)
	told, err := l.manager.DropScopes([]bindings.DropItem{{Scope: scope.scope}}, out,
		make([]bindings.EvictedBlock, max(l.m.total, l.m.elastic.most)))
	l.same("drop scopes", err, nil)
	l.same("drop scopes", out[0].Err, nil)
	blocks, detached := l.m.dropRoot(scope.root)
	l.equal("dropped blocks", out[0].Blocks, len(blocks))
	l.equal("dropped blocks told", len(told), len(blocks))
	for _, b := range blocks {
		l.mirror.gone(b, bindings.EvictedScope)
	}
	l.equal("detached sequences", out[0].DetachedSequences, detached)
	for _, b := range told {
		l.equal("reason of a drop", b.Reason, bindings.EvictedScope)
	}
	for _, s := range l.m.sequences {
		l.sequence(s)
	}
}

// tick is what the library's clock goes by.
const tick = time.Duration(1 << 27)

func (l *lockstep) retain(t *rapid.T) {
	s := l.pick(t)
	if s == nil {
		return
	}
	l.worked()
	item, ticks := l.drawRetain(t, s.committed)
	item.Sequence = s.id
	errs := make([]error, 1)
	l.same("retain", l.calls.of().Retain([]bindings.RetainItem{item}, errs), nil)
	l.retained(s, item, ticks, errs[0])
}

// drawRetain draws what is said of a sequence with so many tokens, and until when.
func (l *lockstep) drawRetain(t *rapid.T, committed int) (bindings.RetainItem, int) {
	item := bindings.RetainItem{
		FirstToken: rapid.IntRange(0, committed+1).Draw(t, "first"),
		EndToken:   bindings.ToTheEnd,
		Priority:   rapid.SampledFrom([]int{0, 10, 34, 35, 36, 80, 80, 80, 100}).Draw(t, "priority"),
	}
	if rapid.Bool().Draw(t, "closed") {
		item.EndToken = item.FirstToken + rapid.IntRange(0, committed+1).Draw(t, "count")
	}
	if item.EndToken == bindings.ToTheEnd && rapid.Bool().Draw(t, "later") {
		item.FirstToken = committed + rapid.IntRange(0, 30).Draw(t, "ahead")
	}
	ticks := 0
	if rapid.IntRange(0, 2).Draw(t, "timed") > 0 {
		ticks = l.m.now + rapid.IntRange(1, 16).Draw(t, "ticks")
		// In the middle of a tick a block is due at its beginning.
		item.Expires = time.Duration(ticks)*tick + time.Duration(rapid.IntRange(0, 1<<27-1).Draw(t, "more"))
	}
	return item, ticks
}

// neverRight: only what is more than the default can end.
func neverRight(item bindings.RetainItem) bool {
	return item.Expires != 0 && item.Priority <= bindings.DefaultPriority
}

func (l *lockstep) retained(s *mSequence, item bindings.RetainItem, ticks int, got error) {
	l.t.Helper()
	var want error
	switch {
	case neverRight(item):
		want = bindings.ErrInvalidArgument
	case s.suspended || item.EndToken > s.committed:
		want = bindings.ErrBadState
	}
	if want == nil && !l.m.retain(s, item.FirstToken, item.EndToken, item.Priority, ticks) {
		want = bindings.ErrNotNow
	}
	l.same("retain", got, want)
}

func (l *lockstep) expire(t *rapid.T) {
	l.worked()
	ticks := l.m.now + rapid.IntRange(0, 12).Draw(t, "ticks")
	got, more, err := l.manager.Expire(time.Duration(ticks)*tick+tick/3, 0)
	l.same("expire", err, nil)
	l.equal("expired", got, l.m.expire(ticks))
	l.equal("more to expire", more, false)
}

func (l *lockstep) useStale(t *rapid.T) {
	if len(l.stale) == 0 {
		return
	}
	id := rapid.SampledFrom(l.stale).Draw(t, "stale")
	grown := make([]bindings.GrowResult, 1)
	l.same("grow", l.manager.Grow([]bindings.GrowItem{{Sequence: id, CapacityTokens: 1}}, grown), nil)
	l.same("grow", grown[0].Err, bindings.ErrStaleHandle)
	committed := make([]bindings.CommitResult, 1)
	l.same("commit", l.manager.Commit([]bindings.CommitItem{{Sequence: id}}, committed), nil)
	l.same("commit", committed[0].Err, bindings.ErrStaleHandle)
	_, err := l.manager.Pages(id, nil)
	l.same("pages", err, bindings.ErrStaleHandle)
	errs := make([]error, 1)
	l.same("suspend", l.manager.Suspend([]bindings.SuspendItem{{Sequence: id}}, errs), nil)
	l.same("suspend", errs[0], bindings.ErrStaleHandle)
	l.same("stop", l.manager.Stop([]bindings.StopItem{{Sequence: id}}, errs), nil)
	l.same("stop", errs[0], bindings.ErrStaleHandle)
	resumed := make([]bindings.ResumeResult, 1)
	l.same("resume", l.manager.Resume([]bindings.SequenceID{id}, resumed), nil)
	l.same("resume", resumed[0].Err, bindings.ErrStaleHandle)
	truncated := make([]bindings.TruncateResult, 1)
	l.same("truncate", l.manager.Truncate([]bindings.TruncateItem{{Sequence: id}}, truncated), nil)
	l.same("truncate", truncated[0].Err, bindings.ErrStaleHandle)
}

func (l *lockstep) reset(t *rapid.T) {
	if !rapid.SampledFrom([]bool{true, false, false, false}).Draw(t, "really") {
		return
	}
	l.worked()
	l.same("reset", l.manager.Reset(), nil)
	l.m.reset()
	for _, s := range l.m.sequences {
		l.sequence(s)
	}
}

func (l *lockstep) advance(t *rapid.T) {
	stream := rapid.SampledFrom(l.openStreams()).Draw(t, "device stream")
	limit := rapid.IntRange(0, 6).Draw(t, "operations")
	if stream == 0 {
		return // the host has nothing to do; settle advances everything
	}
	l.run(stream, limit)
}

func (l *lockstep) run(stream bindings.DeviceStream, limit int) {
	l.worked()
	got, err := l.manager.HostAdvance(stream, limit)
	l.same("host advance", err, nil)
	l.equal("executed", got, l.m.advance(stream, limit))
}

func (l *lockstep) advanceAll() {
	got, err := l.manager.HostAdvance(0, 1<<30)
	l.same("host advance", err, nil)
	l.equal("executed", got, l.m.advanceAll())
	l.m.elastic.done = true // memory has come and gone
	l.m.settleMemory()
}

// turnOver destroys a device stream that no sequence uses and makes another.
func (l *lockstep) turnOver(t *rapid.T) {
	open := l.openStreams()
	id := rapid.SampledFrom(open).Draw(t, "device stream")
	inUse := slices.ContainsFunc(l.m.sequences, func(s *mSequence) bool { return s.stream == id })
	inUse = inUse || slices.ContainsFunc(l.m.holds, func(h *mHold) bool { return h.sequence.stream == id })
	if id == 0 || inUse {
		return
	}
	l.worked()
	if s := l.m.streams[id]; s.steps && s.executed != s.submitted {
		l.same("destroy a stream whose step is not done", l.manager.DestroyDeviceStream(id), bindings.ErrBusy)
		return
	}
	l.same("destroy device stream", l.manager.DestroyDeviceStream(id), nil)
	l.m.streams[id].open = false
	_, err := l.manager.HostAdvance(id, 1)
	l.same("advance a destroyed stream", err, bindings.ErrStaleHandle)
	l.newDeviceStream(l.m.streams[id].steps)
}

// drain takes one batch into the mirror; false when there is nothing now.
func (l *lockstep) drain(maxEvents, maxBlocks int) bool {
	batch, err := l.stream.Drain(maxEvents, maxBlocks)
	if err == io.EOF {
		return false
	}
	l.same("drain", err, nil)
	defer batch.Release() // also if a check fails: Close waits for it
	blocks := 0
	for _, e := range batch.Events {
		switch e := e.(type) {
		case *event.BlockStored:
			blocks += len(e.Hashes) + len(e.Digests)
		case *event.BlockRemoved:
			blocks += len(e.Hashes) + len(e.Digests)
		case *event.AllBlocksCleared:
			l.equal("events beside a clear", len(batch.Events), 1)
		}
		if err := l.mirror.apply(e, l.m.blockSize); err != nil {
			l.t.Fatal(err)
		}
	}
	l.equal("blocks in the batch", batch.Blocks, blocks)
	if maxEvents > 0 && len(batch.Events) > maxEvents ||
		maxBlocks > 0 && blocks > maxBlocks && len(batch.Events) > 1 {
		l.t.Fatalf("%d events, %d blocks exceed %d, %d", len(batch.Events), blocks, maxEvents, maxBlocks)
	}
	return len(batch.Events) > 0
}

func (l *lockstep) drainSome(t *rapid.T) {
	l.worked()
	l.drain(rapid.IntRange(0, 3).Draw(t, "events"), rapid.IntRange(0, 4).Draw(t, "blocks"))
}

// quiet drains and heals everything: then the subscriber knows exactly what is
// resident.
func (l *lockstep) quiet() {
	l.worked()
	// A ring of one block heals one a round, and no pool grows beyond 128 pages: a
	// stream that needs more rounds than this has stopped healing.
	for range 256 {
		for l.drain(0, 0) {
		}
		if stats, err := l.stream.Stats(); err != nil || stats.PendingBlocks == 0 && stats.BufferUsedBytes == 0 {
			l.same("stream stats", err, nil)
			break
		}
	}
	stats, err := l.stream.Stats()
	l.same("stream stats", err, nil)
	l.equal("pending blocks when quiet", stats.PendingBlocks, uint64(0))
	told := len(l.m.resident) - l.m.silence()
	l.equal("mirror blocks", stats.MirrorBlocks, uint64(told))
	l.equal("blocks in the subscriber's mirror", len(l.mirror.blocks), told)
	for digest, b := range l.m.resident {
		if _, ok := l.mirror.blocks[keyOnWire(digest, l.mirror.form)]; ok == l.m.suppressed(b) {
			l.t.Fatalf("resident block %x is in the mirror: %v", digest, ok)
		}
	}
	l.snapshot()
}

// snapshot compares what a subscriber knows that begins with a snapshot.
func (l *lockstep) snapshot() {
	snapshot, err := l.stream.Snapshot()
	l.same("snapshot", err, nil)
	defer snapshot.Close()
	other := newMirror(l.mirror.form, l.mirror.maxRun)
	other.known = l.mirror.known
	for {
		batch, err := snapshot.Next(2, 3)
		if err == io.EOF {
			break
		}
		l.same("next of a snapshot", err, nil)
		for _, e := range batch.Events {
			if err := other.apply(e, l.m.blockSize); err != nil {
				l.t.Fatalf("snapshot: %v", err)
			}
		}
	}
	if !maps.Equal(other.blocks, l.mirror.blocks) {
		l.t.Fatalf("a snapshot has %d blocks, the mirror %d", len(other.blocks), len(l.mirror.blocks))
	}
}

// settle lets the device finish: then each page holds what belongs there.
func (l *lockstep) settle() {
	l.worked()
	l.everything()
	word := make([]byte, 8)
	for _, b := range l.m.resident {
		l.same("host read", l.manager.HostRead(b.page.id, 8, word), nil)
		if got := binary.LittleEndian.Uint64(word); got != marker(b.key) {
			l.t.Fatalf("page %d of block %x holds %x: somebody wrote late", b.page.id, b.key, got)
		}
	}
}

// check runs after each action.
func (l *lockstep) check(*rapid.T) {
	l.calls.settle()
	l.same("check", l.manager.Check(), nil)
	got, err := l.manager.Stats()
	l.same("stats", err, nil)
	l.m.poll()
	l.m.settleMemory()
	want := bindings.Stats{
		TargetPages:        uint64(l.m.elastic.limit),
		DoomedPages:        uint64(l.m.countDoomed()),
		LeavingPages:       uint64(len(l.m.elastic.out)),
		MovedPages:         l.m.elastic.moved,
		Resizes:            l.m.elastic.resizes,
		MappedBytes:        got.MappedBytes,
		TotalPages:         uint64(l.m.total),
		LivePages:          uint64(l.m.live()),
		CachedPages:        uint64(l.m.cached()),
		FreePages:          uint64(l.m.free),
		QuarantinedPages:   uint64(len(l.m.quarantine)),
		PeakLivePages:      l.m.peakLive,
		Blocks:             uint64(len(l.m.resident)),
		Roots:              uint64(l.m.roots()),
		Sequences:          uint64(len(l.m.sequences)),
		CreatedSequences:   l.m.created,
		ForkedSequences:    l.m.forked,
		CopiedPages:        l.m.copied,
		CopiedBytes:        16 * l.m.copied,
		AskedBlocks:        l.m.asked,
		MatchedBlocks:      l.m.matched,
		StoredBlocks:       l.m.stored,
		DeduplicatedBlocks: l.m.deduplicated,
		EvictedBlocks:      l.m.evicted,
		EvictedTTLBlocks:   l.m.evictedTTL,
		EvictedEndedBlocks: l.m.evictedEnded,
		ExpiredBlocks:      l.m.expired,
		DroppedBlocks:      l.m.dropped,
		Pins:               uint64(len(l.m.pins)),
		PinnedPages:        uint64(l.m.pinned()),
		PeakPinnedPages:    l.m.peakPinned,
		// When the library looks at fences is its own business.
		PeakQuarantinedPages: got.PeakQuarantinedPages,
		ResetBlocks:          l.m.resetBlocks,
		Resets:               l.m.resets,
		RefusedNotNow:        l.m.refusedNotNow,
		RefusedNeverFits:     l.m.refusedNeverFits,
		RefusedGate:          l.m.refusedGate,
		ReclaimedPages:       l.m.reclaimed,
		CancelledSequences:   l.m.cancelled,
		Holds:                uint64(len(l.m.holds)),
		MetadataBytes:        got.MetadataBytes,
		Prefault:             got.Prefault,
		PendingBlocks:        uint64(l.m.pending.size()),
		WaitingSequences:     uint64(len(l.m.pending.waits)),
		MarkedBlocks:         l.m.pending.marked,
		CommittedMarks:       l.m.pending.committed,
		GivenUpMarks:         l.m.pending.givenUp,
		UnmarkedBlocks:       l.m.pending.unmarked,
		Waits:                l.m.pending.begun,
		PartialBlocks:        uint64(len(l.m.tails)),
		KeptPartialBlocks:    l.m.keptTails,
		PartialHits:          l.m.partialHits,
		PartialHitTokens:     l.m.partialTokens,
		Digests:              uint64(len(l.m.digests())),
	}
	l.tables.check(l)
	for _, h := range l.m.holds {
		want.HeldPages += uint64(len(h.sequence.pages))
	}
	for _, s := range l.m.sequences {
		if s.suspended {
			want.SuspendedSequences++
			want.KeptPages += uint64(len(s.pages))
		}
	}
	if got != want {
		l.t.Fatalf("stats\n got  %+v\n want %+v", got, want)
	}

	// The resident set, parents first, keys made by the manager from the tokens.
	resident, err := l.manager.Resident(l.mirror.form)
	l.same("resident", err, nil)
	l.equal("resident blocks", len(resident), len(l.m.resident))
	announced := map[event.Digest]bool{}
	seen := map[event.Digest]bool{}
	for _, r := range resident {
		b := l.m.resident[r.Digest]
		if b == nil {
			l.t.Fatalf("block %x is resident, the model says no", r.Digest)
		}
		l.equal("hash of a resident block", r.Hash, wireHash(r.Digest, l.mirror.form))
		if seen[r.Digest] || b.parent != nil && !seen[b.parent.key] {
			l.t.Fatalf("block %x comes twice or before its parent", r.Digest)
		}
		seen[r.Digest] = true
		if r.Announced {
			announced[r.Digest] = true
			l.equal("an announced block is suppressed", l.m.suppressed(b), false)
			if b.parent != nil && !announced[b.parent.key] {
				l.t.Fatalf("block %x is announced, its parent is not", r.Digest)
			}
		}
	}

	// The stream's counters balance with each other and with the tree.
	s, err := l.stream.Stats()
	l.same("stream stats", err, nil)
	l.equal("deferred", s.DeferredBlocks, s.HealedBlocks+s.DeferredEvictedBlocks+s.PendingBlocks)
	l.equal("announced", s.AnnouncedBlocks, s.StoredBlocks-s.RemovedBlocks-s.ClearedBlocks)
	l.equal("removed", s.RemovedBlocks, s.RemovedCapacityBlocks+s.RemovedTTLBlocks+s.RemovedEndedBlocks+s.RemovedScopeBlocks)
	l.equal("announced in the tree", uint64(len(announced)), s.AnnouncedBlocks)
	silence := l.m.silence()
	l.equal("suppressed", s.SuppressedBlocks, uint64(silence))
	l.equal("suppressed ever", s.MultimodalBlocksSuppressed, l.m.suppressedEver)
	l.equal("pending", s.PendingBlocks, uint64(len(l.m.resident)-len(announced)-silence))
	l.equal("stored", s.StoredBlocks+s.DeferredEvictedBlocks+s.PendingBlocks, l.m.stored-l.m.suppressedEver)
	l.equal("partial", s.PartialBlocksSuppressed, l.m.partial)
	l.equal("dropped events", s.DroppedEvents, s.DeferredBlocks)
	l.equal("unannounced removals", s.UnannouncedRemovals, s.DeferredEvictedBlocks+l.m.silent)
	if l.ample {
		l.equal("deferred with ample room", s.DeferredBlocks, uint64(0))
	}
}

// finish closes everything; what was recorded can still be drained.
func (l *lockstep) finish() {
	if len(l.m.sequences) > 0 {
		l.same("close with open sequences", l.manager.Close(), bindings.ErrBusy)
		l.releaseAll(slices.Clone(l.m.sequences), false)
	}
	for len(l.m.holds) > 0 {
		l.same("close with holds", l.manager.Close(), bindings.ErrBusy)
		errs := make([]error, 1)
		l.same("end hold", l.manager.ReleaseHolds([]bindings.HoldID{l.m.holds[0].id}, errs), nil)
		l.same("end hold", errs[0], nil)
		l.m.releaseHold(l.m.holds[0])
	}
	l.check(nil)
	l.settle()
	l.check(nil)
	l.same("close", l.manager.Close(), nil)
	for l.drain(2, 0) {
	}
	_, err := l.stream.Drain(0, 0)
	l.same("drain after the end", err, io.EOF)
	// What was still deferred at the close is not announced; the rest is.
	if l.ample {
		l.equal("mirror at the end", len(l.mirror.blocks), len(l.m.resident)-l.m.silence())
	}
	for key := range l.mirror.blocks {
		if _, ok := l.m.resident[l.mirror.known[key].digest]; !ok {
			l.t.Fatalf("block %x is in the mirror at the end and not resident", key)
		}
	}
	l.same("close stream", l.stream.Close(), nil)
}

// abandon closes the handles of a run that failed, so that the next one and
// the count of live handles start clean.
func (l *lockstep) abandon() {
	errs := make([]error, 1)
	for _, s := range l.m.sequences {
		_ = l.manager.Release([]bindings.SequenceID{s.id}, errs)
	}
	for _, h := range l.m.holds {
		for range h.count {
			_ = l.manager.ReleaseHolds([]bindings.HoldID{h.id}, errs)
		}
	}
	_ = l.manager.Close()
	_ = l.stream.Close()
}

// setDefault gives a rapid flag a value unless the command line has.
func setDefault(t *testing.T, name, value string) {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	old := flag.Lookup(name).Value.String()
	if err := flag.Set(name, value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Set(name, old) })
}

// runModel is one random run; it counts its operations.
func runModel(steps *int) func(*rapid.T) {
	return func(t *rapid.T) {
		l := newLockstep(t, steps)
		done := false
		defer func() {
			if !done {
				l.abandon()
			}
		}()
		with := func(action func(*rapid.T)) func(*rapid.T) {
			return func(t *rapid.T) {
				l.t = t
				l.calls.draw(t)
				action(t)
			}
		}
		// What should happen often has two names.
		t.Repeat(map[string]func(*rapid.T){
			"":             with(l.check),
			"create":       with(l.create),
			"probe":        with(l.probe),
			"where":        with(l.where),
			"grow":         with(l.grow),
			"grow again":   with(l.grow),
			"fork":         with(l.fork),
			"fork more":    with(l.fork),
			"commit":       with(l.commit),
			"commit more":  with(l.commit),
			"commit some":  with(l.commitSome),
			"request":      with(l.request),
			"another":      with(l.request),
			"return":       with(l.comeBack),
			"return again": with(l.comeBack),
			"pass":         with(l.pass),
			"scribble":     with(l.scribble),
			"release":      with(l.release),
			"release many": with(l.releaseMany),
			"suspend":      with(l.suspend),
			"resume":       with(l.resume),
			"share":        with(l.share),
			"waiters":      with(l.takeWaiters),
			"truncate":     with(l.truncate),
			"stop":         with(l.stop),
			"cancel":       with(l.cancel),
			"end":          with(l.end),
			"retain":       with(l.retain),
			"retain more":  with(l.retain),
			"expire":       with(l.expire),
			"step":         with(l.step),
			"another step": with(l.step),
			"hold":         with(l.hold),
			"end hold":     with(l.endHold),
			"together":     with(l.together),
			"more of them": with(l.together),
			"pin":          with(l.pin),
			"unpin":        with(l.unpin),
			"unpin more":   with(l.unpin),
			"drop scopes":  with(l.dropScopes),
			"stale":        with(l.useStale),
			"reset":        with(l.reset),
			"resize":       with(l.resize),
			"resize more":  with(l.resize),
			"advance":      with(l.advance),
			"turn over":    with(l.turnOver),
			"drain":        with(l.drainSome),
			"drain more":   with(l.drainSome),
			"quiet":        with(func(*rapid.T) { l.quiet() }),
			"settle": with(func(t *rapid.T) {
				// Seldom, so that fences stay outstanding for long.
				if rapid.SampledFrom([]bool{true, false, false, false}).Draw(t, "really") {
					l.settle()
				}
			}),
		})
		l.t = t
		l.quiet()
		l.finish()
		done = true
	}
}

// TestModel runs random operations on the model and the manager in lock-step.
// After each one every counter, every page and the whole resident set must be
// the same; whenever the stream has been drained the mirror that a subscriber
// would have must be the resident set. Rapid prints the seed of a failure and
// shrinks it; the seed is the same each time unless -rapid.seed gives another, and
// -rapid.checks and -rapid.steps make the run longer.
func TestModel(t *testing.T) {
	setDefault(t, "rapid.checks", map[bool]string{false: "1000", true: "200"}[testing.Short()])
	setDefault(t, "rapid.steps", "120")
	steps := 0
	seeds.Rapid(t)
	rapid.Check(t, runModel(&steps))
	t.Logf("%d operations", steps)
}

// FuzzModel lets the fuzzer choose the operations.
func FuzzModel(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(runModel(new(int))))
}
