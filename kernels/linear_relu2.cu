/* linear_relu2.cu - post = max(x w^T,0)^2; dpre = 2 scale (dout w2^T) sqrt(post).
 * record-61.md 2.8, 3.1; the scale (a lane's, on the MLP's output): record-74.md 7.
 *
 * x, dout (T,D), w, w2 (F,D), post, dpre (T,F) bf16. On Hopper one kernel each, sm90/gemm.cu:
 * the product there, the ReLU on its way out. Elsewhere cuBLASLt's product and a pass over it,
 * BLOCK rows at a time, so that the pass finds them in the L2 and backward's scratch is small:
 * BLOCK F numbers of 2 bytes, 25 MB at F = 3072. The product is rounded to bf16 between the two,
 * also backward, where Hopper's kernel rounds once. In fp8 (fp8.md 2) x is made x8 first
 * (fp8_input.cu), and both are the same with codes; what writes post writes its codes too, where
 * the second product takes them (fp8.md 3). The backward in fp8 (fp8.md 4) is the same with codes
 * of dout and w, and writes dpre's, of which cuBLASLt makes dx. With a first (fp8.md 8) those are all that is
 * written, and dw1 is a product of them as they lie (cuda_multiply_codes), which leaves f32 sums, in parts; a pass over
 * F D numbers adds them up and scales them.
 */
#include "few_rows.h"
#include "fp8_copy.h"
#include "fp8_input.h"
#include "gpu.h"
#include "head_fp8.h"
#include "sm90/gemm.h"
#include "vec.h"

enum { BLOCK = 4096, THREADS = 256 };

/* -- any GPU ----------------------------------------------------------------------------------- */

/* x = max(x,0)^2, n vectors of eight; their codes, or NULL. */
static __global__ void __launch_bounds__(THREADS) square_relu(uint4 *x, uint2 *codes, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        float a[8];
        unpack8(a, x[i]);
#pragma unroll
        for (int j = 0; j < 8; j++)
            a[j] = relu(a[j]) * relu(a[j]);
        uint4 packed = x[i] = pack8(a);
        if (!codes)
            continue;
        unpack8(a, packed);
#pragma unroll
        for (int j = 0; j < 8; j++)
            a[j] /= FP8_POST_UNIT;
        codes[i] = pack_e4m3(a);
    }
}

/* dpre = 2 scale g sqrt(post); scale NULL: 1; dpre may be post. codes: NULL, or e5m2(u dpre); post8: NULL, or codes of
 * post. */
static __global__ void __launch_bounds__(THREADS)
    scale_by_root(uint4 *dpre, const uint4 *g, const uint4 *post, const float *scale, uint2 *codes,
                  uint2 *post8, const float *u, int64_t n)
{
    const float factor = scale ? 2 * *scale : 2;

    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        float a[8], b[8];
        unpack8(a, g[i]);
        unpack8(b, post[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            a[j] *= factor * sqrt_approx(b[j]);
            b[j] /= FP8_POST_UNIT;
        }
        if (post8)
            post8[i] = pack_e4m3(b);
        uint4 packed = dpre[i] = pack8(a);
        if (!codes)
            continue;
        unpack8(a, packed);
#pragma unroll
        for (int j = 0; j < 8; j++)
            a[j] *= *u;
        codes[i] = pack_e5m2(a);
    }
}

static int blocks_for(const struct cuda_ops *c, int64_t n)
{
    int64_t blocks = (n - 1) / THREADS + 1;

    return (int)(blocks < 8 * c->sms ? blocks : 8 * c->sms);
}

/* On each path: the forward and the backward, of codes too, with parameters as gemm_relu2's
 * (sm90/gemm.h), f and u NULL without codes; and the bytes of memory that the backward has at
 * `scratch`. */
struct relu2_path {
    void (*forward)(struct cuda_ops *c, struct tensor post, struct tensor post8, struct tensor x,
                    struct tensor w, const float *f);
    void (*backward)(struct cuda_ops *c, void *scratch, struct tensor dpre, struct tensor g8,
                     struct tensor post8, struct tensor dout, struct tensor w, const float *scale,
                     const float *f, const float *u, struct tensor post, bool alone);
    size_t (*scratch_bytes)(struct tensor dpre);
};

static void portable_forward(struct cuda_ops *c, struct tensor post, struct tensor post8,
                             struct tensor x, struct tensor w, const float *f)
{
    for (int64_t first = 0; first < x.rows; first += BLOCK) {
        int64_t rows = x.rows - first < BLOCK ? x.rows - first : BLOCK, n = rows * post.cols / 8;
        struct gemm g = { .out = tensor_rows(post, first, rows),
                          .a = tensor_rows(x, first, rows),
                          .b = w,
                          .tb = true,
                          .scale = f,
                          .fast = f != NULL };
        cuda_gemm(c, &g);
        square_relu<<<blocks_for(c, n), THREADS, 0, c->stream>>>(
            (uint4 *)g.out.data, (uint2 *)tensor_rows(post8, first, rows).data, n);
        CUDA_LAUNCHED(c);
    }
}

