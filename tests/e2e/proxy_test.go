// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/subscribe"
)

// proxy stands between a publisher and its subscribers, and can cut them off.
type proxy struct {
	endpoint string
	network  string
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // nil when it is closed
	count int               // connections so far
}

// newProxy passes on what comes from and goes to a tcp or ipc endpoint, at an
// endpoint of its own.
func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	scheme, address, _ := strings.Cut(target, "://")
	p := &proxy{network: scheme, target: address, conns: map[net.Conn]bool{}}
	at := "127.0.0.1:0"
	if scheme == "ipc" {
		p.network, at = "unix", filepath.Join(shortTemp(t), "p")
	}
	var err error
	if p.listener, err = net.Listen(p.network, at); err != nil {
		t.Fatal(err)
	}
	p.endpoint = scheme + "://" + p.listener.Addr().String()
	p.running.Go(p.accept)
	t.Cleanup(func() {
		p.listener.Close()
		p.cut(true)
		p.running.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial(p.network, p.target)
		if err != nil { // there is no publisher at the moment
			near.Close()
			continue
		}
		if !p.add(near, far) {
			return
		}
		p.running.Go(func() { p.pass(near, far) })
		p.running.Go(func() { p.pass(far, near) })
	}
}

func (p *proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.conns == nil {
			c.Close()
		} else {
			p.conns[c] = true
		}
	}
	p.count++
	return p.conns != nil
}

// accepted is how many connections there have been.
func (p *proxy) accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// pass copies until one of the two is closed, and then closes both.
func (p *proxy) pass(to, from net.Conn) {
	io.Copy(to, from)
	to.Close()
	from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, to)
	delete(p.conns, from)
}

// cut closes all connections; for good, if nobody may come again.
func (p *proxy) cut(ever bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			tcp.SetLinger(0) // what is under way is lost
		}
		c.Close()
	}
	if clear(p.conns); ever {
		p.conns = nil
	}
}

// dropper is a relay that loses messages.
type dropper struct {
	client   *subscribe.Client
	socket   *zmq.Socket
	endpoint string
	passed   int
	dropped  int
}

// newDropper passes on what is live at an endpoint. Close ends it.
func newDropper(t *testing.T, target string) *dropper {
	t.Helper()
	client, err := subscribe.Connect(subscribe.ClientOptions{Endpoint: target, HWM: 100000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	ctx.SetRetryAfterEINTR(true)
	d := &dropper{client: client, endpoint: "ipc://" + filepath.Join(shortTemp(t), "d")}
	if d.socket, err = ctx.NewSocket(zmq.XPUB); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.socket.Close(); ctx.Term() })
	for _, err := range []error{d.socket.SetLinger(0), d.socket.SetSndhwm(0), d.socket.Bind(d.endpoint)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// pump passes on what has come, but for what drop says.
func (d *dropper) pump(drop func() bool) error {
	// Subscriptions are taken in; a relay passes on whatever there is.
	for {
		if _, err := d.socket.RecvBytes(zmq.DONTWAIT); err != nil {
			break
		}
	}
	for {
		m, err := d.client.Receive(0)
		if errors.Is(err, subscribe.ErrTimeout) {
			return nil
		}
		if err != nil {
			return err
		}
		if drop() {
			d.dropped++
			continue
		}
		d.passed++
		if _, err := d.socket.SendMessage(m.Topic, binary.BigEndian.AppendUint64(nil, m.Seq), m.Payload); err != nil {
			return fmt.Errorf("relay: %w", err)
		}
	}
}
