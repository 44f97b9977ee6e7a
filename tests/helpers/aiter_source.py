# SPDX-License-Identifier: Apache-2.0
"""AITER's dense logits kernel from a checkout of ROCm/aiter, without AITER's own start-up.

Importing the `aiter` package builds extensions and asks rocminfo for a GPU. Only the two files of
the kernel and what they import are wanted here, so the packages above them are empty ones that have
the checkout's folders as their path, and the few modules that ask for hardware are replaced.
"""

import importlib
import os
import sys
import types
from pathlib import Path

_PACKAGES = (
    "aiter",
    "aiter.jit",
    "aiter.jit.utils",
    "aiter.ops",
    "aiter.ops.triton",
    "aiter.ops.triton.utils",
)


def unavailable():
    """Why the kernel cannot be had here, or None."""
    checkout = os.environ.get("AITER_SRC")
    if not checkout:
        return "AITER_SRC does not name a checkout of the repository ROCm/aiter"
    if not (Path(checkout) / "aiter/ops/triton/gluon/pa_mqa_logits.py").is_file():
        return f"AITER_SRC={checkout} has no aiter/ops/triton/gluon/pa_mqa_logits.py"
    for name in ("torch", "triton", "packaging"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"{name} is missing: {error}"
    return None


def install(monkeypatch):
    """Put the checkout's kernel modules into sys.modules until monkeypatch undoes it."""
    import torch

    checkout = Path(os.environ["AITER_SRC"])
    for name in [name for name in sys.modules if name.split(".")[0] == "aiter"]:
        monkeypatch.delitem(sys.modules, name)

    def put(name, **attributes):
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    for name in _PACKAGES:
        put(name, __path__=[str(checkout / name.replace(".", "/"))])
    sys.modules["aiter"].dtypes = types.SimpleNamespace(fp8=torch.float8_e4m3fnuz)
    put("aiter.jit.utils.chip_info", get_gfx=lambda: "gfx942")
    put("aiter.ops.triton.utils.device_info", get_num_sms=lambda: 304)
    put("aiter.ops.triton.gluon.pa_decode_gluon", get_cdna_version=lambda: 3)
    module = importlib.import_module("aiter.ops.triton.attention.pa_mqa_logits")
    # What these imports left in sys.modules goes with the stubs.
    for name in [name for name in sys.modules if name.split(".")[0] == "aiter"]:
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    return module
