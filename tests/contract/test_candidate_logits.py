# SPDX-License-Identifier: Apache-2.0
"""candidate_logits as the contract states it, on every backend, without its promise of bits.

The bits are the business of the kernel that Triton compiles: tests/gfx942/test_cand_logits.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from helpers.buffers import tight
from helpers.indexer_rows import LAYOUTS, Rows


def check(backend, layout):
    """One call: ids exact, values within 1e-5 of float64, nothing else written."""
    if backend.name == "cuda":
        if layout.first_page:
            pytest.skip("host only: a cache of 4 GiB that is mostly a hole in memory")
        layout = replace(layout, fp8="e4m3fn")  # the only format of that device
    rows = Rows(layout)
    shape = (rows.rows, rows.candidates.shape[1] * layout.block_size)
    logits = tight(np.full((shape[0] + 2, shape[1]), 7, np.float32))
    ids = tight(np.full((shape[0] + 2, shape[1]), 7, np.int32))
    cache = rows.cache.reshape(rows.pages, layout.page_size, 1, 132)
    assert np.shares_memory(cache, rows.cache)
    lens = rows.lens.reshape(rows.requests, -1) if layout.ends_per_row else rows.lens.reshape(-1)
    backend.prepare(layout.seed)
    backend.candidate_logits(
        tight(rows.q), cache, tight(rows.weights), tight(lens), layout.next_n, tight(rows.table),
        tight(rows.candidates), layout.block_size, logits[1:-1], ids[1:-1], fp8=layout.fp8,
    )  # fmt: skip
    expected = rows.expected_ids()
    np.testing.assert_array_equal(ids[1:-1], expected)
    live = expected >= 0
    values = logits[1:-1]
    assert (values[~live] == -np.inf).all()
    truth = rows.truth(expected)
    assert truth.size == live.sum()
    assert (np.abs(values[live] - truth) <= 1e-5 * truth).all()
    for edge in (logits[0], logits[-1], ids[0], ids[-1]):
        assert (edge == 7).all(), "a neighbour's row was written"


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(backend, name):
    check(backend, LAYOUTS[name])


@pytest.mark.parametrize("heads", [32, 64])
@pytest.mark.parametrize("page_size", [16, 64, 128])
@pytest.mark.parametrize("block_size", [1, 8, 16])
def test_e4m3fn(backend, heads, page_size, block_size):
    layout = replace(
        LAYOUTS["plain"], fp8="e4m3fn", heads=heads, page_size=page_size, block_size=block_size
    )
    check(backend, replace(layout, lengths=(300, 129)))


@pytest.mark.parametrize("next_n", range(1, 9))
def test_draft_rows_of_a_request(backend, next_n):
    check(backend, replace(LAYOUTS["plain"], next_n=next_n, lengths=(150, next_n, 3, 0)))


def test_no_rows(backend):
    def empty(*shape, dtype=np.int32):
        return np.zeros((0, *shape), dtype)

    backend.candidate_logits(
        empty(64, 128, dtype=np.uint8), np.zeros((2, 64, 1, 132), np.uint8),
        empty(64, dtype=np.float32), empty(), 2, empty(4), empty(8), 8,
        empty(64, dtype=np.float32), empty(64), fp8="e4m3fn",
    )  # fmt: skip
