/* Threads that share the items of a loop, each taking the next item when it has done the last.

   The calling thread works, too, and goes on as soon as all items are done. A thread without work spins for a moment,
   because the next layer of a forward follows soon, and then sleeps.

   `state` holds the number of the loop and the next item. A thread takes an item by replacing `state`, which fails once
   the loop has changed. Before a loop, `state` is closed: then no thread takes an item with the fields of another loop. */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "cpu_team.h"

enum {
  MAX_HELPERS = 255,
  IDLE_SPINS = 4000, /* about 0.1 ms */
  DONE_SPINS = 2000, /* then a thread with unfinished items may need this core */
};

#define CLOSED 0xffffffffu

typedef void (*item_function)(void *, int64_t);

static struct {
  _Atomic uint64_t state; /* loop << 32 | next item */
  _Atomic(item_function) run;
  _Atomic(void *) context;
  _Atomic int64_t count, done;
  _Atomic int helpers; /* that may help in this loop */
  _Atomic int sleepers;
  int size, started;
  pthread_mutex_t loop_lock, sleep_lock;
  pthread_cond_t new_loop;
} team = {.loop_lock = PTHREAD_MUTEX_INITIALIZER,
          .sleep_lock = PTHREAD_MUTEX_INITIALIZER,
          .new_loop = PTHREAD_COND_INITIALIZER};

static inline void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static uint32_t current_loop(void) { return atomic_load(&team.state) >> 32; }

/* Runs items of this loop until none is left. */
static void help(uint32_t loop) {
  const item_function run = atomic_load(&team.run);
  void *const context = atomic_load(&team.context);
  const int64_t count = atomic_load(&team.count);
  uint64_t state = atomic_load(&team.state);
  while ((uint32_t)(state >> 32) == loop && (int64_t)(uint32_t)state < count)
    if (atomic_compare_exchange_weak(&team.state, &state, state + 1)) {
      run(context, (uint32_t)state);
      atomic_fetch_add(&team.done, 1);
      state = atomic_load(&team.state);
    }
}

/* Returns the number of the next loop after `seen`. */
static uint32_t await_loop(uint32_t seen) {
  for (int i = 0; i < IDLE_SPINS; i++) {
    if (current_loop() != seen) return current_loop();
    pause_briefly();
  }
  pthread_mutex_lock(&team.sleep_lock);
  atomic_fetch_add(&team.sleepers, 1);
  while (current_loop() == seen) pthread_cond_wait(&team.new_loop, &team.sleep_lock);
  atomic_fetch_sub(&team.sleepers, 1);
  pthread_mutex_unlock(&team.sleep_lock);
  return current_loop();
}

static void *work(void *number) {
  for (uint32_t seen = 0;;) {
    seen = await_loop(seen);
    if ((intptr_t)number < atomic_load(&team.helpers)) help(seen);
  }
  return NULL;
}

/* The threads of a process are not those of its parent. */
static void forget_threads(void) {
  team.started = 0;
  atomic_store(&team.sleepers, 0);
  pthread_mutex_init(&team.loop_lock, NULL);
  pthread_mutex_init(&team.sleep_lock, NULL);
  pthread_cond_init(&team.new_loop, NULL);
}

static void start_threads(int wanted) {
  static int is_registered;
  if (!is_registered) is_registered = !pthread_atfork(NULL, NULL, forget_threads);
  pthread_attr_t attributes;
  if (wanted <= team.started || pthread_attr_init(&attributes)) return;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  while (team.started < wanted && !pthread_create(&thread, &attributes, work, (void *)(intptr_t)team.started))
    team.started++;
  pthread_attr_destroy(&attributes);
}

void eyas_set_team(int num_threads) { team.size = num_threads; }

int eyas_threads(int num_threads) { return team.size ? team.size : num_threads; }

static void run_team(int num_threads, int64_t count, item_function run, void *context) {
  const int helpers = (num_threads <= MAX_HELPERS ? num_threads : MAX_HELPERS) - 1;
  start_threads(helpers);
  uint64_t loop = (current_loop() + 1u) & CLOSED;
  if (!loop) loop = 1; /* 0 is what a new thread has seen */
  atomic_store(&team.state, (loop - 1) << 32 | CLOSED);
  atomic_store(&team.run, run);
  atomic_store(&team.context, context);
  atomic_store(&team.count, count);
  atomic_store(&team.done, 0);
  atomic_store(&team.helpers, helpers);
  atomic_store(&team.state, loop << 32);
  if (atomic_load(&team.sleepers)) {
    pthread_mutex_lock(&team.sleep_lock);
    pthread_cond_broadcast(&team.new_loop);
    pthread_mutex_unlock(&team.sleep_lock);
  }
  help(loop);
  for (int spins = 0; atomic_load(&team.done) < count; spins++)
    if (spins < DONE_SPINS)
      pause_briefly();
    else
      sched_yield();
}

void eyas_for(int num_threads, int64_t count, item_function run, void *context) {
  if (num_threads > 1 && team.size && count > 1 && count < CLOSED && !pthread_mutex_trylock(&team.loop_lock)) {
    run_team(num_threads, count, run, context);
    pthread_mutex_unlock(&team.loop_lock);
    return;
  }
  const int alone = num_threads < 2 || team.size;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 1) if (!alone)
  for (int64_t item = 0; item < count; item++) run(context, item);
}
