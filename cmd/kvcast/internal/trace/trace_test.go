// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func readAll(t *testing.T, r *Reader) ([]Request, error) {
	t.Helper()
	var out []Request
	for {
		req, err := r.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			if _, again := r.Next(); again != err {
				t.Errorf("a second Next gave %v, not the first error", again)
			}
			return out, err
		}
		c := *req
		c.HashIDs = slices.Clone(req.HashIDs)
		out = append(out, c)
	}
}

const good = `{"timestamp": 5, "input_length": 600, "output_length": 7, "hash_ids": [0, 18014398509481983]}`

func TestReaderAccepts(t *testing.T) {
	want := []Request{
		{Index: 0, TimestampMS: 5, InputLength: 600, OutputLength: 7, HashIDs: []uint64{0, MaxHashID}},
		{Index: 1, HashIDs: []uint64{}},
	}
	empty := `{"hash_ids":[ ],"input_length":0,"note":{"a":[1,"}"]},"output_length":0,"timestamp":0}`
	for name, text := range map[string]string{
		"plain":           good + "\n" + empty + "\n",
		"no last newline": good + "\n" + empty,
		"blank end":       good + "\n" + empty + "\n\n \n",
		"carriage return": good + "\r\n" + empty + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			for _, in := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text))} {
				r := NewReader("t", in)
				got, err := readAll(t, r)
				if err != nil {
					t.Fatal(err)
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("got %v, want %v", got, want)
				}
				if r.BytesRead() != int64(len(text)) {
					t.Errorf("BytesRead %d, want %d", r.BytesRead(), len(text))
				}
			}
		})
	}
}

func TestReaderRefuses(t *testing.T) {
	object := func(ts, in, out, ids string) string {
		return fmt.Sprintf(`{"timestamp":%s,"input_length":%s,"output_length":%s,"hash_ids":%s}`, ts, in, out, ids)
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty file":        {"", "f: no request in the file"},
		"blank file":        {"\n\n", "f: no request in the file"},
		"blank in between":  {good + "\n\n" + good, "f:2: blank line before the end"},
		"not JSON":          {good + "\nhello\n", "f:2: not JSON: invalid character 'h' looking for beginning of value"},
		"a list":            {"[1]", "f:1: not a JSON object"},
		"cut off":           {good + "\n" + good[:40], "f:2: the JSON object ends too early"},
		"cut off in a list": {good[:len(good)-2], "f:1: the JSON object ends too early"},
		"text after":        {good + "x", "f:1: more text after the JSON object"},
		"two objects":       {good + good, "f:1: more text after the JSON object"},
		"no timestamp":      {`{"input_length":0,"output_length":0,"hash_ids":[]}`, "f:1: timestamp is missing"},
		"no input":          {`{"timestamp":0,"output_length":0,"hash_ids":[]}`, "f:1: input_length is missing"},
		"other case":        {`{"timestamp":0,"Input_Length":0,"output_length":0,"hash_ids":[]}`, "f:1: input_length is missing"},
		"no output":         {`{"timestamp":0,"input_length":0,"hash_ids":[]}`, "f:1: output_length is missing"},
		"no ids":            {`{"timestamp":0,"input_length":0,"output_length":0}`, "f:1: hash_ids is missing"},
		"twice":             {`{"timestamp":0,"timestamp":1}`, "f:1: timestamp is given twice"},
		"negative time":     {object("-1", "0", "0", "[]"), "f:1: timestamp is negative: -1"},
		"negative input":    {object("0", "-512", "0", "[]"), "f:1: input_length is negative: -512"},
		"negative output":   {object("0", "0", "-3", "[]"), "f:1: output_length is negative: -3"},
		"fraction":          {object("0.5", "0", "0", "[]"), "f:1: timestamp is not an integer: 0.5"},
		"exponent":          {object("0", "1e3", "0", "[]"), "f:1: input_length is not an integer: 1e3"},
		"string":            {object("0", `"5"`, "0", "[]"), `f:1: input_length is not an integer: "5"`},
		"null":              {object("0", "null", "0", "[]"), "f:1: input_length is not an integer: null"},
		"NaN":               {object("0", "NaN", "0", "[]"), "f:1: not JSON: invalid character 'N' looking for beginning of value"},
		"huge input":        {object("0", "16777217", "0", "[]"), "f:1: input_length is above 16777216: 16777217"},
		"huge output":       {object("0", "0", "1048577", "[]"), "f:1: output_length is above 1048576: 1048577"},
		"huge time":         {object("99999999999999999999999999999999999999999", "0", "0", "[]"), "f:1: timestamp is above 9223372036854: 9999999999999999999999999999999999999999..."},
		"ids not a list":    {object("0", "0", "0", "{}"), "f:1: hash_ids is not a list: {}"},
		"string id":         {object("0", "1", "0", `["1"]`), `f:1: a hash id is not an integer: "1"`},
		"nested ids":        {object("0", "1", "0", `[[1]]`), `f:1: a hash id is not an integer: [1]`},
		"negative id":       {object("0", "1", "0", "[-1]"), "f:1: a hash id is negative: -1"},
		"huge id":           {object("0", "1", "0", "[18014398509481984]"), "f:1: a hash id is above 18014398509481983: 18014398509481984"},
		"too few ids":       {object("0", "513", "0", "[1]"), "f:1: 1 hash_ids, but input_length 513 needs 2"},
		"too many ids":      {object("0", "512", "0", "[1,2]"), "f:1: 2 hash_ids, but input_length 512 needs 1"},
		"long line":         {good + "\n" + strings.Repeat(" ", MaxLineBytes) + "\n", "f:2: line is longer than 4194304 bytes"},
		"long, no end":      {strings.Repeat("[", MaxLineBytes+1), "f:1: line is longer than 4194304 bytes"},
		"deep":              {`{"x":` + strings.Repeat("[", 100000), "f:1: not JSON: invalid character '[' exceeded max depth"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readAll(t, NewReader("f", strings.NewReader(c.text)))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an *Error", err)
			}
			if err.Error() != c.want {
				t.Errorf("got  %s\nwant %s", err, c.want)
			}
		})
	}
	t.Run("read error", func(t *testing.T) {
		_, err := readAll(t, NewReader("f", io.MultiReader(strings.NewReader(good+"\n"), iotest.ErrReader(errors.New("boom")))))
		if err == nil || err.Error() != "f:2: boom" {
			t.Errorf("got %v", err)
		}
	})
}

