# SPDX-License-Identifier: Apache-2.0
"""`csrc/runtime.c` beside torch on a CUDA device: contexts, threads, streams, graph capture."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from helpers.fake_gpu import Runtime, compile_runtime, in_new_process

KERNEL = """
struct Args { int* out; int value; };
extern "C" __global__ void kernel_0(Args args) {
  if (threadIdx.x == 0) atomicAdd(args.out + blockIdx.x, args.value);
}
"""


class Args(ctypes.Structure):
    _fields_ = (("out", ctypes.c_void_p), ("value", ctypes.c_int))


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_runtime(tmp_path_factory.mktemp("runtime"))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    torch = pytest.importorskip("torch", reason="needs torch")
    if not torch.cuda.is_available() or torch.version.cuda is None:
        pytest.skip("needs a CUDA device")
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc in PATH")
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "kernel.cu").write_text(KERNEL)
    command = ["nvcc", "-arch=native", "-cubin", "kernel.cu", "-o", "kernel.cubin"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return (folder / "kernel.cubin").read_bytes()


def _beside_torch(runtime: Path, image: bytes) -> None:
    import torch

    offered = Runtime(runtime)
    out = torch.zeros(4, dtype=torch.int32, device="cuda")
    table, path = offered.find("cuda")
    assert table is not None, path
    major, minor = torch.cuda.get_device_capability()
    assert offered.arch(table, 0) == (0, f"sm_{major}{minor}")

    device = None
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    args = Args(out.data_ptr(), 5)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
        device = offered.load(table, 0, image)
        assert device is not None, offered.text(table)
        assert offered.launch(device, 0, (2, 1), 64, args, stream.cuda_stream) == 0
    units = torch.cuda.get_device_properties(0).multi_processor_count
    assert device.compute_units == units
    torch.cuda.synchronize()
    assert out.tolist() == [0, 0, 0, 0], "captured, not run"
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert out.tolist() == [15, 15, 0, 0]

    results = []

    def in_thread() -> None:  # which has no context
        here = torch.cuda.current_stream(0).cuda_stream
        results.append(offered.launch(device, 0, (3, 1), 64, args, here))

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert results == [0]
    assert out.tolist() == [20, 20, 5, 0]

    assert offered.launch(device, 0, (1, 1), 2048, args, 0) == 1
    assert offered.text(table) == "CUDA_ERROR_INVALID_VALUE (1) from kernel_0"
    torch.cuda.synchronize()  # would raise what the failure had left behind
    assert (out + 1).tolist() == [21, 21, 6, 1]

    assert offered.load(table, 0, b"not an object" * 10) is None
    assert "from module load" in offered.text(table)
    assert (out + 1).tolist() == [21, 21, 6, 1]

    if torch.cuda.device_count() > 1:
        there = torch.zeros(4, dtype=torch.int32, device="cuda:1")
        second = offered.load(table, 1, image)
        assert second is not None and torch.cuda.current_device() == 0
        far = torch.cuda.current_stream(1).cuda_stream
        assert offered.launch(second, 0, (1, 1), 64, Args(there.data_ptr(), 7), far) == 0
        assert torch.cuda.current_device() == 0
        torch.cuda.synchronize(1)
        assert there.tolist() == [7, 0, 0, 0]


def test_beside_torch(runtime: Path, image: bytes) -> None:
    in_new_process(_beside_torch, runtime, image)
