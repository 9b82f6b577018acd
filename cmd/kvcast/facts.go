// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/cgo"
	"github.com/kvcast/kvcast/cuda/inventory"
	"github.com/kvcast/kvcast/publisher/subscribe"
)

// sha256Lanes is how many chains of keys the library computes side by side,
// kSha256Lanes of native/src/sha256.h.
const sha256Lanes = 4

// facts are what doctor finds out; the JSON names are part of the command
// line's interface. A nil limit means that there is none.
type facts struct {
	Kvcast  kvcastFacts  `json:"kvcast"`
	CPU     cpuFacts     `json:"cpu"`
	SHA256  sha256Facts  `json:"sha256"`
	Libzmq  libzmqFacts  `json:"libzmq"`
	Memory  memoryFacts  `json:"memory"`
	Limits  limitFacts   `json:"limits"`
	NVIDIA  nvidiaFacts  `json:"nvidia"`
	Device  deviceFacts  `json:"device"`
	SelfRun selfRunFacts `json:"self_test"`
}

type kvcastFacts struct {
	Version string `json:"version"`
	// ABIVersion is that of the library, WantedABIVersion that of this program.
	ABIVersion       uint32 `json:"abi_version"`
	WantedABIVersion uint32 `json:"wanted_abi_version"`
	Go               string `json:"go"`
	Platform         string `json:"platform"`
}

// cpuFacts has the instructions that the library's choice of SHA-256 looks at.
type cpuFacts struct {
	Model string `json:"model"`
	// Processors may be used by this process; GOMAXPROCS is lower where a
	// control group grants less than that.
	Processors int  `json:"processors"`
	GOMAXPROCS int  `json:"gomaxprocs"`
	SSSE3      bool `json:"ssse3"`
	SSE41      bool `json:"sse4_1"`
	SHANI      bool `json:"sha_ni"`
}

type sha256Facts struct {
	Implementation string `json:"implementation"`
	Lanes          int    `json:"lanes"`
}

type libzmqFacts struct {
	Version string `json:"version"`
	CURVE   bool   `json:"curve"`
}

type memoryFacts struct {
	TotalBytes     uint64  `json:"total_bytes"`
	AvailableBytes uint64  `json:"available_bytes"`
	CgroupLimit    *uint64 `json:"cgroup_limit_bytes"`
	// HugePages is always, madvise or never; empty without support.
	HugePages string `json:"transparent_hugepages"`
}

type limitFacts struct {
	Memlock      *uint64 `json:"memlock_bytes"`
	OpenFiles    *uint64 `json:"open_files"`
	AddressSpace *uint64 `json:"address_space_bytes"`
}

type nvidiaFacts struct {
	// Error is why nothing is known, empty if the driver has answered.
	Error         string     `json:"error"`
	DriverVersion string     `json:"driver_version"`
	CUDAVersion   string     `json:"cuda_version"`
	GPUs          []gpuFacts `json:"gpus"`
}

type gpuFacts struct {
	Index             int    `json:"index"`
	Name              string `json:"name"`
	UUID              string `json:"uuid"`
	PCIBusID          string `json:"pci_bus_id"`
	MemoryBytes       uint64 `json:"memory_bytes"`
	ComputeCapability string `json:"compute_capability"`
}

type deviceFacts struct {
	Auto   string `json:"auto"`
	Reason string `json:"reason"`
	// VirtualMemory: pools of the GPU that was chosen can grow and shrink.
	VirtualMemory *bool `json:"virtual_memory"`
}

type selfRunFacts struct {
	Passed bool   `json:"passed"`
	Error  string `json:"error"`
}

