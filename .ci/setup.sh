#!/bin/sh
# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# Makes a Debian 12 or Ubuntu 24.04 machine able to build and test kvcast. Asks nothing. Installs by apt what is
# missing and nothing else; when nothing is missing apt is not called at all.
#
# Go: the first command of at least version 1.25 is taken from, in this order, what set-up itself provided before, the
# PATH, and /usr/local/go. Without one, apt's golang-go fetches the toolchain module below through the Go module proxy.
# (Debian 12's Go 1.19 cannot switch toolchains by itself, but it can download a module.) The module cache drops the
# execute bits and renames go.mod files, so the toolchain is copied to .go/toolchain and mended there.
# The choice is recorded in .go/path, which .ci/go reads.
#
# With the argument "lint" it brings clang and clang-format too, which nothing but make lint (and the C++ targets of
# make fuzz) needs.
#
# Environment, for tests and for unusual machines:
#   KVC_SETUP_GO_CANDIDATES  colon-separated go commands to consider instead of the PATH's and /usr/local/go
#
# Exit status: 0 all is there, 2 something is missing (named on stderr).

set -eu

GO_MIN_MINOR=25
GO_TOOLCHAIN=v0.0.1-go1.27.3.linux-amd64
# What the module's content must hash to, whatever proxy or checksum database the machine is set to.
GO_TOOLCHAIN_SUM='h1:r0ub+FnqzZxoWm/dSUOI9DcIqYWn/mNYGFJcv7PyBzs='
CMAKE_MIN=3.22

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
state=$root/.go
lint=
case "$#:${1-}" in
0:) ;;
1:lint) lint=yes ;;
*)
  echo "usage: $0 [lint]" >&2
  exit 2
  ;;
esac

say() { echo "setup: $*"; }
fail() {
  echo "setup: $*" >&2
  exit 2
}
have() { command -v "$1" >/dev/null 2>&1; }

# --- packages ---------------------------------------------------------------------------------------------------

