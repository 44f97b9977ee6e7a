/* SPDX-License-Identifier: Apache-2.0
 *
 * The workgroup scheduler of rung 3: a fibre a lane, on one host thread.
 *
 * A lane runs until it meets a barrier, a wave operation or its end; then the scheduler runs the
 * next lane. A wave operation happens when every lane of the wave stands at the same one, a barrier
 * when every wave stands at it. Lanes that stand at different ones, or have returned while others
 * wait, are an error with both places in its text: nothing hangs. (This is stricter than gfx942,
 * where a wave operation among the lanes of a branch is defined; on sm_90 it is not, and the
 * kernels serve both.)
 */
#ifndef DSV41TOPK_TESTS_HARNESS_FIBRES_H_
#define DSV41TOPK_TESTS_HARNESS_FIBRES_H_

#include <cstdint>

namespace harness {

#ifndef HARNESS_WAVE_SIZE
#define HARNESS_WAVE_SIZE 64  // 32 on sm_90: the flavour `wave32`
#endif
constexpr unsigned kWaveSize = HARNESS_WAVE_SIZE;
constexpr unsigned kMaxThreads = 1024;

/* Where in the kernels a lane stands. */
struct Site {
  const char* file;
  int line;
};

/* What the running lane is told about itself. */
struct Place {
  unsigned thread;
  unsigned workgroup[3];
  unsigned grid[3];
  unsigned threads;
};
extern Place place;

/* All lanes of the workgroup have arrived. */
void barrier(Site site);

/* All lanes of the wave have arrived; the values they brought, by lane. The array holds until the
 * lane's next wave operation. `operation` tells apart two that share a line. */
const uint64_t* exchange(uint64_t value, const char* operation, Site site);

/* Lanes of the running lane's wave: fewer than a wave's in the last one of an odd workgroup. */
unsigned live_lanes();

/* The same rendezvous, with bit i set where lane i brought true. */
uint64_t ballot(bool predicate, Site site);

/* What orders an access among others: see races.cpp. */
struct Moment {
  uint64_t launch;
  uint32_t workgroup, barriers,
      operations;  // so far: barriers of the workgroup, operations of the wave
  uint16_t wave, lane;
};
Moment moment();
/* Whether other lanes can see it: a lane is running, and this is not in its stack. */
bool is_shared(const void* pointer);
bool is_lds(const void* pointer);

/* The kernels found in this library. Each file registers its own at start-up. */
struct Kernel {
  const char* name;
  void (*call)(const void* params);
  const Kernel* next;
  Kernel(const char* name, void (*call)(const void*));
};

template <auto function>
struct Call;
template <class Args, void (*function)(Args)>
struct Call<function> {
  static void with(const void* params) { function(*static_cast<const Args*>(params)); }
};

#define HARNESS_KERNEL(name) \
  static const harness::Kernel registered_##name(#name, harness::Call<name>::with);

/* Fail the launch from inside a kernel: the text ends in the error of the launch. */
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace harness

#endif  // DSV41TOPK_TESTS_HARNESS_FIBRES_H_
