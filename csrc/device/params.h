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
  int64_t direct_cols;   /* rows of at most this many live columns have no maxima */
} TopKSelectParams;

#endif /* DSV41TOPK_DEVICE_PARAMS_H_ */
