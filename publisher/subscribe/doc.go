// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package subscribe is the receiving side of a KV-cache event stream: a
// Follower that hands out a publisher's batches in exact order, made good by
// replays, a Client for what is live alone, a Mirror that holds what is reusable
// over there and tells how much of a prompt is (TokenMirror: by its tokens), and
// a Verifier that checks the stream against the wire contract.
//
// Mirror and Verifier are plain values without sockets or goroutines; they
// take decoded events from any source. All are bounded against a publisher and
// a replay server that mean harm: the size of a frame, the messages that wait and
// their bytes, the time that they wait, the number of blocks, the number of places and
// the length of a hash are limited, and no peer can end the process. It takes ZMTP 3,
// as ZeroMQ 4 and newer speak it. Only with CURVE are connections ZeroMQ's, which does
// not bound the frames of a message; there the peer has the publisher's key.
//
// None of the types may be used by several goroutines at once.
package subscribe
