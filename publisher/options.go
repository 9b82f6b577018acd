// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// Kind selects what a publisher sends to.
type Kind string

const (
	// KindZMQ sends over ZeroMQ.
	KindZMQ Kind = "zmq"
	// KindNull drains, numbers and counts as KindZMQ does, but encodes nothing
	// and has no socket. Options that concern sockets are checked, but for an
	// empty endpoint and the need for a context, and then not used; Start waits
	// for nobody.
	KindNull Kind = "null"
)

// ReplayDialect selects the frames of a replay's answer. The delimiter (an
// empty frame) is always there; a batch has then topic, sequence number and
// payload as in the live message.
type ReplayDialect string

const (
	// ReplayTopic answers with the topic frame; the end has an empty one.
	ReplayTopic ReplayDialect = "topic"
	// ReplayLegacy leaves the topic frame out, for older readers.
	ReplayLegacy ReplayDialect = "legacy"
	// ReplayOff serves no replays, and refuses a replay endpoint.
	ReplayOff ReplayDialect = "off"
)

// TruncatedHistory selects the answer to a request that reaches further back
// than the contiguous run of batches that is kept.
type TruncatedHistory string

const (
	// TruncatedSuffix answers with that run. Its first number, above the one
	// that was asked for, shows the cut.
	TruncatedSuffix TruncatedHistory = "suffix"
	// TruncatedEmpty answers with the end mark alone.
	TruncatedEmpty TruncatedHistory = "empty"
)

