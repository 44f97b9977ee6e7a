# SPDX-License-Identifier: Apache-2.0
"""When hooks are open, what they do about failures, and that they never raise."""

import logging
import random
import sys
import threading
from types import ModuleType

import numpy as np
import pytest
from helpers.arguments import HOOKS, KERNELS, POISON, TENSOR_HOOKS, Decode, good, outputs
from helpers.dlpack import CPU, CUDA, ROCM, Lent, Library
from helpers.double import Double

import dsv41topk
from dsv41topk import _build, _runtime


@pytest.fixture(autouse=True)
def fresh():
    _runtime.reset()
    yield
    _runtime.reset()


@pytest.fixture
def ready():
    dsv41topk.enable()
    assert dsv41topk.build()


def takes(hook, **changes):
    """Whether the hook takes a good call; what it writes is looked at, too."""
    arguments = good(hook) | changes
    written = outputs(hook, arguments)
    before = [array.copy() for array in written]
    taken = getattr(dsv41topk, hook)(**arguments)
    assert isinstance(taken, bool)
    for array, copy in zip(written, before, strict=True):
        assert (array != copy).all() if taken else np.array_equal(array, copy)
    return taken


# ---- open and closed -----------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_are_off_until_turned_on(hook):
    assert dsv41topk.build()
    _runtime.watch_launches()
    assert not dsv41topk.enabled()
    assert not takes(hook)
    assert _runtime.launches() == 0
    dsv41topk.enable()
    assert dsv41topk.enabled()
    assert takes(hook)
    dsv41topk.disable()
    assert not dsv41topk.enabled()
    assert not takes(hook)


@pytest.mark.parametrize("hook", HOOKS)
def test_the_first_call_builds(hook):
    dsv41topk.enable()
    assert _runtime.backend() is None
    assert takes(hook)
    assert _runtime.backend() == "cpu"


def test_a_hook_that_is_off_builds_nothing():
    assert not takes("decode_top_k")
    assert _runtime.backend() is None
    assert "not built yet" in _runtime.describe()


@pytest.mark.parametrize("error", [_build.BuildError("no compiler"), RuntimeError("no luck")])
def test_a_failed_build_closes_for_good(error, monkeypatch, caplog):
    calls = []

    def provide(backend, device_arch, progress=None):
        calls.append(backend)
        raise error

    monkeypatch.setattr(_build, "provide", provide)
    dsv41topk.enable()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert dsv41topk.build() is False
            assert not any(takes(hook) for hook in HOOKS)
    assert calls == ["auto"]
    assert len(caplog.records) == 1
    assert str(error) in caplog.records[0].getMessage()
    assert str(error) in dsv41topk.build_error()
    assert str(error) in _runtime.describe()
    monkeypatch.undo()
    assert dsv41topk.build() is False
    arguments = good(KERNELS[0])
    dsv41topk.top_k_per_row_decode_512(**arguments)
    assert (arguments["indices"] != POISON).all(), "kernels on CPU tensors always work"


def test_the_backend_that_was_asked_for_or_none(monkeypatch, caplog):
    monkeypatch.setenv("DSV41TOPK_BACKEND", "vulkan")
    dsv41topk.enable()
    assert not dsv41topk.build()
    assert "must be auto, hip, cuda or cpu, got vulkan" in dsv41topk.build_error()
    assert not takes("decode_top_k")


def test_a_gpu_kernel_without_a_gpu():
    library = Library()
    arguments = good(KERNELS[0])
    on_gpu = {
        name: library.Tensor(arguments[name], device_type=CUDA)
        for name in ("logits", "seq_lens", "indices")
    }
    for _ in range(2):
        with pytest.raises(dsv41topk.BuildError):
            dsv41topk.top_k_per_row_decode_512(**arguments | on_gpu)
    assert dsv41topk.build() is True, "the CPU serves all the same"


def test_a_gpu_of_the_other_kind_is_not_served():
    library = Library()
    arguments = good(KERNELS[0])
    on_gpu = {
        name: library.Tensor(arguments[name], device_type=CUDA)
        for name in ("logits", "seq_lens", "indices")
    }
    with Double(ROCM).installed() as double:
        dsv41topk.enable()
        with pytest.raises(dsv41topk.BuildError, match="this process runs on paper"):
            dsv41topk.top_k_per_row_decode_512(**arguments | on_gpu)
        hook = {n: v for n, v in (arguments | on_gpu).items() if n in good("decode_top_k")}
        assert dsv41topk.decode_top_k(**hook, topk_tokens=512) is False
        assert not takes("decode_top_k"), "CPU tensors, while a GPU serves"
        assert double.launched == []


