// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"bytes"
	"io"
	"testing"
	"time"
)

// closeWatched is a transport that tells when it is being closed.
type closeWatched struct {
	transport
	closing chan struct{}
}

func (c *closeWatched) close(linger time.Duration) {
	close(c.closing)
	c.transport.close(linger)
}

// A subscriber that is alive but slow, and begins to read only when Close has sent all
// that there was, gets everything, the last clear included: the linger is for that.
func TestLastClearReachesASlowSubscriber(t *testing.T) {
	o := localOptions(t)
	o.ShutdownTimeout = patience // and so the linger is as long
	p := mustNew(t, o)
	closing := make(chan struct{})
	inner := p.newTransport
	p.newTransport = func() transport { return &closeWatched{inner(), closing} }
	mustStart(t, p)
	s := newRawSubscriber(t, p.Endpoint())
	eventually(t, "subscription", func() bool { return p.Stats().Subscriptions == 1 })
	// More than what the kernel takes for a connection.
	const batches, blocks = 48, 40000
	sent := p.Stats().PublishedBytes
	for i := range batches {
		if err := p.Publish(chain(uint64(i+1)<<32, blocks)); err != nil {
			t.Fatal(err)
		}
	}
	mustFlush(t, p)
	sent = p.Stats().PublishedBytes - sent
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		p.Close()
	}()
	<-closing
	got, err := io.ReadAll(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes of payloads, %d received", sent, len(got))
	if uint64(len(got)) < sent || bytes.Count(got, []byte("AllBlocksCleared")) != 1 {
		t.Errorf("of %d bytes and a clear %d bytes came, with %d clears", sent, len(got),
			bytes.Count(got, []byte("AllBlocksCleared")))
	}
	<-closed
}
