/* rules.c - see rules.h. */
#include "optim/rules.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* What a launch works on. */
struct call {
    struct optim *z;
    int i, chain;
    const struct chain *c;
    int first; /* of the launch's stages */
};
typedef void stage_run(const struct call *c);

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
    float *lr_mul[2], *shape[2]; /* of the own matrices: multipliers of the rate, of X */
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

/* The chain's first stage reads the gradient, later ones X. */
static void run_momentum(const struct call *c)
{
    struct tensor x = rule_of(c)->x;
    ops_of(c)->momentum(ops_of(c), x, state_of(c, c->first), c->first ? x : param_of(c)->g_own,
                        stage_has(&c->c->use[c->first], "nesterov"), &hyper_of(c)->number[c->first],
                        c->first == 0, gate_of(c));
}

/* X <- the orthogonal factor of y, which is scaled for it. */
static void orthogonalise(const struct call *c, struct tensor y, const struct stage_use *u)
{
    ops_of(c)->polar(ops_of(c), y, matrices_of(c), c->c->polar.row, c->c->polar.n,
                     polar_how(c->z->recipe, u));
    if (y.data != rule_of(c)->x.data)
        ops_of(c)->copy(ops_of(c), rule_of(c)->x, y);
}

static void run_polar(const struct call *c)
{
    const struct stage_use *u = &c->c->use[c->first];
    struct tensor x = rule_of(c)->x, y = rule_of(c)->narrow.data ? rule_of(c)->narrow : x;
    ops_of(c)->polar_input(ops_of(c), y, x, matrices_of(c), stage_has(u, "aol"),
                           u->number[0].value[0], u->number[1].value[0]);
    orthogonalise(c, y, u);
}

static void run_variance(const struct call *c)
{
    bool round = stage_has(&c->c->use[c->first], "round") &&
                 polar_dtype(c->z->recipe, param_of(c)->spec) == DT_BF16;
    ops_of(c)->variance(ops_of(c), rule_of(c)->x, state_of(c, c->first), matrices_of(c), round,
                        &hyper_of(c)->number[c->first], gate_of(c));
}

/* With lr it is part of the write's rates. */
static void run_shape(const struct call *c)
{
    if (!stage_has(&c->c->use[c->first], "lr"))
        ops_of(c)->scale(ops_of(c), rule_of(c)->x, matrices_of(c), rule_of(c)->shape[c->chain],
                         NULL);
}

static void run_scale(const struct call *c)
{
    ops_of(c)->scale(ops_of(c), rule_of(c)->x, matrices_of(c), NULL,
                     &hyper_of(c)->number[c->first]);
}

static void run_sign(const struct call *c) { ops_of(c)->sign(ops_of(c), rule_of(c)->x); }

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

/* Moves the exact value, and makes of it the weight where that is stored otherwise. second: of a variance
 * that is part of the write; or none. */
static void write_weight(const struct call *c, struct tensor second, const real *blend)
{
    const struct optim_param *q = &c->z->p[c->i];
    struct fp8_copy copy;
    struct adam_param weight = optim_weight(c->z, c->i, &copy);
    struct tensor exact = q->master.t.data ? q->master.t : weight.w;

    ops_of(c)->normuon(ops_of(c), exact, q->mantissa, second, rule_of(c)->x, matrices_of(c),
                       rule_of(c)->lr_mul[c->chain], blend, decay_of(c->c), &hyper_of(c)->write,
                       gate_of(c));
    if (q->master.t.data)
        ops_of(c)->store(ops_of(c), &weight, exact);
    else if (weight.compute.data)
        ops_of(c)->copy(ops_of(c), weight.compute, exact);
    else if (weight.copy)
        ops_of(c)->quantize(ops_of(c), &copy, weight.w);
}

/* The write does it. */
static void run_decay(const struct call *c) { (void)c; }
static void run_step(const struct call *c) { write_weight(c, NO_TENSOR, NULL); }
/* optim/step.c updates all of adam's parameters of a step in few launches. */
static void run_adam(const struct call *c) { (void)c; }

static stage_run *const alone[N_STAGE_ROWS] = {
#define STAGE(word, ...) [STAGE_##word] = run_##word,
#include "recipe/stage_list.h"
};

/* -- fused -------------------------------------------------------------------------------- */

static void run_momentum_polar(const struct call *c)
{
    const struct stage_use *u = &c->c->use[c->first + 1];
    struct tensor y = rule_of(c)->narrow.data ? rule_of(c)->narrow : rule_of(c)->x;
    ops_of(c)->muon_input(ops_of(c), y, state_of(c, c->first), param_of(c)->g_own, matrices_of(c),
                          stage_has(u, "aol"), &hyper_of(c)->number[c->first], gate_of(c));
    orthogonalise(c, y, u);
}

/* The record's scaling, of the gradient itself. */
static bool is_record_polar(const struct chain *c, int first)
{
    const struct stage_use *u = &c->use[first + 1];
    return first == 0 && stage_has(&c->use[0], "nesterov") &&
           (stage_has(u, "aol") ||
            (u->number[0].value[0] == 1.02 && u->number[1].value[0] == 1e-6));
}

