// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo_test

import (
	"strings"
	"testing"

	"github.com/kvcast/kvcast/cgo"
)

func TestLinkedLibrary(t *testing.T) {
	if got := cgo.LinkedABIVersion(); got != cgo.ABIVersion {
		t.Errorf("ABI version %d is linked, the package is written for %d", got, cgo.ABIVersion)
	}
	if v := cgo.Version(); strings.Count(v, ".") != 2 {
		t.Errorf("version %q", v)
	}
	if b := cgo.SHA256Backend(); b != "sha-ni" && b != "portable" {
		t.Errorf("SHA-256 backend %q", b)
	}
}

// TestStatuses: the numbers are the ABI's for ever, and each has a name.
func TestStatuses(t *testing.T) {
	names := map[string]bool{}
	for want, s := range []cgo.Status{
		cgo.OK, cgo.InvalidArgument, cgo.BadState, cgo.StaleHandle, cgo.NeverFits, cgo.NotNow,
		cgo.Busy, cgo.End, cgo.OutOfMemory, cgo.DeviceError, cgo.Corrupt, cgo.Internal, cgo.NoDevice,
	} {
		if int(s) != want {
			t.Errorf("status %d, want %d", s, want)
		}
		names[s.Name()] = true
	}
	if len(names) != 13 || names["unknown status"] {
		t.Errorf("names %v", names)
	}
	if got := cgo.Status(99).Name(); got != "unknown status" {
		t.Errorf("status 99 is called %q", got)
	}
}

// TestError: the C side fills the Go struct, and nil is allowed.
func TestError(t *testing.T) {
	var config cgo.Config
	config.Init()
	config.TokensPerBlock = 0
	var e cgo.Error
	if _, s := cgo.ManagerCreate(&config, cgo.Stream{}, &e); s != cgo.InvalidArgument ||
		e.Status != s || !strings.Contains(e.Text(), "tokens_per_block") {
		t.Errorf("status %d, error %d %q", s, e.Status, e.Text())
	}
	if _, s := cgo.ManagerCreate(&config, cgo.Stream{}, nil); s != cgo.InvalidArgument {
		t.Errorf("status %d", s)
	}
	cgo.Stream{}.Destroy() // null is allowed
	if s := (cgo.Manager{}).Destroy(nil); s != cgo.OK {
		t.Errorf("status %d", s)
	}
	if live := cgo.GetLiveHandles(); live != (cgo.LiveHandles{}) {
		t.Errorf("live handles %+v", live)
	}
}
