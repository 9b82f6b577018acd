// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// hashes returns the lines "// sha256 HASH NAME" of a text, in order.
func hashes(text []byte) []string {
	var found []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "// sha256 ") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	slices.Sort(found)
	return found
}

// wantHashes is what they must be for the sources in a folder.
func wantHashes(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, entry := range entries {
		if name := entry.Name(); slices.Contains([]string{".cu", ".h"}, filepath.Ext(name)) {
			text, err := os.ReadFile(filepath.Join(folder, name))
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, fmt.Sprintf("// sha256 %x %s", sha256.Sum256(text), name))
		}
	}
	slices.Sort(want)
	return want
}

// TestThePTXIsOfTheseSources: go test notices an edited kernel, without a
// compiler of CUDA and without CMake.
func TestThePTXIsOfTheseSources(t *testing.T) {
	ptx, err := os.ReadFile("kernels/kernels.ptx")
	if err != nil {
		t.Fatal(err)
	}
	array, err := os.ReadFile("kernels/kernels_ptx.inc")
	if err != nil {
		t.Fatal(err)
	}
	want := wantHashes(t, "kernels")
	if len(want) < 5 {
		t.Fatalf("%d sources", len(want))
	}
	for name, text := range map[string][]byte{"kernels.ptx": ptx, "kernels_ptx.inc": array} {
		if got := hashes(text); !slices.Equal(got, want) {
			t.Errorf("%s is of other sources: run make ptx\n got %q\nwant %q", name, got, want)
		}
	}
	var decoded []byte
	for line := range strings.Lines(string(array)) {
		if strings.HasPrefix(line, "//") {
			continue
		}
		for number := range strings.SplitSeq(strings.Trim(line, ",\n "), ",") {
			value, err := strconv.ParseUint(number, 10, 8)
			if err != nil {
				t.Fatalf("kernels_ptx.inc: %v", err)
			}
			decoded = append(decoded, byte(value))
		}
	}
	if !bytes.Equal(decoded, append(bytes.Clone(ptx), 0)) {
		t.Error("kernels_ptx.inc is not the text of kernels.ptx and a zero: run make ptx")
	}
}

// TestAnEditedKernelIsNoticed: the check above can fail.
func TestAnEditedKernelIsNoticed(t *testing.T) {
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("kernels")); err != nil {
		t.Fatal(err)
	}
	ptx, err := os.ReadFile(filepath.Join(folder, "kernels.ptx"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(hashes(ptx), wantHashes(t, folder)) {
		t.Error("a copy differs")
	}
	file, err := os.OpenFile(filepath.Join(folder, "page_copy.cu"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	if slices.Equal(hashes(ptx), wantHashes(t, folder)) {
		t.Error("an edited source is not noticed")
	}
}
