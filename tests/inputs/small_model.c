/* small_model.c - see small_model.h. */
#include "small_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/rng.h"
#include "data/bigram.h"
#include "data/chunk.h"
#include "floats.h"

#define ALL61 \
    "attn mlp scalars ve0 ve1 ve2 smear_gate skip_gate attn_gate_bank ve_gate_bank x0_lambdas " \
    "lm_head embed gate_table"
const struct small_form small_forms[] = {
    { "record-61", { NULL, NULL } },
    { "record-61", { "model.inject_bare=no", NULL } },
    { "record-61", { "model.inject=after", "model.skip_tap=attention" } },
    { "record-61", { "model.backout=0", NULL } },
    { "record-74", { NULL, NULL } },
    { "record-74", { "model.inject=before", NULL } },
    { "record-74", { "model.inject_bare=yes", NULL } },
    { "record-74", { "model.post_single=yes", "model.fold_mlp=yes" } },
    { "record-74", { "model.lanes=-1", "model.skip_tap=layer" } },
    { "record-74", { "model.inject=before", "model.inject_bare=yes" } },
    { "record-74", { "model.lanes=8", "model.backout=9" } },
    { "record-74", { "model.skip=0 6", NULL } },
    { "record-61", { "layers.6=plain mlp:22 short no - - 9 6", NULL } },
    { "record-84", { NULL, NULL } },
    { "record-84", { "model.attend_as=-1", "model.skip_tap=attention" } },
    { "record-84", { "model.bigram_in_x0=no", "model.value_input=input" } },
    { "record-84", { "model.post_single=no", NULL } },
    { "record-84", { "model.skip=0 6", "model.attend_as=9" } },
    { "record-89", { NULL, NULL } },
    { "record-89", { "model.attend_as=-1", "model.value_input=input" } },
    { "track-3", { NULL, NULL } },
    { "track-3", { "model.rope_pairs=neighbours", "optimizer.loss=mean" } },
    { "record-61",
      { "model.gate_table=8", "parameters.gate_table=v,8 bf16 zero adam sharded 0.9 0.95 1 0 no",
        "parameters.attn_gate_bank=10,h,20 bf16 zero adam replicated 0.9 0.99 1 1 no",
        "parameters.ve_gate_bank=5,h,20 bf16 zero adam replicated 0.9 0.99 1 1 no",
        "order.scatter=" ALL61, "order.work=" ALL61 } },
    { "record-89", { "model.qk_head_dim={half}", NULL } },
    { "record-84",
      { "model.qk_head_dim={half}", "model.rope_dim={half}",
        "layers.3=plain 3 long yes - - 3 3 {head}:0.4",
        "layers.10=plain 9 long yes - - 9 10 {head}:0.4",
        "parameters.qk_bank=12h,2e,d bf16 uniform:0.5 normuon sharded - 0.9 1 1 yes" } },
};
const int n_small_forms = sizeof small_forms / sizeof *small_forms;

enum { SETS = 24, STARTS = 128 };
struct draws {
    struct rng rng;
    uint64_t n;
};

static uint64_t below(struct draws *d, int n) { return rng_below(&d->rng, d->n++, (uint64_t)n); }

/* -- the recipe ---------------------------------------------------------------------------- */

/* Copies text with {head} as the channels of a head, {half} as half of them. */
static void put_text(char *to, size_t size, const char *text, int head)
{
    size_t n = 0;
    while (*text && n + 8 < size) {
        bool half = !strncmp(text, "{half}", 6);
        if (half || !strncmp(text, "{head}", 6)) {
            n += (size_t)snprintf(to + n, size - n, "%d", half ? head / 2 : head);
            text += 6;
        } else {
            to[n++] = *text++;
        }
    }
    to[n] = '\0';
}

