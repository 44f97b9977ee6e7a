# SPDX-License-Identifier: Apache-2.0
"""Graph capture: lengths live on the device, and no two graphs share scratch."""

import subprocess
import sys
import textwrap

import inputs
import numpy as np
import pytest
import reference
from helpers import cuda

OPTIONS = [(), (8, 16_384, False)]
ENDS = [
    (1 << 20,),
    (2048, 513, 512, 511),
    (131_072, 3, 1 << 20),
    (0,),
    (-1, 5, 1 << 20),
    (-(2**31), 2**31 - 1),
    (300_000, 16_384),
    (1 << 20, 0, 700),
]
"""Long to short and back, zero, negative, past the width."""


@pytest.mark.parametrize("options", OPTIONS, ids=["registers", "histogram"])
def test_replay_with_other_lengths(gpu, options):
    step = cuda.Step(np.random.default_rng(3), 6, 1 << 20, inputs.HALF_INTEGERS, options)
    step.set_ends((70_000,))
    graph = cuda.captured(step.call)
    for ends in ENDS:
        step.set_ends(ends)
        step.spoil()
        graph.replay()
        step.check("replayed")


def test_replay_with_other_values(gpu):
    step = cuda.Step(np.random.default_rng(4), 4, 131_072, inputs.NORMAL)
    graph = cuda.captured(step.call)
    for i in range(4):
        step.refill(ends=(131_072 - i, 131_072, 20_000 * i))
        step.spoil()
        graph.replay()
        step.check(f"replay {i}")


def test_captured_short_replayed_long(gpu):
    """A launch shape that looked at the lengths would be too small now."""
    step = cuda.Step(np.random.default_rng(5), 2, 1 << 20, inputs.REAL_TEXT)
    step.set_ends((0,))
    graph = cuda.captured(step.call)
    step.set_ends((1 << 20,))
    step.spoil()
    graph.replay()
    step.check("captured at 0")


def test_two_graphs_on_two_streams_at_once(gpu):
    rng = np.random.default_rng(6)
    steps = [
        cuda.Step(rng, 3, 300_000, inputs.HALF_INTEGERS),
        cuda.Step(rng, 5, 131_072, inputs.MASKED),
    ]
    steps.append(cuda.Step(rng, 3, 300_000, inputs.NORMAL, (8, 16_384, False)))
    graphs = [cuda.captured(step.call) for step in steps]
    streams = [gpu.cuda.Stream() for _ in steps]
    for step in steps:
        step.spoil()
    gpu.cuda.synchronize()
    for _ in range(20):
        for stream, graph in zip(streams, graphs, strict=True):
            with gpu.cuda.stream(stream):
                graph.replay()
    for i, step in enumerate(steps):
        step.check(f"graph {i} of {len(steps)}")


@pytest.mark.parametrize("width", [3_000, 40_000, 131_072])
def test_overlapping_launches_keep_their_order(gpu, width):
    """A launch may begin before the one before it has ended, but touches no memory until then.

    Every call reads what the one before it wrote, and what it reads is overwritten right after it.
    """
    import dsv41topk

    rng, rows, sets = np.random.default_rng(9), 4, 6
    values = inputs.NORMAL(rng, sets * rows, width).reshape(sets, rows, width)
    ends = rng.integers(600, width + 1, (sets, rows, 1)).astype(np.int32)
    sources, lengths = cuda.on_gpu(values), cuda.on_gpu(ends)
    logits, seq_lens = gpu.empty_like(sources[0]), gpu.empty_like(lengths[0])
    blocks = cuda.indices(rows, 64)
    top, best = cuda.indices(sets * rows), cuda.indices(sets * rows)

    def calls():
        for i in range(sets):
            out = slice(i * rows, (i + 1) * rows)
            logits.copy_(sources[i])
            seq_lens.copy_(lengths[i])
            dsv41topk.top_k_per_row_decode_512(logits, 1, seq_lens, top[out])
            dsv41topk.candidate_blocks(logits, seq_lens.view(-1), 1, 8, blocks)
            dsv41topk.candidate_top_k_512(logits, 1, seq_lens, blocks, 8, best[out])

    graph = cuda.captured(calls)
    for _ in range(20):
        top.fill_(-7)
        best.fill_(-7)
        graph.replay()
    for i in range(sets):
        out, what = slice(i * rows, (i + 1) * rows), f"set {i} of {width}"
        cuda.assert_rows(top[out], reference.top_k_per_row_decode_512(values[i], 1, ends[i]), what)
        chosen = reference.candidate_blocks(values[i], ends[i][:, 0], 1, 8, 64)
        right = reference.candidate_top_k_512(values[i], 1, ends[i], chosen, 8)
        cuda.assert_rows(best[out], right, f"candidates of {what}")


def test_graph_beside_eager_calls(gpu):
    """An eager call's scratch is not the graph's."""
    rng = np.random.default_rng(7)
    inside, outside = (cuda.Step(rng, 3, 200_000, inputs.HALF_INTEGERS) for _ in range(2))
    graph = cuda.captured(inside.call)
    inside.spoil()
    streams = [gpu.cuda.Stream() for _ in range(2)]
    gpu.cuda.synchronize()
    for _ in range(10):
        with gpu.cuda.stream(streams[0]):
            graph.replay()
        with gpu.cuda.stream(streams[1]):
            outside.call()
    inside.check("the graph")
    outside.check("eager calls beside it")


FIRST_CALL = """
    import inputs, numpy as np
    from helpers import cuda
    step = cuda.Step(np.random.default_rng(9), 3, 100_000, inputs.HALF_INTEGERS)
    graph = cuda.captured(step.call, warm=False)
    step.spoil()
    graph.replay()
    step.check("first call of the process, captured")
"""


def test_first_call_of_the_process_inside_a_capture(gpu):
    """The code object is read and loaded while the capture is on; the cache has it by now."""
    code = textwrap.dedent(FIRST_CALL)
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
