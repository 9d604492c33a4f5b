/* rules.c - see rules.h. */
#include "optim/rules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a launch works on. */
struct call {
    struct optim *z;
    int i, chain;
    const struct chain *c;
    int first, n; /* the launch's stages */
};
typedef void stage_run(const struct call *c);

/* Numbers of a stage that factorises, behind its own: 0, and that of the stages `scale`. */
enum { NUMBER_ZERO = 4, NUMBER_SCALE = 5, NUMBER_ONE = 5 };
enum { MAX_FUSED = 4 };
struct fused {
    enum stage_id stage[MAX_FUSED];
    int n;
    bool (*fits)(const struct chain *c, int first); /* NULL: always */
    stage_run *run;
};
struct launch {
    stage_run *run;
    int first, n; /* of the chain's stages */
};
struct compiled {
    struct launch launch[2][MAX_USES];
    int n[2];
    struct tensor x; /* X, as w_own: f32, or of a fused line polar's type */
    struct tensor narrow; /* polar's work, where X is wider */
    struct tensor kept; /* X as a kernel, balance or power reads it */
    struct tensor entered; /* X that entered polar */
    struct tensor square, side[2]; /* of covpower: a Gram matrix, factors of rows and of columns */
    struct tensor g, p,
        half; /* of a stage that factorises: the gradient, in its bases, a product's half */
    struct tensor soft, weights; /* the sum of polar's iterates; (SOFT_ROWS,1) */
    struct tensor mean; /* what the last momentum gave */
    struct tensor line; /* (own matrices, long side): of balance */
    struct tensor norm[2]; /* (own matrices,1) */
    struct tensor ones; /* (own matrices,1), whose means correct others */
    struct tensor fit; /* (own matrices,2), of a write that fits */
    float *lr_mul[2],
        *shape[2]; /* of the own matrices: multipliers of the rate, of X (NULL: all are 1) */
    float *apart[2]; /* of the own matrices: multipliers of X behind its stages; NULL: all are 1 */
    bool *turned; /* of the own matrices: rows are columns */
};

/* -- what a stage reads ---------------------------------------------------------------------- */

static struct ops *ops_of(const struct call *c) { return c->z->ops; }
static struct param *param_of(const struct call *c) { return &c->z->banks->p[c->i]; }
static struct compiled *rule_of(const struct call *c) { return c->z->p[c->i].rule; }
/* A table's rows are one matrix. */
static int64_t own_matrices(const struct param *p)
{
    return p->spec->matrices > 1 ? p->own_count : p->own_count > 0;
}
static int matrices_of(const struct call *c) { return (int)own_matrices(param_of(c)); }
static const struct chain_hyper *hyper_of(const struct call *c)
{
    return &c->z->hyper->chain[c->i][c->chain];
}
static const struct step_gate *gate_of(const struct call *c) { return optim_gate(c->z); }
static struct tensor state_of(const struct call *c, int stage)
{
    return optim_stage_state(&c->z->p[c->i], c->chain, stage, 0);
}

static unsigned polar_how(const struct recipe *r, const struct stage_use *u)
{
    unsigned gram = r->optimizer.polar.form == POLAR_FORM_GRAM
                        ? POLAR_GRAM + POLAR_RESTART * r->optimizer.polar.restart
                        : 0;
    return gram | (stage_has(u, "aol") ? POLAR_AOL : 0);
}

static enum dtype polar_dtype(const struct recipe *r, const struct param_spec *s)
{
    return r->optimizer.polar.dtype == DT_NONE ? s->dtype : r->optimizer.polar.dtype;
}

/* -- stages alone -------------------------------------------------------------------------- */

static const real *numbers_of(const struct call *c) { return hyper_of(c)->number[c->first]; }

/* Moves the mean of ones that corrects the stage's mean; NULL where the stage has not the word. */
static const real *age_of(const struct call *c, const char *flag)
{
    if (flag && !stage_has(&c->c->use[c->first], flag))
        return NULL;
    struct tensor age = optim_stage_state(&c->z->p[c->i], c->chain, c->first, 1);
    ops_of(c)->momentum(ops_of(c), NO_TENSOR, age, rule_of(c)->ones, 0, numbers_of(c), NULL,
                        gate_of(c));
    return age.data;
}

/* Keeps a mean that a later stage reads. */
static void keep_mean(const struct call *c)
{
    if (rule_of(c)->mean.data)
        ops_of(c)->copy(ops_of(c), rule_of(c)->mean, rule_of(c)->x);
}

/* A running mean of the gradient, where the stage is the chain's first, else of X. */
static void run_mean(const struct call *c, unsigned how, const real *age)
{
    struct tensor x = rule_of(c)->x;
    ops_of(c)->momentum(ops_of(c), x, state_of(c, c->first), c->first ? x : param_of(c)->g_own,
                        how | (c->first ? 0 : MEAN_GRADIENT), numbers_of(c), age, gate_of(c));
    keep_mean(c);
}

static unsigned mean_flags(const struct stage_use *u)
{
    return (stage_has(u, "nesterov") ? MEAN_NESTEROV : 0) | (stage_has(u, "sum") ? MEAN_SUM : 0);
}

static unsigned term_flags(const struct stage_use *u)
{
    return MEAN_TERM | (stage_has(u, "first") ? 0 : MEAN_ADD) |
           (stage_has(u, "nesterov") ? MEAN_NESTEROV : 0);
}

/* Computes the mean of an X that is 0 in the first update. */
static void run_momentum_later(const struct call *c, unsigned how)
{
    struct tensor x = rule_of(c)->x,
                  begun = optim_stage_state(&c->z->p[c->i], c->chain, c->first, 1);
    if (!c->first)
        ops_of(c)->momentum(ops_of(c), x, NO_TENSOR, param_of(c)->g_own, MEAN_GRADIENT, NULL, NULL,
                            gate_of(c));
    ops_of(c)->scale(ops_of(c), x, matrices_of(c), NULL, begun.data);
    ops_of(c)->momentum(ops_of(c), x, state_of(c, c->first), x, how, numbers_of(c), NULL,
                        gate_of(c));
    ops_of(c)->momentum(ops_of(c), NO_TENSOR, begun, rule_of(c)->ones, 0,
                        numbers_of(c) + NUMBER_ONE, NULL, gate_of(c));
    keep_mean(c);
}

static void run_momentum(const struct call *c)
{
    const struct stage_use *u = &c->c->use[c->first];
    if (stage_has(u, "first"))
        run_momentum_later(c, mean_flags(u));
    else
        run_mean(c, mean_flags(u), age_of(c, "corrected"));
}

static void run_lion(const struct call *c) { run_mean(c, MEAN_LION, NULL); }

