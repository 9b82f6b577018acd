// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/cuda/inventory"
)

func pointer[T any](v T) *T { return &v }

// goodFacts are those of a machine that lacks nothing.
func goodFacts() facts {
	return facts{
		Kvcast: kvcastFacts{"1.2.3", 7, 7, "go1.99", "linux/amd64"},
		CPU:    cpuFacts{"Big CPU", 64, 64, true, true, true},
		SHA256: sha256Facts{"sha-ni", 4},
		Libzmq: libzmqFacts{"4.3.4", true},
		Memory: memoryFacts{512 << 30, 500<<30 + 512<<20, nil, "madvise"},
		Limits: limitFacts{nil, pointer(uint64(1 << 20)), nil},
		NVIDIA: nvidiaFacts{"", "550.54.15", "12.4", []gpuFacts{
			{0, "NVIDIA H200", "GPU-a", "00000000:0A:00.0", 141 << 30, "9.0"},
			{1, "NVIDIA GB10", "GPU-b", "00000000:0B:00.0", 0, "12.1"}}},
		Device: deviceFacts{"host", "NVIDIA GPU present, but too old", nil},
	}
}

// poorFacts are those of a machine on which everything is limiting.
func poorFacts() facts {
	f := goodFacts()
	f.CPU = cpuFacts{"Small\x1b CPU", 2, 1, true, false, false}
	f.SHA256.Implementation = "portable"
	f.Libzmq.CURVE = false
	f.Memory = memoryFacts{1 << 30, 1 << 29, pointer(uint64(100 << 20)), "never"}
	f.Limits = limitFacts{pointer(uint64(8 << 20)), pointer(uint64(256)), pointer(uint64(1<<30 + 1<<29))}
	return f
}

// withoutNVML gives f what gather says where NVML says no.
func withoutNVML(f *facts, why error, open func(int) (bindings.CUDADevice, error)) {
	err := &inventory.Error{Op: "init", Err: why}
	f.NVIDIA = nvidiaFacts{Error: err.Error(), GPUs: []gpuFacts{}}
	f.Device.Auto, f.Device.Reason = autoDevice(nil, err, open)
}

func pass(context.Context) error { return nil }

