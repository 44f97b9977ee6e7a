# SPDX-License-Identifier: Apache-2.0
"""From a hook to executed machine code: torch tensors, DLPack, binding, launchers, gfx942.

The contract tests call the launchers below the extension; here nothing is left out but the GPU.
"""

import inputs
import numpy as np
import pytest
import reference
from helpers import gfx942
from helpers.buffers import CANARY

import dsv41topk
from dsv41topk.bench import emulator

_MISSING = gfx942.unavailable() or emulator.unavailable()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))

torch = pytest.importorskip("torch", reason="no torch")

NEXT_N = 3
WIDTH = 40_000
LENS = np.array([WIDTH, 513, 2], np.int32)
ROWS = NEXT_N * len(LENS)
BLOCK_SIZE, SLOTS = 8, 2048


@pytest.fixture(scope="module")
def runtime():
    """The emulator in the place of the HIP runtime, for this module."""
    from dsv41topk import _runtime
    from dsv41topk.bench.emulator_runtime import EmulatorRuntime

    double = EmulatorRuntime()
    _runtime.install_double(double.address, gfx942.image())
    dsv41topk.enable()
    yield double
    _runtime.reset()


@pytest.fixture(params=[(None, 0), (1, 0), (2, 24)], ids=["in order", "shuffled", "interleaved"])
def emulated(runtime, request):
    """The same, with each order of waves."""
    runtime.seed, runtime.quantum = request.param
    return runtime


def kernels_of(launches):
    return [launch.kernel for launch in launches]


def rows(seed=1):
    return inputs.HALF_INTEGERS(np.random.default_rng(seed), ROWS, WIDTH)


def wide(columns):
    """An int32 tensor of canaries, as wide as vLLM's buffer."""
    return torch.full((ROWS, 2 * columns), int(CANARY), dtype=torch.int32)


def test_build_serves(runtime):
    assert dsv41topk.build() is True
    assert dsv41topk.enabled() is True


@pytest.mark.parametrize("form", ["1-D", "2-D"])
def test_decode_top_k(emulated, form):
    values = rows()
    lens = LENS if form == "1-D" else np.linspace(-3, WIDTH, ROWS).astype(np.int32)[:, None]
    lens = lens if form == "1-D" else np.ascontiguousarray(lens.reshape(len(LENS), NEXT_N))
    buffer = wide(512)
    with emulated.recorded() as launches:
        taken = dsv41topk.decode_top_k(
            torch.from_numpy(values), NEXT_N, torch.from_numpy(lens), buffer[:, :512], 512
        )
    assert taken is True
    right = reference.top_k_per_row_decode_512(values, NEXT_N, lens)
    np.testing.assert_array_equal(buffer[:, :512].numpy(), right)
    assert (buffer[:, 512:] == int(CANARY)).all()
    assert kernels_of(launches)[-1] == "top_k_select_kernel"
    assert sum(launch.stats.wave_instructions for launch in launches) > 10_000


def test_select_candidates_then_candidate_top_k(emulated):
    """Layer 20 writes the candidates that layers 24 to 36 read."""
    values = rows(2)
    lens = torch.from_numpy(LENS)
    candidates = torch.full((ROWS, SLOTS), int(CANARY), dtype=torch.int32)
    with emulated.recorded() as launches:
        taken = dsv41topk.select_candidates(
            torch.from_numpy(values), NEXT_N, lens, BLOCK_SIZE, candidates
        )
    assert taken is True
    right = reference.candidate_blocks(values, LENS, NEXT_N, BLOCK_SIZE, SLOTS)
    np.testing.assert_array_equal(candidates.numpy(), right)
    assert "block_select_kernel" in kernels_of(launches)
    buffer = wide(512)
    with emulated.recorded() as launches:
        taken = dsv41topk.candidate_top_k(
            torch.from_numpy(values), NEXT_N, lens, candidates, BLOCK_SIZE, buffer[:, :512], 512
        )
    assert taken is True
    right = reference.candidate_top_k_512(values, NEXT_N, LENS, right, BLOCK_SIZE)
    np.testing.assert_array_equal(buffer[:, :512].numpy(), right)
    assert (buffer[:, 512:] == int(CANARY)).all()
    assert kernels_of(launches) == ["candidate_select_kernel"]  # one launch, no compact copy


def test_a_declined_call_launches_nothing(runtime):
    """False: nothing was written, nothing was enqueued."""
    values, lens = torch.from_numpy(rows()), torch.from_numpy(LENS)
    buffer = wide(512)
    with runtime.recorded() as launches:
        assert dsv41topk.decode_top_k(values, NEXT_N, lens, buffer[:, :512], 2048) is False
        assert dsv41topk.decode_top_k(values.double(), NEXT_N, lens, buffer[:, :512], 512) is False
        assert dsv41topk.decode_top_k(values, NEXT_N, lens[:1], buffer[:, :512], 512) is False
        dsv41topk.disable()
        assert dsv41topk.decode_top_k(values, NEXT_N, lens, buffer[:, :512], 512) is False
        dsv41topk.enable()
    assert launches == []
    assert (buffer == int(CANARY)).all()


def test_the_kernels_take_numpy_arrays_too(runtime):
    values = rows(3)
    indices = np.empty((ROWS, 512), np.int32)
    with runtime.recorded() as launches:
        dsv41topk.top_k_per_row_decode_512(values, NEXT_N, LENS, indices, 8, 16_384, False)
    right = reference.top_k_per_row_decode_512(values, NEXT_N, LENS)
    np.testing.assert_array_equal(indices, right)
    assert "radix_chunk_kernel" in kernels_of(launches)
