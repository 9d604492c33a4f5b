/* linear.c - products with a weight matrix stored (out, in), and with one stored (in, out), also of
 * codes (fp8.md 3). */
#include "ops/cpu.h"

static void copy_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct tensor *t = arg, to = tensor_rows(t[0], first, count);

    (void)thread;
    memcpy(to.data, tensor_rows(t[1], first, count).data, tensor_bytes(to));
}

/* The residual is in y before the product is added to it. Returns the beta of that sum. */
static real start_from(struct ops *o, struct tensor y, struct tensor residual)
{
    if (has(residual) && residual.data != y.data)
        cpu_split(o, y.rows, CPU_ROWS, copy_rows, (struct tensor[]){ y, residual });
    return has(residual);
}

/* w is stored (O,I), or (I,O) when in_out. */
static void product(struct ops *o, struct tensor y, struct tensor x, struct tensor w, bool in_out,
                    const real *scale, struct tensor residual)
{
    const real *wr = real_view(o, 0, w);

    if (cpu_failed(o))
        return;
    assert(x.rows == y.rows && x.cols == (in_out ? w.rows : w.cols));
    assert(y.cols == (in_out ? w.cols : w.rows));
    real_gemm(o, false, !in_out, y.rows, y.cols, x.cols, scale ? *scale : 1, real_ptr(x), x.cols,
              wr, w.cols, start_from(o, y, residual), real_ptr(y), y.cols);
}

void cpu_linear(struct ops *o, struct tensor y, struct tensor x, struct tensor w, const real *scale,
                struct tensor residual)
{
    product(o, y, x, w, false, scale, residual);
}

void cpu_linear_t(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                  const real *scale, struct tensor residual)
{
    product(o, y, x, w, true, scale, residual);
}

void cpu_linear_t_fp8(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                      struct tensor x8, const real *unit, struct fp8_weight w8, const real *scale,
                      struct tensor residual)
{
    const real *xq, *wq;

    if (DT_REAL != DT_F32) {
        cpu_linear_t(o, y, x, w, scale, residual);
        return;
    }
    assert(w8.codes.rows == y.cols && w8.codes.cols == x8.cols && x8.rows == y.rows);
    xq = cpu_code_view(o, 0, x8);
    wq = cpu_code_view(o, 1, w8.codes);
    if (cpu_failed(o))
        return;
    real_gemm(o, false, true, y.rows, y.cols, x8.cols,
              (unit ? *unit : FP8_POST_UNIT) * *w8.scale * (scale ? *scale : 1), xq, x8.cols, wq,
              x8.cols, start_from(o, y, residual), real_ptr(y), y.cols);
}

/* Returns x's codes for this scale as numbers, in that scratch slot. */
static const real *coded(struct ops *o, int slot, struct tensor x, real scale)
{
    const real *from = real_ptr(x);
    int64_t n = tensor_count(x);
    real *q = cpu_scratch(o, slot, n);

    for (int64_t i = 0; i < n && !cpu_failed(o); i++)
        q[i] = e4m3_round((float)(from[i] / scale));
    return q;
}

void cpu_linear_fp8(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                    struct fp8_weight w8, const real *scale, struct tensor residual)
{
    const real *xq, *wq;

    if (DT_REAL != DT_F32) {
        cpu_linear(o, y, x, w, scale, residual);
        return;
    }
    assert(w8.codes.rows == y.cols && w8.codes.cols == x.cols && x.rows == y.rows);
    xq = coded(o, 0, x, 1);
    wq = cpu_code_view(o, 1, w8.codes);
    if (!cpu_failed(o))
        real_gemm(o, false, true, y.rows, y.cols, x.cols, *w8.scale * (scale ? *scale : 1), xq,
                  x.cols, wq, x.cols, start_from(o, y, residual), real_ptr(y), y.cols);
}

void cpu_linear_codes(struct ops *o, struct tensor y, const struct fp8_operands *in,
                      const real *scale)
{
    const real *xq = cpu_code_view(o, 0, in->x8), *wq = cpu_code_view(o, 1, in->w.codes);

    if (cpu_failed(o))
        return;
    assert(in->x8.rows == y.rows && in->w.codes.rows == y.cols && in->w.codes.cols == in->x8.cols);
    real_gemm(o, false, true, y.rows, y.cols, in->x8.cols,
              in->x_scale * *in->w.scale * (scale ? *scale : 1), xq, in->x8.cols, wq, in->x8.cols,
              0, real_ptr(y), y.cols);
}

