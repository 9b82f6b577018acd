// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package layout holds the rules that keep the tree in shape: both builds compile the same sources and the go command
// sees each of them; layers use only what is below them; foreign libraries stay behind the one file that wraps them;
// every source file names its licence; what a test makes is ended right behind. The package's tests apply the rules to this repository, and to small wrong
// trees, so that each rule is known to bite.
package layout
