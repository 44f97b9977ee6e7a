# SPDX-License-Identifier: Apache-2.0
"""Work goes to the caller's current stream, and streams share nothing."""

import inputs
import numpy as np
import pytest
from helpers import cuda

OPTIONS = [(), (8, 16_384, False)]


@pytest.mark.parametrize("options", OPTIONS, ids=["registers", "histogram"])
def test_eight_streams_at_once(gpu, options):
    """All are delayed first, so that their kernels run beside each other."""
    rng = np.random.default_rng(8)
    draws = [inputs.NORMAL, inputs.HALF_INTEGERS, inputs.MASKED, inputs.REAL_TEXT] * 2
    widths = [4096, 16_384, 131_072, 300_000] * 2
    steps = [
        cuda.Step(rng, 1 + i % 3, width, draw, options)
        for i, (width, draw) in enumerate(zip(widths, draws, strict=True))
    ]
    streams = [gpu.cuda.Stream() for _ in steps]
    gpu.cuda.synchronize()
    for _ in range(5):
        for step in steps:
            step.spoil()
        gpu.cuda.synchronize()
        for stream in streams:
            with gpu.cuda.stream(stream):
                cuda.delay(5)
        for stream, step in zip(streams, steps, strict=True):
            with gpu.cuda.stream(stream):
                step.call()
        gpu.cuda.synchronize()
    for i, step in enumerate(steps):
        step.check(f"stream {i} of 8")


def test_calls_wait_for_their_stream_alone(gpu):
    """What the stream writes late is what the call reads, and the host does not wait for it."""
    step = cuda.Step(np.random.default_rng(1), 3, 40_000, inputs.NORMAL)
    late, stream, done = step.logits.clone(), gpu.cuda.Stream(), gpu.cuda.Event()
    with gpu.cuda.stream(stream):
        step.call()  # builds, loads, and has the allocator keep scratch for this stream
    gpu.cuda.synchronize()
    step.logits.fill_(float("nan"))
    step.spoil()
    gpu.cuda.synchronize()
    with gpu.cuda.stream(stream):
        cuda.delay(200)
        step.logits.copy_(late)
        step.call()
        done.record()
    assert not done.query(), "a call waited for the device"
    step.check("late values")


def test_default_stream_gets_nothing(gpu):
    """While the default stream is busy, calls on another stream go through."""
    step = cuda.Step(np.random.default_rng(2), 3, 40_000, inputs.NORMAL)
    stream, busy, done = gpu.cuda.Stream(), gpu.cuda.Event(), gpu.cuda.Event()
    with gpu.cuda.stream(stream):
        step.call()
    gpu.cuda.synchronize()
    step.spoil()
    gpu.cuda.synchronize()
    cuda.delay(400)
    busy.record()
    with gpu.cuda.stream(stream):
        step.call()
        done.record()
    done.synchronize()
    assert not busy.query(), "the calls ended only with the default stream's work"
    step.check("beside a busy default stream")
