/* A pool of threads that share the items of a loop. Each takes the next item when it has finished its previous one.

   The calling thread works, too, and returns as soon as all items are done. A thread without work spins for a moment,
   because the next layer of a forward follows soon, and then sleeps.

   `state` holds the number of the loop and the next item. A thread takes an item by compare-and-swap on `state`, which
   fails if another loop has begun. Before a loop, `state` is closed: then no thread takes an item with the fields of
   another loop. */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "cpu_thread_pool.h"

enum {
  MAX_HELPERS = 255,
  IDLE_SPINS = 4000, /* 0.05 to 0.2 ms, by processor */
  DONE_SPINS = 2000, /* then yield, because a thread that still runs an item may need this core */
};

#define CLOSED 0xffffffffu

typedef void (*item_function)(void *, int64_t);

static struct {
  _Alignas(64) _Atomic uint64_t state; /* loop << 32 | next item */
  _Alignas(64) _Atomic int64_t done;
  _Alignas(64) _Atomic(item_function) run;
  _Atomic(void *) context;
  _Atomic int64_t count;
  _Atomic int helpers; /* that may help in this loop */
  _Atomic int sleepers;
  _Atomic int size;
  int started;
  pthread_mutex_t loop_lock, sleep_lock;
  pthread_cond_t new_loop;
} pool = {.loop_lock = PTHREAD_MUTEX_INITIALIZER,
          .sleep_lock = PTHREAD_MUTEX_INITIALIZER,
          .new_loop = PTHREAD_COND_INITIALIZER};

static inline void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static uint32_t current_loop(void) { return atomic_load(&pool.state) >> 32; }

static void run_items(uint32_t loop) {
  const item_function run = atomic_load(&pool.run);
  void *const context = atomic_load(&pool.context);
  const int64_t count = atomic_load(&pool.count);
  uint64_t state = atomic_load(&pool.state);
  while ((uint32_t)(state >> 32) == loop && (int64_t)(uint32_t)state < count)
    if (atomic_compare_exchange_weak(&pool.state, &state, state + 1)) {
      run(context, (uint32_t)state);
      atomic_fetch_add(&pool.done, 1);
      state = atomic_load(&pool.state);
    }
}

/* Waits until the current loop is another one than `seen`, and returns its number. */
static uint32_t await_loop(uint32_t seen) {
  for (int i = 0; i < IDLE_SPINS; i++) {
    if (current_loop() != seen) return current_loop();
    pause_briefly();
  }
  pthread_mutex_lock(&pool.sleep_lock);
  atomic_fetch_add(&pool.sleepers, 1);
  while (current_loop() == seen) pthread_cond_wait(&pool.new_loop, &pool.sleep_lock);
  atomic_fetch_sub(&pool.sleepers, 1);
  pthread_mutex_unlock(&pool.sleep_lock);
  return current_loop();
}

static void *worker_main(void *number) {
  for (uint32_t seen = 0;;) {
    seen = await_loop(seen);
    if ((intptr_t)number < atomic_load(&pool.helpers)) run_items(seen);
  }
  return NULL;
}

/* A forked child has none of its parent's threads. The parent may have been in a loop. */
static void forget_threads(void) {
  pool.started = 0;
  atomic_store(&pool.sleepers, 0);
  atomic_store(&pool.state, CLOSED); /* loop 0, which a new thread has seen */
  pthread_mutex_init(&pool.loop_lock, NULL);
  pthread_mutex_init(&pool.sleep_lock, NULL);
  pthread_cond_init(&pool.new_loop, NULL);
}

static void start_threads(int wanted) {
  static int is_registered;
  if (!is_registered) is_registered = !pthread_atfork(NULL, NULL, forget_threads);
  pthread_attr_t attributes;
  if (wanted <= pool.started || pthread_attr_init(&attributes)) return;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  while (pool.started < wanted &&
         !pthread_create(&thread, &attributes, worker_main, (void *)(intptr_t)pool.started))
    pool.started++;
  pthread_attr_destroy(&attributes);
}

void eyas_set_pool(int num_threads) { atomic_store(&pool.size, num_threads); }

int eyas_threads(int num_threads) {
  const int size = atomic_load(&pool.size);
  return size ? size : num_threads;
}

static void run_on_pool(int num_threads, int64_t count, item_function run, void *context) {
  int helpers = (num_threads <= MAX_HELPERS ? num_threads : MAX_HELPERS) - 1;
  if (helpers >= count) helpers = count - 1;
  start_threads(helpers);
  uint64_t loop = (current_loop() + 1u) & CLOSED;
  if (!loop) loop = 1; /* 0 is what a new thread has seen */
  atomic_store(&pool.state, (loop - 1) << 32 | CLOSED);
  atomic_store(&pool.run, run);
  atomic_store(&pool.context, context);
  atomic_store(&pool.count, count);
  atomic_store(&pool.done, 0);
  atomic_store(&pool.helpers, helpers);
  atomic_store(&pool.state, loop << 32);
  if (atomic_load(&pool.sleepers)) {
    pthread_mutex_lock(&pool.sleep_lock);
    pthread_cond_broadcast(&pool.new_loop);
    pthread_mutex_unlock(&pool.sleep_lock);
  }
  run_items(loop);
  for (int spins = 0; atomic_load(&pool.done) < count; spins += spins < DONE_SPINS)
    if (spins < DONE_SPINS)
      pause_briefly();
    else
      sched_yield();
}

void eyas_parallel_for(int num_threads, int64_t count, item_function run, void *context) {
  const int has_pool = atomic_load(&pool.size) > 0;
  if (num_threads > 1 && has_pool && count > 1 && count < CLOSED && !pthread_mutex_trylock(&pool.loop_lock)) {
    run_on_pool(num_threads, count, run, context);
    pthread_mutex_unlock(&pool.loop_lock);
    return;
  }
  const int is_serial = num_threads < 2 || has_pool;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 1) if (!is_serial)
  for (int64_t item = 0; item < count; item++) run(context, item);
}
