# SPDX-License-Identifier: Apache-2.0
"""Which compiled kernel serves `candidate_logits_top_k` on gfx942, if any.

`prepare` is what the hook calls once for each (device, heads, page size, block size, form of
seq_lens) and never again: it compiles our kernel, has it compared with AITER's dense kernel on the
device (`_logits_check`), and returns the code object that csrc/logits.c launches from then on.

Needed of AITER, and looked up by name here and in `cand_logits`:

- ``aiter.ops.triton.gluon.pa_mqa_logits``: ``_sum_combine`` and ``_Use_2d_instr_shape_mfma_layout``
- ``aiter.ops.triton.pa_mqa_logits`` or ``aiter.ops.triton.attention.pa_mqa_logits``, whichever is
  there first, as vLLM looks: ``deepgemm_fp8_paged_mqa_logits`` with the parameters ``Preshuffle``,
  ``KVBlockSize``, ``ChunkK``, ``TotalCuCount`` and ``WavePerEU``
- its ``_compile_deepgemm_fp8_paged_mqa_logits``, if it is there: the key under which a check's
  result is kept. Without it, every process checks again

Anything else closes this one hook, with one warning. AITER, Triton and torch are imported only when
`prepare` is called.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import inspect
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dsv41topk import _build, _env
from dsv41topk._logits_check import CheckInputs, Runner, Verdict, make_inputs, run_check

_logger = logging.getLogger("dsv41topk")

_CHUNK_K = 256
_WAVES_PER_EU = 2
_DENSE_MODULES = ("aiter.ops.triton.pa_mqa_logits", "aiter.ops.triton.attention.pa_mqa_logits")
_DENSE_PARAMETERS = ("Preshuffle", "KVBlockSize", "ChunkK", "TotalCuCount", "WavePerEU")

# The kernel's arguments in order, as csrc/logits.c passes them. Fixed here and not left to Triton's
# specialisation, so that one compiled kernel serves every value.
SIGNATURE = {
    "q": "*fp8e4b8",
    "keys": "*fp8e4b8",
    "page_stride_bytes": "i32",
    "scales": "*fp32",
    "pages": "i32",
    "seq_lens": "*i32",
    "rows_per_request": "i32",
    "block_table": "*i32",
    "block_table_stride": "i64",
    "table_end": "i32",
    "candidates": "*i32",
    "candidates_stride": "i64",
    "weights": "*fp32",
    "weights_stride": "i64",
    "out_logits": "*fp32",
    "out_ids": "*i32",
    "row_slots": "i32",
}
TILE = 128  # slots of a workgroup, kTileSlots there
WAVES = 4
WAVE_SIZE = 64
_POINTERS_OF_TRITON = 2  # global and profile scratch, behind a kernel's own arguments


class UnsuitableError(ImportError):
    """Triton or AITER is missing, or is not the one that this needs."""


class Refused(Enum):
    """Why `prepare` has no plan."""

    NOT_NOW = "the check cannot run inside a graph capture"
    CLOSED = "closed for the rest of the process"


@dataclass(frozen=True)
class Plan:
    """What the hook launches.

    Attributes
    ----------
    image, name, threads, lds_bytes : for dsv41_logits_load
    launch : None, or Triton's own launcher where C cannot launch this kernel: called with the grid
        (x, y), the stream and the kernel's arguments as integers
    """

    image: bytes
    name: str
    threads: int
    lds_bytes: int
    launch: Callable[..., None] | None


class Environment(Protocol):
    """The device and the libraries, as far as this module needs them; a test brings its own."""

    def capturing(self) -> bool:
        """Return whether the current stream is being captured."""

    def dense_hash(self, heads: int, page_size: int) -> str | None:
        """Return a hash of the dense kernel's code, None when it cannot be had."""

    def runner(self, heads: int, page_size: int, block_size: int) -> Runner[Any]:
        """Return what runs both kernels; raises UnsuitableError."""


# ---- the answer to the hook ----------------------------------------------------------------------

make_environment: Callable[[int], Environment] = lambda ordinal: DeviceEnvironment(ordinal)  # noqa: E731
_lock = threading.Lock()
_verdicts: dict[tuple[int, int, int], Verdict[Any] | None] = {}
_unsuitable = ""  # set once: the libraries' fault, whatever the shapes


