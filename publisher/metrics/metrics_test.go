// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher"
	"github.com/kvcast/kvcast/publisher/metrics"
	"github.com/kvcast/kvcast/publisher/wire"
)

const patience = 20 * time.Second

// scrape returns what a handler tells, by name with labels.
func scrape(t *testing.T, collectors ...*metrics.Collector) map[string]float64 {
	t.Helper()
	got, err := read(collectors...)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// mustScrape is scrape outside of tests.
func mustScrape(collectors ...*metrics.Collector) map[string]float64 {
	got, err := read(collectors...)
	if err != nil {
		panic(err)
	}
	return got
}

func read(collectors ...*metrics.Collector) (map[string]float64, error) {
	handler, err := metrics.Handler(collectors...)
	if err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	got := make(map[string]float64)
	lines := bufio.NewScanner(w.Body)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		got[strings.TrimPrefix(line[:i], "kvcast_")] = value
	}
	if w.Code != 200 || len(got) == 0 {
		return nil, fmt.Errorf("code %d, %d figures", w.Code, len(got))
	}
	return got, nil
}

// fixed has always the same figures.
type fixed publisher.Stats

func (f fixed) Stats() publisher.Stats { return publisher.Stats(f) }

// figureOf is the name of a field of the statistics in words of the wire contract.
func figureOf(field string) string {
	return strings.ToLower(regexp.MustCompile("([a-z])([A-Z])").ReplaceAllString(field, "${1}_${2}"))
}

// Every number of the statistics is shown, under its own name.
func TestEveryFigureIsShown(t *testing.T) {
	var s publisher.Stats
	next := uint64(1000)
	want := make(map[string]float64)
	set := func(v reflect.Value, skip map[string]string) {
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name := figureOf(field.Name)
			if to, ok := skip[field.Name]; ok {
				name = to
			}
			switch field.Type.Kind() {
			case reflect.Uint64:
				v.Field(i).SetUint(next)
			case reflect.Int, reflect.Int64:
				v.Field(i).SetInt(int64(next))
			default:
				continue
			}
			if name != "" {
				want[name] += float64(next)
			}
			next++
		}
	}
	set(reflect.ValueOf(&s).Elem(), map[string]string{"Epoch": "", "FirstSeq": "", "PendingBlocks": "",
		"Subscriptions": "subscribers"})
	set(reflect.ValueOf(&s.Sink).Elem(), map[string]string{
		"BufferBytes": "record_buffer_bytes", "BufferUsedBytes": "record_buffer_used_bytes",
		// Told by reason.
		"RemovedBlocks": "", "RemovedCapacityBlocks": `removed_blocks_total{reason="capacity"}`,
		"RemovedTTLBlocks": `removed_blocks_total{reason="ttl"}`, "RemovedEndedBlocks": `removed_blocks_total{reason="ended"}`,
		"RemovedScopeBlocks": `removed_blocks_total{reason="scope"}`,
		// What the drain side has done shows in published events.
		"DrainedBatches": "", "DrainedEvents": "", "DrainedStoredBlocks": "", "DrainedRemovedBlocks": "", "MirrorBlocks": "",
	})
	want["resident_blocks"] = float64(s.ResidentBlocks())
	delete(want, "oldest_deferred")
	s.Sink.OldestDeferred = 1500 * time.Millisecond
	want["oldest_deferred_seconds"] = 1.5
	s.Epoch, s.State = 0xabc, publisher.StateRunning
	s.LastSendTime = time.Unix(1700000000, 500000000)
	want["last_send_time_seconds"] = 1700000000.5
	want[`publisher_info{epoch="0000000000000abc",state="running"}`] = 1
	s.SendLatency = publisher.Latency{Count: 3, Sum: 3 * time.Second}
	s.SendLatency.Buckets[0], s.SendLatency.Buckets[2], s.SendLatency.Buckets[len(s.SendLatency.Buckets)-1] = 1, 1, 1
	want["send_seconds_count"], want["send_seconds_sum"], want[`send_seconds_bucket{le="+Inf"}`] = 3, 3, 3
	want[`send_seconds_bucket{le="1e-05"}`], want[`send_seconds_bucket{le="5e-05"}`], want[`send_seconds_bucket{le="1"}`] = 1, 2, 2
	want["drain_seconds_count"] = 0

	got := scrape(t, metrics.New(fixed(s), nil))
	for name, value := range want {
		found, ok := got[name]
		if !ok {
			found, ok = got[name+"_total"]
		}
		if !ok || found != value {
			t.Errorf("%s is %v (%v), want %v", name, found, ok, value)
		}
	}
	// Two publishers of a process are told apart by labels.
	got = scrape(t, metrics.New(fixed(s), prometheus.Labels{"rank": "0"}), metrics.New(fixed{}, prometheus.Labels{"rank": "1"}))
	if got[`next_seq{rank="0"}`] != float64(s.NextSeq) || got[`next_seq{rank="1"}`] != 0 {
		t.Errorf("%v", got)
	}
	if _, err := metrics.Handler(metrics.New(fixed(s), nil), metrics.New(fixed{}, nil)); err == nil {
		t.Error("two collectors with the same labels")
	}
}

