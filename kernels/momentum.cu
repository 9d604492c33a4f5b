/* momentum.cu - a running mean of what comes in, and Nesterov's step beyond it.
 *
 * Contract: op_list.h, optimizers.md 7. Elementwise; a thread takes WIDTH elements at a time.
 * Bytes an element, bf16 g: 2 + 8 + 4 = 14; without a momentum 6.
 * Bits equal the C reference's.
 */
#include "gpu.h"
#include "optim.h"

enum { THREADS = 256 };

template <int WIDTH, typename G>
static __global__ void __launch_bounds__(THREADS)
    mean(float *x, float *mom, const G *g, int64_t n, bool nesterov, const float *blend_at,
         bool gradient, const struct step_gate *gate)
{
    float blend = blend_at ? *blend_at : 0, factor = gradient && gate ? gate->factor : 1;
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH;

    if (gate && gate->skip)
        return;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH; i < n; i += stride) {
        float b[WIDTH], m[WIDTH];
        load<WIDTH>(b, g + i);
        if (mom)
            load<WIDTH>(m, mom + i);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            b[e] = mul(b[e], factor);
            if (!mom)
                continue;
            m[e] = add(m[e], mul(blend, sub(b[e], m[e])));
            b[e] = nesterov ? sub(m[e], mul(blend, sub(m[e], b[e]))) : m[e];
        }
        if (mom)
            store<WIDTH>(mom + i, m);
        store<WIDTH>(x + i, b);
    }
}

void gpu_momentum(struct ops *o, struct tensor x, struct tensor mom, struct tensor g, bool nesterov,
                  const real *blend, bool gradient, const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t n = tensor_count(x);
    assert(tensor_count(g) == n && (!mom.data || tensor_count(mom) == n));
    if (c->failed || n == 0 ||
        !CUDA_NEED(c, x.dtype == DT_F32 && (!mom.data || mom.dtype == DT_F32),
                   "x and the momentum must be f32") ||
        !CUDA_NEED(c, is_float(g), "g must be f32 or bf16"))
        return;
    bool by_8 = wide(x, n) && wide(mom, n) && wide(g, n);
    int blocks = (int)min((int64_t)8 * c->sms, (n - 1) / (THREADS * (by_8 ? 8 : 1)) + 1);
    with_type(g, [&](auto *pg) {
        auto *kernel = by_8 ? mean<8, std::remove_pointer_t<decltype(pg)>>
                            : mean<1, std::remove_pointer_t<decltype(pg)>>;
        kernel<<<blocks, THREADS, 0, c->stream>>>((float *)x.data, (float *)mom.data, pg, n,
                                                  nesterov, blend, gradient, gate);
        CUDA_LAUNCHED(c);
    });
}
