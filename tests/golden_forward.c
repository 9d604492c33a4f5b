/* golden_forward.c - losses and gradients of the model against a golden file. */
#include "golden.h"

#include <math.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model/model.h"

/* One case of the metadata: "{"ws_short": 1, "ws_long": 3, "mtp": [1.0, 0.5, 0.2],
 * "yarn_applied_before": [3, 7], "attn_scale": 0.1}". */
struct test_case { int ws_short, ws_long, n_mtp, yarn_old, yarn_new; double mtp[MAX_MTP], scale; };

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
    const char *p = strchr(after(json, "\"mtp\":"), '[');
    while (c.n_mtp < MAX_MTP && p && *p != ']') {
        c.mtp[c.n_mtp++] = atof(p + 1);
        p += 1 + strcspn(p + 1, ",]");
    }
    sscanf(after(json, "\"yarn_applied_before\":"), " [%d, %d]", &c.yarn_old, &c.yarn_new);
    return c;
}

/* Fills a device tensor from floats, in its own dtype; and back. */
static void put(struct ops *o, struct tensor t, const float *x)
{
    int64_t n = tensor_count(t);
    uint16_t *h = malloc((size_t)n * 2);
    for (int64_t i = 0; i < n; i++)
        h[i] = bf16_from_f32(x[i]);
    o->upload(o, t.data, t.dtype == DT_BF16 ? (void *)h : (void *)x, tensor_bytes(t));
    free(h);
}

static void get(struct ops *o, float *x, struct tensor t)
{
    int64_t n = tensor_count(t);
    uint16_t *h = malloc(tensor_bytes(t));
    o->download(o, h, t.data, tensor_bytes(t));
    if (t.dtype == DT_F32)
        memcpy(x, h, tensor_bytes(t));
    else
        for (int64_t i = 0; i < n; i++)
            x[i] = bf16_to_f32(h[i]);
    free(h);
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
        put(b->ops, b->p[i].w, x);
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

/* Tokens, documents and the order by token, in device memory. */
static struct batch make_batch(struct ops *o, struct golden *g, int vocab)
{
    int64_t T, n;
    int32_t *tok = golden_ints(g, "inputs", &T), *tgt = golden_ints(g, "targets", &n);
    int64_t ncu;
    int32_t *cu = golden_ints(g, "cum_seqlens", &ncu);
    int32_t *start = calloc((size_t)vocab + 1, sizeof *start);
    int32_t *order = malloc((size_t)T * sizeof *order);
    int32_t k = 0;
    for (int v = 0; v < vocab; v++) {
        start[v] = k;
        for (int32_t t = 0; t < T; t++)
            if (tok[t] == v)
                order[k++] = t;
    }
    start[vocab] = k;
    const struct { int32_t *host; int64_t n; } parts[] = {
        { tok, T }, { tgt, T }, { cu, ncu }, { order, T }, { start, vocab + 1 } };
    int32_t *dev[5];
    for (int i = 0; i < 5; i++) {
        dev[i] = o->alloc(o, (size_t)parts[i].n * 4, "golden batch");
        o->upload(o, dev[i], parts[i].host, (size_t)parts[i].n * 4);
        free(parts[i].host);
    }
    return (struct batch){ .tokens = (int)T, .tgt = dev[1], .cu = dev[2], .ncu = (int)ncu,
                           .token = { (int)T, dev[0], dev[3], dev[4] } };
}

static bool compare_loss(struct golden *g, struct ops *o, real *loss, const char *name, double factor,
                         double tol)
{
    real got;
    int64_t n;
    o->download(o, &got, loss, sizeof got);
    float *want = golden_floats(g, name, &n), x = (float)(got * factor);
    bool ok = n == 1 && golden_report(name, relative_error(&x, want, 1), tol);
    free(want);
    return ok;
}

static bool compare_grads(struct golden *g, struct banks *b, char letter, double tol)
{
    bool ok = true;
    for (int i = 0; i < b->n; i++) {
        char name[64];
        int64_t n, have = tensor_count(b->p[i].g);
        snprintf(name, sizeof name, "%c.grad.%s", letter, golden_name(b->p[i].spec->label));
        float *want = golden_floats(g, name, &n), *got = malloc((size_t)have * sizeof *got);
        get(b->ops, got, b->p[i].g);
        ok &= golden_report(name, n == have ? relative_error(got, want, n) : NAN, tol);
        free(want);
        free(got);
    }
    return ok;
}

static bool run_case(struct golden *g, struct model *m, const struct batch *b, char letter,
                     float *freq, real *loss)
{
    struct ops *o = m->ops;
    const struct recipe *r = m->recipe;
    bool f32 = o->act == DT_F32;
    struct test_case c = read_case(st_meta(g->h, (char[]){ letter, 0 }));
    struct point p = { .n_mtp = c.n_mtp, .sequence = b->tokens, .window_short = c.ws_short * r->block,
                       .window_long = c.ws_long * r->block };
    char name[32];
    double scale = m->attn_scale;
    memcpy(p.mtp, c.mtp, sizeof p.mtp);
    model_set(m, &p);
    if (c.yarn_new)
        rope_yarn(freq, r->head_dim / 4, r->block, c.yarn_old, c.yarn_new, &scale);
    o->rope_table(o, m->rope, freq);
    m->attn_scale = scale;
    banks_clear(m->banks, true);
    o->zero(o, tensor_of(loss, DT_F32, 1, 1));
    model_train(m, b, loss);
    snprintf(name, sizeof name, "%c.loss", letter);
    /* f32 on both sides: 1e-5 and 1e-4; bf16 activations: eight bits, averaged over the sums. */
    bool ok = golden_report("softmax scale", scale - c.scale > 0 ? scale - c.scale : c.scale - scale, 1e-12);
    ok &= compare_loss(g, o, loss, name, 1, f32 ? 1e-5 : 1e-2);
    ok &= compare_grads(g, m->banks, letter, f32 ? 1e-4 : 5e-2);
    o->zero(o, tensor_of(loss, DT_F32, 1, 1));
    model_eval(m, b, loss);
    snprintf(name, sizeof name, "%c.eval_loss", letter);
    m->attn_scale = scale;
    return compare_loss(g, o, loss, name, 1.0 / b->tokens, f32 ? 1e-5 : 1e-2) & ok;
}

int golden_forward(struct ops *o, const char *file)
{
    struct golden g;
    struct recipe *r;
    struct banks banks;
    struct model m;
    float freq[64];
    int rc = golden_open(&g, file);
    if (rc)
        return rc;
    bool r74 = st_meta(g.h, "bigram_vocab") != NULL, ok = true;
    if ((rc = golden_recipe(&r, &g, r74 ? "record-74" : "record-61", o->act == DT_F32)))
        return rc;
    int T = golden_int(&g, "T", 96);
    r->chunks = 1;      /* one micro-batch: the loss is not divided */
    if ((rc = banks_init(&banks, r, o, 0, 1)) || (rc = fill_params(&banks, &g)) ||
        (rc = model_init(&m, &banks, T, T)))
        return rc;
    struct batch b = make_batch(o, &g, r->vocab);
    real *loss = o->alloc(o, sizeof *loss, "loss");
    rope_initial(r, freq);
    struct point zero = { .n_mtp = 1 };
    model_set(&m, &zero);
    for (char letter = 'a'; letter <= 'c'; letter++)
        ok &= run_case(&g, &m, &b, letter, freq, loss);
    rc = o->sync(o);
    recipe_free(r);
    st_close(g.r);
    return rc ? rc : !ok;
}
