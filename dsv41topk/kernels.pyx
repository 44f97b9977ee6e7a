# SPDX-License-Identifier: Apache-2.0
"""The kernels as calls: they run where their tensors are, and say in words what they cannot take.

What each computes, to the last tie and NaN, is the function of its name in reference.py.
"""

from dsv41topk._abi cimport (
    Dsv41CandidateBlocksArgs,
    Dsv41CandidateLogitsArgs,
    Dsv41CandidateTopKArgs,
    Dsv41CompactTopKArgs,
    Dsv41Failure,
    Dsv41TopKArgs,
)
from dsv41topk._bind cimport (
    bind_candidate_blocks,
    bind_candidate_logits,
    bind_candidate_top_k,
    bind_compact_top_k,
    bind_top_k,
)
from dsv41topk._bind cimport MAX_BLOCKS as _MAX_BLOCKS
from dsv41topk._bind cimport MIN_CHUNK as _MIN_CHUNK
from dsv41topk._errors cimport (
    ACCEPTED,
    LATER_LAUNCH_FAILED,
    LAUNCH_FAILED,
    NO_LOGITS_KERNEL,
    NOT_DURING_CAPTURE,
    exception,
)
from dsv41topk._runtime cimport (
    CANDIDATE_BLOCKS,
    CANDIDATE_TOP_K_512,
    COMPACT_TOP_K,
    TOP_K,
    Launcher,
    launch_exception,
    logits_exception,
    run,
    run_candidate_logits,
)
from dsv41topk._tensor cimport Call, begin, finish

MAX_BLOCKS = _MAX_BLOCKS
MIN_CHUNK = _MIN_CHUNK


cdef int require(str call_name, int answer, Call* call, const Dsv41Failure* failure) except -1:
    """Raise what an answer means."""
    if answer == ACCEPTED:
        return 0
    if answer == LAUNCH_FAILED or answer == LATER_LAUNCH_FAILED:
        raise launch_exception(call_name, failure)
    if answer == NO_LOGITS_KERNEL or answer == NOT_DURING_CAPTURE:
        raise logits_exception(call_name, answer, call)
    raise exception(call_name, answer, call)


cdef inline int launch(
    str call_name, int bound, Launcher launcher, const void* args, Call* call
) except -1:
    """Run a call whose arguments were bound; raise what went wrong with it or with them."""
    cdef Dsv41Failure failure
    cdef int answer = run(launcher, args, call, &failure) if bound == ACCEPTED else bound
    return require(call_name, answer, call, &failure)


def top_k_per_row_decode_512(
    object logits, object next_n, object seq_lens, object indices, object max_blocks=_MAX_BLOCKS,
    object min_chunk=_MIN_CHUNK, object register_select=True
):
    """Write the columns of each row's 512 largest live logits.

    Parameters
    ----------
    logits : float32 [rows, width], unit column stride
    next_n : int
        Rows per request, at least 1.
    seq_lens : int32 [requests, next_n] or [requests], contiguous
        An end for each row, or a length for each request.
    indices : int32 [>= rows, >= 512], unit column stride
        Its first 512 columns are written in every row: columns ascending, then -1.
    max_blocks : int
        The most chunks that the histogram select splits a row into.
    min_chunk : int
        Live logits of a chunk, at least.
    register_select : bool
        False: every row takes the histogram select. The result is the same.

    Raises
    ------
    TypeError, ValueError, BufferError
        An argument that the call cannot take.
    BuildError
        No kernels for the tensors' device.
    LaunchError
        The GPU's runtime refused a launch.
    """
    cdef Call call
    cdef Dsv41TopKArgs args
    cdef int answer
    if max_blocks is None:
        raise TypeError("top_k_per_row_decode_512: max_blocks must be an integer, got None")
    begin(&call, 0)
    try:
        answer = bind_top_k(
            logits, next_n, seq_lens, indices, max_blocks, min_chunk, register_select, &args, &call
        )
        launch("top_k_per_row_decode_512", answer, TOP_K, &args, &call)
    finally:
        finish(&call)


def candidate_top_k_512(
    object logits, object next_n, object seq_lens, object candidates, object block_size,
    object indices
):
    """Write the columns of each row's 512 largest live logits among its candidate blocks.

    Parameters
    ----------
    logits : float32 [rows, width], unit column stride
    next_n : int
        Rows per request, at least 1.
    seq_lens : int32 [requests, next_n] or [requests], contiguous
        An end for each row, or a length for each request.
    candidates : int32 [>= rows, slots], unit column stride
        Block ids; those outside the row are empty slots.
    block_size : int
        Columns of a block, at least 1.
    indices : int32 [>= rows, >= 512], unit column stride
        Its first 512 columns are written in every row.

    Raises
    ------
    TypeError, ValueError, BufferError
        An argument that the call cannot take.
    BuildError
        No kernels for the tensors' device.
    LaunchError
        The GPU's runtime refused a launch.
    """
    cdef Call call
    cdef Dsv41CandidateTopKArgs args
    cdef int answer
    begin(&call, 0)
    try:
        answer = bind_candidate_top_k(
            logits, next_n, seq_lens, candidates, block_size, indices, &args, &call
        )
        launch("candidate_top_k_512", answer, CANDIDATE_TOP_K_512, &args, &call)
    finally:
        finish(&call)


cdef int compact_top_k(
    str call_name, object compact_logits, object compact_ids, object seq_lens, object next_n,
    object indices, bint register_select
) except -1:
    cdef Call call
    cdef Dsv41CompactTopKArgs args
    cdef int answer
    begin(&call, 0)
    try:
        answer = bind_compact_top_k(
            compact_logits, compact_ids, seq_lens, next_n, indices, register_select, &args, &call
        )
        launch(call_name, answer, COMPACT_TOP_K, &args, &call)
    finally:
        finish(&call)
    return 0


