# SPDX-License-Identifier: Apache-2.0
"""What `build()` made ready, which hooks are open, and the launches.

The state goes from UNBUILT to READY or CLOSED once. The hot path reads it without a lock: one
number for each hook, recomputed under the lock whenever something that it depends on changes.
"""

import logging
import sys
import threading

from dsv41topk import _build, _env, _tensor
from dsv41topk._errors import LaunchError

from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memset

from dsv41topk._abi cimport (
    DSV41_NO_MEMORY,
    Dsv41CandidateLogitsArgs,
    Dsv41CompactTopKArgs,
    Dsv41Device,
    Dsv41Failure,
    Dsv41LogitsKernel,
    Dsv41Runtime,
    dsv41_candidate_logits,
    dsv41_cpu_candidate_logits,
    dsv41_device_load,
    dsv41_error_text,
    dsv41_logits_launch,
    dsv41_logits_load,
    dsv41_logits_serves,
    dsv41_runtime_find,
)
from dsv41topk._atomic cimport add_int, load_int, load_pointer, store_int, store_pointer
from dsv41topk._errors cimport (
    ACCEPTED,
    HOOK_OFF,
    LATER_LAUNCH_FAILED,
    LAUNCH_FAILED,
    NO_LOGITS_KERNEL,
    NOT_DURING_CAPTURE,
    RAISED,
    reason,
    told,
)
from dsv41topk._tensor cimport (
    CPU,
    ROCM,
    Call,
    Scratch,
    current_stream,
    free_scratch,
    keep_error,
    take_scratch,
)


cdef extern from *:
    """
    /* A call's kernel on the CPU, its launcher, and the launcher's need of scratch. */
    typedef struct Dsv41Entry {
      int (*cpu)(const void* args);
      size_t (*scratch_bytes)(const Dsv41Device* device, const void* args);
      int (*launch)(const Dsv41Device* device, void* stream, void* scratch, const void* args,
                    Dsv41Failure* failure);
    } Dsv41Entry;

    #define DSV41_DEFINE(call, Args)                                                            \\
      static int call##_cpu(const void* args) { return dsv41_cpu_##call((const Args*)args); }   \\
      static size_t call##_scratch(const Dsv41Device* device, const void* args) {               \\
        return dsv41_##call##_scratch_bytes(device, (const Args*)args);                         \\
      }                                                                                         \\
      static int call##_launch(const Dsv41Device* device, void* stream, void* scratch,          \\
                               const void* args, Dsv41Failure* failure) {                       \\
        return dsv41_##call(device, stream, scratch, (const Args*)args, failure);               \\
      }
    DSV41_DEFINE(top_k, Dsv41TopKArgs)
    DSV41_DEFINE(candidate_top_k, Dsv41CandidateTopKArgs)
    DSV41_DEFINE(compact_top_k, Dsv41CompactTopKArgs)
    DSV41_DEFINE(candidate_blocks, Dsv41CandidateBlocksArgs)

    /* In the order of Launcher in _runtime.pxd. */
    #define DSV41_ENTRY(call) {call##_cpu, call##_scratch, call##_launch}
    static const Dsv41Entry dsv41_entries[] = {
        DSV41_ENTRY(top_k),
        DSV41_ENTRY(candidate_top_k),
        DSV41_ENTRY(compact_top_k),
        DSV41_ENTRY(candidate_blocks),
    };
    """
    ctypedef struct Entry "Dsv41Entry":
        int (*cpu)(const void* args) noexcept nogil
        size_t (*scratch_bytes)(const Dsv41Device* device, const void* args) noexcept nogil
        int (*launch)(
            const Dsv41Device* device, void* stream, void* scratch, const void* args,
            Dsv41Failure* failure
        ) noexcept nogil
    const Entry* entries "dsv41_entries"


cdef object logger = logging.getLogger("dsv41topk")
cdef object lock = threading.RLock()

HOOK_NAMES = (
    "decode_top_k",
    "candidate_top_k",
    "candidate_logits_top_k",
    "select_candidates",
    "skip_decode_fill",
)


# ---- state ---------------------------------------------------------------------------------------

cdef enum State:
    UNBUILT
    READY
    CLOSED

