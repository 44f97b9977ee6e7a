# SPDX-License-Identifier: Apache-2.0
"""Check arguments against the contract, and fill the structs that the launchers take.

The hooks and the kernels share these functions: one turns a refusal into False, the other into
words. Nothing is written here but the struct and the call's details.
"""

from cpython.bool cimport PyBool_Check
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

from dsv41topk._abi cimport (
    DSV41_E4M3FN,
    DSV41_E4M3FNUZ,
    DSV41_TOP_K,
    Dsv41CandidateBlocksArgs,
    Dsv41CandidateLogitsArgs,
    Dsv41CandidateTopKArgs,
    Dsv41CompactTopKArgs,
    Dsv41Ends,
    Dsv41TopKArgs,
)
from dsv41topk._errors cimport (
    ACCEPTED,
    REJECT_ALIGNMENT,
    REJECT_DEVICE,
    REJECT_DEVICE_MIX,
    REJECT_DTYPE,
    REJECT_ENDS,
    REJECT_HEADS,
    REJECT_HIGH,
    REJECT_INTEGER,
    REJECT_LOW,
    REJECT_NULL,
    REJECT_OVERLAP,
    REJECT_RANK,
    REJECT_SIZE,
    REJECT_SIZE_HIGH,
    REJECT_SIZE_LOW,
    REJECT_SIZE_MULTIPLE,
    REJECT_STRIDE,
    REJECT_STRIDE_LOW,
    REJECT_STRIDE_MULTIPLE,
)
from dsv41topk._tensor cimport CPU, CUDA, ROCM, Call, DLTensor, borrow


cdef extern from "Python.h":
    bint PyLong_Check(object value) noexcept
    long long PyLong_AsLongLongAndOverflow(object value, int* overflow) except? -1


cdef enum:
    # kDLCUDAHost, kDLROCMHost: pinned memory of the host
    CUDA_HOST = 3
    ROCM_HOST = 11
    # DLPack dtypes: code, bits << 8, lanes << 16
    INT32 = 0x00012000
    UINT8 = 0x00010801
    FLOAT32 = 0x00012002
    E4M3FN = 0x0001080A
    E4M3FNUZ = 0x0001080B
    FP8 = 0  # either of the two

cdef enum:
    ONE_OR_TWO = -1  # a rank

cdef enum:
    HEAD_SIZE = 128
    KEY_BYTES = 132  # a key and its scale
    KEY_GROUP = 16
    REGISTER_COLUMNS = 32768  # of a compact row in compact_top_k_512_regs

cdef enum Access:
    READS = 0
    WRITES = 1

# Rows of a tensor in memory: what an overlap is looked for in.
cdef struct Span:
    uintptr_t start
    uint64_t row_bytes
    uint64_t stride_bytes
    uint64_t rows

# A tensor that was bound.
cdef struct Tensor:
    char* data
    DLTensor view
    int64_t strides[4]  # 0 where no step is taken: what a producer says there means nothing
    bint empty


cdef const char* SHAPES[4]
cdef const char* STRIDES[4]
SHAPES[:] = [".shape[0]", ".shape[1]", ".shape[2]", ".shape[3]"]
STRIDES[:] = [".stride(0)", ".stride(1)", ".stride(2)", ".stride(3)"]


cdef inline int refuse(
    Call* call, int refusal, const char* part, int64_t wanted, int64_t got
) noexcept:
    call.part = part
    call.wanted = wanted
    call.got = got
    return refusal


# ---- numbers -------------------------------------------------------------------------------------

cdef int bind_count(object value, const char* name, int low, int32_t* out, Call* call) except -1:
    """Take an integer of at least `low` that fits in 32 bits.

    Not a float, not a bool, and not a tensor either: reading a number off a GPU would wait for it.
    """
    cdef int overflow = 0
    cdef long long number
    call.argument = name
    call.culprit = <PyObject*> value
    if not PyLong_Check(value):
        if not PyIndex_Check(value) or hasattr(value, "__dlpack__"):
            return REJECT_INTEGER
        try:
            value = PyNumber_Index(value)
        except Exception:
            return REJECT_INTEGER
    elif PyBool_Check(value):
        return REJECT_INTEGER
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow < 0 or (overflow == 0 and number < low):
        return refuse(call, REJECT_LOW, "", low, 0)
    if overflow > 0 or number > INT32_MAX:
        return refuse(call, REJECT_HIGH, "", INT32_MAX, 0)
    out[0] = number
    return ACCEPTED


