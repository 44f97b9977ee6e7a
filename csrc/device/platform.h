/* SPDX-License-Identifier: Apache-2.0
 *
 * The one file that knows the vendor: gfx942 (wave64), sm_90 (wave32), and the CPU test harness.
 *
 * gfx942 takes compiler builtins alone: with the device libraries' functions (blockIdx and kin) a
 * kernel needs those libraries at build time and 40 more VGPRs. Everything above this file is
 * written for any kWaveSize, and calls a wave operation with all lanes of the wave or none.
 */
#ifndef DSV41TOPK_DEVICE_PLATFORM_H_
#define DSV41TOPK_DEVICE_PLATFORM_H_

#include <stdint.h>

#if defined(DSV41_HOST_HARNESS)
#include "platform_host.h"
#elif defined(__HIP__)

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx942__)
#error "dsv41topk has no tuning for this architecture: compile for gfx942"
#endif

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define DSV41_INLINE_MEMBER __device__ __attribute__((always_inline))
#define DSV41_INLINE static inline __device__ __attribute__((always_inline))
/* The second number of HIP's __launch_bounds__ would be waves per execution unit (SIMD). */
#define DSV41_KERNEL(threads) \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(threads, threads)))

namespace dsv41 {

constexpr int kWaveSize = 64;
using WaveMask = uint64_t;

DSV41_INLINE int thread_id() { return __builtin_amdgcn_workitem_id_x(); }
DSV41_INLINE int workgroup_x() { return __builtin_amdgcn_workgroup_id_x(); }
DSV41_INLINE int workgroup_y() { return __builtin_amdgcn_workgroup_id_y(); }
DSV41_INLINE int lane_id() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
}
DSV41_INLINE int uniform(int value) { return __builtin_amdgcn_readfirstlane(value); }

DSV41_INLINE WaveMask ballot(bool predicate) { return __builtin_amdgcn_ballot_w64(predicate); }
/* Read back as an int, or comparisons of it are made in 64 bits, by the vector unit. */
DSV41_INLINE int count(WaveMask mask) { return uniform(__builtin_popcountll(mask)); }
DSV41_INLINE bool has_lane(WaveMask mask) { return mask >> lane_id() & 1; }
/* Lanes of the mask below this one, plus `add`. */
DSV41_INLINE int count_below(WaveMask mask, int add) {
  return __builtin_amdgcn_mbcnt_hi(static_cast<uint32_t>(mask >> 32),
                                   __builtin_amdgcn_mbcnt_lo(static_cast<uint32_t>(mask), add));
}
DSV41_INLINE int lowest_lane(WaveMask mask) { return __builtin_ctzll(mask); }

DSV41_INLINE int shuffle(int value, int lane) {
  return __builtin_amdgcn_ds_bpermute(lane << 2, value);
}
/* `lane` is the same in all lanes. */
DSV41_INLINE int read_lane(int value, int lane) { return __builtin_amdgcn_readlane(value, lane); }

/* The value of lane ^ kMask, within 16 lanes: DPP, no LDS. */
template <int kMask, class T>
DSV41_INLINE T swap_lanes(T value) {
  static_assert(kMask == 1 || kMask == 2 || kMask == 3 || kMask == 7 || kMask == 15,
                "the DPP controls that are used: quad permutations and the two mirrors");
  constexpr int kControl = kMask == 1   ? 0xb1
                           : kMask == 2 ? 0x4e
                           : kMask == 3 ? 0x1b
                           : kMask == 7 ? 0x141
                                        : 0x140;
  const int bits = __builtin_bit_cast(int, value);
  return __builtin_bit_cast(T, __builtin_amdgcn_update_dpp(bits, bits, kControl, 0xf, 0xf, true));
}

/* Inclusive sum over the lanes up to this one, with the row and broadcast steps of DPP: six
 * additions, no LDS. */
