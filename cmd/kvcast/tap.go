// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// tapPoll is how often a quiet stream lets go of the socket, to look for
// signals and for the end of --idle-exit, and to write out what is buffered.
const tapPoll = 50 * time.Millisecond

// tapOptions are the flags of tap.
type tapOptions struct {
	endpoint   string
	replay     string
	topic      string
	json       bool
	verify     bool
	mirrorOut  string
	maxBatches int
	idleExit   time.Duration
	// The files of CURVE keys.
	serverKey, secretKey string
}

func newTap(std streams) *cobra.Command {
	var o tapOptions
	cmd := &cobra.Command{
		Use:   "tap ENDPOINT",
		Short: "Decode the event stream of any engine and print it",
		Long: "Decodes the event stream of any engine (events as maps or arrays) and prints one\n" +
			"line per event. The publisher need not be there yet. Ends on an interrupt, after\n" +
			"--max-batches, or after --idle-exit without a message.\n\n" +
			"With --replay the stream is asked for from its beginning, and from the last batch\n" +
			"after each gap and each new connection; a batch that came so is marked. A publisher\n" +
			"that began anew is told by that batch being another one: everything is forgotten and\n" +
			"its history read (restart). What cannot be had again is a gap. While a replay server\n" +
			"does not answer, three times for 5 s, batches wait and --idle-exit does too.\n\n" +
			"A frame may have 32 MiB; a longer one ends the connection and the run. The decoded\n" +
			"parts of a batch may take 4 MiB and 12 bytes per byte of the payload, at most\n" +
			"256 MiB; a larger batch cannot be read. A mirror holds 8,388,608 blocks. What waits\n" +
			"to be decoded is bounded too, whatever an engine sends. A name of a host means IPv4\n" +
			"addresses.\n\n" +
			"With --curve-server-key-file and --curve-secret-key-file stream and replays are\n" +
			"encrypted (CURVE); the number of frames in a message is then not bounded for whoever\n" +
			"has the publisher's key. A publisher that does not have our key on its list ends the run;\n" +
			"one with another key than the file says looks as if it were not there.",
		Args: exactArgs("ENDPOINT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.endpoint = args[0]
			for _, f := range []struct{ name, value, want string }{
				{"replay", o.replay, "an endpoint"}, {"curve-server-key-file", o.serverKey, "a file"},
				{"curve-secret-key-file", o.secretKey, "a file"},
			} {
				if cmd.Flags().Changed(f.name) && f.value == "" {
					return fmt.Errorf(`--%s "": want %s`, f.name, f.want)
				}
			}
			return tap(cmd.Context(), o, std)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.replay, "replay", "", "endpoint to ask for what was missed")
	f.StringVar(&o.topic, "topic", "", "receive topics with this prefix")
	f.BoolVar(&o.json, "json", false, "print one JSON object per batch, and one at the end")
	f.BoolVar(&o.verify, "verify", false, "check the wire contract; the first breach ends the run with exit code 1")
	f.StringVar(&o.mirrorOut, "mirror-out", "", "write the hashes of all announced blocks to this file at the end")
	f.IntVar(&o.maxBatches, "max-batches", 0, "end after N batches (0 = never)")
	f.StringVar(&o.serverKey, "curve-server-key-file", "", "public key of the publisher (CURVE), to be changed by its owner only")
	f.StringVar(&o.secretKey, "curve-secret-key-file", "", "our secret key, with mode 0600")
	f.DurationVar(&o.idleExit, "idle-exit", 0, "end after this time without a message (0 = never)")
	return cmd
}

func (o *tapOptions) check() error {
	// What may be a key in the place of its file's name is not shown.
	shownFile := func(path string) string {
		if _, err := os.Stat(path); err != nil && len(strings.TrimSpace(path)) == 40 {
			return ""
		}
		return path
	}
	if o.maxBatches < 0 {
		return fmt.Errorf("--max-batches %d: want at least 0", o.maxBatches)
	}
	if why := wire.BadTopic(o.topic); why != "" {
		return fmt.Errorf("--topic %q: %s", o.topic, why)
	}
	if o.idleExit < 0 {
		return fmt.Errorf("--idle-exit %s: want 0 or more", o.idleExit)
	}
	if why := noSocket(o.endpoint); why != "" {
		return fmt.Errorf("ENDPOINT %q: %s", o.endpoint, why)
	}
	if why := noSocket(o.replay); why != "" {
		return fmt.Errorf("--replay %q: %s", o.replay, why)
	}
	switch {
	case o.secretKey != "" && o.serverKey == "":
		return fmt.Errorf("--curve-secret-key-file %q: there is no --curve-server-key-file", shownFile(o.secretKey))
	case o.serverKey != "" && o.secretKey == "":
		return fmt.Errorf("--curve-server-key-file %q: there is no --curve-secret-key-file", shownFile(o.serverKey))
	}
	return nil
}

// noSocket returns why nobody will ever answer at the path of an ipc endpoint, or "".
// A path at which there is nothing yet is no reason: the publisher may come.
func noSocket(endpoint string) string {
	path, ok := strings.CutPrefix(endpoint, "ipc://")
	if !ok || strings.HasPrefix(path, "@") {
		return ""
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return syscall.ENOTDIR.Error()
	case err != nil:
		return ""
	case info.IsDir():
		return "is a directory"
	case info.Mode()&fs.ModeSocket == 0:
		return "is no socket"
	}
	return ""
}

func tap(ctx context.Context, o tapOptions, std streams) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	t := &tapper{o: o, out: bufio.NewWriterSize(std.out, 64<<10)}
	t.json.w = t.out
	switch {
	case o.verify:
		t.verifier = subscribe.NewVerifier(subscribe.VerifierOptions{})
		t.mirror = t.verifier.Mirror()
	case o.mirrorOut != "":
		t.mirror = subscribe.NewMirror(0)
	}
	if t.decoder, err = wire.NewDecoder(wire.Limits{MaxBytes: subscribe.DefaultMaxMessage}); err != nil {
		return err
	}
	var file *output
	if err := keepSockets("mirror-out", o.mirrorOut, []input{
		{o.endpoint, "is the socket of the publisher"}, {o.replay, "is the socket of --replay"}}); err != nil {
		return err
	}
	if err := keepInputs("mirror-out", o.mirrorOut, []input{
		{o.serverKey, "holds the key of the publisher"}, {o.secretKey, "holds the secret key"}}); err != nil {
		return err
	}
	if o.mirrorOut != "" {
		if file, err = createOutput(ctx, "mirror-out", o.mirrorOut); err != nil {
			return err
		}
		defer file.discard()
	}
	follower, err := subscribe.Follow(subscribe.FollowerOptions{
		Client: subscribe.ClientOptions{Endpoint: o.endpoint, Topic: o.topic,
			CurveServerKeyFile: o.serverKey, CurveSecretKeyFile: o.secretKey},
		Replay: o.replay,
	})
	if err != nil {
		return err
	}
	defer follower.Close()

	err = t.run(ctx, follower)
	// A breach is no reason to keep back what was seen before it.
	if err != nil && !errors.As(err, new(breachError)) {
		t.out.Flush()
		return err
	}
	received := t.totals.Batches > 0
	if err == nil && !received {
		nothing := fmt.Errorf("nothing was received from %s", o.endpoint)
		switch {
		case o.verify:
			err = breachError{nothing}
		case file != nil:
			t.out.Flush()
			return fmt.Errorf("--mirror-out %s: not written: %w", o.mirrorOut, nothing)
		}
	}
	// A mirror of nothing must not take the place of a file.
	if file != nil && received {
		patterns := t.mirror.Patterns()
		if fileErr := file.commit(func(w io.Writer) error { return writePatterns(w, patterns) }); fileErr != nil {
			return fileErr
		}
	}
	if outErr := t.end(err); outErr != nil {
		return outErr
	}
	return err
}

