/* SPDX-License-Identifier: Apache-2.0
 *
 * top_k_select_kernel: the 512 columns of a dense row.
 *
 *   grid      rows, one workgroup each
 *   row       up to kShortCols live columns: device/short.h, and device/select.h if that gives up
 *             up to kDirectCols: read once into registers and selected (device/select.h)
 *             longer: the maxima that group_max_kernel left take the row's place until the bound T
 *             is known, and then a better one, T2: the lower edge of the bin in which the 512th
 *             best group lies. Each wave reads those of its groups whose maximum is at least T2,
 *             and goes on with their columns. One barrier more than a shorter row.
 *   LDS       TopKSelectLds, 52 KiB on gfx942, 43 KiB on sm_90
 *   scratch   maxima, read only
 *
 * Why groups do: 512 groups have a column of at least T2 each, so the cut is at least T2. And why
 * the 512 best groups do, ties to the lowest, where there are too many (LongRow): let t be the
 * 512th best maximum. Fewer than 512 groups have a better one, and a value above t lies in those
 * alone; each group taken for a tie has a column equal to t, lower than any in the tied groups left
 * out, and no more such columns are needed than groups taken.
 */
#include "device/params.h"
#include "device/platform.h"
#include "device/row.h"
#include "device/select.h"
#include "device/short.h"
#include "device/tiles.h"
#include "tuning.h"

namespace dsv41 {

struct TopKSelectLds {
  SelectLds select;
  int group_bins[kWaveSize];
  uint16_t groups[kMostGroups];
};
static_assert(kMaxMaxima <= 1 << 16, "group numbers fit 16 bits");

struct DenseRow {
  Values values;
  DSV41_INLINE_MEMBER int last_column() const { return values.end - 1; }
  DSV41_INLINE_MEMBER int column_at(int position) const { return position; }
  DSV41_INLINE_MEMBER void prepare_visits(SelectLds&) {}
  template <class F>
  DSV41_INLINE_MEMBER void visit(F f) const {
    visit_piece<kVisits>(
        values.end, [&](int column) { return standing(key_of(values.first[column]), column); }, f);
  }
};

/* A row with its maxima. Visits are to the 512 best groups, and the few more that a bin of them
 * has. */
struct LongRow {
  DenseRow row;
  DenseRow maxima;
  int group_cols;
  uint16_t* groups;
  int group_count;

