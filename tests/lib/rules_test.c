/* rules_test.c - lines of rules: what is read and refused, and chains of stages as they move weights.
 *
 * Chains are drawn from all stages, and from those that tables, vectors and a tied head take. Each run on
 * 1 rank, on 3, fused and stage by stage, stopped on 3 ranks and resumed on 2, and with a skipped step must
 * leave the same bits, whatever types its weights have, and on one rank what a second computation in f64
 * of the line's text says. RULES=N of the environment: how many (40); RULES_SEED.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include "base/rng.h"
#include "check.h"
#include "optim/rules.h"
#include "optim/step.h"
#include "optim/untie.h"
#include "recipe/named.h"

enum { MAX_WORLD = 4, STEPS = 6, LINE = 400 };

static struct rng rng;
static uint64_t drawn;
static int below(int n) { return (int)rng_below(&rng, drawn++, (uint64_t)n); }

/* -- recipes ------------------------------------------------------------------------------------ */

struct variant {
    const char *line; /* of both banks; NULL: `rule` */
    const char *rule;
    int world;
    bool unfused, f32; /* f32: weights and orthogonalisation */
    bool tables; /* the line is of tables, vectors and the tied head, too */
    bool zero; /* the embedding begins without states when the two part */
    enum stored {
        AS_IS,
        BY_ROWS,
        DELAYED
    } stored; /* weights in f16, and in e4m3 with that scale */
    const char *around;
    bool read; /* the weights are left as validation reads them */
    bool scheduled; /* the MLPs' rate has a schedule of its own */
    int skip; /* the step whose gradients have a NaN, or that is left out; 0: none */
    bool omit;
};

static int read(struct recipe **r, const struct variant *v)
{
    char rules[LINE + 16], around[128], attn[128], mlp[128], ve0[128], smear[128], scalars[128],
        head[128], embed[128];
    const char *type = v->f32 ? "f32" : "bf16", *name = v->line ? "x" : v->rule;
    bool adam = strpbrk(name, ">+"), second = strstr(name, "normuon");
    const char *betas = adam ? "0.9 0.95" : second ? "- 0.95" : "- -";
    const char *const set[] = {
        attn,
        mlp,
        "model.vocab=64",
        "model.head_dim=8",
        "model.mlp_width=24",
        "schedule.steps=6",
        "schedule.extension=0",
        "schedule.untie=0.4",
        "precision.gradients=f32",
        v->unfused ? "precision.fuse=no" : "precision.fuse=yes",
        v->f32 ? "optimizer.polar=f32" : "optimizer.polar=bf16",
        v->skip && !v->omit ? "optimizer.max_skips=2" : "optimizer.max_skips=0",
        rules,
        "schedules.s=warmup 3 cooldown 0.9 floor 0.1 power 1.5 end 7",
        around,
        v->around && strchr("af", *v->around) ? "order.tied=-" : "schedule.extension=0",
        v->around ? "optimizer.adam_every=1" : "optimizer.adam_every=2",
        v->stored == DELAYED ? "precision.weight_scale=delayed" : "precision.weight_scale=row",
        "precision.amax_history=2",
        v->zero ? "schedule.untie_state=zero" : "schedule.untie_state=carry",
        ve0,
        smear,
        scalars,
        head,
        embed
    };
    const char *f16 = v->stored ? "f16" : type, *e4m3 = v->stored ? "e4m3" : type;
    int n = (int)(sizeof set / sizeof *set) - (v->tables ? 0 : 5);
    const char *share = getenv("GPT_SHARE");
    char path[512];

    snprintf(around, sizeof around, v->around ? "rules.around=%s" : "rules.y=lr 1 | step",
             v->around);
    snprintf(rules, sizeof rules, "rules.x=%s", v->line ? v->line : "lr 1 | step");
    snprintf(attn, sizeof attn, "parameters.attn=40,d,d %s uniform:1 %s sharded %s 1,1,2 1 no", f16,
             name, betas);
    snprintf(mlp, sizeof mlp, "parameters.mlp=24,f,d %s uniform:0.5 %s sharded %s 1,2 0.5 no%s",
             e4m3, name, betas, v->scheduled ? " s" : "");
    snprintf(ve0, sizeof ve0, "parameters.ve0=v,d %s normal:1 %s sharded %s 2 5 no", e4m3, name,
             betas);
    snprintf(smear, sizeof smear, "parameters.smear_gate=1,12 %s normal:1 %s replicated %s 1 1 no",
             f16, name, betas);
    snprintf(
        scalars, sizeof scalars,
        "parameters.scalars=1,36 f32 values:1.1*11/0.5,1*11/0/0.5/-1.5 %s replicated %s 1 0 no",
        name, betas);
    snprintf(head, sizeof head, "parameters.lm_head=d,v %s normal:0.05 %s sharded %s 1 2 no", type,
             name, betas);
    snprintf(embed, sizeof embed, "parameters.embed=v,d %s transpose:lm_head %s sharded %s 1 2 no",
             type, name, betas);
    snprintf(path, sizeof path, "%s/recipes/tiny.recipe", share ? share : "share");
    return recipe_read(r, path, set, n);
}

/* -- runs ---------------------------------------------------------------------------------------- */

/* All states and weights, the ranks' parts put together. */
struct outcome {
    char *bytes;
    size_t size;
    int64_t count[MAX_PARAMS];
};
struct rank_arg {
    const struct variant *v;
    const struct recipe *recipe;
    struct comm *comm;
    int from, to; /* steps */
    const struct outcome *resumed;
    struct outcome *out;
};

/* Multiples of 2^-12: the mean over 3 ranks is exact. */
static void gradients(int step, int param, int64_t first, int64_t n, float *out)
{
    struct rng g = rng_make(11, (uint64_t)(step * MAX_PARAMS + param));
    rng_normals(&g, (uint64_t)first, n, out);
    for (int64_t k = 0; k < n; k++)
        out[k] = rintf(out[k] * 41) / 4096;
}

static float gradient(int step, int param, int64_t k)
{
    float x;
    gradients(step, param, k, 1, &x);
    return x;
}

static void feed(struct banks *b, const struct variant *v, int step)
{
    for (int i = 0; i < b->n; i++) {
        struct param *p = &b->p[i];
        int64_t spare = strcmp(p->spec->label, "mlp") ? INT64_MAX : 22 * p->spec->rows * p->w.cols;
        float *drawn = malloc((size_t)tensor_count(p->g) * sizeof *drawn);
        gradients(step, i, 0, tensor_count(p->g), drawn);
        for (int64_t k = 0; k < tensor_count(p->g); k++) {
            float *g = (float *)p->g.data + k, x = k < spare ? drawn[k] : 0;
            *g = p->fresh ? x : *g + x;
        }
        free(drawn);
        if (v->skip && v->skip == step && !v->omit && !strcmp(p->spec->label, "attn") &&
            b->rank == 0)
            *(float *)p->g.data = NAN;
        p->fresh = false;
    }
}

/* Copies between this rank's tensors and the whole. */
static void exchange(struct optim *z, char *bytes, size_t *size, bool store)
{
    struct optim_tensor t[OPTIM_MAX_TENSORS];
    int n = optim_tensors(z, t);
    size_t at = 0;

    for (int i = 0; i < n; i++) {
        size_t unit = t[i].count ? tensor_bytes(t[i].t) / (size_t)t[i].count : 0;
        char *whole = bytes + at + unit * (size_t)t[i].first;
        if (unit && store)
            memcpy(whole, t[i].t.data, tensor_bytes(t[i].t));
        else if (unit)
            memcpy(t[i].t.data, whole, tensor_bytes(t[i].t));
        struct state s = *t[i].state;
        at += (size_t)(s.matrices * s.rows * s.cols) * dtype_size(s.dtype);
    }
    *size = at;
}

static void *run_rank(void *arg)
{
    struct rank_arg *a = arg;
    struct initial *init;
    struct ops *o;
    struct banks b;
    struct optim z;
    size_t size;

    CHECK_OK(ops_cpu_new(&o));
    CHECK_OK(banks_init(&b, a->recipe, o, a->comm->rank, a->comm->world));
    CHECK_OK(initial_new(&init, a->recipe, 3, NULL));
    CHECK_OK(banks_fill(&b, init));
    CHECK_OK(optim_init(&z, a->recipe, &b, o, a->comm));
    CHECK_OK(optim_masters(&z, init));
    initial_free(init);
    if (a->resumed) {
        exchange(&z, a->resumed->bytes, &size, false);
        for (int i = 0; i < b.n; i++)
            z.p[i].count = a->resumed->count[i];
        CHECK_OK(optim_loaded(&z));
        optim_gather_weights(&z);
    }
    for (int step = a->from; step < a->to; step++) {
        struct step_schedule at;
        schedule_at(a->recipe, step, &at);
        optim_prepare(&z, &at);
        optim_begin(&z);
        for (int i = 0; i < b.n; i++)
            optim_need(&z, i);
        feed(&b, a->v, step);
        if (a->v->omit && a->v->skip == step) {
            banks_clear(&b, UINT32_MAX); /* all move in each step */
            continue;
        }
        optim_step(&z);
        optim_finish(&z, &at);
        optim_outcome(&z, &at, a->v->skip == step);
    }
    optim_settle(&z);
    if (schedule_reads_apart(a->recipe, a->to)) {
        optim_read_apart(&z, true);
        if (!a->v->read)
            optim_read_apart(&z, false);
    }
    struct step_schedule next;
    schedule_at(a->recipe, a->to, &next);
    if (next.tied) /* as a checkpoint does */
        optim_tie_master(&z);
    exchange(&z, a->out->bytes, &a->out->size, true);
    for (int i = 0; i < b.n; i++)
        a->out->count[i] = z.p[i].count;
    CHECK_OK(o->status(o));
    CHECK_OK(a->comm->status(a->comm));
    optim_release(&z);
    o->free(o);
    return NULL;
}

