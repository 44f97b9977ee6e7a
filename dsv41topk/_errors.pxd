# SPDX-License-Identifier: Apache-2.0
"""Why a call was not taken."""

from dsv41topk._tensor cimport Call

# 0 is never an answer: a `noexcept` function that fails returns it.
cdef enum Answer:
    UNCHECKED = 0
    ACCEPTED = 1

    # What was wrong with an argument; the rest is in the Call.
    REJECT_TYPE  # no DLPack
    REJECT_LENDING  # its __dlpack__ raised
    REJECT_USED  # a capsule that was taken before
    REJECT_VERSION
    REJECT_READ_ONLY
    REJECT_COPY
    REJECT_NULL
    REJECT_NEGATIVE_BIT
    REJECT_ALIGNMENT
    REJECT_DTYPE
    REJECT_RANK
    REJECT_DEVICE
    REJECT_DEVICE_MIX
    REJECT_SIZE  # a shape that must be one number
    REJECT_SIZE_LOW
    REJECT_SIZE_HIGH
    REJECT_SIZE_MULTIPLE
    REJECT_HEADS
    REJECT_STRIDE
    REJECT_STRIDE_LOW
    REJECT_STRIDE_MULTIPLE
    REJECT_ENDS
    REJECT_OVERLAP
    REJECT_INTEGER
    REJECT_LOW
    REJECT_HIGH

    # Hooks only: calls of another kind than they are made for.
    REJECT_TOP_K
    REJECT_SLOTS
    REJECT_OTHER_LOGITS
    REJECT_PADDING
    REJECT_PREFILL
    REJECT_NO_DECODE
    REJECT_ROWS

    # Not the arguments' fault.
    NO_STREAM
    NO_SCRATCH
    NO_LOGITS_KERNEL
    NOT_DURING_CAPTURE
    LAUNCH_FAILED
    LATER_LAUNCH_FAILED
    HOOK_OFF
    RAISED


cdef str told(object error)
cdef str reason(int answer, Call* call)
cdef object exception(str call_name, int answer, Call* call)
