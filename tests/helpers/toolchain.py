# SPDX-License-Identifier: Apache-2.0
"""A small source tree of its own for `_build.py`, and compilers that do what a test wants."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import struct
import sys
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[2]

GFX942 = {"machine": 224, "flags": 0x54C}
GFX90A = {"machine": 224, "flags": 0x53F}
SM_90_CUDA_13 = {"machine": 190, "flags": 0x06005A04, "abi": 8}
SM_90_CUDA_12 = {"machine": 190, "flags": 0x005A055A, "abi": 7}


def elf(machine: int, flags: int, abi: int = 3, body: bytes = b"kernels") -> bytes:
    """Return an ELF header with one section, enough for everything that `_build.py` looks at."""
    section_table = 64 + len(body)
    ident = b"\x7fELF\x02\x01\x01\x40" + bytes([abi]) + bytes(7)
    rest = struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, section_table, flags, 64, 56, 0, 64, 1, 0
    )
    return ident + rest + body + bytes(64)


class Tree:
    """A checkout in miniature: `dsv41topk/_build.py` as it is, and a `csrc` that tests may edit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.csrc = root / "csrc"
        self.script = root / "dsv41topk" / "_build.py"
        self.script.parent.mkdir()
        self.script.write_bytes((REPOSITORY / "dsv41topk" / "_build.py").read_bytes())
        kernel = 'extern "C" __attribute__((global)) void {}_kernel(int* p) {{ *p = kWaves; }}\n'
        for name, text in {
            "abi.h": "#define DSV41_TOP_K 512\n",
            "launch.c": "int host;\n",
            "device/platform.h": "#pragma once\nconstexpr int kWaves = 16;\n",
            "kernels/first.hip": '#include "device/platform.h"\n' + kernel.format("first"),
            "kernels/second.hip": '#include "device/platform.h"\n' + kernel.format("second"),
            "cpu/top_k.h": "int host_too;\n",
            "README.md": "words\n",
        }.items():
            path = self.csrc / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def module(self) -> ModuleType:
        """Load `_build.py` of this tree, as `setup.py` does: by path, without its package."""
        spec = importlib.util.spec_from_file_location("tree_build", self.script)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["tree_build"] = module
        spec.loader.exec_module(module)
        return module


class FakeCompiler:
    """A compiler of a few shell lines; keeps a log of its runs, a process id and environment each.

    Parameters
    ----------
    image : bytes or None
        What it writes; None writes nothing.
    script : str
        Shell lines to run first, with `$log` set.
    exit_code : int
        How it ends.
    """

    def __init__(
        self,
        folder: Path,
        image: bytes | None = elf(**GFX942),
        *,
        script: str = "",
        exit_code: int = 0,
        version: str = "fake clang version 19.9",
        name: str = "fake-clang",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / name
        self._log = folder / f"{name}.log"
        self._log.touch()
        made = folder / f"{name}.image"
        write = ""
        if image is not None:
            made.write_bytes(image)
            write = f'for out; do :; done; cp "{made}" "$out"'
        self.path.write_text(
            "#!/bin/sh\n"
            f'case "$1" in --version) echo "{version}"; exit 0;; esac\n'
            f'log="{self._log}"\n'
            'echo "run $$ $*" >> "$log"\n'
            'env | sed "s/^/env /" >> "$log"\n'
            f"{script}\n{write}\nexit {exit_code}\n"
        )
        self.path.chmod(0o755)

    def _lines(self, kind: str) -> list[str]:
        lines = self._log.read_text().splitlines()
        return [line[len(kind) + 1 :] for line in lines if line.startswith(kind + " ")]

    @property
    def runs(self) -> list[int]:
        """Process ids of its compilations."""
        return [int(line.split()[0]) for line in self._lines("run")]

    @property
    def environment(self) -> dict[str, str]:
        """What the last compilation saw; one line a variable."""
        return dict(line.split("=", 1) for line in self._lines("env") if "=" in line)


def entry_of(cache: Path) -> Path:
    """Return the one code entry of a cache folder."""
    (entry,) = cache.glob("code-*")
    return entry


def redigest(entry: Path, data: bytes) -> None:
    """Replace an entry's data and make its digest agree, as a skilled forger would."""
    (entry / "data").write_bytes(data)
    words = json.loads((entry / "entry.json").read_text())
    words["sha256"] = hashlib.sha256(data).hexdigest()
    (entry / "entry.json").write_text(json.dumps(words))


def environment(cache: Path, compiler: Path | None, **more: str) -> dict[str, str]:
    """Return the environment of a builder process that sees one cache and one compiler."""
    settings = {"PATH": os.environ["PATH"], "DSV41TOPK_CACHE_DIR": str(cache), **more}
    if compiler is not None:
        settings["DSV41TOPK_HIPCC"] = str(compiler)
    return settings
