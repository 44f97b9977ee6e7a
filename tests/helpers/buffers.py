# SPDX-License-Identifier: Apache-2.0
"""Arrays for kernel tests: nothing behind them, canaries around outputs, poison past the ends."""

import ctypes
import mmap
import weakref

import numpy as np

CANARY = np.int32(-0x0DDBA11)
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.free.argtypes = [ctypes.c_void_p]

heap_blocks = False
"""True: blocks come from malloc, with red zones. False: a page that faults is behind each."""


def block(count, dtype):
    """`count` elements of 0xEE at a multiple of 16 bytes, with nothing behind the last 16."""
    size = -(-max(count, 1) * np.dtype(dtype).itemsize // 16) * 16
    if heap_blocks:
        address = ctypes.c_void_p()
        assert _libc.posix_memalign(ctypes.byref(address), 16, ctypes.c_size_t(size)) == 0
        memory = (ctypes.c_uint8 * size).from_address(address.value)
        weakref.finalize(memory, _libc.free, address.value)
        array = np.frombuffer(memory, np.uint8)
    else:
        pages = -(-size // _PAGE) * _PAGE
        memory = mmap.mmap(-1, pages + _PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert _libc.mprotect(start + pages, _PAGE, 0) == 0
        array = np.frombuffer(memory, np.uint8, size, pages - size)
    array[:] = 0xEE
    return array.view(dtype)[:count]


def held_by(array):
    """Everything that the block of `array` holds: a view may claim more, which nobody may read."""
    base = array
    while (
        hasattr(base, "base") and base.base is not None
    ):  # numpy puts a dummy between a strided view and its array
        base = base.base
        if isinstance(base, np.ndarray):
            array = base
    return array


def rows_of(values, stride=None, offset=0, last=None):
    """A copy of a 2-D array as a view of a block of its own.

    Parameters
    ----------
    stride : int, optional
        Elements from row to row; the width by default.
    offset : int
        Elements before the first row: 1 makes rows that no 16-byte load can take.
    last : int, optional
        How many elements of the last row there are at all; the view claims the whole width, and a
        read past these faults.
    """
    rows, width = values.shape
    stride = width if stride is None else stride
    end = width if last is None else last
    held = block(offset + max(rows - 1, 0) * stride + end, values.dtype)
    view = np.lib.stride_tricks.as_strided(
        held[offset:], (rows, width), (stride * values.itemsize, values.itemsize)
    )
    for r in range(rows):
        n = end if r == rows - 1 else width
        held[offset + r * stride : offset + r * stride + n] = values[r, :n]
    return view


def tight(array):
    """A contiguous copy in a block of its own."""
    held = block(array.size, array.dtype).reshape(array.shape)
    held[...] = array
    return held


class Output:
    """An int32 [rows, columns] view of a wider buffer that is all canaries.

    `view` is what the call gets; `check` tells whether anything beside it was touched.
    """

    def __init__(self, rows, columns, stride=None):
        self.stride = columns if stride is None else stride
        self._held = block(max(rows, 1) * self.stride + 64, np.int32)
        self._held[:] = CANARY
        self.view = np.lib.stride_tricks.as_strided(
            self._held[32:], (rows, columns), (4 * self.stride, 4)
        )

    def check(self):
        """Every element outside the view is still a canary."""
        inside = np.zeros(self._held.size, bool)
        rows, columns = self.view.shape
        for r in range(rows):
            inside[32 + r * self.stride : 32 + r * self.stride + columns] = True
        touched = np.nonzero((self._held != CANARY) & ~inside)[0]
        assert touched.size == 0, f"written outside the view, at elements {touched[:8] - 32}"


def poisoned(values, ends):
    """A copy with NaN of both signs and +inf at and past each row's end."""
    poison = np.array([0x7FC00000, 0x7F800000, 0xFFC00000], np.uint32).view(np.float32)
    out = values.copy()
    for row, end in zip(out, ends, strict=True):
        row[end:] = np.resize(poison, max(row.size - int(end), 0))
    return out