cdef enum:
    SHUT = 0
    ASK = -2  # the follower must be asked, or nothing is built yet, or closed hooks are counted

cdef enum:
    COUNTS = 1
    RECORDS = 2

cdef int state = UNBUILT
cdef bint is_on = _env.enable()
cdef object follower = None  # says whether the hooks are on, in place of is_on
cdef object why_closed = None
cdef object served = None  # what _build provided
cdef int served_device = CPU
cdef int gates[HOOKS]  # a device type, SHUT or ASK
cdef bint hook_closed[HOOKS]
cdef bint hook_has_logged[HOOKS]
cdef int watch = RECORDS if _env.record() else 0  # whether calls are counted or recorded


cdef int set_gates() except -1:
    """Recompute what the hot path reads. The caller holds the lock."""
    cdef int hook, value
    for hook in range(HOOKS):
        if state == CLOSED or hook_closed[hook]:
            value = SHUT
        elif follower is not None:
            value = ASK
        elif not is_on:
            value = SHUT
        else:
            value = served_device if state == READY else ASK
        if value == SHUT and watch & COUNTS:
            value = ASK
        store_int(&gates[hook], value)
    return 0


cdef int gate(int hook) except -1:
    cdef int value = load_int(&gates[hook])
    return value if value != ASK else ask(hook)


cdef int ask(int hook) except -1:
    try:
        if enabled() and build() and not hook_closed[hook]:
            return served_device
        note(hook, HOOK_OFF, NULL)
    except Exception as error:  # the follower's
        raised(hook, error)
    return SHUT


def enable():
    """Turn the hooks on."""
    global is_on
    with lock:
        is_on = True
        set_gates()


def disable():
    """Turn the hooks off. Kernels called directly work all the same."""
    global is_on
    with lock:
        is_on = False
        set_gates()


def enabled():
    """Return whether the hooks are on; they take calls if `build()` is true as well."""
    ask_whom = follower
    return is_on if ask_whom is None else bool(ask_whom())


def follow(callback):
    """Let `callback()` say whether the hooks are on; None: `enable` and `disable` again."""
    global follower
    with lock:
        follower = callback
        set_gates()


def backend():
    """Return the name of the backend that `build()` made ready, or None."""
    return served.backend if state == READY else None


def build_error():
    """Return why the hooks are closed, or None."""
    return why_closed


def describe():
    """Return a line for the log: version, backend, code object, check of candidate logits."""
    from dsv41topk import __version__

    if state != READY:
        return f"dsv41topk {__version__}: {why_closed or 'not built yet'}"
    text = f"dsv41topk {__version__}, {served.backend} backend on {served.arch}"
    if served.image is not None:
        text += f", code object {served.source} in {served.seconds:.2f} s"
    if served.path is not None:
        text += f" ({served.path})"
    if served.note:
        text += f"; {served.note}"
    logits = sys.modules.get("dsv41topk._logits")
    return text if logits is None else f"{text}; candidate logits: {logits.status()}"


# ---- the GPU -------------------------------------------------------------------------------------

cdef enum:
    MOST_DEVICES = 64

cdef const Dsv41Runtime* runtime = NULL  # set once
cdef object image = None  # bytes; holds the code object for devices that are loaded later
cdef object gpu_error = None
cdef Dsv41Device devices[MOST_DEVICES]
cdef int device_loaded[MOST_DEVICES]
cdef bint double_on_cpu = False
cdef bint logits_by_triton = False


cdef object words(const Dsv41Failure* failure):
    text = dsv41_error_text(runtime, failure.code).decode(errors="replace")
    kernel = failure.kernel.decode() if failure.kernel != NULL else "a kernel"
    return f"{text} ({failure.code}) from {kernel}"


def device_arch(str name):
    """Return the architecture of the current device of `hip` or `cuda`; raises LookupError."""
    cdef char text[512]
    cdef int device = 0
    cdef int code
    cdef bytes encoded = name.encode()
    cdef const char* wanted = encoded
    cdef const Dsv41Runtime* found
    with nogil:  # asking for devices can take seconds
        found = dsv41_runtime_find(wanted, text, sizeof(text))
    if found == NULL:
        raise LookupError(text.decode(errors="replace"))
    device = current_device(found)
    code = found.arch(device, text, sizeof(text))
    if code != 0:
        error = dsv41_error_text(found, code).decode(errors="replace")
        raise LookupError(f"{error} ({code}) from the query of device {device}'s architecture")
    return text.decode(errors="replace")


