# SPDX-License-Identifier: Apache-2.0
"""Every refusal, through both faces: a kernel says it in words, a hook answers False.

A case that is taken back from here fails `test_every_refusal_has_a_case`.
"""

import re
from dataclasses import dataclass, field

import numpy as np
import pytest
from helpers.arguments import (
    BLOCK_SIZE,
    HOOK_OF,
    KERNELS,
    NEXT_N,
    POISON,
    ROWS,
    SLOTS,
    TENSOR_HOOKS,
    WIDTH,
    Decode,
    good,
    outputs,
)
from helpers.dlpack import COPIED, CUDA, Lent

import dsv41topk
from dsv41topk import _errors, _runtime
from dsv41topk._cache import Fp8Array

TOP_K, CANDIDATE, COMPACT, REGS, BLOCKS, LOGITS = KERNELS


class Striking:
    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        raise ValueError("on strike")


class Negated(Lent):
    def is_neg(self):
        return True


def lent(name, **options):
    """Replace an argument by what lends it with those options."""
    return {name: lambda arguments: Lent(arguments[name], **options)}


def resized(name, *shape):
    """Replace an argument by one of another shape."""
    return {
        name: lambda arguments: np.zeros(shape, arguments[name].dtype),
    }


def read_only(array):
    view = array.view()
    view.setflags(write=False)
    return view


def overlapping(array, step):
    """Rows that start `step` columns after each other."""
    return np.lib.stride_tricks.as_strided(array, strides=(4 * step, 4))


@dataclass
class Case:
    """What must be refused, how a kernel says so, and how a hook counts it."""

    rule: str
    call: str
    changes: dict
    error: type
    message: str
    hook_message: str = ""  # where it is not the kernel's with the hook's names
    hook_takes: bool = False  # it has no such argument, or serves what the kernel does not
    id: str = field(init=False)

    def __post_init__(self):
        self.id = f"{self.call}-{self.message.partition(' must ')[0]}-{self.rule}"


