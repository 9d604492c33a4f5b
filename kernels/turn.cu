/* turn.cu - one step of the QR iteration of n bases, by Cholesky factors and products.
 *
 * Contract: op_list.h, optimizers.md 4.8. S = G G', G lower; G' is upper, so S and G have the same Q-factor:
 * G' G = H H', q = G H^-T, and H' H = q' S q is the next S; the basis Q q is Q G H^-T. Products are packed ones (split.h),
 * f16x3 of lines that powers of two have scaled to sizes near 1: S by its diagonal, so that rows of G have norms from 1
 * to 2, factors' columns, of which Gram matrices are made, by their norms, so that T and its factor have such rows, too.
 * What comes of a dense S is in bf16x6, products by diagonal blocks' inverses in f32. Some matrices at a time, a part of
 * them in each branch, so that products of one part fill the GPU while a block of another part is factored. Launches are
 *     order          the falling diagonal's order, lines' scales, and the least pivot of each line
 *     gather         S and v in that order; Q comes to it where it is packed
 *     cholesky       columns of 128 from the left: products of what is factored, for 384 columns at a time and inside of
 *                    these; `factor` of the diagonal block, which also inverts it; the product by that inverse
 *     gram           G' G and H' H, lower halves in rows of 384, whose columns begin at the diagonal
 *     solve          Q G H^-T, columns as cholesky's, in place
 *     orthogonal     X = Q q less X times the upper half of X'X - I, in 11 bits; of a matrix where that is not small X <- X K^-T
 *                    from X'X = K K' first, in f32, by kernels that return at once for others
 * r is the greater of 2^-19 and k 2^-26, what a sum of k products loses: tensor cores cut each of its 3 k / 16 additions
 * off. Gradients' covariances span 15 decades and more, so that their last lines are that noise, and columns of G that
 * depend on others would leave q without a direction. So S is lifted, by 2^-24 of its largest s_jj (1e-24 at least; r / 8
 * of a dense S, whose noise does not fall with its lines), which H' H gives back, and the diagonals of G' G and X'X by
 * r / 4 of themselves (shifted Cholesky QR, Fukaya and others 2020). A pivot not above its bound, NaN included, becomes the
 * bound, and its column below 0; S = 0 gives q = I. Bounds: r s_jj and 1e-30, of a dense S also r / 16 of the largest.
 * FLOPs a matrix of k lines, in f32: k^3/3 twice, k^3 for q, k^3/2 twice for the Gram matrices, k^3 for Q G, 9/8 k^3
 * for X'X; in one part of f16 9/8 k^3; where K is factored 10/3 k^3 a time more, without tensor cores. Workspace:
 * 24 k^2 bytes a matrix, 36 k^2 with a dense S.
 */
#include "f32_product.cuh"
#include "gpu.h"
#include "optim.h"
#include "split.h"
#include "vec.h"

enum { THREADS = 256, PANEL = CHUNK, WIDE = 3 * PANEL, LINES = 8, PARTS = 3 /* in branches */ };

/* A group of matrices at work. */
struct group {
    struct cuda_ops *c;
    int n, k;
    int64_t stride; /* k k */
    float *x0, *x1, *x2, *bound, *lift; /* lift: a number a matrix */
    int *order, *far; /* far: two numbers a matrix, of `orthogonal` */
    const int *only; /* NULL, or the numbers of matrices that are left alone where they are 0 */
    struct scales rows, columns; /* of the factor at work */
    float *inverse, *panel; /* (blocks,PANEL,PANEL), (PANEL,PANEL), transposed */
    struct packed a, b;
    struct packed dense_a, dense_b; /* where a and b are, for a dense S */
};

/* A side's bases and their covariances, of a group's n matrices from `first` on. */
struct side {
    float *q, *s;
    int first, n;
    bool right;
};

/* Returns the part of a group that is a side's. */
static struct group part_of(struct group g, const struct side &side)
{
    int64_t lines = (int64_t)side.first * g.k;
    g.n = side.n;
    for (float **x : { &g.x0, &g.x1, &g.x2 })
        *x += side.first * g.stride;
    for (float **x : { &g.bound, &g.rows.by, &g.rows.over, &g.columns.by, &g.columns.over })
        *x += lines;
    g.order += lines, g.lift += side.first;
    for (struct packed *p : { &g.a, &g.b, &g.dense_a, &g.dense_b })
        p->data += side.first * p->row() * p->rows;
    return g;
}

/* -- order ----------------------------------------------------------------------------------------- */

/* Returns a key that any two lines have an order by: NaN is the least. */
__device__ __forceinline__ float key_of(float x) { return x == x ? x : -INFINITY; }

/* Returns the bound of a pivot in a line whose diagonal is `at`, of k. */
__device__ __forceinline__ float least_pivot(float at, int k)
{
    return fmaxf(fmaxf(0x1p-19f, 0x1p-26f * k) * at, 1e-30f);
}

