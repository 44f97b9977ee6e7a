# SPDX-License-Identifier: Apache-2.0
"""The hook `build()` and what it closes, with HIP runtimes that the process has or lacks."""

from __future__ import annotations

import logging
import os
from ctypes.util import find_library
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.fake_gpu import HELPERS, Fake, compile_library, in_new_process
from helpers.toolchain import GFX90A, GFX942, FakeCompiler, elf

pytest.importorskip("dsv41topk.hooks", reason="needs the extension modules")


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def hooks_taken() -> list[str]:
    """Call every hook with CPU arrays that it could take; return the names of those that did."""
    import numpy as np

    import dsv41topk

    logits = np.linspace(-1, 1, 6 * 2048, dtype=np.float32).reshape(6, 2048)
    lens = np.full(1, 2048, np.int32)
    indices = np.full((6, 512), -7, np.int32)
    candidates = np.tile(np.arange(256, dtype=np.int32), (6, 1))
    calls = {
        "decode_top_k": (logits, 6, lens, indices, 512),
        "candidate_top_k": (logits, 6, lens, candidates, 8, indices, 512),
        "select_candidates": (logits, 6, lens, 8, candidates.copy()),
        "candidate_logits_top_k": (
            np.zeros((1, 6, 64, 128), np.uint8),
            np.zeros((32, 64, 1, 132), np.uint8),
            np.ones((6, 64), np.float32),
            lens,
            np.arange(32, dtype=np.int32).reshape(1, 32),
            candidates,
            8,
            indices,
            512,
            True,
            False,
        ),
        "skip_decode_fill": (False, 6, 6, SimpleNamespace(requires_padding=False)),
    }
    taken = [name for name, arguments in calls.items() if getattr(dsv41topk, name)(*arguments)]
    if not taken:
        assert (indices == -7).all(), "a hook that answers False has written"
    return taken


def closed(settings: dict[str, str], library: str | None, words: str) -> None:
    """In a new process: build() is False, says why once, and every hook is closed."""
    os.environ.update(settings)
    if library is not None:
        import ctypes

        ctypes.CDLL(library)
    warnings = _Warnings()
    logging.getLogger().addHandler(warnings)
    import dsv41topk

    dsv41topk.enable()
    assert dsv41topk.build() is False
    assert dsv41topk.build() is False
    assert hooks_taken() == []
    assert len(warnings.texts) == 1, warnings.texts
    assert words in warnings.texts[0], warnings.texts[0]


def test_real_hip_without_a_gpu() -> None:
    library = find_library("amdhip64")
    if library is None:
        pytest.skip("needs HIP's runtime (libamdhip64-dev)")
    if Path("/dev/kfd").exists():
        pytest.skip("this machine may have an AMD GPU")
    in_new_process(closed, {"DSV41TOPK_BACKEND": "hip"}, library, "hipErrorNoDevice (100)")


def test_hip_asked_for_and_not_loaded() -> None:
    settings = {"DSV41TOPK_BACKEND": "hip"}
    in_new_process(closed, settings, None, "no libamdhip64.so is loaded in this process")


@pytest.fixture(scope="module")
def hip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("rocm6") / "libamdhip64.so.6"
    return compile_library(target, HELPERS / "fake_gpu.c", "-DFAKE_HIP")


@pytest.mark.parametrize("asked", ["auto", "hip"])
@pytest.mark.parametrize(
    ("image", "exit_code", "words"),
    [
        (None, 3, "exit code 3"),
        (elf(**GFX90A), 0, "must be for gfx942"),
    ],
    ids=["compiler fails", "wrong architecture"],
)
def test_a_broken_build(hip, tmp_path, asked, image, exit_code, words) -> None:
    compiler = FakeCompiler(tmp_path / "bin", image, exit_code=exit_code)
    settings = {
        "DSV41TOPK_BACKEND": asked,
        "DSV41TOPK_HIPCC": str(compiler.path),
        "DSV41TOPK_CACHE_DIR": str(tmp_path / "cache"),
    }
    in_new_process(closed, settings, str(hip), words)
    assert len(compiler.runs) == 1, "a failure holds for the rest of the process"


def _load_fails(settings: dict[str, str], hip: str) -> None:
    Fake(Path(hip)).fail("hipModuleLoadData", 1, 209)
    closed(settings, hip, "hipErrorNoBinaryForGpu (209) from module load")


def _built(settings: dict[str, str], hip: str) -> None:
    os.environ.update(settings)
    fake = Fake(Path(hip))
    import dsv41topk

    dsv41topk.enable()
    assert dsv41topk.build() is True
    fake.log()
    assert hooks_taken() == ["skip_decode_fill"], "tensors of another device are declined"
    assert not [line for line in fake.log() if line.startswith("launch")]


@pytest.mark.parametrize("body", [_built, _load_fails])
def test_a_gpu_of_paper(hip: Path, tmp_path: Path, body) -> None:
    compiler = FakeCompiler(tmp_path / "bin", elf(**GFX942))
    settings = {
        "DSV41TOPK_HIPCC": str(compiler.path),
        "DSV41TOPK_CACHE_DIR": str(tmp_path / "cache"),
    }
    in_new_process(body, settings, str(hip))
