/* Linear layers on a CPU, y = x W^T + b, for any number of rows. cpu_linear.py packs W and calls this.

   T rows, K inputs, N outputs. WIDTH outputs are a panel. W is stored panel by panel, in the order in which it is read:

     float32     [panel][k][output of the panel]
     bfloat16    [panel][k / 2][output of the panel][k % 2], so that a vector has two inputs of each output

   A step is 4 bytes of each output: one k of float32, or two of bfloat16. N is filled up to whole panels with zeros, and
   K to whole steps. A tile is the sums of R rows x P panels, which stay in registers for all steps. The sum of an output
   is made in the same order for every tile, so the result of a row does not depend on the other rows.

   A processor with matrix units for bfloat16 (AMX) computes tiles of bfloat16 with them, from one row on. */

#include <stdlib.h>

#include "cpu_linear.h"
#include "cpu_thread_pool.h"
#include "cpu_vectors.h"
#if HAS_UNITS
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum {
  WIDTH = 2 * LANES,
  TILE_VECTORS = LANES == 16 ? 24 : 12, /* of 32 registers, or of 16 */
  MAX_ROWS = TILE_VECTORS / 2,          /* of a tile */
  MAX_PANELS = 6,                       /* of a tile; a processor prefetches a few streams at once */
  GROUP = 12,                           /* panels of a share: whole tiles, however many rows they have */
  KEPT_GROUP = 4,                       /* panels whose weights stay in the caches while several tiles of rows pass */
  UNIT_AHEAD = 4096,                    /* bytes; into the second cache, since a register takes 1 KB at once */
  BLOCK = HAS_UNITS ? 256 : 240,        /* rows that are widened at once */
  KEPT_BYTES = 1 << 20,                 /* of rows that are used as they lie, if these are more than a block */
  MIN_WORK = 1 << 16,                   /* multiply-adds below which waking other threads takes longer than the work */
};

enum kind { FLOATS, HALVES, PAIRS }; /* bfloat16 as halves that become float32, or as pairs for the dot product */

static int is_amd, may_use_units;

int eyas_linear_width(void) { return WIDTH; }

int eyas_linear_units(void) { return may_use_units; }

static __attribute__((constructor)) void look_at_processor(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  is_amd = __builtin_cpu_is("amd");
#endif
#if HAS_UNITS /* Linux gives the registers of the units to a process that asks. */
  may_use_units = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */) == 0;
#endif
}

/* Prefetches the weights of a step. On AMD's processors weights pass the caches, so that they displace little there.
   Intel's then read them up to 5 times as slowly, if several tiles of rows need them. */
INLINE void prefetch_step(const uint32_t *at, const int amd) {
  for (int line = 0; line < 4 * WIDTH; line += 64)
    if (amd)
      __builtin_prefetch((const char *)at + 192 + line, 0, 0);
    else
      __builtin_prefetch((const char *)at + 2048 + line, 0, 2);
}

/* Sums of R rows x P panels, [R][P][WIDTH]. */
INLINE void tile(const float *x, int64_t x_row, const uint32_t *w, int64_t steps, float *sums, const int R, const int P,
                 const enum kind kind, const int amd) {
  vf sum[TILE_VECTORS];
  const vu high = (vu){} + 0xffff0000u;
#pragma GCC unroll 32
  for (int i = 0; i < 2 * R * P; i++) sum[i] = (vf){};
  for (int64_t k = 0; k < steps; k++, w += WIDTH)
#pragma GCC unroll 6
    for (int p = 0; p < P; p++) {
      const uint32_t *at = w + p * steps * WIDTH;
      prefetch_step(at, amd);
      const vu w0 = *(const vu_any *)at, w1 = *(const vu_any *)(at + LANES);
      if (kind != HALVES) {
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
          const vf a = splat_bits(x + r * x_row + k);
          vf *s = sum + 2 * (r * P + p);
          s[0] = add_product(s[0], a, (vf)w0, kind == PAIRS);
          s[1] = add_product(s[1], a, (vf)w1, kind == PAIRS);
        }
        continue;
      }
      const vf even0 = (vf)(w0 << 16), even1 = (vf)(w1 << 16);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const vf a = splat_bits(x + r * x_row + 2 * k);
        vf *s = sum + 2 * (r * P + p);
        s[0] += a * even0;
        s[1] += a * even1;
      }
      const vf odd0 = (vf)(w0 & high), odd1 = (vf)(w1 & high);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const vf a = splat_bits(x + r * x_row + 2 * k + 1);
        vf *s = sum + 2 * (r * P + p);
        s[0] += a * odd0;
        s[1] += a * odd1;
      }
    }
