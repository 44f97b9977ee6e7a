# SPDX-License-Identifier: Apache-2.0
"""Borrow tensors through DLPack, and ask their library for its stream and for scratch.

A type that has DLPack's C exchange table lends a tensor in tens of nanoseconds and names its
current stream. Everything else is asked by ``__dlpack__``.
"""

import logging
import sys
import threading

from cpython.exc cimport PyErr_Occurred
from cpython.object cimport Py_TYPE, PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc

from dsv41topk._atomic cimport load_int, load_pointer, store_int, store_pointer
from dsv41topk._errors cimport (
    ACCEPTED,
    NO_SCRATCH,
    NO_STREAM,
    REJECT_COPY,
    REJECT_LENDING,
    REJECT_NEGATIVE_BIT,
    REJECT_READ_ONLY,
    REJECT_TYPE,
    REJECT_USED,
    REJECT_VERSION,
)


cdef extern from *:
    """
    typedef PyObject* (*Dsv41NoArgs)(PyObject* self, PyObject* unused);

    /* The C function of a method that takes no arguments, or NULL: calling it directly costs a
     * tenth of a method call. */
    static Dsv41NoArgs dsv41_no_args_function(PyObject* method) {
      if (!PyObject_TypeCheck(method, &PyMethodDescr_Type)) return NULL;
      PyMethodDef* definition = ((PyMethodDescrObject*)method)->d_method;
      return definition->ml_flags == METH_NOARGS ? (Dsv41NoArgs)definition->ml_meth : NULL;
    }
    """
    ctypedef object (*NoArgs "Dsv41NoArgs")(object, PyObject*)
    NoArgs no_args_function "dsv41_no_args_function"(object method) noexcept


cdef object logger = logging.getLogger("dsv41topk")
cdef object lock = threading.Lock()

cdef enum:
    MAJOR = 1  # of the DLPack that this file was written for
    MINOR = 3
    FLOAT = 2  # kDLFloat
    FLAG_READ_ONLY = 1
    FLAG_COPIED = 2
    SCRATCH_ALIGNMENT = 256

if sizeof(DLTensor) != 48 or sizeof(DLManagedTensorVersioned) != 80 or sizeof(ExchangeTable) != 56:
    raise ImportError("this platform lays out DLPack's structs in another way than dlpack.h")


# ---- what is known of a tensor type --------------------------------------------------------------

cdef struct Lender:
    PyObject* type
    const ExchangeTable* table  # NULL: ask by __dlpack__
    NoArgs is_neg  # NULL: no such method, or not one of C
    bint asks_is_neg  # there is one, but not of C

cdef enum:
    MOST_TYPES = 16  # beyond these, a type is looked up in every call

# Appended to under the lock, and never changed: read without it. A type in it lives for ever.
cdef Lender lenders[MOST_TYPES]
cdef int lender_count = 0

TABLE_NAMES = ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__")


cdef const ExchangeTable* table_of(object kind) except? NULL:
    """Return the exchange table that a type may be read through, or NULL.

    A table fits the type that it stands in, not what is derived from it: a FakeTensor inherits
    torch.Tensor's and would be lent with a NULL pointer. Of derived types only torch's Parameter,
    which is a Tensor in all but its name, is let in.
    """
    cdef object own = kind.__dict__
    cdef const ExchangeTable* table
    torch = sys.modules.get("torch")
    if torch is not None and kind is getattr(getattr(torch, "nn", None), "Parameter", None):
        own = torch.Tensor.__dict__
    for name in TABLE_NAMES:
        capsule = own.get(name)
        if PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
            table = <const ExchangeTable*> PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
            while table != NULL and table.version.major != MAJOR:
                table = table.previous
            return table
    return NULL


cdef int describe(object kind, Lender* lender) except -1:
    lender.type = <PyObject*> kind
    lender.table = table_of(kind)
    lender.is_neg = NULL
    lender.asks_is_neg = False
    method = getattr(kind, "is_neg", None)
    if method is not None:
        lender.is_neg = no_args_function(method)
        lender.asks_is_neg = lender.is_neg == NULL
    return 0


