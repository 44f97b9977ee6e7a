# SPDX-License-Identifier: Apache-2.0
"""Rung 5: the gfx942 code of our candidate logits against the gfx942 code of AITER's dense kernel.

Both are compiled by Triton for gfx942 as on the machine and executed by the emulator; ours is
launched by csrc/logits.c, the dense one by AITER's own function.
"""

import contextlib
import ctypes
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from helpers import abi, aiter_source, gfx942
from helpers.indexer_rows import LAYOUTS, Layout, Rows

import dsv41topk
from dsv41topk import _logits, _logits_check, _runtime, reference
from dsv41topk.bench import emulator, triton_launcher
from dsv41topk.bench.emulator_runtime import EmulatorRuntime

_MISSING = emulator.unavailable() or aiter_source.unavailable() or gfx942.unavailable()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))

if _MISSING is None:
    import torch
    import triton
    from helpers.emulated_triton import EmulatedDriver


# ---- the machinery -------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def aiter(monkeypatch, tmp_path):
    """AITER's kernels, a device that is the emulator, and a cache of their own for every test."""
    monkeypatch.setenv("DSV41TOPK_CACHE_DIR", str(tmp_path / "cache"))
    module = aiter_source.install(monkeypatch)
    module._compile_deepgemm_fp8_paged_mqa_logits.cache_clear()
    monkeypatch.delitem(__import__("sys").modules, "dsv41topk.cand_logits", raising=False)
    previous = triton.runtime.driver._active
    triton.runtime.driver.set_active(EmulatedDriver())
    _logits.reset()
    yield module
    _logits.reset()
    triton.runtime.driver._active = previous


class EmulatorRunner(_logits.DeviceRunner if _MISSING is None else object):
    """The product's runner, on the host's tensors."""

    def __init__(self, heads, page_size, block_size):
        super().__init__(torch.device("cpu"), heads, page_size, block_size)

    def _guard(self):
        return contextlib.nullcontext()

    def _stream(self):
        return 0


class EmulatorEnvironment(_logits.DeviceEnvironment):
    """The product's environment with the emulator as its device."""

    def capturing(self):
        return False

    def runner(self, heads, page_size, block_size):
        return EmulatorRunner(heads, page_size, block_size)


@pytest.fixture(scope="session")
def launchers(tmp_path_factory):
    """The C launchers, which need no GPU runtime to be called."""
    library = tmp_path_factory.mktemp("csrc") / "logits.so"
    sources = [str(abi.CSRC / name) for name in ("logits.c", "runtime.c")]
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", *sources]
    command += ["-Wl,--defsym=dsv41_kernel_name=0"]  # asked for only when a device is loaded
    subprocess.run([*command, "-o", str(library), "-ldl", "-lpthread"], check=True)
    return ctypes.CDLL(str(library))


# ---- bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [8, 16])
@pytest.mark.parametrize("page_size", [16, 64, 128])
@pytest.mark.parametrize("heads", [32, 64])
def test_the_check_finds_a_kernel_with_the_dense_bits(
    heads, page_size, block_size, record_property
):
    runner = EmulatorRunner(heads, page_size, block_size)
    inputs = _logits_check.make_inputs(heads, page_size, block_size)
    verdict = _logits_check.run_check(runner, inputs)
    record_property("variants", "; ".join(verdict.tried))
    assert verdict.fused != _logits_check.PLAIN, "the pattern was not read off the dense kernel"
    assert verdict.differing == 0, verdict.tried
    rows = 2 * heads // 4
    assert verdict.compared > 2 * rows * 5000  # both forms of seq_lens, all but short tails


def test_pages_longer_than_a_chunk_take_the_dense_kernels_other_branch():
    """Pages of 256 keys and more are loaded by another half of AITER's source."""
    verdict = _logits_check.run_check(
        EmulatorRunner(64, 256, 8), _logits_check.make_inputs(64, 256, 8)
    )
    assert verdict.differing == 0, verdict.tried


def test_a_dense_kernel_without_fusion_is_matched_too(aiter, monkeypatch):
    """The pattern is read, not assumed: compiled without contraction the dense kernel has none."""
    original = triton.compile

    def compile_unfused(source, target=None, options=None):
        if "preshuffle" in source.fn.__name__:
            options = {**options, "enable_fp_fusion": False}
        return original(source, target=target, options=options)

    monkeypatch.setattr(aiter.triton, "compile", compile_unfused)
    verdict = _logits_check.run_check(
        EmulatorRunner(64, 64, 8), _logits_check.make_inputs(64, 64, 8)
    )
    assert (verdict.fused, verdict.differing) == (0, 0), verdict.tried


