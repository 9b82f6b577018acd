// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // Statistics are polled: the library fills the struct before it returns and
// // keeps no pointer to it, and it never calls back into the program.
// #cgo noescape kvc_manager_stats_get
// #cgo nocallback kvc_manager_stats_get
import "C"

import "unsafe"

// The flags of a Config.
const (
	ConfigPoison         = C.KVC_CONFIG_POISON
	ConfigCallersContext = C.KVC_CONFIG_CALLERS_CONTEXT
)

// The policies of eviction.
const (
	PolicyLRU  = C.KVC_POLICY_LRU
	PolicyLRFU = C.KVC_POLICY_LRFU
)

// The kinds of devices.
const (
	DeviceHost = C.KVC_DEVICE_HOST
	DeviceCUDA = C.KVC_DEVICE_CUDA
)

// Values of kvc_copy_method.
const (
	CopyCalibrated = C.KVC_COPY_CALIBRATED
	CopyPublished  = C.KVC_COPY_PUBLISHED
	CopyEngine     = C.KVC_COPY_ENGINE
	CopyKernel     = C.KVC_COPY_KERNEL
)

// Config is kvc_config.
type Config struct {
	StructSize     uint32
	Flags          uint32
	Device         uint32
	TokensPerBlock uint32
	CapacityBlocks uint32
	MaxSequences   uint32
	PageBytes      uint64
	Seed           uint64

	ResumeGatePermille uint32
	Policy             uint32
	LRFUTau            uint32
	MaxPinnedPages     uint32
	LRFUGhosts         uint32
	DeviceOrdinal      uint32
	MaxDigests         uint32
	Copies             uint32
	MaxPendingBlocks   uint32
	PartialReuse       uint32
	MaxBlocks          uint32
	MinBlocks          uint32
}

// Init sets the struct size and the library's defaults.
func (c *Config) Init() { C.kvc_config_init((*C.kvc_config)(unsafe.Pointer(c))) }

// Manager is a kvc_manager*. The zero value is the null handle.
type Manager struct{ c *C.kvc_manager }

// ManagerCreate creates a manager; stream may be the null handle. The handle
// is valid only with OK.
func ManagerCreate(config *Config, stream Stream, err *Error) (Manager, Status) {
	var m Manager
	s := C.kvc_manager_create((*C.kvc_config)(unsafe.Pointer(config)), stream.c, &m.c, err.c())
	return m, Status(s)
}

// Destroy seals the stream and frees the manager, unless it is Busy.
func (m Manager) Destroy(err *Error) Status {
	return Status(C.kvc_manager_destroy(m.c, err.c()))
}

// Reset empties the tree.
func (m Manager) Reset(err *Error) Status { return Status(C.kvc_manager_reset(m.c, err.c())) }

// Check verifies all invariants.
func (m Manager) Check(err *Error) Status { return Status(C.kvc_manager_check(m.c, err.c())) }

// Stats is kvc_stats.
type Stats struct {
	StructSize         uint32
	_                  uint32
	TotalPages         uint64
	LivePages          uint64
	CachedPages        uint64
	FreePages          uint64
	QuarantinedPages   uint64
	LeavingPages       uint64
	PeakLivePages      uint64
	Blocks             uint64
	Roots              uint64
	Sequences          uint64
	CreatedSequences   uint64
	AskedBlocks        uint64
	MatchedBlocks      uint64
	StoredBlocks       uint64
	DeduplicatedBlocks uint64
	EvictedBlocks      uint64
	ResetBlocks        uint64
	Resets             uint64
	RefusedNotNow      uint64
	RefusedNeverFits   uint64
	MetadataBytes      uint64
	PrefaultNs         uint64

	SuspendedSequences uint64
	KeptPages          uint64
	ReclaimedPages     uint64
	RefusedGate        uint64
	CancelledSequences uint64
	ExpiredBlocks      uint64
	EvictedTTLBlocks   uint64
	EvictedEndedBlocks uint64
	Holds              uint64
	HeldPages          uint64

	DroppedBlocks        uint64
	Pins                 uint64
	PinnedPages          uint64
	PeakPinnedPages      uint64
	PeakQuarantinedPages uint64
	ForkedSequences      uint64
	Digests              uint64
	CopiedPages          uint64
	CopiedBytes          uint64

	PendingBlocks     uint64
	WaitingSequences  uint64
	MarkedBlocks      uint64
	CommittedMarks    uint64
	GivenUpMarks      uint64
	UnmarkedBlocks    uint64
	Waits             uint64
	PartialBlocks     uint64
	KeptPartialBlocks uint64
	PartialHits       uint64
	PartialHitTokens  uint64
	TargetPages       uint64
	DoomedPages       uint64
	MovedPages        uint64
	Resizes           uint64
	FailedResizes     uint64
	MappedBytes       uint64
	UnreturnedBytes   uint64
}

// HistogramSlots is KVC_HISTOGRAM_SLOTS.
const HistogramSlots = C.KVC_HISTOGRAM_SLOTS

// Histograms is kvc_histograms.
type Histograms struct {
	StructSize       uint32
	_                uint32
	IdleAtReuse      [HistogramSlots]uint64
	IdleAtEviction   [HistogramSlots]uint64
	ReusesAtEviction [HistogramSlots]uint64
}

// Init sets the struct size.
func (h *Histograms) Init() { C.kvc_histograms_init((*C.kvc_histograms)(unsafe.Pointer(h))) }

// Histograms fills out, which must have been initialised.
func (m Manager) Histograms(out *Histograms, err *Error) Status {
	return Status(C.kvc_manager_histograms_get(m.c, (*C.kvc_histograms)(unsafe.Pointer(out)),
		err.c()))
}

// Init sets the struct size.
func (s *Stats) Init() { C.kvc_stats_init((*C.kvc_stats)(unsafe.Pointer(s))) }

// Stats fills out, which must have been initialised.
func (m Manager) Stats(out *Stats, err *Error) Status {
	return Status(C.kvc_manager_stats_get(m.c, (*C.kvc_stats)(unsafe.Pointer(out)), err.c()))
}

// ResidentBlock is kvc_resident_block.
type ResidentBlock struct {
	Hash      uint64
	Announced uint32
	_         uint32
	Digest    [32]byte
}

// Resident writes the tree's blocks into blocks and returns their number,
// which may exceed len(blocks); then the status is InvalidArgument.
func (m Manager) Resident(form uint32, blocks []ResidentBlock, err *Error) (uint64, Status) {
	var count C.uint64_t
	s := C.kvc_manager_resident(m.c, C.kvc_hash_form(form), C.uint64_t(len(blocks)),
		(*C.kvc_resident_block)(unsafe.Pointer(unsafe.SliceData(blocks))), &count, err.c())
	return uint64(count), Status(s)
}
