// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// listener is an index that one of our Python programs keeps with Dynamo's parts.
type listener struct {
	h *helper
	// refused is how many events its tree has refused, where that is told.
	refused int
}

// listenerAnswer is what it says to a prompt: how many blocks each rank has of it and,
// if it is a router, worker, rank and blocks of the one that it would send it to.
type listenerAnswer struct {
	Blocks  map[string]int `json:"blocks"`
	Refused int            `json:"refused"`
	Best    []uint64       `json:"best"`
}

func (l *listener) ask(prompt []uint32) (a listenerAnswer) {
	l.h.t.Helper()
	l.h.ask(map[string]any{"match": prompt}, &a)
	l.refused = a.Refused
	return a
}

func (l *listener) refusals() int { return l.refused }

// listening is an index that hears live batches alone.
type listening interface {
	index
	refusals() int
}

func (l *listener) match(prompt []uint32) (tokens [ranks]int) {
	l.h.t.Helper()
	for rank, n := range l.ask(prompt).Blocks {
		i, err := strconv.Atoi(rank)
		if err != nil || i < 0 || i >= ranks {
			l.h.t.Fatalf("rank %q", rank)
		}
		tokens[i] = n * blockSize
	}
	return tokens
}

// listenerLink leads from two workers to a listener: from the first straight, from the
// other over a line that can lose messages.
type listenerLink struct {
	workers []*worker
	line    *line
}

func newListenerLink(t *testing.T) listenerLink {
	t.Helper()
	base, replay := freeEndpoints(t)
	k := listenerLink{line: newLine(t, plusRank(t, base, 1))}
	for rank := range ranks {
		k.workers = append(k.workers, newWorker(t, rank, base, replay))
	}
	return k
}

// endpoints are where the ranks are heard.
func (k listenerLink) endpoints() []string {
	return []string{k.workers[0].options.Endpoint, k.line.endpoint}
}

// lose loses all that the second worker tells while it serves prompts, and returns when
// the listener knows what came after that.
func (k listenerLink) lose(t *testing.T, x index, p *prompts) {
	t.Helper()
	w := k.workers[1]
	w.flush()
	k.line.wait(w.pub.Stats().NextSeq - 1)
	before := k.line.lost.Load()
	k.line.losing.Store(true)
	for range 12 {
		w.serve(p.next())
	}
	w.flush()
	k.line.wait(w.pub.Stats().NextSeq - 1)
	if k.line.lost.Load() == before {
		t.Fatal("nothing was lost")
	}
	k.line.losing.Store(false)
	serveSome(k.workers, p, 4)
	settle(t, "behind a gap", x, k.workers, p)
}

// followLive compares an index that asks for no replays with two workers: through live
// batches, resets, gaps that a resync makes good, and restarts, of which the listener of
// the first rank is told by again.
func followLive(t *testing.T, x listening, k listenerLink, p *prompts, again func(rank int)) {
	t.Helper()
	for _, w := range k.workers {
		w.start(1)
	}
	missed, refused := 0, 0
	for round := range 10 {
		rank := p.rand.IntN(ranks)
		w := k.workers[rank]
		what := "live"
		switch round % 5 {
		case 1:
			what = fmt.Sprintf("a reset of rank %d", rank)
			if err := w.manager.Reset(); err != nil {
				t.Fatal(err)
			}
		case 2, 4:
			what = "a resync after a gap"
			k.lose(t, x, p)
			missed += differing(x, k.workers, p, 15)
			refused = x.refusals()
			k.workers[1].resync()
		case 3:
			rank = round / 5 // each once
			what = fmt.Sprintf("a restart of rank %d", rank)
			w = k.workers[rank]
			w.kill()
			if rank == 0 {
				again(rank)
			}
			w.start(1)
		}
		serveSome(k.workers, p, 15)
		compare(t, fmt.Sprintf("round %d, %s", round, what), x, k.workers, p, 25)
		if n := x.refusals(); n != refused {
			t.Fatalf("round %d, %s: %d events were refused", round, what, n-refused)
		}
	}
	t.Logf("behind gaps %d prompts matched something else, and %d events were refused", missed, refused)
	if missed == 0 {
		t.Error("no gap has done any harm")
	}
	p.end(t)
}

// Dynamo's ZmqKvEventListener, RadixTree and block hashes, which know no
// replays, follow two ranks through gaps, resets and restarts.
func TestDynamoListener(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	python(t)
	if _, err := os.Stat(filepath.Join(venv, "listener")); err != nil {
		t.Skip("pip could not install the release with ZmqKvEventListener")
	}
	folder, err := filepath.Abs(filepath.Join(venv, "listener"))
	if err != nil {
		t.Fatal(err)
	}
	p := newPrompts(t, 2)
	k := newListenerLink(t)
	h := startHelper(t, "listener.py", "PYTHONPATH="+folder)
	h.ask(map[string]any{"listen": k.endpoints(), "block_size": blockSize}, &struct{}{})
	followLive(t, &listener{h: h}, k, p, func(rank int) {
		// It does not connect again by itself.
		h.ask(map[string]any{"again": rank}, &struct{}{})
	})
}

// router is Dynamo's relay (KvEventPublisher) and KvRouter, as they are deployed. What
// they would use etcd and NATS for is in memory and on sockets.
type router struct{ *listener }

// best is the rank that the router would send a prompt to.
func (r router) best(prompt []uint32) int {
	r.h.t.Helper()
	a := r.ask(prompt)
	if len(a.Best) != 3 || a.Best[1] >= ranks {
		r.h.t.Fatalf("the best worker of all is %v", a.Best)
	}
	return int(a.Best[1])
}

// Dynamo's KvRouter, behind its relay, follows two ranks through gaps, resets and
// restarts, and sends prompts to the rank that has more of them.
func TestDynamoRouter(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	p := newPrompts(t, 3)
	k := newListenerLink(t)
	h := startHelper(t, "router.py", "DYN_LOG=warn", "NO_COLOR=1", "DYN_EVENT_PLANE_HOST=127.0.0.1", "DYN_TCP_RPC_HOST=127.0.0.1")
	h.ask(map[string]any{"listen": k.endpoints(), "block_size": blockSize}, &struct{}{})
	followLive(t, router{&listener{h: h}}, k, p, func(int) {}) // it connects again by itself
}
