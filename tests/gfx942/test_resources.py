# SPDX-License-Identifier: Apache-2.0
"""Rung 4: the kernels compile for gfx942 without a warning, and use what the table says."""

import pytest
import resources
from helpers import gfx942

pytestmark = pytest.mark.skipif(gfx942.unavailable() is not None, reason=str(gfx942.unavailable()))

# A SIMD has 512 vector registers a lane; a workgroup of 1,024 puts 4 waves on each.
MOST_VGPRS_OF_1024 = 128
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


def test_workgroups_of_1024_fit_on_a_compute_unit(kernels):
    too_many = {
        name: entry["vgprs"] + entry["agprs"]
        for name, entry in kernels.items()
        if entry["max_threads"] == 1024 and entry["vgprs"] + entry["agprs"] > MOST_VGPRS_OF_1024
    }
    assert too_many == {}
    assert {name for name, entry in kernels.items() if entry["lds_bytes"] > LDS_BYTES} == set()


def test_the_table_is_the_checked_in_one(kernels):
    table = resources.checked_in()
    if resources.compiler_name() != table["compiler"]:
        pytest.skip(f"the table is for {table['compiler']}, this is {resources.compiler_name()}")
    # Made by `python tests/gfx942/resources.py --write`; a rise in registers or LDS wants a
    # reviewer.
    assert kernels == table["kernels"]
