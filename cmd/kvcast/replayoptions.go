// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher"
	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// maxConcurrency leaves room in the manager's limit of 2^20 open sequences
	// for the one that is being opened.
	maxConcurrency = 1<<20 - 1
	// publisherOff is the value of --publisher for a manager without a stream.
	publisherOff = "off"
	// The values of --policy.
	policyLRU  = "lru"
	policyLRFU = "lrfu"
)

// replayOptions are the flags of replay.
type replayOptions struct {
	trace       string
	limit       int
	blockSize   int
	capacity    int
	sinkBlocks  int
	policy      string
	lrfuTau     int
	lrfuGhosts  int
	device      string
	concurrency int
	decode      bool
	speed       float64

	publisher         string
	endpoint          string
	replayEndpoint    string
	bufferSteps       int
	replayBufferBytes int64
	replayDialect     string
	topic             string
	encoding          string
	hash              string
	waitSubscribers   int
	clearOnClose      bool
	hold              time.Duration

	json        bool
	residentOut string
}

func newReplay(std streams) *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay --trace FILE",
		Short: "Replay a request trace through the allocator and publish the events",
		Args:  exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return replay(cmd.Context(), o, std)
		},
	}
	defaults := publisher.DefaultOptions()
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.trace, "trace", "", "request trace, one JSON object per line (Mooncake format)")
	f.IntVar(&o.limit, "limit", 0, "stop after N requests (0 = all)")
	f.IntVar(&o.blockSize, "block-size", 16, "tokens per block")
	f.IntVar(&o.capacity, "capacity-blocks", 20000, "pages in the pool")
	f.IntVar(&o.sinkBlocks, "sink-blocks", 50000, "stored blocks that may wait for the publisher (max_entries)")
	f.StringVar(&o.policy, "policy", policyLRU, "what goes first when pages are short: lru or lrfu")
	f.IntVar(&o.lrfuTau, "lrfu-tau", 1000, "lrfu: requests in which a use loses half of its worth")
	f.IntVar(&o.lrfuGhosts, "lrfu-ghosts", 0, "lrfu: blocks to remember that went (0 = as many as pages)")
	f.StringVar(&o.device, "device", "auto", "auto (the first NVIDIA GPU that can be used, else host), host or cuda:N")
	f.IntVar(&o.concurrency, "concurrency", 1, "sequences alive at once")
	f.BoolVar(&o.decode, "decode", false, "commit the output tokens too")
	f.Float64Var(&o.speed, "speed", 0, "0 = as fast as possible, 1 = real time, 2 = twice as fast")
	f.StringVar(&o.publisher, "publisher", string(publisher.KindZMQ), "zmq, null (no socket) or off (no events)")
	f.StringVar(&o.endpoint, "endpoint", defaults.Endpoint, "where to bind")
	f.StringVar(&o.replayEndpoint, "replay-endpoint", "", "where to answer requests for earlier batches (default: nowhere)")
	f.IntVar(&o.bufferSteps, "buffer-steps", defaults.BufferSteps, "batches kept for such requests")
	f.Int64Var(&o.replayBufferBytes, "replay-buffer-bytes", defaults.ReplayBufferBytes, "their size in bytes (0 = no limit)")
	f.StringVar(&o.replayDialect, "replay-dialect", string(defaults.ReplayDialect), "frames of the answers: topic, legacy or off")
	f.StringVar(&o.topic, "topic", "", "topic of all messages")
	f.StringVar(&o.encoding, "encoding", defaults.Encoding.String(), "form of the events: map, array or array-short")
	f.StringVar(&o.hash, "hash", subscribe.FormName(event.Signed64), "signed64, unsigned64, portable63 or bytes")
	f.IntVar(&o.waitSubscribers, "wait-subscribers", 0, "send nothing before N have subscribed (else a short replay is over before a tap connects)")
	f.DurationVar(&o.hold, "hold", 0, "answer requests for earlier batches and keep the sockets open for that long after the end")
	f.BoolVar(&o.json, "json", false, "print the summary as one JSON object")
	f.StringVar(&o.residentOut, "resident-out", "", "write the hashes of all reusable blocks to this file")
	f.BoolVar(&o.clearOnClose, "clear-on-close", false, "send a last clear")
	return cmd
}

