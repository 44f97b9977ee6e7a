# SPDX-License-Identifier: Apache-2.0
"""The self-check of candidate logits and what comes of it, with kernels that numpy plays.

No Triton, no AITER, no GPU: a fake runner computes both kernels' logits with the rounding that it
is told, so that each outcome of the check is had on purpose.
"""

import json
import logging
import sys
import types
from fractions import Fraction

import numpy as np
import pytest

from dsv41topk import _logits, _logits_check
from dsv41topk._cache import decode_fp8
from dsv41topk._logits_check import PLAIN

HEADS, PAGE, BLOCK = 32, 64, 8
PATTERN = 0b10110101  # any: bit 0, so term 0 onto the product of term 1


@pytest.fixture(scope="module")
def inputs():
    return _logits_check.make_inputs(HEADS, PAGE, BLOCK)


@pytest.fixture(scope="module")
def scores(inputs):
    """relu(dot * scale) of every row, column and head, float32 [rows, columns, heads]."""
    flat = inputs.kv_cache.reshape(len(inputs.kv_cache), -1)
    column = np.arange(int(inputs.seq_lens[0]))
    result = []
    for request, pages in enumerate(inputs.block_table):
        key_bytes = _logits_check.gather_keys(flat, pages, PAGE, column)
        keys = decode_fp8(key_bytes, "e4m3fnuz")
        at = PAGE * 128 + 4 * (column % PAGE)[:, None] + np.arange(4)
        scale = flat[pages[column // PAGE][:, None], at].copy().view(np.float32)
        for q in decode_fp8(inputs.q[request], "e4m3fnuz"):
            result.append(np.maximum(keys @ q.T * scale, np.float32(0)))
    return np.stack(result)


def lane_sums(scores, weights, fused):
    """The sum over heads as a wave does it: four lanes of heads / 4 terms, then across them."""
    fma = _logits_check.fused_multiply_add
    order = np.arange(HEADS).reshape(HEADS // 16, 4, 4).transpose(1, 0, 2).reshape(4, -1)
    lanes = []
    for heads in order:
        s = [np.ascontiguousarray(scores[:, :, head]) for head in heads]
        w = [np.repeat(weights[:, head][:, None], scores.shape[1], axis=1) for head in heads]
        if fused & 1:
            total = fma(s[0], w[0], s[1] * w[1])
        elif fused & 2:
            total = fma(s[1], w[1], s[0] * w[0])
        else:
            total = s[0] * w[0] + s[1] * w[1]
        for i in range(2, len(heads)):
            total = fma(s[i], w[i], total) if fused >> i & 1 else total + s[i] * w[i]
        lanes.append(total)
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])


class FakeKernel:
    """A compiled kernel as `_logits` sees one."""

    def __init__(self, fused, fp_fusion, ends_per_row, code=b""):
        self.rounding = (fused, fp_fusion)
        self.ends_per_row = ends_per_row
        self.src = types.SimpleNamespace(constants={})
        self.packed_metadata = ()
        self.metadata = types.SimpleNamespace(
            name="candidate_logits_kernel", shared=0, num_ctas=1, launch_cooperative_grid=False
        )
        at, lines = 0, []
        for kind in [*_logits.SIGNATURE.values(), "*", "*"]:
            size = 4 if kind == "i32" else 8
            at = -(-at // size) * size
            lines.append(f"      - .offset:  {at}\n        .size:  {size}\n")
            at += size
        image = f"{fused} {fp_fusion} {ends_per_row}".encode() + code
        self.asm = {"amdgcn": "".join(lines), "hsaco": image}


class FakeRunner:
    """Kernels played by numpy.

    Parameters
    ----------
    dense : int
        The dense kernel's pattern.
    plain : dict of bool to int
        The pattern that the compiler makes of our plain sum, by enable_fp_fusion.
    obeys : bool
        Whether a kernel of ours that is compiled to a pattern has that pattern.
    """

    def __init__(self, inputs, scores, dense, plain, obeys=True):
        self.inputs, self.scores = inputs, scores
        self.dense_pattern, self.plain, self.obeys = dense, plain, obeys
        self.runs, self.compiled = [], []
        self.code = b""

    def dense(self, inputs):
        self.runs.append("dense")
        logits = np.full((len(inputs.weights), inputs.width), np.nan, np.float32)
        sums = lane_sums(self.scores, inputs.weights, self.dense_pattern)
        logits[:, : sums.shape[1]] = sums
        return logits

    def compile(self, fused, fp_fusion, ends_per_row):
        self.compiled.append((fused, fp_fusion, ends_per_row))
        return FakeKernel(fused, fp_fusion, ends_per_row, self.code)

    def candidate(self, kernel, inputs, ends_per_row):
        self.runs.append("candidate")
        assert kernel.ends_per_row == ends_per_row
        fused, fp_fusion = kernel.rounding
        pattern = self.plain[fp_fusion] if fused == PLAIN else fused if self.obeys else 0
        ids = inputs.expected_ids(ends_per_row)
        sums = lane_sums(self.scores, inputs.weights, pattern)
        picked = np.take_along_axis(sums, np.maximum(ids, 0), axis=1)
        return np.where(ids >= 0, picked, np.float32(-np.inf)), ids


# ---- the check -----------------------------------------------------------------------------------


def test_the_fused_multiply_add_rounds_once():
    """Against exact fractions; float64 arithmetic alone would round the last case twice."""
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(20000).astype(np.float32) for _ in range(3))
    c[::2] = -(a * b)[::2]  # cancellation: what is left is the rounding error of the product
    c[1::4] *= np.float32(2**-25)
    a[-1], b[-1] = 2**-12 * (1 + 2**-23), 2**-12 * (1 - 2**-23)
    c[-1] = 1 + 2**-23  # the sum lies 2**-70 below the middle of two float32
    seen = _logits_check.fused_multiply_add(a, b, c)
    for x, y, z, value in zip(a.tolist(), b.tolist(), c.tolist(), seen.tolist(), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        below = Fraction(float(np.nextafter(np.float32(value), np.float32(-np.inf))))
        above = Fraction(float(np.nextafter(np.float32(value), np.float32(np.inf))))
        error = abs(Fraction(value) - exact)
        assert error <= min(abs(below - exact), abs(above - exact)), (x, y, z, value)
    assert seen[-1] == c[-1]


@pytest.mark.parametrize("pattern", [0, 1, 2, PATTERN, 0b11111110, 0b00111101])
def test_the_pattern_is_read_off_the_results(inputs, scores, pattern):
    runner = FakeRunner(inputs, scores, pattern, {True: 0, False: 0})
    assert _logits_check.read_pattern(inputs, runner.dense(inputs)) == pattern


def test_a_pattern_that_depends_on_the_column_is_not_read(inputs, scores):
    one = FakeRunner(inputs, scores, 0, {}).dense(inputs)
    other = FakeRunner(inputs, scores, PATTERN, {}).dense(inputs)
    one[:, 128:256] = other[:, 128:256]
    assert _logits_check.read_pattern(inputs, one) is None


def test_match(inputs, scores):
    runner = FakeRunner(inputs, scores, PATTERN, {True: 0, False: 0})
    verdict = _logits_check.run_check(runner, inputs)
    assert (verdict.fused, verdict.differing) == (PATTERN, 0)
    assert len(verdict.tried) == 1 and set(verdict.kernels) == {False, True}
    assert verdict.compared == sum(int((inputs.expected_ids(f) >= 0).sum()) for f in (False, True))


def test_match_after_recompiling(inputs, scores):
    """Neither the pattern nor fusion on has the bits; fusion off has them."""
    runner = FakeRunner(inputs, scores, PATTERN, {True: 0, False: PATTERN}, obeys=False)
    verdict = _logits_check.run_check(runner, inputs)
    assert (verdict.fused, verdict.fp_fusion, verdict.differing) == (PLAIN, False, 0)
    assert len(verdict.tried) == 3
    assert verdict.tried[0].endswith("differ") and " 0 of " not in verdict.tried[1]


def test_no_match(inputs, scores):
    runner = FakeRunner(inputs, scores, PATTERN, {True: 0, False: 2}, obeys=False)
    verdict = _logits_check.run_check(runner, inputs)
    assert not verdict.identical and 0 < verdict.differing < verdict.compared
    counts = [int(line.split(": ")[1].split(" of ")[0]) for line in verdict.tried]
    assert verdict.differing == min(counts)


class PartlyBroken(FakeRunner):
    """Compiles only what `able` says."""

    def compile(self, fused, fp_fusion, ends_per_row):
        if not self.able(fused):
            raise NotImplementedError(f"cannot compile {fused}")
        return super().compile(fused, fp_fusion, ends_per_row)


def test_a_variant_that_does_not_compile_is_passed_over(inputs, scores):
    runner = PartlyBroken(inputs, scores, PATTERN, {True: 0, False: PATTERN})
    runner.able = lambda fused: fused == PLAIN
    verdict = _logits_check.run_check(runner, inputs)
    assert (verdict.fused, verdict.differing) == (PLAIN, 0)
    assert verdict.tried[0].endswith("NotImplementedError")


def test_nothing_that_compiles(inputs, scores):
    runner = PartlyBroken(inputs, scores, PATTERN, {True: 0, False: 0})
    runner.able = lambda fused: False
    with pytest.raises(RuntimeError, match="no variant") as caught:
        _logits_check.run_check(runner, inputs)
    assert isinstance(caught.value.__cause__, NotImplementedError)


@pytest.mark.parametrize("form", [False, True])
def test_one_wrong_slot_is_a_difference(inputs, scores, form):
    """One bit, one id, a live value in an empty slot: each alone is found, in either form."""

    class OneWrong(FakeRunner):
        def candidate(self, kernel, inputs, ends_per_row):
            logits, ids = super().candidate(kernel, inputs, ends_per_row)
            if ends_per_row == form:
                self.spoil(logits, ids)
            return logits, ids

    def bit(logits, ids):
        logits.view(np.int32)[3, np.flatnonzero(ids[3] >= 0)[77]] ^= 1

    def identity(logits, ids):
        ids[2, np.flatnonzero(ids[2] >= 0)[5]] += 1

    def empty(logits, ids):
        logits[1, np.flatnonzero(ids[1] < 0)[0]] = 0

    for spoil in (bit, identity, empty):
        runner = OneWrong(inputs, scores, 0, {True: 0, False: 0})
        runner.spoil = spoil
        assert _logits_check.run_check(runner, inputs).differing == 1, spoil.__name__


def test_the_inputs_cover_what_the_check_promises(inputs):
    ends = inputs.row_ends
    assert ends.shape[1] > 1 and len(np.unique(ends % 256)) > 2
    assert set(np.arange(inputs.seq_lens.min()) % 256) == set(range(256))
    assert inputs.seq_lens.max() % 256 and inputs.block_table.shape[1] > 2
    assert (inputs.candidates == -1).any()
    for heads in (32, 64):  # both fit: a lane of every row of request 0 has its terms
        made = _logits_check.make_inputs(heads, PAGE, BLOCK)
        counts = (made.weights[: heads // 4 - 1] != 0).sum(1)
        assert counts.tolist() == list(range(2, heads // 4 + 1))


# ---- prepare -------------------------------------------------------------------------------------


class FakeEnvironment:
    def __init__(self, runner, dense_hash="dense code"):
        self._runner, self._hash, self.in_capture = runner, dense_hash, False

    def capturing(self):
        return self.in_capture

    def dense_hash(self, heads, page_size):
        return self._hash

    def runner(self, heads, page_size, block_size):
        return self._runner


@pytest.fixture
def serve(monkeypatch, tmp_path):
    """Let `prepare` run in a fake environment with an empty cache: serve(environment)()."""
    monkeypatch.setenv("DSV41TOPK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("DSV41TOPK_ALLOW_LAST_BIT", raising=False)
    # The check's own inputs, made once for the module.
    made = _logits_check.make_inputs(HEADS, PAGE, BLOCK)
    monkeypatch.setattr(_logits, "make_inputs", lambda *shape: made)
    _logits.reset()

    def install(environment):
        monkeypatch.setattr(_logits, "make_environment", lambda ordinal: environment)
        return lambda form=False: _logits.prepare(0, HEADS, PAGE, BLOCK, form)

    yield install
    _logits.reset()


def test_prepare_opens_on_a_match(serve, inputs, scores, caplog):
    prepare = serve(FakeEnvironment(FakeRunner(inputs, scores, PATTERN, {True: 0, False: 0})))
    plan = prepare()
    assert (
        plan.launch is None and plan.threads == 256 and plan.image.startswith(str(PATTERN).encode())
    )
    assert prepare(True).image.endswith(b"True")
    assert "0 of" in _logits.status()
    assert not caplog.records


@pytest.mark.parametrize("allowed", [False, True])
def test_prepare_warns_once_when_nothing_matches(
    serve, inputs, scores, caplog, monkeypatch, allowed
):
    if allowed:
        monkeypatch.setenv("DSV41TOPK_ALLOW_LAST_BIT", "1")
    runner = FakeRunner(inputs, scores, PATTERN, {True: 0, False: 2}, obeys=False)
    prepare = serve(FakeEnvironment(runner))
    first = prepare()
    assert isinstance(first, _logits.Plan) if allowed else first is _logits.Refused.CLOSED
    prepare()
    prepare(True)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    differing, compared = record.args[:2]
    assert 0 < differing < compared and str(differing) in record.getMessage()


def test_prepare_uses_a_kept_result_of_the_same_code_only(serve, inputs, scores):
    runner = FakeRunner(inputs, scores, PATTERN, {True: 0, False: 0})
    prepare = serve(FakeEnvironment(runner))
    image = prepare().image
    assert runner.runs.count("dense") == 1

    _logits.reset()  # as a new process
    assert prepare().image == image
    assert runner.runs.count("dense") == 1

    _logits.reset()
    runner.code = b" by another compiler"
    assert prepare().image != image
    assert runner.runs.count("dense") == 2

    _logits.reset()
    serve(FakeEnvironment(runner, dense_hash="another dense code"))()
    assert runner.runs.count("dense") == 3

    _logits.reset()
    serve(FakeEnvironment(runner, dense_hash=None))()
    _logits.reset()
    serve(FakeEnvironment(runner, dense_hash=None))()
    assert runner.runs.count("dense") == 5, "a result was kept without a key"


def test_prepare_takes_a_damaged_kept_result_for_none(serve, inputs, scores, monkeypatch):
    runner = FakeRunner(inputs, scores, PATTERN, {True: 0, False: 0})
    for damaged in (json.loads("[]"), {}, {"fused": PATTERN, "fp_fusion": False, "code": {}}, 7):
        monkeypatch.setattr(_logits._build, "cache_get", lambda *key, value=damaged: value)
        _logits.reset()
        runner.runs.clear()
        assert isinstance(serve(FakeEnvironment(runner))(), _logits.Plan)
        assert runner.runs.count("dense") == 1


def test_prepare_waits_for_the_end_of_a_capture(serve, inputs, scores, caplog):
    environment = FakeEnvironment(FakeRunner(inputs, scores, 0, {True: 0, False: 0}))
    prepare = serve(environment)
    environment.in_capture = True
    assert prepare() is _logits.Refused.NOT_NOW
    environment.in_capture = False
    assert isinstance(prepare(), _logits.Plan)
    environment.in_capture = True
    assert isinstance(prepare(), _logits.Plan), "the result is there: nothing has to run"
    assert not caplog.records


def test_prepare_survives_a_runner_that_breaks(serve, caplog):
    class Broken:
        def dense(self, inputs):
            raise RuntimeError("hipErrorOutOfMemory")

    prepare = serve(FakeEnvironment(Broken()))
    assert prepare() is _logits.Refused.CLOSED
    assert prepare(True) is _logits.Refused.CLOSED
    (record,) = caplog.records
    assert "hipErrorOutOfMemory" in record.getMessage()


# ---- AITERs that are not the one -----------------------------------------------------------------


def dense_of_today(
    q_fp8, kv_cache, weights, out_logits, context_lens, kv_indices, max_model_len, Preshuffle=False,
    KVBlockSize=1, ChunkK=256, TotalCuCount=None, WavePerEU=2, VarCtxSchedule=None,
):  # fmt: skip
    raise AssertionError("must not be run")


def dense_of_old(
    q_fp8, kv_cache, weights, out_logits, context_lens, kv_indices, max_model_len, ChunkK=64
):
    raise AssertionError("must not be run")


@pytest.fixture
def fake_modules(monkeypatch):
    """Put made-up modules, and no other AITER or Triton, into sys.modules."""
    for name in [n for n in sys.modules if n.split(".")[0] in ("aiter", "triton")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "dsv41topk.cand_logits", raising=False)

    class Nothing:
        """Finds no AITER and no Triton, whatever is installed."""

        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("aiter", "triton"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Nothing(), *sys.meta_path])

    def put(modules):
        for name, attributes in modules.items():
            parts = name.split(".")
            for i in range(1, len(parts) + 1):
                parent = ".".join(parts[:i])
                if parent not in sys.modules:
                    module = types.ModuleType(parent)
                    module.__path__ = []
                    monkeypatch.setitem(sys.modules, parent, module)
            vars(sys.modules[name]).update(attributes)

    return put


ATTENTION = "aiter.ops.triton.attention.pa_mqa_logits"
TRITON = {
    "triton.backends.compiler": {"GPUTarget": tuple},
    "triton.experimental": {"gluon": types.SimpleNamespace()},
    "triton.experimental.gluon": {"language": types.SimpleNamespace()},
    "triton.experimental.gluon._runtime": {"GluonASTSource": object},
}
AITERS = {
    "no AITER": ({}, "has no ops.triton.attention.pa_mqa_logits"),
    "no such function": ({ATTENTION: {}}, "has no deepgemm_fp8_paged_mqa_logits"),
    "an older function": (
        {ATTENTION: {"deepgemm_fp8_paged_mqa_logits": dense_of_old}},
        "has no parameter Preshuffle, KVBlockSize, TotalCuCount, WavePerEU",
    ),
    "no Triton": (
        {ATTENTION: {"deepgemm_fp8_paged_mqa_logits": dense_of_today}},
        "No module named 'triton'",
    ),
    "no Gluon kernels": (
        {ATTENTION: {"deepgemm_fp8_paged_mqa_logits": dense_of_today}, **TRITON},
        "No module named 'aiter.ops.triton.gluon'",
    ),
    "a changed Gluon module": (
        {
            ATTENTION: {"deepgemm_fp8_paged_mqa_logits": dense_of_today},
            "aiter.ops.triton.gluon.pa_mqa_logits": {"_sum_combine": sum},
            **TRITON,
        },
        "_Use_2d_instr_shape_mfma_layout",
    ),
}


@pytest.mark.parametrize("which", AITERS)
def test_another_aiter_closes_with_one_warning(which, fake_modules, serve, monkeypatch, caplog):
    pytest.importorskip("torch")
    modules, reason = AITERS[which]
    fake_modules(modules)

    class Environment(_logits.DeviceEnvironment):
        def capturing(self):
            return False

    serve(None)
    monkeypatch.setattr(_logits, "make_environment", Environment)
    for _ in range(3):
        assert _logits.prepare(0, HEADS, PAGE, BLOCK, False) is _logits.Refused.CLOSED
        assert _logits.prepare(0, 64, PAGE, BLOCK, True) is _logits.Refused.CLOSED
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert reason in record.getMessage()
    assert reason in _logits.status()
