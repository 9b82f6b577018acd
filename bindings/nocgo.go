// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package bindings

// Without cgo there is no allocator to bind. The line below does not compile,
// and the compiler's message says what to do.
const _ bool = "kvcast links a C++ allocator: build with CGO_ENABLED=1 and a C++ compiler, " +
	"or use package bindings/event, which needs neither"
