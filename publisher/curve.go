// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

const (
	keySecret = "curve_secret_key_file"
	keyAllow  = "curve_allow_file"

	// curveKeyLen is the length of a CURVE key in bytes, curveTextLen that of its
	// text in Z85.
	curveKeyLen  = 32
	curveTextLen = 40
	// maxKeyFile is the largest file of keys: some ten thousand.
	maxKeyFile = 1 << 20
)

// curve is what a publisher needs to know whom it talks to.
type curve struct {
	// secret and public are the publisher's keys as text.
	secret, public string
	allowed        map[curveKey]bool
}

type curveKey [curveKeyLen]byte

// loadCurve reads the key files, if there are any. No error tells a key.
func loadCurve(o *Options) (*curve, *Error) {
	switch {
	case o.CurveSecretKeyFile == "" && o.CurveAllowFile == "":
		return nil, nil
	case o.CurveSecretKeyFile == "":
		return nil, optionError(keyAllow, o.CurveAllowFile, "there is no "+keySecret)
	case o.CurveAllowFile == "":
		return nil, optionError(keySecret, o.CurveSecretKeyFile, "there is no "+keyAllow)
	case !hasCurve():
		return nil, optionError(keySecret, o.CurveSecretKeyFile, "this libzmq was built without CURVE")
	}
	text, err := readKeyFile(o.CurveSecretKeyFile, 0o077, "others than its owner may use it")
	if err != nil {
		return nil, optionError(keySecret, o.CurveSecretKeyFile, err.Error())
	}
	c := &curve{allowed: make(map[curveKey]bool)}
	if c.secret, err = findSecret(text); err == nil {
		c.public, err = curvePublic(c.secret)
	}
	if err != nil {
		return nil, optionError(keySecret, o.CurveSecretKeyFile, err.Error())
	}
	if text, err = readKeyFile(o.CurveAllowFile, 0o022, "others than its owner may change it"); err == nil {
		err = c.allow(text)
	}
	if err != nil {
		return nil, optionError(keyAllow, o.CurveAllowFile, err.Error())
	}
	return c, nil
}

// readKeyFile reads a file whose mode has none of the forbidden bits.
func readKeyFile(path string, forbidden fs.FileMode, why string) (string, error) {
	file, err := os.Open(path)
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
	data, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return "", bare(err)
	}
	if len(data) > maxKeyFile {
		return "", fmt.Errorf("more than %d bytes", maxKeyFile)
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

// findSecret returns the secret key of a file that holds it alone, or of a
// certificate as CZMQ and PyZMQ write it.
func findSecret(text string) (string, error) {
	if key := strings.TrimSpace(text); validKey(key) {
		return key, nil
	}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, "=")
		if ok && strings.TrimSpace(name) == "secret-key" {
			value = strings.TrimSpace(value)
			if key, ok := strings.CutPrefix(value, `"`); ok {
				value = strings.TrimSuffix(key, `"`)
			}
			if validKey(value) {
				return value, nil
			}
		}
	}
	return "", fmt.Errorf("no secret key of %d characters in Z85", curveTextLen)
}

// allow notes the keys of a file: one on each line, empty lines and those that
// begin with # and a space apart. (A # alone may begin a key.)
func (c *curve) allow(text string) error {
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line == "#" || strings.HasPrefix(line, "# ") || strings.HasPrefix(line, "#\t") {
			continue
		}
		key, ok := decodeKey(line)
		if !ok {
			return fmt.Errorf("line %d: no public key of %d characters in Z85", number, curveTextLen)
		}
		c.allowed[key] = true
	}
	if len(c.allowed) == 0 {
		return errors.New("no key: nobody could subscribe")
	}
	return nil
}

// z85 is the alphabet of Z85 (ZeroMQ RFC 32), in the order of its values.
const z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

func validKey(text string) bool {
	_, ok := decodeKey(text)
	return ok
}

// decodeKey reads a key: five characters for each four bytes.
func decodeKey(text string) (key curveKey, ok bool) {
	if len(text) != curveTextLen {
		return key, false
	}
	for i := 0; i < curveTextLen; i += 5 {
		value := uint64(0)
		for _, c := range []byte(text[i : i+5]) {
			digit := strings.IndexByte(z85, c)
			if digit < 0 {
				return curveKey{}, false
			}
			value = value*85 + uint64(digit)
		}
		if value > 1<<32-1 {
			return curveKey{}, false
		}
		at := i / 5 * 4
		key[at], key[at+1], key[at+2], key[at+3] = byte(value>>24), byte(value>>16), byte(value>>8), byte(value)
	}
	return key, true
}

// admits says whether a peer with this public key may connect.
func (c *curve) admits(key []byte) bool {
	return len(key) == curveKeyLen && c.allowed[curveKey(key)]
}
