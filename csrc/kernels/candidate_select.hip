/* SPDX-License-Identifier: Apache-2.0
 *
 * candidate_select_kernel: the 512 columns of a dense row among its candidate blocks.
 *
 *   grid      rows, one workgroup each, up to 32,768 candidates
 *   row       each wave gathers a piece of the list. Up to 16,384 candidates in aligned blocks of
 *             4, 8, 16... columns: once into registers, 16 bytes a lane and load. Others: value by
 *             value, more than once.
 *   order     slots' order; ties to the lowest column
 *   LDS       CandidateSelectLds, 58 KiB on gfx942, 46 KiB on sm_90
 *   scratch   none
 *
 * A list that ascends apart from a tail of empty slots is what candidate_blocks writes, and holds
 * no block twice. Any other list is searched for blocks listed twice: window by window of block
 * ids, each id keeps its lowest slot. Then the row is gathered again, without the slots that were
 * dropped.
 */
#include "device/params.h"
#include "device/platform.h"
#include "device/row.h"
#include "device/select.h"
#include "device/tiles.h"
#include "tuning.h"

namespace dsv41 {

constexpr int kWindowIds = 2 * kPool; /* as int32 in the pool's place */

struct CandidateSelectLds {
  SelectLds select;
  int disorder[kSelectWaves];
  uint32_t dropped[kMaxGathered / 32]; /* a bit a slot */
};

struct CandidateRow {
  Values values;
  const int32_t* candidates;
  int slots;
  int block_size;
  int block_shift;
  int block_count;         /* blocks with live columns; other ids are empty slots */
  const uint32_t* dropped; /* NULL: none */

