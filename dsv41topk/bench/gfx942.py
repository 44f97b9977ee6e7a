# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv41topk bench gfx942``: what the gfx942 code object executes, counted on the CPU.

Every call goes through the launchers into the emulator (see emulator.py for what it needs) and is
checked against the oracle first. A line is a call; under it stand its launches. Clocks are issue
bounds, with no latency in them: they compare versions of a kernel, they do not predict a time.
What they leave out is why barriers stand beside them.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv41topk import reference, step
from dsv41topk.bench import emulator
from dsv41topk.bench.emulator_runtime import EmulatorRuntime, Launch
from dsv41topk.bench.timing import table, write_json

__all__ = ["CASES", "IN_TREE", "Case", "main", "measure"]

Array = NDArray[Any]

ROWS = 6
BLOCK_SIZE = 8
SLOTS = 2048
REAL_TEXT = Path(__file__).resolve().parents[2] / "tests" / "data" / "step_8k.npz"


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table."""

    call: str
    columns: int
    values: str
    options: tuple[Any, ...] = ()

    @property
    def title(self) -> str:
        """The call as the table names it."""
        histogram = self.call == "top_k_per_row_decode_512" and self.options[-1:] == (False,)
        return self.call + (", histogram" if histogram else "")

    def __str__(self) -> str:
        return f"{self.title} {self.columns} {self.values}"


IN_TREE: Mapping[tuple[str, int, str], tuple[tuple[int, int | None], ...]] = {
    ("compact_top_k_512_regs", 16_384, "normal"): ((31_114, 17_024),),
    ("compact_top_k_512_regs", 16_384, "masked"): ((30_488, None),),
    ("top_k_per_row_decode_512", 16_384, "normal"): ((32_696, 17_332),),
    ("top_k_per_row_decode_512", 131_072, "normal"): ((33_382, 17_332), (19_671, 10_528)),
    ("top_k_per_row_decode_512, histogram", 131_072, "normal"): ((20_923, 10_712), (14_526, 9_384)),
    ("candidate_blocks", 131_072, "normal"): ((64_484, 30_496),),
    ("candidate_top_k_512", 131_072, "normal"): ((26_624, None), (23_509, 11_612)),
}
"""Wave-instructions and clocks a launch of vLLM 0.33.0's kernels (`rocm` sources of its release),
compiled with clang-19 -O3 and counted by this emulator in 2026-12; one workgroup of 16 waves each,
but for the gather of the last line (64 small ones, whose clocks were not taken)."""

HISTOGRAM = (8, 16_384, False)

CASES = (
    *(
        Case("top_k_per_row_decode_512", columns, values)
        for columns in (2_048, 16_384, 131_072, 1 << 20)
        for values in ("normal", "masked", "real text")
    ),
    *(
        Case("top_k_per_row_decode_512", columns, "normal", HISTOGRAM)
        for columns in (16_384, 131_072, 1 << 20)
    ),
    *(Case("candidate_top_k_512", 131_072, values) for values in ("normal", "masked", "real text")),
    *(
        Case(call, 16_384, values)
        for call in ("compact_top_k_512_regs", "compact_top_k_512")
        for values in ("normal", "masked", "real text")
    ),
    *(
        Case("candidate_blocks", columns, values)
        for columns in (16_384, 131_072, 1 << 20)
        for values in ("normal", "real text")
    ),
)


class Mismatch(Exception):
    """A call did not give what the oracle gives."""


def _values(case: Case, rng: np.random.Generator, text: Array | None) -> Array:
    shape = ROWS, case.columns
    normal = rng.standard_normal(shape, np.float32)
    if case.values == "normal":
        return normal
    if case.values == "masked":
        keep = rng.random((ROWS, case.columns // BLOCK_SIZE)) < 1 / 8
        return np.where(np.repeat(keep, BLOCK_SIZE, axis=1), normal, np.float32(-np.inf))
    assert text is not None
    repeats = -(-case.columns // text.shape[1])
    return np.ascontiguousarray(np.tile(text[np.arange(ROWS) % len(text)], repeats)[:, : shape[1]])


def _run(case: Case, calls: Any, rng: np.random.Generator, text: Array | None) -> None:
    """Make the call once; raise Mismatch when it is wrong."""
    logits = _values(case, rng, text)
    width = case.columns
    lens = np.full((ROWS, 1), width, np.int32)
    indices = np.empty((ROWS, reference.TOP_K), np.int32)
    ids = [np.sort(rng.permutation(width // BLOCK_SIZE)[:SLOTS]) for _ in range(ROWS)]
    candidates = np.stack(ids).astype(np.int32)
    if case.call == "top_k_per_row_decode_512":
        calls.top_k_per_row_decode_512(logits, 1, lens, indices, *case.options)
        right = reference.top_k_per_row_decode_512(logits, 1, lens)
    elif case.call == "candidate_top_k_512":
        calls.candidate_top_k_512(logits, 1, lens, candidates, BLOCK_SIZE, indices)
        right = reference.candidate_top_k_512(logits, 1, lens, candidates, BLOCK_SIZE)
    elif case.call == "candidate_blocks":
        indices = np.empty((ROWS, SLOTS), np.int32)
        calls.candidate_blocks(logits, lens[:, 0].copy(), 1, BLOCK_SIZE, indices)
        right = reference.candidate_blocks(logits, lens[:, 0], 1, BLOCK_SIZE, SLOTS)
    else:
        columns = np.tile(np.arange(width, dtype=np.int32) * BLOCK_SIZE, (ROWS, 1))
        lens = lens * BLOCK_SIZE
        getattr(calls, case.call)(logits, columns, lens, 1, indices)
        right = reference.compact_top_k_512(logits, columns, lens, 1)
    if not np.array_equal(indices, right):
        raise Mismatch(f"{case}: not what the oracle gives")


def _launch_line(launch: Launch, compute_units: int) -> dict[str, Any]:
    stats = launch.stats
    return {
        "kernel": launch.kernel,
        "grid": launch.grid[0] * launch.grid[1],
        "threads": launch.threads,
        "wave_instructions": round(stats.wave_instructions / stats.workgroups),
        "barriers": round(stats.barriers, 1),
        "clocks": stats.clocks(compute_units),
        "bounds": stats.bounds(),
    }


def measure(
    calls: Any,
    runtime: EmulatorRuntime,
    cases: Sequence[Case] = CASES,
    text: Array | None = None,
    progress: Callable[[str], None] = lambda _text: None,
) -> Iterator[dict[str, Any]]:
    """Run each case and yield what its launches executed.

    Parameters
    ----------
    calls : object
        Has the contract's kernel calls, on numpy arrays, with `runtime` behind them.
    text : float32 [rows, columns], optional
        Logits made from real text; cases that want them are left out without.

    Yields
    ------
    dict
        The case, its launches in order, and the sum of their clocks (`clocks`) and barriers.

    Raises
    ------
    Mismatch
        When a result is not the oracle's.
    """
    for case in cases:
        if case.values == "real text" and text is None:
            continue
        progress(str(case))
        with runtime.recorded() as launches:
            _run(case, calls, np.random.default_rng(41), text)
        lines = [_launch_line(launch, runtime.compute_units) for launch in launches]
        known = IN_TREE.get((case.title, case.columns, case.values))
        values = case.values
        if text is not None and values == "real text" and case.columns > text.shape[1]:
            values = f"real text x {-(-case.columns // text.shape[1])}"  # so every value has ties
        in_tree = None if known is None else [n for _, n in known if n is not None]
        yield {
            "call": case.title,
            "columns": case.columns,
            "values": values,
            "rows": ROWS,
            "clocks": sum(line["clocks"] for line in lines),
            "barriers": sum(line["barriers"] for line in lines),
            "launches": lines,
            "in_tree": known,
            "in_tree_clocks": sum(in_tree) if in_tree else None,
        }


def _rows_of(result: dict[str, Any]) -> Iterator[list[str]]:
    known = result["in_tree_clocks"]
    yield [
        result["call"], f"{result['columns']:,}", result["values"], "", "",
        f"{result['barriers']:g}",
        f"{result['clocks']:,}", f"{known:,}" if known else "",
        f"{result['clocks'] / known:.2f}" if known else "",
    ]  # fmt: skip
    for line in result["launches"]:
        yield [
            f"  {line['kernel']}", "", "", f"{line['grid']} x {line['threads']}",
            f"{line['wave_instructions']:,}", f"{line['barriers']:g}", f"{line['clocks']:,}",
            "", "",
        ]  # fmt: skip


HEADER = [
    "call", "columns", "values", "grid", "instructions", "barriers", "clocks", "in-tree", "ratio",
]  # fmt: skip


def _show(text: str) -> None:
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """Print the table; return 1 when nothing can be executed here or a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m dsv41topk bench gfx942", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON lines; - prints")
    parser.add_argument("--only", default="", help="lines that contain this, e.g. '131072 masked'")
    parser.add_argument(
        "--real", default=str(REAL_TEXT), metavar="FILE.npz", help="a step whose logits to take"
    )
    parser.add_argument("--compute-units", type=int, default=304, help="304 (MI300X), 228, 80 ...")
    options = parser.parse_args(argv)
    reason = emulator.unavailable()
    if reason:
        print(f"nothing can be executed here: {reason}", file=sys.stderr)
        return 1
    from dsv41topk import _build, _runtime, kernels

    image = _build.code_object("gfx942").image or b""
    runtime = EmulatorRuntime(options.compute_units)
    runtime.measure = True
    _runtime.install_double(runtime.address, image)
    text = step.load(options.real)["logits"] if Path(options.real).is_file() else None
    results: list[dict[str, Any]] = []
    try:
        cases = [case for case in CASES if options.only in str(case)]
        show = _show if sys.stderr.isatty() else lambda _text: None
        results.extend(measure(kernels, runtime, cases, text, show))
    except Mismatch as error:
        print(error, file=sys.stderr)
        return 1
    if sys.stderr.isatty():
        _show("")
    print(table(HEADER, [row for result in results for row in _rows_of(result)]))
    if text is None:
        print(f"no rows of real text: there is no {options.real}")
    if options.json:
        write_json(options.json, results)
    return 0
