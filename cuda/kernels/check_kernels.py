#!/usr/bin/env python3
# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
"""What only a CUDA toolkit can say of sources that need none, with the pieces of CUDA 13 that pip has.

- nvcc takes the kernels for every GPU we name, each warning an error;
- ptxas takes kernels.ptx for every GPU we name, and spills nothing;
- our prototypes, numbers and structs of the driver are those of cuda.h.

Needs no GPU and no driver. Prints a table; exit status 1 when a check fails.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
ARCHITECTURES = ["80", "86", "89", "90", "100", "120"]


def toolkit():
    folder = os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "cu13")
    if not os.path.exists(os.path.join(folder, "bin", "nvcc")):
        raise SystemExit("check_kernels: no nvcc in %s: run 'make cuda-check'" % folder)
    return folder


def run(command):
    """Returns (what it said, whether it succeeded)."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout, done.returncode == 0


def main():
    cuda = toolkit()
    nvcc, ptxas = (os.path.join(cuda, "bin", name) for name in ("nvcc", "ptxas"))
    failed = False

    def say(what, said, good):
        nonlocal failed
        failed = failed or not good
        print("%-44s %s" % (what, "ok" if good else "FAILED"))
        if not good:
            print(said)

    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "out")
        for arch in ARCHITECTURES:
            flags = ["--std=c++17", "-I", ROOT, "--Werror", "all-warnings", "-Xptxas", "-Werror", "-arch=sm_" + arch]
            said, good = run([nvcc, "-cubin", "-o", out, *flags, os.path.join(FOLDER, "kernels.cu")])
            say("nvcc kernels.cu sm_" + arch, said, good)
        for arch in ARCHITECTURES:
            said, good = run([ptxas, "-arch=sm_" + arch, "-v", "-o", out, os.path.join(FOLDER, "kernels.ptx")])
            spills = re.findall(r"([1-9][0-9]*) bytes (?:stack frame|spill)", said)
            used = [int(n) for n in re.findall(r"Used ([0-9]+) registers", said)]
            what = "ptxas kernels.ptx sm_%s (at most %d registers)" % (arch, max(used, default=0))
            say(what, said, good and not spills and len(used) > 0)
        said, good = run([
            os.environ.get("CXX", "g++"), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", ROOT,
            "-I", os.path.join(ROOT, "native", "include"), "-isystem", os.path.join(cuda, "include"),
            "-DKVC_REQUIRE_CUDA_HEADER", os.path.join(ROOT, "tests", "gpu", "header_check.cpp")])
        say("prototypes against cuda.h", said, good)
    sys.exit(1 if failed else 0)


main()
