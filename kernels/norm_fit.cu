/* norm_fit.cu - a matrix, or each of its rows, scaled and moved along another by norms of both.
 *
 * Contract: op_list.h, optimizers.md 4.7; formulas in ops/norm_fit.h, as of the C reference. n matrices, in
 * three launches because norms of a whole matrix are needed between them:
 *     row_sums, column_sums   a warp a row, or a thread a column of every eighth row      x, y ->
 *     pairs                   a block a matrix: its sum over lines, then a and b of each line
 *     apply                   x <- a x + b y; of the fits of a write `pairs` is the last
 * Bytes an element: 4 for x and 4 to 4 for y, twice, and 4: 20; 8 of those of a write.
 * x differs from the C reference's by the order of sums.
 */
#include "gpu.h"
#include "ops/norm_fit.h"
#include "optim.h"

enum { WARPS = 8, COLUMNS = 32, MAX_MATRICES = 256 };

/* The other tensor, exact. */
struct other {
    const void *y;
    const uint16_t *low;
    bool halves; /* y is bf16 */
    __device__ __forceinline__ float at(int64_t i) const
    {
        if (!y)
            return 0;
        if (!halves)
            return ((const float *)y)[i];
        return __uint_as_float((uint32_t)((const uint16_t *)y)[i] << 16 | (low ? low[i] : 0));
    }
};

struct matrices {
    uint32_t turned[MAX_MATRICES / 32]; /* bit i: rows of matrix i are columns */
    float lr_mul[MAX_MATRICES];
    __device__ __forceinline__ bool is_turned(int i) const { return turned[i / 32] >> i % 32 & 1; }
};

__device__ __forceinline__ void reduce(struct fit_sums *s)
{
    s->xx = warp_sum(s->xx);
    s->xy = warp_sum(s->xy);
    s->yy = warp_sum(s->yy);
    s->masked_xy = warp_sum(s->masked_xy);
    s->masked_yy = warp_sum(s->masked_yy);
}

/* Lines of matrix blockIdx.y: rows [8 b, 8 b + 8), a warp each, or columns [32 b, 32 b + 32). line: `most` of
 * each matrix. */
