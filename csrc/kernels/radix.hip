/* SPDX-License-Identifier: Apache-2.0
 *
 * The histogram select: rows of any alignment and any width, and compact rows of any length. Two
 * launches.
 *
 *   radix_chunk_kernel  grid (rows, pieces), 1,024 threads. A row is split by its live length, on
 *                       the device: workgroups past the last piece return. Each finds the cut of
 *                       its piece (device/cut.h) and writes the 512 best, ascending, to scratch; of
 *                       a row of one piece, and of a compact row, to indices.
 *   radix_merge_kernel  grid (rows), 1,024 threads. The same among the pieces' entries; not for
 *                       rows of one piece.
 *   LDS                 CutLds, 5 KiB
 *   registers           a tile of 16,384 values, 16 a lane
 *   scratch             RadixParams.values and columns, of the caller's allocator
 *
 * Rows are read in aligned vectors from the 16-byte boundary at or below their start, so alignment
 * costs nothing; of the first and the last vector only live columns are read.
 */
#include "device/cut.h"
#include "device/params.h"
#include "device/platform.h"
#include "device/row.h"
#include "tuning.h"

namespace dsv41 {

/* A piece of a dense row, or the entries of its pieces. */
struct AscendingValues {
  static constexpr bool kAscending = true;
  static constexpr bool kTakesMinusInf = true;
  const Float4* vectors;
  uint32_t first_live;
  uint32_t count;
  DSV41_INLINE_MEMBER int rank_id(int position) const { return position; }
};

struct CompactValues {
  static constexpr bool kAscending = false;
  static constexpr bool kTakesMinusInf = true;
  const Float4* vectors;
  uint32_t first_live;
  uint32_t count;
  const int32_t* ids; /* of the row */
  DSV41_INLINE_MEMBER int rank_id(int position) const {
    const uint32_t slot = static_cast<uint32_t>(position) - first_live;
    return slot < count - first_live ? ids[slot] : -1;
  }
};

/* The vectors that hold a row's values, and how many values of the first one lie before the row. */
struct AlignedRow {
  const Float4* vectors;
  uint32_t before;
  DSV41_INLINE_MEMBER explicit AlignedRow(const float* row) {
    before = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row) / sizeof(float) % 4);
    vectors = reinterpret_cast<const Float4*>(row - before);
  }
};

}  // namespace dsv41

DSV41_KERNEL(kCutThreads) void radix_chunk_kernel(RadixParams params) {
  using namespace dsv41;
  begin_launch();
  __shared__ CutLds lds;
  const int row = workgroup_x();
  const int piece = workgroup_y();
  const int64_t end = row_end(params.ends, row, params.width);
  int32_t* indices = params.indices + row * params.indices_stride;
  if (end <= DSV41_TOP_K) {
    if (piece == 0) write_short_row(indices, static_cast<int>(end), kCutThreads);
    return;
  }
  const AlignedRow aligned(params.logits + row * params.logits_stride);
  if (params.ids) {
    const int32_t* ids = params.ids + row * params.logits_stride;
    const uint32_t count = aligned.before + static_cast<uint32_t>(params.n);
    const CompactValues source = {aligned.vectors, aligned.before, count, ids};
    const int chosen = choose_best<false>(
        source, DSV41_TOP_K,
        [&](int rank, int position, uint32_t) {
          /* Ids of a caller may hold one twice, and then more may tie than were asked for. */
          if (rank < DSV41_TOP_K) indices[rank] = source.rank_id(position);
        },
        lds);
    fill_rest(indices, chosen, kCutThreads);
    return;
  }
  const int pieces = choose_pieces(end, params.max_pieces, params.min_chunk);
  if (piece >= pieces) return;
  const uint32_t vectors = static_cast<uint32_t>((aligned.before + end + 3) / 4);
  const uint32_t each = vectors / pieces, longer = vectors % pieces;
  const uint32_t first = piece * each + (piece < static_cast<int>(longer) ? piece : longer);
  const uint32_t last = first + each + (piece < static_cast<int>(longer));
  const uint32_t count = static_cast<uint32_t>(
      (last == vectors ? aligned.before + end : int64_t{4} * last) - int64_t{4} * first);
  const AscendingValues source = {aligned.vectors + first, piece == 0 ? aligned.before : 0, count};
  const int first_column = static_cast<int>(int64_t{4} * first - aligned.before);
  const int64_t entries = (static_cast<int64_t>(row) * params.max_pieces + piece) * DSV41_TOP_K;
  int32_t* columns = pieces == 1 ? indices : params.columns + entries;
  float* values = pieces == 1 ? nullptr : params.values + entries;
  const auto emit = [&](int rank, int position, uint32_t bits) {
    store_at(columns, rank, first_column + position);
    if (pieces > 1) store_at(values, rank, bits_float(bits));
  };
  if (source.count <= kTile)
    choose_best<true>(source, DSV41_TOP_K, emit, lds);
  else
    choose_best<false>(source, DSV41_TOP_K, emit, lds);
}

DSV41_KERNEL(kCutThreads) void radix_merge_kernel(RadixParams params) {
  using namespace dsv41;
  begin_launch();
  __shared__ CutLds lds;
  const int row = workgroup_x();
  const int64_t end = row_end(params.ends, row, params.width);
  if (end <= DSV41_TOP_K) return;
  const int pieces = choose_pieces(end, params.max_pieces, params.min_chunk);
  static_assert(kMostPieces * DSV41_TOP_K <= kTile, "the merge holds its entries in registers");
  if (pieces == 1) return;
  const int64_t entries = static_cast<int64_t>(row) * params.max_pieces * DSV41_TOP_K;
  const int32_t* columns = params.columns + entries;
  int32_t* indices = params.indices + row * params.indices_stride;
  const AscendingValues source = {reinterpret_cast<const Float4*>(params.values + entries), 0,
                                  static_cast<uint32_t>(pieces * DSV41_TOP_K)};
  choose_best<true>(
      source, DSV41_TOP_K,
      [&](int rank, int position, uint32_t) {
        store_at(indices, rank, load_at(columns, position));
      },
      lds);
}
