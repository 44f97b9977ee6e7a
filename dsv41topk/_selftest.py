# SPDX-License-Identifier: Apache-2.0
"""`python -m dsv41topk doctor --selftest`: the calls against the oracle, where they serve.

On a GPU the tensors are torch's, and one call is captured in a graph and replayed with other
lengths. A call that the machine lacks something for (AITER, say) is named, and is not a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dsv41topk
from dsv41topk import _runtime, demo, reference
from dsv41topk._cache import Fp8Array

__all__ = ["main"]

Array = NDArray[Any]

TOP_K = reference.TOP_K
POISON = -7777
WIDTH = 20_000
ENDS = (0, 1, 511, 512, 513, 4_099, WIDTH - 1, WIDTH, WIDTH + 5, -3)


class _Place:
    """Where tensors live: numpy arrays for the CPU, torch's for a GPU."""

    def __init__(self, backend: str) -> None:
        self.torch: Any = None
        if backend != "cpu":
            import torch

            self.torch = torch

    def put(self, array: Array) -> Any:
        """Return a tensor of the array's values there."""
        return self.torch.from_numpy(array).cuda() if self.torch else array

    def fp8(self, codes: Array, name: str) -> Any:
        """Return FP8 values there."""
        if not self.torch:
            return Fp8Array(codes, name)
        dtype = {"e4m3fn": "float8_e4m3fn", "e4m3fnuz": "float8_e4m3fnuz"}[name]
        return self.put(codes).view(getattr(self.torch, dtype))

    def get(self, tensor: Any) -> Array:
        """Return a tensor's values here."""
        return np.array(tensor.cpu().numpy() if self.torch else tensor)


_Test = Callable[[_Place, np.random.Generator], int]