# True when dotted version $1 is at least $2.
at_least() {
  [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

cmake_ok() {
  have cmake && at_least "$(cmake --version | sed -n '1s/^cmake version \([0-9.]*\).*/\1/p')" "$CMAKE_MIN"
}

gtest_ok() {
  printf '#if !__has_include(<gtest/gtest.h>)\n#error missing\n#endif\n' |
    "${CXX:-g++}" -E -x c++ - >/dev/null 2>&1
}

# Prints the packages that stand for what is missing, on one line.
missing_packages() {
  list=
  have "${CXX:-g++}" || list="$list g++"
  have pkg-config || list="$list pkg-config"
  pkg-config --exists libzmq 2>/dev/null || list="$list libzmq3-dev"
  cmake_ok || list="$list cmake"
  have ninja || list="$list ninja-build"
  gtest_ok || list="$list libgtest-dev"
  python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || list="$list python3-venv"
  if [ -n "$lint" ]; then
    have clang++ || list="$list clang"
    have clang-format || list="$list clang-format"
  fi
  [ -e /etc/ssl/certs/ca-certificates.crt ] || list="$list ca-certificates"
  echo "${list# }"
}

# Installs the named packages or says which are missing and why they cannot be installed.
apt_install() {
  have apt-get || fail "missing: $*. This system has no apt-get; install the equivalents of these Debian packages."
  if [ "$(id -u)" = 0 ]; then
    as_root=
  elif have sudo; then
    # A terminal may be asked for a password by sudo itself; without one, fail at once and never hang.
    if [ -t 0 ]; then as_root=sudo; else as_root='sudo -n'; fi
  else
    fail "missing: $*. Not root and no sudo: have an administrator run: apt-get install -y $*"
  fi
  say "installing $*"
  # shellcheck disable=SC2086  # as_root is a command with its options
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 update ||
    say "apt-get update failed; trying with the package lists at hand"
  # shellcheck disable=SC2086
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 \
    install -y --no-install-recommends "$@" ||
    fail "missing: $*. apt-get could not install them (see above)."
}

# --- Go ---------------------------------------------------------------------------------------------------------

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Prints the version of go command $1, e.g. 1.26.8, or nothing. Run outside the module: an old go cannot read our go.mod.
go_version() {
  (cd "$scratch" && GOTOOLCHAIN=local "$1" version 2>/dev/null) |
    sed -n 's/^go version .*go\([0-9][0-9]*\.[0-9][0-9.]*\).*/\1/p'
}

new_enough() { at_least "$1" "1.$GO_MIN_MINOR"; }

# Candidates, one a line: what was provided before, then the machine's own.
go_candidates() {
  echo "$state/toolchain/bin/go"
  if [ "${KVC_SETUP_GO_CANDIDATES+set}" ]; then
    echo "$KVC_SETUP_GO_CANDIDATES" | tr ':' '\n'
  else
    command -v go || true
    echo /usr/local/go/bin/go
  fi
}

# Sets $go to the first candidate that is new enough, else $old_go to the first that runs at all.
find_go() {
  go=
  old_go=
  go_candidates >"$scratch/candidates"
  while IFS= read -r candidate; do
    [ -n "$candidate" ] && [ -x "$candidate" ] || continue
    version=$(go_version "$candidate")
    [ -n "$version" ] || continue
    if new_enough "$version"; then
      go=$candidate
      return
    fi
    [ -n "$old_go" ] || old_go=$candidate
  done <"$scratch/candidates"
}

# Prints the value of string field $2 of the JSON object in file $1, as `go mod download -json` writes it.
json_field() {
  sed -n "s/^[[:space:]]*\"$2\": \"\(.*\)\",\{0,1\}\$/\1/p" "$1" | head -n 1
}

# Provides the toolchain with go command $1 and sets $go.
fetch_toolchain() {
  arch=$(uname -m)
  [ "$arch" = x86_64 ] ||
    fail "missing: Go >= 1.$GO_MIN_MINOR. Set-up can provide it on x86_64 only, not on $arch: install Go by hand."
  say "Go $(go_version "$1") is too old: fetching golang.org/toolchain@$GO_TOOLCHAIN from the Go module proxy"
  (cd "$scratch" && GOTOOLCHAIN=local GO111MODULE=on GOFLAGS= GOWORK=off \
    "$1" mod download -json "golang.org/toolchain@$GO_TOOLCHAIN" >download.json) || {
    json_field "$scratch/download.json" Error >&2
    fail "missing: Go >= 1.$GO_MIN_MINOR. The toolchain module could not be downloaded; is the Go module proxy reachable?"
  }
  sum=$(json_field "$scratch/download.json" Sum)
  [ "$sum" = "$GO_TOOLCHAIN_SUM" ] ||
    fail "the toolchain module has checksum '$sum', expected '$GO_TOOLCHAIN_SUM': not used"
  dir=$(json_field "$scratch/download.json" Dir)
  [ -d "$dir" ] || fail "the toolchain module was downloaded, but its folder '$dir' does not exist"

  rm -rf "$state/toolchain" "$state/toolchain.new"
  mkdir -p "$state"
  cp -R "$dir" "$state/toolchain.new"
  chmod -R u+w "$state/toolchain.new"
  chmod +x "$state/toolchain.new"/bin/* "$state/toolchain.new"/pkg/tool/*/*
  find "$state/toolchain.new" -name _go.mod | while IFS= read -r file; do
    mv "$file" "${file%/_go.mod}/go.mod"
  done
  mv "$state/toolchain.new" "$state/toolchain"
  go=$state/toolchain/bin/go
  version=$(go_version "$go")
  [ -n "$version" ] || fail "the downloaded toolchain does not run: $go"
}

# --- main -------------------------------------------------------------------------------------------------------

find_go
packages=$(missing_packages)
if [ -z "$go" ] && [ -z "$old_go" ]; then
  packages="${packages:+$packages }golang-go"
fi

if [ -n "$packages" ]; then
  # shellcheck disable=SC2086  # one word a package
  apt_install $packages
  still=$(missing_packages)
  [ -z "$still" ] || fail "still missing after the installation: $still"
fi

if [ -z "$go" ]; then
  if [ -z "$old_go" ]; then
    installed=$(command -v go || true)
    [ -n "$installed" ] && [ -n "$(go_version "$installed")" ] ||
      fail "still missing after the installation: golang-go"
    # A newer distribution's package may do as it is.
    if new_enough "$(go_version "$installed")"; then go=$installed; else old_go=$installed; fi
  fi
  [ -n "$go" ] || fetch_toolchain "$old_go"
fi

mkdir -p "$state"
echo "$go" >"$state/path"
say "ready: Go $(go_version "$go") ($go)"
