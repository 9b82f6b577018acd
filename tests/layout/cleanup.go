// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
)

// constructors make what native memory, sockets or threads stand behind.
var constructors = map[string]bool{"bindings.NewStream": true, "bindings.NewManager": true, "publisher.New": true}

// A handle of the C ABI in a local variable; members end with an underscore and are ended by their class.
var rawHandle = regexp.MustCompile(`(?m)^[ \t]+kvc_(?:stream|manager|snapshot)\* (\w*[A-Za-z0-9]) = nullptr;`)

// Cleanups: what a test makes is given up also when the next line fails, or the leak that TestMain reports hides why.
// In Go, one of the two statements behind a constructor that has a name for what it made registers its end, returns it
// or puts it into a field of what is ended. Examples, which show what programs do, are left out. In C++ a local
// handle is an OwnedHandle.
func Cleanups(t *Tree) []string {
	var found []string
	for _, name := range t.files {
		switch {
		case isGoTest(name):
			found = append(found, goCleanups(name, t.read(name))...)
		case strings.HasPrefix(name, "tests/native/") && (strings.HasSuffix(name, ".cpp") || strings.HasSuffix(name, ".h")):
			text := t.read(name)
			for _, at := range rawHandle.FindAllStringSubmatchIndex(text, -1) {
				found = append(found, fmt.Sprintf("%s:%d: %s is not an OwnedHandle: a failing check would leave it behind",
					name, 1+strings.Count(text[:at[2]], "\n"), text[at[2]:at[3]]))
			}
		}
	}
	return found
}

func goCleanups(name, source string) []string {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil // Imports reports it
	}
	var found []string
	ast.Inspect(file, func(node ast.Node) bool {
		var list []ast.Stmt
		switch node := node.(type) {
		case *ast.FuncDecl:
			return !strings.HasPrefix(node.Name.Name, "Example")
		case *ast.BlockStmt:
			list = node.List
		case *ast.CaseClause:
			list = node.Body
		case *ast.CommClause:
			list = node.Body
		}
		for i, statement := range list {
			id, made := construction(statement)
			if id == "" {
				continue
			}
			next := list[i+1 : min(i+3, len(list))]
			if !ended(next, id) {
				found = append(found, fmt.Sprintf("%s:%d: the cleanup of %s does not follow %s",
					name, fset.Position(statement.Pos()).Line, id, made))
			}
		}
		return true
	})
	return found
}

// construction names what a statement makes, and with which constructor.
func construction(statement ast.Stmt) (id, made string) {
	assign, ok := statement.(*ast.AssignStmt)
	if !ok || len(assign.Rhs) != 1 {
		return "", ""
	}
	call, ok := assign.Rhs[0].(*ast.CallExpr)
	if !ok {
		return "", ""
	}
	function, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	of, ok := function.X.(*ast.Ident)
	if !ok || !constructors[of.Name+"."+function.Sel.Name] {
		return "", ""
	}
	to, ok := assign.Lhs[0].(*ast.Ident)
	if !ok || to.Name == "_" {
		return "", ""
	}
	return to.Name, of.Name + "." + function.Sel.Name
}

// ended tells whether one of the statements sees to the end of what has that name.
func ended(statements []ast.Stmt, id string) bool {
	for _, statement := range statements {
		var kept bool
		switch s := statement.(type) {
		case *ast.AssignStmt:
			for i, to := range s.Lhs {
				_, field := to.(*ast.SelectorExpr)
				kept = kept || field && i < len(s.Rhs) && isIdent(s.Rhs[i], id)
			}
		case *ast.ReturnStmt:
			for _, value := range s.Results {
				kept = kept || isIdent(value, id)
			}
		case *ast.IfStmt: // if err := x.Close()
			kept = s.Init != nil && closes(s.Init, id)
		case *ast.ExprStmt, *ast.DeferStmt:
			kept = closes(s, id)
		}
		if kept {
			return true
		}
	}
	return false
}

func closes(statement ast.Stmt, id string) bool {
	var found bool
	ast.Inspect(statement, func(node ast.Node) bool {
		method, ok := node.(*ast.SelectorExpr)
		found = found || ok && method.Sel.Name == "Close" && isIdent(method.X, id)
		return !found
	})
	return found
}

func isIdent(expr ast.Expr, name string) bool {
	id, ok := expr.(*ast.Ident)
	return ok && id.Name == name
}
