/* turn.cu - one step of the QR iteration of n bases, by Cholesky factors and products.
 *
 * Contract: op_list.h, optimizers.md 4.8. S = G G', G lower; G' is upper, so S and G have the same Q-factor:
 * G' G = H H', q = G H^-T, and H' H = q' S q is the next S. All products are packed ones (split.h). Some
 * matrices at a time, for which the launches are
 *     order          the falling diagonal's order, and the least pivot of each line        a block a matrix
 *     gather         S, v and Q in that order
 *     cholesky       columns of 128 from the left: the product of what is factored, `factor` of the diagonal
 *                    block, which also inverts it, the product by that inverse              twice
 *     gram           G' G and H' H, lower halves in columns of 384, whose rows begin at the diagonal
 *     solve          q from the left, columns of 128, in place of G
 *     orthogonal     X = Q q from X'X = K K', X K^-T; then X less half of X times X'X - I, rounded to bf16
 * r is the greater of 2^-20 and k 2^-25, what a sum of k products loses: tensor cores cut each of its 6 k / 16 additions
 * off. Gradients' covariances span 15 decades and more, so that their last lines are that noise, and columns of G that
 * depend on others would leave q without a direction. So S is lifted, by 2^-24 of its largest s_jj (1e-24 at least; r / 8
 * of a dense S, whose noise does not fall with its lines), which H' H gives back, and the diagonals of G' G and X'X by
 * r / 4 of themselves (shifted Cholesky QR, Fukaya and others 2020). A pivot not above its bound, NaN included, becomes the
 * bound, and its column below 0; S = 0 gives q = I. Bounds: r s_jj and 1e-30, of a dense S also r / 16 of the largest.
 * FLOPs a matrix of k lines, in f32: k^3/3 three times, k^3 twice for q and X, 4/5 k^3 twice for the Gram matrices,
 * 2 k^3 for Q q, 6/5 k^3 twice for X'X; 2 k^3 in bf16. Workspace: 36 k^2 bytes a matrix.
 */
#include "gpu.h"
#include "optim.h"
#include "split.h"

enum { THREADS = 256, PANEL = CHUNK, GRAM = 384, LINES = 8 };

/* A group of matrices at work. */
struct group {
    struct cuda_ops *c;
    int n, k;
    int64_t stride; /* k k */
    float *x0, *x1, *x2, *inverse, *panel, *bound, *lift; /* lift: a number a matrix */
    int *order;
    struct packed a, b, small_a, small_b;
};

/* -- order ----------------------------------------------------------------------------------------- */

/* Returns a key that any two lines have an order by: NaN is the least. */
__device__ __forceinline__ float key_of(float x) { return x == x ? x : -INFINITY; }

/* Returns the bound of a pivot in a line whose diagonal is `at`, of k. */
__device__ __forceinline__ float least_pivot(float at, int k)
{
    return fmaxf(fmaxf(0x1p-20f, 0x1p-25f * k) * at, 1e-30f);
}

static __global__ void __launch_bounds__(THREADS)
    order_lines(int *order, float *bound, float *lift, const float *s, int k, bool sort, bool dense)
{
    extern __shared__ float diagonal[]; /* (k) */
    __shared__ float most[THREADS / 32];
    float largest = 0;

    s += (int64_t)blockIdx.x * k * k, order += (int64_t)blockIdx.x * k;
    bound += (int64_t)blockIdx.x * k;
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
    for (int i = threadIdx.x; i < k; i += THREADS) {
        float at = diagonal[i];
        int before = sort ? 0 : i;
        for (int j = 0; sort && j < k; j++) {
            float other = key_of(diagonal[j]);
            before += other > key_of(at) || (other == key_of(at) && j < i);
        }
        order[before] = i;
        bound[before] = fmaxf(least_pivot(at + up, k), noise / 2);
    }
}

/* Makes the least pivots of a matrix of its own diagonal. */
static __global__ void __launch_bounds__(THREADS) bound_lines(float *bound, const float *s, int k)
{
    s += (int64_t)blockIdx.x * k * k;
    for (int i = threadIdx.x; i < k; i += THREADS)
        bound[(int64_t)blockIdx.x * k + i] = least_pivot(s[(int64_t)i * (k + 1)], k);
}

