# SPDX-License-Identifier: Apache-2.0
"""Read an AMDGPU code object: its kernels, their registers and LDS, and an image to execute.

Needs nothing but Python: the resource table of the tests and the emulator both start here.
"""

import struct
from typing import Any, NamedTuple

__all__ = ["GFX942", "CodeObjectFile", "KernelDescriptor"]

GFX942 = 0x4C  # EF_AMDGPU_MACH of the ELF header's flags
_EM_AMDGPU = 224
_PT_LOAD, _PT_NOTE = 1, 4
_SHT_SYMTAB, _SHT_RELA, _SHT_DYNSYM = 2, 4, 11
_NT_AMDGPU_METADATA = 32
_RELOCATIONS = {1: "<I", 2: "<I", 3: "<Q", 13: "<Q"}  # ABS32_LO, ABS32_HI, ABS64, RELATIVE64

_RESOURCES = {
    "vgprs": ".vgpr_count",
    "agprs": ".agpr_count",
    "sgprs": ".sgpr_count",
    "lds_bytes": ".group_segment_fixed_size",
    "scratch_bytes": ".private_segment_fixed_size",
    "vgpr_spills": ".vgpr_spill_count",
    "sgpr_spills": ".sgpr_spill_count",
    "max_threads": ".max_flat_workgroup_size",
}


def _msgpack(data: bytes, at: int = 0) -> tuple[Any, int]:
    """One value of the part of MessagePack that AMDGPU metadata uses, and where it ends."""

    def text(count: int, at: int) -> tuple[str, int]:
        return data[at : at + count].decode(), at + count

    def array(count: int, at: int) -> tuple[list[Any], int]:
        items = []
        for _ in range(count):
            item, at = _msgpack(data, at)
            items.append(item)
        return items, at

    def mapping(count: int, at: int) -> tuple[dict[Any, Any], int]:
        items = {}
        for _ in range(count):
            key, at = _msgpack(data, at)
            items[key], at = _msgpack(data, at)
        return items, at

    def sized(formats: str, tag: int, at: int) -> tuple[int, int]:
        form = ">" + formats[tag]
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)

    tag, at = data[at], at + 1
    if tag < 0x80:
        return tag, at
    if tag < 0x90:
        return mapping(tag & 15, at)
    if tag < 0xA0:
        return array(tag & 15, at)
    if tag < 0xC0:
        return text(tag & 31, at)
    if tag >= 0xE0:
        return tag - 256, at
    if tag == 0xC0:
        return None, at
    if tag in (0xC2, 0xC3):
        return tag == 0xC3, at
    if 0xCC <= tag <= 0xD3:
        return sized("BHIQbhiq", tag - 0xCC, at)
    if 0xD9 <= tag <= 0xDB:
        return text(*sized("BHI", tag - 0xD9, at))
    if 0xDC <= tag <= 0xDD:
        return array(*sized("HI", tag - 0xDC, at))
    if 0xDE <= tag <= 0xDF:
        return mapping(*sized("HI", tag - 0xDE, at))
    raise ValueError(f"MessagePack tag {tag:#x} in the metadata")


class KernelDescriptor(NamedTuple):
    """A kernel's entry of the metadata, and where its parts lie in the image."""

    name: str
    metadata: dict[str, Any]
    address: int
    """Of the 64-byte kernel descriptor."""
    code: tuple[int, int]
    """Start and bytes of its machine code."""

    @property
    def resources(self) -> dict[str, int]:
        """Registers, LDS, scratch and spills, as the compiler recorded them."""
        return {name: int(self.metadata.get(key, 0)) for name, key in _RESOURCES.items()}


class CodeObjectFile:
    """An AMDGPU ELF file, parsed.

    Parameters
    ----------
    data : bytes
        The file. Bundles are refused: compile with ``--no-gpu-bundle-output``.

    Attributes
    ----------
    mach : int
        The processor of the ELF header; ``GFX942`` for this package's.
    target : str
        ``amdgcn-amd-amdhsa--gfx942``, with the features that it insists on.
    kernels : dict of str to KernelDescriptor
    image_bytes : int
        Bytes of the loaded image.
    """

    def __init__(self, data: bytes) -> None:
        if data[:4] != b"\x7fELF" or struct.unpack_from("<H", data, 18)[0] != _EM_AMDGPU:
            raise ValueError("not an AMDGPU code object")
        self._data = data
        (program, section) = struct.unpack_from("<QQ", data, 32)
        (flags,) = struct.unpack_from("<I", data, 48)
        program_count, _, section_count = struct.unpack_from("<HHH", data, 56)
        self._segments = [
            struct.unpack_from("<IIQQQQQQ", data, program + 56 * i) for i in range(program_count)
        ]
        self._sections = [
            struct.unpack_from("<IIQQQQIIQQ", data, section + 64 * i) for i in range(section_count)
        ]
        self.mach = flags & 0xFF
        self.image_bytes = max(s[3] + s[6] for s in self._segments if s[0] == _PT_LOAD)
        metadata = self._metadata()
        self.target: str = metadata.get("amdhsa.target", "")
        symbols = self._symbols()
        self.kernels = {
            entry[".name"]: KernelDescriptor(
                entry[".name"], entry, symbols[entry[".symbol"]][0], symbols[entry[".name"]]
            )
            for entry in metadata.get("amdhsa.kernels", [])
        }

    def _metadata(self) -> dict[str, Any]:
        for kind, _, offset, _, _, size, _, _ in self._segments:
            at = offset
            while kind == _PT_NOTE and at < offset + size:
                name_size, body_size, note = struct.unpack_from("<III", self._data, at)
                body = at + 12 + (name_size + 3 & ~3)
                if note == _NT_AMDGPU_METADATA:
                    metadata: dict[str, Any] = _msgpack(self._data[body : body + body_size])[0]
                    return metadata
                at = body + (body_size + 3 & ~3)
        raise ValueError("the code object has no AMDGPU metadata")

    def _symbols(self) -> dict[str, tuple[int, int]]:
        symbols = {}
        for section in self._sections:
            if section[1] not in (_SHT_SYMTAB, _SHT_DYNSYM):
                continue
            names = self._sections[section[6]][4]
            for at in range(section[4], section[4] + section[5], 24):
                name, _, _, where, value, size = struct.unpack_from("<IBBHQQ", self._data, at)
                if where:
                    end = self._data.index(b"\0", names + name)
                    symbols[self._data[names + name : end].decode()] = value, size
        return symbols

    def load(self, image: memoryview, base: int) -> None:
        """Copy the loadable segments into `image`, which lies at address `base`, and relocate."""
        for kind, _, offset, address, _, size, _, _ in self._segments:
            if kind == _PT_LOAD:
                image[address : address + size] = self._data[offset : offset + size]
        for section in self._sections:
            if section[1] != _SHT_RELA:
                continue
            symbols = self._sections[section[6]][4]
            for at in range(section[4], section[4] + section[5], 24):
                where, info, addend = struct.unpack_from("<QQq", self._data, at)
                kind = info & 0xFFFFFFFF
                if kind not in _RELOCATIONS:
                    raise NotImplementedError(f"relocation type {kind}")
                value = base + addend
                if kind != 13:
                    entry = symbols + 24 * (info >> 32) + 8
                    value += struct.unpack_from("<Q", self._data, entry)[0]
                value = {1: value & 0xFFFFFFFF, 2: value >> 32}.get(kind, value)
                struct.pack_into(_RELOCATIONS[kind], image, where, value)
