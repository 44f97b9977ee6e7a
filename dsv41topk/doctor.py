# SPDX-License-Identifier: Apache-2.0
"""`python -m dsv41topk doctor`: what is here, what would serve, and why something would not.

Versions are read from the packages' files, so that a torch or a vLLM that cannot be imported is
reported and not stumbled over. What needs an import or a GPU runtime runs in a child process.

Exit code 0: the hooks would serve the tensors of a server on this machine (of its GPU, where it has
one). 1: they would not. With `--selftest`, 1 also for a result that is not the oracle's.
"""

from __future__ import annotations

import argparse
import ctypes.util
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["main", "report"]

ROCM_GRAPH_TROUBLE = ("7.2.0", "7.2.1", "7.2.2", "7.2.3")
"""HIP graphs on MI300X were reported to corrupt one fresh process in five: ROCm/clr issue 279."""

CHILD_TIMEOUT_S = 420.0
"""Longer than a compile may take."""

DISTRIBUTIONS = {
    "numpy": ("numpy",),
    "torch": ("torch",),
    "vllm": ("vllm",),
    "aiter": ("amd-aiter", "aiter"),
    "triton": ("triton", "triton-rocm", "pytorch-triton-rocm"),
}
"""Import names, and the names that they are distributed under."""

_Report = dict[str, Any]


# ---- what is here --------------------------------------------------------------------------------


def _package(name: str) -> str | None:
    """Return a package's version, "version unknown" where only files are found, or None."""
    for distribution in DISTRIBUTIONS[name]:
        try:
            version = importlib.metadata.version(distribution)
        except Exception:  # metadata of a half-removed package fails in many ways
            continue
        if version:
            return str(version)
    return "version unknown" if _package_folder(name) else None


def _package_folder(name: str) -> Path | None:
    """Return where a package lies, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def _torch_build() -> dict[str, str]:
    """Return `hip`, `cuda` and `git_version` of the installed torch, from its version file."""
    folder = _package_folder("torch")
    try:
        text = (folder / "version.py").read_text() if folder else ""
    except OSError:
        return {}
    pattern = r"^(hip|cuda|git_version)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]"
    return dict(re.findall(pattern, text, flags=re.MULTILINE))


def _rocm_version() -> str | None:
    """Return ROCm's version: the system's, else the HIP version that torch was built for."""
    root = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    try:
        return (root / ".info" / "version").read_text().strip()
    except OSError:
        return _torch_build().get("hip")


def _gpus() -> list[str]:
    """Return the GPUs that the kernel drivers show, by architecture or name."""
    found = []
    for node in sorted(Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        try:
            match = re.search(r"gfx_target_version (\d+)", node.read_text())
        except OSError:
            continue
        number = int(match[1]) if match else 0
        if number:  # 90402: major 9, minor 4, stepping 2, the last one in hexadecimal
            found.append(f"gfx{number // 10000}{number // 100 % 100}{number % 100:x}")
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            match = re.search(r"Model:\s*(.+)", information.read_text())
        except OSError:
            continue
        found.append(match[1].strip() if match else "NVIDIA GPU")
    return found


_HIP_PROBE = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
version, count = ctypes.c_int(), ctypes.c_int()
library.hipRuntimeGetVersion(ctypes.byref(version))
library.hipGetDeviceCount(ctypes.byref(count))  # leaves 0 where there is none
print(json.dumps({"version": version.value, "devices": count.value}))
"""


def _hip_libraries() -> list[str]:
    """Return the HIP runtimes that could be loaded; torch's own first, as in a server."""
    found: list[str] = []
    torch = _package_folder("torch")
    root = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    for folder in filter(None, (torch and torch / "lib", root / "lib")):
        found += [str(path) for path in sorted(folder.glob("libamdhip64.so*"))[:1]]
    system = ctypes.util.find_library("amdhip64")
    return found + ([system] if system else [])


