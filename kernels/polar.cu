/* polar.cu - polar factor of each of n matrices (R,C) by composed quintics, bf16, in place.
 *
 * Contract: op_list.h. Three batched products an iteration (polar_gemm.h), all n matrices in each:
 *     gram      A = x x^T, or x^T x when R > C         k x k, one triangle
 *     square    B = b A + c A A                        one triangle
 *     update    x' = a x + B x, or a x + x B           R x C
 * Tall matrices are not transposed: the tensor cores read x as it lies.
 *
 * On Hopper the products are sm90/polar_gemm.h's. Elsewhere they are cuBLASLt's, strided batches;
 * it knows no triangle, so gram and square are computed in full (f = 1 below), and where the
 * product is rounded before a x is added, the sum is a pass of its own.
 *
 * The Gram form (POLAR_GRAM) has gram only where it begins; square adds a I; and a row is products
 * of small matrices in f16, two in a launch where they share W:
 *     small     Q W and A W, then W (A W)              one triangle each
 *     times_q   x' = Q x, or x Q                       R x C, where it ends, Q in bf16
 *
 * FLOPs a matrix and iteration, k = min, m = max of (R,C), T = k / 128 tiles a side, triangle
 * f = (T + 1) / 2T: 2 k^2 m f + 2 k^3 f + 2 k^2 m. Bytes, each operand once: 2 (3 k m + 4 k^2).
 * Source: orthogonalisation.md 2, 3.
 */
#include "f32_product.cuh"
#include "gpu.h"
#include "host/launch.h"
#include "polar.h"
#include "sm90/polar_gemm.h"
#include "sm90/tensor_map.h"

/* n matrices (rows, cols) of rows `ld` apart, in boxes of 64 x 64. */
struct matrices {
    void *data;
    int64_t rows, cols, ld;
    int n;
    enum dtype type; /* bf16, f16 */
};

static bool map_of(struct cuda_ops *c, CUtensorMap *map, const struct matrices &m)
{
    bool ok = encode_map<3>(map, { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                   m.data,
                                   { (cuuint64_t)m.cols, (cuuint64_t)m.rows, (cuuint64_t)m.n },
                                   { (cuuint64_t)m.ld * 2, (cuuint64_t)(m.ld * m.rows) * 2 },
                                   { BOX, BOX, 1 } });

    if (!ok)
        cuda_fail(c, GPT_DEVICE, "polar: the driver makes no tensor map of %d x %lld x %lld", m.n,
                  (long long)m.rows, (long long)m.cols);
    return ok;
}

/* -- one product --------------------------------------------------------------------------- */

struct product {
    struct cuda_ops *c;
    CUtensorMap a, b, add, out;
    struct gemm_shape shape;
    bool overlap; /* the launch before this one was a product */
};

template <bool TA, bool TB, bool SYM, bool HAS_C, bool SPLIT, int BN, numbers N = IN_BF16>
static void launch(const product &p)
{
    auto kernel = polar_gemm<TA, TB, SYM, HAS_C, SPLIT, BN, N>;
    int tiles = p.shape.n * tiles_of(SYM, p.shape);
    dim3 grid(SPLIT ? 2 * tiles : tiles < p.c->sms ? tiles : p.c->sms);

    CUDA_TRY(p.c, launch_kernel({ grid, ROLE_THREADS, p.c->stream, ring_bytes(BN) + STAGES_ALIGN,
                                  SPLIT ? 2 : 1, p.overlap },
                                kernel, p.a, p.b, p.add, p.out, p.shape));
}

template <bool T, bool HAS_C, numbers N> static void launch_symmetric(const product &p, bool split)
{
    if (split && p.shape.kblocks % 2 == 0)
        launch<T, T, true, HAS_C, true, TILE, N>(p);
    else
        launch<T, T, true, HAS_C, false, TILE, N>(p);
}

/* Launches a product of the Gram form's small matrices; to_bf16: the one that x is multiplied by. */
template <bool HAS_C> static void launch_small(const product &p, bool split, bool to_bf16)
{
    if (to_bf16)
        launch_symmetric<false, HAS_C, F16_TO_BF16>(p, split);
    else
        launch_symmetric<false, HAS_C, IN_F16>(p, split);
}