static struct outcome run(const struct variant *v, int from, int to, const struct outcome *resumed)
{
    struct comm *c[MAX_WORLD];
    struct rank_arg a[MAX_WORLD];
    struct outcome out = { calloc(1, 1 << 20), 0, { 0 } }, other[MAX_WORLD] = { { 0 } };
    pthread_t t[MAX_WORLD];
    struct recipe *r = NULL;

    if (!CHECK_OK(read(&r, v)) || !CHECK_OK(comm_threads_new(c, v->world)))
        exit(check_done());
    for (int i = 0; i < v->world; i++) {
        other[i].bytes = out.bytes; /* parts of one */
        a[i] = (struct rank_arg){ v, r, c[i], from, to, resumed, i ? &other[i] : &out };
        pthread_create(&t[i], NULL, run_rank, &a[i]);
    }
    for (int i = 0; i < v->world; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < v->world; i++)
        c[i]->free(c[i]);
    CHECK(out.size < 1 << 20);
    recipe_free(r);
    return out;
}

static void same(const char *line, const char *what, struct outcome x, const struct outcome *y)
{
    if (!CHECK(x.size == y->size && !memcmp(x.bytes, y->bytes, x.size)) ||
        !CHECK(!memcmp(x.count, y->count, sizeof x.count)))
        printf("    %s: %s\n", what, line);
    free(x.bytes);
}

static void test_line(struct variant v)
{
    const char *line = v.line ? v.line : v.rule;
    struct outcome one = run(&v, 0, STEPS, NULL), half, left;

    CHECK(one.size > 0);
    v.unfused = true;
    same(line, "stage by stage", run(&v, 0, STEPS, NULL), &one);
    v.unfused = false, v.world = 3;
    same(line, "3 ranks", run(&v, 0, STEPS, NULL), &one);
    v.world = 4;
    same(line, "4 ranks", run(&v, 0, STEPS, NULL), &one);
    v.world = 3;
    int stop = v.tables && below(2) ? 2 : 4; /* they part in step 3 */
    half = run(&v, 0, stop, NULL);
    v.world = 2;
    same(line, "resumed", run(&v, stop, STEPS, &half), &one);
    v.world = 1, v.skip = 1, v.omit = true; /* in the untie step moments change hands */
    left = run(&v, 0, STEPS, NULL);
    CHECK(memcmp(left.bytes, one.bytes, one.size));
    v.world = 3, v.omit = false;
    same(line, "skipped", run(&v, 0, STEPS, NULL), &left);
    free(half.bytes), free(left.bytes), free(one.bytes);
}

/* -- the same in f64, from the text -------------------------------------------------------------- */

enum { FORMULA_STATES = 12 };
struct matrix {
    int rows, cols;
    bool turned; /* rows are columns */
    double *w, *x, *g;
    double *state[FORMULA_STATES], age[FORMULA_STATES]; /* in the order of their stages */
    double *mean, *entered, *soft; /* what later stages read */
    double lr_mul;
};

static double norm(const double *x, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++)
        s += x[i] * x[i];
    return sqrt(s);
}

/* x x' of the short side, k of it. */
static double *gram(const double *x, int rows, int cols, int *k)
{
    bool wide = rows <= cols;
    int step = wide ? cols : 1, along = wide ? 1 : cols, length = wide ? cols : rows;
    *k = wide ? rows : cols;
    double *a = calloc((size_t)(*k * *k), sizeof *a);
    for (int i = 0; i < *k; i++)
        for (int j = 0; j < *k; j++)
            for (int e = 0; e < length; e++)
                a[i * *k + j] += x[i * step + e * along] * x[j * step + e * along];
    return a;
}

static double schatten4(const struct matrix *m, const double *x)
{
    int k;
    double *a = gram(x, m->rows, m->cols, &k), n = sqrt(norm(a, k * k));
    free(a);
    return n;
}

/* y <- b x on the short side, b (k,k) symmetric. */
static void times_square(const struct matrix *m, double *y, const double *b, const double *x)
{
    bool wide = m->rows <= m->cols;
    int k = wide ? m->rows : m->cols, step = wide ? m->cols : 1, along = wide ? 1 : m->cols;
    for (int i = 0; i < k; i++)
        for (int e = 0; e < m->rows * m->cols / k; e++) {
            double s = 0;
            for (int j = 0; j < k; j++)
                s += b[i * k + j] * x[j * step + e * along];
            y[i * step + e * along] = s;
        }
}

/* x <- f(x) in the wide orientation, once for each row of coefficients. */
static void polar(struct matrix *m, const double (*c)[3], int rows)
{
    static const double soft[12] = { 0.1091613623,  0.07085664498, 0.05210528973, 0.05457295795,
                                     0.05011334061, 0.03334622198, 0.05022104481, 0.1053727358,
                                     0.1187323776,  0.1185061091,  0.1185059576,  0.1185059576 };
    int n = m->rows * m->cols;
    double *y = malloc((size_t)n * sizeof *y);

    memset(m->soft, 0, (size_t)n * sizeof *y);
    for (int r = 0; r < rows; r++) {
        int k;
        double *a = gram(m->x, m->rows, m->cols, &k);
        double *b = malloc((size_t)(k * k) * sizeof *b);
        for (int i = 0; i < k; i++)
            for (int j = 0; j < k; j++) {
                b[i * k + j] = c[r][1] * a[i * k + j];
                for (int e = 0; e < k; e++)
                    b[i * k + j] += c[r][2] * a[i * k + e] * a[e * k + j];
            }
        times_square(m, y, b, m->x);
        for (int i = 0; i < n; i++) {
            m->soft[i] += r < 12 ? soft[r] * m->x[i] : 0;
            m->x[i] = c[r][0] * m->x[i] + y[i];
        }
        free(a), free(b);
    }
    free(y);
}

static void scale_by(double *x, int n, double by)
{
    for (int i = 0; i < n; i++)
        x[i] *= by;
}

/* Elements of line i of those that `columns` says: x[first + e * step], e < length. */
struct line_of {
    int first, step, length;
};
static struct line_of line_of(const struct matrix *m, bool columns, int i)
{
    return columns ? (struct line_of){ i, m->cols, m->rows }
                   : (struct line_of){ i * m->cols, 1, m->cols };
}
static double line_norm(const double *x, struct line_of l)
{
    double s = 0;
    for (int e = 0; e < l.length; e++)
        s += pow(x[l.first + e * l.step], 2);
    return sqrt(s);
}
static void scale_line(double *x, struct line_of l, double by)
{
    for (int e = 0; e < l.length; e++)
        x[l.first + e * l.step] *= by;
}

/* x to where polar begins. */
static void begin_polar(struct matrix *m, bool four, double margin, double eps)
{
    int n = m->rows * m->cols;
    scale_by(m->x, n, 1 / (four ? schatten4(m, m->x) : margin * norm(m->x, n) + eps));
}

static void balanced_polar(struct matrix *m, const double (*c)[3], int rows, int times, bool four,
                           double margin, double eps)
{
    bool columns = m->rows < m->cols;
    int n = m->rows * m->cols, lines = columns ? m->cols : m->rows;
    double d[lines], *g = malloc((size_t)n * sizeof *g);
    memcpy(g, m->x, (size_t)n * sizeof *g);
    for (int k = 0; k < times; k++) {
        for (int i = 0; i < lines; i++) {
            struct line_of l = line_of(m, columns, i);
            double size = line_norm(m->x, l);
            d[i] = k ? d[i] * pow((double)l.length / lines / fmax(size * size, 1e-14), 0.5)
                     : 1 / fmax(size, 1e-7);
        }
        memcpy(m->x, g, (size_t)n * sizeof *g);
        for (int i = 0; i < lines; i++)
            scale_line(m->x, line_of(m, columns, i), d[i]);
        begin_polar(m, four, margin, eps);
        polar(m, c, rows);
    }
    free(g);
}

