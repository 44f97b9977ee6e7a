// SPDX-License-Identifier: Apache-2.0
//
// Every function of csrc/device/platform.h once, for test_platform.py: the harness and the gfx942
// code object must give the same words. One workgroup; thread t reads in[t] and writes word i of
// its results to out[i * threads + t].

#include "device/platform.h"

namespace {

struct ProbeArgs {
  const uint32_t* in;
  uint32_t* out;
};

constexpr int kProbeThreads = 256;

struct ProbeLds {
  uint32_t words[kProbeThreads];
  int sum, low;
  uint32_t bits, high;
};

}  // namespace

DSV41_KERNEL(256) void probe_kernel(ProbeArgs args) {
  using namespace dsv41;
  __shared__ ProbeLds lds;
  const int t = thread_id(), lane = lane_id(), wave = t / kWaveSize;
  const uint32_t word = args.in[t];
  const int value = static_cast<int>(word);
  const float number = bits_float(word);
  int next = 0;
  const auto put = [&](uint32_t result) { args.out[next++ * kProbeThreads + t] = result; };

  put(static_cast<uint32_t>(lane));
  put(static_cast<uint32_t>(workgroup_x() + workgroup_y()));
  put(static_cast<uint32_t>(uniform(wave * 3)));
  const WaveMask odd = ballot(word & 1);
  put(static_cast<uint32_t>(odd));
  put(static_cast<uint32_t>(static_cast<uint64_t>(odd) >> 32));
  put(static_cast<uint32_t>(count(odd)));
  put(static_cast<uint32_t>(count_below(odd, 7)));
  put(static_cast<uint32_t>(lowest_lane(odd | WaveMask{1} << (kWaveSize - 1))));
  put(static_cast<uint32_t>(shuffle(value, (lane * 7 + 3) % kWaveSize)));
  put(static_cast<uint32_t>(read_lane(value, 5)));
  put(float_bits(swap_lanes<1>(number)));
  put(float_bits(swap_lanes<2>(number)));
  put(float_bits(swap_lanes<3>(number)));
  put(float_bits(swap_lanes<7>(number)));
  put(float_bits(swap_lanes<15>(number)));
  put(static_cast<uint32_t>(wave_scan_add(value)));
  const WaveMask nan = unordered_lanes(number, bits_float(args.in[kProbeThreads - 1 - t]));
  put(static_cast<uint32_t>(nan));
  put(static_cast<uint32_t>(static_cast<uint64_t>(nan) >> 32));

  lds.words[t] = word;
  if (t == 0) {
    lds.sum = 0;
    lds.low = 0x7fffffff;
    lds.bits = 0;
    lds.high = 0;
  }
  wave_barrier();
  put(lds.words[t ^ 1]);
  barrier();
  put(lds.words[kProbeThreads - 1 - t]);
  lds_add(&lds.sum, value);
  lds_min(&lds.low, value);
  lds_or(&lds.bits, word & 0x00ff00ffu);
  lds_max(&lds.high, word);
  barrier();
  put(static_cast<uint32_t>(lds.sum));
  put(static_cast<uint32_t>(lds.low));
  put(lds.bits);
  put(lds.high);
}
