// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher"
)

// reading is a figure of the statistics with its name and meaning.
type reading struct {
	name, help string
	read       func(*publisher.Stats) float64
}

// counters and gauges are never changed.
var counters = []reading{
	{"enqueued_batches", "Batches that have a number and, with Publish, a place in the queue.",
		func(s *publisher.Stats) float64 { return float64(s.EnqueuedBatches) }},
	{"enqueued_events", "Events of enqueued batches.",
		func(s *publisher.Stats) float64 { return float64(s.EnqueuedEvents) }},
	{"published_batches", "Batches that have been handed to the socket.",
		func(s *publisher.Stats) float64 { return float64(s.PublishedBatches) }},
	{"published_events", "Events of published batches.",
		func(s *publisher.Stats) float64 { return float64(s.PublishedEvents) }},
	{"published_bytes", "Bytes of the payloads of published batches.",
		func(s *publisher.Stats) float64 { return float64(s.PublishedBytes) }},
	{"queue_full_drops", "Batches of Publish that found the queue full.",
		func(s *publisher.Stats) float64 { return float64(s.QueueFullDrops) }},
	{"send_error_drops", "Batches that could not be encoded or sent, or that Close gave up.",
		func(s *publisher.Stats) float64 { return float64(s.SendErrorDrops) }},
	{"dropped_batches", "The sum of queue_full_drops and send_error_drops.",
		func(s *publisher.Stats) float64 { return float64(s.DroppedBatches) }},
	{"burnt_numbers", "Numbers without a batch, which show that invalid events were left out.",
		func(s *publisher.Stats) float64 { return float64(s.BurntNumbers) }},
	{"invalid_events", "Events that broke the wire contract and were not sent.",
		func(s *publisher.Stats) float64 { return float64(s.InvalidEvents) }},
	{"source_errors", "Failed drains of the attached stream.",
		func(s *publisher.Stats) float64 { return float64(s.SourceErrors) }},

	{"refused_peers", "Connections that were turned away with CURVE because their key is not on the list.",
		func(s *publisher.Stats) float64 { return float64(s.RefusedPeers) }},

	{"replay_requests", "Well-formed requests for earlier batches.",
		func(s *publisher.Stats) float64 { return float64(s.ReplayRequests) }},
	{"replay_malformed", "Requests that were ignored.",
		func(s *publisher.Stats) float64 { return float64(s.ReplayMalformed) }},
	{"replay_truncated", "Replays that could not begin where they should have.",
		func(s *publisher.Stats) float64 { return float64(s.ReplayTruncated) }},
	{"replay_aborted", "Replays that did not get to their end.",
		func(s *publisher.Stats) float64 { return float64(s.ReplayAborted) }},
	{"replay_batches", "Batches that replays have handed to the socket.",
		func(s *publisher.Stats) float64 { return float64(s.ReplayBatches) }},

	{"snapshots", "Snapshots that were made for truncated replays.",
		func(s *publisher.Stats) float64 { return float64(s.Snapshots) }},
	{"snapshot_errors", "Snapshots that could not be made; a suffix was sent in their place.",
		func(s *publisher.Stats) float64 { return float64(s.SnapshotErrors) }},
	{"resyncs", "How often all announced blocks were sent anew.",
		func(s *publisher.Stats) float64 { return float64(s.Resyncs) }},

	{"stored_blocks", "Blocks recorded as stored, healed ones included.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.StoredBlocks) }},
	{"cleared_blocks", "Announced blocks that a clear ended.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.ClearedBlocks) }},
	{"clears", "Clears that were recorded.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.Clears) }},
	{"partial_blocks_suppressed", "Partly filled last blocks of sequences, which are never told of.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.PartialBlocksSuppressed) }},
	{"dropped_events", "Stores that did not fit the record buffer or whose parent was not announced.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.DroppedEvents) }},
	{"deferred_blocks", "Blocks of those stores, to be announced later.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.DeferredBlocks) }},
	{"healed_blocks", "Deferred blocks that were announced later.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.HealedBlocks) }},
	{"deferred_evicted_blocks", "Deferred blocks that went before they could be announced.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.DeferredEvictedBlocks) }},
	{"unannounced_removals", "Blocks that went without having been announced.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.UnannouncedRemovals) }},
	{"multimodal_blocks_suppressed", "Blocks that were not told of because of multimodal items.",
		func(s *publisher.Stats) float64 {
			return float64(s.MultimodalBlocksSuppressed + s.Sink.MultimodalBlocksSuppressed)
		}},
	{"hash_collisions", "Announced blocks whose 64-bit wire hash another one had.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.HashCollisions) }},
	{"superseded_records", "Records that were skipped because a clear followed.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.SupersededRecords) }},
}

// removals are the blocks recorded as removed, by reason.
var removals = []struct {
	reason event.EvictedReason
	read   func(*publisher.Stats) float64
}{
	{event.EvictedCapacity, func(s *publisher.Stats) float64 { return float64(s.Sink.RemovedCapacityBlocks) }},
	{event.EvictedTTL, func(s *publisher.Stats) float64 { return float64(s.Sink.RemovedTTLBlocks) }},
	{event.EvictedEnded, func(s *publisher.Stats) float64 { return float64(s.Sink.RemovedEndedBlocks) }},
	{event.EvictedScope, func(s *publisher.Stats) float64 { return float64(s.Sink.RemovedScopeBlocks) }},
}

var gauges = []reading{
	{"next_seq", "Number of the next batch.",
		func(s *publisher.Stats) float64 { return float64(s.NextSeq) }},
	{"last_send_time_seconds", "Unix time at which a batch was last handed to the socket, 0 if none was.",
		func(s *publisher.Stats) float64 {
			if s.LastSendTime.IsZero() {
				return 0
			}
			return float64(s.LastSendTime.UnixNano()) / 1e9
		}},
	{"queue_depth", "Batches in the queue of Publish.",
		func(s *publisher.Stats) float64 { return float64(s.QueueDepth) }},
	{"queue_bytes", "Their estimated encoded size.",
		func(s *publisher.Stats) float64 { return float64(s.QueueBytes) }},
	{"subscribers", "Connections that have asked for the topic.",
		func(s *publisher.Stats) float64 { return float64(s.Subscriptions) }},
	{"ring_batches", "Batches kept for replays.",
		func(s *publisher.Stats) float64 { return float64(s.RingBatches) }},
	{"ring_bytes", "Bytes of their payloads.",
		func(s *publisher.Stats) float64 { return float64(s.RingBytes) }},
	{"resident_blocks", "Reusable blocks of the cache, announced or not.",
		func(s *publisher.Stats) float64 { return float64(s.ResidentBlocks()) }},
	{"announced_blocks", "Blocks that subscribers are told are reusable.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.AnnouncedBlocks) }},
	{"pending_blocks", "Blocks that are still to be announced.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.PendingBlocks) }},
	{"oldest_deferred_seconds", "How long the oldest of them has waited.",
		func(s *publisher.Stats) float64 { return s.Sink.OldestDeferred.Seconds() }},
	{"suppressed_blocks", "Blocks that are not told of because of multimodal items.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.SuppressedBlocks) }},
	{"record_buffer_bytes", "Size of the record buffer.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.BufferBytes) }},
	{"record_buffer_used_bytes", "Bytes of it that wait for the publisher.",
		func(s *publisher.Stats) float64 { return float64(s.Sink.BufferUsedBytes) }},
}
