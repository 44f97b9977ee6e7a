# SPDX-License-Identifier: Apache-2.0
"""The real vLLM 0.33.0 decode path, with this package in it, without it, and with it broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

# Not "vllm" alone: this folder is a namespace package of that name where vLLM is not installed.
pytest.importorskip("vllm.version", reason="needs vllm")

HERE = Path(__file__).parent


class Run:
    """One process of run_steps.py: its report, its arrays, its log."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        out = folder / "steps.npz"
        env = {k: v for k, v in os.environ.items() if not k.startswith(("DSV41TOPK_", "VLLM_"))}
        finished = subprocess.run(
            [sys.executable, str(HERE / "run_steps.py"), str(out), *arguments],
            env={**env, "DSV41TOPK_BACKEND": "cpu", "VLLM_LOGGING_COLOR": "0", **environment},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-4000:]
        self.report = json.loads(finished.stdout.splitlines()[-1])
        self.log = [*finished.stdout.splitlines()[:-1], *finished.stderr.splitlines()]
        with np.load(out) as data:
            self.arrays = {name: data[name] for name in data.files}

    def lines_about_us(self) -> list[str]:
        return [line for line in self.log if "dsv41topk" in line]


@pytest.fixture(scope="module")
def absent(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """vLLM as if this package were not installed."""
    return Run(tmp_path_factory.mktemp("absent"), "--without-plugins")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("served"))


def assert_same_columns(one: Run, other: Run) -> None:
    assert one.arrays.keys() == other.arrays.keys()
    for name, expected in other.arrays.items():
        # vLLM leaves the order open: it writes blocks best first, we write them ascending.
        found, wanted = np.sort(one.arrays[name], axis=1), np.sort(expected, axis=1)
        np.testing.assert_array_equal(found, wanted, err_msg=name)


def test_without_the_package_vllm_runs_its_own_path(absent: Run) -> None:
    assert not absent.report["package_imported"]
    assert not absent.report["built"]
    assert absent.lines_about_us() == []


def test_same_columns_as_vllm(served: Run, absent: Run) -> None:
    assert served.report["built"]
    assert_same_columns(served, absent)


def test_hooks_taken_in_one_step(served: Run) -> None:
    """4 dense top-k, 1 selection, 4 candidate calls, 8 fills skipped, none when padded."""
    for name, counts in served.report["steps"].items():
        taken = {hook: count.get("taken", 0) for hook, count in counts.items()}
        assert taken["decode_top_k"] == 4, name
        assert taken["select_candidates"] == 1, name
        # AITER is not here, so the logits are dense ones.
        assert taken["candidate_top_k"] == 4, name
        assert taken["skip_decode_fill"] == (0 if name == "padded step" else 8), name


def test_enabled_follows_vllms_flag(served: Run) -> None:
    assert not served.report["enabled_before"]
    assert served.report["enabled_after"]


def test_one_line_says_what_serves(served: Run) -> None:
    (line,) = served.lines_about_us()
    assert "cpu" in line and "INFO" in line


@pytest.mark.parametrize(
    "environment",
    [{"DSV41TOPK_VLLM": "0"}, {"VLLM_PLUGINS": ""}, {"VLLM_PLUGINS": "another"}],
    ids=str,
)
def test_switched_off(environment: dict[str, str], absent: Run, tmp_path: Path) -> None:
    run = Run(tmp_path, **environment)
    assert not run.report["swapped"]
    assert run.lines_about_us() == []
    assert_same_columns(run, absent)


def test_broken_build_leaves_vllm_as_it_was(absent: Run, tmp_path: Path) -> None:
    """One warning; vLLM's own functions are back; results and the rest of the log are vLLM's."""
    run = Run(tmp_path, DSV41TOPK_BACKEND="hip")
    assert not run.report["swapped"]
    (line,) = run.lines_about_us()
    assert "WARNING" in line or "hip" in line
    assert_same_columns(run, absent)
    assert len(run.log) == len(absent.log) + 1
