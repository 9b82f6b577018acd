// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/kvcast/kvcast/publisher/wire"
)

// vector is a golden batch, see tests/vectors.
type vector struct {
	Name    string           `json:"name"`
	TS      float64          `json:"ts"`
	Rank    any              `json:"data_parallel_rank"`
	Dialect string           `json:"dialect"`
	Events  []map[string]any `json:"events"`
	Map     string           `json:"map_batch_hex"`
	Array   *string          `json:"array_batch_hex"`
}

// Every vector is what three foreign decoders take it for, in both forms.
func TestVectors(t *testing.T) {
	raw, err := os.ReadFile("../vectors/wire_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []vector `json:"vectors"`
		Full    vector   `json:"full_width_hash_variant"`
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	full := file.Full
	full.Name, full.TS, full.Rank = "full width", 1700000000.5, json.Number("0")
	if len(file.Vectors) < 17 || full.Map == "" {
		t.Fatalf("only %d vectors", len(file.Vectors))
	}
	h := startHelper(t, "decode.py")
	for _, v := range append(file.Vectors, full) {
		t.Run(v.Name, func(t *testing.T) {
			v.check(t, h, wire.Map, v.Map)
			if v.Array != nil {
				v.check(t, h, wire.Array, *v.Array)
			}
		})
	}
}

func (v vector) check(t *testing.T, h *helper, encoding wire.Encoding, text string) {
	t.Helper()
	form := encoding.String()
	if v.Dialect == "sglang" {
		form = v.Dialect
	}
	var want []map[string]any
	for _, e := range v.Events {
		fields := unmark(e).(map[string]any)
		if v.Dialect == "sglang" {
			// It leaves out what is not set.
			for _, key := range []string{"medium", "cache_salt", "session_id", "lora_name"} {
				if fields[key] == nil {
					delete(fields, key)
				}
			}
		}
		want = append(want, inArray(fields, encoding))
	}
	h.t = t
	var got struct{ Msgspec, Msgpack decodedBatch }
	h.ask(map[string]any{"decode": text, "form": form}, &got)
	got.Msgspec.want(t, form+": msgspec", v.TS, v.Rank, want)
	got.Msgpack.want(t, form+": msgpack-python", v.TS, v.Rank, want)
	payload, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	decode := goBatch[int64]
	switch {
	case strings.Contains(v.Name, "bytes"):
		decode = goBatch[[]byte]
	case strings.Contains(v.Name, "unsigned") || strings.Contains(v.Name, "031") || strings.Contains(v.Name, "group"):
		decode = goBatch[uint64]
	}
	decode(payload, encoding).want(t, form+": vmihailenco", v.TS, v.Rank, want)
}