CASES = [
    Case("type", TOP_K, {"logits": "text"}, TypeError,
         "logits must be a tensor with __dlpack__, got str"),
    Case("type", TOP_K, {"seq_lens": None}, TypeError,
         "seq_lens must be a tensor with __dlpack__, got NoneType"),
    Case("lending", TOP_K, {"logits": Striking()}, BufferError,
         "logits must lend its memory, got ValueError: on strike"),
    Case("lending", TOP_K, lent("logits", capsule_name=b"a parcel"), BufferError,
         "logits must lend its memory, got BufferError: "
         "__dlpack__ gave PyCapsule and not a capsule of a tensor"),
    Case("used", CANDIDATE, lent("candidates", capsule_name=b"used_dltensor_versioned"),
         BufferError, "candidates must give a new capsule, got one that was used before"),
    Case("used", TOP_K, lent("seq_lens", versioned=False, capsule_name=b"used_dltensor"),
         BufferError, "seq_lens must give a new capsule, got one that was used before"),
    Case("version", TOP_K, lent("logits", major=2), BufferError,
         "logits must be of DLPack 1, got version 2"),
    Case("read only", TOP_K, {"indices": lambda a: read_only(a["indices"])}, BufferError,
         "indices must be writable, got a read-only one"),
    Case("read only", BLOCKS, {"out": lambda a: read_only(a["out"])}, BufferError,
         "out must be writable, got a read-only one"),
    Case("copy", TOP_K, lent("indices", flags=COPIED), BufferError,
         "indices must be lent itself, got a copy"),
    Case("NULL", TOP_K, lent("logits", data=None), ValueError,
         "logits must have data, got NULL"),
    Case("negative bit", TOP_K, {"logits": lambda a: Negated(a["logits"])}, ValueError,
         "logits must be stored as it reads, got a lazily negated one"),
    Case("alignment", TOP_K, lent("logits", byte_offset=2), ValueError,
         "logits must start at a multiple of 4 bytes, got 2 past one"),
    Case("alignment", LOGITS, lent("kv_cache", byte_offset=1), ValueError,
         "kv_cache must start at a multiple of 4 bytes, got 1 past one"),
    Case("dtype", TOP_K, {"logits": lambda a: a["logits"].astype(np.float64)}, TypeError,
         "logits must be float32, got float64"),
    Case("dtype", TOP_K, {"seq_lens": lambda a: a["seq_lens"].astype(np.int64)}, TypeError,
         "seq_lens must be int32, got int64"),
    Case("dtype", TOP_K, {"indices": lambda a: a["indices"].astype(np.uint32)}, TypeError,
         "indices must be int32, got uint32"),
    Case("dtype", TOP_K, lent("logits", lanes=4), TypeError,
         "logits must be float32, got float32x4"),
    Case("dtype", TOP_K, lent("logits", code=4, bits=16), TypeError,
         "logits must be float32, got bfloat16"),
    Case("dtype", TOP_K, lent("logits", code=6, bits=8), TypeError,
         "logits must be float32, got bool"),
    Case("dtype", TOP_K, lent("logits", code=99), TypeError,
         "logits must be float32, got DLPack type 99 of 32 bits"),
    Case("dtype", LOGITS, {"q": lambda a: a["q"].codes}, TypeError,
         "q must be float8_e4m3fn or float8_e4m3fnuz, got uint8"),
    Case("dtype", LOGITS, {"kv_cache": lambda a: a["kv_cache"].view(np.int8)}, TypeError,
         "kv_cache must be uint8, got int8"),
    Case("rank", TOP_K, {"logits": lambda a: a["logits"][None]}, ValueError,
         "logits.ndim must be 2, got 3"),
    Case("rank", TOP_K, {"seq_lens": lambda a: a["seq_lens"].reshape(1, 1, 2)}, ValueError,
         "seq_lens.ndim must be 1 or 2, got 3"),
    Case("rank", TOP_K, {"seq_lens": np.array(WIDTH, np.int32)}, ValueError,
         "seq_lens.ndim must be 1 or 2, got 0"),
    Case("rank", BLOCKS, {"visible": lambda a: a["visible"][:, None]}, ValueError,
         "visible.ndim must be 1, got 2", hook_takes=True),
    Case("rank", LOGITS, {"q": lambda a: Fp8Array(a["q"].codes[0], "e4m3fn")}, ValueError,
         "q.ndim must be 4, got 3"),
    Case("device", TOP_K, lent("logits", device_type=8), ValueError,
         "logits must be on cpu, cuda or rocm, got DLPack device type 8:0",
         "logits must be on cpu, got DLPack device type 8:0"),
    Case("device", TOP_K, lent("logits", device_type=CUDA, device_id=-1), ValueError,
         "logits must be on cpu, cuda or rocm, got cuda:-1", "logits must be on cpu, got cuda:-1"),
    Case("device mix", TOP_K, lent("seq_lens", device_type=CUDA, device_id=3), ValueError,
         "seq_lens must be on cpu like the others, got cuda:3"),
    Case("device mix", CANDIDATE, lent("logits", device_type=CUDA, device_id=3), ValueError,
         "seq_lens must be on cuda:3 like the others, got cpu",
         "logits must be on cpu, got cuda:3"),
    Case("size", LOGITS, resized("kv_cache", 4, 64, 1, 131), ValueError,
         "kv_cache.shape[3] must be 132, got 131"),
    Case("size", LOGITS, resized("kv_cache", 4, 64, 2, 132), ValueError,
         "kv_cache.shape[2] must be 1, got 2"),
    Case("size", LOGITS, {"q": Fp8Array(np.zeros((2, 2, 32, 64), np.uint8), "e4m3fn")},
         ValueError, "q.shape[3] must be 128, got 64"),
    Case("size", LOGITS, resized("weights", ROWS, 33), ValueError,
         "weights.shape[1] must be 32, got 33"),
    Case("size", LOGITS, {"next_n": 1}, ValueError, "next_n must be 2, got 1", hook_takes=True),
    Case("size", LOGITS, resized("out_ids", ROWS, 8), ValueError,
         "out_ids.shape[1] must be 1024, got 8", hook_takes=True),
    Case("size", LOGITS, resized("out_logits", ROWS + 1, SLOTS * BLOCK_SIZE), ValueError,
         "out_logits.shape[0] must be 4, got 5", hook_takes=True),
    Case("size", COMPACT, resized("compact_ids", ROWS, 1020), ValueError,
         "compact_ids.shape[1] must be 1024, got 1020"),
    Case("size low", TOP_K, {"indices": lambda a: a["indices"][:3]}, ValueError,
         "indices.shape[0] must be at least 4, got 3"),
    Case("size low", TOP_K, {"indices": lambda a: a["indices"][:, :511]}, ValueError,
         "indices.shape[1] must be at least 512, got 511"),
    Case("size low", CANDIDATE, {"candidates": lambda a: a["candidates"][:3]}, ValueError,
         "candidates.shape[0] must be at least 4, got 3"),
    Case("size low", COMPACT, {"compact_logits": lambda a: a["compact_logits"][:, :512].copy()},
         ValueError, "compact_logits.shape[1] must be at least 513, got 512"),
    Case("size low", LOGITS, {"block_table": lambda a: a["block_table"][:1]}, ValueError,
         "block_table.shape[0] must be at least 2, got 1"),
    Case("size low", LOGITS, {"weights": lambda a: a["weights"][:, :31]}, ValueError,
         "weights.shape[1] must be at least 32, got 31"),
    Case("size low", LOGITS, resized("kv_cache", 4, 0, 1, 132), ValueError,
         "kv_cache.shape[1] must be at least 16, got 0"),
    Case("size low", LOGITS, {"q": Fp8Array(np.zeros((2, 0, 32, 128), np.uint8), "e4m3fn")},
         ValueError, "q.shape[1] must be at least 1, got 0"),
    Case("size low", TOP_K, lent("logits", shape=(-1, 8)), ValueError,
         "logits.shape[0] must be at least 0, got -1"),
    Case("size high", TOP_K, lent("logits", shape=(1 << 31, 8), strides=(0, 1)), ValueError,
         "logits.shape[0] must be at most 2147483647, got 2147483648"),
    Case("size high", CANDIDATE, {"block_size": 1 << 30}, ValueError,
         "candidates.shape[1] must be at most 1, got 128"),
    Case("size high", REGS, resized("compact_logits", ROWS, 32772), ValueError,
         "compact_logits.shape[1] must be at most 32768, got 32772"),
    Case("size multiple", LOGITS, resized("kv_cache", 4, 24, 1, 132), ValueError,
         "kv_cache.shape[1] must be a multiple of 16, got 24"),
    Case("size multiple", REGS, resized("compact_logits", ROWS, 1022), ValueError,
         "compact_logits.shape[1] must be a multiple of 4, got 1022"),
    Case("heads", LOGITS, {"q": Fp8Array(np.zeros((2, 2, 48, 128), np.uint8), "e4m3fn")},
         ValueError, "q.shape[2] must be 32 or 64, got 48"),
    Case("stride", TOP_K, {"logits": lambda a: np.asfortranarray(a["logits"])}, ValueError,
         "logits.stride(1) must be 1, got 4"),
    Case("stride", TOP_K, {"indices": lambda a: np.asfortranarray(a["indices"])}, ValueError,
         "indices.stride(1) must be 1, got 4"),
    Case("stride", TOP_K, {"seq_lens": lambda a: np.repeat(a["seq_lens"], 2)[::2]}, ValueError,
         "seq_lens.stride(0) must be 1, got 2"),
    Case("stride", TOP_K, {"seq_lens": np.full((2, 4), WIDTH, np.int32)[:, :2]}, ValueError,
         "seq_lens.stride(0) must be 2, got 4"),
    Case("stride", BLOCKS, {"visible": lambda a: np.repeat(a["visible"], 2)[::2]}, ValueError,
         "visible.stride(0) must be 1, got 2"),
    Case("stride", COMPACT, {"compact_logits": lambda a: np.zeros((4, 1028), np.float32)[:, :1024]},
         ValueError, "compact_logits.stride(0) must be 1024, got 1028"),
    Case("stride", COMPACT, {"compact_ids": lambda a: np.zeros((4, 1028), np.int32)[:, :1024]},
         ValueError, "compact_ids.stride(0) must be 1024, got 1028"),
    Case("stride", LOGITS, {"kv_cache": np.zeros((4, 64, 1, 264), np.uint8)[..., ::2]}, ValueError,
         "kv_cache.stride(3) must be 1, got 2"),
    Case("stride", LOGITS, {"kv_cache": np.zeros((4, 64, 1, 136), np.uint8)[..., :132]},
         ValueError, "kv_cache.stride(1) must be 132, got 136"),
    Case("stride", LOGITS,
         {"q": Fp8Array(np.zeros((2, 2, 32, 256), np.uint8)[..., :128], "e4m3fn")}, ValueError,
         "q.stride(2) must be 128, got 256"),
    Case("stride", LOGITS, {"out_ids": np.zeros((4, 1028), np.int32)[:, :1024]}, ValueError,
         "out_ids.stride(0) must be 1024, got 1028", hook_takes=True),
    Case("stride low", TOP_K, {"indices": lambda a: overlapping(a["indices"], 511)}, ValueError,
         "indices.stride(0) must be at least 512, got 511"),
    Case("stride low", TOP_K, {"indices": lambda a: overlapping(a["indices"], 0)}, ValueError,
         "indices.stride(0) must be at least 512, got 0"),
    Case("stride low", BLOCKS, {"out": lambda a: overlapping(a["out"], 127)}, ValueError,
         "out.stride(0) must be at least 128, got 127"),
    Case("stride low", TOP_K, {"logits": lambda a: a["logits"][::-1]}, ValueError,
         "logits.stride(0) must be at least 0, got -2048"),
    Case("stride multiple", LOGITS, lent("kv_cache", strides=(64 * 132 + 2, 132, 132, 1)),
         ValueError, "kv_cache.stride(0) must be a multiple of 4, got 8450"),
    Case("ends", TOP_K, {"seq_lens": lambda a: a["seq_lens"][:1]}, ValueError,
         "seq_lens must hold an end for each of 4 rows, got 2"),
    Case("ends", TOP_K, {"seq_lens": np.full((3, 1), WIDTH, np.int32)}, ValueError,
         "seq_lens must hold an end for each of 4 rows, got 3"),
    Case("ends", BLOCKS, {"visible": lambda a: a["visible"][:1]}, ValueError,
         "visible must hold an end for each of 4 rows, got 2"),
    Case("overlap", TOP_K, {"indices": lambda a: a["logits"].view(np.int32)[:, 64:576]},
         ValueError, "indices must share no memory with what is read, got an overlap"),
    Case("overlap", TOP_K, {"seq_lens": lambda a: a["indices"][3, 510:512]},
         ValueError, "indices must share no memory with what is read, got an overlap"),
    Case("overlap", BLOCKS, {"out": lambda a: a["logits"].view(np.int32)[:, 8:136]},
         ValueError, "out must share no memory with what is read, got an overlap"),
    Case("overlap", LOGITS, {"out_ids": lambda a: a["out_logits"].view(np.int32)},
         ValueError, "out_ids must share no memory with what is read, got an overlap",
         hook_takes=True),
    Case("integer", TOP_K, {"next_n": 2.0}, TypeError, "next_n must be an integer, got 2.0"),
    Case("integer", TOP_K, {"next_n": True}, TypeError, "next_n must be an integer, got True"),
    Case("integer", TOP_K, {"next_n": np.array(2)}, TypeError,
         "next_n must be an integer, got array(2)"),
    Case("integer", TOP_K, {"max_blocks": None}, TypeError,
         "max_blocks must be an integer, got None", hook_takes=True),
    Case("integer", CANDIDATE, {"block_size": "8"}, TypeError,
         "block_size must be an integer, got '8'"),
    Case("low", TOP_K, {"next_n": 0}, ValueError, "next_n must be at least 1, got 0"),
    Case("low", TOP_K, {"next_n": -(10**30)}, ValueError,
         f"next_n must be at least 1, got {-(10**30)}"),
    Case("low", TOP_K, {"max_blocks": 0}, ValueError, "max_blocks must be at least 1, got 0",
         hook_takes=True),
    Case("low", TOP_K, {"min_chunk": -1}, ValueError, "min_chunk must be at least 1, got -1",
         hook_takes=True),
    Case("low", CANDIDATE, {"block_size": -8}, ValueError,
         "block_size must be at least 1, got -8"),
    Case("low", BLOCKS, {"row_repeat": 0}, ValueError, "row_repeat must be at least 1, got 0"),
    Case("high", TOP_K, {"next_n": 1 << 31}, ValueError,
         f"next_n must be at most {(1 << 31) - 1}, got {1 << 31}"),
    Case("high", TOP_K, {"next_n": 10**30}, ValueError,
         f"next_n must be at most {(1 << 31) - 1}, got {10**30}"),
]  # fmt: skip

