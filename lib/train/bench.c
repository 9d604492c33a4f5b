/* bench.c - times of the recipe's stages, without data (gpt-train --bench).
 *
 * For each stage: whole steps as a run takes them (graphs included), the same
 * without collectives, and forward and backward alone; host clock around work
 * that ends with a sync. The second less the third is the optimizer, with the
 * sums of micro-batches; the first less the second, communication that nothing
 * hides. Tokens are drawn from a long-tailed distribution and documents have
 * lengths as text has, so that attention and table gradients do their real work.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "train/floor.h"
#include "train/rank.h"

struct times { double median, min; };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct times summarize(double *ms, int n)
{
    qsort(ms, (size_t)n, sizeof *ms, by_value);
    return (struct times){ n % 2 ? ms[n / 2] : (ms[n / 2 - 1] + ms[n / 2]) / 2, ms[0] };
}

/* Token ids with frequencies like 1 / (rank + 10), documents of 100 .. 2000 tokens. */
static void fill_chunk(const struct recipe *r, struct chunk *c, char *block, int T, int cap,
                       uint64_t seed)
{
    struct rng rng = rng_make(seed, 77);
    struct chunk_shape shape = feed_chunk(r, T, true);
    chunk_place(c, block, &shape);
    int bound = c->bound;
    int32_t *tok = (int32_t *)c->tok, *tgt = (int32_t *)c->tgt, *cu = (int32_t *)c->cu;
    double span = log((r->vocab + 10) / 10.0);
    for (int t = 0; t <= T; t++) {
        int32_t v = (int32_t)(10 * (exp(span * rng_uniform(&rng, (uint64_t)t)) - 1));
        v = v < 0 ? 0 : v >= r->vocab ? r->vocab - 1 : v;
        if (t < T)
            tok[t] = v;
        if (t > 0)
            tgt[t - 1] = v;
    }
    int n = 0, p = 0;
    for (; p < T && n + 1 < bound; n++) {
        double u = rng_uniform(&rng, (uint64_t)(1 << 24) + (uint64_t)n);
        int len = (int)(100 - 500 * log(1 - u));
        len = len > cap ? cap : len;
        cu[n] = p;
        p = p + len > T ? T : p + len;
    }
    for (; n < bound; n++)
        cu[n] = T;
    chunk_index(c, &shape);
}

/* Query-key pairs of a layer's scores in this chunk. */
static double pairs(const struct chunk *c, int mul, int window)
{
    double sum = 0;
    for (int i = 0; i + 1 < c->bound; i++) {
        double n = (double)mul * (c->cu[i + 1] - c->cu[i]), w = window + 1;
        sum += n <= w ? n * (n + 1) / 2 : w * (w + 1) / 2 + (n - w) * w;
    }
    return sum;
}

struct stage_bench {
    struct rank *k;
    struct point even, odd;
    struct batch b[MAX_MICRO];
    void *model_graph;
    int32_t *touched[2];        /* rows of the bigram table, of an even and an odd step; or NULL */
    struct sparse_stats before; /* of exchanges, when the stage began */
    double attn_flops;          /* forward and backward of a step on this rank */
};

static void run_step(struct stage_bench *s, int i)
{
    struct rank *k = s->k;
    struct point *p = i % 2 ? &s->odd : &s->even;
    optim_prepare(&k->optim, p);
    if (s->touched[i % 2])
        optim_touch(&k->optim, s->touched[i % 2], k->micros * p->chunk_tokens);
    if (step_launch(k, p, s->b))
        return;
    optim_finish(&k->optim, p);
}

static void run_model(struct stage_bench *s, int i)
{
    struct rank *k = s->k;
    (void)i;
    banks_begin(&k->banks, true);
    k->model.final = NULL;
    for (int m = 0; m < k->micros; m++)
        model_train(&k->model, &s->b[m], k->loss);
}

/* Ranks that wait for each other take what the slowest takes: so do those that do not. */
static int slowest(struct rank *k, double mine, double *out)
{
    double all[MAX_RANKS];
    int rc = k->comm->gather_host(k->comm, &mine, 1, all);
    *out = mine;
    for (int r = 0; r < k->world && !rc; r++)
        *out = fmax(*out, all[r]);
    return rc;
}

