# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.33.0's decode path with this package in it: a few steps, and who served what.

    pip install vllm==0.33.0 dsv41topk     # a machine that serves the model has both
    python vllm_decode_path.py [--steps 3] [--context 6000]

It loads the plugin as vLLM does, runs vLLM's own ``_decode_step`` layer by layer on CPU tensors,
and prints for every hook how many calls it took and declined. Five of the functions that vLLM's
path calls exist for GPUs only; the torch equivalents below take their places, with ties settled as
the contract settles them (lowest column), so that a step with this package and a step without it
can be compared entry by entry. The tests of the decode path import this file.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

INDEX_LAYERS = (2, 8, 14, 20, 24, 28, 32, 36)
SELECTING_LAYER = 20
TOP_K, HEADS, DIM, PAGE = 512, 32, 128, 64
POISON = 0x5A5A5A5A


# ---- torch equivalents of what vLLM has for GPUs only --------------------------------------------


def _by_value(values: torch.Tensor) -> torch.Tensor:
    """Columns of each row, best first: NaN above +inf, ties to the lowest column."""
    return torch.sort(values, dim=-1, descending=True, stable=True).indices


def top_k_per_row_decode(logits, next_n, seq_lens, indices, rows, stride0, stride1, k):
    ends = row_ends(seq_lens, rows, next_n).clamp(0, logits.shape[1])
    for row in range(rows):
        end = int(ends[row])
        chosen = torch.arange(end) if end <= k else _by_value(logits[row, :end])[:k].sort().values
        indices[row, :k] = -1
        indices[row, : len(chosen)] = chosen.int()


def row_ends(seq_lens, rows, next_n):
    if seq_lens.dim() == 2:
        return seq_lens.reshape(-1)[:rows].long()
    draft = torch.arange(rows) % next_n
    return seq_lens.long().repeat_interleave(next_n)[:rows] - next_n + draft + 1


