// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package consumer

import (
	"debug/elf"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var (
	installOnce sync.Once
	installed   string // the prefix, when the installation succeeded
	scratch     string // what holds it, removed at the end
)

func TestMain(m *testing.M) {
	status := m.Run()
	if scratch != "" {
		os.RemoveAll(scratch)
	}
	os.Exit(status)
}

// install builds the release preset once and installs it, staged by DESTDIR, then moves the prefix: what was installed
// must not know where it lies. It returns the prefix.
func install(t *testing.T) string {
	t.Helper()
	slow(t)
	sourceFiles(t)
	installOnce.Do(func() {
		var err error
		if scratch, err = os.MkdirTemp("", "kvcast-consumer-"); err != nil {
			t.Fatal(err)
		}
		build, stage := filepath.Join(scratch, "build"), filepath.Join(scratch, "stage")
		command(t, root, nil, "cmake", "--preset", "release", "-B", build, "-DKVC_BUILD_TESTS=OFF",
			"-DCMAKE_INSTALL_PREFIX=/opt/kvcast", "-DCMAKE_INSTALL_LIBDIR=lib",
			// What is tested is what is installed and how it is found: optimised it takes twice as long, and
			// file by file, as the other builds compile it, five times.
			"-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG", unity)
		command(t, root, nil, "cmake", "--build", build, "-j", "2")
		command(t, root, []string{"DESTDIR=" + stage}, "cmake", "--install", build)
		prefix := filepath.Join(scratch, "moved to here")
		if err := os.Rename(filepath.Join(stage, "opt", "kvcast"), prefix); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(build); err != nil {
			t.Fatal(err)
		}
		installed = prefix
	})
	if installed == "" {
		t.Fatal("the installation failed in an earlier test")
	}
	return installed
}

// unity lets CMake compile some files at a time.
const unity = "-DCMAKE_UNITY_BUILD=ON"

// run runs a program and compares its output with what the example prints.
func run(t *testing.T, program string) {
	t.Helper()
	want := read(t, filepath.Join(root, "examples", "c", "testdata", "output.txt"))
	if got := command(t, filepath.Dir(program), []string{"LD_LIBRARY_PATH="}, program); got != want {
		t.Errorf("%s printed\n%s\nwant\n%s", program, got, want)
	}
}

// needs tells whether a program asks the dynamic linker for a library.
func needs(t *testing.T, program, library string) bool {
	t.Helper()
	file, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	libraries, err := file.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(libraries, library)
}

func TestInstalledFiles(t *testing.T) {
	prefix := install(t)
	var got []string
	err := filepath.WalkDir(prefix, func(name string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(prefix, name)
			got = append(got, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	header := read(t, filepath.Join(root, "native/include/kvcast/kvcast.h"))
	version := regexp.MustCompile(`(?s)KVC_VERSION_MAJOR (\d+).*KVC_VERSION_MINOR (\d+).*KVC_VERSION_PATCH (\d+)`).
		FindStringSubmatch(header)
	abi := regexp.MustCompile(`KVC_ABI_VERSION (\d+)`).FindStringSubmatch(header)
	want := []string{
		"include/kvcast/kvcast.h",
		"lib/cmake/kvcast/kvcastConfig.cmake",
		"lib/cmake/kvcast/kvcastConfigVersion.cmake",
		"lib/cmake/kvcast/kvcastTargets-release.cmake",
		"lib/cmake/kvcast/kvcastTargets.cmake",
		"lib/libkvcast.a",
		"lib/libkvcast.so",
		"lib/libkvcast.so." + strings.Join(version[1:], "."),
		"lib/libkvcast.so." + abi[1],
		"lib/pkgconfig/kvcast.pc",
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("installed\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	for _, name := range got {
		if strings.HasSuffix(name, ".cmake") || strings.HasSuffix(name, ".pc") {
			for _, place := range []string{absRoot(t), scratch, "/opt/kvcast"} {
				if strings.Contains(read(t, filepath.Join(prefix, name)), place) {
					t.Errorf("%s names %s, which other machines do not have", name, place)
				}
			}
		}
	}
}

// The shared library exports the functions that the header declares and nothing else.
func TestExports(t *testing.T) {
	prefix := install(t)
	file, err := elf.Open(filepath.Join(prefix, "lib", "libkvcast.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_BIND(s.Info) != elf.STB_LOCAL {
			got = append(got, s.Name)
		}
	}
	header := read(t, filepath.Join(prefix, "include", "kvcast", "kvcast.h"))
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^KVC_API [^(]*\b(kvc_[a-z0-9_]+)\(`).FindAllStringSubmatch(header, -1) {
		want = append(want, m[1])
	}
	if marks := strings.Count(header, "\nKVC_API "); marks != len(want) || marks == 0 {
		t.Fatalf("the header has %d declarations, of which %d were understood", marks, len(want))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the library exports\n  %s\nthe header declares\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}

	abi := regexp.MustCompile(`#define KVC_ABI_VERSION (\d+)`).FindStringSubmatch(header)
	soname, err := file.DynString(elf.DT_SONAME)
	if err != nil || !slices.Equal(soname, []string{"libkvcast.so." + abi[1]}) {
		t.Errorf("soname %v (%v), the ABI version is %s", soname, err, abi[1])
	}
}

// soname returns the name by which programs ask for the shared library.
func soname(t *testing.T, prefix string) string {
	t.Helper()
	file, err := elf.Open(filepath.Join(prefix, "lib", "libkvcast.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	names, err := file.DynString(elf.DT_SONAME)
	if err != nil || len(names) != 1 {
		t.Fatalf("soname %v: %v", names, err)
	}
	return names[0]
}

func TestFindPackage(t *testing.T) {
	prefix := install(t)
	for project, programs := range map[string][]string{
		"find_package": {"c_kvcast", "c_static", "cxx_kvcast", "cxx_static"},
		"c_only":       {"c_kvcast", "c_static"},
	} {
		t.Run(project, func(t *testing.T) {
			build := t.TempDir()
			command(t, filepath.Join("testdata", project), nil, "cmake", "-G", "Ninja", "-B", build,
				"-DCMAKE_PREFIX_PATH="+prefix, "-DSOURCES="+absRoot(t))
			command(t, build, nil, "cmake", "--build", build)
			for _, name := range programs {
				program := filepath.Join(build, name)
				run(t, program)
				if got, want := needs(t, program, soname(t, prefix)), strings.HasSuffix(name, "_kvcast"); got != want {
					t.Errorf("%s asks for the shared library: %v, want %v", name, got, want)
				}
			}
		})
	}
}

// Before 1.0 another minor version will not do, and is not taken.
func TestFindPackageVersion(t *testing.T) {
	prefix := install(t)
	for version, accepted := range map[string]bool{"0.1": true, "0.1.0": true, "0.0": false, "0.2": false, "1.0": false} {
		out, err := try("testdata/find_package", nil, "cmake", "-G", "Ninja", "-B", t.TempDir(),
			"-DCMAKE_PREFIX_PATH="+prefix, "-DSOURCES="+absRoot(t), "-DVERSION_WANTED="+version)
		switch {
		case accepted && err != nil:
			t.Errorf("version %s: %v\n%s", version, err, out)
		case !accepted && (err == nil || !strings.Contains(out, "kvcastConfig.cmake, version:")):
			t.Errorf("version %s was not refused for its number: %v\n%s", version, err, out)
		}
	}
}

func TestPkgConfig(t *testing.T) {
	prefix := install(t)
	env := []string{"PKG_CONFIG_PATH=" + filepath.Join(prefix, "lib", "pkgconfig")}
	header := read(t, filepath.Join(prefix, "include", "kvcast", "kvcast.h"))
	for _, part := range strings.Split(strings.TrimSpace(command(t, ".", env, "pkg-config", "--modversion", "kvcast")), ".") {
		if !regexp.MustCompile(`#define KVC_VERSION_(MAJOR|MINOR|PATCH) ` + part + `\n`).MatchString(header) {
			t.Errorf("pkg-config tells a version with %s in it, which the header does not", part)
		}
	}
	for _, c := range []struct {
		name, compiler, source string
		flags, pkgConfig       []string
		shared                 bool
	}{
		{"C shared", "cc", "examples/c/example.c", []string{"-std=c11"}, nil, true},
		{"C static", "cc", "examples/c/example.c", []string{"-std=c11", "-static"}, []string{"--static"}, false},
		{"C++ shared", "c++", "tests/consumer/testdata/consumer.cpp", []string{"-std=c++11"}, nil, true},
		{"C++ static", "c++", "tests/consumer/testdata/consumer.cpp", []string{"-std=c++11", "-static"}, []string{"--static"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "program")
			query := append(append([]string{}, c.pkgConfig...), "--cflags", "--libs", "kvcast")
			args := append(c.flags, "-Wall", "-Wextra", "-Werror", "-o", program, filepath.Join(root, c.source))
			args = append(args, words(command(t, ".", env, "pkg-config", query...))...)
			if c.shared {
				args = append(args, "-Wl,-rpath,"+filepath.Join(prefix, "lib"))
			}
			command(t, ".", nil, c.compiler, args...)
			run(t, program)
			if got := needs(t, program, soname(t, prefix)); got != c.shared {
				t.Errorf("asks for the shared library: %v, want %v", got, c.shared)
			}
		})
	}
}

// words splits what pkg-config prints as a shell would: a backslash keeps the space that follows it.
func words(line string) []string {
	const kept = "\x00"
	fields := strings.Fields(strings.ReplaceAll(line, `\ `, kept))
	for i := range fields {
		fields[i] = strings.ReplaceAll(fields[i], kept, " ")
	}
	return fields
}

func TestPartOfAnotherBuild(t *testing.T) {
	slow(t)
	archive := filepath.Join(t.TempDir(), "kvcast.zip")
	writeZip(t, archive, "kvcast-0.1.0")
	for _, c := range []struct {
		name  string
		args  []string
		build bool // once is enough: FetchContent ends in add_subdirectory too
	}{
		{"add_subdirectory", nil, false},
		{"FetchContent", []string{"-DARCHIVE=" + archive}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			build := t.TempDir()
			args := append([]string{"-G", "Ninja", "-B", build, "-DSOURCES=" + absRoot(t),
				// Such a machine has no GoogleTest; asking for it would be an error.
				"-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON"}, c.args...)
			command(t, "testdata/embedded", nil, "cmake", args...)

			// Neither side's options reach the other.
			var commands []struct{ Command, File string }
			if err := json.Unmarshal([]byte(read(t, filepath.Join(build, "compile_commands.json"))), &commands); err != nil {
				t.Fatal(err)
			}
			var ours, theirs int
			for _, unit := range commands {
				consumer := filepath.Base(unit.File) == "consumer.cpp"
				if consumer {
					theirs++
				} else {
					ours++
				}
				standard := "-std=gnu++14"
				if !consumer {
					standard = "-std=c++17"
				}
				if !strings.Contains(unit.Command, standard) || regexp.MustCompile(`\s(-W|-fsanitize)`).MatchString(unit.Command) {
					t.Errorf("%s is compiled by %s", unit.File, unit.Command)
				}
			}
			if theirs != 2 || ours < 10 {
				t.Errorf("%d files of theirs and %d of ours are compiled", theirs, ours)
			}

			if !c.build {
				return
			}
			command(t, build, nil, "cmake", unity, build)
			command(t, build, nil, "cmake", "--build", build, "-j", "2")
			run(t, filepath.Join(build, "bin", "cxx_kvcast"))
			run(t, filepath.Join(build, "bin", "cxx_static"))
			prefix := filepath.Join(build, "prefix")
			command(t, build, nil, "cmake", "--install", build, "--prefix", prefix)
			if _, err := os.Stat(filepath.Join(prefix, "bin", "cxx_static")); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(prefix, "include")); err == nil {
				t.Error("the parent's installation brings kvcast's files, which it did not ask for")
			}
		})
	}
}
