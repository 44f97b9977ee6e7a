# SPDX-License-Identifier: Apache-2.0
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The hooks in front of vLLM's decode path.

True: the whole result was enqueued on the caller's stream. False: nothing was written, and nothing
was enqueued; the caller runs its own op. They never raise.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t

from dsv41topk._runtime import build, build_error, disable, enable, enabled

from dsv41topk._abi cimport (
    DSV41_TOP_K,
    Dsv41CandidateBlocksArgs,
    Dsv41CandidateLogitsArgs,
    Dsv41CandidateTopKArgs,
    Dsv41CompactTopKArgs,
    Dsv41Failure,
    Dsv41TopKArgs,
)
from dsv41topk._bind cimport (
    bind_candidate_logits_top_k,
    bind_candidate_top_k,
    bind_count,
    bind_is,
    bind_select_candidates,
    bind_top_k,
)
from dsv41topk._errors cimport (
    ACCEPTED,
    LATER_LAUNCH_FAILED,
    LAUNCH_FAILED,
    NO_SCRATCH,
    NO_STREAM,
    REJECT_NO_DECODE,
    REJECT_OTHER_LOGITS,
    REJECT_PADDING,
    REJECT_PREFILL,
    REJECT_ROWS,
    REJECT_SLOTS,
    REJECT_TOP_K,
)
from dsv41topk._runtime cimport (
    CANDIDATE_BLOCKS,
    CANDIDATE_LOGITS_TOP_K,
    CANDIDATE_TOP_K,
    CANDIDATE_TOP_K_512,
    DECODE_TOP_K,
    SELECT_CANDIDATES,
    SKIP_DECODE_FILL,
    TOP_K,
    failed,
    gate,
    lacking,
    note,
    raised,
    recording,
    run,
    run_candidate_logits_top_k,
    watching,
)
from dsv41topk._tensor cimport Call, begin, finish


cdef extern from "Python.h":
    bint PyLong_CheckExact(object value) noexcept
    long PyLong_AsLongAndOverflow(object value, int* overflow) noexcept


# ---- how a call ends -----------------------------------------------------------------------------

cdef inline bint is_trouble(int answer) noexcept:
    """Tell what an operator should read of from a call of another kind than the hook is for."""
    return answer in (LAUNCH_FAILED, LATER_LAUNCH_FAILED, NO_STREAM, NO_SCRATCH)


cdef inline bint is_another_number(object topk_tokens) noexcept:
    """Find the commonest refusal before anything else is done: a model with another top-k."""
    cdef int overflow
    return (
        PyLong_CheckExact(topk_tokens)
        and PyLong_AsLongAndOverflow(topk_tokens, &overflow) != DSV41_TOP_K
    )


cdef int conclude(int hook, int answer, Call* call, const Dsv41Failure* failure) except -1:
    """Log and count what needs it; not called for a plain taken or refused call."""
    if answer == LAUNCH_FAILED or answer == LATER_LAUNCH_FAILED:
        failed(hook, answer, failure)
    elif is_trouble(answer):
        lacking(hook, answer, call)
    return note(hook, answer, call)


cdef inline int refuse_object(
    Call* call, int refusal, const char* name, object value
) noexcept:
    call.argument = name
    call.culprit = <PyObject*> value
    return refusal


cdef int refuse_slots(Call* call, int slots) noexcept:
    call.argument = "candidates"
    call.part = ""
    call.wanted = DSV41_TOP_K
    call.got = slots
    return REJECT_SLOTS


def _record(hook, **arguments):
    """Hand a taken call to the recorder, which loads only now."""
    try:
        from dsv41topk import record

        record.on_call(hook, **arguments)
    except Exception:  # of the import: what is enqueued stays enqueued
        pass


# ---- the hooks -----------------------------------------------------------------------------------

def decode_top_k(object logits, object next_n, object seq_lens, object indices, object topk_tokens):
    """Take over vLLM's decode top-512, or decline.

    Parameters
    ----------
    logits : float32 [rows, width], unit column stride
    next_n : int
        Rows per request.
    seq_lens : int32 [requests, next_n] or [requests], contiguous
    indices : int32 [>= rows, >= 512], unit column stride
        Gets the 512 columns of each row, ascending, then -1.
    topk_tokens : int
        Taken when it is 512.

    Returns
    -------
    bool
    """
    cdef Call call
    cdef Dsv41TopKArgs args
    cdef Dsv41Failure failure
    cdef int answer
    cdef int serves = gate(DECODE_TOP_K)
    if serves == 0:
        return False
    if is_another_number(topk_tokens) and not watching():
        return False
    begin(&call, serves)
    try:
        answer = bind_is(topk_tokens, "topk_tokens", DSV41_TOP_K, REJECT_TOP_K, &call)
        if answer == ACCEPTED:
            answer = bind_top_k(logits, next_n, seq_lens, indices, None, None, None, &args, &call)
            if answer == ACCEPTED:
                answer = run(TOP_K, &args, &call, &failure)
        if watching() or is_trouble(answer):
            conclude(DECODE_TOP_K, answer, &call, &failure)
    except Exception as error:
        answer = raised(DECODE_TOP_K, error)
    finally:
        finish(&call)
    if answer == ACCEPTED and recording():
        _record(
            "decode_top_k", logits=logits, next_n=next_n, seq_lens=seq_lens, indices=indices,
            topk_tokens=topk_tokens,
        )
    return answer == ACCEPTED


