// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	zmq "github.com/pebbe/zmq4"
)

const (
	interrupted = zmq.Errno(syscall.EINTR)
	wouldBlock  = zmq.Errno(syscall.EAGAIN)
)

// A call that a signal interrupts is repeated as often as it takes; any other
// error is not.
func TestRetryEINTR(t *testing.T) {
	other := errors.New("other")
	for name, c := range map[string]struct {
		results []error
		want    error
	}{
		"good at once":      {[]error{nil}, nil},
		"interrupted once":  {[]error{interrupted, nil}, nil},
		"interrupted often": {append(slices.Repeat([]error{interrupted}, 100), nil), nil},
		"as a system error": {[]error{syscall.EINTR, nil}, nil},
		"another error":     {[]error{wouldBlock}, wouldBlock},
		"then another one":  {[]error{interrupted, interrupted, other}, other},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			err := retryEINTR(func() error { calls++; return c.results[calls-1] })
			if err != c.want || calls != len(c.results) {
				t.Errorf("%v after %d calls, want %v after %d", err, calls, c.want, len(c.results))
			}
		})
	}
}

// interruptedSocket fails several times with EINTR before each good call.
type interruptedSocket struct {
	times int // before each good call
	left  int
	calls int
	fail  error // instead of each good call
	sent  [][]byte
	flags []zmq.Flag
	read  [][]byte // still to be read
}

func (s *interruptedSocket) next() error {
	s.calls++
	if s.left > 0 {
		s.left--
		return interrupted
	}
	s.left = s.times
	return s.fail
}

func (s *interruptedSocket) SendBytes(frame []byte, flags zmq.Flag) (int, error) {
	if err := s.next(); err != nil {
		return -1, err
	}
	s.sent, s.flags = append(s.sent, slices.Clone(frame)), append(s.flags, flags)
	return len(frame), nil
}

func (s *interruptedSocket) RecvBytesWithMetadata(zmq.Flag, ...string) ([]byte, map[string]string, error) {
	if err := s.next(); err != nil {
		return nil, nil, err
	}
	if len(s.read) == 0 {
		return nil, nil, wouldBlock
	}
	m := s.read[0]
	s.read = s.read[1:]
	return m, nil, nil
}

// A send that is interrupted at each frame hands over the message once, whole.
func TestSendIsInterrupted(t *testing.T) {
	const times = 5
	s := &interruptedSocket{times: times, left: times}
	tr := &zmqTransport{topic: []byte("topic"), frames: s}
	if err := tr.send([]byte("number"), []byte("payload")); err != nil {
		t.Fatal(err)
	}
	want := [][]byte{[]byte("topic"), []byte("number"), []byte("payload")}
	flags := []zmq.Flag{zmq.SNDMORE | zmq.DONTWAIT, zmq.SNDMORE | zmq.DONTWAIT, zmq.DONTWAIT}
	if !slices.EqualFunc(s.sent, want, slices.Equal[[]byte]) || !slices.Equal(s.flags, flags) {
		t.Errorf("sent %q with flags %v", s.sent, s.flags)
	}
	if s.calls != 3*(times+1) {
		t.Errorf("%d calls, want %d", s.calls, 3*(times+1))
	}

	s = &interruptedSocket{times: times, left: times, fail: wouldBlock}
	tr.frames = s
	if err := tr.send([]byte("number"), nil); err != wouldBlock || s.calls != times+1 {
		t.Errorf("%v after %d calls, want %v after %d", err, s.calls, wouldBlock, times+1)
	}
}

// An interrupted read neither loses a subscription nor ends the reading, and
// even without an end of interruptions it comes back.
func TestReadIsInterrupted(t *testing.T) {
	const times = 5
	s := &interruptedSocket{times: times, left: times,
		read: [][]byte{[]byte("\x01top"), []byte("\x01other"), []byte("\x01"), []byte("\x00top")}}
	tr := &zmqTransport{peers: peers{topic: []byte("topic"), inproc: true}, frames: s}
	if n, more := tr.subscriptions(); n != 1 || more || len(s.read) != 0 {
		t.Errorf("%d subscriptions, want 1; %d messages not read", n, len(s.read))
	}
	tr.frames = &interruptedSocket{left: 1 << 30}
	if n, more := tr.subscriptions(); n != 1 || !more {
		t.Errorf("%d subscriptions (more: %v), want 1 and more", n, more)
	}
}

// The publisher's own context retries by itself what a signal interrupts; that
// of somebody else stays as it is.
func TestContextRetries(t *testing.T) {
	own := mustNew(t, localOptions(t))
	tr := newZMQTransport(own.settings)
	if _, _, err := tr.open(withPatience(t)); err != nil {
		t.Fatal(err)
	}
	defer tr.close(0)
	if !tr.ctx.GetRetryAfterEINTR() {
		t.Error("the publisher's own context does not retry")
	}

	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Term()
	ctx.SetRetryAfterEINTR(false)
	o := localOptions(t)
	o.Context = ctx
	shared := newZMQTransport(mustNew(t, o).settings)
	if _, _, err := shared.open(withPatience(t)); err != nil {
		t.Fatal(err)
	}
	defer shared.close(0)
	if shared.ctx != ctx || ctx.GetRetryAfterEINTR() {
		t.Error("a shared context was changed")
	}
}
