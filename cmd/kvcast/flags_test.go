// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// badValue is a value of a flag and what is said about it.
type badValue struct{ value, want string }

// badNumbers are those that every flag for a number refuses.
func badNumbers(more ...badValue) []badValue {
	return append([]badValue{
		{"", "want a whole number"}, {"x", "want a whole number"}, {"1.5", "want a whole number"}, {"1e3", "want a whole number"},
		{"99999999999999999999", "want a whole number that is not so large"},
	}, more...)
}

// badTimes are those that every flag for a duration of the publisher refuses.
func badTimes(most string, more ...badValue) []badValue {
	want := "want a duration, such as 500ms or 1m30s"
	return append([]badValue{{"", want}, {"5", want}, {"1y", want}, {"9999999h", want}, {"-1s", "want 0 to " + most}}, more...)
}

var (
	badBools     = []badValue{{"", "want true or false"}, {"maybe", "want true or false"}}
	badDurations = []badValue{
		{"", "want a duration, such as 500ms or 1m30s"}, {"5", "want a duration, such as 500ms or 1m30s"},
		{"1y", "want a duration, such as 500ms or 1m30s"}, {"-1s", "want 0 or more"},
		{"9999999h", "want a duration, such as 500ms or 1m30s"},
	}
	badFiles = []badValue{
		{"", "want a file"}, {".", "is a directory"}, {"/no/such/file", "no such file or directory"},
		{"/dev/null/x", "not a directory"}, {"a\x00b", "invalid argument"},
	}
	badSwitches  = []badValue{{"", "want on or off"}, {"true", "want on or off"}}
	profileNames = "dynamo, llm-d, aibrix, sgl-router, kthena, mooncake, trtllm, vllm or mixed"
	noPipeline   = "want 1: each stage holds its own layers of a block only, but an event says that a block is there as a whole"
	noContext    = "want 1: each rank holds its own part of the tokens only, but an event says that a block is there as a whole"
	badEndpoints = []badValue{
		{"127.0.0.1:5557", "no scheme; want tcp://, ipc:// or inproc://"},
		{"udp://127.0.0.1:1", "unknown scheme; want tcp://, ipc:// or inproc:// in lower case"},
		{"TCP://127.0.0.1:1", "unknown scheme; want tcp://, ipc:// or inproc:// in lower case"},
		{"inproc://x", "nobody could reach it from outside; want tcp:// or ipc://"},
		{"tcp://127.0.0.1", "no port"}, {"tcp://127.0.0.1:", "no port"}, {"tcp://:1", "no host"},
		{"tcp://127.0.0.1:5x", "the port is not a number"}, {"tcp://127.0.0.1:-1", "the port is not a number"},
		{"tcp://127.0.0.1:65536", "the port is above 65535"}, {"tcp://::1:5557", "an IPv6 address needs brackets"},
		{"tcp://[::1:5557", "no IPv6 address in the brackets"}, {"tcp://a b:1", "' ' in the host"},
		{"tcp://127.0.0.1:1\n2", "control characters"}, {"ipc://", "no path or name"},
		{"ipc:///" + strings.Repeat("p", 107), "path of 108 bytes for the last rank, want at most 107"},
	}
)

