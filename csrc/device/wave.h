/* SPDX-License-Identifier: Apache-2.0
 *
 * What the waves of a workgroup do together, above platform.h and below any select.
 */
#ifndef DSV41TOPK_DEVICE_WAVE_H_
#define DSV41TOPK_DEVICE_WAVE_H_

#include "device/platform.h"

namespace dsv41 {

DSV41_INLINE int wave_id() { return uniform(thread_id() / kWaveSize); }

/* What all waves of the workgroup brought, summed up: before this wave, and together. */
struct Prefix {
  int before;
  int total;
};
template <int kWaves>
DSV41_INLINE Prefix prefix_of(const int (&of_waves)[kWaves]) {
  static_assert(kWaves <= kWaveSize, "one lane reads one wave's count");
  int mine = lane_id() < kWaves ? of_waves[lane_id()] : 0;
  int sums = wave_scan_add(mine);
  int wave = wave_id();
  return {read_lane(sums, wave) - read_lane(mine, wave), read_lane(sums, kWaves - 1)};
}

/* The bin of the need-th best. */
struct CutBin {
  int bin;
  int above; /* in better bins */
  int count; /* in this one */
};

/* Add to the bins of the active lanes. Atomics on one address are served one lane at a time, so the
 * lanes that share the first active lane's bin (-inf, equal values) are added as one. */
DSV41_INLINE void add_to_bins(int* histogram, bool active, int bin) {
  WaveMask lanes = ballot(active);
  if (lanes == 0) return;
  int first_bin = read_lane(bin, lowest_lane(lanes));
  bool shared = active && bin == first_bin;
  WaveMask sharing = ballot(shared);
  if (lane_id() == lowest_lane(lanes)) lds_add(&histogram[first_bin], count(sharing));
  if (active && !shared) lds_add(&histogram[bin], 1);
}

}  // namespace dsv41

#endif  // DSV41TOPK_DEVICE_WAVE_H_
