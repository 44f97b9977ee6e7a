# SPDX-License-Identifier: Apache-2.0
"""Refusals and runtime errors in words: `{call}: {argument} must {rule}, got {value}`."""

from libc.stdint cimport int64_t

from dsv41topk._tensor cimport Call


class LaunchError(RuntimeError):
    """A kernel could not be enqueued. The text has the runtime's own name for the reason."""


cdef dict DTYPES = {0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 5: "complex"}
DTYPES.update({6: "bool", 10: "float8_e4m3fn", 11: "float8_e4m3fnuz", 12: "float8_e5m2"})
cdef dict DEVICES = {1: "cpu", 2: "cuda", 10: "rocm"}

# What each refusal says after "{argument} must ". {wanted} and {got} are numbers.
cdef dict NUMBERS = {
    REJECT_SIZE: "be {wanted}, got {got}",
    REJECT_SIZE_LOW: "be at least {wanted}, got {got}",
    REJECT_SIZE_HIGH: "be at most {wanted}, got {got}",
    REJECT_SIZE_MULTIPLE: "be a multiple of {wanted}, got {got}",
    REJECT_HEADS: "be 32 or 64, got {got}",
    REJECT_RANK: "be {wanted}, got {got}",
    REJECT_STRIDE: "be {wanted}, got {got}",
    REJECT_STRIDE_LOW: "be at least {wanted}, got {got}",
    REJECT_STRIDE_MULTIPLE: "be a multiple of {wanted}, got {got}",
    REJECT_ENDS: "hold an end for each of {wanted} rows, got {got}",
    REJECT_TOP_K: "be {wanted}, got {got}",
    REJECT_SLOTS: "hold more than {wanted} columns, got {got}",
}
cdef dict WORDS = {
    REJECT_TYPE: "be a tensor with __dlpack__, got {kind}",
    REJECT_LENDING: "lend its memory, got {error}",
    REJECT_USED: "give a new capsule, got one that was used before",
    REJECT_VERSION: "be of DLPack 1, got version {got}",
    REJECT_READ_ONLY: "be writable, got a read-only one",
    REJECT_COPY: "be lent itself, got a copy",
    REJECT_NULL: "have data, got NULL",
    REJECT_NEGATIVE_BIT: "be stored as it reads, got a lazily negated one",
    REJECT_ALIGNMENT: "start at a multiple of its elements' size, got {got} bytes past one",
    REJECT_DTYPE: "be {dtype}, got {got_dtype}",
    REJECT_DEVICE: "be on {place}, got {got_device}",
    REJECT_DEVICE_MIX: "be on {device} like the others, got {got_device}",
    REJECT_OVERLAP: "not share memory with the arguments that are read, got an overlap",
    REJECT_LOW: "be at least {wanted}, got {culprit}",
    REJECT_HIGH: "be at most {wanted}, got {culprit}",
    REJECT_INTEGER: "be an integer, got {culprit}",
    REJECT_OTHER_LOGITS: "be true, got {culprit}",
    REJECT_PADDING: "be false, got {culprit}",
    REJECT_PREFILL: "be false, got {culprit}",
    REJECT_ROWS: "be {wanted}, got {got}",
}
cdef frozenset ABOUT_THE_OBJECT = frozenset(
    (
        REJECT_TYPE, REJECT_INTEGER, REJECT_LOW, REJECT_HIGH, REJECT_OTHER_LOGITS, REJECT_PADDING,
        REJECT_PREFILL,
    )
)
cdef frozenset TYPE_ERRORS = frozenset((REJECT_TYPE, REJECT_DTYPE, REJECT_INTEGER))
cdef frozenset BUFFER_ERRORS = frozenset(
    (REJECT_LENDING, REJECT_USED, REJECT_VERSION, REJECT_READ_ONLY, REJECT_COPY)
)
cdef dict OTHERS = {
    HOOK_OFF: "off or closed",
    NO_BACKEND: "no kernels for the tensors' device",
    NO_STREAM: "no current stream",
    NO_SCRATCH: "no scratch",
    NO_LOGITS_KERNEL: "candidate logits are closed",
    NOT_DURING_CAPTURE: "candidate logits are not checked yet, and cannot be in a graph capture",
    LAUNCH_FAILED: "a launch failed",
    LATER_LAUNCH_FAILED: "a later launch failed",
    RAISED: "an unexpected exception",
}


cdef str dtype_name(int64_t packed):
    """Name a DLPack dtype: code in the lowest byte, then bits, then 16 bits of lanes."""
    cdef int code = packed & 0xFF, bits = packed >> 8 & 0xFF, lanes = packed >> 16 & 0xFFFF
    if code == 2 and bits == 16 and lanes == 1:
        return "float16"
    name = DTYPES.get(code, f"DLPack type {code} of bits ")
    if not 6 <= code <= 12:
        name += str(bits)
    return name if lanes == 1 else f"{name}x{lanes}"


cdef str device_name(int64_t packed):
    """Name a device: its type in the upper 32 bits, its number in the lower ones."""
    cdef int kind = packed >> 32, number = packed & 0x7FFFFFFF
    name = DEVICES.get(kind, f"DLPack device type {kind}")
    return name if kind == 1 else f"{name}:{number}"


cdef str shown(object value):
    """Return a short repr, which must not fail."""
    try:
        text = repr(value)
    except Exception:
        text = f"an unprintable {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


cdef str reason(int answer, Call* call):
    """Say which argument must be what: the message without the call's name."""
    cdef str argument = call.argument.decode()
    error = <object> call.error if call.error != NULL else None
    if answer in NUMBERS:
        part = call.part.decode()
        return f"{argument}{part} must " + NUMBERS[answer].format(wanted=call.wanted, got=call.got)
    values = {"got": call.got, "wanted": call.wanted}
    if answer in ABOUT_THE_OBJECT:
        values["kind"] = type(<object> call.culprit).__name__
        values["culprit"] = shown(<object> call.culprit)
    elif answer == REJECT_LENDING:
        # torch appends a stack of C++ frames.
        values["error"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    elif answer == REJECT_DTYPE:
        values["got_dtype"] = dtype_name(call.got)
        values["dtype"] = dtype_name(call.wanted) if call.wanted else "float8_e4m3fn(uz)"
    elif answer == REJECT_DEVICE:
        values["got_device"] = device_name(call.got)
        values["place"] = DEVICES[call.serves] if call.serves in DEVICES else "cpu, cuda or rocm"
    elif answer == REJECT_DEVICE_MIX:
        values["got_device"], values["device"] = device_name(call.got), device_name(call.wanted)
    return f"{argument} must " + WORDS[answer].format(**values)


cdef object exception(str call_name, int answer, Call* call):
    """Return what a kernel raises for an answer of `bind_*`, or of a stream or scratch."""
    error = <object> call.error if call.error != NULL else None
    if answer == NO_SCRATCH:
        result = MemoryError(f"{call_name}: no scratch: {error or 'out of memory'}")
    elif answer == NO_STREAM:
        result = RuntimeError(f"{call_name}: no current stream: {error}")
    else:
        text = f"{call_name}: {reason(answer, call)}"
        if answer in TYPE_ERRORS:
            result = TypeError(text)
        else:
            result = BufferError(text) if answer in BUFFER_ERRORS else ValueError(text)
    result.__cause__ = error
    return result
