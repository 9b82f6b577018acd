// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package consumer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	module  = "github.com/kvcast/kvcast"
	version = "v0.1.1-consumer.1"
)

// newModule makes a module of another project, which requires this one.
func newModule(t *testing.T, more string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "main.go"), read(t, "testdata/gomodule/main.go"))
	write(t, filepath.Join(dir, "go.mod"),
		fmt.Sprintf("module example.org/consumer\n\ngo 1.25.0\n\nrequire %s %s\n%s", module, version, more))
	return dir
}

// newProxy packs this repository as a module and makes a proxy of files that serves it. Others come from the files
// that the module cache holds; nothing is asked over the network.
func newProxy(t *testing.T) (env []string) {
	t.Helper()
	proxy := t.TempDir()
	dir := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	write(t, filepath.Join(dir, "list"), version+"\n")
	write(t, filepath.Join(dir, version+".info"), fmt.Sprintf(`{"Version":%q,"Time":"2025-01-01T00:00:00Z"}`, version))
	write(t, filepath.Join(dir, version+".mod"), read(t, filepath.Join(root, "go.mod")))
	writeZip(t, filepath.Join(dir, version+".zip"), module+"@"+version)
	return append(offline(),
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(modCache(t), "cache", "download"),
		"GOMODCACHE="+t.TempDir())
}

func modCache(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(command(t, root, nil, "go", "env", "GOMODCACHE"))
}

// offline is the environment of builds that ask nobody; unoptimised, the C++ takes half the time.
func offline() []string {
	return []string{"CGO_CXXFLAGS=-O0", "GOWORK=off", "GOTOOLCHAIN=local", "GOPROXY=off", "GOSUMDB=off", "GONOSUMDB=*", "GOFLAGS=-mod=mod -modcacherw"}
}

// buildAndRun builds the module's program with those further environment settings and flags, and runs it.
func buildAndRun(t *testing.T, dir string, env []string, flags ...string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	args := append([]string{"build", "-p", "2", "-o", program}, flags...)
	command(t, dir, env, "go", append(args, ".")...)
	run(t, program)
}

func TestModuleFromProxyThenVendored(t *testing.T) {
	slow(t)
	dir := newModule(t, "")
	env := newProxy(t)
	buildAndRun(t, dir, env)

	command(t, dir, env, "go", "mod", "vendor")
	vendored := filepath.Join(dir, "vendor", filepath.FromSlash(module))
	for _, file := range []string{"native/unity.cpp", "native/src/manager.cpp", "native/include/kvcast/kvcast.h", "sink/src/projector.cpp"} {
		if got := read(t, filepath.Join(vendored, file)); got != read(t, filepath.Join(root, file)) {
			t.Errorf("vendored %s differs", file)
		}
	}
	// From here on there is neither a proxy nor a module cache.
	alone := append(env, "GOPROXY=off", "GOMODCACHE="+t.TempDir())
	t.Run("vendored, without GOFLAGS", func(t *testing.T) { buildAndRun(t, dir, append(alone, "GOFLAGS=")) })
	t.Run("vendored, with -mod=vendor", func(t *testing.T) {
		buildAndRun(t, dir, append(alone, "GOFLAGS=-buildvcs=false"), "-mod=vendor")
	})

	// What vendoring leaves out must be missed: else the check above proves nothing.
	if err := os.Remove(filepath.Join(vendored, "native", "src", "manager.cpp")); err != nil {
		t.Fatal(err)
	}
	if out, err := try(dir, append(alone, "GOFLAGS="), "go", "build", "-o", os.DevNull, "."); err == nil || !strings.Contains(out, "manager.cpp") {
		t.Errorf("built without native/src/manager.cpp: %v\n%s", err, out)
	}
}

func TestModuleReplaced(t *testing.T) {
	slow(t)
	sourceFiles(t)
	dir := newModule(t, fmt.Sprintf("\nreplace %s => %s\n", module, absRoot(t)))
	buildAndRun(t, dir, offline())
}
