// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

// workload makes random operations of every kind on one cache. It knows no more of
// the cache than it needs to make sense: what an operation ought to bring about is
// for those to say who read the stream.
type workload struct {
	manager *bindings.Manager
	random  *rand.Rand
	block   int // tokens
	// least and most are the sizes that the pool can have.
	least, most int
	// images lets prompts hold digests.
	images bool

	sequences []*served
	pins      []bindings.Pin
	holds     []bindings.HoldID
	// device and steps are device streams; begun and ended count the steps.
	device, steps bindings.DeviceStream
	begun, ended  uint64
	now           time.Duration
	step          bindings.Step
	// done counts, for each kind, the operations that were not refused.
	done map[string]int
}

// served is a sequence. tokens are its prompt and what it will commit next.
type served struct {
	id     bindings.SequenceID
	tokens []uint32
	scope  *bindings.Scope
}

const (
	workloadSequences = 7
	workloadDigests   = 3
	workloadPage      = 16 // bytes
	// workloadMoves is where done counts the blocks that a shrink moved.
	workloadMoves = "moved blocks"
)

// workloadKind is one kind of operation and how often it is drawn.
type workloadKind struct {
	name   string
	weight int
	do     func(*workload) error
}

// workloadKinds are all that the bindings have to change a cache, or to look at it.
var workloadKinds = []workloadKind{
	{"request", 50, (*workload).request},
	{"create", 10, (*workload).create},
	{"grow", 12, (*workload).grow},
	{"commit", 16, (*workload).commit},
	{"fork", 4, (*workload).fork},
	{"truncate", 3, (*workload).truncate},
	{"release", 6, (*workload).release},
	{"end", 2, (*workload).end},
	{"cancel", 2, (*workload).cancel},
	{"hold", 2, (*workload).hold},
	{"release hold", 3, (*workload).releaseHold},
	{"suspend", 3, (*workload).suspend},
	{"resume", 5, (*workload).resume},
	{"take waiters", 4, (*workload).takeWaiters},
	{"stop", 1, (*workload).stop},
	{"retain", 4, (*workload).retain},
	{"expire", 2, (*workload).expire},
	{"pin", 2, (*workload).pin},
	{"unpin", 3, (*workload).unpin},
	{"look", 3, (*workload).look},
	{"step", 6, (*workload).together},
	{"count steps", 2, (*workload).countSteps},
	{"advance", 4, (*workload).advance},
	{"drop scope", 1, (*workload).dropScope},
	{"resize", 3, (*workload).resize},
	{"reset", 1, (*workload).reset},
}

// workloadScopes are the scopes of prompts: every part, and equal tokens under all.
func workloadScopes() []*bindings.Scope {
	u := func(v uint64) *uint64 { return &v }
	return []*bindings.Scope{
		nil,
		{LoRAID: u(7)},
		{LoRAID: u(0)},
		{Salt: u(7)},
		{LoRAName: "adapter", LoRAID: u(7)},
		{SaltBytes: []byte("adapter")},
		{LoRAName: "adapter", Salt: u(7), SaltBytes: []byte{0, 255}},
	}
}

func newWorkload(m *bindings.Manager, seed uint64, config bindings.Config, images bool) (*workload, error) {
	w := &workload{manager: m, random: rand.New(rand.NewPCG(seed, 7)), images: images, done: map[string]int{},
		block: config.TokensPerBlock, least: config.CapacityBlocks, most: config.MaxBlocks}
	var err error
	if w.device, err = m.NewDeviceStream(); err == nil {
		w.steps, err = m.NewStepStream()
	}
	return w, err
}

// operate makes one operation. A refusal that a caller has to expect is no error.
func (w *workload) operate() error {
	total := 0
	for _, k := range workloadKinds {
		total += k.weight
	}
	at := w.random.IntN(total)
	for _, k := range workloadKinds {
		if at -= k.weight; at < 0 {
			err := k.do(w)
			switch {
			case err == nil:
				w.done[k.name]++
			case errors.Is(err, bindings.ErrNotNow) || errors.Is(err, bindings.ErrNeverFits) || errors.Is(err, bindings.ErrBadState):
			default:
				return fmt.Errorf("%s: %w", k.name, err)
			}
			return nil
		}
	}
	return nil
}

