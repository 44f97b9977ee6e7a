/* SPDX-License-Identifier: Apache-2.0
 *
 * The register select: the best 512 of a row by one workgroup, in the order of the row.
 *
 * Each wave holds a contiguous piece of the row in registers, 16 bytes a lane and load, so that
 * (wave, load, lane, component) is the order of the row. Three barriers on the way that nearly
 * every row takes:
 *
 *   1 bound      Each wave offers a value that 512 / waves of its lanes' maxima reach. T is the
 *                smallest offer: 512 values are at least T, so nothing under T can be chosen.
 *                Nothing about the values is assumed.
 *   2 histogram  Each wave puts what is at least T into a list of its own in LDS, in order (about
 *                900 of 16,384 random values), and counts it in bins from T upwards. Every wave
 *                then finds the bin of rank 512 by itself.
 *   3 finalists  The few values of that bin are ranked by all waves alike, which gives the cut.
 *                Each wave knows how many the waves before it have chosen, and writes its own.
 *
 * Lists are private to a wave, so that no barrier stands between filling and reading one, and lie
 * in one pool of LDS, where a wave takes what it needs: values may cluster in one wave's piece.
 *
 * What is ranked is a Standing, (key, lowest column first), which no two live columns share. So
 * ties need no case of their own: a bin that holds too many, be they equal or close, is cut into
 * bins again, into those of columns at last.
 *
 * The pool may be too small (ascending rows, half-integers, NaN by the thousand) or hold fewer than
 * 512 (-inf is left out of it, because masked rows are full of it). Then narrow() reads the row
 * again, as often as it takes.
 *
 * A Source says what the positions of a row are: column_at(position), last_column(), and
 * visit(f), which calls f(standing, position) for the wave's share of the row, read from memory.
 */
#ifndef DSV41TOPK_DEVICE_SELECT_H_
#define DSV41TOPK_DEVICE_SELECT_H_

#include "abi.h"
#include "device/order.h"
#include "device/platform.h"
#include "device/wave.h"
#include "tuning.h"

