/* adam.cu - Adam with cautious decay, element by element, one pass.
 *
 * Contract: op_list.h, optimizers.md 3. Bytes an element of bf16 weight and gradient: weight 2 + 2,
 * gradient 2, moments 8 + 8 = 22, or 14 with bf16 moments; an fp8 copy is one more. Each thread
 * takes 8 elements by 16-byte accesses. Every operation rounds once, in the order of
 * lib/ops/adam.c, division and root included: the bits are the reference's.
 */
#include "fp8_copy.h"
#include "gpu.h"

enum { THREADS = 256 };

/* What does not change from element to element. */
struct constants {
    float beta1, rest1, beta2, rest2, eps;
};

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
         const fp8_out out)
{
    float step_size = a->step_size, decay = a->decay;
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH;
    uint32_t most = 0;

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
#pragma unroll
            for (int e = 0; e < WIDTH; e++)
                wi[e] = as_stored<W>(wi[e]);
            write_codes<WIDTH>(out, at, wi, &most);
        }
    }
    if (FP8)
        fold_amax(out, most);
}

template <bool FP8>
static void launch(struct cuda_ops *c, struct tensor w, struct tensor g, struct tensor m,
                   struct tensor v, const constants &k, const struct adam_step *a,
                   const fp8_out &out)
{
    int64_t count = tensor_count(w);
    bool by_8 = wide(w, count) && wide(g, count) && wide(m, count) && wide(v, count) &&
                (uintptr_t)out.codes % 8 == 0;
    int64_t blocks = (count - 1) / (THREADS * (by_8 ? 8 : 1)) + 1;
    unsigned grid = (unsigned)(blocks < 1 << 30 ? blocks : 1 << 30);
    with_type(w, [&](auto *pw) {
        with_type(g, [&](auto *pg) {
            with_type(m, [&](auto *pm) {
                auto *pv = (decltype(pm))v.data;
                if (by_8)
                    adam<8, FP8><<<grid, THREADS, 0, c->stream>>>(pw, pg, pm, pv, count, k, a, out);
                else
                    adam<1, FP8><<<grid, THREADS, 0, c->stream>>>(pw, pg, pm, pv, count, k, a, out);
            });
        });
    });
    CUDA_LAUNCHED(c);
}

void gpu_adam(struct ops *o, struct tensor w, struct tensor g, struct tensor m, struct tensor v,
              double beta1, double beta2, double eps, const struct adam_step *a,
              const struct fp8_copy *copy)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(w);
    fp8_out out = {};
    assert(tensor_count(g) == count && tensor_count(m) == count && tensor_count(v) == count);
    if (c->failed || count == 0 ||
        !CUDA_NEED(c, is_float(w) && is_float(g), "w and g must be f32 or bf16") ||
        !CUDA_NEED(c, is_float(m) && m.dtype == v.dtype, "both moments must be f32, or bf16"))
        return;
    constants k = { (float)beta1, (float)(1 - beta1), (float)beta2, (float)(1 - beta2),
                    (float)eps };
    if (!copy) {
        launch<false>(c, w, g, m, v, k, a, out);
        return;
    }
    assert(copy->codes.dtype == DT_E4M3 && tensor_count(copy->codes) == count);
    if (fp8_out_begin(c, copy, &out))
        launch<true>(c, w, g, m, v, k, a, out);
}
