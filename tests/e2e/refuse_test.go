// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// What the command line cannot use is refused in one line that names it, with
// exit code 2. Here are samples, in a process of their own; that every flag
// refuses what is wrong for it is shown where the flags are.
func TestRefusesArguments(t *testing.T) {
	replay := func(args ...string) []string {
		return append([]string{"replay", "--trace", traceFile, "--limit", "1"}, args...)
	}
	tap := func(args ...string) []string { return append([]string{"tap", "ipc:///nobody"}, args...) }
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"fly"}, `unknown command "fly"`},
		{[]string{"completion", "bash"}, `unknown command "completion"`},
		{[]string{"help", "fly"}, `unknown command "fly"`},
		{[]string{"--foo"}, "unknown flag: --foo"},
		{[]string{"version", "now"}, `unexpected argument "now"`},
		{[]string{"doctor", "now"}, `unexpected argument "now"`},
		{[]string{"doctor", "--json=maybe"}, `--json "maybe": want true or false`},

		{replay("--foo=1"), "unknown flag: --foo"},
		{replay("-x"), "unknown shorthand flag: 'x'"},
		{replay("--lim", "3"), "unknown flag: --lim"},
		// What does not exist yet is no flag yet.
		{replay("--host-blocks", "1"), "unknown flag: --host-blocks"},
		{replay("--disk-path", "/"), "unknown flag: --disk-path"},
		{replay("--disk-blocks", "1"), "unknown flag: --disk-blocks"},
		{replay("--policy", "fifo"), `--policy "fifo"`},
		{replay("--group-fields", "on"), "unknown flag: --group-fields"},
		{replay("--endpoint", "ipc:///nobody", "--resident-out", "/nobody"), "--resident-out /nobody: is the socket of --endpoint"},
		{replay("--metrics", "1"), `--metrics "1": want HOST:PORT`},
		{replay("--config", "/no/such/file"), "--config /no/such/file: no such file or directory"},
		{replay("--tier-events", "on"), "unknown flag: --tier-events"},
		{replay("extra"), `unexpected argument "extra"`},
		{[]string{"replay"}, "--trace is missing"},
		{[]string{"replay", "--trace", "/no/such/file"}, "--trace /no/such/file: no such file or directory"},
		{replay("--limit", "x"), `--limit "x": want a whole number`},
		{replay("--device", "cuda:x"), `--device "cuda:x": want auto, host or cuda:N`},
		{replay("--encoding", "list"), `--encoding "list": want map, array or array-short`},
		{replay("--sink-blocks", "4294967295"), "--capacity-blocks 20000, --sink-blocks 4294967295: "},
		// These are found when something is bound.
		{replay("--endpoint", "ipc:///no/such/folder/s"), `--endpoint "ipc:///no/such/folder/s": cannot bind`},
		{replay("--endpoint", "tcp://192.0.2.1:5557"), `--endpoint "tcp://192.0.2.1:5557": cannot bind`},
		{replay("--endpoint", "tcp://no-such-host.invalid:5557"), `--endpoint "tcp://no-such-host.invalid:5557": cannot bind`},
		{replay("--endpoint", "tcp://127.0.0.1:0", "--replay-endpoint", "tcp://192.0.2.1:5558"), `--replay-endpoint "tcp://192.0.2.1:5558": cannot bind`},

		{[]string{"tap"}, "ENDPOINT is missing"},
		{tap("ipc:///another"), `unexpected argument "ipc:///another"`},
		{tap("--verify", "--hash", "signed64"), "unknown flag: --hash"},
		{tap("--max-batches", "-1"), "--max-batches -1: want at least 0"},
		{tap("--mirror-out", "."), "--mirror-out .: is a directory"},
		{[]string{"tap", "127.0.0.1:5557"}, `ENDPOINT "127.0.0.1:5557": no scheme`},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			p := start(t, c.args...)
			p.wantLine(2, c.want)
			if p.stdout.Len() > 0 {
				t.Errorf("standard output: %s", tail(&p.stdout))
			}
		})
	}
}