def prepare(
    ordinal: int,
    heads: int,
    page_size: int,
    block_size: int,
    ends_per_row: bool,
) -> Plan | Refused:
    """Return the kernel for these shapes, compiled and compared. Never raises.

    Parameters
    ----------
    ordinal : int
        The device, as torch and the runtime number it.
    ends_per_row : bool
        seq_lens holds an end for every row, not one length for each request.
    """
    key = (heads, page_size, block_size)
    env = make_environment(ordinal)
    with _lock:
        if _unsuitable:
            return Refused.CLOSED
        try:
            if key not in _verdicts:
                if env.capturing():
                    return Refused.NOT_NOW
                _verdicts[key] = _decide(env, *key)
            verdict = _verdicts[key]
            return Refused.CLOSED if verdict is None else _plan(verdict.kernels[ends_per_row])
        except UnsuitableError as error:
            _close(str(error))
        except Exception as error:  # a compiler's or a runtime's; the rim of this hook
            _close(f"{type(error).__name__}: {error}")
        return Refused.CLOSED


def status() -> str:
    """Return a line for the log and the doctor: what was checked, and how it went."""
    if _unsuitable:
        return f"closed: {_unsuitable}"
    lines = [
        f"{heads} heads, pages of {page_size}, blocks of {block_size}: "
        + ("closed" if verdict is None else verdict.tried[-1] if verdict.tried else "from cache")
        for (heads, page_size, block_size), verdict in _verdicts.items()
    ]
    return "; ".join(lines) or "not asked for yet"


def reset() -> None:
    """Forget every answer, for tests."""
    global _unsuitable
    with _lock:
        _verdicts.clear()
        _unsuitable = ""


def _close(reason: str) -> None:
    global _unsuitable
    _unsuitable = reason
    _logger.warning("candidate_logits_top_k is closed: %s", reason)


# ---- the check and its cache ---------------------------------------------------------------------


def _decide(env: Environment, heads: int, page_size: int, block_size: int) -> Verdict[Any] | None:
    """Check one shape, or take a kept result; None when it must stay closed."""
    runner = env.runner(heads, page_size, block_size)
    dense_hash = env.dense_hash(heads, page_size)
    key = None
    if dense_hash is not None:
        key = f"{dense_hash} {heads} {page_size} {block_size} {_source_hash()}"
        kept = _kept_verdict(runner, key)
        if kept is not None:
            return _opened(kept)
    verdict = run_check(runner, make_inputs(heads, page_size, block_size))
    if key is not None:
        _build.cache_put("candidate_logits_check", key, _as_json(verdict))
    return _opened(verdict)


def _opened(verdict: Verdict[Any]) -> Verdict[Any] | None:
    if verdict.identical:
        return verdict
    allowed = _env.allow_last_bit()
    _logger.warning(
        "candidate logits: %d of %d differ from AITER's dense kernel in their last bits (%s); "
        "candidate_logits_top_k is %s",
        verdict.differing,
        verdict.compared,
        "; ".join(verdict.tried),
        "open because DSV41TOPK_ALLOW_LAST_BIT=1"
        if allowed
        else "closed (DSV41TOPK_ALLOW_LAST_BIT=1 would open it)",
    )
    return verdict if allowed else None


def _as_json(verdict: Verdict[Any]) -> dict[str, Any]:
    return {
        "fused": verdict.fused,
        "fp_fusion": verdict.fp_fusion,
        "compared": verdict.compared,
        "differing": verdict.differing,
        "tried": list(verdict.tried),
        "code": {str(int(form)): code_hash(kernel) for form, kernel in verdict.kernels.items()},
    }


def _kept_verdict(runner: Runner[Any], key: str) -> Verdict[Any] | None:
    """Return a kept verdict if our kernel still compiles to the code that was checked."""
    kept = _build.cache_get("candidate_logits_check", key)
    if not isinstance(kept, dict):
        return None
    try:
        kernels = {
            form: runner.compile(kept["fused"], kept["fp_fusion"], form) for form in (False, True)
        }
        if any(code_hash(k) != kept["code"][str(int(form))] for form, k in kernels.items()):
            return None
        return Verdict(
            kept["fused"],
            kept["fp_fusion"],
            kernels,
            kept["compared"],
            kept["differing"],
            tuple(kept["tried"]),
        )
    except (KeyError, TypeError):  # not kept by this version
        return None


