// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"fmt"

	zmq "github.com/pebbe/zmq4"
)

// ZMQVersion returns the version of the ZeroMQ library that is linked.
func ZMQVersion() string {
	major, minor, patch := zmq.Version()
	return fmt.Sprintf("%d.%d.%d", major, minor, patch)
}

// ZMQHasCurve reports whether that library speaks CURVE.
func ZMQHasCurve() bool { return zmq.HasCurve() }
