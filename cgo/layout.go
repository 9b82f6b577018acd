// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
import "C"

import "unsafe"

// The Go structs are handed to C as they are, so the compiler compares them
// with the C structs: whole sizes, and place and width of each field. A
// difference is an array length that is negative or not 0, which does not
// compile; the line names the field.
var (
	// kvc_error
	_ [0]struct{} = [unsafe.Sizeof(Error{}) - unsafe.Sizeof(C.kvc_error{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Error{}.Status) - unsafe.Offsetof(C.kvc_error{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Error{}.Status) - unsafe.Sizeof(C.kvc_error{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Error{}.SystemCode) - unsafe.Offsetof(C.kvc_error{}.system_code)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Error{}.SystemCode) - unsafe.Sizeof(C.kvc_error{}.system_code)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Error{}.Cause) - unsafe.Offsetof(C.kvc_error{}.cause)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Error{}.Cause) - unsafe.Sizeof(C.kvc_error{}.cause)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Error{}.Message) - unsafe.Offsetof(C.kvc_error{}.message)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Error{}.Message) - unsafe.Sizeof(C.kvc_error{}.message)]struct{}{}

	// kvc_live_handles
	_ [0]struct{} = [unsafe.Sizeof(LiveHandles{}) - unsafe.Sizeof(C.kvc_live_handles{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(LiveHandles{}.Managers) - unsafe.Offsetof(C.kvc_live_handles{}.managers)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(LiveHandles{}.Managers) - unsafe.Sizeof(C.kvc_live_handles{}.managers)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(LiveHandles{}.Sequences) - unsafe.Offsetof(C.kvc_live_handles{}.sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(LiveHandles{}.Sequences) - unsafe.Sizeof(C.kvc_live_handles{}.sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(LiveHandles{}.Streams) - unsafe.Offsetof(C.kvc_live_handles{}.streams)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(LiveHandles{}.Streams) - unsafe.Sizeof(C.kvc_live_handles{}.streams)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(LiveHandles{}.Snapshots) - unsafe.Offsetof(C.kvc_live_handles{}.snapshots)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(LiveHandles{}.Snapshots) - unsafe.Sizeof(C.kvc_live_handles{}.snapshots)]struct{}{}

	// kvc_stream_config
	_ [0]struct{} = [unsafe.Sizeof(StreamConfig{}) - unsafe.Sizeof(C.kvc_stream_config{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamConfig{}.StructSize) - unsafe.Offsetof(C.kvc_stream_config{}.struct_size)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamConfig{}.StructSize) - unsafe.Sizeof(C.kvc_stream_config{}.struct_size)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamConfig{}.HashForm) - unsafe.Offsetof(C.kvc_stream_config{}.hash_form)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamConfig{}.HashForm) - unsafe.Sizeof(C.kvc_stream_config{}.hash_form)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamConfig{}.MaxEntries) - unsafe.Offsetof(C.kvc_stream_config{}.max_entries)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamConfig{}.MaxEntries) - unsafe.Sizeof(C.kvc_stream_config{}.max_entries)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamConfig{}.MaxBlocksPerEvent) - unsafe.Offsetof(C.kvc_stream_config{}.max_blocks_per_event)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamConfig{}.MaxBlocksPerEvent) - unsafe.Sizeof(C.kvc_stream_config{}.max_blocks_per_event)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamConfig{}.Multimodal) - unsafe.Offsetof(C.kvc_stream_config{}.multimodal)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamConfig{}.Multimodal) - unsafe.Sizeof(C.kvc_stream_config{}.multimodal)]struct{}{}

	// kvc_event
	_ [0]struct{} = [unsafe.Sizeof(Event{}) - unsafe.Sizeof(C.kvc_event{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.Kind) - unsafe.Offsetof(C.kvc_event{}.kind)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.Kind) - unsafe.Sizeof(C.kvc_event{}.kind)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.Flags) - unsafe.Offsetof(C.kvc_event{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.Flags) - unsafe.Sizeof(C.kvc_event{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.Scope) - unsafe.Offsetof(C.kvc_event{}.scope)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.Scope) - unsafe.Sizeof(C.kvc_event{}.scope)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.BlockSize) - unsafe.Offsetof(C.kvc_event{}.block_size)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.BlockSize) - unsafe.Sizeof(C.kvc_event{}.block_size)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.HashOffset) - unsafe.Offsetof(C.kvc_event{}.hash_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.HashOffset) - unsafe.Sizeof(C.kvc_event{}.hash_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.HashCount) - unsafe.Offsetof(C.kvc_event{}.hash_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.HashCount) - unsafe.Sizeof(C.kvc_event{}.hash_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.TokenOffset) - unsafe.Offsetof(C.kvc_event{}.token_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.TokenOffset) - unsafe.Sizeof(C.kvc_event{}.token_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.TokenCount) - unsafe.Offsetof(C.kvc_event{}.token_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.TokenCount) - unsafe.Sizeof(C.kvc_event{}.token_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.ParentHash) - unsafe.Offsetof(C.kvc_event{}.parent_hash)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.ParentHash) - unsafe.Sizeof(C.kvc_event{}.parent_hash)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.Group) - unsafe.Offsetof(C.kvc_event{}.group)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.Group) - unsafe.Sizeof(C.kvc_event{}.group)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.Medium) - unsafe.Offsetof(C.kvc_event{}.medium)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.Medium) - unsafe.Sizeof(C.kvc_event{}.medium)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.MultimodalCount) - unsafe.Offsetof(C.kvc_event{}.multimodal_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.MultimodalCount) - unsafe.Sizeof(C.kvc_event{}.multimodal_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Event{}.MultimodalOffset) - unsafe.Offsetof(C.kvc_event{}.multimodal_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Event{}.MultimodalOffset) - unsafe.Sizeof(C.kvc_event{}.multimodal_offset)]struct{}{}

	// kvc_event_scope
	_ [0]struct{} = [unsafe.Sizeof(EventScope{}) - unsafe.Sizeof(C.kvc_event_scope{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(EventScope{}.Parts) - unsafe.Offsetof(C.kvc_event_scope{}.parts)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(EventScope{}.Parts) - unsafe.Sizeof(C.kvc_event_scope{}.parts)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(EventScope{}.LoRANameSize) - unsafe.Offsetof(C.kvc_event_scope{}.lora_name_size)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(EventScope{}.LoRANameSize) - unsafe.Sizeof(C.kvc_event_scope{}.lora_name_size)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(EventScope{}.LoRANameOffset) - unsafe.Offsetof(C.kvc_event_scope{}.lora_name_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(EventScope{}.LoRANameOffset) - unsafe.Sizeof(C.kvc_event_scope{}.lora_name_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(EventScope{}.LoRAID) - unsafe.Offsetof(C.kvc_event_scope{}.lora_id)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(EventScope{}.LoRAID) - unsafe.Sizeof(C.kvc_event_scope{}.lora_id)]struct{}{}

	// kvc_borrowed_batch
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}) - unsafe.Sizeof(C.kvc_borrowed_batch{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.events) - unsafe.Offsetof(C.kvc_borrowed_batch{}.events)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.events) - unsafe.Sizeof(C.kvc_borrowed_batch{}.events)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.hashes) - unsafe.Offsetof(C.kvc_borrowed_batch{}.hashes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.hashes) - unsafe.Sizeof(C.kvc_borrowed_batch{}.hashes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.reasons) - unsafe.Offsetof(C.kvc_borrowed_batch{}.reasons)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.reasons) - unsafe.Sizeof(C.kvc_borrowed_batch{}.reasons)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.digests) - unsafe.Offsetof(C.kvc_borrowed_batch{}.digests)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.digests) - unsafe.Sizeof(C.kvc_borrowed_batch{}.digests)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.parentDigests) - unsafe.Offsetof(C.kvc_borrowed_batch{}.parent_digests)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.parentDigests) - unsafe.Sizeof(C.kvc_borrowed_batch{}.parent_digests)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.tokens) - unsafe.Offsetof(C.kvc_borrowed_batch{}.tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.tokens) - unsafe.Sizeof(C.kvc_borrowed_batch{}.tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.scopes) - unsafe.Offsetof(C.kvc_borrowed_batch{}.scopes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.scopes) - unsafe.Sizeof(C.kvc_borrowed_batch{}.scopes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.strings) - unsafe.Offsetof(C.kvc_borrowed_batch{}.strings)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.strings) - unsafe.Sizeof(C.kvc_borrowed_batch{}.strings)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.eventCount) - unsafe.Offsetof(C.kvc_borrowed_batch{}.event_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.eventCount) - unsafe.Sizeof(C.kvc_borrowed_batch{}.event_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.hashCount) - unsafe.Offsetof(C.kvc_borrowed_batch{}.hash_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.hashCount) - unsafe.Sizeof(C.kvc_borrowed_batch{}.hash_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.tokenCount) - unsafe.Offsetof(C.kvc_borrowed_batch{}.token_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.tokenCount) - unsafe.Sizeof(C.kvc_borrowed_batch{}.token_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.scopeCount) - unsafe.Offsetof(C.kvc_borrowed_batch{}.scope_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.scopeCount) - unsafe.Sizeof(C.kvc_borrowed_batch{}.scope_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.stringSize) - unsafe.Offsetof(C.kvc_borrowed_batch{}.string_size)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.stringSize) - unsafe.Sizeof(C.kvc_borrowed_batch{}.string_size)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.RemainingBytes) - unsafe.Offsetof(C.kvc_borrowed_batch{}.remaining_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.RemainingBytes) - unsafe.Sizeof(C.kvc_borrowed_batch{}.remaining_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.PendingBlocks) - unsafe.Offsetof(C.kvc_borrowed_batch{}.pending_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.PendingBlocks) - unsafe.Sizeof(C.kvc_borrowed_batch{}.pending_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.multimodal) - unsafe.Offsetof(C.kvc_borrowed_batch{}.multimodal)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.multimodal) - unsafe.Sizeof(C.kvc_borrowed_batch{}.multimodal)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BorrowedBatch{}.multimodalCount) - unsafe.Offsetof(C.kvc_borrowed_batch{}.multimodal_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BorrowedBatch{}.multimodalCount) - unsafe.Sizeof(C.kvc_borrowed_batch{}.multimodal_count)]struct{}{}

	// kvc_stream_stats
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}) - unsafe.Sizeof(C.kvc_stream_stats{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.StructSize) - unsafe.Offsetof(C.kvc_stream_stats{}.struct_size)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.StructSize) - unsafe.Sizeof(C.kvc_stream_stats{}.struct_size)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.Attached) - unsafe.Offsetof(C.kvc_stream_stats{}.attached)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.Attached) - unsafe.Sizeof(C.kvc_stream_stats{}.attached)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.StoredBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.stored_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.StoredBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.stored_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.RemovedBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.removed_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.RemovedBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.removed_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.ClearedBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.cleared_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.ClearedBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.cleared_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.Clears) - unsafe.Offsetof(C.kvc_stream_stats{}.clears)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.Clears) - unsafe.Sizeof(C.kvc_stream_stats{}.clears)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.DroppedEvents) - unsafe.Offsetof(C.kvc_stream_stats{}.dropped_events)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.DroppedEvents) - unsafe.Sizeof(C.kvc_stream_stats{}.dropped_events)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.DeferredBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.deferred_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.DeferredBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.deferred_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.HealedBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.healed_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.HealedBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.healed_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.DeferredEvictedBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.deferred_evicted_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.DeferredEvictedBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.deferred_evicted_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.PendingBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.pending_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.PendingBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.pending_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.UnannouncedRemovals) - unsafe.Offsetof(C.kvc_stream_stats{}.unannounced_removals)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.UnannouncedRemovals) - unsafe.Sizeof(C.kvc_stream_stats{}.unannounced_removals)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.PartialBlocksSuppressed) - unsafe.Offsetof(C.kvc_stream_stats{}.partial_blocks_suppressed)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.PartialBlocksSuppressed) - unsafe.Sizeof(C.kvc_stream_stats{}.partial_blocks_suppressed)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.AnnouncedBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.announced_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.AnnouncedBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.announced_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.HashCollisions) - unsafe.Offsetof(C.kvc_stream_stats{}.hash_collisions)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.HashCollisions) - unsafe.Sizeof(C.kvc_stream_stats{}.hash_collisions)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.SupersededRecords) - unsafe.Offsetof(C.kvc_stream_stats{}.superseded_records)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.SupersededRecords) - unsafe.Sizeof(C.kvc_stream_stats{}.superseded_records)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.DrainedBatches) - unsafe.Offsetof(C.kvc_stream_stats{}.drained_batches)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.DrainedBatches) - unsafe.Sizeof(C.kvc_stream_stats{}.drained_batches)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.DrainedEvents) - unsafe.Offsetof(C.kvc_stream_stats{}.drained_events)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.DrainedEvents) - unsafe.Sizeof(C.kvc_stream_stats{}.drained_events)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.DrainedStoredBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.drained_stored_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.DrainedStoredBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.drained_stored_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.DrainedRemovedBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.drained_removed_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.DrainedRemovedBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.drained_removed_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.MirrorBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.mirror_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.MirrorBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.mirror_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.BufferBytes) - unsafe.Offsetof(C.kvc_stream_stats{}.buffer_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.BufferBytes) - unsafe.Sizeof(C.kvc_stream_stats{}.buffer_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.BufferUsedBytes) - unsafe.Offsetof(C.kvc_stream_stats{}.buffer_used_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.BufferUsedBytes) - unsafe.Sizeof(C.kvc_stream_stats{}.buffer_used_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.MultimodalBlocksSuppressed) - unsafe.Offsetof(C.kvc_stream_stats{}.multimodal_blocks_suppressed)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.MultimodalBlocksSuppressed) - unsafe.Sizeof(C.kvc_stream_stats{}.multimodal_blocks_suppressed)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.SuppressedBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.suppressed_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.SuppressedBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.suppressed_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.OldestDeferredNs) - unsafe.Offsetof(C.kvc_stream_stats{}.oldest_deferred_ns)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.OldestDeferredNs) - unsafe.Sizeof(C.kvc_stream_stats{}.oldest_deferred_ns)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.RemovedCapacityBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.removed_capacity_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.RemovedCapacityBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.removed_capacity_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.RemovedTTLBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.removed_ttl_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.RemovedTTLBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.removed_ttl_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.RemovedEndedBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.removed_ended_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.RemovedEndedBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.removed_ended_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StreamStats{}.RemovedScopeBlocks) - unsafe.Offsetof(C.kvc_stream_stats{}.removed_scope_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StreamStats{}.RemovedScopeBlocks) - unsafe.Sizeof(C.kvc_stream_stats{}.removed_scope_blocks)]struct{}{}

	// kvc_config
	_ [0]struct{} = [unsafe.Sizeof(Config{}) - unsafe.Sizeof(C.kvc_config{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.StructSize) - unsafe.Offsetof(C.kvc_config{}.struct_size)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.StructSize) - unsafe.Sizeof(C.kvc_config{}.struct_size)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.Flags) - unsafe.Offsetof(C.kvc_config{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.Flags) - unsafe.Sizeof(C.kvc_config{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.Device) - unsafe.Offsetof(C.kvc_config{}.device)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.Device) - unsafe.Sizeof(C.kvc_config{}.device)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.TokensPerBlock) - unsafe.Offsetof(C.kvc_config{}.tokens_per_block)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.TokensPerBlock) - unsafe.Sizeof(C.kvc_config{}.tokens_per_block)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.CapacityBlocks) - unsafe.Offsetof(C.kvc_config{}.capacity_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.CapacityBlocks) - unsafe.Sizeof(C.kvc_config{}.capacity_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.MaxSequences) - unsafe.Offsetof(C.kvc_config{}.max_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.MaxSequences) - unsafe.Sizeof(C.kvc_config{}.max_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.PageBytes) - unsafe.Offsetof(C.kvc_config{}.page_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.PageBytes) - unsafe.Sizeof(C.kvc_config{}.page_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.Seed) - unsafe.Offsetof(C.kvc_config{}.seed)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.Seed) - unsafe.Sizeof(C.kvc_config{}.seed)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.ResumeGatePermille) - unsafe.Offsetof(C.kvc_config{}.resume_gate_permille)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.ResumeGatePermille) - unsafe.Sizeof(C.kvc_config{}.resume_gate_permille)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.Policy) - unsafe.Offsetof(C.kvc_config{}.policy)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.Policy) - unsafe.Sizeof(C.kvc_config{}.policy)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.LRFUTau) - unsafe.Offsetof(C.kvc_config{}.lrfu_tau)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.LRFUTau) - unsafe.Sizeof(C.kvc_config{}.lrfu_tau)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.MaxPinnedPages) - unsafe.Offsetof(C.kvc_config{}.max_pinned_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.MaxPinnedPages) - unsafe.Sizeof(C.kvc_config{}.max_pinned_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.LRFUGhosts) - unsafe.Offsetof(C.kvc_config{}.lrfu_ghosts)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.LRFUGhosts) - unsafe.Sizeof(C.kvc_config{}.lrfu_ghosts)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.DeviceOrdinal) - unsafe.Offsetof(C.kvc_config{}.device_ordinal)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.DeviceOrdinal) - unsafe.Sizeof(C.kvc_config{}.device_ordinal)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.MaxDigests) - unsafe.Offsetof(C.kvc_config{}.max_digests)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.MaxDigests) - unsafe.Sizeof(C.kvc_config{}.max_digests)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.Copies) - unsafe.Offsetof(C.kvc_config{}.copies)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.Copies) - unsafe.Sizeof(C.kvc_config{}.copies)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.MaxPendingBlocks) - unsafe.Offsetof(C.kvc_config{}.max_pending_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.MaxPendingBlocks) - unsafe.Sizeof(C.kvc_config{}.max_pending_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.PartialReuse) - unsafe.Offsetof(C.kvc_config{}.partial_reuse)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.PartialReuse) - unsafe.Sizeof(C.kvc_config{}.partial_reuse)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.MaxBlocks) - unsafe.Offsetof(C.kvc_config{}.max_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.MaxBlocks) - unsafe.Sizeof(C.kvc_config{}.max_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Config{}.MinBlocks) - unsafe.Offsetof(C.kvc_config{}.min_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Config{}.MinBlocks) - unsafe.Sizeof(C.kvc_config{}.min_blocks)]struct{}{}

	// kvc_scope
	_ [0]struct{} = [unsafe.Sizeof(Scope{}) - unsafe.Sizeof(C.kvc_scope{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Scope{}.Parts) - unsafe.Offsetof(C.kvc_scope{}.parts)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Scope{}.Parts) - unsafe.Sizeof(C.kvc_scope{}.parts)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Scope{}.LoRAID) - unsafe.Offsetof(C.kvc_scope{}.lora_id)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Scope{}.LoRAID) - unsafe.Sizeof(C.kvc_scope{}.lora_id)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Scope{}.Salt) - unsafe.Offsetof(C.kvc_scope{}.salt)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Scope{}.Salt) - unsafe.Sizeof(C.kvc_scope{}.salt)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Scope{}.LoRANameOffset) - unsafe.Offsetof(C.kvc_scope{}.lora_name_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Scope{}.LoRANameOffset) - unsafe.Sizeof(C.kvc_scope{}.lora_name_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Scope{}.SaltBytesOffset) - unsafe.Offsetof(C.kvc_scope{}.salt_bytes_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Scope{}.SaltBytesOffset) - unsafe.Sizeof(C.kvc_scope{}.salt_bytes_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Scope{}.LoRANameSize) - unsafe.Offsetof(C.kvc_scope{}.lora_name_size)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Scope{}.LoRANameSize) - unsafe.Sizeof(C.kvc_scope{}.lora_name_size)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Scope{}.SaltBytesSize) - unsafe.Offsetof(C.kvc_scope{}.salt_bytes_size)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Scope{}.SaltBytesSize) - unsafe.Sizeof(C.kvc_scope{}.salt_bytes_size)]struct{}{}

	// kvc_fence
	_ [0]struct{} = [unsafe.Sizeof(Fence{}) - unsafe.Sizeof(C.kvc_fence{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Fence{}.DeviceStream) - unsafe.Offsetof(C.kvc_fence{}.device_stream)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Fence{}.DeviceStream) - unsafe.Sizeof(C.kvc_fence{}.device_stream)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Fence{}.Position) - unsafe.Offsetof(C.kvc_fence{}.position)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Fence{}.Position) - unsafe.Sizeof(C.kvc_fence{}.position)]struct{}{}

	// kvc_prompt
	_ [0]struct{} = [unsafe.Sizeof(Prompt{}) - unsafe.Sizeof(C.kvc_prompt{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Prompt{}.TokenOffset) - unsafe.Offsetof(C.kvc_prompt{}.token_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Prompt{}.TokenOffset) - unsafe.Sizeof(C.kvc_prompt{}.token_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Prompt{}.TokenCount) - unsafe.Offsetof(C.kvc_prompt{}.token_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Prompt{}.TokenCount) - unsafe.Sizeof(C.kvc_prompt{}.token_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Prompt{}.DeviceStream) - unsafe.Offsetof(C.kvc_prompt{}.device_stream)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Prompt{}.DeviceStream) - unsafe.Sizeof(C.kvc_prompt{}.device_stream)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Prompt{}.Scope) - unsafe.Offsetof(C.kvc_prompt{}.scope)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Prompt{}.Scope) - unsafe.Sizeof(C.kvc_prompt{}.scope)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Prompt{}.MustCompute) - unsafe.Offsetof(C.kvc_prompt{}.must_compute)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Prompt{}.MustCompute) - unsafe.Sizeof(C.kvc_prompt{}.must_compute)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Prompt{}.Flags) - unsafe.Offsetof(C.kvc_prompt{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Prompt{}.Flags) - unsafe.Sizeof(C.kvc_prompt{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Prompt{}.MatchBackoff) - unsafe.Offsetof(C.kvc_prompt{}.match_backoff)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Prompt{}.MatchBackoff) - unsafe.Sizeof(C.kvc_prompt{}.match_backoff)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Prompt{}.StopBefore) - unsafe.Offsetof(C.kvc_prompt{}.stop_before)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Prompt{}.StopBefore) - unsafe.Sizeof(C.kvc_prompt{}.stop_before)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Prompt{}.DigestCount) - unsafe.Offsetof(C.kvc_prompt{}.digest_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Prompt{}.DigestCount) - unsafe.Sizeof(C.kvc_prompt{}.digest_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Prompt{}.DigestOffset) - unsafe.Offsetof(C.kvc_prompt{}.digest_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Prompt{}.DigestOffset) - unsafe.Sizeof(C.kvc_prompt{}.digest_offset)]struct{}{}

	// kvc_create_result
	_ [0]struct{} = [unsafe.Sizeof(CreateResult{}) - unsafe.Sizeof(C.kvc_create_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CreateResult{}.Status) - unsafe.Offsetof(C.kvc_create_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CreateResult{}.Status) - unsafe.Sizeof(C.kvc_create_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CreateResult{}.WaitCount) - unsafe.Offsetof(C.kvc_create_result{}.wait_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CreateResult{}.WaitCount) - unsafe.Sizeof(C.kvc_create_result{}.wait_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CreateResult{}.Sequence) - unsafe.Offsetof(C.kvc_create_result{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CreateResult{}.Sequence) - unsafe.Sizeof(C.kvc_create_result{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CreateResult{}.MatchedTokens) - unsafe.Offsetof(C.kvc_create_result{}.matched_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CreateResult{}.MatchedTokens) - unsafe.Sizeof(C.kvc_create_result{}.matched_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CreateResult{}.PendingTokens) - unsafe.Offsetof(C.kvc_create_result{}.pending_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CreateResult{}.PendingTokens) - unsafe.Sizeof(C.kvc_create_result{}.pending_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CreateResult{}.PendingSequence) - unsafe.Offsetof(C.kvc_create_result{}.pending_sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CreateResult{}.PendingSequence) - unsafe.Sizeof(C.kvc_create_result{}.pending_sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CreateResult{}.CopiedTokens) - unsafe.Offsetof(C.kvc_create_result{}.copied_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CreateResult{}.CopiedTokens) - unsafe.Sizeof(C.kvc_create_result{}.copied_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CreateResult{}.CopiedFrom) - unsafe.Offsetof(C.kvc_create_result{}.copied_from)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CreateResult{}.CopiedFrom) - unsafe.Sizeof(C.kvc_create_result{}.copied_from)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CreateResult{}.CopiedTo) - unsafe.Offsetof(C.kvc_create_result{}.copied_to)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CreateResult{}.CopiedTo) - unsafe.Sizeof(C.kvc_create_result{}.copied_to)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CreateResult{}.Waits) - unsafe.Offsetof(C.kvc_create_result{}.waits)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CreateResult{}.Waits) - unsafe.Sizeof(C.kvc_create_result{}.waits)]struct{}{}

	// kvc_probe_result
	_ [0]struct{} = [unsafe.Sizeof(ProbeResult{}) - unsafe.Sizeof(C.kvc_probe_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ProbeResult{}.Status) - unsafe.Offsetof(C.kvc_probe_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ProbeResult{}.Status) - unsafe.Sizeof(C.kvc_probe_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ProbeResult{}.MatchedTokens) - unsafe.Offsetof(C.kvc_probe_result{}.matched_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ProbeResult{}.MatchedTokens) - unsafe.Sizeof(C.kvc_probe_result{}.matched_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ProbeResult{}.PendingTokens) - unsafe.Offsetof(C.kvc_probe_result{}.pending_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ProbeResult{}.PendingTokens) - unsafe.Sizeof(C.kvc_probe_result{}.pending_tokens)]struct{}{}

	// kvc_grow_item
	_ [0]struct{} = [unsafe.Sizeof(GrowItem{}) - unsafe.Sizeof(C.kvc_grow_item{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowItem{}.Sequence) - unsafe.Offsetof(C.kvc_grow_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowItem{}.Sequence) - unsafe.Sizeof(C.kvc_grow_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowItem{}.CapacityTokens) - unsafe.Offsetof(C.kvc_grow_item{}.capacity_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowItem{}.CapacityTokens) - unsafe.Sizeof(C.kvc_grow_item{}.capacity_tokens)]struct{}{}

	// kvc_grow_result
	_ [0]struct{} = [unsafe.Sizeof(GrowResult{}) - unsafe.Sizeof(C.kvc_grow_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowResult{}.Status) - unsafe.Offsetof(C.kvc_grow_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowResult{}.Status) - unsafe.Sizeof(C.kvc_grow_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowResult{}.AddedPages) - unsafe.Offsetof(C.kvc_grow_result{}.added_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowResult{}.AddedPages) - unsafe.Sizeof(C.kvc_grow_result{}.added_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowResult{}.EvictedBlocks) - unsafe.Offsetof(C.kvc_grow_result{}.evicted_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowResult{}.EvictedBlocks) - unsafe.Sizeof(C.kvc_grow_result{}.evicted_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowResult{}.LeavingPages) - unsafe.Offsetof(C.kvc_grow_result{}.leaving_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowResult{}.LeavingPages) - unsafe.Sizeof(C.kvc_grow_result{}.leaving_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowResult{}.FirstEvicted) - unsafe.Offsetof(C.kvc_grow_result{}.first_evicted)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowResult{}.FirstEvicted) - unsafe.Sizeof(C.kvc_grow_result{}.first_evicted)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowResult{}.CopiedBlock) - unsafe.Offsetof(C.kvc_grow_result{}.copied_block)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowResult{}.CopiedBlock) - unsafe.Sizeof(C.kvc_grow_result{}.copied_block)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowResult{}.CopiedFrom) - unsafe.Offsetof(C.kvc_grow_result{}.copied_from)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowResult{}.CopiedFrom) - unsafe.Sizeof(C.kvc_grow_result{}.copied_from)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowResult{}.CopiedTo) - unsafe.Offsetof(C.kvc_grow_result{}.copied_to)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowResult{}.CopiedTo) - unsafe.Sizeof(C.kvc_grow_result{}.copied_to)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowResult{}.CopiedTokens) - unsafe.Offsetof(C.kvc_grow_result{}.copied_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowResult{}.CopiedTokens) - unsafe.Sizeof(C.kvc_grow_result{}.copied_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowResult{}.WaitCount) - unsafe.Offsetof(C.kvc_grow_result{}.wait_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowResult{}.WaitCount) - unsafe.Sizeof(C.kvc_grow_result{}.wait_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GrowResult{}.Wait) - unsafe.Offsetof(C.kvc_grow_result{}.wait)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GrowResult{}.Wait) - unsafe.Sizeof(C.kvc_grow_result{}.wait)]struct{}{}

	// kvc_fork_item
	_ [0]struct{} = [unsafe.Sizeof(ForkItem{}) - unsafe.Sizeof(C.kvc_fork_item{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ForkItem{}.Sequence) - unsafe.Offsetof(C.kvc_fork_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ForkItem{}.Sequence) - unsafe.Sizeof(C.kvc_fork_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ForkItem{}.DeviceStream) - unsafe.Offsetof(C.kvc_fork_item{}.device_stream)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ForkItem{}.DeviceStream) - unsafe.Sizeof(C.kvc_fork_item{}.device_stream)]struct{}{}

	// kvc_fork_result
	_ [0]struct{} = [unsafe.Sizeof(ForkResult{}) - unsafe.Sizeof(C.kvc_fork_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ForkResult{}.Status) - unsafe.Offsetof(C.kvc_fork_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ForkResult{}.Status) - unsafe.Sizeof(C.kvc_fork_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ForkResult{}.WaitCount) - unsafe.Offsetof(C.kvc_fork_result{}.wait_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ForkResult{}.WaitCount) - unsafe.Sizeof(C.kvc_fork_result{}.wait_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ForkResult{}.Sequence) - unsafe.Offsetof(C.kvc_fork_result{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ForkResult{}.Sequence) - unsafe.Sizeof(C.kvc_fork_result{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ForkResult{}.CommittedTokens) - unsafe.Offsetof(C.kvc_fork_result{}.committed_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ForkResult{}.CommittedTokens) - unsafe.Sizeof(C.kvc_fork_result{}.committed_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ForkResult{}.Waits) - unsafe.Offsetof(C.kvc_fork_result{}.waits)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ForkResult{}.Waits) - unsafe.Sizeof(C.kvc_fork_result{}.waits)]struct{}{}

	// kvc_commit_item
	_ [0]struct{} = [unsafe.Sizeof(CommitItem{}) - unsafe.Sizeof(C.kvc_commit_item{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitItem{}.Sequence) - unsafe.Offsetof(C.kvc_commit_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitItem{}.Sequence) - unsafe.Sizeof(C.kvc_commit_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitItem{}.TokenOffset) - unsafe.Offsetof(C.kvc_commit_item{}.token_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitItem{}.TokenOffset) - unsafe.Sizeof(C.kvc_commit_item{}.token_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitItem{}.TokenCount) - unsafe.Offsetof(C.kvc_commit_item{}.token_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitItem{}.TokenCount) - unsafe.Sizeof(C.kvc_commit_item{}.token_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitItem{}.Flags) - unsafe.Offsetof(C.kvc_commit_item{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitItem{}.Flags) - unsafe.Sizeof(C.kvc_commit_item{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitItem{}.Fence) - unsafe.Offsetof(C.kvc_commit_item{}.fence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitItem{}.Fence) - unsafe.Sizeof(C.kvc_commit_item{}.fence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitItem{}.DigestOffset) - unsafe.Offsetof(C.kvc_commit_item{}.digest_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitItem{}.DigestOffset) - unsafe.Sizeof(C.kvc_commit_item{}.digest_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitItem{}.DigestCount) - unsafe.Offsetof(C.kvc_commit_item{}.digest_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitItem{}.DigestCount) - unsafe.Sizeof(C.kvc_commit_item{}.digest_count)]struct{}{}

	// kvc_commit_result
	_ [0]struct{} = [unsafe.Sizeof(CommitResult{}) - unsafe.Sizeof(C.kvc_commit_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitResult{}.Status) - unsafe.Offsetof(C.kvc_commit_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitResult{}.Status) - unsafe.Sizeof(C.kvc_commit_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitResult{}.StoredBlocks) - unsafe.Offsetof(C.kvc_commit_result{}.stored_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitResult{}.StoredBlocks) - unsafe.Sizeof(C.kvc_commit_result{}.stored_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitResult{}.DeduplicatedBlocks) - unsafe.Offsetof(C.kvc_commit_result{}.deduplicated_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitResult{}.DeduplicatedBlocks) - unsafe.Sizeof(C.kvc_commit_result{}.deduplicated_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitResult{}.FirstChangedBlock) - unsafe.Offsetof(C.kvc_commit_result{}.first_changed_block)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitResult{}.FirstChangedBlock) - unsafe.Sizeof(C.kvc_commit_result{}.first_changed_block)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitResult{}.CommittedTokens) - unsafe.Offsetof(C.kvc_commit_result{}.committed_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitResult{}.CommittedTokens) - unsafe.Sizeof(C.kvc_commit_result{}.committed_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitResult{}.WaitCount) - unsafe.Offsetof(C.kvc_commit_result{}.wait_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitResult{}.WaitCount) - unsafe.Sizeof(C.kvc_commit_result{}.wait_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CommitResult{}.Waits) - unsafe.Offsetof(C.kvc_commit_result{}.waits)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CommitResult{}.Waits) - unsafe.Sizeof(C.kvc_commit_result{}.waits)]struct{}{}

	// kvc_hold_item
	_ [0]struct{} = [unsafe.Sizeof(HoldItem{}) - unsafe.Sizeof(C.kvc_hold_item{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(HoldItem{}.Sequence) - unsafe.Offsetof(C.kvc_hold_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(HoldItem{}.Sequence) - unsafe.Sizeof(C.kvc_hold_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(HoldItem{}.Count) - unsafe.Offsetof(C.kvc_hold_item{}.count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(HoldItem{}.Count) - unsafe.Sizeof(C.kvc_hold_item{}.count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(HoldItem{}.Flags) - unsafe.Offsetof(C.kvc_hold_item{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(HoldItem{}.Flags) - unsafe.Sizeof(C.kvc_hold_item{}.flags)]struct{}{}

	// kvc_hold_result
	_ [0]struct{} = [unsafe.Sizeof(HoldResult{}) - unsafe.Sizeof(C.kvc_hold_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(HoldResult{}.Status) - unsafe.Offsetof(C.kvc_hold_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(HoldResult{}.Status) - unsafe.Sizeof(C.kvc_hold_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(HoldResult{}.Hold) - unsafe.Offsetof(C.kvc_hold_result{}.hold)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(HoldResult{}.Hold) - unsafe.Sizeof(C.kvc_hold_result{}.hold)]struct{}{}

	// kvc_suspend_item
	_ [0]struct{} = [unsafe.Sizeof(SuspendItem{}) - unsafe.Sizeof(C.kvc_suspend_item{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(SuspendItem{}.Sequence) - unsafe.Offsetof(C.kvc_suspend_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(SuspendItem{}.Sequence) - unsafe.Sizeof(C.kvc_suspend_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(SuspendItem{}.Flags) - unsafe.Offsetof(C.kvc_suspend_item{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(SuspendItem{}.Flags) - unsafe.Sizeof(C.kvc_suspend_item{}.flags)]struct{}{}

	// kvc_resume_result
	_ [0]struct{} = [unsafe.Sizeof(ResumeResult{}) - unsafe.Sizeof(C.kvc_resume_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResumeResult{}.Status) - unsafe.Offsetof(C.kvc_resume_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResumeResult{}.Status) - unsafe.Sizeof(C.kvc_resume_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResumeResult{}.WaitCount) - unsafe.Offsetof(C.kvc_resume_result{}.wait_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResumeResult{}.WaitCount) - unsafe.Sizeof(C.kvc_resume_result{}.wait_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResumeResult{}.CommittedTokens) - unsafe.Offsetof(C.kvc_resume_result{}.committed_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResumeResult{}.CommittedTokens) - unsafe.Sizeof(C.kvc_resume_result{}.committed_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResumeResult{}.LostTokens) - unsafe.Offsetof(C.kvc_resume_result{}.lost_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResumeResult{}.LostTokens) - unsafe.Sizeof(C.kvc_resume_result{}.lost_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResumeResult{}.PendingTokens) - unsafe.Offsetof(C.kvc_resume_result{}.pending_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResumeResult{}.PendingTokens) - unsafe.Sizeof(C.kvc_resume_result{}.pending_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResumeResult{}.PendingSequence) - unsafe.Offsetof(C.kvc_resume_result{}.pending_sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResumeResult{}.PendingSequence) - unsafe.Sizeof(C.kvc_resume_result{}.pending_sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResumeResult{}.Waits) - unsafe.Offsetof(C.kvc_resume_result{}.waits)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResumeResult{}.Waits) - unsafe.Sizeof(C.kvc_resume_result{}.waits)]struct{}{}

	// kvc_truncate_item
	_ [0]struct{} = [unsafe.Sizeof(TruncateItem{}) - unsafe.Sizeof(C.kvc_truncate_item{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TruncateItem{}.Sequence) - unsafe.Offsetof(C.kvc_truncate_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TruncateItem{}.Sequence) - unsafe.Sizeof(C.kvc_truncate_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TruncateItem{}.CapacityTokens) - unsafe.Offsetof(C.kvc_truncate_item{}.capacity_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TruncateItem{}.CapacityTokens) - unsafe.Sizeof(C.kvc_truncate_item{}.capacity_tokens)]struct{}{}

	// kvc_truncate_result
	_ [0]struct{} = [unsafe.Sizeof(TruncateResult{}) - unsafe.Sizeof(C.kvc_truncate_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TruncateResult{}.Status) - unsafe.Offsetof(C.kvc_truncate_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TruncateResult{}.Status) - unsafe.Sizeof(C.kvc_truncate_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TruncateResult{}.FreedPages) - unsafe.Offsetof(C.kvc_truncate_result{}.freed_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TruncateResult{}.FreedPages) - unsafe.Sizeof(C.kvc_truncate_result{}.freed_pages)]struct{}{}

	// kvc_stop_item
	_ [0]struct{} = [unsafe.Sizeof(StopItem{}) - unsafe.Sizeof(C.kvc_stop_item{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StopItem{}.Sequence) - unsafe.Offsetof(C.kvc_stop_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StopItem{}.Sequence) - unsafe.Sizeof(C.kvc_stop_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(StopItem{}.StopBefore) - unsafe.Offsetof(C.kvc_stop_item{}.stop_before)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(StopItem{}.StopBefore) - unsafe.Sizeof(C.kvc_stop_item{}.stop_before)]struct{}{}

	// kvc_sequence_info
	_ [0]struct{} = [unsafe.Sizeof(SequenceInfo{}) - unsafe.Sizeof(C.kvc_sequence_info{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(SequenceInfo{}.CommittedTokens) - unsafe.Offsetof(C.kvc_sequence_info{}.committed_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(SequenceInfo{}.CommittedTokens) - unsafe.Sizeof(C.kvc_sequence_info{}.committed_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(SequenceInfo{}.MatchedTokens) - unsafe.Offsetof(C.kvc_sequence_info{}.matched_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(SequenceInfo{}.MatchedTokens) - unsafe.Sizeof(C.kvc_sequence_info{}.matched_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(SequenceInfo{}.CapacityTokens) - unsafe.Offsetof(C.kvc_sequence_info{}.capacity_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(SequenceInfo{}.CapacityTokens) - unsafe.Sizeof(C.kvc_sequence_info{}.capacity_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(SequenceInfo{}.DeviceStream) - unsafe.Offsetof(C.kvc_sequence_info{}.device_stream)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(SequenceInfo{}.DeviceStream) - unsafe.Sizeof(C.kvc_sequence_info{}.device_stream)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(SequenceInfo{}.PageCount) - unsafe.Offsetof(C.kvc_sequence_info{}.page_count)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(SequenceInfo{}.PageCount) - unsafe.Sizeof(C.kvc_sequence_info{}.page_count)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(SequenceInfo{}.Detached) - unsafe.Offsetof(C.kvc_sequence_info{}.detached)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(SequenceInfo{}.Detached) - unsafe.Sizeof(C.kvc_sequence_info{}.detached)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(SequenceInfo{}.State) - unsafe.Offsetof(C.kvc_sequence_info{}.state)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(SequenceInfo{}.State) - unsafe.Sizeof(C.kvc_sequence_info{}.state)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(SequenceInfo{}.ReusableBlocks) - unsafe.Offsetof(C.kvc_sequence_info{}.reusable_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(SequenceInfo{}.ReusableBlocks) - unsafe.Sizeof(C.kvc_sequence_info{}.reusable_blocks)]struct{}{}

	// kvc_stats
	_ [0]struct{} = [unsafe.Sizeof(Stats{}) - unsafe.Sizeof(C.kvc_stats{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.StructSize) - unsafe.Offsetof(C.kvc_stats{}.struct_size)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.StructSize) - unsafe.Sizeof(C.kvc_stats{}.struct_size)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.TotalPages) - unsafe.Offsetof(C.kvc_stats{}.total_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.TotalPages) - unsafe.Sizeof(C.kvc_stats{}.total_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.LivePages) - unsafe.Offsetof(C.kvc_stats{}.live_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.LivePages) - unsafe.Sizeof(C.kvc_stats{}.live_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.CachedPages) - unsafe.Offsetof(C.kvc_stats{}.cached_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.CachedPages) - unsafe.Sizeof(C.kvc_stats{}.cached_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.FreePages) - unsafe.Offsetof(C.kvc_stats{}.free_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.FreePages) - unsafe.Sizeof(C.kvc_stats{}.free_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.QuarantinedPages) - unsafe.Offsetof(C.kvc_stats{}.quarantined_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.QuarantinedPages) - unsafe.Sizeof(C.kvc_stats{}.quarantined_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.LeavingPages) - unsafe.Offsetof(C.kvc_stats{}.leaving_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.LeavingPages) - unsafe.Sizeof(C.kvc_stats{}.leaving_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.PeakLivePages) - unsafe.Offsetof(C.kvc_stats{}.peak_live_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.PeakLivePages) - unsafe.Sizeof(C.kvc_stats{}.peak_live_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.Blocks) - unsafe.Offsetof(C.kvc_stats{}.blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.Blocks) - unsafe.Sizeof(C.kvc_stats{}.blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.Roots) - unsafe.Offsetof(C.kvc_stats{}.roots)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.Roots) - unsafe.Sizeof(C.kvc_stats{}.roots)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.Sequences) - unsafe.Offsetof(C.kvc_stats{}.sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.Sequences) - unsafe.Sizeof(C.kvc_stats{}.sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.CreatedSequences) - unsafe.Offsetof(C.kvc_stats{}.created_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.CreatedSequences) - unsafe.Sizeof(C.kvc_stats{}.created_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.AskedBlocks) - unsafe.Offsetof(C.kvc_stats{}.asked_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.AskedBlocks) - unsafe.Sizeof(C.kvc_stats{}.asked_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.MatchedBlocks) - unsafe.Offsetof(C.kvc_stats{}.matched_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.MatchedBlocks) - unsafe.Sizeof(C.kvc_stats{}.matched_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.StoredBlocks) - unsafe.Offsetof(C.kvc_stats{}.stored_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.StoredBlocks) - unsafe.Sizeof(C.kvc_stats{}.stored_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.DeduplicatedBlocks) - unsafe.Offsetof(C.kvc_stats{}.deduplicated_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.DeduplicatedBlocks) - unsafe.Sizeof(C.kvc_stats{}.deduplicated_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.EvictedBlocks) - unsafe.Offsetof(C.kvc_stats{}.evicted_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.EvictedBlocks) - unsafe.Sizeof(C.kvc_stats{}.evicted_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.ResetBlocks) - unsafe.Offsetof(C.kvc_stats{}.reset_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.ResetBlocks) - unsafe.Sizeof(C.kvc_stats{}.reset_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.Resets) - unsafe.Offsetof(C.kvc_stats{}.resets)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.Resets) - unsafe.Sizeof(C.kvc_stats{}.resets)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.RefusedNotNow) - unsafe.Offsetof(C.kvc_stats{}.refused_not_now)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.RefusedNotNow) - unsafe.Sizeof(C.kvc_stats{}.refused_not_now)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.RefusedNeverFits) - unsafe.Offsetof(C.kvc_stats{}.refused_never_fits)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.RefusedNeverFits) - unsafe.Sizeof(C.kvc_stats{}.refused_never_fits)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.MetadataBytes) - unsafe.Offsetof(C.kvc_stats{}.metadata_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.MetadataBytes) - unsafe.Sizeof(C.kvc_stats{}.metadata_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.PrefaultNs) - unsafe.Offsetof(C.kvc_stats{}.prefault_ns)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.PrefaultNs) - unsafe.Sizeof(C.kvc_stats{}.prefault_ns)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.SuspendedSequences) - unsafe.Offsetof(C.kvc_stats{}.suspended_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.SuspendedSequences) - unsafe.Sizeof(C.kvc_stats{}.suspended_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.KeptPages) - unsafe.Offsetof(C.kvc_stats{}.kept_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.KeptPages) - unsafe.Sizeof(C.kvc_stats{}.kept_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.ReclaimedPages) - unsafe.Offsetof(C.kvc_stats{}.reclaimed_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.ReclaimedPages) - unsafe.Sizeof(C.kvc_stats{}.reclaimed_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.RefusedGate) - unsafe.Offsetof(C.kvc_stats{}.refused_gate)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.RefusedGate) - unsafe.Sizeof(C.kvc_stats{}.refused_gate)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.CancelledSequences) - unsafe.Offsetof(C.kvc_stats{}.cancelled_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.CancelledSequences) - unsafe.Sizeof(C.kvc_stats{}.cancelled_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.ExpiredBlocks) - unsafe.Offsetof(C.kvc_stats{}.expired_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.ExpiredBlocks) - unsafe.Sizeof(C.kvc_stats{}.expired_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.EvictedTTLBlocks) - unsafe.Offsetof(C.kvc_stats{}.evicted_ttl_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.EvictedTTLBlocks) - unsafe.Sizeof(C.kvc_stats{}.evicted_ttl_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.EvictedEndedBlocks) - unsafe.Offsetof(C.kvc_stats{}.evicted_ended_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.EvictedEndedBlocks) - unsafe.Sizeof(C.kvc_stats{}.evicted_ended_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.Holds) - unsafe.Offsetof(C.kvc_stats{}.holds)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.Holds) - unsafe.Sizeof(C.kvc_stats{}.holds)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.HeldPages) - unsafe.Offsetof(C.kvc_stats{}.held_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.HeldPages) - unsafe.Sizeof(C.kvc_stats{}.held_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.DroppedBlocks) - unsafe.Offsetof(C.kvc_stats{}.dropped_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.DroppedBlocks) - unsafe.Sizeof(C.kvc_stats{}.dropped_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.Pins) - unsafe.Offsetof(C.kvc_stats{}.pins)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.Pins) - unsafe.Sizeof(C.kvc_stats{}.pins)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.PinnedPages) - unsafe.Offsetof(C.kvc_stats{}.pinned_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.PinnedPages) - unsafe.Sizeof(C.kvc_stats{}.pinned_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.PeakPinnedPages) - unsafe.Offsetof(C.kvc_stats{}.peak_pinned_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.PeakPinnedPages) - unsafe.Sizeof(C.kvc_stats{}.peak_pinned_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.PeakQuarantinedPages) - unsafe.Offsetof(C.kvc_stats{}.peak_quarantined_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.PeakQuarantinedPages) - unsafe.Sizeof(C.kvc_stats{}.peak_quarantined_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.Digests) - unsafe.Offsetof(C.kvc_stats{}.digests)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.Digests) - unsafe.Sizeof(C.kvc_stats{}.digests)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.ForkedSequences) - unsafe.Offsetof(C.kvc_stats{}.forked_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.ForkedSequences) - unsafe.Sizeof(C.kvc_stats{}.forked_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.CopiedPages) - unsafe.Offsetof(C.kvc_stats{}.copied_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.CopiedPages) - unsafe.Sizeof(C.kvc_stats{}.copied_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.CopiedBytes) - unsafe.Offsetof(C.kvc_stats{}.copied_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.CopiedBytes) - unsafe.Sizeof(C.kvc_stats{}.copied_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.PendingBlocks) - unsafe.Offsetof(C.kvc_stats{}.pending_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.PendingBlocks) - unsafe.Sizeof(C.kvc_stats{}.pending_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.WaitingSequences) - unsafe.Offsetof(C.kvc_stats{}.waiting_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.WaitingSequences) - unsafe.Sizeof(C.kvc_stats{}.waiting_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.MarkedBlocks) - unsafe.Offsetof(C.kvc_stats{}.marked_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.MarkedBlocks) - unsafe.Sizeof(C.kvc_stats{}.marked_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.CommittedMarks) - unsafe.Offsetof(C.kvc_stats{}.committed_marks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.CommittedMarks) - unsafe.Sizeof(C.kvc_stats{}.committed_marks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.GivenUpMarks) - unsafe.Offsetof(C.kvc_stats{}.given_up_marks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.GivenUpMarks) - unsafe.Sizeof(C.kvc_stats{}.given_up_marks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.UnmarkedBlocks) - unsafe.Offsetof(C.kvc_stats{}.unmarked_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.UnmarkedBlocks) - unsafe.Sizeof(C.kvc_stats{}.unmarked_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.Waits) - unsafe.Offsetof(C.kvc_stats{}.waits)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.Waits) - unsafe.Sizeof(C.kvc_stats{}.waits)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.PartialBlocks) - unsafe.Offsetof(C.kvc_stats{}.partial_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.PartialBlocks) - unsafe.Sizeof(C.kvc_stats{}.partial_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.KeptPartialBlocks) - unsafe.Offsetof(C.kvc_stats{}.kept_partial_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.KeptPartialBlocks) - unsafe.Sizeof(C.kvc_stats{}.kept_partial_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.PartialHits) - unsafe.Offsetof(C.kvc_stats{}.partial_hits)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.PartialHits) - unsafe.Sizeof(C.kvc_stats{}.partial_hits)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.PartialHitTokens) - unsafe.Offsetof(C.kvc_stats{}.partial_hit_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.PartialHitTokens) - unsafe.Sizeof(C.kvc_stats{}.partial_hit_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.TargetPages) - unsafe.Offsetof(C.kvc_stats{}.target_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.TargetPages) - unsafe.Sizeof(C.kvc_stats{}.target_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.DoomedPages) - unsafe.Offsetof(C.kvc_stats{}.doomed_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.DoomedPages) - unsafe.Sizeof(C.kvc_stats{}.doomed_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.MovedPages) - unsafe.Offsetof(C.kvc_stats{}.moved_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.MovedPages) - unsafe.Sizeof(C.kvc_stats{}.moved_pages)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.Resizes) - unsafe.Offsetof(C.kvc_stats{}.resizes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.Resizes) - unsafe.Sizeof(C.kvc_stats{}.resizes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.FailedResizes) - unsafe.Offsetof(C.kvc_stats{}.failed_resizes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.FailedResizes) - unsafe.Sizeof(C.kvc_stats{}.failed_resizes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.MappedBytes) - unsafe.Offsetof(C.kvc_stats{}.mapped_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.MappedBytes) - unsafe.Sizeof(C.kvc_stats{}.mapped_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Stats{}.UnreturnedBytes) - unsafe.Offsetof(C.kvc_stats{}.unreturned_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Stats{}.UnreturnedBytes) - unsafe.Sizeof(C.kvc_stats{}.unreturned_bytes)]struct{}{}

	// kvc_resident_block
	_ [0]struct{} = [unsafe.Sizeof(ResidentBlock{}) - unsafe.Sizeof(C.kvc_resident_block{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResidentBlock{}.Hash) - unsafe.Offsetof(C.kvc_resident_block{}.hash)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResidentBlock{}.Hash) - unsafe.Sizeof(C.kvc_resident_block{}.hash)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResidentBlock{}.Announced) - unsafe.Offsetof(C.kvc_resident_block{}.announced)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResidentBlock{}.Announced) - unsafe.Sizeof(C.kvc_resident_block{}.announced)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResidentBlock{}.Digest) - unsafe.Offsetof(C.kvc_resident_block{}.digest)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResidentBlock{}.Digest) - unsafe.Sizeof(C.kvc_resident_block{}.digest)]struct{}{}

	// kvc_host_fill
	_ [0]struct{} = [unsafe.Sizeof(HostFill{}) - unsafe.Sizeof(C.kvc_host_fill{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(HostFill{}.Page) - unsafe.Offsetof(C.kvc_host_fill{}.page)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(HostFill{}.Page) - unsafe.Sizeof(C.kvc_host_fill{}.page)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(HostFill{}.Value) - unsafe.Offsetof(C.kvc_host_fill{}.value)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(HostFill{}.Value) - unsafe.Sizeof(C.kvc_host_fill{}.value)]struct{}{}

	// kvc_evicted_block
	_ [0]struct{} = [unsafe.Sizeof(EvictedBlock{}) - unsafe.Sizeof(C.kvc_evicted_block{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(EvictedBlock{}.Block) - unsafe.Offsetof(C.kvc_evicted_block{}.block)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(EvictedBlock{}.Block) - unsafe.Sizeof(C.kvc_evicted_block{}.block)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(EvictedBlock{}.Parent) - unsafe.Offsetof(C.kvc_evicted_block{}.parent)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(EvictedBlock{}.Parent) - unsafe.Sizeof(C.kvc_evicted_block{}.parent)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(EvictedBlock{}.Page) - unsafe.Offsetof(C.kvc_evicted_block{}.page)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(EvictedBlock{}.Page) - unsafe.Sizeof(C.kvc_evicted_block{}.page)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(EvictedBlock{}.Reason) - unsafe.Offsetof(C.kvc_evicted_block{}.reason)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(EvictedBlock{}.Reason) - unsafe.Sizeof(C.kvc_evicted_block{}.reason)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(EvictedBlock{}.Copies) - unsafe.Offsetof(C.kvc_evicted_block{}.copies)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(EvictedBlock{}.Copies) - unsafe.Sizeof(C.kvc_evicted_block{}.copies)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(EvictedBlock{}.Announced) - unsafe.Offsetof(C.kvc_evicted_block{}.announced)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(EvictedBlock{}.Announced) - unsafe.Sizeof(C.kvc_evicted_block{}.announced)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(EvictedBlock{}.Priority) - unsafe.Offsetof(C.kvc_evicted_block{}.priority)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(EvictedBlock{}.Priority) - unsafe.Sizeof(C.kvc_evicted_block{}.priority)]struct{}{}

	// kvc_block_residency
	_ [0]struct{} = [unsafe.Sizeof(BlockResidency{}) - unsafe.Sizeof(C.kvc_block_residency{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BlockResidency{}.Block) - unsafe.Offsetof(C.kvc_block_residency{}.block)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BlockResidency{}.Block) - unsafe.Sizeof(C.kvc_block_residency{}.block)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BlockResidency{}.Copies) - unsafe.Offsetof(C.kvc_block_residency{}.copies)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BlockResidency{}.Copies) - unsafe.Sizeof(C.kvc_block_residency{}.copies)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BlockResidency{}.Flags) - unsafe.Offsetof(C.kvc_block_residency{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BlockResidency{}.Flags) - unsafe.Sizeof(C.kvc_block_residency{}.flags)]struct{}{}

	// kvc_residency_result
	_ [0]struct{} = [unsafe.Sizeof(ResidencyResult{}) - unsafe.Sizeof(C.kvc_residency_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResidencyResult{}.Status) - unsafe.Offsetof(C.kvc_residency_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResidencyResult{}.Status) - unsafe.Sizeof(C.kvc_residency_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResidencyResult{}.ResidentBlocks) - unsafe.Offsetof(C.kvc_residency_result{}.resident_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResidencyResult{}.ResidentBlocks) - unsafe.Sizeof(C.kvc_residency_result{}.resident_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(ResidencyResult{}.FirstBlock) - unsafe.Offsetof(C.kvc_residency_result{}.first_block)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(ResidencyResult{}.FirstBlock) - unsafe.Sizeof(C.kvc_residency_result{}.first_block)]struct{}{}

	// kvc_retain_item
	_ [0]struct{} = [unsafe.Sizeof(RetainItem{}) - unsafe.Sizeof(C.kvc_retain_item{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(RetainItem{}.Sequence) - unsafe.Offsetof(C.kvc_retain_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(RetainItem{}.Sequence) - unsafe.Sizeof(C.kvc_retain_item{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(RetainItem{}.FirstToken) - unsafe.Offsetof(C.kvc_retain_item{}.first_token)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(RetainItem{}.FirstToken) - unsafe.Sizeof(C.kvc_retain_item{}.first_token)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(RetainItem{}.EndToken) - unsafe.Offsetof(C.kvc_retain_item{}.end_token)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(RetainItem{}.EndToken) - unsafe.Sizeof(C.kvc_retain_item{}.end_token)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(RetainItem{}.ExpiresNs) - unsafe.Offsetof(C.kvc_retain_item{}.expires_ns)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(RetainItem{}.ExpiresNs) - unsafe.Sizeof(C.kvc_retain_item{}.expires_ns)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(RetainItem{}.Priority) - unsafe.Offsetof(C.kvc_retain_item{}.priority)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(RetainItem{}.Priority) - unsafe.Sizeof(C.kvc_retain_item{}.priority)]struct{}{}

	// kvc_pin_result
	_ [0]struct{} = [unsafe.Sizeof(PinResult{}) - unsafe.Sizeof(C.kvc_pin_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(PinResult{}.Status) - unsafe.Offsetof(C.kvc_pin_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(PinResult{}.Status) - unsafe.Sizeof(C.kvc_pin_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(PinResult{}.PinnedBlocks) - unsafe.Offsetof(C.kvc_pin_result{}.pinned_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(PinResult{}.PinnedBlocks) - unsafe.Sizeof(C.kvc_pin_result{}.pinned_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(PinResult{}.Pin) - unsafe.Offsetof(C.kvc_pin_result{}.pin)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(PinResult{}.Pin) - unsafe.Sizeof(C.kvc_pin_result{}.pin)]struct{}{}

	// kvc_drop_item
	_ [0]struct{} = [unsafe.Sizeof(DropItem{}) - unsafe.Sizeof(C.kvc_drop_item{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(DropItem{}.Scope) - unsafe.Offsetof(C.kvc_drop_item{}.scope)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(DropItem{}.Scope) - unsafe.Sizeof(C.kvc_drop_item{}.scope)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(DropItem{}.Flags) - unsafe.Offsetof(C.kvc_drop_item{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(DropItem{}.Flags) - unsafe.Sizeof(C.kvc_drop_item{}.flags)]struct{}{}

	// kvc_drop_result
	_ [0]struct{} = [unsafe.Sizeof(DropResult{}) - unsafe.Sizeof(C.kvc_drop_result{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(DropResult{}.Status) - unsafe.Offsetof(C.kvc_drop_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(DropResult{}.Status) - unsafe.Sizeof(C.kvc_drop_result{}.status)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(DropResult{}.DroppedScopes) - unsafe.Offsetof(C.kvc_drop_result{}.dropped_scopes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(DropResult{}.DroppedScopes) - unsafe.Sizeof(C.kvc_drop_result{}.dropped_scopes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(DropResult{}.DroppedBlocks) - unsafe.Offsetof(C.kvc_drop_result{}.dropped_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(DropResult{}.DroppedBlocks) - unsafe.Sizeof(C.kvc_drop_result{}.dropped_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(DropResult{}.DetachedSequences) - unsafe.Offsetof(C.kvc_drop_result{}.detached_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(DropResult{}.DetachedSequences) - unsafe.Sizeof(C.kvc_drop_result{}.detached_sequences)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(DropResult{}.FirstEvicted) - unsafe.Offsetof(C.kvc_drop_result{}.first_evicted)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(DropResult{}.FirstEvicted) - unsafe.Sizeof(C.kvc_drop_result{}.first_evicted)]struct{}{}

	// kvc_histograms
	_ [0]struct{} = [unsafe.Sizeof(Histograms{}) - unsafe.Sizeof(C.kvc_histograms{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Histograms{}.StructSize) - unsafe.Offsetof(C.kvc_histograms{}.struct_size)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Histograms{}.StructSize) - unsafe.Sizeof(C.kvc_histograms{}.struct_size)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Histograms{}.IdleAtReuse) - unsafe.Offsetof(C.kvc_histograms{}.idle_at_reuse)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Histograms{}.IdleAtReuse) - unsafe.Sizeof(C.kvc_histograms{}.idle_at_reuse)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Histograms{}.IdleAtEviction) - unsafe.Offsetof(C.kvc_histograms{}.idle_at_eviction)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Histograms{}.IdleAtEviction) - unsafe.Sizeof(C.kvc_histograms{}.idle_at_eviction)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Histograms{}.ReusesAtEviction) - unsafe.Offsetof(C.kvc_histograms{}.reuses_at_eviction)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Histograms{}.ReusesAtEviction) - unsafe.Sizeof(C.kvc_histograms{}.reuses_at_eviction)]struct{}{}
)
