/* out_gate.c - gate of each head's attention output (record-61.md 2.4, 3.3), and before it what
 * exclusive attention takes away (record-84.md 6). */
#include "ops/cpu.h"

/* One head of one token: its direction u, what of x is along it, and the part taken away. */
struct along {
    real *u; /* (E) */
    real q, part; /* x u; tanh(alpha) */
    real length; /* by which u was divided */
    bool unit; /* else |v| is below the least length */
};

static struct along along_value(real *u, const real *x, const real *v, real alpha, int64_t size)
{
    static const real least = (real)1e-4;
    real length = real_sqrt(real_dot(v, v, size));
    struct along a = { .u = u, .part = (real)tanh((double)alpha), .unit = length > least };

    a.length = a.unit ? length : least;
    for (int64_t i = 0; i < size; i++)
        u[i] = v[i] / a.length;
    a.q = real_dot(x, u, size);
    return a;
}

/* z = x less its part along the value. */
static void take_away(real *z, const real *x, const struct along *a, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        z[i] = x[i] - a->part * a->q * a->u[i];
}

/* Turns d, the gradient of z, into that of x, writes that of v to dv and returns that of alpha. */
static real take_away_bwd(real *d, real *dv, const real *x, const struct along *a, int64_t size)
{
    real m = real_dot(d, a->u, size), twice = a->unit ? 2 * a->q * m : 0;

    for (int64_t i = 0; i < size; i++) {
        dv[i] = -a->part / a->length * (m * x[i] + a->q * d[i] - twice * a->u[i]);
        d[i] -= a->part * m * a->u[i];
    }
    return -(1 - a->part * a->part) * m * a->q;
}

void cpu_out_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor y,
                  struct tensor gate, int heads, const struct xsa *a)
{
    int64_t width = x.cols, size = width / heads;
    const real *w = real_view(o, 0, gate), *alpha = real_view(o, 1, a ? a->alpha : NO_TENSOR);
    real *z = cpu_scratch(o, 2, size), *u = cpu_scratch(o, 3, size);

    if (cpu_failed(o))
        return;
    assert(width % heads == 0 && gate.rows == heads && gate.cols == GATE_WIDTH);
    for (int64_t t = 0; t < x.rows; t++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = t * width + h * size;
            const real *from = real_ptr(x) + at;
            real open = sigmoid(real_dot(w + h * GATE_WIDTH, real_ptr(y) + t * y.cols, GATE_WIDTH));
            if (a) {
                struct along v = along_value(u, from, real_ptr(a->v) + at, alpha[h], size);
                take_away(z, from, &v, size);
                from = z;
            }
            for (int64_t i = 0; i < size; i++)
                real_ptr(out)[at + i] = open * from[i];
        }
}

/* delta of row t and head h: the sum over the head's channels of d and x. */
static void put_delta(struct tensor delta, int64_t t, int64_t h, int64_t heads, const real *d,
                      const real *x, int64_t size)
{
    int64_t index = t * heads + h; /* among the heads of all rows */
    real_ptr(delta)[index % delta.rows * delta.cols + index / delta.rows] = real_dot(d, x, size);
}

void cpu_out_gate_bwd(struct ops *o, struct tensor dx, struct tensor delta, struct tensor dgate,
                      struct tensor dy12, struct tensor dout, struct tensor x, struct tensor y,
                      struct tensor gate, int heads, const struct xsa *a)
{
    int64_t width = x.cols, size = width / heads, n = tensor_count(gate);
    const real *w = real_view(o, 0, gate), *alpha = real_view(o, 4, a ? a->alpha : NO_TENSOR);
    real *dw = cpu_scratch(o, 1, n), *dalpha = cpu_scratch(o, 5, heads);
    real *z = cpu_scratch(o, 2, size), *u = cpu_scratch(o, 3, size);

    if (cpu_failed(o))
        return;
    assert(tensor_count(delta) == x.rows * heads && delta.dtype == DT_REAL);
    for (int64_t i = 0; i < x.rows * heads && !has(gate); i++)
        put_delta(delta, i / heads, i % heads, heads, real_ptr(dout) + i * size,
                  real_ptr(x) + i * size, size);
    if (!has(gate))
        return;
    assert(width % heads == 0 && gate.rows == heads && gate.cols == GATE_WIDTH);
    memset(dw, 0, (size_t)n * sizeof *dw);
    memset(dalpha, 0, (size_t)heads * sizeof *dalpha);
    for (int64_t t = 0; t < x.rows; t++) {
        const real *yt = real_ptr(y) + t * y.cols;
        real *dyt = real_ptr(dy12) + t * GATE_WIDTH;
        memset(dyt, 0, GATE_WIDTH * sizeof *dyt);
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = t * width + h * size;
            const real *wh = w + h * GATE_WIDTH, *dy = real_ptr(dout) + at;
            const real *xh = real_ptr(x) + at, *gated = xh;
            real *d = real_ptr(dx) + at, *dwh = dw + h * GATE_WIDTH;
            real open = sigmoid(real_dot(wh, yt, GATE_WIDTH));
            struct along v = { 0 };
            if (a) {
                v = along_value(u, xh, real_ptr(a->v) + at, alpha[h], size);
                take_away(z, xh, &v, size);
                gated = z;
            }
            real du = real_dot(dy, gated, size) * open * (1 - open);
            for (int j = 0; j < GATE_WIDTH; j++) {
                dwh[j] += du * yt[j];
                dyt[j] += du * wh[j];
            }
            for (int64_t i = 0; i < size; i++)
                d[i] = open * dy[i];
            if (a)
                dalpha[h] += take_away_bwd(d, real_ptr(a->dv) + at, xh, &v, size);
            put_delta(delta, t, h, heads, d, xh, size);
        }
    }
    real_write(dgate, 0, dw, n, true);
    if (a)
        real_write(a->dalpha, 0, dalpha, heads, true);
}
