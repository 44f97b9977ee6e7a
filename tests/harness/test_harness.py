# SPDX-License-Identifier: Apache-2.0
"""What the harness of rung 3 finds: each fault that it promises to, in a kernel of its own."""

import ctypes
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers import abi, buffers
from helpers import harness as rung3
from helpers.abi import ROOT

THREADS = 256
SEEDS = range(1, 11)


class FaultArgs(ctypes.Structure):
    """As in faults.cpp."""

    _fields_ = [("out", ctypes.c_void_p), ("count", ctypes.c_int32)]


def run(harness, kernel, out, count=0, grid=3, threads=THREADS):
    """Launch a kernel of faults.cpp through the runtime table; return the code."""
    table = abi.Runtime.from_address(harness.runtime)
    pointer = ctypes.c_void_p
    get_function = ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_char_p, pointer)(
        table.get_function
    )
    launch = ctypes.CFUNCTYPE(
        ctypes.c_int, pointer, *[ctypes.c_uint] * 7, pointer, pointer, pointer
    )(table.launch)
    function = pointer()
    assert get_function(None, f"harness_{kernel}_kernel".encode(), ctypes.byref(function)) == 0
    args = FaultArgs(out.ctypes.data, count)
    params = (pointer * 1)(ctypes.addressof(args))
    return launch(function, grid, 1, 1, threads, 1, 1, 0, None, params, None)


@pytest.fixture
def harness():
    """The harness with its faulty kernels, at seed 1."""
    reason = rung3.unavailable()
    if reason:
        pytest.skip(reason)
    instance = rung3.harness()
    instance.configure()
    return instance


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("threads", [64, 256, 1024])
@pytest.mark.parametrize(("flavour", "wave_size"), [("plain", 64), ("wave32", 32)])
def test_a_right_kernel_gives_its_sum(flavour, wave_size, threads, interleave):
    if rung3.unavailable():
        pytest.skip(rung3.unavailable())
    harness = rung3.harness(flavour)
    for seed in SEEDS:
        harness.configure(seed=seed, interleave=interleave)
        out = np.zeros(threads, np.int32)
        assert run(harness, "right", out, threads=threads) == 0, harness.error()
        assert (out == threads * (threads - 1) // 2).all()
    assert harness.counts() == {
        "launches": 1,
        "workgroups": 3,
        "barriers": 3,
        "wave_operations": 3 * threads // wave_size,
    }


def test_a_missing_barrier_shows(harness):
    right = np.arange(THREADS, dtype=np.int32)[::-1]
    for seed in SEEDS:
        harness.configure(seed=seed)
        out = np.zeros(THREADS, np.int32)
        assert run(harness, "missing_barrier", out) == 0
        assert (out != right).any(), f"seed {seed}"


def test_lds_that_nobody_wrote_is_never_zero(harness):
    for seed in SEEDS:
        harness.configure(seed=seed)
        out = np.zeros(THREADS, np.int32)
        assert run(harness, "unset_lds", out) == 0
        assert (out != 0).all(), f"seed {seed}"


@pytest.mark.parametrize(
    ("kernel", "places"),
    [
        ("missed_operation", "at ballot (faults.cpp:|at the kernel's end"),
        ("missed_barrier", "at barrier (faults.cpp:|at the kernel's end"),
        ("two_operations", "at exchange (faults.cpp:|at ballot (faults.cpp:"),
    ],
)
def test_divergence_is_an_error_that_names_both_places(harness, kernel, places):
    assert run(harness, kernel, np.zeros(THREADS, np.int32)) != 0
    text = harness.error().replace(f"{rung3.SOURCES}/", "")
    assert text.startswith(f"harness_{kernel}_kernel, workgroup (")
    assert "seed 1: divergence: thread" in text
    for place in places.split("|"):
        assert place in text
    # A failed launch leaves nothing behind.
    out = np.zeros(THREADS, np.int32)
    assert run(harness, "right", out) == 0
    assert (out == THREADS * (THREADS - 1) // 2).all()


def test_a_read_past_a_block_is_an_error_that_names_the_line(harness):
    out = buffers.block(THREADS, np.int32)
    assert run(harness, "read_past_end", out, count=THREADS, grid=1) != 0
    assert re.search(r"fault: thread 0 at address 0x\w+ \(.*faults.cpp:\d+\)", harness.error())


def test_kernel_names_are_found():
    text = (
        "DSV41_KERNEL(1024) void a_kernel(Args args) {}\n"
        "DSV41_KERNEL(kPolicy.threads)\nvoid b_kernel(Args args) {}\n"
        "DSV41_INLINE void c_kernel_step(Args args) {}\n"
    )
    assert rung3.kernel_names(text) == ["a_kernel", "b_kernel"]


@pytest.mark.parametrize(
    ("kernel", "report"),
    [
        ("read_past_end", "AddressSanitizer: heap-buffer-overflow"),
        ("lds_past_end", "insufficient space for an object"),
        ("right", ""),
    ],
)
def test_the_sanitized_build_finds_reads_past_the_end(kernel, report):
    if rung3.unavailable():
        pytest.skip(rung3.unavailable())
    code = (
        "import numpy as np\n"
        "from helpers import harness as rung3\n"
        "from test_harness import run\n"
        "out = np.zeros(64, np.int32)\n"
        f"assert run(rung3.harness('sanitized'), {kernel!r}, out, count=64, threads=64) == 0\n"
    )
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "tests" / "harness")])
    environment = {**os.environ, **rung3.sanitizer_environment(), "PYTHONPATH": path}
    rung3.build("sanitized")  # without ASan's runtime in the compiler's process
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode != 0) == bool(report), done.stderr
    assert report in done.stderr


@pytest.mark.parametrize(
    ("kernel", "grid", "ordered", "report"),
    [
        ("right", 3, None, ""),
        ("missing_barrier", 1, None, "(read after write|write after read), LDS"),
        ("missing_wave_sync", 1, 0, "(read after write|write after read), LDS"),
        ("missing_wave_sync", 1, 1, ""),
        ("workgroups_overlap", 3, 0, "write after write, memory"),
        ("workgroups_overlap", 3, 1, ""),
    ],
)
def test_races_are_found_in_every_schedule(kernel, grid, ordered, report):
    if rung3.unavailable():
        pytest.skip(rung3.unavailable())
    harness = rung3.harness("races")
    for seed in SEEDS:
        harness.configure(seed=seed)
        out = np.zeros(THREADS, np.int32)
        code = run(harness, kernel, out, count=ordered or 0, grid=grid)
        if report:
            assert code != 0, f"seed {seed}"
            assert re.search(f"race: {report}, thread .*faults.cpp:.*faults.cpp:", harness.error())
        else:
            assert code == 0, harness.error()
