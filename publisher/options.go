// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"time"

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
	// TruncatedSnapshot answers with all that is announced as of the newest batch,
	// at the number that was asked for (wire contract, section 10). Without an
	// attached source that has snapshots, and when one cannot be made, it is
	// TruncatedSuffix.
	TruncatedSnapshot TruncatedHistory = "snapshot"
	// TruncatedSuffix answers with that run. Its first number, above the one
	// that was asked for, shows the cut.
	TruncatedSuffix TruncatedHistory = "suffix"
	// TruncatedEmpty answers with the end mark alone.
	TruncatedEmpty TruncatedHistory = "empty"
)

// OnLoss says what follows an invalid event, and a batch that could not be encoded
// or sent: they had numbers, which never come.
type OnLoss string

const (
	// LossGap leaves the hole, which readers cure by a replay.
	LossGap OnLoss = "gap"
	// LossResync sends a clear and all announced blocks anew. It needs an attached
	// source that has snapshots.
	LossResync OnLoss = "resync"
)

// MultimodalForm selects how blocks are written that have 32-byte digests of
// multimodal items among their tokens (wire contract, section 7).
type MultimodalForm string

const (
	// MultimodalAuto is MultimodalTensorRT with the map encoding and
	// MultimodalSuppress with the array forms.
	MultimodalAuto MultimodalForm = "auto"
	// MultimodalTensorRT writes a digest as a string of 64 hex digits among the
	// token ids, and with Options.MMTokenIDOffset the items of each block as
	// mm_keys. Most readers other than TensorRT-LLM's lose the whole batch to
	// such a string, so it never shares one with events of text alone.
	MultimodalTensorRT MultimodalForm = "tensorrt"
	// MultimodalExtraKeys writes integers alone, and the items of each block as
	// extra_keys.
	MultimodalExtraKeys MultimodalForm = "extra_keys"
	// MultimodalSuppress tells nothing of such blocks and of those below them:
	// the stream leaves them out, see Options.StreamConfig.
	MultimodalSuppress MultimodalForm = "suppress"
)

// FirstSeq selects where the numbers of a life begin.
type FirstSeq string

const (
	// FirstZero begins at 0.
	FirstZero FirstSeq = "zero"
	// FirstTime begins at Unix milliseconds times 1024, so that the numbers of a
	// later life are higher: a restart is then an ordinary gap to readers that
	// ignore lower numbers.
	FirstTime FirstSeq = "time"
)