cdef int current_device(const Dsv41Runtime* table) except? -1:
    """The thread's device; the first one where the thread has no context yet."""
    cdef int device = 0
    return device if table.current_device(&device) == 0 and device >= 0 else 0


cdef int start(object provided) except -1:
    """Take a code object into use. The caller holds the lock."""
    global image
    cdef char text[512]
    cdef bytes name = provided.backend.encode()
    cdef const Dsv41Runtime* found = dsv41_runtime_find(name, text, sizeof(text))
    if found == NULL:
        raise _build.BuildError(text.decode(errors="replace"))
    if runtime == NULL:
        image = provided.image
        store_pointer(<const void**> &runtime, found)
    return 0


cdef int need_gpu(int device_type) except -1:
    """Have the code object for GPU tensors of that type; for calls that `build()` did not serve."""
    global gpu_error
    if load_pointer(<const void**> &runtime) == NULL:
        with lock:
            if gpu_error is not None:
                raise _build.BuildError(gpu_error)
            if runtime == NULL:
                try:
                    start(_build.provide("hip" if device_type == ROCM else "cuda", device_arch))
                except _build.BuildError as error:
                    gpu_error = str(error)
                    raise
    if runtime.dlpack_device != device_type:
        name = runtime.name.decode()
        raise _build.BuildError(f"this process runs on {name}, and the tensors are of another GPU")
    return 0


cdef const Dsv41Device* device(int ordinal) except NULL:
    if 0 <= ordinal < MOST_DEVICES and load_int(&device_loaded[ordinal]):
        return &devices[ordinal]
    return load_device(ordinal)


cdef const Dsv41Device* load_device(int ordinal) except NULL:
    cdef Dsv41Failure failure
    cdef const char* code_object
    if not 0 <= ordinal < MOST_DEVICES:
        raise _build.BuildError(f"device {ordinal} is beyond the {MOST_DEVICES} that are served")
    with lock:
        if not device_loaded[ordinal]:
            code_object = image
            with nogil:
                dsv41_device_load(runtime, ordinal, code_object, &devices[ordinal], &failure)
            if failure.code != 0:
                raise _build.BuildError(words(&failure))
            store_int(&device_loaded[ordinal], 1)
    return &devices[ordinal]


# ---- build ---------------------------------------------------------------------------------------

def build():
    """Build or load the kernels once; return whether they are there.

    A failure logs one warning and holds for the rest of the process.
    """
    global state, why_closed, served, served_device, gpu_error
    if load_int(&state) != UNBUILT:
        return state == READY
    with lock:
        if state != UNBUILT:
            return state == READY
        try:
            provided = _build.provide(_env.backend(), device_arch)
            if provided.image is not None:
                start(provided)
                device(current_device(runtime))  # now, and not inside a graph capture
                served_device = runtime.dlpack_device
                _tensor.test_streams(served_device, current_device(runtime))
            else:
                served_device = CPU
            served = provided
            store_int(&state, READY)
        except Exception as error:
            why_closed = str(error) if isinstance(error, _build.BuildError) else told(error)
            if _env.backend() != "cpu":
                gpu_error = why_closed
            store_int(&state, CLOSED)
            logger.warning("dsv41topk is closed, nothing was built: %s", why_closed)
        finally:
            set_gates()
        return state == READY


# ---- launches ------------------------------------------------------------------------------------

# For tests and the bench of the hooks: how launches are counted, left out, or made to fail.
cdef bint launches_watched = False
cdef bint launches_skipped = False
cdef int launch_count = 0
cdef int failing_launch = 0
cdef int launched_before_failure = 0


cdef bint intercepted(Dsv41Failure* failure) noexcept nogil:
    """Count a call's launch, and stand in for it where a test wants that."""
    cdef int number = add_int(&launch_count, 1)
    if number == failing_launch:
        failure.code = DSV41_NO_MEMORY
        failure.kernel = "a test"
        failure.launched = launched_before_failure
        return True
    return launches_skipped


