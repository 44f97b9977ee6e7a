/* SPDX-License-Identifier: Apache-2.0
 *
 * The register select: the best 512 of the values that a workgroup holds, in the order it holds them.
 *
 * Every lane holds kItems values, value (load j, component c) at index 4 * j + c, and the order of the
 * row is (wave, load, lane, component). Five barriers on the way that nearly every row takes:
 *
 *   1 bound    Each row of 16 lanes sorts its lanes' maxima (DPP, no LDS) and offers its 8th largest.
 *              64 such rows offer one each, so 512 values are at least T, the smallest of them: nothing
 *              under T can be chosen. U, the largest of them, is a guess of where the cut lies at most.
 *   2, 3 filter  Values of at least T go to LDS in row order: about 1,500 of 16,384 random ones.
 *   4 histogram  512 bins over [T, U] of the survivors' keys; every wave reads the bins by itself.
 *   5 cut      The few values in the bin of rank 512 are ranked by all waves alike.
 *
 * Nothing about the values is assumed: T and U are order statistics. A bin that holds too many values is
 * cut again. NaN, too many survivors or too few take the other way, select_by_radix: a radix select over
 * the registers by ordered keys.
 *
 * Ties are settled by place, the lowest first. kAscending says that places ascend with positions, as they do in a
 * dense row: then many equal values are counted off in order. Otherwise (candidates in any order) the places of the
 * equal values become the keys of another select.
 */
#ifndef DSV41TOPK_DEVICE_SELECT_H_
#define DSV41TOPK_DEVICE_SELECT_H_

#include "abi.h"
#include "device/order.h"
#include "device/platform.h"
#include "tuning.h"

namespace dsv41 {

constexpr int kSelectWaves = kSelectThreads / kWaveSize;
constexpr int kLaneRow = 16; /* lanes that are sorted together */
constexpr int kLaneRows = kSelectThreads / kLaneRow;
constexpr int kOffered = DSV41_TOP_K / kLaneRows;
static_assert(kOffered == 8, "the sorting network below offers the 8th largest of 16 lanes");
static_assert(kSelectWaves <= kWaveSize, "one lane reads one wave's count");
static_assert(kBins % (4 * kWaveSize) == 0, "each lane reads whole vectors of bins");
constexpr int kSurvivorsPerLane = kSurvivors / kSelectThreads;

struct alignas(8) Survivor {
  uint32_t bits; /* the float */
  int32_t place; /* what is emitted: a column, or a group */
};

/* A value in the bin of the cut. */
struct Listed {
  uint32_t key;
  int32_t place;
  int32_t position; /* among the survivors */
};

struct SelectLds {
  alignas(16) int histogram[kBins];
  uint32_t offered[kLaneRows]; /* kKeyNan where the wave asks for the other way */
  int above[kSelectWaves];
  int tied[kSelectWaves];
  int listed_count;
  Listed listed[kWaveSize];
  Survivor survivors[kSurvivors];
};

DSV41_INLINE int wave_id() { return uniform(thread_id() / kWaveSize); }

/* What all waves of the workgroup brought, summed up: before this wave, and together. */
struct Prefix {
  int before;
  int total;
};
DSV41_INLINE Prefix prefix_of(const int* of_waves) {
  int mine = lane_id() < kSelectWaves ? of_waves[lane_id()] : 0;
  int sums = wave_scan_add(mine);
  int wave = wave_id();
  return {read_lane(sums, wave) - read_lane(mine, wave), read_lane(sums, kSelectWaves - 1)};
}

/* The bin of the need-th best key, counted from the top bin down. */
struct CutBin {
  int bin;
  int above; /* keys in better bins */
  int count; /* keys in this one */
};
DSV41_INLINE CutBin find_cut_bin(const int* histogram, int need) {
  constexpr int kPerLane = kBins / kWaveSize;
  /* Lane 0 has the top bins, so that an inclusive scan counts from the best key. */
  int first = (kWaveSize - 1 - lane_id()) * kPerLane;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; i++) sum += histogram[first + i];
  int sums = wave_scan_add(sum);
  int lane = lowest_lane(ballot(sums >= need));
  int above = read_lane(sums, lane) - read_lane(sum, lane);
  /* The same among that lane's bins, a bin a lane. */
  int top = (kWaveSize - lane) * kPerLane - 1;
  int bin_count = lane_id() < kPerLane ? histogram[top - lane_id()] : 0;
  int bin_sums = wave_scan_add(bin_count);
  int hit = lowest_lane(ballot(above + bin_sums >= need));
  int count = read_lane(bin_count, hit);
  return {top - hit, above + read_lane(bin_sums, hit) - count, count};
}

