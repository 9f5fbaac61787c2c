/* What callers of cpu_attention.c hand over: cpu_attention.py mirrors both structs.
   cpu_operator.cpp fills them, too. */

#ifndef EYAS_CPU_ATTENTION_H
#define EYAS_CPU_ATTENTION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the layers of one forward share; names are those of `Rows`. Strides are in elements. */
struct forward {
  const int32_t *starts, *lines, *lengths, *slots, *own, *positions, *table;
  const uint8_t *visible;       /* or null: causal */
  const int32_t *own_positions; /* or null: slot e of the own block is row e of the request */
  int64_t q_row, q_head, k_row, k_head, v_row, v_head;
  int32_t num_requests, num_rows, num_heads, num_kv_heads, head_dim, num_own, num_columns, num_threads;
  int32_t new_is_bf16, memory_is_bf16; /* q, k, v and out; keys and values */
};

/* What one layer asks for: model/attention.py. 0 and null stand for None. */
struct rule {
  const float *sinks;
  float scale, softcap;
  int32_t window, chunk;
};

/* One layer: writes the rows' keys and values to their slots, fills out. 0, or 1 where there is no memory for sums. */
int eyas_attend(const struct forward *f, const struct rule *rule, const void *q, const void *k, const void *v,
                void *keys, void *values, void *out);

#ifdef __cplusplus
}
#endif

#endif
