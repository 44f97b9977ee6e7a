/* SPDX-License-Identifier: Apache-2.0 */
#include "select.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- the cut --------------------------------------------------------------------------------- */

DSV41_CLONES static int64_t count_at_least(const uint32_t* keys, int64_t n, uint32_t value) {
  int64_t total = 0;
  /* 32-bit counts inside a stretch: as wide as the keys, so that the loop stays full width. */
  for (int64_t first = 0; first < n; first += 1 << 20) {
    const int64_t last = n - first < 1 << 20 ? n : first + (1 << 20);
    uint32_t count = 0;
    for (int64_t i = first; i < last; ++i) count += keys[i] >= value;
    total += count;
  }
  return total;
}

DSV41_CLONES static void extent(const uint32_t* keys, int64_t n, uint32_t* smallest,
                                uint32_t* largest) {
  uint32_t low = UINT32_MAX, high = 0;
  for (int64_t i = 0; i < n; ++i) {
    low = keys[i] < low ? keys[i] : low;
    high = keys[i] > high ? keys[i] : high;
  }
  *smallest = low;
  *largest = high;
}

/* The k best are the keys above `cut` and `need` of those equal to it. */
typedef struct Cut {
  uint32_t cut;
  int64_t need;
} Cut;

/* n >= k >= 1. Any cut with exactly k, up to k + slack keys at or above cut + 1 ends the search
 * with need 0. */
static Cut find_cut(const uint32_t* keys, int64_t n, int64_t k, int64_t slack) {
  uint32_t smallest, largest;
  extent(keys, n, &smallest, &largest);
  uint64_t low = smallest, high = (uint64_t)largest + 1;
  int64_t above = 0;
  /* Masked rows: whether -inf is the cut is asked first, not last. */
  if (smallest == 0 && largest > 0) {
    const int64_t finite = count_at_least(keys, n, 1);
    if (finite < k) return (Cut){0, k - finite};
    low = 1;
  }
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    const int64_t count = count_at_least(keys, n, (uint32_t)middle);
    if (count >= k && count <= k + slack) return (Cut){(uint32_t)middle - 1, 0};
    if (count > k) {
      low = middle;
    } else {
      high = middle;
      above = count;
    }
  }
  return (Cut){(uint32_t)low, k - above};
}

DSV41_CLONES static void fold(const uint32_t* keys, int64_t n, int64_t folds, uint32_t* out) {
  memcpy(out, keys, (size_t)n * sizeof *out);
  for (int64_t f = 1; f < folds; ++f) {
    const uint32_t* more = keys + f * n;
    for (int64_t i = 0; i < n; ++i) out[i] = key_max(out[i], more[i]);
  }
}

uint32_t dsv41_lower_bound(const uint32_t* keys, int64_t n, int64_t k, uint32_t* spare) {
  if (n < k) return 0;
  /* 2 k to 4 k maxima are enough: of random rows, their k-th leaves about a third more than k. */
  const int64_t folds = n / (2 * k);
  if (folds > 1) {
    n /= folds;
    fold(keys, n, folds, spare);
    keys = spare;
  }
  const Cut cut = find_cut(keys, n, k, k / 8);
  /* The smallest member of the class: NaN of all payloads are equal, -0 and +0 are. */
  return equal_key(cut.need ? cut.cut : cut.cut + 1);
}

/* ---- Best ------------------------------------------------------------------------------------ */

static int64_t array_length(int64_t k) {
  const int64_t room = k + kBestCapacity + kBestSlack;
  return room > 4 * k ? room : 4 * k;
}

size_t dsv41_best_bytes(int64_t k) { return (size_t)array_length(k) * 3 * sizeof(uint32_t); }

char* dsv41_best_init(Best* best, int64_t k, int by_column, char* scratch) {
  const int64_t length = array_length(k);
  uint32_t* arrays = (uint32_t*)scratch;
  *best = (Best){.keys = arrays,
                 .columns = (int32_t*)(arrays + length),
                 .spare = arrays + 2 * length,
                 .capacity = k + kBestCapacity,
                 .k = k,
                 .by_column = by_column};
  return scratch + dsv41_best_bytes(k);
}

