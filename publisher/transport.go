// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"time"
)

// transport is what the owner goroutine sends through. All calls are made by
// that goroutine.
type transport interface {
	// open binds. It returns the endpoint in the form in which it was given,
	// with the real port, and whether other machines can reach it. A failed
	// open leaves nothing behind.
	open(ctx context.Context) (bound string, exposed bool, err error)
	// send hands over one message and never waits. The slices are the caller's
	// again when it returns.
	send(seq, payload []byte) error
	// subscriptions takes in what peers have asked for, a bounded number of
	// messages, and returns how many peers want the topic and whether messages
	// may be left. It never waits.
	subscriptions() (n int, more bool)
	// close gives what has been sent up to linger to leave, then frees the
	// endpoint.
	close(linger time.Duration)
	// wantsPayload says whether batches need to be encoded at all.
	wantsPayload() bool
}

// nullTransport discards.
type nullTransport struct{}

func (nullTransport) open(context.Context) (string, bool, error) { return "", false, nil }
func (nullTransport) send([]byte, []byte) error                  { return nil }
func (nullTransport) subscriptions() (int, bool)                 { return 0, false }
func (nullTransport) close(time.Duration)                        {}
func (nullTransport) wantsPayload() bool                         { return false }