def test_a_plain_kernel_differs_in_the_last_bit_only():
    """What the check is for: the same source, left to the compiler, has other bits for 64 heads."""
    runner = EmulatorRunner(64, 64, 8)
    inputs = _logits_check.make_inputs(64, 64, 8)
    dense = runner.dense(inputs)
    logits, ids = runner.candidate(runner.compile(_logits_check.PLAIN, True, False), inputs, False)
    live = ids >= 0
    np.testing.assert_array_equal(ids, inputs.expected_ids(False))
    picked = np.take_along_axis(dense, np.maximum(ids, 0), axis=1)[live]
    assert (picked != logits[live]).any()
    assert np.abs(picked - logits[live]).max() < 1e-5 * np.abs(picked).max()


# ---- addresses, ends and truth -------------------------------------------------------------------


def run_ours(rows, launchers, variant):
    from dsv41topk import cand_logits

    layout = rows.layout
    kernel = cand_logits.compile_kernel(
        layout.heads, layout.page_size, layout.block_size, layout.ends_per_row, variant
    )
    plan = _logits._plan(kernel)
    assert plan.launch is None, "this Triton's kernels cannot be launched from C"
    runtime = EmulatorRuntime()
    loaded = abi.STRUCTS["Dsv41LogitsKernel"]()
    failure = abi.Failure()
    code = launchers.dsv41_logits_load(
        ctypes.c_void_p(runtime.address), 0, plan.image, plan.name.encode(), plan.threads,
        plan.lds_bytes, ctypes.byref(loaded), ctypes.byref(failure),
    )  # fmt: skip
    assert code == 0
    slots = rows.candidates.shape[1]
    logits = np.full((rows.rows + 1, slots * layout.block_size), 7, np.float32)
    ids = np.full(logits.shape, 7, np.int32)
    q = torch.from_numpy(rows.q)  # torch aligns; numpy promises 16 bytes only by habit
    per_row = layout.ends_per_row
    args = abi.CandidateLogitsArgs(
        q=q.data_ptr(),
        kv_cache=rows.cache.ctypes.data,
        page_stride_bytes=rows.page_stride,
        weights=rows.weights.ctypes.data,
        weights_stride=layout.heads,
        ends=abi.Ends(rows.lens.ctypes.data, 1 if per_row else layout.next_n, not per_row),
        block_table=rows.table.ctypes.data,
        block_table_stride=rows.table_columns,
        candidates=rows.candidates.ctypes.data,
        candidates_stride=slots,
        out_logits=logits.ctypes.data,
        out_ids=ids.ctypes.data,
        rows=rows.rows,
        rows_per_request=layout.next_n,
        pages=rows.pages,
        page_size=layout.page_size,
        table_columns=rows.table_columns,
        slots=slots,
        block_size=layout.block_size,
        heads=layout.heads,
        fp8=abi.ENUMS["DSV41_E4M3FNUZ"],
    )
    assert launchers.dsv41_logits_serves(ctypes.byref(args))
    code = launchers.dsv41_logits_launch(
        ctypes.byref(loaded), None, ctypes.byref(args), ctypes.byref(failure)
    )
    launchers.dsv41_error_text.restype = ctypes.c_char_p
    text = launchers.dsv41_error_text(ctypes.c_void_p(runtime.address), code)
    assert (code, failure.launched) == (0, 1), text
    assert (logits[-1] == 7).all() and (ids[-1] == 7).all(), "wrote past the last row"
    return logits[:-1], ids[:-1]


