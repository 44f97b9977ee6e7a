/* SPDX-License-Identifier: Apache-2.0
 *
 * candidate_logits in plain arithmetic, for both FP8 formats: the sm_90 build and the tests. On
 * gfx942 the hook is served by dsv41topk/cand_logits.py instead, whose bits are the dense kernel's;
 * this kernel promises float32 sums and no bits.
 *
 * Mapping: a workgroup of 256 lanes takes 256 adjacent slots of one row, a lane one slot with all
 * heads (32 or 64). The row's queries lie in LDS as floats (32 KiB for 64 heads), and all lanes
 * read the same words of them, 16 bytes at a time; a lane's own key passes through registers in
 * pieces of 16 dims. One barrier, after LDS is filled. No scratch.
 */
#include "abi.h"
#include "device/platform.h"
#include "device/row.h"

namespace dsv41 {
namespace candidate_logits {

constexpr int kThreads = 256; /* kPlainThreads in logits.c */
constexpr int kDims = 128;
constexpr int kMaxHeads = 64;
constexpr int kGroups = kDims / 16;
constexpr int kGroupBytes = 256; /* 16 dims of 16 keys */

struct alignas(16) Words4 {
  uint32_t word[4];
};

struct Lds {
  Float4 q[kMaxHeads][kDims / 4];
  float values[256]; /* of the FP8 codes */
};
static_assert(kThreads == 256, "a lane decodes one code of the table");
static_assert(sizeof(Lds) <= 48 * 1024, "sm_90 gives 48 KiB without asking");

/* e4m3fn: bias 7, NaN at 0x7f and 0xff. e4m3fnuz: bias 8, NaN at 0x80, no negative zero. */
DSV41_INLINE float decode(uint32_t code, bool fnuz) {
  const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
  const bool is_nan = fnuz ? code == 0x80 : (code & 0x7f) == 0x7f;
  const uint32_t sign = (code & 0x80) << 24;
  const uint32_t bits =
      is_nan ? 0x7fc00000u : sign | (exponent + (fnuz ? 119 : 120)) << 23 | mantissa << 20;
  const float subnormal = static_cast<float>(mantissa) * (fnuz ? 0x1p-10f : 0x1p-9f);
  const float normal = bits_float(bits);
  return exponent != 0 || is_nan ? normal : sign != 0 ? -subnormal : subnormal;
}

/* The column of a slot, or -1 where the slot is not live. */
DSV41_INLINE int64_t column_of(const Dsv41CandidateLogitsArgs& args, int row, int64_t slot) {
  const int64_t table_end = static_cast<int64_t>(args.table_columns) * args.page_size;
  const int64_t block = args.candidates[row * args.candidates_stride + slot / args.block_size];
  const int64_t column = block * args.block_size + slot % args.block_size;
  return block >= 0 && column < row_end(args.ends, row, table_end) ? column : -1;
}

/* The page of a live column, or null where its id is outside the cache. */
DSV41_INLINE const uint8_t* page_of(const Dsv41CandidateLogitsArgs& args, int row, int64_t column) {
  const int64_t request = row / args.rows_per_request;
  const int page = args.block_table[request * args.block_table_stride + column / args.page_size];
  if (page < 0 || page >= args.pages) return nullptr;
  return args.kv_cache + page * args.page_stride_bytes;
}

/* A cache of bytes may lie anywhere. Unaligned words would fault on sm_90. */
DSV41_INLINE Words4 load_16(const uint8_t* bytes) {
  if (reinterpret_cast<uintptr_t>(bytes) % 16 == 0) return *reinterpret_cast<const Words4*>(bytes);
  Words4 words;
  for (int i = 0; i < 4; ++i)
    words.word[i] = bytes[4 * i] | bytes[4 * i + 1] << 8 | bytes[4 * i + 2] << 16 |
                    static_cast<uint32_t>(bytes[4 * i + 3]) << 24;
  return words;
}

/* 16 dims at a time, so that the sums of all heads and one piece of the key fit in registers. */
template <int Heads>
DSV41_INLINE float score(const Lds& lds, const uint8_t* key, float scale, const float* weights) {
  float dot[Heads] = {};
  Words4 next = load_16(key);
#pragma unroll 1
  for (int group = 0; group < kGroups; ++group) {
    const Words4 words = next;
    if (group + 1 < kGroups) next = load_16(key + (group + 1) * kGroupBytes);
    float k[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) k[i] = lds.values[words.word[i / 4] >> i % 4 * 8 & 255];
#pragma unroll
    for (int head = 0; head < Heads; ++head) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Float4 q = lds.q[head][group * 4 + i];
        dot[head] += q.x * k[4 * i];
        dot[head] += q.y * k[4 * i + 1];
        dot[head] += q.z * k[4 * i + 2];
        dot[head] += q.w * k[4 * i + 3];
      }
    }
  }
  float logit = 0;
#pragma unroll
  for (int head = 0; head < Heads; ++head) {
    const float scaled = dot[head] * scale;
    logit += (scaled > 0 ? scaled : 0) * weights[head];
  }
  return logit;
}

}  // namespace candidate_logits
}  // namespace dsv41

DSV41_KERNEL(dsv41::candidate_logits::kThreads)
void candidate_logits_kernel(Dsv41CandidateLogitsArgs args) {
  using namespace dsv41;
  begin_launch();
  using namespace dsv41::candidate_logits;
  __shared__ Lds lds;
  const int64_t row_slots = static_cast<int64_t>(args.slots) * args.block_size;
  const int tiles = static_cast<int>((row_slots + kThreads - 1) / kThreads);
  const int row = workgroup_x() / tiles, thread = thread_id();
  const bool fnuz = args.fp8 == DSV41_E4M3FNUZ;

  const uint8_t* q = args.q + static_cast<int64_t>(row) * args.heads * kDims;
  float* q_values = &lds.q[0][0].x;
  for (int i = thread; i < args.heads * kDims; i += kThreads) q_values[i] = decode(q[i], fnuz);
  lds.values[thread] = decode(thread, fnuz);
  /* Without it a fast wave would multiply with queries that a slow one has not written yet. */
  barrier();

  const int64_t slot = static_cast<int64_t>(workgroup_x() % tiles) * kThreads + thread;
  if (slot >= row_slots) return;
  const int64_t column = column_of(args, row, slot);
  const uint8_t* page = column < 0 ? nullptr : page_of(args, row, column);
  const int64_t out = row * row_slots + slot;
  if (page == nullptr) {
    args.out_logits[out] = -__builtin_inff();
    args.out_ids[out] = -1;
    return;
  }
  const int key_in_page = static_cast<int>(column % args.page_size);
  const uint8_t* key_bytes = page + (key_in_page / 16) * (16 * kDims) + key_in_page % 16 * 16;
  float scale;
  __builtin_memcpy(&scale, page + static_cast<int64_t>(args.page_size) * kDims + key_in_page * 4,
                   sizeof scale);
  const float* weights = args.weights + row * args.weights_stride;
  args.out_logits[out] = args.heads == kMaxHeads
                             ? score<kMaxHeads>(lds, key_bytes, scale, weights)
                             : score<kMaxHeads / 2>(lds, key_bytes, scale, weights);
  args.out_ids[out] = static_cast<int32_t>(column);
}
