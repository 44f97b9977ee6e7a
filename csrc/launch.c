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

static unsigned ceil_div(int64_t value, int64_t by) { return (unsigned)((value + by - 1) / by); }

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
  if (!takes_register_select(args)) return 0;
  return align_scratch((size_t)args->rows * maxima_stride(args) * sizeof(float));
}

int dsv41_top_k(const Dsv41Device* device, void* stream, void* scratch, const Dsv41TopKArgs* args,
                Dsv41Failure* failure) {
  failure->launched = 0;
  failure->code = DSV41_OK;
  if (args->rows == 0) return DSV41_OK;
  if (!takes_register_select(args)) return failure->code = DSV41_NO_KERNEL;
  TopKSelectParams params = {.args = *args, .maxima = scratch, .maxima_stride = maxima_stride(args)};
  if (params.maxima_stride &&
      dsv41_device_launch(device, DSV41_KERNEL_GROUP_MAX, (unsigned)args->rows,
                          ceil_div(args->width, kGroupMaxCols), kGroupMaxThreads, stream, &params, failure))
    return failure->code;
  return dsv41_device_launch(device, DSV41_KERNEL_TOP_K_SELECT, (unsigned)args->rows, 1, kSelectThreads,
                             stream, &params, failure);
}

/* ---- candidate_top_k_512 ----------------------------------------------------------------------------------------- */

size_t dsv41_candidate_top_k_scratch_bytes(const Dsv41Device* device, const Dsv41CandidateTopKArgs* args) {
  (void)device, (void)args;
  return 0;
}

int dsv41_candidate_top_k(const Dsv41Device* device, void* stream, void* scratch,
                          const Dsv41CandidateTopKArgs* args, Dsv41Failure* failure) {
  (void)scratch;
  failure->launched = 0;
  failure->code = DSV41_OK;
  if (args->rows == 0) return DSV41_OK;
  if ((int64_t)args->slots * args->block_size > kMaxGathered) return failure->code = DSV41_NO_KERNEL;
  CandidateSelectParams params = {.args = *args};
  params.block_shift = -1;
  for (int shift = 0; shift < 31; shift++)
    if (args->block_size == 1 << shift) params.block_shift = shift;
  params.vectors = args->block_size % 4 == 0 && rows_are_aligned(args->logits, args->logits_stride, args->rows);
  return dsv41_device_launch(device, DSV41_KERNEL_CANDIDATE_SELECT, (unsigned)args->rows, 1, kSelectThreads,
                             stream, &params, failure);
}

/* ---- compact_top_k_512 and compact_top_k_512_regs ---------------------------------------------------------------- */

size_t dsv41_compact_top_k_scratch_bytes(const Dsv41Device* device, const Dsv41CompactTopKArgs* args) {
  (void)device, (void)args;
  return 0;
}

int dsv41_compact_top_k(const Dsv41Device* device, void* stream, void* scratch, const Dsv41CompactTopKArgs* args,
                        Dsv41Failure* failure) {
  (void)scratch;
  failure->launched = 0;
  failure->code = DSV41_OK;
  if (args->rows == 0) return DSV41_OK;
  if (!args->register_select) return failure->code = DSV41_NO_KERNEL;
  return dsv41_device_launch(device, DSV41_KERNEL_COMPACT_SELECT, (unsigned)args->rows, 1, kSelectThreads,
                             stream, args, failure);
}

/* ---- candidate_blocks -------------------------------------------------------------------------------------------- */

size_t dsv41_candidate_blocks_scratch_bytes(const Dsv41Device* device, const Dsv41CandidateBlocksArgs* args) {
  (void)device, (void)args;
  return 0;
}

int dsv41_candidate_blocks(const Dsv41Device* device, void* stream, void* scratch,
                           const Dsv41CandidateBlocksArgs* args, Dsv41Failure* failure) {
  (void)device, (void)stream, (void)scratch, (void)args;
  failure->launched = 0;
  return failure->code = DSV41_NO_KERNEL;
}