func TestDoctorPrints(t *testing.T) {
	for name, c := range map[string]struct {
		f    facts
		try  func(context.Context) error
		want string
	}{
		"good": {goodFacts(), pass, `
kvcast        1.2.3, ABI 7, go1.99, linux/amd64
cpu           Big CPU, 64 processors
sha-256       sha-ni, 4 chains side by side (SSSE3, SSE4.1, SHA-NI)
libzmq        4.3.4, with CURVE
memory        512.0 GiB, 500.5 GiB available
huge pages    madvise
memlock       unlimited
open files    1,048,576
address space unlimited
nvidia        driver 550.54.15, CUDA up to 12.4, 2 GPUs
  GPU 0       NVIDIA H200, 141.0 GiB, compute capability 9.0, 00000000:0A:00.0, GPU-a
  GPU 1       NVIDIA GB10, memory not told, compute capability 12.1, 00000000:0B:00.0, GPU-b
device auto   host (NVIDIA GPU present, but too old)
self-test     passed: one block from the allocator to a socket
`},
		"poor": {poorFacts(), func(context.Context) error { return errors.New("no\nluck") }, `
kvcast        1.2.3, ABI 7, go1.99, linux/amd64
cpu           Small  CPU, 2 processors (GOMAXPROCS 1)
              -> allocator and publisher take turns on one processor; two let them work side by side
sha-256       portable, 4 chains side by side (SSSE3, no SSE4.1, no SHA-NI)
              -> without SHA instructions the publisher needs several times as long per block; the scheduler does not
libzmq        4.3.4, without CURVE
memory        1.0 GiB, 512.0 MiB available, limited to 100.0 MiB by the control group
              -> little: choose a small --capacity-blocks and --sink-blocks, or raise the limit
huge pages    never
              -> large pools are slower without: echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
memlock       8.0 MiB
              -> too small for pinned memory: ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)
open files    256
              -> each subscriber takes one: ulimit -n 65536 (systemd: LimitNOFILE=65536)
address space 1.5 GiB
              -> more is reserved than used: ulimit -v unlimited (systemd: LimitAS=infinity)
nvidia        driver 550.54.15, CUDA up to 12.4, 2 GPUs
  GPU 0       NVIDIA H200, 141.0 GiB, compute capability 9.0, 00000000:0A:00.0, GPU-a
  GPU 1       NVIDIA GB10, memory not told, compute capability 12.1, 00000000:0B:00.0, GPU-b
device auto   host (NVIDIA GPU present, but too old)
self-test     no luck
PROBLEM       self-test: no luck
`},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := doctor(t.Context(), c.f, c.try, false, streams{&out, nil})
			if got := out.String(); got != c.want[1:] {
				t.Errorf("got\n%swant%s", got, c.want)
			}
			if (name == "poor") != (err != nil) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// One thing at a time: what is advice, what makes kvcast unusable, and where the
// self-test would be of no use.
func TestDoctorJudges(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*facts)
		advice  []string
		problem string
		untried bool
	}{
		"nothing":          {change: func(*facts) {}},
		"one processor":    {change: func(f *facts) { f.CPU.GOMAXPROCS = 1 }, advice: []string{"cpu"}},
		"portable":         {change: func(f *facts) { f.SHA256.Implementation = "portable" }, advice: []string{"sha256"}},
		"little memory":    {change: func(f *facts) { f.Memory.TotalBytes = 255 << 20 }, advice: []string{"memory"}},
		"unknown memory":   {change: func(f *facts) { f.Memory.TotalBytes = 0 }},
		"little allowance": {change: func(f *facts) { f.Memory.CgroupLimit = pointer(uint64(1)) }, advice: []string{"memory"}},
		"large allowance":  {change: func(f *facts) { f.Memory.CgroupLimit = pointer(uint64(1 << 30)) }},
		"no huge pages":    {change: func(f *facts) { f.Memory.HugePages = "never" }, advice: []string{"transparent_hugepages"}},
		"memlock":          {change: func(f *facts) { f.Limits.Memlock = pointer(uint64(64 << 10)) }, advice: []string{"memlock"}},
		// Nothing is pinned without a GPU.
		"memlock, no GPU": {change: func(f *facts) {
			f.Limits.Memlock, f.NVIDIA.GPUs = pointer(uint64(64<<10)), nil
		}},
		"open files":     {change: func(f *facts) { f.Limits.OpenFiles = pointer(uint64(1023)) }, advice: []string{"open_files"}},
		"no limit there": {change: func(f *facts) { f.Limits.OpenFiles = nil }},
		"too few files": {change: func(f *facts) { f.Limits.OpenFiles = pointer(uint64(63)) },
			problem: "only 63 open files are allowed; ulimit -n 65536", untried: true},
		"address space": {change: func(f *facts) { f.Limits.AddressSpace = pointer(uint64(1 << 31)) }, advice: []string{"address_space"}},
		"permission":    {change: func(f *facts) { withoutNVML(f, inventory.ErrNoPermission, absent) }, advice: []string{"nvidia"}},
		"permission, and no use of the driver": {change: func(f *facts) { withoutNVML(f, inventory.ErrNoPermission, noCUDA) },
			advice: []string{"nvidia"}},
		"no driver": {change: func(f *facts) { withoutNVML(f, inventory.ErrNoDriver, absent) }},
		// Who reads of it may think that it is the cause.
		"no NVML, and no use of the driver": {change: func(f *facts) { withoutNVML(f, inventory.ErrNoLibrary, noCUDA) },
			advice: []string{"nvidia"}},
		"no NVML":                    {change: func(f *facts) { withoutNVML(f, inventory.ErrNoLibrary, twoGPUs) }, advice: []string{"nvidia"}},
		"memory that comes and goes": {change: func(f *facts) { f.Device.VirtualMemory = pointer(true) }},
		"memory that stays":          {change: func(f *facts) { f.Device.VirtualMemory = pointer(false) }, advice: []string{"device"}},
		"other library": {change: func(f *facts) { f.Kvcast.ABIVersion = 8 },
			problem: "the library has ABI 8, this program needs 7", untried: true},
		"old libzmq":     {change: func(f *facts) { f.Libzmq.Version = "4.1.8" }, problem: "libzmq 4.1.8 is older than 4.2", untried: true},
		"older libzmq":   {change: func(f *facts) { f.Libzmq.Version = "3.10.0" }, problem: "libzmq 3.10.0 is older than 4.2", untried: true},
		"new libzmq":     {change: func(f *facts) { f.Libzmq.Version = "5.0.0" }},
		"strange libzmq": {change: func(f *facts) { f.Libzmq.Version = "x" }, problem: "libzmq x is older than 4.2", untried: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := goodFacts()
			c.change(&f)
			tried := false
			var out bytes.Buffer
			err := doctor(t.Context(), f, func(context.Context) error { tried = true; return nil }, true, streams{&out, nil})
			var d diagnosis
			if e := json.Unmarshal(out.Bytes(), &d); e != nil {
				t.Fatal(e)
			}
			var advised []string
			for _, a := range d.Advice {
				advised = append(advised, a.Finding)
			}
			if !slices.Equal(advised, c.advice) {
				t.Errorf("advice on %q, want %q", advised, c.advice)
			}
			if tried == c.untried || d.SelfRun.Passed != tried {
				t.Errorf("tried: %t, passed: %t", tried, d.SelfRun.Passed)
			}
			if c.problem == "" {
				if err != nil || !d.Usable || len(d.Problems) != 0 {
					t.Errorf("got %v, %+v", err, d)
				}
			} else if err == nil || err.Error() != "cannot work here: "+c.problem || d.Usable ||
				!slices.Equal(d.Problems, []string{c.problem}) {
				t.Errorf("got %v, %+v", err, d)
			}
			// Each piece of advice has its row.
			out.Reset()
			d.print(&out)
			if n := strings.Count(out.String(), "-> "); n != len(c.advice) {
				t.Errorf("%d pieces of advice in\n%s", n, &out)
			}
		})
	}
}