// constructors holds for each configuration how it is used and, for each of its
// fields, values that must be refused; nil where there are none.
var constructors = []struct {
	base   any
	create func(any) error
	fields map[string][]any
}{
	{bindings.Config{}, func(c any) error { _, err := bindings.NewManager(c.(bindings.Config)); return err },
		map[string][]any{
			"TokensPerBlock": {-1, 4097, math.MaxInt}, "CapacityBlocks": {-1, 1<<27 + 1, math.MaxInt},
			"MaxSequences": {-1, 1<<20 + 1, math.MaxInt}, "ResumeGatePermille": {-1, 1001, math.MaxInt},
			"Policy": {bindings.PolicyLRFU + 1, bindings.Policy(math.MaxUint32)}, "LRFUTau": {-1, math.MaxInt},
			"LRFUGhosts": {-1, 1<<30 + 1, math.MaxInt}, "MaxPinnedPages": {-1, 1<<27 + 1, math.MaxInt},
			"MaxDigests": {-1, 1<<24 + 1, math.MaxInt}, "MaxPendingBlocks": {-1, 1<<27 + 1, math.MaxInt},
			"PageBytes": {uint64(3), uint64(1 << 63), uint64(math.MaxUint64 - 7)},
			"Device":    {bindings.DeviceKind(2)}, "DeviceOrdinal": {-1, 1, math.MaxInt}, "CallersContext": {true},
			"Copies": {bindings.CopyKernel + 1, bindings.CopyMethod(math.MaxUint32)},
			"Seed":   nil, "Poison": nil, "PartialReuse": nil, "MaxBlocks": {-1, 19999, 1<<27 + 1, math.MaxInt},
			"MinBlocks": {-1, 1, math.MaxInt}, "Stream": {new(bindings.Stream)},
		}},
	{bindings.StreamConfig{}, func(c any) error { _, err := bindings.NewStream(c.(bindings.StreamConfig)); return err },
		map[string][]any{
			"Form": {event.Bytes + 1, event.Form(255)}, "MaxEntries": {-1, math.MaxInt},
			"MaxBlocksPerEvent": {-1, 65537, math.MaxInt},
			"Multimodal":        {bindings.Multimodal(2), bindings.Multimodal(math.MaxUint32)},
		}},
	{wire.Limits{}, func(c any) error { _, err := wire.NewDecoder(c.(wire.Limits)); return err },
		map[string][]any{
			"MaxBytes": {-1, 1<<30 + 1}, "MaxMemory": {-1, math.MaxInt}, "MaxDepth": {-1, 5, 65},
			"MaxEvents": {-1, math.MaxInt}, "MaxHashes": {-1, math.MaxInt}, "MaxTokens": {-1, math.MaxInt},
			"MaxString": {-1, math.MaxInt}, "MaxInvalid": {-1, math.MaxInt}, "MaxRemarks": {-1, math.MaxInt},
		}},
	{wire.Config{}, func(c any) error { _, err := wire.NewEncoder(c.(wire.Config)); return err },
		map[string][]any{
			"Encoding": {wire.ArrayShort + 1, wire.Encoding(255)}, "Form": {event.Bytes + 1, event.Form(255)}, "MinimalHashes": nil,
		}},
}

// A constructor refuses what it cannot use with an error of one line, and makes
// nothing. A field without a case in the table fails the test.
func TestConstructorsRefuse(t *testing.T) {
	before := bindings.LiveHandles()
	for _, c := range constructors {
		of := reflect.TypeOf(c.base)
		for i := range of.NumField() {
			field := of.Field(i)
			values, listed := c.fields[field.Name]
			if !listed {
				t.Errorf("%v.%s: no bad value in the table", of, field.Name)
			}
			for _, value := range values {
				config := reflect.New(of).Elem()
				config.Set(reflect.ValueOf(c.base))
				config.Field(i).Set(reflect.ValueOf(value))
				err := c.create(config.Interface())
				if err == nil || strings.ContainsAny(err.Error(), "\r\n\x00") {
					t.Errorf("%v.%s %v: %v", of, field.Name, value, err)
				}
			}
		}
		for name := range c.fields {
			if _, found := of.FieldByName(name); !found {
				t.Errorf("%v has no field %s", of, name)
			}
		}
	}
	if after := bindings.LiveHandles(); after != before {
		t.Errorf("handles before %+v, after %+v", before, after)
	}
}

