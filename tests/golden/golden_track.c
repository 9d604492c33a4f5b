/* golden_track.c - track 3's model and optimizer against golden files (share/doc/track-3.md).
 *
 * The files have a tensor for each matrix and vector of a block, where the recipe has a bank or a row of
 * a parameter; the head is stored transposed. Sizes are those of the file's metadata.
 */
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "comm/comm.h"
#include "model/model.h"
#include "optim/step.h"

/* -- names ----------------------------------------------------------------------------------- */

/* Their name of a parameter's matrix or row of block i; several stand one behind the other in a row. */
static const struct their {
    const char *label, *name[3];
    bool blocks, transposed;
} theirs[] = {
    { "q_bank", { "attn.q.weight" }, true, false },
    { "k_bank", { "attn.k.weight" }, true, false },
    { "v_bank", { "attn.v.weight" }, true, false },
    { "o_bank", { "attn.proj.weight" }, true, false },
    { "up_bank", { "mlp.fc.weight" }, true, false },
    { "down_bank", { "mlp.proj.weight" }, true, false },
    { "qkv_bias", { "attn.q.bias", "attn.k.bias", "attn.v.bias" }, true, false },
    { "o_bias", { "attn.proj.bias" }, true, false },
    { "up_bias", { "mlp.fc.bias" }, true, false },
    { "down_bias", { "mlp.proj.bias" }, true, false },
    { "attn_gain", { "norm1.gains" }, true, false },
    { "mlp_gain", { "norm2.gains" }, true, false },
    { "embed", { "embed.weight" }, false, false },
    { "lm_head", { "proj.weight" }, false, true },
    { "head_bias", { "proj.bias" }, false, false },
    { "embed_gain", { "norm1.gains" }, false, false },
    { "head_gain", { "norm2.gains" }, false, false },
};

static const struct their *their_of(const struct param_spec *s)
{
    for (size_t k = 0; k < sizeof theirs / sizeof *theirs; k++)
        if (!strcmp(theirs[k].label, s->label))
            return &theirs[k];
    fprintf(stderr, "golden: no name of theirs for %s\n", s->label);
    exit(GPT_INPUT);
}

/* The file's numbers of a whole parameter under prefix, malloc'd; NULL: it has none of them. Where it has
 * some, others are 0 (a matrix whose step is not saved). */
static float *numbers_of(struct golden *g, const char *prefix, const struct param_spec *s)
{
    const struct their *t = their_of(s);
    int64_t all = s->matrices * s->rows * s->cols, at = 0, n;
    int blocks = t->blocks ? golden_int(g, "layers", 1) : 1;
    float *x = calloc((size_t)all, sizeof *x);
    bool any = false;

    for (int i = 0; i < blocks; i++)
        for (int k = 0; k < 3 && t->name[k]; k++) {
            char name[128];
            snprintf(name, sizeof name, t->blocks ? "%s.blocks.%d.%s" : "%s.%.0d%s", prefix,
                     t->blocks ? i : 0, t->name[k]);
            float *part = golden_floats(g, name, &n);
            if (!part) {
                free(x);
                return NULL;
            }
            for (int64_t e = 0; e < n && at + n <= all; e++)
                x[at + (t->transposed ? e % s->rows * s->cols + e / s->rows : e)] = part[e];
            at += n;
            any = true;
            free(part);
        }
    if (!any || at != all) {
        fprintf(stderr, "golden: %s.%s: %lld elements, expected %lld\n", prefix, s->label,
                (long long)at, (long long)all);
        exit(GPT_INPUT);
    }
    return x;
}

/* -- the recipe ------------------------------------------------------------------------------- */

/* Replaces each `from` in text; both as long, or text is made anew. */
static char *replaced(char *text, const char *from, const char *to)
{
    size_t old = strlen(from), new = strlen(to), n = 1;
    for (char *p = text; (p = strstr(p, from)); p += old)
        n++;
    char *out = malloc(strlen(text) + n * new + 1), *at = out, *p = text, *next;
    for (; (next = strstr(p, from)); p = next + old) {
        memcpy(at, p, (size_t)(next - p));
        memcpy(at + (next - p), to, new);
        at += next - p + (long)new;
    }
    strcpy(at, p);
    free(text);
    return out;
}

