// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	zmq "github.com/pebbe/zmq4"
)

// engine is a publisher made of nothing but a socket, so that it can send what
// kvcast itself never would.
type engine struct {
	t      *testing.T
	socket *zmq.Socket
}

// newEngine binds; every test has a context of its own.
func newEngine(t *testing.T) (*engine, string) {
	t.Helper()
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	ctx.SetRetryAfterEINTR(true)
	s, err := ctx.NewSocket(zmq.XPUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); ctx.Term() })
	endpoint := "ipc://" + filepath.Join(shortTemp(t), "s")
	for _, err := range []error{s.SetLinger(0), s.SetRcvtimeo(deadline), s.Bind(endpoint)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return &engine{t, s}, endpoint
}

// join waits for a subscriber.
func (e *engine) join() {
	e.t.Helper()
	if b, err := e.socket.RecvBytes(0); err != nil || len(b) == 0 || b[0] != 1 {
		e.t.Fatalf("no subscription: %q, %v", b, err)
	}
}

func (e *engine) send(frames ...[]byte) {
	e.t.Helper()
	parts := make([]any, len(frames))
	for i, f := range frames {
		parts[i] = f
	}
	if _, err := e.socket.SendMessage(parts...); err != nil {
		e.t.Fatal(err)
	}
}

func (e *engine) batch(seq int, payload []byte) {
	e.t.Helper()
	e.send([]byte("kv"), binary.BigEndian.AppendUint64(nil, uint64(seq)), payload)
}

// vector is what the tests use of the golden vectors.
type vector struct {
	Name    string  `json:"name"`
	Dialect string  `json:"dialect"`
	Map     *string `json:"map_batch_hex"`
	Array   *string `json:"array_batch_hex"`
	Events  []struct {
		Type      string            `json:"type"`
		Hashes    []json.RawMessage `json:"block_hashes"`
		BlockSize int               `json:"block_size"`
		Tokens    []json.RawMessage `json:"token_ids"`
		ExtraKeys any               `json:"extra_keys"`
		MMKeys    any               `json:"mm_keys"`
	} `json:"events"`
}

func vectors(t *testing.T) []vector {
	t.Helper()
	var file struct {
		Vectors []vector `json:"vectors"`
	}
	if err := json.Unmarshal([]byte(read(t, "../vectors/wire_vectors.json")), &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) < 10 {
		t.Fatalf("only %d vectors", len(file.Vectors))
	}
	return file.Vectors
}

// wantHash is a hash of the vectors as tap prints it.
func wantHash(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var special struct {
		Int   string `json:"$int"`
		Bytes string `json:"$bytes"`
	}
	if raw[0] != '{' {
		return string(raw)
	}
	if err := json.Unmarshal(raw, &special); err != nil {
		t.Fatal(err)
	}
	if special.Bytes != "" {
		return `"0x` + special.Bytes + `"`
	}
	return special.Int
}

// Tap reads what vLLM and SGLang send, as maps and as arrays.
func TestTapReadsOtherEngines(t *testing.T) {
	t.Parallel()
	all := vectors(t)
	for _, form := range []string{"map", "array"} {
		t.Run(form, func(t *testing.T) {
			engine, endpoint := newEngine(t)
			var sent []vector
			for _, v := range all {
				if form == "array" {
					v.Map = v.Array
				}
				if v.Map != nil {
					sent = append(sent, v)
				}
			}
			tap := startPiped(t, "tap", endpoint, "--max-batches", fmt.Sprint(len(sent)))
			engine.join()
			for i, v := range sent {
				payload, err := hex.DecodeString(*v.Map)
				if err != nil {
					t.Fatal(err)
				}
				engine.batch(i, payload)
			}
			for i, v := range sent {
				// Tokens of multimodal blocks may be strings.
				var line struct {
					Type   string `json:"type"`
					Seq    int    `json:"seq"`
					Topic  string `json:"topic"`
					Events []struct {
						Type      string            `json:"type"`
						Hashes    []json.RawMessage `json:"block_hashes"`
						BlockSize int               `json:"block_size"`
						Tokens    []json.RawMessage `json:"token_ids"`
						ExtraKeys any               `json:"extra_keys"`
						MMKeys    any               `json:"mm_keys"`
						Error     string            `json:"error"`
					} `json:"events"`
				}
				tap.line(&line)
				if line.Type != "batch" || line.Seq != i || line.Topic != "kv" || len(line.Events) != len(v.Events) {
					t.Fatalf("%s: got %+v", v.Name, line)
				}
				for k, want := range v.Events {
					got := line.Events[k]
					if got.Error != "" || got.Type != want.Type || got.BlockSize != want.BlockSize ||
						len(got.Hashes) != len(want.Hashes) || fmt.Sprintf("%s", got.Tokens) != fmt.Sprintf("%s", want.Tokens) {
						t.Errorf("%s: got %+v, want %+v", v.Name, got, want)
						continue
					}
					// Numbers and nested lists as they were sent.
					if !reflect.DeepEqual(got.ExtraKeys, want.ExtraKeys) || !reflect.DeepEqual(got.MMKeys, want.MMKeys) {
						t.Errorf("%s: extra keys %v, %v, want %v, %v", v.Name, got.ExtraKeys, got.MMKeys, want.ExtraKeys, want.MMKeys)
					}
					for j, h := range want.Hashes {
						if w := wantHash(t, h); string(got.Hashes[j]) != w {
							t.Errorf("%s: hash %s, want %s", v.Name, got.Hashes[j], w)
						}
					}
				}
			}
			var end tapLine
			tap.line(&end)
			tap.good()
			if end.Type != "summary" || end.Received.Batches != len(sent) || end.Received.Malformed != 0 || end.Verified != nil {
				t.Errorf("ends with %+v", end)
			}
		})
	}
}