static void run_variance_write(const struct call *c)
{
    write_weight(c, state_of(c, c->first), &hyper_of(c)->number[c->first]);
}

/* What stands between variance and step is part of the write: rates and decay. The op rounds to the type of
 * X, which is polar's if nothing but that fused pair stands before. */
static bool is_record_write(const struct chain *c, int first)
{
    const struct stage_use *shape = chain_stage(c, STAGE_shape);
    return first == 2 && c->use[0].id == STAGE_momentum && c->use[1].id == STAGE_polar &&
           is_record_polar(c, 0) && stage_has(&c->use[2], "round") &&
           (!shape || stage_has(shape, "lr"));
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
        out[n] =
            f ? (struct launch){ f->run, k, f->n } : (struct launch){ alone[c->use[k].id], k, 1 };
    }
    return n;
}

/* True if X is polar's result from the first launch on, and none behind it needs it in f32. */
static bool stays_narrow(const struct chain *c, bool fuse)
{
    struct launch l[MAX_USES];
    int n = chain_compile(c, fuse, l);
    for (int k = 0; k < n; k++) {
        enum stage_id id = c->use[l[k].first].id;
        bool rates = id == STAGE_shape && stage_has(&c->use[l[k].first], "lr");
        if (l[k].n == 1 && (k == 0 || (id != STAGE_decay && id != STAGE_step && !rates)))
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

static int factors(struct compiled *x, const struct param *p, int chain)
{
    const struct chain *c = &p->spec->rule.chain[chain];
    const struct stage_use *shape = chain_stage(c, STAGE_shape);
    bool of_rate = shape && stage_has(shape, "lr");
    int64_t n = own_matrices(p), first = p->spec->matrices > 1 ? p->own_first : 0;
    size_t bytes = (size_t)n * sizeof(float) + 1;

    x->lr_mul[chain] = malloc(bytes);
    x->shape[chain] = malloc(bytes);
    if (!x->lr_mul[chain] || !x->shape[chain])
        return err_memory();
    for (int64_t m = 0; m < n; m++) {
        double f = recipe_shape_factor(p->spec, c, first + m);
        x->shape[chain][m] = (float)f;
        x->lr_mul[chain][m] =
            (float)((of_rate ? f : 1) * p->spec->lr_mul[(first + m) % p->spec->n_lr]);
    }
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
        polar |= chain_stage(&rule->chain[c], STAGE_polar) != NULL;
        rc = factors(x, p, c);
    }
    if (rc)
        return rc;
    int64_t rows = p->w_own.rows, cols = p->w_own.cols;
    x->x = optim_take(z, narrow ? type : DT_F32, rows, cols, "update");
    if (!narrow && polar && type != DT_F32)
        x->narrow = optim_take(z, type, rows, cols, "update to orthogonalise");
    return 0;
}

void rules_release(struct optim_param *q)
{
    for (int c = 0; q->rule && c < 2; c++) {
        free(q->rule->lr_mul[c]);
        free(q->rule->shape[c]);
    }
    free(q->rule);
    q->rule = NULL;
}

/* -- a step ------------------------------------------------------------------------------------ */

void rules_hyper(const struct recipe *r, int i, int chain, const struct step_schedule *at,
                 struct chain_hyper *h)
{
    const struct param_spec *s = &r->params[i];
    const struct chain *c = &s->rule.chain[chain];
    const struct stage_use *decay = chain_stage(c, STAGE_decay);
    double lr = schedule_number(r, s, &c->lr, at) * at->lr, second = schedule_second_part(r, s, at);

    for (int k = 0; k < c->n; k++) {
        double v = schedule_number(r, s, &c->use[k].number[0], at);
        bool mean = stage_rows[c->use[k].id].what & STAGE_MEAN;
        h->number[k] = (real)(mean ? 1 - v : v);
        if (c->use[k].id == STAGE_momentum && r->optimizer.muon.blend_f32)
            h->number[k] = 1 - (float)v;
    }
    h->write.lr = (real)lr;
    if (decay)
        h->write.decay = (real)((stage_has(decay, "lr2") ? lr : 1) *
                                schedule_number(r, s, &decay->number[0], at) * s->wd_mul);
    if (rule_chains(&s->rule) > 1)
        h->write.lr *= (real)(chain ? second : 1 - second);
}

void rules_update(struct optim *z, int i, unsigned chains)
{
    const struct compiled *x = z->p[i].rule;
    if (!x || !z->banks->p[i].own_count) /* more ranks than matrices */
        return;
    for (int c = 0; c < rule_chains(&z->recipe->params[i].rule); c++) {
        struct call call = { z, i, c, &z->recipe->params[i].rule.chain[c], 0 };
        if (!x->n[c] || !(chains >> c & 1))
            continue;
        if (call.c->use[0].id != STAGE_momentum) /* which reads the gradient itself */
            z->ops->momentum(z->ops, x->x, NO_TENSOR, z->banks->p[i].g_own, false, NULL, true,
                             gate_of(&call));
        for (int k = 0; k < x->n[c]; k++) {
            call.first = x->launch[c][k].first;
            x->launch[c][k].run(&call);
        }
    }
}
