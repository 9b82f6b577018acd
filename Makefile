# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# Each verb is one obvious command. Continuous integration calls nothing but these verbs.

.DEFAULT_GOAL := help

# Set-up records the go command that it chose; .ci/go runs that one, or else the one on the PATH.
GO := .ci/go
# Compilers are hungry for memory and small machines have two cores.
JOBS ?= 2
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# Go packages under test at a time: many wait for timers and peers more than they compute.
TEST_JOBS := $(shell expr $(JOBS) + 1)
# go test takes packages in the order in which they are named. Those that wait for longest, and that which compiles for
# longest, come first: last they would have the machine to themselves, and leave half of it idle.
PACKAGES := ./publisher ./tests/consumer ./tests/e2e ./...
# Warnings stop the build in CI only; users' compilers may know warnings that ours does not.
WERROR := -DKVC_WERROR=$(if $(CI),ON,OFF)
# ThreadSanitizer of GCC 12 and 13 cannot start under the address randomisation of newer kernels; where the system
# lets us switch it off for one command, do.
NO_ASLR = $(shell setarch -R true 2>/dev/null && echo setarch -R)
# The release that reads what Go 1.26 and 1.27 write (0.7 cannot read 1.27's). Only lint needs more than Go 1.25.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
CXX_FILES = $(shell git ls-files '*.c' '*.h' '*.cpp' '*.cu')
# Of make install.
PREFIX ?= /usr/local
DESTDIR ?=
# How long make fuzz runs each target.
FUZZTIME ?= 10s

.PHONY: help
help: ## List the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: ## Install what is missing (asks nothing; does nothing when all is there)
	@.ci/setup.sh

.PHONY: setup-lint
setup-lint: ## Install besides what only lint needs: clang and clang-format
	@.ci/setup.sh lint

.PHONY: build
build: ## Build the command line tool, bin/kvcast
	$(GO) build -o bin/kvcast ./cmd/kvcast

.PHONY: run
run: setup build ## Replay the shipped trace into a separate verifying process and compare
	@examples/run/run.sh

# Both detectors' runs of the Go tests wait for half of their time, so they run side by side.
.PHONY: test
test: setup ## Set up, then run every test: C++ plain, ASan+UBSan and TSan; Go plain, with -race, with -asan and with GC torture
	@tests/interop/venv.sh
	@$(MAKE) --no-print-directory test-native asan tsan vet test-go torture
	@$(MAKE) --no-print-directory -j2 --output-sync=target TEST_JOBS=$(JOBS) test-race test-asan

.PHONY: test-go
test-go: ## Go tests
	$(GO) test -p $(TEST_JOBS) $(PACKAGES)

.PHONY: torture
torture: ## Go tests of the bindings while the garbage collector never rests
	$(GO) test -tags gctorture -run GCTorture ./bindings

# These have one goroutine each, and measure memory, which detectors change, or compute for long: test-go runs them.
MEASURING := (Decode|TokenMirror)Memory|InboxCountsMemory|EncodeEveryRoom|(LRU|LRFU)AgainstSimulation

.PHONY: test-race
test-race: ## Go tests under the race detector (the longest ones shortened)
	$(GO) test -p $(TEST_JOBS) -race -short -skip '^Test($(MEASURING))$$' $(PACKAGES)

# Alarms that are not ours: msgpack's encoder casts a string's header to that of a slice, and so reads eight bytes
# behind it; tests that count Go's allocations count those of the sanitizer too. libzmq 4.3.4 loses a message of
# some 100 bytes when a connection ends behind a full queue with heartbeats in it. publisher/wire has no C below it.
.PHONY: test-asan
test-asan: ## Go tests of the packages above C under AddressSanitizer (the longest ones shortened)
	@if echo 'int main(void) { return 0; }' | $$($(GO) env CC) -fsanitize=address -x c - -o /dev/null 2>/dev/null; then \
	  set -x; $(GO) test -p $(TEST_JOBS) -asan -gcflags='github.com/shamaton/msgpack/v2/...=-asan=false' -short \
	    -skip 'Allocations|BehindHeartbeats|^Test($(MEASURING))$$' ./publisher ./publisher/subscribe ./bindings/... ./cgo; \
	else echo "test-asan: skipped, $$($(GO) env CC) cannot link with -fsanitize=address"; fi

.PHONY: consumer
consumer: ## Use the library as other projects do: CMake, pkg-config, Go module from a proxy, replaced, vendored
	$(GO) test -count=1 -v ./tests/consumer

