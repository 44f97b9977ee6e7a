# SPDX-License-Identifier: Apache-2.0
"""The package's state, and the launches: the only module that the C sources are linked into."""

from dsv41topk._abi cimport Dsv41CandidateLogitsArgs, Dsv41CompactTopKArgs, Dsv41Failure
from dsv41topk._tensor cimport Call

cdef enum Hook:
    DECODE_TOP_K
    CANDIDATE_TOP_K
    CANDIDATE_LOGITS_TOP_K
    SELECT_CANDIDATES
    SKIP_DECODE_FILL
    HOOKS

cdef enum Launcher:
    TOP_K
    CANDIDATE_TOP_K_512
    COMPACT_TOP_K
    CANDIDATE_BLOCKS

# The device type that a hook serves, 0 while it is off or closed. Builds when nobody has yet.
cdef int gate(int hook) except -1

# ACCEPTED once all is enqueued (on the CPU: done); else nothing was, but for LATER_LAUNCH_FAILED.
cdef int run(Launcher launcher, const void* args, Call* call, Dsv41Failure* failure) except -1
cdef int run_candidate_logits(
    const Dsv41CandidateLogitsArgs* args, Call* call, Dsv41Failure* failure
) except -1
cdef int run_candidate_logits_top_k(
    Dsv41CandidateLogitsArgs* args, Dsv41CompactTopKArgs* select, Call* call,
    Dsv41Failure* failure
) except -1

cdef bint watching() noexcept
cdef bint recording() noexcept
cdef int note(int hook, int answer, Call* call) except -1
cdef int failed(int hook, int answer, const Dsv41Failure* failure) except -1
cdef int lacking(int hook, int answer, Call* call) except -1
cdef int raised(int hook, object error) except -1
cdef object launch_exception(str call_name, const Dsv41Failure* failure)
cdef object logits_exception(str call_name, int answer, const Call* call)
