/* soap.cu - what the stages soap, klsoap and covpower do element by element and line by line; their products are
 * multiply.cu's, their bases turn.cu's.
 *
 * Contracts: op_list.h, optimizers.md 4.8. Bits of whiten, by_lines and cosine_basis but for its cosines' last are the
 * C reference's; others differ by the order of sums.
 */
#include "gpu.h"
#include "optim.h"
#include "philox.h"

enum { THREADS = 256 };

/* -- whiten ------------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(THREADS)
    divide(float *x, float *v, const float *p, int64_t count, unsigned how, const float *b,
           const float *eps_at, const float *updates, const struct step_gate *gate)
{
    bool first = updates[blockIdx.y] == 0;
    float blend = *b, eps = *eps_at, least = mul(eps, eps);
    int64_t base = blockIdx.y * count;

    if ((gate && gate->skip) || (first && how & WHITEN_OWN))
        return;
    for (int64_t i = base + (int64_t)blockIdx.x * THREADS + threadIdx.x; i < base + count;
         i += (int64_t)gridDim.x * THREADS) {
        float at = p[i], second = v[i];
        if (!(first && how & WHITEN_LATER))
            v[i] = second = add(second, mul(blend, sub(mul(at, at), second)));
        if (first)
            x[i] = 0;
        else if (how & WHITEN_OWN)
            x[i] = quot(x[i], root(second > least ? second : least));
        else
            x[i] = quot(x[i], add(root(second), eps));
    }
}

void gpu_whiten(struct ops *o, struct tensor x, struct tensor v, struct tensor p, int n,
                unsigned how, const real *b, const real *eps, const real *updates,
                const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(x) / n;
    if (c->failed || x.rows == 0)
        return;
    const float *from = (const float *)(how & WHITEN_OWN ? x.data : p.data);
    divide<<<matrices_grid(c, count, THREADS, n), THREADS, 0, c->stream>>>(
        (float *)x.data, (float *)v.data, from, count, how, b, eps, updates, gate);
    CUDA_LAUNCHED(c);
}

/* -- by_lines ------------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(THREADS)
    scale_lines(float *x, const float *left, const float *right, int rows, int cols,
                const float *updates)
{
    int64_t count = (int64_t)rows * cols;
    if (updates && updates[blockIdx.y] == 0)
        return;
    x += blockIdx.y * count;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * THREADS)
        x[i] = mul(x[i], mul(left ? left[(int64_t)blockIdx.y * rows + i / cols] : 1,
                             right ? right[(int64_t)blockIdx.y * cols + i % cols] : 1));
}

void gpu_by_lines(struct ops *o, struct tensor x, struct tensor left, struct tensor right, int n,
                  const real *updates)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(x) / n;
    if (c->failed || x.rows == 0)
        return;
    scale_lines<<<matrices_grid(c, count, THREADS, n), THREADS, 0, c->stream>>>(
        (float *)x.data, (const float *)left.data, (const float *)right.data, (int)(x.rows / n),
        (int)x.cols, updates);
    CUDA_LAUNCHED(c);
}

/* -- kl_scales ----------------------------------------------------------------------------------- */

/* A block a row, or 32 columns, a warp each eighth row of them. */
static __global__ void __launch_bounds__(THREADS)
    line_scales(float *e, const float *x, int rows, int cols, bool columns, const float *number,
                const float *updates, const struct step_gate *gate)
{
    __shared__ double part[THREADS / 32][33], warps[32];
    int lines = columns ? cols : rows, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int line = columns ? blockIdx.x * 32 + lane : blockIdx.x;
    double sum = 0;

    if (gate && gate->skip)
        return;
    x += (int64_t)blockIdx.y * rows * cols;
    if (columns) {
        for (int r = warp; r < rows && line < cols; r += THREADS / 32)
            sum += (double)x[(int64_t)r * cols + line] * x[(int64_t)r * cols + line];
        part[warp][lane] = sum;
        __syncthreads();
        if (warp || line >= cols)
            return;
        for (int i = 1; i < THREADS / 32; i++)
            sum += part[i][lane];
    } else {
        for (int j = threadIdx.x; j < cols; j += THREADS)
            sum += (double)x[(int64_t)line * cols + j] * x[(int64_t)line * cols + j];
        sum = block_sum(sum, warps);
        if (threadIdx.x)
            return;
    }
    float *at = e + (int64_t)blockIdx.y * lines + line;
    double value = 1 / ((double)*at * *at);
    if (!isfinite(value))
        value = 0;
    value += number[0] * (sum / (columns ? rows : cols) - value);
    *at = (float)(updates[blockIdx.y] == 0 ? 1 / sqrt((double)number[2])
                                           : fmin(1 / sqrt(fmax(value, 1e-30)), 4000.0));
}

