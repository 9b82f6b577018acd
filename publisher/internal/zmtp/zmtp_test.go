// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// script is a connection whose peer has said everything beforehand.
type script struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
	// late is how often a read ends with a time-out first, deaf makes writes fail.
	late int
	deaf bool
	// slow makes writes time out.
	slow bool
	// The deadlines that were set: of both ways, and of reads and writes.
	both, reads, writes []time.Time
}

func (s *script) Read(b []byte) (int, error) {
	if s.late > 0 {
		s.late--
		return 0, os.ErrDeadlineExceeded
	}
	return s.in.Read(b)
}

func (s *script) Write(b []byte) (int, error) {
	if s.slow {
		return 0, os.ErrDeadlineExceeded
	}
	if s.deaf {
		return 0, io.ErrClosedPipe
	}
	return s.out.Write(b)
}

func (s *script) SetDeadline(t time.Time) error      { s.both = append(s.both, t); return nil }
func (s *script) SetReadDeadline(t time.Time) error  { s.reads = append(s.reads, t); return nil }
func (s *script) SetWriteDeadline(t time.Time) error { s.writes = append(s.writes, t); return nil }

const (
	theirGreeting = "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL" +
		"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + "\x01" + filler
	filler   = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	pubReady = "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
	ping     = "\x04\x0a\x04PING\x00\x05abc"
)

// What is said in a handshake, in which order of types of sockets, and what of it is refused.
func TestHandshake(t *testing.T) {
	replace := func(old, new string) string {
		if !strings.Contains(theirGreeting+pubReady, old) {
			t.Fatalf("no %q", old)
		}
		return strings.Replace(theirGreeting+pubReady, old, new, 1)
	}
	var broken *Error
	var mechanism *MechanismError
	var refused *RefusedError
	for name, c := range map[string]struct {
		kind Kind
		in   string
		want any // what errors.As finds; nil = none
		text string
	}{
		"PUB":            {Sub(), theirGreeting + pubReady, nil, ""},
		"XPUB, more":     {Sub(), replace(pubReady, "\x04\x27\x05READY\x01x\x00\x00\x00\x00\x01y\x00\x00\x00\x01z\x0bsocket-type\x00\x00\x00\x04XPUB"), nil, ""},
		"ROUTER":         {Dealer(), replace(pubReady, "\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"), nil, ""},
		"long READY":     {Sub(), replace("\x04\x19\x05", "\x06\x00\x00\x00\x00\x00\x00\x00\x19\x05"), nil, ""},
		"wrong type":     {Dealer(), theirGreeting + pubReady, &broken, `a socket of type "PUB", want one of ["ROUTER" "REP" "DEALER"]`},
		"no type":        {Sub(), replace(pubReady, "\x04\x06\x05READY"), &broken, "a socket without a type"},
		"cut off":        {Sub(), replace(pubReady, "\x04\x08\x05READY\x01x"), &broken, "properties that are cut off"},
		"huge property":  {Sub(), replace("\x00\x00\x00\x03PUB", "\xff\xff\xff\xffPUB"), &broken, "properties that are cut off"},
		"another word":   {Sub(), replace("\x05READY", "\x05HELLO"), &broken, "no READY"},
		"empty word":     {Sub(), replace(pubReady, "\x04\x00"), &broken, "no READY"},
		"a message":      {Sub(), replace(pubReady, "\x00\x01x"), &broken, "a message before the end of the handshake"},
		"long command":   {Sub(), replace(pubReady, "\x06\x00\x00\x00\x00\x00\x01\x00\x01"), &broken, "a command of 65537 bytes"},
		"endless":        {Sub(), replace(pubReady, "\x06\xff\xff\xff\xff\xff\xff\xff\xff"), &broken, "a command of 18446744073709551615 bytes"},
		"command, more":  {Sub(), replace("\x04\x19", "\x05\x19"), &broken, "a command of 25 bytes"},
		"flags":          {Sub(), replace("\x04\x19", "\x0c\x19"), &broken, "a frame with flags 0xc"},
		"not let in":     {Sub(), replace(pubReady, "\x04\x0a\x05ERROR\x03400"), &refused, `refused: "400"`},
		"no reason":      {Sub(), replace(pubReady, "\x04\x06\x05ERROR"), &refused, `refused: ""`},
		"CURVE":          {Sub(), replace("NULL", "CURVE"), &mechanism, `the peer speaks "CURVE", not "NULL"`},
		"version 2":      {Sub(), replace("\x7f\x03", "\x7f\x01"), &broken, "version 1, want 3 or newer"},
		"version 2, all": {Sub(), "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01", &broken, "version 1, want 3 or newer"},
		"version 1":      {Sub(), "\x01\x00", &broken, "no signature of ZMTP"},
		"signature":      {Sub(), replace("\x7f", "\x7e"), &broken, "no signature of ZMTP"},
		"HTTP":           {Sub(), "HTTP/1.1 400 Bad Request\r\n\r\n", &broken, "no signature of ZMTP"},
		"SSH, short":     {Sub(), "SSH-2", &broken, "no signature of ZMTP"},
		"end":            {Sub(), "", &io.EOF, "EOF"},
		"end, greeting":  {Sub(), theirGreeting[:63], &io.EOF, "EOF"},
		"end, no READY":  {Sub(), theirGreeting, &io.EOF, "EOF"},
		"end, half":      {Sub(), theirGreeting + pubReady[:9], &io.ErrUnexpectedEOF, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			for late := range 2 {
				s := &script{in: strings.NewReader(c.in), late: late}
				conn, err := Handshake(s, c.kind, 100)
				if c.want == nil {
					if err != nil || conn == nil {
						t.Fatal(err)
					}
					want := "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL" + strings.Repeat("\x00", 48) +
						map[string]string{
							"SUB":    "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB",
							"DEALER": "\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00",
						}[c.kind.name]
					if got := s.out.String(); got != want {
						t.Errorf("sent %q, want %q", got, want)
					}
					continue
				}
				if err == nil || !strings.HasSuffix(err.Error(), c.text) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("got %v, want %s", err, c.text)
				}
				if sentinel, ok := c.want.(*error); ok && !errors.Is(err, *sentinel) || !ok && !errors.As(err, c.want) {
					t.Errorf("got %T", err)
				}
			}
		})
	}
}