static size_t portable_bytes(struct tensor dpre)
{
    return (size_t)((dpre.rows < BLOCK ? dpre.rows : BLOCK) * dpre.cols) * 2;
}

static void portable_backward(struct cuda_ops *c, void *scratch, struct tensor dpre,
                              struct tensor g8, struct tensor post8, struct tensor dout,
                              struct tensor w, const float *scale, const float *f, const float *u,
                              struct tensor post, bool)
{
    for (int64_t first = 0; first < dout.rows; first += BLOCK) {
        int64_t rows = dout.rows - first < BLOCK ? dout.rows - first : BLOCK;
        int64_t n = rows * dpre.cols / 8;
        struct gemm g = { .out = tensor_of(scratch, DT_BF16, rows, dpre.cols),
                          .a = tensor_rows(dout, first, rows),
                          .b = w,
                          .tb = true,
                          .scale = f,
                          .fast = f != NULL };
        cuda_gemm(c, &g);
        scale_by_root<<<blocks_for(c, n), THREADS, 0, c->stream>>>(
            (uint4 *)tensor_rows(dpre, first, rows).data, (const uint4 *)scratch,
            (const uint4 *)tensor_rows(post, first, rows).data, scale,
            (uint2 *)tensor_rows(g8, first, rows).data,
            (uint2 *)tensor_rows(post8, first, rows).data, u, n);
        CUDA_LAUNCHED(c);
    }
}

static void native_backward(struct cuda_ops *c, void *, struct tensor dpre, struct tensor g8,
                            struct tensor post8, struct tensor dout, struct tensor w,
                            const float *scale, const float *f, const float *u, struct tensor post,
                            bool alone)
{
    gemm_relu2_bwd(c, dpre, g8, post8, dout, w, scale, f, u, post, alone);
}

const struct relu2_path relu2_native = { gemm_relu2, native_backward,
                                         [](struct tensor) { return (size_t)0; } };
const struct relu2_path relu2_portable = { portable_forward, portable_backward, portable_bytes };

/* -- the ops ----------------------------------------------------------------------------------- */

static bool can_do(struct cuda_ops *c, struct tensor x, struct tensor w)
{
    return !c->failed && x.rows > 0 &&
           CUDA_NEED(c, w.dtype == DT_BF16, "weights of products are bf16") &&
           CUDA_NEED(c, x.cols % 8 == 0 && w.rows % 8 == 0, "the MLP's widths are multiples of 8");
}

void gpu_linear_relu2(struct ops *o, struct tensor post, struct tensor x, struct tensor w)
{
    struct cuda_ops *c = cuda_of(o);

    assert(post.dtype == DT_BF16 && x.dtype == DT_BF16);
    assert(post.rows == x.rows && post.cols == w.rows && x.cols == w.cols);
    if (o->rows_apart)
        few_rows(c, { .out = post, .x = x, .w = w, .end = FEW_RELU2 });
    else if (can_do(c, x, w))
        c->path->relu2->forward(c, post, {}, x, w, NULL);
}

void gpu_linear_relu2_fp8(struct ops *o, struct tensor post, struct tensor post8, struct tensor x,
                          struct tensor w, struct fp8_weight w8)
{
    struct cuda_ops *c = cuda_of(o);
    char *at;

    assert(post.dtype == DT_BF16 && post.rows == x.rows && post.cols == w.rows);
    assert(w8.codes.rows == w.rows && w8.codes.cols == x.cols);
    if (!c->fp8) {
        gpu_linear_relu2(o, post, x, w);
        return;
    }
    if (!can_do(c, x, w) || !CUDA_NEED(c, x.cols % 16 == 0 && w.rows % 16 == 0,
                                       "fp8 products have widths of multiples of 16"))
        return;
    at = (char *)cuda_workspace(c, fp8_input_bytes(x));
    if (!at)
        return;
    struct fp8_input in = fp8_input_make(c, &at, x, DT_E4M3, w8.scale);
    c->path->relu2->forward(c, post, post8, in.codes, w8.codes, in.factor);
}

void gpu_linear_relu2_bwd(struct ops *o, struct tensor dpre, struct tensor dout, struct tensor w2,
                          const real *scale, struct tensor post)
{
    struct cuda_ops *c = cuda_of(o);

    assert(dpre.dtype == DT_BF16 && dout.dtype == DT_BF16 && post.dtype == DT_BF16);
    assert(dpre.rows == dout.rows && dpre.cols == w2.rows && dout.cols == w2.cols);
    if (!can_do(c, dout, w2))
        return;
    size_t bytes = c->path->relu2->scratch_bytes(dpre);
    void *scratch = bytes ? cuda_workspace(c, bytes) : NULL;
    if ((scratch || !bytes) && !c->counting)
        c->path->relu2->backward(c, scratch, dpre, {}, {}, dout, w2, scale, NULL, NULL, post,
                                 false);
}

/* Holds what weight gradients of codes need, one after the other in one place: the operand that lies along the sums,
 * post's codes, sums: in dpre's memory, which is free by then, if they fit. */
struct grads_work {
    struct tensor b_t, post8;
    struct codes_product p;
    size_t partial, sums;