// The names are part of the interface: nothing is renamed by accident.
func TestDoctorJSONKeys(t *testing.T) {
	var keys func(prefix string, v any) []string
	keys = func(prefix string, v any) (list []string) {
		switch v := v.(type) {
		case map[string]any:
			for k, inner := range v {
				list = append(list, keys(prefix+"."+k, inner)...)
			}
		case []any:
			for _, inner := range v[:min(1, len(v))] {
				list = append(list, keys(prefix+"[]", inner)...)
			}
			if len(v) == 0 {
				list = append(list, prefix+"[]")
			}
		default:
			list = append(list, prefix)
		}
		slices.Sort(list)
		return list
	}
	var out bytes.Buffer
	f := poorFacts()
	f.Limits.OpenFiles = pointer(uint64(100))
	doctor(t.Context(), f, pass, true, streams{&out, nil})
	if strings.Count(out.String(), "\n") != 1 {
		t.Errorf("not one line: %q", out.String())
	}
	var object any
	if err := json.Unmarshal(out.Bytes(), &object); err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(`
		.advice[].advice .advice[].finding
		.cpu.gomaxprocs .cpu.model .cpu.processors .cpu.sha_ni .cpu.sse4_1 .cpu.ssse3
		.device.auto .device.reason .device.virtual_memory
		.kvcast.abi_version .kvcast.go .kvcast.platform .kvcast.version .kvcast.wanted_abi_version
		.libzmq.curve .libzmq.version
		.limits.address_space_bytes .limits.memlock_bytes .limits.open_files
		.memory.available_bytes .memory.cgroup_limit_bytes .memory.total_bytes .memory.transparent_hugepages
		.nvidia.cuda_version .nvidia.driver_version .nvidia.error
		.nvidia.gpus[].compute_capability .nvidia.gpus[].index .nvidia.gpus[].memory_bytes .nvidia.gpus[].name
		.nvidia.gpus[].pci_bus_id .nvidia.gpus[].uuid
		.problems[] .self_test.error .self_test.passed .sha256.implementation .sha256.lanes .usable`)
	if got := keys("", object); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// On this machine: what is found has the shape of a finding, and one block
// really gets through.
func TestDoctorHere(t *testing.T) {
	code, out, text := runCommand(t.Context(), "doctor", "--json")
	var d diagnosis
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != exitGood || text != "" {
		t.Fatalf("%d, %q, %v in %s", code, text, err, out)
	}
	if !d.Usable || !d.SelfRun.Passed || d.Kvcast.ABIVersion != d.Kvcast.WantedABIVersion || d.CPU.Processors < 1 ||
		d.Memory.TotalBytes < d.Memory.AvailableBytes || d.Memory.AvailableBytes == 0 || d.Device.Auto == "" {
		t.Errorf("got %+v", d)
	}
	if all := d.CPU.SSSE3 && d.CPU.SSE41 && d.CPU.SHANI; all != (d.SHA256.Implementation == "sha-ni") {
		t.Errorf("%s with %+v", d.SHA256.Implementation, d.CPU)
	}
	code, out, text = runCommand(t.Context(), "doctor")
	if code != exitGood || text != "" || !strings.Contains(out, "\nself-test     passed") {
		t.Errorf("%d, %q, %s", code, text, out)
	}
}

// A test that is ended says so.
func TestSelfTestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := selfTest(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestDoctorToFullDevice(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, args := range [][]string{{"doctor"}, {"doctor", "--json"}} {
		var text bytes.Buffer
		if code := run(t.Context(), args, streams{full, &text}); code != exitUnusable ||
			text.String() != "kvcast: standard output: no space left on device\n" {
			t.Errorf("%v: %d, %q", args, code, text.String())
		}
	}
	// The failed write is what is said, not what it would have said.
	f := goodFacts()
	f.Libzmq.Version = "4.1.0"
	if err := doctor(t.Context(), f, pass, false, streams{full, nil}); err == nil ||
		err.Error() != "standard output: no space left on device" {
		t.Errorf("got %v", err)
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536 << 20: "1.5 GiB", 1 << 62: "4194304.0 TiB"} {
		if got := bytesText(&n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
	if got := bytesText(nil); got != "unlimited" {
		t.Errorf("nil: got %s", got)
	}
}

// What the GPU that was chosen can do, and nothing where none was.
func TestDoctorTellsOfVirtualMemory(t *testing.T) {
	list := func() (*inventory.Inventory, error) { return &inventory.Inventory{}, nil }
	for _, has := range []bool{false, true} {
		f := gather(os.DirFS("/"), list, func(int) (bindings.CUDADevice, error) {
			return bindings.CUDADevice{Name: "x", VirtualMemory: has}, nil
		})
		if want := (deviceFacts{"cuda:0", "x", &has}); !reflect.DeepEqual(f.Device, want) {
			t.Errorf("got %+v, want %+v", f.Device, want)
		}
	}
	if f := gather(os.DirFS("/"), list, noCUDA); f.Device.Auto != "host" || f.Device.VirtualMemory != nil {
		t.Errorf("no GPU: got %+v", f.Device)
	}
}

// Both commands decide alike.
func TestDoctorAgreesWithReplay(t *testing.T) {
	for _, list := range []func() (*inventory.Inventory, error){
		func() (*inventory.Inventory, error) { return nil, &inventory.Error{Op: "init", Err: inventory.ErrNVML} },
		func() (*inventory.Inventory, error) {
			return &inventory.Inventory{GPUs: []inventory.GPU{{Name: "x", ComputeMajor: 9}}}, nil
		},
	} {
		f := gather(os.DirFS("/"), list, noCUDA)
		if got, err := chooseDevice("auto", list, noCUDA); err != nil || got.text != f.Device.Auto+" ("+f.Device.Reason+")" {
			t.Errorf("replay says %q, %v; doctor %+v", got, err, f.Device)
		}
		inv, err := list()
		if (err != nil) != (f.NVIDIA.Error != "") {
			t.Errorf("%v gives %+v", err, f.NVIDIA)
		}
		if inv != nil && !reflect.DeepEqual(f.NVIDIA.GPUs, []gpuFacts{{Name: "x", ComputeCapability: "9.0"}}) {
			t.Errorf("got %+v", f.NVIDIA.GPUs)
		}
	}
}
