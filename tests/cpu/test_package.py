# SPDX-License-Identifier: Apache-2.0
"""What importing needs, what is packaged, and what the switches are."""

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from helpers.toolchain import FakeCompiler

from dsv41topk import _build, _env

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(_build.__file__).resolve().parent

in_checkout = pytest.mark.skipif(
    not (ROOT / "setup.py").exists(), reason="needs setup.py: this is not a checkout"
)


def python(*arguments, **environment):
    """Run a new interpreter on the package under test; return what it printed."""
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)} | environment, cwd="/",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ImportError(name + " is hidden")

sys.meta_path.insert(0, Hidden())
"""

CALLS = """
import sys
import numpy as np
import dsv41topk

logits = np.zeros((2, 2048), np.float32)
logits[:, 7::4] = 1
lens, indices = np.full(2, 2048, np.int32), np.full((2, 512), -7, np.int32)
expected = np.append(0, np.arange(7, 2048, 4))  # 511 ones, and the first of the zeros
dsv41topk.top_k_per_row_decode_512(logits, 1, lens, indices)
if not (indices == expected).all():
    sys.exit("wrong columns")
dsv41topk.enable()
indices[:] = -7
if dsv41topk.decode_top_k(logits, 1, lens, indices, 512) is not True:
    sys.exit("declined")
if dsv41topk.decode_top_k(logits, 1, lens, indices[:1], 512) is not False:
    sys.exit("taken")
try:
    dsv41topk.top_k_per_row_decode_512(logits, 0, lens, indices)
except ValueError as error:
    print(error)
else:
    sys.exit("not refused")
"""


def test_import_does_no_work():
    """Nothing but the standard library is there, no thread is started, nothing is built."""
    out = python(
        "-c",
        HIDE.format(hidden=("torch", "numpy", "vllm", "triton", "aiter"))
        + "before = set(sys.modules)\n"
        "import threading, dsv41topk\n"
        "from dsv41topk import _runtime\n"
        "assert threading.active_count() == 1\n"
        "assert _runtime.backend() is None and not dsv41topk.enabled()\n"
        "print(dsv41topk.decode_top_k(1, 2, 3, 4, 5))",
    )
    assert out == "False\n"


@pytest.mark.parametrize("flags", [(), ("-O",), ("-OO",), ("-X", "dev", "-W", "error")])
def test_calls_without_torch(flags):
    """And under -O: no check of an argument is an assert."""
    out = python(*flags, "-c", HIDE.format(hidden=("torch", "vllm", "triton", "aiter")) + CALLS)
    assert out == "top_k_per_row_decode_512: next_n must be at least 1, got 0\n"


def test_public_names():
    out = python(
        "-c",
        "import dsv41topk, json; print(json.dumps([n for n in dsv41topk.__all__"
        " if not hasattr(dsv41topk, n)]))",
    )
    assert json.loads(out) == []
    calls = "decode_top_k candidate_top_k candidate_logits_top_k select_candidates"
    calls += " skip_decode_fill build top_k_per_row_decode_512 candidate_top_k_512"
    calls += " compact_top_k_512 compact_top_k_512_regs candidate_blocks candidate_logits"
    calls += " enabled enable disable MAX_BLOCKS MIN_CHUNK build_error BuildError LaunchError"
    names = python("-c", "import dsv41topk; print(*dsv41topk.__all__)").split()
    assert set(names) == set(calls.split())


# ---- switches ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "on"), [("1", True), ("0", False), ("", False), ("yes", False)])
def test_hooks_on_at_import(value, on):
    out = python("-c", "import dsv41topk; print(dsv41topk.enabled())", DSV41TOPK_ENABLE=value)
    assert out == f"{on}\n"


def test_values(monkeypatch):
    for name in _env.SWITCHES:
        monkeypatch.delenv(name, raising=False)
    assert _env.backend() == "auto"
    assert not _env.enable()
    assert not _env.record()
    assert _env.vllm_plugin()
    monkeypatch.setenv("DSV41TOPK_BACKEND", "")
    assert _env.backend() == "auto"
    monkeypatch.setenv("DSV41TOPK_BACKEND", "cpu")
    assert _env.backend() == "cpu"
    monkeypatch.setenv("DSV41TOPK_RECORD", "/somewhere")
    assert _env.record()
    monkeypatch.setenv("DSV41TOPK_VLLM", "0")
    assert not _env.vllm_plugin()


def test_every_switch_is_listed():
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyx")]
    used = {n for path in sources for n in re.findall(r"DSV41TOPK_[A-Z_]+", path.read_text())}
    assert used - {"DSV41TOPK_AOT", "DSV41TOPK_WERROR"} == set(_env.SWITCHES)


# ---- what is packaged ----------------------------------------------------------------------------


def setup(*arguments, **environment):
    """Run setup.py in the checkout, whose C files are generated already."""
    result = subprocess.run(
        [sys.executable, "setup.py", "-q", *arguments], cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False, env=os.environ | environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def needs_setuptools():
    pytest.importorskip("setuptools")
    pytest.importorskip("Cython")


@in_checkout
def test_a_wheel_holds_the_sources_of_the_kernels(tmp_path):
    needs_setuptools()
    setup("build_py", "--build-lib", str(tmp_path))
    package = tmp_path / "dsv41topk"
    shipped = {p.relative_to(package) for p in (package / "csrc").rglob("*") if p.is_file()}
    assert shipped == {p.relative_to(ROOT) for p in (ROOT / "csrc").rglob("*") if p.is_file()}
    for name in ("py.typed", "hooks.pyi", "kernels.pyi", "hooks.pxd", "bench/gfx942_engine.c"):
        if (PACKAGE / name).exists():
            assert (package / name).is_file(), name
    assert (package / "py.typed").is_file()
    # The same hash: an object that was compiled in the checkout serves the installed package.
    hashed = "import importlib.util as u, sys; s = u.spec_from_file_location('b', sys.argv[1]); "
    hashed += "m = u.module_from_spec(s); sys.modules['b'] = m; s.loader.exec_module(m); "
    hashed += "print(m.source_folder(), m.source_hash())"
    folder, digest = python("-c", hashed, str(package / "_build.py")).split()
    assert Path(folder) == package / "csrc"
    assert digest == _build.source_hash()
    assert not (package / "objects").exists()


@in_checkout
def test_a_code_object_compiled_with_the_package(tmp_path):
    needs_setuptools()
    compiler = FakeCompiler(tmp_path / "bin")
    settings = {"DSV41TOPK_AOT": "1", "DSV41TOPK_HIPCC": str(compiler.path)}
    setup("build_py", "--build-lib", str(tmp_path / "lib"), **settings)
    objects = tmp_path / "lib" / "dsv41topk" / "objects"
    assert (objects / "gfx942.co").is_file()
    assert json.loads((objects / "gfx942.json").read_text())["source_hash"] == _build.source_hash()
    assert len(compiler.runs) == 1


@in_checkout
def test_an_sdist_can_be_built_from(tmp_path):
    needs_setuptools()
    setup("egg_info", "--egg-base", str(tmp_path), "sdist", "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    tracked = [p for p in (ROOT / "csrc").rglob("*") if p.is_file()]
    tracked += [p for s in ("*.pyx", "*.pxd", "*.pyi", "*.py") for p in PACKAGE.rglob(s)]
    tracked += [ROOT / name for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md")]
    missing = {p.relative_to(ROOT).as_posix() for p in tracked} - names
    assert not missing
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
