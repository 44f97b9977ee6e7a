# SPDX-License-Identifier: Apache-2.0
"""`python -m dsv41topk demo | doctor | build | bench`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "demo": ("dsv41topk.demo", "run one decode step on the CPU, checked by the oracle"),
    "doctor": (
        "dsv41topk.doctor",
        "say what is here, what would serve, and why something would not",
    ),
    "build": (
        "dsv41topk._build",
        "compile the GPU's code object now, so that no server start has to",
    ),
    "bench hooks": ("dsv41topk.bench.hooks", "host nanoseconds of the hooks, taken and refused"),
    "bench cpu": ("dsv41topk.bench.cpu", "the CPU kernels beside torch.topk"),
    "bench gpu": ("dsv41topk.bench.gpu", "the GPU kernels beside torch.topk and vLLM's own"),
    "bench gfx942": ("dsv41topk.bench.gfx942", "instructions and clocks of the gfx942 code object"),
}


def _usage() -> str:
    lines = [f"  {name:<14} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["usage: python -m dsv41topk COMMAND [--help | options]", *lines])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in ("-h", "--help"):
        print(_usage())
        return 0
    for count in (2, 1):
        name = " ".join(words[:count])
        if len(words) >= count and name in COMMANDS:
            module = importlib.import_module(COMMANDS[name][0])
            return int(module.main(words[count:]))
    print(_usage(), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
