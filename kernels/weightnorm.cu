/* weightnorm.cu - a matrix as gains of its rows and directions, which move apart.
 *
 * Contract: op_list.h, gpt-rules(5). A block a row of the weight; of matrices stored transposed that is a column,
 * read with a stride. Bytes an element: 4 + 2 for the sums, then w, g, 8 and 4; the write reads w and x and writes w,
 * twice. Formulas of a row are the C reference's (ops/weightnorm.h).
 */
#include "gpu.h"
#include "ops/weightnorm.h"
#include "optim.h"

enum { THREADS = 256, MAX_MATRICES = 256 };

struct wn {
    struct weightnorm s; /* turned and lr_mul are the host's */
    bool halves, g_is_f32;
    int rows, cols;
    uint32_t turned[MAX_MATRICES / 32];
    float lr_mul[MAX_MATRICES];
};

/* The row of the weight that a block takes. */
struct wn_line {
    int64_t first, number;
    int step, length;
    bool there;
};

__device__ __forceinline__ wn_line line_of(const wn &a)
{
    int i = blockIdx.y, k = blockIdx.x, most = a.rows > a.cols ? a.rows : a.cols;
    bool turned = a.turned[i / 32] >> i % 32 & 1;
    int64_t base = (int64_t)i * a.rows * a.cols, number = (int64_t)i * most + k;
    if (turned)
        return { base + k, number, a.cols, a.rows, k < a.cols };
    return { base + (int64_t)k * a.cols, number, 1, a.cols, k < a.rows };
}

__device__ __forceinline__ float exact(const wn &a, int64_t i)
{
    if (!a.halves)
        return ((const float *)a.s.w.data)[i];
    return __uint_as_float((uint32_t)((const uint16_t *)a.s.w.data)[i] << 16 |
                           ((const uint16_t *)a.s.low.data)[i]);
}

static __global__ void __launch_bounds__(THREADS) input(float *x, const __grid_constant__ wn a)
{
    __shared__ double warps[2][32];
    wn_line l = line_of(a);
    double squares = 0, slope = 0;
    float factor = a.s.gate ? a.s.gate->factor : 1;

    if (!l.there || (a.s.gate && a.s.gate->skip))
        return;
    for (int k = threadIdx.x; k < l.length; k += THREADS) {
        double w = exact(a, l.first + (int64_t)k * l.step);
        squares += w * w;
    }
    squares = block_sum(squares, warps[0]);
    if (threadIdx.x == 0)
        weightnorm_begin(&a.s, l.number, a.s.updates[blockIdx.y] == 0, sqrt(squares));
    __syncthreads();
    float gain = a.s.gain[l.number], by = quot(gain, a.s.norm[l.number]);
    for (int k = threadIdx.x; k < l.length; k += THREADS) {
        int64_t at = l.first + (int64_t)k * l.step;
        slope +=
            (double)mul(factor, load_any(a.s.g.data, a.g_is_f32, at)) * quot(exact(a, at), gain);
    }
    slope = block_sum(slope, warps[1]);
    if (threadIdx.x == 0)
        a.s.slope[l.number] = (float)slope;
    for (int k = threadIdx.x; k < l.length; k += THREADS) {
        int64_t at = l.first + (int64_t)k * l.step;
        float g = mul(factor, load_any(a.s.g.data, a.g_is_f32, at));
        float dv = mul(by, sub(g, mul(quot(exact(a, at), gain), (float)slope)));
        float mom = add(mul((float)WEIGHTNORM_MU, a.s.mom[at]), dv);
        a.s.mom[at] = mom;
        x[at] = add(dv, mul((float)WEIGHTNORM_MU, mom));
    }
}

static __global__ void __launch_bounds__(THREADS)
    write(const float *x, const __grid_constant__ wn a)
{
    __shared__ double warps[32];
    __shared__ float by;
    wn_line l = line_of(a);
    int most = a.rows > a.cols ? a.rows : a.cols;
    float lr = mul(a.s.m->lr, a.lr_mul[blockIdx.y]);
    float rate = mul(lr, (float)(WEIGHTNORM_SCALE * sqrt((double)most)));
    double squares = 0;

    if (!l.there || (a.s.gate && a.s.gate->skip))
        return;
    float gain = a.s.gain[l.number], norm = a.s.norm[l.number];
    for (int k = threadIdx.x; k < l.length; k += THREADS) {
        int64_t at = l.first + (int64_t)k * l.step;
        double v = sub(mul(quot(exact(a, at), gain), norm), mul(rate, x[at]));
        squares += v * v;
    }
    squares = block_sum(squares, warps);
    if (threadIdx.x == 0) {
        weightnorm_end(&a.s, l.number, a.s.updates[blockIdx.y] + 1.0, lr, a.s.number[0],
                       a.s.number[1], a.s.number[2]);
        float size = (float)sqrt(squares);
        by = quot(a.s.gain[l.number], size > 1e-12f ? size : 1e-12f);
    }
    __syncthreads();
    for (int k = threadIdx.x; k < l.length && lr != 0; k += THREADS) {
        int64_t at = l.first + (int64_t)k * l.step;
        float v = mul(sub(mul(quot(exact(a, at), gain), norm), mul(rate, x[at])), by);
        if (!a.halves) {
            ((float *)a.s.w.data)[at] = v;
            continue;
        }
        ((uint16_t *)a.s.w.data)[at] = (uint16_t)(__float_as_uint(v) >> 16);
        ((uint16_t *)a.s.low.data)[at] = (uint16_t)__float_as_uint(v);
    }
}

static __global__ void count(float *updates, int n, const struct step_gate *gate)
{
    if (threadIdx.x < n && !(gate && gate->skip))
        updates[threadIdx.x] += 1;
}

static bool made(struct cuda_ops *c, wn *a, struct tensor x, int n, const struct weightnorm *s)
{
    *a = { *s, s->w.dtype == DT_BF16, s->g.dtype == DT_F32, (int)(x.rows / n), (int)x.cols };
    if (c->failed || x.rows == 0 || !CUDA_NEED(c, x.dtype == DT_F32, "x must be f32") ||
        !CUDA_NEED(c, s->w.dtype == DT_F32 || s->low.data, "w must be exact") ||
        !CUDA_NEED(c, n <= MAX_MATRICES, "a rank may hold 256 matrices of a bank at most"))
        return false;
    for (int i = 0; i < n; i++) {
        a->turned[i / 32] |= (uint32_t)(s->turned && s->turned[i]) << i % 32;
        a->lr_mul[i] = s->lr_mul[i];
    }
    return true;
}

void gpu_weightnorm_input(struct ops *o, struct tensor x, int n, const struct weightnorm *s)
{
    struct cuda_ops *c = cuda_of(o);
    wn a;
    if (!made(c, &a, x, n, s))
        return;
    input<<<dim3(max(a.rows, a.cols), n), THREADS, 0, c->stream>>>((float *)x.data, a);
    CUDA_LAUNCHED(c);
}

void gpu_weightnorm(struct ops *o, struct tensor x, int n, const struct weightnorm *s)
{
    struct cuda_ops *c = cuda_of(o);
    wn a;
    if (!made(c, &a, x, n, s))
        return;
    write<<<dim3(max(a.rows, a.cols), n), THREADS, 0, c->stream>>>((const float *)x.data, a);
    CUDA_LAUNCHED(c);
    count<<<1, MAX_MATRICES, 0, c->stream>>>(s->updates, n, s->gate);
    CUDA_LAUNCHED(c);
}
