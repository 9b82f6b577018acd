// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kvcast/kvcast/publisher"
)

// keysOf parses a command line.
func keysOf(t *testing.T, args ...string) *publisherKeys {
	t.Helper()
	var p publisherKeys
	f := pflag.NewFlagSet("replay", pflag.ContinueOnError)
	p.add(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return &p
}

func configFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A profile gives way to the file, and both to the flags.
func TestConfigOrder(t *testing.T) {
	name := configFile(t, `{"profile": "mooncake", "lora": "id+name", "hwm": 7, "flush_delay": "20ms", "clear_on_start": false,
		"replay_endpoint": null, "max_entries": 9}`)
	o, off, err := keysOf(t, "--config", name, "--hwm", "8", "--encoding=array-short").resolve(t.Context())
	if err != nil || off {
		t.Fatal(off, err)
	}
	got := make(map[string]string)
	for _, k := range publisher.Keys() {
		got[k.Name] = k.Get(o)
	}
	for key, want := range map[string]string{
		"hash": "portable63", "multimodal": "suppress", // profile
		"lora": "id+name", "flush_delay": "20ms", "clear_on_start": "false", "max_entries": "9", // file
		"hwm": "8", "encoding": "array-short", // flags
		"clear_on_close": "false", "endpoint": "tcp://127.0.0.1:5557", "publisher": "zmq", // defaults
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	// The flag's profile takes the place of the file's.
	if o, _, err = keysOf(t, "--config", name, "--profile", "vllm").resolve(t.Context()); err != nil || publisher.Keys()[0].Get(o) != "true" {
		t.Fatal(err)
	}
	if o.Hash != 1 || o.LoRAIDOnly || o.HWM != 7 {
		t.Errorf("%+v", o)
	}
	for _, args := range [][]string{
		{"--enable-kv-cache-events=false"}, {"--publisher", "off"},
		{"--config", configFile(t, `{"enable_kv_cache_events": false, "publisher": "zmq"}`)},
	} {
		if _, off, err := keysOf(t, args...).resolve(t.Context()); !off || err != nil {
			t.Errorf("%q: off %v, %v", args, off, err)
		}
	}
}

// What is wrong with a file is said with its name, in one line.
func TestBadConfigs(t *testing.T) {
	for text, want := range map[string]string{
		``:                              "line 1: want one JSON object",
		`[]`:                            "line 1: want one JSON object",
		"{\n\"hwm\": 1,\n":              "line 2: the file ends in the middle of the object",
		"{\n\"topic\": \"\xff\"}":       "line 2: not UTF-8",
		`{"hwm": 1} {}`:                 "line 1: something follows the object",
		`{"hwm": 1, "hwm": 2}`:          `hwm 2: twice`,
		`{"hmw": 1}`:                    `hmw "1": unknown key`,
		`{"hwm": "1"}`:                  `hwm 1: want a whole number, not a string`,
		`{"hwm": 1.5}`:                  `hwm 1.5: want a whole number`,
		`{"hwm": true}`:                 `hwm true: want a whole number`,
		`{"hwm": [1]}`:                  `hwm [: want a whole number`,
		`{"hwm": null}`:                 `hwm null: cannot be unset`,
		`{"hwm": 0}`:                    `hwm 0: want at least 1`,
		`{"flush_delay": 5}`:            `flush_delay 5: want a duration in quotes, such as "500ms"`,
		`{"flush_delay": "5"}`:          `flush_delay 5: want a duration, such as 500ms or 1m30s`,
		`{"bind": "false"}`:             `bind false: want true or false, not a string`,
		`{"topic": 1}`:                  `topic "1": want a string`,
		`{"pod": ""}`:                   `pod "": empty`,
		`{"restart_mark": true}`:        `restart_mark "true": want a string`,
		`{"group_fields": "off"}`:       `group_fields "off": events of several groups are not built yet`,
		`{"tier_events": "on"}`:         `tier_events "on": tiers are not built yet`,
		`{"on_loss": "clear"}`:          `on_loss "clear": want gap or resync`,
		`{"replay_pad_limit": -1}`:      `replay_pad_limit -1: want 0 or more`,
		`{"profile": "ray"}`:            `profile "ray": want ` + profileNames,
		`{"endpoint": "inproc://x"}`:    `endpoint "inproc://x": nobody could reach it from outside; want tcp:// or ipc://`,
		`{"endpoint": "udp://h:1"}`:     `endpoint "udp://h:1": unknown scheme; want tcp://, ipc:// or inproc:// in lower case`,
		`{"data_parallel_size": 99999}`: `endpoint "tcp://127.0.0.1:5557": `,
		`{"pipeline_parallel_size": 2}`: `pipeline_parallel_size 2: ` + noPipeline,
		`{"multimodal": "tensorrt", "encoding": "array"}`: `multimodal "tensorrt": needs the encoding map: array has no place for mm_keys`,
	} {
		name := configFile(t, text)
		code, printed, said := runCommand(t.Context(), "replay", "--trace", "/dev/null", "--config", name)
		where := "kvcast: --config " + name + ": "
		if strings.HasPrefix(want, "endpoint") && strings.HasSuffix(want, ": ") {
			where = "kvcast: --" // the default is at fault
		}
		if code != exitUnusable || printed != "" || strings.Count(said, "\n") != 1 ||
			!strings.HasPrefix(said, where+want) || !strings.HasSuffix(want, ": ") && said != where+want+"\n" {
			t.Errorf("%s\n got %d %q\nwant %q", text, code, said, where+want)
		}
	}
}

// The documentation names every key with its default.
func TestKeysAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/publisher.md")
	if err != nil {
		t.Fatal(err)
	}
	defaults := publisher.DefaultOptions()
	for _, k := range publisher.Keys() {
		value := k.Get(defaults)
		if k.Optional && value == "" {
			value = "unset"
		} else if k.Name == "publisher" {
			value = "unset"
		} else if k.Name == "enable_kv_cache_events" {
			value = "false"
		} else if value == "" {
			value = `""`
		}
		row := "| `" + k.Name + "` | `" + value + "` |"
		if !strings.Contains(string(text), row) {
			t.Errorf("docs/publisher.md lacks %s", row)
		}
	}
}

// A run of which everything is said in a file.
func TestRunFromConfig(t *testing.T) {
	folder := t.TempDir()
	trace := filepath.Join(folder, "trace")
	if err := os.WriteFile(trace, []byte(oneRequest), 0o600); err != nil {
		t.Fatal(err)
	}
	name := configFile(t, `{"profile": "aibrix", "endpoint": "tcp://127.0.0.1:0", "hash": "portable63"}`)
	code, printed, said := runCommand(t.Context(), "replay", "--trace", trace, "--config", name, "--json")
	var s summary
	if err := json.Unmarshal([]byte(printed), &s); code != exitGood || err != nil {
		t.Fatalf("%d, %q, %v", code, said, err)
	}
	// One block in each event, and the clear of the start.
	if s.Hash != "portable63" || s.Encoding != "array" || s.StoredBlocks == 0 || s.Events != s.StoredBlocks+1 {
		t.Errorf("%+v", s)
	}
}
