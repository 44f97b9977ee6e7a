# SPDX-License-Identifier: Apache-2.0
"""Refusals and runtime errors in words: `{call}: {argument} must {rule}, got {value}`."""

from cpython.object cimport Py_TYPE
from libc.stdint cimport int32_t, int64_t

from dsv41topk._tensor cimport Call


class LaunchError(RuntimeError):
    """A kernel could not be enqueued. The text has the runtime's own name for the reason."""


cdef dict DTYPES = {0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 5: "complex"}
DTYPES.update({6: "bool", 10: "float8_e4m3fn", 11: "float8_e4m3fnuz", 12: "float8_e5m2"})
cdef dict DEVICES = {1: "cpu", 2: "cuda", 10: "rocm"}

# Refusals: a name, and what the message says after "{argument} must ".
cdef dict RULES = {
    REJECT_TYPE: ("type", "be a tensor with __dlpack__, got {kind}"),
    REJECT_LENDING: ("lending", "lend its memory, got {error}"),
    REJECT_USED: ("used", "give a new capsule, got one that was used before"),
    REJECT_VERSION: ("version", "be of DLPack 1, got version {got}"),
    REJECT_READ_ONLY: ("read only", "be writable, got a read-only one"),
    REJECT_COPY: ("copy", "be lent itself, got a copy"),
    REJECT_NULL: ("NULL", "have data, got NULL"),
    REJECT_NEGATIVE_BIT: ("negative bit", "be stored as it reads, got a lazily negated one"),
    REJECT_ALIGNMENT: ("alignment", "start at a multiple of {wanted} bytes, got {got} past one"),
    REJECT_DTYPE: ("dtype", "be {dtype}, got {got_dtype}"),
    REJECT_RANK: ("rank", "be {rank}, got {got}"),
    REJECT_DEVICE: ("device", "be on {places}, got {got_device}"),
    REJECT_DEVICE_MIX: ("device mix", "be on {device} like the others, got {got_device}"),
    REJECT_SIZE: ("size", "be {wanted}, got {got}"),
    REJECT_SIZE_LOW: ("size low", "be at least {wanted}, got {got}"),
    REJECT_SIZE_HIGH: ("size high", "be at most {wanted}, got {got}"),
    REJECT_SIZE_MULTIPLE: ("size multiple", "be a multiple of {wanted}, got {got}"),
    REJECT_HEADS: ("heads", "be 32 or 64, got {got}"),
    REJECT_STRIDE: ("stride", "be {wanted}, got {got}"),
    REJECT_STRIDE_LOW: ("stride low", "be at least {wanted}, got {got}"),
    REJECT_STRIDE_MULTIPLE: ("stride multiple", "be a multiple of {wanted}, got {got}"),
    REJECT_ENDS: ("ends", "hold an end for each of {wanted} rows, got {got}"),
    REJECT_OVERLAP: ("overlap", "share no memory with what is read, got an overlap"),
    REJECT_INTEGER: ("integer", "be an integer, got {culprit}"),
    REJECT_LOW: ("low", "be at least {wanted}, got {culprit}"),
    REJECT_HIGH: ("high", "be at most {wanted}, got {culprit}"),
    REJECT_TOP_K: ("top k", "be {wanted}, got {got}"),
    REJECT_SLOTS: ("slots", "hold more than {wanted} columns, got {got}"),
    REJECT_OTHER_LOGITS: ("other logits", "be true, got {culprit}"),
    REJECT_PADDING: ("padding", "be false, got {culprit}"),
    REJECT_PREFILL: ("prefill", "be false, got {culprit}"),
    REJECT_NO_DECODE: ("no decode", "be there, got None"),
    REJECT_ROWS: ("rows", "be {wanted}, got {got}"),
}
# What only a hook refuses: a kernel has no such argument, or takes any.
cdef frozenset HOOKS_ONLY = frozenset(
    (
        REJECT_TOP_K, REJECT_SLOTS, REJECT_OTHER_LOGITS, REJECT_PADDING, REJECT_PREFILL,
        REJECT_NO_DECODE, REJECT_ROWS,
    )
)
cdef frozenset TYPE_ERRORS = frozenset((REJECT_TYPE, REJECT_DTYPE, REJECT_INTEGER))
cdef frozenset BUFFER_ERRORS = frozenset(
    (REJECT_LENDING, REJECT_USED, REJECT_VERSION, REJECT_READ_ONLY, REJECT_COPY)
)
cdef dict OTHERS = {
    NO_STREAM: "no current stream",
    NO_SCRATCH: "no scratch",
    NO_LOGITS_KERNEL: "candidate logits have no kernel for it",
    NOT_DURING_CAPTURE: "candidate logits are not checked yet, which a graph capture forbids",
    LAUNCH_FAILED: "a launch failed",
    LATER_LAUNCH_FAILED: "a later launch failed",
    RAISED: "an exception",
}