static void power(struct matrix *m, double p)
{
    static const double cubic[12][3] = { { 2, -1.5, 0.5 }, { 2, -1.5, 0.5 }, { 2, -1.5, 0.5 },
                                         { 2, -1.5, 0.5 }, { 2, -1.5, 0.5 }, { 2, -1.5, 0.5 },
                                         { 2, -1.5, 0.5 }, { 2, -1.5, 0.5 }, { 2, -1.5, 0.5 },
                                         { 2, -1.5, 0.5 }, { 2, -1.5, 0.5 }, { 2, -1.5, 0.5 } };
    int n = m->rows * m->cols, k;
    double s = norm(m->x, n) + 1e-7, d = p / 2;
    scale_by(m->x, n, 1 / s);
    double *e = gram(m->x, m->rows, m->cols, &k), *t = malloc((size_t)n * 16), *u = t + n;
    for (int i = 0; i < k; i++)
        e[i * (k + 1)] -= 1;
    polar(m, cubic, 12);
    times_square(m, t, e, m->x);
    times_square(m, u, e, t);
    for (int i = 0; i < n; i++)
        m->x[i] = (m->x[i] + d * t[i] + d * (d - 1) / 2 * u[i]) * pow(s, p);
    free(e), free(t);
}

/* The largest singular value of y by five power iterations. */
static double spectral(const struct matrix *m, const double *y)
{
    int rows = m->turned ? m->cols : m->rows, cols = m->turned ? m->rows : m->cols;
    double w[cols], z[rows], length = 0;
    for (int i = 0; i < cols; i++)
        w[i] = 1 / sqrt(cols);
    for (int k = 0; k < 6; k++) {
        for (int r = 0; r < rows; r++) {
            z[r] = 0;
            for (int c = 0; c < cols; c++)
                z[r] += y[m->turned ? c * m->cols + r : r * m->cols + c] * w[c];
        }
        length = norm(z, rows);
        for (int c = 0; c < cols; c++) {
            w[c] = 0;
            for (int r = 0; r < rows; r++)
                w[c] += y[m->turned ? c * m->cols + r : r * m->cols + c] * z[r] / length;
        }
        double size = norm(w, cols);
        for (int c = 0; c < cols; c++)
            w[c] /= size;
    }
    return length;
}

static void contra(struct matrix *m, double c, bool gram4)
{
    int n = m->rows * m->cols;
    double before = gram4 ? schatten4(m, m->x) : norm(m->x, n);
    double size = gram4 ? schatten4(m, m->entered) : spectral(m, m->entered);
    for (int i = 0; i < n; i++)
        m->x[i] -= c * m->entered[i] / fmax(size, 1e-10);
    scale_by(m->x, n, before / fmax(gram4 ? schatten4(m, m->x) : norm(m->x, n), 1e-10));
}

static void soften(struct matrix *m, double part)
{
    int n = m->rows * m->cols;
    double before = schatten4(m, m->x);
    scale_by(m->soft, n, before / schatten4(m, m->soft));
    for (int i = 0; i < n; i++)
        m->x[i] += part * (m->soft[i] - m->x[i]);
    scale_by(m->x, n, before / schatten4(m, m->x));
}

static void variance(struct matrix *m, double beta, double *second, const char *how)
{
    bool column = m->rows < m->cols, free_of = !strcmp(how, "free"),
         four = !strcmp(how, "schatten4");
    int n = m->rows * m->cols, lines = column ? m->cols : m->rows, each = n / lines;
    double before = four ? schatten4(m, m->x) : norm(m->x, n);
    for (int i = 0; i < lines; i++) {
        double size = line_norm(m->x, line_of(m, column, i));
        second[i] += (1 - beta) * (size * size / each - second[i]);
        scale_line(m->x, line_of(m, column, i), 1 / sqrt(fmax(second[i], 1e-10)));
    }
    if (!free_of)
        scale_by(m->x, n, before / fmax(four ? schatten4(m, m->x) : norm(m->x, n), 1e-10));
}

static void keep_most(struct matrix *m, double share, double decay, double *mom)
{
    bool columns = m->rows > m->cols || (m->rows == m->cols && m->turned);
    int lines = columns ? m->cols : m->rows, kept = (int)ceil(share * lines - 1e-6);
    double size[lines];
    for (int i = 0; i < lines; i++) {
        struct line_of l = line_of(m, columns, i);
        size[i] = 0;
        for (int e = 0; e < l.length; e++)
            size[i] += fabs(mom[l.first + e * l.step]);
    }
    for (int i = 0; i < lines; i++) {
        int before = 0;
        for (int j = 0; j < lines; j++)
            before += size[j] > size[i] || (size[j] == size[i] && j < i);
        scale_line(m->x, line_of(m, columns, i), before < kept);
        scale_line(mom, line_of(m, columns, i), before < kept ? decay : 1);
    }
}

/* Rows to one size, or to a floor. */
static void by_rows(struct matrix *m, double least)
{
    int rows = m->turned ? m->cols : m->rows;
    double size = norm(m->x, m->rows * m->cols) / sqrt(rows);
    for (int i = 0; i < rows; i++) {
        struct line_of l = line_of(m, m->turned, i);
        double q = fmax(line_norm(m->x, l), 1e-8), p = fmax(line_norm(m->w, l), 1e-8);
        scale_line(m->x, l, least < 0 ? size / fmax(q, 1e-6) : q < least * p ? least * p / q : 1);
    }
}

/* weightnorm NORM STEPS POWER: states are the direction's momentum, gains, their moments, norms, first norms. */
static void weightnorm(struct matrix *m, char **w, double lr)
{
    static const double five[3] = { 1.875, -1.25, 0.375 };
    double rows[12][3] = { { 8.2051, -22.9019, 16.4607 }, { 4.0664, -2.8612, 0.5184 },
                           { 3.9096, -2.8234, 0.5250 },   { 3.2856, -2.4153, 0.4853 },
                           { 2.2779, -1.6198, 0.3985 },   { 1.8726, -1.2307, 0.3585 },
                           { 1.8564, -1.2132, 0.3568 } };
    int n = m->rows * m->cols, lines = m->turned ? m->cols : m->rows;
    double *mom = m->state[0], *gain = m->state[1], *mean = m->state[2], *second = m->state[3];
    double *size = m->state[4], *begin = m->state[5], t = m->age[0] += 1, slope[lines];

    for (int i = 7; i < 12; i++)
        memcpy(rows[i], five, sizeof five);
    for (int i = 0; i < lines; i++) {
        struct line_of l = line_of(m, m->turned, i);
        if (t == 1)
            gain[i] = size[i] = begin[i] = line_norm(m->w, l);
        slope[i] = 0;
        for (int e = l.first, k = 0; k < l.length; k++, e += l.step)
            slope[i] += m->g[e] * m->w[e] / gain[i];
        for (int e = l.first, k = 0; k < l.length; k++, e += l.step) {
            double dv = gain[i] / size[i] * (m->g[e] - slope[i] * m->w[e] / gain[i]);
            mom[e] = 0.95 * mom[e] + dv;
            m->x[e] = dv + 0.95 * mom[e];
        }
    }
    scale_by(m->x, n, 1 / (norm(m->x, n) + 1e-7));
    polar(m, (const double(*)[3])rows, 12);
    for (int i = 0; i < lines; i++) {
        struct line_of l = line_of(m, m->turned, i);
        for (int e = l.first, k = 0; k < l.length; k++, e += l.step)
            m->w[e] =
                m->w[e] / gain[i] * size[i] - lr * 0.2 * sqrt(fmax(m->rows, m->cols)) * m->x[e];
        mean[i] = 0.9 * mean[i] + 0.1 * slope[i];
        second[i] = 0.95 * second[i] + 0.05 * slope[i] * slope[i];
        gain[i] -= lr * mean[i] / (1 - pow(0.9, t)) / (sqrt(second[i] / (1 - pow(0.95, t))) + 1e-8);
        scale_line(m->w, l, gain[i] / line_norm(m->w, l));
        double way = fmin(fmax(t - 1, 0) / (atof(w[2]) - 1), 1);
        size[i] = begin[i] + (atof(w[1]) - begin[i]) * pow(way, atof(w[3]));
    }
}

/* Numbers and words that the line gives the write. */
struct write_of {
    double lr, decay, decay_lr; /* the decay's rate without decay_lr */
    bool cautious, strict, behind, pin, ball;
};

static void write_by_hand(struct matrix *m, const struct write_of *how)
{
    int n = m->rows * m->cols;
    double old = norm(m->w, n), along = 0, rate = how->lr, *v = malloc((size_t)n * 8);
    for (int i = 0; i < n; i++)
        along += m->x[i] * m->w[i];
    if (how->ball)
        rate *= old / fmax(norm(m->x, n), 1e-10);
    for (int pass = 0; pass < 2; pass++) {
        double keep = 1;
        if (pass && how->ball)
            keep = old / norm(v, n);
        if (pass && how->pin)
            keep = fmax(old - how->lr * along / old, 1e-8) / norm(v, n);
        for (int i = 0; i < n; i++) {
            double product = m->x[i] * m->w[i], left = 1 - how->decay * how->decay_lr;
            if ((how->cautious && product < 0) || (how->strict && product <= 0))
                left = 1;
            v[i] = how->behind ? m->w[i] - rate * m->x[i] : m->w[i] * left - rate * m->x[i];
            if (pass)
                m->w[i] = v[i] * keep * (how->behind ? left : 1);
        }
    }
    free(v);
}

