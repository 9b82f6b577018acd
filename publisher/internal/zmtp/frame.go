// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"time"
)

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
	// maxShort is the longest frame with a length of one byte.
	maxShort = math.MaxUint8
	// maxCommand is the longest command that is taken, in bytes. A READY with
	// metadata and a heartbeat have tens.
	maxCommand = 64 << 10
	// growth is what is taken for a frame before any of it has arrived; then as much
	// as there is already.
	growth = 64 << 10
	// writeTime is how long a peer may take to read what we send, which is little.
	// pongTime is that for the answer to a heartbeat, while which nothing is read.
	writeTime = 30 * time.Second
	pongTime  = time.Second

	pingCommand = "PING"
	pongCommand = "PONG"
	// A heartbeat has a time that it is good for, in front of what comes back with
	// the answer, so much of it at most.
	pingTime   = 2
	pingReturn = 16
	// pingUnit is the unit of that time.
	pingUnit = 100 * time.Millisecond
)

// header is what is in front of a frame.
type header struct {
	flags byte
	size  uint64
}

func (c *Conn) header() (h header, err error) {
	if h.flags, err = c.in.ReadByte(); err != nil {
		return h, err
	}
	if h.flags&^(flagMore|flagLong|flagCommand) != 0 {
		return h, broken("a frame with flags %#x", h.flags)
	}
	if h.flags&flagLong == 0 {
		size, err := c.in.ReadByte()
		h.size = uint64(size)
		return h, err
	}
	var b [8]byte
	_, err = io.ReadFull(c.in, b[:])
	h.size = binary.BigEndian.Uint64(b[:])
	return h, err
}

// command reads the body of a command, which is valid until the next one.
func (c *Conn) command(h header) ([]byte, error) {
	if h.size > maxCommand || h.flags&flagMore != 0 {
		return nil, broken("a command of %d bytes", h.size)
	}
	if n := int(h.size); n > cap(c.scratch) {
		c.scratch = make([]byte, n)
	}
	b := c.scratch[:h.size]
	_, err := io.ReadFull(c.in, b)
	return b, err
}

// obey does what a command says: it answers heartbeats. What it does not know is
// ignored. A peer that has ended takes no answer, and what it sent before is still to be
// read: it gets no more. One that just does not read is an error.
func (c *Conn) obey(body []byte) error {
	name, rest, ok := cutShort(body)
	if !ok || string(name) != pingCommand || len(rest) < pingTime {
		return nil
	}
	good := time.Duration(binary.BigEndian.Uint16(rest)) * pingUnit
	rest = rest[pingTime:]
	if !c.mute {
		pong := append(appendName(nil, pongCommand), rest[:min(len(rest), pingReturn)]...)
		err := c.write(appendFrame(nil, flagCommand, pong), pongTime)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		c.mute = err != nil
	}
	if good == 0 {
		return nil
	}
	// What comes next is read at once, so the time is that of the peer alone.
	c.awaited = true
	return c.conn.SetReadDeadline(time.Now().Add(good))
}

// heard ends the time that the last heartbeat is good for.
func (c *Conn) heard() error {
	if !c.awaited {
		return nil
	}
	c.awaited = false
	return c.conn.SetReadDeadline(time.Time{})
}

// Message is what one message holds.
type Message struct {
	// Frames are its first frames, as many as there is room for, and N is how many
	// it has.
	Frames [][]byte
	N      int
	// Dropped: frames for which there was room were too long together and are not
	// there.
	Dropped bool
}

// Receive reads the next message into m, whose Frames must have the length of the
// frames that are wanted; the others are not kept in memory. most is how many bytes
// those may have together. What is in the frames belongs to the caller. It answers
// heartbeats meanwhile, and fails with os.ErrDeadlineExceeded when the peer does not
// take an answer, or sends nothing for as long as its heartbeat says that it is good for.
// Behind an error the connection is of no use any more; it is an *Error for a breach of
// the protocol.
func (c *Conn) Receive(m *Message, most int) error {
	clear(m.Frames)
	m.N, m.Dropped = 0, false
	kept := uint64(0)
	for {
		h, err := c.header()
		if err == nil {
			err = c.heard()
		}
		if err != nil {
			return err
		}
		if h.flags&flagCommand != 0 {
			body, err := c.command(h)
			if err == nil {
				err = c.obey(body)
			}
			if err != nil {
				return err
			}
			continue
		}
		if h.size > math.MaxInt64 {
			return broken("no frame: a length of %#x", h.size) // the specification has none
		}
		if h.size > c.limit {
			return broken("frames may have %d bytes", c.limit)
		}
		wanted := m.N < len(m.Frames)
		if wanted && kept+h.size > uint64(max(most, 0)) {
			wanted, m.Dropped = false, true
		}
		if wanted {
			kept += h.size
			m.Frames[m.N], err = c.body(int(h.size))
		} else {
			err = c.skip(h.size)
		}
		if err != nil {
			return err
		}
		if m.N < math.MaxInt {
			m.N++
		}
		if h.flags&flagMore == 0 {
			return nil
		}
	}
}

// body reads n bytes, into as much memory.
func (c *Conn) body(n int) ([]byte, error) {
	b := make([]byte, min(n, growth))
	for read := 0; ; {
		if _, err := io.ReadFull(c.in, b[read:]); err != nil {
			return nil, err
		}
		if read = len(b); read == n {
			return b, nil
		}
		more := make([]byte, read+min(n-read, read))
		copy(more, b)
		b = more
	}
}

func (c *Conn) skip(n uint64) error {
	for n > 0 {
		step := int(min(n, bufferSize))
		if _, err := c.in.Discard(step); err != nil {
			return err
		}
		n -= uint64(step)
	}
	return nil
}

// Send sends a message. It may take a while if the peer does not read.
func (c *Conn) Send(frames ...[]byte) error {
	var b []byte
	for i, frame := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		b = appendFrame(b, flags, frame)
	}
	return c.write(b, writeTime)
}

func (c *Conn) write(b []byte, most time.Duration) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(most)); err != nil {
		return err
	}
	_, err := c.conn.Write(b)
	return err
}

func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) <= maxShort {
		b = append(b, flags, byte(len(body)))
	} else {
		b = binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(len(body)))
	}
	return append(b, body...)
}
