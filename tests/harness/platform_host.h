/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's filling of csrc/device/platform.h, for the harness alone.
 */
#ifndef DSV41TOPK_TESTS_HARNESS_PLATFORM_HOST_H_
#define DSV41TOPK_TESTS_HARNESS_PLATFORM_HOST_H_

#include "fibres.h"

#define __global__
#define __device__
#define __shared__ static __attribute__((section("dsv41_lds")))

#endif  // DSV41TOPK_TESTS_HARNESS_PLATFORM_HOST_H_
