// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// doctorReport is the part of doctor --json that the tests use.
type doctorReport struct {
	Usable   bool     `json:"usable"`
	Problems []string `json:"problems"`
	Advice   []struct {
		Finding string `json:"finding"`
	} `json:"advice"`
	Limits struct {
		OpenFiles    *uint64 `json:"open_files"`
		AddressSpace *uint64 `json:"address_space_bytes"`
	} `json:"limits"`
	SelfTest struct {
		Passed bool   `json:"passed"`
		Error  string `json:"error"`
	} `json:"self_test"`
}

// limited is doctor --json in a process with a limit of its own.
func limited(t *testing.T, ulimit string) (*process, doctorReport, int) {
	t.Helper()
	p := command(t)
	p.Cmd.Path, p.Cmd.Args = "/bin/sh", []string{"sh", "-c", "ulimit " + ulimit + ` && exec "$@"`, "sh", kvcast.path, "doctor", "--json"}
	p.Cmd.Stdout = &p.stdout
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	code := p.exit()
	var r doctorReport
	if err := json.Unmarshal(p.stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v in %q, exit code %d: %s", err, p.stdout.String(), code, tail(&p.stderr))
	}
	return p, r, code
}

// Where kvcast can work the exit code is 0, whatever else is said.
func TestDoctor(t *testing.T) {
	t.Parallel()
	p := start(t, "doctor")
	p.good()
	for _, name := range []string{"kvcast", "cpu", "sha-256", "libzmq", "memory", "memlock", "open files", "nvidia", "device auto", "self-test"} {
		if !strings.Contains("\n"+p.stdout.String(), "\n"+name+" ") {
			t.Errorf("nothing on %s in\n%s", name, p.stdout.String())
		}
	}
	p, r, code := limited(t, "-n 500")
	if code != 0 || p.stderr.Len() > 0 || !r.Usable || !r.SelfTest.Passed || r.Limits.OpenFiles == nil || *r.Limits.OpenFiles != 500 {
		t.Errorf("500 open files: %d, %q, %s", code, p.stderr.String(), p.stdout.String())
	}
	if len(r.Advice) == 0 || r.Advice[len(r.Advice)-1].Finding != "open_files" {
		t.Errorf("no advice on open files: %s", p.stdout.String())
	}
}

// Where it cannot, the report comes nevertheless, and one line that says why.
func TestDoctorFindsNoWay(t *testing.T) {
	t.Parallel()
	p, r, code := limited(t, "-n 20")
	const want = "only 20 open files are allowed; ulimit -n 65536"
	if code != 2 || p.stderr.String() != "kvcast: cannot work here: "+want+"\n" {
		t.Errorf("%d, %q", code, p.stderr.String())
	}
	if r.Usable || r.SelfTest.Passed || len(r.Problems) != 1 || r.Problems[0] != want {
		t.Errorf("got %s", p.stdout.String())
	}
}
