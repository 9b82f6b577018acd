// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"testing"
	"time"
)

// The defaults are those of the contract; docs/publisher.md shows the same ones.
func TestDefaults(t *testing.T) {
	want := map[string]string{
		"enable_kv_cache_events": "true", // a program's; a file begins with false
		"publisher":              "zmq",
		"endpoint":               "tcp://127.0.0.1:5557",
		"replay_endpoint":        "",
		"buffer_steps":           "10000",
		"hwm":                    "100000",
		"max_queue_size":         "100000",
		"topic":                  "",
		"data_parallel_rank":     "0",
		"data_parallel_size":     "1",
		"ranks_per_host":         "0",
		"pipeline_parallel_size": "1",
		"context_parallel_size":  "1",
		"bind":                   "true",
		"wait_subscribers":       "0",
		"zmtp_heartbeat":         "5s",
		"zmtp_timeout":           "15s",
		"curve_secret_key_file":  "",
		"curve_allow_file":       "",
		"pod":                    "",
		"model":                  "",
		"encoding":               "map",
		"hash":                   "signed64",
		"hash_width":             "full",
		"max_blocks_per_event":   "0",
		"max_batch_events":       "128",
		"max_batch_blocks":       "8192",
		"flush_delay":            "5ms",
		"shutdown_timeout":       "1s",
		"heartbeat":              "0s",
		"max_queue_bytes":        "67108864",
		"replay_buffer_bytes":    "268435456",
		"multimodal":             "auto",
		"mm_token_id_offset":     "",
		"mm_placeholder_id":      "",
		"lora":                   "id+name",
		"token_ids":              "send",
		"replay_dialect":         "topic",
		"truncated_history":      "snapshot",
		"replay_pad_limit":       "65536",
		"clear_on_start":         "true",
		"clear_on_close":         "true",
		"on_loss":                "gap",
		"resync_interval":        "0s",
		"restart_mark":           "off",
		"first_seq":              "zero",
		"tail_mark":              "on",
		"max_entries":            "50000",
	}
	defaults := DefaultOptions()
	for _, k := range Keys() {
		value, known := want[k.Name]
		if got := k.Get(defaults); !known || got != value {
			t.Errorf("%s is %q, want %q", k.Name, got, value)
		}
		delete(want, k.Name)
	}
	for name := range want {
		t.Errorf("there is no key %s", name)
	}
}

// What has no key but is promised: times and sizes that readers count on, as a publisher
// with the defaults comes to have them.
func TestPromisedLimits(t *testing.T) {
	s := mustNew(t, DefaultOptions()).settings
	for name, c := range map[string]struct{ got, want time.Duration }{
		"tail mark":                   {s.tailDelay, time.Second},
		"longest flush delay":         {maxFlushDelay, 100 * time.Millisecond},
		"pause after a failure":       {failurePause, 100 * time.Millisecond},
		"Close beyond the timeout":    {closeGrace, time.Second},
		"between two snapshots":       {snapshotInterval, time.Second},
		"a request for a snapshot":    {snapshotWait, 30 * time.Second},
		"a slow reader of a snapshot": {snapshotWindow, 5 * time.Second},
		"a replay without progress":   {maxStall, 30 * time.Second},
		"from resync to resync":       {minResyncGap, time.Second},
		"the same, while it fails":    {maxResyncGap, time.Minute},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	for name, c := range map[string]struct{ got, want int }{
		"a payload":             {s.maxMessage, 32 << 20},
		"replays at once":       {maxReplays, 16},
		"snapshots in memory":   {maxSnapshots, 2},
		"numbers a millisecond": {seqPerMillisecond, 1024},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", name, c.got, c.want)
		}
	}
}