def run_dense(rows, aiter):
    layout = rows.layout
    width = -(-max(layout.lengths) // 256) * 256
    out = torch.full((rows.rows, width), float("nan"))
    q = torch.from_numpy(rows.q).view(torch.float8_e4m3fnuz)
    flat = torch.frombuffer(rows.memory, dtype=torch.uint8)
    cache = flat.as_strided((rows.pages, layout.page_size, 1, 132), (rows.page_stride, 132, 132, 1))
    aiter.deepgemm_fp8_paged_mqa_logits(
        q.view(rows.requests, layout.next_n, layout.heads, 128),
        cache,
        torch.from_numpy(rows.weights),
        out,
        torch.tensor(layout.lengths, dtype=torch.int32),
        torch.from_numpy(rows.table),
        width,
        Preshuffle=True,
        KVBlockSize=layout.page_size,
        ChunkK=256,
        WavePerEU=2,
    )
    return out.numpy()


_FUSED = {32: 0, 64: 0b111101}  # as compiled by Triton 3.6.0; the bits below fail where they differ


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name, aiter, launchers):
    from dsv41topk import cand_logits

    layout = LAYOUTS[name]
    rows = Rows(layout)
    variant = cand_logits.Variant(_FUSED[layout.heads], False)
    logits, ids = run_ours(rows, launchers, variant)
    expected = rows.expected_ids()
    np.testing.assert_array_equal(ids, expected)
    live = expected >= 0
    assert (logits[~live] == -np.inf).all()
    if not live.any():
        assert name == "no live column"
        return
    truth = rows.truth(expected)
    relative = np.abs(logits[live] - truth) / truth
    assert relative.max() < 1e-5
    if layout.wild_pages:
        return  # the dense kernel would read outside the cache
    dense = run_dense(rows, aiter)
    picked = np.take_along_axis(dense, np.maximum(expected, 0), axis=1)[live]
    assert (np.abs(picked - truth) / truth).max() < 1e-5
    different = int((picked.view(np.int32) != logits[live].view(np.int32)).sum())
    assert different == 0, f"{different} of {live.sum()} differ"


@pytest.mark.parametrize("heads", [32, 64])
def test_the_best_512_are_those_of_the_dense_logits(heads, aiter, launchers):
    """Selected by the oracle from both kernels' machine-code results, entry by entry."""
    from dsv41topk import cand_logits

    layout = Layout(heads=heads, next_n=3, lengths=(1500, 2049, 513))
    rows = Rows(layout)
    variant = cand_logits.Variant(_FUSED[heads], False)
    logits, ids = run_ours(rows, launchers, variant)
    lens = rows.lens.reshape(-1)
    ours = reference.compact_top_k_512(logits, ids, lens, layout.next_n)
    dense = run_dense(rows, aiter)
    masked = reference.candidate_top_k_512(
        dense, layout.next_n, lens, rows.candidates, layout.block_size
    )
    np.testing.assert_array_equal(ours, masked)
    assert (ours[:6] >= 0).all() and len(np.unique(ours[0])) == 512


def test_the_c_launcher_declines_what_the_kernel_cannot_take(launchers):
    good = dict(
        q=4096, kv_cache=8192, page_stride_bytes=8448, pages=1, table_columns=1, slots=2048,
        block_size=8, fp8=abi.ENUMS["DSV41_E4M3FNUZ"],
    )  # fmt: skip

    def serves(**changes):
        args = abi.CandidateLogitsArgs(**{**good, **changes})
        return bool(launchers.dsv41_logits_serves(ctypes.byref(args)))

    assert serves()
    assert not serves(fp8=abi.ENUMS["DSV41_E4M3FN"])
    assert not serves(q=4104)
    assert not serves(kv_cache=8200)
    assert not serves(page_stride_bytes=8456)
    assert not serves(page_stride_bytes=2**31)
    assert not serves(pages=0)
    assert not serves(table_columns=0)
    assert not serves(slots=2**31 - 1)


# ---- the whole of prepare, with AITER and Triton -------------------------------------------------


def test_prepare_checks_once_and_keeps_the_result(monkeypatch, aiter):
    checks = []

    class Counting(EmulatorRunner):
        def dense(self, inputs):
            checks.append(inputs)
            return super().dense(inputs)

    class Environment(EmulatorEnvironment):
        def runner(self, *shape):
            return Counting(*shape)

    monkeypatch.setattr(_logits, "make_environment", Environment)
    plan = _logits.prepare(0, 32, 64, 8, False)
    assert isinstance(plan, _logits.Plan), _logits.status()
    assert plan.launch is None and plan.threads == 256 and plan.name == "candidate_logits_kernel"
    assert _logits.prepare(0, 32, 64, 8, True).image != plan.image
    assert len(checks) == 1
    _logits.reset()  # as a new process
    assert _logits.prepare(0, 32, 64, 8, False).image == plan.image
    assert len(checks) == 1, "the kept result was not used"


@pytest.fixture
def hooks(monkeypatch):
    """The hooks on the gfx942 code object in the emulator, scoring by the kernel of Triton."""
    runtime = EmulatorRuntime()
    monkeypatch.setattr(_logits, "make_environment", EmulatorEnvironment)
    _runtime.install_double(runtime.address, gfx942.image(), triton_logits=True)
    dsv41topk.enable()
    yield runtime
    _runtime.reset()


