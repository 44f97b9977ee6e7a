/* SPDX-License-Identifier: Apache-2.0
 *
 * The cut: the want-th best of any number of values, found by one workgroup with histograms.
 *
 * Values are read in tiles of 16,384, four 16-byte vectors a lane; what fits in one tile is read
 * once and stays in registers (kResident), what does not is read from L2 again in each pass. The
 * order of positions is (tile, wave, vector, lane, component). Barriers on the way that nearly
 * every row takes:
 *
 *   1 range      One wave reads 512 values, spread over the row, and takes bins that cover the
 *                upper part of them. A guess: a wrong one costs time, never exactness.
 *   2 histogram  512 bins, linear in the value. What is under the range is not counted.
 *   3 listed     The few values in the bin of rank `want`, which every wave finds by itself.
 *   4 cut        Each wave ranks some of them. The one of rank `want` is the cut.
 *   5 emission   The counts of each wave, summed up by all; one barrier a tile.
 *
 * narrow() is the other way, for any values: it brackets the cut by ordered keys, 512 bins at a
 * time, between the smallest and the largest key that are left, and reads the values again in each
 * pass.
 *
 * A source says what the values are: `count` positions, of which those from `first_live` on are
 * live; `vectors`, where they lie; rank_id(position), by which ties are settled, and whether it
 * ascends with the position (kAscending; else it is -1 for a slot that is not live); and whether
 * -inf may be chosen (kTakesMinusInf).
 */
#ifndef DSV41TOPK_DEVICE_CUT_H_
#define DSV41TOPK_DEVICE_CUT_H_

#include "device/order.h"
#include "device/platform.h"
#include "device/wave.h"
#include "tuning.h"

namespace dsv41 {

constexpr int kCutWaves = kCutThreads / kWaveSize;
constexpr int kCutBinBits = 31 - __builtin_clz(kCutBins);
constexpr int kTileVectors = 4;
constexpr int kTileItems = 4 * kTileVectors;
constexpr int kWaveItems = kWaveSize * kTileItems;
constexpr int kSampleVectors = 128 / kWaveSize; /* of a lane: 512 values a wave of any size */
static_assert(kCutBins == 1 << kCutBinBits && kCutBins % (4 * kWaveSize) == 0,
              "a power of two, and whole vectors of bins for each lane");
static_assert(kTile == kCutThreads * kTileItems, "a lane holds its share of a tile in registers");
static_assert(kCutWaves <= kWaveSize, "one lane reads one wave's count");

constexpr uint32_t kNanBits = 0x7ffffffeu;     /* of every NaN here: its key has one above it */
constexpr uint32_t kNothingBits = 0xffffffffu; /* below -inf in every comparison of this file */
constexpr int kAllIds = 0x7fffffff;

/* A value in the cut's bin: its bits or its key. */
struct alignas(8) InCutBin {
  uint32_t value;
  int position;
};

struct CutLds {
  alignas(16) int bins[kCutBins];
  InCutBin listed[kListed];
  uint64_t cut;
  uint32_t low[kCutWaves];
  uint32_t high[kCutWaves];
  int counts[2][kCutWaves];
  int listed_count;
  int position;
  float scale;
  float offset;
};

/* Chosen are the keys above `key`, and those equal to it with ids up to `id`. */
struct Cut {
  uint32_t key;
  int id;
};

DSV41_INLINE uint32_t key_of_bits(uint32_t bits) { return key_of_number(bits_float(bits)); }

/* ---- values ---------------------------------------------------------------------------------- */

/* base[index] at a 32-bit byte offset, which loads and stores take as it is; a 64-bit address costs
 * three instructions. */
template <class T>
DSV41_INLINE T load_at(const T* base, int index) {
  const uint32_t offset_bytes = static_cast<uint32_t>(index) * static_cast<uint32_t>(sizeof(T));
  return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(base) + offset_bytes);
}
template <class T>
DSV41_INLINE void store_at(T* base, int index, T value) {
  const uint32_t offset_bytes = static_cast<uint32_t>(index) * static_cast<uint32_t>(sizeof(T));
  *reinterpret_cast<T*>(reinterpret_cast<char*>(base) + offset_bytes) = value;
}

