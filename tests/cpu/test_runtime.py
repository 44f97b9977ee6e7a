# SPDX-License-Identifier: Apache-2.0
"""`csrc/runtime.c` against libraries that write down what is called, and against real HIP."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import threading
from ctypes.util import find_library
from pathlib import Path

import pytest
from helpers import abi
from helpers.fake_gpu import (
    HELPERS,
    Fake,
    Runtime,
    compile_library,
    compile_runtime,
    in_new_process,
)

KERNELS = abi.ENUMS["DSV41_KERNEL_COUNT"]
NO_KERNEL = abi.ENUMS["DSV41_NO_KERNEL"]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_runtime(tmp_path_factory.mktemp("runtime"))


@pytest.fixture(scope="module")
def hip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("rocm6") / "libamdhip64.so.6"
    return compile_library(target, HELPERS / "fake_gpu.c", "-DFAKE_HIP")


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    return compile_library(target, HELPERS / "fake_gpu.c", "-DFAKE_CUDA")


def launched(kernel: int, device: int) -> str:
    return (
        f"launch kernel_{kernel} grid 3 2 workgroup 1024 lds 0 stream 0x51 argument 41 on {device}"
    )


# ---- finding -------------------------------------------------------------------------------------


def _nothing_is_loaded(runtime: Path) -> None:
    offered = Runtime(runtime)
    assert offered.find("hip") == (None, "no libamdhip64.so is loaded in this process")
    assert offered.find("cuda") == (None, "no libcuda.so is loaded in this process")
    assert offered.find("rocm") == (None, "no runtime is called rocm")
    assert "libamdhip64" not in Path("/proc/self/maps").read_text(), "find has loaded a runtime"


def test_a_runtime_that_is_installed_but_not_loaded_is_left_alone(runtime: Path) -> None:
    in_new_process(_nothing_is_loaded, runtime)


def _loaded_later(runtime: Path, hip: Path) -> None:
    offered = Runtime(runtime)
    assert offered.find("hip")[0] is None
    Fake(hip)
    table, path = offered.find("hip")
    assert table is not None and path == str(hip)
    assert table.contents.dlpack_device == 10
    again, _ = offered.find("hip")
    assert ctypes.addressof(again.contents) == ctypes.addressof(table.contents)


def test_a_runtime_that_is_loaded_later_is_found_then(runtime: Path, hip: Path) -> None:
    in_new_process(_loaded_later, runtime, hip)


@pytest.mark.parametrize("name", ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.7.0.51831"])
def test_any_soname_is_found(runtime: Path, hip: Path, tmp_path: Path, name: str) -> None:
    """Torch's wheels carry a libamdhip64.so without a number."""
    in_new_process(_loaded_later, runtime, Path(shutil.copy(hip, tmp_path / name)))


def _found_without_device(runtime: Path, library: Path, name: str) -> None:
    offered, fake = Runtime(runtime), Fake(library)
    count = {"hip": "hipGetDeviceCount", "cuda": "cuDeviceGetCount"}[name]
    words = {"hip": "hipErrorNoDevice", "cuda": "CUDA_ERROR_NO_DEVICE"}[name]
    fake.fail(count, 1, 100)
    assert offered.find(name) == (None, f"{words} (100) from {count}")
    if name == "hip":
        assert fake.library.fake_pending_error() == 0
    fake.library.fake_devices(0)
    assert offered.find(name) == (None, f"{count} finds no device")
    fake.library.fake_devices(1)
    assert offered.find(name)[0] is not None


@pytest.mark.parametrize("name", ["hip", "cuda"])
def test_a_runtime_without_a_device(runtime: Path, name: str, request) -> None:
    in_new_process(_found_without_device, runtime, request.getfixturevalue(name), name)


def _symbol_missing(runtime: Path, library: Path, name: str) -> None:
    Fake(library)
    table, words = Runtime(runtime).find("hip")
    assert table is None
    assert words.endswith(f"has no {name}") or "has neither" in words, words


