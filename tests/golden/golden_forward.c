/* golden_forward.c - losses and gradients of the model against a golden file. */
#include "golden.h"

#include <math.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "data/bigram.h"
#include "model/model.h"

/* Relative errors of the three cases. */
enum { CASES = 3, NOISE_DRAWS = 64 };
struct errors {
    double hash; /* bigram rows that differ */
    double signs; /* and rows of signs */
    double scale[CASES], loss[CASES], eval_loss[CASES], grad[CASES][MAX_PARAMS];
};

/* One case of the metadata: "{"ws_short": 1, "ws_long": 3, "mtp": [1.0, 0.5, 0.2],
 * "yarn_applied_before": [3, 7], "attn_scale": 0.1}". */
struct test_case {
    int ws_short, ws_long, n_mtp, yarn_old, yarn_new;
    double mtp[MAX_MTP], scale, prefix;
};

static const char *after(const char *json, const char *key)
{
    const char *p = strstr(json, key);
    if (!p) {
        fprintf(stderr, "golden: no %s in %s\n", key, json);
        exit(GPT_INPUT);
    }
    return p + strlen(key);
}

static struct test_case read_case(const char *json)
{
    struct test_case c = { 0 };
    c.ws_short = atoi(after(json, "\"ws_short\":"));
    c.ws_long = atoi(after(json, "\"ws_long\":"));
    c.scale = atof(after(json, "\"attn_scale\":"));
    if (strstr(json, "\"prefix\":"))
        c.prefix = atof(after(json, "\"prefix\":"));
    const char *p = strchr(after(json, "\"mtp\":"), '[');
    while (c.n_mtp < MAX_MTP && p && *p != ']') {
        c.mtp[c.n_mtp++] = atof(p + 1);
        p += 1 + strcspn(p + 1, ",]");
    }
    sscanf(after(json, "\"yarn_applied_before\":"), " [%d, %d]", &c.yarn_old, &c.yarn_new);
    return c;
}

static int fill_params(struct banks *b, struct golden *g)
{
    for (int i = 0; i < b->n; i++) {
        char name[64];
        int64_t n;
        snprintf(name, sizeof name, "param.%s", golden_name(b->p[i].spec->label));
        float *x = golden_floats(g, name, &n);
        if (n != tensor_count(b->p[i].w))
            return err_set(GPT_INPUT, "%s: expected %lld elements, found %lld", name,
                           (long long)tensor_count(b->p[i].w), (long long)n);
        floats_to(b->ops, b->p[i].w, x);
        free(x);
    }
    return 0;
}

static int32_t *golden_ints(struct golden *g, const char *name, int64_t *n)
{
    float *x = golden_floats(g, name, n);
    int32_t *v = malloc((size_t)(*n + 1) * sizeof *v);
    for (int64_t i = 0; i < *n; i++)
        v[i] = (int32_t)x[i];
    free(x);
    return v;
}

/* Rows and the order by row, in device memory; by definition, not as the loader does it. */
static struct lookup make_lookup(struct ops *o, const int32_t *row, int64_t T, int rows)
{
    int32_t *start = calloc((size_t)rows + 1, sizeof *start);
    int32_t *order = malloc((size_t)T * sizeof *order);
    int32_t k = 0;
    for (int v = 0; v < rows; v++) {
        start[v] = k;
        for (int32_t t = 0; t < T; t++)
            if (row[t] == v)
                order[k++] = t;
    }
    start[rows] = k;
    struct lookup l = { (int)T, golden_device(o, row, T), golden_device(o, order, T),
                        golden_device(o, start, rows + 1) };
    free(start);
    free(order);
    return l;
}

/* How many of the hashes of tok differ from those of the record's program; l by ours. */
static double golden_bigram(struct ops *o, struct golden *g, const int32_t *tok, int64_t T,
                            int rows, struct lookup *l)
{
    int64_t n;
    int differ = 0;
    int32_t *want = golden_ints(g, "bigram_inputs", &n), *got = malloc((size_t)T * sizeof *got);
    bigram_rows(tok, (int)T, rows, got);
    for (int64_t t = 0; t < T && n == T; t++)
        differ += want[t] != got[t];
    *l = make_lookup(o, got, T, rows);
    free(want);
    free(got);
    return n == T ? differ : NAN;
}

/* How many of the rows of signs that pair_signs takes differ from those of the record's program: with
 * a table that has its row's number in place of signs, of one column. Numbers up to 64 are exact. */
