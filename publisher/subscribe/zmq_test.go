// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/wire"
)

// deadline bounds every wait of these tests.
const deadline = 20 * time.Second

// newPublisher binds an XPUB with a context of its own and returns it with the
// endpoint in which it can be reached.
func newPublisher(t testing.TB, bind string) (*zmq.Socket, string) {
	t.Helper()
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	ctx.SetRetryAfterEINTR(true)
	s, err := ctx.NewSocket(zmq.XPUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); ctx.Term() })
	for _, err := range []error{s.SetLinger(0), s.SetRcvtimeo(deadline), s.SetSndhwm(100000), s.Bind(bind)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	endpoint, err := s.GetLastEndpoint()
	if err != nil {
		t.Fatal(err)
	}
	return s, endpoint
}

// awaitMessage returns what a subscriber sends, a byte 1 or 0 and a prefix.
func awaitMessage(t *testing.T, s *zmq.Socket) []byte {
	t.Helper()
	b, err := s.RecvBytes(0)
	if err != nil || len(b) == 0 {
		t.Fatalf("no subscription: %q, %v", b, err)
	}
	return b
}

// awaitSubscription returns the prefix that a subscriber asks for.
func awaitSubscription(t *testing.T, s *zmq.Socket) string {
	t.Helper()
	b := awaitMessage(t, s)
	if b[0] != 1 {
		t.Fatalf("not a subscription: %q", b)
	}
	return string(b[1:])
}

func connect(t *testing.T, o ClientOptions) *Client {
	t.Helper()
	c, err := Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func send(t *testing.T, s *zmq.Socket, frames ...[]byte) {
	t.Helper()
	args := make([]any, len(frames))
	for i, f := range frames {
		args[i] = f
	}
	if _, err := s.SendMessage(args...); err != nil {
		t.Fatal(err)
	}
}

func TestClientReceives(t *testing.T) {
	pub, endpoint := newPublisher(t, "tcp://127.0.0.1:*")
	c := connect(t, ClientOptions{Endpoint: endpoint, Topic: "kv@"})
	if got := awaitSubscription(t, pub); got != "kv@" {
		t.Errorf("subscribed to %q", got)
	}
	send(t, pub, []byte("other"), wire.AppendSeq(nil, 1), []byte("no"))
	send(t, pub, []byte("kv@a"), wire.AppendSeq(nil, 2), []byte("payload"))
	m, err := c.Receive(deadline)
	if err != nil {
		t.Fatal(err)
	}
	if m.Topic != "kv@a" || m.Seq != 2 || string(m.Payload) != "payload" {
		t.Errorf("got %+v", m)
	}
	if _, err := c.Receive(time.Microsecond); !errors.Is(err, ErrTimeout) {
		t.Errorf("got %v, want ErrTimeout", err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Receive(deadline); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestClientDropsMalformedMessages(t *testing.T) {
	pub, endpoint := newPublisher(t, "tcp://127.0.0.1:*")
	c := connect(t, ClientOptions{Endpoint: endpoint})
	awaitSubscription(t, pub)
	seq := wire.AppendSeq(nil, 7)
	malformed := [][][]byte{
		{seq},
		{nil, seq},
		{nil, seq, nil, nil},
		{nil, seq[:7], nil},
		{nil, append(bytes.Clone(seq), 0), nil},
		bytes.SplitAfter(bytes.Repeat([]byte("x"), 3000), nil),
	}
	for _, frames := range malformed {
		send(t, pub, frames...)
	}
	send(t, pub, nil, seq, []byte("good"))
	for i := range malformed {
		if _, err := c.Receive(deadline); !errors.Is(err, ErrFrames) || strings.Contains(err.Error(), "\n") {
			t.Errorf("message %d: got %v, want ErrFrames", i, err)
		}
	}
	if m, err := c.Receive(deadline); err != nil || string(m.Payload) != "good" || m.Topic != "" {
		t.Errorf("got %+v, %v", m, err)
	}
}

// A subscriber may be there first, for both transports.
func TestClientConnectsBeforeThePublisher(t *testing.T) {
	probe, tcp := newPublisher(t, "tcp://127.0.0.1:*")
	if err := probe.Unbind(tcp); err != nil {
		t.Fatal(err)
	}
	for name, endpoint := range map[string]string{
		"tcp": tcp,
		"ipc": "ipc://" + filepath.Join(t.TempDir(), "s"),
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t, ClientOptions{Endpoint: endpoint})
			if _, err := c.Receive(50 * time.Millisecond); !errors.Is(err, ErrTimeout) {
				t.Fatalf("got %v, want ErrTimeout", err)
			}
			pub, _ := newPublisher(t, endpoint)
			awaitSubscription(t, pub)
			send(t, pub, nil, wire.AppendSeq(nil, 0), []byte("x"))
			if m, err := c.Receive(deadline); err != nil || m.Seq != 0 {
				t.Errorf("got %+v, %v", m, err)
			}
		})
	}
}

// A frame beyond the limit costs the connection, not the memory.
func TestClientBoundsFrames(t *testing.T) {
	pub, endpoint := newPublisher(t, "tcp://127.0.0.1:*")
	c := connect(t, ClientOptions{Endpoint: endpoint, MaxMessage: 1000})
	awaitSubscription(t, pub)
	send(t, pub, nil, wire.AppendSeq(nil, 0), make([]byte, 1001))
	for end := time.Now().Add(deadline); ; {
		_, err := c.Receive(20 * time.Millisecond)
		if errors.Is(err, ErrProtocol) {
			if want := "a frame beyond the limit, or no ZMTP: frames may have 1000 bytes"; !strings.HasSuffix(err.Error(), want) {
				t.Errorf("%q does not end with %q", err, want)
			}
			break
		}
		if !errors.Is(err, ErrTimeout) || time.Now().After(end) {
			t.Fatalf("got %v, want ErrProtocol", err)
		}
	}
	c = connect(t, ClientOptions{Endpoint: endpoint, MaxMessage: 1000})
	for awaitMessage(t, pub)[0] != 1 { // the first client's end of subscription
	}
	send(t, pub, nil, wire.AppendSeq(nil, 1), make([]byte, 1000))
	if m, err := c.Receive(deadline); err != nil || m.Seq != 1 {
		t.Errorf("got %+v, %v", m, err)
	}
}

// A publisher that ends is not one that has been given up.
func TestClientReconnects(t *testing.T) {
	pub, endpoint := newPublisher(t, "tcp://127.0.0.1:*")
	c := connect(t, ClientOptions{Endpoint: endpoint})
	awaitSubscription(t, pub)
	if err := pub.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * giveUp); time.Now().Before(end); {
		if _, err := c.Receive(50 * time.Millisecond); !errors.Is(err, ErrTimeout) {
			t.Fatalf("got %v, want ErrTimeout", err)
		}
	}
	pub, _ = newPublisher(t, endpoint)
	awaitSubscription(t, pub)
	send(t, pub, nil, wire.AppendSeq(nil, 5), []byte("x"))
	if m, err := c.Receive(deadline); err != nil || m.Seq != 5 {
		t.Errorf("got %+v, %v", m, err)
	}
}

