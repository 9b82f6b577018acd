// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// Tap recomputes the keys of our own replay, whose form it finds out by
// itself: one bit of one key that changes on the way is a breach. The bit is
// where each form has it, and not in a root, which could be salted.
func TestTapFindsChangedKey(t *testing.T) {
	for _, form := range []string{"signed64", "unsigned64", "portable63", "bytes"} {
		for _, change := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s changed %t", form, change), func(t *testing.T) {
				t.Parallel()
				relayKey(t, form, change)
			})
		}
	}
}

func relayKey(t *testing.T, form string, change bool) {
	source := "ipc://" + filepath.Join(shortTemp(t), "s")
	client, err := subscribe.Connect(subscribe.ClientOptions{Endpoint: source})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	replay := startPiped(t, "replay", "--trace", traceFile, "--limit", "3", "--hash", form,
		"--endpoint", source, "--wait-subscribers", "1", "--hold", "1h", "--tail-mark", "off", "--device", "host")
	var s replaySummary
	replay.line(&s)

	engine, endpoint := newEngine(t)
	tap := start(t, "tap", endpoint, "--verify", "--max-batches", fmt.Sprint(s.Batches))
	engine.join()
	done := !change
	for range s.Batches {
		m, err := client.Receive(deadline)
		if err != nil {
			t.Fatal(err)
		}
		payload := m.Payload
		if !done {
			payload, done = changeKey(t, payload)
		}
		engine.send([]byte(m.Topic), binary.BigEndian.AppendUint64(nil, m.Seq), payload)
	}
	if !done {
		t.Fatal("there was no key to change")
	}
	replay.signal(syscall.SIGTERM)
	replay.good()
	if change {
		tap.wantLine(1, "is not the key of its parent and tokens")
		return
	}
	tap.good()
	want := fmt.Sprintf("keys of %s blocks recomputed (%s)\n", grouped(s.StoredBlocks), form)
	if !bytes.HasSuffix(tap.stdout.Bytes(), []byte(want)) {
		t.Errorf("%q does not end with %q", tail(&tap.stdout), want)
	}
}

// changeKey changes the last bit of the last hash of the first store that has
// several, if there is one.
func changeKey(t *testing.T, payload []byte) ([]byte, bool) {
	t.Helper()
	b, err := wire.Decode(payload, wire.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range b.Events {
		if e.Kind != wire.KindStored || len(e.Hashes) < 2 {
			continue
		}
		h := e.Hashes[len(e.Hashes)-1]
		text := []byte(h.Raw)
		if h.Kind != wire.HashBytes {
			text = binary.BigEndian.AppendUint64(nil, h.Bits)
		}
		// No event before can name the block, so this is the one place.
		i := bytes.Index(payload, text)
		if i < 0 {
			t.Fatalf("%s is not in its batch", h)
		}
		payload[i+len(text)-1] ^= 1
		return payload, true
	}
	return payload, false
}

// grouped writes a number as the tool does for people.
func grouped(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