/* All terms read what came in before the first. */
static void run_kernel(const struct call *c)
{
    const struct stage_use *u = &c->c->use[c->first];
    struct tensor x = rule_of(c)->x, in = rule_of(c)->kept;
    bool gradient = c->c->use[0].id == STAGE_kernel, first = stage_has(u, "first");
    unsigned how = term_flags(u) | (gradient ? MEAN_GRADIENT : 0);

    if (first && !gradient)
        ops_of(c)->copy(ops_of(c), in, x);
    ops_of(c)->momentum(ops_of(c), x, state_of(c, c->first), gradient ? param_of(c)->g_own : in,
                        how, numbers_of(c), age_of(c, "c"), gate_of(c));
    keep_mean(c);
}

static void run_second(const struct call *c)
{
    ops_of(c)->second(ops_of(c), rule_of(c)->x, state_of(c, c->first), param_of(c)->g_own,
                      numbers_of(c), age_of(c, "corrected"), gate_of(c));
}

static void fit(const struct call *c, enum fit_to to)
{
    struct norm_fit f = { .to = to, .turned = rule_of(c)->turned, .number = numbers_of(c) };
    if (to != FIT_ROWS && to != FIT_RENORM)
        f.y = optim_exact(c->z, c->i, &f.low);
    ops_of(c)->norm_fit(ops_of(c), rule_of(c)->x, matrices_of(c), &f);
}

static void run_rows(const struct call *c) { fit(c, FIT_ROWS); }
static void run_renorm(const struct call *c) { fit(c, FIT_RENORM); }
static void run_radial(const struct call *c) { fit(c, FIT_RADIAL); }
static void run_floor(const struct call *c)
{
    fit(c, stage_has(&c->c->use[c->first], "row") ? FIT_FLOOR_ROWS : FIT_FLOOR);
}

static void run_select(const struct call *c)
{
    static const int ADDS = 2; /* a number that is 0: the sum forgets nothing */
    struct tensor x = rule_of(c)->x, mom = state_of(c, c->first);
    unsigned how = MEAN_SUM | (c->first ? 0 : MEAN_GRADIENT);
    ops_of(c)->momentum(ops_of(c), x, mom, c->first ? x : param_of(c)->g_own, how,
                        numbers_of(c) + ADDS, NULL, gate_of(c));
    ops_of(c)->select(ops_of(c), x, mom, matrices_of(c), rule_of(c)->turned, numbers_of(c),
                      gate_of(c));
}

/* The mean becomes Adam's step, of which the norm alone is read. */
static void run_graft(const struct call *c)
{
    struct tensor mean = rule_of(c)->mean;
    struct norm_fit f = { .to = FIT_NORM, .y = mean };
    ops_of(c)->second(ops_of(c), mean, state_of(c, c->first), param_of(c)->g_own, numbers_of(c),
                      age_of(c, NULL), gate_of(c));
    ops_of(c)->norm_fit(ops_of(c), rule_of(c)->x, matrices_of(c), &f);
}

/* norm[k] <- N of x's matrices. */
static void take_schatten4(const struct call *c, int k, struct tensor x)
{
    ops_of(c)->schatten4(ops_of(c), rule_of(c)->norm[k].data, x, matrices_of(c));
}

/* x's matrices times norm[to], or 1, over norm[from]. */
static void times_ratio(const struct call *c, struct tensor x, int to, int from, double least)
{
    struct norm_fit f = { .to = FIT_RATIO, .least = least };
    f.each = to < 0 ? NULL : rule_of(c)->norm[to].data, f.over = rule_of(c)->norm[from].data;
    ops_of(c)->norm_fit(ops_of(c), x, matrices_of(c), &f);
}

/* The iterates of polar one by one, and their weighted sum. */
static void iterate_apart(const struct call *c, struct tensor y)
{
    struct tensor sum = rule_of(c)->soft;
    struct norm_fit f = { .to = FIT_ADD, .y = y, .number = rule_of(c)->weights.data };

    ops_of(c)->zero(ops_of(c), sum);
    for (int k = 0; k < SOFT_ROWS; k++, f.number++) {
        ops_of(c)->norm_fit(ops_of(c), sum, matrices_of(c), &f);
        ops_of(c)->polar(ops_of(c), y, matrices_of(c), c->c->polar.row + k, 1, 0);
    }
}

/* X <- the orthogonal factor of y, which is scaled for it. */
static void orthogonalise(const struct call *c, struct tensor y, const struct stage_use *u)
{
    if (chain_stage(c->c, STAGE_soft))
        iterate_apart(c, y);
    else
        ops_of(c)->polar(ops_of(c), y, matrices_of(c), c->c->polar.row, c->c->polar.n,
                         polar_how(c->z->recipe, u));
    if (y.data != rule_of(c)->x.data)
        ops_of(c)->copy(ops_of(c), rule_of(c)->x, y);
}

/* X <- its orthogonal factor. */
static void polar_of_x(const struct call *c, double margin, double eps)
{
    const struct stage_use *u = &c->c->use[c->first];
    struct tensor x = rule_of(c)->x, y = rule_of(c)->narrow.data ? rule_of(c)->narrow : x;
    bool by_schatten4 = stage_has(u, "schatten4");

    if (by_schatten4) {
        take_schatten4(c, 0, x);
        times_ratio(c, x, -1, 0, 1e-7);
    }
    ops_of(c)->polar_input(ops_of(c), y, x, matrices_of(c), by_schatten4 || stage_has(u, "aol"),
                           margin, eps);
    orthogonalise(c, y, u);
}

static void keep_entered(const struct call *c)
{
    if (rule_of(c)->entered.data)
        ops_of(c)->copy(ops_of(c), rule_of(c)->entered, rule_of(c)->x);
}

static void run_polar(const struct call *c)
{
    const struct stage_use *u = &c->c->use[c->first];
    const struct param_spec *s = param_of(c)->spec;
    struct tensor x = rule_of(c)->x, g = rule_of(c)->kept;
    double margin = u->number[0].value[0], eps = u->number[1].value[0];
    int times = s->rows == s->cols ? 0 : (int)u->number[2].value[0];

    keep_entered(c);
    if (times)
        ops_of(c)->copy(ops_of(c), g, x);
    for (int k = 0; k < times; k++) {
        ops_of(c)->balance(ops_of(c), x, g, rule_of(c)->line, matrices_of(c), k == 0,
                           u->number[3].value[0]);
        polar_of_x(c, margin, eps);
    }
    if (!times)
        polar_of_x(c, margin, eps);
}

