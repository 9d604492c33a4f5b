#include "coeffs/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "coeffs/minimax.h"
#include "coeffs/objective.h"

/* Points that a search works on; the verdict is on all. f is smooth: of tens of thousands of
 * singular values, groups of neighbours act as one. */
enum { POINTS_MAX = 2048, SCOUT_POINTS = 384 };
/* Starts that are tried at all, for a few rounds, and to the end. */
enum { STARTS_MAX = 80, SCOUTS = 48, FINALISTS = 6, HOPS = 60, GUARD_ROUNDS = 5 };
static const double guard_weight = 300, guard_margin = 0.95;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* All singular values from o->lower on, ascending; caller frees. */
static int gather(const struct trials *t, double lower, double **x, int *n)
{
    size_t room = 1;
    for (int i = 0; i < t->n; i++)
        room += (size_t)t->v[i].n;
    *n = 0;
    if (!(*x = malloc(room * sizeof **x)))
        return err_memory();
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < t->v[i].n; k++)
            if (t->v[i].x[k] >= lower)
                (*x)[(*n)++] = t->v[i].x[k];
    if (*n == 0) {
        free(*x);
        return err_set(GPT_INPUT, "no singular value of %g or more to fit to", lower);
    }
    qsort(*x, (size_t)*n, sizeof **x, ascending);
    return 0;
}

/* Groups of neighbours of x as points: the ends alone, else the mean of each group. */
static int set_points(struct objective *o, const double *x, int n, int max)
{
    int groups = n < max ? n : max;
    o->x = malloc(2 * (size_t)groups * sizeof *o->x);
    if (!o->x)
        return err_memory();
    o->w = o->x + groups;
    o->n = groups;
    for (int g = 0, from = 0; g < groups; g++) {
        int to = g + 1 == groups ? n
                 : g == 0        ? 1
                 : groups == 2   ? 1
                                 : 1 + (int)((long)(n - 2) * g / (groups - 2));
        if (g + 2 == groups)
            to = n - 1;
        double sum = 0;
        for (int i = from; i < to; i++)
            sum += x[i];
        o->x[g] = sum / (to - from);
        o->w[g] = (double)(to - from) / n;
        from = to;
    }
    return 0;
}

/* The grid of the guard: geometric, and closer towards the end, where f turns most. */
static void set_guard(struct objective *o, const struct fit_options *f, const double *x, int n)
{
    double low = fmax(fmin(x[0], f->upper / 30) / 4, 1e-30), knee = f->upper / 30;
    o->floor_from = x[n / 2];
    for (int g = 0, half = GUARD_POINTS / 2; g < GUARD_POINTS; g++)
        o->grid[g] = g < half ? low * pow(knee / low, (double)g / half)
                              : knee * pow(f->upper / knee, (double)(g - half + 1) / half);
    o->n_grid = GUARD_POINTS;
    o->grid[GUARD_POINTS - 1] = f->upper;
    for (int g = GUARD_POINTS - 2; g > 0; g--) /* the floor begins at a point */
        if (o->grid[g] <= o->floor_from) {
            o->grid[g] = o->floor_from;
            break;
        }
    o->safety = f->safety;
    o->weight = guard_weight;
    o->power = 2;
    o->scale = 1;
}

static double exact_objective(const struct coeffs *c, const double *x, int n,
                              enum fit_objective what)
{
    double sum = 0, worst = 0;
    for (int i = 0; i < n; i++) {
        double e = fabs(1 - coeffs_value(c, x[i]));
        sum += e * e;
        worst = e <= worst ? worst : e;
    }
    return what == FIT_MAX ? worst : sqrt(sum / n);
}

/* -- the search ------------------------------------------------------------------------- */

/* In bf16, where linear programs would chase rounding, the largest error is the limit of p-norms,
 * p doubled each time, relative to the largest so far. */
static void minimize(struct objective *o, struct coeffs *c, enum fit_objective what, int rounds)
{
    o->power = 2;
    o->scale = 1;
    if (what == FIT_MAX && !o->trials)
        objective_minimax(o, c, rounds);
    else
        objective_minimize(o, c, rounds);
    for (double p = 4; what == FIT_MAX && o->trials && p <= 64; p *= 2) {
        double largest = objective_largest(o, c);
        if (!(largest > 0 && isfinite(largest)))
            break;
        o->power = p;
        o->scale = largest;
        objective_minimize(o, c, rounds / 4 + 1);
    }
    o->power = 2;
    o->scale = 1;
}

/* The same until the guard holds between the points of its grid, too. */
static void minimize_guarded(struct objective *o, struct coeffs *c, enum fit_objective what,
                             int rounds, double swing)
{
    minimize(o, c, what, rounds);
    for (int k = 0; k < GUARD_ROUNDS && guard_excess_all(o, c, swing) > 0; k++) {
        guard_refine(o, c);
        minimize(o, c, what, rounds / 3 + 1);
    }
}

struct candidate {
    struct coeffs c;
    double score;
};

