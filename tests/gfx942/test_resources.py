# SPDX-License-Identifier: Apache-2.0
"""Rung 4: the kernels compile for gfx942 without a warning, and use what the table says."""

import pytest
import resources
from helpers import gfx942

pytestmark = pytest.mark.skipif(gfx942.unavailable() is not None, reason=str(gfx942.unavailable()))

VGPRS_OF_A_SIMD = 512  # a lane; AGPRs are taken from the same file
LANES_OF_A_UNIT = 4 * 64
LDS_BYTES = 64 << 10


@pytest.fixture(scope="module")
def kernels():
    """Resources by kernel; compiling with warnings as errors is part of the check."""
    return resources.measured()


def test_no_kernel_uses_scratch_or_spills(kernels):
    used = {
        name: entry
        for name, entry in kernels.items()
        if entry["scratch_bytes"] or entry["vgpr_spills"] or entry["sgpr_spills"]
    }
    assert used == {}


def test_workgroups_fit_on_a_compute_unit(kernels):
    """At most 128 VGPRs in workgroups of 1,024: each of the 4 SIMDs holds 4 of its waves."""
    too_large = {}
    for name, entry in kernels.items():
        waves_of_a_simd = max(entry["max_threads"] // LANES_OF_A_UNIT, 1)
        vgprs = entry["vgprs"] + entry["agprs"]
        if vgprs * waves_of_a_simd > VGPRS_OF_A_SIMD or entry["lds_bytes"] > LDS_BYTES:
            too_large[name] = entry
    assert too_large == {}


def test_the_table_is_the_checked_in_one(kernels):
    table = resources.checked_in()
    if resources.compiler_name() != table["compiler"]:
        pytest.skip(f"the table is for {table['compiler']}, this is {resources.compiler_name()}")
    # Made by `python tests/gfx942/resources.py --write`; a rise in registers or LDS wants a
    # reviewer.
    assert kernels == table["kernels"]