namespace dsv41 {

constexpr int kSelectWaves = kSelectThreads / kWaveSize;
constexpr int kLaneMaxima = 2; /* a lane brings the maxima of the halves of its values */
constexpr int kOffered =
    DSV41_TOP_K / kSelectWaves; /* of a wave's maxima so many reach its offer */
static_assert(kOffered <= kWaveSize * kLaneMaxima / 2,
              "half of the maxima, or T is far below the cut");
constexpr int kBins = kWaveSize * kWaveSize; /* a lane reads one coarse bin, then one fine one */
constexpr int kBinBits = kWaveSize == 64 ? 12 : 10;
static_assert(kBins == 1 << kBinBits, "bins are found by shifts");
static_assert(kBins % kSelectThreads == 0, "each thread clears the same number of bins");
constexpr int kLastLane = kWaveSize - 1;

/* ---- standings ------------------------------------------------------------------------------- */

/* The key above, the inverted column below: larger is better, and no two live columns are equal. 0
 * is not live. */
using Standing = uint64_t;

DSV41_INLINE Standing standing(uint32_t key, int column) {
  return static_cast<uint64_t>(key) << 32 | ~static_cast<uint32_t>(column);
}
DSV41_INLINE int column_of(Standing s) { return static_cast<int>(~static_cast<uint32_t>(s)); }

DSV41_INLINE Standing read_lane_wide(Standing value, int lane) {
  uint32_t low = read_lane(static_cast<int>(value), lane);
  uint32_t high = read_lane(static_cast<int>(value >> 32), lane);
  return static_cast<uint64_t>(high) << 32 | low;
}

/* The standings that are undecided: `need` of the `count` in [low, high] are chosen, and all above.
 */
struct Range {
  Standing low, high;
  int need;
  int count;
};

/* ---- LDS ------------------------------------------------------------------------------------- */

/* Keys. */
struct Offer {
  uint32_t bound; /* kOffered maxima reach it, if only -inf */
  uint32_t least; /* the bound, or the smallest maximum above -inf where the bound is -inf */
  uint32_t over;  /* half as many maxima reach it: a guess of what the cut does not reach */
};

struct SelectLds {
  alignas(16) int bins[kBins]; /* bin b is coarse bin b / kWaveSize; 0 is the best */
  int coarse_bins[kWaveSize];
  Offer offers[kSelectWaves];
  int chosen[kSelectWaves];
  int pool_used;
  int finalist_count;
  int finalist_waves[kWaveSize];
  alignas(8) Standing finalists[kWaveSize];
  alignas(8) uint64_t pool[kPool]; /* {float, position} as filled, standings once counted */
};

/* A wave's part of the pool. */
struct List {
  int first;
  int count;
};

DSV41_INLINE void clear_bins(SelectLds& lds) {
#pragma unroll
  for (int i = 0; i < kBins / kSelectThreads; i++)
    lds.bins[kBins / kSelectThreads * thread_id() + i] = 0;
  if (thread_id() < kWaveSize) lds.coarse_bins[thread_id()] = 0;
}

/* Called by every wave, before its first barrier. */
DSV41_INLINE void clear(SelectLds& lds) {
  clear_bins(lds);
  if (thread_id() == 0) {
    lds.pool_used = 0;
    lds.finalist_count = 0;
  }
}

/* A part of the pool for a wave; past its end if there is none left. */
DSV41_INLINE List take_from_pool(int count, SelectLds& lds) {
  int first = 0;
  if (count > 0) {
    if (lane_id() == 0) first = lds_add(&lds.pool_used, count);
    first = read_lane(first, 0);
  }
  return {first, count};
}

/* ---- 1 bound --------------------------------------------------------------------------------- */

struct LaneMaxima {
  uint32_t keys[kLaneMaxima];
};

DSV41_INLINE int count_reaching(const LaneMaxima& maxima, uint32_t key) {
  int reaching = 0;
#pragma unroll
  for (int i = 0; i < kLaneMaxima; i++) reaching += count(ballot(maxima.keys[i] >= key));
  return reaching;
}

/* A key that kOffered maxima or a few more reach: halves the range of those above -inf. */
DSV41_INLINE void make_offer(const LaneMaxima& maxima, SelectLds& lds) {
  uint32_t least = kKeyNan, over = 0;
#pragma unroll
  for (int i = 0; i < kLaneMaxima; i++) {
    const uint32_t key = maxima.keys[i], finite = key > kKeyMinusInf ? key : kKeyNan;
    least = finite < least ? finite : least;
    over = key > over ? key : over;
  }
  least = wave_min(least);
  over = wave_max(over);
  uint32_t bound = kKeyMinusInf;
  if (count_reaching(maxima, least) >= kOffered) {
    uint32_t out_of_reach = over;
    for (int step = 0; step < kOfferSteps && out_of_reach - least > 1; step++) {
      const uint32_t middle = least + (out_of_reach - least) / 2;
      const int reaching = count_reaching(maxima, middle);
      if (reaching < kOffered) {
        out_of_reach = middle;
        if (reaching <= kOffered / 2) over = middle;
      } else {
        least = middle;
        if (reaching <= kOffered + kOfferSlack) break;
      }
    }
    bound = least;
  }
  const int wave = wave_id();
  if (lane_id() == 0) lds.offers[wave] = {bound, least, over};
}

/* Keys. */
struct Bounds {
  uint32_t low; /* nothing under it is chosen, but perhaps -inf. Of a finite number, from which +inf
                   * has a difference with a sign: Reach::missed() */
  uint32_t least; /* bins tell values apart from here... */
  uint32_t high;  /* ...to here: above it is the best bin */
};

/* Bins that are linear in the value: 0 is the best one, and takes all that is better, as the last
 * takes all that is worse. A difference, and its product with a power of two, keep the order of
 * values. One bin for all where there is no range of numbers. */
struct ValueBins {
  float high;
  float scale; /* 1 / width; 0: one bin */
  float width;
  DSV41_INLINE_MEMBER ValueBins(uint32_t least_key, uint32_t high_key)
      : high(number_of_key(high_key)), scale(0.0f), width(0.0f) {
    if (high_key > kKeyLargest || least_key >= high_key) return;
    const uint32_t exponent = float_bits(high - number_of_key(least_key)) >> 23;
    if (exponent <= kBinBits || exponent >= 255) return;
    scale = bits_float((2 * 127 + kBinBits - 1 - exponent) << 23);
    width = bits_float((exponent + 1 - kBinBits) << 23);
  }
  DSV41_INLINE_MEMBER bool several() const { return float_bits(scale) != 0; }
  /* Of a number, where there are several bins. */
  DSV41_INLINE_MEMBER int bin_of_number(float value) const {
    const float at = (high - value) * scale;
    const float last = kBins - 1;
    return static_cast<int>(at < 0.0f ? 0.0f : at < last ? at : last);
  }
  /* Of any value and its key. */
  DSV41_INLINE_MEMBER int bin_of(float value, uint32_t key) const {
    return several() && key <= kKeyLargest ? bin_of_number(value) : 0;
  }
  /* Nothing in the bin or a better one is below. It is what rounding the difference leaves: a number
   * that is not below the difference is not below what that is rounded to. */
  DSV41_INLINE_MEMBER float lower_edge(int bin) const {
    return high - static_cast<float>(bin + 1) * width;
  }
};

/* Which standings lie in the cut's bin and which in a better one, without their bins. */
struct CutBinTest {
  float high, better, within; /* differences from `high`: less than `better`; at most `within` */
  /* For all in one bin. */
  DSV41_INLINE_MEMBER CutBinTest()
      : high(0.0f), better(bits_float(kMinusInfBits)), within(bits_float(kPlusInfBits)) {}
  DSV41_INLINE_MEMBER CutBinTest(const ValueBins& bins, int bin) : CutBinTest() {
    high = bins.high;
    if (bin > 0) better = static_cast<float>(bin) * bins.width;
    if (bin < kBins - 1)
      within = bits_float(float_bits(static_cast<float>(bin + 1) * bins.width) - 1);
  }
  DSV41_INLINE_MEMBER float difference(Standing s) const {
    uint32_t key = static_cast<uint32_t>(s >> 32);
    key = key > kKeyMinusInf ? key : kKeyMinusInf; /* of 0, which is none */
    key = key < kKeyPlusInf ? key : kKeyPlusInf;   /* of a NaN */
    return high - number_of_key(key);
  }
};

/* After the barrier that follows make_offer(). */
DSV41_INLINE Bounds agree_on_bounds(const SelectLds& lds) {
  const Offer offer = lds.offers[lane_id() % kSelectWaves];
  Bounds bounds;
  bounds.low = bounds.least = wave_min<kSelectWaves>(offer.bound);
  bounds.high = wave_max<kSelectWaves>(offer.over);
  if (bounds.low > kKeyLargest) bounds.low = bounds.least = kKeyLargest;
  if (bounds.low <= kKeyMinusInf) {
    bounds.low = kKeyMinusInf + 1;
    bounds.high = bounds.high > bounds.low ? bounds.high : bounds.low;
    bounds.least = wave_min<kSelectWaves>(offer.least);
    bounds.least = bounds.least < bounds.high ? bounds.least : bounds.high;
  }
  return bounds;
}

/* ---- tiles: values in registers -------------------------------------------------------------- */

/* kLoads vectors of four values a lane. positions[l] is the place in the row's order of the first
 * of load l. What is not live is -inf. */
template <int kLoads, class Value = float>
struct Tile {
  Value values[4 * kLoads];
  int positions[kLoads];
};

/* A tile that holds a NaN becomes one of keys; returns whether it did. Then no comparison meets a
 * NaN. */
template <int kLoads>
DSV41_INLINE bool make_keys_if_nan(Tile<kLoads>& tile) {
  WaveMask odd = 0;
#pragma unroll
  for (int i = 0; i < 4 * kLoads; i += 2)
    odd |= unordered_lanes(tile.values[i], tile.values[i + 1]);
  if (odd == 0) return false;
#pragma unroll
  for (int i = 0; i < 4 * kLoads; i++) tile.values[i] = bits_float(opaque(key_of(tile.values[i])));
  return true;
}

/* The largest keys of the two halves of a lane's values. */
template <int kLoads>
DSV41_INLINE LaneMaxima lane_maxima(const Tile<kLoads>& tile, bool by_key) {
  constexpr int kHalf = 4 * kLoads / kLaneMaxima;
  LaneMaxima maxima;
#pragma unroll
  for (int h = 0; h < kLaneMaxima; h++) {
    const float* values = tile.values + h * kHalf;
    if (by_key) {
      maxima.keys[h] = 0;
#pragma unroll
      for (int i = 0; i < kHalf; i++) {
        const uint32_t key = float_bits(values[i]);
        maxima.keys[h] = key > maxima.keys[h] ? key : maxima.keys[h];
      }
    } else {
      float best = values[0];
#pragma unroll
      for (int i = 1; i < kHalf; i += 2)
        best = largest(best, values[i], values[i + 1 < kHalf ? i + 1 : i]);
      maxima.keys[h] = key_of_number(best);
    }
  }
  return maxima;
}

/* Which values of a tile reach the bound. */
template <bool kByKey>
struct Reach {
  uint32_t low;
  float bound;
  /* The same for a second look: else the masks of the first are kept, in SGPRs that spill. */
  DSV41_INLINE_MEMBER Reach again() const { return {opaque(low), opaque(bound)}; }
  DSV41_INLINE_MEMBER bool operator()(float value) const {
    return kByKey ? float_bits(value) >= low : value >= bound;
  }
  /* 1 if not: the sign of the difference, which is +0 where they are equal (the bound of zero is
   * -0). */
  DSV41_INLINE_MEMBER uint32_t missed(float value) const {
    return kByKey ? float_bits(value) < low : float_bits(value - bound) >> 31;
  }
  DSV41_INLINE_MEMBER float number(float value) const {
    return kByKey ? number_of_key(float_bits(value)) : value;
  }
};

/* Where the survivors of a tile go. Counts of up to 4 loads are packed into a word, and scanned at
 * once. */
template <int kLoads>
struct Marks {
  static constexpr int kWords = (kLoads + 3) / 4;
  uint32_t before[kWords]; /* a byte a load: survivors of lower lanes */
  int first[kLoads];
  int total;
  /* Bytes lie as the counting of bits leaves them. */
  static constexpr DSV41_INLINE_MEMBER int shift_of(int load) {
    return load % 4 == 0 ? 24 : load % 4 == 1 ? 8 : load % 4 == 2 ? 16 : 0;
  }
  DSV41_INLINE_MEMBER int at(int load) const {
    return first[load] + static_cast<int>(before[load / 4] >> shift_of(load) & 255);
  }
};

template <int kLoads, class Value, class Reached>
DSV41_INLINE Marks<kLoads> mark(const Tile<kLoads, Value>& tile, Reached reach) {
  static_assert(kLastLane * 4 < 256, "what stands before a lane fits a byte");
  Marks<kLoads> marks;
  marks.total = 0;
#pragma unroll
  for (int w = 0; w < marks.kWords; w++) {
    /* A bit a value, the first one on top, then counts of four bits, then those in bytes. */
    uint32_t missed = 0;
#pragma unroll
    for (int i = 16 * w; i < 16 * w + 16; i++)
      missed = missed << 1 | (i < 4 * kLoads ? reach.missed(tile.values[i]) : 1);
    uint32_t bits = ~missed & 0xffff;
    bits -= bits >> 1 & 0x5555;
    bits = (bits & 0x3333) + (bits >> 2 & 0x3333);
    const uint32_t mine = (bits & 0x0f0f) | (bits & 0xf0f0) << 12;
    /* The sum of all lanes may carry into the next byte; less this lane's own it does not. */
    marks.before[w] = static_cast<uint32_t>(wave_scan_add(static_cast<int>(mine))) - mine;
    const uint32_t last_before = read_lane(static_cast<int>(marks.before[w]), kLastLane);
    const uint32_t last = read_lane(static_cast<int>(mine), kLastLane);
#pragma unroll
    for (int l = 4 * w; l < 4 * w + 4 && l < kLoads; l++) {
      marks.first[l] = marks.total;
      marks.total += (last_before >> marks.shift_of(l) & 255) + (last >> marks.shift_of(l) & 255);
    }
  }
  return marks;
}

/* Writes every survivor to `list`, in the order of the row, as make(value, position). */
template <int kLoads, class Value, class Reached, class Entry, class Make>
DSV41_INLINE void put_marked(const Tile<kLoads, Value>& tile, const Marks<kLoads>& marks,
                             Reached first_reach, Entry* list, Make make) {
  const Reached reach = first_reach.again();
#pragma unroll
  for (int load = 0; load < kLoads; load++) {
    Entry* at = list + marks.at(load);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const Value value = tile.values[4 * load + c];
      if (reach(value)) {
        *at = make(reach.number(value), tile.positions[load] + c);
        at++;
      }
    }
  }
}