// badValues holds for each flag of each command what it must refuse.
var badValues = map[string]map[string][]badValue{
	"kvcast":  {"help": badBools},
	"help":    {"help": badBools},
	"version": {"help": badBools, "json": badBools},
	"doctor":  {"help": badBools, "json": badBools},
	"replay": {
		"help":  badBools,
		"trace": badFiles,
		"limit": badNumbers(badValue{"-1", "want at least 0"}),
		"block-size": badNumbers(badValue{"-1", "want 1 to 4096"}, badValue{"0", "want 1 to 4096"},
			badValue{"4097", "want 1 to 4096"}),
		"capacity-blocks": badNumbers(badValue{"0", "want 1 to 134217728"}, badValue{"134217729", "want 1 to 134217728"}),
		"device": {{"", "want auto, host or cuda:N"}, {"gpu", "want auto, host or cuda:N"}, {"cuda:x", "want auto, host or cuda:N"},
			{"cuda:00", "want auto, host or cuda:N"}, {"HOST", "want auto, host or cuda:N"}},
		"policy":      {{"", "want lru or lrfu"}, {"LRU", "want lru or lrfu"}, {"fifo", "want lru or lrfu"}},
		"lrfu-ghosts": badNumbers(badValue{"-1", "want 0 to 1073741824"}, badValue{"1073741825", "want 0 to 1073741824"}),
		"lrfu-tau":    badNumbers(badValue{"0", "want 1 to 4294967295"}, badValue{"4294967296", "want 1 to 4294967295"}),
		"concurrency": badNumbers(badValue{"0", "want 1 to 1048575"}, badValue{"1048576", "want 1 to 1048575"}),
		"decode":      badBools,
		"speed": {{"", "want a number"}, {"fast", "want a number"}, {"1e999", "want a number that is not so large"},
			{"-1", "want 0 or a positive number"}, {"NaN", "want 0 or a positive number"}, {"-Inf", "want 0 or a positive number"},
			{"+Inf", "want 0 or a positive number"}},
		"config": append([]badValue{{".", "is a directory"}, {"/no/such/file", "no such file or directory"},
			{"/dev/null", "line 1: want one JSON object"}}, badFiles[:1]...),
		"profile":                {{"", "want a profile"}, {"Dynamo", "want " + profileNames}, {"ray", "want " + profileNames}},
		"enable-kv-cache-events": badBools,
		"publisher":              {{"", "want zmq, null or off"}, {"kafka", "want zmq, null or off"}, {"ZMQ", "want zmq, null or off"}},
		"endpoint":               append([]badValue{{"", "empty"}}, badEndpoints...),
		"replay-endpoint":        append([]badValue{{"", "want an endpoint"}}, badEndpoints...),
		"buffer-steps":           badNumbers(badValue{"0", "want at least 1"}, badValue{"-1", "want at least 1"}),
		"hwm":                    badNumbers(badValue{"0", "want at least 1"}, badValue{"2147483648", "want at most 2147483647"}),
		"max-queue-size":         badNumbers(badValue{"0", "want at least 1"}),
		"max-queue-bytes":        badNumbers(badValue{"-1", "want at least 0"}),
		"data-parallel-rank":     badNumbers(badValue{"-1", "want 0 to 0"}, badValue{"1", "want 0 to 0"}),
		"data-parallel-size":     badNumbers(badValue{"0", "want at least 1"}, badValue{"-1", "want at least 1"}),
		"ranks-per-host":         badNumbers(badValue{"2", "want 1 to 1, or 0 for all"}, badValue{"-1", "want 1 to 1, or 0 for all"}),
		"pipeline-parallel-size": badNumbers(badValue{"2", noPipeline}, badValue{"0", noPipeline}),
		"context-parallel-size":  badNumbers(badValue{"2", noContext}, badValue{"-1", noContext}),
		"bind":                   badBools,
		"zmtp-heartbeat":         badTimes("24h0m0s", badValue{"1us", "want whole milliseconds"}),
		"zmtp-timeout":           badTimes("24h0m0s", badValue{"25h", "want 0 to 24h0m0s"}),
		"curve-secret-key-file":  {{"", "empty"}, {"/no/such/file", "there is no curve_allow_file"}},
		"curve-allow-file":       {{"", "empty"}, {"/no/such/file", "there is no curve_secret_key_file"}},
		"pod":                    {{"", "empty"}},
		"model":                  {{"", "empty"}},
		"hash-width":             {{"", "want minimal or full"}, {"9", "want minimal or full"}},
		"max-blocks-per-event":   badNumbers(badValue{"-1", "want at least 0"}, badValue{"4294967296", "want at most 4294967295"}),
		"max-batch-events":       badNumbers(badValue{"-1", "want at least 0"}),
		"max-batch-blocks":       badNumbers(badValue{"-1", "want at least 0"}),
		"flush-delay":            badTimes("100ms", badValue{"101ms", "want 0 to 100ms"}),
		"shutdown-timeout":       badTimes("24h0m0s"),
		"heartbeat":              badTimes("24h0m0s", badValue{"24h1s", "want 0 to 24h0m0s"}),
		"multimodal":             {{"", "want auto, tensorrt, extra_keys or suppress"}, {"all", "want auto, tensorrt, extra_keys or suppress"}},
		"mm-token-id-offset":     badNumbers(badValue{"-1", "want 0 or more"}, badValue{"2147483648", "want 0 to 2147483647"}),
		"mm-placeholder-id":      badNumbers(badValue{"-1", "want 0 or more"}, badValue{"4294967296", "want 0 to 4294967295"}),
		"lora":                   {{"", "want id or id+name"}, {"name", "want id or id+name"}},
		"token-ids":              {{"", "want omit or send"}, {"no", "want omit or send"}},
		"truncated-history":      {{"", "want snapshot, suffix or empty"}, {"full", "want snapshot, suffix or empty"}},
		"replay-pad-limit":       badNumbers(badValue{"-1", "want 0 or more"}),
		"on-loss":                {{"", "want gap or resync"}, {"clear", "want gap or resync"}},
		"resync-interval":        badTimes("24h0m0s", badValue{"999ms", "want 0 (never) or 1s to 24h0m0s"}),
		"clear-on-start":         badBools,
		"restart-mark":           badSwitches,
		"first-seq":              {{"", "want zero or time"}, {"one", "want zero or time"}},
		"tail-mark":              badSwitches,
		"sink-blocks":            badNumbers(badValue{"0", "want at least 1"}, badValue{"4294967296", "want at most 4294967295"}),
		"replay-buffer-bytes":    badNumbers(badValue{"-1", "want at least 0"}),
		"replay-dialect":         {{"", "want topic, legacy or off"}, {"vllm", "want topic, legacy or off"}},
		"topic": {{"{host}", "{ begins none of {pod}, {model}, {rank}"}, {"{pod}", "--pod is missing"},
			{"kv@{pod}@{model}", "--pod is missing"}, {"kv@a", "a topic that begins with kv@ must be kv@POD@MODEL"},
			{strings.Repeat("t", 256), "256 bytes, want at most 255"}, {"\xff", "not UTF-8"}},
		"encoding": {{"", "want map, array or array-short"}, {"list", "want map, array or array-short"},
			{"Map", "want map, array or array-short"}},
		"hash": {{"", "want signed64, unsigned64, portable63 or bytes"}, {"md5", "want signed64, unsigned64, portable63 or bytes"}},
		"wait-subscribers": badNumbers(badValue{"-1", "want at least 0"},
			badValue{"2147483648", "want at most 2147483647"}),
		"metrics": {{"", "want HOST:PORT"}, {"127.0.0.1", "want HOST:PORT: missing port in address"},
			{"127.0.0.1:", "want HOST:PORT: no port"}, {"127.0.0.1:65536", "want HOST:PORT: invalid port"},
			{"127.0.0.1:x", "want HOST:PORT: unknown port"}, {"192.0.2.1:0", "bind: cannot assign requested address"}},
		"hold":           badDurations,
		"json":           badBools,
		"resident-out":   badFiles,
		"clear-on-close": badBools,
	},
	"tap": {
		"help": badBools,
		"replay": {{"", "want an endpoint"}, {"127.0.0.1:1", "no scheme; want tcp:// or ipc://"},
			{"udp://127.0.0.1:1", "unknown scheme; want tcp:// or ipc:// in lower case"},
			{"inproc://x", "unknown scheme; want tcp:// or ipc:// in lower case"}, {"tcp://127.0.0.1", "no port"},
			{"tcp://127.0.0.1:0", "the port must be 1 to 65535"}, {"tcp://127.0.0.1:65536", "the port must be 1 to 65535"},
			{"tcp://*:1", "an address of all interfaces cannot be connected to"}, {"tcp://a b:1", "bad host"}, {"ipc://", "no path"}},
		"topic":                 {{strings.Repeat("t", 256), "256 bytes, want at most 255"}, {"\xff", "not UTF-8"}},
		"json":                  badBools,
		"verify":                badBools,
		"mirror-out":            badFiles,
		"max-batches":           badNumbers(badValue{"-1", "want at least 0"}),
		"idle-exit":             badDurations,
		"curve-server-key-file": {{"", "want a file"}, {"/no/such/file", "there is no --curve-secret-key-file"}},
		"curve-secret-key-file": {{"", "want a file"}, {"/no/such/file", "there is no --curve-server-key-file"}},
	},
}

