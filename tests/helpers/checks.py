# SPDX-License-Identifier: Apache-2.0
"""One checked call of each kind: exact entries in order, nothing else written or read."""

import zlib

import numpy as np
import reference
from helpers.buffers import Output, held_by, poisoned, rows_of, tight

TOP_K = reference.TOP_K
EXAMPLES = 40
"""Of each property test on each backend."""


def seed_of(*parts):
    """A seed that is a function of what the test says about itself: a failure can be run again."""
    return zlib.crc32(repr(parts).encode()) & 0x7FFFFFFF


def assert_entries(got, expected, ends, what):
    """Rows are equal entry by entry; if not, say which property broke, and where."""
    if np.array_equal(got, expected):
        return
    r = int(np.nonzero((got != expected).any(axis=1))[0][0])
    row, right = got[r], expected[r]
    live = row[row >= 0]
    missing, extra = np.setdiff1d(right, row), np.setdiff1d(row, right)
    faults = []
    if (row < -1).any() or (row >= max(int(ends[r]), 1)).any():
        faults.append(f"entries out of range, e.g. {row[(row < -1) | (row >= ends[r])][:4]}")
    if len(np.unique(live)) != len(live):
        faults.append("a column twice")
    if not missing.size and not extra.size:
        faults.append("the right set in another order")
    first = int(np.nonzero(row != right)[0][0])
    raise AssertionError(
        f"{what}: row {r} of {len(got)} (end {ends[r]}): {', '.join(faults) or 'another set'}; "
        f"{len(missing)} missing {missing[:6]}, {len(extra)} extra {extra[:6]}; "
        f"first difference at entry {first}: {row[first : first + 4]}, "
        f"right is {right[first : first + 4]}"
    )


def _run(backend, call, args, output, expected, readable, bounds, what):
    """Make the call and look at everything that it may and may not have touched.

    readable : columns of each row of args[0] that may be read at all.
    bounds : what the entries of each row must be below.
    """
    inputs = [a for a in args if isinstance(a, np.ndarray) and a is not output.view]
    before = [held_by(array).copy() for array in inputs]
    seed = seed_of(call, what)
    backend.prepare(seed)
    backend.forbid(args[0], readable)
    try:
        getattr(backend, call)(*args)
    finally:
        backend.allow(args[0])
    assert_entries(output.view, expected, bounds, f"{call}, {what}, {backend!r}, seed {seed}")
    output.check()
    for number, (array, copy) in enumerate(zip(inputs, before, strict=True)):
        assert held_by(array).tobytes() == copy.tobytes(), (
            f"{call}, {what}: array {number} was written to"
        )
    return output.view


def _logits(backend, values, ends, stride, offset):
    """Poisoned logits; where a read past the block faults, the last row ends when its life does."""
    last = int(ends[-1]) if len(values) and backend.views_may_end_early else None
    return rows_of(poisoned(values, ends), stride, offset, last)


def check_top_k(
    backend,
    values,
    seq_lens,
    next_n=1,
    *,
    what,
    stride=None,
    offset=0,
    indices_stride=None,
    options=(),
):
    """top_k_per_row_decode_512 against the oracle; options are max_blocks and what follows."""
    rows, width = values.shape
    ends = reference.row_ends(seq_lens, next_n, rows, width)
    logits = _logits(backend, values, ends, stride, offset)
    output = Output(rows, TOP_K, indices_stride)
    expected = reference.top_k_per_row_decode_512(values, next_n, seq_lens)
    args = (logits, next_n, tight(seq_lens), output.view, *options)
    what = (what, f"options {options}")
    return _run(backend, "top_k_per_row_decode_512", args, output, expected, ends, ends, what)


def check_candidate_top_k(
    backend, values, seq_lens, candidates, block_size=8, next_n=1, *, what,
    stride=None, offset=0, indices_stride=None,
):  # fmt: skip
    """candidate_top_k_512 against the oracle."""
    rows, width = values.shape
    ends = reference.row_ends(seq_lens, next_n, rows, width)
    logits = _logits(backend, values, ends, stride, offset)
    output = Output(rows, TOP_K, indices_stride)
    expected = reference.candidate_top_k_512(values, next_n, seq_lens, candidates, block_size)
    wider = rows_of(candidates, candidates.shape[1] + 3)
    args = (logits, next_n, tight(seq_lens), wider, block_size, output.view)
    return _run(backend, "candidate_top_k_512", args, output, expected, ends, ends, what)


def check_compact_top_k(
    backend, values, ids, seq_lens, next_n=1, *, what, registers=False, indices_stride=None
):
    """compact_top_k_512 or its `_regs` twin against the oracle."""
    rows, n = values.shape
    output = Output(rows, TOP_K, indices_stride)
    expected = reference.compact_top_k_512(values, ids, seq_lens, next_n)
    args = (rows_of(values), rows_of(ids), tight(seq_lens), next_n, output.view)
    call = "compact_top_k_512_regs" if registers else "compact_top_k_512"
    ends = reference.row_ends(seq_lens, next_n, rows, np.iinfo(np.int32).max)
    return _run(backend, call, args, output, expected, np.full(rows, n), ends, what)


def check_candidate_blocks(
    backend, values, visible, slots, block_size=8, row_repeat=1, *, what,
    stride=None, offset=0, out_stride=None,
):  # fmt: skip
    """candidate_blocks against the oracle."""
    rows, width = values.shape
    ends = np.clip(visible[np.arange(rows) // row_repeat].astype(np.int64), 0, width)
    logits = _logits(backend, values, ends, stride, offset)
    output = Output(rows, slots, out_stride)
    expected = reference.candidate_blocks(values, visible, row_repeat, block_size, slots)
    args = (logits, tight(visible), row_repeat, block_size, output.view)
    bounds = -(-ends // block_size)
    return _run(backend, "candidate_blocks", args, output, expected, ends, bounds, what)
