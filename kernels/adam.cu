/* adam.cu - Adam with cautious decay, element by element, one pass.
 *
 * Contract: ops.h, record-61.md 4.4. Bytes an element: weight 2 + 2, gradient 2, moments 8 + 8 =
 * 22 (bf16 weight, f32 moments). Each thread takes 8 elements by 16-byte accesses. Every
 * operation rounds once, in the order of lib/ops/adam.c, division and root included: the bits are
 * the reference's.
 *
 * gpu_adam_fp8 writes besides an e4m3 copy of the new weight as the head wants it: w / scale,
 * saturating, of the weight as stored; amax = max |w| of this call (it is a maximum, so the order
 * of threads does not show) and scale_inv = 1 / scale in IEEE arithmetic.
 */
#include <cuda_fp8.h>
#include "adam.h"
#include "gpu.h"
#include "optim.h"

enum { THREADS = 256 };

/* What does not change from element to element. */
struct constants { float beta1, rest1, beta2, rest2, eps; };

struct fp8_copy { uint8_t *w8; const float *scale; float *scale_inv; uint32_t *amax_bits; };

/* The change from the moments as computed, before they are stored in their own type. */
__device__ __forceinline__ float changed(float w, float m, float v, const constants &k,
                                         float step_size, float decay_rate)
{
    float delta = mul(quot(m, add(root(v), k.eps)), step_size);
    float decay = mul(decay_rate, w);
    delta = add(delta, mul(delta, w) > 0 ? decay : 0);
    return sub(w, delta);
}

template <int WIDTH, bool FP8, typename W, typename G, typename M>
static __global__ void __launch_bounds__(THREADS)
adam(W *w, const G *g, M *m, M *v, int64_t count, const constants k, const struct adam_step *a,
     const fp8_copy copy)
{
    __shared__ float warps[32];
    float step_size = a->step_size, decay = a->decay, scale = FP8 ? *copy.scale : 1, most = 0;
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH;

    for (int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH; at < count;
         at += stride) {
        float wi[WIDTH], gi[WIDTH], mi[WIDTH], vi[WIDTH];
        load<WIDTH>(wi, w + at);
        load<WIDTH>(gi, g + at);
        load<WIDTH>(mi, m + at);
        load<WIDTH>(vi, v + at);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            mi[e] = add(mul(k.beta1, mi[e]), mul(k.rest1, gi[e]));
            vi[e] = add(mul(k.beta2, vi[e]), mul(k.rest2, mul(gi[e], gi[e])));
            wi[e] = changed(wi[e], mi[e], vi[e], k, step_size, decay);
        }
        store<WIDTH>(w + at, wi);
        store<WIDTH>(m + at, mi);
        store<WIDTH>(v + at, vi);
        if (FP8) {
            uint8_t q[WIDTH];
#pragma unroll
            for (int e = 0; e < WIDTH; e++) {
                W stored;
                narrow(&stored, wi[e]);
                most = fmaxf(most, fabsf(widen(stored)));
                q[e] = __nv_cvt_float_to_fp8(quot(widen(stored), scale), __NV_SATFINITE,
                                             __NV_E4M3);
            }
            if constexpr (WIDTH == 8)
                *(uint2 *)(copy.w8 + at) = *(const uint2 *)q;
            else
                copy.w8[at] = q[0];
        }
    }
    if (FP8) {
        most = warp_max(most);
        if (threadIdx.x % 32 == 0)
            warps[threadIdx.x / 32] = most;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int i = 1; i < THREADS / 32; i++)
                most = fmaxf(most, warps[i]);
            atomicMax(copy.amax_bits, __float_as_uint(most));   /* of numbers >= 0: order of bits */
            if (blockIdx.x == 0)
                *copy.scale_inv = quot(1, scale);
        }
    }
}

template <bool FP8>
static void run(struct ops *o, struct tensor w, struct tensor g, struct tensor m, struct tensor v,
                double beta1, double beta2, double eps, const struct adam_step *a,
                const fp8_copy &copy)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(w);
    assert(tensor_count(g) == count && tensor_count(m) == count && tensor_count(v) == count);
    if (c->failed || count == 0
        || !CUDA_NEED(c, is_float(w) && is_float(g), "w and g must be f32 or bf16")
        || !CUDA_NEED(c, is_float(m) && m.dtype == v.dtype, "both moments must be f32, or bf16"))
        return;
    constants k = { (float)beta1, (float)(1 - beta1), (float)beta2, (float)(1 - beta2),
                    (float)eps };
    bool by_8 = wide(w, count) && wide(g, count) && wide(m, count) && wide(v, count)
                && (!FP8 || (uintptr_t)copy.w8 % 8 == 0);
    int64_t blocks = (count - 1) / (THREADS * (by_8 ? 8 : 1)) + 1;
    unsigned grid = (unsigned)(blocks < 1 << 30 ? blocks : 1 << 30);
    with_type(w, [&](auto *pw) {
        with_type(g, [&](auto *pg) {
            with_type(m, [&](auto *pm) {
                auto *pv = (decltype(pm))v.data;
                if (by_8)
                    adam<8, FP8><<<grid, THREADS, 0, c->stream>>>(pw, pg, pm, pv, count, k, a,
                                                                  copy);
                else
                    adam<1, FP8><<<grid, THREADS, 0, c->stream>>>(pw, pg, pm, pv, count, k, a,
                                                                  copy);
            });
        });
    });
    CUDA_LAUNCHED(c);
}

void gpu_adam(struct ops *o, struct tensor w, struct tensor g, struct tensor m, struct tensor v,
              double beta1, double beta2, double eps, const struct adam_step *a)
{
    run<false>(o, w, g, m, v, beta1, beta2, eps, a, fp8_copy());
}

void gpu_adam_fp8(struct ops *o, struct tensor w, struct tensor g, struct tensor m,
                  struct tensor v, double beta1, double beta2, double eps,
                  const struct adam_step *a, struct tensor w8, const float *scale,
                  float *scale_inv, float *amax)
{
    struct cuda_ops *c = cuda_of(o);
    assert(tensor_count(w8) == tensor_count(w) && w8.dtype == DT_E4M3);
    if (c->failed || !CUDA_TRY(c, cudaMemsetAsync(amax, 0, sizeof *amax, c->stream)))
        return;
    fp8_copy copy = { (uint8_t *)w8.data, scale, scale_inv, (uint32_t *)amax };
    run<true>(o, w, g, m, v, beta1, beta2, eps, a, copy);
}