static __global__ void __launch_bounds__(THREADS)
    order_lines(int *order, float *bound, float *lift, struct scales scales, const float *s, int k,
                bool sort, bool dense)
{
    extern __shared__ float diagonal[]; /* (k) */
    __shared__ float most[THREADS / 32];
    float largest = 0;

    s += (int64_t)blockIdx.x * k * k, order += (int64_t)blockIdx.x * k;
    bound += (int64_t)blockIdx.x * k;
    scales.by += (int64_t)blockIdx.x * k, scales.over += (int64_t)blockIdx.x * k;
    for (int i = threadIdx.x; i < k; i += THREADS)
        largest = fmaxf(largest, diagonal[i] = s[(int64_t)i * (k + 1)]);
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0)
        most[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        largest = fmaxf(largest, most[i]);
    float noise = dense ? least_pivot(largest, k) / 8 : 0, up = fmaxf(0x1p-24f * largest, 1e-24f);
    up = fmaxf(up, noise);
    if (threadIdx.x == 0)
        lift[blockIdx.x] = up;
    int i = blockIdx.y * THREADS + threadIdx.x;
    if (i < k) {
        float at = diagonal[i];
        int before = sort ? 0 : i;
        for (int j = 0; sort && j < k; j++) {
            float other = key_of(diagonal[j]);
            before += other > key_of(at) || (other == key_of(at) && j < i);
        }
        order[before] = i;
        float by = scale_of(at + up);
        scales.by[before] = by, scales.over[before] = 1 / by;
        bound[before] = fmaxf(least_pivot(at + up, k), noise / 2) * by * by;
    }
}

/* Makes the least pivots of a matrix of its own diagonal. */
static __global__ void __launch_bounds__(THREADS) bound_lines(float *bound, const float *s, int k)
{
    s += (int64_t)blockIdx.x * k * k;
    for (int i = threadIdx.x; i < k; i += THREADS)
        bound[(int64_t)blockIdx.x * k + i] = least_pivot(s[(int64_t)i * (k + 1)], k);
}

/* to = s with rows and columns in the order, multiplied by their numbers: a block a row. */
static __global__ void __launch_bounds__(THREADS)
    gather(float *to, const float *s, const int *order, const float *by, int k)
{
    int64_t at = (int64_t)blockIdx.y * k * k, lines = (int64_t)blockIdx.y * k;
    order += lines, by += lines;
    s += at + (int64_t)order[blockIdx.x] * k;
    to += at + (int64_t)blockIdx.x * k;
    for (int i = threadIdx.x; i < k; i += THREADS)
        to[i] = s[order[i]] * by[blockIdx.x] * by[i];
}

/* v's rows, or columns, in the order: a block takes LINES lines along them through shared memory. */
static __global__ void __launch_bounds__(THREADS)
    sort_second(float *v, const int *order, int rows, int cols, bool right,
                const struct step_gate *gate)
{
    extern __shared__ float line[];
    int k = right ? cols : rows, others = right ? rows : cols, first = blockIdx.x * LINES;
    int many = min(LINES, others - first);

    if (gate && gate->skip)
        return;
    order += (int64_t)blockIdx.y * k, v += (int64_t)blockIdx.y * rows * cols;
    for (int i = threadIdx.x; i < k * many; i += THREADS) {
        int a = right ? i / k : i % many, b = right ? i % k : i / many;
        line[a * k + b] =
            v[right ? (int64_t)(first + a) * cols + b : (int64_t)b * cols + first + a];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < k * many; i += THREADS) {
        int a = right ? i / k : i % many, b = right ? i % k : i / many;
        v[right ? (int64_t)(first + a) * cols + b : (int64_t)b * cols + first + a] =
            line[a * k + order[b]];
    }
}

/* -- cholesky ------------------------------------------------------------------------------------- */

enum { EDGE = 8, SIDE = PANEL / EDGE, ROW = PANEL + 1 };
enum { FACTOR_SHARED = PANEL * ROW * (int)sizeof(float) };

/* Factors the tile that its thread holds, of which l becomes the factor, m the inverse and over the reciprocals of the
 * factor's diagonal. */
__device__ __forceinline__ void factor_tile(float (&m)[EDGE][EDGE], float *l, float *over,
                                            const float *least, bool *guarded)
{
#pragma unroll
    for (int e = 0; e < EDGE; e++) {
        bool guard = !(m[e][e] > least[e]);
        float pivot = guard ? least[e] : m[e][e], by = rsqrtf(pivot), f[EDGE];
        by = fmaf(by, fmaf(-0.5f * pivot * by, by, 0.5f), by);
        guarded[e] = guard, over[e] = by, l[e * ROW + e] = pivot * by;
#pragma unroll
        for (int i = 0; i < EDGE; i++)
            if (i < e)
                m[e][i] *= by;
            else if (i > e)
                l[i * ROW + e] = f[i] = guard ? 0 : m[i][e] * by;
#pragma unroll
        for (int i = e + 1; i < EDGE; i++) {
#pragma unroll
            for (int c = 0; c <= i; c++)
                if (c != e)
                    m[i][c] = fmaf(-f[i], c < e ? m[e][c] : f[c], m[i][c]);
            m[i][e] = -f[i] * by;
        }
        m[e][e] = by;
    }
}

