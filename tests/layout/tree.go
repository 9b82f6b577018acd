// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Tree is a source tree: the slash-separated names of its files and a way to read them.
type Tree struct {
	fsys  fs.FS
	files []string
	set   map[string]bool
}

// skipped are the folders at the root that hold no source of ours.
var skipped = []string{".git", ".go", "bin", "build", "vendor"}

// NewTree lists the files of fsys. Build outputs and version control are left out.
func NewTree(fsys fs.FS) (*Tree, error) {
	t := &Tree{fsys: fsys, set: map[string]bool{}}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains(skipped, name) {
				return fs.SkipDir
			}
			return nil
		}
		t.files = append(t.files, name)
		t.set[name] = true
		return nil
	})
	return t, err
}

// Check applies every rule and returns what breaks one, as "file: reason" lines in a fixed order.
func (t *Tree) Check() []string {
	var found []string
	for _, rule := range []func(*Tree) []string{
		SourceLists, Embeds, NativeGoFiles, Includes, Imports, Cgo, Unsafe, Licences, CTest, Comments, Cleanups,
		EndChecks,
	} {
		found = append(found, rule(t)...)
	}
	return found
}

func (t *Tree) read(name string) string {
	text, err := fs.ReadFile(t.fsys, name)
	if err != nil {
		// The name comes from the listing: only a file that vanished in between gets here.
		panic(fmt.Sprintf("layout: %v", err))
	}
	return string(text)
}

// in returns the files below a folder.
func (t *Tree) in(folder string) []string {
	var found []string
	for _, name := range t.files {
		if strings.HasPrefix(name, folder+"/") {
			found = append(found, name)
		}
	}
	return found
}

// layer returns the top folder of a file, "" for a file at the root.
func layer(name string) string {
	top, _, nested := strings.Cut(name, "/")
	if !nested {
		return ""
	}
	return top
}

// inFolder tells whether a file is in a folder or below it.
func inFolder(name, folder string) bool {
	return path.Dir(name) == folder || strings.HasPrefix(name, folder+"/")
}

func isGo(name string) bool { return path.Ext(name) == ".go" }

func isGoTest(name string) bool { return strings.HasSuffix(name, "_test.go") }

// isNative tells whether a file is C, C++ or CUDA source.
func isNative(name string) bool {
	return slices.Contains([]string{".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".inc"}, path.Ext(name))
}

// isUnit tells whether a file is compiled on its own.
func isUnit(name string) bool {
	return slices.Contains([]string{".c", ".cc", ".cpp"}, path.Ext(name))
}
