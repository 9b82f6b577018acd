#!/bin/sh
# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# rehearse.sh FAKE_DRIVER CUDA: tries tests/gpu/run.sh on a machine without a GPU, so that it works on the day one is at
# hand: from a copy of the tree, without Go and, where the system lets us, without a network, with the compiler in the
# folder CUDA and the fake driver in the folder FAKE_DRIVER. It proves the script, not the device, and measures nothing.

set -eu
cd "$(dirname -- "$0")/../.."
driver=$(cd -- "$1" && pwd)
cuda=$(cd -- "$2" && pwd)
scratch=$PWD/build/gpu-rehearsal
mkdir -p "$scratch/tree" "$scratch/bin"
git ls-files -z | grep -zv '^bin/' | xargs -0 cp --parents -t "$scratch/tree"

# What such a machine has: a shell, CMake, a C++ compiler, CUDA.
for tool in sh env cat cp cut date dirname expr grep head make mkdir mv nproc rm sed sleep tail tee timeout tr uname \
  cmake g++ gcc cc c++ as ld ar ranlib cudafe++; do
  path=$(command -v "$tool" || true)
  [ -z "$path" ] || ln -sf "$path" "$scratch/bin/$tool"
done
path=$scratch/bin:$cuda/bin
isolated=
unshare -rn true 2>/dev/null && isolated="$(command -v unshare) -rn" || echo "rehearse: this system does not let us cut off the network"

# run NAME WANTED OPTIONS [VARIABLE=VALUE...]: the script's exit status and what its table says.
run() {
  name=$1
  wanted=$2
  options=$3
  shift 3
  echo "--- $name"
  status=0
  # shellcheck disable=SC2086
  env -i PATH="$path" HOME="$scratch" QUICK=1 SECONDS_MAX=1200 OUT="$scratch/$name" LD_LIBRARY_PATH="$driver" \
    KVC_FAKECUDA="max_delay_us=5,queue_depth=100000,$options" "$@" $isolated sh "$scratch/tree/tests/gpu/run.sh" \
    >"$scratch/$name.log" 2>&1 || status=$?
  tail -n 20 "$scratch/$name.log"
  if [ "$status" -ne "$wanted" ]; then
    echo "rehearse: $name: exit status $status, want $wanted" >&2
    exit 1
  fi
}
has() { grep -q "$2" "$scratch/$1/table.txt" || {
  echo "rehearse: $1: no line '$2' in its table" >&2
  exit 1
}; }

run whole 0 ""
for stage in configure build prototypes conformance model content copies stamps large elastic bench; do
  has whole "^$stage *ok"
done
has whole "^memcheck *skipped: no compute-sanitizer"
# With a compute-sanitizer that only starts the program; then with one that finds something.
printf '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do case $1 in --tool|--error-exitcode) shift;; esac; shift; done\nexec "$@"\n' \
  >"$scratch/bin/compute-sanitizer"
chmod +x "$scratch/bin/compute-sanitizer"
run sanitized 0 ""
has sanitized "^memcheck *ok"
has sanitized "^racecheck *ok"
printf '#!/bin/sh\nexit 9\n' >"$scratch/bin/compute-sanitizer"
run finding 1 ""
has finding "^racecheck *FAILED (9)"
rm "$scratch/bin/compute-sanitizer"
# A check that fails, no time, no driver that can be used, no GPU.
run small 1 memory_bytes=20000000
has small "^large *FAILED"
# A driver that hangs in the tools of its own does not take longer than there is time.
printf '#!/bin/sh\ntrap "" TERM\nwhile :; do sleep 1; done\n' >"$scratch/bin/nvidia-smi"
chmod +x "$scratch/bin/nvidia-smi"
run late 1 "" SECONDS_MAX=2
has late "OUT OF TIME"
grep -q "no answer" "$scratch/late/card.txt"
rm "$scratch/bin/nvidia-smi"
run mismatch 2 init_result=803
grep -q "reboot" "$scratch/mismatch.log"
run none 2 devices=0
echo "rehearse: ok"
