# SPDX-License-Identifier: Apache-2.0
"""Who scores candidate logits on gfx942: what `_logits.prepare` answered, asked once a shape."""

import logging

import numpy as np
import pytest
from helpers.arguments import BLOCK_SIZE, HEADS, NEXT_N, PAGE_SIZE, POISON, ROWS, SLOTS, good
from helpers.dlpack import CPU, ROCM, Lent, Library
from helpers.double import Double

import dsv41topk
from dsv41topk import _logits, _runtime
from dsv41topk._cache import Fp8Array
from dsv41topk._logits import SIGNATURE, TILE, Plan, Refused

HOOK = "candidate_logits_top_k"


@pytest.fixture
def prepared(monkeypatch):
    """Answers of `prepare`, to be filled in by a test, and what it was asked."""

    class Prepared:
        answer = Plan(b"its code object", "scoring_kernel", 256, 0, None)

        def __init__(self):
            self.asked = []

        def __call__(self, *key):
            self.asked.append(key)
            return self.answer

    prepared = Prepared()
    monkeypatch.setattr(_logits, "prepare", prepared)
    return prepared


@pytest.fixture
def double():
    with Double(CPU).installed(triton_logits=True) as double:
        dsv41topk.enable()
        yield double


def fnuz(arguments):
    """The arguments with q and cache in the format of gfx942, aligned as its kernel wants them."""
    name = "q_fp8" if "q_fp8" in arguments else "q"
    codes = aligned(arguments[name].codes)
    cache = aligned(arguments["kv_cache"])
    return arguments | {name: Fp8Array(codes, "e4m3fnuz"), "kv_cache": cache}


def aligned(array):
    block = np.zeros(array.nbytes + 16, np.uint8)
    start = -block.ctypes.data % 16
    view = block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def score(**changes):
    arguments = fnuz(good(HOOK)) | changes
    taken = dsv41topk.candidate_logits_top_k(**arguments)
    assert (arguments["indices"] == POISON).all(), "the double only writes launches down"
    return taken


def test_the_kernel_is_asked_for_once_and_launched_from_c(double, prepared):
    assert score()
    assert score()
    assert prepared.asked == [(0, HEADS, PAGE_SIZE, BLOCK_SIZE, False)]
    names = [name for name, *_ in double.launched]
    assert names == ["scoring_kernel", "compact_select_kernel"] * 2
    assert double.loaded == [0, 0], "our code object, then its own; once each"


