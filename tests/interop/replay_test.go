// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

const traceFile = "../data/mooncake_conversation_2000.jsonl"

// engine is a kvcast replay in a process of its own.
type engine struct {
	t        *testing.T
	cmd      *exec.Cmd
	resident map[uint64]bool // the wire hashes of what can be reused at the end
}

// buildTool builds the command line tool.
func buildTool(t *testing.T) string {
	t.Helper()
	// So the go command takes note of the sources, and offers no old result.
	for _, folder := range []string{"native", "sink", "cuda", "cgo", "bindings", "publisher", "cmd"} {
		err := filepath.WalkDir(filepath.Join("../..", folder), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			t.Fatal(err)
		}
	}
	tool := filepath.Join(t.TempDir(), "kvcast")
	if out, err := exec.Command("go", "build", "-o", tool, "github.com/kvcast/kvcast/cmd/kvcast").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return tool
}

// replay replays the first requests of the shipped trace as a rank, and returns
// when all has been published.
func replay(t *testing.T, tool, base, past string, rank, limit, pages int, more ...string) *engine {
	t.Helper()
	resident := filepath.Join(t.TempDir(), "resident")
	e := &engine{t: t, resident: map[uint64]bool{}}
	e.cmd = exec.Command(tool, append([]string{"replay", "--trace", traceFile, "--limit", fmt.Sprint(limit),
		"--block-size", fmt.Sprint(blockSize), "--capacity-blocks", fmt.Sprint(pages), "--device", "host",
		"--profile", "dynamo", "--first-seq", "time", "--endpoint", base, "--replay-endpoint", past,
		"--data-parallel-rank", fmt.Sprint(rank), "--data-parallel-size", fmt.Sprint(ranks),
		"--resident-out", resident, "--hold", "1h", "--json"}, more...)...)
	var stderr lockedBuffer
	e.cmd.Stderr = &stderr
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.kill)
	timer := time.AfterFunc(deadline, func() { e.cmd.Process.Kill() })
	defer timer.Stop()
	var summary struct {
		Removed int `json:"removed_blocks"`
	}
	if err := json.NewDecoder(out).Decode(&summary); err != nil || summary.Removed == 0 {
		t.Fatalf("%v, %+v: %s", err, summary, stderr.tail())
	}
	text, err := os.ReadFile(resident)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		hash, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		e.resident[hash] = true
	}
	return e
}

// kill is one that nobody can prepare for.
func (e *engine) kill() {
	e.cmd.Process.Kill()
	e.cmd.Wait()
}

// traceBlocks returns the prompts of the first requests of the trace that have at
// most so many tokens, and the wire hashes of their blocks, from the rules alone:
// how ids become tokens, and tokens keys.
func traceBlocks(t *testing.T, requests, longest int) (prompts [][]uint32, hashes [][]uint64) {
	t.Helper()
	f, err := os.Open(traceFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	for range requests {
		if !in.Scan() {
			t.Fatal("the trace is too short")
		}
		var r struct {
			Length int      `json:"input_length"`
			IDs    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Length > longest {
			continue
		}
		prompt := make([]uint32, r.Length)
		for i := range prompt {
			x := r.IDs[i/512]*512 + uint64(i%512) + 0x9E3779B97F4A7C15
			x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
			x = (x ^ x>>27) * 0x94D049BB133111EB
			prompt[i] = uint32((x ^ x>>31) % vocabulary)
		}
		var chain []uint64
		key := sha256.Sum256([]byte{0})
		for i := 0; i+blockSize <= len(prompt); i += blockSize {
			text := key[:]
			for _, token := range prompt[i : i+blockSize] {
				text = binary.LittleEndian.AppendUint32(text, token)
			}
			key = sha256.Sum256(text)
			chain = append(chain, wire.Reduce(key, event.Signed64))
		}
		prompts, hashes = append(prompts, prompt), append(hashes, chain)
	}
	return prompts, hashes
}

// Dynamo's standalone indexer follows two processes that replay the shipped
// trace, one of which is killed and begins anew: of each prompt of the trace it
// knows what each of them could reuse.
func TestDynamoIndexerOfProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	python(t)
	tool := buildTool(t)
	for name, more := range map[string][]string{
		"whole history": nil,
		// It joins too late for all but the last batches.
		"snapshots": {"--buffer-steps", "4"},
	} {
		t.Run(name, func(t *testing.T) { indexerOfProcesses(t, tool, more...) })
	}
}

func indexerOfProcesses(t *testing.T, tool string, more ...string) {
	base, past := freeEndpoints(t)
	x := startIndexer(t, base, past)
	engines := [ranks]*engine{replay(t, tool, base, past, 0, 60, 9000, more...), replay(t, tool, base, past, 1, 45, 5000, more...)}
	prompts, chains := traceBlocks(t, 70, 12000)
	agree := func(when string) {
		t.Helper()
		// Nothing more is published but a tail mark, from which the indexer learns
		// what it has missed: the first time round it may still be on its way.
		end := time.Now().Add(deadline)
		told := 0
		for i := range 2 * len(prompts) {
			prompt, chain := prompts[i%len(prompts)], chains[i%len(prompts)]
			var want [ranks]int
			for rank, e := range engines {
				for _, hash := range chain {
					if !e.resident[hash] {
						break
					}
					want[rank] += blockSize
				}
			}
			if want[0] != want[1] {
				told++
			}
			got := x.match(prompt)
			for ; got != want && i < len(prompts) && time.Now().Before(end); got = x.match(prompt) {
				time.Sleep(10 * time.Millisecond)
			}
			if got != want {
				t.Fatalf("%s: a prompt of %d tokens matches %v, the processes have %v", when, len(prompt), got, want)
			}
		}
		if t.Logf("%s: %d of %d prompts belonged to one rank", when, told/2, len(prompts)); told < 2*len(prompts)/6 {
			t.Error("too few")
		}
	}
	agree("at first")
	engines[1].kill()
	engines[1] = replay(t, tool, base, past, 1, 70, 7000, more...)
	agree("after a kill")
}
