/* weightnorm.c - a matrix as gains of its rows and directions, which move apart (gpt-rules(5)). */
#include "ops/weightnorm.h"
#include "ops/cpu.h"

struct job {
    struct tensor x;
    const struct weightnorm *s;
    int64_t rows;
    real factor;
    real *w; /* (max(rows, cols)) of each thread */
};

/* A line of the stored matrix that is a row of the weight: element k is at first + k step. */
struct line_of {
    int64_t first, step, length, number; /* number: of its gain among all */
};

static struct line_of line_of(const struct job *j, int64_t matrix, bool turned, int64_t i)
{
    int64_t cols = j->x.cols, base = matrix * j->rows * cols;
    int64_t most = j->rows > cols ? j->rows : cols;
    return turned ? (struct line_of){ base + i, cols, j->rows, matrix * most + i }
                  : (struct line_of){ base + i * cols, 1, cols, matrix * most + i };
}

static real exact(const struct weightnorm *s, int64_t i)
{
    real x = real_get(s->w, i);
    return s->low.data ? f32_from_bits(f32_bits((float)x) | ((const uint16_t *)s->low.data)[i]) : x;
}

static void set_exact(const struct weightnorm *s, int64_t i, real x)
{
    uint32_t bits = f32_bits((float)x);
    if (!s->low.data) {
        real_set(s->w, i, x);
        return;
    }
    ((uint16_t *)s->w.data)[i] = (uint16_t)(bits >> 16);
    ((uint16_t *)s->low.data)[i] = (uint16_t)bits;
}

static void input_line(const struct job *j, struct line_of l, bool fresh, real *w)
{
    const struct weightnorm *s = j->s;
    double squares = 0, slope = 0;

    for (int64_t k = 0; k < l.length; k++) {
        w[k] = exact(s, l.first + k * l.step);
        squares += (double)w[k] * (double)w[k];
    }
    weightnorm_begin(s, l.number, fresh, sqrt(squares));
    real gain = s->gain[l.number], by = gain / s->norm[l.number];
    for (int64_t k = 0; k < l.length; k++)
        slope += (double)(j->factor * real_get(s->g, l.first + k * l.step)) * (double)(w[k] / gain);
    s->slope[l.number] = (real)slope;
    for (int64_t k = 0; k < l.length; k++) {
        int64_t at = l.first + k * l.step;
        real dv = by * (j->factor * real_get(s->g, at) - w[k] / gain * (real)slope);
        s->mom[at] = (real)WEIGHTNORM_MU * s->mom[at] + dv;
        ((real *)j->x.data)[at] = dv + (real)WEIGHTNORM_MU * s->mom[at];
    }
}

static void input_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    bool turned = j->s->turned && j->s->turned[i], fresh = j->s->updates[i] == 0;
    int64_t most = j->rows > j->x.cols ? j->rows : j->x.cols;

    (void)n;
    for (int64_t k = 0; k < (turned ? j->x.cols : j->rows); k++)
        input_line(j, line_of(j, i, turned, k), fresh, j->w + thread * most);
}

static void write_line(const struct job *j, struct line_of l, double t, real lr, double most,
                       real *v)
{
    const struct weightnorm *s = j->s;
    real gain = s->gain[l.number], norm = s->norm[l.number];
    real rate = lr * (real)(WEIGHTNORM_SCALE * sqrt(most));
    double squares = 0;

    for (int64_t k = 0; k < l.length; k++) {
        int64_t at = l.first + k * l.step;
        v[k] = exact(s, at) / gain * norm - rate * ((const real *)j->x.data)[at];
        squares += (double)v[k] * (double)v[k];
    }
    weightnorm_end(s, l.number, t, (double)lr, (double)s->number[0], (double)s->number[1],
                   (double)s->number[2]);
    real size = (real)sqrt(squares),
         by = s->gain[l.number] / (size > (real)1e-12 ? size : (real)1e-12);
    for (int64_t k = 0; k < l.length && lr != 0; k++)
        set_exact(s, l.first + k * l.step, v[k] * by);
}

static void write_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    bool turned = j->s->turned && j->s->turned[i];
    int64_t most = j->rows > j->x.cols ? j->rows : j->x.cols;
    double t = (double)j->s->updates[i] + 1;

    (void)n;
    for (int64_t k = 0; k < (turned ? j->x.cols : j->rows); k++)
        write_line(j, line_of(j, i, turned, k), t, j->s->m->lr * j->s->lr_mul[i], (double)most,
                   j->w + thread * most);
    j->s->updates[i] = (real)t;
}

static void run(struct ops *o, struct tensor x, int n, const struct weightnorm *s,
                void (*work)(void *, int64_t, int64_t, int))
{
    int64_t rows = x.rows / n, most = rows > x.cols ? rows : x.cols;
    struct job job = {
        .x = x, .s = s, .rows = rows, .w = cpu_scratch(o, 0, cpu_threads(o) * most)
    };

    assert(rows * n == x.rows && is_real(x));
    if (cpu_failed(o) || (s->gate && s->gate->skip))
        return;
    job.factor = s->gate ? s->gate->factor : 1;
    cpu_split(o, n, 1, work, &job);
}

void cpu_weightnorm_input(struct ops *o, struct tensor x, int n, const struct weightnorm *s)
{
    run(o, x, n, s, input_matrix);
}

void cpu_weightnorm(struct ops *o, struct tensor x, int n, const struct weightnorm *s)
{
    run(o, x, n, s, write_matrix);
}
