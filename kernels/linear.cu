/* linear.cu - products with weights stored (out, in) and (in, out), through cuBLASLt (gemm.cu).
 *
 *   linear        y (T,O) = scale x (T,I) w (O,I)^T (+ residual)
 *   linear_bwd_x  dx (T,I) (+)= scale dy (T,O) w
 *   linear_bwd_w  g = dy^T x, dw (O,I) (+)= scale g, dscale += sum g w
 *   linear_t, linear_t_bwd_w   the same with w (I,O): y = scale x w (+ residual), g = x^T dy
 *   linear_t_fp8  y = scale f x8 w8^T (+ residual), e4m3 operands, w8 (O,I); f of two scales (fp8.md 3).
 *                 On Hopper sm90/gemm.cu, elsewhere cuBLASLt
 *   linear_fp8    the same of x, whose codes are made here: 3 T I bytes
 *
 *   linear_bwd_fp8   linear_bwd_w and linear_bwd_x of codes (fp8.md 7): dy's are there (or made here, 3 T O bytes),
 *                    x's, transposed, are made here, 3 T I bytes (113 MB at T = 49152, I = 768: 27 us at 4.25
 *                    TB/s). dx by cuBLASLt, which adds up in f32 beside the tensor cores; dw on Hopper by
 *                    sm90/transposed_gemm.cu, elsewhere by cuBLASLt of dy's codes transposed
 *
 * bf16 operands, f32 sums, one rounding; dw bf16 or f32. The scale multiplies the f32 sum, it is
 * read on the device, and the weights are not rounded after scaling, as the record's are
 * (record-61.md 9). Each is 2 T O I FLOP: QKV 174 GFLOP at T = 49152, output 58, MLP 232 (0.23,
 * 0.08, 0.31 ms at 750 TFLOP/s).
 *
 * A product whose scale has a gradient, or that is rounded to bf16 before it is added to an f32 gradient
 * (ops.bf16_grads), is written to f32 scratch first; one pass (O I elements,
 * all in L2) adds up g w, scales and writes dw.
 */
#include "few_rows.h"
#include "gpu.h"
#include "head_fp8.h"
#include "sm90/gemm.h"
#include "sm90/transposed_gemm.h"
#include "vec.h"

static bool need_bf16(struct cuda_ops *c, struct tensor w)
{
    return !c->failed && CUDA_NEED(c, w.dtype == DT_BF16, "weights of products are bf16");
}

/* g.b: the weights. */
static void product(struct cuda_ops *c, const struct gemm &g)
{
    if (need_bf16(c, g.b))
        cuda_gemm(c, &g);
}

/* On each path: y = scale x w^T + residual; cuda_gemm_codes; cuda_multiply_codes and, where a is not transposed in
 * memory, in how many parts. */
struct product_path {
    void (*sum)(struct cuda_ops *c, struct tensor y, struct tensor x, struct tensor w,
                const float *scale, struct tensor residual);
    void (*codes)(struct cuda_ops *c, struct tensor y, struct tensor x8, const float *x_scale,
                  struct fp8_weight w8, const float *scale, struct tensor residual);
    void (*multiply)(struct cuda_ops *c, const struct codes_product *p, struct tensor a,
                     struct tensor b_t, float alpha);
    int (*parts)(const struct cuda_ops *c, int64_t m, int64_t n, int64_t k);
};

static void sum_portably(struct cuda_ops *c, struct tensor y, struct tensor x, struct tensor w,
                         const float *scale, struct tensor residual)
{
    product(c, { .out = y, .a = x, .b = w, .tb = true, .add = residual, .scale = scale });
}

static void sum_natively(struct cuda_ops *c, struct tensor y, struct tensor x, struct tensor w,
                         const float *scale, struct tensor residual)
{
    bool fits = residual.data && w.dtype == DT_BF16 && y.dtype == DT_BF16 && x.rows &&
                x.cols % 8 == 0 && w.rows % 8 == 0;

    (fits ? gemm_sum : sum_portably)(c, y, x, w, scale, residual);
}

