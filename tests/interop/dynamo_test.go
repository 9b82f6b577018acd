// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher"
)

// indexer is Dynamo's standalone indexer: its listener, decoder, replay client
// and radix tree, behind its HTTP interface.
type indexer struct {
	t    *testing.T
	url  string
	log  lockedBuffer
	base [ranks]string
	past [ranks]string
}

// instance and model are what the workers are known as.
const (
	instance = 7
	model    = "model"
)

func startIndexer(t *testing.T, base, replay string) *indexer {
	t.Helper()
	port := freePort(t)
	// What dynamo.indexer runs too, which besides imports what we need not install.
	cmd := exec.Command(python(t), "-c", "import sys; from dynamo._core import run_kv_indexer; run_kv_indexer(sys.argv[1:])",
		"--port", strconv.Itoa(port), "--threads", "1")
	x := &indexer{t: t, url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	cmd.Env = append(os.Environ(), "DYN_KV_INDEXER_TEST_ENDPOINTS=1", "NO_COLOR=1")
	cmd.Stdout, cmd.Stderr = &x.log, &x.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("the indexer's last words: %s", x.log.tail())
		}
	})
	for end := time.Now().Add(deadline); ; time.Sleep(20 * time.Millisecond) {
		if r, err := http.Get(x.url + "/workers"); err == nil {
			r.Body.Close()
			break
		} else if time.Now().After(end) {
			t.Fatalf("the indexer does not come up: %v", err)
		}
	}
	for rank := range ranks {
		x.base[rank], x.past[rank] = plusRank(t, base, rank), plusRank(t, replay, rank)
		x.register(rank)
	}
	return x
}

// plusRank is where a reader expects a rank.
func plusRank(t *testing.T, endpoint string, rank int) string {
	t.Helper()
	var port int
	if _, err := fmt.Sscanf(endpoint, "tcp://127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("tcp://127.0.0.1:%d", port+rank)
}

func (x *indexer) post(path string, question, answer any) {
	x.t.Helper()
	body, err := json.Marshal(question)
	if err != nil {
		x.t.Fatal(err)
	}
	r, err := http.Post(x.url+path, "application/json", bytes.NewReader(body))
	if err != nil {
		x.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode/100 != 2 {
		x.t.Fatalf("%s: %s %s %v", path, r.Status, text, err)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		x.t.Fatalf("%s: %v in %.300s", path, err, text)
	}
}

func (x *indexer) register(rank int) {
	x.t.Helper()
	x.post("/register", map[string]any{"instance_id": instance, "endpoint": x.base[rank], "replay_endpoint": x.past[rank],
		"model_name": model, "block_size": blockSize, "dp_rank": rank}, &struct{}{})
}

func (x *indexer) unregister(rank int) {
	x.t.Helper()
	// Without a group it forgets the whole instance.
	x.post("/unregister", map[string]any{"instance_id": instance, "model_name": model, "routing_group": "default",
		"dp_rank": rank}, &struct{}{})
}

// listen makes the listener of a rank stop or go on.
func (x *indexer) listen(verb string, rank int) {
	x.t.Helper()
	x.post("/test/"+verb+"_listener", map[string]any{"instance_id": instance, "dp_rank": rank}, &struct{}{})
}

func (x *indexer) match(prompt []uint32) (tokens [ranks]int) {
	x.t.Helper()
	var answer struct {
		Scores map[string]map[string]int `json:"scores"`
	}
	x.post("/query", map[string]any{"token_ids": prompt, "model_name": model}, &answer)
	for rank, n := range answer.Scores[strconv.Itoa(instance)] {
		i, err := strconv.Atoi(rank)
		if err != nil || i < 0 || i >= ranks {
			x.t.Fatalf("rank %q", rank)
		}
		tokens[i] = n
	}
	return tokens
}

// serveSome has both workers serve prompts of the trace.
func serveSome(workers []*worker, p *prompts, n int) {
	for range n {
		workers[p.rand.IntN(len(workers))].serve(p.next())
	}
}

// Dynamo's standalone indexer follows two ranks. After each quiet point, also
// behind gaps, resets and restarts, it knows of random prompts what the workers
// themselves would find.
func TestDynamoIndexer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	p := newPrompts(t, 1)
	base, replay := freeEndpoints(t)
	x := startIndexer(t, base, replay)
	workers := make([]*worker, ranks)
	for rank := range workers {
		workers[rank] = newWorker(t, rank, base, replay)
		// A restart is a gap then, for which it asks; see below for numbers that
		// run back.
		workers[rank].options.FirstSeq = publisher.FirstTime
		workers[rank].start(1)
	}
	serveSome(workers, p, 20)
	compare(t, "at first", x, workers, p, 40)
	for round := range 12 {
		rank := p.rand.IntN(ranks)
		w := workers[rank]
		what := ""
		switch round % 4 {
		case 0:
			what = "live"
			serveSome(workers, p, 30)
		case 1:
			what = fmt.Sprintf("a gap of rank %d", rank)
			x.listen("pause", rank)
			serveSome(workers, p, 30)
			w.flush()
			x.listen("resume", rank)
		case 2:
			what = fmt.Sprintf("a reset of rank %d", rank)
			serveSome(workers, p, 5)
			if err := w.manager.Reset(); err != nil {
				t.Fatal(err)
			}
			serveSome(workers, p, 15)
		case 3:
			what = fmt.Sprintf("a restart of rank %d", rank)
			serveSome(workers, p, 5)
			w.kill()
			if round%8 == 3 {
				w.options.FirstSeq = publisher.FirstTime
				w.start(0)
				break
			}
			// Numbers from 0 on are old ones to it, until it is told.
			w.options.FirstSeq = publisher.FirstZero
			x.unregister(rank)
			w.start(0)
			x.register(rank)
			serveSome(workers, p, 10)
		}
		serveSome(workers, p, 5)
		compare(t, fmt.Sprintf("round %d, %s", round, what), x, workers, p, 25)
	}
	for _, w := range workers {
		if s := w.pub.Stats(); s.DroppedBatches > 0 {
			t.Errorf("%+v", s)
		}
	}
	p.end(t)
}