cdef int bind_is(object value, const char* name, int wanted, int refusal, Call* call) except -1:
    """Take an integer that is just `wanted`."""
    cdef int32_t number = 0
    cdef int answer = bind_count(value, name, -INT32_MAX - 1, &number, call)
    if answer != ACCEPTED:
        return answer
    return ACCEPTED if number == wanted else refuse(call, refusal, "", wanted, number)


# ---- tensors -------------------------------------------------------------------------------------

cdef inline int place(Tensor* tensor, Call* call) noexcept:
    """Hold the tensor against the device of the call's first one."""
    cdef int kind = tensor.view.device.device_type
    cdef int number = tensor.view.device.device_id
    if kind == CUDA_HOST or kind == ROCM_HOST:
        kind = CPU
    if kind == CPU:
        number = 0
    if call.device_type == 0:
        if (kind != CPU and kind != CUDA and kind != ROCM) or (
            call.serves != 0 and call.serves != kind
        ) or number < 0:
            return refuse(call, REJECT_DEVICE, "", 0, packed_device(kind, number))
        call.device_type = kind
        call.device_id = number
    elif call.device_type != kind or call.device_id != number:
        return refuse(
            call, REJECT_DEVICE_MIX, "", packed_device(call.device_type, call.device_id),
            packed_device(kind, number),
        )
    return ACCEPTED


cdef inline int64_t packed_device(int64_t kind, int number) noexcept:
    return kind << 32 | <uint32_t> number


cdef inline int64_t size_of(const DLTensor* view) noexcept:
    cdef uint64_t size = 1
    for i in range(view.ndim):
        size *= view.shape[i]
    return size


cdef int take(
    object value, const char* name, Access access, uint32_t dtype, int rank, Tensor* tensor,
    Call* call
) except -1:
    """Borrow a tensor of `rank` dimensions; look at everything but its sizes.

    Strides are those of its memory, also where the producer gave none.
    """
    cdef DLTensor* view = &tensor.view
    cdef uint32_t found
    cdef uint64_t contiguous = 1
    cdef int i, answer
    call.argument = name
    call.culprit = <PyObject*> value
    answer = borrow(value, access == WRITES, view, call)
    if answer != ACCEPTED:
        return answer
    found = view.code | <uint32_t> view.bits << 8 | <uint32_t> view.lanes << 16
    if found != dtype and not (dtype == FP8 and (found == E4M3FN or found == E4M3FNUZ)):
        return refuse(call, REJECT_DTYPE, "", dtype, found)
    if view.ndim != rank and not (rank == ONE_OR_TWO and 1 <= view.ndim <= 2):
        return refuse(call, REJECT_RANK, ".ndim", rank, view.ndim)
    answer = place(tensor, call)
    if answer != ACCEPTED:
        return answer
    tensor.empty = False
    for i in range(view.ndim):
        if view.shape[i] < 0:
            return refuse(call, REJECT_SIZE_LOW, SHAPES[i], 0, view.shape[i])
        if view.shape[i] > INT32_MAX:
            return refuse(call, REJECT_SIZE_HIGH, SHAPES[i], INT32_MAX, view.shape[i])
        if view.shape[i] == 0:
            tensor.empty = True
    for i in range(view.ndim - 1, -1, -1):
        if view.shape[i] <= 1 or tensor.empty:
            tensor.strides[i] = 0
        elif view.strides == NULL:
            tensor.strides[i] = contiguous
        elif view.strides[i] < 0:
            return refuse(call, REJECT_STRIDE_LOW, STRIDES[i], 0, view.strides[i])
        else:
            tensor.strides[i] = view.strides[i]
        contiguous *= view.shape[i]
    tensor.data = <char*> view.data + view.byte_offset
    if view.data == NULL and not tensor.empty:
        return REJECT_NULL  # a FakeTensor, for one
    if view.bits == 32 and <uintptr_t> tensor.data & 3:
        return refuse(call, REJECT_ALIGNMENT, "", 4, <uintptr_t> tensor.data & 3)
    return ACCEPTED