void gpu_linear(struct ops *o, struct tensor y, struct tensor x, struct tensor w, const real *scale,
                struct tensor residual)
{
    struct cuda_ops *c = cuda_of(o);

    if (o->rows_apart)
        few_rows(c, { .out = y, .x = x, .w = w, .scale = scale, .add = residual });
    else
        c->path->product->sum(c, y, x, w, scale, residual);
}

void gpu_linear_bwd_x(struct ops *o, struct tensor dx, struct tensor dy, struct tensor w,
                      const real *scale, bool add)
{
    product(cuda_of(o), { .out = dx, .a = dy, .b = w, .add = add ? dx : tensor{}, .scale = scale });
}

void gpu_linear_t(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                  const real *scale, struct tensor residual)
{
    if (o->rows_apart)
        few_rows(cuda_of(o),
                 { .out = y, .x = x, .w = w, .in_out = true, .scale = scale, .add = residual });
    else
        product(cuda_of(o), { .out = y, .a = x, .b = w, .add = residual, .scale = scale });
}

/* Computes the product of unit and three scales, of which any but b may be NULL: 1. */
__global__ static void multiply_scales(float *factor, float unit, const float *a, const float *b,
                                       const float *scale)
{
    *factor = unit * (a ? *a : 1) * *b * (scale ? *scale : 1);
}

/* Launches g with that product as its factor. */
static void gemm_by(struct cuda_ops *c, struct gemm g, float unit, const float *a, const float *b,
                    const float *scale)
{
    g.scale = c->codes_factor;
    if (c->failed || c->counting)
        return;
    multiply_scales<<<1, 1, 0, c->stream>>>(c->codes_factor, unit, a, b, scale);
    CUDA_LAUNCHED(c);
    cuda_gemm(c, &g);
}

void cuda_gemm_operands(struct cuda_ops *c, struct tensor y, const struct fp8_operands *in,
                        const float *scale)
{
    gemm_by(c, { .out = y, .a = in->x8, .b = in->w.codes, .tb = true, .fast = true }, in->x_scale,
            NULL, in->w.scale, scale);
}

/* cuBLASLt gets one factor: given a scale for each operand, anywhere in a tensor of f32, it refused
 * the product (13.0, on an H100), maybe because they were not at multiples of 16 bytes. */
static void codes_portably(struct cuda_ops *c, struct tensor y, struct tensor x8,
                           const float *x_scale, struct fp8_weight w8, const float *scale,
                           struct tensor residual)
{
    gemm_by(c, { .out = y, .a = x8, .b = w8.codes, .tb = true, .add = residual, .fast = true }, 1,
            x_scale, w8.scale, scale);
}

static void multiply_natively(struct cuda_ops *c, const struct codes_product *p, struct tensor a,
                              struct tensor b_t, float alpha)
{
    transposed_gemm_turned(c, p->sum, b_t, a, alpha);
}

static void multiply_portably(struct cuda_ops *c, const struct codes_product *p, struct tensor a,
                              struct tensor b_t, float alpha)
{
    struct tensor turned = p->turned;
    int64_t rows = a.rows;

    turned.dtype = a.dtype;
    a.rows = turned.cols;
    head_transpose(c, turned, 0, a, a.cols, rows);
    struct gemm g = { .out = p->sum, .a = turned, .b = b_t, .tb = true, .alpha = alpha };
    cuda_gemm(c, &g);
}

const struct product_path product_native = { sum_natively, gemm_fp8, multiply_natively,
                                             transposed_gemm_parts };
const struct product_path product_portable = { sum_portably, codes_portably, multiply_portably,
                                               NULL };

struct codes_product cuda_codes_product(const struct cuda_ops *c, struct tensor a, int64_t in)
{
    const struct product_path *path = c->path->product;
    int parts = path->parts ? path->parts(c, a.cols, in, a.rows) : 1;
    int64_t rows = (a.rows + 15) / 16 * 16; /* fp8 products have sums of multiples of 16 */