@pytest.mark.parametrize(
    "names",
    [("hipModuleLoadData",), ("hipGetDeviceProperties", "hipGetDevicePropertiesR0600")],
    ids=" ".join,
)
def test_a_library_that_lacks_a_symbol(runtime: Path, tmp_path: Path, names) -> None:
    options = [f"-DWITHOUT_{name}" for name in names]
    source = HELPERS / "fake_gpu.c"
    library = compile_library(tmp_path / "libamdhip64.so", source, "-DFAKE_HIP", *options)
    in_new_process(_symbol_missing, runtime, library, names[0])


# ---- the device's properties ---------------------------------------------------------------------


def _properties(runtime: Path, library: Path) -> None:
    offered, fake = Runtime(runtime), Fake(library)
    table, _ = offered.find("hip")
    assert offered.arch(table, 0) == (0, "gfx942:sramecc+:xnack-")
    code, _ = offered.arch(table, 7)
    assert code == 101
    assert fake.library.fake_pending_error() == 0
    for text in (b"", b"AMD", b"x" * 300):
        fake.library.fake_arch(text)
        assert offered.arch(table, 0)[0] == 1, "a layout that has moved is an error, not a guess"


@pytest.mark.parametrize("missing", ["hipGetDeviceProperties", "hipGetDevicePropertiesR0600"])
def test_the_architecture_is_read_from_both_layouts(runtime, tmp_path, missing) -> None:
    library = compile_library(
        tmp_path / "libamdhip64.so", HELPERS / "fake_gpu.c", "-DFAKE_HIP", f"-DWITHOUT_{missing}"
    )
    in_new_process(_properties, runtime, library)


def test_rocm_6_is_read_by_its_own_layout_though_it_has_both(runtime: Path, hip: Path) -> None:
    in_new_process(_properties, runtime, hip)


def constant(name: str) -> int:
    found = re.search(rf"\b{name} = (\d+)", (abi.CSRC / "runtime.c").read_text())
    assert found is not None, name
    return int(found[1])


def test_offsets_of_the_installed_hip_headers(tmp_path: Path) -> None:
    if not Path("/usr/include/hip/hip_runtime_api.h").exists():
        pytest.skip("needs HIP's headers (libamdhip64-dev)")
    source = tmp_path / "offsets.c"
    source.write_text(
        "#include <hip/hip_runtime_api.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        'int main(void) { printf("%zu %d %d\\n", offsetof(hipDeviceProp_t, gcnArchName),\n'
        "  hipDeviceAttributeMultiprocessorCount, hipStreamCaptureModeRelaxed); }\n"
    )
    program = tmp_path / "offsets"
    subprocess.run(
        ["cc", "-D__HIP_PLATFORM_AMD__", str(source), "-o", str(program)], check=True, timeout=60
    )
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    version = re.search(
        r"HIP_VERSION_MAJOR (\d+)", Path("/usr/include/hip/hip_version.h").read_text()
    )
    assert version is not None
    arch = "kArchOffset" if int(version[1]) < 6 else "kArchOffsetR0600"
    names = (arch, "kHipMultiprocessorCount", "kCaptureModeRelaxed")
    assert [int(word) for word in printed] == [constant(name) for name in names]


def test_offsets_of_rocm_6() -> None:
    """Against another project's bindings, made from ROCm 6's headers."""
    checkout = os.environ.get("TINYGRAD")
    bindings = Path(checkout or "", "tinygrad/runtime/autogen/hip.py")
    if not checkout or not bindings.exists():
        pytest.skip("needs TINYGRAD, a checkout of tinygrad/tinygrad")
    text = bindings.read_text()
    layout = text[text.index("hipDeviceProp_tR0600.register_fields") :]
    offset = re.search(r"'gcnArchName', [^)]*?, (\d+)\)", layout)
    attribute = re.search(r"hipDeviceAttributeMultiprocessorCount:=(\d+)", text)
    assert offset is not None and attribute is not None
    assert int(offset[1]) == constant("kArchOffsetR0600")
    assert int(attribute[1]) == constant("kHipMultiprocessorCount")


# ---- loading and launching on HIP ----------------------------------------------------------------


