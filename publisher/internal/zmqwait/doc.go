// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package zmqwait waits for ZeroMQ sockets, for a time that signals do not
// stretch.
package zmqwait