static void run_power(const struct call *c)
{
    struct tensor x = rule_of(c)->x, g = rule_of(c)->kept;
    keep_entered(c);
    ops_of(c)->copy(ops_of(c), g, x);
    polar_of_x(c, 1, 1e-7);
    ops_of(c)->power(ops_of(c), x, g, matrices_of(c), numbers_of(c));
}

static void run_contra(const struct call *c)
{
    struct tensor x = rule_of(c)->x;
    bool gram = stage_has(&c->c->use[c->first], "schatten4");
    struct norm_fit f = { .to = gram ? FIT_LESS : FIT_CONTRA,
                          .y = rule_of(c)->entered,
                          .number = numbers_of(c),
                          .each = rule_of(c)->norm[0].data };
    if (gram) {
        take_schatten4(c, 0, f.y);
        take_schatten4(c, 1, x);
    } else {
        ops_of(c)->spectral_norm(ops_of(c), rule_of(c)->norm[0].data, f.y, matrices_of(c),
                                 rule_of(c)->turned);
    }
    ops_of(c)->norm_fit(ops_of(c), x, matrices_of(c), &f);
    if (gram) {
        take_schatten4(c, 0, x);
        times_ratio(c, x, 1, 0, 1e-10);
    }
}

static void run_soft(const struct call *c)
{
    struct tensor x = rule_of(c)->x, sum = rule_of(c)->soft;
    struct norm_fit f = { .to = FIT_BLEND, .y = sum, .number = numbers_of(c) };
    take_schatten4(c, 0, x);
    take_schatten4(c, 1, sum);
    times_ratio(c, sum, 0, 1, 1e-10);
    ops_of(c)->norm_fit(ops_of(c), x, matrices_of(c), &f);
    take_schatten4(c, 1, x);
    times_ratio(c, x, 0, 1, 1e-10);
}

static void run_variance(const struct call *c)
{
    const struct stage_use *u = &c->c->use[c->first];
    struct tensor x = rule_of(c)->x;
    bool gram = stage_has(u, "schatten4");
    bool round = stage_has(u, "round") && polar_dtype(c->z->recipe, param_of(c)->spec) == DT_BF16;
    unsigned how =
        (round ? VARIANCE_ROUND : 0) | (gram || stage_has(u, "free") ? VARIANCE_FREE : 0);
    if (gram)
        take_schatten4(c, 0, x);
    ops_of(c)->variance(ops_of(c), x, state_of(c, c->first), matrices_of(c), how, numbers_of(c),
                        gate_of(c));
    if (gram) {
        take_schatten4(c, 1, x);
        times_ratio(c, x, 0, 1, 1e-10);
    }
}

/* With lr it is part of the write's rates. */
static void run_shape(const struct call *c)
{
    if (!stage_has(&c->c->use[c->first], "lr") && rule_of(c)->shape[c->chain])
        ops_of(c)->scale(ops_of(c), rule_of(c)->x, matrices_of(c), rule_of(c)->shape[c->chain],
                         NULL);
}

static void run_scale(const struct call *c)
{
    ops_of(c)->scale(ops_of(c), rule_of(c)->x, matrices_of(c), NULL, numbers_of(c));
}

static void run_sign(const struct call *c) { ops_of(c)->sign(ops_of(c), rule_of(c)->x); }

/* -- stages that factorise --------------------------------------------------------------------- */

/* Returns state k of the stage. */
static struct tensor kept(const struct call *c, int k)
{
    return optim_stage_state(&c->z->p[c->i], c->chain, c->first, k);
}

/* c <- op(a) op(b) of matrices and bases, which are b if `right`, else a. */
static void multiply(const struct call *c, struct tensor out, struct tensor a, bool ta,
                     struct tensor b, bool tb, bool right)
{
    struct multiply m = { .ta = ta, .tb = tb, .basis_a = !right, .basis_b = right };
    ops_of(c)->multiply(ops_of(c), out, a, b, matrices_of(c), &m);
}

/* to <- q[0]' x q[1] or, out of the bases, q[0] x q[1]'. Either q may be none, which stands for I; to may be x. */
static void through_bases(const struct call *c, struct tensor to, struct tensor x,
                          const struct tensor q[2], bool out)
{
    struct tensor half = rule_of(c)->half;

    if (q[0].data)
        multiply(c, half, q[0], !out, x, false, false);
    if (q[0].data && q[1].data)
        multiply(c, to, half, false, q[1], out, true);
    else if (q[1].data)
        multiply(c, half, x, false, q[1], out, true);
    if (!q[0].data || !q[1].data)
        ops_of(c)->copy(ops_of(c), to, half);
}
static void into_bases(const struct call *c, struct tensor to, struct tensor x,
                       const struct tensor q[2])
{
    through_bases(c, to, x, q, false);
}
static void out_of_bases(const struct call *c, struct tensor x, const struct tensor q[2])
{
    through_bases(c, x, x, q, true);
}

/* g <- the gradient in f32, times the step's factor and what stages `scale` say. */
static void take_gradient(const struct call *c)
{
    struct tensor g = rule_of(c)->g;
    ops_of(c)->momentum(ops_of(c), g, NO_TENSOR, param_of(c)->g_own, MEAN_GRADIENT, NULL, NULL,
                        gate_of(c));
    if (chain_stage(c->c, STAGE_scale))
        ops_of(c)->scale(ops_of(c), g, matrices_of(c), NULL, numbers_of(c) + NUMBER_SCALE);
}

/* Counts an update, unless the step is skipped. */
static void count_update(const struct call *c, struct tensor updates)
{
    ops_of(c)->momentum(ops_of(c), NO_TENSOR, updates, rule_of(c)->ones, MEAN_SUM,
                        numbers_of(c) + NUMBER_ZERO, NULL, gate_of(c));
}

/* Moves a side's covariance to p p', or p' p, of the gradient in the bases that stand. */
static void move_covariance(const struct call *c, struct tensor s, struct tensor p, bool right,
                            const struct multiply *how)
{
    struct multiply m = *how;
    m.ta = right, m.tb = !right, m.gate = gate_of(c);
    ops_of(c)->multiply(ops_of(c), s, p, p, matrices_of(c), &m);
}

/* Gives X the N that it had when take_schatten4 took it as 0. */
static void to_norm_before(const struct call *c)
{
    struct tensor x = rule_of(c)->x;
    take_schatten4(c, 1, x);
    times_ratio(c, x, 0, 1, 1e-8);
}

/* Takes the gradient, makes its first bases where there are none, and p of it in the bases. */
static void enter_bases(const struct call *c, const struct tensor q[2])
{
    struct tensor g = rule_of(c)->g;
    take_gradient(c);
    for (int side = 0; side < 2; side++)
        if (q[side].data)
            ops_of(c)->first_basis(ops_of(c), q[side], g, matrices_of(c), side, gate_of(c));
    into_bases(c, rule_of(c)->p, g, q);
}