func TestConnectRefuses(t *testing.T) {
	for endpoint, want := range map[string]string{
		"":                     "no scheme; want tcp:// or ipc://",
		"localhost:5557":       "no scheme; want tcp:// or ipc://",
		"TCP://h:1":            "unknown scheme; want tcp:// or ipc:// in lower case",
		"udp://h:1":            "unknown scheme; want tcp:// or ipc:// in lower case",
		"inproc://x":           "unknown scheme; want tcp:// or ipc:// in lower case",
		"ipc://":               "no path",
		"ipc://*":              "no path",
		"ipc://a\nb":           "control characters",
		"tcp://h":              "no port",
		"tcp://[::1]":          "no port",
		"tcp://:1":             "no host",
		"tcp://h:":             "the port is not a number",
		"tcp://h:5x":           "the port is not a number",
		"tcp://h:+5":           "the port is not a number",
		"tcp://h:*":            "the port is not a number",
		"tcp://h:0":            "the port must be 1 to 65535",
		"tcp://h:65536":        "the port must be 1 to 65535",
		"tcp://*:5557":         "an address of all interfaces cannot be connected to",
		"tcp://0.0.0.0:5557":   "an address of all interfaces cannot be connected to",
		"tcp://[::]:5557":      "an address of all interfaces cannot be connected to",
		"tcp://[1.2.3.4]:5557": "no IPv6 address in the brackets",
		"tcp://[::1:5557":      "no IPv6 address in the brackets",
		"tcp://::1:5557":       "bad host",
		"tcp://a;b:5557":       "bad host",
		"tcp://%:5557":         "bad host",
		"tcp://a..b:5557":      "bad host",
		"tcp://.:5557":         "bad host",
		"tcp://0:5557":         "bad host",
		"tcp://1.2.3:5557":     "bad host",
		"tcp://1.2.3.400:5557": "bad host",
		"tcp://\u00e9:5557":    "bad host",
		"tcp://" + strings.Repeat("a", 64) + ":5557": "bad host",
		"tcp://[::ffff:0.0.0.0]:5557":                "an address of all interfaces cannot be connected to",
		"ipc://@":                                    "no name",
		"ipc://" + longPath(200):                     "",
	} {
		_, err := Connect(ClientOptions{Endpoint: endpoint})
		if !errors.Is(err, ErrEndpoint) {
			t.Errorf("%q: got %v, want ErrEndpoint", endpoint, err)
		} else if !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want ...%s", endpoint, err, want)
		}
	}
}

// A name means IPv4 addresses, with CURVE as without; in brackets is an IPv6 address.
func TestEndpointFamilies(t *testing.T) {
	for endpoint, want := range map[string]source{
		"tcp://localhost:05557":         {network: "tcp4", address: "localhost:5557"},
		"tcp://Kv_1.kv-cast.example.:1": {network: "tcp4", address: "Kv_1.kv-cast.example.:1"},
		"tcp://10.0.0.7:1":              {network: "tcp4", address: "10.0.0.7:1"},
		"tcp://[::1]:1":                 {network: "tcp", address: "[::1]:1", ipv6: true},
		"tcp://[::ffff:10.0.0.7]:1":     {network: "tcp", address: "[::ffff:10.0.0.7]:1", ipv6: true},
		"tcp://[fe80::1%eth0]:1":        {network: "tcp", address: "[fe80::1%eth0]:1", ipv6: true},
		"ipc://@kv":                     {network: "unix", address: "@kv"},
	} {
		got, err := checkEndpoint("connect", endpoint)
		if err != nil || got.network != want.network || got.address != want.address || got.ipv6 != want.ipv6 || got.endpoint != endpoint {
			t.Errorf("%q: got %+v, %v", endpoint, got, err)
		}
	}
}

func longPath(n int) string { return "/" + strings.Repeat("p", n-1) }
