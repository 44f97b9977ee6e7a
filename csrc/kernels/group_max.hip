/* SPDX-License-Identifier: Apache-2.0
 *
 * group_max_kernel: launch 1 of long rows. The row is read once, by all compute units, and the
 * largest value of each group of adjacent columns is left for top_k_select_kernel.
 *
 *   grid     (rows, workgroups), 256 threads. A workgroup takes chunks of kGroupMaxCols columns, each
 *            `workgroups` chunks after the last, up to the row's live end: a wide buffer of short
 *            rows costs no workgroups. Rows that top_k_select_kernel reads by itself are skipped.
 *   wave     kGroupMaxLoads loads of 16 bytes a lane, all in flight; 4 to 16 lanes share a group
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

/* The largest of this lane's and its partners' values, over groups of 4, 8 or 16 lanes. */
template <class T, class Larger>
DSV41_INLINE T group_of_lanes_max(T value, int group_lanes, Larger larger) {
  value = larger(value, swap_lanes<1>(value));
  value = larger(value, swap_lanes<2>(value));
  if (group_lanes >= 8) value = larger(value, swap_lanes<7>(value));
  if (group_lanes >= 16) value = larger(value, swap_lanes<15>(value));
  return value;
}

/* One load of each lane after another, adjacent: kGroupMaxLoads * kWaveCols columns. */
DSV41_INLINE void write_maxima(const Values& values, int wave_first, float* maxima) {
  Tile<kGroupMaxLoads> tile;
  int columns[kGroupMaxLoads];
#pragma unroll
  for (int l = 0; l < kGroupMaxLoads; l++) columns[l] = wave_first + l * kWaveCols + lane_id() * 4;
  load_vectors(tile, columns, values);

  const int group_cols = choose_group_cols(values.end);
  const int group_lanes = group_cols / 4;
  float mine = 0.0f;
  if (!make_keys_if_nan(tile)) {
#pragma unroll
    for (int l = 0; l < kGroupMaxLoads; l++) {
      float best = largest(tile.values[4 * l], tile.values[4 * l + 1], tile.values[4 * l + 2]);
      best = largest(best, tile.values[4 * l + 3], tile.values[4 * l + 3]);
      best =
          group_of_lanes_max(best, group_lanes, [](float a, float b) { return largest(a, b, b); });
      if (lane_id() % 4 == l) mine = best;
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
      best = group_of_lanes_max(best, group_lanes,
                                [](uint32_t a, uint32_t b) { return a > b ? a : b; });
      if (lane_id() % 4 == l)
        mine = best == kKeyNan ? bits_float(0x7fffffffu) : number_of_key(best);
    }
  }
  /* Lane l of a group writes the group's maximum of load l % 4. */
  const int column = wave_first + (lane_id() % 4) * kWaveCols + lane_id() * 4;
  const int in_group = lane_id() % group_lanes;
  const int written_end = (values.end + 4 * group_cols - 1) & ~(4 * group_cols - 1);
  if (in_group < 4 && column - in_group * 4 < written_end) maxima[column / group_cols] = mine;
}

}  // namespace dsv41

DSV41_KERNEL(kGroupMaxThreads) void group_max_kernel(TopKSelectParams params) {
  using namespace dsv41;
  static_assert(kGroupMaxLoads == 4, "lane l of a group writes the group's maximum of load l % 4");
  const int row = workgroup_x();
  const Dsv41TopKArgs& args = params.args;
  const int end = static_cast<int>(row_end(args.ends, row, args.width));
  if (end <= kDirectCols) return;
  const Values values = {args.logits + row * args.logits_stride, end,
                         static_cast<int>(args.width & ~int64_t{3})};
  float* maxima = params.maxima + row * params.maxima_stride;
  const int wave_cols = kWaveCols * kGroupMaxLoads;
  int wave_first = workgroup_y() * kGroupMaxCols + uniform(thread_id() / kWaveSize) * wave_cols;
  for (; wave_first < end; wave_first += params.workgroups * kGroupMaxCols)
    write_maxima(values, wave_first, maxima);
}
