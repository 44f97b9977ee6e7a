/* SPDX-License-Identifier: Apache-2.0
 *
 * candidate_logits on the CPU: a tile of slots at a time. Their keys are decoded through a table
 * into [dim][slot] floats, so that the dot products of 4 heads are multiply-adds of a broadcast
 * query value with vectors of slots, in registers.
 *
 * A slot is live when the contract says so and its page is there: a table column past the table, or
 * a page id outside [0, pages), makes it not live instead of reading out of bounds. Float32 sums,
 * in the order of dims, then of heads.
 */
#include <math.h>
#include <string.h>

#include "keys.h"
#include "parallel.h"

/* Longer vectors than the machine's are kept in memory by gcc 12, 10 times slower. */
#ifdef __x86_64__
enum { kVectorFloats = 8 };
#else
enum { kVectorFloats = 4 };
#endif

enum {
  kDims = 128,
  kLanes = 2 * kVectorFloats, /* slots of a tile */
  kMaxHeads = 64,
  kHeadsAtOnce = 4, /* two accumulators each: with two keys and a query value in 16 registers */
  kSlotsPerPiece = 1024,
  kColsPerThread = 1 << 10, /* 10 to 100 us of work */
};

typedef float Lanes
    __attribute__((vector_size(kVectorFloats * sizeof(float)), aligned(4), may_alias));

typedef struct LogitsJob {
  const Dsv41CandidateLogitsArgs* args;
  int64_t pieces; /* per row */
  float table[256];
} LogitsJob;

typedef struct LogitsScratch {
  float q[kMaxHeads][kDims];
  float keys[kDims][kLanes];
  float scales[kLanes];
  float weights[kMaxHeads];
  int32_t columns[kLanes]; /* -1: not live */
} LogitsScratch;

/* e4m3fn: bias 7, NaN at 0x7f and 0xff. e4m3fnuz: bias 8, NaN at 0x80, no negative zero. */
static void fill_table(int fp8, float* table) {
  const int bias = fp8 == DSV41_E4M3FN ? 7 : 8;
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float magnitude = exponent ? ldexpf((float)(8 + mantissa), exponent - bias - 3)
                                     : ldexpf((float)mantissa, 1 - bias - 3);
    const int is_nan = fp8 == DSV41_E4M3FN ? (code & 0x7f) == 0x7f : code == 0x80;
    table[code] = is_nan ? NAN : code & 0x80 ? -magnitude : magnitude;
  }
}

/* The page of a live column, or NULL. */
static const uint8_t* page_of(const Dsv41CandidateLogitsArgs* args, const AnyInt32* table_row,
                              int64_t column) {
  const int64_t table_column = column / args->page_size;
  if (table_column >= args->table_columns) return NULL;
  const int64_t page = table_row[table_column];
  if (page < 0 || page >= args->pages) return NULL;
  return args->kv_cache + page * args->page_stride_bytes;
}

DSV41_INLINE void decode_key(const LogitsJob* job, const uint8_t* page, int64_t key, int lane,
                             LogitsScratch* s) {
  const uint8_t* group = page + key / 16 * (16 * kDims) + key % 16 * 16;
  for (int dim = 0; dim < kDims; ++dim)
    s->keys[dim][lane] = job->table[group[dim / 16 * 256 + dim % 16]];
  memcpy(&s->scales[lane], page + (int64_t)job->args->page_size * kDims + key * 4, sizeof(float));
}

/* A tile of slots of one row from `slot` on; fewer where the row ends. */
static void load_tile(const LogitsJob* job, int64_t row, int64_t end, int64_t slot, int64_t slots,
                      LogitsScratch* s) {
  const Dsv41CandidateLogitsArgs* args = job->args;
  const AnyInt32* candidates = (const AnyInt32*)args->candidates + row * args->candidates_stride;
  const AnyInt32* table_row =
      (const AnyInt32*)args->block_table + row / args->rows_per_request * args->block_table_stride;
  for (int lane = 0; lane < kLanes; ++lane, ++slot) {
    s->columns[lane] = -1;
    if (slot >= slots) continue;
    const int64_t block = candidates[slot / args->block_size];
    const int64_t column = block * args->block_size + slot % args->block_size;
    if (block < 0 || column >= end) continue;
    const uint8_t* page = page_of(args, table_row, column);
    if (!page) continue;
    s->columns[lane] = (int32_t)column;
    decode_key(job, page, column % args->page_size, lane, s);
  }
}

