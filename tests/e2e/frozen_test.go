// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher"
	"github.com/kvcast/kvcast/publisher/subscribe"
)

const (
	// loadHWM is the number of messages that may wait for one subscriber.
	loadHWM = 100
	// loadStores are published before those who are awake are asked whether they have
	// seen them: fewer than may wait.
	loadStores = 20
	// frozenStores are published while somebody is frozen, at least: some 60 MB.
	frozenStores = 2000
	// kernelBuffers is more than the system keeps for one connection.
	kernelBuffers = 12 << 20
	// requestDescriptors is more than a request for a replay takes, and far less than
	// something left of each connection would.
	requestDescriptors = 8
	// memorySlack is by how much a process may grow for reasons of its own.
	memorySlack = 24 << 20
)

// frozenFor is how long somebody is frozen, at least.
func frozenFor() time.Duration {
	return time.Duration(amount(5, 1, 60)) * time.Second
}

// loadedWorker is a worker with batches of some 30 kB.
func loadedWorker(heartbeat, timeout time.Duration) workerConfig {
	return workerConfig{Seed: 1, Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0", Form: event.Signed64,
		Multimodal: publisher.MultimodalSuppress, Block: 16, Pages: 1024, Entries: 4096, PadLimit: 65536, HWM: loadHWM,
		BatchEvents: 128, BatchBlocks: 8192, Steps: 4, FirstSeq: publisher.FirstZero, Heartbeat: heartbeat, Timeout: timeout}
}