/* Turns the bases of both sides, or of the one that is kept. */
static void turn_sides(const struct call *c, const struct tensor q[2], const struct tensor s[2],
                       const struct basis_turn *how)
{
    struct basis_turn t = *how;
    bool both = q[0].data && q[1].data && q[0].cols == q[1].cols;
    if (both)
        t.other_q = q[1], t.other_s = s[1];
    for (int side = 0; side < 2 - both; side++) {
        t.right = side;
        if (q[side].data)
            ops_of(c)->turn(ops_of(c), q[side], s[side], matrices_of(c), &t);
    }
}

static void run_soap(const struct call *c)
{
    const struct stage_use *u = &c->c->use[c->first];
    struct tensor x = rule_of(c)->x, p = rule_of(c)->p, s[2] = { 0 }, q[2] = { 0 };
    bool one = stage_has(u, "short"), right = kept(c, 0).cols < param_of(c)->spec->rows;
    int sides = one ? 1 : 2; /* a state and a basis of each, then those of both */
    struct tensor second = kept(c, 2 * sides);
    const real *updates = kept(c, 2 * sides + 1).data;
    bool late = stage_has(u, "late"), norm = stage_has(u, "norm");
    bool gated = u->number[3].value[0] > 0;

    for (int k = 0; k < sides; k++)
        s[one ? right : k] = kept(c, k), q[one ? right : k] = kept(c, sides + k);
    enter_bases(c, q);
    for (int side = 0; side < 2; side++)
        if (q[side].data)
            move_covariance(c, s[side], p, side, &(struct multiply){ .blend = numbers_of(c) });
    if (norm)
        take_schatten4(c, 0, x);
    if (gated)
        ops_of(c)->copy(ops_of(c), rule_of(c)->kept, x);
    into_bases(c, x, x, q);
    ops_of(c)->whiten(ops_of(c), x, second, p, matrices_of(c), late ? WHITEN_OWN : 0, numbers_of(c),
                      numbers_of(c) + 1, updates, gate_of(c));
    out_of_bases(c, x, q);
    if (norm)
        to_norm_before(c);
    if (gated) { /* from what came in towards this by as much as the two agree */
        ops_of(c)->trust(ops_of(c), x, rule_of(c)->kept, rule_of(c)->g, matrices_of(c),
                         numbers_of(c) + 2);
        to_norm_before(c);
    }
    turn_sides(c, q, s, &(struct basis_turn){ .sort = late, .v = second, .gate = gate_of(c) });
    count_update(c, kept(c, 2 * sides + 1));
}

static void run_klsoap(const struct call *c)
{
    struct tensor x = rule_of(c)->x, g = rule_of(c)->g, p = rule_of(c)->p;
    struct tensor s[2] = { kept(c, 0), kept(c, 1) }, q[2] = { kept(c, 2), kept(c, 3) };
    struct tensor e[2] = { kept(c, 5), kept(c, 6) };
    const struct param_spec *spec = param_of(c)->spec;
    const real *updates = kept(c, 7).data, *number = numbers_of(c);
    static const int BS = 1, E = 2;

    enter_bases(c, q);
    into_bases(c, x, x, q);
    ops_of(c)->whiten(ops_of(c), x, kept(c, 4), p, matrices_of(c), WHITEN_LATER, number, number + E,
                      updates, gate_of(c));
    out_of_bases(c, x, q);
    ops_of(c)->copy(ops_of(c), g, p);
    ops_of(c)->by_lines(ops_of(c), g, NO_TENSOR, e[1], matrices_of(c), updates);
    ops_of(c)->by_lines(ops_of(c), p, e[0], NO_TENSOR, matrices_of(c), updates);
    for (int side = 0; side < 2; side++) {
        struct tensor of = side ? p : g;
        struct multiply m = { .alpha = 1.0 / (double)(side ? spec->rows : spec->cols),
                              .blend = number + BS,
                              .whole = updates };
        move_covariance(c, s[side], of, side, &m);
        ops_of(c)->kl_scales(ops_of(c), e[side], of, matrices_of(c), side, number + BS, updates,
                             gate_of(c));
    }
    turn_sides(c, q, s, &(struct basis_turn){ .gate = gate_of(c) });
    count_update(c, kept(c, 7));
}

/* Returns the stream of what is drawn for the rank's first matrix, by its number in the whole parameter. */
static uint64_t stream_of(const struct call *c)
{
    const struct param *p = param_of(c);
    return ((uint64_t)c->i << 32) + (uint64_t)(p->spec->matrices > 1 ? p->own_first : 0);
}

static void run_covpower(const struct call *c)
{
    struct tensor x = rule_of(c)->x, line[2];
    struct tensor s[2] = { kept(c, 0), kept(c, 1) }, q[2] = { kept(c, 2), kept(c, 3) };
    static const int B = 1;

    for (int side = 0; side < 2; side++) {
        struct tensor a = rule_of(c)->square;
        struct multiply sum = { .blend = numbers_of(c) + B, .sum = true };
        struct basis_turn t = { .dense = true, .gate = gate_of(c) };
        a.rows = s[side].rows, a.cols = s[side].cols;
        ops_of(c)->cosine_basis(ops_of(c), q[side], matrices_of(c),
                                (uint64_t)c->z->recipe->seed + (uint64_t)side, stream_of(c),
                                gate_of(c));
        move_covariance(c, s[side], x, side, &sum);
        ops_of(c)->copy(ops_of(c), a, s[side]);
        sum.diagonal = 1e-6;
        move_covariance(c, a, x, side, &sum);
        ops_of(c)->turn(ops_of(c), q[side], a, matrices_of(c), &t);
        line[side] = tensor_of(rule_of(c)->side[side].data, DT_REAL, a.rows, 1);
        ops_of(c)->line_powers(ops_of(c), line[side], a, matrices_of(c), numbers_of(c));
    }
    into_bases(c, x, x, q);
    ops_of(c)->by_lines(ops_of(c), x, line[0], line[1], matrices_of(c), NULL);
    out_of_bases(c, x, q);
}

/* Moves the running means of g g' and g' g. */
static void gradient_covariances(const struct call *c)
{
    take_gradient(c);
    for (int side = 0; side < 2; side++)
        move_covariance(c, kept(c, side), rule_of(c)->g, side,
                        &(struct multiply){ .blend = numbers_of(c) });
}