cdef inline int at_least(Tensor* tensor, int dimension, int64_t low, Call* call) noexcept:
    if tensor.view.shape[dimension] < low:
        return refuse(
            call, REJECT_SIZE_LOW, SHAPES[dimension], low, tensor.view.shape[dimension]
        )
    return ACCEPTED


cdef inline int exactly(Tensor* tensor, int dimension, int64_t wanted, Call* call) noexcept:
    if tensor.view.shape[dimension] != wanted:
        return refuse(
            call, REJECT_SIZE, SHAPES[dimension], wanted, tensor.view.shape[dimension]
        )
    return ACCEPTED


cdef inline int has_stride(Tensor* tensor, int dimension, int64_t wanted, Call* call) noexcept:
    if (
        tensor.view.shape[dimension] > 1
        and tensor.strides[dimension] != wanted
        and not tensor.empty
    ):
        return refuse(
            call, REJECT_STRIDE, STRIDES[dimension], wanted, tensor.strides[dimension]
        )
    return ACCEPTED


cdef int is_contiguous(Tensor* tensor, Call* call) noexcept:
    cdef uint64_t wanted = 1
    cdef int i
    for i in range(tensor.view.ndim - 1, -1, -1):
        if has_stride(tensor, i, wanted, call) != ACCEPTED:
            return REJECT_STRIDE
        wanted *= tensor.view.shape[i]
    return ACCEPTED


cdef int take_matrix(
    object value, const char* name, Access access, uint32_t dtype, int64_t rows, int64_t columns,
    Tensor* tensor, Call* call
) except -1:
    """Take [>= rows, >= columns] with unit column stride. Rows that are written lie apart."""
    cdef int answer = take(value, name, access, dtype, 2, tensor, call)
    if answer != ACCEPTED:
        return answer
    if at_least(tensor, 0, rows, call) != ACCEPTED:
        return REJECT_SIZE_LOW
    if at_least(tensor, 1, columns, call) != ACCEPTED:
        return REJECT_SIZE_LOW
    if has_stride(tensor, 1, 1, call) != ACCEPTED:
        return REJECT_STRIDE
    if access == WRITES and rows > 1 and tensor.strides[0] < columns:
        return refuse(call, REJECT_STRIDE_LOW, ".stride(0)", columns, tensor.strides[0])
    return ACCEPTED


cdef int take_seq_lens(
    object seq_lens, int64_t rows, int32_t next_n, Dsv41Ends* ends, Span* span, Call* call
) except -1:
    """Take seq_lens, 2-D with an end for each row or 1-D with a length for each request."""
    cdef Tensor tensor
    cdef int64_t count
    cdef int answer = take(seq_lens, "seq_lens", READS, INT32, ONE_OR_TWO, &tensor, call)
    if answer != ACCEPTED:
        return answer
    if is_contiguous(&tensor, call) != ACCEPTED:
        return REJECT_STRIDE
    count = size_of(&tensor.view)
    ends.lens = <const int32_t*> tensor.data
    ends.draft = tensor.view.ndim == 1
    ends.repeat = next_n if ends.draft else 1
    if count * ends.repeat < rows:
        return refuse(call, REJECT_ENDS, "", rows, count * ends.repeat)
    span_of(&tensor, 1, count * 4, span)
    return ACCEPTED


cdef inline void span_of(Tensor* tensor, int64_t rows, int64_t row_bytes, Span* span) noexcept:
    span.start = <uintptr_t> tensor.data
    span.row_bytes = row_bytes
    span.stride_bytes = tensor.strides[0] * (tensor.view.bits >> 3) if rows > 1 else 0
    span.rows = rows if row_bytes else 0


