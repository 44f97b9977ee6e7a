/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a row ends, and what a short row gets.
 */
#ifndef DSV41TOPK_DEVICE_ROW_H_
#define DSV41TOPK_DEVICE_ROW_H_

#include "abi.h"
#include "device/platform.h"

namespace dsv41 {

/* The row's live columns, clamped to [0, width]. One load a workgroup. */
DSV41_INLINE int64_t row_end(const Dsv41Ends& ends, int row, int64_t width) {
  const int request = ends.repeat == 1 ? row : row / ends.repeat;
  int64_t end = ends.lens[request];
  if (ends.draft) end += row - (request + 1) * ends.repeat + 1;
  return end < 0 ? 0 : end < width ? end : width;
}

/* A row of at most 512 live columns gets them all, whatever their values, then -1. Called by the
 * whole workgroup. */
DSV41_INLINE void write_short_row(int32_t* indices, int end, int threads) {
  for (int i = thread_id(); i < DSV41_TOP_K; i += threads) indices[i] = i < end ? i : -1;
}

/* A row of fewer than 512 live candidates ends in -1s. Called by the whole workgroup. */
DSV41_INLINE void fill_rest(int32_t* indices, int written, int threads) {
  for (int i = written + thread_id(); i < DSV41_TOP_K; i += threads) indices[i] = -1;
}

}  // namespace dsv41

#endif  // DSV41TOPK_DEVICE_ROW_H_
