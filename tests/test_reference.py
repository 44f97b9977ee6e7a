# SPDX-License-Identifier: Apache-2.0
"""Rung 1: the oracle against rows whose answer is known by hand, and against real text."""

import inputs
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dsv41topk._cache import FP8_MAX, decode_fp8, encode_fp8, pack_cache

TOP_K = reference.TOP_K
NAN = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001], np.uint32).view(np.float32)


def lens_of(*ends):
    return np.array(ends, np.int32)


def test_order_of_values():
    rising = np.float32([-np.inf, -3.5, -1e-45, 0.0, 1e-45, 2.0, np.inf])
    keys = reference.order_key(np.concatenate([rising, NAN]))
    assert (np.diff(keys[:8].astype(np.int64)) > 0).all(), "a larger value has a larger key"
    assert len(set(keys[7:].tolist())) == 1, "NaN of either sign and any payload is one value"
    zeros = reference.order_key(np.float32([-0.0, 0.0]))
    assert zeros[0] == zeros[1]


@given(arrays.arrays(np.uint32, 2))
def test_keys_order_as_floats_do(bits):
    a, b = bits.view(np.float32)
    key_a, key_b = reference.order_key(bits.view(np.float32))
    if np.isnan(a) or np.isnan(b):
        assert (key_a == key_b) == (np.isnan(a) and np.isnan(b))
    else:
        assert (key_a < key_b, key_a == key_b) == (a < b, a == b)


@pytest.mark.parametrize(
    ("seq_lens", "next_n", "expected"),
    [
        ([5], 1, [5]),
        ([5], 3, [3, 4, 5]),
        ([5, 2], 3, [3, 4, 5, 0, 1, 2]),
        ([2], 6, [0, 0, 0, 0, 1, 2]),
        ([-4], 2, [0, 0]),
        ([1000], 2, [99, 99]),
        ([[5, 9], [-1, 200]], 2, [5, 9, 0, 99]),
    ],
)
def test_row_ends(seq_lens, next_n, expected):
    seq_lens = np.array(seq_lens, np.int32)
    assert reference.row_ends(seq_lens, next_n, len(expected), 99).tolist() == expected


def test_row_ends_of_the_longest_length_do_not_wrap():
    assert reference.row_ends(lens_of(2**31 - 1), 1, 1, 2**31 - 1).tolist() == [2**31 - 1]
    assert reference.row_ends(lens_of(-(2**31)), 6, 6, 10).tolist() == [0] * 6


def test_the_lowest_columns_win_ties():
    logits = np.zeros((1, 2000), np.float32)
    logits[0, 1500:1600] = 1
    chosen = reference.top_k_per_row_decode_512(logits, 1, lens_of(2000))[0]
    assert chosen.tolist() == [*range(412), *range(1500, 1600)]


def test_a_short_row_takes_every_column_whatever_its_value():
    logits = np.full((1, 600), np.nan, np.float32)
    chosen = reference.top_k_per_row_decode_512(logits, 1, lens_of(300))[0]
    assert chosen.tolist() == [*range(300), *[-1] * 212]


def test_nan_is_chosen_above_inf_and_nothing_past_the_end():
    logits = np.full((1, 900), 0.5, np.float32)
    logits[0, 100:500] = np.inf
    logits[0, 600:700] = NAN[1]
    logits[0, 800:] = np.inf
    chosen = reference.top_k_per_row_decode_512(logits, 1, lens_of(800))[0]
    assert chosen.tolist() == [*range(12), *range(100, 500), *range(600, 700)]


def test_candidates_count_once_in_slot_order():
    logits = np.arange(4000, dtype=np.float32)[None]
    candidates = np.array([[300, -1, 2, 300, 10_000, 499, -7]], np.int32)
    chosen = reference.candidate_top_k_512(logits, 1, lens_of(3995), candidates, 8)[0]
    expected = [*range(2400, 2408), *range(16, 24), *range(3992, 3995)]
    assert chosen.tolist() == expected + [-1] * (TOP_K - len(expected))


def test_candidates_are_the_masked_top_k(rng):
    logits = rng.standard_normal((1, 5000), np.float32)
    blocks = np.sort(rng.permutation(625)[:200]).astype(np.int32)[None]
    masked = np.full_like(logits, -np.inf)
    columns = (blocks[0][:, None] * 8 + np.arange(8)).reshape(-1)
    masked[0, columns] = logits[0, columns]
    lens = lens_of(5000)
    np.testing.assert_array_equal(
        reference.candidate_top_k_512(logits, 1, lens, blocks, 8),
        reference.top_k_per_row_decode_512(masked, 1, lens),
    )


def test_compact_rows_look_at_live_slots_only():
    values = np.zeros((1, 600), np.float32)
    ids = np.full((1, 600), -1, np.int32)
    ids[0, ::2] = np.arange(700, 1000)
    values[0, 1::2] = 9  # the value of a slot that is not live is not looked at
    chosen = reference.compact_top_k_512(values, ids, lens_of(1000), 1)[0]
    assert chosen.tolist() == [*range(700, 1000), *[-1] * 212]