#pragma GCC unroll 32
  for (int i = 0; i < 2 * R * P; i++) store(sums + i * LANES, sum[i]);
}

/* The number of panels of a tile with so many rows. */
INLINE int panels_of(int rows) { return least(TILE_VECTORS / (2 * rows), MAX_PANELS); }

#define CASE(R, P)                                                                  \
  case 8 * R + P:                                                                   \
    if (2 * R * P <= TILE_VECTORS) tile(x, x_row, w, steps, sums, R, P, kind, amd); \
    return;
INLINE void run_tile(const float *x, int64_t x_row, const uint32_t *w, int64_t steps, float *sums, int R, int P,
                     const enum kind kind, const int amd) {
  switch (8 * R + P) {
    CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4) CASE(1, 5) CASE(1, 6)
    CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4) CASE(2, 5) CASE(2, 6)
    CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(3, 4) CASE(4, 1) CASE(4, 2) CASE(4, 3)
    CASE(5, 1) CASE(5, 2) CASE(6, 1) CASE(6, 2)
    CASE(7, 1) CASE(8, 1) CASE(9, 1) CASE(10, 1) CASE(11, 1) CASE(12, 1)
  }
}

static __attribute__((noinline)) void run_floats(const float *x, int64_t x_row, const uint32_t *w, int64_t steps,
                                                 float *sums, int R, int P) {
  if (is_amd)
    run_tile(x, x_row, w, steps, sums, R, P, FLOATS, 1);
  else
    run_tile(x, x_row, w, steps, sums, R, P, FLOATS, 0);
}

static __attribute__((noinline)) void run_bf16(const float *x, int64_t x_row, const uint32_t *w, int64_t steps,
                                               float *sums, int R, int P) {
  if (is_amd)
    run_tile(x, x_row, w, steps, sums, R, P, HAS_PAIRS ? PAIRS : HALVES, 1);
  else
    run_tile(x, x_row, w, steps, sums, R, P, HAS_PAIRS ? PAIRS : HALVES, 0);
}

#if HAS_UNITS
/* The weights of 16 steps of a panel; beyond the last step zeros, in `room`. */
INLINE const uint32_t *unit_weights(const uint32_t *w, int64_t k, int64_t steps, uint32_t *room) {
  if (k + UNIT_ROWS <= steps) return w + k * WIDTH;
  memset(room, 0, UNIT_ROWS * WIDTH * sizeof(uint32_t));
  return memcpy(room, w + k * WIDTH, (steps - k) * WIDTH * sizeof(uint32_t));
}

INLINE void prefetch_weights(const uint32_t *at) {
  for (int i = 0; i < UNIT_ROWS * WIDTH * 4; i += 64) __builtin_prefetch((const char *)at + UNIT_AHEAD + i, 0, 2);
}

/* `tile` by matrix units: up to 16 rows x 1 or 2 panels, or up to 32 rows x 1 panel. x is filled up to whole registers
   with zeros. is_first: the weights were not read for rows before these. */