def _hip_runtime() -> _Report | None:
    """Return path, version and device count of the first HIP runtime that loads, or None."""
    for library in _hip_libraries():
        answer = _child_json([sys.executable, "-c", _HIP_PROBE, library], timeout=60.0)
        if "error" not in answer:
            version = answer["version"]  # 5.2.21153 is 50221153
            text = f"{version // 10_000_000}.{version // 100_000 % 100}.{version % 100_000}"
            return {"path": library, "version": text, "devices": answer["devices"]}
    return None


def _compilers() -> list[str]:
    from dsv41topk import _build

    try:
        return [compiler.title for compiler in _build.find_compilers("gfx942")]
    except _build.BuildError as error:
        return [f"none: {error}"]


def _checked_vllm() -> list[str]:
    from dsv41topk import vllm_plugin

    return list(vllm_plugin.CHECKED_VERSIONS)


# ---- what would serve ----------------------------------------------------------------------------

_SERVE_PROBE = """
import json, logging, sys
logging.disable(logging.CRITICAL)
answer = {"torch_error": None}
if sys.argv[1] == "torch":
    try:
        import torch
        if torch.cuda.is_available():
            torch.cuda.init()
    except BaseException as error:
        answer["torch_error"] = f"{type(error).__name__}: {error}"
import dsv41topk
from dsv41topk import doctor
answer["serves"] = bool(dsv41topk.build())
answer["reason"] = dsv41topk.build_error()
answer.update(doctor.runtime_state())
print(json.dumps(answer))
"""


def runtime_state() -> _Report:
    """Return backend, code object and stream rule of this process, after `build()`."""
    from dsv41topk import _runtime, _tensor

    return {
        "backend": _runtime.backend(),
        "description": _runtime.describe(),
        "stream_fallback": _tensor.stream_fallback(),
    }


def _child_json(command: list[str], timeout: float) -> _Report:
    """Run a child that prints JSON as its last line; what it dies of is in `error`."""
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    lines = child.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1])
        if isinstance(answer, dict):
            return answer
    except (IndexError, ValueError):
        pass
    last = (child.stderr.strip().splitlines() or ["no output"])[-1]
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit {child.returncode}"
    return {"error": f"{how}: {last}"}


def _serving(has_torch: bool) -> _Report:
    """Build in a child, as a server would: with torch, and so its runtime, in the process."""
    command = [sys.executable, "-c", _SERVE_PROBE, "torch" if has_torch else "-"]
    answer = _child_json(command, CHILD_TIMEOUT_S)
    if "error" in answer:
        return {"serves": False, "backend": None, "reason": answer["error"], "torch_error": None}
    return answer


def _verdict(found: _Report) -> tuple[bool, str]:
    """Say whether a server's calls would be taken on this machine, and why not."""
    serving, gpus = found["serving"], found["gpus"]
    if not serving["serves"]:
        return False, f"the hooks are closed: {serving['reason'] or 'no reason was kept'}"
    if serving["backend"] == "cpu" and gpus:
        why = serving.get("description") or ""
        return False, f"only CPU tensors would be served, but this machine has {gpus[0]}: {why}"
    return True, f"the {serving['backend']} backend would serve"


def _trouble(found: _Report) -> list[str]:
    """Return the known trouble that applies to what was found."""
    trouble = []
    rocm = found["rocm"] or ""
    if re.match(r"7\.2(\D|$)", rocm) and not re.match(r"7\.2\.([4-9]|\d\d)(\D|$)", rocm):
        exact = re.match(r"7\.2\.[0-3](\D|$)", rocm) is not None
        trouble.append(
            f"ROCm {rocm}{'' if exact else ' (its patch number is not known here)'}: with "
            f"{ROCM_GRAPH_TROUBLE[0]} to {ROCM_GRAPH_TROUBLE[-1]}, HIP graphs on MI300X were "
            "reported to corrupt one fresh process in five (ROCm/clr issue 279): use another ROCm, "
            "or serve without graphs"
        )
    serving = found["serving"]
    if serving.get("stream_fallback"):
        trouble.append(
            "torch's DLPack exchange table names the wrong stream on ROCm (torch before its change "
            "175432): noticed, and torch's own function is asked instead"
        )
    elif serving.get("backend") == "hip" and serving.get("stream_fallback") is None:
        trouble.append(
            "some ROCm builds of torch (before its change 175432) name the wrong stream in their "
            "DLPack exchange table: the first GPU call of a process tests that and works round it"
        )
    vllm = found["packages"]["vllm"]
    if vllm and vllm.split("+")[0] not in found["checked_vllm"]:
        trouble.append(
            f"vLLM {vllm} is not among the versions checked "
            f"({', '.join(found['checked_vllm'])}); its signatures are compared when it starts"
        )
    if serving.get("torch_error"):
        trouble.append(f"torch is installed but cannot be imported: {serving['torch_error']}")
    return trouble


