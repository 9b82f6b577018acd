// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher"
	"github.com/kvcast/kvcast/publisher/wire"
)

// What the traffic of the matrix is made of.
const (
	matrixRank    = 1
	matrixBlock   = 4
	matrixPages   = 16
	matrixLoRA    = 7
	matrixAdapter = "adapter"
	matrixOffset  = 1000 // of ids that are positions of an item
	matrixPod     = "10.0.0.7:8000"
	matrixModel   = "meta-llama/Llama-3.1-8B"
)

// consumer is a row of the compatibility matrix of the wire contract: what one
// reader takes, and what it loses the batch to.
type consumer struct {
	name string
	// profiles are those for it, "" the defaults; set are keys beside them.
	profiles []string
	set      map[string]string

	// maps: it reads events that are maps. arrays are the least elements of a store
	// and a removal that is an array, 0 = it reads none; most the most, 0 = any.
	maps         bool
	arrays, most [2]int
	// hash says which hashes it takes, parents which parents, nil = the same.
	hash, parents func(raw) bool
	envelope      [2]int // elements
	hexTokens     bool   // strings among the token ids do no harm
	noClears      bool   // it loses a batch with a clear
	oneBlock      bool   // it finds the blocks of events of one block only
	lora          string // what it keys on: name, or id when there must be no name
	topic         func(string) bool
	// mark: it takes the number 2^64-1 for a restart, else that may not come.
	mark bool
	// past is what it wants of a history that is too short: "from start" on without
	// a hole, or "suffix"; "none": it asks for nothing.
	past string
}

func anyTopic(string) bool { return true }

// llmdTopic splits as that router does, and looks for the pod's address.
func llmdTopic(topic string) bool {
	parts := strings.Split(topic, "@")
	return len(parts) == 3 && parts[0] == "kv" && parts[1] == matrixPod && parts[2] == matrixModel
}

var exactly3, twoOr3 = [2]int{3, 3}, [2]int{2, 3}

// The rows of section 15, by what they refuse. The last two are no routers of
// their own: what vLLM sends, and a fleet of all that reads maps.
var matrix = []consumer{
	{name: "Dynamo", profiles: []string{"dynamo", "mixed"}, maps: true, arrays: [2]int{2, 2}, hash: anyInteger,
		envelope: exactly3, lora: "name", topic: anyTopic, past: "from start"},
	{name: "KVBM consolidator", profiles: []string{"mixed"}, maps: true, hash: unsigned, envelope: exactly3, topic: anyTopic,
		past: "none"},
	{name: "llm-d-router, vLLM adapter", profiles: []string{"llm-d"}, maps: true, arrays: [2]int{5, 2}, hash: nine,
		envelope: exactly3, lora: "name", topic: llmdTopic, past: "from start"},
	{name: "llm-d-router, SGLang adapter", profiles: []string{"llm-d"}, set: map[string]string{"encoding": "array-short"},
		arrays: [2]int{5, 2}, most: [2]int{9, 3}, hash: nine, envelope: exactly3, lora: "name", topic: llmdTopic, past: "from start"},
	{name: "llm-d-kv-cache", profiles: []string{"llm-d"}, set: map[string]string{"encoding": "array"},
		arrays: [2]int{5, 2}, hash: nine, envelope: exactly3, lora: "name", topic: llmdTopic, past: "none"},
	{name: "AIBrix", profiles: []string{"aibrix"}, arrays: [2]int{5, 2}, hash: anyInteger, envelope: twoOr3, oneBlock: true,
		lora: "id", topic: anyTopic, past: "suffix"},
	{name: "Mooncake conductor, arrays", profiles: []string{"mooncake"}, arrays: [2]int{7, 3}, hash: anyInteger, parents: unsigned,
		envelope: exactly3, noClears: true, lora: "id", topic: anyTopic, past: "from start"},
	{name: "Mooncake conductor", profiles: []string{"mooncake"}, arrays: [2]int{5, 2}, hash: anyInteger, envelope: exactly3,
		lora: "id", topic: anyTopic, past: "from start"},
	{name: "SMG", profiles: []string{"dynamo", "mixed"}, maps: true, arrays: [2]int{5, 2}, hash: anyInteger, envelope: twoOr3,
		topic: anyTopic, past: "none"},
	{name: "sgl-router", profiles: []string{"sgl-router"}, maps: true, arrays: [2]int{5, 2}, hash: signed, envelope: twoOr3,
		hexTokens: true, topic: anyTopic, mark: true, past: "none"},
	{name: "kthena", profiles: []string{"kthena"}, arrays: [2]int{6, 2}, hash: anyInteger, envelope: twoOr3, lora: "id",
		topic: func(topic string) bool { return topic == "kv-events" }, past: "none"},
	{name: "TensorRT-LLM", profiles: []string{"trtllm", ""}, maps: true, hash: signed, envelope: twoOr3, hexTokens: true,
		topic: anyTopic, past: "none"},
	{name: "TensorRT-LLM, replay", profiles: []string{"trtllm"}, maps: true, hash: signed, envelope: twoOr3, hexTokens: true,
		lora: "id", topic: anyTopic, past: "suffix"},
	{name: "readers of vLLM", profiles: []string{"vllm"}, maps: true, hash: unsigned, envelope: exactly3, lora: "name",
		topic: anyTopic, past: "from start"},
	{name: "a mixed fleet", profiles: []string{"mixed"}, maps: true, hash: func(h raw) bool { return nine(h) && signed(h) && unsigned(h) },
		envelope: exactly3, lora: "name", topic: anyTopic, past: "from start"},
}

