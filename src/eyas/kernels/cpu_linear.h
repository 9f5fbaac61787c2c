/* What callers of cpu_linear.c pass. cpu_linear.py mirrors the struct. cpu_operator.cpp fills it, too. */

#ifndef EYAS_CPU_LINEAR_H
#define EYAS_CPU_LINEAR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One linear layer, all of one type: float32, or bfloat16. x_row is in elements; rows of `out` are contiguous. */
struct linear {
  const void *x, *weight; /* the weight is packed */
  const float *bias;      /* or null */
  void *out;
  int64_t x_row, num_rows, num_in, num_out;
  int32_t is_bf16, num_threads;
};

/* The number of outputs of a panel. */
int eyas_linear_width(void);

/* Returns 1 if layers of bfloat16 are computed by matrix units. */
int eyas_linear_units(void);

/* Fills `out`. Returns 0, or 1 if there is no memory. */
int eyas_linear(const struct linear *l);

#ifdef __cplusplus
}
#endif

#endif
