/* SPDX-License-Identifier: Apache-2.0
 *
 * Every number that was chosen and not given, with what it was measured on. C and C++: the launchers plan
 * with the numbers that the kernels are compiled with.
 */
#ifndef DSV41TOPK_TUNING_H_
#define DSV41TOPK_TUNING_H_

#include <stdint.h>

/* ---- register select (device/select.h, kernels/top_k_select.hip) ------------------------------------------------ */

enum {
  kSelectThreads = 1024, /* one workgroup fills a compute unit: a row's serial part is all that it waits for */
  kBins = 512,           /* every wave reads all bins by itself, which saves two barriers */
  kSurvivors = 4096,     /* 32 KiB of LDS; about 1,500 of 16,384 random values survive */
  kMaxLoads = 8,         /* 16-byte loads a lane: 32,768 values a workgroup */
};

/* Rows of up to this many live columns are read by their workgroup alone. In buffers that wide at most, one launch
 * does; in wider ones the first launch leaves group maxima of the longer rows. */
enum { kDirectCols = kSelectThreads * 4 * kMaxLoads, kDirectColsBesideMaxima = kDirectCols / 2 };
enum { kMaxRegisterCols = 1 << 20 };

/* Columns of a group in the first launch, from the live end: at most 16,384 maxima a row, which the second launch
 * holds in registers, and 512 groups of 16 to 64 columns that it then reads again. */
static inline
#if defined(__HIP__) || defined(__CUDACC__)
    __attribute__((device, host))
#endif
    int
    choose_group_cols(int64_t end) {
  return end <= (1 << 18) ? 16 : end <= (1 << 19) ? 32 : 64;
}
enum { kMaxMaxima = 16384, kMinGroupCols = 16 };

enum {
  kGroupMaxThreads = 256,
  kGroupMaxLoads = 4, /* 16 KiB in flight a workgroup; a quad of lanes writes one maximum of each load */
  kGroupMaxCols = kGroupMaxThreads * 4 * kGroupMaxLoads,
};

#endif /* DSV41TOPK_TUNING_H_ */