/* to = s with columns in the order, and with `rows` rows, too: a block a row. */
static __global__ void __launch_bounds__(THREADS)
    gather(float *to, const float *s, const int *order, int k, bool rows)
{
    int64_t at = (int64_t)blockIdx.y * k * k;
    order += (int64_t)blockIdx.y * k;
    s += at + (int64_t)(rows ? order[blockIdx.x] : blockIdx.x) * k;
    to += at + (int64_t)blockIdx.x * k;
    for (int i = threadIdx.x; i < k; i += THREADS)
        to[i] = s[order[i]];
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

enum { SUB = 32, ROW = PANEL + 1, THIN = SUB + 1 };

/* Factors the block of SUB lines at d of l, and inverts it into inv, which is 0 there: lane i has row i. A warp. */
__device__ __forceinline__ void factor_sub(float *l, float *inv, int d, int w, const float *bound,
                                           bool *guarded)
{
    int lane = threadIdx.x % 32;
    float a[SUB], v[SUB];
#pragma unroll
    for (int c = 0; c < SUB; c++)
        a[c] = d + lane < w && d + c < w ? l[(d + lane) * ROW + d + c] : lane == c, v[c] = 0;
#pragma unroll
    for (int j = 0; j < SUB; j++) {
        float pivot = __shfl_sync(0xffffffffu, a[j], j), least = d + j < w ? bound[d + j] : 0;
        bool guard = !(pivot > least);
        float size = sqrtf(guard ? least : pivot), over = 1 / size;
        if (lane == j)
            guarded[d + j] = guard;
        a[j] = lane == j ? size : lane < j || guard ? 0 : a[j] * over;
#pragma unroll
        for (int c = j + 1; c < SUB; c++) {
            float other = __shfl_sync(0xffffffffu, a[j], c);
            a[c] = lane >= c ? fmaf(-a[j], other, a[c]) : a[c];
        }
    }
    /* Lane t makes column t of the inverse; row i of the factor is lane i's. */
#pragma unroll
    for (int i = 0; i < SUB; i++) {
        float sum = i == lane;
#pragma unroll
        for (int m = 0; m < i; m++)
            sum = fmaf(-__shfl_sync(0xffffffffu, a[m], i), v[m], sum);
        float size = __shfl_sync(0xffffffffu, a[i], i);
        v[i] = lane <= i ? sum / size : 0;
    }
#pragma unroll
    for (int c = 0; c < SUB; c++) {
        if (d + lane < w && d + c < w)
            l[(d + lane) * ROW + d + c] = c > lane ? 0 : a[c];
        inv[(d + c) * ROW + d + lane] = v[c];
    }
}

/* to (rows,SUB) = alpha a b' or, with !turned, alpha a b, plus add; by all threads, each 2 x 2 at a time. rows is even. */
template <bool TURNED>
__device__ __forceinline__ void times_sub(float *to, int ld, float alpha, const float *a,
                                          const float *b, int ld_b, bool adds, int rows)
{
    for (int i = threadIdx.x; i < rows * SUB / 4; i += THREADS) {
        int r = i / (SUB / 2) * 2, c = i % (SUB / 2) * 2;
        float sum[2][2] = {};
#pragma unroll 8
        for (int k = 0; k < SUB; k++) {
            float a0 = a[r * ROW + k], a1 = a[(r + 1) * ROW + k];
            float b0 = TURNED ? b[c * ld_b + k] : b[k * ld_b + c];
            float b1 = TURNED ? b[(c + 1) * ld_b + k] : b[k * ld_b + c + 1];
            sum[0][0] = fmaf(a0, b0, sum[0][0]), sum[0][1] = fmaf(a0, b1, sum[0][1]);
            sum[1][0] = fmaf(a1, b0, sum[1][0]), sum[1][1] = fmaf(a1, b1, sum[1][1]);
        }
        for (int x = 0; x < 2; x++)
            for (int y = 0; y < 2; y++) {
                float *at = to + (r + x) * ld + c + y;
                *at = fmaf(alpha, sum[x][y], adds ? *at : 0);
            }
    }
}

/* Factors the diagonal block at `first`, of w lines, in place, with zeros above, and inverts it, in blocks of SUB; the
 * diagonal is lifted by the matrix's number or, without lift, by a quarter of the bounds. panel: the inverse without the
 * rows of guarded columns, which leaves those below 0. A block a matrix. */
static __global__ void __launch_bounds__(THREADS)
    factor(float *x, float *inverse, float *panel, const float *bound, const float *lift, int k,
           int first, int w, int blocks)
{
    extern __shared__ float l[]; /* (PANEL,ROW) */
    float *inv = l + PANEL * ROW, *spare = inv + PANEL * ROW; /* (PANEL,ROW), (PANEL,THIN) */
    __shared__ bool guarded[PANEL];
    int t = threadIdx.x, subs = (w + SUB - 1) / SUB;

    x += (int64_t)blockIdx.x * k * k + (int64_t)first * (k + 1);
    bound += (int64_t)blockIdx.x * k + first;
    inverse += ((int64_t)blockIdx.x * blocks + first / PANEL) * PANEL * PANEL;
    panel += (int64_t)blockIdx.x * PANEL * PANEL;
    for (int i = t; i < PANEL * PANEL; i += THREADS) {
        int r = i / PANEL, c = i % PANEL;
        float up = r != c || r >= w ? 0 : lift ? lift[blockIdx.x] : bound[r] / 4;
        l[r * ROW + c] = r < w && c <= r ? x[(int64_t)r * k + c] + up : 0;
        inv[r * ROW + c] = 0;
    }
    __syncthreads();
    for (int j = 0; j < subs; j++) {
        int d = j * SUB, below = (subs - j - 1) * SUB, next = d + SUB;
        if (t < 32)
            factor_sub(l, inv, d, w, bound, guarded);
        __syncthreads();
        /* Guarded rows of the inverse give columns of zeros. */
        for (int i = t; i < SUB * SUB; i += THREADS)
            spare[i / SUB * THIN + i % SUB] =
                guarded[d + i / SUB] ? 0 : inv[(d + i / SUB) * ROW + d + i % SUB];
        __syncthreads();
        times_sub<true>(spare + SUB * THIN, THIN, 1, l + next * ROW + d, spare, THIN, false, below);
        __syncthreads();
        for (int i = t; i < below * SUB; i += THREADS)
            l[(next + i / SUB) * ROW + d + i % SUB] = spare[(SUB + i / SUB) * THIN + i % SUB];
        __syncthreads();
        for (int c = next; c < subs * SUB; c += SUB)
            times_sub<true>(l + c * ROW + c, ROW, -1, l + c * ROW + d, l + c * ROW + d, ROW, true,
                            subs * SUB - c);
        __syncthreads();
    }
    /* Block columns of the inverse, downwards: inv_ij = -inv_ii sum_m l_im inv_mj. */
    for (int i = 1; i < subs; i++) {
        for (int j = 0; j < i; j++)
            for (int m = j; m < i; m++) {
                times_sub<false>(spare + j * SUB * THIN, THIN, 1, l + i * SUB * ROW + m * SUB,
                                 inv + m * SUB * ROW + j * SUB, ROW, m > j, SUB);
                __syncthreads();
            }
        for (int j = 0; j < i; j++)
            times_sub<false>(inv + i * SUB * ROW + j * SUB, ROW, -1, inv + i * SUB * ROW + i * SUB,
                             spare + j * SUB * THIN, THIN, false, SUB);
        __syncthreads();
    }
    for (int i = t; i < PANEL * PANEL; i += THREADS) {
        int r = i / PANEL, c = i % PANEL;
        float at = r < w && c < w ? inv[r * ROW + c] : 0;
        if (r < w && c < w)
            x[(int64_t)r * k + c] = c > r ? 0 : l[r * ROW + c];
        inverse[i] = at;
        panel[i] = r < w && !guarded[r] ? at : 0;
    }
}

/* Clears what is above a diagonal block: rows 0 .. first of w columns. */
static __global__ void __launch_bounds__(THREADS) clear_above(float *x, int k, int first, int w)
{
    x += (int64_t)blockIdx.y * k * k + first;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < first * w; i += gridDim.x * THREADS)
        x[(int64_t)(i / w) * k + i % w] = 0;
}

