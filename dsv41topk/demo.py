# SPDX-License-Identifier: Apache-2.0
"""`python -m dsv41topk demo`: a decode step of the 8 index layers, on the CPU, against the oracle.

Layers 2, 8 and 14 score every column and take the top 512; layer 20 does that and chooses candidate
blocks; layers 24 to 36 score only those. Everything goes through the public calls of the package,
with numpy arrays; nothing but numpy is needed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dsv41topk
from dsv41topk import reference, step
from dsv41topk._cache import DIM, FP8_MAX, Fp8Array, decode_fp8, encode_fp8, pack_cache

__all__ = ["main"]

Array = NDArray[Any]

DENSE_LAYERS = (2, 8, 14)
SELECTING_LAYER = 20
CANDIDATE_LAYERS = (24, 28, 32, 36)
LAYERS = (*DENSE_LAYERS, SELECTING_LAYER, *CANDIDATE_LAYERS)
CANDIDATE_SLOTS = 2048
BLOCK_SIZE = 8
HEADS = 64
PAGE_SIZE = 64

TOLERANCE = 1e-5
"""Of a logit, as a part of the sum of its terms' magnitudes: float32 sums of 64 x 128 products."""

COLUMNS_AT_ONCE = 8192
ALL_MATCH = "all layers match the oracle"


class Mismatch(Exception):
    """A layer whose result is not the oracle's. The text says where."""


# ---- a step, made up -----------------------------------------------------------------------------