func start(t *testing.T, o publisher.Options, source publisher.Source) *publisher.Publisher {
	t.Helper()
	p, err := publisher.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if source != nil {
		if err := p.Attach(source); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return p
}

func options() publisher.Options {
	o := publisher.DefaultOptions()
	o.Endpoint = "tcp://127.0.0.1:0"
	o.TailMark = false
	return o
}

func flush(t *testing.T, p *publisher.Publisher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.Flush(ctx); err != nil && !errors.Is(err, publisher.ErrDropped) {
		t.Fatal(err)
	}
}

// expect waits for figures.
func expect(t *testing.T, p *publisher.Publisher, want map[string]float64) {
	t.Helper()
	c := metrics.New(p, nil)
	var wrong string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		got := scrape(t, c)
		wrong = ""
		for name, value := range want {
			if found, ok := got[name]; !ok || found != value {
				wrong += fmt.Sprintf(" %s is %v (%v), want %v;", name, found, ok, value)
			}
		}
		if wrong == "" {
			for name, value := range want {
				provokes(name, value)
			}
			return
		}
	}
	t.Error(wrong)
}

func stored(hash uint64) *event.BlockStored {
	return &event.BlockStored{Hashes: []uint64{hash}, Tokens: []uint32{1}, BlockSize: 1, Medium: "GPU", HasMedium: true}
}

// What a host's own batches can lead to.
func TestFiguresOfPublish(t *testing.T) {
	o := options()
	o.MaxBatchEvents, o.MaxQueueSize, o.ShutdownTimeout = 1, 5, 0
	p := start(t, o, nil)
	expect(t, p, map[string]float64{"enqueued_batches_total": 1, "published_batches_total": 1, "next_seq": 1, "subscribers": 0,
		"last_send_time_seconds": float64(p.Stats().LastSendTime.UnixNano()) / 1e9, "send_seconds_count": 1})
	// All of one call are queued or dropped before any of them can be sent.
	events := make([]event.Event, 8)
	for i := range events {
		events[i] = stored(uint64(i))
	}
	if err := p.Publish(events...); !errors.Is(err, publisher.ErrQueueFull) {
		t.Fatal(err)
	}
	flush(t, p)
	if err := p.Publish(&event.BlockRemoved{}); !errors.Is(err, publisher.ErrInvalidEvent) {
		t.Fatal(err)
	}
	flush(t, p)
	expect(t, p, map[string]float64{"queue_full_drops_total": 3, "dropped_batches_total": 3, "enqueued_batches_total": 6,
		"enqueued_events_total": 6, "published_batches_total": 6, "published_events_total": 6, "invalid_events_total": 1,
		"burnt_numbers_total": 1, "next_seq": 10, "queue_depth": 0, "queue_bytes": 0})
	client := subscriber(t, p.Endpoint())
	expect(t, p, map[string]float64{"subscribers": 1})
	client.Close()
	expect(t, p, map[string]float64{"subscribers": 0})
	epoch := fmt.Sprintf(`publisher_info{epoch="%016x",state="closed"}`, p.Epoch())
	p.Close()
	expect(t, p, map[string]float64{epoch: 1})
}

