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
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// notYet fails the test if Start has returned.
func notYet(t *testing.T, result <-chan error) {
	t.Helper()
	select {
	case err := <-result:
		t.Fatalf("Start returned too early: %v", err)
	default:
	}
}

// A connection is one subscriber, however often and to how many prefixes it
// subscribes.
func TestWaitCountsConnections(t *testing.T) {
	o := localOptions(t)
	o.Topic = "kv-0"
	p, endpoint, result := startWaiting(t, withPatience(t), o, 3)
	greedy := newRawPeer(t, endpoint)
	greedy.send(t, "\x01", "\x01", "\x01k", "\x01kv-0", "\x01kv-0", "\x01kv-00", "\x01other")
	eventually(t, "one subscriber", func() bool { return p.Stats().Subscriptions == 1 })
	newSubscriber(t, nil).connect(endpoint, "kv-")
	eventually(t, "two subscribers", func() bool { return p.Stats().Subscriptions == 2 })
	notYet(t, result)
	// It stays one until its last matching subscription has ended.
	greedy.send(t, "\x00", "\x00k", "\x00kv-00")
	third := newRawPeer(t, endpoint)
	third.send(t, "\x01x")
	greedy.send(t, "\x00kv-0")
	eventually(t, "one subscriber", func() bool { return p.Stats().Subscriptions == 1 })
	greedy.send(t, "\x01kv")
	eventually(t, "two subscribers", func() bool { return p.Stats().Subscriptions == 2 })
	notYet(t, result)
	third.send(t, "\x01")
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	// One that goes without a word is gone with all it has subscribed to.
	greedy.Close()
	eventually(t, "two subscribers", func() bool { return p.Stats().Subscriptions == 2 })
}

// Ends of subscriptions that a peer never had do not count against others, and
// a flood of them holds up neither Start nor the others.
func TestFloodOfUnsubscriptions(t *testing.T) {
	o := localOptions(t)
	o.Warn = nil
	p, endpoint, result := startWaiting(t, withPatience(t), o, 3)
	first := newSubscriber(t, nil).connect(endpoint, "")
	eventually(t, "one subscriber", func() bool { return p.Stats().Subscriptions == 1 })
	hostile := newRawPeer(t, endpoint)
	hostile.send(t, slices.Repeat([]string{"\x00"}, 3000)...)
	second := newSubscriber(t, nil).connect(endpoint, "")
	eventually(t, "two subscribers", func() bool { return p.Stats().Subscriptions == 2 })
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		for block := rawFrames(slices.Repeat([]string{"\x00"}, 3000)...); ; {
			if _, err := hostile.Write(block); err != nil {
				return // cut off
			}
		}
	}()
	newSubscriber(t, nil).connect(endpoint, "")
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	first.nextClear(0)
	second.nextClear(0)
	<-flooded
}

// A connection that subscribes without end is cut off, before it has filled the
// memory; others notice nothing, and those that come later are served.
func TestEndlessSubscriptionsAreCut(t *testing.T) {
	for name, prefix := range map[string]string{"short": "", "long": strings.Repeat("x", 200)} {
		t.Run(name, func(t *testing.T) {
			var cuts atomic.Int64
			o := localOptions(t)
			o.Warn = func(m string) {
				if !strings.Contains(m, "cut off") {
					t.Errorf("warning: %s", m)
				}
				cuts.Add(1)
			}
			p := mustNew(t, o)
			mustStart(t, p)
			honest := subscribe(t, p)
			for range 2 {
				hostile, sent := newRawPeer(t, p.Endpoint()), 0
				var err error
				for n := 0; err == nil; n++ {
					// Far more than what socket buffers hold.
					if sent > 256<<20 {
						t.Fatalf("not cut off after %d bytes", sent)
					}
					var block []byte
					for i := range 1000 {
						block = append(block, rawFrames(fmt.Sprintf("\x01%s%d", prefix, 1000*n+i))...)
					}
					_, err = hostile.Write(block)
					sent += len(block)
				}
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal(err)
				}
			}
			eventually(t, "warnings", func() bool { return cuts.Load() == 2 })
			late := subscribe(t, p)
			if n := p.Stats().Subscriptions; n != 2 {
				t.Errorf("%d subscribers, want 2", n)
			}
			if err := p.Publish(chain(1, 1)); err != nil {
				t.Fatal(err)
			}
			for _, s := range []*subscriber{honest, late} {
				if m := s.next(); m.seq != 1 {
					t.Errorf("number %d, want 1", m.seq)
				}
			}
		})
	}
}