void gpu_kl_scales(struct ops *o, struct tensor e, struct tensor x, int n, bool columns,
                   const real *number, const real *updates, const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    int rows = (int)(x.rows / n), cols = (int)x.cols;
    if (c->failed || x.rows == 0)
        return;
    dim3 grid(columns ? div_up(cols, 32) : rows, n);
    line_scales<<<grid, THREADS, 0, c->stream>>>((float *)e.data, (const float *)x.data, rows, cols,
                                                 columns, number, updates, gate);
    CUDA_LAUNCHED(c);
}

/* -- line_powers ------------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(THREADS)
    diagonal_powers(float *out, const float *s, int k, const float *number)
{
    __shared__ double warps[32];
    double squares = 0, p = -(double)*number;

    s += (int64_t)blockIdx.x * k * k, out += (int64_t)blockIdx.x * k;
    for (int i = threadIdx.x; i < k; i += THREADS) {
        double l = pow(fmax((double)s[(int64_t)i * (k + 1)], 1e-6), p);
        out[i] = (float)l, squares += l * l;
    }
    squares = block_sum(squares, warps);
    for (int i = threadIdx.x; i < k; i += THREADS)
        out[i] = (float)((double)out[i] * sqrt((double)k) / (sqrt(squares) + 1e-6));
}

void gpu_line_powers(struct ops *o, struct tensor out, struct tensor s, int n, const real *number)
{
    struct cuda_ops *c = cuda_of(o);
    if (c->failed || s.rows == 0)
        return;
    diagonal_powers<<<n, THREADS, 0, c->stream>>>((float *)out.data, (const float *)s.data,
                                                  (int)s.cols, number);
    CUDA_LAUNCHED(c);
}

/* -- first bases ------------------------------------------------------------------------------------ */

/* yes[i]: the first row of matrix i has a number. */
static __global__ void __launch_bounds__(THREADS) begun(int *yes, const float *q, int k)
{
    __shared__ int warps[32];
    int some = 0;
    q += (int64_t)blockIdx.x * k * k;
    for (int i = threadIdx.x; i < k; i += THREADS)
        some += q[i] != 0;
    some = block_sum(some, warps);
    if (threadIdx.x == 0)
        yes[blockIdx.x] = some;
}

static int *find_begun(struct cuda_ops *c, struct tensor q, int n)
{
    int *yes = (int *)cuda_workspace(c, sizeof(int) * (size_t)n);
    if (!yes)
        return NULL;
    begun<<<n, THREADS, 0, c->stream>>>(yes, (const float *)q.data, (int)q.cols);
    CUDA_LAUNCHED(c);
    return yes;
}

static __global__ void __launch_bounds__(THREADS)
    identity(float *q, const int *yes, int k, const struct step_gate *gate)
{
    if ((gate && gate->skip) || yes[blockIdx.y])
        return;
    q += (int64_t)blockIdx.y * k * k;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < k * k; i += gridDim.x * THREADS)
        q[i] = i / k == i % k;
}

void gpu_first_basis(struct ops *o, struct tensor q, struct tensor x, int n, bool right,
                     const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    assert((right ? x.cols : x.rows / n) == q.cols);
    int *yes = c->failed || q.rows == 0 ? NULL : find_begun(c, q, n);
    if (!yes)
        return;
    identity<<<matrices_grid(c, q.cols * q.cols, THREADS, n), THREADS, 0, c->stream>>>(
        (float *)q.data, yes, (int)q.cols, gate);
    CUDA_LAUNCHED(c);
}

