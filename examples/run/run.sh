#!/bin/sh
# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# The whole path on one machine: a production trace goes through the native allocator, its events over ZeroMQ into a
# separate process, which checks the stream and mirrors it. At the end the mirror must equal the set of blocks that the
# allocator itself says can be reused. Exit status 0 only then.
#
# Environment: CAPACITY_BLOCKS, SINK_BLOCKS, TRACE.

set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
kvcast=$root/bin/kvcast
trace=${TRACE:-$root/tests/data/mooncake_conversation_2000.jsonl}
# Below the 1.2 million different blocks of the shipped trace, so that pages are evicted.
capacity=${CAPACITY_BLOCKS:-500000}
# The default size of the record buffer. The replay goes as fast as it can, far faster than any engine, so the buffer
# overflows, and one sees blocks deferred and healed.
sink=${SINK_BLOCKS:-50000}
block_size=16

[ -x "$kvcast" ] || {
  echo "run: $kvcast is missing; 'make run' builds it" >&2
  exit 2
}

work=$(mktemp -d "${TMPDIR:-/tmp}/kvcast.XXXXXX")
tap=
cleanup() {
  if [ -n "$tap" ]; then kill "$tap" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

fail() {
  echo "run: $*" >&2
  for log in "$work/replay.err" "$work/tap.out" "$work/tap.err"; do
    [ -s "$log" ] && tail -n 5 "$log" | cut -c 1-500 >&2
  done
  exit 1
}

endpoint=ipc://$work/events

echo "A production trace through allocator, sink, cgo, Go and ZeroMQ into a process of its own:"
echo "  kvcast replay --trace ${trace##*/} --block-size $block_size --capacity-blocks $capacity --publisher zmq ..."
echo "  kvcast tap --verify --mirror-out ..."

# The tap ends when the stream has been silent for a while.
"$kvcast" tap "$endpoint" --verify --idle-exit 5s --mirror-out "$work/mirror" >"$work/tap.out" 2>"$work/tap.err" &
tap=$!

# Nothing is sent before the tap has subscribed; should it never come, the limit ends the wait. The progress bar, if
# any, goes to the terminal.
timeout --foreground 300 "$kvcast" replay --trace "$trace" --block-size "$block_size" --capacity-blocks "$capacity" --sink-blocks "$sink" \
  --device host --publisher zmq --endpoint "$endpoint" --wait-subscribers 1 \
  --resident-out "$work/resident" --json >"$work/replay.json" ||
  fail "the replay failed or took more than five minutes"

verified=yes
wait "$tap" || verified=no
tap=
[ "$verified" = yes ] || fail "the tap found a breach of the stream's contract"

# Prints a number from the replay's JSON object.
field() {
  value=$(tr ',{}' '\n\n\n' <"$work/replay.json" | sed -n "s/^[[:space:]]*\"$1\"[[:space:]]*:[[:space:]]*\([-+.0-9eE]*\).*/\1/p")
  [ -n "$value" ] || fail "the replay did not report $1"
  echo "$value"
}

stored=$(field stored_blocks)
removed=$(field removed_blocks)
unannounced=$(field unannounced_blocks)
wall=$(field wall_seconds)
requests=$(field requests)
hits=$(field hit_blocks)
asked=$(field prompt_blocks)
deferred=$(field deferred_blocks)
healed=$(field healed_blocks)
evicted=$(field deferred_evicted_blocks)
scheduler=$(field scheduler_seconds)
bytes=$(field bytes_published)
batches=$(field batches)
resident=$(grep -c '' "$work/resident" || true)
mirrored=$(grep -c '' "$work/mirror" || true)
equal=no
if cmp -s "$work/resident" "$work/mirror"; then equal=yes; fi

awk -v requests="$requests" -v hits="$hits" -v asked="$asked" -v stored="$stored" -v removed="$removed" \
  -v deferred="$deferred" -v healed="$healed" -v evicted="$evicted" -v wall="$wall" -v scheduler="$scheduler" \
  -v bytes="$bytes" -v batches="$batches" -v resident="$resident" -v mirrored="$mirrored" -v equal="$equal" '
  BEGIN {
    printf "\n"
    printf "  requests          %10d\n", requests
    printf "  hit rate          %9.1f%%  %d of %d full prompt blocks\n", 100 * hits / asked, hits, asked
    printf "  stored            %10d  blocks announced\n", stored
    printf "  removed           %10d  blocks taken back\n", removed
    printf "  deferred          %10d  blocks that did not fit the record buffer\n", deferred
    printf "  healed            %10d  of them announced later; the other %d were evicted first\n", healed, evicted
    printf "  blocks/s          %10d  stored and removed, from commit to socket (%.2f s; allocator %.2f s)\n",
      (stored + removed) / wall, wall, scheduler
    printf "  published         %10d  batches, %.1f MB\n", batches, bytes / 1e6
    printf "  mirror            %10d  blocks, as the tap saw them\n", mirrored
    printf "  resident set      %10d  blocks, as the allocator holds them\n", resident
    printf "  contract verified by the tap: yes\n"
    printf "  mirror equals resident set: %s\n", equal
  }'

[ "$equal" = yes ] || fail "the mirror differs from the resident set"
[ "$stored" -gt 0 ] || fail "nothing was stored"
# No scope of the replay is salted, so the tap can recompute every key, in the form that it has
# found out.
keys=$(tail -n 1 "$work/tap.out" | tr -d , | sed -n 's/^verified .*keys of \([0-9]*\) blocks recomputed ([a-z0-9]*)$/\1/p')
[ "$keys" = "$stored" ] || fail "the tap recomputed keys, but not of all blocks"
[ "$resident" -gt 0 ] || fail "nothing is resident at the end"
[ "$unannounced" = 0 ] || fail "$unannounced reusable blocks were never announced"
if [ "$capacity" -lt 1000000 ] && [ -z "${TRACE:-}" ]; then
  [ "$removed" -gt 0 ] || fail "nothing was removed, though the capacity is below the trace's blocks"
fi
