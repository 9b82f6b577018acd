// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"fmt"

	"github.com/kvcast/kvcast/cgo"
)

// Cause says why there is no device that can be used, see Error.Cause. As an error it is what
// errors.Is finds in one: errors.Is(err, bindings.CauseAbsent).
type Cause uint32

// The causes of ErrNoDevice. The numbers are those of the C ABI and never change; others may be
// added. Where the driver has refused to be initialised its number is Error.SystemCode.
const (
	// CauseNone: the error is none of a missing device.
	CauseNone = Cause(cgo.CauseNone)
	// CauseNotOpened: OpenCUDA has not been called with success.
	CauseNotOpened = Cause(cgo.CauseNotOpened)
	// CauseAbsent: there is no libcuda on this machine.
	CauseAbsent = Cause(cgo.CauseAbsent)
	// CauseBroken: there is a libcuda that does not load, or is no driver.
	CauseBroken = Cause(cgo.CauseBroken)
	// CauseTooOld: the driver is older than CUDA 11.8.
	CauseTooOld = Cause(cgo.CauseTooOld)
	// CauseStub: the toolkit's stub library is in the driver's place.
	CauseStub = Cause(cgo.CauseStub)
	// CauseForbidden: this process may not open the library, or the GPUs' files.
	CauseForbidden = Cause(cgo.CauseForbidden)
	// CauseNotReady: the fabric manager is not up (802).
	CauseNotReady = Cause(cgo.CauseNotReady)
	// CauseMismatch: library and kernel module are of different releases (803).
	CauseMismatch = Cause(cgo.CauseMismatch)
	// CauseIncompatible: forward compatibility on a GPU that has none (804).
	CauseIncompatible = Cause(cgo.CauseIncompatible)
	// CauseNoGPU: there is a driver, but no GPU that this process may see.
	CauseNoGPU = Cause(cgo.CauseNoGPU)
	// CauseMPS: the Multi-Process Service does not serve this process (805 to 809).
	CauseMPS = Cause(cgo.CauseMPS)
	// CauseInitFailed: the driver could not be initialised for another reason.
	CauseInitFailed = Cause(cgo.CauseInitFailed)
	// CauseForked: the driver was opened by the process that this one was forked from.
	CauseForked = Cause(cgo.CauseForked)
)

var causes = [...]string{
	CauseNone:         "no cause",
	CauseNotOpened:    "not opened",
	CauseAbsent:       "no driver",
	CauseBroken:       "broken driver",
	CauseTooOld:       "driver too old",
	CauseStub:         "stub library",
	CauseForbidden:    "forbidden",
	CauseNotReady:     "fabric manager not ready",
	CauseMismatch:     "library and kernel module differ",
	CauseIncompatible: "no forward compatibility",
	CauseNoGPU:        "no GPU",
	CauseMPS:          "no MPS service",
	CauseInitFailed:   "initialisation failed",
	CauseForked:       "forked",
}

// Error implements error: a short name.
func (c Cause) Error() string {
	if int64(c) < int64(len(causes)) {
		return causes[c]
	}
	return fmt.Sprintf("cause %d", uint32(c))
}