/* B x, or x B when the matrices are tall: then B, which is symmetric, is read along its rows. */
template <bool TB, bool HAS_C> static void launch_update(const product &p, int columns)
{
    if (columns == 256)
        launch<false, TB, false, HAS_C, false, 256>(p);
    else if (columns == 192)
        launch<false, TB, false, HAS_C, false, 192>(p);
    else
        launch<false, TB, false, HAS_C, false, 128>(p);
}

/* -- one product on any GPU ---------------------------------------------------------------- */

/* out = op(a) op(b), times factors[0] if given; with `add`, + factors[1] add, laid out as out is. */
static void batched(struct cuda_ops *c, const matrices &out, const matrices &a, bool ta,
                    const matrices &b, bool tb, const matrices *add = NULL,
                    const float *factors = NULL)
{
    struct gemm g = { .out = tensor_of(out.data, out.type, out.rows, out.cols),
                      .a = tensor_of(a.data, a.type, a.rows, a.cols),
                      .b = tensor_of(b.data, b.type, b.rows, b.cols),
                      .ta = ta,
                      .tb = tb };
    if (add)
        g.add = tensor_of(add->data, add->type, out.rows, out.cols);
    g.factors = factors;
    g.lda = a.ld, g.ldb = b.ld, g.ldo = out.ld;
    g.batch = out.n;
    g.stride_a = a.rows * a.ld, g.stride_b = b.rows * b.ld, g.stride_out = out.rows * out.ld;
    cuda_gemm(c, &g);
}

/* to += a from, n vectors of eight. */
static __global__ void add_scaled(uint4 *to, const uint4 *from, float a, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        float x[8], y[8];
        unpack8(x, from[i]);
        unpack8(y, to[i]);
#pragma unroll
        for (int j = 0; j < 8; j++)
            y[j] = fmaf(a, x[j], y[j]);
        to[i] = pack8(y);
    }
}

/* y = f16(scale x), y's rows as far apart as x's; or y = bf16(x) of f16. */
static __global__ void to_f16(__half *y, const bf16 *x, float scale, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        y[i] = __float2half_rn(scale * __bfloat162float(x[i]));
}
static __global__ void to_bf16(bf16 *y, const __half *x, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        y[i] = __float2bfloat16_rn(__half2float(x[i]));
}

/* w_ii = a + b r_ii + c sum_j r_ij^2, of symmetric r, with one rounding; one warp a row of the n k
 * rows. */
static __global__ void square_diagonal(__half *w, const __half *r, int rows, int k, int ld, float a,
                                       float b, float c)
{
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows)
        return;
    const __half *from = r + (int64_t)row * ld;
    float sum = 0;
    for (int j = threadIdx.x % 32; j < k; j += 32)
        sum = fmaf(__half2float(from[j]), __half2float(from[j]), sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        w[(int64_t)row * ld + row % k] =
            __float2half_rn(fmaf(b, __half2float(from[row % k]), c * sum) + a);
}

/* -- almost orthogonal layers -------------------------------------------------------------- */

__device__ __forceinline__ float as_f32(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float as_f32(__half x) { return __half2float(x); }
__device__ __forceinline__ void round_to(bf16 *x, float y) { *x = __float2bfloat16_rn(y); }
__device__ __forceinline__ void round_to(__half *x, float y) { *x = __float2half_rn(y); }

/* s_i = max(sum_j |A_ij|, 1e-7)^(-1/2), 0 of a sum that is not finite, of the A that a holds times
 * `scale`; one warp a row of the n k rows. */
template <typename T>
static __global__ void aol_sums(float *s, const T *a, int rows, int k, int ld, float scale)
{
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows)
        return;
    float sum = 0;
    for (int j = threadIdx.x % 32; j < k; j += 32)
        sum += fabsf(as_f32(a[(int64_t)row * ld + j]));
    sum = warp_sum(sum) / scale;
    if (threadIdx.x % 32 == 0)
        s[row] = isfinite(sum) ? 1 / sqrtf(fmaxf(sum, 1e-7f)) : 0;
}

