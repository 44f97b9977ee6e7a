# SPDX-License-Identifier: Apache-2.0
"""Host cost of launching the candidate logits kernel through Triton, with no GPU.

HIP's functions are replaced by ones that do nothing, in a library that Triton's generated launcher
finds where it would find the real one, so that what is timed is Triton's own work: its argument
parsing in C, `compiled[grid](...)` around it, and the call of the jitted function around both.

Needs Triton's ROCm part, torch, and the C compiler that Triton's launcher is made with.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dsv41topk import _logits, _logits_check

__all__ = ["measure"]

_AITER = "aiter.ops.triton.gluon.pa_mqa_logits"

# hipPointerGetAttribute answers with the address itself, as the real one does for device memory.
_NO_HIP = """
#include <stdint.h>
#include <string.h>
static int nothing(void) { return 0; }
static int same_address(void* data, int attribute, void* pointer) {
  (void)attribute;
  *(void**)data = pointer;
  return 0;
}
int hipGetProcAddress(const char* name, void** function, int version, uint64_t flags,
                      void* status) {
  (void)version, (void)flags, (void)status;
  *function = strcmp(name, "hipPointerGetAttribute") == 0 ? (void*)same_address : (void*)nothing;
  return 0;
}
"""


@contextlib.contextmanager
def _no_hip(folder: Path) -> Iterator[None]:
    """Let Triton find a HIP library that does nothing, and generate its launcher for it."""
    library = folder / "libamdhip64.so"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=_NO_HIP.encode(), check=True)
    from triton import knobs

    previous, cache = knobs.amd.libhip_path, knobs.cache.dir
    knobs.amd.libhip_path, knobs.cache.dir = str(library), str(folder / "cache")
    try:
        yield
    finally:
        knobs.amd.libhip_path, knobs.cache.dir = previous, cache


@contextlib.contextmanager
def _aiter_or_stand_in() -> Iterator[None]:
    """AITER's two names, stood in for where it is not installed: neither costs the host time."""
    try:
        importlib.import_module(_AITER)
        yield
        return
    except ImportError:
        pass
    import triton
    from triton.experimental.gluon import language as gl

    stand_in = types.ModuleType(_AITER)
    stand_in._sum_combine = triton.jit(_add)  # type: ignore[attr-defined]
    stand_in._Use_2d_instr_shape_mfma_layout = gl.constexpr(False)  # type: ignore[attr-defined]
    names = [_AITER.rsplit(".", i)[0] for i in range(_AITER.count("."), 0, -1)]
    added = {name: types.ModuleType(name) for name in names if name not in sys.modules}
    added[_AITER] = stand_in
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in [*added, "dsv41topk.cand_logits"]:
            sys.modules.pop(name, None)


def _add(a, b):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return a + b


def _driver() -> Any:
    """Return a Triton driver with the real launcher of ROCm and no device behind it."""
    from triton.backends.amd.driver import HIPLauncher
    from triton.backends.compiler import GPUTarget

    properties = {"max_shared_mem": 64 << 10, "arch": "gfx942", "warpSize": 64}
    return types.SimpleNamespace(
        launcher_cls=HIPLauncher,
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("hip", "gfx942", 64),
        utils=types.SimpleNamespace(
            load_binary=lambda name, image, shared, device: (1, 1, 0, 0, 1024),
            get_device_properties=lambda device: properties,
        ),
    )


def _nanoseconds(call: Callable[[], object], repeats: int = 15, number: int = 1000) -> float:
    """Return the time of one call, an empty call's taken off.

    Of each the fastest repeat: other processes only add time, and a launch is short beside them.
    """

    def empty() -> None:
        return None

    fastest = [float("inf"), float("inf")]
    for _ in range(repeats):
        for which, function in enumerate((call, empty)):
            start = time.perf_counter_ns()
            for _ in range(number):
                function()
            fastest[which] = min(fastest[which], (time.perf_counter_ns() - start) / number)
    return fastest[0] - fastest[1]


def measure(rows: int = 6, heads: int = 64, page_size: int = 64) -> dict[str, float]:
    """Time the three ways through Triton, on CPU tensors of one decode step.

    Returns
    -------
    Nanoseconds a launch: of the launcher that Triton generates in C, of ``compiled[grid](...)``,
    and of calling the jitted function.
    """
    import torch
    import triton

    slots, block_size = 2048, 8
    with tempfile.TemporaryDirectory() as folder, _no_hip(Path(folder)), _aiter_or_stand_in():
        from dsv41topk import cand_logits

        previous = triton.runtime.driver._active
        triton.runtime.driver.set_active(_driver())
        try:
            variant = cand_logits.Variant(_logits_check.PLAIN, False)
            kernel = cand_logits.compile_kernel(heads, page_size, block_size, False, variant)
            cache = torch.zeros((16, page_size * 132), dtype=torch.uint8)
            keys = cache.view(torch.float8_e4m3fnuz)
            args: list[Any] = [
                torch.zeros((rows, heads, 128), dtype=torch.float8_e4m3fnuz),
                keys,
                page_size * 132,
                cache.view(torch.float32),
                16,
                torch.ones(1, dtype=torch.int32),
                rows,
                torch.zeros((1, 16), dtype=torch.int32),
                16,
                16 * page_size,
                torch.zeros((rows, slots), dtype=torch.int32),
                slots,
                torch.zeros((rows, heads)),
                heads,
                torch.empty((rows, slots * block_size)),
                torch.empty((rows, slots * block_size), dtype=torch.int32),
                slots * block_size,
            ]
            constants = list(kernel.src.constants.values())
            grid = (rows, slots * block_size // _logits.TILE, 1)
            named = dict(zip(kernel.src.fn.arg_names[len(args) :], constants, strict=True))
            jitted = cand_logits.candidate_logits_kernel[grid]
            bound = kernel[grid]
            generated = kernel.run.launch  # behind the class that allocates scratch
            head = (False, *grid, 0, 1, None, kernel.packed_metadata, None, None, None)
            calls: dict[str, Callable[[], object]] = {
                "Triton's generated launcher": lambda: generated(*head, *args, *constants),
                "Triton's compiled[grid](...)": lambda: bound(*args, *constants),
                "Triton's jitted function": lambda: jitted(
                    *args, **named, num_warps=4, enable_fp_fusion=False
                ),
            }
            for call in calls.values():
                call()
            return {name: _nanoseconds(call) for name, call in calls.items()}
        finally:
            triton.runtime.driver._active = previous


if __name__ == "__main__":
    for name, nanoseconds in measure().items():
        print(f"{name:32} {nanoseconds:8.0f} ns")