static double flagged(char **w, int k, const char *word)
{
    for (int i = 1; i < k; i++)
        if (!strcmp(w[i], word))
            return true;
    return false;
}
static double named(char **w, int k, const char *word, double preset)
{
    for (int i = 1; i + 1 < k; i++)
        if (!strcmp(w[i], word))
            return atof(w[i + 1]);
    return preset;
}

static void kernel(struct matrix *m, char **w, int k, int *at)
{
    int n = m->rows * m->cols;
    double sum[n], mu = named(w, k, "nesterov", -1);
    memset(sum, 0, sizeof sum);
    for (int t = 1; t < k && strchr(w[t], '*'); t++, ++*at) {
        double b = atof(w[t]), a = atof(strchr(w[t], '*') + 1), *mom = m->state[*at];
        m->age[*at] += (1 - b) * (1 - m->age[*at]);
        for (int i = 0; i < n; i++) {
            mom[i] += (1 - b) * (m->x[i] - mom[i]);
            sum[i] += a * mom[i] / (strstr(w[t], ":c") ? m->age[*at] : 1);
        }
    }
    for (int i = 0; i < n; i++)
        m->x[i] = mu < 0 ? sum[i] : m->x[i] + mu * (sum[i] - m->x[i]);
}

/* X over the root of the mean of g^2, where out is not X: of the kept mean, for its norm. */
static void over_root(struct matrix *m, char **w, int k, int at, double scale, double *out)
{
    double b = atof(w[1]), *v = m->state[at], *age = &m->age[at];
    bool corrected = out != m->x || flagged(w, k, "corrected");
    *age += (1 - b) * (1 - *age);
    for (int i = 0; i < m->rows * m->cols; i++) {
        v[i] += (1 - b) * (pow(scale * m->g[i], 2) - v[i]);
        out[i] /= sqrt(v[i] / (corrected ? *age : 1)) + atof(w[2]);
    }
}

static void momentum(struct matrix *m, char **w, int k, int at)
{
    double mu = atof(w[1]), *mom = m->state[at], *age = &m->age[at];
    bool nesterov = flagged(w, k, "nesterov"), sum = flagged(w, k, "sum");
    *age += (1 - mu) * (1 - *age);
    for (int i = 0; i < m->rows * m->cols; i++) {
        double x = m->x[i];
        mom[i] = sum ? mu * mom[i] + x : mom[i] + (1 - mu) * (x - mom[i]);
        m->x[i] = !nesterov ? mom[i] : sum ? x + mu * mom[i] : x + mu * (mom[i] - x);
        m->x[i] /= flagged(w, k, "corrected") ? *age : 1;
    }
}

static void polar_stage(struct matrix *m, char **w, int k, const struct recipe *r)
{
    static const double cubic[3] = { 2, -1.5, 0.5 };
    double rows[12][3], margin = named(w, k, "margin", 1), eps = named(w, k, "eps", 1e-7);
    int n = m->rows * m->cols, count = *w[1] == '$' ? r->optimizer.polar.n : 12;
    int times = (int)named(w, k, "balance", 0);
    for (int i = 0; i < count; i++)
        memcpy(rows[i], *w[1] == '$' ? r->optimizer.polar.row[i] : cubic, sizeof cubic);
    memcpy(m->entered, m->x, (size_t)n * sizeof *m->x);
    if (times && m->rows != m->cols) {
        balanced_polar(m, (const double(*)[3])rows, count, times, flagged(w, k, "schatten4"),
                       margin, eps);
        return;
    }
    begin_polar(m, flagged(w, k, "schatten4"), margin, eps);
    polar(m, (const double(*)[3])rows, count);
}

static double shape_of(const struct matrix *m, char **w, int k)
{
    bool turned = m->turned && !flagged(w, k, "stored");
    double rows = turned ? m->cols : m->rows, cols = turned ? m->rows : m->cols;
    double match = named(w, k, "match", 0);
    return flagged(w, k, "spectral") ? sqrt(rows / cols)
           : match > 0               ? match * sqrt(fmax(rows, cols))
                                     : sqrt(fmax(1, rows / cols));
}

static void radial(struct matrix *m, double s)
{
    int n = m->rows * m->cols;
    double along = 0, size = norm(m->w, n);
    for (int i = 0; i < n; i++)
        along += m->x[i] * m->w[i] / (size * size);
    for (int i = 0; i < n && along < 0; i++)
        m->x[i] -= (1 - s) * along * m->w[i];
}

/* A stage that changes X alone, and the states from *at on; false: another. */
static bool stage_by_hand(struct matrix *m, char **w, int k, const struct recipe *r, int *at,
                          double *scale)
{
    int n = m->rows * m->cols;
    const char *word = w[0];
    if (!strcmp(word, "momentum")) {
        momentum(m, w, k, (*at)++);
    } else if (!strcmp(word, "kernel")) {
        kernel(m, w, k, at);
    } else if (!strcmp(word, "lion")) {
        double *mom = m->state[(*at)++];
        for (int i = 0; i < n; i++) {
            double x = m->x[i];
            m->x[i] = mom[i] + (1 - atof(w[1])) * (x - mom[i]);
            mom[i] += (1 - atof(w[2])) * (x - mom[i]);
        }
    } else if (!strcmp(word, "second")) {
        over_root(m, w, k, (*at)++, *scale, m->x);
    } else if (!strcmp(word, "graft")) {
        over_root(m, w, k, (*at)++, *scale, m->mean);
        scale_by(m->x, n, norm(m->mean, n) / (norm(m->x, n) + 1e-16));
    } else if (!strcmp(word, "select")) {
        double *mom = m->state[(*at)++];
        for (int i = 0; i < n; i++)
            m->x[i] = mom[i] += m->x[i];
        keep_most(m, atof(w[1]), atof(w[2]), mom);
    } else if (!strcmp(word, "rows")) {
        by_rows(m, -1);
    } else if (!strcmp(word, "polar")) {
        polar_stage(m, w, k, r);
    } else if (!strcmp(word, "power")) {
        memcpy(m->entered, m->x, (size_t)n * sizeof *m->x);
        power(m, atof(w[1]));
    } else if (!strcmp(word, "contra")) {
        contra(m, atof(w[1]), flagged(w, k, "schatten4"));
    } else if (!strcmp(word, "soft")) {
        soften(m, fmin(atof(w[1]), named(w, k, "max", 1)));
    } else if (!strcmp(word, "variance")) {
        variance(m, atof(w[1]), m->state[(*at)++], k > 2 ? w[2] : "");
    } else if (!strcmp(word, "renorm")) {
        scale_by(m->x, n, sqrt(m->rows < m->cols ? m->rows : m->cols) / fmax(norm(m->x, n), 1e-6));
    } else if (!strcmp(word, "radial")) {
        radial(m, atof(w[1]));
    } else if (!strcmp(word, "floor")) {
        double p = atof(w[1]) * fmax(norm(m->w, n), 1e-8), q = fmax(norm(m->x, n), 1e-8);
        if (k > 2)
            by_rows(m, atof(w[1]));
        else
            scale_by(m->x, n, q < p ? p / q : 1);
    } else if (!strcmp(word, "sign")) {
        for (int i = 0; i < n; i++)
            m->x[i] = (m->x[i] > 0) - (m->x[i] < 0);
    } else if (!strcmp(word, "scale")) {
        scale_by(m->x, n, atof(w[1]));
        *scale *= atof(w[1]);
    } else {
        return false;
    }
    if (!strcmp(word, "momentum") || !strcmp(word, "kernel"))
        memcpy(m->mean, m->x, (size_t)n * sizeof *m->x);
    return true;
}

