// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package ipcpath tells whether two paths of ipc endpoints are one.
package ipcpath

import (
	"os"
	"path/filepath"
	"strings"
)

// Clean returns the path under which a socket is made that is bound to a name:
// absolute, and without links on the way to it. What does not exist, or cannot be
// looked at, stays as it is. A name that begins with @ is none of a file.
func Clean(name string) string {
	if abstract(name) {
		return name
	}
	path, err := filepath.Abs(name)
	if err != nil {
		path = filepath.Clean(name)
	}
	if folder, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(folder, filepath.Base(path))
	}
	return path
}

// Same tells whether two names lead to one socket, which need not be there.
func Same(a, b string) bool {
	if abstract(a) || abstract(b) {
		return a == b
	}
	if Clean(a) == Clean(b) {
		return true
	}
	// A link to a socket leads there, too.
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}

func abstract(name string) bool { return strings.HasPrefix(name, "@") }
