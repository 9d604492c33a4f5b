#include "inspect/tensor_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "recipe/schedule.h"

enum { CHUNK = 8192 };

struct sums {
    double sum, squares;
    uint64_t finite;
};

static void add_chunk(struct tensor_stats *r, struct sums *s, const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        int e = (int)(bits >> 52 & 0x7ff) - 1023;
        if (e == 1024) {
            r->nonfinite++;
            continue;
        }
        s->sum += x[i];
        s->squares += x[i] * x[i];
        s->finite++;
        r->min = x[i] < r->min ? x[i] : r->min;
        r->max = x[i] > r->max ? x[i] : r->max;
        if (x[i] == 0) {
            r->zeros++;
            continue;
        }
        r->underflow += e < -126;
        e -= STAT_EXPONENT_0;
        r->exponents[e < 0 ? 0 : e >= STAT_EXPONENTS ? STAT_EXPONENTS - 1 : e]++;
    }
}

static int measure(struct tensors *s, const struct view *v, struct tensor_stats *r)
{
    struct values x;
    struct sums sums = { 0, 0, 0 };
    double *buf;
    memset(r, 0, sizeof *r);
    r->elements = v->elements;
    if (!(r->known = values_known(v->t))) {
        r->min = r->max = r->mean = r->rms = r->update = NAN;
        return 0;
    }
    r->min = INFINITY;
    r->max = -INFINITY;
    r->update = NAN;
    if (!(buf = malloc(CHUNK * sizeof *buf)))
        return err_memory();
    int rc = values_open(&x, s, v->t, v->first);
    for (uint64_t left = v->elements, n; !rc && left > 0; left -= n) {
        n = left < CHUNK ? left : CHUNK;
        if (!(rc = values_read(&x, buf, n)))
            add_chunk(r, &sums, buf, n);
    }
    values_close(&x);
    free(buf);
    if (!sums.finite)
        r->min = r->max = NAN;
    r->mean = sums.sum / (double)sums.finite;
    r->rms = sqrt(sums.squares / (double)sums.finite);
    return rc;
}

/* --- the next update against the weight --- */

/* How the step after the checkpoint updates a parameter. */
struct update_rule {
    bool known, orthogonal; /* NorMuon: the update is rate times a near-orthogonal matrix */
    double rate; /* learning rate with every multiplier */
    double correction, eps; /* Adam: of the last update, as optimizers.md 2.2 forms them */
    bool eps_inside;
};

static void adam_rule(const struct ckpt *c, const struct recipe *r, const struct param_spec *s,
                      double lr, struct update_rule *u)
{
    char key[96];
    int64_t n = 0;
    snprintf(key, sizeof key, "adam.%s.updates", s->label);
    if (ckpt_state_i64(c, key, &n) || n < 1) {
        err_clear();
        return;
    }
    u->known = true;
    u->rate = r->optimizer.adam.lr * lr * s->lr_mul[0];
    double c1 = r->optimizer.adam.correction ? 1 - pow(s->beta1, (double)n) : 1;
    double c2 = r->optimizer.adam.correction ? sqrt(1 - pow(s->beta2, (double)n)) : 1;
    u->correction = c2 / c1;
    u->eps = r->optimizer.adam.eps_at == EPS_CORRECTED ? r->optimizer.adam.eps * c2
                                                       : r->optimizer.adam.eps;
    u->eps_inside = r->optimizer.adam.eps_at == EPS_INSIDE;
}

/* True if the update has the norm of an orthogonal matrix, times the shape. */
static bool keeps_orthogonal(const struct chain *c)
{
    bool polar = false;
    for (int k = 0; k < c->n; k++) {
        const struct stage_use *u = &c->use[k];
        bool norm = u->id == STAGE_variance && !stage_has(u, "free") && !stage_has(u, "schatten4");
        if (polar && u->id != STAGE_shape && u->id != STAGE_decay && u->id != STAGE_step && !norm)
            return false;
        polar |= u->id == STAGE_polar;
    }
    return polar;
}

static struct update_rule update_rule(const struct ckpt *c, const struct recipe *r,
                                      const struct view *v)
{
    struct update_rule u = { .known = false };
    struct step_schedule at;
    int i = recipe_param(r, v->t->param);
    if (i < 0)
        return u;
    const struct param_spec *s = &r->params[i];
    int64_t step = ckpt_info(c)->step, last = schedule_total(r) - 1;
    schedule_at(r, (int)(step < last ? step : last), &at);
    if (rule_is_adam(&s->rule)) {
        adam_rule(c, r, s, schedule_lr(r, s, &at), &u);
        return u;
    }
    const struct chain *chain = &s->rule.chain[0];
    u.known = u.orthogonal = rule_chains(&s->rule) == 1 && keeps_orthogonal(chain);
    u.rate = schedule_number(r, s, &chain->lr, &at) * schedule_lr(r, s, &at) *
             recipe_shape_factor(s, chain, (int64_t)v->unit) *
             s->lr_mul[v->unit % (uint64_t)s->n_lr];
    return u;
}

