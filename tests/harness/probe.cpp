// SPDX-License-Identifier: Apache-2.0
//
// probe.hip for the harness.

#include "probe.hip"

HARNESS_KERNEL(probe_kernel)
