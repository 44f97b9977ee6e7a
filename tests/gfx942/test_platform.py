# SPDX-License-Identifier: Apache-2.0
"""csrc/device/platform.h says the same on the harness, in gfx942 machine code and in numpy."""

import ctypes
import struct

import numpy as np
import pytest
from helpers import buffers, gfx942, harness
from helpers.abi import ROOT, Runtime

from dsv41topk.bench import emulator

THREADS = 256
WORDS = 24
SEEDS = range(1, 6)


def words(seed):
    """Random bits, with NaN of both signs, zeros and infinities among them."""
    rng = np.random.default_rng(seed)
    odd = np.array([0x7FC00000, 0xFFC00001, 0x7F800000, 0xFF800000, 0, 1 << 31], np.uint32)
    bits = rng.integers(0, 1 << 32, THREADS, np.uint32)
    return np.where(rng.random(THREADS) < 0.1, odd[rng.integers(0, 6, THREADS)], bits)


def expected(bits, wave):
    """What probe.hip writes for waves of `wave` lanes."""
    lanes = np.arange(THREADS) % wave
    waves = bits.reshape(-1, wave)
    numbers = bits.view(np.float32)
    ones = np.uint64(1) << np.arange(wave, dtype=np.uint64)

    def mask(flags):
        return np.repeat((flags.reshape(-1, wave) * ones).sum(1).astype(np.uint64), wave)

    def shuffled(places):
        return waves[:, places].reshape(-1)

    odd = mask(bits & 1)
    below = np.bitwise_count(odd & ((np.uint64(1) << lanes.astype(np.uint64)) - np.uint64(1)))
    top = np.uint64(1) << np.uint64(wave - 1)
    lowest = np.array([(int(m) & -int(m)).bit_length() - 1 for m in odd | top])
    nan = mask(np.isnan(numbers) | np.isnan(numbers[::-1]))
    every = np.ones(THREADS, np.uint32)
    signed = bits.view(np.int32)
    rows = [
        lanes,
        every * 0,
        np.arange(THREADS) // wave * 3,
        odd & np.uint64(0xFFFFFFFF),
        odd >> np.uint64(32),
        np.bitwise_count(odd),
        below + 7,
        lowest,
        shuffled((np.arange(wave) * 7 + 3) % wave),
        shuffled(np.full(wave, 5)),
        *(shuffled(np.arange(wave) ^ m) for m in (1, 2, 3, 7, 15)),
        np.cumsum(waves, axis=1, dtype=np.uint32).reshape(-1),
        nan & np.uint64(0xFFFFFFFF),
        nan >> np.uint64(32),
        bits[np.arange(THREADS) ^ 1],
        bits[::-1],
        every * bits.sum(dtype=np.uint32),
        every * signed.min().view(np.uint32),
        every * np.bitwise_or.reduce(bits & np.uint32(0x00FF00FF)),
        every * bits.max(),
    ]
    return np.array([np.asarray(row).astype(np.uint32) for row in rows])


@pytest.mark.parametrize(("flavour", "wave"), [("plain", 64), ("wave32", 32)])
def test_on_the_harness(flavour, wave):
    if harness.unavailable():
        pytest.skip(harness.unavailable())
    instance = harness.harness(flavour)
    table = Runtime.from_address(instance.runtime)
    pointer, out = ctypes.c_void_p, np.empty((WORDS, THREADS), np.uint32)
    get = ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_char_p, pointer)(table.get_function)
    launch = ctypes.CFUNCTYPE(ctypes.c_int, pointer, *[ctypes.c_uint] * 7, *[pointer] * 3)(
        table.launch
    )
    function = pointer()
    assert get(None, b"probe_kernel", ctypes.byref(function)) == 0
    for seed in SEEDS:
        instance.configure(seed=seed)
        bits = words(seed)
        args = struct.pack("<QQ", bits.ctypes.data, out.ctypes.data)
        params = (pointer * 1)(ctypes.cast(ctypes.c_char_p(args), pointer).value)
        code = launch(function, 1, 1, 1, THREADS, 1, 1, 0, None, params, None)
        assert code == 0, instance.error()
        np.testing.assert_array_equal(out, expected(bits, wave), f"seed {seed}")


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """probe.hip's kernel as gfx942 machine code."""
    reason = gfx942.unavailable() or emulator.unavailable()
    if reason:
        pytest.skip(reason)
    image = gfx942.compile_file(
        ROOT / "tests" / "harness" / "probe.hip", tmp_path_factory.mktemp("probe")
    )
    return emulator.CodeObject(image)["probe_kernel"]


@pytest.mark.parametrize("quantum", [0, 7])
def test_in_machine_code(probe, quantum):
    out = np.empty((WORDS, THREADS), np.uint32)
    for seed in SEEDS:
        bits = words(seed)
        args = struct.pack("<QQ", bits.ctypes.data, out.ctypes.data)
        stats = probe.launch((1, 1, 1), (THREADS, 1, 1), [args], seed=seed, quantum=quantum)
        np.testing.assert_array_equal(out, expected(bits, 64), f"seed {seed}")
        assert stats.barriers == 2
        assert stats.waves == 4
        assert stats.by_operation()["ds_bpermute_b32"] == 4


def test_a_read_past_a_block_is_an_error_that_names_the_place(probe):
    out = np.empty((WORDS, THREADS), np.uint32)
    bits = buffers.block(THREADS - 4, np.uint32)
    args = struct.pack("<QQ", bits.ctypes.data, out.ctypes.data)
    with pytest.raises(RuntimeError, match=r"probe_kernel: .*wave 0, .*a fault at address 0x"):
        probe.launch((1, 1, 1), (THREADS, 1, 1), [args])
    test_in_machine_code(probe, 0)  # nothing is left behind
