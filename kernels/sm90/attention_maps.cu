/* attention_maps.cu - tensor maps of attention's arguments, and the launch of Hopper's kernels. */
#include "sm90/attention_maps.h"
#include "sm90/tensor_map.h"

namespace
{

/* x: (rows, heads * E) bf16; boxes of 64 rows and one panel, as struct block stores them. */
bool map_of(CUtensorMap *map, const struct attn_shape *s, const void *x)
{
    const int panel = s->head_dim < 64 ? s->head_dim : 64;
    const cuuint64_t size[2] = { (cuuint64_t)s->heads * s->head_dim, (cuuint64_t)s->rows };
    const cuuint64_t stride[1] = { size[0] * 2 };
    const cuuint32_t box[2] = { (cuuint32_t)panel, BLOCK }, step[2] = { 1, 1 };
    encode_fn encode = tensor_map_encoder();
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)x, size, stride, box,
                            step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            panel < 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Gradients of x, a token's row each `stride` numbers: boxes as those of x, channels by rows of a
 * token by tokens. */
bool map_of_grad(CUtensorMap *map, const struct attn_shape *s, const void *x, int64_t stride)
{
    const int panel = s->head_dim < 64 ? s->head_dim : 64, pair = s->cu_mul;
    const cuuint64_t size[3] = { (cuuint64_t)s->heads * s->head_dim, (cuuint64_t)pair,
                                 (cuuint64_t)(s->rows / pair) };
    const cuuint64_t strides[2] = { size[0] * 2, (cuuint64_t)stride * 2 };
    const cuuint32_t box[3] = { (cuuint32_t)panel, (cuuint32_t)pair, (cuuint32_t)(BLOCK / pair) };
    const cuuint32_t step[3] = { 1, 1, 1 };
    encode_fn encode = tensor_map_encoder();
    return encode && pair <= 2 &&
           encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)x, size, strides, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                  panel < 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* x: (rows, cols) of 4-byte numbers; boxes of `box` columns of one row. */
bool map_of_words(CUtensorMap *map, CUtensorMapDataType type, const void *x, int rows, int cols,
                  int box_cols)
{
    const cuuint64_t size[2] = { (cuuint64_t)cols, (cuuint64_t)rows };
    const cuuint64_t stride[1] = { size[0] * 4 };
    const cuuint32_t box[2] = { (cuuint32_t)box_cols, 1 }, step[2] = { 1, 1 };
    encode_fn encode = tensor_map_encoder();
    return encode &&
           encode(map, type, 2, (void *)x, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
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