static int by_score(const void *a, const void *b)
{
    return ascending(&((const struct candidate *)a)->score, &((const struct candidate *)b)->score);
}

/* A greedy table of the same size for [lower, upper]; false when there is none. */
static bool greedy_start(struct coeffs *c, const struct coeffs *like, double lower, double upper,
                         double safety, double cushion)
{
    struct greedy g;
    struct greedy_options o = {
        like->n, 2 * like->terms - 1, lower, upper, safety, cushion, false
    };
    if (!(lower < upper) || greedy_derive(&g, &o))
        return false;
    greedy_coeffs(&g, c);
    c->terms = like->terms; /* 2 for tables of degree 3 */
    return true;
}

/* Starts: the given one first, then greedy tables. Without guard, the greedy one for an interval
 * is the best for it (minimax.h), so that the largest error has little left to gain from there. */
static int make_starts(struct candidate *v, const struct coeffs *start, const double *x, int n,
                       const struct fit_options *o)
{
    static const double quantile[] = { 0, 0.005, 0.05, 0.3 }, cushion[] = { 0, 0.02, 0.05 };
    const double safety[] = { 0, o->safety, 0.02 };
    int count = 1;
    v[0].c = *start;
    for (int i = 0; i < 4 * 2 * 3 * 3; i++) {
        double low = x[(int)(quantile[i / 18] * (n - 1))];
        double high = i / 9 % 2 ? x[n - 1] * 1.02 : o->upper;
        count += greedy_start(&v[count].c, start, low, high, safety[i / 3 % 3], cushion[i % 3]);
    }
    return count;
}

static void score(struct candidate *v, int n, const struct objective *o, enum fit_objective what,
                  double swing)
{
    for (int i = 0; i < n; i++)
        v[i].score = exact_objective(&v[i].c, o->x, o->n, what) + guard_excess(o, &v[i].c, swing);
    qsort(v + 1, (size_t)n - 1, sizeof *v, by_score); /* the given one stays in front */
}

/* Keeps c in *best if it is better for all x, and stays within the guard. */
static void consider(struct coeffs *best, double *least, const struct coeffs *c,
                     const struct objective *o, const double *x, int n, enum fit_objective what,
                     double swing)
{
    double got = exact_objective(c, x, n, what);
    if (got < *least && guard_excess_all(o, c, swing) <= 0) {
        *least = got;
        *best = *c;
    }
}

/* From the best so far, disturbed, down again: valleys of the mean square lie close together. */
static void hop(struct fit *f, const struct objective *scout, const struct objective *full,
                const double *x, int n, const struct fit_options *opt, double swing)
{
    struct rng r = rng_make(0, 0);
    struct coeffs here = f->table;
    double least = exact_objective(&here, scout->x, scout->n, opt->objective);
    uint64_t draw = 0;
    for (int k = 0; k < HOPS; k++) {
        struct objective o = *scout;
        struct coeffs c = here;
        for (int t = 0; t < c.n; t++)
            for (int i = 0; i < c.terms; i++)
                c.row[t][i] *= 1 + 0.04 * (k % 4 + 1) * rng_normal(&r, draw++);
        minimize_guarded(&o, &c, opt->objective, 40, swing);
        consider(&here, &least, &c, &o, o.x, o.n, opt->objective, swing);
    }
    struct objective o = *full;
    minimize_guarded(&o, &here, opt->objective, 150, swing);
    consider(&f->table, &f->exact_after, &here, &o, x, n, opt->objective, swing);
}

/* Rows may be scaled against each other without a change of f. As in greedy tables, 1 is made the
 * middle of what each row makes of [low, upper]. */
static void settle_scales(struct coeffs *c, double low, double upper)
{
    struct coeffs some = *c;
    struct range r;
    for (int t = 0; t + 1 < c->n; t++) {
        some.n = t + 1;
        memcpy(some.row, c->row, sizeof some.row);
        if (eval_range(&some, low, upper, &r) || !(r.low > 0 && r.high < 1e3))
            return;
        double scale = 2 / (r.low + r.high), power = scale;
        for (int i = 0; i < c->terms; i++, power *= scale * scale) {
            c->row[t][i] *= scale;
            c->row[t + 1][i] /= power;
        }
    }
}

