// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// Everything that must be refused, with the key and value that the error names.
func TestRefusedOptions(t *testing.T) {
	long := strings.Repeat("x", 300)
	// Of the fields not here each value is good, or has tests of its own.
	tried := map[string]string{"Disabled": "a switch", "MinimalHashes": "a switch", "LoRAIDOnly": "a switch",
		"OmitTokens": "a switch", "ClearOnStart": "a switch", "ClearOnClose": "a switch", "RestartMark": "a switch",
		"TailMark": "a switch", "Warn": "nil is none", "OnBound": "nil is none", "Context": "nil is one of our own",
		"CurveSecretKeyFile": "curve_test.go", "CurveAllowFile": "curve_test.go"}
	for name, c := range map[string]struct {
		change     func(*Options)
		key, value string
	}{
		"V1 empty":              {func(o *Options) { o.Endpoint = "" }, "endpoint", ""},
		"V2 udp":                {func(o *Options) { o.Endpoint = "udp://h:1" }, "endpoint", "udp://h:1"},
		"V2 upper case":         {func(o *Options) { o.Endpoint = "TCP://h:1" }, "endpoint", "TCP://h:1"},
		"V2 no scheme":          {func(o *Options) { o.Endpoint = "h:1" }, "endpoint", "h:1"},
		"V3 no port":            {func(o *Options) { o.Endpoint = "tcp://h" }, "endpoint", "tcp://h"},
		"V3 empty port":         {func(o *Options) { o.Endpoint = "tcp://h:" }, "endpoint", "tcp://h:"},
		"V3 no host":            {func(o *Options) { o.Endpoint = "tcp://:1" }, "endpoint", "tcp://:1"},
		"V3 not digits":         {func(o *Options) { o.Endpoint = "tcp://h:5x" }, "endpoint", "tcp://h:5x"},
		"V3 sign":               {func(o *Options) { o.Endpoint = "tcp://h:+5" }, "endpoint", "tcp://h:+5"},
		"V3 65536":              {func(o *Options) { o.Endpoint = "tcp://h:65536" }, "endpoint", "tcp://h:65536"},
		"V3 70000":              {func(o *Options) { o.Endpoint = "tcp://h:70000" }, "endpoint", "tcp://h:70000"},
		"V3 huge port":          {func(o *Options) { o.Endpoint = "tcp://h:99999999999999999999" }, "endpoint", "tcp://h:99999999999999999999"},
		"IPv6 without port":     {func(o *Options) { o.Endpoint = "tcp://[::1]" }, "endpoint", "tcp://[::1]"},
		"IPv6 without brackets": {func(o *Options) { o.Endpoint = "tcp://::1:5" }, "endpoint", "tcp://::1:5"},
		"IPv4 in brackets":      {func(o *Options) { o.Endpoint = "tcp://[1.2.3.4]:5" }, "endpoint", "tcp://[1.2.3.4]:5"},
		"half a bracket":        {func(o *Options) { o.Endpoint = "tcp://[::1:5" }, "endpoint", "tcp://[::1:5"},
		"space":                 {func(o *Options) { o.Endpoint = "tcp://a b:5" }, "endpoint", "tcp://a b:5"},
		"zero byte":             {func(o *Options) { o.Endpoint = "ipc:///tmp/a\x00b" }, "endpoint", "ipc:///tmp/a\x00b"},
		"V4":                    {func(o *Options) { o.Endpoint, o.Ranks = "tcp://h:65530", 8 }, "endpoint", "tcp://h:65530"},
		"V7 negative":           {func(o *Options) { o.Rank = -1 }, "data_parallel_rank", "-1"},
		"V7 too high":           {func(o *Options) { o.Rank, o.Ranks = 2, 2 }, "data_parallel_rank", "2"},
		"V7 no ranks":           {func(o *Options) { o.Ranks = 0 }, "data_parallel_size", "0"},
		"V8 pipeline":           {func(o *Options) { o.PipelineParallelSize = 2 }, "pipeline_parallel_size", "2"},
		"V8 context":            {func(o *Options) { o.ContextParallelSize = 4 }, "context_parallel_size", "4"},
		"V8 no size":            {func(o *Options) { o.PipelineParallelSize = -1 }, "pipeline_parallel_size", "-1"},
		"V9 empty":              {func(o *Options) { o.Endpoint = "ipc://" }, "endpoint", "ipc://"},
		"V9 108":                {func(o *Options) { o.Endpoint = "ipc://" + long[:108] }, "endpoint", "ipc://" + long[:108]},
		// Rank 0 would fit; rank 10 does not, and all ranks say so.
		"V9 suffix":           {func(o *Options) { o.Endpoint, o.Ranks = "ipc://"+long[:103], 11 }, "endpoint", "ipc://" + long[:103]},
		"inproc empty":        {func(o *Options) { o.Endpoint = "inproc://" }, "endpoint", "inproc://"},
		"inproc, no context":  {func(o *Options) { o.Endpoint = "inproc://a" }, "endpoint", "inproc://a"},
		"V1 replay blank":     {func(o *Options) { o.ReplayEndpoint = " " }, "replay_endpoint", " "},
		"V2 replay":           {func(o *Options) { o.ReplayEndpoint = "udp://h:1" }, "replay_endpoint", "udp://h:1"},
		"V3 replay":           {func(o *Options) { o.ReplayEndpoint = "tcp://h" }, "replay_endpoint", "tcp://h"},
		"V4 replay":           {func(o *Options) { o.ReplayEndpoint, o.Ranks = "tcp://h:65530", 8 }, "replay_endpoint", "tcp://h:65530"},
		"V5 2 ranks":          {func(o *Options) { o.ReplayEndpoint, o.Ranks = "tcp://127.0.0.1:5558", 2 }, "replay_endpoint", "tcp://127.0.0.1:5558"},
		"V5 below":            {func(o *Options) { o.ReplayEndpoint, o.Ranks = "tcp://127.0.0.1:5556", 2 }, "replay_endpoint", "tcp://127.0.0.1:5556"},
		"V5 last rank":        {func(o *Options) { o.ReplayEndpoint, o.Ranks, o.Rank = "tcp://h:5558", 2, 1 }, "replay_endpoint", "tcp://h:5558"},
		"V5 1 rank":           {func(o *Options) { o.ReplayEndpoint = "tcp://[::1]:5557" }, "replay_endpoint", "tcp://[::1]:5557"},
		"V5 4 of 8 ranks":     {func(o *Options) { o.ReplayEndpoint, o.Ranks, o.RanksPerHost = "tcp://h:5560", 8, 4 }, "replay_endpoint", "tcp://h:5560"},
		"V5 all of 8 ranks":   {func(o *Options) { o.ReplayEndpoint, o.Ranks = "tcp://h:5561", 8 }, "replay_endpoint", "tcp://h:5561"},
		"V6 ipc":              {func(o *Options) { o.Endpoint, o.ReplayEndpoint = "ipc://k", "ipc://k" }, "replay_endpoint", "ipc://k"},
		"V6 ipc spelling":     {func(o *Options) { o.Endpoint, o.ReplayEndpoint = "ipc://k", "ipc://./k" }, "replay_endpoint", "ipc://./k"},
		"V6 ipc rank":         {func(o *Options) { o.Endpoint, o.ReplayEndpoint, o.Ranks = "ipc://k", "ipc://k_dp1", 2 }, "replay_endpoint", "ipc://k_dp1"},
		"V6 ipc rank, turned": {func(o *Options) { o.Endpoint, o.ReplayEndpoint, o.Ranks = "ipc://k_dp7", "ipc://k", 8 }, "replay_endpoint", "ipc://k"},
		"V6 made up, 2 ranks": {func(o *Options) { o.Endpoint, o.ReplayEndpoint, o.Ranks = "ipc://*", "ipc://*", 2 }, "replay_endpoint", "ipc://*"},
		"V6 inproc":           {func(o *Options) { o.Endpoint, o.ReplayEndpoint = "inproc://k", "inproc://k" }, "replay_endpoint", "inproc://k"},
		"V9 replay":           {func(o *Options) { o.ReplayEndpoint, o.Ranks = "ipc://"+long[:103], 11 }, "replay_endpoint", "ipc://" + long[:103]},
		"replay inproc":       {func(o *Options) { o.ReplayEndpoint = "inproc://k" }, "replay_endpoint", "inproc://k"},
		"null, bad endpoint":  {func(o *Options) { o.Kind, o.Endpoint = KindNull, "udp://h:1" }, "endpoint", "udp://h:1"},
		"null, V5":            {func(o *Options) { o.Kind, o.ReplayEndpoint = KindNull, "tcp://h:5557" }, "replay_endpoint", "tcp://h:5557"},
		"ranks per host":      {func(o *Options) { o.Ranks, o.RanksPerHost = 2, 3 }, "ranks_per_host", "3"},
		"ranks per host < 0":  {func(o *Options) { o.RanksPerHost = -1 }, "ranks_per_host", "-1"},
		"buffer steps":        {func(o *Options) { o.BufferSteps = 0 }, "buffer_steps", "0"},
		"replay bytes":        {func(o *Options) { o.ReplayBufferBytes = -1 }, "replay_buffer_bytes", "-1"},
		"dialect":             {func(o *Options) { o.ReplayDialect = "vllm" }, "replay_dialect", "vllm"},
		"dialect off":         {func(o *Options) { o.ReplayDialect, o.ReplayEndpoint = ReplayOff, "tcp://h:1" }, "replay_dialect", "off"},
		"history":             {func(o *Options) { o.TruncatedHistory = "full" }, "truncated_history", "full"},
		"pad limit":           {func(o *Options) { o.ReplayPadLimit = -1 }, "replay_pad_limit", "-1"},
		"on loss":             {func(o *Options) { o.OnLoss = "clear" }, "on_loss", "clear"},
		"resync too often":    {func(o *Options) { o.ResyncInterval = time.Second - 1 }, "resync_interval", "999.999999ms"},
		"resync negative":     {func(o *Options) { o.ResyncInterval = -1 }, "resync_interval", "-1ns"},
		"resync too seldom":   {func(o *Options) { o.ResyncInterval = 25 * time.Hour }, "resync_interval", "25h0m0s"},
		"encoding":            {func(o *Options) { o.Encoding = wire.ArrayShort + 1 }, "encoding", "encoding(3)"},
		"kind":                {func(o *Options) { o.Kind = "kafka" }, "publisher", "kafka"},
		"hash":                {func(o *Options) { o.Hash = 9 }, "hash", "9"},
		"hwm":                 {func(o *Options) { o.HWM = 0 }, "hwm", "0"},
		"wait":                {func(o *Options) { o.WaitSubscribers = -1 }, "wait_subscribers", "-1"},
		"batch events":        {func(o *Options) { o.MaxBatchEvents = -1 }, "max_batch_events", "-1"},
		"batch blocks":        {func(o *Options) { o.MaxBatchBlocks = -1 }, "max_batch_blocks", "-1"},
		"queue":               {func(o *Options) { o.MaxQueueSize = 0 }, "max_queue_size", "0"},
		"queue bytes":         {func(o *Options) { o.MaxQueueBytes = -1 }, "max_queue_bytes", "-1"},
		"flush delay":         {func(o *Options) { o.FlushDelay = 101 * time.Millisecond }, "flush_delay", "101ms"},
		"flush delay < 0":     {func(o *Options) { o.FlushDelay = -1 }, "flush_delay", "-1ns"},
		"shutdown":            {func(o *Options) { o.ShutdownTimeout = -time.Second }, "shutdown_timeout", "-1s"},
		"heartbeat":           {func(o *Options) { o.ZMTPHeartbeat = -1 }, "zmtp_heartbeat", "-1ns"},
		"heartbeat part":      {func(o *Options) { o.ZMTPHeartbeat = time.Microsecond }, "zmtp_heartbeat", "1µs"},
		"timeout":             {func(o *Options) { o.ZMTPTimeout = 48 * time.Hour }, "zmtp_timeout", "48h0m0s"},
		"connect to all":      {func(o *Options) { o.Connect, o.Endpoint = true, "tcp://*:1" }, "endpoint", "tcp://*:1"},
		"pod not UTF-8":       {func(o *Options) { o.Topic, o.Pod = "{pod}", "\xff" }, "topic", "{pod}"},
		"multimodal":          {func(o *Options) { o.Multimodal = "all" }, "multimodal", "all"},
		"token offset":        {func(o *Options) { o.MMTokenIDOffset = 1 << 31 }, "mm_token_id_offset", "2147483648"},
		"placeholder":         {func(o *Options) { o.MMPlaceholderID = 1 << 32 }, "mm_placeholder_id", "4294967296"},
		"blocks per event":    {func(o *Options) { o.MaxBlocksPerEvent = -1 }, "max_blocks_per_event", "-1"},
		"first seq":           {func(o *Options) { o.FirstSeq = "one" }, "first_seq", "one"},
		"empty batches":       {func(o *Options) { o.Heartbeat = -1 }, "heartbeat", "-1ns"},
		"entries":             {func(o *Options) { o.MaxEntries = -1 }, "max_entries", "-1"},
		"topic placeholder":   {func(o *Options) { o.Topic = "a{podd}" }, "topic", "a{podd}"},
		"topic brace":         {func(o *Options) { o.Topic = "a{" }, "topic", "a{"},
		"topic pod":           {func(o *Options) { o.Topic = "{pod}" }, "pod", ""},
		"topic model":         {func(o *Options) { o.Topic = "{model}" }, "model", ""},
		"topic long":          {func(o *Options) { o.Topic = long[:256] }, "topic", long[:256]},
		"topic not UTF-8":     {func(o *Options) { o.Topic = "a\xff" }, "topic", "a\xff"},
		"topic kv@":           {func(o *Options) { o.Topic = "kv@a" }, "topic", "kv@a"},
		"topic kv@@":          {func(o *Options) { o.Topic = "kv@@m" }, "topic", "kv@@m"},
		"topic model with @":  {func(o *Options) { o.Topic, o.Model = "kv@p@{model}", "a@b" }, "topic", "kv@p@{model}"},
	} {
		t.Run(name, func(t *testing.T) {
			o := DefaultOptions()
			c.change(&o)
			was, is := reflect.ValueOf(DefaultOptions()), reflect.ValueOf(o)
			for i := range was.NumField() {
				if !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
					tried[was.Type().Field(i).Name] = name
				}
			}
			p, err := New(o)
			var e *Error
			if p != nil || !errors.Is(err, ErrOption) || !errors.As(err, &e) {
				t.Fatalf("New = %v, %v", p, err)
			}
			if e.Key != c.key || e.Value != c.value {
				t.Errorf("key %q value %q, want %q %q (%v)", e.Key, e.Value, c.key, c.value, err)
			}
			if line := err.Error(); strings.ContainsAny(line, "\n\x00") || !utf8.ValidString(line) {
				t.Errorf("not one clean line: %q", err)
			}
		})
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Options]()) {
		if tried[f.Name] == "" {
			t.Errorf("Options.%s: no bad value is tried", f.Name)
		}
	}
	if p, err := New(Options{}); p != nil || !errors.Is(err, ErrOption) {
		t.Errorf("the zero Options: %v, %v", p, err)
	}
}