/* The position of a lane's item i is that of its first item and place_of(i). */
DSV41_INLINE int first_position(uint32_t tile) {
  return static_cast<int>(tile) + wave_id() * kWaveItems + lane_id() * 4;
}
DSV41_INLINE int place_of(int item) { return item / 4 * kWaveSize * 4 + item % 4; }

/* The bits of four adjacent values; -inf where nothing is live, kNanBits for NaN. A vector that is
 * not all live is read value by value. */
template <class Source>
DSV41_INLINE void load_vector(const Source& source, uint32_t position, uint32_t* bits) {
  const float nothing = bits_float(kMinusInfBits);
  Float4 values = {nothing, nothing, nothing, nothing};
  const bool whole = position >= source.first_live && position + 4 <= source.count;
  if (whole) values = source.vectors[position / 4];
  bits[0] = float_bits(values.x);
  bits[1] = float_bits(values.y);
  bits[2] = float_bits(values.z);
  bits[3] = float_bits(values.w);
  if (!whole && position < source.count) {
    const float* single = &source.vectors[position / 4].x;
#pragma unroll
    for (int c = 0; c < 4; c++) {
      if (position + c >= source.first_live && position + c < source.count)
        bits[c] = float_bits(single[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < 4; c++) bits[c] = is_nan(bits[c]) ? kNanBits : bits[c];
}

/* The same for a tile, but for NaN. */
template <class Source>
DSV41_INLINE void load_tile(const Source& source, uint32_t tile, uint32_t (&bits)[kTileItems]) {
  const uint32_t first = tile + wave_id() * kWaveItems;
  if (first >= source.count) {
#pragma unroll
    for (int i = 0; i < kTileItems; i++) bits[i] = kMinusInfBits;
  } else if (first >= source.first_live && source.count - first >= kWaveItems) {
#pragma unroll
    for (int j = 0; j < kTileVectors; j++) {
      const Float4 values = load_at(source.vectors + first / 4, j * kWaveSize + lane_id());
      bits[4 * j] = float_bits(values.x);
      bits[4 * j + 1] = float_bits(values.y);
      bits[4 * j + 2] = float_bits(values.z);
      bits[4 * j + 3] = float_bits(values.w);
    }
  } else {
#pragma unroll
    for (int j = 0; j < kTileVectors; j++)
      load_vector(source, first + (j * kWaveSize + lane_id()) * 4, &bits[4 * j]);
  }
}

DSV41_INLINE void make_nan_one_value(uint32_t (&bits)[kTileItems]) {
  WaveMask odd = 0;
#pragma unroll
  for (int i = 0; i < kTileItems; i += 2)
    odd |= unordered_lanes(bits_float(bits[i]), bits_float(bits[i + 1]));
  if (odd == 0) return;
#pragma unroll
  for (int i = 0; i < kTileItems; i++) bits[i] = is_nan(bits[i]) ? kNanBits : bits[i];
}

/* Calls f(position, bits) for every four values, adjacent ones in adjacent lanes. */
template <class Source, class F>
DSV41_INLINE void for_vectors(const Source& source, F f) {
#pragma unroll 1
  for (uint32_t first = 0; first < source.count; first += 4 * kCutThreads) {
    const uint32_t position = first + 4 * thread_id();
    uint32_t bits[4];
    load_vector(source, position, bits);
    f(position, bits);
  }
}

/* Calls f(tile, bits) for each tile. A resident one has been loaded into `bits`. */
template <bool kResident, class Source, class F>
DSV41_INLINE void for_tiles(const Source& source, uint32_t (&bits)[kTileItems], F f) {
  if (kResident) {
    f(0u);
  } else {
    for (uint32_t tile = 0; tile < source.count; tile += kTile) {
      load_tile(source, tile, bits);
      make_nan_one_value(bits);
      f(tile);
    }
  }
}

/* ---- bins that are linear in the value ------------------------------------------------------- */

/* bin * 4 of a value, monotone in it: -inf and what is under the range in bin 0, NaN and what is
 * above in the last. The sum lies at 2^k, where a bin is 4 units of the last place, so that its low
 * bits are the bin's offset. */
struct LinearBins {
  float scale; /* 0: there are none */
  float offset;
  int top; /* kTop, from a register: as a constant it is loaded again for every second value */

  static constexpr int kZero = (127 + 23 - 2) << 23; /* the bits of 2^21 */
  static constexpr int kTop = kZero + 4 * kCutBins - 1;
  DSV41_INLINE_MEMBER uint32_t offset_of(uint32_t bits) const {
    float sum = __builtin_fmaf(bits_float(bits), scale, offset);
    int at = static_cast<int>(float_bits(sum));
    at = at < kZero ? kZero : at;
    at = at > top ? top : at;
    return static_cast<uint32_t>(at) & (4 * kCutBins - 4);
  }
};

DSV41_INLINE bool is_finite(uint32_t bits) { return (bits & 0x7f800000u) != 0x7f800000u; }

/* 512 values of a row of as many or more, spread over it, in one wave. */
struct Sample {
  Float4 vectors[kSampleVectors];
};
template <class Source>
DSV41_INLINE void load_sample(const Source& source, Sample& sample) {
  constexpr uint32_t kSamples = kSampleVectors * kWaveSize;
  const uint32_t vectors = source.count / 4 - 1; /* from the second on, all live */
  const uint32_t step = vectors / kSamples, rest = vectors % kSamples;
#pragma unroll
  for (int j = 0; j < kSampleVectors; j++) {
    const uint32_t number = j * kWaveSize + lane_id();
    sample.vectors[j] = source.vectors[1 + number * step + number * rest / kSamples];
  }
}

/* Bins for the part of the row where the cut must be looked for. If it is among the best eighth
 * (`few`), each lane's largest value bounds what is worth counting. */
DSV41_INLINE LinearBins choose_bins(const Sample& sample, bool few) {
  constexpr float kLargest = 3.402823466e38f;
  float high = sample.vectors[0].x, low = sample.vectors[0].x;
#pragma unroll
  for (int j = 0; j < kSampleVectors; j++) {
    const Float4 v = sample.vectors[j];
    const float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int c = 0; c < 4; c++) {
      high = __builtin_fmaxf(high, four[c]);
      low = __builtin_fminf(low, four[c]);
    }
  }
  if (ballot(!is_finite(float_bits(low)) || !is_finite(float_bits(high)))) {
    /* Once more without infinities and NaN. What comparisons made of NaN is of no matter. */
    high = -kLargest;
    low = kLargest;
#pragma unroll
    for (int j = 0; j < kSampleVectors; j++) {
      const Float4 v = sample.vectors[j];
      const float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int c = 0; c < 4; c++) {
        bool counts = is_finite(float_bits(four[c]));
        high = counts && four[c] > high ? four[c] : high;
        low = counts && four[c] < low ? four[c] : low;
      }
    }
  }
  if (few && high != -kLargest) low = high;
  low = number_of_key(wave_min(key_of_number(low)));
  high = number_of_key(wave_max(key_of_number(high)));
  /* Half of the range again above the sample's largest value: 1 in 512 lies there. */
  uint32_t range = float_bits((high - low) * 1.5f);
  uint32_t exponent = range >> 23; /* with the sign: negative ones are above 254 */
  if (exponent < kCutBinBits || exponent > 254) return {0, 0, 0};
  const float scale = bits_float((2 * 127 + kCutBinBits - 1 - exponent) << 23);
  return {scale, bits_float(LinearBins::kZero) + 1.0f - low * scale, 0};
}

/* The bin of the need-th best, found by each wave for itself. count 0: the bins hold fewer. */
DSV41_INLINE CutBin find_bin(const int* bins, int need) {
  constexpr int kPerLane = kCutBins / kWaveSize;
  /* Lane 0 has the top bins, so that an inclusive scan counts from the best key. */
  const int first = (kWaveSize - 1 - lane_id()) * kPerLane;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; i++) sum += bins[first + i];
  const int sums = wave_scan_add(sum);
  const WaveMask reached = ballot(sums >= need);
  if (reached == 0) return {0, 0, 0};
  const int lane = lowest_lane(reached);
  const int above = read_lane(sums, lane) - read_lane(sum, lane);
  /* The same among that lane's bins, a bin a lane. */
  const int top = (kWaveSize - lane) * kPerLane - 1;
  const int mine = lane_id() < kPerLane ? bins[top - lane_id()] : 0;
  const int mine_sums = wave_scan_add(mine);
  const int hit = lowest_lane(ballot(above + mine_sums >= need));
  const int count = read_lane(mine, hit);
  return {top - hit, above + read_lane(mine_sums, hit) - count, count};
}