static void run_units(const float *x, int64_t x_row, const uint32_t *w, int64_t steps, float *sums, int R, int P,
                      int is_first) {
  const int row = x_row * sizeof(float), out = P * WIDTH * sizeof(float), line = WIDTH * sizeof(uint32_t);
  uint32_t room[UNIT_ROWS * WIDTH] __attribute__((aligned(64)));
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t k = 0; k < steps; k += UNIT_ROWS) {
    const uint32_t *at = unit_weights(w, k, steps, room);
    if (is_first) prefetch_weights(at);
    _tile_loadd(0, x + k, row);
    _tile_loadd(2, at, line);
    _tile_dpbf16ps(4, 0, 2);
    _tile_loadd(3, at + LANES, line);
    _tile_dpbf16ps(5, 0, 3);
    if (R > UNIT_ROWS) {
      _tile_loadd(1, x + UNIT_ROWS * x_row + k, row);
      _tile_dpbf16ps(6, 1, 2);
      _tile_dpbf16ps(7, 1, 3);
    } else if (P == 2) {
      at = unit_weights(w + steps * WIDTH, k, steps, room);
      if (is_first) prefetch_weights(at);
      _tile_loadd(2, at, line);
      _tile_dpbf16ps(6, 0, 2);
      _tile_loadd(3, at + LANES, line);
      _tile_dpbf16ps(7, 0, 3);
    }
  }
  float *more = R > UNIT_ROWS ? sums + UNIT_ROWS * P * WIDTH : sums + WIDTH;
  _tile_stored(4, sums, out);
  _tile_stored(5, sums + LANES, out);
  if (R <= UNIT_ROWS && P == 1) return;
  _tile_stored(6, more, out);
  _tile_stored(7, more + LANES, out);
}
#else
#define run_units(x, x_row, w, steps, sums, R, P, is_first) run_bf16(x, x_row, w, steps, sums, R, P)
#endif

static void store_row(const struct linear *l, int64_t t, int64_t begin, const float *sums, int64_t n) {
  float biased[MAX_PANELS * WIDTH];
  if (l->bias) {
    for (int64_t i = 0; i < n; i++) biased[i] = sums[i] + l->bias[begin + i];
    sums = biased;
  }
  const int64_t at = t * l->num_out + begin;
  if (l->is_bf16)
    narrow((uint16_t *)l->out + at, sums, n);
  else
    memcpy((float *)l->out + at, sums, n * sizeof(float));
}

/* Panels from..to - 1 of the rows t0..t0 + rows - 1, which x holds. */
static void run_panels(const struct linear *l, const float *x, int64_t x_row, int64_t t0, int64_t rows, int64_t steps,
                       int64_t from, int64_t to) {
  float sums[HAS_UNITS ? 2 * UNIT_ROWS * WIDTH : TILE_VECTORS * LANES] __attribute__((aligned(64)));
  const int by_units = l->is_bf16 && may_use_units, most = by_units ? 2 * UNIT_ROWS : MAX_ROWS;
  const int64_t num_tiles = (rows + most - 1) / most, group = num_tiles > 1 ? KEPT_GROUP : GROUP;
  int64_t R_set = 0; /* rows for which the registers are set, which takes long */
  for (int64_t first = from; first < to; first += group) {
    const int64_t last = least(first + group, to);
    for (int64_t i = 0; i < num_tiles; i++) {
      const int64_t t = rows * i / num_tiles, R = rows * (i + 1) / num_tiles - t;
      if (by_units && R != R_set) set_units(R_set = R);
      for (int64_t p = first, P; p < last; p += P) {
        P = least(last - p, !by_units ? panels_of(R) : R > UNIT_ROWS ? 1 : 2);
        const uint32_t *w = (const uint32_t *)l->weight + p * steps * WIDTH;
        if (by_units)
          run_units(x + t * x_row, x_row, w, steps, sums, R, P, i == 0);
        else
          (l->is_bf16 ? run_bf16 : run_floats)(x + t * x_row, x_row, w, steps, sums, R, P);
        const int64_t begin = p * WIDTH, n = least(P * WIDTH, l->num_out - begin);
        for (int64_t r = 0; r < R; r++) store_row(l, t0 + t + r, begin, sums + r * P * WIDTH, n);
      }
    }
  }
  if (by_units) _tile_release();
}

