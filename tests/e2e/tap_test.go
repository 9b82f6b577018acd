// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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
		"gap":            {messages: []message{{0, cleared}, {1, root}, {3, empty}}, want: "batch 3: the number before was 1: 1 batches are missing", mirror: "1234605616436508552\n"},
		"no clear first": {messages: []message{{0, root}}, want: "batch 0: a life begins with a store"},
		"unknown parent": {messages: []message{{0, cleared}, {1, golden(t, "v07_stored_two_blocks_neg_parent")}}, want: "batch 1, event 0: parent -723685415333072913 is not announced"},
		"unknown block":  {messages: []message{{0, cleared}, {1, golden(t, "v04_removed_one")}}, want: "batch 1, event 0: hash 1234605616436508552 is removed but not announced"},
		"stored twice":   {messages: []message{{0, cleared}, {1, root}, {2, root}}, want: "batch 2, event 0: hash 1234605616436508552 is announced already", mirror: "1234605616436508552\n"},
		"nil rank":       {messages: []message{{0, cleared}, {1, golden(t, "v02_empty_batch_nil_rank")}}, want: "batch 1: nil rank"},
		"block size 0":   {messages: []message{{0, cleared}, {1, golden(t, "v17_stored_cpu_placeholder")}}, want: "batch 1, event 0: block size 0"},
		"garbage":        {messages: []message{{0, cleared}, {1, []byte{0xc1}}}, want: "unreadable message: batch 1: wire: decode"},
		"two frames":     {messages: []message{{0, cleared}}, frames: [][]byte{{}, {}}, want: "unreadable message: subscribe: receive: malformed message: 2 frames, want 3"},
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
			if strings.Contains(tap.stdout.String(), "verified") {
				t.Errorf("says in spite of it: %s", tail(&tap.stdout))
			}
		})
	}
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
	tap := start(t, "tap", endpoint, "--mirror-out", mirror, "--max-batches", "4")
	engine.join()
	engine.send([]byte("one frame"))
	engine.batch(5, []byte("no msgpack"))
	engine.batch(6, golden(t, "v06_stored_root_block"))
	engine.batch(9, empty)
	engine.send([]byte("\x1b[2J"), binary.BigEndian.AppendUint64(nil, 10), cleared)
	engine.batch(11, golden(t, "v06_stored_root_block"))
	tap.good()
	out := tap.stdout.String()
	for _, want := range []string{
		"malformed  subscribe: receive: malformed message: 1 frames, want 3\n",
		"malformed  batch 5: wire: decode",
		"       6  kv  stored   GPU      1 block  1234605616436508552  of 4 tokens under root\n",
		"     gap  2 batches are missing before 9\n",
		"       9  kv  empty\n",
		`      10  "\x1b[2J"  cleared` + "\n",
		"   total  4 batches, 3 events, 2 blocks stored, 0 removed, 2 batches missing, 2 malformed\n",
		"  mirror  1 blocks\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Error("an escape sequence came through")
	}
	if got := read(t, mirror); got != "1234605616436508552\n" {
		t.Errorf("mirror %q", got)
	}
}

// --idle-exit ends a tap that hears nothing, and a topic filters.
func TestTapIdleExit(t *testing.T) {
	t.Parallel()
	p := start(t, "tap", "ipc://"+filepath.Join(shortTemp(t), "nobody"), "--verify", "--idle-exit", "100ms")
	p.good()
	if out := p.stdout.String(); !strings.Contains(out, "verified  nothing received") {
		t.Errorf("got %q", out)
	}

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
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
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
