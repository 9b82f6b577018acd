// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/internal/zmqwait"
	"github.com/kvcast/kvcast/publisher/wire"
)

// What a dead life has left in the queue of the live socket is never taken for
// its successor's, wherever it comes in between. Life A is dead, B has batches 0
// to 3, and one of them might follow on the last of the other.
func TestTrackerLives(t *testing.T) {
	const joined = "?0 A1 rA0 rA1 end >rA0 >rA1 "
	const replaced = joined + "recon ?1 rB1 >reset:replaced "
	const history = "?0 rB0 rB1 rB2 rB3 end >rB0 >rB1 >rB2 >rB3 "
	for name, script := range map[string]string{
		"left before the request":          replaced + "~A4 " + history + "?- B4 ?3 rB3 rB4 end >rB4 B5 >B5 ?-",
		"left, far ahead":                  replaced + "~A9 " + history + "?-",
		"left during the answer":           replaced + "?0 ~A4 rB0 rB1 rB2 rB3 ~A5 end >rB0 >rB1 >rB2 >rB3 ?3 rB3 end ?-",
		"left behind the answer":           replaced + history + "~A4 ?3 rB3 end ~A5 ?3 rB3 rB4 rB5 end >rB4 >rB5 ?-",
		"left, and the number of the last": replaced + history + "~A3 ?3 rB3 end B4 ?3 rB3 rB4 end >rB4 B5 >B5",
		"left in front of the new ones":    replaced + "~A3 B2 " + history + "B3 B4 >B4 ?-",
		"left in front of the last one":    replaced + history + "?- ~A4 B3 ~B4 >B4 ?-",
		"answered before the connection is there": joined + "A4 ?1 rB1 >reset:replaced A4 A5 " + history +
			"A6 ?3 rB3 end A7 recon ~A8 ?3 rB3 rB4 end >rB4 ~A9 ?4 rB4 end B5 ?4 rB4 rB5 end >rB5 B6 >B6",
		"another restart in the answer": replaced + "~A2 ?0 rB0 >rB0 recon ~A3 ~B1 ?0 rD0 >reset:replaced ~B2 " +
			"?0 rD0 rD1 end >rD0 >rD1 ~B2 ?1 rD1 end D2 ?1 rD1 rD2 end >rD2 D3 >D3",
		"another restart behind the answer": replaced + history + "recon ~A4 ~B4 ?3 end >reset:replaced ~B5 " +
			"?0 rD0 end >rD0 ~B1 ?0 rD0 end D0 D1 >D1",
		"another restart before it is answered": joined + "recon recon ?1 rD1 >reset:replaced ?0 rD0 rD1 end >rD0 >rD1 ~B2 ?1 rD1 end ?-",
		"the same life":                         joined + "recon ~A2 ?1 rA1 rA2 rA3 end >rA2 >rA3 ~A3 A4 >A4 ?-",
		"the same life, and quiet":              joined + "recon ~A2 ?1 rA1 rA2 end >rA2 250ms ?2 rA2 rA3 end >rA3 ?-",
		"a mark that was left":                  replaced + history + "mark ?- B4 ?3 rB3 rB4 end >rB4 B5 >B5",
		"nobody answers any more":               joined + "recon ~A2 ?1 5s 200ms ?1 5s ?- B3 >reset:unproven >gap0+3 >B3 B4 >B4 ?-",
		"nobody answers, the last was replayed": "?0 rA0 rA1 end >rA0 >rA1 A2 ?1 5s 200ms ?1 5s >reset:unproven >gap0+2 >A2 A3 >A3",
		"nobody answers after a reset":          replaced + "?0 5s 200ms ?0 ~A2 5s ?- B4 >gap0+4 >B4 B5 >B5",
		"known, and nobody answers a gap":       joined + "A3 ?1 5s 200ms ?1 5s >gap2+1 >A3 A4 >A4",
		"no history to be had":                  "?0 end A7 ?0 end ?7 rA7 rA8 end >gap0+7 >rA7 >rA8 A8 A9 >A9 ?-",
		"no history, and another life":          "?0 end ~A7 ?0 end ?7 end ?- B0 ?0 rB0 end >rB0 B1 >B1 ?-",
		"no history from the beginning on":      "?0 end A0 ?0 end ?0 end ?-",
	} {
		t.Run(name, func(t *testing.T) { newPlay(t, true).run(script) })
	}
}