// Each consumer's requirements, on the bytes of its profile: a reader that refuses
// what the consumer refuses loses nothing of a real stream and of the answers to its
// requests, and knows in the end what the cache holds.
func TestCompatibilityMatrix(t *testing.T) {
	covered := map[string]bool{}
	for _, c := range matrix {
		for _, profile := range c.profiles {
			covered[profile] = true
			t.Run(strings.TrimSuffix(c.name+"/"+profile, "/"), func(t *testing.T) {
				t.Parallel() // each waits for a tail mark
				o := publisher.DefaultOptions()
				set(t, &o, profile, c.set)
				c.check(t, record(t, o, c.past != "none"))
			})
		}
	}
	for _, profile := range publisher.ProfileNames() {
		if !covered[profile] {
			t.Errorf("no row for the profile %s", profile)
		}
	}
}

// recording is what a life has sent.
type recording struct {
	live [][][]byte // as frames
	// quiet is how many of them there were when the cache held announced.
	quiet     int
	announced map[uint64]bool
	// past is the answer to a request for 0, when that cannot be had any more, recent
	// to one for one of the last batches; both without the delimiter.
	past, recent [][][]byte
	newest, from uint64
}

// record lets a life go by: text, an adapter, an item, evictions, a reset, silence.
func record(t *testing.T, o publisher.Options, replay bool) (rec recording) {
	t.Helper()
	o.Endpoint, o.Rank, o.Ranks, o.WaitSubscribers = "tcp://127.0.0.1:0", matrixRank, 2, 1
	o.Pod, o.Model, o.MMTokenIDOffset, o.BufferSteps = matrixPod, matrixModel, matrixOffset, 4
	if replay {
		o.ReplayEndpoint = "tcp://127.0.0.1:0"
	}
	stream, err := bindings.NewStream(o.StreamConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	manager, err := bindings.NewManager(bindings.Config{TokensPerBlock: matrixBlock, CapacityBlocks: matrixPages, Stream: stream})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	bound := make(chan string, 1)
	o.OnBound = func(endpoint string) { bound <- endpoint }
	p, err := publisher.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Attach(stream); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- p.Start(ctx) }()
	zctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	defer zctx.Term()
	open := func(kind zmq.Type, endpoint string) *zmq.Socket {
		t.Helper()
		s, err := zctx.NewSocket(kind)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{s.SetLinger(0), s.SetRcvtimeo(deadline), s.SetRcvhwm(0)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if kind == zmq.SUB {
			s.SetSubscribe(p.Topic())
		}
		if err := s.Connect(endpoint); err != nil {
			t.Fatal(err)
		}
		return s
	}
	sub := open(zmq.SUB, <-bound)
	defer sub.Close()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	flush := func() {
		t.Helper()
		if err := p.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	serve := func(prompt bindings.Prompt) {
		t.Helper()
		s, err := manager.Open(prompt)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Grow(len(prompt.Tokens)); err != nil {
			t.Fatal(err)
		}
		result := make([]bindings.CommitResult, 1)
		err = manager.Commit([]bindings.CommitItem{{Sequence: s.ID(), Tokens: prompt.Tokens[s.MatchedTokens():],
			Digests: prompt.Digests}}, result)
		if err := errors.Join(err, result[0].Err, s.Release()); err != nil {
			t.Fatal(err)
		}
		flush()
	}
	text := func(first uint32, blocks int) bindings.Prompt {
		tokens := make([]uint32, matrixBlock*blocks)
		for i := range tokens {
			tokens[i] = first + uint32(i)
		}
		return bindings.Prompt{Tokens: tokens}
	}
	id := uint64(matrixLoRA)
	adapter := text(200, 2)
	adapter.Scope = &bindings.Scope{LoRAID: &id, LoRAName: matrixAdapter}
	image := text(300, 3)
	image.Digests = []bindings.Digest{{1, 2, 3}}
	copy(image.Tokens[5:], []uint32{bindings.DigestToken(0), matrixOffset + 1, matrixOffset + 2, matrixOffset + 3})
	shared := text(0, 4)
	copy(shared.Tokens[8:], []uint32{70000, 70001, 70002, 1 << 30, 1<<31 - 1, 0, 255, 256})
	for _, prompt := range []bindings.Prompt{text(0, 5), shared, adapter, image, text(400, 8)} {
		serve(prompt)
	}
	if err := manager.Reset(); err != nil {
		t.Fatal(err)
	}
	for _, prompt := range []bindings.Prompt{text(0, 3), image, text(500, 8), adapter, shared} {
		serve(prompt)
	}
	// The tail mark.
	for last := p.Stats().NextSeq; p.Stats().NextSeq == last; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatal("no tail mark")
		}
	}
	flush()
	resident, err := manager.Resident(o.Hash)
	if err != nil {
		t.Fatal(err)
	}
	rec.announced = map[uint64]bool{}
	for _, b := range resident {
		if b.Announced {
			rec.announced[b.Hash] = true
		}
	}
	st, sink := p.Stats(), p.Stats().Sink
	if sink.RemovedBlocks == 0 || sink.ClearedBlocks == 0 || len(rec.announced) < 8 || st.InvalidEvents != 0 || st.DroppedBatches != 0 {
		t.Fatalf("%d announced, %+v", len(rec.announced), st)
	}
	if rec.newest = st.NextSeq - 1; replay {
		ask := func(start uint64) (run [][][]byte) {
			t.Helper()
			s := open(zmq.DEALER, p.ReplayEndpoint())
			defer s.Close()
			if _, err := s.SendMessage("", binary.BigEndian.AppendUint64(nil, start)); err != nil {
				t.Fatal(err)
			}
			for {
				frames, err := s.RecvMessageBytes(0)
				if err != nil {
					t.Fatal(err)
				}
				if len(frames) != 4 || len(frames[0]) != 0 || len(frames[2]) != 8 {
					t.Fatalf("an answer of the frames %q", frames)
				}
				if binary.BigEndian.Uint64(frames[2]) == math.MaxUint64 {
					if len(frames[1])+len(frames[3]) != 0 {
						t.Fatalf("an end of the frames %q", frames)
					}
					return run
				}
				run = append(run, frames[1:])
			}
		}
		rec.past = ask(0)
		rec.from = rec.newest - 2
		rec.recent = ask(rec.from)
	}
	p.Close()
	marks := 0
	for last := -1; last <= int(rec.newest) || o.RestartMark && marks < 2; {
		frames, err := sub.RecvMessageBytes(0)
		if err != nil {
			t.Fatal(err)
		}
		rec.live = append(rec.live, frames)
		if len(frames) == 3 && binary.BigEndian.Uint64(frames[1]) == math.MaxUint64 {
			marks++
			continue
		}
		if last++; last == int(rec.newest) {
			rec.quiet = len(rec.live)
		}
	}
	return rec
}

