/* normuon.cu - the NorMuon update from an orthogonalised x: row variance, decay, master.
 *
 * Contract: op_list.h, optimizers.md 4.3, 4.4. n matrices (R,C), in two launches because the norms
 * of a whole matrix are needed between them:
 *     row_stats   a warp a row: mean square into q; sums of mean square and of its scaled value,
 *                 one pair a block of WARPS rows                                    x -> q
 *     update      a warp a row: pairs added in their order, x scaled and rounded to its type,
 *                 w : mant updated                                        x, q, w, mant -> w, mant
 * Where R < C, q is of columns: column_stats takes the place of row_stats, COLUMNS of them a block.
 * Without q the second alone runs, and x is taken as it is. Op variance has the first and in place of
 * the second `apply`, which leaves the scaled x in its place.
 * Bytes an element: 2 + 10 (bf16 x and w, u16 mant); 10 if x were read once.
 * Bits equal the C reference's given the same row scales; these differ by the order of sums.
 */
#include "gpu.h"
#include "stages.h"

enum { WARPS = 8, COLUMNS = 32, MAX_MATRICES = 256 };

struct multipliers {
    float lr[MAX_MATRICES];
};

__device__ __forceinline__ float inverse_root(float second)
{
    return quot(1, root(second > 1e-10f ? second : 1e-10f));
}

/* A block's two sums over its N rows or columns. */
template <int N> __device__ __forceinline__ void put_sums(double *sums, const float (&pair)[2][N])
{
    __syncthreads();
    if (threadIdx.x < 2) {
        double sum = 0;
        for (int i = 0; i < N; i++)
            sum += pair[threadIdx.x][i];
        sums[2 * ((int64_t)blockIdx.y * gridDim.x + blockIdx.x) + threadIdx.x] = sum;
    }
}

