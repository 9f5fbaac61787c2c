/* Threads that share the items of a loop: a team of eyas, or those of OpenMP. cpu_linear.c and cpu_attention.c use them.

   OpenMP waits at the end of every loop until all its threads have come. A thread of the team that gets no processor is
   not waited for, so a server computes on all cores although its other threads need them now and then. But the team
   and OpenMP get into each other's way: a process uses the team only if torch computes on one thread. */

#ifndef EYAS_CPU_TEAM_H
#define EYAS_CPU_TEAM_H

#include <stdint.h>

/* From now on, loops run on a team of so many threads; 0 for OpenMP. */
void eyas_set_team(int num_threads);

/* The number of threads of a loop: those of the team, or else `num_threads`. */
int eyas_threads(int num_threads);

/* Calls run(context, item) once for each item below `count`, on the calling thread and on up to num_threads - 1 others.
   Returns when all calls have returned. If another thread runs a loop just then, the calling thread works alone. */
void eyas_for(int num_threads, int64_t count, void (*run)(void *context, int64_t item), void *context);

#endif