def compact_top_k_512(
    object compact_logits, object compact_ids, object seq_lens, object next_n, object indices
):
    """Write the ids of each row's 512 largest gathered logits.

    Parameters
    ----------
    compact_logits : float32 [rows, n], contiguous, n > 512
        -inf where a slot is not live.
    compact_ids : int32 [rows, n], contiguous
        -1 where a slot is not live.
    seq_lens : int32 [requests, next_n] or [requests], contiguous
        An end for each row, or a length for each request.
    next_n : int
        Rows per request, at least 1.
    indices : int32 [>= rows, >= 512], unit column stride
        Its first 512 columns are written in every row.

    Raises
    ------
    TypeError, ValueError, BufferError
        An argument that the call cannot take.
    BuildError
        No kernels for the tensors' device.
    LaunchError
        The GPU's runtime refused a launch.
    """
    compact_top_k(
        "compact_top_k_512", compact_logits, compact_ids, seq_lens, next_n, indices, False
    )


def compact_top_k_512_regs(
    object compact_logits, object compact_ids, object seq_lens, object next_n, object indices
):
    """Do as `compact_top_k_512`, with the row in registers.

    Parameters
    ----------
    compact_logits : float32 [rows, n], contiguous, n > 512
        n is a multiple of 4 and at most 32768. -inf where a slot is not live.
    compact_ids : int32 [rows, n], contiguous
        -1 where a slot is not live.
    seq_lens : int32 [requests, next_n] or [requests], contiguous
        An end for each row, or a length for each request.
    next_n : int
        Rows per request, at least 1.
    indices : int32 [>= rows, >= 512], unit column stride
        Its first 512 columns are written in every row.

    Raises
    ------
    TypeError, ValueError, BufferError
        An argument that the call cannot take.
    BuildError
        No kernels for the tensors' device.
    LaunchError
        The GPU's runtime refused a launch.
    """
    compact_top_k(
        "compact_top_k_512_regs", compact_logits, compact_ids, seq_lens, next_n, indices, True
    )


def candidate_blocks(
    object logits, object visible, object row_repeat, object block_size, object out
):
    """Write the ids of each row's best blocks: those with the largest live logits.

    Parameters
    ----------
    logits : float32 [rows, width], unit column stride
    visible : int32 [ends], contiguous
        Row r ends at ``visible[r // row_repeat]``.
    row_repeat : int
        Rows that share an end, at least 1.
    block_size : int
        Columns of a block, at least 1.
    out : int32 [>= rows, slots], unit column stride
        Written in every row: ids ascending, then -1.

    Raises
    ------
    TypeError, ValueError, BufferError
        An argument that the call cannot take.
    BuildError
        No kernels for the tensors' device.
    LaunchError
        The GPU's runtime refused a launch.
    """
    cdef Call call
    cdef Dsv41CandidateBlocksArgs args
    cdef int answer
    begin(&call, 0)
    try:
        answer = bind_candidate_blocks(logits, visible, row_repeat, block_size, out, &args, &call)
        launch("candidate_blocks", answer, CANDIDATE_BLOCKS, &args, &call)
    finally:
        finish(&call)


def candidate_logits(
    object q, object kv_cache, object weights, object seq_lens, object next_n, object block_table,
    object candidates, object block_size, object out_logits, object out_ids
):
    """Write the logits and the columns of each row's candidate slots.

    Parameters
    ----------
    q : float8 [requests, next_n, 32 or 64, 128], contiguous
        e4m3fnuz on gfx942, e4m3fn on other GPUs, either on the CPU; the cache is of the same.
    kv_cache : uint8 [pages, page_size, 1, 132]
        Pages may lie apart; ``page_size`` is a multiple of 16.
    weights : float32 [>= rows, heads], unit column stride
    seq_lens : int32 [requests, next_n] or [requests], contiguous
        An end for each row, or a length for each request.
    next_n : int
        Rows per request, ``q.shape[1]``.
    block_table : int32 [>= requests, pages of a request], unit column stride
    candidates : int32 [>= rows, slots], unit column stride
    block_size : int
        Columns of a block, at least 1.
    out_logits : float32 [rows, slots * block_size], contiguous
        -inf where a slot is not live.
    out_ids : int32 [rows, slots * block_size], contiguous
        -1 where a slot is not live.

    Raises
    ------
    TypeError, ValueError, BufferError
        An argument that the call cannot take.
    BuildError
        No kernels for the tensors' device, or none whose bits are AITER's.
    LaunchError
        The GPU's runtime refused a launch.
    """
    cdef Call call
    cdef Dsv41CandidateLogitsArgs args
    cdef Dsv41Failure failure
    cdef int answer
    begin(&call, 0)
    try:
        answer = bind_candidate_logits(
            q, kv_cache, weights, seq_lens, next_n, block_table, candidates, block_size, out_logits,
            out_ids, &args, &call,
        )
        if answer == ACCEPTED:
            answer = run_candidate_logits(&args, &call, &failure)
        require("candidate_logits", answer, &call, &failure)
    finally:
        finish(&call)


__all__ = [
    "MAX_BLOCKS",
    "MIN_CHUNK",
    "candidate_blocks",
    "candidate_logits",
    "candidate_top_k_512",
    "compact_top_k_512",
    "compact_top_k_512_regs",
    "top_k_per_row_decode_512",
]
