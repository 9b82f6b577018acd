// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fifoPoll is how often a pipe that nobody has at the other end is looked at
// again, so that an interruption ends the waiting.
const fifoPoll = 20 * time.Millisecond

// output is a file that appears as a whole or not at all: it is written without
// a name, or under another one, and then takes the place of what is there. What
// is there and is no regular file, such as a pipe, is written directly.
type output struct {
	flag, path string
	// file is nil when it will be made by commit.
	file *os.File
	// target is the name to give to the file, empty for what is written
	// directly; mode is that of the file.
	target string
	mode   fs.FileMode
	// temporary is a name that the file has and target has not, if any.
	temporary string
}

// input is a file that a run reads, if path is not empty, and what it is.
type input struct{ path, is string }

// keepInputs refuses to write over a regular file that the run reads, under
// whatever name.
func keepInputs(flag, path string, inputs []input) error {
	if path == "" {
		return nil
	}
	out, err := os.Stat(path)
	if err != nil || !out.Mode().IsRegular() {
		return nil // nothing is there to be lost, or creating it says what is wrong
	}
	for _, in := range inputs {
		if in.path == "" {
			continue
		}
		if info, err := os.Stat(in.path); err == nil && os.SameFile(info, out) {
			return fmt.Errorf("--%s %s: %s", flag, path, in.is)
		}
	}
	return nil
}

// keepSockets refuses to put a file in the place of a socket of the run, which need
// not be there yet: the file appears at the end, and nobody could connect any more.
func keepSockets(flag, path string, sockets []input) error {
	if path == "" {
		return nil
	}
	out, descriptor, err := resolve(path)
	if err != nil || descriptor >= 0 {
		return nil // creating it says what is wrong
	}
	for _, in := range sockets {
		name, ok := strings.CutPrefix(in.path, "ipc://")
		if !ok || strings.HasPrefix(name, "@") || name == "*" {
			continue
		}
		if at, _, err := resolve(name); err == nil && absolute(at) == absolute(out) {
			return fmt.Errorf("--%s %s: %s", flag, path, in.is)
		}
	}
	return nil
}

// absolute is the path from the root; resolve has followed the links.
func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}

// createOutput finds out before the work whether the file can be written. It
// waits for the reader of a named pipe.
func createOutput(ctx context.Context, flag, path string) (*output, error) {
	o := &output{flag: flag, path: path}
	if err := o.create(ctx); err != nil {
		o.discard()
		return nil, o.fail(err)
	}
	return o, nil
}

func (o *output) create(ctx context.Context) (err error) {
	target, descriptor, err := resolve(o.path)
	if err != nil {
		return err
	}
	if descriptor >= 0 {
		// Opened anew, a file would begin at its start once more and what
		// others write through the descriptor would be lost.
		flags, err := unix.FcntlInt(uintptr(descriptor), unix.F_GETFL, 0)
		if err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY {
			err = errors.New("is open for reading only")
		}
		if err != nil {
			return err
		}
		own, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		o.file = os.NewFile(uintptr(own), o.path)
		return nil
	}
	info, err := os.Stat(target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		info = nil
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("is a directory")
	case info.Mode()&fs.ModeNamedPipe != 0:
		o.file, err = openPipeWriter(ctx, target)
		return err
	case !info.Mode().IsRegular():
		o.file, err = os.OpenFile(target, os.O_WRONLY, 0)
		return err
	default:
		// The file that takes its place may be written in any case.
		if err := unix.Access(target, unix.W_OK); err != nil {
			return err
		}
	}
	o.target, o.mode = target, 0o666
	folder := filepath.Dir(target)
	if _, err := os.Lstat("/proc/self/fd"); err == nil {
		o.file, err = os.OpenFile(folder, os.O_WRONLY|unix.O_TMPFILE, o.mode)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) &&
			!errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	if o.file == nil {
		// Not every file system has files without a name.
		if err := unix.Access(folder, unix.W_OK|unix.X_OK); err != nil {
			return err
		}
	}
	if info == nil {
		return nil
	}
	// The mode of a new file goes through the umask.
	if o.mode = info.Mode().Perm(); o.file != nil {
		return o.file.Chmod(o.mode)
	}
	return nil
}

