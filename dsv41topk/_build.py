# SPDX-License-Identifier: Apache-2.0
"""Find or compile the code object that the launchers load.

Order: the object shipped in the package, if it was made from these very sources; the cache; a
compiler. Whatever is served has been checked to be an ELF file for the device's architecture.

Several processes start at once (one a GPU), so a cache entry is made under `flock`, with a second
look once the lock is had, in a temporary folder that is renamed into place: a reader sees a whole
entry or none, and a builder that is killed leaves only a folder, which the next one removes.

Nothing but the standard library is imported, and nothing of this package: `setup.py` loads this
file by its path, before the extension modules exist.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

__all__ = [
    "BuildError",
    "Provided",
    "aot",
    "cache_folder",
    "cache_get",
    "cache_put",
    "check_image",
    "choose_compiler",
    "code_object",
    "compile_image",
    "find_compilers",
    "main",
    "provide",
    "source_hash",
]

PACKAGE = Path(__file__).resolve().parent
SHIPPED = PACKAGE / "objects"
"""Where `setup.py` puts objects that were compiled with the package."""

BACKEND_OF_ARCH = {"gfx942": "hip", "sm_90": "cuda"}

COMPILE_TIMEOUT_S = 300.0
"""A compiler that hangs is killed after this; the kernels take seconds."""

LOCK_TIMEOUT_S = COMPILE_TIMEOUT_S + 60.0
"""Who holds a lock for longer was stopped, not slow: compile without the cache then."""

HIP_FLAGS = (
    "-x", "hip", "--offload-arch=gfx942", "--cuda-device-only", "--no-gpu-bundle-output",
    "-nogpuinc", "-nogpulib", "-std=c++17", "-O3", "-fno-fast-math",
)  # fmt: skip
"""hipcc and clang take the same. Neither HIP's headers nor its device libraries are needed.

The last flag is against -ffast-math in a configuration file of clang's."""

CUDA_FLAGS = ("-x", "cu", "-arch=sm_90", "-cubin", "-std=c++17", "-O3")

_PASSED_ENVIRONMENT = (
    "PATH", "HOME", "LD_LIBRARY_PATH", "ROCM_PATH", "HIP_PATH", "HIP_CLANG_PATH", "CUDA_HOME",
)  # fmt: skip
# Everything else stays out of the compiler's sight: PYTORCH_ROCM_ARCH, HIPCC_COMPILE_FLAGS_APPEND,
# NVCC_APPEND_FLAGS, CPATH and their like would change the object behind the hash's back.

_ENTRY_FORMAT = "1"
_LOCK_POLL_S = 0.05
_PROGRESS_S = 0.5

Progress = Callable[[str, float], None]
"""Takes what is being done and for how many seconds; called again and again meanwhile."""


class BuildError(RuntimeError):
    """No code object can be had. The text says why.

    Attributes
    ----------
    command : list of str or None
        What was run, where something was.
    exit_code : int or None
        How it ended; None when it was stopped.
    output : str
        The last 20 lines that it wrote.
    """

    def __init__(
        self,
        message: str,
        command: list[str] | None = None,
        exit_code: int | None = None,
        output: str = "",
    ) -> None:
        self.command = command
        self.exit_code = exit_code
        self.output = "\n".join(output.rstrip().splitlines()[-20:])
        text = message
        if command:
            text += f"\n$ {' '.join(command)}"
        if self.output:
            text += f"\n{self.output}"
        super().__init__(text)


class _NotForThisDeviceError(BuildError):
    """Neither an object nor a compiler for the device: backend `auto` looks further."""


@dataclass(frozen=True)
class Provided:
    """What serves, and where it came from."""

    backend: str
    """`hip`, `cuda` or `cpu`."""
    image: bytes | None
    """The code object; None for the CPU, whose kernels are in the extension."""
    arch: str
    """Of the image (`gfx942`), or the machine's (`x86_64`)."""
    source: str
    """`shipped`, `cache` or `compiled`."""
    seconds: float
    path: Path | None
    """The file that holds the image; None when it is in memory only."""
    note: str = ""
    """What an operator may want to know: why a GPU was passed over, why nothing was cached."""


# ---- sources and compilers -----------------------------------------------------------------------


def source_folder() -> Path:
    """Return `csrc`: inside an installed package, beside it in a checkout."""
    for folder in (PACKAGE / "csrc", PACKAGE.parent / "csrc"):
        if (folder / "abi.h").is_file():
            return folder
    raise BuildError(f"the kernel sources are missing: no csrc/abi.h in or beside {PACKAGE}")


