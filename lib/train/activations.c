/* activations.c - a table of the activations of one batch: by layer and site largest, root mean square,
 * kurtosis, and how much of the norm few channels have. */
#include "train/activations.h"

#include <math.h>
#include <stdlib.h>
#include "base/report.h"
#include "train/rank.h"

/* -- sums -------------------------------------------------------------------------------- */

int site_new(struct site_sums *s, int64_t cols)
{
    *s = (struct site_sums){ cols, calloc((size_t)(SITE_CHANNELS + cols), sizeof(double)) };
    return s->at ? 0 : err_memory();
}

void site_free(struct site_sums *s)
{
    free(s->at);
    s->at = NULL;
}

static double larger(double a, double b) { return isnan(a) || b <= a ? a : b; }

/* Joins count, mean and central sums of two parts. */
static void join_moments(double *at, const double *b)
{
    double n = at[SITE_COUNT], k = b[SITE_COUNT], all = n + k, *m = at + SITE_CENTRAL;
    const double *w = b + SITE_CENTRAL;
    double d = b[SITE_MEAN] - at[SITE_MEAN], e = d / all;
    if (k == 0)
        return;
    m[2] += w[2] + d * e * e * e * n * k * (n * n - n * k + k * k) +
            6 * e * e * (n * n * w[0] + k * k * m[0]) + 4 * e * (n * w[1] - k * m[1]);
    m[1] += w[1] + d * e * e * n * k * (n - k) + 3 * e * (n * w[0] - k * m[0]);
    m[0] += w[0] + d * e * n * k;
    at[SITE_MEAN] += e * k;
    at[SITE_COUNT] = all;
}

/* Moments of one piece, in two passes. */
static void moments(double *at, const float *x, int64_t n)
{
    double *m = at + SITE_CENTRAL, sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i];
    at[SITE_COUNT] = (double)n;
    at[SITE_MEAN] = n ? sum / (double)n : 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - at[SITE_MEAN], squared = d * d;
        m[0] += squared;
        m[1] += squared * d;
        m[2] += squared * squared;
    }
}

void site_add(struct site_sums *s, const float *x, int64_t rows)
{
    double piece[SITE_CHANNELS] = { 0 };
    for (int64_t i = 0; i < rows * s->cols; i++) {
        double v = (double)x[i];
        s->at[SITE_LARGEST] = larger(s->at[SITE_LARGEST], fabs(v));
        s->at[SITE_SQUARES] += v * v;
        s->at[SITE_CHANNELS + i % s->cols] += v * v;
    }
    moments(piece, x, rows * s->cols);
    join_moments(s->at, piece);
}

void site_join(struct site_sums *s, const double *at)
{
    s->at[SITE_LARGEST] = larger(s->at[SITE_LARGEST], at[SITE_LARGEST]);
    join_moments(s->at, at);
    for (int64_t i = SITE_SQUARES; i < SITE_CHANNELS + s->cols; i++)
        s->at[i] += at[i];
}

/* Finds the part of the n greatest columns in the sum of squares, and the greatest. */
static double top(const struct site_sums *s, int n, int64_t *channel)
{
    const double *of = s->at + SITE_CHANNELS;
    double sum = 0, bound = INFINITY;
    int64_t last = -1;
    for (int k = 0; k < n && k < s->cols; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < s->cols; i++) /* those of the same sum in the order of columns */
            if ((of[i] < bound || (of[i] == bound && i > last)) && (best < 0 || of[i] > of[best]))
                best = i;
        if (best < 0)
            return NAN;
        bound = of[best], last = best;
        sum += bound;
        *channel = k ? *channel : best;
    }
    return sum / s->at[SITE_SQUARES];
}

struct site_numbers site_numbers(const struct site_sums *s)
{
    double n = s->at[SITE_COUNT];
    const double *m = s->at + SITE_CENTRAL;
    struct site_numbers x = { .largest = n > 0 ? s->at[SITE_LARGEST] : NAN,
                              .rms = sqrt(s->at[SITE_SQUARES] / n),
                              .kurtosis = m[0] > 0 ? n * m[2] / (m[0] * m[0]) : NAN,
                              .channel = -1 };
    int64_t same;
    x.top1 = top(s, 1, &x.channel);
    x.top8 = top(s, 8, &same);
    return x;
}

/* -- sites --------------------------------------------------------------------------------- */

enum { OF_MODEL = -1, SITES_OF_LAYER = 9, MAX_SITES = MAX_LAYERS * SITES_OF_LAYER + 4 };
struct site {
    int layer; /* OF_MODEL */
    const char *name;
    struct tensor t; /* none: the logits */
    struct site_sums sums;
};
struct sites {
    struct site v[MAX_SITES];
    int n;
};

static void add_site(struct sites *l, int layer, const char *name, struct tensor t)
{
    if (t.data)
        l->v[l->n++] = (struct site){ .layer = layer, .name = name, .t = t };
}