def test_each_shape_is_asked_for(double, prepared):
    lens = np.full((ROWS // NEXT_N, NEXT_N), 2048, np.int32)
    assert score()
    assert score(seq_lens=lens)
    assert score(block_size=16)
    assert score(seq_lens=lens)
    assert prepared.asked == [
        (0, HEADS, PAGE_SIZE, BLOCK_SIZE, False),
        (0, HEADS, PAGE_SIZE, BLOCK_SIZE, True),
        (0, HEADS, PAGE_SIZE, 16, False),
    ]


def test_on_rocm_and_its_own_device(prepared):
    library = Library()
    arguments = fnuz(good(HOOK))
    for name, value in arguments.items():
        if isinstance(value, Fp8Array):
            arguments[name] = library.Tensor(value.codes, code=11, device_type=ROCM, device_id=2)
        elif isinstance(value, np.ndarray):
            arguments[name] = library.Tensor(value, device_type=ROCM, device_id=2)
    with Double(ROCM).installed() as double:
        dsv41topk.enable()
        assert dsv41topk.candidate_logits_top_k(**arguments)
        assert prepared.asked == [(2, HEADS, PAGE_SIZE, BLOCK_SIZE, False)]
        assert double.launched == [
            ("scoring_kernel", library.stream, 2),
            ("compact_select_kernel", library.stream, 2),
        ]
        assert library.allocated
        assert library.freed == library.allocated
        arguments["q_fp8"] = library.Tensor(
            np.zeros((2, 2, 32, 128), np.uint8), code=10, device_type=ROCM, device_id=2
        )
        _runtime.count_calls()
        assert not dsv41topk.candidate_logits_top_k(**arguments)
        reason = "q_fp8 must be float8_e4m3fnuz, got float8_e4m3fn"
        assert _runtime.call_counts() == {HOOK: {reason: 1}}


def test_a_refused_kernel_closes_this_shape(double, prepared):
    prepared.answer = Refused.CLOSED
    _runtime.count_calls()
    assert not score()
    assert not score()
    assert len(prepared.asked) == 1
    assert _runtime.call_counts() == {HOOK: {"candidate logits have no kernel for it": 2}}
    assert double.launched == []
    prepared.answer = Plan(b"its code object", "scoring_kernel", 256, 0, None)
    assert not score(), "for the rest of the process"
    assert score(block_size=16)


def test_inside_a_capture_it_is_asked_again_later(double, prepared):
    answer, prepared.answer = prepared.answer, Refused.NOT_NOW
    assert not score()
    with pytest.raises(dsv41topk.BuildError, match="not checked yet"):
        dsv41topk.candidate_logits(**fnuz(good("candidate_logits")))
    assert double.launched == []
    prepared.answer = answer
    assert score()


def test_a_kernel_that_does_not_load(double, prepared, caplog):
    double.load_code = 209
    with caplog.at_level(logging.WARNING):
        assert not score()
        assert not score()
    assert [r.getMessage() for r in caplog.records] == [
        "candidate_logits_top_k is closed: paperError (209) from candidate logits module load"
    ]
    assert len(prepared.asked) == 1


def test_a_direct_call(double, prepared):
    dsv41topk.candidate_logits(**fnuz(good("candidate_logits")))
    assert [name for name, *_ in double.launched] == ["scoring_kernel"]
    prepared.answer = Refused.CLOSED
    arguments = fnuz(good("candidate_logits"))
    arguments["seq_lens"] = np.full((ROWS // NEXT_N, NEXT_N), 2048, np.int32)
    with pytest.raises(dsv41topk.BuildError, match="candidate_logits: "):
        dsv41topk.candidate_logits(**arguments)


def test_what_the_compiled_kernel_cannot_take(double, prepared):
    arguments = fnuz(good(HOOK))
    shifted = Lent(arguments["kv_cache"], byte_offset=4, code=1)
    assert not score(kv_cache=shifted)
    with pytest.raises(dsv41topk.BuildError, match="not aligned to 16 bytes"):
        call = fnuz(good("candidate_logits"))
        dsv41topk.candidate_logits(**call | {"kv_cache": Lent(call["kv_cache"], byte_offset=4)})
    assert prepared.asked == []


def test_tritons_own_launcher_gets_the_kernels_arguments(double, prepared):
    calls = []

    def launch(grid_x, grid_y, stream, *rest):
        calls.append((grid_x, grid_y, stream, rest))

    prepared.answer = Plan(b"", "", 256, 0, launch)
    arguments = fnuz(good(HOOK))
    assert dsv41topk.candidate_logits_top_k(**arguments)
    ((grid_x, grid_y, stream, rest),) = calls
    assert (grid_x, grid_y, stream) == (ROWS, -(-SLOTS * BLOCK_SIZE // TILE), 0)
    named = dict(zip(SIGNATURE, rest, strict=True))
    cache = arguments["kv_cache"]
    at = {name: named.pop(name) for name in ("out_logits", "out_ids")}
    assert at["out_ids"] - at["out_logits"] == ROWS * SLOTS * BLOCK_SIZE * 4
    assert named == {
        "q": arguments["q_fp8"].codes.ctypes.data,
        "keys": cache.ctypes.data,
        "page_stride_bytes": PAGE_SIZE * 132,
        "scales": cache.ctypes.data + PAGE_SIZE * 128,
        "pages": len(cache),
        "seq_lens": arguments["seq_lens"].ctypes.data,
        "rows_per_request": NEXT_N,
        "block_table": arguments["block_table"].ctypes.data,
        "block_table_stride": arguments["block_table"].shape[1],
        "table_end": arguments["block_table"].shape[1] * PAGE_SIZE,
        "candidates": arguments["candidates"].ctypes.data,
        "candidates_stride": SLOTS,
        "weights": arguments["weights"].ctypes.data,
        "weights_stride": HEADS,
        "row_slots": SLOTS * BLOCK_SIZE,
    }
    assert [name for name, *_ in double.launched] == ["compact_select_kernel"]


def test_tritons_launcher_that_raises(double, prepared, caplog):
    def broken(*arguments):
        raise RuntimeError("no driver")

    prepared.answer = Plan(b"", "", 256, 0, broken)
    assert not score()
    assert double.launched == []
    assert "candidate_logits_top_k: declined: RuntimeError: no driver" in caplog.text
    assert not score()
