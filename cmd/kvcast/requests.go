// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvcast/kvcast/cmd/kvcast/internal/trace"
)

// requestSource reads a trace up to a limit.
type requestSource struct {
	*trace.Reader
	file  *os.File
	limit int
	read  int
}

// openTrace opens a trace. A regular file is read through once, so that a
// broken line is found before anything happens, and so that the number of
// requests is known; it is -1 for a pipe, whose writer is waited for.
func openTrace(ctx context.Context, path string, limit int) (*requestSource, int, error) {
	fail := func(err error) (*requestSource, int, error) {
		return nil, 0, fmt.Errorf("--trace %s: %w", path, bareError(err))
	}
	file, err := openInput(ctx, path)
	if err == errInterrupted {
		return nil, 0, err
	}
	if err != nil {
		return fail(err)
	}
	total := -1
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = errors.New("is a directory")
	}
	if err == nil && info.Mode().IsRegular() {
		s := &requestSource{Reader: trace.NewReader(path, file), limit: limit}
		for err == nil {
			if _, err = s.next(); ctx.Err() != nil {
				err = errInterrupted
			}
		}
		total = s.read
		if err != io.EOF {
			file.Close()
			return nil, 0, err // names file and line
		}
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		file.Close()
		return fail(err)
	}
	return &requestSource{Reader: trace.NewReader(path, file), file: file, limit: limit}, total, nil
}

// openInput opens a file for reading; a pipe has a writer then.
func openInput(ctx context.Context, path string) (*os.File, error) {
	// Without NONBLOCK the open itself would wait, and nothing could end that.
	// For what is no pipe it changes nothing.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		err = waitPipeWriter(ctx, file)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// waitPipeWriter returns when there is something to read or a writer has come
// and gone.
func waitPipeWriter(ctx context.Context, pipe *os.File) error {
	conn, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	for {
		ready := 0
		if controlErr := conn.Control(func(fd uintptr) {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			ready, err = unix.Poll(fds, int(fifoPoll.Milliseconds()))
		}); controlErr != nil {
			return controlErr
		}
		switch {
		case ctx.Err() != nil:
			return errInterrupted
		case err != nil && err != unix.EINTR:
			return err
		case ready > 0:
			return nil
		}
	}
}

func (s *requestSource) next() (*trace.Request, error) {
	if s.limit > 0 && s.read == s.limit {
		return nil, io.EOF
	}
	req, err := s.Next()
	if err == nil {
		s.read++
	}
	return req, err
}

func (s *requestSource) close() { s.file.Close() }