DSV41_INLINE void clear_bins(CutLds& lds) {
  for (int i = thread_id(); i < kCutBins; i += kCutThreads) lds.bins[i] = 0;
  if (thread_id() == 0) lds.listed_count = 0;
}

/* ---- ranking a few --------------------------------------------------------------------------- */

/* One number to rank by: better keys first, of equal ones the lowest id. */
DSV41_INLINE uint64_t listing(uint32_t key, int id) {
  return static_cast<uint64_t>(key) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

DSV41_INLINE void list(CutLds& lds, uint32_t value, int position) {
  lds.listed[lds_add(&lds.listed_count, 1)] = {value, position};
}

/* Of the values in lds.listed, the need-th best. Two barriers. */
template <bool kIsKey, class Source>
DSV41_INLINE Cut rank_listed(const Source& source, int need, CutLds& lds) {
  constexpr int kPerLane = kListed / kWaveSize;
  barrier(); /* without it a fast wave ranks values that a slow one has not listed */
  const int total = uniform(lds.listed_count);
  uint64_t mine[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; i++) {
    mine[i] = 0;
    if (i * kWaveSize >= total) continue;
    const int at = i * kWaveSize + lane_id();
    if (at >= total) continue;
    const InCutBin listed = lds.listed[at];
    const uint32_t key = kIsKey ? listed.value : key_of_bits(listed.value);
    mine[i] = listing(key, source.rank_id(listed.position));
  }
#pragma unroll
  for (int i = 0; i < kPerLane; i++) {
    const int left = total - i * kWaveSize;
    for (int lane = wave_id(); lane < kWaveSize && lane < left; lane += kCutWaves) {
      const uint32_t key = read_lane(static_cast<int>(mine[i] >> 32), lane);
      const uint32_t low = read_lane(static_cast<int>(mine[i]), lane);
      const uint64_t entry = static_cast<uint64_t>(key) << 32 | low;
      int better = 0, same = 0;
#pragma unroll
      for (int k = 0; k < kPerLane; k++) {
        if (k * kWaveSize >= total) break;
        better += count(ballot(mine[k] > entry));
        /* More than itself only where a slot's id is listed twice. */
        same += Source::kAscending ? k == 0 : count(ballot(mine[k] == entry));
      }
      if (better < need && need <= better + same && lane_id() == 0) lds.cut = entry;
    }
  }
  barrier(); /* without it a wave reads the cut before another one has found it */
  const uint64_t entry = lds.cut;
  return {static_cast<uint32_t>(uniform(static_cast<int>(entry >> 32))),
          uniform(static_cast<int>(0xffffffffu - static_cast<uint32_t>(entry)))};
}

/* ---- any values ------------------------------------------------------------------------------ */

struct Survey {
  uint32_t low, high;
  int total;
};

/* How many keys lie in [low, high], and the smallest and the largest of them. One barrier. */
template <class Source, class KeyOf>
DSV41_INLINE Survey survey(const Source& source, KeyOf key_of_value, uint32_t low, uint32_t high,
                           CutLds& lds) {
  uint32_t smallest = 0xffffffffu, largest = 0;
  int total = 0;
  for_vectors(source, [&](uint32_t position, const uint32_t* bits) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
      uint32_t key = key_of_value(bits[c], position + c);
      bool inside = key >= low && key <= high;
      smallest = inside && key < smallest ? key : smallest;
      largest = inside && key > largest ? key : largest;
      total += count(ballot(inside));
    }
  });
  smallest = wave_min(smallest);
  largest = wave_max(largest);
  if (lane_id() == 0) {
    lds.low[wave_id()] = smallest;
    lds.high[wave_id()] = largest;
    lds.counts[1][wave_id()] = total;
  }
  barrier(); /* without it a wave sums up what another one has not written */
  return {wave_min(lds.low[lane_id() % kCutWaves]), wave_max(lds.high[lane_id() % kCutWaves]),
          prefix_of(lds.counts[1]).total};
}

