// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// Each key changes the options, gives back what it was set to and leaves all
// other keys alone.
func TestKeys(t *testing.T) {
	other := map[string]string{
		"enable_kv_cache_events": "false", "publisher": "null", "endpoint": "ipc://k", "replay_endpoint": "ipc://r",
		"buffer_steps": "7", "hwm": "8", "max_queue_size": "9", "topic": "t", "data_parallel_rank": "1",
		"data_parallel_size": "2", "ranks_per_host": "3", "pipeline_parallel_size": "4", "context_parallel_size": "5",
		"bind": "false", "wait_subscribers": "6", "zmtp_heartbeat": "1m0s", "zmtp_timeout": "2m0s", "pod": "p",
		"model": "m", "encoding": "array-short", "hash": "bytes", "hash_width": "minimal", "max_blocks_per_event": "10",
		"max_batch_events": "11", "max_batch_blocks": "12", "flush_delay": "13ms", "shutdown_timeout": "14s",
		"heartbeat": "15s", "max_queue_bytes": "16", "replay_buffer_bytes": "17", "multimodal": "suppress",
		"mm_token_id_offset": "18", "mm_placeholder_id": "4294967295", "lora": "id", "token_ids": "omit",
		"replay_dialect": "legacy", "truncated_history": "empty", "replay_pad_limit": "7", "on_loss": "resync", "resync_interval": "20s", "clear_on_start": "false", "clear_on_close": "false",
		"curve_secret_key_file": "secret", "curve_allow_file": "allow", "restart_mark": "on", "first_seq": "time", "tail_mark": "off", "max_entries": "19",
	}
	all := Keys()
	if len(all) != len(other) {
		t.Errorf("%d keys, %d values", len(all), len(other))
	}
	for _, k := range all {
		o, text := DefaultOptions(), other[k.Name]
		before := k.Get(o)
		if err := k.Set(&o, text); err != nil || k.Get(o) != text || text == before {
			t.Errorf("%s: %q -> %q, %v", k.Name, before, k.Get(o), err)
		}
		for _, rest := range all {
			if rest.Name != k.Name && rest.Get(o) != rest.Get(DefaultOptions()) {
				t.Errorf("%s changes %s", k.Name, rest.Name)
			}
		}
	}
}

