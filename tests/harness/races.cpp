// SPDX-License-Identifier: Apache-2.0
//
// A race detector for the kernels, linked into the flavour `races` alone.
//
// gcc's -fsanitize=thread makes a call of every memory access of the kernels; these are the
// functions that it calls. What orders accesses on the GPU is simple, so no vector clocks are
// needed: a barrier orders the waves of a workgroup, a wave operation (wave_sync among them) the
// lanes of a wave, and nothing orders workgroups but the end of the launch. Two accesses of which
// one is a write, not both atomic, with none of these between them, are a race in every schedule,
// whether or not this one showed it.

#if defined(HARNESS_RACES)

#include <dlfcn.h>

#include <cstring>
#include <unordered_map>

#include "fibres.h"

namespace {

// The last write and the last read of 4 bytes; `bytes` are those that were touched.
struct Record {
  harness::Moment write, read;
  const void* write_place;
  const void* read_place;
  uint8_t write_bytes, read_bytes;
  bool write_atomic, read_atomic;
  bool read_by_waves, read_by_lanes, read_by_workgroups;  // by more than one, at that moment
};

constexpr uintptr_t kPageBytes = 4096;
struct Page {
  Record records[kPageBytes / 4];
};
std::unordered_map<uintptr_t, Page*> pages;
uintptr_t last_number = ~uintptr_t{0};
Page* last_page;

Record& record_of(uintptr_t address) {
  const uintptr_t number = address / kPageBytes;
  if (number != last_number) {
    Page*& page = pages[number];
    if (!page) page = new Page();
    last_number = number;
    last_page = page;
  }
  return last_page->records[address % kPageBytes / 4];
}

// Whether nothing orders an access at `before` and one at `now`, made by another lane.
bool unordered(const harness::Moment& before, const harness::Moment& now, bool lds,
               bool many_workgroups, bool many_waves, bool many_lanes) {
  if (before.launch != now.launch) return false;
  if (before.workgroup != now.workgroup || many_workgroups) return !lds;  // each has LDS of its own
  if (before.barriers != now.barriers) return false;
  if (before.wave != now.wave || many_waves) return true;
  return before.operations == now.operations && (before.lane != now.lane || many_lanes);
}

[[noreturn]] void report(const char* what, const harness::Moment& before, const void* before_place,
                         const harness::Moment& now, const void* now_place, uintptr_t address) {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&report), &info);
  const auto offset = [&](const void* p) {
    return static_cast<long>(static_cast<const char*>(p) -
                             static_cast<const char*>(info.dli_fbase));
  };
  harness::fail(
      "race: %s, %s, thread %u of workgroup %u [+0x%lx] and thread %u of workgroup %u [+0x%lx]",
      what, harness::is_lds(reinterpret_cast<void*>(address)) ? "LDS" : "memory",
      before.wave * harness::kWaveSize + before.lane, before.workgroup, offset(before_place),
      now.wave * harness::kWaveSize + now.lane, now.workgroup, offset(now_place));
}

void touch(uintptr_t address, uint8_t bytes, bool write, bool atomic, const void* from,
           const harness::Moment& now) {
  Record& r = record_of(address);
  const bool lds = harness::is_lds(reinterpret_cast<void*>(address));
  if ((r.write_bytes & bytes) && !(atomic && r.write_atomic) &&
      unordered(r.write, now, lds, false, false, false))
    report(write ? "write after write" : "read after write", r.write, r.write_place, now, from,
           address);
  if (write) {
    if ((r.read_bytes & bytes) && !(atomic && r.read_atomic) &&
        unordered(r.read, now, lds, r.read_by_workgroups, r.read_by_waves, r.read_by_lanes))
      report("write after read", r.read, r.read_place, now, from, address);
    r.write = now;
    r.write_place = from;
    r.write_bytes = bytes;
    r.write_atomic = atomic;
    return;
  }
  const bool same_launch = r.read_bytes && r.read.launch == now.launch;
  const bool same_workgroup = same_launch && r.read.workgroup == now.workgroup;
  const bool same_interval = same_workgroup && r.read.barriers == now.barriers;
  r.read_by_workgroups = same_launch && !lds && (r.read_by_workgroups || !same_workgroup);
  r.read_by_waves = same_interval && (r.read_by_waves || r.read.wave != now.wave);
  r.read_by_lanes = same_interval && r.read.operations == now.operations &&
                    (r.read_by_lanes || r.read.lane != now.lane);
  r.read = now;
  r.read_place = from;
  r.read_bytes = bytes;
  r.read_atomic = atomic;
}

