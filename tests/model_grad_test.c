/* model_grad_test.c - the whole model's backward against slopes of its loss, in every form that a
 * recipe can ask for: both records, and the keys that turn pieces of one into the other.
 *
 * Each parameter moves by +-h and +-h/2 along a direction in which every element takes part; the
 * two slopes together are right to h^4. The loss (some 500, in f32: errors of 1e-4) changes by about
 * 1, so that the slope is known to 1e-3; 1e-2 leaves room and shows any wrong or missing term. Where
 * a gradient is zero (dead lambdas have one) the slope must be as small.
 */
#include <stdlib.h>
#include "base/file.h"
#include "base/rng.h"
#include "check.h"
#include "data/bigram.h"
#include "data/chunk.h"
#include "model/model.h"

enum { TOKENS = 48, VOCAB = 61, ROWS = 97, DOCUMENT = 17 };
static const double tolerance = 1e-2;
static struct rng rng = { 74, 1 };
static uint64_t draws;

static double normal(void) { return rng_normal(&rng, draws++); }

/* -- a small model on the CPU, all in f32 ------------------------------------------------- */

static struct recipe *small(const char *name, const char *const *set, int n)
{
    const char *share = getenv("GPT_SHARE"), *all[16] = {
        "model.heads=2", "model.head_dim=8", "model.mlp_width=40", "model.vocab=61",
        "model.block=4", "precision.head_fp8=no" };
    char path[512], *text, *p;
    size_t bytes;
    struct recipe *r = NULL;
    int k = 6;

    snprintf(path, sizeof path, "%s/recipes/%s.recipe", share ? share : "share", name);
    if (!CHECK_OK(file_read(path, 1 << 20, &text, &bytes)))
        return NULL;
    if (!strcmp(name, "record-74"))
        all[k++] = "model.bigram_rows=97";
    for (int i = 0; i < n; i++)
        all[k++] = set[i];
    for (p = text; (p = strstr(p, " bf16 ")); p += 6)
        memcpy(p, " f32  ", 6);
    CHECK_OK(recipe_parse(&r, path, text, all, k));
    free(text);
    return r;
}

static const int32_t *kept(struct ops *o, const int32_t *v, int n)
{
    int32_t *d = o->alloc(o, (size_t)n * sizeof *d, "integers");
    o->upload(o, d, v, (size_t)n * sizeof *d);
    return d;
}

static struct lookup lookup_of(struct ops *o, const int32_t *row, int rows)
{
    int32_t order[TOKENS], start[ROWS + 1];
    csr_by_row(row, TOKENS, rows, start, order);
    return (struct lookup){ TOKENS, kept(o, row, TOKENS), kept(o, order, TOKENS),
                            kept(o, start, rows + 1) };
}

static struct batch random_batch(struct ops *o)
{
    int32_t tok[TOKENS], tgt[TOKENS], row[TOKENS], cu[8], n = 0;
    for (int t = 0; t < TOKENS; t++) {
        tok[t] = (int32_t)rng_below(&rng, draws++, VOCAB);
        tgt[t] = (int32_t)rng_below(&rng, draws++, VOCAB);
    }
    for (int at = 0; at < TOKENS; at += DOCUMENT)
        cu[n++] = at;
    while (n < 8)
        cu[n++] = TOKENS;
    bigram_rows(tok, TOKENS, ROWS, row);
    return (struct batch){ .tokens = TOKENS, .tgt = kept(o, tgt, TOKENS), .cu = kept(o, cu, 8),
                           .ncu = 8, .token = lookup_of(o, tok, VOCAB),
                           .bigram = lookup_of(o, row, ROWS) };
}

struct small { struct ops *o; struct recipe *r; struct banks b; struct model m; struct batch batch;
               real *loss; };

/* Every parameter about the size that training gives it, none zero. */
static void fill(struct small *s)
{
    for (int i = 0; i < s->b.n; i++) {
        float *w = s->b.p[i].w.data;
        bool scalars = s->b.p[i].spec->comms == COMMS_REPLICATED;
        for (int64_t k = 0; k < tensor_count(s->b.p[i].w); k++)
            w[k] = (float)(scalars ? 0.6 + 0.2 * normal() : 0.3 * normal());
    }
}

static bool small_open(struct small *s, const char *name, const char *const *set, int n)
{
    memset(s, 0, sizeof *s);
    s->r = small(name, set, n);
    if (!s->r)
        return false;
    s->r->chunks = 1;           /* one micro-batch: the loss is not divided */
    if (!CHECK_OK(ops_cpu_new(&s->o)) || !CHECK_OK(banks_init(&s->b, s->r, s->o, 0, 1)) ||
        !CHECK_OK(model_init(&s->m, &s->b, TOKENS, TOKENS)))
        return false;
    s->loss = s->o->alloc(s->o, sizeof *s->loss, "loss");
    s->batch = random_batch(s->o);
    struct point p = { .n_mtp = 2, .mtp = { 1, 0.5 }, .sequence = TOKENS, .window_short = 4,
                       .window_long = 12 };
    model_set(&s->m, &p);
    fill(s);
    return true;
}

static void small_close(struct small *s)
{
    CHECK_OK(s->o->status(s->o));
    s->o->free(s->o);
    recipe_free(s->r);
}

