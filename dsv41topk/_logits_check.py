# SPDX-License-Identifier: Apache-2.0
"""The check in front of `candidate_logits_top_k`: do our logits have the dense kernel's bits.

Both kernels are compiled code, and the compiler decides which multiply-add pairs of the sum over
heads are rounded once and which twice. So the check runs both on the same small random cache and
compares bits. It first reads off the dense kernel's own results which pairs it fuses: in request
0 the dot products are exact and row ``j`` gives weight to the first ``j + 2`` terms of one lane
only, so each row adds one known term to the row before it, and the rounding of that one addition
shows whether it was fused. A kernel of ours compiled to that pattern is tried first, then AITER's
own expression with the compiler's contraction on and off.

Nothing here knows a GPU, Triton or AITER: the runner that is passed in runs the kernels, on the
device, in an emulator or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dsv41topk._cache import DIM as HEAD_SIZE
from dsv41topk._cache import decode_fp8

PLAIN = -1  # instead of a pattern: the sum as AITER's source spells it, up to the compiler

_CHUNK = 256  # columns of a chunk of the dense kernel
# 22 chunks and one of 45 columns. With its ten splits (one compute unit claimed) the dense kernel
# then runs all four copies of its inner code: first half, both halves of the loop, last half.
_COLUMNS = 22 * _CHUNK + 45
_FP8 = "e4m3fnuz"  # of gfx942
_NAN_BYTE = 0x80  # its only NaN


@dataclass(frozen=True)
class CheckInputs:
    """One comparison: two requests of heads / 4 rows each, every column a candidate.

    Attributes
    ----------
    q : uint8 [2, next_n, heads, 128], e4m3fnuz bytes
    kv_cache : uint8 [pages, page_size, 1, 132]
    weights : float32 [2 * next_n, heads]
    seq_lens : int32 [2]
    row_ends : int32 [2, next_n], the same rows' ends, some of them shortened
    block_table : int32 [2, columns of pages]
    candidates : int32 [2 * next_n, slots], with empty slots between
    exact_scores : float32 [columns, heads / 4], relu(dot * scale) of request 0 and the heads whose
        terms one lane adds up, in that order
    """

    q: NDArray[np.uint8]
    kv_cache: NDArray[np.uint8]
    weights: NDArray[np.float32]
    seq_lens: NDArray[np.int32]
    row_ends: NDArray[np.int32]
    block_table: NDArray[np.int32]
    candidates: NDArray[np.int32]
    exact_scores: NDArray[np.float32]
    block_size: int

    @property
    def width(self) -> int:
        """Columns of the dense logits: the longest row, to a whole chunk."""
        return -(-int(self.seq_lens.max()) // _CHUNK) * _CHUNK

    def expected_ids(self, ends_per_row: bool) -> NDArray[np.int32]:
        """Column of every slot, -1 where it is not live: int32 [rows, slots * block_size]."""
        requests, next_n = self.row_ends.shape
        if ends_per_row:
            ends = self.row_ends.reshape(-1)
        else:
            drafts = np.arange(next_n, dtype=np.int32)
            ends = (self.seq_lens[:, None] - next_n + drafts + 1).reshape(-1)
        offsets = np.arange(self.block_size, dtype=np.int32)
        columns = self.candidates[:, :, None] * self.block_size + offsets
        live = (self.candidates[:, :, None] >= 0) & (columns < ends[:, None, None])
        ids: NDArray[np.int32] = np.where(live, columns, -1).reshape(requests * next_n, -1)
        return ids


def make_inputs(heads: int, page_size: int, block_size: int, seed: int = 1) -> CheckInputs:
    """Random inputs whose first request has exact dot products."""
    rng = np.random.default_rng(seed)
    next_n = heads // 4
    pages_per_request = -(-_COLUMNS // page_size)
    pages = 2 * pages_per_request + 1
    order = rng.permutation(pages)[: 2 * pages_per_request].astype(np.int32)
    block_table = order.reshape(2, pages_per_request)

    # Request 0: the e4m3fnuz bytes of 0, 1, 1.5, 2, 3, -1, -2 and -3, whose 128 products add up
    # exactly in float32 in any order. Request 1: any finite bytes.
    small = np.array([0x00, 0x40, 0x44, 0x48, 0x4C, 0xC0, 0xC8, 0xCC], np.uint8)
    cache = np.zeros((pages, page_size * (HEAD_SIZE + 4)), np.uint8)
    keys = cache[:, : page_size * HEAD_SIZE]
    keys[block_table[0]] = rng.choice(small, size=(pages_per_request, keys.shape[1]))
    keys[block_table[1]] = _finite_bytes(rng, (pages_per_request, keys.shape[1]))
    scales = rng.uniform(0.5, 2.0, (pages, page_size)).astype(np.float32)
    cache[:, page_size * HEAD_SIZE :] = scales.view(np.uint8)

    q = np.empty((2, next_n, heads, HEAD_SIZE), np.uint8)
    q[0] = rng.choice(small, size=(heads, HEAD_SIZE))
    q[1] = _finite_bytes(rng, (next_n, heads, HEAD_SIZE))

    weights = rng.standard_normal((2 * next_n, heads)).astype(np.float32)
    # Registers 0 to 3 of a lane of the first quarter of the wave: heads 0 to 3 of each tile of 16.
    lane_heads = [tile * 16 + register for tile in range(heads // 16) for register in range(4)]
    for row in range(next_n - 1):
        terms = lane_heads[: row + 2]
        weights[row] = 0.0
        weights[row, terms] = rng.uniform(0.5, 2.0, len(terms)).astype(np.float32)
        weights[row, terms] *= np.where(rng.random(len(terms)) < 0.3, np.float32(-1), np.float32(1))
    for row in range(1, next_n - 1):
        weights[row, lane_heads[: row + 1]] = weights[row - 1, lane_heads[: row + 1]]

    seq_lens = np.array([_COLUMNS, _COLUMNS - 3 * page_size // 2], np.int32)
    drafts = np.arange(next_n, dtype=np.int32)
    row_ends = seq_lens[:, None] - next_n + drafts + 1
    row_ends[:, 1::2] -= rng.integers(0, 2 * block_size, row_ends[:, 1::2].shape).astype(np.int32)

    blocks = -(-_COLUMNS // block_size)
    candidates = np.stack([rng.permutation(blocks) for _ in range(2 * next_n)]).astype(np.int32)
    gaps = np.full((2 * next_n, 3), -1, np.int32)
    candidates = np.concatenate([candidates[:, :7], gaps, candidates[:, 7:]], axis=1)

    exact_q = decode_fp8(q[0, 0][lane_heads], _FP8).astype(np.float64)
    column = np.arange(_COLUMNS)
    exact_keys = decode_fp8(gather_keys(cache, block_table[0], page_size, column), _FP8)
    dots = (exact_keys.astype(np.float64) @ exact_q.T).astype(np.float32)
    column_scales = scales[block_table[0][column // page_size], column % page_size]
    return CheckInputs(
        q=q,
        kv_cache=cache.reshape(pages, page_size, 1, HEAD_SIZE + 4),
        weights=weights,
        seq_lens=seq_lens,
        row_ends=row_ends.astype(np.int32),
        block_table=block_table,
        candidates=candidates,
        exact_scores=np.maximum(dots * column_scales[:, None], np.float32(0)),
        block_size=block_size,
    )


def _finite_bytes(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    data = rng.integers(0, 256, shape, dtype=np.uint8)
    data[data == _NAN_BYTE] = 0
    return data


def gather_keys(
    flat_cache: NDArray[np.uint8],
    pages: NDArray[np.int32],
    page_size: int,
    column: NDArray[np.int64],
) -> NDArray[np.uint8]:
    """Key bytes of the columns: uint8 [columns, 128]."""
    key, dim = column % page_size, np.arange(HEAD_SIZE)
    offset = (key // 16 * (16 * HEAD_SIZE) + key % 16 * 16)[:, None] + dim // 16 * 256 + dim % 16
    gathered: NDArray[np.uint8] = flat_cache[pages[column // page_size][:, None], offset]
    return gathered


# ---- which terms the dense kernel fuses ----------------------------------------------------------


def fused_multiply_add(
    a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return a * b + c rounded once, to float32.

    The product is exact in float64. Its sum with c is rounded to odd there (the lost part is the
    two-sum's error), which keeps the second rounding, to float32, correct.
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    even = (total.view(np.int64) & 1) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    total = np.where((error != 0) & even, np.nextafter(total, toward), total)
    return total.astype(np.float32)


def read_pattern(inputs: CheckInputs, dense: NDArray[np.float32]) -> int | None:
    """Bits of `Variant.fused` that explain the dense kernel's results on request 0.

    Returns
    -------
    None when no fixed pattern does: terms added in another order, or a pattern that depends on the
    column.
    """
    terms = inputs.exact_scores.shape[1]
    end = int(inputs.seq_lens[0]) - terms + 1  # of row 0, the shortest
    score = inputs.exact_scores[:end]
    lane_heads = np.flatnonzero(inputs.weights[terms - 2])
    weight = inputs.weights[terms - 2, lane_heads]
    product = score * weight
    rows = dense[: terms - 1, :end]

    def added(term: int, total: NDArray[np.float32]) -> NDArray[np.float32]:
        factor = np.broadcast_to(weight[term], total.shape)
        return fused_multiply_add(score[:, term], factor, total)

    first_pair = {
        0: product[:, 0] + product[:, 1],
        1: added(0, product[:, 1]),
        2: added(1, product[:, 0]),
    }
    pattern = _only_match(first_pair, rows[0])
    for term in range(2, terms):
        if pattern is None:
            return None
        total = rows[term - 2]
        bit = _only_match({0: total + product[:, term], 1: added(term, total)}, rows[term - 1])
        pattern = None if bit is None else pattern | bit << term
    return pattern


def _only_match(forms: dict[int, NDArray[np.float32]], seen: NDArray[np.float32]) -> int | None:
    matching = [key for key, values in forms.items() if _same_bits(values, seen).all()]
    return matching[0] if len(matching) == 1 else None


def _same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = a.view(np.int32) == np.ascontiguousarray(b).view(np.int32)
    return same


# ---- the check -----------------------------------------------------------------------------------

Kernel = TypeVar("Kernel")


class Runner(Protocol[Kernel]):
    """What runs the kernels. The arrays that come back are the caller's to keep."""

    def dense(self, inputs: CheckInputs) -> NDArray[np.float32]:
        """Return the dense kernel's logits, float32 [rows, inputs.width]."""

    def compile(self, fused: int, fp_fusion: bool, ends_per_row: bool) -> Kernel:
        """Compile one variant of our kernel."""

    def candidate(
        self, kernel: Kernel, inputs: CheckInputs, ends_per_row: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Return our compact logits and ids, both [rows, slots * block_size]."""


@dataclass(frozen=True)
class Verdict(Generic[Kernel]):
    """Outcome of a check: the variant to serve with, and how far it is from the dense kernel.

    Attributes
    ----------
    fused, fp_fusion : the variant with the fewest differing logits
    kernels : the compiled kernels of that variant, by `ends_per_row`
    compared, differing : live logits that were compared, and those whose bits differ. A wrong id
        counts as a difference
    tried : one line a variant, for the log
    """

    fused: int
    fp_fusion: bool
    kernels: dict[bool, Kernel]
    compared: int
    differing: int
    tried: tuple[str, ...]

    @property
    def identical(self) -> bool:
        return self.differing == 0


def variants(pattern: int | None) -> Iterator[tuple[int, bool]]:
    """(fused, fp_fusion) in the order in which they are tried."""
    if pattern is not None:
        yield pattern, False
    yield PLAIN, True
    yield PLAIN, False


def variant_name(fused: int, fp_fusion: bool) -> str:
    if fused == PLAIN:
        return f"plain sum, enable_fp_fusion={fp_fusion}"
    return f"sum with fused terms {fused:#b}"


def run_check(runner: Runner[Kernel], inputs: CheckInputs) -> Verdict[Kernel]:
    """Compare variants with the dense kernel until one is identical, in both seq_lens forms."""
    dense = runner.dense(inputs)
    best: Verdict[Kernel] | None = None
    broken: Exception | None = None
    tried: list[str] = []
    for fused, fp_fusion in variants(read_pattern(inputs, dense)):
        compared = differing = 0
        try:
            kernels = {form: runner.compile(fused, fp_fusion, form) for form in (False, True)}
        except Exception as error:  # a Triton that lacks what one variant needs may know another
            broken = error
            tried.append(f"{variant_name(fused, fp_fusion)}: {type(error).__name__}")
            continue
        for ends_per_row, kernel in kernels.items():
            logits, ids = runner.candidate(kernel, inputs, ends_per_row)
            expected = inputs.expected_ids(ends_per_row)
            live = expected >= 0
            picked = np.take_along_axis(dense, np.maximum(expected, 0), axis=1)
            wanted = np.where(live, picked, np.float32(-np.inf))
            wrong = ~_same_bits(wanted, logits) | (ids != expected)
            compared += int(live.sum())
            differing += int(wrong.sum())
        tried.append(f"{variant_name(fused, fp_fusion)}: {differing} of {compared} differ")
        if best is None or differing < best.differing:
            best = Verdict(fused, fp_fusion, kernels, compared, differing, ())
        if differing == 0:
            break
    if best is None:
        raise RuntimeError("no variant of the kernel compiles") from broken
    return Verdict(
        best.fused, best.fp_fusion, best.kernels, best.compared, best.differing, tuple(tried)
    )
