/* SPDX-License-Identifier: Apache-2.0
 *
 * top_k_per_row_decode_512, candidate_top_k_512 and compact_top_k_512 on the CPU.
 *
 * A long row is read in tiles, for the maxima of groups of 8 or 16 columns. The 512th largest of
 * any 512 or more maxima of disjoint groups is a lower bound T of the cut; only groups whose
 * maximum reaches T are looked at again, while the tile is in the cache, and the few values in them
 * that reach T go to the exact select. Two levels of maxima make the second look short; later tiles
 * start with the bound that earlier ones left.
 */
#include <stdlib.h>
#include <string.h>

#include "keys.h"
#include "parallel.h"
#include "select.h"

enum {
  kTileCols = 1 << 17, /* read and, in part, read again while it is in the L2 cache */
  kPerCoarse = 4,      /* groups in a group of the second level */
  kDirectCols = 8192,  /* a shorter tile is offered whole */
  kMaxGroups = 8192,
};

/* ---- dense rows ------------------------------------------------------------------------------ */

static int64_t top_k_items(const void* args_pointer, int64_t row) {
  const Dsv41TopKArgs* args = args_pointer;
  return row_end(&args->ends, row, args->width);
}

typedef struct DenseScratch {
  uint32_t fine[kMaxGroups];
  uint32_t coarse[kMaxGroups / kPerCoarse];
} DenseScratch;

DSV41_CLONES static void raw_keys(const AnyBits* in, int64_t n, uint32_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = raw_key(in[i]);
}

/* Into an empty Best that has room, and no bound to leave any out. */
DSV41_CLONES static void add_all(Best* best, const uint32_t* raw, int64_t first, int64_t n) {
  for (int64_t i = 0; i < n; ++i) best->keys[i] = equal_key(raw[i]);
  for (int64_t i = 0; i < n; ++i) best->columns[i] = (int32_t)(first + i);
  best->count = n;
}

DSV41_CLONES static int64_t coarse_maxima(const uint32_t* fine, int64_t n, uint32_t* coarse,
                                          uint32_t bound) {
  int64_t reaching = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t* four = fine + i * kPerCoarse;
    const uint32_t best = key_max(key_max(four[0], four[1]), key_max(four[2], four[3]));
    coarse[i] = best;
    reaching += best >= bound;
  }
  return reaching;
}

/* 1,024 to 2,047 groups: columns i, i + groups, i + 2 groups, ... `spare` holds their maxima. */
DSV41_CLONES static uint32_t bound_of_strided_groups(const AnyBits* in, int64_t n,
                                                     uint32_t* spare) {
  const int64_t folds = n / (2 * DSV41_TOP_K), groups = n / folds;
  for (int64_t i = 0; i < groups; ++i) spare[i] = raw_key(in[i]);
  for (int64_t f = 1; f < folds; ++f) {
    const AnyBits* more = in + f * groups;
    for (int64_t i = 0; i < groups; ++i) spare[i] = key_max(spare[i], raw_key(more[i]));
  }
  return dsv41_lower_bound(spare, groups, DSV41_TOP_K, NULL);
}

DSV41_CLONES static int64_t above_minus_inf(const AnyBits* in, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += in[i] != 0xff800000u;
  return count;
}

DSV41_CLONES static void select_tile(const AnyBits* row, int64_t first, int64_t n, Best* best,
                                     DenseScratch* scratch) {
  uint32_t *fine = scratch->fine, *coarse = scratch->coarse;
  if (n <= kDirectCols) {
    raw_keys(row + first, n, fine);
    best_raise(best, dsv41_lower_bound(fine, n, DSV41_TOP_K, best->spare));
    if (best->bound == 0 && best->count == 0 && n <= best->capacity) {
      add_all(best, fine, first, n);
    } else {
      dsv41_best_add(best, fine, NULL, first, n);
    }
    return;
  }
  const int64_t group = n < 16 * 2 * DSV41_TOP_K ? 8 : 16;
  const int64_t coarse_groups = n / (group * kPerCoarse), groups = coarse_groups * kPerCoarse;
  dsv41_group_max(row + first, groups, group, fine);
  /* The bound that earlier tiles left is good enough unless the row climbs. */
  const int64_t reaching = coarse_maxima(fine, coarse_groups, coarse, best->bound);
  if (best->bound == 0 || reaching > DSV41_TOP_K) {
    const int enough = coarse_groups >= 2 * DSV41_TOP_K;
    best_raise(best, dsv41_lower_bound(enough ? coarse : fine, enough ? coarse_groups : groups,
                                       DSV41_TOP_K, best->spare));
  }
  /* The values of a masked row may stand in fewer than 512 groups. Groups of columns that lie far
   * apart find them all the same; if those are too few as well, at least -inf may be out. */
  if (best->bound == 0) best_raise(best, bound_of_strided_groups(row + first, n, best->spare));
  if (best->bound == 0 && above_minus_inf(row + first, n) >= DSV41_TOP_K) best_raise(best, 1);
  for (int64_t i = 0; i < coarse_groups; ++i) {
    if (coarse[i] < best->bound) continue;
    for (int64_t j = i * kPerCoarse; j < (i + 1) * kPerCoarse; ++j) {
      if (fine[j] >= best->bound)
        best_add_row(best, row, first + j * group, first + (j + 1) * group);
    }
  }
  best_add_row(best, row, first + groups * group, first + n);
}

