// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/kvcast/kvcast/publisher/internal/curvekey"
)

// Config holds the keys that somebody has set, from a configuration file, a
// command line or both. The zero value has none.
type Config struct {
	// profile is "" when none was set.
	profile string
	set     []keyValue
}

type keyValue struct {
	key  Key
	text string
}

// ParseConfig reads a configuration file: one JSON object whose keys are those of
// the wire contract, profile among them. Durations are strings such as "5ms";
// null unsets an optional key. What is not UTF-8, unknown keys, keys that occur twice, keys whose
// feature does not exist, and values of the wrong type are an *Error that wraps
// ErrOption and names the key, or the line where this is not JSON.
func ParseConfig(data []byte) (*Config, error) {
	// The decoder would put a replacement character in the place of what is none.
	if at := invalidUTF8(data); at >= 0 {
		return nil, &Error{Op: "config", Err: ErrOption,
			Detail: fmt.Sprintf("line %d: not UTF-8", 1+bytes.Count(data[:at], []byte("\n")))}
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	c := new(Config)
	if err := c.parse(d); err != nil {
		var e *Error
		if errors.As(err, &e) {
			return nil, err
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the file ends in the middle of the object")
		}
		line := 1 + bytes.Count(data[:min(d.InputOffset(), int64(len(data)))], []byte("\n"))
		return nil, &Error{Op: "config", Err: ErrOption, Detail: fmt.Sprintf("line %d: %v", line, err)}
	}
	return c, nil
}

// invalidUTF8 returns where text stops being UTF-8, or -1.
func invalidUTF8(text []byte) int {
	for at := 0; at < len(text); {
		r, n := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && n == 1 {
			return at
		}
		at += n
	}
	return -1
}

var errNoObject = errors.New("want one JSON object")

func (c *Config) parse(d *json.Decoder) error {
	if begin, err := d.Token(); err == io.EOF {
		return errNoObject
	} else if err != nil {
		return err
	} else if begin != json.Delim('{') {
		return errNoObject
	}
	seen := make(map[string]bool)
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		name := token.(string) // else the decoder has refused it
		value, err := d.Token()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		if seen[name] {
			return configError(name, shownText(value), "twice")
		}
		seen[name] = true
		if err := c.take(name, value); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err == io.EOF {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the object")
	}
	return nil
}

// take notes a value of a JSON object.
func (c *Config) take(name string, value json.Token) error {
	kind := StringKey
	optional := name == keyProfile
	if k, ok := lookupKey(name); ok {
		kind, optional = k.Type, k.Optional
	} else if err := c.known(name, fmt.Sprint(value)); err != nil {
		return err
	}
	switch v := value.(type) {
	case nil:
		if optional {
			return nil
		}
		return configError(name, "null", "cannot be unset")
	case string:
		if kind == StringKey || kind == DurationKey {
			return c.Set(name, v)
		}
		return configError(name, v, "want "+jsonWord(kind)+", not a string")
	case bool:
		if kind == BoolKey {
			return c.Set(name, fmt.Sprint(v))
		}
		return configError(name, fmt.Sprint(v), "want "+jsonWord(kind))
	case json.Number:
		if kind == IntKey {
			return c.Set(name, v.String())
		}
		return configError(name, v.String(), "want "+jsonWord(kind))
	}
	return configError(name, fmt.Sprint(value), "want "+jsonWord(kind))
}

// shownText is a value as an error may tell it: what looks like a key in the place of a
// file's name stays untold.
func shownText(value json.Token) string {
	switch text, ok := value.(string); {
	case value == nil:
		return "null"
	case ok && curvekey.Misplaced(text):
		return ""
	}
	return fmt.Sprint(value)
}

// jsonWord says how a value of a type is written in JSON.
func jsonWord(t KeyType) string {
	switch t {
	case BoolKey:
		return "true or false"
	case IntKey:
		return "a whole number"
	case DurationKey:
		return `a duration in quotes, such as "500ms"`
	}
	return "a string"
}

const keyProfile = "profile"

// known returns why a key that is not among Keys cannot be set.
func (c *Config) known(name, text string) error {
	if name == keyProfile {
		return nil
	}
	if why, ok := unavailable[name]; ok {
		return configError(name, text, why)
	}
	return configError(name, text, "unknown key")
}

// Set notes a value; one that is set later wins. Its errors are those of
// ParseConfig.
func (c *Config) Set(name, text string) error {
	var scratch Options
	if name == keyProfile {
		if err := scratch.ApplyProfile(text); err != nil {
			return err
		}
		c.profile = text
		return nil
	}
	k, ok := lookupKey(name)
	if !ok {
		return c.known(name, text)
	}
	if err := k.Set(&scratch, text); err != nil {
		return err
	}
	if k.Optional && text == "" {
		return configError(name, text, "empty")
	}
	// A copy of a Config is one of its own.
	c.set = append(slices.Clip(c.set), keyValue{k, text})
	return nil
}

// Has says whether a key was set.
func (c *Config) Has(name string) bool {
	return name == keyProfile && c.profile != "" ||
		slices.ContainsFunc(c.set, func(v keyValue) bool { return v.key.Name == name })
}

// Apply returns base with the profile, if one was set, and then all keys that
// were set. New checks the result.
func (c *Config) Apply(base Options) (Options, error) {
	if c.profile != "" {
		if err := base.ApplyProfile(c.profile); err != nil {
			return base, err
		}
	}
	for _, v := range c.set {
		if err := v.key.Set(&base, v.text); err != nil {
			return base, err
		}
	}
	return base, nil
}

// Options returns what a configuration file says by itself: Apply to the
// defaults of the wire contract, in which enable_kv_cache_events is false.
func (c *Config) Options() (Options, error) {
	base := DefaultOptions()
	base.Disabled, base.Kind = true, ""
	return c.Apply(base)
}

func configError(key, value, detail string) *Error {
	return &Error{Op: "config", Key: key, Value: value, Err: ErrOption, Detail: detail}
}
