# SPDX-License-Identifier: Apache-2.0
"""candidate_logits_top_k on CPU tensors: the entries of dense logits, mask, top-512, or nothing."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.indexer_rows import LAYOUTS, Layout, Rows

import dsv41topk
from dsv41topk import _runtime, reference
from dsv41topk._cache import Fp8Array

LONG = Layout(next_n=3, lengths=(1500, 2049, 513, 512, 40))
CANARY = -777


@pytest.fixture
def cpu(monkeypatch):
    """The hooks, on and built for the CPU."""
    monkeypatch.setenv("DSV41TOPK_BACKEND", "cpu")
    _runtime.reset()
    dsv41topk.enable()
    assert dsv41topk.build()
    yield
    _runtime.reset()


def arguments(rows, indices):
    layout = rows.layout
    return {
        "q_fp8": Fp8Array(
            rows.q.reshape(rows.requests, layout.next_n, *rows.q.shape[1:]), layout.fp8
        ),
        "kv_cache": rows.cache.reshape(rows.pages, layout.page_size, 1, 132),
        "weights": rows.weights,
        "seq_lens": rows.lens.reshape(rows.requests, -1)
        if layout.ends_per_row
        else rows.lens[:, 0],
        "block_table": rows.table,
        "candidates": rows.candidates,
        "block_size": layout.block_size,
        "indices": indices,
        "topk_tokens": 512,
        "dense_is_aiter_gluon": True,
        "requires_padding": False,
    }


def dense_logits(rows):
    """Every column of every row, by the call whose candidates are all blocks in order."""
    layout = rows.layout
    blocks = -(-max(layout.lengths) // layout.block_size)
    everything = np.tile(np.arange(blocks, dtype=np.int32), (rows.rows, 1))
    logits = np.empty((rows.rows, blocks * layout.block_size), np.float32)
    ids = np.empty(logits.shape, np.int32)
    args = arguments(rows, None)
    dsv41topk.candidate_logits(
        args["q_fp8"], args["kv_cache"], args["weights"], args["seq_lens"], layout.next_n,
        args["block_table"], everything, layout.block_size, logits, ids,
    )  # fmt: skip
    return logits


@pytest.mark.parametrize(
    "layout",
    [LONG, replace(LONG, heads=32, ends_per_row=True), replace(LONG, block_size=24, page_size=16)],
    ids=["64 heads", "32 heads, an end for every row", "blocks that cross pages"],
)
def test_the_entries_of_dense_logits_masked(cpu, layout):
    rows = Rows(layout)
    wide = np.full((rows.rows + 2, 600), CANARY, np.int32)
    indices = wide[1:-1, :512]
    args = arguments(rows, indices)
    assert dsv41topk.candidate_logits_top_k(**args) is True
    right = reference.candidate_top_k_512(
        dense_logits(rows), layout.next_n, args["seq_lens"], rows.candidates, layout.block_size
    )
    np.testing.assert_array_equal(indices, right)
    indices[:] = CANARY
    assert (wide == CANARY).all(), "wrote outside of its 512 columns"


DECLINED = {
    "a dense kernel that is not AITER's": {"dense_is_aiter_gluon": False},
    "padded rows": {"requires_padding": True},
    "another k": {"topk_tokens": 256},
    "512 slots": {"candidates": np.zeros((15, 64), np.int32)},
    "too few candidate rows": {"candidates": np.zeros((14, 2048), np.int32)},
    "int64 candidates": {"candidates": np.zeros((15, 2048), np.int64)},
    "pages of 24": {"kv_cache": np.zeros((4, 24, 1, 132), np.uint8)},
    "keys of 64": {"kv_cache": np.zeros((4, 64, 1, 68), np.uint8)},
    "queries that are not FP8": {"q_fp8": np.zeros((5, 3, 64, 128), np.uint8)},
    "48 heads": {"q_fp8": Fp8Array(np.zeros((5, 3, 48, 128), np.uint8), "e4m3fn")},
    "int64 lengths": {"seq_lens": np.zeros(5, np.int64)},
    "int64 pages": {"block_table": np.zeros((5, 40), np.int64)},
}


@pytest.mark.parametrize("why", DECLINED)
def test_declined(cpu, why):
    rows = Rows(LONG)
    indices = np.full((rows.rows, 512), CANARY, np.int32)
    args = arguments(rows, indices) | DECLINED[why]
    assert dsv41topk.candidate_logits_top_k(**args) is False
    assert (indices == CANARY).all()


def test_off(cpu):
    rows = Rows(LAYOUTS["plain"])
    indices = np.full((rows.rows, 512), CANARY, np.int32)
    dsv41topk.disable()
    assert dsv41topk.candidate_logits_top_k(**arguments(rows, indices)) is False
    assert (indices == CANARY).all()