DSV41_FMA_CLONES static void score_tile(const LogitsScratch* s, int heads, float* restrict logits) {
  for (int lane = 0; lane < kLanes; ++lane) logits[lane] = 0;
  for (int head = 0; head < heads; head += kHeadsAtOnce) {
    const float (*q)[kDims] = s->q + head;
    Lanes a0 = {0}, a1 = {0}, b0 = {0}, b1 = {0}, c0 = {0}, c1 = {0}, d0 = {0}, d1 = {0};
    for (int dim = 0; dim < kDims; ++dim) {
      const Lanes* key = (const Lanes*)s->keys[dim];
      a0 += q[0][dim] * key[0], a1 += q[0][dim] * key[1];
      b0 += q[1][dim] * key[0], b1 += q[1][dim] * key[1];
      c0 += q[2][dim] * key[0], c1 += q[2][dim] * key[1];
      d0 += q[3][dim] * key[0], d1 += q[3][dim] * key[1];
    }
    const Lanes sums[2 * kHeadsAtOnce] = {a0, a1, b0, b1, c0, c1, d0, d1};
    float dots[kHeadsAtOnce][kLanes];
    memcpy(dots, sums, sizeof dots);
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      const float weight = s->weights[head + i];
      DSV41_KEEP_LOOP
      for (int lane = 0; lane < kLanes; ++lane) {
        const float scaled = dots[i][lane] * s->scales[lane];
        logits[lane] += (scaled > 0 ? scaled : 0) * weight;
      }
    }
  }
}

static void logits_piece(void* job_pointer, int64_t index, void* scratch) {
  const LogitsJob* job = job_pointer;
  const Dsv41CandidateLogitsArgs* args = job->args;
  LogitsScratch* s = scratch;
  const int64_t row = index / job->pieces;
  const int64_t slots = (int64_t)args->slots * args->block_size;
  const int64_t first = index % job->pieces * kSlotsPerPiece;
  const int64_t last = slots - first < kSlotsPerPiece ? slots : first + kSlotsPerPiece;
  const int64_t end = row_end(&args->ends, row, INT32_MAX);
  const uint8_t* q = args->q + row * args->heads * kDims;
  for (int head = 0; head < args->heads; ++head) {
    for (int dim = 0; dim < kDims; ++dim) s->q[head][dim] = job->table[*q++];
  }
  memcpy(s->weights, args->weights + row * args->weights_stride,
         (size_t)args->heads * sizeof(float));
  /* Lanes that are never live must not read what an earlier call left here. */
  memset(s->keys, 0, sizeof s->keys);
  memset(s->scales, 0, sizeof s->scales);
  for (int64_t slot = first; slot < last; slot += kLanes) {
    load_tile(job, row, end, slot, last, s);
    float logits[kLanes];
    score_tile(s, args->heads, logits);
    const int64_t here = last - slot < kLanes ? last - slot : kLanes;
    for (int64_t lane = 0; lane < here; ++lane) {
      const int live = s->columns[lane] >= 0;
      ((AnyFloat*)args->out_logits)[row * slots + slot + lane] = live ? logits[lane] : -INFINITY;
      ((AnyInt32*)args->out_ids)[row * slots + slot + lane] = s->columns[lane];
    }
  }
}

int dsv41_cpu_candidate_logits(const Dsv41CandidateLogitsArgs* args) {
  const int64_t slots = (int64_t)args->slots * args->block_size;
  LogitsJob job = {.args = args, .pieces = (slots + kSlotsPerPiece - 1) / kSlotsPerPiece};
  fill_table(args->fp8, job.table);
  const int threads = dsv41_cpu_threads(args->rows * slots, kColsPerThread);
  return dsv41_cpu_parallel(threads, args->rows * job.pieces, sizeof(LogitsScratch), logits_piece,
                            &job);
}
