// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
)

// summary is what a replay reports; the JSON names are part of the command
// line's interface.
type summary struct {
	// Requests counts the lines replayed, RefusedRequests those of them that
	// can never fit; these are passed over and count nowhere else.
	Requests        uint64 `json:"requests"`
	RefusedRequests uint64 `json:"refused_requests"`
	// PromptBlocks are the full blocks asked for, HitBlocks those found.
	PromptBlocks uint64  `json:"prompt_blocks"`
	HitBlocks    uint64  `json:"hit_blocks"`
	HitRate      float64 `json:"hit_rate"`
	PromptTokens uint64  `json:"prompt_tokens"`
	HitTokens    uint64  `json:"hit_tokens"`
	OutputTokens uint64  `json:"output_tokens"`
	// SequenceBlocks are the full blocks of prompt and output together.
	SequenceBlocks uint64 `json:"sequence_blocks"`

	// Blocks announced as stored and removed.
	StoredBlocks  uint64 `json:"stored_blocks"`
	RemovedBlocks uint64 `json:"removed_blocks"`
	// DeferredBlocks could not be announced at once; HealedBlocks of them were
	// announced later, DeferredEvictedBlocks went before. DroppedEvents counts
	// the stores that led to it.
	DeferredBlocks        uint64 `json:"deferred_blocks"`
	HealedBlocks          uint64 `json:"healed_blocks"`
	DeferredEvictedBlocks uint64 `json:"deferred_evicted_blocks"`
	DroppedEvents         uint64 `json:"dropped_events"`
	// ResidentBlocks is the allocator's count at the end, ReusableBlocks that
	// of a walk through the tree, UnannouncedBlocks those of the walk that no
	// subscriber knows of.
	ResidentBlocks    uint64 `json:"resident_blocks"`
	ReusableBlocks    uint64 `json:"reusable_blocks"`
	UnannouncedBlocks uint64 `json:"unannounced_blocks"`
	// OpenSequences and LivePages are what the requests have left behind once all of
	// them have been released: 0, unless something leaks.
	OpenSequences uint64 `json:"open_sequences"`
	LivePages     uint64 `json:"live_pages"`

	// What has been handed to the socket up to the end of the replay.
	Batches        uint64 `json:"batches"`
	Events         uint64 `json:"events"`
	BytesPublished uint64 `json:"bytes_published"`
	DroppedBatches uint64 `json:"dropped_batches"`
	// Requests for earlier batches up to then, and the batches of the answers;
	// --hold answers more.
	ReplayRequests  uint64 `json:"replay_requests"`
	ReplayMalformed uint64 `json:"replay_malformed"`
	ReplayTruncated uint64 `json:"replay_truncated"`
	ReplayAborted   uint64 `json:"replay_aborted"`
	ReplayBatches   uint64 `json:"replay_batches"`

	// WallSeconds runs from the first request until everything is published.
	// SchedulerSeconds is the time spent in calls of the allocator, NsPerBlock
	// that time for each of SequenceBlocks.
	WallSeconds      float64 `json:"wall_seconds"`
	SchedulerSeconds float64 `json:"scheduler_seconds"`
	NsPerBlock       float64 `json:"ns_per_block"`

	// Epoch is the publisher's, in hexadecimal; empty without a publisher.
	Epoch     string `json:"epoch"`
	Device    string `json:"device"`
	Publisher string `json:"publisher"`
	Endpoint  string `json:"endpoint"`
	// ReplayEndpoint is empty without replays.
	ReplayEndpoint string `json:"replay_endpoint"`
	Hash           string `json:"hash"`
	Encoding       string `json:"encoding"`

	BlockSize      int  `json:"block_size"`
	CapacityBlocks int  `json:"capacity_blocks"`
	Interrupted    bool `json:"interrupted"`
}

func (s *summary) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return printJSON(w, s)
	}
	var b bytes.Buffer
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s "+format+"\n", append([]any{name}, args...)...)
	}
	note := ""
	if s.RefusedRequests > 0 {
		note = fmt.Sprintf(", %s of them refused: larger than the pool", grouped(s.RefusedRequests))
	}
	if s.Interrupted {
		note += " (interrupted)"
	}
	row("requests", "%s%s", grouped(s.Requests), note)
	row("prompts", "%s tokens, %s full blocks of %d", grouped(s.PromptTokens), grouped(s.PromptBlocks), s.BlockSize)
	row("hits", "%.1f %% of the blocks (%s)", 100*s.HitRate, grouped(s.HitBlocks))
	row("stored", "%s blocks", grouped(s.StoredBlocks))
	row("removed", "%s blocks", grouped(s.RemovedBlocks))
	if s.Publisher != publisherOff {
		row("deferred", "%s blocks, %s announced later, %s gone before",
			grouped(s.DeferredBlocks), grouped(s.HealedBlocks), grouped(s.DeferredEvictedBlocks))
	}
	note = ""
	if s.Publisher != publisherOff { // else nothing ever is
		note = fmt.Sprintf(", %s not announced", grouped(s.UnannouncedBlocks))
	}
	row("resident", "%s of %d blocks%s", grouped(s.ResidentBlocks), s.CapacityBlocks, note)
	if s.Publisher != publisherOff {
		row("published", "%s batches, %s events, %s bytes (%s)",
			grouped(s.Batches), grouped(s.Events), grouped(s.BytesPublished), s.Publisher)
	}
	if s.ReplayEndpoint != "" {
		row("replays", "%s requests so far, %s batches", grouped(s.ReplayRequests), grouped(s.ReplayBatches))
	}
	row("time", "%.3f s, %.3f s of it in the allocator, %.0f ns per block",
		s.WallSeconds, s.SchedulerSeconds, s.NsPerBlock)
	row("device", "%s", s.Device)
	_, err := w.Write(b.Bytes())
	return outputError(err)
}

// grouped writes a number with a comma between thousands.
func grouped(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
