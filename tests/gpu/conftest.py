# SPDX-License-Identifier: Apache-2.0
"""Rung 6: the sm_90 code object on a real GPU."""

import importlib

import pytest


@pytest.fixture(scope="session")
def gpu():
    """torch with a CUDA device, and the package with its kernels built for it."""
    torch = pytest.importorskip("torch", reason="needs torch")
    if not torch.cuda.is_available() or torch.version.cuda is None:
        pytest.skip("needs a CUDA device")
    pytest.importorskip("dsv41topk.hooks", reason="needs the extension, built")
    package = importlib.import_module("dsv41topk")
    assert package.build(), "there is a CUDA device, but build() is False"
    return torch