cdef int remember(object kind, Lender* lender) except -1:
    """Find out about a type, and keep it while there is room."""
    describe(kind, lender)
    with lock:
        for i in range(lender_count):
            if lenders[i].type == lender.type:
                return 0
        if lender_count < MOST_TYPES:
            Py_INCREF(kind)
            lenders[lender_count] = lender[0]
            store_int(&lender_count, lender_count + 1)
    return 0


# ---- borrowing -----------------------------------------------------------------------------------

cdef int pass_on() except -1:
    """Raise what a C function has set."""
    if PyErr_Occurred() == NULL:
        raise BufferError("the exchange table failed and did not say why")
    return -1


cdef void keep_error(object error, Call* call) noexcept:
    Py_XDECREF(call.error)
    Py_INCREF(error)
    call.error = <PyObject*> error


cdef int borrow(object tensor, bint writes, DLTensor* view, Call* call) except -1:
    """Fill `view`, whose pointers hold until `finish`; ACCEPTED or a refusal."""
    cdef PyObject* kind = <PyObject*> Py_TYPE(tensor)
    cdef Lender unknown
    cdef Lender* lender = &unknown
    cdef int i
    for i in range(load_int(&lender_count)):
        if lenders[i].type == kind:
            lender = &lenders[i]
            break
    else:
        try:
            remember(<object> kind, &unknown)
        except Exception as error:  # a metaclass can do anything
            keep_error(error, call)
            return REJECT_LENDING
    if call.producer == NULL:
        call.producer = <PyObject*> tensor
    if lender.table == NULL or lender.table.dltensor_from_py_object_no_sync == NULL:
        return borrow_capsule(tensor, writes, view, call)
    if lender.table.dltensor_from_py_object_no_sync(<void*> tensor, view) != 0:
        try:
            pass_on()
        except Exception as error:
            keep_error(error, call)
            return REJECT_LENDING
    # The table lends what is stored, and a lazily negated tensor stores the opposite. (One whose
    # elements lie side by side comes from torch._neg_view alone: those that public calls make are
    # every second number of a complex tensor.)
    if view.code == FLOAT and is_negated(tensor, lender):
        return REJECT_NEGATIVE_BIT
    if call.table == NULL:
        call.table = lender.table
    return ACCEPTED


cdef inline bint is_negated(object tensor, const Lender* lender) except -1:
    if lender.is_neg != NULL:
        return lender.is_neg(tensor, NULL) is True
    return lender.asks_is_neg and tensor.is_neg()


cdef int borrow_capsule(object tensor, bint writes, DLTensor* view, Call* call) except -1:
    try:
        if getattr(tensor, "__dlpack__", None) is None:
            return REJECT_TYPE
        device_type = int(tensor.__dlpack_device__()[0])
        is_neg = getattr(tensor, "is_neg", None)
        if is_neg is not None and is_neg():
            return REJECT_NEGATIVE_BIT
        capsule = ask_for_capsule(tensor, device_type)
        return open_capsule(capsule, writes, view, call)
    except Exception as error:
        keep_error(error, call)
        return REJECT_LENDING


cdef object ask_for_capsule(object tensor, object device_type):
    # Without a stream, torch makes the default stream wait for the current one: work that nobody
    # asked for, and an error in a graph capture. On the CPU, numpy takes no stream at all.
    options = {} if device_type == CPU else {"stream": -1}
    try:
        return tensor.__dlpack__(max_version=(MAJOR, MINOR), **options)
    except TypeError:  # DLPack before 1.0
        return tensor.__dlpack__(**options)


