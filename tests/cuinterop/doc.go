// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package cuinterop has the test of cuda/cuinterop against the rest of kvcast.
// It needs the build tag cuda, as what it tests does: see make cuinterop-check.
package cuinterop
