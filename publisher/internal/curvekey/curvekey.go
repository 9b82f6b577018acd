// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package curvekey reads files of CURVE keys, for both ends of a connection. No
// error tells a key.
package curvekey

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

const (
	// Len is the length of a key in bytes.
	Len = 32
	// TextLen is the length of a key's text in Z85.
	TextLen = 40
	// MaxFile is the largest file of keys: some ten thousand.
	MaxFile = 1 << 20
)

// Key is a key in bytes.
type Key [Len]byte

// ReadSecret reads the file of a secret key, which nobody but its owner may have
// any right to, and returns the key as text.
func ReadSecret(path string) (string, error) {
	text, err := readFile(path, 0o077, "others than its owner may use it")
	if err != nil {
		return "", err
	}
	return find(text, "secret")
}

// ReadPublic reads the file of a public key, which nobody but its owner may
// change, and returns the key as text.
func ReadPublic(path string) (string, error) {
	text, err := ReadShared(path)
	if err != nil {
		return "", err
	}
	return find(text, "public")
}

// ReadShared reads a file that nobody but its owner may change.
func ReadShared(path string) (string, error) {
	return readFile(path, 0o022, "others than its owner may change it")
}

// ErrMisplaced says what is wrong where Misplaced holds. The value itself must not be
// told.
var ErrMisplaced = errors.New("is a key itself; want the name of a file that holds it")

// Misplaced says that a key was given where the name of its file belongs. A name
// of 40 characters can look like a key, so a file that is there is one.
func Misplaced(path string) bool {
	if !valid(strings.TrimSpace(path)) {
		return false
	}
	_, err := os.Stat(path)
	return err != nil
}

// readFile reads a file whose mode has none of the forbidden bits.
func readFile(path string, forbidden fs.FileMode, why string) (string, error) {
	// Without NONBLOCK the open of a pipe would wait for a writer; for a regular
	// file it changes nothing.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", bare(err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return "", bare(err)
	case !info.Mode().IsRegular():
		return "", errors.New("is no regular file")
	case info.Mode().Perm()&forbidden != 0:
		return "", fmt.Errorf("%s: its mode is %04o", why, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(file, MaxFile+1))
	if err != nil {
		return "", bare(err)
	}
	if len(data) > MaxFile {
		return "", fmt.Errorf("more than %d bytes", MaxFile)
	}
	return string(data), nil
}

// bare takes the name off a file error; the caller tells it.
func bare(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// find returns the key of a file that holds it alone, or of a certificate as CZMQ
// and PyZMQ write it.
func find(text, kind string) (string, error) {
	if key := strings.TrimSpace(text); valid(key) {
		return key, nil
	}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, "=")
		if ok && strings.TrimSpace(name) == kind+"-key" {
			value = strings.TrimSpace(value)
			if key, ok := strings.CutPrefix(value, `"`); ok {
				value = strings.TrimSuffix(key, `"`)
			}
			if valid(value) {
				return value, nil
			}
		}
	}
	return "", fmt.Errorf("no %s key of %d characters in Z85", kind, TextLen)
}

// z85 is the alphabet of Z85 (ZeroMQ RFC 32), in the order of its values.
const z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

func valid(text string) bool {
	_, ok := Decode(text)
	return ok
}

// Decode reads the text of a key: five characters for each four bytes.
func Decode(text string) (key Key, ok bool) {
	if len(text) != TextLen {
		return key, false
	}
	for i := 0; i < TextLen; i += 5 {
		value := uint64(0)
		for _, c := range []byte(text[i : i+5]) {
			digit := strings.IndexByte(z85, c)
			if digit < 0 {
				return Key{}, false
			}
			value = value*85 + uint64(digit)
		}
		if value > 1<<32-1 {
			return Key{}, false
		}
		at := i / 5 * 4
		key[at], key[at+1], key[at+2], key[at+3] = byte(value>>24), byte(value>>16), byte(value>>8), byte(value)
	}
	return key, true
}
