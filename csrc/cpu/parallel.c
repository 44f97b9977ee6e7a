/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "parallel.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "../abi.h"

enum { kMaxThreads = 256 };

static int usable_cpus(void) {
#ifdef __linux__
  cpu_set_t cpus;
  /* Fails where there are more CPUs than cpu_set_t has bits; the count of all serves there. */
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) return CPU_COUNT(&cpus);
#endif
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count < 1 ? 1 : (int)count;
}

int dsv41_cpu_threads(int64_t cost, int64_t cost_per_thread) {
  const int64_t worth = cost / cost_per_thread;
  if (worth < 2) return 1;
  int cpus = usable_cpus();
  if (cpus > kMaxThreads) cpus = kMaxThreads;
  return worth < cpus ? (int)worth : cpus;
}

typedef struct Crew {
  atomic_int_fast64_t next;
  int64_t tasks;
  Dsv41Task task;
  void* job;
} Crew;

typedef struct Member {
  Crew* crew;
  char* scratch;
} Member;

static void* work(void* member_pointer) {
  Member* member = member_pointer;
  Crew* crew = member->crew;
  for (;;) {
    const int64_t index = atomic_fetch_add_explicit(&crew->next, 1, memory_order_relaxed);
    if (index >= crew->tasks) return NULL;
    crew->task(crew->job, index, member->scratch);
  }
}

int dsv41_cpu_parallel(int threads, int64_t tasks, size_t scratch_bytes, Dsv41Task task,
                       void* job) {
  if (threads > tasks) threads = (int)tasks;
  if (threads < 1) threads = 1;
  /* A page apart, so that no two threads write to one cache line. */
  const size_t stride = (scratch_bytes + 4095) / 4096 * 4096 + 4096;
  if (stride > SIZE_MAX / (size_t)threads) return DSV41_NO_MEMORY;
  char* scratch = malloc(stride * (size_t)threads);
  if (!scratch) return DSV41_NO_MEMORY;

  Crew crew = {.tasks = tasks, .task = task, .job = job};
  atomic_init(&crew.next, 0);
  Member members[kMaxThreads];
  pthread_t handles[kMaxThreads];
  int started = 0;
  if (threads > 1) {
    /* The host program's signals stay with the host program's threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i < threads; ++i) {
      members[i] = (Member){&crew, scratch + stride * (size_t)i};
      if (pthread_create(&handles[started], NULL, work, &members[i])) break;
      ++started;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
  }
  members[0] = (Member){&crew, scratch};
  work(&members[0]);
  for (int i = 0; i < started; ++i) pthread_join(handles[i], NULL);
  free(scratch);
  return DSV41_OK;
}