func (c consumer) newReader() *reader { return &reader{consumer: c, blocks: map[uint64]bool{}} }

func (c consumer) check(t *testing.T, rec recording) {
	r := c.newReader()
	next, empty := uint64(0), 0
	lastTS := 0.0
	for i, frames := range rec.live {
		if len(frames) != 3 || len(frames[1]) != 8 {
			t.Fatalf("message %d: the frames %q", i, frames)
		}
		if topic := string(frames[0]); !c.topic(topic) {
			t.Fatalf("message %d: the topic %q", i, topic)
		}
		seq := binary.BigEndian.Uint64(frames[1])
		if seq == math.MaxUint64 {
			if !c.mark || len(frames[2]) != 0 || i != 0 && i != len(rec.live)-1 {
				t.Fatalf("message %d is a mark with %x", i, frames[2])
			}
			continue
		}
		if seq != next || seq > math.MaxInt64 {
			t.Fatalf("message %d: number %d, want %d", i, seq, next)
		}
		next++
		payload := frames[2]
		if payload[0] != 0x93 || payload[1] != 0xcb {
			t.Fatalf("batch %d begins with %x", seq, payload[:2])
		}
		if ts := math.Float64frombits(binary.BigEndian.Uint64(payload[2:])); ts < lastTS || ts < 1e9 || ts > 1e11 {
			t.Errorf("batch %d: time %v after %v", seq, ts, lastTS)
		} else {
			lastTS = ts
		}
		if payload[10] == 0x90 {
			empty++
		}
		r.take(payload)
		if i+1 == rec.quiet {
			c.knows(t, "live", r, rec.announced)
		}
	}
	if c.mark && binary.BigEndian.Uint64(rec.live[0][1]) != math.MaxUint64 {
		t.Error("no mark before batch 0")
	}
	if empty == 0 {
		t.Error("no tail mark")
	}
	if !c.noClears && len(r.blocks) != 0 {
		t.Errorf("%d blocks after the last clear", len(r.blocks))
	}
	if c.hexTokens != (r.strings > 0) && c.profiles[0] != "" {
		t.Errorf("%d tokens are strings", r.strings)
	}
	switch c.lora {
	case "name":
		if r.named == 0 {
			t.Error("no store has the name of its adapter")
		}
	case "id":
		if r.named != 0 {
			t.Errorf("%d stores have a LoRA name", r.named)
		}
	}
	if c.past == "none" {
		return
	}
	// The last batches come as they were live, without a hole.
	if len(rec.recent) != 3 {
		t.Errorf("%d batches from %d to %d", len(rec.recent), rec.from, rec.newest)
	}
	for i, frames := range rec.recent {
		if want := rec.live[rec.quiet-3+i]; !slices.EqualFunc(frames, want, bytes.Equal) {
			t.Errorf("replayed: %q, live it was %q", frames, want)
		}
	}
	// What is too old comes as the consumer can use it.
	r = c.newReader()
	for i, frames := range rec.past {
		seq := binary.BigEndian.Uint64(frames[1])
		want := uint64(i)
		if c.past == "suffix" {
			want = rec.newest + 1 - uint64(len(rec.past)-i)
		}
		if seq != want {
			t.Fatalf("the answer has number %d, want %d", seq, want)
		}
		if string(frames[0]) != string(rec.live[0][0]) {
			t.Errorf("the answer has topic %q", frames[0])
		}
		if c.past == "from start" {
			r.snapshot(t, i, frames[2])
			if i == 0 {
				c.knows(t, "first batch of the answer", r, rec.announced)
			}
		}
	}
	if len(rec.past) == 0 || binary.BigEndian.Uint64(rec.past[len(rec.past)-1][1]) != rec.newest {
		t.Errorf("the answer of %d batches does not end at %d", len(rec.past), rec.newest)
	}
}