  DSV41_INLINE_MEMBER int positions() const { return slots * block_size; }
  DSV41_INLINE_MEMBER int last_column() const { return values.end - 1; }
  DSV41_INLINE_MEMBER int slot_of(int position) const {
    return block_shift >= 0 ? position >> block_shift : position / block_size;
  }
  /* The block in a slot, or -1. */
  DSV41_INLINE_MEMBER int block_in(int slot) const {
    const int block = candidates[slot];
    if (block < 0 || block >= block_count) return -1;
    return dropped && dropped[slot / 32] >> slot % 32 & 1 ? -1 : block;
  }
  /* The column of a live or dead position whose slot is not empty. */
  DSV41_INLINE_MEMBER int column_in(int block, int position, int slot) const {
    return block * block_size + (position - slot * block_size);
  }
  DSV41_INLINE_MEMBER int column_at(int position) const {
    const int slot = slot_of(position);
    return column_in(candidates[slot], position, slot);
  }
  DSV41_INLINE_MEMBER void prepare_visits(SelectLds&) {}
  template <class F>
  DSV41_INLINE_MEMBER void visit(F f) const {
    visit_piece<1>(
        positions(),
        [&](int position) -> Standing {
          const int slot = slot_of(position);
          const int block = block_in(slot);
          if (block < 0) return 0;
          const int column = column_in(block, position, slot);
          return column < values.end ? standing(key_of(values.first[column]), column) : 0;
        },
        f);
  }
};

/* For blocks that are made of whole vectors, their size a power of two. */
DSV41_INLINE List fill_from_vectors(const CandidateRow& row, Bounds& bounds, SelectLds& lds) {
  constexpr int kLoads = kDirectLoads;
  const int piece = wave_piece(row.positions());
  const int first = wave_id() * piece;
  const int end = first + piece < row.positions() ? first + piece : row.positions();
  const int shift = row.block_shift, last = row.positions() - 1;
  Tile<kLoads> tile;
  int blocks[kLoads], columns[kLoads];
#pragma unroll
  for (int l = 0; l < kLoads; l++) {
    tile.positions[l] = first + (l * kWaveSize + lane_id()) * 4;
    const int slot = (tile.positions[l] < last ? tile.positions[l] : last) >> shift;
    blocks[l] = row.candidates[static_cast<uint32_t>(slot)];
  }
  if (row.dropped) {
#pragma unroll
    for (int l = 0; l < kLoads; l++)
      if (tile.positions[l] < end) blocks[l] = row.block_in(tile.positions[l] >> shift);
  }
#pragma unroll
  for (int l = 0; l < kLoads; l++) {
    const bool empty = static_cast<uint32_t>(blocks[l]) >= static_cast<uint32_t>(row.block_count);
    const int column = (blocks[l] << shift) + (tile.positions[l] & (row.block_size - 1));
    columns[l] = empty || tile.positions[l] >= end ? kNowhere : column;
  }
  load_vectors(tile, columns, row.values);
  return fill_from_tile(tile, bounds, lds);
}

/* Whether the wave's share of the slots ascends, but for empty slots at the end. */
DSV41_INLINE bool ascends(const CandidateRow& row) {
  bool in_order = true;
  for (int slot = thread_id(); slot < row.slots; slot += kSelectThreads) {
    const int block = row.candidates[slot];
    const int before = slot > 0 ? row.candidates[slot - 1] : -1;
    if (block >= 0 && block < row.block_count && slot > 0 && (before < 0 || before >= block))
      in_order = false;
  }
  return ballot(!in_order) == 0;
}

/* Mark the slots whose block has a lower slot. */
DSV41_INLINE void drop_repeated(const CandidateRow& row, CandidateSelectLds& lds) {
  int* lowest_slot = reinterpret_cast<int*>(lds.select.pool);
  for (int i = thread_id(); i < kMaxGathered / 32; i += kSelectThreads) lds.dropped[i] = 0;
  for (int window = 0; window < row.block_count; window += kWindowIds) {
    barrier(); /* without it a fast wave clears slots that a slow one still compares, or lists in
                  the pool */
    for (int i = thread_id(); i < kWindowIds; i += kSelectThreads) lowest_slot[i] = INT32_MAX;
    barrier(); /* without it a slow wave clears what a fast one has entered */
    for (int slot = thread_id(); slot < row.slots; slot += kSelectThreads) {
      const int id = row.candidates[slot] - window;
      if (id >= 0 && id < kWindowIds) lds_min(&lowest_slot[id], slot);
    }
    barrier(); /* without it a wave compares with slots that are not all entered */
    for (int slot = thread_id(); slot < row.slots; slot += kSelectThreads) {
      const int id = row.candidates[slot] - window;
      if (id >= 0 && id < kWindowIds && lowest_slot[id] != slot)
        lds_or(&lds.dropped[slot / 32], 1u << slot % 32);
    }
  }
  barrier(); /* without it a wave gathers before all slots are marked */
}

/* Fills lists by fill(), and once more if that has seen a list that may hold a block twice. */
template <class Fill>
DSV41_INLINE List fill_without_repeated(CandidateRow& row, CandidateSelectLds& lds, Fill fill) {
  bool in_order = ascends(row);
  while (true) {
    const int wave = wave_id();
    if (lane_id() == 0) lds.disorder[wave] = !in_order;
    const List list = fill(); /* has a barrier in it */
    if (ballot(lds.disorder[lane_id() % kSelectWaves] != 0) == 0) return list;
    drop_repeated(row, lds);
    row.dropped = lds.dropped;
    in_order = true;
  }
}

}  // namespace dsv41

DSV41_KERNEL(kSelectThreads) void candidate_select_kernel(CandidateSelectParams params) {
  using namespace dsv41;
  begin_launch();
  __shared__ CandidateSelectLds lds;
  const Dsv41CandidateTopKArgs& args = params.args;
  const int row = workgroup_x();
  const int end = static_cast<int>(row_end(args.ends, row, args.width));
  if (end <= DSV41_TOP_K) {
    write_short_row(args.indices + row * args.indices_stride, end, kSelectThreads);
    return;
  }
  CandidateRow source = {
      {args.logits + row * args.logits_stride, end, static_cast<int>(args.width & ~int64_t{3})},
      args.candidates + row * args.candidates_stride,
      args.slots,
      args.block_size,
      params.block_shift,
      0,
      nullptr};
  source.block_count = source.slot_of(end - 1) + 1;
  Bounds bounds;
  const bool in_registers = params.vectors && source.positions() <= kDirectCols;
  const List list = fill_without_repeated(source, lds, [&] {
    return in_registers ? fill_from_vectors(source, bounds, lds.select)
                        : fill_from_row(source, bounds, lds.select);
  });
  int32_t* indices = args.indices + row * args.indices_stride;
  select_listed(source, list, bounds, indices, lds.select);
}
