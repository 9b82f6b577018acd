// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvcast/kvcast/publisher"
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
	trace      string
	limit      int
	blockSize  int
	capacity   int
	policy     string
	lrfuTau    int
	lrfuGhosts int
	// lrfuSet is a flag of lrfu that was set, with its value, empty if none was.
	lrfuSet     string
	device      string
	concurrency int
	decode      bool
	speed       float64

	// keys are those of the publisher; options and off are made of them by check.
	keys    publisherKeys
	options publisher.Options
	off     bool

	hold time.Duration

	metrics     string
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
			for _, name := range []string{"lrfu-tau", "lrfu-ghosts"} {
				if f := cmd.Flags().Lookup(name); f.Changed {
					o.lrfuSet = "--" + name + " " + f.Value.String()
				}
			}
			return replay(cmd.Context(), o, std)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.trace, "trace", "", "request trace, one JSON object per line (Mooncake format)")
	f.IntVar(&o.limit, "limit", 0, "stop after N requests (0 = all)")
	f.IntVar(&o.blockSize, "block-size", 16, "tokens per block")
	f.IntVar(&o.capacity, "capacity-blocks", 20000, "pages in the pool")
	f.StringVar(&o.policy, "policy", policyLRU, "what goes first when pages are short: lru or lrfu")
	f.IntVar(&o.lrfuTau, "lrfu-tau", 1000, "lrfu: requests in which a use loses half of its worth")
	f.IntVar(&o.lrfuGhosts, "lrfu-ghosts", 0, "lrfu: blocks to remember that went (0 = as many as pages)")
	f.StringVar(&o.device, "device", "auto", "auto (NVIDIA GPU 0 if it can be used, else host), host or cuda:N")
	f.IntVar(&o.concurrency, "concurrency", 1, "sequences alive at once")
	f.BoolVar(&o.decode, "decode", false, "commit the output tokens too")
	f.Float64Var(&o.speed, "speed", 0, "0 = as fast as possible, 1 = real time, 2 = twice as fast")
	o.keys.add(f)
	f.DurationVar(&o.hold, "hold", 0, "answer requests for earlier batches and keep the sockets open for that long after the end")
	f.StringVar(&o.metrics, "metrics", "", "show figures to Prometheus on HOST:PORT under /metrics (port 0 = a free one)")
	f.BoolVar(&o.json, "json", false, "print the summary as one JSON object")
	f.StringVar(&o.residentOut, "resident-out", "", "write the hashes of all reusable blocks to this file")
	return cmd
}

// check validates what only the command line knows about, and makes options of the
// keys; the manager checks its own options.
func (o *replayOptions) check(ctx context.Context) (err error) {
	for _, f := range []struct {
		name            string
		value, min, max int64
	}{
		{"limit", int64(o.limit), 0, math.MaxInt64},
		{"block-size", int64(o.blockSize), 1, 4096},
		{"capacity-blocks", int64(o.capacity), 1, 1 << 27},
		{"lrfu-ghosts", int64(o.lrfuGhosts), 0, 1 << 30},
		{"lrfu-tau", int64(o.lrfuTau), 1, math.MaxUint32},
		{"concurrency", int64(o.concurrency), 1, maxConcurrency},
	} {
		switch {
		case f.value < f.min && f.max == math.MaxInt64:
			return fmt.Errorf("--%s %d: want at least %d", f.name, f.value, f.min)
		case f.value < f.min || f.value > f.max:
			return fmt.Errorf("--%s %d: want %d to %d", f.name, f.value, f.min, f.max)
		}
	}
	if o.trace == "" {
		return errors.New("--trace is missing")
	}
	if o.policy != policyLRU && o.policy != policyLRFU {
		return fmt.Errorf("--policy %q: want %s or %s", o.policy, policyLRU, policyLRFU)
	}
	if o.policy != policyLRFU && o.lrfuSet != "" {
		return fmt.Errorf("%s: --policy is %s, want %s", o.lrfuSet, o.policy, policyLRFU)
	}
	if math.IsNaN(o.speed) || o.speed < 0 || math.IsInf(o.speed, 0) {
		return fmt.Errorf("--speed %g: want 0 or a positive number", o.speed)
	}
	if o.hold < 0 {
		return fmt.Errorf("--hold %s: want 0 or more", o.hold)
	}
	if o.options, o.off, err = o.keys.resolve(ctx); err != nil || o.metrics == "" {
		return err
	}
	if o.off {
		return fmt.Errorf("--metrics %q: there is no publisher", o.metrics)
	}
	return checkMetrics(o.metrics)
}

// publisherName is what the summary calls the publisher.
func (o *replayOptions) publisherName() string {
	switch {
	case o.off:
		return publisherOff
	case o.options.Kind == publisher.KindNull:
		return string(publisher.KindNull)
	}
	return string(publisher.KindZMQ)
}

// checkFiles refuses to write over what the run reads, and over its sockets.
func (o *replayOptions) checkFiles() error {
	if !o.off && o.options.Kind != publisher.KindNull {
		if err := keepSockets("resident-out", o.residentOut, o.sockets()); err != nil {
			return err
		}
	}
	return keepInputs("resident-out", o.residentOut, []input{
		{o.trace, "is the trace itself"},
		{o.keys.config, "is the configuration itself"},
		{o.options.CurveSecretKeyFile, "holds the secret key"},
		{o.options.CurveAllowFile, "holds the keys of the peers"},
	})
}

// sockets are the endpoints as this rank binds them.
func (o *replayOptions) sockets() []input {
	suffix := ""
	if o.options.Rank > 0 {
		suffix = fmt.Sprintf("_dp%d", o.options.Rank)
	}
	live := o.options.Endpoint
	if !o.options.Connect {
		live += suffix
	}
	return []input{{live, "is the socket of --endpoint"}, {o.options.ReplayEndpoint + suffix, "is the socket of --replay-endpoint"}}
}