// errIdle is returned for operations that have nothing to work on; it counts as a
// refusal.
var errIdle = fmt.Errorf("nothing there: %w", bindings.ErrNotNow)

func (w *workload) pick() (*served, error) {
	if len(w.sequences) == 0 {
		return nil, errIdle
	}
	return w.sequences[w.random.IntN(len(w.sequences))], nil
}

func (w *workload) forget(id bindings.SequenceID) {
	w.sequences = slices.DeleteFunc(w.sequences, func(s *served) bool { return s.id == id })
}

// draw makes tokens of few kinds, so that prompts share beginnings.
func (w *workload) draw(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = w.random.Uint32N(3)
		if w.images && w.random.IntN(12) == 0 {
			tokens[i] = bindings.DigestToken(w.random.IntN(workloadDigests))
		}
	}
	return tokens
}

// workloadItems are what the digest tokens stand for.
func workloadItems() []event.Digest {
	items := make([]event.Digest, workloadDigests)
	for i := range items {
		for k := range items[i] {
			items[i][k] = byte(i + 1)
		}
	}
	return items
}

func (w *workload) prompt() bindings.Prompt {
	r := w.random
	scopes := workloadScopes()
	of := func(values ...int) int { return values[r.IntN(len(values))] }
	p := bindings.Prompt{
		Tokens: w.draw(1 + r.IntN(7*w.block)), Digests: workloadItems(), Scope: scopes[r.IntN(len(scopes))],
		MustCompute:  of(bindings.ComputeNothing, bindings.ComputeNothing, 0, 1, 3),
		MatchBackoff: of(0, 0, 0, 0, 0, 1, 7),
		StopBefore:   of(0, 0, 0, 0, 0, 0, 0, bindings.StopNow, 1+w.block),
		Mark:         r.IntN(3) == 0, Wait: r.IntN(3) == 0, Suspended: r.IntN(8) == 0,
	}
	if s, err := w.pick(); err == nil && r.IntN(3) == 0 {
		// What somebody has or computes, and more.
		p.Tokens, p.Scope = append(slices.Clone(s.tokens), p.Tokens[:r.IntN(len(p.Tokens))]...), s.scope
	}
	p.DeviceStream = []bindings.DeviceStream{0, 0, w.device, w.steps}[r.IntN(4)]
	return p
}

// room releases the sequences that are too many.
func (w *workload) room() error {
	if len(w.sequences)+len(w.holds) < workloadSequences {
		return nil
	}
	if len(w.sequences) == 0 {
		return w.releaseHold()
	}
	return w.close(w.sequences[0], w.manager.Release)
}

func (w *workload) create() error {
	if err := w.room(); err != nil {
		return err
	}
	p := w.prompt()
	out := make([]bindings.CreateResult, 1)
	if err := w.manager.Create([]bindings.Prompt{p}, out); err != nil {
		return err
	}
	if out[0].Err != nil {
		return out[0].Err
	}
	w.sequences = append(w.sequences, &served{id: out[0].Sequence.ID(), tokens: p.Tokens, scope: p.Scope})
	return nil
}

// request serves a prompt as far as that goes at once.
func (w *workload) request() error {
	if err := w.create(); err != nil {
		return err
	}
	s := w.sequences[len(w.sequences)-1]
	// A conversation goes on.
	s.tokens = append(s.tokens, w.draw(w.random.IntN(3*w.block))...)
	err := w.growTo(s, len(s.tokens))
	if err == nil {
		err = w.commitTo(s, len(s.tokens))
	}
	if err != nil || w.random.IntN(4) > 0 {
		return errors.Join(err, w.close(s, w.manager.Release))
	}
	return nil
}

func (w *workload) growTo(s *served, capacity int) error {
	out := make([]bindings.GrowResult, 1)
	_, err := w.manager.GrowTold([]bindings.GrowItem{{Sequence: s.id, CapacityTokens: capacity}}, out, nil)
	return errors.Join(err, out[0].Err)
}