    return { tensor_of(NULL, DT_F32, parts * a.cols, in),
             tensor_of(NULL, a.dtype, path->parts ? 0 : a.cols, rows), parts };
}

void cuda_multiply_codes(struct cuda_ops *c, const struct codes_product *p, struct tensor a,
                         struct tensor b_t, float alpha)
{
    c->path->product->multiply(c, p, a, b_t, alpha);
}

void cuda_gemm_codes(struct cuda_ops *c, struct tensor y, struct tensor x8, const float *x_scale,
                     struct fp8_weight w8, const float *scale, struct tensor residual)
{
    c->path->product->codes(c, y, x8, x_scale, w8, scale, residual);
}

void gpu_linear_t_fp8(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                      struct tensor x8, const real *unit, struct fp8_weight w8, const real *scale,
                      struct tensor residual)
{
    struct cuda_ops *c = cuda_of(o);

    if (!c->fp8)
        gpu_linear_t(o, y, x, w, scale, residual);
    else if (!c->failed && CUDA_NEED(c, x8.cols % 16 == 0 && y.cols % 16 == 0,
                                     "fp8 products have widths of multiples of 16"))
        cuda_gemm_codes(c, y, x8, unit ? unit : c->post_unit, w8, scale, residual);
}

void gpu_linear_fp8(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                    struct fp8_weight w8, const real *scale, struct tensor residual)
{
    struct cuda_ops *c = cuda_of(o);
    struct tensor x8 = tensor_of(NULL, DT_E4M3, x.rows, x.cols);

    if (!c->fp8) {
        gpu_linear(o, y, x, w, scale, residual);
        return;
    }
    if (c->failed || !x.rows ||
        !CUDA_NEED(c, x.cols % 16 == 0 && y.cols % 16 == 0,
                   "fp8 products have widths of multiples of 16"))
        return;
    x8.data = cuda_workspace(c, tensor_bytes(x8));
    if (!x8.data)
        return;
    head_quantize(c, x8, {}, x, 1);
    cuda_gemm_codes(c, y, x8, c->one, w8, scale, residual);
}

/* -- the product whose scale has a gradient ------------------------------------------ */

enum { THREADS = 256 };

struct scaled_args {
    void *dw;
    bool dw_f32, add;
    bool round; /* the product, to bf16, before it is added */
    const float *g, *unit; /* unit: of g; or NULL */
    int parts; /* of g: n numbers each */
    const bf16 *w;
    const float *scale;
    float *dscale, *partial; /* partial (blocks) */
    unsigned *ticket;
    int64_t n;
};

__device__ __forceinline__ static void write4(const scaled_args &a, int64_t i, float4 g)
{
    if (a.dw_f32) {
        float4 *p = (float4 *)((float *)a.dw + i), old = a.add ? *p : make_float4(0, 0, 0, 0);
        *p = make_float4(old.x + g.x, old.y + g.y, old.z + g.z, old.w + g.w);
    } else {
        uint2 *p = (uint2 *)((bf16 *)a.dw + i), old = a.add ? *p : make_uint2(0, 0);
        *p = make_uint2(bf16_pack(bf16_lo(old.x) + g.x, bf16_hi(old.x) + g.y),
                        bf16_pack(bf16_lo(old.y) + g.z, bf16_hi(old.y) + g.w));
    }
}

