// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
)

// fake is the fake CUDA driver's folder, built by the first test that needs it.
var fake struct {
	folder string
	build  sync.Once
	err    error
}

// fakeDriver returns the folder to put on the library path.
func fakeDriver(t *testing.T) string {
	t.Helper()
	fake.build.Do(func() { fake.err = buildDriver(fake.folder) })
	if fake.err != nil {
		t.Fatal(fake.err)
	}
	return fake.folder
}

func buildDriver(folder string) error {
	sources, err := filepath.Glob("../fakecuda/*.cpp")
	if err != nil {
		return err
	}
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
		return fmt.Errorf("%s: %w\n%s", compiler, err, out)
	}
	return nil
}

// usedGPUs are the calls in a log of the fake driver that were made with a context, and the
// GPUs that it was of. A line that says something else is misuse.
func usedGPUs(t *testing.T, log string) map[string]map[int]bool {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]map[int]bool{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || !strings.HasPrefix(words[0], "cu") || len(words) > 2 {
			t.Fatalf("the fake driver says %q", line)
		}
		if len(words) == 1 {
			continue
		}
		gpu, err := strconv.Atoi(words[1])
		if err != nil {
			t.Fatalf("the fake driver says %q: %v", line, err)
		}
		if used[words[0]] == nil {
			used[words[0]] = map[int]bool{}
		}
		used[words[0]][gpu] = true
	}
	return used
}