/* Calls use(reach) with the comparison that the tile needs. */
template <class Use>
DSV41_INLINE void with_reach(uint32_t low, bool by_key, Use use) {
  if (by_key)
    use(Reach<true>{low, 0.0f});
  else
    use(Reach<false>{low, low == key_of_number(0.0f) ? -0.0f : number_of_key(low)});
}

/* What a list holds until count_list() makes standings of it. */
DSV41_INLINE uint64_t uncounted(float value, int position) {
  return static_cast<uint64_t>(float_bits(value)) << 32 | static_cast<uint32_t>(position);
}

/* The tile's survivors as the wave's list. */
template <int kLoads>
DSV41_INLINE List list_tile(const Tile<kLoads>& tile, bool by_key, uint32_t low, SelectLds& lds) {
  List list;
  with_reach(low, by_key, [&](auto reach) {
    const auto marks = mark(tile, reach);
    list = take_from_pool(marks.total, lds);
    if (list.first + list.count <= kPool)
      put_marked(tile, marks, reach, lds.pool + list.first, uncounted);
    else
      list = {kPool, 0};
  });
  return list;
}

/* Offers, the barrier, and the list: what a row does that one tile a wave holds. */
template <int kLoads>
DSV41_INLINE List fill_from_tile(Tile<kLoads>& tile, Bounds& bounds, SelectLds& lds) {
  const bool by_key = make_keys_if_nan(tile);
  make_offer(lane_maxima(tile, by_key), lds);
  clear(lds);
  barrier(); /* without it a wave reads offers, and counts in bins, that are not there yet */
  bounds = agree_on_bounds(lds);
  return list_tile(tile, by_key, bounds.low, lds);
}