/* A row of bfloat16 as `run_bf16` reads it: floats, or pairs. */
static void widen_input(const struct linear *l, float *to, int64_t t) {
  const uint16_t *from = (const uint16_t *)l->x + t * l->x_row;
  if (HAS_PAIRS) {
    const int64_t bytes = l->num_in * sizeof(uint16_t), room = up(bytes, LANES * sizeof(float));
    memcpy(to, from, bytes);
    memset((char *)to + bytes, 0, room - bytes);
  } else {
    widen(to, from, l->num_in);
    if (l->num_in % 2) to[l->num_in] = 0;
  }
}

/* The rows t0..t0 + rows - 1 of a layer, whose panels are divided into shares of `size`. */
struct block {
  const struct linear *l;
  const float *x;
  float *widened;
  int64_t x_row, t0, rows, steps, panels, size;
};

static void widen_row(void *context, int64_t t) {
  const struct block *b = context;
  widen_input(b->l, b->widened + t * b->x_row, b->t0 + t);
}

static void run_share(void *context, int64_t i) {
  const struct block *b = context;
  run_panels(b->l, b->x, b->x_row, b->t0, b->rows, b->steps, i * b->size, least((i + 1) * b->size, b->panels));
}

/* Fills `out`. Returns 0, or 1 if there is no memory. */
int eyas_linear(const struct linear *l) {
  static _Thread_local float *scratch;
  static _Thread_local int64_t room;
  const int64_t steps = l->is_bf16 ? (l->num_in + 1) / 2 : l->num_in;
  const int64_t panels = (l->num_out + WIDTH - 1) / WIDTH;
  /* Pairs of bfloat16 that fill whole registers are read where they lie. */
  const int are_pairs = (uintptr_t)l->x % sizeof(float) == 0 && l->num_in % (2 * LANES) == 0 && l->x_row % 2 == 0;
  const int is_ready = !l->is_bf16 || (HAS_PAIRS && are_pairs);
  const int64_t x_row = !is_ready ? up(HAS_PAIRS ? steps : 2 * steps, LANES) : l->is_bf16 ? l->x_row / 2 : l->x_row;
  const int64_t kept = is_ready ? KEPT_BYTES / (sizeof(float) * x_row + 1) : 0, most = kept > BLOCK ? kept : BLOCK;
  const int64_t needed = is_ready ? 0 : least(l->num_rows, BLOCK) * x_row;
  if (room < needed) {
    free(scratch);
    scratch = aligned_alloc(64, needed * sizeof(float)); /* whole vectors */
    room = scratch ? needed : 0;
    if (!scratch) return 1;
  }
  for (int64_t t0 = 0; t0 < l->num_rows; t0 += most) {
    const int64_t rows = least(l->num_rows - t0, most), work = rows * l->num_in;
    const int num_threads = work * l->num_out < MIN_WORK ? 1 : least(eyas_threads(l->num_threads), panels);
    /* Many small shares, so that a preempted thread delays little work. With few panels: one share per thread. */
    const int64_t size = panels >= 4 * GROUP * num_threads ? GROUP : (panels + num_threads - 1) / num_threads;
    const float *x = is_ready ? (const float *)l->x + t0 * x_row : scratch;
    struct block b = {l, x, scratch, x_row, t0, rows, steps, panels, size};
    if (!is_ready) eyas_parallel_for(work < MIN_WORK / 4 ? 1 : num_threads, rows, widen_row, &b);
    eyas_parallel_for(num_threads, (panels + size - 1) / size, run_share, &b);
  }
  return 0;
}