// A line of the trace that cannot be used is named; nothing is written, and
// the file that was there before stays.
func TestRefusesBrokenTraces(t *testing.T) {
	good := `{"timestamp":0,"input_length":40,"output_length":1,"hash_ids":[1]}` + "\n"
	for name, c := range map[string]struct{ text, want string }{
		"empty":      {"", ": no request in the file"},
		"not JSON":   {good + good + "{]\n", ":3: not JSON"},
		"cut off":    {good + good[:30], ":2: the JSON object ends too early"},
		"missing":    {`{"timestamp":0,"output_length":1,"hash_ids":[]}` + "\n", ":1: input_length is missing"},
		"negative":   {good + `{"timestamp":0,"input_length":-4,"output_length":1,"hash_ids":[]}` + "\n", ":2: input_length is negative: -4"},
		"fraction":   {good + `{"timestamp":0,"input_length":4.5,"output_length":1,"hash_ids":[1]}` + "\n", ":2: input_length is not an integer: 4.5"},
		"NaN":        {good + `{"timestamp":NaN,"input_length":4,"output_length":1,"hash_ids":[1]}` + "\n", ":2: not JSON"},
		"huge":       {good + `{"timestamp":0,"input_length":99999999999999999999,"output_length":1,"hash_ids":[1]}` + "\n", ":2: input_length is above"},
		"few ids":    {good + `{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[1]}` + "\n", ":2: 1 hash_ids, but input_length 513 needs 2"},
		"blank line": {good + "\n" + good, ":2: blank line"},
		"long line":  {good + strings.Repeat(" ", 5<<20), ":2: line is longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := shortTemp(t)
			trace := filepath.Join(folder, "trace.jsonl")
			out := filepath.Join(folder, "resident")
			for path, text := range map[string]string{trace: c.text, out: "old\n"} {
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			// From a file the line is found before anything is bound or sent:
			// no subscriber is needed.
			p := start(t, "replay", "--trace", trace, "--resident-out", out,
				"--endpoint", "ipc://"+filepath.Join(folder, "s"), "--wait-subscribers", "1")
			p.wantLine(2, trace+c.want)
			// From a pipe it is found on the way.
			p = command(t, "replay", "--trace", "/dev/stdin", "--resident-out", out, "--publisher", "null")
			p.Cmd.Stdin = strings.NewReader(c.text)
			p.Cmd.Stdout = &p.stdout
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			p.wantLine(2, "/dev/stdin"+c.want)
			if p.stdout.Len() > 0 {
				t.Errorf("standard output: %s", tail(&p.stdout))
			}
			if got := read(t, out); got != "old\n" {
				t.Errorf("the old file now holds %q", got)
			}
			if names := listFolder(t, folder); !slices.Equal(names, []string{"resident", "trace.jsonl"}) {
				t.Errorf("left behind: %v", names)
			}
		})
	}
}

// --limit looks at no line beyond it.
func TestLimitStopsReading(t *testing.T) {
	t.Parallel()
	path := writeTrace(t, request{InputLength: 40, HashIDs: []uint64{1}}, request{InputLength: -1})
	s := replay(t, "--trace", path, "--limit", "1", "--publisher", "null")
	if s.Requests != 1 || s.PromptBlocks != 2 || s.StoredBlocks != 2 {
		t.Errorf("got %+v", s)
	}
}

