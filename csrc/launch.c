/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans and launches. A plan is made from tensor shapes and from the device alone, never from lengths, so that a
 * captured graph serves every step; nothing here allocates, synchronises or prints.
 *
 * csrc/README.md says which launch serves which row.
 */
#include <stddef.h>

#include "abi.h"
#include "device/params.h"
#include "tuning.h"

static const char* const kKernelNames[DSV41_KERNEL_COUNT] = {
    [DSV41_KERNEL_GROUP_MAX] = "group_max_kernel",
    [DSV41_KERNEL_TOP_K_SELECT] = "top_k_select_kernel",
    [DSV41_KERNEL_COMPACT_SELECT] = "compact_select_kernel",
    [DSV41_KERNEL_CANDIDATE_SELECT] = "candidate_select_kernel",
    [DSV41_KERNEL_RADIX_CHUNK] = "radix_chunk_kernel",
    [DSV41_KERNEL_RADIX_MERGE] = "radix_merge_kernel",
    [DSV41_KERNEL_CANDIDATE_GATHER] = "candidate_gather_kernel",
    [DSV41_KERNEL_BLOCK_SCORES] = "block_scores_kernel",
    [DSV41_KERNEL_BLOCK_SELECT] = "block_select_kernel",
    [DSV41_KERNEL_CANDIDATE_LOGITS] = "candidate_logits_kernel",
};

const char* dsv41_kernel_name(int kernel) { return kKernelNames[kernel]; }

enum { kScratchAlign_bytes = 256 };

static size_t align_scratch(size_t bytes) {
  return (bytes + kScratchAlign_bytes - 1) & ~(size_t)(kScratchAlign_bytes - 1);
}

/* ---- the histogram select, for rows that no other takes ----------------------------------------------------------- */

/* Pieces of scratch a row: what its longest live length could be split into. 0 when one launch does. */
static int radix_pieces(const RadixParams* params) {
  if (params->ids) return 0;
  int pieces = choose_pieces(params->width, params->max_pieces, params->min_chunk);
  return pieces > 1 ? pieces : 0;
}

static size_t radix_scratch_bytes(const RadixParams* params, int32_t rows) {
  return 2 * align_scratch((size_t)rows * radix_pieces(params) * DSV41_TOP_K * sizeof(float));
}

static int launch_radix(const Dsv41Device* device, void* stream, void* scratch, RadixParams* params,
                        int32_t rows, Dsv41Failure* failure) {
  const int pieces = radix_pieces(params);
  params->max_pieces = pieces ? pieces : 1;
  params->values = scratch;
  params->columns = (int32_t*)((char*)scratch + radix_scratch_bytes(params, rows) / 2);
  if (dsv41_device_launch(device, DSV41_KERNEL_RADIX_CHUNK, (unsigned)rows,
                          (unsigned)params->max_pieces, kCutThreads, stream, params, failure) ||
      pieces == 0)
    return failure->code;
  return dsv41_device_launch(device, DSV41_KERNEL_RADIX_MERGE, (unsigned)rows, 1, kCutThreads,
                             stream, params, failure);
}

static RadixParams radix_of_top_k(const Dsv41TopKArgs* args) {
  RadixParams params = {.logits = args->logits,
                        .logits_stride = args->logits_stride,
                        .width = args->width,
                        .ends = args->ends,
                        .indices = args->indices,
                        .indices_stride = args->indices_stride,
                        .max_pieces = args->max_blocks,
                        .min_chunk = args->min_chunk};
  return params;
}

/* ---- top_k_per_row_decode_512 ------------------------------------------------------------------------------------ */

/* Every row starts at a 16-byte boundary. The stride of a single row is not looked at. */
static int rows_are_aligned(const float* logits, int64_t stride, int32_t rows) {
  return (uintptr_t)logits % 16 == 0 && (rows == 1 || stride % 4 == 0);
}

static int takes_register_select(const Dsv41TopKArgs* args) {
  return args->register_select && args->width <= kMaxRegisterCols &&
         rows_are_aligned(args->logits, args->logits_stride, args->rows);
}