/* One step of the line's text, whose numbers are constants. lr: multiplier of the schedule. */
static void by_hand(struct matrix *m, const char *line, const struct recipe *r, double at_lr,
                    double wd_mul)
{
    char copy[LINE], *save = NULL, *save2 = NULL;
    struct write_of how = { 0 };
    double rate_mul = 1, scale = 1, f;
    bool wrote = false, lr2 = false, multiplied = false;
    int at = 0;

    snprintf(copy, sizeof copy, "%s", line);
    memcpy(m->g, m->x, (size_t)(m->rows * m->cols) * sizeof *m->x);
    for (char *s = strtok_r(copy, "|", &save); s; s = strtok_r(NULL, "|", &save)) {
        char *w[12], word[LINE];
        int k = 0;
        snprintf(word, sizeof word, "%.*s", LINE - 1, s);
        for (char *t = strtok_r(word, " ", &save2); t && k < 12; t = strtok_r(NULL, " ", &save2))
            w[k++] = t;
        if (stage_by_hand(m, w, k, r, &at, &scale))
            continue;
        if (!strcmp(w[0], "lr")) {
            how.lr = atof(w[1]) * at_lr;
        } else if (!strcmp(w[0], "weightnorm")) {
            weightnorm(m, w, how.lr * m->lr_mul);
            return;
        } else if (!strcmp(w[0], "shape")) {
            f = shape_of(m, w, k);
            if (flagged(w, k, "lr"))
                rate_mul *= f;
            else
                scale_by(m->x, m->rows * m->cols, f);
        } else if (!strcmp(w[0], "decay")) {
            how.decay = atof(w[1]) * wd_mul, how.behind = wrote;
            how.cautious = flagged(w, k, "cautious"), how.strict = flagged(w, k, "strict");
            lr2 = flagged(w, k, "lr2"), multiplied = flagged(w, k, "multiplied");
        } else {
            CHECK(!strcmp(w[0], "step") || !strcmp(w[0], "hyperball"));
            how.pin = flagged(w, k, "pin"), how.ball = *w[0] == 'h', wrote = true;
        }
    }
    how.decay *= lr2 ? how.lr : 1;
    how.decay_lr = how.lr * rate_mul * (multiplied || how.ball ? m->lr_mul : 1);
    how.lr *= rate_mul * m->lr_mul;
    write_by_hand(m, &how);
}

/* Returns the multiplier of the schedule that read() gives the MLPs. */
static double own_schedule(int step)
{
    double left = (1 - step / 7.0) / 0.9;
    return fmin(1, (step + 1) / 3.0) * (left < 1 ? 0.1 + 0.9 * pow(left, 1.5) : 1);
}

/* Matrix `which` of a bank, moved by hand beside the run, whose weights are f32. */
static void test_formula(const char *line, const char *label, int which, bool tables)
{
    bool own = which % 2 == 0 && !strcmp(label, "mlp");
    struct variant v = {
        .line = line, .world = 1, .f32 = true, .tables = tables, .scheduled = own
    };
    struct outcome start = run(&v, 0, 0, NULL), end = run(&v, 0, STEPS, NULL);
    struct recipe *r = NULL;
    if (!CHECK_OK(read(&r, &v)))
        return;
    int param = recipe_param(r, label);
    const struct param_spec *s = &r->params[param];
    int n = (int)(s->rows * s->cols);
    struct matrix m = { .rows = (int)s->rows,
                        .cols = (int)s->cols,
                        .turned = recipe_is_transposed(s, which),
                        .lr_mul = (double)s->lr_mul[which % s->n_lr] };
    double *memory = calloc((size_t)(n * (FORMULA_STATES + 6)), sizeof *memory), *next = memory;
    double **place[] = { &m.w, &m.x, &m.g, &m.mean, &m.entered, &m.soft };
    for (int k = 0; k < 6; k++, next += n)
        *place[k] = next;
    for (int k = 0; k < FORMULA_STATES; k++, next += n)
        m.state[k] = next;
    size_t at = 0;
    struct state states[MAX_STATES];
    for (int i = 0; i < param; i++)
        for (int k = 0, have = states_of(r, i, states); k < have; k++)
            at += states[k].role == STATE_GRADIENT ? 0 : (size_t)states_bytes(r, i, &states[k], 1);
    const float *before = (float *)(start.bytes + at) + which * n,
                *after = (float *)(end.bytes + at) + which * n;
    for (int i = 0; i < n; i++)
        m.w[i] = before[i];
    for (int step = 0; step < STEPS; step++) {
        struct step_schedule p;
        schedule_at(r, step, &p);
        for (int i = 0; i < n; i++)
            m.x[i] = gradient(step, param, which * n + i);
        by_hand(&m, line, r, own ? own_schedule(step) : p.lr, (double)s->wd_mul);
    }
    double off = 0, moved = 0;
    for (int i = 0; i < n; i++) {
        off += pow(after[i] - m.w[i], 2);
        moved += pow(m.w[i] - before[i], 2);
    }
    /* Coefficients up to 22 on five rows amplify f32 roundings of small singular values. What a sign of X, or
     * of X W, is taken of may be rounding noise. */
    bool signs = strstr(line, "sign") || strstr(line, "strict") || strstr(line, "cautious");
    if (!CHECK(sqrt(off) <= (signs ? 3e-2 : 1e-3) * sqrt(moved) + 1e-7 * sqrt(n)) ||
        !CHECK(moved > 0))
        printf("    %s[%d]: off by %.2e of %.2e: %s\n", label, which, sqrt(off), sqrt(moved), line);
    free(memory);
    free(start.bytes), free(end.bytes);
    recipe_free(r);
}

/* Checks what validation reads, and the states, of the first MLP's weights, which move by 0.1 times the rate and
 * gradient. */
static void test_around_formula(const char *around, bool apart)
{
    struct variant v = { .line = "lr 0.1 | step", .world = 1, .f32 = true, .around = around };
    struct outcome end;
    struct recipe *r = NULL;
    v.read = true;
    end = run(&v, 0, STEPS, NULL);
    if (!CHECK_OK(read(&r, &v)))
        return;
    struct state states[MAX_STATES];
    int param = recipe_param(r, "mlp");
    size_t at[3] = { 0 }, where = 0;
    for (int i = 0; i <= param; i++)
        for (int k = 0, have = states_of(r, i, states); k < have; k++) {
            if (i == param && k < 3)
                at[k] = where;
            where +=
                states[k].role == STATE_GRADIENT ? 0 : (size_t)states_bytes(r, i, &states[k], 1);
        }
    CHECK(!strcmp(states[1].kind, "around_mean"));
    CHECK_EQ(!strcmp(states[2].kind, "around_before"), apart);
    struct outcome start = run(&v, 0, 0, NULL);
    double off[3] = { 0 }, size = 0;
    for (int64_t i = 0; i < r->params[param].rows * r->params[param].cols; i++) {
        double w = (double)((float *)(start.bytes + at[0]))[i], e = w, z = w, most = 0, sum = 0,
               read = w;
        for (int step = 0; step < STEPS; step++) {
            struct step_schedule p;
            schedule_at(r, step, &p);
            double moved = 0.1 * p.lr * (double)gradient(step, param, i);
            if (apart) { /* e is x */
                most = fmax(most, p.lr);
                double weight = (step + 1) * most * most;
                sum += weight;
                z -= moved;
                e = (1 - weight / sum) * e + weight / sum * z;
                w = 0.8 * e + 0.2 * z;
                read = e;
            } else {
                w -= moved;
                e = step <= 3 ? w : e + (w - e) / 4;
                read = 0.3 * w + 0.7 * e;
            }
        }
        off[0] += pow((double)((float *)(end.bytes + at[0]))[i] - read, 2);
        off[1] += pow((double)((float *)(end.bytes + at[1]))[i] - e, 2);
        off[2] += apart ? pow((double)((float *)(end.bytes + at[2]))[i] - z, 2) : 0;
        size += pow((double)((float *)(start.bytes + at[0]))[i] - read, 2);
    }
    for (int k = 0; k < 3; k++)
        if (!CHECK(sqrt(off[k]) <= 1e-5 * sqrt(size)) || !CHECK(size > 0))
            printf("    %s: state %d off by %.1e\n", around, k, sqrt(off[k] / size));
    free(start.bytes), free(end.bytes);
    recipe_free(r);
}

/* Without states of its own a line's untying is the same with and without them: what is around it goes over. */
static void test_around_untied(void)
{
    struct variant v = { .line = "lr 0.1 | step", .world = 1, .tables = true };
    v.around = "outer 0.5 0.3 every 2";
    struct outcome carried = run(&v, 0, STEPS, NULL);
    v.zero = true;
    same(v.line, "around, untied", run(&v, 0, STEPS, NULL), &carried);
    free(carried.bytes);
}

/* -- drawn lines -------------------------------------------------------------------------------- */

static void draw_decay(char *text, bool constant)
{
    static const char *const masks[] = { " cautious", " plain", " strict", "" };
    snprintf(text, LINE, " | decay %s%s%s%s", constant || below(2) ? "0.1" : "0.1>0@1-4",
             masks[below(4)], below(2) ? " lr2" : "", below(2) ? " multiplied" : "");
}

static const char *one_of(const char *const *text, int n) { return text[below(n)]; }
#define ONE_OF(...) \
    one_of((const char *const[]){ __VA_ARGS__ }, \
           (int)(sizeof(const char *const[]){ __VA_ARGS__ } / sizeof(char *)))

