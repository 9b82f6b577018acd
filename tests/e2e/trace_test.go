// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// request is a line of a trace, as this package reads it.
type request struct {
	Timestamp    int64    `json:"timestamp"`
	InputLength  int      `json:"input_length"`
	OutputLength int      `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

// readTrace reads up to limit requests (0 = all).
func readTrace(t *testing.T, path string, limit int) []request {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && (limit == 0 || len(out) < limit) {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
	return out
}

// writeTrace writes requests into a new file.
func writeTrace(t *testing.T, requests ...request) string {
	t.Helper()
	var s strings.Builder
	for _, r := range requests {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&s, "%s\n", line)
	}
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, []byte(s.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// mix is splitmix64 as the documentation of the expansion writes it down.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

const vocabulary = 128256

// sequenceTokens is the prompt of the request at a line (from 0), and with
// decode its output.
func (r request) sequenceTokens(line int, decode bool) []uint32 {
	tokens := make([]uint32, 0, r.InputLength+r.OutputLength)
	for position := range r.InputLength {
		id := r.HashIDs[position/512]
		tokens = append(tokens, uint32(mix(id*512+uint64(position%512))%vocabulary))
	}
	if decode {
		for j := range r.OutputLength {
			tokens = append(tokens, uint32(mix(1<<63+uint64(line)<<20+uint64(j))%vocabulary))
		}
	}
	return tokens
}