void cpu_linear_bwd_x(struct ops *o, struct tensor dx, struct tensor dy, struct tensor w,
                      const real *scale, bool add)
{
    product(o, dx, dy, w, true, scale, add ? dx : NO_TENSOR);
}

struct finish {
    struct tensor dw;
    real *g;
    const real *w; /* with dot alone */
    real scale;
    bool round, add;
    real *dot; /* of each row of g and w, or NULL */
};

static void finish_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct finish *f = arg;
    int64_t cols = f->dw.cols, at = first * cols, n = count * cols;

    (void)thread;
    for (int64_t i = first; f->dot && i < first + count; i++)
        f->dot[i] = real_dot(f->g + i * cols, f->w + i * cols, cols);
    for (int64_t i = at; f->scale != 1 && i < at + n; i++)
        f->g[i] *= f->scale;
    if (f->round)
        real_round(f->g + at, n);
    real_write(f->dw, at, f->g + at, n, f->add);
}

/* With g = unit a^T b: dw (+)= scale g, dscale += sum g w. */
static void weight_grad(struct ops *o, struct tensor dw, real *dscale, real unit, struct tensor a,
                        struct tensor b, struct tensor w, const real *scale, bool add)
{
    int64_t n = tensor_count(dw);
    const real *wr = dscale ? real_view(o, 0, w) : NULL;
    real *g = cpu_scratch(o, 1, n + dw.rows);

    if (cpu_failed(o))
        return;
    assert(a.cols == dw.rows && b.cols == dw.cols && a.rows == b.rows);
    real_gemm(o, true, false, dw.rows, dw.cols, a.rows, unit, real_ptr(a), a.cols, real_ptr(b),
              b.cols, 0, g, dw.cols);
    struct finish f = { dw, g, wr, scale ? *scale : 1, o->bf16_grads, add, dscale ? g + n : NULL };
    cpu_split(o, dw.rows, (CPU_PIECE + dw.cols - 1) / dw.cols, finish_rows, &f);
    for (int64_t i = 0; dscale && i < dw.rows; i++)
        *dscale += f.dot[i];
}

void cpu_linear_bwd_w(struct ops *o, struct tensor dw, real *dscale, struct tensor dy,
                      struct tensor x, struct tensor w, const real *scale, bool add)
{
    weight_grad(o, dw, dscale, 1, dy, x, w, scale, add);
}

void cpu_linear_bwd_fp8(struct ops *o, struct tensor dx, struct tensor dw, real *dscale,
                        struct tensor dy, struct tensor dy8, struct tensor x, struct tensor w,
                        struct fp8_weight w8, const real *scale, real dy_scale, real x_scale,
                        bool add)
{
    const real *g, *q, *codes;

    if (DT_REAL != DT_F32) {
        cpu_linear_bwd_w(o, dw, dscale, dy, x, w, scale, add);
        cpu_linear_bwd_x(o, dx, dy, w, scale, false);
        return;
    }
    assert(w8.codes.rows == x.cols && w8.codes.cols == dy.cols && x.rows == dy.rows);
    g = has(dy8) ? cpu_code_view(o, 2, dy8) : coded(o, 2, dy, dy_scale);
    q = coded(o, 3, x, x_scale); /* slots 0 and 1 are weight_grad's */
    if (cpu_failed(o))
        return;
    weight_grad(o, dw, dscale, dy_scale * x_scale, tensor_of((real *)g, DT_REAL, dy.rows, dy.cols),
                tensor_of((real *)q, DT_REAL, x.rows, x.cols), w, scale, add);
    codes = cpu_code_view(o, 0, w8.codes);
    if (!cpu_failed(o))
        real_gemm(o, false, true, dx.rows, dx.cols, dy.cols,
                  dy_scale * *w8.scale * (scale ? *scale : 1), g, dy.cols, codes, dy.cols, 0,
                  real_ptr(dx), dx.cols);
}

void cpu_linear_t_bwd_w(struct ops *o, struct tensor dw, real *dscale, struct tensor dy,
                        struct tensor x, struct tensor w, const real *scale, bool add)
{
    weight_grad(o, dw, dscale, 1, x, dy, w, scale, add);
}