def test_candidate_blocks_keep_the_newest_and_drop_masked_ones():
    logits = np.full((1, 80), -np.inf, np.float32)
    logits[0, 8] = -5
    logits[0, 30] = 7
    logits[0, 77:] = np.inf
    chosen = reference.candidate_blocks(logits, lens_of(77), 1, 8, 6)[0]
    assert chosen.tolist() == [1, 3, 9, -1, -1, -1]
    chosen = reference.candidate_blocks(logits, lens_of(77), 1, 8, 2)[0]
    assert chosen.tolist() == [3, 9]


def test_candidate_blocks_take_the_lowest_of_tied_ids():
    logits = np.zeros((2, 64), np.float32)
    logits[:, 40] = NAN[1]
    chosen = reference.candidate_blocks(logits, lens_of(64), 2, 8, 4)
    assert chosen.tolist() == [[0, 1, 5, 7]] * 2


@pytest.mark.parametrize("fp8", FP8_MAX)
def test_every_code_survives_decoding_and_encoding(fp8):
    codes = np.arange(256, dtype=np.uint8)
    values = decode_fp8(codes, fp8)
    finite = np.isfinite(values)
    assert (~finite).sum() == (2 if fp8 == "e4m3fn" else 1)
    again = decode_fp8(encode_fp8(values[finite], fp8), fp8)
    np.testing.assert_array_equal(again, values[finite])
    assert values[finite].max() == FP8_MAX[fp8]


@pytest.mark.parametrize("fp8", FP8_MAX)
def test_fp8_is_what_torch_has(fp8, rng):
    torch = pytest.importorskip("torch", reason="needs torch")
    kind = getattr(torch, f"float8_{fp8}")
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(
        decode_fp8(codes, fp8), torch.from_numpy(codes).view(kind).float().numpy()
    )
    values = (rng.standard_normal(100_000) * 60).clip(-240, 240).astype(np.float32)
    ours = decode_fp8(encode_fp8(values, fp8), fp8)
    np.testing.assert_array_equal(ours, torch.from_numpy(values).to(kind).float().numpy())


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_candidate_logits_by_hand(data):
    """One slot at a time, with Python's own numbers."""
    fp8 = data.draw(st.sampled_from(sorted(FP8_MAX)))
    page_size = data.draw(st.sampled_from([16, 32, 64]))
    block_size = data.draw(st.integers(1, 24))
    next_n = data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    keys = rng.integers(0, 126, (4 * page_size, 128), np.uint8)
    scales = rng.random(len(keys), np.float32)
    order = rng.permutation(4)
    cache = pack_cache(keys, scales, page_size, order)
    q = rng.integers(0, 126, (1, next_n, 32, 128), np.uint8)
    weights = rng.standard_normal((next_n, 32)).astype(np.float32)
    end = data.draw(st.integers(0, len(keys)))
    candidates = rng.integers(-2, 4 * page_size // block_size, (next_n, 3)).astype(np.int32)
    table = order.astype(np.int32)[None]
    logits, ids = reference.candidate_logits(
        q, cache, weights, lens_of(end), next_n, table, candidates, block_size, fp8
    )
    for row in range(next_n):
        slot = data.draw(st.integers(0, 3 * block_size - 1))
        block = int(candidates[row, slot // block_size])
        column = block * block_size + slot % block_size
        if block < 0 or column >= max(0, end - next_n + row + 1):
            assert (logits[row, slot], ids[row, slot]) == (-np.inf, -1)
            continue
        assert ids[row, slot] == column
        key = decode_fp8(keys[column], fp8).astype(float)
        dots = decode_fp8(q[0, row], fp8).astype(float) @ key * float(scales[column])
        expected = sum(max(d, 0) * float(w) for d, w in zip(dots, weights[row], strict=True))
        assert logits[row, slot] == pytest.approx(expected, rel=1e-12, abs=1e-9)


def test_real_text_scores_as_it_was_recorded():
    with np.load(inputs.STEP_8K) as step:
        rows, width = step["logits"].shape
        blocks = np.tile(np.arange(width // 8, dtype=np.int32), (rows, 1))
        lens = np.full((1, rows), width, np.int32)
        logits, ids = reference.candidate_logits(
            step["q"], step["kv_cache"], step["weights"], lens, rows, step["block_table"], blocks,
            8, str(step["fp8"]),
        )  # fmt: skip
        assert (ids == np.arange(width)).all()
        np.testing.assert_allclose(logits, step["logits"], rtol=0, atol=3e-7)


@pytest.mark.parametrize("distribution", inputs.DISTRIBUTIONS, ids=repr)
def test_distributions_are_functions_of_their_seed(distribution):
    first, second = (distribution(np.random.default_rng(7), 2, 1030) for _ in range(2))
    assert first.shape == (2, 1030)
    assert first.dtype == np.float32
    assert first.tobytes() == second.tobytes()


def test_model_like_rows_look_like_the_indexer_s():
    (model_like,) = [d for d in inputs.DISTRIBUTIONS if repr(d) == "model_like"]
    rows = model_like(np.random.default_rng(7), 3, 131_072)
    for row in rows:
        assert -1.2 < np.sort(row)[-TOP_K] < -0.6
        assert 0 < (row > 0).sum() < TOP_K
        assert len(np.unique(row)) < len(row), "equal keys occur"
