# SPDX-License-Identifier: Apache-2.0
"""View of csrc/abi.h."""

from libc.stdint cimport int32_t, int64_t, uint8_t


cdef extern from "abi.h" nogil:
    const int DSV41_TOP_K
    const int DSV41_E4M3FN
    const int DSV41_E4M3FNUZ
    const int DSV41_NO_MEMORY

    ctypedef struct Dsv41Ends:
        const int32_t* lens
        int32_t repeat
        int32_t draft

    ctypedef struct Dsv41TopKArgs:
        const float* logits
        int64_t logits_stride
        int64_t width
        Dsv41Ends ends
        int32_t* indices
        int64_t indices_stride
        int32_t rows
        int32_t max_blocks
        int32_t min_chunk
        int32_t register_select

    ctypedef struct Dsv41CandidateTopKArgs:
        const float* logits
        int64_t logits_stride
        int64_t width
        Dsv41Ends ends
        const int32_t* candidates
        int64_t candidates_stride
        int32_t* indices
        int64_t indices_stride
        int32_t rows
        int32_t slots
        int32_t block_size

    ctypedef struct Dsv41CompactTopKArgs:
        const float* logits
        const int32_t* ids
        int64_t n
        Dsv41Ends ends
        int32_t* indices
        int64_t indices_stride
        int32_t rows
        int32_t register_select

    ctypedef struct Dsv41CandidateBlocksArgs:
        const float* logits
        int64_t logits_stride
        int64_t width
        Dsv41Ends ends
        int32_t* out
        int64_t out_stride
        int32_t rows
        int32_t slots
        int32_t block_size

    ctypedef struct Dsv41CandidateLogitsArgs:
        const uint8_t* q
        const uint8_t* kv_cache
        int64_t page_stride_bytes
        const float* weights
        int64_t weights_stride
        Dsv41Ends ends
        const int32_t* block_table
        int64_t block_table_stride
        const int32_t* candidates
        int64_t candidates_stride
        float* out_logits
        int32_t* out_ids
        int32_t rows
        int32_t rows_per_request
        int32_t pages
        int32_t page_size
        int32_t table_columns
        int32_t slots
        int32_t block_size
        int32_t heads
        int32_t fp8

    int dsv41_cpu_top_k(const Dsv41TopKArgs* args)
    int dsv41_cpu_candidate_top_k(const Dsv41CandidateTopKArgs* args)
    int dsv41_cpu_compact_top_k(const Dsv41CompactTopKArgs* args)
    int dsv41_cpu_candidate_blocks(const Dsv41CandidateBlocksArgs* args)
    int dsv41_cpu_candidate_logits(const Dsv41CandidateLogitsArgs* args)

    ctypedef struct Dsv41Runtime:
        const char* name
        int dlpack_device
        int (*current_device)(int* device) noexcept nogil
        int (*arch)(int device, char* text, size_t size) noexcept nogil

    ctypedef struct Dsv41Device:
        pass

    ctypedef struct Dsv41Failure:
        int code
        const char* kernel
        int launched

    size_t dsv41_top_k_scratch_bytes(const Dsv41Device* device, const Dsv41TopKArgs* args)
    size_t dsv41_candidate_top_k_scratch_bytes(
        const Dsv41Device* device, const Dsv41CandidateTopKArgs* args
    )
    size_t dsv41_compact_top_k_scratch_bytes(
        const Dsv41Device* device, const Dsv41CompactTopKArgs* args
    )
    size_t dsv41_candidate_blocks_scratch_bytes(
        const Dsv41Device* device, const Dsv41CandidateBlocksArgs* args
    )

    int dsv41_top_k(
        const Dsv41Device* device, void* stream, void* scratch, const Dsv41TopKArgs* args,
        Dsv41Failure* failure
    )
    int dsv41_candidate_top_k(
        const Dsv41Device* device, void* stream, void* scratch,
        const Dsv41CandidateTopKArgs* args, Dsv41Failure* failure
    )
    int dsv41_compact_top_k(
        const Dsv41Device* device, void* stream, void* scratch,
        const Dsv41CompactTopKArgs* args, Dsv41Failure* failure
    )
    int dsv41_candidate_blocks(
        const Dsv41Device* device, void* stream, void* scratch,
        const Dsv41CandidateBlocksArgs* args, Dsv41Failure* failure
    )
    int dsv41_candidate_logits(
        const Dsv41Device* device, void* stream, const Dsv41CandidateLogitsArgs* args,
        Dsv41Failure* failure
    )

    const Dsv41Runtime* dsv41_runtime_find(const char* name, char* why, size_t why_size)
    const char* dsv41_error_text(const Dsv41Runtime* runtime, int code)
    int dsv41_device_load(
        const Dsv41Runtime* runtime, int ordinal, const void* image, Dsv41Device* device,
        Dsv41Failure* failure
    )

    ctypedef struct Dsv41LogitsKernel:
        pass

    int dsv41_logits_load(
        const Dsv41Runtime* runtime, int ordinal, const void* image, const char* name,
        unsigned threads, unsigned lds_bytes, Dsv41LogitsKernel* kernel, Dsv41Failure* failure
    )
    int dsv41_logits_serves(const Dsv41CandidateLogitsArgs* args)
    int dsv41_logits_launch(
        const Dsv41LogitsKernel* kernel, void* stream, const Dsv41CandidateLogitsArgs* args,
        Dsv41Failure* failure
    )
