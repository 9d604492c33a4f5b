/* inject.cu - back from streams that are added, scaled, to the residual stream in n places:
 *   dx_k (+)= sum_i coef_ki g_i,  dcoef_ki += sum g_i x_k,  for k < m. record-74.md 7.
 *
 * All (T,D) bf16; coefficients f32 in device memory. Element by element: a thread takes 8 of each
 * tensor by 16-byte accesses, all n gradients in flight. Bytes: 2 (n + 2 m) T D, and 2 m T D more
 * where dx is added to; of streams of fewer channels than g the first of g's are read. At T =
 * 49152, D = 768, n = 10, m = 2: 14 tensors of 75.5 MB, 249 us at 4.25 TB/s. Adding to dx in each
 * place instead would move 6 tensors a place. About 4 m n FLOP an element, below the memory time.
 */
#include "dcoef.h"
#include "gpu.h"

enum { WARPS = 8, THREADS = 32 * WARPS, BLOCKS = 2 }; /* blocks that an SM holds */

struct inject_args {
    const uint4 *g[INJECT_MAX];
    const uint4 *x[INJECT_STREAMS];
    uint4 *dx[INJECT_STREAMS];
    bool add[INJECT_STREAMS];
    const float *coef[INJECT_STREAMS * INJECT_MAX];
    float *dcoef[INJECT_STREAMS * INJECT_MAX];
    float *partial; /* (blocks, M INJECT_MAX) */
    unsigned *ticket;
    int64_t vectors; /* of 8 channels, those of the widest stream */
    int n;
    int width, widest, of_stream[INJECT_STREAMS]; /* vectors of a row of g, of streams */
};

/* NARROW: streams have fewer channels than g, or not the same number. */
template <int M, bool NARROW>
__global__ static void __launch_bounds__(THREADS, BLOCKS) inject_backward(inject_args a)
{
    __shared__ float coef[M * INJECT_MAX];
    float dots[M * INJECT_MAX] = {};

    if (threadIdx.x < M * INJECT_MAX)
        coef[threadIdx.x] = a.coef[threadIdx.x] ? *a.coef[threadIdx.x] : 0;
    __syncthreads();
    for (int64_t v = blockIdx.x * (int64_t)THREADS + threadIdx.x; v < a.vectors;
         v += (int64_t)gridDim.x * THREADS) {
        uint4 g[INJECT_MAX], old[M];
        float x[M][8], sum[M][8];
        int64_t row = NARROW ? v / a.widest : 0;
        int column = NARROW ? (int)(v % a.widest) : 0;
#pragma unroll
        for (int i = 0; i < INJECT_MAX; i++)
            if (i < a.n)
                g[i] = a.g[i][NARROW ? row * a.width + column : v];
#pragma unroll
        for (int k = 0; k < M; k++) {
            int64_t at = NARROW ? row * a.of_stream[k] + column : v;
            bool has = !NARROW || column < a.of_stream[k];
            unpack8(x[k], has ? a.x[k][at] : make_uint4(0, 0, 0, 0));
            old[k] = has && a.add[k] ? a.dx[k][at] : make_uint4(0, 0, 0, 0);
            unpack8(sum[k], old[k]);
        }
#pragma unroll
        for (int i = 0; i < INJECT_MAX; i++) {
            float gi[8];
            if (i >= a.n)
                continue;
            unpack8(gi, g[i]);
#pragma unroll
            for (int k = 0; k < M; k++) {
                float c = coef[k * INJECT_MAX + i];
                dots[k * INJECT_MAX + i] += dot8(gi, x[k]);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    sum[k][j] = fmaf(c, gi[j], sum[k][j]);
            }
        }
#pragma unroll
        for (int k = 0; k < M; k++)
            if (!NARROW)
                a.dx[k][v] = pack8(sum[k]);
            else if (column < a.of_stream[k])
                a.dx[k][row * a.of_stream[k] + column] = pack8(sum[k]);
    }
    add_up<WARPS>(dots, a.dcoef, a.partial, a.ticket);
}

void gpu_inject_bwd(struct ops *o, int n, const struct tensor *g, int m, const struct injection *in)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t widest = m > 1 && in[1].x.cols > in[0].x.cols ? in[1].x.cols : in[0].x.cols;
    int64_t count = widest * g[0].rows;
    int blocks = div_up(count, 8 * THREADS);
    inject_args a = { .ticket = c->ticket,
                      .vectors = count / 8,
                      .n = n,
                      .width = (int)(g[0].cols / 8),
                      .widest = (int)(widest / 8) };
    bool narrow = widest < g[0].cols;

    assert(n >= 1 && n <= INJECT_MAX && m >= 1 && m <= INJECT_STREAMS);
    if (c->failed || !CUDA_NEED(c, count % 8 == 0, "streams are a multiple of 8 elements") ||
        !blocks)
        return;
    for (int i = 0; i < n; i++) {
        assert(g[i].dtype == DT_BF16 && tensor_count(g[i]) == tensor_count(g[0]));
        a.g[i] = (const uint4 *)g[i].data;
    }
    for (int k = 0; k < m; k++) {
        assert(in[k].x.dtype == DT_BF16 && in[k].dx.dtype == DT_BF16);
        assert(in[k].x.rows == g[0].rows && tensor_count(in[k].dx) == tensor_count(in[k].x));
        narrow |= in[k].x.cols < widest;
        a.of_stream[k] = (int)(in[k].x.cols / 8);
        if (!CUDA_NEED(c, !narrow || (g[0].cols % 8 == 0 && in[k].x.cols % 8 == 0),
                       "streams of fewer channels have a multiple of 8"))
            return;
        a.x[k] = (const uint4 *)in[k].x.data;
        a.dx[k] = (uint4 *)in[k].dx.data;
        a.add[k] = in[k].add;
        for (int i = 0; i < n; i++) {
            a.coef[k * INJECT_MAX + i] = in[k].coef[i];
            a.dcoef[k * INJECT_MAX + i] = in[k].coef[i] ? in[k].dcoef[i] : NULL;
        }
    }
    blocks = blocks < BLOCKS * c->sms ? blocks : BLOCKS * c->sms;
    a.partial = (float *)cuda_workspace(c, (size_t)blocks * m * INJECT_MAX * sizeof(float));
    if (!a.partial)
        return;
    auto *kernel = m == 1 ? (narrow ? inject_backward<1, true> : inject_backward<1, false>)
                          : (narrow ? inject_backward<2, true> : inject_backward<2, false>);
    kernel<<<blocks, THREADS, 0, c->stream>>>(a);
    CUDA_LAUNCHED(c);
}
