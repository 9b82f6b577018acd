// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/internal/curvekey"
)

// keyFiles are a CURVE key as text and in files.
type keyFiles struct{ public, secret, publicFile, secretFile string }

func newKeys(t *testing.T) (k keyFiles) {
	t.Helper()
	var err error
	if k.public, k.secret, err = zmq.NewCurveKeypair(); err != nil {
		t.Skipf("libzmq without CURVE: %v", err)
	}
	k.publicFile, k.secretFile = writeFile(t, 0o644, k.public+"\n"), writeFile(t, 0o600, k.secret)
	return k
}

func writeFile(t *testing.T, mode fs.FileMode, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// The umask has no say in it.
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
	return name
}

// Files of keys that must be refused, by field and in words that tell no key.
func TestBadKeyFiles(t *testing.T) {
	k := newKeys(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ server, secret, field, want string }{
		"server no file":  {k.secret, k.secretFile, "CurveServerKeyFile", "is a key itself; want the name of a file that holds it"},
		"secret no file":  {k.publicFile, k.secret, "CurveSecretKeyFile", "is a key itself; want the name of a file that holds it"},
		"server pipe":     {pipe, k.secretFile, "CurveServerKeyFile", "is no regular file"},
		"secret pipe":     {k.publicFile, pipe, "CurveSecretKeyFile", "is no regular file"},
		"server missing":  {"/no/such/file", k.secretFile, "CurveServerKeyFile", "no such file or directory"},
		"server folder":   {"/", k.secretFile, "CurveServerKeyFile", "is no regular file"},
		"server writable": {writeFile(t, 0o664, k.public), k.secretFile, "CurveServerKeyFile", "others than its owner may change it: its mode is 0664"},
		"server short":    {writeFile(t, 0o600, k.public[1:]), k.secretFile, "CurveServerKeyFile", "no public key of 40 characters in Z85"},
		"server secret":   {writeFile(t, 0o600, `secret-key = "`+k.secret+`"`), k.secretFile, "CurveServerKeyFile", "no public key of 40 characters in Z85"},
		"server large":    {writeFile(t, 0o600, strings.Repeat(" ", curvekey.MaxFile+1)), k.secretFile, "CurveServerKeyFile", "more than 1048576 bytes"},
		"secret missing":  {k.publicFile, "/no/such/file", "CurveSecretKeyFile", "no such file or directory"},
		"secret readable": {k.publicFile, writeFile(t, 0o640, k.secret), "CurveSecretKeyFile", "others than its owner may use it: its mode is 0640"},
		"secret no Z85":   {k.publicFile, writeFile(t, 0o600, strings.Repeat("~", 40)), "CurveSecretKeyFile", "no secret key of 40 characters in Z85"},
		"secret public":   {k.publicFile, writeFile(t, 0o600, `public-key = "`+k.public+`"`), "CurveSecretKeyFile", "no secret key of 40 characters in Z85"},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := Connect(ClientOptions{Endpoint: "ipc:///nobody", CurveServerKeyFile: c.server, CurveSecretKeyFile: c.secret})
			if err == nil {
				client.Close()
			}
			var e *Error
			if !errors.Is(err, ErrOption) || !errors.As(err, &e) || !strings.HasPrefix(e.Detail, c.field+" ") || !strings.HasSuffix(e.Detail, ": "+c.want) {
				t.Fatalf("%v, want %s: %s", err, c.field, c.want)
			}
			if strings.Contains(err.Error(), k.secret[:8]) || strings.Contains(err.Error(), k.public[:8]) {
				t.Errorf("tells a key: %v", err)
			}
		})
	}
}

