// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

// clearBatch is a batch of one clear, from the golden vectors.
const clearBatch = "93cb41d954fc402000009181a474797065b0416c6c426c6f636b73436c656172656400"

// play drives a tracker by a script of words:
//
//	A7      batch 7 of life A comes live (payload "A7"; of life C: a clear)
//	rA7     the same in the answer to a request; end = the end of the answer
//	~A7     the same, but over this connection or one before
//	mark    the mark of a new life
//	conn    the first handshake; recon = a later one
//	5s      so much time passes while somebody waits
//	?7      a request from 7 must be due now; ?- none
//	>A7     batch 7 of life A is handed out; >rA7 = and says that it is replayed
//	>gap7+2 >reset:mark|replaced|lower|unproven|rebuilt
type play struct {
	t    *testing.T
	tr   *tracker
	now  time.Time
	text string
	at   int
}

var reasons = map[ResetReason]string{ResetMark: "mark", ResetReplaced: "replaced",
	ResetLower: "lower", ResetUnproven: "unproven", ResetRebuilt: "rebuilt"}

func newPlay(t *testing.T, asks bool) *play {
	start := time.Unix(1700000000, 0)
	l := limits{messages: 4, bytes: 1 << 20, attempts: 2, timeout: 5 * time.Second, settle: settleTime, answer: 100}
	return &play{t: t, tr: newTracker(l, "", asks, start), now: start}
}

func (p *play) message(word string) *Message {
	seq, err := strconv.ParseUint(word[1:], 10, 64)
	if err != nil {
		p.t.Fatalf("word %d %q: %v", p.at, word, err)
	}
	m := &Message{Seq: seq, Payload: []byte(word)}
	if word[0] == 'C' {
		m.Payload, _ = hex.DecodeString(clearBatch)
	}
	return m
}

func describeItem(i Item) string {
	switch i.Kind {
	case ItemBatch:
		s := string(i.Message.Payload)
		if hex.EncodeToString(i.Message.Payload) == clearBatch {
			s = fmt.Sprintf("C%d", i.Message.Seq)
		}
		if i.Replayed {
			s = "r" + s
		}
		return s
	case ItemGap:
		return fmt.Sprintf("gap%d+%d", i.From, i.Lost)
	default:
		return "reset:" + reasons[i.Reason]
	}
}

func (p *play) run(script string) {
	p.t.Helper()
	for _, word := range strings.Fields(script) {
		p.at++
		p.word(word)
	}
	if item, ok := p.tr.next(); ok {
		p.t.Fatalf("at the end: %s is handed out", describeItem(item))
	}
}

func (p *play) word(word string) {
	p.t.Helper()
	p.text += word + " "
	fail := func(format string, args ...any) {
		p.t.Helper()
		p.t.Fatalf("word %d %q: %s", p.at, word, fmt.Sprintf(format, args...))
	}
	t := p.tr
	switch {
	case word[0] == '>':
		item, ok := t.next()
		if !ok {
			fail("nothing is handed out")
		}
		if got := describeItem(item); got != word[1:] {
			fail("got %s", got)
		}
	case word[0] == '?':
		item, ok := t.next()
		if ok {
			fail("first %s is handed out", describeItem(item))
		}
		got := "-"
		if start, ok := t.wants(p.now); ok {
			got = strconv.FormatUint(start, 10)
		}
		if got != word[1:] {
			fail("asks %s", got)
		}
	case word == "mark":
		t.live(&Message{Seq: wire.EndSeq}, false)
	case word == "conn":
		t.connected(p.now, false)
	case word == "recon":
		t.connected(p.now, true)
	case word == "end" || word[0] == 'r':
		if t.request == nil {
			fail("there is no request")
		}
		if word == "end" {
			t.end(p.now)
		} else {
			t.answer(p.now, p.message(word[1:]))
		}
	case word[0] == '~':
		t.live(p.message(word[1:]), true)
	case word[0] >= 'A' && word[0] <= 'Z':
		t.live(p.message(word), false)
	default:
		d, err := time.ParseDuration(word)
		if err != nil {
			fail("%v", err)
		}
		p.now = p.now.Add(d)
		t.waited(p.now, d)
	}
}