static void run_shampoo(const struct call *c)
{
    struct tensor age = kept(c, 2);
    gradient_covariances(c);
    ops_of(c)->momentum(ops_of(c), NO_TENSOR, age, rule_of(c)->ones, 0, numbers_of(c), NULL,
                        gate_of(c));
    ops_of(c)->shampoo(ops_of(c), rule_of(c)->x, kept(c, 0), kept(c, 1), matrices_of(c),
                       stage_has(&c->c->use[c->first], "pinv"), numbers_of(c), age.data);
}

static void run_sinkhorn(const struct call *c)
{
    gradient_covariances(c);
    ops_of(c)->sinkhorn(ops_of(c), rule_of(c)->x, kept(c, 0), kept(c, 1), matrices_of(c),
                        rule_of(c)->turned, numbers_of(c));
}

static void run_psgd(const struct call *c)
{
    struct psgd p = { .g = rule_of(c)->g,
                      .probe = c->z->probe,
                      .seed = (uint64_t)c->z->recipe->seed,
                      .stream = stream_of(c),
                      .step = numbers_of(c),
                      .updates = kept(c, 2).data,
                      .gate = gate_of(c) };
    take_gradient(c);
    ops_of(c)->psgd(ops_of(c), rule_of(c)->x, kept(c, 0), kept(c, 1), matrices_of(c), &p);
    count_update(c, kept(c, 2));
}

/* How the write decays the weight: MUON_ flags. */
static unsigned decay_of(const struct chain *c)
{
    const struct stage_use *u = chain_stage(c, STAGE_decay);
    unsigned how = !u                         ? MUON_PLAIN
                   : stage_has(u, "strict")   ? MUON_STRICT
                   : stage_has(u, "cautious") ? 0
                                              : MUON_PLAIN;
    return u && u > &c->use[c->write] ? how | MUON_BEHIND : how;
}

/* Moves the exact value, and with it the weight's other forms. second: of a variance
 * that is part of the write; or none. fit: as of op normuon. */
static void write_weight(const struct call *c, struct tensor second, const real *blend,
                         const real *fit)
{
    struct tensor low, exact = optim_exact(c->z, c->i, &low);

    ops_of(c)->normuon(ops_of(c), exact, low, second, rule_of(c)->x, matrices_of(c),
                       rule_of(c)->lr_mul[c->chain], blend, fit, decay_of(c->c),
                       &hyper_of(c)->write, gate_of(c));
    optim_moved(c->z, c->i);
}

/* A write that keeps the weight to a norm, which follows from sums over the weight and X. */
static void write_fitted(const struct call *c, enum fit_to to)
{
    real *out = rule_of(c)->fit.data;
    struct norm_fit f = { .to = to,
                          .out = out,
                          .lr_mul = rule_of(c)->lr_mul[c->chain],
                          .how = decay_of(c->c),
                          .m = &hyper_of(c)->write };
    f.y = optim_exact(c->z, c->i, &f.low);
    ops_of(c)->norm_fit(ops_of(c), rule_of(c)->x, matrices_of(c), &f);
    write_weight(c, NO_TENSOR, NULL, out);
}

/* The write does it. */
static void run_decay(const struct call *c) { (void)c; }
static void run_step(const struct call *c)
{
    const float *apart = rule_of(c)->apart[c->chain];
    if (apart)
        ops_of(c)->scale(ops_of(c), rule_of(c)->x, matrices_of(c), apart, NULL);
    if (stage_has(&c->c->use[c->first], "pin"))
        write_fitted(c, FIT_PIN);
    else
        write_weight(c, NO_TENSOR, NULL, NULL);
}
static void run_hyperball(const struct call *c) { write_fitted(c, FIT_HYPERBALL); }
/* Gains and directions of rows, which polar makes orthogonal between the two. */
static void run_weightnorm(const struct call *c)
{
    struct tensor state[6], x = rule_of(c)->x;
    for (int k = 0; k < 6; k++)
        state[k] = optim_stage_state(&c->z->p[c->i], c->chain, c->first, k + 1);
    struct weightnorm s = { .g = param_of(c)->g_own,
                            .mom = state_of(c, c->first).data,
                            .gain = state[0].data,
                            .gain_mean = state[1].data,
                            .gain_second = state[2].data,
                            .norm = state[3].data,
                            .first = state[4].data,
                            .updates = state[5].data,
                            .slope = rule_of(c)->line.data,
                            .turned = rule_of(c)->turned,
                            .lr_mul = rule_of(c)->lr_mul[c->chain],
                            .number = numbers_of(c),
                            .m = &hyper_of(c)->write,
                            .gate = gate_of(c) };
    s.w = optim_exact(c->z, c->i, &s.low);
    ops_of(c)->weightnorm_input(ops_of(c), x, matrices_of(c), &s);
    polar_of_x(c, 1, 1e-7);
    ops_of(c)->weightnorm(ops_of(c), x, matrices_of(c), &s);
    optim_moved(c->z, c->i);
}
/* optim/step.c updates all of adam's parameters of a step in few launches. */
static void run_adam(const struct call *c) { (void)c; }

static stage_run *const alone[N_STAGE_ROWS] = {
#define STAGE(word, ...) [STAGE_##word] = run_##word,
#include "recipe/stage_list.h"
};

/* -- elementwise stages in one op --------------------------------------------------------------- */

/* True if the stage can be one of op each; kernels read the gradient alone there. */
static bool is_each(const struct chain *c, int k)
{
    const struct stage_use *u = &c->use[k];
    switch (u->id) {
    case STAGE_momentum: return !stage_has(u, "first");
    case STAGE_kernel: return c->use[0].id == STAGE_kernel;
    case STAGE_step: return !stage_has(u, "pin");
    case STAGE_lion:
    case STAGE_second:
    case STAGE_scale:
    case STAGE_shape:
    case STAGE_sign:
    case STAGE_decay: return true;
    default: return false;
    }
}

/* Counts the stages from `first` on that op each takes; 0 where it would have one. */
static int count_each(const struct chain *c, int first)
{
    int n = 0, work = 0;
    for (; first + n < c->n && is_each(c, first + n); n++) {
        enum stage_id id = c->use[first + n].id;
        bool rate = id == STAGE_shape && stage_has(&c->use[first + n], "lr");
        int more = rate || id == STAGE_decay ? 0
                   : id == STAGE_step        ? 2
                                             : 1; /* step: multipliers apart */
        if (work + more > MAX_EACH)
            break;
        work += more;
    }
    bool writes = first <= c->write && c->write < first + n;
    return work - writes >= 2 && !chain_stage(c, STAGE_graft) ? n : 0;
}

static struct each_stage stage_of(const struct call *c, enum each_what what, unsigned how,
                                  const char *age)
{
    return (struct each_stage){ .what = what,
                                .how = how,
                                .state = state_of(c, c->first),
                                .number = numbers_of(c),
                                .age = age ? age_of(c, age) : NULL };
}