enum { FACTOR_SHARED = PANEL * (2 * ROW + THIN) * (int)sizeof(float) };

/* x's lower half, lifted, becomes its factor, with zeros above; g.a and g.b hold it packed, g.inverse its diagonal
 * blocks' inverses. */
static void cholesky(const struct group &g, float *x, const float *lift)
{
    struct cuda_ops *c = g.c;
    int blocks = div_up(g.k, PANEL);

    if (!CUDA_TRY(c, cudaFuncSetAttribute(factor, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          FACTOR_SHARED)))
        return;
    for (int j = 0; j < blocks && !c->failed; j++) {
        int first = j * PANEL, w = min((int)PANEL, g.k - first), below = g.k - first - w;
        float *column = x + (int64_t)first * g.k + first, *under = column + (int64_t)w * g.k;
        if (j)
            packed_product(c, column, g.k, g.stride, g.a, first, w + below, g.b, first, w, 0, j, -1,
                           true, g.n);
        factor<<<g.n, THREADS, FACTOR_SHARED, c->stream>>>(x, g.inverse, g.panel, g.bound, lift,
                                                           g.k, first, w, blocks);
        CUDA_LAUNCHED(c);
        if (below) {
            pack(c, g.small_a, 0, 0, under, g.k, g.stride, below, w, false, g.n);
            pack(c, g.small_b, 0, 0, g.panel, PANEL, PANEL * PANEL, w, w, false, g.n);
            packed_product(c, under, g.k, g.stride, g.small_a, 0, below, g.small_b, 0, w, 0, 1, 1,
                           false, g.n);
        }
        pack(c, g.a, first, j, column, g.k, g.stride, w + below, w, false, g.n);
        pack(c, g.b, first, j, column, g.k, g.stride, w + below, w, false, g.n);
        if (j && !c->failed) {
            clear_above<<<dim3(div_up((int64_t)first * w, 4 * THREADS), g.n), THREADS, 0,
                          c->stream>>>(x, g.k, first, w);
            CUDA_LAUNCHED(c);
        }
    }
}

