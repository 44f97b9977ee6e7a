/* SPDX-License-Identifier: Apache-2.0
 *
 * top_k_select_kernel: the 512 columns of a dense row.
 *
 *   grid     rows, one workgroup each
 *   row      up to kDirectCols live columns: read once into registers and selected
 * (device/select.h) longer: the maxima that group_max_kernel left take the row's place until the
 * bound T is known; then each wave reads those of its groups whose maximum is at least T, and goes
 * on with their columns LDS      TopKSelectLds      scratch  maxima, read only
 */
#include "device/params.h"
#include "device/platform.h"
#include "device/row.h"
#include "device/select.h"
#include "device/tiles.h"
#include "tuning.h"

namespace dsv41 {

struct TopKSelectLds {
  SelectLds select;
  int groups_used;
  uint16_t
      groups[kGroupPool]; /* of each wave those that reach T, in order; in parts, as the pool */
};
static_assert(kMaxMaxima <= 1 << 16, "group numbers fit 16 bits");

struct DenseRow {
  Values values;
  DSV41_INLINE_MEMBER int positions() const { return values.end; }
  DSV41_INLINE_MEMBER int last_column() const { return values.end - 1; }
  DSV41_INLINE_MEMBER int column_at(int position) const { return position; }
  DSV41_INLINE_MEMBER Standing standing_at(int position) const {
    return standing(key_of(values.first[position]), position);
  }
};

template <int kLoads>
DSV41_INLINE List fill_directly(const Values& values, Bounds& bounds, SelectLds& lds) {
  Tile<kLoads> tile;
  load_piece(tile, values);
  return fill_from_tile(tile, bounds, lds);
}

/* The groups of the wave whose maxima reach the bound: a part of lds.groups, past its end if there
 * is none left. */
template <int kLoads>
DSV41_INLINE List list_groups(const Values& maxima, Bounds& bounds, TopKSelectLds& lds) {
  Tile<kLoads> tile;
  load_piece(tile, maxima);
  const bool by_key = make_keys_if_nan(tile);
  make_offer(lane_maxima(tile, by_key), lds.select);
  clear(lds.select);
  if (thread_id() == 0) lds.groups_used = 0;
  barrier(); /* without it a wave reads offers, and takes parts of pools, that are not there yet */
  bounds = agree_on_bounds(lds.select);
  List groups = {0, 0};
  with_reach(bounds.low, by_key, [&](auto reach) {
    const auto marks = mark(tile, reach);
    if (marks.total == 0) return;
    int first = 0;
    if (lane_id() == 0) first = lds_add(&lds.groups_used, marks.total);
    groups = {read_lane(first, 0), marks.total};
    if (groups.first + groups.count > kGroupPool) return;
    put_marked(tile, marks, reach, lds.groups + groups.first,
               [](float, int group) { return static_cast<uint16_t>(group); });
  });
  wave_barrier();
  return groups;
}

/* The columns of the listed groups that reach the bound. */
DSV41_INLINE List list_columns(const Values& values, List groups, int group_cols, uint32_t low,
                               TopKSelectLds& lds) {
  constexpr int kRoundVectors = kGatherLoads * kWaveSize;
  const int shift = 31 - __builtin_clz(group_cols / 4); /* vectors of a group, as a shift */
  const int vectors = groups.count << shift;
  Tile<kGatherLoads> tile;
  auto load_round = [&](int first_vector) {
    int columns[kGatherLoads];
#pragma unroll
    for (int l = 0; l < kGatherLoads; l++) {
      const int vector = first_vector + l * kWaveSize + lane_id();
      columns[l] = kNowhere;
      if (vector < vectors)
        columns[l] = lds.groups[groups.first + (vector >> shift)] * group_cols +
                     (vector & ((1 << shift) - 1)) * 4;
      tile.positions[l] = columns[l];
    }
    load_vectors(tile, columns, values);
  };
  if (vectors <= kRoundVectors) {
    load_round(0);
    return list_tile(tile, make_keys_if_nan(tile), low, lds.select);
  }
  /* Several rounds. A group that reaches the bound rarely has more than two such columns; if they
   * are more, what was taken from the pool does not do, and the rounds are repeated with their
   * exact number. */
  List list = take_from_pool(2 * groups.count, lds.select);
  while (true) {
    int total = 0;
    for (int first_vector = 0; first_vector < vectors; first_vector += kRoundVectors) {
      load_round(first_vector);
      with_reach(low, make_keys_if_nan(tile), [&](auto reach) {
        const auto marks = mark(tile, reach);
        const int first = list.first + total;
        total += marks.total;
        if (total > list.count || list.first + total > kPool) return;
        put_marked(tile, marks, reach, lds.select.pool + first, uncounted);
      });
    }
    if (total <= list.count) {
      list.count = list.first + total > kPool ? 0 : total;
      return list;
    }
    list = take_from_pool(total, lds.select);
  }
}

}  // namespace dsv41

DSV41_KERNEL(kSelectThreads) void top_k_select_kernel(TopKSelectParams params) {
  using namespace dsv41;
  __shared__ TopKSelectLds lds;
  const Dsv41TopKArgs& args = params.args;
  const int row = workgroup_x();
  const int end = static_cast<int>(row_end(args.ends, row, args.width));
  int32_t* indices = args.indices + row * args.indices_stride;
  if (end <= DSV41_TOP_K) {
    write_short_row(indices, end, kSelectThreads);
    return;
  }
  const Values values = {args.logits + row * args.logits_stride, end,
                         static_cast<int>(args.width & ~int64_t{3})};
  List list;
  Bounds bounds;
  if (end <= kDirectCols) {
    const int piece = wave_piece(end);
    if (piece <= kWaveCols)
      list = fill_directly<1>(values, bounds, lds.select);
    else if (piece <= 2 * kWaveCols)
      list = fill_directly<2>(values, bounds, lds.select);
    else if (piece <= 4 * kWaveCols)
      list = fill_directly<4>(values, bounds, lds.select);
    else
      list = fill_directly<8>(values, bounds, lds.select);
  } else {
    const int group_cols = choose_group_cols(end);
    const Values maxima = {params.maxima + row * params.maxima_stride,
                           (end + group_cols - 1) / group_cols, kMaxMaxima};
    const int piece = wave_piece(maxima.end);
    List groups;
    if (piece <= kWaveCols)
      groups = list_groups<1>(maxima, bounds, lds);
    else if (piece <= 2 * kWaveCols)
      groups = list_groups<2>(maxima, bounds, lds);
    else if (piece <= 4 * kWaveCols)
      groups = list_groups<4>(maxima, bounds, lds);
    else
      groups = list_groups<8>(maxima, bounds, lds);
    if (groups.first + groups.count <= kGroupPool)
      list = list_columns(values, groups, group_cols, bounds.low, lds);
    else /* more than the pool holds: the row itself is searched */
      list = {take_from_pool(kPool + 1, lds.select).first, 0};
  }
  select_listed(DenseRow{values}, list, bounds, indices, lds.select);
}
