// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/publisher"
)

const (
	blockSize = 16
	// capacity is less than what the prompts of a round need: blocks are evicted.
	capacity = 700
	ranks    = 2
	// conversations are the requests of the trace that come again and again; all
	// begin alike.
	conversations = 14
	// vocabulary bounds the token ids.
	vocabulary = 128256
)

// worker is one data-parallel rank of an engine, as far as routers see it.
type worker struct {
	t       *testing.T
	options publisher.Options
	stream  *bindings.Stream
	manager *bindings.Manager
	pub     *publisher.Publisher
}

// newWorker prepares a rank; base and replay are the endpoints of rank 0.
func newWorker(t *testing.T, rank int, base, replay string) *worker {
	t.Helper()
	o := publisher.DefaultOptions()
	if err := o.ApplyProfile("dynamo"); err != nil {
		t.Fatal(err)
	}
	o.Endpoint, o.ReplayEndpoint, o.Rank, o.Ranks = base, replay, rank, ranks
	// Its lives end as a kill ends them.
	o.ClearOnClose = false
	w := &worker{t: t, options: o}
	t.Cleanup(w.kill)
	return w
}

// start begins a life. wait is how many subscribers it waits for.
func (w *worker) start(wait int) {
	w.t.Helper()
	w.options.WaitSubscribers = wait
	var err error
	if w.stream, err = bindings.NewStream(w.options.StreamConfig()); err != nil {
		w.t.Fatal(err)
	}
	if w.manager, err = bindings.NewManager(bindings.Config{TokensPerBlock: blockSize, CapacityBlocks: capacity,
		Stream: w.stream}); err != nil {
		w.t.Fatal(err)
	}
	if w.pub, err = publisher.New(w.options); err != nil {
		w.t.Fatal(err)
	}
	if err := w.pub.Attach(w.stream); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := w.pub.Start(ctx); err != nil {
		w.t.Fatal(err)
	}
}

// kill ends a life without a word to anybody.
func (w *worker) kill() {
	w.t.Helper()
	if w.pub == nil {
		return
	}
	for _, c := range []interface{ Close() error }{w.pub, w.manager, w.stream} {
		if err := c.Close(); err != nil {
			w.t.Error(err)
		}
	}
	w.pub = nil
}

// serve computes a prompt; its blocks are reusable then.
func (w *worker) serve(prompt []uint32) {
	w.t.Helper()
	s, err := w.manager.Open(bindings.Prompt{Tokens: prompt, MustCompute: bindings.ComputeNothing})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := s.Grow(len(prompt)); err != nil {
		w.t.Fatal(err)
	}
	if _, err := s.Commit(prompt[s.MatchedTokens():]); err != nil {
		w.t.Fatal(err)
	}
	if err := s.Release(); err != nil {
		w.t.Fatal(err)
	}
}

// flush waits until everything has been handed to the socket.
func (w *worker) flush() {
	w.t.Helper()
	w.stream.Flush()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := w.pub.Flush(ctx); err != nil {
		w.t.Fatal(err)
	}
}

// resync tells all that there is anew.
func (w *worker) resync() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := w.pub.Resync(ctx); err != nil {
		w.t.Fatal(err)
	}
}

// own is how many tokens of a prompt the worker would find itself, in whole
// blocks: routers know no others.
func (w *worker) own(prompt []uint32) int {
	w.t.Helper()
	out := make([]bindings.ProbeResult, 1)
	if err := w.manager.Probe([]bindings.Prompt{{Tokens: prompt, MustCompute: bindings.ComputeNothing}}, out); err != nil {
		w.t.Fatal(err)
	}
	if out[0].Err != nil {
		w.t.Fatal(out[0].Err)
	}
	return out[0].MatchedTokens / blockSize * blockSize
}

// prompts draws prompts from the shipped trace.
type prompts struct {
	rand     *rand.Rand
	requests [][]uint64 // hash ids
	lone     uint32
	// told counts the prompts asked for that one worker had more of.
	asked, told int
}

// end checks that the prompts could have told a wrong index from a right one.
func (p *prompts) end(t *testing.T) {
	t.Helper()
	t.Logf("%d of %d prompts belonged to one worker", p.told, p.asked)
	if p.told < p.asked/5 {
		t.Error("too few")
	}
}