def source_files() -> list[Path]:
    """Return every file that a code object depends on: kernels and headers, but not the host's."""
    root = source_folder()
    files = (path for path in root.rglob("*") if path.is_file())
    return sorted(
        path
        for path in files
        if path.suffix not in (".c", ".md") and path.relative_to(root).parts[0] != "cpu"
    )


def source_hash() -> str:
    """Return the digest of names and contents of `source_files`; abi.h brings the ABI version."""
    root = source_folder()
    digest = hashlib.sha256()
    for path in source_files():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


@dataclass(frozen=True)
class Compiler:
    """A compiler and the words that it describes itself with."""

    path: str
    version: str
    flags: tuple[str, ...]

    @property
    def title(self) -> str:
        """Path and version in one line, for messages; hipcc may print complaints before it."""
        lines = self.version.splitlines()
        return f"{self.path} ({next((line for line in lines if 'version' in line), lines[0])})"

    def key(self, arch: str) -> str:
        """Name the cache entry of what this compiler makes for `arch`."""
        return _hash(_ENTRY_FORMAT, arch, *self.flags, self.version, source_hash())


def find_compilers(arch: str) -> list[Compiler]:
    """Return the compilers to try for `arch`, best first; those that do not run are left out.

    `DSV41TOPK_HIPCC` names the only one for gfx942, and one that does not run is an error then.
    """
    if BACKEND_OF_ARCH[arch] == "cuda":
        home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        flags: tuple[str, ...] = CUDA_FLAGS
        names = ["nvcc", f"{home}/bin/nvcc"]
    else:
        rocm = os.environ.get("ROCM_PATH", "/opt/rocm")
        flags = HIP_FLAGS
        names = ["hipcc", f"{rocm}/bin/hipcc", "/opt/rocm/bin/hipcc", f"{rocm}/llvm/bin/clang++"]
        names += ["clang++-19", "clang++-20", "clang++-21", "clang++-22", "clang++"]
        chosen = os.environ.get("DSV41TOPK_HIPCC")
        if chosen:
            path = shutil.which(chosen)
            version = _compiler_version(path) if path else None
            if path is None or version is None:
                rule = "must name a compiler that answers --version"
                raise BuildError(f"DSV41TOPK_HIPCC {rule}, got {chosen}")
            return [Compiler(str(Path(path).absolute()), version, flags)]
    found: dict[Path, Compiler] = {}
    for name in names:
        path = shutil.which(name)
        if path is None or Path(path).resolve() in found:
            continue
        version = _compiler_version(path)
        if version is not None:
            found[Path(path).resolve()] = Compiler(str(Path(path).absolute()), version, flags)
    return list(found.values())


def _compiler_version(path: str) -> str | None:
    try:
        code, output = _run([path, "--version"], cwd=None, timeout=30.0)
    except (OSError, BuildError):
        return None
    return output.strip() or None if code == 0 else None


def _can_compile(compiler: Compiler, arch: str) -> bool:
    """Try an empty kernel: a clang without the AMD target, or without lld, is passed over."""
    try:
        with _temporary_folder() as folder:
            probe = 'extern "C" __attribute__((global)) void probe_kernel() {}\n'
            (folder / "probe.hip").write_text(probe)
            command = [compiler.path, *compiler.flags, "probe.hip", "-o", "probe.co"]
            code, _ = _run(command, cwd=folder, timeout=60.0)
            check_image((folder / "probe.co").read_bytes(), arch)
            return code == 0
    except (OSError, BuildError):
        return False