def candidate_top_k(
    object logits, object next_n, object seq_lens, object candidates, object block_size,
    object indices, object topk_tokens
):
    """Take over vLLM's candidate mask and the top-512 after it, or decline.

    Parameters
    ----------
    logits : float32 [rows, width], unit column stride
    next_n : int
        Rows per request.
    seq_lens : int32 [requests, next_n] or [requests], contiguous
    candidates : int32 [>= rows, slots], unit column stride
        Block ids of each row. Taken when ``slots * block_size > 512``.
    block_size : int
        Columns of a block.
    indices : int32 [>= rows, >= 512], unit column stride
        Gets the 512 columns of each row, in the order of the candidates, then -1.
    topk_tokens : int
        Taken when it is 512.

    Returns
    -------
    bool
    """
    cdef Call call
    cdef Dsv41CandidateTopKArgs args
    cdef Dsv41Failure failure
    cdef int answer
    cdef int serves = gate(CANDIDATE_TOP_K)
    if serves == 0:
        return False
    if is_another_number(topk_tokens) and not watching():
        return False
    begin(&call, serves)
    try:
        answer = bind_is(topk_tokens, "topk_tokens", DSV41_TOP_K, REJECT_TOP_K, &call)
        if answer == ACCEPTED:
            answer = bind_candidate_top_k(
                logits, next_n, seq_lens, candidates, block_size, indices, &args, &call
            )
            if answer == ACCEPTED:
                if args.slots * args.block_size <= DSV41_TOP_K:
                    answer = refuse_slots(&call, args.slots * args.block_size)
                else:
                    answer = run(CANDIDATE_TOP_K_512, &args, &call, &failure)
        if watching() or is_trouble(answer):
            conclude(CANDIDATE_TOP_K, answer, &call, &failure)
    except Exception as error:
        answer = raised(CANDIDATE_TOP_K, error)
    finally:
        finish(&call)
    if answer == ACCEPTED and recording():
        _record(
            "candidate_top_k", logits=logits, next_n=next_n, seq_lens=seq_lens,
            candidates=candidates, block_size=block_size, indices=indices, topk_tokens=topk_tokens,
        )
    return answer == ACCEPTED


def candidate_logits_top_k(
    object q_fp8, object kv_cache, object weights, object seq_lens, object block_table,
    object candidates, object block_size, object indices, object topk_tokens,
    object dense_is_aiter_gluon, object requires_padding
):
    """Take over vLLM's dense logits, candidate mask and top-512, or decline.

    Only the logits of the candidates are computed. On gfx942 the first call of its kind compiles
    their kernel and compares it with AITER's, bit by bit.

    Parameters
    ----------
    q_fp8 : float8 [requests, next_n, 32 or 64, 128], contiguous
    kv_cache : uint8 [pages, page_size, 1, 132]
        Pages may lie apart; ``page_size`` is a multiple of 16.
    weights : float32 [>= rows, heads], unit column stride
    seq_lens : int32 [requests, next_n] or [requests], contiguous
    block_table : int32 [>= requests, pages of a request], unit column stride
    candidates : int32 [>= rows, slots], unit column stride
        Block ids of each row. Taken when ``slots * block_size > 512``.
    block_size : int
        Columns of a block.
    indices : int32 [>= rows, >= 512], unit column stride
        Gets the 512 columns of each row, in the order of the candidates, then -1.
    topk_tokens : int
        Taken when it is 512.
    dense_is_aiter_gluon : bool
        Whether the dense logits would come from AITER's kernel; taken when they would.
    requires_padding : bool
        Taken when it is false.

    Returns
    -------
    bool
    """
    cdef Call call
    cdef Dsv41CandidateLogitsArgs args
    cdef Dsv41CompactTopKArgs select
    cdef Dsv41Failure failure
    cdef int answer
    cdef int serves = gate(CANDIDATE_LOGITS_TOP_K)
    if serves == 0:
        return False
    begin(&call, serves)
    try:
        if not dense_is_aiter_gluon:
            answer = refuse_object(
                &call, REJECT_OTHER_LOGITS, "dense_is_aiter_gluon", dense_is_aiter_gluon
            )
        elif requires_padding:
            answer = refuse_object(&call, REJECT_PADDING, "requires_padding", requires_padding)
        else:
            answer = bind_is(topk_tokens, "topk_tokens", DSV41_TOP_K, REJECT_TOP_K, &call)
        if answer == ACCEPTED:
            answer = bind_candidate_logits_top_k(
                q_fp8, kv_cache, weights, seq_lens, block_table, candidates, block_size, indices,
                &args, &select, &call,
            )
            if answer == ACCEPTED:
                if select.n <= DSV41_TOP_K:
                    answer = refuse_slots(&call, select.n)
                else:
                    answer = run_candidate_logits_top_k(&args, &select, &call, &failure)
        if watching() or is_trouble(answer):
            conclude(CANDIDATE_LOGITS_TOP_K, answer, &call, &failure)
    except Exception as error:
        answer = raised(CANDIDATE_LOGITS_TOP_K, error)
    finally:
        finish(&call)
    if answer == ACCEPTED and recording():
        _record(
            "candidate_logits_top_k", q_fp8=q_fp8, kv_cache=kv_cache, weights=weights,
            seq_lens=seq_lens, block_table=block_table, candidates=candidates,
            block_size=block_size, indices=indices, topk_tokens=topk_tokens,
            dense_is_aiter_gluon=dense_is_aiter_gluon, requires_padding=requires_padding,
        )
    return answer == ACCEPTED


