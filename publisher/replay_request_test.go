// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// requestForms is the table of the wire contract, frames separated by a slash:
// what a ROUTER sees, and whether it is a request.
var requestForms = map[string]struct {
	frames string
	ok     bool
}{
	"REQ, DEALER with delimiter": {"id//12345678", true},
	"DEALER without delimiter":   {"id/12345678", true},
	"no identity text":           {"//12345678", true},
	"one frame":                  {"id", false},
	"0 bytes":                    {"id/", false},
	"0 bytes, delimiter":         {"id//", false},
	"7 bytes":                    {"id//1234567", false},
	"9 bytes":                    {"id//123456789", false},
	"7 bytes, no delimiter":      {"id/1234567", false},
	"9 bytes, no delimiter":      {"id/123456789", false},
	"middle not empty":           {"id/x/12345678", false},
	"two delimiters":             {"id///12345678", false},
	"frame behind":               {"id//12345678/", false},
	"many frames":                {"id" + strings.Repeat("/", 50) + "12345678", false},
}

func splitFrames(text string) (frames [][]byte) {
	for _, f := range strings.Split(text, "/") {
		frames = append(frames, []byte(f))
	}
	return frames
}

func TestParseRequest(t *testing.T) {
	for name, c := range requestForms {
		t.Run(name, func(t *testing.T) {
			start, ok := parseRequest(splitFrames(c.frames))
			if ok != c.ok || ok && start != binary.BigEndian.Uint64([]byte("12345678")) {
				t.Errorf("%d, %v", start, ok)
			}
		})
	}
	if _, ok := parseRequest(nil); ok {
		t.Error("no frames are a request")
	}
}

// Whatever a peer sends, there is a verdict, and it is that of the rule put
// another way.
func FuzzReplayRequest(f *testing.F) {
	for _, c := range requestForms {
		f.Add([]byte(c.frames))
	}
	f.Add([]byte("id//\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		frames := splitFrames(string(data))
		start, ok := parseRequest(frames)
		var last []byte
		switch len(frames) {
		case 2:
			last = frames[1]
		case 3:
			if len(frames[1]) == 0 {
				last = frames[2]
			}
		}
		if ok != (len(last) == 8) {
			t.Fatalf("%q: %v", frames, ok)
		}
		if ok && string(binary.BigEndian.AppendUint64(nil, start)) != string(last) {
			t.Fatalf("%q: start %d", frames, start)
		}
	})
}

func TestWaitingList(t *testing.T) {
	w := waitingList{max: 3}
	add := func(identity string, from connection, start uint64, wantDropped int) {
		t.Helper()
		if n := w.add(request{[]byte(identity), from, start}); n != wantDropped {
			t.Errorf("%s: %d dropped, want %d", identity, n, wantDropped)
		}
	}
	expect := func(want string) {
		t.Helper()
		var got []string
		for _, r := range w.requests {
			got = append(got, fmt.Sprintf("%s%d", r.identity, r.start))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
	dead := connection{fd: -1}
	add("a", connection{}, 1, 0)
	add("b", dead, 1, 0)
	add("c", connection{}, 1, 0)
	expect("a1 b1 c1")
	add("a", connection{}, 2, 1) // the newer one counts, and waits its turn
	expect("b1 c1 a2")
	add("d", connection{}, 1, 1) // in the place of one that is gone
	expect("c1 a2 d1")
	add("e", connection{}, 1, 1) // itself
	expect("c1 a2 d1")
	r, ok := w.take(func(r request) bool { return string(r.identity) != "c" })
	if !ok || string(r.identity) != "a" {
		t.Errorf("%+v, %v", r, ok)
	}
	expect("c1 d1")
	if _, ok := w.take(func(request) bool { return false }); ok {
		t.Error("took one that is not ready")
	}
}
