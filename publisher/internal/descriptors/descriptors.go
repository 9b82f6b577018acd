// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package descriptors tells whether a process may still open what ZeroMQ is about to.
package descriptors

import "fmt"

// Needed is what a socket in a context of its own takes, with its connections to come:
// libzmq 4.3.4 opens five descriptors for the context's two threads (two eventfd, two
// epoll and one more eventfd to end them) and one for each socket, a monitor and an
// authenticator among them; then there are a listener, the look at who is connected, and
// room for some connections. Without any of the epoll descriptors libzmq aborts the process.
const Needed = 16

// Short returns why a socket must not be opened now, "" when there is nothing against it
// or the system does not tell. Whoever else opens files at the same time is not foreseen.
func Short() string {
	limit, open, ok := count()
	if !ok || open+Needed <= limit {
		return ""
	}
	return fmt.Sprintf("%d of %d open files are in use, and ZeroMQ ends the process without %d more; raise the limit (ulimit -n)",
		open, limit, Needed)
}