def select_candidates(
    object logits, object next_n, object seq_lens, object block_size, object candidates
):
    """Take over vLLM's choice of candidate blocks, or decline.

    Parameters
    ----------
    logits : float32 [rows, width], unit column stride
    next_n : int
        Rows per request.
    seq_lens : int32 [requests, next_n] or [requests], contiguous
    block_size : int
        Columns of a block.
    candidates : int32 [>= rows, slots], unit column stride
        Gets the ids of each row's best blocks, ascending, then -1.

    Returns
    -------
    bool
    """
    cdef Call call
    cdef Dsv41CandidateBlocksArgs args
    cdef Dsv41Failure failure
    cdef int answer
    cdef int serves = gate(SELECT_CANDIDATES)
    if serves == 0:
        return False
    begin(&call, serves)
    try:
        answer = bind_select_candidates(
            logits, next_n, seq_lens, block_size, candidates, &args, &call
        )
        if answer == ACCEPTED:
            answer = run(CANDIDATE_BLOCKS, &args, &call, &failure)
        if watching() or is_trouble(answer):
            conclude(SELECT_CANDIDATES, answer, &call, &failure)
    except Exception as error:
        answer = raised(SELECT_CANDIDATES, error)
    finally:
        finish(&call)
    if answer == ACCEPTED and recording():
        _record(
            "select_candidates", logits=logits, next_n=next_n, seq_lens=seq_lens,
            block_size=block_size, candidates=candidates,
        )
    return answer == ACCEPTED


def skip_decode_fill(
    object has_prefill, object num_decode_tokens, object num_tokens, object decode
):
    """Return whether vLLM may skip its -1 fill: every row of the step is written by the top-k.

    Parameters
    ----------
    has_prefill : bool
        Must be false.
    num_decode_tokens, num_tokens : int
        Must be equal.
    decode : object or None
        Its ``requires_padding`` must be false.

    Returns
    -------
    bool
    """
    cdef Call call
    cdef int32_t decode_tokens = 0
    cdef int32_t tokens = 0
    cdef int answer
    if gate(SKIP_DECODE_FILL) == 0:
        return False
    begin(&call, 0)
    try:
        if has_prefill:
            answer = refuse_object(&call, REJECT_PREFILL, "has_prefill", has_prefill)
        elif decode is None:
            answer = refuse_object(&call, REJECT_NO_DECODE, "decode", decode)
        elif decode.requires_padding:
            answer = refuse_object(&call, REJECT_PADDING, "decode.requires_padding", True)
        elif num_decode_tokens is num_tokens and PyLong_CheckExact(num_tokens):
            answer = ACCEPTED  # small numbers are one object
        else:
            answer = bind_count(num_decode_tokens, "num_decode_tokens", 0, &decode_tokens, &call)
            if answer == ACCEPTED:
                answer = bind_count(num_tokens, "num_tokens", 0, &tokens, &call)
            if answer == ACCEPTED and decode_tokens != tokens:
                call.argument = "num_decode_tokens"
                call.wanted, call.got = tokens, decode_tokens
                answer = REJECT_ROWS
        if watching():
            note(SKIP_DECODE_FILL, answer, &call)
    except Exception as error:
        answer = raised(SKIP_DECODE_FILL, error)
    return answer == ACCEPTED


__all__ = [
    "build",
    "build_error",
    "candidate_logits_top_k",
    "candidate_top_k",
    "decode_top_k",
    "disable",
    "enable",
    "enabled",
    "select_candidates",
    "skip_decode_fill",
]
