#!/bin/sh
# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# Makes build/interop-venv, the Python environment of tests/interop, unless it is there as the requirements say. Where
# pip cannot do that (no python3 with venv, no package index, no wheels for this machine) it says so in one line, and
# the tests are skipped.
#
# Exit status: 0 also then.

set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=$here/../../build/interop-venv
log=$here/../../build/interop-venv.log

wanted=$(cat "$here/requirements.txt" "$here/requirements-listener.txt" "$here/venv.sh" | cksum)
if [ -f "$venv/ready" ] && [ "$(cat "$venv/ready")" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null; then
  exit 0
fi

skip() {
  rm -rf "$venv"
  echo "interop: skipped, $1 (build/interop-venv.log has more)"
  exit 0
}

mkdir -p "${log%/*}"
rm -rf "$venv"
python3 -m venv "$venv" >"$log" 2>&1 || skip "python3 -m venv does not work here"
pip() {
  "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --retries 1 --timeout 20 \
    --no-deps --only-binary :all: "$@" >>"$log" 2>&1
}
pip -r "$here/requirements.txt" || skip "pip cannot install tests/interop/requirements.txt"
# Without the listener the rest can still run.
if ! pip --target "$venv/listener" -r "$here/requirements-listener.txt"; then
  rm -rf "$venv/listener"
  echo "interop: Dynamo's ZmqKvEventListener is skipped, pip cannot install tests/interop/requirements-listener.txt"
fi
echo "$wanted" >"$venv/ready"