    grads_work(const struct cuda_ops *c, const struct fp8_grads *grads, struct tensor g8,
               struct tensor dpre)
    {
        int64_t rows = (g8.rows + 15) / 16 * 16; /* fp8 products have sums of multiples of 16 */
        p = cuda_codes_product(c, g8, grads->x.cols);
        b_t = tensor_of(NULL, DT_E4M3, grads->x.cols, rows);
        post8 = tensor_of(NULL, DT_E4M3, grads->dw2.data ? g8.rows : 0, g8.cols);
        partial = cuda_partial_bytes(c, grads->dw1);
        sums = tensor_bytes(p.sum) > tensor_bytes(dpre) ? tensor_bytes(p.sum) : 0;
        p.sum.data = dpre.data;
    }
    size_t bytes() const
    {
        return cuda_round(tensor_bytes(b_t)) + cuda_round(tensor_bytes(post8)) +
               cuda_round(tensor_bytes(p.turned)) + cuda_round(sums) + partial;
    }
    void cut(char **at)
    {
        b_t.data = cuda_cut(at, tensor_bytes(b_t));
        p.turned.data = cuda_cut(at, tensor_bytes(p.turned));
        if (sums)
            p.sum.data = cuda_cut(at, sums);
        if (post8.rows)
            post8.data = cuda_cut(at, tensor_bytes(post8));
    }
};

/* d8, of which g8 was made, and back as struct fp8_input has them. */
static void weight_grads(struct cuda_ops *c, grads_work w, float *partial,
                         const struct fp8_grads *grads, struct tensor g8, struct tensor d8,
                         const float *back, struct tensor w2, const float *scale)
{
    struct summed s = {
        .sum = (const float *)w.p.sum.data, .unit = back, .parts = w.p.parts, .add = grads->add
    };

    head_quantize(c, {}, w.b_t, grads->x, 1.0f / FP8_NORM_UNIT);
    cuda_multiply_codes(c, &w.p, g8, w.b_t, 1.0f / FP8_NORM_UNIT);
    cuda_write_product(c, grads->dw1, &s);
    if (!grads->dw2.data)
        return;
    int64_t rows = d8.rows;
    d8.rows = w.b_t.cols;
    w.b_t.dtype = DT_E5M2;
    head_transpose(c, w.b_t, 0, d8, d8.cols, rows);
    cuda_multiply_codes(c, &w.p, w.post8, w.b_t, (float)(FP8_POST_UNIT * FP8_GRAD_UNIT) / E5M2_MAX);
    s.w = w2, s.scale = scale, s.dscale = grads->dscale, s.partial = partial;
    cuda_write_product(c, grads->dw2, &s);
}

void gpu_mlp_bwd_fp8(struct ops *o, struct tensor dpre, struct tensor dx, struct tensor dout,
                     struct tensor w1, struct fp8_weight w1_8, struct tensor w2,
                     struct fp8_weight w2_8, const real *scale, struct tensor post,
                     const struct fp8_grads *grads)
{
    struct cuda_ops *c = cuda_of(o);
    struct tensor g8 = tensor_of(NULL, DT_E5M2, dpre.rows, dpre.cols);
    struct fp8_grads none = {};
    char *at;

    assert(dpre.dtype == DT_BF16 && dout.dtype == DT_BF16 && post.dtype == DT_BF16);
    if (!c->fp8) {
        if (grads && grads->dw2.data)
            gpu_linear_t_bwd_w(o, grads->dw2, grads->dscale, dout, post, w2, scale, grads->add);
        gpu_linear_relu2_bwd(o, dpre, dout, w2, scale, post);
        gpu_linear_bwd_x(o, dx, dpre, w1, NULL, false);
        if (grads)
            gpu_linear_bwd_w(o, grads->dw1, NULL, dpre, grads->x, w1, NULL, grads->add);
        return;
    }
    if (!can_do(c, dout, w2) || !CUDA_NEED(c, dout.cols % 16 == 0 && w2.rows % 16 == 0,
                                           "fp8 products have widths of multiples of 16"))
        return;
    grads_work w(c, grads ? grads : &none, g8, dpre);
    at = (char *)cuda_workspace(c, fp8_input_bytes(dout) + cuda_round(tensor_bytes(g8)) +
                                       (grads ? cuda_round(w.bytes()) : 0) +
                                       c->path->relu2->scratch_bytes(dpre));
    if (!at)
        return;
    struct fp8_input in = fp8_input_make(c, &at, dout, DT_E5M2, w2_8.scale);
    g8.data = cuda_cut(&at, tensor_bytes(g8));
    if (grads)
        w.cut(&at);
    float *partial = grads ? (float *)cuda_cut(&at, w.partial) : NULL;
    c->path->relu2->backward(c, at, dpre, g8, w.post8, in.codes, w2_8.codes, scale, in.factor,
                             in.follow, post, grads != NULL);
    cuda_gemm_codes(c, dx, g8, in.back, w1_8, NULL, {});
    if (grads)
        weight_grads(c, w, partial, grads, g8, in.codes, in.back, w2, scale);
}
