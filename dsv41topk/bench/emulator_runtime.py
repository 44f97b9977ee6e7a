# SPDX-License-Identifier: Apache-2.0
"""A filling of the launchers' runtime table (csrc/abi.h) that executes machine code.

``launch`` runs a gfx942 kernel to its end in the emulator before it returns, so streams mean
nothing and memory is the host's: a call on CPU tensors goes the whole way through the launchers.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dsv41topk.bench.emulator import CodeObject, Stats

__all__ = ["EmulatorRuntime", "Launch"]

_ERROR = 999  # hipErrorUnknown; the text is our own
_NOT_FOUND = 500  # the code with which HIP and CUDA say that a module has no such kernel
_KDL_CPU = 1

_int, _unsigned, _pointer = ctypes.c_int, ctypes.c_uint, ctypes.c_void_p
_Pointers = ctypes.POINTER(_pointer)
_Ints = ctypes.POINTER(_int)
_Load = ctypes.CFUNCTYPE(_int, _int, _pointer, _Pointers)
_GetFunction = ctypes.CFUNCTYPE(_int, _pointer, ctypes.c_char_p, _Pointers)
_Launch = ctypes.CFUNCTYPE(_int, _pointer, *[_unsigned] * 7, _pointer, _Pointers, _Pointers)
_CurrentDevice = ctypes.CFUNCTYPE(_int, _Ints)
_SetDevice = ctypes.CFUNCTYPE(_int, _int)
_ComputeUnits = ctypes.CFUNCTYPE(_int, _int, _Ints)
_Arch = ctypes.CFUNCTYPE(_int, _int, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)
_ErrorText = ctypes.CFUNCTYPE(_pointer, _int)


class _Table(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dlpack_device", _int),
        ("load", _Load),
        ("get_function", _GetFunction),
        ("launch", _Launch),
        ("current_device", _CurrentDevice),
        ("set_device", _SetDevice),
        ("compute_units", _ComputeUnits),
        ("arch", _Arch),
        ("error_text", _ErrorText),
    ]


class Launch(NamedTuple):
    """One launch, as `EmulatorRuntime.recorded` keeps it."""

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    stats: Stats


def _image(address: int) -> bytes:
    """Return the ELF file at an address; it ends with its section table, as linkers write it."""
    header = ctypes.string_at(address, 64)
    (sections,) = struct.unpack_from("<Q", header, 40)
    size, count = struct.unpack_from("<HH", header, 58)
    return ctypes.string_at(address, sections + size * count)


class EmulatorRuntime:
    """The table, and how it runs kernels.

    Parameters
    ----------
    compute_units : int
        What the device reports; launch shapes may depend on it. 304 is an MI300X.

    Attributes
    ----------
    address : int
        Of the Dsv41Runtime. It lives as long as this object.
    seed, quantum, measure
        See `Kernel.launch`.
    """

    def __init__(self, compute_units: int = 304) -> None:
        self.compute_units = compute_units
        self.seed: int | None = None
        self.quantum = 0
        self.measure = False
        self.launches = 0
        self._recorded: list[Launch] | None = None
        self._modules: dict[bytes, CodeObject] = {}
        self._handles: list[Any] = []
        self._text = ctypes.create_string_buffer(1024)
        self._table = _Table(
            name=b"gfx942 emulator",
            dlpack_device=_KDL_CPU,
            load=_Load(self._guarded(self._load)),
            get_function=_GetFunction(self._guarded(self._get_function)),
            launch=_Launch(self._guarded(self._launch)),
            current_device=_CurrentDevice(self._current_device),
            set_device=_SetDevice(lambda _device: 0),
            compute_units=_ComputeUnits(self._compute_units),
            arch=_Arch(self._arch),
            error_text=_ErrorText(self._error_text),
        )
        self.address = ctypes.addressof(self._table)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[Launch]]:
        """Keep every launch's counts while this is open."""
        before, self._recorded = self._recorded, []
        try:
            yield self._recorded
        finally:
            self._recorded = before

    def _guarded(self, function: Callable[..., int]) -> Callable[..., int]:
        """Let no exception leave a callback: its text becomes the error's."""

        def call(*args: Any) -> int:
            try:
                return function(*args)
            except Exception as error:
                self._text.value = f"{type(error).__name__}: {error}".encode()[:1023]
                return _ERROR

        return call

    def _handle(self, thing: Any) -> int:
        self._handles.append(thing)
        return len(self._handles)  # not 0: NULL means that there is none

    def _load(self, _device: int, image: int, module: Any) -> int:
        data = _image(image)
        if data not in self._modules:
            self._modules[data] = CodeObject(data)
        module[0] = self._handle(self._modules[data])
        return 0

    def _get_function(self, module: int, name: bytes, function: Any) -> int:
        kernel = self._handles[module - 1].kernels.get(name.decode())
        if kernel is None:
            return _NOT_FOUND
        function[0] = self._handle(kernel)
        return 0

    def _launch(
        self, function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, lds: int,
        _stream: int, params: Any, _extra: Any,
    ) -> int:  # fmt: skip
        kernel = self._handles[function - 1]
        args = [ctypes.string_at(params[i], size) for i, size in enumerate(kernel.argument_bytes)]
        self.launches += 1
        stats = kernel.launch(
            (gx, gy, gz), (bx, by, bz), args, dynamic_lds=lds, quantum=self.quantum,
            measure=self.measure, seed=None if self.seed is None else self.seed + self.launches,
        )  # fmt: skip
        if self._recorded is not None:
            self._recorded.append(Launch(kernel.name, (gx, gy, gz), bx * by * bz, stats))
        return 0

    def _current_device(self, device: Any) -> int:
        device[0] = 0
        return 0

    def _compute_units(self, _device: int, count: Any) -> int:
        count[0] = self.compute_units
        return 0

    def _arch(self, _device: int, text: Any, size: int) -> int:
        name = b"gfx942:sramecc+:xnack-\0"
        ctypes.memmove(text, name, min(size, len(name)))
        return 0

    def _error_text(self, code: int) -> int:
        if code != _ERROR:
            self._text.value = b"not found" if code == _NOT_FOUND else b"invalid value"
        return ctypes.addressof(self._text)
