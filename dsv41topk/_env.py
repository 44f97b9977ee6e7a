# SPDX-License-Identifier: Apache-2.0
"""Every environment switch: name, default, meaning."""

from __future__ import annotations

import os

__all__ = ["SWITCHES", "allow_last_bit", "backend", "enable", "record", "vllm_plugin"]

SWITCHES: dict[str, tuple[str, str]] = {
    "DSV41TOPK_BACKEND": ("auto", "auto, hip, cuda or cpu: what `build()` makes ready"),
    "DSV41TOPK_ENABLE": ("0", "1: hooks are on at import"),
    "DSV41TOPK_CACHE_DIR": ("", "where compiled code objects are kept"),
    "DSV41TOPK_HIPCC": ("", "the compiler for gfx942"),
    "DSV41TOPK_ALLOW_LAST_BIT": ("0", "1: take candidate logits that differ in last bits"),
    "DSV41TOPK_RECORD": ("", "folder into which hooks record the calls that they took"),
    "DSV41TOPK_VLLM": ("1", "0: the plugin leaves vLLM alone"),
}
"""What the package reads when it runs. `setup.py` reads DSV41TOPK_AOT and DSV41TOPK_WERROR."""


def _value(name: str) -> str:
    return os.environ.get(name) or SWITCHES[name][0]


def backend() -> str:
    """Return which backend `build()` is to make ready."""
    return _value("DSV41TOPK_BACKEND")


def enable() -> bool:
    """Return whether the hooks are on from the start."""
    return _value("DSV41TOPK_ENABLE") == "1"


def allow_last_bit() -> bool:
    """Return whether candidate logits may differ from the dense kernel's in last bits."""
    return _value("DSV41TOPK_ALLOW_LAST_BIT") == "1"


def record() -> bool:
    """Return whether the hooks record their calls."""
    return _value("DSV41TOPK_RECORD") != ""


def vllm_plugin() -> bool:
    """Return whether the plugin may put the hooks into vLLM."""
    return _value("DSV41TOPK_VLLM") != "0"
