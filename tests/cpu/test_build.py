# SPDX-License-Identifier: Apache-2.0
"""`_build.py`: what serves, what is compiled when, and what no crash or stranger may break.

Most tests use a compiler of a few shell lines, so that they can count its runs, stop it, and let it
lie; the last ones compile for real and name the compiler that they need.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from helpers.toolchain import (
    GFX90A,
    GFX942,
    SM_90_CUDA_12,
    SM_90_CUDA_13,
    FakeCompiler,
    Tree,
    elf,
    entry_of,
    environment,
    redigest,
)

IS_ROOT = os.geteuid() == 0
NOBODY = 65534


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "tree").mkdir()
    return Tree(tmp_path / "tree")


@pytest.fixture
def build(tree: Tree) -> ModuleType:
    return tree.module()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, which the switches of this process name too."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DSV41TOPK_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    """A good compiler, the only one for gfx942."""
    return use(FakeCompiler(tmp_path / "bin"), monkeypatch)


def use(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    monkeypatch.setenv("DSV41TOPK_HIPCC", str(compiler.path))
    return compiler


def start(tree: Tree, settings: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """Start a builder: `python -m dsv41topk build`, in a process of its own."""
    command = [sys.executable, str(tree.script), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=settings, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str], seconds: float = 30.0) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail(f"a builder hung for {seconds} s")
    return process.returncode, out, err


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.01)


@contextlib.contextmanager
def ended_at_exit(compiler: FakeCompiler) -> Iterator[None]:
    """End the fake compilers that outlived a killed builder."""
    try:
        yield
    finally:
        for process in compiler.runs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)


# ---- several processes, threads and crashes ------------------------------------------------------


def test_eight_processes_compile_once(tree: Tree, tmp_path: Path) -> None:
    compiler = FakeCompiler(tmp_path / "bin", script="sleep 1")
    settings = environment(tmp_path / "cache", compiler.path)
    ended = [finish(process) for process in [start(tree, settings) for _ in range(8)]]
    assert [code for code, _, _ in ended] == [0] * 8, ended
    sources = sorted(out.split()[1] for _, out, _ in ended)
    assert sources == ["cache,"] * 7 + ["compiled,"]
    assert len(compiler.runs) == 1
    waited = sum("waiting for another process" in err for _, _, err in ended)
    assert waited >= 1, "nobody waited, so the test has not tested the lock"


def test_a_killed_builder_blocks_nobody(tree: Tree, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    slow_once = f'[ -e "{tmp_path}/once" ] || {{ touch "{tmp_path}/once"; sleep 60; }}'
    compiler = FakeCompiler(tmp_path / "bin", script=slow_once)
    settings = environment(cache, compiler.path)
    with ended_at_exit(compiler):
        victim = start(tree, settings)
        wait_until(lambda: compiler.runs, "the first builder's compiler starts")
        waiting = start(tree, settings)
        time.sleep(0.5)
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        assert list(cache.glob("work-*")), "the kill left no folder, so nothing is cleaned below"
        code, out, err = finish(waiting)
        assert (code, out.split()[1]) == (0, "compiled,"), err
        code, out, err = finish(start(tree, settings))
        assert (code, out.split()[1]) == (0, "cache,"), err
    assert len(compiler.runs) == 2
    assert not list(cache.glob("work-*"))


def test_two_threads_compile_once(
    build: ModuleType, cache: Path, tmp_path: Path, monkeypatch
) -> None:
    compiler = use(FakeCompiler(tmp_path / "bin", script="sleep 0.5"), monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: build.code_object("gfx942"), range(4)))
    assert sorted(one.source for one in made) == ["cache"] * 3 + ["compiled"]
    assert {one.image for one in made} == {elf(**GFX942)}
    assert len(compiler.runs) == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_forked_during_the_build_does_not_keep_the_lock(
    build: ModuleType, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = use(FakeCompiler(tmp_path / "bin", script="sleep 1"), monkeypatch)
    builder = threading.Thread(target=build.code_object, args=("gfx942",))
    builder.start()
    wait_until(lambda: compiler.runs, "the compiler starts")
    # Not in the instant in which `subprocess.Popen` itself starts it: that has a pipe of its own,
    # which a child forked just then keeps open as long as it lives.
    time.sleep(0.2)
    child = os.fork()
    if child == 0:  # it has inherited the lock's descriptor, and lives on
        time.sleep(60)
        os._exit(0)
    try:
        builder.join()
        shutil.rmtree(entry_of(cache))
        started = time.monotonic()
        assert build.code_object("gfx942").source == "compiled"
        assert time.monotonic() - started < 10
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_forked_after_the_build_finds_it(build, cache, compiler) -> None:
    assert build.code_object("gfx942").source == "compiled"
    child = os.fork()
    if child == 0:
        os._exit(0 if build.code_object("gfx942").source == "cache" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_holder_that_never_ends_is_not_waited_for(build, cache, compiler, monkeypatch) -> None:
    monkeypatch.setattr(build, "LOCK_TIMEOUT_S", 0.3)
    key = build.find_compilers("gfx942")[0].key("gfx942")
    with build._Cache().lock(key):
        made = build.code_object("gfx942")
    assert (made.source, made.path) == ("compiled", None)
    assert "is locked" in made.note


# ---- compilers that fail -------------------------------------------------------------------------


def test_a_failing_compiler_is_quoted(build, cache, tmp_path, monkeypatch) -> None:
    script = 'for i in $(seq 22); do echo "line $i."; done'
    compiler = use(FakeCompiler(tmp_path / "bin", None, script=script, exit_code=3), monkeypatch)
    with pytest.raises(build.BuildError) as caught:
        build.code_object("gfx942")
    assert caught.value.exit_code == 3
    assert caught.value.command[0] == str(compiler.path)
    assert caught.value.output.splitlines() == [f"line {i}." for i in range(3, 23)]
    text = str(caught.value)
    assert "exit code 3" in text and str(compiler.path) in text and "line 22." in text
    assert "line 2." not in text.splitlines()
    assert not list(cache.glob("work-*"))


def test_a_failure_is_shared_with_those_who_waited_and_tried_again_later(tree, tmp_path) -> None:
    compiler = FakeCompiler(tmp_path / "bin", None, script="sleep 2; echo broken", exit_code=1)
    settings = environment(tmp_path / "cache", compiler.path)
    ended = [finish(process) for process in [start(tree, settings) for _ in range(4)]]
    assert [code for code, _, _ in ended] == [1] * 4
    assert all("exit code 1" in err and "broken" in err for _, _, err in ended), ended
    runs = len(compiler.runs)
    assert runs < 4, "four processes waited for each other's failures one after another"
    assert finish(start(tree, settings))[0] == 1
    assert len(compiler.runs) == runs + 1


def test_a_hanging_compiler_is_stopped_with_its_children(
    build, cache, tmp_path, monkeypatch
) -> None:
    script = 'sleep 60 & echo "env CHILD=$!" >> "$log"; wait'
    compiler = use(FakeCompiler(tmp_path / "bin", script=script), monkeypatch)
    monkeypatch.setattr(build, "COMPILE_TIMEOUT_S", 1.0)
    started = time.monotonic()
    with pytest.raises(build.BuildError, match="did not finish in 1 s and was stopped"):
        build.code_object("gfx942")
    assert time.monotonic() - started < 20, "the timeout waited for the compiler after all"
    for process in (compiler.runs[0], int(compiler.environment["CHILD"])):
        wait_until(lambda: not _runs(process), "the compiler's process ends")  # noqa: B023
    assert not list(cache.glob("work-*"))


def test_a_server_that_the_compiler_leaves_behind_is_not_waited_for(
    build, cache, tmp_path, monkeypatch
) -> None:
    """A pipe to the compiler stays open in such a server, and in a child forked meanwhile."""
    compiler = use(FakeCompiler(tmp_path / "bin", script="sleep 60 & echo started"), monkeypatch)
    with ended_at_exit(compiler):
        started = time.monotonic()
        assert build.code_object("gfx942").source == "compiled"
        assert time.monotonic() - started < 20


def _runs(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (elf(**GFX90A), "must be for gfx942, got one for AMD GPU number 0x3f"),
        (elf(**SM_90_CUDA_13), "must be for gfx942, got one for sm_90"),
        (elf(**GFX942)[:-30], "is truncated at"),
        (b"", "must be a 64-bit little-endian ELF"),
        (None, "left no code object"),
    ],
    ids=["gfx90a", "sm_90", "truncated", "empty", "none"],
)
def test_what_the_compiler_made_is_looked_at(
    build, cache, tmp_path, monkeypatch, image, reason
) -> None:
    use(FakeCompiler(tmp_path / "bin", image), monkeypatch)
    with pytest.raises(build.BuildError, match=reason):
        build.code_object("gfx942")
    assert not list(cache.glob("code-*"))


def test_no_compiler(build, cache, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    if Path("/opt/rocm/bin/hipcc").exists():
        pytest.skip("this machine has a hipcc in /opt/rocm, which is always looked for")
    with pytest.raises(build.BuildError) as caught:
        build.code_object("gfx942")
    text = str(caught.value)
    assert "no code object for gfx942" in text and "no compiler (none found)" in text
    assert "DSV41TOPK_HIPCC" in text


def test_a_chosen_compiler_that_is_not_there(build, cache, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DSV41TOPK_HIPCC", str(tmp_path / "absent"))
    with pytest.raises(
        build.BuildError, match=r"DSV41TOPK_HIPCC must name a compiler .* got .*absent"
    ):
        build.code_object("gfx942")


def test_a_compiler_without_the_target_is_passed_over(build, cache, tmp_path, monkeypatch) -> None:
    FakeCompiler(tmp_path / "bin", None, exit_code=1, name="hipcc", version="too old")
    good = FakeCompiler(tmp_path / "bin", name="clang++-19", version="clang 19")
    (tmp_path / "bin" / "cp").symlink_to(shutil.which("cp") or "/bin/cp")
    for tool in ("env", "sed"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or f"/usr/bin/{tool}")
    monkeypatch.delenv("DSV41TOPK_HIPCC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert build.code_object("gfx942").source == "compiled"
    assert len(good.runs) == 2, "one probe, one compilation"
    assert build.code_object("gfx942").source == "cache"
    assert len(good.runs) == 2, "a hit needs no probe"


# ---- what counts in the hash ---------------------------------------------------------------------


def test_the_hash_covers_what_the_object_depends_on(tree, build, cache, compiler) -> None:
    assert build.code_object("gfx942").source == "compiled"
    for name in ("abi.h", "device/platform.h", "kernels/second.hip"):
        path = tree.csrc / name
        path.write_text(path.read_text() + "// edited\n")
        assert build.code_object("gfx942").source == "compiled", name
        assert build.code_object("gfx942").source == "cache", name
    (tree.csrc / "device" / "new.h").write_text("")
    assert build.code_object("gfx942").source == "compiled", "a new header"
    (tree.csrc / "device" / "new.h").rename(tree.csrc / "device" / "renamed.h")
    assert build.code_object("gfx942").source == "compiled", "a renamed header"
    for name in ("launch.c", "cpu/top_k.h", "README.md"):
        (tree.csrc / name).write_text("edited\n")
        assert build.code_object("gfx942").source == "cache", name


def test_the_hash_covers_flags_and_compiler(build, cache, tmp_path, compiler, monkeypatch) -> None:
    assert build.code_object("gfx942").source == "compiled"
    with monkeypatch.context() as patch:
        patch.setattr(build, "HIP_FLAGS", (*build.HIP_FLAGS, "-g"))
        assert build.code_object("gfx942").source == "compiled"
    use(FakeCompiler(tmp_path / "bin", name="newer", version="fake clang version 20"), monkeypatch)
    assert build.code_object("gfx942").source == "compiled"
    use(FakeCompiler(tmp_path / "bin", name="same"), monkeypatch)
    assert build.code_object("gfx942").source == "cache"


def test_the_environment_changes_nothing(build, cache, compiler, monkeypatch) -> None:
    foreign = {
        "PYTORCH_ROCM_ARCH": "gfx90a;gfx1100",
        "HCC_AMDGPU_TARGET": "gfx906",
        "HIPCC_COMPILE_FLAGS_APPEND": "-ffast-math --offload-arch=gfx90a",
        "HIPCC_LINK_FLAGS_APPEND": "-lfoo",
        "CCC_OVERRIDE_OPTIONS": "+-ffast-math",
        "NVCC_APPEND_FLAGS": "-use_fast_math",
        "CPATH": "/somewhere",
        "CPLUS_INCLUDE_PATH": "/somewhere",
    }
    for name, value in foreign.items():
        monkeypatch.setenv(name, value)
    assert build.code_object("gfx942").source == "compiled"
    assert not foreign.keys() & compiler.environment.keys()
    for name in foreign:
        monkeypatch.delenv(name)
    assert build.code_object("gfx942").source == "cache"


# ---- the cache folder ----------------------------------------------------------------------------


def test_which_folder(build, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/home/operator")
    for name in ("DSV41TOPK_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert build.cache_folder() == Path("/home/operator/.cache/dsv41topk")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert build.cache_folder() == Path("/home/operator/.cache/dsv41topk")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert build.cache_folder() == Path("/xdg/dsv41topk")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/torch")
    assert build.cache_folder() == Path("/torch/dsv41topk")
    monkeypatch.setenv("DSV41TOPK_CACHE_DIR", "/own")
    assert build.cache_folder() == Path("/own")


def _truncate(entry: Path) -> None:
    (entry / "data").write_bytes((entry / "data").read_bytes()[:40])


def _flip(entry: Path) -> None:
    data = bytearray((entry / "data").read_bytes())
    data[66] ^= 1
    (entry / "data").write_bytes(data)


def _of_another_key(entry: Path) -> None:
    words = (entry / "entry.json").read_text()
    key = entry.name.removeprefix("code-")
    (entry / "entry.json").write_text(words.replace(key, "0" * len(key)))


def _link(entry: Path) -> None:
    entry.rename(entry.with_name("elsewhere"))
    entry.symlink_to(entry.with_name("elsewhere"))


def _dangling_link(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.symlink_to("nowhere")


def _link_data(entry: Path) -> None:
    (entry / "data").rename(entry / "real")
    (entry / "data").symlink_to("real")


def _file(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_bytes(elf(**GFX942))


def _fifo(entry: Path) -> None:
    (entry / "data").unlink()
    os.mkfifo(entry / "data")


DAMAGES = {
    "truncated": _truncate,
    "a byte altered": _flip,
    "no digest": lambda entry: (entry / "entry.json").unlink(),
    "digest not JSON": lambda entry: (entry / "entry.json").write_text("{"),
    "digest not a table": lambda entry: (entry / "entry.json").write_text("[]"),
    "no data": lambda entry: (entry / "data").unlink(),
    "of another key": _of_another_key,
    "another architecture": lambda entry: redigest(entry, elf(**GFX90A)),
    "not an object": lambda entry: redigest(entry, b"#!/bin/sh\n" * 20),
    "a link": _link,
    "a dangling link": _dangling_link,
    "data a link": _link_data,
    "a file": _file,
    "data a pipe": _fifo,
    "data writable by others": lambda entry: (entry / "data").chmod(0o666),
    "folder writable by others": lambda entry: entry.chmod(0o777),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_or_foreign_entry_is_rebuilt(build, cache, compiler, damage) -> None:
    build.code_object("gfx942")
    damage(entry_of(cache))
    made = build.code_object("gfx942")
    assert (made.source, made.image) == ("compiled", elf(**GFX942))
    made = build.code_object("gfx942")
    assert (made.source, made.image) == ("cache", elf(**GFX942))
    assert made.path is not None and made.path.read_bytes() == made.image


@pytest.mark.skipif(not IS_ROOT, reason="giving a file to another user takes root")
def test_an_entry_of_another_user_is_rebuilt(build, cache, compiler) -> None:
    build.code_object("gfx942")
    os.chown(entry_of(cache) / "data", NOBODY, NOBODY)
    assert build.code_object("gfx942").source == "compiled"


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777, 0o757])
def test_a_folder_that_others_can_write_to_is_refused(build, cache, compiler, mode) -> None:
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(build.BuildError) as caught:
        build.code_object("gfx942")
    assert f"{cache} can be written to by others (mode {mode:o})" in str(caught.value)
    assert compiler.runs == []


def test_a_folder_that_others_can_replace_is_refused(
    build, tmp_path, compiler, monkeypatch
) -> None:
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(0o777)
    monkeypatch.setenv("DSV41TOPK_CACHE_DIR", str(parent / "inner" / "cache"))
    with pytest.raises(build.BuildError, match="open can be written to by others"):
        build.code_object("gfx942")
    parent.chmod(0o1777)  # as /tmp: others can write, but not rename what is ours
    assert build.code_object("gfx942").source == "compiled"


@pytest.mark.skipif(not IS_ROOT, reason="giving a folder to another user takes root")
def test_a_folder_of_another_user_is_refused(build, cache, compiler) -> None:
    cache.mkdir()
    os.chown(cache, NOBODY, NOBODY)
    with pytest.raises(build.BuildError, match=f"belongs to user {NOBODY}"):
        build.code_object("gfx942")


def test_new_folders_are_closed_to_others_whatever_the_umask(build, cache, compiler) -> None:
    before = os.umask(0)
    try:
        build.code_object("gfx942")
    finally:
        os.umask(before)
    for path in (cache, *cache.rglob("*")):
        assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH), path


def as_nobody(function: Callable[[], str]) -> str:
    """Call it in a child process that has given up root, and return its text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, function().encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        return pipe.read().decode()


