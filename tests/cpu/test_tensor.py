# SPDX-License-Identifier: Apache-2.0
"""Tensors by capsule and by exchange table; streams and scratch of the library that they are of."""

import gc
import logging
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from helpers.arguments import POISON, good
from helpers.dlpack import CPU, CUDA, READ_ONLY, ROCM, Lent, Library
from helpers.double import Double

import dsv41topk
from dsv41topk import _runtime, _tensor

TOP_K = "top_k_per_row_decode_512"
TENSORS = ("logits", "seq_lens", "indices")


def top_k(make, **changes):
    """Call the kernel with each tensor made by `make`; return the arguments and what it wrote."""
    arguments = good(TOP_K) | changes
    made = {name: make(arguments[name]) for name in TENSORS}
    dsv41topk.top_k_per_row_decode_512(**arguments | made)
    return made, arguments["indices"]


@pytest.fixture(scope="module")
def expected():
    arguments = good(TOP_K)
    dsv41topk.top_k_per_row_decode_512(**arguments)
    return arguments["indices"]


# ---- capsules ------------------------------------------------------------------------------------


@pytest.mark.parametrize("versioned", [True, False])
def test_a_capsule_is_used_up_and_its_deleter_run(versioned, expected):
    made, written = top_k(lambda array: Lent(array, versioned=versioned))
    assert np.array_equal(written, expected)
    name = "used_dltensor_versioned" if versioned else "used_dltensor"
    for tensor in made.values():
        assert tensor.names() == [name]
        assert tensor.deleted == 1


def test_no_stream_is_asked_for_on_the_cpu():
    """numpy takes no stream at all; and an older producer is asked again without a version."""
    made, _ = top_k(lambda array: Lent(array, versioned=False))
    assert made["logits"].asked == [{"max_version": (1, 3)}, {}]


def test_no_work_on_the_default_stream_is_asked_for():
    """Torch takes a missing stream as: let the default stream wait for the current one."""
    tensor = Lent(np.zeros((2, 8), np.float32), device_type=CUDA)
    with pytest.raises(ValueError, match="seq_lens must be on cuda:0 like the others"):
        top_k(lambda array: tensor if array.dtype == np.float32 else array)
    assert tensor.asked == [{"max_version": (1, 3), "stream": -1}]
    assert tensor.deleted == 1


def test_a_deleter_may_be_missing(expected):
    _, written = top_k(lambda array: Lent(array, has_deleter=False))
    assert np.array_equal(written, expected)


def test_the_deleter_runs_after_a_refusal():
    tensors = []

    def lend(array):
        tensors.append(Lent(array, lanes=2 if array.dtype == np.int32 else 1))
        return tensors[-1]

    with pytest.raises(TypeError, match="seq_lens must be int32, got int32x2"):
        top_k(lend)
    assert [tensor.deleted for tensor in tensors] == [1, 1, 0]


def test_what_is_not_taken_stays_with_its_capsule():
    """Of a newer major version not even the deleter's place is sure."""
    tensor = Lent(np.zeros((4, 8), np.float32), major=2)
    with pytest.raises(BufferError, match="DLPack 1, got version 2"):
        top_k(lambda array: tensor if array.dtype == np.float32 else array)
    assert tensor.names() == ["dltensor_versioned"]
    assert tensor.deleted == 0


def test_read_only_inputs_are_read(expected):
    arguments = good(TOP_K)
    arguments["logits"].setflags(write=False)
    lens = Lent(arguments["seq_lens"], flags=READ_ONLY)
    dsv41topk.top_k_per_row_decode_512(**arguments | {"seq_lens": lens})
    assert np.array_equal(arguments["indices"], expected)


def test_strides_may_be_missing_and_offsets_there(expected):
    def lend(array):
        # The same place, said in another way.
        return Lent(array, data=array.ctypes.data - 96, byte_offset=96, strides=None)

    _, written = top_k(lend)
    assert np.array_equal(written, expected)


@pytest.mark.parametrize("kind", [3, 11])
def test_pinned_memory_is_the_hosts(kind, expected):
    _, written = top_k(lambda array: Lent(array, device_type=kind, device_id=5))
    assert np.array_equal(written, expected)


# ---- the exchange table --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__"])
def test_a_table_is_found_under_both_names(name, expected):
    library = Library(attribute=name)
    _, written = top_k(library.Tensor)
    assert np.array_equal(written, expected)
    assert library.streams_asked == []  # of the CPU: its answer looks like a default stream


def test_an_older_table_is_found_behind_a_newer_one(expected):
    _, written = top_k(Library(major=2, previous=Library()).Tensor)
    assert np.array_equal(written, expected)


