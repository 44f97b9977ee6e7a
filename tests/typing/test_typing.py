# SPDX-License-Identifier: Apache-2.0
"""The stubs against callers (mypy) and against the modules that they describe (stubtest)."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
MODULES = ("hooks", "kernels", "_runtime", "_tensor", "_bind", "_errors")

if importlib.util.find_spec("mypy") is None:
    pytest.skip("needs mypy", allow_module_level=True)


def _run(*command):
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300,
        check=False, env=os.environ | {"MYPYPATH": str(ROOT)},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def test_calls_as_callers_type_them():
    _run("mypy", "--strict", "--warn-unused-ignores", str(FOLDER / "usage.py"))


def test_the_stubs_say_what_is_there():
    allowed = str(FOLDER / "stubtest_allowlist.txt")
    # Unused entries: `__test__` comes with some Cython versions only.
    modules = [f"dsv41topk.{name}" for name in MODULES]
    _run("mypy.stubtest", "--allowlist", allowed, "--ignore-unused-allowlist", *modules)