def report() -> _Report:
    """Return everything that `doctor --json` prints."""
    packages = {name: _package(name) for name in DISTRIBUTIONS}
    found: _Report = {
        "dsv41topk": importlib.metadata.version("dsv41topk")
        if _is_installed()
        else "not installed",
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "torch_build": _torch_build(),
        "rocm": _rocm_version(),
        "hip_runtime": _hip_runtime(),
        "gpus": _gpus(),
        "compilers": _compilers(),
        "checked_vllm": _checked_vllm(),
        "switches": {k: v for k, v in sorted(os.environ.items()) if k.startswith("DSV41TOPK_")},
        "serving": _serving(packages["torch"] is not None),
    }
    found["serves"], found["verdict"] = _verdict(found)
    found["known_trouble"] = _trouble(found)
    return found


def _is_installed() -> bool:
    try:
        importlib.metadata.version("dsv41topk")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _lines(found: _Report, live: bool = False) -> Iterable[str]:
    yield f"dsv41topk    {found['dsv41topk']}"
    yield f"Python       {found['python']}, {found['platform']}"
    for name, version in found["packages"].items():
        build = found["torch_build"] if name == "torch" and version else {}
        extra = "".join(f", {key} {build[key]}" for key in ("hip", "cuda") if key in build)
        yield f"{name:<12} {version or 'not found'}{extra}"
    yield f"ROCm         {found['rocm'] or 'not found'}"
    hip = found["hip_runtime"]
    if hip:
        yield f"HIP runtime  {hip['version']}, {hip['devices']} device(s), {hip['path']}"
    else:
        yield "HIP runtime  none can be loaded"
    yield f"GPU          {', '.join(found['gpus']) or 'none'}"
    yield f"compiler     {'; '.join(found['compilers']) or 'none for gfx942'}"
    yield f"vLLM checked {', '.join(found['checked_vllm'])}"
    for name, value in found["switches"].items():
        yield f"switch       {name}={value}"
    serving = found["serving"]
    yield f"backend      {serving['backend'] or 'none'}: {serving.get('description') or 'closed'}"
    for trouble in found["known_trouble"]:
        yield f"known trouble: {trouble}"
    if "selftest" in found:
        test = found["selftest"]
        yield f"selftest     {test.get('error') or test['summary']}"
        for hook, counts in test.get("hook_calls", {}).items() if live else ():
            yield f"hook         {hook}: {', '.join(f'{n} {what}' for what, n in counts.items())}"
    yield f"{'OK' if found['serves'] else 'NOT SERVING'}: {found['verdict']}"


def main(argv: Sequence[str] | None = None) -> int:
    """Say what is here, which backend would serve, and why something would not."""
    parser = argparse.ArgumentParser(prog="python -m dsv41topk doctor", description=main.__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--selftest",
        action="store_true",
        help="run the contract's calls on random rows, on the backend that would serve",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="the self-test, and which of its hook calls were taken, which declined and why",
    )
    parser.add_argument("--seed", type=int, default=41, help="of the self-test (41)")
    arguments = parser.parse_args(argv)
    found = report()
    if arguments.selftest or arguments.live:
        command = [sys.executable, "-m", "dsv41topk._selftest", "--seed", str(arguments.seed)]
        found["selftest"] = _child_json(command, CHILD_TIMEOUT_S)
        if not found["selftest"].get("passed"):
            found["serves"], found["verdict"] = False, "the self-test failed"
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_lines(found, arguments.live)))
    return 0 if found["serves"] else 1
