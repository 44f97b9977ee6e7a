/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads for one call: spawned, joined, gone. No pool and no state, so that fork() and threads of
 * the caller are safe whatever they do between two calls.
 */
#ifndef DSV41TOPK_CPU_PARALLEL_H_
#define DSV41TOPK_CPU_PARALLEL_H_

#include <stddef.h>
#include <stdint.h>

/* Runs task(job, index, scratch) for every index below `tasks`; `scratch` belongs to the thread
 * that runs it. */
typedef void (*Dsv41Task)(void* job, int64_t index, void* scratch);

/* How many threads work of `cost` is worth: no more than CPUs that this process may use, and none
 * that would get less than `cost_per_thread`. At least 1. */
int dsv41_cpu_threads(int64_t cost, int64_t cost_per_thread);

/* The calling thread takes part. `scratch_bytes` are allocated per thread before the first task
 * starts. DSV41_OK, or DSV41_NO_MEMORY: then no task has run. A thread that cannot be created costs
 * speed only. */
int dsv41_cpu_parallel(int threads, int64_t tasks, size_t scratch_bytes, Dsv41Task task, void* job);

#endif /* DSV41TOPK_CPU_PARALLEL_H_ */