def _hip_loads_and_launches(runtime: Path, hip: Path) -> None:
    offered, fake = Runtime(runtime), Fake(hip)
    table, _ = offered.find("hip")

    here = offered.load(table, 0, b"image")
    assert fake.log() == ["load image on 0 capture mode 2"], "no switch, and relaxed for the load"
    assert here.compute_units == 304
    assert all(here.functions[kernel] for kernel in range(KERNELS))

    there = offered.load(table, 1, b"image")
    assert fake.log() == ["set 1", "load image on 1 capture mode 2", "set 0"]
    assert there.compute_units == 76
    assert fake.library.hipThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(0))) == 0

    assert offered.launch(here, 4) == 0
    assert fake.log() == [launched(4, 0)], "the device is current: no switch"
    assert offered.launch(there, 5) == 0
    assert fake.log() == ["set 1", launched(5, 1), "set 0"]
    assert offered.failure.launched == 2


def test_hip_loads_and_launches(runtime: Path, hip: Path) -> None:
    in_new_process(_hip_loads_and_launches, runtime, hip)


def _hip_failures(runtime: Path, hip: Path) -> None:
    offered, fake = Runtime(runtime), Fake(hip)
    table, _ = offered.find("hip")
    there = offered.load(table, 1, b"image")
    offered.failure.launched = 0
    fake.log()

    fake.fail("hipModuleLaunchKernel", 3, 1)
    assert [offered.launch(there, kernel) for kernel in (1, 2, 3)] == [0, 0, 1]
    assert offered.failure.launched == 2
    assert offered.text(table) == "hipErrorInvalidValue (1) from kernel_3"
    assert fake.library.fake_pending_error() == 0, "torch's next check would raise our error"
    assert fake.log()[-2:] == ["set 1", "set 0"], "the device goes back after a failure too"

    fake.fail("hipSetDevice", 1, 101)
    assert offered.launch(there, 1) == 101
    assert offered.text(table) == "hipErrorUnknown (101) from device switch"
    assert fake.log() == ["set 1"], "nothing was launched on the wrong device"

    fake.fail("hipSetDevice", 2, 101)
    assert offered.launch(there, 1) == 101
    assert offered.text(table) == "hipErrorUnknown (101) from device switch back"
    assert offered.failure.launched == 3, "it was enqueued, and the caller must know"
    fake.library.hipSetDevice(0)
    fake.log()

    fake.fail("hipGetDevice", 1, 100)
    assert offered.launch(there, 1) == 100
    assert fake.log() == []

    assert offered.launch(there, 1, (1 << 22, 1), 1024) == 1, "2^32 work-items do not fit a packet"
    assert offered.launch(there, 1, (1 << 11, 1 << 11), 1024) == 1
    assert fake.log() == []
    assert offered.launch(there, 1, ((1 << 22) - 1, 1), 1024) == 0


def test_hip_failures(runtime: Path, hip: Path) -> None:
    in_new_process(_hip_failures, runtime, hip)


def _hip_load_failures(runtime: Path, hip: Path) -> None:
    offered, fake = Runtime(runtime), Fake(hip)
    table, _ = offered.find("hip")
    for name, code, words in (
        ("hipModuleLoadData", 209, "hipErrorNoBinaryForGpu (209) from module load"),
        ("hipDeviceGetAttribute", 1, "hipErrorInvalidValue (1) from compute units"),
        ("hipModuleGetFunction", 1, "hipErrorInvalidValue (1) from kernel_0"),
        ("hipSetDevice", 100, "hipErrorNoDevice (100) from device switch"),
    ):
        fake.log()
        fake.fail(name, 1, code)
        assert offered.load(table, 1, b"image") is None
        assert offered.text(table) == words
        assert fake.library.fake_pending_error() == 0
        assert fake.log()[-1:] == (["set 1"] if name == "hipSetDevice" else ["set 0"])

    fake.library.fake_missing(b"kernel_6")
    device = offered.load(table, 0, b"image")
    assert not device.functions[6] and device.functions[5] and device.functions[7]
    assert fake.library.fake_pending_error() == 0
    fake.log()
    assert offered.launch(device, 6) == NO_KERNEL
    assert offered.text(table) == f"kernel not in the code object ({NO_KERNEL}) from kernel_6"
    assert fake.log() == []