/* Means of the gradient, and what is made of them. */
static size_t draw_memory(char *line, size_t at, bool constant)
{
#define PUT(...) at += (size_t)snprintf(line + at, LINE - at, __VA_ARGS__)
    int what = below(8);
    if (what == 0)
        PUT(" | lion 0.9 %s", constant ? "0.95" : ONE_OF("0.95", "0.8>0.99@0-4"));
    else if (what == 1)
        PUT(" | kernel 0.5*0.6%s 0.9*%s%s%s", ONE_OF("", ":c"),
            constant ? "0.5" : ONE_OF("0.5", "alpha(2,4)"), below(2) ? " nesterov 0.8" : "", "");
    else if (what == 2 && !constant)
        PUT(" | kernel 0.5*0.6 half(0.9,0.99,4)*0.5 nesterov 0.8 from 2 0.7");
    else if (what < 7)
        PUT(" | momentum %s%s%s%s",
            constant
                ? "0.9"
                : ONE_OF("0.9", "$momentum", "0.5>0.95@0-4", "0.5>0.95", "0.5>0.9@0-2>0.6@3-5"),
            ONE_OF("", " nesterov", " nesterov"), ONE_OF("", "", "", " sum"),
            ONE_OF("", "", constant ? "" : " first", " corrected"));
    if (!below(4))
        PUT(" | momentum 0.5%s", below(2) ? " nesterov" : "");
    if (!below(4))
        PUT(" | scale %s", constant || below(2) ? "0.25" : "0.25>4@1-4");
    if (!below(4))
        PUT(" | second 0.9 1e-3%s", ONE_OF("", " corrected"));
    return at;
}

static const char *const factors[] = {
    "soap 0.9 second g",          "soap 0.9 second X late", "soap 0.9 second X late norm gate 2-4",
    "soap 0.9 second g short",    "klsoap 0.9 0.8 1e-8",    "covpower 0.3 0.95",
    "shampoo 0.9 -0.25 eps 1e-6", "sinkhorn 0.95 5",        "psgd 0.5"
};

/* The orthogonal map and what stands behind it; *polar: it stands there. */
static size_t draw_map(char *line, size_t at, bool constant, bool *polar)
{
    bool soft = !below(5);
    if (!below(5))
        PUT(" | %s", ONE_OF("rows", "select 0.3 0.8"));
    if (!constant && !below(3)) /* not in the f64 formula: zoo and turn_test have theirs */
        PUT(" | %s", factors[below((int)(sizeof factors / sizeof *factors))]);
    if (!soft && !below(5)) {
        PUT(" | power %s", constant ? "-0.2" : "0.25>-0.25");
    } else if (soft || below(4)) {
        PUT(" | polar %s%s%s", soft ? "cubic12" : ONE_OF("$coeffs", "cubic12"),
            ONE_OF(" margin 1.02 eps 1e-6", "", " margin 1.1", " schatten4"),
            ONE_OF("", "", "", " balance 2 0.5"));
        *polar = true;
    }
    if (*polar && !below(4))
        PUT(" | contra 0.2 %s", ONE_OF("power5", "schatten4"));
    if (soft)
        PUT(" | soft %s", constant ? "0.4" : "0>1@1-4 max 0.6");
    return at;
}

/* Draws what bounds X by its own size or the weight's. */
static size_t draw_bounds(char *line, size_t at)
{
    if (!below(6))
        PUT(" | renorm");
    if (strstr(line, "momentum") && !below(6))
        PUT(" | graft 0.9 1e-3");
    if (!below(4))
        PUT(" | radial 0.5");
    if (!below(3))
        PUT(" | floor %s", ONE_OF("0.35", "30", "0.35 row", "30 row"));
    return at;
}

/* tables: of stages that need no whole matrices. */
static void draw(char *line, bool constant, bool tables)
{
    char decay[LINE] = "";
    size_t at = 0;
    bool polar = false, shape = !below(5);
    PUT("lr %s", constant || below(2) ? "0.02" : "0.03>0.01@1-5");
    if (!tables && !below(16)) {
        PUT(" | weightnorm 2.5 %d 1.2", 3 + below(9));
        return;
    }
    at = draw_memory(line, at, constant);
    if (!tables)
        at = draw_map(line, at, constant, &polar);
    if (shape)
        PUT(" | shape%s", ONE_OF("", " spectral"));
    if (!tables && below(3))
        PUT(" | variance %s%s", constant || below(2) ? "0.9" : "0.5>0.95@0-4",
            polar && !constant && below(3) ? " round" : ONE_OF("", " free", " schatten4"));
    if (!shape && below(3))
        PUT(" | shape%s%s%s", below(2) ? " lr" : "", below(2) ? " stored" : "",
            below(4) ? "" : " match 0.2");
    if (!tables)
        at = draw_bounds(line, at);
    if (!below(6))
        PUT(" | sign | scale 0.5");
    if (below(3))
        draw_decay(decay, constant);
    const char *write = tables ? "step" : ONE_OF("step", "step", "step pin", "hyperball");
    if (below(2))
        PUT("%s | %s", decay, write);
    else
        PUT(" | %s%s", write, decay);
#undef PUT
}

/* -- reading ------------------------------------------------------------------------------------- */

/* Refused with that message, and a caret under the word. */
static void refused(const char *line, const char *message, const char *word)
{
    struct recipe *r = NULL;
    struct variant v = { .line = line, .world = 1 };
    if (!CHECK(read(&r, &v) == GPT_USAGE)) {
        printf("    taken: %s\n", line);
        recipe_free(r);
        return;
    }
    if (!CHECK(strstr(err_message(), message)))
        printf("    '%s' of %s\n", err_message(), line);
    const char *text = strstr(err_message(), "\n    "), *caret = text ? strrchr(text, '\n') : NULL;
    if (CHECK(caret && caret > text)) {
        size_t column = strlen(caret) - 2; /* "\n" before, "^" behind */
        if (!CHECK(!strncmp(text + 1 + column, word, strlen(word))))
            printf("    caret under '%.12s', not '%s'\n", text + 1 + column, word);
    }
}

static void test_refused(void)
{
    refused("momentum 0.9 | step", "begins with its rate", "momentum");
    refused("lr 0.1 | momentun 0.9 | step", "did you mean 'momentum'", "momentun");
    refused("lr 0.1 | momentum | step", "momentum takes MU, a number", "momentum");
    refused("lr 0.1 | momentum x | step", "expected a number", "x");
    refused("lr 0.1 | momentum 0.9 nestrov | step", "has no word 'nestrov'", "nestrov");
    refused("lr 0.1 | momentum 0.9>0.95@ | step", "A>B@S-E", "0.9>0.95@");
    refused("lr 0.1 | momentum 0.9>0.95@5-2 | step", "A>B@S-E", "0.9>0.95@5-2");
    refused("lr 0.1 | momentum 0.9", "ends with what writes", "");
    refused("lr 0.1 | step | momentum 0.9", "stands behind step", "momentum");
    refused("lr 0.1 | decay 0.1 | momentum 0.9 | step", "right in front of step", "momentum");
    refused("lr 0.1 | decay 0.1 plain cautious | step", "plain, cautious or strict", "decay");
    refused("lr 0.1 | decay 0.1 | step | decay 0.1", "one decay", "decay 0.1");
    refused("lr 0.1 | adam | decay 0.1", "a decay of its own", "decay");
    refused("lr 0.1 | polar record-61 margin 1>2@0-5 | step", "one number for the whole run",
            "1>2");
    refused("lr 0.1 | polar $coeffs | polar $coeffs | step", "one polar", "polar $coeffs | step");
    refused("lr 0.1 | shape | shape lr | step", "one shape", "shape lr");
    refused("lr 0.1 | polar nosuch | step", "no set of coefficients", "nosuch");
    refused("lr 0.1 | variance 0.9 round | step", "round is to the type of polar", "variance");
    refused("lr 0.1 | momentum 0.9 | adam", "adam is all of its chain", "adam");
    refused("lr 0.1 | rows | weightnorm 2", "weightnorm is all of its chain", "weightnorm");
    refused("lr 0.1 | weightnorm 2 | decay 0.1", "weightnorm is all of its chain", "decay");
    refused("lr 0.1 | weightnorm", "weightnorm takes NORM", "weightnorm");
    refused("lr 0.1 | weightnorm ( momentum 0.9 nesterov sum | polar long12", "the inner stages",
            "0.9");
    refused("lr 0.1 | contra 0.2 power5 | step", "reads what entered polar", "contra");
    refused("lr 0.1 | polar cubic12 | contra 0.2 | step", "power5 or schatten4", "contra");
    refused("lr 0.1 | polar $coeffs | soft 0.2 | step", "soft is for 12 rows", "soft");
    refused("lr 0.1 | graft 0.9 1e-8 | step", "reads a momentum", "graft");
    refused("lr 0.1 | polar cubic12 | power 0.1 | step", "one polar or power", "power");
    refused("lr 0.1 | kernel 0.9 | step", "B*A", "0.9");
    refused("lr 0.1 | kernel | step", "kernel takes terms", "kernel");
    refused("lr 0.1 | kernel 0.9*1 from 3 0.9 | step", "the kernel has nesterov", "0.9 |");
    refused("lr 0.1 | kernel 0.9*1 | kernel 0.8*1 | step", "one kernel", "kernel 0.8");
    refused("lr 0.1 | kernel half(0.9,2)*1 | step", "half(B1,B3,STEPS)", "half");
    refused("lr 0.1 | variance 0.9 free schatten4 | step", "round, free or schatten4", "variance");
    refused("lr 0.1 | shape match 0.2 spectral | step", "spectral or match", "shape");
    refused("lr 0.1 | polar cubic12 balance 2 0.1>0.2 | step", "one number for the whole run",
            "0.1>");
    refused("lr 0.1 | soap 0.9 | step", "second g' or 'second X late", "soap");
    refused("lr 0.1 | soap 0.9 second g X | step", "second g' or 'second X late", "soap");
    refused("lr 0.1 | soap 0.9 second g late | step", "second g' or 'second X late", "soap");
    refused("lr 0.1 | soap 0.9 second X late gate 2-4 | step", "gate is of a soap with norm",
            "soap");
    refused("lr 0.1 | soap 0.9 second X late norm gate 4 | step", "two steps A-B", "4");
    refused("lr 0.1 | soap 0.9 second X late norm gate 4-2 | step", "two steps A-B", "4-2");
    refused("lr 0.1 | klsoap 0.9 1e-8 | step", "klsoap takes E, a number", "klsoap");
    refused("lr 0.1 | soap 0.9 second g | soap 0.9 second g | step", "one soap",
            "soap 0.9 second g | s");
    refused("lr 0.1 | momentum 0.9 first corrected | step", "corrected or first", "momentum");
    refused("lr 0.1 | decay 0.1 | floor 1 | step", "right in front of step", "floor");
    refused("lr 0.1 | hyperball | step", "stands behind hyperball", "step");
    refused("nosuch then adam at 3", "'nosuch' is no chain", "nosuch");
    refused("muon then sgd", "expected 'at'", "");
    refused("muon + sgd at 3", "expected 'weight'", "at");
    refused("adam then muon at 3", "the first of a join", "adam");
    refused("muon then sgd at 3 moments", "expected a step", "");
}