// curveServer is a stream and a replay server with CURVE, or without, that let in
// one key.
func curveServer(t *testing.T, server keyFiles, listed string) (live, replay string) {
	t.Helper()
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	zap, err := ctx.NewSocket(zmq.REP)
	if err == nil {
		err = zap.Bind("inproc://zeromq.zap.01")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ctx.Term() }) // ends the handler
	go func() {
		defer zap.Close()
		for {
			q, err := zap.RecvMessage(0)
			if err != nil {
				return
			}
			status := "400"
			if key, ok := curvekey.Decode(listed); ok && len(q) == 7 && q[6] == string(key[:]) {
				status = "200"
			}
			zap.SendMessage("1.0", q[1], status, "", "", "")
		}
	}()
	open := func(kind zmq.Type) (*zmq.Socket, string) {
		s, err := ctx.NewSocket(kind)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		s.SetLinger(0)
		if server.secret != "" {
			s.SetCurveServer(1)
			s.SetCurveSecretkey(server.secret)
			s.SetZapDomain("test")
		}
		if err := s.Bind("tcp://127.0.0.1:*"); err != nil {
			t.Fatal(err)
		}
		endpoint, err := s.GetLastEndpoint()
		if err != nil {
			t.Fatal(err)
		}
		return s, endpoint
	}
	_, live = open(zmq.XPUB)
	router, replay := open(zmq.ROUTER)
	answered := make(chan struct{})
	t.Cleanup(func() { <-answered }) // before the socket is closed
	router.SetRcvtimeo(10 * time.Millisecond)
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	go func() {
		defer close(answered)
		for {
			select {
			case <-end:
				return
			default:
			}
			if q, err := router.RecvMessageBytes(0); err == nil {
				router.SendMessage(q[0], "", "kv", "\x00\x00\x00\x00\x00\x00\x00\x00", "a batch")
				router.SendMessage(q[0], "", "", "\xff\xff\xff\xff\xff\xff\xff\xff", "")
			}
		}
	}()
	return live, replay
}

// With the right keys replays come; whoever is not let in is told so, but for one
// who takes somebody else for the publisher: then nothing comes at all.
func TestFollowerCurve(t *testing.T) {
	server, listed, other := newKeys(t), newKeys(t), newKeys(t)
	for name, c := range map[string]struct {
		server             keyFiles // of the publisher
		serverKey, ownKeys string
		want               error // nil = a batch
		text               string
	}{
		"right":            {server, server.publicFile, listed.secretFile, nil, ""},
		"unlisted":         {server, server.publicFile, other.secretFile, ErrRefused, "our key is not on its list"},
		"wrong server key": {server, other.publicFile, listed.secretFile, ErrTimeout, ""},
		"no key":           {server, "", "", ErrRefused, "one side speaks CURVE and the other does not"},
		"no CURVE there":   {keyFiles{}, server.publicFile, listed.secretFile, ErrRefused, "one side speaks CURVE and the other does not"},
	} {
		t.Run(name, func(t *testing.T) {
			live, replay := curveServer(t, c.server, listed.public)
			f, err := Follow(FollowerOptions{Client: ClientOptions{Endpoint: live, CurveServerKeyFile: c.serverKey, CurveSecretKeyFile: c.ownKeys}, Replay: replay})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if c.want == ErrTimeout {
				for end := time.Now().Add(2 * giveUp); time.Now().Before(end); {
					if item, err := f.Next(50 * time.Millisecond); !errors.Is(err, ErrTimeout) {
						t.Fatalf("%v, %v", item, err)
					}
				}
				return
			}
			for end := time.Now().Add(time.Minute); ; {
				item, err := f.Next(50 * time.Millisecond)
				if errors.Is(err, ErrTimeout) && time.Now().Before(end) {
					continue
				}
				var e *Error
				switch {
				case c.want == nil && (err != nil || item.Kind != ItemBatch || !item.Replayed):
					t.Fatalf("%v, %v", item, err)
				case c.want != nil && (!errors.Is(err, c.want) || !errors.As(err, &e) || e.Detail != c.text):
					t.Fatalf("%v, %v, want %v: %s", item, err, c.want, c.text)
				}
				return
			}
		})
	}
}

// A certificate as other tools write it is read on both sides.
func TestCertificates(t *testing.T) {
	k := newKeys(t)
	text := "#   ****  Generated  ****\n\nmetadata\ncurve\n    public-key = \"" + k.public + "\"\n"
	got, err := loadCurve(&ClientOptions{CurveServerKeyFile: writeFile(t, 0o644, text),
		CurveSecretKeyFile: writeFile(t, 0o400, text+"    secret-key = \""+k.secret+"\"\n")})
	if err != nil || got.server != k.public || got.public != k.public || got.secret != k.secret {
		t.Errorf("%v", err)
	}
}
