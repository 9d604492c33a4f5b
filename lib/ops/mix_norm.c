/* mix_norm.c - weighted sum of streams and its norm (record-61.md 2.3, 3.3). */
#include "ops/norm.h"

static real coefficient(const struct mix_term *m, int64_t t)
{
    real c = m->coef ? m->coef[t * m->stride] : 1;
    return m->minus ? -c : m->plus_one ? 1 + c : c;
}

/* Returns how many channels of out a term has. */
static int64_t channels(const struct mix_term *m, int64_t width) { return m->n ? m->n : width; }

/* Returns where row t of its x has the first of them. */
static int64_t place(const struct mix_term *m, int64_t width, int64_t t)
{
    return t * m->x.cols + (m->x.cols == width ? m->first : 0);
}

static void check(int64_t width, int n, const struct mix_term *in)
{
    assert(n >= 1 && n <= MIX_MAX);
    for (int k = 0; k < n; k++) {
        assert(in[k].x.cols == width || in[k].x.cols == in[k].n);
        assert(in[k].first + channels(&in[k], width) <= width);
    }
    (void)width, (void)n, (void)in;
}

struct mix {
    struct tensor out, y;
    int n;
    const struct mix_term *in;
    real *sum; /* (D) of each thread */
};

static void mix_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct mix *m = arg;
    int64_t width = m->out.cols;
    real *sum = m->sum + thread * width;

    for (int64_t t = first; t < first + count; t++) {
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int k = 0; k < m->n; k++) {
            const struct mix_term *in = &m->in[k];
            const real *x = real_ptr(in->x) + place(in, width, t);
            real c = coefficient(in, t), *to = sum + in->first;
            for (int64_t i = 0, n = channels(in, width); i < n; i++)
                to[i] += c * x[i];
        }
        memcpy(real_ptr(m->out) + t * width, sum, (size_t)width * sizeof *sum);
        if (has(m->y))
            norm_row(real_ptr(m->y) + t * width, sum, width);
    }
}

void cpu_mix_norm(struct ops *o, struct tensor out, struct tensor y, int n,
                  const struct mix_term *in)
{
    struct mix m = { out, y, n, in, cpu_scratch(o, 0, cpu_threads(o) * out.cols) };

    if (cpu_failed(o))
        return;
    check(out.cols, n, in);
    cpu_split(o, out.rows, CPU_ROWS, mix_rows, &m);
}

void cpu_mix_norm_codes(struct ops *o, struct tensor out, struct tensor y, struct tensor y8,
                        real scale, int n, const struct mix_term *in)
{
    cpu_mix_norm(o, out, y, n, in);
    cpu_input_codes(o, y8, y, scale);
}

struct unmix {
    const struct mix_grad *d;
    struct tensor dout, dy, dy12, out;
    int n;
    const struct mix_term *in;
    real *g; /* (D) of each thread */
    real *dot; /* (T,n): of one coefficient for all rows, what a row adds to its gradient */
};

static void dx_row(real *restrict dx, const real *restrict g, real c, bool add, int64_t n)
{
    if (add)
        for (int64_t i = 0; i < n; i++)
            dx[i] += c * g[i];
    else
        for (int64_t i = 0; i < n; i++)
            dx[i] = c * g[i];
}

static void unmix_rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct unmix *m = arg;
    int64_t width = m->out.cols;
    real *g = m->g + thread * width;

    for (int64_t t = first; t < first + count; t++) {
        norm_gradient(g, m->dout, m->dy, m->dy12, m->out, t);
        for (int k = 0; k < m->n; k++) {
            const struct mix_term *in = &m->in[k];
            const real *x = real_ptr(in->x) + place(in, width, t);
            if (!m->d[k].dcoef)
                continue;
            real dot = real_dot(g + in->first, x, channels(in, width));
            if (in->stride)
                m->d[k].dcoef[t * in->stride] = in->minus ? -dot : dot;
            else
                m->dot[t * m->n + k] = dot;
        }
        for (int k = 0; k < m->n; k++) {
            const struct mix_term *in = &m->in[k];
            if (has(m->d[k].dx))
                dx_row(real_ptr(m->d[k].dx) + place(in, width, t), g + in->first,
                       coefficient(in, t), m->d[k].add, channels(in, width));
        }
    }
}

void cpu_mix_norm_bwd(struct ops *o, const struct mix_grad *d, struct tensor dout, struct tensor dy,
                      struct tensor dy12, struct tensor out, int n, const struct mix_term *in)
{
    struct unmix m = { .d = d, .dout = dout, .dy = dy, .dy12 = dy12, .out = out, .n = n, .in = in };

    m.g = cpu_scratch(o, 0, cpu_threads(o) * out.cols);
    m.dot = cpu_scratch(o, 1, out.rows * n);
    if (cpu_failed(o))
        return;
    check(out.cols, n, in);
    cpu_split(o, out.rows, CPU_ROWS, unmix_rows, &m);
    for (int k = 0; k < n; k++) {
        real sum = 0;
        if (!d[k].dcoef || in[k].stride)
            continue;
        for (int64_t t = 0; t < out.rows; t++)
            sum += m.dot[t * n + k];
        *d[k].dcoef += in[k].minus ? -sum : sum;
    }
}
