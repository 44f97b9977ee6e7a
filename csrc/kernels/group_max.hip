/* SPDX-License-Identifier: Apache-2.0
 *
 * group_max_kernel: the maximum of every group of 16, 32 or 64 adjacent columns. First of two launches for rows
 * longer than a workgroup's registers; top_k_select_kernel is the second.
 *
 *   grid       (rows, chunks of the width), 256 threads: the first chunks of all rows come first
 *   lane       4 loads of 16 bytes, kWaveCols apart: a chunk is 4,096 columns
 *   writes     maxima[row, column / group], NaN where a group holds one
 *   LDS        none      scratch  TopKSelectParams.maxima, of the caller's allocator
 *
 * The grid covers the width; workgroups past the row's live end, and all of a row that its second launch reads by
 * itself, return at once. So one captured graph serves short and long rows.
 */
#include "device/order.h"
#include "device/params.h"
#include "device/platform.h"
#include "device/row.h"
#include "device/span.h"
#include "tuning.h"

namespace dsv41 {

/* The larger of this lane's and its partners' keys, over groups of 4, 8 or 16 lanes. */
DSV41_INLINE uint32_t group_of_lanes_max(uint32_t key, int group_lanes) {
  uint32_t other;
  key = (other = swap_lanes<1>(key)) > key ? other : key;
  key = (other = swap_lanes<2>(key)) > key ? other : key;
  if (group_lanes >= 8) key = (other = swap_lanes<7>(key)) > key ? other : key;
  if (group_lanes >= 16) key = (other = swap_lanes<15>(key)) > key ? other : key;
  return key;
}

}  // namespace dsv41

DSV41_KERNEL(kGroupMaxThreads) void group_max_kernel(TopKSelectParams params) {
  using namespace dsv41;
  const int row = workgroup_x();
  const Dsv41TopKArgs& args = params.args;
  const int end = static_cast<int>(row_end(args.ends, row, args.width));
  const int chunk_first = workgroup_y() * kGroupMaxCols;
  if (end <= params.direct_cols || chunk_first >= end) return;
  const float* logits = args.logits + row * args.logits_stride;

  const int wave_first = chunk_first + uniform(thread_id() / kWaveSize) * kWaveCols * kGroupMaxLoads;
  const Span span = {wave_first + lane_id() * 4};
  const int whole = static_cast<int>(args.width & ~int64_t{3});
  Float4 loaded[kGroupMaxLoads];
#pragma unroll
  for (int j = 0; j < kGroupMaxLoads; j++) {
    const int column = span.column(4 * j);
    loaded[j] = {kMinusInf, kMinusInf, kMinusInf, kMinusInf};
    if (column < end && column < whole)
      loaded[j] = *reinterpret_cast<const Float4*>(logits + column);
    if (column < end && column + 4 > end) {
      /* The row ends inside this vector. */
      float* components = &loaded[j].x;
#pragma unroll
      for (int c = 0; c < 4; c++) {
        if (column + c >= end)
          components[c] = kMinusInf;
        else if (column >= whole)
          components[c] = logits[column + c];
      }
    }
  }
  const int group_cols = choose_group_cols(end);
  const int group_lanes = group_cols / 4;
  uint32_t mine = 0;
#pragma unroll
  for (int j = 0; j < kGroupMaxLoads; j++) {
    const Float4 v = loaded[j];
    float left = v.x > v.y ? v.x : v.y, right = v.z > v.w ? v.z : v.w;
    uint32_t key = key_of_number(left > right ? left : right);
    WaveMask odd = unordered_lanes(v.x, v.y) | unordered_lanes(v.z, v.w);
    if (odd != 0 && has_lane(odd)) key = kKeyNan;
    key = group_of_lanes_max(key, group_lanes);
    if (lane_id() % 4 == j) mine = key;
  }
  /* Lane l of a group writes the group's maximum of load l % 4. */
  const int column = span.column(0) + (lane_id() % 4) * kWaveCols;
  if (lane_id() % group_lanes < 4 && column - lane_id() % group_lanes * 4 < end)
    params.maxima[row * params.maxima_stride + column / group_cols] =
        mine == kKeyNan ? bits_float(0x7fffffffu) : number_of_key(mine);
}
