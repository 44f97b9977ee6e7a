# SPDX-License-Identifier: Apache-2.0
"""Measure calls beside each other, and write what was measured as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Sample:
    """Times of one call in microseconds: the median, and the 10th and 90th percentile around it."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, times: Iterable[float]) -> Sample:
        """Summarize a list of times in microseconds."""
        ordered = sorted(times)
        last = len(ordered) - 1
        low, high = ordered[round(last * 0.1)], ordered[round(last * 0.9)]
        return cls(statistics.median(ordered), low, high, len(ordered))

    def __str__(self) -> str:
        return f"{self.median:.1f} ({self.low:.1f}-{self.high:.1f})"


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 1.0,
    least: int = 3,
    most: int = 100,
) -> dict[str, Sample]:
    """Time calls in turns, so that whatever else the machine does falls on all of them.

    A turn is a pause, a call that is not counted and five that are. The pause is for thread pools:
    torch's threads spin for a while after a call, on the very cores that the next call would use.

    Parameters
    ----------
    calls : dict of str to callable
        Called without arguments.
    seconds : float
        When to stop, once every call has had `least` turns.

    Returns
    -------
    dict of str to Sample
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    turns = 0
    while turns < least or (turns < most and time.perf_counter() - start < seconds):
        for name, call in calls.items():
            time.sleep(0.02)
            call()
            for _ in range(5):
                before = time.perf_counter()
                call()
                times[name].append((time.perf_counter() - before) * 1e6)
        turns += 1
    return {name: Sample.of(taken) for name, taken in times.items()}


def geometric_mean(values: Iterable[float]) -> float:
    """Return the mean of positive numbers; NaN when there are none."""
    values = list(values)
    return statistics.geometric_mean(values) if values else float("nan")


def machine() -> dict[str, Any]:
    """Return what runs this, to stand beside every figure."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if "model name" in line
        ]
        cpu = models[0] if models else cpu
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu,
        "cpus": cpus,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return lines with aligned columns: text to the left, everything else to the right."""
    cells = [header, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    text = [bool(rows) and isinstance(rows[0][i], str) for i in range(len(header))]
    lines = []
    for row in cells:
        padded = (
            c.ljust(w) if left else c.rjust(w) for c, w, left in zip(row, widths, text, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def write_json(path: str, document: object) -> None:
    """Write to a file, or to standard output for `-`."""
    text = json.dumps(document, indent=1)
    if path == "-":
        sys.stdout.write(text + "\n")
    else:
        Path(path).write_text(text + "\n", encoding="utf-8")
