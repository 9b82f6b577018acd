// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kvcast/kvcast/publisher"
)

// maxConfigBytes is far more than all keys with all their values.
const maxConfigBytes = 1 << 20

// flagName is the flag of a key of the configuration.
func flagName(key string) string {
	if key == "max_entries" {
		return "sink-blocks"
	}
	return strings.ReplaceAll(key, "_", "-")
}

// keyFlag is the flag of a key. It has a value only once it is set.
type keyFlag struct {
	key     publisher.Key
	text    string
	changed bool
	// more is a value that only the command line knows, if any.
	more string
}

// String is the value, or the default before one is set.
func (k *keyFlag) String() string { return k.text }

// Type is what flagError and the help know the values by.
func (k *keyFlag) Type() string { return string(k.key.Type) }

// Set takes a value if it is one of the key's type.
func (k *keyFlag) Set(text string) error {
	switch {
	case k.more != "" && text == k.more:
	case k.more != "" && text != string(publisher.KindZMQ) && text != string(publisher.KindNull):
		return &publisher.Error{Key: k.key.Name, Value: text, Err: publisher.ErrOption,
			Detail: fmt.Sprintf("want %s, %s or %s", publisher.KindZMQ, publisher.KindNull, k.more)}
	default:
		var scratch publisher.Options
		if err := k.key.Set(&scratch, text); err != nil {
			return err
		}
	}
	k.text, k.changed = text, true
	return nil
}

// publisherKeys are the keys of the configuration on the command line.
type publisherKeys struct {
	config, profile string
	flags           []*keyFlag
}

// replayDefaults are those of the wire contract, but for the last clear: a
// subscriber is to be compared with the tree at the end.
func replayDefaults() publisher.Options {
	o := publisher.DefaultOptions()
	o.ClearOnClose = false
	return o
}

// add makes a flag of each key.
func (p *publisherKeys) add(f *pflag.FlagSet) {
	f.StringVar(&p.config, "config", "", "JSON file with keys of the configuration; flags win over it")
	f.StringVar(&p.profile, "profile", "", "what one reader wants: "+strings.Join(publisher.ProfileNames(), ", ")+
		"; keys that are set win over it")
	defaults := replayDefaults()
	for _, key := range publisher.Keys() {
		k := &keyFlag{key: key, text: key.Get(defaults)}
		usage := key.Usage
		if key.Name == "publisher" {
			k.more = publisherOff
			usage = "zmq, null (no socket) or off (no events)"
		}
		flag := f.VarPF(k, flagName(key.Name), "", usage)
		if key.Type == publisher.BoolKey {
			flag.NoOptDefVal = "true"
		}
		p.flags = append(p.flags, k)
	}
}

// resolve returns the options: the defaults, then the profile, then the file,
// then the flags. off says that there are to be no events at all. What is wrong
// is said in the words of where it comes from.
func (p *publisherKeys) resolve(ctx context.Context) (o publisher.Options, off bool, err error) {
	file := new(publisher.Config)
	if p.config != "" {
		data, err := readConfig(ctx, p.config)
		if err == errInterrupted {
			return o, false, err
		}
		if err == nil {
			file, err = publisher.ParseConfig(data)
		}
		if err != nil {
			return o, false, p.inFile(err)
		}
	}
	all := *file
	if p.profile != "" {
		if err := all.Set("profile", p.profile); err != nil {
			return o, false, byFlag(err)
		}
	}
	for _, k := range p.flags {
		if !k.changed {
			continue
		}
		if k.more != "" && k.text == k.more {
			off = true
			continue
		}
		// "" is no value for keys that are unset by default.
		if err := all.Set(k.key.Name, k.text); err != nil {
			return o, false, byFlag(err)
		}
	}
	if o, err = all.Apply(replayDefaults()); err != nil {
		return o, false, byFlag(err)
	}
	name := func(err error) error {
		var e *publisher.Error
		if !errors.As(err, &e) {
			return err
		}
		// A value that the error keeps to itself is a secret.
		if text, ok := p.changed(e.Key); ok && e.Value != "" {
			as := *e // the value as it was written
			as.Value = text
			return byFlag(&as)
		}
		if file.Has(e.Key) {
			return p.inFile(err)
		}
		return byFlag(err)
	}
	for _, e := range []struct{ key, value string }{{"endpoint", o.Endpoint}, {"replay_endpoint", o.ReplayEndpoint}} {
		if strings.HasPrefix(e.value, "inproc://") {
			return o, false, name(&publisher.Error{Key: e.key, Value: e.value, Err: publisher.ErrOption,
				Detail: "nobody could reach it from outside; want tcp:// or ipc://"})
		}
	}
	// What is not used is checked all the same.
	used := o
	used.Disabled = false
	if used.Kind == publisher.KindNull {
		used.Kind = publisher.KindZMQ
	}
	if _, err := publisher.New(used); err != nil {
		var e *publisher.Error
		if errors.As(err, &e) && e.Value == "" && (e.Key == "pod" || e.Key == "model") {
			return o, false, fmt.Errorf("--topic %q: --%s is missing", o.Topic, e.Key)
		}
		return o, false, name(err)
	}
	return o, off || o.Disabled, nil
}

// changed returns what the flag of a key is set to, if it is.
func (p *publisherKeys) changed(key string) (text string, ok bool) {
	for _, k := range p.flags {
		if k.key.Name == key && k.changed {
			return k.text, true
		}
	}
	return "", false
}

// inFile names the file and what of it is wrong.
func (p *publisherKeys) inFile(err error) error {
	var e *publisher.Error
	if errors.As(err, &e) {
		if err = errors.New(e.Detail); e.Key != "" {
			err = fmt.Errorf("%s %s: %s", e.Key, quoted(e), e.Detail)
		}
	}
	return fmt.Errorf("--config %s: %w", p.config, bareError(err))
}

// readConfig reads a file, or a pipe to its end, which an interruption ends.
func readConfig(ctx context.Context, path string) ([]byte, error) {
	file, err := openInput(ctx, path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	defer context.AfterFunc(ctx, func() { file.Close() })()
	data, err := io.ReadAll(io.LimitReader(file, maxConfigBytes+1))
	if err != nil && ctx.Err() != nil {
		return nil, errInterrupted
	}
	if err == nil && len(data) > maxConfigBytes {
		err = fmt.Errorf("more than %d bytes", maxConfigBytes)
	}
	return data, err
}

// quoted is the value of an error, in quotes where it is text.
func quoted(e *publisher.Error) string {
	for _, k := range publisher.Keys() {
		if k.Name == e.Key && k.Type != publisher.StringKey && e.Value != "" {
			return e.Value
		}
	}
	return strconv.Quote(e.Value)
}

// byFlag names the flag where an error of the publisher names a key.
func byFlag(err error) error {
	var e *publisher.Error
	if !errors.As(err, &e) || e.Key == "" {
		return err
	}
	reason := e.Detail
	if !errors.Is(e.Err, publisher.ErrOption) {
		reason = e.Err.Error()
		if e.Detail != "" {
			reason += ": " + e.Detail
		}
		if e.Cause != nil {
			reason += ": " + e.Cause.Error()
		}
	}
	return fmt.Errorf("--%s %s: %s", flagName(e.Key), quoted(e), reason)
}
