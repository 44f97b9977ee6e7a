/* SPDX-License-Identifier: Apache-2.0
 *
 * candidate_blocks: the best blocks of each row, by their largest logit. Two launches.
 *
 *   block_scores_kernel  grid (rows, workgroups), 256 threads: all compute units on one pass of the
 *                        rows. A lane scores whole blocks of 8 aligned columns; else `lanes`
 *                        adjacent lanes share a block. A wave takes adjacent blocks, then those as
 *                        many further on as all waves of the row take at once.
 *   block_select_kernel  grid (rows), 1,024 threads: the cut among the scores (device/cut.h), and
 *                        the ids in ascending order.
 *   LDS                  none; CutLds, 5 KiB
 *   scratch              BlocksParams.scores, of the caller's allocator
 *
 * The newest block scores +inf, and all others before the end are whole, so no dead column is read.
 * How many blocks there are is read on the device: workgroups past the live end return at once.
 */
#include "device/cut.h"
#include "device/params.h"
#include "device/platform.h"
#include "device/row.h"
#include "device/wave.h"
#include "tuning.h"

namespace dsv41 {

struct BlockScores {
  static constexpr bool kAscending = true;
  static constexpr bool kTakesMinusInf = false;
  const Float4* vectors;
  uint32_t first_live;
  uint32_t count;
  DSV41_INLINE_MEMBER int rank_id(int position) const { return position; }
};

/* In 32 bits: ids are, and a division in 64 takes a hundred instructions. */
DSV41_INLINE uint32_t blocks_of(int64_t end, int32_t block_size) {
  return (static_cast<uint32_t>(end) + block_size - 1) / block_size;
}

DSV41_INLINE float larger(float a, float b) { return a > b ? a : b; }

}  // namespace dsv41

DSV41_KERNEL(kBlockScoreThreads) void block_scores_kernel(BlocksParams params) {
  using namespace dsv41;
  begin_launch();
  const Dsv41CandidateBlocksArgs& args = params.args;
  const int row = workgroup_x();
  const int64_t end = row_end(args.ends, row, args.width);
  const int blocks = static_cast<int>(blocks_of(end, args.block_size));
  const int lanes = params.lanes ? params.lanes : 1;
  const int blocks_of_wave = kWaveSize / lanes;
  const int waves = kBlockScoreThreads / kWaveSize;
  const int number = workgroup_y() * waves + wave_id();
  const float* logits = args.logits + row * args.logits_stride;
  float* scores = params.scores + row * params.scores_stride;
  for (int64_t first = static_cast<int64_t>(number) * blocks_of_wave; first < blocks;
       first += static_cast<int64_t>(params.workgroups) * waves * blocks_of_wave) {
    const int block = static_cast<int>(first) + lane_id() / lanes;
    const bool full = block < blocks - 1;
    float score = 0;
    if (params.lanes == 0) {
      Float4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
      if (full) {
        const Float4* vectors =
            reinterpret_cast<const Float4*>(logits) + 2 * static_cast<int64_t>(block);
        a = vectors[0];
        b = vectors[1];
      }
      score = larger(larger(larger(a.x, a.y), larger(a.z, a.w)),
                     larger(larger(b.x, b.y), larger(b.z, b.w)));
      const WaveMask odd = unordered_lanes(a.x, a.y) | unordered_lanes(a.z, a.w) |
                           unordered_lanes(b.x, b.y) | unordered_lanes(b.z, b.w);
      if (odd != 0 && has_lane(odd)) score = bits_float(kNanBits);
    } else {
      uint32_t key = 0;
      const int64_t block_first = static_cast<int64_t>(block) * args.block_size;
      /* Nothing to read where the newest block is the only one: its size may be any. */
      for (int c = lane_id() % lanes; first < blocks - 1 && c < args.block_size; c += lanes) {
        if (!full) continue;
        const uint32_t other = key_of(logits[block_first + c]);
        key = other > key ? other : key;
      }
      for (int step = 1; step < lanes; step *= 2) {
        const uint32_t other = shuffle(static_cast<int>(key), lane_id() ^ step);
        key = other > key ? other : key;
      }
      score = key == kKeyNan ? bits_float(kNanBits) : number_of_key(key);
    }
    if (!full) score = bits_float(kPlusInfBits);
    if (block < blocks && lane_id() % lanes == 0) scores[block] = score;
  }
}

DSV41_KERNEL(kCutThreads) void block_select_kernel(BlocksParams params) {
  using namespace dsv41;
  begin_launch();
  __shared__ CutLds lds;
  const Dsv41CandidateBlocksArgs& args = params.args;
  const int row = workgroup_x();
  const int64_t end = row_end(args.ends, row, args.width);
  int32_t* out = args.out + row * args.out_stride;
  const BlockScores source = {
      reinterpret_cast<const Float4*>(params.scores + row * params.scores_stride), 0,
      blocks_of(end, args.block_size)};
  const int chosen =
      source.count <= kTile
          ? choose_best<true>(
                source, args.slots,
                [&](int rank, int block, uint32_t) { store_at(out, rank, block); }, lds)
          : choose_best<false>(
                source, args.slots, [&](int rank, int block, uint32_t) { out[rank] = block; }, lds);
  for (int64_t i = chosen + thread_id(); i < args.slots; i += kCutThreads) out[i] = -1;
}
