// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
)

// Close keeps its time with a record buffer that is full, blocks that wait for
// room in it, a scheduler that goes on, and a subscriber that does not read.
func TestCloseWithFullRing(t *testing.T) {
	o := localOptions(t)
	o.Warn = nil
	o.ShutdownTimeout = 200 * time.Millisecond
	// One block in each batch: the drain is as slow as it can be.
	o.MaxBatchEvents, o.MaxBatchBlocks, o.MaxBlocksPerEvent, o.MaxEntries = 1, 1, 1, 1000
	var within, beyond int
	for within < 2 && beyond < 2 {
		stream, manager := newAllocator(t, o.StreamConfig(), bindings.Config{TokensPerBlock: 16, CapacityBlocks: 20000})
		tokens := make([]uint32, 16*10000)
		for i := range tokens {
			tokens[i] = uint32(i)
		}
		compute(t, manager, tokens)
		p := mustNew(t, o)
		if err := p.Attach(stream); err != nil {
			t.Fatal(err)
		}
		mustStart(t, p)
		dead := newRawSubscriber(t, p.Endpoint())
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for seed := uint32(1 << 20); ; seed += 16 * 100 {
				select {
				case <-stop:
					return
				default:
				}
				prompt := make([]uint32, 16*100)
				for i := range prompt {
					prompt[i] = (seed + uint32(i)) & (1<<31 - 1)
				}
				if err := serve(manager, bindings.Prompt{Tokens: prompt}); err != nil {
					t.Error(err)
					return
				}
			}
		}()
		eventually(t, "blocks that wait", func() bool {
			s := p.Stats()
			return s.Sink.PendingBlocks > 0 && s.PublishedBatches > 100
		})
		begin := time.Now()
		p.Close()
		took := time.Since(begin)
		close(stop)
		<-stopped
		dead.Close()
		checkBalance(t, p.Stats(), true)
		if s := p.Stats(); s.PublishedBytes == 0 || s.Sink.PendingBlocks == 0 {
			t.Errorf("nothing was left: %+v", s.Sink)
		}
		t.Logf("Close took %v with %d blocks pending", took, p.Stats().Sink.PendingBlocks)
		if took <= o.ShutdownTimeout+closeGrace {
			within++
		} else {
			beyond++
		}
	}
	if beyond == 2 {
		t.Errorf("Close took more than %v twice", o.ShutdownTimeout+closeGrace)
	}
}
