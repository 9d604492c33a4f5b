/* linear_relu2.c - first product of the MLP and its squared ReLU (record-61.md 2.8, 3.1; in fp8:
 * fp8.md 2).
 */
#include "ops/cpu.h"

static real relu(real x) { return x < 0 ? 0 : x; } /* of NaN: NaN */

static void square_some(void *arg, int64_t first, int64_t count, int thread)
{
    real *p = (real *)arg + first;

    (void)thread;
    for (int64_t i = 0; i < count; i++)
        p[i] = relu(p[i]) * relu(p[i]);
}

static void square_relu(struct ops *o, struct tensor post)
{
    cpu_split(o, tensor_count(post), CPU_PIECE, square_some, real_ptr(post));
}

static void write_codes(struct tensor post8, struct tensor post)
{
    const real *p = real_ptr(post);
    uint8_t *codes = post8.data;

    for (int64_t i = 0; i < tensor_count(post); i++)
        codes[i] = e4m3_from_f32((float)(p[i] / FP8_POST_UNIT));
}

void cpu_linear_relu2(struct ops *o, struct tensor post, struct tensor x, struct tensor w)
{
    cpu_linear(o, post, x, w, NULL, NO_TENSOR);
    if (!cpu_failed(o))
        square_relu(o, post);
}

void cpu_linear_relu2_fp8(struct ops *o, struct tensor post, struct tensor post8, struct tensor x,
                          struct tensor w, struct fp8_weight w8)
{
    int64_t n = tensor_count(x);
    const real *from = real_ptr(x), *codes;
    real *q;

    if (DT_REAL != DT_F32) {
        cpu_linear_relu2(o, post, x, w);
        return;
    }
    assert(w8.codes.rows == w.rows && w8.codes.cols == w.cols && x.cols == w.cols);
    q = cpu_scratch(o, 1, n);
    codes = cpu_code_view(o, 0, w8.codes);
    if (cpu_failed(o))
        return;
    real most = cpu_amax(from, n, (real)1e-12), inv = bf16_round((float)(E4M3_MAX / most));
    for (int64_t i = 0; i < n; i++)
        q[i] = e4m3_round(bf16_round((float)(from[i] * inv)));
    real_gemm(o, false, true, x.rows, w.rows, x.cols, *w8.scale * most / 448, q, x.cols, codes,
              w.cols, 0, real_ptr(post), w.rows);
    square_relu(o, post);
    if (has(post8))
        write_codes(post8, post);
}

struct slope {
    real *d; /* may be post */
    const real *dpost, *post;
};

static void slope_some(void *arg, int64_t first, int64_t count, int thread)
{
    const struct slope *s = arg;

    (void)thread;
    for (int64_t i = first; i < first + count; i++)
        s->d[i] = 2 * s->dpost[i] * real_sqrt(s->post[i]);
}

void cpu_linear_relu2_bwd(struct ops *o, struct tensor dpre, struct tensor dout, struct tensor w2,
                          const real *scale, struct tensor post)
{
    int64_t n = tensor_count(post);
    real *dpost = cpu_scratch(o, 1, n); /* slot 0 is cpu_linear's */
    struct slope s = { real_ptr(dpre), dpost, real_ptr(post) };

    cpu_linear(o, tensor_of(dpost, DT_REAL, post.rows, post.cols), dout, w2, scale, NO_TENSOR);
    if (!cpu_failed(o))
        cpu_split(o, n, CPU_PIECE, slope_some, &s);
}

/* Computes dw1 of codes: g's, times unit, as numbers, and x's, which are made in slot 3. */
static void first_gradient(struct ops *o, const struct fp8_grads *to, struct tensor g, real unit)
{
    int64_t n = tensor_count(to->x);
    const real *x = real_ptr(to->x);
    real *q = cpu_scratch(o, 3, n);

    if (cpu_failed(o))
        return;
    for (int64_t i = 0; i < n; i++)
        q[i] = e4m3_round((float)(x[i] * FP8_NORM_UNIT));
    unit /= FP8_NORM_UNIT;
    cpu_linear_bwd_w(o, to->dw1, NULL, g, tensor_of(q, DT_REAL, g.rows, to->x.cols), NO_TENSOR,
                     &unit, to->add);
}