// tapper is one run of tap.
type tapper struct {
	o        tapOptions
	out      *bufio.Writer
	decoder  *wire.Decoder
	mirror   *subscribe.Mirror   // nil when nobody needs it
	verifier *subscribe.Verifier // nil without --verify
	line     []byte              // reused by printing
	json     jsonWriter

	totals tapTotals
	last   lastBatch
	// short: it was told that there is no descriptor for a connection.
	short bool
}

// tapTotals is what has been received; the JSON names are part of the command
// line's interface.
type tapTotals struct {
	Batches       uint64 `json:"batches"`
	Events        uint64 `json:"events"`
	StoredBlocks  uint64 `json:"stored_blocks"`
	RemovedBlocks uint64 `json:"removed_blocks"`
	Clears        uint64 `json:"clears"`
	Bytes         uint64 `json:"bytes"`
	// ReplayedBatches are those of Batches that came as the answer to a request,
	// FailedReplays the requests without a whole answer.
	ReplayedBatches uint64 `json:"replayed_batches"`
	FailedReplays   uint64 `json:"failed_replays"`
	// MissingBatches is the sum of all gaps, Malformed the messages that could
	// not be read, Restarts counts the times that everything was forgotten.
	MissingBatches uint64 `json:"missing_batches"`
	Malformed      uint64 `json:"malformed"`
	Restarts       uint64 `json:"restarts"`
}

