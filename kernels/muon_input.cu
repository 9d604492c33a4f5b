/* muon_input.cu - Nesterov momentum and the scaled bf16 cast that Polar Express starts from.
 *
 * Contract: ops.h. n matrices of `count` elements, in two launches because the norm of a whole
 * matrix stands between them:
 *     take_in   momentum updated; sum of u^2 of each chunk of CHUNK elements     g, mom -> mom
 *     scale     chunks added in their order, x = u / (1.02 |u| + 1e-6)           g, mom -> x
 * u is not stored: it is formed again from the new momentum. Squares are added in double.
 * Bytes an element, bf16 g and x: 10 + 8 = 18; 12 would be enough if a matrix fitted into a
 * multiprocessor. The second reading of g and mom comes from L2 as far as that reaches.
 * The momentum has the bits of the C reference; x has them where the norm has.
 */
#include "gpu.h"
#include "optim.h"

enum { THREADS = 256, CHUNK = 8192 };

__device__ __forceinline__ float nesterov(float mom, float g, float blend)
{
    return sub(mom, mul(blend, sub(mom, g)));
}

template <int WIDTH, typename G>
static __global__ void __launch_bounds__(THREADS)
take_in(double *partial, float *mom, const G *g, int64_t count, const struct muon_step *m)
{
    __shared__ double warps[32];
    constexpr int STEPS = CHUNK / THREADS / 8 * (8 / WIDTH), BATCH = WIDTH == 8 ? STEPS : 1;
    int64_t base = (int64_t)blockIdx.y * count, first = (int64_t)blockIdx.x * CHUNK;
    float blend = m->blend;
    double squares = 0;

    for (int s = 0; s < STEPS; s += BATCH) {
        float a[BATCH][WIDTH], b[BATCH][WIDTH];
        int64_t at = first + (s * THREADS + threadIdx.x) * (int64_t)WIDTH;
#pragma unroll
        for (int i = 0; i < BATCH; i++)                     /* all loads before the first use */
            if (at + i * THREADS * WIDTH < count) {
                load<WIDTH>(a[i], mom + base + at + i * THREADS * WIDTH);
                load<WIDTH>(b[i], g + base + at + i * THREADS * WIDTH);
            }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            float sum = 0;
            if (at + i * THREADS * WIDTH >= count)
                break;
#pragma unroll
            for (int e = 0; e < WIDTH; e++) {
                a[i][e] = add(a[i][e], mul(blend, sub(b[i][e], a[i][e])));
                float u = nesterov(a[i][e], b[i][e], blend);
                sum = fmaf(u, u, sum);
            }
            store<WIDTH>(mom + base + at + i * THREADS * WIDTH, a[i]);
            squares += sum;
        }
    }
    squares = block_sum(squares, warps);
    if (threadIdx.x == 0)
        partial[(int64_t)blockIdx.y * gridDim.x + blockIdx.x] = squares;
}

template <int WIDTH, typename G, typename X>
static __global__ void __launch_bounds__(THREADS)
scale(X *x, const float *mom, const G *g, int64_t count, const double *partial, int chunks,
      const struct muon_step *m)
{
    __shared__ double warps[32];
    constexpr int STEPS = CHUNK / THREADS / 8 * (8 / WIDTH), BATCH = WIDTH == 8 ? STEPS : 1;
    int64_t base = (int64_t)blockIdx.y * count, first = (int64_t)blockIdx.x * CHUNK;
    float blend = m->blend, divisor = 0;
    bool finite = false;

    for (int s = 0; s < STEPS; s += BATCH) {
        float a[BATCH][WIDTH], b[BATCH][WIDTH];
        int64_t at = first + (s * THREADS + threadIdx.x) * (int64_t)WIDTH;
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (at + i * THREADS * WIDTH < count) {
                load<WIDTH>(a[i], mom + base + at + i * THREADS * WIDTH);
                load<WIDTH>(b[i], g + base + at + i * THREADS * WIDTH);
            }
        if (s == 0) {                                       /* while those are on their way */
            double squares = 0;
            for (int i = threadIdx.x; i < chunks; i += THREADS)
                squares += partial[(int64_t)blockIdx.y * chunks + i];
            float norm = (float)sqrt(block_sum(squares, warps));
            finite = isfinite(norm);
            divisor = add(mul(1.02f, norm), 1e-6f);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (at + i * THREADS * WIDTH >= count)
                break;
#pragma unroll
            for (int e = 0; e < WIDTH; e++)
                a[i][e] = finite ? quot(nesterov(a[i][e], b[i][e], blend), divisor) : 0;
            store<WIDTH>(x + base + at + i * THREADS * WIDTH, a[i]);
        }
    }
}

template <int WIDTH, typename G, typename X>
static void both(struct cuda_ops *c, X *x, float *mom, const G *g, int64_t count, int n,
                 const struct muon_step *m)
{
    int chunks = div_up(count, CHUNK);
    double *partial = (double *)cuda_workspace(c, (size_t)n * chunks * sizeof *partial);
    if (!partial)
        return;
    dim3 grid(chunks, n);
    take_in<WIDTH><<<grid, THREADS, 0, c->stream>>>(partial, mom, g, count, m);
    scale<WIDTH><<<grid, THREADS, 0, c->stream>>>(x, mom, g, count, partial, chunks, m);
    CUDA_LAUNCHED(c);
}

void gpu_muon_input(struct ops *o, struct tensor x, struct tensor mom, struct tensor g, int n,
                    const struct muon_step *m)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(x) / n;
    assert(count * n == tensor_count(x) && tensor_count(mom) == count * n);
    assert(tensor_count(g) == count * n);
    if (c->failed || count == 0
        || !CUDA_NEED(c, mom.dtype == DT_F32, "the momentum must be f32")
        || !CUDA_NEED(c, is_float(g) && is_float(x), "g and x must be f32 or bf16"))
        return;
    bool by_8 = wide(x, count) && wide(mom, count) && wide(g, count);
    with_type(x, [&](auto *px) {
        with_type(g, [&](auto *pg) {
            if (by_8)
                both<8>(c, px, (float *)mom.data, pg, count, n, m);
            else
                both<1>(c, px, (float *)mom.data, pg, count, n, m);
        });
    });
}