def test_enabled_follows_a_function():
    answers = [False]
    _runtime.follow(lambda: answers[-1])
    dsv41topk.enable()
    assert not dsv41topk.enabled()
    assert not takes("decode_top_k")
    assert _runtime.backend() is None, "nothing is built before it says so"
    answers.append(True)
    assert dsv41topk.enabled()
    assert all(takes(hook) for hook in HOOKS)
    answers.append(False)
    assert not any(takes(hook) for hook in HOOKS)
    _runtime.follow(None)
    assert takes("decode_top_k"), "enable() counts again"


def test_a_followed_function_that_raises(caplog):
    def broken():
        raise RuntimeError("not recorded yet")

    _runtime.follow(broken)
    with caplog.at_level(logging.WARNING):
        assert not any(takes(hook) for hook in HOOKS for _ in range(2))
    assert len(caplog.records) == len(HOOKS), "once a hook"


# ---- launches that fail --------------------------------------------------------------------------


@pytest.mark.parametrize("hook", TENSOR_HOOKS)
def test_a_first_launch_that_fails(hook, ready, caplog):
    """Nothing was enqueued: the call is declined, and the next one is tried again."""
    _runtime.watch_launches(fail=1)
    with caplog.at_level(logging.WARNING):
        assert not takes(hook)
        assert takes(hook)
        _runtime.watch_launches(fail=1)
        assert not takes(hook)
    assert [r.getMessage() for r in caplog.records] == [
        f"{hook}: declined: out of memory (-1) from a test"
    ]


@pytest.mark.parametrize("hook", TENSOR_HOOKS)
def test_a_later_launch_that_fails_closes_the_hook(hook, ready, caplog):
    _runtime.watch_launches(fail=1, launched_before=1)
    with caplog.at_level(logging.WARNING):
        assert not takes(hook)
        assert not takes(hook)
    assert [r.getMessage() for r in caplog.records] == [
        f"{hook}: closed, a later launch of a call failed: out of memory (-1) from a test"
    ]
    assert _runtime.launches() == 1, "a closed hook launches nothing"
    assert all(takes(other) for other in HOOKS if other != hook)
    dsv41topk.disable()
    dsv41topk.enable()
    assert not takes(hook), "for the rest of the process"


def _wide(make):
    arguments = good("decode_top_k")
    arguments["logits"] = np.zeros((4, 200_000), np.float32)
    for name in ("logits", "seq_lens", "indices"):
        arguments[name] = make(arguments[name])
    return arguments


def test_the_second_kernel_of_a_call_fails_on_a_gpu(caplog):
    library = Library()
    arguments = _wide(lambda array: library.Tensor(array, device_type=ROCM))
    with Double(ROCM).installed() as double, caplog.at_level(logging.WARNING):
        dsv41topk.enable()
        double.fail = {2: 719}
        assert dsv41topk.decode_top_k(**arguments) is False
        assert dsv41topk.decode_top_k(**arguments) is False
        assert double.attempts == 2
    assert [r.getMessage() for r in caplog.records] == [
        "decode_top_k: closed, a later launch of a call failed: "
        "paperError (719) from top_k_select_kernel"
    ]


def test_the_first_kernel_of_a_call_fails_on_a_gpu():
    library = Library()
    arguments = _wide(lambda array: library.Tensor(array, device_type=ROCM))
    with Double(ROCM).installed() as double:
        dsv41topk.enable()
        double.fail = {1: 1}
        assert dsv41topk.decode_top_k(**arguments) is False
        assert dsv41topk.decode_top_k(**arguments) is True
        assert double.attempts == 3


def test_selection_fails_after_the_scoring_was_enqueued(caplog):
    """The two launchers of a hook count as one call."""
    with Double(CPU).installed() as double, caplog.at_level(logging.WARNING):
        dsv41topk.enable()
        double.fail = {2: 2}
        assert not takes("candidate_logits_top_k")
        assert not takes("candidate_logits_top_k")
        assert [name for name, *_ in double.launched] == ["candidate_logits_kernel"]
        assert double.attempts == 2
    assert "closed, a later launch" in caplog.text


@pytest.mark.parametrize("call", KERNELS)
def test_a_kernel_says_what_failed(call):
    _runtime.watch_launches(fail=1)
    with pytest.raises(MemoryError, match=f"{call}: out of memory"):
        getattr(dsv41topk, call)(**good(call))
    with Double(CPU).installed() as double:
        double.fail = {1: 98}
        with pytest.raises(dsv41topk.LaunchError, match=rf"{call}: paperError \(98\) from \w+"):
            getattr(dsv41topk, call)(**good(call))


