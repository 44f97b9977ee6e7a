/* SPDX-License-Identifier: Apache-2.0
 *
 * compact_select_kernel: the 512 ids of a gathered row of up to 32,768 values, from registers.
 *
 *   grid   rows, one workgroup of 1,024 threads each; values and ids are read once, 16 bytes a lane and load
 *   order  positions' order; ties to the lowest id, whatever the order of the ids
 *   LDS    SelectLds, 35 KiB      scratch  none
 *
 * A slot with id -1 is not live. It holds -inf (CONTRACT), and so can live ones.
 */
#include "device/platform.h"
#include "device/row.h"
#include "device/select.h"
#include "device/span.h"
#include "tuning.h"

namespace dsv41 {

template <int kLoads>
DSV41_INLINE int select_compact(const float* logits, const int32_t* ids, int n, int32_t* indices,
                                SelectLds& lds) {
  float values[4 * kLoads];
  int places[4 * kLoads];
  const Span span = load_span<kLoads>(values, logits, n, n);
  const int wave_end = (wave_id() + 1) * wave_span(n) < n ? (wave_id() + 1) * wave_span(n) : n;
#pragma unroll
  for (int j = 0; j < kLoads; j++) {
    Int4 loaded = {-1, -1, -1, -1};
    if (span.column(4 * j) < wave_end)
      loaded = *reinterpret_cast<const Int4*>(ids + span.column(4 * j));
    places[4 * j] = loaded.x;
    places[4 * j + 1] = loaded.y;
    places[4 * j + 2] = loaded.z;
    places[4 * j + 3] = loaded.w;
  }
#pragma unroll
  for (int i = 0; i < 4 * kLoads; i++)
    if (places[i] < 0) values[i] = kMinusInf;
  return select_values<false>(
      values, [&](int i) { return places[i] >= 0; }, [&](int i) { return places[i]; },
      [&](int rank, int id) { indices[rank] = id; }, lds);
}

}  // namespace dsv41

DSV41_KERNEL(kSelectThreads) void compact_select_kernel(Dsv41CompactTopKArgs args) {
  using namespace dsv41;
  __shared__ SelectLds lds;
  const int row = workgroup_x();
  const int end = static_cast<int>(row_end(args.ends, row, INT32_MAX));
  int32_t* indices = args.indices + row * args.indices_stride;
  if (end <= DSV41_TOP_K) {
    write_short_row(indices, end, kSelectThreads);
    return;
  }
  const int n = static_cast<int>(args.n);
  const float* logits = args.logits + row * args.n;
  const int32_t* ids = args.ids + row * args.n;
  const int span = wave_span(n);
  int written;
  if (span <= kWaveCols)
    written = select_compact<1>(logits, ids, n, indices, lds);
  else if (span <= 2 * kWaveCols)
    written = select_compact<2>(logits, ids, n, indices, lds);
  else if (span <= 4 * kWaveCols)
    written = select_compact<4>(logits, ids, n, indices, lds);
  else
    written = select_compact<8>(logits, ids, n, indices, lds);
  fill_rest(indices, written, kSelectThreads);
}