// Batches of one clear and of nothing, as the golden vectors have them.
var (
	cleared = unhex("93cb41d954fc402000009181a474797065b0416c6c426c6f636b73436c656172656400")
	empty   = unhex("93cb41d954fc402000009000")
)

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

// golden returns the map form of a vector.
func golden(t *testing.T, name string) []byte {
	t.Helper()
	for _, v := range vectors(t) {
		if v.Name == name {
			return unhex(*v.Map)
		}
	}
	t.Fatalf("no vector %s", name)
	return nil
}

// A breach ends tap --verify with exit code 1 and one line that names it. What
// was seen before is kept.
func TestTapNamesTheBreach(t *testing.T) {
	t.Parallel()
	root := golden(t, "v06_stored_root_block")
	type message struct {
		seq     int
		payload []byte
	}
	for name, c := range map[string]struct {
		messages []message
		frames   [][]byte // after them
		want     string
		mirror   string
	}{
		"gap":              {messages: []message{{0, cleared}, {1, root}, {3, empty}}, want: "batch 3: the number before was 1: 1 batches are missing", mirror: "1234605616436508552\n"},
		"no clear first":   {messages: []message{{0, root}}, want: "batch 0: a life begins with a store"},
		"unknown parent":   {messages: []message{{0, cleared}, {1, golden(t, "v07_stored_two_blocks_neg_parent")}}, want: "batch 1, event 0: parent -723685415333072913 is not announced"},
		"unknown block":    {messages: []message{{0, cleared}, {1, golden(t, "v04_removed_one")}}, want: "batch 1, event 0: hash 1234605616436508552 is removed but not announced"},
		"stored twice":     {messages: []message{{0, cleared}, {1, root}, {2, root}}, want: "batch 2, event 0: hash 1234605616436508552 is announced already", mirror: "1234605616436508552\n"},
		"nil rank":         {messages: []message{{0, cleared}, {1, golden(t, "v02_empty_batch_nil_rank")}}, want: "batch 1: nil rank"},
		"block size 0":     {messages: []message{{0, cleared}, {1, golden(t, "v17_stored_cpu_placeholder")}}, want: "batch 1, event 0: block size 0"},
		"garbage":          {messages: []message{{0, cleared}, {1, []byte{0xc1}}}, want: "unreadable message: batch 1: wire: decode"},
		"two frames":       {messages: []message{{0, cleared}}, frames: [][]byte{{}, {}}, want: "unreadable message: subscribe: receive: malformed message: 2 frames, want 3"},
		"end mark":         {messages: []message{{0, cleared}, {-1, empty}}, want: "unreadable message: subscribe: receive: malformed message: batch 18446744073709551615: the number is the end mark"},
		"hash of 65 bytes": {messages: []message{{0, cleared}, {1, storedBytes("\xc4\x41" + strings.Repeat("x", 65))}}, want: "batch 1, event 0: a hash of 65 bytes, 1 to 64 are allowed"},
		"long hash":        {messages: []message{{0, cleared}, {1, storedBytes("\xc5\xea\x60" + strings.Repeat("x", 60000))}}, want: "batch 1, event 0: a hash of 60000 bytes"},
		"hash of 0 bytes":  {messages: []message{{0, cleared}, {1, storedBytes("\xc4\x00")}}, want: "batch 1, event 0: a hash of 0 bytes"},
		"large for its size": {messages: []message{{0, cleared}, {1, nilExtraKeys(1 << 20)}},
			want: "unreadable message: batch 1: wire: decode: event 0: extra_keys: size limit exceeded"},
		"other key": {messages: []message{{0, cleared}, {1, storedChain(t)}},
			want: "batch 1, event 0: hash 7 is not the key of its parent and tokens, 1735720619063549889", mirror: "8901721255985266736\n"},
	} {
		t.Run(name, func(t *testing.T) {
			engine, endpoint := newEngine(t)
			mirror := filepath.Join(t.TempDir(), "mirror")
			tap := start(t, "tap", endpoint, "--verify", "--mirror-out", mirror)
			engine.join()
			for _, m := range c.messages {
				engine.batch(m.seq, m.payload)
			}
			if c.frames != nil {
				engine.send(c.frames...)
			}
			tap.wantLine(1, "kvcast: "+c.want)
			if got := read(t, mirror); got != c.mirror {
				t.Errorf("mirror %q, want %q", got, c.mirror)
			}
			out := tap.stdout.String()
			if strings.Contains(out, "verified") || !strings.Contains(out, "   total  ") {
				t.Errorf("says in spite of it: %s", tail(&tap.stdout))
			}
		})
	}
	t.Run("too many places", func(t *testing.T) {
		engine, endpoint := newEngine(t)
		tap := start(t, "tap", endpoint, "--verify")
		engine.join()
		engine.batch(0, cleared)
		for i := range 65 {
			engine.batch(i+1, storedIn("\xc4\x01"+string(rune(i)), fmt.Sprintf("m%02d", i)))
		}
		tap.wantLine(1, "kvcast: batch 65, event 0: more than 64 pairs of medium and group")
	})
}