/* m_ij *= by_row_i by_col_j, either may be NULL: one block a row. */
template <typename T>
static __global__ void aol_scale(T *m, int rows, int cols, int ld, const float *by_row,
                                 const float *by_col, int k)
{
    int row = blockIdx.x, z = row / rows;
    T *p = m + (int64_t)row * ld;
    float r = by_row ? by_row[row] : 1;
    for (int j = threadIdx.x; j < cols; j += blockDim.x) {
        float f = by_col ? r * by_col[z * k + j] : r;
        round_to(&p[j], f == 0 ? 0 : as_f32(p[j]) * f);
    }
}

template <typename T>
static void aol_small(struct cuda_ops *c, const matrices &a, float *s, float scale)
{
    int k = (int)a.rows, rows = k * a.n;
    aol_sums<<<div_up(rows, 8), 256, 0, c->stream>>>(s, (const T *)a.data, rows, k, (int)a.ld,
                                                     scale);
    aol_scale<<<rows, 256, 0, c->stream>>>((T *)a.data, k, k, (int)a.ld, s, s, k);
}

static void aol(struct cuda_ops *c, const matrices &x, const matrices &a, float *s)
{
    bool tall = x.rows > x.cols;
    if (a.type == DT_F16)
        aol_small<__half>(c, a, s, POLAR_GRAM_SCALE);
    else
        aol_small<bf16>(c, a, s, 1);
    aol_scale<<<(unsigned)(x.rows * x.n), 256, 0, c->stream>>>(
        (bf16 *)x.data, (int)x.rows, (int)x.cols, (int)x.ld, tall ? NULL : s, tall ? s : NULL,
        (int)a.rows);
    CUDA_LAUNCHED(c);
}

/* -- the products -------------------------------------------------------------------------- */

enum { ROUND_ABOVE = 1024 }; /* rows; of more, B x is rounded before a x is added */

/* x: the op's own memory and two spares; gram and sym hold A and B. Maps are Hopper's. backwards:
 * of the last product. */
struct work {
    struct cuda_ops *c;
    const struct polar_plan *plan;
    matrices x[3], gram, sym;
    CUtensorMap x_map[3], gram_map, sym_map;
    mutable bool backwards;
    bool tall() const { return x[0].rows > x[0].cols; }
};

static gemm_shape shape_of(const work &w, const matrices &out, int64_t k, int tile_cols)
{
    gemm_shape s = {};
    s.kblocks = div_up(k, BOX);
    s.tiles_m = div_up(out.rows, TILE), s.tiles_n = div_up(out.cols, tile_cols);
    s.n = s.n_b = out.n;
    s.beta = 1;
    s.backwards = w.backwards = !w.backwards;
    return s;
}

static void gram_of(const work &w, int from, bool overlap)
{
    const matrices &x = w.x[from];
    const CUtensorMap &map = w.x_map[from];
    const int64_t k = w.tall() ? x.rows : x.cols;

    if (w.c->portable) {
        batched(w.c, w.gram, x, w.tall(), x, !w.tall());
        return;
    }
    product p = { w.c, map, map, map, w.gram_map, shape_of(w, w.gram, k, TILE), overlap };
    if (w.tall())
        launch_symmetric<true, false, IN_BF16>(p, w.plan->split_gram);
    else
        launch_symmetric<false, false, IN_BF16>(p, w.plan->split_gram);
}

/* to = B = b A + c A A. */
static void square_of(const work &w, const matrices &to, const double coef[3], bool overlap)
{
    const float factors[2] = { (float)coef[2], (float)coef[1] };
    const CUtensorMap &map = w.gram_map;

    if (w.c->portable) {
        batched(w.c, to, w.gram, false, w.gram, false, &w.gram, factors);
        return;
    }
    product p = { w.c, map, map, map, w.sym_map, shape_of(w, to, to.rows, TILE), overlap };
    p.shape.alpha = factors[1];
    p.shape.beta = factors[0];
    launch_symmetric<false, true, IN_BF16>(p, w.plan->split_square);
}

