# SPDX-License-Identifier: Apache-2.0
"""-ffast-math in the compiler's environment changes nothing: NaN is told by its bits."""

import inputs
import numpy as np
import pytest
from helpers import backends
from helpers.checks import (
    check_candidate_blocks,
    check_candidate_top_k,
    check_compact_top_k,
    check_top_k,
)

ENDS = np.array([20_000, 19_997, 5_000], np.int32)


@pytest.fixture(scope="module")
def fast():
    """The gfx942 backend with a code object that the compiler was told has no NaN in it."""
    reason = backends.unavailable("gfx942")
    if reason:
        pytest.skip(reason)
    return backends.backend("gfx942", "fast-math")


@pytest.mark.parametrize("distribution", inputs.NOT_NUMBERS, ids=repr)
def test_every_call(fast, distribution):
    rng = np.random.default_rng(11)
    values = distribution(rng, len(ENDS), 20_000)
    for register_select in (True, False):
        options = (8, 4096, register_select)
        check_top_k(fast, values, ENDS, what=distribution, options=options)
    ids = np.stack([np.sort(rng.permutation(2500)[:2048]) for _ in ENDS]).astype(np.int32)
    check_candidate_top_k(fast, values, ENDS, ids, what=distribution)
    check_candidate_blocks(fast, values, ENDS, 1024, what=distribution)
    for registers in (False, True):
        part = np.ascontiguousarray(values[:, :2048])
        check_compact_top_k(fast, part, ids, ENDS, what=distribution, registers=registers)