/* Pairs of calls, an even and an odd one: the mean of the two is a step's time. */
static int measure(struct stage_bench *s, void (*f)(struct stage_bench *, int), int n,
                   struct times *out)
{
    struct rank *k = s->k;
    double *ms = calloc((size_t)n, sizeof *ms);
    int rc = ms ? 0 : err_sys("bench");
    for (int i = -2; i < n && !rc; i++) {
        double pair;
        if ((rc = k->ops->sync(k->ops)) || (rc = k->comm->barrier(k->comm)))
            break;
        double begin = now_seconds();
        f(s, 0);
        f(s, 1);
        if ((rc = k->ops->sync(k->ops)) || (rc = slowest(k, now_seconds() - begin, &pair)))
            break;
        if (i >= 0)
            ms[i] = 1e3 * pair / 2;
    }
    if (!rc)
        *out = summarize(ms, n);
    free(ms);
    return rc;
}

/* Forward and backward without Adam's accumulation: a graph of its own where there are graphs. */
static void launch_model(struct stage_bench *s, int i)
{
    (void)i;
    s->k->run->opt->backend->launch(s->k->ops, s->model_graph);
}

static int measure_model(struct stage_bench *s, int n, struct times *out)
{
    struct backend *be = s->k->run->opt->backend;
    struct ops *o = s->k->ops;
    int rc;
    if (!be->capture || s->k->run->opt->no_graph)
        return measure(s, run_model, n, out);
    run_model(s, 0);            /* workspaces and plans exist before the capture */
    if ((rc = be->capture(o)))
        return rc;
    run_model(s, 0);
    if ((rc = be->capture_end(o, &s->model_graph)))
        return rc;
    rc = measure(s, launch_model, n, out);
    be->graph_free(s->model_graph);
    return rc;
}

/* The same steps with every collective left out: what is computed. The weights drift apart. */
static int measure_muted(struct stage_bench *s, int n, struct times *out)
{
    struct rank *k = s->k;
    struct comm *mute;
    struct sparse *sparse = k->optim.sparse;    /* no exchange: nobody would answer */
    void *graphs[GRAPHS];
    int rc = comm_solo_new(&mute);
    if (rc)
        return rc;
    mute->rank = k->rank;
    mute->world = k->world;
    memcpy(graphs, k->graph, sizeof graphs);
    memset(k->graph, 0, sizeof graphs);
    k->optim.comm = mute;
    k->optim.sparse = NULL;
    rc = measure(s, run_step, n, out);
    k->optim.comm = k->comm;
    k->optim.sparse = sparse;
    for (int i = 0; i < GRAPHS; i++)
        if (k->graph[i])
            k->run->opt->backend->graph_free(k->graph[i]);
    memcpy(k->graph, graphs, sizeof graphs);
    mute->free(mute);
    return rc;
}

/* Two steps touch the rows of twice as many tokens, though both are given the same batch. */
static void note_touched(struct stage_bench *s, char *block)
{
    struct rank *k = s->k;
    int T = s->even.chunk_tokens, n = k->micros * k->world;
    for (int odd = 0; odd < 2; odd++) {
        s->touched[odd] = malloc((size_t)(k->micros * T) * 4);
        for (int m = 0; m < k->micros && s->touched[odd]; m++) {
            struct chunk c;
            fill_chunk(k->run->recipe, &c, block, T, s->even.sequence,
                       (uint64_t)(odd * n + m * k->world + k->rank));
            memcpy(s->touched[odd] + m * T, c.bigram, (size_t)T * 4);
        }
    }
}

