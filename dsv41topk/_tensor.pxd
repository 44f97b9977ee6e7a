# SPDX-License-Identifier: Apache-2.0
"""DLPack's structs, and what a call knows about its tensors."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

# The structs of dlpack.h 1.x, which is not a requirement at build time. _tensor.pyx compares their
# sizes with the ones that the header's layout gives.

cdef struct DLVersion:
    uint32_t major
    uint32_t minor

cdef struct DLDevice:
    int32_t device_type
    int32_t device_id

cdef struct DLTensor:
    void* data
    DLDevice device
    int32_t ndim
    uint8_t code
    uint8_t bits
    uint16_t lanes
    int64_t* shape
    int64_t* strides
    uint64_t byte_offset

cdef struct DLManagedTensor:
    DLTensor dl_tensor
    void* manager_ctx
    void (*deleter)(DLManagedTensor* self) noexcept

cdef struct DLManagedTensorVersioned:
    DLVersion version
    void* manager_ctx
    void (*deleter)(DLManagedTensorVersioned* self) noexcept
    uint64_t flags
    DLTensor dl_tensor

cdef struct ExchangeTable:
    DLVersion version
    ExchangeTable* previous
    int (*managed_tensor_allocator)(
        DLTensor* prototype, DLManagedTensorVersioned** out, void* error_ctx,
        void (*set_error)(void* error_ctx, const char* kind, const char* message) noexcept
    ) noexcept
    int (*managed_tensor_from_py_object_no_sync)(
        void* object, DLManagedTensorVersioned** out
    ) noexcept
    int (*managed_tensor_to_py_object_no_sync)(
        DLManagedTensorVersioned* tensor, void** out
    ) noexcept
    int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out) noexcept
    int (*current_work_stream)(
        int32_t device_type, int32_t device_id, void** stream
    ) noexcept

cdef enum:
    CPU = 1  # kDLCPU, and pinned host memory: it is read there as well
    CUDA = 2
    ROCM = 10

cdef enum:
    MOST_TENSORS = 9  # of one call: candidate_logits

cdef struct Held:
    # A tensor that a capsule lent; exactly one of the two is not NULL.
    DLManagedTensor* plain
    DLManagedTensorVersioned* versioned

# One call on its way. After a refusal the last six say what was refused: "{argument}{part}".
cdef struct Call:
    int device_type  # 0 until the first tensor is bound; then its device is everybody's
    int device_id
    int serves  # the only device type that is taken, 0 for any
    const ExchangeTable* table  # of a tensor of this call, NULL when no type has one
    PyObject* producer  # borrowed: a tensor of the call
    int held_count
    Held held[MOST_TENSORS]

    const char* argument  # "logits"
    const char* part  # ".stride(1)"
    int64_t got
    int64_t wanted
    PyObject* culprit  # borrowed: the argument
    PyObject* error  # owned, or NULL: what the producer raised

cdef struct Scratch:
    char* data
    DLManagedTensorVersioned* managed
    PyObject* owner  # owned, or NULL
    void* host  # from malloc, or NULL


cdef inline void begin(Call* call, int serves) noexcept:
    call.device_type = 0
    call.device_id = 0
    call.serves = serves
    call.table = NULL
    call.producer = NULL
    call.held_count = 0
    call.part = ""
    call.wanted = call.got = 0
    call.culprit = NULL
    call.error = NULL


cdef inline void finish(Call* call) noexcept:
    """Give back what capsules lent. Called when nothing of the call is read any more."""
    if call.held_count or call.error != NULL:
        give_back(call)


cdef int borrow(object tensor, bint writes, DLTensor* view, Call* call) except -1
cdef void give_back(Call* call) noexcept
cdef int current_stream(Call* call, void** stream) except -1
cdef int take_scratch(Call* call, size_t size, Scratch* scratch) except -1
cdef void free_scratch(Scratch* scratch) noexcept
cdef void keep_error(object error, Call* call) noexcept
