# SPDX-License-Identifier: Apache-2.0
"""The contract as code: numpy, stable sorts, slow and obvious.

A row's entries are a function of the row alone, so everything here works row by row. Nothing at or
past a row's end is looked at. Each call of the contract has a function of its name, which takes
the call's inputs as numpy arrays and returns what the call writes. The tests and the demo compare
every backend with these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dsv41topk._cache import DIM, decode_fp8

__all__ = [
    "TOP_K",
    "candidate_blocks",
    "candidate_logits",
    "candidate_top_k_512",
    "compact_top_k_512",
    "order_key",
    "row_ends",
    "top_k_per_row_decode_512",
    "top_k_row",
]

Array = NDArray[Any]

TOP_K = 512
NAN_KEY = np.uint32(0xFFFFFFFF)
PLUS_INF_KEY = np.uint32(0xFF800000)
MINUS_INF_KEY = np.uint32(0x007FFFFF)


def order_key(values: Array) -> Array:
    """Return float32 values as uint32 keys in the contract's order.

    Equal keys are equal values: -0.0 == +0.0, and NaN of either sign is one value above +inf.
    """
    values = np.ascontiguousarray(values, np.float32)
    bits = np.where(values == 0, np.float32(0), values).view(np.uint32)
    keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    return np.where(np.isnan(values), NAN_KEY, keys)


def best(keys: Array, columns: Array, count: int) -> Array:
    """Return places of the `count` largest keys, best first; of equal ones the lowest columns."""
    return np.lexsort((columns, NAN_KEY - keys))[:count]


def row_ends(seq_lens: Array, next_n: int, rows: int, width: int) -> Array:
    """Return where the live columns of each row end, for both forms of `seq_lens`."""
    row = np.arange(rows)
    if seq_lens.ndim == 2:
        ends = seq_lens.reshape(-1)[:rows].astype(np.int64)
    else:
        ends = seq_lens[row // next_n].astype(np.int64) - next_n + row % next_n + 1
    return np.clip(ends, 0, width)


def _padded(columns: Array) -> Array:
    row = np.full(TOP_K, -1, np.int32)
    row[: len(columns)] = columns
    return row


def _short(end: int) -> Array:
    """Return what a row of at most 512 live columns gets, whatever its values."""
    return _padded(np.arange(end))


def top_k_row(row: Array, end: int) -> Array:
    """Return the 512 entries of one row of logits."""
    if end <= TOP_K:
        return _short(end)
    return _padded(np.sort(best(order_key(row[:end]), np.arange(end), TOP_K)))


def top_k_per_row_decode_512(logits: Array, next_n: int, seq_lens: Array) -> Array:
    """Return the indices that the call of this name writes, int32 [rows, 512]."""
    rows, width = logits.shape
    ends = row_ends(seq_lens, next_n, rows, width)
    out = [top_k_row(logits[r], ends[r]) for r in range(rows)]
    return np.array(out, np.int32).reshape(rows, TOP_K)


def candidate_columns(candidates: Array, block_size: int, end: int, width: int) -> Array:
    """Return live columns of a row's candidate blocks in slot order, each where it first stands."""
    blocks = -(-width // block_size)
    seen: set[int] = set()
    columns = [np.empty(0, np.int64)]
    for block in candidates.tolist():
        if 0 <= block < blocks and block not in seen:
            seen.add(block)
            columns.append(np.arange(block * block_size, min((block + 1) * block_size, end)))
    return np.concatenate(columns)


def select_live(values: Array, columns: Array) -> Array:
    """Return the 512 entries among `columns`, in the order in which they are given."""
    chosen = best(order_key(values), columns, TOP_K)
    return _padded(columns[np.sort(chosen)])


def candidate_top_k_512(
    logits: Array, next_n: int, seq_lens: Array, candidates: Array, block_size: int
) -> Array:
    """Return the indices that the call of this name writes, int32 [rows, 512]."""
    rows, width = logits.shape
    ends = row_ends(seq_lens, next_n, rows, width)
    out = np.empty((rows, TOP_K), np.int32)
    for r in range(rows):
        if ends[r] <= TOP_K:
            out[r] = _short(ends[r])
        else:
            columns = candidate_columns(candidates[r], block_size, ends[r], width)
            out[r] = select_live(logits[r, columns], columns)
    return out


def compact_top_k_512(
    compact_logits: Array, compact_ids: Array, seq_lens: Array, next_n: int
) -> Array:
    """Return the indices that the call of this name and its `_regs` twin write."""
    rows = compact_logits.shape[0]
    ends = row_ends(seq_lens, next_n, rows, np.iinfo(np.int32).max)
    out = np.empty((rows, TOP_K), np.int32)
    for r in range(rows):
        if ends[r] <= TOP_K:
            out[r] = _short(ends[r])
        else:
            live = compact_ids[r] >= 0
            out[r] = select_live(compact_logits[r, live], compact_ids[r, live])
    return out


def block_keys(row: Array, end: int, block_size: int) -> Array:
    """Return order keys of the scores of a row's blocks; the newest block's is that of +inf."""
    if end == 0:
        return np.empty(0, np.uint32)
    keys = np.maximum.reduceat(order_key(row[:end]), np.arange(0, end, block_size))
    keys[-1] = PLUS_INF_KEY
    return keys


def candidate_blocks(
    logits: Array, visible: Array, row_repeat: int, block_size: int, slots: int
) -> Array:
    """Return the block ids that the call of this name writes, int32 [rows, slots]."""
    rows, width = logits.shape
    out = np.full((rows, slots), -1, np.int32)
    for r in range(rows):
        end = int(np.clip(visible.reshape(-1)[r // row_repeat], 0, width))
        keys = block_keys(logits[r], end, block_size)
        chosen = np.sort(best(keys, np.arange(len(keys)), slots))
        chosen = chosen[keys[chosen] != MINUS_INF_KEY]
        out[r, : len(chosen)] = chosen
    return out


def candidate_logits(
    q: Array,
    kv_cache: Array,
    weights: Array,
    seq_lens: Array,
    next_n: int,
    block_table: Array,
    candidates: Array,
    block_size: int,
    fp8: str,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array]:
    """Return the logits (in `dtype`) and ids (int32) that the call of this name writes.

    Parameters
    ----------
    q, kv_cache : uint8
        The arguments of the call of this name, `q` as FP8 codes.
    fp8 : {"e4m3fn", "e4m3fnuz"}
        The format of both.
    dtype : dtype
        float64 for the truth; float32 for what a kernel without extra precision may give.
    """
    requests, rows_each, heads, dims = q.shape
    rows, page_size = requests * rows_each, kv_cache.shape[1]
    queries = decode_fp8(q, fp8).astype(dtype).reshape(rows, heads, dims)
    ends = row_ends(seq_lens, next_n, rows, np.iinfo(np.int32).max)
    slots = candidates.shape[1] * block_size
    slot = np.arange(slots)
    logits = np.full((rows, slots), -np.inf, dtype)
    ids = np.full((rows, slots), -1, np.int32)
    for r in range(rows):
        block = candidates[r, slot // block_size].astype(np.int64)
        column = block * block_size + slot % block_size
        live = (block >= 0) & (column < ends[r])
        column = column[live]
        keys, scales = _keys(kv_cache, block_table[r // next_n, column // page_size], column, fp8)
        dots = keys.astype(dtype) @ queries[r].T * scales.astype(dtype)[:, None]
        ids[r, live] = column
        logits[r, live] = (np.maximum(dots, 0) * weights[r].astype(dtype)).sum(axis=1)
    return logits, ids


def _keys(kv_cache: Array, page: Array, column: Array, fp8: str) -> tuple[Array, Array]:
    """Return the keys [columns, 128] and scales [columns] of columns that lie on these pages."""
    page_size = kv_cache.shape[1]
    key = (column % page_size)[:, None]
    dim = np.arange(DIM)
    byte = (key // 16) * (16 * DIM) + (dim // 16) * (16 * 16) + (key % 16) * 16 + dim % 16
    pages = kv_cache.reshape(len(kv_cache), -1)
    scale_byte = page_size * DIM + key * 4 + np.arange(4)
    scales = np.ascontiguousarray(pages[page[:, None], scale_byte]).view(np.float32)[:, 0]
    return decode_fp8(pages[page[:, None], byte], fp8), scales
