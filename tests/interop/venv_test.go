// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

const (
	venv = "../../build/interop-venv"
	// deadline bounds each wait; a loaded machine takes a part of it.
	deadline = 60 * time.Second
)

// python returns the interpreter of the environment, or skips the test.
func python(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(venv, "ready")); err != nil {
		t.Skip("build/interop-venv is not there; tests/interop/venv.sh makes it where pip works")
	}
	return filepath.Join(venv, "bin", "python")
}

// helper is a Python program that answers lines of JSON with lines of JSON.
type helper struct {
	t      *testing.T
	name   string
	in     io.WriteCloser
	out    *bufio.Reader
	stderr lockedBuffer
}

// lockedBuffer keeps what a process says while others look at it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// tail is the end of it.
func (l *lockedBuffer) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.b.Bytes()
	return string(b[max(0, len(b)-4000):])
}

// startHelper starts a program of this folder; it ends with the test.
func startHelper(t *testing.T, program string, env ...string) *helper {
	t.Helper()
	cmd := exec.Command(python(t), "-u", program)
	cmd.Env = append(os.Environ(), env...)
	h := &helper{t: t, name: program}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = &h.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.in, h.out = in, bufio.NewReader(out)
	timer := time.AfterFunc(5*deadline, func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		in.Close() // ends it
		timer.Reset(deadline)
		cmd.Wait()
		timer.Stop()
	})
	return h
}

// tell sends a question without waiting for its answer.
func (h *helper) tell(question any) {
	h.t.Helper()
	line, err := json.Marshal(question)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.in.Write(append(line, '\n')); err != nil {
		h.t.Fatalf("%s: %v: %s", h.name, err, h.stderr.tail())
	}
}

// hear reads an answer. Numbers stay as they are written.
func (h *helper) hear(answer any) {
	h.t.Helper()
	line, err := h.out.ReadBytes('\n')
	if err != nil {
		h.t.Fatalf("%s: %v: %s", h.name, err, h.stderr.tail())
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if err := d.Decode(answer); err != nil {
		h.t.Fatalf("%s: %v in %.500s", h.name, err, line)
	}
}

func (h *helper) ask(question, answer any) {
	h.t.Helper()
	h.tell(question)
	h.hear(answer)
}