/* ---- 2 histogram ----------------------------------------------------------------------------- */

struct Found {
  CutBin cut;
  int total;
};

/* The bin of the need-th best, found by each wave for itself; count 0 where all bins hold fewer. */
DSV41_INLINE Found find_cut_bin(const SelectLds& lds, int need) {
  const int coarse = lds.coarse_bins[lane_id()];
  const int coarse_sums = wave_scan_add(coarse);
  Found found = {{0, 0, 0}, read_lane(coarse_sums, kLastLane)};
  if (found.total < need) return found;
  const int lane = lowest_lane(ballot(coarse_sums >= need));
  const int before = read_lane(coarse_sums, lane) - read_lane(coarse, lane);
  const int fine = lds.bins[lane * kWaveSize + lane_id()];
  const int fine_sums = wave_scan_add(fine) + before;
  const int hit = lowest_lane(ballot(fine_sums >= need));
  found.cut.count = read_lane(fine, hit);
  found.cut.above = read_lane(fine_sums, hit) - found.cut.count;
  found.cut.bin = lane * kWaveSize + hit;
  return found;
}

/* Visits the standings of a list, with all lanes of the wave: f(standing), 0 for lanes past its
 * end. */
template <class F>
DSV41_INLINE void visit_list(List list, const SelectLds& lds, F f) {
  for (int i = 0; i < list.count; i += kWaveSize) {
    Standing s = 0;
    if (i + lane_id() < list.count) s = lds.pool[list.first + i + lane_id()];
    f(s);
  }
}

