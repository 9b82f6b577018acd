// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	zmq "github.com/pebbe/zmq4"
)

// freePorts returns the first of n ports in a row that nobody has now.
func freePorts(t testing.TB, n int) int {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners := []net.Listener{l}
		base := l.Addr().(*net.TCPAddr).Port
		for i := 1; i < n && base+i < 65536; i++ {
			next, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+i))
			if err != nil {
				break
			}
			listeners = append(listeners, next)
		}
		for _, l := range listeners {
			l.Close()
		}
		if len(listeners) == n {
			return base
		}
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}

// With bind false two ranks connect to one subscriber, which has bound and is
// waited for, over each transport.
func TestConnect(t *testing.T) {
	shared, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Term()
	for name, c := range map[string]struct {
		bind string
		ctx  *zmq.Context
	}{
		"tcp":    {"tcp://127.0.0.1:*", nil},
		"IPv6":   {"tcp://[::1]:*", nil},
		"ipc":    {"ipc://" + filepath.Join(t.TempDir(), "kv"), nil},
		"inproc": {"inproc://kv", shared},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSubscriber(t, c.ctx)
			s.socket.SetIpv6(true)
			s.socket.SetSubscribe("")
			if err := s.socket.Bind(c.bind); err != nil {
				if name == "IPv6" {
					t.Skipf("no IPv6 here: %v", err)
				}
				t.Fatal(err)
			}
			endpoint, err := s.socket.GetLastEndpoint()
			if err != nil {
				t.Fatal(err)
			}
			endpoint = strings.TrimRight(endpoint, "\x00")
			for rank := range 2 {
				o := localOptions(t)
				o.Connect, o.Endpoint, o.Context, o.Rank, o.Ranks, o.WaitSubscribers = true, endpoint, c.ctx, rank, 2, 1
				p := mustNew(t, o)
				// A bound SUB subscribes while it receives.
				result := make(chan error, 1)
				go func() { result <- p.Start(withPatience(t)) }()
				s.nextClear(0)
				if err := <-result; err != nil || p.Endpoint() != endpoint {
					t.Fatalf("connected to %q, want %q: %v", p.Endpoint(), endpoint, err)
				}
				if err := p.Publish(chain(1, 2)); err != nil {
					t.Fatal(err)
				}
				if m := s.next(); m.seq != 1 || m.batch.Rank != uint64(rank) {
					t.Errorf("%+v %+v", m, m.batch)
				}
				if n := p.Stats().Subscriptions; n != 1 {
					t.Errorf("%d subscribers", n)
				}
				p.Close()
				s.nextClear(2)
			}
		})
	}
}

// What one can bind and nobody can connect to is refused, for all ranks.
func TestConnectRefused(t *testing.T) {
	for _, endpoint := range []string{"tcp://*:1", "tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://h:0", "tcp://h:*", "ipc://*"} {
		for rank := range 2 {
			o := DefaultOptions()
			o.Connect, o.Endpoint, o.Rank, o.Ranks = true, endpoint, rank, 2
			var e *Error
			if _, err := New(o); !errors.Is(err, ErrOption) || !errors.As(err, &e) || e.Key != "endpoint" || e.Value != endpoint {
				t.Errorf("%s: %v", endpoint, err)
			}
		}
	}
	o := DefaultOptions()
	// The last port of all takes no offset.
	o.Connect, o.Endpoint, o.Rank, o.Ranks = true, "tcp://127.0.0.1:65535", 1, 2
	if _, err := New(o); err != nil {
		t.Error(err)
	}
}

// An interface's name, a host's name and IPv6 are bound and read back as given.
func TestNamesAreBound(t *testing.T) {
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "[::1]", "interface"} {
		if host == "interface" {
			for _, i := range interfaces {
				if i.Flags&net.FlagLoopback != 0 {
					host = i.Name
				}
			}
		}
		t.Run(host, func(t *testing.T) {
			if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
				l.Close()
			} else if host == "[::1]" {
				t.Skipf("no IPv6 here: %v", err)
			}
			o := localOptions(t)
			o.Endpoint = "tcp://" + host + ":0"
			p := mustNew(t, o)
			mustStart(t, p)
			port, ok := strings.CutPrefix(p.Endpoint(), "tcp://"+host+":")
			if !ok || port == "0" {
				t.Fatalf("bound %q", p.Endpoint())
			}
			at := "tcp://127.0.0.1:" + port
			if host == "[::1]" {
				at = p.Endpoint()
			}
			s := newSubscriber(t, nil)
			s.socket.SetIpv6(true)
			s.connect(at, "")
			eventually(t, "subscription", func() bool { return p.Stats().Subscriptions == 1 })
		})
	}
}
