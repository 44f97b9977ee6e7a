# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv41topk bench gpu``: the GPU kernels beside torch.topk and vLLM's own operators.

A figure is the time of one call inside a CUDA graph of many, each over its own rows, after a pass
over a buffer that is several times the cache: no call finds its rows there. Shapes are rows x live
length, in buffers as wide as the length (tight) and 2^20 wide (wide, as a server has them), with
normal and with masked values. Ours is checked entry by entry against a stable sort before it is
timed; a peer whose values are not the 512 largest is shown as wrong and not counted.

Peers get the live length on the host, which a captured server graph does not have: torch.topk runs
on the live columns alone, and persistent_topk and cooperative_topk are told the longest row.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

import dsv41topk
from dsv41topk.bench import baselines
from dsv41topk.bench.timing import geometric_mean, machine, table, write_json

TOP_K = 512
BLOCK_SIZE = 8
SLOTS = 2048
WIDE = 1 << 20
ROWS = (6, 48, 1, 18, 128)
LENGTHS = (2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 300_000, 524_288, 1 << 20)
CANDIDATE_LENGTHS = (32_768, 131_072, 1 << 20)
FLUSH_BYTES = 256 << 20
WARM_UPS = 4000
"""Passes over the flush buffer: a third of a second, in which an idle GPU raises its clocks."""
MOST_CALLS = 32
"""In one graph; fewer where their rows are more than 1 GiB together."""
MOST_FAULTS = 4
"""A device that faulted once answers nothing any more."""

Call = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Shape:
    """One line of a table."""

    call: str
    rows: int
    live: int
    width: int
    values: str

    def __str__(self) -> str:
        return f"{self.call} {self.rows} x {self.live} in {self.width}, {self.values}"


@dataclasses.dataclass
class Figure:
    """Microseconds a call of ours and of the peers; None: wrong, refused or not asked."""

    shape: Shape
    ours: float
    peers: dict[str, float | None]

    @property
    def best(self) -> float | None:
        """Return the time of the fastest peer that was right."""
        times = [us for us in self.peers.values() if us is not None]
        return min(times) if times else None

    @property
    def ratio(self) -> float | None:
        """Return our time over the best peer's: under 1 is faster."""
        return None if self.best is None else self.ours / self.best


