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

struct gates {
    struct tensor out, x, y;
    const struct xsa *a; /* or NULL */
    int64_t heads, size; /* H, E */
    const real *w, *alpha;
    real *z; /* (2,E) of each thread */
    /* backward */
    struct tensor dx, delta, dy12, dout;
    real *du, *dalpha; /* (T,H): gradients of gates' inputs, and what rows add to that of alpha */
};

/* Returns the input of the gate of head k % H in row k / H, with *open the gate: the head of x, or z, what take_away leaves
 * of it by *v. z: (2,E). */
static const real *before_gate(const struct gates *g, int64_t k, real *z, real *open,
                               struct along *v)
{
    int64_t t = k / g->heads, h = k % g->heads, at = k * g->size;
    const real *x = real_ptr(g->x) + at;

    *open = sigmoid(real_dot(g->w + h * GATE_WIDTH, real_ptr(g->y) + t * g->y.cols, GATE_WIDTH));
    if (!g->a)
        return x;
    *v = along_value(z + g->size, x, real_ptr(g->a->v) + at, g->alpha[h], g->size);
    take_away(z, x, v, g->size);
    return z;
}

static void gate_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct gates *g = arg;
    int64_t heads = g->heads, size = g->size;
    struct along v;
    real open;

    for (int64_t k = first * heads; k < (first + count) * heads; k++) {
        const real *from = before_gate(g, k, g->z + thread * 2 * size, &open, &v);
        for (int64_t i = 0; i < size; i++)
            real_ptr(g->out)[k * size + i] = open * from[i];
    }
}

void cpu_out_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor y,
                  struct tensor gate, int heads, const struct xsa *a)
{
    struct gates g = { .out = out, .x = x, .y = y, .a = a, .heads = heads, .size = x.cols / heads };

    g.w = real_view(o, 0, gate);
    g.alpha = real_view(o, 1, a ? a->alpha : NO_TENSOR);
    g.z = cpu_scratch(o, 2, cpu_threads(o) * 2 * g.size);
    if (cpu_failed(o))
        return;
    assert(x.cols % heads == 0 && gate.rows == heads && gate.cols == GATE_WIDTH);
    cpu_split(o, x.rows, CPU_ROWS, gate_rows, &g);
}

/* delta of row t and head h: the sum over the head's channels of d and x. */
static void put_delta(struct tensor delta, int64_t t, int64_t h, int64_t heads, const real *d,
                      const real *x, int64_t size)
{
    int64_t index = t * heads + h; /* among the heads of all rows */
    real_ptr(delta)[index % delta.rows * delta.cols + index / delta.rows] = real_dot(d, x, size);
}

static void gate_bwd_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct gates *g = arg;
    int64_t heads = g->heads, size = g->size;
    struct along v;
    real open;

    for (int64_t k = first * heads; k < (first + count) * heads; k++) {
        int64_t t = k / heads, h = k % heads, at = k * size;
        const real *gated = before_gate(g, k, g->z + thread * 2 * size, &open, &v);
        const real *wh = g->w + h * GATE_WIDTH, *dy = real_ptr(g->dout) + at;
        const real *xh = real_ptr(g->x) + at;
        real *d = real_ptr(g->dx) + at, *dyt = real_ptr(g->dy12) + t * GATE_WIDTH;
        real du = real_dot(dy, gated, size) * open * (1 - open);
        g->du[k] = du;
        if (h == 0)
            memset(dyt, 0, GATE_WIDTH * sizeof *dyt);
        for (int j = 0; j < GATE_WIDTH; j++)
            dyt[j] += du * wh[j];
        for (int64_t i = 0; i < size; i++)
            d[i] = open * dy[i];
        if (g->a)
            g->dalpha[k] = take_away_bwd(d, real_ptr(g->a->dv) + at, xh, &v, size);
        put_delta(g->delta, t, h, heads, d, xh, size);
    }
}

static void delta_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct gates *g = arg;

    (void)thread;
    for (int64_t k = first * g->heads; k < (first + count) * g->heads; k++)
        put_delta(g->delta, k / g->heads, k % g->heads, g->heads, real_ptr(g->dout) + k * g->size,
                  real_ptr(g->x) + k * g->size, g->size);
}

void cpu_out_gate_bwd(struct ops *o, struct tensor dx, struct tensor delta, struct tensor dgate,
                      struct tensor dy12, struct tensor dout, struct tensor x, struct tensor y,
                      struct tensor gate, int heads, const struct xsa *a)
{
    struct gates g = { .x = x,
                       .y = y,
                       .a = a,
                       .heads = heads,
                       .size = x.cols / heads,
                       .dx = dx,
                       .delta = delta,
                       .dy12 = dy12,
                       .dout = dout };
    int64_t n = tensor_count(gate);

    g.w = real_view(o, 0, gate);
    g.alpha = real_view(o, 4, a ? a->alpha : NO_TENSOR);
    real *dw = cpu_scratch(o, 1, n), *dalpha = cpu_scratch(o, 5, heads);
    g.z = cpu_scratch(o, 2, cpu_threads(o) * 2 * g.size);
    g.du = cpu_scratch(o, 3, x.rows * heads);
    g.dalpha = cpu_scratch(o, 6, a ? x.rows * heads : 0);
    if (cpu_failed(o))
        return;
    assert(tensor_count(delta) == x.rows * heads && delta.dtype == DT_REAL);
    cpu_split(o, x.rows, CPU_ROWS, has(gate) ? gate_bwd_rows : delta_rows, &g);
    if (!has(gate))
        return;
    assert(x.cols % heads == 0 && gate.rows == heads && gate.cols == GATE_WIDTH);
    memset(dw, 0, (size_t)n * sizeof *dw);
    memset(dalpha, 0, (size_t)heads * sizeof *dalpha);
    for (int64_t k = 0; k < x.rows * heads; k++) {
        const real *yt = real_ptr(y) + k / heads * y.cols;
        real *dwh = dw + k % heads * GATE_WIDTH;
        for (int j = 0; j < GATE_WIDTH; j++)
            dwh[j] += g.du[k] * yt[j];
        if (a)
            dalpha[k % heads] += g.dalpha[k];
    }
    real_write(dgate, 0, dw, n, true);
    if (a)
        real_write(a->dalpha, 0, dalpha, heads, true);
}
