// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kvcast/kvcast/publisher/internal/curvekey"
)

const (
	keySecret = "curve_secret_key_file"
	keyAllow  = "curve_allow_file"
)

// curve is what a publisher needs to know whom it talks to.
type curve struct {
	// secret and public are the publisher's keys as text.
	secret, public string
	allowed        map[curvekey.Key]bool
}

// loadCurve reads the key files, if there are any. No error tells a key.
func loadCurve(o *Options) (*curve, *Error) {
	switch {
	case o.CurveSecretKeyFile == "" && o.CurveAllowFile == "":
		return nil, nil
	case curvekey.Misplaced(o.CurveSecretKeyFile):
		return nil, optionError(keySecret, "", curvekey.ErrMisplaced.Error())
	case curvekey.Misplaced(o.CurveAllowFile):
		return nil, optionError(keyAllow, "", curvekey.ErrMisplaced.Error())
	case o.CurveSecretKeyFile == "":
		return nil, optionError(keyAllow, o.CurveAllowFile, "there is no "+keySecret)
	case o.CurveAllowFile == "":
		return nil, optionError(keySecret, o.CurveSecretKeyFile, "there is no "+keyAllow)
	case !hasCurve():
		return nil, optionError(keySecret, o.CurveSecretKeyFile, "this libzmq was built without CURVE")
	}
	c := &curve{allowed: make(map[curvekey.Key]bool)}
	var err error
	if c.secret, err = curvekey.ReadSecret(o.CurveSecretKeyFile); err == nil {
		c.public, err = curvePublic(c.secret)
	}
	if err != nil {
		return nil, optionError(keySecret, o.CurveSecretKeyFile, err.Error())
	}
	text, err := curvekey.ReadShared(o.CurveAllowFile)
	if err == nil {
		err = c.allow(text)
	}
	if err != nil {
		return nil, optionError(keyAllow, o.CurveAllowFile, err.Error())
	}
	return c, nil
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
		key, ok := curvekey.Decode(line)
		if !ok {
			return fmt.Errorf("line %d: no public key of %d characters in Z85", number, curvekey.TextLen)
		}
		c.allowed[key] = true
	}
	if len(c.allowed) == 0 {
		return errors.New("no key: nobody could subscribe")
	}
	return nil
}

// admits says whether a peer with this public key may connect.
func (c *curve) admits(key []byte) bool {
	return len(key) == curvekey.Len && c.allowed[curvekey.Key(key)]
}