/* Returns where a line's EDGE numbers begin, so that tiles' lines lie in different banks. */
__device__ __forceinline__ int side_at(int line) { return line * EDGE + line / EDGE * 4; }

/* m <- m - f u', of lines of `side`. */
__device__ __forceinline__ void subtract_tile(float (&m)[EDGE][EDGE], const float *side, int row,
                                              int col)
{
#pragma unroll
    for (int half = 0; half < EDGE; half += 4) {
        float f[EDGE][4], u[EDGE][4];
#pragma unroll
        for (int i = 0; i < EDGE; i++) {
            *(float4 *)f[i] = *(const float4 *)(side + side_at(row + i) + half);
            *(float4 *)u[i] = *(const float4 *)(side + side_at(col + i) + half);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int i = 0; i < EDGE; i++)
#pragma unroll
                for (int c = 0; c < EDGE; c++)
                    m[i][c] = fmaf(-f[i][e], u[c][e], m[i][c]);
    }
}

/* Factors the diagonal block at `first`, of w lines, in place, with zeros above, and inverts it: Gauss's elimination in
 * place, EDGE columns at a time, of which a thread holds EDGE x EDGE numbers: of the block what is right of the columns, of
 * the inverse what is left of them. The thread of their tile factors that, those below and on the left of it take that off
 * theirs, and then all lines below what these give. The diagonal is lifted by the matrix's number or, without lift, by a
 * quarter of the bounds. panel: the inverse without the rows of guarded columns, which leaves those below 0. A block a
 * matrix, which returns where `only` says so. */
static __global__ void __launch_bounds__(THREADS, 1)
    factor(float *x, float *inverse, float *panel, const float *bound, const float *lift,
           const float *by, const int *only, int k, int first, int w, int blocks)
{
    extern __shared__ float l[]; /* (PANEL,ROW): the factor, then its inverse */
    /* Holds these columns of the factor for lines below the tile, for others these rows of the inverse, transposed. */
    __shared__ __align__(16) float side[PANEL * EDGE + SIDE * 4];
    __shared__ float least[PANEL], over[PANEL];
    __shared__ bool guarded[PANEL];
    int t = threadIdx.x, ti = t / SIDE, tj = t % SIDE, r0 = ti * EDGE, c0 = tj * EDGE;
    float m[EDGE][EDGE];

    if (only && !only[blockIdx.x])
        return;
    x += (int64_t)blockIdx.x * k * k + (int64_t)first * (k + 1);
    bound += (int64_t)blockIdx.x * k + first, by += (int64_t)blockIdx.x * k + first;
    if (t < PANEL)
        least[t] = t < w ? bound[t] : 0;
#pragma unroll
    for (int i = 0; i < EDGE; i++)
#pragma unroll
        for (int c = 0; c < EDGE; c++) {
            int row = r0 + i, col = c0 + c;
            m[i][c] = row < w && col <= row ? x[(int64_t)row * k + col] : row == col;
        }
    if (ti == tj)
#pragma unroll
        for (int i = 0; i < EDGE; i++)
            if (r0 + i < w)
                m[i][i] += lift ? lift[blockIdx.x] * by[r0 + i] * by[r0 + i] : bound[r0 + i] / 4;
    __syncthreads();
    for (int tile = 0; tile < SIDE; tile++) {
        int j = tile * EDGE;
        float *corner = l + j * (ROW + 1);
        if (ti == tile && tj == tile)
            factor_tile(m, corner, over + j, least + j, guarded + j);
        __syncthreads();
        if (tj == tile && ti > tile) {
#pragma unroll
            for (int i = 0; i < EDGE; i++)
#pragma unroll
                for (int e = 0; e < EDGE; e++) {
                    float f = m[i][e];
#pragma unroll
                    for (int c = 0; c < e; c++)
                        f = fmaf(-m[i][c], corner[e * ROW + c], f);
                    m[i][e] = guarded[j + e] ? 0 : f * over[j + e];
                    side[side_at(r0 + i) + e] = l[(r0 + i) * ROW + j + e] = m[i][e];
                }
#pragma unroll
            for (int i = 0; i < EDGE; i++)
#pragma unroll
                for (int e = 0; e < EDGE; e++)
                    m[i][e] = 0;
        } else if (ti == tile && tj <= tile) {
#pragma unroll
            for (int e = 0; e < EDGE; e++)
#pragma unroll
                for (int c = 0; c < EDGE; c++) {
                    if (tj == tile) {
                        m[e][c] = c > e ? 0 : m[e][c];
                    } else {
#pragma unroll
                        for (int i = 0; i < e; i++)
                            m[e][c] = fmaf(-corner[e * ROW + i], m[i][c], m[e][c]);
                        m[e][c] *= over[j + e];
                    }
                    side[side_at(c0 + c) + e] = m[e][c];
                }
        }
        __syncthreads();
        if (ti > tile && tj <= ti)
            subtract_tile(m, side, r0, c0);
    }
    __syncthreads();
    for (int i = t; i < PANEL * PANEL; i += THREADS) {
        int r = i / PANEL, c = i % PANEL;
        if (r < w && c < w)
            x[(int64_t)r * k + c] = c > r ? 0 : l[r * ROW + c];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EDGE; i++)
#pragma unroll
        for (int c = 0; c < EDGE; c++)
            l[(r0 + i) * ROW + c0 + c] = c0 + c > r0 + i ? 0 : m[i][c];
    __syncthreads();
    inverse += ((int64_t)blockIdx.x * blocks + first / PANEL) * PANEL * PANEL;
    panel += (int64_t)blockIdx.x * PANEL * PANEL;
    for (int i = t; i < PANEL * PANEL; i += THREADS) {
        int r = i % PANEL, c = i / PANEL;
        float at = l[r * ROW + c];
        inverse[i] = at, panel[i] = guarded[r] ? 0 : at;
    }
}