/* Turns a list of {float, position} into standings and counts them in bins. */
template <class Source>
DSV41_INLINE void count_list(const Source& source, List list, const ValueBins& bins,
                             SelectLds& lds) {
  wave_barrier();
  for (int i = lane_id(); i < list.count; i += kWaveSize) {
    const uint64_t entry = lds.pool[list.first + i];
    const float value = bits_float(static_cast<uint32_t>(entry >> 32));
    const uint32_t key = key_of(value);
    lds.pool[list.first + i] = standing(key, source.column_at(static_cast<int>(entry)));
    const int bin = bins.bin_of(value, key);
    lds_add(&lds.bins[bin], 1);
    lds_add(&lds.coarse_bins[bin / kWaveSize], 1);
  }
}

/* One step of the search: count what visit(f) shows of [low, high] in bins, and keep the one of
 * rank `need`. Returns how many are missing where there are not even `need` of them: then all are
 * chosen. Three barriers. */
template <class Visit>
DSV41_INLINE int narrow(Range& range, SelectLds& lds, Visit visit) {
  const uint64_t span = range.high - range.low;
  const int span_bits = 64 - __builtin_clzll(span | 1);
  const int shift = span_bits > kBinBits ? span_bits - kBinBits : 0;
  barrier(); /* without it a fast wave clears bins that a slow one still reads */
  clear_bins(lds);
  barrier(); /* without it a slow wave clears what a fast one has counted */
  visit([&](Standing s) {
    const bool inside = s - range.low <= range.high - range.low;
    if (ballot(inside) == 0) return;
    const int bin = static_cast<int>((range.high - s) >> shift);
    add_to_bins(lds.bins, inside, bin);
    add_to_bins(lds.coarse_bins, inside, bin / kWaveSize);
  });
  barrier(); /* without it a wave reads bins that another one still adds to */
  const Found found = find_cut_bin(lds, range.need);
  if (found.total < range.need) {
    const int missing = range.need - found.total;
    range.need = range.count = found.total;
    return missing;
  }
  range.need -= found.cut.above;
  range.count = found.cut.count;
  range.high -= static_cast<uint64_t>(found.cut.bin) << shift;
  const uint64_t width = (uint64_t{1} << shift) - 1;
  if (range.high - range.low > width) range.low = range.high - width;
  return 0;
}

