// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

// killerEnv tells the test's own binary to be a subscriber: "live" or "replay", and the
// endpoints.
const killerEnv = "KVCAST_TEST_SUBSCRIBER"

// subscribers is how many there are at once: each connection is one more try.
const subscribers = 8

// ping is a heartbeat: something that has to be answered.
const ping = "\x04\x07\x04PING\x00\x00"

// TestKilledSubscriber is the subscriber of TestHostilePeersKillNobody: it reads what is
// live as fast as it can, so that its short queue is full and is not all the time, and
// answers a little at a time, so that it is full when the connection ends. It does so until
// it is told to end, and tells the most memory that it had, in KiB.
func TestKilledSubscriber(t *testing.T) {
	role, endpoints, ok := strings.Cut(os.Getenv(killerEnv), " ")
	if !ok {
		t.Skip("is run by another test")
	}
	live, replay, _ := strings.Cut(endpoints, " ")
	o := FollowerOptions{Client: ClientOptions{Endpoint: live, HWM: 5, HWMBytes: 1 << 20, MaxMessage: 1 << 20},
		ReplayTimeout: 50 * time.Millisecond}
	pause := time.Nanosecond
	if role == "replay" {
		o.Replay, pause = replay, 20*time.Millisecond
	}
	told := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(told)
	}()
	var all sync.WaitGroup
	for range subscribers {
		all.Go(func() {
			f, err := Follow(o)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			for {
				for range 20 {
					if _, err := f.Next(time.Millisecond); err != nil && !errors.Is(err, ErrTimeout) && !errors.Is(err, ErrFrames) {
						t.Error(err)
						return
					}
				}
				select {
				case <-told:
					return
				case <-time.After(pause):
				}
			}
		})
	}
	all.Wait()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, peak, _ := bytes.Cut(status, []byte("VmHWM:"))
	fmt.Printf("peak %s\n", bytes.Fields(peak)[0])
}

// killer accepts connections and treats each alike: so many messages, with heartbeats
// between them, and a reset. It counts them.
type killer struct {
	listener net.Listener
	kind     string
	flood    []byte
	lives    chan struct{}
}

func newKiller(t *testing.T, kind string, flood []byte) (*killer, string) {
	listener, endpoint := listen(t)
	listener.(*net.TCPListener).SetDeadline(time.Time{})
	k := &killer{listener, kind, flood, make(chan struct{}, 1<<20)}
	go k.run()
	return k, endpoint
}

func (k *killer) run() {
	for {
		peer, err := k.listener.Accept()
		if err != nil {
			return
		}
		go k.treat(peer)
	}
}

func (k *killer) treat(peer net.Conn) {
	err := greeted(peer, k.kind)
	if err == nil {
		go io.Copy(io.Discard, peer) // requests, subscriptions, answers to heartbeats
		peer.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		for once := k.kind == "ROUTER"; err == nil; {
			if _, err = peer.Write(k.flood); once {
				break
			}
		}
	}
	peer.(*net.TCPConn).SetLinger(0)
	peer.Close()
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		k.lives <- struct{}{}
	}
}

// A peer that floods a subscriber, sends heartbeats and resets the connection, again and
// again, ends nothing but that connection, and fills no memory: in the stream and as a
// replay server, with small messages, long ones, messages of endlessly many frames, and
// ones that never end.
func TestHostilePeersKillNobody(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const lives = 120
	// most is what the process may have, in KiB: 20 MiB are the test's own binary. The
	// options allow HWMBytes and three times MaxMessage, 4 MiB, for a connection, and the
	// replays 4 MiB more; garbage may be as much again.
	const most = (20 + 2*subscribers*(4+8)) << 10
	body := func(head string, seq uint64) []byte {
		return append(wire.AppendSeq([]byte(head+"\x01\x00\x01\x08"), seq), 0, 1, 'x')
	}
	small := func(head string) (b []byte) {
		for i := range uint64(5000) {
			b = append(append(b, body(head, i)...), ping...)
		}
		return b
	}
	long := func(head string) []byte {
		b := append([]byte(head+"\x01\x00\x01\x08"), make([]byte, 8)...)
		b = append(b, 2, 0, 0, 0, 0, 0, 0x10, 0, 0) // 1 MiB
		return append(append(b, make([]byte, 1<<20)...), ping...)
	}
	for name, flood := range map[string]func(head string) []byte{
		"small": small,
		"long":  long,
		"many frames": func(head string) []byte {
			return append(append(bytes.Repeat([]byte{1, 0}, 100000), body(head, 0)...), ping...)
		},
		"endless": func(string) []byte { return append(bytes.Repeat([]byte{1, 3, 'a', 'b', 'c'}, 1000), ping...) },
	} {
		for _, role := range []string{"live", "replay"} {
			t.Run(name+"/"+role, func(t *testing.T) {
				var target *killer
				var live, replay string
				if role == "live" {
					target, live = newKiller(t, "PUB", flood(""))
				} else {
					_, live = newPublisher(t, "tcp://127.0.0.1:*")
					target, replay = newKiller(t, "ROUTER", flood("\x01\x00"))
				}
				child := exec.Command(os.Args[0], "-test.run=^TestKilledSubscriber$")
				child.Env = append(os.Environ(), killerEnv+"="+role+" "+live+" "+replay)
				in, err := child.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				var out bytes.Buffer
				child.Stdout, child.Stderr = &out, &out
				if err := child.Start(); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- child.Wait() }()
				t.Cleanup(func() { child.Process.Kill() })
				wanted := lives
				if role == "replay" {
					wanted = 5 * subscribers // requests are paced
				}
				timeout := time.After(time.Minute)
				for i := range wanted {
					select {
					case <-target.lives:
					case err := <-ended:
						t.Fatalf("ended in life %d: %v\n%s", i, err, out.String())
					case <-timeout:
						t.Fatalf("only %d lives", i)
					}
				}
				in.Close()
				if err := <-ended; err != nil {
					t.Fatalf("%v\n%s", err, out.String())
				}
				peak := 0
				for lines := bufio.NewScanner(&out); lines.Scan(); {
					if text, ok := strings.CutPrefix(lines.Text(), "peak "); ok {
						peak, _ = strconv.Atoi(text)
					}
				}
				t.Logf("%d MiB at most", peak>>10)
				if peak == 0 || peak > most {
					t.Errorf("%d KiB of memory, want at most %d", peak, most)
				}
			})
		}
	}
}
