# SPDX-License-Identifier: Apache-2.0
"""-ffast-math in the compiler's environment changes nothing: NaN is told by its bits."""

import struct

import inputs
import numpy as np
import pytest
from helpers import backends, gfx942
from helpers.checks import (
    check_candidate_blocks,
    check_candidate_top_k,
    check_compact_top_k,
    check_top_k,
)

from dsv41topk.bench.code_object import CodeObjectFile

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


@pytest.mark.skipif(gfx942.unavailable() is not None, reason=str(gfx942.unavailable()))
@pytest.mark.parametrize("flags", [(), ("-ffast-math",)], ids=["product", "fast-math"])
def test_subnormals_are_numbers(flags):
    """A bound that is a subnormal counts for itself: no kernel starts with them taken for zero."""
    code = CodeObjectFile(gfx942.image(*flags))
    image = memoryview(bytearray(code.image_bytes))
    code.load(image, 0)
    kept = {}
    for name, kernel in code.kernels.items():
        (pgm_rsrc1,) = struct.unpack_from("<I", image, kernel.address + 48)
        kept[name] = pgm_rsrc1 >> 16 & 3  # FLOAT_DENORM_MODE_32: sources and results
    assert kept
    assert set(kept.values()) == {3}, kept