static __global__ void __launch_bounds__(THREADS)
    cosines(float *q, const int *yes, int k, uint64_t seed, uint64_t stream,
            const struct step_gate *gate)
{
    int64_t r = blockIdx.x;
    uint32_t word[4];
    if ((gate && gate->skip) || yes[blockIdx.y])
        return;
    philox(seed, stream + blockIdx.y, (uint64_t)r, word);
    q += ((int64_t)blockIdx.y * k + r) * k;
    double size = (word[0] & 1 ? -1 : 1) * sqrt(2.0 / k);
    for (int64_t i = threadIdx.x; i < k; i += THREADS)
        q[i] = (float)(i == 0 ? size * sqrt(0.5)
                              : size * cos(3.14159265358979323846 *
                                           ((2 * r + 1) * i % (4 * (int64_t)k)) / (2.0 * k)));
}

void gpu_cosine_basis(struct ops *o, struct tensor q, int n, uint64_t seed, uint64_t stream,
                      const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    int *yes = c->failed || q.rows == 0 ? NULL : find_begun(c, q, n);
    if (!yes)
        return;
    cosines<<<dim3((unsigned)q.cols, n), THREADS, 0, c->stream>>>((float *)q.data, yes, (int)q.cols,
                                                                  seed, stream, gate);
    CUDA_LAUNCHED(c);
}

/* -- trust --------------------------------------------------------------------------------------------- */

__device__ __forceinline__ double clip(double x) { return !(x > 0) ? 0 : x > 1 ? 1 : x; }

static __global__ void __launch_bounds__(1024)
    part_of(float *part, const float *x, const float *b, const float *g, int64_t count,
            const float *number)
{
    __shared__ double warps[6][32];
    double sum[6] = {};
    x += blockIdx.x * count, b += blockIdx.x * count, g += blockIdx.x * count;
    for (int64_t i = threadIdx.x; i < count; i += 1024) {
        double s = x[i], m = b[i], d = g[i];
        sum[0] += s * s, sum[1] += m * m, sum[2] += d * d;
        sum[3] += s * m, sum[4] += s * d, sum[5] += m * d;
    }
    for (int i = 0; i < 6; i++)
        sum[i] = block_sum(sum[i], warps[i]);
    if (threadIdx.x)
        return;
    double agree = sum[3] / fmax(sqrt(sum[0] * sum[1]), 1e-8);
    double align = sum[4] / fmax(sqrt(sum[0] * sum[2]), 1e-8);
    double before = sum[5] / fmax(sqrt(sum[1] * sum[2]), 1e-8);
    double at = clip((agree - 0.2) / 0.8) * clip(align / fmax(before, 1e-8));
    part[blockIdx.x] = (float)fmin(fmax(at, (double)number[0]), (double)number[1]);
}

static __global__ void __launch_bounds__(THREADS)
    go_towards(float *x, const float *b, const float *part, int64_t count)
{
    int64_t base = blockIdx.y * count;
    for (int64_t i = base + (int64_t)blockIdx.x * THREADS + threadIdx.x; i < base + count;
         i += (int64_t)gridDim.x * THREADS)
        x[i] = fmaf(part[blockIdx.y], x[i] - b[i], b[i]);
}

void gpu_trust(struct ops *o, struct tensor x, struct tensor before, struct tensor g, int n,
               const real *number)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(x) / n;
    if (c->failed || x.rows == 0)
        return;
    float *part = (float *)cuda_workspace(c, sizeof(float) * (size_t)n);
    if (!part)
        return;
    part_of<<<n, 1024, 0, c->stream>>>(part, (const float *)x.data, (const float *)before.data,
                                       (const float *)g.data, count, number);
    CUDA_LAUNCHED(c);
    go_towards<<<matrices_grid(c, count, THREADS, n), THREADS, 0, c->stream>>>(
        (float *)x.data, (const float *)before.data, part, count);
    CUDA_LAUNCHED(c);
}
