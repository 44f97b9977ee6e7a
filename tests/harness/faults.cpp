// SPDX-License-Identifier: Apache-2.0
//
// Kernels with known faults, one each: the harness is worth what it finds (test_harness.py). Not
// part of the product.

#include "platform_host.h"

namespace {

struct FaultArgs {
  int32_t* out;  // one word a thread
  int32_t count;
};

struct SharedSum {
  int32_t of_wave[harness::kMaxThreads / harness::kWaveSize];
};

// Right: the sum of all thread numbers, over waves and then over the workgroup.
DSV41_KERNEL(1024) void harness_right_kernel(FaultArgs args) {
  __shared__ SharedSum lds;
  const uint64_t* values =
      harness::exchange(harness::place.thread, "exchange", {__FILE__, __LINE__});
  int32_t sum = 0;
  for (unsigned i = 0; i < harness::kWaveSize; i++) sum += static_cast<int32_t>(values[i]);
  if (harness::place.thread % harness::kWaveSize == 0)
    lds.of_wave[harness::place.thread / harness::kWaveSize] = sum;
  harness::barrier({__FILE__, __LINE__});
  int32_t total = 0;
  for (unsigned i = 0; i < harness::place.threads / harness::kWaveSize; i++)
    total += lds.of_wave[i];
  if (harness::place.workgroup[0] == 0) args.out[harness::place.thread] = total;
}

// The barrier between writing and reading LDS is not there.
DSV41_KERNEL(1024) void harness_missing_barrier_kernel(FaultArgs args) {
  __shared__ int32_t words[1024];
  words[harness::place.thread] = static_cast<int32_t>(harness::place.thread);
  args.out[harness::place.thread] = words[harness::place.threads - 1 - harness::place.thread];
}

// LDS is read before anybody wrote it.
DSV41_KERNEL(1024) void harness_unset_lds_kernel(FaultArgs args) {
  __shared__ int32_t words[1024];
  args.out[harness::place.thread] = words[harness::place.thread];
}

// Right by luck in most schedules: lane 0 writes, the other lanes read, and nothing is between.
DSV41_KERNEL(1024) void harness_missing_wave_sync_kernel(FaultArgs args) {
  __shared__ int32_t words[harness::kMaxThreads / harness::kWaveSize];
  const unsigned wave = harness::place.thread / harness::kWaveSize;
  if (harness::place.thread % harness::kWaveSize == 0) words[wave] = 1;
  if (args.count) harness::ballot(true, {__FILE__, __LINE__});
  args.out[harness::place.thread] = words[wave];
}

// Every workgroup writes the same words.
DSV41_KERNEL(1024) void harness_workgroups_overlap_kernel(FaultArgs args) {
  if (args.count)
    __atomic_fetch_add(args.out + harness::place.thread, 1, __ATOMIC_RELAXED);
  else
    args.out[harness::place.thread] = 1;
}

DSV41_KERNEL(1024) void harness_missed_operation_kernel(FaultArgs args) {
  if (harness::place.thread % harness::kWaveSize != 5)
    args.out[0] = harness::ballot(true, {__FILE__, __LINE__}) != 0;
}

DSV41_KERNEL(1024) void harness_missed_barrier_kernel(FaultArgs) {
  if (harness::place.thread < 128) harness::barrier({__FILE__, __LINE__});
}

DSV41_KERNEL(1024) void harness_two_operations_kernel(FaultArgs args) {
  if (harness::place.thread & 1)
    args.out[0] = harness::ballot(true, {__FILE__, __LINE__}) != 0;
  else
    args.out[0] = static_cast<int32_t>(harness::exchange(1, "exchange", {__FILE__, __LINE__})[0]);
}

// One word past the buffer that the test made, and past the LDS array: for the sanitizers.
DSV41_KERNEL(1024) void harness_read_past_end_kernel(FaultArgs args) {
  if (harness::place.thread == 0) args.out[0] = args.out[args.count];
}

DSV41_KERNEL(1024) void harness_lds_past_end_kernel(FaultArgs args) {
  __shared__ int32_t words[64];
  volatile int32_t* p = words;
  if (harness::place.thread == 0) args.out[0] = p[args.count];
}

}  // namespace

HARNESS_KERNEL(harness_right_kernel)
HARNESS_KERNEL(harness_missing_barrier_kernel)
HARNESS_KERNEL(harness_unset_lds_kernel)
HARNESS_KERNEL(harness_missing_wave_sync_kernel)
HARNESS_KERNEL(harness_workgroups_overlap_kernel)
HARNESS_KERNEL(harness_missed_operation_kernel)
HARNESS_KERNEL(harness_missed_barrier_kernel)
HARNESS_KERNEL(harness_two_operations_kernel)
HARNESS_KERNEL(harness_read_past_end_kernel)
HARNESS_KERNEL(harness_lds_past_end_kernel)
