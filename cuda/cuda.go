// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cuda

// #cgo CPPFLAGS: -I${SRCDIR}/.. -I${SRCDIR}/../native/include
// #cgo CXXFLAGS: -std=c++17 -O3 -DNDEBUG -fvisibility=hidden
// #cgo LDFLAGS: -lpthread -ldl
import "C"

import (
	// Embedding makes the go command see every source: without it an edited
	// header or kernel gives a stale cached build.
	"embed"

	// The sources include the core's headers.
	_ "github.com/kvcast/kvcast/native"
)

//go:embed kernels src unity.cpp
var _ embed.FS
