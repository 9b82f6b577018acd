// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
)

// Comments: every exported name of a Go package is explained. A comment on a group of constants or variables speaks
// for its members, as does one at the end of a line; so the fields of a struct are the business of the struct. A method
// counts when its receiver's type is exported. Test files and the tests folder, which nobody imports, are left out.
func Comments(t *Tree) []string {
	var found []string
	for _, name := range t.files {
		if !isGo(name) || isGoTest(name) || layer(name) == "tests" || strings.Contains(name, "/testdata/") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, t.read(name), parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			continue // Imports reports it
		}
		missing := func(at token.Pos, what string) {
			found = append(found, fmt.Sprintf("%s:%d: %s has no doc comment", name, fset.Position(at).Line, what))
		}
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if what, ok := exportedFunc(decl); ok && !says(decl.Doc) {
					missing(decl.Pos(), what)
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						alone := !decl.Lparen.IsValid() && says(decl.Doc)
						if spec.Name.IsExported() && !alone && !says(spec.Doc) && !says(spec.Comment) {
							missing(spec.Pos(), "type "+spec.Name.Name)
						}
						if it, ok := spec.Type.(*ast.InterfaceType); ok && spec.Name.IsExported() {
							for _, method := range it.Methods.List {
								if len(method.Names) == 1 && method.Names[0].IsExported() && !says(method.Doc) && !says(method.Comment) {
									missing(method.Pos(), "method "+spec.Name.Name+"."+method.Names[0].Name)
								}
							}
						}
					case *ast.ValueSpec:
						for _, id := range spec.Names {
							if id.IsExported() && !says(decl.Doc) && !says(spec.Doc) && !says(spec.Comment) {
								missing(id.Pos(), decl.Tok.String()+" "+id.Name)
							}
						}
					}
				}
			}
		}
	}
	return found
}

// says tells whether a comment holds any words: a directive such as //go:noinline alone explains nothing.
func says(doc *ast.CommentGroup) bool { return doc != nil && strings.TrimSpace(doc.Text()) != "" }

// exportedFunc names a function, or a method of an exported type, and tells whether users can call it.
func exportedFunc(f *ast.FuncDecl) (what string, ok bool) {
	if !f.Name.IsExported() {
		return "", false
	}
	if f.Recv == nil {
		return "function " + f.Name.Name, true
	}
	receiver := f.Recv.List[0].Type
	for {
		switch r := receiver.(type) {
		case *ast.StarExpr:
			receiver = r.X
		case *ast.IndexExpr:
			receiver = r.X
		case *ast.IndexListExpr:
			receiver = r.X
		case *ast.Ident:
			return "method " + r.Name + "." + f.Name.Name, r.IsExported()
		default:
			return "", false
		}
	}
}
