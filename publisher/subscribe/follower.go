// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

// Defaults of FollowerOptions.
const (
	// DefaultReplayTimeout is how long a request waits for the next part of its
	// answer.
	DefaultReplayTimeout = 5 * time.Second
	// DefaultReplayAttempts is how often a request is made before the stream
	// goes on without an answer.
	DefaultReplayAttempts = 3
	// DefaultMaxHeld and DefaultMaxHeldBytes bound the live messages that wait
	// for the end of a replay.
	DefaultMaxHeld      = 10000
	DefaultMaxHeldBytes = 64 << 20
)

// FollowerOptions configures a Follower.
type FollowerOptions struct {
	// Client is how to receive what is live. Topic also holds for replays in
	// the dialect that has topics; MaxMessage holds for replays too.
	Client ClientOptions
	// Replay is the endpoint of the replay server, tcp://HOST:PORT or
	// ipc://PATH; "" = there is none, and losses are told but not made good.
	Replay string
	// ReplayTimeout bounds the wait for each part of an answer, 60 times it the
	// wait for a whole one; ReplayAttempts is how often a request is made.
	// 0 means DefaultReplayTimeout and DefaultReplayAttempts.
	ReplayTimeout  time.Duration
	ReplayAttempts int
	// MaxHeld and MaxHeldBytes bound the live messages that wait while an
	// answer is read; a single one may be longer. The oldest are dropped, and
	// asked for later. 0 means DefaultMaxHeld and DefaultMaxHeldBytes.
	MaxHeld      int
	MaxHeldBytes int
}

// drainMost is how many live messages are taken in at once before a request.
const drainMost = 1000

// maxReplayTimeout keeps its multiples within a Duration.
const maxReplayTimeout = 24 * time.Hour

// check returns ErrOption for what no follower can be.
func (o FollowerOptions) check() error {
	switch {
	case o.ReplayTimeout < 0 || o.ReplayTimeout > maxReplayTimeout:
		return optionError("ReplayTimeout", o.ReplayTimeout, fmt.Sprintf("0 to %v", maxReplayTimeout))
	case o.ReplayAttempts < 0:
		return optionError("ReplayAttempts", o.ReplayAttempts, "at least 0")
	case o.MaxHeld < 0:
		return optionError("MaxHeld", o.MaxHeld, "at least 0")
	case o.MaxHeldBytes < 0:
		return optionError("MaxHeldBytes", o.MaxHeldBytes, "at least 0")
	}
	return o.Client.check()
}

// FollowerStats counts what a Follower has done.
type FollowerStats struct {
	// Requests counts requests for replays, Failed those without a whole
	// answer, and LastFailure says what was wrong with the newest of them.
	Requests, Failed uint64
	LastFailure      string
	// Replayed counts batches that came as an answer, Duplicates live messages
	// that had come before, Foreign live messages dropped because the life that
	// answers has not sent them, or nobody says which life has, Overflows live
	// messages dropped while waiting, or because too many waited to be taken in.
	Replayed, Duplicates, Foreign, Overflows uint64
	// Resets and Lost are the number of resets and of batches in gaps.
	Resets, Lost uint64
}

// Follower receives one publisher's stream in exact order: each number once,
// what is lost live filled in by replays, a new life of the publisher told as
// such (wire contract, sections 10 and 12). What feeds a Mirror or a Verifier
// with its batches, and resets them when told, stays right.
//
// With a replay server a follower asks for everything at the start, so that it
// may come late, and from its newest number on after a gap, a number that runs
// back and a new connection. The batch under that number must then be the same,
// byte for byte: it is the publisher's life that it was. Otherwise there is an
// ItemReset and the history from its beginning. What an answer does not have is
// lost and told as an ItemGap.
//
// What comes live is handed out once a batch has come both ways, live and as an
// answer, the same byte for byte. Until then, and so at the start and after each
// new connection, each live message leads to a request: what a dead publisher has
// left in the queue is never taken for its successor's.
//
// When nobody answers, live batches go on after such gaps, and after an ItemReset
// if they are not known to continue what there was. Once there is an answer
// again, the history is read anew.
//
// Without a replay server a number that runs back is taken for a new life, and
// nothing else is: a publisher that begins anew and has passed its predecessor's
// number by the time the connection is there again shows as a gap at most. Its
// batches may then be applied on top of what the predecessor announced, until it
// sends a clear.
//
// Memory is bounded against a publisher and a replay server that mean harm, by
// the limits of the options, and so is the time that live messages wait for a
// replay. Of an answer no more than 4 MiB and three times MaxMessage wait; with
// CURVE, where the server has the publisher's key, 256 MiB: what of a longer one comes
// while the reader is so far behind is asked for again.
//
// One goroutine at a time may use a Follower. All its work is done in Next;
// time between the calls counts against nobody.
type Follower struct {
	client   *Client
	replayer replayer
	tracker  *tracker
	// connections is how many handshakes the tracker knows of.
	connections int
}