/* Does what cholesky does, with least pivots of x's own diagonal. */
static void bounded_cholesky(const struct group &g, float *x)
{
    if (g.c->failed)
        return;
    bound_lines<<<g.n, THREADS, 0, g.c->stream>>>(g.bound, x, g.k);
    CUDA_LAUNCHED(g.c);
    cholesky(g, x, NULL);
}

/* x <- x H^-T; g.b holds H packed, g.inverse its diagonal blocks' inverses. */
static void solve(const struct group &g, float *x)
{
    struct cuda_ops *c = g.c;
    int blocks = div_up(g.k, PANEL);

    for (int j = 0; j < blocks && !c->failed; j++) {
        int first = j * PANEL, w = min((int)PANEL, g.k - first);
        float *column = x + first;
        const float *inverse = g.inverse + (int64_t)j * PANEL * PANEL;
        if (j)
            packed_product(c, column, g.k, g.stride, g.a, 0, g.k, g.b, first, w, 0, j, -1, true,
                           g.n);
        pack(c, g.small_a, 0, 0, column, g.k, g.stride, g.k, w, false, g.n);
        pack(c, g.small_b, 0, 0, inverse, PANEL, (int64_t)blocks * PANEL * PANEL, w, w, false, g.n);
        packed_product(c, column, g.k, g.stride, g.small_a, 0, g.k, g.small_b, 0, w, 0, 1, 1, false,
                       g.n);
        pack(c, g.a, 0, j, column, g.k, g.stride, g.k, w, false, g.n);
    }
}

/* to's lower half, in columns of GRAM, = x' x, x lower or, where it is `whole`, not. */
static void gram(const struct group &g, float *to, const float *x, bool whole)
{
    struct cuda_ops *c = g.c;
    pack(c, g.a, 0, 0, x, g.k, g.stride, g.k, g.k, true, g.n);
    pack(c, g.b, 0, 0, x, g.k, g.stride, g.k, g.k, true, g.n);
    for (int first = 0; first < g.k; first += GRAM) {
        int w = min((int)GRAM, g.k - first);
        packed_product(c, to + (int64_t)first * (g.k + 1), g.k, g.stride, g.a, first, g.k - first,
                       g.b, first, w, whole ? 0 : first / CHUNK, g.a.chunks, 1, false, g.n);
    }
}

/* -- a turn ---------------------------------------------------------------------------------------- */

