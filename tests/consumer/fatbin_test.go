// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package consumer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// nvcc writes a compiler that notes each command line and does what is given for them.
func nvcc(t *testing.T, list, compile string) (tool, calls string) {
	t.Helper()
	dir := t.TempDir()
	tool, calls = filepath.Join(dir, "nvcc"), filepath.Join(dir, "calls")
	text := "#!/bin/sh\necho \"$*\" >>'" + calls + "'\nif [ \"$1\" = --list-gpu-code ]; then\n" + list +
		"\nexit\nfi\nwhile [ $# -gt 1 ]; do [ \"$1\" = -o ] && out=$2; shift; done\n" + compile + "\n"
	if err := os.WriteFile(tool, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return tool, calls
}

const (
	listed   = "printf 'sm_75\\nsm_80\\nsm_90\\nsm_90a\\nsm_121\\n'"
	compiles = "printf 'PROG' >\"$out\""
)

// configure configures the library in a new folder, which it returns, with that nvcc.
func configure(t *testing.T, tool string, options ...string) (build, said string, err error) {
	t.Helper()
	slow(t)
	sourceFiles(t)
	build = t.TempDir()
	args := append([]string{"-S", absRoot(t), "-B", build, "-DKVC_BUILD_TESTS=OFF", "-DKVC_INSTALL=OFF"}, options...)
	said, err = try(root, []string{"PATH=" + filepath.Dir(tool) + ":" + os.Getenv("PATH"), "CUDA_HOME=", "CUDA_PATH="},
		"sh", append([]string{"-c", "exec cmake \"$@\" 2>&1", "cmake"}, args...)...)
	return build, strings.Join(strings.Fields(said), " "), err
}

func makesFatbin(t *testing.T, build string) bool {
	t.Helper()
	return strings.Contains(command(t, build, nil, "cmake", "--build", build, "--target", "help"), "kvcast_fatbin")
}

// TestUnfitNvcc: nothing needs nvcc, so one that does not compile the kernels is left alone, unless it was asked for.
func TestUnfitNvcc(t *testing.T) {
	for name, c := range map[string]struct{ list, compile, words string }{
		"unknown option":       {"echo 'nvcc fatal: Unknown option' >&2; exit 1", compiles, "Unknown option"},
		"unsupported compiler": {listed, "echo '#error -- unsupported GNU version!' >&2; exit 2", "unsupported GNU version"},
		"too old":              {"echo sm_75", compiles, "none of the GPUs"},
	} {
		t.Run(name, func(t *testing.T) {
			tool, calls := nvcc(t, c.list, c.compile)
			build, said, err := configure(t, tool)
			if err != nil {
				t.Fatalf("configuring fails: %s", said)
			}
			if !strings.Contains(said, "No machine code") || !strings.Contains(said, c.words) {
				t.Errorf("no warning that says %q: %s", c.words, said)
			}
			if makesFatbin(t, build) {
				t.Error("the library is to hold a fat binary")
			}
			if _, said, err = configure(t, tool, "-DKVC_CUDA_FATBIN=ON"); err == nil || !strings.Contains(said, c.words) {
				t.Errorf("asked for it, configuring gives %v and does not say %q: %s", err, c.words, said)
			}
			if err := os.Remove(calls); err != nil {
				t.Fatal(err)
			}
			if _, said, err = configure(t, tool, "-DKVC_CUDA_FATBIN=OFF"); err != nil || strings.Contains(said, "machine code") {
				t.Errorf("switched off, configuring gives %v: %s", err, said)
			}
			if _, err := os.Stat(calls); err == nil {
				t.Errorf("switched off, nvcc is called: %s", read(t, calls))
			}
		})
	}
}

// TestFitNvcc: the kernels are compiled for the GPUs that we name and it knows, and what comes out is embedded.
func TestFitNvcc(t *testing.T) {
	for _, options := range [][]string{nil, {"-DKVC_CUDA_FATBIN=ON"}} {
		tool, calls := nvcc(t, listed, compiles)
		build, said, err := configure(t, tool, options...)
		if err != nil || strings.Contains(said, "No machine code") {
			t.Fatalf("configuring gives %v: %s", err, said)
		}
		command(t, build, nil, "cmake", "--build", build, "--target", "kvcast_fatbin")
		if got := strings.TrimSpace(read(t, filepath.Join(build, "cuda", "kernels_fatbin.inc"))); got != "0x50,0x52,0x4f,0x47," {
			t.Errorf("the array holds %s", got)
		}
		lines := strings.Split(strings.TrimSpace(read(t, calls)), "\n")
		last := lines[len(lines)-1]
		if n := strings.Count(last, "-gencode"); n != 2 || !strings.Contains(last, "arch=compute_80,code=sm_80") ||
			!strings.Contains(last, "arch=compute_90,code=sm_90 ") {
			t.Errorf("it is compiled for %s", last)
		}
		// It is tried once, not each time.
		command(t, build, nil, "cmake", build)
		tried := 0
		for _, line := range strings.Split(read(t, calls), "\n") {
			if strings.Contains(line, "try.fatbin") {
				tried++
			}
		}
		if tried != 1 {
			t.Errorf("tried %d times", tried)
		}
	}
}

// TestNvccAskedForIsNeeded: without any, asking for the fat binary is an error, and not asking is not.
func TestNvccAskedForIsNeeded(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "nvcc") // there is none, and an empty name is not looked for
	if _, said, err := configure(t, tool, "-DKVC_NVCC=", "-DKVC_CUDA_FATBIN=ON"); err == nil ||
		!strings.Contains(said, "KVC_CUDA_FATBIN needs nvcc") {
		t.Errorf("asked for it, configuring gives %v: %s", err, said)
	}
	if build, said, err := configure(t, tool, "-DKVC_NVCC="); err != nil || makesFatbin(t, build) {
		t.Errorf("configuring gives %v: %s", err, said)
	}
}
