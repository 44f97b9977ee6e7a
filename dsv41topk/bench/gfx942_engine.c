/* SPDX-License-Identifier: Apache-2.0
 *
 * The inner loop of the gfx942 emulator: look up the function of each wave's program counter,
 * count, call it; and the waves of a workgroup taken in turns up to their barriers. Compiled when
 * the emulator is first used (gfx942.py's emulator.py); no Python runs per instruction.
 *
 * Instructions that the emulator behind it has no function for, or a wrong one, are executed here:
 * DPP, ds_swizzle, ds_permute, ds_bpermute, program counter arithmetic, global_load_lds and GPR
 * indexing.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

typedef uint32_t u32;
typedef uint64_t u64;

enum { kLanes = 64, kSgprs = 260, kVgprs = 256 };
/* Places in a wave's scalar file, as the emulator lays it out. */
enum {
  kExec = 126,
  kM0 = 124,
  kGprIndexMode = 249,
  kGprIndex = 250,
  kPc = 256,
  kHwId = 248,
};

enum Memory { kNoMemory, kLds, kLdsAtomic, kGlobal };

enum Kind {
  kCall,
  kBarrier,
  kGetPc,
  kSetPc,
  kSwapPc,
  kCallPc,
  kGlobalLoadLds,
  kSwizzle,
  kBpermute,
  kPermute,
  kDpp,
  kIndexOn,
  kIndexOff
};

/* One dword of the image. `fn` NULL: not compiled yet. */
struct Op {
  void* fn;
  unsigned char nargs, arg[6], kind, memory, width, two, areg, sreg, data, valu;
  int offset, offset1;
  u64 alternative; /* kDpp: the same instruction without DPP */
};

enum Result { kEnd, kAtBarrier, kCompile, kBudget, kBadPc, kGprIndexing, kFault };

struct Wave {
  u32* sgpr;
  u32* vgpr;
  void* bufs[6]; /* scalars, vectors, memory, LDS, scratch, accumulators */
  u64 *count, *lanes, *extra;
  int state; /* kBudget: runnable */
};

struct Image {
  struct Op* ops;
  u64 base, first, end; /* the kernel's code: dwords first to end - 1 of the image at base */
  int measure;          /* LDS passes and memory lines too */
};

/* Passes through 32 LDS banks of 4 bytes. Lanes go in groups of 128 bytes; a bank serves one
 * distinct dword a pass (equal ones broadcast), or, for atomics, one lane a pass. */
static u32 lds_passes(const u32* address, u64 exec, int offset, int width, int atomic) {
  int group = width >= 16 ? 8 : width >= 8 ? 16 : 32;
  u32 total = 0;
  for (int first = 0; first < kLanes; first += group) {
    u32 seen[128], hits[32] = {0}, worst = 0;
    int n = 0;
    for (int lane = first; lane < first + group; lane++) {
      if (!(exec >> lane & 1)) continue;
      for (int word = 0; word < (width + 3) / 4; word++) {
        u32 dword = (address[lane] + (u32)offset) / 4 + (u32)word, bank = dword & 31;
        int duplicate = 0;
        for (int i = 0; !atomic && i < n && !duplicate; i++) duplicate = seen[i] == dword;
        if (duplicate) continue;
        seen[n++] = dword;
        if (++hits[bank] > worst) worst = hits[bank];
      }
    }
    total += worst;
  }
  return total;
}

static u64 address_of(const struct Op* op, const u32* sgpr, const u32* vgpr, int lane) {
  u64 address = (u64)(int64_t)op->offset + vgpr[kLanes * op->areg + lane];
  return op->sreg < 124 ? address + (sgpr[op->sreg] | (u64)sgpr[op->sreg + 1] << 32)
                        : address + ((u64)vgpr[kLanes * (op->areg + 1) + lane] << 32);
}

/* Distinct 128-byte lines. */
static u32 memory_lines(const struct Op* op, const u32* sgpr, const u32* vgpr, u64 exec) {
  u64 seen[256];
  u32 n = 0;
  for (int lane = 0; lane < kLanes; lane++) {
    if (!(exec >> lane & 1)) continue;
    u64 address = address_of(op, sgpr, vgpr, lane);
    for (u64 line = address >> 7; line <= (address + op->width - 1) >> 7; line++) {
      int duplicate = 0;
      for (u32 i = n; i-- > 0 && !duplicate;) duplicate = seen[i] == line;
      if (!duplicate && n < 256) seen[n++] = line;
    }
  }
  return n;
}