struct Narrowed {
  Cut cut;
  int tied; /* above 0: that many of the keys equal to the cut's are needed, and there are more */
  int missing; /* above 0: there are that many keys too few, and all are chosen */
};

/* The need-th best of the keys that are not 0. */
template <class Source, class KeyOf>
DSV41_INLINE Narrowed narrow(const Source& source, KeyOf key_of_value, int need, CutLds& lds) {
  uint32_t low = 1, high = 0xffffffffu;
  while (true) {
    Survey left = survey(source, key_of_value, low, high, lds);
    if (left.total <= need) return {{left.low, kAllIds}, 0, need - left.total};
    low = left.low;
    high = left.high;
    if (low == high) return {{low, 0}, need, 0};
    const int range_bits = 32 - __builtin_clz(high - low);
    const int shift = range_bits > kCutBinBits ? range_bits - kCutBinBits : 0;
    clear_bins(lds);
    barrier(); /* without it a slow wave clears what a fast one has counted */
    for_vectors(source, [&](uint32_t position, const uint32_t* bits) {
#pragma unroll
      for (int c = 0; c < 4; c++) {
        uint32_t key = key_of_value(bits[c], position + c);
        add_to_bins(lds.bins, key >= low && key <= high, static_cast<int>((key - low) >> shift));
      }
    });
    barrier(); /* without it a wave reads bins that another one still adds to */
    const CutBin bin = find_bin(lds.bins, need);
    need -= bin.above;
    low += static_cast<uint32_t>(bin.bin) << shift;
    const uint32_t last = low + ((1u << shift) - 1);
    high = last < high && last >= low ? last : high;
    if (bin.count == need) return {{low, kAllIds}, 0, 0};
    if (bin.count <= kListed) {
      for_vectors(source, [&](uint32_t position, const uint32_t* bits) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
          uint32_t key = key_of_value(bits[c], position + c);
          if (key >= low && key <= high) list(lds, key, static_cast<int>(position + c));
        }
      });
      return {rank_listed<true>(source, need, lds), 0, 0};
    }
  }
}

