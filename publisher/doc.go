// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package publisher sends an allocator's events to subscribers over ZeroMQ.
//
// A [Publisher] has one of two sources. An attached [Source], normally a
// *bindings.Stream, is drained by the publisher's own goroutine: the scheduler
// that records the events never waits for it. Without a source a host hands
// its own events to [Publisher.Publish], which puts them into a bounded queue
// and never blocks either.
//
// bindings.Stream.Flush, at the end of a scheduler's step, only wakes the
// publisher; [Publisher.Flush] waits until everything has been handed to the
// socket. Close the publisher first, then the manager and the stream.
//
// What travels: messages of exactly three frames, topic, sequence number (8
// bytes, big-endian) and msgpack payload [ts, events, rank]. Sequence numbers
// start at 0 in every life of a publisher (or at a time, Options.FirstSeq) and
// grow by one per batch. A number
// is taken before the batch is encoded or queued, so whatever is lost later is
// a gap that every subscriber can see. Batch 0 is one AllBlocksCleared alone,
// and so is the last batch of an orderly end. A second after the last batch an
// empty one follows, so that a loss before a silence shows (Options.TailMark).
//
// Options has every key of the wire contract; [Config] reads them from a file,
// [Options.ApplyProfile] sets those that one reader wants. Events are split,
// brought into the chosen form (multimodal items, LoRA names, tokens) and kept
// apart from those that readers may stumble over before they are numbered.
//
// One goroutine, started by [Publisher.Start] and ended by [Publisher.Close],
// owns the socket; it creates, uses and closes it. The socket is an XPUB, which
// is a PUB on the wire and reports the subscriptions it receives, and it never
// blocks: a subscriber that does not keep up loses messages once its queue of
// Options.HWM messages is full, without a sign at the sender. The gap in the
// numbers is the evidence.
//
// With Options.ReplayEndpoint the newest batches are kept, as they were sent, and
// whoever missed some asks for them: a ROUTER takes the number of the first batch
// wanted (8 bytes, big-endian, behind an optional empty frame) and answers with
// all batches from there to the newest, then with an end mark, number 2^64-1
// (signed -1) and no payload. The numbers of an answer are contiguous and end at
// the newest batch as of its beginning; later ones come live, and one may come
// both ways. If the first is above the one asked for, the history is cut. A batch
// is kept before it is sent live, so also one that could not be sent; a number
// that was lost before ends what can be replayed.
//
// Replays have a goroutine and a socket of their own, which live batches never
// wait for. At most 16 run at once, one for each identity, and take turns; up to
// 1024 more requests wait, one for each identity, where a newer one takes the place
// of an older one. A peer that takes nothing for 30 s, one that has gone, and one
// whose identity comes back over another connection lose their answer.
//
// Peers are not trusted. ZeroMQ keeps in memory whatever a peer subscribes to,
// so a TCP connection that has sent us more than 1 MiB, each message taken as 64
// bytes more than it is long, is cut off, and so is one that floods us faster
// than ZeroMQ can take it in; both are warned about (on Linux; elsewhere and for
// ipc, whose peers the rights of its path choose, nobody is). How many
// connections there are is limited by the descriptors of the process only.
//
// The package does not log. Options.Warn receives what an operator should see.
package publisher
