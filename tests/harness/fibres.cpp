// SPDX-License-Identifier: Apache-2.0
//
// See fibres.h. Also the double of Dsv41Runtime whose `launch` runs kernels here, so that
// csrc/launch.c is under test.

#include "fibres.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "abi.h"

#if defined(__SANITIZE_ADDRESS__)  // gcc's name, and the harness is built by gcc
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// The LDS of all kernels: platform_host.h puts every __shared__ object in this section.
extern "C" __attribute__((weak)) unsigned char __start_dsv41_lds[];
extern "C" __attribute__((weak)) unsigned char __stop_dsv41_lds[];

namespace harness {
namespace {

// ---- fibres -------------------------------------------------------------------------------------

#if defined(__x86_64__)
// swapcontext makes a system call each time for the signal mask: 20 times the cost of these few
// pushes.
extern "C" void harness_switch(void** save, void* load);
asm(R"(
.text
.type harness_switch, @function
harness_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size harness_switch, .-harness_switch
)");

void* fresh_stack(char* top, void (*entry)()) {
  // At entry the stack is as after a call: 8 bytes below a multiple of 16, with a return address
  // (none).
  void** sp = reinterpret_cast<void**>(top);
  *--sp = nullptr;
  *--sp = reinterpret_cast<void*>(entry);
  sp -= 6;
  std::memset(sp, 0, 6 * sizeof(void*));
  return sp;
}
#elif defined(__aarch64__)
extern "C" void harness_switch(void** save, void* load);
asm(R"(
.text
.type harness_switch, @function
harness_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size harness_switch, .-harness_switch
)");

void* fresh_stack(char* top, void (*entry)()) {
  void** sp = reinterpret_cast<void**>(top) - 20;
  std::memset(sp, 0, 20 * sizeof(void*));
  sp[11] = reinterpret_cast<void*>(entry);
  return sp;
}
#else
#error "the harness switches stacks by hand: add the instructions for this machine"
#endif

constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kGuardBytes =
    64 << 10;  // a multiple of every page size; an overflow faults instead of corrupting
constexpr size_t kStackAndGuardBytes = kStackBytes + kGuardBytes;

enum class State { kRunning, kBarrier, kOperation, kDone };

struct Lane {
  void* sp;
  char* stack;  // lowest usable address
  void* fake_stack;
  State state;
  Site site;
  const char* operation;
  uint64_t value;
};

struct Wave {
  Lane* lanes;
  unsigned count;
  uint64_t values[kWaveSize];
  uint64_t ballot;
  uint32_t operations;
  bool at_barrier;
  bool ended;
};

struct Failure {};  // thrown by the scheduler only: nothing may unwind through a fibre

struct Options {
  uint64_t seed = 1;
  int interleave =
      1;  // 1: another wave may run after every wave operation. 0: a wave runs on to its barrier
  int shuffle = 1;  // order of workgroups, of waves and of the lanes of a wave. 0: ascending
};

struct Counts {
  uint64_t launches, workgroups, barriers, wave_operations;
};

Options options;
Counts counts;
uint64_t
    launches_ever;  // not reset with the counts: an older launch's accesses are never this one's
char error_text_buffer[512];

Lane lanes[kMaxThreads];
Wave waves[kMaxThreads / kWaveSize];
char* stacks;
void* scheduler_sp;
Lane* current;
bool failed;
uint32_t workgroup_number;
uint32_t workgroup_barriers;
const Kernel* running_kernel;
const void* running_params;
const Kernel* kernels;

void write_error(const char* format, va_list list) {
  int n = std::snprintf(
      error_text_buffer, sizeof error_text_buffer,
      "%s, workgroup (%u, %u, %u), seed %llu: ", running_kernel ? running_kernel->name : "harness",
      place.workgroup[0], place.workgroup[1], place.workgroup[2],
      static_cast<unsigned long long>(options.seed));
  std::vsnprintf(error_text_buffer + n, sizeof error_text_buffer - n, format, list);
}

[[noreturn]] void error(const char* format, ...) {
  va_list list;
  va_start(list, format);
  write_error(format, list);
  va_end(list);
  throw Failure();
}

// ASan must be told of every change of stack, or it takes the other stack's variables for overflows
// of this one.
#if defined(__SANITIZE_ADDRESS__)
void* scheduler_fake_stack;
const void* scheduler_stack_bottom;
size_t scheduler_stack_bytes;

void switch_to_scheduler(Lane* lane, bool for_ever) {
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &lane->fake_stack, scheduler_stack_bottom,
                                 scheduler_stack_bytes);
  harness_switch(&lane->sp, scheduler_sp);
  __sanitizer_finish_switch_fiber(lane->fake_stack, &scheduler_stack_bottom,
                                  &scheduler_stack_bytes);
}

void switch_to_lane(Lane* lane) {
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, lane->stack, kStackBytes);
  harness_switch(&scheduler_sp, lane->sp);
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
}

