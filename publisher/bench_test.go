// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// windowed lets at most window batches be on their way: the receiver returns
// each. Without it a fast sender would fill its queue and drop.
type windowed struct {
	*recycled
	sent, limit atomic.Int64
}

func (w *windowed) Drain(int, int) (*bindings.Batch, error) {
	if w.sent.Load() >= w.limit.Load() {
		return w.empty, nil
	}
	w.sent.Add(1)
	return w.batch, nil
}

// BenchmarkEndToEnd drains, encodes and sends to a subscriber on loopback TCP
// that counts. encode-share is the time that encoding alone takes of the whole.
func BenchmarkEndToEnd(b *testing.B) {
	const tokens, blocks, window = 16, 8, 256
	for _, events := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("blocks=%d", events*blocks), func(b *testing.B) {
			src := &windowed{recycled: newRecycled(events, blocks, tokens)}
			src.limit.Store(window)
			o := DefaultOptions()
			o.Endpoint, o.WaitSubscribers, o.Topic = "tcp://127.0.0.1:0", 1, "kv"
			bound := make(chan string, 1)
			o.OnBound = func(endpoint string) { bound <- endpoint }
			p := mustNew(b, o)
			if err := p.Attach(src); err != nil {
				b.Fatal(err)
			}
			started := make(chan error, 1)
			go func() { started <- p.Start(context.Background()) }()
			s := newSubscriber(b, nil).connect(<-bound, "kv")
			if err := <-started; err != nil {
				b.Fatal(err)
			}
			receive := func() {
				for more := true; more; {
					if _, err := s.socket.RecvBytes(0); err != nil {
						b.Fatal(err)
					}
					more, _ = s.socket.GetRcvmore()
				}
			}
			receive() // the clear
			b.ReportAllocs()
			for b.Loop() {
				receive()
				if src.limit.Add(1)%(window/4) == 0 {
					src.flush()
				}
			}
			perBatch := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			count := float64(events * blocks)
			b.ReportMetric(count/perBatch*1e9, "blocks/s")
			b.ReportMetric(perBatch/count, "ns/block")
			b.ReportMetric(encodeTime(b, src.batch.Events)/perBatch, "encode-share")
			b.ReportMetric(float64(p.Stats().PublishedBytes)/float64(p.Stats().PublishedBatches)/count, "B/block")
		})
	}
}

// encodeTime is the time in ns that encoding one batch takes by itself.
func encodeTime(b *testing.B, events []event.Event) float64 {
	encoder, err := wire.NewEncoder(wire.Config{})
	if err != nil {
		b.Fatal(err)
	}
	var buffer []byte
	n := 0
	begin := time.Now()
	for ; time.Since(begin) < 50*time.Millisecond; n++ {
		buffer, _ = encoder.AppendBatch(buffer[:0], 1, events, 0)
	}
	return float64(time.Since(begin).Nanoseconds()) / float64(n)
}

// BenchmarkStep is the owner goroutine's work for one drained batch, into a
// socket nobody subscribes to (no copy) and into none.
func BenchmarkStep(b *testing.B) {
	for _, kind := range []Kind{KindZMQ, KindNull} {
		for _, events := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("%s/blocks=%d", kind, events*8), func(b *testing.B) {
				o := DefaultOptions()
				o.Kind, o.Endpoint, o.Topic = kind, "tcp://127.0.0.1:0", "kv"
				p := mustNew(b, o)
				tr := p.newTransport()
				if _, _, err := tr.open(context.Background()); err != nil {
					b.Fatal(err)
				}
				defer tr.close(0)
				encoder, _ := wire.NewEncoder(wire.Config{})
				src := newRecycled(events, 8, 16)
				src.left.Store(1 << 60)
				w := &owner{p: p, s: p.settings, transport: tr, encode: tr.wantsPayload(), encoder: encoder,
					source: src, validator: p.validator}
				b.ReportAllocs()
				for b.Loop() {
					w.step(time.Now())
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*events*8), "ns/block")
			})
		}
	}
}