HOOK_CASES = [
    ("top k", "decode_top_k", {"topk_tokens": 2048}, "topk_tokens must be 512, got 2048"),
    ("integer", "decode_top_k", {"topk_tokens": 512.0},
     "topk_tokens must be an integer, got 512.0"),
    ("top k", "candidate_top_k", {"topk_tokens": 511}, "topk_tokens must be 512, got 511"),
    ("top k", "candidate_logits_top_k", {"topk_tokens": -1}, "topk_tokens must be 512, got -1"),
    ("slots", "candidate_top_k", {"block_size": 4},
     "candidates must hold more than 512 columns, got 512"),
    ("slots", "candidate_logits_top_k", {"block_size": 1},
     "candidates must hold more than 512 columns, got 128"),
    ("other logits", "candidate_logits_top_k", {"dense_is_aiter_gluon": False},
     "dense_is_aiter_gluon must be true, got False"),
    ("padding", "candidate_logits_top_k", {"requires_padding": True},
     "requires_padding must be false, got True"),
    ("padding", "skip_decode_fill", {"decode": Decode(True)},
     "decode.requires_padding must be false, got True"),
    ("prefill", "skip_decode_fill", {"has_prefill": True}, "has_prefill must be false, got True"),
    ("no decode", "skip_decode_fill", {"decode": None}, "decode must be there, got None"),
    ("rows", "skip_decode_fill", {"num_tokens": 7}, "num_decode_tokens must be 7, got 6"),
    ("integer", "skip_decode_fill", {"num_tokens": 6.0}, "num_tokens must be an integer, got 6.0"),
]  # fmt: skip