static void stage_init(struct stage_bench *s, struct rank *k, int stage)
{
    const struct recipe *r = k->run->recipe;
    int step = 0;
    *s = (struct stage_bench){ .k = k };
    while (schedule_at(r, step, &s->even), s->even.stage < stage)
        step++;
    step += 2 - step % 2;       /* an even step inside, so that both parities are of the stage */
    schedule_at(r, step, &s->even);
    schedule_at(r, step + 1, &s->odd);
    s->even.untie = s->odd.untie = false;
    model_set(&k->model, &s->even);
    int T = s->even.chunk_tokens;
    char *block = malloc(k->slot_bytes);
    for (int m = 0; m < k->micros && block; m++) {
        struct chunk c;
        char *slot = k->slots + (size_t)m * k->slot_bytes;
        fill_chunk(r, &c, block, T, s->even.sequence, (uint64_t)(m * k->world + k->rank));
        s->b[m] = feed_batch(k, slot, &c, false);
        for (int i = 0; i < r->n_layers; i++) {
            const struct layer_spec *l = &r->layers[i];
            int mul = l->attention == ATTN_PAIRED ? 2 : 1;
            if (l->attention != ATTN_NONE)
                s->attn_flops += 14.0 * r->head_dim * (r->heads / mul) *
                                 pairs(&c, mul, l->long_window ? s->even.window_long
                                                               : s->even.window_short);
        }
    }
    if (block && k->optim.sparse) {
        sparse_forget(k->optim.sparse);
        s->before = sparse_stats(k->optim.sparse);
        note_touched(s, block);
    }
    free(block);
}

static void stage_release(struct stage_bench *s)
{
    free(s->touched[0]);
    free(s->touched[1]);
}

/* MB that a rank sent less in the stage, an exchange, than dense ones would have. */
static double saved_mb(const struct stage_bench *s)
{
    if (!s->k->optim.sparse)
        return 0;
    struct sparse_stats x = sparse_stats(s->k->optim.sparse), b = s->before;
    double saved = x.dense_bytes - b.dense_bytes - (x.sent_bytes - b.sent_bytes);
    return saved / (double)(x.exchanges - b.exchanges) / 1e6;
}

/* One row a kernel, over n pairs of steps. */
static int profile_stage(struct rank *k, int stage, int n, FILE *f)
{
    struct backend *be = k->run->opt->backend;
    struct stage_bench s;
    struct times t;
    int rc;
    stage_init(&s, k, stage);
    if (!(rc = k->ops->sync(k->ops)) && !(rc = k->comm->barrier(k->comm)) && k->rank == 0)
        rc = be->profile();
    if (!rc && !(rc = measure(&s, run_step, n, &t)))
        rc = k->comm->barrier(k->comm);
    stage_release(&s);
    if (rc)
        return rc;
    return k->rank ? 0 : be->profile_end(f, 2 * (n + 2));       /* measure() warms up with two */
}

static int bench_stage(struct rank *k, int stage, int n, FILE *f)
{
    const struct recipe *r = k->run->recipe;
    struct stage_bench s;
    struct times step, model, muted = { 0 };
    int rc;
    stage_init(&s, k, stage);
    if (!(rc = measure(&s, run_step, n, &step)) && !(rc = measure_model(&s, n, &model)))
        rc = measure_muted(&s, n, &muted);
    stage_release(&s);
    if (rc || k->rank)
        return rc;
    struct step_floor fl = step_floor(r, &s.even, k->world, s.attn_flops);
    double tokens = (double)s.even.tokens;
    double optim = muted.median - model.median, exposed = step.median - muted.median;
    fprintf(f, "%d\t%d\t%d\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.0f\t%.1f\t%.2f\t%.2f\t%.0f\t%.1f\n",
            stage,
            s.even.chunk_tokens, k->micros, step.median, step.min, model.median, optim,
            exposed, tokens / step.median * 1e3, fl.flops / step.median * 1e-9,
            fl.ms, step.median / fl.ms, (double)k->ops->allocated(k->ops) / (1 << 20),
            saved_mb(&s));
    return fflush(f) ? err_sys("bench") : 0;
}

int bench_rank(struct rank *k, int n, FILE *f)
{
    const struct recipe *r = k->run->recipe;
    int rc = 0;
    if (k->rank == 0)
        fprintf(f, "stage\tT\tmicros\tstep_ms\tmin_ms\tfwd_bwd_ms\toptim_ms\texposed_ms\ttokens_s\t"
                "TFLOP_s\tfloor_ms\tratio\tMiB\tsaved_MB\n");
    for (int i = 0; i + 1 < r->n_stages && !rc; i++)
        rc = bench_stage(k, i, n, f);
    /* Of a second stage CUPTI (13.0) tells kernels' times under other kernels' names. */
    if (k->run->opt->profile && !rc)
        rc = profile_stage(k, 0, n, f);
    return rc;
}