func (w *workload) grow() error {
	s, err := w.pick()
	if err != nil {
		return err
	}
	return w.growTo(s, len(s.tokens)+w.random.IntN(2*w.block))
}

// commitTo commits the tokens up to a position.
func (w *workload) commitTo(s *served, end int) error {
	info, err := w.manager.Info(s.id)
	if err != nil {
		return err
	}
	if info.CommittedTokens >= end {
		return errIdle
	}
	item := bindings.CommitItem{Sequence: s.id, Tokens: s.tokens[info.CommittedTokens:end], Digests: workloadItems()}
	if w.random.IntN(8) == 0 {
		item.Filled = &bindings.Fence{} // from outside, and ready
	}
	out := make([]bindings.CommitResult, 1)
	err = w.manager.Commit([]bindings.CommitItem{item}, out)
	return errors.Join(err, out[0].Err)
}

func (w *workload) commit() error {
	s, err := w.pick()
	if err != nil {
		return err
	}
	info, err := w.manager.Info(s.id)
	if err != nil {
		return err
	}
	end := min(info.CapacityTokens, info.CommittedTokens+1+w.random.IntN(2*w.block))
	if more := end - len(s.tokens); more > 0 {
		s.tokens = append(s.tokens, w.draw(more)...)
	}
	return w.commitTo(s, end)
}

func (w *workload) fork() error {
	s, err := w.pick()
	if err != nil {
		return err
	}
	if err := w.room(); err != nil {
		return err
	}
	out := make([]bindings.ForkResult, 1)
	item := bindings.ForkItem{Sequence: s.id}
	if err := w.manager.Fork([]bindings.ForkItem{item}, out); err != nil {
		return err
	}
	if errors.Is(out[0].Err, bindings.ErrStaleHandle) {
		return errIdle // it was released to make room
	}
	if out[0].Err != nil {
		return out[0].Err
	}
	w.sequences = append(w.sequences, &served{id: out[0].Sequence.ID(), tokens: slices.Clone(s.tokens[:out[0].CommittedTokens]), scope: s.scope})
	return nil
}

func (w *workload) truncate() error {
	s, err := w.pick()
	if err != nil {
		return err
	}
	info, err := w.manager.Info(s.id)
	if err != nil {
		return err
	}
	out := make([]bindings.TruncateResult, 1)
	keep := info.CommittedTokens + w.random.IntN(w.block+1)
	err = w.manager.Truncate([]bindings.TruncateItem{{Sequence: s.id, CapacityTokens: keep}}, out)
	return errors.Join(err, out[0].Err)
}

// close ends a sequence in one of several ways.
func (w *workload) close(s *served, how func([]bindings.SequenceID, []error) error) error {
	errs := make([]error, 1)
	err := how([]bindings.SequenceID{s.id}, errs)
	w.forget(s.id)
	return errors.Join(err, errs[0])
}

func (w *workload) release() error { return w.closeAny(w.manager.Release) }
func (w *workload) end() error     { return w.closeAny(w.manager.End) }
func (w *workload) cancel() error  { return w.closeAny(w.manager.Cancel) }

func (w *workload) closeAny(how func([]bindings.SequenceID, []error) error) error {
	s, err := w.pick()
	if err != nil {
		return err
	}
	return w.close(s, how)
}

func (w *workload) hold() error {
	s, err := w.pick()
	if err != nil {
		return err
	}
	out := make([]bindings.HoldResult, 1)
	item := bindings.HoldItem{Sequence: s.id, Count: 1 + w.random.IntN(2), Cancel: w.random.IntN(2) == 0}
	if err := w.manager.ReleaseHeld([]bindings.HoldItem{item}, out); err != nil || out[0].Err != nil {
		return errors.Join(err, out[0].Err)
	}
	w.forget(s.id)
	for range item.Count {
		w.holds = append(w.holds, out[0].Hold)
	}
	return nil
}

