// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package subscribe is the receiving side of a KV-cache event stream: a Client
// that reads messages from a publisher, a Mirror that holds what is reusable
// over there, and a Verifier that checks the stream against the wire contract.
//
// Mirror and Verifier are plain values without sockets or goroutines; they
// take decoded events from any source. All three are bounded against a
// publisher that means harm: the size of a message, the number of blocks and
// the number of places are limited.
//
// None of the types may be used by several goroutines at once.
package subscribe