// check validates what only the command line knows about; the publisher and
// the manager check the rest of their own options.
func (o *replayOptions) check() (event.Form, error) {
	for _, f := range []struct {
		name            string
		value, min, max int64
	}{
		{"limit", int64(o.limit), 0, math.MaxInt64},
		{"block-size", int64(o.blockSize), 1, 4096},
		{"capacity-blocks", int64(o.capacity), 1, 1 << 27},
		{"sink-blocks", int64(o.sinkBlocks), 1, math.MaxUint32},
		{"lrfu-ghosts", int64(o.lrfuGhosts), 0, 1 << 30},
		{"lrfu-tau", int64(o.lrfuTau), 1, math.MaxUint32},
		{"concurrency", int64(o.concurrency), 1, maxConcurrency},
		{"buffer-steps", int64(o.bufferSteps), 1, math.MaxInt64},
		{"replay-buffer-bytes", o.replayBufferBytes, 0, math.MaxInt64},
		{"wait-subscribers", int64(o.waitSubscribers), 0, math.MaxInt32},
	} {
		switch {
		case f.value < f.min && f.max == math.MaxInt64:
			return 0, fmt.Errorf("--%s %d: want at least %d", f.name, f.value, f.min)
		case f.value < f.min || f.value > f.max:
			return 0, fmt.Errorf("--%s %d: want %d to %d", f.name, f.value, f.min, f.max)
		}
	}
	if o.trace == "" {
		return 0, errors.New("--trace is missing")
	}
	if o.policy != policyLRU && o.policy != policyLRFU {
		return 0, fmt.Errorf("--policy %q: want %s or %s", o.policy, policyLRU, policyLRFU)
	}
	if math.IsNaN(o.speed) || o.speed < 0 || math.IsInf(o.speed, 0) {
		return 0, fmt.Errorf("--speed %g: want 0 or a positive number", o.speed)
	}
	if o.hold < 0 {
		return 0, fmt.Errorf("--hold %s: want 0 or more", o.hold)
	}
	if _, ok := parseEncoding(o.encoding); !ok {
		return 0, fmt.Errorf("--encoding %q: want map, array or array-short", o.encoding)
	}
	switch publisher.ReplayDialect(o.replayDialect) {
	case publisher.ReplayTopic, publisher.ReplayLegacy:
	case publisher.ReplayOff:
		if o.replayEndpoint != "" {
			return 0, fmt.Errorf("--replay-dialect %q: but --replay-endpoint is given", o.replayDialect)
		}
	default:
		return 0, fmt.Errorf("--replay-dialect %q: want topic, legacy or off", o.replayDialect)
	}
	for _, e := range []struct{ name, value string }{{"endpoint", o.endpoint}, {"replay-endpoint", o.replayEndpoint}} {
		if strings.HasPrefix(e.value, "inproc://") {
			return 0, fmt.Errorf("--%s %q: nobody could reach it from outside; want tcp:// or ipc://", e.name, e.value)
		}
	}
	switch o.publisher {
	case string(publisher.KindZMQ), string(publisher.KindNull), publisherOff:
	default:
		return 0, fmt.Errorf("--publisher %q: want zmq, null or off", o.publisher)
	}
	form, ok := subscribe.ParseForm(o.hash)
	if !ok {
		return 0, fmt.Errorf("--hash %q: want signed64, unsigned64, portable63 or bytes", o.hash)
	}
	return form, nil
}

// publisherOptions are those for the given form of hashes. They are checked even
// where they are not used.
func (o *replayOptions) publisherOptions(form event.Form) (publisher.Options, error) {
	p := publisher.DefaultOptions()
	p.Endpoint, p.ReplayEndpoint = o.endpoint, o.replayEndpoint
	p.BufferSteps, p.ReplayBufferBytes = o.bufferSteps, o.replayBufferBytes
	p.ReplayDialect = publisher.ReplayDialect(o.replayDialect)
	p.Topic, p.Hash = o.topic, form
	p.Encoding, _ = parseEncoding(o.encoding)
	p.WaitSubscribers = o.waitSubscribers
	p.ClearOnClose = o.clearOnClose
	if _, err := publisher.New(p); err != nil {
		var e *publisher.Error
		if errors.As(err, &e) && (e.Key == "pod" || e.Key == "model") {
			return p, fmt.Errorf("--topic %q: a replay has no %s", o.topic, e.Key)
		}
		return p, byFlag(err)
	}
	if o.publisher != publisherOff {
		p.Kind = publisher.Kind(o.publisher)
	}
	return p, nil
}

// parseEncoding is the inverse of wire.Encoding.String.
func parseEncoding(name string) (wire.Encoding, bool) {
	for e := wire.Map; e <= wire.ArrayShort; e++ {
		if e.String() == name {
			return e, true
		}
	}
	return 0, false
}

// byFlag names the flag where an error of the publisher names a key: each key
// that a replay sets has one.
func byFlag(err error) error {
	var e *publisher.Error
	if !errors.As(err, &e) || e.Key == "" {
		return err
	}
	reason := e.Detail
	if !errors.Is(e.Err, publisher.ErrOption) {
		reason = e.Err.Error()
		if e.Detail != "" {
			reason += ": " + e.Detail
		}
		if e.Cause != nil {
			reason += ": " + e.Cause.Error()
		}
	}
	return fmt.Errorf("--%s %q: %s", strings.ReplaceAll(e.Key, "_", "-"), e.Value, reason)
}

// checkFiles refuses to write over the trace, under whatever name.
func (o *replayOptions) checkFiles() error {
	if o.residentOut == "" {
		return nil
	}
	in, err := os.Stat(o.trace)
	if err != nil || !in.Mode().IsRegular() {
		return nil // opening it says what is wrong, if anything
	}
	if out, err := os.Stat(o.residentOut); err == nil && os.SameFile(in, out) {
		return fmt.Errorf("--resident-out %s: is the trace itself", o.residentOut)
	}
	return nil
}