func (w *workload) releaseHold() error {
	if len(w.holds) == 0 {
		return errIdle
	}
	i := w.random.IntN(len(w.holds))
	hold := w.holds[i]
	w.holds = slices.Delete(w.holds, i, i+1)
	errs := make([]error, 1)
	return errors.Join(w.manager.ReleaseHolds([]bindings.HoldID{hold}, errs), errs[0])
}

func (w *workload) suspend() error {
	s, err := w.pick()
	if err != nil {
		return err
	}
	errs := make([]error, 1)
	return errors.Join(w.manager.Suspend([]bindings.SuspendItem{{Sequence: s.id, Keep: w.random.IntN(2) == 0}}, errs), errs[0])
}

func (w *workload) resume() error {
	s, err := w.pick()
	if err != nil {
		return err
	}
	return w.resumeOne(s.id)
}

func (w *workload) resumeOne(id bindings.SequenceID) error {
	out := make([]bindings.ResumeResult, 1)
	return errors.Join(w.manager.Resume([]bindings.SequenceID{id}, out), out[0].Err)
}

func (w *workload) takeWaiters() error {
	waiters, err := w.manager.TakeWaiters(make([]bindings.Waiter, 4))
	if err != nil {
		return err
	}
	if len(waiters) == 0 {
		return errIdle
	}
	for _, waiter := range waiters {
		if err := w.resumeOne(waiter.Sequence); err != nil && !errors.Is(err, bindings.ErrNotNow) {
			return err
		}
	}
	return nil
}

func (w *workload) stop() error {
	s, err := w.pick()
	if err != nil {
		return err
	}
	errs := make([]error, 1)
	return errors.Join(w.manager.Stop([]bindings.StopItem{{Sequence: s.id, StopBefore: w.random.IntN(8 * w.block)}}, errs), errs[0])
}

func (w *workload) retainItem(id bindings.SequenceID) bindings.RetainItem {
	item := bindings.RetainItem{Sequence: id, EndToken: bindings.ToTheEnd,
		Priority: []int{0, 10, bindings.DefaultPriority, 80, bindings.MaxPriority}[w.random.IntN(5)]}
	if w.random.IntN(2) == 0 {
		item.FirstToken, item.EndToken = 0, w.block*(1+w.random.IntN(3))
	}
	if item.Priority > bindings.DefaultPriority {
		item.Expires = w.now + time.Duration(1+w.random.IntN(5000))*time.Millisecond
	}
	return item
}

func (w *workload) retain() error {
	s, err := w.pick()
	if err != nil {
		return err
	}
	errs := make([]error, 1)
	return errors.Join(w.manager.Retain([]bindings.RetainItem{w.retainItem(s.id)}, errs), errs[0])
}

func (w *workload) expire() error {
	w.now += time.Duration(w.random.IntN(2000)) * time.Millisecond
	_, _, err := w.manager.Expire(w.now, w.random.IntN(4))
	return err
}

func (w *workload) pin() error {
	out := make([]bindings.PinResult, 1)
	var err error
	if s, none := w.pick(); none == nil && w.random.IntN(2) == 0 {
		err = w.manager.PinSequences([]bindings.SequenceID{s.id}, out)
	} else {
		err = w.manager.PinPrompts([]bindings.Prompt{w.prompt()}, out)
	}
	if err != nil || out[0].Err != nil {
		return errors.Join(err, out[0].Err)
	}
	if out[0].Pin == 0 {
		return errIdle
	}
	w.pins = append(w.pins, out[0].Pin)
	return nil
}

func (w *workload) unpin() error {
	if len(w.pins) == 0 {
		return errIdle
	}
	i := w.random.IntN(len(w.pins))
	pin := w.pins[i]
	w.pins = slices.Delete(w.pins, i, i+1)
	errs := make([]error, 1)
	return errors.Join(w.manager.Unpin([]bindings.Pin{pin}, errs), errs[0])
}