static double golden_signs(struct ops *o, struct golden *g, const struct batch *b, int rows)
{
    int64_t n, T = b->tokens, most = rows > T ? rows : T;
    int differ = 0;
    struct tensor x = tensor_of(NULL, o->act, T, 1), table = tensor_of(NULL, DT_F32, rows, 1);
    int32_t *want = golden_ints(g, "sign_rows", &n);
    float *number = malloc((size_t)most * sizeof *number), *got;

    x.data = o->alloc(o, tensor_bytes(x), "rows of signs");
    table.data = o->alloc(o, tensor_bytes(table), "rows of signs");
    for (int64_t i = 0; i < most; i++)
        number[i] = 1;
    floats_to(o, x, number);
    for (int i = 0; i < rows; i++)
        number[i] = (float)i;
    floats_to(o, table, number);
    o->pair_signs(o, x, table, b);
    got = floats_of(o, x);
    for (int64_t t = 0; t < T && n == T; t++)
        differ += (float)want[t] != got[t]; /* NaN differs */
    free(want);
    free(number);
    free(got);
    return n == T ? differ : NAN;
}

static struct batch make_batch(struct ops *o, struct golden *g, const struct recipe *r,
                               struct errors *e)
{
    int64_t T, n, ncu;
    int32_t *tok = golden_ints(g, "inputs", &T), *tgt = golden_ints(g, "targets", &n);
    int32_t *cu = golden_ints(g, "cum_seqlens", &ncu);
    struct batch b = { .tokens = (int)T,
                       .tgt = golden_device(o, tgt, T),
                       .cu = golden_device(o, cu, ncu),
                       .ncu = (int)ncu,
                       .token = make_lookup(o, tok, T, r->model.vocab) };
    if (r->model.bigram.rows)
        e->hash = golden_bigram(o, g, tok, T, r->model.bigram.rows, &b.bigram);
    if (r->model.bigram.signs)
        e->signs = golden_signs(o, g, &b, r->model.bigram.signs);
    free(tok);
    free(tgt);
    free(cu);
    return b;
}

static double loss_error(struct golden *g, struct ops *o, real *loss, char letter, const char *kind,
                         double factor)
{
    char name[32];
    real got;
    int64_t n;
    o->download(o, &got, loss, sizeof got);
    snprintf(name, sizeof name, "%c.%s", letter, kind);
    float *want = golden_floats(g, name, &n), x = (float)(got * factor);
    double error = n == 1 ? relative_error(&x, want, 1) : NAN;
    free(want);
    return error;
}

static double grad_error(struct golden *g, struct ops *o, const struct param *p, char letter)
{
    char name[64];
    int64_t n, have = tensor_count(p->g);
    snprintf(name, sizeof name, "%c.grad.%s", letter, golden_name(p->spec->label));
    float *want = golden_floats(g, name, &n), *got = floats_of(o, p->g);
    if (golden_fixed(p->spec) && !want) { /* no gradient there, and none here */
        want = calloc((size_t)have, sizeof *want);
        n = have;
    }
    double error = n == have ? relative_error(got, want, n) : NAN;
    free(want);
    free(got);
    return error;
}

static void run_case(struct golden *g, struct model *m, const struct batch *b, int k, float *freq,
                     real *loss, struct errors *e)
{
    struct ops *o = m->ops;
    const struct recipe *r = m->recipe;
    char letter = (char)('a' + k);
    struct test_case c = read_case(st_meta(g->h, (char[]){ letter, 0 }));
    struct step_schedule p = { .n_mtp = c.n_mtp,
                               .prefix = c.prefix,
                               .prefixes = c.prefix > 0,
                               .sequence = b->tokens,
                               .window_short = c.ws_short * r->model.block,
                               .window_long = c.ws_long * r->model.block };
    double scale = m->attn_scale;
    memcpy(p.mtp, c.mtp, sizeof p.mtp);
    model_set(m, &p);
    if (c.yarn_new)
        schedule_rope_yarn(freq, r->model.rope_dim / 2, r->model.block, c.yarn_old, c.yarn_new,
                           &scale);
    o->rope_table(o, m->rope, freq, 0, false);
    m->attn_scale = scale;
    e->scale[k] = fabs(scale - c.scale);
    banks_clear(m->banks, UINT32_MAX);
    o->zero(o, tensor_of(loss, DT_F32, 1, 1));
    model_train(m, b, loss);
    e->loss[k] = loss_error(g, o, loss, letter, "loss", 1);
    for (int i = 0; i < m->banks->n; i++)
        e->grad[k][i] = grad_error(g, o, &m->banks->p[i], letter);
    o->zero(o, tensor_of(loss, DT_F32, 1, 1));
    model_eval(m, b, loss);
    m->attn_scale = scale;
    e->eval_loss[k] = loss_error(g, o, loss, letter, "eval_loss", 1.0 / b->tokens);
}

