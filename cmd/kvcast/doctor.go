// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/cuda/inventory"
	"github.com/kvcast/kvcast/publisher"
)

const (
	// minLibzmq is the first version whose XPUB reports every subscriber (XPUB_VERBOSER).
	minLibzmqMajor, minLibzmqMinor = 4, 2
	// minOpenFiles is what the tool itself needs; with fewer libzmq ends the
	// process when it makes its threads.
	minOpenFiles = 64
	// fewOpenFiles are soon used up by subscribers, each of which takes one.
	fewOpenFiles = 1024
	// smallMemlock is less than a pinned host tier is worth having for.
	smallMemlock = 1 << 30
	// smallMemory is not much more than a replay with default flags takes.
	smallMemory = 256 << 20
	// smallAddressSpace: the Go runtime and the threads' stacks reserve far
	// more than they use.
	smallAddressSpace = 4 << 30
)

// advice is a word on one finding that limits what can be done here.
type advice struct {
	// Finding is the JSON path of the fact.
	Finding string `json:"finding"`
	Text    string `json:"advice"`
}

// diagnosis is what "doctor --json" prints.
type diagnosis struct {
	// Usable says that kvcast can work here; Problems are why not.
	Usable   bool     `json:"usable"`
	Problems []string `json:"problems"`
	Advice   []advice `json:"advice"`
	facts
}

func newDoctor(std streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine has, what would be chosen here and why",
		Long: `Say what this machine has, what would be chosen here and why, with a word of
advice where something is limiting. A short run of allocator and publisher on
the loopback interface is part of it.

The exit code is 0, or 2 where kvcast cannot work.`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return doctor(cmd.Context(), gather(os.DirFS("/"), inventory.List, openCUDA), selfTest, asJSON, std)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object; null = no limit, or not known")
	return cmd
}

func doctor(ctx context.Context, f facts, try func(context.Context) error, asJSON bool, std streams) error {
	d := diagnose(ctx, f, try)
	var err error
	if asJSON {
		err = printJSON(std.out, d)
	} else {
		err = d.print(std.out)
	}
	if err == nil && !d.Usable {
		err = fmt.Errorf("cannot work here: %s", strings.Join(d.Problems, "; "))
	}
	return err
}

// selfTest takes one block from the allocator to a bound socket.
func selfTest(ctx context.Context) (err error) {
	stream, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	manager, err := bindings.NewManager(bindings.Config{TokensPerBlock: 1, CapacityBlocks: 1, Stream: stream})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, manager.Close()) }()
	options := publisher.DefaultOptions()
	options.Endpoint = "tcp://127.0.0.1:0"
	p, err := publisher.New(options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := p.Attach(stream); err != nil {
		return err
	}
	if err := p.Start(ctx); err != nil {
		return err
	}
	sequence, err := manager.Open(bindings.Prompt{Tokens: []uint32{1}})
	if err != nil {
		return err
	}
	if _, err = sequence.Grow(1); err == nil {
		_, err = sequence.Commit([]uint32{1})
	}
	if err := errors.Join(err, sequence.Release()); err != nil {
		return err
	}
	if err := p.Flush(ctx); err != nil {
		return err
	}
	// The clear of the start and the block.
	if got := p.Stats().PublishedEvents; got != 2 {
		return fmt.Errorf("%d events were published, want 2", got)
	}
	return nil
}

// diagnose judges the facts; try is run unless it is bound to fail.
func diagnose(ctx context.Context, f facts, try func(context.Context) error) *diagnosis {
	d := &diagnosis{Problems: []string{}, Advice: []advice{}, facts: f}
	problem := func(format string, args ...any) { d.Problems = append(d.Problems, fmt.Sprintf(format, args...)) }
	advise := func(finding, text string) { d.Advice = append(d.Advice, advice{finding, text}) }

	if f.Kvcast.ABIVersion != f.Kvcast.WantedABIVersion {
		problem("the library has ABI %d, this program needs %d", f.Kvcast.ABIVersion, f.Kvcast.WantedABIVersion)
	}
	if f.CPU.GOMAXPROCS < 2 {
		advise("cpu", "allocator and publisher take turns on one processor; two let them work side by side")
	}
	if f.SHA256.Implementation == "portable" {
		advise("sha256", "without SHA instructions the publisher needs several times as long per block; the scheduler does not")
	}
	if !atLeast(f.Libzmq.Version, minLibzmqMajor, minLibzmqMinor) {
		problem("libzmq %s is older than %d.%d", f.Libzmq.Version, minLibzmqMajor, minLibzmqMinor)
	}
	memory := f.Memory.TotalBytes
	if l := f.Memory.CgroupLimit; l != nil {
		memory = *l
	}
	if memory > 0 && memory < smallMemory {
		advise("memory", "little: choose a small --capacity-blocks and --sink-blocks, or raise the limit")
	}
	if f.Memory.HugePages == "never" {
		advise("transparent_hugepages", "large pools are slower without: echo madvise >/sys/kernel/mm/transparent_hugepage/enabled")
	}
	if l := f.Limits.Memlock; l != nil && *l < smallMemlock && len(f.NVIDIA.GPUs) > 0 {
		advise("memlock", "too small for pinned memory: ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)")
	}
	if l := f.Limits.OpenFiles; l != nil && *l < minOpenFiles {
		problem("only %d open files are allowed; ulimit -n 65536", *l)
	} else if l != nil && *l < fewOpenFiles {
		advise("open_files", "each subscriber takes one: ulimit -n 65536 (systemd: LimitNOFILE=65536)")
	}
	if l := f.Limits.AddressSpace; l != nil && *l < smallAddressSpace {
		advise("address_space", "more is reserved than used: ulimit -v unlimited (systemd: LimitAS=infinity)")
	}
	switch {
	case f.Device.Auto == "host" && strings.Contains(f.NVIDIA.Error, inventory.ErrNoPermission.Error()):
		advise("nvidia", "give this user access to /dev/nvidia*, or the container its devices")
	case f.NVIDIA.Error != "" && f.Device.Reason != noDriver:
		advise("nvidia", "this is of NVML, which only lists GPUs: CUDA works without it")
	}
	if v := f.Device.VirtualMemory; v != nil && !*v {
		advise("device", "no virtual memory management: an elastic pool keeps the memory of its first size, and gets no more")
	}

	if len(d.Problems) > 0 {
		d.SelfRun.Error = "not run"
	} else if err := try(ctx); err != nil {
		d.SelfRun.Error = oneLine(err.Error())
		problem("self-test: %v", err)
	} else {
		d.SelfRun.Passed = true
	}
	d.Usable = len(d.Problems) == 0
	return d
}