// TestReplayOnTheFakeCUDADriver: one binary, with and without a driver. What the
// allocator decides does not depend on the device.
func TestReplayOnTheFakeCUDADriver(t *testing.T) {
	driver := fakeDriver(t)
	args := []string{"replay", "--json", "--trace", traceFile, "--limit", "200", "--capacity-blocks", "3000",
		"--concurrency", "4", "--publisher", "off", "--device"}
	log := filepath.Join(t.TempDir(), "log")
	run := func(device, options string) *process {
		if err := os.WriteFile(log, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		p := command(t, append(args, device)...)
		p.Cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+driver, "KVC_FAKECUDA="+options, "KVC_FAKECUDA_LOG="+log)
		p.Cmd.Stdout = &p.stdout
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		return p
	}
	host := replay(t, append(args[2:], "host")...)
	for _, c := range []struct {
		device, options, want string
		gpu                   int // that it calls the driver for, or -1
	}{
		{"auto", "", "cuda:0 (fake CUDA device)", 0},
		{"auto", "devices=3", "cuda:0 (fake CUDA device)", 0},
		{"cuda:0", "driver_version=12070", "cuda:0 (fake CUDA device)", 0},
		{"cuda:1", "devices=3,virtual_memory=0,queue_depth=8", "cuda:1 (fake CUDA device 1)", 1},
		{"host", "", "host", -1},
	} {
		p := run(c.device, c.options)
		p.good()
		s := p.summary()
		if s.Device != c.want {
			t.Errorf("--device %s: ran on %q, want %q", c.device, s.Device, c.want)
		}
		used := usedGPUs(t, log)
		want := map[int]bool{c.gpu: true}
		if c.gpu < 0 {
			want = map[int]bool{}
		}
		for _, call := range []string{"cuMemAlloc", "cuEventRecord", "cuStreamCreate"} {
			if !maps.Equal(used[call], want) {
				t.Errorf("--device %s: %s on GPUs %v, want %v", c.device, call, used[call], want)
			}
		}
		for call, gpus := range used {
			for gpu := range gpus {
				if gpu != c.gpu {
					t.Errorf("--device %s: %s on GPU %d", c.device, call, gpu)
				}
			}
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
	p = run("cuda:65536", "")
	p.wantLine(2, "--device cuda:65536: there is no CUDA device 65536: this process sees 1")
	p = run("auto", "init_result=803")
	p.good()
	if s := p.summary(); !strings.Contains(s.Device, "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)") ||
		!strings.HasPrefix(s.Device, "host (") {
		t.Errorf("--device auto with an unusable driver: ran on %q", s.Device)
	}
	// Less memory than the pool takes.
	for _, device := range []string{"cuda:0", "auto"} {
		p = run(device, "memory_bytes=4194304")
		p.wantLine(2, "--capacity-blocks 3000: 3000 pages of 4096 bytes are more than the 4194304 bytes that are free on the device",
			": lower it, or use --device host")
	}
}

// elasticVariable makes this program resize a pool of a GPU, and print what it sees.
const elasticVariable = "KVCAST_TEST_ELASTIC"

// elasticReport is what elasticMain prints.
type elasticReport struct {
	VirtualMemory                       bool
	Shrunk, Back, Beyond                bindings.ResizeResult
	MappedFirst, MappedShrunk, MappedAt uint64
	Failed                              uint64
	OutOfMemory                         bool
	Addresses                           uint64
}

func elasticMain() int {
	report, err := resizeOnGPU()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(report)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// resizeOnGPU takes a pool of 24 pages of 1 MiB down to 8, back, and to 40.
func resizeOnGPU() (r elasticReport, err error) {
	if _, err := bindings.OpenCUDA(); err != nil {
		return r, err
	}
	gpu, err := bindings.CUDAInfo(0)
	if err != nil {
		return r, err
	}
	r.VirtualMemory = gpu.VirtualMemory
	m, err := bindings.NewManager(bindings.Config{Device: bindings.DeviceCUDA, CapacityBlocks: 24, MinBlocks: 8,
		MaxBlocks: 40, PageBytes: 1 << 20})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	memory, err := m.DeviceMemory()
	if err != nil {
		return r, err
	}
	r.Addresses = memory.Bytes
	mapped := func(out *uint64) error {
		stats, err := m.Stats()
		*out, r.Failed = stats.MappedBytes, stats.FailedResizes
		return err
	}
	resize := func(target int, out *bindings.ResizeResult) error {
		for end := time.Now().Add(deadline); time.Now().Before(end); runtime.Gosched() {
			var err error
			if *out, err = m.Resize(target, 100, nil, nil); err != nil || out.Done {
				return err
			}
		}
		return errors.New("the resize has no end")
	}
	if err := errors.Join(mapped(&r.MappedFirst), resize(8, &r.Shrunk), mapped(&r.MappedShrunk),
		resize(24, &r.Back)); err != nil {
		return r, err
	}
	err = resize(40, &r.Beyond)
	if r.OutOfMemory = errors.Is(err, bindings.ErrOutOfMemory); r.OutOfMemory {
		err = nil
	}
	return r, errors.Join(err, mapped(&r.MappedAt))
}

// TestResizeOnTheFakeCUDADriver: an elastic pool, where memory can come and go and where not.
func TestResizeOnTheFakeCUDADriver(t *testing.T) {
	const mib = 1 << 20
	driver := fakeDriver(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, virtual := range []bool{true, false} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
		defer cancel()
		options := "KVC_FAKECUDA=virtual_memory=1"
		want := elasticReport{
			VirtualMemory: true, Addresses: 40 * mib, MappedFirst: 24 * mib, MappedShrunk: 8 * mib, MappedAt: 40 * mib,
			Shrunk: bindings.ResizeResult{TargetPages: 8, TotalPages: 8, Done: true},
			Back:   bindings.ResizeResult{TargetPages: 24, TotalPages: 24, Done: true},
			Beyond: bindings.ResizeResult{TargetPages: 40, TotalPages: 40, Done: true}}
		if !virtual {
			options = "KVC_FAKECUDA=virtual_memory=0"
			want.VirtualMemory, want.OutOfMemory, want.Failed, want.Addresses = false, true, 1, 24*mib
			want.MappedShrunk, want.MappedAt = 24*mib, 24*mib
			want.Beyond = bindings.ResizeResult{TargetPages: 24, TotalPages: 24, Done: true}
		}
		child := exec.CommandContext(ctx, program)
		child.Env = append(os.Environ(), elasticVariable+"=1", "LD_LIBRARY_PATH="+driver, options)
		child.Stderr = os.Stderr
		out, err := child.Output()
		if err != nil {
			t.Fatalf("virtual memory %t: %v", virtual, err)
		}
		var got elasticReport
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		doctor := command(t, "doctor", "--json")
		doctor.Cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+driver, options)
		doctor.Cmd.Stdout = &doctor.stdout
		if err := doctor.Start(); err != nil {
			t.Fatal(err)
		}
		doctor.good()
		var facts struct {
			Device struct {
				Auto          string `json:"auto"`
				VirtualMemory *bool  `json:"virtual_memory"`
			} `json:"device"`
		}
		if err := json.Unmarshal(doctor.stdout.Bytes(), &facts); err != nil {
			t.Fatal(err)
		}
		if d := facts.Device; d.Auto != "cuda:0" || d.VirtualMemory == nil || *d.VirtualMemory != virtual {
			t.Errorf("doctor says %+v", d)
		}
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