__global__ static void __launch_bounds__(THREADS) scale_grad(scaled_args a)
{
    __shared__ float warps[32], again[32];
    float scale = a.scale ? *a.scale : 1, unit = a.unit ? *a.unit : 1, sum = 0;

    for (int64_t i = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x); i < a.n;
         i += 4 * (int64_t)gridDim.x * THREADS) {
        float4 g = *(const float4 *)(a.g + i);
        for (int p = 1; p < a.parts; p++) {
            float4 more = *(const float4 *)(a.g + p * a.n + i);
            g = make_float4(g.x + more.x, g.y + more.y, g.z + more.z, g.w + more.w);
        }
        g = make_float4(unit * g.x, unit * g.y, unit * g.z, unit * g.w);
        if (a.dscale) {
            uint2 w = *(const uint2 *)(a.w + i);
            sum +=
                g.x * bf16_lo(w.x) + g.y * bf16_hi(w.x) + g.z * bf16_lo(w.y) + g.w * bf16_hi(w.y);
        }
        g = make_float4(scale * g.x, scale * g.y, scale * g.z, scale * g.w);
        if (a.round) {
            uint2 u = make_uint2(bf16_pack(g.x, g.y), bf16_pack(g.z, g.w));
            g = make_float4(bf16_lo(u.x), bf16_hi(u.x), bf16_lo(u.y), bf16_hi(u.y));
        }
        write4(a, i, g);
    }
    if (!a.dscale)
        return;
    sum = block_sum(sum, warps);
    if (threadIdx.x == 0)
        a.partial[blockIdx.x] = sum;
    if (!last_block(a.ticket))
        return;
    sum = 0;
    for (int b = threadIdx.x; b < gridDim.x; b += THREADS)
        sum += __ldcg(a.partial + b);
    sum = block_sum(sum, again);
    if (threadIdx.x == 0)
        *a.dscale += sum;
}

/* Blocks of the pass over n numbers. */
static int sum_blocks(const struct cuda_ops *c, int64_t n)
{
    int64_t blocks = (n - 1) / (4 * THREADS) + 1;
    return (int)(blocks < 4 * c->sms ? blocks : 4 * c->sms);
}

size_t cuda_partial_bytes(const struct cuda_ops *c, struct tensor dw)
{
    return sum_blocks(c, tensor_count(dw)) * sizeof(float);
}

void cuda_write_product(struct cuda_ops *c, struct tensor dw, const struct summed *s)
{
    scaled_args a = { .dw = dw.data,
                      .dw_f32 = dw.dtype == DT_F32,
                      .add = s->add,
                      .round = c->ops.bf16_grads,
                      .g = s->sum,
                      .unit = s->unit,
                      .parts = s->parts,
                      .w = (const bf16 *)s->w.data,
                      .scale = s->scale,
                      .dscale = s->dscale,
                      .partial = s->partial,
                      .ticket = c->ticket,
                      .n = tensor_count(dw) };

    if (c->failed || !a.n || !CUDA_NEED(c, a.n % 4 == 0, "weights come in multiples of 4 elements"))
        return;
    scale_grad<<<sum_blocks(c, a.n), THREADS, 0, c->stream>>>(a);
    CUDA_LAUNCHED(c);
}

void cuda_write_sum(struct cuda_ops *c, struct tensor dw, const float *sum, bool add)
{
    struct summed s = { .sum = sum, .add = add };
    cuda_write_product(c, dw, &s);
}

static bool can_sum(struct cuda_ops *c, struct tensor dw, const float *dscale, struct tensor w)
{
    return (!dscale || need_bf16(c, w)) &&
           CUDA_NEED(c, tensor_count(dw) % 4 == 0, "weights come in multiples of 4 elements");
}

/* dw (+)= scale a^T b, dscale += sum a^T b w. */
static void weight_grad(struct cuda_ops *c, struct tensor dw, float *dscale, struct tensor a,
                        struct tensor b, struct tensor w, const float *scale, bool add)
{
    struct gemm g = { .out = dw, .a = a, .b = b, .ta = true };

