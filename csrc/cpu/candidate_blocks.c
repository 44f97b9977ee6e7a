/* SPDX-License-Identifier: Apache-2.0
 *
 * candidate_blocks on the CPU: the maxima of blocks, then the same exact select, with blocks in the
 * place of columns.
 */
#include "keys.h"
#include "select.h"

enum { kTileBlocks = 1 << 14 };

static int64_t blocks_of_row(const void* args_pointer, int64_t row) {
  const Dsv41CandidateBlocksArgs* args = args_pointer;
  const int64_t end = row_end(&args->ends, row, args->width);
  return (end + args->block_size - 1) / args->block_size;
}

static void select_blocks(const void* args_pointer, int64_t row_index, int64_t first, int64_t last,
                          Best* best, char* scratch) {
  const Dsv41CandidateBlocksArgs* args = args_pointer;
  const AnyBits* row = (const AnyBits*)args->logits + row_index * args->logits_stride;
  const int64_t newest = blocks_of_row(args, row_index) - 1;
  uint32_t* scores = (uint32_t*)scratch;
  for (int64_t tile = first; tile < last; tile += kTileBlocks) {
    if (best->count > best->k) dsv41_best_reduce(best);
    const int64_t n = last - tile < kTileBlocks ? last - tile : kTileBlocks;
    const int has_newest = tile + n == newest + 1;
    /* The newest block's values are never read: it may be partly filled, and it scores +inf
     * whatever it holds. */
    dsv41_group_max(row + tile * args->block_size, n - has_newest, args->block_size, scores);
    if (has_newest) scores[n - 1] = kKeyInf;
    best_raise(best, dsv41_lower_bound(scores, n, best->k, best->spare));
    dsv41_best_add(best, scores, NULL, tile, n);
  }
}

int dsv41_cpu_candidate_blocks(const Dsv41CandidateBlocksArgs* args) {
  const Pieces pieces = {.args = args,
                         .select = select_blocks,
                         .items = blocks_of_row,
                         .columns_per_item = args->block_size,
                         .rows = args->rows,
                         .k = args->slots,
                         .out = args->out,
                         .out_stride = args->out_stride,
                         .first_bound = 1, /* a block of -inf alone, key 0, is not chosen */
                         .scratch_bytes = kTileBlocks * sizeof(uint32_t)};
  return dsv41_select_pieces(&pieces);
}
