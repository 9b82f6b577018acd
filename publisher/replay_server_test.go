// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

// fakeReplaySocket has a clock that goes on when the server waits, and peers
// whose queues take a number of messages.
type fakeReplaySocket struct {
	clock time.Time
	in    []fakeRequest
	reads int
	err   error
	// room is what the queue of an identity takes, by default everything; gone
	// are the identities that have no peer any more.
	room map[string]int
	gone map[string]bool
	// arrived is what acked tells, if it is known.
	arrived map[connection]uint64
	// left is what unread tells, if it is known.
	left map[connection]int

	sent   []fakeSent
	waits  []time.Duration
	cuts   []connection
	woken  int
	closed []time.Duration
}

type fakeRequest struct {
	frames [][]byte
	from   connection
}

type fakeSent struct {
	identity string
	seq      uint64
	frames   [][]byte
}

func (f *fakeReplaySocket) receive() ([][]byte, connection, error) {
	if f.err != nil || len(f.in) == 0 {
		return nil, connection{}, f.err
	}
	r := f.in[0]
	f.in = f.in[1:]
	f.reads++
	return r.frames, r.from, nil
}

func (f *fakeReplaySocket) send(frames [][]byte) sendResult {
	identity := string(frames[0])
	if f.gone[identity] {
		return sendGone
	}
	if room, ok := f.room[identity]; ok {
		if room == 0 {
			return sendFull
		}
		f.room[identity]--
	}
	var kept [][]byte
	for _, b := range frames[1:] {
		kept = append(kept, slices.Clone(b))
	}
	f.sent = append(f.sent, fakeSent{identity, binary.BigEndian.Uint64(frames[len(frames)-2]), kept})
	return sendDone
}

func (f *fakeReplaySocket) acked(c connection) (n uint64, ok bool) {
	n, ok = f.arrived[c]
	return n, ok
}

func (f *fakeReplaySocket) unread(c connection) (n int, ok bool) {
	n, ok = f.left[c]
	return n, ok
}

func (f *fakeReplaySocket) wait(timeout time.Duration) error {
	f.waits = append(f.waits, timeout)
	f.clock = f.clock.Add(max(0, timeout))
	return f.err
}

func (f *fakeReplaySocket) wake()                      { f.woken++ }
func (f *fakeReplaySocket) cut(c connection)           { f.cuts = append(f.cuts, c) }
func (f *fakeReplaySocket) close(linger time.Duration) { f.closed = append(f.closed, linger) }

func (f *fakeReplaySocket) request(identity string, start uint64, from connection) {
	f.in = append(f.in, fakeRequest{[][]byte{[]byte(identity), nil, seqFrame(start)}, from})
}

// received is the numbers sent to an identity.
func (f *fakeReplaySocket) received(identity string) (list []uint64) {
	for _, s := range f.sent {
		if s.identity == identity {
			list = append(list, s.seq)
		}
	}
	return list
}

// newFakeServer has a ring of batches 0 to n-1.
func newFakeServer(t testing.TB, change func(*Options), n int) (*replayServer, *fakeReplaySocket) {
	t.Helper()
	o := replayOptions(t)
	if change != nil {
		change(&o)
	}
	f := &fakeReplaySocket{clock: time.Unix(1e9, 0), room: make(map[string]int), gone: make(map[string]bool)}
	r := newRing(o.BufferSteps, o.ReplayBufferBytes)
	for seq := range n {
		r.push(uint64(seq), pattern(uint64(seq), 100))
	}
	s := newReplayServer(mustNew(t, o).settings, f, r, new(replayCounters))
	s.now = func() time.Time { return f.clock }
	return s, f
}

// idle runs the server until it would wait for ever.
func idle(t testing.TB, s *replayServer, f *fakeReplaySocket) {
	t.Helper()
	for range 100000 {
		if !s.round() {
			t.Fatal("the server has ended")
		}
		if n := len(f.waits); n > 0 && f.waits[n-1] < 0 {
			f.waits = nil
			return
		}
	}
	t.Fatal("the server does not come to rest")
}