  DSV41_INLINE_MEMBER int last_column() const { return row.last_column(); }
  DSV41_INLINE_MEMBER int column_at(int position) const { return position; }
  DSV41_INLINE_MEMBER void prepare_visits(SelectLds& lds) {
    Range range = range_of_row(maxima, kKeyMinusInf, lds);
    List list;
    list_again(maxima, range, kMostGroups, list, lds);
    const int wave = wave_id();
    if (lane_id() == 0) lds.chosen[wave] = list.count;
    barrier(); /* without it a wave sums up what another one has not written */
    const Prefix prefix = prefix_of(lds.chosen);
    group_count = prefix.total;
    for (int i = lane_id(); i < list.count; i += kWaveSize)
      groups[prefix.before + i] = static_cast<uint16_t>(column_of(lds.pool[list.first + i]));
    barrier(); /* without it a wave reads groups that another one has not written */
  }
  template <class F>
  DSV41_INLINE_MEMBER void visit(F f) const {
    const int shift = 31 - __builtin_clz(group_cols);
    visit_piece<kVisits>(
        group_count << shift,
        [&](int position) -> Standing {
          const int column = groups[position >> shift] * group_cols + (position & (group_cols - 1));
          return column < row.values.end ? standing(key_of(row.values.first[column]), column) : 0;
        },
        f);
  }
};

template <int kLoads>
DSV41_INLINE List fill_from_piece(const Values& values, Bounds& bounds, SelectLds& lds) {
  Tile<kLoads> tile;
  load_piece(tile, values);
  return fill_from_tile(tile, bounds, lds);
}

/* The list of the wave's piece of a row that kDirectCols hold. */
DSV41_INLINE List fill_directly(const Values& values, Bounds& bounds, SelectLds& lds) {
  const int piece = wave_piece(values.end);
  if (piece <= kWaveCols) return fill_from_piece<1>(values, bounds, lds);
  if (piece <= 2 * kWaveCols) return fill_from_piece<2>(values, bounds, lds);
  if (piece <= 4 * kWaveCols) return fill_from_piece<4>(values, bounds, lds);
  return fill_from_piece<8>(values, bounds, lds);
}

/* Raises bounds.low to the lower edge of the bin of the 512th best group, and drops groups under it
 * from the wave's list of {maximum, group}; all of them where the pool was too small for a wave. */
DSV41_INLINE List keep_best_groups(List list, Bounds& bounds, TopKSelectLds& lds) {
  const ValueBins bins(bounds.least, bounds.high);
  wave_barrier();
  for (int i = lane_id(); i < list.count; i += kWaveSize) {
    const uint64_t entry = lds.select.pool[list.first + i];
    const float value = bits_float(static_cast<uint32_t>(entry >> 32));
    const uint32_t key = key_of(value);
    lds.select.pool[list.first + i] =
        static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(entry);
    lds_add(&lds.group_bins[bins.bin_of(value, key) / kWaveSize], 1);
  }
  if (list.first == kPool && lane_id() == 0) lds_add(&lds.group_bins[kLastLane], kPool + 1);
  barrier(); /* without it a wave reads bins that another one still adds to */
  const int sums = wave_scan_add(lds.group_bins[lane_id()]);
  if (read_lane(sums, kLastLane) > kPool) return {0, 0};
  const WaveMask enough = ballot(sums >= DSV41_TOP_K);
  if (enough != 0 && bins.several()) {
    const int bin = lowest_lane(enough);
    const uint32_t edge = key_of_number(bins.lower_edge((bin + 1) * kWaveSize - 1));
    if (bin < kLastLane && edge > bounds.low) bounds.low = bounds.least = edge;
  }
  /* In place: what is written lies at or before what has been read. */
  int kept = 0;
  for (int i = 0; i < list.count; i += kWaveSize) {
    uint64_t entry = 0;
    if (i + lane_id() < list.count) entry = lds.select.pool[list.first + i + lane_id()];
    const bool reaches = static_cast<uint32_t>(entry >> 32) >= bounds.low;
    const WaveMask lanes = ballot(reaches);
    wave_barrier();
    if (reaches) lds.select.pool[list.first + count_below(lanes, kept)] = entry;
    kept += count(lanes);
  }
  wave_barrier();
  return {list.first, kept};
}

/* The columns of the listed groups that reach the bound. */
DSV41_INLINE List list_columns(const Values& values, List groups, int group_cols, uint32_t low,
                               SelectLds& lds) {
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
        columns[l] = static_cast<int>(lds.pool[groups.first + (vector >> shift)]) * group_cols +
                     (vector & ((1 << shift) - 1)) * 4;
      tile.positions[l] = columns[l];
    }
    load_vectors(tile, columns, values);
  };
  if (vectors <= kRoundVectors) {
    load_round(0);
    return list_tile(tile, make_keys_if_nan(tile), low, lds);
  }
  /* Several rounds. A group that reaches the bound has seldom more than one such column; if there
   * are more, what was taken from the pool does not do, and the rounds are repeated with their
   * exact number. */
  List list = take_from_pool(groups.count + groups.count / 2 + 16, lds);
  while (true) {
    int total = 0;
    for (int first_vector = 0; first_vector < vectors; first_vector += kRoundVectors) {
      load_round(first_vector);
      with_reach(low, make_keys_if_nan(tile), [&](auto reach) {
        const auto marks = mark(tile, reach);
        const int first = list.first + total;
        total += marks.total;
        if (total > list.count || list.first + total > kPool) return;
        put_marked(tile, marks, reach, lds.pool + first, uncounted);
      });
    }
    if (total <= list.count) {
      list.count = list.first + total > kPool ? 0 : total;
      return list;
    }
    list = take_from_pool(total, lds);
  }
}

}  // namespace dsv41

DSV41_KERNEL(kSelectThreads) void top_k_select_kernel(TopKSelectParams params) {
  using namespace dsv41;
  begin_launch();
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
  Bounds bounds;
  if (end <= kDirectCols) {
    if (select_if_short(values, indices, lds.select)) return;
    DenseRow dense = {values};
    const List list = fill_directly(values, bounds, lds.select);
    select_listed(dense, list, bounds, indices, lds.select);
    return;
  }
  const int group_cols = choose_group_cols(end);
  const Values maxima = {params.maxima + row * params.maxima_stride,
                         (end + group_cols - 1) / group_cols, kMaxMaxima};
  LongRow source = {{values}, {maxima}, group_cols, lds.groups, 0};
  if (thread_id() < kWaveSize) lds.group_bins[thread_id()] = 0;
  List list = fill_directly(maxima, bounds, lds.select);
  list = keep_best_groups(list, bounds, lds);
  list = list_columns(values, list, group_cols, bounds.low, lds.select);
  select_listed(source, list, bounds, indices, lds.select);
}
