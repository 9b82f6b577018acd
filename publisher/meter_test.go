// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// limitDescriptors sets how many the process may have open until the function
// that it returns is called, or the test ends.
func limitDescriptors(t *testing.T, n uint64) (restore func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	restore = func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(restore)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	return restore
}

// Connections without end do not take all descriptors of the process: those are
// cut that ask for nothing, on both endpoints, and others go on being served.
func TestConnectionsAreLimited(t *testing.T) {
	const limit = 25
	restore := limitDescriptors(t, limit*connectionShare)
	o := replayOptions(t)
	var cuts atomic.Int64
	o.Warn = func(m string) {
		if !strings.Contains(m, "too many") {
			t.Errorf("warning: %s", m)
		}
		cuts.Add(1)
	}
	p := mustNew(t, o)
	mustStart(t, p)
	restore()
	live := subscribe(t, p)
	reader := newDealer(t, p.ReplayEndpoint())
	reader.ask(0)
	reader.run()
	for _, endpoint := range []string{p.Endpoint(), p.ReplayEndpoint()} {
		for range 4 * limit {
			c, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
		eventually(t, "the limit", func() bool { return connections(endpoint) <= limit })
	}
	// It follows the cut, which is seen at once.
	eventually(t, "a warning", func() bool { return cuts.Load() > 0 })
	// Whoever comes now is served, too.
	late := subscribe(t, p)
	publishBatches(t, p, 1)
	for _, s := range []*subscriber{live, late} {
		if m := s.next(); m.seq != 1 {
			t.Errorf("number %d, want 1", m.seq)
		}
	}
	for _, c := range []*replayClient{reader, newDealer(t, p.ReplayEndpoint())} {
		c.ask(1)
		wantNumbers(t, c.numbers(), 1, 1)
	}
}

// Who is cut off: the silent ones, longest silent first, then the newest.
func TestMeterCutsTheSilentFirst(t *testing.T) {
	m := &meter{allowance: allowance{connections: 3}, known: make(map[uint64]*usage)}
	begin := time.Unix(1e9, 0)
	var open []connection
	for i, asked := range []bool{true, false, true, false, true, true} {
		c := connection{i, uint64(i)}
		m.known[c.inode] = &usage{begun: begin.Add(time.Duration(i) * time.Second), asked: asked}
		open = append(open, c)
	}
	fds := func(list []connection) (fds []int) {
		for _, c := range list {
			fds = append(fds, c.fd)
		}
		return fds
	}
	if got := fds(m.tooMany(slices.Clone(open))); !slices.Equal(got, []int{1, 3, 5}) {
		t.Errorf("cut %v, want 1, 3, 5", got)
	}
	if got := m.tooMany(slices.Clone(open)); got != nil { // on their way
		t.Errorf("then %v", got)
	}
	m.spare(open[5])
	if got := fds(m.tooMany(slices.Clone(open))); !slices.Equal(got, []int{5}) {
		t.Errorf("at last %v, want 5", got)
	}
}

// When nothing can be opened any more, connections are still found and cut off.
func TestReserve(t *testing.T) {
	r := newReserve()
	defer r.close()
	c := ownConnection(t)
	restore := limitDescriptors(t, uint64(slices.Max(openDescriptors()))+2)
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, unix.EMFILE) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	anyone := func(int) bool { return true }
	for range 3 {
		if !slices.Contains(r.list(), c.fd) {
			t.Error("not found")
		}
	}
	if cutOff(c.fd, c.inode, anyone) {
		t.Error("cut off without a descriptor")
	}
	if r.cutOff(connection{c.fd, c.inode + 1}, anyone) || r.cutOff(c, func(int) bool { return false }) {
		t.Error("cut off somebody else")
	}
	if !r.cutOff(c, anyone) {
		t.Error("not cut off")
	}
	restore()
	unix.SetNonblock(c.fd, true)
	if n, err := unix.Read(c.fd, make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("still open: %d, %v", n, err)
	}
	var of unix.Stat_t // the spare one no longer stands for the connection
	if err := unix.Fstat(r.spare, &of); err != nil || of.Ino == c.inode {
		t.Errorf("the spare descriptor: %v", err)
	}
}