cdef inline void clear(Dsv41Failure* failure) noexcept:
    failure.code = 0
    failure.kernel = NULL
    failure.launched = 0


cdef inline int outcome(const Dsv41Failure* failure) noexcept:
    if failure.code == 0:
        return ACCEPTED
    return LAUNCH_FAILED if failure.launched == 0 else LATER_LAUNCH_FAILED


cdef inline bint runs_on_cpu(const Call* call) noexcept:
    return call.device_type == CPU and not double_on_cpu


cdef int run(Launcher launcher, const void* args, Call* call, Dsv41Failure* failure) except -1:
    cdef const Entry* entry = &entries[<int> launcher]
    cdef const Dsv41Device* on
    cdef void* stream = NULL
    cdef Scratch scratch
    cdef int answer
    clear(failure)
    if runs_on_cpu(call):
        with nogil:
            if not launches_watched or not intercepted(failure):
                failure.code = entry.cpu(args)
        return outcome(failure)
    on = open_device(call)
    answer = open_stream(call, &stream)
    if answer != ACCEPTED:
        return answer
    answer = take_scratch(call, entry.scratch_bytes(on, args), &scratch)
    if answer != ACCEPTED:
        return answer
    with nogil:
        if not launches_watched or not intercepted(failure):
            entry.launch(on, stream, scratch.data, args, failure)
    free_scratch(&scratch)
    return outcome(failure)


cdef inline const Dsv41Device* open_device(Call* call) except NULL:
    if not (double_on_cpu and call.device_type == CPU):
        need_gpu(call.device_type)
    return device(call.device_id)


cdef inline int open_stream(Call* call, void** stream) except -1:
    # A table's answer for the CPU looks like the default stream of a GPU.
    return ACCEPTED if call.device_type == CPU else current_stream(call, stream)


# ---- candidate logits ----------------------------------------------------------------------------

cdef enum:
    MOST_LOGITS_KERNELS = 32
    TILE_SLOTS = 128  # TILE in _logits.py

cdef enum By:
    BY_C
    BY_TRITON
    BY_NOBODY

# One answer of _logits.prepare; see there for the key.
cdef struct LogitsChoice:
    int ordinal
    int heads
    int page_size
    int block_size
    bint ends_per_row
    By by
    Dsv41LogitsKernel kernel

# Appended to under the lock, and never changed: read without it.
cdef LogitsChoice logits_choices[MOST_LOGITS_KERNELS]
cdef int logits_choice_count = 0
cdef dict triton_launchers = {}  # position -> Triton's own launcher


cdef int choose_logits(
    const Dsv41CandidateLogitsArgs* args, Call* call, const LogitsChoice** choice
) except -1:
    """Find the compiled kernel for a call; the first of its kind has it compiled and compared."""
    cdef int i
    cdef LogitsChoice wanted
    if not dsv41_logits_serves(args):
        keep_error(ValueError("q, cache or pages are not aligned to 16 bytes, or too many"), call)
        return NO_LOGITS_KERNEL
    memset(&wanted, 0, sizeof(wanted))
    wanted.ordinal = call.device_id
    wanted.heads = args.heads
    wanted.page_size = args.page_size
    wanted.block_size = args.block_size
    wanted.ends_per_row = not args.ends.draft
    i = find_choice(&wanted)
    if i < 0:
        i = prepare_logits(&wanted)
        if i < 0:
            return NOT_DURING_CAPTURE
    choice[0] = &logits_choices[i]
    return NO_LOGITS_KERNEL if choice[0].by == BY_NOBODY else ACCEPTED


cdef int find_choice(const LogitsChoice* wanted) noexcept:
    cdef const LogitsChoice* kept
    for i in range(load_int(&logits_choice_count)):
        kept = &logits_choices[i]
        if (
            kept.ordinal == wanted.ordinal
            and kept.heads == wanted.heads
            and kept.page_size == wanted.page_size
            and kept.block_size == wanted.block_size
            and kept.ends_per_row == wanted.ends_per_row
        ):
            return i
    return -1