// A server whose answers never have what is live is as good as none.
func TestTrackerMisses(t *testing.T) {
	p := newPlay(t, true)
	p.run("?0 rA0 end >rA0")
	for range maxMisses - 1 {
		p.now = p.now.Add(askEvery)
		p.run("A5 ?0 rA0 end")
	}
	p.now = p.now.Add(askEvery)
	p.run("A5 ?0 rA0 end A6 >reset:unproven >gap0+6 >A6 A7 >A7")
	if s := p.tr.stats; s.Foreign != maxMisses {
		t.Errorf("%+v", s)
	}
}

// answers serves requests in a life of its own goroutine, from batch 0 to the
// newest one, until the test ends.
func (s *fakeServer) answers(life string, newest *atomic.Int64) {
	ended := make(chan struct{})
	quit := make(chan struct{})
	s.t.Cleanup(func() { close(quit); <-ended })
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			default:
			}
			if err := zmqwait.Read(10*time.Millisecond, s.router); err != nil {
				s.t.Error(err)
				return
			}
			frames, err := s.router.RecvMessageBytes(zmq.DONTWAIT)
			if err != nil || len(frames) != 3 {
				continue
			}
			for i := binary.BigEndian.Uint64(frames[2]); i <= uint64(newest.Load()); i++ {
				s.batch(frames[0], i, payload(life, int(i)))
			}
			s.batch(frames[0], wire.EndSeq, nil)
		}
	}()
}

// The same through sockets: a publisher dies and another one begins on its
// ports while thousands of the dead one's batches wait to be read.
func TestFollowerLeftBehind(t *testing.T) {
	const left = 5000
	s := newFakeServer(t)
	f := s.follow(FollowerOptions{})
	idle(t, f)
	s.answer(0, "A", 0, 1)
	for range 2 {
		if _, err := f.Next(deadline); err != nil {
			t.Fatal(err)
		}
	}
	for i := range left {
		s.send("A", 2+i)
	}
	// All is handed to the network before the sockets are gone.
	if err := s.pub.SetLinger(deadline); err != nil {
		t.Fatal(err)
	}
	s.restart()
	for end := time.Now().Add(deadline); f.client.handshakes < 2; f.client.watch() {
		if time.Now().After(end) {
			t.Fatal("no new connection")
		}
		time.Sleep(time.Millisecond)
	}
	awaitSubscription(t, s.pub)
	var newest atomic.Int64
	newest.Store(3)
	s.answers("B", &newest)
	p := pumped(t, f)
	next := func() string {
		t.Helper()
		select {
		case item := <-p.items:
			return item
		case <-p.done:
			t.Fatal(p.err)
		case <-time.After(deadline):
			t.Fatal("nothing more comes")
		}
		return ""
	}
	for item := next(); item != "reset:replaced"; item = next() {
		if item[0] != 'A' {
			t.Fatalf("got %s before the reset", item)
		}
	}
	// From here on there is the new life alone. Once a batch is handed out as it
	// came live, all that was before it in the queue has been dealt with.
	for i := 0; ; i++ {
		if i > int(newest.Load()) {
			newest.Add(1)
			s.send("B", i)
		}
		item := next()
		if want := fmt.Sprintf("B%d", i); item == want {
			break
		} else if item != "r"+want {
			t.Fatalf("got %s, want %s", item, want)
		}
	}
	p.end(t)
	if got := f.Stats(); got.Resets != 1 || got.Foreign+got.Duplicates+got.Overflows < left/2 {
		t.Errorf("%+v", got)
	}
}
