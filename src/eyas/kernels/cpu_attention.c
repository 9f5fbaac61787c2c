/* Paged tree attention of one layer on a CPU: what `dense` in kernels/paged_attention.py computes.
   cpu_attention.py builds and calls it.

   T rows, B requests, N heads, G key-value heads, H head size, Z slots, r = N / G heads that share a key.

   Work is cut into items: some rows of one request and one key-value head (a tile), against a range of its keys.
   Row m of a tile is head m % r of the tile's row m / r. Keys are taken in blocks; softmax is kept running:

     many rows: a vector lane is a row              few rows: a vector lane is a place in a head, later a key
       scores[key][row] += k[key][h] * q[h][row]      scores[row][key] = sum over lanes of q[row][..] * k[key][..]
       maximum and sum over keys: no lane crossed     keys are read once and never turned

     both: out[row][..] = out * shrink[row] + sum over keys of p[key, row] * v[key][..]

   On a processor with matrix units for bfloat16 (AMX), they compute the two products of a prompt's tiles. There p is
   rounded to bfloat16, which changes an output by at most 2^-9 of the largest value. Trees of up to MOST_NODES nodes do
   without, so the target verifies a draft with the numbers of plain decoding.

   Scores carry log2(e), so that softmax is made of powers of two. No infinity meets another: the running maximum starts
   finite, and a hidden score is -inf, whose power is 0. */

#include <math.h>
#include <stdlib.h>

#include "cpu_attention.h"
#include "cpu_linear.h"
#include "cpu_thread_pool.h"
#include "cpu_vectors.h"

/* Register tiles: GROUP keys x 2 vectors of rows, 4 rows x SPAN vectors of a head; both keep at least the 8 sums in flight
   that two multiply-adds of 4 cycles need, and fit the registers (32, on AVX2 16). */
enum { GROUP = LANES == 8 ? 4 : 8, SPAN = LANES == 8 ? 2 : 4 };
#if defined(__AVX512F__)
#define LANE_NUMBERS {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#elif defined(__AVX__)
#define LANE_NUMBERS {0, 1, 2, 3, 4, 5, 6, 7}
#else
#define LANE_NUMBERS {0, 1, 2, 3}
#endif
enum {
  KEYS = 64,          /* keys of a block */
  AHEAD = 32,         /* so many keys before it is read a row is asked for: slots may lie anywhere */
  ROWS = 64,          /* rows of a tile */
  FEW = 4,            /* up to so many rows a lane is not a row */
  STRIP = 2 * LANES,  /* rows whose scores are made together */
  ROOM = 64 * 256,    /* floats of a tile or a block; larger heads get fewer rows and keys */
  MOST_NODES = 64,    /* rows of a request that may be a tree; with more they are a part of a prompt */
  MIN_SPLIT = 256,    /* keys that are worth a separate item */
  MIN_WORK = 1 << 16, /* multiply-adds below which waking other threads takes longer than the work */
};
static const float LOG2_E = 1.44269504f, LOWEST = -1e38f;

typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef int32_t i32_any __attribute__((may_alias));
typedef int32_t vi_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

int64_t eyas_struct_bytes(int which) { return which == 0 ? sizeof(struct forward) : sizeof(struct rule); }

/* --- inside ---------------------------------------------------------------------------------------------------- */

struct layer {
  const struct forward *f;
  const struct rule *rule;
  const void *q, *k, *v;
  void *keys, *values, *out;
};

/* Rows row..row + num_rows - 1 of request b and key-value head g (in units of tile rows, r a row of the forward)
   against columns begin..end - 1 (prefix first, own block behind it). partial: where the sums go if others take the
   other columns; then they are merged, and the first of them (num_parts > 0) says so. */
struct item {
  int32_t b, g, row, num_rows, num_parts;
  int64_t begin, end;
  float *partial; /* [num_rows][H], then maxima [num_rows], then sums [num_rows] */
};

struct scratch {
  float q[ROOM], out[ROOM], k[ROOM], v[ROOM]; /* padded to whole vectors */
  float scores[KEYS * STRIP];                 /* [key][row of a strip], or [row][key] of a few */
  int32_t seen[KEYS * ROWS];                  /* [key][row]: 0 or all ones */
  float best[ROWS], sum[ROWS], shrink[ROWS];
  int32_t row_of[ROWS];         /* row of the request */
  int32_t first[ROWS];          /* first position that it may see */
  int windowed;                 /* whether a window or chunk hides columns of the item from any of its rows */
  const uint8_t *visible[ROWS]; /* what a row sees of the own block */
  const void *k_at[KEYS], *v_at[KEYS];
};
static _Thread_local struct scratch thread_scratch __attribute__((aligned(64)));

INLINE vf pick(vi where, vf yes, vf no) { return (vf)((where & (vi)yes) | (~where & (vi)no)); }

/* x where either is no number, as the instruction has it. */
INLINE vf larger(vf floor, vf x) {
#if defined(__AVX512F__)
  return (vf)_mm512_max_ps((__m512)floor, (__m512)x);
#elif defined(__AVX__)
  return (vf)_mm256_max_ps((__m256)floor, (__m256)x);
#else
  return pick(floor > x, floor, x);
#endif
}