static int read_recipe(struct small *s, const struct small_form *f, enum dtype weights,
                       const struct small_size *z)
{
    const char *share = getenv("GPT_SHARE"), *set[SETS];
    char path[512], text[SETS][192], *recipe;
    size_t bytes;
    int n = 0, rc;

    snprintf(path, sizeof path, "%s/recipes/%s.recipe", share ? share : "share", f->recipe);
    if ((rc = file_read(path, 1 << 20, &recipe, &bytes)))
        return rc;
    snprintf(text[n++], sizeof text[0], "model.heads=%d", z->heads);
    snprintf(text[n++], sizeof text[0], "model.head_dim=%d", z->head_dim);
    bool spare = f->set[0] && strstr(f->set[0], " mlp:"); /* an MLP's matrix is attention's four */
    snprintf(text[n++], sizeof text[0], "model.mlp_width=%d",
             spare ? 4 * z->heads * z->head_dim : z->mlp_width);
    snprintf(text[n++], sizeof text[0], "model.vocab=%d", z->vocab);
    snprintf(text[n++], sizeof text[0], "model.block=%d", z->document / 4);
    snprintf(text[n++], sizeof text[0], "precision.head_fp8=no");
    if (strcmp(f->recipe, "record-61") && strcmp(f->recipe, "track-3"))
        snprintf(text[n++], sizeof text[0], "model.bigram_rows=%d", z->rows);
    bool r89 = !strcmp(f->recipe, "record-89");
    if (r89) {
        int outputs = 5 * z->heads + 11;
        snprintf(text[n++], sizeof text[0], "model.compose_window=%d", z->document / 2);
        snprintf(text[n++], sizeof text[0],
                 "parameters.mudd_gate_w2=2,%d,64 bf16 zero adam replicated 0.9 0.99 0.1 1 no",
                 outputs);
        snprintf(text[n++], sizeof text[0],
                 "parameters.mudd_gate_b2=2,%d bf16 zero adam replicated 0.9 0.99 0.1 0 no",
                 outputs);
    }
    if (r89 || !strcmp(f->recipe, "record-84")) {
        snprintf(text[n++], sizeof text[0], "model.bigram_width=%d",
                 z->heads * z->head_dim / (r89 ? 1 : 4));
        snprintf(text[n++], sizeof text[0], "model.bigram_signs=%d", z->rows / 2);
        snprintf(text[n++], sizeof text[0], "model.mtp_end=cut"); /* else no gradient of the loss */
        snprintf(text[n++], sizeof text[0], "precision.head_sigmoid=f32");
        snprintf(text[n++], sizeof text[0], "precision.mlp=bf16");
        snprintf(text[n++], sizeof text[0], "precision.mlp_down=bf16");
    }
    for (int i = 0; i < 6; i++)
        if (f->set[i])
            put_text(text[n++], sizeof text[0], f->set[i], z->head_dim);
    for (int i = 0; i < n; i++)
        set[i] = text[i];
    for (char *p = recipe; weights == DT_F32 && (p = strstr(p, " f32/bf16 ")); p += 10)
        memcpy(p, " f32      ", 10);
    for (int i = 0; i <= n && weights == DT_F32; i++)
        for (char *p = i < n ? text[i] : recipe; (p = strstr(p, " bf16 ")); p += 6)
            memcpy(p, " f32  ", 6);
    rc = recipe_parse(&s->r, path, recipe, set, n);
    free(recipe);
    return rc;
}

/* -- tokens and parameters ------------------------------------------------------------------- */

static const int32_t *kept(struct ops *o, const int32_t *v, int n)
{
    int32_t *d = o->alloc(o, (size_t)n * sizeof *d, "integers");
    o->upload(o, d, v, (size_t)n * sizeof *d);
    return d;
}

static struct lookup lookup_of(struct ops *o, const int32_t *row, int tokens, int rows)
{
    int32_t *order = malloc((size_t)tokens * sizeof *order);
    int32_t *start = malloc(((size_t)rows + 1) * sizeof *start);
    csr_by_row(row, tokens, rows, start, order);
    struct lookup l = { tokens, kept(o, row, tokens), kept(o, order, tokens),
                        kept(o, start, rows + 1) };
    free(order), free(start);
    return l;
}

static struct batch random_batch(struct ops *o, const struct small_size *z, struct draws *d)
{
    int T = z->tokens, n = 0;
    int32_t *tok = malloc(3 * (size_t)T * sizeof *tok), *tgt = tok + T, *row = tok + 2 * T;
    int32_t cu[STARTS];
    for (int t = 0; t < T; t++) {
        tok[t] = (int32_t)below(d, z->vocab);
        tgt[t] = (int32_t)below(d, z->vocab);
    }
    for (int at = 0; at < T && n < STARTS - 1; at += z->document)
        cu[n++] = at;
    while (n < STARTS)
        cu[n++] = T;
    bigram_rows(tok, T, z->rows, row);
    struct batch b = { .tokens = T,
                       .tgt = kept(o, tgt, T),
                       .cu = kept(o, cu, STARTS),
                       .ncu = STARTS,
                       .token = lookup_of(o, tok, T, z->vocab),
                       .bigram = lookup_of(o, row, T, z->rows) };
    free(tok);
    return b;
}

