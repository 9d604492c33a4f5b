/* cache_values.c - values of a call's rows into the cache (op_list.h). */
#include "ops/cpu.h"

void cpu_cache_values(struct ops *o, const struct kv_cache *c, struct tensor v)
{
    if (cpu_failed(o))
        return;
    assert(c->v.cols == v.cols);
    for (int64_t t = 0; t < v.rows; t++)
        memcpy(real_ptr(c->v) + cached_row(c, t) * v.cols, real_ptr(v) + t * v.cols,
               (size_t)v.cols * sizeof(real));
}
