# SPDX-License-Identifier: Apache-2.0
"""Execute gfx942 code objects on the CPU, and count what they execute.

tinygrad's functional AMD emulator (its ``test/mockgpu/amd/emu.py``) turns each machine instruction
into a small compiled function. This module is the driver around it: it loads a code object, lays
out kernel arguments, registers, LDS and scratch, runs workgroups of 64-lane waves with real
barriers, and counts wave-instructions by class.

Importing needs nothing. Running needs a checkout of the public repository tinygrad/tinygrad, named
by the variable ``TINYGRAD``, and clang: `unavailable` says what is missing. No file of that
checkout is changed; where its emulator is wrong or silent for compiler-made gfx942 code, `_patch`
replaces the function at run time.

What it is good for: results, interleavings and counts. What it is not: a clock. `Stats.clocks` is
the issue bound of the counted instructions, with no latency in it. Calls between functions are not
followed: kernels are one piece.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dsv41topk.bench.code_object import GFX942, CodeObjectFile, KernelDescriptor

__all__ = ["CodeObject", "Kernel", "Stats", "unavailable"]

WAVE = 64
_SGPRS, _VGPRS = 260, 256
# A generic pointer into LDS is (src_shared_base << 32) | offset. LDS is mapped at exactly such a
# host address, so that flat instructions reach it with no check of the aperture.
_LDS_APERTURE = 0x2000
_LDS_BASE = _LDS_APERTURE << 32
_LDS_BYTES = 64 << 10
_PRIVATE_APERTURE = 0x3000  # reported to the kernel, but flat access to scratch is not emulated

_END, _BARRIER, _COMPILE, _BUDGET, _BAD_PC, _GPR_INDEXING, _FAULT = range(7)
_NO_MEMORY, _LDS, _LDS_ATOMIC, _GLOBAL = range(4)
(
    _CALL, _AT_BARRIER, _GET_PC, _SET_PC, _SWAP_PC, _CALL_PC, _GLOBAL_LOAD_LDS, _SWIZZLE, _BPERMUTE,
    _PERMUTE, _DPP, _INDEX_ON, _INDEX_OFF,
) = range(13)  # fmt: skip

CLASSES = [
    "valu", "valu_slow", "mfma", "salu", "smem", "ds_read", "ds_write", "ds_atomic", "ds_perm",
    "vmem_load", "vmem_store", "vmem_atomic", "flat", "scratch", "branch", "waitcnt", "barrier",
    "other",
]  # fmt: skip
_QUARTER_RATE = re.compile(
    r"V_(RCP|RSQ|SQRT|EXP|LOG|SIN|COS|MUL_LO_U32|MUL_LO_I32|MUL_HI|MAD_U64|MAD_I64)"
)


def unavailable() -> str | None:
    """Why nothing can be executed here, or None."""
    checkout = os.environ.get("TINYGRAD")
    if not checkout:
        return "TINYGRAD does not name a checkout of the repository tinygrad/tinygrad"
    if not (Path(checkout) / "test/mockgpu/amd/emu.py").is_file():
        return f"TINYGRAD={checkout} has no test/mockgpu/amd/emu.py"
    if _clang() is None:
        return "no clang in PATH (the emulator compiles instructions with it)"
    return None


def _clang() -> str | None:
    return shutil.which(os.environ.get("CC", "clang")) or shutil.which("clang-19")


# ---- the emulator behind it ----------------------------------------------------------------------


@functools.cache
def _tinygrad() -> SimpleNamespace:
    reason = unavailable()
    if reason:
        raise RuntimeError(reason)
    os.environ["CC"] = str(_clang())  # tinygrad asks for this name, and for "clang" without it
    sys.path.insert(0, os.environ["TINYGRAD"])
    load = importlib.import_module
    modules = SimpleNamespace(
        emu=load("test.mockgpu.amd.emu"),
        dtypes=load("tinygrad.dtype").dtypes,
        uop=load("tinygrad.uop.ops").UOp,
        cdna=load("tinygrad.runtime.autogen.amd.cdna.ins"),
    )
    _patch(modules)
    return modules


def _patch(modules: SimpleNamespace) -> None:
    """Make the emulator behave as gfx942 where it is wrong or silent for compiler-made code.

    The result rows of 32x32 MFMA are not patched (its layout is not gfx942's); 16x16 is right.
    """
    emu, dtypes, uop, cdna = modules.emu, modules.dtypes, modules.uop, modules.cdna

    def u32(value: int) -> Any:
        return uop.const(value, dtypes.uint32)

    # 64-bit reads of src_shared_base (235) and src_private_base (237): {high = aperture, low = 0}.
    read_source = emu._Ctx.rsrc_dyn

    def rsrc_dyn(self: Any, off: Any, lane: Any, bits: int = 32, *args: Any, **kwargs: Any) -> Any:
        value = read_source(self, off, lane, bits, *args, **kwargs)
        if bits == 64:
            shared = uop.const(_LDS_APERTURE << 32, dtypes.uint64)
            private = uop.const(_PRIVATE_APERTURE << 32, dtypes.uint64)
            value = off.eq(u32(235)).where(shared, off.eq(u32(237)).where(private, value))
        return value

    emu._Ctx.rsrc_dyn = rsrc_dyn

    # Cache control (buffer_inv, buffer_wbl2) would be executed as a buffer load into v0.
    mubuf = emu._INST_HANDLERS[cdna.MUBUF]

    def without_cache_control(inst: Any, ctx: Any) -> Any:
        if any(word in emu._op_name(inst) for word in ("INV", "WBL2")):
            return uop.sink(*ctx.inc_pc())
        return mubuf(inst, ctx)

    emu._INST_HANDLERS[cdna.MUBUF] = without_cache_control

    # flat_* has no saddr on GFX9 (the field is 0), but the emulator reads it as "s[0:1] is the
    # base".
    optional_field = emu._Ctx.optional_field

    def field(self: Any, inst: Any, name: str) -> Any:
        flat = isinstance(inst, cdna.FLAT) and not isinstance(inst, (cdna.GLOBAL, cdna.SCRATCH))
        return None if name == "saddr" and flat else optional_field(self, inst, name)

    emu._Ctx.optional_field = field

    # gfx942's FP8 and BF8 are the FNUZ formats (bias 8 and 16, 0x80 is NaN, no -0, no infinity);
    # the emulator has the OCP formats of gfx950.
    def decoder(mantissa: int, bias: int) -> Any:
        def decode(value: Any) -> Any:
            byte = value.cast(dtypes.uint32) & u32(0xFF)
            sign = (byte & u32(0x80)) << u32(24)
            exponent = (byte >> u32(mantissa)) & u32((1 << 7 - mantissa) - 1)
            fraction = byte & u32((1 << mantissa) - 1)
            normal = ((exponent + u32(127 - bias)) << u32(23)) | (fraction << u32(23 - mantissa))
            unit = uop.const(2.0 ** (1 - bias - mantissa), dtypes.float32)
            subnormal = (fraction.cast(dtypes.float32) * unit).bitcast(dtypes.uint32)
            bits = exponent.eq(u32(0)).where(subnormal, normal) | sign
            return byte.eq(u32(0x80)).where(u32(0x7FC00000), bits).bitcast(dtypes.float32)

        return decode

    def encoder(mantissa: int, bias: int) -> Any:
        def encode(value: Any) -> Any:
            is_float = value.dtype == dtypes.float32
            bits = value.bitcast(dtypes.uint32) if is_float else value.cast(dtypes.uint32)
            sign, size = (bits >> u32(24)) & u32(0x80), bits & u32(0x7FFFFFFF)
            # Normal: to nearest even on the dropped bits, then the other bias.
            drop = 23 - mantissa
            even = (size >> u32(drop)) & u32(1)
            rounded = (size + u32((1 << (drop - 1)) - 1) + even) >> u32(drop)
            normal = rounded - u32((127 - bias) << mantissa)
            # Subnormal: adding 2^23 units of 2^(1-bias-mantissa) rounds to nearest even.
            one = u32(127 + 23 + (1 - bias - mantissa) << 23)
            total = size.bitcast(dtypes.float32) + one.bitcast(dtypes.float32)
            code = (size < u32((127 - bias + 1) << 23)).where(
                total.bitcast(dtypes.uint32) - one, normal
            )
            too_large = (size > u32(0x47FFFFFF)) | (code > u32(0x7F))
            signed = code.eq(u32(0)).where(u32(0), code | sign)
            return too_large.where(u32(0x80), signed).cast(dtypes.uint8)

        return encode

    emu._FUNCS["fp8_to_f32"], emu._FUNCS["bf8_to_f32"] = decoder(3, 8), decoder(2, 16)
    emu._FUNCS["f32_to_fp8"], emu._FUNCS["f32_to_bf8"] = encoder(3, 8), encoder(2, 16)


# ---- the inner loop ------------------------------------------------------------------------------


class _Op(ctypes.Structure):
    _fields_ = [
        ("fn", ctypes.c_void_p),
        ("nargs", ctypes.c_uint8),
        ("arg", ctypes.c_uint8 * 6),
        ("kind", ctypes.c_uint8),
        ("memory", ctypes.c_uint8),
        ("width", ctypes.c_uint8),
        ("two", ctypes.c_uint8),
        ("areg", ctypes.c_uint8),
        ("sreg", ctypes.c_uint8),
        ("data", ctypes.c_uint8),
        ("valu", ctypes.c_uint8),
        ("offset", ctypes.c_int32),
        ("offset1", ctypes.c_int32),
        ("alternative", ctypes.c_uint64),
    ]


class _Wave(ctypes.Structure):
    _fields_ = [
        ("sgpr", ctypes.c_void_p),
        ("vgpr", ctypes.c_void_p),
        ("bufs", ctypes.c_void_p * 6),
        ("count", ctypes.c_void_p),
        ("lanes", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("state", ctypes.c_int),
    ]


class _Image(ctypes.Structure):
    _fields_ = [
        ("ops", ctypes.c_void_p),
        ("base", ctypes.c_uint64),
        ("first", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("measure", ctypes.c_int),
    ]


@functools.cache
def _engine() -> ctypes.CDLL:
    source = Path(__file__).with_name("gfx942_engine.c")
    with tempfile.TemporaryDirectory(prefix="dsv41topk-engine-") as folder:
        library = Path(folder) / "engine.so"
        command = [str(_clang()), "-O2", "-shared", "-fPIC", "-Wno-int-to-pointer-cast"]
        subprocess.run([*command, str(source), "-o", str(library)], check=True)
        engine = ctypes.CDLL(str(library))
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    engine.start_waves.argtypes = [
        pointer, ctypes.c_int, u32, pointer, ctypes.c_int, pointer, ctypes.c_int, u32
    ]  # fmt: skip
    engine.start_waves.restype = None
    engine.run_waves.argtypes = [
        pointer, ctypes.c_int, pointer, pointer, u32, ctypes.c_int, u64, pointer, pointer, pointer
    ]  # fmt: skip
    return engine


@functools.cache
def _map_lds() -> None:
    """Map LDS at its aperture.

    The 4 GiB behind it are reserved too: the emulator touches the LDS word of inactive lanes as
    well, whose address registers can hold anything.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    ]  # fmt: skip
    fixed_noreplace, no_reserve = 0x100000, 0x4000
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed_noreplace | no_reserve
    size = (1 << 32) + (1 << 20)
    at = libc.mmap(_LDS_BASE, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if at != _LDS_BASE:
        raise OSError(f"LDS could not be mapped at {_LDS_BASE:#x}")


def _aligned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Zeros at a multiple of 256 bytes."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 256, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start : start + size].view(dtype).reshape(shape)


# ---- instructions --------------------------------------------------------------------------------


def _class_of(name: str) -> str:
    """Return the class that a mnemonic is counted in."""
    if name.startswith("V_"):
        if "MFMA" in name:
            return "mfma"
        return "valu_slow" if _QUARTER_RATE.match(name) else "valu"
    if name.startswith("DS_"):
        if "PERMUTE" in name or "SWIZZLE" in name:
            return "ds_perm"
        if re.match(r"DS_(READ|LOAD)", name):
            return "ds_read"
        return "ds_write" if re.match(r"DS_(WRITE|STORE)", name) else "ds_atomic"
    if name.startswith(("GLOBAL_", "BUFFER_")):
        for word, kind in (
            ("ATOMIC", "vmem_atomic"),
            ("STORE", "vmem_store"),
            ("LOAD", "vmem_load"),
        ):
            if word in name:
                return kind
        return "other"
    for start, kind in (
        ("FLAT_", "flat"),
        ("SCRATCH_", "scratch"),
        (("S_LOAD", "S_BUFFER", "S_DCACHE", "S_SCRATCH", "S_STORE", "S_MEM"), "smem"),
        ("S_BARRIER", "barrier"),
        ("S_WAITCNT", "waitcnt"),
        (("S_BRANCH", "S_CBRANCH", "S_SETPC", "S_SWAPPC", "S_CALL", "S_ENDPGM"), "branch"),
        (
            ("S_NOP", "S_SLEEP", "S_SETPRIO", "S_SENDMSG", "S_TRAP", "S_ICACHE", "S_SETHALT"),
            "other",
        ),
    ):
        if name.startswith(start):
            return kind
    return "salu"


def _bytes_of(name: str) -> int:
    """Bytes that a lane moves, from the mnemonic."""
    dwords = re.search(r"DWORDX(\d)", name)
    if dwords:
        return 4 * int(dwords[1])
    for end, size in (("BYTE", 1), ("DWORD", 4), ("SHORT", 2)):
        if end in name:
            return size
    bits = re.search(r"[BUIF](\d+)(_\w+)?$", name)
    return max(1, int(bits[1]) // 8) if bits else 4


def _register(operand: Any) -> int:
    for attribute in ("offset", "value"):
        if hasattr(operand, attribute):
            return int(getattr(operand, attribute))
    return int(operand)


def _signed(value: int, bits: int) -> int:
    return value - ((value >> (bits - 1)) << bits)


class CodeObject:
    """A loaded gfx942 code object.

    Parameters
    ----------
    data : bytes
        The ELF file.

    Attributes
    ----------
    kernels : dict of str to Kernel
    compile_seconds : float
        Spent so far on turning instructions into functions; each is done once, when first executed.
    """

    def __init__(self, data: bytes) -> None:
        _tinygrad()
        file = CodeObjectFile(data)
        if file.mach != GFX942:
            raise ValueError(f"the code object is for {file.target or hex(file.mach)}, not gfx942")
        # Address 0 of the code object lies at `base`. The emulator reads a few bytes past an
        # instruction.
        self._map = mmap.mmap(-1, file.image_bytes + 4096)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        file.load(memoryview(self._map), self.base)
        self.dwords = (file.image_bytes + 256) // 4
        self.ops = (_Op * self.dwords)()
        self.names: dict[int, str] = {}
        self.classes: dict[int, str] = {}
        self.compile_seconds = 0.0
        self._keep: list[Any] = []
        self.kernels = {name: Kernel(self, entry) for name, entry in file.kernels.items()}

    def __getitem__(self, name: str) -> Kernel:
        """Return the kernel of that name."""
        return self.kernels[name]

    def bytes_at(self, offset: int, count: int) -> bytes:
        """Bytes of the loaded image."""
        return self._map[offset : offset + count]

    def compile_at(self, pc: int) -> None:
        """Give the engine a function for the instruction at `pc`."""
        start = time.perf_counter()
        slot = (pc - self.base) // 4
        low, high = struct.unpack("<II", self.bytes_at(pc - self.base, 8))
        emu = _tinygrad().emu
        inst = emu.decode_inst(self.bytes_at(pc - self.base, 16), "cdna")
        name = emu._op_name(inst).upper()
        self.names[slot], self.classes[slot] = name, _class_of(name)
        op = self.ops[slot]
        op.valu = name.startswith("V_")
        if self._engine_executes(op, name, low, high):
            op.fn = 1  # not called, but no longer missing
        else:
            self._compile(op, inst, name, pc, low, high)
        self.compile_seconds += time.perf_counter() - start

    def _engine_executes(self, op: _Op, name: str, low: int, high: int) -> bool:
        """Fill `op` for an instruction that gfx942_engine.c executes itself."""
        counter = {
            "S_GETPC_B64": _GET_PC,
            "S_SETPC_B64": _SET_PC,
            "S_SWAPPC_B64": _SWAP_PC,
            "S_CALL_B64": _CALL_PC,
        }
        if name in counter:
            op.kind, op.areg, op.sreg = counter[name], low >> 16 & 127, low & 255
            op.offset1 = _signed(low & 0xFFFF, 16)
        elif name.startswith("GLOBAL_LOAD_LDS"):
            op.kind, op.memory, op.width = _GLOBAL_LOAD_LDS, _GLOBAL, _bytes_of(name)
            op.areg, op.sreg, op.offset = high & 255, high >> 16 & 127, _signed(low & 0x1FFF, 13)
        elif name == "DS_SWIZZLE_B32":
            op.kind, op.areg, op.sreg, op.offset = _SWIZZLE, high & 255, high >> 24, low & 0xFFFF
        elif name in ("S_SET_GPR_IDX_ON", "S_SET_GPR_IDX_OFF"):
            op.kind = _INDEX_ON if name.endswith("ON") else _INDEX_OFF
            op.sreg, op.areg = low & 255, low >> 8 & 15
        elif name in ("DS_BPERMUTE_B32", "DS_PERMUTE_B32"):
            op.kind = _BPERMUTE if name == "DS_BPERMUTE_B32" else _PERMUTE
            op.areg, op.data, op.sreg, op.offset = (
                high & 255,
                high >> 8 & 255,
                high >> 24,
                low & 0xFFFF,
            )
        else:
            return False
        return True

    def _compile(self, op: _Op, inst: Any, name: str, pc: int, low: int, high: int) -> None:
        emu = _tinygrad().emu
        at = pc
        if "DPP" in type(inst).__name__:
            # The emulator reads and writes lane by lane, so a destination that is also the swizzled
            # source would be read after it was written; it also lacks row_bcast and row_newbcast,
            # and writes lanes that DPP disables. So the same instruction without DPP runs on v255,
            # where the engine has put the swizzled source.
            plain = low & ~0x1FF | 0x1FF
            if high >> 22 & 3:
                plain = plain & ~(255 << 9) | 254 << 9
            block = ctypes.create_string_buffer(
                struct.pack("<II", plain, 0xBF810000) + bytes(32), 64
            )
            self._keep.append(block)
            at = ctypes.addressof(block)
            op.kind, op.alternative, op.areg = _DPP, at, low >> 9 & 255
            op.offset = _signed(high, 32)
            op.offset1 = 0x8000 if "F16" in name else _signed(0x80000000, 32)
        (program, runtime), _ = emu._decode_at(at, "cdna")
        buffers = list(program.arg.globals)
        op.fn = ctypes.cast(runtime.fxn, ctypes.c_void_p).value
        op.nargs = len(buffers)
        op.arg[: len(buffers)] = buffers
        kind = _class_of(name)
        if kind == "barrier":
            op.kind = _AT_BARRIER
        elif kind in ("ds_read", "ds_write", "ds_atomic"):
            op.memory = _LDS_ATOMIC if kind == "ds_atomic" else _LDS
            op.areg, op.width = _register(inst.addr) & 255, _bytes_of(name)
            offset0, offset1 = int(inst.offset0), int(inst.offset1)
            if re.search(r"(READ|WRITE|LOAD|STORE)_?2", name):
                unit = op.width * (64 if "ST64" in name else 1)
                op.two, op.offset, op.offset1 = 1, offset0 * unit, offset1 * unit
            else:
                op.offset = offset0 | offset1 << 8
        elif kind in ("vmem_load", "vmem_store", "vmem_atomic") and name.startswith("GLOBAL"):
            op.memory, op.width = _GLOBAL, _bytes_of(name)
            op.areg, op.sreg = _register(inst.addr) & 255, min(_register(inst.saddr), 255)
            op.offset = _signed(int(inst.offset), 13)


# ---- counts --------------------------------------------------------------------------------------


class Stats:
    """What one launch executed.

    Attributes
    ----------
    count, lanes, extra : uint64 [waves, dwords of the kernel]
        Executions of the instruction in that dword by that wave of a workgroup; their active lanes;
        LDS passes or 128-byte lines of memory. Summed over workgroups.
    slowest : int
        The largest bound in clocks of one workgroup; 0 when it was not measured.
    """

    def __init__(self, kernel: Kernel, waves: int, workgroups: int) -> None:
        self._kernel, self.waves, self.workgroups = kernel, waves, workgroups
        shape = waves, kernel.dwords
        self.count, self.lanes, self.extra = (np.zeros(shape, np.uint64) for _ in range(3))
        self.seconds = self.compile_seconds = 0.0
        self.slowest = 0

    def by_class(self, numbers: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Wave-instructions (or other `numbers`) of each class by wave, summed over workgroups."""
        sums = (self.count if numbers is None else numbers) @ self._kernel.class_matrix()
        return {name: sums[:, i].astype(np.int64) for i, name in enumerate(CLASSES)}

    def by_operation(self) -> dict[str, int]:
        """Wave-instructions by mnemonic, most frequent first."""
        totals: dict[str, int] = {}
        for dword in np.nonzero(self.count.any(0))[0]:
            name = self._kernel.mnemonic(int(dword)).lower()
            totals[name] = totals.get(name, 0) + int(self.count[:, dword].sum())
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    @property
    def wave_instructions(self) -> int:
        """Of all waves of all workgroups."""
        return int(self.count.sum())

    @property
    def barriers(self) -> float:
        """Barriers that a wave passes, the mean over workgroups."""
        return float(self.by_class()["barrier"].max()) / self.workgroups

    def add(self, other: Stats) -> None:
        """Add the counts of one more workgroup."""
        self.count += other.count
        self.lanes += other.lanes
        self.extra += other.extra
        self.slowest = max(self.slowest, max(other.bounds().values()))

    def clear(self) -> None:
        """Start again from nothing."""
        for numbers in (self.count, self.lanes, self.extra):
            numbers[:] = 0

    def bounds(self) -> dict[str, int]:
        """Lower bounds in clocks for one workgroup alone on a compute unit, the mean of the launch.

        A compute unit has 4 SIMDs of 16 lanes, and wave w runs on SIMD w % 4. A SIMD gets an issue
        turn every 4 clocks, and in a turn starts at most one instruction of each kind, each from
        another of its waves. VALU: 4 clocks a wave-instruction, 16 for those of quarter rate; MFMA
        is left out. LDS: a clock a pass, shared by the SIMDs. wave: an instruction a turn, the
        longest wave. No latencies.
        """
        count, extra = self.by_class(), self.by_class(self.extra)

        def busiest(per_wave: np.ndarray) -> int:
            return max(int(per_wave[simd::4].sum()) for simd in range(min(4, self.waves)))

        clocks = {
            "valu": 4 * busiest(count["valu"] + 4 * count["valu_slow"]),
            "salu+smem": 4 * busiest(count["salu"] + count["smem"]),
            "branch": 4 * busiest(count["branch"]),
            "lds": self._lds_clocks(count, extra),
            "wave": 4 * int(self.count.sum(1).max()),
        }
        return {name: round(value / self.workgroups) for name, value in clocks.items()}

    @staticmethod
    def _lds_clocks(count: dict[str, np.ndarray], extra: dict[str, np.ndarray]) -> int:
        passes = sum(int(extra[name].sum()) for name in ("ds_read", "ds_write", "ds_atomic"))
        return passes + 2 * int(count["ds_perm"].sum()) + 4 * int(count["flat"].sum())

    def clocks(self, compute_units: int = 304) -> int:
        """Return the launch's bound: its slowest workgroup, or all shared out, if that is more."""
        count, extra = self.by_class(), self.by_class(self.extra)
        shared = max(
            int((count["valu"] + 4 * count["valu_slow"]).sum()),
            int((count["salu"] + count["smem"]).sum()),
            int(count["branch"].sum()),
            self._lds_clocks(count, extra),
        )
        return max(self.slowest or max(self.bounds().values()), round(shared / compute_units))

    def table(self) -> str:
        """Return the counts by class, for people."""
        count, lanes, extra = self.by_class(), self.by_class(self.lanes), self.by_class(self.extra)
        lines = [
            f"{self.workgroups} workgroups of {self.waves} waves, {self.wave_instructions:,} "
            f"wave-instructions, bounds {self.bounds()}, {self.seconds:.2f} s and "
            f"{self.compile_seconds:.1f} s of compiling",
            f"  {'class':12s} {'total':>10s} {'a workgroup':>12s} {'a wave':>10s} {'lanes':>6s} "
            f"{'passes, lines':>14s}",
        ]
        for name in CLASSES:
            total = int(count[name].sum())
            if total:
                lines.append(
                    f"  {name:12s} {total:10d} {total / self.workgroups:12.1f} "
                    f"{total / self.workgroups / self.waves:10.1f} "
                    f"{lanes[name].sum() / total:6.1f} "
                    f"{int(extra[name].sum()) or '':>14}"
                )
        return "\n".join(lines)

    def hottest(self, count: int = 40) -> list[str]:
        """Return the most executed instructions as the code has them, with their active lanes."""
        totals = self.count.sum(0).astype(np.int64)
        first = self._kernel.first_dword
        return [
            f"{4 * (first + int(dword)):#07x} {totals[dword]:9d}  lanes "
            f"{float(self.lanes[:, dword].sum()) / totals[dword]:5.1f}  "
            f"{self._kernel.mnemonic(int(dword)).lower()}"
            for dword in sorted(np.argsort(-totals)[:count])
            if totals[dword]
        ]


# ---- kernels -------------------------------------------------------------------------------------


class Kernel:
    """A kernel of a loaded code object."""

    def __init__(self, code: CodeObject, entry: KernelDescriptor) -> None:
        self._code, self.name = code, entry.name
        self.resources = entry.resources
        self._metadata = entry.metadata
        descriptor = code.bytes_at(entry.address, 64)
        self._lds, self._scratch, self._kernarg_bytes = struct.unpack_from("<III", descriptor, 0)
        (offset,) = struct.unpack_from("<q", descriptor, 16)
        self._entry = code.base + entry.address + offset
        self.first_dword, self.dwords = entry.code[0] // 4, -(-entry.code[1] // 4)
        self._matrix: tuple[int, np.ndarray] = (-1, np.empty(0))
        (self._rsrc2,) = struct.unpack_from("<I", descriptor, 52)
        self._properties, preload = struct.unpack_from("<HH", descriptor, 56)
        self._preload_count, self._preload_from = preload & 127, preload >> 7

    def mnemonic(self, dword: int) -> str:
        """Return the instruction at a dword of the kernel's code, once it has run."""
        return self._code.names[self.first_dword + dword]

    def class_matrix(self) -> np.ndarray:
        """Return float64 [dwords, classes]: 1 where an instruction that has run is of a class."""
        known = len(self._code.classes)
        if self._matrix[0] != known:
            matrix = np.zeros((self.dwords, len(CLASSES)))
            for slot, name in self._code.classes.items():
                if 0 <= slot - self.first_dword < self.dwords:
                    matrix[slot - self.first_dword, CLASSES.index(name)] = 1
            self._matrix = known, matrix
        return self._matrix[1]

    @property
    def argument_bytes(self) -> list[int]:
        """Sizes of the kernel's own arguments, in order."""
        return [
            int(argument[".size"])
            for argument in self._metadata.get(".args", [])
            if not argument[".value_kind"].startswith("hidden_")
        ]

    def _kernargs(
        self, args: Sequence[bytes], grid: Sequence[int], block: Sequence[int], dynamic_lds: int
    ) -> Any:
        size = max(self._kernarg_bytes, self._metadata[".kernarg_segment_size"])
        packed = bytearray(size + 256)
        values = iter(args)
        for argument in self._metadata.get(".args", []):
            kind, offset, size = argument[".value_kind"], argument[".offset"], argument[".size"]
            if kind.startswith("hidden_"):
                axis = "xyz".find(kind[-1])
                known = {
                    "hidden_block_count": grid[axis],
                    "hidden_group_size": block[axis],
                    "hidden_grid_dims": 3 if grid[2] > 1 else 2 if grid[1] > 1 else 1,
                    "hidden_dynamic_lds_size": dynamic_lds,
                    "hidden_shared_base": _LDS_APERTURE,
                    "hidden_private_base": _PRIVATE_APERTURE,
                }  # the rest is remainders, offsets and pointers of host services: zero
                value = known.get(kind, known.get(kind[:-2], 0)).to_bytes(size, "little")
            else:
                value = next(values)
                if len(value) != size:
                    raise ValueError(f"{self.name}: an argument of {size} bytes got {len(value)}")
            packed[offset : offset + size] = value
        if next(values, None) is not None:
            raise ValueError(f"{self.name}: too many arguments")
        return ctypes.create_string_buffer(bytes(packed), len(packed))

    def _scalars(
        self, kernargs: Any, grid: Sequence[int], block: Sequence[int], lds: int
    ) -> tuple[Any, int]:
        """Return what every wave's scalars start as, and where the workgroup's numbers follow."""
        emu = _tinygrad().emu
        scalars = np.zeros(_SGPRS, np.uint32)
        scalars[128:193] = np.arange(65)
        scalars[193:209] = (2**32 - np.arange(1, 17)).astype(np.uint32)
        for place, bits in emu.F32_INLINE.items():
            scalars[place] = bits
        at = ctypes.addressof(kernargs)
        packet = struct.pack(
            "<HHHHHHIIIIIQQQQ", 2, 3, *block, 0, *(g * b for g, b in zip(grid, block, strict=True)),
            self._scratch, lds, 0, at, 0, 0,
        )  # fmt: skip
        self._packet = ctypes.create_string_buffer(packet, 64)
        user: list[int] = []

        def pointer(value: int) -> None:
            user.extend((value & 0xFFFFFFFF, value >> 32))

        # The fixed order of kernel_code_properties, then preloaded arguments.
        if self._properties & 1:
            user.extend((0, 0, 0, 0))  # private segment buffer: unused on gfx942
        for bit, value in ((2, ctypes.addressof(self._packet)), (4, 0), (8, at), (16, 0), (32, 0)):
            if self._properties & bit:
                pointer(value)
        if self._properties & 64:
            user.append(self._scratch)
        for i in range(self._preload_count):
            user.append(struct.unpack_from("<I", kernargs, 4 * (self._preload_from + i))[0])
        scalars[: len(user)] = user
        scalars[256:258] = self._entry & 0xFFFFFFFF, self._entry >> 32
        scalars[259] = self._scratch
        return scalars, self._rsrc2 >> 1 & 31

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[bytes],
        *,
        dynamic_lds: int = 0,
        seed: int | None = None,
        quantum: int = 0,
        measure: bool = True,
        limit: int = 2_000_000_000,
        only: Iterable[tuple[int, int, int]] | None = None,
    ) -> Stats:
        """Run the kernel to its end.

        Parameters
        ----------
        grid, block : tuple of int
            Workgroups, and lanes of a workgroup.
        args : sequence of bytes
            The kernel's own arguments, as they lie in memory.
        seed : int, optional
            Shuffle workgroups and waves, and start vector registers as dirt. Without it: ascending.
        quantum : int
            Interleave the waves: 1 to this many instructions at a time. 0: a wave runs to its
            barrier.
        measure : bool
            Count LDS passes, memory lines and the slowest workgroup too, which costs time.
        limit : int
            Wave-instructions of a workgroup after which it counts as endless.
        only : iterable of tuple, optional
            The workgroups to run instead of the whole grid.

        Returns
        -------
        Stats
        """
        _map_lds()
        code = self._code
        threads = math.prod(block)
        if not 0 < threads <= self.resources["max_threads"]:
            raise ValueError(
                f"{self.name}: {threads} lanes, the kernel allows {self.resources['max_threads']}"
            )
        lds = self._lds + dynamic_lds
        if lds > _LDS_BYTES:
            raise ValueError(f"{self.name}: {lds} bytes of LDS")
        kernargs = self._kernargs(args, grid, block, dynamic_lds)
        scalars, first_id = self._scalars(kernargs, grid, block, lds)
        enabled = [axis for axis in range(3) if self._rsrc2 >> 7 + axis & 1]
        random = np.random.default_rng(seed)
        workgroups = [(x, y, z) for z, y, x in np.ndindex(*reversed(grid))]
        if only is not None:
            workgroups = list(only)
        if seed is not None:
            random.shuffle(workgroups)
        waves = -(-threads // WAVE)
        stats = Stats(self, waves, len(workgroups))
        counted = Stats(self, waves, 1) if measure else stats
        state = _Waves(waves, self._scratch, counted, self.first_dword)
        end = self.first_dword + self.dwords
        image = _Image(ctypes.addressof(code.ops), code.base, self.first_dword, end, measure)
        turns = _Turns(int(random.integers(2**63)), quantum, seed is not None, limit)
        start, compiled = time.perf_counter(), code.compile_seconds
        for workgroup in workgroups:
            dirt = int(random.integers(2**32)) if seed is not None else 0
            ctypes.memset(_LDS_BASE, 0xA5 if seed is None else dirt & 255, _LDS_BYTES)
            state.start(threads, scalars, first_id, [workgroup[axis] for axis in enabled], dirt)
            while True:
                result, wave = state.run(image, turns)
                if result == _END:
                    break
                pc = state.pc(wave)
                if result != _COMPILE:
                    reason = turns.reason(result)
                    raise RuntimeError(
                        f"{self.name}: workgroup {workgroup}, wave {wave}, offset "
                        f"{pc - code.base:#x}, seed {seed}: {reason}"
                    )
                code.compile_at(pc)
            if measure:
                stats.add(counted)
                counted.clear()
        stats.compile_seconds = code.compile_seconds - compiled
        stats.seconds = time.perf_counter() - start - stats.compile_seconds
        return stats


class _Turns:
    """How waves take turns, and what became of the last one."""

    def __init__(self, seed: int, quantum: int, shuffle: bool, limit: int) -> None:
        self.random = ctypes.c_uint64(seed)
        self.quantum, self.shuffle, self.limit = quantum, shuffle, limit
        self.ran, self.address = ctypes.c_uint64(), ctypes.c_uint64()
        self.which = ctypes.c_int()

    def reason(self, result: int) -> str:
        """Return in words why a wave stopped."""
        return {
            _BUDGET: f"more than {self.limit:,} instructions",
            _BAD_PC: "a jump out of the kernel",
            _GPR_INDEXING: "GPR indexing that is not emulated",
            _FAULT: f"a fault at address {self.address.value:#x}",
        }[result]


class _Waves:
    """Registers, scratch and counters of a workgroup's waves, as the engine takes them."""

    def __init__(self, count: int, scratch: int, counted: Stats, first_dword: int) -> None:
        self._sgpr = _aligned((count, _SGPRS), np.uint32)
        self._vgpr, self._accumulators = (
            _aligned((count, _VGPRS * WAVE), np.uint32) for _ in range(2)
        )
        self._scratch = _aligned((count, max(scratch * WAVE, 64)), np.uint8)
        self._table = (_Wave * count)()
        for w, wave in enumerate(self._table):
            wave.sgpr, wave.vgpr = self._sgpr[w].ctypes.data, self._vgpr[w].ctypes.data
            places = self._scratch[w].ctypes.data, self._accumulators[w].ctypes.data
            wave.bufs[:] = [wave.sgpr, wave.vgpr, 0, _LDS_BASE, *places]
            # The engine counts by dword of the image, of which the kernel is a part.
            wave.count, wave.lanes, wave.extra = (
                numbers[w].ctypes.data - 8 * first_dword
                for numbers in (counted.count, counted.lanes, counted.extra)
            )

    def start(
        self, threads: int, scalars: np.ndarray, first_id: int, ids: Sequence[int], dirt: int
    ) -> None:
        """Put the waves at the kernel's entry."""
        numbers = np.array(ids, np.uint32)
        _engine().start_waves(
            self._table, len(self._table), threads, scalars.ctypes.data, first_id,
            numbers.ctypes.data, len(numbers), dirt,
        )  # fmt: skip

    def run(self, image: _Image, turns: _Turns) -> tuple[int, int]:
        """Run on; return why the engine stopped, and at which wave."""
        turns.ran.value = 0
        result = _engine().run_waves(
            self._table, len(self._table), ctypes.byref(image), ctypes.byref(turns.random),
            turns.quantum, turns.shuffle, turns.limit, ctypes.byref(turns.ran),
            ctypes.byref(turns.which), ctypes.byref(turns.address),
        )  # fmt: skip
        return result, turns.which.value

    def pc(self, wave: int) -> int:
        """Return the address of a wave's next instruction."""
        return int(self._sgpr[wave, 256]) | int(self._sgpr[wave, 257]) << 32
