// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A finding must fail, a machine without network must not, and nothing else may pass for the latter.
func TestVulncheck(t *testing.T) {
	for _, c := range []struct {
		name, script string
		status       int
		says         string
	}{
		{"nothing found", "echo No vulnerabilities found.", 0, "No vulnerabilities found."},
		{"a finding", "echo 'Vulnerability #1: GO-2025-0001'; exit 3", 3, "GO-2025-0001"},
		{"a finding that speaks of a lookup", "echo 'fetching vulnerabilities: lookup'; exit 3", 3, "lookup"},
		{"no such host", `echo 'govulncheck: fetching vulnerabilities: Get "https://db.example/": dial tcp: lookup db.example: no such host' >&2; exit 1`,
			0, "could not be reached"},
		{"refused", `echo 'govulncheck: fetching vulnerabilities: Get "https://db.example/": dial tcp 192.0.2.1:443: connect: connection refused' >&2; exit 1`,
			0, "could not be reached"},
		{"packages that do not load", "echo 'govulncheck: loading packages: there are errors' >&2; exit 1", 1, "loading packages"},
		{"no such program", "exit 127", 127, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tool := filepath.Join(t.TempDir(), "tool")
			if err := os.WriteFile(tool, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			script, err := filepath.Abs("../../.ci/vulncheck")
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(script)
			cmd.Env = append(os.Environ(), "KVC_VULNCHECK="+tool)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != c.status || !strings.Contains(string(out), c.says) {
				t.Errorf("exit status %d, want %d and %q\n%s", got, c.status, c.says, out)
			}
		})
	}
}
