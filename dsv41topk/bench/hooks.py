# SPDX-License-Identifier: Apache-2.0
"""`python -m dsv41topk bench hooks`: host nanoseconds of the hooks, beside hooks in Python.

Both sides take the same torch tensors on the CPU, and launch nothing. The Python side
(`python_hooks.py`) makes the same checks, but for those on overlaps, alignment and lazily negated
tensors, which it leaves out. Turns are interleaved in one process, an empty loop is subtracted, and
the fastest turn counts: whatever else the machine does only adds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import dsv41topk
from dsv41topk import _runtime
from dsv41topk.bench.timing import machine, table, write_json

__all__ = ["main", "measure"]

ROWS, NEXT_N, WIDTH, SLOTS = 6, 6, 131_072, 2048

TARGETS = {
    "decode_top_k": 5.0,
    "candidate_top_k": 5.0,
    "select_candidates": 8.0,
    "skip_decode_fill": 3.0,
    "decode_top_k, refused": 3.0,
    "decode_top_k, closed": 3.0,
}
"""How many times faster than the hook in Python each should be."""

_Loop = Callable[[int], float]


def _loop(expression: str, names: dict[str, Any]) -> _Loop:
    """Return a function that evaluates an expression so often, and how many seconds it took.

    Names are local there, as they are to most callers: looking them up is not the hook's work.
    """
    text = f"""
def loop(count, {", ".join(f"{name}={name}" for name in names)}):
    start = clock()
    for _ in repeat(None, count):
        {expression}
    return clock() - start
"""
    scope = {"clock": time.perf_counter, "repeat": itertools.repeat, **names}
    exec(text, scope)
    loop: _Loop = scope["loop"]
    return loop


def _arguments() -> dict[str, Any]:
    import torch

    pages = WIDTH // 64
    return {
        "logits": torch.zeros(ROWS, WIDTH),
        "lens": torch.full((ROWS // NEXT_N,), WIDTH, dtype=torch.int32),
        "indices": torch.zeros(ROWS, 512, dtype=torch.int32),
        "candidates": torch.zeros(ROWS, SLOTS, dtype=torch.int32),
        "decode": SimpleNamespace(requires_padding=False),
        "q": torch.zeros(ROWS // NEXT_N, NEXT_N, 64, 128).to(torch.float8_e4m3fn),
        "cache": torch.zeros(pages, 64, 1, 132, dtype=torch.uint8),
        "weights": torch.zeros(ROWS, 64),
        "pages": torch.zeros(ROWS // NEXT_N, pages, dtype=torch.int32),
    }


CALLS = {
    "decode_top_k": "decode_top_k(logits, 6, lens, indices, 512)",
    "candidate_top_k": "candidate_top_k(logits, 6, lens, candidates, 8, indices, 512)",
    "candidate_logits_top_k": "candidate_logits_top_k(q, cache, weights, lens, pages, candidates, "
    "8, indices, 512, True, False)",
    "select_candidates": "select_candidates(logits, 6, lens, 8, candidates)",
    "skip_decode_fill": "skip_decode_fill(False, 6, 6, decode)",
    "decode_top_k, refused": "decode_top_k(logits, 6, lens, indices, 2048)",
}


def _loops(names: dict[str, Any], side: Any) -> dict[str, _Loop]:
    hooks = {name: getattr(side, name) for name in CALLS if "," not in name}
    return {case: _loop(call, names | hooks) for case, call in CALLS.items()}


def measure(seconds: float) -> Iterator[tuple[str, float, float]]:
    """Yield case, nanoseconds of ours, nanoseconds of Python."""
    from dsv41topk.bench import python_hooks

    names = _arguments()
    _runtime.watch_launches(skip=True)
    dsv41topk.enable()
    python_hooks.on = True
    if not _taken(names, python_hooks):
        raise RuntimeError("a hook declined a call that it must take")
    ours, theirs = _loops(names, dsv41topk), _loops(names, python_hooks)
    taken = _fastest({"": _loop("pass", {})} | _both(ours, theirs), seconds)
    dsv41topk.disable()
    python_hooks.on = False
    closed = {"decode_top_k": ours["decode_top_k"]}, {"decode_top_k": theirs["decode_top_k"]}
    shut = _fastest({"": _loop("pass", {})} | _both(*closed), seconds / len(CALLS))
    for case in CALLS:
        yield case, taken[f"ours {case}"] - taken[""], taken[f"python {case}"] - taken[""]
    case = "decode_top_k"
    yield f"{case}, closed", shut[f"ours {case}"] - shut[""], shut[f"python {case}"] - shut[""]


def _both(ours: dict[str, _Loop], theirs: dict[str, _Loop]) -> dict[str, _Loop]:
    pairs = {}
    for case in ours:
        pairs[f"ours {case}"] = ours[case]
        pairs[f"python {case}"] = theirs[case]
    return pairs


def _taken(names: dict[str, Any], python: Any) -> bool:
    answers = []
    for case, call in CALLS.items():
        for side in (dsv41topk, python):
            hook = {case.partition(",")[0]: getattr(side, case.partition(",")[0])}
            answers.append(eval(call, names | hook) is ("refused" not in case))
    return all(answers)


def _fastest(loops: dict[str, _Loop], seconds: float) -> dict[str, float]:
    """Return nanoseconds of one call: the fastest of many short turns."""
    count = 500
    best = dict.fromkeys(loops, float("inf"))
    end = time.perf_counter() + seconds
    turns = 0
    while turns < 20 or time.perf_counter() < end:
        for name, loop in loops.items():
            best[name] = min(best[name], loop(count) / count * 1e9)
        turns += 1
    return best


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what a hook costs the host, taken and refused, beside one in Python."""
    parser = argparse.ArgumentParser(prog="python -m dsv41topk bench hooks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="for all cases together (6)")
    parser.add_argument("--json", metavar="FILE", help="write the figures, to - for the terminal")
    arguments = parser.parse_args(argv)
    try:
        import torch
    except ImportError:
        print("bench hooks needs torch: the hooks in Python take its tensors", file=sys.stderr)
        return 2
    os.environ["DSV41TOPK_BACKEND"] = "cpu"
    _runtime.reset()
    if not dsv41topk.build():
        print(f"bench hooks: {dsv41topk.build_error()}", file=sys.stderr)
        return 1
    try:
        measured = list(measure(arguments.seconds))
    finally:
        _runtime.reset()
    rows = [
        (case, f"{ours:.0f}", f"{python:.0f}", f"{python / ours:.1f}", str(TARGETS.get(case, "")))
        for case, ours, python in measured
    ]
    if arguments.json:
        cases = [
            {"case": case, "ns": ours, "python_ns": python, "ratio": python / ours}
            for case, ours, python in measured
        ]
        write_json(
            arguments.json, {"machine": machine(), "torch": torch.__version__, "cases": cases}
        )
    if arguments.json != "-":
        print(table(("hook", "ns", "Python ns", "times faster", "target"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
