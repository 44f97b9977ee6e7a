# SPDX-License-Identifier: Apache-2.0
"""The decode top-512 of DeepSeek-V4.1's sparse indexer on AMD gfx942.

Hooks (`decode_top_k`, ...) stand in front of vLLM's ops and answer True or False; kernels
(`top_k_per_row_decode_512`, ...) are called directly. Importing does no work: nothing is compiled,
no GPU is touched, and neither torch nor vLLM is imported.
"""

from dsv41topk._build import BuildError
from dsv41topk._errors import LaunchError
from dsv41topk.hooks import (
    build,
    build_error,
    candidate_logits_top_k,
    candidate_top_k,
    decode_top_k,
    disable,
    enable,
    enabled,
    select_candidates,
    skip_decode_fill,
)
from dsv41topk.kernels import (
    MAX_BLOCKS,
    MIN_CHUNK,
    candidate_blocks,
    candidate_logits,
    candidate_top_k_512,
    compact_top_k_512,
    compact_top_k_512_regs,
    top_k_per_row_decode_512,
)

__version__ = "0.1.0"

__all__ = [
    "MAX_BLOCKS",
    "MIN_CHUNK",
    "BuildError",
    "LaunchError",
    "build",
    "build_error",
    "candidate_blocks",
    "candidate_logits",
    "candidate_logits_top_k",
    "candidate_top_k",
    "candidate_top_k_512",
    "compact_top_k_512",
    "compact_top_k_512_regs",
    "decode_top_k",
    "disable",
    "enable",
    "enabled",
    "select_candidates",
    "skip_decode_fill",
    "top_k_per_row_decode_512",
]