/* One comparison of the sorting network: lanes without `bit` keep the larger key. */
template <int kMask>
DSV41_INLINE uint32_t keep(uint32_t key, int bit) {
  uint32_t other = swap_lanes<kMask>(key);
  uint32_t larger = key > other ? key : other, smaller = key > other ? other : key;
  return lane_id() & bit ? smaller : larger;
}

/* The 8th largest of each 16 lanes' keys, in all of them. */
DSV41_INLINE uint32_t eighth_of_sixteen(uint32_t key) {
  key = keep<1>(key, 1);
  key = keep<3>(key, 2);
  key = keep<1>(key, 1);
  key = keep<7>(key, 4);
  key = keep<2>(key, 2);
  key = keep<1>(key, 1);
  /* Two descending runs of 8, one mirrored: the larger of each pair are the best 8. */
  uint32_t other = swap_lanes<15>(key);
  key = key > other ? key : other;
  key = (other = swap_lanes<1>(key)) < key ? other : key;
  key = (other = swap_lanes<2>(key)) < key ? other : key;
  return (other = swap_lanes<7>(key)) < key ? other : key;
}

DSV41_INLINE void clear_histogram(SelectLds& lds) {
  for (int i = thread_id(); i < kBins; i += kSelectThreads) lds.histogram[i] = 0;
  if (thread_id() == 0) lds.listed_count = 0;
}

/* Add to the bins of the active lanes. Atomics on one address are served one lane at a time, so the lanes
 * that share the first active lane's bin (padding, -inf, equal values) are added as one. */
DSV41_INLINE void add_to_bins(int* histogram, bool active, int bin) {
  WaveMask lanes = ballot(active);
  if (lanes == 0) return;
  int first_bin = read_lane(bin, lowest_lane(lanes));
  bool shared = active && bin == first_bin;
  WaveMask sharing = ballot(shared);
  if (lane_id() == lowest_lane(lanes)) lds_add(&histogram[first_bin], count(sharing));
  if (active && !shared) lds_add(&histogram[bin], 1);
}

/* Where places do not ascend, the equal keys at the cut are ranked by place: better keys become the largest, the
 * equal ones take keys that fall with the place, in [1, kPlaceKeys], and the rest is out. */
constexpr uint32_t kPlaceKeys = 0x80000000u;
DSV41_INLINE uint32_t key_by_place(uint32_t key, uint32_t cut, int place) {
  return key > cut ? kKeyNan : key < cut ? kKeyNotLive : kPlaceKeys - static_cast<uint32_t>(place);
}

/* The exact way for any values: a radix select over the registers, by key; kKeyNotLive does not count.
 * Of fewer than 512 live values all are emitted. Returns how many were. */
template <bool kAscending, int kItems, class PlaceOf, class Emit>
DSV41_INLINE int select_by_radix(uint32_t (&keys)[kItems], PlaceOf place_of, Emit emit,
                                 SelectLds& lds) {
  const int wave = wave_id();
  int alive = 0;
#pragma unroll
  for (int i = 0; i < kItems; i++) alive += count(ballot(keys[i] != kKeyNotLive));
  barrier(); /* without it a fast wave writes what a slow one still reads */
  if (lane_id() == 0) lds.above[wave] = alive;
  clear_histogram(lds);
  barrier();
  alive = prefix_of(lds.above).total;

  uint32_t low = 1, span = 0xfffffffeu; /* keys of [low, low + span] are undecided */
  int need = DSV41_TOP_K;
  bool by_place = false;
  constexpr int kBinBits = 31 - __builtin_clz(kBins);
  for (int shift = 32 - kBinBits; alive > DSV41_TOP_K; shift = shift > kBinBits ? shift - kBinBits : 0) {
#pragma unroll
    for (int i = 0; i < kItems; i++) {
      uint32_t at = keys[i] - low;
      add_to_bins(lds.histogram, at <= span, static_cast<int>(at >> shift));
    }
    barrier();
    CutBin cut = find_cut_bin(lds.histogram, need);
    need -= cut.above;
    low += static_cast<uint32_t>(cut.bin) << shift;
    uint32_t width = (1u << shift) - 1;
    span = width < 0xffffffffu - low ? width : 0xffffffffu - low;
    if (cut.count == need) break;
    if (shift == 0) {
      if (kAscending || by_place) break;
      by_place = true;
#pragma unroll
      for (int i = 0; i < kItems; i++) keys[i] = key_by_place(keys[i], low, place_of(i));
      low = 1;
      span = kPlaceKeys - 1;
      shift = 32; /* the next round starts from the top */
    }
    barrier(); /* without it a fast wave clears bins that a slow one still reads */
    clear_histogram(lds);
    barrier();
  }
  /* Chosen: keys above the range, and the first `need` of those in it (all of them, or equal ones). */
  const uint32_t top = low + span;
  int above = 0, tied = 0;
#pragma unroll
  for (int i = 0; i < kItems; i++) {
    above += count(ballot(keys[i] > top));
    tied += count(ballot(keys[i] - low <= span));
  }
  barrier(); /* without it a fast wave writes the counts of live values before a slow one has read them */
  if (lane_id() == 0) {
    lds.above[wave] = above;
    lds.tied[wave] = tied;
  }
  barrier();
  above = prefix_of(lds.above).before;
  tied = prefix_of(lds.tied).before;
  const uint32_t again_low = opaque(low), again_top = opaque(top);
#pragma unroll
  for (int i = 0; i < kItems; i += 4) {
    /* Within a load the order is lane by lane: a lane's four components stand together. */
    int above_here = above, tied_here = tied;
#pragma unroll
    for (int c = 0; c < 4; c++) {
      WaveMask above_lanes = ballot(keys[i + c] > again_top);
      WaveMask tied_lanes = ballot(keys[i + c] - again_low <= span);
      above_here = count_below(above_lanes, above_here);
      tied_here = count_below(tied_lanes, tied_here);
      above += count(above_lanes);
      tied += count(tied_lanes);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
      bool better = keys[i + c] > again_top, equal = keys[i + c] - again_low <= span;
      if (better || (equal && tied_here < need))
        emit(above_here + (tied_here < need ? tied_here : need), place_of(i + c));
      above_here += better;
      tied_here += equal;
    }
  }
  return alive < DSV41_TOP_K ? alive : DSV41_TOP_K;
}

