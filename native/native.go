// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package native compiles the C++ core (page pool, prefix tree, sequences,
// host device) and its C ABI into Go programs. It has no Go API: package cgo
// calls the ABI, package bindings is what people use.
package native

// #cgo CPPFLAGS: -I${SRCDIR}/include -I${SRCDIR}/..
// #cgo CXXFLAGS: -std=c++17 -O3 -DNDEBUG -fvisibility=hidden
// #cgo LDFLAGS: -lpthread
import "C"

import (
	// Embedding makes the go command see every source: without it an edited
	// header gives a stale cached build.
	"embed"
)

//go:embed include/kvcast src unity.cpp
var _ embed.FS