/* ---- the row again --------------------------------------------------------------------------- */

/* Calls f(standing, position) for the wave's piece of a row, which standing_at(position) reads from
 * memory, kAtOnce at once; the standing is 0 for what is not live. */
template <int kAtOnce, class StandingAt, class F>
DSV41_INLINE void visit_piece(int positions, StandingAt standing_at, F f) {
  const int piece = (positions + kSelectThreads - 1) / kSelectThreads * kWaveSize;
  const int first = wave_id() * piece;
  const int last = first + piece < positions ? first + piece : positions;
  for (int i = first; i < last; i += kAtOnce * kWaveSize) {
    Standing standings[kAtOnce];
#pragma unroll
    for (int v = 0; v < kAtOnce; v++) {
      const int position = i + v * kWaveSize + lane_id();
      standings[v] = position < last ? standing_at(position) : 0;
    }
#pragma unroll
    for (int v = 0; v < kAtOnce; v++)
      if (i + v * kWaveSize < last) f(standings[v], i + v * kWaveSize + lane_id());
  }
}

/* What the wave's piece has from `low` on, as its list of make(standing, position). */
template <class Source, class Make>
DSV41_INLINE List list_row(const Source& source, Standing low, SelectLds& lds, Make make) {
  int survivors = 0;
  source.visit([&](Standing s, int) { survivors += count(ballot(s >= low)); });
  List list = take_from_pool(survivors, lds);
  if (list.first + list.count > kPool) list.count = 0;
  if (list.count == 0) return list;
  int place = list.first;
  source.visit([&](Standing s, int position) {
    const WaveMask lanes = ballot(s >= low);
    if (s >= low) lds.pool[count_below(lanes, place)] = make(s, position);
    place += count(lanes);
  });
  wave_barrier();
  return list;
}