static int search(struct fit *f, const double *x, int n, const struct fit_options *opt,
                  double swing)
{
    struct objective scout = { .n = 0 }, full = { .n = 0 };
    struct candidate *v = calloc(STARTS_MAX, sizeof *v);
    int rc = v ? set_points(&scout, x, n, SCOUT_POINTS) : err_memory();
    if (!rc)
        rc = set_points(&full, x, n, POINTS_MAX);
    if (!rc) {
        set_guard(&scout, opt, x, n);
        set_guard(&full, opt, x, n);
        scout.swing = full.swing = swing * guard_margin;
        int scouts = f->starts = make_starts(v, &f->table, x, n, opt);
        bool largest = opt->objective == FIT_MAX;
        score(v, scouts, &scout, opt->objective, swing);
        scouts = scouts < SCOUTS ? scouts : SCOUTS;
        for (int i = 0; i < scouts; i++)
            minimize(&scout, &v[i].c, opt->objective, largest ? 8 : 25);
        score(v, scouts, &scout, opt->objective, swing);
        for (int i = 0; i < scouts && i < FINALISTS; i++) {
            minimize_guarded(&full, &v[i].c, opt->objective, largest ? 60 : 150, swing);
            consider(&f->table, &f->exact_after, &v[i].c, &full, x, n, opt->objective, swing);
        }
        if (!largest)
            hop(f, &scout, &full, x, n, opt, swing);
        if (f->exact_after < f->exact_before) {
            settle_scales(&f->table, x[0], opt->upper);
            f->exact_after = exact_objective(&f->table, x, n, opt->objective);
        }
    }
    free(scout.x);
    free(full.x);
    free(v);
    return rc;
}

/* -- bf16 --------------------------------------------------------------------------------- */

static int bf16_objective(const struct objective *o, const struct coeffs *c,
                          enum fit_objective what, double *out)
{
    struct objective rms = *o;
    rms.weight = 0;
    *out = what == FIT_MAX ? objective_largest(o, c) : sqrt(objective_value(&rms, c, NULL, NULL));
    return isfinite(*out)
               ? 0
               : err_set(GPT_INPUT, "%s: the bf16 iteration does not stay finite", c->name);
}

/* From the exact fit on; f->before and after become bf16's. */
static int refine_bf16(struct fit *f, const struct coeffs *start, const struct trials *t,
                       const double *x, int n, const struct fit_options *opt, double swing)
{
    struct objective o = { .trials = t, .lower = opt->lower };
    int all = 0, point = 0, rc;
    for (int i = 0; i < t->n; i++)
        all += t->v[i].n;
    if (!(o.w = malloc((size_t)all * sizeof *o.w)))
        return err_memory();
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < t->v[i].n; k++)
            o.w[point++] = t->v[i].x[k] >= opt->lower ? 1.0 / n : 0;
    set_guard(&o, opt, x, n);
    o.swing = swing * guard_margin;

    struct coeffs tries[2] = { f->table, f->table };
    double got;
    rc = bf16_objective(&o, start, opt->objective, &f->before);
    f->after = f->before;
    f->table = *start;
    for (int i = 0; i < 2 && !rc; i++) { /* the exact fit, then what comes from it */
        if (i == 1)
            minimize_guarded(&o, &tries[i], opt->objective, opt->objective == FIT_MAX ? 8 : 12,
                             swing);
        if (bf16_objective(&o, &tries[i], opt->objective, &got))
            continue;
        if (got < f->after && guard_excess_all(&o, &tries[i], swing) <= 0) {
            f->after = got;
            f->table = tries[i];
        }
    }
    f->exact_after = exact_objective(&f->table, x, n, opt->objective);
    free(o.w);
    return rc;
}

/* Coefficients that a fit may move: none of x^5 where the start has none, which saves a product. */
static int terms_of(const struct coeffs *c)
{
    for (int t = 0; t < c->n; t++)
        if (c->row[t][2] != 0 || c->row[t][3] != 0)
            return c->terms;
    return 2;
}

int fit_check(const struct fit_options *o)
{
    if (!(o->lower >= 0 && o->upper > o->lower && o->upper <= 2))
        return err_set(GPT_USAGE, "expected 0 <= lower < upper <= 2, found %g and %g", o->lower,
                       o->upper);
    if (!(o->swing > 0 && o->swing < 1))
        return err_set(GPT_USAGE, "swing: expected more than 0 and less than 1, found %g",
                       o->swing);
    if (!(o->safety >= 0 && o->safety <= 1))
        return err_set(GPT_USAGE, "safety: expected 0 to 1, found %g", o->safety);
    return 0;
}

int fit_table(struct fit *f, const struct coeffs *start, const struct trials *t,
              const struct fit_options *o)
{
    struct objective guard = { .n = 0 };
    double *x;
    int n, rc = fit_check(o);
    if (rc || (rc = gather(t, o->lower, &x, &n)))
        return rc;
    memset(f, 0, sizeof *f);
    f->table = *start;
    f->table.terms = terms_of(start);
    f->count = n;
    f->low = x[0];
    f->high = x[n - 1];
    set_guard(&guard, o, x, n);
    f->guard_before = guard_excess_all(&guard, start, o->swing);
    /* A start that explodes is no licence to explode. */
    double swing = f->guard_before < 1 ? o->swing + f->guard_before : o->swing;
    f->before = f->after = f->exact_before = f->exact_after =
        exact_objective(start, x, n, o->objective);
    rc = search(f, x, n, o, swing);
    f->after = f->exact_after;
    if (!rc && o->bf16)
        rc = refine_bf16(f, start, t, x, n, o, swing);
    f->guard_after = guard_excess_all(&guard, &f->table, o->swing);
    f->table.terms = start->terms;
    free(x);
    return rc;
}
