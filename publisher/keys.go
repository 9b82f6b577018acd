// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// KeyType says which values a Key takes.
type KeyType string

const (
	// BoolKey takes true and false.
	BoolKey KeyType = "bool"
	// IntKey takes decimal integers.
	IntKey KeyType = "int"
	// DurationKey takes what time.ParseDuration does.
	DurationKey KeyType = "duration"
	// StringKey takes text, or one of the words that Usage names.
	StringKey KeyType = "string"
)

// Key is a key of the configuration in the words of the wire contract, for
// configuration files and command lines. It can be copied.
type Key struct {
	// Name, such as max_batch_events.
	Name string
	Type KeyType
	// Usage says in a few words what it is.
	Usage string
	// Optional keys can be unset.
	Optional bool

	get func(*Options) string
	set func(*Options, string) error
}

// Get returns the value that the options have, "" for one that is unset.
func (k Key) Get(o Options) string { return k.get(&o) }

// Set changes one value of o. Text that is no value of the key's type is an
// *Error that wraps ErrOption; ranges are checked by New, which sees all keys.
func (k Key) Set(o *Options, text string) error {
	if err := k.set(o, text); err != nil {
		return &Error{Op: "config", Key: k.Name, Value: text, Err: ErrOption, Detail: err.Error(), Cause: rangeOf(err)}
	}
	return nil
}

// typeError is a value of the wrong type; tooLarge one that is a number.
type typeError struct {
	want     string
	tooLarge bool
}

func (e typeError) Error() string { return e.want }

// rangeOf returns strconv.ErrRange for a number that is too large.
func rangeOf(err error) error {
	var e typeError
	if errors.As(err, &e) && e.tooLarge {
		return strconv.ErrRange
	}
	return nil
}

// Keys returns all keys but profile, which is not an option but a set of them,
// in the order of the wire contract.
func Keys() []Key { return slices.Clone(keys) }

// lookupKey finds a key by its name.
func lookupKey(name string) (Key, bool) {
	if i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name }); i >= 0 {
		return keys[i], true
	}
	return Key{}, false
}

// unavailable are keys of the contract whose feature does not exist. They are
// refused whatever their value, so that nobody relies on one of them.
var unavailable = map[string]string{
	"group_fields": "events of several groups are not built yet",
	"tier_events":  "tiers are not built yet",
}

