# SPDX-License-Identifier: Apache-2.0
"""compute-sanitizer over every kernel: no finding of any of its tools."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "sanitized_calls.py"


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_no_finding(gpu, tool):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("needs compute-sanitizer in PATH")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }
    options = ["--tool", tool, "--error-exitcode", "9"]
    if tool == "memcheck":
        # Not findings: torch asks the driver for what may not be there, and so does our loader.
        options += ["--report-api-errors", "no"]
    run = subprocess.run(
        [sanitizer, *options, sys.executable, str(SCRIPT)],
        env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    report = run.stdout[-4000:] + run.stderr[-2000:]
    assert run.returncode == 0, report
    assert "ERROR SUMMARY: 0 errors" in report or "0 hazards" in report, report
    assert "all calls right" in report, report
