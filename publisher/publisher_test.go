// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// startWaiting starts a publisher that waits for n subscriptions and returns
// once it is bound; the channel delivers what Start returns.
func startWaiting(t testing.TB, ctx context.Context, o Options, n int) (*Publisher, string, <-chan error) {
	t.Helper()
	o.WaitSubscribers = n
	bound := make(chan string, 1)
	o.OnBound = func(endpoint string) { bound <- endpoint }
	p := mustNew(t, o)
	result := make(chan error, 1)
	go func() { result <- p.Start(ctx) }()
	select {
	case endpoint := <-bound:
		return p, endpoint, result
	case err := <-result:
		t.Fatalf("Start: %v", err)
	case <-time.After(patience):
		t.Fatal("not bound")
	}
	return nil, "", nil
}

// Whoever wait_subscribers waits for sees every batch from number 0 on, over
// all transports, and the last clear.
func TestFirstAndLastBatch(t *testing.T) {
	shared, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shared.Term() })
	for name, c := range map[string]struct {
		endpoint, prefix string
		ctx              *zmq.Context
	}{
		"tcp":   {"tcp://127.0.0.1:0", "tcp://127.0.0.1:", nil},
		"star":  {"tcp://127.0.0.1:*", "tcp://127.0.0.1:", nil},
		"name":  {"tcp://localhost:0", "tcp://localhost:", nil},
		"ipc":   {"ipc://" + filepath.Join(t.TempDir(), "kv"), "ipc:///", nil},
		"ipc *": {"ipc://*", "ipc://", nil},
		// On Linux a name without a file.
		"ipc @":  {"ipc://@kvcast-live-" + strconv.Itoa(os.Getpid()), "ipc://@kvcast-live-", nil},
		"inproc": {"inproc://kv", "inproc://kv_dp1", shared},
	} {
		t.Run(name, func(t *testing.T) {
			o := localOptions(t)
			o.Endpoint, o.Context = c.endpoint, c.ctx
			o.Topic, o.Rank, o.Ranks = "kv-{rank}", 1, 2
			if name == "ipc *" {
				o.Rank, o.Ranks = 0, 1 // other ranks have a suffix, and a name
			}
			p, endpoint, result := startWaiting(t, withPatience(t), o, 2)
			if !strings.HasPrefix(endpoint, c.prefix) || p.Endpoint() != endpoint {
				t.Errorf("bound %q, Endpoint %q", endpoint, p.Endpoint())
			}
			if err := p.Publish(chain(1, 1)); !errors.Is(err, ErrNotStarted) {
				t.Errorf("Publish while starting: %v", err)
			}
			s1 := newSubscriber(t, c.ctx).connect(endpoint, "kv")
			// This one's subscription does not match the topic and must not count.
			newSubscriber(t, c.ctx).connect(endpoint, "other")
			select {
			case err := <-result:
				t.Fatalf("Start returned with one subscriber of two: %v", err)
			case <-time.After(30 * time.Millisecond): // gives a wrong count a chance to show
			}
			s2 := newSubscriber(t, c.ctx).connect(endpoint, "kv-")
			if err := <-result; err != nil {
				t.Fatal(err)
			}
			if n := p.Stats().Subscriptions; n != 2 {
				t.Errorf("%d subscriptions, want 2", n)
			}
			if err := p.Publish(chain(1, 3), removal(2)); err != nil {
				t.Fatal(err)
			}
			if err := p.Flush(withPatience(t)); err != nil {
				t.Fatal(err)
			}
			checkBalance(t, p.Stats(), true)
			p.Close()
			for _, s := range []*subscriber{s1, s2} {
				s.nextClear(0)
				m := s.next()
				if m.seq != 1 || len(m.batch.Events) != 2 || m.batch.Rank != uint64(o.Rank) ||
					m.topic != fmt.Sprintf("kv-%d", o.Rank) {
					t.Errorf("%+v %+v", m, m.batch)
				}
				if h := m.batch.Events[0].Hashes; len(h) != 3 || h[2] != wire.HashOf(3, event.Signed64) {
					t.Errorf("hashes %v", h)
				}
				s.nextClear(2)
			}
			got := p.Stats()
			checkBalance(t, got, true)
			if got.State != StateClosed || got.PublishedBatches != 3 || got.PublishedEvents != 4 || got.NextSeq != 3 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A subscriber that comes later starts in the middle; the count of
// subscriptions follows those who come and go, equal prefixes apart.
func TestSlowJoiner(t *testing.T) {
	o := localOptions(t)
	p := mustNew(t, o)
	mustStart(t, p)
	p.Publish(chain(1, 1))
	if err := p.Flush(withPatience(t)); err != nil {
		t.Fatal(err)
	}
	s1, s2, s3 := subscribe(t, p), subscribe(t, p), subscribe(t, p)
	if n := p.Stats().Subscriptions; n != 3 {
		t.Errorf("%d subscriptions, want 3", n)
	}
	p.Publish(removal(1))
	for _, s := range []*subscriber{s1, s2, s3} {
		if m := s.next(); m.seq != 2 {
			t.Errorf("first number %d, want 2", m.seq)
		}
	}
	s1.close()
	s2.socket.SetUnsubscribe("")
	eventually(t, "one subscription left", func() bool { return p.Stats().Subscriptions == 1 })
}

func TestStartIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	p, endpoint, result := startWaiting(t, ctx, localOptions(t), 1)
	joined := make(chan error, 1)
	go func() { joined <- p.Start(context.Background()) }()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("Start = %v", err)
	}
	// The second Start either joined the first attempt or began its own, which
	// Close ends.
	eventually(t, "port free", func() bool { return canListen(endpoint) || p.Stats().State == StateStarting })
	p.Close()
	if err := <-joined; !errors.Is(err, context.Canceled) && !errors.Is(err, ErrClosed) {
		t.Errorf("joined Start = %v", err)
	}
	if !canListen(endpoint) {
		t.Error("port is not free")
	}
}

func canListen(endpoint string) bool {
	l, err := net.Listen("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// A failed Start may be repeated.
func TestStartAgainAfterFailure(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := localOptions(t)
	o.Endpoint = "tcp://" + l.Addr().String()
	p := mustNew(t, o)
	var e *Error
	err = p.Start(withPatience(t))
	if !errors.Is(err, ErrAddressInUse) || !errors.As(err, &e) || e.Key != "endpoint" || e.Value != o.Endpoint {
		t.Fatalf("Start = %v", err)
	}
	if s := p.Stats(); s.State != StateNew || s.NextSeq != 0 || p.Endpoint() != "" {
		t.Errorf("after the failure: %+v", s)
	}
	l.Close()
	mustStart(t, p)
	if s := p.Stats(); s.State != StateRunning || s.NextSeq != 1 || p.Endpoint() != o.Endpoint {
		t.Errorf("after the success: %+v", s)
	}
}

func TestEndpointsThatCannotBeBound(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("keep me"), 0o600); err != nil {
		t.Fatal(err)
	}
	alive := localOptions(t)
	alive.Endpoint = "ipc://" + filepath.Join(dir, "alive")
	owner := mustNew(t, alive)
	mustStart(t, owner)
	for name, c := range map[string]struct {
		endpoint string
		want     error
	}{
		"living ipc":     {alive.Endpoint, ErrAddressInUse},
		"file":           {"ipc://" + file, ErrAddressInUse},
		"no directory":   {"ipc://" + filepath.Join(dir, "no", "kv"), ErrBind},
		"foreign IPv4":   {"tcp://192.0.2.1:0", ErrBind},
		"no such name":   {"tcp://no-such-host.invalid:0", ErrBind},
		"no such inproc": {"", nil}, // replaced below
	} {
		t.Run(name, func(t *testing.T) {
			o := localOptions(t)
			o.Warn = nil
			if o.Endpoint = c.endpoint; c.want == nil {
				ctx, err := zmq.NewContext()
				if err != nil {
					t.Fatal(err)
				}
				defer ctx.Term()
				o.Endpoint, o.Context, c.want = "inproc://taken", ctx, ErrAddressInUse
				first := mustNew(t, o)
				mustStart(t, first)
				defer first.Close()
			}
			p := mustNew(t, o)
			begin := time.Now()
			err := p.Start(withPatience(t))
			var e *Error
			if !errors.Is(err, c.want) || !errors.As(err, &e) || e.Key != "endpoint" || e.Value != o.Endpoint {
				t.Fatalf("Start = %v", err)
			}
			if o.Context != nil && time.Since(begin) < sharedRetry {
				t.Errorf("gave up after %v on a shared context", time.Since(begin))
			}
		})
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "keep me" {
		t.Errorf("the file is gone: %q, %v", b, err)
	}
	// The living publisher has not noticed.
	s := newSubscriber(t, nil).connect(owner.Endpoint(), "")
	eventually(t, "subscription", func() bool { return owner.Stats().Subscriptions == 1 })
	owner.Publish(removal(1))
	s.next()
}

// A socket file that a dead process left behind is no obstacle.
func TestStaleIPC(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	o := localOptions(t)
	o.Endpoint = "ipc://" + path
	mustStart(t, mustNew(t, o))
}

// On a shared context the port of a closed socket becomes free a moment later,
// and Start waits for that.
func TestSharedContextRetries(t *testing.T) {
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Term()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := localOptions(t)
	o.Context, o.Endpoint = ctx, "tcp://"+l.Addr().String()
	p := mustNew(t, o)
	go func() {
		eventually(t, "first try", func() bool { return p.Stats().State == StateStarting })
		time.Sleep(3 * sharedRetryStep)
		l.Close()
	}()
	mustStart(t, p)
	p.Close()
	// Not terminated with the publisher.
	if s, err := ctx.NewSocket(zmq.SUB); err != nil {
		t.Errorf("the shared context is gone: %v", err)
	} else {
		s.Close()
	}
}

func TestCloseCancelsStart(t *testing.T) {
	p, endpoint, result := startWaiting(t, context.Background(), localOptions(t), 1)
	begin := time.Now()
	p.Close()
	if took := time.Since(begin); took > DefaultOptions().ShutdownTimeout+closeGrace {
		t.Errorf("Close took %v", took)
	}
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("Start = %v", err)
	}
	if !canListen(endpoint) {
		t.Error("port is not free")
	}
}

// Without the clears nothing is sent that nobody published.
func TestNoClears(t *testing.T) {
	o := localOptions(t)
	o.ClearOnStart, o.ClearOnClose = false, false
	p, endpoint, result := startWaiting(t, withPatience(t), o, 1)
	s := newSubscriber(t, nil).connect(endpoint, "")
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	p.Publish(removal(7))
	p.Close()
	if m := s.next(); m.seq != 0 || m.batch.Events[0].Kind != wire.KindRemoved {
		t.Errorf("%+v", m.batch)
	}
	if n := p.Stats().NextSeq; n != 1 {
		t.Errorf("%d numbers used, want 1", n)
	}
}

// The port is free when Close returns, with a subscriber connected.
func TestRebind(t *testing.T) {
	o := localOptions(t)
	first := mustNew(t, o)
	mustStart(t, first)
	o.Endpoint = first.Endpoint()
	s := subscribe(t, first)
	first.Close()
	for i := range 50 {
		p := mustNew(t, o)
		if err := p.Start(withPatience(t)); err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		p.Publish(removal(uint64(i)))
		p.Close()
	}
	s.close()
}

// Nobody who has stopped reading can hold Close up, full queues or not. What
// counts is two Closes out of three: a machine that stands still for a while
// must not fail the test, a Close that takes too long must.
func TestCloseWithDeadSubscriber(t *testing.T) {
	for _, timeout := range []time.Duration{0, 300 * time.Millisecond, time.Second} {
		t.Run(timeout.String(), func(t *testing.T) {
			var within, beyond int
			for within < 2 && beyond < 2 {
				took := closeWithDeadSubscriber(t, timeout)
				t.Logf("Close took %v", took)
				if took <= timeout+closeGrace {
					within++
				} else {
					beyond++
				}
			}
			if beyond == 2 {
				t.Errorf("Close took more than %v twice", timeout+closeGrace)
			}
		})
	}
}

// closeWithDeadSubscriber returns how long a Close takes while a subscriber
// does not read, its queue is full and the source never becomes empty.
func closeWithDeadSubscriber(t *testing.T, timeout time.Duration) time.Duration {
	t.Helper()
	o := localOptions(t)
	o.Warn = nil
	o.ShutdownTimeout, o.HWM, o.ZMTPHeartbeat = timeout, 500, 0
	p := mustNew(t, o)
	src := newRecycled(8, 64, 16)
	src.left.Store(1 << 60)
	if err := p.Attach(src); err != nil {
		t.Fatal(err)
	}
	mustStart(t, p)
	dead := newRawSubscriber(t, p.Endpoint())
	dead.SetReadBuffer(1 << 12)
	defer dead.Close()
	eventually(t, "subscription", func() bool { return p.Stats().Subscriptions == 1 })
	// Up to the high-water mark these are more bytes than the buffers of the
	// kernel hold.
	sent := p.Stats().PublishedBatches
	eventually(t, "a full queue", func() bool {
		return p.Stats().PublishedBatches > sent+uint64(2*o.HWM)
	})
	begin := time.Now()
	p.Close()
	took := time.Since(begin)
	if !canListen(p.Endpoint()) {
		t.Error("port is not free")
	}
	checkBalance(t, p.Stats(), true)
	return took
}

// A subscriber that does not read neither delays nor loses another one's
// messages.
func TestDeadSubscriberDelaysNobody(t *testing.T) {
	o := localOptions(t)
	o.HWM, o.ZMTPHeartbeat, o.ShutdownTimeout = 10, 0, 0
	p := mustNew(t, o)
	mustStart(t, p)
	newRawSubscriber(t, p.Endpoint())
	eventually(t, "subscription", func() bool { return p.Stats().Subscriptions == 1 })
	s := subscribe(t, p)
	for i := range 300 { // 100 kB each
		if err := p.Publish(chain(uint64(i)<<32, 8192)); err != nil {
			t.Fatal(err)
		}
		if m := s.next(); m.seq != uint64(i+1) {
			t.Fatalf("number %d, want %d", m.seq, i+1)
		}
	}
}

// What a slow subscriber loses at the high-water mark is a gap in its numbers
// and no drop of ours; afterwards it gets everything again.
func TestSlowSubscriberSeesGap(t *testing.T) {
	o := localOptions(t)
	o.HWM = 2
	p := mustNew(t, o)
	mustStart(t, p)
	s := newSubscriber(t, nil)
	s.socket.SetRcvhwm(2)
	s.socket.SetRcvbuf(1 << 14)
	s.connect(p.Endpoint(), "")
	eventually(t, "subscription", func() bool { return p.Stats().Subscriptions == 1 })
	for i := range 400 { // 40 MB while it does not read
		if err := p.Publish(chain(uint64(i)<<32, 8192)); err != nil {
			t.Fatal(err)
		}
	}
	mustFlush(t, p)
	st := p.Stats()
	checkBalance(t, st, true)
	if st.DroppedBatches != 0 || st.PublishedBatches != 401 {
		t.Errorf("%+v", st)
	}
	got, last := 0, uint64(0)
	// A fresh batch now and then ends the wait for those that are lost; it may be lost
	// itself.
	next := func() message {
		t.Helper()
		readable := zmq.NewPoller()
		readable.Add(s.socket, zmq.POLLIN)
		for end := time.Now().Add(patience); ; {
			if err := p.Publish(removal(1)); err != nil {
				t.Fatal(err)
			}
			if list, err := readable.Poll(50 * time.Millisecond); err == nil && len(list) > 0 || time.Now().After(end) {
				return s.next()
			}
		}
	}
	for {
		m := next()
		if m.seq <= last {
			t.Fatalf("number %d after %d", m.seq, last)
		}
		last = m.seq
		if got++; last > 400 {
			break
		}
	}
	if got > 300 {
		t.Errorf("%d of 400 batches arrived: nothing was dropped", got)
	}
	mustFlush(t, p)
	eventually(t, "contiguous numbers again", func() bool {
		before := last
		last = next().seq
		return last == before+1
	})
}

// A peer that has frozen is cut off by the heartbeats, and one that sends more
// than a subscription can need at once.
func TestBadPeersAreCut(t *testing.T) {
	o := localOptions(t)
	o.ZMTPHeartbeat, o.ZMTPTimeout = 50*time.Millisecond, 100*time.Millisecond
	p := mustNew(t, o)
	mustStart(t, p)
	healthy := subscribe(t, p)
	newRawSubscriber(t, p.Endpoint()).waitCut(t)

	o.ZMTPHeartbeat = 0
	q := mustNew(t, o)
	mustStart(t, q)
	big := newRawSubscriber(t, q.Endpoint())
	eventually(t, "subscription", func() bool { return q.Stats().Subscriptions == 1 })
	frame := append([]byte{0x02, 0, 0, 0, 0, 0, 0, 0x10, 0x01, 1}, make([]byte, 4096)...) // 4097 bytes
	if _, err := big.Write(frame); err != nil {
		t.Fatal(err)
	}
	big.waitCut(t)
	eventually(t, "subscription gone", func() bool { return q.Stats().Subscriptions == 0 })

	// All the while the healthy one, which answers heartbeats, stayed.
	p.Publish(removal(1))
	healthy.next()
}

// Messages of peers that are no subscriptions change nothing.
func TestStrangeMessagesFromPeers(t *testing.T) {
	p := mustNew(t, localOptions(t))
	mustStart(t, p)
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Term()
	x, err := ctx.NewSocket(zmq.XSUB)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	x.SetLinger(0)
	if err := x.Connect(p.Endpoint()); err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"", "hello", "\x02", "\x00", "\x00nothing", "\x01"} {
		x.Send(m, 0)
	}
	eventually(t, "the one subscription", func() bool { return p.Stats().Subscriptions == 1 })
	if err := p.Publish(removal(1)); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(withPatience(t)); err != nil {
		t.Fatal(err)
	}
}

func TestExposedBindWarns(t *testing.T) {
	for endpoint, warn := range map[string]bool{
		"tcp://127.0.0.1:0": false,
		"tcp://localhost:0": false,
		"tcp://lo:0":        false,
		"tcp://127.0.0.2:0": false,
		"tcp://*:0":         true,
		"tcp://0.0.0.0:0":   true,
		"tcp://[::1]:0":     false,
		"tcp://[::]:0":      true,
	} {
		t.Run(endpoint, func(t *testing.T) {
			if strings.Contains(endpoint, "[") {
				l, err := net.Listen("tcp", "[::1]:0")
				if err != nil {
					t.Skipf("no IPv6 here: %v", err)
				}
				l.Close()
			}
			o := localOptions(t)
			o.Endpoint = endpoint
			var warnings []string
			o.Warn = func(m string) { warnings = append(warnings, m) }
			p := mustNew(t, o)
			mustStart(t, p)
			if want := strings.TrimSuffix(endpoint, "0"); !strings.HasPrefix(p.Endpoint(), want) ||
				strings.HasSuffix(p.Endpoint(), ":0") {
				t.Errorf("bound %s", p.Endpoint())
			}
			p.Close()
			if (len(warnings) == 1) != warn || len(warnings) > 1 {
				t.Errorf("warnings: %q", warnings)
			}
		})
	}
}

// Signals interrupt system calls all the time; the Go runtime's own preemption
// uses this very signal.
func TestSignalStorm(t *testing.T) {
	p, endpoint, result := startWaiting(t, withPatience(t), localOptions(t), 1)
	stop := make(chan struct{})
	var storm sync.WaitGroup
	storm.Add(1)
	go func() {
		defer storm.Done()
		for {
			select {
			case <-stop:
				return
			default:
				syscall.Kill(os.Getpid(), syscall.SIGURG)
				time.Sleep(20 * time.Microsecond)
			}
		}
	}()
	s := newSubscriber(t, nil).connect(endpoint, "")
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	const n = 3000
	for i := range n {
		if err := p.Publish(removal(uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	p.Close()
	close(stop)
	storm.Wait()
	s.nextClear(0)
	for i := range n {
		if m := s.next(); m.seq != uint64(i+1) {
			t.Fatalf("number %d, want %d", m.seq, i+1)
		}
	}
	s.nextClear(n + 1)
}

// k batches that find the queue full are a hole of exactly k numbers for the
// subscriber.
func TestQueueFullGap(t *testing.T) {
	o := localOptions(t)
	o.MaxQueueSize = 3
	var warnings atomic.Int64
	o.Warn = func(string) { warnings.Add(1) }
	gate := make(chan struct{}, 1000)
	inUse := make(chan struct{}, 1)
	p := mustNew(t, o)
	open := p.newTransport
	p.newTransport = func() transport { return gated{open(), gate, inUse} }
	gate <- struct{}{} // the first clear
	mustStart(t, p)
	s := subscribe(t, p)
	<-inUse

	// One batch in the hands of the owner, three in the queue, k without a place.
	if err := p.Publish(removal(1)); err != nil {
		t.Fatal(err)
	}
	<-inUse
	for i := range 3 {
		if err := p.Publish(removal(uint64(2 + i))); err != nil {
			t.Fatal(err)
		}
	}
	const k = 5
	for range k {
		if err := p.Publish(removal(99)); !errors.Is(err, ErrQueueFull) {
			t.Fatalf("Publish into a full queue: %v", err)
		}
	}
	st := p.Stats()
	checkBalance(t, st, false)
	if st.QueueFullDrops != k || st.QueueDepth != 3 || st.NextSeq != 5+k || st.QueueBytes == 0 {
		t.Errorf("%+v", st)
	}
	for range 100 {
		gate <- struct{}{}
	}
	if err := p.Flush(withPatience(t)); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(removal(6)); err != nil {
		t.Fatal(err)
	}
	var got []uint64
	for range 5 {
		got = append(got, s.next().seq)
	}
	if want := []uint64{1, 2, 3, 4, 5 + k}; !slices.Equal(got, want) {
		t.Errorf("numbers %v, want %v", got, want)
	}
	p.Close()
	st = p.Stats()
	checkBalance(t, st, true)
	if st.QueueDepth != 0 || st.QueueBytes != 0 || st.DroppedBatches != k {
		t.Errorf("%+v", st)
	}
	// At drops 1, 2 and 4.
	if warnings.Load() != 3 {
		t.Errorf("%d warnings, want 3", warnings.Load())
	}
}

// gated lets each send wait for a value.
type gated struct {
	transport
	gate, inUse chan struct{}
}

func (g gated) send(seq, payload []byte) error {
	select {
	case g.inUse <- struct{}{}:
	default:
	}
	<-g.gate
	return g.transport.send(seq, payload)
}

// The queue is bounded by size, too; a batch that alone is larger goes through
// an empty queue.
func TestQueueBytes(t *testing.T) {
	o := localOptions(t)
	o.Warn = nil
	o.MaxQueueBytes = 2000
	f := &fakeTransport{gate: make(chan struct{}, 100), inUse: make(chan struct{}, 1)}
	p := mustNew(t, o)
	p.newTransport = func() transport { return f }
	f.gate <- struct{}{}
	mustStart(t, p)
	<-f.inUse
	p.Publish(removal(1))
	<-f.inUse
	if err := p.Publish(chain(1, 1000)); err != nil {
		t.Errorf("large batch into an empty queue: %v", err)
	}
	if err := p.Publish(removal(2)); !errors.Is(err, ErrQueueFull) {
		t.Errorf("beyond the bytes: %v", err)
	}
	close(f.gate)
	if err := p.Flush(withPatience(t)); err != nil {
		t.Fatal(err)
	}
	p.Close()
	if got := f.numbers(); !slices.Equal(got, []uint64{0, 1, 2, 4}) {
		t.Errorf("sent %v", got)
	}
}

// Events that break an invariant are not sent; one number per batch tells.
func TestInvalidEvents(t *testing.T) {
	p := mustNew(t, localOptions(t))
	mustStart(t, p)
	s := subscribe(t, p)
	dup := chain(1, 3)
	dup.Hashes[2] = 1
	own := chain(1, 1)
	own.ParentHash, own.HasParent = 1, true
	short := chain(1, 3)
	short.Tokens = short.Tokens[:2]
	lora := chain(1, 1)
	lora.LoRAID, lora.HasLoRAID = 1<<63, true
	size := chain(1, 1)
	size.BlockSize, size.Tokens = 2, []uint32{1, 2}
	zero := chain(1, 1)
	zero.BlockSize, zero.Tokens = 0, nil
	text := chain(1, 1)
	text.LoRAName = "\xff"
	digest := &event.BlockRemoved{Digests: make([]event.Digest, 1)}
	if err := p.Publish(chain(100, 1)); err != nil { // fixes the block size at 1
		t.Fatal(err)
	}
	next := s.next().seq + 1
	for name, c := range map[string]struct {
		ev   event.Event
		want error
	}{
		"I1":       {dup, wire.ErrDuplicateHash},
		"I1 own":   {own, wire.ErrDuplicateHash},
		"I2":       {short, wire.ErrTokenCount},
		"I4":       {lora, wire.ErrLoRAID},
		"I6":       {size, wire.ErrBlockSize},
		"I6 zero":  {zero, wire.ErrBlockSize},
		"I9":       {text, wire.ErrUTF8},
		"form":     {digest, wire.ErrHashForm},
		"no hash":  {removal(), wire.ErrNoHashes},
		"nil":      {nil, wire.ErrEventType},
		"nil ptr":  {(*event.BlockStored)(nil), wire.ErrEventType},
		"nil ptr2": {(*event.AllBlocksCleared)(nil), wire.ErrEventType},
	} {
		before := p.Stats()
		err := p.Publish(removal(5), c.ev, c.ev, removal(6))
		if !errors.Is(err, ErrInvalidEvent) || !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		m := s.next()
		if m.seq != next+1 || len(m.batch.Events) != 2 {
			t.Errorf("%s: batch %d with %d events, want %d with 2", name, m.seq, len(m.batch.Events), next+1)
		}
		next = m.seq + 1
		after := p.Stats()
		if after.InvalidEvents != before.InvalidEvents+2 || after.BurntNumbers != before.BurntNumbers+1 {
			t.Errorf("%s: %+v", name, after)
		}
		checkBalance(t, after, false)
	}
	// Nothing valid: no batch, but the number is gone.
	if err := p.Publish(dup); !errors.Is(err, ErrInvalidEvent) {
		t.Error(err)
	}
	p.Publish(removal(1))
	if m := s.next(); m.seq != next+1 {
		t.Errorf("number %d, want %d", m.seq, next+1)
	}
}

// Clears travel alone, limits close batches, oversized events are split, the
// order stays, and the events are copied.
func TestBatchesOfPublish(t *testing.T) {
	o := localOptions(t)
	o.MaxBatchEvents, o.MaxBatchBlocks = 3, 10
	p := mustNew(t, o)
	mustStart(t, p)
	s := subscribe(t, p)
	big := chain(1<<20, 2*maxEventBlocks+1)
	evs := []event.Event{
		removal(1), &event.AllBlocksCleared{}, removal(2), removal(3), removal(4), removal(5),
		chain(100, 9), removal(6, 7), big,
	}
	if err := p.Publish(evs...); err != nil {
		t.Fatal(err)
	}
	for i := range big.Hashes { // the caller's again
		big.Hashes[i], big.Tokens[i] = 0, 0
	}
	if err := p.Publish(); err != nil {
		t.Errorf("Publish of nothing: %v", err)
	}
	var got []string
	var previous uint64
	for len(got) < 8 {
		m := s.next()
		if want := uint64(len(got) + 1); m.seq != want {
			t.Fatalf("number %d, want %d", m.seq, want)
		}
		line := ""
		for _, ev := range m.batch.Events {
			line += fmt.Sprintf("%d:%d ", ev.Kind, len(ev.Hashes))
			if len(ev.Hashes) > 20 {
				first := ev.Hashes[0].Bits
				if ev.HasParent != (previous != 0) || ev.Parent.Bits != previous || ev.Tokens[0] != uint32(first) {
					t.Errorf("piece begins with %d, parent %v %d, token %d", first, ev.HasParent, ev.Parent.Bits, ev.Tokens[0])
				}
			}
			if ev.Kind == wire.KindStored {
				previous = 0
				if len(ev.Hashes) > 20 {
					previous = ev.Hashes[len(ev.Hashes)-1].Bits
				}
			}
		}
		got = append(got, strings.TrimSpace(line))
	}
	want := []string{"2:1", "3:0", "2:1 2:1 2:1", "2:1 1:9", "2:2", "1:65536", "1:65536", "1:1"}
	if !slices.Equal(got, want) {
		t.Errorf("batches %q, want %q", got, want)
	}
}

// A failure of the transport costs its batch and a pause.
func TestSendFailure(t *testing.T) {
	o := localOptions(t)
	var warnings atomic.Int64
	o.Warn = func(string) { warnings.Add(1) }
	f := &fakeTransport{}
	p := mustNew(t, o)
	p.newTransport = func() transport { return f }
	mustStart(t, p)
	broken := errors.New("broken")
	f.setFail(broken)
	begin := time.Now()
	p.Publish(removal(1))
	err := p.Flush(withPatience(t))
	if !errors.Is(err, ErrDropped) {
		t.Errorf("Flush = %v", err)
	}
	f.setFail(nil)
	p.Publish(removal(2))
	if err := p.Flush(withPatience(t)); err != nil {
		t.Errorf("Flush = %v", err)
	}
	if took := time.Since(begin); took < failurePause {
		t.Errorf("no pause after a failure: %v", took)
	}
	f.setFail(broken)
	p.Publish(removal(3))
	p.Flush(withPatience(t))
	f.setFail(nil)
	for i := range 5 {
		p.Publish(removal(uint64(4 + i)))
	}
	p.Close()
	if got := f.numbers(); !slices.Equal(got, []uint64{0, 2, 4, 5, 6, 7, 8, 9}) {
		t.Errorf("sent %v", got)
	}
	st := p.Stats()
	checkBalance(t, st, true)
	if st.SendErrorDrops != 2 || warnings.Load() != 2 {
		t.Errorf("%+v, %d warnings", st, warnings.Load())
	}
}

// Close does not wait for the end of a pause.
func TestNoPauseAtClose(t *testing.T) {
	for _, closing := range []bool{false, true} {
		o, f := mustNew(t, localOptions(t)), &fakeTransport{}
		o.newTransport = func() transport { return f }
		now := time.Unix(1000, 0)
		w := &owner{p: o, s: o.settings, transport: f, encode: true, closing: closing, pausedUntil: now.Add(time.Minute),
			nextRead: now.Add(time.Hour)}
		o.mu.Lock()
		o.queue.push(queuedBatch{seq: 7, events: clearEvents})
		o.mu.Unlock()
		if w.step(now); (len(f.numbers()) == 1) != closing {
			t.Errorf("closing %v: sent %v", closing, f.numbers())
		}
	}
}

// What the queue still holds when Close gives up counts as dropped.
func TestCloseAbandonsQueue(t *testing.T) {
	o := localOptions(t)
	o.Warn = nil
	o.ShutdownTimeout = 0
	f := &fakeTransport{gate: make(chan struct{}, 100), inUse: make(chan struct{}, 1)}
	p := mustNew(t, o)
	p.newTransport = func() transport { return f }
	f.gate <- struct{}{}
	mustStart(t, p)
	<-f.inUse
	for i := range 10 {
		p.Publish(removal(uint64(i)))
	}
	<-f.inUse
	closed := make(chan struct{})
	go func() { p.Close(); close(closed) }()
	eventually(t, "closing", func() bool { return p.Stats().State == StateClosing })
	close(f.gate)
	<-closed
	st := p.Stats()
	checkBalance(t, st, true)
	if st.SendErrorDrops == 0 || st.PublishedBatches+st.SendErrorDrops != 12 {
		t.Errorf("%+v", st)
	}
}

// The number that marks the end of a replay is never given to a batch.
func TestSequenceExhausted(t *testing.T) {
	f := &fakeTransport{}
	p := mustNew(t, localOptions(t))
	p.newTransport = func() transport { return f }
	mustStart(t, p)
	p.mu.Lock()
	p.stats.NextSeq = wire.EndSeq - 1
	p.mu.Unlock()
	if err := p.Publish(removal(1)); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(removal(2)); !errors.Is(err, ErrSequence) {
		t.Errorf("Publish = %v", err)
	}
	if err := p.Publish(removal()); !errors.Is(err, ErrSequence) {
		t.Errorf("burning = %v", err)
	}
	p.Close()
	if got := f.numbers(); !slices.Equal(got, []uint64{0, wire.EndSeq - 1}) {
		t.Errorf("sent %v", got)
	}
}

// Counters balance at each instant, whoever publishes, flushes and closes at
// the same time; times and numbers only grow.
func TestConcurrentUse(t *testing.T) {
	o := localOptions(t)
	o.Warn = nil
	o.MaxQueueSize = 64
	p, endpoint, result := startWaiting(t, withPatience(t), o, 1)
	s := newSubscriber(t, nil).connect(endpoint, "")
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	var users sync.WaitGroup
	for w := range 4 {
		users.Add(1)
		go func() {
			defer users.Done()
			for i := range 500 {
				h := uint64(w*1000 + i)
				switch err := p.Publish(chain(h, 1), removal(h), removal()); {
				case errors.Is(err, ErrQueueFull), errors.Is(err, ErrInvalidEvent):
				default:
					t.Errorf("Publish = %v", err)
				}
				if i%50 == 0 {
					if err := p.Flush(withPatience(t)); err != nil {
						t.Errorf("Flush = %v", err)
					}
				}
				checkBalance(t, p.Stats(), false)
			}
		}()
	}
	users.Wait()
	p.Close()
	st := p.Stats()
	checkBalance(t, st, true)
	if st.InvalidEvents != 2000 || st.BurntNumbers != 2000 {
		t.Errorf("%+v", st)
	}
	lastSeq, lastTS := int64(-1), 0.0
	for range st.PublishedBatches {
		m := s.next()
		if int64(m.seq) <= lastSeq || m.batch.TS < lastTS {
			t.Fatalf("number %d after %d, time %f after %f", m.seq, lastSeq, m.batch.TS, lastTS)
		}
		lastSeq, lastTS = int64(m.seq), m.batch.TS
	}
}

// The clock may be set back; the time of a batch is never below the last one.
func TestTimeNeverGoesBack(t *testing.T) {
	p := mustNew(t, localOptions(t))
	encoder, err := wire.NewEncoder(wire.Config{})
	if err != nil {
		t.Fatal(err)
	}
	o := &owner{p: p, s: p.settings, transport: &fakeTransport{}, encode: true, encoder: encoder}
	var times []float64
	for _, now := range []int64{1000, 2000, 500, 1999, 2001} {
		o.send(0, clearEvents, time.Unix(now, 0), true)
		b, err := wire.Decode(o.buffer, wire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, b.TS)
	}
	if want := []float64{1000, 2000, 2000, 2000, 2001}; !slices.Equal(times, want) {
		t.Errorf("times %v, want %v", times, want)
	}
}

// What the host's encoder writes for the first batch is what the hot encoder
// writes for the same events, so both sources look the same to a reader.
func TestBothPathsWriteTheSame(t *testing.T) {
	for _, minimal := range []bool{false, true} {
		var payloads [2][]byte
		for i, hot := range []bool{true, false} {
			o := localOptions(t)
			o.MinimalHashes, o.Rank, o.Ranks = minimal, 3, 4
			p := mustNew(t, o)
			config := wire.Config{MinimalHashes: minimal}
			encoder, err := wire.NewEncoder(config)
			if err != nil {
				t.Fatal(err)
			}
			k := &keep{}
			w := &owner{p: p, s: p.settings, transport: k, encode: true, encoder: encoder, config: config}
			w.send(7, []event.Event{chain(5, 3), removal(5, 1<<63)}, time.Unix(9, 0), hot)
			payloads[i] = k.payload
		}
		if len(payloads[0]) == 0 || !slices.Equal(payloads[0], payloads[1]) {
			t.Errorf("%x\n%x", payloads[0], payloads[1])
		}
	}
}

// keep remembers the last payload.
type keep struct {
	fakeTransport
	payload []byte
}

func (k *keep) send(_, payload []byte) error {
	k.payload = slices.Clone(payload)
	return nil
}