// openPipeWriter waits until the pipe has a reader.
func openPipeWriter(ctx context.Context, path string) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if !errors.Is(err, unix.ENXIO) {
			return file, err
		}
		if wait(ctx, fifoPoll); ctx.Err() != nil {
			return nil, errors.New("interrupted while waiting for a reader")
		}
	}
}

// resolve follows links to what a file is to be written to, which need not be
// there. A descriptor of this process under one of its names (/dev/stdout,
// /dev/fd/N, /proc/self/fd/N) is returned as such; otherwise it is -1.
func resolve(path string) (target string, descriptor int, err error) {
	own := fmt.Sprintf("/proc/%d/", os.Getpid())
	for range 40 {
		folder, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return "", -1, err
		}
		name := filepath.Base(path)
		// /proc/PID/fd and /proc/PID/task/TID/fd
		if strings.HasPrefix(folder, own) && filepath.Base(folder) == "fd" {
			if n, err := strconv.ParseUint(name, 10, 31); err == nil {
				return "", int(n), nil
			}
		}
		target = filepath.Join(folder, name)
		if filepath.Clean(path) == "." || strings.HasSuffix(path, "/") {
			target = path // names a folder
		}
		link, err := os.Readlink(target)
		if err != nil {
			// No link, or nothing at all.
			return target, -1, nil
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(folder, link)
		}
		path = link
	}
	return "", -1, unix.ELOOP
}

// commit fills the file and gives it its name.
func (o *output) commit(write func(io.Writer) error) error {
	defer o.discard()
	if o.file == nil {
		var err error
		if o.file, err = o.createNamed(); err != nil {
			return o.fail(err)
		}
	}
	buffered := bufio.NewWriter(o.file)
	err := write(buffered)
	if err == nil {
		err = buffered.Flush()
	}
	if err == nil && o.target != "" {
		// Some file systems find out only now that they are full.
		err = o.file.Sync()
	}
	if err == nil && o.target != "" && o.temporary == "" {
		err = o.name()
	}
	if closeErr := o.file.Close(); err == nil {
		err = closeErr
	}
	o.file = nil
	if err == nil && o.temporary != "" {
		if err = os.Rename(o.temporary, o.target); err == nil {
			o.temporary = ""
		}
	}
	if err != nil {
		return o.fail(err)
	}
	return nil
}

// temporaryName is short, however long the target's name is.
func (o *output) temporaryName() string {
	return filepath.Join(filepath.Dir(o.target), ".kvcast-"+rand.Text()[:12])
}

// createNamed makes the file under a temporary name.
func (o *output) createNamed() (*os.File, error) {
	for {
		name := o.temporaryName()
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, o.mode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		o.temporary = name
		if o.mode != 0o666 {
			err = file.Chmod(o.mode)
		}
		if err != nil {
			file.Close()
			return nil, err
		}
		return file, nil
	}
}

// name gives a file without a name a temporary one: only a rename can replace
// what is there.
func (o *output) name() error {
	for {
		name := o.temporaryName()
		err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", o.file.Fd()),
			unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			o.temporary = name
		}
		return err
	}
}

// discard removes what has not been committed. It may be called at any time,
// also on nil.
func (o *output) discard() {
	if o == nil {
		return
	}
	if o.file != nil {
		o.file.Close()
		o.file = nil
	}
	if o.temporary != "" {
		os.Remove(o.temporary)
		o.temporary = ""
	}
}

func (o *output) fail(err error) error {
	return fmt.Errorf("--%s %s: %w", o.flag, o.path, bareError(err))
}

// bareError takes the operation and the name off a file error: the caller
// names the file as the user did.
func bareError(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	var linkError *os.LinkError
	if errors.As(err, &linkError) {
		return linkError.Err
	}
	return err
}

// writePatterns writes 64-bit patterns, one unsigned decimal per line.
func writePatterns(w io.Writer, patterns []uint64) error {
	var line []byte
	for _, p := range patterns {
		line = append(strconv.AppendUint(line[:0], p, 10), '\n')
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	return nil
}
