/* SPDX-License-Identifier: Apache-2.0
 *
 * The select of short rows: bins for all values at once, without a bound and without lists.
 *
 * A row that is hardly longer than 512 has little to leave out. Every wave takes the same sample of
 * the row, and bins that are linear in the value between two of its order statistics; the first and
 * the last one are open. The bin of rank 512 is found and its few values are ranked as in
 * device/select.h. Three barriers, of which the first one only covers the clearing of bins, while
 * the row is on its way.
 *
 * Where the sample misleads, or the bin holds too many (ties), or fewer than 512 values are above
 * -inf, nothing has been written, and the longer way is taken.
 */
#ifndef DSV41TOPK_DEVICE_SHORT_H_
#define DSV41TOPK_DEVICE_SHORT_H_

#include "device/select.h"
#include "device/tiles.h"

namespace dsv41 {

struct ShortBins {
  float high;
  float scale;
  bool usable;
  /* 0 is the best bin; not for NaN. Differences and products with a power of two keep the order of
   * values. */
  DSV41_INLINE_MEMBER int bin_of(float value) const {
    const float at = (high - value) * scale;
    const float last = kBins - 1;
    return static_cast<int>(at < 0.0f ? 0.0f : at < last ? at : last);
  }
};

DSV41_INLINE ShortBins sample_short_row(const Values& values) {
  const int vectors = values.end / 4;
  const Float4 v = vector_at(values, lane_id() * vectors / kWaveSize * 4);
  const float best = largest(v.x, v.y, largest(v.z, v.w, v.w));
  const float worst = -largest(-v.x, -v.y, largest(-v.z, -v.w, -v.w));
  /* A quarter of the row or less is wanted: what each lane has best bounds it well enough. */
  const uint32_t low_key = key_of(values.end >= 4 * DSV41_TOP_K ? best : worst);
  const uint32_t high = wave_max(key_of(best));
  const uint32_t low = wave_min(low_key > kKeyMinusInf ? low_key : kKeyNan);
  ShortBins bins = {number_of_key(high), 0.0f, false};
  if (high > kKeyLargest || low >= high) return bins;
  const uint32_t exponent = float_bits(bins.high - number_of_key(low)) >> 23;
  bins.usable = exponent > kBinBits && exponent < 255;
  bins.scale = bits_float((2 * 127 + kBinBits - 1 - exponent) << 23);
  return bins;
}

/* Bins in the place of values, from 1 on; 0 marks what was chosen of the cut's bin. Never the bits of
 * a NaN: with those as the mark, gcc 12 under -ffast-math lost what was marked. What is in a better
 * bin than `cut` is chosen. */
struct BetterBin {
  int cut;
  DSV41_INLINE_MEMBER BetterBin again() const { return {cut}; }
  DSV41_INLINE_MEMBER bool operator()(float bin) const {
    return static_cast<int>(float_bits(bin)) < cut;
  }
  DSV41_INLINE_MEMBER uint32_t missed(float bin) const {
    return static_cast<uint32_t>(cut - 1 - static_cast<int>(float_bits(bin))) >> 31;
  }
  DSV41_INLINE_MEMBER float number(float bin) const { return bin; }
};

/* Whether it has written the 512 indices. All of the workgroup comes here and goes the same way. */
template <int kLoads>
DSV41_INLINE bool select_short(const Values& values, int32_t* indices, SelectLds& lds) {
  constexpr int kItems = 4 * kLoads;
  constexpr int kNone = kBins; /* no bin: -inf, and what is not live */
  Tile<kLoads> tile;
  load_piece(tile, values);
  const ShortBins linear = sample_short_row(values);
  clear(lds);
  barrier(); /* without it a slow wave clears what a fast one has counted */
  if (!linear.usable) return false;

  Tile<kLoads> bins;
  WaveMask odd = 0;
#pragma unroll
  for (int i = 0; i < kItems; i += 2) odd |= unordered_lanes(tile.values[i], tile.values[i + 1]);
#pragma unroll
  for (int i = 0; i < kItems; i++) {
    int bin = linear.bin_of(tile.values[i]);
    if (odd != 0 && key_of(tile.values[i]) == kKeyNan) bin = 0;
    if (float_bits(tile.values[i]) == 0xff800000u) bin = kNone;
    if (bin != kNone) {
      lds_add(&lds.bins[bin], 1);
      lds_add(&lds.coarse_bins[bin / kWaveSize], 1);
    }
    bins.values[i] = bits_float(static_cast<uint32_t>(bin) + 1);
  }
#pragma unroll
  for (int l = 0; l < kLoads; l++) bins.positions[l] = tile.positions[l];
  barrier(); /* without it a wave reads bins that another one still adds to */
  const Found found = find_cut_bin(lds, DSV41_TOP_K);
  if (found.total < DSV41_TOP_K || found.cut.count > kWaveSize) {
    barrier(); /* without it the longer way clears bins that a slow wave still reads */
    return false;
  }
  const int wave = wave_id(), cut_bin = found.cut.bin;
  int chosen = 0;
#pragma unroll
  for (int i = 0; i < kItems; i++) {
    const int bin = static_cast<int>(float_bits(bins.values[i])) - 1;
    chosen += count(ballot(bin < cut_bin));
    if (bin == cut_bin)
      add_finalist(standing(key_of(tile.values[i]), tile.positions[i / 4] + i % 4), wave, lds);
  }
  if (lane_id() == 0) lds.chosen[wave] = chosen;
  barrier(); /* without it a wave ranks finalists, and sums counts, that are not there yet */
  const Ranked cut = rank_finalists(found.cut.count, DSV41_TOP_K - found.cut.above, lds);
#pragma unroll
  for (int i = 0; i < kItems; i++) {
    if (static_cast<int>(float_bits(bins.values[i])) == cut_bin + 1 &&
        standing(key_of(tile.values[i]), tile.positions[i / 4] + i % 4) >= cut.least)
      bins.values[i] = 0.0f;
  }
  const BetterBin better = {cut_bin + 1};
  put_marked(bins, mark(bins, better), better, indices + cut.place,
             [](float, int column) { return static_cast<int32_t>(column); });
  return true;
}

}  // namespace dsv41

#endif  // DSV41TOPK_DEVICE_SHORT_H_