def rules():
    """Return every refusal for the tests: name -> (rule, whether only a hook refuses so)."""
    return {name: (rule, answer in HOOKS_ONLY) for answer, (name, rule) in RULES.items()}


cdef str dtype_name(int64_t packed):
    """Name a DLPack dtype: code in the lowest byte, then bits, then 16 bits of lanes."""
    cdef int code = packed & 0xFF, bits = packed >> 8 & 0xFF, lanes = packed >> 16 & 0xFFFF
    name = DTYPES.get(code, f"DLPack type {code} of {bits} bits")
    if code <= 5:
        name += str(bits)
    return name if lanes == 1 else f"{name}x{lanes}"


cdef str device_name(int64_t packed):
    """Name a device: its type in the upper 32 bits, its number in the lower ones."""
    cdef int32_t kind = packed >> 32, number = <int32_t> packed
    name = DEVICES.get(kind, f"DLPack device type {kind}")
    return name if kind == 1 else f"{name}:{number}"


cdef str kind_of(object value):
    """Name an object's type without asking its metaclass."""
    return Py_TYPE(value).tp_name.decode(errors="replace").rpartition(".")[2]


cdef str shown(object value):
    """Return a short repr, which must not fail."""
    try:
        text = repr(value)
    except Exception:
        text = f"an unprintable {kind_of(value)}"
    return text if len(text) <= 60 else text[:57] + "..."


cdef str told(object error):
    """Return type and first line of an exception, which must not fail; torch adds C++ frames."""
    try:
        text = str(error).partition("\n")[0]
    except Exception:
        text = "unprintable"
    return f"{kind_of(error)}: {text}"


cdef str reason(int answer, Call* call):
    """Say which argument must be what, or what else it was: the message without the call's name."""
    if answer not in RULES:
        return OTHERS[answer]
    _, rule = RULES[answer]
    values = {
        "wanted": call.wanted,
        "got": call.got,
        "rank": "1 or 2" if call.wanted < 0 else call.wanted,
        "got_dtype": dtype_name(call.got),
        "dtype": dtype_name(call.wanted) if call.wanted else "float8_e4m3fn or float8_e4m3fnuz",
        "got_device": device_name(call.got),
        "device": device_name(call.wanted),
        "places": DEVICES.get(call.serves, "cpu, cuda or rocm"),
    }
    if call.culprit != NULL:
        values["kind"] = kind_of(<object> call.culprit)
        values["culprit"] = shown(<object> call.culprit)
    if call.error != NULL:
        values["error"] = told(<object> call.error)
    return f"{call.argument.decode()}{call.part.decode()} must {rule.format(**values)}"


cdef object exception(str call_name, int answer, Call* call):
    """Return what a kernel raises for an answer of `bind_*`, or of a stream or scratch."""
    error = <object> call.error if call.error != NULL else None
    if answer == NO_SCRATCH:
        why = told(error) if error is not None else "out of memory"
        result = MemoryError(f"{call_name}: no scratch: {why}")
    elif answer == NO_STREAM:
        result = RuntimeError(f"{call_name}: no current stream: {told(error)}")
    else:
        text = f"{call_name}: {reason(answer, call)}"
        if answer in TYPE_ERRORS:
            result = TypeError(text)
        else:
            result = BufferError(text) if answer in BUFFER_ERRORS else ValueError(text)
    result.__cause__ = error
    return result