/* Computes dw2 of codes of post, as numbers, and of the output's gradient, d, times unit; post becomes post times
 * that. */
static void second_gradient(struct ops *o, const struct fp8_grads *to, struct tensor post,
                            struct tensor d, real unit, struct tensor w2, const real *scale)
{
    real *p = real_ptr(post);

    for (int64_t i = 0; i < tensor_count(post); i++)
        p[i] *= unit;
    cpu_linear_t_bwd_w(o, to->dw2, to->dscale, d, post, w2, scale, to->add);
}

void cpu_mlp_bwd_fp8(struct ops *o, struct tensor dpre, struct tensor dx, struct tensor dout,
                     struct tensor w1, struct fp8_weight w1_8, struct tensor w2,
                     struct fp8_weight w2_8, const real *scale, struct tensor post,
                     const struct fp8_grads *grads)
{
    int64_t n = tensor_count(dout), m = tensor_count(post), d = dout.cols, f = post.cols;
    const real *from = real_ptr(dout), *p = real_ptr(post), *codes;
    real *q, *g, *post8, *to = real_ptr(dpre);

    if (DT_REAL != DT_F32) {
        if (grads && has(grads->dw2))
            cpu_linear_t_bwd_w(o, grads->dw2, grads->dscale, dout, post, w2, scale, grads->add);
        cpu_linear_relu2_bwd(o, dpre, dout, w2, scale, post);
        cpu_linear_bwd_x(o, dx, dpre, w1, NULL, false);
        if (grads)
            cpu_linear_bwd_w(o, grads->dw1, NULL, dpre, grads->x, w1, NULL, grads->add);
        return;
    }
    q = cpu_scratch(o, 1, n);
    g = cpu_scratch(o, 2, m);
    post8 = grads && has(grads->dw2) ? cpu_scratch(o, 4, m) : NULL;
    codes = cpu_code_view(o, 0, w2_8.codes);
    if (cpu_failed(o))
        return;
    for (int64_t i = 0; post8 && i < m; i++)
        post8[i] = e4m3_round((float)(p[i] / FP8_POST_UNIT));
    real most = cpu_amax(from, n, (real)1e-12), inv = bf16_round((float)(E5M2_MAX / most));
    for (int64_t i = 0; i < n; i++)
        q[i] = e5m2_round(bf16_round((float)(from[i] * inv)));
    real_gemm(o, false, true, dout.rows, f, d, *w2_8.scale * most / 57344, q, d, codes, d, 0, g, f);
    for (int64_t i = 0; i < m; i++) {
        real slope = 2 * (scale ? *scale : 1) * g[i] * real_sqrt(p[i]);
        to[i] = slope;
        g[i] = e5m2_round((float)(slope * (FP8_GRAD_UNIT / most)));
    }
    codes = cpu_code_view(o, 0, w1_8.codes);
    if (cpu_failed(o))
        return;
    real_gemm(o, false, true, dout.rows, d, f, most / FP8_GRAD_UNIT * *w1_8.scale, g, f, codes, f,
              0, real_ptr(dx), d);
    if (post8) { /* q is where cpu_linear_t_bwd_w has its result */
        real *d8 = cpu_scratch(o, 3, n);
        if (cpu_failed(o))
            return;
        memcpy(d8, q, (size_t)n * sizeof *q);
        second_gradient(o, grads, tensor_of(post8, DT_REAL, dout.rows, f),
                        tensor_of(d8, DT_REAL, dout.rows, d), most / 57344 * FP8_POST_UNIT, w2,
                        scale);
    }
    if (grads)
        first_gradient(o, grads, tensor_of(g, DT_REAL, dout.rows, f), most / FP8_GRAD_UNIT);
}