.PHONY: interop
interop: ## Let foreign decoders and Dynamo's consumers read the stream (what pip cannot install is skipped)
	@tests/interop/venv.sh
	$(GO) test -count=1 -v ./tests/interop

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (10s)
	@FUZZTIME=$(FUZZTIME) JOBS=$(JOBS) .ci/fuzz

.PHONY: test-native
test-native: ## C and C++ tests, with assertions
	cmake --preset dev $(WERROR)
	cmake --build --preset dev
	ctest --preset dev

.PHONY: asan
asan: ## C and C++ tests under AddressSanitizer and UndefinedBehaviourSanitizer
	cmake --preset asan $(WERROR)
	cmake --build --preset asan
	ctest --preset asan

.PHONY: tsan
tsan: ## C and C++ tests that have more than one thread, under ThreadSanitizer
	cmake --preset tsan $(WERROR)
	cmake --build --preset tsan
	$(NO_ASLR) ctest --preset tsan

# The seed of all that test-long draws: a new one each time, printed with each command, and repeated by `make test-long
# SEED=N`. The tests of `make test` have seeds of their own that never change. Drawn once, when it is first asked for.
SEED ?= $(eval SEED := $(strip $(shell od -An -N4 -tu4 /dev/urandom)))$(SEED)

# A failure prints its seed and the operations that are left after shrinking; KVC_SEED, KVCAST_TEST_SEED and -rapid.seed
# repeat it alone. With TRACE, the conversation trace as it was published (tests/data/NOTICE.md), the hit rates of
# docs/performance.md are measured again.
.PHONY: test-long
test-long: ## A million random operations on both models, what pages hold, the C ABI and what subscribers know, with a new SEED
	cmake --preset dev $(WERROR)
	cmake --build --preset dev --target model_test content_test fuzz_abi
	KVC_SEED=$(SEED) KVC_OPERATIONS=1000000 build/dev/tests/native/model_test
	KVC_SEED=$(SEED) KVC_OPERATIONS=1000000 build/dev/tests/native/content_test
	KVC_SEED=$(SEED) KVC_INPUTS=100000 build/dev/tests/native/fuzz_abi
	$(GO) test -count=1 -timeout=60m -run 'TestModel$$' ./bindings -rapid.checks=11000 -rapid.seed=$(SEED)
	$(GO) test -count=1 -timeout=60m -run 'Checker|Checked|RoundTrip|Tolerant' ./publisher/wire -rapid.checks=5000 -rapid.seed=$(SEED)
	KVCAST_TEST_SEED=$(SEED) $(GO) test -count=1 -timeout=60m -run 'AllocatorToSubscriber|SnapshotOfMultimodal|ThroughSnapshots|AgainstModel' \
	  ./publisher
	KVCAST_TEST_SEED=$(SEED) KVCAST_TEST_LONG=1 KVCAST_TRACE=$(abspath $(TRACE)) $(GO) test -count=1 -timeout=60m -v \
	  -run 'TestMirrors|TestFrozen|TestOverloadEnds|TestSignal|Conversation$$' ./tests/e2e ./publisher

.PHONY: bench
bench: ## Benchmarks, C++ and Go
	cmake --preset release $(WERROR)
	cmake --build --preset release
	for program in build/release/tests/native/*_bench; do echo $$program; $$program || exit 1; done
	$(GO) test -p 1 -run '^$$' -bench . -benchmem ./...

.PHONY: install
install: ## Install the libraries, header, CMake package and kvcast.pc to PREFIX (/usr/local), below DESTDIR if given
	cmake --preset release -B build/install -DKVC_BUILD_TESTS=OFF -DCMAKE_INSTALL_PREFIX='$(PREFIX)' $(WERROR)
	cmake --build build/install
	DESTDIR='$(DESTDIR)' cmake --install build/install

.PHONY: example-c
example-c: ## Build the C example against a private installation of the library, and run it
	@mkdir -p build; $(MAKE) --no-print-directory install PREFIX='$(CURDIR)/build/prefix' DESTDIR= >build/example-c.log || { cat build/example-c.log; exit 1; }
	@set -e; export PKG_CONFIG_PATH="$$(echo '$(CURDIR)'/build/prefix/lib*/pkgconfig)"; set -x; \
	  $(CC) -o build/example-c examples/c/example.c $$(pkg-config --cflags --libs kvcast) \
	    -Wl,-rpath,"$$(pkg-config --variable=libdir kvcast)"; \
	  build/example-c

