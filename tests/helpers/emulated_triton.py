# SPDX-License-Identifier: Apache-2.0
"""A Triton driver whose device is the gfx942 emulator: `kernel[grid](...)` runs machine code.

Tensors are the host's own: their addresses are the emulator's too.
"""

import struct

from triton.backends.compiler import GPUTarget
from triton.backends.driver import GPUDriver

from dsv41topk.bench.emulator import CodeObject

_FORMATS = {"i32": "<i", "u32": "<I", "i64": "<q", "fp32": "<f"}


class _Utils:
    def __init__(self):
        self.code_objects = {}

    def load_binary(self, name, image, shared, device):
        if image not in self.code_objects:
            self.code_objects[image] = CodeObject(image)
        kernel = self.code_objects[image][name]
        return self.code_objects[image], kernel, 0, 0, kernel.resources["max_threads"]

    def get_device_properties(self, device):
        return {"max_shared_mem": 64 << 10, "arch": "gfx942", "warpSize": 64}


class _Launcher:
    """In the place of HIPLauncher: lays out arguments by signature, then two scratch pointers."""

    def __init__(self, source, metadata):
        self._kinds = list(source.signature.values())
        self._threads = metadata.num_warps * metadata.warp_size
        self._lds = metadata.shared

    def __call__(self, x, y, z, stream, function, packed, launch_metadata, enter, leave, *args):
        values = []
        for kind, value in zip(self._kinds, args, strict=True):
            if kind == "constexpr":
                continue
            if kind.startswith("*"):
                address = value if isinstance(value, int) else value.data_ptr()
                values.append(struct.pack("<Q", address))
            else:
                values.append(struct.pack(_FORMATS[kind], value))
        values += [bytes(8)] * 2
        function.launch(
            (x, y, z), (self._threads, 1, 1), values, dynamic_lds=self._lds, measure=False
        )


class EmulatedDriver(GPUDriver):
    """One device, gfx942, one stream."""

    def __init__(self):
        self.utils = _Utils()
        self.launcher_cls = _Launcher
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device: 0

    @staticmethod
    def is_active():
        return True

    def get_current_target(self):
        return GPUTarget("hip", "gfx942", 64)

    def map_python_to_cpp_type(self, ty):
        raise NotImplementedError

    def get_active_torch_device(self):
        raise NotImplementedError

    def get_benchmarker(self):
        raise NotImplementedError
