// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

const modulePath = "github.com/kvcast/kvcast"

// goFile is what the rules need to know of a Go file.
type goFile struct {
	paths    []string
	preamble string // the comment above import "C"
	err      error
}

func (f goFile) imports(p string) bool { return slices.Contains(f.paths, p) }

func (t *Tree) goFile(name string) goFile {
	parsed, err := parser.ParseFile(token.NewFileSet(), name, t.read(name), parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return goFile{err: err}
	}
	var f goFile
	for _, decl := range parsed.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range gen.Specs {
			imp, ok := spec.(*ast.ImportSpec)
			if !ok {
				continue
			}
			p, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				return goFile{err: err}
			}
			f.paths = append(f.paths, p)
			if p != "C" {
				continue
			}
			for _, doc := range []*ast.CommentGroup{gen.Doc, imp.Doc} {
				if doc != nil {
					f.preamble += commentText(doc)
				}
			}
		}
	}
	return f
}

// commentText returns a comment without its markers. (CommentGroup.Text would drop lines that look like directives.)
func commentText(group *ast.CommentGroup) string {
	var b strings.Builder
	for _, c := range group.List {
		text := c.Text
		if line, ok := strings.CutPrefix(text, "//"); ok {
			text = line
		} else {
			text = strings.TrimSuffix(strings.TrimPrefix(text, "/*"), "*/")
		}
		b.WriteString(text + "\n")
	}
	return b.String()
}

// packageImports tells whether a Go file of the package in a folder imports p.
func (t *Tree) packageImports(folder, p string) bool {
	return slices.ContainsFunc(t.files, func(name string) bool {
		return path.Dir(name) == folder && isGo(name) && !isGoTest(name) && t.goFile(name).imports(p)
	})
}

// importArrows says which folders of this module the Go files of a folder may import. The longest folder that fits
// decides; a folder may always import itself and what is below it.
var importArrows = map[string][]string{
	"native":         {},
	"sink":           {"native"},
	"cuda":           {"native"},
	"cuda/inventory": {},
	"cgo":            {"native", "sink", "cuda"},
	"bindings":       {"native", "sink", "cuda", "cgo"},
	"bindings/event": {}, // plain types, so that the codec builds without cgo
	"publisher":      {"bindings"},
	"publisher/wire": {"bindings/event"},
	"cmd":            {"native", "sink", "cuda", "cgo", "bindings", "publisher"},
	"examples":       {"bindings", "publisher"},
	"tests":          {"native", "sink", "cuda", "cgo", "bindings", "publisher", "cmd"},
}

// inventory links with "ignore unresolved symbols" for the whole program, so no library package may bring it in.
const inventory = "cuda/inventory"

// endcheck is what looks at the end of a test binary whether anything outlived it.
const endcheck = "tests/endcheck"

// seeds is what gives random tests their seeds; like endcheck, any test may use it.
const seeds = "tests/seeds"

// foreignImports says which files may import a foreign module. The key is a prefix of the import path.
var foreignImports = map[string]func(name string) bool{
	// One file of the publisher and one of its subscriber own the sockets; their tests play the other side.
	"github.com/pebbe/zmq4": func(name string) bool {
		return inFolder(name, "publisher") && !inFolder(name, "publisher/wire") &&
			(isGoTest(name) || strings.HasPrefix(path.Base(name), "zmq"))
	},
	"github.com/prometheus/client_golang": func(name string) bool { return inFolder(name, "publisher/metrics") },
	"github.com/NVIDIA/go-nvml":           func(name string) bool { return inFolder(name, inventory) },
	"gorgonia.org/cu":                     func(name string) bool { return inFolder(name, "cuda/cuinterop") },
	// A reader of our stream that is not ours: for tests, which may import anything.
	"github.com/vmihailenco/msgpack": func(string) bool { return false },
}

// Imports: Go imports follow the arrows, and a foreign library is imported only where it is wrapped.
func Imports(t *Tree) []string {
	var found []string
	for _, name := range t.files {
		if !isGo(name) || strings.Contains(name, "/testdata/") {
			continue
		}
		f := t.goFile(name)
		if f.err != nil {
			found = append(found, fmt.Sprintf("%s: %v", name, f.err))
			continue
		}
		folder, allowed := arrows(name)
		if folder == "" {
			found = append(found, fmt.Sprintf("%s: a Go file in a folder that belongs to no layer", name))
			continue
		}
		for _, p := range f.paths {
			for module, ok := range foreignImports {
				if (p == module || strings.HasPrefix(p, module+"/")) && !ok(name) && layer(name) != "tests" {
					found = append(found, fmt.Sprintf("%s: imports %s, which is wrapped elsewhere", name, p))
				}
			}
			to, ours := strings.CutPrefix(p, modulePath+"/")
			if !ours {
				continue
			}
			if within(to, inventory) && !inFolder(name, inventory) && !inFolder(name, "cmd/kvcast") && layer(name) != "tests" {
				found = append(found, fmt.Sprintf("%s: imports %s, which only cmd/kvcast may", name, to))
				continue
			}
			if isGoTest(name) && (to == endcheck || to == seeds) {
				continue
			}
			if !within(to, folder) && !slices.ContainsFunc(allowed, func(a string) bool { return within(to, a) }) {
				found = append(found, fmt.Sprintf("%s: imports %s: %s must not use it", name, to, folder))
			}
		}
	}
	return found
}

// within tells whether import path p is folder or below it.
func within(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// arrows returns the folder whose arrows hold for a file, and the arrows.
func arrows(name string) (folder string, allowed []string) {
	for candidate, to := range importArrows {
		if inFolder(name, candidate) && len(candidate) > len(folder) {
			folder, allowed = candidate, to
		}
	}
	return folder, allowed
}

// Cgo: C is called in the raw layer and below it only, so that everything above is plain Go.
func Cgo(t *Tree) []string {
	var found []string
	for _, name := range t.files {
		if isGo(name) && t.goFile(name).imports("C") && !slices.Contains([]string{"native", "sink", "cuda", "cgo"}, layer(name)) {
			found = append(found, fmt.Sprintf("%s: imports \"C\" outside native, sink, cuda and cgo", name))
		}
	}
	return found
}

// Unsafe: unsafe is used in the raw layer and below it only. Tests may use it to look at addresses, and anyone may ask
// for a size: that is a constant.
func Unsafe(t *Tree) []string {
	var found []string
	for _, name := range t.files {
		if isGo(name) && !isGoTest(name) && t.goFile(name).imports("unsafe") && !t.onlySizes(name) &&
			!slices.Contains([]string{"native", "sink", "cuda", "cgo", "tests"}, layer(name)) {
			found = append(found, fmt.Sprintf("%s: imports unsafe outside native, sink, cuda and cgo", name))
		}
	}
	return found
}

// onlySizes tells whether a file imports unsafe under its own name and takes nothing but sizes from it.
func (t *Tree) onlySizes(name string) bool {
	file, err := parser.ParseFile(token.NewFileSet(), name, t.read(name), parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	for _, imp := range file.Imports {
		if imp.Path.Value == `"unsafe"` && imp.Name != nil {
			return false
		}
	}
	uses, sizes := 0, 0
	ast.Inspect(file, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := selector.X.(*ast.Ident); ok && id.Name == "unsafe" {
				uses++
				if selector.Sel.Name == "Sizeof" {
					sizes++
				}
			}
		}
		return true
	})
	return uses > 0 && uses == sizes
}