// storedIn is a batch of one BlockStored with one hash, given in msgpack, and
// a medium of three letters.
func storedIn(hash, medium string) []byte {
	return []byte("\x93\xcb\x41\xd9\x54\xfc\x40\x20\x00\x00\x91\x87\xa4type\xabBlockStored\xacblock_hashes\x91" + hash +
		"\xb1parent_block_hash\xc0\xa9token_ids\x91\x01\xaablock_size\x01\xa7lora_id\xc0\xa6medium\xa3" + medium + "\x00")
}

func storedBytes(hash string) []byte { return storedIn(hash, "GPU") }

// nilExtraKeys is a batch that is well-formed and lists n blocks' extra_keys
// for one block.
func nilExtraKeys(n int) []byte {
	b := []byte("\x93\xcb\x41\xd9\x54\xfc\x40\x20\x00\x00\x91\x87\xa4type\xabBlockStored\xacblock_hashes\x91\x07" +
		"\xb1parent_block_hash\xc0\xa9token_ids\x91\x01\xaablock_size\x01\xa7lora_id\xc0\xaaextra_keys\xdd")
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	return append(append(b, bytes.Repeat([]byte{0xc0}, n)...), 0)
}

// Tap tells how many keys it has recomputed, and of how many it could not: a
// root that does not follow from the tokens may be salted.
func TestTapTellsVerifiedKeys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		payload []byte
		want    string
	}{
		"other keys": {golden(t, "v06_stored_root_block"), "keys of 0 blocks recomputed, of 1 not possible\n"},
		"our key":    {goldenRoot(t), "keys of 1 blocks recomputed (signed64)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			engine, endpoint := newEngine(t)
			tap := start(t, "tap", endpoint, "--verify", "--max-batches", "2")
			engine.join()
			engine.batch(0, cleared)
			engine.batch(1, c.payload)
			tap.good()
			if out := tap.stdout.String(); !strings.HasSuffix(out, c.want) {
				t.Errorf("%q does not end with %q", out, c.want)
			}
		})
	}
}

// goldenRoot is storedChain without its second block.
func goldenRoot(t *testing.T) []byte {
	t.Helper()
	s := string(storedChain(t))
	s = strings.Replace(s, "block_hashes\x92", "block_hashes\x91", 1)
	s = strings.Replace(s, "\x07\xb1parent", "\xb1parent", 1)
	s = strings.Replace(s, "\x98\x00\x01\x02\x03\x04\x05\x06\x07", "\x94\x00\x01\x02\x03", 1)
	return []byte(s)
}

