/* muon_input.cu - Nesterov momentum and the scaled bf16 cast that Polar Express starts from.
 *
 * Contract: op_list.h. n matrices of `count` elements, in two launches because the norm of a whole
 * matrix is needed between them; a block takes `steps` times STEP elements of one matrix:
 *     take_in   momentum updated; the block's sum of u^2                         g, mom -> mom
 *     scale     blocks' sums added in their order, x = u / (1.02 |u| + 1e-6)     g, mom -> x
 * u is not stored: it is formed again from the new momentum. Squares are added in double.
 * raw: take_in alone, which writes x = u.
 * Bytes an element, bf16 g and x: 10 + 8 = 18; 12 would be enough if a matrix fitted into an
 * SM, and are with raw. The second reading of g and mom begins with what was read last and
 * hits L2 as far as they fit. Blocks are large enough that all of them are resident at once.
 * The momentum has the bits of the C reference; x has them where the norm has.
 */
#include "gpu.h"
#include "optim.h"

enum { THREADS = 256, STEP = THREADS * 8, BLOCKS_A_SM = 4 }; /* CTAs an SM: 64 registers */

__device__ __forceinline__ float nesterov(float mom, float g, float blend)
{
    return sub(mom, mul(blend, sub(mom, g)));
}

/* WIDTH elements of one matrix. A thread reads the next ones before it computes with these: loads
 * do not move across store16. */
template <int WIDTH> struct elements {
    float mom[WIDTH], g[WIDTH];

    template <typename G> __device__ void read(const float *m, const G *from, int64_t at)
    {
        load<WIDTH>(mom, m + at);
        load<WIDTH>(g, from + at);
    }
};

/* Elements of a matrix that this thread takes: at first, first + stride, .. up to last. None: last
 * < first. */
template <int WIDTH> struct places {
    enum { STRIDE = THREADS * WIDTH };
    int64_t first, last;

    __device__ places(int64_t count, int steps)
    {
        int64_t begin = (int64_t)blockIdx.x * steps * STEP, end = begin + (int64_t)steps * STEP;
        first = begin + threadIdx.x * WIDTH;
        end = end < count ? end : count;
        last = first < end ? first + (end - 1 - first) / STRIDE * STRIDE : first - STRIDE;
    }
};

/* x: NULL, or where u goes. */
template <int WIDTH, typename G, typename X>
static __global__ void __launch_bounds__(THREADS, BLOCKS_A_SM)
    take_in(double *partial, X *x, float *mom, const G *g, int64_t count, int steps, const float *m,
            const struct step_gate *gate)
{
    __shared__ double warps[32];
    const int64_t base = (int64_t)blockIdx.y * count;
    const places<WIDTH> mine(count, steps);
    elements<WIDTH> now, next;
    float blend = *m, factor = gate ? gate->factor : 1;
    double squares = 0;

    start_kernel_behind();
    if (gate && gate->skip)
        return;
    if (mine.first <= mine.last)
        now.read(mom + base, g + base, mine.first);
    for (int64_t at = mine.first; at <= mine.last; at += mine.STRIDE, now = next) {
        float u[WIDTH], sum = 0;
        if (at < mine.last)
            next.read(mom + base, g + base, at + mine.STRIDE);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            float b = mul(now.g[e], factor), &a = now.mom[e];
            a = add(a, mul(blend, sub(b, a)));
            u[e] = nesterov(a, b, blend);
            sum = fmaf(u[e], u[e], sum);
        }
        store<WIDTH>(mom + base + at, now.mom);
        if (x)
            store<WIDTH>(x + base + at, u);
        squares += sum;
    }
    if (x)
        return;
    squares = block_sum(squares, warps);
    if (threadIdx.x == 0)
        partial[(int64_t)blockIdx.y * gridDim.x + blockIdx.x] = squares;
}

/* u /= divisor. */
template <int WIDTH> __device__ __forceinline__ void divide(float (&u)[WIDTH], float divisor)
{
    float least = INFINITY, most = 0;
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        least = fminf(least, fabsf(u[e])), most = fmaxf(most, fabsf(u[e]));
    if (least >= 0x1p-80f && most <= 0x1p60f && divisor <= 0x1p20f) {
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            u[e] = quot_within(u[e], divisor);
        return;
    }
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        u[e] = quot(u[e], divisor);
}

/* A thread's last elements first: they are in the L2. */
template <int WIDTH, typename G, typename X>
static __global__ void __launch_bounds__(THREADS, BLOCKS_A_SM)
    scale(X *x, const float *mom, const G *g, int64_t count, int steps, const double *partial,
          const float *m, const struct step_gate *gate)
{
    __shared__ double warps[32];
    const int64_t base = (int64_t)blockIdx.y * count;
    const places<WIDTH> mine(count, steps);
    elements<WIDTH> now, next;
    float blend = *m, factor = gate ? gate->factor : 1;
    double squares = 0;

    wait_for_kernel_before();
    if (gate && gate->skip)
        return;
    if (mine.first <= mine.last)
        now.read(mom + base, g + base, mine.last);
    for (int i = threadIdx.x; i < gridDim.x; i += THREADS)
        squares += partial[(int64_t)blockIdx.y * gridDim.x + i];
    float norm = (float)sqrt(block_sum(squares, warps)), divisor = add(mul(1.02f, norm), 1e-6f);
    bool finite = isfinite(norm);
    for (int64_t at = mine.last; at >= mine.first; at -= mine.STRIDE, now = next) {
        float u[WIDTH];
        if (at > mine.first)
            next.read(mom + base, g + base, at - mine.STRIDE);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            u[e] = finite ? nesterov(now.mom[e], mul(now.g[e], factor), blend) : 0;
        if (finite)
            divide(u, divisor);
        store<WIDTH>(x + base + at, u);
    }
}

template <int WIDTH, typename G, typename X>
static void both(struct cuda_ops *c, X *x, float *mom, const G *g, int64_t count, int n, bool raw,
                 const float *m, const struct step_gate *gate)
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
                    bool raw, const real *m, const struct step_gate *gate)
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
