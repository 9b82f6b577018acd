// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/internal/curvekey"
	"github.com/kvcast/kvcast/publisher/wire"
)

// keyPair is a CURVE key as text.
type keyPair struct{ public, secret string }

func newKeyPair(t testing.TB) keyPair {
	t.Helper()
	public, secret, err := zmq.NewCurveKeypair()
	if err != nil {
		t.Skipf("libzmq without CURVE: %v", err)
	}
	return keyPair{public, secret}
}

func writeKeys(t testing.TB, mode fs.FileMode, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
	return name
}

// secured are options with a key of the publisher's and one peer on the list.
func secured(t testing.TB, server, peer keyPair) Options {
	o := replayOptions(t)
	o.CurveSecretKeyFile = writeKeys(t, 0o600, server.secret+"\n")
	o.CurveAllowFile = writeKeys(t, 0o644, "# routers\n\n"+peer.public+"\n")
	return o
}

// curvePeer is a client with a key, or without one, that is watched.
type curvePeer struct {
	ctx             *zmq.Context
	socket, monitor *zmq.Socket
}

// newCurvePeer connects. server is the publisher's public key, "" for a client
// that knows of no CURVE.
func newCurvePeer(t *testing.T, kind zmq.Type, endpoint, server string, own keyPair) *curvePeer {
	t.Helper()
	p := new(curvePeer)
	var err error
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p.ctx, err = zmq.NewContext()
	check(err)
	p.socket, err = p.ctx.NewSocket(kind)
	check(err)
	t.Cleanup(func() {
		if p.monitor != nil {
			p.monitor.Close()
		}
		p.socket.Close()
		p.ctx.Term()
	})
	check(p.socket.SetLinger(0))
	check(p.socket.SetRcvtimeo(patience))
	if kind == zmq.SUB {
		check(p.socket.SetSubscribe(""))
	}
	if server != "" {
		check(p.socket.ClientAuthCurve(server, own.public, own.secret))
	}
	check(p.socket.Monitor("inproc://monitor", zmq.EVENT_ALL))
	p.monitor, err = p.ctx.NewSocket(zmq.PAIR)
	check(err)
	check(p.monitor.SetRcvtimeo(patience))
	check(p.monitor.Connect("inproc://monitor"))
	check(p.socket.Connect(endpoint))
	return p
}

// handshake says whether the connection was let in.
func (p *curvePeer) handshake(t *testing.T) bool {
	t.Helper()
	const failed = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
	for {
		what, _, _, err := p.monitor.RecvEvent(0)
		if err != nil {
			t.Fatalf("no verdict: %v", err)
		}
		switch {
		case what == zmq.EVENT_HANDSHAKE_SUCCEEDED:
			return true
		case what&failed != 0 || what == zmq.EVENT_DISCONNECTED:
			return false
		}
	}
}

// Who has the right key gets stream and replays, and nobody else gets anything,
// in a context of the publisher's own and in a shared one.
func TestCurve(t *testing.T) {
	server, listed := newKeyPair(t), newKeyPair(t)
	for _, name := range []string{"private", "shared"} {
		t.Run(name, func(t *testing.T) {
			o := secured(t, server, listed)
			if name == "shared" {
				ctx, err := zmq.NewContext()
				if err != nil {
					t.Fatal(err)
				}
				defer ctx.Term()
				o.Context = ctx
			}
			p := mustNew(t, o)
			mustStart(t, p)
			defer p.Close() // before the context

			for _, c := range []struct {
				name   string
				server string
				own    keyPair
				let    bool
			}{
				{"right", server.public, listed, true},
				{"unlisted", server.public, newKeyPair(t), false},
				{"wrong server key", newKeyPair(t).public, listed, false},
				{"no key", "", keyPair{}, false},
			} {
				live := newCurvePeer(t, zmq.SUB, p.Endpoint(), c.server, c.own)
				history := newCurvePeer(t, zmq.DEALER, p.ReplayEndpoint(), c.server, c.own)
				if _, err := history.socket.SendMessage("", wire.AppendSeq(nil, 0)); err != nil {
					t.Fatal(err)
				}
				if got := live.handshake(t); got != c.let {
					t.Errorf("%s: stream %v", c.name, got)
				}
				if got := history.handshake(t); got != c.let {
					t.Errorf("%s: replay %v", c.name, got)
				}
				if c.let {
					eventually(t, "subscription", func() bool { return p.Stats().Subscriptions == 1 })
					if err := p.Publish(removal(1)); err != nil {
						t.Fatal(err)
					}
					if frames, err := live.socket.RecvMessageBytes(0); err != nil || len(frames) != wire.LiveFrames {
						t.Errorf("%s: %d frames, %v", c.name, len(frames), err)
					}
					if frames, err := history.socket.RecvMessageBytes(0); err != nil || len(frames) != 4 {
						t.Errorf("%s: %d frames, %v", c.name, len(frames), err)
					}
					continue
				}
				if err := p.Publish(removal(2)); err != nil {
					t.Fatal(err)
				}
				mustFlush(t, p)
				for _, peer := range []*curvePeer{live, history} {
					if frames, err := peer.socket.RecvMessageBytes(zmq.DONTWAIT); err == nil {
						t.Errorf("%s: got %d frames", c.name, len(frames))
					}
				}
				if c.name == "unlisted" && p.Stats().RefusedPeers < 2 {
					t.Errorf("%s: %d are counted", c.name, p.Stats().RefusedPeers)
				}
			}
			if st := p.Stats(); st.Subscriptions != 1 || st.ReplayRequests != 1 {
				t.Errorf("%d subscribers, %d requests", st.Subscriptions, st.ReplayRequests)
			}
			p.Close()
		})
	}
}

