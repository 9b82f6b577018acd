// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package trace reads request traces in the Mooncake format (one JSON object
// per line) and turns their hash ids into token ids.
//
// A trace holds no text: each id stands for 512 tokens of a prompt together
// with everything before them. The expansion draws the tokens from the id by a
// fixed formula, so that equal ids give equal tokens in every program that
// uses it.
package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const (
	// TokensPerID is the number of prompt tokens that one hash id stands for.
	TokensPerID = 512

	// MaxLineBytes bounds one line. The longest line of the published traces
	// has about 3,000 bytes.
	MaxLineBytes = 4 << 20
	// MaxInputLength bounds a prompt: more than any context window, and small
	// enough that the expanded tokens stay below 64 MiB.
	MaxInputLength = 1 << 24
	// MaxOutputLength is what the expansion leaves for one request: from there
	// on its output tokens would run into those of the next request.
	MaxOutputLength = 1 << 20
	// MaxHashID is where the prompt tokens would run into the output tokens.
	MaxHashID = 1<<(63-9) - 1
	// maxTimestamp keeps a time in milliseconds within a time.Duration.
	maxTimestamp = (1<<63 - 1) / 1_000_000
)

// Request is one line of a trace.
type Request struct {
	// Index is the number of the request in the file, from 0.
	Index int
	// TimestampMS is the arrival in milliseconds from the start of the trace.
	TimestampMS int64
	// InputLength and OutputLength count tokens.
	InputLength, OutputLength int
	// HashIDs has one id per started TokensPerID tokens of the prompt. It is
	// valid until the next call of Next.
	HashIDs []uint64
}

// Error names a line that cannot be used.
type Error struct {
	// File is the name given to NewReader.
	File string
	// Line counts from 1; 0 speaks of the whole file.
	Line int
	// What says what is wrong with it.
	What string
}

// Error returns "FILE:LINE: what".
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.What
	}
	return e.File + ":" + strconv.Itoa(e.Line) + ": " + e.What
}

// Reader reads a trace line by line; only one line is in memory at a time.
type Reader struct {
	name string
	in   *bufio.Reader
	long []byte // a line that does not fit the buffer of in
	line int
	next Request
	read int64
	err  error
}

// NewReader reads from in; name is used in errors only.
func NewReader(name string, in io.Reader) *Reader {
	return &Reader{name: name, in: bufio.NewReaderSize(in, 64<<10)}
}

// BytesRead is the number of bytes of all lines handed out so far.
func (r *Reader) BytesRead() int64 { return r.read }

// Next returns the next request, io.EOF at the end, or an *Error. A file
// without any request is an error. The request is valid until the next call;
// after an error each call returns the same error.
func (r *Reader) Next() (*Request, error) {
	if r.err == nil {
		r.err = r.advance()
	}
	if r.err != nil {
		return nil, r.err
	}
	return &r.next, nil
}

func (r *Reader) advance() error {
	line, err := r.readLine()
	if err == io.EOF && r.line == 0 {
		return &Error{r.name, 0, "no request in the file"}
	}
	if err != nil {
		return err
	}
	if len(line) == 0 {
		return r.onlyBlanks()
	}
	index := r.next.Index + 1
	if r.line == 1 {
		index = 0
	}
	r.next.Index = index
	if err := parse(line, &r.next); err != nil {
		return r.fail("%s", err)
	}
	return nil
}

// onlyBlanks accepts blank lines at the end of the file and nowhere else.
func (r *Reader) onlyBlanks() error {
	first := r.line
	for {
		line, err := r.readLine()
		switch {
		case err == io.EOF && first == 1:
			return &Error{r.name, 0, "no request in the file"}
		case err != nil:
			return err
		case len(line) != 0:
			return &Error{r.name, first, "blank line before the end"}
		}
	}
}

func (r *Reader) fail(format string, args ...any) error {
	return &Error{r.name, r.line, fmt.Sprintf(format, args...)}
}