static void update_portably(const work &w, int from, int to, float a)
{
    const matrices &x = w.x[from], &left = w.tall() ? x : w.sym, &right = w.tall() ? w.sym : x;
    const float factors[2] = { 1, a };

    if (x.rows <= ROUND_ABOVE) {
        batched(w.c, w.x[to], left, false, right, false, &x, factors);
        return;
    }
    batched(w.c, w.x[to], left, false, right, false);
    add_scaled<<<8 * w.c->sms, 256, 0, w.c->stream>>>((uint4 *)w.x[to].data, (const uint4 *)x.data,
                                                      a, x.rows * x.ld * x.n / 8);
    CUDA_LAUNCHED(w.c);
}

static product update_product(const work &w, const CUtensorMap &left, int from, int to)
{
    const CUtensorMap &x = w.x_map[from];
    return { w.c,
             w.tall() ? x : left,
             w.tall() ? left : x,
             x,
             w.x_map[to],
             shape_of(w, w.x[from], w.gram.rows, w.plan->update_columns),
             w.plan->overlap };
}

static void update_of(const work &w, int from, int to, const double coef[3])
{
    int columns = w.plan->update_columns;

    if (w.c->portable) {
        update_portably(w, from, to, (float)coef[0]);
        return;
    }
    product p = update_product(w, w.sym_map, from, to);
    p.shape.alpha = (float)coef[0];
    p.shape.round_product = w.x[0].rows > ROUND_ABOVE;
    if (w.tall())
        launch_update<false, true>(p, columns);
    else
        launch_update<true, true>(p, columns);
}

static bool make_maps(work *w)
{
    bool ok = map_of(w->c, &w->gram_map, w->gram) && map_of(w->c, &w->sym_map, w->sym);

    for (int i = 0; i < 3 && ok; i++)
        ok = map_of(w->c, &w->x_map[i], w->x[i]);
    return ok;
}

/* Returns the update's tile that should end first: rounds of tiles over all SMs, each at the ns a
 * stage and the ns once that it was measured to take on an H200 (share/doc/performance.md). */
struct polar_plan polar_plan_for(int sms, int n, int64_t rows, int64_t cols)
{
    static const struct {
        int columns, stage, once;
    } cost[] = {
        { 128, 334, 1200 },
        { 192, 430, 1400 },
        { 256, 550, 1600 },
    };
    int64_t k = rows < cols ? rows : cols, least = INT64_MAX;
    int side = div_up(k, TILE), few = n * side * (side + 1) <= sms;
    struct polar_plan plan = { !!few, !!few, 0, true };

    for (auto &c : cost) {
        int64_t tiles = (int64_t)n * div_up(rows, TILE) * div_up(cols, c.columns);
        int64_t time = div_up(tiles, sms) * ((int64_t)div_up(k, BOX) * c.stage + c.once);
        if (time < least)
            least = time, plan.update_columns = c.columns;
    }
    return plan;
}

/* -- the Gram form ------------------------------------------------------------------------- */

/* Five places for n small matrices each, side by side, so that Q and A, wherever they lie, are one
 * operand of 2 n matrices. A is always in place 2. Q is in 1, or beside it in 3: a row reads the
 * pair 1, 2 (2, 3) and leaves Q W and the product A W in 3, 4 (1, 0). */
enum { PLACES = 5, PLACE_OF_GRAM = 2 };

struct gram_form {
    work *w;
    char *place;
    size_t bytes; /* of a place */
    int q; /* where Q is: 1, 3 */

    matrices at(int i, int count = 1) const
    {
        matrices m = w->gram;
        m.data = place + i * bytes;
        m.n *= count;
        return m;
    }
};

/* A = x x^T times POLAR_GRAM_SCALE. cuBLASLt multiplies no bf16 into f16: there `spare` gets x in
 * f16, times the scale as well, so that all but numbers below 2^-24 are exact. */