/* The source lane of a GFX9 DPP control; -1: out of range. */
static int dpp_source(int lane, int control) {
  int row = lane & ~15, r = lane & 15, n = control & 15;
  if (control < 0x100) return (lane & ~3) | (control >> (2 * (lane & 3)) & 3);
  if (control < 0x110) return r + n <= 15 ? lane + n : -1; /* row_shl */
  if (control < 0x120) return r >= n ? lane - n : -1;      /* row_shr */
  if (control < 0x130) return row | ((r - n) & 15);        /* row_ror */
  if (control >= 0x150 && control < 0x160) return row | n; /* row_newbcast */
  switch (control) {
    case 0x130:
      return lane < 63 ? lane + 1 : -1; /* wave_shl */
    case 0x134:
      return (lane + 1) & 63; /* wave_rol */
    case 0x138:
      return lane > 0 ? lane - 1 : -1; /* wave_shr */
    case 0x13c:
      return (lane - 1) & 63; /* wave_ror */
    case 0x140:
      return row | (15 - r); /* row_mirror */
    case 0x141:
      return (lane & ~7) | (7 - (lane & 7)); /* row_half_mirror */
    case 0x142:
      return lane >= 16 ? row - 1 : -1; /* row_bcast15 */
    case 0x143:
      return lane >= 32 ? 31 : -1; /* row_bcast31 */
  }
  return -1;
}

static int swizzle_source(int lane, u32 pattern) {
  int r = lane & 31;
  if (pattern < 0x8000)
    return (lane & 32) |
           ((((r & (int)(pattern & 31)) | (int)(pattern >> 5 & 31))) ^ (int)(pattern >> 10 & 31));
  if (pattern < 0xc000) return (lane & ~3) | (int)(pattern >> (2 * (lane & 3)) & 3);
  int by = (int)(pattern >> 5 & 31), mask = (int)(pattern & 31); /* rotate within 32 lanes */
  int rotated = (pattern >> 10 & 1 ? r - by : r + by) & 31;
  return (lane & 32) | (r & mask) | (rotated & ~mask);
}

static void store_active(u32* to, const u32* from, u64 exec) {
  for (int lane = 0; lane < kLanes; lane++)
    if (exec >> lane & 1) to[lane] = from[lane];
}

static void call(const struct Op* op, void** b) {
  const unsigned char* g = op->arg;
  void* f = op->fn;
  switch (op->nargs) {
    case 0:
      ((void (*)(void))f)();
      break;
    case 1:
      ((void (*)(void*))f)(b[g[0]]);
      break;
    case 2:
      ((void (*)(void*, void*))f)(b[g[0]], b[g[1]]);
      break;
    case 3:
      ((void (*)(void*, void*, void*))f)(b[g[0]], b[g[1]], b[g[2]]);
      break;
    case 4:
      ((void (*)(void*, void*, void*, void*))f)(b[g[0]], b[g[1]], b[g[2]], b[g[3]]);
      break;
    case 5:
      ((void (*)(void*, void*, void*, void*, void*))f)(b[g[0]], b[g[1]], b[g[2]], b[g[3]], b[g[4]]);
      break;
    default:
      ((void (*)(void*, void*, void*, void*, void*, void*))f)(b[g[0]], b[g[1]], b[g[2]], b[g[3]],
                                                              b[g[4]], b[g[5]]);
  }
}

/* The swizzled source goes to v255 (the other one, with its modifiers, to v254) and the plain
 * encoding runs on them. */
static void run_dpp(const struct Op* op, struct Wave* wave, u64 exec, u64 pc) {
  u32 control = (u32)op->offset, sign = (u32)op->offset1, saved[kLanes], source[kLanes],
      other[kLanes];
  u32 *v255 = wave->vgpr + kLanes * 255, *v254 = wave->vgpr + kLanes * 254;
  u64 enabled = 0;
  for (int lane = 0; lane < kLanes; lane++) {
    int from = dpp_source(lane, control >> 8 & 511);
    int allowed = (control >> 28 >> (lane >> 4) & 1) && (control >> 24 >> (lane >> 2 & 3) & 1);
    int have = from >= 0 && (exec >> from & 1);
    u32 a = have ? wave->vgpr[kLanes * (control & 255) + from] : 0,
        b = wave->vgpr[kLanes * op->areg + lane];
    if (control >> 21 & 1) a &= ~sign;
    if (control >> 20 & 1) a ^= sign;
    if (control >> 23 & 1) b &= ~sign;
    if (control >> 22 & 1) b ^= sign;
    if (allowed && (have || (control >> 19 & 1))) enabled |= 1ull << lane;
    source[lane] = a;
    other[lane] = b;
  }
  memcpy(saved, v254, sizeof saved);
  memcpy(v255, source, sizeof source);
  if (control >> 22 & 3) memcpy(v254, other, sizeof other);
  u64 narrowed = exec & enabled;
  memcpy(wave->sgpr + kExec, &narrowed, sizeof narrowed);
  memcpy(wave->sgpr + kPc, &op->alternative, sizeof op->alternative);
  call(op, wave->bufs);
  memcpy(v254, saved, sizeof saved);
  if (memcmp(wave->sgpr + kExec, &narrowed, sizeof narrowed) == 0)
    memcpy(wave->sgpr + kExec, &exec, sizeof exec);
  pc += 8;
  memcpy(wave->sgpr + kPc, &pc, sizeof pc);
}