/* Adds what op each makes of a stage; returns how many it has then. */
static int add_each(const struct call *c, struct each_stage *s, int n)
{
    const struct stage_use *u = &c->c->use[c->first];
    const float *shape = rule_of(c)->shape[c->chain], *apart = rule_of(c)->apart[c->chain];
    switch (u->id) {
    case STAGE_momentum: s[n++] = stage_of(c, EACH_MEAN, mean_flags(u), "corrected"); break;
    case STAGE_lion: s[n++] = stage_of(c, EACH_MEAN, MEAN_LION, NULL); break;
    case STAGE_kernel: s[n++] = stage_of(c, EACH_MEAN, term_flags(u), "c"); break;
    case STAGE_second: s[n++] = stage_of(c, EACH_SECOND, 0, "corrected"); break;
    case STAGE_sign: s[n++].what = EACH_SIGN; break;
    case STAGE_scale:
        s[n++] = (struct each_stage){ .what = EACH_SCALE, .number = numbers_of(c) };
        break;
    case STAGE_shape:
        if (shape && !stage_has(u, "lr"))
            s[n++] = (struct each_stage){ .what = EACH_SCALE, .each = shape };
        break;
    case STAGE_step:
        if (apart)
            s[n++] = (struct each_stage){ .what = EACH_SCALE, .each = apart };
        s[n] = (struct each_stage){ .what = EACH_WRITE,
                                    .how = decay_of(c->c),
                                    .each = rule_of(c)->lr_mul[c->chain],
                                    .m = &hyper_of(c)->write };
        s[n].state = optim_exact(c->z, c->i, &s[n].low);
        n++;
        break;
    default: break; /* a decay is part of the write */
    }
    return n;
}

static void run_each(const struct call *c)
{
    struct each_stage s[MAX_EACH] = { 0 };
    struct call one = *c;
    int n = 0;
    for (; one.first < c->first + c->n; one.first++)
        n = add_each(&one, s, n);
    ops_of(c)->each(ops_of(c), rule_of(c)->x, param_of(c)->g_own, matrices_of(c), s, n,
                    c->first == 0, gate_of(c));
    if (s[n - 1].what == EACH_WRITE)
        optim_moved(c->z, c->i);
}

/* -- fused -------------------------------------------------------------------------------- */

static void run_momentum_polar(const struct call *c)
{
    const struct stage_use *u = &c->c->use[c->first + 1];
    struct tensor y = rule_of(c)->narrow.data ? rule_of(c)->narrow : rule_of(c)->x;
    ops_of(c)->muon_input(ops_of(c), y, state_of(c, c->first), param_of(c)->g_own, matrices_of(c),
                          stage_has(u, "aol"), numbers_of(c), gate_of(c));
    orthogonalise(c, y, u);
}

/* True if the chain has a decay at the line's rate, so that multipliers of the matrices are of X alone. */
static bool decays_apart(const struct chain *c)
{
    const struct stage_use *u = chain_stage(c, STAGE_decay);
    return u && !stage_has(u, "multiplied") && c->use[c->write].id == STAGE_step;
}

/* The record's scaling, of the gradient itself. */
static bool is_record_polar(const struct chain *c, int first)
{
    const struct stage_use *u = &c->use[first + 1];
    return first == 0 && stage_has(&c->use[0], "nesterov") && !stage_has(&c->use[0], "sum") &&
           !stage_has(&c->use[0], "corrected") && !stage_has(&c->use[0], "first") &&
           !stage_has(u, "schatten4") && u->number[2].value[0] == 0 &&
           !chain_stage(c, STAGE_contra) && !chain_stage(c, STAGE_soft) &&
           !chain_stage(c, STAGE_graft) &&
           (stage_has(u, "aol") ||
            (u->number[0].value[0] == 1.02 && u->number[1].value[0] == 1e-6));
}

static void run_variance_write(const struct call *c)
{
    write_weight(c, state_of(c, c->first), numbers_of(c), NULL);
}

/* What stands between variance and step is part of the write: rates and decay. The op rounds to the type of
 * X, which is polar's if nothing but that fused pair stands before. */
static bool is_record_write(const struct chain *c, int first)
{
    const struct stage_use *shape = chain_stage(c, STAGE_shape);
    return first == 2 && !decays_apart(c) && c->use[0].id == STAGE_momentum &&
           c->use[1].id == STAGE_polar && is_record_polar(c, 0) && stage_has(&c->use[2], "round") &&
           !stage_has(&c->use[c->write], "pin") && (!shape || stage_has(shape, "lr"));
}

static const struct fused fused[] = {
    { { STAGE_variance, STAGE_shape, STAGE_decay, STAGE_step },
      4,
      is_record_write,
      run_variance_write },
    { { STAGE_variance, STAGE_shape, STAGE_step, STAGE_decay },
      4,
      is_record_write,
      run_variance_write },
    { { STAGE_variance, STAGE_shape, STAGE_step }, 3, is_record_write, run_variance_write },
    { { STAGE_variance, STAGE_decay, STAGE_step }, 3, is_record_write, run_variance_write },
    { { STAGE_variance, STAGE_step, STAGE_decay }, 3, is_record_write, run_variance_write },
    { { STAGE_momentum, STAGE_polar }, 2, is_record_polar, run_momentum_polar },
};

static const struct fused *match(const struct chain *c, int first)
{
    for (size_t k = 0; k < sizeof fused / sizeof *fused; k++) {
        int same = 0;
        while (same < fused[k].n && first + same < c->n &&
               c->use[first + same].id == fused[k].stage[same])
            same++;
        if (same == fused[k].n && (!fused[k].fits || fused[k].fits(c, first)))
            return &fused[k];
    }
    return NULL;
}

/* Binds the chain's stages to launches, the longest match first. */
static int chain_compile(const struct chain *c, bool fuse, struct launch *out)
{
    int n = 0;
    for (int k = 0; k < c->n; k += out[n++].n) {
        const struct fused *f = fuse ? match(c, k) : NULL;
        int each = fuse && !f ? count_each(c, k) : 0;
        out[n] = f      ? (struct launch){ f->run, k, f->n }
                 : each ? (struct launch){ run_each, k, each }
                        : (struct launch){ alone[c->use[k].id], k, 1 };
    }
    return n;
}

/* True if X is polar's result from the first launch on, and none behind it needs it in f32. */
static bool stays_narrow(const struct chain *c, bool fuse)
{
    struct launch l[MAX_USES];
    int n = chain_compile(c, fuse, l);
    if (decays_apart(c))
        return false;
    for (int k = 0; k < n; k++) {
        enum stage_id id = c->use[l[k].first].id;
        bool rates = id == STAGE_shape && stage_has(&c->use[l[k].first], "lr");
        bool plain = id == STAGE_step && !stage_has(&c->use[l[k].first], "pin");
        if (l[k].run == run_each)
            return false;
        if (l[k].n == 1 && (k == 0 || (id != STAGE_decay && !plain && !rates)))
            return false;
    }
    return true;
}