def test_a_table_of_a_newer_version_alone_is_left():
    with pytest.raises(BufferError, match="not by the table"):
        top_k(Library(major=2).Tensor)


def test_an_inherited_table_is_not_trusted():
    """A subclass may mean other memory than its base's table would lend."""
    library = Library()

    class Wrapper(library.Tensor):
        def __dlpack__(self, **options):
            return Lent(self.array).__dlpack__(**options)

    arguments = good(TOP_K)
    wrong = np.full_like(arguments["logits"], np.inf)
    wrapper = Wrapper(arguments["logits"], data=wrong.ctypes.data)
    dsv41topk.top_k_per_row_decode_512(**arguments | {"logits": wrapper})
    assert not np.array_equal(arguments["indices"][0], np.arange(512))


def test_a_table_that_fails():
    library = Library()
    tensor = library.Tensor(np.zeros((4, 8), np.float32))
    tensor.view = None
    with pytest.raises(BufferError, match="the exchange table failed and did not say why"):
        top_k(lambda array: tensor if array.dtype == np.float32 else array)


def test_more_types_than_are_remembered(expected):
    for _ in range(40):
        _, written = top_k(Library().Tensor)
        assert np.array_equal(written, expected)


def test_mixed_kinds_in_one_call(expected):
    library = Library()
    arguments = good(TOP_K)
    mixed = {
        "logits": library.Tensor(arguments["logits"]),
        "seq_lens": Lent(arguments["seq_lens"], versioned=False),
    }
    dsv41topk.top_k_per_row_decode_512(**arguments | mixed)
    assert np.array_equal(arguments["indices"], expected)


def test_nothing_is_kept():
    """Many calls of every route, taken and refused, leave the reference counts as they were."""
    library = Library()
    arguments = good(TOP_K)
    tensors = {
        kind: {name: make(arguments[name]) for name in TENSORS}
        for kind, make in {"numpy": np.asarray, "table": library.Tensor}.items()
    }
    refused = np.zeros((4, 8))
    watched = [*arguments.values(), *tensors["table"].values(), refused, None, 512]
    watched = [value for value in watched if not isinstance(value, int) or value is None]
    for round_ in range(2):
        before = [sys.getrefcount(value) for value in watched]
        for _ in range(500):
            for made in tensors.values():
                dsv41topk.top_k_per_row_decode_512(**arguments | made)
                with pytest.raises(TypeError):
                    dsv41topk.top_k_per_row_decode_512(**arguments | made | {"logits": refused})
        gc.collect()
        after = [sys.getrefcount(value) for value in watched]
        drift = [b - a for a, b in zip(before, after, strict=True)]
        if round_:  # None's count moves with pytest's own work
            assert all(abs(change) < 100 for change in drift), drift


# ---- torch ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def test_torch_tensors_and_parameters(torch, expected):
    arguments = good(TOP_K)
    for make in (torch.from_numpy, lambda a: torch.nn.Parameter(torch.from_numpy(a), False)):
        _, written = top_k(make)
        assert np.array_equal(written, expected)
    needs_grad = torch.from_numpy(arguments["logits"]).requires_grad_()
    dsv41topk.top_k_per_row_decode_512(**arguments | {"logits": needs_grad})
    assert np.array_equal(arguments["indices"], expected)


def _vmapped(torch):
    """Return what a tensor is inside torch.vmap."""
    inside = []

    def body(tensor):
        inside.append(tensor)
        return tensor

    torch.vmap(body)(torch.zeros(2, 4, 2048))
    return inside[0]


