// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"time"

	"github.com/kvcast/kvcast/bindings"
)

// ResidentBlocks is the number of reusable blocks of an attached stream's cache:
// those announced, those that are still to be, and those of which nothing is told
// because they are multimodal.
func (s Stats) ResidentBlocks() uint64 {
	return s.Sink.AnnouncedBlocks + s.Sink.PendingBlocks + s.Sink.SuppressedBlocks
}

// State is where a publisher is in its life.
type State string

// The states, in order. A failed Start leads back to StateNew.
const (
	StateNew      State = "new"
	StateStarting State = "starting"
	StateRunning  State = "running"
	StateClosing  State = "closing"
	StateClosed   State = "closed"
)

// Stats is a snapshot of a publisher's counters, taken at one instant. At each
// instant
//
//	NextSeq == FirstSeq + EnqueuedBatches + QueueFullDrops + BurntNumbers,
//
// and when nothing is under way
//
//	EnqueuedBatches == PublishedBatches + SendErrorDrops.
//
// Every batch counts, the clears of start and end and empty ones among them. All counters
// begin at 0 in each life.
type Stats struct {
	State State
	// Epoch is a random number that names this life; it is never on the wire.
	Epoch uint64
	// FirstSeq is the number of the first batch, NextSeq that of the next one.
	FirstSeq, NextSeq uint64

	// EnqueuedBatches and EnqueuedEvents have got a number and, with Publish, a
	// place in the queue.
	EnqueuedBatches, EnqueuedEvents uint64
	// PublishedBatches, their events and the bytes of their payloads have been
	// handed to the socket without an error. A null publisher counts no bytes.
	PublishedBatches, PublishedEvents, PublishedBytes uint64
	// QueueFullDrops counts batches of Publish that found no room,
	// SendErrorDrops batches that could not be encoded or sent, or that Close
	// gave up on when its time was over. DroppedBatches is the sum.
	QueueFullDrops, SendErrorDrops, DroppedBatches uint64
	// InvalidEvents were not sent because they break an invariant of the wire
	// contract. For each batch that lost events so, one of BurntNumbers makes
	// the loss visible.
	InvalidEvents, BurntNumbers uint64
	// MultimodalBlocksSuppressed counts the blocks that the publisher itself did
	// not tell of; a stream that suppresses them counts its own.
	MultimodalBlocksSuppressed uint64
	// SourceErrors counts failed drains of an attached source.
	SourceErrors uint64

	// ReplayRequests counts well-formed requests for earlier batches,
	// ReplayMalformed the others, which get no answer. ReplayTruncated counts the
	// replays that could not begin where they should have, ReplayAborted the
	// requests that did not get their answer to the end (the peer went, was too
	// slow or asked again, or the publisher closed), and ReplayBatches the
	// batches that replays have handed to the socket, end marks not included.
	ReplayRequests, ReplayMalformed, ReplayTruncated, ReplayAborted, ReplayBatches uint64
	// Snapshots counts the snapshots that were made for truncated replays, each for
	// all who asked meanwhile, SnapshotErrors those that could not be made, and
	// Resyncs how often all announced blocks were sent anew (Resync, on_loss,
	// resync_interval).
	Snapshots, SnapshotErrors, Resyncs uint64
	// RingBatches and RingBytes are what is kept for replays, a contiguous run of
	// batches that ends at the newest, and the bytes of their payloads.
	RingBatches int
	RingBytes   int64

	// QueueDepth and QueueBytes are what waits in the queue of Publish: batches
	// and their estimated encoded size.
	QueueDepth int
	QueueBytes int64
	// PendingBlocks is how many blocks of the attached source were waiting to
	// be announced when it was last drained.
	PendingBlocks uint64
	// Subscriptions is the number of connections with at least one subscription
	// that matches the topic, as of at most some tens of milliseconds ago. For
	// inproc, where there are no connections, it is the number of subscriptions.
	Subscriptions int
	// DrainLatency is how long it took to take batches with events from an
	// attached source, SendLatency how long to encode one and hand it to the
	// socket, which includes keeping it for replays.
	DrainLatency, SendLatency Latency
	// Sink is what an attached stream counts, as of now or, once it is closed, as
	// of the last call of Stats; all 0 without one.
	Sink bindings.StreamStats
	// RefusedPeers counts the connections that were turned away with CURVE because
	// their key is not on the list. Those with another publisher's key, or none, are
	// ended by ZeroMQ before that.
	RefusedPeers uint64
	// LastSendTime is when a batch was last handed to the socket; zero if none
	// was.
	LastSendTime time.Time
}
