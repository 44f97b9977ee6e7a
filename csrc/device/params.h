/* SPDX-License-Identifier: Apache-2.0
 *
 * What each kernel is launched with: one struct by value, filled by launch.c.
 */
#ifndef DSV41TOPK_DEVICE_PARAMS_H_
#define DSV41TOPK_DEVICE_PARAMS_H_

#include "abi.h"

/* group_max_kernel, then top_k_select_kernel. */
typedef struct TopKSelectParams {
  Dsv41TopKArgs args;
  float* maxima;         /* scratch [rows, maxima_stride]; NULL when the width fits one workgroup */
  int64_t maxima_stride; /* a multiple of 4 */
} TopKSelectParams;

/* candidate_select_kernel: the call's own arguments and how the rows are read. */
typedef struct CandidateSelectParams {
  Dsv41CandidateTopKArgs args;
  int32_t block_shift; /* block_size is 1 << block_shift, or block_shift is -1 */
  int32_t vectors;     /* 1: blocks are whole 16-byte vectors of every row */
} CandidateSelectParams;

#endif /* DSV41TOPK_DEVICE_PARAMS_H_ */