func wantRun(t testing.TB, got []uint64, from, to uint64) {
	t.Helper()
	wantNumbers(t, got[:max(0, len(got)-1)], from, to)
	if len(got) == 0 || got[len(got)-1] != wire.EndSeq {
		t.Errorf("no end: %s", shorten(got))
	}
}

// The frames of the golden vectors.
func TestReplayGoldenFrames(t *testing.T) {
	data, err := os.ReadFile("../tests/vectors/wire_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Frames struct {
			Topic  string   `json:"topic_utf8"`
			Seq    uint64   `json:"seq"`
			Live   []string `json:"live_pub"`
			Topic1 []string `json:"replay_reply_topic_dialect_as_seen_by_dealer"`
			Topic2 []string `json:"replay_end_topic_dialect_as_seen_by_dealer"`
			Legacy []string `json:"replay_reply_legacy_dialect_as_seen_by_dealer"`
		} `json:"frames"`
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	v := vectors.Frames
	payload, err := hex.DecodeString(v.Live[2])
	if err != nil || len(payload) == 0 {
		t.Fatal(err)
	}
	for dialect, want := range map[ReplayDialect][][]string{
		ReplayTopic:  {v.Topic1, v.Topic2},
		ReplayLegacy: {v.Legacy, {"", "ffffffffffffffff", ""}},
	} {
		s, f := newFakeServer(t, func(o *Options) { o.Topic, o.ReplayDialect = v.Topic, dialect }, 0)
		s.ring.push(v.Seq, payload)
		f.request("id", v.Seq, connection{})
		idle(t, s, f)
		var got [][]string
		for _, m := range f.sent {
			var frames []string
			for _, b := range m.frames {
				frames = append(frames, hex.EncodeToString(b))
			}
			got = append(got, frames)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", dialect, got, want)
		}
	}
}

// Peers take turns, message by message.
func TestReplayRoundRobin(t *testing.T) {
	s, f := newFakeServer(t, nil, 5)
	for _, id := range []string{"a", "b", "c"} {
		f.request(id, 0, connection{})
	}
	idle(t, s, f)
	var order string
	for _, m := range f.sent {
		order += m.identity
	}
	if order != "abcabcabcabcabcabc" {
		t.Errorf("order %s", order)
	}
	for _, id := range []string{"a", "b", "c"} {
		wantRun(t, f.received(id), 0, 4)
	}
	if n := s.counters.batches.Load(); n != 15 {
		t.Errorf("%d batches counted", n)
	}
}

// Sixteen at once; the others wait, and get their turn in order when a place is
// free. A run is as of then.
func TestReplaySixteenAtOnce(t *testing.T) {
	s, f := newFakeServer(t, nil, 3)
	name := func(i int) string { return fmt.Sprintf("peer%02d", i) }
	for i := range maxReplays + 3 {
		f.room[name(i)] = 0
		f.request(name(i), 0, connection{})
	}
	for range 50 {
		s.round()
	}
	if len(s.active) != maxReplays || len(s.waiting.requests) != 3 || len(f.sent) != 0 {
		t.Fatalf("%d active, %d waiting, %d sent", len(s.active), len(s.waiting.requests), len(f.sent))
	}
	s.ring.push(3, pattern(3, 10))
	for i := range maxReplays + 3 {
		// One place at a time; who has waited longest takes it.
		f.room[name((i+5)%(maxReplays+3))] = 100
		for range 50 {
			s.round()
		}
	}
	idle(t, s, f)
	for i := range maxReplays {
		wantRun(t, f.received(name(i)), 0, 2)
	}
	for i := maxReplays; i < maxReplays+3; i++ {
		wantRun(t, f.received(name(i)), 0, 3)
	}
	if n := s.counters.aborted.Load(); n != 0 {
		t.Errorf("%d aborted", n)
	}
}