// A shared context has one handler: a second publisher with keys is told so, and
// has its turn when the first one is closed. Without keys it is free to come.
func TestCurveSharesAContextWithNobody(t *testing.T) {
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Term()
	server, listed := newKeyPair(t), newKeyPair(t)
	o := secured(t, server, listed)
	o.Context = ctx
	first, second := mustNew(t, o), mustNew(t, o)
	mustStart(t, first)
	if err := second.Start(withPatience(t)); !errors.Is(err, ErrAddressInUse) {
		t.Errorf("Start beside another one: %v", err)
	}
	plain := localOptions(t)
	plain.Context = ctx
	third := mustNew(t, plain)
	mustStart(t, third)
	s := newSubscriber(t, nil).connect(third.Endpoint(), "")
	eventually(t, "subscription", func() bool { return third.Stats().Subscriptions == 1 })
	s.close()
	third.Close()
	first.Close()
	mustStart(t, second)
	peer := newCurvePeer(t, zmq.SUB, second.Endpoint(), server.public, listed)
	if !peer.handshake(t) {
		t.Error("the second one lets nobody in")
	}
	second.Close()
}

// Encrypted streams may be reached from everywhere without a warning.
func TestCurveNeedsNoWarning(t *testing.T) {
	o := secured(t, newKeyPair(t), newKeyPair(t))
	o.Endpoint, o.ReplayEndpoint = "tcp://0.0.0.0:0", "tcp://0.0.0.0:0" // localOptions fails for a warning
	mustStart(t, mustNew(t, o))
}