/* What fill_from_tile() does, for rows that come in no vectors: read three times, value by value.
 */
template <class Source>
DSV41_INLINE List fill_from_row(const Source& source, Bounds& bounds, SelectLds& lds) {
  LaneMaxima maxima = {{0, 0}};
  source.visit([&](Standing s, int position) {
    const uint32_t key = static_cast<uint32_t>(s >> 32);
    uint32_t& best = maxima.keys[position / kWaveSize % kLaneMaxima];
    best = key > best ? key : best;
  });
  make_offer(maxima, lds);
  clear(lds);
  barrier(); /* without it a wave reads offers, and counts in bins, that are not there yet */
  bounds = agree_on_bounds(lds);
  return list_row(source, static_cast<uint64_t>(bounds.low) << 32, lds,
                  [](Standing s, int position) {
                    return uncounted(number_of_key(static_cast<uint32_t>(s >> 32)), position);
                  });
}

/* All of the row from key `low` on. */
template <class Source>
DSV41_INLINE Range range_of_row(const Source& source, uint32_t low, SelectLds& lds) {
  uint32_t most = low;
  source.visit([&](Standing s, int) {
    const uint32_t key = static_cast<uint32_t>(s >> 32);
    most = key > most ? key : most;
  });
  most = wave_max(most);
  const int wave = wave_id();
  barrier(); /* without it a fast wave writes offers that a slow one still reads */
  if (lane_id() == 0) lds.offers[wave].over = most;
  barrier(); /* without it a wave reads what another one has not written */
  most = wave_max<kSelectWaves>(lds.offers[lane_id() % kSelectWaves].over);
  return {standing(low, source.last_column()), standing(most, 0), DSV41_TOP_K, 0};
}

/* The list as it would be if the pool held all: what is in the range and above, after the range has
 * been narrowed until `most` entries do. Returns how many of `need` are missing. */
template <class Source>
DSV41_INLINE int list_again(const Source& source, Range& range, int most, List& list,
                            SelectLds& lds) {
  int missing = 0;
  do {
    missing += narrow(range, lds, [&](auto f) { source.visit([&](Standing s, int) { f(s); }); });
  } while (DSV41_TOP_K - missing - range.need + range.count > most);
  barrier(); /* without it a slow wave has yet to read from the pool, and its counter */
  if (thread_id() == 0) lds.pool_used = 0;
  barrier(); /* without it a fast wave takes from a pool that is not empty yet */
  list = list_row(source, range.low, lds, [](Standing s, int) { return s; });
  return missing;
}

/* ---- 3 finalists ----------------------------------------------------------------------------- */

/* The need-th best of the first `entrants` lanes' standings; the other lanes have 0. */
DSV41_INLINE Standing need_th_of_lanes(Standing s, int entrants, int need) {
  WaveMask open = ballot(lane_id() < entrants);
  Standing best = 0;
  while (open != 0) {
    const Standing pivot = read_lane_wide(s, lowest_lane(open));
    const WaveMask reach = ballot(s >= pivot);
    const int reaching = count(reach);
    if (reaching < need) {
      open &= ~reach;
    } else {
      best = pivot;
      if (reaching == need) break;
      open &= ballot(s > pivot);
    }
  }
  return best;
}

/* What a wave does with the finalists, after the barrier behind the last of them. */
struct Ranked {
  Standing least; /* of what is chosen */
  int place;      /* of the wave's first chosen one among all 512 */
};

/* `need` of `entrants` finalists are chosen, besides what each wave has counted in lds.chosen. */
DSV41_INLINE Ranked rank_finalists(int entrants, int need, const SelectLds& lds) {
  const int wave = wave_id();
  Standing finalist = 0;
  int finalist_wave = kSelectWaves;
  if (lane_id() < entrants) {
    finalist = lds.finalists[lane_id()];
    finalist_wave = lds.finalist_waves[lane_id()];
  }
  const Standing least = need_th_of_lanes(finalist, entrants, need);
  const int earlier = count(ballot(finalist >= least) & ballot(finalist_wave < wave));
  return {least, prefix_of(lds.chosen).before + earlier};
}

