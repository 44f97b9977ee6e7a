/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract's order of values as unsigned integers: a larger key is a better value.
 *
 * -0 and +0 share a key, every NaN has the largest one, and no value has key 0, which stands for
 * "not live".
 */
#ifndef DSV41TOPK_DEVICE_ORDER_H_
#define DSV41TOPK_DEVICE_ORDER_H_

#include "device/platform.h"

namespace dsv41 {

constexpr uint32_t kMinusInfBits = 0xff800000u;
constexpr uint32_t kPlusInfBits = 0x7f800000u;

constexpr uint32_t kKeyNan = 0xffffffffu;
constexpr uint32_t kKeyLargest = 0xff7fffffu; /* of the largest finite number */
constexpr uint32_t kKeyPlusInf = 0xff800000u;
constexpr uint32_t kKeyMinusInf = 0x007fffffu; /* of -inf */
constexpr uint32_t kKeyNotLive = 0;

/* The key of a value that is no NaN. */
DSV41_INLINE uint32_t key_of_number(float value) {
  uint32_t bits = float_bits(value);
  uint32_t flip = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u;
  uint32_t key = bits ^ flip;
  return key == 0x7fffffffu ? 0x80000000u : key; /* -0 */
}

/* By its bits: a compiler may take it that no value is NaN. */
DSV41_INLINE bool is_nan(uint32_t bits) { return (bits & 0x7fffffffu) > kPlusInfBits; }

/* The key of any value. */
DSV41_INLINE uint32_t key_of(float value) {
  return is_nan(float_bits(value)) ? kKeyNan : key_of_number(value);
}

/* The value of a number's key. */
DSV41_INLINE float number_of_key(uint32_t key) {
  uint32_t flip = key & 0x80000000u ? 0x80000000u : 0xffffffffu;
  return bits_float(key ^ flip);
}

}  // namespace dsv41

#endif  // DSV41TOPK_DEVICE_ORDER_H_
