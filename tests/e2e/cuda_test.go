// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeDriver builds the fake CUDA driver and returns the folder to put on the
// library path.
func fakeDriver(t *testing.T) string {
	t.Helper()
	sources, err := filepath.Glob("../fakecuda/*.cpp")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	compiler := os.Getenv("CXX")
	if compiler == "" {
		compiler = "g++"
	}
	args := []string{"-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-I../..",
		"-Wl,-soname,libcuda.so.1", "-o", filepath.Join(folder, "libcuda.so.1")}
	for _, source := range sources {
		if filepath.Base(source) != "driver_probe.cpp" {
			args = append(args, source)
		}
	}
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", compiler, err, out)
	}
	return folder
}

// TestReplayOnTheFakeCUDADriver: one binary, with and without a driver. What the
// allocator decides does not depend on the device.
func TestReplayOnTheFakeCUDADriver(t *testing.T) {
	driver := fakeDriver(t)
	args := []string{"replay", "--json", "--trace", traceFile, "--limit", "200", "--capacity-blocks", "3000",
		"--concurrency", "4", "--publisher", "off", "--device"}
	run := func(device, options string) *process {
		p := command(t, append(args, device)...)
		p.Cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+driver, "KVC_FAKECUDA="+options)
		p.Cmd.Stdout = &p.stdout
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		return p
	}
	host := replay(t, append(args[2:], "host")...)
	for _, c := range []struct{ device, options, want string }{
		{"auto", "", "cuda:0 (fake CUDA device)"},
		{"cuda:0", "driver_version=12070", "cuda:0 (fake CUDA device)"},
		{"cuda:1", "devices=2,virtual_memory=0,queue_depth=8", "cuda:1 (fake CUDA device)"},
		{"host", "", "host"},
	} {
		p := run(c.device, c.options)
		p.good()
		s := p.summary()
		if s.Device != c.want {
			t.Errorf("--device %s: ran on %q, want %q", c.device, s.Device, c.want)
		}
		if s.HitBlocks != host.HitBlocks || s.ResidentBlocks != host.ResidentBlocks || s.Requests != host.Requests {
			t.Errorf("--device %s: %d of %d requests hit %d blocks and left %d; the host %d, %d, %d", c.device,
				s.Requests, 200, s.HitBlocks, s.ResidentBlocks, host.Requests, host.HitBlocks, host.ResidentBlocks)
		}
	}
	// A driver that cannot be used is an error where it was asked for and a reason where not.
	p := run("cuda:0", "init_result=803")
	p.wantLine(2, "--device cuda:0: cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "reboot")
	p = run("cuda:7", "")
	p.wantLine(2, "--device cuda:7: there is no CUDA device 7: this process sees 1")
	p = run("auto", "init_result=803")
	p.good()
	if s := p.summary(); !strings.HasPrefix(s.Device, "host (") {
		t.Errorf("--device auto with an unusable driver: ran on %q", s.Device)
	}
}

// TestNoCUDAIsLinked: what the loader of any machine demands.
func TestNoCUDAIsLinked(t *testing.T) {
	replay(t, "--trace", traceFile, "--limit", "1", "--publisher", "off", "--device", "host") // builds the tool
	file, err := elf.Open(kvcast.path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	libraries, err := file.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, library := range libraries {
		if strings.Contains(library, "cuda") || strings.Contains(library, "nvidia") {
			t.Errorf("the tool links %s", library)
		}
	}
	if len(libraries) == 0 {
		t.Error("no library is linked at all: the test looks at the wrong file")
	}
}
