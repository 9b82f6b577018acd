// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package readme keeps the README true: what it shows is what is there.
package readme

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// block returns the fenced block that follows the marker.
func block(t *testing.T, text, marker string) string {
	t.Helper()
	_, after, found := strings.Cut(text, "<!-- "+marker+" -->\n```")
	if !found {
		t.Fatalf("README.md has no block marked %q", marker)
	}
	_, after, _ = strings.Cut(after, "\n")
	body, _, found := strings.Cut(after, "```\n")
	if !found {
		t.Fatalf("the block marked %q has no end", marker)
	}
	return body
}

func TestQuickstartIsTheProgram(t *testing.T) {
	shown := block(t, read(t, "README.md"), "quickstart")
	if !strings.Contains(read(t, "examples/quickstart/main.go"), shown) {
		t.Error("the Go program in README.md is not the one in examples/quickstart/main.go")
	}
}

func TestQuickstartOutputIsReal(t *testing.T) {
	shown := block(t, read(t, "README.md"), "quickstart output")
	if want := read(t, "examples/quickstart/testdata/output.txt"); shown != want {
		t.Errorf("README.md shows\n%s\nthe program prints\n%s", shown, want)
	}
}

// What is left out of the C program is what the README says: the rest is the body of run.
func TestCExampleIsTheProgram(t *testing.T) {
	shown := block(t, read(t, "README.md"), "example-c")
	if !strings.Contains(read(t, "examples/c/example.c"), "static void run(kvc_manager* pool, kvc_stream* stream) {\n"+shown+"}\n") {
		t.Error("the C program in README.md is not the body of run in examples/c/example.c")
	}
	if lines := strings.Count(shown, "\n"); lines > 20 {
		t.Errorf("the twenty lines of C are %d", lines)
	}
}

// tests/consumer compares the program's output with the same file.
func TestCExampleOutputIsReal(t *testing.T) {
	shown := block(t, read(t, "README.md"), "example-c output")
	if want := read(t, "examples/c/testdata/output.txt"); shown != want {
		t.Errorf("README.md shows\n%s\nthe program prints\n%s", shown, want)
	}
}

// Relative links must lead somewhere.
func TestLinks(t *testing.T) {
	links := regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, filepath.Join(root, "README.md"), filepath.Join(root, "CHANGELOG.md"))
	checked := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range links.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			checked++
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), match[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", file, match[1])
			}
		}
	}
	if checked == 0 {
		t.Error("no links were found: the pattern no longer fits")
	}
}

// runMake runs make at the root as a person would, also when the tests
// themselves are run by make.
func runMake(t *testing.T, args ...string) string {
	t.Helper()
	program, err := exec.LookPath("make")
	if err != nil {
		t.Skip("make is not installed")
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = root
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "MAKE") && name != "MFLAGS" && name != "GNUMAKEFLAGS" {
			cmd.Env = append(cmd.Env, v)
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// make alone and make help print the same list: every verb, each with what it
// does.
func TestHelp(t *testing.T) {
	shown := runMake(t)
	if help := runMake(t, "help"); help != shown {
		t.Errorf("make prints\n%s\nmake help prints\n%s", shown, help)
	}
	// A verb is a target that is no file.
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^\.PHONY:(.*)$`).FindAllStringSubmatch(read(t, "Makefile"), -1) {
		want = append(want, strings.Fields(m[1])...)
	}
	var got []string
	line := regexp.MustCompile(`^  ([a-z-]+) +\S.*$`)
	for l := range strings.Lines(shown) {
		m := line.FindStringSubmatch(strings.TrimSuffix(l, "\n"))
		if m == nil {
			t.Fatalf("not a verb and what it does: %q", l)
		}
		got = append(got, m[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("make lists %q, the Makefile has %q", got, want)
	}
	for _, verb := range []string{"help", "setup", "build", "run", "test", "bench", "lint", "fmt", "clean"} {
		if !slices.Contains(got, verb) {
			t.Errorf("make does not list %s", verb)
		}
	}
}

// Every verb that the README names is one of the Makefile's.
func TestVerbs(t *testing.T) {
	makefile := read(t, "Makefile")
	for _, match := range regexp.MustCompile("(?m)(?:`|^)make ([a-z][a-z-]*)").FindAllStringSubmatch(read(t, "README.md"), -1) {
		if !strings.Contains(makefile, "\n"+match[1]+":") {
			t.Errorf("README.md names `make %s`, which the Makefile does not have", match[1])
		}
	}
}

// Each claim of docs/comparison.md names what shows it, and that is there.
func TestComparisonNamesWhatIsThere(t *testing.T) {
	there := map[string]bool{}
	for _, folder := range []string{"bindings", "native", "publisher", "sink", "tests"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
			there[filepath.Base(path)] = true
			there[strings.TrimPrefix(path, root+"/")] = true
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	rows := 0
	for line := range strings.Lines(read(t, "docs/comparison.md")) {
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		if len(cells) != 5 || strings.HasPrefix(line, "|---") || strings.Contains(line, "| shown by |") {
			continue
		}
		rows++
		names := quoted.FindAllStringSubmatch(cells[4], -1)
		if len(names) == 0 && !strings.Contains(cells[4], "the models") {
			t.Errorf("%s: nothing shows it", cells[0])
		}
		for _, name := range names {
			if !there[name[1]] {
				t.Errorf("%s: there is no %s", cells[0], name[1])
			}
		}
	}
	if rows < 30 {
		t.Errorf("%d rows were read", rows)
	}
}
