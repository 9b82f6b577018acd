// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package cgo is the raw layer over the C ABI in native/include/kvcast/kvcast.h:
// one Go function for each kvc_ function and one Go struct for each C struct,
// with the same layout (checked by the compiler, see layout.go).
//
// It has no policy: no lock, no goroutine, no finalizer, no retry, no
// allocation of its own. Statuses are returned as they come, slices are handed
// over as flat pointers, and what the header says about threads, ownership and
// lifetimes holds unchanged. No C type appears in an exported signature.
//
// The package is public because other packages of the module build on it, but
// it follows the C ABI and is not stable. Programs use package bindings.
package cgo