func TestTracker(t *testing.T) {
	const joined = "?0 A1 rA0 rA1 end >rA0 >rA1 " // in step with life A after batch 1
	for name, c := range map[string]struct {
		alone  bool // no replay server
		script string
	}{
		"in step":                            {script: joined + "?- A2 >A2 A3 >A3 ?-"},
		"nothing to replay":                  {script: "?0 end A0 ?0 rA0 end >rA0 A1 >A1"},
		"late, and live before the answer":   {script: "?0 A2 A3 rA0 rA1 rA2 end >rA0 >rA1 >rA2 >A3 ?-"},
		"handed out before the end":          {script: "?0 rA0 >rA0 rA1 >rA1 A2 ?- end ?1 rA1 rA2 end >rA2 A3 >A3"},
		"empty, then not the first":          {script: "?0 end A2 ?0 rA0 rA1 rA2 rA3 end >rA0 >rA1 >rA2 >rA3 A3 A4 >A4"},
		"history cut":                        {script: "?0 rA7 rA8 end >gap0+7 >rA7 >rA8"},
		"history cut before a clear":         {script: "?0 rC7 rA8 end >rC7 >rA8"},
		"gap":                                {script: joined + "A4 ?1 rA1 rA2 rA3 rA4 end >rA2 >rA3 >rA4 A5 >A5 ?-"},
		"gap, with live behind it":           {script: joined + "A4 ?1 A5 A6 rA1 rA2 rA3 rA4 end >rA2 >rA3 >rA4 >A5 >A6 ?-"},
		"gap for good":                       {script: joined + "A4 ?1 rA1 rA4 end >gap2+2 >rA4"},
		"gap not in the answer":              {script: joined + "A4 ?1 rA1 end >gap2+2 >A4"},
		"gap while replaying":                {script: joined + "A3 ?1 A6 rA1 rA2 rA3 end >rA2 >rA3 ?3 rA3 rA4 rA5 rA6 end >rA4 >rA5 >rA6"},
		"duplicate":                          {script: joined + "A2 >A2 A2 ?2 rA2 end ?- A3 >A3"},
		"number runs back, same life":        {script: joined + "A2 A3 >A2 >A3 A2 A4 ?3 rA3 rA4 end >rA4 ?-"},
		"new life seen live":                 {script: joined + "A2 >A2 B0 ?2 end >reset:replaced ?0 rB0 end >rB0 B1 >B1"},
		"new life after reconnect":           {script: joined + "recon ?1 end >reset:replaced ?0 rB0 end >rB0 B1 ?0 rB0 rB1 end >rB1 B2 >B2"},
		"new life has passed the old number": {script: joined + "recon B5 ?1 rB1 >reset:replaced ?0 B6 rB0 rB1 rB2 rB3 rB4 rB5 end >rB0 >rB1 >rB2 >rB3 >rB4 >rB5 >B6 ?-"},
		"new life goes on exactly there":     {script: joined + "recon B2 ?1 rB1 >reset:replaced ?0 rB0 rB1 rB2 end >rB0 >rB1 >rB2 ?-"},
		"same life after reconnect":          {script: joined + "recon ?1 rA1 rA2 end >rA2 ?-"},
		"old message after reconnect":        {script: joined + "recon A2 ?1 rB1 >reset:replaced ?0 rB0 rB1 end >rB0 >rB1 B2 ?1 rB1 rB2 end >rB2 B3 >B3"},
		"reconnect in a replay":              {script: "?0 rA0 >rA0 recon ?0 rB0 >reset:replaced ?0 rB0 rB1 end >rB0 >rB1"},
		"history no longer reaches back":     {script: joined + "A9 ?1 rA7 >reset:replaced ?0 rA7 rA8 rA9 end >gap0+7 >rA7 >rA8 >rA9 A10 >A10"},
		"mark":                               {script: joined + "mark >reset:mark C0 ?0 rC0 end >rC0 A1 >A1 ?-"},
		"mark, then not the first":           {script: joined + "mark B1 >reset:mark ?0 rB0 rB1 end >rB0 >rB1"},
		"mark in a replay":                   {script: "?0 A5 mark rA0 >rA0 end ?0 rA0 rA1 rA2 rA3 rA4 rA5 end >rA1 >rA2 >rA3 >rA4 >rA5 A6 >A6"},
		"quiet after the handshake":          {script: "?0 end conn ?- 250ms ?0 rA0 end >rA0 ?- 1h ?-"},
		"handshake after the replay":         {script: "?0 rA0 rA1 >rA0 >rA1 conn B2 ?1 rB1 >reset:replaced ?0 rB0 rB1 rB2 end >rB0 >rB1 >rB2"},
		"live after the handshake":           {script: "?0 end conn A0 ?0 rA0 end >rA0 250ms ?- 1h ?-"},
		"no answer":                          {script: "?0 A3 A4 5s ?- 200ms ?0 5s >gap0+3 >A3 >A4 A6 >gap5+1 >A6"},
		"answer at the second try":           {script: "?0 rA0 >rA0 5s ?- 200ms ?0 rA0 rA1 end >rA1"},
		"progress is no time-out":            {script: "?0 4s rA0 4s rA1 4s end >rA0 >rA1"},
		"rebuilt later":                      {script: "?0 A3 5s 200ms ?0 5s >gap0+3 >A3 ?- 1s ?0 A4 >A4 rA0 >reset:rebuilt >rA0 A5 rA1 rA2 rA3 rA4 end >rA1 >rA2 >rA3 >rA4 ?4 rA4 rA5 end >rA5 ?- A6 >A6"},
		"rebuilding fails at first":          {script: "?0 A3 5s 200ms ?0 5s >gap0+3 >A3 1s ?0 5s A4 >A4 ?- 1s ?- 1s ?0 rA0 >reset:rebuilt >rA0 end"},
		"nothing to rebuild from":            {script: "?0 A3 5s 200ms ?0 5s >gap0+3 >A3 1s ?0 end A5 >gap4+1 >A5 2s ?0 end ?- 3s ?- 1s ?0"},
		"connected after giving up":          {script: "?0 5s 200ms ?0 5s ?- conn ?0 rA0 end >rA0 ?- 250ms ?0 rA0 end ?- 1h ?-"},
		"live overflows":                     {script: joined + "A4 ?1 A5 A6 A7 A8 A9 rA1 rA2 rA3 end >rA2 >rA3 ?3 rA3 rA4 rA5 end >rA4 >rA5 >A6 >A7 >A8 >A9"},
		"live overflows and no progress":     {script: joined + "A4 ?1 A5 A6 A7 A8 rA1 end >gap2+3 >A5 >A6 >A7 >A8 ?-"},
		"overflow keeps that it ran back":    {script: joined + "A4 ?1 B0 B1 B2 B3 B4 rA1 rA2 rA3 rA4 end >rA2 >rA3 >rA4 ?4 end >reset:replaced ?0 rB0 rB1 rB2 rB3 rB4 end >rB0 >rB1 >rB2 >rB3 >rB4"},
		"rebuilt from another life":          {script: "?0 A3 5s 200ms ?0 5s >gap0+3 >A3 1s ?0 rB0 >reset:rebuilt >rB0 end B1 ?0 rB0 rB1 end >rB1 B2 >B2 ?-"},
		"mark while nobody answers":          {script: "?0 A3 5s 200ms ?0 5s >gap0+3 >A3 mark >reset:mark B0 >B0 B1 >B1 1h ?0"},
		"answer below the start":             {script: joined + "A4 ?1 rA0 ?- 200ms ?1 rA1 rA2 rA3 end >rA2 >rA3 >A4"},
		"answer out of order":                {script: "?0 rA0 rA2 rA1 >rA0 >gap1+1 >rA2 ?- 200ms ?2 rA2 end"},
		"answer twice":                       {script: "?0 rA0 rA0 >rA0 ?- 200ms ?0 rA0 end"},
		"alone, joined late":                 {alone: true, script: "?- A5 >A5 A6 >A6"},
		"alone, gap":                         {alone: true, script: "A5 A8 >A5 >gap6+2 >A8 ?-"},
		"alone, lower number":                {alone: true, script: "A5 B3 >A5 >reset:lower >B3 ?-"},
		"alone, batch 0":                     {alone: true, script: "A5 C0 B1 >A5 >reset:lower >C0 >B1"},
		"alone, reconnect":                   {alone: true, script: "A5 recon B2 >A5 >reset:lower >B2 1h ?-"},
		"alone, mark":                        {alone: true, script: "A5 >A5 mark B0 >reset:mark >B0"},
		"lower number and no answer":         {script: joined + "B0 ?1 5s 200ms ?1 5s >reset:lower >B0 1s ?0 rB0 >reset:rebuilt >rB0 rB1 end >rB1"},
		"the largest numbers":                {alone: true, script: "A18446744073709551614 A18446744073709551614 >A18446744073709551614 >reset:lower >A18446744073709551614"},
	} {
		t.Run(name, func(t *testing.T) { newPlay(t, !c.alone).run(c.script) })
	}
}