// Files of keys that must be refused, in words that tell no key.
func TestBadKeyFiles(t *testing.T) {
	pair := newKeyPair(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	secret := func(mode fs.FileMode, text string) func(*Options) {
		return func(o *Options) { o.CurveSecretKeyFile = writeKeys(t, mode, text) }
	}
	list := func(mode fs.FileMode, text string) func(*Options) {
		return func(o *Options) { o.CurveAllowFile = writeKeys(t, mode, text) }
	}
	for name, c := range map[string]struct {
		change    func(*Options)
		key, want string
	}{
		"no list":         {func(o *Options) { o.CurveAllowFile = "" }, keySecret, "there is no curve_allow_file"},
		"no secret":       {func(o *Options) { o.CurveSecretKeyFile = "" }, keyAllow, "there is no curve_secret_key_file"},
		"missing":         {func(o *Options) { o.CurveSecretKeyFile = "/no/such/file" }, keySecret, "no such file or directory"},
		"folder":          {func(o *Options) { o.CurveSecretKeyFile = "/" }, keySecret, "is no regular file"},
		"no file":         {func(o *Options) { o.CurveSecretKeyFile = pair.secret }, keySecret, "is a key itself"},
		"no file of list": {func(o *Options) { o.CurveAllowFile = pair.public }, keyAllow, "is a key itself"},
		"pipe":            {func(o *Options) { o.CurveSecretKeyFile = pipe }, keySecret, "is no regular file"},
		"list, pipe":      {func(o *Options) { o.CurveAllowFile = pipe }, keyAllow, "is no regular file"},
		"group":           {secret(0o640, pair.secret), keySecret, "others than its owner may use it: its mode is 0640"},
		"world":           {secret(0o604, pair.secret), keySecret, "others than its owner may use it: its mode is 0604"},
		"short":           {secret(0o600, pair.secret[:39]), keySecret, "no secret key of 40 characters in Z85"},
		"no Z85":          {secret(0o600, strings.Repeat("~", 40)), keySecret, "no secret key of 40 characters in Z85"},
		"above 32 bits":   {secret(0o600, strings.Repeat("#", 40)), keySecret, "no secret key of 40 characters in Z85"},
		"too large":       {secret(0o600, strings.Repeat(" ", curvekey.MaxFile+1)), keySecret, "more than 1048576 bytes"},
		"list missing":    {func(o *Options) { o.CurveAllowFile = "/no/such/file" }, keyAllow, "no such file or directory"},
		"list writable":   {list(0o646, pair.public), keyAllow, "others than its owner may change it: its mode is 0646"},
		"list empty":      {list(0o600, "# nobody\n"), keyAllow, "no key: nobody could subscribe"},
		"list, bad line":  {list(0o600, pair.public+"\n"+pair.public+"x\n"), keyAllow, "line 2: no public key of 40 characters in Z85"},
		"inproc":          {func(o *Options) { o.Endpoint, o.Kind = "inproc://x", KindZMQ }, keyEndpoint, "inproc"},
		"inproc, replays": {func(o *Options) { o.ReplayEndpoint = "inproc://x" }, keyReplay, "inproc"},
	} {
		t.Run(name, func(t *testing.T) {
			o := secured(t, pair, pair)
			ctx, err := zmq.NewContext()
			if err != nil {
				t.Fatal(err)
			}
			defer ctx.Term()
			o.Context = ctx
			c.change(&o)
			_, err = New(o)
			var e *Error
			if !errors.As(err, &e) || e.Key != c.key || !strings.Contains(e.Detail, c.want) {
				t.Fatalf("%v, want %s: %s", err, c.key, c.want)
			}
			if strings.Contains(err.Error(), pair.secret[:8]) || strings.Contains(err.Error(), pair.public[:8]) {
				t.Errorf("tells a key: %v", err)
			}
		})
	}
}

// A certificate as other tools write it is read, too, and its public key is the
// one that ZeroMQ gives.
func TestCertificate(t *testing.T) {
	pair := newKeyPair(t)
	text := "#   ****  Generated  ****\n\nmetadata\ncurve\n    public-key = \"" + pair.public + "\"\n    secret-key = \"" + pair.secret + "\"\n"
	o := secured(t, pair, pair)
	o.CurveSecretKeyFile = writeKeys(t, 0o400, text)
	p := mustNew(t, o)
	if c := p.settings.curve; c.secret != pair.secret || c.public != pair.public || len(c.allowed) != 1 {
		t.Errorf("%d allowed", len(c.allowed))
	}
	for range 200 {
		public, _, err := zmq.NewCurveKeypair()
		if err != nil {
			t.Fatal(err)
		}
		if key, ok := curvekey.Decode(public); !ok || string(key[:]) != zmq.Z85decode(public) {
			t.Errorf("%s is read as %x", public, key)
		}
	}
}

// What ZeroMQ asks is answered with yes only if all of it is right.
func TestZapAnswers(t *testing.T) {
	pair := newKeyPair(t)
	key, _ := curvekey.Decode(pair.public)
	h := &zapHandler{gate: newGate(&curve{allowed: map[curvekey.Key]bool{key: true}})}
	good := []string{"1.0", "7", "kvcast", "127.0.0.1", "", "CURVE", string(key[:])}
	ask := func(frames []string) string {
		var b [][]byte
		for _, f := range frames {
			b = append(b, []byte(f))
		}
		got := h.answer(b)
		if len(got) != 6 || string(got[0]) != "1.0" || len(frames) > 1 && string(got[1]) != frames[1] {
			t.Errorf("%q: %q", frames, got)
		}
		return string(got[2])
	}
	if got := ask(good); got != "200" {
		t.Errorf("the right one: %s", got)
	}
	for at, wrong := range map[int]string{0: "2.0", 2: "global", 5: "NULL", 6: string(key[:31])} {
		frames := append([]string(nil), good...)
		frames[at] = wrong
		if got := ask(frames); got != "400" {
			t.Errorf("%q: %s", frames, got)
		}
	}
	for n := range len(good) {
		if got := ask(good[:n]); got != "400" {
			t.Errorf("%d frames: %s", n, got)
		}
	}
	if n := h.gate.refused.Load(); n != 11 {
		t.Errorf("%d refused", n)
	}
}