/* 2^x for x <= 0, relative error 2e-7; 0 below -126.5. Minimax polynomial on [-1/2, 1/2], the rest is the exponent. */
INLINE vf exp2_vf(vf x) {
  const vf round = splat(12582912.0f); /* 1.5 * 2^23: adding it leaves the integer part in the low bits */
  x = larger(splat(-127.0f), x);
  vf shifted = x + round;
  vf f = x - (shifted - round);
  vf p = splat(1.32647273e-3f);
  p = p * f + splat(9.67151299e-3f);
  p = p * f + splat(5.55073358e-2f);
  p = p * f + splat(2.40222424e-1f);
  p = p * f + splat(6.93147004e-1f);
  p = p * f + splat(1.0f);
  return p * (vf)(((vi)shifted << 23) + (127 << 23));
}

/* One head's row from one type to another. */
static void convert(void *to, int to_bf16_type, const void *from, int from_bf16_type, int n) {
  if (to_bf16_type == from_bf16_type)
    memcpy(to, from, (size_t)n * (to_bf16_type ? 2 : 4));
  else if (to_bf16_type)
    narrow(to, from, n);
  else
    widen(to, from, n);
}

/* Bring memory near. */
INLINE void ask_for(const void *p, int num_bytes) {
  for (int i = 0; i < num_bytes; i += 64) __builtin_prefetch((const char *)p + i);
}

INLINE const void *at(const void *base, int64_t element, int is_bf16) {
  return (const char *)base + element * (is_bf16 ? 2 : 4);
}

/* A row of keys or values as float32, filled up to whole vectors. */
static const float *widen_row(float *to, const void *from, int is_bf16, int n) {
  convert(to, 0, from, is_bf16, n);
  for (int i = n; i % LANES; i++) to[i] = 0;
  return to;
}

INLINE int in_pairs(const struct forward *f) {
  return HAS_PAIRS && f->new_is_bf16 && f->memory_is_bf16 && f->head_dim % (2 * LANES) == 0;
}

/* Whether keys and values need copies: whole vectors of float32. */
INLINE int widened(const struct forward *f) { return f->memory_is_bf16 || f->head_dim % LANES; }

/* Element i of a row, or pair i, in all lanes. */
INLINE vf all_lanes(const void *row, int i) { return (vf)((vi){} + ((const i32_any *)row)[i]); }

/* --- lanes across vectors -------------------------------------------------------------------------------------- */

static const vi LANE = LANE_NUMBERS;

/* What a shuffle of two vectors takes for the bit `step` of lane numbers. A lane with the bit 0 takes from the first
   vector, one with the bit 1 from the second: `low` the lane whose bit is 0, `high` the lane whose bit is 1. */
#define HALVES(step)                                           \
  const vi second = ((LANE & (step)) != 0) & (LANES - (step)); \
  const vi low = LANE + second, high = LANE + second + (step)

/* x[i][j] becomes x[j][i]. */
INLINE void turn(vf x[LANES]) {
#pragma GCC unroll 4
  for (int step = 1; step < LANES; step *= 2) {
    HALVES(step);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
      if (i & step) continue;
      const vf a = x[i], b = x[i + step];
      x[i] = __builtin_shuffle(a, b, low);
      x[i + step] = __builtin_shuffle(a, b, high);
    }
  }
}

/* Lane i of the answer is the sum over the lanes of x[i]. */
INLINE vf totals(vf x[LANES]) {
#pragma GCC unroll 4
  for (int step = 1; step < LANES; step *= 2) {
    HALVES(step);
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2 * step)
      x[i] = __builtin_shuffle(x[i], x[i + step], low) + __builtin_shuffle(x[i], x[i + step], high);
  }
  return x[0];
}

/* The largest lane, the sum of the lanes: in every lane. */
INLINE vf largest(vf x) {
#pragma GCC unroll 4
  for (int step = 1; step < LANES; step *= 2) x = larger(x, __builtin_shuffle(x, LANE ^ step));
  return x;
}

INLINE vf total(vf x) {
#pragma GCC unroll 4
  for (int step = 1; step < LANES; step *= 2) x += __builtin_shuffle(x, LANE ^ step);
  return x;
}

/* --- one block of keys ----------------------------------------------------------------------------------------- */

/* num_keys collected keys; those from num_free on are hidden from some rows of the tile. */
struct block {
  int num_keys, num_free;
  int padded, num_steps; /* floats of a row in scratch memory; floats or pairs of a key */
  int pairs, v_is_bf16;  /* keys or values are read as they lie in memory, bfloat16 */
  int by_units;          /* matrix units multiply, and p is rounded to bfloat16 */
  int v_bytes;           /* of a value that has yet to come near; 0 if it is a copy */
  float scale, cap;      /* score = product * scale, or cap * tanh(product * scale) */
};

/* A few small functions hold the inner loops. They are never inlined, so that what stands around them cannot take their
   registers. Inside, numbers of rows and vectors are constants. */
#define ALONE static __attribute__((noinline)) void

