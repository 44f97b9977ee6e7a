# SPDX-License-Identifier: Apache-2.0
"""numpy arrays and torch tensors in one call: anything that speaks DLPack will do.

pip install dsv41topk torch
python examples/dlpack_interop.py
"""

import numpy as np
import torch

import dsv41topk


class Shared:
    """A tensor type of one's own: it lends what it wraps."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def main():
    """Choose the same 512 columns from a torch row, a numpy row and one that is neither."""
    rng = np.random.default_rng(41)
    logits = rng.standard_normal((2, 8192), np.float32)
    seq_lens = np.array([8192, 8192], np.int32)
    results = []
    for kind in (torch.from_numpy, np.asarray, Shared):
        # The indices are a slice of a wider buffer: its other columns stay as they are.
        buffer = torch.full((2, 600), -7, dtype=torch.int32)
        indices = buffer[:, :512]
        dsv41topk.top_k_per_row_decode_512(kind(logits), 1, seq_lens, indices)
        if not (buffer[:, 512:] == -7).all():
            raise SystemExit("written past column 512")
        results.append(indices.numpy())
    if not all(np.array_equal(results[0], result) for result in results[1:]):
        raise SystemExit("the kinds of tensor gave different columns")
    print(f"torch, numpy and {Shared.__name__} gave the same columns, from {results[0][0, :4]} on")

    # What a kernel cannot take, it says in words; a hook answers False and writes nothing.
    try:
        dsv41topk.top_k_per_row_decode_512(logits.T, 1, seq_lens, np.empty((2, 512), np.int32))
    except ValueError as error:
        print(f"refused: {error}")
    else:
        raise SystemExit("a call with a column stride was taken")


if __name__ == "__main__":
    main()
