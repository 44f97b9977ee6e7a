# SPDX-License-Identifier: Apache-2.0
"""What a server would run without this package: torch's own operators, call by call.

Every function takes torch tensors of any device and gives a set of columns (or block ids) per row,
in no promised order; torch leaves ties open.
"""

from __future__ import annotations

import torch

TOP_K = 512


def top_k(logits: torch.Tensor) -> torch.Tensor:
    """Return the 512 largest of each row of `logits`, float32 [rows, width]."""
    return torch.topk(logits, TOP_K, dim=1, sorted=False).indices


def candidate_columns(candidates: torch.Tensor, block_size: int) -> torch.Tensor:
    """Return columns of each row's blocks, int64 [rows, slots * block_size]; no slot is empty."""
    inside = torch.arange(block_size, device=candidates.device)
    return (candidates.long()[:, :, None] * block_size + inside).flatten(1)


def candidate_top_k(
    logits: torch.Tensor, candidates: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Return the 512 largest among the candidates: gather, torch.topk, gather."""
    columns = candidate_columns(candidates, block_size)
    return columns.gather(1, top_k(logits.gather(1, columns)))


def compact_top_k(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the ids of the 512 largest of rows already gathered."""
    return ids.gather(1, top_k(logits))


def candidate_blocks(logits: torch.Tensor, block_size: int, slots: int) -> torch.Tensor:
    """Return the best `slots` blocks of whole rows: maxima, mark the newest, torch.topk."""
    scores = logits.view(len(logits), -1, block_size).amax(2)
    scores[:, -1] = float("inf")
    return torch.topk(scores, slots, dim=1, sorted=False).indices


def candidate_logits(
    q: torch.Tensor,
    keys: torch.Tensor,
    scales: torch.Tensor,
    weights: torch.Tensor,
    columns: torch.Tensor,
) -> torch.Tensor:
    """Return logits of the candidates, float32 [rows, n].

    Parameters
    ----------
    q : float32 [rows, heads, 128]
    keys : float32 [columns, 128]
        The cache, decoded beforehand: torch has no operator that reads its layout.
    scales : float32 [columns]
    weights : float32 [rows, heads]
    columns : int64 [rows, n]
    """
    dots = q @ keys[columns].transpose(1, 2)
    return ((dots * scales[columns][:, None]).relu_() * weights[:, :, None]).sum(1)
