// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const header = "// " + spdxCopyright + "\n// " + spdxLicence + "\n"
const hashHeader = "# " + spdxCopyright + "\n# " + spdxLicence + "\n"

func TestThisRepository(t *testing.T) {
	tree, err := NewTree(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if !tree.set["native/include/kvcast/kvcast.h"] || !tree.set["go.mod"] {
		t.Fatal("../.. is not the root of the repository")
	}
	for _, line := range tree.Check() {
		t.Error(line)
	}
}

// good is a small tree that breaks no rule. The cases below change one thing in it.
func good() map[string]string {
	goFile := func(pkg, body string) string { return header + "\npackage " + pkg + "\n\n" + body }
	endsChecked := func(pkg string) string {
		return goFile(pkg, "import \""+modulePath+"/tests/endcheck\"\n\n"+
			"func TestMain(m *testing.M) { os.Exit(run(m)) }\n\nfunc run(m *testing.M) int { return endcheck.Run(m) }\n")
	}
	return map[string]string{
		"CMakeLists.txt": hashHeader + "set(A\n  native/src/a.cpp # native/src/comment.cpp\n)\nset(B \"sink/src/b.cpp\")\n" +
			"foreach(s ${TESTS})\n  string(REPLACE \".cpp\" \"\" n ${s})\nendforeach()\n",
		"native/native.go": goFile("native", "// #cgo CXXFLAGS: -O3\nimport \"C\"\n\nimport \"embed\"\n\n"+
			"//go:embed include src unity.cpp\nvar _ embed.FS\n"),
		"native/unity.cpp":               header + "#include \"native/src/a.cpp\"\n",
		"native/include/kvcast/kvcast.h": header + "#include <stdint.h>\n",
		"native/src/a.cpp":               header + "#include \"kvcast/kvcast.h\"\n#include \"native/src/a.h\"\n#include <vector>\n",
		"native/src/a.h":                 header,
		"sink/sink.go": goFile("sink", "import \"C\"\n\nimport (\n\t\"embed\"\n\n\t_ \""+modulePath+"/native\"\n)\n\n"+
			"//go:embed src unity.cpp\nvar _ embed.FS\n"),
		"sink/unity.cpp":                header + "#include \"sink/src/b.cpp\"\n",
		"sink/src/b.cpp":                header + "#include \"native/src/a.h\"\n",
		"cgo/abi.go":                    goFile("cgo", "// #include \"kvcast/kvcast.h\"\nimport \"C\"\n\nimport (\n\t\"unsafe\"\n\n\t_ \""+modulePath+"/sink\"\n)\n"),
		"bindings/manager.go":           goFile("bindings", "import _ \""+modulePath+"/cgo\"\n"),
		"bindings/event/event.go":       goFile("event", ""),
		"publisher/publisher.go":        goFile("publisher", "import _ \""+modulePath+"/bindings\"\n"),
		"publisher/zmq.go":              goFile("publisher", "import _ \"github.com/pebbe/zmq4\"\n"),
		"publisher/wire/wire.go":        goFile("wire", "import _ \""+modulePath+"/bindings/event\"\n"),
		"cuda/inventory/inventory.go":   goFile("inventory", "import _ \"github.com/NVIDIA/go-nvml/pkg/nvml\"\n"),
		"cmd/kvcast/main.go":            goFile("main", "import (\n\t_ \""+modulePath+"/cuda/inventory\"\n\t_ \""+modulePath+"/publisher\"\n)\n"),
		"tests/e2e/e2e_test.go":         goFile("e2e", "import (\n\t_ \"github.com/pebbe/zmq4\"\n\n\t_ \""+modulePath+"/cgo\"\n)\n"),
		"tests/e2e/main_test.go":        endsChecked("e2e"),
		"bindings/main_test.go":         endsChecked("bindings_test"),
		"publisher/main_test.go":        endsChecked("publisher"),
		"tests/native/CMakeLists.txt":   hashHeader + "set(T\n  a_test.cpp\n)\nadd_executable(c c_test.c)\n",
		"tests/native/a_test.cpp":       header + "#include \"native/src/a.h\"\n",
		"tests/native/c_test.c":         header + "#include <kvcast/kvcast.h>\n",
		"examples/quick/main.go":        goFile("main", "import _ \""+modulePath+"/bindings\"\n"),
		".ci/run":                       "#!/bin/sh\n" + hashHeader,
		"docs/text.md":                  "no header needed\n",
		"build/dev/generated.cpp":       "not ours\n",
		"bindings/testdata/golden/x.go": "not Go at all\n",
	}
}

func check(t *testing.T, files map[string]string) []string {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	tree, err := NewTree(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return tree.Check()
}

func TestGoodTree(t *testing.T) {
	for _, line := range check(t, good()) {
		t.Error(line)
	}
}

// Each case edits files of the good tree (text is replaced, or the whole file when old is empty, or the file goes when
// both are) and names all that must be found.
func TestRulesBite(t *testing.T) {
	type edit struct{ file, old, new string }
	ours := func(folder string) string { return modulePath + "/" + folder }
	newGo := func(file, p string) []edit {
		return []edit{{file, "", header + "\npackage p\n\nimport _ \"" + p + "\"\n"}}
	}
	for _, c := range []struct {
		name  string
		edits []edit
		want  []string
	}{
		// Source lists.
		{"source in no list", []edit{{"native/src/new.cpp", "", header}}, []string{
			"native/unity.cpp: does not name native/src/new.cpp",
			"CMakeLists.txt: does not name native/src/new.cpp"}},
		{"source only in the unity file", []edit{{"sink/src/new.cpp", "", header},
			{"sink/unity.cpp", "b.cpp\"", "b.cpp\"\n#include \"sink/src/new.cpp\""}}, []string{
			"CMakeLists.txt: does not name sink/src/new.cpp"}},
		{"source only in CMake", []edit{{"native/src/new.cpp", "", header},
			{"CMakeLists.txt", "a.cpp ", "a.cpp native/src/new.cpp "}}, []string{
			"native/unity.cpp: does not name native/src/new.cpp"}},
		{"source commented out in CMake", []edit{{"CMakeLists.txt", "native/src/a.cpp", "# native/src/a.cpp"}}, []string{
			"CMakeLists.txt: does not name native/src/a.cpp"}},
		{"source gone", []edit{{"native/src/a.cpp", "", ""}}, []string{
			"native/unity.cpp: names native/src/a.cpp, which does not exist",
			"CMakeLists.txt: names native/src/a.cpp, which does not exist",
			"native/unity.cpp: includes \"native/src/a.cpp\", which does not read from the root"}},
		{"source twice", []edit{{"CMakeLists.txt", "native/src/a.cpp", "native/src/a.cpp native/src/a.cpp"}}, []string{
			"CMakeLists.txt: names native/src/a.cpp twice"}},
		{"unity file gone", []edit{{"sink/unity.cpp", "", ""}}, []string{
			"sink/unity.cpp: does not name sink/src/b.cpp"}},
		{"cuda sources count too", []edit{{"cuda/src/d.cpp", "", header}}, []string{
			"cuda/unity.cpp: does not name cuda/src/d.cpp",
			"CMakeLists.txt: does not name cuda/src/d.cpp",
			"cuda/src/d.cpp: not covered by a go:embed of package cuda"}},
		{"test in no list", []edit{{"tests/native/new_test.cpp", "", header}}, []string{
			"tests/native/CMakeLists.txt: does not name tests/native/new_test.cpp"}},
		{"test gone", []edit{{"tests/native/c_test.c", "", ""}}, []string{
			"tests/native/CMakeLists.txt: names tests/native/c_test.c, which does not exist"}},

		{"function that C never calls", []edit{{"native/include/kvcast/kvcast.h", "<stdint.h>",
			"<stdint.h>\nKVC_API kvc_status kvc_thing_do(\n"}}, []string{
			"tests/native/capi_test.c: does not call kvc_thing_do"}},
		{"function that returns text", []edit{{"native/include/kvcast/kvcast.h", "<stdint.h>",
			"<stdint.h>\nKVC_API const char* kvc_text(void);\n"}}, []string{
			"tests/native/capi_test.c: does not call kvc_text"}},

		// Embeds.
		{"header folder not embedded", []edit{{"native/native.go", "include src", "src"}}, []string{
			"native/include/kvcast/kvcast.h: not covered by a go:embed of package native"}},
		{"unity file not embedded", []edit{{"sink/sink.go", " unity.cpp", ""}}, []string{
			"sink/unity.cpp: not covered by a go:embed of package sink"}},
		{"hidden file in an embedded folder", []edit{{"native/src/_x.h", "", header}}, []string{
			"native/src/_x.h: not covered by a go:embed of package native"}},
		{"glob that misses a file", []edit{{"native/native.go", "include src", "include src/*.cpp"}}, []string{
			"native/src/a.h: not covered by a go:embed of package native"}},
		{"embed that is not blank", []edit{{"native/native.go", "var _ embed", "var files embed"}}, []string{
			"native/native.go: go:embed without a blank variable: bytes would reach the binary"}},

		// Go files of the native packages.
		{"second Go file", []edit{{"native/more.go", "", header + "\npackage native\n"}}, []string{
			"native: has 2 Go files, 1 of which import \"C\"; want exactly one"}},
		{"source beside the Go file", []edit{{"sink/extra.cpp", "", header}}, []string{
			"sink/extra.cpp: not covered by a go:embed of package sink",
			"sink/extra.cpp: cgo compiles what lies beside the Go file; sources go to sink/src"}},

		// Includes.
		{"native includes sink", []edit{{"native/src/a.cpp", "<vector>", "\"sink/src/b.cpp\""}}, []string{
			"native/src/a.cpp: includes sink/src/b.cpp: layer native must not use sink",
			"native/src/a.cpp: includes sink/src/b.cpp, but package native has no blank import of sink"}},
		{"sink includes cuda", []edit{{"sink/src/b.cpp", "native/src/a.h", "cuda/cuinterop/c.h"},
			{"cuda/cuinterop/c.h", "", header}, {"cuda/doc.go", "", header + "\npackage cuda\n\nimport \"embed\"\n\n//go:embed cuinterop\nvar _ embed.FS\n"}}, []string{
			"sink/src/b.cpp: includes cuda/cuinterop/c.h: layer sink must not use cuda",
			"sink/src/b.cpp: includes cuda/cuinterop/c.h, but package sink has no blank import of cuda"}},
		{"cgo preamble includes tests", []edit{{"cgo/abi.go", "kvcast/kvcast.h", "tests/native/a_test.cpp"}}, []string{
			"cgo/abi.go: includes tests/native/a_test.cpp: layer cgo must not use tests"}},
		{"include relative to the file", []edit{{"native/src/a.cpp", "\"native/src/a.h\"", "\"a.h\""}}, []string{
			"native/src/a.cpp: includes \"a.h\", which does not read from the root"}},
		{"indented include", []edit{{"native/src/a.cpp", "#include <vector>", "  #  include <zmq.h>"}}, []string{
			"native/src/a.cpp: includes <zmq.h>, which layer native must not know"}},
		{"CUDA toolkit header", []edit{{"sink/src/b.cpp", "#include", "#include <cuda_runtime_api.h>\n#include"}}, []string{
			"sink/src/b.cpp: includes <cuda_runtime_api.h>, which layer sink must not know"}},
		{"examples include internals", []edit{{"examples/c/main.cpp", "", header + "#include \"native/src/a.h\"\n"}}, []string{
			"examples/c/main.cpp: includes native/src/a.h: layer examples must not use native"}},
		{"include without the Go import", []edit{{"sink/sink.go", "\t_ \"" + ours("native") + "\"\n", ""}}, []string{
			"sink/src/b.cpp: includes native/src/a.h, but package sink has no blank import of native"}},

		// Go imports.
		{"native imports sink", []edit{{"native/native.go", "import \"embed\"", "import \"embed\"\n\nimport _ \"" + ours("sink") + "\""}}, []string{
			"native/native.go: imports sink: native must not use it"}},
		{"cgo imports bindings", newGo("cgo/x.go", ours("bindings")), []string{
			"cgo/x.go: imports bindings: cgo must not use it"}},
		{"bindings import publisher", newGo("bindings/x.go", ours("publisher")), []string{
			"bindings/x.go: imports publisher: bindings must not use it"}},
		{"a test file too", newGo("bindings/x_test.go", ours("publisher/wire")), []string{
			"bindings/x_test.go: imports publisher/wire: bindings must not use it"}},
		{"event imports bindings", newGo("bindings/event/x.go", ours("bindings")), []string{
			"bindings/event/x.go: imports bindings: bindings/event must not use it"}},
		{"publisher imports cgo", newGo("publisher/x.go", ours("cgo")), []string{
			"publisher/x.go: imports cgo: publisher must not use it"}},
		{"wire imports bindings", newGo("publisher/wire/x.go", ours("bindings")), []string{
			"publisher/wire/x.go: imports bindings: publisher/wire must not use it"}},
		{"wire imports publisher", newGo("publisher/wire/x.go", ours("publisher")), []string{
			"publisher/wire/x.go: imports publisher: publisher/wire must not use it"}},
		{"publisher imports cmd", newGo("publisher/x.go", ours("cmd/kvcast/internal")), []string{
			"publisher/x.go: imports cmd/kvcast/internal: publisher must not use it"}},
		{"cmd imports tests", newGo("cmd/kvcast/x.go", ours("tests/layout")), []string{
			"cmd/kvcast/x.go: imports tests/layout: cmd must not use it"}},
		{"cmd gets seeds from tests", newGo("cmd/kvcast/x.go", ours("tests/seeds")), []string{
			"cmd/kvcast/x.go: imports tests/seeds: cmd must not use it"}},
		{"a test of wire gets seeds", newGo("publisher/wire/x_test.go", ours("tests/seeds")), nil},
		{"name that only begins alike", newGo("cgo/x.go", ours("nativeish")), []string{
			"cgo/x.go: imports nativeish: cgo must not use it"}},
		{"zmq4 in another file", newGo("publisher/x.go", "github.com/pebbe/zmq4"), []string{
			"publisher/x.go: imports github.com/pebbe/zmq4, which is wrapped elsewhere"}},
		{"zmq4 in a file of the subscriber", newGo("publisher/subscribe/client.go", "github.com/pebbe/zmq4"), []string{
			"publisher/subscribe/client.go: imports github.com/pebbe/zmq4, which is wrapped elsewhere"}},
		{"zmq4 in the codec", newGo("publisher/wire/zmq_test.go", "github.com/pebbe/zmq4"), []string{
			"publisher/wire/zmq_test.go: imports github.com/pebbe/zmq4, which is wrapped elsewhere"}},
		{"zmq4 in the publisher's tests is fine", newGo("publisher/x_test.go", "github.com/pebbe/zmq4"), nil},
		{"zmq4 in cmd", newGo("cmd/kvcast/zmq.go", "github.com/pebbe/zmq4/draft"), []string{
			"cmd/kvcast/zmq.go: imports github.com/pebbe/zmq4/draft, which is wrapped elsewhere"}},
		{"go-nvml outside the inventory", newGo("cuda/x.go", "github.com/NVIDIA/go-nvml/pkg/nvml"), []string{
			"cuda/x.go: imports github.com/NVIDIA/go-nvml/pkg/nvml, which is wrapped elsewhere"}},
		{"inventory in a library", newGo("bindings/x.go", ours("cuda/inventory")), []string{
			"bindings/x.go: imports cuda/inventory, which only cmd/kvcast may"}},
		{"cu outside cuinterop", newGo("cuda/x.go", "gorgonia.org/cu"), []string{
			"cuda/x.go: imports gorgonia.org/cu, which is wrapped elsewhere"}},
		{"Go file at the root", newGo("root.go", "fmt"), []string{
			"root.go: a Go file in a folder that belongs to no layer"}},
		{"Go file that does not parse", []edit{{"cgo/x.go", "", header + "package\n"}}, []string{
			"cgo/x.go: cgo/x.go:3:9: expected 'IDENT', found 'EOF'"}},

		// Cleanups.
		{"handles without cleanup", []edit{{"bindings/x_test.go", "", header + `
package bindings

func TestX(t *testing.T) {
	s, err := bindings.NewStream(c)
	if err != nil {
		t.Fatal(err)
	}
	m, err := bindings.NewManager(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for {
		p, err := publisher.New(o)
		use(p, err)
		use(p, err)
		p.Close()
	}
}
`}, {"tests/native/a_test.cpp", "", header + "\n  kvc_stream* s = nullptr;\n  kvc_manager* m_ = nullptr;\n"}}, []string{
			"bindings/x_test.go:7: the cleanup of s does not follow bindings.NewStream",
			"bindings/x_test.go:11: the cleanup of m does not follow bindings.NewManager",
			"bindings/x_test.go:17: the cleanup of p does not follow publisher.New",
			"tests/native/a_test.cpp:4: s is not an OwnedHandle: a failing check would leave it behind"}},
		{"handles with cleanup, and examples", []edit{{"bindings/x_test.go", "", header + `
package bindings

func TestX(t *testing.T) {
	s, err := bindings.NewStream(c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m, err := bindings.NewManager(c)
	must(t, err)
	t.Cleanup(func() { _ = m.Close() })
	if _, err := publisher.New(o); err == nil {
		t.Error()
	}
	closed, err := bindings.NewStream(c)
	if err := closed.Close(); err != nil {
		t.Error()
	}
	x.stream, err = bindings.NewStream(c)
	other, err := bindings.NewStream(c)
	x.other = other
	last, err := bindings.NewStream(c)
	return last, err
}

func ExampleX() {
	s, err := bindings.NewStream(c)
	use(s)
	use(s)
}
`}}, nil},

		// Doc comments.
		{"names without comments", []edit{{"bindings/x.go", "", header + `
package bindings

type T struct{ F int }

type G[P any] struct{}

type I interface {
	M()
	m()
}

func New() T { return T{} }

func (t *T) Method() {}

func (g G[P]) Method() {}

const A, b = 1, 2

var (
	V = 1
)

//go:noinline
func Directive() {}

type (
	InGroup int
)
`}}, []string{
			"bindings/x.go:6: type T has no doc comment",
			"bindings/x.go:8: type G has no doc comment",
			"bindings/x.go:10: type I has no doc comment",
			"bindings/x.go:11: method I.M has no doc comment",
			"bindings/x.go:15: function New has no doc comment",
			"bindings/x.go:17: method T.Method has no doc comment",
			"bindings/x.go:19: method G.Method has no doc comment",
			"bindings/x.go:21: const A has no doc comment",
			"bindings/x.go:24: var V has no doc comment",
			"bindings/x.go:28: function Directive has no doc comment",
			"bindings/x.go:31: type InGroup has no doc comment"}},
		{"names with comments, and names that need none", []edit{{"bindings/x.go", "", header + `
package bindings

// T is a type.
type T struct{ F int }

// Method does.
func (t *T) Method() {}

type hidden struct{}

func (hidden) Method() {}

func hide() {}

// What can be.
const (
	A = 1
	B = 2
)

var V = 1 // a value

type (
	// InGroup is a type.
	InGroup int
	Other   int // another
)

// I is an interface.
type I interface {
	error
	M() // does
	m()
}
`}, {"bindings/x_test.go", "", header + "\npackage bindings\n\nfunc Helper() {}\n"},
			{"tests/x/x.go", "", header + "\npackage x\n\nfunc Helper() {}\n"}}, nil},

		// C and unsafe.
		{"C in bindings", newGo("bindings/x.go", "C"), []string{
			"bindings/x.go: imports \"C\" outside native, sink, cuda and cgo"}},
		{"C in tests", newGo("tests/x/x.go", "C"), []string{
			"tests/x/x.go: imports \"C\" outside native, sink, cuda and cgo"}},
		{"C in wire", newGo("publisher/wire/x.go", "C"), []string{
			"publisher/wire/x.go: imports \"C\" outside native, sink, cuda and cgo"}},
		{"unsafe in bindings", newGo("bindings/x.go", "unsafe"), []string{
			"bindings/x.go: imports unsafe outside native, sink, cuda and cgo"}},
		{"sizes and more in bindings", []edit{{"bindings/x.go", "", header + "\npackage p\n\nimport \"unsafe\"\n\n" +
			"const size = unsafe.Sizeof(0)\n\nvar p = unsafe.Pointer(nil)\n"}}, []string{
			"bindings/x.go: imports unsafe outside native, sink, cuda and cgo"}},
		{"sizes in bindings, by another name", []edit{{"bindings/x.go", "", header + "\npackage p\n\nimport u \"unsafe\"\n\n" +
			"const size = u.Sizeof(0)\n"}}, []string{
			"bindings/x.go: imports unsafe outside native, sink, cuda and cgo"}},
		{"sizes in bindings are fine", []edit{{"bindings/x.go", "", header + "\npackage p\n\nimport \"unsafe\"\n\n" +
			"const size = unsafe.Sizeof(0)\n"}}, nil},
		// The end of test binaries.
		{"nobody looks at the end", []edit{{"tests/e2e/main_test.go", "", ""}}, []string{
			"tests/e2e: a test binary that can open native handles needs a TestMain that calls endcheck.Run"}},
		{"the look is in no TestMain", []edit{{"bindings/main_test.go", "TestMain", "TestOther"}}, []string{
			"bindings: a test binary that can open native handles needs a TestMain that calls endcheck.Run"}},
		{"TestMain does not look", []edit{{"publisher/main_test.go", "endcheck.Run(m)", "m.Run()"}}, []string{
			"publisher: a test binary that can open native handles needs a TestMain that calls endcheck.Run"}},
		{"the program opens them", []edit{{"cmd/kvcast/main_test.go", "", header + "\npackage main\n"}}, []string{
			"cmd/kvcast: a test binary that can open native handles needs a TestMain that calls endcheck.Run"}},
		{"tests of what opens none", []edit{{"publisher/wire/wire_test.go", "", header + "\npackage wire\n"}}, nil},

		{"unsafe in a test is fine", newGo("bindings/x_test.go", "unsafe"), nil},

		// Licences.
		{"no header", []edit{{"native/src/a.h", header, ""}}, []string{
			"native/src/a.h: lacks the two-line SPDX header"}},
		{"half a header", []edit{{"publisher/zmq.go", "// " + spdxLicence + "\n", ""}}, []string{
			"publisher/zmq.go: lacks the two-line SPDX header"}},
		{"another licence", []edit{{"publisher/zmq.go", "Apache-2.0", "MIT"}}, []string{
			"publisher/zmq.go: lacks the two-line SPDX header"}},
		{"header too far down", []edit{{"native/src/a.h", "// ", "\n\n\n// "}}, []string{
			"native/src/a.h: lacks the two-line SPDX header"}},
		{"script without an extension", []edit{{".ci/tool", "", "#!/bin/sh\nexit\n"}}, []string{
			".ci/tool: lacks the two-line SPDX header"}},
		{"other kinds of source", []edit{{"Makefile", "", "all:\n"}, {"x.py", "", "pass\n"},
			{".github/workflows/ci.yml", "", "on: push\n"}, {"LICENSE", "", "text\n"}}, []string{
			".github/workflows/ci.yml: lacks the two-line SPDX header",
			"Makefile: lacks the two-line SPDX header",
			"x.py: lacks the two-line SPDX header"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := good()
			for _, e := range c.edits {
				text, exists := files[e.file]
				switch {
				case e.old != "":
					if !strings.Contains(text, e.old) {
						t.Fatalf("%s does not contain %q", e.file, e.old)
					}
					files[e.file] = strings.Replace(text, e.old, e.new, 1)
				case e.new != "":
					files[e.file] = e.new
				case exists:
					delete(files, e.file)
				default:
					t.Fatalf("%s is not there to be deleted", e.file)
				}
			}
			got := check(t, files)
			slices.Sort(got)
			slices.Sort(c.want)
			if !slices.Equal(got, c.want) {
				t.Errorf("found\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
			}
		})
	}
}
