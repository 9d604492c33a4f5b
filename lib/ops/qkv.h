/* qkv.h - what attention's backward takes from op qkv, on the CPU. */
#ifndef OPS_QKV_H
#define OPS_QKV_H

#include "ops/cpu.h"

/* The first 2Q columns of dqkv (T,2Q+D), the gradients of raw q and k (op_list.h, attention_bwd),
 * from those of q and k (T,Q); k has T + 1 rows with a key offset. */
void cpu_raw_grads(struct ops *o, struct tensor dqkv, struct tensor dq, struct tensor dk,
                   struct tensor q, struct tensor k, const struct qk_made *m, int tokens);
/* The last D columns, from dv (T,D). */
void cpu_join_values(struct ops *o, struct tensor dqkv, struct tensor dv);
/* Writes codes of x's first n columns into those of g from `first` on; x may lie where they do, from its first column
 * on. */
void cpu_gradient_codes(const struct fp8_gradient *g, int64_t first, struct tensor x, int64_t n);
/* Returns s's codes of raw's gradient, or NULL. */
static inline const struct fp8_gradient *cpu_dqkv8(const struct qkv_shape *s)
{
    return DT_REAL == DT_F32 ? s->dqkv8 : NULL;
}

/* True of channels whose key in the cache is that of the token before. */
static inline bool cached_offset(const struct kv_cache *c, int64_t channel, int64_t size)
{
    int64_t quarter = channel / (size / 4);
    return c->key_offset == KEY_OFFSET_HALF       ? quarter >= 2
           : c->key_offset == KEY_OFFSET_QUARTERS ? quarter % 2
                                                  : false;
}

#endif
