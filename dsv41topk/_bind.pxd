# SPDX-License-Identifier: Apache-2.0
"""One bind for each call: its Python arguments -> the argument struct of csrc/abi.h."""

from libc.stdint cimport int32_t

from dsv41topk._abi cimport (
    Dsv41CandidateBlocksArgs,
    Dsv41CandidateLogitsArgs,
    Dsv41CandidateTopKArgs,
    Dsv41CompactTopKArgs,
    Dsv41TopKArgs,
)
from dsv41topk._tensor cimport Call

cdef enum:
    MAX_BLOCKS = 8
    MIN_CHUNK = 16384

# ACCEPTED, or a refusal with its details in the Call. They raise only what is no Exception.
cdef int bind_top_k(
    object logits, object next_n, object seq_lens, object indices, object max_blocks,
    object min_chunk, object register_select, Dsv41TopKArgs* args, Call* call
) except -1
cdef int bind_candidate_top_k(
    object logits, object next_n, object seq_lens, object candidates, object block_size,
    object indices, Dsv41CandidateTopKArgs* args, Call* call
) except -1
cdef int bind_compact_top_k(
    object compact_logits, object compact_ids, object seq_lens, object next_n, object indices,
    bint register_select, Dsv41CompactTopKArgs* args, Call* call
) except -1
cdef int bind_candidate_blocks(
    object logits, object visible, object row_repeat, object block_size, object out,
    Dsv41CandidateBlocksArgs* args, Call* call
) except -1
cdef int bind_select_candidates(
    object logits, object next_n, object seq_lens, object block_size, object candidates,
    Dsv41CandidateBlocksArgs* args, Call* call
) except -1
cdef int bind_candidate_logits(
    object q, object kv_cache, object weights, object seq_lens, object next_n, object block_table,
    object candidates, object block_size, object out_logits, object out_ids,
    Dsv41CandidateLogitsArgs* args, Call* call
) except -1
cdef int bind_candidate_logits_top_k(
    object q_fp8, object kv_cache, object weights, object seq_lens, object block_table,
    object candidates, object block_size, object indices, Dsv41CandidateLogitsArgs* args,
    Dsv41CompactTopKArgs* select, Call* call
) except -1
cdef int bind_count(
    object value, const char* name, int low, int32_t* out, Call* call
) except -1
cdef int bind_is(object value, const char* name, int wanted, int refusal, Call* call) except -1