DSV41_INLINE int wave_scan_add(int value) {
  int x = value;
  x += __builtin_amdgcn_update_dpp(0, x, 0x111, 0xf, 0xf, true); /* row_shr:1 */
  x += __builtin_amdgcn_update_dpp(0, x, 0x112, 0xf, 0xf, true); /* row_shr:2 */
  x += __builtin_amdgcn_update_dpp(0, x, 0x114, 0xf, 0xf, true); /* row_shr:4 */
  x += __builtin_amdgcn_update_dpp(0, x, 0x118, 0xf, 0xf, true); /* row_shr:8 */
  x += __builtin_amdgcn_update_dpp(0, x, 0x142, 0xa, 0xf, true); /* row_bcast15 into rows 1, 3 */
  x += __builtin_amdgcn_update_dpp(0, x, 0x143, 0xc, 0xf, true); /* row_bcast31 into rows 2, 3 */
  return x;
}

/* The same value, which the compiler takes for a new one: a comparison with it is made again where
 * its mask would be kept in SGPRs until they spill. */
DSV41_INLINE float opaque(float value) {
  __asm__ volatile("" : "+v"(value));
  return value;
}

DSV41_INLINE uint32_t opaque(uint32_t value) {
  __asm__ volatile("" : "+v"(value));
  return value;
}

/* The largest of numbers; where one is NaN, any of them. In assembly: the compiler would first
 * quieten each operand. */
DSV41_INLINE float largest(float a, float b, float c) {
  float result;
  __asm__("v_max3_f32 %0, %1, %2, %3" : "=v"(result) : "v"(a), "v"(b), "v"(c));
  return result;
}

/* The lanes where a or b is NaN. An intrinsic that -ffast-math does not know of (8: unordered). */
DSV41_INLINE WaveMask unordered_lanes(float a, float b) { return __builtin_amdgcn_fcmpf(a, b, 8); }

/* The smallest and the largest of the wave, in all lanes; of its first kPeriod lanes, where the
 * others repeat them. */
template <int kPeriod = kWaveSize>
DSV41_INLINE uint32_t wave_min(uint32_t value) {
  uint32_t other;
  value = (other = swap_lanes<1>(value)) < value ? other : value;
  value = (other = swap_lanes<2>(value)) < value ? other : value;
  value = (other = swap_lanes<7>(value)) < value ? other : value;
  value = (other = swap_lanes<15>(value)) < value ? other : value;
  uint32_t rows = __builtin_amdgcn_readlane(value, 0);
  for (int lane = 16; lane < kPeriod; lane += 16) {
    uint32_t row = __builtin_amdgcn_readlane(value, lane);
    rows = __builtin_amdgcn_readfirstlane(row < rows ? row : rows);
  }
  return rows;
}
template <int kPeriod = kWaveSize>
DSV41_INLINE uint32_t wave_max(uint32_t value) {
  return ~wave_min<kPeriod>(~value);
}

/* Workgroup barrier: LDS written before it is seen after it. Global memory is not ordered. */
DSV41_INLINE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
/* LDS written by a lane of this wave is seen by its other lanes: in lockstep, only the compiler. */
DSV41_INLINE void wave_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