def synthetic_layer(
    rng: np.random.Generator, requests: int, next_n: int, context: int, fp8: str = "e4m3fn"
) -> dict[str, Any]:
    """Return what one index layer reads, as a step file names it (without `logits`).

    The logits come out as the model's do: almost all negative, the 512th largest near -0.9, a few
    positive. A third of the text repeats earlier passages, so that exact ties occur.
    """
    rows = requests * next_n
    each = -(-context // PAGE_SIZE)
    # Encoding is slow, drawing from what was encoded is not.
    pool = encode_fp8(np.clip(rng.standard_normal(1 << 16) * 24, -200, 200), fp8)
    keys = pool[rng.integers(0, len(pool), (requests * each * PAGE_SIZE, DIM), np.uint16)]
    scales = rng.uniform(0.9, 1.1, len(keys)).astype(np.float32) / 128
    _repeat_passages(rng, keys, scales)
    order = rng.permutation(requests * each).astype(np.int32)
    queries = rng.standard_normal((requests, next_n, HEADS, DIM)) * FP8_MAX[fp8] / 8
    layer = {
        "q": encode_fp8(queries, fp8),
        "kv_cache": pack_cache(keys, scales, PAGE_SIZE, order),
        "seq_lens": (context - 37 * np.arange(requests)).clip(next_n).astype(np.int32),
        "block_table": order.reshape(requests, each),
        "fp8": fp8,
    }
    # With these a row's logits lie three to four standard deviations below zero.
    weights = rng.standard_normal((rows, HEADS))
    weights = (weights - weights.mean(1, keepdims=True)) / weights.std(1, keepdims=True) * 1.4 - 1
    layer["weights"] = weights.astype(np.float32)
    sample = min(4 * COLUMNS_AT_ONCE, context)
    logits = np.sort(dense_logits(layer, sample)[0][:, :sample], axis=1)
    place = sample - 1 - min(sample * reference.TOP_K // context, sample - 1)
    layer["weights"] *= (0.9 / np.abs(logits[:, place]))[:, None].astype(np.float32)
    return layer


def _repeat_passages(rng: np.random.Generator, keys: Array, scales: Array) -> None:
    windows = len(keys) // PAGE_SIZE
    for window in range(1, windows):
        if rng.random() < 1 / 3:
            source = int(rng.integers(window)) * PAGE_SIZE
            here = slice(window * PAGE_SIZE, (window + 1) * PAGE_SIZE)
            keys[here] = keys[source : source + PAGE_SIZE]
            scales[here] = scales[source : source + PAGE_SIZE]


def dense_logits(layer: dict[str, Any], columns: int) -> tuple[Array, Array]:
    """Return the logits of the first columns of every row, and the sums of their terms' magnitudes.

    numpy's matrix product, whole pages at a time: float32 [rows, columns or a page's worth more].
    """
    page_size = layer["kv_cache"].shape[1]
    requests, next_n, heads, _ = layer["q"].shape
    pages = -(-columns // page_size)
    logits = np.empty((2, requests, next_n, pages * page_size), np.float32)
    queries = decode_fp8(layer["q"], layer["fp8"])
    weights = layer["weights"].reshape(requests, next_n, heads)
    at_once = max(COLUMNS_AT_ONCE // page_size, 1)
    for request in range(requests):
        for first in range(0, pages, at_once):
            table = layer["block_table"][request, first : min(first + at_once, pages)]
            keys, scales = _unpack(layer["kv_cache"][table], layer["fp8"])
            here = slice(first * page_size, first * page_size + len(keys))
            for draft in range(next_n):
                terms = np.maximum(queries[request, draft] @ keys.T, 0) * scales
                weight = weights[request, draft]
                logits[0, request, draft, here] = weight @ terms
                logits[1, request, draft, here] = np.abs(weight) @ terms
    out = logits.reshape(2, requests * next_n, -1)
    return out[0], out[1]


def _unpack(pages: Array, fp8: str) -> tuple[Array, Array]:
    """Return the keys [columns, 128] and scales [columns] of whole pages."""
    count, page_size = pages.shape[:2]
    flat = pages.reshape(count, -1)
    tiles = flat[:, : page_size * DIM].reshape(count, page_size // 16, DIM // 16, 16, 16)
    keys = tiles.transpose(0, 1, 3, 2, 4).reshape(-1, DIM)
    scales = np.ascontiguousarray(flat[:, page_size * DIM :]).view(np.float32).reshape(-1)
    return decode_fp8(keys, fp8), scales


# ---- running and checking ------------------------------------------------------------------------


@dataclass
class Line:
    """A line of the table."""

    layer: str
    work: str
    logits_ms: float
    select_ms: float
    oracle_ms: float = 0.0
    notes: list[str] = field(default_factory=list)


def _timed(call: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    started = time.perf_counter()
    result = call(*args)
    return result, 1e3 * (time.perf_counter() - started)


def _take(name: str, *args: Any) -> float:
    """Call a hook and return the milliseconds; a hook that declines here is a fault."""
    taken, milliseconds = _timed(getattr(dsv41topk, name), *args)
    if taken is not True:
        raise Mismatch(f"{name} declined the call: {dsv41topk.build_error() or 'no reason kept'}")
    return milliseconds


def _require_equal(what: str, got: Array, expected: Array) -> None:
    wrong = np.argwhere(got != expected)
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        raise Mismatch(
            f"{what}: {len(wrong)} of {got.size} entries are not the oracle's; the first, at "
            f"{place}, is {got[place]} and must be {expected[place]}"
        )


def _require_close(what: str, got: Array, expected: Array, magnitude: Array) -> float:
    """Compare live logits; return the largest difference, as a part of its magnitude."""
    if not np.array_equal(np.isneginf(got), np.isneginf(expected)):
        raise Mismatch(f"{what}: other logits are -inf than the oracle's")
    live = ~np.isneginf(expected)
    # A magnitude of 0 belongs to a logit of exactly 0.
    difference = np.abs(got[live] - expected[live]) / np.maximum(magnitude[live], 1e-30)
    worst = float(difference.max(initial=0.0))
    if not worst <= TOLERANCE:
        raise Mismatch(f"{what}: off by {worst:.2g} of the terms' sum, above {TOLERANCE:g}")
    return worst


def _score(layer: dict[str, Any], candidates: Array, block_size: int) -> tuple[Array, Array, float]:
    """Run candidate_logits; return its logits, ids and milliseconds."""
    requests, next_n = layer["q"].shape[:2]
    shape = (requests * next_n, candidates.shape[1] * block_size)
    logits, ids = np.empty(shape, np.float32), np.empty(shape, np.int32)
    _, milliseconds = _timed(
        dsv41topk.candidate_logits,
        Fp8Array(layer["q"], layer["fp8"]), layer["kv_cache"], layer["weights"], layer["seq_lens"],
        next_n, layer["block_table"], candidates, block_size, logits, ids,
    )  # fmt: skip
    return logits, ids, milliseconds


def _columns(layer: dict[str, Any]) -> int:
    """Return how many columns the longest row has."""
    requests, next_n = layer["q"].shape[:2]
    ends = reference.row_ends(layer["seq_lens"], next_n, requests * next_n, 2**31 - 1)
    return int(ends.max(initial=0))


def _score_all(layer: dict[str, Any]) -> tuple[Array, float]:
    """Return the package's own dense logits: every block is a candidate."""
    requests, next_n = layer["q"].shape[:2]
    blocks = np.arange(-(-_columns(layer) // BLOCK_SIZE), dtype=np.int32)
    candidates = np.tile(blocks, (requests * next_n, 1))
    logits, _, milliseconds = _score(layer, candidates, BLOCK_SIZE)
    return logits, milliseconds


def _check_dense(layer: dict[str, Any], logits: Array, line: Line) -> None:
    """Compare dense logits with numpy's, and with the oracle's own scoring at some blocks."""
    next_n = layer["q"].shape[1]
    rows, width = logits.shape
    columns = _columns(layer)
    expected, magnitude = dense_logits(layer, columns)
    line.notes.append(_character(logits[0, :columns]))
    ends = reference.row_ends(layer["seq_lens"], next_n, rows, width)
    live = np.arange(columns) < ends[:, None]
    expected = np.where(live, expected[:, :columns], -np.inf)
    what = f"layer {line.layer}, logits"
    worst = _require_close(what, logits[:, :columns], expected, magnitude[:, :columns])
    some = np.linspace(0, width // BLOCK_SIZE - 1, 64).astype(np.int32)
    truth, ids = _oracle_logits(layer, np.tile(some, (rows, 1)), BLOCK_SIZE)
    at = np.where(ids >= 0, ids, 0)
    here = np.where(ids >= 0, np.take_along_axis(logits, at, 1), -np.inf)
    _require_close(what, here, truth, np.take_along_axis(magnitude, at, 1))
    line.notes.append(f"logits within {worst:.0e}")


def _character(row: Array) -> str:
    """Say in words whether a row looks like the model's."""
    largest = np.sort(row)[-min(reference.TOP_K, len(row))]
    return f"row 0: {int((row > 0).sum())} positive, 512th {largest:.2f}"


def _oracle_logits(
    layer: dict[str, Any], candidates: Array, block_size: int
) -> tuple[Array, Array]:
    return reference.candidate_logits(
        layer["q"], layer["kv_cache"], layer["weights"], layer["seq_lens"], layer["q"].shape[1],
        layer["block_table"], candidates, block_size, layer["fp8"],
    )  # fmt: skip


def run_dense(name: str, layer: dict[str, Any], logits: Array, logits_ms: float) -> Line:
    """Take the top 512 of dense logits with the hook, and compare with the oracle."""
    rows, next_n = len(logits), layer["q"].shape[1]
    indices = np.full((rows, reference.TOP_K), -7, np.int32)
    select_ms = _take("decode_top_k", logits, next_n, layer["seq_lens"], indices, reference.TOP_K)
    line = Line(name, "dense", logits_ms, select_ms)
    expected, line.oracle_ms = _timed(
        reference.top_k_per_row_decode_512, logits, next_n, layer["seq_lens"]
    )
    _require_equal(f"layer {name}, decode_top_k", indices, expected)
    ends = reference.row_ends(layer["seq_lens"], next_n, rows, logits.shape[1])
    line.notes.append(f"{_ties_at_cut(logits, expected, ends)} of {rows} rows tied at the cut")
    return line


def _ties_at_cut(logits: Array, chosen: Array, ends: Array) -> int:
    """Return how many rows have more columns with the value at the cut than were taken."""
    count = 0
    for row, columns, end in zip(logits, chosen, ends, strict=True):
        if end > reference.TOP_K:
            keys = reference.order_key(row[:end])
            cut = keys[columns].min()
            count += int((keys == cut).sum() > (keys[columns] == cut).sum())
    return count


def run_selection(line: Line, layer: dict[str, Any], logits: Array, slots: int) -> Array:
    """Choose the candidate blocks with the hook, compare with the oracle, and return them."""
    rows, next_n = len(logits), layer["q"].shape[1]
    candidates = np.full((rows, slots), -7, np.int32)
    seq_lens = layer["seq_lens"]
    line.select_ms += _take("select_candidates", logits, next_n, seq_lens, BLOCK_SIZE, candidates)
    line.work += " + selection"
    row_repeat = 1 if seq_lens.size == rows else next_n
    expected, milliseconds = _timed(
        reference.candidate_blocks, logits, seq_lens, row_repeat, BLOCK_SIZE, slots
    )
    line.oracle_ms += milliseconds
    _require_equal(f"layer {line.layer}, select_candidates", candidates, expected)
    return candidates


def run_candidates(
    name: str, layer: dict[str, Any], candidates: Array, block_size: int
) -> tuple[Line, Array]:
    """Score the candidates and take the top 512: by the hook, and by the two kernels in it."""
    rows, next_n = len(candidates), layer["q"].shape[1]
    seq_lens = layer["seq_lens"]
    logits, ids, logits_ms = _score(layer, candidates, block_size)
    by_kernels = np.full((rows, reference.TOP_K), -7, np.int32)
    compact = (
        dsv41topk.compact_top_k_512_regs
        if logits.shape[1] % 4 == 0 and logits.shape[1] <= 32_768
        else dsv41topk.compact_top_k_512
    )
    _, select_ms = _timed(compact, logits, ids, seq_lens, next_n, by_kernels)
    line = Line(name, "candidates", logits_ms, select_ms)
    by_hook = np.full((rows, reference.TOP_K), -7, np.int32)
    hook_ms = _take(
        "candidate_logits_top_k",
        Fp8Array(layer["q"], layer["fp8"]), layer["kv_cache"], layer["weights"], seq_lens,
        layer["block_table"], candidates, block_size, by_hook, reference.TOP_K, True, False,
    )  # fmt: skip
    (truth, expected_ids), line.oracle_ms = _timed(_oracle_logits, layer, candidates, block_size)
    _require_equal(f"layer {name}, candidate_logits, ids", ids, expected_ids)
    magnitude, _ = _oracle_logits(
        {**layer, "weights": np.abs(layer["weights"])}, candidates, block_size
    )
    worst = _require_close(f"layer {name}, candidate_logits", logits, truth, magnitude)
    expected = reference.compact_top_k_512(logits, ids, seq_lens, next_n)
    _require_equal(f"layer {name}, {compact.__name__}", by_kernels, expected)
    _require_equal(f"layer {name}, candidate_logits_top_k", by_hook, expected)
    line.notes += [f"logits within {worst:.0e}", f"as one hook {hook_ms:.1f} ms"]
    return line, by_hook


# ---- the two kinds of run ------------------------------------------------------------------------


def run_synthetic(context: int, rows: int, next_n: int, seed: int, bar: Bar) -> list[Line]:
    """Run one step of made-up layers."""
    lines = []
    candidates = np.empty((0, 0), np.int32)
    for number in LAYERS:
        bar.show(f"layer {number}: making keys and queries")
        rng = np.random.default_rng((seed, number))
        layer = synthetic_layer(rng, rows // next_n, next_n, context)
        bar.show(f"layer {number}: running and checking")
        if number in CANDIDATE_LAYERS:
            line, _ = run_candidates(str(number), layer, candidates, BLOCK_SIZE)
        else:
            logits, logits_ms = _score_all(layer)
            line = run_dense(str(number), layer, logits, logits_ms)
            _check_dense(layer, logits, line)
            if number == SELECTING_LAYER:
                candidates = run_selection(line, layer, logits, CANDIDATE_SLOTS)
        lines.append(line)
    return lines


def replay_step(recorded: dict[str, Any], bar: Bar) -> list[Line]:
    """Run a recorded step: every layer on its one set of keys and queries.

    The dense layers select from the recorded logits, and the package's own must agree with those.
    """
    lines = []
    candidates = np.empty((0, 0), np.int32)
    rows, width = recorded["logits"].shape
    next_n = recorded["q"].shape[1]
    ends = reference.row_ends(recorded["seq_lens"], next_n, rows, width)
    for number in LAYERS:
        bar.show(f"layer {number}: running and checking")
        if number in CANDIDATE_LAYERS:
            line, _ = run_candidates(str(number), recorded, candidates, BLOCK_SIZE)
        else:
            line = run_dense(str(number), recorded, recorded["logits"], 0.0)
            if number == DENSE_LAYERS[0]:
                own, line.logits_ms = _score_all(recorded)
                _, magnitude = dense_logits(recorded, width)
                live = np.arange(width) < ends[:, None]
                theirs = np.where(live, recorded["logits"], -np.inf)
                own = np.where(live, own[:, :width], -np.inf)
                worst = _require_close("recorded logits", own, theirs, magnitude[:, :width])
                line.notes.append(f"own logits within {worst:.0e} of the recorded")
            if number == SELECTING_LAYER:
                slots = min(CANDIDATE_SLOTS, max(width // BLOCK_SIZE // 2, 65))
                candidates = run_selection(line, recorded, recorded["logits"], slots)
        lines.append(line)
    return lines


def replay_call(recorded: dict[str, Any]) -> list[Line]:
    """Run one recorded call; what the process wrote then and what is computed now must be right."""
    hook = recorded["hook"]
    result = recorded["result"]
    rows = len(result)
    if hook == "candidate_logits_top_k":
        line, now = run_candidates(hook, recorded, recorded["candidates"], recorded["block_size"])
        _require_best(recorded, result)
        if not np.array_equal(now, result):
            line.notes.append("recorded result differs in the last bits' choice alone")
        return [line]
    logits, next_n, seq_lens = recorded["logits"], recorded["next_n"], recorded["seq_lens"]
    now = np.full(result.shape, -7, np.int32)
    if hook == "decode_top_k":
        select_ms = _take(hook, logits, next_n, seq_lens, now, reference.TOP_K)
        expected, oracle_ms = _timed(reference.top_k_per_row_decode_512, logits, next_n, seq_lens)
    elif hook == "candidate_top_k":
        own = (recorded["candidates"], recorded["block_size"])
        select_ms = _take(hook, logits, next_n, seq_lens, *own, now, reference.TOP_K)
        expected, oracle_ms = _timed(reference.candidate_top_k_512, logits, next_n, seq_lens, *own)
    else:
        block_size = recorded["block_size"]
        select_ms = _take(hook, logits, next_n, seq_lens, block_size, now)
        row_repeat = 1 if seq_lens.size == rows else next_n
        expected, oracle_ms = _timed(
            reference.candidate_blocks, logits, seq_lens, row_repeat, block_size, result.shape[1]
        )
    _require_equal(f"{hook}, computed now", now, expected)
    _require_equal(f"{hook}, recorded result", result, expected)
    return [Line(hook, "recorded call", 0.0, select_ms, oracle_ms)]


def _require_best(recorded: dict[str, Any], result: Array) -> None:
    """Check a recorded choice among candidates: the producer's last bits may differ, no more.

    No column left out may be better than one taken by more than the tolerance of both.
    """
    truth, ids = _oracle_logits(recorded, recorded["candidates"], recorded["block_size"])
    magnitude, _ = _oracle_logits(
        {**recorded, "weights": np.abs(recorded["weights"])},
        recorded["candidates"],
        recorded["block_size"],
    )
    rows, next_n = len(result), recorded["q"].shape[1]
    ends = reference.row_ends(recorded["seq_lens"], next_n, rows, 2**31 - 1)
    for r in range(rows):
        if ends[r] <= reference.TOP_K:
            _require_equal(f"row {r}", result[r], reference.top_k_row(truth[r][:0], int(ends[r])))
            continue
        live = ids[r] >= 0
        taken = live & np.isin(ids[r], result[r][result[r] >= 0])
        entries = result[r][result[r] >= 0]
        wanted = min(reference.TOP_K, len(np.unique(ids[r][live])))
        if len(np.unique(entries)) != wanted or len(np.unique(ids[r][taken])) != wanted:
            raise Mismatch(f"row {r}: {len(np.unique(entries))} candidates taken, not {wanted}")
        out = live & ~taken
        if out.any():
            worst = (truth[r, taken] + TOLERANCE * magnitude[r, taken]).min()
            best = (truth[r, out] - TOLERANCE * magnitude[r, out]).max()
            if best > worst:
                raise Mismatch(f"row {r}: a column of {best:.6g} was left for one of {worst:.6g}")


# ---- output --------------------------------------------------------------------------------------


class Bar:
    """A progress bar on stderr, where that is a terminal."""

    WIDTH = 24

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.live = sys.stderr.isatty()

    def show(self, what: str) -> None:
        """Say what is being done, and count it."""
        if self.live:
            full = self.done * self.WIDTH // self.total
            text = f"[{'#' * full}{'.' * (self.WIDTH - full)}] {what}"
            columns = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{text[:columns]}")
            sys.stderr.flush()
        self.done += 1

    def close(self) -> None:
        """Wipe the line."""
        if self.live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _print_table(lines: Sequence[Line]) -> None:
    width = max(12, *(len(line.layer) for line in lines))
    print(f"{'layer':<{width}} {'work':<18} {'logits ms':>9} {'select ms':>9} {'oracle ms':>9}")
    for line in lines:
        logits = f"{line.logits_ms:.1f}" if line.logits_ms else "recorded"
        times = f"{logits:>9} {line.select_ms:>9.2f} {line.oracle_ms:>9.1f}"
        print(f"{line.layer:<{width}} {line.work:<18} {times}  {'; '.join(line.notes)}".rstrip())
    sums = [sum(getattr(x, f"{k}_ms") for x in lines) for k in ("logits", "select", "oracle")]
    print(f"{'sum':<{width}} {'':<18} {sums[0]:>9.1f} {sums[1]:>9.2f} {sums[2]:>9.1f}")


def _positive(text: str) -> int:
    value = int(text.replace(",", "").replace("_", ""))
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run one decode step of the 8 index layers on the CPU, every layer checked by the oracle."""
    parser = argparse.ArgumentParser(prog="python -m dsv41topk demo", description=main.__doc__)
    parser.add_argument("--context", type=_positive, default=131_072, help="columns (131072)")
    parser.add_argument("--rows", type=_positive, default=6, help="decode queries (6)")
    parser.add_argument("--next-n", type=_positive, help="rows per request (6, or all if fewer)")
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument(
        "--replay", metavar="FILE.npz", nargs="+", help="run recorded steps or calls instead"
    )
    arguments = parser.parse_args(argv)
    next_n = arguments.next_n or min(arguments.rows, 6)
    if arguments.rows % next_n:
        parser.error(f"--rows must be a multiple of --next-n ({next_n}), got {arguments.rows}")
    # numpy arrays are CPU tensors, and hooks decline what is not on the backend's device.
    os.environ["DSV41TOPK_BACKEND"] = "cpu"
    dsv41topk.enable()
    if not dsv41topk.build():
        print(f"no backend: {dsv41topk.build_error()}", file=sys.stderr)
        return 1
    try:
        if arguments.replay:
            for path in arguments.replay:
                _replay(path)
        else:
            _synthetic(arguments.context, arguments.rows, next_n, arguments.seed)
    except (Mismatch, step.StepFileError) as error:
        print(f"MISMATCH: {error}" if isinstance(error, Mismatch) else str(error), file=sys.stderr)
        return 1
    print(ALL_MATCH)
    return 0


def _synthetic(context: int, rows: int, next_n: int, seed: int) -> None:
    print(
        f"one decode step: {rows // next_n} request(s) of {context:,} columns, {rows} rows, "
        f"{HEADS} heads, seed {seed}, CPU kernels"
    )
    bar = Bar(2 * len(LAYERS))
    try:
        lines = run_synthetic(context, rows, next_n, seed, bar)
    finally:
        bar.close()
    _print_table(lines)


def _replay(path: str) -> None:
    recorded = step.load(path)
    if "hook" in recorded:
        print(f"{path}: a call of {recorded['hook']}, {len(recorded['result'])} rows")
        lines = replay_call(recorded)
    else:
        rows, width = recorded["logits"].shape
        print(f"{path}: a step of {rows} rows of {width:,} columns, {recorded['fp8']}, CPU kernels")
        bar = Bar(len(LAYERS))
        try:
            lines = replay_step(recorded, bar)
        finally:
            bar.close()
    _print_table(lines)
