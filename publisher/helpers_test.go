// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
	"github.com/kvcast/kvcast/tests/endcheck"
)

// patience is the deadline of what must happen and normally takes
// milliseconds; machines may be busy.
const patience = 20 * time.Second

// No goroutine and no native handle may outlive the tests.
func TestMain(m *testing.M) { os.Exit(endcheck.Run(m)) }

func withPatience(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition that no channel announces.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// localOptions are defaults on a free loopback port, with a failing test for
// each warning.
func localOptions(t testing.TB) Options {
	o := DefaultOptions()
	o.Endpoint = "tcp://127.0.0.1:0"
	// Tests count batches, however long they take.
	o.TailMark = false
	o.Warn = func(m string) { t.Errorf("warning: %s", m) }
	return o
}

func mustNew(t testing.TB, o Options) *Publisher {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func mustStart(t testing.TB, p *Publisher) {
	t.Helper()
	if err := p.Start(withPatience(t)); err != nil {
		t.Fatal(err)
	}
}

// checkBalance checks what Stats promises; idle adds what holds when nothing
// is under way.
func checkBalance(t testing.TB, s Stats, idle bool) {
	t.Helper()
	if s.NextSeq != s.FirstSeq+s.EnqueuedBatches+s.QueueFullDrops+s.BurntNumbers {
		t.Errorf("next_seq != enqueued + queue_full_drops + burnt: %+v", s)
	}
	if s.DroppedBatches != s.QueueFullDrops+s.SendErrorDrops {
		t.Errorf("dropped_batches is not the sum: %+v", s)
	}
	if idle && s.EnqueuedBatches != s.PublishedBatches+s.SendErrorDrops {
		t.Errorf("idle, and enqueued != published + send_error_drops: %+v", s)
	}
}

// message is a received batch.
type message struct {
	topic string
	seq   uint64
	batch *wire.Batch
}

// subscriber is a SUB socket, in a context of its own unless one is given.
type subscriber struct {
	t      testing.TB
	ctx    *zmq.Context
	own    bool
	socket *zmq.Socket
}

func newSubscriber(t testing.TB, ctx *zmq.Context) *subscriber {
	t.Helper()
	s := &subscriber{t: t, ctx: ctx, own: ctx == nil}
	var err error
	if s.own {
		if s.ctx, err = zmq.NewContext(); err != nil {
			t.Fatal(err)
		}
	}
	if s.socket, err = s.ctx.NewSocket(zmq.SUB); err != nil {
		t.Fatal(err)
	}
	s.socket.SetLinger(0)
	s.socket.SetRcvhwm(0)
	s.socket.SetRcvtimeo(patience)
	t.Cleanup(s.close)
	return s
}

func (s *subscriber) close() {
	if s.socket == nil {
		return
	}
	s.socket.Close()
	s.socket = nil
	if s.own {
		s.ctx.Term()
	}
}

func (s *subscriber) connect(endpoint string, prefixes ...string) *subscriber {
	s.t.Helper()
	for _, p := range prefixes {
		if err := s.socket.SetSubscribe(p); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := s.socket.Connect(endpoint); err != nil {
		s.t.Fatal(err)
	}
	return s
}

// subscribe makes a subscriber of a running publisher and waits until its
// subscription has arrived there.
func subscribe(t testing.TB, p *Publisher) *subscriber {
	t.Helper()
	before := p.Stats().Subscriptions
	s := newSubscriber(t, nil).connect(p.Endpoint(), p.Topic())
	eventually(t, "subscription", func() bool { return p.Stats().Subscriptions > before })
	return s
}

// nextFrames receives one live message.
func (s *subscriber) nextFrames() (topic, seq, payload []byte) {
	s.t.Helper()
	frames, err := s.socket.RecvMessageBytes(0)
	if err != nil {
		s.t.Fatalf("receive: %v", err)
	}
	if len(frames) != wire.LiveFrames {
		s.t.Fatalf("%d frames", len(frames))
	}
	return frames[0], frames[1], frames[2]
}

// next receives one message and checks its form.
func (s *subscriber) next() message {
	s.t.Helper()
	topic, seq, payload := s.nextFrames()
	frames := [][]byte{topic, seq, payload}
	m, err := wire.ParseMessage(frames)
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := wire.Decode(m.Payload, wire.Limits{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range b.Remarks {
		s.t.Errorf("batch %d: %v", m.Seq, r)
	}
	return message{topic: string(m.Topic), seq: m.Seq, batch: b}
}

// nextClear receives a message that must be a clear alone with this number.
func (s *subscriber) nextClear(seq uint64) {
	s.t.Helper()
	m := s.next()
	if m.seq != seq || !isClear(m) {
		s.t.Fatalf("batch %d %+v, want a clear with number %d", m.seq, m.batch.Events, seq)
	}
}

func isClear(m message) bool {
	return len(m.batch.Events) == 1 && m.batch.Events[0].Kind == wire.KindCleared
}

// fakeSource plays a stream: what is recorded comes out in order.
type fakeSource struct {
	form event.Form
	wake chan struct{}

	mu      sync.Mutex
	events  []event.Event
	pending []event.Event // deferred; heal one per empty drain
	sealed  bool
	err     error // returned once
	drains  int
}

func newFakeSource() *fakeSource { return &fakeSource{wake: make(chan struct{}, 1)} }

func (f *fakeSource) Form() event.Form      { return f.form }
func (f *fakeSource) Wake() <-chan struct{} { return f.wake }

func (f *fakeSource) record(events ...event.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, events...)
}

func (f *fakeSource) flush() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *fakeSource) Drain(maxEvents, maxBlocks int) (*bindings.Batch, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drains++
	if err := f.err; err != nil {
		f.err = nil
		return nil, err
	}
	n, blocks := 0, 0
	for _, ev := range f.events {
		_, clear := ev.(*event.AllBlocksCleared)
		if n > 0 && (clear || maxEvents > 0 && n >= maxEvents ||
			maxBlocks > 0 && blocks+blockCount(ev) > maxBlocks) {
			break
		}
		n++
		blocks += blockCount(ev)
		if clear {
			break
		}
	}
	b := &bindings.Batch{Events: f.events[:n:n], Blocks: blocks}
	f.events = f.events[n:]
	if n == 0 {
		if len(f.pending) > 0 {
			f.events = append(f.events, f.pending[0])
			f.pending = f.pending[1:]
		} else if f.sealed {
			return nil, io.EOF
		}
	}
	b.PendingBlocks = uint64(len(f.pending))
	b.RemainingBytes = uint64(100 * len(f.events))
	return b, nil
}

// chain is a stored event of n blocks of one token, with hashes base, base+1...
func chain(base uint64, n int) *event.BlockStored {
	e := &event.BlockStored{BlockSize: 1, Medium: "GPU", HasMedium: true}
	for i := range n {
		e.Hashes = append(e.Hashes, base+uint64(i))
		e.Tokens = append(e.Tokens, uint32(base)+uint32(i))
	}
	return e
}

func removal(hashes ...uint64) *event.BlockRemoved {
	return &event.BlockRemoved{Hashes: hashes, Medium: "GPU", HasMedium: true}
}

// fakeTransport records what is sent and can fail or hold up.
type fakeTransport struct {
	mu    sync.Mutex
	sent  []uint64
	fail  error
	gate  chan struct{} // when not nil, each send takes one value
	inUse chan struct{} // receives a value when a send has begun
}

func (f *fakeTransport) open(context.Context) (string, bool, error) { return "fake", false, nil }
func (f *fakeTransport) subscriptions() (int, bool)                 { return 0, false }
func (f *fakeTransport) close(time.Duration)                        {}
func (f *fakeTransport) wantsPayload() bool                         { return true }

func (f *fakeTransport) send(seq, payload []byte) error {
	if f.gate != nil {
		select {
		case f.inUse <- struct{}{}:
		default:
		}
		<-f.gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	f.sent = append(f.sent, binary.BigEndian.Uint64(seq))
	return nil
}

func (f *fakeTransport) setFail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

func (f *fakeTransport) numbers() []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]uint64(nil), f.sent...)
}

// rawSubscriber speaks just enough ZMTP to be connected, and then does only
// what the test makes it do: it never reads or answers by itself.
type rawSubscriber struct{ *net.TCPConn }

// newRawSubscriber has subscribed to everything.
func newRawSubscriber(t testing.TB, endpoint string) rawSubscriber {
	t.Helper()
	r := newRawPeer(t, endpoint)
	r.send(t, "\x01")
	return r
}

// send sends short messages of one frame.
func (r rawSubscriber) send(t testing.TB, messages ...string) {
	t.Helper()
	if _, err := r.Write(rawFrames(messages...)); err != nil {
		t.Fatal(err)
	}
}

func rawFrames(messages ...string) (b []byte) {
	for _, m := range messages {
		b = append(append(b, 0, byte(len(m))), m...)
	}
	return b
}

// newRawPeer has subscribed to nothing.
func newRawPeer(t testing.TB, endpoint string) rawSubscriber {
	t.Helper()
	return newRaw(t, endpoint, "SUB", "XPUB", "")
}

// newRaw speaks for a socket of one kind to one of another. Only a DEALER has an
// identity.
func newRaw(t testing.TB, endpoint, own, other, identity string) rawSubscriber {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00" + string(rune(len(own))) + own
	theirs := 2 + 6 + 12 + 4 + len(other)
	if property := "\x08Identity\x00\x00\x00"; own == "DEALER" {
		ready += property + string(rune(len(identity))) + identity
		theirs += len(property) + 1
	}
	// One step at a time: libzmq 4.3.4 hangs up on a peer that sends all at once.
	for _, step := range []struct {
		send   string
		expect int
	}{
		{string(greeting), len(greeting)},
		{"\x04" + string(rune(len(ready))) + ready, theirs},
	} {
		if _, err := io.WriteString(conn, step.send); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, step.expect)); err != nil {
			t.Fatalf("handshake: %v", err)
		}
	}
	return rawSubscriber{conn.(*net.TCPConn)}
}

// waitCut reads until the publisher closes the connection.
func (r rawSubscriber) waitCut(t testing.TB) {
	t.Helper()
	_, err := io.Copy(io.Discard, r)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("connection was not cut: %v", err)
	}
}