/* The recipe with so many layers, all of its parameters in f32 or as they are. */
static char *recipe_text(struct golden *g, char *text, bool f32, int batch, int row)
{
    char from[32], to[32], line[96];
    int layers = golden_int(g, "layers", 1);

    for (int i = layers; i < 12; i++) {
        snprintf(line, sizeof line, "\n%-8dplain     %-5dlong   no     -     -     -     %d\n", i,
                 i, i);
        if (!strstr(text, line))
            fprintf(stderr, "golden: no layer %d in track-3.recipe\n", i);
        text = replaced(text, line, "\n");
    }
    snprintf(to, sizeof to, " %d,", layers);
    text = replaced(text, " 12,", to);
    snprintf(to, sizeof to, "%d 8 %d ", batch, row);
    snprintf(from, sizeof from, "524288 8      1024 ");
    text = replaced(text, from, to);
    if (f32) {
        text = replaced(text, " f32/bf16 ", " f32 ");
        text = replaced(text, " bf16 ", " f32 ");
    }
    return text;
}

static int read_recipe(struct recipe **r, struct golden *g, bool f32, int mlp_width)
{
    const char *share = getenv("GPT_SHARE");
    int heads = golden_int(g, "heads", 1), size = golden_int(g, "head_dim", 4);
    int row = golden_int(g, "T", 1), batch = golden_int(g, "rows", 1) * row, n = 0;
    char path[512], *text, set[8][64];
    const char *overrides[8];
    size_t bytes;

    snprintf(path, sizeof path, "%s/recipes/track-3.recipe", share ? share : "share");
    int rc = file_read(path, 1 << 20, &text, &bytes);
    if (rc)
        return rc;
    snprintf(set[n++], 64, "model.heads=%d", heads);
    snprintf(set[n++], 64, "model.head_dim=%d", size);
    snprintf(set[n++], 64, "model.mlp_width=%d", mlp_width ? mlp_width : 4 * heads * size);
    snprintf(set[n++], 64, "model.vocab=%d", golden_int(g, "vocab", 128));
    snprintf(set[n++], 64, "data.chunks=1");
    snprintf(set[n++], 64, "data.val_chunk=%d", batch);
    snprintf(set[n++], 64, "data.val_tokens=%d", batch);
    snprintf(set[n++], 64, "schedule.steps=%d", golden_int(g, "steps", 8));
    for (int i = 0; i < n; i++)
        overrides[i] = set[i];
    text = recipe_text(g, text, f32, batch, row);
    rc = recipe_parse(r, path, text, overrides, n);
    free(text);
    return rc;
}

/* -- forward and backward ----------------------------------------------------------------------- */

/* Rows of T tokens as documents; the order by token by its definition. */
static struct batch make_batch(struct ops *o, struct golden *g, const struct recipe *r)
{
    int64_t n, m;
    int row = recipe_row(r), vocab = r->model.vocab;
    float *x = golden_floats(g, "inputs", &n), *y = golden_floats(g, "targets", &m);
    int ncu = (int)(n / row) + 2, k = 0;
    int32_t *tok = malloc((size_t)n * 4), *tgt = malloc((size_t)n * 4);
    int32_t *cu = malloc((size_t)ncu * 4), *start = malloc((size_t)(vocab + 1) * 4);
    int32_t *order = malloc((size_t)n * 4);

    for (int64_t t = 0; t < n; t++)
        tok[t] = (int32_t)x[t], tgt[t] = (int32_t)y[t];
    for (int i = 0; i < ncu; i++)
        cu[i] = (int32_t)(i * (int64_t)row < n ? i * row : n);
    for (int v = 0; v < vocab; v++) {
        start[v] = k;
        for (int32_t t = 0; t < n; t++)
            if (tok[t] == v)
                order[k++] = t;
    }
    start[vocab] = k;
    struct batch b = { .tokens = (int)n,
                       .tgt = golden_device(o, tgt, n),
                       .cu = golden_device(o, cu, ncu),
                       .ncu = ncu,
                       .token = { (int)n, golden_device(o, tok, n), golden_device(o, order, n),
                                  golden_device(o, start, vocab + 1) } };
    free(x), free(y), free(tok), free(tgt), free(cu), free(start), free(order);
    return b;
}