static double loss_of(struct small *s)
{
    *s->loss = 0;
    banks_clear(&s->b, true);
    model_train(&s->m, &s->batch, s->loss);
    return (double)*s->loss;
}

/* -- checks -------------------------------------------------------------------------------- */

static double loss_moved(struct small *s, struct param *p, const float *w, const double *d, double h)
{
    int64_t n = tensor_count(p->w);
    for (int64_t k = 0; k < n; k++)
        ((float *)p->w.data)[k] = (float)(w[k] + h * d[k]);
    double loss = loss_of(s);
    memcpy(p->w.data, w, tensor_bytes(p->w));
    return loss;
}

static double slope_of(struct small *s, struct param *p, const float *w, const double *d, double h)
{
    return (loss_moved(s, p, w, d, h) - loss_moved(s, p, w, d, -h)) / (2 * h);
}

/* Half random, half the gradient's own direction, so that the slope is not small by chance. */
static double direction(double *d, const float *g, int64_t n)
{
    double size = 0, along = 0;
    for (int64_t k = 0; k < n; k++)
        size += (double)g[k] * g[k];
    size = sqrt(size);
    for (int64_t k = 0; k < n; k++) {
        d[k] = (size > 0 ? g[k] / size : 0) + normal() / sqrt((double)n);
        along += d[k] * g[k];
    }
    return along;
}

static void check_param(struct small *s, const char *form, int i)
{
    struct param *p = &s->b.p[i];
    int64_t n = tensor_count(p->w);
    float *w = malloc(tensor_bytes(p->w)), *g = malloc(tensor_bytes(p->w));
    double *d = malloc((size_t)n * sizeof *d);

    memcpy(w, p->w.data, tensor_bytes(p->w));
    loss_of(s);
    memcpy(g, p->g.data, tensor_bytes(p->g));
    double slope = direction(d, g, n), h = 0.3 / (fabs(slope) + 30);
    double found = (4 * slope_of(s, p, w, d, h / 2) - slope_of(s, p, w, d, h)) / 3;
    check_that(fabs(found - slope) <= tolerance * (fabs(slope) + 1), __FILE__, __LINE__,
               "%s: %s: gradient says %g, the loss %g", form, p->spec->label, slope, found);
    free(w), free(g), free(d);
}

static void check_form(const char *name, const char *set1, const char *set2)
{
    const char *set[] = { set1, set2 };
    char form[128];
    struct small s;

    snprintf(form, sizeof form, "%s %s %s", name, set1 ? set1 : "", set2 ? set2 : "");
    if (!small_open(&s, name, set, (set1 != NULL) + (set2 != NULL)))
        return;
    for (int i = 0; i < s.b.n; i++)
        check_param(&s, form, i);
    /* Evaluation shares buffers between layers; without MTP and softened by nothing its loss is
     * that of training with one weight. */
    struct point p = s.m.point;
    p.n_mtp = 1;
    model_set(&s.m, &p);
    double train = loss_of(&s);
    *s.loss = 0;
    model_eval(&s.m, &s.batch, s.loss);
    CHECK_NEAR((double)*s.loss / train, 1, 1e-5);
    small_close(&s);
}

/* The MLP's lambda on its product or inside it: the same function. */
static void check_fold(void)
{
    double loss[2];
    float *grad[2][MAX_PARAMS] = { { NULL } };
    struct small s;

    for (int k = 0; k < 2; k++) {
        const char *set[] = { k ? "model.fold_mlp=yes" : "model.fold_mlp=no" };
        rng = (struct rng){ 5, 1 };
        draws = 0;
        if (!small_open(&s, "record-74", set, 1))
            return;
        loss[k] = loss_of(&s);
        for (int i = 0; i < s.b.n; i++) {
            grad[k][i] = malloc(tensor_bytes(s.b.p[i].g));
            memcpy(grad[k][i], s.b.p[i].g.data, tensor_bytes(s.b.p[i].g));
        }
        if (k)
            for (int i = 0; i < s.b.n; i++) {
                double off = 0, size = 0;
                for (int64_t j = 0; j < tensor_count(s.b.p[i].g); j++) {
                    off += pow((double)grad[0][i][j] - grad[1][i][j], 2);
                    size += pow((double)grad[0][i][j], 2);
                }
                check_that(sqrt(off) <= 1e-4 * sqrt(size), __FILE__, __LINE__,
                           "fold_mlp moves the gradient of %s by %g of %g",
                           s.b.p[i].spec->label, sqrt(off), sqrt(size));
            }
        small_close(&s);
    }
    CHECK_NEAR(loss[1] / loss[0], 1, 1e-5);
    for (int i = 0; i < MAX_PARAMS; i++)
        free(grad[0][i]), free(grad[1][i]);
}

int main(void)
{
    check_form("record-61", NULL, NULL);
    check_form("record-61", "model.inject_bare=no", NULL);
    check_form("record-74", NULL, NULL);
    check_form("record-74", "model.inject=before", NULL);
    check_form("record-74", "model.inject_bare=yes", NULL);
    check_form("record-74", "model.post_single=yes", "model.fold_mlp=yes");
    check_form("record-74", "model.lanes=-1", "model.skip_tap=layer");
    check_form("record-74", "model.inject=before", "model.inject_bare=yes");
    check_form("record-74", "model.lanes=8", "model.backout=9");
    check_fold();
    return check_done();
}