@pytest.mark.skipif(not IS_ROOT, reason="becoming another user takes root")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_read_only_cache_is_read_and_done_without(monkeypatch) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        root = Path(name)
        root.chmod(0o755)
        (root / "tree").mkdir()
        build = Tree(root / "tree").module()
        compiler = use(FakeCompiler(root / "bin"), monkeypatch)
        (root / "bin" / "fake-clang.log").chmod(0o666)
        (root / "cache").mkdir()
        monkeypatch.setenv("DSV41TOPK_CACHE_DIR", str(root / "cache"))

        def words() -> str:
            made = build.code_object("gfx942")
            assert made.image == elf(**GFX942)
            return f"{made.source} {made.note}"

        assert as_nobody(words).startswith("compiled not cached: [Errno 13] Permission denied")
        assert words() == "compiled "
        assert as_nobody(words) == "cache ", "what root has built serves an ordinary user"
        assert len(compiler.runs) == 2


def test_no_folder_at_all_is_done_without(build, tmp_path, compiler, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DSV41TOPK_CACHE_DIR", str(tmp_path / "file" / "cache"))
    made = build.code_object("gfx942")
    assert (made.source, made.path, made.image) == ("compiled", None, elf(**GFX942))
    assert "not cached: " in made.note and str(tmp_path / "file") in made.note


def test_a_full_disk_is_named_and_done_without(build, cache, compiler, monkeypatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "data")

    monkeypatch.setattr(build.os, "fsync", full)
    made = build.code_object("gfx942")
    assert (made.source, made.path, made.image) == ("compiled", None, elf(**GFX942))
    assert "No space left on device" in made.note
    assert len(compiler.runs) == 1
    assert not list(cache.glob("work-*")) and not list(cache.glob("code-*"))


def test_no_place_to_compile_is_said(build, cache, compiler, monkeypatch) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp")

    monkeypatch.setattr(build.tempfile, "mkdtemp", full)
    with pytest.raises(build.BuildError, match=r"needs a temporary folder: .*No space left"):
        build.code_object("gfx942")


# ---- small values in the same cache --------------------------------------------------------------


def test_small_values(build, cache) -> None:
    assert build.cache_get("selfcheck", "dense a, ours b") is None
    assert build.cache_put("selfcheck", "dense a, ours b", {"differing": 0})
    assert build.cache_get("selfcheck", "dense a, ours b") == {"differing": 0}
    assert build.cache_get("selfcheck", "dense a, ours c") is None
    assert build.cache_get("other", "dense a, ours b") is None
    assert build.cache_put("selfcheck", "dense a, ours b", {"differing": 3})
    assert build.cache_get("selfcheck", "dense a, ours b") == {"differing": 3}
    (entry,) = cache.glob("selfcheck-*")
    (entry / "data").write_text('{"differing": 0}')
    assert build.cache_get("selfcheck", "dense a, ours b") is None


def test_small_values_never_raise(build, cache) -> None:
    assert build.cache_put("selfcheck", "key", object()) is False
    assert build.cache_put("selfcheck", "key", 1)
    cache.chmod(0o777)
    assert build.cache_get("selfcheck", "key") is None
    assert build.cache_put("selfcheck", "key", 1) is False


# ---- shipped objects -----------------------------------------------------------------------------


def test_a_shipped_object_goes_first(tree, build, cache, compiler, monkeypatch) -> None:
    path = build.aot(build.SHIPPED)
    assert path == build.SHIPPED / "gfx942.co"
    assert not cache.exists(), "compiling for the package leaves the user's cache alone"
    monkeypatch.setenv("DSV41TOPK_HIPCC", "/absent")
    made = build.code_object("gfx942")
    assert (made.source, made.path, made.image) == ("shipped", path, elf(**GFX942))
    assert made.arch == "gfx942" and made.backend == "hip"
    header = tree.csrc / "device" / "platform.h"
    header.write_text(header.read_text() + "// edited\n")
    use(compiler, monkeypatch)
    assert build.code_object("gfx942").source == "compiled", "made from other sources"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(elf(**GFX942) + b"more"), "is damaged"),
        (lambda path: path.with_suffix(".json").write_text("{}"), "cannot be used"),
        (lambda path: path.unlink(), "ships none"),
    ],
    ids=["altered", "no digest", "absent"],
)
def test_a_damaged_shipped_object_is_not_served(
    build, cache, compiler, tmp_path, monkeypatch, damage, reason
) -> None:
    path = build.aot(build.SHIPPED)
    damage(path)
    assert build.code_object("gfx942").source == "compiled"
    monkeypatch.setattr(build, "find_compilers", lambda arch: [])
    with pytest.raises(build.BuildError, match=reason):
        build.code_object("gfx942")


