/* golden_optim.c - eight steps of the optimizer against a golden file.
 *
 * Tolerances are those under which an independent float64 implementation of
 * the definition stays: Adam and momenta differ by fp32 rounding alone; the
 * orthogonalisation works in bf16, where the order of a sum moves an update by
 * some 1e-3.
 */
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "comm/comm.h"
#include "optim/step.h"

enum { MAX_STEPS = 16 };
static const double FP32 = 1e-6; /* Adam states, momenta, fp32 weights */
static const double ULPS = 1; /* bf16 weights under Adam */
static const double SECOND = 5e-3; /* row variances of the update, which is bf16 */
static const double UPDATE = 1e-2; /* fp32 master - initial value, |d| / |ref| */
/* Where the file has no mantissas both sides are cut to bf16: a difference within UPDATE moves
 * one weight in ten by one unit, some 1e-3, of steps of some 1e-2. */
static const double CUT_UPDATE = 3e-2;

struct run {
    struct golden g;
    struct recipe *recipe;
    struct banks banks;
    struct optim z;
    struct ops *o;
    struct comm *comm;
    int steps[MAX_STEPS], n_steps;
    float *largest[MAX_PARAMS]; /* |reference| of each weight, so far */
    bool ok;
};

/* -- tensors of the file and of the device as floats ------------------------------------ */

static float *want(struct run *u, int call, const char *what, int param, int64_t n)
{
    char name[160];
    const char *theirs = golden_name(u->recipe->params[param].label);
    int64_t found;
    if (call < 0)
        snprintf(name, sizeof name, "%s.%s", what, theirs);
    else
        snprintf(name, sizeof name, "%d.%s.%s", call, what, theirs);
    float *x = golden_floats(&u->g, name, &found);
    if (x && found != n) {
        fprintf(stderr, "golden: %s: %lld elements, expected %lld\n", name, (long long)found,
                (long long)n);
        exit(GPT_INPUT);
    }
    return x;
}

static float *got(struct run *u, struct tensor t) { return floats_of(u->o, t); }

/* -- comparisons --------------------------------------------------------------------------- */

static void report(struct run *u, int call, const char *what, int param, double error, double tol)
{
    char name[160];
    snprintf(name, sizeof name, "%d.%s.%s", call, what, u->recipe->params[param].label);
    u->ok &= golden_report(name, error, tol);
}

static void compare_state(struct run *u, int call, const char *kind, int param, struct tensor t,
                          double tol)
{
    char what[64];
    snprintf(what, sizeof what, "state.%s", kind);
    float *ref = t.data ? want(u, call, what, param, tensor_count(t)) : NULL;
    if (!ref)
        return;
    float *x = got(u, t);
    report(u, call, kind, param, relative_error(x, ref, tensor_count(t)), tol);
    free(x);
    free(ref);
}

/* One unit in the last place of bf16 at x. */
static double bf16_unit(double x)
{
    int e;
    frexp(x, &e);
    return ldexp(1, e - 8);
}

/* The most that x and ref differ, in units at the largest that a weight has been so far: a last
 * bit that once fell the other way stays as it is while the weight moves towards zero. */
static double most_ulps(const float *x, const float *ref, float *largest, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        largest[i] = fmaxf(largest[i], fabsf(ref[i]));
        double d = x[i] == ref[i] ? 0 : fabs((double)x[i] - ref[i]) / bf16_unit(largest[i]);
        if (!isfinite(x[i]))
            return NAN;
        most = d > most ? d : most;
    }
    return most;
}

static float master(float high, float low) { return f32_from_bits(f32_bits(high) | (uint32_t)low); }

/* A bank's way from its initial values, with the low halves where the file has them. Matrices that no layer
 * uses stay here, and decay there. */
static void compare_update(struct run *u, int call, int param, const float *ref)
{
    struct tensor w = u->banks.p[param].w, mantissa = u->z.p[param].mantissa;
    int64_t n = tensor_count(w);
    float *init = want(u, -1, "init", param, n), *x = got(u, w), *way = malloc(2 * n * sizeof *x);
    float *ref_low = want(u, call, "state.mantissa", param, n), *low = got(u, mantissa);
    const struct param *p = &u->banks.p[param];
    n = p->used * param_unit_rows(p) * w.cols;
    for (int64_t i = 0; i < n; i++) {
        way[i] = (ref_low ? master(x[i], low[i]) : x[i]) - init[i];
        way[n + i] = (ref_low ? master(ref[i], ref_low[i]) : ref[i]) - init[i];
    }
    report(u, call, ref_low ? "update" : "update (bf16)", param, relative_error(way, way + n, n),
           ref_low ? UPDATE : CUT_UPDATE);
    free(init), free(x), free(way), free(ref_low), free(low);
}