def code_hash(kernel: Any) -> str:
    """Return the hash of a compiled kernel's code object."""
    return hashlib.sha256(kernel.asm["hsaco"]).hexdigest()


def _source_hash() -> str:
    folder = Path(__file__).parent
    sources = [(folder / name).read_bytes() for name in ("cand_logits.py", "_logits_check.py")]
    return hashlib.sha256(b"\0".join(sources)).hexdigest()


# ---- from a compiled kernel to a launch ----------------------------------------------------------


def _plan(kernel: Any) -> Plan:
    direct = launches_from_c(kernel)
    if not direct:
        _logger.info("candidate logits: this Triton's kernels are launched by Triton itself")
    return Plan(
        image=kernel.asm["hsaco"],
        name=kernel.metadata.name,
        threads=WAVES * WAVE_SIZE,
        lds_bytes=kernel.metadata.shared,
        launch=None if direct else triton_launcher(kernel),
    )


def launches_from_c(kernel: Any) -> bool:
    """Return whether the code object takes the arguments that csrc/logits.c passes, and no others.

    Its metadata must list SIGNATURE's arguments at their natural offsets and then Triton's two
    scratch pointers, of which neither may be used.
    """
    metadata = kernel.metadata
    scratch = ("global_scratch_size", "profile_scratch_size")
    if any(getattr(metadata, name, 0) for name in scratch):
        return False
    if metadata.launch_cooperative_grid or metadata.num_ctas != 1:
        return False
    wanted, at = [], 0
    for kind in [*SIGNATURE.values(), *["*i8"] * _POINTERS_OF_TRITON]:
        size = 4 if kind == "i32" else 8
        at = -(-at // size) * size
        wanted.append((at, size))
        at += size
    listed = re.findall(r"\.offset:\s+(\d+)\s+\.size:\s+(\d+)", kernel.asm["amdgcn"])
    return [(int(offset), int(size)) for offset, size in listed] == wanted


def triton_launcher(kernel: Any) -> Callable[..., None]:
    """Return a call of Triton's own launcher, which takes addresses as integers too.

    The handle that it makes on its first use belongs to the device that is current then.
    """
    own = copy.copy(kernel)
    constants = list(kernel.src.constants.values())

    def launch(grid_x: int, grid_y: int, stream: int, *args: int) -> None:
        run = own.run  # makes own.function
        run(
            grid_x, grid_y, 1, stream, own.function, own.packed_metadata, None, None, None,
            *args, *constants,
        )  # fmt: skip

    return launch


# ---- the real device -----------------------------------------------------------------------------


class DeviceEnvironment:
    """Torch, Triton and AITER on one device."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal

    def capturing(self) -> bool:
        """Return whether the current stream is being captured."""
        import torch

        return bool(torch.cuda.is_current_stream_capturing())

    def dense_hash(self, heads: int, page_size: int) -> str | None:
        """Return the hash of the code object that AITER's function would launch."""
        module = _dense_module()
        try:
            kernel = module._compile_deepgemm_fp8_paged_mqa_logits(
                ChunkQ=heads,
                ChunkK=_CHUNK_K,
                Preshuffle=True,
                KVBlockSize=page_size,
                HiddenDim=128,
                is_padded_mode=True,
                WavePerEU=_WAVES_PER_EU,
            )
            return code_hash(kernel)
        except (AttributeError, KeyError, TypeError):  # another AITER: check in every process
            return None

    def runner(self, heads: int, page_size: int, block_size: int) -> Runner[Any]:
        """Return the runner on this device, once the libraries have what it needs."""
        import torch

        device = torch.device("cuda", self._ordinal)
        return DeviceRunner(device, heads, page_size, block_size)


def _dense_module() -> Any:
    for name in _DENSE_MODULES:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise UnsuitableError("AITER has no ops.triton.attention.pa_mqa_logits")


def _dense_function() -> Callable[..., Any]:
    module = _dense_module()
    function = getattr(module, "deepgemm_fp8_paged_mqa_logits", None)
    if not callable(function):
        raise UnsuitableError(f"{module.__name__} has no deepgemm_fp8_paged_mqa_logits")
    present = inspect.signature(function).parameters
    missing = [name for name in _DENSE_PARAMETERS if name not in present]
    if missing:
        raise UnsuitableError(
            f"{module.__name__}.deepgemm_fp8_paged_mqa_logits has no parameter "
            + ", ".join(missing)
        )
    return function  # type: ignore[no-any-return]


def load_kernel_module() -> Any:
    """Import `cand_logits`, or raise UnsuitableError with the name that is missing."""
    try:
        return importlib.import_module("dsv41topk.cand_logits")
    except ImportError as error:
        raise UnsuitableError(f"candidate logits need Triton and AITER: {error}") from error


class DeviceRunner:
    """Runs both kernels on a device, through their libraries' own launchers."""

    def __init__(self, device: Any, heads: int, page_size: int, block_size: int) -> None:
        import torch

        self._torch = torch
        self._device = device
        self._shape = (heads, page_size, block_size)
        self._dense = _dense_function()
        self._kernels = load_kernel_module()

    def compile(self, fused: int, fp_fusion: bool, ends_per_row: bool) -> Any:
        """Compile one variant of our kernel."""
        variant = self._kernels.Variant(fused, fp_fusion)
        return self._kernels.compile_kernel(*self._shape, ends_per_row, variant)

    def dense(self, inputs: CheckInputs) -> NDArray[np.float32]:
        """Return the dense kernel's logits, float32 [rows, inputs.width]."""
        with self._guard():
            rows = inputs.weights.shape[0]
            out = self._torch.full((rows, inputs.width), float("nan"), device=self._device)
            self._dense(
                self._on_device(inputs.q).view(self._torch.float8_e4m3fnuz),
                self._on_device(inputs.kv_cache),
                self._on_device(inputs.weights),
                out,
                self._on_device(inputs.seq_lens),
                self._on_device(inputs.block_table),
                inputs.width,
                Preshuffle=True,
                KVBlockSize=self._shape[1],
                ChunkK=_CHUNK_K,
                TotalCuCount=1,  # ten splits: long enough ones to reach the kernel's inner loop
                WavePerEU=_WAVES_PER_EU,
            )
            logits: NDArray[np.float32] = out.cpu().numpy()
            return logits

    def candidate(
        self, kernel: Any, inputs: CheckInputs, ends_per_row: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Return our compact logits and ids, both [rows, slots * block_size]."""
        with self._guard():
            rows, slots = inputs.candidates.shape
            row_slots = slots * inputs.block_size
            shape = (rows, row_slots)
            logits = self._torch.full(shape, float("nan"), device=self._device)
            ids = self._torch.full(shape, -2, dtype=self._torch.int32, device=self._device)
            lens = inputs.row_ends if ends_per_row else inputs.seq_lens
            arrays = (inputs.q, inputs.kv_cache, lens, inputs.block_table, inputs.candidates)
            tensors = [self._on_device(array) for array in (*arrays, inputs.weights)]
            addresses = [tensor.data_ptr() for tensor in (*tensors, logits, ids)]
            args = kernel_arguments(inputs, *addresses)
            triton_launcher(kernel)(rows, -(-row_slots // TILE), self._stream(), *args)
            return logits.cpu().numpy(), ids.cpu().numpy()

    def _guard(self) -> contextlib.AbstractContextManager[Any]:
        guard: contextlib.AbstractContextManager[Any] = self._torch.cuda.device(self._device)
        return guard

    def _stream(self) -> int:
        return int(self._torch.cuda.current_stream(self._device).cuda_stream)

    def _on_device(self, array: NDArray[Any]) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def kernel_arguments(
    inputs: CheckInputs,
    q: int,
    cache: int,
    ends: int,
    table: int,
    candidates: int,
    weights: int,
    out_logits: int,
    out_ids: int,
) -> list[int]:
    """Return the kernel's arguments for these inputs at these addresses, in SIGNATURE's order."""
    page_size = inputs.kv_cache.shape[1]
    page_bytes = inputs.kv_cache[0].size
    table_columns = inputs.block_table.shape[1]
    slots = inputs.candidates.shape[1]
    return [
        q,
        cache,
        page_bytes,
        cache + page_size * 128,
        inputs.kv_cache.shape[0],
        ends,
        inputs.row_ends.shape[1],
        table,
        table_columns,
        table_columns * page_size,
        candidates,
        slots,
        weights,
        inputs.weights.shape[1],
        out_logits,
        out_ids,
        slots * inputs.block_size,
    ]
