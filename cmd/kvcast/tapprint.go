// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// jsonBatch is one line of tap --json.
type jsonBatch struct {
	Type    string      `json:"type"` // "batch"
	Seq     uint64      `json:"seq"`
	Topic   string      `json:"topic"`
	TS      *float64    `json:"ts"` // null if not finite
	Rank    *uint64     `json:"rank"`
	Events  []jsonEvent `json:"events"`
	Remarks []string    `json:"remarks,omitempty"`
}

// jsonEvent has the keys of the wire. Hashes are numbers as they were sent
// (signed64: negative ones too), byte hashes strings of 0x and hexadecimal.
type jsonEvent struct {
	Type          string             `json:"type"`
	BlockHashes   []jsonHash         `json:"block_hashes,omitempty"`
	Parent        *jsonHash          `json:"parent_block_hash,omitempty"`
	Tokens        []any              `json:"token_ids,omitempty"`
	BlockSize     uint32             `json:"block_size,omitempty"`
	LoRAID        *uint64            `json:"lora_id,omitempty"`
	LoRAName      string             `json:"lora_name,omitempty"`
	Medium        string             `json:"medium,omitempty"`
	GroupIdx      *uint64            `json:"group_idx,omitempty"`
	SpecKind      string             `json:"kv_cache_spec_kind,omitempty"`
	SlidingWindow uint64             `json:"kv_cache_spec_sliding_window,omitempty"`
	Locality      string             `json:"locality,omitempty"`
	Ownership     string             `json:"ownership,omitempty"`
	SessionID     string             `json:"session_id,omitempty"`
	CacheSalt     string             `json:"cache_salt,omitempty"`
	ExtraKeys     [][]event.ExtraKey `json:"extra_keys,omitempty"`
	MMKeys        [][]event.MMKey    `json:"mm_keys,omitempty"`
	Error         string             `json:"error,omitempty"`
}

type jsonHash wire.Hash

func (h jsonHash) MarshalJSON() ([]byte, error) {
	if h.Kind == wire.HashBytes {
		return json.Marshal(wire.Hash(h).String())
	}
	return []byte(wire.Hash(h).String()), nil
}

// printBatch writes what a batch holds.
func (t *tapper) printBatch(m *subscribe.Message, b *wire.Batch) error {
	if t.o.json {
		return printJSON(t.out, newJSONBatch(m, b))
	}
	prefix := fmt.Sprintf("%8d  ", m.Seq)
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
			parent = e.Parent.String()
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
		return "     1 block  " + h[0].String()
	default:
		return fmt.Sprintf("%6d blocks %s .. %s", len(h), h[0], h[len(h)-1])
	}
}

// plain keeps a string from the network from playing with the terminal.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return strconv.QuoteToASCII(s)
	}
	return s
}

func newJSONBatch(m *subscribe.Message, b *wire.Batch) *jsonBatch {
	j := &jsonBatch{Type: "batch", Seq: m.Seq, Topic: m.Topic, Events: make([]jsonEvent, len(b.Events))}
	if !math.IsNaN(b.TS) && !math.IsInf(b.TS, 0) {
		j.TS = &b.TS
	}
	if b.HasRank {
		j.Rank = &b.Rank
	}
	for i := range b.Events {
		fillJSON(&j.Events[i], &b.Events[i])
	}
	for _, r := range b.Remarks {
		j.Remarks = append(j.Remarks, r.String())
	}
	return j
}

func fillJSON(j *jsonEvent, e *wire.Event) {
	j.Type = e.Type
	if e.Err != nil {
		j.Error = e.Err.Error()
		return
	}
	for _, h := range e.Hashes {
		j.BlockHashes = append(j.BlockHashes, jsonHash(h))
	}
	if e.HasMedium {
		j.Medium = e.Medium
	}
	if e.Kind == wire.KindStored {
		if e.HasParent {
			j.Parent = (*jsonHash)(&e.Parent)
		}
		j.Tokens = make([]any, len(e.Tokens))
		for i, token := range e.Tokens {
			j.Tokens[i] = token
		}
		j.BlockSize, j.LoRAName = e.BlockSize, e.LoRAName
		if e.HasLoRAID {
			j.LoRAID = &e.LoRAID
		}
	}
	x := e.Extra
	if x == nil {
		return
	}
	for _, s := range x.StringTokens {
		j.Tokens[s.Index] = s.Value
	}
	if x.HasGroupIdx {
		j.GroupIdx = &x.GroupIdx
	}
	j.SpecKind, j.SlidingWindow = x.SpecKind, x.SlidingWindow
	j.Locality, j.Ownership, j.SessionID, j.CacheSalt = x.Locality, x.Ownership, x.SessionID, x.CacheSalt
	j.ExtraKeys, j.MMKeys = x.ExtraKeys, x.MMKeys
}

// jsonSummary is the last line of tap --json. Verified is absent without
// --verify.
type jsonSummary struct {
	Type     string    `json:"type"` // "summary"
	Received tapTotals `json:"received"`
	// MirrorBlocks is absent when no mirror was kept.
	MirrorBlocks *int        `json:"mirror_blocks,omitempty"`
	Verified     *jsonReport `json:"verified,omitempty"`
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

// verdict says what has been verified and what could not be.
func verdict(r subscribe.Report) string {
	if r.Batches == 0 {
		return "nothing received"
	}
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