/* The position of the need-th live value whose key is `key`, in the order of positions. */
template <class Source>
DSV41_INLINE int tied_position(const Source& source, uint32_t key, int need, CutLds& lds) {
  int before = 0, parity = 0;
  barrier(); /* without it a fast wave writes counts that a slow one still sums up */
  for_vectors(source, [&](uint32_t position, const uint32_t* bits) {
    bool tied[4];
    int mine = 0, at = 0;
#pragma unroll
    for (int c = 0; c < 4; c++) {
      tied[c] = key_of_bits(bits[c]) == key && position + c >= source.first_live &&
                position + c < source.count;
      WaveMask lanes = ballot(tied[c]);
      at = count_below(lanes, at);
      mine += count(lanes);
    }
    if (lane_id() == 0) lds.counts[parity][wave_id()] = mine;
    barrier(); /* without it a wave sums up what another one has not written */
    const Prefix prefix = prefix_of(lds.counts[parity]);
    at += before + prefix.before;
#pragma unroll
    for (int c = 0; c < 4; c++) {
      at += tied[c];
      if (tied[c] && at == need) lds.position = static_cast<int>(position + c);
    }
    before += prefix.total;
    parity ^= 1; /* the next counts: a slow wave may still read these */
  });
  barrier(); /* without it a wave reads the position before another one has found it */
  return uniform(lds.position);
}

/* ---- the cut --------------------------------------------------------------------------------- */

/* The cut below the best `want` values; all of them, if there are fewer. Where -inf may be chosen
 * and ids ascend, there must be `want` live values. lds.scale and lds.offset and the cleared bins
 * are set, but for a barrier. */
