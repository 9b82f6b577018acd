// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/metrics"
	"github.com/kvcast/kvcast/publisher/wire"
	"github.com/kvcast/kvcast/tests/endcheck"
)

// contractFigures are those that the wire contract names (section 11), in its
// order, and the gauges and histograms that a host is promised beside them. Of
// the contract's, non_target_life_cycles_ignored is not here: a manager has one
// group of blocks, and so nothing that could be counted.
var contractFigures = []string{
	"enqueued_batches_total", "enqueued_events_total", "published_batches_total", "queue_full_drops_total",
	"send_error_drops_total", "dropped_batches_total", "burnt_numbers_total", "invalid_events_total",
	"next_seq", "last_send_time_seconds", "queue_depth", "publisher_info",
	"replay_requests_total", "replay_malformed_total", "replay_truncated_total", "replay_aborted_total",
	"replay_batches_total",
	"stored_blocks_total", "removed_blocks_total", "partial_blocks_suppressed_total", "dropped_events_total",
	"deferred_blocks_total", "healed_blocks_total", "multimodal_blocks_suppressed_total",
	"deferred_evicted_blocks_total", "pending_blocks", "unannounced_removals_total",
	"subscribers", "resident_blocks", "oldest_deferred_seconds", "drain_seconds_count", "send_seconds_count",
}

// unprovoked are figures that nothing can make another number than 0 from outside.
var unprovoked = map[string]string{
	"hash_collisions_total": "needs two blocks with 64 equal bits of SHA-256; the C++ tests shorten the hashes",
}

// provoked are the figures that a test of this run has read as it expected them,
// above 0, without their labels.
var provoked = struct {
	sync.Mutex
	names map[string]bool
}{names: make(map[string]bool)}

func provokes(name string, value float64) {
	if value <= 0 {
		return
	}
	name, _, _ = strings.Cut(name, "{")
	provoked.Lock()
	defer provoked.Unlock()
	provoked.names[name] = true
}

// wholeRun fails a run of all tests that leaves a figure unprovoked.
type wholeRun struct{ m *testing.M }

func (w wholeRun) Run() int {
	code := w.m.Run()
	if code != 0 {
		return code
	}
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.bench", "test.fuzz"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return code
		}
	}
	missing := []string{}
	for _, name := range shownFigures() {
		if !provoked.names[name] && unprovoked[name] == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		fmt.Printf("FAIL: no test provokes %q\n", missing)
		return 1
	}
	return code
}

func TestMain(m *testing.M) { os.Exit(endcheck.Run(wholeRun{m})) }

// shownFigures are the names of all figures, of histograms the count.
func shownFigures() (names []string) {
	known := make(map[string]bool)
	for name := range mustScrape(metrics.New(fixed{}, nil)) {
		name, _, _ = strings.Cut(name, "{")
		if strings.HasSuffix(name, "_seconds_bucket") || strings.HasSuffix(name, "_seconds_sum") || known[name] {
			continue
		}
		known[name] = true
		names = append(names, name)
	}
	return names
}

// Everything that the contract names is there; that all of it has been provoked is
// seen at the end of the run.
func TestFiguresOfTheContract(t *testing.T) {
	shown := shownFigures()
	known := make(map[string]bool)
	for _, name := range shown {
		known[name] = true
	}
	for _, name := range contractFigures {
		if !known[name] {
			t.Errorf("%s is not shown", name)
		}
		if unprovoked[name] != "" {
			t.Errorf("%s must be provoked", name)
		}
	}
	for name := range unprovoked {
		if !known[name] {
			t.Errorf("%s does not exist", name)
		}
	}
}

// What waits in the queue shows as long as it waits.
func TestFiguresOfTheQueue(t *testing.T) {
	o := options()
	o.MaxBatchEvents, o.ShutdownTimeout = 1, 0
	p := start(t, o, nil)
	c := metrics.New(p, nil)
	events := make([]event.Event, 50000)
	for i := range events {
		events[i] = stored(uint64(i))
	}
	for end := time.Now().Add(patience); ; {
		if err := p.Publish(events...); err != nil {
			t.Fatal(err)
		}
		got := scrape(t, c)
		if got["queue_depth"] > 0 && got["queue_bytes"] > 0 {
			provokes("queue_depth", got["queue_depth"])
			provokes("queue_bytes", got["queue_bytes"])
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v batches of %v bytes wait", got["queue_depth"], got["queue_bytes"])
		}
		flush(t, p)
	}
}