// atLeast compares the beginning of MAJOR.MINOR.PATCH.
func atLeast(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, errA := strconv.Atoi(parts[0])
	b, errB := strconv.Atoi(parts[1])
	return errA == nil && errB == nil && (a > major || a == major && b >= minor)
}

// print writes one line per finding, advice below the finding it is about.
func (d *diagnosis) print(w io.Writer) error {
	var b bytes.Buffer
	// finding ties a row to its advice; rows that never have any give "".
	row := func(name, finding, format string, args ...any) {
		fmt.Fprintf(&b, "%-13s %s\n", name, oneLine(fmt.Sprintf(format, args...)))
		for _, a := range d.Advice {
			if finding != "" && a.Finding == finding {
				fmt.Fprintf(&b, "%-13s -> %s\n", "", a.Text)
			}
		}
	}
	row("kvcast", "", "%s, ABI %d, %s, %s", d.Kvcast.Version, d.Kvcast.ABIVersion, d.Kvcast.Go, d.Kvcast.Platform)
	processors := counted(d.CPU.Processors, "processor")
	if d.CPU.GOMAXPROCS != d.CPU.Processors {
		processors += fmt.Sprintf(" (GOMAXPROCS %d)", d.CPU.GOMAXPROCS)
	}
	if d.CPU.Model != "" {
		processors = d.CPU.Model + ", " + processors
	}
	row("cpu", "cpu", "%s", processors)
	row("sha-256", "sha256", "%s, %d chains side by side (%s)", d.SHA256.Implementation, d.SHA256.Lanes,
		have([]string{"SSSE3", "SSE4.1", "SHA-NI"}, d.CPU.SSSE3, d.CPU.SSE41, d.CPU.SHANI))
	curve := "without CURVE"
	if d.Libzmq.CURVE {
		curve = "with CURVE"
	}
	row("libzmq", "", "%s, %s", d.Libzmq.Version, curve)
	memory := fmt.Sprintf("%s, %s available", bytesText(&d.Memory.TotalBytes), bytesText(&d.Memory.AvailableBytes))
	if l := d.Memory.CgroupLimit; l != nil {
		memory += ", limited to " + bytesText(l) + " by the control group"
	}
	row("memory", "memory", "%s", memory)
	hugePages := d.Memory.HugePages
	if hugePages == "" {
		hugePages = "not supported"
	}
	row("huge pages", "transparent_hugepages", "%s", hugePages)
	row("memlock", "memlock", "%s", bytesText(d.Limits.Memlock))
	openFiles := "unlimited"
	if l := d.Limits.OpenFiles; l != nil {
		openFiles = grouped(*l)
	}
	row("open files", "open_files", "%s", openFiles)
	row("address space", "address_space", "%s", bytesText(d.Limits.AddressSpace))
	if d.NVIDIA.Error != "" {
		row("nvidia", "nvidia", "nothing: %s", strings.TrimPrefix(d.NVIDIA.Error, "inventory: "))
	} else {
		row("nvidia", "nvidia", "driver %s, CUDA up to %s, %s", d.NVIDIA.DriverVersion, d.NVIDIA.CUDAVersion,
			counted(len(d.NVIDIA.GPUs), "GPU"))
	}
	for _, g := range d.NVIDIA.GPUs {
		memory := "memory not told"
		if g.MemoryBytes > 0 {
			memory = bytesText(&g.MemoryBytes)
		}
		row(fmt.Sprintf("  GPU %d", g.Index), "", "%s, %s, compute capability %s, %s, %s",
			g.Name, memory, g.ComputeCapability, g.PCIBusID, g.UUID)
	}
	row("device auto", "device", "%s (%s)", d.Device.Auto, d.Device.Reason)
	if d.SelfRun.Passed {
		row("self-test", "", "passed: one block from the allocator to a socket")
	} else {
		row("self-test", "", "%s", d.SelfRun.Error)
	}
	for _, p := range d.Problems {
		row("PROBLEM", "", "%s", p)
	}
	_, err := w.Write(b.Bytes())
	return outputError(err)
}

// counted is "1 GPU" or "2 GPUs".
func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// have lists features by whether they are there.
func have(names []string, there ...bool) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = "no " + name
		if there[i] {
			list[i] = name
		}
	}
	return strings.Join(list, ", ")
}

// bytesText is a size, or the absence of a limit.
func bytesText(n *uint64) string {
	if n == nil {
		return "unlimited"
	}
	size, unit := float64(*n), 0
	for size >= 1024 && unit < 4 {
		size, unit = size/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", *n)
	}
	return fmt.Sprintf("%.1f %s", size, [...]string{"B", "KiB", "MiB", "GiB", "TiB"}[unit])
}