void lane_begins() {
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack_bottom, &scheduler_stack_bytes);
}

// A failed launch leaves fibres in the middle of their functions, whose red zones would stay.
void clean_stack(Lane* lane) { __asan_unpoison_memory_region(lane->stack, kStackBytes); }
#else
void switch_to_scheduler(Lane* lane, bool) { harness_switch(&lane->sp, scheduler_sp); }
void switch_to_lane(Lane* lane) { harness_switch(&scheduler_sp, lane->sp); }
void lane_begins() {}
void clean_stack(Lane*) {}
#endif

void lane_main() {
  lane_begins();
  running_kernel->call(running_params);
  current->state = State::kDone;
  switch_to_scheduler(current, true);
  std::abort();
}

void resume(Lane* lane, unsigned thread) {
  current = lane;
  place.thread = thread;
  lane->state = State::kRunning;
  switch_to_lane(lane);
  current = nullptr;
  if (failed) throw Failure();
}

void make_stacks() {
  if (stacks) return;
  void* p = mmap(nullptr, kMaxThreads * kStackAndGuardBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) error("no memory for %u stacks", kMaxThreads);
  stacks = static_cast<char*>(p);
  for (unsigned i = 0; i < kMaxThreads; i++) {
    if (mprotect(stacks + i * kStackAndGuardBytes, kGuardBytes, PROT_NONE))
      error("no guard page below a stack");
    lanes[i].stack = stacks + i * kStackAndGuardBytes + kGuardBytes;
  }
}

// ---- a workgroup --------------------------------------------------------------------------------

void describe(const Lane& lane, char (&text)[256]) {
  if (lane.state == State::kDone)
    std::snprintf(text, sizeof text, "at the kernel's end");
  else
    std::snprintf(text, sizeof text, "at %s (%s:%d)",
                  lane.state == State::kBarrier ? "barrier" : lane.operation, lane.site.file,
                  lane.site.line);
}

bool same_stand(const Lane& a, const Lane& b) {
  if (a.state != b.state) return false;
  if (a.state == State::kDone) return true;
  if (a.site.line != b.site.line || std::strcmp(a.site.file, b.site.file) != 0) return false;
  return a.state == State::kBarrier || std::strcmp(a.operation, b.operation) == 0;
}

[[noreturn]] void divergence(unsigned thread_a, unsigned thread_b) {
  char a[256], b[256];
  describe(lanes[thread_a], a);
  describe(lanes[thread_b], b);
  error("divergence: thread %u stands %s, thread %u %s", thread_a, a, thread_b, b);
}

// Runs every lane of the wave to its next stand, then does what they all stand at.
void step(Wave& wave, std::mt19937_64& random) {
  const unsigned first = static_cast<unsigned>(wave.lanes - lanes);
  unsigned order[kWaveSize];
  std::iota(order, order + wave.count, 0u);
  if (options.shuffle) std::shuffle(order, order + wave.count, random);
  for (unsigned i = 0; i < wave.count; i++) resume(wave.lanes + order[i], first + order[i]);
  for (unsigned i = 1; i < wave.count; i++)
    if (!same_stand(wave.lanes[0], wave.lanes[i])) divergence(first, first + i);
  switch (wave.lanes[0].state) {
    case State::kDone:
      wave.ended = true;
      break;
    case State::kBarrier:
      wave.at_barrier = true;
      break;
    default:
      counts.wave_operations++;
      wave.operations++;
      wave.ballot = 0;
      for (unsigned i = 0; i < kWaveSize; i++) {
        wave.values[i] = i < wave.count ? wave.lanes[i].value : 0;
        wave.ballot |= (wave.values[i] & 1) << i;
      }
  }
}

// Unchecked and no memset: the red zones between the objects are overwritten too.
__attribute__((noinline, no_sanitize("address"))) void poison_lds(uint64_t pattern) {
  volatile unsigned char* p = __start_dsv41_lds;
  for (; p != __stop_dsv41_lds; p++)
    *p = static_cast<unsigned char>(pattern >> 8 * (reinterpret_cast<uintptr_t>(p) & 7));
}

