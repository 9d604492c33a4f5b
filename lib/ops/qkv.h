/* qkv.h - what attention's backward takes from op qkv, on the CPU. */
#ifndef OPS_QKV_H
#define OPS_QKV_H

#include "ops/cpu.h"

/* The first 2D columns of dqkv (T,3D), the gradients of raw q and k (op_list.h, attention_bwd),
 * from those of q and k (T,D); k has T + 1 rows with a key offset. */
void cpu_raw_grads(struct ops *o, struct tensor dqkv, struct tensor dq, struct tensor dk,
                   struct tensor q, struct tensor k, const struct qk_made *m, int tokens);
/* The last D columns, from dv (T,D). */
void cpu_join_values(struct tensor dqkv, struct tensor dv);

#endif
