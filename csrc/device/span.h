/* SPDX-License-Identifier: Apache-2.0
 *
 * A row in the registers of a workgroup: each wave holds adjacent columns, 16 bytes a lane and load, so that
 * (wave, load, lane, component) is the order of the columns.
 */
#ifndef DSV41TOPK_DEVICE_SPAN_H_
#define DSV41TOPK_DEVICE_SPAN_H_

#include "device/platform.h"
#include "device/select.h"

namespace dsv41 {

constexpr int kWaveCols = kWaveSize * 4; /* columns of one load of a wave */

/* A wave's share of `cols` columns, in whole vectors: as even as can be, so that all waves offer bounds. */
DSV41_INLINE int wave_span(int cols) { return ((cols + kSelectWaves - 1) / kSelectWaves + 3) & ~3; }

/* The column of item i, which is component i % 4 of load i / 4. */
struct Span {
  int first; /* the lane's column in load 0 */
  DSV41_INLINE_MEMBER int column(int i) const { return first + (i / 4) * kWaveCols + i % 4; }
};

constexpr float kMinusInf = -__builtin_huge_valf();

/* Read the wave's span of a 16-byte aligned row; what is not live becomes -inf. Nothing past `width` is read, nor
 * past the vector of the last live column. */
template <int kLoads>
DSV41_INLINE Span load_span(float (&values)[4 * kLoads], const float* row, int end, int64_t width) {
  const int span_cols = wave_span(end);
  const int wave_first = wave_id() * span_cols;
  const int wave_end = wave_first + span_cols < end ? wave_first + span_cols : end;
  const Span span = {wave_first + lane_id() * 4};
  const int whole = static_cast<int>(width & ~int64_t{3});
  const int vector_end = wave_end < whole ? wave_end : whole;
#pragma unroll
  for (int j = 0; j < kLoads; j++) {
    Float4 loaded = {kMinusInf, kMinusInf, kMinusInf, kMinusInf};
    if (span.column(4 * j) < vector_end)
      loaded = *reinterpret_cast<const Float4*>(row + span.column(4 * j));
    values[4 * j] = loaded.x;
    values[4 * j + 1] = loaded.y;
    values[4 * j + 2] = loaded.z;
    values[4 * j + 3] = loaded.w;
  }
  if (end % 4 != 0) {
    /* One lane holds the end inside a vector. */
    const int last = end & ~3;
#pragma unroll
    for (int j = 0; j < kLoads; j++) {
      if (span.column(4 * j) != last || last >= wave_end) continue;
#pragma unroll
      for (int c = 0; c < 4; c++) {
        if (last + c >= end)
          values[4 * j + c] = kMinusInf;
        else if (last >= whole)
          values[4 * j + c] = row[last + c];
      }
    }
  }
  return span;
}

}  // namespace dsv41

#endif  // DSV41TOPK_DEVICE_SPAN_H_