// snapshot takes a batch of one, in the first of which the clear has company.
func (r *reader) snapshot(t *testing.T, i int, payload []byte) {
	t.Helper()
	b, err := readRaw(payload)
	if err != nil || len(b.list) != 3 {
		t.Fatalf("batch %d of a snapshot: %v", i, err)
	}
	for k, e := range b.list[1].list {
		events := len(b.list[1].list)
		if i == 0 && k == 0 {
			events = 1
		}
		if err := r.event(e, events); err != nil && !errors.Is(err, errNoClears) {
			r.lost = append(r.lost, err)
		}
	}
}

// knows compares what a reader has with what is announced.
func (c consumer) knows(t *testing.T, when string, r *reader, announced map[uint64]bool) {
	t.Helper()
	for _, err := range r.lost {
		t.Errorf("%s: a batch is lost: %v", when, err)
	}
	if r.stores == 0 {
		t.Errorf("%s: no stores", when)
	}
	if c.noClears {
		// It does not forget, but loses nothing else.
		for h := range announced {
			if !r.blocks[h] {
				t.Errorf("%s: block %x is missing", when, h)
			}
		}
		return
	}
	if !maps.Equal(r.blocks, announced) {
		t.Errorf("%s: %d blocks, want %d", when, len(r.blocks), len(announced))
	}
}

