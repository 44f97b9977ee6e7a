# SPDX-License-Identifier: Apache-2.0
"""csrc/cpu below the extension: what the contract tests do not reach."""

import threading

import inputs
import numpy as np
import pytest
import reference
from helpers import backends
from helpers.fake_gpu import in_new_process

NAMES = ["normal", "half_integers", "all_equal", "ascending", "descending"]
NAMES += ["nan_both_signs", "signed_zeros"]
DRAWS = [draw for draw in inputs.DISTRIBUTIONS if repr(draw) in NAMES]


@pytest.fixture(scope="module")
def native():
    reason = backends.unavailable("native")
    if reason:
        pytest.skip(reason)
    return backends.backend("native")


def top_k(native, values, ends):
    """The call's entries, on the values as they are."""
    out = np.full((len(values), 512), -7, np.int32)
    native.top_k_per_row_decode_512(values, 1, np.array(ends, np.int32)[:, None], out)
    return out


def right(values, ends):
    return reference.top_k_per_row_decode_512(values, 1, np.array(ends, np.int32)[:, None])


@pytest.mark.parametrize("draw", DRAWS, ids=repr)
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_in_pieces(native, draw, rows):
    """Few long rows: threads take pieces, and ties must be settled between pieces."""
    width = (1 << 20) + 77
    values = draw(np.random.default_rng(rows), rows, width)
    ends = [width, width - 1000, 700_001][:rows]
    assert np.array_equal(top_k(native, values, ends), right(values, ends))


def test_blocks_in_pieces(native):
    values = inputs.HALF_INTEGERS(np.random.default_rng(0), 1, 1 << 21)
    ends = np.array([(1 << 21) - 3], np.int32)
    out = np.full((1, 3000), -7, np.int32)
    native.candidate_blocks(values, ends, 1, 4, out)
    assert np.array_equal(out, reference.candidate_blocks(values, ends, 1, 4, 3000))


@pytest.mark.parametrize("draw", DRAWS, ids=repr)
def test_candidates_of_several_tiles_in_any_order(native, draw):
    """More slots than are gathered at once, listed backwards: the lowest columns come last."""
    rng = np.random.default_rng(1)
    values = draw(rng, 1, 60_000)
    candidates = np.arange(7499, -1, -1, dtype=np.int32)[None]
    lens = np.array([[59_990]], np.int32)
    out = np.full((1, 512), -7, np.int32)
    native.candidate_top_k_512(values, 1, lens, candidates, 8, out)
    assert np.array_equal(out, reference.candidate_top_k_512(values, 1, lens, candidates, 8))


@pytest.mark.parametrize("offset_bytes", [1, 2, 3, 6])
def test_rows_at_any_byte(native, offset_bytes):
    values = inputs.NORMAL(np.random.default_rng(2), 2, 20_001)
    held = np.empty(values.nbytes + 8, np.uint8)
    shifted = held[offset_bytes : offset_bytes + values.nbytes].view(np.float32)
    shifted = shifted.reshape(values.shape)
    shifted[...] = values
    ends = [20_001, 12_345]
    assert np.array_equal(top_k(native, shifted, ends), right(values, ends))


def test_four_threads_at_once(native):
    """Each call has threads of its own and shares nothing."""
    width = 1 << 20
    jobs = [inputs.HALF_INTEGERS(np.random.default_rng(seed), 2, width) for seed in range(4)]
    results = [None] * len(jobs)

    def work(i):
        for _ in range(3):
            results[i] = top_k(native, jobs[i], [width, width - i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, values in enumerate(jobs):
        assert np.array_equal(results[i], right(values, [width, width - i])), f"thread {i}"


def _calls_before_and_after_fork():
    import os

    native = backends.backend("native")
    values = inputs.NORMAL(np.random.default_rng(3), 3, 1 << 20)
    ends = [1 << 20] * 3
    wanted = right(values, ends)
    assert np.array_equal(top_k(native, values, ends), wanted)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(top_k(native, values, ends), wanted) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert np.array_equal(top_k(native, values, ends), wanted)


def test_fork_between_calls(native):
    """No thread outlives a call, so there is none for the child to miss."""
    in_new_process(_calls_before_and_after_fork)
