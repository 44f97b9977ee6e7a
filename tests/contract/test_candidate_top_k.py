# SPDX-License-Identifier: Apache-2.0
"""candidate_top_k_512 as the contract states it, on every backend."""

import inputs
import numpy as np
import pytest
from helpers.checks import EXAMPLES, check_candidate_top_k, seed_of
from hypothesis import given, settings
from hypothesis import strategies as st


def lens_of(*ends):
    return np.array(ends, np.int32)


def some_blocks(rng, rows, width, slots, block_size=8):
    """Ascending ids of random blocks, then -1: what candidate_blocks writes."""
    blocks = -(-width // block_size)
    out = np.full((rows, slots), -1, np.int32)
    for row in out:
        chosen = np.sort(rng.permutation(blocks)[:slots])
        row[: len(chosen)] = chosen
    return out


def spoiled(rng, candidates, width, block_size=8):
    """The same lists with empty slots, ids out of range and ids twice, in random order."""
    blocks = -(-width // block_size)
    out = candidates.copy()
    odd = np.array([-1, -2, -(2**31), blocks, blocks + 1, 2**31 - 1, 2**28], np.int32)
    for row in out:
        row[rng.random(row.size) < 0.1] = odd[rng.integers(0, len(odd))]
        twice = rng.random(row.size) < 0.1
        row[twice] = row[rng.integers(0, row.size, twice.sum())]
        rng.shuffle(row)
    return out


@pytest.mark.parametrize("distribution", inputs.DISTRIBUTIONS, ids=repr)
@pytest.mark.parametrize("width", [2048, 16_384, 70_001])
def test_distributions(backend, distribution, width):
    what = (distribution, width)
    rng = np.random.default_rng(seed_of(what))
    values = distribution(rng, 3, width)
    ends = lens_of(width, width - 5, max(513, width // 2))
    candidates = some_blocks(rng, 3, width, 2048)
    check_candidate_top_k(backend, values, ends, candidates, what=what, stride=-(-width // 4) * 4)


@pytest.mark.parametrize("distribution", inputs.DISTRIBUTIONS, ids=repr)
def test_gaps_duplicates_and_ids_out_of_range(backend, distribution):
    what = ("spoiled", distribution)
    rng = np.random.default_rng(seed_of(what))
    values = distribution(rng, 4, 30_000)
    candidates = spoiled(rng, some_blocks(rng, 4, 30_000, 1024), 30_000)
    check_candidate_top_k(
        backend, values, lens_of(30_000, 29_993, 600, 15_001), candidates, what=what
    )


@pytest.mark.parametrize("width", [513, 16_384, 16_390])
def test_ends(backend, width):
    ends = {*inputs.ENDS, width - 8, width - 1, width, width + 1, 2**31 - 1, -1}
    ends = lens_of(*sorted(ends))
    rng = np.random.default_rng(width)
    values = inputs.NORMAL(rng, len(ends), width)
    candidates = some_blocks(rng, len(ends), width, 2048)
    check_candidate_top_k(
        backend, values, ends, candidates, what=("ends", width), stride=-(-width // 4) * 4
    )


@pytest.mark.parametrize("live", [0, 1, 63, 64, 65])
def test_fewer_than_512_live_candidates(backend, live):
    """All of them, then -1; `live` blocks of 8, of which the newest is partly filled."""
    rng = np.random.default_rng(live)
    values = inputs.MASKED(rng, 3, 8000)
    candidates = np.full((3, 100), -1, np.int32)
    for row in candidates:
        row[rng.permutation(100)[:live]] = np.sort(rng.permutation(999)[:live])
    candidates[2, -1] = 999  # columns 7992 to 7999, of which 3 are live
    check_candidate_top_k(
        backend, values, lens_of(8000, 8000, 7995), candidates, what=("few", live)
    )


@pytest.mark.parametrize(
    ("block_size", "slots"),
    [(1, 513), (1, 4096), (2, 300), (3, 2048), (8, 65), (8, 4096), (16, 2048), (64, 512), (600, 1)],
)
def test_block_sizes(backend, block_size, slots):
    what = ("blocks", block_size, slots)
    rng = np.random.default_rng(seed_of(what))
    width = 20_003
    values = inputs.HALF_INTEGERS(rng, 3, width)
    candidates = some_blocks(rng, 3, width, slots, block_size)
    candidates[1] = spoiled(rng, candidates[1:2], width, block_size)[0]
    ends = lens_of(width, width - 1, 10_000)
    check_candidate_top_k(backend, values, ends, candidates, block_size, what=what)


@pytest.mark.parametrize(("block_size", "slots"), [(8, 5000), (64, 1024), (8, 4097)])
def test_more_candidates_than_one_workgroup_holds(backend, block_size, slots):
    """Past 32,768 candidates another launch gathers them first."""
    what = ("many", block_size, slots)
    rng = np.random.default_rng(seed_of(what))
    width = 100_000
    values = inputs.HALF_INTEGERS(rng, 2, width)
    candidates = some_blocks(rng, 2, width, slots, block_size)
    candidates[1] = spoiled(rng, candidates[1:2], width, block_size)[0]
    check_candidate_top_k(
        backend, values, lens_of(width, width - 3), candidates, block_size, what=what
    )


@pytest.mark.parametrize("next_n", range(1, 9))
def test_draft_rows_of_a_request(backend, next_n):
    rng = np.random.default_rng(next_n)
    lens = lens_of(3000, 510 + next_n, 0, 4096)
    values = inputs.NORMAL(rng, len(lens) * next_n, 4096)
    candidates = some_blocks(rng, len(values), 4096, 200)
    check_candidate_top_k(backend, values, lens, candidates, next_n=next_n, what=("draft", next_n))


def test_one_length_a_row(backend):
    rng = np.random.default_rng(2)
    lens = rng.integers(-5, 3000, (4, 3), dtype=np.int32)
    values = inputs.NORMAL(rng, 12, 2560)
    candidates = some_blocks(rng, 12, 2560, 256)
    check_candidate_top_k(backend, values, lens, candidates, next_n=3, what="2-D")


def test_no_rows(backend):
    empty = np.empty((0, 4096), np.float32)
    check_candidate_top_k(backend, empty, lens_of(), np.empty((0, 128), np.int32), what="no rows")


@pytest.mark.parametrize(("offset", "stride"), [(1, 20_000), (2, 20_002), (3, 20_003), (0, 20_001)])
def test_rows_that_are_not_aligned(backend, offset, stride):
    what = ("unaligned", offset, stride)
    rng = np.random.default_rng(seed_of(what))
    values = inputs.HALF_INTEGERS(rng, 3, 19_999)
    candidates = some_blocks(rng, 3, 19_999, 2048)
    ends = lens_of(19_999, 19_995, 19_990)
    check_candidate_top_k(
        backend,
        values,
        ends,
        candidates,
        what=what,
        offset=offset,
        stride=stride,
        indices_stride=700,
    )


@pytest.mark.parametrize("distribution", inputs.USUAL, ids=repr)
@pytest.mark.parametrize("width", [131_072, 1 << 20])
def test_long_rows(backend, distribution, width):
    what = ("long", distribution, width)
    rng = np.random.default_rng(seed_of(what))
    values = distribution(rng, 2, width)
    candidates = some_blocks(rng, 2, width, 2048)
    candidates[0, -1] = width // 8 - 1
    check_candidate_top_k(backend, values, lens_of(width, width - 3), candidates, what=what)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_list(backend, data):
    """Any ids in any order, over rows of few distinct values."""
    width = data.draw(st.integers(513, 3000), "width")
    block_size = data.draw(st.integers(1, 33), "block_size")
    slots = data.draw(st.integers(512 // block_size + 1, 1200), "slots")
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    rng = np.random.default_rng(seed)
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], np.float32)[
        rng.integers(0, 6, (2, width))
    ]
    candidates = rng.integers(-3, -(-width // block_size) + 3, (2, slots), dtype=np.int32)
    lens = rng.integers(500, width + 9, 2, dtype=np.int32)
    check_candidate_top_k(
        backend, values, lens, candidates, block_size, what=(seed, width, block_size, slots)
    )