func newPrompts(t *testing.T, seed uint64) *prompts {
	t.Helper()
	t.Logf("seed %d", seed)
	f, err := os.Open("../data/mooncake_conversation_2000.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := &prompts{rand: rand.New(rand.NewPCG(seed, 7))}
	for in := bufio.NewScanner(f); in.Scan() && len(p.requests) < conversations; {
		var r struct {
			HashIDs []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		p.requests = append(p.requests, r.HashIDs)
	}
	if len(p.requests) < conversations {
		t.Fatalf("the trace has %d requests only", len(p.requests))
	}
	return p
}

// next is the beginning of a request's prompt. An id of the trace stands for 512
// tokens together with what is before them.
func (p *prompts) next() (tokens []uint32) {
	ids := p.requests[p.rand.IntN(len(p.requests))]
	for _, id := range ids[:min(len(ids), 1+p.rand.IntN(5))] {
		r := rand.New(rand.NewPCG(id, 0))
		for range 512 {
			tokens = append(tokens, r.Uint32N(vocabulary))
		}
	}
	switch p.rand.IntN(4) {
	case 0:
		tokens = tokens[:blockSize+p.rand.IntN(len(tokens)-blockSize)]
	case 1:
		tokens[p.rand.IntN(len(tokens))]++
	}
	return tokens
}

// mark is a prompt of one block that nobody has seen before.
func (p *prompts) mark() []uint32 {
	p.lone++
	tokens := make([]uint32, blockSize)
	for i := range tokens {
		tokens[i] = vocabulary + p.lone
	}
	return tokens
}

// freeEndpoints returns two tcp endpoints with room for all ranks behind each. They are
// below the ports that systems give to whoever wants any, as the readers do: those would
// take them between now and the start of a worker.
func freeEndpoints(t *testing.T) (base, replay string) {
	t.Helper()
	for range 100 {
		port := 10000 + rand.IntN(20000)
		var open []net.Listener
		for i := range 2 * ranks {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+i))
			if err != nil {
				break
			}
			open = append(open, l)
		}
		for _, l := range open {
			l.Close()
		}
		if len(open) == 2*ranks {
			return fmt.Sprintf("tcp://127.0.0.1:%d", port), fmt.Sprintf("tcp://127.0.0.1:%d", port+ranks)
		}
	}
	t.Fatal("no neighbouring ports are free")
	return "", ""
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// index is a router's view of the workers.
type index interface {
	// match returns how many tokens of a prompt each rank is said to have.
	match(prompt []uint32) [ranks]int
}

// chooser is a router that says to which rank it would send a prompt.
type chooser interface {
	best(prompt []uint32) int
}

// settle brings the stream to a quiet point: the index knows what was published last.
func settle(t *testing.T, when string, x index, workers []*worker, p *prompts) {
	t.Helper()
	mark := p.mark()
	for _, w := range workers {
		w.serve(mark)
		w.flush()
	}
	for end := time.Now().Add(deadline); x.match(mark) != [ranks]int{blockSize, blockSize}; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: the last block is not known within %v: %v", when, deadline, x.match(mark))
		}
	}
}

// owned is what each worker itself would find of a prompt.
func owned(workers []*worker, prompt []uint32) (tokens [ranks]int) {
	for _, w := range workers {
		tokens[w.options.Rank] = w.own(prompt)
	}
	return tokens
}

// differing counts the prompts of which the index says something else than the workers.
func differing(x index, workers []*worker, p *prompts, n int) (wrong int) {
	for range n {
		if prompt := p.next(); x.match(prompt) != owned(workers, prompt) {
			wrong++
		}
	}
	return wrong
}

// compare brings the stream to a quiet point and asks for random prompts: the
// index must know of each what each worker would find, and so name the right one.
func compare(t *testing.T, when string, x index, workers []*worker, p *prompts, n int) {
	t.Helper()
	settle(t, when, x, workers, p)
	c, chooses := x.(chooser)
	for range n {
		prompt := p.next()
		got, want := x.match(prompt), owned(workers, prompt)
		if got != want {
			t.Fatalf("%s: a prompt of %d tokens matches %v, the workers themselves find %v", when, len(prompt), got, want)
		}
		p.asked++
		if want[0] == want[1] {
			continue
		}
		p.told++
		if chooses {
			if best := c.best(prompt); want[best] < want[1-best] {
				t.Fatalf("%s: a prompt goes to rank %d, the ranks have %v tokens of it", when, best, want)
			}
		}
	}
}
