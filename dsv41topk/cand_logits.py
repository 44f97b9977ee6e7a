# SPDX-License-Identifier: Apache-2.0
"""The Gluon kernel of ``candidate_logits`` on gfx942, and how it is compiled.

Mapping: workgroup (row, tile) scores 128 slots of a row with four waves of 64 lanes; a wave takes
32 slots, as two 16-column MFMA tiles, and all heads. One tile a workgroup, because a slot waits on
three dependent loads (block id, page, key) that only other workgroups hide. No LDS, no barrier:
every operand is loaded in the layout that the matrix instruction wants, and the queries of a row
(4 or 8 KiB) come out of the cache for all but the first wave.

The values must be those of AITER's dense kernel bit by bit, and three things decide the bits: the
order of the products inside the MFMA (same layouts, same operand width, accumulator zero), the
order of the sum over heads (first a lane's registers, then across lanes; AITER's own combine
function), and which multiply-add pairs of that sum the compiler contracted into one rounding. The
last is a property of the dense kernel's *compiled code*. So the sum over a lane's registers is
spelled out here, each term fused or separate as `Variant.fused` says, and the compiler is told to
contract nothing by itself. `_logits_check` reads the pattern off the dense kernel's own results.

What Triton 3.6.0 makes of AITER's kernel (checkout e4048607): with 32 heads nothing is fused. With
64 heads a lane's terms 0 to 5 are (term 0 onto the product of term 1), in all four copies of the
inner code, and 6 to 15 are not: LLVM's vectoriser pairs their products (v_pk_mul_f32) before the
additions could absorb them. Random logits with equal bits, both kernels' gfx942 code executed in
the emulator, pages of 64:

======  =======  ====================  =====================  =================
heads   logits   plain sum, fusion on  plain sum, fusion off  pattern read, off
======  =======  ====================  =====================  =================
32       44,620                25,479                 44,620             44,620
64       89,176                46,667                 67,941             89,176
======  =======  ====================  =====================  =================

Importing this module imports Triton and AITER: only the call that needs the kernel does.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, SIM108  (Gluon functions are traced, not called)
from __future__ import annotations

from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from dsv41topk._logits import SIGNATURE, TILE, WAVE_SIZE, WAVES
from dsv41topk._logits_check import HEAD_SIZE, PLAIN

# isort: split
# What of AITER this needs: the combine function of its sum over heads, and its answer to which
# form of MFMA layout this Triton takes. Shared, so that the two kernels cannot drift apart there.
from aiter.ops.triton.gluon.pa_mqa_logits import (
    _sum_combine,
    _Use_2d_instr_shape_mfma_layout,
)

_TARGET = GPUTarget("hip", "gfx942", WAVE_SIZE)

# Gluon functions see module globals only as constexpr.
_TILE = gl.constexpr(TILE)
_WAVES = gl.constexpr(WAVES)
_HEAD_SIZE = gl.constexpr(HEAD_SIZE)
_PLAIN = gl.constexpr(PLAIN)
_CDNA3 = gl.constexpr(3)
_KEY_GROUP = gl.constexpr(16)  # keys lie in groups of 16 within a page


class Variant(NamedTuple):
    """How the sum over heads is compiled.

    fused : bit i set = term i of a lane is added by a fused multiply-add. Of the first two terms
        one is a plain product: bit 0 fuses term 0 onto the product of term 1, bit 1 the other
        way round. ``PLAIN`` is the sum as AITER's source spells it.
    fp_fusion : the compiler's ``enable_fp_fusion``
    """

    fused: int
    fp_fusion: bool


@gluon.jit
def _registers_of_two_tiles(values):
    """[4, n, register / 2, register % 2, tile] -> the 8 terms that a lane holds, in order."""
    first, second = gl.split(values)
    first_even, first_odd = gl.split(first)
    second_even, second_odd = gl.split(second)
    a0, a2 = gl.split(first_even)
    a1, a3 = gl.split(first_odd)
    b0, b2 = gl.split(second_even)
    b1, b3 = gl.split(second_odd)
    return a0, a1, a2, a3, b0, b1, b2, b3


@gluon.jit
def _registers(values, Heads: gl.constexpr):
    """[Heads, TILE] -> the Heads / 4 terms of each lane, in register order, as [4, TILE] tensors.

    A 16 x 16 tile gives a lane the heads 4g .. 4g + 3 of its column, g the lane's quarter of the
    wave; tiles follow each other in head order.
    """
    if Heads == 32:
        tiles = gl.permute(gl.reshape(values, [2, 4, 2, 2, _TILE]), [1, 4, 2, 3, 0])
        return _registers_of_two_tiles(tiles)
    else:
        tiles = gl.permute(gl.reshape(values, [2, 2, 4, 2, 2, _TILE]), [2, 5, 3, 4, 1, 0])
        first, second = gl.split(tiles)
        return _registers_of_two_tiles(first) + _registers_of_two_tiles(second)


@gluon.jit
def _sum_over_heads(scores, weights, Heads: gl.constexpr, Fused: gl.constexpr):
    """sum_h scores[h, :] * weights[h, :], each term rounded once or twice as `Fused` says."""
    s = _registers(scores, Heads)
    w = _registers(weights, Heads)
    if Fused & 1:
        total = gl.fma(s[0], w[0], s[1] * w[1])
    elif Fused & 2:
        total = gl.fma(s[1], w[1], s[0] * w[0])
    else:
        total = s[0] * w[0] + s[1] * w[1]
    for i in gl.static_range(2, Heads // 4):
        if Fused >> i & 1:
            total = gl.fma(s[i], w[i], total)
        else:
            total = total + s[i] * w[i]
    return gl.reduce(total, axis=0, combine_fn=_sum_combine)


@gluon.jit
def candidate_logits_kernel(
    q,
    keys,
    page_stride_bytes,
    scales,
    pages,
    seq_lens,
    rows_per_request,
    block_table,
    block_table_stride,
    table_end,
    candidates,
    candidates_stride,
    weights,
    weights_stride,
    out_logits,
    out_ids,
    row_slots,
    Heads: gl.constexpr,
    PageSize: gl.constexpr,
    BlockSize: gl.constexpr,
    EndsPerRow: gl.constexpr,
    Fused: gl.constexpr,
):
    """Score 128 candidate slots of one row: `candidate_logits` of reference.py."""
    # Two 16-column tiles a wave side by side, as in the dense kernel's stages.
    if _Use_2d_instr_shape_mfma_layout:
        mfma_layout: gl.constexpr = gl.amd.AMDMFMALayout(
            version=_CDNA3,
            instr_shape=[16, 16],
            transposed=False,
            warps_per_cta=[1, _WAVES],
            tiles_per_warp=[1, _TILE // 16 // _WAVES],
        )
    else:
        mfma_layout: gl.constexpr = gl.amd.AMDMFMALayout(
            version=_CDNA3,
            instr_shape=[16, 16, 32],
            transposed=False,
            warps_per_cta=[1, _WAVES],
            tiles_per_warp=[1, _TILE // 16 // _WAVES],
        )
    q_layout: gl.constexpr = gl.DotOperandLayout(0, mfma_layout, k_width=16)
    key_layout: gl.constexpr = gl.DotOperandLayout(1, mfma_layout, k_width=16)
    slot_layout: gl.constexpr = gl.SliceLayout(0, key_layout)
    out_layout: gl.constexpr = gl.SliceLayout(0, mfma_layout)

    # int64: 3,072 rows of 16,384 slots pass 2^31 bytes, and so do rows of every other stride.
    row = gl.program_id(0)
    row64 = row.to(gl.int64)
    request = row // rows_per_request
    first_slot = gl.program_id(1) * _TILE

    slot = first_slot + gl.arange(0, _TILE, layout=slot_layout)
    list_index = (slot.to(gl.uint32) // BlockSize).to(gl.int32)
    block = gl.load(
        candidates + row64 * candidates_stride + list_index, mask=slot < row_slots, other=-1
    )
    if EndsPerRow:
        end = gl.load(seq_lens + row)
    else:
        # The floor of 0 before the subtraction: the smallest int32 must not wrap round to a length.
        end = gl.maximum(gl.load(seq_lens + request), 0)
        end = end - rows_per_request + row % rows_per_request + 1
    q_tile = gl.load(
        q
        + row64 * (Heads * _HEAD_SIZE)
        + gl.arange(0, Heads, layout=gl.SliceLayout(1, q_layout))[:, None] * _HEAD_SIZE
        + gl.arange(0, _HEAD_SIZE, layout=gl.SliceLayout(0, q_layout))[None, :]
    )
    head_weights = gl.load(
        weights
        + row64 * weights_stride
        + gl.arange(0, Heads, layout=gl.SliceLayout(1, mfma_layout))
    )

    # The block is compared before it is multiplied: a large id must not wrap round into the row.
    end = gl.minimum(end, table_end)
    column = block * BlockSize + (slot.to(gl.uint32) % BlockSize).to(gl.int32)
    live = (block >= 0) & (block <= (end - 1) // BlockSize) & (column < end)
    # A slot that is not live looks up column 0 and reads key 0 of page 0, which are there, and its
    # value is dropped below. Its own table entry may hold anything; a page id outside the cache
    # makes a slot not live.
    column = gl.where(live, column, 0)
    page_of_row = (column.to(gl.uint32) // PageSize).to(gl.int32)
    page = gl.load(block_table + request.to(gl.int64) * block_table_stride + page_of_row)
    live = live & (page >= 0) & (page < pages)
    # One multiplication of two 32-bit numbers to 64 bits: offsets pass 2^32 in a cache of 4 GiB.
    page_offset = gl.where(live, page, 0).to(gl.int64) * page_stride_bytes.to(gl.int64)
    key = (column.to(gl.uint32) % PageSize).to(gl.int32)
    dim = gl.arange(0, _HEAD_SIZE, layout=gl.SliceLayout(1, key_layout))
    key_offset = page_offset + (
        key // _KEY_GROUP * (_KEY_GROUP * _HEAD_SIZE) + key % _KEY_GROUP * 16
    )
    dim_offset = dim // 16 * (_KEY_GROUP * 16) + dim % 16
    key_tile = gl.load(keys + key_offset[None, :] + dim_offset[:, None])
    scale = gl.load(scales + (page_offset >> 2) + key)

    zero = gl.zeros((Heads, _TILE), dtype=gl.float32, layout=mfma_layout)
    scores = gl.amd.cdna3.mfma(q_tile, key_tile, zero)
    scores = scores * gl.convert_layout(scale, out_layout)[None, :]
    scores = gl.maximum(scores, 0.0)
    if Fused == _PLAIN:
        logits = gl.reduce(scores * head_weights[:, None], axis=0, combine_fn=_sum_combine)
    else:
        weight_tile, _ = gl.broadcast(head_weights[:, None], scores)
        logits = gl.convert_layout(_sum_over_heads(scores, weight_tile, Heads, Fused), out_layout)

    out_slot = first_slot + gl.arange(0, _TILE, layout=out_layout)
    out_live = gl.convert_layout(live, out_layout)
    out_column = gl.convert_layout(column, out_layout)
    written = out_slot < row_slots
    row_start = row64 * row_slots
    gl.store(
        out_logits + row_start + out_slot, gl.where(out_live, logits, float("-inf")), mask=written
    )
    gl.store(out_ids + row_start + out_slot, gl.where(out_live, out_column, -1), mask=written)


# 16-byte loads of queries and keys need these to be multiples of 16; csrc/logits.c checks them.
_DIVISIBLE_BY_16 = ("q", "keys", "page_stride_bytes")


def compile_kernel(
    heads: int, page_size: int, block_size: int, ends_per_row: bool, variant: Variant
) -> Any:
    """Compile one variant for gfx942. Needs no GPU.

    Returns
    -------
    Triton's compiled kernel; its ``asm`` holds the code object (``hsaco``) and the assembly text.
    """
    constants = {
        "Heads": heads,
        "PageSize": page_size,
        "BlockSize": block_size,
        "EndsPerRow": ends_per_row,
        "Fused": variant.fused,
    }
    names = list(SIGNATURE)
    source = GluonASTSource(
        fn=candidate_logits_kernel,
        signature=SIGNATURE | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in _DIVISIBLE_BY_16},
    )
    options = {"num_warps": WAVES, "enable_fp_fusion": variant.fp_fusion}
    return triton.compile(source, target=_TARGET, options=options)