/* The exact select among the `total` survivors in LDS, 512 of them or more, all at least `low`. */
template <bool kAscending, class Emit>
DSV41_INLINE void select_survivors(int total, uint32_t low, uint32_t high, Emit emit, SelectLds& lds) {
  const int wave = wave_id();
  const int per_lane = (total + kSelectThreads - 1) / kSelectThreads;
  const int first = wave * per_lane * kWaveSize;
  uint32_t keys[kSurvivorsPerLane];
  int places[kSurvivorsPerLane];
#pragma unroll
  for (int i = 0; i < kSurvivorsPerLane; i++) {
    keys[i] = kKeyNotLive;
    places[i] = 0;
    int at = first + i * kWaveSize + lane_id();
    if (i < per_lane && at < total) {
      Survivor survivor = lds.survivors[at];
      keys[i] = key_of_number(bits_float(survivor.bits));
      places[i] = survivor.place;
    }
  }

  int need = DSV41_TOP_K;
  CutBin cut;
  bool top_open = true; /* the top bin also holds all keys above `high` */
  while (true) {
    uint32_t range = high - low;
    int shift = range < kBins ? 0 : 32 - (31 - __builtin_clz(kBins)) - __builtin_clz(range);
#pragma unroll
    for (int i = 0; i < kSurvivorsPerLane; i++) {
      if (i >= per_lane) break;
      bool active = keys[i] >= low && (top_open || keys[i] <= high);
      uint32_t bin = (keys[i] - low) >> shift;
      if (active) lds_add(&lds.histogram[bin < kBins - 1 ? bin : kBins - 1], 1);
    }
    barrier();
    cut = find_cut_bin(lds.histogram, need);
    need -= cut.above;
    low += static_cast<uint32_t>(cut.bin) << shift;
    if (!(top_open && cut.bin == kBins - 1)) {
      high = low + ((1u << shift) - 1);
      top_open = false;
    } else {
      high = 0xffffffffu;
    }
    if (cut.count == need || cut.count <= kWaveSize) break;
    if (low == high) {
      if (kAscending) break;
      /* Places differ, so this cannot come twice: a bin of one place has a count of 1. */
#pragma unroll
      for (int i = 0; i < kSurvivorsPerLane; i++) {
        if (i >= per_lane) break;
        keys[i] = key_by_place(keys[i], low, places[i]);
      }
      low = 1;
      high = kPlaceKeys;
    }
    barrier(); /* without it a fast wave clears bins that a slow one still reads */
    clear_histogram(lds);
    barrier();
  }

  /* Three ends: the whole bin is chosen; its few keys are ranked; or it is one key, and position decides. */
  const bool whole = cut.count == need;
  const bool ranked = !whole && cut.count <= kWaveSize;
  int above = 0, tied = 0;
#pragma unroll
  for (int i = 0; i < kSurvivorsPerLane; i++) {
    if (i >= per_lane) break;
    bool inside = keys[i] >= low && keys[i] <= high;
    above += count(ballot(whole ? keys[i] >= low : keys[i] > high));
    if (!whole && !ranked) tied += count(ballot(inside));
    if (ranked && inside) {
      int slot = lds_add(&lds.listed_count, 1);
      lds.listed[slot] = {keys[i], places[i], first + i * kWaveSize + lane_id()};
    }
  }
  if (lane_id() == 0) {
    lds.above[wave] = above;
    lds.tied[wave] = tied;
  }
  barrier();
  int rank = prefix_of(lds.above).before;
  uint32_t cut_key = whole ? low - 1 : high;
  int cut_place = -1, tied_before = 0, tied_taken = 0;
  if (ranked) {
    Listed mine = {0, 0, 0};
    if (lane_id() < cut.count) mine = lds.listed[lane_id()];
    int better = 0;
    for (int i = 0; i < cut.count; i++) {
      uint32_t key = static_cast<uint32_t>(read_lane(static_cast<int>(mine.key), i));
      int place = read_lane(mine.place, i);
      better += key > mine.key || (key == mine.key && place < mine.place);
    }
    bool taken = lane_id() < cut.count && better < need;
    int last = lowest_lane(ballot(taken && better == need - 1));
    cut_key = static_cast<uint32_t>(read_lane(static_cast<int>(mine.key), last));
    cut_place = read_lane(mine.place, last);
    rank += count(ballot(taken && mine.position < first));
  } else if (!whole) {
    tied_before = prefix_of(lds.tied).before;
    tied_taken = tied_before < need ? tied_before : need;
  }
#pragma unroll
  for (int i = 0; i < kSurvivorsPerLane; i++) {
    if (i >= per_lane) break;
    bool taken = keys[i] > cut_key || (keys[i] == cut_key && places[i] <= cut_place);
    if (!whole && !ranked) {
      bool equal = keys[i] == low;
      WaveMask equal_lanes = ballot(equal);
      taken = keys[i] > high || (equal && count_below(equal_lanes, tied_before) < need);
      tied_before += count(equal_lanes);
    }
    WaveMask lanes = ballot(taken);
    if (taken) emit(count_below(lanes, rank + tied_taken), places[i]);
    rank += count(lanes);
  }
}

