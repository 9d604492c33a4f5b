/* momentum.cu - a running mean of what comes in, and what is made of it.
 *
 * Contract: op_list.h, optimizers.md 4.7. Elementwise; a thread takes WIDTH elements at a time.
 * Bytes an element, bf16 g: 2 + 8 + 4 = 14, 4 more where it is added; without a momentum 6.
 * Bits equal the C reference's.
 */
#include "gpu.h"
#include "stages.h"

enum { THREADS = 256 };

struct mean_args {
    unsigned how;
    const float *number, *age;
    const struct step_gate *gate;
};

template <int WIDTH, typename G>
static __global__ void __launch_bounds__(THREADS)
    mean(float *x, float *mom, const G *g, int64_t n, struct mean_args a)
{
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH;
    mean_numbers k = { 0, 0, 0, a.age ? *a.age : 1, 1 };

    if (a.gate && a.gate->skip)
        return;
    if (a.gate && a.how & MEAN_GRADIENT)
        k.factor = a.gate->factor;
    if (mom)
        k.b = a.number[0];
    if (a.how & (MEAN_LION | MEAN_TERM))
        k.second = a.number[1];
    if (a.how & MEAN_TERM)
        k.third = a.number[2];
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH; i < n; i += stride) {
        float b[WIDTH], m[WIDTH], before[WIDTH] = {};
        load<WIDTH>(b, g + i);
        if (mom)
            load<WIDTH>(m, mom + i);
        if (a.how & MEAN_ADD)
            load<WIDTH>(before, x + i);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            b[e] = mul(b[e], k.factor);
            if (mom)
                b[e] = mean_of(a.how, k, before[e], &m[e], b[e]);
        }
        if (mom)
            store<WIDTH>(mom + i, m);
        if (x)
            store<WIDTH>(x + i, b);
    }
}

void gpu_momentum(struct ops *o, struct tensor x, struct tensor mom, struct tensor g, unsigned how,
                  const real *number, const real *age, const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t n = tensor_count(g);
    assert(!x.data || tensor_count(x) == n);
    assert(!mom.data || tensor_count(mom) == n);
    if (c->failed || n == 0 ||
        !CUDA_NEED(c, (!x.data || x.dtype == DT_F32) && (!mom.data || mom.dtype == DT_F32),
                   "x and the momentum must be f32") ||
        !CUDA_NEED(c, is_float(g), "g must be f32 or bf16"))
        return;
    bool by_8 = wide(x, n) && wide(mom, n) && wide(g, n);
    int blocks = (int)min((int64_t)8 * c->sms, (n - 1) / (THREADS * (by_8 ? 8 : 1)) + 1);
    struct mean_args a = { how, number, age, gate };
    with_type(g, [&](auto *pg) {
        auto *kernel = by_8 ? mean<8, std::remove_pointer_t<decltype(pg)>>
                            : mean<1, std::remove_pointer_t<decltype(pg)>>;
        kernel<<<blocks, THREADS, 0, c->stream>>>((float *)x.data, (float *)mom.data, pg, n, a);
        CUDA_LAUNCHED(c);
    });
}
