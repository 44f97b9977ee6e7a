# SPDX-License-Identifier: Apache-2.0
"""FP8 codes and the paged indexer cache in numpy, for the oracle, the demo and the tests."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIM", "FP8_MAX", "Fp8Array", "decode_fp8", "encode_fp8", "pack_cache"]

Array = NDArray[Any]

DIM = 128
"""Size of a head and of a key."""

FP8_MAX = {"e4m3fn": 448.0, "e4m3fnuz": 240.0}
"""The FP8 formats by name, and the largest value of each."""

_DLPACK_CODE = {"e4m3fn": 10, "e4m3fnuz": 11}


@functools.cache
def _table(fp8: str) -> NDArray[np.float32]:
    """Return the 256 values of a format; the formats differ in bias and in what is NaN."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    bias = 7 if fp8 == "e4m3fn" else 8
    values = np.where(
        exponent > 0,
        np.ldexp(8.0 + mantissa, exponent - bias - 3),
        np.ldexp(1.0 * mantissa, 1 - bias - 3),
    )
    values = np.where(code & 0x80, -values, values)
    values[[0x7F, 0xFF] if fp8 == "e4m3fn" else [0x80]] = np.nan
    return np.asarray(values, np.float32)


def decode_fp8(codes: Array, fp8: str) -> Array:
    """Return FP8 codes (uint8) of format `fp8` as float32 values."""
    values: Array = _table(fp8)[codes]
    return values


def encode_fp8(values: Array, fp8: str) -> Array:
    """Return the nearest finite FP8 codes (uint8) of finite values; halfway goes to the even code.

    What is larger than the format's largest value becomes that value.
    """
    positive = _table(fp8)[:128]
    positive = positive[np.isfinite(positive)]
    magnitude = np.minimum(np.abs(values), positive[-1])
    above = np.searchsorted(positive, magnitude).clip(1, len(positive) - 1)
    low, high = positive[above - 1], positive[above]
    nearer = (high - magnitude < magnitude - low) | (
        (high - magnitude == magnitude - low) & (above % 2 == 0)
    )
    code = np.where(nearer, above, above - 1)
    # e4m3fnuz has no negative zero: its code is the NaN.
    negative = (values < 0) & (code > 0)
    return np.asarray(code + 128 * negative, np.uint8)


def pack_cache(keys: Array, scales: Array, page_size: int, order: Array) -> Array:
    """Return an indexer cache, uint8 [pages, page_size, 1, 132].

    Parameters
    ----------
    keys : uint8 [columns, 128]
        FP8 codes; `columns` is a multiple of `page_size`.
    scales : float32 [columns]
    page_size : int
        A multiple of 16.
    order : int [columns / page_size]
        The page that holds each page's worth of columns: the request's row of the block table.
    """
    pages = len(keys) // page_size
    tiles = keys.reshape(pages, page_size // 16, 16, DIM // 16, 16).transpose(0, 1, 3, 2, 4)
    cache = np.zeros((pages, page_size * (DIM + 4)), np.uint8)
    cache[order, : page_size * DIM] = tiles.reshape(pages, -1)
    cache[order, page_size * DIM :] = scales.astype(np.float32).view(np.uint8).reshape(pages, -1)
    return cache.reshape(pages, page_size, 1, DIM + 4)


class Fp8Array:
    """FP8 codes in a numpy uint8 array, lent through DLPack as what they are.

    numpy has no FP8 type, so the capsule that numpy makes for the codes gets the type written in.

    Parameters
    ----------
    codes : uint8 array, writeable
    fp8 : {"e4m3fn", "e4m3fnuz"}
    """

    _CODE_OFFSET_BYTES = 20  # of DLTensor.dtype.code: after data, device and ndim

    def __init__(self, codes: Array, fp8: str) -> None:
        self.codes = codes
        self.fp8 = fp8

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the CPU's device type and number."""
        return (1, 0)

    def __dlpack__(self, **_options: object) -> object:
        """Return an unversioned capsule, whatever is asked: consumers must take those too."""
        capsule = self.codes.__dlpack__()
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype = ctypes.c_void_p
        get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        address = get_pointer(capsule, b"dltensor")
        code = ctypes.c_uint8.from_address(address + self._CODE_OFFSET_BYTES)
        code.value = _DLPACK_CODE[self.fp8]
        return capsule
