// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

var update = flag.Bool("update", false, "write what the scripts' operations return into the scripts")

// betweenOperations is what the torture test (tag gctorture) does there.
var betweenOperations = func() {}

// TestScripts runs tests/scripts/*.txt over the Go API. The C++ driver
// (tests/native/script_test.cpp) runs the same files over the C ABI against the
// same expected output. tests/scripts/README.md describes the language.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("../tests/scripts/*.txt")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{}
	t.Cleanup(s.end)
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	var rewritten []string
	blocks := 0
	for i := 0; i < len(lines); i++ {
		rewritten = append(rewritten, lines[i])
		if lines[i] == "" || lines[i][0] == '#' {
			continue
		}
		first := i
		for i++; i < len(lines) && lines[i] != "----"; i++ {
			if lines[i] == "" {
				break
			}
			rewritten = append(rewritten, lines[i])
		}
		if i == len(lines) || lines[i] != "----" {
			t.Fatalf("%s:%d: ---- is missing", file, i+1)
		}
		operations := lines[first:i]
		i++
		expected := i
		for i < len(lines) && lines[i] != "" {
			i++
		}
		var got strings.Builder
		for j, operation := range operations {
			out, err := s.run(operation)
			if err != nil {
				t.Fatalf("%s:%d: %s: %v", file, first+j+1, operation, err)
			}
			got.WriteString(out)
			betweenOperations()
		}
		if want := strings.Join(lines[expected:i], "\n") + "\n"; !*update && got.String() != want {
			t.Fatalf("%s:%d: %s\n got:\n%s want:\n%s", file, first+1, operations[0], got.String(), want)
		}
		rewritten = append(rewritten, "----", strings.TrimSuffix(got.String(), "\n"))
		if i < len(lines) {
			rewritten = append(rewritten, "")
		}
		blocks++
	}
	if blocks == 0 {
		t.Fatalf("%s tests nothing", file)
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(rewritten, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// operation is a name, what stands by itself, and key=value pairs. Whoever
// takes something out of it uses it up; what is left over is a mistake.
type operation struct {
	name  string
	plain []string
	named map[string]string
}

// badScript is a mistake in a script; run turns it into an error.
type badScript string

func bad(format string, args ...any) { panic(badScript(fmt.Sprintf(format, args...))) }

func (o *operation) next() string {
	if len(o.plain) == 0 {
		bad("another argument is needed")
	}
	word := o.plain[0]
	o.plain = o.plain[1:]
	return word
}

func (o *operation) take(key, otherwise string) string {
	value, ok := o.named[key]
	if !ok {
		return otherwise
	}
	delete(o.named, key)
	return value
}

func (o *operation) count(key string, otherwise int) int {
	return number(o.take(key, strconv.Itoa(otherwise)))
}

func unsigned(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		bad("not a number: %s", text)
	}
	return n
}

func number(text string) int { return int(unsigned(text)) }

// tokenList: 1,2 are two tokens, 1..4 four, 7x3 three, @a to @z digests; - is none.
func tokenList(text string) []uint32 {
	tokens := []uint32{}
	if text == "-" {
		return tokens
	}
	for item := range strings.SplitSeq(text, ",") {
		if letter, ok := strings.CutPrefix(item, "@"); ok {
			if len(letter) != 1 || letter[0] < 'a' || letter[0] > 'z' {
				bad("not a digest: %s", item)
			}
			tokens = append(tokens, bindings.DigestToken(1+int(letter[0]-'a')))
		} else if first, last, ok := strings.Cut(item, ".."); ok {
			for t := unsigned(first); t <= unsigned(last); t++ {
				tokens = append(tokens, uint32(t))
			}
		} else if token, times, ok := strings.Cut(item, "x"); ok {
			for range unsigned(times) {
				tokens = append(tokens, uint32(unsigned(token)))
			}
		} else {
			tokens = append(tokens, uint32(unsigned(item)))
		}
	}
	return tokens
}

type scriptSequence struct {
	id     bindings.SequenceID
	stream bindings.DeviceStream
	waits  []bindings.Fence
}

// script is the state between the operations of one file.
type script struct {
	manager   *bindings.Manager
	stream    *bindings.Stream
	form      event.Form
	blockSize int
	most      int // pages of an elastic pool

	mirror    map[wireKey]wireKey         // to the parent; what is announced
	names     map[wireKey]string          // of every block that was ever stored
	ids       map[bindings.BlockID]string // of blocks that where has met
	sequences map[string]*scriptSequence
	pins      map[string]bindings.Pin
	streams   []scriptStream
	open      []bindings.SequenceID
	tables    tableScript
	holds     map[string]*scriptHold
	step      *stepper // that the calls go to now; nil: none
}

type scriptHold struct {
	id   bindings.HoldID
	left int
}

type scriptStream struct {
	name string
	id   bindings.DeviceStream
}

// end closes what the script has left open.
func (s *script) end() {
	if s.manager != nil {
		errs := make([]error, len(s.open))
		_ = s.manager.Release(s.open, errs)
		for _, h := range s.holds {
			for ; h.left > 0; h.left-- {
				_ = s.manager.ReleaseHolds([]bindings.HoldID{h.id}, make([]error, 1))
			}
		}
		_ = s.manager.Close()
	}
	if s.stream != nil {
		_ = s.stream.Close()
	}
	*s = script{}
}

func (s *script) run(line string) (out string, err error) {
	if strings.HasPrefix(line, "together") {
		return s.together(line)
	}
	defer func() {
		if r := recover(); r != nil {
			b, ok := r.(badScript)
			if !ok {
				panic(r)
			}
			err = errors.New(string(b))
		}
	}()
	words := strings.Fields(line)
	o := &operation{name: words[0], named: map[string]string{}}
	for _, word := range words[1:] {
		if key, value, ok := strings.Cut(word, "="); ok {
			o.named[key] = value
		} else {
			o.plain = append(o.plain, word)
		}
	}
	out = s.dispatch(o)
	if len(o.plain) != 0 || len(o.named) != 0 {
		bad("superfluous: %v %v", o.plain, o.named)
	}
	return out, nil
}

// outcome is the name of a status.
func outcome(err error) string {
	var e *bindings.Error
	switch {
	case err == nil:
		return "ok"
	case err == io.EOF:
		return "end of stream"
	case errors.As(err, &e):
		return e.Status.String()
	}
	bad("not an error of the library: %v", err)
	return ""
}

func (s *script) dispatch(o *operation) string {
	if o.name == "open" {
		return s.openCache(o) + "\n"
	}
	if s.manager == nil {
		bad("open comes first")
	}
	switch o.name {
	case "create":
		return s.create(o) + "\n"
	case "probe":
		return s.probe(o) + "\n"
	case "where":
		return s.where(o) + "\n"
	case "grow":
		return s.grow(o) + "\n"
	case "fork":
		return s.fork(o) + "\n"
	case "commit":
		return s.commit(o) + "\n"
	case "release":
		return s.release(o, s.calls().Release) + "\n"
	case "cancel":
		return s.release(o, s.calls().Cancel) + "\n"
	case "suspend":
		errs := make([]error, 1)
		item := bindings.SuspendItem{Sequence: s.sequence(o.next()).id, Keep: o.count("keep", 0) != 0}
		if err := s.calls().Suspend([]bindings.SuspendItem{item}, errs); err != nil {
			return outcome(err) + "\n"
		}
		return outcome(errs[0]) + "\n"
	case "over":
		over, err := s.manager.TakeWaiters(make([]bindings.Waiter, o.count("room", 64)))
		if err != nil {
			return outcome(err) + "\n"
		}
		return s.over(over) + "\n"
	case "hold":
		name := o.next()
		item := bindings.HoldItem{Sequence: s.sequence(name).id, Count: number(o.next()),
			Cancel: o.count("cancel", 0) != 0}
		out := make([]bindings.HoldResult, 1)
		if err := s.calls().ReleaseHeld([]bindings.HoldItem{item}, out); err != nil {
			return outcome(err) + "\n"
		}
		if out[0].Err == nil {
			s.holds[name] = &scriptHold{out[0].Hold, item.Count}
		}
		return outcome(out[0].Err) + "\n"
	case "end-hold":
		h := s.holds[o.next()]
		errs := make([]error, 1)
		if err := s.calls().ReleaseHolds([]bindings.HoldID{h.id}, errs); err != nil {
			return outcome(err) + "\n"
		}
		h.left--
		return outcome(errs[0]) + "\n"
	case "step", "step-done":
		id := bindings.DeviceStream(0)
		if name := o.next(); name != "all" {
			id = s.deviceStream(name)
		}
		call := s.manager.BeginStep
		if o.name == "step-done" {
			call = s.manager.StepDone
		}
		return outcome(call(id, unsigned(o.next()))) + "\n"
	case "resume":
		return s.resume(o) + "\n"
	case "truncate":
		out := make([]bindings.TruncateResult, 1)
		item := bindings.TruncateItem{Sequence: s.sequence(o.next()).id, CapacityTokens: number(o.next())}
		if err := s.calls().Truncate([]bindings.TruncateItem{item}, out); err != nil {
			return outcome(err) + "\n"
		}
		if out[0].Err != nil {
			return outcome(out[0].Err) + "\n"
		}
		return fmt.Sprintf("freed %d\n", out[0].FreedPages)
	case "stop":
		errs := make([]error, 1)
		item := bindings.StopItem{Sequence: s.sequence(o.next()).id, StopBefore: number(o.next())}
		if err := s.calls().Stop([]bindings.StopItem{item}, errs); err != nil {
			return outcome(err) + "\n"
		}
		return outcome(errs[0]) + "\n"
	case "end":
		return s.release(o, s.calls().End) + "\n"
	case "retain":
		return s.retain(o) + "\n"
	case "pin":
		return s.pin(o) + "\n"
	case "unpin":
		var texts []string
		for first := true; first || len(o.plain) > 0; first = false {
			errs := make([]error, 1)
			if err := s.calls().Unpin([]bindings.Pin{s.pins[o.next()]}, errs); err != nil {
				errs[0] = err
			}
			texts = append(texts, outcome(errs[0]))
		}
		return strings.Join(texts, ", ") + "\n"
	case "drop":
		return s.drop(o) + "\n"
	case "resize":
		return s.resize(o) + "\n"
	case "ages":
		h, err := s.manager.Histograms()
		if err != nil {
			return outcome(err) + "\n"
		}
		return histogram("idle at reuse", h.IdleAtReuse) +
			histogram("idle at eviction", h.IdleAtEviction) +
			histogram("reuses at eviction", h.ReusesAtEviction)
	case "expire":
		// Times are in seconds.
		now := time.Duration(number(o.next())) * time.Second
		n, more, err := s.manager.Expire(now, o.count("max", 0))
		if err != nil {
			return outcome(err) + "\n"
		}
		if more {
			return fmt.Sprintf("expired %d, more\n", n)
		}
		return fmt.Sprintf("expired %d\n", n)
	case "info":
		return s.info(o) + "\n"
	case "shared":
		a, _ := s.manager.Pages(s.sequence(o.next()).id, nil)
		b, _ := s.manager.Pages(s.sequence(o.next()).id, nil)
		n := 0
		for n < len(a) && n < len(b) && a[n] == b[n] {
			n++
		}
		return fmt.Sprintln(n)
	case "reset":
		return outcome(s.manager.Reset()) + "\n"
	case "check":
		if err := s.manager.Check(); err != nil {
			return err.Error() + "\n"
		}
		return "ok\n"
	case "close":
		return outcome(s.manager.Close()) + "\n"
	case "stream":
		name := o.next()
		create := s.manager.NewDeviceStream
		if o.count("steps", 0) != 0 {
			create = s.manager.NewStepStream
		}
		id, err := create()
		if err == nil {
			s.streams = append(s.streams, scriptStream{name, id})
		}
		return outcome(err) + "\n"
	case "end-stream":
		return outcome(s.manager.DestroyDeviceStream(s.deviceStream(o.next()))) + "\n"
	case "wait":
		q := s.sequence(o.next())
		return outcome(s.manager.StreamWait(q.stream, q.waits)) + "\n"
	case "fill":
		q := s.sequence(o.next())
		pages, _ := s.manager.Pages(q.id, nil)
		fill := bindings.Fill{Page: pages[number(o.next())], Value: 1}
		return outcome(s.manager.HostFill(q.stream, []bindings.Fill{fill})) + "\n"
	case "advance":
		id := bindings.DeviceStream(0)
		if name := o.next(); name != "all" {
			id = s.deviceStream(name)
		}
		n, err := s.manager.HostAdvance(id, number(o.next()))
		if err != nil {
			return outcome(err) + "\n"
		}
		return fmt.Sprintf("executed %d\n", n)
	case "drain":
		return s.drain(o)
	case "dense":
		return s.dense(o) + "\n"
	case "indexed":
		return s.indexed(o) + "\n"
	case "delta":
		return s.delta(o) + "\n"
	case "upload":
		return s.upload(o) + "\n"
	case "device-rows":
		return s.deviceRows() + "\n"
	case "mirror":
		return s.compare() + "\n"
	case "snapshot":
		return s.snapshot(o)
	case "stats":
		return s.stats() + "\n"
	case "counters":
		return s.counters() + "\n"
	case "stream-stats":
		return s.streamStats() + "\n"
	}
	bad("unknown operation")
	return ""
}

func (s *script) openCache(o *operation) string {
	s.end()
	forms := map[string]event.Form{"signed64": event.Signed64, "unsigned64": event.Unsigned64,
		"portable63": event.Portable63, "bytes": event.Bytes}
	config := bindings.Config{
		TokensPerBlock: o.count("block", 2),
		CapacityBlocks: o.count("pages", 8),
		MaxSequences:   o.count("sequences", 4),
		PageBytes:      uint64(o.count("bytes", 16)),
		Seed:           1,
		MaxPinnedPages: o.count("pins", 0),
		LRFUTau:        o.count("tau", 1000),

		ResumeGatePermille: o.count("gate", 1000),
	}
	if o.take("policy", "lru") == "lrfu" {
		config.Policy = bindings.PolicyLRFU
	}
	streamConfig := bindings.StreamConfig{
		MaxEntries:        o.count("entries", 50000),
		MaxBlocksPerEvent: o.count("run", 0),
	}
	config.MaxDigests = o.count("digests", 0)
	config.MaxPendingBlocks = o.count("pending", 0)
	config.PartialReuse = o.count("partial", 0) != 0
	config.MaxBlocks = o.count("most", 0)
	config.MinBlocks = o.count("least", 0)
	config.Poison = config.PageBytes != 0
	switch o.take("multimodal", "suppress") {
	case "suppress":
	case "announce":
		streamConfig.Multimodal = bindings.AnnounceMultimodal
	default:
		bad("unknown multimodal")
	}
	form, ok := forms[o.take("form", "signed64")]
	if !ok {
		bad("unknown form")
	}
	streamConfig.Form = form
	stream, err := bindings.NewStream(streamConfig)
	if err != nil {
		bad("%v", err)
	}
	s.stream = stream
	config.Stream = stream
	manager, err := bindings.NewManager(config)
	if err != nil {
		bad("%v", err)
	}
	s.manager = manager
	*s = script{
		manager:   manager,
		stream:    stream,
		form:      form,
		blockSize: config.TokensPerBlock,
		most:      config.MaxBlocks,
		mirror:    map[wireKey]wireKey{},
		names:     map[wireKey]string{},
		ids:       map[bindings.BlockID]string{bindings.NoBlock: "root"},
		pins:      map[string]bindings.Pin{},
		sequences: map[string]*scriptSequence{},
		tables:    newTableScript(),
		holds:     map[string]*scriptHold{},
	}
	return "ok"
}

func scope(o *operation) *bindings.Scope {
	var scope bindings.Scope
	if id := o.take("lora", ""); id != "" {
		scope.LoRAID = u64(unsigned(id))
	}
	if salt := o.take("salt", ""); salt != "" {
		scope.Salt = u64(unsigned(salt))
	}
	scope.LoRAName = o.take("name", "")
	if salt := o.take("salt-bytes", ""); salt != "" {
		var err error
		if scope.SaltBytes, err = hex.DecodeString(salt); err != nil {
			bad("%v", err)
		}
	}
	return &scope
}

func mustCompute(o *operation) int {
	if text := o.take("must", "none"); text != "none" {
		return number(text)
	}
	return bindings.ComputeNothing
}

func (s *script) deviceStream(name string) bindings.DeviceStream {
	for _, known := range s.streams {
		if known.name == name {
			return known.id
		}
	}
	bad("no device stream is called %s", name)
	return 0
}

func (s *script) streamName(id bindings.DeviceStream) string {
	for _, known := range s.streams {
		if known.id == id {
			return known.name
		}
	}
	bad("a device stream that the script did not create: %d", id)
	return ""
}

func (s *script) sequence(name string) *scriptSequence {
	if raw, ok := strings.CutPrefix(name, "#"); ok {
		return &scriptSequence{id: bindings.SequenceID(unsigned(raw))}
	}
	q := s.sequences[name]
	if q == nil {
		bad("no sequence is called %s", name)
	}
	return q
}

// meet names the device's own stream, which has no name until it is met.
func (s *script) meet(fences []bindings.Fence) {
	for _, f := range fences {
		if !slices.ContainsFunc(s.streams, func(k scriptStream) bool { return k.id == f.Stream }) {
			s.streams = append(s.streams, scriptStream{"copies", f.Stream})
		}
	}
}

func (s *script) waits(fences []bindings.Fence) string {
	if s.most != 0 { // a shrink makes its copies there
		s.meet(fences)
	}
	var text strings.Builder
	// In the order of the streams' creation.
	for _, known := range s.streams {
		for _, f := range fences {
			if f.Stream == known.id {
				text.WriteString(" " + known.name)
			}
		}
	}
	for _, f := range fences {
		s.streamName(f.Stream) // each must be the script's own
	}
	if text.Len() == 0 {
		return ""
	}
	return ", waits for" + text.String()
}

func (s *script) create(o *operation) string {
	name := o.next()
	tokens := tokenList(o.next())
	prompt := bindings.Prompt{Scope: scope(o), MustCompute: mustCompute(o)}
	prompt.Tokens, prompt.Digests = itemTokens(tokens)
	prompt.Suspended = o.count("suspended", 0) != 0
	prompt.Mark = o.count("mark", 0) != 0
	prompt.Wait = o.count("wait", 0) != 0
	prompt.MatchBackoff = o.count("backoff", 0)
	if stop := o.take("stop", ""); stop == "0" {
		prompt.StopBefore = bindings.StopNow
	} else if stop != "" {
		prompt.StopBefore = number(stop)
	}
	if on := o.take("on", ""); on != "" {
		prompt.DeviceStream = s.deviceStream(on)
	}
	var out [1]bindings.CreateResult
	if err := s.calls().Create([]bindings.Prompt{prompt}, out[:]); err != nil {
		return outcome(err)
	}
	r := &out[0]
	if r.Err != nil {
		return outcome(r.Err)
	}
	id := opened(s.calls(), r.Sequence)
	s.open = append(s.open, id)
	s.sequences[name] = &scriptSequence{id, prompt.DeviceStream, slices.Clone(r.Waits)}
	return fmt.Sprintf("matched %d%s%s%s", r.MatchedTokens, s.copiedTail(r),
		s.pending(r.PendingTokens, r.PendingSequence), s.waits(r.Waits))
}

// copiedTail tells of those tokens of a create that were copied.
func (s *script) copiedTail(r *bindings.CreateResult) string {
	if r.CopiedTokens == 0 {
		return ""
	}
	s.meet(r.Waits)
	return fmt.Sprintf(", copied %d", r.CopiedTokens)
}

func (s *script) nameOf(id bindings.SequenceID) string {
	for _, name := range slices.Sorted(maps.Keys(s.sequences)) {
		if s.sequences[name].id == id {
			return name
		}
	}
	return "unknown"
}

// pending is what an older sequence computes.
func (s *script) pending(tokens int, sequence bindings.SequenceID) string {
	if tokens == 0 {
		return ""
	}
	return fmt.Sprintf(", pending %d of %s", tokens, s.nameOf(sequence))
}

func (s *script) over(waiters []bindings.Waiter) string {
	var text []string
	for _, w := range waiters {
		text = append(text, s.nameOf(w.Sequence)+" "+w.Outcome.String())
	}
	if text == nil {
		return "none"
	}
	return strings.Join(text, ", ")
}

func (s *script) probe(o *operation) string {
	tokens := tokenList(o.next())
	prompt := bindings.Prompt{Scope: scope(o), MustCompute: mustCompute(o)}
	prompt.Tokens, prompt.Digests = itemTokens(tokens)
	var out [1]bindings.ProbeResult
	if err := s.manager.Probe([]bindings.Prompt{prompt}, out[:]); err != nil {
		return outcome(err)
	}
	if out[0].Err != nil {
		return outcome(out[0].Err)
	}
	if pending := out[0].PendingTokens; pending != 0 {
		return fmt.Sprintf("matched %d, pending %d", out[0].MatchedTokens, pending)
	}
	return fmt.Sprintf("matched %d", out[0].MatchedTokens)
}

func (s *script) fork(o *operation) string {
	name := o.next()
	item := bindings.ForkItem{Sequence: s.sequence(o.next()).id}
	if on := o.take("on", ""); on != "" {
		item.DeviceStream = s.deviceStream(on)
	}
	var out [1]bindings.ForkResult
	if err := s.calls().Fork([]bindings.ForkItem{item}, out[:]); err != nil {
		return outcome(err)
	}
	r := &out[0]
	if r.Err != nil {
		return outcome(r.Err)
	}
	id := opened(s.calls(), r.Sequence)
	s.open = append(s.open, id)
	s.sequences[name] = &scriptSequence{id, item.DeviceStream, slices.Clone(r.Waits)}
	return fmt.Sprintf("committed %d%s", r.CommittedTokens, s.waits(r.Waits))
}

// copied tells of the copy that a grow has made.
func (s *script) copied(q *scriptSequence, r *bindings.GrowResult) string {
	if r.CopiedBlock < 0 {
		return ""
	}
	var waits []bindings.Fence
	if r.Wait.Stream != 0 {
		waits = []bindings.Fence{r.Wait}
		s.meet(waits)
		q.waits = waits
	}
	return fmt.Sprintf(", copied block %d with %d%s", r.CopiedBlock, r.CopiedTokens, s.waits(waits))
}

func (s *script) grow(o *operation) string {
	q := s.sequence(o.next())
	var out [1]bindings.GrowResult
	items := []bindings.GrowItem{{Sequence: q.id, CapacityTokens: number(o.next())}}
	evicted, err := s.calls().GrowTold(items, out[:], make([]bindings.EvictedBlock, o.count("room", 0)))
	switch r := &out[0]; {
	case err != nil:
		return outcome(err)
	case errors.Is(r.Err, bindings.ErrNotNow) && r.EvictedBlocks != 0:
		// In a step that has no room to tell what would be evicted.
		return fmt.Sprintf("not now, to evict %d", r.EvictedBlocks)
	case errors.Is(r.Err, bindings.ErrNotNow):
		return fmt.Sprintf("not now, leaving %d", r.LeavingPages)
	case r.Err != nil:
		return outcome(r.Err)
	default:
		return fmt.Sprintf("added %d, evicted %d%s%s", r.AddedPages, r.EvictedBlocks, s.copied(q, r), s.told(evicted))
	}
}

// blockByID names a block by the tokens that where has met it with.
func (s *script) blockByID(id bindings.BlockID) string {
	if name, ok := s.ids[id]; ok {
		return name
	}
	return "unknown"
}

func (s *script) told(evicted []bindings.EvictedBlock) string {
	var text strings.Builder
	for _, b := range evicted {
		fmt.Fprintf(&text, "; %s under %s %s %d", s.blockByID(b.Block), s.blockByID(b.Parent), b.Reason,
			b.Priority)
		if b.Announced {
			text.WriteString(" announced")
		}
		if b.Copies != 0 {
			fmt.Fprintf(&text, " copies %d", b.Copies)
		}
	}
	return text.String()
}

func (s *script) where(o *operation) string {
	tokens := tokenList(o.next())
	prompt := bindings.Prompt{Scope: scope(o), MustCompute: mustCompute(o)}
	prompt.Tokens, prompt.Digests = itemTokens(tokens)
	blocks, err := s.manager.Residency(prompt, nil)
	if err != nil {
		return outcome(err)
	}
	text := fmt.Sprintf("%d of %d", len(blocks), len(prompt.Tokens)/s.blockSize)
	for i, b := range blocks {
		s.ids[b.Block] = tokensText(tokens[i*s.blockSize:][:s.blockSize])
		separator := ", "
		if i == 0 {
			separator = ": "
		}
		text += fmt.Sprintf("%s%s copies %d", separator, s.blockByID(b.Block), b.Copies)
		if b.Held {
			text += " held"
		}
		if b.Announced {
			text += " announced"
		}
	}
	return text
}

func (s *script) commit(o *operation) string {
	q := s.sequence(o.next())
	var out [1]bindings.CommitResult
	item := bindings.CommitItem{Sequence: q.id}
	item.Tokens, item.Digests = itemTokens(tokenList(o.next()))
	if filled := o.take("filled", ""); filled != "" {
		item.Filled = &bindings.Fence{Stream: s.deviceStream(filled), Position: unsigned(o.take("at", "0"))}
	}
	err := s.calls().Commit([]bindings.CommitItem{item}, out[:])
	if err != nil {
		return outcome(err)
	}
	r := &out[0]
	if r.Err != nil {
		return outcome(r.Err)
	}
	q.waits = slices.Clone(r.Waits)
	text := fmt.Sprintf("stored %d, deduplicated %d, committed %d", r.StoredBlocks,
		r.DeduplicatedBlocks, r.CommittedTokens)
	if r.FirstChangedBlock >= 0 {
		text += fmt.Sprintf(", changed from %d", r.FirstChangedBlock)
	}
	return text + s.waits(r.Waits)
}

func (s *script) resume(o *operation) string {
	q := s.sequence(o.next())
	var out [1]bindings.ResumeResult
	if err := s.calls().Resume([]bindings.SequenceID{q.id}, out[:]); err != nil {
		return outcome(err)
	}
	r := &out[0]
	pending := s.pending(r.PendingTokens, r.PendingSequence)
	if r.Err != nil {
		return outcome(r.Err) + pending
	}
	q.waits = slices.Clone(r.Waits)
	return fmt.Sprintf("committed %d, lost %d%s%s", r.CommittedTokens, r.LostTokens, pending, s.waits(r.Waits))
}

// pin pins a sequence by its name, or a prompt.
func (s *script) pin(o *operation) string {
	name, what := o.next(), o.next()
	prompt := bindings.Prompt{Scope: scope(o), MustCompute: mustCompute(o)}
	var out [1]bindings.PinResult
	var err error
	if s.sequences[what] != nil || what[0] == '#' {
		err = s.calls().PinSequences([]bindings.SequenceID{s.sequence(what).id}, out[:])
	} else {
		prompt.Tokens = tokenList(what)
		err = s.manager.PinPrompts([]bindings.Prompt{prompt}, out[:])
	}
	if err != nil {
		return outcome(err)
	}
	if out[0].Err != nil {
		return outcome(out[0].Err)
	}
	s.pins[name] = out[0].Pin
	return fmt.Sprintf("pinned %d", out[0].Blocks)
}

func (s *script) drop(o *operation) string {
	items := []bindings.DropItem{{Scope: scope(o), Every: o.count("every", 0) != 0}}
	var out [1]bindings.DropResult
	evicted, err := s.manager.DropScopes(items, out[:], make([]bindings.EvictedBlock, o.count("room", 0)))
	if err != nil {
		return outcome(err)
	}
	r := &out[0]
	if r.Err != nil {
		return outcome(r.Err)
	}
	return fmt.Sprintf("dropped %d scopes, %d blocks, detached %d%s", r.Scopes, r.Blocks,
		r.DetachedSequences, s.told(evicted))
}

func (s *script) resize(o *operation) string {
	target, most := number(o.next()), o.count("max", 64)
	room := min(s.most, most)
	r, err := s.manager.Resize(target, most, make([]bindings.PageMove, room),
		make([]bindings.EvictedBlock, room))
	if err != nil && !errors.Is(err, bindings.ErrOutOfMemory) {
		return outcome(err)
	}
	var text strings.Builder
	if err != nil {
		text.WriteString(outcome(err) + "; ")
	}
	fmt.Fprintf(&text, "target %d of %d", r.TargetPages, r.TotalPages)
	for _, c := range []struct {
		name  string
		count int
	}{
		{"growing", r.GrowingPages}, {"doomed", r.DoomedPages}, {"held", r.HeldPages},
		{"leaving", r.LeavingPages},
	} {
		if c.count != 0 {
			fmt.Fprintf(&text, ", %s %d", c.name, c.count)
		}
	}
	if r.Done {
		text.WriteString(", done")
	}
	for _, m := range r.Moves {
		fmt.Fprintf(&text, "; %d to %d with %d", m.From, m.To, m.Tokens)
	}
	return text.String() + s.told(r.Evicted)
}

func histogram(name string, h bindings.Histogram) string {
	for i, n := range h {
		if n != 0 {
			name += fmt.Sprintf(" %d:%d", i, n)
		}
	}
	return name + "\n"
}

func (s *script) retain(o *operation) string {
	item := bindings.RetainItem{Sequence: s.sequence(o.next()).id, FirstToken: number(o.next())}
	if end := o.next(); end == "end" {
		item.EndToken = bindings.ToTheEnd
	} else {
		item.EndToken = number(end)
	}
	item.Priority = number(o.next())
	item.Expires = time.Duration(o.count("until", 0)) * time.Second
	errs := make([]error, 1)
	if err := s.calls().Retain([]bindings.RetainItem{item}, errs); err != nil {
		return outcome(err)
	}
	return outcome(errs[0])
}

func (s *script) release(o *operation, call func([]bindings.SequenceID, []error) error) string {
	var texts []string
	for first := true; first || len(o.plain) > 0; first = false {
		var errs [1]error
		id := s.sequence(o.next()).id
		if err := call([]bindings.SequenceID{id}, errs[:]); err != nil {
			errs[0] = err
		}
		texts = append(texts, outcome(errs[0]))
	}
	return strings.Join(texts, ", ")
}

func (s *script) info(o *operation) string {
	info, err := s.manager.Info(s.sequence(o.next()).id)
	if err != nil {
		return outcome(err)
	}
	text := fmt.Sprintf("committed %d, matched %d, capacity %d, pages %d", info.CommittedTokens,
		info.MatchedTokens, info.CapacityTokens, info.Pages)
	if info.DeviceStream != 0 {
		text += ", on " + s.streamName(info.DeviceStream)
	}
	if info.Detached {
		text += ", detached"
	}
	if info.State == bindings.Suspended {
		text += ", suspended"
	} else if full := info.CommittedTokens / s.blockSize; !info.Detached && info.ReusableBlocks != full {
		text += fmt.Sprintf(", reusable %d", info.ReusableBlocks)
	}
	return text
}

func (s *script) keyText(key wireKey) string {
	switch s.form {
	case event.Bytes:
		return hex.EncodeToString(key.digest[:])
	case event.Signed64:
		return strconv.FormatInt(int64(key.hash), 10)
	default:
		return strconv.FormatUint(key.hash, 10)
	}
}

// block names a block by its tokens, as a stored event has told them.
func (s *script) block(key wireKey, withKey bool) string {
	name, ok := s.names[key]
	switch {
	case !ok:
		return "unknown=" + s.keyText(key)
	case withKey:
		return name + "=" + s.keyText(key)
	}
	return name
}

func wireKeys(hashes []uint64, digests []event.Digest) []wireKey {
	var keys []wireKey
	for _, h := range hashes {
		keys = append(keys, wireKey{hash: h})
	}
	for _, d := range digests {
		keys = append(keys, wireKey{digest: d})
	}
	return keys
}

// event applies an event to the mirror and says what it tells.
func (s *script) event(e event.Event, withKeys, withReasons bool) string {
	switch e := e.(type) {
	case *event.BlockStored:
		parent, text := wireKey{}, "stored under root:"
		if e.HasParent {
			parent = wireKey{e.ParentHash, e.ParentDigest}
			if _, ok := s.mirror[parent]; !ok {
				bad("stored under an unknown parent")
			}
			text = "stored under " + s.block(parent, withKeys) + ":"
		}
		tokens, err := eventTokens(e)
		if err != nil {
			bad("%v", err)
		}
		for i, key := range wireKeys(e.Hashes, e.Digests) {
			if _, ok := s.mirror[key]; ok {
				bad("a block was stored twice")
			}
			s.mirror[key] = parent
			s.names[key] = tokensText(tokens[i*s.blockSize:][:s.blockSize])
			text += " " + s.block(key, withKeys)
			parent = key
		}
		if e.HasLoRAID {
			text += fmt.Sprintf(" lora %d", e.LoRAID)
		}
		if e.LoRAName != "" {
			text += " name " + e.LoRAName
		}
		return text + "\n"
	case *event.BlockRemoved:
		text := "removed:"
		if len(e.Reasons) != len(e.Hashes)+len(e.Digests) {
			bad("%d reasons for %d blocks", len(e.Reasons), len(e.Hashes)+len(e.Digests))
		}
		for i, key := range wireKeys(e.Hashes, e.Digests) {
			if _, ok := s.mirror[key]; !ok {
				bad("removed without having been stored")
			}
			delete(s.mirror, key)
			for _, parent := range s.mirror {
				if parent == key {
					bad("removed before its children")
				}
			}
			text += " " + s.block(key, withKeys)
			if withReasons {
				text += " " + e.Reasons[i].String()
			}
		}
		return text + "\n"
	default:
		clear(s.mirror)
		return "cleared\n"
	}
}

func (s *script) drain(o *operation) string {
	all, keys, reasons := false, false, false
	for len(o.plain) > 0 {
		switch word := o.next(); word {
		case "all":
			all = true
		case "reasons":
			reasons = true
		case "keys":
			keys = true
		default:
			bad("unknown word %s", word)
		}
	}
	events, blocks := o.count("events", 0), o.count("blocks", 0)
	rounds := 1
	if all {
		rounds = 64
	}
	var text strings.Builder
	pending := uint64(0)
	for range rounds {
		batch, err := s.stream.Drain(events, blocks)
		if err != nil {
			return text.String() + outcome(err) + "\n"
		}
		pending = batch.PendingBlocks
		for _, e := range batch.Events {
			if _, ok := e.(*event.AllBlocksCleared); ok && len(batch.Events) != 1 {
				batch.Release()
				bad("a clear is not alone in its batch")
			}
			func() {
				defer func() {
					if r := recover(); r != nil {
						batch.Release() // Close waits for it
						panic(r)
					}
				}()
				text.WriteString(s.event(e, keys, reasons))
			}()
		}
		rest := len(batch.Events) == 0 && pending == 0 && batch.RemainingBytes == 0
		batch.Release()
		if rest {
			break
		}
	}
	if text.Len() == 0 {
		text.WriteString("nothing\n")
	}
	if pending != 0 {
		fmt.Fprintf(&text, "pending %d\n", pending)
	}
	return text.String()
}

// snapshot says what a subscriber hears that begins with a snapshot, and whether
// it then knows what those do that have heard everything.
func (s *script) snapshot(o *operation) string {
	events, blocks := o.count("events", 0), o.count("blocks", 0)
	snapshot, err := s.stream.Snapshot()
	if err != nil {
		bad("%v", err)
	}
	defer snapshot.Close()
	drained := s.mirror
	defer func() { s.mirror = drained }()
	s.mirror = map[wireKey]wireKey{}
	var text strings.Builder
	for {
		batch, err := snapshot.Next(events, blocks)
		if err == io.EOF {
			break
		}
		if err != nil {
			bad("%v", err)
		}
		for _, e := range batch.Events {
			text.WriteString(s.event(e, false, false))
		}
	}
	if !maps.Equal(s.mirror, drained) {
		return text.String() + "different\n"
	}
	return text.String() + "the same\n"
}

func (s *script) compare() string {
	resident, err := s.manager.Resident(s.form)
	if err != nil {
		bad("%v", err)
	}
	announced, known := 0, 0
	for _, r := range resident {
		if r.Announced {
			announced++
			if _, ok := s.mirror[keyOnWire(r.Digest, s.form)]; ok {
				known++
			}
		}
	}
	text := "equal"
	if known != announced || known != len(s.mirror) {
		text = "different"
	}
	return fmt.Sprintf("mirror %d, announced %d, resident %d, %s", len(s.mirror), announced,
		len(resident), text)
}

func (s *script) stats() string {
	n, err := s.manager.Stats()
	if err != nil {
		bad("%v", err)
	}
	text := fmt.Sprintf("live %d, cached %d, free %d, quarantined %d; blocks %d, roots %d, sequences %d",
		n.LivePages, n.CachedPages, n.FreePages, n.QuarantinedPages, n.Blocks, n.Roots, n.Sequences)
	if n.SuspendedSequences != 0 {
		text += fmt.Sprintf(", suspended %d, kept %d", n.SuspendedSequences, n.KeptPages)
	}
	if n.Holds != 0 {
		text += fmt.Sprintf(", holds %d, held %d", n.Holds, n.HeldPages)
	}
	if n.Digests != 0 {
		text += fmt.Sprintf(", digests %d", n.Digests)
	}
	if n.LeavingPages != 0 {
		text += fmt.Sprintf(", leaving %d", n.LeavingPages)
	}
	if n.DoomedPages != 0 {
		text += fmt.Sprintf(", doomed %d", n.DoomedPages)
	}
	return text
}

type scriptCount struct {
	name  string
	count uint64
}

func nonzero(counts []scriptCount) string {
	var texts []string
	for _, c := range counts {
		if c.count != 0 {
			texts = append(texts, fmt.Sprintf("%s %d", c.name, c.count))
		}
	}
	if texts == nil {
		return "nothing"
	}
	return strings.Join(texts, ", ")
}

func (s *script) counters() string {
	n, err := s.manager.Stats()
	if err != nil {
		bad("%v", err)
	}
	return nonzero([]scriptCount{
		{"created", n.CreatedSequences},
		{"forked", n.ForkedSequences},
		{"copied", n.CopiedPages},
		{"copied bytes", n.CopiedBytes},
		{"asked", n.AskedBlocks},
		{"matched", n.MatchedBlocks},
		{"stored", n.StoredBlocks},
		{"deduplicated", n.DeduplicatedBlocks},
		{"evicted", n.EvictedBlocks},
		{"ttl", n.EvictedTTLBlocks},
		{"ended", n.EvictedEndedBlocks},
		{"expired", n.ExpiredBlocks},
		{"dropped", n.DroppedBlocks},
		{"pins", n.Pins},
		{"pinned", n.PinnedPages},
		{"peak pinned", n.PeakPinnedPages},
		{"reset", n.ResetBlocks},
		{"resets", n.Resets},
		{"not now", n.RefusedNotNow},
		{"never fits", n.RefusedNeverFits},
		{"gate", n.RefusedGate},
		{"reclaimed", n.ReclaimedPages},
		{"cancelled", n.CancelledSequences},
		{"marked", n.MarkedBlocks},
		{"marks committed", n.CommittedMarks},
		{"marks given up", n.GivenUpMarks},
		{"pending", n.PendingBlocks},
		{"unmarked", n.UnmarkedBlocks},
		{"waits", n.Waits},
		{"tails", n.PartialBlocks},
		{"tails kept", n.KeptPartialBlocks},
		{"partial hits", n.PartialHits},
		{"partial hit tokens", n.PartialHitTokens},
		{"waiting", n.WaitingSequences},
		{"moved", n.MovedPages},
		{"resizes", n.Resizes},
		{"failed resizes", n.FailedResizes},
		{"unreturned", n.UnreturnedBytes},
		{"peak live", n.PeakLivePages},
	})
}

func (s *script) streamStats() string {
	n, err := s.stream.Stats()
	if err != nil {
		bad("%v", err)
	}
	return nonzero([]scriptCount{
		{"stored", n.StoredBlocks},
		{"removed", n.RemovedBlocks},
		{"cleared", n.ClearedBlocks},
		{"clears", n.Clears},
		{"deferred", n.DeferredBlocks},
		{"healed", n.HealedBlocks},
		{"deferred evicted", n.DeferredEvictedBlocks},
		{"pending", n.PendingBlocks},
		{"announced", n.AnnouncedBlocks},
		{"dropped", n.DroppedEvents},
		{"unannounced removals", n.UnannouncedRemovals},
		{"partial", n.PartialBlocksSuppressed},
		{"multimodal", n.MultimodalBlocksSuppressed},
		{"suppressed", n.SuppressedBlocks},
		{"superseded", n.SupersededRecords},
		{"drained stored", n.DrainedStoredBlocks},
		{"drained removed", n.DrainedRemovedBlocks},
		{"removed ttl", n.RemovedTTLBlocks},
		{"removed ended", n.RemovedEndedBlocks},
		{"removed scope", n.RemovedScopeBlocks},
	})
}
