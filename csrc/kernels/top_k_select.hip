/* SPDX-License-Identifier: Apache-2.0
 *
 * top_k_select_kernel: the 512 columns of a dense row, from registers.
 *
 *   grid       rows, one workgroup of 1,024 threads each
 *   row        up to direct_cols live columns: read once, selected (device/select.h), written
 *              longer: the maxima that group_max_kernel left are selected first. The 512 best groups, ties to
 *              the lowest, hold the 512 best columns, ties to the lowest: let T be the 512th largest maximum.
 *              Fewer than 512 groups have a larger one, and a value above T lies in those alone; each group
 *              taken for a tie holds a column equal to T, lower than any in the tied groups left out, and no
 *              more such columns are needed than groups were taken. So 512 groups are read again, in order.
 *   LDS        SelectLds and 512 group numbers, 38 KiB      scratch  maxima, read only
 */
#include "device/params.h"
#include "device/platform.h"
#include "device/row.h"
#include "device/select.h"
#include "device/span.h"
#include "tuning.h"

namespace dsv41 {

struct TopKSelectLds {
  SelectLds select;
  int groups[DSV41_TOP_K];
};

template <int kLoads>
DSV41_INLINE void select_direct(const float* logits, int end, int64_t width, int32_t* indices,
                                SelectLds& lds) {
  float values[4 * kLoads];
  const Span span = load_span<kLoads>(values, logits, end, width);
  const int wave_end = (wave_id() + 1) * wave_span(end) < end ? (wave_id() + 1) * wave_span(end) : end;
  select_values<true>(
      values, [&](int i) { return span.column(i) < wave_end; },
      [&](int i) { return span.column(i); }, [&](int rank, int column) { indices[rank] = column; },
      lds);
}

/* The columns of the chosen groups: vector q of them is vector q % (group / 4) of group q / (group / 4). */
template <int kLoads>
DSV41_INLINE void select_in_groups(const float* logits, int end, int64_t width, int32_t* indices,
                                   TopKSelectLds& lds) {
  constexpr int kGroupCols = kLoads * kSelectThreads * 4 / DSV41_TOP_K;
  constexpr int kGroupVectors = kGroupCols / 4;
  float values[4 * kLoads];
  int first[kLoads];
  const int whole = static_cast<int>(width & ~int64_t{3});
#pragma unroll
  for (int j = 0; j < kLoads; j++) {
    const int vector = (wave_id() * kLoads + j) * kWaveSize + lane_id();
    first[j] = lds.groups[vector / kGroupVectors] * kGroupCols + vector % kGroupVectors * 4;
    Float4 loaded = {kMinusInf, kMinusInf, kMinusInf, kMinusInf};
    if (first[j] < end && first[j] < whole)
      loaded = *reinterpret_cast<const Float4*>(logits + first[j]);
    values[4 * j] = loaded.x;
    values[4 * j + 1] = loaded.y;
    values[4 * j + 2] = loaded.z;
    values[4 * j + 3] = loaded.w;
  }
  if (end % 4 != 0) {
#pragma unroll
    for (int i = 0; i < 4 * kLoads; i++) {
      if (first[i / 4] != (end & ~3)) continue;
      if (first[i / 4] + i % 4 >= end)
        values[i] = kMinusInf;
      else if (first[i / 4] >= whole)
        values[i] = logits[first[i / 4] + i % 4];
    }
  }
  select_values<true>(
      values, [&](int i) { return first[i / 4] + i % 4 < end; },
      [&](int i) { return first[i / 4] + i % 4; },
      [&](int rank, int column) { indices[rank] = column; }, lds.select);
}

template <int kLoads>
DSV41_INLINE void select_groups(const float* maxima, int groups, TopKSelectLds& lds) {
  float values[4 * kLoads];
  /* Past the last group the row of maxima is not written: its vector is, the rest of it is not live. */
  const Span span = load_span<kLoads>(values, maxima, groups, kMaxMaxima);
  const int wave_end =
      (wave_id() + 1) * wave_span(groups) < groups ? (wave_id() + 1) * wave_span(groups) : groups;
  select_values<true>(
      values, [&](int i) { return span.column(i) < wave_end; },
      [&](int i) { return span.column(i); }, [&](int rank, int group) { lds.groups[rank] = group; },
      lds.select);
}

}  // namespace dsv41

DSV41_KERNEL(kSelectThreads) void top_k_select_kernel(TopKSelectParams params) {
  using namespace dsv41;
  __shared__ TopKSelectLds lds;
  const Dsv41TopKArgs& args = params.args;
  const int row = workgroup_x();
  const int end = static_cast<int>(row_end(args.ends, row, args.width));
  const float* logits = args.logits + row * args.logits_stride;
  int32_t* indices = args.indices + row * args.indices_stride;
  if (end <= DSV41_TOP_K) {
    write_short_row(indices, end, kSelectThreads);
    return;
  }
  if (end <= params.direct_cols) {
    const int span = wave_span(end);
    if (span <= kWaveCols)
      select_direct<1>(logits, end, args.width, indices, lds.select);
    else if (span <= 2 * kWaveCols)
      select_direct<2>(logits, end, args.width, indices, lds.select);
    else if (span <= 4 * kWaveCols)
      select_direct<4>(logits, end, args.width, indices, lds.select);
    else
      select_direct<8>(logits, end, args.width, indices, lds.select);
    return;
  }
  const int group_cols = choose_group_cols(end);
  const int groups = (end + group_cols - 1) / group_cols;
  const float* maxima = params.maxima + row * params.maxima_stride;
  const int span = wave_span(groups);
  if (span <= kWaveCols)
    select_groups<1>(maxima, groups, lds);
  else if (span <= 2 * kWaveCols)
    select_groups<2>(maxima, groups, lds);
  else
    select_groups<4>(maxima, groups, lds);
  barrier();
  if (group_cols == 16)
    select_in_groups<2>(logits, end, args.width, indices, lds);
  else if (group_cols == 32)
    select_in_groups<4>(logits, end, args.width, indices, lds);
  else
    select_in_groups<8>(logits, end, args.width, indices, lds);
}