/* Lists what the forward of training keeps, in its order. */
static void list_sites(struct sites *l, const struct recipe *r, const struct acts *a)
{
    l->n = 0;
    add_site(l, OF_MODEL, "embedding", a->layer[0].in);
    for (int i = 0; i < r->n_layers; i++) {
        const struct layer_acts *x = &a->layer[i], *next = &a->layer[i + 1];
        if (layer_attends(r, i)) {
            add_site(l, i, "q", x->q);
            add_site(l, i, "k", tensor_rows(x->k, 0, a->tokens));
            add_site(l, i, "v", x->v);
            add_site(l, i, "attention", x->composed);
            if (x->gated.data != x->composed.data)
                add_site(l, i, "gated", x->gated);
            if (x->attended.data != x->in.data)
                add_site(l, i, "attended", x->attended);
            add_site(l, i, "attended1", x->attended1);
        }
        add_site(l, i, "hidden", x->post);
        add_site(l, i, "stream", next->in);
        add_site(l, i, "stream1", next->in1);
    }
    add_site(l, OF_MODEL, "head", a->head);
    l->v[l->n++] = (struct site){ .layer = OF_MODEL, .name = "logits" };
}

static int add_tensor(struct rank *k, struct site_sums *s, struct tensor t)
{
    float *x;
    int rc = one_batch_floats(k, t, &x);
    if (!rc)
        site_add(s, x, t.rows);
    free(x);
    return rc;
}

/* The forward keeps no logits: makes them in blocks of rows. */
static int add_logits(struct rank *k, struct site_sums *s, const struct acts *a,
                      const struct batch *b, struct tensor block)
{
    struct head_loss h = model_head(&k->model, b);
    int rc = 0;
    for (int64_t at = 0; at < a->tokens && !rc; at += block.rows) {
        int64_t n = a->tokens - at < block.rows ? a->tokens - at : block.rows;
        struct tensor out = tensor_rows(block, 0, n);
        k->ops->logits(k->ops, out, tensor_rows(a->head, at, n), k->model.p.lm_head->w, &h);
        rc = add_tensor(k, s, out);
    }
    return rc;
}

/* -- the table ----------------------------------------------------------------------------- */

static int print(struct sites *l, FILE *f, enum report_format format)
{
    struct report r;
    report_begin(&r, f, format);
    report_table(&r, NULL, NULL,
                 "layer:i site:s width:i largest:g5 rms:g5 kurtosis:g5 top1:g5 top8:g5 channel:i");
    for (int i = 0; i < l->n; i++) {
        const struct site *x = &l->v[i];
        struct site_numbers n = site_numbers(&x->sums);
        report_row(&r, x->layer == OF_MODEL ? REPORT_NONE : (int64_t)x->layer, x->name,
                   x->sums.cols, n.largest, n.rms, n.kurtosis, n.top1, n.top8, n.channel);
    }
    return report_end(&r);
}

/* Adds up the sums of all ranks. */
static int join_ranks(struct rank *k, struct sites *l)
{
    int rc = 0;
    for (int i = 0; i < l->n && !rc; i++) {
        struct site_sums *s = &l->v[i].sums;
        int n = (int)(SITE_CHANNELS + s->cols);
        double *all = malloc((size_t)n * (size_t)k->world * sizeof *all);
        rc = all ? k->comm->gather_host(k->comm, s->at, n, all) : err_memory();
        for (int r = 0; r < k->world && !rc; r++)
            if (r != k->rank)
                site_join(s, all + (size_t)r * (size_t)n);
        free(all);
    }
    return rc;
}

static int sum_batch(struct rank *k, const struct step_batch *s, struct sites *l)
{
    enum { BLOCK = 128 };
    int64_t vocab = k->run->recipe->model.vocab;
    struct tensor block = tensor_of(NULL, DT_REAL, BLOCK, vocab);
    struct batch b[MAX_MICRO];
    struct acts *a = model_acts(&k->model, s->chunk[0].tokens, true);
    int rc = 0;

    list_sites(l, k->run->recipe, a);
    for (int i = 0; i < l->n && !rc; i++)
        rc = site_new(&l->v[i].sums, l->v[i].t.data ? l->v[i].t.cols : vocab);
    block.data = k->ops->alloc(k->ops, tensor_bytes(block), "logits");
    if (!rc)
        rc = rank_status(k);
    if (rc)
        return rc;
    upload_step(k, 0, s, false, b);
    k->model.need = NULL;
    k->model.stale = true;
    for (int m = 0; m < k->micros && !rc; m++) {
        model_forward(&k->model, a, &b[m]);
        for (int i = 0; i < l->n && !rc; i++)
            rc = l->v[i].t.data ? add_tensor(k, &l->v[i].sums, l->v[i].t)
                                : add_logits(k, &l->v[i].sums, a, &b[m], block);
    }
    return rc ? rc : join_ranks(k, l);
}

int activations_of_batch(struct rank *k, const struct step_batch *s)
{
    const struct run_options *o = k->run->opt;
    struct sites *l = calloc(1, sizeof *l);
    rank_enter(k, "activations", false);
    int rc = l ? sum_batch(k, s, l) : err_memory();
    if (!rc && !k->rank)
        rc = print(l, o->log, report_format_of(o->format, o->wide));
    for (int i = 0; l && i < l->n; i++)
        site_free(&l->v[i].sums);
    free(l);
    return rc ? rc : k->comm->barrier(k->comm);
}
