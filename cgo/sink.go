// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // One drain hands over a whole batch. The library writes the caller's struct
// // (the arrays it names are its own) and keeps no pointer to it; while it heals
// // it takes the manager's lock, but it never calls back into the program.
// #cgo noescape kvc_stream_drain
// #cgo nocallback kvc_stream_drain
// // Statistics are polled; the same holds for the struct they fill.
// #cgo noescape kvc_stream_stats_get
// #cgo nocallback kvc_stream_stats_get
import "C"

import "unsafe"

// The wire hash forms.
const (
	HashSigned64   uint32 = C.KVC_HASH_SIGNED64
	HashUnsigned64 uint32 = C.KVC_HASH_UNSIGNED64
	HashPortable63 uint32 = C.KVC_HASH_PORTABLE63
	HashBytes      uint32 = C.KVC_HASH_BYTES
)

// What a stream tells of multimodal blocks.
const (
	MultimodalSuppress uint32 = C.KVC_MULTIMODAL_SUPPRESS
	MultimodalAnnounce uint32 = C.KVC_MULTIMODAL_ANNOUNCE
)

// Kinds and flags of events, media.
const (
	EventStored  uint32 = C.KVC_EVENT_STORED
	EventRemoved uint32 = C.KVC_EVENT_REMOVED
	EventCleared uint32 = C.KVC_EVENT_CLEARED

	EventHasParent uint32 = C.KVC_EVENT_HAS_PARENT

	MediumGPU     uint16 = C.KVC_MEDIUM_GPU
	MediumCPU     uint16 = C.KVC_MEDIUM_CPU
	MediumStorage uint16 = C.KVC_MEDIUM_STORAGE
)

// StreamConfig is kvc_stream_config.
type StreamConfig struct {
	StructSize        uint32
	HashForm          uint32
	MaxEntries        uint32
	MaxBlocksPerEvent uint32
	Multimodal        uint32
}

// Init sets the struct size and the library's defaults.
func (c *StreamConfig) Init() {
	C.kvc_stream_config_init((*C.kvc_stream_config)(unsafe.Pointer(c)))
}

// Stream is a kvc_stream*. The zero value is the null handle.
type Stream struct{ c *C.kvc_stream }

// StreamCreate creates a stream. The handle is valid only with OK.
func StreamCreate(config *StreamConfig, err *Error) (Stream, Status) {
	var s Stream
	status := C.kvc_stream_create((*C.kvc_stream_config)(unsafe.Pointer(config)), &s.c, err.c())
	return s, Status(status)
}

// Destroy detaches the stream and frees it.
func (s Stream) Destroy() { C.kvc_stream_destroy(s.c) }

// Event is kvc_event.
type Event struct {
	Kind             uint32
	Flags            uint32
	Scope            uint32
	BlockSize        uint32
	HashOffset       uint64
	HashCount        uint64
	TokenOffset      uint64
	TokenCount       uint64
	ParentHash       uint64
	Group            uint16
	Medium           uint16
	MultimodalCount  uint32
	MultimodalOffset uint64
}

// EventScope is kvc_event_scope.
type EventScope struct {
	Parts          uint32
	LoRANameSize   uint32
	LoRANameOffset uint64
	LoRAID         uint64
}

// BorrowedBatch is kvc_borrowed_batch. Everything it points to is the
// library's and valid until the next Drain or Destroy of the same stream.
type BorrowedBatch struct {
	events          *Event
	hashes          *uint64
	reasons         *byte
	digests         *byte
	parentDigests   *byte
	tokens          *uint32
	scopes          *EventScope
	strings         *byte
	multimodal      *byte
	eventCount      uint64
	hashCount       uint64
	tokenCount      uint64
	scopeCount      uint64
	stringSize      uint64
	multimodalCount uint64
	RemainingBytes  uint64
	PendingBlocks   uint64
}

// Events is borrowed.
func (b *BorrowedBatch) Events() []Event { return unsafe.Slice(b.events, b.eventCount) }

// Hashes is borrowed.
func (b *BorrowedBatch) Hashes() []uint64 { return unsafe.Slice(b.hashes, b.hashCount) }

// Tokens is borrowed.
func (b *BorrowedBatch) Tokens() []uint32 { return unsafe.Slice(b.tokens, b.tokenCount) }

// Scopes is borrowed.
func (b *BorrowedBatch) Scopes() []EventScope { return unsafe.Slice(b.scopes, b.scopeCount) }

// Strings is borrowed; names are cut out of it.
func (b *BorrowedBatch) Strings() []byte { return unsafe.Slice(b.strings, b.stringSize) }

// Multimodal is borrowed: the digests of all events' digest tokens.
func Multimodal[T ~[32]byte](b *BorrowedBatch) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(b.multimodal)), b.multimodalCount)
}

// Reasons is borrowed: one Evicted* per hash of a removed block, 0 for a stored
// one.
func Reasons[T ~uint8](b *BorrowedBatch) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(b.reasons)), b.hashCount)
}

// Digests is borrowed: one digest per hash, nil unless the form is HashBytes.
func Digests[T ~[32]byte](b *BorrowedBatch) []T {
	if b.digests == nil {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(b.digests)), b.hashCount)
}

// ParentDigests is borrowed: one digest per event, nil unless the form is
// HashBytes.
func ParentDigests[T ~[32]byte](b *BorrowedBatch) []T {
	if b.parentDigests == nil {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(b.parentDigests)), b.eventCount)
}

// Drain drains one batch into out, which must be an allocation of its own: cgo
// checks that no Go pointer stands beside the pointers that the struct holds.
func (s Stream) Drain(maxEvents, maxBlocks uint64, out *BorrowedBatch, err *Error) Status {
	return Status(C.kvc_stream_drain(s.c, C.uint64_t(maxEvents), C.uint64_t(maxBlocks),
		(*C.kvc_borrowed_batch)(unsafe.Pointer(out)), err.c()))
}

// StreamStats is kvc_stream_stats.
type StreamStats struct {
	StructSize                 uint32
	Attached                   uint32
	StoredBlocks               uint64
	RemovedBlocks              uint64
	ClearedBlocks              uint64
	Clears                     uint64
	DroppedEvents              uint64
	DeferredBlocks             uint64
	HealedBlocks               uint64
	DeferredEvictedBlocks      uint64
	PendingBlocks              uint64
	UnannouncedRemovals        uint64
	PartialBlocksSuppressed    uint64
	AnnouncedBlocks            uint64
	HashCollisions             uint64
	SupersededRecords          uint64
	DrainedBatches             uint64
	DrainedEvents              uint64
	DrainedStoredBlocks        uint64
	DrainedRemovedBlocks       uint64
	MirrorBlocks               uint64
	BufferBytes                uint64
	BufferUsedBytes            uint64
	MultimodalBlocksSuppressed uint64
	SuppressedBlocks           uint64
	OldestDeferredNs           uint64
	RemovedCapacityBlocks      uint64
	RemovedTTLBlocks           uint64
	RemovedEndedBlocks         uint64
	RemovedScopeBlocks         uint64
}

// Init sets the struct size.
func (s *StreamStats) Init() {
	C.kvc_stream_stats_init((*C.kvc_stream_stats)(unsafe.Pointer(s)))
}

// Stats fills out, which must have been initialised.
func (s Stream) Stats(out *StreamStats, err *Error) Status {
	return Status(C.kvc_stream_stats_get(s.c, (*C.kvc_stream_stats)(unsafe.Pointer(out)), err.c()))
}
