// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"fmt"
	"time"
)

// openReplay binds the replay endpoint and begins to serve it, if there is one,
// and makes both endpoints known.
func (o *owner) openReplay(ctx context.Context, bound string, exposed bool) error {
	var replayBound string
	var replayExposed bool
	var counters *replayCounters
	if o.s.replays {
		socket, at, reachable, err := openReplaySocket(ctx, o.s, o.p.gate, o.p.warn)
		if err != nil {
			return err
		}
		replayBound, replayExposed, counters = at, reachable, new(replayCounters)
		o.ring = newRing(o.s.BufferSteps, o.s.ReplayBufferBytes)
		if o.snapshots != nil && o.s.TruncatedHistory == TruncatedSnapshot {
			o.hub = newSnapshotHub()
		}
		o.replay = newReplayServer(o.s, socket, o.ring, counters)
		o.replay.hub = o.hub
		go o.replay.serve()
	}
	o.p.mu.Lock()
	o.p.endpoint, o.p.replayEndpoint = bound, replayBound
	o.p.ring, o.p.replayCounters = o.ring, counters
	o.p.hub = o.hub
	o.p.mu.Unlock()
	for _, e := range []struct {
		at      string
		exposed bool
	}{{bound, exposed}, {replayBound, replayExposed}} {
		if e.exposed && o.s.curve == nil {
			o.p.warn(fmt.Sprintf("%s can be reached from other machines: the stream holds the token ids of "+
				"all prompts, unencrypted and for anyone who connects", e.at))
		}
	}
	return nil
}

// snapshotsWanted delivers something when a replay asks for a snapshot.
func (o *owner) snapshotsWanted() <-chan struct{} {
	if o.hub == nil {
		return nil
	}
	return o.hub.wake
}

// endSnapshots answers all who wait for one, and returns when none is being made.
func (o *owner) endSnapshots() {
	if o.hub != nil {
		o.hub.end()
	}
}

// endReplay makes the replay server finish; see replayServer.end.
func (o *owner) endReplay(deadline, lingerEnd time.Time) {
	if o.replay != nil {
		o.replay.end(deadline, lingerEnd)
	}
}

// waitReplay returns when the replay endpoint is free.
func (o *owner) waitReplay() {
	if o.replay != nil {
		<-o.replay.done
	}
}
