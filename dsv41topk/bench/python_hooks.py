# SPDX-License-Identifier: Apache-2.0
"""The hooks in plain Python over torch tensors: what `bench hooks` measures the package's against.

They check what the contract asks for, in the order in which one would write it, and launch nothing.
Like vLLM 0.33.0's own, each asks `enabled()` and `build()` first.
"""

from __future__ import annotations

from typing import Any

import torch

on = False
"""Whether the operator turned them on."""
_extension: Any = object()


def enabled() -> bool:
    """Return whether the hooks are on."""
    return on


def build() -> bool:
    """Return whether there is an extension: one module-level name, once it was built."""
    return _extension is not None


def _ready() -> bool:
    return enabled() and build()


def _launch(*arguments: Any) -> None:
    """Stand for the extension call."""


def _rows_match(logits: Any, next_n: Any, seq_lens: Any) -> bool:
    """Check logits and the ends of their rows."""
    return (
        type(next_n) is int
        and 1 <= next_n <= 2147483647
        and logits.dtype == torch.float32
        and logits.dim() == 2
        and logits.stride(1) == 1
        and seq_lens.dtype == torch.int32
        and seq_lens.dim() in (1, 2)
        and seq_lens.is_contiguous()
        and seq_lens.device == logits.device
        and seq_lens.numel() * (1 if seq_lens.dim() == 2 else next_n) >= logits.shape[0]
    )


def _takes_rows(out: Any, rows: int, columns: int, device: Any) -> bool:
    """Check what is written: its rows must lie apart."""
    return (
        out.dtype == torch.int32
        and out.dim() == 2
        and out.stride(1) == 1
        and out.device == device
        and out.shape[0] >= rows
        and out.shape[1] >= columns
        and (rows <= 1 or out.stride(0) >= columns)
    )


def _lists_blocks(candidates: Any, rows: int, block_size: Any, device: Any) -> bool:
    return (
        type(block_size) is int
        and 1 <= block_size <= 2147483647
        and candidates.dtype == torch.int32
        and candidates.dim() == 2
        and candidates.stride(1) == 1
        and candidates.device == device
        and candidates.shape[0] >= rows
        and 512 < candidates.shape[1] * block_size <= 2147483647
    )


def decode_top_k(logits: Any, next_n: Any, seq_lens: Any, indices: Any, topk_tokens: Any) -> bool:
    """Take the call or decline."""
    if not _ready() or topk_tokens != 512:
        return False
    taken = _rows_match(logits, next_n, seq_lens) and _takes_rows(
        indices, logits.shape[0], 512, logits.device
    )
    if taken:
        _launch(logits, next_n, seq_lens, indices)
    return taken


def candidate_top_k(
    logits: Any,
    next_n: Any,
    seq_lens: Any,
    candidates: Any,
    block_size: Any,
    indices: Any,
    topk_tokens: Any,
) -> bool:
    """Take the call or decline."""
    if not _ready() or topk_tokens != 512:
        return False
    rows = logits.shape[0]
    taken = (
        _rows_match(logits, next_n, seq_lens)
        and _lists_blocks(candidates, rows, block_size, logits.device)
        and _takes_rows(indices, rows, 512, logits.device)
    )
    if taken:
        _launch(logits, next_n, seq_lens, candidates, block_size, indices)
    return taken


def candidate_logits_top_k(
    q_fp8: Any,
    kv_cache: Any,
    weights: Any,
    seq_lens: Any,
    block_table: Any,
    candidates: Any,
    block_size: Any,
    indices: Any,
    topk_tokens: Any,
    dense_is_aiter_gluon: Any,
    requires_padding: Any,
) -> bool:
    """Take the call or decline."""
    if not _ready() or not dense_is_aiter_gluon or requires_padding or topk_tokens != 512:
        return False
    device = q_fp8.device
    taken = (
        q_fp8.dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
        and q_fp8.dim() == 4
        and q_fp8.shape[2] in (32, 64)
        and q_fp8.shape[3] == 128
        and q_fp8.is_contiguous()
        and kv_cache.dtype == torch.uint8
        and kv_cache.dim() == 4
        and kv_cache.shape[1] % 16 == 0
        and kv_cache.shape[2] == 1
        and kv_cache.shape[3] == 132
        and kv_cache.stride(1) == 132
        and kv_cache.stride(3) == 1
        and kv_cache.stride(0) % 4 == 0
        and kv_cache.device == device
    )
    if not taken:
        return False
    requests, next_n, heads, _ = q_fp8.shape
    rows = requests * next_n
    taken = (
        weights.dtype == torch.float32
        and weights.dim() == 2
        and weights.stride(1) == 1
        and weights.shape[0] >= rows
        and weights.shape[1] == heads
        and weights.device == device
        and seq_lens.dtype == torch.int32
        and seq_lens.dim() in (1, 2)
        and seq_lens.is_contiguous()
        and seq_lens.numel() * (1 if seq_lens.dim() == 2 else next_n) >= rows
        and seq_lens.device == device
        and block_table.dtype == torch.int32
        and block_table.dim() == 2
        and block_table.stride(1) == 1
        and block_table.shape[0] >= requests
        and block_table.device == device
        and _lists_blocks(candidates, rows, block_size, device)
        and _takes_rows(indices, rows, 512, device)
    )
    if taken:
        shape = (rows, candidates.shape[1] * block_size)
        logits = torch.empty(shape, dtype=torch.float32, device=device)
        ids = torch.empty(shape, dtype=torch.int32, device=device)
        _launch(q_fp8, kv_cache, weights, seq_lens, block_table, candidates, logits, ids)
        _launch(logits, ids, seq_lens, next_n, indices)
    return taken


def select_candidates(
    logits: Any, next_n: Any, seq_lens: Any, block_size: Any, candidates: Any
) -> bool:
    """Take the call or decline."""
    if not _ready():
        return False
    rows = logits.shape[0]
    taken = (
        _rows_match(logits, next_n, seq_lens)
        and type(block_size) is int
        and 1 <= block_size <= 2147483647
        and _takes_rows(candidates, rows, candidates.shape[1], logits.device)
    )
    if taken:
        ends = seq_lens.reshape(-1)
        row_repeat = 1 if ends.numel() == rows else next_n
        _launch(logits, ends, row_repeat, block_size, candidates)
    return taken


def skip_decode_fill(
    has_prefill: Any, num_decode_tokens: Any, num_tokens: Any, decode: Any
) -> bool:
    """Say whether every row of the step is written by the top-k."""
    return (
        _ready()
        and not has_prefill
        and decode is not None
        and not decode.requires_padding
        and num_decode_tokens == num_tokens
    )