static int fill(struct banks *b, struct golden *g)
{
    for (int i = 0; i < b->n; i++) {
        float *x = numbers_of(g, "param", b->p[i].spec);
        if (!x)
            return err_set(GPT_INPUT, "no numbers of %s", b->p[i].spec->label);
        floats_to(b->ops, b->p[i].w, x);
        free(x);
    }
    return 0;
}

static double loss_error(struct ops *o, struct golden *g, const real *loss, const char *name,
                         double factor)
{
    real got;
    o->download(o, &got, loss, sizeof got);
    double want = atof(st_meta(g->h, name));
    return fabs((double)got * factor - want) / want;
}

static bool compare_grads(struct ops *o, struct golden *g, const struct banks *b, double tol)
{
    bool ok = true;
    for (int i = 0; i < b->n; i++) {
        char name[64];
        const struct param *p = &b->p[i];
        float *want = numbers_of(g, "grad", p->spec), *got = floats_of(o, p->g);
        snprintf(name, sizeof name, "grad.%s", p->spec->label);
        ok &= golden_report(name, want ? relative_error(got, want, tensor_count(p->g)) : NAN, tol);
        free(want);
        free(got);
    }
    return ok;
}

/* Frequencies are f32 powers on both sides: theirs are up to 5e-7 off the exact ones. */
static bool compare_frequencies(struct golden *g, const char *name, struct recipe *r, int size)
{
    int64_t n;
    float *want = golden_floats(g, name, &n), got[256] = { 0 };
    r->model.head_dim = size;
    r->model.rope_dim = size / 2;
    schedule_rope_initial(r, got);
    bool ok = golden_report(name, n == size / 2 ? relative_error(got, want, n) : NAN, 1e-6);
    free(want);
    return ok;
}

/* Tolerances of the files: f32 1e-5 and 1e-4; of bf16 as golden_forward's, 1e-2 and 5e-2. */
static int forward(struct ops *o, struct golden *g, struct recipe *r, bool bf16, bool *ok)
{
    struct banks b;
    struct model m;
    struct step_schedule at;
    int rc, T = golden_int(g, "rows", 1) * golden_int(g, "T", 1);

    if ((rc = banks_init(&b, r, o, 0, 1)) || (rc = fill(&b, g)) || (rc = model_init(&m, &b, T, T)))
        return rc;
    struct batch batch = make_batch(o, g, r);
    real *loss = o->alloc(o, sizeof *loss, "loss");
    schedule_at(r, 0, &at);
    model_set(&m, &at);
    banks_clear(&b, UINT32_MAX);
    o->zero(o, tensor_of(loss, DT_F32, 1, 1));
    model_train(&m, &batch, loss);
    *ok &= golden_report("loss", loss_error(o, g, loss, "loss", 1), bf16 ? 1e-2 : 1e-5);
    *ok &= compare_grads(o, g, &b, bf16 ? 5e-2 : 1e-4);
    o->zero(o, tensor_of(loss, DT_F32, 1, 1));
    model_eval(&m, &batch, loss);
    *ok &= golden_report("eval_loss", loss_error(o, g, loss, "eval_loss", 1.0 / T),
                         bf16 ? 1e-2 : 1e-5);
    return o->sync(o);
}

int golden_track_forward(struct ops *o, const char *file, bool bf16)
{
    struct golden g;
    struct recipe *r;
    bool ok = true;
    int rc = golden_open(&g, file);

    if (rc || (rc = read_recipe(&r, &g, !bf16, 0)))
        return rc;
    rc = forward(o, &g, r, bf16, &ok);
    ok &= compare_frequencies(&g, "rotary_freq", r, golden_int(&g, "head_dim", 4));
    ok &= compare_frequencies(&g, "rotary_freq_128", r, 128);
    recipe_free(r);
    st_close(g.r);
    return rc ? rc : !ok;
}

/* -- the optimizer -------------------------------------------------------------------------------- */

static const double ADAM_WAY = 1e-5, MOMENTS = 1e-6, MOMENTUM = 1e-6, MUON_WAY = 2e-2, TABLE = 5e-3;

