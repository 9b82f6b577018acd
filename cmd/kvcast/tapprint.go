// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// printBatch writes what a batch holds.
func (t *tapper) printBatch(item subscribe.Item, b *wire.Batch) error {
	if t.o.json {
		return outputError(t.json.batch(item, b))
	}
	m := item.Message
	prefix := fmt.Sprintf("%8d  ", m.Seq)
	if item.Replayed {
		prefix += "replayed  "
	}
	if m.Topic != "" {
		prefix += plain(m.Topic) + "  "
	}
	if len(b.Events) == 0 {
		return t.print(prefix + "empty")
	}
	for i := range b.Events {
		if err := t.print(prefix + describe(&b.Events[i])); err != nil {
			return err
		}
	}
	return nil
}

func (t *tapper) print(line string) error {
	t.line = append(append(t.line[:0], line...), '\n')
	_, err := t.out.Write(t.line)
	return outputError(err)
}

// printNote writes something that is not a batch.
func (t *tapper) printNote(kind, text string) error {
	if t.o.json {
		return printJSON(t.out, map[string]string{"type": kind, "text": text})
	}
	return t.print(fmt.Sprintf("%8s  %s", kind, oneLine(text)))
}

func describe(e *wire.Event) string {
	switch {
	case e.Err != nil:
		return "unreadable " + plain(e.Type) + ": " + oneLine(e.Err.Error())
	case e.Kind == wire.KindCleared:
		return "cleared"
	case e.Kind == wire.KindRemoved:
		return "removed  " + place(e) + hashes(e.Hashes)
	case e.Kind == wire.KindStored:
		parent := "root"
		if e.HasParent {
			parent = short(e.Parent)
		}
		s := fmt.Sprintf("stored   %s%s  of %d tokens under %s", place(e), hashes(e.Hashes), e.BlockSize, parent)
		if e.HasLoRAID {
			s += "  LoRA " + strconv.FormatUint(e.LoRAID, 10)
		}
		if e.LoRAName != "" {
			s += "  LoRA " + plain(e.LoRAName)
		}
		return s
	}
	return "unknown event " + plain(e.Type)
}

func place(e *wire.Event) string {
	medium := "-"
	if e.HasMedium {
		medium = plain(e.Medium)
	}
	if e.Extra != nil && e.Extra.HasGroupIdx {
		medium += "/" + strconv.FormatUint(e.Extra.GroupIdx, 10)
	}
	return fmt.Sprintf("%-4s", medium)
}

// hashes shows how many there are and the first and the last one.
func hashes(h []wire.Hash) string {
	switch len(h) {
	case 0:
		return "     0 blocks"
	case 1:
		return "     1 block  " + short(h[0])
	default:
		return fmt.Sprintf("%6d blocks %s .. %s", len(h), short(h[0]), short(h[len(h)-1]))
	}
}

// short cuts a hash of bytes to twice the length of a usual digest: it may have
// thousands of them.
func short(h wire.Hash) string {
	const most = len("0x") + 4*len(event.Digest{})
	s := h.String()
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// plain keeps a string from the network from playing with the terminal.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return strconv.QuoteToASCII(s)
	}
	return s
}

// jsonSummary is the last line of tap --json. Verified is absent without
// --verify.
type jsonSummary struct {
	Type     string    `json:"type"` // "summary"
	Received tapTotals `json:"received"`
	// Last is absent when nothing was received.
	Last *jsonLast `json:"last,omitempty"`
	// MirrorBlocks is absent when no mirror was kept.
	MirrorBlocks *int        `json:"mirror_blocks,omitempty"`
	Verified     *jsonReport `json:"verified,omitempty"`
}

// jsonLast is the last batch that was received.
type jsonLast struct {
	Seq uint64   `json:"seq"`
	TS  *float64 `json:"ts"` // Unix seconds; null if not finite
	// FinalClear tells that the last event was a clear after others, as a
	// publisher sends it when it closes. Without it the stream may go on: what
	// was lost after the last batch does not show.
	FinalClear bool `json:"final_clear"`
}

type jsonReport struct {
	Good            bool   `json:"good"`
	Breach          string `json:"breach,omitempty"`
	Complete        bool   `json:"complete"`
	Lives           uint64 `json:"lives"`
	VerifiedKeys    uint64 `json:"verified_keys"`
	UnverifiedKeys  uint64 `json:"unverified_keys"`
	UnknownRemovals uint64 `json:"unknown_removals"`
	Hash            string `json:"hash,omitempty"`
}

