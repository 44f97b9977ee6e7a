/* SPDX-License-Identifier: Apache-2.0
 *
 * group_max_kernel: launch 1 of long rows. The row is read once, by all compute units, and the
 * largest value of each group of adjacent columns is left for top_k_select_kernel.
 *
 *   grid     (rows, workgroups), 256 threads. A workgroup takes chunks of kGroupMaxCols columns, each
 *            `workgroups` chunks after the last, up to the row's live end: a wide buffer of short
 *            rows costs no workgroups. Rows that top_k_select_kernel reads by itself are skipped.
 *   wave     kGroupMaxLoads loads of 16 bytes a lane, all in flight; 1 to 16 lanes share a group
 *   maxima   scratch [rows, maxima_stride] of the launcher. The group that holds a NaN gets NaN. What
 *            is not live counts as -inf, and the last vector of maxima is written whole.
 *   LDS      none
 */
#include "device/order.h"
#include "device/params.h"
#include "device/platform.h"
#include "device/row.h"
#include "device/tiles.h"
#include "tuning.h"

namespace dsv41 {

/* The largest of this lane's and its partners' values, over groups of kLanes lanes. */
template <int kLanes, class T, class Larger>
DSV41_INLINE T group_of_lanes_max(T value, Larger larger) {
  if (kLanes >= 2) value = larger(value, swap_lanes<1>(value));
  if (kLanes >= 4) value = larger(value, swap_lanes<2>(value));
  if (kLanes >= 8) value = larger(value, swap_lanes<7>(value));
  if (kLanes >= 16) value = larger(value, swap_lanes<15>(value));
  return value;
}

/* The largest of each load's group, in all lanes that share it. */
template <int kLanes>
DSV41_INLINE void group_maxima(Tile<kGroupMaxLoads>& tile, float (&maxima)[kGroupMaxLoads]) {
  if (!make_keys_if_nan(tile)) {
#pragma unroll
    for (int l = 0; l < kGroupMaxLoads; l++) {
      const float* values = tile.values + 4 * l;
      const float best = largest(largest(values[0], values[1], values[2]), values[3], values[3]);
      maxima[l] =
          group_of_lanes_max<kLanes>(best, [](float a, float b) { return largest(a, b, b); });
    }
  } else {
#pragma unroll
    for (int l = 0; l < kGroupMaxLoads; l++) {
      uint32_t best = 0;
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const uint32_t key = float_bits(tile.values[4 * l + c]);
        best = key > best ? key : best;
      }
      best = group_of_lanes_max<kLanes>(best, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
      maxima[l] = best == kKeyNan ? bits_float(0x7fffffffu) : number_of_key(best);
    }
  }
}

/* One load of each lane after another, adjacent: kGroupMaxLoads * kWaveCols columns. */
template <int kLanes>
DSV41_INLINE void write_maxima(const Values& values, int wave_first, float* maxima) {
  Tile<kGroupMaxLoads> tile;
  int columns[kGroupMaxLoads];
#pragma unroll
  for (int l = 0; l < kGroupMaxLoads; l++) columns[l] = wave_first + l * kWaveCols + lane_id() * 4;
  load_vectors(tile, columns, values);
  float group[kGroupMaxLoads];
  group_maxima<kLanes>(tile, group);

  /* A store takes a lane of each group for each load, as far as there are lanes. */
  constexpr int kGroupCols = 4 * kLanes;
  constexpr int kStoreLoads = kLanes < kGroupMaxLoads ? kLanes : kGroupMaxLoads;
  const int written_end = (values.end + 4 * kGroupCols - 1) & ~(4 * kGroupCols - 1);
  const int in_group = lane_id() % kLanes;
#pragma unroll
  for (int first = 0; first < kGroupMaxLoads; first += kStoreLoads) {
    float mine = group[first];
#pragma unroll
    for (int l = 1; l < kStoreLoads; l++)
      if (in_group == l) mine = group[first + l];
    const int column = wave_first + (first + in_group) * kWaveCols + lane_id() * 4;
    if (in_group < kStoreLoads && column < written_end) maxima[column / kGroupCols] = mine;
  }
}

template <int kLanes>
DSV41_INLINE void write_maxima_of_row(const Values& values, int workgroups, float* maxima) {
  const int wave_cols = kWaveCols * kGroupMaxLoads;
  int wave_first = workgroup_y() * kGroupMaxCols + uniform(thread_id() / kWaveSize) * wave_cols;
  for (; wave_first < values.end; wave_first += workgroups * kGroupMaxCols)
    write_maxima<kLanes>(values, wave_first, maxima);
}

}  // namespace dsv41

DSV41_KERNEL(kGroupMaxThreads) void group_max_kernel(TopKSelectParams params) {
  using namespace dsv41;
  begin_launch();
  const int row = workgroup_x();
  const Dsv41TopKArgs& args = params.args;
  const int end = static_cast<int>(row_end(args.ends, row, args.width));
  if (end <= kDirectCols) return;
  const Values values = {args.logits + row * args.logits_stride, end,
                         static_cast<int>(args.width & ~int64_t{3})};
  float* maxima = params.maxima + row * params.maxima_stride;
  switch (choose_group_cols(end)) {
    case 4:
      return write_maxima_of_row<1>(values, params.workgroups, maxima);
    case 8:
      return write_maxima_of_row<2>(values, params.workgroups, maxima);
    case 16:
      return write_maxima_of_row<4>(values, params.workgroups, maxima);
    case 32:
      return write_maxima_of_row<8>(values, params.workgroups, maxima);
    default:
      return write_maxima_of_row<16>(values, params.workgroups, maxima);
  }
}
