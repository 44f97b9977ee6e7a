# SPDX-License-Identifier: Apache-2.0
"""Every source file names its licence in its first lines. Takes files; by default, those of git."""

import subprocess
import sys
from pathlib import Path

SUFFIXES = {".c", ".cpp", ".h", ".hip", ".pxd", ".py", ".pyi", ".pyx", ".sh"}
LINE = "SPDX-License-Identifier: Apache-2.0"


def main() -> int:
    """Print the files that lack the line, and return 1 if there are any."""
    names = sys.argv[1:]
    if not names:
        command = ["git", "ls-files", "-z"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        names = listed.rstrip("\0").split("\0")
    sources = [Path(n) for n in names if Path(n).suffix in SUFFIXES or n == ".ci/run"]
    lacking = [p for p in sources if p.is_file() and LINE not in p.read_text()[:300]]
    for path in lacking:
        print(f"{path}: no '{LINE}' in its first lines")
    if not sources:
        print("no source file was given")
    return 1 if lacking or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
