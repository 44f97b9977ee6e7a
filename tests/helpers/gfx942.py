# SPDX-License-Identifier: Apache-2.0
"""The gfx942 code object for tests, compiled once for these sources and flags by `_build`."""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import hashlib
import subprocess
from pathlib import Path

from helpers.abi import CSRC, ROOT

from dsv41topk import _build

WARNINGS = ("-Wall", "-Wextra", "-Werror")


@functools.cache
def compiler() -> _build.Compiler | None:
    """The compiler that `build()` would use, or None."""
    return _build.choose_compiler(_build.find_compilers("gfx942"), "gfx942")


def unavailable() -> str | None:
    """Why nothing can be compiled for gfx942 here, or None."""
    return None if compiler() else "no compiler for gfx942 (hipcc, or clang-19 with lld-19)"


@functools.cache
def image(*flags: str) -> bytes:
    """The code object of all kernels, with `flags` after the product's own."""
    chosen = compiler()
    assert chosen is not None
    chosen = dataclasses.replace(chosen, flags=(*chosen.flags, *flags))
    key = hashlib.sha256(chosen.key("gfx942").encode()).hexdigest()[:16]
    folder = Path(ROOT) / "build" / "gfx942"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key}.co"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            data = _build.compile_image(chosen, "gfx942", folder)
            temporary = path.with_suffix(".new")
            temporary.write_bytes(data)
            temporary.rename(path)
    return path.read_bytes()


def compile_file(path: Path, folder: Path) -> bytes:
    """One .hip file of the tests as a code object of its own."""
    chosen = compiler()
    assert chosen is not None
    out = folder / f"{path.stem}.co"
    command = [chosen.path, *chosen.flags, *WARNINGS, "-I", str(CSRC), str(path), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out.read_bytes()
