// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package descriptors

// Where the system does not tell how many are open, nothing is refused.
func count() (limit, open uint64, ok bool) { return 0, 0, false }
