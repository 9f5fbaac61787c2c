/* Vectors of floats that the CPU operators share: as wide as the processor that the compiler builds for. */

#ifndef EYAS_CPU_VECTORS_H
#define EYAS_CPU_VECTORS_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX__)
#include <immintrin.h>
#endif

/* Floats of a vector. */
#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

/* 1 if the processor multiplies pairs of bfloat16 and adds both products to a float32. */
#if defined(__AVX512BF16__)
enum { HAS_PAIRS = 1 };
#else
enum { HAS_PAIRS = 0 };
#endif

/* 1 if the processor has matrix units for bfloat16 (AMX). Their registers have 16 rows of 64 bytes, as a vector has. */
#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define HAS_UNITS 1
#else
#define HAS_UNITS 0
#endif

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef float vf_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t u32_any __attribute__((may_alias));
typedef uint16_t vh_any __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE vf splat(float x) { return x - (vf){}; }
/* The 4 bytes at p in all lanes. */
INLINE vf splat_bits(const float *p) { return (vf)((vu){} + *(const u32_any *)p); }
INLINE vf load(const float *p) { return *(const vf_any *)p; }
INLINE vf load_bf16(const uint16_t *p) { return (vf)(__builtin_convertvector(*(const vh_any *)p, vu) << 16); }
INLINE void store(float *p, vf x) { *(vf_any *)p = x; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

INLINE float from_bf16(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

/* Rounds to nearest, ties to even. NaN stays NaN. */
INLINE uint16_t to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (uint16_t)rounded;
}

static inline void widen(float *restrict to, const uint16_t *restrict from, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) store(to + i, load_bf16(from + i));
  for (; i < n; i++) to[i] = from_bf16(from[i]);
}

static inline void narrow(uint16_t *restrict to, const float *restrict from, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512BF16__)
  for (; i + 2 * LANES <= n; i += 2 * LANES) {
    const __m512 low = _mm512_loadu_ps(from + i), high = _mm512_loadu_ps(from + i + LANES);
    _mm512_storeu_si512(to + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
#endif
  for (; i < n; i++) to[i] = to_bf16(from[i]);
}

/* Rows of a register of a matrix unit. */
enum { UNIT_ROWS = 16 };

#if HAS_UNITS
/* Sets the registers for products of R rows, at most 32: 0 and 1 hold the rows, 2 and 3 the other factor, 4 to 7 sums. */
INLINE void set_units(int R) {
  struct {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } config = {.palette = 1};
  const int first = least(R, UNIT_ROWS), second = R > UNIT_ROWS ? R - UNIT_ROWS : R;
  const int rows[] = {first, second, UNIT_ROWS, UNIT_ROWS, first, first, second, second};
  for (int i = 0; i < 8; i++) config.rows[i] = rows[i], config.bytes[i] = 64;
  _tile_loadconfig(&config);
}
#else
INLINE void set_units(int R) { (void)R; }
#define _tile_release() (void)0
#endif

/* Returns sum + a * b for each lane. If `pairs` is set, the lanes of a and b are pairs of bfloat16, and both products
   are added. */
INLINE vf add_product(vf sum, vf a, vf b, const int pairs) {
#if defined(__AVX512BF16__)
  if (pairs) return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
  (void)pairs;
  return sum + a * b;
}

#endif