// Options configures a Publisher. Begin with [DefaultOptions]: the zero value
// is not valid, because 0 has a meaning of its own in many fields. The names of
// the wire contract ("key") are those that errors use.
type Options struct {
	// Kind: key publisher, default KindZMQ.
	Kind Kind

	// Endpoint to bind: tcp://HOST:PORT with HOST a *, an IPv4 address, an
	// [IPv6] address, a host name or an interface, ipc://PATH or inproc://NAME.
	// Key endpoint, default tcp://127.0.0.1:5557. Rank r binds PORT+r, or
	// appends _dp<r> to an ipc or inproc name (r > 0). Port 0 or * takes a free
	// port for any rank; Publisher.Endpoint tells which.
	//
	// On Linux a tcp peer that sends more than a subscriber (or whoever asks for
	// replays) needs is cut off before it has filled the memory, and an endpoint
	// has at most a quarter of the descriptors that the process may open, 4096 at
	// most, or somewhat more than WaitSubscribers, as connections: beyond that
	// those are cut off that ask for nothing, then the newest. Of an ipc peer the
	// system does not tell what it has sent, so nobody is cut off there: put the
	// path where only those can open it who are trusted not to flood.
	Endpoint string
	// Rank is the global data-parallel rank, 0 <= Rank < Ranks; it is the third
	// element of every payload. Key data_parallel_rank, default 0.
	Rank int
	// Ranks is the number of ranks. All checks cover the whole range, so that
	// every rank comes to the same verdict. Key data_parallel_size, default 1.
	Ranks int

	// ReplayEndpoint is where requests for earlier batches are answered; it has
	// the forms, the offset by rank and the free ports of Endpoint, and
	// Publisher.ReplayEndpoint tells what was bound. With fixed tcp ports it must
	// be at least RanksPerHost ports away from Endpoint, whatever the hosts.
	// Key replay_endpoint, default "": no replays, and no batch is kept.
	ReplayEndpoint string
	// BufferSteps and ReplayBufferBytes bound what is kept for replays: batches
	// and the bytes of their payloads, 0 = no limit by size. The newest batch is
	// always kept, also one that alone is over the limit by size. Batches that
	// replays under way still need may take as much again as ReplayBufferBytes;
	// beyond it the one that is furthest behind is aborted. Keys buffer_steps
	// and replay_buffer_bytes, default 10000 (> 0) and 256 MiB.
	BufferSteps       int
	ReplayBufferBytes int64
	// ReplayDialect: key replay_dialect, default ReplayTopic. ReplayOff together
	// with a ReplayEndpoint is an error.
	ReplayDialect ReplayDialect
	// TruncatedHistory: key truncated_history, default TruncatedSuffix.
	TruncatedHistory TruncatedHistory
	// RanksPerHost is how many ranks share the ports of a machine, 1 to Ranks,
	// 0 = all of them. Key ranks_per_host, default 0.
	RanksPerHost int

	// Topic is the first frame, at most 255 bytes of UTF-8. {pod}, {model} and
	// {rank} are replaced; another { is an error. A topic that begins with kv@
	// must have the form kv@POD@MODEL. Key topic, default "".
	Topic string
	// Pod and Model are required when Topic names them.
	Pod, Model string

	// Encoding is the shape of the events. The array forms have no place for some
	// keys: an event that needs one is invalid then. Key encoding, default
	// wire.Map.
	Encoding wire.Encoding
	// Hash says how hashes are written; an attached source must produce the
	// same form. Key hash, default event.Signed64.
	Hash event.Form
	// MinimalHashes writes integer hashes in the smallest msgpack form instead
	// of always 9 bytes, which widely used readers insist on. Key hash_width
	// (minimal), default false (full).
	MinimalHashes bool

	// HWM is the number of messages that may wait for one subscriber; beyond it
	// this subscriber loses messages. Key hwm, default 100000, > 0.
	HWM int
	// WaitSubscribers is the number of subscribers that Start waits for before
	// it sends anything: connections that are open and have sent a subscription
	// (01 and a prefix of the topic) without ending it (00 and the same prefix).
	// A connection counts once, and what it sends never changes the count of
	// another one. Who is behind a connection cannot be known: a peer that opens
	// N of them is N subscribers. Key wait_subscribers, default 0.
	WaitSubscribers int
	// ZMTPHeartbeat is the interval at which a connection that is otherwise
	// silent is probed, 0 = never; ZMTPTimeout is how long an answer may take
	// before the peer is cut off, 0 = for ever. Whole milliseconds. Without
	// them a peer that is frozen holds its queue in memory for ever. Keys
	// zmtp_heartbeat and zmtp_timeout, default 5 s and 15 s.
	ZMTPHeartbeat, ZMTPTimeout time.Duration

	// MaxBatchEvents and MaxBatchBlocks close a batch; 0 = no limit. One event
	// with more blocks goes alone. Keys max_batch_events and max_batch_blocks,
	// default 128 and 8192.
	MaxBatchEvents, MaxBatchBlocks int
	// FlushDelay is the longest time for which a recorded event waits although
	// nobody flushes the source, at most 100 ms. It is also the interval at
	// which an idle publisher lets deferred blocks heal. Values under 1 ms act
	// as 1 ms, and values over 80 ms as 80 ms, so that an event is on the wire
	// within 100 ms. Key flush_delay, default 5 ms.
	FlushDelay time.Duration
	// ShutdownTimeout bounds the flush in Close and the linger of the socket;
	// Close returns within ShutdownTimeout + 1 s. Key shutdown_timeout,
	// default 1 s.
	ShutdownTimeout time.Duration

	// ClearOnStart and ClearOnClose send an AllBlocksCleared as the first and
	// as the last batch. Without the first, batch 0 is the first batch that the
	// source has; this is for comparing bytes with other publishers, nothing
	// else. Keys clear_on_start and clear_on_close, default true.
	ClearOnStart, ClearOnClose bool

	// MaxQueueSize is the number of batches that Publish may leave waiting, and
	// MaxQueueBytes bounds their estimated encoded size, 0 = no limit by size.
	// One batch larger than MaxQueueBytes is taken only by an empty queue. Not
	// used with an attached source, which has its own bound. Keys
	// max_queue_size and max_queue_bytes, default 100000 (> 0) and 64 MiB.
	MaxQueueSize  int
	MaxQueueBytes int64

	// Context shares a ZeroMQ context; nil gives the publisher its own, one for
	// the stream and one for replays. Only sockets of the same context can reach an inproc endpoint, so one of those
	// needs it. A shared context is never terminated by the publisher, and
	// because ports of a closed socket are then freed a moment later, Start
	// retries an occupied address for 1 s.
	Context *Context

	// Warn receives one line for each thing that an operator should see: the
	// endpoint can be reached from other machines, batches were dropped or peers
	// cut off (at counts 1, 2, 4, 8, ...). It is called by goroutines of the publisher
	// or by Publish, one call at a time, and must neither block nor call Publish,
	// Flush, Start or Close. May be nil.
	Warn func(message string)
	// OnBound is called once Endpoint and ReplayEndpoint are bound, before Start
	// waits for subscribers, with what Publisher.Endpoint returns;
	// Publisher.ReplayEndpoint is valid by then. A null publisher never calls it.
	// The same rules as for Warn hold. May be nil.
	OnBound func(endpoint string)
}

// DefaultOptions returns the defaults of the wire contract.
func DefaultOptions() Options {
	return Options{
		Kind:              KindZMQ,
		Endpoint:          "tcp://127.0.0.1:5557",
		Ranks:             1,
		BufferSteps:       10000,
		ReplayBufferBytes: 256 << 20,
		ReplayDialect:     ReplayTopic,
		TruncatedHistory:  TruncatedSuffix,
		HWM:               100000,
		ZMTPHeartbeat:     5 * time.Second,
		ZMTPTimeout:       15 * time.Second,
		MaxBatchEvents:    128,
		MaxBatchBlocks:    8192,
		FlushDelay:        5 * time.Millisecond,
		ShutdownTimeout:   time.Second,
		ClearOnStart:      true,
		ClearOnClose:      true,
		MaxQueueSize:      100000,
		MaxQueueBytes:     64 << 20,
	}
}

