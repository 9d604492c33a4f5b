/* bench.c - times of the recipe's stages, without data (gpt-train --bench).
 *
 * Three forms of a step are timed for each stage: the whole step as in a run
 * (graphs included), the step without collectives, and forward and backward
 * alone. The time is that of the host clock around work that ends with a sync.
 * The second less the third is the optimizer, with the sums over micro-batches;
 * the first less the second is the communication that is not overlapped. Both
 * are small beside the variation of a step with clock rate and power, so the
 * forms take turns and are compared round by round. Tokens are drawn from a
 * long-tailed distribution and documents have the lengths of text, so that
 * attention and table gradients have realistic work.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/report.h"
#include "base/rng.h"
#include "base/stats.h"
#include "train/estimate.h"
#include "train/rank.h"

enum { WARM = 2 }; /* warm-up rounds */

/* The forms of a step; each round times all of them. */
enum form { STEP, MUTED, MODEL, FORMS };

struct estimate {
    double value, error;
};

/* Median of a - b and its standard error by their median absolute deviation, as of a normal
 * distribution; NaN from fewer than three rounds. scratch (n). */
static struct estimate difference(const double *a, const double *b, int n, double *scratch)
{
    struct estimate e;
    for (int i = 0; i < n; i++)
        scratch[i] = a[i] - b[i];
    e.value = stats_median(scratch, n);
    for (int i = 0; i < n; i++)
        scratch[i] = fabs(a[i] - b[i] - e.value);
    e.error = n < 3 ? NAN : 1.253 * 1.4826 * stats_median(scratch, n) / sqrt(n);
    return e;
}