/* Runs one wave until its end, a barrier, an instruction that is not compiled yet, or `budget`
 * instructions. */
static int run_wave(struct Wave* wave, const struct Image* image, u64 budget, u64* ran) {
  u32 *sgpr = wave->sgpr, *vgpr = wave->vgpr;
  for (; budget > 0; budget--) {
    u64 pc = sgpr[kPc] | (u64)sgpr[kPc + 1] << 32, next;
    if (pc == ~0ull) return kEnd;
    u64 i = (pc - image->base) >> 2;
    if (i < image->first || i >= image->end) return kBadPc;
    struct Op* op = image->ops + i;
    if (!op->fn) return kCompile;
    u64 exec = sgpr[kExec] | (u64)sgpr[kExec + 1] << 32;
    wave->count[i]++;
    wave->lanes[i] += (u64)__builtin_popcountll(exec);
    ++*ran;
    if (image->measure && op->memory == kGlobal) {
      wave->extra[i] += memory_lines(op, sgpr, vgpr, exec);
    } else if (image->measure && op->memory) {
      const u32* address = vgpr + kLanes * op->areg;
      wave->extra[i] += lds_passes(address, exec, op->offset, op->width, op->memory == kLdsAtomic);
      if (op->two) wave->extra[i] += lds_passes(address, exec, op->offset1, op->width, 0);
    }
    if (sgpr[kGprIndexMode] &&
        op->valu) { /* under GPR indexing: only v_mov_b32_e32, which is what LLVM emits */
      u32 word = *(u32*)pc, from = word & 511, to = word >> 17 & 255;
      if ((word & 0xfe01fe00) != 0x7e000200) return kGprIndexing;
      if (sgpr[kGprIndexMode] & 1 && from >= 256) from += sgpr[kGprIndex];
      if (sgpr[kGprIndexMode] & 8) to += sgpr[kGprIndex];
      if (from == 255) return kGprIndexing;
      for (int lane = 0; lane < kLanes; lane++)
        if (exec >> lane & 1)
          vgpr[kLanes * to + lane] = from >= 256 ? vgpr[kLanes * (from - 256) + lane] : sgpr[from];
      next = pc + 4;
      memcpy(sgpr + kPc, &next, sizeof next);
      continue;
    }
    u32 result[kLanes] = {0};
    switch (op->kind) {
      case kCall:
        call(op, wave->bufs);
        continue;
      case kBarrier:
        call(op, wave->bufs);
        return kAtBarrier;
      case kDpp:
        run_dpp(op, wave, exec, pc);
        continue;
      case kGetPc:
      case kSetPc:
      case kSwapPc:
      case kCallPc: {
        u64 target = next = pc + 4;
        if (op->kind == kSetPc || op->kind == kSwapPc)
          target = sgpr[op->sreg & 127] | (u64)sgpr[(op->sreg & 127) + 1] << 32;
        if (op->kind == kCallPc) target = next + (u64)((int64_t)op->offset1 * 4);
        if (op->kind != kSetPc) memcpy(sgpr + op->areg, &next, sizeof next);
        memcpy(sgpr + kPc, &target, sizeof target);
        continue;
      }
      case kGlobalLoadLds: /* LDS[M0 + offset + 4 * lane] = memory[address] */
        for (int lane = 0; lane < kLanes; lane++) {
          if (!(exec >> lane & 1)) continue;
          u64 address = address_of(op, sgpr, vgpr, lane);
          u32 word = op->width == 1   ? *(uint8_t*)address
                     : op->width == 2 ? *(uint16_t*)address
                                      : *(u32*)address;
          memcpy((char*)wave->bufs[3] + sgpr[kM0] + op->offset + 4 * lane, &word, sizeof word);
        }
        break;
      case kSwizzle:
        for (int lane = 0; lane < kLanes; lane++) {
          int from = swizzle_source(lane, (u32)op->offset);
          result[lane] = exec >> from & 1 ? vgpr[kLanes * op->areg + from] : 0;
        }
        store_active(vgpr + kLanes * op->sreg, result, exec);
        break;
      case kBpermute:
      case kPermute:
        for (int lane = 0; lane < kLanes; lane++) {
          if (!(exec >> lane & 1)) continue;
          u32 other = (vgpr[kLanes * op->areg + lane] + (u32)op->offset) >> 2 & 63;
          const u32* data = vgpr + kLanes * op->data;
          if (op->kind == kPermute)
            result[other] = data[lane];
          else
            result[lane] = exec >> other & 1 ? data[other] : 0;
        }
        store_active(vgpr + kLanes * op->sreg, result, exec);
        break;
      case kIndexOn:
        sgpr[kGprIndexMode] = 0x100 | op->areg;
        sgpr[kGprIndex] = op->sreg < 128 ? sgpr[op->sreg] & 255 : op->sreg - 128u;
        next = pc + 4;
        memcpy(sgpr + kPc, &next, sizeof next);
        continue;
      case kIndexOff:
        sgpr[kGprIndexMode] = 0;
        next = pc + 4;
        memcpy(sgpr + kPc, &next, sizeof next);
        continue;
    }
    next = pc + 8; /* the kinds that left the switch are 8 bytes long */
    memcpy(sgpr + kPc, &next, sizeof next);
  }
  return kBudget;
}