def _run(
    command: list[str],
    cwd: Path | None,
    timeout: float,
    tick: Callable[[float], None] | None = None,
) -> tuple[int, str]:
    """Run a compiler to its end or to the timeout; return exit code and output."""
    environment = {name: os.environ[name] for name in _PASSED_ENVIRONMENT if name in os.environ}
    environment |= {"LC_ALL": "C", "HIP_PLATFORM": "amd"}
    if cwd is not None:
        environment["TMPDIR"] = str(cwd)  # its temporaries go when the folder goes
    started = time.monotonic()
    # Into a file, not a pipe: a compile cache's server that the compiler starts, or a child that
    # another thread forks at the wrong moment, keeps a pipe open, and its end would be waited for.
    # A session of its own: hipcc and nvcc are drivers, and a timeout must end their children too.
    with (
        tempfile.TemporaryFile(dir=cwd) as output,
        subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            while True:
                try:
                    code = process.wait(min(_PROGRESS_S, timeout))
                    break
                except subprocess.TimeoutExpired:
                    elapsed = time.monotonic() - started
                    if elapsed >= timeout:
                        message = f"{command[0]} did not finish in {timeout:g} s and was stopped"
                        raise BuildError(message, command) from None
                    if tick is not None:
                        tick(elapsed)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        output.seek(0)
        return code, output.read().decode(errors="replace")


@contextlib.contextmanager
def _temporary_folder(parent: Path | None = None, prefix: str = "dsv41topk-") -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def choose_compiler(compilers: list[Compiler], arch: str) -> Compiler | None:
    """Return the first that can make an object for `arch`, if any; the only one goes unprobed.

    A single compiler that cannot will say why when it compiles, which tells more than a probe.
    """
    if len(compilers) == 1:
        return compilers[0]
    return next((compiler for compiler in compilers if _can_compile(compiler, arch)), None)


def compile_image(
    compiler: Compiler, arch: str, folder: Path, progress: Progress | None = None
) -> bytes:
    """Compile all kernels as one unit in `folder` and return the checked code object.

    One unit, because a device holds one module: kernels of two files share a name space.
    """
    root = source_folder()
    kernels = sorted((root / "kernels").glob("*.hip"))
    if not kernels:
        raise BuildError(f"there is no kernel to compile in {root / 'kernels'}")
    unit = "".join(f'#include "kernels/{path.name}"\n' for path in kernels)
    (folder / "unit.hip").write_text(unit)
    command = [compiler.path, *compiler.flags, "-I", str(root), "unit.hip", "-o", "unit.co"]

    def tick(seconds: float) -> None:
        if progress is not None:
            what = f"compiling {len(kernels)} files for {arch} with {compiler.title}"
            progress(what, seconds)

    tick(0.0)
    try:
        code, output = _run(command, folder, COMPILE_TIMEOUT_S, tick)
    except OSError as error:
        raise BuildError(f"compiling for {arch} could not start: {error}", command) from error
    if code != 0:
        message = f"compiling for {arch} ended with exit code {code}"
        raise BuildError(message, command, code, output)
    try:
        image = (folder / "unit.co").read_bytes()
    except OSError as error:
        message = f"compiling for {arch} left no code object: {error}"
        raise BuildError(message, command, code, output) from error
    check_image(image, arch)
    return image


def check_image(image: bytes, arch: str) -> None:
    """Raise BuildError unless `image` is an ELF code object for exactly `arch`."""
    if len(image) < 64 or image[:6] != b"\x7fELF\x02\x01":
        raise BuildError("the code object must be a 64-bit little-endian ELF file")
    (machine,) = struct.unpack_from("<H", image, 18)
    (section_table,) = struct.unpack_from("<Q", image, 40)
    (flags,) = struct.unpack_from("<I", image, 48)
    section_bytes, sections = struct.unpack_from("<HH", image, 58)
    if section_table + section_bytes * sections > len(image):
        raise BuildError(f"the code object is truncated at {len(image)} bytes")
    if machine == 224:
        # The low byte names the processor; the bits above it, its xnack and sramecc settings.
        found = {0x4C: "gfx942"}.get(flags & 0xFF, f"AMD GPU number {flags & 0xFF:#x}")
    elif machine == 190:
        # The number moved up by a byte with ABI version 8 (CUDA 13).
        found = f"sm_{(flags >> 8 if image[8] >= 8 else flags) & 0xFF}"
    else:
        found = f"ELF machine {machine}"
    if found != arch:
        raise BuildError(f"the code object must be for {arch}, got one for {found}")


# ---- the cache -----------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Return where compiled objects are kept; the switches are those of the contract."""
    own = os.environ.get("DSV41TOPK_CACHE_DIR")
    if own:
        return Path(own).absolute()
    torch = os.environ.get("TORCH_EXTENSIONS_DIR")
    if torch:
        return Path(torch).absolute() / "dsv41topk"
    user = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if user.is_absolute():
        return user / "dsv41topk"
    try:
        return Path.home() / ".cache" / "dsv41topk"
    except RuntimeError as error:  # a user id that no passwd entry knows, as in some containers
        raise FileNotFoundError(errno.ENOENT, str(error)) from error


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _owned_safely(status: os.stat_result) -> bool:
    """Whether nobody but this user and root can change it."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _refuse(path: Path, rule: str) -> NoReturn:
    raise BuildError(
        f"the cache folder is refused: {path} {rule}; what is loaded from it runs on the GPU. "
        "Correct that, or name another folder in DSV41TOPK_CACHE_DIR"
    )


class _Cache:
    """A folder of entries `<kind>-<key>`, each a folder that holds `data` and `entry.json`.

    Others may read: what root has built into a container image serves an ordinary user.
    Opening one makes the folder, and raises BuildError where others could plant an entry in it.
    An OSError means that there is no cache to be had (a read-only disk, say).
    """

    def __init__(self) -> None:
        self.root = cache_folder()
        for folder in (*reversed(self.root.parents), self.root):
            if not folder.is_dir():
                folder.mkdir(mode=0o755, exist_ok=True)
        status = self.root.stat()
        if status.st_uid not in (os.geteuid(), 0):
            _refuse(self.root, f"belongs to user {status.st_uid}")
        if not _owned_safely(status):
            _refuse(self.root, f"can be written to by others (mode {status.st_mode & 0o7777:o})")
        for parent in self.root.resolve().parents:
            mode = parent.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                _refuse(parent, f"can be written to by others (mode {mode & 0o7777:o})")

    def entry(self, kind: str, key: str) -> Path:
        return self.root / f"{kind}-{key}"

    def get(self, kind: str, key: str) -> bytes | None:
        """Return an entry's data, or None: absent, truncated, altered, or not ours."""
        folder = self.entry(kind, key)
        try:
            status = folder.lstat()
            if not (stat.S_ISDIR(status.st_mode) and _owned_safely(status)):
                return None
            entry = json.loads(self._read(folder / "entry.json"))
            data = self._read(folder / "data")
        except (OSError, ValueError):
            return None
        wanted = {"kind": kind, "key": key, "sha256": hashlib.sha256(data).hexdigest()}
        return data if entry == wanted else None

    @staticmethod
    def _read(path: Path) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not (stat.S_ISREG(status.st_mode) and _owned_safely(status)):
                raise PermissionError(errno.EPERM, "not a file of this user alone", str(path))
            return file.read()

    def put(self, kind: str, key: str, data: bytes) -> Path:
        """Write an entry, whole or not at all; the caller holds the key's lock. Return `data`."""
        target = self.entry(kind, key)
        entry = {"kind": kind, "key": key, "sha256": hashlib.sha256(data).hexdigest()}
        with self.work_folder(key) as folder:
            fresh = folder / "fresh"
            fresh.mkdir(mode=0o755)
            for name, content in (("data", data), ("entry.json", json.dumps(entry).encode())):
                descriptor = os.open(fresh / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            _sync_folder(fresh)
            if os.path.lexists(target):  # whatever lies there did not pass `get`
                target.rename(folder / "replaced")
            fresh.rename(target)
            _sync_folder(self.root)
        return target / "data"

    def work_folder(self, key: str) -> contextlib.AbstractContextManager[Path]:
        return _temporary_folder(self.root, f"work-{key}-")

    @contextlib.contextmanager
    def lock(self, key: str, progress: Progress | None = None) -> Iterator[None]:
        """Hold the key's lock, and remove what killed builders of this key have left.

        Raises TimeoutError when the holder outlives every limit (a stopped process, say).
        """
        path = self.root / f"lock-{key}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            started = time.monotonic()
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    waited = time.monotonic() - started
                    if waited > LOCK_TIMEOUT_S:
                        raise TimeoutError(errno.ETIMEDOUT, "is locked", str(path)) from None
                    if progress is not None:
                        progress("waiting for another process to compile", waited)
                    time.sleep(_LOCK_POLL_S)
            for leftover in self.root.glob(f"work-{key}-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            try:
                yield
            finally:
                # Not left to close: a child forked meanwhile shares the lock and would keep it.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_get(name: str, key: str) -> Any:
    """Return what `cache_put` kept under `name` and `key`, or None. Never raises.

    Parameters
    ----------
    name : str
        What kind of thing it is, in letters.
    key : str
        Everything that it depends on; any text.
    """
    try:
        data = _Cache().get(name, _hash(key))
        return None if data is None else json.loads(data)
    except (BuildError, OSError, ValueError):
        return None


def cache_put(name: str, key: str, value: Any) -> bool:
    """Keep a JSON value in the build cache; return whether it was kept. Never raises."""
    try:
        data = json.dumps(value).encode()
        cache = _Cache()
        with cache.lock(_hash(key)):
            cache.put(name, _hash(key), data)
        return True
    except (BuildError, OSError, TypeError, ValueError):
        return False


# ---- providing -----------------------------------------------------------------------------------


def provide(
    backend: str,
    device_arch: Callable[[str], str],
    progress: Progress | None = None,
) -> Provided:
    """Return what serves `backend`, or raise BuildError.

    Parameters
    ----------
    backend : str
        `auto`, `hip`, `cuda` or `cpu`, as `DSV41TOPK_BACKEND` says.
    device_arch : callable
        Takes `hip` or `cuda` and returns the architecture of that runtime's device
        (`gfx942:sramecc+:xnack-`); raises LookupError with the reason where there is none.
    progress : callable, optional
        See `Progress`.
    """
    if backend not in ("auto", "hip", "cuda", "cpu"):
        raise BuildError(f"DSV41TOPK_BACKEND must be auto, hip, cuda or cpu, got {backend}")
    if backend in ("hip", "cuda"):
        return _provide_gpu(backend, device_arch, progress)
    passed_over = []
    if backend == "auto":
        for name in ("hip", "cuda"):
            try:
                return _provide_gpu(name, device_arch, progress)
            except _NotForThisDeviceError as error:
                passed_over.append(f"{name}: {error}")
    return Provided("cpu", None, platform.machine(), "shipped", 0.0, None, "; ".join(passed_over))


def _provide_gpu(
    backend: str, device_arch: Callable[[str], str], progress: Progress | None
) -> Provided:
    try:
        device = device_arch(backend)
    except LookupError as error:
        raise _NotForThisDeviceError(str(error.args[0] if error.args else error)) from error
    arch = device.split(":")[0]  # the object fits any xnack and sramecc setting
    if BACKEND_OF_ARCH.get(arch) != backend:
        raise _NotForThisDeviceError(f"there are no kernels for {device}")
    return code_object(arch, progress)


def code_object(arch: str, progress: Progress | None = None) -> Provided:
    """Return the code object for `arch` (`gfx942`, `sm_90`), or raise BuildError."""
    started = time.monotonic()

    def provided(image: bytes, source: str, path: Path | None, note: str = "") -> Provided:
        seconds = time.monotonic() - started
        return Provided(BACKEND_OF_ARCH[arch], image, arch, source, seconds, path, note)

    image, stale = _shipped(arch)
    if image is not None:
        return provided(image, "shipped", SHIPPED / f"{arch}.co")
    compilers = find_compilers(arch)
    cache = None
    note = ""
    if compilers:
        try:
            cache = _Cache()
        except OSError as error:
            note = f"not cached: {error}"
    if cache is not None:
        for compiler in compilers:
            key = compiler.key(arch)
            image = _cached_image(cache, key, arch)
            if image is not None:
                return provided(image, "cache", cache.entry("code", key) / "data")
    chosen = choose_compiler(compilers, arch)
    if chosen is None:
        raise _NotForThisDeviceError(_no_compiler(arch, compilers, stale))
    if cache is None:
        return provided(_compile_privately(chosen, arch, progress), "compiled", None, note)
    return provided(*_compile_once(cache, chosen, arch, progress))


def _compile_once(
    cache: _Cache, compiler: Compiler, arch: str, progress: Progress | None
) -> tuple[bytes, str, Path | None, str]:
    """Compile into the cache, unless another process did while this one waited for the lock."""
    key = compiler.key(arch)
    asked = time.time()
    image: bytes | None = None
    try:
        with cache.lock(key, progress):
            image = _cached_image(cache, key, arch)
            if image is not None:
                return image, "cache", cache.entry("code", key) / "data", ""
            _raise_kept_failure(cache, key, asked)
            with cache.work_folder(key) as folder:
                try:
                    image = compile_image(compiler, arch, folder, progress)
                except BuildError as error:
                    _keep_failure(cache, key, error)
                    raise
            return image, "compiled", cache.put("code", key, image), ""
    except OSError as error:  # read-only, full, or locked beyond every limit: serve without it
        note = f"not cached: {error}"
    return image or _compile_privately(compiler, arch, progress), "compiled", None, note


def _compile_privately(compiler: Compiler, arch: str, progress: Progress | None) -> bytes:
    try:
        with _temporary_folder() as folder:
            return compile_image(compiler, arch, folder, progress)
    except OSError as error:
        raise BuildError(f"compiling for {arch} needs a temporary folder: {error}") from error


def _cached_image(cache: _Cache, key: str, arch: str) -> bytes | None:
    image = cache.get("code", key)
    try:
        if image is not None:
            check_image(image, arch)
    except BuildError:
        return None
    return image


def _keep_failure(cache: _Cache, key: str, error: BuildError) -> None:
    """Leave word for those who wait: eight processes must not fail, or hang, one after another."""
    word = {
        "time": time.time(),
        "message": str(error).splitlines()[0],
        "command": error.command,
        "exit_code": error.exit_code,
        "output": error.output,
    }
    with contextlib.suppress(OSError):
        cache.put("failed", key, json.dumps(word).encode())


def _raise_kept_failure(cache: _Cache, key: str, asked: float) -> None:
    """Raise the failure of a builder that this process waited for; older ones are tried again."""
    kept = cache.get("failed", key)
    word = json.loads(kept) if kept is not None else None
    if word is not None and word["time"] >= asked:
        raise BuildError(word["message"], word["command"], word["exit_code"], word["output"])


def _shipped(arch: str) -> tuple[bytes | None, str]:
    """Return the package's own object for `arch`, or None and what is wrong with it."""
    try:
        entry = json.loads((SHIPPED / f"{arch}.json").read_text())
        image = (SHIPPED / f"{arch}.co").read_bytes()
        if entry["sha256"] != hashlib.sha256(image).hexdigest():
            return None, "the package's own object is damaged"
        if entry["source_hash"] != source_hash():
            return None, "the package's own object was made from other sources"
        check_image(image, arch)
    except FileNotFoundError:
        return None, "the package ships none"
    except (OSError, ValueError, KeyError, TypeError, BuildError) as error:
        return None, f"the package's own object cannot be used: {error}"
    return image, ""


def _no_compiler(arch: str, compilers: list[Compiler], stale: str) -> str:
    tried = ", ".join(compiler.title for compiler in compilers) or "none found"
    cure = (
        "install ROCm's hipcc, or clang-19 and lld-19, or name a compiler in DSV41TOPK_HIPCC"
        if BACKEND_OF_ARCH[arch] == "hip"
        else "put CUDA's nvcc in PATH"
    )
    return f"there is no code object for {arch} ({stale}) and no compiler ({tried}): {cure}"


# ---- ahead of time -------------------------------------------------------------------------------


def aot(output_dir: str | os.PathLike[str], arch: str = "gfx942") -> Path | None:
    """Compile for `arch` and write what the package ships; None where no compiler is found.

    Called by `setup.py` under `DSV41TOPK_AOT=1`. Leaves the user's cache alone.
    """
    compiler = choose_compiler(find_compilers(arch), arch)
    if compiler is None:
        return None
    return _write_shipped(Path(output_dir), arch, _compile_privately(compiler, arch, None))


def _write_shipped(output: Path, arch: str, image: bytes) -> Path:
    output.mkdir(parents=True, exist_ok=True)
    entry = {"sha256": hashlib.sha256(image).hexdigest(), "source_hash": source_hash()}
    (output / f"{arch}.co").write_bytes(image)
    (output / f"{arch}.json").write_text(json.dumps(entry) + "\n")
    return output / f"{arch}.co"


def main(argv: list[str] | None = None) -> int:
    """`python -m dsv41topk build`: make the code object now, so that no server start has to."""
    parser = argparse.ArgumentParser(prog="python -m dsv41topk build", description=main.__doc__)
    parser.add_argument("--arch", default="gfx942", choices=sorted(BACKEND_OF_ARCH))
    parser.add_argument(
        "--output", metavar="DIR", help="also write the object and its digest into this folder"
    )
    arguments = parser.parse_args(argv)
    live = sys.stderr.isatty()
    shown = ""

    def progress(what: str, seconds: float) -> None:
        nonlocal shown
        if live:
            print(f"\r\x1b[K{what}: {seconds:.1f} s", end="", file=sys.stderr, flush=True)
        elif what != shown:
            print(what, file=sys.stderr, flush=True)
        shown = what

    try:
        made = code_object(arguments.arch, progress)
        image = made.image or b""
        path = made.path
        if arguments.output:
            path = _write_shipped(Path(arguments.output), arguments.arch, image)
    except (BuildError, OSError) as error:
        print(
            f"\nbuild failed: {error}" if live and shown else f"build failed: {error}",
            file=sys.stderr,
        )
        return 1
    if live and shown:
        print(file=sys.stderr)
    where = path or "in memory only"
    print(f"{made.arch}: {made.source}, {len(image):,} bytes, {made.seconds:.2f} s, {where}")
    if made.note:
        print(made.note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
