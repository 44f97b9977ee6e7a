# SPDX-License-Identifier: Apache-2.0
"""The oracle. It lives in the package, because the demo compares with it too."""

from dsv41topk.reference import (
    TOP_K,
    best,
    candidate_blocks,
    candidate_columns,
    candidate_logits,
    candidate_top_k_512,
    compact_top_k_512,
    order_key,
    row_ends,
    select_live,
    top_k_per_row_decode_512,
    top_k_row,
)

__all__ = [
    "TOP_K",
    "best",
    "candidate_blocks",
    "candidate_columns",
    "candidate_logits",
    "candidate_top_k_512",
    "compact_top_k_512",
    "order_key",
    "row_ends",
    "select_live",
    "top_k_per_row_decode_512",
    "top_k_row",
]
