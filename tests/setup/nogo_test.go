// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// aptScript stands in for apt-get. It takes "install ... golang-go" as far as it can without changing the machine: the
// real packages are downloaded by the real apt-get and unpacked into a folder of the test.
const aptScript = `#!/bin/sh
set -eu
case "$*" in
  *update)
    if [ "$(/usr/bin/id -u)" = 0 ]; then "$APT_GET" -q update; fi # others make do with the lists at hand
    exit ;;
  *" golang-go") ;;
  *) echo "asked for more than golang-go: $*" >&2; exit 1 ;;
esac
if [ -x /usr/bin/go ]; then exit 0; fi # the distribution's golang is installed already
cd "$SCRATCH"
packages=$("$APT_GET" -s install --no-install-recommends golang-go | sed -n 's/^Inst \(golang[^ ]*\) .*/\1/p')
[ -n "$packages" ] || exit 1
"$APT_GET" -q download $packages
for package in *.deb; do dpkg -x "$package" .; done
ln -s "$SCRATCH"/usr/lib/go-*/bin/go "$BIN/go"
`

// Set-up on a machine without Go: the distribution's golang fetches the toolchain module, and what comes out builds
// programs, with cgo too. Nothing outside the test's folders changes, save apt's package lists and go's caches.
func TestWithoutGoOnThePath(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads two Go toolchains")
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("set-up provides Go on linux/amd64 only")
	}
	aptGet, err := exec.LookPath("apt-get")
	if err != nil {
		t.Skip("no apt-get here: ", err)
	}

	root, bin, scratch := t.TempDir(), t.TempDir(), t.TempDir()
	copyScripts(t, root)
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(aptScript), 0o755); err != nil {
		t.Fatal(err)
	}
	// Root by word only: the stand-in for apt-get needs no rights.
	if err := os.WriteFile(filepath.Join(bin, "id"), []byte("#!/bin/sh\necho 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"KVC_SETUP_GO_CANDIDATES=", "SCRATCH=" + scratch, "BIN=" + bin, "APT_GET=" + aptGet}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		// The go command sets GOROOT and its like for the tests that it runs; they would mislead another go.
		if name == "PATH" || name == "GOROOT" || name == "GOTOOLCHAIN" || name == "GOFLAGS" {
			continue
		}
		env = append(env, v)
	}
	path := []string{bin}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, "go")); err != nil || dir == "/usr/bin" || dir == "/bin" {
			path = append(path, dir)
		}
	}
	env = append(env, "PATH="+strings.Join(path, ":"))

	run := func(dir, name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run(root, filepath.Join(root, ".ci", "setup.sh"))
	if err != nil {
		// Without a network this cannot work. Where it must, in CI, there is one.
		if os.Getenv("CI") == "" && (strings.Contains(out, "could not install") || strings.Contains(out, "could not be downloaded")) {
			t.Skipf("the packages or the toolchain cannot be fetched here:\n%s", out)
		}
		t.Fatalf("set-up failed: %v\n%s", err, out)
	}
	t.Logf("%s", out)

	hello := filepath.Join(root, "hello")
	if err := os.Mkdir(hello, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod": "module example.com/hello\n\ngo 1.25.0\n\nignore ./build\n",
		"main.go": `package main

// static int answer(void) { return 42; }
import "C"

import "fmt"

func main() { fmt.Println("hello", C.answer()) }
`,
	} {
		if err := os.WriteFile(filepath.Join(hello, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := run(hello, filepath.Join(root, ".ci", "go"), "build", "-o", "hello", "."); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	out, err = run(hello, filepath.Join(hello, "hello"))
	if err != nil || out != "hello 42\n" {
		t.Errorf("the program said %q, %v", out, err)
	}
	// The second time nothing is fetched or installed.
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := run(root, filepath.Join(root, ".ci", "setup.sh")); err != nil || strings.Contains(out, "fetching") {
		t.Errorf("the second run: %v\n%s", err, out)
	}
}