// gather reads all facts but that of the self-test. root is the root of the
// file system, list is inventory.List, open is openCUDA.
func gather(root fs.FS, list func() (*inventory.Inventory, error),
	open func(int) (bindings.CUDADevice, error)) facts {
	f := facts{
		Kvcast: kvcastFacts{
			Version:          cgo.Version(),
			ABIVersion:       cgo.LinkedABIVersion(),
			WantedABIVersion: cgo.ABIVersion,
			Go:               runtime.Version(),
			Platform:         runtime.GOOS + "/" + runtime.GOARCH,
		},
		CPU:    readCPU(root),
		SHA256: sha256Facts{cgo.SHA256Backend(), sha256Lanes},
		Libzmq: libzmqFacts{subscribe.ZMQVersion(), subscribe.ZMQHasCurve()},
		Memory: readMemory(root),
		Limits: limitFacts{
			Memlock:      softLimit(unix.RLIMIT_MEMLOCK),
			OpenFiles:    softLimit(unix.RLIMIT_NOFILE),
			AddressSpace: softLimit(unix.RLIMIT_AS),
		},
		NVIDIA: nvidiaFacts{GPUs: []gpuFacts{}},
	}
	inv, err := list()
	f.Device.Auto, f.Device.Reason = autoDevice(inv, err, func(ordinal int) (bindings.CUDADevice, error) {
		gpu, err := open(ordinal)
		if err == nil {
			f.Device.VirtualMemory = &gpu.VirtualMemory
		}
		return gpu, err
	})
	if err != nil {
		f.NVIDIA.Error = err.Error()
		return f
	}
	f.NVIDIA.DriverVersion, f.NVIDIA.CUDAVersion = inv.DriverVersion, inv.CUDAVersion
	for _, g := range inv.GPUs {
		f.NVIDIA.GPUs = append(f.NVIDIA.GPUs, gpuFacts{g.Index, g.Name, g.UUID, g.PCIBusID, g.MemoryBytes,
			strconv.Itoa(g.ComputeMajor) + "." + strconv.Itoa(g.ComputeMinor)})
	}
	return f
}

// softLimit is the limit that holds now.
func softLimit(resource int) *uint64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(resource, &l); err != nil || l.Cur == unix.RLIM_INFINITY {
		return nil
	}
	return &l.Cur
}

// fields reads lines of the form "name: value"; it is nil where the file cannot
// be read.
func fields(root fs.FS, name string) map[string]string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return nil
	}
	found := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		key, value, ok := strings.Cut(line, ":")
		if key = strings.TrimSpace(key); !ok {
			continue
		}
		// Of processors that are listed one by one the first one speaks for all.
		if _, seen := found[key]; !seen {
			found[key] = strings.TrimSpace(value)
		}
	}
	return found
}

func readCPU(root fs.FS) cpuFacts {
	info := fields(root, "proc/cpuinfo")
	flags := strings.Fields(info["flags"])
	return cpuFacts{
		Model:      info["model name"],
		Processors: runtime.NumCPU(),
		GOMAXPROCS: runtime.GOMAXPROCS(0),
		SSSE3:      slices.Contains(flags, "ssse3"),
		SSE41:      slices.Contains(flags, "sse4_1"),
		SHANI:      slices.Contains(flags, "sha_ni"),
	}
}

func readMemory(root fs.FS) memoryFacts {
	info := fields(root, "proc/meminfo")
	kilobytes := func(name string) uint64 {
		n, err := strconv.ParseUint(strings.TrimSuffix(info[name], " kB"), 10, 53)
		if err != nil {
			return 0
		}
		return n << 10
	}
	m := memoryFacts{
		TotalBytes:     kilobytes("MemTotal"),
		AvailableBytes: kilobytes("MemAvailable"),
		CgroupLimit:    cgroupLimit(root, kilobytes("MemTotal")),
	}
	// The chosen word is in brackets: always [madvise] never.
	b, _ := fs.ReadFile(root, "sys/kernel/mm/transparent_hugepage/enabled")
	if _, after, ok := strings.Cut(string(b), "["); ok {
		m.HugePages, _, _ = strings.Cut(after, "]")
	}
	return m
}

// cgroupLimit is the lowest memory limit of the control groups of this process,
// nil if none is below the memory of the machine. Version 1 writes a huge number
// where there is no limit. In a container the path of the group may be that of
// the host and not exist here; then the mount's own root is the group.
func cgroupLimit(root fs.FS, total uint64) *uint64 {
	b, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	var lowest *uint64
	for line := range strings.Lines(string(b)) {
		// ID:CONTROLLERS:PATH, for version 2 0::PATH.
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var mount, file string
		switch {
		case parts[0] == "0" && parts[1] == "":
			mount, file = "sys/fs/cgroup", "memory.max"
		case slices.Contains(strings.Split(parts[1], ","), "memory"):
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			text, err := fs.ReadFile(root, path.Join(mount, group, file))
			if err == nil {
				n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64) // "max" is none
				if err == nil && (total == 0 || n < total) && (lowest == nil || n < *lowest) {
					lowest = &n
				}
			}
			if group == "/" {
				break
			}
		}
	}
	return lowest
}