cdef inline int apart(const Span* written, const Span* read, Call* call, const char* name) noexcept:
    """Refuse an output that shares memory with an input; rows side by side in one buffer do not.

    Unsigned arithmetic: strides that a producer made up wrap round and harm nobody.
    """
    cdef uint64_t written_bytes, read_bytes, distance
    if written.rows == 0 or read.rows == 0:
        return ACCEPTED
    written_bytes = (written.rows - 1) * written.stride_bytes + written.row_bytes
    read_bytes = (read.rows - 1) * read.stride_bytes + read.row_bytes
    if written.start + written_bytes <= read.start or read.start + read_bytes <= written.start:
        return ACCEPTED
    if written.stride_bytes == read.stride_bytes and read.stride_bytes != 0:
        distance = (read.start - written.start) % read.stride_bytes
        if read.start < written.start:
            distance = read.stride_bytes - (written.start - read.start) % read.stride_bytes
        if (
            distance >= written.row_bytes
            and distance + read.row_bytes <= read.stride_bytes
        ):
            return ACCEPTED
    call.argument = name
    return REJECT_OVERLAP


# ---- the calls -----------------------------------------------------------------------------------

cdef int take_logits(
    object logits, Span* span, int32_t* rows, int64_t* stride, int64_t* width,
    const float** data, Call* call
) except -1:
    cdef Tensor tensor
    cdef int answer = take_matrix(logits, "logits", READS, FLOAT32, 0, 0, &tensor, call)
    if answer != ACCEPTED:
        return answer
    rows[0] = tensor.view.shape[0]
    width[0] = tensor.view.shape[1]
    stride[0] = tensor.strides[0]
    data[0] = <const float*> tensor.data
    span_of(&tensor, rows[0], width[0] * 4, span)
    return ACCEPTED


cdef int take_indices(
    object indices, int32_t rows, int32_t** data, int64_t* stride, Span* span, Call* call
) except -1:
    """Take what a selection writes: the first 512 columns of each row."""
    cdef Tensor tensor
    cdef int answer = take_matrix(
        indices, "indices", WRITES, INT32, rows, DSV41_TOP_K, &tensor, call
    )
    if answer != ACCEPTED:
        return answer
    data[0] = <int32_t*> tensor.data
    stride[0] = tensor.strides[0]
    span_of(&tensor, rows, DSV41_TOP_K * 4, span)
    return ACCEPTED


cdef int bind_top_k(
    object logits, object next_n, object seq_lens, object indices, object max_blocks,
    object min_chunk, object register_select, Dsv41TopKArgs* args, Call* call
) except -1:
    cdef Span read, lens, written
    cdef int32_t repeat
    cdef int answer = bind_count(next_n, "next_n", 1, &repeat, call)
    if answer != ACCEPTED:
        return answer
    if max_blocks is None:  # the hook's
        args.max_blocks, args.min_chunk, args.register_select = MAX_BLOCKS, MIN_CHUNK, 1
    else:
        answer = bind_count(max_blocks, "max_blocks", 1, &args.max_blocks, call)
        if answer != ACCEPTED:
            return answer
        answer = bind_count(min_chunk, "min_chunk", 1, &args.min_chunk, call)
        if answer != ACCEPTED:
            return answer
        args.register_select = bool(register_select)
    answer = take_logits(
        logits, &read, &args.rows, &args.logits_stride, &args.width, &args.logits, call
    )
    if answer != ACCEPTED:
        return answer
    answer = take_seq_lens(seq_lens, args.rows, repeat, &args.ends, &lens, call)
    if answer != ACCEPTED:
        return answer
    answer = take_indices(
        indices, args.rows, &args.indices, &args.indices_stride, &written, call
    )
    if answer != ACCEPTED:
        return answer
    if apart(&written, &read, call, "indices") != ACCEPTED:
        return REJECT_OVERLAP
    return apart(&written, &lens, call, "indices")