// storedChain is a BlockStored of tokens 0..3 under kvcast's key and 4..7
// under another one, written by hand.
func storedChain(t *testing.T) []byte {
	t.Helper()
	var b []byte
	str := func(s string) { b = append(append(b, 0xa0|byte(len(s))), s...) }
	b = append(b, 0x93)
	b = append(b, 0xcb, 0x41, 0xd9, 0x54, 0xfc, 0x40, 0x20, 0, 0, 0x91, 0x88)
	str("type")
	str("BlockStored")
	str("block_hashes")
	b = append(b, 0x92, 0xcf)
	b = binary.BigEndian.AppendUint64(b, 8901721255985266736)
	b = append(b, 7)
	str("parent_block_hash")
	b = append(b, 0xc0)
	str("token_ids")
	b = append(b, 0x98, 0, 1, 2, 3, 4, 5, 6, 7)
	str("block_size")
	b = append(b, 4)
	str("lora_id")
	b = append(b, 0xc0)
	str("medium")
	str("GPU")
	str("lora_name")
	return append(b, 0xc0, 0)
}

// Without --verify tap goes on: what cannot be read is said and passed over,
// gaps are said, and hostile text does not reach the terminal.
func TestTapGoesOn(t *testing.T) {
	t.Parallel()
	engine, endpoint := newEngine(t)
	mirror := filepath.Join(t.TempDir(), "mirror")
	tap := start(t, "tap", endpoint, "--mirror-out", mirror, "--max-batches", "8")
	engine.join()
	engine.send([]byte("one frame"))
	engine.batch(5, []byte("no msgpack"))
	engine.batch(6, golden(t, "v06_stored_root_block"))
	engine.batch(9, empty)
	engine.send([]byte("\x1b[2J"), binary.BigEndian.AppendUint64(nil, 10), cleared)
	engine.batch(11, golden(t, "v06_stored_root_block"))
	engine.batch(10, empty)
	// Two gaps that are together more than a number can hold.
	engine.batch(-3, empty)
	engine.batch(-1, empty)
	engine.send(nil, binary.BigEndian.AppendUint64(nil, 1<<64-1), nil)
	engine.batch(0, empty)
	engine.batch(-2, storedIn("\x07", "GPU"))
	tap.good()
	out := tap.stdout.String()
	for _, want := range []string{
		"malformed  subscribe: receive: malformed message: 1 frames, want 3\n",
		"malformed  batch 5: wire: decode",
		"       6  kv  stored   GPU      1 block  1234605616436508552  of 4 tokens under root\n",
		"     gap  2 batches are missing before 9\n",
		"       9  kv  empty\n",
		`      10  "\x1b[2J"  cleared` + "\n",
		" restart  number 10 comes after 11: the publisher began anew, or batches came again\n",
		"     gap  18446744073709551602 batches are missing before 18446744073709551613\n",
		"malformed  subscribe: receive: malformed message: batch 18446744073709551615: the number is the end mark of replays\n",
		" restart  mark of a new publisher life\n       0  kv  empty\n",
		"     gap  18446744073709551613 batches are missing before 18446744073709551614\n",
		"   total  8 batches, 4 events, 3 blocks stored, 0 removed, 18,446,744,073,709,551,615 batches missing, 3 malformed\n",
		"    last  batch 18446744073709551614 at 2023-11-14T22:13:20.500Z; the stream may go on: no final clear was seen\n",
		"  mirror  1 blocks\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Error("an escape sequence came through")
	}
	// What an earlier life announced is forgotten.
	if got := read(t, mirror); got != "7\n" {
		t.Errorf("mirror %q", got)
	}
}

