// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
)

// Numbers that cannot be are refused by name, before anything is opened: what
// ZeroMQ says of them names an option of its own, and some it takes.
func TestOptionsAreChecked(t *testing.T) {
	good := ClientOptions{Endpoint: "ipc:///nobody"}
	goodFollower := FollowerOptions{Client: good, Replay: "ipc:///nobody-either"}
	// A new field fails the test until a value of it is tried.
	tried := map[string]bool{}
	note := func(was, is any) {
		before, after := reflect.ValueOf(was), reflect.ValueOf(is)
		for i := range before.NumField() {
			if !before.Field(i).Equal(after.Field(i)) {
				tried[before.Type().Field(i).Name] = true
			}
		}
	}
	client := func(change func(*ClientOptions)) func() error {
		return func() error {
			o := good
			change(&o)
			note(good, o)
			c, err := Connect(o)
			if err == nil {
				c.Close()
			}
			return err
		}
	}
	follower := func(change func(*FollowerOptions)) func() error {
		return func() error {
			o := goodFollower
			change(&o)
			note(goodFollower, o)
			note(good, o.Client)
			f, err := Follow(o)
			if err == nil {
				f.Close()
			}
			return err
		}
	}
	for name, c := range map[string]struct {
		open func() error
		want string // "" = taken
	}{
		"client":              {client(func(*ClientOptions) {}), ""},
		"HWM below 0":         {client(func(o *ClientOptions) { o.HWM = -1 }), "HWM -1: want 0 to 2147483647"},
		"HWM at most":         {client(func(o *ClientOptions) { o.HWM = math.MaxInt32 }), ""},
		"HWM beyond":          {client(func(o *ClientOptions) { o.HWM = math.MaxInt32 + 1 }), "HWM 2147483648: want 0 to 2147483647"},
		"HWM modulo 2^32":     {client(func(o *ClientOptions) { o.HWM = 1<<32 + 5 }), "HWM 4294967301: want"},
		"HWMBytes below 0":    {client(func(o *ClientOptions) { o.HWMBytes = -1 }), "HWMBytes -1: want at least 0"},
		"MaxMessage below 0":  {client(func(o *ClientOptions) { o.MaxMessage = -1 }), "MaxMessage -1: want 0 to 1073741824"},
		"MaxMessage huge":     {client(func(o *ClientOptions) { o.MaxMessage = math.MaxInt }), "MaxMessage 9223372036854775807: want"},
		"MaxMessage beyond":   {follower(func(o *FollowerOptions) { o.Client.MaxMessage = 1<<30 + 1 }), "MaxMessage 1073741825: want 0 to 1073741824"},
		"MaxMessage at most":  {client(func(o *ClientOptions) { o.MaxMessage = 1 << 30 }), ""},
		"HWMBytes huge":       {client(func(o *ClientOptions) { o.HWMBytes = math.MaxInt }), ""},
		"follower":            {follower(func(*FollowerOptions) {}), ""},
		"follower's client":   {follower(func(o *FollowerOptions) { o.Client.HWM = -2 }), "HWM -2"},
		"timeout below 0":     {follower(func(o *FollowerOptions) { o.ReplayTimeout = -1 }), "ReplayTimeout -1ns: want 0 to 24h0m0s"},
		"timeout too long":    {follower(func(o *FollowerOptions) { o.ReplayTimeout = math.MaxInt64 }), "ReplayTimeout 2562047h"},
		"timeout at most":     {follower(func(o *FollowerOptions) { o.ReplayTimeout = 24 * time.Hour }), ""},
		"attempts below 0":    {follower(func(o *FollowerOptions) { o.ReplayAttempts = -3 }), "ReplayAttempts -3: want at least 0"},
		"held below 0":        {follower(func(o *FollowerOptions) { o.MaxHeld = -4 }), "MaxHeld -4: want at least 0"},
		"held bytes below 0":  {follower(func(o *FollowerOptions) { o.MaxHeldBytes = -5 }), "MaxHeldBytes -5: want at least 0"},
		"server key alone":    {client(func(o *ClientOptions) { o.CurveServerKeyFile = "/x" }), `CurveServerKeyFile "/x": there is no CurveSecretKeyFile`},
		"secret key alone":    {follower(func(o *FollowerOptions) { o.Client.CurveSecretKeyFile = "/x" }), `CurveSecretKeyFile "/x": there is no CurveServerKeyFile`},
		"topic too long":      {client(func(o *ClientOptions) { o.Topic = strings.Repeat("t", 256) }), `: 256 bytes, want at most 255`},
		"topic not text":      {follower(func(o *FollowerOptions) { o.Client.Topic = "\xff" }), `Topic "\xff": not UTF-8`},
		"before the endpoint": {client(func(o *ClientOptions) { o.Endpoint, o.HWM = "tcp://", -1 }), "HWM -1"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.open()
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *Error
			if !errors.Is(err, ErrOption) || !errors.As(err, &e) || !strings.Contains(e.Detail, c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	for _, o := range []any{good, goodFollower} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(o)) {
			if !tried[f.Name] && f.Name != "Replay" { // endpoints have a test of their own
				t.Errorf("%T.%s: no value is tried", o, f.Name)
			}
		}
	}
}

// What the library says of itself is what it can do.
func TestZMQHasCurve(t *testing.T) {
	_, _, err := zmq.NewCurveKeypair()
	if got := ZMQHasCurve(); got != (err == nil) {
		t.Errorf("got %v, but making keys says %v", got, err)
	}
}