// BenchmarkDelay is the time from the record of one event, with a wake-up, to
// its reception over loopback TCP.
func BenchmarkDelay(b *testing.B) {
	o := DefaultOptions()
	o.Endpoint = "tcp://127.0.0.1:0"
	p, src := mustNew(b, o), newFakeSource()
	if err := p.Attach(src); err != nil {
		b.Fatal(err)
	}
	mustStart(b, p)
	s := subscribe(b, p)
	ev := chain(1, 8)
	for b.Loop() {
		src.record(ev)
		src.flush()
		for range 3 {
			if _, err := s.socket.RecvBytes(zmq.Flag(0)); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkPublish is what a host pays for one event of 8 blocks.
func BenchmarkPublish(b *testing.B) {
	o := DefaultOptions()
	o.Kind = KindNull
	p := mustNew(b, o)
	mustStart(b, p)
	ev := newRecycled(1, 8, 16).batch.Events[0]
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Publish(ev); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAllocatorToSubscriber commits new chains of 64 blocks in a full pool
// (each evicts as many), and ends when the subscriber on loopback TCP has the
// last of their events: commit, record, drain with SHA-256, encode, send.
func BenchmarkAllocatorToSubscriber(b *testing.B) {
	const tokensPerBlock, blocks, capacity = 16, 64, 20000
	stream, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer stream.Close()
	manager, err := bindings.NewManager(bindings.Config{CapacityBlocks: capacity, Stream: stream})
	if err != nil {
		b.Fatal(err)
	}
	defer manager.Close()
	o := DefaultOptions()
	o.Endpoint, o.WaitSubscribers, o.Topic = "tcp://127.0.0.1:0", 1, "kv"
	bound := make(chan string, 1)
	o.OnBound = func(endpoint string) { bound <- endpoint }
	p := mustNew(b, o)
	if err := p.Attach(stream); err != nil {
		b.Fatal(err)
	}
	started := make(chan error, 1)
	go func() { started <- p.Start(context.Background()) }()
	s := newSubscriber(b, nil).connect(<-bound, "kv")
	if err := <-started; err != nil {
		b.Fatal(err)
	}
	var received atomic.Uint64 // batches
	var wanted atomic.Uint64
	wanted.Store(1 << 62)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for received.Load() < wanted.Load() {
			for more := true; more; {
				if _, err := s.socket.RecvBytes(0); err != nil {
					return
				}
				more, _ = s.socket.GetRcvmore()
			}
			received.Add(1)
		}
	}()

	tokens := make([]uint32, tokensPerBlock*blocks)
	next := uint64(0)
	commit := func() {
		for i := range tokens {
			next++
			tokens[i] = uint32((next*0x9e3779b97f4a7c15)>>40) % 128256
		}
		seq, err := manager.Open(bindings.Prompt{Tokens: tokens})
		if err == nil {
			_, err = seq.Grow(len(tokens))
		}
		if err == nil {
			_, err = seq.Commit(tokens)
		}
		if err == nil {
			err = seq.Release()
		}
		if err != nil {
			b.Fatal(err)
		}
		stream.Flush()
	}
	for range capacity / blocks {
		commit()
	}
	mustFlush(b, p)
	before, _ := stream.Stats()
	begin := time.Now() // b.Loop stops its clock before the last event is there
	for b.Loop() {
		commit()
		// A queue of the socket that overflows would drop; wait instead.
		for p.Stats().PublishedBatches > received.Load()+50000 {
			time.Sleep(time.Millisecond)
		}
	}
	mustFlush(b, p)
	wanted.Store(p.Stats().NextSeq)
	for received.Load() < wanted.Load() {
		time.Sleep(100 * time.Microsecond)
	}
	elapsed := time.Since(begin)
	p.Close() // the last clear lets a receiver that waits see the end
	<-done
	after, _ := stream.Stats()
	stored := after.DrainedStoredBlocks - before.DrainedStoredBlocks
	b.ReportMetric(float64(stored)/elapsed.Seconds(), "blocks/s")
	b.ReportMetric(float64(elapsed.Nanoseconds())/float64(stored), "ns/block")
	b.ReportMetric(float64(after.DeferredBlocks-before.DeferredBlocks)/float64(stored), "deferred-share")
}

// BenchmarkDelayAt50k commits 50 blocks every millisecond and reports how long
// it takes from the commit to the decoded event at a subscriber on loopback
// TCP. The time per operation is the pace.
func BenchmarkDelayAt50k(b *testing.B) {
	const tokensPerBlock, blocks, pace = 16, 50, time.Millisecond
	stream, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer stream.Close()
	manager, err := bindings.NewManager(bindings.Config{Stream: stream})
	if err != nil {
		b.Fatal(err)
	}
	defer manager.Close()
	o := DefaultOptions()
	o.Endpoint = "tcp://127.0.0.1:0"
	p := mustNew(b, o)
	if err := p.Attach(stream); err != nil {
		b.Fatal(err)
	}
	mustStart(b, p)
	s := subscribe(b, p)

	arrived := make(chan time.Time, 1)
	go func() {
		defer close(arrived)
		for {
			for _, ev := range s.next().batch.Events {
				switch ev.Kind {
				case wire.KindStored:
					arrived <- time.Now()
				case wire.KindCleared:
					return
				}
			}
		}
	}()
	var delays []time.Duration
	tokens := make([]uint32, tokensPerBlock*blocks)
	next := uint32(0)
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for b.Loop() {
		for i := range tokens {
			next++
			tokens[i] = next >> 1 // two tokens of a kind, for all ids are below 2^31
		}
		<-ticker.C
		seq, err := manager.Open(bindings.Prompt{Tokens: tokens})
		if err != nil {
			b.Fatal(err)
		}
		seq.Grow(len(tokens))
		begin := time.Now()
		if _, err := seq.Commit(tokens); err != nil {
			b.Fatal(err)
		}
		stream.Flush()
		seq.Release()
		at, ok := <-arrived
		if !ok {
			b.Fatal("the stream has ended")
		}
		delays = append(delays, at.Sub(begin))
	}
	p.Close()
	for range arrived {
	}
	slices.Sort(delays)
	for _, q := range []struct {
		name string
		at   int
	}{{"p50-us", len(delays) / 2}, {"p99-us", len(delays) * 99 / 100}} {
		b.ReportMetric(float64(delays[q.at].Nanoseconds())/1e3, q.name)
	}
}

// BenchmarkRing is BenchmarkStep with and without a ring for replays, in turns
// of a few batches, so that the ratio is one of the same machine and moment.
func BenchmarkRing(b *testing.B) {
	for _, events := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("blocks=%d", events*8), func(b *testing.B) {
			o := DefaultOptions()
			o.Endpoint, o.Topic = "tcp://127.0.0.1:0", "kv"
			p := mustNew(b, o)
			tr := p.newTransport()
			if _, _, err := tr.open(context.Background()); err != nil {
				b.Fatal(err)
			}
			defer tr.close(0)
			encoder, _ := wire.NewEncoder(wire.Config{})
			src := newRecycled(events, 8, 16)
			src.left.Store(1 << 60)
			w := &owner{p: p, s: p.settings, transport: tr, encode: true, encoder: encoder,
				source: src, validator: p.validator}
			r := newRing(o.BufferSteps, o.ReplayBufferBytes)
			const turn = 32
			var off, on time.Duration
			slice := func(r *ring) time.Duration {
				w.ring = r
				begin := time.Now()
				for range turn {
					w.step(begin)
				}
				return time.Since(begin)
			}
			// A ring that is not full yet costs new memory as well.
			for before, now := -1, 0; now != before; now, _ = r.size() {
				before = now
				slice(r)
			}
			seq := p.stats.NextSeq
			b.ReportAllocs()
			for b.Loop() {
				off += slice(nil)
				// The ring must not see the numbers in between as a hole.
				p.stats.NextSeq = seq
				on += slice(r)
				seq = p.stats.NextSeq
			}
			b.ReportMetric(float64(on)/float64(off), "on/off")
			b.ReportMetric(float64((on-off).Nanoseconds())/float64(b.N*turn), "ns/batch-more")
		})
	}
}