func (t *tapper) run(ctx context.Context, follower *subscribe.Follower) error {
	last := time.Now()
	for ctx.Err() == nil {
		poll := tapPoll
		if t.o.idleExit > 0 {
			left := t.o.idleExit - time.Since(last)
			if left > 0 {
				poll = min(poll, left)
			} else if !follower.Lost() && !follower.Busy() {
				return nil
			}
		}
		item, err := follower.Next(poll)
		if noteErr := t.unanswered(follower.Stats()); noteErr != nil {
			return noteErr
		}
		switch {
		case errors.Is(err, subscribe.ErrTimeout):
			// Whoever reads along should not wait for a full buffer.
			if err := outputError(t.out.Flush()); err != nil {
				return err
			}
			continue
		case errors.Is(err, subscribe.ErrFrames):
			last = time.Now()
			if err := t.malformed(err); err != nil {
				return err
			}
			continue
		case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE):
			if err := t.noDescriptor(err); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		last = time.Now()
		t.short = false
		if err := t.take(item); err != nil {
			return err
		}
		if t.o.maxBatches > 0 && t.totals.Batches >= uint64(t.o.maxBatches) {
			return nil
		}
	}
	return nil
}

// unanswered tells when a request for a replay has failed: what comes next is
// late, or is missing something.
func (t *tapper) unanswered(s subscribe.FollowerStats) error {
	if s.Failed == t.totals.FailedReplays {
		return nil
	}
	t.totals.FailedReplays = s.Failed
	return t.printNote("replay", "failed: "+s.LastFailure)
}

// noDescriptor tells once that the connection cannot be made anew for now: it is tried
// again, which may fail so often until something comes.
func (t *tapper) noDescriptor(err error) error {
	if t.short {
		return nil
	}
	t.short = true
	return t.printNote("connect", "failed: "+err.Error())
}

// malformed deals with a message that cannot be read.
func (t *tapper) malformed(err error) error {
	t.totals.Malformed++
	if t.verifier != nil {
		return breachError{fmt.Errorf("unreadable message: %w", err)}
	}
	return t.printNote("malformed", err.Error())
}

func (t *tapper) take(item subscribe.Item) error {
	switch item.Kind {
	case subscribe.ItemGap:
		return t.gap(item)
	case subscribe.ItemReset:
		return t.reset(item)
	}
	m := item.Message
	batch, err := t.decoder.Decode(m.Payload)
	if err != nil {
		return t.malformed(fmt.Errorf("batch %d: %w", m.Seq, err))
	}
	t.last.note(m.Seq, batch, t.totals.Batches == 0)
	t.count(item, batch)
	if err := t.printBatch(item, batch); err != nil {
		return err
	}
	switch {
	case t.verifier != nil:
		var breach *subscribe.Breach
		check := t.verifier.Check
		if item.Snapshot {
			check = t.verifier.CheckSnapshot
		}
		if err := check(m.Seq, batch); errors.As(err, &breach) {
			return breachError{breach}
		} else if err != nil {
			return err
		}
	case t.mirror != nil:
		return t.mirror.Apply(batch.Events)
	}
	return nil
}

// gap counts what is lost. In the middle of what a verifier checks it is a
// breach, which the verifier names itself at the next batch.
func (t *tapper) gap(item subscribe.Item) error {
	// Whoever sends odd numbers can send them often.
	if t.totals.MissingBatches += item.Lost; t.totals.MissingBatches < item.Lost {
		t.totals.MissingBatches = math.MaxUint64
	}
	return t.printNote("gap", item.String())
}

// reset forgets what a publisher announced that is not there any more.
func (t *tapper) reset(item subscribe.Item) error {
	t.totals.Restarts++
	switch {
	case t.verifier == nil:
		if t.mirror != nil {
			t.mirror.Reset()
		}
	case item.Reason == subscribe.ResetLower || item.Reason == subscribe.ResetMark:
		// Nobody has shown another history, so the life must begin as one
		// should; the verifier sees to that itself.
	default:
		t.verifier.Reset()
	}
	return t.printNote("restart", item.String())
}

func (t *tapper) count(item subscribe.Item, b *wire.Batch) {
	t.totals.Batches++
	if item.Replayed {
		t.totals.ReplayedBatches++
	}
	t.totals.Bytes += uint64(len(item.Message.Payload))
	t.totals.Events += uint64(len(b.Events))
	for i := range b.Events {
		switch e := &b.Events[i]; e.Kind {
		case wire.KindStored:
			t.totals.StoredBlocks += uint64(len(e.Hashes))
		case wire.KindRemoved:
			t.totals.RemovedBlocks += uint64(len(e.Hashes))
		case wire.KindCleared:
			t.totals.Clears++
		}
	}
}