/* Token ids with frequencies like 1 / (rank + 10), documents of 100 .. 2000 tokens, or rows. */
static void fill_chunk(const struct recipe *r, struct chunk *c, char *block, int T, int cap,
                       uint64_t seed)
{
    struct rng rng = rng_make(seed, 77);
    struct chunk_shape shape = batch_chunk(r, T, true);
    chunk_place(c, block, &shape);
    int bound = c->bound;
    int32_t *tok = (int32_t *)c->tok, *tgt = (int32_t *)c->tgt, *cu = (int32_t *)c->cu;
    double span = log((r->model.vocab + 10) / 10.0);
    for (int t = 0; t <= T; t++) {
        int32_t v = (int32_t)(10 * (exp(span * rng_uniform(&rng, (uint64_t)t)) - 1));
        v = v < 0 ? 0 : v >= r->model.vocab ? r->model.vocab - 1 : v;
        if (t < T)
            tok[t] = v;
        if (t > 0)
            tgt[t - 1] = v;
    }
    int n = 0, p = 0;
    for (; p < T && n + 1 < bound; n++) {
        double u = rng_uniform(&rng, (uint64_t)(1 << 24) + (uint64_t)n);
        int len = (int)(100 - 500 * log(1 - u));
        len = len > cap || recipe_row(r) ? cap : len;
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

/* -- the floor of a step ------------------------------------------------------------- */

/* FLOP/s of large products and of attention's, bytes/s of a copy (read and written), of a rank's
 * device; bytes of an activation, and those moved for each logit. */
struct rates {
    double products, fp8, attention, copy;
    double element, logit, logit_fp8;
};

/* Queues `times` of f and returns the rate of `work` each, the highest of some tries. */
static double rate_of(void (*f)(struct ops *o, const struct tensor t[3]), struct ops *o,
                      const struct tensor t[3], int times, double work, int *rc)
{
    enum { TRIES = 5 };
    double least = INFINITY;
    for (int i = 0; i <= TRIES && !*rc; i++) { /* the first warms up */
        double begin = now_seconds();
        for (int n = 0; n < times; n++)
            f(o, t);
        *rc = o->sync(o);
        double s = now_seconds() - begin;
        least = i && s < least ? s : least;
    }
    return times * work / least;
}

static void one_product(struct ops *o, const struct tensor t[3])
{
    o->linear(o, t[0], t[1], t[2], NULL, NO_TENSOR);
}

static void one_copy(struct ops *o, const struct tensor t[3]) { o->copy(o, t[0], t[1]); }

/* Fills t with numbers of [0.5, 1), with either sign: products of zeros take less power, and are faster. */
static int fill_random(struct ops *o, struct tensor t)
{
    uint32_t h = 2463534242u, bits;
    int64_t n = tensor_count(t);
    uint16_t *x = malloc(tensor_bytes(t));
    if (!x)
        return err_memory();
    for (int64_t i = 0; i < n; i++) {
        h ^= h << 13, h ^= h >> 17, h ^= h << 5;
        bits = 0x3f000000u | (h & 0x807f0000u);
        if (t.dtype == DT_BF16)
            x[i] = (uint16_t)(bits >> 16);
        else
            memcpy((char *)x + 4 * i, &bits, 4);
    }
    o->upload(o, t.data, x, tensor_bytes(t));
    int rc = o->sync(o);
    free(x);
    return rc;
}

/* Measures this rank's device by an op's own product and copy, in memory of its own, while the other ranks measure
 * too: a CPU's f32 products, which all of its products are, a GPU's in bf16. Of fp8 and of attention the rates are to
 * bf16's as on an H200, 1,198 and 600 to 772. A logit is written and read once in f32 on a CPU; on a GPU in bf16,
 * its gradient written once and read twice, in fp8 or bf16. */
static int measure_rates(struct rank *k, bool cpu, struct rates *out)
{
    const int64_t n = cpu ? 768 : 4096, rows = cpu ? 4 * n : 2 * n;
    const int64_t copied = (cpu ? 64 : 128) << 20; /* bytes, more than caches hold */
    const int times = cpu ? 1 : 10;
    const enum dtype type = cpu ? DT_REAL : DT_BF16;
    const struct backend *be = k->run->opt->backend;
    struct tensor t[3];
    struct ops *o;
    int rc = be->ops_new(&o, k->local, be->group);
    if (rc)
        return rc;
    const int64_t size = (int64_t)dtype_size(type);
    char *at = o->alloc(o, (size_t)(2 * copied), "what --bench measures");
    rc = o->status(o);
    for (int i = 0; i < 3 && !rc; i++) {
        t[i] = tensor_of(at + i * rows * n * size, type, i == 2 ? n : rows, n);
        rc = fill_random(o, t[i]);
    }
    if (!rc && !(rc = k->comm->barrier(k->comm))) {
        double products = rate_of(one_product, o, t, times, 2.0 * (double)(rows * n * n), &rc);
        for (int i = 0; i < 2; i++)
            t[i] = tensor_of(at + i * copied, type, copied / size / n, n);
        double copy = rate_of(one_copy, o, t, times, 2.0 * (double)copied, &rc);
        *out = cpu ? (struct rates){ products, products, products, copy, sizeof(real), 8, 8 }
                   : (struct rates){
                         products, products * 1198 / 772, products * 600 / 772, copy, 2, 10, 7
                     };
    }
    o->free(o);
    return rc;
}

/* Passes over a (T,D) stream that fused element-wise kernels need a layer, both ways, in
 * record 61's form; and what record 74's adds, where a mix of its own takes attention's and the
 * MLP's product (1 forward, 7 backward), on two lanes (5 and 20). */
static const double PASSES_PER_LAYER = 25, PASSES_OF_MIXES = 8, PASSES_OF_LANES = 25;

struct floor {
    double flops; /* of a step on one rank, forward and backward */
    double ms;
};

/* The least time of a step, from FLOPs and bytes counted from the recipe's shapes, at these rates.
 * attn_flops: of the scores and values of the documents at hand, forward and backward. */
static struct floor floor_of(const struct streams *s, const struct step_schedule *p, int ranks,
                             double attn_flops, const struct rates *at)
{
    const struct recipe *r = s->recipe;
    double T = (double)p->tokens / ranks, d = r->model.width, layers = r->n_layers, passes = 0;
    double attn = 0, qkv = 0; /* rows of attention's matrices */
    for (int i = 0; i < r->n_layers; i++) {
        qkv += layer_attends(r, i) ? (double)recipe_qkv_rows(r, i) : 0;
        attn += layer_attends(r, i) ? (double)recipe_qkv_rows(r, i) + d : 0;
        passes += PASSES_PER_LAYER + (s->layer[i].lanes == 2                  ? PASSES_OF_LANES
                                      : s->layer[i].attention.residual.buffer ? 0
                                                                              : PASSES_OF_MIXES);
    }
    double products = 6 * T * (attn * d + layers * 2 * d * r->model.mlp_width);
    int in_fp8 = (r->precision.mlp.fp8 != MLP_BF16) + (r->precision.mlp.down_fp8 != DOWN_BF16) +
                 2 * r->precision.mlp.backward_fp8 + r->precision.mlp.grads;
    int qkv_in_fp8 = r->precision.attn.fp8 + 2 * r->precision.attn.backward_fp8;
    double fp8 = in_fp8 * 2 * T * layers * d * r->model.mlp_width + qkv_in_fp8 * 2 * T * qkv * d +
                 r->precision.attn.out_fp8 * 2 * T * (attn - qkv) * d; /* of products */
    double head = 6 * T * d * r->model.vocab;
    double moved = passes * T * d * at->element +
                   T * r->model.vocab * (r->precision.head.fp8 ? at->logit_fp8 : at->logit);
    double seconds = (products - fp8) / at->products + fp8 / at->fp8 +
                     head / (r->precision.head.fp8 ? at->fp8 : at->products) +
                     attn_flops / at->attention + moved / at->copy;
    return (struct floor){ .flops = products + head + attn_flops, .ms = 1e3 * seconds };
}

/* -- forms of a step ------------------------------------------------------------------ */

struct stage_bench {
    struct rank *k;
    struct step_schedule even, odd;
    struct batch b[MAX_MICRO];
    struct comm *mute; /* without communication: each rank's collectives are its own */
    struct step_plans muted_plans; /* without an exchange */
    struct graph muted_graph[MAX_GRAPHS];
    int n_muted;
    void *model_graph; /* or NULL: forward and backward are launched one by one */
    int32_t *touched[2]; /* rows of the bigram table, of an even and an odd step; or NULL */
    struct sparse_stats before; /* of exchanges, when the stage began */
    double attn_flops; /* forward and backward of a step on this rank */
};

static void run_step(struct stage_bench *s, int i)
{
    struct rank *k = s->k;
    struct step_schedule *p = i % 2 ? &s->odd : &s->even;
    optim_prepare(&k->optim, p);
    if (s->touched[i % 2])
        optim_touch(&k->optim, s->touched[i % 2], k->micros * p->chunk_tokens);
    if (step_launch(k, p, s->b))
        return;
    optim_finish(&k->optim, p);
    optim_outcome(&k->optim, p, false);
}

/* Exchanges the graphs and plans of whole steps and of those without collectives. */
static void swap_graphs(struct stage_bench *s)
{
    struct rank *k = s->k;
    struct step_plans plans = k->optim.plans;
    int n = k->n_graphs;

    for (int i = 0; i < MAX_GRAPHS; i++) {
        struct graph g = k->graph[i];
        k->graph[i] = s->muted_graph[i];
        s->muted_graph[i] = g;
    }
    k->n_graphs = s->n_muted, s->n_muted = n;
    k->optim.plans = s->muted_plans, s->muted_plans = plans;
}

/* A step without collectives: the computation alone. The ranks' weights differ afterwards. */
static void run_muted(struct stage_bench *s, int i)
{
    struct rank *k = s->k;
    struct sparse *sparse = k->optim.sparse; /* an exchange would wait for the other ranks */
    k->optim.comm = s->mute;
    k->optim.sparse = NULL;
    swap_graphs(s);
    run_step(s, i);
    swap_graphs(s);
    k->optim.comm = k->comm;
    k->optim.sparse = sparse;
}

static void run_model(struct stage_bench *s, int i)
{
    (void)i;
    if (s->model_graph)
        s->k->run->opt->backend->launch(s->k->ops, s->model_graph);
    else
        step_launch_model(s->k, s->b);
}

static int capture_model(struct stage_bench *s)
{
    struct backend *be = s->k->run->opt->backend;
    struct ops *o = s->k->ops;
    int rc;
    if (!be->capture || s->k->run->opt->no_graph)
        return 0;
    step_launch_model(s->k, s->b); /* allocates workspaces and plans before the capture */
    if ((rc = be->capture(o)))
        return rc;
    step_launch_model(s->k, s->b);
    return be->capture_end(o, &s->model_graph);
}

/* Step time is the maximum over ranks, also in forms where ranks do not wait for each other. */
static int slowest(struct rank *k, double mine, double *out)
{
    double all[MAX_RANKS];
    int rc = k->comm->gather_host(k->comm, &mine, 1, all);
    *out = mine;
    for (int r = 0; r < k->world && !rc; r++)
        *out = fmax(*out, all[r]);
    return rc;
}

/* *ms: the time of a step, the mean over an even and an odd one. */
static int time_pair(struct stage_bench *s, enum form form, double *ms)
{
    static void (*const run[FORMS])(struct stage_bench *, int) = { run_step, run_muted, run_model };
    struct rank *k = s->k;
    double pair;
    int rc;
    if ((rc = k->ops->sync(k->ops)) || (rc = k->comm->barrier(k->comm)))
        return rc;
    double begin = now_seconds();
    run[form](s, 0);
    run[form](s, 1);
    if ((rc = k->ops->sync(k->ops)) || (rc = slowest(k, now_seconds() - begin, &pair)))
        return rc;
    *ms = 1e3 * pair / 2;
    return 0;
}

/* ms[form] (n). The order of forms is reversed in every other round, so that no form always follows
 * the same one. */
static int time_forms(struct stage_bench *s, int n, double *const ms[FORMS])
{
    int rc = 0;
    for (int i = -WARM; i < n && !rc; i++)
        for (int j = 0; j < FORMS && !rc; j++) {
            int form = i % 2 ? FORMS - 1 - j : j;
            double one;
            rc = time_pair(s, (enum form)form, i < 0 ? &one : &ms[form][i]);
        }
    return rc;
}

/* Even and odd steps get the same batch but different touched rows, as two steps of a run have. */
static void note_touched(struct stage_bench *s, char *block)
{
    struct rank *k = s->k;
    int T = s->even.chunk_tokens, n = k->run->recipe->data.chunks;
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

static int stage_init(struct stage_bench *s, struct rank *k, int stage)
{
    const struct recipe *r = k->run->recipe;
    int step = 0;
    *s = (struct stage_bench){ .k = k };
    while (schedule_at(r, step, &s->even), s->even.stage < stage)
        step++;
    step += 2 - step % 2; /* an even step whose successor is in the stage too */
    schedule_at(r, step, &s->even);
    schedule_at(r, step + 1, &s->odd);
    s->even.untie = s->odd.untie = false;
    model_set(&k->model, &s->even);
    int T = s->even.chunk_tokens;
    char *block = malloc(k->slot_bytes);
    if (!block)
        return err_sys("bench");
    for (int m = 0; m < k->micros; m++) {
        struct chunk c;
        char *slot = k->slots + (size_t)m * k->slot_bytes;
        fill_chunk(r, &c, block, T, s->even.sequence, (uint64_t)(m * k->world + k->rank));
        s->b[m] = batch_upload(k, slot, &c, false);
        for (int i = 0; i < r->n_layers; i++) {
            const struct layer_spec *l = &r->layers[i];
            int mul = l->attention == ATTN_PAIRED ? 2 : 1;
            if (l->attention != ATTN_NONE)
                s->attn_flops += /* of seven products four are over channels of q and k */
                    (6.0 * r->model.head_dim + 8.0 * l->qk_dim) * (r->model.heads / mul) *
                    pairs(&c, mul, l->long_window ? s->even.window_long : s->even.window_short);
        }
    }
    if (k->optim.sparse) {
        sparse_forget(k->optim.sparse);
        s->before = sparse_stats(k->optim.sparse);
        note_touched(s, block);
    }
    free(block);
    return 0;
}

static void stage_release(struct stage_bench *s)
{
    struct backend *be = s->k->run->opt->backend;
    for (int i = 0; i < s->n_muted; i++)
        if (s->muted_graph[i].captured)
            be->graph_free(s->muted_graph[i].captured);
    step_plans_free(&s->muted_plans);
    if (s->model_graph)
        be->graph_free(s->model_graph);
    if (s->mute)
        s->mute->free(s->mute);
    free(s->touched[0]);
    free(s->touched[1]);
}

/* MB an exchange that a rank did not send in this stage, compared with dense exchanges. */
static double saved_mb(const struct stage_bench *s)
{
    if (!s->k->optim.sparse)
        return 0;
    struct sparse_stats x = sparse_stats(s->k->optim.sparse), b = s->before;
    double saved = x.dense_bytes - b.dense_bytes - (x.sent_bytes - b.sent_bytes);
    return saved / (double)(x.exchanges - b.exchanges) / 1e6;
}

/* What the devices did: the table of kernels, and the timeline. */
static int put_trace(const struct rank *k, struct trace *t, int steps, FILE *f, FILE *file)
{
    const struct run_options *o = k->run->opt;
    const struct trace_about about = { .made_by = o->arguments,
                                       .first_rank = o->backend->first,
                                       .label = rank_mark_label,
                                       .ctx = (void *)(uintptr_t)k->run->recipe };
    int rc = o->profile ? trace_table(t, f, steps) : 0;
    return rc || !file ? rc : trace_write(t, &about, file, o->trace);
}

/* n pairs of steps of a stage, as the devices see them. */
static int profile_stage(struct rank *k, int stage, int n, FILE *f, FILE *file)
{
    struct backend *be = k->run->opt->backend;
    struct trace t = { 0 };
    struct stage_bench s;
    double ms;
    bool begun = false;
    int rc = stage_init(&s, k, stage);
    for (int i = -WARM; i < n && !rc; i++) {
        if (i == 0 && !(rc = k->ops->sync(k->ops)) && !(rc = k->comm->barrier(k->comm)) && !k->rank)
            begun = !(rc = be->profile(&t));
        if (!rc)
            rc = time_pair(&s, STEP, &ms);
    }
    if (!rc)
        rc = k->comm->barrier(k->comm);
    stage_release(&s);
    if (begun)
        be->profile_end();
    if (!rc && !k->rank)
        rc = put_trace(k, &t, 2 * n, f, file);
    trace_release(&t);
    return rc;
}

/* The file is opened before the work for it is done. */
static int profile_or_trace(struct rank *k, int n, FILE *f)
{
    const struct run_options *o = k->run->opt;
    struct output file = { 0 };
    bool writes = o->trace && !k->rank;
    int rc = writes ? output_open(&file, o->trace, false) : 0;
    if (rc)
        return rc;
    if (!(rc = profile_stage(k, o->stage, n, f, file.f)) && writes)
        rc = output_commit(&file);
    if (writes)
        output_abort(&file);
    return rc;
}

/* Bytes/s that a rank sends within one host: all-gathers between two H100 (performance.md 2); on a CPU, whose ranks
 * read each other's memory, half of what a copy moves. */
static double usual_send(const struct rates *at, bool cpu) { return cpu ? at->copy / 2 : 294e9; }

/* The run's time on so many ranks, stage by stage, and what that assumes. */
static int put_estimate(const struct rank *k, struct stage_time *t, const struct rates *rates,
                        bool cpu, FILE *f)
{
    const struct run_options *o = k->run->opt;
    const struct recipe *r = k->run->recipe;
    const struct estimate_rates at = { .products = rates->products,
                                       .copy = rates->copy,
                                       .send = o->bandwidth == 0 ? usual_send(rates, cpu)
                                                                 : 1e9 * o->bandwidth };
    double least = 0, most = 0, cut, all = estimate_update(r, k->world, &at, &cut);
    int steps[MAX_STAGES], n = 0;
    struct report out;
    estimate_steps(r, steps);
    report_begin(&out, f, report_format_of(o->format, o->wide));
    report_table(
        &out, "estimate", NULL,
        "stage:s steps:i ranks:i micros:i fwd_bwd_ms:f3 optim_ms:f3 sent_MB:f1 least_ms:f3 "
        "most_ms:f3 least_s:f1 most_s:f1");
    for (int i = 0; i + 1 < r->n_stages; i++) {
        struct stage_estimate e = estimate_stage(r, &t[i], o->estimate, &at);
        char stage[16];
        snprintf(stage, sizeof stage, "%d", i);
        report_row(&out, stage, (int64_t)steps[i], (int64_t)o->estimate, (int64_t)e.micros, e.model,
                   e.optim, e.sent / 1e6, e.least, e.most, e.least * steps[i] / 1e3,
                   e.most * steps[i] / 1e3);
        least += e.least * steps[i] / 1e3;
        most += e.most * steps[i] / 1e3;
        n += steps[i];
    }
    report_row(&out, "run", (int64_t)n, (int64_t)o->estimate, REPORT_NONE, NAN, NAN, NAN, NAN, NAN,
               least, most);
    report_line(&out, "assumes",
                "the run's steps alone, those of the extension as the stage before; no data, "
                "validation, checkpoints or capture of graphs");
    if (o->estimate != k->world) {
        report_line(&out, "assumes",
                    "forward and backward go with micro-batches, %d a rank at most for %d; ranks "
                    "as fast as the measured ones",
                    rank_micros(r->data.chunks, 0, o->estimate), k->micros);
        report_line(&out, "assumes",
                    "the optimizer goes with the least time of its products and bytes, %.1f%% of "
                    "it cut by rank",
                    100 * cut / all);
        report_line(&out, "assumes",
                    "communication: at least %s, at most all that is sent, at %.4g GB/s (%s)",
                    k->world > 1 ? "what was exposed, times the bytes sent" : "none exposed",
                    at.send / 1e9,
                    o->bandwidth > 0 ? "--bandwidth"
                    : cpu            ? "half of a copy here"
                                     : "between two H100 of a host");
    }
    return report_end(&out);
}

/* Prints the stage's row, and returns its times. Sorts ms. */
static struct stage_time print_row(const struct stage_bench *s, int stage, int n,
                                   double *const ms[FORMS], double *scratch,
                                   const struct rates *rates, struct report *out)
{
    const struct rank *k = s->k;
    struct floor fl = floor_of(&k->model.streams, &s->even, k->world, s->attn_flops, rates);
    struct estimate optim = difference(ms[MUTED], ms[MODEL], n, scratch);
    struct estimate exposed = difference(ms[STEP], ms[MUTED], n, scratch);
    double model = stats_median(ms[MODEL], n), step = stats_median(ms[STEP], n);
    double least = ms[STEP][0]; /* stats_median has sorted it */
    report_row(out, (int64_t)stage, (int64_t)s->even.chunk_tokens, (int64_t)k->micros, step, least,
               model, optim.value, optim.error, exposed.value, exposed.error,
               (double)s->even.tokens / step * 1e3, fl.flops / step * 1e-9, fl.ms, step / fl.ms,
               (double)k->ops->allocated(k->ops) / (1 << 20), saved_mb(s), rates->products / 1e12,
               rates->copy / 1e9);
    fflush(out->f); /* report_end reports a failure */
    return (struct stage_time){ .stage = stage,
                                .ranks = k->world,
                                .step = step,
                                .model = model,
                                .optim = optim.value,
                                .exposed = k->world > 1 ? exposed.value : 0 };
}

static int bench_stage(struct rank *k, int stage, int n, const struct rates *rates,
                       struct report *out, struct stage_time *t)
{
    struct stage_bench s;
    double *ms[FORMS], *scratch = calloc((size_t)n * (FORMS + 1), sizeof *scratch);
    int rc = stage_init(&s, k, stage);
    for (int i = 0; i < FORMS && scratch; i++)
        ms[i] = scratch + (size_t)n * (size_t)(i + 1);
    if (!rc && !scratch)
        rc = err_sys("bench");
    if (!rc && !(rc = comm_threads_new(&s.mute, 1))) {
        s.mute->rank = k->rank;
        s.mute->world = k->world;
        rc = step_plans_make(&s.muted_plans, k->run->recipe, k->world, false);
        rc = rc ? rc : capture_model(&s);
    }
    if (!rc && !(rc = time_forms(&s, n, ms)) && k->rank == 0)
        *t = print_row(&s, stage, n, ms, scratch, rates, out);
    stage_release(&s);
    free(scratch);
    return rc;
}

int bench_rank(struct rank *k, int n, FILE *f)
{
    const struct recipe *r = k->run->recipe;
    struct rates rates;
    struct stage_time times[MAX_STAGES];
    struct report out;
    char title[160];
    bool cpu = !strcmp(k->ops->device, "cpu");
    int rc = measure_rates(k, cpu, &rates);
    if (rc)
        return rc;
    if (k->rank == 0) {
        snprintf(
            title, sizeof title,
            "floor: products at %.3f TFLOP/s and copies at %.1f GB/s a rank, measured just now",
            rates.products / 1e12, rates.copy / 1e9);
        report_begin(&out, f, report_format_of(k->run->opt->format, k->run->opt->wide));
        report_table(&out, NULL, title,
                     "stage:i T:i micros:i step_ms:f3 min_ms:f3 fwd_bwd_ms:f3 optim_ms:f3 "
                     "optim_se:f3 exposed_ms:f3 exposed_se:f3 tokens_s:f0 TFLOP_s:f1 floor_ms:f2 "
                     "ratio:f2 MiB:f0 saved_MB:f1 product_TFLOP_s:f3 copy_GB_s:f1");
    }
    for (int i = 0; i + 1 < r->n_stages && !rc; i++)
        rc = bench_stage(k, i, n, &rates, &out, &times[i]);
    if (k->rank == 0) {
        int end = report_end(&out);
        rc = rc ? rc : end;
        if (!rc && k->run->opt->estimate)
            rc = put_estimate(k, times, &rates, cpu, f);
    }
    /* One stage only: in a second one CUPTI (13.0) attributes times to the wrong kernels. */
    if ((k->run->opt->profile || k->run->opt->trace) && !rc)
        rc = profile_or_trace(k, n, f);
    return rc;
}
