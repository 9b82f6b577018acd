// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// nativePackages are the folders whose C++ both cgo (by unity.cpp) and CMake (file by file) compile.
var nativePackages = []string{"native", "sink", "cuda"}

// cmakeFile holds the explicit source lists of the libraries.
const cmakeFile = "CMakeLists.txt"

// testsCMakeFile holds the explicit list of the C and C++ tests, relative to its own folder.
const testsCMakeFile = "tests/native/CMakeLists.txt"

var (
	includeLine = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]`)
	cmakeWord   = regexp.MustCompile(`[^\s()"]+`)
	embedLine   = regexp.MustCompile(`(?m)^//go:embed[ \t]+(.+)\n((?:.*\n)?)`)
)

type include struct {
	target string
	quoted bool
}

func includes(text string) []include {
	var found []include
	for _, m := range includeLine.FindAllStringSubmatch(text, -1) {
		found = append(found, include{target: m[2], quoted: m[1] == `"`})
	}
	return found
}

// SourceLists: a source that is compiled by one build is compiled by the other, and none is forgotten by both.
func SourceLists(t *Tree) []string {
	var found []string
	listed := t.cmakeSources(cmakeFile, "")
	for _, pkg := range nativePackages {
		var sources []string
		for _, name := range t.in(pkg + "/src") {
			if isUnit(name) {
				sources = append(sources, name)
			}
		}
		unity := pkg + "/unity.cpp"
		if len(sources) == 0 && !t.set[unity] {
			continue
		}
		var united []string
		if t.set[unity] {
			for _, inc := range includes(t.read(unity)) {
				if isUnit(inc.target) {
					united = append(united, inc.target)
				}
			}
		}
		cmake := slices.DeleteFunc(slices.Clone(listed), func(name string) bool { return layer(name) != pkg })
		found = append(found, compare(unity, united, sources)...)
		found = append(found, compare(cmakeFile, cmake, sources)...)
	}
	var tests []string
	for _, name := range t.in("tests/native") {
		if isUnit(name) {
			tests = append(tests, name)
		}
	}
	found = append(found, compare(testsCMakeFile, t.cmakeSources(testsCMakeFile, "tests/native"), tests)...)
	return found
}

// compare says how the names in the list of a file differ from what exists.
func compare(file string, listed, exist []string) []string {
	var found []string
	for _, name := range exist {
		if !slices.Contains(listed, name) {
			found = append(found, fmt.Sprintf("%s: does not name %s", file, name))
		}
	}
	for i, name := range listed {
		switch {
		case slices.Contains(listed[:i], name):
			found = append(found, fmt.Sprintf("%s: names %s twice", file, name))
		case !slices.Contains(exist, name):
			found = append(found, fmt.Sprintf("%s: names %s, which does not exist", file, name))
		}
	}
	return found
}

// cmakeSources returns the source files that a CMake file names, relative to the root of the tree. Each is named
// once, in the list; uses go through the variable.
func (t *Tree) cmakeSources(file, folder string) []string {
	if !t.set[file] {
		return nil
	}
	var found []string
	for line := range strings.Lines(t.read(file)) {
		line, _, _ = strings.Cut(line, "#")
		for _, word := range cmakeWord.FindAllString(line, -1) {
			if isUnit(word) && len(word) > len(path.Ext(word)) {
				found = append(found, path.Join(folder, word))
			}
		}
	}
	return found
}

// Embeds: every file that a native package compiles is named by a blank go:embed beside it. Without it the go command
// does not know of the file, and an edit gives the old code from its cache.
func Embeds(t *Tree) []string {
	var found []string
	for _, pkg := range nativePackages {
		var patterns []string
		for _, name := range t.files {
			if path.Dir(name) != pkg || !isGo(name) || isGoTest(name) {
				continue
			}
			for _, m := range embedLine.FindAllStringSubmatch(t.read(name), -1) {
				patterns = append(patterns, strings.Fields(m[1])...)
				if strings.TrimSpace(m[2]) != "var _ embed.FS" {
					found = append(found, fmt.Sprintf("%s: go:embed without a blank variable: bytes would reach the binary", name))
				}
			}
		}
		for _, name := range t.in(pkg) {
			if !isNative(name) && path.Ext(name) != ".ptx" {
				continue
			}
			if !embedded(patterns, strings.TrimPrefix(name, pkg+"/")) {
				found = append(found, fmt.Sprintf("%s: not covered by a go:embed of package %s", name, pkg))
			}
		}
	}
	return found
}