enum { TALL = 64, TALL_LD = PANEL + 4 };
enum { INVERSE_SHARED = (TALL * TALL_LD + PANEL * PANEL) * (int)sizeof(float) };

/* Names what by_inverse multiplies, and packs. */
struct column {
    float *x; /* (rows,w) */
    const float *inverse; /* (PANEL,PANEL), transposed */
    int64_t ld, stride, inverse_stride;
    int rows, w,
        done; /* done: rows that are packed as they are, a multiple of TALL unless they are all */
    struct packed a, b; /* each without data: none */
    int row0, chunk0;
    const int *only; /* as factor's */
};

/* Adds to a thread's 4 x COLS last numbers what a half of the sum, from line `first` on, gives. */
template <int COLS>
__device__ __forceinline__ void add_products(float (&sum)[4][8], const float *rows,
                                             const float *inverse, int first)
{
#pragma unroll 4
    for (int k = first; k < first + PANEL / 2; k += 4) {
        float a[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(float4 *)a[i] = *(const float4 *)(rows + i * TALL_LD + k);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float b[8];
            if (COLS == 8)
                *(float4 *)b = *(const float4 *)(inverse + (k + e) * PANEL);
            *(float4 *)(b + 4) = *(const float4 *)(inverse + (k + e) * PANEL + PANEL / 2);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 8 - COLS; c < 8; c++)
                    sum[i][c] = fmaf(a[i][e], b[c], sum[i][c]);
        }
    }
}

/* x <- x inverse', and packs it. A block has TALL rows, a thread 4 x 8 numbers. FLOPs: 3/2 PANEL^2 a row, in f32. */
static __global__ void __launch_bounds__(THREADS, 2) by_inverse(struct column m)
{
    extern __shared__ __align__(16) float tile[]; /* (TALL,TALL_LD) of x, (PANEL,PANEL) */
    float *inv = tile + TALL * TALL_LD;
    int t = threadIdx.x, first = blockIdx.x * TALL, r0 = t / 16 * 4, c0 = t % 16 * 4;
    float *x = m.x + (int64_t)blockIdx.y * m.stride + (int64_t)first * m.ld;
    const float *inverse = m.inverse + (int64_t)blockIdx.y * m.inverse_stride;
    int rows = min((int)TALL, m.rows - first);
    bool product = first >= m.done;

    if (m.only && !m.only[blockIdx.y])
        return;
#pragma unroll 16
    for (int i = t; i < TALL * PANEL; i += THREADS) {
        int r = i / PANEL, c = i % PANEL;
        tile[r * TALL_LD + c] = r < rows && c < m.w ? x[r * m.ld + c] : 0;
    }
    if (product) {
#pragma unroll 8
        for (int i = t; i < PANEL * PANEL / 4; i += THREADS)
            if (i < PANEL * PANEL / 8 || i % (PANEL / 4) >= PANEL / 8) /* else zeros, not read */
                ((float4 *)inv)[i] = ((const float4 *)inverse)[i];
        __syncthreads();
        float sum[4][8] = {};
        add_products<8>(sum, tile + r0 * TALL_LD, inv + c0, 0);
        add_products<4>(sum, tile + r0 * TALL_LD, inv + c0, PANEL / 2); /* rest: zeros */
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *to = tile + (r0 + i) * TALL_LD + c0;
            *(float4 *)to = *(const float4 *)sum[i];
            *(float4 *)(to + PANEL / 2) = *(const float4 *)(sum[i] + 4);
        }
    }
    __syncthreads();
