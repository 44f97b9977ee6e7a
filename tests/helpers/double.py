# SPDX-License-Identifier: Apache-2.0
"""A filling of the launchers' runtime table that only writes down what is launched."""

import contextlib
import ctypes

from helpers import abi

from dsv41topk import _runtime

_int, _unsigned, _pointer = ctypes.c_int, ctypes.c_uint, ctypes.c_void_p
_TYPES = {
    "load": ctypes.CFUNCTYPE(_int, _int, _pointer, ctypes.POINTER(_pointer)),
    "get_function": ctypes.CFUNCTYPE(_int, _pointer, ctypes.c_char_p, ctypes.POINTER(_pointer)),
    "launch": ctypes.CFUNCTYPE(
        _int, _pointer, *[_unsigned] * 7, _pointer, ctypes.POINTER(_pointer), _pointer
    ),
    "current_device": ctypes.CFUNCTYPE(_int, ctypes.POINTER(_int)),
    "set_device": ctypes.CFUNCTYPE(_int, _int),
    "compute_units": ctypes.CFUNCTYPE(_int, _int, ctypes.POINTER(_int)),
    "arch": ctypes.CFUNCTYPE(_int, _int, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t),
    "error_text": ctypes.CFUNCTYPE(_pointer, _int),
}


class Double:
    """A GPU of paper.

    Parameters
    ----------
    device_type : int
        DLPack's: 10 to pass for ROCm, 2 for CUDA; 1 to take CPU tensors for a GPU's.

    Attributes
    ----------
    launched : list of (kernel name, stream, device)
    loaded : list of int
        The devices that a code object was loaded on.
    fail : dict of int to int
        Launch number, from 1 -> the code that it answers.
    load_code : int
        What `load` answers.
    """

    def __init__(self, device_type):
        self.launched, self.loaded, self.fail, self.load_code = [], [], {}, 0
        self.attempts, self.device = 0, 0
        self._names = [None]
        self._text = ctypes.create_string_buffer(b"paperError")
        self._functions = {name: kind(getattr(self, f"_{name}")) for name, kind in _TYPES.items()}
        pointers = {n: ctypes.cast(f, _pointer).value for n, f in self._functions.items()}
        self.table = abi.Runtime(name=b"paper", dlpack_device=device_type, **pointers)

    @contextlib.contextmanager
    def installed(self, **options):
        """Have the package run on this."""
        _runtime.install_double(ctypes.addressof(self.table), b"code object", **options)
        try:
            yield self
        finally:
            _runtime.reset()

    def _load(self, device, image, out):
        self.loaded.append(device)
        out[0] = 1
        return self.load_code

    def _get_function(self, module, name, out):
        self._names.append(name.decode())
        out[0] = len(self._names) - 1
        return 0

    def _launch(self, function, *rest):
        self.attempts += 1
        code = self.fail.get(self.attempts, 0)
        if code == 0:
            self.launched.append((self._names[function], rest[7], self.device))
        return code

    def _current_device(self, out):
        out[0] = self.device
        return 0

    def _set_device(self, device):
        self.device = device
        return 0

    def _compute_units(self, device, out):
        out[0] = 304
        return 0

    def _arch(self, device, text, size):
        for i, byte in enumerate(b"gfx942\0"):
            text[i] = bytes([byte])
        return 0

    def _error_text(self, code):
        return ctypes.addressof(self._text)
