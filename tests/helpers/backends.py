# SPDX-License-Identifier: Apache-2.0
"""Where the contract tests run: every backend has the public calls' names and takes numpy arrays.

======== ============================================================ ====
name     what runs                                                    rung
======== ============================================================ ====
cpu      the package's calls on CPU tensors: the native kernels       2
native   the same kernels, below the extension: for the sanitizers    2
harness  csrc/launch.c and csrc/kernels on fibres                     3
gfx942   csrc/launch.c and the gfx942 code object in the emulator     5
cuda     the package's calls on CUDA tensors: the sm_90 code object   6
======== ============================================================ ====
"""

import functools
import importlib

import numpy as np
from helpers import gfx942, harness
from helpers.abi import CSRC
from helpers.buffers import held_by
from helpers.launcher import Launcher, NativeCalls

from dsv41topk._cache import Fp8Array
from dsv41topk.bench import emulator

CALLS = (
    "top_k_per_row_decode_512",
    "candidate_top_k_512",
    "compact_top_k_512",
    "compact_top_k_512_regs",
    "candidate_blocks",
    "candidate_logits",
)


class Backend:
    """What tests see. `calls` maps each of CALLS to a function that takes numpy arrays."""

    name = ""
    views_may_end_early = (
        True  # rows need not exist past their last live column: a read there faults
    )

    def __init__(self):
        self.calls = {}

    def __getattr__(self, name):
        try:
            return self.calls[name]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self):
        return self.name

    def prepare(self, seed):
        """Make the next call's schedule a function of `seed`."""

    def forbid(self, logits, ends):
        """Make reads past each row's last live 16-byte vector fail, where the backend can."""

    def allow(self, logits):
        """Undo `forbid`."""


class _Cpu(Backend):
    name = "cpu"

    def __init__(self):
        package = importlib.import_module("dsv41topk")
        self.calls = {name: getattr(package, name) for name in CALLS}
        self.calls["candidate_logits"] = self._candidate_logits

    @staticmethod
    def _candidate_logits(q, kv_cache, weights, seq_lens, next_n, *args, fp8):
        package = importlib.import_module("dsv41topk")
        q = Fp8Array(q.reshape(-1, next_n, *q.shape[1:]), fp8)
        package.candidate_logits(q, kv_cache, weights, seq_lens, next_n, *args)


class _Native(Backend):
    name = "native"

    def __init__(self, flavour="plain"):
        native = NativeCalls(harness.harness(flavour).library)
        self.calls = {name: getattr(native, name) for name in CALLS}


class _Launched(Backend):
    def __init__(self, launcher):
        self.launcher = launcher
        self.calls = {name: getattr(launcher, name) for name in CALLS}


