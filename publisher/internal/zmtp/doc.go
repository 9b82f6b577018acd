// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package zmtp is the side of ZMTP 3.0 (https://rfc.zeromq.org/spec/23) that
// connects, with the mechanism NULL: what a subscriber needs to receive from
// peers that it does not trust. What it holds in memory is bounded, by what has
// arrived and never by what a peer has announced, and nothing that a peer sends
// does more than end the connection.
//
// The package does not connect, connect again or queue: that is its user's.
package zmtp