// A peer learns of the mechanism that is wanted only behind its own.
func TestGreetingWaits(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	result := make(chan error, 1)
	go func() { _, err := Handshake(ours, Sub(), 100); result <- err }()
	theirs.SetDeadline(time.Now().Add(20 * time.Second))
	b := make([]byte, openingSize)
	if _, err := io.ReadFull(theirs, b); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(theirs, strings.Replace(theirGreeting, "NULL", "PLAI", 1)); err != nil {
		t.Fatal(err)
	}
	var mechanism *MechanismError
	if err := <-result; !errors.As(err, &mechanism) || mechanism.Mechanism != "PLAI" {
		t.Errorf("got %v", err)
	}
}

func dial(t testing.TB, in io.Reader, limit int) (*Conn, *script) {
	t.Helper()
	s := &script{in: io.MultiReader(strings.NewReader(theirGreeting+pubReady), in)}
	c, err := Handshake(s, Sub(), limit)
	if err != nil {
		t.Fatal(err)
	}
	s.out.Reset()
	return c, s
}

// Messages with what is kept of them, heartbeats between their frames too, and breaches.
func TestReceive(t *testing.T) {
	long := strings.Repeat("l", 300)
	c, s := dial(t, strings.NewReader("\x00\x00"+
		"\x01\x01a"+ping+"\x01\x02bc\x00\x03def"+
		"\x03\x00\x00\x00\x00\x00\x00\x01\x2c"+long+"\x01\x01b\x00\x01c"+
		strings.Repeat("\x01\x01x", 70000)+"\x00\x01y"+
		"\x04\x06\x05OTHER\x04\x05\x04PING\x04\x00\x04\x1e\x04PING\x00\x000123456789abcdefSURPLUS"+
		"\x00\x01z"+"\x02\x00\x00\x00\x00\x00\x00\x01\x2d"), 300)
	m := Message{Frames: make([][]byte, 2)}
	for _, want := range []struct {
		n       int
		frames  string
		dropped bool
	}{
		{1, `["" ""]`, false},
		{3, `["a" "bc"]`, false},
		{3, `["" "b"]`, true},
		{70001, `["x" "x"]`, false},
		{1, `["z" ""]`, false},
	} {
		if err := c.Receive(&m, 299); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%q", m.Frames); m.N != want.n || got != want.frames || m.Dropped != want.dropped {
			t.Errorf("got %d, %s, %t, want %+v", m.N, got, m.Dropped, want)
		}
	}
	var broken *Error
	if err := c.Receive(&m, 299); !errors.As(err, &broken) || broken.What != "frames may have 300 bytes" {
		t.Errorf("got %v", err)
	}
	if got, want := s.out.String(), "\x04\x08\x04PONGabc\x04\x15\x04PONG0123456789abcdef"; got != want {
		t.Errorf("answered %q, want %q", got, want)
	}
}

