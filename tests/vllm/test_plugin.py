# SPDX-License-Identifier: Apache-2.0
"""The plugin against stand-ins of vLLM: other signatures, no module, fork, spawn, eight workers.

Each case is a process of its own, because the swap is per process. The stand-in has the module that
the plugin looks for and nothing else; test_decode_path.py runs the real vLLM.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from helpers.fake_gpu import HELPERS, compile_library
from helpers.toolchain import GFX942, FakeCompiler, elf

from dsv41topk import vllm_plugin

FUNCTIONS = vllm_plugin.SIGNATURES


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A package `vllm` whose topk module has the expected functions, each answering "vllm"."""
    return write_stand_in(tmp_path, FUNCTIONS)


def write_stand_in(root: Path, functions: dict[str, tuple[str, ...]]) -> Path:
    folder = root.joinpath(*vllm_plugin.TARGET.split(".")[:-1])
    folder.mkdir(parents=True)
    for parent in [folder, *folder.parents]:
        if parent == root:
            break
        (parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("flag = False\ndef enabled(): return flag\n")
    body = "from . import enabled\n"
    for name, parameters in functions.items():
        body += f"def {name}({', '.join(parameters)}): return 'vllm'\n"
    (folder / "topk.py").write_text(body)
    return root


def run(root: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("DSV41TOPK_")}
    paths = [str(root), *[path for path in sys.path if path]]
    prelude = """
        import logging, sys
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
        from dsv41topk import vllm_plugin
        def target():
            import vllm.models.deepseek_v41.amd.ops.topk as topk
            return topk
    """
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(code)],
        env={
            **env,
            "PYTHONPATH": os.pathsep.join(paths),
            "DSV41TOPK_BACKEND": "cpu",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished


def test_register_imports_nothing_heavy(stand_in: Path) -> None:
    run(
        stand_in,
        """
        before = set(sys.modules)
        vllm_plugin.register()
        new = set(sys.modules) - before
        heavy = {"vllm", "torch", "triton", "aiter"}
        assert not {name.split(".")[0] for name in new} & heavy, new
        """,
    )


@pytest.mark.parametrize("first", ["register", "import"])
def test_swapped_once_whatever_the_order(stand_in: Path, first: str) -> None:
    run(
        stand_in,
        f"""
        from dsv41topk import hooks
        if {first!r} == "import": target()
        vllm_plugin.register(); vllm_plugin.register()
        topk = target()
        vllm_plugin.register()
        assert topk.decode_top_k is hooks.decode_top_k
        assert vllm_plugin.originals()["decode_top_k"](*range(5)) == "vllm"
        assert not any(type(finder).__name__ == "_Watcher" for finder in sys.meta_path)
        """,
    )


def test_module_keeps_its_source_and_name(stand_in: Path) -> None:
    run(
        stand_in,
        """
        import inspect
        vllm_plugin.register()
        topk = target()
        assert topk.__name__ == vllm_plugin.TARGET and "def build" in inspect.getsource(topk)
        """,
    )


def test_enabled_follows_the_flag_whenever_it_changes(stand_in: Path) -> None:
    run(
        stand_in,
        """
        import dsv41topk
        vllm_plugin.register()
        topk = target()
        assert topk.build() is True
        from vllm.models.deepseek_v41.amd import ops
        class Decode: requires_padding = False
        for flag in (False, True, False, True):
            ops.flag = flag
            assert dsv41topk.enabled() is flag
            assert topk.skip_decode_fill(False, 6, 6, Decode) is flag
        """,
    )


def test_build_says_once_what_serves(stand_in: Path) -> None:
    finished = run(
        stand_in,
        """
        vllm_plugin.register()
        topk = target()
        assert topk.build() and topk.build()
        """,
    )
    (line,) = [line for line in finished.stderr.splitlines() if "dsv41topk" in line]
    assert line.startswith("INFO vllm.dsv41topk") and "cpu" in line


def test_failed_build_puts_vllms_functions_back(stand_in: Path) -> None:
    finished = run(
        stand_in,
        """
        vllm_plugin.register()
        topk = target()
        ours = topk.build
        assert ours() is True, "the answer of the stand-in's build"
        assert topk.build() == "vllm" and ours() is True
        assert topk.decode_top_k(*range(5)) == "vllm"
        vllm_plugin.register()
        assert topk.decode_top_k(*range(5)) == "vllm"
        assert vllm_plugin.originals() == {}
        """,
        DSV41TOPK_BACKEND="hip",
    )
    assert len([line for line in finished.stderr.splitlines() if "dsv41topk" in line]) == 1


CHANGED = {
    "an argument more": {**FUNCTIONS, "decode_top_k": (*FUNCTIONS["decode_top_k"], "extra")},
    "an argument renamed": {
        **FUNCTIONS,
        "select_candidates": ("scores", "n", "lens", "size", "out"),
    },
    "a function missing": {k: v for k, v in FUNCTIONS.items() if k != "skip_decode_fill"},
}


@pytest.mark.parametrize("change", CHANGED)
def test_other_signatures_are_left_alone(tmp_path: Path, change: str) -> None:
    finished = run(
        write_stand_in(tmp_path, CHANGED[change]),
        """
        vllm_plugin.register()
        topk = target()
        vllm_plugin.register()
        assert topk.build() == "vllm" and vllm_plugin.originals() == {}
        """,
    )
    (line,) = [line for line in finished.stderr.splitlines() if "dsv41topk" in line]
    assert line.startswith("WARNING") and "0.33.0" in line


def test_vllm_without_the_module_warns_once(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    finished = run(
        tmp_path,
        """
        import vllm
        vllm_plugin.register(); vllm_plugin.register()
        """,
    )
    (line,) = [line for line in finished.stderr.splitlines() if "dsv41topk" in line]
    assert line.startswith("WARNING") and vllm_plugin.TARGET in line


def test_switched_off(stand_in: Path) -> None:
    finished = run(
        stand_in,
        """
        vllm_plugin.register()
        assert target().build() == "vllm"
        """,
        DSV41TOPK_VLLM="0",
    )
    assert "dsv41topk" not in finished.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("parent_imports_vllm", [False, True])
def test_workers_swap_once(stand_in: Path, method: str, parent_imports_vllm: bool) -> None:
    (stand_in / "worker.py").write_text(
        textwrap.dedent("""
        def work(queue):
            from dsv41topk import hooks, vllm_plugin
            vllm_plugin.register()
            import vllm.models.deepseek_v41.amd.ops.topk as topk
            vllm_plugin.register()
            original = vllm_plugin.originals()["decode_top_k"]
            queue.put((topk.decode_top_k is hooks.decode_top_k, original(*range(5)), topk.build()))
        """)
    )
    run(
        stand_in,
        f"""
        import multiprocessing, worker
        if __name__ == "__main__":
            vllm_plugin.register()
            if {parent_imports_vllm}: target()
            context = multiprocessing.get_context({method!r})
            queue = context.Queue()
            processes = [context.Process(target=worker.work, args=(queue,)) for _ in range(3)]
            for process in processes: process.start()
            answers = [queue.get(timeout=60) for _ in processes]
            for process in processes: process.join()
            assert answers == [(True, "vllm", True)] * 3, answers
        """,
    )


WORKER = """
    def work(library, barrier, queue):
        import ctypes, hashlib
        import numpy as np
        if library: ctypes.CDLL(library)
        from dsv41topk import _runtime, vllm_plugin
        vllm_plugin.register()
        import vllm.models.deepseek_v41.amd.ops.topk as topk
        from vllm.models.deepseek_v41.amd import ops
        ops.flag = True
        barrier.wait()
        built = topk.build()
        normal = np.random.default_rng(41).standard_normal((6, 20000), np.float32)
        logits = np.round(normal * 2)
        indices = np.full((6, 512), -7, np.int32)
        taken = topk.decode_top_k(logits, 6, np.full(1, 20000, np.int32), indices, 512)
        chosen = hashlib.sha256(indices.tobytes()).hexdigest()
        queue.put((built, taken, chosen, _runtime.describe()))
"""

EIGHT = """
    import multiprocessing, worker
    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        barrier, queue = context.Barrier(8), context.Queue()
        arguments = (LIBRARY, barrier, queue)
        processes = [context.Process(target=worker.work, args=arguments) for _ in range(8)]
        for process in processes: process.start()
        answers = [queue.get(timeout=100) for _ in processes]
        for process in processes: process.join()
        for answer in answers: print(*answer, sep="|")
"""


def eight_workers(root: Path, library: str | None, **environment: str) -> list[list[str]]:
    (root / "worker.py").write_text(textwrap.dedent(WORKER))
    code = textwrap.dedent(EIGHT).replace("LIBRARY", repr(library))
    finished = run(root, code, **environment)
    return [line.split("|") for line in finished.stdout.splitlines()]


def test_eight_workers_choose_the_same(stand_in: Path) -> None:
    answers = eight_workers(stand_in, None)
    assert [answer[:2] for answer in answers] == [["True", "True"]] * 8
    assert len({answer[2] for answer in answers}) == 1, "tied rows, and yet one result"


def test_eight_workers_compile_once(stand_in: Path) -> None:
    """A HIP runtime that shows a gfx942 on paper; its compiler writes down each run."""
    library = compile_library(
        stand_in / "rocm" / "libamdhip64.so.6", HELPERS / "fake_gpu.c", "-DFAKE_HIP"
    )
    compiler = FakeCompiler(stand_in / "bin", elf(**GFX942))
    answers = eight_workers(
        stand_in,
        str(library),
        DSV41TOPK_BACKEND="hip",
        DSV41TOPK_HIPCC=str(compiler.path),
        DSV41TOPK_CACHE_DIR=str(stand_in / "cache"),
    )
    # CPU tensors are not that device's: declined, so vLLM's own op would run.
    assert [answer[:2] for answer in answers] == [["True", "False"]] * 8
    assert sorted("compiled" in answer[3] for answer in answers) == [False] * 7 + [True]
    assert len(compiler.runs) == 1
