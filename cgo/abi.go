// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #cgo CPPFLAGS: -I${SRCDIR}/../native/include
// #include "kvcast/kvcast.h"
import "C"

import (
	// These two packages compile and link what the header declares. Because
	// they embed their sources, an edited header rebuilds this package too.
	_ "github.com/kvcast/kvcast/cuda"
	_ "github.com/kvcast/kvcast/native"
	_ "github.com/kvcast/kvcast/sink"
)

// ABIVersion is the KVC_ABI_VERSION that this package was written for.
const ABIVersion = 1

// The header must be of that version: fails to compile otherwise.
var _ [0]struct{} = [C.KVC_ABI_VERSION - ABIVersion]struct{}{}

// LinkedABIVersion is the version that the linked library was built with. It
// differs from ABIVersion only if the program links a foreign libkvcast.
func LinkedABIVersion() uint32 { return uint32(C.kvc_abi_version()) }

// Version is the library's version, "MAJOR.MINOR.PATCH".
func Version() string { return C.GoString(C.kvc_version()) }

// SHA256Backend names the SHA-256 code chosen at run time.
func SHA256Backend() string { return C.GoString(C.kvc_sha256_backend()) }

// LiveHandles counts what is alive in the process.
type LiveHandles struct {
	Managers  uint64
	Sequences uint64
	Streams   uint64
	Snapshots uint64
}

// GetLiveHandles reads the counters; safe at any time from any goroutine.
func GetLiveHandles() LiveHandles {
	var c C.kvc_live_handles
	C.kvc_live_handles_get(&c)
	return LiveHandles{
		Managers:  uint64(c.managers),
		Sequences: uint64(c.sequences),
		Streams:   uint64(c.streams),
		Snapshots: uint64(c.snapshots),
	}
}
