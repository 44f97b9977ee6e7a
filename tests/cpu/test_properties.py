# SPDX-License-Identifier: Apache-2.0
"""Properties of the public calls on CPU tensors, beside those of tests/contract.

There: every top-k and candidate_blocks on every backend. Here: candidate logits, hooks against
kernels, what a call may touch, and rows whose offsets pass 2^31 elements.
"""

import mmap

import inputs
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

import dsv41topk
from dsv41topk import _runtime
from dsv41topk._cache import DIM, FP8_MAX, Fp8Array, pack_cache

TOP_K = 512
CANARY = -0x0DDBA11


@pytest.fixture(autouse=True, scope="module")
def _cpu_hooks():
    patch = pytest.MonkeyPatch()
    patch.setenv("DSV41TOPK_BACKEND", "cpu")
    _runtime.reset()
    dsv41topk.enable()
    assert dsv41topk.build(), dsv41topk.build_error()
    yield
    patch.undo()
    _runtime.reset()


# ---- candidate logits ----------------------------------------------------------------------------


@st.composite
def scoring_calls(draw):
    """Draw the arguments of candidate_logits: odd lengths, gaps, unused pages full of NaN."""
    fp8 = draw(st.sampled_from(sorted(FP8_MAX)))
    page_size = draw(st.sampled_from([16, 64, 128]))
    block_size = draw(st.sampled_from([1, 3, 8, 16]))
    requests, next_n = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    heads = draw(st.sampled_from([32, 64]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pages_each = draw(st.integers(1, 4))
    width = pages_each * page_size
    keys = rng.integers(0, 0x70, (requests * width, DIM), np.uint8) | 128 * rng.integers(
        0, 2, (requests * width, DIM), np.uint8
    )
    keys[keys == 0x80] = 0  # NaN in e4m3fnuz
    spare = 2
    order = rng.permutation(requests * pages_each + spare)
    nan_pages = np.full((spare * page_size, DIM), 0xFF if fp8 == "e4m3fn" else 0x80, np.uint8)
    scales = rng.uniform(0.01, 2, len(keys)).astype(np.float32)
    nan_scales = np.full(spare * page_size, np.nan, np.float32)
    cache = pack_cache(
        np.concatenate([keys, nan_pages]), np.concatenate([scales, nan_scales]), page_size, order
    )
    table = order[: requests * pages_each].reshape(requests, pages_each).astype(np.int32)
    # Entries of the table past the live columns name a page of NaN.
    table = np.hstack([table, np.full((requests, 2), order[-1], np.int32)])
    if draw(st.booleans()):
        seq_lens = rng.integers(-3, width + 1, requests).astype(np.int32)
    else:
        seq_lens = rng.integers(-3, width + 1, (requests, next_n)).astype(np.int32)
    rows = requests * next_n
    slots = draw(st.integers(1, 40))
    candidates = rng.integers(-2, -(-width // block_size) + 2, (rows, slots)).astype(np.int32)
    q = rng.integers(0, 0x70, (requests, next_n, heads, DIM), np.uint8)
    weights = rng.standard_normal((rows, heads)).astype(np.float32)
    return q, cache, weights, seq_lens, next_n, table, candidates, block_size, fp8


def score(call):
    """Run candidate_logits; return its logits and ids."""
    q, cache, weights, seq_lens, next_n, table, candidates, block_size, fp8 = call
    shape = (len(weights), candidates.shape[1] * block_size)
    logits, ids = np.full(shape, np.nan, np.float32), np.full(shape, CANARY, np.int32)
    dsv41topk.candidate_logits(
        Fp8Array(q, fp8), cache, weights, seq_lens, next_n, table, candidates, block_size,
        logits, ids,
    )  # fmt: skip
    return logits, ids


@settings(deadline=None, max_examples=60)
@given(scoring_calls())
def test_candidate_logits(call):
    before = [a.tobytes() for a in call if isinstance(a, np.ndarray)]
    logits, ids = score(call)
    truth, expected_ids = reference.candidate_logits(*call)
    # Of the terms, not of the sums: queries and keys may cancel to nearly nothing.
    q, cache, weights, *rest = call
    cache = cache.copy()
    cache.reshape(len(cache), -1)[:, : cache.shape[1] * DIM] &= 0x7F
    magnitude, _ = reference.candidate_logits(q & 0x7F, cache, np.abs(weights), *rest)
    np.testing.assert_array_equal(ids, expected_ids)
    live = ids >= 0
    assert np.isneginf(logits[~live]).all(), "a slot that is not live holds -inf"
    error = np.abs(logits[live] - truth[live])
    assert (error <= 1e-5 * magnitude[live] + 1e-30).all(), error.max()
    assert before == [a.tobytes() for a in call if isinstance(a, np.ndarray)]


@settings(deadline=None, max_examples=30)
@given(scoring_calls(), st.integers(0, 2**32 - 1))
def test_a_logit_depends_on_its_column_alone(call, seed):
    """Slots in another order, and neighbours of other rows, change no bit."""
    logits, ids = score(call)
    *head, candidates, block_size, fp8 = call
    order = np.random.default_rng(seed).permutation(candidates.shape[1])
    moved = np.ascontiguousarray(candidates[:, order])
    moved_logits, moved_ids = score((*head, moved, block_size, fp8))
    slots = (order[:, None] * block_size + np.arange(block_size)).reshape(-1)
    assert moved_ids.tobytes() == np.ascontiguousarray(ids[:, slots]).tobytes()
    assert moved_logits.tobytes() == np.ascontiguousarray(logits[:, slots]).tobytes()


# ---- hooks are the kernels -----------------------------------------------------------------------

ROWS = st.sampled_from([d for d in inputs.DISTRIBUTIONS if repr(d) != "real_text"])


@settings(deadline=None, max_examples=40)
@given(ROWS, st.integers(1, 4), st.integers(1, 8), st.integers(520, 6000), st.data())
def test_hooks_write_what_the_oracle_says(distribution, requests, next_n, width, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    rows = requests * next_n
    logits = distribution(rng, rows, width)
    per_row = data.draw(st.booleans())
    shape = (requests, next_n) if per_row else requests
    seq_lens = rng.integers(-2, width + 50, shape).astype(np.int32)
    buffer = np.full((rows, TOP_K + 88), CANARY, np.int32)
    indices = buffer[:, 40 : 40 + TOP_K]
    assert dsv41topk.decode_top_k(logits, next_n, seq_lens, indices, TOP_K)
    expected = reference.top_k_per_row_decode_512(logits, next_n, seq_lens)
    np.testing.assert_array_equal(indices, expected)

    slots = data.draw(st.integers(65, 300))
    candidates = np.full((rows + 2, slots), CANARY, np.int32)
    assert dsv41topk.select_candidates(logits, next_n, seq_lens, 8, candidates)
    row_repeat = 1 if per_row or next_n == 1 else next_n
    expected = reference.candidate_blocks(logits, seq_lens, row_repeat, 8, slots)
    np.testing.assert_array_equal(candidates[:rows], expected)
    assert (candidates[rows:] == CANARY).all()

    assert dsv41topk.candidate_top_k(logits, next_n, seq_lens, candidates, 8, indices, TOP_K)
    expected = reference.candidate_top_k_512(logits, next_n, seq_lens, candidates, 8)
    np.testing.assert_array_equal(indices, expected)
    assert (buffer[:, :40] == CANARY).all()
    assert (buffer[:, 40 + TOP_K :] == CANARY).all()


@settings(deadline=None, max_examples=30)
@given(scoring_calls())
def test_candidate_logits_top_k_is_its_two_kernels(call):
    q, cache, weights, seq_lens, next_n, table, candidates, block_size, fp8 = call
    more = -(-520 // block_size) - candidates.shape[1]
    if more > 0:  # the hook takes more than 512 columns' worth of slots
        empty = np.full((len(candidates), more), -1, np.int32)
        candidates = np.hstack([candidates, empty])
    logits, ids = score((*call[:6], candidates, block_size, fp8))
    expected = reference.compact_top_k_512(logits, ids, seq_lens, next_n)
    indices = np.full((len(weights), TOP_K), CANARY, np.int32)
    assert dsv41topk.candidate_logits_top_k(
        Fp8Array(q, fp8), cache, weights, seq_lens, table, candidates, block_size, indices, TOP_K,
        True, False,
    )  # fmt: skip
    np.testing.assert_array_equal(indices, expected)


# ---- one row, one answer -------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(ROWS, st.integers(513, 20_000), st.data())
def test_a_row_has_one_answer(distribution, width, data):
    """Whatever stands beside it, wherever it lies, however it is split."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    row = distribution(rng, 1, width)[0]
    end = data.draw(st.integers(0, width))
    expected = reference.top_k_row(row, end)
    rows, place = 5, data.draw(st.integers(0, 4))
    stride = width + data.draw(st.integers(0, 9))
    held = rng.standard_normal(rows * stride + 3).astype(np.float32)
    offset = data.draw(st.integers(0, 3))
    logits = np.lib.stride_tricks.as_strided(held[offset:], (rows, width), (4 * stride, 4))
    logits[place] = row
    lens = rng.integers(0, width + 1, (rows, 1)).astype(np.int32)
    lens[place] = end
    options = data.draw(
        st.tuples(st.integers(1, 64), st.integers(1, 40_000), st.booleans()) | st.just(())
    )
    indices = np.full((rows, TOP_K), CANARY, np.int32)
    dsv41topk.top_k_per_row_decode_512(logits, 1, lens, indices, *options)
    np.testing.assert_array_equal(indices[place], expected)


# ---- offsets past 2^31 elements ------------------------------------------------------------------

FAR = (1 << 31) + 12_345
"""Elements from row to row."""


@pytest.fixture
def far_rows():
    """Make arrays whose rows lie FAR elements apart, in memory that is not there until written."""
    maps = []

    def make(shape, dtype):
        rows, columns = shape
        size = ((rows - 1) * FAR + columns) * np.dtype(dtype).itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        maps.append(mmap.mmap(-1, size, flags=flags))
        flat = np.frombuffer(maps[-1], dtype)
        return np.lib.stride_tricks.as_strided(flat, shape, (FAR * flat.itemsize, flat.itemsize))

    yield make
    # The maps close when the last view of them goes.


def test_rows_past_2_31_elements(far_rows, rng):
    values = rng.standard_normal((3, 3000), np.float32)
    logits, indices = far_rows((3, 3000), np.float32), far_rows((3, TOP_K), np.int32)
    candidates = far_rows((3, 200), np.int32)
    logits[:] = values
    lens = np.array([[3000], [2500], [513]], np.int32)
    dsv41topk.top_k_per_row_decode_512(logits, 1, lens, indices)
    expected = reference.top_k_per_row_decode_512(values, 1, lens)
    np.testing.assert_array_equal(indices, expected)

    dsv41topk.candidate_blocks(logits, lens.reshape(-1), 1, 8, candidates)
    expected = reference.candidate_blocks(values, lens, 1, 8, 200)
    np.testing.assert_array_equal(candidates, expected)

    indices[:] = CANARY
    dsv41topk.candidate_top_k_512(logits, 1, lens, candidates, 8, indices)
    expected = reference.candidate_top_k_512(values, 1, lens, np.array(candidates), 8)
    np.testing.assert_array_equal(indices, expected)


def test_far_torch_views(rng):
    torch = pytest.importorskip("torch", reason="needs torch")
    values = torch.from_numpy(rng.standard_normal((1, 3000), np.float32))
    # With one row its stride is not looked at, so that no memory need lie behind it.
    logits = values.as_strided((1, 3000), (FAR, 1))
    indices = torch.full((1, TOP_K), CANARY, dtype=torch.int32).as_strided((1, TOP_K), (FAR, 1))
    lens = torch.tensor([3000], dtype=torch.int32)
    dsv41topk.top_k_per_row_decode_512(logits, 1, lens, indices)
    expected = reference.top_k_per_row_decode_512(values.numpy(), 1, lens.numpy())
    np.testing.assert_array_equal(indices.numpy(), expected)


def test_pages_past_2_31_bytes(rng):
    """A page stride larger than a page: page 5 lies at byte 5 * 2^30."""
    page_size, stride = 64, 1 << 30
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = np.frombuffer(mmap.mmap(-1, 6 * stride, flags=flags), np.uint8)
    cache = np.lib.stride_tricks.as_strided(
        memory, (6, page_size, 1, DIM + 4), (stride, DIM + 4, DIM + 4, 1)
    )
    keys = rng.integers(0, 0x70, (6 * page_size, DIM), np.uint8)
    order = np.array([5, 0, 4, 1, 3, 2])
    scales = rng.uniform(0.5, 2, len(keys)).astype(np.float32)
    cache[:] = pack_cache(keys, scales, page_size, order)
    q = rng.integers(0, 0x70, (1, 1, 32, DIM), np.uint8)
    weights = rng.standard_normal((1, 32)).astype(np.float32)
    blocks = rng.permutation(48)[None].astype(np.int32)
    lens = np.array([6 * page_size], np.int32)
    table = order.astype(np.int32)[None]
    logits, ids = score((q, cache, weights, lens, 1, table, blocks, 8, "e4m3fn"))
    near = pack_cache(keys, scales, page_size, order)
    same, same_ids = score((q, near, weights, lens, 1, table, blocks, 8, "e4m3fn"))
    assert (logits.tobytes(), ids.tobytes()) == (same.tobytes(), same_ids.tobytes())
    truth, _ = reference.candidate_logits(q, near, weights, lens, 1, table, blocks, 8, "e4m3fn")
    np.testing.assert_allclose(logits, truth, rtol=1e-4)