// A peer whose queue is full is tried again after 1, 2, 4, 8, 10, 10 ... ms, holds
// up nobody, and nothing is left out, the end neither.
func TestReplayFullQueue(t *testing.T) {
	s, f := newFakeServer(t, nil, 3)
	f.room["slow"] = 0
	f.request("slow", 0, connection{})
	for range 8 {
		s.round()
	}
	ms := time.Millisecond
	if want := []time.Duration{ms, 2 * ms, 4 * ms, 8 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms}; !slices.Equal(f.waits, want) {
		t.Errorf("waits %v, want %v", f.waits, want)
	}
	f.request("fast", 0, connection{})
	for range 6 {
		s.round()
	}
	wantRun(t, f.received("fast"), 0, 2)
	for seq := range 4 { // the last one is the end
		f.room["slow"] = 1
		f.waits = nil
		for range 20 {
			s.round()
		}
		if n := len(f.received("slow")); n != seq+1 {
			t.Fatalf("%d messages, want %d", n, seq+1)
		}
	}
	idle(t, s, f)
	wantRun(t, f.received("slow"), 0, 2)
}

// Thirty seconds without progress end a replay and its connection; progress
// starts them anew.
func TestReplayStall(t *testing.T) {
	s, f := newFakeServer(t, nil, 3)
	from := ownConnection(t)
	f.room["stuck"] = 0
	f.request("stuck", 0, from)
	run := func(d time.Duration) {
		for end := f.clock.Add(d); f.clock.Before(end); {
			s.round()
		}
	}
	run(29 * time.Second)
	f.room["stuck"] = 1
	run(29 * time.Second)
	if len(s.active) != 1 || len(f.received("stuck")) != 1 {
		t.Fatalf("%d active, received %v", len(s.active), f.received("stuck"))
	}
	begin := f.clock
	idle(t, s, f)
	if d := f.clock.Sub(begin); d < 500*time.Millisecond || d > 1500*time.Millisecond {
		t.Errorf("ended %v after 29 s", d)
	}
	if n := s.counters.aborted.Load(); n != 1 || len(f.cuts) != 1 || f.cuts[0] != from || s.ring.pinned != 0 {
		t.Errorf("%d aborted, cut %v", n, f.cuts)
	}
}

// ownConnection is a socket that is open for as long as the test runs.
func ownConnection(t testing.TB) connection {
	t.Helper()
	r, _ := newSocketPair(t)
	inode, ok := socketInode(r)
	if !ok {
		t.Fatal("no socket")
	}
	return connection{r, inode}
}

// A peer that is gone ends its replay, whether ZeroMQ says so or its descriptor.
func TestReplayPeerGone(t *testing.T) {
	s, f := newFakeServer(t, nil, 1000)
	f.gone["gone"] = true
	f.request("gone", 0, connection{})
	idle(t, s, f)
	if s.counters.aborted.Load() != 1 || len(f.sent) != 0 {
		t.Errorf("%d aborted, %d sent", s.counters.aborted.Load(), len(f.sent))
	}
	r, closePair := newSocketPair(t)
	inode, _ := socketInode(r)
	f.request("ends", 0, connection{r, inode})
	for range 10 {
		s.round()
	}
	closePair()
	idle(t, s, f)
	if n := len(f.received("ends")); s.counters.aborted.Load() != 2 || n < 9 || n > 10 {
		t.Errorf("%d aborted, %d sent", s.counters.aborted.Load(), n)
	}
	for c := s.ring.head; c != nil; c = c.next {
		if c.pins != 0 {
			t.Error("pinned for nobody")
		}
	}
}