void rules_describe(const struct recipe *r, const struct chain *c, char *text, size_t size)
{
    struct launch l[MAX_USES];
    size_t at = 0;
    int n = chain_compile(c, r->precision.fuse, l);
    *text = 0;
    for (int k = 0; k < n; k++)
        for (int s = 0; s < l[k].n && at < size; s++)
            at += (size_t)snprintf(text + at, size - at, "%s%s",
                                   s   ? "+"
                                   : k ? ", "
                                       : "",
                                   stage_rows[c->use[l[k].first + s].id].word);
}

/* -- memory ---------------------------------------------------------------------------------- */

/* True if a matrix has another multiplier than 1. */
static bool multiplies(const struct param_spec *s)
{
    for (int k = 0; k < s->n_lr; k++)
        if (s->lr_mul[k] != 1)
            return true;
    return false;
}

static int factors(struct compiled *x, const struct param *p, int chain)
{
    const struct chain *c = &p->spec->rule.chain[chain];
    const struct stage_use *shape = chain_stage(c, STAGE_shape);
    bool of_rate = shape && stage_has(shape, "lr"), apart = decays_apart(c) && multiplies(p->spec);
    int64_t n = own_matrices(p), first = p->spec->matrices > 1 ? p->own_first : 0;
    size_t bytes = (size_t)n * sizeof(float) + 1;
    bool shaped = false;

    x->lr_mul[chain] = malloc(bytes);
    x->shape[chain] = malloc(bytes);
    if (apart)
        x->apart[chain] = malloc(bytes);
    if (!x->lr_mul[chain] || !x->shape[chain] || (apart && !x->apart[chain]))
        return err_memory();
    for (int64_t m = 0; m < n; m++) {
        double f = recipe_shape_factor(p->spec, c, first + m);
        double own = p->spec->lr_mul[(first + m) % p->spec->n_lr];
        bool padding = p->spec->matrices > 1 && first + m >= p->used;
        x->shape[chain][m] = (float)f;
        x->lr_mul[chain][m] =
            padding || own == 0 ? 0 : (float)((of_rate ? f : 1) * (apart ? 1 : own));
        if (apart)
            x->apart[chain][m] = (float)own;
        shaped |= f != 1;
    }
    if (!shaped)
        free(x->shape[chain]), x->shape[chain] = NULL;
    return 0;
}

/* Numbers of the device that stay. */
static struct tensor constants(struct optim *z, const real *x, int64_t n, const char *what)
{
    struct tensor t = optim_take(z, DT_REAL, n, 1, what);
    z->ops->upload(z->ops, t.data, x, (size_t)n * sizeof *x);
    return t;
}

/* True of the stages that multiply by matrices of a side. */
static bool factorises(enum stage_id id)
{
    return id == STAGE_soap || id == STAGE_klsoap || id == STAGE_covpower || id == STAGE_shampoo ||
           id == STAGE_sinkhorn || id == STAGE_psgd;
}

/* Takes what the chain's stages keep beside X, in the same memory as the other chain's. */
static void take_for(struct optim *z, int i, const struct chain *c)
{
    /* Weights of the iterates before each row, a fit of singular values to the power 0.1 (optimizers.md 4.7). */
    static const real soft[SOFT_ROWS] = {
        (real)0.1091613623,  (real)0.07085664498, (real)0.05210528973, (real)0.05457295795,
        (real)0.05011334061, (real)0.03334622198, (real)0.05022104481, (real)0.1053727358,
        (real)0.1187323776,  (real)0.1185061091,  (real)0.1185059576,  (real)0.1185059576
    };
    const struct param *p = &z->banks->p[i];
    struct compiled *x = z->p[i].rule;
    int64_t n = own_matrices(p), rows = p->w_own.rows, cols = p->w_own.cols;
    int64_t most = p->spec->rows > p->spec->cols ? p->spec->rows : p->spec->cols;
    bool kernel = false, aged = false, norms = false, fits = false, mean = false;
    bool factors = false;

    for (int k = 0; k < c->n; k++) {
        const struct stage_use *u = &c->use[k];
        factors |= factorises(u->id);
        aged |= factors || stage_has(u, "first") || stage_has(u, "corrected") ||
                stage_has(u, "c") || u->id == STAGE_graft;
        kernel |= k && u->id == STAGE_kernel;
        fits |= u->id == STAGE_hyperball || stage_has(u, "pin");
        norms |= stage_has(u, "schatten4") || u->id == STAGE_contra || u->id == STAGE_soft;
        mean |= u->id == STAGE_graft;
    }
    const struct stage_use *polar = chain_stage(c, STAGE_polar);
    const struct stage_use *soap = chain_stage(c, STAGE_soap);
    norms |= soap && stage_has(soap, "norm");
    kernel |= soap && soap->number[3].value[0] > 0;
    if (!x->g.data && factors) {
        x->g = optim_take(z, DT_F32, rows, cols, "a gradient");
        x->p = optim_take(z, DT_F32, rows, cols, "a gradient in its bases");
        x->half = optim_take(z, DT_F32, rows, cols, "half of a rotation");
    }
    if (!x->square.data && chain_stage(c, STAGE_covpower)) {
        x->square = optim_take(z, DT_F32, n * most, most, "a covariance");
        x->side[0] = optim_take(z, DT_REAL, n * most, 1, "factors of rows");
        x->side[1] = optim_take(z, DT_REAL, n * most, 1, "factors of columns");
    }
    bool balance = polar && polar->number[2].value[0] > 0 && p->spec->rows != p->spec->cols;
    if (!x->kept.data && (kernel || balance || chain_stage(c, STAGE_power)))
        x->kept = optim_take(z, DT_F32, rows, cols, "what a stage reads");
    if (!x->entered.data && chain_stage(c, STAGE_contra))
        x->entered = optim_take(z, DT_F32, rows, cols, "what enters polar");
    if (!x->mean.data && mean)
        x->mean = optim_take(z, DT_F32, rows, cols, "a mean to graft");
    if (!x->line.data && (balance || chain_stage(c, STAGE_weightnorm)))
        x->line = optim_take(z, DT_REAL, n, most, "scales of lines");
    if (!x->fit.data && fits)
        x->fit = optim_take(z, DT_REAL, n, 2, "norms of a write");
    for (int k = 0; k < 2 && norms && !x->norm[1].data; k++)
        x->norm[k] = optim_take(z, DT_REAL, n, 1, "norms");
    if (!x->soft.data && chain_stage(c, STAGE_soft)) {
        x->soft = optim_take(z, DT_F32, rows, cols, "iterates of polar");
        x->weights = constants(z, soft, SOFT_ROWS, "weights of iterates");
    }
    if (!x->ones.data && aged) {
        real one[n + 1];
        for (int64_t m = 0; m < n; m++)
            one[m] = 1;
        x->ones = constants(z, one, n, "ones");
    }
}