/* Rows [8 b, 8 b + 8) of matrix blockIdx.y; sums[2 (y gridDim.x + b)] = their two sums. */
template <int WIDTH, typename X>
static __global__ void __launch_bounds__(WARPS * 32)
    row_stats(double *sums, float *q, const X *x, int rows, int cols, const float *blend_at,
              const struct step_gate *gate)
{
    __shared__ float pair[2][WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * WARPS + warp;
    int64_t at = (int64_t)blockIdx.y * rows + row;
    float dot = 0, mean = 0, scaled = 0, blend = *blend_at;

    start_kernel_behind();
    if (gate && gate->skip)
        return;
    if (row < rows) {
        float second = q[at];
#pragma unroll 3
        for (int j = lane * WIDTH; j < cols; j += 32 * WIDTH) {
            float v[WIDTH];
            load<WIDTH>(v, x + at * cols + j);
#pragma unroll
            for (int e = 0; e < WIDTH; e++)
                dot = fmaf(v[e], v[e], dot);
        }
        mean = quot(warp_sum(dot), (float)cols);
        second = add(second, mul(blend, sub(mean, second)));
        float t = inverse_root(second);
        scaled = mul(mul(mean, t), t);
        __syncwarp();
        if (lane == 0)
            q[at] = second;
    }
    if (lane == 0)
        pair[0][warp] = mean, pair[1][warp] = scaled;
    put_sums(sums, pair);
}

/* Columns [32 b, 32 b + 32) of matrix blockIdx.y, a thread one of them in every eighth row; sums as
 * row_stats. */
template <typename X>
static __global__ void __launch_bounds__(WARPS *COLUMNS)
    column_stats(double *sums, float *q, const X *x, int rows, int cols, const float *blend_at,
                 const struct step_gate *gate)
{
    __shared__ float part[WARPS][COLUMNS], pair[2][COLUMNS];
    int lane = threadIdx.x % COLUMNS, warp = threadIdx.x / COLUMNS;
    int col = blockIdx.x * COLUMNS + lane;
    int64_t first = (int64_t)blockIdx.y * rows * cols, at = (int64_t)blockIdx.y * cols + col;
    float dot = 0, mean = 0, scaled = 0, blend = *blend_at;

    start_kernel_behind();
    if (gate && gate->skip)
        return;
#pragma unroll 8
    for (int r = warp; r < rows; r += WARPS)
        if (col < cols) {
            float v[1];
            load<1>(v, x + first + (int64_t)r * cols + col);
            dot = fmaf(v[0], v[0], dot);
        }
    part[warp][lane] = dot;
    __syncthreads();
    if (warp == 0 && col < cols) {
        float second = q[at];
        dot = 0;
        for (int i = 0; i < WARPS; i++)
            dot += part[i][lane];
        mean = quot(dot, (float)rows);
        second = add(second, mul(blend, sub(mean, second)));
        float t = inverse_root(second);
        scaled = mul(mul(mean, t), t);
        q[at] = second;
    }
    if (warp == 0)
        pair[0][lane] = mean, pair[1][lane] = scaled;
    put_sums(sums, pair);
}

/* A matrix of a fitted write moves by this. */
struct move {
    float lr, decay;
    unsigned how;
    const float *fit; /* two, or NULL */
};

__device__ __forceinline__ float moved_as(float p, float d, const struct move &m)
{
    if (!m.fit)
        return moved(p, d, m.lr, m.decay, m.how);
    float product = mul(d, p);
    bool shrinks = m.how & MUON_PLAIN || (m.how & MUON_STRICT ? product > 0 : product >= 0);
    float before = shrinks && !(m.how & MUON_BEHIND) ? mul(mul(p, m.decay), m.lr) : 0;
    p = mul(sub(sub(p, before), mul(d, mul(m.lr, m.fit[0]))), m.fit[1]);
    return sub(p, shrinks && m.how & MUON_BEHIND ? mul(mul(p, m.decay), m.lr) : 0);
}

/* WIDTH elements of the weight, as they lie in memory: bf16 and its mantissa, or f32. */
template <int WIDTH, bool HALVES> struct weight;

template <> struct weight<8, true> {
    uint4 high, low;
    __device__ void load(const void *w, const uint16_t *mant, int64_t at)
    {
        high = *(const uint4 *)((const uint16_t *)w + at);
        low = *(const uint4 *)(mant + at);
    }
    __device__ void by(const float (&d)[8], const struct move &m)
    {
        uint32_t h[4] = { high.x, high.y, high.z, high.w }, l[4] = { low.x, low.y, low.z, low.w };
#pragma unroll
        for (int i = 0; i < 4; i++) { /* halves of elements 2i and 2i + 1 */
            uint32_t even = __byte_perm(l[i], h[i], 0x5410), odd = __byte_perm(l[i], h[i], 0x7632);
            even = __float_as_uint(moved_as(__uint_as_float(even), d[2 * i], m));
            odd = __float_as_uint(moved_as(__uint_as_float(odd), d[2 * i + 1], m));
            h[i] = __byte_perm(even, odd, 0x7632); /* cut, not rounded */
            l[i] = __byte_perm(even, odd, 0x5410);
        }
        high = make_uint4(h[0], h[1], h[2], h[3]);
        low = make_uint4(l[0], l[1], l[2], l[3]);
    }
    __device__ void store(void *w, uint16_t *mant, int64_t at)
    {
        store16((uint16_t *)w + at, high);
        store16(mant + at, low);
    }
};

template <> struct weight<1, true> {
    uint32_t bits;
    __device__ void load(const void *w, const uint16_t *mant, int64_t at)
    {
        bits = (uint32_t)((const uint16_t *)w)[at] << 16 | mant[at];
    }
    __device__ void by(const float (&d)[1], const struct move &m)
    {
        bits = __float_as_uint(moved_as(__uint_as_float(bits), d[0], m));
    }
    __device__ void store(void *w, uint16_t *mant, int64_t at)
    {
        ((uint16_t *)w)[at] = (uint16_t)(bits >> 16);
        mant[at] = (uint16_t)bits;
    }
};

template <int WIDTH> struct weight<WIDTH, false> {
    float p[WIDTH];
    __device__ void load(const void *w, const uint16_t *, int64_t at)
    {
        ::load<WIDTH>(p, (const float *)w + at);
    }
    __device__ void by(const float (&d)[WIDTH], const struct move &m)
    {
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            p[e] = moved_as(p[e], d[e], m);
    }
    __device__ void store(void *w, uint16_t *, int64_t at) { ::store<WIDTH>((float *)w + at, p); }
};

/* Returns the factor of the matrix's rows (columns) besides their own t: norm before / norm after. n:
 * how many numbers each mean is of. */
__device__ __forceinline__ float norm_kept(const double *sums, int blocks, int n)
{
    __shared__ double warps[2][32];
    double before = 0, after = 0;
    for (int i = threadIdx.x; i < blocks; i += WARPS * 32) {
        double2 s = *(const double2 *)(sums + 2 * ((int64_t)blockIdx.y * blocks + i));
        before += s.x;
        after += s.y;
    }
    before = block_sum(before, warps[0]);
    after = block_sum(after, warps[1]);
    float old = (float)sqrt(n * before), now = (float)sqrt(n * after);
    return quot(old, now > 1e-10f ? now : 1e-10f);
}

/* Rows [8 b, 8 b + 8) of matrix blockIdx.y. HALVES: w is bf16 with mant; else f32. */
template <int WIDTH, bool HALVES, typename X>
static __global__ void __launch_bounds__(WARPS * 32)
    update(void *w, uint16_t *mant, const float *q, const X *x, int rows, int cols,
           const double *sums, int blocks, unsigned how, const float *fit,
           const struct muon_step *m, const struct step_gate *gate,
           const __grid_constant__ struct multipliers mul_of)
{
    constexpr int AHEAD = WIDTH == 8 ? 3 : 1; /* 768 columns: a row's all */
    int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t at = ((int64_t)blockIdx.y * rows + row) * cols;
    struct move by = { mul(m->lr, mul_of.lr[blockIdx.y]), m->decay, how,
                       fit ? fit + 2 * blockIdx.y : NULL };
    float scale = 1, kept = 1;
    bool mine = row < rows, columns = q && rows < cols;

    if (gate && gate->skip) {
        wait_for_kernel_before(); /* what follows this kernel follows that one, too */
        return;
    }
    for (int j0 = 0; j0 < cols; j0 += 32 * WIDTH * AHEAD) {
        weight<WIDTH, HALVES> p[AHEAD];
        float d[AHEAD][WIDTH];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int j = j0 + (32 * i + lane) * WIDTH;
            if (mine && j < cols) { /* nothing before it writes these */
                p[i].load(w, mant, at + j);
                load<WIDTH>(d[i], x + at + j);
            }
        }
        if (j0 == 0) {
            wait_for_kernel_before();
            kept = q ? norm_kept(sums, blocks, columns ? rows : cols) : 1;
            if (mine && q && !columns)
                scale = mul(inverse_root(q[(int64_t)blockIdx.y * rows + row]), kept);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int j = j0 + (32 * i + lane) * WIDTH;
            if (!mine || j >= cols)
                continue;
#pragma unroll
            for (int e = 0; e < WIDTH; e++) {
                X rounded;
                if (columns)
                    scale = mul(inverse_root(q[(int64_t)blockIdx.y * cols + j + e]), kept);
                narrow(&rounded, mul(d[i][e], scale));
                d[i][e] = widen(rounded);
            }
            p[i].by(d[i], by);
            p[i].store(w, mant, at + j);
        }
    }
}

