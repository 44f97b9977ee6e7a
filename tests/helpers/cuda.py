# SPDX-License-Identifier: Apache-2.0
"""What the tests on a real GPU share: tensors from arrays, graphs, the oracle on the device.

torch is imported by the functions that need it: collecting the tests needs none.
"""

import contextlib

import numpy as np
import reference

TOP_K = 512
DEVICE = "cuda"


def on_gpu(array):
    """A contiguous copy of a numpy array on the device."""
    import torch

    return torch.from_numpy(np.array(array, order="C")).to(DEVICE)


def lens(*ends):
    """One end per row, int32 [rows, 1] on the device."""
    return on_gpu(np.array(ends, np.int32)[:, None])


def indices(rows, columns=TOP_K):
    """An output that nobody has written yet."""
    import torch

    return torch.full((rows, columns), -7, dtype=torch.int32, device=DEVICE)


def captured(call, *, warm=True):
    """A CUDA graph of what `call` enqueues on the current stream.

    warm : whether the call is made once before, outside the capture.
    """
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    if warm:
        with torch.cuda.stream(stream):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    torch.cuda.synchronize()
    return graph


def delay(milliseconds=40):
    """Keep the current stream busy, so that what comes after on it comes late."""
    import torch

    torch.cuda._sleep(int(milliseconds * 1.8e6))


@contextlib.contextmanager
def late_stream(milliseconds=60):
    """A stream of its own that is busy for a while: work that went elsewhere comes too early.

    Copies from the host wait for it: make tensors before.
    """
    import torch

    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        delay(milliseconds)
        yield stream
    torch.cuda.synchronize()


def top_k_rows(logits):
    """The 512 entries of whole rows without NaN, by a stable sort on the device."""
    import torch

    order = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :TOP_K]
    return torch.sort(order, dim=1).values.int()


def assert_rows(got, right, what):
    """Rows equal entry by entry; both may be tensors."""
    got = got.cpu().numpy() if hasattr(got, "cpu") else got
    right = right.cpu().numpy() if hasattr(right, "cpu") else right
    wrong = np.argwhere(got != right)
    assert not len(wrong), (
        f"{what}: {len(wrong)} entries of {len(np.unique(wrong[:, 0]))} rows are wrong, first "
        f"row {wrong[0][0]}, entry {wrong[0][1]}: {got[tuple(wrong[0])]}, right is "
        f"{right[tuple(wrong[0])]}"
    )


class Step:
    """One call of each kind over its own inputs: made again and again, it must give the same.

    The arrays are kept, so that `check` compares with the oracle on what the tensors hold then.
    """

    block_size = 8
    slots = 2048

    def __init__(self, rng, rows, width, draw, options=()):
        self.rows, self.width, self.options = rows, width, options
        self._draw, self._rng = draw, rng
        self.values = draw(rng, rows, width)
        self.ends = np.full(rows, width, np.int32)
        blocks = -(-width // self.block_size)
        self.candidates = np.full((rows, self.slots), -1, np.int32)
        for row in self.candidates:
            chosen = np.sort(rng.permutation(blocks)[: self.slots])
            row[: len(chosen)] = chosen
        self.n = 16_384
        self.compact = draw(rng, rows, self.n)
        self.ids = np.sort(
            rng.permuted(np.tile(np.arange(2 * self.n), (rows, 1)), axis=1)[:, : self.n]
        )
        self.ids = self.ids.astype(np.int32)
        self.logits = on_gpu(self.values)
        self.lens = on_gpu(self.ends[:, None])
        self.visible = on_gpu(self.ends)
        self.blocks = on_gpu(self.candidates)
        self.compact_logits, self.compact_ids = on_gpu(self.compact), on_gpu(self.ids)
        self.outputs = {name: indices(rows) for name in ("top_k", "candidate", "compact", "regs")}
        self.outputs["blocks"] = indices(rows, self.slots)

    def refill(self, ends=None):
        """New values in the same tensors, and new ends where given."""
        self.values = self._draw(self._rng, self.rows, self.width)
        self.logits.copy_(on_gpu(self.values))
        if ends is not None:
            self.set_ends(ends)

    def set_ends(self, ends):
        """New ends in the same tensors."""
        self.ends = np.resize(np.array(ends, np.int32), self.rows)
        self.lens.copy_(on_gpu(self.ends[:, None]))
        self.visible.copy_(on_gpu(self.ends))

    def spoil(self):
        """Outputs as if nobody had written them."""
        for output in self.outputs.values():
            output.fill_(-7)

    def call(self):
        """Every kernel once, on the current stream."""
        import dsv41topk as ours

        out = self.outputs
        ours.top_k_per_row_decode_512(self.logits, 1, self.lens, out["top_k"], *self.options)
        ours.candidate_top_k_512(
            self.logits, 1, self.lens, self.blocks, self.block_size, out["candidate"]
        )
        compact = self.compact_logits, self.compact_ids, self.lens, 1
        ours.compact_top_k_512(*compact, out["compact"])
        ours.compact_top_k_512_regs(*compact, out["regs"])
        ours.candidate_blocks(self.logits, self.visible, 1, self.block_size, out["blocks"])

    def check(self, what):
        """Compare everything that `call` wrote with the oracle."""
        import torch

        torch.cuda.synchronize()
        seq_lens = self.ends[:, None]
        right = {
            "top_k": reference.top_k_per_row_decode_512(self.values, 1, seq_lens),
            "candidate": reference.candidate_top_k_512(
                self.values, 1, seq_lens, self.candidates, self.block_size
            ),
            "compact": reference.compact_top_k_512(self.compact, self.ids, seq_lens, 1),
            "blocks": reference.candidate_blocks(
                self.values, self.ends, 1, self.block_size, self.slots
            ),
        }
        right["regs"] = right["compact"]
        for name, rows in right.items():
            assert_rows(self.outputs[name], rows, f"{name}, {what}, ends {self.ends[:8]}")