def test_ahead_of_time_without_a_compiler(build, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(build, "find_compilers", lambda arch: [])
    assert build.aot(tmp_path / "objects") is None
    assert not (tmp_path / "objects").exists()


# ---- which backend -------------------------------------------------------------------------------


def devices(**arch: str) -> Callable[[str], str]:
    def device_arch(name: str) -> str:
        if name not in arch:
            raise LookupError(f"no {name} here")
        return arch[name]

    return device_arch


def test_backend_auto(build, cache, compiler) -> None:
    made = build.provide("auto", devices(hip="gfx942:sramecc+:xnack-"))
    assert (made.backend, made.arch, made.source) == ("hip", "gfx942", "compiled")
    made = build.provide("auto", devices())
    assert (made.backend, made.image, made.path) == ("cpu", None, None)
    assert "no hip here" in made.note and "no cuda here" in made.note


@pytest.mark.parametrize("arch", ["gfx90a:sramecc+:xnack-", "gfx950", "sm_90"])
def test_a_gpu_that_has_no_kernels(build, cache, compiler, arch) -> None:
    made = build.provide("auto", devices(hip=arch))
    assert made.backend == "cpu"
    assert f"there are no kernels for {arch}" in made.note
    with pytest.raises(build.BuildError, match="there are no kernels for"):
        build.provide("hip", devices(hip=arch))
    assert compiler.runs == []


def test_a_named_backend_is_that_one_or_nothing(build, cache, compiler) -> None:
    assert build.provide("hip", devices(hip="gfx942", cuda="sm_90")).backend == "hip"
    with pytest.raises(build.BuildError, match="no hip here"):
        build.provide("hip", devices(cuda="sm_90"))
    with pytest.raises(build.BuildError, match="no cuda here"):
        build.provide("cuda", devices(hip="gfx942"))
    assert build.provide("cpu", devices(hip="gfx942")).backend == "cpu"
    with pytest.raises(build.BuildError, match="must be auto, hip, cuda or cpu, got rocm"):
        build.provide("rocm", devices())


def test_a_broken_build_for_the_gpu_does_not_end_on_the_cpu(
    build, cache, tmp_path, monkeypatch
) -> None:
    use(FakeCompiler(tmp_path / "bin", None, exit_code=1), monkeypatch)
    with pytest.raises(build.BuildError, match="exit code 1"):
        build.provide("auto", devices(hip="gfx942"))


# ---- the command ---------------------------------------------------------------------------------


def test_the_command(tree, tmp_path) -> None:
    compiler = FakeCompiler(tmp_path / "bin")
    settings = environment(tmp_path / "cache", compiler.path)
    code, out, err = finish(start(tree, settings, "--output", str(tmp_path / "out")))
    assert code == 0, err
    assert out.startswith("gfx942: compiled, ") and out.rstrip().endswith("gfx942.co")
    assert err.startswith("compiling 2 files for gfx942 with ")
    assert (tmp_path / "out" / "gfx942.co").read_bytes() == elf(**GFX942)
    broken = FakeCompiler(tmp_path / "bin", None, exit_code=7, name="broken", version="other")
    code, out, err = finish(start(tree, environment(tmp_path / "cache", broken.path)))
    assert (code, out) == (1, "")
    assert "build failed: compiling for gfx942 ended with exit code 7" in err


# ---- real compilers ------------------------------------------------------------------------------


needs_clang = pytest.mark.skipif(
    shutil.which("clang++-19") is None or shutil.which("ld.lld-19") is None,
    reason="needs clang-19 and lld-19",
)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc in PATH")


@pytest.mark.parametrize("image", [SM_90_CUDA_12, SM_90_CUDA_13])
def test_cuda_objects_name_their_architecture(build, image) -> None:
    build.check_image(elf(**image), "sm_90")
    with pytest.raises(build.BuildError, match="must be for gfx942, got one for sm_90"):
        build.check_image(elf(**image), "gfx942")
    with pytest.raises(build.BuildError, match="must be for sm_90, got one for sm_89"):
        build.check_image(elf(**{**image, "flags": image["flags"] - 0x101}), "sm_90")


@needs_clang
def test_clang_compiles_a_small_tree(tree, build, cache, monkeypatch) -> None:
    monkeypatch.setenv("DSV41TOPK_HIPCC", "clang++-19")
    monkeypatch.setenv("PYTORCH_ROCM_ARCH", "gfx90a")
    made = build.code_object("gfx942")
    assert made.source == "compiled"
    build.check_image(made.image, "gfx942")
    assert b"first_kernel" in made.image and b"second_kernel" in made.image
    (tree.csrc / "kernels" / "first.hip").write_text("#error no tuning for this architecture\n")
    with pytest.raises(build.BuildError, match="no tuning for this architecture") as caught:
        build.code_object("gfx942")
    assert caught.value.exit_code == 1


@needs_clang
def test_clang_is_stopped_by_its_target(tree, build, cache, monkeypatch) -> None:
    monkeypatch.setenv("DSV41TOPK_HIPCC", "clang++-19")
    flags = [flag.replace("gfx942", "gfx90a") for flag in build.HIP_FLAGS]
    monkeypatch.setattr(build, "HIP_FLAGS", tuple(flags))
    with pytest.raises(build.BuildError, match="must be for gfx942, got one for AMD GPU number"):
        build.code_object("gfx942")


@needs_nvcc
def test_nvcc_compiles_a_small_tree(tree, build, cache) -> None:
    made = build.code_object("sm_90")
    assert (made.source, made.backend) == ("compiled", "cuda")
    build.check_image(made.image, "sm_90")