// What has a length that no frame has is not called a long one.
func TestNoLength(t *testing.T) {
	c, _ := dial(t, strings.NewReader("\x02\x80\x00\x00\x00\x00\x00\x00\x01"), 300)
	var broken *Error
	if err := c.Receive(&Message{}, 300); !errors.As(err, &broken) || broken.What != "no frame: a length of 0x8000000000000001" {
		t.Errorf("got %v", err)
	}
}

// A peer that does not take answers to its heartbeats is still read.
func TestHeartbeatOfTheDeaf(t *testing.T) {
	c, s := dial(t, strings.NewReader(ping+ping+"\x00\x01a"), 100)
	s.deaf = true
	m := Message{Frames: make([][]byte, 1)}
	if err := c.Receive(&m, 100); err != nil || string(m.Frames[0]) != "a" {
		t.Errorf("got %q, %v", m.Frames, err)
	}
	if !c.mute {
		t.Error("goes on to answer")
	}
}

// One deadline bounds the handshake, however late its parts come.
func TestHandshakeTime(t *testing.T) {
	for late := range 2 {
		s := &script{in: strings.NewReader(theirGreeting + pubReady), late: late}
		if _, err := Handshake(s, Sub(), 100); err != nil {
			t.Fatal(err)
		}
		if len(s.both) != 2 || !s.both[1].IsZero() || len(s.reads) == 0 || len(s.writes) != 0 {
			t.Fatalf("deadlines %v, %v, %v", s.both, s.reads, s.writes)
		}
		for _, d := range s.reads {
			if d.After(s.both[0]) {
				t.Errorf("a deadline %v behind the first", d.Sub(s.both[0]))
			}
		}
	}
}

// A peer that does not read answers to its heartbeats loses its connection within a second.
func TestHeartbeatNotTaken(t *testing.T) {
	c, s := dial(t, strings.NewReader(ping+"\x00\x01a"), 100)
	s.slow = true
	begin := time.Now()
	m := Message{Frames: make([][]byte, 1)}
	if err := c.Receive(&m, 100); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %q, %v", m.Frames, err)
	}
	if len(s.writes) != 1 || s.writes[0].Sub(begin) < pongTime || s.writes[0].After(time.Now().Add(pongTime)) {
		t.Errorf("deadlines %v", s.writes)
	}
}

// What comes behind a heartbeat must come within the time that it says it is good for.
func TestHeartbeatTime(t *testing.T) {
	c, s := dial(t, strings.NewReader("\x00\x01a"+"\x04\x07\x04PING\x00\x00"+"\x00\x01b"+
		"\x04\x07\x04PING\x01\x02"+"\x04\x07\x04PING\x00\x05"+"\x01\x01c"+"\x00\x01d"), 100)
	s.reads = nil
	m := Message{Frames: make([][]byte, 1)}
	receive := func() {
		t.Helper()
		if err := c.Receive(&m, 100); err != nil {
			t.Fatal(err)
		}
	}
	receive()
	receive()
	if len(s.reads) != 0 {
		t.Errorf("deadlines %v without a time", s.reads)
	}
	begin := time.Now()
	receive()
	if len(s.reads) != 4 || !s.reads[1].IsZero() || !s.reads[3].IsZero() {
		t.Fatalf("deadlines %v", s.reads)
	}
	spent := time.Since(begin)
	for i, want := range map[int]time.Duration{0: 25800 * time.Millisecond, 2: 500 * time.Millisecond} {
		if got := s.reads[i].Sub(begin); got < want || got > want+spent {
			t.Errorf("deadline %d after %v, want %v", i, got, want)
		}
	}
}

// What a peer says is told in part only.
func TestLongWords(t *testing.T) {
	const long = 60000
	body := appendProperty(appendName(nil, readyCommand), socketProperty, strings.Repeat("\x01", long))
	_, err := Handshake(&script{in: strings.NewReader(theirGreeting + string(appendFrame(nil, flagCommand, body)))}, Sub(), 100)
	refused := &RefusedError{strings.Repeat("\x01", 255)}
	for _, err := range []error{err, refused} {
		if err == nil || len(err.Error()) > 300 {
			t.Errorf("%d bytes: %.50v", len(fmt.Sprint(err)), err)
		}
	}
}

