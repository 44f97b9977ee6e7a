/* SPDX-License-Identifier: Apache-2.0
 *
 * compact_select_kernel: the 512 ids of a gathered row of up to 32,768 values, from registers.
 *
 *   grid      rows, one workgroup each
 *   row       values are read once, 16 bytes a lane and load; ids of those that reach the bound
 *   order     positions' order; ties to the lowest id, whatever the order of the ids
 *   LDS       SelectLds, 50 KiB on gfx942, 38 KiB on sm_90
 *   scratch   none
 *
 * A slot with id -1 is not live. It holds -inf (CONTRACT), and so can live ones: the fast way
 * leaves -inf out, and the slow one looks at ids first.
 */
#include "device/platform.h"
#include "device/row.h"
#include "device/select.h"
#include "device/tiles.h"
#include "tuning.h"

namespace dsv41 {

struct CompactRow {
  const float* logits;
  const int32_t* ids;
  int count;
  DSV41_INLINE_MEMBER int last_column() const { return INT32_MAX; }
  DSV41_INLINE_MEMBER int column_at(int position) const { return ids[position]; }
  DSV41_INLINE_MEMBER void prepare_visits(SelectLds&) {}
  template <class F>
  DSV41_INLINE_MEMBER void visit(F f) const {
    visit_piece<kVisits>(
        count,
        [&](int position) {
          const int id = ids[position];
          return id < 0 ? 0 : standing(key_of(logits[position]), id);
        },
        f);
  }
};

template <int kLoads>
DSV41_INLINE List fill_compact(const CompactRow& row, Bounds& bounds, SelectLds& lds) {
  Tile<kLoads> tile;
  load_piece(tile, {row.logits, row.count, row.count});
  return fill_from_tile(tile, bounds, lds);
}

}  // namespace dsv41

DSV41_KERNEL(kSelectThreads) void compact_select_kernel(Dsv41CompactTopKArgs args) {
  using namespace dsv41;
  begin_launch();
  __shared__ SelectLds lds;
  const int row = workgroup_x();
  const int end = static_cast<int>(row_end(args.ends, row, INT32_MAX));
  int32_t* indices = args.indices + row * args.indices_stride;
  if (end <= DSV41_TOP_K) {
    write_short_row(indices, end, kSelectThreads);
    return;
  }
  CompactRow source = {args.logits + row * args.n, args.ids + row * args.n,
                       static_cast<int>(args.n)};
  const int piece = wave_piece(source.count);
  List list;
  Bounds bounds;
  if (piece <= kWaveCols)
    list = fill_compact<1>(source, bounds, lds);
  else if (piece <= 2 * kWaveCols)
    list = fill_compact<2>(source, bounds, lds);
  else if (piece <= 4 * kWaveCols)
    list = fill_compact<4>(source, bounds, lds);
  else if (piece <= 8 * kWaveCols)
    list = fill_compact<8>(source, bounds, lds);
  else
    list = fill_compact<16>(source, bounds, lds);
  select_listed(source, list, bounds, indices, lds);
}