func subscriber(t *testing.T, endpoint string) *zmq.Socket {
	t.Helper()
	s, err := zmq.NewSocket(zmq.SUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.SetLinger(0)
	s.SetSubscribe("")
	if err := s.Connect(endpoint); err != nil {
		t.Fatal(err)
	}
	return s
}

// Batches that Close gives up count as errors of sending.
func TestFiguresOfClose(t *testing.T) {
	o := options()
	o.MaxBatchEvents, o.ShutdownTimeout = 1, 0
	p := start(t, o, nil)
	events := make([]event.Event, 50000)
	for i := range events {
		events[i] = stored(uint64(i))
	}
	if err := p.Publish(events...); err != nil {
		t.Fatal(err)
	}
	p.Close()
	st := p.Stats()
	if st.SendErrorDrops == 0 {
		t.Fatal("nothing was given up")
	}
	expect(t, p, map[string]float64{"send_error_drops_total": float64(st.SendErrorDrops), "dropped_batches_total": float64(st.SendErrorDrops)})
}

// failing is a source whose first drains fail.
type failing struct{ left int }

func (f *failing) Form() event.Form      { return event.Signed64 }
func (f *failing) Wake() <-chan struct{} { return nil }
func (f *failing) Drain(int, int) (*bindings.Batch, error) {
	if f.left > 0 {
		f.left--
		return nil, errors.New("no")
	}
	return &bindings.Batch{}, nil
}

func TestFiguresOfAFailingSource(t *testing.T) {
	p := start(t, options(), &failing{left: 2})
	expect(t, p, map[string]float64{"source_errors_total": 2, "drain_seconds_count": 0, "resident_blocks": 0})
}

// What requests for earlier batches lead to.
func TestFiguresOfReplays(t *testing.T) {
	o := options()
	o.ReplayEndpoint, o.BufferSteps, o.MaxBatchEvents, o.ShutdownTimeout = "tcp://127.0.0.1:0", 500, 1, 0
	p := start(t, o, nil)
	for h := range uint64(600) {
		if err := p.Publish(stored(h)); err != nil {
			t.Fatal(err)
		}
	}
	flush(t, p)
	expect(t, p, map[string]float64{"ring_batches": 500, "ring_bytes": float64(p.Stats().RingBytes), "replay_requests_total": 0})
	dealer := newDealer(t, p.ReplayEndpoint())
	ask(t, dealer, []byte("short"))
	expect(t, p, map[string]float64{"replay_malformed_total": 1})
	ask(t, dealer, wire.AppendSeq(nil, 598))
	for range 4 { // 598, 599, 600 and the end
		if _, err := dealer.RecvMessageBytes(0); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, p, map[string]float64{"replay_requests_total": 1, "replay_batches_total": 3, "replay_truncated_total": 0})
	// This one is cut off.
	ask(t, dealer, wire.AppendSeq(nil, 0))
	expect(t, p, map[string]float64{"replay_requests_total": 2, "replay_truncated_total": 1})
	p.Close()
	st := p.Stats()
	expect(t, p, map[string]float64{"replay_aborted_total": float64(st.ReplayAborted), "replay_batches_total": float64(st.ReplayBatches)})
}

// What the cache's own stream counts, also when it is closed.
func TestFiguresOfAStream(t *testing.T) {
	o := options()
	o.Multimodal, o.MaxEntries = publisher.MultimodalSuppress, 2
	stream, err := bindings.NewStream(o.StreamConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	manager, err := bindings.NewManager(bindings.Config{TokensPerBlock: 2, CapacityBlocks: 8, MaxDigests: 4, Stream: stream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = manager.Close() })
	run := func(tokens []uint32, digests ...event.Digest) {
		t.Helper()
		s, err := manager.Open(bindings.Prompt{Tokens: tokens, Digests: digests})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Grow(len(tokens)); err != nil {
			t.Fatal(err)
		}
		result := make([]bindings.CommitResult, 1)
		if err := manager.Commit([]bindings.CommitItem{{Sequence: s.ID(), Tokens: tokens[s.MatchedTokens():], Digests: digests}}, result); err != nil || result[0].Err != nil {
			t.Fatal(err, result[0].Err)
		}
		if err := s.Release(); err != nil {
			t.Fatal(err)
		}
	}
	// Superseded by the reset, and room for two: the others are deferred.
	run([]uint32{1, 2, 3, 4})
	if err := manager.Reset(); err != nil {
		t.Fatal(err)
	}
	run([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9})
	before, err := stream.Stats()
	if err != nil || before.PendingBlocks == 0 || before.SupersededRecords != 0 {
		t.Fatalf("%+v, %v", before, err)
	}
	p, err := publisher.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Attach(stream); err != nil {
		t.Fatal(err)
	}
	expect(t, p, map[string]float64{"deferred_blocks_total": float64(before.DeferredBlocks), "dropped_events_total": float64(before.DroppedEvents),
		"pending_blocks": float64(before.PendingBlocks), "healed_blocks_total": 0, "partial_blocks_suppressed_total": 1,
		"record_buffer_bytes": float64(before.BufferBytes), "record_buffer_used_bytes": float64(before.BufferUsedBytes), "clears_total": 1,
		"resident_blocks": 4, `publisher_info{epoch="` + fmt.Sprintf("%016x", p.Epoch()) + `",state="new"}`: 1})
	if got := scrape(t, metrics.New(p, nil))["oldest_deferred_seconds"]; got <= 0 || got > patience.Seconds() {
		t.Errorf("the oldest has waited %v s", got)
	} else {
		provokes("oldest_deferred_seconds", got)
	}
	if before.BufferUsedBytes == 0 || before.DeferredBlocks == 0 {
		t.Errorf("%+v", before)
	}
	// All blocks that wait, those deferred among them, make room: evicted before
	// they could be announced.
	run([]uint32{11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26})
	mid, err := stream.Stats()
	if err != nil || mid.DeferredEvictedBlocks == 0 || mid.UnannouncedRemovals == 0 {
		t.Fatalf("%+v, %v", mid, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	flush(t, p)
	run([]uint32{31, 32, 33, 34}) // takes the place of announced ones
	flush(t, p)
	healed, err := stream.Stats()
	if err != nil || healed.HealedBlocks == 0 || healed.SupersededRecords == 0 {
		t.Fatalf("%+v, %v", healed, err)
	}
	resident, err := manager.Stats()
	if err != nil {
		t.Fatal(err)
	}
	expect(t, p, map[string]float64{"healed_blocks_total": float64(healed.HealedBlocks), "pending_blocks": 0, "oldest_deferred_seconds": 0,
		"deferred_evicted_blocks_total": float64(mid.DeferredEvictedBlocks), "unannounced_removals_total": float64(mid.UnannouncedRemovals),
		"superseded_records_total": float64(healed.SupersededRecords), "announced_blocks": float64(resident.Blocks),
		"resident_blocks": float64(resident.Blocks), "stored_blocks_total": float64(healed.StoredBlocks),
		`removed_blocks_total{reason="capacity"}`: float64(healed.RemovedBlocks), `removed_blocks_total{reason="ttl"}`: 0,
		"record_buffer_used_bytes": 0})
	if resident.Blocks == 0 || healed.RemovedBlocks == 0 {
		t.Errorf("%+v", healed)
	}
	if got := scrape(t, metrics.New(p, nil)); got["drain_seconds_count"] == 0 || got["drain_seconds_sum"] <= 0 || got["send_seconds_sum"] <= 0 {
		t.Errorf("drained %v times in %v s", got["drain_seconds_count"], got["drain_seconds_sum"])
	} else {
		provokes("drain_seconds_count", got["drain_seconds_count"])
	}
	if err := manager.Reset(); err != nil {
		t.Fatal(err)
	}
	run([]uint32{event.DigestToken(0), 2, 3, 4}, event.Digest{1})
	flush(t, p)
	last := map[string]float64{"multimodal_blocks_suppressed_total": 2, "suppressed_blocks": 2, "resident_blocks": 2,
		"cleared_blocks_total": float64(healed.ClearedBlocks + resident.Blocks), "clears_total": 2, "hash_collisions_total": 0}
	expect(t, p, last)
	p.Close()
	if err := manager.Close(); err != nil {
		t.Fatal(err)
	}
	if err := stream.Close(); err != nil {
		t.Fatal(err)
	}
	last["suppressed_blocks"], last["resident_blocks"] = float64(p.Stats().Sink.SuppressedBlocks), float64(p.Stats().ResidentBlocks())
	expect(t, p, last)
}

// Each reason for which a block goes is counted by itself.
func TestReasonsOfRemovals(t *testing.T) {
	o := options()
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
	p, err := publisher.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Attach(stream); err != nil {
		t.Fatal(err)
	}
	// run stores a prompt and has word to say of its sequence before it is released.
	run := func(scope *bindings.Scope, word func(id bindings.SequenceID, errs []error) error, tokens ...uint32) {
		t.Helper()
		s, err := manager.Open(bindings.Prompt{Tokens: tokens, Scope: scope})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Grow(len(tokens)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(tokens[s.MatchedTokens():]); err != nil {
			t.Fatal(err)
		}
		if word != nil {
			errs := make([]error, 1)
			if err := word(s.ID(), errs); err != nil || errs[0] != nil {
				t.Fatal(err, errs[0])
			}
			if _, err := manager.Info(s.ID()); err != nil {
				return // the word was its last
			}
		}
		if err := s.Release(); err != nil {
			t.Fatal(err)
		}
	}
	adapter := &bindings.Scope{LoRAName: "adapter"}
	run(adapter, nil, 1, 2, 3, 4, 5, 6, 7, 8)
	if _, err := manager.DropScopes([]bindings.DropItem{{Scope: adapter}}, make([]bindings.DropResult, 1), nil); err != nil {
		t.Fatal(err)
	}
	run(nil, func(id bindings.SequenceID, errs []error) error {
		return manager.Retain([]bindings.RetainItem{{Sequence: id, EndToken: bindings.ToTheEnd, Priority: 80, Expires: time.Second}}, errs)
	}, 11, 12, 13, 14, 15, 16)
	if n, _, err := manager.Expire(2*time.Second, 0); err != nil || n != 3 {
		t.Fatalf("%d expired, %v", n, err)
	}
	run(nil, func(id bindings.SequenceID, errs []error) error {
		return manager.End([]bindings.SequenceID{id}, errs)
	}, 21, 22, 23, 24)
	run(nil, nil, 31, 32)
	run(nil, nil, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56)
	expect(t, p, map[string]float64{`removed_blocks_total{reason="scope"}`: 4, `removed_blocks_total{reason="ttl"}`: 3,
		`removed_blocks_total{reason="ended"}`: 2, `removed_blocks_total{reason="capacity"}`: 1})
	if st := p.Stats().Sink; st.RemovedBlocks != 10 {
		t.Errorf("%+v", st)
	}
	p.Close()
	if err := manager.Close(); err != nil {
		t.Fatal(err)
	}
	if err := stream.Close(); err != nil {
		t.Fatal(err)
	}
}

// The dashboard asks for all that the contract names and for nothing that is not there.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../docs/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard any
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for name := range scrape(t, metrics.New(fixed{}, nil)) {
		name, _, _ = strings.Cut(name, "{")
		known["kvcast_"+name] = true
	}
	asked := regexp.MustCompile(`kvcast_[a-z_]+`).FindAllString(string(text), -1)
	for _, name := range contractFigures {
		name = "kvcast_" + strings.TrimSuffix(name, "_count")
		if !slices.ContainsFunc(asked, func(n string) bool { return strings.TrimSuffix(n, "_bucket") == name }) {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
	for _, name := range asked {
		if !known[name] {
			t.Errorf("the dashboard asks for %s", name)
		}
	}
}
