/* Loops on several threads: of a pool of eyas, or of OpenMP. cpu_linear.c and cpu_attention.c use them.

   OpenMP waits at the end of every loop until all its threads have reached the barrier. A loop of the pool does not wait
   for a thread that has not started an item, so a server can compute on all cores although its other threads need one
   now and then. But the pool and OpenMP would compete for the cores: a process uses the pool only if torch computes on
   one thread. */

#ifndef EYAS_CPU_THREAD_POOL_H
#define EYAS_CPU_THREAD_POOL_H

#include <stdint.h>

/* Sets the number of threads of all later loops, the calling one included; 0 selects OpenMP. */
void eyas_set_pool(int num_threads);

/* The number of threads of a loop: those of the pool, or else `num_threads`. */
int eyas_threads(int num_threads);

/* Calls run(context, item) once for each item below `count`, on the calling thread and on up to num_threads - 1 others.
   Returns when all calls have returned. If another thread runs a loop of the pool, the calling thread works alone. */
void eyas_parallel_for(int num_threads, int64_t count, void (*run)(void *context, int64_t item), void *context);

#endif
