// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"
	"testing"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// replayOptions are localOptions with a replay endpoint.
func replayOptions(t testing.TB) Options {
	o := localOptions(t)
	o.ReplayEndpoint = "tcp://127.0.0.1:0"
	return o
}

// replayClient is a DEALER or REQ socket, in a context of its own unless one is
// given.
type replayClient struct {
	t      testing.TB
	ctx    *zmq.Context
	own    bool
	socket *zmq.Socket
}

func newReplayClient(t testing.TB, ctx *zmq.Context, kind zmq.Type, endpoint, identity string) *replayClient {
	t.Helper()
	c := &replayClient{t: t, ctx: ctx, own: ctx == nil}
	var err error
	if c.own {
		if c.ctx, err = zmq.NewContext(); err != nil {
			t.Fatal(err)
		}
	}
	if c.socket, err = c.ctx.NewSocket(kind); err != nil {
		t.Fatal(err)
	}
	c.socket.SetLinger(0)
	c.socket.SetRcvtimeo(patience)
	// What it has not read stays with the publisher.
	c.socket.SetRcvhwm(1)
	c.socket.SetRcvbuf(64 << 10)
	if identity != "" {
		c.socket.SetIdentity(identity)
	}
	t.Cleanup(c.close)
	if err := c.socket.Connect(endpoint); err != nil {
		t.Fatal(err)
	}
	return c
}

// newDealer asks over a connection of its own.
func newDealer(t testing.TB, endpoint string) *replayClient {
	t.Helper()
	return newReplayClient(t, nil, zmq.DEALER, endpoint, "")
}

func (c *replayClient) close() {
	if c.socket == nil {
		return
	}
	c.socket.Close()
	c.socket = nil
	if c.own {
		c.ctx.Term()
	}
}

func (c *replayClient) send(frames ...any) {
	c.t.Helper()
	if _, err := c.socket.SendMessage(frames...); err != nil {
		c.t.Fatal(err)
	}
}

func seqFrame(seq uint64) []byte { return wire.AppendSeq(nil, seq) }

// ask sends a request as a DEALER does.
func (c *replayClient) ask(start uint64) {
	c.t.Helper()
	c.send("", seqFrame(start))
}

func (c *replayClient) receive() [][]byte {
	c.t.Helper()
	frames, err := c.socket.RecvMessageBytes(0)
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	return frames
}

// replayed is one message of an answer, without the delimiter.
type replayed struct {
	topic   string
	seq     uint64
	payload string
}

// next receives one message of the topic dialect.
func (c *replayClient) next() replayed {
	c.t.Helper()
	f := c.receive()
	if len(f) != 4 || len(f[0]) != 0 || len(f[2]) != 8 {
		c.t.Fatalf("frames %q", f)
	}
	return replayed{string(f[1]), binary.BigEndian.Uint64(f[2]), string(f[3])}
}

// run receives an answer of the topic dialect up to its end.
func (c *replayClient) run() (list []replayed) {
	c.t.Helper()
	for {
		m := c.next()
		if m.seq == wire.EndSeq {
			if m.topic != "" || m.payload != "" {
				c.t.Fatalf("end with topic %q, payload %x", m.topic, m.payload)
			}
			return list
		}
		list = append(list, m)
	}
}

// numbers is run for its numbers.
func (c *replayClient) numbers() (list []uint64) {
	c.t.Helper()
	for _, m := range c.run() {
		list = append(list, m.seq)
	}
	return list
}

func wantNumbers(t testing.TB, got []uint64, from, to uint64) {
	t.Helper()
	if !equalNumbers(got, sequence(from, to)) {
		t.Errorf("%d batches (%s), want %d to %d", len(got), shorten(got), from, to)
	}
}

func shorten(list []uint64) string {
	if len(list) > 20 {
		return fmt.Sprintf("%v ... %v", list[:10], list[len(list)-10:])
	}
	return fmt.Sprint(list)
}

// publishBatches publishes n batches of one event each and waits until they
// have been sent.
func publishBatches(t testing.TB, p *Publisher, n int) {
	t.Helper()
	for i := range n {
		if err := p.Publish(event.Event(removal(uint64(i + 1)))); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(withPatience(t)); err != nil {
		t.Fatal(err)
	}
}

// rawReplayPeer speaks just enough ZMTP to send requests, and reads nothing.
type rawReplayPeer struct{ rawSubscriber }

func newRawReplayPeer(t testing.TB, endpoint, identity string) rawReplayPeer {
	t.Helper()
	return rawReplayPeer{newRaw(t, endpoint, "DEALER", "ROUTER", identity)}
}

// reset ends the connection as the end of a process does that has not read all.
func (r rawReplayPeer) reset() {
	r.SetLinger(0)
	r.Close()
}

func (r rawReplayPeer) ask(t testing.TB, start uint64) {
	t.Helper()
	r.send(t, string(seqFrame(start)))
}

// newSocketPair returns the descriptor of a socket and what closes it, which
// otherwise happens at the end of the test.
func newSocketPair(t testing.TB) (fd int, closePair func()) {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	closePair = sync.OnceFunc(func() {
		syscall.Close(pair[0])
		syscall.Close(pair[1])
	})
	t.Cleanup(closePair)
	return pair[0], closePair
}