@pytest.fixture
def hooks_on():
    _runtime.reset()
    dsv41topk.enable()
    assert dsv41topk.build()
    _runtime.count_calls()
    yield
    _runtime.reset()


def changed(call, changes):
    arguments = good(call)
    return arguments | {
        name: value(arguments) if callable(value) else value for name, value in changes.items()
    }


def untouched(call, arguments):
    """Copies of what the call would write, to hold against it afterwards."""
    written = outputs(call, arguments)
    return [(array, array.copy()) for array in written if isinstance(array, np.ndarray)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_kernel_says_it_in_words(case):
    _runtime.reset()
    _runtime.watch_launches()
    arguments = changed(case.call, case.changes)
    before = untouched(case.call, arguments)
    with pytest.raises(case.error) as caught:
        getattr(dsv41topk, case.call)(**arguments)
    assert type(caught.value) is case.error
    assert str(caught.value) == f"{case.call}: {case.message}"
    assert _runtime.launches() == 0
    assert all(np.array_equal(array, copy) for array, copy in before)
    _runtime.reset()


def as_hook(case):
    """The hook's name, the changes by its names, and what it counts."""
    hook, names = HOOK_OF[case.call]
    changes = {names.get(name, name): change for name, change in case.changes.items()}
    message = case.hook_message or case.message
    for name, other in names.items():
        message = re.sub(rf"^{name}\b", other, message)
    return hook, changes, message


HOOKED = [case for case in CASES if case.call in HOOK_OF and not case.hook_takes]


class _Renamed(dict):
    """Arguments of a hook that a change may also look up by the kernel's names."""

    def __init__(self, arguments, names):
        super().__init__(arguments)
        self.names = names

    def __missing__(self, name):
        return self[self.names[name]]


@pytest.mark.parametrize("case", HOOKED, ids=lambda case: case.id)
def test_a_hook_answers_false(case, hooks_on):
    hook, changes, message = as_hook(case)
    arguments = _Renamed(good(hook), HOOK_OF[case.call][1])
    arguments |= {n: v(arguments) if callable(v) else v for n, v in changes.items()}
    before = untouched(hook, arguments)
    _runtime.watch_launches()
    assert getattr(dsv41topk, hook)(**arguments) is False
    assert _runtime.call_counts() == {hook: {message: 1}}
    assert _runtime.launches() == 0
    assert all(np.array_equal(array, copy) for array, copy in before)


@pytest.mark.parametrize(("rule", "hook", "changes", "message"), HOOK_CASES)
def test_a_hook_refuses_what_it_is_not_made_for(rule, hook, changes, message, hooks_on):
    arguments = changed(hook, changes)
    before = untouched(hook, arguments)
    _runtime.watch_launches()
    assert getattr(dsv41topk, hook)(**arguments) is False
    assert _runtime.call_counts() == {hook: {message: 1}}
    assert _runtime.launches() == 0
    assert all(np.array_equal(array, copy) for array, copy in before)


def test_every_refusal_has_a_case():
    rules = _errors.rules()
    of_kernels = {case.rule for case in CASES}
    of_hooks = {case.rule for case in HOOKED} | {rule for rule, *_ in HOOK_CASES}
    assert of_kernels == {name for name, (_, hooks_only) in rules.items() if not hooks_only}
    assert of_hooks == set(rules)
    messages = [(case.rule, case.message) for case in CASES]
    for rule, message in messages + [(rule, message) for rule, _, _, message in HOOK_CASES]:
        # The words of the rule, with whatever is filled in.
        pattern = re.sub(r"\\{\w+\\}", ".+", re.escape(rules[rule][0]))
        assert re.fullmatch(pattern, message.partition(" must ")[2]), message


@pytest.mark.parametrize("call", KERNELS)
def test_good_arguments_are_taken(call):
    """The cases change one argument of these; so it was the change that was refused."""
    arguments = good(call)
    assert getattr(dsv41topk, call)(**arguments) is None
    assert not any((array == POISON).any() for array in outputs(call, arguments))


@pytest.mark.parametrize("hook", [*TENSOR_HOOKS, "skip_decode_fill"])
def test_good_calls_are_taken(hook, hooks_on):
    arguments = good(hook)
    assert getattr(dsv41topk, hook)(**arguments) is True
    assert not any((array == POISON).any() for array in outputs(hook, arguments))
    assert _runtime.call_counts() == {hook: {"taken": 1}}
    assert getattr(dsv41topk, hook)(*arguments.values()) is True, "positional, in this order"


def test_numpy_integers_are_integers():
    arguments = good(TOP_K) | {"next_n": np.int64(NEXT_N), "max_blocks": np.uint8(3)}
    dsv41topk.top_k_per_row_decode_512(**arguments)
    assert (arguments["indices"] != POISON).all()


def test_rows_side_by_side_in_one_buffer():
    """Indices and candidates as slices of one buffer overlap as ranges, but not as rows."""
    buffer = np.full((ROWS, 512 + SLOTS), POISON, np.int32)
    arguments = good(CANDIDATE)
    buffer[:, 512:] = arguments["candidates"]
    for columns in (slice(0, 512), slice(SLOTS, SLOTS + 512)):
        rest = slice(512, 512 + SLOTS) if columns.start == 0 else slice(0, SLOTS)
        buffer[:, rest] = arguments["candidates"]
        changes = {"indices": buffer[:, columns], "candidates": buffer[:, rest]}
        dsv41topk.candidate_top_k_512(**arguments | changes)
        assert np.array_equal(buffer[:, rest], arguments["candidates"])
        expected = arguments["indices"].copy()
        dsv41topk.candidate_top_k_512(**arguments | {"indices": expected})
        assert np.array_equal(buffer[:, columns], expected)


@pytest.mark.parametrize("call", KERNELS)
def test_no_rows(call):
    """Zero rows: pointers may be NULL, and strides anything."""
    one_each = ("seq_lens", "visible", "kv_cache")
    arguments = {}
    for name, value in good(call).items():
        if isinstance(value, Fp8Array):
            arguments[name] = Fp8Array(value.codes[:0], value.fp8)
        elif isinstance(value, np.ndarray) and name not in one_each:
            empty = value[:0]
            strides = tuple(12345 for _ in empty.shape)
            arguments[name] = Lent(empty, data=None, strides=strides)
        else:
            arguments[name] = value
    assert getattr(dsv41topk, call)(**arguments) is None


def test_one_row_has_no_row_stride():
    """Torch reports 6 or 1 as the row stride of [1, 6], as it likes; the column stride as well."""
    arguments = good(TOP_K)
    expected = arguments["indices"][:1]
    one = {name: arguments[name][:1] for name in ("logits", "seq_lens")}
    dsv41topk.top_k_per_row_decode_512(one["logits"], 1, one["seq_lens"], expected)
    for stride in (1, 0, 3, -5, 1 << 60):
        indices = np.full((1, 512), POISON, np.int32)
        dsv41topk.top_k_per_row_decode_512(
            Lent(one["logits"], strides=(stride, 1)), 1, Lent(one["seq_lens"], strides=(stride,)),
            Lent(indices, strides=(stride, 1)),
        )  # fmt: skip
        assert np.array_equal(indices, expected)
    column = np.ones((ROWS, 1), np.float32)
    dsv41topk.top_k_per_row_decode_512(
        Lent(column, strides=(1, -77)), NEXT_N, arguments["seq_lens"], arguments["indices"]
    )
    assert (arguments["indices"][:, 0] == 0).all()
    assert (arguments["indices"][:, 1:] == -1).all()