// What is bounded whatever comes.
func TestTrackerBounds(t *testing.T) {
	t.Run("requests are paced", func(t *testing.T) {
		p := newPlay(t, true)
		p.run("?0 rA0 end >rA0")
		requests := 1
		for i := range 1000 {
			p.run("A0 A0")
			if start, ok := p.tr.wants(p.now); ok {
				requests++
				p.tr.answer(p.now, p.message(fmt.Sprintf("A%d", start)))
				p.tr.end(p.now)
			}
			if n := len(p.tr.pending); n > p.tr.messages {
				t.Fatalf("%d messages held at step %d", n, i)
			}
			for _, ok := p.tr.next(); ok; _, ok = p.tr.next() {
			}
		}
		if requests > askBurst {
			t.Errorf("%d requests at once", requests)
		}
		if d := p.tr.wake(p.now, time.Hour); d > askEvery {
			t.Errorf("sleeps %v over the next request", d)
		}
	})
	t.Run("an answer without an end", func(t *testing.T) {
		p := newPlay(t, true)
		p.run("?0")
		for i := range p.tr.limits.answer {
			p.run(fmt.Sprintf("rA%d >rA%d", i, i))
		}
		p.run("rA100 ?-")
		if s := p.tr.stats; s.Failed != 1 || !strings.Contains(s.LastFailure, "more than 100 batches") {
			t.Errorf("%+v", s)
		}
	})
	t.Run("an answer that trickles", func(t *testing.T) {
		p := newPlay(t, true)
		p.run("?0 A90")
		for i := 0; p.tr.request != nil; i++ {
			if i == 80 {
				t.Fatal("no end of it")
			}
			p.run(fmt.Sprintf("rA%d >rA%d 4s", i, i))
		}
		if s := p.tr.stats; s.Failed != 1 || !strings.Contains(s.LastFailure, "more than 5m0s") {
			t.Errorf("%+v", s)
		}
	})
	t.Run("many attempts", func(t *testing.T) {
		p := newPlay(t, true)
		p.tr.limits.attempts = 1000
		p.now = p.now.Add(time.Hour)
		for range 100 {
			p.run("?0 5s ?-")
			d := p.tr.dueAt.Sub(p.now)
			if d < retryPause || d > retryPause<<retryDoublings {
				t.Fatalf("tries again after %v", d)
			}
			p.now = p.now.Add(d + askBurst*askEvery)
		}
	})
	t.Run("bytes", func(t *testing.T) {
		p := newPlay(t, true)
		p.tr.bytes = 1000
		p.run("?0")
		for i := range 100 {
			p.tr.live(&Message{Seq: uint64(i), Payload: make([]byte, 5000)}, false)
		}
		if len(p.tr.pending) != 1 || p.tr.pendingBytes != p.tr.pending[0].size() {
			t.Errorf("%d held, %d bytes", len(p.tr.pending), p.tr.pendingBytes)
		}
		p.tr.dropPending()
		for i := range 100 {
			p.tr.live(&Message{Seq: uint64(i), Payload: make([]byte, 200)}, false)
		}
		if len(p.tr.pending) != 3 || p.tr.stats.Overflows == 0 {
			t.Errorf("%d held, %d dropped", len(p.tr.pending), p.tr.stats.Overflows)
		}
	})
	t.Run("connections that flap", func(t *testing.T) {
		p := newPlay(t, true)
		for i := 0; !p.tr.degraded; i++ {
			if i > 5*maxAborts {
				t.Fatal("live never goes on")
			}
			p.tr.wants(p.now)
			p.word("recon")
			p.now = p.now.Add(askEvery)
		}
		p.run("A3 >gap0+3 >A3")
	})
}

