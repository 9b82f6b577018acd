// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvcast/kvcast/tests/endcheck"
)

const (
	traceFile = "../data/mooncake_conversation_2000.jsonl"
	// deadline bounds each process; the slowest takes a few seconds, under the
	// race detector and on a busy machine many more.
	deadline = 2 * time.Minute
)

// kvcast is the tool under test, built by the first test that runs it; with the
// race detector if the tests are.
var kvcast struct {
	path  string
	build sync.Once
	err   error
}

func TestMain(m *testing.M) {
	// The tests run this program also as something that can be frozen and killed.
	if config := os.Getenv(workerVariable); config != "" {
		os.Exit(workerMain(config))
	}
	if config := os.Getenv(readerVariable); config != "" {
		os.Exit(readerMain(config))
	}
	if os.Getenv(elasticVariable) != "" {
		os.Exit(elasticMain())
	}
	if os.Getenv(brokenVariable) != "" {
		os.Exit(brokenMain())
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	folder, err := os.MkdirTemp("", "kvcast-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer os.RemoveAll(folder)
	// One test runs the tool as another user.
	if err := os.Chmod(folder, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	kvcast.path = filepath.Join(folder, "kvcast")
	if fake.folder, err = os.MkdirTemp(folder, "driver-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return endcheck.Run(m)
}

// build builds the tool. It is called while a test runs, not before: then the go
// command takes note of the folders listed here, from which the tool is built,
// and does not offer an old result of the tests after an edit there.
func build() {
	for _, folder := range []string{"native", "sink", "cuda", "cgo", "bindings", "publisher", "cmd"} {
		err := filepath.WalkDir(filepath.Join("..", "..", folder),
			func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			kvcast.err = err
			return
		}
	}
	cmd := exec.Command("go", "build", raceFlag, "-o", kvcast.path, "github.com/kvcast/kvcast/cmd/kvcast")
	if out, err := cmd.CombinedOutput(); err != nil {
		kvcast.err = fmt.Errorf("go build: %w\n%s", err, out)
	}
}

// process is a running kvcast.
type process struct {
	*exec.Cmd
	t              *testing.T
	stdout, stderr bytes.Buffer
	lines          *bufio.Scanner // of startPiped and startRead
}

func command(t *testing.T, args ...string) *process {
	t.Helper()
	kvcast.build.Do(build)
	if kvcast.err != nil {
		t.Fatal(kvcast.err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	p := &process{Cmd: exec.CommandContext(ctx, kvcast.path, args...), t: t}
	p.Cmd.Stderr = &p.stderr
	// Whatever a failed test leaves behind is ended with it.
	t.Cleanup(func() {
		cancel()
		if p.Process != nil && p.ProcessState == nil {
			p.Wait()
		}
	})
	return p
}

// start runs kvcast and gathers what it prints.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := command(t, args...)
	p.Cmd.Stdout = &p.stdout
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// startPiped runs kvcast with --json; line reads what it prints.
func startPiped(t *testing.T, args ...string) *process {
	t.Helper()
	return startPipedFrom(t, nil, args...)
}

// startPipedFrom is startPiped with something on standard input.
func startPipedFrom(t *testing.T, in *os.File, args ...string) *process {
	t.Helper()
	p := command(t, append(args, "--json")...)
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(out)
	p.lines.Buffer(nil, 256<<20)
	if in != nil {
		p.Cmd.Stdin = in
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// startRead runs kvcast; until and rest read what it prints.
func startRead(t *testing.T, args ...string) *process {
	t.Helper()
	p := command(t, args...)
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// until reads up to a line and gathers what it has read.
func (p *process) until(line string) {
	p.t.Helper()
	if !p.read(line) {
		p.t.Fatalf("%v: no line %q (%v), exit code %d\nstdout: %s\nstderr: %s", p.Args, line, p.lines.Err(), p.exit(),
			tail(&p.stdout), tail(&p.stderr))
	}
}

// rest gathers what is left.
func (p *process) rest() {
	p.t.Helper()
	p.read("")
	if err := p.lines.Err(); err != nil {
		p.t.Fatal(err)
	}
}

// read gathers lines up to the given one; "" is none that kvcast prints.
func (p *process) read(line string) bool {
	for p.lines.Scan() {
		p.stdout.Write(p.lines.Bytes())
		p.stdout.WriteByte('\n')
		if line != "" && p.lines.Text() == line {
			return true
		}
	}
	return false
}

// startBound starts a replay on an endpoint that the system completes and
// returns that endpoint, which the replay names on standard error.
func startBound(t *testing.T, p *process) string {
	t.Helper()
	p.Cmd.Stderr = nil
	stderr, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(stdout)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil {
		t.Fatalf("%v: no endpoint: %v", p.Args, err)
	}
	const before = "kvcast: publishing on "
	endpoint, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), before)
	if !found {
		t.Fatalf("%v: got %q", p.Args, line)
	}
	endpoint, _, _ = strings.Cut(endpoint, ",")
	return endpoint
}

// line parses the next line that the process prints into v.
func (p *process) line(v any) {
	p.t.Helper()
	if !p.lines.Scan() {
		p.t.Fatalf("%v: no more lines (%v), exit code %d: %s", p.Args, p.lines.Err(), p.exit(), tail(&p.stderr))
	}
	if err := json.Unmarshal(p.lines.Bytes(), v); err != nil {
		p.t.Fatalf("%v: %v in %.500s", p.Args, err, p.lines.Bytes())
	}
}

// signal sends a signal to the process.
func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatalf("%v: %v: %s", p.Args, err, tail(&p.stderr))
	}
}

// exit waits for the end and returns the exit code.
func (p *process) exit() int {
	p.t.Helper()
	err := p.Wait()
	if err != nil && p.ProcessState == nil {
		p.t.Fatal(err)
	}
	if status := p.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		p.t.Fatalf("killed by %v (a deadline?)\nstdout: %s\nstderr: %s", status.Signal(), tail(&p.stdout), tail(&p.stderr))
	}
	return p.ProcessState.ExitCode()
}

// good waits for the end and fails the test unless the exit code is 0 and
// nothing was said on standard error.
func (p *process) good() {
	p.t.Helper()
	if code := p.exit(); code != 0 || p.stderr.Len() > 0 {
		p.t.Fatalf("%v: exit code %d\nstdout: %s\nstderr: %s", p.Args, code, tail(&p.stdout), tail(&p.stderr))
	}
}

func tail(b *bytes.Buffer) string {
	s := b.String()
	const most = 2000
	if len(s) > most {
		return "..." + s[len(s)-most:]
	}
	return s
}

// wantLine fails the test unless the exit code is as given and standard error
// holds exactly one line, which has all the given parts.
func (p *process) wantLine(code int, parts ...string) {
	p.t.Helper()
	got := p.exit()
	text := p.stderr.String()
	if got != code {
		p.t.Errorf("%v: exit code %d, want %d: %s", p.Args[1:], got, code, text)
	}
	if !strings.HasPrefix(text, "kvcast: ") || strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") {
		p.t.Errorf("%v: standard error is not one line: %q", p.Args[1:], text)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			p.t.Errorf("%v: %q lacks %q", p.Args[1:], text, part)
		}
	}
}

// replaySummary is the part of replay --json that the tests use.
type replaySummary struct {
	Requests          int     `json:"requests"`
	RefusedRequests   int     `json:"refused_requests"`
	PromptBlocks      int     `json:"prompt_blocks"`
	HitBlocks         int     `json:"hit_blocks"`
	PromptTokens      int     `json:"prompt_tokens"`
	HitTokens         int     `json:"hit_tokens"`
	StoredBlocks      int     `json:"stored_blocks"`
	RemovedBlocks     int     `json:"removed_blocks"`
	DeferredBlocks    int     `json:"deferred_blocks"`
	HealedBlocks      int     `json:"healed_blocks"`
	DeferredEvicted   int     `json:"deferred_evicted_blocks"`
	ResidentBlocks    int     `json:"resident_blocks"`
	ReusableBlocks    int     `json:"reusable_blocks"`
	UnannouncedBlocks int     `json:"unannounced_blocks"`
	OpenSequences     int     `json:"open_sequences"`
	LivePages         int     `json:"live_pages"`
	Batches           int     `json:"batches"`
	Events            int     `json:"events"`
	BytesPublished    int     `json:"bytes_published"`
	WallSeconds       float64 `json:"wall_seconds"`
	SchedulerSeconds  float64 `json:"scheduler_seconds"`
	NsPerBlock        float64 `json:"ns_per_block"`
	Epoch             string  `json:"epoch"`
	Device            string  `json:"device"`
	Endpoint          string  `json:"endpoint"`
	Interrupted       bool    `json:"interrupted"`
}

// replay runs to the end without a subscriber and returns the summary.
func replay(t *testing.T, args ...string) replaySummary {
	t.Helper()
	p := start(t, append([]string{"replay", "--json"}, args...)...)
	p.good()
	return p.summary()
}

func (p *process) summary() (s replaySummary) {
	p.t.Helper()
	if err := json.Unmarshal(p.stdout.Bytes(), &s); err != nil {
		p.t.Fatalf("summary: %v\n%s", err, tail(&p.stdout))
	}
	return s
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func listFolder(t *testing.T, folder string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// shortTemp is a folder with a path short enough for ipc endpoints.
func shortTemp(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "kv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	return folder
}
