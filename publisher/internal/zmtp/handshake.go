// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"
)

const (
	// The greeting: a signature, a version, a mechanism, whose server, and filler.
	greetingSize  = 64
	signatureSize = 10
	versionAt     = 10
	mechanismAt   = 12
	mechanismSize = 20
	// openingSize is how much of the greeting is sent at first, the number of the
	// version with it. libzmq then tells its mechanism, and hangs up without a word
	// when it knows ours and has another one.
	openingSize = versionAt + 1
	// opening is how long that is waited for: a peer may want to see a whole greeting
	// before it sends its own.
	opening = time.Second
	version = 3
	// handshakeTime bounds a handshake; ZeroMQ's own bound is as long.
	handshakeTime = 30 * time.Second
	// bufferSize is how much of a connection is read at once.
	bufferSize = 32 << 10

	mechanism      = "NULL"
	readyCommand   = "READY"
	errorCommand   = "ERROR"
	socketProperty = "Socket-Type"
)

// Error says that the peer has broken the protocol.
type Error struct {
	// What it did.
	What string
}

// Error returns one line.
func (e *Error) Error() string { return "zmtp: " + e.What }

// MechanismError says that the peer wants another mechanism than NULL.
type MechanismError struct {
	// Mechanism is its name.
	Mechanism string
}

// Error returns one line.
func (e *MechanismError) Error() string {
	return fmt.Sprintf("zmtp: the peer speaks %q, not %q", e.Mechanism, mechanism)
}

// Temporary is the reason of a RefusedError that may be another one next time
// (https://rfc.zeromq.org/spec/27).
const Temporary = "300"

// RefusedError says that the peer does not let us in.
type RefusedError struct {
	// Reason is what it says, usually a status code of three digits.
	Reason string
}

// Error returns one line.
func (e *RefusedError) Error() string { return fmt.Sprintf("zmtp: refused: %.20q", e.Reason) }

func broken(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// Kind is a type of socket on our side.
type Kind struct {
	name  string
	peers []string
	// identity: it tells one, an empty one.
	identity bool
}

// Sub receives what is published.
func Sub() Kind { return Kind{name: "SUB", peers: []string{"PUB", "XPUB"}} }

// Dealer asks, and receives answers.
func Dealer() Kind {
	return Kind{name: "DEALER", peers: []string{"ROUTER", "REP", "DEALER"}, identity: true}
}

// Conn is a connection after its handshake. One goroutine at a time may use it;
// any may close what it was made of.
type Conn struct {
	conn  net.Conn
	in    *bufio.Reader
	limit uint64
	// scratch holds commands.
	scratch []byte
	// mute: a heartbeat could not be answered; awaited: there is a time until which
	// something must come.
	mute, awaited bool
}

// Handshake makes a Conn of a connection that it does not close. limit is the
// longest frame that is taken, in bytes. It takes 30 s at most. It returns an *Error, a
// *MechanismError or a *RefusedError when another attempt would end alike, unless the
// reason of the last is Temporary, and others when one may not.
func Handshake(conn net.Conn, kind Kind, limit int) (*Conn, error) {
	c := &Conn{conn: conn, in: bufio.NewReaderSize(conn, bufferSize), limit: uint64(max(limit, 0))}
	end := time.Now().Add(handshakeTime)
	if err := conn.SetDeadline(end); err != nil {
		return nil, err
	}
	if err := c.greet(end); err != nil {
		return nil, err
	}
	ready := appendProperty(appendName(nil, readyCommand), socketProperty, kind.name)
	if kind.identity {
		ready = appendProperty(ready, "Identity", "")
	}
	if _, err := conn.Write(appendFrame(nil, flagCommand, ready)); err != nil {
		return nil, err
	}
	if err := c.ready(kind); err != nil {
		return nil, err
	}
	return c, conn.SetDeadline(time.Time{})
}

// greet exchanges the greetings. end is that of the whole handshake.
func (c *Conn) greet(end time.Time) error {
	ours := make([]byte, greetingSize)
	ours[0], ours[signatureSize-1], ours[versionAt] = 0xff, 0x7f, version
	copy(ours[mechanismAt:], mechanism)
	if _, err := c.conn.Write(ours[:openingSize]); err != nil {
		return err
	}
	c.conn.SetReadDeadline(time.Now().Add(opening))
	theirs, err := c.greeting()
	rest := ours[openingSize:]
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if _, err := c.conn.Write(rest); err != nil {
			return err
		}
		rest = nil
		c.conn.SetReadDeadline(end)
		theirs, err = c.greeting()
	}
	if err != nil {
		return err
	}
	name := theirs[mechanismAt:][:mechanismSize]
	if name = bytes.TrimRight(name, "\x00"); string(name) != mechanism {
		return &MechanismError{string(name)}
	}
	if _, err := c.in.Discard(greetingSize); err != nil {
		return err
	}
	c.conn.SetReadDeadline(end)
	_, err = c.conn.Write(rest)
	return err
}

// greeting returns the peer's, without taking it.
func (c *Conn) greeting() ([]byte, error) {
	// Whoever speaks something else may never send as much as a greeting.
	b, err := c.in.Peek(signatureSize)
	if len(b) > 0 && b[0] != 0xff || len(b) == signatureSize && b[signatureSize-1]&1 == 0 {
		return nil, broken("no signature of ZMTP")
	}
	if err != nil {
		return nil, err
	}
	if b, err = c.in.Peek(openingSize); err != nil {
		return nil, err
	}
	if b[versionAt] < version {
		return nil, broken("version %d, want %d or newer", b[versionAt], version)
	}
	return c.in.Peek(greetingSize)
}

// ready reads the peer's last word of the handshake.
func (c *Conn) ready(kind Kind) error {
	h, err := c.header()
	if err != nil {
		return err
	}
	if h.flags&flagCommand == 0 {
		return broken("a message before the end of the handshake")
	}
	body, err := c.command(h)
	if err != nil {
		return err
	}
	name, rest, ok := cutShort(body)
	switch {
	case ok && string(name) == errorCommand:
		reason, _, _ := cutShort(rest)
		return &RefusedError{string(reason)}
	case !ok || string(name) != readyCommand:
		return broken("no READY")
	}
	for len(rest) > 0 {
		var value []byte
		if name, value, rest, ok = cutProperty(rest); !ok {
			return broken("properties that are cut off")
		}
		if bytes.EqualFold(name, []byte(socketProperty)) {
			if !slices.Contains(kind.peers, string(value)) {
				return broken("a socket of type %.20q, want one of %q", value, kind.peers)
			}
			return nil
		}
	}
	return broken("a socket without a type")
}

func appendName(b []byte, name string) []byte { return append(append(b, byte(len(name))), name...) }

func appendProperty(b []byte, name, value string) []byte {
	b = binary.BigEndian.AppendUint32(appendName(b, name), uint32(len(value)))
	return append(b, value...)
}

// cutShort cuts off what is behind a byte with its length.
func cutShort(b []byte) (text, rest []byte, ok bool) {
	if len(b) == 0 || len(b)-1 < int(b[0]) {
		return nil, nil, false
	}
	n := 1 + int(b[0])
	return b[1:n], b[n:], true
}

func cutProperty(b []byte) (name, value, rest []byte, ok bool) {
	if name, b, ok = cutShort(b); !ok || len(b) < 4 {
		return nil, nil, nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if b = b[4:]; uint64(n) > uint64(len(b)) {
		return nil, nil, nil, false
	}
	return name, b[:n], b[n:], true
}
