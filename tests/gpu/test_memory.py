# SPDX-License-Identifier: Apache-2.0
"""Scratch that others left dirty, and rows past 2^31 elements."""

import inputs
import numpy as np
import pytest
from helpers import cuda


@pytest.mark.parametrize("pattern", [0x00, 0xFF, 0x7F, 0x80])
@pytest.mark.parametrize("options", [(), (8, 16_384, False)], ids=["registers", "histogram"])
def test_dirty_scratch(gpu, pattern, options):
    """The allocator hands out what was just freed, as it was left."""
    step = cuda.Step(np.random.default_rng(11), 6, 300_000, inputs.HALF_INTEGERS, options)
    for _ in range(2):
        gpu.cuda.empty_cache()
        for size in (1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 25):
            dirt = [gpu.full((size,), pattern, dtype=gpu.uint8, device="cuda") for _ in range(3)]
            del dirt
        step.spoil()
        step.call()
        step.check(f"scratch of 0x{pattern:02x}")


ROWS, WIDTH = 3072, 1 << 20
SHORT = {5: 700, 2047: 131_072, 2048: 3, 2049: 0, 3071: 1 << 19}
"""Rows that end early, on both sides of 2^31 elements."""


@pytest.fixture(scope="module")
def huge(gpu):
    """As many rows of 2^20 columns as fit, in steps of 1/64, so that ties are many."""
    free, _ = gpu.cuda.mem_get_info()
    rows = min(ROWS, int(free * 0.7) // (4 * WIDTH))
    if rows * WIDTH <= 1 << 31:
        pytest.skip(f"needs memory for more than 2,048 rows of 2^20 columns, {rows} fit")
    logits = gpu.empty(rows, WIDTH, device="cuda")
    for part in logits.split(256):
        part.normal_().mul_(64).round_().div_(64)
    ends = np.full(rows, WIDTH, np.int32)
    for row, end in SHORT.items():
        if row < rows:
            ends[row] = end
    right = gpu.cat([cuda.top_k_rows(part) for part in logits.split(64)])
    yield logits, ends, right
    del logits, right
    gpu.cuda.empty_cache()


@pytest.mark.parametrize("options", [(), (8, 16_384, False)], ids=["registers", "histogram"])
def test_rows_past_two_to_the_31(gpu, huge, options):
    import reference

    import dsv41topk

    logits, ends, right = huge
    out = cuda.indices(len(ends), 520)
    dsv41topk.top_k_per_row_decode_512(logits, 1, cuda.lens(*ends), out[:, :512], *options)
    right = right.clone()
    for row in np.flatnonzero(ends < WIDTH):
        entries = reference.top_k_row(logits[row].cpu().numpy(), int(ends[row]))
        right[row] = cuda.on_gpu(np.asarray(entries, np.int32))
    cuda.assert_rows(out[:, :512], right, f"{len(ends)} rows, {options}")
    assert int((out[:, 512:] != -7).sum()) == 0


def test_candidates_past_two_to_the_31(gpu, huge):
    import reference

    import dsv41topk

    logits, ends, _ = huge
    rows = len(ends)
    blocks = cuda.indices(rows, 2048)
    dsv41topk.candidate_blocks(logits, cuda.on_gpu(ends), 1, 8, blocks)
    out = cuda.indices(rows)
    dsv41topk.candidate_top_k_512(logits, 1, cuda.lens(*ends), blocks, 8, out)
    gpu.cuda.synchronize()
    for row in [0, 1, 2046, rows - 2, *(r for r in SHORT if r < rows)]:
        values, end = logits[row : row + 1].cpu().numpy(), ends[row : row + 1]
        ids = reference.candidate_blocks(values, end, 1, 8, 2048)
        cuda.assert_rows(blocks[row : row + 1], ids, f"blocks of row {row}")
        entries = reference.candidate_top_k_512(values, 1, end[:, None], ids, 8)
        cuda.assert_rows(out[row : row + 1], entries, f"candidates of row {row}")
