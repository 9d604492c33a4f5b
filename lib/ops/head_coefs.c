/* head_coefs.c - a gate and exclusive attention with numbers of each token and head (record-89.md 6, 8). */
#include "ops/cpu.h"

static const real least = (real)1e-8;

/* One head of one token: its value, what of x is along it, and the part taken away. */
struct along {
    const real *v; /* NULL: nothing is taken away */
    real q, square, part; /* x v / square; max(v v, least); tanh(alpha) */
    bool clamped;
};

static const real *value_of(const struct head_coefs *c, int64_t t, int64_t width)
{
    return c->cache ? real_ptr(c->cache->v) + cached_row(c->cache, t) * width
                    : real_ptr(c->v) + t * width;
}

static struct along along_value(const struct head_coefs *c, const real *x, int64_t t, int64_t h,
                                int64_t size, int64_t width)
{
    if (!c->alpha.value)
        return (struct along){ .v = NULL };
    const real *v = value_of(c, t, width) + h * size;
    real vv = real_dot(v, v, size);
    struct along a = { .v = v, .clamped = vv < least };

    a.square = a.clamped ? least : vv;
    a.q = real_dot(x, v, size) / a.square;
    a.part = (real)tanh((double)token_number(&c->alpha, t, h));
    return a;
}

static real left(const struct along *a, const real *x, int64_t i)
{
    return a->v ? x[i] - a->part * a->q * a->v[i] : x[i];
}

void cpu_head_coefs(struct ops *o, struct tensor out, struct tensor x, int heads,
                    const struct head_coefs *c)
{
    int64_t width = x.cols, size = width / heads;

    if (cpu_failed(o))
        return;
    assert(width % heads == 0 && out.cols == width);
    for (int64_t t = 0; t < x.rows; t++)
        for (int64_t h = 0; h < heads; h++) {
            const real *from = real_ptr(x) + t * width + h * size;
            real *to = real_ptr(out) + t * width + h * size;
            real gate = c->gate.value ? token_number(&c->gate, t, h) : 1;
            struct along a = along_value(c, from, t, h, size, width);
            for (int64_t i = 0; i < size; i++)
                to[i] = gate * left(&a, from, i);
        }
}

/* Turns d, the gradient of what is left, into that of x, writes that of v, and returns that of alpha. */
static real left_bwd(real *d, real *dv, const real *x, const struct along *a, int64_t size)
{
    real m = real_dot(d, a->v, size), by = m / a->square, twice = a->clamped ? 0 : 2 * a->q * by;

    for (int64_t i = 0; i < size; i++) {
        dv[i] = -a->part * (a->q * d[i] + by * x[i] - twice * a->v[i]);
        d[i] -= a->part * by * a->v[i];
    }
    return -(1 - a->part * a->part) * a->q * m;
}

void cpu_head_coefs_bwd(struct ops *o, struct tensor dx, struct tensor delta, struct tensor dout,
                        struct tensor x, struct tensor own, int heads, const struct head_coefs *c)
{
    int64_t width = x.cols, size = width / heads;

    if (cpu_failed(o))
        return;
    assert(delta.rows == heads && delta.cols == x.rows && delta.dtype == DT_REAL);
    for (int64_t t = 0; t < x.rows; t++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = t * width + h * size;
            const real *from = real_ptr(x) + at, *dy = real_ptr(dout) + at;
            real *d = real_ptr(dx) + at, dgate = 0;
            real gate = c->gate.value ? token_number(&c->gate, t, h) : 1;
            struct along a = along_value(c, from, t, h, size, width);
            for (int64_t i = 0; i < size; i++) {
                dgate += dy[i] * left(&a, from, i);
                d[i] = gate * dy[i];
            }
            if (c->gate.value)
                c->gate.grad[t * c->gate.stride + h] = dgate;
            if (a.v)
                c->alpha.grad[t * c->alpha.stride + h] =
                    left_bwd(d, real_ptr(c->dv) + at, from, &a, size);
            real_ptr(delta)[h * x.rows + t] = real_dot(d, real_ptr(own) + at, size);
        }
}
