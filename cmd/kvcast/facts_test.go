// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"testing/fstest"
)

// tree is a file system of the given files.
func tree(files map[string]string) fstest.MapFS {
	t := make(fstest.MapFS)
	for name, text := range files {
		t[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return t
}

func TestCgroupLimit(t *testing.T) {
	const total = 64 << 30
	for name, c := range map[string]struct {
		files map[string]string
		want  uint64 // 0 = none
	}{
		"no groups": {nil, 0},
		"v2, container": {map[string]string{"proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "1000000\n"}, 1000000},
		"v2, none": {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 0},
		"v2, own": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "max\n",
			"sys/fs/cgroup/a/b/memory.max": "5000\n"}, 5000},
		"v2, parent": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "4000\n",
			"sys/fs/cgroup/a/b/memory.max": "5000\n"}, 4000},
		"v2, path of the host": {map[string]string{"proc/self/cgroup": "0::/../../x\n",
			"sys/fs/cgroup/memory.max": "3000\n"}, 3000},
		"v1": {map[string]string{"proc/self/cgroup": "7:cpu,memory:/j\n1:name=systemd:/k\n0::/\n",
			"sys/fs/cgroup/memory/j/memory.limit_in_bytes": "2000\n",
			"sys/fs/cgroup/memory/k/memory.limit_in_bytes": "1\n"}, 2000},
		"v1, none": {map[string]string{"proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		"all of the machine": {map[string]string{"proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": strconv.Itoa(total)}, 0},
		"malformed": {map[string]string{"proc/self/cgroup": "memory\n\n4:cpu:/\n", "sys/fs/cgroup/memory.max": "7"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := cgroupLimit(tree(c.files), total)
			switch {
			case got == nil && c.want != 0, got != nil && *got != c.want:
				t.Errorf("got %v, want %d", bytesText(got), c.want)
			}
		})
	}
}

func TestReadMemory(t *testing.T) {
	got := readMemory(tree(map[string]string{
		"proc/meminfo": "MemTotal:       1024 kB\nMemFree:  3 kB\nMemAvailable:    512 kB\n",
		"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
	}))
	if got != (memoryFacts{1 << 20, 1 << 19, nil, "never"}) {
		t.Errorf("got %+v", got)
	}
	if got := readMemory(tree(nil)); got != (memoryFacts{}) {
		t.Errorf("from nothing: %+v", got)
	}
}

func TestReadCPU(t *testing.T) {
	got := readCPU(tree(map[string]string{"proc/cpuinfo": "processor\t: 0\nmodel name\t: A: b\nflags\t\t: fpu ssse3 sha_ni\n\n" +
		"processor\t: 1\nmodel name\t: C\nflags\t\t: sse4_1\n"}))
	if got.Model != "A: b" || !got.SSSE3 || got.SSE41 || !got.SHANI || got.Processors < 1 || got.GOMAXPROCS < 1 {
		t.Errorf("got %+v", got)
	}
	if got := readCPU(tree(nil)); got.Model != "" || got.SSSE3 || got.SHANI {
		t.Errorf("from nothing: %+v", got)
	}
}

// The number of lanes is the library's.
func TestSHA256Lanes(t *testing.T) {
	header, err := os.ReadFile("../../native/src/sha256.h")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`kSha256Lanes = (\d+);`).FindSubmatch(header)
	if m == nil || string(m[1]) != strconv.Itoa(sha256Lanes) {
		t.Errorf("sha256.h has %q, doctor says %d", m, sha256Lanes)
	}
}