static int measure(struct ops *o, struct golden *g, struct recipe *r, struct errors *e)
{
    struct banks banks;
    struct model m;
    float freq[64];
    int rc, T = golden_int(g, "T", 96);
    if ((rc = banks_init(&banks, r, o, 0, 1)) || (rc = fill_params(&banks, g)) ||
        (rc = model_init(&m, &banks, T, T)))
        return rc;
    struct batch b = make_batch(o, g, r, e);
    if (recipe_prefixes(r)) {
        int64_t n;
        int32_t *prefix = golden_ints(g, "prefix_table", &n);
        if (n != r->model.vocab)
            return err_set(GPT_INPUT, "prefix_table: expected %d tokens, found %lld",
                           r->model.vocab, (long long)n);
        model_prefixes(&m, prefix);
        free(prefix);
    }
    real *loss = o->alloc(o, sizeof *loss, "loss");
    schedule_rope_initial(r, freq);
    struct step_schedule zero = { .n_mtp = 1 };
    model_set(&m, &zero);
    for (int k = 0; k < CASES; k++)
        run_case(g, &m, &b, k, freq, loss, e);
    return o->sync(o);
}

/* What activations of bf16 do to each gradient, whatever the device: root mean square over
 * draws of the roundings. A gradient of few numbers varies widely: bigram_lambdas of record 84, 0.019
 * by the first 8 draws, 0.028 by 32, 0.033 by 64, 0.034 by 160. */
static int measure_noise(struct golden *g, struct recipe *r, struct errors *noise)
{
    int rc = 0;
    memset(noise, 0, sizeof *noise);
    for (int d = 1; d <= NOISE_DRAWS && !rc; d++) {
        struct errors e;
        struct ops *o;
        if ((rc = golden_rounded_ops(&o, (uint64_t)d)))
            return rc;
        rc = measure(o, g, r, &e);
        for (int k = 0; k < CASES; k++)
            for (int i = 0; i < r->n_params; i++)
                noise->grad[k][i] += e.grad[k][i] * e.grad[k][i] / NOISE_DRAWS;
        o->free(o);
    }
    for (int k = 0; k < CASES; k++)
        for (int i = 0; i < r->n_params; i++)
            noise->grad[k][i] = sqrt(noise->grad[k][i]);
    return rc;
}

static bool holds_scalars(const struct recipe *r, int param)
{
    for (int i = 0; i < r->n_scalars; i++)
        if (r->scalars[i].param == param)
            return true;
    return false;
}

/* f32 on both sides: 1e-5 and 1e-4. bf16: 1e-2 and 5e-2, eight bits that average out over the
 * sums. The gradient of a scalar is a sum over all elements of the stream that nearly cancels, so
 * that roundings far before it show: there three times what roundings to nearest alone do, which is
 * 3 / sqrt(2) of the random ones here, if that is more. The same for all gradients where streams are
 * recombined with coefficients of tokens: what is left of the streams' difference is small beside
 * them, and so are its gradients beside the roundings of both (2 to 10 times those of record 74). */
static bool report(const struct recipe *r, const struct errors *e, bool bf16,
                   const struct errors *noise)
{
    bool ok = true;
    char name[64];
    if (r->model.bigram.rows)
        ok &= golden_report("bigram hash: rows that differ", e->hash, 0);
    if (r->model.bigram.signs)
        ok &= golden_report("signs: rows that differ", e->signs, 0);
    for (int k = 0; k < CASES; k++) {
        char letter = (char)('a' + k);
        ok &= golden_report("softmax scale", e->scale[k], 1e-12);
        snprintf(name, sizeof name, "%c.loss", letter);
        ok &= golden_report(name, e->loss[k], bf16 ? 1e-2 : 1e-5);
        for (int i = 0; i < r->n_params; i++) {
            double tol = bf16 ? 5e-2 : 1e-4;
            if (bf16 && (holds_scalars(r, i) || r->token_coefs.n))
                tol = fmax(tol, 3 / sqrt(2) * noise->grad[k][i]);
            snprintf(name, sizeof name, "%c.grad.%s", letter, golden_name(r->params[i].label));
            ok &= golden_report(name, e->grad[k][i], tol);
        }
        snprintf(name, sizeof name, "%c.eval_loss", letter);
        ok &= golden_report(name, e->eval_loss[k], bf16 ? 1e-2 : 1e-5);
    }
    return ok;
}

int golden_forward(struct ops *o, const char *file, bool bf16)
{
    struct golden g;
    struct recipe *r;
    struct errors e, noise;
    int rc = golden_open(&g, file);
    if (rc)
        return rc;
    if ((rc = golden_recipe(&r, &g, !bf16)))
        return rc;
    r->data.chunks = 1; /* one micro-batch: the loss is not divided */
    rc = measure(o, &g, r, &e);
    if (!rc && bf16)
        rc = measure_noise(&g, r, &noise);
    if (!rc)
        rc = !report(r, &e, bf16, &noise);
    recipe_free(r);
    st_close(g.r);
    return rc;
}