static void gram_in_f16(const work &w, int from, int spare, bool overlap)
{
    const matrices &x = w.x[from];
    const int64_t k = w.tall() ? x.rows : x.cols;

    if (w.c->portable) {
        const float factors[2] = { 1.0f / POLAR_GRAM_SCALE, 0 };
        matrices x16 = w.x[spare];
        x16.type = DT_F16;
        to_f16<<<8 * w.c->sms, 256, 0, w.c->stream>>>((__half *)x16.data, (const bf16 *)x.data,
                                                      POLAR_GRAM_SCALE, x.rows * x.ld * x.n);
        CUDA_LAUNCHED(w.c);
        batched(w.c, w.gram, x16, w.tall(), x16, !w.tall(), NULL, factors);
        return;
    }
    product p = { w.c,           w.x_map[from], w.x_map[from],
                  w.x_map[from], w.gram_map,    shape_of(w, w.gram, k, TILE),
                  overlap };
    p.shape.beta = POLAR_GRAM_SCALE;
    if (w.tall())
        launch_symmetric<true, false, BF16_TO_F16>(p, w.plan->split_gram);
    else
        launch_symmetric<false, false, BF16_TO_F16>(p, w.plan->split_gram);
}

/* to = W = a I + b A + c A A; to_bf16: it is Q, and x is multiplied by it next. */
static void w_of(const work &w, const matrices &to, const double coef[3], bool to_bf16,
                 bool overlap)
{
    const float scale = POLAR_GRAM_SCALE, a = (float)coef[0];
    const float factors[2] = { (float)coef[2] / (scale * scale), (float)coef[1] / scale };
    const CUtensorMap &map = w.gram_map;

    if (w.c->portable) {
        int k = (int)to.rows, rows = k * to.n;
        batched(w.c, to, w.gram, false, w.gram, false, &w.gram, factors);
        square_diagonal<<<div_up(rows, 8), 256, 0, w.c->stream>>>(
            (__half *)to.data, (const __half *)w.gram.data, rows, k, (int)to.ld, a, factors[1],
            factors[0]);
        CUDA_LAUNCHED(w.c);
        return;
    }
    product p = { w.c, map, map, map, map, shape_of(w, to, to.rows, TILE), overlap };
    p.shape.alpha = factors[1];
    p.shape.beta = factors[0];
    p.shape.diagonal = a;
    if (map_of(w.c, &p.out, to))
        launch_small<true>(p, w.plan->split_square, to_bf16);
}

/* out = a b, symmetric; b may have half as many matrices as a. to_bf16: as of w_of. */
static void small_product(const work &w, const matrices &out, const matrices &a, const matrices &b,
                          bool to_bf16 = false)
{
    product p = { w.c, {}, {}, {}, {}, shape_of(w, out, out.rows, TILE), w.plan->overlap };

    if (w.c->portable) {
        matrices o = out, l = a;
        o.n = l.n = b.n;
        for (int i = 0; i < out.n; i += b.n) {
            batched(w.c, o, l, false, b, false);
            o.data = (char *)o.data + b.n * o.rows * o.ld * 2;
            l.data = (char *)l.data + b.n * l.rows * l.ld * 2;
        }
        return;
    }
    p.shape.n_b = b.n;
    if (map_of(w.c, &p.a, a) && map_of(w.c, &p.b, b) && map_of(w.c, &p.out, out)) {
        p.add = p.a;
        launch_small<false>(p, w.plan->split_square && out.n == b.n, to_bf16);
    }
}

/* x[to] = Q x[from], or x Q, Q in bf16: cuBLASLt left f16. */
static void times_q(const work &w, matrices q, int from, int to)
{
    CUtensorMap map;

    if (w.c->portable) {
        const matrices &x = w.x[from];
        to_bf16<<<8 * w.c->sms, 256, 0, w.c->stream>>>((bf16 *)q.data, (const __half *)q.data,
                                                       q.rows * q.ld * q.n);
        CUDA_LAUNCHED(w.c);
        q.type = DT_BF16;
        batched(w.c, w.x[to], w.tall() ? x : q, false, w.tall() ? q : x, false);
        return;
    }
    if (!map_of(w.c, &map, q))
        return;
    product p = update_product(w, map, from, to);
    if (w.tall())
        launch_update<false, false>(p, w.plan->update_columns);
    else
        launch_update<true, false>(p, w.plan->update_columns);
}