void run_workgroup(std::mt19937_64& random) {
  counts.workgroups++;
  workgroup_barriers = 0;
  // Three kinds of dirt: a NaN's bits, zeros' opposite, and whatever the seed says.
  const uint64_t patterns[] = {0x7fc000017fc00001ull, ~0ull, random()};
  poison_lds(options.shuffle ? patterns[random() % 3] : patterns[0]);
  const unsigned count = (place.threads + kWaveSize - 1) / kWaveSize;
  for (unsigned t = 0; t < place.threads; t++) {
    clean_stack(&lanes[t]);
    // Stacks that start at the same offset of a page would all fight for the same few cache sets.
    lanes[t].sp = fresh_stack(lanes[t].stack + kStackBytes - 64 * (t % 61), lane_main);
  }
  for (unsigned w = 0; w < count; w++) {
    waves[w] = Wave();
    waves[w].lanes = lanes + w * kWaveSize;
    waves[w].count = std::min(kWaveSize, place.threads - w * kWaveSize);
  }
  std::vector<unsigned> runnable;
  for (;;) {
    runnable.clear();
    for (unsigned w = 0; w < count; w++)
      if (!waves[w].ended && !waves[w].at_barrier) runnable.push_back(w);
    while (!runnable.empty()) {
      const size_t pick = options.shuffle ? random() % runnable.size() : 0;
      Wave& wave = waves[runnable[pick]];
      do step(wave, random);
      while (!wave.ended && !wave.at_barrier && !options.interleave);
      if (wave.ended || wave.at_barrier) runnable.erase(runnable.begin() + static_cast<long>(pick));
    }
    for (unsigned w = 1; w < count; w++)
      if (!same_stand(waves[0].lanes[0], waves[w].lanes[0])) divergence(0, w * kWaveSize);
    if (waves[0].ended) return;
    counts.barriers++;
    workgroup_barriers++;
    for (unsigned w = 0; w < count; w++) waves[w].at_barrier = false;
  }
}

// ---- faults -------------------------------------------------------------------------------------

#if defined(__SANITIZE_ADDRESS__)
struct FaultHandler {};  // ASan's own report is better
#else
// An access outside of every block (helpers/buffers.py puts a page that faults behind each) ends
// the launch, not the process.
void on_fault(int signal, siginfo_t* info, void* context) {
  if (!current) {  // not a kernel's
    std::signal(signal, SIG_DFL);
    return;
  }
#if defined(__x86_64__)
  const void* pc =
      reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#else
  const void* pc = reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.pc);
#endif
  Dl_info library{};
  dladdr(pc, &library);
  fail("fault: thread %u at address %p [+0x%lx]", place.thread, info->si_addr,
       static_cast<long>(static_cast<const char*>(pc) -
                         static_cast<const char*>(library.dli_fbase)) +
           1);
}

class FaultHandler {
 public:
  FaultHandler() {
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;  // it leaves by a switch of stacks, not by returning
    sigaction(SIGSEGV, &action, &segv_);
    sigaction(SIGBUS, &action, &bus_);
  }
  ~FaultHandler() {
    sigaction(SIGSEGV, &segv_, nullptr);
    sigaction(SIGBUS, &bus_, nullptr);
  }

 private:
  struct sigaction segv_, bus_;
};
#endif

// ---- the runtime double -------------------------------------------------------------------------

constexpr int kErrorDivergence = 719;  // any positive code: the text says what happened

int load(int, const void*, void** module) {
  *module = &kernels;
  return 0;
}

int get_function(void*, const char* name, void** function) {
  for (const Kernel* k = kernels; k; k = k->next)
    if (std::strcmp(k->name, name) == 0) {
      *function = const_cast<Kernel*>(k);
      return 0;
    }
  return 500;
}

int launch(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
           unsigned block_y, unsigned block_z, unsigned lds_bytes, void*, void** params,
           void**) try {
  running_kernel = static_cast<const Kernel*>(function);
  place = Place();
  error_text_buffer[0] = 0;
  failed = false;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0) error("an empty grid");
  if (block_x == 0 || block_x > kMaxThreads || block_y != 1 || block_z != 1)
    error("a workgroup of %u x %u x %u threads", block_x, block_y, block_z);
  if (lds_bytes) error("dynamic LDS");
  make_stacks();
  [[maybe_unused]] const FaultHandler handler;
  counts.launches++;
  launches_ever++;
  running_params = params[0];
  place.threads = block_x;
  place.grid[0] = grid_x, place.grid[1] = grid_y, place.grid[2] = grid_z;
  std::mt19937_64 random(options.seed + 0x9e3779b97f4a7c15ull * counts.launches);
  std::vector<uint64_t> order(static_cast<uint64_t>(grid_x) * grid_y * grid_z);
  std::iota(order.begin(), order.end(), uint64_t{0});
  if (options.shuffle) std::shuffle(order.begin(), order.end(), random);
  for (uint64_t i : order) {
    workgroup_number = static_cast<uint32_t>(i);
    place.workgroup[0] = static_cast<unsigned>(i % grid_x);
    place.workgroup[1] = static_cast<unsigned>(i / grid_x % grid_y);
    place.workgroup[2] = static_cast<unsigned>(i / grid_x / grid_y);
    run_workgroup(random);
  }
  return 0;
} catch (const Failure&) {
  return kErrorDivergence;
}

