// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// output is a file that appears as a whole or not at all: it is written under
// another name in the same folder and renamed. What is there already and is
// no regular file, such as a pipe, is written directly.
type output struct {
	flag, path string
	file       *os.File
	// temporary is the name to rename from, target the name to rename to; both
	// empty for what is written directly.
	temporary, target string
}

// createOutput finds out before the work whether the file can be written.
func createOutput(flag, path string) (*output, error) {
	o := &output{flag: flag, path: path}
	if err := o.create(); err != nil {
		return nil, o.fail(err)
	}
	return o, nil
}

func (o *output) create() (err error) {
	// A link stays a link: what it points to is replaced.
	target, err := filepath.EvalSymlinks(o.path)
	if errors.Is(err, fs.ErrNotExist) {
		target, err = o.path, nil
	}
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o666)
	info, err := os.Stat(target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		info = nil
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("is a directory")
	case !info.Mode().IsRegular():
		o.file, err = os.OpenFile(target, os.O_WRONLY, 0)
		return err
	default:
		// A rename would replace a file that may not be written.
		if err := unix.Access(target, unix.W_OK); err != nil {
			return err
		}
		mode = info.Mode().Perm()
	}
	o.target = target
	for {
		name := filepath.Join(filepath.Dir(target), "."+filepath.Base(target)+"."+rand.Text()[:8]+".tmp")
		o.file, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		o.temporary = name
		if info != nil {
			// The mode of a new file has gone through the umask.
			if err := o.file.Chmod(mode); err != nil {
				o.discard()
				return err
			}
		}
		return nil
	}
}

// commit fills the file and gives it its name.
func (o *output) commit(write func(io.Writer) error) error {
	defer o.discard()
	buffered := bufio.NewWriter(o.file)
	err := write(buffered)
	if err == nil {
		err = buffered.Flush()
	}
	if err == nil && o.temporary != "" {
		// Some file systems find out only now that they are full.
		err = o.file.Sync()
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
