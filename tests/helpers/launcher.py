# SPDX-License-Identifier: Apache-2.0
"""Call the launchers of csrc/launch.c on numpy arrays, below the Cython layer.

The arguments are those of the public calls. Scratch is exactly as large as the launcher asked for,
lies where nothing else does, and starts dirty.
"""

import ctypes

import numpy as np
from helpers import abi


class LaunchFailure(RuntimeError):
    """A launcher did not answer 0."""


def _address(array):
    return array.ctypes.data if array.size else None


def row_ends(seq_lens, next_n):
    """The contract's two forms of seq_lens as Dsv41Ends."""
    assert seq_lens.dtype == np.int32 and seq_lens.flags.c_contiguous
    if seq_lens.ndim == 2:
        return abi.Ends(_address(seq_lens), 1, 0)
    return abi.Ends(_address(seq_lens), next_n, 1)


class _Calls:
    """The public calls, filling the argument struct of csrc/abi.h. A subclass says who takes it."""

    def _call(self, name, args):
        raise NotImplementedError

    def top_k_per_row_decode_512(
        self, logits, next_n, seq_lens, indices, max_blocks=8, min_chunk=16384, register_select=True
    ):
        return self._call(
            "top_k",
            abi.TopKArgs(
                logits=_address(logits), logits_stride=logits.strides[0] // 4,
                width=logits.shape[1],
                ends=row_ends(seq_lens, next_n), indices=_address(indices),
                indices_stride=indices.strides[0] // 4, rows=logits.shape[0], max_blocks=max_blocks,
                min_chunk=min_chunk, register_select=register_select,
            ),
        )  # fmt: skip

    def candidate_top_k_512(self, logits, next_n, seq_lens, candidates, block_size, indices):
        return self._call(
            "candidate_top_k",
            abi.CandidateTopKArgs(
                logits=_address(logits), logits_stride=logits.strides[0] // 4,
                width=logits.shape[1],
                ends=row_ends(seq_lens, next_n), candidates=_address(candidates),
                candidates_stride=candidates.strides[0] // 4, indices=_address(indices),
                indices_stride=indices.strides[0] // 4, rows=logits.shape[0],
                slots=candidates.shape[1], block_size=block_size,
            ),
        )  # fmt: skip

    def _compact(self, logits, ids, seq_lens, next_n, indices, register_select):
        return self._call(
            "compact_top_k",
            abi.CompactTopKArgs(
                logits=_address(logits), ids=_address(ids), n=logits.shape[1],
                ends=row_ends(seq_lens, next_n), indices=_address(indices),
                indices_stride=indices.strides[0] // 4, rows=logits.shape[0],
                register_select=register_select,
            ),
        )  # fmt: skip

    def compact_top_k_512(self, compact_logits, compact_ids, seq_lens, next_n, indices):
        return self._compact(compact_logits, compact_ids, seq_lens, next_n, indices, 0)

    def compact_top_k_512_regs(self, compact_logits, compact_ids, seq_lens, next_n, indices):
        return self._compact(compact_logits, compact_ids, seq_lens, next_n, indices, 1)

    def candidate_blocks(self, logits, visible, row_repeat, block_size, out):
        assert visible.dtype == np.int32 and visible.flags.c_contiguous
        return self._call(
            "candidate_blocks",
            abi.CandidateBlocksArgs(
                logits=_address(logits), logits_stride=logits.strides[0] // 4,
                width=logits.shape[1],
                ends=abi.Ends(_address(visible), row_repeat, 0), out=_address(out),
                out_stride=out.strides[0] // 4, rows=logits.shape[0], slots=out.shape[1],
                block_size=block_size,
            ),
        )  # fmt: skip

    def candidate_logits(
        self, q, kv_cache, weights, seq_lens, next_n, block_table, candidates, block_size,
        out_logits, out_ids, fp8,
    ):  # fmt: skip
        """The call of this name, `q` as uint8 codes [rows, heads, 128] of the format `fp8`."""
        return self._call(
            "candidate_logits",
            abi.CandidateLogitsArgs(
                q=_address(q), kv_cache=_address(kv_cache), page_stride_bytes=kv_cache.strides[0],
                weights=_address(weights), weights_stride=weights.strides[0] // 4,
                ends=row_ends(seq_lens, next_n), block_table=_address(block_table),
                block_table_stride=block_table.strides[0] // 4, candidates=_address(candidates),
                candidates_stride=candidates.strides[0] // 4, out_logits=_address(out_logits),
                out_ids=_address(out_ids), rows=q.shape[0], rows_per_request=next_n,
                pages=kv_cache.shape[0], page_size=kv_cache.shape[1],
                table_columns=block_table.shape[1], slots=candidates.shape[1],
                block_size=block_size, heads=q.shape[1],
                fp8=abi.ENUMS[f"DSV41_{fp8.upper()}"],
            ),
        )  # fmt: skip