static void select_dense(const void* args_pointer, int64_t row_index, int64_t first, int64_t last,
                         Best* best, char* scratch) {
  const Dsv41TopKArgs* args = args_pointer;
  const AnyBits* row = (const AnyBits*)args->logits + row_index * args->logits_stride;
  for (int64_t tile = first; tile < last; tile += kTileCols) {
    if (best->count > best->k) dsv41_best_reduce(best);
    select_tile(row, tile, last - tile < kTileCols ? last - tile : kTileCols, best,
                (DenseScratch*)scratch);
  }
}

int dsv41_cpu_top_k(const Dsv41TopKArgs* args) {
  const Pieces pieces = {.args = args,
                         .select = select_dense,
                         .items = top_k_items,
                         .whole_items = DSV41_TOP_K,
                         .columns_per_item = 1,
                         .rows = args->rows,
                         .k = DSV41_TOP_K,
                         .out = args->indices,
                         .out_stride = args->indices_stride,
                         .scratch_bytes = sizeof(DenseScratch)};
  return dsv41_select_pieces(&pieces);
}

/* ---- rows that come slot by slot ------------------------------------------------------------- */

enum { kTileSlots = 16384 + 64, kSlotStep = 64, kSlotsPerThread = 1 << 17 };

/* Live slots, to be offered together: a tile's lower bound keeps most of them out of Best. */
typedef struct SlotTile {
  int64_t count;
  uint32_t keys[kTileSlots];
  int32_t columns[kTileSlots];
} SlotTile;

static void flush_tile(SlotTile* tile, Best* best) {
  best_raise(best, dsv41_lower_bound(tile->keys, tile->count, best->k, best->spare));
  dsv41_best_add(best, tile->keys, tile->columns, 0, tile->count);
  tile->count = 0;
}

static void write_whole_row(AnyInt32* out, int64_t end) {
  for (int64_t i = 0; i < DSV41_TOP_K; ++i) out[i] = i < end ? (int32_t)i : -1;
}

static int64_t blocks_in(int64_t columns, int64_t block_size) {
  return (columns + block_size - 1) / block_size;
}

DSV41_INLINE void append_columns(SlotTile* tile, const AnyBits* row, int64_t column, int64_t n) {
  uint32_t* restrict keys = tile->keys + tile->count;
  int32_t* restrict columns = tile->columns + tile->count;
  for (int64_t i = 0; i < n; ++i) {
    keys[i] = raw_key(row[column + i]);
    columns[i] = (int32_t)(column + i);
  }
  tile->count += n;
}