cdef int open_capsule(object capsule, bint writes, DLTensor* view, Call* call) except -1:
    """Take the tensor out of its capsule."""
    cdef Held* held = &call.held[call.held_count]
    held.plain = NULL
    held.versioned = NULL
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        held.versioned = <DLManagedTensorVersioned*> PyCapsule_GetPointer(
            capsule, "dltensor_versioned"
        )
        if held.versioned.version.major != MAJOR:
            call.got = held.versioned.version.major
            return REJECT_VERSION  # the capsule still owns it
        PyCapsule_SetName(capsule, "used_dltensor_versioned")
        call.held_count += 1
        view[0] = held.versioned.dl_tensor
        if writes and held.versioned.flags & FLAG_READ_ONLY:
            return REJECT_READ_ONLY
        # What is written into a copy is lost, and a copy on a GPU could be freed before it is read.
        if held.versioned.flags & FLAG_COPIED and (writes or view.device.device_type != CPU):
            return REJECT_COPY
        return ACCEPTED
    if PyCapsule_IsValid(capsule, "dltensor"):
        held.plain = <DLManagedTensor*> PyCapsule_GetPointer(capsule, "dltensor")
        PyCapsule_SetName(capsule, "used_dltensor")
        call.held_count += 1
        view[0] = held.plain.dl_tensor
        return ACCEPTED
    if PyCapsule_IsValid(capsule, "used_dltensor_versioned") or PyCapsule_IsValid(
        capsule, "used_dltensor"
    ):
        return REJECT_USED
    raise BufferError(f"__dlpack__ gave {type(capsule).__name__} and not a capsule of a tensor")


cdef void give_back(Call* call) noexcept:
    cdef Held* held
    while call.held_count > 0:
        call.held_count -= 1
        held = &call.held[call.held_count]
        if held.versioned != NULL:
            if held.versioned.deleter != NULL:
                held.versioned.deleter(held.versioned)
        elif held.plain.deleter != NULL:
            held.plain.deleter(held.plain)
    Py_XDECREF(call.error)
    call.error = NULL


# ---- the stream ----------------------------------------------------------------------------------

# Tables whose current_work_stream was looked at: torch's when it agreed with torch's own answer,
# torch's when it did not, and the last one of another library. Set under the lock.
cdef const void* right_table = NULL
cdef const void* wrong_table = NULL
cdef const void* other_table = NULL
cdef object raw_stream = None  # torch's function, once a table was wrong


cdef int current_stream(Call* call, void** stream) except -1:
    """Name the current stream of the tensors' library on their device, which is not the CPU."""
    cdef const ExchangeTable* table = call.table
    try:
        if table == NULL:
            stream[0] = stream_without_table(<object> call.producer, call.device_id)
            return ACCEPTED
        if (
            table != load_pointer(&right_table)
            and table != load_pointer(&other_table)
            and table != load_pointer(&wrong_table)
        ):
            compare(table, call.device_type, call.device_id)
        if table == load_pointer(&wrong_table):
            stream[0] = <void*> <uintptr_t> raw_stream(call.device_id)
            return ACCEPTED
        if table.current_work_stream(call.device_type, call.device_id, stream) != 0:
            pass_on()
        return ACCEPTED
    except Exception as error:
        keep_error(error, call)
        return NO_STREAM


cdef int compare(const ExchangeTable* table, int device_type, int device_id) except -1:
    """Test a table once, under a stream that is not the default one.

    In torch's ROCm builds before its change 175432 the function was compiled for CUDA alone and
    names the default stream whatever is current: work would race, and graph capture would break.
    Making a stream, and making it current, is allowed in a capture: neither is work on a stream.
    """
    global raw_stream
    cdef void* said = NULL
    cdef uintptr_t truth = 0
    torch = sys.modules.get("torch")
    if torch is None or table_of(torch.Tensor) != table:
        with lock:
            store_pointer(&other_table, table)  # there is nothing to compare it with
        return 0
    ask = torch._C._cuda_getCurrentRawStream
    with torch.cuda.stream(torch.cuda.Stream(device_id)):
        truth = ask(device_id)
        if table.current_work_stream(device_type, device_id, &said) != 0:
            pass_on()
    with lock:
        if <uintptr_t> said == truth:
            store_pointer(&right_table, table)
        elif wrong_table != table:
            raw_stream = ask
            store_pointer(&wrong_table, table)
            logger.warning(
                "torch's DLPack exchange table names the wrong stream; torch is asked instead"
            )
    return 0


cdef void* stream_without_table(object producer, int device_id) except? NULL:
    library = library_of(producer)
    if library.__name__ == "cupy":
        with library.cuda.Device(device_id):
            return <void*> <uintptr_t> library.cuda.get_current_stream().ptr
    return <void*> <uintptr_t> library._C._cuda_getCurrentRawStream(device_id)