/* A row's or column's scale, times what keeps the norm; round: to bf16 values. */
template <int WIDTH>
static __global__ void __launch_bounds__(WARPS * 32)
    apply(float *x, const float *q, int rows, int cols, const double *sums, int blocks,
          unsigned how, const struct step_gate *gate)
{
    int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t at = ((int64_t)blockIdx.y * rows + row) * cols;
    bool columns = rows < cols;

    wait_for_kernel_before();
    if (gate && gate->skip)
        return;
    float kept = norm_kept(sums, blocks, columns ? rows : cols), scale = 1;
    kept = how & VARIANCE_FREE ? 1 : kept;
    if (row >= rows)
        return;
    if (!columns)
        scale = mul(inverse_root(q[(int64_t)blockIdx.y * rows + row]), kept);
    for (int j = lane * WIDTH; j < cols; j += 32 * WIDTH) {
        float v[WIDTH];
        load<WIDTH>(v, x + at + j);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            if (columns)
                scale = mul(inverse_root(q[(int64_t)blockIdx.y * cols + j + e]), kept);
            v[e] = mul(v[e], scale);
            v[e] = how & VARIANCE_ROUND ? as_stored<bf16>(v[e]) : v[e];
        }
        store<WIDTH>(x + at + j, v);
    }
}

template <typename X>
static void launch_stats(struct cuda_ops *c, double *sums, float *q, const X *x, int n, int rows,
                         int cols, bool by_8, const float *blend, const struct step_gate *gate)
{
    dim3 of_rows(div_up(rows, WARPS), n), of_columns(div_up(cols, COLUMNS), n);
    if (rows < cols)
        column_stats<<<of_columns, WARPS * COLUMNS, 0, c->stream>>>(sums, q, x, rows, cols, blend,
                                                                    gate);
    else if (by_8)
        row_stats<8><<<of_rows, WARPS * 32, 0, c->stream>>>(sums, q, x, rows, cols, blend, gate);
    else
        row_stats<1><<<of_rows, WARPS * 32, 0, c->stream>>>(sums, q, x, rows, cols, blend, gate);
    CUDA_LAUNCHED(c);
}