# What the checks of the kernels download, pinned; into build/venv, nothing else is touched.
CUDA_VENV := build/venv
NVRTC_PIP := nvidia-cuda-nvrtc-cu11==11.8.89
NVCC_PIP := nvidia-cuda-nvcc==13.5.37 nvidia-cuda-crt==13.5.37 nvidia-nvvm==13.5.37 nvidia-cuda-runtime==13.5.37 \
  nvidia-cuda-cccl==13.3.5.0.6
# A cuda.h that gorgonia.org/cu v0.9.6 compiles with: CUDA 13 has changed calls that it makes.
CU_HEADERS_PIP := nvidia-cuda-runtime-cu11==11.8.89

.PHONY: ptx
ptx: ## Compile the kernels to cuda/kernels/kernels.ptx with NVRTC 11.8 (from pip; needs no GPU, no driver, no toolkit)
	@cuda/kernels/pip_venv.sh $(CUDA_VENV) $(NVRTC_PIP)
	$(CUDA_VENV)/bin/python cuda/kernels/make_ptx.py

.PHONY: ptx-check
ptx-check: ## Compile them and compare with what is checked in (skipped with a reason where pip has no NVRTC)
	@cuda/kernels/pip_venv.sh $(CUDA_VENV) $(NVRTC_PIP) || { echo "ptx-check: skipped, no NVRTC 11.8 to be had"; exit 0; } && \
	  set -x; $(CUDA_VENV)/bin/python cuda/kernels/make_ptx.py --check

.PHONY: cuda-check
cuda-check: ## Kernels under nvcc 13, PTX under ptxas 13, our driver prototypes against cuda.h (skipped where pip has none)
	@cuda/kernels/pip_venv.sh $(CUDA_VENV) $(NVCC_PIP) || { echo "cuda-check: skipped, no CUDA 13 compiler to be had"; exit 0; } && \
	  $(CUDA_VENV)/bin/python cuda/kernels/check_kernels.py

.PHONY: cuinterop-check
cuinterop-check: ## cuda/cuinterop and gorgonia.org/cu against a cuda.h of pip and the fake driver (skipped where pip has none)
	@cuda/kernels/pip_venv.sh $(CUDA_VENV) $(CU_HEADERS_PIP) || { echo "cuinterop-check: skipped, no cuda.h of CUDA 11 to be had"; exit 0; } && \
	  cmake --preset dev $(WERROR) && cmake --build --preset dev --target fakecuda && \
	  cuda/cuinterop/check.sh $(CURDIR)/build/dev/tests/fakecuda/current $(CURDIR)/$$(echo $(CUDA_VENV)/lib/python3*/site-packages/nvidia/cuda_runtime/include)

.PHONY: gpu-rehearsal
gpu-rehearsal: ## tests/gpu/run.sh on the fake driver, with the nvcc of pip: proves the script, not the device
	@cuda/kernels/pip_venv.sh $(CUDA_VENV) $(NVCC_PIP) || { echo "gpu-rehearsal: skipped, no CUDA 13 compiler to be had"; exit 0; } && \
	  cmake --preset dev $(WERROR) && cmake --build --preset dev --target fakecuda && \
	  tests/gpu/rehearse.sh build/dev/tests/fakecuda/current $(CUDA_VENV)/lib/python3*/site-packages/nvidia/cu13

.PHONY: vet
vet: ## go vet
	$(GO) vet ./...

.PHONY: lint
lint: setup-lint vet ## All that is said of the sources without running them: formats, warnings, comments, licences, known flaws
	@unformatted=$$($$($(GO) env GOROOT)/bin/gofmt -l $$(git ls-files '*.go')) && \
	  if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
	$(GO) run $(STATICCHECK) ./...
	@echo clang-format --dry-run -Werror; clang-format --dry-run -Werror $(CXX_FILES)
	JOBS=$(JOBS) .ci/warnings
	$(GO) test ./tests/layout
	$(GO) test -count=1 -v -run TestDependencies ./tests/licences
	.ci/vulncheck

.PHONY: fmt
fmt: ## Format Go (and C++ where clang-format is installed)
	$$($(GO) env GOROOT)/bin/gofmt -l -w $$(git ls-files '*.go')
	@if command -v clang-format >/dev/null; then clang-format -i $(CXX_FILES); fi

.PHONY: clean
clean: ## Remove what was built (set-up's go command stays)
	rm -rf build bin
