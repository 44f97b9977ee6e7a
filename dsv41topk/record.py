# SPDX-License-Identifier: Apache-2.0
"""`DSV41TOPK_RECORD=DIR`: hooks write the calls that they took as step files (see `step.py`).

`python -m dsv41topk demo --replay DIR/*.npz` runs them again, on any machine.

A process that records is for finding a fault, not for serving: each recorded call is copied to the
host, and so waits for the GPU. The folder bounds what is written: once it holds `MAX_FILES` files
or `MAX_BYTES` bytes, nothing is added until some are taken away. Calls under graph capture, which
may not wait, are left out.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv41topk import step

__all__ = ["MAX_BYTES", "MAX_FILES", "MAX_FILE_BYTES", "folder", "on_call"]

Array = NDArray[Any]

MAX_FILES = 72
"""Eight steps of the model: nine calls each."""
MAX_FILE_BYTES = 256 << 20
"""Of a call's arrays before they are compressed; larger calls are left out."""
MAX_BYTES = 1 << 30
"""Of the folder's files."""

_logger = logging.getLogger("dsv41topk")
_numbers = itertools.count()
_lock = threading.Lock()
_said: set[str] = set()


def folder() -> Path | None:
    """Return the folder of the switch, or None."""
    name = os.environ.get("DSV41TOPK_RECORD")
    return Path(name) if name else None


def on_call(hook: str, **arguments: Any) -> None:
    """Record one call that `hook` took. Never raises; says once what kept it from recording.

    Parameters
    ----------
    hook : str
        Its name.
    arguments : object
        What the hook was called with, by the contract's names.
    """
    try:
        target = folder()
        if target is not None:
            with _lock:
                _record(target, hook, arguments)
    except Exception as error:
        _say_once(f"a call of {hook} was not recorded: {type(error).__name__}: {error}")


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _logger.warning("DSV41TOPK_RECORD: %s", text)


def _record(target: Path, hook: str, arguments: dict[str, Any]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    files = list(target.glob("*.npz"))
    if len(files) >= MAX_FILES or sum(file.stat().st_size for file in files) >= MAX_BYTES:
        _say_once(f"{target} is full ({MAX_FILES} files, {MAX_BYTES >> 20} MiB); take some away")
        return
    if _capturing():
        _say_once("calls under graph capture are not recorded")
        return
    call = _call(hook, arguments)
    size = sum(value.nbytes for value in call.values() if isinstance(value, np.ndarray))
    if size > MAX_FILE_BYTES:
        _say_once(f"a call of {hook} holds {size >> 20} MiB, more than {MAX_FILE_BYTES >> 20}")
        return
    step.save(target / f"call-{os.getpid()}-{next(_numbers):04}-{hook}.npz", call)


def _capturing() -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return False
    return bool(torch.cuda.is_current_stream_capturing())


def _call(hook: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what a step file holds of a call."""
    seq_lens = _host(arguments["seq_lens"])
    written = arguments["candidates" if hook == "select_candidates" else "indices"]
    if hook == "candidate_logits_top_k":
        call = _scoring(arguments, seq_lens)
        rows = len(call["weights"])
    else:
        logits = arguments["logits"]
        rows, width = logits.shape
        end = int(np.clip(seq_lens.max(initial=0), 0, width))
        call = {
            "next_n": int(arguments["next_n"]),
            "width": int(width),
            "stride": _row_stride(logits),
            "logits": _host(logits[:, :end]),
        }
    if hook != "decode_top_k":
        call["block_size"] = int(arguments["block_size"])
    if hook in ("candidate_top_k", "candidate_logits_top_k"):
        call["candidates"] = _host(arguments["candidates"][:rows])
    columns = None if hook == "select_candidates" else 512
    result = _host(written[:rows, :columns])
    return {"hook": hook, "seq_lens": seq_lens, "result": result, **call}


def _scoring(arguments: dict[str, Any], seq_lens: Array) -> dict[str, Any]:
    """Return the arguments of candidate logits, with the pages of the live columns alone."""
    q, fp8 = _codes(arguments["q_fp8"])
    requests, next_n = q.shape[:2]
    cache = arguments["kv_cache"]
    pages, page_size = (int(n) for n in cache.shape[:2])
    columns = -(-max(int(seq_lens.max(initial=0)), 0) // page_size)
    table = _host(arguments["block_table"][:requests, :columns])
    ends = seq_lens.reshape(-1, next_n if seq_lens.ndim == 2 else 1).max(axis=1)[:requests, None]
    live = np.arange(table.shape[1]) * page_size < ends
    live &= (table >= 0) & (table < pages)
    kept, renamed = np.unique(table[live], return_inverse=True)
    if kept.size * page_size * cache.shape[-1] > MAX_FILE_BYTES:
        raise ValueError(f"its live columns lie on {kept.size} pages, more than a file may hold")
    new_table = np.full(table.shape, -1, np.int32)
    new_table[live] = renamed.reshape(-1)
    return {
        "q": q,
        "fp8": fp8,
        "kv_cache": _host(_pages(cache, kept)),
        "block_table": new_table,
        "weights": _host(arguments["weights"][: requests * next_n]),
    }


def _pages(cache: Any, kept: Array) -> Any:
    """Return those pages; on the cache's device, which must not send all of it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(cache, torch.Tensor):
        return cache[torch.from_numpy(kept.astype(np.int64)).to(cache.device)]
    return np.asarray(cache)[kept]


def _codes(q: Any) -> tuple[Array, str]:
    """Return FP8 values as uint8 codes, and the name of their format."""
    codes = getattr(q, "codes", None)  # an Fp8Array
    if codes is not None:
        return np.array(codes), q.fp8
    name = str(q.dtype)
    fp8 = "e4m3fnuz" if "fnuz" in name else "e4m3fn"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(q, torch.Tensor):
        q = q.detach().view(torch.uint8)
    return _host(q), fp8


def _host(tensor: Any) -> Array:
    """Return a copy in the host's memory."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        tensor = tensor.detach().cpu().numpy()
    return np.array(tensor if isinstance(tensor, np.ndarray) else np.from_dlpack(tensor))


def _row_stride(tensor: Any) -> int:
    """Return the elements from row to row."""
    if callable(getattr(tensor, "stride", None)):
        return int(tensor.stride(0))
    strides = np.asarray(tensor).strides
    return int(strides[0]) // 4
