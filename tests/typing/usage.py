# SPDX-License-Identifier: Apache-2.0
"""Calls as a caller types them. Checked by mypy --strict, never run; see test_typing.py."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import dsv41topk
from dsv41topk import hooks, kernels


def hook_calls(tensor: Any, floats: NDArray[np.float32], ints: NDArray[np.int32]) -> None:
    assert_type(dsv41topk.decode_top_k(tensor, 6, tensor, tensor, 512), bool)
    assert_type(dsv41topk.candidate_top_k(tensor, 6, tensor, tensor, 8, tensor, 512), bool)
    assert_type(dsv41topk.select_candidates(tensor, 6, tensor, 8, tensor), bool)
    assert_type(hooks.skip_decode_fill(False, 6, 6, tensor), bool)
    assert_type(dsv41topk.build(), bool)
    assert_type(dsv41topk.enabled(), bool)
    assert_type(dsv41topk.build_error(), str | None)
    assert_type(dsv41topk.MAX_BLOCKS, int)
    assert_type(dsv41topk.MIN_CHUNK, int)
    # A hook takes anything, and answers.
    assert_type(dsv41topk.decode_top_k("text", None, 1.5, [], {}), bool)


def kernel_calls(floats: NDArray[np.float32], ints: NDArray[np.int32]) -> None:
    dsv41topk.top_k_per_row_decode_512(floats, 6, ints, ints)
    dsv41topk.top_k_per_row_decode_512(floats, np.int64(6), ints, ints, register_select=False)
    kernels.candidate_top_k_512(floats, 6, ints, ints, 8, ints)
    kernels.candidate_blocks(logits=floats, visible=ints, row_repeat=1, block_size=8, out=ints)
    # What is no tensor, or no integer, is seen by the type checker.
    dsv41topk.top_k_per_row_decode_512("text", 6, ints, ints)  # type: ignore[arg-type]
    dsv41topk.top_k_per_row_decode_512(floats, 6.0, ints, ints)  # type: ignore[arg-type]
    dsv41topk.top_k_per_row_decode_512(floats, 6, ints)  # type: ignore[call-arg]
    kernels.candidate_blocks(floats, ints, 1, 8, ints, ints)  # type: ignore[call-arg]
