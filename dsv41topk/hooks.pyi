# SPDX-License-Identifier: Apache-2.0
from typing import Any

from dsv41topk._runtime import build as build
from dsv41topk._runtime import build_error as build_error
from dsv41topk._runtime import disable as disable
from dsv41topk._runtime import enable as enable
from dsv41topk._runtime import enabled as enabled

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

# Any: whatever comes, a hook answers with a bool.
def decode_top_k(
    logits: Any, next_n: Any, seq_lens: Any, indices: Any, topk_tokens: Any
) -> bool: ...
def candidate_top_k(
    logits: Any,
    next_n: Any,
    seq_lens: Any,
    candidates: Any,
    block_size: Any,
    indices: Any,
    topk_tokens: Any,
) -> bool: ...
def candidate_logits_top_k(
    q_fp8: Any,
    kv_cache: Any,
    weights: Any,
    seq_lens: Any,
    block_table: Any,
    candidates: Any,
    block_size: Any,
    indices: Any,
    topk_tokens: Any,
    dense_is_aiter_gluon: Any,
    requires_padding: Any,
) -> bool: ...
def select_candidates(
    logits: Any, next_n: Any, seq_lens: Any, block_size: Any, candidates: Any
) -> bool: ...
def skip_decode_fill(
    has_prefill: Any, num_decode_tokens: Any, num_tokens: Any, decode: Any
) -> bool: ...
