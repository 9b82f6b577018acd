// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"sync/atomic"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/wire"
)

// line hands a worker's messages on to whoever subscribes to it, frame for frame,
// except those that it is told to lose.
type line struct {
	t        *testing.T
	endpoint string
	losing   atomic.Bool
	// last is the number of the last message that came, lost how many were not
	// handed on.
	last, lost atomic.Uint64
}

// newLine connects to a worker, which need not be there yet.
func newLine(t *testing.T, worker string) *line {
	t.Helper()
	context, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	context.SetRetryAfterEINTR(true)
	l := &line{t: t}
	done := make(chan struct{})
	close(done) // until somebody forwards
	t.Cleanup(func() {
		context.Term() // which ends forward
		<-done
	})
	socket := func(kind zmq.Type) *zmq.Socket {
		s, err := context.NewSocket(kind)
		if err != nil {
			t.Fatal(err)
		}
		s.SetLinger(0)
		s.SetSndhwm(0)
		s.SetRcvhwm(0)
		return s
	}
	front, back := socket(zmq.XPUB), socket(zmq.XSUB)
	back.SetReconnectIvl(10 * time.Millisecond)
	err = front.Bind("tcp://127.0.0.1:*")
	if err == nil {
		l.endpoint, err = front.GetLastEndpoint()
	}
	if err == nil {
		err = back.Connect(worker)
	}
	if err != nil {
		front.Close()
		back.Close()
		t.Fatal(err)
	}
	done = make(chan struct{})
	go func() {
		defer close(done)
		defer front.Close()
		defer back.Close()
		l.forward(front, back)
	}()
	return l
}

// forward returns when the context ends.
func (l *line) forward(front, back *zmq.Socket) {
	poller := zmq.NewPoller()
	poller.Add(front, zmq.POLLIN)
	poller.Add(back, zmq.POLLIN)
	for {
		ready, err := poller.Poll(-1)
		for _, r := range ready {
			var frames [][]byte
			if frames, err = r.Socket.RecvMessageBytes(0); err != nil {
				break
			}
			if r.Socket == front {
				_, err = back.SendMessage(frames) // a subscription
				continue
			}
			m, bad := wire.ParseMessage(frames)
			if bad != nil {
				l.t.Errorf("a message of %d frames: %v", len(frames), bad)
			}
			if l.losing.Load() {
				l.lost.Add(1)
			} else if _, err = front.SendMessage(frames); err != nil {
				break
			}
			l.last.Store(m.Seq)
		}
		if err != nil {
			if zmq.AsErrno(err) != zmq.ETERM {
				l.t.Errorf("a line: %v", err)
			}
			return
		}
	}
}

// wait returns when a number has come, which is the next of a life that the line
// has followed.
func (l *line) wait(number uint64) {
	l.t.Helper()
	for end := time.Now().Add(deadline); l.last.Load() != number; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("number %d has not come within %v, %d has", number, deadline, l.last.Load())
		}
	}
}