// A descriptor that is no connection to the endpoint is never counted or cut.
func TestForeignDescriptors(t *testing.T) {
	p := mustNew(t, localOptions(t))
	mustStart(t, p)
	ours, err := net.Dial("tcp", strings.TrimPrefix(p.Endpoint(), "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	raw := func(c interface{ File() (*os.File, error) }) int {
		f, err := c.File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return int(f.Fd())
	}
	s := peers{ours: isConnectionTo(p.Endpoint())}
	for name, fd := range map[string]int{
		"our own end of a connection to it": raw(ours.(*net.TCPConn)),
		"a listener":                        raw(listener.(*net.TCPListener)),
		"a file":                            int(file.Fd()),
		"none":                              1 << 20,
	} {
		for range 2 * peerBudget / peerMessage {
			if s.take([]byte{1}, fmt.Sprint(fd)) {
				t.Errorf("%s was cut off", name)
			}
		}
		if n := s.count(); n != 0 || len(s.known) != 0 {
			t.Errorf("%s counts: %d, %d known", name, n, len(s.known))
		}
	}
}

// A descriptor that is reused stands for another connection.
func TestDescriptorIsReused(t *testing.T) {
	p := mustNew(t, localOptions(t))
	mustStart(t, p)
	for range 20 {
		s := newRawPeer(t, p.Endpoint())
		s.send(t, "\x01", "\x01")
		eventually(t, "the subscriber", func() bool { return p.Stats().Subscriptions == 1 })
		s.Close()
		eventually(t, "its end", func() bool { return p.Stats().Subscriptions == 0 })
	}
}

// Over each kind of ipc endpoint subscribers are counted, too.
func TestPeersOverIPC(t *testing.T) {
	folder, err := os.MkdirTemp("", "kv")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	for name, path := range map[string]string{
		"file": filepath.Join(folder, "s"), "abstract": "@" + folder, "any": "*",
	} {
		t.Run(name, func(t *testing.T) {
			o := localOptions(t)
			o.Endpoint = "ipc://" + path
			p := mustNew(t, o)
			mustStart(t, p)
			s, other := subscribe(t, p), subscribe(t, p)
			if n := p.Stats().Subscriptions; n != 2 {
				t.Errorf("%d subscribers, want 2", n)
			}
			s.close()
			eventually(t, "one subscriber", func() bool { return p.Stats().Subscriptions == 1 })
			other.close()
			eventually(t, "no subscriber", func() bool { return p.Stats().Subscriptions == 0 })
		})
	}
}

// The file of an ipc endpoint is gone after Close and after a failed Start,
// unless somebody has put another one there.
func TestSocketFileIsRemoved(t *testing.T) {
	folder, err := os.MkdirTemp("", "kv")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "s")
	gone := func(what string) {
		t.Helper()
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	o := localOptions(t)
	o.Endpoint = "ipc://" + path
	p := mustNew(t, o)
	mustStart(t, p)
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	p.Close()
	gone("after Close")

	ctx, cancel := context.WithCancel(context.Background())
	_, _, result := startWaiting(t, ctx, o, 1)
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	gone("after a failed Start")

	p = mustNew(t, o)
	mustStart(t, p)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Close()
	if b, err := os.ReadFile(path); err != nil || string(b) != "mine" {
		t.Errorf("the other file: %q, %v", b, err)
	}
}

// hangUp floods and goes without a word, often.
func hangUp(t *testing.T, p *Publisher) {
	t.Helper()
	for range 30 {
		hostile := newRawPeer(t, p.Endpoint())
		hostile.Write(rawFrames(slices.Repeat([]string{"\x00"}, 3000)...)) // may have been cut off
		hostile.SetLinger(0)
		hostile.Close()
	}
}

// A peer may hang up in the middle of a flood: with a queue that is full at
// that moment ZeroMQ would abort the process at the next heartbeat.
func TestHangUpInAFlood(t *testing.T) {
	o := localOptions(t)
	o.Warn = nil
	o.ZMTPHeartbeat = 2 * time.Millisecond
	p := mustNew(t, o)
	mustStart(t, p)
	hangUp(t, p)
	mustFlush(t, p)
}

// What earlier connections have left does not count against one that has got
// the descriptor of theirs.
func TestBacklogOfOthers(t *testing.T) {
	p := mustNew(t, localOptions(t)) // a warning fails the test
	mustStart(t, p)
	hangUp(t, p)
	honest := subscribe(t, p)
	if err := p.Publish(chain(1, 1)); err != nil {
		t.Fatal(err)
	}
	if m := honest.next(); m.seq != 1 {
		t.Errorf("number %d, want 1", m.seq)
	}
}

// Frames of a message that never ends do not come out of ZeroMQ, which keeps
// them in memory: whoever sends them is cut off, and others notice nothing.
func TestEndlessMessageIsCut(t *testing.T) {
	for name, block := range map[string]string{
		"short": strings.Repeat("\x01\x00", 1000),
		"long":  strings.Repeat("\x01\xff"+strings.Repeat("x", 255), 100),
	} {
		t.Run(name, func(t *testing.T) {
			var cuts atomic.Int64
			o := localOptions(t)
			o.Warn = func(m string) {
				if !strings.Contains(m, "cut off") {
					t.Errorf("warning: %s", m)
				}
				cuts.Add(1)
			}
			p := mustNew(t, o)
			mustStart(t, p)
			honest := subscribe(t, p)
			hostile, sent := newRawPeer(t, p.Endpoint()), 0
			for {
				n, err := hostile.Write([]byte(block))
				if sent += n; errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal(err)
				} else if err != nil {
					break
				}
				if sent > 256<<20 {
					t.Fatalf("not cut off after %d bytes", sent)
				}
			}
			t.Logf("cut off after %d bytes", sent)
			eventually(t, "a warning", func() bool { return cuts.Load() == 1 })
			eventually(t, "one connection", func() bool { return connections(p.Endpoint()) == 1 })
			publishBatches(t, p, 1)
			if m := honest.next(); m.seq != 1 {
				t.Errorf("number %d, want 1", m.seq)
			}
		})
	}
}
