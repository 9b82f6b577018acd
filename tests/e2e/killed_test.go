// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/tests/seeds"
)

// Workers are killed with everything under way, and others take their place at once:
// other blocks, other sizes of record buffers, other encodings, numbers that begin
// anew or go on. All who listen, disturbed as they are and one of them killed like that,
// too, come to know what the living one holds.
func TestMirrorsOutliveWorkers(t *testing.T) {
	t.Parallel()
	drawn := seeds.Of(t)
	random := rand.New(rand.NewPCG(drawn, 99))
	left := amount(killOperations, shortKillOperations, longKillOperations)
	folder := shortTemp(t)
	var c *crowd
	var reader *readerProcess
	form := drawWorker(random, random.IntN(4)).Form
	lives := 0
	for ; left > 0 || lives < 2; lives++ {
		config := drawWorker(random, lives)
		config.Form = form
		config.Endpoint, config.ReplayEndpoint = "ipc://"+filepath.Join(folder, "s"), "ipc://"+filepath.Join(folder, "r")
		w := newWorkerProcess(t, config)
		if c == nil {
			c = newCrowd(t, rand.New(rand.NewPCG(drawn, 98)), w.endpoint, w.replay)
		}
		if reader == nil {
			reader = newReaderProcess(t, subscribe.FollowerOptions{
				Client: subscribe.ClientOptions{Endpoint: w.endpoint}, Replay: w.replay, ReplayTimeout: 2 * time.Second})
		}
		told := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Fatalf("life %d, %+v: %s: %v", lives, config, what, err)
			}
		}
		// What the living one holds is known to all.
		for range 1 + random.IntN(3) {
			n := 1 + random.IntN(1500)
			left -= n
			w.order(order{Run: n, Pause: random.IntN(4) == 0})
			for !w.report().Done {
				told("disturbed", c.disturb())
			}
		}
		q := w.quiet()
		told("quiet", c.settle(q))
		reader.settle(q)
		// It goes with a loss that nobody can know the size of.
		n := 10 + random.IntN(1500)
		left -= n
		w.order(order{Run: 1 << 20, Pause: random.IntN(4) == 0})
		for w.report().Made < n {
			told("before the end", c.disturb())
		}
		w.kill()
		if random.IntN(2) == 0 {
			reader.kill()
			reader = nil
		}
		told("after the end", c.disturb())
	}
	seen := crowdCounts{}
	seen.add(c)
	t.Logf("%d lives, %d messages dropped", lives, c.dropper.dropped)
	seen.log(t)
	for name, counts := range seen {
		if counts.resets+counts.gaps < lives-1 && name != "dies" {
			t.Errorf("who %s has not noticed %d ends: %+v", name, lives-1, counts)
		}
	}
	seen.judge(t)
}
