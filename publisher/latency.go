// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import "time"

// latencyBounds are the upper bounds of a Latency's buckets but the last, which
// has none: from what an empty call takes to what a machine that stands still
// does.
var latencyBounds = [...]time.Duration{
	10 * time.Microsecond, 25 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
}

// LatencyBounds returns the upper bounds of the buckets of a Latency, but for the
// last one.
func LatencyBounds() []time.Duration { return append([]time.Duration(nil), latencyBounds[:]...) }

// Latency is a histogram of how long something took.
type Latency struct {
	// Count is how often, Sum how long in all.
	Count uint64
	Sum   time.Duration
	// Buckets counts what took at most the bound of LatencyBounds with the same
	// index and more than the one before; the last bucket is what took longer.
	Buckets [len(latencyBounds) + 1]uint64
}

func (l *Latency) add(d time.Duration) {
	l.Count++
	l.Sum += d
	i := 0
	for i < len(latencyBounds) && d > latencyBounds[i] {
		i++
	}
	l.Buckets[i]++
}
