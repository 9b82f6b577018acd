// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar is a progress bar on a terminal and nothing elsewhere. Its methods may
// be called from any goroutine.
type bar struct {
	// terminal says that somebody is looking.
	terminal bool

	mu    sync.Mutex
	out   io.Writer
	shown *progressbar.ProgressBar // nil when there is none
}

// newBar counts requests up to total; -1 is for a total that is not known.
func newBar(out io.Writer, total int) *bar {
	b := &bar{out: out}
	if f, ok := out.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return b
	}
	b.terminal = true
	b.shown = progressbar.NewOptions(total,
		progressbar.OptionSetWriter(out),
		progressbar.OptionSetDescription("replay"),
		progressbar.OptionSetItsString("requests"),
		progressbar.OptionShowIts(),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
	return b
}

func (b *bar) add() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown != nil {
		b.shown.Add(1)
	}
}

// note writes a line without tearing the bar.
func (b *bar) note(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown != nil {
		b.shown.Clear()
	}
	fmt.Fprintln(b.out, line)
}

// finish takes the bar away; later calls do nothing.
func (b *bar) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown != nil {
		b.shown.Finish()
		b.shown.Clear()
		b.shown = nil
	}
}