// A tracker between a random publisher, lossy in all ways that it may be, and a
// reader that keeps a list: what is handed out between two resets is of one
// life, and whatever happens, the list is at the end what the last life has
// sent, never anything twice or out of order; and as long as requests are
// answered (every second seed), nothing is told to be lost.
func TestTrackerRandom(t *testing.T) {
	for seed := range uint64(6000) {
		w := &world{play: newPlay(t, true), rand: rand.New(rand.NewPCG(seed, 1)),
			seed: seed, answers: seed%2 == 0, life: 'A', asking: -1, connected: true}
		w.publish()
		for range 80 {
			w.now = w.now.Add(askEvery)
			w.act()
			w.read()
		}
		w.answers, w.ending = true, true
		w.connect()
		w.publish()
		w.queue = append(w.queue, queued{w.sent[len(w.sent)-1], w.conn})
		for len(w.queue) > 0 {
			w.poll()
		}
		for range 10 {
			w.read()
			w.now = w.now.Add(2 * rebuildPauseMax)
			w.read()
			w.answer()
		}
		w.read()
		if !slices.Equal(w.got, w.sent) {
			t.Fatalf("seed %d: %s: got %v, want %v", seed, w.text, w.got, w.sent)
		}
	}
}

// world is what a tracker sees in TestTrackerRandom.
type world struct {
	*play
	rand    *rand.Rand
	seed    uint64
	answers bool
	ending  bool // nothing new is published
	life    rune
	sent    []string // by the life that there is
	got     []string // by the reader, since the last reset
	asking  int      // from where, or -1

	// The live connection and the queue at its end, as ZeroMQ has them: what
	// connections before have left is in front, and that there is another one is
	// known before a message of it is looked at.
	connected     bool
	conn, noticed int
	queue         []queued
	emptied       bool // since the newest connection was noticed
}

