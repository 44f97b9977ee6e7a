# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv41topk bench cpu``: the CPU kernels beside torch, in one process, on its cores.

Each shape is checked against the oracle first, then our call and torch's take turns. torch leaves
ties and order open and writes no -1, so it is asked for less than we do.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import dsv41topk
from dsv41topk import reference
from dsv41topk._cache import DIM, encode_fp8, pack_cache
from dsv41topk.bench import baselines
from dsv41topk.bench.timing import geometric_mean, interleaved, machine, table, write_json

Array = NDArray[Any]

ROWS = 6
BLOCK_SIZE = 8
SLOTS = 2048
HEADS = 64
PAGE_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table. `check` raises when what `ours` wrote is not right."""

    call: str
    values: str
    columns: int
    ours: Callable[[], object]
    torch: Callable[[], object]
    check: Callable[[], None]


def _normal(rng: np.random.Generator, rows: int, width: int) -> Array:
    return rng.standard_normal((rows, width), np.float32)


def _masked(rng: np.random.Generator, rows: int, width: int) -> Array:
    """Return rows with 7 of 8 blocks -inf: what masking outside the candidates leaves."""
    blocks = rng.random((rows, width // BLOCK_SIZE)) < 1 / 8
    keep = np.repeat(blocks, BLOCK_SIZE, axis=1)
    return np.where(keep, _normal(rng, rows, width), np.float32(-np.inf))


VALUES = {"normal": _normal, "masked": _masked}


def _compare(got: Array, right: Array, what: str) -> None:
    wrong = np.argwhere(got != right)
    if len(wrong):
        r, place = wrong[0]
        raise AssertionError(
            f"{what}: row {r}, entry {place} is {got[r, place]}, not {right[r, place]}"
        )


def _top_k(rng: np.random.Generator, width: int, values: str) -> Case:
    logits = VALUES[values](rng, ROWS, width)
    lens = np.full((ROWS, 1), width, np.int32)
    indices = np.empty((ROWS, 512), np.int32)
    tensor = torch.from_numpy(logits)

    def ours() -> None:
        dsv41topk.top_k_per_row_decode_512(logits, 1, lens, indices)

    def check() -> None:
        right = reference.top_k_per_row_decode_512(logits, 1, lens)
        _compare(indices, right, f"top_k_per_row_decode_512, {width} {values}")

    return Case(
        "top_k_per_row_decode_512", values, width, ours, lambda: baselines.top_k(tensor), check
    )


def _candidates(rng: np.random.Generator, width: int) -> Array:
    rows = [np.sort(rng.permutation(width // BLOCK_SIZE)[:SLOTS]) for _ in range(ROWS)]
    return np.stack(rows).astype(np.int32)


def _candidate_top_k(rng: np.random.Generator, width: int) -> Case:
    logits = _normal(rng, ROWS, width)
    lens = np.full((ROWS, 1), width, np.int32)
    candidates = _candidates(rng, width)
    indices = np.empty((ROWS, 512), np.int32)
    tensor, blocks = torch.from_numpy(logits), torch.from_numpy(candidates)

    def ours() -> None:
        dsv41topk.candidate_top_k_512(logits, 1, lens, candidates, BLOCK_SIZE, indices)

    def torchs() -> torch.Tensor:
        return baselines.candidate_top_k(tensor, blocks, BLOCK_SIZE)

    def check() -> None:
        right = reference.candidate_top_k_512(logits, 1, lens, candidates, BLOCK_SIZE)
        _compare(indices, right, f"candidate_top_k_512, {width}")

    return Case("candidate_top_k_512", "normal", width, ours, torchs, check)


def _compact_top_k(rng: np.random.Generator, n: int) -> Case:
    logits = _normal(rng, ROWS, n)
    ids = np.stack([np.sort(rng.permutation(8 * n)[:n]) for _ in range(ROWS)]).astype(np.int32)
    lens = np.full((ROWS, 1), 8 * n, np.int32)
    indices = np.empty((ROWS, 512), np.int32)
    tensor, tensor_ids = torch.from_numpy(logits), torch.from_numpy(ids)

    def ours() -> None:
        dsv41topk.compact_top_k_512(logits, ids, lens, 1, indices)

    def torchs() -> torch.Tensor:
        return baselines.compact_top_k(tensor, tensor_ids)

    def check() -> None:
        right = reference.compact_top_k_512(logits, ids, lens, 1)
        _compare(indices, right, f"compact_top_k_512, {n}")

    return Case("compact_top_k_512", "normal", n, ours, torchs, check)


def _candidate_blocks(rng: np.random.Generator, width: int) -> Case:
    logits = _normal(rng, ROWS, width)
    visible = np.full(ROWS, width, np.int32)
    out = np.empty((ROWS, SLOTS), np.int32)
    tensor = torch.from_numpy(logits)

    def ours() -> None:
        dsv41topk.candidate_blocks(logits, visible, 1, BLOCK_SIZE, out)

    def torchs() -> torch.Tensor:
        return baselines.candidate_blocks(tensor, BLOCK_SIZE, SLOTS)

    def check() -> None:
        right = reference.candidate_blocks(logits, visible, 1, BLOCK_SIZE, SLOTS)
        _compare(out, right, f"candidate_blocks, {width}")

    return Case("candidate_blocks", "normal", width, ours, torchs, check)


def _candidate_logits(rng: np.random.Generator, width: int) -> Case:
    q_codes = encode_fp8(_normal(rng, ROWS, HEADS * DIM), "e4m3fn").reshape(1, ROWS, HEADS, DIM)
    codes = encode_fp8(_normal(rng, width, DIM), "e4m3fn")
    scales = np.exp(0.3 * _normal(rng, 1, width)[0])
    pages = width // PAGE_SIZE
    cache = pack_cache(codes, scales, PAGE_SIZE, np.arange(pages))
    weights = np.abs(_normal(rng, ROWS, HEADS))
    lens = np.full((1, ROWS), width, np.int32)
    block_table = np.arange(pages, dtype=np.int32)[None]
    candidates = _candidates(rng, width)
    out_logits = np.empty((ROWS, SLOTS * BLOCK_SIZE), np.float32)
    out_ids = np.empty((ROWS, SLOTS * BLOCK_SIZE), np.int32)
    q = torch.from_numpy(q_codes).view(torch.float8_e4m3fn)
    keys = torch.from_numpy(codes).view(torch.float8_e4m3fn).float()
    columns = baselines.candidate_columns(torch.from_numpy(candidates), BLOCK_SIZE)
    tensors = q.float()[0], keys, torch.from_numpy(scales), torch.from_numpy(weights), columns

    def ours() -> None:
        dsv41topk.candidate_logits(
            q,
            cache,
            weights,
            lens,
            ROWS,
            block_table,
            candidates,
            BLOCK_SIZE,
            out_logits,
            out_ids,
        )

    def check() -> None:
        right, ids = reference.candidate_logits(
            q_codes, cache, weights, lens, ROWS, block_table, candidates, BLOCK_SIZE, "e4m3fn"
        )
        _compare(out_ids, ids, f"ids of candidate_logits, {width}")
        np.testing.assert_allclose(out_logits, right, rtol=1e-5, err_msg="candidate_logits")

    return Case(
        "candidate_logits",
        "normal",
        width,
        ours,
        lambda: baselines.candidate_logits(*tensors),
        check,
    )


def cases(rng: np.random.Generator, quick: bool) -> Iterator[Case]:
    """Yield one case after the other, so that no two hold their arrays at once."""
    widths = (131_072,) if quick else (2048, 16_384, 131_072, 1 << 20)
    for width in widths:
        for values in VALUES:
            yield _top_k(rng, width, values)
    for width in widths[-2:]:
        yield _candidate_top_k(rng, width)
        yield _candidate_blocks(rng, width)
    yield _compact_top_k(rng, 16_384)
    yield _candidate_logits(rng, 131_072)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when every call was right."""
    parser = argparse.ArgumentParser(
        prog="python -m dsv41topk bench cpu",
        description="CPU kernels beside torch, in one process, on the same cores",
    )
    parser.add_argument("--quick", action="store_true", help="131,072 columns only")
    parser.add_argument("--seconds", type=float, default=2.0, help="on each line (default: 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write figures there too; -: there alone")
    options = parser.parse_args(argv)

    about = machine()
    about["torch"] = torch.__version__
    torch.set_num_threads(about["cpus"])
    figures = []
    for case in cases(np.random.default_rng(options.seed), options.quick):
        case.ours()
        case.check()
        times = interleaved({"ours": case.ours, "torch": case.torch}, seconds=options.seconds)
        figures.append((case, times["ours"], times["torch"]))
    if options.json != "-":
        print(f"{ROWS} rows, {about['cpus']} CPUs ({about['cpu']}), torch {about['torch']}")
        print("microseconds a call: median (10th to 90th percentile); results equal the oracle's\n")
        lines = [
            (c.call, c.values, f"{c.columns:,}", ours, theirs, f"{theirs.median / ours.median:.1f}")
            for c, ours, theirs in figures
        ]
        print(table(["call", "values", "columns", "dsv41topk", "torch", "ratio"], lines))
        mean = geometric_mean(theirs.median / ours.median for _, ours, theirs in figures)
        print(f"\ngeometric mean of the ratios: {mean:.1f}")
    if options.json:
        rows = [
            {
                "call": case.call,
                "rows": ROWS,
                "columns": case.columns,
                "values": case.values,
                "ours_us": dataclasses.asdict(ours),
                "torch_us": dataclasses.asdict(theirs),
                "ratio": theirs.median / ours.median,
            }
            for case, ours, theirs in figures
        ]
        write_json(options.json, {"machine": about, "figures": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