int device_now = 0;
int compute_unit_count = 304;

int current_device(int* device) { return *device = device_now, 0; }
int set_device(int device) { return device_now = device, 0; }
int compute_units(int, int* count) { return *count = compute_unit_count, 0; }
int arch(int, char* text, size_t size) {
  return std::snprintf(text, size, "gfx942:sramecc+:xnack-"), 0;
}
const char* error_text(int code) {
  return code == kErrorDivergence ? error_text_buffer : "no such kernel";
}

const Dsv41Runtime runtime = {"harness",      1,          load,          get_function, launch,
                              current_device, set_device, compute_units, arch,         error_text};

}  // namespace

Place place;

void barrier(Site site) {
  current->state = State::kBarrier;
  current->site = site;
  switch_to_scheduler(current, false);
}

const uint64_t* exchange(uint64_t value, const char* operation, Site site) {
  Lane* lane = current;
  lane->state = State::kOperation;
  lane->site = site;
  lane->operation = operation;
  lane->value = value;
  switch_to_scheduler(lane, false);
  return waves[(lane - lanes) / kWaveSize].values;
}

unsigned live_lanes() { return waves[(current - lanes) / kWaveSize].count; }

uint64_t ballot(bool predicate, Site site) {
  Lane* lane = current;
  exchange(predicate, "ballot", site);
  return waves[(lane - lanes) / kWaveSize].ballot;
}

Moment moment() {
  const unsigned wave = place.thread / kWaveSize;
  return {launches_ever,
          workgroup_number,
          workgroup_barriers,
          waves[wave].operations,
          static_cast<uint16_t>(wave),
          static_cast<uint16_t>(place.thread % kWaveSize)};
}

bool is_shared(const void* pointer) {
  const char* p = static_cast<const char*>(pointer);
  return current && (p < stacks || p >= stacks + kMaxThreads * kStackAndGuardBytes);
}

bool is_lds(const void* pointer) {
  return pointer >= __start_dsv41_lds && pointer < __stop_dsv41_lds;
}

void fail(const char* format, ...) {
  va_list list;
  va_start(list, format);
  write_error(format, list);
  va_end(list);
  failed = true;
  switch_to_scheduler(current, true);
  std::abort();
}

Kernel::Kernel(const char* name_, void (*call_)(const void*))
    : name(name_), call(call_), next(kernels) {
  kernels = this;
}

}  // namespace harness

extern "C" {

const Dsv41Runtime* harness_runtime() { return &harness::runtime; }

void harness_configure(uint64_t seed, int interleave, int shuffle, int compute_units) {
  harness::options = {seed, interleave, shuffle};
  harness::compute_unit_count = compute_units;
  harness::counts = {};
}

void harness_counts(uint64_t* launches, uint64_t* workgroups, uint64_t* barriers,
                    uint64_t* wave_operations) {
  *launches = harness::counts.launches;
  *workgroups = harness::counts.workgroups;
  *barriers = harness::counts.barriers;
  *wave_operations = harness::counts.wave_operations;
}

/* Under ASan, make accesses to [begin, end) findings, and take that back. Elsewhere nothing. */
void harness_forbid([[maybe_unused]] void* begin, [[maybe_unused]] void* end) {
#if defined(__SANITIZE_ADDRESS__)
  if (begin < end)
    __asan_poison_memory_region(begin, static_cast<char*>(end) - static_cast<char*>(begin));
#endif
}

void harness_allow([[maybe_unused]] void* begin, [[maybe_unused]] void* end) {
#if defined(__SANITIZE_ADDRESS__)
  if (begin < end)
    __asan_unpoison_memory_region(begin, static_cast<char*>(end) - static_cast<char*>(begin));
#endif
}

const char* harness_error() { return harness::error_text_buffer; }
}
