# SPDX-License-Identifier: Apache-2.0
"""The contract tests again, with kernels and launchers compiled in other ways.

`sanitized`: ASan and UBSan, in heap blocks that end with the last live column's 16 bytes, and with
every row's dead columns out of bounds. `races`: with the race detector of races.cpp. `fast-math`: a
compiler that is told that there is no NaN. `wave32`: waves of 32 lanes.
"""

import os
import re
import subprocess
import sys

import pytest
from helpers import backends, harness
from helpers.abi import ROOT

SHORT = ("-k", "not long and not widest")
"""For the flavours that make every access several times as slow."""

LEAST_CASES = 700
"""Of each backend; a selection that has shrunk to nothing must not pass."""


@pytest.fixture
def runs_on(request):
    """`native`, or `harness` where time for it was asked for."""
    if request.param == "harness" and not request.config.getoption("--all-flavours"):
        pytest.skip("one to three minutes on fibres: --all-flavours, as .ci/run does")
    return request.param


on_both = pytest.mark.parametrize("runs_on", ["native", "harness"], indirect=True)
on_fibres = pytest.mark.parametrize("runs_on", ["harness"], indirect=True)


def run_contract(backend, flavour, *arguments):
    """Run the contract tests on one backend and flavour; return how many passed."""
    reason = backends.unavailable(backend)
    if reason:
        pytest.skip(reason)
    harness.build(flavour)  # here, where the compiler does not run under ASan
    environment = dict(os.environ)
    if flavour == "sanitized":
        environment |= harness.sanitizer_environment()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--capture=sys",  # a report that ends the process goes to file descriptor 2
        str(ROOT / "tests" / "contract"),
    ]
    command += ["--backends", backend, "--flavour", flavour, *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=1800, cwd=ROOT
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return int(re.search(r"(\d+) passed", done.stdout)[1])


@on_both
def test_the_contract_under_address_and_undefined_behaviour_sanitizers(runs_on):
    assert run_contract(runs_on, "sanitized", *SHORT) >= LEAST_CASES


@on_both
def test_the_contract_with_fast_math(runs_on):
    assert run_contract(runs_on, "fast-math") >= LEAST_CASES


@on_fibres
def test_the_contract_without_a_race(runs_on):
    assert run_contract(runs_on, "races", *SHORT) >= LEAST_CASES


@on_fibres
def test_the_contract_with_the_waves_of_sm_90(runs_on):
    assert run_contract(runs_on, "wave32") >= LEAST_CASES