// Follow begins to receive. It returns ErrEndpoint for endpoints that cannot be
// right and ErrOption for numbers and files that cannot, before it opens anything, and
// waits for nobody.
func Follow(o FollowerOptions) (*Follower, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.MaxHeld = cmp.Or(o.MaxHeld, DefaultMaxHeld)
	o.MaxHeldBytes = cmp.Or(o.MaxHeldBytes, DefaultMaxHeldBytes)
	o.ReplayAttempts = cmp.Or(o.ReplayAttempts, DefaultReplayAttempts)
	o.ReplayTimeout = cmp.Or(o.ReplayTimeout, DefaultReplayTimeout)
	var server source
	if o.Replay != "" {
		var err error
		if server, err = checkEndpoint("replay", o.Replay); err != nil {
			return nil, err
		}
		if sameEndpoint(o.Replay, o.Client.Endpoint) {
			return nil, &Error{"replay", ErrEndpoint,
				fmt.Sprintf("%q: is the endpoint of what is live", o.Replay)}
		}
	}
	client, err := Connect(o.Client)
	if err != nil {
		return nil, err
	}
	l := limits{messages: o.MaxHeld, bytes: o.MaxHeldBytes, attempts: o.ReplayAttempts,
		timeout: o.ReplayTimeout, settle: settleTime, answer: maxAnswer}
	server.limit, server.curve = client.source.limit, client.curve
	now := time.Now()
	f := &Follower{
		client:   client,
		replayer: replayer{source: server, wake: client.inbox.wake},
		tracker:  newTracker(l, o.Client.Topic, o.Replay != "", now),
	}
	// What keeps the first request from being made is an error here, not later.
	if err := f.request(now); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Next returns what comes next, or ErrTimeout if there is nothing for that long.
// ErrFrames tells of a live message of another shape, which is dropped; the
// follower stays usable after both. ErrProtocol says that the publisher has been
// given up, see Client.Receive. What a replay server sends makes no errors;
// Stats has them.
func (f *Follower) Next(wait time.Duration) (Item, error) {
	if f.client.closed() {
		return Item{}, &Error{"receive", ErrClosed, ""}
	}
	if item, ok := f.tracker.next(); ok {
		return item, nil
	}
	now := time.Now()
	end := now.Add(wait)
	// Time that is spent here counts for the request under way.
	spend := func() {
		before := now
		now = time.Now()
		f.tracker.waited(now, now.Sub(before))
	}
	defer spend()
	for {
		if err := f.request(now); err != nil {
			return Item{}, err
		}
		progress, err := f.read(now)
		if err != nil {
			return Item{}, err
		}
		if item, ok := f.tracker.next(); ok {
			return item, nil
		}
		spend()
		// A flood that makes no items must not keep the caller here.
		left := end.Sub(now)
		if left <= 0 {
			// What is still to come may come from the replay server.
			err := f.client.idle()
			if !f.tracker.busy() || errors.Is(err, ErrRefused) && f.connections == 0 {
				return Item{}, err
			}
			return Item{}, &Error{"receive", ErrTimeout, ""}
		}
		if !progress {
			f.client.wait(f.tracker.wake(now, left))
			spend()
		}
	}
}

// request makes the request that is due, and ends one that is over. Its answer
// is also about what has come live by then, so that is taken in first.
func (f *Follower) request(now time.Time) error {
	if f.tracker.request == nil {
		if err := f.replayer.drop(); err != nil {
			return &Error{"replay", err, ""}
		}
	}
	for range drainMost {
		if !f.tracker.due || f.tracker.request != nil {
			break
		}
		if progress, err := f.readLive(now); err != nil || !progress {
			if err != nil {
				return err
			}
			break
		}
	}
	start, ok := f.tracker.wants(now)
	if !ok {
		return nil
	}
	return f.replayer.ask(start)
}

// readLive takes in one live message, if it is there, and what has happened to
// the connection.
func (f *Follower) readLive(now time.Time) (progress bool, err error) {
	m, err := f.client.poll()
	// What happened before the message came is known before it is looked at.
	f.client.watch()
	if f.connections != f.client.handshakes {
		f.tracker.connected(now, f.client.handshakes > 1)
		f.connections = f.client.handshakes
		progress = true
	}
	switch {
	case err != nil:
		return progress, err
	case m != nil && m.Seq == wire.EndSeq && len(m.Payload) > 0:
		return progress, &Error{"receive", ErrFrames,
			fmt.Sprintf("batch %d: the number is the end mark of replays", m.Seq)}
	case m != nil:
		f.tracker.live(m, f.client.stale(m))
		progress = true
	}
	return progress, nil
}

// read takes in one live message and one of a replay, if they are there.
func (f *Follower) read(now time.Time) (progress bool, err error) {
	if progress, err = f.readLive(now); err != nil {
		return progress, err
	}
	if f.tracker.request == nil {
		return progress, nil
	}
	m, err := f.replayer.read()
	switch {
	case err != nil:
		f.tracker.failed(now, err.Error())
	case m == nil:
		return progress, nil
	case m.Seq == wire.EndSeq:
		f.tracker.end(now)
	default:
		f.tracker.answer(now, m)
	}
	return true, nil
}

// Busy reports that a replay is being read or has been asked for, or that
// messages wait to be handed out: what Next has returned is not yet all that the
// publisher has sent.
func (f *Follower) Busy() bool { return f.tracker.busy() }

// Lost is that of Client.
func (f *Follower) Lost() bool { return f.client.Lost() }

// Stats returns what has been done so far.
func (f *Follower) Stats() FollowerStats {
	s := f.tracker.stats
	s.Overflows += f.client.dropped
	return s
}

// Close ends the connections. A second call does nothing.
func (f *Follower) Close() error {
	err := f.replayer.drop()
	return errors.Join(err, f.client.Close())
}
