// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestScriptsTellRules: each rule of the table in tests/scripts/README.md has a story,
// and no script is missing there.
func TestScriptsTellRules(t *testing.T) {
	text, err := os.ReadFile("../tests/scripts/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "\n| rule | story |\n|---|---|\n")
	if !found {
		t.Fatal("README.md has no table of rules")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	files, err := filepath.Glob("../tests/scripts/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	comments, named := map[string]string{}, map[string]bool{}
	comment := regexp.MustCompile(`(?m)^# ?(.*)$`)
	for _, file := range files {
		script, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var words []string
		for _, line := range comment.FindAllStringSubmatch(string(script), -1) {
			words = append(words, strings.Fields(line[1])...)
		}
		comments[filepath.Base(file)] = strings.Join(words, " ")
	}
	story := regexp.MustCompile("^`([a-z0-9_]+\\.txt)`: (.+)$")
	rows := strings.Split(table, "\n")
	if len(rows) < 50 {
		t.Errorf("%d rules", len(rows))
	}
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		if len(cells) != 2 {
			t.Errorf("not a row: %s", row)
			continue
		}
		for _, s := range strings.Split(cells[1], "; ") {
			m := story.FindStringSubmatch(s)
			if m == nil {
				t.Errorf("not a script and words of it: %s", s)
				continue
			}
			named[m[1]] = true
			if !strings.Contains(strings.ToLower(comments[m[1]]), strings.ToLower(m[2])) {
				t.Errorf("%s has no comment with %q", m[1], m[2])
			}
		}
	}
	for file := range comments {
		if !named[file] {
			t.Errorf("%s tells no rule of the table", file)
		}
	}
}