cdef int take_candidates(
    object value, int32_t rows, int32_t block_size, const int32_t** data, int64_t* stride,
    int32_t* slots, Span* span, Call* call
) except -1:
    cdef Tensor tensor
    cdef int answer = take_matrix(value, "candidates", READS, INT32, rows, 0, &tensor, call)
    if answer != ACCEPTED:
        return answer
    if tensor.view.shape[1] * block_size > INT32_MAX:
        return refuse(
            call, REJECT_SIZE_HIGH, SHAPES[1], INT32_MAX // block_size, tensor.view.shape[1]
        )
    data[0] = <const int32_t*> tensor.data
    stride[0] = tensor.strides[0]
    slots[0] = tensor.view.shape[1]
    span_of(&tensor, rows, tensor.view.shape[1] * 4, span)
    return ACCEPTED


cdef int bind_candidate_top_k(
    object logits, object next_n, object seq_lens, object candidates, object block_size,
    object indices, Dsv41CandidateTopKArgs* args, Call* call
) except -1:
    cdef Span read, lens, listed, written
    cdef int32_t repeat
    cdef int answer = bind_count(next_n, "next_n", 1, &repeat, call)
    if answer != ACCEPTED:
        return answer
    answer = bind_count(block_size, "block_size", 1, &args.block_size, call)
    if answer != ACCEPTED:
        return answer
    answer = take_logits(
        logits, &read, &args.rows, &args.logits_stride, &args.width, &args.logits, call
    )
    if answer != ACCEPTED:
        return answer
    answer = take_seq_lens(seq_lens, args.rows, repeat, &args.ends, &lens, call)
    if answer != ACCEPTED:
        return answer
    answer = take_candidates(
        candidates, args.rows, args.block_size, &args.candidates, &args.candidates_stride,
        &args.slots, &listed, call,
    )
    if answer != ACCEPTED:
        return answer
    answer = take_indices(
        indices, args.rows, &args.indices, &args.indices_stride, &written, call
    )
    if answer != ACCEPTED:
        return answer
    if apart(&written, &read, call, "indices") != ACCEPTED:
        return REJECT_OVERLAP
    if apart(&written, &listed, call, "indices") != ACCEPTED:
        return REJECT_OVERLAP
    return apart(&written, &lens, call, "indices")


cdef int bind_compact_top_k(
    object compact_logits, object compact_ids, object seq_lens, object next_n, object indices,
    bint register_select, Dsv41CompactTopKArgs* args, Call* call
) except -1:
    cdef Tensor logits, ids
    cdef Span read, listed, lens, written
    cdef int32_t repeat
    cdef int answer = bind_count(next_n, "next_n", 1, &repeat, call)
    if answer != ACCEPTED:
        return answer
    answer = take(compact_logits, "compact_logits", READS, FLOAT32, 2, &logits, call)
    if answer != ACCEPTED:
        return answer
    if at_least(&logits, 1, DSV41_TOP_K + 1, call) != ACCEPTED:
        return REJECT_SIZE_LOW
    if register_select:
        if logits.view.shape[1] > REGISTER_COLUMNS:
            return refuse(
                call, REJECT_SIZE_HIGH, SHAPES[1], REGISTER_COLUMNS, logits.view.shape[1]
            )
        if logits.view.shape[1] % 4:
            return refuse(call, REJECT_SIZE_MULTIPLE, SHAPES[1], 4, logits.view.shape[1])
    if is_contiguous(&logits, call) != ACCEPTED:
        return REJECT_STRIDE
    args.rows = logits.view.shape[0]
    args.n = logits.view.shape[1]
    answer = take(compact_ids, "compact_ids", READS, INT32, 2, &ids, call)
    if answer != ACCEPTED:
        return answer
    if exactly(&ids, 0, args.rows, call) != ACCEPTED or exactly(&ids, 1, args.n, call) != ACCEPTED:
        return REJECT_SIZE
    if is_contiguous(&ids, call) != ACCEPTED:
        return REJECT_STRIDE
    answer = take_seq_lens(seq_lens, args.rows, repeat, &args.ends, &lens, call)
    if answer != ACCEPTED:
        return answer
    answer = take_indices(
        indices, args.rows, &args.indices, &args.indices_stride, &written, call
    )
    if answer != ACCEPTED:
        return answer
    args.logits = <const float*> logits.data
    args.ids = <const int32_t*> ids.data
    args.register_select = register_select
    span_of(&logits, args.rows, args.n * 4, &read)
    span_of(&ids, args.rows, args.n * 4, &listed)
    if apart(&written, &read, call, "indices") != ACCEPTED:
        return REJECT_OVERLAP
    if apart(&written, &listed, call, "indices") != ACCEPTED:
        return REJECT_OVERLAP
    return apart(&written, &lens, call, "indices")