template <bool kResident, class Source>
DSV41_INLINE Cut find_cut(const Source& source, uint32_t (&bits)[kTileItems], int want,
                          CutLds& lds) {
  barrier(); /* without it a slow wave clears what a fast one has counted */
  const LinearBins bins = {lds.scale, lds.offset,
                           static_cast<int>(opaque(uint32_t{LinearBins::kTop}))};
  const int one = static_cast<int>(opaque(1u));
  int need = want;
  bool in_one_bin = false;
  uint32_t bin_offset = 0, offsets[kTileItems];
  if (uniform(static_cast<int>(float_bits(bins.scale))) != 0) {
    for_tiles<kResident>(source, bits, [&](uint32_t tile) {
      if (tile + wave_id() * kWaveItems >= source.count) return;
#pragma unroll
      for (int i = 0; i < kTileItems; i++) {
        offsets[i] = bins.offset_of(bits[i]);
        if (offsets[i]) lds_add(&lds.bins[offsets[i] / 4], one);
      }
    });
    barrier(); /* without it a wave reads bins that another one still adds to */
    const CutBin bin = find_bin(lds.bins, need);
    if (bin.count) {
      in_one_bin = true;
      bin_offset = 4 * bin.bin;
      need -= bin.above;
      if (bin.count <= kListed) {
        for_tiles<kResident>(source, bits, [&](uint32_t tile) {
          if (tile + wave_id() * kWaveItems >= source.count) return;
          const int first = first_position(tile);
#pragma unroll
          for (int i = 0; i < kTileItems; i++) {
            if (!kResident) offsets[i] = bins.offset_of(bits[i]);
            if (offsets[i] == bin_offset) list(lds, bits[i], first + place_of(i));
          }
        });
        return rank_listed<false>(source, need, lds);
      }
    }
  }
  Narrowed found = narrow(
      source,
      [&](uint32_t value, uint32_t) {
        uint32_t key = key_of_bits(value);
        bool out = key <= kKeyMinusInf || (in_one_bin && bins.offset_of(value) != bin_offset);
        return out ? 0u : key;
      },
      need, lds);
  if (found.missing > 0) {
    if (!Source::kTakesMinusInf) return {kKeyMinusInf + 1, kAllIds};
    found = {{kKeyMinusInf, 0}, found.missing, 0};
  }
  if (found.tied > 0) {
    if (Source::kAscending) {
      found.cut.id = tied_position(source, found.cut.key, found.tied, lds);
    } else {
      const uint32_t key = found.cut.key;
      barrier(); /* without it a fast wave writes counts that a slow one still sums up */
      Narrowed ids = narrow(
          source,
          [&](uint32_t value, uint32_t position) {
            if (key_of_bits(value) != key) return 0u;
            const int id = source.rank_id(static_cast<int>(position));
            return id < 0 ? 0u : 0x80000000u - static_cast<uint32_t>(id);
          },
          found.tied, lds);
      found.cut.id = ids.missing ? kAllIds : static_cast<int>(0x80000000u - ids.cut.key);
    }
  }
  return found.cut;
}

/* ---- emission -------------------------------------------------------------------------------- */

/* key >= `key` as one comparison of bits: negative values compare the other way round. */
struct AtLeast {
  uint32_t flip;
  int least;
  DSV41_INLINE_MEMBER explicit AtLeast(uint32_t key)
      : flip(key > 0x80000000u ? 0 : 0x7fffffffu),
        least(static_cast<int>(key > 0x80000000u    ? key ^ 0x80000000u
                               : key == 0x80000000u ? 0xffffffffu /* -0, and +0 above it */
                                                    : ~key ^ 0x7fffffffu)) {}
  DSV41_INLINE_MEMBER bool operator()(uint32_t bits) const {
    return static_cast<int>(bits ^ flip) >= least;
  }
  /* For a second round of comparisons, whose masks would else be kept in SGPRs until they spill. */
  DSV41_INLINE_MEMBER AtLeast opaque_copy() const {
    AtLeast copy = *this;
    copy.least = static_cast<int>(opaque(static_cast<uint32_t>(least)));
    return copy;
  }
};

/* Calls emit(rank, position, bits) for every chosen value, ranks in the order of positions. Returns
 * how many there are. One barrier a tile. */
