// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
)

// workerVariable holds the configuration of a worker in a process of its own.
const workerVariable = "KVCAST_TEST_WORKER"

// childDeadline bounds the lives of processes.
const childDeadline = 10 * time.Minute

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
	ctx, cancel := context.WithTimeout(context.Background(), childDeadline)
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
	if live := bindings.LiveHandles(); live != (bindings.Handles{}) {
		return failed(fmt.Errorf("live at the end: %+v", live))
	}
	return 0
}

// child is this program again, as something that can be frozen and killed. It reads and
// writes JSON.
type child struct {
	*exec.Cmd
	t       *testing.T
	in      io.WriteCloser
	encoder *json.Encoder
	decoder *json.Decoder
}

// startChild runs what an environment variable with a configuration tells TestMain to.
func startChild(t *testing.T, variable string, config any) *child {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), childDeadline)
	c := &child{Cmd: exec.CommandContext(ctx, program), t: t}
	c.Env = append(os.Environ(), variable+"="+string(text))
	c.Stderr = os.Stderr
	if c.in, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.encoder, c.decoder = json.NewEncoder(c.in), json.NewDecoder(bufio.NewReader(out))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if c.ProcessState == nil {
			c.Wait()
		}
	})
	return c
}

func (c *child) signal(s os.Signal) {
	c.t.Helper()
	if err := c.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// kill ends it as nobody can prepare for.
func (c *child) kill() {
	c.t.Helper()
	c.signal(syscall.SIGKILL)
	if c.Wait(); c.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		c.t.Fatalf("child: %v", c.ProcessState)
	}
}

func (c *child) order(o any) {
	c.t.Helper()
	if err := c.encoder.Encode(o); err != nil {
		c.t.Fatalf("child: %v", err)
	}
}

// end lets it close everything.
func (c *child) end() {
	c.t.Helper()
	c.in.Close()
	for {
		var r struct{ Error string }
		if err := c.decoder.Decode(&r); err != nil {
			break
		} else if r.Error != "" {
			c.t.Fatalf("child: %s", r.Error)
		}
	}
	if err := c.Wait(); err != nil {
		c.t.Fatalf("child: %v", err)
	}
}

// workerProcess is a worker in another process.
type workerProcess struct {
	*child
	endpoint, replay string
}

// newWorkerProcess starts a worker and returns when it is bound.
func newWorkerProcess(t *testing.T, c workerConfig) *workerProcess {
	t.Helper()
	w := &workerProcess{child: startChild(t, workerVariable, c)}
	r := w.report()
	w.endpoint, w.replay = r.Endpoint, r.ReplayEndpoint
	return w
}

func (w *workerProcess) report() (r report) {
	w.t.Helper()
	if err := w.decoder.Decode(&r); err != nil {
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
