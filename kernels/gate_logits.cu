/* gate_logits.cu - logits of gates that read a narrow embedding beside the norm, and back.
 *
 * z (T,N) bf16, y (T,D) bf16, twelve channels of it read, e (T,n) bf16, gate (H,12+n). Forward: a
 * thread a logit; 2 T (12 + n + N) bytes, 3.9 MB at T = 49152, n = 8, N = 16. Backward: a block
 * takes rows in turn, a thread the gradient of up to SUMS gate weights, in registers until the end,
 * and the first 12 + n threads that of a row's inputs. Blocks' sums are added in a fixed order.
 */
#include "behind.h"
#include "gpu.h"
#include "heads.h"

enum { THREADS = 256, MOST = 44, SUMS = (GATE_WIDTH * MOST + THREADS - 1) / THREADS };

struct inputs {
    const bf16 *y, *e;
    int y_width, more;
    __device__ __forceinline__ float at(int64_t t, int j) const
    {
        return __bfloat162float(j < GATE ? y[t * y_width + j] : e[t * more + j - GATE]);
    }
};

__global__ static void __launch_bounds__(THREADS)
    logits_forward(bf16 *z, int z_width, inputs in, gates g, int rows, int heads)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = i / z_width;
    int h = (int)(i % z_width), n = GATE + in.more;
    float sum = 0;

    begin_step();
    if (t >= rows)
        return;
    for (int j = 0; j < n && h < heads; j++)
        sum = fmaf(load_any(g.w, g.is_f32, h * n + j), in.at(t, j), sum);
    z[i] = __float2bfloat16(sum);
}

/* partial (blocks, H (12 + n)). */
__global__ static void __launch_bounds__(THREADS)
    logits_backward(bf16 *dy12, bool add, bf16 *de, float *partial, const bf16 *dz, int z_width,
                    inputs in, gates g, int rows, int heads)
{
    int n = GATE + in.more, pairs = heads * n, mine = threadIdx.x;
    float sum[SUMS] = {};

    for (int64_t t = blockIdx.x; t < rows; t += gridDim.x) {
#pragma unroll
        for (int k = 0; k < SUMS; k++) {
            int i = mine + k * THREADS;
            if (i < pairs)
                sum[k] = fmaf(__bfloat162float(dz[t * z_width + i / n]), in.at(t, i % n), sum[k]);
        }
        if (mine >= n)
            continue;
        bf16 *to = mine < GATE ? dy12 + t * GATE + mine : de + t * in.more + mine - GATE;
        float du = add || mine >= GATE ? __bfloat162float(*to) : 0;
        for (int h = 0; h < heads; h++)
            du = fmaf(__bfloat162float(dz[t * z_width + h]), load_any(g.w, g.is_f32, h * n + mine),
                      du);
        *to = __float2bfloat16(du);
    }
#pragma unroll
    for (int k = 0; k < SUMS; k++)
        if (mine + k * THREADS < pairs)
            partial[(int64_t)blockIdx.x * pairs + mine + k * THREADS] = sum[k];
}

static bool can_do(struct cuda_ops *c, struct tensor z, struct tensor e, struct tensor gate)
{
    assert(gate.cols == GATE_WIDTH + e.cols && z.cols >= gate.rows && z.dtype == DT_BF16);
    return !c->failed && CUDA_NEED(c, gate.rows <= GATE_WIDTH && gate.cols <= MOST,
                                   "logits of gates: 12 heads and 32 more inputs at most");
}

void gpu_gate_logits(struct ops *o, struct tensor z, struct tensor y, struct tensor e,
                     struct tensor gate)
{
    struct cuda_ops *c = cuda_of(o);
    inputs in = { (const bf16 *)y.data, (const bf16 *)e.data, (int)y.cols, (int)e.cols };

    if (!can_do(c, z, e, gate) || !z.rows)
        return;
    launch_step(c, logits_forward, dim3(div_up(tensor_count(z), THREADS)), THREADS, (bf16 *)z.data,
                (int)z.cols, in, gates{ gate.data, gate.dtype == DT_F32 }, (int)z.rows,
                (int)gate.rows);
}

void gpu_gate_logits_bwd(struct ops *o, struct tensor dy12, bool add, struct tensor de,
                         struct tensor dgate, struct tensor dz, struct tensor y, struct tensor e,
                         struct tensor gate)
{
    struct cuda_ops *c = cuda_of(o);
    int n = (int)tensor_count(gate), blocks = (int)(dz.rows < 8 * c->sms ? dz.rows : 8 * c->sms);
    inputs in = { (const bf16 *)y.data, (const bf16 *)e.data, (int)y.cols, (int)e.cols };
    float *partial;

    if (!can_do(c, dz, e, gate) || !blocks)
        return;
    partial = (float *)cuda_workspace(c, (size_t)blocks * n * sizeof *partial);
    if (!partial)
        return;
    logits_backward<<<blocks, THREADS, 0, c->stream>>>(
        (bf16 *)dy12.data, add, (bf16 *)de.data, partial, (const bf16 *)dz.data, (int)dz.cols, in,
        gates{ gate.data, gate.dtype == DT_F32 }, (int)dz.rows, (int)gate.rows);
    CUDA_LAUNCHED(c);
    cuda_add_partials(c, dgate.data, dgate.dtype, partial, blocks, n);
}
