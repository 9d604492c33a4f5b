/* few_rows.cuh - what products of few rows (few_rows.cu) and of one (sm90/one_row.cu) share. */
#ifndef KERNELS_FEW_ROWS_CUH
#define KERNELS_FEW_ROWS_CUH

#include "few_rows.h"
#include "mix.h"
#include "vec.h"

struct product_args {
    void *out;
    const bf16 *x, *w, *add;
    const float *scale;
    int rows, in, cols; /* T, I, O */
    enum few_rows_end end;
    float cap_a, cap_b, cap_c;
    const void *bias; /* (O) of a capped sum; or NULL */
    bool bias_f32;
    mix_args mix; /* that x is the norm of, made here, when n is not 0 */
};

__device__ __forceinline__ uint4 load_16(const bf16 *p, bool exists)
{
    return exists ? *(const uint4 *)p : make_uint4(0, 0, 0, 0);
}

__device__ __forceinline__ float scale_of(const product_args &a) { return a.scale ? *a.scale : 1; }
__device__ __forceinline__ float added(const product_args &a, int t, int o)
{
    return a.add && t < a.rows && o < a.cols ? __bfloat162float(a.add[(int64_t)t * a.cols + o]) : 0;
}

__device__ __forceinline__ void finish(const product_args &a, int t, int o, float sum)
{
    if (t >= a.rows || o >= a.cols)
        return;
    int64_t at = (int64_t)t * a.cols + o;
    if (a.end == FEW_SOFTCAP || a.end == FEW_ROOT_CAP) {
        if (a.bias)
            sum += load_any(a.bias, a.bias_f32, o);
        float u = (sum + a.cap_b) / a.cap_c;
        ((float *)a.out)[at] =
            a.cap_a * (a.end == FEW_SOFTCAP ? sigmoid(u) : u / sqrtf(fmaf(u, u, 1)));
        return;
    }
    bf16 y = __float2bfloat16(sum);
    if (a.end == FEW_RELU2) {
        float r = relu(__bfloat162float(y));
        y = __float2bfloat16(r * r);
    }
    ((bf16 *)a.out)[at] = y;
}

enum {
    FEW_WARPS = 8, /* of a block: its sums, in order, are a row's */
    SOME_COLUMNS = 16 * 1024 /* up to so many, all blocks of w (I,O) are resident at once */
};

#endif
