// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

func TestOutputAppearsAsAWhole(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "out")
	names := func() (n []string) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			n = append(n, e.Name())
		}
		return n
	}
	o, err := createOutput(t.Context(), "f", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there before it is full: %v", err)
	}
	if err := o.commit(func(w io.Writer) error { return writePatterns(w, []uint64{0, 1<<64 - 1}) }); err != nil {
		t.Fatal(err)
	}
	o.discard() // must not take back what has been committed
	if b, err := os.ReadFile(path); err != nil || string(b) != "0\n18446744073709551615\n" {
		t.Errorf("got %q, %v", b, err)
	}

	// A failure in the middle leaves the file of before.
	if o, err = createOutput(t.Context(), "f", path); err != nil {
		t.Fatal(err)
	}
	err = o.commit(func(w io.Writer) error {
		if _, err := io.WriteString(w, strings.Repeat("half", 10000)); err != nil {
			return err
		}
		return errors.New("boom")
	})
	if err == nil || err.Error() != "--f "+path+": boom" {
		t.Errorf("got %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "0\n18446744073709551615\n" {
		t.Errorf("got %q", b)
	}
	if n := names(); len(n) != 1 {
		t.Errorf("left behind: %v", n)
	}

	// So does a run that never gets there.
	if o, err = createOutput(t.Context(), "f", path); err != nil {
		t.Fatal(err)
	}
	// Killed now, it would leave nothing behind.
	if n := names(); len(n) != 1 {
		t.Errorf("there is something already: %v", n)
	}
	o.discard()
	o.discard()
	if n := names(); len(n) != 1 {
		t.Errorf("left behind: %v", n)
	}
	(*output)(nil).discard()
}

