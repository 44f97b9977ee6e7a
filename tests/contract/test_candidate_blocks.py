# SPDX-License-Identifier: Apache-2.0
"""candidate_blocks as the contract states it, on every backend."""

import inputs
import numpy as np
import pytest
from helpers.checks import EXAMPLES, check_candidate_blocks, seed_of
from hypothesis import given, settings
from hypothesis import strategies as st


def lens_of(*ends):
    return np.array(ends, np.int32)


@pytest.mark.parametrize("distribution", inputs.DISTRIBUTIONS, ids=repr)
@pytest.mark.parametrize("width", [2048, 16_384, 40_001])
def test_distributions(backend, distribution, width):
    what = (distribution, width)
    values = distribution(np.random.default_rng(seed_of(what)), 3, width)
    ends = lens_of(width, width - 5, width // 2 + 1)
    check_candidate_blocks(backend, values, ends, 2048, what=what, stride=-(-width // 4) * 4)


@pytest.mark.parametrize("width", [1, 8, 9, 513, 16_383, 16_384, 16_390])
@pytest.mark.parametrize("slots", [1, 64, 2048])
def test_ends(backend, width, slots):
    ends = {0, 1, 7, 8, 9, 511, 512, 513, width - 8, width - 1, width, width + 1, 2**31 - 1, -1}
    ends = lens_of(*sorted(ends))
    values = inputs.NORMAL(np.random.default_rng(width), len(ends), width)
    what = ("ends", width, slots)
    check_candidate_blocks(backend, values, ends, slots, what=what, stride=-(-width // 4) * 4)


@pytest.mark.parametrize(
    "block_size", [1, 2, 3, 4, 7, 8, 16, 32, 64, 100, 128, 1000, 20_003, 50_000]
)
def test_block_sizes(backend, block_size):
    what = ("blocks", block_size)
    values = inputs.HALF_INTEGERS(np.random.default_rng(seed_of(what)), 3, 20_003)
    check_candidate_blocks(
        backend, values, lens_of(20_003, 20_000, 777), 512, block_size, what=what
    )


@pytest.mark.parametrize("slots", [1, 2, 511, 512, 513, 2047, 2048, 2049, 4096, 6000])
def test_slots(backend, slots):
    """As many blocks as asked for, whether the row has them or not."""
    values = inputs.HALF_INTEGERS(np.random.default_rng(slots), 2, 40_000)
    check_candidate_blocks(
        backend, values, lens_of(40_000, 9_000), slots, what=("slots", slots), out_stride=slots + 5
    )


@pytest.mark.parametrize("row_repeat", range(1, 9))
def test_rows_of_a_request_share_its_end(backend, row_repeat):
    visible = lens_of(5000, 3, 0, -2, 6000)
    values = inputs.NORMAL(np.random.default_rng(row_repeat), 5 * row_repeat, 5500)
    what = ("repeat", row_repeat)
    check_candidate_blocks(backend, values, visible, 300, row_repeat=row_repeat, what=what)


def test_blocks_of_minus_inf_are_no_candidates(backend):
    """But for the newest block, which is one whatever it holds."""
    values = np.full((3, 9000), -np.inf, np.float32)
    values[1, [5, 800, 4000]] = (0.0, np.nan, -1e30)
    ends = lens_of(9000, 8999, 8993)
    out = check_candidate_blocks(backend, values, ends, 2048, what="minus inf")
    assert [int((row >= 0).sum()) for row in out] == [1, 4, 1]


def test_no_rows(backend):
    check_candidate_blocks(
        backend, np.empty((0, 4096), np.float32), lens_of(), 2048, what="no rows"
    )


@pytest.mark.parametrize(("offset", "stride"), [(1, 20_000), (2, 20_002), (3, 20_003), (0, 20_001)])
@pytest.mark.parametrize("block_size", [4, 8, 5])
def test_rows_that_are_not_aligned(backend, offset, stride, block_size):
    what = ("unaligned", offset, stride, block_size)
    values = inputs.HALF_INTEGERS(np.random.default_rng(seed_of(what)), 3, 19_999)
    ends = lens_of(19_999, 19_994, 19_990)
    check_candidate_blocks(
        backend, values, ends, 2048, block_size, what=what, offset=offset, stride=stride
    )


@pytest.mark.parametrize("distribution", inputs.USUAL, ids=repr)
@pytest.mark.parametrize("width", [131_072, 1 << 20, (1 << 20) + 5])
def test_long_rows(backend, distribution, width):
    what = ("long", distribution, width)
    values = distribution(np.random.default_rng(seed_of(what)), 2, width)
    check_candidate_blocks(
        backend, values, lens_of(width, width - 3), 2048, what=what, stride=-(-width // 4) * 4
    )


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_row(backend, data):
    width = data.draw(st.integers(1, 3000), "width")
    block_size = data.draw(st.integers(1, 40), "block_size")
    slots = data.draw(st.integers(1, 700), "slots")
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    rng = np.random.default_rng(seed)
    few = np.array([np.nan, np.inf, -np.inf, -np.inf, 0.0, -0.0, 1.0], np.float32)
    values = few[np.minimum(rng.integers(0, 40, (2, width)), 6)]
    lens = rng.integers(-2, width + 9, 2, dtype=np.int32)
    check_candidate_blocks(
        backend, values, lens, slots, block_size, what=(seed, width, block_size, slots)
    )