/* to = x's lower half on both sides, its diagonal less 1 or, with lift, less the matrix's number. */
static __global__ void __launch_bounds__(THREADS)
    mirror(float *to, const float *x, const float *lift, int k, const struct step_gate *gate)
{
    __shared__ float tile[32][33];
    int r0 = blockIdx.y * 32, c0 = blockIdx.x * 32;
    float less = lift ? lift[blockIdx.z] : 1;
    if ((gate && gate->skip) || c0 > r0)
        return;
    to += (int64_t)blockIdx.z * k * k, x += (int64_t)blockIdx.z * k * k;
    for (int i = threadIdx.x; i < 1024; i += THREADS) {
        int r = r0 + i / 32, c = c0 + i % 32;
        tile[i / 32][i % 32] = r < k && c < k && c <= r ? x[(int64_t)r * k + c] : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 1024; i += THREADS) {
        int a = i / 32, b = i % 32, r = r0 + a, c = c0 + b;
        if (r < k && c < k && c <= r)
            to[(int64_t)r * k + c] = tile[a][b] - (r == c ? less : 0);
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

static void launch_mirror(const struct group &g, float *to, const float *x, const float *lift,
                          const struct step_gate *gate)
{
    if (g.c->failed)
        return;
    mirror<<<dim3(div_up(g.k, 32), div_up(g.k, 32), g.n), THREADS, 0, g.c->stream>>>(to, x, lift,
                                                                                     g.k, gate);
    CUDA_LAUNCHED(g.c);
}

static void launch_gather(const struct group &g, float *to, const float *x, bool rows)
{
    if (g.c->failed)
        return;
    gather<<<dim3(g.k, g.n), THREADS, 0, g.c->stream>>>(to, x, g.order, g.k, rows);
    CUDA_LAUNCHED(g.c);
}

/* x0 <- q' s q of a dense s. */
static void see_dense(const struct group &g, const float *s, const float *q)
{
    pack(g.c, g.a, 0, 0, s, g.k, g.stride, g.k, g.k, false, g.n);
    pack(g.c, g.b, 0, 0, q, g.k, g.stride, g.k, g.k, true, g.n);
    packed_product(g.c, g.x1, g.k, g.stride, g.a, 0, g.k, g.b, 0, g.k, 0, g.a.chunks, 1, false,
                   g.n);
    pack(g.c, g.a, 0, 0, q, g.k, g.stride, g.k, g.k, true, g.n);
    pack(g.c, g.b, 0, 0, g.x1, g.k, g.stride, g.k, g.k, true, g.n);
    packed_product(g.c, g.x0, g.k, g.stride, g.a, 0, g.k, g.b, 0, g.k, 0, g.a.chunks, 1, false,
                   g.n);
}

/* x1 <- x1 - x1 (x1' x1 - I) / 2: an error e of its lines' products becomes 3/4 e^2. */
static void clean(const struct group &g)
{
    struct cuda_ops *c = g.c;
    gram(g, g.x2, g.x1, true);
    launch_mirror(g, g.x0, g.x2, NULL, NULL);
    struct packed one = g.a, e = g.b;
    one.order = e.order = SPLIT_ONE;
    pack(c, one, 0, 0, g.x1, g.k, g.stride, g.k, g.k, false, g.n);
    pack(c, e, 0, 0, g.x0, g.k, g.stride, g.k, g.k, true, g.n);
    packed_product(c, g.x1, g.k, g.stride, one, 0, g.k, e, 0, g.k, 0, one.chunks, -0.5f, true, g.n);
}

/* x1 <- x2 times x0, made orthogonal to rounding: by a factor, which leaves the first columns' spans, since small lines
 * must not mix with large ones, and may be half of what is missing; then by a polynomial. */
static void turn_basis(const struct group &g)
{
    pack(g.c, g.a, 0, 0, g.x2, g.k, g.stride, g.k, g.k, false, g.n);
    pack(g.c, g.b, 0, 0, g.x0, g.k, g.stride, g.k, g.k, true, g.n);
    packed_product(g.c, g.x1, g.k, g.stride, g.a, 0, g.k, g.b, 0, g.k, 0, g.a.chunks, 1, false,
                   g.n);
    gram(g, g.x2, g.x1, true);
    bounded_cholesky(g, g.x2);
    solve(g, g.x1);
    clean(g);
}

static void turn_group(const struct group &g, float *q, float *s, float *v, int rows, int cols,
                       const struct basis_turn *t)
{
    struct cuda_ops *c = g.c;
    int64_t all = g.stride * g.n;

    if (t->dense)
        see_dense(g, s, q);
    order_lines<<<g.n, THREADS, g.k * sizeof(float), c->stream>>>(
        g.order, g.bound, g.lift, t->dense ? g.x0 : s, g.k, t->sort, t->dense);
    CUDA_LAUNCHED(c);
    if (!t->dense)
        launch_gather(g, g.x0, s, true);
    if (t->sort && v && !c->failed) {
        int others = t->right ? rows : cols, bytes = LINES * g.k * (int)sizeof(float);
        if (!CUDA_TRY(c, cudaFuncSetAttribute(sort_second,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)))
            return;
        sort_second<<<dim3(div_up(others, LINES), g.n), THREADS, bytes, c->stream>>>(
            v, g.order, rows, cols, t->right, t->gate);
        CUDA_LAUNCHED(c);
    }
    cholesky(g, g.x0, g.lift);
    gram(g, g.x1, g.x0, false);
    bounded_cholesky(g, g.x1);
    solve(g, g.x0);
    gram(g, g.x2, g.x1, false);
    launch_mirror(g, s, g.x2, g.lift, t->gate);
    launch_gather(g, g.x2, q, false);
    turn_basis(g);
    if (c->failed)
        return;
    keep<<<(int)min((int64_t)8 * c->sms, (all - 1) / THREADS + 1), THREADS, 0, c->stream>>>(
        q, g.x1, all, t->gate);
    CUDA_LAUNCHED(c);
}

void gpu_turn(struct ops *o, struct tensor q, struct tensor s, int n, const struct basis_turn *t)
{
    struct cuda_ops *c = cuda_of(o);
    int k = (int)q.cols, blocks = div_up(k, PANEL);
    int rows = (int)(t->v.rows / n), cols = (int)t->v.cols;
    int64_t stride = (int64_t)k * k;
    assert(q.rows == (int64_t)n * k && tensor_count(s) == tensor_count(q));
    if (c->failed || q.rows == 0 ||
        !CUDA_NEED(c, q.dtype == DT_F32 && s.dtype == DT_F32, "bases must be f32"))
        return;
    size_t square = cuda_round(4 * (size_t)stride), panel = cuda_round(4 * PANEL * PANEL);
    size_t each = 3 * square + (blocks + 1) * panel + 2 * cuda_round(4 * (size_t)k) +
                  cuda_round(4) + packed_bytes(1, k, k, SPLIT_A) + packed_bytes(1, k, k, SPLIT_B) +
                  packed_bytes(1, k, PANEL, SPLIT_A) + packed_bytes(1, PANEL, PANEL, SPLIT_B);
    int many = split_at_once(n, each);
    char *at = (char *)cuda_workspace(c, each * many);
    if (!at)
        return;
    struct group g = { c, 0, k, stride };
    g.x0 = (float *)cuda_cut(&at, square * many), g.x1 = (float *)cuda_cut(&at, square * many);
    g.x2 = (float *)cuda_cut(&at, square * many);
    g.inverse = (float *)cuda_cut(&at, blocks * panel * many);
    g.panel = (float *)cuda_cut(&at, panel * many);
    g.bound = (float *)cuda_cut(&at, cuda_round(4 * (size_t)k) * many);
    g.lift = (float *)cuda_cut(&at, cuda_round(4) * many);
    g.order = (int *)cuda_cut(&at, cuda_round(4 * (size_t)k) * many);
    g.a = packed_cut(&at, many, k, k, SPLIT_A), g.b = packed_cut(&at, many, k, k, SPLIT_B);
    g.small_a = packed_cut(&at, many, k, PANEL, SPLIT_A);
    g.small_b = packed_cut(&at, many, PANEL, PANEL, SPLIT_B);
    for (int first = 0; first < n && !c->failed; first += many) {
        g.n = n - first < many ? n - first : many;
        float *v = t->v.data ? (float *)t->v.data + (int64_t)first * rows * cols : NULL;
        turn_group(g, (float *)q.data + first * stride, (float *)s.data + first * stride, v, rows,
                   cols, t);
    }
}
