#!/bin/sh
# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# Proves and measures the CUDA device on the GPU of this machine, in under eight minutes: builds with the CUDA, CMake and
# C++ compiler found here (no Go, no GoogleTest, no network), runs gpu_check, then short cases under compute-sanitizer
# where there is one. A table comes last; the details go to $OUT.
#
# Environment:
#   OUT        folder for the details (default build/gpu/out)
#   LARGE_GIB  size of the pool with offsets beyond 2^32 (default 20)
#   SEED       of all random choices (default 1)
#   SECONDS_MAX  for all of it (default 470); what comes later is not run, and that is a failure
#   QUICK      1 = sizes for a rehearsal on the fake driver (make gpu-rehearsal), whose figures mean nothing
#
# Exit status: 0 all is well, 1 a check failed, 2 there is no GPU or no way to build.

set -u
cd "$(dirname -- "$0")/../.."
OUT=${OUT:-build/gpu/out}
mkdir -p "$OUT"
table=$OUT/table.txt
: >"$table"
failed=0
end=$(($(date +%s) + ${SECONDS_MAX:-470}))
quick=
[ "${QUICK:-0}" = 1 ] && quick=--quick

# step NAME SECONDS COMMAND...: runs it with its output in $OUT/NAME.log and notes how it went.
step() {
  name=$1
  limit=$2
  shift 2
  began=$(date +%s)
  left=$((end - began))
  [ "$limit" -le "$left" ] || limit=$left
  if [ "$limit" -le 0 ]; then
    how="OUT OF TIME"
    failed=1
  elif timeout -k 5 "$limit" "$@" >"$OUT/$name.log" 2>&1; then
    how=ok
  else
    how="FAILED ($?)"
    failed=1
  fi
  printf '%-22s %-12s %4d s\n' "$name" "$how" "$(($(date +%s) - began))" | tee -a "$table"
}
# within SECONDS COMMAND...: with what is left of the time, but 2 seconds at least. A driver that hangs is killed.
within() {
  limit=$1
  shift
  left=$((end - $(date +%s)))
  [ "$limit" -le "$left" ] || limit=$left
  [ "$limit" -ge 2 ] || limit=2
  timeout -k 2 "$limit" "$@"
}
skip() { printf '%-22s skipped: %s\n' "$1" "$2" | tee -a "$table"; }

PATH=$PATH:/usr/local/cuda/bin
for tool in cmake g++ nvcc; do
  command -v "$tool" >/dev/null || {
    echo "tests/gpu/run.sh: $tool is missing" >&2
    exit 2
  }
done
within 20 nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current \
  --format=csv,noheader >"$OUT/card.txt" 2>&1 || echo "nvidia-smi: no answer" >"$OUT/card.txt"

step configure 60 cmake -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DKVC_BUILD_TESTS=OFF \
  -DKVC_BUILD_GPU_CHECK=ON -DKVC_CUDA_FATBIN=ON
step build "${SECONDS_MAX:-470}" cmake --build build/gpu --target gpu_check --parallel "$(nproc)"
check=build/gpu/tests/gpu/gpu_check
[ -x "$check" ] || {
  tail -n 20 "$OUT/build.log" >&2
  exit 2
}
within 60 "$check" >"$OUT/device.txt" 2>&1 || {
  how=$?
  cat "$OUT/device.txt" >&2
  [ "$how" -ne 124 ] && [ "$how" -ne 137 ] || echo "tests/gpu/run.sh: the driver does not answer" >&2
  exit 2
}
header=$(dirname -- "$(command -v nvcc)")/../include
if [ -e "$header/cudaTypedefs.h" ]; then
  step prototypes 60 g++ -std=c++17 -fsyntax-only -I. -isystem "$header" -DKVC_REQUIRE_CUDA_HEADER \
    tests/gpu/header_check.cpp
else
  skip prototypes "no cudaTypedefs.h beside nvcc"
fi
# shellcheck disable=SC2086  # no word when not quick
for name in conformance model content copies stamps large elastic; do
  step "$name" 90 "$check" $quick --seed "${SEED:-1}" --large-gib "${LARGE_GIB:-20}" "$name"
done
if command -v compute-sanitizer >/dev/null; then
  step memcheck 90 compute-sanitizer --tool memcheck --error-exitcode 9 "$check" --quick copies stamps
  step racecheck 90 compute-sanitizer --tool racecheck --error-exitcode 9 "$check" --quick copies
else
  skip memcheck "no compute-sanitizer"
  skip racecheck "no compute-sanitizer"
fi
# shellcheck disable=SC2086
step bench 90 "$check" $quick --seed "${SEED:-1}" bench

echo
cat "$OUT/card.txt" "$OUT/device.txt"
if [ -n "$quick" ]; then
  echo "(a rehearsal: no figures)"
elif [ -e "$OUT/bench.log" ]; then
  grep '^  ' "$OUT/bench.log"
fi
echo
cat "$table"
exit "$failed"