func TestRefusesOccupiedEndpoints(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	folder := shortTemp(t)
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", filepath.Join(folder, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	out := filepath.Join(t.TempDir(), "resident")
	for _, endpoint := range []string{
		"tcp://" + listener.Addr().String(),
		"ipc://" + filepath.Join(folder, "socket"),
		"ipc://" + file,
	} {
		p := start(t, "replay", "--trace", traceFile, "--limit", "1", "--endpoint", endpoint, "--resident-out", out)
		p.wantLine(2, "--endpoint ", endpoint, "address in use")
		// Both are bound or neither is.
		p = start(t, "replay", "--trace", traceFile, "--limit", "1", "--endpoint", "ipc://"+filepath.Join(filepath.Dir(out), "live"),
			"--replay-endpoint", endpoint, "--resident-out", out)
		p.wantLine(2, "--replay-endpoint ", endpoint, "address in use")
	}
	if got := read(t, file); got != "mine" {
		t.Errorf("the file now holds %q", got)
	}
	if names := listFolder(t, filepath.Dir(out)); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

// Files that cannot be written are found before the work where that is
// possible, and leave nothing half-written in any case.
func TestRefusesUnwritableFiles(t *testing.T) {
	t.Parallel()
	t.Run("found before the run", func(t *testing.T) {
		// Would it begin, it would wait for a subscriber for ever.
		for _, path := range []string{"/no/such/folder/r", ".", "/dev/null/r"} {
			p := start(t, "replay", "--trace", traceFile, "--endpoint", "ipc://"+filepath.Join(shortTemp(t), "s"),
				"--wait-subscribers", "1", "--resident-out", path)
			p.wantLine(2, "--resident-out "+path+": ")
		}
	})
	t.Run("no permission", func(t *testing.T) {
		// Not in t.TempDir, which nobody else can enter.
		folder := shortTemp(t)
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(folder, "r")
		if err := os.WriteFile(file, []byte("old\n"), 0o444); err != nil {
			t.Fatal(err)
		}
		closed := filepath.Join(folder, "closed")
		if err := os.Mkdir(closed, 0o555); err != nil {
			t.Fatal(err)
		}
		trace := filepath.Join(folder, "trace.jsonl")
		line := `{"timestamp":0,"input_length":20,"output_length":0,"hash_ids":[1]}`
		if err := os.WriteFile(trace, []byte(line), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{file, filepath.Join(closed, "r")} {
			p := command(t, "replay", "--trace", trace, "--publisher", "off", "--resident-out", path)
			if os.Geteuid() == 0 {
				// Root may write everywhere; nobody may not.
				p.Cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			p.wantLine(2, "--resident-out "+path+": permission denied")
		}
		if got := read(t, file); got != "old\n" {
			t.Errorf("the file now holds %q", got)
		}
	})
	t.Run("full device", func(t *testing.T) {
		p := start(t, "replay", "--trace", traceFile, "--limit", "1", "--publisher", "off", "--resident-out", "/dev/full")
		p.wantLine(2, "--resident-out /dev/full: no space left on device")
		if p.stdout.Len() > 0 {
			t.Errorf("a summary in spite of it: %s", tail(&p.stdout))
		}
		info, err := os.Stat("/dev/full")
		if err != nil || info.Mode()&os.ModeCharDevice == 0 {
			t.Errorf("/dev/full is now %v, %v", info, err)
		}
	})
	t.Run("full disk", func(t *testing.T) {
		folder := t.TempDir()
		out := filepath.Join(folder, "r")
		if err := os.WriteFile(out, []byte("old\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		p := fullDisk(t, "replay", "--trace", traceFile, "--limit", "5", "--publisher", "off", "--resident-out", out)
		p.wantLine(2, "--resident-out "+out+": file too large")
		live, history := held(t)
		p = fullDisk(t, "tap", live, "--replay", history, "--json", "--max-batches", "2", "--mirror-out", out)
		p.wantLine(2, "--mirror-out "+out+": file too large")
		if got := read(t, out); got != "old\n" {
			t.Errorf("the old file now holds %q", got)
		}
		if names := listFolder(t, folder); !slices.Equal(names, []string{"r"}) {
			t.Errorf("left behind: %v", names)
		}
	})
	t.Run("tap", func(t *testing.T) {
		live, history := held(t)
		p := start(t, "tap", live, "--replay", history, "--max-batches", "2", "--mirror-out", "/dev/full")
		p.wantLine(2, "--mirror-out /dev/full: no space left on device")
		// Lines that cannot be printed end the run, and no mirror is left of it.
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer full.Close()
		folder := t.TempDir()
		for _, form := range []string{"--json=true", "--json=false"} {
			p := command(t, "tap", live, "--replay", history, form, "--mirror-out", filepath.Join(folder, "m"))
			p.Cmd.Stdout = full
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			p.wantLine(2, "standard output: no space left on device")
			if names := listFolder(t, folder); len(names) != 0 {
				t.Errorf("left behind: %v", names)
			}
		}
	})
	t.Run("full standard output", func(t *testing.T) {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer full.Close()
		for _, args := range [][]string{
			{"version"},
			{"version", "--json"},
			{"doctor"},
			{"doctor", "--json"},
			{"replay", "--trace", traceFile, "--limit", "1", "--publisher", "off"},
			{"replay", "--trace", traceFile, "--limit", "1", "--publisher", "off", "--json"},
			{"tap", "ipc:///nobody-" + filepath.Base(shortTemp(t)), "--idle-exit", "1ms"},
			{"tap", "ipc:///nobody-" + filepath.Base(shortTemp(t)), "--idle-exit", "1ms", "--json"},
		} {
			p := command(t, args...)
			p.Cmd.Stdout = full
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			p.wantLine(2, "standard output: no space left on device")
		}
	})
	t.Run("reader gone", func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		p := command(t, "version")
		p.Cmd.Stdout = w
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		p.wantLine(2, "standard output: broken pipe")
	})
}

// fullDisk runs kvcast where a limit for the size of files acts as a disk that
// becomes full.
func fullDisk(t *testing.T, args ...string) *process {
	t.Helper()
	p := command(t)
	p.Cmd.Path, p.Cmd.Args = "/bin/sh", append([]string{"sh", "-c", `ulimit -f 1; exec "$@"`, "sh", kvcast.path}, args...)
	p.Cmd.Stdout = &p.stdout
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// held is a replay that is over and serves what it has sent; it ends with the
// test.
func held(t *testing.T) (live, history string) {
	t.Helper()
	folder := shortTemp(t)
	live, history = "ipc://"+filepath.Join(folder, "s"), "ipc://"+filepath.Join(folder, "r")
	p := startPiped(t, "replay", "--trace", traceFile, "--limit", "5", "--endpoint", live, "--replay-endpoint", history, "--hold", "1h", "--tail-mark", "off")
	var s replaySummary
	p.line(&s)
	if s.Batches < 2 {
		t.Fatalf("only %d batches", s.Batches)
	}
	return live, history
}

// A resident set goes through links and pipes, and keeps the mode of a file
// that is there.
func TestOutputTargets(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file, link := filepath.Join(folder, "file"), filepath.Join(folder, "link")
	if err := os.WriteFile(file, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	args := []string{"--trace", traceFile, "--limit", "1", "--publisher", "off", "--resident-out"}
	s := replay(t, append(args, link)...)
	got := read(t, file)
	if strings.Count(got, "\n") != s.ReusableBlocks || s.ReusableBlocks == 0 {
		t.Errorf("%d lines for %d blocks", strings.Count(got, "\n"), s.ReusableBlocks)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is now %v, %v", info, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file is now %v, %v", info, err)
	}
	if names := listFolder(t, folder); len(names) != 2 {
		t.Errorf("left behind: %v", names)
	}

	fifo := filepath.Join(folder, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	reader := exec.Command("cat", fifo)
	piped := make(chan string)
	go func() {
		b, err := reader.Output()
		if err != nil {
			t.Error(err)
		}
		piped <- string(b)
	}()
	replay(t, append(args, fifo)...)
	if <-piped != got {
		t.Error("the pipe got something else than the file")
	}
}