type queued struct {
	word string
	conn int
}

func (w *world) publish() {
	s := fmt.Sprintf("%c%d", w.life, len(w.sent))
	w.sent = append(w.sent, s)
	if w.connected && w.rand.IntN(4) > 0 {
		w.queue = append(w.queue, queued{s, w.conn})
	}
}

// poll takes the next message off the live socket, if there is one.
func (w *world) poll() {
	if len(w.queue) == 0 {
		w.emptied = true
		return
	}
	q := w.queue[0]
	w.queue = w.queue[1:]
	if q.conn > w.noticed || w.rand.IntN(2) == 0 {
		w.notice()
	}
	if w.noticed > 0 && !w.emptied {
		q.word = "~" + q.word
	}
	w.word(q.word)
}

func (w *world) notice() {
	if w.noticed < w.conn {
		w.noticed, w.emptied, w.asking = w.conn, false, -1
		w.word("recon")
	}
}

func (w *world) connect() {
	if !w.connected {
		w.connected = true
		w.conn++
	}
}

// act lets one thing happen.
func (w *world) act() {
	switch n := w.rand.IntN(24); {
	case n < 8:
		w.publish()
	case n < 14:
		w.poll()
	case n < 15:
		if w.connected {
			w.queue = append(w.queue, queued{w.sent[w.rand.IntN(len(w.sent))], w.conn}) // once more
		}
	case n < 16:
		// A new life, which may be longer than the old one by the time the
		// connection is there. C is another kind of batch.
		if w.life++; w.life == 'C' {
			w.life++
		}
		w.sent, w.asking, w.connected = nil, -1, false
		for range 1 + w.rand.IntN(30) {
			w.publish()
		}
	case n < 17:
		// The connection breaks, or the new one is there.
		if w.rand.IntN(4) == 0 {
			w.connected = false
		}
		w.connect()
	case n < 18:
		w.notice()
	case !w.answers && w.rand.IntN(2) == 0:
		w.word("5s")
		w.asking = -1
	default:
		w.answer()
	}
}

// answer is from the history as it was when the request was accepted: now.
func (w *world) answer() {
	if w.tr.request == nil || w.asking < 0 {
		return
	}
	request := w.tr.request
	for _, s := range slices.Clone(w.sent[min(w.asking, len(w.sent)):]) {
		w.word("r" + s)
		if w.tr.request != request {
			return // beginning anew
		}
		if !w.ending && w.rand.IntN(4) == 0 {
			w.publish()
		}
		if w.rand.IntN(2) == 0 {
			w.poll()
		}
		if w.tr.request != request {
			return // cut short by a new connection
		}
		if w.rand.IntN(2) == 0 {
			w.take()
		}
	}
	w.word("end")
}

// read takes all there is and makes the request that is due.
func (w *world) read() {
	w.take()
	if start, ok := w.tr.wants(w.now); ok {
		w.asking = int(start)
	}
}

func (w *world) take() {
	for item, ok := w.tr.next(); ok; item, ok = w.tr.next() {
		switch {
		case item.Kind == ItemReset:
			w.got = nil
		case item.Kind == ItemBatch:
			w.got = append(w.got, string(item.Message.Payload))
			if n := len(w.got); w.got[n-1][0] != w.got[0][0] {
				w.t.Fatalf("seed %d: %s: two lives are mixed: %v", w.seed, w.text, w.got)
			}
		case w.answers && w.seed%2 == 0:
			w.t.Fatalf("seed %d: %s: gap %d+%d", w.seed, w.text, item.From, item.Lost)
		}
	}
}