def _fake(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(4, 2048)


UNREADABLE = {
    "negated": lambda torch: torch._neg_view(torch.zeros(4, 2048)),
    "meta": lambda torch: torch.empty(4, 2048, device="meta"),
    "sparse": lambda torch: torch.zeros(4, 2048).to_sparse(),
    "fake": _fake,
    "vmapped": _vmapped,
    "imaginary part": lambda torch: torch.zeros(4, 2048, dtype=torch.cfloat).conj().imag,
}


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_torch_must_not_be_read_through(torch, kind):
    logits = UNREADABLE[kind](torch)
    arguments = good(TOP_K)
    with pytest.raises((BufferError, ValueError), match="logits"):
        dsv41topk.top_k_per_row_decode_512(**arguments | {"logits": logits})
    assert (arguments["indices"] == POISON).all()
    _runtime.reset()
    dsv41topk.enable()
    hook = good("decode_top_k") | {"logits": logits}
    assert dsv41topk.decode_top_k(**hook) is False
    assert (hook["indices"] == POISON).all()
    _runtime.reset()


def test_a_subclass_of_torchs_tensor(torch, expected):
    class Marked(torch.Tensor):
        pass

    _, written = top_k(lambda array: torch.from_numpy(array).as_subclass(Marked))
    assert np.array_equal(written, expected)


# ---- streams -------------------------------------------------------------------------------------


class FakeTorch(ModuleType):
    """As much of torch as is asked: what is current on a device, and whose tensors have a table."""

    def __init__(self, library):
        super().__init__("torch")
        self.Tensor = library.Tensor
        self.stream_now, self.entered, self.emptied = 0, [], []
        self._C = SimpleNamespace(_cuda_getCurrentRawStream=self._current)
        self.cuda = SimpleNamespace(
            Stream=lambda device: SimpleNamespace(device=device, raw=0xBEEF),
            stream=self._as_current,
            is_initialized=lambda: True,
        )
        self.uint8 = "uint8"

    def _current(self, device):
        return self.stream_now

    def _as_current(self, stream):
        torch = self

        class Guard:
            def __enter__(self):
                self.before, torch.stream_now = torch.stream_now, stream.raw
                torch.entered.append(stream.device)

            def __exit__(self, *error):
                torch.stream_now = self.before

        return Guard()

    def device(self, kind, number):
        return kind, number

    def empty(self, size, dtype, device):
        block = np.zeros(size, np.uint8)
        self.emptied.append((size, dtype, device))
        return SimpleNamespace(data_ptr=lambda: block.ctypes.data)


@pytest.fixture
def double():
    with Double(ROCM).installed() as double:
        dsv41topk.enable()
        yield double


def on_gpu(make, device=1):
    return lambda array: make(array, device_type=ROCM, device_id=device)


def hook(make, **changes):
    arguments = good("decode_top_k") | changes
    made = {name: make(arguments[name]) for name in TENSORS}
    return dsv41topk.decode_top_k(**arguments | made)


def test_the_tables_stream_is_used_with_the_tensors_own_device(double):
    library = Library()
    assert hook(on_gpu(library.Tensor, 1))
    assert library.streams_asked == [(ROCM, 1)]
    assert double.launched == [("top_k_select_kernel", library.stream, 1)]
    assert double.device == 0, "the caller's device is current again"
    assert _tensor.stream_fallback() is None, "torch's was not seen"
    library.stream = 0x77
    assert hook(on_gpu(library.Tensor, 2))
    assert double.launched[1:] == [("top_k_select_kernel", 0x77, 2)]


def test_a_table_that_lies(double, monkeypatch, caplog):
    """Torch's ROCm builds before 2026-02 name the default stream, whatever is current."""
    library = Library()
    library.stream = 0
    torch = FakeTorch(library)
    torch.stream_now = 0xABC
    monkeypatch.setitem(sys.modules, "torch", torch)
    with caplog.at_level(logging.WARNING):
        assert hook(on_gpu(library.Tensor))
        torch.stream_now = 0xABD
        assert hook(on_gpu(library.Tensor))
    assert [stream for _, stream, _ in double.launched] == [0xABC, 0xABD]
    assert torch.entered == [1], "tested once, on the tensors' device"
    assert _tensor.stream_fallback() is True
    assert [r.message for r in caplog.records] == [
        "torch's DLPack exchange table names the wrong stream; torch is asked instead"
    ]


def test_a_table_that_lies_only_off_the_default_stream(double, monkeypatch):
    """On the default stream it agrees with torch: the test must not run there."""
    library = Library()
    library.stream = 0
    torch = FakeTorch(library)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert hook(on_gpu(library.Tensor))
    assert _tensor.stream_fallback() is True


def test_a_table_that_tells_the_truth(double, monkeypatch):
    library = Library()
    torch = FakeTorch(library)
    library.stream = lambda: torch.stream_now
    torch.stream_now = 0xABC
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert hook(on_gpu(library.Tensor)) and hook(on_gpu(library.Tensor))
    assert [stream for _, stream, _ in double.launched] == [0xABC, 0xABC]
    assert torch.entered == [1]
    assert _tensor.stream_fallback() is False


def test_build_tests_torchs_table_ahead_of_the_first_call(monkeypatch):
    library = Library()
    library.stream = 0
    torch = FakeTorch(library)
    monkeypatch.setitem(sys.modules, "torch", torch)
    _tensor.reset()
    _tensor.test_streams(ROCM, 2)
    assert torch.entered == [2]
    assert _tensor.stream_fallback() is True
    _tensor.test_streams(ROCM, 2)
    assert torch.entered == [2], "once"
    _tensor.reset()


def test_another_librarys_table_is_not_held_against_torch(double, monkeypatch):
    library, other = Library(), Library()
    torch = FakeTorch(library)
    monkeypatch.setitem(sys.modules, "torch", torch)
    library.stream = lambda: torch.stream_now
    for tensor in (other.Tensor, library.Tensor, other.Tensor, library.Tensor):
        assert hook(on_gpu(tensor))
    assert [stream for _, stream, _ in double.launched] == [other.stream, None] * 2
    assert torch.entered == [1], "torch's table alone was compared, once"


def test_a_stream_that_cannot_be_had(double, caplog):
    library = Library()
    library.stream = None
    _runtime.count_calls()
    assert hook(on_gpu(library.Tensor)) is False
    assert [r.getMessage() for r in caplog.records] == [
        "decode_top_k: declined, no current stream: "
        "BufferError: the exchange table failed and did not say why"
    ]
    assert _runtime.call_counts() == {"decode_top_k": {"no current stream": 1}}
    with pytest.raises(RuntimeError, match="no current stream: BufferError: the exchange"):
        top_k(on_gpu(library.Tensor))
    assert double.launched == []


def test_capsules_on_a_gpu_use_torchs_stream_and_memory(double, monkeypatch):
    torch = FakeTorch(Library())
    torch.stream_now = 0x123
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert hook(on_gpu(Lent), **wide())
    assert {stream for _, stream, _ in double.launched} == {0x123}
    ((size, dtype, device),) = torch.emptied
    assert size > 0
    assert (dtype, device) == ("uint8", ("cuda", 1))


def test_capsules_of_cupy_use_its_stream_and_memory(double, monkeypatch):
    cupy = ModuleType("cupy")
    devices, allocated = [], []

    class Device:
        def __init__(self, number):
            self.number = number

        def __enter__(self):
            devices.append(self.number)

        def __exit__(self, *error):
            devices.append("left")

    def alloc(size):
        block = np.zeros(size, np.uint8)
        allocated.append(size)
        return SimpleNamespace(ptr=block.ctypes.data, block=block)

    cupy.cuda = SimpleNamespace(
        Device=Device, alloc=alloc, get_current_stream=lambda: SimpleNamespace(ptr=0x321)
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    array_type = type("ndarray", (Lent,), {"__module__": "cupy"})
    assert hook(on_gpu(array_type), **wide())
    assert {stream for _, stream, _ in double.launched} == {0x321}
    assert devices == [1, "left"] * 2
    assert len(allocated) == 1


def test_capsules_on_a_gpu_of_an_unknown_library(double, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeError, match="LookupError: helpers has no exchange table"):
        top_k(on_gpu(Lent))
    assert hook(on_gpu(Lent)) is False
    assert double.launched == []


# ---- scratch -------------------------------------------------------------------------------------


def wide():
    """Arguments of a call that needs scratch: a row of so many columns is split."""
    logits = np.zeros((4, 200_000), np.float32)
    return {"logits": logits, "seq_lens": np.full(2, 200_000, np.int32)}


def test_scratch_comes_from_the_tables_allocator_and_goes_back(double):
    library = Library()
    assert hook(on_gpu(library.Tensor))
    assert library.allocated == [], "no scratch, no allocation"
    assert hook(on_gpu(library.Tensor), **wide())
    assert len(library.allocated) == 1
    assert library.freed == library.allocated
    assert len(double.launched) == 3


def test_scratch_that_cannot_be_had(double, caplog):
    library = Library()
    library.refuse = "the pool is dry"
    _runtime.count_calls()
    assert hook(on_gpu(library.Tensor), **wide()) is False
    assert "decode_top_k: declined, no scratch: MemoryError: the pool is dry" in caplog.text
    assert _runtime.call_counts() == {"decode_top_k": {"no scratch": 1}}
    with pytest.raises(MemoryError, match="no scratch: MemoryError: the pool is dry"):
        top_k(on_gpu(library.Tensor), **wide())
    assert double.launched == []
    assert library.freed == []


def test_scratch_goes_back_after_a_failed_launch(double):
    library = Library()
    double.fail = {2: 719}
    with pytest.raises(dsv41topk.LaunchError, match=r"paperError \(719\) from top_k_select_kernel"):
        top_k(on_gpu(library.Tensor), **wide())
    assert library.freed == library.allocated


def test_host_tensors_of_a_double_get_scratch_too():
    with Double(CPU).installed() as double:
        top_k(np.asarray, **wide())
        assert [name for name, *_ in double.launched] == ["group_max_kernel", "top_k_select_kernel"]