DSV41_INLINE int lds_add(int* address, int value) {
  return __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
DSV41_INLINE uint32_t lds_or(uint32_t* address, uint32_t value) {
  return __hip_atomic_fetch_or(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
DSV41_INLINE int lds_min(int* address, int value) {
  return __hip_atomic_fetch_min(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
DSV41_INLINE uint32_t lds_max(uint32_t* address, uint32_t value) {
  return __hip_atomic_fetch_max(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

/* The first statement of every kernel: what earlier launches wrote is there. A launch starts when
 * the one before it has ended. */
DSV41_INLINE void begin_launch() {}

}  // namespace dsv41

#elif defined(__CUDACC__)

#define DSV41_INLINE_MEMBER __device__ __forceinline__
#define DSV41_INLINE static __device__ __forceinline__
#define DSV41_KERNEL(threads) extern "C" __global__ __launch_bounds__(threads)

namespace dsv41 {

constexpr int kWaveSize = 32;
using WaveMask = uint32_t;
constexpr WaveMask kAllLanes = ~0u;

DSV41_INLINE int thread_id() { return threadIdx.x; }
DSV41_INLINE int workgroup_x() { return blockIdx.x; }
DSV41_INLINE int workgroup_y() { return blockIdx.y; }
DSV41_INLINE int lane_id() { return threadIdx.x & (kWaveSize - 1); }
/* Nothing to do here, and a shuffle would hang in a branch that not all lanes take. */
DSV41_INLINE int uniform(int value) { return value; }

DSV41_INLINE WaveMask ballot(bool predicate) { return __ballot_sync(kAllLanes, predicate); }
DSV41_INLINE int count(WaveMask mask) { return __popc(mask); }
DSV41_INLINE bool has_lane(WaveMask mask) { return mask >> lane_id() & 1; }
/* Lanes of the mask below this one, plus `add`. */
DSV41_INLINE int count_below(WaveMask mask, int add) {
  return __popc(mask & ((1u << lane_id()) - 1)) + add;
}
DSV41_INLINE int lowest_lane(WaveMask mask) { return __ffs(mask) - 1; }

DSV41_INLINE int shuffle(int value, int lane) { return __shfl_sync(kAllLanes, value, lane); }
/* `lane` is the same in all lanes. */
DSV41_INLINE int read_lane(int value, int lane) { return __shfl_sync(kAllLanes, value, lane); }

/* The value of lane ^ kMask, within 16 lanes. */
template <int kMask, class T>
DSV41_INLINE T swap_lanes(T value) {
  return __shfl_xor_sync(kAllLanes, value, kMask);
}

/* The smallest and the largest of the wave, in all lanes. */
template <int kPeriod = kWaveSize>
DSV41_INLINE uint32_t wave_min(uint32_t value) {
  return __reduce_min_sync(kAllLanes, value);
}
template <int kPeriod = kWaveSize>
DSV41_INLINE uint32_t wave_max(uint32_t value) {
  return __reduce_max_sync(kAllLanes, value);
}

/* Inclusive sum over the lanes up to this one. */
DSV41_INLINE int wave_scan_add(int value) {
#pragma unroll
  for (int step = 1; step < kWaveSize; step *= 2) {
    int below = __shfl_up_sync(kAllLanes, value, step);
    if (lane_id() >= step) value += below;
  }
  return value;
}

/* gfx942 keeps too many masks without it; here there is nothing to hide. */
DSV41_INLINE float opaque(float value) { return value; }
DSV41_INLINE uint32_t opaque(uint32_t value) { return value; }

/* The largest of numbers; where one is NaN, any of them. */
DSV41_INLINE float largest(float a, float b, float c) { return fmaxf(fmaxf(a, b), c); }

/* The lanes where a or b is NaN. In assembly: one comparison, which no flag can promise away. */
DSV41_INLINE WaveMask unordered_lanes(float a, float b) {
  uint32_t unordered;
  asm("{\n\t.reg .pred p;\n\tsetp.nan.f32 p, %1, %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(unordered)
      : "f"(a), "f"(b));
  return ballot(unordered != 0);
}

/* Workgroup barrier: LDS written before it is seen after it. */
DSV41_INLINE void barrier() { __syncthreads(); }
/* LDS written by a lane of this wave is seen by its other lanes. */
DSV41_INLINE void wave_barrier() { __syncwarp(); }

DSV41_INLINE int lds_add(int* address, int value) { return atomicAdd(address, value); }
DSV41_INLINE uint32_t lds_or(uint32_t* address, uint32_t value) { return atomicOr(address, value); }
DSV41_INLINE int lds_min(int* address, int value) { return atomicMin(address, value); }
DSV41_INLINE uint32_t lds_max(uint32_t* address, uint32_t value) {
  return atomicMax(address, value);
}

/* The first statement of every kernel: what earlier launches wrote is there. Programmatic dependent
 * launch (runtime.c, cuda_launch): the workgroups of the next launch may take their places once all
 * of this one have begun, and wait here until it has ended. */
DSV41_INLINE void begin_launch() {
  asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
}

}  // namespace dsv41

#else
#error "compile for gfx942 (HIP), for sm_90 (CUDA), or for the CPU test harness"
#endif

namespace dsv41 {

/* 16 bytes that one lane loads or stores at once. */
struct alignas(16) Float4 {
  float x, y, z, w;
};
struct alignas(16) Int4 {
  int32_t x, y, z, w;
};

DSV41_INLINE uint32_t float_bits(float value) { return __builtin_bit_cast(uint32_t, value); }
DSV41_INLINE float bits_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

}  // namespace dsv41

#endif  // DSV41TOPK_DEVICE_PLATFORM_H_
