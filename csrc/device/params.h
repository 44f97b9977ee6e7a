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
  int32_t workgroups;    /* of group_max_kernel, a row */
} TopKSelectParams;

/* candidate_select_kernel: the call's own arguments and how the rows are read. */
typedef struct CandidateSelectParams {
  Dsv41CandidateTopKArgs args;
  int32_t block_shift; /* block_size is 1 << block_shift, or block_shift is -1 */
  int32_t vectors;     /* 1: blocks are whole 16-byte vectors of every row */
} CandidateSelectParams;

/* radix_chunk_kernel, then radix_merge_kernel for rows of more than one piece. */
typedef struct RadixParams {
  const float* logits;
  int64_t logits_stride;
  int64_t width;      /* ends are clamped to it */
  const int32_t* ids; /* of a compact row, whose first n slots all count; NULL for a dense row */
  int64_t n;
  Dsv41Ends ends;
  int32_t* indices;
  int64_t indices_stride;
  int32_t max_pieces; /* pieces of scratch a row */
  int32_t min_chunk;
  float* values;    /* scratch [rows, max_pieces, 512], ascending columns */
  int32_t* columns; /* scratch, as values */
} RadixParams;

/* candidate_gather_kernel: the compact row that radix_chunk_kernel then takes. */
typedef struct GatherParams {
  Dsv41CandidateTopKArgs args;
  float* values; /* scratch [rows, stride] */
  int32_t* ids;  /* scratch [rows, stride] */
  int64_t stride;
  int32_t workgroups; /* of a row */
} GatherParams;

/* block_scores_kernel, then block_select_kernel. */
typedef struct BlocksParams {
  Dsv41CandidateBlocksArgs args;
  float* scores; /* scratch [rows, scores_stride] */
  int64_t scores_stride;
  int32_t workgroups; /* of a row */
  int32_t lanes; /* that share a block; 0: each lane takes whole blocks of two aligned vectors */
} BlocksParams;

#endif /* DSV41TOPK_DEVICE_PARAMS_H_ */