struct run {
    struct golden g;
    struct recipe *recipe;
    struct banks banks;
    struct optim z;
    struct ops *o;
    struct comm *comm;
    bool
        apart; /* of the two matrices beside the model alone: they stand for up_bank and down_bank */
    bool ok;
};

/* numbers_of, or of the two matrices in block 0. */
static float *want(struct run *u, const char *prefix, const struct param_spec *s)
{
    char name[96];
    int64_t n;

    if (!u->apart)
        return numbers_of(&u->g, prefix, s);
    bool up = !strcmp(s->label, "up_bank"), down = !strcmp(s->label, "down_bank");
    float *x = calloc((size_t)(s->matrices * s->rows * s->cols), sizeof *x);
    snprintf(name, sizeof name, "%s.blocks.%s", prefix, up ? "tall" : "wide");
    float *part = up || down ? golden_floats(&u->g, name, &n) : NULL;
    if (part)
        memcpy(x, part, (size_t)n * sizeof *x);
    free(part);
    return x;
}

static void report(struct run *u, int step, const char *what, const struct param_spec *s,
                   double error, double tol)
{
    char name[96];
    snprintf(name, sizeof name, "%d.%s.%s", step, what,
             !u->apart          ? s->label
             : *s->label == 'u' ? "tall"
                                : "wide");
    u->ok &= golden_report(name, error, tol);
}

/* A weight's exact numbers: what is stored. */
static struct tensor exact_of(const struct run *u, int i)
{
    return u->z.p[i].stored.data ? u->z.p[i].stored : u->banks.p[i].w;
}

/* The way from the initial values. */
static void compare_way(struct run *u, int step, int i)
{
    const struct param_spec *s = &u->recipe->params[i];
    struct tensor t = exact_of(u, i);
    int64_t n = tensor_count(t);
    char prefix[32];
    snprintf(prefix, sizeof prefix, "%d.after", step);
    float *after = want(u, prefix, s), *init = want(u, "init", s), *got = floats_of(u->o, t);
    bool table = !strcmp(s->label, "embed");

    for (int64_t k = 0; k < n && after && init; k++)
        got[k] -= init[k], after[k] -= init[k];
    report(u, step, "way", s, after && init ? relative_error(got, after, n) : NAN,
           table                    ? TABLE
           : rule_is_adam(&s->rule) ? ADAM_WAY
                                    : MUON_WAY);
    free(after), free(init), free(got);
}

static void compare_state(struct run *u, int step, int i, const char *kind, double tol)
{
    const struct param_spec *s = &u->recipe->params[i];
    struct tensor t = optim_state(&u->z.p[i], kind);
    char prefix[48];
    if (!t.data)
        return;
    snprintf(prefix, sizeof prefix, "%d.state.%s", step, kind);
    float *ref = want(u, prefix, s), *got = floats_of(u->o, t);
    report(u, step, kind, s, ref ? relative_error(got, ref, tensor_count(t)) : NAN, tol);
    free(ref), free(got);
}

static void compare(struct run *u, int step)
{
    for (int i = 0; i < u->recipe->n_params; i++) {
        const char *label = u->recipe->params[i].label;
        bool table = !strcmp(label, "embed");
        if (u->apart && strcmp(label, "up_bank") != 0 && strcmp(label, "down_bank") != 0)
            continue;
        compare_way(u, step, i);
        compare_state(u, step, i, "momentum", MOMENTUM);
        compare_state(u, step, i, "exp_avg", table ? TABLE : MOMENTS);
        compare_state(u, step, i, "exp_avg_sq", table ? TABLE : MOMENTS);
    }
}

/* The working copy is the nearest bf16 of what is stored, to even: every bit (track-3.md 3). */
static int copies_differ(struct run *u)
{
    int differ = 0;
    for (int i = 0; i < u->recipe->n_params; i++) {
        const struct param *p = &u->banks.p[i];
        float *stored = floats_of(u->o, exact_of(u, i)), *copy = floats_of(u->o, p->w);
        for (int64_t k = 0; k < tensor_count(p->w); k++)
            differ += f32_bits(copy[k]) != f32_bits(bf16_round(stored[k]));
        free(stored), free(copy);
    }
    return differ;
}