// A replay that nobody reads does not get to its end.
func TestFiguresOfAnAbortedReplay(t *testing.T) {
	o := options()
	o.ReplayEndpoint, o.ShutdownTimeout = "tcp://127.0.0.1:0", 0
	p := start(t, o, nil)
	big := stored(0)
	for i := range 20000 {
		big.Hashes = append(big.Hashes, uint64(i)+1<<40)
		big.Tokens = append(big.Tokens, uint32(i))
	}
	for range 100 { // more than the buffers on the way take
		if err := p.Publish(big); err != nil {
			t.Fatal(err)
		}
		flush(t, p)
	}
	// All of it is kept.
	expect(t, p, map[string]float64{"ring_batches": 101, "published_bytes_total": float64(p.Stats().RingBytes)})
	dealer := newDealer(t, p.ReplayEndpoint())
	ask(t, dealer, wire.AppendSeq(nil, 0))
	expect(t, p, map[string]float64{"replay_requests_total": 1})
	p.Close()
	expect(t, p, map[string]float64{"replay_aborted_total": 1})
}

func newDealer(t *testing.T, endpoint string) *zmq.Socket {
	t.Helper()
	s, err := zmq.NewSocket(zmq.DEALER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.SetLinger(0)
	s.SetRcvtimeo(patience)
	s.SetRcvhwm(1)
	if err := s.Connect(endpoint); err != nil {
		t.Fatal(err)
	}
	return s
}

func ask(t *testing.T, s *zmq.Socket, frame []byte) {
	t.Helper()
	if _, err := s.SendMessage("", frame); err != nil {
		t.Fatal(err)
	}
}

// Snapshots and resyncs are counted, and so is a snapshot that cannot be made.
func TestFiguresOfSnapshots(t *testing.T) {
	o := options()
	o.ReplayEndpoint, o.BufferSteps = "tcp://127.0.0.1:0", 1
	stream, err := bindings.NewStream(o.StreamConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	manager, err := bindings.NewManager(bindings.Config{TokensPerBlock: 2, CapacityBlocks: 8, Stream: stream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = manager.Close() })
	p := start(t, o, stream)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for range 2 {
		if err := p.Resync(ctx); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, p, map[string]float64{"resyncs_total": 2, "snapshots_total": 0})
	dealer := newDealer(t, p.ReplayEndpoint())
	ask(t, dealer, wire.AppendSeq(nil, 0))
	expect(t, p, map[string]float64{"snapshots_total": 1, "replay_truncated_total": 1, "snapshot_errors_total": 0})
	if err := manager.Close(); err != nil {
		t.Fatal(err)
	}
	if err := stream.Close(); err != nil {
		t.Fatal(err)
	}
	other := newDealer(t, p.ReplayEndpoint())
	ask(t, other, wire.AppendSeq(nil, 0))
	expect(t, p, map[string]float64{"snapshots_total": 1, "replay_truncated_total": 2, "snapshot_errors_total": 1})
}

// Who is not on the list of keys is turned away and counted.
func TestFiguresOfCurve(t *testing.T) {
	var keys [3][2]string // publisher, listed, not listed
	for i := range keys {
		var err error
		if keys[i][0], keys[i][1], err = zmq.NewCurveKeypair(); err != nil {
			provokes("refused_peers_total", 1) // cannot be
			t.Skipf("libzmq without CURVE: %v", err)
		}
	}
	o := options()
	o.CurveSecretKeyFile, o.CurveAllowFile = filepath.Join(t.TempDir(), "key"), filepath.Join(t.TempDir(), "allow")
	for name, text := range map[string]string{o.CurveSecretKeyFile: keys[0][1], o.CurveAllowFile: keys[1][0]} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := start(t, o, nil)
	expect(t, p, map[string]float64{"refused_peers_total": 0})
	s, err := zmq.NewSocket(zmq.SUB)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.SetLinger(0)
	if err := s.ClientAuthCurve(keys[0][0], keys[2][0], keys[2][1]); err != nil {
		t.Fatal(err)
	}
	s.SetReconnectIvl(-1) // once
	if err := s.Connect(p.Endpoint()); err != nil {
		t.Fatal(err)
	}
	expect(t, p, map[string]float64{"refused_peers_total": 1})
}