// embedded tells whether a go:embed pattern covers a file, by the go command's rules: a pattern names a file or a
// folder, and a folder does not bring what begins with a dot or an underscore unless the pattern says "all:".
func embedded(patterns []string, name string) bool {
	for _, pattern := range patterns {
		pattern, all := strings.CutPrefix(pattern, "all:")
		parts := strings.Split(name, "/")
		for i := range parts {
			if ok, err := path.Match(pattern, strings.Join(parts[:i+1], "/")); err != nil || !ok {
				continue
			}
			hidden := slices.ContainsFunc(parts[i+1:], func(part string) bool {
				return strings.HasPrefix(part, ".") || strings.HasPrefix(part, "_")
			})
			if all || !hidden {
				return true
			}
		}
	}
	return false
}

// NativeGoFiles: native and sink have exactly one Go file, cuda exactly one that imports "C", so that one file holds
// the flags. No test or program of C++ lies where cgo would compile it in.
func NativeGoFiles(t *Tree) []string {
	var found []string
	for _, pkg := range nativePackages {
		var all, cgo int
		for _, name := range t.in(pkg) {
			if path.Dir(name) != pkg {
				continue
			}
			switch {
			case isGo(name):
				all++
				if t.goFile(name).imports("C") {
					cgo++
				}
			case isUnit(name) && name != pkg+"/unity.cpp":
				found = append(found, fmt.Sprintf("%s: cgo compiles what lies beside the Go file; sources go to %s/src", name, pkg))
			}
		}
		if !t.set[pkg+"/unity.cpp"] {
			continue
		}
		if cgo != 1 || (pkg != "cuda" && all != 1) {
			found = append(found, fmt.Sprintf("%s: has %d Go files, %d of which import \"C\"; want exactly one", pkg, all, cgo))
		}
	}
	return found
}

// includeArrows says which layers the C and C++ of a layer may include.
var includeArrows = map[string][]string{
	"native":   {"native"},
	"sink":     {"native", "sink"},
	"cuda":     {"native", "cuda"},
	"cgo":      {"native", "sink", "cuda", "cgo"},
	"tests":    {"native", "sink", "cuda", "tests"},
	"examples": {"native/include"},
}

// foreignHeaders belong to libraries that the layers must not know: no CUDA toolkit is needed to build, the core knows
// no ZeroMQ and no Go.
var foreignHeaders = regexp.MustCompile(`^(cuda|cudart|nvml|zmq|msgpack|_cgo_export)\b|^cuda_runtime`)

// Includes: an include line reads from the root, or is the public header, and follows the arrows.
func Includes(t *Tree) []string {
	var found []string
	for _, name := range t.files {
		var text string
		switch {
		case isNative(name):
			text = t.read(name)
		case isGo(name) && !isGoTest(name):
			text = t.goFile(name).preamble
		}
		from := layer(name)
		for _, inc := range includes(text) {
			target := inc.target
			if strings.HasPrefix(target, "kvcast/") {
				target = "native/include/" + target
			}
			if !t.set[target] {
				switch {
				case inc.quoted:
					found = append(found, fmt.Sprintf("%s: includes %q, which does not read from the root", name, inc.target))
				case foreignHeaders.MatchString(target) && from != "tests" && !inFolder(name, "cuda/cuinterop"):
					found = append(found, fmt.Sprintf("%s: includes <%s>, which layer %s must not know", name, inc.target, from))
				}
				continue
			}
			if !slices.ContainsFunc(includeArrows[from], func(to string) bool { return inFolder(target, to) }) {
				found = append(found, fmt.Sprintf("%s: includes %s: layer %s must not use %s", name, target, from, layer(target)))
			}
			// The go command rebuilds a package when one that it imports changes, and knows nothing of includes.
			if to := layer(target); to != from && slices.Contains(nativePackages, from) && !t.packageImports(from, modulePath+"/"+to) {
				found = append(found, fmt.Sprintf("%s: includes %s, but package %s has no blank import of %s", name, target, from, to))
			}
		}
	}
	return found
}