def test_hip_load_failures(runtime: Path, hip: Path) -> None:
    in_new_process(_hip_load_failures, runtime, hip)


def _hip_before_capture_modes(runtime: Path, library: Path) -> None:
    offered, fake = Runtime(runtime), Fake(library)
    table, _ = offered.find("hip")
    assert offered.load(table, 0, b"image") is not None
    assert fake.log() == ["load image on 0 capture mode 0"]


def test_a_hip_without_capture_modes_serves(runtime: Path, tmp_path: Path) -> None:
    option = "-DWITHOUT_hipThreadExchangeStreamCaptureMode"
    library = compile_library(
        tmp_path / "libamdhip64.so", HELPERS / "fake_gpu.c", "-DFAKE_HIP", option
    )
    in_new_process(_hip_before_capture_modes, runtime, library)


# ---- contexts on CUDA ----------------------------------------------------------------------------


def _cuda_contexts(runtime: Path, cuda: Path) -> None:
    offered, fake = Runtime(runtime), Fake(cuda)
    current = fake.library.fake_current_context
    current.restype = ctypes.c_size_t
    table, _ = offered.find("cuda")
    assert table.contents.dlpack_device == 2
    assert offered.arch(table, 0) == (0, "sm_90")

    device = offered.load(table, 1, b"image")
    assert fake.log() == [
        "retain 1",
        "context 101",
        "load image on 1 capture mode 2",
        "context 0",
    ], "a thread without a context gets none"
    assert current() == 0
    assert device.compute_units == 132

    fake.library.fake_context(ctypes.c_size_t(0x100))
    assert offered.launch(device, 2) == 0
    assert fake.log() == ["context 101", launched(2, 1), "context 100"], "retained once"

    fake.library.fake_context(ctypes.c_size_t(0x200))
    assert offered.launch(device, 2) == 0
    assert fake.log() == ["context 101", launched(2, 1), "context 200"]
    assert current() == 0x200, "not device 0's primary context, but the one that was there"

    fake.library.fake_context(ctypes.c_size_t(0x301))
    assert offered.launch(device, 2) == 0
    assert fake.log() == [launched(2, 1)], "a context of the device serves, primary or not"

    fake.library.fake_context(ctypes.c_size_t(0x200))
    fake.fail("cuLaunchKernel", 1, 1)
    assert offered.launch(device, 2) == 1
    assert offered.text(table) == "CUDA_ERROR_INVALID_VALUE (1) from kernel_2"
    assert current() == 0x200

    far = abi.Device.from_buffer_copy(device)
    far.ordinal = 99
    assert offered.launch(far, 2) == 1
    assert offered.text(table) == "CUDA_ERROR_INVALID_VALUE (1) from device switch"
    assert current() == 0x200

    fake.log()
    thread = threading.Thread(target=offered.launch, args=(device, 3))
    thread.start()
    thread.join()
    assert fake.log() == ["context 101", launched(3, 1), "context 0"], "retained once a process"

    offered.failure.code = 12345
    assert offered.text(table).startswith("unknown CUDA error (12345)")


def test_cuda_contexts(runtime: Path, cuda: Path) -> None:
    in_new_process(_cuda_contexts, runtime, cuda)


# ---- real HIP ------------------------------------------------------------------------------------


def _real_hip(runtime: Path, library: str) -> None:
    ctypes.CDLL(library)
    table, words = Runtime(runtime).find("hip")
    assert table is None
    assert words == "hipErrorNoDevice (100) from hipGetDeviceCount"


def test_real_hip_without_a_gpu(runtime: Path) -> None:
    library = find_library("amdhip64")
    if library is None:
        pytest.skip("needs HIP's runtime (libamdhip64-dev)")
    if Path("/dev/kfd").exists():
        pytest.skip("this machine may have an AMD GPU")
    in_new_process(_real_hip, runtime, library)