#pragma unroll 4
    for (int i = t; i < TALL * PANEL / 2; i += THREADS) {
        int r = i / (PANEL / 2), c = i % (PANEL / 2) * 2;
        if (r >= rows)
            continue;
        float one = c < m.w ? tile[r * TALL_LD + c] : 0;
        float two = c + 1 < m.w ? tile[r * TALL_LD + c + 1] : 0;
        if (product && c < m.w)
            x[r * m.ld + c] = one;
        if (product && c + 1 < m.w)
            x[r * m.ld + c + 1] = two;
        int64_t row = (int64_t)blockIdx.y * m.a.rows + m.row0 + first + r;
        int64_t at = row * m.a.row() + (int64_t)m.chunk0 * CHUNK * m.a.parts() + c;
        if (m.a.data)
            put_parts(m.a.data + at, m.a.order, one, two);
        if (m.b.data)
            put_parts(m.b.data + at, m.b.order, one, two);
    }
}

static void launch_by_inverse(const struct group &g, const struct column &m)
{
    struct cuda_ops *c = g.c;
    if (c->failed ||
        !CUDA_TRY(c, cudaFuncSetAttribute(by_inverse, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          INVERSE_SHARED)))
        return;
    by_inverse<<<dim3(div_up(m.rows, TALL), g.n), THREADS, INVERSE_SHARED, c->stream>>>(m);
    CUDA_LAUNCHED(c);
}

/* Subtracts from x's rows from row_a on of the column that begins with line `first` what the columns on its left, times the
 * factor's, give: where WIDE columns begin, what all before them give to all of these, in one product; else what those give
 * that are since factored. With g.only in f32, a column at a time. */
static void take_left(const struct group &g, float *x, const struct packed &a, int row_a,
                      const float *factor, const struct packed &b, int first)
{
    int wide = first / WIDE * WIDE, lines = first == wide ? WIDE : PANEL;
    float *rows = x + (int64_t)row_a * g.k;
    if (!g.only) {
        packed_product(g.c, rows + first, g.k, g.stride, a, row_a, g.k - row_a, b, first,
                       min(lines, g.k - first), first == wide ? 0 : wide / PANEL, first / PANEL, -1,
                       true, g.n);
    } else if (first) {
        struct f32_product p = { rows,        factor + (int64_t)first * g.k, rows + first,
                                 g.k - row_a, min((int)PANEL, g.k - first),  first };
        p.turn_b = true, p.alpha = -1, p.beta = 1, p.add = p.c;
        p.ld = g.k, p.stride = g.stride, p.only = g.only;
        launch_products(g.c, p, g.n);
    }
}

/* x's lower half, lifted, becomes its factor; what is above its diagonal blocks is left. g.a and g.b, unless they have no
 * data, hold it packed, g.inverse its diagonal blocks' inverses. */
static void cholesky(const struct group &g, float *x, const float *lift)
{
    struct cuda_ops *c = g.c;
    int k = g.k;

    if (!CUDA_TRY(c, cudaFuncSetAttribute(factor, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          FACTOR_SHARED)))
        return;
    for (int first = 0; first < k && !c->failed; first += PANEL) {
        int j = first / PANEL, w = min((int)PANEL, k - first);
        take_left(g, x, g.a, first, x, g.b, first);
        if (c->failed)
            return;
        factor<<<g.n, THREADS, FACTOR_SHARED, c->stream>>>(
            x, g.inverse, g.panel, g.bound, lift, g.rows.by, g.only, k, first, w, div_up(k, PANEL));
        CUDA_LAUNCHED(c);
        launch_by_inverse(g, { x + (int64_t)first * (k + 1), g.panel, k, g.stride, PANEL * PANEL,
                               k - first, w, w, g.a, g.b, first, j, g.only });
    }
}

/* Factors x in place as cholesky does, with least pivots of x's own diagonal. */
static void bounded_cholesky(const struct group &g, float *x)
{
    if (g.c->failed)
        return;
    bound_lines<<<g.n, THREADS, 0, g.c->stream>>>(g.bound, x, g.k);
    CUDA_LAUNCHED(g.c);
    cholesky(g, x, NULL);
}

/* x <- x H^-T of the factor H, which g.b holds packed; g.inverse holds its diagonal blocks' inverses, and g.a becomes what
 * was x, packed. */
static void solve(const struct group &g, float *x, const float *factor)
{
    int k = g.k;

    for (int first = 0; first < k && !g.c->failed; first += PANEL) {
        int j = first / PANEL, w = min((int)PANEL, k - first);
        take_left(g, x, g.a, 0, factor, g.b, first);
        launch_by_inverse(g, { x + first,
                               g.inverse + (int64_t)j * PANEL * PANEL,
                               k,
                               g.stride,
                               (int64_t)div_up(k, PANEL) * PANEL * PANEL,
                               k,
                               w,
                               0,
                               g.a,
                               {},
                               0,
                               j,
                               g.only });
    }
}

