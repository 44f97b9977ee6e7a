# SPDX-License-Identifier: Apache-2.0
"""Every kernel over its launch shapes, for compute-sanitizer: run by test_sanitizer.py.

Tensors come from the host and go back to it by copies alone, so that every kernel which the tool
sees is one of ours. With PYTORCH_NO_CUDA_MEMORY_CACHING=1 each tensor, scratch too, is an
allocation of its own with nothing readable behind it.
"""

import sys

import inputs
import numpy as np
import reference
import torch
from helpers.cuda import assert_rows, on_gpu

import dsv41topk

ROWS = 3


def _output(columns):
    return on_gpu(np.full((ROWS, columns), -7, np.int32))


def _top_k(rng, width, stride, options, draw):
    held = draw(rng, ROWS, stride)
    values = held[:, :width]
    ends = np.array([width, max(width - 5, 0), min(width, 700)], np.int32)[:, None]
    out = _output(512)
    logits = on_gpu(held)[:, :width]
    dsv41topk.top_k_per_row_decode_512(logits, 1, on_gpu(ends), out, *options)
    right = reference.top_k_per_row_decode_512(values, 1, ends)
    assert_rows(out, right, f"top_k {width} {stride} {options} {draw}")


def _candidates(rng, width, slots):
    blocks = rng.integers(-1, -(-width // 8) + 1, (ROWS, slots))
    return np.sort(blocks, axis=1).astype(np.int32)


def _candidate_top_k(rng, width, slots):
    values = inputs.HALF_INTEGERS(rng, ROWS, width)
    ends = np.array([width, width - 5, 600], np.int32)[:, None]
    candidates = _candidates(rng, width, slots)
    out = _output(512)
    dsv41topk.candidate_top_k_512(on_gpu(values), 1, on_gpu(ends), on_gpu(candidates), 8, out)
    right = reference.candidate_top_k_512(values, 1, ends, candidates, 8)
    assert_rows(out, right, f"candidate_top_k {width} {slots}")


def _compact_top_k(rng, n, call):
    values = inputs.HALF_INTEGERS(rng, ROWS, n)
    ids = np.tile(np.arange(0, 2 * n, 2, dtype=np.int32), (ROWS, 1))
    dead = rng.random((ROWS, n)) < 0.1
    values[dead], ids[dead] = -np.inf, -1
    ends = np.full((ROWS, 1), 2 * n, np.int32)
    out = _output(512)
    getattr(dsv41topk, call)(on_gpu(values), on_gpu(ids), on_gpu(ends), 1, out)
    assert_rows(out, reference.compact_top_k_512(values, ids, ends, 1), f"{call} {n}")


def _candidate_blocks(rng, width, block_size, slots):
    values = inputs.HALF_INTEGERS(rng, ROWS, width)
    ends = np.array([width, width - 5, 600], np.int32)
    out = _output(slots)
    dsv41topk.candidate_blocks(on_gpu(values), on_gpu(ends), 1, block_size, out)
    right = reference.candidate_blocks(values, ends, 1, block_size, slots)
    assert_rows(out, right, f"candidate_blocks {width} {block_size} {slots}")


def _candidate_logits(rng, heads):
    from dsv41topk import _cache

    width, slots = 4096, 256
    q = _cache.encode_fp8(rng.standard_normal((1, ROWS, heads, 128)), "e4m3fn")
    keys = _cache.encode_fp8(rng.standard_normal((width, 128)), "e4m3fn")
    cache = _cache.pack_cache(keys, rng.random(width, np.float32), 64, np.arange(width // 64))
    weights = rng.random((ROWS, heads), np.float32)
    ends = np.array([[width, width - 5, 600]], np.int32)
    table = np.arange(width // 64, dtype=np.int32)[None]
    candidates = _candidates(rng, width, slots)
    logits = on_gpu(np.zeros((ROWS, slots * 8), np.float32))
    ids = _output(slots * 8)
    tensors = on_gpu(q).view(torch.float8_e4m3fn), on_gpu(cache), on_gpu(weights), on_gpu(ends)
    dsv41topk.candidate_logits(*tensors, ROWS, on_gpu(table), on_gpu(candidates), 8, logits, ids)
    right, right_ids = reference.candidate_logits(
        q, cache, weights, ends, ROWS, table, candidates, 8, "e4m3fn"
    )
    assert_rows(ids, right_ids, "ids of candidate_logits")
    np.testing.assert_allclose(logits.cpu().numpy(), right, rtol=1e-5)


def main():
    """Make the calls; an exception is a wrong result, and the tool reports what else it finds."""
    rng = np.random.default_rng(0)
    histogram = (8, 16_384, False)
    for draw in (inputs.HALF_INTEGERS, inputs.MASKED):
        for width in (513, 2048, 16_384, 50_000, 131_072):
            _top_k(rng, width, width, (), draw)
        _top_k(rng, 40_000, 40_000, histogram, draw)
        _top_k(rng, 131_072, 131_072, histogram, draw)
    _top_k(rng, 300_000, 300_000, (), inputs.NORMAL)
    _top_k(rng, 19_999, 20_001, (), inputs.NORMAL)
    _candidate_top_k(rng, 60_000, 2048)
    _candidate_top_k(rng, 60_000, 70)
    _candidate_top_k(rng, 60_000, 5000)
    _compact_top_k(rng, 16_384, "compact_top_k_512")
    _compact_top_k(rng, 5001, "compact_top_k_512")
    _compact_top_k(rng, 16_384, "compact_top_k_512_regs")
    _candidate_blocks(rng, 60_001, 8, 2048)
    _candidate_blocks(rng, 131_072, 8, 2048)
    _candidate_blocks(rng, 5003, 5, 300)
    _candidate_logits(rng, 32)
    _candidate_logits(rng, 64)
    torch.cuda.synchronize()
    print("all calls right")


if __name__ == "__main__":
    sys.exit(main())