void access(const void* pointer, size_t size, bool write, bool atomic, const void* from) {
  if (!harness::is_shared(pointer)) return;
  const harness::Moment now = harness::moment();
  for (uintptr_t at = reinterpret_cast<uintptr_t>(pointer), end = at + size; at < end;) {
    const unsigned first = at % 4,
                   count = static_cast<unsigned>(end - at < 4 - first ? end - at : 4 - first);
    touch(at, static_cast<uint8_t>(((1u << count) - 1) << first), write, atomic, from, now);
    at += count;
  }
}

}  // namespace

#define HERE __builtin_return_address(0)
#define PLAIN(size)                                                                  \
  void __tsan_read##size(void* p) { access(p, size, false, false, HERE); }           \
  void __tsan_write##size(void* p) { access(p, size, true, false, HERE); }           \
  void __tsan_unaligned_read##size(void* p) { access(p, size, false, false, HERE); } \
  void __tsan_unaligned_write##size(void* p) { access(p, size, true, false, HERE); } \
  void __tsan_volatile_read##size(void* p) { access(p, size, false, false, HERE); }  \
  void __tsan_volatile_write##size(void* p) { access(p, size, true, false, HERE); }

#define ATOMIC(bits, Type)                                                                         \
  Type __tsan_atomic##bits##_load(const volatile Type* p, int) {                                   \
    access(const_cast<Type*>(p), sizeof(Type), false, true, HERE);                                 \
    return *p;                                                                                     \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile Type* p, Type v, int) {                                \
    access(const_cast<Type*>(p), sizeof(Type), true, true, HERE);                                  \
    *p = v;                                                                                        \
  }                                                                                                \
  UPDATE(bits, Type, exchange, v)                                                                  \
  UPDATE(bits, Type, fetch_add, before + v)                                                        \
  UPDATE(bits, Type, fetch_sub, before - v)                                                        \
  UPDATE(bits, Type, fetch_and, before& v)                                                         \
  UPDATE(bits, Type, fetch_or, before | v)                                                         \
  UPDATE(bits, Type, fetch_xor, before ^ v)                                                        \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile Type* p, Type* expected, Type v, int, \
                                                    int) {                                         \
    access(const_cast<Type*>(p), sizeof(Type), true, true, HERE);                                  \
    if (*p != *expected) {                                                                         \
      *expected = *p;                                                                              \
      return 0;                                                                                    \
    }                                                                                              \
    *p = v;                                                                                        \
    return 1;                                                                                      \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile Type* p, Type* expected, Type v, int a, \
                                                  int b) {                                         \
    return __tsan_atomic##bits##_compare_exchange_strong(p, expected, v, a, b);                    \
  }

#define UPDATE(bits, Type, name, after)                              \
  Type __tsan_atomic##bits##_##name(volatile Type* p, Type v, int) { \
    access(const_cast<Type*>(p), sizeof(Type), true, true, HERE);    \
    const Type before = *p;                                          \
    (void)v;                                                         \
    *p = static_cast<Type>(after);                                   \
    return before;                                                   \
  }

extern "C" {
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

void __tsan_read_range(void* p, size_t size) { access(p, size, false, false, HERE); }
void __tsan_write_range(void* p, size_t size) { access(p, size, true, false, HERE); }
void __tsan_atomic_thread_fence(int) {}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}

#endif  // HARNESS_RACES