/* to's lower half, in rows of WIDE, = x' x of what g.a and g.b hold, x' packed; lower: x has zeros above its diagonal. */
static void gram(const struct group &g, float *to, bool lower)
{
    for (int first = 0; first < g.k; first += WIDE) {
        int w = min((int)WIDE, g.k - first);
        packed_product(g.c, to + (int64_t)first * g.k, g.k, g.stride, g.a, first, w, g.b, 0,
                       first + w, lower ? first / CHUNK : 0, g.a.chunks, 1, false, g.n);
    }
}

/* to's lower half = x' x of a factor x, whose rows have the scales `rows`; the columns' are made. g.a and g.b hold x'. */
static void gram_of_factor(const struct group &g, float *to, const float *x,
                           const struct scales &rows, const struct scales &columns)
{
    struct unpacked from = { x, g.k, g.stride, g.k, g.k, true, true, NULL, rows.over, g.k };
    scale_rows(g.c, columns, from, g.n);
    from.by_row = columns.by;
    pack_both(g.c, g.a, g.b, 0, 0, from, g.n);
    gram(g, to, true);
}

/* -- a turn ---------------------------------------------------------------------------------------- */

/* to = x's lower half on both sides, lines and columns multiplied by `over`, its diagonal less the matrix's lift. */
static __global__ void __launch_bounds__(THREADS)
    mirror(float *to, const float *x, const float *lift, const float *over, int k,
           const struct step_gate *gate)
{
    __shared__ float tile[32][33];
    int r0 = blockIdx.y * 32, c0 = blockIdx.x * 32;
    if ((gate && gate->skip) || c0 > r0)
        return;
    to += (int64_t)blockIdx.z * k * k, x += (int64_t)blockIdx.z * k * k;
    over += (int64_t)blockIdx.z * k;
    for (int i = threadIdx.x; i < 1024; i += THREADS) {
        int r = r0 + i / 32, c = c0 + i % 32;
        bool inside = r < k && c < k && c <= r;
        tile[i / 32][i % 32] = inside ? x[(int64_t)r * k + c] * over[r] * over[c] : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 1024; i += THREADS) {
        int a = i / 32, b = i % 32, r = r0 + a, c = c0 + b;
        if (r < k && c < k && c <= r)
            to[(int64_t)r * k + c] = tile[a][b] - (r == c ? lift[blockIdx.z] : 0);
        if (c0 + a < k && r0 + b < k && c0 + a < r0 + b)
            to[(int64_t)(c0 + a) * k + r0 + b] = tile[b][a];
    }
}

static __global__ void __launch_bounds__(THREADS)
    keep(float *q, const float *x, int64_t count, const struct step_gate *gate)
{
    if (gate && gate->skip)
        return;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * THREADS)
        q[i] = x[i];
}

/* x1 <- q' s q of a dense s, of whose lines' sizes nothing is known. */
static void see_dense(const struct group &g, const float *s, const float *q)
{
    pack(g.c, g.dense_a, 0, 0, { s, g.k, g.stride, g.k, g.k }, g.n);
    pack(g.c, g.dense_b, 0, 0, { q, g.k, g.stride, g.k, g.k, true }, g.n);
    packed_product(g.c, g.x0, g.k, g.stride, g.dense_a, 0, g.k, g.dense_b, 0, g.k, 0,
                   g.dense_a.chunks, 1, false, g.n);
    pack(g.c, g.dense_a, 0, 0, { q, g.k, g.stride, g.k, g.k, true }, g.n);
    pack(g.c, g.dense_b, 0, 0, { g.x0, g.k, g.stride, g.k, g.k, true }, g.n);
    packed_product(g.c, g.x1, g.k, g.stride, g.dense_a, 0, g.k, g.dense_b, 0, g.k, 0,
                   g.dense_a.chunks, 1, false, g.n);
}

/* far[i] = 1 where a line of x - I, x symmetric and its lower half stored, has squares whose sum is not below r / 8. A
 * block has 32 lines. */
static __global__ void __launch_bounds__(THREADS)
    find_far(int *far, const float *x, const int *only, int k)
{
    enum { WARPS = THREADS / 32 };
    __shared__ float across[32], down[WARPS][33];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * 32;
    float sum = 0;

    if (only && !only[blockIdx.y])
        return;
    x += (int64_t)blockIdx.y * k * k;
    for (int row = first + 1 + warp; row < k; row += WARPS) {
        float at = first + lane < row ? x[(int64_t)row * k + first + lane] : 0;
        sum = fmaf(at, at, sum);
    }
    down[warp][lane] = sum;
    for (int row = first + warp; row < min(first + 32, k); row += WARPS) {
        sum = 0;
        for (int col = lane; col <= row; col += 32) {
            float at = x[(int64_t)row * k + col] - (col == row);
            sum = fmaf(at, at, sum);
        }
        sum = warp_sum(sum);
        if (lane == 0)
            across[row - first] = sum;
    }
    __syncthreads();
    if (warp || first + lane >= k)
        return;
    sum = across[lane];
    for (int i = 0; i < WARPS; i++)
        sum += down[i][lane];
    if (!(sum <= least_pivot(1, k) / 8))
        far[blockIdx.y] = 1;
}