/* Maxima of a row of the buffer's width, 0 when one launch reads such a row by itself. */
static int64_t maxima_stride(const Dsv41TopKArgs* args) {
  if (args->width <= kDirectCols) return 0;
  int64_t groups = (args->width + kMinGroupCols - 1) / kMinGroupCols;
  return groups < kMaxMaxima ? (groups + 3) & ~(int64_t)3 : kMaxMaxima;
}

size_t dsv41_top_k_scratch_bytes(const Dsv41Device* device, const Dsv41TopKArgs* args) {
  (void)device;
  if (!takes_register_select(args)) {
    const RadixParams radix = radix_of_top_k(args);
    return radix_scratch_bytes(&radix, args->rows);
  }
  return align_scratch((size_t)args->rows * maxima_stride(args) * sizeof(float));
}

int dsv41_top_k(const Dsv41Device* device, void* stream, void* scratch, const Dsv41TopKArgs* args,
                Dsv41Failure* failure) {
  failure->launched = 0;
  failure->code = DSV41_OK;
  if (args->rows == 0) return DSV41_OK;
  if (!takes_register_select(args)) {
    RadixParams radix = radix_of_top_k(args);
    return launch_radix(device, stream, scratch, &radix, args->rows, failure);
  }
  TopKSelectParams params = {
      .args = *args, .maxima = scratch, .maxima_stride = maxima_stride(args)};
  params.workgroups = choose_group_max_workgroups(args->width, args->rows, device->compute_units);
  if (params.maxima_stride &&
      dsv41_device_launch(device, DSV41_KERNEL_GROUP_MAX, (unsigned)args->rows,
                          (unsigned)params.workgroups, kGroupMaxThreads, stream, &params, failure))
    return failure->code;
  return dsv41_device_launch(device, DSV41_KERNEL_TOP_K_SELECT, (unsigned)args->rows, 1,
                             kSelectThreads, stream, &params, failure);
}

/* ---- candidate_top_k_512 ----------------------------------------------------------------------------------------- */

/* More candidates than a workgroup holds in registers. */
static int needs_gather(const Dsv41CandidateTopKArgs* args) {
  return (int64_t)args->slots * args->block_size > kMaxGathered;
}

static RadixParams radix_of_candidates(const Dsv41CandidateTopKArgs* args, void* scratch) {
  const int64_t candidates = (int64_t)args->slots * args->block_size;
  const int64_t stride = (candidates + 3) & ~(int64_t)3;
  RadixParams params = {.logits = scratch,
                        .logits_stride = stride,
                        .width = args->width,
                        .ids = (int32_t*)((char*)scratch + align_scratch((size_t)args->rows *
                                                                         stride * sizeof(float))),
                        .n = candidates,
                        .ends = args->ends,
                        .indices = args->indices,
                        .indices_stride = args->indices_stride};
  return params;
}

size_t dsv41_candidate_top_k_scratch_bytes(const Dsv41Device* device,
                                           const Dsv41CandidateTopKArgs* args) {
  (void)device;
  if (!needs_gather(args)) return 0;
  const int64_t stride = radix_of_candidates(args, NULL).logits_stride;
  return 2 * align_scratch((size_t)args->rows * stride * sizeof(float));
}

static int gather_top_k(const Dsv41Device* device, void* stream, void* scratch,
                        const Dsv41CandidateTopKArgs* args, Dsv41Failure* failure) {
  RadixParams radix = radix_of_candidates(args, scratch);
  GatherParams params = {
      .args = *args, .values = scratch, .ids = (int32_t*)radix.ids, .stride = radix.logits_stride};
  params.workgroups = choose_gather_workgroups(args->width, args->block_size);
  if (dsv41_device_launch(device, DSV41_KERNEL_CANDIDATE_GATHER, (unsigned)args->rows,
                          (unsigned)params.workgroups, kGatherThreads, stream, &params, failure))
    return failure->code;
  return launch_radix(device, stream, NULL, &radix, args->rows, failure);
}