// A file says what it is to say, whatever the order.
func TestParseConfig(t *testing.T) {
	c, err := ParseConfig([]byte(`{"encoding": "map", "hwm": 5, "enable_kv_cache_events": true, "profile": "aibrix", "pod": null}`))
	if err != nil {
		t.Fatal(err)
	}
	o, err := c.Options()
	if err != nil || o.Encoding != wire.Map || o.MaxBlocksPerEvent != 1 || o.HWM != 5 || o.Disabled || !c.Has("profile") || c.Has("pod") {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := New(o); err != nil {
		t.Error(err)
	}
	// Upstream's default is to publish nothing.
	if c, err = ParseConfig([]byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if o, err = c.Options(); err != nil || !o.Disabled {
		t.Errorf("%+v, %v", o, err)
	}
	var e *Error
	for key := range unavailable {
		_, err := ParseConfig([]byte(fmt.Sprintf(`{%q: "off"}`, key)))
		if !errors.Is(err, ErrOption) || !errors.As(err, &e) || e.Key != key {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// Whatever the text, there is a verdict; what is accepted is JSON with known keys
// that can be applied.
func FuzzParseConfig(f *testing.F) {
	for _, text := range []string{`{}`, `{"hwm":1}`, `{"profile":"llm-d","bind":false}`, `{"hwm":1,"hwm":1}`, `{"pod":null}`, `[`, `{"a`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseConfig(text)
		if err != nil {
			if !errors.Is(err, ErrOption) {
				t.Fatal(err)
			}
			return
		}
		var values map[string]any
		if err := json.Unmarshal(text, &values); err != nil {
			t.Fatalf("%q: accepted, but %v", text, err)
		}
		for key := range values {
			if _, ok := lookupKey(key); !ok && key != keyProfile {
				t.Fatalf("%q: key %q", text, key)
			}
		}
		if _, err := c.Options(); err != nil {
			t.Fatal(err)
		}
	})
}

// The profiles are those of the contract, key by key.
func TestProfiles(t *testing.T) {
	columns := []string{"dynamo", "llm-d", "aibrix", "sgl-router", "kthena", "mooncake", "trtllm", "vllm", "mixed"}
	if !slices.Equal(ProfileNames(), columns) {
		t.Fatalf("%q", ProfileNames())
	}
	for key, row := range map[string][]string{
		"encoding":             {"map", "map", "array", "map", "array", "array", "map", "map", "map"},
		"hash":                 {"signed64", "signed64", "signed64", "signed64", "signed64", "portable63", "signed64", "unsigned64", "portable63"},
		"hash_width":           {"full", "full", "full", "full", "full", "full", "minimal", "minimal", "full"},
		"max_blocks_per_event": {"0", "0", "1", "0", "0", "0", "0", "0", "0"},
		"topic":                {"", "kv@{pod}@{model}", "", "", "kv-events", "", "", "", ""},
		"multimodal": {"extra_keys", "extra_keys", "suppress", "tensorrt", "suppress", "suppress", "tensorrt", "extra_keys",
			"extra_keys"},
		"lora":           {"id+name", "id+name", "id", "id+name", "id", "id", "id", "id+name", "id+name"},
		"replay_dialect": {"topic", "topic", "topic", "topic", "off", "topic", "topic", "topic", "topic"},
		"restart_mark":   {"off", "off", "off", "on", "off", "off", "off", "off", "off"},
		"truncated_history": {"snapshot", "snapshot", "suffix", "snapshot", "snapshot", "snapshot", "suffix", "snapshot",
			"snapshot"},
		"replay_pad_limit": {"65536", "1000000", "65536", "65536", "65536", "65536", "65536", "65536", "65536"},
	} {
		k, _ := lookupKey(key)
		for i, name := range columns {
			o := DefaultOptions()
			if err := o.ApplyProfile(name); err != nil {
				t.Fatal(err)
			}
			if got := k.Get(o); got != row[i] {
				t.Errorf("%s: %s is %q, want %q", name, key, got, row[i])
			}
			o.Pod, o.Model = "10.0.0.1:8000", "m"
			if _, err := New(o); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	var o Options
	if err := o.ApplyProfile("ray"); !errors.Is(err, ErrOption) {
		t.Errorf("an unknown profile: %v", err)
	}
}

// A disabled publisher runs and binds nothing, whatever its kind says.
func TestDisabled(t *testing.T) {
	for _, kind := range []Kind{"", KindZMQ, KindNull} {
		o := localOptions(t)
		o.Disabled, o.Kind, o.Endpoint, o.ReplayEndpoint, o.WaitSubscribers = true, kind, "", "", 3
		p, src := attached(t, o, nil)
		src.record(chain(1, 2))
		mustFlush(t, p)
		if st := p.Stats(); p.Endpoint() != "" || st.PublishedEvents != 2 || st.PublishedBytes != 0 {
			t.Errorf("%q: bound %q, %+v", kind, p.Endpoint(), st)
		}
		if got := p.LatestEvents(); len(got) != 0 {
			t.Errorf("polled %v", got)
		}
		p.Close()
	}
	o := DefaultOptions()
	if o.Kind = ""; o.kind() != KindZMQ {
		t.Error("an unset kind is not zmq")
	}
	var closed Publisher
	if got := closed.LatestEvents(); len(got) != 0 {
		t.Errorf("polled %v", got)
	}
}

// A stream tells of multimodal blocks exactly if they can be written.
func TestStreamConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		want   bindings.Multimodal
	}{
		"map":           {func(*Options) {}, bindings.AnnounceMultimodal},
		"array":         {func(o *Options) { o.Encoding = wire.Array }, bindings.SuppressMultimodal},
		"suppress":      {func(o *Options) { o.Multimodal = MultimodalSuppress }, bindings.SuppressMultimodal},
		"extra_keys":    {func(o *Options) { o.Multimodal = MultimodalExtraKeys }, bindings.SuppressMultimodal},
		"with offset":   {func(o *Options) { o.Multimodal, o.MMTokenIDOffset = MultimodalExtraKeys, 0 }, bindings.AnnounceMultimodal},
		"a placeholder": {func(o *Options) { o.Multimodal, o.MMPlaceholderID = MultimodalExtraKeys, 0 }, bindings.AnnounceMultimodal},
	} {
		o := localOptions(t)
		o.Hash, o.MaxEntries, o.MaxBlocksPerEvent = event.Portable63, 77, 3
		c.change(&o)
		got := o.StreamConfig()
		want := bindings.StreamConfig{Form: event.Portable63, MaxEntries: 77, MaxBlocksPerEvent: 3, Multimodal: c.want}
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		stream, err := bindings.NewStream(got)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stream.Close() })
		p := mustNew(t, o)
		if err := p.Attach(stream); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p.Close()
		stream.Close()
	}
	o := localOptions(t)
	o.Multimodal = MultimodalExtraKeys
	stream, err := bindings.NewStream(bindings.StreamConfig{Multimodal: bindings.AnnounceMultimodal})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var e *Error
	if err := mustNew(t, o).Attach(stream); !errors.Is(err, ErrOption) || !errors.As(err, &e) || e.Key != "multimodal" {
		t.Errorf("a stream whose digests have no form: %v", err)
	}
}

// Eight ranks on a machine bind one range each, of fixed ports that are free.
func TestEightRanks(t *testing.T) {
	const ranks = 8
	for attempt := 0; ; attempt++ {
		base := freePorts(t, 2*ranks)
		seen, err := bindRanks(t, ranks, base)
		if errors.Is(err, ErrAddressInUse) && attempt < 20 {
			continue // somebody took one meanwhile
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 * ranks {
			if name := fmt.Sprintf("tcp://127.0.0.1:%d", base+i); seen[name] != 1 {
				t.Errorf("%s is bound %d times: %q", name, seen[name], slices.Sorted(maps.Keys(seen)))
			}
		}
		return
	}
}

// bindRanks starts all ranks, the replays right behind the streams, and returns
// what they have bound.
func bindRanks(t *testing.T, ranks, base int) (map[string]int, error) {
	seen := make(map[string]int)
	for rank := range ranks {
		o := localOptions(t)
		o.Endpoint = fmt.Sprintf("tcp://127.0.0.1:%d", base)
		o.ReplayEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", base+ranks)
		o.Rank, o.Ranks = rank, ranks
		p := mustNew(t, o)
		defer p.Close()
		if err := p.Start(withPatience(t)); err != nil {
			return nil, err
		}
		seen[p.Endpoint()]++
		seen[p.ReplayEndpoint()]++
	}
	return seen, nil
}
