// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package sink compiles the C++ event sink and projector into Go programs. It
// has no Go API.
//
// With CGO_CXXFLAGS=-DKVC_POISON_DRAIN each drain overwrites the batch before
// it, so that a stale use shows. NDEBUG keeps other builds from doing that.
package sink

// #cgo CPPFLAGS: -I${SRCDIR}/../native/include -I${SRCDIR}/..
// #cgo CXXFLAGS: -std=c++17 -O3 -DNDEBUG -fvisibility=hidden
// #cgo LDFLAGS: -lpthread
import "C"

import (
	"embed"

	// The sink is written against the core's headers and linked with it.
	_ "github.com/kvcast/kvcast/native"
)

//go:embed src unity.cpp
var _ embed.FS