/* Every parameter about the size that training gives it, none zero; matrices by their width, so
 * that activations keep their size. */
static void fill(struct small *s, struct draws *d)
{
    for (int i = 0; i < s->b.n; i++) {
        struct param *p = &s->b.p[i];
        int64_t n = tensor_count(p->w);
        float *x = malloc((size_t)n * sizeof *x);
        const char *label = p->spec->label;
        rng_normals(&d->rng, d->n, n, x);
        d->n += (uint64_t)n;
        bool fixed = p->spec->lr_mul[0] == 0; /* signs */
        bool hidden = !strncmp(label, "mudd_w", 6) || !strncmp(label, "mudd_gate_w", 11);
        bool bias = !strcmp(label, "mudd_b2") || !strcmp(label, "mudd_gate_b2");
        bool factor = !strcmp(label, "_mudd_gate_scale");
        bool numbers = p->spec->comms == COMMS_REPLICATED && !hidden;
        double size = !rule_is_adam(&p->spec->rule) || hidden ? 1.2 / sqrt((double)p->w.cols) : 0.3;
        for (int64_t k = 0; k < n; k++) {
            double z = x[k], about = (factor ? 0.2 : bias ? 10 : 1) * (0.6 + 0.2 * z);
            x[k] = bf16_round((float)(fixed ? (z < 0 ? -1 : 1) : numbers ? about : size * z));
        }
        floats_to(s->o, p->w, x);
        free(x);
    }
}

int small_open(struct small *s, struct ops *o, const struct small_form *f, enum dtype weights,
               const struct small_size *size, uint64_t seed)
{
    int rc;

    memset(s, 0, sizeof *s);
    snprintf(s->label, sizeof s->label, "%s %s %s", f->recipe, f->set[0] ? f->set[0] : "",
             f->set[1] ? f->set[1] : "");
    if ((rc = read_recipe(s, f, weights, size)))
        return rc;
    s->r->data.chunks = 1; /* one micro-batch: the loss is not divided */
    return small_model(s, o, size, seed);
}

int small_model(struct small *s, struct ops *o, const struct small_size *size, uint64_t seed)
{
    struct draws d = { rng_make(seed, 1), 0 };
    int rc;

    s->o = o;
    if ((rc = banks_init(&s->b, s->r, o, 0, 1)) ||
        (rc = model_init(&s->m, &s->b, size->tokens, size->tokens)))
        return rc;
    s->loss = o->alloc(o, sizeof *s->loss, "loss");
    s->batch = random_batch(o, size, &d);
    fill(s, &d);
    small_predict(s, 2);
    return o->status(o);
}

int small_close(struct small *s)
{
    int rc = s->o->sync(s->o);
    s->o->free(s->o);
    recipe_free(s->r);
    return rc;
}

void small_predict(struct small *s, int n_mtp)
{
    int unit = s->r->model.block;
    struct step_schedule p = { .n_mtp = n_mtp,
                               .mtp = { 1, 0.5 },
                               .sequence = s->batch.tokens,
                               .window_short = unit,
                               .window_long = 3 * unit };
    model_set(&s->m, &p);
}

static double take_loss(struct small *s)
{
    real loss;
    s->o->download(s->o, &loss, s->loss, sizeof loss);
    return (double)loss;
}

double small_loss(struct small *s)
{
    s->o->zero(s->o, tensor_of(s->loss, DT_REAL, 1, 1));
    banks_clear(&s->b, UINT32_MAX);
    s->m.stale = true; /* the caller may have changed weights */
    model_train(&s->m, &s->batch, s->loss);
    return take_loss(s);
}

double small_eval(struct small *s)
{
    s->o->zero(s->o, tensor_of(s->loss, DT_REAL, 1, 1));
    s->m.stale = true;
    model_eval(&s->m, &s->batch, s->loss);
    return take_loss(s);
}