    /* A bf16 gradient that is written has that one rounding. */
    if (!dscale && !(c->ops.bf16_grads && (add || dw.dtype == DT_F32))) {
        g.scale = scale;
        if (add)
            g.add = dw;
        cuda_gemm(c, &g);
        return;
    }
    if (!tensor_count(dw) || !can_sum(c, dw, dscale, w))
        return;
    size_t bytes = cuda_round(tensor_count(dw) * sizeof(float));
    char *at = (char *)cuda_workspace(c, bytes + cuda_partial_bytes(c, dw));
    if (!at)
        return;
    struct summed s = { .sum = (const float *)at,
                        .w = w,
                        .scale = scale,
                        .dscale = dscale,
                        .partial = (float *)(at + bytes),
                        .add = add };
    g.out = tensor_of(at, DT_F32, dw.rows, dw.cols);
    cuda_gemm(c, &g);
    cuda_write_product(c, dw, &s);
}

void gpu_linear_bwd_w(struct ops *o, struct tensor dw, real *dscale, struct tensor dy,
                      struct tensor x, struct tensor w, const real *scale, bool add)
{
    weight_grad(cuda_of(o), dw, dscale, dy, x, w, scale, add);
}

void gpu_linear_t_bwd_w(struct ops *o, struct tensor dw, real *dscale, struct tensor dy,
                        struct tensor x, struct tensor w, const real *scale, bool add)
{
    weight_grad(cuda_of(o), dw, dscale, x, dy, w, scale, add);
}

void gpu_linear_bwd_fp8(struct ops *o, struct tensor dx, struct tensor dw, real *dscale,
                        struct tensor dy, struct tensor dy8, struct tensor x, struct tensor w,
                        struct fp8_weight w8, const real *scale, real dy_scale, real x_scale,
                        bool add)
{
    struct cuda_ops *c = cuda_of(o);
    struct tensor own8 = tensor_of(NULL, DT_E4M3, dy8.data ? 0 : dy.rows, dy.cols);
    struct tensor x8_t = tensor_of(NULL, DT_E4M3, x.cols, (dy.rows + 15) / 16 * 16);
    char *at;

    if (!c->fp8) {
        gpu_linear_bwd_w(o, dw, dscale, dy, x, w, scale, add);
        gpu_linear_bwd_x(o, dx, dy, w, scale, false);
        return;
    }
    assert(dx.dtype == DT_BF16 && dy.dtype == DT_BF16 && x.dtype == DT_BF16);
    if (c->failed || !dy.rows || !can_sum(c, dw, dscale, w) ||
        !CUDA_NEED(c, x.cols % 16 == 0 && dy.cols % 16 == 0,
                   "fp8 products have widths of multiples of 16"))
        return;
    struct codes_product p =
        cuda_codes_product(c, tensor_of(NULL, DT_E4M3, dy.rows, dy.cols), x.cols);
    at = (char *)cuda_workspace(c, cuda_round(tensor_bytes(own8)) + cuda_round(tensor_bytes(x8_t)) +
                                       cuda_round(tensor_bytes(p.turned)) +
                                       cuda_round(tensor_bytes(p.sum)) + cuda_partial_bytes(c, dw));
    if (!at)
        return;
    own8.data = cuda_cut(&at, tensor_bytes(own8));
    x8_t.data = cuda_cut(&at, tensor_bytes(x8_t));
    p.turned.data = cuda_cut(&at, tensor_bytes(p.turned));
    p.sum.data = cuda_cut(&at, tensor_bytes(p.sum));
    if (!dy8.data)
        head_quantize(c, dy8 = own8, {}, dy, dy_scale);
    head_quantize(c, {}, x8_t, x, x_scale);
    cuda_multiply_codes(c, &p, dy8, x8_t, dy_scale * x_scale);
    struct summed s = { .sum = (const float *)p.sum.data,
                        .parts = p.parts,
                        .w = w,
                        .scale = scale,
                        .dscale = dscale,
                        .partial = (float *)at,
                        .add = add };
    cuda_write_product(c, dw, &s);
    gemm_by(c, { .out = dx, .a = dy8, .b = w8.codes, .tb = true }, dy_scale, NULL, w8.scale, scale);
}