DSV41_CLONES static void candidate_row(void* args_pointer, int64_t row, void* scratch) {
  const Dsv41CandidateTopKArgs* args = args_pointer;
  const int64_t end = row_end(&args->ends, row, args->width);
  AnyInt32* out = (AnyInt32*)args->indices + row * args->indices_stride;
  if (end <= DSV41_TOP_K) {
    write_whole_row(out, end);
    return;
  }
  const AnyBits* logits = (const AnyBits*)args->logits + row * args->logits_stride;
  const AnyInt32* candidates = (const AnyInt32*)args->candidates + row * args->candidates_stride;
  const int64_t block_size = args->block_size;
  /* Blocks at or past the end have no live column, so ids outside the row need no other test. */
  const int64_t live_blocks = blocks_in(end, block_size);
  Best best;
  SlotTile* tile = (SlotTile*)dsv41_best_init(&best, DSV41_TOP_K, 1, scratch);
  uint8_t* seen = (uint8_t*)(tile + 1);
  memset(seen, 0, (size_t)(live_blocks + 7) / 8);
  tile->count = 0;
  for (int64_t slot = 0; slot < args->slots; ++slot) {
    const int64_t block = candidates[slot];
    if (block < 0 || block >= live_blocks) continue;
    const uint8_t bit = (uint8_t)(1u << (block & 7));
    if (seen[block >> 3] & bit) continue;
    seen[block >> 3] |= bit;
    int64_t column = block * block_size;
    const int64_t last = end - column < block_size ? end : column + block_size;
    while (column < last) {
      const int64_t room = kTileSlots - tile->count;
      const int64_t n = last - column < room ? last - column : room;
      if (n == 8) {
        append_columns(tile, logits, column, 8); /* the model's block size, unrolled */
      } else {
        append_columns(tile, logits, column, n);
      }
      column += n;
      if (tile->count == kTileSlots) flush_tile(tile, &best);
    }
  }
  flush_tile(tile, &best);
  dsv41_best_write(&best, out);
}

int dsv41_cpu_candidate_top_k(const Dsv41CandidateTopKArgs* args) {
  const int64_t width = args->width < INT32_MAX ? args->width : INT32_MAX;
  const size_t seen_bytes = (size_t)blocks_in(width, args->block_size) / 8 + 1;
  const size_t scratch = dsv41_best_bytes(DSV41_TOP_K) + sizeof(SlotTile) + seen_bytes;
  const int64_t row_cost = (int64_t)args->slots * args->block_size;
  const int threads =
      dsv41_cpu_threads(args->rows * (row_cost < width ? row_cost : width), kSlotsPerThread);
  return dsv41_cpu_parallel(threads, args->rows, scratch, candidate_row, (void*)args);
}

/* Slots [0, n), n <= 64, without those that are not live. */
DSV41_INLINE void append_slots(SlotTile* tile, const AnyBits* logits, const AnyInt32* ids,
                               int64_t n) {
  uint32_t* restrict keys = tile->keys + tile->count;
  int32_t* restrict columns = tile->columns + tile->count;
  int32_t signs = 0;
  for (int64_t i = 0; i < n; ++i) {
    keys[i] = raw_key(logits[i]);
    columns[i] = ids[i];
    signs |= ids[i];
  }
  if (signs >= 0) {
    tile->count += n;
    return;
  }
  int64_t live = 0;
  for (int64_t i = 0; i < n; ++i) {
    keys[live] = keys[i];
    columns[live] = columns[i];
    live += columns[i] >= 0;
  }
  tile->count += live;
}

DSV41_CLONES static void compact_row(void* args_pointer, int64_t row, void* scratch) {
  const Dsv41CompactTopKArgs* args = args_pointer;
  /* The ids name columns of a row whose width is not known here, and its end only tells whether it
   * is a short one. */
  const int64_t end = row_end(&args->ends, row, INT32_MAX);
  AnyInt32* out = (AnyInt32*)args->indices + row * args->indices_stride;
  if (end <= DSV41_TOP_K) {
    write_whole_row(out, end);
    return;
  }
  const AnyBits* logits = (const AnyBits*)args->logits + row * args->n;
  const AnyInt32* ids = (const AnyInt32*)args->ids + row * args->n;
  Best best;
  SlotTile* tile = (SlotTile*)dsv41_best_init(&best, DSV41_TOP_K, 1, scratch);
  tile->count = 0;
  for (int64_t slot = 0; slot < args->n; slot += kSlotStep) {
    append_slots(tile, logits + slot, ids + slot,
                 args->n - slot < kSlotStep ? args->n - slot : kSlotStep);
    if (tile->count > kTileSlots - kSlotStep) flush_tile(tile, &best);
  }
  flush_tile(tile, &best);
  dsv41_best_write(&best, out);
}

int dsv41_cpu_compact_top_k(const Dsv41CompactTopKArgs* args) {
  const size_t scratch = dsv41_best_bytes(DSV41_TOP_K) + sizeof(SlotTile);
  const int threads = dsv41_cpu_threads(args->rows * args->n, kSlotsPerThread);
  return dsv41_cpu_parallel(threads, args->rows, scratch, compact_row, (void*)args);
}
