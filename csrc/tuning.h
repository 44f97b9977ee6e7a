/* SPDX-License-Identifier: Apache-2.0
 *
 * Every number that was chosen and not given, with what it was measured on. C and C++: the
 * launchers plan with the numbers that the kernels are compiled with.
 */
#ifndef DSV41TOPK_TUNING_H_
#define DSV41TOPK_TUNING_H_

#include <stdint.h>

/* ---- register select (device/select.h, kernels/top_k_select.hip) ----------------------------- */

enum {
  kSelectThreads =
      512, /* 5,900 issue clocks against 6,300 of 1,024 threads at 16,384 columns (rung 5) */
  kOfferSlack = 3,  /* maxima above the quota that end the search for a wave's offer: a guess */
  kOfferSteps = 16, /* then what there is does */
  kPool = 4096, /* 32 KiB of LDS; about 900 of 16,384 random values survive, 2,400 of real text */
  kMostGroups = 1024, /* what is searched of a row that has more groups than the pool holds */
  kGatherLoads = 4,   /* 8 took a tenth more at 32,768 and 65,536 columns (H200, 2026-12-01) */
  kVisits = 4,        /* values that a lane asks for at once where a row is read value by value */
};

/* The shortest need no bound: 2,880 issue clocks against 5,104 at 2,048 normal columns, 3,784 against
 * 5,668 at 4,096, 5,732 against 6,124 at 8,192, and 5,824 against 7,680 there of real text; masked
 * 5,856 against 5,016 (rung 5, 2026-12-01). With waves of 32 lanes 8,192 columns took a sixth more
 * (H200, 2026-12-01). */
enum { kShortCols = kSelectThreads * 4 * 4, kShortColsOfWave32 = kSelectThreads * 4 * 2 };
/* Rows of up to this many live columns are read by their workgroup alone. Longer ones take two
 * launches. */
enum { kDirectLoads = 8, kDirectCols = kSelectThreads * 4 * kDirectLoads };
/* Gathered rows have no first launch: 16 loads a lane at most. */
enum { kMaxGathered = 2 * kDirectCols };
enum { kMaxRegisterCols = 1 << 20 };

/* Columns of a group in the first launch, from the live end: at most 16,384 maxima a row, which the
 * second launch holds in registers, and 512 groups of 4 to 64 columns that it then reads again. Of a
 * masked row, where one block of 8 in eight is live, 512 groups have a live column: with groups of
 * 16 a row of 32,768 took 44 us beside 12 of one that is not masked (H200, 2026-12-01). */
static inline
#if defined(__HIP__) || defined(__CUDACC__)
    __attribute__((device, host))
#endif
    int choose_group_cols(int64_t end) {
  return end <= (1 << 15)   ? 4
         : end <= (1 << 16) ? 8
         : end <= (1 << 18) ? 16
         : end <= (1 << 19) ? 32
                            : 64;
}
enum { kMaxMaxima = 16384, kMinGroupCols = 4 };

enum {
  kGroupMaxThreads = 256,
  kGroupMaxLoads =
      4, /* 16 KiB in flight a workgroup; four lanes of a group write one maximum of each load */
  kGroupMaxCols = kGroupMaxThreads * 4 * kGroupMaxLoads,
};

/* Workgroups of a row: as many as fill every compute unit 8 deep, however wide the buffer is. A
 * workgroup for each chunk of the width cost 8 us more for 48 short rows of a 2^20 buffer (H200,
 * 2026-12-01, bench gpu --quick). */
static inline int choose_group_max_workgroups(int64_t width, int64_t rows, int compute_units) {
  int64_t chunks = (width + kGroupMaxCols - 1) / kGroupMaxCols;
  int64_t wanted = (8 * (int64_t)compute_units + rows - 1) / rows;
  return (int)(chunks < wanted ? chunks : wanted);
}

/* ---- histogram select and candidate_blocks (device/cut.h) ------------------------------------ */

enum {
  kCutThreads = 1024,
  kTile = 16384, /* 16 values a lane: what a workgroup holds in registers */
  /* Every wave reads all bins by itself, which saves a barrier. candidate_blocks of 131,072 normal
   * columns takes 7,416 clocks; with 256 bins more than 128 values stood in the cut's (21,256), and
   * 1,024 save 200 but double what is read from LDS (rung 5, 2026-12-01). */
  kCutBins = 512,
  /* Values in the cut's bin that are ranked at once. More are binned again, for 10,000 clocks; 128
   * would save 100 (rung 5, 2026-12-01). */
  kListed = 256,
  kFewestSampled = 512, /* shorter rows have too few values for a sample of 512 */
};

/* Pieces of a row in the histogram select. A piece shorter than kFewestInPiece has less to read than
 * its launch costs (a guess), and each must hold 512 values. The merge holds the entries of
 * kMostPieces in registers. */
enum { kFewestInPiece = 2048, kMostPieces = kTile / 512 };

static inline
#if defined(__HIP__) || defined(__CUDACC__)
    __attribute__((device, host))
#endif
    int choose_pieces(int64_t end, int64_t max_blocks, int64_t min_chunk) {
  if (min_chunk < kFewestInPiece) min_chunk = kFewestInPiece;
  if (max_blocks > kMostPieces) max_blocks = kMostPieces;
  if (end > INT32_MAX)
    end = INT32_MAX; /* a 64-bit division takes a hundred instructions on the device */
  int64_t pieces = (uint32_t)end / (uint32_t)min_chunk;
  return (int)(pieces < 1 ? 1 : pieces < max_blocks ? pieces : max_blocks);
}

/* Lanes that share a block whose columns are not two aligned vectors: adjacent ones read adjacent
 * columns. No more than a wave of sm_90 has. */
static inline int choose_block_lanes(int64_t block_size) {
  int lanes = 1;
  while (lanes < 32 && lanes * 2 <= block_size) lanes *= 2;
  return lanes;
}

enum {
  kGatherThreads = 1024,
  kGatherIds = 8192, /* block ids of a workgroup: 32 KiB of LDS */
  kBlockScoreThreads = 256,
  kMostGridY = 65535,
  kBlockScoreWorkgroups = 8, /* a compute unit, at most: 32 waves fill it */
};

/* Workgroups of a row: enough for its blocks, as long as all rows do not queue for compute units. */
static inline int choose_block_workgroups(int64_t blocks, int lanes, int64_t rows,
                                          int compute_units) {
  int64_t needed = (blocks * (lanes ? lanes : 1) + kBlockScoreThreads - 1) / kBlockScoreThreads;
  int64_t most = (int64_t)compute_units * kBlockScoreWorkgroups / rows;
  if (most > kMostGridY) most = kMostGridY;
  if (most < 1) most = 1;
  return (int)(needed < most ? needed : most);
}

static inline int choose_gather_workgroups(int64_t width, int64_t block_size) {
  int64_t needed = (width / block_size + kGatherIds) / kGatherIds;
  if (needed > kMostGridY) needed = kMostGridY;
  return (int)needed;
}

#endif /* DSV41TOPK_TUNING_H_ */
