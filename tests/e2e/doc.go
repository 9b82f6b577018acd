// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e runs the command line tool as its users do: replay and tap as
// separate processes, real sockets between them, files compared byte for byte.
// What the tool reports is held against simulations and counts of this package
// that share no code with it.
package e2e