/* W = a I + b A + c A A; Q <- Q W; and while A is needed further, A <- W (A W). */
static void gram_row(gram_form *g, const double coef[3], bool first, bool last, bool overlap)
{
    const work &w = *g->w;
    matrices a = w.gram, spare = w.sym, place_w = first ? g->at(1) : spare;

    w_of(w, place_w, coef, first && last, overlap);
    if (first) { /* Q = W */
        g->q = 1;
        if (!last) {
            small_product(w, spare, a, place_w);
            small_product(w, a, place_w, spare);
        }
        return;
    }
    int to = g->q == 1 ? 3 : 1, product = g->q == 1 ? 4 : 0;
    if (last) {
        small_product(w, g->at(to), g->at(g->q), place_w, true);
    } else {
        small_product(w, g->at(to < product ? to : product, 2), g->at(g->q == 1 ? 1 : 2, 2),
                      place_w);
        small_product(w, a, place_w, g->at(product));
    }
    g->q = to;
}

/* Returns where the result lies; x of 0 is the op's own. */
static int run_gram(work *w, gram_form *g, const double (*coef)[3], int iters, unsigned how,
                    float *s)
{
    int from = 0;

    for (int t = 0; t < iters && !w->c->failed; t++) {
        bool first = polar_begins(how, t), last = t + 1 == iters || polar_begins(how, t + 1);
        bool scaled = how & POLAR_AOL && t == 0;
        if (first) /* the third x is free: of the part before it was read */
            gram_in_f16(*w, from, from == 1 ? 2 : 1, w->plan->overlap && t > 0);
        if (scaled)
            aol(w->c, w->x[0], w->gram, s);
        gram_row(g, coef[t], first, last, w->plan->overlap && !scaled);
        if (last) {
            int to = t == iters - 1 && from ? 0 : from == 1 ? 2 : 1;
            times_q(*w, g->at(g->q), from, to);
            from = to;
        }
    }
    return from;
}

/* -- the op -------------------------------------------------------------------------------- */

static int run_direct(work *w, const double (*coef)[3], int iters, unsigned how, float *s)
{
    int from = 0;

    /* x' cannot replace x: other tiles still read it. The last one lands in x again. */
    for (int t = 0; t < iters && !w->c->failed; t++) {
        int to = t == iters - 1 && iters > 1 ? 0 : from == 1 ? 2 : 1;
        bool overlap = w->plan->overlap && t > 0, scaled = how & POLAR_AOL && t == 0;
        gram_of(*w, from, overlap);
        if (scaled)
            aol(w->c, w->x[0], w->gram, s);
        square_of(*w, w->sym, coef[t], w->plan->overlap && !scaled);
        update_of(*w, from, to, coef[t]);
        from = to;
    }
    return from;
}