def take(rows, indices):
    """Call the hook as vLLM does, with torch tensors."""
    layout = rows.layout
    shape = (rows.requests, layout.next_n, layout.heads, 128)
    flat = torch.frombuffer(rows.memory, dtype=torch.uint8)
    cache = flat.as_strided((rows.pages, layout.page_size, 1, 132), (rows.page_stride, 132, 132, 1))
    tensors = [torch.from_numpy(a) for a in (rows.weights, rows.lens, rows.table, rows.candidates)]
    tensors[1] = tensors[1].view(rows.requests, -1) if layout.ends_per_row else tensors[1].view(-1)
    q = torch.from_numpy(rows.q).view(torch.float8_e4m3fnuz).view(shape)
    weights, lens, table, candidates = tensors
    return dsv41topk.candidate_logits_top_k(
        q, cache, weights, lens, table, candidates, layout.block_size, indices, 512, True, False
    )


@pytest.mark.parametrize("by_triton", [False, True], ids=["launched from C", "by Triton"])
@pytest.mark.parametrize("ends_per_row", [False, True])
def test_the_hook_ends_in_the_dense_512(hooks, aiter, monkeypatch, ends_per_row, by_triton):
    """Torch tensors, DLPack, the launchers, machine code: the entries of dense, mask, top-512."""
    if by_triton:
        monkeypatch.setattr(_logits, "launches_from_c", lambda kernel: False)
    layout = Layout(next_n=2, lengths=(1500, 700, 40), ends_per_row=ends_per_row, stride=5)
    rows = Rows(layout)
    wide = torch.full((rows.rows, 600), -777, dtype=torch.int32)
    assert take(rows, wide[:, 10:522]) is True, _logits.status()
    lens = rows.lens.reshape(rows.requests, -1) if ends_per_row else rows.lens.reshape(-1)
    right = reference.candidate_top_k_512(
        run_dense(rows, aiter), layout.next_n, lens, rows.candidates, layout.block_size
    )
    np.testing.assert_array_equal(wide[:, 10:522].numpy(), right)
    assert (wide[:, :10] == -777).all() and (wide[:, 522:] == -777).all()


def test_an_unsuitable_aiter_closes_this_hook_and_no_other(hooks, aiter, monkeypatch, caplog):
    monkeypatch.delattr(aiter, "deepgemm_fp8_paged_mqa_logits")
    rows = Rows(LAYOUTS["plain"])
    indices = torch.full((rows.rows, 512), -777, dtype=torch.int32)
    for _ in range(3):
        assert take(rows, indices) is False
    assert (indices == -777).all() and hooks.launches == 0
    assert len(caplog.records) == 1
    logits = torch.randn(2, 1000)
    lens = torch.tensor([1000, 700], dtype=torch.int32)
    assert dsv41topk.decode_top_k(logits, 1, lens, indices[:2], 512) is True
    assert (indices[:2] >= 0).all()


def test_a_kernel_with_other_arguments_goes_through_tritons_launcher():
    kernel = EmulatorRunner(32, 64, 8).compile(0, False, False)
    assert _logits.launches_from_c(kernel)
    fewer = kernel.asm["amdgcn"].replace(".offset:         136", ".offset:         144", 1)
    assert fewer != kernel.asm["amdgcn"]

    kernel.asm = {"amdgcn": fewer, "hsaco": kernel.asm["hsaco"]}
    assert not _logits.launches_from_c(kernel)
    assert callable(_logits._plan(kernel).launch)


def test_the_exact_request_really_is_exact():
    """read_pattern rests on it: one head at a time gives the dense kernel's relu(dot * scale)."""
    inputs = _logits_check.make_inputs(32, 64, 8)
    weights = np.zeros_like(inputs.weights)
    for row, head in enumerate([0, 1, 2, 3, 16, 17, 18, 19]):
        weights[row, head] = 1
    dense = EmulatorRunner(32, 64, 8).dense(replace(inputs, weights=weights))
    columns = int(inputs.seq_lens[0]) - 8
    np.testing.assert_array_equal(dense[:8, :columns].T, inputs.exact_scores[:columns])


def test_the_cost_of_tritons_own_launcher_is_measured():
    """Its tiers nest: each does what the one before does, and more."""
    times = triton_launcher.measure()
    generated, compiled, jitted = times.values()
    assert 0 < generated < compiled < jitted
