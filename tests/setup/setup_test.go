// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package setup tests .ci/setup.sh: its decisions with stand-ins for the programs that it calls, and the whole of it
// on a machine without Go, with the distribution's own golang.
package setup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	toolchain    = "golang.org/toolchain@v0.0.1-go1.27.3.linux-amd64"
	toolchainSum = "h1:r0ub+FnqzZxoWm/dSUOI9DcIqYWn/mNYGFJcv7PyBzs="
)

// The programs of the base system that set-up may use. Everything else it calls is a stand-in.
var basePrograms = []string{
	"sh", "cat", "chmod", "cp", "dirname", "env", "find", "head", "mkdir", "mktemp", "mv", "rm", "sed", "sort", "tr",
}

// world is a machine in miniature: a copy of .ci, a folder that is the whole PATH, and a log of the calls that matter.
type world struct {
	t    *testing.T
	root string // holds .ci and, after set-up, .go
	bin  string
	log  string
	env  []string
}

// newWorld makes a machine that has every package and no Go; user 0; apt-get that installs what it is asked to.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, root: t.TempDir(), bin: t.TempDir()}
	w.log = filepath.Join(t.TempDir(), "log")
	copyScripts(t, w.root)
	for _, name := range basePrograms {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("the base system lacks %s: %v", name, err)
		}
		if err := os.Symlink(path, filepath.Join(w.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	w.env = []string{"PATH=" + w.bin, "HOME=" + w.root, "LOG=" + w.log, "BIN=" + w.bin, "KVC_SETUP_GO_CANDIDATES="}
	w.program("id", `echo 0`)
	w.program("uname", `echo x86_64`)
	w.program("g++", `cat >/dev/null`)
	w.program("pkg-config", `exit 0`)
	w.program("cmake", `echo "cmake version 3.25.1"`)
	w.program("ninja", `exit 0`)
	w.program("python3", `exit 0`)
	w.apt(`for p in "$@"; do
  case $p in
    cmake) printf '#!/bin/sh\necho cmake version 3.25.1\n' >"$BIN/cmake"; chmod +x "$BIN/cmake" ;;
    ninja-build) printf '#!/bin/sh\n' >"$BIN/ninja"; chmod +x "$BIN/ninja" ;;
    golang-go) mv "$BIN/apt-go" "$BIN/go" ;;
  esac
done`)
	return w
}

func copyScripts(t *testing.T, root string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(root, ".ci"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"setup.sh", "go"} {
		text, err := os.ReadFile(filepath.Join("..", "..", ".ci", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, ".ci", name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// program writes a shell script called name into the PATH and returns its path.
func (w *world) program(name, body string) string {
	w.t.Helper()
	path := filepath.Join(w.bin, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		w.t.Fatal(err)
	}
	return path
}

func (w *world) remove(names ...string) {
	w.t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(w.bin, name)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// apt makes an apt-get that logs its call and then runs body with the arguments.
func (w *world) apt(body string) {
	w.program("apt-get", `echo "apt-get frontend=$DEBIAN_FRONTEND $*" >>"$LOG"`+"\n"+body)
}

// goCommand makes a go of that version. It can download the toolchain module, as files without an execute bit and
// with renamed go.mod files, as the real one leaves them; outside of any module, as Go 1.19 needs it.
func (w *world) goCommand(name, version, sum string) string {
	module := filepath.Join(w.t.TempDir(), "module")
	files := map[string]string{
		"bin/go":                         "#!/bin/sh\necho go version go1.27.3 linux/amd64\n",
		"bin/gofmt":                      "#!/bin/sh\n",
		"pkg/tool/linux_amd64/compile":   "#!/bin/sh\n",
		"src/_go.mod":                    "module std\n",
		"src/cmd/_go.mod":                "module cmd\n",
		"src/fmt/print.go":               "package fmt\n",
		"src/cmd/go/testdata/a file.txt": "a name with a space\n",
	}
	for name, text := range files {
		path := filepath.Join(module, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o444); err != nil {
			w.t.Fatal(err)
		}
	}
	return w.program(name, fmt.Sprintf(`case "$1 $2" in
  "version ") echo "go version go%s linux/amd64" ;;
  "mod download")
    [ ! -e go.mod ] || { echo "go.mod in the way" >&2; exit 1; }
    echo "go $* GOTOOLCHAIN=$GOTOOLCHAIN GO111MODULE=$GO111MODULE" >>"$LOG"
    printf '{\n\t"Path": "golang.org/toolchain",\n\t"Dir": "%s",\n\t"Sum": "%s",\n\t"GoModSum": "h1:other"\n}\n' ;;
  *) echo "ran $*" ;;
esac`, version, module, sum))
}

func (w *world) run(args ...string) (stdout, stderr string, status int) {
	w.t.Helper()
	return w.exec(filepath.Join(w.root, ".ci", "setup.sh"), args...)
}

func (w *world) exec(name string, args ...string) (stdout, stderr string, status int) {
	w.t.Helper()
	var out, errOut strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Dir = w.root
	cmd.Env = w.env
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// mustRun runs set-up, which must succeed, and returns what it recorded.
func (w *world) mustRun() string {
	w.t.Helper()
	stdout, stderr, status := w.run()
	if status != 0 {
		w.t.Fatalf("exit status %d\nstdout: %s\nstderr: %s", status, stdout, stderr)
	}
	path, err := os.ReadFile(filepath.Join(w.root, ".go", "path"))
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.TrimSuffix(string(path), "\n")
}

// mustFail runs set-up, which must exit with status 2, record nothing and say each of want on stderr.
func (w *world) mustFail(want ...string) {
	w.t.Helper()
	stdout, stderr, status := w.run()
	if status != 2 {
		w.t.Errorf("exit status %d, want 2\nstdout: %s\nstderr: %s", status, stdout, stderr)
	}
	for _, text := range want {
		if !strings.Contains(stderr, text) {
			w.t.Errorf("stderr lacks %q: %s", text, stderr)
		}
	}
	if _, err := os.Stat(filepath.Join(w.root, ".go", "path")); err == nil {
		w.t.Error("a go command was recorded in spite of the failure")
	}
}

// calls returns the logged calls.
func (w *world) calls() []string {
	w.t.Helper()
	text, err := os.ReadFile(w.log)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func (w *world) wantCalls(want ...string) {
	w.t.Helper()
	if got := w.calls(); !slices.Equal(got, want) {
		w.t.Errorf("calls\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func (w *world) candidates(paths ...string) {
	w.env = append(w.env, "KVC_SETUP_GO_CANDIDATES="+strings.Join(paths, ":"))
}

func aptUpdate() string {
	return "apt-get frontend=noninteractive -q -o DPkg::Lock::Timeout=120 update"
}

func aptInstall(packages string) string {
	return "apt-get frontend=noninteractive -q -o DPkg::Lock::Timeout=120 install -y --no-install-recommends " + packages
}

func TestNothingMissing(t *testing.T) {
	w := newWorld(t)
	path := w.goCommand("go", "1.26.8", "")
	w.candidates(path)
	for range 2 {
		if got := w.mustRun(); got != path {
			t.Errorf("recorded %q, want %q", got, path)
		}
	}
	w.wantCalls()
}

func TestGoIsFoundOnThePath(t *testing.T) {
	w := newWorld(t)
	w.env = slices.DeleteFunc(w.env, func(v string) bool { return strings.HasPrefix(v, "KVC_SETUP_") })
	path := w.goCommand("go", "1.25.0", "")
	if got := w.mustRun(); got != path {
		t.Errorf("recorded %q, want %q", got, path)
	}
	w.wantCalls()
}

func TestGoVersions(t *testing.T) {
	for version, accepted := range map[string]bool{
		"1.19.8": false, "1.24.13": false, "1.25": true, "1.25rc1": true, "1.25.0": true, "1.26.8": true, "1.100.1": true,
		"2.0.0": true,
	} {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t)
			path := w.goCommand("some-go", version, toolchainSum)
			w.candidates(path)
			want := path
			if !accepted {
				want = filepath.Join(w.root, ".go", "toolchain", "bin", "go")
			}
			if got := w.mustRun(); got != want {
				t.Errorf("recorded %q, want %q", got, want)
			}
		})
	}
}

func TestFirstCandidateNewEnoughWins(t *testing.T) {
	w := newWorld(t)
	old := w.goCommand("go-old", "1.22.2", "")
	broken := w.program("go-broken", "exit 1")
	first := w.goCommand("go-first", "1.26.0", "")
	second := w.goCommand("go-second", "1.27.0", "")
	w.candidates(old, broken, filepath.Join(w.bin, "absent"), first, second)
	if got := w.mustRun(); got != first {
		t.Errorf("recorded %q, want %q", got, first)
	}
}

func TestOnlyWhatIsMissingIsInstalled(t *testing.T) {
	w := newWorld(t)
	w.candidates(w.goCommand("go", "1.26.8", ""))
	w.remove("ninja")
	w.program("cmake", `echo "cmake version 3.18.4"`)
	w.mustRun()
	w.wantCalls(aptUpdate(), aptInstall("cmake ninja-build"))
}

func TestEachMissingPieceNamesItsPackage(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"pkg-config libzmq3-dev": func(w *world) { w.remove("pkg-config") },
		"libzmq3-dev":            func(w *world) { w.program("pkg-config", "exit 1") },
		"g++ libgtest-dev":       func(w *world) { w.remove("g++") },
		"libgtest-dev":           func(w *world) { w.program("g++", "cat >/dev/null; exit 1") },
		"cmake":                  func(w *world) { w.remove("cmake") },
		"ninja-build":            func(w *world) { w.remove("ninja") },
		"python3-venv":           func(w *world) { w.program("python3", "exit 1") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.candidates(w.goCommand("go", "1.26.8", ""))
			change(w)
			w.apt("exit 100")
			w.mustFail("missing: " + name + ".")
			w.wantCalls(aptUpdate(), aptInstall(name))
		})
	}
}

// Only lint needs clang; without that argument set-up does not bring it.
func TestLint(t *testing.T) {
	for _, c := range []struct {
		name string
		has  []string
		want []string
	}{
		{"neither", nil, []string{aptUpdate(), aptInstall("clang clang-format")}},
		{"only clang", []string{"clang++"}, []string{aptUpdate(), aptInstall("clang-format")}},
		{"both", []string{"clang++", "clang-format"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.candidates(w.goCommand("go", "1.26.8", ""))
			for _, name := range c.has {
				w.program(name, "exit 0")
			}
			w.apt(`for p in clang++ clang-format; do printf '#!/bin/sh\n' >"$BIN/$p"; chmod +x "$BIN/$p"; done`)
			if _, stderr, status := w.run("lint"); status != 0 {
				t.Errorf("exit status %d: %s", status, stderr)
			}
			w.wantCalls(c.want...)
		})
	}
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{{"lnt"}, {""}, {"lint", "lint"}} {
		w := newWorld(t)
		w.candidates(w.goCommand("go", "1.26.8", ""))
		if _, stderr, status := w.run(args...); status != 2 || !strings.Contains(stderr, "usage:") {
			t.Errorf("%q: exit status %d, stderr %q", args, status, stderr)
		}
		w.wantCalls()
	}
}

func TestInstallationThatLeavesThingsMissing(t *testing.T) {
	w := newWorld(t)
	w.candidates(w.goCommand("go", "1.26.8", ""))
	w.remove("ninja")
	w.apt("exit 0")
	w.mustFail("still missing after the installation: ninja-build")
}

func TestStalePackageListsAreTried(t *testing.T) {
	w := newWorld(t)
	w.candidates(w.goCommand("go", "1.26.8", ""))
	w.remove("ninja")
	w.apt(`case "$*" in *update) exit 100 ;; esac; printf '#!/bin/sh\n' >"$BIN/ninja"; chmod +x "$BIN/ninja"`)
	w.mustRun()
}

func TestNotRootUsesSudo(t *testing.T) {
	w := newWorld(t)
	w.candidates(w.goCommand("go", "1.26.8", ""))
	w.program("id", `echo 1000`)
	w.program("sudo", `echo "sudo $*" >>"$LOG"; [ "$1" = -n ] || exit 1; shift; exec "$@"`)
	w.remove("ninja")
	w.mustRun()
	prefix := "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 "
	w.wantCalls(
		prefix+"update", aptUpdate(),
		prefix+"install -y --no-install-recommends ninja-build", aptInstall("ninja-build"))
}

func TestSudoThatNeedsAPasswordFailsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.candidates(w.goCommand("go", "1.26.8", ""))
	w.program("id", `echo 1000`)
	w.program("sudo", `echo "sudo: a password is required" >&2; exit 1`)
	w.remove("ninja")
	w.mustFail("a password is required", "missing: ninja-build.")
	w.wantCalls()
}

func TestNotRootWithoutSudo(t *testing.T) {
	w := newWorld(t)
	w.program("id", `echo 1000`)
	w.remove("ninja", "cmake")
	w.mustFail("missing: cmake ninja-build golang-go.", "apt-get install -y cmake ninja-build golang-go")
	w.wantCalls()
}

func TestNotRootNeedsNobodyWhenNothingIsMissing(t *testing.T) {
	w := newWorld(t)
	w.program("id", `echo 1000`)
	w.candidates(w.goCommand("go", "1.26.8", ""))
	w.mustRun()
	w.wantCalls()
}

func TestNoApt(t *testing.T) {
	w := newWorld(t)
	w.remove("apt-get", "ninja")
	w.mustFail("missing: ninja-build golang-go.", "no apt-get")
}

// checkToolchain looks at what was made of the module: execute bits, go.mod names, the rest untouched.
func (w *world) checkToolchain() {
	w.t.Helper()
	dir := filepath.Join(w.root, ".go", "toolchain")
	for _, name := range []string{"bin/go", "bin/gofmt", "pkg/tool/linux_amd64/compile"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			w.t.Error(err)
		} else if info.Mode()&0o111 == 0 {
			w.t.Errorf("%s is not executable: %v", name, info.Mode())
		}
	}
	for _, name := range []string{"src/go.mod", "src/cmd/go.mod", "src/fmt/print.go", "src/cmd/go/testdata/a file.txt"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			w.t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "src/_go.mod")); err == nil {
		w.t.Error("src/_go.mod was left beside src/go.mod")
	}
}

func TestOldGoFetchesTheToolchainOnce(t *testing.T) {
	w := newWorld(t)
	w.candidates(w.goCommand("old", "1.19.8", toolchainSum))
	want := filepath.Join(w.root, ".go", "toolchain", "bin", "go")
	for range 2 {
		if got := w.mustRun(); got != want {
			t.Errorf("recorded %q, want %q", got, want)
		}
	}
	w.checkToolchain()
	w.wantCalls("go mod download -json " + toolchain + " GOTOOLCHAIN=local GO111MODULE=on")
}

func TestNoGoTakesTheDistributions(t *testing.T) {
	t.Run("old", func(t *testing.T) {
		w := newWorld(t)
		w.goCommand("apt-go", "1.19.8", toolchainSum)
		if got, want := w.mustRun(), filepath.Join(w.root, ".go", "toolchain", "bin", "go"); got != want {
			t.Errorf("recorded %q, want %q", got, want)
		}
		w.checkToolchain()
		w.wantCalls(aptUpdate(), aptInstall("golang-go"),
			"go mod download -json "+toolchain+" GOTOOLCHAIN=local GO111MODULE=on")
	})
	t.Run("new enough", func(t *testing.T) {
		w := newWorld(t)
		w.goCommand("apt-go", "1.26.0", "")
		if got, want := w.mustRun(), filepath.Join(w.bin, "go"); got != want {
			t.Errorf("recorded %q, want %q", got, want)
		}
		w.wantCalls(aptUpdate(), aptInstall("golang-go"))
	})
}

func TestToolchainThatCannotBeUsed(t *testing.T) {
	t.Run("download fails", func(t *testing.T) {
		w := newWorld(t)
		w.candidates(w.program("old", `case $1 in
  version) echo go version go1.19.8 linux/amd64 ;;
  *) printf '{\n\t"Error": "proxy says no"\n}\n'; exit 1 ;;
esac`))
		w.mustFail("proxy says no", "missing: Go >= 1.25", "Go module proxy")
	})
	t.Run("another content", func(t *testing.T) {
		w := newWorld(t)
		w.candidates(w.goCommand("old", "1.19.8", "h1:forged"))
		w.mustFail("h1:forged", "not used")
		if _, err := os.Stat(filepath.Join(w.root, ".go", "toolchain")); err == nil {
			t.Error("the forged toolchain was installed")
		}
	})
	t.Run("another processor", func(t *testing.T) {
		w := newWorld(t)
		w.program("uname", "echo riscv64")
		w.candidates(w.goCommand("old", "1.19.8", toolchainSum))
		w.mustFail("missing: Go >= 1.25", "riscv64")
		w.wantCalls()
	})
}

// The wrapper runs the recorded go, puts its folder first on the PATH and forbids silent switches.
func TestGoWrapper(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "go")
	script := "#!/bin/sh\necho \"$GOTOOLCHAIN ${PATH%%:*} $*\"\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	wrapper := filepath.Join(w.root, ".ci", "go")
	if _, stderr, status := w.exec(wrapper, "version"); status != 2 || !strings.Contains(stderr, "make setup") {
		t.Errorf("without any go: status %d, stderr %q", status, stderr)
	}
	if err := os.Mkdir(filepath.Join(w.root, ".go"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.root, ".go", "path"), []byte(path+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	stdout, _, status := w.exec(wrapper, "build", "./...")
	if want := "local " + dir + " build ./...\n"; status != 0 || stdout != want {
		t.Errorf("status %d, stdout %q, want %q", status, stdout, want)
	}
}