// keys is never changed.
var keys = []Key{
	boolKey("enable_kv_cache_events", "false: nothing is bound, and events are discarded",
		func(o *Options) *bool { return &o.Disabled }, "false", "true"),
	textKey("publisher", "zmq, or null (drains and discards, no socket)",
		func(o *Options) *string { return (*string)(&o.Kind) }).optional(),
	textKey("endpoint", "where the stream is bound", func(o *Options) *string { return &o.Endpoint }),
	textKey("replay_endpoint", "where requests for earlier batches are answered",
		func(o *Options) *string { return &o.ReplayEndpoint }).optional(),
	intKey("buffer_steps", "batches kept for such requests", func(o *Options) *int { return &o.BufferSteps }),
	intKey("hwm", "messages that may wait for one subscriber", func(o *Options) *int { return &o.HWM }),
	intKey("max_queue_size", "batches that a host's own events may leave waiting",
		func(o *Options) *int { return &o.MaxQueueSize }),
	textKey("topic", "topic of all messages; {pod}, {model} and {rank} are replaced",
		func(o *Options) *string { return &o.Topic }),
	intKey("data_parallel_rank", "global rank, added to the ports", func(o *Options) *int { return &o.Rank }),
	intKey("data_parallel_size", "number of ranks", func(o *Options) *int { return &o.Ranks }),
	intKey("ranks_per_host", "ranks that share the ports of a machine (0 = all)",
		func(o *Options) *int { return &o.RanksPerHost }),
	intKey("pipeline_parallel_size", "must be 1", func(o *Options) *int { return &o.PipelineParallelSize }),
	intKey("context_parallel_size", "must be 1", func(o *Options) *int { return &o.ContextParallelSize }),
	boolKey("bind", "false: the stream connects to a subscriber that has bound",
		func(o *Options) *bool { return &o.Connect }, "false", "true"),
	intKey("wait_subscribers", "send nothing before N have subscribed",
		func(o *Options) *int { return &o.WaitSubscribers }),
	durationKey("zmtp_heartbeat", "probe silent connections that often (0 = never)",
		func(o *Options) *time.Duration { return &o.ZMTPHeartbeat }),
	durationKey("zmtp_timeout", "cut off who does not answer a probe for that long",
		func(o *Options) *time.Duration { return &o.ZMTPTimeout }),
	textKey(keySecret, "secret key of the publisher (CURVE on both sockets), with mode 0600",
		func(o *Options) *string { return &o.CurveSecretKeyFile }).optional(),
	textKey(keyAllow, "public keys of those who may connect, one on each line",
		func(o *Options) *string { return &o.CurveAllowFile }).optional(),
	textKey("pod", "what {pod} in the topic stands for", func(o *Options) *string { return &o.Pod }).optional(),
	textKey("model", "what {model} in the topic stands for", func(o *Options) *string { return &o.Model }).optional(),
	wordKey("encoding", "form of the events", []string{"map", "array", "array-short"},
		func(o *Options) string { return o.Encoding.String() },
		func(o *Options, i int) { o.Encoding = wire.Encoding(i) }),
	wordKey("hash", "form of the hashes", []string{"signed64", "unsigned64", "portable63", "bytes"},
		func(o *Options) string { return formName(o.Hash) },
		func(o *Options, i int) { o.Hash = event.Form(i) }),
	boolKey("hash_width", "full (9 bytes) or minimal", func(o *Options) *bool { return &o.MinimalHashes },
		"minimal", "full"),
	intKey("max_blocks_per_event", "split larger events (0 = at 65536)",
		func(o *Options) *int { return &o.MaxBlocksPerEvent }),
	intKey("max_batch_events", "events of a batch (0 = no limit)", func(o *Options) *int { return &o.MaxBatchEvents }),
	intKey("max_batch_blocks", "blocks of a batch (0 = no limit)", func(o *Options) *int { return &o.MaxBatchBlocks }),
	durationKey("flush_delay", "longest wait of a recorded event",
		func(o *Options) *time.Duration { return &o.FlushDelay }),
	durationKey("shutdown_timeout", "longest flush at the end",
		func(o *Options) *time.Duration { return &o.ShutdownTimeout }),
	durationKey("heartbeat", "send an empty batch after that much silence (0 = never)",
		func(o *Options) *time.Duration { return &o.Heartbeat }),
	int64Key("max_queue_bytes", "the size of what waits in max_queue_size (0 = no limit)",
		func(o *Options) *int64 { return &o.MaxQueueBytes }),
	int64Key("replay_buffer_bytes", "the size of what buffer_steps keeps (0 = no limit)",
		func(o *Options) *int64 { return &o.ReplayBufferBytes }),
	textKey("multimodal", "blocks with multimodal items: auto, tensorrt, extra_keys or suppress",
		func(o *Options) *string { return (*string)(&o.Multimodal) }),
	unsetKey("mm_token_id_offset", "id above which tokens are positions of an item",
		func(o *Options) *int64 { return &o.MMTokenIDOffset }),
	unsetKey("mm_placeholder_id", "extra_keys: the id written for all positions of items",
		func(o *Options) *int64 { return &o.MMPlaceholderID }),
	boolKey("lora", "id+name or id", func(o *Options) *bool { return &o.LoRAIDOnly }, "id", "id+name"),
	boolKey("token_ids", "send or omit", func(o *Options) *bool { return &o.OmitTokens }, "omit", "send"),
	textKey("replay_dialect", "frames of the answers: topic, legacy or off",
		func(o *Options) *string { return (*string)(&o.ReplayDialect) }),
	textKey("truncated_history", "answer when the history is too short: snapshot, suffix or empty",
		func(o *Options) *string { return (*string)(&o.TruncatedHistory) }),
	intKey("replay_pad_limit", "numbers that a snapshot is filled up to with empty batches",
		func(o *Options) *int { return &o.ReplayPadLimit }),
	boolKey("clear_on_start", "begin with a clear", func(o *Options) *bool { return &o.ClearOnStart }, "true", "false"),
	boolKey("clear_on_close", "end with a clear", func(o *Options) *bool { return &o.ClearOnClose }, "true", "false"),
	textKey("on_loss", "after a batch that could not be sent: gap, or resync (all blocks anew)",
		func(o *Options) *string { return (*string)(&o.OnLoss) }),
	durationKey(keyResyncInterval, "send all blocks anew that long after the last time (0 = never)",
		func(o *Options) *time.Duration { return &o.ResyncInterval }),
	boolKey("restart_mark", "on or off: sgl-router's mark of a new life",
		func(o *Options) *bool { return &o.RestartMark }, "on", "off"),
	textKey("first_seq", "where numbers begin: zero or time", func(o *Options) *string { return (*string)(&o.FirstSeq) }),
	boolKey("tail_mark", "on or off: an empty batch 1 s after the last one",
		func(o *Options) *bool { return &o.TailMark }, "on", "off"),
	intKey("max_entries", "stored blocks that may wait for the publisher",
		func(o *Options) *int { return &o.MaxEntries }),
}