def _rows(rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Yield named logits, a row for each of ENDS."""
    shape = (len(ENDS), WIDTH)
    normal = rng.standard_normal(shape, np.float32)
    yield "normal", normal
    yield "ties", np.round(normal * 2) / 2
    masked = np.where(np.repeat(rng.random((len(ENDS), WIDTH // 8)) < 1 / 8, 8, 1), normal, -np.inf)
    yield "masked", masked.astype(np.float32)
    yield "raw bits", rng.integers(0, 1 << 32, shape, np.uint32).view(np.float32)
    yield "all equal", np.full(shape, 1.5, np.float32)


def _require_equal(what: str, got: Array, expected: Array) -> None:
    if not np.array_equal(got, expected):
        row = int(np.argwhere((got != expected).any(axis=1))[0, 0])
        raise AssertionError(f"{what}: row {row} (end {ENDS[row % len(ENDS)]}) is not the oracle's")


def _top_k(place: _Place, rng: np.random.Generator) -> int:
    lens = np.array(ENDS, np.int32)[:, None]
    count = 0
    for name, logits in _rows(rng):
        expected = reference.top_k_per_row_decode_512(logits, 1, lens)
        for options in ((), (8, 16384, False), (3, 1000, False)):
            out = place.put(np.full((len(ENDS), TOP_K), POISON, np.int32))
            dsv41topk.top_k_per_row_decode_512(place.put(logits), 1, place.put(lens), out, *options)
            _require_equal(f"{name}, options {options}", place.get(out), expected)
            count += 1
    return count


def _candidates(rng: np.random.Generator) -> Array:
    """Return candidates with gaps, duplicates and ids out of range."""
    blocks = WIDTH // 8
    out = np.stack([rng.permutation(blocks)[:300] for _ in ENDS]).astype(np.int32)
    out[:, ::17] = -1
    out[:, 5] = out[:, 6]
    out[:, 7] = blocks + 40
    return out


def _candidate_top_k(place: _Place, rng: np.random.Generator) -> int:
    lens = np.array(ENDS, np.int32)[:, None]
    count = 0
    for name, logits in _rows(rng):
        candidates = _candidates(rng)
        out = place.put(np.full((len(ENDS), TOP_K), POISON, np.int32))
        dsv41topk.candidate_top_k_512(
            place.put(logits), 1, place.put(lens), place.put(candidates), 8, out
        )
        expected = reference.candidate_top_k_512(logits, 1, lens, candidates, 8)
        _require_equal(name, place.get(out), expected)
        count += 1
    return count


def _compact_top_k(place: _Place, rng: np.random.Generator) -> int:
    lens = np.array(ENDS, np.int32)[:, None]
    count = 0
    for name, logits in _rows(rng):
        values = np.ascontiguousarray(logits[:, :4096])
        ids = np.sort(np.stack([rng.permutation(WIDTH)[:4096] for _ in ENDS]), axis=1)
        ids = np.where(ids < lens, ids, -1).astype(np.int32)
        values = np.where(ids < 0, np.float32(-np.inf), values)
        expected = reference.compact_top_k_512(values, ids, lens, 1)
        for call in (dsv41topk.compact_top_k_512, dsv41topk.compact_top_k_512_regs):
            out = place.put(np.full((len(ENDS), TOP_K), POISON, np.int32))
            call(place.put(values), place.put(ids), place.put(lens), 1, out)
            _require_equal(name, place.get(out), expected)
            count += 1
    return count


def _candidate_blocks(place: _Place, rng: np.random.Generator) -> int:
    lens = np.array(ENDS, np.int32)
    count = 0
    for name, logits in _rows(rng):
        for block_size, slots in ((8, 256), (16, 64)):
            out = place.put(np.full((len(ENDS), slots), POISON, np.int32))
            dsv41topk.candidate_blocks(place.put(logits), place.put(lens), 1, block_size, out)
            expected = reference.candidate_blocks(logits, lens, 1, block_size, slots)
            _require_equal(f"{name}, blocks of {block_size}", place.get(out), expected)
            count += 1
    return count


def _candidate_logits(place: _Place, rng: np.random.Generator) -> int:
    fp8 = "e4m3fnuz" if _runtime.backend() == "hip" else "e4m3fn"
    layer = demo.synthetic_layer(rng, 2, 3, 3_000, fp8)
    blocks = -(-3_000 // 8)
    candidates = np.stack([rng.permutation(blocks + 4)[:200] for _ in range(6)]).astype(np.int32)
    candidates[:, ::9] = -1
    truth, expected_ids = reference.candidate_logits(
        layer["q"], layer["kv_cache"], layer["weights"], layer["seq_lens"], 3,
        layer["block_table"], candidates, 8, fp8,
    )  # fmt: skip
    logits = place.put(np.full(truth.shape, np.nan, np.float32))
    ids = place.put(np.full(truth.shape, POISON, np.int32))
    dsv41topk.candidate_logits(
        place.fp8(layer["q"], fp8), place.put(layer["kv_cache"]), place.put(layer["weights"]),
        place.put(layer["seq_lens"]), 3, place.put(layer["block_table"]), place.put(candidates), 8,
        logits, ids,
    )  # fmt: skip
    _require_equal("ids", place.get(ids), expected_ids)
    got, live = place.get(logits), expected_ids >= 0
    if not np.isneginf(got[~live]).all():
        raise AssertionError("a slot that is not live is not -inf")
    worst = float(np.abs(got[live] - truth[live]).max() / np.abs(truth[live]).mean())
    if not worst < 1e-5:
        raise AssertionError(f"off by {worst:.2g} of the mean logit")
    return 1


def _hooks(place: _Place, rng: np.random.Generator) -> int:
    logits = rng.standard_normal((6, WIDTH), np.float32)
    lens = np.array([WIDTH - 9], np.int32)
    out = place.put(np.full((6, TOP_K + 8), POISON, np.int32))
    tensor, lens_there = place.put(logits), place.put(lens)
    if not dsv41topk.decode_top_k(tensor, 6, lens_there, out[:, :TOP_K], TOP_K):
        raise AssertionError("decode_top_k declined a call that it must take")
    got = place.get(out)
    expected = reference.top_k_per_row_decode_512(logits, 6, lens)
    _require_equal("decode_top_k", got[:, :TOP_K], expected)
    if not (got[:, TOP_K:] == POISON).all():
        raise AssertionError("decode_top_k wrote past column 512")
    blocks = place.put(np.full((6, 256), POISON, np.int32))
    if not dsv41topk.select_candidates(tensor, 6, lens_there, 8, blocks):
        raise AssertionError("select_candidates declined a call that it must take")
    candidates = reference.candidate_blocks(logits, lens, 6, 8, 256)
    _require_equal("select_candidates", place.get(blocks), candidates)
    out = place.put(np.full((6, TOP_K), POISON, np.int32))
    if not dsv41topk.candidate_top_k(tensor, 6, lens_there, blocks, 8, out, TOP_K):
        raise AssertionError("candidate_top_k declined a call that it must take")
    expected = reference.candidate_top_k_512(logits, 6, lens, candidates, 8)
    _require_equal("candidate_top_k", place.get(out), expected)
    return 3


def _graph(place: _Place, rng: np.random.Generator) -> int:
    """Capture a call, and replay it with other lengths and other logits."""
    torch = place.torch
    logits = place.put(rng.standard_normal((6, WIDTH), np.float32))
    lens = place.put(np.array([600], np.int32))
    out = place.put(np.full((6, TOP_K), POISON, np.int32))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if not dsv41topk.decode_top_k(logits, 6, lens, out, TOP_K):
            raise AssertionError("decode_top_k declined under graph capture")
    for length in (WIDTH, 40, 9_000, 0):
        logits.copy_(place.put(rng.standard_normal((6, WIDTH), np.float32)))
        lens.fill_(length)
        out.fill_(POISON)
        graph.replay()
        expected = reference.top_k_per_row_decode_512(place.get(logits), 6, place.get(lens))
        _require_equal(f"replay with {length}", place.get(out), expected)
    return 4


def _run(name: str, test: _Test, place: _Place, rng: np.random.Generator) -> str:
    """Return `ok`, or what failed; what the machine lacks starts with `not available`."""
    # Scoring needs AITER and Triton on gfx942; everything else needs nothing more.
    missing = (dsv41topk.BuildError,) if name == "candidate_logits" else ()
    try:
        return f"ok, {test(place, rng)} cases"
    except missing as error:
        return f"not available: {error}"
    except Exception as error:
        traceback.print_exc()
        return f"FAILED: {type(error).__name__}: {error}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run every call and print one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=41)
    seed = parser.parse_args(argv).seed
    # A torch that is missing or cannot be imported is reported by doctor itself.
    with contextlib.suppress(Exception):
        import torch

        if torch.cuda.is_available():
            torch.cuda.init()
    dsv41topk.enable()
    if not dsv41topk.build():
        summary = f"nothing serves: {dsv41topk.build_error()}"
        print(json.dumps({"passed": False, "summary": summary, "results": {}}))
        return 1
    _runtime.count_calls()
    backend = _runtime.backend() or "none"
    place = _Place(backend)
    tests: dict[str, _Test] = {
        "top_k_per_row_decode_512": _top_k,
        "candidate_top_k_512": _candidate_top_k,
        "compact_top_k_512": _compact_top_k,
        "candidate_blocks": _candidate_blocks,
        "candidate_logits": _candidate_logits,
        "hooks": _hooks,
    }
    if place.torch:
        tests["graph capture and replay"] = _graph
    results = {}
    for number, (name, test) in enumerate(tests.items()):
        rng = np.random.default_rng((seed, number))
        results[name] = _run(name, test, place, rng)
    passed = not any(result.startswith("FAILED") for result in results.values())
    text = "; ".join(f"{name}: {result}" for name, result in results.items())
    summary = f"{backend}, seed {seed}: {text}"
    report = {"passed": passed, "summary": summary, "results": results}
    print(json.dumps({**report, "hook_calls": _runtime.call_counts()}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