// When the ring goes on and replays keep too much of what has left it, the one
// furthest behind is aborted, and only that.
func TestReplayPinsAreBounded(t *testing.T) {
	const batch = 60 << 10 // one to a chunk
	s, f := newFakeServer(t, func(o *Options) { o.ReplayBufferBytes = 10 * batch }, 0)
	for seq := range uint64(10) {
		s.ring.push(seq, pattern(seq, batch))
	}
	f.room["behind"], f.room["ahead"] = 1, 8
	f.request("behind", 0, connection{})
	f.request("ahead", 0, connection{})
	for range 60 {
		s.round()
	}
	for seq := uint64(10); seq < 60; seq++ {
		s.ring.push(seq, pattern(seq, batch))
		s.round()
		if s.ring.pinned > 10*minChunk {
			t.Fatalf("%d bytes pinned", s.ring.pinned)
		}
	}
	if n := s.counters.aborted.Load(); n != 0 { // the whole of a run fits
		t.Errorf("%d aborted", n)
	}
	f.room["next"] = 1
	f.request("next", 55, connection{})
	for range 60 {
		s.round()
	}
	for seq := uint64(60); seq < 80 && s.counters.aborted.Load() == 0; seq++ {
		s.ring.push(seq, pattern(seq, batch))
		s.round()
	}
	if n := s.counters.aborted.Load(); n != 1 || s.running([]byte("behind")) >= 0 {
		t.Errorf("%d aborted, behind is at %d", n, s.running([]byte("behind")))
	}
	delete(f.room, "ahead")
	delete(f.room, "next")
	idle(t, s, f)
	wantRun(t, f.received("ahead"), 0, 9)
	wantRun(t, f.received("next"), 55, 59)
	if s.ring.pinned != 0 {
		t.Errorf("%d bytes pinned", s.ring.pinned)
	}
}

// A flood of messages is read in pieces, and replays go on in between.
func TestReplayReadsBetweenSends(t *testing.T) {
	s, f := newFakeServer(t, nil, 10)
	f.request("a", 0, connection{})
	s.round()
	for range 10 * maxRequestReads {
		f.in = append(f.in, fakeRequest{frames: [][]byte{[]byte("x"), []byte("?")}})
	}
	for i := range 10 {
		s.round()
		if len(f.sent) != i+2 || f.reads != 1+(i+1)*maxRequestReads {
			t.Errorf("round %d: %d sent, %d read", i, len(f.sent), f.reads)
		}
	}
	if n := s.counters.malformed.Load(); n != 10*maxRequestReads || len(f.waits) != 0 {
		t.Errorf("%d malformed, waits %v", n, f.waits)
	}
}

// At the end those that wait are dropped, those that run go on until the
// deadline, and new ones are not begun.
func TestReplayServerEnds(t *testing.T) {
	s, f := newFakeServer(t, nil, 3)
	for i := range maxReplays + 2 {
		id := fmt.Sprint(i)
		f.room[id] = 0
		f.request(id, 0, connection{})
	}
	for range 5 {
		s.round()
	}
	begin := f.clock
	s.end(begin.Add(time.Second), time.Now().Add(time.Minute))
	s.end(begin, time.Time{}) // the first one counts
	f.request("late", 0, connection{})
	f.room["3"] = 10
	s.serve()
	if d := f.clock.Sub(begin); d < time.Second || d > time.Second+maxPause {
		t.Errorf("went on for %v", d)
	}
	wantRun(t, f.received("3"), 0, 2)
	if n := s.counters.aborted.Load(); n != maxReplays+2 || s.counters.requests.Load() != maxReplays+3 {
		t.Errorf("%d of %d aborted", n, s.counters.requests.Load())
	}
	if f.woken != 1 || len(f.closed) != 1 || f.closed[0] < 50*time.Second || s.ring.pinned != 0 {
		t.Errorf("woken %d, closed %v, pinned %d", f.woken, f.closed, s.ring.pinned)
	}
	select {
	case <-s.done:
	default:
		t.Error("not done")
	}
}

// A socket that is of no use any more, as after the end of a shared context,
// ends the server.
func TestReplaySocketFails(t *testing.T) {
	for _, busy := range []bool{false, true} {
		s, f := newFakeServer(t, nil, 3)
		if busy {
			f.room["a"] = 0
			f.request("a", 0, connection{})
			s.round()
		}
		f.err = errors.New("terminated")
		s.serve()
		if len(f.closed) != 1 || f.closed[0] != 0 || len(s.active) != 0 {
			t.Errorf("closed %v, %d active", f.closed, len(s.active))
		}
		s.end(time.Now(), time.Now())
	}
}
