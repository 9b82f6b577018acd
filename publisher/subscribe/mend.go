// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import "time"

// A history that begins behind what is known leaves a gap, and what it lost may be wrong
// for good: a block that went is still there. It happens when a snapshot has been outrun:
// the history from just behind it has left the publisher's ring by the time it is asked
// for, and too few numbers are left from there on for another snapshot. Asked from 0
// there is room for one. So where there have been snapshots, the whole state is asked for
// behind a gap, while live messages go on, and taken in when it is whole.

// mendTries is how often that is tried for one gap. The pauses between them are doubled
// from rebuildPause on, and so is the pause in front of the first try when gap follows gap,
// up to rebuildPauseMax.
const mendTries = 5

// mending is what is to be done about a gap.
type mending struct {
	// left is how many tries are left; 0: there is nothing to do.
	left int
	// at is when the next one is due; zero: pause from when that is looked at.
	at    time.Time
	pause time.Duration
}

// mendSoon is called for a gap.
func (t *tracker) mendSoon() {
	if t.asks && !t.degraded && t.snapshots {
		t.mend.left, t.mend.at = mendTries, time.Time{}
	}
}

func (t *tracker) mendDue(now time.Time) bool {
	if t.mend.left == 0 || t.degraded {
		return false
	}
	if t.mend.at.IsZero() {
		t.mend.at = now.Add(t.mend.pause)
	}
	return !now.Before(t.mend.at)
}

// whole says that an answer that begins with a batch holds all there is.
func whole(first *Message) bool { return first.Seq == 0 || look(first.Payload).snapshot }

// mended is called for the beginning of such an answer.
func (t *tracker) mended() {
	t.mend.left = 0
	t.mend.pause = min(max(2*t.mend.pause, rebuildPause), rebuildPauseMax)
}

// mendLater is called when a try has failed.
func (t *tracker) mendLater(now time.Time) {
	if t.mend.left--; t.mend.left > 0 {
		t.mend.at = now.Add(rebuildPause << (mendTries - 1 - t.mend.left))
	}
}
