// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/wire"
)

// curveSocket binds a socket that lets in everybody who knows its key.
func curveSocket(t *testing.T, kind zmq.Type, keys keyFiles, endpoint string) (*zmq.Socket, string, func()) {
	t.Helper()
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	ctx.SetRetryAfterEINTR(true)
	s, err := ctx.NewSocket(kind)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{s.SetLinger(0), s.SetRcvtimeo(deadline), s.SetSndhwm(0), s.SetCurveServer(1),
		s.SetCurveSecretkey(keys.secret), s.Bind(endpoint)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if endpoint, err = s.GetLastEndpoint(); err != nil {
		t.Fatal(err)
	}
	return s, endpoint, func() { s.Close(); ctx.Term() }
}

// A reader with CURVE that does not read: ZeroMQ's socket is emptied all the same, so that
// it never stops reading a connection, and what is beyond the queue is dropped and counted.
// What comes over the next connection is known for it.
func TestCurveDropsBeyondTheQueue(t *testing.T) {
	const hwm, sent = 10, 20000
	server, own := newKeys(t), newKeys(t)
	pub, endpoint, end := curveSocket(t, zmq.XPUB, server, "tcp://127.0.0.1:*")
	c := connect(t, ClientOptions{Endpoint: endpoint, HWM: hwm, CurveServerKeyFile: server.publicFile, CurveSecretKeyFile: own.secretFile})
	awaitSubscription(t, pub)
	for i := range uint64(sent) {
		send(t, pub, nil, wire.AppendSeq(nil, i), []byte("x"))
	}
	for limit := time.Now().Add(deadline); c.dropped < sent-hwm; c.watch() {
		if time.Now().After(limit) {
			t.Fatalf("%d dropped", c.dropped)
		}
		time.Sleep(time.Millisecond)
	}
	end()
	pub, _, end = curveSocket(t, zmq.XPUB, server, endpoint)
	defer end()
	awaitSubscription(t, pub)
	for limit := time.Now().Add(deadline); c.handshakes < 2; c.watch() {
		if time.Now().After(limit) {
			t.Fatal("no new connection")
		}
		time.Sleep(time.Millisecond)
	}
	for i := range uint64(hwm) {
		if m, err := c.Receive(deadline); err != nil || m.Seq != i || !c.stale(m) {
			t.Fatalf("got %+v, %v, want %d", m, err, i)
		}
	}
	if _, err := c.Receive(time.Millisecond); !errors.Is(err, ErrTimeout) {
		t.Errorf("got %v, want ErrTimeout", err)
	}
	send(t, pub, nil, wire.AppendSeq(nil, sent), []byte("x"))
	if m, err := c.Receive(deadline); err != nil || m.Seq != sent || c.stale(m) {
		t.Errorf("got %+v, %v", m, err)
	}
	if c.dropped != sent-hwm {
		t.Errorf("%d dropped, want %d", c.dropped, sent-hwm)
	}
}

// Of an answer with CURVE there is no more than the queue holds, and the connection ends.
func TestCurveEndsLongAnswers(t *testing.T) {
	server, own := newKeys(t), newKeys(t)
	router, endpoint, end := curveSocket(t, zmq.ROUTER, server, "tcp://127.0.0.1:*")
	defer end()
	s, err := checkEndpoint("replay", endpoint)
	if err != nil {
		t.Fatal(err)
	}
	if s.curve, err = loadCurve(&ClientOptions{CurveServerKeyFile: server.publicFile, CurveSecretKeyFile: own.secretFile}); err != nil {
		t.Fatal(err)
	}
	if err := s.curve.begin(); err != nil {
		t.Fatal(err)
	}
	s.limit, s.request = 1000, [][]byte{{}, wire.AppendSeq(nil, 7)}
	box := newInbox(make(chan struct{}, 1), maxAnswer, 3000)
	stop, err := s.open(box)
	if err != nil {
		t.Fatal(err)
	}
	request, err := router.RecvMessageBytes(0)
	if err != nil || len(request) != 3 || string(request[2]) != string(s.request[1]) {
		t.Fatalf("%q, %v", request, err)
	}
	if err := router.SetRouterMandatory(1); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(deadline); ; time.Sleep(time.Millisecond) {
		if _, err := router.SendMessage(request[0], "", "", wire.AppendSeq(nil, 1), make([]byte, 900)); err != nil {
			break // the peer is gone
		}
		if time.Now().After(limit) {
			t.Fatal("the connection does not end")
		}
	}
	n := 0
	for m := (received{}); box.take(&m); n++ {
		if m.n != topicFrames || len(m.frames[3]) != 900 {
			t.Errorf("got %d frames", m.n)
		}
	}
	if want := 3; n != want || box.look().dropped != 1 {
		t.Errorf("%d messages, %d dropped, want %d and 1", n, box.look().dropped, want)
	}
	if err := errors.Join(stop(), s.curve.close()); err != nil {
		t.Error(err)
	}
}