// badArguments are command lines with something wrong that is no flag's value.
var badArguments = map[string]string{
	"fly":                            `unknown command "fly"`,
	"--fly":                          "unknown flag: --fly",
	"-f":                             "unknown shorthand flag: 'f' in -f",
	"help fly":                       `unknown command "fly"`,
	"help tap extra":                 `unknown command "tap extra"`,
	"fly --help":                     `unknown command "fly"`,
	"--help fly":                     `unknown command "fly"`,
	"help fly --help":                `unknown command "fly"`,
	"tap --help ipc:///a extra":      `unexpected argument "extra"`,
	"tap ipc:///a extra -h":          `unexpected argument "extra"`,
	"version --help now":             `unexpected argument "now"`,
	"doctor --help now":              `unexpected argument "now"`,
	"replay --help now":              `unexpected argument "now"`,
	"version now":                    `unexpected argument "now"`,
	"doctor now":                     `unexpected argument "now"`,
	"doctor --fly":                   "unknown flag: --fly",
	"replay":                         "--trace is missing",
	"replay now":                     `unexpected argument "now"`,
	"replay --trace":                 "flag needs an argument: --trace",
	"tap":                            "ENDPOINT is missing",
	"tap ipc:///a ipc:///b":          `unexpected argument "ipc:///b"`,
	"tap x":                          `ENDPOINT "x": no scheme; want tcp:// or ipc://`,
	"tap tcp://*:1":                  `ENDPOINT "tcp://*:1": an address of all interfaces cannot be connected to`,
	"tap ipc:///":                    `ENDPOINT "ipc:///": is a directory`,
	"tap ipc://flags_test.go":        `ENDPOINT "ipc://flags_test.go": is no socket`,
	"tap ipc://flags_test.go/s":      `ENDPOINT "ipc://flags_test.go/s": not a directory`,
	"tap ipc:///a --replay ipc:///":  `--replay "ipc:///": is a directory`,
	"tap ipc:///a --replay ipc:///a": `--replay "ipc:///a": is the endpoint of what is live`,
	"tap ipc:///a --curve-server-key-file / --curve-secret-key-file /no/such/file":             `--curve-server-key-file "/": is no regular file`,
	"tap ipc:///a --curve-server-key-file /no/such/file --curve-secret-key-file /no/such/file": `--curve-server-key-file "/no/such/file": no such file or directory`,
	"replay --publisher":               "flag needs an argument: --publisher",
	"replay --trace /dev/null --sink=": "unknown flag: --sink",
	// What a replay does not use is checked all the same.
	"replay --trace /dev/null --publisher off --endpoint x":                               `--endpoint "x": no scheme; want tcp://, ipc:// or inproc://`,
	"replay --trace /dev/null --publisher null --topic {":                                 `--topic "{": { begins none of {pod}, {model}, {rank}`,
	"replay --trace /dev/null --replay-endpoint tcp://127.0.0.1:5557":                     `--replay-endpoint "tcp://127.0.0.1:5557": the ports 5557 to 5557 overlap the ports 5557 to 5557 of endpoint; want the first ones at least ranks_per_host (1) apart`,
	"replay --trace /dev/null --replay-endpoint tcp://h:1 --replay-dialect off":           `--replay-dialect "off": there is a replay_endpoint`,
	"replay --trace /dev/null --data-parallel-size 2 --replay-endpoint tcp://h:5558":      `--replay-endpoint "tcp://h:5558": the ports 5558 to 5559 overlap the ports 5557 to 5558 of endpoint; want the first ones at least ranks_per_host (2) apart`,
	"replay --trace /dev/null --curve-allow-file x --curve-secret-key-file /no/such/file": `--curve-secret-key-file "/no/such/file": no such file or directory`,
	"replay --trace /dev/null --publisher off --metrics 127.0.0.1:0":                      `--metrics "127.0.0.1:0": there is no publisher`,
	"replay --trace /dev/null --profile llm-d":                                            `--topic "kv@{pod}@{model}": --pod is missing`,
	"replay --trace /dev/null --bind=false --endpoint tcp://*:1":                          `--endpoint "tcp://*:1": with bind false it needs an address: * is all interfaces`,
	"replay --trace /dev/null --lrfu-tau 5":                                               "--lrfu-tau 5: --policy is lru, want lrfu",
	"replay --trace /dev/null --policy lru --lrfu-ghosts 0":                               "--lrfu-ghosts 0: --policy is lru, want lrfu",
	"replay --trace /dev/null --group-fields off":                                         "unknown flag: --group-fields",
	"replay --trace /dev/null --tier-events off":                                          "unknown flag: --tier-events",
}

