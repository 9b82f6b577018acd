// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/subscribe"
)

// readerVariable holds the options of a bystander in a process of its own.
const readerVariable = "KVCAST_TEST_READER"

// readerReport is its answer to a quiet point: it knows what is there.
type readerReport struct {
	Batches, Snapshots, Gaps, Resets int
	Error                            string
}

// readerMain follows a stream until standard input ends. Each quiet point that comes in
// is answered when it knows what was there.
func readerMain(config string) (code int) {
	out := json.NewEncoder(os.Stdout)
	var b bystander
	err := json.Unmarshal([]byte(config), &b.options)
	if err == nil {
		err = b.join()
	}
	defer b.leave()
	points := make(chan quietPoint)
	go func() {
		defer close(points)
		for in := json.NewDecoder(os.Stdin); ; {
			var q quietPoint
			if in.Decode(&q) != nil {
				return
			}
			points <- q
		}
	}()
	for err == nil {
		if _, err = b.take(20 * time.Millisecond); err != nil {
			break
		}
		select {
		case q, ok := <-points:
			if !ok {
				return 0
			}
			if err = b.settle(q); err == nil {
				err = out.Encode(readerReport{b.seen.batches, b.seen.snapshots, b.seen.gaps, b.seen.resets, ""})
			}
		default:
		}
	}
	out.Encode(readerReport{Error: err.Error()})
	return 1
}

// settle reads until it knows what was there at a quiet point.
func (b *bystander) settle(q quietPoint) error {
	for end := time.Now().Add(settlePatience); ; {
		_, err := b.take(20 * time.Millisecond)
		if err != nil {
			return err
		}
		if err = b.knows(q); err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %w; %+v, %+v, busy %t", settlePatience, err, b.seen, b.f.Stats(), b.f.Busy())
		}
	}
}

// readerProcess is a bystander in another process.
type readerProcess struct{ *child }

func newReaderProcess(t *testing.T, o subscribe.FollowerOptions) *readerProcess {
	t.Helper()
	return &readerProcess{startChild(t, readerVariable, o)}
}

// settle waits until it knows what is there.
func (r *readerProcess) settle(q quietPoint) (report readerReport) {
	r.t.Helper()
	r.order(q)
	err := r.decoder.Decode(&report)
	if err == nil && report.Error != "" {
		err = errors.New(report.Error)
	}
	if err != nil {
		r.t.Fatalf("reader: %v", err)
	}
	return report
}