static int start(struct run *u)
{
    int rc;
    if ((rc = read_recipe(&u->recipe, &u->g, false, u->apart ? 48 : 0)) ||
        (rc = comm_threads_new(&u->comm, 1)) ||
        (rc = banks_init(&u->banks, u->recipe, u->o, 0, 1)) ||
        (rc = optim_init(&u->z, u->recipe, &u->banks, u->o, u->comm)))
        return rc;
    for (int i = 0; i < u->recipe->n_params; i++) {
        float *x = want(u, "init", &u->recipe->params[i]);
        if (!x)
            return err_set(GPT_INPUT, "no initial value of %s", u->recipe->params[i].label);
        floats_to(u->o, u->banks.p[i].w, x);
        floats_to(u->o, exact_of(u, i), x);
        free(x);
    }
    return 0;
}

static int one_step(struct run *u, int step)
{
    struct step_schedule at;
    char prefix[32];
    int rc;

    schedule_at(u->recipe, step - 1, &at);
    snprintf(prefix, sizeof prefix, "%d.grad", step);
    for (int i = 0; i < u->recipe->n_params; i++) {
        float *g = want(u, prefix, &u->recipe->params[i]);
        if (!g)
            return err_set(GPT_INPUT, "no gradient of %s", u->recipe->params[i].label);
        floats_to(u->o, u->banks.p[i].g, g);
        free(g);
    }
    optim_prepare(&u->z, &at);
    optim_step(&u->z);
    optim_finish(&u->z, &at);
    if ((rc = u->o->sync(u->o)) || (rc = u->comm->status(u->comm)))
        return rc;
    u->ok &= golden_report("copies that are not the nearest bf16", copies_differ(u), 0);
    if (step == 1 || step == 5 || step == 8)
        compare(u, step);
    return 0;
}

static int all_steps(struct ops *o, const char *file, bool apart, bool *ok)
{
    struct run u = { .o = o, .ok = true, .apart = apart };
    int rc = golden_open(&u.g, file), steps = rc ? 0 : golden_int(&u.g, "steps", 8);

    if (!rc)
        rc = start(&u);
    for (int step = 1; step <= steps && !rc; step++)
        rc = one_step(&u, step);
    *ok &= u.ok;
    optim_release(&u.z);
    if (u.comm)
        u.comm->free(u.comm);
    recipe_free(u.recipe);
    st_close(u.g.r);
    return rc;
}

/* Twelve iterations alone, in f32: 11 or 13 of them, or other coefficients, are ten times further off. */
static int iterations(struct ops *o, const char *file, bool *ok)
{
    static const char *const shapes[] = { "square", "tall", "wide" };
    struct golden g;
    struct recipe *r;
    int rc = golden_open(&g, file);

    if (rc || (rc = read_recipe(&r, &g, false, 0)))
        return rc;
    for (int k = 0; k < 3; k++) {
        char in[32], out[32];
        int64_t n;
        snprintf(in, sizeof in, "ns.%s.in", shapes[k]);
        snprintf(out, sizeof out, "ns.%s.out", shapes[k]);
        const struct st_tensor *t = st_find(g.h, in);
        float *x = golden_floats(&g, in, &n), *ref = golden_floats(&g, out, &n);
        struct tensor y = tensor_of(NULL, DT_F32, (int64_t)t->shape[0], (int64_t)t->shape[1]);
        y.data = o->alloc(o, tensor_bytes(y), "matrix");
        floats_to(o, y, x);
        o->polar_input(o, y, y, 1, false, 1, 1e-7);
        o->polar(o, y, 1, r->optimizer.polar.row, r->optimizer.polar.n, 0);
        float *got = floats_of(o, y);
        *ok &= golden_report(out, relative_error(got, ref, n), 1e-3);
        free(x), free(ref), free(got);
    }
    recipe_free(r);
    st_close(g.r);
    return o->sync(o);
}

int golden_track_optimizer(struct ops *o, const char *file)
{
    bool ok = true;
    int rc = all_steps(o, file, false, &ok);
    if (!rc)
        rc = all_steps(o, file, true, &ok);
    if (!rc && !strcmp(o->device, "cpu")) /* products of f32 are a CPU's */
        rc = iterations(o, file, &ok);
    return rc ? rc : !ok;
}
