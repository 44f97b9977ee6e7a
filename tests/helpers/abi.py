# SPDX-License-Identifier: Apache-2.0
"""The structs of csrc/abi.h for ctypes, read from the header itself: they cannot drift."""

import ctypes
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"

_SCALARS = {
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
}


def _struct_types(text):
    """Every `typedef struct` of the header as a ctypes class; pointers are integers."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    enums = [body for _, body in re.findall(r"enum (\w*)\s*\{(.*?)\}", text, flags=re.DOTALL)]
    counts = {}
    for body in enums:
        value = -1
        for entry in filter(None, (e.strip() for e in body.split(","))):
            name, _, given = entry.partition("=")
            value = int(given) if given else value + 1
            counts[name.strip()] = value
    types = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, flags=re.DOTALL):
        fields = []
        for field in filter(None, (f.strip() for f in body.split(";"))):
            function = re.match(r"[\w\s\*]+\(\*(\w+)\)", field)
            if function:
                fields.append((function[1], ctypes.c_void_p))
                continue
            kind, star, member, array = re.fullmatch(
                r"(?:const )?(\w+)\s*(\*?)\s*(\w+)(?:\[(\w+)\])?", field
            ).groups()
            if star:
                base = ctypes.c_char_p if kind == "char" else ctypes.c_void_p
            else:
                base = types.get(kind) or _SCALARS[kind]
            if array:
                base = base * (counts[array] if array in counts else int(array))
            fields.append((member, base))
        types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return types, counts


STRUCTS, ENUMS = _struct_types((CSRC / "abi.h").read_text())

Ends = STRUCTS["Dsv41Ends"]
TopKArgs = STRUCTS["Dsv41TopKArgs"]
CandidateTopKArgs = STRUCTS["Dsv41CandidateTopKArgs"]
CompactTopKArgs = STRUCTS["Dsv41CompactTopKArgs"]
CandidateBlocksArgs = STRUCTS["Dsv41CandidateBlocksArgs"]
CandidateLogitsArgs = STRUCTS["Dsv41CandidateLogitsArgs"]
Runtime = STRUCTS["Dsv41Runtime"]
Device = STRUCTS["Dsv41Device"]
Failure = STRUCTS["Dsv41Failure"]
