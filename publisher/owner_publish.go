// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"time"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// publish numbers and sends the events of a drained batch, in as many batches as
// their shape makes necessary: nearly always one.
func (o *owner) publish(events []event.Event, now time.Time) {
	o.shaped = o.shaped[:0]
	o.validator.begin()
	invalid, from, bytes := 0, 0, int64(0)
	for _, ev := range events {
		var err error
		if o.shaped, err = o.validator.shape(o.shaped, ev, true); err != nil {
			invalid++
		}
		for ; from < len(o.shaped); from++ {
			bytes += estimateSize(o.shaped[from])
		}
	}
	if suppressed := o.validator.multimodal.suppressed; suppressed != o.suppressed {
		o.suppressed = suppressed
		o.p.mu.Lock()
		o.p.stats.MultimodalBlocksSuppressed = suppressed
		o.p.mu.Unlock()
	}
	if invalid > 0 {
		o.missing()
		o.p.mu.Lock()
		err := o.p.burnLocked(invalid)
		o.p.mu.Unlock()
		if err != nil {
			o.exhausted(err)
			return
		}
	}
	if !o.validator.changed && len(o.shaped) > 0 && bytes <= o.s.batchBytes() {
		// As it was drained, and so within the limits.
		o.publishBatch(o.shaped, now)
		clear(o.shaped) // they are borrowed
		return
	}
	var at batcher
	from = 0
	for i, ev := range o.shaped {
		if at.ends(o.s, ev) {
			now = o.publishBatch(o.shaped[from:i], now)
			from = i
		}
	}
	if from < len(o.shaped) {
		o.publishBatch(o.shaped[from:], now)
	}
	clear(o.shaped) // they are borrowed
}

// missing notes that subscribers see a gap.
func (o *owner) missing() {
	if o.s.OnLoss == LossResync {
		o.resync.loss()
	} else if o.resync.active() {
		o.resync.lossy = true
	}
}

// publishBatch numbers and sends a batch of a source. It returns when that is
// over.
func (o *owner) publishBatch(events []event.Event, now time.Time) time.Time {
	o.p.mu.Lock()
	seq, err := o.p.reserveLocked("publish")
	if err == nil {
		o.p.stats.EnqueuedBatches++
		o.p.stats.EnqueuedEvents += uint64(len(events))
		if o.drainTook > 0 {
			o.p.stats.DrainLatency.add(o.drainTook)
			o.drainTook = 0
		}
	}
	o.p.mu.Unlock()
	if err != nil {
		o.exhausted(err)
		return now
	}
	return o.send(seq, events, now, true)
}

// exhausted ends the source: nothing can be sent in this life any more.
func (o *owner) exhausted(err error) {
	if o.source != nil {
		o.endSource()
		o.p.warn(err.Error())
	}
}

// clearEvents is the content of a clear.
var clearEvents = []event.Event{&event.AllBlocksCleared{}}

// publishClear sends a clear, alone as always.
func (o *owner) publishClear() {
	o.p.mu.Lock()
	seq, err := o.p.reserveLocked("publish")
	if err == nil {
		o.p.stats.EnqueuedBatches++
		o.p.stats.EnqueuedEvents++
	}
	o.p.mu.Unlock()
	if err == nil {
		o.send(seq, clearEvents, time.Now(), true)
	}
}

// send encodes and sends a batch that has its number. hot selects the encoder
// for drained events; the other one, slower and independent of it, is for
// those of a host. It returns when it has finished.
func (o *owner) send(seq uint64, events []event.Event, now time.Time, hot bool) time.Time {
	// Time may be set back; a batch is never older than the one before.
	o.lastTS = max(o.lastTS, float64(now.UnixNano())/1e9)
	rank := uint64(o.s.Rank)
	payload := o.buffer[:0]
	var err error
	switch {
	case !o.encode:
	case hot:
		if payload, err = o.encoder.AppendBatch(payload, o.lastTS, events, rank); cap(payload) <= maxKept {
			o.buffer = payload
		} else {
			o.buffer = nil
		}
	default:
		payload, err = wire.EncodeStruct(o.config, o.lastTS, events, rank)
	}
	if err == nil {
		if o.ring != nil {
			// Before it is sent: whoever misses it live finds it here.
			o.ring.push(seq, payload)
		}
		err = o.transport.send(wire.AppendSeq(o.seq[:0], seq), payload)
	}
	if err != nil {
		o.lost(err, now)
		return now
	}
	o.marks.sent = now
	end := time.Now()
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	o.p.stats.SendLatency.add(end.Sub(now))
	o.p.stats.PublishedBatches++
	o.p.stats.PublishedEvents += uint64(len(events))
	o.p.stats.PublishedBytes += uint64(len(payload))
	o.p.stats.LastSendTime = now
	return end
}

// lost is where every batch ends that had its number and could not be encoded or
// sent: subscribers see a gap. Only one that was encoded is kept for replays.
func (o *owner) lost(err error, now time.Time) {
	o.p.mu.Lock()
	o.p.stats.SendErrorDrops++
	warning := o.p.dropWarningLocked()
	o.p.mu.Unlock()
	o.pausedUntil = now.Add(failurePause)
	o.missing()
	if warning != "" {
		o.p.warn(warning + "; last: " + err.Error())
	}
}
