# SPDX-License-Identifier: Apache-2.0
"""top_k_per_row_decode_512 as the contract states it, on every backend."""

import inputs
import numpy as np
import pytest
from helpers.checks import EXAMPLES, check_top_k, seed_of
from hypothesis import given, settings
from hypothesis import strategies as st

SELECTS = {"register": (8, 16384, True), "histogram": (8, 16384, False)}

FEW_VALUES = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1.5, 2.25]


def lens_of(*ends):
    return np.array(ends, np.int32)


@pytest.fixture(params=SELECTS.values(), ids=SELECTS)
def options(request):
    return request.param


@pytest.mark.parametrize("width", [513, 2048, 16384, 40_001])
@pytest.mark.parametrize("distribution", inputs.DISTRIBUTIONS, ids=repr)
def test_distributions(backend, distribution, width, options):
    what = (distribution, width)
    values = distribution(np.random.default_rng(seed_of(what)), 3, width)
    ends = lens_of(width, width - 1, max(513, width * 2 // 3))
    stride = -(-width // 4) * 4
    check_top_k(backend, values, ends, what=what, stride=stride, options=options)


@pytest.mark.parametrize("above", [0, 1, 100, 511, 512, 513, 600])
@pytest.mark.parametrize("width", [700, 2047, 2048, 4096, 4100])
def test_few_values_above_minus_inf(backend, above, width, options):
    """All of them are chosen, and the lowest columns of -inf: spread, at the end, at the start."""
    rng = np.random.default_rng(above + width)
    values = np.full((3, width), -np.inf, np.float32)
    values[0, rng.permutation(width)[:above]] = rng.standard_normal(above)
    values[1, width - above :] = rng.standard_normal(above)
    values[2, :above] = 1.5
    what = ("above -inf", above, width)
    stride = -(-width // 4) * 4
    check_top_k(
        backend, values, lens_of(width, width, width), what=what, stride=stride, options=options
    )


@pytest.mark.parametrize("width", [1, 7, 511, 512, 513, 16383, 16384, 16385, 32768, 32769, 50_000])
def test_ends(backend, width, options):
    """Every end at which something changes, one row each; the dead columns hold NaN and +inf."""
    ends = {*inputs.ENDS, 16383, 16384, 16385, width - 1, width, width + 1, 2**31 - 1, -1, -(2**31)}
    ends = lens_of(*sorted(ends))
    values = inputs.NORMAL(np.random.default_rng(width), len(ends), width)
    check_top_k(
        backend, values, ends, what=("ends", width), stride=-(-width // 4) * 4, options=options
    )


@pytest.mark.parametrize("next_n", range(1, 9))
def test_draft_rows_of_a_request(backend, next_n, options):
    """1-D lengths: row j of a request ends next_n - 1 - j before the request does."""
    rng = np.random.default_rng(next_n)
    lens = lens_of(3000, 511 + next_n, 512, next_n // 2, 0, 5000)
    values = inputs.NORMAL(rng, len(lens) * next_n, 4096)
    check_top_k(backend, values, lens, next_n, what=("draft", next_n), options=options)


@pytest.mark.parametrize("next_n", [1, 2, 6])
def test_one_length_a_row(backend, next_n, options):
    """2-D lengths are taken as they are, without a draft offset."""
    rng = np.random.default_rng(next_n)
    lens = rng.integers(-5, 3000, (4, next_n), dtype=np.int32)
    values = inputs.NORMAL(rng, lens.size, 2560)
    check_top_k(backend, values, lens, next_n, what=("2-D", next_n), options=options)


def test_no_rows(backend, options):
    check_top_k(
        backend, np.empty((0, 4096), np.float32), lens_of(), what="no rows", options=options
    )


@pytest.mark.parametrize(("offset", "stride"), [(1, 20_000), (2, 20_002), (3, 20_003), (0, 20_001)])
@pytest.mark.parametrize("end", [512, 513, 16_387, 19_999])
def test_rows_that_are_not_aligned(backend, offset, stride, end, options):
    what = ("unaligned", offset, stride, end)
    values = inputs.HALF_INTEGERS(np.random.default_rng(seed_of(what)), 3, 19_999)
    check_top_k(
        backend,
        values,
        lens_of(end, end, end),
        what=what,
        offset=offset,
        stride=stride,
        options=options,
    )


@pytest.mark.parametrize("indices_stride", [513, 640, 2048])
def test_indices_in_a_wider_buffer(backend, indices_stride, options):
    """The columns past 512 stay as they were."""
    values = inputs.NORMAL(np.random.default_rng(indices_stride), 5, 4096)
    ends = lens_of(4096, 100, 0, 513, 4000)
    check_top_k(
        backend,
        values,
        ends,
        what=("indices", indices_stride),
        indices_stride=indices_stride,
        options=options,
    )


def test_more_rows_than_compute_units(backend, options):
    rng = np.random.default_rng(5)
    values = inputs.HALF_INTEGERS(rng, 330, 1024)
    lens = rng.integers(0, 1100, 330, dtype=np.int32)
    check_top_k(backend, values, lens, what="330 rows", options=options)


@pytest.mark.parametrize("width", [131_072, 300_000, 1 << 20, (1 << 20) + 5])
@pytest.mark.parametrize("distribution", inputs.USUAL, ids=repr)
def test_long_rows(backend, distribution, width, options):
    """Up to 2^20 columns, and past the fast path."""
    what = ("long", distribution, width)
    values = distribution(np.random.default_rng(seed_of(what)), 2, width)
    ends = lens_of(width - 1, width)
    check_top_k(backend, values, ends, what=what, stride=-(-width // 4) * 4, options=options)


@pytest.mark.parametrize("end", [0, 513, 2048, 16_384, 16_385, 131_073])
def test_short_rows_in_the_widest_buffer(backend, end, options):
    """The split follows the live length: buffers are 2^20 wide whatever the context."""
    values = np.full((2, 1 << 20), np.nan, np.float32)
    values[:, :end] = inputs.REAL_TEXT(np.random.default_rng(end), 2, max(end, 1))[:, :end]
    check_top_k(backend, values, lens_of(end, end), what=("widest", end), options=options)


SPLITS = [(1, 512), (2, 1000), (3, 4096), (8, 512), (8, 16_384), (8, 1 << 20)]


@pytest.mark.parametrize("distribution", [inputs.HALF_INTEGERS, inputs.REAL_TEXT], ids=repr)
@pytest.mark.parametrize("end", [513, 4097, 60_000])
def test_a_row_gives_the_same_under_every_shape(backend, distribution, end):
    """Chunks, select, place in the batch and neighbours do not matter."""
    what = ("invariance", distribution, end)
    rng = np.random.default_rng(seed_of(what))
    row = distribution(rng, 1, end + 7)
    alone = check_top_k(backend, row, lens_of(end), what=what)[0].copy()
    for place, (max_blocks, min_chunk) in enumerate(SPLITS):
        for register_select in (True, False):
            values = inputs.NORMAL(rng, len(SPLITS), end + 7)
            values[place] = row
            lens = rng.integers(0, end, len(SPLITS), dtype=np.int32)
            lens[place] = end
            options = (max_blocks, min_chunk, register_select)
            out = check_top_k(backend, values, lens, what=(what, place), options=options)
            assert np.array_equal(out[place], alone), options


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_row(backend, data):
    """Few distinct values, so that ties and NaN meet the cut in every way."""
    width = data.draw(st.integers(1, 3000), "width")
    next_n = data.draw(st.integers(1, 8), "next_n")
    requests = data.draw(st.integers(1, 3), "requests")
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    options = (
        data.draw(st.integers(1, 8), "max_blocks"),
        data.draw(st.sampled_from([1, 512, 1024, 16_384]), "min_chunk"),
        data.draw(st.booleans(), "register_select"),
    )
    rng = np.random.default_rng(seed)
    kinds = data.draw(st.lists(st.sampled_from(FEW_VALUES), min_size=1, max_size=5), "values")
    values = np.array(kinds, np.float32)[rng.integers(0, len(kinds), (requests * next_n, width))]
    lens = rng.integers(-3, width + 9, requests, dtype=np.int32)
    stride = width + data.draw(st.integers(0, 5), "gap")
    check_top_k(backend, values, lens, next_n, what=(seed, width), stride=stride, options=options)
