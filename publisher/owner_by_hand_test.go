// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/publisher/wire"
)

// ownerByHand is the owner of a publisher that is never started: its steps are the
// test's, and so is its clock. stream may be nil.
func ownerByHand(t testing.TB, o Options, sent transport, stream *bindings.Stream) *owner {
	t.Helper()
	p := mustNew(t, o)
	encoder, err := wire.NewEncoder(p.settings.wireConfig())
	if err != nil {
		t.Fatal(err)
	}
	own := &owner{p: p, s: p.settings, transport: sent, encode: true, encoder: encoder, validator: p.validator,
		config: p.settings.wireConfig()}
	if stream != nil {
		own.source, own.snapshots = stream, stream
	}
	return own
}

// decoded are the batches that a transport has kept, from one on.
func (k *keptBatches) decoded(t testing.TB, from int) (all []*wire.Batch) {
	t.Helper()
	for _, payload := range k.payloads[from:] {
		b, err := wire.Decode(payload, wire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

// While batches go out there is no heartbeat, however long it lasts; then one follows each
// interval of silence, to the moment.
func TestNoHeartbeatInABusyStream(t *testing.T) {
	options := localOptions(t)
	options.Heartbeat = time.Second
	sent := &keptBatches{}
	o := ownerByHand(t, options, sent, nil)
	now := time.Unix(1000, 0)
	o.marks = marks{heartbeat: options.Heartbeat, since: now, sent: now}
	const batches, apart = 20, 700 * time.Millisecond
	for range batches {
		now = now.Add(apart)
		if wait := o.mark(now); wait != options.Heartbeat-apart {
			t.Fatalf("the next one is due in %v, %v after a batch", wait, apart)
		}
		o.publishBatch(clearEvents, now)
	}
	if len(sent.payloads) != batches {
		t.Fatalf("%d messages, of which %d are batches", len(sent.payloads), batches)
	}
	for range 3 {
		now = now.Add(options.Heartbeat - time.Millisecond)
		if wait := o.mark(now); wait != time.Millisecond {
			t.Fatalf("a millisecond before it is due: %v", wait)
		}
		now = now.Add(time.Millisecond)
		o.mark(now)
	}
	silent := sent.decoded(t, batches)
	if len(silent) != 3 {
		t.Fatalf("%d heartbeats in three intervals of silence", len(silent))
	}
	for _, b := range silent {
		if len(b.Events) != 0 {
			t.Errorf("a heartbeat with %+v", b.Events)
		}
	}
}

// The clock is set back around a snapshot, and stands still in the end: whatever is sent
// after it is later than what it holds, which is how readers tell the two apart.
func TestTimeBehindASnapshot(t *testing.T) {
	stream, manager := newAllocator(t, bindings.StreamConfig{}, bindings.Config{TokensPerBlock: 4, CapacityBlocks: 16})
	sent := &keptBatches{}
	o := ownerByHand(t, localOptions(t), sent, stream)
	o.hub = newSnapshotHub()
	compute(t, manager, []uint32{1, 2, 3, 4})
	now := time.Unix(2000, 0)
	for round, at := range []time.Duration{0, -time.Hour, -time.Hour, 0, 0} {
		o.publishBatch(clearEvents, now.Add(at))
		newest := sent.decoded(t, len(sent.payloads)-1)[0].TS
		wanted := o.hub.ask()
		o.nextPin = time.Time{}
		o.answerSnapshots(now.Add(at))
		o.hub.building.Wait()
		if !wanted.done() || wanted.err != nil {
			t.Fatalf("round %d: no snapshot: %v", round, wanted.err)
		}
		b, err := wire.Decode(wanted.body.messages[0], wire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		wanted.release()
		o.publishBatch(clearEvents, now.Add(at-time.Second))
		next := sent.decoded(t, len(sent.payloads)-1)[0].TS
		if b.TS != newest || next <= b.TS {
			t.Errorf("round %d: a snapshot of %v behind a batch of %v and before one of %v", round, b.TS, newest, next)
		}
	}
}
