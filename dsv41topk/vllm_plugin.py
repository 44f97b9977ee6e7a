# SPDX-License-Identifier: Apache-2.0
"""Entry point of vLLM's general plugin group: this package's hooks in vLLM's decode path.

vLLM loads general plugins in every process (API server, engine core, each worker), some of them
before a fork, and may load them more than once. So `register` imports neither vLLM nor torch and
touches no GPU: it leaves a watcher on ``sys.meta_path`` that swaps the functions when vLLM itself
imports the module that holds them.

What is swapped, in ``vllm.models.deepseek_v41.amd.ops.topk`` and in this process only: ``build``,
``decode_top_k``, ``candidate_top_k``, ``candidate_logits_top_k``, ``select_candidates`` and
``skip_decode_fill``. `enabled()` follows vLLM's own flag (``--monokernel`` on gfx942) from then on.
A vLLM whose functions take other arguments is left alone, with one warning. When the build here
fails, vLLM's own functions are put back, and vLLM runs as if this package were not installed.
"""

from __future__ import annotations

import importlib.abc
import inspect
import logging
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41topk import _env

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["CHECKED_VERSIONS", "SIGNATURES", "TARGET", "originals", "register"]

#: vLLM releases whose signatures were compared with SIGNATURES, by the tests that run them.
CHECKED_VERSIONS = ("0.33.0",)

TARGET = "vllm.models.deepseek_v41.amd.ops.topk"

# What vLLM's callers pass, by position. Compared with the module before anything is swapped.
SIGNATURES: dict[str, tuple[str, ...]] = {
    "build": (),
    "decode_top_k": ("logits", "next_n", "seq_lens", "indices", "topk_tokens"),
    "candidate_top_k": (
        "logits",
        "next_n",
        "seq_lens",
        "candidates",
        "block_size",
        "indices",
        "topk_tokens",
    ),
    "candidate_logits_top_k": (
        "q_fp8",
        "kv_cache",
        "weights",
        "seq_lens",
        "block_table",
        "candidates",
        "block_size",
        "indices",
        "topk_tokens",
        "dense_is_aiter_gluon",
        "requires_padding",
    ),
    "select_candidates": ("logits", "next_n", "seq_lens", "block_size", "candidates"),
    "skip_decode_fill": ("has_prefill", "num_decode_tokens", "num_tokens", "decode"),
}

# A child of vLLM's logger, the only one that vLLM configures: lines show up among vLLM's own.
logger = logging.getLogger("vllm.dsv41topk")

_lock = threading.RLock()
_done = False  # the hooks were swapped in, or vLLM was found unfit: either way, once a process
_originals: dict[str, Callable[..., Any]] = {}  # vLLM's own functions while ours stand in for them
_announced = False


def register() -> None:
    """Swap the hooks in now, or when vLLM imports its module.

    Safe to call any number of times, before and after a fork. Does nothing with
    ``DSV41TOPK_VLLM=0``. A vLLM that it does not know is left alone, with one warning.
    """
    if not _env.vllm_plugin():
        return
    with _lock:
        if _done:
            return
        module = sys.modules.get(TARGET)
        if module is not None:
            _swap(module)
        elif not _has_target():
            _leave_alone(f"it has no module {TARGET}")
        elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Watcher())


def originals() -> dict[str, Callable[..., Any]]:
    """Return vLLM's own functions that this package stands in for, by name."""
    return dict(_originals)


def _has_target() -> bool:
    """Look for TARGET's file; ``find_spec`` would import its parent packages."""
    vllm = sys.modules.get("vllm")
    if vllm is None:
        return True  # called by hand before vLLM: the watcher will see
    relative = Path(*TARGET.split(".")[1:]).with_suffix(".py")
    return any((Path(folder) / relative).exists() for folder in vllm.__path__)


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds TARGET through the finders behind it; the hooks are swapped once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TARGET:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _SwappingLoader(spec.loader)
                return spec
        return None


class _SwappingLoader(importlib.abc.Loader):
    """The module's own loader, and then the swap. Other attributes stay the loader's."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        with _lock:
            sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Watcher)]
            if not _done:
                _swap(module)


def _mismatch(module: ModuleType) -> str | None:
    """Say how the module differs from the one that these hooks were made for, or None."""
    for name, expected in (*SIGNATURES.items(), ("enabled", ())):
        function = getattr(module, name, None)
        if not callable(function):
            return f"{name} is missing"
        found = tuple(inspect.signature(function).parameters)
        if found != expected:
            return f"{name} takes ({', '.join(found)}) and not ({', '.join(expected)})"
    return None


def _leave_alone(why: str) -> None:
    global _done
    _done = True
    logger.warning(
        "dsv41topk leaves this vLLM as it is: %s (made for vLLM %s)",
        why,
        ", ".join(CHECKED_VERSIONS),
    )


def _swap(module: ModuleType) -> None:
    global _done
    why = _mismatch(module)
    if why is not None:
        _leave_alone(f"in {TARGET}, {why}")
        return
    from dsv41topk import _runtime, hooks

    _done = True
    for name in SIGNATURES:
        _originals[name] = getattr(module, name)
        setattr(module, name, _build if name == "build" else getattr(hooks, name))
    _runtime.follow(module.enabled)


def _build() -> bool:
    """Stand in for vLLM's ``topk.build``, called when the model is created."""
    global _announced
    from dsv41topk import _runtime, hooks

    with _lock:
        if not _originals:  # put back by an earlier failure; a caller still holds this function
            return bool(sys.modules[TARGET].build())
        if hooks.build():
            if not _announced:
                _announced = True
                logger.info("dsv41topk serves the decode top-512: %s", _runtime.describe())
            return True
        # hooks.build() has logged why.
        module = sys.modules[TARGET]
        for name, function in _originals.items():
            setattr(module, name, function)
        _originals.clear()
        return bool(module.build())
