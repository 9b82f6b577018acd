// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// workerVariable holds the configuration of a worker in a process of its own.
const workerVariable = "KVCAST_TEST_WORKER"

// workerDeadline bounds its life.
const workerDeadline = 10 * time.Minute

// order is a line that such a worker reads, and report one that it writes: one after
// every tenth operation and one at the end of each order.
type order struct {
	Run          int  `json:",omitempty"`
	Pause, Quiet bool `json:",omitempty"`
	Store        int  `json:",omitempty"`
}

type report struct {
	// Endpoint is told once, before anything is sent.
	Endpoint, ReplayEndpoint string      `json:",omitempty"`
	Made                     int         `json:",omitempty"`
	Done                     bool        `json:",omitempty"`
	Quiet                    *quietPoint `json:",omitempty"`
	Error                    string      `json:",omitempty"`
}

// workerMain is the worker: it carries out the orders on standard input until that ends.
func workerMain(config string) (code int) {
	out := json.NewEncoder(os.Stdout)
	failed := func(err error) int {
		out.Encode(report{Error: err.Error()})
		return 1
	}
	var c workerConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return failed(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), workerDeadline)
	defer cancel()
	w, err := startWorker(ctx, c, nil)
	if err != nil {
		return failed(err)
	}
	out.Encode(report{Endpoint: w.publisher.Endpoint(), ReplayEndpoint: w.publisher.ReplayEndpoint()})
	in := json.NewDecoder(os.Stdin)
	for {
		var o order
		if err := in.Decode(&o); err == io.EOF {
			break
		} else if err != nil {
			return failed(err)
		}
		w.pause(o.Pause)
		for made := 0; made < o.Run; made++ {
			if err := w.run(1); err != nil {
				return failed(err)
			}
			if made%10 == 9 {
				out.Encode(report{Made: made + 1})
			}
		}
		for range o.Store {
			if err := w.store(ctx); err != nil {
				return failed(err)
			}
		}
		r := report{Done: true}
		if o.Quiet {
			q, err := w.quiet(ctx)
			if err != nil {
				return failed(err)
			}
			r.Quiet = &q
		}
		out.Encode(r)
	}
	if err := w.close(); err != nil {
		return failed(err)
	}
	return 0
}

// workerProcess is a worker in another process.
type workerProcess struct {
	*exec.Cmd
	t        *testing.T
	orders   io.WriteCloser
	reports  *json.Decoder
	endpoint string
	replay   string
}

// newWorkerProcess starts a worker and returns when it is bound.
func newWorkerProcess(t *testing.T, c workerConfig) *workerProcess {
	t.Helper()
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), workerDeadline)
	w := &workerProcess{Cmd: exec.CommandContext(ctx, program), t: t}
	w.Env = append(os.Environ(), workerVariable+"="+string(config))
	w.Stderr = os.Stderr
	if w.orders, err = w.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := w.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.reports = json.NewDecoder(bufio.NewReader(out))
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if w.ProcessState == nil {
			w.Wait()
		}
	})
	r := w.report()
	w.endpoint, w.replay = r.Endpoint, r.ReplayEndpoint
	return w
}

func (w *workerProcess) order(o order) {
	w.t.Helper()
	if err := json.NewEncoder(w.orders).Encode(o); err != nil {
		w.t.Fatalf("worker: %v", err)
	}
}

func (w *workerProcess) report() (r report) {
	w.t.Helper()
	if err := w.reports.Decode(&r); err != nil {
		w.t.Fatalf("worker: %v", err)
	}
	if r.Error != "" {
		w.t.Fatalf("worker: %s", r.Error)
	}
	return r
}

// done waits for the end of the last order.
func (w *workerProcess) done() report {
	w.t.Helper()
	for {
		if r := w.report(); r.Done {
			return r
		}
	}
}

// quiet has everything published and says what the worker holds.
func (w *workerProcess) quiet() quietPoint {
	w.t.Helper()
	w.order(order{Quiet: true})
	return *w.done().Quiet
}

// kill ends the worker as nobody can prepare for.
func (w *workerProcess) kill() {
	w.t.Helper()
	if err := w.Process.Kill(); err != nil {
		w.t.Fatal(err)
	}
	if w.Wait(); w.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		w.t.Fatalf("worker: %v", w.ProcessState)
	}
}

// end lets the worker close everything.
func (w *workerProcess) end() {
	w.t.Helper()
	w.orders.Close()
	for {
		var r report
		if err := w.reports.Decode(&r); err != nil {
			break
		} else if r.Error != "" {
			w.t.Fatalf("worker: %s", r.Error)
		}
	}
	if err := w.Wait(); err != nil {
		w.t.Fatalf("worker: %v", err)
	}
}