/* scores[key][row] of GROUP keys and V vectors of rows; q is [h][row], or [pair of h][row]. */
INLINE void score_group_of(float *scores, const float *q, const void *const *k, const struct block *b, const int V,
                           const int pairs) {
  const int num_steps = b->num_steps;
  vf sum[GROUP][2];
#pragma GCC unroll 8
  for (int j = 0; j < GROUP; j++)
#pragma GCC unroll 2
    for (int i = 0; i < V; i++) sum[j][i] = splat(0);
  for (int h = 0; h < num_steps; h++) {
    vf held[2];
#pragma GCC unroll 2
    for (int i = 0; i < V; i++) held[i] = load(q + (h * V + i) * LANES);
#pragma GCC unroll 8
    for (int j = 0; j < GROUP; j++) {
      const vf one = all_lanes(k[j], h);
#pragma GCC unroll 2
      for (int i = 0; i < V; i++) sum[j][i] = add_product(sum[j][i], one, held[i], pairs);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < GROUP; j++)
#pragma GCC unroll 2
    for (int i = 0; i < V; i++) store(scores + (j * V + i) * LANES, sum[j][i] * b->scale);
}

/* scores[row][key] of R rows; q is [row][h], padded rows. */
INLINE void score_rows_of(struct scratch *s, const float *q, const struct block *b, const int R, const int pairs) {
  const int together = LANES / R;
  for (int key = 0; key < b->num_keys; key += together) {
    vf sum[LANES];
    for (int j = key; j < key + together; j++) ask_for(s->v_at[j], b->v_bytes);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) sum[i] = splat(0);
    for (int h = 0; h < b->num_steps; h += LANES) {
#pragma GCC unroll 16
      for (int j = 0; j < together; j++) {
        const vf held = load((const float *)s->k_at[key + j] + h);
#pragma GCC unroll 4
        for (int i = 0; i < R; i++)
          sum[i * together + j] = add_product(sum[i * together + j], held, load(q + i * b->padded + h), pairs);
      }
    }
    float out[LANES];
    store(out, totals(sum) * b->scale);
    for (int i = 0; i < R; i++) memcpy(s->scores + i * KEYS + key, out + i * together, together * sizeof(float));
  }
}

/* out[row][..] = out * shrink + sum of p * v, for R rows and C vectors of a head from place h on. */
INLINE void weigh_part(float *out, const float *p, int row_step, int key_step, const void *const *v, int h,
                       const struct block *b, const float *shrink, const int R, const int C, const int v_is_bf16) {
  const int padded = b->padded;
  vf sum[4][SPAN];
#pragma GCC unroll 4
  for (int i = 0; i < R; i++)
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) sum[i][c] = load(out + i * padded + h + c * LANES) * shrink[i];
  for (int key = 0; key < b->num_keys; key++) {
    vf held[SPAN];
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
      const int place = h + c * LANES;
      held[c] = v_is_bf16 ? load_bf16((const uint16_t *)v[key] + place) : load((const float *)v[key] + place);
    }
#pragma GCC unroll 4
    for (int i = 0; i < R; i++) {
      const vf one = splat(p[i * row_step]);
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) sum[i][c] += one * held[c];
    }
    p += key_step;
  }
#pragma GCC unroll 4
  for (int i = 0; i < R; i++)
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) store(out + i * padded + h + c * LANES, sum[i][c]);
}

INLINE void weigh_of(float *out, const float *p, int row_step, int key_step, const void *const *v,
                     const struct block *b, const float *shrink, const int R, const int v_is_bf16) {
  int h = 0;
  for (; h + SPAN * LANES <= b->padded; h += SPAN * LANES)
    weigh_part(out, p, row_step, key_step, v, h, b, shrink, R, SPAN, v_is_bf16);
  for (; h < b->padded; h += LANES) weigh_part(out, p, row_step, key_step, v, h, b, shrink, R, 1, v_is_bf16);
}

ALONE score_group(float *scores, const float *q, const void *const *k, const struct block *b, int V) {
  if (HAS_PAIRS && b->pairs)
    V == 2 ? score_group_of(scores, q, k, b, 2, 1) : score_group_of(scores, q, k, b, 1, 1);
  else
    V == 2 ? score_group_of(scores, q, k, b, 2, 0) : score_group_of(scores, q, k, b, 1, 0);
}

ALONE score_rows(struct scratch *s, const float *q, const struct block *b, int R) {
  if (HAS_PAIRS && b->pairs)
    R == 4 ? score_rows_of(s, q, b, 4, 1) : R == 2 ? score_rows_of(s, q, b, 2, 1) : score_rows_of(s, q, b, 1, 1);
  else
    R == 4 ? score_rows_of(s, q, b, 4, 0) : R == 2 ? score_rows_of(s, q, b, 2, 0) : score_rows_of(s, q, b, 1, 0);
}

/* p of row i and key j is p[i * row_step + j * key_step]. */
ALONE weigh(float *out, const float *p, int row_step, int key_step, const void *const *v, const struct block *b,
            const float *shrink, int R) {
  if (HAS_PAIRS && b->v_is_bf16)
    R == 4   ? weigh_of(out, p, row_step, key_step, v, b, shrink, 4, 1)
    : R == 2 ? weigh_of(out, p, row_step, key_step, v, b, shrink, 2, 1)
             : weigh_of(out, p, row_step, key_step, v, b, shrink, 1, 1);
  else
    R == 4   ? weigh_of(out, p, row_step, key_step, v, b, shrink, 4, 0)
    : R == 2 ? weigh_of(out, p, row_step, key_step, v, b, shrink, 2, 0)
             : weigh_of(out, p, row_step, key_step, v, b, shrink, 1, 0);
}

