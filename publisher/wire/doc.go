// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package wire turns events into message payloads and back.
//
// A payload is the msgpack array [ts, events, rank]. Each event is a map that
// begins with the key "type" and then has the keys of its type in a fixed
// order; for older readers it can be an array in which the place stands for the
// key ([Encoding]). Numbers such as I1 are those of the wire contract; [Checker] says what
// they mean.
//
// # Writing
//
// [Encoder] is the hot path of a publisher that is attached to an allocator:
// it appends to a reused buffer, makes no allocation and takes about 27 ns per
// block of 16 tokens at 8 blocks per event, in every encoding. Integer hashes take 9 bytes each unless
// [Config].MinimalHashes is set. [EncodeStruct] produces the same bytes with a
// general msgpack library, for events that a host publishes itself, and is what
// the tests compare the encoder with. Both check types only; [Checker] checks
// the invariants that a publisher answers for, and, made by [NewChecker], that
// the chosen encoding has a place for all that is set. [Reduce] makes a 64-bit hash from
// a block key.
//
// # Reading
//
// [Decoder] reads what any engine sends: the map form with keys in any order,
// the array forms from 5 elements upwards, every msgpack header and integer
// width, bytes hashes and string tokens. What is wrong is reported on three
// levels, so that one bad event does not take its neighbours with it: an error
// refuses the payload, [Event].Err marks one event that cannot be understood,
// and a [Remark] notes what was read although it does not conform.
//
// Input from the network is bounded by [Limits]. Every size that a header
// claims is checked against the bytes that are left before memory is taken for
// it, nesting is bounded, nothing recurses, and what a batch takes is counted
// before it is taken: in all at most 16 bytes for each byte of the payload and
// some 6 MiB, and never more than a third above Limits.MaxMemory. [Check] does the structural part alone, for use in
// front of another msgpack library.
//
// # Frames
//
// A live message has three frames: topic, sequence number ([AppendSeq]) and
// payload. [ParseMessage] takes it apart; [EndSeq] marks the end of a replay.
//
// # Errors
//
// Every error is an [*Error], which names the operation, the event, the key and
// the byte offset and wraps one sentinel for errors.Is.
//
// The package is pure Go and needs neither the allocator nor ZeroMQ.
package wire
