#!/usr/bin/env python3
# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles kernels.cu to PTX with NVRTC, which needs no toolkit, no header, no driver and no GPU.

Writes kernels.ptx, for people, and kernels_ptx.inc, the same text as numbers, for the compiler. Both say how they were
made and carry the SHA-256 of every source: tests compare those with the sources on every machine, so an edited kernel
that was not compiled anew is found without NVRTC.

Usage: make_ptx.py [--check]
  --check  compile, compare with what is there, change nothing
"""

import ctypes
import glob
import hashlib
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
# The oldest driver that is supported translates ISA 7.8, which is what NVRTC 11.8 writes; sm_80 is the oldest GPU.
NVRTC = (11, 8)
HEADER = [".version 7.8", ".target sm_80"]
OPTIONS = ["--gpu-architecture=compute_80", "--std=c++17", "--include-path=" + ROOT]
SPDX = ["SPDX-FileCopyrightText: " + "The kvcast authors", "SPDX-License-Identifier: " + "Apache-2.0"]
LINE = 20


def nvrtc_library():
    """The library of the pip package in this interpreter's environment, or of the system."""
    for folder in sys.path:
        for name in sorted(glob.glob(os.path.join(folder, "nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.*"))):
            # NVRTC opens its built-ins by name, and the package's folder is on no search path.
            for builtins in sorted(glob.glob(os.path.join(os.path.dirname(name), "libnvrtc-builtins.so.*"))):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(name)
    return ctypes.CDLL("libnvrtc.so.11.2")


def sources():
    names = [n for n in os.listdir(FOLDER) if n.endswith((".cu", ".h"))]
    return sorted(names)


def sha256(name):
    with open(os.path.join(FOLDER, name), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def compile_ptx(nvrtc):
    def check(result, what):
        if result != 0:
            nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise SystemExit("make_ptx: %s: %s" % (what, nvrtc.nvrtcGetErrorString(result).decode()))

    major, minor = ctypes.c_int(), ctypes.c_int()
    check(nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    if (major.value, minor.value) != NVRTC:
        raise SystemExit("make_ptx: this is NVRTC %d.%d, kernels.ptx is made with %d.%d" % (major.value, minor.value, *NVRTC))
    with open(os.path.join(FOLDER, "kernels.cu"), "rb") as file:
        text = file.read()
    program = ctypes.c_void_p()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None), "nvrtcCreateProgram")
    options = (ctypes.c_char_p * len(OPTIONS))(*[o.encode() for o in OPTIONS])
    result = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)), "nvrtcGetProgramLogSize")
    log = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetProgramLog(program, log), "nvrtcGetProgramLog")
    # A warning is an error here: nobody reads the log of a verb that succeeded.
    if log.value.strip():
        sys.stderr.write(log.value.decode() + "\n")
        raise SystemExit("make_ptx: NVRTC has something to say")
    check(result, "nvrtcCompileProgram")
    check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)), "nvrtcGetPTXSize")
    ptx = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetPTX(program, ptx), "nvrtcGetPTX")
    return ptx.value.decode()


def strip_comments(ptx):
    """Drops NVRTC's comment block, which names the build; ours says what matters."""
    lines = [line.rstrip() for line in ptx.splitlines() if not line.startswith("//")]
    text = "\n".join(lines).strip("\n") + "\n"
    for wanted in HEADER:
        if "\n" + wanted + "\n" not in "\n" + text:
            raise SystemExit("make_ptx: the PTX does not say '%s'" % wanted)
    return text


def header():
    said = SPDX + [
        "",
        "Made by `make ptx` from the files below; do not edit.",
        "NVRTC %d.%d %s" % (*NVRTC, " ".join(o for o in OPTIONS if not o.startswith("--include-path"))),
    ]
    said += ["sha256 %s %s" % (sha256(name), name) for name in sources()]
    return "".join("// %s\n" % line if line else "//\n" for line in said)


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        raise SystemExit(__doc__.strip())
    ptx = header() + "\n" + strip_comments(compile_ptx(nvrtc_library()))
    data = ptx.encode() + b"\0"
    rows = [",".join(str(b) for b in data[i : i + LINE]) + ",\n" for i in range(0, len(data), LINE)]
    inc = header() + "//\n// kernels.ptx and a closing zero, as the elements of an array of char.\n" + "".join(rows)
    stale = []
    for name, text in (("kernels.ptx", ptx), ("kernels_ptx.inc", inc)):
        path = os.path.join(FOLDER, name)
        if sys.argv[1:]:
            with open(path, encoding="utf-8") as file:
                if file.read() != text:
                    stale.append(name)
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    if stale:
        raise SystemExit("make_ptx: %s differ from what NVRTC makes: run 'make ptx'" % " and ".join(stale))


main()
