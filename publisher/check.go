// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// maxFlushDelay keeps the promise that recorded events reach the socket
	// within 100 ms.
	maxFlushDelay = 100 * time.Millisecond
	// minPoll is the shortest interval at which an idle source is polled. The
	// timers of an idle Go program are no finer.
	minPoll = time.Millisecond
	// maxTimeout bounds durations that ZeroMQ takes as an int of milliseconds.
	maxTimeout = 24 * time.Hour

	keyResyncInterval = "resync_interval"
)

// settings is what New makes of Options: checked and resolved.
type settings struct {
	Options
	topic    string
	endpoint endpoint
	// replays says whether replay is an endpoint to bind.
	replays bool
	replay  endpoint
	// curve is nil without CURVE.
	curve *curve
	// tailDelay is tailDelay but in tests.
	tailDelay time.Duration
	// maxMessage is maxMessage but in tests.
	maxMessage int
	// snapshotWindow is snapshotWindow but in tests.
	snapshotWindow time.Duration
}

// wireConfig is the form in which events travel.
func (o Options) wireConfig() wire.Config {
	return wire.Config{Encoding: o.Encoding, Form: o.Hash, MinimalHashes: o.MinimalHashes}
}

// check validates the options and resolves topic and endpoint. It looks at
// nothing but its input, the files of keys and links on the way to ipc paths.
func (o Options) check() (*settings, error) {
	s := &settings{Options: o, tailDelay: tailDelay, maxMessage: maxMessage,
		snapshotWindow: snapshotWindow}
	if o.Kind != "" && o.Kind != KindZMQ && o.Kind != KindNull {
		return nil, optionError("publisher", string(o.Kind), "want zmq or null")
	}
	s.Kind = o.kind()
	if o.Ranks < 1 {
		return nil, optionError("data_parallel_size", strconv.Itoa(o.Ranks), "want at least 1")
	}
	if o.Rank < 0 || o.Rank >= o.Ranks {
		return nil, optionError("data_parallel_rank", strconv.Itoa(o.Rank),
			fmt.Sprintf("want 0 to %d", o.Ranks-1))
	}
	if o.RanksPerHost < 0 || o.RanksPerHost > o.Ranks {
		return nil, optionError("ranks_per_host", strconv.Itoa(o.RanksPerHost),
			fmt.Sprintf("want 1 to %d, or 0 for all", o.Ranks))
	}
	for _, c := range []struct {
		key   string
		value int
		why   string
	}{
		{"pipeline_parallel_size", o.PipelineParallelSize, "each stage holds its own layers of a block only"},
		{"context_parallel_size", o.ContextParallelSize, "each rank holds its own part of the tokens only"},
	} {
		if c.value != 1 {
			return nil, optionError(c.key, strconv.Itoa(c.value), "want 1: "+c.why+
				", but an event says that a block is there as a whole")
		}
	}
	if o.Encoding > wire.ArrayShort {
		return nil, optionError("encoding", o.Encoding.String(), "want map, array or array-short")
	}
	if o.Hash > event.Bytes {
		return nil, optionError("hash", strconv.Itoa(int(o.Hash)), "no such form")
	}
	if err := s.checkContent(); err != nil {
		return nil, err
	}
	for _, c := range []struct {
		key        string
		value, min int64
	}{
		{"hwm", int64(o.HWM), 1},
		{"wait_subscribers", int64(o.WaitSubscribers), 0},
		{"max_blocks_per_event", int64(o.MaxBlocksPerEvent), 0},
		{"max_entries", int64(o.MaxEntries), 1},
		{"max_batch_events", int64(o.MaxBatchEvents), 0},
		{"max_batch_blocks", int64(o.MaxBatchBlocks), 0},
		{"max_queue_size", int64(o.MaxQueueSize), 1},
		{"max_queue_bytes", o.MaxQueueBytes, 0},
		{"buffer_steps", int64(o.BufferSteps), 1},
		{"replay_buffer_bytes", o.ReplayBufferBytes, 0},
	} {
		if c.value < c.min {
			return nil, optionError(c.key, strconv.FormatInt(c.value, 10),
				fmt.Sprintf("want at least %d", c.min))
		}
	}
	for _, c := range []struct {
		key   string
		value int
		max   int64
	}{
		{"hwm", o.HWM, math.MaxInt32}, {"wait_subscribers", o.WaitSubscribers, math.MaxInt32},
		{"max_blocks_per_event", o.MaxBlocksPerEvent, math.MaxUint32},
		{"max_entries", o.MaxEntries, math.MaxUint32},
	} {
		if int64(c.value) > c.max {
			return nil, optionError(c.key, strconv.Itoa(c.value), fmt.Sprintf("want at most %d", c.max))
		}
	}
	for _, c := range []struct {
		key   string
		value time.Duration
		max   time.Duration
	}{
		{"flush_delay", o.FlushDelay, maxFlushDelay},
		{"shutdown_timeout", o.ShutdownTimeout, maxTimeout},
		{"heartbeat", o.Heartbeat, maxTimeout},
		{"zmtp_heartbeat", o.ZMTPHeartbeat, maxTimeout},
		{"zmtp_timeout", o.ZMTPTimeout, maxTimeout},
		{keyResyncInterval, o.ResyncInterval, maxTimeout},
	} {
		if c.value < 0 || c.value > c.max {
			return nil, optionError(c.key, c.value.String(), fmt.Sprintf("want 0 to %v", c.max))
		}
	}
	for _, c := range []struct {
		key   string
		value time.Duration
	}{{"zmtp_heartbeat", o.ZMTPHeartbeat}, {"zmtp_timeout", o.ZMTPTimeout}} {
		if c.value%time.Millisecond != 0 {
			return nil, optionError(c.key, c.value.String(), "want whole milliseconds")
		}
	}
	if o.ResyncInterval > 0 && o.ResyncInterval < minResyncGap {
		return nil, optionError(keyResyncInterval, o.ResyncInterval.String(),
			fmt.Sprintf("want 0 (never) or %v to %v", minResyncGap, maxTimeout))
	}
	var err *Error
	if s.curve, err = loadCurve(&o); err != nil {
		return nil, err
	}
	if s.topic, err = o.expandTopic(); err != nil {
		return nil, err
	}
	if err = s.checkReplay(); err != nil {
		return nil, err
	}
	if err = s.resolveEndpoints(); err != nil {
		return nil, err
	}
	return s, nil
}