// memory is how much memory of the machine a process has.
func memory(t *testing.T, pid int) int64 {
	t.Helper()
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/status", pid))) {
		if fields := strings.Fields(line); fields[0] == "VmRSS:" {
			kilobytes, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kilobytes << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// A subscriber is frozen until long after everything that may wait for it does, and one
// with room for a single message sleeps as long. The worker's memory stays bounded, who
// is awake misses nothing, and when they wake up both get to know what is there: out of
// a full queue, or over a new connection if heartbeats have ended the old one.
func TestFrozenSubscriber(t *testing.T) {
	for name, c := range map[string]struct{ heartbeat, timeout time.Duration }{
		"full queue": {0, 0},
		"cut off":    {100 * time.Millisecond, 400 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorkerProcess(t, loadedWorker(c.heartbeat, c.timeout))
			witness := newEyewitness(t, w.endpoint)
			frozen := newReaderProcess(t, subscribe.FollowerOptions{Client: subscribe.ClientOptions{Endpoint: w.endpoint}, Replay: w.replay})
			asleep := bystander{options: subscribe.FollowerOptions{
				Client: subscribe.ClientOptions{Endpoint: w.endpoint, HWM: 1}, Replay: w.replay, MaxHeld: 1}}
			if err := asleep.join(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(asleep.leave)
			var most int64
			// load publishes; who is awake must have seen it before there is more.
			load := func() quietPoint {
				t.Helper()
				w.order(order{Store: loadStores, Quiet: true})
				q := *w.done().Quiet
				if err := witness.readTo(t.Context(), q.NextSeq-1); err != nil {
					t.Fatal(err)
				}
				if err := sameBlocks(witness.verifier.Mirror(), q); err != nil {
					t.Fatal(err)
				}
				most = max(most, memory(t, w.Process.Pid))
				return q
			}
			// All have joined, and the worker has what memory it takes.
			for q := w.quiet(); q.Stats.Subscriptions < 3; q = w.quiet() {
				time.Sleep(time.Millisecond)
			}
			for range 20 {
				load()
			}
			begun := load()
			first, before := begun.Stats, most
			seen := frozen.settle(begun)

			frozen.signal(syscall.SIGSTOP)
			stopped := time.Now()
			stores := 0
			q := load()
			for ; stores < frozenStores || time.Since(stopped) < frozenFor() || name == "cut off" && q.Stats.Subscriptions == 3; stores += loadStores {
				if time.Since(stopped) > deadline {
					t.Fatalf("after %v: %+v", deadline, q.Stats)
				}
				if stores >= frozenStores {
					time.Sleep(50 * time.Millisecond) // no more than time has to pass
				}
				q = load()
			}
			volume := q.Stats.PublishedBytes - first.PublishedBytes
			batch := volume / (q.Stats.Published - first.Published)
			bound := before + int64(2*loadHWM*batch) + memorySlack
			t.Logf("frozen for %v: %d MB in batches of %d kB; memory %d MB before, then at most %d MB; %d subscriptions",
				time.Since(stopped).Round(time.Millisecond), volume>>20, batch>>10, before>>20, most>>20, q.Stats.Subscriptions)
			if most > bound {
				t.Errorf("the worker has grown from %d to %d MB, which is more than %d", before>>20, most>>20, bound>>20)
			}
			// Else it has shown too little.
			if int64(volume) < int64(2*loadHWM*batch)+kernelBuffers+memorySlack {
				t.Errorf("%d bytes of batches would have had room somewhere", volume)
			}

			frozen.signal(syscall.SIGCONT)
			q = load()
			awake := frozen.settle(q)
			t.Logf("awake: %+v before, %+v after", seen, awake)
			if awake.Snapshots == seen.Snapshots {
				t.Error("who was frozen has missed nothing")
			}
			if err := asleep.settle(w.quiet()); err != nil {
				t.Fatal(err)
			}
			frozen.end()
			w.end()
			if witness.next < q.NextSeq {
				t.Errorf("who was awake has seen numbers up to %d of %d", witness.next, q.NextSeq)
			}
		})
	}
}

// descriptors counts the open files of a process.
func descriptors(t *testing.T, pid int) int {
	return len(listFolder(t, fmt.Sprintf("/proc/%d/fd", pid)))
}

// A subscriber loses its connection a hundred times under load, and others go and come:
// nobody is left with anything of them, and it knows what is there.
func TestReconnectsLeaveNothing(t *testing.T) {
	t.Parallel()
	w := newWorkerProcess(t, loadedWorker(0, 0))
	line := newProxy(t, w.endpoint)
	stays := newReaderProcess(t, subscribe.FollowerOptions{Client: subscribe.ClientOptions{Endpoint: line.endpoint}, Replay: w.replay})
	comes := bystander{options: subscribe.FollowerOptions{Client: subscribe.ClientOptions{Endpoint: w.endpoint}, Replay: w.replay}}
	t.Cleanup(comes.leave)
	load := func() quietPoint {
		t.Helper()
		w.order(order{Store: 1, Quiet: true})
		return *w.done().Quiet
	}
	// until publishes until something is so.
	until := func(what string, so func(quietPoint) bool) {
		t.Helper()
		for end := time.Now().Add(deadline); !so(load()); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within %v: %s", deadline, what)
			}
		}
	}
	connected := func(n int) {
		t.Helper()
		until(fmt.Sprintf("%d subscriptions", n), func(q quietPoint) bool { return q.Stats.Subscriptions == n })
	}
	connected(1)
	for range 5 { // until they have what memory they take
		w.order(order{Store: 5 * loadStores})
		w.done()
		stays.settle(w.quiet())
	}
	children := []*child{w.child, stays.child}
	var files []int
	var before []int64
	for _, c := range children {
		files, before = append(files, descriptors(t, c.Process.Pid)), append(before, memory(t, c.Process.Pid))
	}
	const times = 100
	for i := range times {
		line.cut(false)
		if i%10 == 0 {
			if err := comes.join(); err != nil {
				t.Fatal(err)
			}
			connected(2)
			comes.leave()
		}
		until("another connection", func(quietPoint) bool { return line.accepted() > i+1 })
	}
	connected(1)
	seen := stays.settle(w.quiet())
	for i, c := range children {
		pid := c.Process.Pid
		now, after := descriptors(t, pid), memory(t, pid)
		t.Logf("process %d: %d descriptors, before %d; %d MB, before %d MB", i, now, files[i], after>>20, before[i]>>20)
		// A request for a replay may be under way now and not have been before.
		if now > files[i]+requestDescriptors {
			t.Errorf("process %d has %d descriptors, before %d", i, now, files[i])
		}
		if after > before[i]+memorySlack {
			t.Errorf("process %d has grown from %d to %d MB", i, before[i]>>20, after>>20)
		}
	}
	t.Logf("%d connections; %+v", line.accepted(), seen)
	stays.end()
	w.end()
}