cdef object library_of(object producer):
    """Return the library that knows the stream of a tensor without a table: CuPy, else torch."""
    name = type(producer).__module__.partition(".")[0]
    library = sys.modules.get("cupy" if name == "cupy" else "torch")
    if library is None:
        raise LookupError(f"{name} has no exchange table, and torch is not in this process")
    return library


def test_streams(int device_type, int device_id):
    """Test torch's table now, if torch is here and uses its GPU already; see `compare`."""
    cdef const ExchangeTable* table
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Tensor") or not torch.cuda.is_initialized():
        return
    table = table_of(torch.Tensor)
    if table != NULL and table != right_table and table != wrong_table:
        compare(table, device_type, device_id)


def stream_fallback():
    """Return whether torch is asked for its stream since its table names a wrong one.

    None: not known yet, no tensor of torch's on a GPU was seen.
    """
    if wrong_table != NULL:
        return True
    return None if right_table == NULL else False


def reset():
    """Forget types, and which tables were compared; for tests."""
    global right_table, wrong_table, other_table, raw_stream
    with lock:
        store_int(&lender_count, 0)
        right_table = wrong_table = other_table = NULL
        raw_stream = None


# ---- scratch -------------------------------------------------------------------------------------

cdef void keep_allocator_error(
    void* call, const char* kind, const char* message
) noexcept with gil:
    text = message.decode(errors="replace") if message != NULL else "no reason given"
    name = kind.decode(errors="replace") if kind != NULL else "error"
    keep_error(MemoryError(f"{text} ({name})"), <Call*> call)


cdef int take_scratch(Call* call, size_t size, Scratch* scratch) except -1:
    """Get scratch on the call's device from the allocator of its tensors' library.

    To be freed with `free_scratch` once all work that uses it is on the current stream: the
    library's allocator gives it out again in the order of that stream, and in a graph capture from
    the graph's own pool.
    """
    cdef DLTensor prototype
    cdef int64_t shape = size + SCRATCH_ALIGNMENT
    cdef int64_t stride = 1
    scratch.managed = NULL
    scratch.owner = NULL
    scratch.host = NULL
    scratch.data = NULL
    if size == 0:
        return ACCEPTED
    if call.device_type == CPU:
        scratch.host = malloc(shape)
        if scratch.host == NULL:
            return NO_SCRATCH
        scratch.data = <char*> scratch.host
    elif call.table != NULL:
        prototype.data = NULL
        prototype.device.device_type = call.device_type
        prototype.device.device_id = call.device_id
        prototype.ndim = 1
        prototype.code, prototype.bits, prototype.lanes = 1, 8, 1
        prototype.shape = &shape
        prototype.strides = &stride
        prototype.byte_offset = 0
        if call.table.managed_tensor_allocator(
            &prototype, &scratch.managed, call, keep_allocator_error
        ) != 0 or scratch.managed == NULL:
            scratch.managed = NULL
            return NO_SCRATCH
        scratch.data = <char*> scratch.managed.dl_tensor.data
        scratch.data += scratch.managed.dl_tensor.byte_offset
    else:
        try:
            owner, address = scratch_without_table(<object> call.producer, call.device_id, shape)
            scratch.data = <char*> <uintptr_t> address
        except Exception as error:
            keep_error(error, call)
            return NO_SCRATCH
        Py_INCREF(owner)
        scratch.owner = <PyObject*> owner
    scratch.data += -<uintptr_t> scratch.data % SCRATCH_ALIGNMENT
    return ACCEPTED


cdef object scratch_without_table(object producer, int device_id, int64_t size):
    library = library_of(producer)
    if library.__name__ == "cupy":
        with library.cuda.Device(device_id):
            memory = library.cuda.alloc(size)
            return memory, memory.ptr
    memory = library.empty(size, dtype=library.uint8, device=library.device("cuda", device_id))
    return memory, memory.data_ptr()


cdef void free_scratch(Scratch* scratch) noexcept:
    if scratch.managed != NULL and scratch.managed.deleter != NULL:
        scratch.managed.deleter(scratch.managed)
    Py_XDECREF(scratch.owner)
    free(scratch.host)