// Options configures a Publisher. Begin with [DefaultOptions]: the zero value
// is not valid, because 0 has a meaning of its own in many fields. The names of
// the wire contract ("key") are those that errors use.
type Options struct {
	// Disabled wins over Kind: nothing is bound, and what comes is discarded as
	// with KindNull. A host makes no stream then. Key enable_kv_cache_events
	// (false), default false; a configuration file begins with true.
	Disabled bool
	// Kind: key publisher, default KindZMQ. "" is KindZMQ, or KindNull when
	// Disabled.
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
	// system does not tell what it has sent, so nobody is cut off there for that: put
	// the path where only those can open it who are trusted not to flood. What waits
	// for a peer that asks for replays and does not read them is bounded there as well.
	Endpoint string
	// Rank is the global data-parallel rank, 0 <= Rank < Ranks; it is the third
	// element of every payload. Key data_parallel_rank, default 0.
	Rank int
	// Ranks is the number of ranks. All checks cover the whole range, so that
	// every rank comes to the same verdict. Key data_parallel_size, default 1.
	Ranks int
	// PipelineParallelSize and ContextParallelSize must be 1: the ranks of such a
	// group hold parts of the same blocks, and an event says that a block is
	// there as a whole. Keys pipeline_parallel_size and context_parallel_size,
	// default 1.
	PipelineParallelSize, ContextParallelSize int
	// Connect makes the live socket connect to Endpoint, where a subscriber has
	// bound, instead of binding it. No rank is added then, and *, 0.0.0.0, [::]
	// and port 0 name nobody. Replays are always bound. Key bind (false),
	// default false.
	Connect bool

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
	// TruncatedHistory: key truncated_history, default TruncatedSnapshot.
	TruncatedHistory TruncatedHistory
	// ReplayPadLimit bounds how many numbers a snapshot is filled up to with empty
	// batches, so that it is a run up to the newest number; a longer one ends early.
	// Key replay_pad_limit, default 65536 (>= 0).
	ReplayPadLimit int
	// OnLoss: key on_loss, default LossGap.
	OnLoss OnLoss
	// ResyncInterval is how long after the end of the last one (or after Start) all
	// announced blocks are sent anew as Resync does, whether anything was lost or
	// not: for subscribers that cannot ask for a replay. 0 = never; else 1 s to
	// 24 h. It needs an attached source that has snapshots. Key resync_interval,
	// default 0.
	ResyncInterval time.Duration
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
	// Multimodal is how blocks with digests among their tokens are written. Key
	// multimodal, default MultimodalAuto.
	Multimodal MultimodalForm
	// MMTokenIDOffset is the id above which tokens are positions of an item
	// (position k is the offset + k), and MMPlaceholderID what MultimodalExtraKeys
	// writes in place of all of them; -1 = unset. Keys mm_token_id_offset (0 to
	// 2^31-1) and mm_placeholder_id (0 to 2^32-1), default unset.
	MMTokenIDOffset, MMPlaceholderID int64
	// LoRAIDOnly leaves lora_name out. Key lora (id), default false (id+name).
	LoRAIDOnly bool
	// OmitTokens writes an empty token_ids with the real block_size. Readers that
	// compute their own hashes of prompts (Dynamo, llm-d, AIBrix) match nothing
	// then. Key token_ids (omit), default false (send).
	OmitTokens bool

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

	// CurveSecretKeyFile and CurveAllowFile switch CURVE on, for both sockets and
	// together or not at all: only peers with a public key on the list, who know
	// the publisher's public key, get anything. The first file holds the
	// publisher's secret key, alone or in a certificate of CZMQ's; nobody but its
	// owner may have rights to it. The second one has a public key on each line and
	// may be changed by its owner only. Both are read by New. Not with inproc,
	// which has no handshake. A shared Context must have no other ZAP handler, and
	// gets ours, which turns away peers of other sockets that ask one. Keys
	// curve_secret_key_file and curve_allow_file, default unset.
	CurveSecretKeyFile, CurveAllowFile string

	// MaxBlocksPerEvent splits larger events; 0 = only where the wire contract
	// does, at 65536 blocks. Key max_blocks_per_event, default 0.
	MaxBlocksPerEvent int
	// MaxBatchEvents and MaxBatchBlocks close a batch; 0 = no limit. One event
	// with more blocks goes alone. Events of more than 8 MiB are split and batches
	// closed at 16 MiB in any case, so that readers that take 32 MiB take all. Keys
	// max_batch_events and max_batch_blocks, default 128 and 8192.
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

	// RestartMark sends a message with the number 2^64-1 and no payload before
	// batch 0 and as the very last one: sgl-router's sign that numbers begin anew.
	// Others reconnect on it or refuse it. Key restart_mark (on, off), default
	// false.
	RestartMark bool
	// FirstSeq is the number of the first batch. Key first_seq, default FirstZero.
	FirstSeq FirstSeq
	// TailMark sends one empty batch a second after the last other one, so that
	// the loss of the last batches before a silence shows as a gap. Key tail_mark
	// (on, off), default true.
	TailMark bool
	// Heartbeat is how long nothing may be sent before an empty batch is; 0 =
	// never. Values under 1 ms act as 1 ms. Key heartbeat, default 0.
	Heartbeat time.Duration

	// MaxEntries is the number of stored blocks that may wait in the stream, for
	// StreamConfig; a publisher does not use it. Key max_entries, default 50000.
	MaxEntries int

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
		Kind:                 KindZMQ,
		Endpoint:             "tcp://127.0.0.1:5557",
		Ranks:                1,
		PipelineParallelSize: 1,
		ContextParallelSize:  1,
		BufferSteps:          10000,
		ReplayBufferBytes:    256 << 20,
		ReplayDialect:        ReplayTopic,
		TruncatedHistory:     TruncatedSnapshot,
		ReplayPadLimit:       65536,
		OnLoss:               LossGap,
		HWM:                  100000,
		ZMTPHeartbeat:        5 * time.Second,
		ZMTPTimeout:          15 * time.Second,
		Multimodal:           MultimodalAuto,
		MMTokenIDOffset:      -1,
		MMPlaceholderID:      -1,
		MaxBatchEvents:       128,
		MaxBatchBlocks:       8192,
		FlushDelay:           5 * time.Millisecond,
		ShutdownTimeout:      time.Second,
		ClearOnStart:         true,
		ClearOnClose:         true,
		FirstSeq:             FirstZero,
		TailMark:             true,
		MaxEntries:           50000,
		MaxQueueSize:         100000,
		MaxQueueBytes:        64 << 20,
	}
}