DSV41_INLINE void add_finalist(Standing s, int wave, SelectLds& lds) {
  const int at = lds_add(&lds.finalist_count, 1);
  lds.finalists[at] = s;
  lds.finalist_waves[at] = wave;
}

/* From a filled list to the 512 indices. `bounds` and the list come from fill_from_tile() or its
 * like. */
template <class Source>
DSV41_INLINE void select_listed(Source& source, List list, Bounds bounds, int32_t* indices,
                                SelectLds& lds) {
  const int wave = wave_id();
  const ValueBins bins(bounds.least, bounds.high);
  count_list(source, list, bins, lds);
  barrier(); /* without it a wave reads bins that another one still adds to */
  const Found found = find_cut_bin(lds, DSV41_TOP_K);
  const int pool_used = uniform(lds.pool_used);
  CutBinTest test(bins, found.cut.bin);
  /* What is undecided, in the cut's bin. */
  Range range = {static_cast<uint64_t>(bounds.low) << 32, ~Standing{0},
                 DSV41_TOP_K - found.cut.above, found.cut.count};
  bool one_bin = !bins.several();
  int goal = DSV41_TOP_K;
  if (pool_used > kPool || found.total < DSV41_TOP_K) {
    source.prepare_visits(lds);
    if (pool_used > kPool) {
      range = range_of_row(source, bounds.low, lds);
    } else {
      /* All above -inf is chosen, and the lowest columns of -inf. */
      range = {standing(kKeyMinusInf, source.last_column()), standing(kKeyMinusInf, 0),
               DSV41_TOP_K - found.total, 0};
    }
    goal -= list_again(source, range, kPool, list, lds);
    one_bin = true;
  }
  if (one_bin) test = CutBinTest();
  auto all_are_chosen = [&] {
    return range.low == range.high || (one_bin && range.count == range.need);
  };
  bool whole_bin = !one_bin;
  while (range.count > kWaveSize && !all_are_chosen()) {
    whole_bin = false;
    narrow(range, lds, [&](auto f) {
      visit_list(list, lds, [&](Standing s) {
        const float difference = test.difference(s);
        const bool inside = difference >= test.better && difference <= test.within;
        f(inside ? s : Standing{0});
      });
    });
  }

  /* Standings are equal only where a compact row names an id twice: then no write may pass the
   * 512th. */
  const bool all_of_range = all_are_chosen();
  int chosen = 0;
  if (whole_bin) { /* undecided is all of it */
    visit_list(list, lds, [&](Standing s) {
      const float difference = test.difference(s);
      const bool above = difference < test.better;
      chosen += count(ballot(above));
      if (difference <= test.within && !above && s != 0) add_finalist(s, wave, lds);
    });
  } else {
    visit_list(list, lds, [&](Standing s) {
      const float difference = test.difference(s);
      const bool above = difference < test.better || (difference <= test.within && s > range.high);
      const bool undecided =
          !above && difference <= test.within && s - range.low <= range.high - range.low;
      chosen += count(ballot(above || (all_of_range && undecided)));
      if (!all_of_range && undecided) add_finalist(s, wave, lds);
    });
  }
  if (lane_id() == 0) lds.chosen[wave] = chosen;
  barrier(); /* without it a wave ranks finalists, and sums counts, that are not there yet */
  Ranked cut;
  if (all_of_range)
    cut = {range.low, prefix_of(lds.chosen).before};
  else
    cut = rank_finalists(range.count, range.need, lds);
  visit_list(list, lds, [&](Standing s) {
    const WaveMask lanes = ballot(s >= cut.least);
    const int at = count_below(lanes, cut.place);
    if (s >= cut.least && at < DSV41_TOP_K) indices[static_cast<uint32_t>(at)] = column_of(s);
    cut.place += count(lanes);
  });
  for (int i = goal + thread_id(); i < DSV41_TOP_K; i += kSelectThreads) indices[i] = -1;
}

}  // namespace dsv41

#endif  // DSV41TOPK_DEVICE_SELECT_H_