int dsv41_candidate_top_k(const Dsv41Device* device, void* stream, void* scratch,
                          const Dsv41CandidateTopKArgs* args, Dsv41Failure* failure) {
  failure->launched = 0;
  failure->code = DSV41_OK;
  if (args->rows == 0) return DSV41_OK;
  if (needs_gather(args)) return gather_top_k(device, stream, scratch, args, failure);
  CandidateSelectParams params = {.args = *args};
  params.block_shift = -1;
  for (int shift = 0; shift < 31; shift++)
    if (args->block_size == 1 << shift) params.block_shift = shift;
  params.vectors =
      params.block_shift >= 2 && rows_are_aligned(args->logits, args->logits_stride, args->rows);
  return dsv41_device_launch(device, DSV41_KERNEL_CANDIDATE_SELECT, (unsigned)args->rows, 1,
                             kSelectThreads, stream, &params, failure);
}

/* ---- compact_top_k_512 and compact_top_k_512_regs ---------------------------------------------------------------- */

static RadixParams radix_of_compact(const Dsv41CompactTopKArgs* args) {
  RadixParams params = {.logits = args->logits,
                        .logits_stride = args->n,
                        .width = INT32_MAX,
                        .ids = args->ids,
                        .n = args->n,
                        .ends = args->ends,
                        .indices = args->indices,
                        .indices_stride = args->indices_stride};
  return params;
}

size_t dsv41_compact_top_k_scratch_bytes(const Dsv41Device* device,
                                         const Dsv41CompactTopKArgs* args) {
  (void)device, (void)args;
  return 0;
}

int dsv41_compact_top_k(const Dsv41Device* device, void* stream, void* scratch,
                        const Dsv41CompactTopKArgs* args, Dsv41Failure* failure) {
  (void)scratch;
  failure->launched = 0;
  failure->code = DSV41_OK;
  if (args->rows == 0) return DSV41_OK;
  if (args->register_select)
    return dsv41_device_launch(device, DSV41_KERNEL_COMPACT_SELECT, (unsigned)args->rows, 1,
                               kSelectThreads, stream, args, failure);
  RadixParams radix = radix_of_compact(args);
  return launch_radix(device, stream, NULL, &radix, args->rows, failure);
}

/* ---- candidate_blocks -------------------------------------------------------------------------------------------- */

static int64_t scores_stride(const Dsv41CandidateBlocksArgs* args) {
  int64_t blocks = (args->width + args->block_size - 1) / args->block_size;
  return (blocks + 3) & ~(int64_t)3;
}

size_t dsv41_candidate_blocks_scratch_bytes(const Dsv41Device* device,
                                            const Dsv41CandidateBlocksArgs* args) {
  (void)device;
  return align_scratch((size_t)args->rows * scores_stride(args) * sizeof(float));
}

int dsv41_candidate_blocks(const Dsv41Device* device, void* stream, void* scratch,
                           const Dsv41CandidateBlocksArgs* args, Dsv41Failure* failure) {
  failure->launched = 0;
  failure->code = DSV41_OK;
  if (args->rows == 0) return DSV41_OK;
  BlocksParams params = {.args = *args, .scores = scratch, .scores_stride = scores_stride(args)};
  const int vectors =
      args->block_size == 8 && rows_are_aligned(args->logits, args->logits_stride, args->rows);
  params.lanes = vectors ? 0 : choose_block_lanes(args->block_size);
  params.workgroups = choose_block_workgroups(params.scores_stride, params.lanes, args->rows,
                                              device->compute_units);
  if (args->width > 0 && dsv41_device_launch(device, DSV41_KERNEL_BLOCK_SCORES,
                                             (unsigned)args->rows, (unsigned)params.workgroups,
                                             kBlockScoreThreads, stream, &params, failure))
    return failure->code;
  return dsv41_device_launch(device, DSV41_KERNEL_BLOCK_SELECT, (unsigned)args->rows, 1,
                             kCutThreads, stream, &params, failure);
}
