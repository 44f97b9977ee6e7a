/* SPDX-License-Identifier: Apache-2.0
 *
 * The C seam of dsv41topk: argument structs, status codes, launcher prototypes.
 *
 * C only, no GPU headers. Read by the Cython layer (dsv41topk/_abi.pxd), by the launchers
 * (launch.c), by the native CPU kernels (cpu/) and by the GPU kernels (kernels/, which take these
 * structs by value). Sizes are in the name (`_bytes`), strides are elements, 64 bits wide: 3,072
 * rows x 2^20 columns passes 2^31 at row 2,048.
 *
 * The argument structs hold what a bind step has already checked: pointers are not NULL where the
 * count is not zero, column strides are 1, rows fit. The launchers check nothing twice.
 */
#ifndef DSV41TOPK_ABI_H_
#define DSV41TOPK_ABI_H_

#include <stddef.h>
#include <stdint.h>

#define DSV41_TOP_K 512

#ifdef __cplusplus
extern "C" {
#endif

/* Where the live columns of a row end. One formula serves the three forms of the contract:
 *
 *   end(r) = max(0, lens[r / repeat] + (draft ? r % repeat - repeat + 1 : 0)), clamped to the width
 *
 *   seq_lens 2-D   repeat 1, draft 0
 *   seq_lens 1-D   repeat next_n, draft 1
 *   visible        repeat row_repeat, draft 0
 */
typedef struct Dsv41Ends {
  const int32_t* lens;
  int32_t repeat;
  int32_t draft;
} Dsv41Ends;

/* top_k_per_row_decode_512 and the hook decode_top_k. */
typedef struct Dsv41TopKArgs {
  const float* logits;
  int64_t logits_stride;
  int64_t width;
  Dsv41Ends ends;
  int32_t* indices;
  int64_t indices_stride;
  int32_t rows;
  int32_t max_blocks; /* public keyword; a piece of a row is a chunk everywhere below this struct */
  int32_t min_chunk;
  int32_t register_select;
} Dsv41TopKArgs;

/* candidate_top_k_512 and the hook candidate_top_k. */
typedef struct Dsv41CandidateTopKArgs {
  const float* logits;
  int64_t logits_stride;
  int64_t width;
  Dsv41Ends ends;
  const int32_t* candidates;
  int64_t candidates_stride;
  int32_t* indices;
  int64_t indices_stride;
  int32_t rows;
  int32_t slots; /* columns of candidates */
  int32_t block_size;
} Dsv41CandidateTopKArgs;

/* compact_top_k_512 and compact_top_k_512_regs. logits and ids are contiguous [rows, n]. */
typedef struct Dsv41CompactTopKArgs {
  const float* logits;
  const int32_t* ids;
  int64_t n;
  Dsv41Ends ends;
  int32_t* indices;
  int64_t indices_stride;
  int32_t rows;
  int32_t register_select; /* 1: compact_top_k_512_regs */
} Dsv41CompactTopKArgs;

/* candidate_blocks and the hook select_candidates. */
typedef struct Dsv41CandidateBlocksArgs {
  const float* logits;
  int64_t logits_stride;
  int64_t width;
  Dsv41Ends ends;
  int32_t* out;
  int64_t out_stride;
  int32_t rows;
  int32_t slots; /* columns of out */
  int32_t block_size;
} Dsv41CandidateBlocksArgs;

enum { DSV41_E4M3FN = 10, DSV41_E4M3FNUZ = 11 }; /* DLPack's type codes */

/* candidate_logits: q is contiguous [rows, heads, 128]; a page is page_size * 128 key bytes, then
 * page_size scales. */
typedef struct Dsv41CandidateLogitsArgs {
  const uint8_t* q;
  const uint8_t* kv_cache;
  int64_t page_stride_bytes;
  const float* weights;
  int64_t weights_stride;
  Dsv41Ends ends;
  const int32_t* block_table;
  int64_t block_table_stride;
  const int32_t* candidates;
  int64_t candidates_stride;
  float* out_logits; /* contiguous [rows, slots * block_size], as out_ids */
  int32_t* out_ids;
  int32_t rows;
  int32_t rows_per_request; /* next_n: row r reads row r / next_n of block_table */
  int32_t pages;
  int32_t page_size;
  int32_t table_columns;
  int32_t slots;
  int32_t block_size;
  int32_t heads;
  int32_t fp8; /* DSV41_E4M3FN or DSV41_E4M3FNUZ */
} Dsv41CandidateLogitsArgs;

/* Status codes. Above 0 it is the GPU runtime's own. */
enum {
  DSV41_OK = 0,
  DSV41_NO_MEMORY = -1,
  DSV41_NO_DEVICE = -2,
  DSV41_NO_KERNEL = -3,
};

/* ---- the CPU kernels: synchronous, thread-safe, no state ------------------------------------- */

int dsv41_cpu_top_k(const Dsv41TopKArgs* args);
int dsv41_cpu_candidate_top_k(const Dsv41CandidateTopKArgs* args);
int dsv41_cpu_compact_top_k(const Dsv41CompactTopKArgs* args);
int dsv41_cpu_candidate_blocks(const Dsv41CandidateBlocksArgs* args);
int dsv41_cpu_candidate_logits(const Dsv41CandidateLogitsArgs* args);

/* ---- the GPU runtime: one table, three fillings (runtime.c) ---------------------------------- */

/* Every kernel of the code object: DSV41_KERNEL_GROUP_MAX is group_max_kernel, and so on. launch.c
 * holds the names; runtime.c resolves each once per device. */
enum Dsv41Kernel {
  DSV41_KERNEL_GROUP_MAX,        /* maxima of groups of columns, by all compute units */
  DSV41_KERNEL_TOP_K_SELECT,     /* one workgroup a row, from maxima or from the row itself */
  DSV41_KERNEL_COMPACT_SELECT,   /* the same for gathered rows */
  DSV41_KERNEL_CANDIDATE_SELECT, /* the same for up to 32,768 candidates */
  DSV41_KERNEL_RADIX_CHUNK,      /* the best 512 of a chunk, or of a row that is one chunk */
  DSV41_KERNEL_RADIX_MERGE,      /* the best 512 of its chunks' winners */
  DSV41_KERNEL_CANDIDATE_GATHER, /* more than 32,768 candidates into scratch */
  DSV41_KERNEL_BLOCK_SCORES,     /* the largest logit of each block */
  DSV41_KERNEL_BLOCK_SELECT,     /* the best blocks by it */
  DSV41_KERNEL_CANDIDATE_LOGITS, /* sm_90 and tests; on gfx942 Triton's kernel serves: logits.c */
  DSV41_KERNEL_COUNT
};

/* The driver calls that HIP and CUDA share in shape. Each returns 0 or the runtime's own code. */
typedef struct Dsv41Runtime {
  const char* name;  /* "hip", "cuda", or the test double's */
  int dlpack_device; /* kDLROCM 10, kDLCUDA 2, the double: kDLCPU 1 */
  int (*load)(int device, const void* image, void** module);
  int (*get_function)(void* module, const char* name, void** function);
  int (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned lds_bytes, void* stream, void** params,
                void** extra);
  int (*current_device)(int* device);
  int (*set_device)(int device);
  int (*compute_units)(int device, int* count);
  int (*arch)(int device, char* text, size_t size); /* "gfx942:sramecc+:xnack-", "sm_90" */
  const char* (*error_text)(int code);              /* "hipErrorInvalidValue" */
} Dsv41Runtime;

/* A device that holds the loaded code object. */
typedef struct Dsv41Device {
  const Dsv41Runtime* runtime;
  int ordinal;
  int compute_units;
  void* module;
  void* functions[DSV41_KERNEL_COUNT]; /* NULL: not in this code object */
} Dsv41Device;

/* What went wrong, for the text: "hipErrorInvalidValue (1) from radix_chunk_kernel". */
typedef struct Dsv41Failure {
  int code;
  const char* kernel;
  int launched; /* launches of this call that were enqueued before the failing one */
} Dsv41Failure;

const char* dsv41_kernel_name(int kernel);

/* ---- the GPU launchers (launch.c) ------------------------------------------------------------ */

/* They plan from shapes and the device alone, then enqueue on the stream. Nothing synchronises. */

/* Bytes of scratch that the call needs, 256-byte aligned; 0 for none. It may be freed in stream
 * order after the call. */
size_t dsv41_top_k_scratch_bytes(const Dsv41Device* device, const Dsv41TopKArgs* args);
size_t dsv41_candidate_top_k_scratch_bytes(const Dsv41Device* device,
                                           const Dsv41CandidateTopKArgs* args);
size_t dsv41_compact_top_k_scratch_bytes(const Dsv41Device* device,
                                         const Dsv41CompactTopKArgs* args);
size_t dsv41_candidate_blocks_scratch_bytes(const Dsv41Device* device,
                                            const Dsv41CandidateBlocksArgs* args);

int dsv41_top_k(const Dsv41Device* device, void* stream, void* scratch, const Dsv41TopKArgs* args,
                Dsv41Failure* failure);
int dsv41_candidate_top_k(const Dsv41Device* device, void* stream, void* scratch,
                          const Dsv41CandidateTopKArgs* args, Dsv41Failure* failure);
int dsv41_compact_top_k(const Dsv41Device* device, void* stream, void* scratch,
                        const Dsv41CompactTopKArgs* args, Dsv41Failure* failure);
int dsv41_candidate_blocks(const Dsv41Device* device, void* stream, void* scratch,
                           const Dsv41CandidateBlocksArgs* args, Dsv41Failure* failure);
int dsv41_candidate_logits(const Dsv41Device* device, void* stream,
                           const Dsv41CandidateLogitsArgs* args, Dsv41Failure* failure);

/* ---- finding a runtime, loading and launching (runtime.c) ------------------------------------ */

/* Fill the table from the runtime library that the process already has (dlopen with RTLD_NOLOAD),
 * never load one. "hip" or "cuda"; NULL and a reason in `why` when it is not there or has no
 * device. Else `why` may hold its path. */
const Dsv41Runtime* dsv41_runtime_find(const char* name, char* why, size_t why_size);

/* The words for a code: above 0 the runtime's own ("hipErrorInvalidValue"), else ours. */
const char* dsv41_error_text(const Dsv41Runtime* runtime, int code);

/* Load the code object on `ordinal` and resolve the kernels. 0, or a code; failure->kernel then
 * names the step. A kernel that get_function does not find (500 in both runtimes) is NULL; if none
 * is found, that is DSV41_NO_KERNEL. */
int dsv41_device_load(const Dsv41Runtime* runtime, int ordinal, const void* image,
                      Dsv41Device* device, Dsv41Failure* failure);

/* Launch with the device made current for the call and restored after it; skipped when it is
 * current already. The kernel takes one struct by value, *args. Counts itself in failure->launched,
 * which the launcher sets to 0 at its start. */
int dsv41_device_launch(const Dsv41Device* device, int kernel, unsigned grid_x, unsigned grid_y,
                        unsigned block_x, void* stream, const void* args, Dsv41Failure* failure);

/* The same for a function of another module (candidate logits compiled by Triton); `params` point
 * at the arguments. */
int dsv41_function_launch(const Dsv41Runtime* runtime, int ordinal, void* function,
                          const char* name, unsigned grid_x, unsigned grid_y, unsigned block_x,
                          unsigned lds_bytes, void* stream, void** params, Dsv41Failure* failure);

/* ---- candidate logits as Triton compiled them for gfx942 (logits.c) -------------------------- */

/* One compiled kernel on one device, of a code object that dsv41topk/_logits.py made. It serves one
 * set of heads, page_size and block_size, with one end per row or one per request. */
typedef struct Dsv41LogitsKernel {
  const Dsv41Runtime* runtime;
  int ordinal;
  void* module;
  void* function;
  unsigned threads;
  unsigned lds_bytes;
  char name[64];
} Dsv41LogitsKernel;

int dsv41_logits_load(const Dsv41Runtime* runtime, int ordinal, const void* image, const char* name,
                      unsigned threads, unsigned lds_bytes, Dsv41LogitsKernel* kernel,
                      Dsv41Failure* failure);

/* Whether the compiled kernel takes these arguments: FP8 format, sizes, and q, cache and pages at
 * 16-byte boundaries. */
int dsv41_logits_serves(const Dsv41CandidateLogitsArgs* args);

int dsv41_logits_launch(const Dsv41LogitsKernel* kernel, void* stream,
                        const Dsv41CandidateLogitsArgs* args, Dsv41Failure* failure);

#ifdef __cplusplus
}
#endif

#endif /* DSV41TOPK_ABI_H_ */