// The first values are those of the published splitmix64 with seed 0; the
// tokens were computed with a separate program (Python integers).
func TestExpansion(t *testing.T) {
	if got := splitmix64(0); got != 0xE220A8397B1DCDAF {
		t.Errorf("splitmix64(0) = %#x", got)
	}
	if got := splitmix64(0x9E3779B97F4A7C15); got != 0x6E789E6AA1B965F4 {
		t.Errorf("second splitmix64 value = %#x", got)
	}
	r := &Request{Index: 3, InputLength: 514, OutputLength: 2, HashIDs: []uint64{7, 12}}
	p := AppendPrompt([]uint32{1}, r)
	if len(p) != 515 {
		t.Fatalf("%d tokens, want 515", len(p))
	}
	if got, want := []uint32{p[1], p[2], p[512], p[513], p[514]}, []uint32{27385, 70113, 55043, 73689, 69219}; !slices.Equal(got, want) {
		t.Errorf("prompt tokens %v, want %v", got, want)
	}
	if got, want := AppendOutput(nil, r), []uint32{123420, 68286}; !slices.Equal(got, want) {
		t.Errorf("output tokens %v, want %v", got, want)
	}
}

func TestShippedTrace(t *testing.T) {
	const name = "../../../../tests/data/mooncake_conversation_2000.jsonl"
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	reqs, err := readAll(t, NewReader(name, f))
	if err != nil {
		t.Fatal(err)
	}
	if len(reqs) != 2000 || reqs[1999].Index != 1999 {
		t.Errorf("%d requests, want 2000", len(reqs))
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(good + "\n"))
	f.Add([]byte(`{"timestamp":0,"input_length":1,"output_length":0,"hash_ids":["a,b"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader("f", strings.NewReader(string(data)))
		for {
			req, err := r.Next()
			if err != nil {
				if strings.ContainsAny(err.Error(), "\n\r") {
					t.Errorf("error of several lines: %q", err)
				}
				return
			}
			if got := len(AppendPrompt(nil, req)); got != req.InputLength {
				t.Fatalf("%d tokens for input_length %d", got, req.InputLength)
			}
		}
	})
}