/* A drawn line with a word left out, doubled or replaced is read, or refused with a reason and a caret in
 * the line. */
static void test_spoilt(const char *line)
{
    static const char *const words[] = { "step", "decay", "|", "polar", "nosuch", "1e", "x>y@1-2" };
    char copy[LINE], spoilt[2 * LINE] = "", *save = NULL;
    int n = 1, k = 0, how = below(3);
    size_t at = 0;

    for (const char *s = line; *s; s++)
        n += *s == ' ';
    int which = below(n);
    snprintf(copy, sizeof copy, "%s", line);
    for (char *s = strtok_r(copy, " ", &save); s; s = strtok_r(NULL, " ", &save), k++) {
        const char *word = k != which || how == 1 ? s : how == 0 ? "" : words[below(7)];
        at +=
            (size_t)snprintf(spoilt + at, sizeof spoilt - at, "%s%s", at && *word ? " " : "", word);
        if (k == which && how == 1)
            at += (size_t)snprintf(spoilt + at, sizeof spoilt - at, " %s", word);
    }
    struct recipe *r = NULL;
    struct variant v = { .line = spoilt, .world = 1 };
    if (strlen(spoilt) >= LINE)
        return;
    if (!read(&r, &v)) {
        recipe_free(r);
        return;
    }
    const char *text = strstr(err_message(), "\n    "), *caret = text ? strrchr(text, '\n') : NULL;
    if (!CHECK(text && !strncmp(text + 5, spoilt, strlen(spoilt)) && caret > text &&
               caret[strlen(caret) - 1] == '^' && strlen(caret) - 6 <= strlen(spoilt)))
        printf("    '%s' of %s\n", err_message(), spoilt);
}

static void around_refused(const char *line, const char *message)
{
    struct variant v = { .line = "lr 0.1 | step", .world = 1, .around = line };
    struct recipe *r = NULL;
    if (!CHECK(read(&r, &v) == GPT_USAGE))
        recipe_free(r);
    else if (!CHECK(strstr(err_message(), message) != NULL))
        printf("    '%s' of %s\n", err_message(), line);
}

static void test_around_refused(void)
{
    around_refused("lookahead 0.6 0.99", "expected 'from'");
    around_refused("lookahead 0.6 1.99 from 1 to 2", "expected a number");
    around_refused("outer 0.7 0.5 every 0", "expected a whole number");
    around_refused("outer 0.7 0.5 every 2.5", "expected a whole number");
    around_refused("outer 1.5e9 0.5 every 2", "expected a number");
    around_refused("outer 0.7 0.5 every 2 3", "one word too many");
    around_refused("avarage 3", "expected lookahead");
    around_refused("average 3", "expected 'tail', found '3'");
    around_refused("average tail 0 from 3 blend 1", "expected a whole number in [1, 1e+09]");
    around_refused("average tail 2 from 3 blend 1 except mlp nosuch", "expected a parameter");
    around_refused("free 0.9 pover 2", "one word too many");
    around_refused("free 1.5", "expected a number in [0, 1]");
}

/* A weight that begins at 0 has no norm to keep. */
static void test_zero_start(void)
{
    struct variant v = { .line = "lr 0.1 | momentum 0.9 | hyperball", .world = 1 };
    const char *const set[] = { "rules.x=lr 0.1 | momentum 0.9 | hyperball",
                                "parameters.mlp.rule=x", "parameters.mlp.beta2=-" };
    struct recipe *r = NULL;
    if (CHECK_OK(read(&r, &v)))
        recipe_free(r);
    CHECK(recipe_parse(&r, "tiny", recipe_named_find("tiny")->text, set, 3) == GPT_USAGE);
    CHECK(strstr(err_message(), "must not be 0") != NULL);
}

/* Kinds hang on a stage's word, not on what stands beside it. */
static void test_states(void)
{
    static const char *const line[] = {
        "lr 1 | momentum 0.9 | variance 0.9 | step",
        "lr 1 | scale 1 | momentum 0.9 | scale 2 | variance 0.9 | decay 0.1 | step",
        "lr 1 | momentum 0.9 | momentum 0.8 | step",
    };
    static const char *const kinds[][4] = { { "weight", "mantissa", "momentum", "second_momentum" },
                                            { "weight", "mantissa", "momentum", "second_momentum" },
                                            { "weight", "mantissa", "momentum", "momentum.2" } };
    for (int i = 0; i < 3; i++) {
        struct variant v = { .line = line[i], .world = 1 };
        struct state s[MAX_STATES];
        struct recipe *r = NULL;
        if (!CHECK_OK(read(&r, &v)))
            continue;
        if (CHECK_EQ(states_of(r, recipe_param(r, "attn"), s), 4))
            for (int k = 0; k < 4; k++)
                CHECK(!strcmp(s[k].kind, kinds[i][k]));
        recipe_free(r);
    }
}

/* Squares and lines of a matrix's sides, as the bank has it: mlp's are 24 x 16. */
static void test_sides(void)
{
    static const struct {
        const char *kind;
        int rows, cols;
    } want[] = { { "klsoap_left", 24, 24 },   { "klsoap_right", 16, 16 },
                 { "klsoap_left_q", 24, 24 }, { "klsoap_right_q", 16, 16 },
                 { "klsoap_second", 24, 16 }, { "klsoap_left_e", 24, 1 },
                 { "klsoap_right_e", 1, 16 }, { "klsoap_updates", 1, 1 } };
    struct variant v = { .line = "lr 1 | klsoap 0.9 0.9 1e-8 | step", .world = 1, .f32 = true };
    struct state s[MAX_STATES];
    struct recipe *r = NULL;
    if (!CHECK_OK(read(&r, &v)))
        return;
    int param = recipe_param(r, "mlp");
    int64_t bytes = 0, numbers = 0;
    const struct param_spec *p = &r->params[param];
    CHECK_EQ(states_of(r, param, s), 9);
    for (int k = 0; k < 8; k++) {
        CHECK(!strcmp(s[k + 1].kind, want[k].kind));
        CHECK(s[k + 1].rows == want[k].rows && s[k + 1].cols == want[k].cols);
        bytes += states_bytes(r, param, &s[k + 1], 1);
        numbers += want[k].rows * want[k].cols;
    }
    CHECK_EQ(bytes, 4 * p->matrices * numbers);
    recipe_free(r);
}