/* Another state of v's parameter, of which v's part is read; false when there is none of as many
 * elements. */
static bool find_state(const struct tensors *s, const struct view *v, const char *kind,
                       const struct stored **t)
{
    char name[256];
    snprintf(name, sizeof name, "%s.%s", v->t->param, kind);
    *t = tensors_find(s, name);
    return *t && (*t)->elements == v->t->elements;
}

/* The rms of an orthogonal r x c update, whose Frobenius norm is sqrt(min(r, c)). Zero when the
 * momentum that makes it is zero. */
static int orthogonal_rms(struct tensors *s, const struct view *v, double *rms)
{
    const struct stored *t;
    struct values x;
    double buf[512];
    bool any = false;
    if (v->rank != 2 || !find_state(s, v, "momentum", &t))
        return 0;
    int rc = values_open(&x, s, t, v->first);
    for (uint64_t left = v->elements, n; !rc && !any && left > 0; left -= n) {
        n = left < 512 ? left : 512;
        rc = values_read(&x, buf, n);
        for (size_t i = 0; !rc && i < n; i++)
            any |= buf[i] != 0;
    }
    values_close(&x);
    *rms = any ? sqrt(1 / (double)(v->shape[0] > v->shape[1] ? v->shape[0] : v->shape[1])) : 0;
    return rc;
}

/* The last update's direction: correction * m / (sqrt(v) + eps), or with eps under the root. */
static int adam_rms(struct tensors *s, const struct view *v, const struct update_rule *u,
                    double *rms)
{
    const struct stored *tm, *tv;
    struct values m = { 0 }, q = { 0 };
    double bm[512], bq[512], sum = 0;
    if (!find_state(s, v, "exp_avg", &tm) || !find_state(s, v, "exp_avg_sq", &tv))
        return 0;
    int rc = values_open(&m, s, tm, v->first);
    if (!rc)
        rc = values_open(&q, s, tv, v->first);
    for (uint64_t left = v->elements, n; !rc && left > 0; left -= n) {
        n = left < 512 ? left : 512;
        if ((rc = values_read(&m, bm, n)) || (rc = values_read(&q, bq, n)))
            break;
        for (size_t i = 0; i < n; i++) {
            double below = u->eps_inside ? sqrt(bq[i] + u->eps) : sqrt(bq[i]) + u->eps;
            double d = u->correction * bm[i] / below;
            sum += d * d;
        }
    }
    values_close(&m);
    values_close(&q);
    *rms = sqrt(sum / (double)v->elements);
    return rc;
}

struct job {
    struct tensors *s;
    const struct views *v;
    const struct recipe *recipe;
    struct tensor_stats *rows;
};

static int one(void *arg, int i)
{
    struct job *j = arg;
    const struct view *v = &j->v->v[i];
    const struct ckpt *c = tensors_ckpt(j->s);
    double rms = NAN;
    int rc = measure(j->s, v, &j->rows[i]);
    if (rc || !j->recipe || !c || !j->rows[i].known || strcmp(v->t->kind, "weight"))
        return rc;
    struct update_rule u = update_rule(c, j->recipe, v);
    if (u.known)
        rc = u.orthogonal ? orthogonal_rms(j->s, v, &rms) : adam_rms(j->s, v, &u, &rms);
    j->rows[i].update = rms == 0 ? 0 : u.rate * rms / j->rows[i].rms;
    return rc;
}

int tensor_stats_views(struct tensors *s, const struct views *v, const struct recipe *r,
                       struct tensor_stats *rows)
{
    struct job j = { s, v, r, rows };
    return views_each(v, tensors_threads(s), one, &j);
}

/* --- histogram --- */

static void bar(FILE *f, double share, double most, int width)
{
    static const char *const eighths[] = { "",       "\u258f", "\u258e", "\u258d",
                                           "\u258c", "\u258b", "\u258a", "\u2589" };
    int n = (int)(share / most * width * 8 + 0.5);
    for (int i = 0; i < n / 8; i++)
        fputs("\u2588", f);
    fputs(eighths[n % 8], f);
}

void tensor_stats_histogram(FILE *f, const struct tensor_stats *r, int width)
{
    int lo = 0, hi = STAT_EXPONENTS - 1;
    double most = 0;
    while (lo < hi && !r->exponents[lo])
        lo++;
    while (hi > lo && !r->exponents[hi])
        hi--;
    for (int i = lo; i <= hi; i++)
        most = fmax(most, (double)r->exponents[i]);
    if (r->zeros)
        fprintf(f, "      zero %6.2f%%\n", 100 * (double)r->zeros / (double)r->elements);
    for (int i = lo; i <= hi && most > 0; i++) {
        double share = (double)r->exponents[i] / (double)r->elements;
        fprintf(f, "  2^%-6d %6.2f%% ", i + STAT_EXPONENT_0, 100 * share);
        bar(f, (double)r->exponents[i], most, width);
        fputc('\n', f);
    }
    if (r->nonfinite)
        fprintf(f, "  not finite %6.2f%%\n", 100 * (double)r->nonfinite / (double)r->elements);
}