cdef int bind_candidate_blocks(
    object logits, object visible, object row_repeat, object block_size, object out,
    Dsv41CandidateBlocksArgs* args, Call* call
) except -1:
    return bind_blocks(
        logits, visible, "visible", row_repeat, "row_repeat", block_size, out, "out", False, args,
        call,
    )


cdef int bind_select_candidates(
    object logits, object next_n, object seq_lens, object block_size, object candidates,
    Dsv41CandidateBlocksArgs* args, Call* call
) except -1:
    return bind_blocks(
        logits, seq_lens, "seq_lens", next_n, "next_n", block_size, candidates, "candidates", True,
        args, call,
    )


cdef inline int bind_blocks(
    object logits, object lens, const char* lens_name, object repeat, const char* repeat_name,
    object block_size, object out, const char* out_name, bint as_hook,
    Dsv41CandidateBlocksArgs* args, Call* call
) except -1:
    """Bind candidate_blocks and its hook, which takes seq_lens of either form."""
    cdef Tensor tensor, ends
    cdef Span read, ends_span, written
    cdef int32_t rows_per_end
    cdef int64_t count
    cdef int answer = bind_count(repeat, repeat_name, 1, &rows_per_end, call)
    if answer != ACCEPTED:
        return answer
    answer = bind_count(block_size, "block_size", 1, &args.block_size, call)
    if answer != ACCEPTED:
        return answer
    answer = take_logits(
        logits, &read, &args.rows, &args.logits_stride, &args.width, &args.logits, call
    )
    if answer != ACCEPTED:
        return answer
    answer = take(lens, lens_name, READS, INT32, ONE_OR_TWO if as_hook else 1, &ends, call)
    if answer != ACCEPTED:
        return answer
    if is_contiguous(&ends, call) != ACCEPTED:
        return REJECT_STRIDE
    count = size_of(&ends.view)
    if as_hook and count == args.rows:
        rows_per_end = 1
    if count * rows_per_end < args.rows:
        return refuse(call, REJECT_ENDS, "", args.rows, count * rows_per_end)
    args.ends.lens = <const int32_t*> ends.data
    args.ends.repeat = rows_per_end
    args.ends.draft = 0
    span_of(&ends, 1, count * 4, &ends_span)
    answer = take_matrix(out, out_name, WRITES, INT32, args.rows, 0, &tensor, call)
    if answer != ACCEPTED:
        return answer
    args.slots = tensor.view.shape[1]
    if args.rows > 1 and tensor.strides[0] < args.slots:
        return refuse(call, REJECT_STRIDE_LOW, STRIDES[0], args.slots, tensor.strides[0])
    args.out = <int32_t*> tensor.data
    args.out_stride = tensor.strides[0]
    span_of(&tensor, args.rows, <int64_t> args.slots * 4, &written)
    if apart(&written, &read, call, out_name) != ACCEPTED:
        return REJECT_OVERLAP
    return apart(&written, &ends_span, call, out_name)