func TestRefusesBadArguments(t *testing.T) {
	for line, want := range badArguments {
		code, printed, text := runCommand(t.Context(), strings.Fields(line)...)
		if code != exitUnusable || printed != "" || text != "kvcast: "+want+"\n" {
			t.Errorf("%s: %d, %q, %q, want %q", line, code, text, printed, want)
		}
	}
}

// Each flag of each command refuses what it cannot use, in one line that names
// the flag and the value, with exit code 2, before anything is written. A flag
// without a bad value in the table fails the test, and so does a name in the
// table without a flag.
func TestEveryFlagRefusesBadValues(t *testing.T) {
	var commands []*cobra.Command
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		commands = append(commands, c)
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	root := newRoot(streams{nil, nil})
	root.InitDefaultHelpCmd()
	visit(root)
	var names []string
	for _, c := range commands {
		names = append(names, c.Name())
		c.InitDefaultHelpFlag()
		c.InitDefaultVersionFlag()
		var flags []string
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			flags = append(flags, f.Name)
			if len(badValues[c.Name()][f.Name]) == 0 {
				t.Errorf("%s --%s: no bad value in the table", c.Name(), f.Name)
			}
		})
		for name, values := range badValues[c.Name()] {
			if !slices.Contains(flags, name) {
				t.Errorf("%s has no flag --%s", c.Name(), name)
				continue
			}
			for _, v := range values {
				refuses(t, c.Name(), name, v)
			}
		}
	}
	slices.Sort(names)
	if want := slices.Sorted(maps.Keys(badValues)); !slices.Equal(names, want) {
		t.Errorf("the commands are %q, the table has %q", names, want)
	}
}