cdef int prepare_logits(LogitsChoice* wanted) except? -1:
    """Ask _logits, and keep its answer; -1 when it can have none now."""
    cdef Dsv41Failure failure
    cdef int i
    cdef bytes code_object, name
    from dsv41topk import _logits

    plan = _logits.prepare(
        wanted.ordinal, wanted.heads, wanted.page_size, wanted.block_size,
        bool(wanted.ends_per_row),
    )
    if plan is _logits.Refused.NOT_NOW:
        return -1
    wanted.by = BY_NOBODY
    if isinstance(plan, _logits.Plan):
        wanted.by = BY_C if plan.launch is None else BY_TRITON
        if plan.launch is None:
            code_object, name = plan.image, plan.name.encode()
            if dsv41_logits_load(
                runtime, wanted.ordinal, <const char*> code_object, name, plan.threads,
                plan.lds_bytes, &wanted.kernel, &failure,
            ) != 0:
                wanted.by = BY_NOBODY
                logger.warning("candidate_logits_top_k is closed: %s", words(&failure))
    with lock:
        i = find_choice(wanted)
        if i < 0:
            i = logits_choice_count
            if i == MOST_LOGITS_KERNELS:
                raise _build.BuildError(f"more than {i} shapes of candidate logits")
            if wanted.by == BY_TRITON:
                triton_launchers[i] = plan.launch
            logits_choices[i] = wanted[0]
            store_int(&logits_choice_count, i + 1)
    return i


cdef int launch_logits(
    const LogitsChoice* choice, const Dsv41Device* on, void* stream,
    const Dsv41CandidateLogitsArgs* args, Dsv41Failure* failure
) except -1:
    """Enqueue the scoring: of Triton's kernel, or of the plain one where there is no choice."""
    clear(failure)
    if choice != NULL and choice.by == BY_TRITON:
        if not launches_watched or not intercepted(failure):
            launch_by_triton(triton_launchers[choice - logits_choices], stream, args)
            failure.launched = 1
        return 0
    with nogil:
        if not launches_watched or not intercepted(failure):
            if choice != NULL:
                dsv41_logits_launch(&choice.kernel, stream, args, failure)
            else:
                dsv41_candidate_logits(on, stream, args, failure)
    return 0