/* x2's lower half = x0' x0 in f32. */
static void gram_in_f32(const struct group &g)
{
    struct f32_product p = { g.x0, g.x0, g.x2, g.k, g.k, g.k };
    p.turn_a = p.lower = true, p.only = g.only;
    launch_products(g.c, p, g.n);
}

/* x0 <- x0 K^-T, x0' x0 = K K', in f32, of the matrices that are far from orthogonal, twice of those that still are; x2
 * becomes the new x0' x0. */
static void by_factor(struct group g)
{
    struct cuda_ops *c = g.c;
    if (c->failed || !CUDA_TRY(c, cudaMemsetAsync(g.far, 0, 2 * g.n * sizeof *g.far, c->stream)))
        return;
    g.a.data = g.b.data = NULL;
    for (int round = 0; round < 2 && !c->failed; round++) {
        int *far = g.far + round * g.n;
        find_far<<<dim3(div_up(g.k, 32), g.n), THREADS, 0, c->stream>>>(far, g.x2, g.only, g.k);
        CUDA_LAUNCHED(c);
        g.only = far;
        if (round == 0)
            gram_in_f32(g); /* f16 hold nothing above 15 */
        bounded_cholesky(g, g.x2);
        solve(g, g.x0, g.x2);
        gram_in_f32(g);
    }
}

/* Makes x0 orthogonal to rounding. x0' x0 = I + E, of which L is the lower half, with a half of the diagonal: K = I + L to
 * E's second order, so x0 <- x0 - x0 L' keeps the first columns' spans, since small lines must not mix with large ones,
 * and leaves three squares of E's lines at most. Where that is above rounding K itself is factored first. What is taken
 * off is no more exact than x0, whose error it is: 11 bits of it do. */
static void orthogonal(const struct group &g)
{
    struct cuda_ops *c = g.c;
    struct packed one = g.a, e = g.b;
    struct unpacked from = { g.x2, g.k, g.stride, g.k, g.k, false, true };
    one.order = e.order = PAIR_ONE, from.excess = true;
    pack_both(c, g.a, g.b, 0, 0, { g.x0, g.k, g.stride, g.k, g.k, true }, g.n);
    gram(g, g.x2, false);
    by_factor(g);
    pack(c, one, 0, 0, { g.x0, g.k, g.stride, g.k, g.k }, g.n);
    pack(c, e, 0, 0, from, g.n);
    for (int first = 0; first < g.k; first += WIDE) {
        int w = min((int)WIDE, g.k - first);
        packed_product(c, g.x0 + first, g.k, g.stride, one, 0, g.k, e, first, w, 0,
                       div_up(first + w, CHUNK), -1, true, g.n);
    }
}

/* x0 <- q G, G' packed in g.b; g.a holds q, with columns in the order. */
static void times_factor(const struct group &g)
{
    for (int first = 0; first < g.k; first += WIDE)
        packed_product(g.c, g.x0 + first, g.k, g.stride, g.a, 0, g.k, g.b, first,
                       min((int)WIDE, g.k - first), first / CHUNK, g.a.chunks, 1, false, g.n);
}

/* Orders a side's lines: x0 <- s in the order, scaled. */
static void begin(const struct group &g, const struct side &side, float *v, int rows, int cols,
                  const struct basis_turn *t)
{
    struct cuda_ops *c = g.c;
    const float *seen = t->dense ? g.x1 : side.s;

    if (t->dense)
        see_dense(g, side.s, side.q);
    if (c->failed)
        return;
    order_lines<<<dim3(g.n, div_up(g.k, THREADS)), THREADS, g.k * sizeof(float), c->stream>>>(
        g.order, g.bound, g.lift, g.rows, seen, g.k, t->sort, t->dense);
    CUDA_LAUNCHED(c);
    gather<<<dim3(g.k, g.n), THREADS, 0, c->stream>>>(g.x0, seen, g.order, g.rows.by, g.k);
    CUDA_LAUNCHED(c);
    if (!t->sort || !v)
        return;
    int others = side.right ? rows : cols, bytes = LINES * g.k * (int)sizeof(float);
    if (c->failed ||
        !CUDA_TRY(c, cudaFuncSetAttribute(sort_second, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          bytes)))
        return;
    sort_second<<<dim3(div_up(others, LINES), g.n), THREADS, bytes, c->stream>>>(
        v, g.order, rows, cols, side.right, t->gate);
    CUDA_LAUNCHED(c);
}

