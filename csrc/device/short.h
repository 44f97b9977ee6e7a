/* SPDX-License-Identifier: Apache-2.0
 *
 * The select of short rows: bins for all values at once, without a bound and without lists.
 *
 * A row that is hardly longer than 512 has little to leave out. Every wave takes the same sample of
 * the row, and bins that are linear in the value between two of its order statistics; the first and
 * the last one are open. The bin of rank 512 is found and its few values are ranked as in
 * device/select.h. Three barriers, of which the first one only covers the clearing of bins, while
 * the row is on its way. Of a row with fewer than 512 values above -inf, all of them are chosen and
 * the lowest columns of -inf, by their counts.
 *
 * Where the sample misleads, or the bin holds too many (ties), nothing has been written, and the
 * longer way is taken.
 */
#ifndef DSV41TOPK_DEVICE_SHORT_H_
#define DSV41TOPK_DEVICE_SHORT_H_

#include "device/select.h"
#include "device/tiles.h"

namespace dsv41 {

/* Bins for the values above -inf: 256 values of the row, spread over it, tell their range. */
DSV41_INLINE ValueBins sample_short_row(const Values& values) {
  const int vectors = values.end / 4;
  const Float4 v = vector_at(values, lane_id() * vectors / kWaveSize * 4);
  const float best = largest(v.x, v.y, largest(v.z, v.w, v.w));
  const float worst = -largest(-v.x, -v.y, largest(-v.z, -v.w, -v.w));
  const uint32_t highest = wave_max(key_of(best));
  /* A quarter of what is above -inf or less is wanted: the best that each lane has bounds it well
   * enough. Else also what is worse than all of the sample needs bins: half as many again. */
  const int sampled = count(ballot(key_of(best) > kKeyMinusInf));
  const bool few_wanted = values.end * sampled >= 4 * DSV41_TOP_K * kWaveSize;
  uint32_t lowest = key_of(few_wanted ? best : worst);
  lowest = wave_min(lowest > kKeyMinusInf ? lowest : kKeyNan);
  if (!few_wanted && lowest < highest && highest <= kKeyLargest) {
    const float low = number_of_key(lowest);
    lowest = key_of(low - (number_of_key(highest) - low) / 2);
  }
  return ValueBins(lowest, highest);
}

/* Bins in the place of values, from 1 on; 0 marks what was chosen of the cut's bin. */
template <int kLoads>
using BinTile = Tile<kLoads, int>;

/* What is in a better bin than `cut` is chosen. */
struct BetterBin {
  int cut;
  DSV41_INLINE_MEMBER BetterBin again() const { return {cut}; }
  DSV41_INLINE_MEMBER bool operator()(int bin) const { return bin < cut; }
  DSV41_INLINE_MEMBER uint32_t missed(int bin) const {
    return static_cast<uint32_t>(cut - 1 - bin) >> 31;
  }
  DSV41_INLINE_MEMBER int number(int bin) const { return bin; }
};

struct EqualBin {
  int bin;
  DSV41_INLINE_MEMBER uint32_t missed(int other) const { return other != bin; }
};

/* Of the wave's values equal to `bin`, the first `count` become 0. */
template <int kLoads>
DSV41_INLINE void choose_first(BinTile<kLoads>& bins, int bin, int count) {
  const auto marks = mark(bins, EqualBin{bin});
#pragma unroll
  for (int l = 0; l < kLoads; l++) {
    int at = marks.at(l);
#pragma unroll
    for (int i = 4 * l; i < 4 * l + 4; i++) {
      if (bins.values[i] != bin) continue;
      if (at < count) bins.values[i] = 0;
      at++;
    }
  }
}

/* Whether it has written the 512 indices. All of the workgroup comes here and goes the same way. */
template <int kLoads>
DSV41_INLINE bool select_short(const Values& values, int32_t* indices, SelectLds& lds) {
  constexpr int kItems = 4 * kLoads;
  constexpr int kMinusInfBin = kBins + 1; /* counted in none, as what is not live */
  constexpr int kDeadBin = kBins + 2;
  Tile<kLoads> tile;
  load_piece(tile, values);
  const ValueBins linear = sample_short_row(values);
  clear(lds);
  barrier(); /* without it a slow wave clears what a fast one has counted */
  if (!linear.several()) return false;

  BinTile<kLoads> bins;
  WaveMask odd = 0;
#pragma unroll
  for (int i = 0; i < kItems; i += 2) odd |= unordered_lanes(tile.values[i], tile.values[i + 1]);
#pragma unroll
  for (int i = 0; i < kItems; i++) {
    int bin = linear.bin_of_number(tile.values[i]);
    if (float_bits(tile.values[i]) == kMinusInfBits) bin = kMinusInfBin - 1;
    /* Last: told that there is no NaN, clang 19 may take one for -inf in the line above. */
    if (odd != 0 && key_of(tile.values[i]) == kKeyNan) bin = 0;
    if (bin < kBins) {
      lds_add(&lds.bins[bin], 1);
      lds_add(&lds.coarse_bins[bin / kWaveSize], 1);
    }
    bins.values[i] = bin + 1;
  }
#pragma unroll
  for (int l = 0; l < kLoads; l++) bins.positions[l] = tile.positions[l];
  auto standing_in = [&](int i) {
    return standing(key_of(tile.values[i]), tile.positions[i / 4] + i % 4);
  };
  barrier(); /* without it a wave reads bins that another one still adds to */
  const Found found = find_cut_bin(lds, DSV41_TOP_K);
  const int missing = DSV41_TOP_K - found.total;
  if (missing <= 0 && found.cut.count > kWaveSize) {
    barrier(); /* without it the longer way clears bins that a slow wave still reads */
    return false;
  }
  const int wave = wave_id();
  if (missing > 0) {
    const int piece_end = (wave + 1) * wave_piece(values.end);
    const int live_end = piece_end < values.end ? piece_end : values.end;
#pragma unroll
    for (int i = 0; i < kItems; i++)
      if (tile.positions[i / 4] + i % 4 >= live_end) bins.values[i] = kDeadBin;
  }
  const int cut_bin = missing > 0 ? kMinusInfBin : found.cut.bin + 1;
  int chosen = 0, tied = 0;
#pragma unroll
  for (int i = 0; i < kItems; i++) {
    const bool in_cut = bins.values[i] == cut_bin;
    chosen += count(ballot(bins.values[i] < cut_bin));
    tied += count(ballot(in_cut));
    if (in_cut && missing <= 0) add_finalist(standing_in(i), wave, lds);
  }
  if (lane_id() == 0) lds.chosen[wave] = missing > 0 ? chosen | tied << 16 : chosen;
  barrier(); /* without it a wave ranks finalists, and sums counts, that are not there yet */
  int place;
  if (missing > 0) {
    const int before = prefix_of(lds.chosen).before;
    const int tied_before = before >> 16;
    place = (before & 0xffff) + (tied_before < missing ? tied_before : missing);
    choose_first(bins, cut_bin, missing - tied_before);
  } else {
    const Ranked cut = rank_finalists(found.cut.count, DSV41_TOP_K - found.cut.above, lds);
    place = cut.place;
#pragma unroll
    for (int i = 0; i < kItems; i++)
      if (bins.values[i] == cut_bin && standing_in(i) >= cut.least) bins.values[i] = 0;
  }
  const BetterBin better = {cut_bin};
  put_marked(bins, mark(bins, better), better, indices + place,
             [](int, int column) { return static_cast<int32_t>(column); });
  return true;
}

/* Whether a row that is short enough has its 512 indices; what is not is left alone. */
DSV41_INLINE bool select_if_short(const Values& values, int32_t* indices, SelectLds& lds) {
  constexpr int kLongest = kWaveSize == 32 ? kShortColsOfWave32 : kShortCols;
  if (values.end > kLongest) return false;
  if (values.end <= kShortCols / 4) return select_short<1>(values, indices, lds);
  if (values.end <= kShortCols / 2) return select_short<2>(values, indices, lds);
  return select_short<kLongest == kShortCols ? 4 : 2>(values, indices, lds);
}

}  // namespace dsv41

#endif  // DSV41TOPK_DEVICE_SHORT_H_