void dsv41_best_reduce(Best* best) {
  uint32_t* keys = best->keys;
  int32_t* columns = best->columns;
  const int64_t n = best->count;
  Cut cut = find_cut(keys, n, best->k, 0);
  /* Columns as keys, lowest first. Where they ascend every tied one passes, and the first `need`
   * are taken. */
  Cut column_cut = {0, cut.need};
  if (best->by_column && cut.need) {
    int64_t tied = 0;
    for (int64_t i = 0; i < n; ++i) {
      best->spare[tied] = ~(uint32_t)columns[i];
      tied += keys[i] == cut.cut;
    }
    column_cut = find_cut(best->spare, tied, cut.need, 0);
  }
  int64_t kept = 0, need = column_cut.need;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t key = keys[i];
    const int32_t column = columns[i];
    int keep = key > cut.cut;
    if (key == cut.cut && cut.need) {
      if (!best->by_column) {
        keep = need-- > 0;
      } else {
        const uint32_t inverse = ~(uint32_t)column;
        keep = inverse > column_cut.cut || (inverse == column_cut.cut && need-- > 0);
      }
    }
    keys[kept] = key;
    columns[kept] = column;
    kept += keep;
  }
  best->count = kept;
  /* A later pair equal to the cut loses where columns ascend; else its column may be the lower. */
  if (best->by_column && cut.need) {
    best_raise(best, cut.cut);
  } else {
    /* The raw key of +0 is one above the key that it counts as: a row of zeros would be looked at
     * column by column. */
    best_raise(best, cut.cut + 1 == kKeyZero && cut.need ? kKeyZero + 1 : cut.cut + 1);
  }
}

DSV41_CLONES void dsv41_best_add(Best* best, const uint32_t* raw, const int32_t* columns,
                                 int64_t first, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (uint32_t mask = reaching(raw + i, best->bound); mask; mask &= mask - 1) {
      const int64_t at = i + __builtin_ctz(mask);
      best_offer(best, raw[at], columns ? columns[at] : first + at);
    }
    best_make_room(best);
  }
  for (; i < n; ++i) best_offer(best, raw[i], columns ? columns[i] : first + i);
  best_make_room(best);
}

void dsv41_best_write(Best* best, AnyInt32* out) {
  if (best->count > best->k) dsv41_best_reduce(best);
  memcpy((void*)out, best->columns, (size_t)best->count * sizeof *best->columns);
  memset((void*)(out + best->count), 0xff, (size_t)(best->k - best->count) * sizeof *best->columns);
}

/* ---- group maxima ---------------------------------------------------------------------------- */

enum { kTileCols = 2048 };

/* A loop that compilers turn into two loads, two shuffles and a maximum, at full width. */
DSV41_INLINE void halve(const uint32_t* restrict in, uint32_t* restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = key_max(in[2 * i], in[2 * i + 1]);
}

DSV41_CLONES static void group_max_tiled(const AnyBits* columns, int64_t groups, int64_t group,
                                         uint32_t* out) {
  uint32_t a[kTileCols / 2], b[kTileCols / 4];
  const int64_t tile_groups = kTileCols / group;
  for (int64_t done = 0; done < groups; done += tile_groups) {
    const int64_t here = groups - done < tile_groups ? groups - done : tile_groups;
    const AnyBits* in = columns + done * group;
    int64_t n = here * group / 2;
    for (int64_t i = 0; i < n; ++i) a[i] = key_max(raw_key(in[2 * i]), raw_key(in[2 * i + 1]));
    uint32_t *from = a, *to = b;
    while (n > 2 * here) {
      n /= 2;
      halve(from, to, n);
      uint32_t* swap = from;
      from = to;
      to = swap;
    }
    halve(from, out + done, here);
  }
}

DSV41_CLONES static void group_max_long(const AnyBits* columns, int64_t groups, int64_t group,
                                        uint32_t* out) {
  for (int64_t g = 0; g < groups; ++g, columns += group) {
    uint32_t best = 0;
    for (int64_t i = 0; i < group; ++i) best = key_max(best, raw_key(columns[i]));
    out[g] = best;
  }
}

void dsv41_group_max(const AnyBits* columns, int64_t groups, int64_t group, uint32_t* out) {
  const int power_of_two = (group & (group - 1)) == 0;
  if (power_of_two && group >= 4 && group <= kTileCols / 16) {
    group_max_tiled(columns, groups, group, out);
  } else {
    group_max_long(columns, groups, group, out);
  }
}

/* ---- rows in pieces -------------------------------------------------------------------------- */

