/* SPDX-License-Identifier: Apache-2.0
 *
 * candidate_select_kernel: the 512 columns of a dense row among its candidate blocks, gathered into registers.
 *
 *   grid   rows, one workgroup of 1,024 threads each, up to 32,768 candidates
 *   order  (wave, load, lane, component) is the order of the slots; ties to the lowest column
 *   LDS    SelectLds, 35 KiB; the list of first slots lies where the survivors come later      scratch  none
 *
 * A list that ascends apart from a tail of empty slots is what candidate_blocks writes, and holds no block twice.
 * Any other list is searched for blocks listed twice: window by window of block ids, each id takes its lowest slot,
 * and other slots of it are dropped.
 */
#include "device/params.h"
#include "device/platform.h"
#include "device/row.h"
#include "device/select.h"
#include "device/span.h"
#include "tuning.h"

namespace dsv41 {

constexpr int kFirstSlotIds = 2 * kSurvivors; /* as int32 in the survivors' place */

/* Drop slots whose block has a lower slot. All of the workgroup comes here, or none. */
template <int kCount>
DSV41_INLINE void drop_repeated(int (&blocks)[kCount], const int (&slots)[kCount], int block_count,
                                SelectLds& lds) {
  int* first_slot = reinterpret_cast<int*>(lds.survivors);
  for (int window = 0; window < block_count; window += kFirstSlotIds) {
    for (int i = thread_id(); i < kFirstSlotIds; i += kSelectThreads) first_slot[i] = INT32_MAX;
    barrier();
#pragma unroll
    for (int i = 0; i < kCount; i++)
      if (blocks[i] >= window && blocks[i] - window < kFirstSlotIds)
        lds_min(&first_slot[blocks[i] - window], slots[i]);
    barrier();
#pragma unroll
    for (int i = 0; i < kCount; i++)
      if (blocks[i] >= window && blocks[i] - window < kFirstSlotIds &&
          first_slot[blocks[i] - window] != slots[i])
        blocks[i] = -1;
    barrier(); /* without it a fast wave clears slots that a slow one still compares */
  }
}

/* kPerLoad is 1 where a load of four values lies in one block, 4 where each value has its own. */
template <int kLoads, int kPerLoad>
DSV41_INLINE int select_candidates(const CandidateSelectParams& params, const float* logits, int end,
                                   const int32_t* candidates, int32_t* indices, SelectLds& lds) {
  constexpr int kCount = kLoads * kPerLoad;
  const int block_size = params.args.block_size;
  const int total = params.args.slots * block_size;
  int blocks[kCount], slots[kCount], first[kCount];
  bool in_order = true;
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    const int position =
        ((wave_id() * kLoads + i / kPerLoad) * kWaveSize + lane_id()) * 4 + i % kPerLoad;
    slots[i] = position < total ? position / block_size : -1;
    first[i] = position % block_size;
    blocks[i] = slots[i] >= 0 ? candidates[slots[i]] : -1;
    const int before = slots[i] > 0 ? candidates[slots[i] - 1] : -1;
    if (blocks[i] >= params.block_count) blocks[i] = -1;
    /* A block follows a smaller one, or stands in slot 0. */
    if (blocks[i] >= 0 && slots[i] > 0 && !(before >= 0 && before < blocks[i])) in_order = false;
  }
  const bool wave_in_order = ballot(!in_order) == 0;
  const int wave = wave_id();
  if (lane_id() == 0) lds.tied[wave] = wave_in_order;
  barrier();
  const bool all_in_order = ballot(lds.tied[lane_id() % kSelectWaves] == 0) == 0;
  if (!all_in_order) drop_repeated(blocks, slots, params.block_count, lds);
  float values[4 * kLoads];
  const int whole = static_cast<int>(params.args.width & ~int64_t{3});
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    const int64_t column = static_cast<int64_t>(blocks[i]) * block_size + first[i];
    first[i] = blocks[i] >= 0 && column < end ? static_cast<int>(column) : -1;
    if constexpr (kPerLoad == 4) {
      values[i] = first[i] >= 0 ? logits[first[i]] : kMinusInf;
    } else {
      Float4 loaded = {kMinusInf, kMinusInf, kMinusInf, kMinusInf};
      if (first[i] >= 0 && first[i] < whole)
        loaded = *reinterpret_cast<const Float4*>(logits + first[i]);
      values[4 * i] = loaded.x;
      values[4 * i + 1] = loaded.y;
      values[4 * i + 2] = loaded.z;
      values[4 * i + 3] = loaded.w;
    }
  }
  if (kPerLoad == 1 && end % 4 != 0) {
#pragma unroll
    for (int i = 0; i < 4 * kLoads; i++) {
      if (first[i / 4] != (end & ~3)) continue;
      if (first[i / 4] + i % 4 >= end)
        values[i] = kMinusInf;
      else if (first[i / 4] >= whole)
        values[i] = logits[first[i / 4] + i % 4];
    }
  }
  auto place_of = [&](int i) { return kPerLoad == 4 ? first[i] : first[i / 4] + i % 4; };
  return select_values<false>(
      values,
      [&](int i) {
        return kPerLoad == 4 ? first[i] >= 0 : first[i / 4] >= 0 && first[i / 4] + i % 4 < end;
      },
      place_of, [&](int rank, int column) { indices[rank] = column; }, lds);
}

}  // namespace dsv41

DSV41_KERNEL(kSelectThreads) void candidate_select_kernel(CandidateSelectParams params) {
  using namespace dsv41;
  __shared__ SelectLds lds;
  const Dsv41CandidateTopKArgs& args = params.args;
  const int row = workgroup_x();
  const int end = static_cast<int>(row_end(args.ends, row, args.width));
  int32_t* indices = args.indices + row * args.indices_stride;
  if (end <= DSV41_TOP_K) {
    write_short_row(indices, end, kSelectThreads);
    return;
  }
  const float* logits = args.logits + row * args.logits_stride;
  const int32_t* candidates = args.candidates + row * args.candidates_stride;
  const int total = args.slots * args.block_size;
  int written;
  if (params.vectors && total <= 4 * 4 * kSelectThreads)
    written = select_candidates<4, 1>(params, logits, end, candidates, indices, lds);
  else if (params.vectors)
    written = select_candidates<8, 1>(params, logits, end, candidates, indices, lds);
  else if (total <= 4 * 4 * kSelectThreads)
    written = select_candidates<4, 4>(params, logits, end, candidates, indices, lds);
  else
    written = select_candidates<8, 4>(params, logits, end, candidates, indices, lds);
  fill_rest(indices, written, kSelectThreads);
}