void gpu_polar_planned(struct ops *o, struct tensor x, int n, const double (*coef)[3], int iters,
                       unsigned how, const struct polar_plan *plan)
{
    struct cuda_ops *c = cuda_of(o);
    assert(n > 0 && x.rows % n == 0 && x.rows > 0 && x.cols > 0);
    if (c->failed || iters <= 0 || !CUDA_NEED(c, x.dtype == DT_BF16, "x must be bf16"))
        return;

    int64_t rows = x.rows / n, k = rows < x.cols ? rows : x.cols, ld = (x.cols + 7) / 8 * 8;
    int64_t ldk = (k + 7) / 8 * 8;
    /* TMA requires rows of a multiple of 16 bytes: others use a padded copy. */
    bool pad = ld != x.cols || (uintptr_t)x.data % 16;
    size_t x_bytes = cuda_round((size_t)(x.rows * ld) * 2);
    size_t k_bytes = cuda_round((size_t)(n * k * ldk) * 2);
    size_t small_bytes = (size_t)(n * k * ldk) * 2; /* not rounded: places lie side by side */
    size_t places = how & POLAR_GRAM ? cuda_round(PLACES * small_bytes) : k_bytes;
    char *at = (char *)cuda_workspace(c, (2 + pad) * x_bytes + k_bytes + places +
                                             cuda_round((size_t)(n * k) * 4));
    if (!at)
        return;
    matrices first = { pad ? cuda_cut(&at, x_bytes) : x.data, rows, x.cols, ld, n, DT_BF16 };
    matrices square = { NULL, k, k, ldk, n, how & POLAR_GRAM ? DT_F16 : DT_BF16 };
    work w = { c, plan, { first, first, first }, square, square, {}, {}, {}, false };
    w.x[1].data = cuda_cut(&at, x_bytes);
    w.x[2].data = cuda_cut(&at, x_bytes);
    gram_form g = { &w, (char *)cuda_cut(&at, places), small_bytes, 1 };
    w.gram.data = how & POLAR_GRAM ? g.at(PLACE_OF_GRAM).data : g.place;
    w.sym.data = cuda_cut(&at, k_bytes);
    if (!c->portable && !make_maps(&w))
        return;
    size_t row_bytes = (size_t)x.cols * 2, ld_bytes = (size_t)ld * 2;
    if (pad && !CUDA_TRY(c, cudaMemcpy2DAsync(first.data, ld_bytes, x.data, row_bytes, row_bytes,
                                              (size_t)x.rows, cudaMemcpyDeviceToDevice, c->stream)))
        return;
    int from = how & POLAR_GRAM ? run_gram(&w, &g, coef, iters, how, (float *)at)
                                : run_direct(&w, coef, iters, how, (float *)at);
    void *result = w.x[from].data;
    if (result != x.data)
        CUDA_TRY(c, cudaMemcpy2DAsync(x.data, row_bytes, result, ld_bytes, row_bytes,
                                      (size_t)x.rows, cudaMemcpyDeviceToDevice, c->stream));
}

/* In f32 by plain products, for numbers to compare with: the direct form, whatever the form asked for. */
static void polar_f32(struct cuda_ops *c, struct tensor x, int n, const double (*coef)[3],
                      int iters, unsigned how)
{
    int rows = (int)(x.rows / n), cols = (int)x.cols, k = rows < cols ? rows : cols;
    bool tall = rows > cols;
    size_t square = sizeof(float) * (size_t)k * k, whole = sizeof(float) * (size_t)rows * cols;
    int many = f32_at_once(n, 2 * square + whole);
    if (c->failed || !CUDA_NEED(c, !(how & POLAR_AOL), "AOL's scaling is for bf16"))
        return;
    char *at = (char *)cuda_workspace(c, 2 * cuda_round(square * many) + whole * many);
    if (!at)
        return;
    float *a = (float *)cuda_cut(&at, cuda_round(square * many));
    float *b = (float *)cuda_cut(&at, cuda_round(square * many)), *y = (float *)at;

    for (int first = 0; first < n; first += many) {
        int some = n - first < many ? n - first : many;
        float *from = (float *)x.data + (int64_t)first * rows * cols, *to = y;
        for (int t = 0; t < iters && !c->failed; t++) {
            launch_products(c, { from, from, a, k, k, tall ? rows : cols, tall, !tall }, some);
            f32_product p = { a, a, b, k, k, k };
            p.alpha = (float)coef[t][2], p.beta = (float)coef[t][1], p.add = a;
            launch_products(c, p, some);
            p = { tall ? from : b, tall ? b : from, to, rows, cols, k };
            p.beta = (float)coef[t][0], p.add = from;
            launch_products(c, p, some);
            float *spare = from;
            from = to, to = spare;
        }
        if (from == y)
            CUDA_TRY(c,
                     cudaMemcpyAsync(to, from, whole * some, cudaMemcpyDeviceToDevice, c->stream));
    }
}

void gpu_polar(struct ops *o, struct tensor x, int n, const double (*coef)[3], int iters,
               unsigned how)
{
    struct cuda_ops *c = cuda_of(o);
    if (x.dtype == DT_F32 && x.rows > 0) {
        polar_f32(c, x, n, coef, iters, how);
        return;
    }
    struct polar_plan plan = polar_plan_for(c->sms, n, x.rows / n, x.cols);

    /* Two blocks of a tile take longer in sum, which only pays where others would be idle. */
    if (c->stream != c->trunk)
        plan.split_gram = plan.split_square = false;
    gpu_polar_planned(o, x, n, coef, iters, how, &plan);
}
