# SPDX-License-Identifier: Apache-2.0
"""The 512 entries are a function of the row alone, whatever runs around it."""

import inputs
import numpy as np
import pytest
from helpers import cuda

RUNS = 50


@pytest.mark.parametrize("options", [(), (8, 16_384, False)], ids=["registers", "histogram"])
def test_fifty_runs_on_a_tied_input_give_one_output(gpu, options):
    """Beside noise on another stream, which moves workgroups about."""
    step = cuda.Step(np.random.default_rng(10), 6, 131_072, inputs.HALF_INTEGERS, options)
    noise, stream = gpu.randn(4096, 4096, device="cuda"), gpu.cuda.Stream()
    seen = {name: set() for name in step.outputs}
    for _ in range(RUNS):
        step.spoil()
        gpu.cuda.synchronize()
        with gpu.cuda.stream(stream):
            noise.mul_(1.0)
        step.call()
        gpu.cuda.synchronize()
        for name, output in step.outputs.items():
            seen[name].add(output.cpu().numpy().tobytes())
    assert {name: len(results) for name, results in seen.items()} == dict.fromkeys(seen, 1)
    step.check("the one output")


@pytest.mark.parametrize("width", [16_384, 131_072, 1 << 20])
def test_launch_shapes(gpu, width):
    """The same row under every way to split it."""
    import dsv41topk

    values = inputs.HALF_INTEGERS(np.random.default_rng(width), 1, width)
    logits, ends = cuda.on_gpu(values), cuda.lens(width)
    results = set()
    for options in [
        (8, 16_384, True),
        (1, 16_384, False),
        (2, 1024, False),
        (8, 1024, False),
        (16, 4096, False),
        (64, 16_384, False),
        (8, 1 << 20, False),
    ]:
        out = cuda.indices(1)
        dsv41topk.top_k_per_row_decode_512(logits, 1, ends, out, *options)
        results.add(out.cpu().numpy().tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("rows", [1, 2, 7, 48, 131, 400])
def test_place_in_the_batch_and_neighbours(gpu, rows):
    import dsv41topk

    rng = np.random.default_rng(rows)
    one = cuda.on_gpu(inputs.HALF_INTEGERS(rng, 1, 70_000))
    alone = cuda.indices(1)
    dsv41topk.top_k_per_row_decode_512(one, 1, cuda.lens(70_000), alone)
    logits = gpu.randn(rows, 70_000, device="cuda")
    ends = rng.integers(0, 70_001, rows)
    places = {0, rows // 2, rows - 1}
    for place in places:
        logits[place] = one[0]
        ends[place] = 70_000
    for options in [(), (8, 16_384, False)]:
        out = cuda.indices(rows)
        dsv41topk.top_k_per_row_decode_512(logits, 1, cuda.lens(*ends), out, *options)
        for place in places:
            cuda.assert_rows(out[place : place + 1], alone, f"row {place} of {rows}, {options}")