template <bool kResident, class Source, class Emit>
DSV41_INLINE int emit_chosen(const Source& source, uint32_t (&bits)[kTileItems], Cut cut, Emit emit,
                             CutLds& lds) {
  int before = 0, parity = 0;
  for_tiles<kResident>(source, bits, [&](uint32_t tile) {
    const int first = first_position(tile);
    const int wave_first = static_cast<int>(tile) + wave_id() * kWaveItems;
    /* Of the values equal to the cut, those with higher ids are not chosen. Where ids ascend, a
     * wave whose first position is past the cut's has no other ones, and only one wave has both
     * kinds. */
    const bool past = Source::kAscending && wave_first > cut.id;
    const AtLeast chosen(past ? cut.key + 1 : cut.key);
    bool some_out;
    if (Source::kAscending) {
      some_out = (!past && cut.id < wave_first + kWaveItems - 1) ||
                 (cut.key == kKeyMinusInf && wave_first < static_cast<int>(source.first_live));
    } else {
      some_out = cut.id != kAllIds || cut.key == kKeyMinusInf;
    }
    if (some_out) {
      const AtLeast above(cut.key + 1);
#pragma unroll
      for (int i = 0; i < kTileItems; i++) {
        const int position = first + place_of(i);
        if (above(bits[i]) || (!Source::kAscending && !chosen(bits[i]))) continue;
        const int id = source.rank_id(position);
        if (id < 0 || id > cut.id || position < static_cast<int>(source.first_live))
          bits[i] = kNothingBits;
      }
    }
    int at[kTileVectors], mine = 0;
    if (wave_first < static_cast<int>(source.count)) {
#pragma unroll
      for (int j = 0; j < kTileVectors; j++) {
        at[j] = mine;
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const WaveMask lanes = ballot(chosen(bits[4 * j + c]));
          at[j] = count_below(lanes, at[j]);
          mine += count(lanes);
        }
      }
    }
    if (lane_id() == 0) lds.counts[parity][wave_id()] = mine;
    barrier(); /* without it a wave sums up what another one has not written */
    const Prefix prefix = prefix_of(lds.counts[parity]);
    if (mine) {
      const int rank = before + prefix.before;
      const AtLeast again = chosen.opaque_copy();
#pragma unroll
      for (int j = 0; j < kTileVectors; j++) {
        at[j] += rank;
#pragma unroll
        for (int c = 0; c < 4; c++) {
          if (again(bits[4 * j + c])) emit(at[j]++, first + place_of(4 * j + c), bits[4 * j + c]);
        }
      }
    }
    before += prefix.total;
    parity ^= 1; /* the next tile's counts: a slow wave may still read these */
  });
  return before;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Calls emit(rank, position, bits) for each of the best `want` values, in the order of positions,
 * and returns how many they are. */
template <bool kResident, class Source, class Emit>
DSV41_INLINE int choose_best(const Source& source, int want, Emit emit, CutLds& lds) {
  uint32_t bits[kTileItems];
  const bool all = !Source::kTakesMinusInf && source.count <= static_cast<uint32_t>(want);
  const bool samples = !all && source.count >= kFewestSampled && wave_id() == 0;
  Sample sample; /* asked for before the tile, so that its bins are ready when the tile arrives */
  if (samples) load_sample(source, sample);
  if (kResident) load_tile(source, 0, bits);
  Cut cut = {kKeyMinusInf + 1, kAllIds};
  if (!all) {
    clear_bins(lds);
    if (wave_id() == 0) {
      LinearBins bins = {0, 0, 0};
      if (samples) bins = choose_bins(sample, static_cast<uint32_t>(want) < source.count / 8);
      if (lane_id() == 0) {
        lds.scale = bins.scale;
        lds.offset = bins.offset;
      }
    }
  }
  if (kResident) make_nan_one_value(bits);
  if (!all) cut = find_cut<kResident>(source, bits, want, lds);
  return emit_chosen<kResident>(source, bits, cut, emit, lds);
}

}  // namespace dsv41

#endif  // DSV41TOPK_DEVICE_CUT_H_
