/* SPDX-License-Identifier: Apache-2.0
 *
 * Every number that was chosen and not given, with what it was measured on. C and C++: the
 * launchers plan with the numbers that the kernels are compiled with.
 */
#ifndef DSV41TOPK_TUNING_H_
#define DSV41TOPK_TUNING_H_

#include <stdint.h>

/* ---- register select (device/select.h, kernels/top_k_select.hip)
 * ------------------------------------------------ */

enum {
  kSelectThreads = 512, /* what every wave does alike is done half as often as by 1,024 */
  kOfferSlack = 3,      /* lanes above the quota that end the search for a wave's offer */
  kPool = 4096, /* 32 KiB of LDS; about 900 of 16,384 random values survive, 2,400 of real text */
  kGroupPool = 4096, /* 8 KiB */
  kGatherLoads = 4,
};

/* Rows of up to this many live columns are read by their workgroup alone, 8 loads of 16 bytes a
 * lane. Longer ones take two launches. */
enum { kDirectCols = kSelectThreads * 4 * 8 };
/* Gathered rows have no first launch: 16 loads a lane at most. */
enum { kMaxGathered = 2 * kDirectCols };
enum { kMaxRegisterCols = 1 << 20 };

/* Columns of a group in the first launch, from the live end: at most 16,384 maxima a row, which the
 * second launch holds in registers, and 512 groups of 16 to 64 columns that it then reads again. */
static inline
#if defined(__HIP__) || defined(__CUDACC__)
    __attribute__((device, host))
#endif
    int choose_group_cols(int64_t end) {
  return end <= (1 << 18) ? 16 : end <= (1 << 19) ? 32 : 64;
}
enum { kMaxMaxima = 16384, kMinGroupCols = 16 };

enum {
  kGroupMaxThreads = 256,
  kGroupMaxLoads =
      4, /* 16 KiB in flight a workgroup; a quad of lanes writes one maximum of each load */
  kGroupMaxCols = kGroupMaxThreads * 4 * kGroupMaxLoads,
};

#endif /* DSV41TOPK_TUNING_H_ */
