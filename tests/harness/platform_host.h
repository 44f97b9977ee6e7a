/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's filling of csrc/device/platform.h, for the harness alone: every function that
 * platform.h gives to the kernels, made of the rendezvous of fibres.h. Where the hardware would
 * take anything, this one is strict: a lane number must be one.
 */
#ifndef DSV41TOPK_TESTS_HARNESS_PLATFORM_HOST_H_
#define DSV41TOPK_TESTS_HARNESS_PLATFORM_HOST_H_

#include <cstdint>
#include <type_traits>

#include "fibres.h"

#define __global__
#define __device__
#define __shared__ static __attribute__((section("dsv41_lds")))
#define DSV41_INLINE static inline __attribute__((always_inline))
#define DSV41_INLINE_MEMBER __attribute__((always_inline))
#define DSV41_KERNEL(threads) extern "C"

namespace dsv41 {

constexpr int kWaveSize = harness::kWaveSize;
using WaveMask = std::conditional_t<kWaveSize == 64, uint64_t, uint32_t>;

/* The place of the call, as a default argument. */
#define HARNESS_SITE harness::Site site = {__builtin_FILE(), __builtin_LINE()}

DSV41_INLINE int thread_id() { return static_cast<int>(harness::place.thread); }
DSV41_INLINE int workgroup_x() { return static_cast<int>(harness::place.workgroup[0]); }
DSV41_INLINE int workgroup_y() { return static_cast<int>(harness::place.workgroup[1]); }
DSV41_INLINE int lane_id() { return thread_id() % kWaveSize; }

DSV41_INLINE int checked_lane(int lane, harness::Site site) {
  if (lane < 0 || lane >= kWaveSize)
    harness::fail("there is no lane %d (%s:%d)", lane, site.file, site.line);
  return lane;
}

DSV41_INLINE int uniform(int value) { return value; }

DSV41_INLINE void begin_launch() {}

DSV41_INLINE WaveMask ballot(bool predicate, HARNESS_SITE) {
  return static_cast<WaveMask>(harness::ballot(predicate, site));
}
DSV41_INLINE bool has_lane(WaveMask mask) { return mask >> lane_id() & 1; }
DSV41_INLINE int count(WaveMask mask) { return __builtin_popcountll(mask); }
DSV41_INLINE int count_below(WaveMask mask, int add) {
  return count(mask & ((WaveMask{1} << lane_id()) - 1)) + add;
}
DSV41_INLINE int lowest_lane(WaveMask mask, HARNESS_SITE) {
  if (mask == 0) harness::fail("the lowest lane of none (%s:%d)", site.file, site.line);
  return __builtin_ctzll(mask);
}

DSV41_INLINE int shuffle(int value, int lane, HARNESS_SITE) {
  checked_lane(lane, site);
  return static_cast<int>(harness::exchange(static_cast<uint32_t>(value), "shuffle", site)[lane]);
}
DSV41_INLINE int read_lane(int value, int lane, HARNESS_SITE) {
  checked_lane(lane, site);
  const uint64_t both = static_cast<uint32_t>(value) | static_cast<uint64_t>(lane) << 32;
  const uint64_t* values = harness::exchange(both, "read_lane", site);
  for (unsigned i = 0; i < harness::live_lanes(); i++)
    if (values[i] >> 32 != static_cast<uint64_t>(lane))
      harness::fail("read_lane of lane %d here and of lane %d there (%s:%d)", lane,
                    static_cast<int>(values[i] >> 32), site.file, site.line);
  return static_cast<int>(values[lane]);
}
DSV41_INLINE int wave_scan_add(int value, HARNESS_SITE) {
  const uint64_t* values = harness::exchange(static_cast<uint32_t>(value), "wave_scan_add", site);
  uint32_t sum = 0;
  for (int i = 0; i <= lane_id(); i++) sum += static_cast<uint32_t>(values[i]);
  return static_cast<int>(sum);
}

/* The smallest and the largest value of the wave, of values that are no NaN. */
template <class T>
DSV41_INLINE T wave_extreme(T value, bool largest, const char* name, harness::Site site) {
  static_assert(sizeof(T) == 4);
  const uint64_t* values = harness::exchange(__builtin_bit_cast(uint32_t, value), name, site);
  T best = value;
  for (unsigned i = 0; i < harness::live_lanes(); i++) {
    const T other = __builtin_bit_cast(T, static_cast<uint32_t>(values[i]));
    if (largest ? other > best : other < best) best = other;
  }
  return best;
}
template <int kPeriod = kWaveSize, class T>
DSV41_INLINE T wave_min(T value, HARNESS_SITE) {
  return wave_extreme(value, false, "wave_min", site);
}
template <int kPeriod = kWaveSize, class T>
DSV41_INLINE T wave_max(T value, HARNESS_SITE) {
  return wave_extreme(value, true, "wave_max", site);
}

/* On the GPU: keeps the compiler from computing something early and holding it in registers. */
template <class T>
DSV41_INLINE T opaque(T value) {
  return value;
}

template <int kMask, class T>
DSV41_INLINE T swap_lanes(T value, HARNESS_SITE) {
  static_assert(kMask > 0 && kMask < 16, "within 16 lanes");
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint64_t* values = harness::exchange(bits, "swap_lanes", site);
  return __builtin_bit_cast(T, static_cast<uint32_t>(values[lane_id() ^ kMask]));
}

DSV41_INLINE float largest(float a, float b, float c) {
  const float larger = a > b ? a : b;
  return larger > c ? larger : c;
}

DSV41_INLINE WaveMask unordered_lanes(float a, float b, HARNESS_SITE) {
  const uint32_t x = __builtin_bit_cast(uint32_t, a) & 0x7fffffffu;
  const uint32_t y = __builtin_bit_cast(uint32_t, b) & 0x7fffffffu;
  return static_cast<WaveMask>(harness::ballot(x > 0x7f800000u || y > 0x7f800000u, site));
}

DSV41_INLINE void barrier(HARNESS_SITE) { harness::barrier(site); }
DSV41_INLINE void wave_barrier(HARNESS_SITE) { harness::exchange(0, "wave_barrier", site); }

/* Fibres do not run at once: atomic only so that the race detector knows. */
template <class T, class Better>
DSV41_INLINE T harness_update(T* address, T value, Better better) {
  T before = __atomic_load_n(address, __ATOMIC_RELAXED);
  if (better(value, before)) __atomic_store_n(address, value, __ATOMIC_RELAXED);
  return before;
}
DSV41_INLINE int lds_add(int* address, int value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
DSV41_INLINE uint32_t lds_or(uint32_t* address, uint32_t value) {
  return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}
DSV41_INLINE int lds_min(int* address, int value) {
  return harness_update(address, value, [](int a, int b) { return a < b; });
}
DSV41_INLINE uint32_t lds_max(uint32_t* address, uint32_t value) {
  return harness_update(address, value, [](uint32_t a, uint32_t b) { return a > b; });
}

}  // namespace dsv41

#endif  // DSV41TOPK_TESTS_HARNESS_PLATFORM_HOST_H_
