# SPDX-License-Identifier: Apache-2.0
"""One decode step of the 8 index layers with torch tensors, as a server would drive the hooks.

    pip install dsv41topk torch
    python examples/decode_step.py [--context 20000] [--device cpu]

The logits are made up; what matters is who calls what: layers 2, 8 and 14 take the top 512 of dense
logits, layer 20 chooses candidate blocks besides, layers 24 to 36 look only among those. A hook
answers False for a call that it does not take, and the server runs its own op then.
"""

import argparse

import torch

import dsv41topk

TOP_K, BLOCK_SIZE, SLOTS, NEXT_N = 512, 8, 2048, 6


def masked_top_k(logits, ends, candidates, indices):
    """Stand in for a server's own op: what a declined call falls back to."""
    for row, end in enumerate(ends.tolist()):
        columns = torch.arange(end, device=logits.device)
        if candidates is not None and end > TOP_K:
            columns = columns[torch.isin(columns // BLOCK_SIZE, candidates[row])]
        order = torch.sort(logits[row, columns], descending=True, stable=True).indices
        chosen = columns if end <= TOP_K else columns[order[:TOP_K]].sort().values
        indices[row] = -1
        indices[row, : len(chosen)] = chosen.int()


def run_layer(layer, logits, seq_lens, candidates, indices):
    """Run one index layer, and return whether the hook took it."""
    if layer <= 20:
        taken = dsv41topk.decode_top_k(logits, NEXT_N, seq_lens, indices, TOP_K)
    else:
        taken = dsv41topk.candidate_top_k(
            logits, NEXT_N, seq_lens, candidates, BLOCK_SIZE, indices, TOP_K
        )
    if layer == 20:
        dsv41topk.select_candidates(logits, NEXT_N, seq_lens, BLOCK_SIZE, candidates)
    return taken


def main(argv=None):
    """Run the step, compare every layer with the fallback, and say which hooks took their calls."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--context", type=int, default=20_000)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args(argv)
    device = torch.device(arguments.device)
    dsv41topk.enable()
    if not dsv41topk.build():
        raise SystemExit(f"no backend: {dsv41topk.build_error()}")
    torch.manual_seed(41)
    width = arguments.context + 1000  # a server's buffer is wider than any row is long
    seq_lens = torch.tensor([arguments.context], dtype=torch.int32, device=device)
    ends = arguments.context - NEXT_N + torch.arange(NEXT_N) + 1
    candidates = torch.full((NEXT_N, SLOTS), -1, dtype=torch.int32, device=device)
    indices = torch.empty(NEXT_N, TOP_K, dtype=torch.int32, device=device)
    expected = torch.empty_like(indices)
    for layer in (2, 8, 14, 20, 24, 28, 32, 36):
        logits = torch.randn(NEXT_N, width, device=device) - 3.6
        logits[:, arguments.context :] = float("nan")  # nothing past a row's end is looked at
        taken = run_layer(layer, logits, seq_lens, candidates, indices)
        among = candidates if layer > 20 else None
        masked_top_k(logits, ends, among, expected)
        if not taken:
            indices.copy_(expected)
        if not torch.equal(indices, expected):
            raise SystemExit(f"layer {layer}: the hook and the fallback chose different columns")
        print(
            f"layer {layer:>2}: {'hook' if taken else 'fallback'}, row 0 {indices[0, :3].tolist()}"
        )
    print("every layer equals the fallback")


if __name__ == "__main__":
    main()
