# SPDX-License-Identifier: Apache-2.0
"""Files that hold a decode step, or one call of it: numpy's `.npz`, without pickles.

A whole step, as `examples/make_real_step.py` makes it:

=========== ======= ================================ ==========================================
name        dtype   shape                            what
=========== ======= ================================ ==========================================
q           uint8   [requests, next_n, heads, 128]   FP8 codes
kv_cache    uint8   [pages, page_size, 1, 132]       the indexer cache
weights     float32 [rows, heads]
seq_lens    int32   [requests] or [requests, next_n]
block_table int32   [requests, columns]              page of each page's worth of columns
logits      float32 [rows, width]                    what dense scoring gave
fp8         str                                      `e4m3fn` or `e4m3fnuz`: of q and kv_cache
=========== ======= ================================ ==========================================

A call that a hook took (`DSV41TOPK_RECORD`) holds those of the names above that are its arguments,
and besides:

=========== ======= ================================ ==========================================
hook        str                                      the hook's name
next_n      int64                                    rows per request
block_size  int64                                    where the hook has it
candidates  int32   [rows, slots]                    where they are an argument to read
result      int32   [rows, 512] or [rows, slots]     what the call wrote
width       int64                                    width of the logits of the call
stride      int64                                    elements from row to row of them
=========== ======= ================================ ==========================================

There `logits` are cut behind the longest row, and `kv_cache` holds only the pages that the live
columns lie on, with a `block_table` that names them anew.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["STEP", "StepFileError", "load", "save"]

STEP = ("q", "kv_cache", "weights", "seq_lens", "block_table", "logits", "fp8")
"""What a whole step holds."""

ARGUMENTS = {
    "decode_top_k": ("logits", "next_n", "seq_lens"),
    "candidate_top_k": ("logits", "next_n", "seq_lens", "candidates", "block_size"),
    "candidate_logits_top_k": (
        "q", "kv_cache", "weights", "seq_lens", "block_table", "candidates", "block_size", "fp8",
    ),
    "select_candidates": ("logits", "next_n", "seq_lens", "block_size"),
}  # fmt: skip
"""What a recorded call of each hook holds beside `hook` and `result`."""

_KINDS = {
    "q": ("u1", 4), "kv_cache": ("u1", 4), "weights": ("f4", 2), "logits": ("f4", 2),
    "block_table": ("i4", 2), "candidates": ("i4", 2), "result": ("i4", 2),
}  # fmt: skip


class StepFileError(ValueError):
    """A file that is not a step file. The text says what is wrong with it."""


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arrays of a step file by name; strings and counts as Python's own.

    Raises
    ------
    StepFileError
        The file cannot be read, lacks an array, or has one of another dtype or rank.
    """
    try:
        # Opened here: numpy leaves a file open that turns out to be none of its own.
        with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            step: dict[str, Any] = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib, numpy and the system each have their own
        raise StepFileError(f"{path}: cannot be read as .npz: {error}") from error
    for name, (kind, rank) in _KINDS.items():
        array = step.get(name)
        if array is not None and (array.dtype != np.dtype(kind) or array.ndim != rank):
            rule = f"must be {np.dtype(kind)} of {rank} dimensions"
            raise StepFileError(f"{path}: {name} {rule}, got {array.dtype} {list(array.shape)}")
    step = {name: a.item() if a.ndim == 0 else a for name, a in step.items()}
    hook = step.get("hook")
    if hook is not None and hook not in ARGUMENTS:
        raise StepFileError(f"{path}: hook must be one of {', '.join(ARGUMENTS)}, got {hook}")
    missing = [name for name in (ARGUMENTS[hook] if hook else STEP) if name not in step]
    if missing:
        raise StepFileError(f"{path}: lacks {', '.join(missing)}")
    return step


def save(path: str | os.PathLike[str], step: dict[str, Any]) -> None:
    """Write a step file, whole or not at all; readable by this user alone."""
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".step-", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            arrays: dict[str, Any] = {name: np.asarray(value) for name, value in step.items()}
            np.savez_compressed(file, **arrays)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