/* cap * tanh(x), by way of a power that cannot overflow. */
INLINE vf soft_cap(vf x, float cap) {
  const vi sign = (vi)x & INT32_MIN;
  const vf power = exp2_vf((vf)((vi)x | INT32_MIN) * (2 * LOG2_E));
  return (vf)((vi)((1.0f - power) / (1.0f + power) * cap) | sign);
}

#if HAS_UNITS
/* The compiler does not know that a register is loaded from memory. */
#define IN_MEMORY __asm__ volatile("" ::: "memory")

/* Keys and values of a block as the units want them: s->k is [key][h], s->v [h][key], both bfloat16. Keys that are missing
   in the last 32 are those of key 0. */
static void place_block(struct scratch *s, const struct block *b) {
  const int H = b->padded, whole = up(b->num_keys, 2 * LANES);
  static const uint16_t LOW[32] = {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39,
                                   8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_loadu_si512(LOW), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  uint16_t *keys = (uint16_t *)s->k, *values = (uint16_t *)s->v;
  for (int j = b->num_keys; j < whole; j++) s->k_at[j] = s->k_at[0], s->v_at[j] = s->v_at[0];
  for (int j = 0; j < whole; j++) memcpy(keys + j * H, s->k_at[j], H * sizeof(uint16_t));
  for (int h = 0; h < H; h += 2 * LANES)
    for (int key = 0; key < whole; key += 2 * LANES) {
      vf x[LANES], y[LANES]; /* pairs of keys, of the first and the last 16 places */
      for (int i = 0; i < LANES; i++) {
        const __m512i even = _mm512_loadu_si512((const uint16_t *)s->v_at[key + 2 * i] + h);
        const __m512i odd = _mm512_loadu_si512((const uint16_t *)s->v_at[key + 2 * i + 1] + h);
        x[i] = (vf)_mm512_permutex2var_epi16(even, low, odd);
        y[i] = (vf)_mm512_permutex2var_epi16(even, high, odd);
      }
      turn(x);
      turn(y);
      for (int i = 0; i < LANES; i++) {
        store((float *)(values + (h + i) * KEYS + key), x[i]);
        store((float *)(values + (h + LANES + i) * KEYS + key), y[i]);
      }
    }
}

/* scores[key][row] of all keys and 32 rows. */
static void score_units(struct scratch *s, const float *q, const struct block *b) {
  const uint16_t *keys = (const uint16_t *)s->k;
  const int line = STRIP * sizeof(float);
  IN_MEMORY;
  for (int key = 0; key < b->num_keys; key += LANES) {
    _tile_zero(4);
    _tile_zero(5);
    for (int h = 0; h < b->num_steps; h += LANES) {
      _tile_loadd(0, keys + key * b->padded + 2 * h, b->padded * sizeof(uint16_t));
      _tile_loadd(2, q + h * STRIP, line);
      _tile_dpbf16ps(4, 0, 2);
      _tile_loadd(3, q + h * STRIP + LANES, line);
      _tile_dpbf16ps(5, 0, 3);
    }
    _tile_stored(4, s->scores + key * STRIP, line);
    _tile_stored(5, s->scores + key * STRIP + LANES, line);
  }
  for (int i = 0; i < b->num_keys * STRIP; i += LANES) store(s->scores + i, load(s->scores + i) * b->scale);
}

/* out[h][row] = out * shrink + sum of p * v, for 32 rows. */
static void weigh_units(struct scratch *s, float *out, const struct block *b, const float *shrink) {
  static const uint16_t PAIR[32] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i pair = _mm512_loadu_si512(PAIR);
  const int line = STRIP * sizeof(float), whole = up(b->num_keys, 2 * LANES);
  const uint16_t *values = (const uint16_t *)s->v;
  float *p = s->scores;
  memset(p + b->num_keys * STRIP, 0, (whole - b->num_keys) * line);
  for (int key = 0; key < whole; key += 2)
    for (int i = 0; i < STRIP; i += LANES) {
      const vf even = load(p + key * STRIP + i), odd = load(p + (key + 1) * STRIP + i);
      const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
      store(p + key / 2 * STRIP + i, (vf)_mm512_permutexvar_epi16(pair, both));
    }
  for (int i = 0; i < STRIP; i += LANES) {
    const vf by = load(shrink + i);
    for (int h = 0; h < b->padded; h++) store(out + h * STRIP + i, load(out + h * STRIP + i) * by);
  }
  IN_MEMORY;
  for (int h = 0; h < b->padded; h += LANES) {
    _tile_loadd(4, out + h * STRIP, line);
    _tile_loadd(5, out + h * STRIP + LANES, line);
    for (int key = 0; key < whole; key += 2 * LANES) {
      _tile_loadd(0, values + h * KEYS + key, KEYS * sizeof(uint16_t));
      _tile_loadd(2, p + key / 2 * STRIP, line);
      _tile_dpbf16ps(4, 0, 2);
      _tile_loadd(3, p + key / 2 * STRIP + LANES, line);
      _tile_dpbf16ps(5, 0, 3);
    }
    _tile_stored(4, out + h * STRIP, line);
    _tile_stored(5, out + h * STRIP + LANES, line);
  }
}

/* The output of 64 rows from [strip][h][row] to [row][h]. */
static void turn_output(struct scratch *s, int H) {
  memcpy(s->q, s->out, ROWS * H * sizeof(float));
  for (int row = 0; row < ROWS; row += LANES)
    for (int h = 0; h < H; h += LANES) {
      const float *from = s->q + row / STRIP * STRIP * H + h * STRIP + row % STRIP;
      vf x[LANES];
      for (int i = 0; i < LANES; i++) x[i] = load(from + i * STRIP);
      turn(x);
      for (int i = 0; i < LANES; i++) store(s->out + (row + i) * H + h, x[i]);
    }
}
#else
#define place_block(s, b) (void)0
#define score_units(s, q, b) (void)0
#define weigh_units(s, out, b, shrink) (void)0
#define turn_output(s, H) (void)0
#endif

/* A block against V vectors of rows from `row` on. */
INLINE void take_strip(struct scratch *s, const struct block *b, int row, const int V) {
  const int width = V * LANES, num_keys = b->num_keys;
  const float *q = s->q + row * b->padded;
  float *scores = s->scores;
  if (b->by_units) score_units(s, q, b);
  for (int key = 0; key < num_keys && !b->by_units; key += GROUP) {
    for (int j = key; j < key + GROUP && row == 0; j++) {
      ask_for(s->v_at[j], b->v_bytes);
      if (j + GROUP < num_keys) ask_for(s->k_at[j + GROUP], b->num_steps * sizeof(float));
    }
    score_group(scores + key * width, q, s->k_at + key, b, V);
  }
  if (b->cap != 0)
    for (int i = 0; i < num_keys * width; i += LANES) store(scores + i, soft_cap(load(scores + i), b->cap));
  for (int key = b->num_free; key < num_keys; key++)
    for (int i = 0; i < width; i += LANES) {
      const vi seen = *(const vi_any *)(s->seen + key * ROWS + row + i);
      store(scores + key * width + i, pick(seen, load(scores + key * width + i), splat(-INFINITY)));
    }
  vf best[2], sum[2], old[2];
  for (int i = 0; i < V; i++) best[i] = old[i] = load(s->best + row + i * LANES);
  for (int key = 0; key < num_keys; key++)
    for (int i = 0; i < V; i++) best[i] = larger(best[i], load(scores + key * width + i * LANES));
  for (int i = 0; i < V; i++) {
    const vf shrink = exp2_vf(old[i] - best[i]);
    sum[i] = load(s->sum + row + i * LANES) * shrink;
    store(s->shrink + row + i * LANES, shrink);
    store(s->best + row + i * LANES, best[i]);
  }
  for (int key = 0; key < num_keys; key++)
    for (int i = 0; i < V; i++) {
      const vf p = exp2_vf(load(scores + key * width + i * LANES) - best[i]);
      sum[i] += p;
      store(scores + key * width + i * LANES, p);
    }
  for (int i = 0; i < V; i++) store(s->sum + row + i * LANES, sum[i]);
}

/* A block against R rows from `row` on, if there are few. */
static void take_rows(struct scratch *s, const struct block *b, int row, int R) {
  const int num_keys = b->num_keys, whole = up(num_keys, LANES);
  score_rows(s, s->q + row * b->padded, b, R);
  for (int i = 0; i < R; i++) {
    float *scores = s->scores + i * KEYS;
    if (b->cap != 0)
      for (int key = 0; key < whole; key += LANES) store(scores + key, soft_cap(load(scores + key), b->cap));
    for (int key = b->num_free; key < num_keys; key++)
      if (!s->seen[key * ROWS + row + i]) scores[key] = -INFINITY;
    for (int key = num_keys; key < whole; key++) scores[key] = -INFINITY;
    vf tops = load(scores);
    for (int key = LANES; key < whole; key += LANES) tops = larger(tops, load(scores + key));
    const vf old = splat(s->best[row + i]), best = largest(larger(old, tops)), shrink = exp2_vf(old - best);
    vf sums = splat(0);
    for (int key = 0; key < whole; key += LANES) {
      const vf p = exp2_vf(load(scores + key) - best);
      sums += p;
      store(scores + key, p);
    }
    sums = total(sums) + s->sum[row + i] * shrink;
    s->best[row + i] = best[0];
    s->sum[row + i] = sums[0];
    s->shrink[row + i] = shrink[0];
  }
  weigh(s->out + row * b->padded, s->scores, KEYS, 1, s->v_at, b, s->shrink + row, R);
}

static void take_block(struct scratch *s, const struct block *b, int num_rows) {
  if (num_rows <= FEW) {
    for (int row = 0, R; row < num_rows; row += R) {
      R = num_rows - row >= 4 ? 4 : num_rows - row >= 2 ? 2 : 1;
      take_rows(s, b, row, R);
    }
    return;
  }
  if (b->by_units) place_block(s, b);
  for (int row = 0; row < num_rows; row += STRIP) {
    const int left = num_rows - row, width = left > LANES ? STRIP : LANES;
    if (width == STRIP)
      take_strip(s, b, row, 2);
    else
      take_strip(s, b, row, 1);
    if (b->by_units) weigh_units(s, s->out + row * b->padded, b, s->shrink + row);
    for (int m = 0; m < least(left, width) && !b->by_units; m += 4) /* up to 3 rows of padding: harmless */
      weigh(s->out + (row + m) * b->padded, s->scores + m, 1, width, s->v_at, b, s->shrink + row + m, 4);
  }
}

/* --- one item -------------------------------------------------------------------------------------------------- */

/* The first position that row t may see: Rule.first. */
INLINE int32_t first_of(const struct layer *l, int t) {
  const int32_t position = l->f->positions[t];
  if (l->rule->window) return position < l->rule->window ? 0 : position - l->rule->window + 1;
  return position - position % l->rule->chunk;
}

/* Queries as the scores want them, and what a tile knows of its rows. s->out is used on the way, then cleared. */
static void pack_rows(const struct layer *l, const struct item *it, struct scratch *s, int width, int few, int pairs) {
  const struct forward *f = l->f;
  const int H = f->head_dim, padded = up(H, LANES), r = f->num_heads / f->num_kv_heads;
  s->windowed = 0;
  for (int m = 0; m < width; m++) {
    const int valid = m < it->num_rows ? m : it->num_rows - 1; /* padding is as the last row, with a query of 0 */
    const int64_t row = (it->row + valid) / r, t = f->starts[it->b] + row, n = it->g * r + (it->row + valid) % r;
    float *to = s->out + m * padded;
    s->row_of[m] = row;
    if (l->rule->window || l->rule->chunk) s->windowed |= (s->first[m] = first_of(l, t)) > it->begin;
    if (f->visible) s->visible[m] = f->visible + t * f->num_own;
    s->best[m] = LOWEST;
    s->sum[m] = 0;
    if (m < it->num_rows)
      widen_row(to, at(l->q, t * f->q_row + n * f->q_head, f->new_is_bf16), f->new_is_bf16, H);
    else
      memset(to, 0, padded * sizeof(float));
    if (few && pairs)
      narrow((uint16_t *)(s->q + m * padded), to, H);
    else if (few)
      memcpy(s->q + m * padded, to, padded * sizeof(float));
  }
  for (int row = 0; row < width && !few; row += LANES) { /* [row][h] to [h][row], strip by strip */
    const int strip = row / STRIP * STRIP, vectors = width - strip >= STRIP ? 2 : 1;
    float *to = s->q + strip * padded + (row - strip);
    for (int h = 0; h < padded; h += LANES) {
      vf x[LANES];
      for (int i = 0; i < LANES; i++) x[i] = load(s->out + (row + i) * padded + h);
      turn(x);
      for (int i = 0; i < LANES; i += 2)
        if (pairs) {
          store(to + (h + i) / 2 * vectors * LANES, (vf)((vu)x[i] >> 16 | (vu)x[i + 1]));
        } else {
          store(to + (h + i) * vectors * LANES, x[i]);
          store(to + (h + i + 1) * vectors * LANES, x[i + 1]);
        }
    }
  }
  memset(s->out, 0, (size_t)width * padded * sizeof(float));
}

/* Which rows see own column e, as lanes; whether any does. */
static int see_own(const struct layer *l, const struct item *it, struct scratch *s, int e, int32_t *seen, int width) {
  const struct forward *f = l->f;
  const int start = f->starts[it->b], num_new = f->starts[it->b + 1] - start;
  int any = 0;
  if (f->visible)
    for (int m = 0; m < width; m++) any |= seen[m] = -(int32_t)s->visible[m][e];
  else
    for (int m = 0; m < width; m++) any |= seen[m] = -(e <= s->row_of[m]);
  if (!s->windowed) return any;
  const int32_t position = f->own_positions ? f->own_positions[(int64_t)it->b * f->num_own + e]
                                            : e < num_new ? f->positions[start + e] : -1;
  any = 0;
  for (int m = 0; m < width; m++) any |= seen[m] &= -(position >= s->first[m]);
  return any;
}

static int see_prefix(const struct scratch *s, int64_t column, int32_t *seen, int width) {
  int any = 0;
  for (int m = 0; m < width; m++) any |= seen[m] = -(column >= s->first[m]);
  return any;
}

/* The next block: up to `room` keys from *column on that any row sees. Those before num_free are seen by all. */
static int collect(const struct layer *l, const struct item *it, struct scratch *s, int64_t *column,
                   struct block *block, int room, int width) {
  const struct forward *f = l->f;
  const int H = f->head_dim, copies = widened(f);
  const int32_t *table = f->table + (int64_t)f->lines[it->b] * f->num_columns,
                *own = f->own + (int64_t)it->b * f->num_own;
  const int64_t bytes = H * (f->memory_is_bf16 ? 2 : 4), slot_bytes = f->num_kv_heads * bytes;
  const int64_t length = f->lengths[it->b];
  const char *keys = (const char *)l->keys + it->g * bytes, *values = (const char *)l->values + it->g * bytes;
  /* No row is asked about columns before this one: the prefix, and what comes before all rows of a causal block. */
  const int64_t open = s->windowed ? 0 : f->visible ? length : length + s->row_of[0] + 1;
  int64_t c = *column;
  int n = 0;
  block->num_free = c < open ? least(room, open - c) : 0;
  for (; n < room && c < it->end; c++) {
    int32_t *seen = s->seen + n * ROWS;
    if (c >= open && c < length && !see_prefix(s, c, seen, width)) continue;
    if (c >= open && c >= length && !see_own(l, it, s, c - length, seen, width)) continue;
    const int64_t offset = slot_bytes * (c < length ? table[c] : own[c - length]);
    s->k_at[n] = keys + offset;
    s->v_at[n++] = values + offset;
    if (c + AHEAD >= length) continue;
    const int64_t later = slot_bytes * table[c + AHEAD];
    ask_for(keys + later, bytes);
    if (copies) ask_for(values + later, bytes);
  }
  *column = c;
  block->num_keys = n;
  for (int j = 0; j < n && copies && !block->pairs; j++)
    s->k_at[j] = widen_row(s->k + j * block->padded, s->k_at[j], f->memory_is_bf16, H);
  for (int j = 0; j < n && copies && !block->v_is_bf16; j++)
    s->v_at[j] = widen_row(s->v + j * block->padded, s->v_at[j], f->memory_is_bf16, H);
  for (int j = n; j % GROUP || j % LANES; j++) s->k_at[j] = s->k_at[0], s->v_at[j] = s->v_at[0]; /* groups are whole */
  return n;
}

/* The output of one row of a tile; acc is used up. */
static void write_row(const struct layer *l, const struct item *it, int m, float *acc, float best, float sum) {
  const struct forward *f = l->f;
  const int H = f->head_dim, r = f->num_heads / f->num_kv_heads;
  const int64_t t = f->starts[it->b] + (it->row + m) / r, n = it->g * r + (it->row + m) % r;
  if (l->rule->sinks) sum += exp2f(l->rule->sinks[n] * LOG2_E - best);
  const float weight = sum == 0 ? 0 : 1 / sum;
  for (int h = 0; h < H; h++) acc[h] *= weight;
  convert((void *)at(l->out, (t * f->num_heads + n) * H, f->new_is_bf16), f->new_is_bf16, acc, 0, H);
}

/* noipa: the address of thread_scratch, a call, is not to be computed again and again. */
static __attribute__((noipa)) void run_item(const struct layer *l, const struct item *it, struct scratch *s) {
  const int H = l->f->head_dim, padded = up(H, LANES), few = it->num_rows <= FEW, pairs = in_pairs(l->f);
  const int width = few ? it->num_rows : up(it->num_rows, LANES);
  const int room = least(KEYS, ROOM / padded / LANES * LANES);
  const float softcap = l->rule->softcap, scale = l->rule->scale;
  const int request_rows = l->f->starts[it->b + 1] - l->f->starts[it->b];
  const int is_prompt = request_rows > MOST_NODES && it->num_rows > ROWS - LANES;
  const int by_units = HAS_UNITS && pairs && is_prompt && H % (2 * LANES) == 0 && room == KEYS && eyas_linear_units();
  struct block block = {.padded = padded, .num_steps = few ? padded : H, .pairs = pairs, .by_units = by_units};
  block.v_is_bf16 = pairs && (few || by_units);
  if (pairs) block.num_steps = H / 2;
  if (block.v_is_bf16 || !widened(l->f)) block.v_bytes = H * (block.v_is_bf16 ? 2 : 4);
  block.scale = softcap != 0 ? scale / softcap : scale * LOG2_E;
  block.cap = softcap * LOG2_E;
  pack_rows(l, it, s, width, few, pairs);
  int64_t column = it->begin;
  if (by_units) set_units(2 * UNIT_ROWS);
  while (collect(l, it, s, &column, &block, room, width)) take_block(s, &block, it->num_rows);
  if (by_units) {
    _tile_release();
    turn_output(s, H);
  }
  for (int m = 0; m < it->num_rows; m++) {
    float *acc = s->out + m * padded;
    if (!it->partial) {
      write_row(l, it, m, acc, s->best[m], s->sum[m]);
      continue;
    }
    memcpy(it->partial + m * H, acc, H * sizeof(float));
    it->partial[it->num_rows * H + m] = s->best[m];
    it->partial[it->num_rows * (H + 1) + m] = s->sum[m];
  }
}

/* Put together the parts of a tile whose keys were shared out: num_parts items from `it` on. */
static void merge(const struct layer *l, const struct item *it) {
  const int H = l->f->head_dim, R = it->num_rows;
  for (int m = 0; m < R; m++) {
    float best = LOWEST, sum = 0, *acc = it->partial + m * H;
    for (int i = 0; i < it->num_parts; i++) best = fmaxf(best, it[i].partial[R * H + m]);
    for (int i = 0; i < it->num_parts; i++) {
      const float *part = it[i].partial, weight = exp2f(part[R * H + m] - best);
      sum += weight * part[R * (H + 1) + m];
      for (int h = 0; h < H; h++) acc[h] = (i == 0 ? 0 : acc[h]) + weight * part[m * H + h];
    }
    write_row(l, it, m, acc, best, sum);
  }
}

/* --- one call -------------------------------------------------------------------------------------------------- */

/* Keys and values of row t go to its slot. */
static void write_slot(const struct layer *l, int t) {
  const struct forward *f = l->f;
  const int H = f->head_dim;
  for (int g = 0; g < f->num_kv_heads; g++) {
    const int64_t to = ((int64_t)f->slots[t] * f->num_kv_heads + g) * H;
    convert((void *)at(l->keys, to, f->memory_is_bf16), f->memory_is_bf16,
            at(l->k, t * f->k_row + g * f->k_head, f->new_is_bf16), f->new_is_bf16, H);
    convert((void *)at(l->values, to, f->memory_is_bf16), f->memory_is_bf16,
            at(l->v, t * f->v_row + g * f->v_head, f->new_is_bf16), f->new_is_bf16, H);
  }
}

/* The columns of a tile: from the first that its rows may see to the last. */
static void set_range(const struct layer *l, struct item *it) {
  const struct forward *f = l->f;
  const int r = f->num_heads / f->num_kv_heads, last = (it->row + it->num_rows - 1) / r;
  const int64_t length = f->lengths[it->b];
  it->begin = 0;
  it->end = length + (f->visible ? f->num_own : least(f->num_own, last + 1));
  if (l->rule->window || l->rule->chunk) {
    it->begin = length;
    for (int t = it->row / r; t <= last; t++) it->begin = least(it->begin, first_of(l, f->starts[it->b] + t));
  }
}

/* Tiles of all requests, the long ones of a causal block first; the keys of a tile in parts if there are fewer tiles
   than threads. With `items` null they are only counted, floats of partial sums included. */
static int64_t plan(const struct layer *l, int num_threads, int64_t num_tiles, struct item *items, float *partial,
                    int64_t *num_partial, int64_t *work) {
  const struct forward *f = l->f;
  const int H = f->head_dim, r = f->num_heads / f->num_kv_heads;
  const int rows = least(ROWS, ROOM / up(H, LANES) / LANES * LANES);
  const int64_t want = num_tiles && num_tiles < num_threads ? (2 * num_threads + num_tiles - 1) / num_tiles : 1;
  int64_t count = 0;
  *num_partial = *work = 0;
  for (int b = 0; b < f->num_requests; b++) {
    const int num_rows = (f->starts[b + 1] - f->starts[b]) * r;
    for (int row = (num_rows - 1) / rows * rows; row >= 0 && num_rows; row -= rows)
      for (int g = 0; g < f->num_kv_heads; g++) {
        struct item it = {.b = b, .g = g, .row = row, .num_rows = least(rows, num_rows - row)};
        set_range(l, &it);
        const int64_t begin = it.begin, end = it.end, keys = end - begin;
        *work += keys * it.num_rows * H * 2;
        int64_t parts = least(want, keys / MIN_SPLIT);
        if (parts < 1) parts = 1;
        for (int64_t i = 0; i < parts; i++, count++) {
          it.begin = begin + keys * i / parts;
          it.end = begin + keys * (i + 1) / parts;
          it.num_parts = i == 0 && parts > 1 ? parts : 0;
          it.partial = partial && parts > 1 ? partial + *num_partial : NULL;
          if (parts > 1) *num_partial += it.num_rows * (H + 2);
          if (items) items[count] = it;
        }
      }
  }
  return count;
}

struct items {
  const struct layer *l;
  struct item *items;
};

static void run_one(void *context, int64_t i) {
  const struct items *all = context;
  run_item(all->l, all->items + i, &thread_scratch);
}

static void merge_one(void *context, int64_t i) {
  const struct items *all = context;
  if (all->items[i].num_parts) merge(all->l, all->items + i);
}

/* Writes the rows' keys and values to their slots and fills out [T, N, H]. Returns 0, or 1 where memory ran out. */
int eyas_attend(const struct forward *f, const struct rule *rule, const void *q, const void *k, const void *v,
                void *keys, void *values, void *out) {
  const struct layer l = {f, rule, q, k, v, keys, values, out};
  struct item near[64], *items = near;
  float *partial = NULL;
  int64_t num_partial, work;
  const int64_t num_tiles = plan(&l, 1, 0, NULL, NULL, &num_partial, &work);
  const int num_threads = work < MIN_WORK ? 1 : eyas_threads(f->num_threads);
  const int64_t count = plan(&l, num_threads, num_tiles, NULL, NULL, &num_partial, &work);
  if (count > 64) items = malloc(count * sizeof(struct item));
  if (num_partial) partial = malloc(num_partial * sizeof(float));
  const int failed = !items || (num_partial && !partial);
  if (!failed) plan(&l, num_threads, num_tiles, items, partial, &num_partial, &work);
  if (!failed && num_threads == 1) {
    for (int t = 0; t < f->num_rows; t++) write_slot(&l, t);
    for (int64_t i = 0; i < count; i++) run_item(&l, items + i, &thread_scratch);
  } else if (!failed) {
    struct items all = {&l, items};
    for (int t = 0; t < f->num_rows; t++) write_slot(&l, t);
    eyas_parallel_for(num_threads, count, run_one, &all);
    if (num_partial) eyas_parallel_for(num_threads, count, merge_one, &all);
  }
  free(partial);
  if (items != near) free(items);
  return failed;
}