static void turn_group(const struct group &g, const struct side *sides, int count, float *v,
                       int rows, int cols, const struct basis_turn *t)
{
    struct cuda_ops *c = g.c;

    for (int i = 0; i < count; i++)
        begin(part_of(g, sides[i]), sides[i], v, rows, cols, t);
    cholesky(g, g.x0, g.lift);
    gram_of_factor(g, g.x1, g.x0, g.rows, g.columns);
    for (int i = 0; i < count; i++) {
        struct group h = part_of(g, sides[i]);
        pack(c, h.a, 0, 0,
             { sides[i].q, g.k, g.stride, g.k, g.k, false, false, NULL, NULL, g.k, h.order }, h.n);
    }
    times_factor(g);
    bounded_cholesky(g, g.x1);
    solve(g, g.x0, g.x1);
    gram_of_factor(g, g.x2, g.x1, g.columns, g.rows);
    for (int i = 0; i < count; i++) {
        struct group h = part_of(g, sides[i]);
        if (c->failed)
            return;
        mirror<<<dim3(div_up(g.k, 32), div_up(g.k, 32), h.n), THREADS, 0, c->stream>>>(
            sides[i].s, h.x2, h.lift, h.rows.over, g.k, t->gate);
        CUDA_LAUNCHED(c);
    }
    orthogonal(g);
    for (int i = 0; i < count && !c->failed; i++) {
        struct group h = part_of(g, sides[i]);
        int64_t all = g.stride * h.n;
        keep<<<(int)min((int64_t)8 * c->sms, (all - 1) / THREADS + 1), THREADS, 0, c->stream>>>(
            sides[i].q, h.x0, all, t->gate);
        CUDA_LAUNCHED(c);
    }
}

/* Returns the bytes of workspace of a basis of k lines. */
static size_t basis_bytes(int k, enum split_order a, enum split_order b)
{
    size_t square = cuda_round(4 * (size_t)k * k), line = cuda_round(4 * (size_t)k);
    return 3 * square + 6 * line + 2 * cuda_round(4) + packed_bytes(1, k, k, a) +
           packed_bytes(1, k, k, b) + (div_up(k, PANEL) + 1) * cuda_round(4 * PANEL * PANEL);
}

/* Returns a group of n bases of k lines in as many times basis_bytes. */
static struct group cut_group(struct cuda_ops *c, char *at, int n, int k, enum split_order a,
                              enum split_order b)
{
    struct group g = { c, n, k, (int64_t)k * k };
    size_t square = cuda_round(4 * (size_t)g.stride) * n, line = cuda_round(4 * (size_t)k) * n;
    size_t panel = cuda_round(4 * PANEL * PANEL) * n;
    for (float **x : { &g.x0, &g.x1, &g.x2 })
        *x = (float *)cuda_cut(&at, square);
    for (float **x : { &g.bound, &g.rows.by, &g.rows.over, &g.columns.by, &g.columns.over })
        *x = (float *)cuda_cut(&at, line);
    g.order = (int *)cuda_cut(&at, line);
    g.lift = (float *)cuda_cut(&at, cuda_round(4) * n);
    g.far = (int *)cuda_cut(&at, cuda_round(4) * n);
    g.a = packed_cut(&at, n, k, k, a), g.b = packed_cut(&at, n, k, k, b);
    g.dense_a = g.a, g.dense_b = g.b;
    g.a.order = PAIR_A, g.b.order = PAIR_B;
    g.inverse = (float *)cuda_cut(&at, div_up(k, PANEL) * panel);
    g.panel = (float *)cuda_cut(&at, panel);
    return g;
}

void gpu_turn(struct ops *o, struct tensor q_of, struct tensor s_of, int n,
              const struct basis_turn *t)
{
    struct cuda_ops *c = cuda_of(o);
    int k = (int)q_of.cols, sides = t->other_q.data ? 2 : 1;
    int rows = (int)(t->v.rows / n), cols = (int)t->v.cols;
    assert(q_of.rows == (int64_t)n * k && tensor_count(s_of) == tensor_count(q_of));
    if (c->failed || q_of.rows == 0 ||
        !CUDA_NEED(c, q_of.dtype == DT_F32 && s_of.dtype == DT_F32, "bases must be f32"))
        return;
    enum split_order order_a = t->dense ? SPLIT_A : PAIR_A, order_b = t->dense ? SPLIT_B : PAIR_B;
    size_t each = sides * basis_bytes(k, order_a, order_b);
    int many = split_at_once(n, each), branches = c->portable ? 1 : min((int)PARTS, many);
    many = div_up(many, branches);
    char *at = (char *)cuda_workspace(c, each * many * branches);
    for (int first = 0, i = 0; at && first < n && !c->failed; first += many, i++) {
        struct side of[2];
        int some = min(many, n - first);
        int64_t from = (int64_t)first * k * k;
        for (int side = 0; side < sides; side++)
            of[side] = { (float *)(side ? t->other_q : q_of).data + from,
                         (float *)(side ? t->other_s : s_of).data + from, side * some, some,
                         t->right != (side > 0) };
        float *v = t->v.data ? (float *)t->v.data + (int64_t)first * rows * cols : NULL;
        if (branches > 1)
            o->branch(o, i % branches);
        turn_group(cut_group(c, at + i % branches * many * each, some * sides, k, order_a, order_b),
                   of, sides, v, rows, cols, t);
    }
    if (branches > 1)
        o->join(o);
}
