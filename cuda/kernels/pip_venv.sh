#!/bin/sh
# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# pip_venv.sh FOLDER PACKAGE==VERSION...: a Python environment in FOLDER with these packages. Does nothing when they are
# there; fails, and says why, when pip cannot be reached.

set -eu
folder=$1
shift
mkdir -p "$(dirname -- "$folder")"
if [ ! -x "$folder/bin/pip" ]; then
  python3 -m venv "$folder" || {
    echo "pip_venv: no Python environment (python3-venv is missing?)" >&2
    exit 1
  }
fi
have=$("$folder/bin/pip" list --format=freeze 2>/dev/null)
missing=
for package; do
  echo "$have" | grep -qxF "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
# shellcheck disable=SC2086  # words
"$folder/bin/pip" install -q --disable-pip-version-check --no-deps --retries 1 --timeout 20 $missing || {
  echo "pip_venv: pip cannot bring$missing" >&2
  exit 1
}