def select_candidate_blocks(logits, row_starts, row_ends, slots, block_size, out, row_repeat=1):
    out.fill_(-1)
    for row in range(logits.shape[0]):
        end = min(int(row_ends[row // row_repeat]), logits.shape[1])
        if end <= 0:
            continue
        padded = torch.full((-(-end // block_size) * block_size,), float("-inf"))
        padded[:end] = logits[row, :end]
        scores = padded.view(-1, block_size).amax(1)
        scores[(end - 1) // block_size] = float("inf")
        best = _by_value(scores)[:slots]
        out[row, : len(best)] = torch.where(scores[best] == float("-inf"), -1, best).int()


def apply_candidate_mask(logits, row_starts, row_ends, candidates, block_size, row_repeat=1):
    columns = torch.arange(logits.shape[1])
    for row in range(logits.shape[0]):
        blocks = candidates[row][candidates[row] >= 0].long()
        keep = torch.isin(columns // block_size, blocks) & (columns < int(row_ends[row]))
        logits[row, ~keep] = float("-inf")


def pack_seq(x, lengths, pad_value=float("-inf")):
    out = torch.full(
        (len(lengths), int(lengths.max()), *x.shape[1:]),
        0.0 if x.dtype.itemsize == 1 else pad_value,
    ).to(x.dtype)
    for request, part in enumerate(torch.split(x, lengths.tolist())):
        out[request, : len(part)] = part
    return out


def unpack_seq(packed, lengths):
    return torch.cat([packed[request, : int(n)] for request, n in enumerate(lengths)])


_op_library = None


@contextlib.contextmanager
def torch_equivalents(monkeypatch):
    """Put the equivalents where vLLM's decode path looks, and say that this is gfx942."""
    global _op_library
    from vllm.models.deepseek_v41.amd import ops
    from vllm.models.deepseek_v41.amd.ops import sparse_indexer

    if _op_library is None:
        _op_library = torch.library.Library("_C", "FRAGMENT")
        _op_library.define(
            "top_k_per_row_decode(Tensor logits, int next_n, Tensor seq_lens, Tensor(a!) indices,"
            " int rows, int stride0, int stride1, int k) -> ()"
        )
        _op_library.impl("top_k_per_row_decode", top_k_per_row_decode, "CPU")
    monkeypatch.setattr(sparse_indexer, "_select_candidate_blocks", select_candidate_blocks)
    monkeypatch.setattr(sparse_indexer, "_apply_candidate_mask_strided", apply_candidate_mask)
    monkeypatch.setattr(sparse_indexer, "pack_seq_triton", pack_seq)
    monkeypatch.setattr(sparse_indexer, "unpack_seq_triton", unpack_seq)
    monkeypatch.setattr(ops, "current_platform", SimpleNamespace(is_rocm=lambda: True))
    yield


# ---- the step ------------------------------------------------------------------------------------


@dataclass
class Layer:
    """What one index layer brings."""

    q: torch.Tensor  # FP8 [tokens, heads, 128]
    weights: torch.Tensor  # float32 [padded tokens, heads]
    kv_cache: torch.Tensor  # uint8 [pages, page, 132]


@dataclass
class Step:
    """What one step feeds the decode path.

    decode_lens : rows of each request; all ``next_n`` unless the step is padded.
    seq_lens : int32 [requests] or [requests, next_n].
    """

    lengths: list[int]
    next_n: int
    two_dimensional: bool
    decode_lens: list[int] | None = None
    width: int = 8192
    slots: int = 256
    block_size: int = 8
    seed: int = 41
    layers: dict[int, Layer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        requests = len(self.lengths)
        self.decode_lens = self.decode_lens or [self.next_n] * requests
        self.requires_padding = len(set(self.decode_lens)) > 1
        self.tokens = sum(self.decode_lens)
        rows = requests * max(self.decode_lens)
        lens = torch.tensor(self.lengths, dtype=torch.int32)
        if self.two_dimensional:
            draft = torch.arange(self.next_n, dtype=torch.int32)
            lens = (lens[:, None] - self.next_n + draft + 1).contiguous()
        self.seq_lens = lens
        table_pages = self.width // PAGE
        order = torch.randperm(requests * table_pages, generator=generator)
        self.block_table = order.int().view(requests, table_pages).contiguous()
        for number in INDEX_LAYERS:
            q = torch.randn(self.tokens, HEADS, DIM, generator=generator).to(torch.float8_e4m3fn)
            weights = (torch.randn(rows, HEADS, generator=generator) * 0.6 - 0.35) * 1e-2
            keys = torch.randn(requests * table_pages, PAGE, DIM, generator=generator)
            keys[:, 1::7] = keys[:, 0:1]  # repeated keys: exact ties
            self.layers[number] = Layer(q, weights, self._cache(keys.to(torch.float8_e4m3fn)))

    def _cache(self, keys: torch.Tensor) -> torch.Tensor:
        """Lay the cache out as vLLM's fallback reads it: by page for one row, else key by key."""
        pages = keys.shape[0]
        scale = torch.ones(pages, PAGE, 1)
        raw, raw_scale = keys.view(torch.uint8), scale.view(torch.uint8)
        if self.rows_per_request == 1:
            flat = torch.cat([raw.reshape(pages, -1), raw_scale.reshape(pages, -1)], 1)
            return flat.view(pages, PAGE, DIM + 4)
        return torch.cat([raw, raw_scale.view(pages, PAGE, 4)], 2).contiguous()

    @property
    def rows_per_request(self) -> int:
        """Return the rows of a request, padded ones included."""
        return max(self.decode_lens)

    def metadata(self):
        """Return vLLM's own metadata object for the step."""
        from vllm.v1.attention.backends.mla.indexer import (
            DeepSeekV32IndexerDecodeMetadata,
            DeepseekV32IndexerMetadata,
        )

        decode = DeepSeekV32IndexerDecodeMetadata(
            block_table=self.block_table,
            seq_lens=self.seq_lens,
            decode_lens=torch.tensor(self.decode_lens, dtype=torch.int32),
            requires_padding=self.requires_padding,
            schedule_metadata=torch.empty(0),
        )
        return DeepseekV32IndexerMetadata(
            seq_lens=self.seq_lens,
            max_seq_len=max(self.lengths),
            slot_mapping=torch.empty(0, dtype=torch.int64),
            num_decodes=len(self.lengths),
            num_decode_tokens=self.tokens,
            num_prefills=0,
            num_prefill_tokens=0,
            decode=decode,
        )

    def run(self) -> dict[int, torch.Tensor]:
        """Run the 8 layers in order; return each one's indices, and the "candidates"."""
        from vllm.forward_context import ForwardContext, override_forward_context
        from vllm.models.deepseek_v41.amd.ops import sparse_indexer

        rows = len(self.lengths) * self.rows_per_request
        candidates = torch.full((rows, self.slots), POISON, dtype=torch.int32)
        results: dict[int, torch.Tensor] = {}
        context = ForwardContext(no_compile_layers={}, attn_metadata={}, slot_mapping={})
        with override_forward_context(context):
            for number, layer in self.layers.items():
                buffer = torch.full((rows, TOP_K), POISON, dtype=torch.int32)
                sparse_indexer._decode_step(
                    self.metadata(),
                    self.tokens,
                    layer.kv_cache.clone(),
                    layer.q,
                    layer.weights,
                    TOP_K,
                    self.width,
                    buffer,
                    1,
                    None if number < SELECTING_LAYER else candidates,
                    self.block_size if number >= SELECTING_LAYER else 0,
                    number == SELECTING_LAYER,
                )
                results[number] = buffer[: self.tokens].clone()
        results["candidates"] = candidates
        return results


# ---- the example ---------------------------------------------------------------------------------


def load_plugins_and_create_model() -> None:
    """Do what vLLM does in a worker: load plugins, record --monokernel, build."""
    import vllm.plugins

    vllm.plugins.load_general_plugins()
    from vllm.models.deepseek_v41.amd import ops
    from vllm.models.deepseek_v41.amd.ops import topk

    sys.modules.setdefault("vllm.platforms.rocm", SimpleNamespace(on_gfx942=lambda: True))
    ops.record_monokernel(SimpleNamespace(kernel_config=SimpleNamespace(monokernel=True)))
    topk.build()


class Patches:
    """pytest's monkeypatch.setattr for a process that ends with its patches on."""

    @staticmethod
    def setattr(target: object, name: str, value: object) -> None:
        """Set it for good."""
        setattr(target, name, value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--context", type=int, default=6000)
    arguments = parser.parse_args()

    with torch_equivalents(Patches):
        load_plugins_and_create_model()
        from dsv41topk import _runtime

        _runtime.count_calls()
        for number in range(arguments.steps):
            step = Step([arguments.context + number], next_n=6, two_dimensional=False, seed=number)
            chosen = step.run()
            print(f"step {number}: row 0 of layer 36 reads {(chosen[36][0] >= 0).sum()} columns")
    for hook, counts in _runtime.call_counts().items():
        print(f"{hook:24}", ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))


if __name__ == "__main__":
    main()
