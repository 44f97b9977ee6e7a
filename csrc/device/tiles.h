/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a wave's piece of a row into a tile (device/select.h).
 */
#ifndef DSV41TOPK_DEVICE_TILES_H_
#define DSV41TOPK_DEVICE_TILES_H_

#include "device/order.h"
#include "device/platform.h"
#include "device/select.h"

namespace dsv41 {

constexpr int kWaveCols = kWaveSize * 4; /* columns of one load of a wave */
constexpr int kNowhere = INT32_MAX - 3;  /* past every end, and so are the three after it */

/* A wave's share of `count` values, in whole vectors: as even as can be, because the poorest offer
 * is the bound. */
DSV41_INLINE int wave_piece(int count) {
  return ((count + kSelectWaves - 1) / kSelectWaves + 3) & ~3;
}

/* 16-byte aligned values of which the first `end` are live. Vectors past `whole` are not all inside
 * the row. */
struct Values {
  const float* first;
  int end;
  int whole;
};

DSV41_INLINE Float4 vector_at(const Values& values, int position) {
  return *reinterpret_cast<const Float4*>(values.first + static_cast<uint32_t>(position));
}

template <int kLoads>
DSV41_INLINE void put_vector(Tile<kLoads>& tile, int load, Float4 vector) {
  tile.values[4 * load] = vector.x;
  tile.values[4 * load + 1] = vector.y;
  tile.values[4 * load + 2] = vector.z;
  tile.values[4 * load + 3] = vector.w;
}

/* Load what is live; -inf elsewhere. `columns[l]` is where the vector of load l lies, kNowhere for
 * a load of none. Nothing past the last live column's vector is read, nor past the row. */
template <int kLoads>
DSV41_INLINE void load_vectors(Tile<kLoads>& tile, const int (&columns)[kLoads],
                               const Values& values) {
  const float nothing = bits_float(kMinusInfBits);
  const int readable = values.end < values.whole ? values.end : values.whole;
  int farthest = columns[0];
#pragma unroll
  for (int l = 1; l < kLoads; l++) farthest = columns[l] > farthest ? columns[l] : farthest;
  if (ballot(farthest >= readable) == 0) {
#pragma unroll
    for (int l = 0; l < kLoads; l++) put_vector(tile, l, vector_at(values, columns[l]));
  } else {
#pragma unroll
    for (int l = 0; l < kLoads; l++) {
      Float4 vector = {nothing, nothing, nothing, nothing};
      if (columns[l] < readable) vector = vector_at(values, columns[l]);
      put_vector(tile, l, vector);
    }
  }
  if (values.end % 4 == 0) return;
  /* The end lies inside a vector: what follows it is dropped. If the row ends there as well, it was
   * not read. */
#pragma unroll
  for (int l = 0; l < kLoads; l++) {
    if (columns[l] != (values.end & ~3)) continue;
#pragma unroll
    for (int c = 0; c < 4; c++) {
      if (columns[l] + c >= values.end)
        tile.values[4 * l + c] = nothing;
      else if (columns[l] >= values.whole)
        tile.values[4 * l + c] = values.first[columns[l] + c];
    }
  }
}

/* The wave's piece of the values; positions are columns. */
template <int kLoads>
DSV41_INLINE void load_piece(Tile<kLoads>& tile, const Values& values) {
  const int piece = wave_piece(values.end);
  const int first = wave_id() * piece;
  const int end = first + piece < values.end ? first + piece : values.end;
#pragma unroll
  for (int l = 0; l < kLoads; l++) tile.positions[l] = first + (l * kWaveSize + lane_id()) * 4;
  int columns[kLoads];
#pragma unroll
  for (int l = 0; l < kLoads; l++)
    columns[l] = tile.positions[l] < end ? tile.positions[l] : kNowhere;
  load_vectors(tile, columns, values);
}

}  // namespace dsv41

#endif  // DSV41TOPK_DEVICE_TILES_H_
