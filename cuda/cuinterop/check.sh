#!/bin/sh
# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# check.sh DRIVER HEADERS: builds cuda/cuinterop with the cuda.h in HEADERS and tests it on the libcuda.so in DRIVER, the
# fake one of tests/fakecuda, which has the entries that the test calls and not the hundreds that gorgonia.org/cu can
# call: those stay unresolved.

set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$root"
CGO_CFLAGS="-O1 -isystem $2"
CGO_LDFLAGS="-L$1 -Wl,--unresolved-symbols=ignore-all"
LD_LIBRARY_PATH=$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export CGO_CFLAGS CGO_LDFLAGS LD_LIBRARY_PATH
.ci/go vet -tags cuda ./cuda/cuinterop ./tests/cuinterop
.ci/go test -count=1 -tags cuda ./tests/cuinterop
