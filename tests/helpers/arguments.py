# SPDX-License-Identifier: Apache-2.0
"""Arguments that every call takes, by the contract's names; and which hook stands for a kernel."""

import numpy as np

from dsv41topk._cache import Fp8Array

ROWS, NEXT_N, WIDTH, SLOTS, BLOCK_SIZE, HEADS, PAGE_SIZE = 4, 2, 2048, 128, 8, 32, 64
POISON = -7777


def _indices(columns=512):
    return np.full((ROWS, columns), POISON, np.int32)


def _logits():
    return np.random.default_rng(41).standard_normal((ROWS, WIDTH), np.float32)


def _lens():
    return np.full(ROWS // NEXT_N, WIDTH, np.int32)


def _candidates():
    return np.tile(np.arange(SLOTS, dtype=np.int32), (ROWS, 1))


def _scoring():
    pages = WIDTH // PAGE_SIZE
    rng = np.random.default_rng(42)
    return {
        "q": Fp8Array(
            rng.integers(0, 0x60, (ROWS // NEXT_N, NEXT_N, HEADS, 128), np.uint8), "e4m3fn"
        ),
        "kv_cache": rng.integers(0, 0x40, (2 * pages, PAGE_SIZE, 1, 132), np.uint8),
        "weights": rng.standard_normal((ROWS, HEADS), np.float32),
        "seq_lens": _lens(),
        "next_n": NEXT_N,
        "block_table": np.arange(2 * pages, dtype=np.int32).reshape(2, pages),
        "candidates": _candidates(),
        "block_size": BLOCK_SIZE,
    }


def _of_kernel(call):
    if call == "top_k_per_row_decode_512":
        return {
            "logits": _logits(),
            "next_n": NEXT_N,
            "seq_lens": _lens(),
            "indices": _indices(),
            "max_blocks": 8,
            "min_chunk": 16384,
            "register_select": True,
        }
    if call == "candidate_top_k_512":
        return {
            "logits": _logits(),
            "next_n": NEXT_N,
            "seq_lens": _lens(),
            "candidates": _candidates(),
            "block_size": BLOCK_SIZE,
            "indices": _indices(),
        }
    if call in ("compact_top_k_512", "compact_top_k_512_regs"):
        return {
            "compact_logits": _logits()[:, :1024].copy(),
            "compact_ids": np.tile(np.arange(1024, dtype=np.int32), (ROWS, 1)),
            "seq_lens": _lens(),
            "next_n": NEXT_N,
            "indices": _indices(),
        }
    if call == "candidate_blocks":
        return {
            "logits": _logits(),
            "visible": _lens(),
            "row_repeat": NEXT_N,
            "block_size": BLOCK_SIZE,
            "out": _indices(SLOTS),
        }
    shape = (ROWS, SLOTS * BLOCK_SIZE)
    outputs = {
        "out_logits": np.full(shape, POISON, np.float32),
        "out_ids": np.full(shape, POISON, np.int32),
    }
    return _scoring() | outputs


KERNELS = (
    "top_k_per_row_decode_512",
    "candidate_top_k_512",
    "compact_top_k_512",
    "compact_top_k_512_regs",
    "candidate_blocks",
    "candidate_logits",
)

# kernel -> hook, kernel's name of an argument -> hook's, for those that differ
HOOK_OF = {
    "top_k_per_row_decode_512": ("decode_top_k", {}),
    "candidate_top_k_512": ("candidate_top_k", {}),
    "candidate_blocks": (
        "select_candidates",
        {"visible": "seq_lens", "row_repeat": "next_n", "out": "candidates"},
    ),
    "candidate_logits": ("candidate_logits_top_k", {"q": "q_fp8"}),
}
TENSOR_HOOKS = tuple(hook for hook, _ in HOOK_OF.values())
HOOKS = (*TENSOR_HOOKS, "skip_decode_fill")


class Decode:
    """The part of a server's metadata that skip_decode_fill looks at."""

    def __init__(self, requires_padding=False):
        self.requires_padding = requires_padding


def _of_hook(hook):
    if hook == "skip_decode_fill":
        return {
            "has_prefill": False,
            "num_decode_tokens": 6,
            "num_tokens": 6,
            "decode": Decode(),
        }
    if hook == "select_candidates":
        return {
            "logits": _logits(),
            "next_n": NEXT_N,
            "seq_lens": _lens(),
            "block_size": BLOCK_SIZE,
            "candidates": _indices(SLOTS),
        }
    if hook == "candidate_logits_top_k":
        scoring = _scoring()
        scoring["q_fp8"] = scoring.pop("q")
        order = ("q_fp8", "kv_cache", "weights", "seq_lens", "block_table", "candidates")
        return {name: scoring[name] for name in order} | {
            "block_size": BLOCK_SIZE,
            "indices": _indices(),
            "topk_tokens": 512,
            "dense_is_aiter_gluon": True,
            "requires_padding": False,
        }
    arguments = _of_kernel(
        {"decode_top_k": KERNELS[0], "candidate_top_k": "candidate_top_k_512"}[hook]
    )
    for name in ("max_blocks", "min_chunk", "register_select"):
        arguments.pop(name, None)
    return arguments | {"topk_tokens": 512}


def good(call):
    """New arguments of a kernel or a hook, as a dict in the contract's order."""
    return _of_kernel(call) if call in KERNELS else _of_hook(call)


OUTPUTS = {
    "candidate_blocks": ("out",),
    "select_candidates": ("candidates",),
    "candidate_logits": ("out_logits", "out_ids"),
    "skip_decode_fill": (),
}


def outputs(call, arguments):
    """Those of the arguments that the call writes."""
    return [arguments[name] for name in OUTPUTS.get(call, ("indices",))]
