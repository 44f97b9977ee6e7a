# SPDX-License-Identifier: Apache-2.0
"""Build and load rung 3: the kernels and the launchers, compiled by gcc, lanes run as fibres."""

import ctypes
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from helpers.abi import CSRC, ROOT

SOURCES = ROOT / "tests" / "harness"
FLAVOURS = {
    "plain": ["-O2"],
    # The sections that hold LDS get red zones too. Reports end the process: nothing may be only
    # printed.
    "sanitized": [
        "-O1",
        "-fsanitize=address,undefined",
        "-fsanitize-sections=dsv41_lds",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ],
    # Every access of the kernels calls a function of races.cpp; gcc's own runtime is not linked.
    "races": ["-O1", "-DHARNESS_RACES=1"],
    # The waves of sm_90.
    "wave32": ["-O2", "-DHARNESS_WAVE_SIZE=32"],
    # NaN is tested by bits: a compiler that is told that there is none changes nothing.
    "fast-math": ["-O2", "-ffast-math"],
}
_C = ["-std=c11", "-fPIC", "-g", "-Wall", "-Wextra", "-Werror"]
_CXX = ["-std=c++20", "-fPIC", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
_KERNEL = re.compile(r"DSV41_KERNEL\([^)]*\)\s*void\s+(\w+)\s*\(")


def unavailable():
    """Why the harness cannot be built here, or None."""
    return None if shutil.which("g++") else "no g++ in PATH"


def kernel_names(text):
    """The kernels that a source defines."""
    return list(dict.fromkeys(_KERNEL.findall(text)))


def _unit():
    """All kernels in one unit, as in the code object, and an entry of the table for each."""
    kernels = sorted((CSRC / "kernels").glob("*.hip"))
    lines = ['#include "platform_host.h"', *(f'#include "kernels/{path.name}"' for path in kernels)]
    for path in kernels:
        lines += [f"HARNESS_KERNEL({name})" for name in kernel_names(path.read_text())]
    return "\n".join(lines) + "\n"


def build(flavour="plain"):
    """Compile the library once for these sources; processes that ask at once wait for one."""
    compilers = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    inputs = [p for d in (CSRC, SOURCES) for p in sorted(d.rglob("*")) if p.is_file()]
    digest = hashlib.sha256(compilers + repr((_C, _CXX, FLAVOURS[flavour], _unit())).encode())
    for path in inputs:
        digest.update(str(path).encode() + path.read_bytes())
    folder = ROOT / "build" / "harness"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{flavour}-{digest.hexdigest()[:16]}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            for stale in folder.glob(f"{flavour}-*.so"):
                stale.unlink()
            _compile(flavour, library)
    return library


def _compile(flavour, library):
    work = library.with_suffix(".work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "unit.cpp").write_text(_unit())
    flags = [*FLAVOURS[flavour], f"-I{CSRC}", f"-I{SOURCES}", "-DDSV41_HOST_HARNESS=1"]
    sources = [work / "unit.cpp", *SOURCES.glob("*.cpp"), *CSRC.glob("*.c"), *CSRC.glob("cpu/*.c")]
    running = []
    for source in sources:
        compiler = ["gcc", *_C] if source.suffix == ".c" else ["g++", *_CXX]
        if flavour == "races" and source.name in ("unit.cpp", "faults.cpp", "probe.cpp"):
            compiler.append("-fsanitize=thread")
        command = [
            *compiler,
            *flags,
            "-c",
            str(source),
            "-o",
            str(work / f"{source.parent.name}-{source.stem}.o"),
        ]
        running.append((command, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)))
    ended = [(command, process.communicate()[1], process) for command, process in running]
    for command, errors, process in ended:
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{errors}")
    temporary = library.with_suffix(f".{os.getpid()}")
    objects = [str(path) for path in work.glob("*.o")]
    # Linked with -ffast-math, a library has the process take subnormals for zero. On a GPU a code
    # object says that of itself, and tests/gfx942/test_fast_math.py reads that ours does not.
    link = [
        "g++",
        "-shared",
        *(flag for flag in FLAVOURS[flavour] if flag != "-ffast-math"),
        *objects,
        "-ldl",
        "-lpthread",
        "-o",
        str(temporary),
    ]
    subprocess.run(link, check=True)
    shutil.rmtree(work)
    temporary.rename(library)


def sanitizer_environment():
    """What a process needs to load the sanitized library: ASan's runtime first, no leak check."""
    found = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    runtime = Path(found.stdout.strip()).resolve()
    return {
        "LD_PRELOAD": str(runtime),
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=1:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


class Harness:
    """The loaded library: its runtime table, and the knobs of its scheduler."""

    def __init__(self, flavour="plain"):
        self.library = ctypes.CDLL(str(build(flavour)))
        self.library.harness_runtime.restype = ctypes.c_void_p
        self.library.harness_error.restype = ctypes.c_char_p
        for name in ("harness_forbid", "harness_allow"):
            getattr(self.library, name).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.forbid, self.allow = self.library.harness_forbid, self.library.harness_allow
        self.runtime = self.library.harness_runtime()
        self.configure()

    def configure(self, seed=1, interleave=True, shuffle=True, compute_units=304):
        """Set the seed of all shuffling and the compute units that the double reports."""
        self.library.harness_configure(
            ctypes.c_uint64(seed), int(interleave), int(shuffle), compute_units
        )

    def counts(self):
        """Launches, workgroups, barriers and wave operations since `configure`."""
        names = ("launches", "workgroups", "barriers", "wave_operations")
        values = [ctypes.c_uint64() for _ in names]
        self.library.harness_counts(*(ctypes.byref(value) for value in values))
        return {name: value.value for name, value in zip(names, values, strict=True)}

    def error(self):
        """The text of the last failed launch."""
        return self.explained(self.library.harness_error().decode())

    def explained(self, text):
        """A text with source lines for code addresses, innermost first: `a.h:5 < b.hip:9`."""
        return re.sub(r"\[\+(0x\w+)\]", self._lines, text)

    def _lines(self, match):
        address = hex(int(match[1], 16) - 1)  # a return address: the call is just before it
        command = ["addr2line", "-i", "-e", self.library._name, address]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        places = [line.split(" (")[0].rsplit("/", 1)[-1] for line in found.splitlines()]
        return f"({' < '.join(places)})"


@functools.cache
def harness(flavour="plain"):
    """The one harness of this process and flavour."""
    return Harness(flavour)
