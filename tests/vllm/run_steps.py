# SPDX-License-Identifier: Apache-2.0
"""A process of its own: load vLLM's plugins as vLLM does, run decode steps, write what came out.

    python run_steps.py OUT.npz [--without-plugins]

The swap is per process, so every state of it (on, off, broken build, absent) is one run of this
file with another environment. Prints one line of JSON: what was taken, what is swapped.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from vllm_decode_path import Patches, Step, load_plugins_and_create_model, torch_equivalents

STEPS = {
    "one request, one row": dict(lengths=[3000], next_n=1, two_dimensional=False),
    "one request, 5 drafts": dict(lengths=[6100], next_n=6, two_dimensional=False),
    "short and long rows, 1-D": dict(lengths=[5000, 517, 300], next_n=6, two_dimensional=False),
    "short and long rows, 2-D": dict(lengths=[5000, 514, 6], next_n=6, two_dimensional=True),
    "full width": dict(lengths=[8192, 8191], next_n=1, two_dimensional=False),
    "padded step": dict(
        lengths=[3000, 5000, 300], next_n=6, two_dimensional=False, decode_lens=[6, 2, 6]
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--without-plugins", action="store_true", help="as if none were installed")
    arguments = parser.parse_args()
    out = arguments.out
    torch.set_num_threads(1)

    import vllm.logger
    import vllm.plugins

    vllm.logger._configure_vllm_root_logger()  # as `vllm serve` does
    if arguments.without_plugins:
        importlib.metadata.entry_points = lambda **_: ()
    vllm.plugins.load_general_plugins()
    vllm.plugins.load_general_plugins()

    from vllm.models.deepseek_v41.amd import ops
    from vllm.models.deepseek_v41.amd.ops import topk

    report = {"steps": {}}
    arrays = {}
    with torch_equivalents(Patches):
        report["enabled_before"] = ops.enabled()
        load_plugins_and_create_model()
        report["enabled_after"] = ops.enabled()
        report["built"] = topk.build()
        report["package_imported"] = "dsv41topk._runtime" in sys.modules
        for name, arguments in STEPS.items():
            if report["package_imported"]:
                sys.modules["dsv41topk._runtime"].count_calls()
            for key, value in Step(**arguments).run().items():
                arrays[f"{name}/{key}"] = value.numpy()
            if report["package_imported"]:
                report["steps"][name] = sys.modules["dsv41topk._runtime"].call_counts()
    report["swapped"] = topk.decode_top_k.__module__ != topk.__name__
    np.savez(out, **arrays)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
