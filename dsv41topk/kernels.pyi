# SPDX-License-Identifier: Apache-2.0
from typing import Any, Final, Protocol, SupportsIndex

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

MAX_BLOCKS: Final[int]
MIN_CHUNK: Final[int]

class _Tensor(Protocol):
    """Anything with DLPack: a torch tensor, a numpy array, one of another library."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

def top_k_per_row_decode_512(
    logits: _Tensor,
    next_n: SupportsIndex,
    seq_lens: _Tensor,
    indices: _Tensor,
    max_blocks: SupportsIndex = ...,
    min_chunk: SupportsIndex = ...,
    register_select: bool = ...,
) -> None: ...
def candidate_top_k_512(
    logits: _Tensor,
    next_n: SupportsIndex,
    seq_lens: _Tensor,
    candidates: _Tensor,
    block_size: SupportsIndex,
    indices: _Tensor,
) -> None: ...
def compact_top_k_512(
    compact_logits: _Tensor,
    compact_ids: _Tensor,
    seq_lens: _Tensor,
    next_n: SupportsIndex,
    indices: _Tensor,
) -> None: ...
def compact_top_k_512_regs(
    compact_logits: _Tensor,
    compact_ids: _Tensor,
    seq_lens: _Tensor,
    next_n: SupportsIndex,
    indices: _Tensor,
) -> None: ...
def candidate_blocks(
    logits: _Tensor,
    visible: _Tensor,
    row_repeat: SupportsIndex,
    block_size: SupportsIndex,
    out: _Tensor,
) -> None: ...
def candidate_logits(
    q: _Tensor,
    kv_cache: _Tensor,
    weights: _Tensor,
    seq_lens: _Tensor,
    next_n: SupportsIndex,
    block_table: _Tensor,
    candidates: _Tensor,
    block_size: SupportsIndex,
    out_logits: _Tensor,
    out_ids: _Tensor,
) -> None: ...