func refuses(t *testing.T, command, flag string, v badValue) {
	t.Helper()
	folder := t.TempDir()
	trace, out := filepath.Join(folder, "trace"), filepath.Join(folder, "out")
	if err := os.WriteFile(trace, []byte(oneRequest), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{command}
	switch command {
	case "kvcast":
		args = nil
	case "replay":
		// It would wait for ever if it began.
		args = append(args, "--trace", trace, "--endpoint", "ipc://"+filepath.Join(folder, "s"), "--wait-subscribers", "1", "--resident-out", out)
	case "tap":
		args = append(args, "ipc://"+filepath.Join(folder, "s"), "--mirror-out", out, "--idle-exit", "1ms")
	}
	args = append(args, "--"+flag+"="+v.value)
	code, printed, text := runCommand(t.Context(), args...)
	name := "--" + flag + " "
	if code != exitUnusable || printed != "" || !strings.HasPrefix(text, "kvcast: "+name) ||
		strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, ": "+v.want+"\n") {
		t.Errorf("%s --%s=%q: %d, %q, %q, want %q", command, flag, v.value, code, text, printed, v.want)
	}
	// The value as it is, or quoted where it would not be seen or break the line.
	if said := strings.TrimPrefix(text, "kvcast: "+name); !strings.HasPrefix(said, oneLine(v.value)+": ") &&
		!strings.HasPrefix(said, oneLine(strconv.Quote(v.value))+": ") {
		t.Errorf("%s --%s=%q: the value is not named: %q", command, flag, v.value, text)
	}
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != 1 {
		t.Errorf("%s --%s=%q left behind %v, %v", command, flag, v.value, entries, err)
	}
}