// Other parallelism than that of data and tensors is refused with the reason, also where
// nothing would be sent.
func TestParallelismIsRefusedWithTheReason(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		o := DefaultOptions()
		o.Disabled, o.PipelineParallelSize = disabled, 2
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), "each stage holds its own layers of a block only") {
			t.Errorf("pipeline: %v", err)
		}
		o.PipelineParallelSize, o.ContextParallelSize = 1, 2
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), "each rank holds its own part of the tokens only") {
			t.Errorf("context: %v", err)
		}
	}
}

// Pairs of endpoints that do not meet.
func TestAcceptedPairs(t *testing.T) {
	for name, c := range map[string]struct {
		endpoint, replay string
		ranks, perHost   int
	}{
		"V5 2 ranks":            {"tcp://*:5557", "tcp://*:5559", 2, 0},
		"V5 below":              {"tcp://*:5557", "tcp://*:5555", 2, 0},
		"V5 4 of 8 ranks":       {"tcp://*:5557", "tcp://*:5561", 8, 4},
		"V5 1 rank":             {"tcp://*:5557", "tcp://*:5558", 1, 0},
		"free port":             {"tcp://*:5557", "tcp://*:0", 8, 0},
		"free ports":            {"tcp://*:*", "tcp://*:*", 8, 0},
		"schemes":               {"tcp://*:5557", "ipc://k", 8, 0},
		"ipc":                   {"ipc://k", "ipc://r", 8, 0},
		"ipc suffix beyond":     {"ipc://k", "ipc://k_dp2", 2, 0},
		"ipc suffix, no rank":   {"ipc://k", "ipc://k_dp01", 8, 0},
		"ipc suffix, no digits": {"ipc://k", "ipc://k_dp", 8, 0},
		"ipc suffix twice":      {"ipc://k", "ipc://k_dp1_dp1", 8, 0},
		"ipc made up":           {"ipc://*", "ipc://*", 1, 0},
		"ipc abstract":          {"ipc://@k", "ipc://k", 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for rank := range c.ranks {
				o := DefaultOptions()
				o.Endpoint, o.ReplayEndpoint = c.endpoint, c.replay
				o.Rank, o.Ranks, o.RanksPerHost = rank, c.ranks, c.perHost
				if _, err := New(o); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// One file is one endpoint, whatever leads to it.
func TestPathsToOneFile(t *testing.T) {
	folder := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(folder, "real"), 0o700), os.Symlink("real", filepath.Join(folder, "link"))); err != nil {
		t.Fatal(err)
	}
	t.Chdir(folder)
	for _, c := range []struct {
		endpoint, replay string
		ranks            int
		refused          bool
	}{
		{"ipc://real/s", "ipc://link/s", 1, true}, {"ipc://real/s", "ipc://" + folder + "/real/s", 1, true},
		{"ipc://" + folder + "/link/s", "ipc://./link/../real/s", 1, true}, {"ipc://link/s", "ipc://real/s_dp1", 2, true},
		{"ipc://link/s_dp3", "ipc://" + folder + "/real/s", 4, true},
		{"ipc://real/s", "ipc://link/r", 4, false}, {"ipc://real/s", "ipc://link/s_dp2", 2, false}, {"ipc://s", "ipc://real/s", 1, false},
	} {
		for rank := range c.ranks {
			o := DefaultOptions()
			o.Endpoint, o.ReplayEndpoint, o.Rank, o.Ranks = c.endpoint, c.replay, rank, c.ranks
			var e *Error
			_, err := New(o)
			if c.refused != (err != nil) || err != nil && (!errors.As(err, &e) || e.Key != "replay_endpoint" || e.Value != c.replay) {
				t.Errorf("%s and %s, rank %d: %v", c.endpoint, c.replay, rank, err)
			}
		}
	}
}

// The verdict on two names is that of comparing all of them.
func TestNamesOfAllRanks(t *testing.T) {
	const ranks = 12
	names := []string{"k", "k_dp", "k_dp1", "k_dp10", "k_dp11", "k_dp12", "k_dp01", "k_dp0", "k_dp1_dp1", "k_dp1_dp12", "l"}
	for _, a := range names {
		for _, b := range names {
			seen, equal := make(map[string]bool), false
			for r := range ranks {
				seen[a+rankSuffix(r)] = true
			}
			for r := range ranks {
				equal = equal || seen[b+rankSuffix(r)]
			}
			for _, scheme := range []string{schemeIPC, schemeInproc} {
				detail := conflict(endpoint{scheme: scheme, base: a}, endpoint{scheme: scheme, base: b}, ranks, ranks)
				if (detail != "") != equal {
					t.Errorf("%s://%s and %s: %q, equal %v", scheme, a, b, detail, equal)
				}
			}
		}
	}
}

// What each rank binds.
func TestEndpointOfRank(t *testing.T) {
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Term()
	long := strings.Repeat("x", 300)
	for name, c := range map[string]struct {
		endpoint    string
		rank, ranks int
		want        string
	}{
		"default":          {"tcp://127.0.0.1:5557", 0, 1, "tcp://127.0.0.1:5557"},
		"offset":           {"tcp://*:5557", 3, 4, "tcp://*:5560"},
		"all interfaces":   {"tcp://0.0.0.0:5557", 1, 2, "tcp://0.0.0.0:5558"},
		"IPv6":             {"tcp://[::]:5557", 1, 2, "tcp://[::]:5558"},
		"zone":             {"tcp://[fe80::1%eth0]:1", 0, 1, "tcp://[fe80::1%eth0]:1"},
		"literal prefix":   {"tcp://ipc-host:1", 0, 1, "tcp://ipc-host:1"},
		"interface":        {"tcp://eth0.100:1", 0, 1, "tcp://eth0.100:1"},
		"port 0":           {"tcp://127.0.0.1:0", 7, 8, "tcp://127.0.0.1:0"},
		"port *":           {"tcp://127.0.0.1:*", 7, 8, "tcp://127.0.0.1:0"},
		"last port":        {"tcp://h:65528", 7, 8, "tcp://h:65535"},
		"leading zeros":    {"tcp://h:00080", 0, 1, "tcp://h:80"},
		"ipc rank 0":       {"ipc://kv", 0, 3, "ipc://kv"},
		"ipc rank 2":       {"ipc://kv", 2, 3, "ipc://kv_dp2"},
		"inproc rank 2":    {"inproc://kv", 2, 3, "inproc://kv_dp2"},
		"ipc 107":          {"ipc://" + long[:107], 0, 1, "ipc://" + long[:107]},
		"ipc 107, suffix":  {"ipc://" + long[:103], 9, 10, "ipc://" + long[:103] + "_dp9"},
		"ipc with a colon": {"ipc:///tmp/a:b", 0, 1, "ipc:///tmp/a:b"},
	} {
		t.Run(name, func(t *testing.T) {
			o := DefaultOptions()
			o.Endpoint, o.Rank, o.Ranks, o.Context = c.endpoint, c.rank, c.ranks, ctx
			p, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if got := p.settings.endpoint.String(); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if got := p.Endpoint(); got != "" {
				t.Errorf("bound before Start: %s", got)
			}
		})
	}
}

func TestTopic(t *testing.T) {
	for name, c := range map[string]struct{ topic, pod, model, want string }{
		"empty":      {"", "", "", ""},
		"llm-d":      {"kv@{pod}@{model}", "10.0.0.1:8000", "meta/llama", "kv@10.0.0.1:8000@meta/llama"},
		"rank":       {"kv-{rank}-{rank}", "", "", "kv-3-3"},
		"not again":  {"{pod}", "{rank}", "", "{rank}"},
		"brace":      {"a}b", "", "", "a}b"},
		"255 bytes":  {strings.Repeat("x", 255), "", "", strings.Repeat("x", 255)},
		"not needed": {"t", "p", "m", "t"},
		"kv without": {"kv-events", "", "", "kv-events"},
		"UTF-8":      {"événements", "", "", "événements"},
	} {
		t.Run(name, func(t *testing.T) {
			o := DefaultOptions()
			o.Topic, o.Pod, o.Model, o.Rank, o.Ranks = c.topic, c.pod, c.model, 3, 4
			p, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if p.Topic() != c.want {
				t.Errorf("%q, want %q", p.Topic(), c.want)
			}
		})
	}
}

func TestAttachChecks(t *testing.T) {
	o := localOptions(t)
	o.Hash = event.Portable63
	p := mustNew(t, o)
	var e *Error
	if err := p.Attach(newFakeSource()); !errors.As(err, &e) || e.Key != "hash" || e.Value != "portable63" {
		t.Errorf("other hash form: %v", err)
	}
	if err := p.Attach(nil); !errors.Is(err, ErrOption) {
		t.Errorf("nil source: %v", err)
	}
	src := newFakeSource()
	src.form = event.Portable63
	if err := p.Attach(src); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(src); !errors.Is(err, ErrAttached) {
		t.Errorf("second source: %v", err)
	}
	mustStart(t, p)
	if err := p.Attach(src); !errors.Is(err, ErrStarted) {
		t.Errorf("after Start: %v", err)
	}
	if err := p.Publish(removal(1)); !errors.Is(err, ErrAttached) {
		t.Errorf("Publish beside a source: %v", err)
	}
	p.Close()
	if err := p.Attach(src); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Whatever the text, validation gives a verdict that is the same for every
// rank, and what it accepts keeps the promises of the rules.
func FuzzEndpoint(f *testing.F) {
	for _, text := range []string{
		"tcp://127.0.0.1:5557", "tcp://*:*", "tcp://[::1]:0", "ipc:///tmp/kv", "inproc://kv", "tcp://h:65530", "",
		"tcp://[fe80::1%lo]:1", "ipc://*", "TCP://h:1", "tcp://:1", "tcp://h:", "tcp://h:00001",
	} {
		f.Add(text, uint8(8))
	}
	f.Fuzz(func(t *testing.T, text string, size uint8) {
		ranks := int(size) + 1
		seen := make(map[string]bool)
		first, firstErr := parseEndpoint("endpoint", text, 0, ranks)
		for rank := range ranks {
			e, err := parseEndpoint("endpoint", text, rank, ranks)
			if (err == nil) != (firstErr == nil) {
				t.Fatalf("rank %d: %v, rank 0: %v", rank, err, firstErr)
			}
			if err != nil {
				if err.Key != "endpoint" || err.Value != text || err.Detail == "" {
					t.Fatalf("%+v", err)
				}
				continue
			}
			wild := e.scheme == schemeTCP && e.port == 0
			if seen[e.String()] && !wild {
				t.Fatalf("rank %d has the endpoint of another rank: %s", rank, e)
			}
			seen[e.String()] = true
			switch e.scheme {
			case schemeTCP:
				if !wild && e.port != first.port+rank || e.port > 65535 || e.host == "" {
					t.Fatalf("%+v", e)
				}
			case schemeIPC:
				if len(e.name) == 0 || len(e.name) > maxIPCPath {
					t.Fatalf("%+v", e)
				}
			}
		}
	})
}
