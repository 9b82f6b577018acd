// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"testing"
	"time"
)

// Each time falls into the first bucket whose bound it does not exceed.
func TestLatency(t *testing.T) {
	bounds := LatencyBounds()
	var l Latency
	for i, b := range bounds {
		l.add(b)
		l.add(b + 1)
		if i > 0 && bounds[i-1] >= b {
			t.Errorf("bound %d is not above the one before", i)
		}
	}
	sum := time.Duration(0)
	for i, n := range l.Buckets {
		want := uint64(2)
		if i == 0 || i == len(bounds) {
			want = 1
		}
		if n != want {
			t.Errorf("bucket %d has %d, want %d", i, n, want)
		}
	}
	for _, b := range bounds {
		sum += 2*b + 1
	}
	if l.Count != uint64(2*len(bounds)) || l.Sum != sum {
		t.Errorf("%d, %v, want %v", l.Count, l.Sum, sum)
	}
	bounds[0] = 0
	if LatencyBounds()[0] == 0 {
		t.Error("the bounds can be changed from outside")
	}
}