static __global__ void __launch_bounds__(WARPS * 32)
    line_sums(struct fit_sums *line, const float *x, struct other y, int rows, int cols, int most,
              unsigned how, const __grid_constant__ struct matrices of)
{
    __shared__ fit_sums part[WARPS][COLUMNS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t base = (int64_t)blockIdx.y * rows * cols;
    struct fit_sums s = {};

    line += (int64_t)blockIdx.y * most;
    if (!of.is_turned(blockIdx.y)) {
        int row = blockIdx.x * WARPS + warp;
        for (int j = lane; row < rows && j < cols; j += 32)
            fit_add(&s, how, x[base + (int64_t)row * cols + j],
                    y.at(base + (int64_t)row * cols + j));
        reduce(&s);
        if (lane == 0 && row < rows)
            line[row] = s;
        return;
    }
    int col = blockIdx.x * COLUMNS + lane;
    if (blockIdx.x * COLUMNS >= cols)
        return;
    for (int r = warp; r < rows && col < cols; r += WARPS)
        fit_add(&s, how, x[base + (int64_t)r * cols + col], y.at(base + (int64_t)r * cols + col));
    part[warp][lane] = s;
    __syncthreads();
    if (warp || col >= cols)
        return;
    for (int i = 1; i < WARPS; i++)
        fit_join(&s, &part[i][lane]);
    line[col] = s;
}

struct pair_args {
    enum fit_to to;
    const float *number, *each, *over;
    double least;
    const struct muon_step *m;
    float *out;
    unsigned how;
};

/* A block a matrix. pair: (most) of each; of fits by matrix the first. */
static __global__ void __launch_bounds__(WARPS * 32)
    pairs(float2 *pair, const struct fit_sums *line, int rows, int cols, int most,
          struct pair_args f, const __grid_constant__ struct matrices of)
{
    __shared__ double warps[5][32];
    bool turned = of.is_turned(blockIdx.x);
    int lines = turned ? cols : rows;
    struct fit_sums whole = {};
    struct fit_args a = {};

    line += (int64_t)blockIdx.x * most;
    for (int i = threadIdx.x; fit_of_sums(f.to) && i < lines; i += WARPS * 32)
        fit_join(&whole, &line[i]);
    whole.xx = block_sum(whole.xx, warps[0]);
    whole.xy = block_sum(whole.xy, warps[1]);
    whole.yy = block_sum(whole.yy, warps[2]);
    whole.masked_xy = block_sum(whole.masked_xy, warps[3]);
    whole.masked_yy = block_sum(whole.masked_yy, warps[4]);
    a.to = f.to;
    a.rows = turned ? cols : rows, a.cols = turned ? rows : cols;
    a.number = f.number ? *f.number : 0;
    a.each = f.each ? f.each[blockIdx.x] : 1;
    a.over = f.over ? f.over[blockIdx.x] : 1, a.least = f.least;
    if (fit_of_write(f.to)) {
        float lr = mul(f.m->lr, of.lr_mul[blockIdx.x]);
        a.lr = lr;
        a.shrink = f.how & MUON_BEHIND ? 0 : f.m->decay * a.lr;
    }
    bool by_row = fit_by_row(f.to);
    for (int i = threadIdx.x; i < (by_row ? lines : 1); i += WARPS * 32) {
        struct fit_pair p = fit_of(&a, by_row ? &line[i] : &whole, &whole);
        if (f.out)
            ((float2 *)f.out)[blockIdx.x] = make_float2((float)p.a, (float)p.b);
        else
            pair[(int64_t)blockIdx.x * most + i] = make_float2((float)p.a, (float)p.b);
    }
}

static __global__ void __launch_bounds__(WARPS * 32)
    apply(float *x, struct other y, const float2 *pair, int rows, int cols, int most, bool by_row,
          const __grid_constant__ struct matrices of)
{
    int64_t count = (int64_t)rows * cols, base = blockIdx.y * count;
    bool turned = of.is_turned(blockIdx.y);

    pair += (int64_t)blockIdx.y * most;
    for (int64_t i = (int64_t)blockIdx.x * WARPS * 32 + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * WARPS * 32) {
        float2 p = pair[!by_row ? 0 : turned ? i % cols : i / cols];
        x[base + i] = add(mul(p.x, x[base + i]), mul(p.y, y.at(base + i)));
    }
}

void gpu_norm_fit(struct ops *o, struct tensor x, int n, const struct norm_fit *f)
{
    struct cuda_ops *c = cuda_of(o);
    int rows = (int)(x.rows / n), cols = (int)x.cols, most = rows > cols ? rows : cols;
    struct matrices of = {};
    assert((int64_t)rows * n == x.rows && (!f->y.data || tensor_count(f->y) == tensor_count(x)));
    if (c->failed || x.rows == 0 || !CUDA_NEED(c, x.dtype == DT_F32, "x must be f32") ||
        !CUDA_NEED(c, !f->y.data || is_float(f->y), "y must be f32 or bf16") ||
        !CUDA_NEED(c, n <= MAX_MATRICES, "a rank may hold 256 matrices of a bank at most"))
        return;
    bool any = false, all = true;
    for (int i = 0; i < n; i++) {
        bool turned = f->turned && f->turned[i];
        of.turned[i / 32] |= (uint32_t)turned << i % 32;
        of.lr_mul[i] = f->lr_mul ? f->lr_mul[i] : 1;
        any |= turned, all &= turned;
    }
    struct fit_sums *line;
    size_t sums_bytes = cuda_round(sizeof *line * (size_t)most * n);
    char *at = (char *)cuda_workspace(c, sums_bytes + sizeof(float2) * (size_t)most * n);
    if (!at)
        return;
    line = (struct fit_sums *)cuda_cut(&at, sums_bytes);
    float2 *pair = (float2 *)at;
    struct other y = { f->y.data, (const uint16_t *)f->low.data, f->y.dtype == DT_BF16 };
    int by_rows = div_up(rows, WARPS), by_columns = div_up(cols, COLUMNS);
    dim3 grid(all ? by_columns : any ? max(by_rows, by_columns) : by_rows, n);
    struct pair_args args = { f->to, f->number, f->each, f->over, f->least, f->m, f->out, f->how };

    if (fit_of_sums(f->to)) {
        line_sums<<<grid, WARPS * 32, 0, c->stream>>>(line, (const float *)x.data, y, rows, cols,
                                                      most, f->how, of);
        CUDA_LAUNCHED(c);
    }
    pairs<<<n, WARPS * 32, 0, c->stream>>>(pair, line, rows, cols, most, args, of);
    CUDA_LAUNCHED(c);
    if (f->out)
        return;
    dim3 all_of = matrices_grid(c, (int64_t)rows * cols, 256, n);
    apply<<<all_of, WARPS * 32, 0, c->stream>>>((float *)x.data, y, pair, rows, cols, most,
                                                fit_by_row(f->to), of);
    CUDA_LAUNCHED(c);
}
