/* second.cu - what comes in over the root of the gradient's running second moment.
 *
 * Contract: op_list.h, optimizers.md 4.7. Elementwise; a thread takes WIDTH elements at a time.
 * Bytes an element, bf16 g: 2 + 8 + 8 = 18. Bits equal the C reference's.
 */
#include "gpu.h"
#include "stages.h"

enum { THREADS = 256 };

template <int WIDTH, typename G>
static __global__ void __launch_bounds__(THREADS)
    divide(float *x, float *v, const G *g, int64_t n, const float *number, const float *age_at,
           const struct step_gate *gate)
{
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH;
    float blend = number[0], eps = number[1], age = age_at ? *age_at : 1;

    if (gate && gate->skip)
        return;
    float factor = gate ? mul(gate->factor, number[2]) : number[2];
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH; i < n; i += stride) {
        float a[WIDTH], b[WIDTH], c[WIDTH];
        load<WIDTH>(a, x + i);
        load<WIDTH>(b, v + i);
        load<WIDTH>(c, g + i);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            a[e] = over_root(a[e], &b[e], mul(c[e], factor), blend, eps, age);
        }
        store<WIDTH>(v + i, b);
        store<WIDTH>(x + i, a);
    }
}

void gpu_second(struct ops *o, struct tensor x, struct tensor v, struct tensor g,
                const real *number, const real *age, const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t n = tensor_count(x);
    assert(tensor_count(v) == n && tensor_count(g) == n);
    if (c->failed || n == 0 ||
        !CUDA_NEED(c, x.dtype == DT_F32 && v.dtype == DT_F32, "x and v must be f32") ||
        !CUDA_NEED(c, is_float(g), "g must be f32 or bf16"))
        return;
    bool by_8 = wide(x, n) && wide(v, n) && wide(g, n);
    int blocks = (int)min((int64_t)8 * c->sms, (n - 1) / (THREADS * (by_8 ? 8 : 1)) + 1);
    with_type(g, [&](auto *pg) {
        auto *kernel = by_8 ? divide<8, std::remove_pointer_t<decltype(pg)>>
                            : divide<1, std::remove_pointer_t<decltype(pg)>>;
        kernel<<<blocks, THREADS, 0, c->stream>>>((float *)x.data, (float *)v.data, pg, n, number,
                                                  age, gate);
        CUDA_LAUNCHED(c);
    });
}