class Bench:
    """Pools of rows, and the stopwatch."""

    def __init__(self, pool_elements: int, repeats: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.repeats = repeats
        self.stream = torch.cuda.Stream()
        self.flush = torch.ones(FLUSH_BYTES // 4, device="cuda")
        self.sink = torch.zeros((), device="cuda")
        normal = torch.randn(pool_elements, device="cuda")
        masked = normal.clone()
        for part in masked.view(-1, BLOCK_SIZE).split(1 << 26):
            dead = torch.rand(len(part), 1, device="cuda") < 7 / 8
            part.masked_fill_(dead, float("-inf"))
        self.pools = {"normal": normal, "masked": masked}
        for _ in range(WARM_UPS):
            torch.sum(self.flush, 0, out=self.sink)
        torch.cuda.synchronize()

    def sets(self, shape: Shape) -> torch.Tensor:
        """Return distinct row sets of a shape, float32 [calls, rows, width]."""
        pool = self.pools[shape.values]
        size = shape.rows * shape.width
        live_bytes = 4 * shape.rows * shape.live
        calls = min(MOST_CALLS, max(2, (1 << 30) // live_bytes), len(pool) // size)
        if calls == 0:
            raise MemoryError(f"{shape}: {size} elements, the pool has {len(pool)}")
        return pool[: calls * size].view(calls, shape.rows, shape.width)

    def microseconds(self, calls: Sequence[Call]) -> float:
        """Return the median time of one call over replays of a graph of all."""
        with torch.cuda.stream(self.stream):
            calls[0]()
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            try:
                for call in calls:
                    call()
            finally:
                graph.capture_end()
            events = []
            for _ in range(self.repeats + 1):
                torch.sum(self.flush, 0, out=self.sink)
                events.append([torch.cuda.Event(enable_timing=True) for _ in range(2)])
                events[-1][0].record()
                graph.replay()
                events[-1][1].record()
            self.stream.synchronize()
        times = [start.elapsed_time(end) * 1e3 / len(calls) for start, end in events[1:]]
        median: float = statistics.median(times)
        return median

    def eager(self, call: Call) -> None:
        """Make a call once, and wait for it."""
        with torch.cuda.stream(self.stream):
            call()
        self.stream.synchronize()


# ---- right or wrong ------------------------------------------------------------------------------


def _best_columns(rows: torch.Tensor) -> torch.Tensor:
    """Return the 512 entries of rows without NaN, by a stable sort."""
    order = torch.sort(rows, dim=1, descending=True, stable=True).indices[:, :TOP_K]
    return torch.sort(order, dim=1).values.int()


def _demand(got: torch.Tensor, right: torch.Tensor, what: object) -> None:
    if not torch.equal(got, right):
        wrong = torch.nonzero(got != right)
        r, place = wrong[0].tolist()
        raise AssertionError(
            f"{what}: {len(wrong)} wrong entries, first row {r}, entry {place}: "
            f"{got[r, place].item()}, right is {right[r, place].item()}"
        )


def _as_good(rows: torch.Tensor, got: torch.Tensor, right: torch.Tensor) -> bool:
    """Tell whether a peer's columns hold the same values as the right ones, each column once."""
    inside = (got >= 0) & (got < rows.shape[1])
    values = rows.gather(1, got.long().clamp(0, rows.shape[1] - 1))
    values = torch.where(inside, values, float("-inf")).sort(dim=1).values
    ordered = got.sort(dim=1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    same = torch.equal(values, rows.gather(1, right.long()).sort(dim=1).values)
    return same and not bool(twice.any())


# ---- peers of the dense top-k --------------------------------------------------------------------


class VllmOperators:
    """vLLM's three CUDA operators, registered by its own library."""

    names: tuple[str, ...] = ("decode", "persistent", "cooperative")

    def __init__(self, library: str) -> None:
        ctypes.CDLL(library, mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
        self._ops = torch.ops._C
        self._workspace = torch.zeros(4 << 20, dtype=torch.uint8, device="cuda")
        self.notes: set[str] = set()

    def call(
        self, name: str, rows: torch.Tensor, lens: torch.Tensor, longest: int, out: torch.Tensor
    ) -> Call | None:
        """Return the call of an operator, or None where it does not take the shape."""
        if name == "decode":
            stride, count = rows.stride(0), len(rows)
            return lambda: self._ops.top_k_per_row_decode(
                rows, 1, lens, out, count, stride, 1, TOP_K
            )
        if name == "cooperative" and len(rows) > 64:
            return None
        operator = getattr(self._ops, f"{name}_topk")
        return lambda: operator(rows, lens, out, self._workspace, TOP_K, longest)


def measure_top_k(bench: Bench, shape: Shape, vllm: VllmOperators | None) -> Figure:
    """Check and time top_k_per_row_decode_512 and its peers on one shape."""
    sets = bench.sets(shape)
    count = len(sets)
    lens = torch.full((shape.rows,), shape.live, dtype=torch.int32, device="cuda")
    two_d = lens[:, None].contiguous()
    out = torch.full((count, shape.rows, TOP_K), -7, dtype=torch.int32, device="cuda")

    def ours(i: int) -> Call:
        return lambda: dsv41topk.top_k_per_row_decode_512(sets[i], 1, two_d, out[i])

    time_of_ours = bench.microseconds([ours(i) for i in range(count)])
    live = sets[..., : shape.live]
    right = _best_columns(live[0])
    _demand(out[0], right, shape)
    _demand(out[-1], _best_columns(live[-1]), shape)
    peers: dict[str, float | None] = {
        "torch": bench.microseconds([functools.partial(baselines.top_k, x) for x in live])
    }
    for name in vllm.names if vllm else ():
        assert vllm is not None
        out.fill_(-1)
        peers[name] = None
        calls = [vllm.call(name, sets[i], lens, shape.live, out[i]) for i in range(count)]
        taken = [call for call in calls if call is not None]
        if not taken:
            continue
        try:
            bench.eager(taken[0])
            if _as_good(live[0], out[0], right):
                peers[name] = bench.microseconds(taken)
            else:
                vllm.notes.add(f"{name}: wrong on {shape}")
        except RuntimeError as error:
            vllm.notes.add(f"{name}: {str(error).splitlines()[0]}")
    return Figure(shape, time_of_ours, peers)


# ---- the other calls -----------------------------------------------------------------------------


def _some_candidates(rows: int, live: int) -> torch.Tensor:
    ids = [torch.randperm(live // BLOCK_SIZE, device="cuda")[:SLOTS] for _ in range(rows)]
    return torch.stack(ids).sort(dim=1).values.int()


def measure_candidate_top_k(bench: Bench, shape: Shape) -> Figure:
    """Check and time candidate_top_k_512 beside a gather and torch.topk."""
    sets = bench.sets(shape)
    lens = torch.full((shape.rows, 1), shape.live, dtype=torch.int32, device="cuda")
    candidates = _some_candidates(shape.rows, shape.live)
    out = torch.full((len(sets), shape.rows, TOP_K), -7, dtype=torch.int32, device="cuda")

    def ours(i: int) -> Call:
        return lambda: dsv41topk.candidate_top_k_512(
            sets[i], 1, lens, candidates, BLOCK_SIZE, out[i]
        )

    time_of_ours = bench.microseconds([ours(i) for i in range(len(sets))])
    columns = baselines.candidate_columns(candidates, BLOCK_SIZE)
    right = columns.gather(1, _best_columns(sets[0].gather(1, columns)).long()).int()
    _demand(out[0], right, shape)
    theirs = [functools.partial(baselines.candidate_top_k, x, candidates, BLOCK_SIZE) for x in sets]
    return Figure(shape, time_of_ours, {"torch": bench.microseconds(theirs)})


def measure_compact_top_k(bench: Bench, shape: Shape) -> Figure:
    """Check and time compact_top_k_512_regs beside torch.topk and a gather."""
    sets = bench.sets(shape)
    lens = torch.full((shape.rows, 1), 8 * shape.live, dtype=torch.int32, device="cuda")
    ids = torch.arange(0, 3 * shape.live, 3, dtype=torch.int32, device="cuda")
    ids = ids.expand(shape.rows, -1).contiguous()
    out = torch.full((len(sets), shape.rows, TOP_K), -7, dtype=torch.int32, device="cuda")

    def ours(i: int) -> Call:
        return lambda: dsv41topk.compact_top_k_512_regs(sets[i], ids, lens, 1, out[i])

    time_of_ours = bench.microseconds([ours(i) for i in range(len(sets))])
    _demand(out[0], 3 * _best_columns(sets[0]), shape)
    theirs = [functools.partial(baselines.compact_top_k, x, ids) for x in sets]
    return Figure(shape, time_of_ours, {"torch": bench.microseconds(theirs)})


def measure_candidate_blocks(bench: Bench, shape: Shape) -> Figure:
    """Check and time candidate_blocks beside maxima and torch.topk."""
    sets = bench.sets(shape)
    visible = torch.full((shape.rows,), shape.live, dtype=torch.int32, device="cuda")
    out = torch.full((len(sets), shape.rows, SLOTS), -7, dtype=torch.int32, device="cuda")

    def ours(i: int) -> Call:
        return lambda: dsv41topk.candidate_blocks(sets[i], visible, 1, BLOCK_SIZE, out[i])

    time_of_ours = bench.microseconds([ours(i) for i in range(len(sets))])
    scores = sets[0].view(shape.rows, -1, BLOCK_SIZE).amax(2)
    scores[:, -1] = float("inf")
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :SLOTS]
    _demand(out[0], order.sort(dim=1).values.int(), shape)
    theirs = [functools.partial(baselines.candidate_blocks, x, BLOCK_SIZE, SLOTS) for x in sets]
    return Figure(shape, time_of_ours, {"torch": bench.microseconds(theirs)})


def shapes(quick: bool) -> Iterator[Shape]:
    """Yield what to measure, the most telling first."""
    rows = ROWS[:2] if quick else ROWS
    lengths = (4096, 16_384, 131_072, 1 << 20) if quick else LENGTHS
    others = ROWS[:1] if quick else ROWS
    for count, live in itertools.product(
        others, CANDIDATE_LENGTHS[1:] if quick else CANDIDATE_LENGTHS
    ):
        yield Shape("candidate_top_k_512", count, live, WIDE, "normal")
        yield Shape("candidate_blocks", count, live, live, "normal")
    for count in others:
        yield Shape("compact_top_k_512_regs", count, 16_384, 16_384, "normal")
    for count, live in itertools.product(rows, lengths):
        for width in dict.fromkeys((live, WIDE)):
            for values in ("normal", "masked"):
                yield Shape("top_k_per_row_decode_512", count, live, width, values)


MEASURE = {
    "candidate_top_k_512": measure_candidate_top_k,
    "compact_top_k_512_regs": measure_compact_top_k,
    "candidate_blocks": measure_candidate_blocks,
}


# ---- what is printed -----------------------------------------------------------------------------


def _cell(us: float | None) -> str:
    return "-" if us is None else f"{us:.1f}"


def print_figures(figures: Sequence[Figure], peers: Sequence[str]) -> None:
    """Print a line per shape."""
    lines = []
    for f in figures:
        s = f.shape
        width = "wide" if s.width > s.live else "tight"
        times = [_cell(f.peers.get(name)) for name in peers]
        ratio = "-" if f.ratio is None else f"{f.ratio:.2f}"
        lines.append((s.call, s.values, width, s.rows, f"{s.live:,}", _cell(f.ours), *times, ratio))
    header = ["call", "values", "buffer", "rows", "columns", "ours", *peers, "ours/best"]
    print(table(header, lines))


def print_summary(figures: Sequence[Figure]) -> None:
    """Print geometric means of ours / best peer, and where we lose most."""
    dense = [f for f in figures if f.shape.call == "top_k_per_row_decode_512" and f.ratio]
    groups: dict[str, list[float]] = {}
    for f in figures:
        if f.ratio and f not in dense:
            groups.setdefault(f.shape.call, []).append(f.ratio)
    for f in dense:
        wide = "wide" if f.shape.width > f.shape.live else "tight"
        for key in ("dense, all", f.shape.values, wide, f"{f.shape.rows} rows"):
            groups.setdefault(key, []).append(f.ratio or 0.0)
    for f in dense:
        groups.setdefault(f"{f.shape.live:,} columns", []).append(f.ratio or 0.0)
    print(
        "\ngeometric mean of ours / best peer (under 1 is faster), and on how many shapes we lose"
    )
    lines = [
        (key, len(ratios), f"{geometric_mean(ratios):.3f}", sum(r > 1 for r in ratios))
        for key, ratios in groups.items()
    ]
    print(table(["shapes", "count", "mean", "slower"], lines))
    worst = sorted(dense, key=lambda f: -(f.ratio or 0.0))[:8]
    if worst:
        print("\nworst:")
        for f in worst:
            print(f"  {f.ratio:.2f}  {f.ours:.1f} us beside {f.best:.1f}: {f.shape}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when every result of ours was right."""
    parser = argparse.ArgumentParser(
        prog="python -m dsv41topk bench gpu",
        description="GPU kernels beside torch.topk and vLLM's operators",
    )
    parser.add_argument("--quick", action="store_true", help="a few shapes, under a minute")
    parser.add_argument("--vllm-lib", metavar="FILE", help="vLLM's library of CUDA operators")
    parser.add_argument("--without", action="append", default=[], choices=VllmOperators.names)
    parser.add_argument("--seconds", type=float, default=240, help="stop after these (240)")
    parser.add_argument("--repeats", type=int, default=5, help="replays that count (5)")
    parser.add_argument("--pool-gib", type=float, default=8, help="memory of each pool of rows (8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.error("no GPU")

    start = time.perf_counter()
    about = machine() | {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
    vllm = VllmOperators(options.vllm_lib) if options.vllm_lib else None
    if vllm:
        vllm.names = tuple(n for n in vllm.names if n not in options.without)
    bench = Bench(int(options.pool_gib * (1 << 18)) << 10, options.repeats, options.seed)
    figures: list[Figure] = []
    faults: list[str] = []
    todo = list(shapes(options.quick))
    try:
        for done, shape in enumerate(todo):
            if time.perf_counter() - start > options.seconds or len(faults) > MOST_FAULTS:
                print(f"{len(todo) - done} of {len(todo)} shapes left out")
                break
            measure = MEASURE.get(shape.call)
            try:
                figures.append(
                    measure(bench, shape) if measure else measure_top_k(bench, shape, vllm)
                )
            except (AssertionError, RuntimeError) as error:
                faults.append(f"{shape}: {error}")
            if done % 16 == 15:
                torch.cuda.empty_cache()  # what graphs that are gone held
    except KeyboardInterrupt:
        print("interrupted")
    if options.json:
        rows = [
            dataclasses.asdict(f.shape) | {"ours_us": f.ours, "peers_us": f.peers, "ratio": f.ratio}
            for f in figures
        ]
        write_json(options.json, {"machine": about, "faults": faults, "figures": rows})
    print(f"{about['gpu']}, torch {about['torch']}; microseconds a call, ours checked first\n")
    print_figures(figures, ["torch", *(vllm.names if vllm else ())])
    print_summary(figures)
    for note in sorted(vllm.notes)[:10] if vllm else ():
        print(f"peer {note}")
    for fault in faults:
        print(f"WRONG {fault[:400]}")
    print(f"\n{len(figures)} of {len(todo)} shapes in {time.perf_counter() - start:.0f} s")
    return 1 if faults or not figures else 0


if __name__ == "__main__":
    raise SystemExit(main())
