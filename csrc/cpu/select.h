/* SPDX-License-Identifier: Apache-2.0
 *
 * The exact select that every CPU kernel ends in: a Best takes (key, column) pairs in slot order
 * and keeps the k best.
 *
 * Pairs whose key is under `bound` cannot be chosen any more and are not kept. When the buffer is
 * full it is reduced to the k best, which raises the bound: time is linear in the pairs whatever
 * their order, and rows of one value fill the buffer once. The cut is found by bisection over the
 * keys: 32 counting passes at most over a few hundred to a few thousand keys in the cache, with no
 * branch that depends on the values.
 */
#ifndef DSV41TOPK_CPU_SELECT_H_
#define DSV41TOPK_CPU_SELECT_H_

#include <stddef.h>
#include <stdint.h>

#include "keys.h"
#include "parallel.h"

typedef struct Best {
  uint32_t* keys; /* `count` pairs, in slot order; room for `capacity` and kBestSlack more */
  int32_t* columns;
  uint32_t* spare; /* as long as `keys`, and at least 4 k */
  int64_t count;
  int64_t capacity;
  int64_t k;
  uint32_t bound;
  int by_column; /* 0: columns arrive in ascending order, so slot order is column order */
} Best;

enum {
  kBestSlack = 64,      /* pairs that may be added before the next look at `capacity` */
  kBestCapacity = 4096, /* pairs beyond k: reduced in the L1 cache, rarely filled by random rows */
};

/* Bytes of a Best's arrays, and their carving out of `scratch`; returns what is left of it. */
size_t dsv41_best_bytes(int64_t k);
char* dsv41_best_init(Best* best, int64_t k, int by_column, char* scratch);

/* Keeps the k best of more than k pairs, in slot order, and raises the bound. */
void dsv41_best_reduce(Best* best);

/* A key that at least k of the n keys reach, close to the largest such; 0 when n < k. The keys are
 * raw keys of a row or maxima of disjoint groups of its columns: either way k columns of the row
 * reach it, so nothing under it can be chosen. `spare` holds 4 k keys. */
uint32_t dsv41_lower_bound(const uint32_t* keys, int64_t n, int64_t k, uint32_t* spare);

DSV41_INLINE void best_raise(Best* best, uint32_t bound) {
  if (bound > best->bound) best->bound = bound;
}

DSV41_INLINE void best_offer(Best* best, uint32_t raw, int64_t column) {
  const uint32_t key = equal_key(raw);
  if (key < best->bound) return;
  best->keys[best->count] = key;
  best->columns[best->count++] = (int32_t)column;
}

/* After every kBestSlack offers at the latest. */
DSV41_INLINE void best_make_room(Best* best) {
  if (best->count > best->capacity) dsv41_best_reduce(best);
}

/* Adds n pairs in slot order: raw keys with their columns, which are first, first + 1, ... where
 * `columns` is NULL. */
void dsv41_best_add(Best* best, const uint32_t* raw, const int32_t* columns, int64_t first,
                    int64_t n);

/* One bit per key that reaches the bound. Compilers turn the loop into a compare and reductions. */
DSV41_INLINE uint32_t reaching(const uint32_t* raw, uint32_t bound) {
  uint32_t mask = 0;
  DSV41_KEEP_LOOP
  for (int i = 0; i < 16; ++i) mask |= (uint32_t)(raw[i] >= bound) << i;
  return mask;
}

/* Adds columns [first, last) of a row of floats. */
DSV41_INLINE void best_add_row(Best* best, const AnyBits* row, int64_t first, int64_t last) {
  uint32_t raw[16];
  int64_t column = first;
  for (; column + 16 <= last; column += 16) {
    DSV41_KEEP_LOOP
    for (int i = 0; i < 16; ++i) raw[i] = raw_key(row[column + i]);
    for (uint32_t mask = reaching(raw, best->bound); mask; mask &= mask - 1) {
      const int at = __builtin_ctz(mask);
      best_offer(best, raw[at], column + at);
    }
    best_make_room(best);
  }
  for (; column < last; ++column) best_offer(best, raw_key(row[column]), column);
  best_make_room(best);
}

/* Reduces to k, writes the columns, then -1 up to k. */
void dsv41_best_write(Best* best, AnyInt32* out);

/* The maximum raw key of each of `groups` groups of `group` adjacent columns. */
void dsv41_group_max(const AnyBits* columns, int64_t groups, int64_t group, uint32_t* out);

/* ---- rows in pieces -------------------------------------------------------------------------- */

/* Offers items [first, last) of a row (columns or blocks) to `best`. `scratch` is this thread's,
 * Pieces.scratch_bytes long. */
typedef void (*Dsv41PieceSelect)(const void* args, int64_t row, int64_t first, int64_t last,
                                 Best* best, char* scratch);

typedef struct Pieces {
  const void* args;
  Dsv41PieceSelect select;
  int64_t (*items)(const void* args, int64_t row);
  int64_t whole_items; /* a row of at most so many items is 0, 1, 2, ... and is not looked at */
  int64_t columns_per_item;
  int64_t rows;
  int64_t k;
  int32_t* out;
  int64_t out_stride;
  uint32_t first_bound;
  size_t scratch_bytes;
} Pieces;

/* Selects every row: rows over threads, and pieces of a row over threads where rows are few; the
 * last thread to finish a piece of a row selects among the pieces' winners. */
int dsv41_select_pieces(const Pieces* pieces);

#endif /* DSV41TOPK_CPU_SELECT_H_ */