void gpu_variance(struct ops *o, struct tensor x, struct tensor q, int n, unsigned how,
                  const real *blend, const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    int rows = (int)(x.rows / n), cols = (int)x.cols;
    assert((int64_t)rows * n == x.rows);
    assert(tensor_count(q) == (rows < cols ? (int64_t)n * cols : x.rows));
    if (c->failed || x.rows == 0 ||
        !CUDA_NEED(c, x.dtype == DT_F32 && q.dtype == DT_F32, "x and q must be f32"))
        return;
    bool by_8 = wide(x, cols);
    dim3 grid(div_up(rows, WARPS), n);
    int blocks = rows < cols ? div_up(cols, COLUMNS) : (int)grid.x;
    double *sums = (double *)cuda_workspace(c, 2 * sizeof *sums * blocks * n);
    float *px = (float *)x.data, *pq = (float *)q.data;
    if (!sums)
        return;
    launch_stats(c, sums, pq, px, n, rows, cols, by_8, blend, gate);
    launch_behind(c, by_8 ? apply<8> : apply<1>, grid, WARPS * 32, px, pq, rows, cols, sums, blocks,
                  how, gate);
}

template <int WIDTH, bool HALVES, typename X>
static void both(struct cuda_ops *c, void *w, uint16_t *mant, float *q, const X *x, int n, int rows,
                 int cols, const float *lr_mul, const float *blend, const float *fit, unsigned how,
                 const struct muon_step *m, const struct step_gate *gate)
{
    dim3 grid(div_up(rows, WARPS), n);
    int blocks = rows < cols ? div_up(cols, COLUMNS) : (int)grid.x;
    double *sums = (double *)cuda_workspace(c, 2 * sizeof *sums * blocks * n);
    struct multipliers lr = {};
    if (!sums)
        return;
    memcpy(lr.lr, lr_mul, (size_t)n * sizeof *lr_mul);
    if (!q) { /* what is before it wrote x, so it does not start early */
        update<WIDTH, HALVES, X><<<grid, WARPS * 32, 0, c->stream>>>(
            w, mant, q, x, rows, cols, sums, blocks, how, fit, m, gate, lr);
        CUDA_LAUNCHED(c);
        return;
    }
    launch_stats(c, sums, q, x, n, rows, cols, WIDTH == 8, blend, gate);
    launch_behind(c, update<WIDTH, HALVES, X>, grid, WARPS * 32, w, mant, q, x, rows, cols, sums,
                  blocks, how, fit, m, gate, lr);
}

void gpu_normuon(struct ops *o, struct tensor w, struct tensor mant, struct tensor q,
                 struct tensor x, int n, const float *lr_mul, const real *blend, const real *fit,
                 unsigned how, const struct muon_step *m, const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    int rows = (int)(x.rows / n), cols = (int)x.cols;
    assert((int64_t)rows * n == x.rows && tensor_count(w) == tensor_count(x));
    assert(!q.data || tensor_count(q) == (rows < cols ? (int64_t)n * cols : x.rows));
    if (c->failed || x.rows == 0 ||
        !CUDA_NEED(c, w.dtype == DT_BF16 ? mant.dtype == DT_U16 : w.dtype == DT_F32,
                   "w must be bf16 with its u16 mantissa, or f32") ||
        !CUDA_NEED(c, is_float(x) && (!q.data || q.dtype == DT_F32),
                   "x must be f32 or bf16, q f32") ||
        !CUDA_NEED(c, n <= MAX_MATRICES, "a rank may hold 256 matrices of a bank at most"))
        return;

    bool halves = w.dtype == DT_BF16;
    bool by_8 = wide(x, cols) && wide(w, cols) && (!halves || wide(mant, cols));
    uint16_t *low = (uint16_t *)mant.data;
    float *pq = (float *)q.data;
    with_type(x, [&](auto *px) {
        if (by_8 && halves)
            both<8, true>(c, w.data, low, pq, px, n, rows, cols, lr_mul, blend, fit, how, m, gate);
        else if (by_8)
            both<8, false>(c, w.data, low, pq, px, n, rows, cols, lr_mul, blend, fit, how, m, gate);
        else if (halves)
            both<1, true>(c, w.data, low, pq, px, n, rows, cols, lr_mul, blend, fit, how, m, gate);
        else
            both<1, false>(c, w.data, low, pq, px, n, rows, cols, lr_mul, blend, fit, how, m, gate);
    });
}