class _Harness(_Launched):
    name = "harness"

    def __init__(self, flavour="plain"):
        self.harness = harness.harness(flavour)
        self.compute_units = 304
        library, runtime = self.harness.library, self.harness.runtime
        super().__init__(Launcher(library, runtime, explained=self.harness.explained))

    def prepare(self, seed):
        self.harness.configure(
            seed=seed, interleave=seed % 2 == 0, compute_units=self.compute_units
        )

    def set_compute_units(self, count):
        self.compute_units = count
        self.harness.configure(compute_units=count)
        self.launcher.reload()

    def forbid(self, logits, ends):
        for row, end in zip(logits, ends, strict=True):
            first_dead = -(-(row.ctypes.data + 4 * int(end)) // 16) * 16
            self.harness.forbid(first_dead, self._last_of(row, logits))

    def allow(self, logits):
        for row in logits:
            self.harness.allow(row.ctypes.data, self._last_of(row, logits))

    @staticmethod
    def _last_of(row, logits):
        # The last row may claim more than its block holds. What lies behind the block is another
        # one's: outputs were forbidden, and red zones allowed.
        block = held_by(logits)
        return min(row.ctypes.data + 4 * row.size, block.ctypes.data + block.nbytes)


class _Gfx942(_Launched):
    name = "gfx942"

    def __init__(self, flavour="plain"):
        flags = ["-ffast-math"] if flavour == "fast-math" else []
        module = importlib.import_module("dsv41topk.bench.emulator_runtime")
        self.runtime = module.EmulatorRuntime()
        library = harness.harness().library  # for its launch.c and runtime.c
        super().__init__(Launcher(library, self.runtime.address, gfx942.image(*flags)))

    def prepare(self, seed):
        # A third of the calls in order, a third with shuffled waves, a third interleaved finely as
        # well.
        self.runtime.seed = None if seed % 3 == 0 else seed
        self.runtime.quantum = 24 if seed % 3 == 2 else 0

    def set_compute_units(self, count):
        self.runtime.compute_units = count
        self.launcher.reload()


class _Cuda(Backend):
    name = "cuda"
    views_may_end_early = False

    def __init__(self):
        self._torch = importlib.import_module("torch")
        package = importlib.import_module("dsv41topk")
        self.calls = {name: functools.partial(self._call, getattr(package, name)) for name in CALLS}
        self.calls["candidate_logits"] = functools.partial(self._call, self._candidate_logits)

    def _candidate_logits(self, q, kv_cache, weights, seq_lens, next_n, *args, fp8):
        kind = {"e4m3fn": self._torch.float8_e4m3fn, "e4m3fnuz": self._torch.float8_e4m3fnuz}[fp8]
        q = q.view(kind).view(-1, next_n, *q.shape[1:])
        package = importlib.import_module("dsv41topk")
        package.candidate_logits(q, kv_cache, weights, seq_lens, next_n, *args)

    def _call(self, function, *args, **kwargs):
        torch = self._torch
        arrays = [a for a in args if isinstance(a, np.ndarray)]
        on_device = {id(a): self._to_device(a) for a in arrays}
        result = function(*(on_device.get(id(a), (a,))[0] for a in args), **kwargs)
        torch.cuda.synchronize()
        for array in arrays:
            _, whole, held = on_device[id(array)]
            held[:] = whole.cpu().numpy()
        return result

    def _to_device(self, array):
        """The same view of a copy of everything that the array's block holds."""
        held = held_by(array).view(np.uint8).reshape(-1)
        whole = self._torch.from_numpy(held).cuda()
        kind = getattr(self._torch, array.dtype.name)
        offset = (array.ctypes.data - held.ctypes.data) // array.itemsize
        strides = [s // array.itemsize for s in array.strides]
        return whole.view(kind).as_strided(array.shape, strides, offset), whole, held


def _cpu_unavailable():
    try:
        package = importlib.import_module("dsv41topk")
    except ImportError as error:
        return f"the extension is not built: {error}"
    return None if hasattr(package, CALLS[0]) else "the package has no kernel calls"


def _harness_unavailable():
    if not list((CSRC / "kernels").glob("*.hip")):
        return "no kernels"
    return harness.unavailable()


def _gfx942_unavailable():
    return _harness_unavailable() or gfx942.unavailable() or emulator.unavailable()


def _cuda_unavailable():
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return "no torch"
    if not torch.cuda.is_available():
        return "no CUDA GPU"
    return _cpu_unavailable()


_BACKENDS = {
    "cpu": (_Cpu, _cpu_unavailable),
    "native": (_Native, harness.unavailable),
    "harness": (_Harness, _harness_unavailable),
    "gfx942": (_Gfx942, _gfx942_unavailable),
    "cuda": (_Cuda, _cuda_unavailable),
}
NAMES = tuple(_BACKENDS)
LAUNCHED = ("harness", "gfx942")
"""Those that run csrc/launch.c with scratch and a device of the test's choice."""


@functools.cache
def unavailable(name):
    """Why that backend cannot run here, or None."""
    return _BACKENDS[name][1]()


@functools.cache
def backend(name, *args):
    """The one backend of that name in this process."""
    return _BACKENDS[name][0](*args)