def test_a_code_object_that_does_not_load():
    library = Library()
    arguments = _wide(lambda array: library.Tensor(array, device_type=ROCM, device_id=3))
    with Double(ROCM).installed() as double:
        dsv41topk.enable()
        double.load_code = 209
        assert dsv41topk.decode_top_k(**arguments) is False
        del arguments["topk_tokens"]
        with pytest.raises(dsv41topk.BuildError, match=r"paperError \(209\) from module load"):
            dsv41topk.top_k_per_row_decode_512(**arguments)
        assert double.launched == []


# ---- they never raise ----------------------------------------------------------------------------


class Vicious:
    """Raises wherever it is touched."""

    def __init__(self, error):
        self.error = error

    def _raise(self, *args, **kwargs):
        raise self.error

    __dlpack__ = __dlpack_device__ = __bool__ = __index__ = __eq__ = __repr__ = __len__ = _raise
    __hash__ = object.__hash__

    @property
    def requires_padding(self):
        raise self.error

    is_neg = shape = dtype = requires_padding


class WordlessError(Exception):
    def __str__(self):
        raise ValueError("no words")


class ViciousMeta(type):
    def __getattribute__(cls, name):
        if name == "__dict__":
            raise RuntimeError("a private matter")
        return type.__getattribute__(cls, name)


class OfViciousType(metaclass=ViciousMeta):
    pass


def _bad(rng, value):
    """Something that is wrong in the place of `value`, or might be."""
    array = value if isinstance(value, np.ndarray) else np.zeros((4, 8), np.int32)
    choices = [
        None, True, False, 0, -1, 1, 2, 7, 513, 1 << 31, 1 << 63, -(1 << 200), 10**5000, 1.5,
        float("nan"), "text", b"bytes", [1, 2], {}, object(), type, np.float32(2), np.int64(2),
        np.zeros(0), np.zeros((0, 0), np.int32), np.array("x"), array.astype(np.float16),
        array[..., None], array[None], array[::-1], array[:1], array[..., :1], array.T,
        np.asfortranarray(array), np.broadcast_to(array, array.shape),
        np.lib.stride_tricks.as_strided(array, (4, 512), (0, array.itemsize)),
        array.reshape(-1)[:0], Vicious(ValueError("no")), Vicious(MemoryError()),
        Vicious(RecursionError()), Vicious(WordlessError()), OfViciousType(), Vicious, np.ndarray,
        Decode(None),
        Lent(array, data=None), Lent(array, lanes=0), Lent(array, ndim=-1), Lent(array, ndim=70),
        Lent(array, shape=(1 << 62, 1 << 62)), Lent(array, strides=(1 << 62,) * array.ndim),
        Lent(array, shape=(-3,) * array.ndim), Lent(array, device_type=0),
        Lent(array, device_type=CUDA), Lent(array, device_type=1 << 30), Lent(array, major=9),
        Lent(array, capsule_name=b"parcel"), Lent(array, byte_offset=(1 << 64) - 1),
        Lent(array, bits=1), Lent(array, code=255),
    ]  # fmt: skip
    return rng.choice(choices)


@pytest.mark.parametrize("hook", HOOKS)
def test_thousands_of_bad_calls(hook, ready, caplog):
    """Whatever comes: a bool goes, and False means that nothing was written or launched."""
    rng = random.Random(41)
    names = list(good(hook))
    for number in range(300 if hook == "candidate_logits_top_k" else 1500):
        arguments = good(hook)
        written = outputs(hook, arguments)
        bad = rng.sample(names, rng.choice((1, 1, 1, 2, 3)))
        arguments |= {name: _bad(rng, arguments[name]) for name in bad}
        before = [array.copy() for array in written]
        # Skipped, since some of these are taken, with memory that is a lie.
        _runtime.watch_launches(skip=True)
        answer = getattr(dsv41topk, hook)(**arguments)
        assert answer is True or answer is False, f"call {number}, {bad}"
        if answer is False:
            assert _runtime.launches() == 0, f"call {number}, {bad}"
        assert all(np.array_equal(a, b) for a, b in zip(written, before, strict=True))
    assert takes_after_all(hook)


def takes_after_all(hook):
    _runtime.watch_launches()
    return takes(hook)


@pytest.mark.parametrize("hook", HOOKS)
def test_bad_calls_with_counting_on(hook, ready):
    """The reasons are put into words then, which must not raise either."""
    _runtime.count_calls()
    _runtime.watch_launches(skip=True)
    rng = random.Random(42)
    names = list(good(hook))
    for _ in range(300):
        arguments = good(hook)
        name = rng.choice(names)
        arguments[name] = _bad(rng, arguments[name])
        assert isinstance(getattr(dsv41topk, hook)(**arguments), bool)
    counted = _runtime.call_counts()[hook]
    assert sum(counted.values()) == 300
    assert len(counted) <= 65


