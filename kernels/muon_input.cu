/* muon_input.cu - Nesterov momentum and the scaled bf16 cast that Polar Express starts from.
 *
 * Contract: op_list.h. n matrices of `count` elements, in two launches because the norm of a whole
 * matrix is needed between them; a block takes `steps` times STEP elements of one matrix:
 *     take_in   momentum updated; the block's sum of u^2                         g, mom -> mom
 *     scale     blocks' sums added in their order, x = u / (1.02 |u| + 1e-6)     g, mom -> x
 * u is not stored: it is formed again from the new momentum. Squares are added in double.
 * raw: take_in alone, which writes x = u.
 * Bytes an element, bf16 g and x: 10 + 8 = 18; 12 would be enough if a matrix fitted into a
 * multiprocessor, and are with raw. The second reading of g and mom hits L2 as far as they fit. Blocks are
 * large enough that all of them are resident at once.
 * The momentum has the bits of the C reference; x has them where the norm has.
 */
#include "gpu.h"
#include "optim.h"

enum { THREADS = 256, STEP = THREADS * 8, BLOCKS_A_SM = 4 };

__device__ __forceinline__ float nesterov(float mom, float g, float blend)
{
    return sub(mom, mul(blend, sub(mom, g)));
}

/* x: NULL, or where u goes. */
template <int WIDTH, typename G, typename X>
static __global__ void __launch_bounds__(THREADS, BLOCKS_A_SM)
    take_in(double *partial, X *x, float *mom, const G *g, int64_t count, int steps,
            const struct muon_step *m, const struct step_gate *gate)
{
    __shared__ double warps[32];
    int64_t base = (int64_t)blockIdx.y * count, at = (int64_t)blockIdx.x * steps * STEP;
    int64_t end = at + (int64_t)steps * STEP < count ? at + (int64_t)steps * STEP : count;
    float blend = m->blend, factor = gate ? gate->factor : 1;
    double squares = 0;

    start_kernel_behind();
    if (gate && gate->skip)
        return;
#pragma unroll 2
    for (at += threadIdx.x * WIDTH; at < end; at += THREADS * WIDTH) {
        float a[WIDTH], b[WIDTH], sum = 0;
        load<WIDTH>(a, mom + base + at);
        load<WIDTH>(b, g + base + at);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            b[e] = mul(b[e], factor);
            a[e] = add(a[e], mul(blend, sub(b[e], a[e])));
            b[e] = nesterov(a[e], b[e], blend);
            sum = fmaf(b[e], b[e], sum);
        }
        store<WIDTH>(mom + base + at, a);
        if (x)
            store<WIDTH>(x + base + at, b);
        squares += sum;
    }
    if (x)
        return;
    squares = block_sum(squares, warps);
    if (threadIdx.x == 0)
        partial[(int64_t)blockIdx.y * gridDim.x + blockIdx.x] = squares;
}

template <int WIDTH, typename G, typename X>
static __global__ void __launch_bounds__(THREADS, BLOCKS_A_SM)
    scale(X *x, const float *mom, const G *g, int64_t count, int steps, const double *partial,
          const struct muon_step *m, const struct step_gate *gate)
{
    __shared__ double warps[32];
    int64_t base = (int64_t)blockIdx.y * count, at = (int64_t)blockIdx.x * steps * STEP;
    int64_t end = at + (int64_t)steps * STEP < count ? at + (int64_t)steps * STEP : count;
    float blend = m->blend, factor = gate ? gate->factor : 1;
    double squares = 0;

    wait_for_kernel_before();
    if (gate && gate->skip)
        return;
    for (int i = threadIdx.x; i < gridDim.x; i += THREADS)
        squares += partial[(int64_t)blockIdx.y * gridDim.x + i];
    float norm = (float)sqrt(block_sum(squares, warps)), divisor = add(mul(1.02f, norm), 1e-6f);
    bool finite = isfinite(norm);
#pragma unroll 2
    for (at += threadIdx.x * WIDTH; at < end; at += THREADS * WIDTH) {
        float a[WIDTH], b[WIDTH];
        load<WIDTH>(a, mom + base + at);
        load<WIDTH>(b, g + base + at);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            a[e] = finite ? quot(nesterov(a[e], mul(b[e], factor), blend), divisor) : 0;
        store<WIDTH>(x + base + at, a);
    }
}

template <int WIDTH, typename G, typename X>
static void both(struct cuda_ops *c, X *x, float *mom, const G *g, int64_t count, int n, bool raw,
                 const struct muon_step *m, const struct step_gate *gate)
{
    int steps = div_up(count * n, (int64_t)STEP * BLOCKS_A_SM * c->sms);
    dim3 grid(div_up(count, (int64_t)steps * STEP), n);
    double *partial = (double *)cuda_workspace(c, sizeof *partial * grid.x * grid.y);
    if (!partial)
        return;
    take_in<WIDTH>
        <<<grid, THREADS, 0, c->stream>>>(partial, raw ? x : NULL, mom, g, count, steps, m, gate);
    CUDA_LAUNCHED(c);
    if (!raw)
        launch_behind(c, scale<WIDTH, G, X>, grid, THREADS, x, mom, g, count, steps, partial, m,
                      gate);
}

void gpu_muon_input(struct ops *o, struct tensor x, struct tensor mom, struct tensor g, int n,
                    bool raw, const struct muon_step *m, const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(x) / n;
    assert(count * n == tensor_count(x) && tensor_count(mom) == count * n);
    assert(tensor_count(g) == count * n);
    if (c->failed || count == 0 || !CUDA_NEED(c, mom.dtype == DT_F32, "the momentum must be f32") ||
        !CUDA_NEED(c, is_float(g) && is_float(x), "g and x must be f32 or bf16"))
        return;
    bool by_8 = wide(x, count) && wide(mom, count) && wide(g, count);
    with_type(x, [&](auto *px) {
        with_type(g, [&](auto *pg) {
            if (by_8)
                both<8>(c, px, (float *)mom.data, pg, count, n, raw, m, gate);
            else
                both<1>(c, px, (float *)mom.data, pg, count, n, raw, m, gate);
        });
    });
}