static int take_more(struct optim *z, int i)
{
    const struct param *p = &z->banks->p[i];
    struct compiled *x = z->p[i].rule;
    int64_t n = own_matrices(p), first = p->spec->matrices > 1 ? p->own_first : 0;

    for (int c = 0; c < rule_chains(&p->spec->rule); c++)
        take_for(z, i, &p->spec->rule.chain[c]);
    if (!(x->turned = malloc((size_t)n * sizeof *x->turned + 1)))
        return err_memory();
    for (int64_t m = 0; m < n; m++)
        x->turned[m] = recipe_is_transposed(p->spec, first + m);
    return 0;
}

int rules_init(struct optim *z, int i)
{
    const struct param *p = &z->banks->p[i];
    const struct rule *rule = &p->spec->rule;
    enum dtype type = polar_dtype(z->recipe, p->spec);
    bool narrow = true, fuse = z->recipe->precision.fuse, polar = false;
    struct compiled *x;
    int rc = 0;

    if (rule_is_adam(rule))
        return 0;
    if (!(x = z->p[i].rule = calloc(1, sizeof *x)))
        return err_memory();
    for (int c = 0; c < rule_chains(rule) && !rc; c++) {
        if (chain_is_adam(&rule->chain[c]))
            continue;
        x->n[c] = chain_compile(&rule->chain[c], fuse, x->launch[c]);
        narrow &= stays_narrow(&rule->chain[c], fuse);
        polar |=
            chain_stage(&rule->chain[c], STAGE_polar) || chain_stage(&rule->chain[c], STAGE_power);
        rc = factors(x, p, c);
    }
    if (rc)
        return rc;
    int64_t rows = p->w_own.rows, cols = p->w_own.cols;
    x->x = optim_take(z, narrow ? type : DT_F32, rows, cols, "update");
    if (!narrow && polar && type != DT_F32)
        x->narrow = optim_take(z, type, rows, cols, "update to orthogonalise");
    return take_more(z, i);
}

void rules_release(struct optim_param *q)
{
    for (int c = 0; q->rule && c < 2; c++) {
        free(q->rule->lr_mul[c]);
        free(q->rule->shape[c]);
        free(q->rule->apart[c]);
    }
    if (q->rule)
        free(q->rule->turned);
    free(q->rule);
    q->rule = NULL;
}

/* -- a step ------------------------------------------------------------------------------------ */

/* The least and the largest part of soap in X. */
static void trust_hyper(const struct recipe *r, const struct stage_use *u,
                        const struct step_schedule *at, real number[2])
{
    double from = schedule_point(r, u->number[2].value[0]),
           to = schedule_point(r, u->number[3].value[0]);
    double left = at->step < from ? 1 : at->step >= to ? 0 : (to - at->step) / (to - from);
    number[0] = (real)(0.45 * left);
    number[1] = (real)(at->step < to ? 0.85 : 1);
}

void rules_hyper(const struct recipe *r, int i, int chain, const struct step_schedule *at,
                 struct chain_hyper *h)
{
    const struct param_spec *s = &r->params[i];
    const struct chain *c = &s->rule.chain[chain];
    const struct stage_use *decay = chain_stage(c, STAGE_decay);
    double lr = schedule_number(r, s, &c->lr, at) * schedule_lr(r, s, at),
           second = schedule_second_part(r, s, at);

    double scale = 1; /* of the gradient that later stages read */
    for (int k = 0; k < c->n; k++) {
        const struct stage_use *u = &c->use[k];
        for (int i = 0; i < STAGE_NUMBERS; i++) {
            double v = schedule_number(r, s, &u->number[i], at);
            h->number[k][i] = (real)(stage_mean(&stage_rows[u->id], i) ? 1 - v : v);
            if (u->id == STAGE_momentum && i == 0 && r->optimizer.muon.blend_f32)
                h->number[k][i] = 1 - (float)v;
        }
        if (u->id == STAGE_scale)
            scale *= schedule_number(r, s, &u->number[0], at);
        if (u->id == STAGE_second || u->id == STAGE_graft)
            h->number[k][2] = (real)scale;
        if (u->id == STAGE_momentum)
            h->number[k][NUMBER_ONE] = 1;
        if (factorises(u->id))
            h->number[k][NUMBER_SCALE] = (real)scale;
        if (u->id == STAGE_soap && u->number[3].value[0] > 0)
            trust_hyper(r, u, at, h->number[k] + 2);
        if (u->id == STAGE_soft)
            h->number[k][0] =
                (real)fmin(schedule_number(r, s, &u->number[0], at), u->number[1].value[0]);
    }
    h->write.lr = (real)lr;
    if (decay)
        h->write.decay = (real)((stage_has(decay, "lr2") ? lr : 1) *
                                schedule_number(r, s, &decay->number[0], at) * s->wd_mul);
    if (rule_chains(&s->rule) > 1)
        h->write.lr *= (real)(chain ? second : 1 - second);
}

/* True of stages that read the gradient itself where they are a chain's first. */
static bool reads_gradient(enum stage_id id)
{
    return id == STAGE_momentum || id == STAGE_kernel || id == STAGE_lion || id == STAGE_select ||
           id == STAGE_weightnorm;
}

void rules_update(struct optim *z, int i, unsigned chains)
{
    const struct compiled *x = z->p[i].rule;
    if (!x || !z->banks->p[i].own_count) /* more ranks than matrices */
        return;
    for (int c = 0; c < rule_chains(&z->recipe->params[i].rule); c++) {
        struct call call = { z, i, c, &z->recipe->params[i].rule.chain[c], 0, 0 };
        if (!x->n[c] || !(chains >> c & 1))
            continue;
        if (!reads_gradient(call.c->use[0].id) && x->launch[c]->run != run_each)
            z->ops->momentum(z->ops, x->x, NO_TENSOR, z->banks->p[i].g_own, MEAN_GRADIENT, NULL,
                             NULL, gate_of(&call));
        for (int k = 0; k < x->n[c]; k++) {
            call.first = x->launch[c][k].first, call.n = x->launch[c][k].n;
            x->launch[c][k].run(&call);
        }
    }
}