// set changes keys of the options.
func set(t *testing.T, o *publisher.Options, profile string, keys map[string]string) {
	t.Helper()
	if profile != "" {
		if err := o.ApplyProfile(profile); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range publisher.Keys() {
		if text, ok := keys[k.Name]; ok {
			if err := k.Set(o, text); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A reader does lose what its consumer would: the checks above can fail.
func TestMatrixCanFail(t *testing.T) {
	for name, c := range map[string]struct {
		profile string
		change  func(*consumer)
		keys    map[string]string
	}{
		"maps":               {"dynamo", func(c *consumer) { c.maps, c.arrays = false, [2]int{5, 2} }, nil},
		"arrays":             {"aibrix", func(c *consumer) { c.arrays = [2]int{} }, nil},
		"short arrays":       {"aibrix", func(c *consumer) { c.arrays = [2]int{13, 2} }, nil},
		"long arrays":        {"aibrix", func(c *consumer) { c.most = [2]int{9, 3} }, nil},
		"bytes":              {"dynamo", func(*consumer) {}, map[string]string{"hash": "bytes"}},
		"negative hashes":    {"dynamo", func(c *consumer) { c.hash = unsigned }, nil},
		"large hashes":       {"vllm", func(c *consumer) { c.hash = signed }, nil},
		"strings":            {"trtllm", func(*consumer) {}, nil},
		"blocks of an event": {"dynamo", func(c *consumer) { c.oneBlock = true }, nil},
		"envelope":           {"dynamo", func(c *consumer) { c.envelope = [2]int{2, 2} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := publisher.DefaultOptions()
			set(t, &o, c.profile, c.keys)
			row := consumer{maps: true, arrays: [2]int{2, 2}, hash: anyInteger, envelope: exactly3}
			c.change(&row)
			r := row.newReader()
			for _, frames := range record(t, o, false).live {
				r.take(frames[2])
			}
			if len(r.lost) == 0 {
				t.Error("nothing is lost")
			}
		})
	}
}

// Hashes of real blocks are hardly ever small enough to show their width, so here
// are some that are: llm-d's readers lose the batch to a hash below nine bytes.
func TestSmallHashesOfProfiles(t *testing.T) {
	for _, profile := range append(publisher.ProfileNames(), "") {
		for _, encoding := range []string{"map", "array", "array-short"} {
			t.Run(profile+" "+encoding, func(t *testing.T) {
				o := publisher.DefaultOptions()
				set(t, &o, profile, map[string]string{"encoding": encoding, "multimodal": "suppress"})
				minus := uint64(math.MaxUint64) // -1, or the largest
				if o.Hash == event.Portable63 {
					minus = 1 << 62
				}
				small := &event.BlockStored{Hashes: []uint64{5, 127, 128, 1 << 31}, ParentHash: minus, HasParent: true,
					Tokens: []uint32{1, 2, 3, 4}, BlockSize: 1, Medium: "GPU", HasMedium: true}
				encoder, err := wire.NewEncoder(wire.Config{Encoding: o.Encoding, Form: o.Hash, MinimalHashes: o.MinimalHashes})
				if err != nil {
					t.Fatal(err)
				}
				payload, err := encoder.AppendBatch(nil, 1.5, []event.Event{small, &event.BlockRemoved{Hashes: []uint64{5, minus},
					Medium: "GPU", HasMedium: true}}, matrixRank)
				if err != nil {
					t.Fatal(err)
				}
				b, err := readRaw(payload)
				if err != nil {
					t.Fatal(err)
				}
				var all []raw
				for i, e := range b.list[1].list {
					if encoding == "map" {
						all = append(all, e.fields["block_hashes"].list...)
						if i == 0 {
							all = append(all, e.fields["parent_block_hash"])
						}
					} else if all = append(all, e.list[1].list...); i == 0 {
						all = append(all, e.list[2])
					}
				}
				short := 0
				for _, h := range all {
					if !nine(h) {
						short++
					}
				}
				if full := profile != "trtllm" && profile != "vllm"; len(all) != 7 || full != (short == 0) {
					t.Errorf("%d of %d hashes are below nine bytes", short, len(all))
				}
			})
		}
	}
}