// Where files without a name do not exist, the file gets a temporary one at the
// end.
func TestOutputWithTemporaryName(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "out")
	if err := os.WriteFile(path, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, fail := range []bool{true, false} {
		o, err := createOutput(t.Context(), "f", path)
		if err != nil {
			t.Fatal(err)
		}
		o.file.Close()
		o.file = nil
		err = o.commit(func(w io.Writer) error {
			io.WriteString(w, "new")
			if fail {
				return errors.New("boom")
			}
			return nil
		})
		want := "new"
		if fail {
			want = "old"
		}
		if b, _ := os.ReadFile(path); string(b) != want || fail == (err == nil) {
			t.Errorf("fail %v: got %q, %v", fail, b, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
			t.Errorf("fail %v: %v, %v", fail, info, err)
		}
		if entries, _ := os.ReadDir(folder); len(entries) != 1 {
			t.Errorf("fail %v: left behind: %v", fail, entries)
		}
	}
}

// The longest name that a file can have is no longer than before.
func TestOutputWithLongName(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("n", 255))
	for range 2 {
		o, err := createOutput(t.Context(), "f", path)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.commit(func(io.Writer) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := createOutput(t.Context(), "f", path+"n"); err == nil || !strings.HasSuffix(err.Error(), ": file name too long") {
		t.Errorf("256 bytes: %v", err)
	}
}

// Links are written through, to a file that is not there yet, too.
func TestOutputThroughLinks(t *testing.T) {
	folder := t.TempDir()
	for name, target := range map[string]string{"a": "b", "b": filepath.Join(folder, "c"), "loop": "loop", "nowhere": "no/such"} {
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	o, err := createOutput(t.Context(), "f", filepath.Join(folder, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := o.commit(func(w io.Writer) error { _, err := io.WriteString(w, "x"); return err }); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(filepath.Join(folder, "c")); err != nil || !info.Mode().IsRegular() || info.Size() != 1 {
		t.Errorf("the end of the links: %v, %v", info, err)
	}
	if got, err := os.Readlink(filepath.Join(folder, "a")); err != nil || got != "b" {
		t.Errorf("the link: %q, %v", got, err)
	}
	for name, want := range map[string]string{
		"loop": "too many levels of symbolic links", "nowhere": "no such file or directory",
		"d/": "is a directory", "new/": "", "": "",
	} {
		os.Mkdir(filepath.Join(folder, "d"), 0o700)
		path := folder + "/" + name
		if name == "" {
			path = "."
		}
		o, err := createOutput(t.Context(), "f", path)
		if err == nil {
			o.discard()
		}
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// What is written to a descriptor follows what is there, and what comes later
// follows it.
func TestOutputToDescriptor(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	link := filepath.Join(t.TempDir(), "link")
	fd := fmt.Sprint(file.Fd())
	if err := os.Symlink("/dev/fd/"+fd, link); err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, path := range []string{
		"/dev/fd/" + fd, "/proc/self/fd/" + fd, "/proc/thread-self/fd/" + fd, link,
		fmt.Sprintf("/proc/%d/fd/%s", os.Getpid(), fd),
	} {
		o, err := createOutput(t.Context(), "f", path)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.commit(func(w io.Writer) error { _, err := io.WriteString(w, "out "); return err }); err != nil {
			t.Fatal(err)
		}
		io.WriteString(file, "more\n")
		want += "out more\n"
	}
	if b, err := os.ReadFile(file.Name()); err != nil || string(b) != want {
		t.Errorf("got %q, %v, want %q", b, err, want)
	}
	readOnly, err := os.Open(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	path := fmt.Sprintf("/dev/fd/%d", readOnly.Fd())
	if _, err := createOutput(t.Context(), "f", path); err == nil || !strings.HasSuffix(err.Error(), "is open for reading only") {
		t.Errorf("a descriptor for reading: %v", err)
	}
	if _, err := createOutput(t.Context(), "f", "/dev/fd/999999"); err == nil || !strings.HasSuffix(err.Error(), "bad file descriptor") {
		t.Errorf("a descriptor that is not open: %v", err)
	}
}

// runCommand runs a command line in this process.
func runCommand(ctx context.Context, args ...string) (code int, out, errText string) {
	var o, e bytes.Buffer
	code = run(ctx, args, streams{&o, &e})
	return code, o.String(), e.String()
}

const oneRequest = `{"timestamp":0,"input_length":40,"output_length":1,"hash_ids":[1]}` + "\n"

// keyFiles makes the files of a publisher with CURVE.
func keyFiles(t *testing.T) (secret, list string) {
	t.Helper()
	// The keys that the manual of libzmq gives as examples.
	const public, key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
	folder := t.TempDir()
	secret, list = filepath.Join(folder, "secret"), filepath.Join(folder, "list")
	if err := errors.Join(os.WriteFile(secret, []byte(key), 0o600), os.WriteFile(list, []byte(public), 0o600)); err != nil {
		t.Fatal(err)
	}
	return secret, list
}

// A key in the place of the name of its file is not shown.
func TestReplayTellsNoKey(t *testing.T) {
	secret, list := keyFiles(t)
	text, err := os.ReadFile(secret)
	if err != nil {
		t.Fatal(err)
	}
	key := string(text)
	quoted, err := json.Marshal(map[string]string{"curve_secret_key_file": key, "curve_allow_file": list})
	if err != nil {
		t.Fatal(err)
	}
	config := configFile(t, string(quoted))
	const why = ` "": is a key itself; want the name of a file that holds it`
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--curve-secret-key-file", key, "--curve-allow-file", list}, "--curve-secret-key-file" + why},
		{[]string{"--curve-secret-key-file", key}, "--curve-secret-key-file" + why},
		{[]string{"--curve-secret-key-file", secret, "--curve-allow-file", key}, "--curve-allow-file" + why},
		{[]string{"--config", config}, "--config " + config + ": curve_secret_key_file" + why},
	} {
		code, out, said := runCommand(t.Context(), append([]string{"replay", "--trace", "/dev/null"}, c.args...)...)
		if code != exitUnusable || out != "" || said != "kvcast: "+c.want+"\n" {
			t.Errorf("%d %q %q, want %q", code, out, said, c.want)
		}
	}
	for _, args := range [][]string{
		{"--curve-secret-key-file", key, "--curve-server-key-file", list},
		{"--curve-secret-key-file", secret, "--curve-server-key-file", key},
		{"--curve-secret-key-file", key},
		{"--curve-server-key-file", key},
	} {
		code, out, said := runCommand(t.Context(), append([]string{"tap", "ipc:///nobody", "--idle-exit", "1ms"}, args...)...)
		if code != exitUnusable || out != "" || strings.Contains(said, key[:8]) || strings.Count(said, "\n") != 1 {
			t.Errorf("tap %q: %d %q %q", args, code, out, said)
		}
	}
}

// A run never takes its own trace for its output.
func TestReplayKeepsItsTrace(t *testing.T) {
	folder := t.TempDir()
	name := func(n string) string { return filepath.Join(folder, n) }
	if err := os.WriteFile(name("t"), []byte(oneRequest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(name("d"), 0o700), os.Symlink("t", name("link")), os.Link(name("t"), name("hard"))); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{name("t"), folder + "/./d/../t", name("link"), name("hard")} {
		for _, in := range []string{name("t"), name("link")} {
			code, _, text := runCommand(t.Context(), "replay", "--publisher", "off", "--trace", in, "--resident-out", out)
			if code != exitUnusable || text != "kvcast: --resident-out "+out+": is the trace itself\n" {
				t.Errorf("%s to %s: %d, %q", in, out, code, text)
			}
		}
	}
	// Nor for anything else that it reads.
	secret, list := keyFiles(t)
	config := configFile(t, `{"hwm": 5}`)
	for file, is := range map[string]string{secret: "holds the secret key", list: "holds the keys of the peers",
		config: "is the configuration itself"} {
		before, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code, _, text := runCommand(t.Context(), "replay", "--endpoint", "ipc://"+name("socket"), "--trace", name("t"),
			"--config", config, "--curve-secret-key-file", secret, "--curve-allow-file", list, "--resident-out", file)
		if strings.Contains(text, "without CURVE") {
			t.Skip(text)
		}
		if code != exitUnusable || text != "kvcast: --resident-out "+file+": "+is+"\n" {
			t.Errorf("%s: %d, %q", file, code, text)
		}
		if file != config {
			code, _, text = runCommand(t.Context(), "tap", "ipc://"+name("socket"), "--idle-exit", "1ms",
				"--curve-secret-key-file", secret, "--curve-server-key-file", list, "--mirror-out", file)
			if code != exitUnusable || !strings.HasPrefix(text, "kvcast: --mirror-out "+file+": holds the ") {
				t.Errorf("%s: %d, %q", file, code, text)
			}
		}
		if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, before) {
			t.Errorf("%s: %q, %v", is, after, err)
		}
	}
	if b, err := os.ReadFile(name("t")); err != nil || string(b) != oneRequest {
		t.Errorf("the trace: %q, %v", b, err)
	}
	if code, _, text := runCommand(t.Context(), "replay", "--publisher", "off", "--trace", name("t"), "--resident-out", name("other")); code != 0 {
		t.Errorf("another file: %d, %q", code, text)
	}
}

// Nor does it take a socket of its own, or of the publisher that it follows, for its
// output, whether that is there already or not.
func TestOutputsKeepSockets(t *testing.T) {
	folder := t.TempDir()
	name := func(n string) string { return filepath.Join(folder, n) }
	if err := errors.Join(os.WriteFile(name("t"), []byte(oneRequest), 0o600), os.Mkdir(name("real"), 0o700),
		os.Symlink("real", name("link")), os.Symlink("real/s", name("last"))); err != nil {
		t.Fatal(err)
	}
	t.Chdir(name("real"))
	for _, there := range []bool{false, true} {
		if there {
			l, err := net.Listen("unix", name("real/s"))
			if err != nil {
				t.Fatal(err)
			}
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			l.Close()
		}
		for _, c := range []struct {
			is   string
			args []string
			outs []string
		}{
			{"is the socket of --endpoint", []string{"--endpoint", "ipc://" + name("real/s")},
				[]string{name("real/s"), name("link/s"), name("last"), "s", "./s", "../link/s"}},
			{"is the socket of --endpoint", []string{"--endpoint", "ipc://s"}, []string{name("real/s"), "s", name("last")}},
			{"is the socket of --endpoint", []string{"--endpoint", "ipc://" + name("link/s"), "--data-parallel-rank", "1",
				"--data-parallel-size", "2"}, []string{name("real/s_dp1")}},
			{"is the socket of --endpoint", []string{"--endpoint", "ipc://" + name("link/s"), "--bind=false", "--data-parallel-rank", "1",
				"--data-parallel-size", "2"}, []string{"s"}},
			{"is the socket of --replay-endpoint", []string{"--endpoint", "ipc://" + name("x"), "--replay-endpoint", "ipc://" + name("real/s")},
				[]string{name("real/s"), "s", name("link/s")}},
		} {
			for _, out := range c.outs {
				args := append([]string{"replay", "--trace", name("t"), "--wait-subscribers", "1", "--resident-out", out}, c.args...)
				code, _, text := runCommand(t.Context(), args...)
				if code != exitUnusable || text != "kvcast: --resident-out "+out+": "+c.is+"\n" {
					t.Errorf("there %v, %q: %d, %q", there, args, code, text)
				}
			}
		}
		for _, out := range []string{name("real/s"), name("link/s"), name("last"), "s"} {
			for is, args := range map[string][]string{
				"is the socket of the publisher": {"tap", "ipc://" + name("link/s")},
				"is the socket of --replay":      {"tap", "ipc://" + name("x"), "--replay", "ipc://s"},
			} {
				args = append(args, "--idle-exit", "1ms", "--mirror-out", out)
				code, _, text := runCommand(t.Context(), args...)
				if code != exitUnusable || text != "kvcast: --mirror-out "+out+": "+is+"\n" {
					t.Errorf("there %v, %q: %d, %q", there, args, code, text)
				}
			}
		}
	}
	// Where nothing is bound nothing is lost, and another file is another file.
	for _, args := range [][]string{{"--publisher", "off", "--resident-out", name("real/r")},
		{"--publisher", "null", "--endpoint", "ipc://" + name("real/n"), "--resident-out", name("real/n")},
		{"--endpoint", "ipc://" + name("real/e"), "--resident-out", name("real/o")},
		{"--endpoint", "ipc://@s", "--resident-out", name("real/@s")}} {
		if code, _, text := runCommand(t.Context(), append([]string{"replay", "--trace", name("t"), "--device", "host"}, args...)...); code != 0 {
			t.Errorf("%q: %d, %q", args, code, text)
		}
	}
}

// An interruption ends what waits for the other end of a pipe, and the first
// look through a long trace.
func TestInterruptedBeforeTheRun(t *testing.T) {
	folder := t.TempDir()
	trace, fifo := filepath.Join(folder, "t"), filepath.Join(folder, "fifo")
	if err := errors.Join(os.WriteFile(trace, []byte(oneRequest), 0o600), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no writer": {[]string{"replay", "--publisher", "off", "--trace", fifo}, "interrupted before the first request"},
		"no writer of the configuration": {[]string{"replay", "--publisher", "off", "--trace", trace, "--config", fifo},
			"interrupted before the first request"},
		"no reader": {[]string{"replay", "--publisher", "off", "--trace", trace, "--resident-out", fifo},
			"--resident-out " + fifo + ": interrupted while waiting for a reader"},
		"tap, no reader": {[]string{"tap", "ipc:///nobody", "--mirror-out", fifo},
			"--mirror-out " + fifo + ": interrupted while waiting for a reader"},
	} {
		t.Run(name, func(t *testing.T) {
			// It is already waiting then, or has not yet begun: both must end.
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			code, _, text := runCommand(ctx, c.args...)
			if code != exitUnusable || text != "kvcast: "+c.want+"\n" {
				t.Errorf("%d, %q", code, text)
			}
		})
	}
	t.Run("long trace", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := openTrace(ctx, trace, 0); err != errInterrupted {
			t.Errorf("got %v", err)
		}
	})
	// With somebody at the other end a pipe works as ever.
	go func() {
		if err := os.WriteFile(fifo, []byte(oneRequest+oneRequest), 0); err != nil {
			t.Error(err)
		}
	}()
	code, out, text := runCommand(t.Context(), "replay", "--publisher", "off", "--json", "--trace", fifo)
	if code != 0 || !strings.Contains(out, `"requests":2,`) {
		t.Errorf("%d, %q, %q", code, out, text)
	}
	// A configuration that begins and does not end, and one that does.
	writer, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := writer.WriteString(`{"hwm":`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	code, _, text = runCommand(ctx, "replay", "--publisher", "off", "--trace", trace, "--config", fifo)
	if code != exitUnusable || text != "kvcast: interrupted before the first request\n" {
		t.Errorf("%d, %q", code, text)
	}
	if data, err := readConfig(t.Context(), configFile(t, "{}")); err != nil || string(data) != "{}" {
		t.Errorf("%q, %v", data, err)
	}
}

// What is wrong with a flag's value is said in the user's words.
func TestFlagErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--limit 1e3":                  `--limit "1e3": want a whole number`,
		"--limit 99999999999999999999": `--limit "99999999999999999999": want a whole number that is not so large`,
		"--limit=":                     `--limit "": want a whole number`,
		"--speed fast":                 `--speed "fast": want a number`,
		"--speed 1e999":                `--speed "1e999": want a number that is not so large`,
		"--hold 5":                     `--hold "5": want a duration, such as 500ms or 1m30s`,
		"--json=maybe":                 `--json "maybe": want true or false`,
		"--limit":                      "flag needs an argument: --limit",
		"--resident-out=":              `--resident-out "": want a file`,
	} {
		code, out, text := runCommand(t.Context(), append([]string{"replay", "--trace", os.DevNull}, strings.Fields(args)...)...)
		if code != exitUnusable || text != "kvcast: "+want+"\n" || out != "" {
			t.Errorf("%s: %d, %q, %q", args, code, text, out)
		}
	}
	code, _, text := runCommand(t.Context(), "tap", "ipc:///nobody", "--mirror-out", "", "--idle-exit", "1ms")
	if code != exitUnusable || text != "kvcast: --mirror-out \"\": want a file\n" {
		t.Errorf("tap: %d, %q", code, text)
	}
}

// A help that cannot be printed is an error.
func TestHelpToFullDevice(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, args := range [][]string{{}, {"--help"}, {"help"}, {"help", "replay"}, {"tap", "--help"}} {
		var text bytes.Buffer
		code := run(t.Context(), args, streams{full, &text})
		if code != exitUnusable || text.String() != "kvcast: standard output: no space left on device\n" {
			t.Errorf("%v: %d, %q", args, code, text.String())
		}
		if code, out, _ := runCommand(t.Context(), args...); code != 0 || out == "" {
			t.Errorf("%v: %d without a full device", args, code)
		}
	}
}

func TestOneLine(t *testing.T) {
	if got := oneLine("a\nb\x1b[2J\tc \u00fc\n"); got != "a b [2J c \u00fc" {
		t.Errorf("got %q", got)
	}
}

func TestShortened(t *testing.T) {
	if line := strings.Repeat("a", maxLine); shortened(line) != line {
		t.Error("a line that is short enough changes")
	}
	for _, c := range []string{"a", "\u00fc", "\u20ac"} {
		got := shortened("--topic " + strings.Repeat(c, 100000) + ": want less")
		if len(got) > 700 || !strings.HasPrefix(got, "--topic "+c) || !strings.HasSuffix(got, c+": want less") || !utf8.ValidString(got) {
			t.Errorf("%q", got)
		}
	}
	code, out, text := runCommand(t.Context(), "replay", "--trace", "/dev/null", "--hash", strings.Repeat("x", 100000))
	if code != exitUnusable || out != "" || len(text) > 1000 || !strings.HasPrefix(text, "kvcast: --hash ") ||
		!strings.HasSuffix(text, "portable63 or bytes\n") {
		t.Errorf("%d %q %.200q, %d bytes", code, out, text, len(text))
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{"GPU": "GPU", "a b": `"a b"`, "\x1b": `"\x1b"`, "ü": `"\u00fc"`, "": ""} {
		if got := plain(in); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}

func TestGrouped(t *testing.T) {
	for in, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 1<<64 - 1: "18,446,744,073,709,551,615"} {
		if got := grouped(in); got != want {
			t.Errorf("%d: got %s, want %s", in, got, want)
		}
	}
}