func (k Key) optional() Key {
	k.Optional = true
	return k
}

func textKey(name, usage string, at func(*Options) *string) Key {
	return Key{Name: name, Type: StringKey, Usage: usage,
		get: func(o *Options) string { return *at(o) },
		set: func(o *Options, text string) error { *at(o) = text; return nil }}
}

// boolKey is a flag; yes and no are the words for its two states. Words other
// than true and false make the key one of text.
func boolKey(name, usage string, at func(*Options) *bool, yes, no string) Key {
	kind, want := StringKey, "want "+yes+" or "+no
	if yes == "true" || no == "true" {
		kind, want = BoolKey, "want true or false"
	}
	return Key{Name: name, Type: kind, Usage: usage,
		get: func(o *Options) string {
			if *at(o) {
				return yes
			}
			return no
		},
		set: func(o *Options, text string) error {
			if text != yes && text != no {
				return typeError{want: want}
			}
			*at(o) = text == yes
			return nil
		}}
}

func wordKey(name, usage string, words []string, get func(*Options) string, set func(*Options, int)) Key {
	last := len(words) - 1
	want := strings.Join(words[:last], ", ") + " or " + words[last]
	return Key{Name: name, Type: StringKey, Usage: usage + ": " + want, get: get,
		set: func(o *Options, text string) error {
			i := slices.Index(words, text)
			if i < 0 {
				return typeError{want: "want " + want}
			}
			set(o, i)
			return nil
		}}
}

func durationKey(name, usage string, at func(*Options) *time.Duration) Key {
	return Key{Name: name, Type: DurationKey, Usage: usage,
		get: func(o *Options) string { return at(o).String() },
		set: func(o *Options, text string) (err error) {
			d, err := time.ParseDuration(text)
			if err != nil {
				return typeError{want: "want a duration, such as 500ms or 1m30s"}
			}
			*at(o) = d
			return nil
		}}
}

func parseInt(text string, bits int) (int64, error) {
	n, err := strconv.ParseInt(text, 10, bits)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, typeError{want: "want a whole number that is not so large", tooLarge: true}
	case err != nil:
		return 0, typeError{want: "want a whole number"}
	}
	return n, nil
}

func intKey(name, usage string, at func(*Options) *int) Key {
	return Key{Name: name, Type: IntKey, Usage: usage,
		get: func(o *Options) string { return strconv.Itoa(*at(o)) },
		set: func(o *Options, text string) error {
			n, err := parseInt(text, strconv.IntSize)
			if err == nil {
				*at(o) = int(n)
			}
			return err
		}}
}

func int64Key(name, usage string, at func(*Options) *int64) Key {
	return Key{Name: name, Type: IntKey, Usage: usage,
		get: func(o *Options) string { return strconv.FormatInt(*at(o), 10) },
		set: func(o *Options, text string) error {
			n, err := parseInt(text, 64)
			if err == nil {
				*at(o) = n
			}
			return err
		}}
}

// unsetKey is a number that is -1 in the options when it is unset.
func unsetKey(name, usage string, at func(*Options) *int64) Key {
	k := int64Key(name, usage, at)
	get, set := k.get, k.set
	k.Optional = true
	k.get = func(o *Options) string {
		if *at(o) == -1 {
			return ""
		}
		return get(o)
	}
	k.set = func(o *Options, text string) error {
		if err := set(o, text); err != nil {
			return err
		}
		if *at(o) < 0 {
			*at(o) = -1
			return typeError{want: "want 0 or more"}
		}
		return nil
	}
	return k
}