class NativeCalls(_Calls):
    """The CPU kernels of csrc/cpu."""

    def __init__(self, library):
        self.library = library

    def _call(self, name, args):
        code = getattr(self.library, f"dsv41_cpu_{name}")(ctypes.byref(args))
        if code:
            raise LaunchFailure(f"dsv41_cpu_{name}: {code}")


class Launcher(_Calls):
    """The launchers of `library` on the device of a runtime table.

    Parameters
    ----------
    library : ctypes.CDLL
        Has launch.c and runtime.c in it.
    runtime : int
        Address of a Dsv41Runtime.
    image : bytes
        What its `load` takes.
    explained : callable
        Makes an error's text readable.
    """

    def __init__(self, library, runtime, image=b"", explained=str):
        self._explained = explained
        self.library, self.runtime = library, runtime
        self._image = ctypes.create_string_buffer(image)
        self._libc = ctypes.CDLL(None)
        self._libc.free.argtypes = [ctypes.c_void_p]
        self.scratch_pattern = 0xA5
        self._scratch_block, self._scratch_bytes = ctypes.c_void_p(), 0
        library.dsv41_error_text.restype = ctypes.c_char_p
        for name in ("top_k", "candidate_top_k", "compact_top_k", "candidate_blocks"):
            getattr(library, f"dsv41_{name}_scratch_bytes").restype = ctypes.c_size_t
        self.reload()

    def reload(self):
        """Load the image again: the table may report another device now."""
        self.device = abi.Device()
        failure = abi.Failure()
        self.library.dsv41_device_load(
            ctypes.c_void_p(self.runtime),
            0,
            self._image,
            ctypes.byref(self.device),
            ctypes.byref(failure),
        )
        self._check(failure)

    def _check(self, failure):
        if failure.code:
            text = self.library.dsv41_error_text(
                ctypes.c_void_p(self.runtime), failure.code
            ).decode()
            kernel = (failure.kernel or b"?").decode()
            raise LaunchFailure(
                f"{self._explained(text)} ({failure.code}) from {kernel}, "
                f"{failure.launched} launched"
            )

    def _scratch(self, size):
        """A block of exactly that size: from malloc, so that under ASan a write past it is found.

        With `scratch_pattern` None it keeps what earlier calls left in it.
        """
        if self.scratch_pattern is not None or size > self._scratch_bytes:
            self._libc.free(self._scratch_block)
            self._scratch_block, self._scratch_bytes = ctypes.c_void_p(), size
            if size:
                block = ctypes.byref(self._scratch_block)
                assert self._libc.posix_memalign(block, 256, ctypes.c_size_t(size)) == 0
                pattern = 0xA5 if self.scratch_pattern is None else self.scratch_pattern
                ctypes.memset(self._scratch_block, pattern, size)
        return self._scratch_block

    def _call(self, name, args):
        device = ctypes.byref(self.device)
        if name == "candidate_logits":  # the one that never takes scratch
            failure = abi.Failure()
            self.library.dsv41_candidate_logits(
                device, None, ctypes.byref(args), ctypes.byref(failure)
            )
            self._check(failure)
            return failure.launched
        size = getattr(self.library, f"dsv41_{name}_scratch_bytes")(device, ctypes.byref(args))
        scratch = self._scratch(size)
        failure = abi.Failure()
        getattr(self.library, f"dsv41_{name}")(
            device, None, scratch, ctypes.byref(args), ctypes.byref(failure)
        )
        self._check(failure)
        return failure.launched
