# SPDX-License-Identifier: Apache-2.0
"""compact_top_k_512 and compact_top_k_512_regs as the contract states them, on every backend."""

import inputs
import numpy as np
import pytest
from helpers.checks import EXAMPLES, check_compact_top_k, seed_of
from hypothesis import given, settings
from hypothesis import strategies as st

CALLS = {"compact": False, "registers": True}


@pytest.fixture(params=CALLS.values(), ids=CALLS)
def registers(request):
    return request.param


def lens_of(*ends):
    return np.array(ends, np.int32)


def gathered(rng, distribution, ends, n, dead=0.05, shuffled=False):
    """Rows of `n` slots: values, and ids of random columns below each end; -1 and -inf if dead."""
    values = distribution(rng, len(ends), n)
    ids = np.full((len(ends), n), -1, np.int32)
    for row, end in zip(ids, ends, strict=True):
        columns = rng.choice(max(int(end), 0), min(n, max(int(end), 0)), replace=False)
        columns = columns if shuffled else np.sort(columns)
        row[: len(columns)] = np.where(rng.random(len(columns)) < dead, -1, columns)
    return np.where(ids < 0, np.float32(-np.inf), values), ids


@pytest.mark.parametrize("distribution", inputs.DISTRIBUTIONS, ids=repr)
@pytest.mark.parametrize("n", [516, 4096, 16_384, 32_768])
def test_distributions(backend, distribution, n, registers):
    what = (distribution, n)
    ends = lens_of(2 * n, n + 600, 513)
    values, ids = gathered(np.random.default_rng(seed_of(what)), distribution, ends, n)
    check_compact_top_k(backend, values, ids, ends, what=what, registers=registers)


@pytest.mark.parametrize("distribution", inputs.USUAL, ids=repr)
@pytest.mark.parametrize("n", [513, 515, 4097, 32_769, 40_000, 131_072])
def test_any_length_without_registers(backend, distribution, n):
    what = ("length", distribution, n)
    ends = lens_of(2 * n, n, 600)
    values, ids = gathered(np.random.default_rng(seed_of(what)), distribution, ends, n)
    check_compact_top_k(backend, values, ids, ends, what=what)


def test_ends(backend, registers):
    ends = lens_of(-1, 0, 1, 511, 512, 513, 4096, 2**31 - 1)
    rng = np.random.default_rng(1)
    values, ids = gathered(rng, inputs.NORMAL, np.minimum(ends, 5000), 4096)
    check_compact_top_k(backend, values, ids, ends, what="ends", registers=registers)


def test_ids_in_any_order(backend, registers):
    """Of equal values the lowest id wins; chosen ones stay in slot order."""
    ends = lens_of(9000, 9000, 9000)
    values, ids = gathered(
        np.random.default_rng(2), inputs.HALF_INTEGERS, ends, 4096, shuffled=True
    )
    check_compact_top_k(backend, values, ids, ends, what="any order", registers=registers)


@pytest.mark.parametrize("live", [0, 1, 511, 512, 513])
def test_few_live_slots(backend, live, registers):
    """Live values of -inf are values; empty slots are none."""
    rng = np.random.default_rng(live)
    ids = np.full((2, 2048), -1, np.int32)
    for row in ids:
        row[np.sort(rng.permutation(2048)[:live])] = np.sort(rng.permutation(10_000)[:live])
    values = np.where(ids < 0, np.float32(-np.inf), inputs.MASKED(rng, 2, 2048))
    check_compact_top_k(
        backend, values, ids, lens_of(10_000, 10_000), what=("few", live), registers=registers
    )


@pytest.mark.parametrize("next_n", range(1, 9))
def test_draft_rows_of_a_request(backend, next_n, registers):
    lens = lens_of(3000, 510 + next_n, 0)
    rng = np.random.default_rng(next_n)
    ends = np.repeat(lens, next_n) - next_n + 1 + np.tile(np.arange(next_n), len(lens))
    values, ids = gathered(rng, inputs.NORMAL, ends, 1024)
    check_compact_top_k(
        backend, values, ids, lens, next_n, what=("draft", next_n), registers=registers
    )


def test_one_length_a_row(backend, registers):
    lens = np.random.default_rng(3).integers(-5, 3000, (4, 3), dtype=np.int32)
    values, ids = gathered(np.random.default_rng(4), inputs.NORMAL, lens.reshape(-1), 1024)
    check_compact_top_k(
        backend, values, ids, lens, 3, what="2-D", registers=registers, indices_stride=600
    )


def test_no_rows(backend, registers):
    empty = np.empty((0, 1024), np.float32)
    check_compact_top_k(
        backend, empty, empty.astype(np.int32), lens_of(), what="no rows", registers=registers
    )


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_row(backend, data):
    n = 4 * data.draw(st.integers(129, 700), "n / 4")
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    registers = data.draw(st.booleans(), "registers")
    rng = np.random.default_rng(seed)
    few = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], np.float32)
    ends = rng.integers(513, 5000, 2, dtype=np.int32)
    _, ids = gathered(
        rng, inputs.NORMAL, ends, n, dead=rng.random(), shuffled=bool(rng.integers(2))
    )
    values = np.where(ids < 0, np.float32(-np.inf), few[rng.integers(0, 6, ids.shape)])
    check_compact_top_k(backend, values, ids, ends, what=(seed, n), registers=registers)
