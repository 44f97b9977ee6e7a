# SPDX-License-Identifier: Apache-2.0
"""What no build can see: that every kernel waits for the launches before it."""

import re
from pathlib import Path

import pytest

KERNELS = sorted((Path(__file__).resolve().parents[2] / "csrc" / "kernels").glob("*.hip"))
BODY = re.compile(
    r"DSV41_KERNEL\(.*?\)\s*void (\w+)\([^)]*\) \{\n((?:  using namespace .*\n)*)(.*)\n"
)


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.stem)
def test_kernels_begin_with_begin_launch(source):
    """On CUDA a launch may begin before the one before it has ended."""
    text = source.read_text()
    bodies = BODY.findall(text)
    assert len(bodies) == text.count("DSV41_KERNEL(")
    late = [name for name, _, first in bodies if first.strip() != "begin_launch();"]
    assert not late
