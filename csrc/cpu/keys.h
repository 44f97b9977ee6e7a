/* SPDX-License-Identifier: Apache-2.0
 *
 * Order of values as unsigned integers, and how to read the caller's memory. Everything is done on
 * bits, so that -ffast-math in the compiler's environment changes nothing.
 */
#ifndef DSV41TOPK_CPU_KEYS_H_
#define DSV41TOPK_CPU_KEYS_H_

#include <stdint.h>

#include "../abi.h"

/* One version of a function for each vector width, chosen when the library is loaded: a wheel is
 * built once. Not under sanitizers: the choice is made before their own start-up (clang 19's thread
 * sanitizer crashed there). */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DSV41_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DSV41_SANITIZED 1
#endif
#endif
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(DSV41_SANITIZED)
#if defined(__has_attribute)
#if __has_attribute(target_clones)
#define DSV41_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#define DSV41_FMA_CLONES __attribute__((target_clones("fma", "default")))
#endif
#endif
#endif
#ifndef DSV41_CLONES
#define DSV41_CLONES
#define DSV41_FMA_CLONES
#endif
/* What a clone calls must be inlined into it, or it is compiled for the default width. */
#define DSV41_INLINE static inline __attribute__((always_inline))

/* Before a loop of 16: gcc 12 unrolls it in full first, then makes no vectors of the pieces. */
#if defined(__GNUC__) && !defined(__clang__)
#define DSV41_KEEP_LOOP _Pragma("GCC unroll 1")
#else
#define DSV41_KEEP_LOOP
#endif

/* The caller's arrays may start at any byte (a view into a file, a packed record). */
typedef uint32_t __attribute__((aligned(1), may_alias)) AnyBits;
typedef int32_t __attribute__((aligned(1), may_alias)) AnyInt32;
typedef float __attribute__((aligned(1), may_alias)) AnyFloat;

/* -inf is 0, +inf kKeyInf, and NaN of either sign above it: the subtraction wraps the negative
 * ones, which lie under -inf in the order of ordered integers, round to the top. */
static const uint32_t kKeyInf = 0xff000001u;
static const uint32_t kKeyNan = 0xff000002u;
static const uint32_t kKeyZero = 0x7f800001u;

DSV41_INLINE uint32_t raw_key(uint32_t bits) {
  const uint32_t ordered = bits ^ ((uint32_t)((int32_t)bits >> 31) & 0x7fffffffu);
  return ordered - 0x807fffffu;
}

/* All NaN equal, +0 equal to -0. Never larger than the raw key: one that is under a bound needs no
 * second look. */
DSV41_INLINE uint32_t equal_key(uint32_t raw) {
  if (raw > kKeyNan) return kKeyNan;
  return raw == kKeyZero ? kKeyZero - 1 : raw;
}

DSV41_INLINE uint32_t key_max(uint32_t a, uint32_t b) { return a > b ? a : b; }

DSV41_INLINE int64_t row_end(const Dsv41Ends* ends, int64_t row, int64_t width) {
  const AnyInt32* lens = (const AnyInt32*)ends->lens;
  const int64_t repeat = ends->repeat;
  int64_t end = lens[row / repeat];
  if (ends->draft) end += row % repeat - repeat + 1;
  if (end < 0) return 0;
  return end < width ? end : width;
}

#endif /* DSV41TOPK_CPU_KEYS_H_ */