// look reads without changing anything.
func (w *workload) look() error {
	p := w.prompt()
	out := make([]bindings.ProbeResult, 1)
	_, err := w.manager.Residency(p, nil)
	return errors.Join(err, w.manager.Probe([]bindings.Prompt{p}, out), out[0].Err)
}

// together makes several operations in one step.
func (w *workload) together() error {
	if err := w.room(); err != nil {
		return err
	}
	w.step.Reset()
	p := w.prompt()
	created := w.step.Create(p)
	w.step.Grow(created.Sequence(), len(p.Tokens))
	others := map[bindings.SequenceID]bool{}
	for range w.random.IntN(4) {
		s, err := w.pick()
		if err != nil || others[s.id] {
			continue
		}
		others[s.id] = true
		switch w.random.IntN(5) {
		case 0:
			w.step.Suspend(s.id, true)
		case 1:
			w.step.Resume(s.id)
		case 2:
			w.step.Retain(w.retainItem(s.id))
		case 3:
			w.step.Release(s.id)
			w.forget(s.id)
		default:
			info, err := w.manager.Info(s.id)
			if err != nil {
				return err
			}
			if info.CommittedTokens == len(s.tokens) {
				s.tokens = append(s.tokens, w.draw(1)...)
			}
			w.step.Grow(s.id, len(s.tokens)+w.block)
			w.step.CommitItem(bindings.CommitItem{Sequence: s.id, Tokens: s.tokens[info.CommittedTokens:], Digests: workloadItems()})
		}
	}
	if err := w.manager.Step(&w.step); err != nil {
		return err
	}
	for _, err := range w.step.Failed() {
		if !errors.Is(err, bindings.ErrNotNow) && !errors.Is(err, bindings.ErrNeverFits) && !errors.Is(err, bindings.ErrBadState) &&
			(!errors.Is(err, bindings.ErrStaleHandle) || w.step.Err(created) == nil) {
			return err
		}
	}
	if err := w.step.Err(created); err != nil {
		return err
	}
	result := w.step.Created(created)
	w.sequences = append(w.sequences, &served{id: result.Sequence.ID(), tokens: p.Tokens, scope: p.Scope})
	return nil
}

func (w *workload) countSteps() error {
	if w.begun == w.ended || w.random.IntN(2) == 0 {
		w.begun++
		return w.manager.BeginStep(w.steps, w.begun)
	}
	w.ended = w.begun
	return w.manager.StepDone(w.steps, w.ended)
}

func (w *workload) advance() error {
	_, err := w.manager.HostAdvance([]bindings.DeviceStream{0, w.device}[w.random.IntN(2)], 1+w.random.IntN(16))
	return err
}

// resize sets a size, or goes on towards the one that was set.
func (w *workload) resize() error {
	stats, err := w.manager.Stats()
	if err != nil {
		return err
	}
	target := int(stats.TargetPages)
	if w.random.IntN(2) == 0 {
		target = w.least + w.random.IntN(w.most-w.least+1)
	}
	result, err := w.manager.Resize(target, w.random.IntN(9), nil, nil)
	w.done[workloadMoves] += result.MovedPages
	return err
}

func (w *workload) dropScope() error {
	scopes := workloadScopes()
	item := bindings.DropItem{Scope: scopes[w.random.IntN(len(scopes))]}
	item.Every = item.Scope != nil && w.random.IntN(4) == 0
	out := make([]bindings.DropResult, 1)
	_, err := w.manager.DropScopes([]bindings.DropItem{item}, out, nil)
	return errors.Join(err, out[0].Err)
}

// reset is rarer than it is drawn: else nothing would ever be evicted.
func (w *workload) reset() error {
	if w.random.IntN(4) > 0 {
		return errIdle
	}
	return w.manager.Reset()
}

// finish closes everything that is open.
func (w *workload) finish() error {
	var all error
	for len(w.sequences) > 0 {
		all = errors.Join(all, w.close(w.sequences[0], w.manager.Release))
	}
	for len(w.holds) > 0 {
		all = errors.Join(all, w.releaseHold())
	}
	for len(w.pins) > 0 {
		all = errors.Join(all, w.unpin())
	}
	return all
}