// readLine returns the next line without its end and surrounding blanks. The
// slice is valid until the next call.
func (r *Reader) readLine() ([]byte, error) {
	r.long = r.long[:0]
	for {
		part, err := r.in.ReadSlice('\n')
		r.read += int64(len(part))
		if len(r.long)+len(part) > MaxLineBytes {
			r.line++
			return nil, r.fail("line is longer than %d bytes", MaxLineBytes)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			r.long = append(r.long, part...)
			continue
		case err == io.EOF:
			if len(part) == 0 && len(r.long) == 0 {
				return nil, io.EOF
			}
		case err != nil:
			r.line++
			return nil, r.fail("%s", err)
		}
		r.line++
		if len(r.long) > 0 {
			r.long = append(r.long, part...)
			part = r.long
		}
		return bytes.TrimSpace(part), nil
	}
}

// parse fills req from one line. Keys that it does not know are skipped.
func parse(line []byte, req *Request) error {
	dec := json.NewDecoder(bytes.NewReader(line))
	if tok, err := dec.Token(); err != nil {
		return jsonError(err)
	} else if tok != json.Delim('{') {
		return errors.New("not a JSON object")
	}
	var seen [4]bool
	names := [4]string{"timestamp", "input_length", "output_length", "hash_ids"}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return jsonError(err)
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return jsonError(err)
		}
		field := -1
		for i, name := range names {
			if key == name {
				field = i
			}
		}
		if field < 0 {
			continue
		}
		if seen[field] {
			return fmt.Errorf("%s is given twice", names[field])
		}
		seen[field] = true
		var v uint64
		switch field {
		case 0:
			v, err = parseInt(names[0], raw, maxTimestamp)
			req.TimestampMS = int64(v)
		case 1:
			v, err = parseInt(names[1], raw, MaxInputLength)
			req.InputLength = int(v)
		case 2:
			v, err = parseInt(names[2], raw, MaxOutputLength)
			req.OutputLength = int(v)
		case 3:
			req.HashIDs, err = parseIDs(req.HashIDs[:0], raw)
		}
		if err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return jsonError(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("more text after the JSON object")
	}
	for i, name := range names {
		if !seen[i] {
			return fmt.Errorf("%s is missing", name)
		}
	}
	want := (req.InputLength + TokensPerID - 1) / TokensPerID
	if len(req.HashIDs) != want {
		return fmt.Errorf("%d hash_ids, but input_length %d needs %d",
			len(req.HashIDs), req.InputLength, want)
	}
	return nil
}

func jsonError(err error) error {
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON object ends too early")
	}
	return fmt.Errorf("not JSON: %w", err)
}

// parseIDs reads a list of ids. raw is valid JSON, so that commas separate
// elements unless an element is itself a list, object or string, which then
// fails as an element.
func parseIDs(dst []uint64, raw []byte) ([]uint64, error) {
	raw = bytes.TrimSpace(raw)
	if raw[0] != '[' {
		return dst, fmt.Errorf("hash_ids is not a list: %s", excerpt(raw))
	}
	raw = bytes.TrimSpace(raw[1 : len(raw)-1])
	for len(raw) > 0 {
		element, rest, _ := bytes.Cut(raw, []byte{','})
		id, err := parseInt("a hash id", bytes.TrimSpace(element), MaxHashID)
		if err != nil {
			return dst, err
		}
		dst = append(dst, id)
		raw = rest
	}
	return dst, nil
}

func parseInt(name string, raw []byte, maximum uint64) (uint64, error) {
	digits := raw
	if len(digits) > 1 && digits[0] == '-' {
		digits = digits[1:]
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%s is not an integer: %s", name, excerpt(raw))
		}
	}
	if raw[0] == '-' {
		return 0, fmt.Errorf("%s is negative: %s", name, excerpt(raw))
	}
	v, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil || v > maximum {
		return 0, fmt.Errorf("%s is above %d: %s", name, maximum, excerpt(raw))
	}
	return v, nil
}

// excerpt keeps an error on one line of bearable length.
func excerpt(raw []byte) string {
	const most = 40
	if len(raw) > most {
		return string(raw[:most]) + "..."
	}
	return string(raw)
}
