# SPDX-License-Identifier: Apache-2.0
"""The hooks with CUDA tensors, under a stream that is not the default one."""

import inputs
import numpy as np
import pytest
import reference
from helpers import cuda

from dsv41topk import _cache

WIDTH = 40_000


@pytest.fixture
def hooks(gpu):
    """The package with its hooks on."""
    import dsv41topk

    dsv41topk.enable()
    yield dsv41topk
    dsv41topk.disable()


@pytest.mark.parametrize("next_n", [1, 6])
@pytest.mark.parametrize("two_dimensional", [False, True])
def test_decode_top_k(gpu, hooks, next_n, two_dimensional):
    rng = np.random.default_rng(next_n)
    requests = 4
    rows = requests * next_n
    values = inputs.HALF_INTEGERS(rng, rows, WIDTH)
    ends = np.array([WIDTH, 600, 30_000, 5], np.int32)
    lens = np.repeat(ends[:, None], next_n, axis=1) if two_dimensional else ends
    source, seq_lens = cuda.on_gpu(values), cuda.on_gpu(lens)
    logits = gpu.full_like(source, float("inf"))
    wide = cuda.indices(rows, 700)
    with cuda.late_stream():
        logits.copy_(source)
        taken = hooks.decode_top_k(logits, next_n, seq_lens, wide[:, 50:562], 512)
    assert taken is True
    right = reference.top_k_per_row_decode_512(values, next_n, lens)
    cuda.assert_rows(wide[:, 50:562], right, "decode_top_k")
    assert int((wide[:, :50] != -7).sum()) + int((wide[:, 562:] != -7).sum()) == 0


def test_select_candidates_then_candidate_top_k(gpu, hooks):
    """Layer 20 writes the candidates that layer 24 reads."""
    rng = np.random.default_rng(20)
    rows, next_n = 6, 6
    values = inputs.NORMAL(rng, rows, WIDTH)
    lens = np.array([WIDTH - 3], np.int32)
    source, seq_lens = cuda.on_gpu(values), cuda.on_gpu(lens)
    logits = gpu.full_like(source, float("inf"))
    blocks, out = cuda.indices(rows, 2048), cuda.indices(rows)
    with cuda.late_stream():
        logits.copy_(source)
        selected = hooks.select_candidates(logits, next_n, seq_lens, 8, blocks)
        taken = hooks.candidate_top_k(logits, next_n, seq_lens, blocks, 8, out, 512)
    assert selected is True and taken is True
    ids = reference.candidate_blocks(values, lens, next_n, 8, 2048)
    cuda.assert_rows(blocks, ids, "select_candidates")
    right = reference.candidate_top_k_512(values, next_n, lens, ids, 8)
    cuda.assert_rows(out, right, "candidate_top_k")


@pytest.mark.parametrize("heads", [32, 64])
def test_candidate_logits_top_k(gpu, hooks, heads):
    """Its 512 are those of the logits that it computes: a direct call gives the same ones."""
    requests, next_n, page_size, pages = 2, 3, 64, 700
    case = logits_case(np.random.default_rng(heads), requests, next_n, heads, page_size, pages)
    q, cache, weights, lens, table, candidates = (cuda.on_gpu(array) for array in case)
    source = q.view(gpu.float8_e4m3fn)
    late = gpu.zeros_like(q).view(gpu.float8_e4m3fn)
    out = cuda.indices(requests * next_n)
    with cuda.late_stream():
        late.view(gpu.uint8).copy_(q)
        taken = hooks.candidate_logits_top_k(
            late, cache, weights, lens, table, candidates, 8, out, 512, True, False
        )
    assert taken is True
    logits, ids = cuda_logits(gpu, source, cache, weights, lens, next_n, table, candidates)
    right = reference.compact_top_k_512(logits.cpu().numpy(), ids.cpu().numpy(), case[3], next_n)
    cuda.assert_rows(out, right, "candidate_logits_top_k")


@pytest.mark.parametrize("heads", [32, 64])
@pytest.mark.parametrize("page_size", [16, 64, 128])
def test_candidate_logits_are_near_the_truth(gpu, heads, page_size):
    rng = np.random.default_rng(heads + page_size)
    requests, next_n = 2, 3
    case = logits_case(rng, requests, next_n, heads, page_size, 45_000 // page_size)
    q, cache, weights, lens, table, candidates = (cuda.on_gpu(array) for array in case)
    logits, ids = cuda_logits(
        gpu, q.view(gpu.float8_e4m3fn), cache, weights, lens, next_n, table, candidates
    )
    right, right_ids = reference.candidate_logits(*case[:4], next_n, *case[4:], 8, "e4m3fn")
    cuda.assert_rows(ids, right_ids, "ids")
    np.testing.assert_allclose(logits.cpu().numpy(), right, rtol=1e-5)


def logits_case(rng, requests, next_n, heads, page_size, pages):
    """q (codes), cache, weights, seq_lens, block table, candidates, as numpy arrays.

    Weights are positive: sums that cancel have no relative error to speak of.
    """
    rows, width = requests * next_n, pages // requests * page_size
    q = _cache.encode_fp8(rng.standard_normal((requests, next_n, heads, 128)), "e4m3fn")
    keys = _cache.encode_fp8(rng.standard_normal((requests * width, 128)), "e4m3fn")
    scales = np.exp(0.3 * rng.standard_normal(requests * width)).astype(np.float32)
    order = rng.permutation(requests * (width // page_size))
    cache = _cache.pack_cache(keys, scales, page_size, order)
    weights = rng.random((rows, heads), np.float32)
    lens = np.array([width - 5, width // 2][:requests], np.int32)
    table = order.reshape(requests, -1).astype(np.int32)
    candidates = np.stack([np.sort(rng.permutation(width // 8)[:2048]) for _ in range(rows)])
    candidates[:, ::17] = -1
    return q, cache, weights, lens, table, candidates.astype(np.int32)


def cuda_logits(gpu, q, cache, weights, lens, next_n, table, candidates):
    """Logits and ids from the direct call."""
    import dsv41topk

    rows, slots = candidates.shape
    logits = gpu.full((rows, slots * 8), 7.0, device="cuda")
    ids = gpu.full((rows, slots * 8), -9, dtype=gpu.int32, device="cuda")
    dsv41topk.candidate_logits(q, cache, weights, lens, next_n, table, candidates, 8, logits, ids)
    gpu.cuda.synchronize()
    return logits, ids


def test_tensors_of_another_device_are_declined(gpu, hooks):
    logits, lens = gpu.randn(2, 4096), gpu.full((2, 1), 4096, dtype=gpu.int32)
    out = gpu.full((2, 512), -7, dtype=gpu.int32)
    assert hooks.decode_top_k(logits, 1, lens, out, 512) is False
    mixed = hooks.decode_top_k(logits.cuda(), 1, lens, out.cuda(), 512)
    assert mixed is False
    assert int((out != -7).sum()) == 0


def test_hooks_that_are_off_enqueue_nothing(gpu, hooks):
    hooks.disable()
    logits, out = gpu.randn(2, 4096, device="cuda"), cuda.indices(2)
    assert hooks.decode_top_k(logits, 1, cuda.lens(4096, 4096), out, 512) is False
    gpu.cuda.synchronize()
    assert int((out != -7).sum()) == 0
