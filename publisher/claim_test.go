// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"testing"

	"github.com/kvcast/kvcast/bindings"
)

// A publisher has the stream it is attached to for itself, from Attach until
// its end, whichever way that comes.
func TestAttachClaimsStream(t *testing.T) {
	stream, err := bindings.NewStream(bindings.StreamConfig{MaxEntries: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	claimed := func(when string, want bool) {
		t.Helper()
		d, err := stream.Claim()
		if err == nil {
			d.Release()
		}
		if want != errors.Is(err, bindings.ErrBusy) || !want && err != nil {
			t.Errorf("%s: claim = %v", when, err)
		}
		if _, err := stream.Drain(0, 0); want != errors.Is(err, bindings.ErrBusy) {
			t.Errorf("%s: drain = %v", when, err)
		}
	}
	null := func() Options { o := localOptions(t); o.Kind = KindNull; return o }
	attach := func(o Options) *Publisher {
		t.Helper()
		p := mustNew(t, o)
		if err := p.Attach(stream); err != nil {
			t.Fatal(err)
		}
		return p
	}

	p := attach(null())
	claimed("attached", true)
	second := mustNew(t, null())
	var e *Error
	if err := second.Attach(stream); !errors.Is(err, bindings.ErrBusy) || !errors.As(err, &e) || e.Op != "attach" {
		t.Errorf("a second publisher: %v", err)
	}
	if err := second.Attach(newFakeSource()); err != nil {
		t.Errorf("another source after it: %v", err)
	}
	p.Close()
	claimed("closed before Start", false)

	p = attach(null())
	mustStart(t, p)
	mustFlush(t, p)
	claimed("running", true)
	p.Close()
	claimed("closed", false)

	// A failed Start may be repeated with the same source.
	o := localOptions(t)
	o.WaitSubscribers = 1
	bound := make(chan struct{}, 1)
	o.OnBound = func(string) { bound <- struct{}{} }
	p = attach(o)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Start(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	claimed("after a failed Start", true)
	select {
	case <-bound: // the first Start came so far before it looked
	default:
	}
	result := make(chan error)
	go func() { result <- p.Start(context.Background()) }()
	<-bound
	p.Close()
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("Start = %v", err)
	}
	claimed("closed while starting", false)

	stream.Close()
	if err := mustNew(t, null()).Attach(stream); !errors.Is(err, bindings.ErrClosed) {
		t.Errorf("a closed stream: %v", err)
	}
}

// Wrong use gives an error, never a panic or a hang.
func TestMisuse(t *testing.T) {
	o := localOptions(t)
	o.Kind = KindNull
	p := mustNew(t, o)
	//lint:ignore SA1012 what happens with a nil context is the question
	if err := p.Start(nil); !errors.Is(err, ErrOption) {
		t.Errorf("Start(nil) = %v", err)
	}
	var none *bindings.Stream
	for name, source := range map[string]Source{"nil": nil, "nil stream": none, "nil fake": (*fakeSource)(nil)} {
		if err := p.Attach(source); !errors.Is(err, ErrOption) {
			t.Errorf("Attach(%s) = %v", name, err)
		}
	}
	mustStart(t, p)
	//lint:ignore SA1012 what happens with a nil context is the question
	if err := p.Flush(nil); !errors.Is(err, ErrOption) {
		t.Errorf("Flush(nil) = %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}

	var zero Publisher
	ctx := withPatience(t)
	for name, call := range map[string]func() error{
		"Attach":  func() error { return zero.Attach(newFakeSource()) },
		"Start":   func() error { return zero.Start(ctx) },
		"Publish": func() error { return zero.Publish(removal(1)) },
		"Flush":   func() error { return zero.Flush(ctx) },
	} {
		if err := call(); !errors.Is(err, ErrClosed) {
			t.Errorf("%s of the zero value = %v", name, err)
		}
	}
	if zero.Endpoint() != "" || zero.Topic() != "" || zero.Stats() != (Stats{}) || zero.Epoch() != 0 {
		t.Error("the zero value has values")
	}
	for range 2 {
		if err := zero.Close(); err != nil {
			t.Errorf("Close of the zero value = %v", err)
		}
	}
}