static float *largest(struct run *u, int param, int64_t n)
{
    if (!u->largest[param])
        u->largest[param] = calloc((size_t)n, sizeof **u->largest);
    return u->largest[param];
}

static void compare_weight(struct run *u, int call, int param)
{
    struct tensor w = u->banks.p[param].w;
    int64_t n = tensor_count(w);
    float *ref = want(u, call, "after", param, n);
    if (!ref)
        return;
    if (!rule_is_adam(&u->recipe->params[param].rule)) {
        compare_update(u, call, param, ref);
    } else {
        float *x = got(u, w);
        if (w.dtype == DT_BF16)
            report(u, call, "weight (ulp)", param, most_ulps(x, ref, largest(u, param, n), n),
                   ULPS);
        else
            report(u, call, "weight", param, relative_error(x, ref, n), FP32);
        free(x);
    }
    free(ref);
}

static void compare(struct run *u, int call)
{
    for (int i = 0; i < u->recipe->n_params; i++) {
        const struct optim_param *q = &u->z.p[i];
        compare_weight(u, call, i);
        compare_state(u, call, "momentum_buffer", i, optim_state(q, "momentum"), FP32);
        compare_state(u, call, "second_momentum_buffer", i, optim_state(q, "second_momentum"),
                      SECOND);
        compare_state(u, call, "exp_avg", i, q->exp_avg.t, FP32);
        compare_state(u, call, "exp_avg_sq", i, q->exp_avg_sq.t, FP32);
    }
}

/* -- the run --------------------------------------------------------------------------------- */

/* What backward does: the first gradient after a clear is written, later ones are added. */
static void feed(struct run *u, int call)
{
    for (int i = 0; i < u->recipe->n_params; i++) {
        struct param *p = &u->banks.p[i];
        int64_t n = tensor_count(p->g);
        float *g = want(u, call, "grad", i, n);
        if (!g && golden_fixed(p->spec))
            continue;
        if (!g) {
            fprintf(stderr, "golden: call %d has no gradient of %s\n", call, p->spec->label);
            exit(GPT_INPUT);
        }
        if (!p->fresh) {
            float *sum = got(u, p->g);
            for (int64_t k = 0; k < n; k++)
                g[k] += sum[k];
            free(sum);
        }
        floats_to(u->o, p->g, g);
        p->fresh = false;
        free(g);
    }
}

static int start(struct run *u)
{
    const char *p = strchr(st_meta(u->g.h, "steps"), '[');
    while (p && *p != ']' && u->n_steps < MAX_STEPS) {
        u->steps[u->n_steps++] = atoi(p + 1);
        p += 1 + strcspn(p + 1, ",]");
    }
    int rc = golden_recipe(&u->recipe, &u->g, false);
    if (rc || (rc = comm_threads_new(&u->comm, 1)) ||
        (rc = banks_init(&u->banks, u->recipe, u->o, 0, 1)) ||
        (rc = optim_init(&u->z, u->recipe, &u->banks, u->o, u->comm)))
        return rc;
    for (int i = 0; i < u->recipe->n_params; i++) {
        float *x = want(u, -1, "init", i, tensor_count(u->banks.p[i].w));
        if (!x && golden_fixed(&u->recipe->params[i])) {
            u->o->zero(u->o, u->banks.p[i].w);
            continue;
        }
        if (!x)
            return err_set(GPT_INPUT, "no initial value of %s", u->recipe->params[i].label);
        floats_to(u->o, u->banks.p[i].w, x);
        free(x);
    }
    return 0;
}

int golden_optimizer(struct ops *o, const char *file)
{
    struct run u = { .o = o, .ok = true };
    int rc = golden_open(&u.g, file);
    if (!rc)
        rc = start(&u);
    for (int call = 0; call < u.n_steps && !rc; call++) {
        struct step_schedule at;
        schedule_at(u.recipe, u.steps[call], &at);
        feed(&u, call);
        optim_prepare(&u.z, &at);
        optim_step(&u.z);
        optim_finish(&u.z, &at);
        if (!(rc = o->sync(o)) && !(rc = u.comm->status(u.comm)))
            compare(&u, call);
    }
    for (int i = 0; i < MAX_PARAMS; i++)
        free(u.largest[i]);
    optim_release(&u.z);
    if (u.comm)
        u.comm->free(u.comm);
    recipe_free(u.recipe);
    st_close(u.g.r);
    return rc ? rc : u.ok ? GPT_OK : GPT_NO;
}
