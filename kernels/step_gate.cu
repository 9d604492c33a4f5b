/* step_gate.cu - is a step applied, and by what are its gradients multiplied (optimizers.md 2.5)?
 *
 * squares: a block takes every gridDim.x-th piece of PIECE elements of all tensors together, adds
 * squares in f32 over a thread's eight elements and in f64 from there; the last block adds the
 * blocks' sums in their order. Reads every gradient once: 2 or 4 bytes an element.
 * step_gate: one thread.
 */
#include "gpu.h"
#include "optim.h"

enum { THREADS = 256, PIECE = THREADS * 8, LISTED = 48 };

struct list {
    struct {
        const void *data;
        int64_t count, end; /* end: pieces up to and with this tensor's */
        bool f32, wide;
    } of[LISTED];
    int n;
};

template <int WIDTH>
__device__ __forceinline__ static double thread_squares(const void *data, bool f32, int64_t at,
                                                        int64_t end)
{
    double sum = 0;
    for (at += threadIdx.x * WIDTH; at < end; at += THREADS * WIDTH) {
        float x[WIDTH], part = 0;
        if (f32)
            load<WIDTH>(x, (const float *)data + at);
        else
            load<WIDTH>(x, (const bf16 *)data + at);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            part = fmaf(x[e], x[e], part);
        sum += part;
    }
    return sum;
}

__global__ static void __launch_bounds__(THREADS)
    add_squares(float *out, double *partial, unsigned *ticket, const __grid_constant__ list all,
                int64_t pieces)
{
    __shared__ double warps[32];
    double sum = 0;
    int i = 0;

    for (int64_t p = blockIdx.x; p < pieces; p += gridDim.x) {
        while (p >= all.of[i].end)
            i++;
        int64_t at = (p - (i ? all.of[i - 1].end : 0)) * PIECE, count = all.of[i].count;
        int64_t end = at + PIECE < count ? at + PIECE : count;
        sum += all.of[i].wide ? thread_squares<8>(all.of[i].data, all.of[i].f32, at, end)
                              : thread_squares<1>(all.of[i].data, all.of[i].f32, at, end);
    }
    sum = block_sum(sum, warps);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
    if (!last_block(ticket))
        return;
    sum = 0;
    for (int b = threadIdx.x; b < gridDim.x; b += THREADS)
        sum += __ldcg(partial + b);
    sum = block_sum(sum, warps);
    if (threadIdx.x == 0)
        *out = (float)sum;
}

void gpu_squares(struct ops *o, real *out, const struct tensor *t, int n)
{
    struct cuda_ops *c = cuda_of(o);
    list all = {};
    int64_t pieces = 0;

    assert(n <= LISTED);
    for (int i = 0; i < n; i++) {
        int64_t count = tensor_count(t[i]);
        if (!count)
            continue;
        if (c->failed || !CUDA_NEED(c, is_float(t[i]), "gradients must be f32 or bf16"))
            return;
        pieces += (count - 1) / PIECE + 1;
        all.of[all.n++] = { t[i].data, count, pieces, t[i].dtype == DT_F32, wide(t[i], count) };
    }
    int blocks = (int)(pieces < 8 * c->sms ? max(pieces, (int64_t)1) : 8 * c->sms);
    double *partial = (double *)cuda_workspace(c, sizeof *partial * blocks);
    if (!partial)
        return;
    add_squares<<<blocks, THREADS, 0, c->stream>>>(out, partial, c->ticket, all, pieces);
    CUDA_LAUNCHED(c);
}

__global__ static void decide(struct step_gate *gate, const float *squares, float times,
                              float limit, float unscale)
{
    float sum = mul(*squares, times), norm = mul(root(sum), unscale);
    gate->late = gate->skip;
    gate->skip = !isfinite(sum);
    gate->norm = norm;
    gate->factor = limit > 0 && norm > limit ? mul(quot(limit, norm), unscale) : unscale;
}

void gpu_step_gate(struct ops *o, struct step_gate *gate, const real *squares, real times,
                   real limit, real unscale)
{
    struct cuda_ops *c = cuda_of(o);
    if (c->failed)
        return;
    decide<<<1, 1, 0, c->stream>>>(gate, squares, times, limit, unscale);
    CUDA_LAUNCHED(c);
}