// What a frame is said to have takes no memory before it has come.
func TestAnnouncedFrames(t *testing.T) {
	const limit = 1 << 30
	header := binary.BigEndian.AppendUint64([]byte{flagLong}, limit)
	in := bytes.NewReader(append(header, make([]byte, 200<<10)...))
	c, _ := dial(t, in, limit)
	m := Message{Frames: make([][]byte, 1)}
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			in.Seek(0, io.SeekStart)
			c.in.Reset(in)
			if err := c.Receive(&m, limit); !errors.Is(err, io.ErrUnexpectedEOF) {
				b.Fatal(err)
			}
		}
	})
	if n := result.AllocedBytesPerOp(); n == 0 || n > 2<<20 {
		t.Errorf("%d bytes for 200 KiB", n)
	}
	// All of it is taken if it comes.
	body := bytes.Repeat([]byte("0123456789abcde\n"), 20000)
	c, _ = dial(t, bytes.NewReader(appendFrame(nil, 0, body)), limit)
	if err := c.Receive(&m, limit); err != nil || !bytes.Equal(m.Frames[0], body) {
		t.Errorf("%d bytes, %v", len(m.Frames[0]), err)
	}
	if n := cap(m.Frames[0]); n != len(body) {
		t.Errorf("%d bytes take %d", len(body), n)
	}
}

// What is sent is what is received.
func TestSend(t *testing.T) {
	c, s := dial(t, strings.NewReader(""), 100)
	frames := [][]byte{{}, []byte("short"), make([]byte, 255), make([]byte, 256), make([]byte, 100000)}
	if err := c.Send(frames...); err != nil {
		t.Fatal(err)
	}
	c, _ = dial(t, &s.out, 100000)
	m := Message{Frames: make([][]byte, len(frames))}
	if err := c.Receive(&m, 1<<20); err != nil || m.N != len(frames) || m.Dropped {
		t.Fatalf("%d frames, %v", m.N, err)
	}
	for i := range frames {
		if !bytes.Equal(frames[i], m.Frames[i]) {
			t.Errorf("frame %d: %d bytes, want %d", i, len(m.Frames[i]), len(frames[i]))
		}
	}
}

// Whatever a peer says: no more is kept than allowed, and the same bytes in pieces say
// the same.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x01\x01a\x00\x02bc" + ping + "\x00\x00"))
	f.Add([]byte("\x03\x00\x00\x00\x00\x00\x00\x00\x05hello\x00\x01x\x06\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte(theirGreeting + pubReady))
	f.Fuzz(func(t *testing.T, in []byte) {
		const limit, most = 50, 60
		read := func(r io.Reader) string {
			c, s := dial(t, r, limit)
			var log strings.Builder
			m := Message{Frames: make([][]byte, 3)}
			for {
				err := c.Receive(&m, most)
				if err != nil {
					fmt.Fprintf(&log, "%v %q", err, s.out.String())
					return log.String()
				}
				kept := 0
				for i, frame := range m.Frames {
					if kept += len(frame); len(frame) > limit || kept > most || i >= m.N && frame != nil {
						t.Fatalf("%d frames, frame %d: %d bytes", m.N, i, len(frame))
					}
				}
				fmt.Fprintf(&log, "%d %q %t ", m.N, m.Frames, m.Dropped)
			}
		}
		whole := read(bytes.NewReader(in))
		if pieces := read(&oneByOne{in}); whole != pieces {
			t.Errorf("%s\n%s", whole, pieces)
		}
	})
}

// FuzzHandshake: whatever a peer begins with, there is a connection or an error.
func FuzzHandshake(f *testing.F) {
	f.Add([]byte(theirGreeting + pubReady))
	f.Add([]byte(theirGreeting + "\x04\x0a\x05ERROR\x03400"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if c, err := Handshake(&script{in: bytes.NewReader(in)}, Sub(), 50); (c == nil) == (err == nil) {
			t.Errorf("%v, %v", c, err)
		}
	})
}

type oneByOne struct{ rest []byte }

func (o *oneByOne) Read(b []byte) (int, error) {
	if len(o.rest) == 0 {
		return 0, io.EOF
	}
	b[0], o.rest = o.rest[0], o.rest[1:]
	return 1, nil
}
