// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Command kvcast replays request traces through the allocator and publishes
// the events (replay), reads and verifies the stream of any engine (tap), and
// says what a machine has and what would be chosen there (doctor).
//
// Exit codes: 0 good, 1 a verification failed, 2 input or environment. An
// error is one line on standard error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvcast/kvcast/publisher"
	"github.com/kvcast/kvcast/publisher/subscribe"
)

const (
	exitGood     = 0
	exitBreach   = 1
	exitUnusable = 2
)

// breachError says that the input could be read and is wrong.
type breachError struct{ error }

func (e breachError) Unwrap() error { return e.error }

// streams are the standard streams of a run, so that tests can replace them.
type streams struct {
	out, err io.Writer
}

func main() {
	// A reader that goes away is an error of the write, so that what is
	// half-written can be taken back.
	signal.Ignore(syscall.SIGPIPE)
	ctx, end := context.WithCancel(context.Background())
	onHangUp(end)
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	// The first signal ends the run in an orderly way; a second one kills.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], streams{os.Stdout, os.Stderr})
	stop()
	end()
	os.Exit(code)
}

// onHangUp calls end when the terminal goes, unless the run was begun so as to outlive it
// (nohup). A shell passes the signal on before the system sends its own: only the first
// counts, so that the second cannot cut the end short.
func onHangUp(end func()) {
	if signal.Ignored(syscall.SIGHUP) {
		return
	}
	hangUp := make(chan os.Signal, 1)
	signal.Notify(hangUp, syscall.SIGHUP)
	go func() {
		<-hangUp
		end()
	}()
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, std streams) int {
	root := newRoot(std)
	// cobra prints the help and does not look whether it could.
	help := &checkedWriter{w: std.out}
	root.SetOut(help)
	root.SetArgs(args)
	// A flag for help makes cobra forget what else there is.
	var surplus error
	show := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		if rest := c.Flags().Args(); len(rest) > 0 {
			surplus = c.ValidateArgs(rest)
		}
		if surplus == nil {
			show(c, args)
		}
	})
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = surplus
	}
	if err == nil {
		err = outputError(help.err)
	}
	if err == nil {
		return exitGood
	}
	fmt.Fprintf(std.err, "kvcast: %s\n", shortened(oneLine(endpointError(err).Error())))
	if errors.As(err, new(breachError)) {
		return exitBreach
	}
	return exitUnusable
}

// checkedWriter keeps the first error.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(b []byte) (int, error) {
	if c.err == nil {
		_, c.err = c.w.Write(b)
	}
	return len(b), c.err
}

// oneLine replaces what would break a line or confuse a terminal; errors may
// quote names that came from outside.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.TrimSpace(s))
}

// maxLine is how many bytes of an error are shown in full: more than the longest
// name of a file has.
const maxLine = 5000

// shortened keeps of a very long line the beginning, which says where, and the
// end, which says why.
func shortened(line string) string {
	if len(line) <= maxLine {
		return line
	}
	const head, tail = 200, 400
	return strings.ToValidUTF8(line[:head], "") + " [...] " + strings.ToValidUTF8(line[len(line)-tail:], "")
}

func newRoot(std streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "kvcast",
		Short: "KV-cache events: replay traces through the allocator, read and verify streams",
		Long: `Replay request traces through the allocator and publish the events (replay),
read and verify the stream of any engine (tap), say what a machine has (doctor).

Exit codes: 0 good, 1 a verification failed, 2 wrong input, or something that
is missing or refused here. An error is one line on standard error.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q", args[0])
			}
			return nil
		},
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return checkEmptyFlags(c.Flags()) },
		SilenceErrors:     true,
		SilenceUsage:      true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.DisableSuggestions = true
	root.SetErr(std.err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.AddCommand(newReplay(std), newTap(std), newDoctor(std), newVersion(std))
	root.SetHelpCommand(newHelp(root))
	return root
}

// checkEmptyFlags refuses an empty name, as an unset variable gives it, where
// none at all has a meaning: what was asked for would silently not be done.
func checkEmptyFlags(flags *pflag.FlagSet) error {
	for _, c := range []struct{ name, want string }{
		{"trace", "a file"}, {"config", "a file"}, {"metrics", "HOST:PORT"}, {"profile", "a profile"}, {"resident-out", "a file"}, {"mirror-out", "a file"}, {"replay-endpoint", "an endpoint"},
	} {
		if f := flags.Lookup(c.name); f != nil && f.Changed && f.Value.String() == "" {
			return fmt.Errorf(`--%s "": want %s`, c.name, c.want)
		}
	}
	return nil
}

// flagError says in the user's words why a value of a flag is wrong.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	f := invalid.GetFlag()
	var key *publisher.Error
	if errors.As(err, &key) {
		return fmt.Errorf("--%s %q: %s", f.Name, invalid.GetValue(), key.Detail)
	}
	want := map[string]string{
		"int":      "a whole number",
		"int64":    "a whole number",
		"float64":  "a number",
		"duration": "a duration, such as 500ms or 1m30s",
		"bool":     "true or false",
	}[f.Value.Type()]
	switch {
	case want == "":
		return err
	case errors.Is(err, strconv.ErrRange):
		want += " that is not so large"
	}
	return fmt.Errorf("--%s %q: want %s", f.Name, invalid.GetValue(), want)
}

// endpointError names what of tap's command line is wrong where the subscriber
// says what it was about to do, or which option.
func endpointError(err error) error {
	var e *subscribe.Error
	if !errors.As(err, &e) {
		return err
	}
	if e.Err == subscribe.ErrOption {
		for option, flag := range map[string]string{"CurveServerKeyFile ": "--curve-server-key-file ",
			"CurveSecretKeyFile ": "--curve-secret-key-file "} {
			if detail, ok := strings.CutPrefix(e.Detail, option); ok {
				return errors.New(flag + detail)
			}
		}
	}
	if e.Err != subscribe.ErrEndpoint {
		return err
	}
	if argument := map[string]string{"connect": "ENDPOINT", "replay": "--replay"}[e.Op]; argument != "" {
		return errors.New(argument + " " + e.Detail)
	}
	return err
}

// newHelp is cobra's help command, except that a wrong name is an error.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help for a command",
		Args: func(_ *cobra.Command, args []string) error {
			if _, rest, err := root.Find(args); err != nil || len(rest) > 0 {
				return fmt.Errorf("unknown command %q", strings.Join(args, " "))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, _, err := root.Find(args)
			if err != nil {
				return err
			}
			return cmd.Help()
		},
	}
}

// exactArgs is cobra.ExactArgs with one clear line.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return fmt.Errorf("%s is missing", names[len(args)])
		case len(args) > len(names):
			return fmt.Errorf("unexpected argument %q", args[len(names)])
		}
		return nil
	}
}