// A stream of nothing proves nothing, and its mirror replaces no file.
func TestTapNothingReceived(t *testing.T) {
	t.Parallel()
	folder := shortTemp(t)
	endpoint := "ipc://" + filepath.Join(folder, "nobody")
	mirror := filepath.Join(folder, "mirror")
	if err := os.WriteFile(mirror, []byte("123\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	nothing := "nothing was received from " + endpoint + "\n"
	idle := []string{"tap", endpoint, "--idle-exit", "50ms"}
	start(t, idle...).good()
	p := start(t, append(idle, "--verify")...)
	p.wantLine(1, "kvcast: "+nothing)
	if out := p.stdout.String(); strings.Contains(out, "verified") || strings.Contains(out, "last") || !strings.Contains(out, "total  0 batches") {
		t.Errorf("got %q", out)
	}
	start(t, append(idle, "--verify", "--mirror-out", mirror)...).wantLine(1, "kvcast: "+nothing)
	start(t, append(idle, "--mirror-out", mirror)...).wantLine(2, "kvcast: --mirror-out "+mirror+": not written: "+nothing)
	if got := read(t, mirror); got != "123\n" {
		t.Errorf("the file now holds %q", got)
	}
	names, err := os.ReadDir(folder)
	if err != nil || len(names) != 1 {
		t.Errorf("left behind: %v, %v", names, err)
	}

	p = startPiped(t, append(idle, "--verify")...)
	var end tapLine
	p.line(&end)
	p.wantLine(1, nothing)
	if end.Verified == nil || end.Verified.Good || end.Verified.Breach != strings.TrimSpace(nothing) || end.Last != nil {
		t.Errorf("ends with %+v", end)
	}
}

// The summary tells where the stream was left, and whether its end was seen.
func TestTapTellsTheEnd(t *testing.T) {
	t.Parallel()
	root := golden(t, "v06_stored_root_block")
	for name, c := range map[string]struct {
		payloads [][]byte
		final    bool
	}{
		"the first clear":   {[][]byte{cleared}, false},
		"stored":            {[][]byte{cleared, root}, false},
		"cleared":           {[][]byte{cleared, root, cleared}, true},
		"cleared and empty": {[][]byte{cleared, root, cleared, empty}, true},
		"goes on":           {[][]byte{cleared, root, cleared, root}, false},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(start func(*testing.T, ...string) *process) *process {
				engine, endpoint := newEngine(t)
				p := start(t, "tap", endpoint, "--verify", "--max-batches", fmt.Sprint(len(c.payloads)))
				engine.join()
				for i, b := range c.payloads {
					engine.batch(i, b)
				}
				return p
			}
			lines := run(startPiped)
			var end tapLine
			for end.Type != "summary" {
				lines.line(&end)
			}
			lines.good()
			if last := len(c.payloads) - 1; end.Last == nil || end.Last.Seq != last || end.Last.TS != 1700000000.5 || end.Last.FinalClear != c.final {
				t.Errorf("ends with %+v", end.Last)
			}
			human := run(start)
			human.good()
			want := fmt.Sprintf("    last  batch %d at 2023-11-14T22:13:20.500Z; ", len(c.payloads)-1)
			if c.final {
				want += "the last event is a clear\n"
			} else {
				want += "the stream may go on: no final clear was seen\n"
			}
			if out := human.stdout.String(); !strings.Contains(out, want) {
				t.Errorf("%q lacks %q", out, want)
			}
		})
	}
}

// A frame beyond the limit ends the connection for good, and tap with it, also
// when that takes longer to find out than --idle-exit.
func TestTapRefusesLongFrames(t *testing.T) {
	t.Parallel()
	// Made before: on a busy machine that takes longer than the tap waits.
	long := make([]byte, 32<<20+1)
	for _, args := range [][]string{{"--verify", "--idle-exit", "500ms"}, {"--idle-exit", "500ms"}, {"--verify"}} {
		engine, endpoint := newEngine(t)
		tap := start(t, append([]string{"tap", endpoint}, args...)...)
		engine.join()
		engine.batch(0, cleared)
		engine.batch(1, long)
		tap.wantLine(2, "kvcast: subscribe: receive: connection given up: a frame beyond the limit, or no ZMTP: frames may have 33554432 bytes\n")
		if out := tap.stdout.String(); strings.Contains(out, "verified") {
			t.Errorf("%v: got %q", args, out)
		}
	}
}

// A topic filters.
func TestTapTopic(t *testing.T) {
	t.Parallel()
	engine, endpoint := newEngine(t)
	tap := start(t, "tap", endpoint, "--topic", "kv", "--idle-exit", "3s")
	engine.join()
	engine.send([]byte("other"), binary.BigEndian.AppendUint64(nil, 1), empty)
	engine.batch(2, empty)
	tap.good()
	if out := tap.stdout.String(); !strings.Contains(out, "   total  1 batches") {
		t.Errorf("got %q", out)
	}
}

// An interrupt is a good end.
func TestTapInterrupt(t *testing.T) {
	t.Parallel()
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		engine, endpoint := newEngine(t)
		mirror := filepath.Join(t.TempDir(), "mirror")
		tap := startPiped(t, "tap", endpoint, "--verify", "--mirror-out", mirror)
		engine.join()
		engine.batch(0, cleared)
		var line tapLine
		tap.line(&line)
		tap.signal(s)
		tap.line(&line)
		tap.good()
		if line.Type != "summary" || !line.Verified.Good || line.Received.Batches != 1 {
			t.Errorf("%v: %+v", s, line)
		}
		if got := read(t, mirror); got != "" {
			t.Errorf("mirror %q", got)
		}
	}
}