/* A rule of one's own in the text, which is read again as it was written. */
static void test_text(void)
{
    struct variant v = { .line = "lr 0.5 | momentum 0.85>0.95@0-300>0.85@2700-2900 | step",
                         .world = 1 };
    struct recipe *r = NULL, *again = NULL;
    struct step_schedule at = { .step = 150 };
    if (!CHECK_OK(read(&r, &v)) ||
        !CHECK_OK(recipe_parse(&again, "again", recipe_canonical(r), NULL, 0)))
        return;
    CHECK(!strcmp(r->hash, again->hash));
    const struct param_spec *s = &again->params[recipe_param(again, "mlp")];
    const struct number *n = &rule_stage(&s->rule, STAGE_momentum)->number[0];
    CHECK_NEAR(schedule_number(again, s, n, &at), 0.9, 1e-12);
    at.step = 1000;
    CHECK_NEAR(schedule_number(again, s, n, &at), 0.95, 1e-12);
    at.step = 2800;
    CHECK_NEAR(schedule_number(again, s, n, &at), 0.9, 1e-12);
    at.step = 5000;
    CHECK_NEAR(schedule_number(again, s, n, &at), 0.85, 1e-12);
    recipe_free(r), recipe_free(again);
}

/* Each published line. */
static void test_published(void)
{
    char *text = NULL, *save = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    int n = 0;
    if (!CHECK(f != NULL))
        return;
    recipe_rules_list(f);
    fclose(f);
    for (char *s = strtok_r(text, "\n", &save); s; s = strtok_r(NULL, "\n", &save)) {
        char *line = *s == '#' ? NULL : strstr(s, " = ");
        if (!line)
            continue;
        test_line((struct variant){ .line = line + 3, .world = 1, .scheduled = n % 2 });
        n++;
    }
    CHECK(n >= 20);
    free(text);
}

/* The first matrix of a state in an outcome of f32, as the bank has it. */
static const float *state_in(const struct recipe *r, const struct outcome *out, int param,
                             const char *kind)
{
    size_t at = 0;
    for (int i = 0; i <= param; i++) {
        struct state s[MAX_STATES];
        int n = states_of(r, i, s);
        for (int k = 0; k < n; k++) {
            if (i == param && !strcmp(s[k].kind, kind))
                return (const float *)(out->bytes + at);
            at += s[k].role == STATE_GRADIENT ? 0 : (size_t)states_bytes(r, i, &s[k], 1);
        }
    }
    CHECK(!"a state of that name");
    exit(check_done());
}

/* Restates a step of a soap of one side, in double: v and the weight move by g in the basis, L to g g', and the new
 * basis is the Q-factor of L Q: Q1' L Q is upper triangular, its diagonal positive. */
static void test_short(const char *label, bool right)
{
    struct variant v = { .line = "lr 0.5 | soap 0.9 second g eps 1e-3 short | step",
                         .world = 1,
                         .f32 = true };
    struct outcome a = run(&v, 0, 3, NULL), b = run(&v, 0, 4, NULL);
    const char *name = right ? "soap_right" : "soap_left";
    char basis[32];
    struct recipe *r = NULL;
    struct step_schedule at;
    if (!CHECK_OK(read(&r, &v)))
        return;
    schedule_at(r, 3, &at);
    int i = recipe_param(r, label), rows = (int)r->params[i].rows, cols = (int)r->params[i].cols;
    int n = right ? cols : rows, m = right ? rows : cols;
    snprintf(basis, sizeof basis, "%s_q", name);
    const float *s0 = state_in(r, &a, i, name), *s1 = state_in(r, &b, i, name);
    const float *q0 = state_in(r, &a, i, basis), *q1 = state_in(r, &b, i, basis);
    const float *v0 = state_in(r, &a, i, "soap_second"), *v1 = state_in(r, &b, i, "soap_second");
    const float *w0 = state_in(r, &a, i, "weight"), *w1 = state_in(r, &b, i, "weight");
    double g[24][24], p[24][24], l[24][24] = { { 0 } }, most = 0, size = 0, below = 0;
    /* Line e of the side and line o of the other are element at(e, o). */
#define AT(e, o) (right ? (o)*cols + (e) : (e)*cols + (o))
    for (int e = 0; e < n; e++)
        for (int o = 0; o < m; o++)
            g[e][o] = (double)gradient(3, i, AT(e, o));
    for (int e = 0; e < n; e++)
        for (int o = 0; o < m; o++) {
            p[e][o] = 0;
            for (int k = 0; k < n; k++)
                p[e][o] += (double)q0[k * n + e] * g[k][o];
            double second = (double)v0[AT(e, o)];
            second += 0.1 * (p[e][o] * p[e][o] - second);
            most = fmax(most, fabs(second - (double)v1[AT(e, o)]) / (second + 1e-6));
            p[e][o] /= sqrt(second) + 1e-3;
        }
    CHECK(most <= 1e-4);
    most = 0;
    for (int e = 0; e < n; e++)
        for (int o = 0; o < m; o++) {
            double x = 0;
            for (int k = 0; k < n; k++)
                x += (double)q0[e * n + k] * p[k][o];
            most = fmax(most, fabs((double)w0[AT(e, o)] - 0.5 * at.lr * x - (double)w1[AT(e, o)]));
        }
    CHECK(most <= 1e-5);
    most = 0;
    for (int e = 0; e < n; e++)
        for (int f = 0; f < n; f++) {
            double now = 0;
            for (int k = 0; k < n; k++)
                for (int h = 0; h < n; h++) {
                    l[e][f] +=
                        0.9 * (double)q0[e * n + k] * (double)s0[k * n + h] * (double)q0[f * n + h];
                    now += (double)q1[e * n + k] * (double)s1[k * n + h] * (double)q1[f * n + h];
                }
            for (int o = 0; o < m; o++)
                l[e][f] += 0.1 * g[e][o] * g[f][o];
            size = fmax(size, fabs(l[e][f]));
            most = fmax(most, fabs(now - l[e][f]));
        }
    CHECK(most <= 1e-5 * size && size > 0);
    for (int e = 0; e < n; e++)
        for (int f = 0; f <= e; f++) {
            double x = 0;
            for (int k = 0; k < n; k++)
                for (int h = 0; h < n; h++)
                    x += (double)q1[k * n + e] * l[k][h] * (double)q0[h * n + f];
            if (e == f)
                CHECK(x > 0);
            else
                below = fmax(below, fabs(x));
        }
    CHECK(below <= 1e-5 * size);
#undef AT
    free(a.bytes), free(b.bytes);
    recipe_free(r);
}

int main(void)
{
    static const char *const rules[] = { "normuon", "muon", "sgd", "normuon>adam", "normuon+adam" };
    const char *seed = getenv("RULES_SEED"), *many = getenv("RULES");
    rng = rng_make(seed ? (uint64_t)atoll(seed) : 1, 5);

    test_refused();
    test_around_refused();
    test_zero_start();
    test_states();
    test_sides();
    test_short("mlp", true), test_short("attn", false);
    test_text();
    for (int i = 0; i < 5; i++)
        test_line((struct variant){ .rule = rules[i], .world = 1 });
    test_line((struct variant){
        .line = "lr 0.01 | momentum 0.9 first | step", .world = 1, .tables = true });
    test_line((struct variant){ .line = "muon then sgd at 3", .world = 1 });
    test_line((struct variant){ .line = "sgd then muon at 4 moments 2", .world = 1 });
    test_line((struct variant){ .line = "muon + sgd weight 0>0.5@1-4", .world = 1 });
    test_line(
        (struct variant){ .line = "sgd then sgd at 4 moments 1", .world = 1, .tables = true });
    test_line((struct variant){ .line = "lr 0.1 | step", .world = 1, .tables = true });
    test_line((struct variant){ .line = "lr 0.1 | momentum 0.9 | step",
                                .world = 1,
                                .tables = true,
                                .around = "lookahead 0.6 0.8 from 1 to 5" });
    test_line((struct variant){ .rule = "normuon", .world = 1, .around = "outer 0.7 0.5 every 2" });
    test_line((struct variant){ .line = "lr 0.1 | momentum 0.9 | step",
                                .world = 1,
                                .around = "average tail 3 from 3 blend 0.6 except embed ve0" });
    test_line((struct variant){ .line = "lr 0.1 | second 0.9 1e-3 | decay 0.1 | step",
                                .world = 1,
                                .f32 = true,
                                .around = "free 0.9 power 1" });
    test_line((struct variant){ .rule = "normuon", .world = 1, .around = "free 0.9" });
    test_around_formula("average tail 4 from 3 blend 0.7", false);
    test_around_formula("free 0.8 power 1", true);
    test_around_untied();
    test_published();
    for (int i = 0; i < (many ? atoi(many) : 40); i++) {
        static const char *const labels[] = { "mlp", "attn", "ve0", "smear_gate" };
        char line[LINE];
        bool tables = i % 4 > 1;
        struct variant v = { .line = line,
                             .world = 1,
                             .f32 = i % 3 == 2,
                             .tables = tables,
                             .zero = tables && !below(3),
                             .scheduled = below(2) };
        if (!v.f32)
            v.stored = (enum stored)below(3);
        draw(line, false, tables);
        test_line(v);
        for (int k = 0; k < 20; k++)
            test_spoilt(line);
        draw(line, true, tables);
        test_formula(line, labels[i % 4], tables ? 0 : below(22), tables);
    }
    return check_done();
}
