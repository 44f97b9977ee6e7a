# SPDX-License-Identifier: Apache-2.0
"""What must not matter: the device's compute units, and what scratch holds before a call."""

import inputs
import numpy as np
import pytest
from helpers.checks import (
    check_candidate_blocks,
    check_candidate_top_k,
    check_compact_top_k,
    check_top_k,
)

pytestmark = pytest.mark.launched

WIDTH = 70_000
ENDS = np.array([WIDTH, WIDTH - 3, 513, 0], np.int32)


def every_call(backend, what):
    """Each call once, on rows of ties and of NaN."""
    rng = np.random.default_rng(7)
    for distribution in (inputs.HALF_INTEGERS, inputs.FEW_NAN):
        here = (what, distribution)
        values = distribution(rng, len(ENDS), WIDTH)
        for options in ((8, 16_384, True), (8, 16_384, False), (8, 512, False)):
            check_top_k(backend, values, ENDS, what=here, options=options)
        ids = np.stack([np.sort(rng.permutation(WIDTH // 8)[:5000]) for _ in ENDS]).astype(np.int32)
        check_candidate_top_k(backend, values, ENDS, ids[:, ::4], what=here)
        check_candidate_top_k(backend, values, ENDS, ids, what=here)  # through scratch
        check_candidate_blocks(backend, values, ENDS, 2048, what=here)
        for registers in (False, True):
            part = np.ascontiguousarray(values[:, :5000])
            check_compact_top_k(backend, part, ids, ENDS, what=here, registers=registers)


@pytest.mark.parametrize("compute_units", [20, 38, 80, 228, 304])
def test_compute_units(backend, compute_units):
    backend.set_compute_units(compute_units)
    try:
        every_call(backend, ("compute units", compute_units))
    finally:
        backend.set_compute_units(304)


@pytest.mark.parametrize(
    "pattern", [0x00, 0x7F, 0xFF, None], ids=["zeros", "0x7f", "ones", "stale"]
)
def test_scratch(backend, pattern):
    """`stale`: what the call before left, which is what a caching allocator hands out."""
    before = backend.launcher.scratch_pattern
    backend.launcher.scratch_pattern = pattern
    try:
        every_call(backend, ("scratch", pattern))
    finally:
        backend.launcher.scratch_pattern = before
