# SPDX-License-Identifier: Apache-2.0
"""Paged indexer caches with holes, and the rows that read them, for tests of candidate logits."""

import mmap
from dataclasses import dataclass

import numpy as np

from dsv41topk._cache import decode_fp8
from dsv41topk._logits_check import gather_keys

_MAP_NORESERVE = 0x4000  # Linux; Python has no name for it before 3.13
_NANS = {"e4m3fnuz": (0x80,), "e4m3fn": (0x7F, 0xFF)}


@dataclass(frozen=True)
class Layout:
    """A cache and the rows that read it.

    Attributes
    ----------
    first_page : the id of the lowest page in use; all pages below it do not exist in memory
    stride : distance of pages in units of 132 * page_size / 4 bytes; 4 is none between them
    lengths : of the requests, as seq_lens 1-D
    wild_pages : table entries of live columns hold ids outside the cache
    """

    heads: int = 64
    page_size: int = 64
    block_size: int = 8
    next_n: int = 2
    lengths: tuple[int, ...] = (700, 257)
    first_page: int = 0
    stride: int = 4
    ends_per_row: bool = False
    wild_pages: bool = False
    fp8: str = "e4m3fnuz"
    seed: int = 0


class Rows:
    """The tensors of a layout. The cache is one sparse mapping: only touched pages take memory."""

    def __init__(self, layout):
        rng = np.random.default_rng(layout.seed)
        self.layout = layout
        heads, page_size = layout.heads, layout.page_size
        nans = _NANS[layout.fp8]

        def finite(shape):
            codes = rng.integers(0, 256, shape, dtype=np.uint8)
            codes[np.isin(codes, nans)] = 0
            return codes

        self.requests = len(layout.lengths)
        self.rows = self.requests * layout.next_n
        width = max(max(layout.lengths), 1)
        self.table_columns = -(-width // page_size) + 2
        live = self.requests * self.table_columns
        self.pages = layout.first_page + live + 2
        page_bytes = page_size * 132
        self.page_stride = page_bytes // 4 * layout.stride
        self.memory = mmap.mmap(
            -1,
            self.pages * self.page_stride,
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE,
        )
        flat = np.frombuffer(self.memory, np.uint8)
        self.cache = np.lib.stride_tricks.as_strided(
            flat, (self.pages, page_bytes), (self.page_stride, 1)
        )
        # Whatever no live slot may read is NaN: page 0, a page that unused entries name, and gaps.
        self.nan_page = self.pages - 1
        touched = np.arange(layout.first_page, self.pages)
        for page in {0, *touched.tolist()}:
            flat[page * self.page_stride : (page + 1) * self.page_stride] = nans[0]
            self.cache[page, page_size * 128 :] = np.full(page_size, np.nan, "f4").view("u1")
        order = layout.first_page + 1 + rng.permutation(live - 1)
        self.table = np.full((self.requests, self.table_columns), self.nan_page, np.int32)
        at = 0
        for request, length in enumerate(layout.lengths):
            for column in range(-(-max(length, 0) // page_size)):
                page = order[at]
                at += 1
                self.table[request, column] = page
                self.cache[page, : page_size * 128] = finite(page_size * 128)
                scales = rng.uniform(1e-3, 1e-1, page_size).astype(np.float32)
                self.cache[page, page_size * 128 :] = scales.view(np.uint8)
        if layout.wild_pages:
            self.table[0, 1:5] = [-1, self.pages, -(2**31), 2**31 - 1]
        self.q = finite((self.rows, heads, 128))
        self.weights = rng.uniform(0.01, 1.0, (self.rows, heads)).astype(np.float32)
        drafts = np.arange(layout.next_n)
        lengths = np.array(layout.lengths, np.int64)[:, None]
        ends = np.maximum(np.maximum(lengths, 0) - layout.next_n + drafts + 1, 0)
        self.ends = ends.reshape(-1)
        self.lens = (self.ends if layout.ends_per_row else lengths).astype(np.int32)
        blocks = -(-(width + 40) // layout.block_size)
        lists = [rng.permutation(blocks) for _ in range(self.rows)]
        wild = [-1, -(2**31), 2**31 - 1, 2**28, 2**29, -1]  # 2**28 and 2**29 blocks of 8 or 16 wrap
        self.candidates = np.stack([np.concatenate([p[:5], wild, p[5:]]) for p in lists])
        self.candidates = self.candidates.astype(np.int32)

    def expected_ids(self):
        block = self.candidates.astype(np.int64)[:, :, None]
        columns = block * self.layout.block_size + np.arange(self.layout.block_size)
        live = (block >= 0) & (columns < self.ends[:, None, None])
        columns = np.where(live, columns, 0)
        request = np.arange(self.rows)[:, None, None] // self.layout.next_n
        page = self.table[request, columns // self.layout.page_size]
        live &= (page >= 0) & (page < self.pages)
        return np.where(live, columns, -1).reshape(self.rows, -1)

    def truth(self, ids):
        """Float64 logits of the live slots, in the order of np.nonzero(ids >= 0)."""
        layout = self.layout
        result = []
        q = decode_fp8(self.q, layout.fp8).astype(np.float64)
        for row in range(self.rows):
            columns = ids[row][ids[row] >= 0]
            if not len(columns):
                continue
            pages = self.table[row // layout.next_n]
            key_bytes = gather_keys(self.cache, pages, layout.page_size, columns)
            keys = decode_fp8(key_bytes, layout.fp8).astype(np.float64)
            page, key = pages[columns // layout.page_size], columns % layout.page_size
            at = layout.page_size * 128 + 4 * key[:, None] + np.arange(4)
            scale = self.cache[page[:, None], at].copy().view(np.float32)[:, 0].astype(np.float64)
            scores = np.maximum(keys @ q[row].T * scale[:, None], 0)
            result.append(scores @ self.weights[row].astype(np.float64))
        return np.concatenate(result) if result else np.zeros(0)


def pages_past(offset_bytes, page_size, stride=4):
    """Pages that lie below this offset."""
    return -(-offset_bytes // (page_size * 132 // 4 * stride))


LAYOUTS = {
    "plain": Layout(),
    "plain, 32 heads": Layout(heads=32),
    "an end for every row": Layout(ends_per_row=True),
    "blocks of 16": Layout(block_size=16),
    "blocks of 24 cross pages of 64": Layout(block_size=24),
    "pages of 16, blocks of 40": Layout(page_size=16, block_size=40),
    "pages of 128": Layout(page_size=128, next_n=3),
    "lengths around 2,048": Layout(next_n=1, lengths=(2047, 2048, 2049)),
    "lengths around a page": Layout(next_n=1, lengths=(63, 64, 65, 127, 128, 129)),
    "one live column": Layout(lengths=(1, 0, -5, -(2**31)), next_n=2),
    "no live column": Layout(lengths=(0, -5, -(2**31)), next_n=1),
    "offsets past 2^31": Layout(first_page=pages_past(2**31 - 8448, 64)),
    "offsets past 2^32": Layout(first_page=pages_past(2**32 - 8448, 64)),
    "offsets past 2^32, 32 heads, an end for every row": Layout(
        heads=32, first_page=pages_past(2**32, 64), ends_per_row=True
    ),
    "page stride of 1.25 pages": Layout(stride=5),
    "page stride of 3 pages past 2^32": Layout(stride=12, first_page=pages_past(2**32, 64, 12)),
    "page ids outside the cache": Layout(wild_pages=True),
    "one request of eight rows": Layout(next_n=8, lengths=(300,)),
}