cdef int take_scoring(
    object q, const char* q_name, object kv_cache, object weights, object seq_lens,
    object block_table, object candidates, object block_size, Dsv41CandidateLogitsArgs* args,
    Span* spans, Call* call
) except -1:
    """Take what candidate logits are computed from; `spans` gets the six tensors' memory."""
    cdef Tensor tensor
    cdef int64_t requests, next_n
    cdef int answer = bind_count(block_size, "block_size", 1, &args.block_size, call)
    if answer != ACCEPTED:
        return answer
    answer = take(q, q_name, READS, FP8, 4, &tensor, call)
    if answer != ACCEPTED:
        return answer
    # A cache of the other format is not to be seen from its bytes: uint8 holds both.
    args.fp8 = tensor.view.code
    if (call.device_type == ROCM and args.fp8 != DSV41_E4M3FNUZ) or (
        call.device_type == CUDA and args.fp8 != DSV41_E4M3FN
    ):
        return refuse(
            call, REJECT_DTYPE, "", E4M3FNUZ if call.device_type == ROCM else E4M3FN,
            E4M3FN if args.fp8 == DSV41_E4M3FN else E4M3FNUZ,
        )
    args.heads = tensor.view.shape[2]
    if args.heads != 32 and args.heads != 64:
        return refuse(call, REJECT_HEADS, SHAPES[2], 0, args.heads)
    if exactly(&tensor, 3, HEAD_SIZE, call) != ACCEPTED:
        return REJECT_SIZE
    if at_least(&tensor, 1, 1, call) != ACCEPTED:
        return REJECT_SIZE_LOW
    requests, next_n = tensor.view.shape[0], tensor.view.shape[1]
    if requests * next_n > INT32_MAX:
        return refuse(call, REJECT_SIZE_HIGH, SHAPES[0], INT32_MAX // next_n, requests)
    if is_contiguous(&tensor, call) != ACCEPTED:
        return REJECT_STRIDE
    args.rows = requests * next_n
    args.rows_per_request = next_n
    args.q = <const uint8_t*> tensor.data
    span_of(&tensor, 1, size_of(&tensor.view), &spans[0])

    answer = take(kv_cache, "kv_cache", READS, UINT8, 4, &tensor, call)
    if answer != ACCEPTED:
        return answer
    if exactly(&tensor, 3, KEY_BYTES, call) != ACCEPTED:
        return REJECT_SIZE
    if exactly(&tensor, 2, 1, call) != ACCEPTED:
        return REJECT_SIZE
    args.pages, args.page_size = tensor.view.shape[0], tensor.view.shape[1]
    if at_least(&tensor, 1, KEY_GROUP, call) != ACCEPTED:
        return REJECT_SIZE_LOW
    if args.page_size % KEY_GROUP:
        return refuse(call, REJECT_SIZE_MULTIPLE, SHAPES[1], KEY_GROUP, args.page_size)
    # A page is one piece of memory; pages may lie apart.
    if has_stride(&tensor, 3, 1, call) != ACCEPTED:
        return REJECT_STRIDE
    if has_stride(&tensor, 1, KEY_BYTES, call) != ACCEPTED:
        return REJECT_STRIDE
    args.page_stride_bytes = <int64_t> args.page_size * KEY_BYTES
    if args.pages > 1:
        if tensor.strides[0] % 4:
            return refuse(call, REJECT_STRIDE_MULTIPLE, STRIDES[0], 4, tensor.strides[0])
        args.page_stride_bytes = tensor.strides[0]
    if <uintptr_t> tensor.data & 3:  # the scales are float32
        return refuse(call, REJECT_ALIGNMENT, "", 4, <uintptr_t> tensor.data & 3)
    args.kv_cache = <const uint8_t*> tensor.data
    span_of(&tensor, args.pages, <int64_t> args.page_size * KEY_BYTES, &spans[1])

    answer = take_matrix(
        weights, "weights", READS, FLOAT32, args.rows, args.heads, &tensor, call
    )
    if answer != ACCEPTED:
        return answer
    if exactly(&tensor, 1, args.heads, call) != ACCEPTED:
        return REJECT_SIZE
    args.weights = <const float*> tensor.data
    args.weights_stride = tensor.strides[0]
    span_of(&tensor, args.rows, args.heads * 4, &spans[2])

    answer = take_seq_lens(
        seq_lens, args.rows, args.rows_per_request, &args.ends, &spans[3], call
    )
    if answer != ACCEPTED:
        return answer

    answer = take_matrix(block_table, "block_table", READS, INT32, requests, 0, &tensor, call)
    if answer != ACCEPTED:
        return answer
    args.block_table = <const int32_t*> tensor.data
    args.block_table_stride = tensor.strides[0]
    args.table_columns = tensor.view.shape[1]
    span_of(&tensor, requests, <int64_t> args.table_columns * 4, &spans[4])

    return take_candidates(
        candidates, args.rows, args.block_size, &args.candidates, &args.candidates_stride,
        &args.slots, &spans[5], call,
    )


cdef int bind_candidate_logits(
    object q, object kv_cache, object weights, object seq_lens, object next_n, object block_table,
    object candidates, object block_size, object out_logits, object out_ids,
    Dsv41CandidateLogitsArgs* args, Call* call
) except -1:
    cdef Tensor logits, ids
    cdef Span spans[6]
    cdef Span written[2]
    cdef int32_t rows_per_request
    cdef int i
    cdef int answer = bind_count(next_n, "next_n", 1, &rows_per_request, call)
    if answer != ACCEPTED:
        return answer
    answer = take_scoring(
        q, "q", kv_cache, weights, seq_lens, block_table, candidates, block_size, args, spans, call
    )
    if answer != ACCEPTED:
        return answer
    if args.rows_per_request != rows_per_request:
        call.argument = "next_n"
        return refuse(call, REJECT_SIZE, "", args.rows_per_request, rows_per_request)
    answer = take(out_logits, "out_logits", WRITES, FLOAT32, 2, &logits, call)
    if answer == ACCEPTED:
        answer = is_compact(&logits, args, &written[0], call)
    if answer != ACCEPTED:
        return answer
    answer = take(out_ids, "out_ids", WRITES, INT32, 2, &ids, call)
    if answer == ACCEPTED:
        answer = is_compact(&ids, args, &written[1], call)
    if answer != ACCEPTED:
        return answer
    args.out_logits = <float*> logits.data
    args.out_ids = <int32_t*> ids.data
    for i in range(6):
        if apart(&written[0], &spans[i], call, "out_logits") != ACCEPTED:
            return REJECT_OVERLAP
        if apart(&written[1], &spans[i], call, "out_ids") != ACCEPTED:
            return REJECT_OVERLAP
    return apart(&written[1], &written[0], call, "out_ids")


cdef int is_compact(
    Tensor* tensor, const Dsv41CandidateLogitsArgs* args, Span* span, Call* call
) noexcept:
    cdef int64_t columns = <int64_t> args.slots * args.block_size
    if exactly(tensor, 0, args.rows, call) != ACCEPTED:
        return REJECT_SIZE
    if exactly(tensor, 1, columns, call) != ACCEPTED:
        return REJECT_SIZE
    if is_contiguous(tensor, call) != ACCEPTED:
        return REJECT_STRIDE
    span_of(tensor, 1, args.rows * columns * 4, span)
    return ACCEPTED


cdef int bind_candidate_logits_top_k(
    object q_fp8, object kv_cache, object weights, object seq_lens, object block_table,
    object candidates, object block_size, object indices, Dsv41CandidateLogitsArgs* args,
    Dsv41CompactTopKArgs* select, Call* call
) except -1:
    """Bind the scoring and the selection; the compact rows between them are scratch."""
    cdef Span spans[6]
    cdef Span written
    cdef int i
    cdef int answer = take_scoring(
        q_fp8, "q_fp8", kv_cache, weights, seq_lens, block_table, candidates, block_size, args,
        spans, call,
    )
    if answer != ACCEPTED:
        return answer
    answer = take_indices(
        indices, args.rows, &select.indices, &select.indices_stride, &written, call
    )
    if answer != ACCEPTED:
        return answer
    for i in range(6):
        if apart(&written, &spans[i], call, "indices") != ACCEPTED:
            return REJECT_OVERLAP
    select.rows = args.rows
    select.n = <int64_t> args.slots * args.block_size
    select.ends = args.ends
    select.register_select = select.n % 4 == 0 and select.n <= REGISTER_COLUMNS
    return ACCEPTED