cdef int launch_by_triton(
    object launch, void* stream, const Dsv41CandidateLogitsArgs* args
) except -1:
    """Pass the arguments in the order of SIGNATURE in _logits.py, as csrc/logits.c does."""
    cdef int64_t row_slots = <int64_t> args.slots * args.block_size
    if args.rows == 0 or row_slots == 0:
        return 0
    launch(
        args.rows, -(-row_slots // TILE_SLOTS), <uintptr_t> stream,
        <uintptr_t> args.q, <uintptr_t> args.kv_cache, args.page_stride_bytes,
        <uintptr_t> args.kv_cache + <uintptr_t> args.page_size * 128, args.pages,
        <uintptr_t> args.ends.lens, args.rows_per_request,
        <uintptr_t> args.block_table, args.block_table_stride,
        min(<int64_t> args.table_columns * args.page_size, <int64_t> 0x7FFFFFFF),
        <uintptr_t> args.candidates, args.candidates_stride,
        <uintptr_t> args.weights, args.weights_stride,
        <uintptr_t> args.out_logits, <uintptr_t> args.out_ids, row_slots,
    )
    return 0


cdef inline bint needs_triton(const Call* call) noexcept:
    return call.device_type == ROCM or logits_by_triton


cdef int run_candidate_logits(
    const Dsv41CandidateLogitsArgs* args, Call* call, Dsv41Failure* failure
) except -1:
    cdef const LogitsChoice* choice = NULL
    cdef const Dsv41Device* on
    cdef void* stream = NULL
    cdef int answer
    if runs_on_cpu(call):
        clear(failure)
        with nogil:
            if not launches_watched or not intercepted(failure):
                failure.code = dsv41_cpu_candidate_logits(args)
        return outcome(failure)
    on = open_device(call)
    if needs_triton(call):
        answer = choose_logits(args, call, &choice)
        if answer != ACCEPTED:
            return answer
    answer = open_stream(call, &stream)
    if answer != ACCEPTED:
        return answer
    launch_logits(choice, on, stream, args, failure)
    return outcome(failure)


cdef int run_candidate_logits_top_k(
    Dsv41CandidateLogitsArgs* args, Dsv41CompactTopKArgs* select, Call* call,
    Dsv41Failure* failure
) except -1:
    """Score into scratch, and select from there on the same stream."""
    cdef const Entry* entry = &entries[<int> COMPACT_TOP_K]
    cdef const LogitsChoice* choice = NULL
    cdef const Dsv41Device* on = NULL
    cdef void* stream = NULL
    cdef Scratch scratch
    cdef size_t of_logits = aligned(<size_t> args.rows * select.n * 4)
    cdef size_t size = 2 * of_logits
    cdef int answer, scored
    cdef bint on_cpu = runs_on_cpu(call)
    if not on_cpu:
        on = open_device(call)
        if needs_triton(call):
            answer = choose_logits(args, call, &choice)
            if answer != ACCEPTED:
                return answer
        answer = open_stream(call, &stream)
        if answer != ACCEPTED:
            return answer
        size += entry.scratch_bytes(on, select)
    answer = take_scratch(call, size, &scratch)
    if answer != ACCEPTED:
        return answer
    args.out_logits = <float*> scratch.data
    args.out_ids = <int32_t*> (scratch.data + of_logits)
    select.logits = args.out_logits
    select.ids = args.out_ids
    try:
        if on_cpu:
            clear(failure)
            with nogil:
                if not launches_watched or not intercepted(failure):
                    failure.code = dsv41_cpu_candidate_logits(args)
                    if failure.code == 0:
                        failure.code = entry.cpu(select)
            return outcome(failure)
        launch_logits(choice, on, stream, args, failure)
        if failure.code == 0:
            scored = failure.launched
            with nogil:
                if not launches_watched or not intercepted(failure):
                    entry.launch(on, stream, scratch.data + 2 * of_logits, select, failure)
            failure.launched += scored
    finally:
        free_scratch(&scratch)
    return outcome(failure)


cdef inline size_t aligned(size_t size) noexcept:
    return (size + 255) & ~<size_t> 255


# ---- what went wrong, and who called -------------------------------------------------------------

cdef int log_once(int hook, object text) except -1:
    with lock:
        if hook_has_logged[hook]:
            return 0
        hook_has_logged[hook] = True
    try:
        logger.warning("%s: %s", HOOK_NAMES[hook], text)
    except Exception:  # a handler's: a hook does not raise for it
        pass
    return 0


cdef int failed(int hook, int answer, const Dsv41Failure* failure) except -1:
    """Log a launch that failed; after one that did not, close the hook."""
    if answer == LATER_LAUNCH_FAILED:
        with lock:
            hook_closed[hook] = True
            set_gates()
        log_once(hook, f"closed, a later launch of a call failed: {words(failure)}")
    else:
        log_once(hook, f"declined: {words(failure)}")
    return 0


cdef int lacking(int hook, int answer, Call* call) except -1:
    """Log that there is no stream, or no scratch."""
    error = f": {told(<object> call.error)}" if call.error != NULL else ""
    log_once(hook, f"declined, {reason(answer, call)}{error}")
    return 0


cdef int raised(int hook, object error) except -1:
    """Log and count an exception at the hooks' rim; return the answer that it stands for."""
    log_once(hook, f"declined: {told(error)}")
    note(hook, RAISED, NULL)
    return RAISED


cdef object launch_exception(str call_name, const Dsv41Failure* failure):
    if failure.code == DSV41_NO_MEMORY:
        return MemoryError(f"{call_name}: out of memory")
    return LaunchError(f"{call_name}: {words(failure)}")


cdef object logits_exception(str call_name, int answer, const Call* call):
    if call.error != NULL:
        return _build.BuildError(f"{call_name}: {<object> call.error}")
    if answer == NOT_DURING_CAPTURE:
        return _build.BuildError(f"{call_name}: not checked yet, which a graph capture forbids")
    logits = sys.modules.get("dsv41topk._logits")
    return _build.BuildError(f"{call_name}: {logits.status() if logits else 'no kernel'}")


cdef enum:
    MOST_REASONS = 64  # of one hook

cdef dict counts = {}


cdef bint watching() noexcept:
    return load_int(&watch) != 0


cdef bint recording() noexcept:
    return load_int(&watch) & RECORDS


cdef int note(int hook, int answer, Call* call) except -1:
    """Count a call; `call` may be NULL where no argument was refused."""
    if not load_int(&watch) & COUNTS:
        return 0
    if answer == ACCEPTED:
        why = "taken"
    elif answer == HOOK_OFF:
        why = why_closed or ("closed after a failed launch" if hook_closed[hook] else "off")
    else:
        why = reason(answer, call)
    with lock:
        of_hook = counts.setdefault(HOOK_NAMES[hook], {})
        if why not in of_hook and len(of_hook) >= MOST_REASONS:
            why = "other reasons"
        of_hook[why] = of_hook.get(why, 0) + 1
    return 0


def count_calls(on=True):
    """Start or stop counting the hooks' calls; starting forgets earlier counts."""
    global counts
    with lock:
        if on:
            counts = {}
        store_int(&watch, (watch & ~COUNTS) | (COUNTS if on else 0))
        set_gates()


def call_counts():
    """Return the calls since `count_calls()`: for each hook, "taken" or why not -> how many."""
    with lock:
        return {hook: dict(of_hook) for hook, of_hook in counts.items()}


# ---- for tests -----------------------------------------------------------------------------------

def watch_launches(skip=False, fail=0, launched_before=0):
    """Count launches from now on: of kernels on the CPU, or of a launcher on a GPU.

    Parameters
    ----------
    skip : bool
        Launch nothing, and say that all went well.
    fail : int
        The number of the launch that fails, from 1; 0 for none.
    launched_before : int
        How many kernels the failing launch says to have enqueued before.
    """
    global launches_watched, launches_skipped, launch_count, failing_launch
    global launched_before_failure
    launches_skipped, failing_launch, launched_before_failure = skip, fail, launched_before
    launch_count = 0
    launches_watched = True


def launches():
    """Return how many launches there were since `watch_launches`."""
    return launch_count


def install_double(table, code_object, triton_logits=False):
    """Put a runtime of a test's own in the place of HIP's or CUDA's, and build on it.

    Parameters
    ----------
    table : int
        Address of a Dsv41Runtime that outlives this process's tests. Where its device is the CPU,
        CPU tensors count as the device's.
    code_object : bytes
        What its `load` takes.
    triton_logits : bool
        Take candidate logits from `_logits`, as HIP does.
    """
    global image, double_on_cpu, served, served_device, logits_by_triton
    cdef const Dsv41Runtime* double = <const Dsv41Runtime*> <uintptr_t> table
    reset()
    with lock:
        image = bytes(code_object)
        store_pointer(<const void**> &runtime, double)
        device(current_device(double))
        double_on_cpu = double.dlpack_device == CPU
        logits_by_triton = triton_logits
        served_device = double.dlpack_device
        served = _build.Provided(double.name.decode(), image, "a double", "given", 0.0, None)
        store_int(&state, READY)
        set_gates()


def reset():
    """Return to the state at import, but for what is loaded on GPUs; for tests."""
    global state, is_on, follower, why_closed, served, served_device, image, gpu_error
    global double_on_cpu, logits_by_triton, logits_choice_count, launches_watched
    global launches_skipped, launch_count, failing_launch, counts
    with lock:
        store_int(&state, UNBUILT)
        is_on = _env.enable()
        follower = why_closed = served = image = gpu_error = None
        served_device = CPU
        store_pointer(<const void**> &runtime, NULL)
        double_on_cpu = logits_by_triton = False
        for i in range(MOST_DEVICES):
            store_int(&device_loaded[i], 0)
        for i in range(HOOKS):
            hook_closed[i] = hook_has_logged[i] = False
        store_int(&logits_choice_count, 0)
        triton_launchers.clear()
        launches_watched = launches_skipped = False
        launch_count = failing_launch = 0
        counts = {}
        store_int(&watch, RECORDS if _env.record() else 0)
        set_gates()
    _tensor.reset()


set_gates()