/* Select among the values; `place_of(i)` is what is emitted for item i and no other, 0 or more. Values that are not live must be -inf. Returns how many were emitted, 512 unless fewer are live. */
template <bool kAscending, int kItems, class Live, class PlaceOf, class Emit>
DSV41_INLINE int select_values(const float (&values)[kItems], Live live, PlaceOf place_of, Emit emit,
                               SelectLds& lds) {
  float largest = values[0];
  WaveMask odd = 0;
#pragma unroll
  for (int i = 0; i < kItems; i += 2) {
    odd |= unordered_lanes(values[i], values[i + 1]);
    float larger = values[i] > values[i + 1] ? values[i] : values[i + 1];
    largest = larger > largest ? larger : largest;
  }
  uint32_t offered = odd ? kKeyNan : eighth_of_sixteen(key_of_number(largest));
  if (lane_id() % kLaneRow == 0) lds.offered[thread_id() / kLaneRow] = offered;
  clear_histogram(lds);
  barrier();
  uint32_t low = kKeyNan, high = 0;
#pragma unroll
  for (int i = 0; i < kLaneRows; i += kWaveSize) {
    uint32_t key = lds.offered[i + lane_id()];
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  low = wave_min(low);
  high = wave_max(high);
  if (high != kKeyNan) {
    /* Fewer than 512 lanes may hold a finite value and yet 512 values be finite (a masked row): then
     * any value above -inf survives. */
    low = low > kKeyMinusInf ? low : kKeyMinusInf + 1;
    high = high > low ? high : low;
    const float bound = number_of_key(low);
    int survivors = 0;
#pragma unroll
    for (int i = 0; i < kItems; i++) survivors += count(ballot(values[i] >= bound));
    const int wave = wave_id();
    if (lane_id() == 0) lds.above[wave] = survivors;
    barrier();
    Prefix prefix = prefix_of(lds.above);
    if (prefix.total >= DSV41_TOP_K && prefix.total <= kSurvivors) {
      int base = prefix.before;
      const float again = opaque(bound);
#pragma unroll
      for (int i = 0; i < kItems; i += 4) {
        int at = base;
#pragma unroll
        for (int c = 0; c < 4; c++) {
          WaveMask lanes = ballot(values[i + c] >= again);
          at = count_below(lanes, at);
          base += count(lanes);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
          if (values[i + c] >= again) lds.survivors[at++] = {float_bits(values[i + c]), place_of(i + c)};
        }
      }
      barrier();
      select_survivors<kAscending>(prefix.total, low, high, emit, lds);
      return DSV41_TOP_K;
    }
  }
  uint32_t keys[kItems];
#pragma unroll
  for (int i = 0; i < kItems; i++) keys[i] = live(i) ? key_of(values[i]) : kKeyNotLive;
  return select_by_radix<kAscending>(keys, place_of, emit, lds);
}

}  // namespace dsv41

#endif  // DSV41TOPK_DEVICE_SELECT_H_
