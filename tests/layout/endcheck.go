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
	"strings"
)

// handleFolders are those whose packages open native handles; the folders below some of
// them do not.
var (
	handleFolders  = []string{"sink", "cgo", "bindings", "publisher"}
	handleFree     = []string{"bindings/event", "publisher/wire", "publisher/internal"}
	endcheckInMain = "a test binary that can open native handles needs a TestMain that calls endcheck.Run"
)

func opensHandles(folder string) bool {
	in := func(f string) bool { return within(folder, f) }
	return slices.ContainsFunc(handleFolders, in) && !slices.ContainsFunc(handleFree, in)
}

// EndChecks: whatever tests can open native handles, by what they or the package around
// them import, is looked at when they have ended.
func EndChecks(t *Tree) []string {
	opens, tested, checked := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, name := range t.files {
		if !isGo(name) || strings.Contains(name, "/testdata/") {
			continue
		}
		folder := path.Dir(name)
		if isGoTest(name) {
			tested[folder] = true
			checked[folder] = checked[folder] || t.callsEndcheck(name)
		}
		if opensHandles(folder) {
			opens[folder] = true
		}
		for _, p := range t.goFile(name).paths {
			if to, ours := strings.CutPrefix(p, modulePath+"/"); ours && opensHandles(to) {
				opens[folder] = true
			}
		}
	}
	var found []string
	for folder := range tested {
		if opens[folder] && !checked[folder] {
			found = append(found, fmt.Sprintf("%s: %s", folder, endcheckInMain))
		}
	}
	slices.Sort(found)
	return found
}

// callsEndcheck tells whether a file has a TestMain that calls endcheck.Run, itself or in a
// function of the file that it calls.
func (t *Tree) callsEndcheck(name string) bool {
	if !t.goFile(name).imports(modulePath + "/" + endcheck) {
		return false
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, t.read(name), parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	calls := map[string][]string{} // by function, what it calls
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || f.Body == nil {
			continue
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			switch called := call.Fun.(type) {
			case *ast.Ident:
				calls[f.Name.Name] = append(calls[f.Name.Name], called.Name)
			case *ast.SelectorExpr:
				if pkg, ok := called.X.(*ast.Ident); ok {
					calls[f.Name.Name] = append(calls[f.Name.Name], pkg.Name+"."+called.Sel.Name)
				}
			}
			return true
		})
	}
	// TestMain itself or a function that it hands m to.
	const run = "endcheck.Run"
	return slices.Contains(calls["TestMain"], run) ||
		slices.ContainsFunc(calls["TestMain"], func(f string) bool { return slices.Contains(calls[f], run) })
}
