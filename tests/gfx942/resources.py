# SPDX-License-Identifier: Apache-2.0
"""The resource table of the kernels: what the compiler recorded, and what is checked in.

python tests/gfx942/resources.py            prints the table of these sources beside the checked-in
one python tests/gfx942/resources.py --write    makes it the checked-in one (to be reviewed as any
other edit)
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers import gfx942  # noqa: E402

from dsv41topk.bench.code_object import CodeObjectFile  # noqa: E402

TABLE = Path(__file__).with_name("resources.json")
COLUMNS = [
    "vgprs",
    "agprs",
    "sgprs",
    "lds_bytes",
    "scratch_bytes",
    "vgpr_spills",
    "sgpr_spills",
    "max_threads",
]


def compiler_name():
    """Family and major version: registers are allotted alike within it."""
    version = gfx942.compiler().version
    return re.search(r"(clang version \d+)", version)[1]


def measured():
    """Resources by kernel, of the code object that warnings are errors for."""
    kernels = CodeObjectFile(gfx942.image(*gfx942.WARNINGS)).kernels
    return {name: kernels[name].resources for name in sorted(kernels)}


def checked_in():
    """The table in the repository: the compiler that it is for, and resources by kernel."""
    return json.loads(TABLE.read_text())


def main():
    now = measured()
    before = checked_in()["kernels"] if TABLE.exists() else {}
    if "--write" in sys.argv[1:]:
        lines = ",\n".join(f'    "{name}": {json.dumps(entry)}' for name, entry in now.items())
        TABLE.write_text(
            f'{{\n  "compiler": "{compiler_name()}",\n  "kernels": {{\n{lines}\n  }}\n}}\n'
        )
    print(f"{'kernel':32s}" + "".join(f"{column:>15s}" for column in COLUMNS))
    for name, entry in now.items():
        was = before.get(name, {})
        cells = [
            f"{entry[c]}" if was.get(c, entry[c]) == entry[c] else f"{was[c]} -> {entry[c]}"
            for c in COLUMNS
        ]
        print(f"{name:32s}" + "".join(f"{cell:>15s}" for cell in cells) + ("" if was else "  new"))
    for name in sorted(set(before) - set(now)):
        print(f"{name:32s}  gone")


if __name__ == "__main__":
    main()