// end writes the totals; breach is nil or what ended the run.
func (t *tapper) end(breach error) error {
	if t.o.json {
		s := jsonSummary{Type: "summary", Received: t.totals}
		if t.totals.Batches > 0 {
			s.Last = &jsonLast{Seq: t.last.seq, FinalClear: t.last.clear}
			if finite(t.last.ts) {
				s.Last.TS = &t.last.ts
			}
		}
		if t.mirror != nil {
			n := t.mirror.Len()
			s.MirrorBlocks = &n
		}
		if t.verifier != nil {
			r := t.verifier.Report()
			v := &jsonReport{Good: breach == nil, Complete: r.Complete, Lives: r.Lives, VerifiedKeys: r.VerifiedKeys,
				UnverifiedKeys: r.UnverifiedKeys, UnknownRemovals: r.UnknownRemovals}
			if breach != nil {
				v.Breach = breach.Error()
			}
			if r.HasForm {
				v.Hash = subscribe.FormName(r.Form)
			}
			s.Verified = v
		}
		if err := printJSON(t.out, s); err != nil {
			return err
		}
		return outputError(t.out.Flush())
	}
	lines := []string{fmt.Sprintf("   total  %s batches, %s events, %s blocks stored, %s removed, %s batches missing, %s malformed",
		grouped(t.totals.Batches), grouped(t.totals.Events), grouped(t.totals.StoredBlocks),
		grouped(t.totals.RemovedBlocks), grouped(t.totals.MissingBatches), grouped(t.totals.Malformed))}
	if t.o.replay != "" {
		lines = append(lines, fmt.Sprintf("replayed  %s batches, %s restarts, %s failures",
			grouped(t.totals.ReplayedBatches), grouped(t.totals.Restarts), grouped(t.totals.FailedReplays)))
	}
	if t.totals.Batches > 0 {
		lines = append(lines, "    last  "+t.last.String())
	}
	if t.mirror != nil {
		lines = append(lines, fmt.Sprintf("  mirror  %s blocks", grouped(uint64(t.mirror.Len()))))
	}
	if t.verifier != nil && breach == nil {
		lines = append(lines, "verified  "+verdict(t.verifier.Report()))
	}
	for _, line := range lines {
		if err := t.print(line); err != nil {
			return err
		}
	}
	return outputError(t.out.Flush())
}

// lastBatch is what is known of the end of the stream.
type lastBatch struct {
	seq uint64
	ts  float64
	// clear tells that the last event is a clear that does not open a life.
	clear bool
}

// note takes the next batch; first tells that none came before it.
func (l *lastBatch) note(seq uint64, b *wire.Batch, first bool) {
	l.seq, l.ts = seq, b.TS
	if n := len(b.Events); n > 0 {
		l.clear = b.Events[n-1].Kind == wire.KindCleared && seq > 0 && !first
	}
}

// String says what was last, and whether more may follow.
func (l *lastBatch) String() string {
	s := fmt.Sprintf("batch %d at ", l.seq)
	// Before the year 0 and beyond 9999 there is no usual form.
	if l.ts > -6e10 && l.ts < 2.5e11 {
		s += time.UnixMicro(int64(l.ts * 1e6)).UTC().Format("2006-01-02T15:04:05.000Z")
	} else {
		s += strconv.FormatFloat(l.ts, 'g', -1, 64)
	}
	if l.clear {
		return s + "; the last event is a clear"
	}
	return s + "; the stream may go on: no final clear was seen"
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// verdict says what has been verified and what could not be.
func verdict(r subscribe.Report) string {
	s := fmt.Sprintf("batches %d to %d keep the contract; keys of %s blocks recomputed",
		r.FirstSeq, r.LastSeq, grouped(r.VerifiedKeys))
	if r.HasForm {
		s += " (" + subscribe.FormName(r.Form) + ")"
	}
	if r.UnverifiedKeys > 0 {
		s += fmt.Sprintf(", of %s not possible", grouped(r.UnverifiedKeys))
	}
	if !r.Complete {
		s += fmt.Sprintf("; joined at %d: what was announced before is not known", r.FirstSeq)
	}
	return s
}
