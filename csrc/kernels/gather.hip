/* SPDX-License-Identifier: Apache-2.0
 *
 * candidate_gather_kernel: a row's candidates as a compact row in scratch, where there are more of
 * them than a workgroup holds in registers. radix_chunk_kernel then selects among them.
 *
 *   grid     (rows, workgroups), 1,024 threads. A workgroup owns kGatherIds adjacent block ids, and
 *            those as many further on as all workgroups of the row own. It looks at every slot
 *            twice: first it notes the first slot of each of its ids, then it copies the columns of
 *            those slots.
 *   LDS      the first slot of each id, 32 KiB
 *   scratch  GatherParams.values and ids, every entry of which is written
 *
 * A slot whose id stood in an earlier one, and one that holds no live column, is written as dead. A
 * slot is written by the workgroup that owns its id, or by the first one if its id has no live
 * column.
 */
#include "device/cut.h"
#include "device/params.h"
#include "device/platform.h"
#include "device/row.h"
#include "tuning.h"

DSV41_KERNEL(kGatherThreads) void candidate_gather_kernel(GatherParams params) {
  using namespace dsv41;
  begin_launch();
  __shared__ int first_slot[kGatherIds];
  const Dsv41CandidateTopKArgs& args = params.args;
  const int row = workgroup_x();
  const int64_t end = row_end(args.ends, row, args.width);
  if (end <= DSV41_TOP_K) return;
  const float* logits = args.logits + row * args.logits_stride;
  const int32_t* candidates = args.candidates + row * args.candidates_stride;
  float* values = params.values + row * params.stride;
  int32_t* ids = params.ids + row * params.stride;
  const int block_size = args.block_size;
  const int64_t live_blocks = (end + block_size - 1) / block_size;

  for (int64_t low = static_cast<int64_t>(workgroup_y()) * kGatherIds; low < live_blocks;
       low += static_cast<int64_t>(params.workgroups) * kGatherIds) {
    for (int i = thread_id(); i < kGatherIds; i += kGatherThreads) first_slot[i] = args.slots;
    barrier(); /* without it a slow wave clears what a fast one has noted */
    for (int slot = thread_id(); slot < args.slots; slot += kGatherThreads) {
      const int64_t id = candidates[slot] - low;
      if (id >= 0 && id < kGatherIds) lds_min(&first_slot[id], slot);
    }
    barrier(); /* without it a wave copies a slot before an earlier one with its id is noted */
    for (int slot = thread_id(); slot < args.slots; slot += kGatherThreads) {
      const int64_t block = candidates[slot];
      const bool none = block < 0 || block >= live_blocks;
      if (none ? low != 0 : block < low || block >= low + kGatherIds) continue;
      const bool again = none || first_slot[block - low] != slot;
      const int64_t column = block * block_size;
      const int64_t live = again ? 0 : end - column < block_size ? end - column : block_size;
      const int64_t at = static_cast<int64_t>(slot) * block_size;
      /* Eight loads before the first store, which the compiler could not know to be elsewhere. */
      for (int first = 0; first < block_size; first += 8) {
        float copied[8];
#pragma unroll
        for (int c = 0; c < 8; c++)
          copied[c] = first + c < live ? logits[column + first + c] : bits_float(kMinusInfBits);
#pragma unroll
        for (int c = 0; c < 8; c++) {
          if (first + c >= block_size) break;
          values[at + first + c] = copied[c];
          ids[at + first + c] = first + c < live ? static_cast<int32_t>(column + first + c) : -1;
        }
      }
    }
    barrier(); /* without it a fast wave clears slots that a slow one still looks up */
  }
}