def test_an_interrupt_goes_through(ready):
    """Declining would swallow the user's Ctrl-C."""
    arguments = good("decode_top_k") | {"logits": Vicious(KeyboardInterrupt())}
    with pytest.raises(KeyboardInterrupt):
        dsv41topk.decode_top_k(**arguments)
    assert takes("decode_top_k")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_wrong_number_of_arguments_is_a_type_error(hook, ready):
    """That is a caller's bug, and not a call: Python's own answer stands."""
    with pytest.raises(TypeError):
        getattr(dsv41topk, hook)()
    with pytest.raises(TypeError):
        getattr(dsv41topk, hook)(**good(hook), more=1)


# ---- counters and the recorder -------------------------------------------------------------------


def test_counters():
    assert _runtime.call_counts() == {}
    dsv41topk.enable()
    assert takes("decode_top_k")
    assert _runtime.call_counts() == {}, "off by default"
    _runtime.count_calls()
    assert takes("decode_top_k")
    assert takes("decode_top_k")
    assert not takes("decode_top_k", next_n=0)
    assert not takes("select_candidates", logits="text")
    assert takes("skip_decode_fill")
    dsv41topk.disable()
    assert not takes("decode_top_k")
    assert _runtime.call_counts() == {
        "decode_top_k": {"taken": 2, "next_n must be at least 1, got 0": 1, "off": 1},
        "select_candidates": {"logits must be a tensor with __dlpack__, got str": 1},
        "skip_decode_fill": {"taken": 1},
    }
    _runtime.count_calls(False)
    dsv41topk.enable()
    assert takes("decode_top_k")
    assert _runtime.call_counts()["decode_top_k"]["taken"] == 2, "kept, and not counted on"
    _runtime.count_calls()
    assert _runtime.call_counts() == {}


class _Recorder(ModuleType):
    def __init__(self):
        super().__init__("dsv41topk.record")
        self.calls = []

    def on_call(self, hook, **arguments):
        self.calls.append((hook, arguments))


@pytest.fixture
def recorder(monkeypatch):
    recorder = _Recorder()
    monkeypatch.setitem(sys.modules, "dsv41topk.record", recorder)
    monkeypatch.setattr(dsv41topk, "record", recorder, raising=False)
    monkeypatch.setenv("DSV41TOPK_RECORD", "somewhere")
    return recorder


@pytest.mark.parametrize("hook", TENSOR_HOOKS)
def test_taken_calls_are_recorded(hook, recorder):
    _runtime.reset()
    dsv41topk.enable()
    arguments = good(hook)
    assert getattr(dsv41topk, hook)(*arguments.values()) is True
    assert getattr(dsv41topk, hook)(*[None] * len(arguments)) is False
    ((name, recorded),) = recorder.calls
    assert name == hook
    assert list(recorded) == list(arguments)
    assert all(recorded[key] is value for key, value in arguments.items())


def test_a_recorder_that_fails_changes_no_answer(recorder, monkeypatch):
    monkeypatch.setattr(recorder, "on_call", None)
    _runtime.reset()
    dsv41topk.enable()
    assert takes("decode_top_k")


def test_nothing_is_recorded_without_the_switch(recorder, monkeypatch):
    monkeypatch.delenv("DSV41TOPK_RECORD")
    _runtime.reset()
    dsv41topk.enable()
    assert takes("decode_top_k")
    assert recorder.calls == []


# ---- threads -------------------------------------------------------------------------------------


def in_threads(count, body):
    """Run `body(number)` in threads that start at once; raise what one of them raised."""
    errors, barrier = [], threading.Barrier(count)

    def run(number):
        barrier.wait()
        try:
            body(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_two_threads_call(ready):
    expected = good(KERNELS[0])
    dsv41topk.top_k_per_row_decode_512(**expected)

    def call(number):
        library = Library()
        for _ in range(100):
            arguments = good("decode_top_k")
            if number:
                arguments["logits"] = library.Tensor(arguments["logits"])
            assert dsv41topk.decode_top_k(**arguments)
            assert np.array_equal(arguments["indices"], expected["indices"])

    in_threads(2, call)


def test_threads_that_build_at_once(monkeypatch):
    calls = []
    provide = _build.provide

    def slow(*arguments):
        calls.append(arguments)
        threading.Event().wait(0.1)
        return provide(*arguments)

    monkeypatch.setattr(_build, "provide", slow)
    dsv41topk.enable()
    answers = []
    in_threads(4, lambda number: answers.append(takes(TENSOR_HOOKS[number])))
    assert answers == [True] * 4
    assert len(calls) == 1


def test_one_thread_switches_while_another_calls(ready):
    """A call is taken as a whole, or not at all."""

    def body(number):
        for turn in range(200):
            if number:
                (dsv41topk.disable if turn % 2 else dsv41topk.enable)()
            else:
                takes("decode_top_k")

    in_threads(2, body)