enum {
  /* 2^19 columns take about 100 us, starting and joining a thread 30 to 60 (two cores of an EPYC
   * 9004, virtual machine), and milliseconds where other processes want the other cores. */
  kColsPerThread = 1 << 19,
  /* A guess: a smaller piece's own select costs more than its share of the reading saves. */
  kPieceCols = 1 << 15,
};

typedef struct PiecesJob {
  const Pieces* pieces;
  int64_t split;    /* pieces that a row is cut into at most */
  atomic_int* left; /* per row: pieces not yet finished */
  uint32_t* keys;   /* [rows, split, k]: the pieces' winners */
  int32_t* columns;
  int64_t* counts; /* [rows, split] */
} PiecesJob;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t row_split(const PiecesJob* job, int64_t items) {
  const int64_t worth = ceil_div(items * job->pieces->columns_per_item, kPieceCols);
  return worth < job->split ? worth : job->split;
}

static void select_piece(void* job_pointer, int64_t index, void* scratch) {
  const PiecesJob* job = job_pointer;
  const Pieces* p = job->pieces;
  const int64_t row = index / job->split, piece = index % job->split;
  const int64_t items = p->items(p->args, row);
  AnyInt32* out = (AnyInt32*)p->out + row * p->out_stride;
  if (items <= p->whole_items) {
    if (piece) return;
    for (int64_t i = 0; i < p->k; ++i) out[i] = i < items ? (int32_t)i : -1;
    return;
  }
  const int64_t split = row_split(job, items);
  if (piece >= split) return;
  Best best;
  char* rest = dsv41_best_init(&best, p->k, 0, scratch);
  best.bound = p->first_bound;
  p->select(p->args, row, items * piece / split, items * (piece + 1) / split, &best, rest);
  if (split == 1) {
    dsv41_best_write(&best, out);
    return;
  }
  if (best.count > best.k) dsv41_best_reduce(&best);
  const int64_t slot = row * job->split + piece;
  memcpy(job->keys + slot * p->k, best.keys, (size_t)best.count * sizeof *best.keys);
  memcpy(job->columns + slot * p->k, best.columns, (size_t)best.count * sizeof *best.columns);
  job->counts[slot] = best.count;
  /* Release our winners, acquire the others': the thread that counts the last piece reads them. */
  if (atomic_fetch_add_explicit(&job->left[row], 1, memory_order_acq_rel) + 1 < split) return;
  dsv41_best_init(&best, p->k, 0, scratch);
  best.bound = p->first_bound;
  for (int64_t i = row * job->split; i < row * job->split + split; ++i) {
    dsv41_best_add(&best, job->keys + i * p->k, job->columns + i * p->k, 0, job->counts[i]);
  }
  dsv41_best_write(&best, out);
}

static int64_t greatest_common_divisor(int64_t a, int64_t b) {
  return b ? greatest_common_divisor(b, a % b) : a;
}

int dsv41_select_pieces(const Pieces* p) {
  int64_t total = 0, longest = 0;
  for (int64_t row = 0; row < p->rows; ++row) {
    const int64_t items = p->items(p->args, row);
    total += items <= p->whole_items ? 0 : items;
    longest = items > longest ? items : longest;
  }
  if (p->rows == 0 || p->k == 0) return DSV41_OK;
  const int threads = dsv41_cpu_threads(total * p->columns_per_item, kColsPerThread);
  PiecesJob job = {.pieces = p};
  /* Rows times pieces is a multiple of the threads: none waits while another does a row alone. */
  job.split =
      p->rows >= 4 * (int64_t)threads ? 1 : threads / greatest_common_divisor(p->rows, threads);
  const int64_t worth = ceil_div(longest * p->columns_per_item, kPieceCols);
  if (job.split > worth) job.split = worth;
  if (job.split < 1) job.split = 1;

  void* memory = NULL;
  if (job.split > 1) {
    const int64_t slots = p->rows * job.split;
    memory = calloc((size_t)slots, sizeof(int64_t) + (size_t)p->k * 8 + sizeof(atomic_int));
    if (!memory) return DSV41_NO_MEMORY;
    job.counts = memory;
    job.keys = (uint32_t*)(job.counts + slots);
    job.columns = (int32_t*)(job.keys + slots * p->k);
    job.left = (atomic_int*)(job.columns + slots * p->k);
  }
  const size_t scratch = dsv41_best_bytes(p->k) + p->scratch_bytes;
  const int status = dsv41_cpu_parallel(threads, p->rows * job.split, scratch, select_piece, &job);
  free(memory);
  return status;
}
