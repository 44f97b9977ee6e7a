/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of candidate_logits: the kernel that Triton compiled for gfx942
 * (dsv41topk/cand_logits.py), and the plain one of the code object (kernels/candidate_logits.hip).
 *
 * Triton's own launcher costs microseconds of Python a call. The code object it made is an ordinary
 * one, so it is loaded and launched through the runtime table like every other kernel. The order of
 * the arguments is SIGNATURE in _logits.py, which compares it with the code object's own metadata
 * before a kernel comes here.
 */
#include <limits.h>
#include <string.h>

#include "abi.h"

enum { kPlainThreads = 256 }; /* kThreads in candidate_logits.hip: one slot a lane */
enum { kTileSlots = 128 };    /* TILE in _logits.py: slots of one workgroup */
enum { kHeadSize = 128 };     /* bytes of a key */
enum { kLoadBytes = 16 };     /* queries and keys are loaded 16 bytes at a time */
enum { kMaxGridY = 65535 };   /* gfx942 packs the y and z workgroup ids into one register */

int dsv41_logits_load(const Dsv41Runtime* runtime, int ordinal, const void* image, const char* name,
                      unsigned threads, unsigned lds_bytes, Dsv41LogitsKernel* kernel,
                      Dsv41Failure* failure) {
  Dsv41LogitsKernel loaded = {
      .runtime = runtime, .ordinal = ordinal, .threads = threads, .lds_bytes = lds_bytes};
  int previous, restored;
  failure->launched = 0;
  failure->kernel = "candidate logits module load";
  if (strlen(name) >= sizeof loaded.name) return failure->code = DSV41_NO_KERNEL;
  strcpy(loaded.name, name);
  failure->code = runtime->current_device(&previous);
  if (failure->code == 0 && previous != ordinal) failure->code = runtime->set_device(ordinal);
  if (failure->code != 0) return failure->code;
  failure->code = runtime->load(ordinal, image, &loaded.module);
  if (failure->code == 0)
    failure->code = runtime->get_function(loaded.module, loaded.name, &loaded.function);
  restored = previous == ordinal ? 0 : runtime->set_device(previous);
  if (failure->code == 0) failure->code = restored;
  if (failure->code == 0) *kernel = loaded;
  return failure->code;
}

int dsv41_logits_serves(const Dsv41CandidateLogitsArgs* args) {
  int64_t row_slots = (int64_t)args->slots * args->block_size;
  uintptr_t loads =
      (uintptr_t)args->q | (uintptr_t)args->kv_cache | (uintptr_t)args->page_stride_bytes;
  return args->fp8 == DSV41_E4M3FNUZ && loads % kLoadBytes == 0 && args->pages > 0 &&
         args->page_stride_bytes <= INT32_MAX && args->table_columns > 0 &&
         row_slots <= (int64_t)kMaxGridY * kTileSlots;
}

int dsv41_logits_launch(const Dsv41LogitsKernel* kernel, void* stream,
                        const Dsv41CandidateLogitsArgs* args, Dsv41Failure* failure) {
  int64_t keys_bytes = (int64_t)args->page_size * kHeadSize;
  int64_t table_end = (int64_t)args->table_columns * args->page_size;
  int32_t page_stride_bytes = (int32_t)args->page_stride_bytes;
  const uint8_t* scales = args->kv_cache + keys_bytes;
  int32_t rows_per_request = args->rows_per_request;
  int32_t table_end_clamped = (int32_t)(table_end < INT32_MAX ? table_end : INT32_MAX);
  int32_t row_slots = args->slots * args->block_size;
  void* no_scratch = NULL; /* Triton's two; _logits.py hands over only kernels that need none */
  void* params[] = {
      (void*)&args->q,
      (void*)&args->kv_cache,
      &page_stride_bytes,
      &scales,
      (void*)&args->pages,
      (void*)&args->ends.lens,
      &rows_per_request,
      (void*)&args->block_table,
      (void*)&args->block_table_stride,
      &table_end_clamped,
      (void*)&args->candidates,
      (void*)&args->candidates_stride,
      (void*)&args->weights,
      (void*)&args->weights_stride,
      (void*)&args->out_logits,
      (void*)&args->out_ids,
      &row_slots,
      &no_scratch,
      &no_scratch,
  };
  if (args->rows == 0 || row_slots == 0) return DSV41_OK;
  return dsv41_function_launch(kernel->runtime, kernel->ordinal, kernel->function, kernel->name,
                               (unsigned)args->rows,
                               (unsigned)((row_slots + kTileSlots - 1) / kTileSlots),
                               kernel->threads, kernel->lds_bytes, stream, params, failure);
}

int dsv41_candidate_logits(const Dsv41Device* device, void* stream,
                           const Dsv41CandidateLogitsArgs* args, Dsv41Failure* failure) {
  const int64_t row_slots = (int64_t)args->slots * args->block_size;
  const int64_t workgroups = (row_slots + kPlainThreads - 1) / kPlainThreads * args->rows;
  failure->launched = 0;
  if (workgroups == 0) return failure->code = DSV41_OK;
  if (workgroups > INT32_MAX) {
    failure->kernel = dsv41_kernel_name(DSV41_KERNEL_CANDIDATE_LOGITS);
    return failure->code = DSV41_NO_KERNEL;
  }
  return dsv41_device_launch(device, DSV41_KERNEL_CANDIDATE_LOGITS, (unsigned)workgroups, 1,
                             kPlainThreads, stream, args, failure);
}