static u64 random_next(u64* state) { /* splitmix64 */
  u64 z = *state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/* Lays out the registers of a workgroup's waves. `scalars` are those that all waves share;
 * `first_id` is the place of the first of `ids` workgroup numbers. Vector registers start as dirt
 * where no instruction has set them. */
void start_waves(struct Wave* waves, int count, u32 threads, const u32* scalars, int first_id,
                 const u32* ids, int id_count, u32 dirt) {
  for (int w = 0; w < count; w++) {
    struct Wave* wave = waves + w;
    u32 live = threads - (u32)w * kLanes < kLanes ? threads - (u32)w * kLanes : kLanes;
    u64 exec = live == kLanes ? ~0ull : (1ull << live) - 1;
    memcpy(wave->sgpr, scalars, kSgprs * sizeof *scalars);
    for (int i = 0; i < id_count; i++) wave->sgpr[first_id + i] = ids[i];
    memcpy(wave->sgpr + kExec, &exec, sizeof exec);
    wave->sgpr[kHwId] = ((u32)w & 15) | ((u32)w & 3) << 4;
    for (int i = 0; i < kVgprs * kLanes; i++) wave->vgpr[i] = dirt;
    for (int lane = 0; lane < kLanes; lane++) wave->vgpr[lane] = (u32)(w * kLanes + lane);
    wave->state = kBudget;
  }
}

static sigjmp_buf fault_return;
static volatile u64 fault_address;

static void on_fault(int signal, siginfo_t* info, void* context) {
  (void)signal;
  (void)context;
  fault_address = (u64)info->si_addr;
  siglongjmp(fault_return, 1);
}

static int take_turns(struct Wave* waves, int count, const struct Image* image, u64* random,
                      u32 quantum, int shuffle, u64 limit, u64* ran, int* which);

/* Runs the waves of a workgroup to their end, or until one needs Python (kCompile: then call again)
 * or failed; *which is that wave. quantum 0: a wave runs to its barrier before another is looked
 * at; else 1 to quantum instructions at a time, at random. shuffle: the next wave is a random one.
 */
int run_waves(struct Wave* waves, int count, const struct Image* image, u64* random, u32 quantum,
              int shuffle, u64 limit, u64* ran, int* which, u64* address) {
  struct sigaction action = {0}, segv, bus;
  int result;
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &segv);
  sigaction(SIGBUS, &action, &bus);
  if (sigsetjmp(fault_return, 1) == 0)
    result = take_turns(waves, count, image, random, quantum, shuffle, limit, ran, which);
  else
    result = kFault;
  *address = fault_address;
  sigaction(SIGSEGV, &segv, NULL);
  sigaction(SIGBUS, &bus, NULL);
  return result;
}

static int take_turns(struct Wave* waves, int count, const struct Image* image, u64* random,
                      u32 quantum, int shuffle, u64 limit, u64* ran, int* which) {
  int runnable[64];
  for (;;) {
    int n = 0, waiting = 0;
    for (int w = 0; w < count; w++) {
      if (waves[w].state == kBudget) runnable[n++] = w;
      waiting += waves[w].state == kAtBarrier;
    }
    if (n == 0 && waiting == 0) return kEnd;
    if (n == 0) { /* ended waves do not count for a barrier */
      for (int w = 0; w < count; w++)
        if (waves[w].state == kAtBarrier) waves[w].state = kBudget;
      continue;
    }
    int w = runnable[shuffle ? random_next(random) % (u64)n : 0];
    *which = w;
    int result =
        run_wave(waves + w, image, quantum ? 1 + random_next(random) % quantum : limit, ran);
    if (result == kEnd || result == kAtBarrier)
      waves[w].state = result;
    else if (result != kBudget || *ran >= limit)
      return result;
  }
}