const (
	// maxFlushDelay keeps the promise that recorded events reach the socket
	// within 100 ms.
	maxFlushDelay = 100 * time.Millisecond
	// minPoll is the shortest interval at which an idle source is polled. The
	// timers of an idle Go program are no finer.
	minPoll = time.Millisecond
	// maxTimeout bounds durations that ZeroMQ takes as an int of milliseconds.
	maxTimeout = 24 * time.Hour
	// maxTopic is the longest topic in bytes.
	maxTopic = 255
)

// settings is what New makes of Options: checked and resolved.
type settings struct {
	Options
	topic    string
	endpoint endpoint
	// replays says whether replay is an endpoint to bind.
	replays bool
	replay  endpoint
}

// wireConfig is the form in which events travel.
func (o Options) wireConfig() wire.Config {
	return wire.Config{Encoding: o.Encoding, Form: o.Hash, MinimalHashes: o.MinimalHashes}
}

// check validates the options and resolves topic and endpoint. It looks at
// nothing but its input.
func (o Options) check() (*settings, error) {
	s := &settings{Options: o}
	if o.Kind != KindZMQ && o.Kind != KindNull {
		return nil, optionError("publisher", string(o.Kind), "want zmq or null")
	}
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
	if o.Encoding > wire.ArrayShort {
		return nil, optionError("encoding", o.Encoding.String(), "want map, array or array-short")
	}
	if o.Hash > event.Bytes {
		return nil, optionError("hash", strconv.Itoa(int(o.Hash)), "no such form")
	}
	for _, c := range []struct {
		key        string
		value, min int64
	}{
		{"hwm", int64(o.HWM), 1},
		{"wait_subscribers", int64(o.WaitSubscribers), 0},
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
	if int64(o.HWM) > 1<<31-1 {
		return nil, optionError("hwm", strconv.Itoa(o.HWM), "want at most 2147483647")
	}
	for _, c := range []struct {
		key   string
		value time.Duration
		max   time.Duration
	}{
		{"flush_delay", o.FlushDelay, maxFlushDelay},
		{"shutdown_timeout", o.ShutdownTimeout, maxTimeout},
		{"zmtp_heartbeat", o.ZMTPHeartbeat, maxTimeout},
		{"zmtp_timeout", o.ZMTPTimeout, maxTimeout},
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
	var err *Error
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
	case TruncatedSuffix, TruncatedEmpty:
	case "snapshot":
		return optionError("truncated_history", "snapshot", "there are no snapshots yet; want suffix or empty")
	default:
		return optionError("truncated_history", string(s.TruncatedHistory), "want suffix or empty")
	}
	return nil
}

// resolveEndpoints parses what there is and checks the two endpoints against
// each other.
func (s *settings) resolveEndpoints() (err *Error) {
	null := s.Kind == KindNull
	if !null || s.Endpoint != "" {
		if s.endpoint, err = parseEndpoint(keyEndpoint, s.Endpoint, s.Rank, s.Ranks); err != nil {
			return err
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
	}
	return nil
}

// expandTopic replaces the placeholders. What a placeholder stands for is not
// scanned again.
func (o Options) expandTopic() (string, *Error) {
	bad := func(detail string) (string, *Error) { return "", optionError("topic", o.Topic, detail) }
	var s strings.Builder
	for rest := o.Topic; ; {
		i := strings.IndexByte(rest, '{')
		if i < 0 {
			s.WriteString(rest)
			break
		}
		s.WriteString(rest[:i])
		rest = rest[i:]
		switch {
		case strings.HasPrefix(rest, "{pod}"):
			if o.Pod == "" {
				return "", optionError("pod", "", "the topic names it")
			}
			s.WriteString(o.Pod)
			rest = rest[len("{pod}"):]
		case strings.HasPrefix(rest, "{model}"):
			if o.Model == "" {
				return "", optionError("model", "", "the topic names it")
			}
			s.WriteString(o.Model)
			rest = rest[len("{model}"):]
		case strings.HasPrefix(rest, "{rank}"):
			s.WriteString(strconv.Itoa(o.Rank))
			rest = rest[len("{rank}"):]
		default:
			return bad("{ begins none of {pod}, {model}, {rank}")
		}
	}
	topic := s.String()
	if len(topic) > maxTopic {
		return bad(fmt.Sprintf("%d bytes, want at most %d", len(topic), maxTopic))
	}
	if !utf8.ValidString(topic) {
		return bad("not UTF-8")
	}
	if strings.HasPrefix(topic, "kv@") {
		parts := strings.Split(topic, "@")
		if len(parts) != 3 || parts[1] == "" || parts[2] == "" {
			return bad("a topic that begins with kv@ must be kv@POD@MODEL")
		}
	}
	return topic, nil
}