// kind is Kind, or what it is when unset.
func (o Options) kind() Kind {
	switch {
	case o.Disabled:
		return KindNull
	case o.Kind == "":
		return KindZMQ
	}
	return o.Kind
}

// multimodal is Multimodal, or what auto stands for.
func (o Options) multimodal() MultimodalForm {
	switch {
	case o.Multimodal != MultimodalAuto:
		return o.Multimodal
	case o.Encoding == wire.Map:
		return MultimodalTensorRT
	}
	return MultimodalSuppress
}

// checkContent checks what says how events are written.
func (s *settings) checkContent() *Error {
	switch s.Multimodal {
	case MultimodalAuto, MultimodalExtraKeys, MultimodalSuppress:
	case MultimodalTensorRT:
		if s.Encoding != wire.Map {
			return optionError("multimodal", string(s.Multimodal), "needs the encoding map: "+
				s.Encoding.String()+" has no place for mm_keys")
		}
	default:
		return optionError("multimodal", string(s.Multimodal), "want auto, tensorrt, extra_keys or suppress")
	}
	for _, c := range []struct {
		key        string
		value, max int64
	}{
		{"mm_token_id_offset", s.MMTokenIDOffset, math.MaxInt32}, {"mm_placeholder_id", s.MMPlaceholderID, math.MaxUint32},
	} {
		if c.value < -1 || c.value > c.max {
			return optionError(c.key, strconv.FormatInt(c.value, 10), fmt.Sprintf("want 0 to %d", c.max))
		}
	}
	if s.FirstSeq != FirstZero && s.FirstSeq != FirstTime {
		return optionError("first_seq", string(s.FirstSeq), "want zero or time")
	}
	return nil
}

func (s *settings) checkReplay() *Error {
	switch s.ReplayDialect {
	case ReplayTopic, ReplayLegacy:
	case ReplayOff:
		if s.ReplayEndpoint != "" {
			return optionError("replay_dialect", string(ReplayOff), "there is a replay_endpoint")
		}
	default:
		return optionError("replay_dialect", string(s.ReplayDialect), "want topic, legacy or off")
	}
	switch s.TruncatedHistory {
	case TruncatedSnapshot, TruncatedSuffix, TruncatedEmpty:
	default:
		return optionError("truncated_history", string(s.TruncatedHistory), "want snapshot, suffix or empty")
	}
	if s.ReplayPadLimit < 0 {
		return optionError("replay_pad_limit", strconv.Itoa(s.ReplayPadLimit), "want 0 or more")
	}
	switch s.OnLoss {
	case LossGap, LossResync:
	default:
		return optionError("on_loss", string(s.OnLoss), "want gap or resync")
	}
	return nil
}

// resolveEndpoints parses what there is and checks the two endpoints against
// each other.
func (s *settings) resolveEndpoints() (err *Error) {
	null := s.Kind == KindNull
	if !null || s.Endpoint != "" {
		rank, ranks := s.Rank, s.Ranks
		if s.Connect {
			rank, ranks = 0, 1 // all ranks connect to the same place
		}
		if s.endpoint, err = parseEndpoint(keyEndpoint, s.Endpoint, rank, ranks); err != nil {
			return err
		}
		if detail := s.endpoint.unreachable(); s.Connect && detail != "" {
			return optionError(keyEndpoint, s.Endpoint, detail)
		}
	}
	s.replays = s.ReplayEndpoint != "" && !null
	if s.ReplayEndpoint != "" {
		if s.replay, err = parseEndpoint(keyReplay, s.ReplayEndpoint, s.Rank, s.Ranks); err != nil {
			return err
		}
	}
	if s.Endpoint != "" && s.ReplayEndpoint != "" {
		perHost := s.RanksPerHost
		if perHost == 0 {
			perHost = s.Ranks
		}
		if detail := conflict(s.endpoint, s.replay, s.Ranks, perHost); detail != "" {
			return optionError(keyReplay, s.ReplayEndpoint, detail)
		}
	}
	for _, e := range []struct {
		key, text string
		at        endpoint
	}{{keyEndpoint, s.Endpoint, s.endpoint}, {keyReplay, s.ReplayEndpoint, s.replay}} {
		if e.at.scheme == schemeInproc && s.Context == nil && !null {
			return optionError(e.key, e.text,
				"inproc reaches only sockets of the same context: set Options.Context")
		}
		if e.at.scheme == schemeInproc && s.curve != nil {
			return optionError(e.key, e.text, "inproc has no handshake, so CURVE cannot protect it")
		}
	}
	return nil
}
