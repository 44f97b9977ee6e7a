# SPDX-License-Identifier: Apache-2.0
"""helpers/abi.py reads csrc/abi.h as the compiler does."""

import ctypes
import shutil
import subprocess

import pytest
from helpers import abi


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc in PATH")
def test_structs_have_the_sizes_and_offsets_of_the_compiler(tmp_path):
    lines, expected = [], []
    for name, struct in abi.STRUCTS.items():
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        expected.append(ctypes.sizeof(struct))
        for field, _ in struct._fields_:
            lines.append(f'printf("%zu\\n", offsetof({name}, {field}));')
            expected.append(getattr(struct, field).offset)
    source = tmp_path / "sizes.c"
    source.write_text(
        f'#include <stdio.h>\n#include "abi.h"\nint main(void) {{ {"".join(lines)} }}\n'
    )
    program = tmp_path / "sizes"
    subprocess.run(["gcc", f"-I{abi.CSRC}", str(source), "-o", str(program)], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert list(map(int, printed.split())) == expected
    assert len(abi.STRUCTS) >= 9
