# SPDX-License-Identifier: Apache-2.0
"""`csrc/runtime.c` beside a fake HIP or CUDA library, each test in a process of its own.

A process keeps what it has loaded, and the table keeps what it has found; so a test's body runs in
a spawned process, which starts with neither.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from helpers import abi

HELPERS = Path(__file__).resolve().parent

_SHIM = """
#include "runtime.c"
static const char* const names[] = {%s};
_Static_assert(sizeof names / sizeof *names == DSV41_KERNEL_COUNT, "a name a kernel");
const char* dsv41_kernel_name(int kernel) { return names[kernel]; }
"""


def compile_library(
    target: Path, source: Path, *options: str, compiler: tuple[str, ...] = ("cc",)
) -> Path:
    """Compile a C file to a shared library with warnings as errors."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [*compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run([*command, *options, str(source), "-o", str(target)], check=True, timeout=60)
    return target


def compile_runtime(folder: Path) -> Path:
    """Compile runtime.c alone, with names for the kernels: kernel_0, kernel_1, ..."""
    names = ", ".join(f'"kernel_{i}"' for i in range(abi.ENUMS["DSV41_KERNEL_COUNT"]))
    shim = folder / "runtime_alone.c"
    shim.write_text(_SHIM % names)
    return compile_library(folder / "libruntime.so", shim, f"-I{abi.CSRC}", "-pthread")


def in_new_process(function: Callable[..., None], *arguments: object) -> None:
    """Call a module-level function in a fresh process and pass on what it raises."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        pool.submit(function, *arguments).result(timeout=120)


class Fake:
    """The controls of fake_gpu.c."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.fake_log.restype = ctypes.c_char_p

    def log(self) -> list[str]:
        """Return what was called since the last look."""
        lines: list[str] = self.library.fake_log().decode().splitlines()
        self.library.fake_clear()
        return lines

    def fail(self, name: str, nth: int, code: int) -> None:
        self.library.fake_fail(name.encode(), nth, code)


class Runtime:
    """What runtime.c offers, with texts for codes."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.dsv41_runtime_find.restype = ctypes.POINTER(abi.Runtime)
        self.library.dsv41_error_text.restype = ctypes.c_char_p
        self.failure = abi.Failure()

    def find(self, name: str) -> tuple[ctypes._Pointer | None, str]:
        """Return the table, or None, and the words."""
        why = ctypes.create_string_buffer(512)
        table = self.library.dsv41_runtime_find(name.encode(), why, ctypes.c_size_t(len(why)))
        return (table or None), why.value.decode()

    def arch(self, table: ctypes._Pointer, ordinal: int) -> tuple[int, str]:
        text = ctypes.create_string_buffer(64)
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
        code = prototype(table.contents.arch)(ordinal, text, len(text))
        return code, text.value.decode()

    def load(self, table: ctypes._Pointer, ordinal: int, image: bytes) -> abi.Device | None:
        device = abi.Device()
        code = self.library.dsv41_device_load(
            table, ordinal, image, ctypes.byref(device), ctypes.byref(self.failure)
        )
        assert code == self.failure.code
        return device if code == 0 else None

    def launch(
        self,
        device: abi.Device,
        kernel: int,
        grid: tuple[int, int] = (3, 2),
        size: int = 1024,
        args: ctypes.Structure | None = None,
        stream: int = 0x51,
    ) -> int:
        """Launch, by default with the argument 41, which the fake writes down."""
        code: int = self.library.dsv41_device_launch(
            ctypes.byref(device),
            kernel,
            *grid,
            size,
            ctypes.c_void_p(stream),
            ctypes.byref(args or ctypes.c_int(41)),
            ctypes.byref(self.failure),
        )
        return code

    def text(self, table: ctypes._Pointer | None) -> str:
        """Word the failure as the package does."""
        words = self.library.dsv41_error_text(table, self.failure.code).decode()
        return f"{words} ({self.failure.code}) from {self.failure.kernel.decode()}"
