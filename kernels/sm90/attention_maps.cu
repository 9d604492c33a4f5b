/* attention_maps.cu - tensor maps of attention's arguments, and the launch of Hopper's kernels. */
#include "sm90/attention_maps.h"
#include "sm90/tensor_map.h"

namespace
{

CUtensorMapSwizzle swizzle_of(cuuint32_t panel)
{
    return panel < 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
}

/* x: (rows, heads * E) bf16; boxes of 64 rows and one panel, as struct block stores them. */
bool map_of(CUtensorMap *map, const struct attn_shape *s, const void *x)
{
    const cuuint32_t panel = s->head_dim < 64 ? s->head_dim : 64;
    const cuuint64_t d = (cuuint64_t)s->heads * s->head_dim;
    return encode_map<2>(map, { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                x,
                                { d, (cuuint64_t)s->rows },
                                { 2 * d },
                                { panel, BLOCK },
                                swizzle_of(panel) });
}

/* Gradients of x, a token's row each `stride` numbers: boxes as those of x, channels by rows of a
 * token by tokens. */
bool map_of_grad(CUtensorMap *map, const struct attn_shape *s, const void *x, int64_t stride)
{
    const cuuint32_t panel = s->head_dim < 64 ? s->head_dim : 64, pair = s->cu_mul;
    const cuuint64_t d = (cuuint64_t)s->heads * s->head_dim;
    return pair <= 2 && encode_map<3>(map, { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                             x,
                                             { d, pair, (cuuint64_t)s->rows / pair },
                                             { 2 * d, 2 * (cuuint64_t)stride },
                                             { panel, pair, BLOCK / pair },
                                             swizzle_of(panel) });
}

/* x: (rows, cols) of 4-byte numbers; boxes of `box` columns of one row. */
bool map_of_words(CUtensorMap *map, CUtensorMapDataType type, const void *x, int rows, int cols,
                  cuuint32_t box)
{
    return encode_map<2>(map, { type,
                                x,
                                { (cuuint64_t)cols, (cuuint64_t)rows },
                                { 4 * (cuuint64_t)cols },
                                { box, 1 },
                                CU_TENSOR_MAP_SWIZZLE_NONE,
                                CU_TENSOR_MAP_L2_PROMOTION_NONE });
}
bool map_of_stat(CUtensorMap *map, const struct attention_call *c, const float *x)
{
    return map_of_words(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, x, c->s.heads, c->p.padded, BLOCK);
}
bool map_of_items(CUtensorMap *map, const struct attention_call *c, const struct reach *x)
{
    return map_of_words(map, CU_TENSOR_MAP_DATA_TYPE_INT32, x, c->p.items + 1, 4, 4);
}

} /* namespace */

cudaError_t attention_sm90_forward(cudaStream_t stream, const struct attention_call *c, void *out,
                                   const void *q, const void *k, const void *v)
{
    const struct attn_shape *s = &c->s;
    struct forward_maps m;

    if (!map_of(&m.q, s, q) || !map_of(&m.k, s, k) || !map_of(&m.v, s, v) ||
        !map_of(&m.out, s, out) || !map_of_items(&m.by_query, c, c->p.by_query))
        return cudaErrorInvalidValue;
    return attention_launch_forward(stream, c, &m);
}

cudaError_t attention_sm90_backward(cudaStream_t stream, const struct attention_call *c,
                                    const void *dout, const void *q, const void *k, const void *v)
{
    const struct attn_shape *s = &c->s;
    const struct attention_grads *g = &c->grads;
    struct backward_maps m;

    if (!map_of(&m.q, s, q) || !map_of(&m.k, s, k) || !map_of(&m.v, s, v) ||
        !map_of(&m.dout, s, dout) || !map_of_grad(&m.dq, s, g->dq, g->dq_stride) ||
        !map_of_grad(&m.dk, s, g->dk, g->dk_stride) ||
        !map_of_grad(&m.dv, s, g->dv, g->dv_stride) || !map_of_stat(&m.lse2, c, c->p.lse2) ||
        !map_of_stat(&m.delta, c, c->p.delta) || !map_of_items(&m.by_key, c, c->p.by_key) ||
        !map_of_items(&m.by_query, c, c->p.by_query))
        return cudaErrorInvalidValue;
    return attention_launch_backward(stream, c, &m);
}
