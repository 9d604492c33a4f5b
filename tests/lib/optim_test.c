/* optim_test.c - the optimizer step on 1 to 8 ranks, in other orders, and its state.
 *
 * Record 61 at a small size and the steps where something changes: even and odd ones, the
 * untie step, the first after it. Every variant must end in the bits of one rank: the
 * gradients are such that their mean over ranks is exact.
 */
#include <pthread.h>
#include <math.h>
#include <stdlib.h>
#include "base/hash.h"
#include "base/rng.h"
#include "check.h"
#include "optim/step.h"
#include "recipe/text.h"

enum { MAX_WORLD = 8 };
static const int steps[] = { 0, 1, 2, 3, 1150, 1151, 1152, 1153 };
enum { N_STEPS = sizeof steps / sizeof *steps };

struct variant {
    const char *name;
    int world;
    bool one_holder; /* world times the gradient on one rank, zeros on the others */
    bool early, reversed; /* reductions from within backward; both orders turned around */
    bool late, unpadded; /* gathers left to the next step; padding not communicated */
    bool fp8; /* Adam leaves an fp8 copy of the head, too small for some weights */
    bool sparse; /* of one table, only the rows that have a gradient are exchanged */
    double mix; /* order.tied_mix is 1 + mix */
    bool line; /* order.tied_mix is step / 1151, from 0 to the untie step's 1151 */
    bool embed_line; /* while tied, its gradient is that of the embedding's update times itself */
    float embed; /* while tied, the embedding's gradient is 1 + embed times what it was */
    enum dtype gradients, polar;
    const char *rule; /* of the banks; NULL: normuon */
    bool frozen; /* every second matrix of a bank has lr 0 */
    double match_rms;
    enum dtype states; /* of Adam; DT_NONE: as the recipe says, f32 */
    bool master; /* f32 masters of Adam's bf16 weights */
    bool f16_master; /* in f16 */
    bool gated; /* a decision on each step, which the host learns one step later */
    int every; /* steps after which Adam moves; 0: as the recipe says, 2 */
    bool parted; /* but those of own_every */
    bool stored; /* weights in f16 and e4m3 */
    bool whole; /* one scale for all rows: of moments, and, delayed, of weights in e4m3 */
    int plant; /* a NaN in this step in the first element of `where` on the last rank; 0: none */
    const char *where;
    int piece; /* of comm.h */
    int omit; /* this step's gradients are fed and nothing is made of them; 0: none */
};

/* All states and weights after the last step, the ranks' parts put together. */
struct outcome {
    char *bytes;
    size_t size;
    int64_t count[MAX_PARAMS];
    size_t from[MAX_PARAMS + 1]; /* of each parameter's */
};

struct rank_arg {
    const struct variant *v;
    const struct recipe *recipe;
    struct comm *comm;
    struct outcome *out;
    const char *queued; /* what is to be queued: test_branches */
};

/* rank() on `world` threads, each with `a` and a communicator of its own. */
static void with_ranks(int world, void *(*rank)(void *), struct rank_arg a)
{
    struct comm *c[MAX_WORLD];
    struct rank_arg each[MAX_WORLD];
    pthread_t thread[MAX_WORLD];

    CHECK_OK(comm_threads_new(c, world));
    for (int i = 0; i < world; i++) {
        c[i]->piece = a.v->piece;
        each[i] = a;
        each[i].comm = c[i];
        pthread_create(&thread[i], NULL, rank, &each[i]);
    }
    for (int i = 0; i < world; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < world; i++)
        c[i]->free(c[i]);
}

/* The table of whose rows only some have a gradient. */
static bool is_table(const struct param_spec *s) { return !strcmp(s->label, "ve0"); }
static bool has_gradient(int64_t row) { return row % 3 == 0 && row != 6; }

/* A sharded or sparse one, replicated ones, and 2 for the rest. */
static int own_every(const char *label)
{
    return !strcmp(label, "ve0")                                ? 1
           : !strcmp(label, "attn_gate_bank")                   ? 3
           : !strcmp(label, "ve2") || !strcmp(label, "scalars") ? 4
                                                                : 2;
}

/* The rule of that name, as the recipe's fields have its numbers now. */
static void set_rule(struct recipe *r, int i, const char *name)
{
    CHECK_OK(recipe_read_rule(r, NULL, name, &r->params[i].rule));
}

static struct recipe *read_recipe(const struct variant *v)
{
    static const char *const set[] = {
        "model.heads=2",
        "model.head_dim=16",
        "model.mlp_width=128",
        "model.vocab=104",
    };
    const char *share = getenv("GPT_SHARE");
    char path[512];
    struct recipe *r = NULL;

    snprintf(path, sizeof path, "%s/recipes/record-61.recipe", share ? share : "share");
    if (!CHECK_OK(recipe_read(&r, path, set, 4)))
        exit(check_done());
    r->optimizer.period = v->parted ? 12 : v->every ? v->every : 2; /* own_every: 1, 2, 3 and 4 */
    r->precision.gradients = v->gradients;
    r->optimizer.polar.dtype = v->polar;
    r->optimizer.muon.match_rms = v->match_rms;
    r->optimizer.change.at = 1152, r->optimizer.change.moments = 3;
    r->order.padding = !v->unpadded;
    r->order.tied_mix[0] = v->line ? 0 : 1 + v->mix;
    r->order.tied_mix[1] = v->line ? 1151 : 1 + v->mix;
    r->order.n_late = 0;
    r->optimizer.max_skips = v->gated ? 1 : 0;
    r->precision.adam.whole = v->whole;
    r->precision.weight_scale = v->whole ? SCALE_DELAYED : 0;
    r->precision.amax_history = 2;
    for (int i = 0; i < r->n_params; i++) {
        if (!rule_is_adam(&r->params[i].rule))
            set_rule(r, i, v->rule ? v->rule : "normuon");
        else
            r->params[i].every = v->parted  ? own_every(r->params[i].label)
                                 : v->every ? v->every
                                            : 2;
        if (r->params[i].rule.join != RULE_SINGLE) {
            r->params[i].beta1 = 0.9;
            r->params[i].exp_avg = r->params[i].exp_avg_sq = DT_F32;
        }
        if (v->states != DT_NONE)
            r->params[i].exp_avg = r->params[i].exp_avg_sq = v->states;
        if (v->master && rule_is_adam(&r->params[i].rule) && r->params[i].dtype == DT_BF16)
            r->params[i].master = v->f16_master ? DT_F16 : DT_F32;
        if (v->frozen && !rule_is_adam(&r->params[i].rule))
            r->params[i].n_lr = 2, r->params[i].lr_mul[0] = 0, r->params[i].lr_mul[1] = 1;
        r->params[i].early = v->early;
        if (v->sparse && is_table(&r->params[i]))
            r->params[i].comms = COMMS_SPARSE;
        if (v->late)
            r->order.late[r->order.n_late++] = i;
    }
    for (int i = 0; v->stored && i < r->n_params; i++) {
        struct param_spec *s = &r->params[i];
        s->stored = !strcmp(s->label, "ve0") || !strcmp(s->label, "attn_gate_bank") ? DT_F16
                    : !strcmp(s->label, "ve1")                                      ? DT_E4M3
                                                                                    : DT_NONE;
    }
    for (int i = 0; v->reversed && i < r->n_params / 2; i++) {
        int last = r->n_params - 1 - i, s = r->order.scatter[i], w = r->order.work[i];
        r->order.scatter[i] = r->order.scatter[last], r->order.scatter[last] = s;
        r->order.work[i] = r->order.work[last], r->order.work[last] = w;
    }
    return r;
}

/* What backward leaves: written after a clear, else added with one rounding. Multiples of 2^-12 of
 * about 0.01: in f32 the sum of two, times any number of ranks, is exact. */
static void feed(struct optim *z, const struct variant *v, int step)
{
    struct banks *b = z->banks;
    struct step_schedule at;
    schedule_at(z->recipe, step, &at);
    for (int i = 0; i < b->n; i++) {
        struct param *p = &b->p[i];
        bool tied = at.tied && i == z->recipe->order.tied_embed;
        struct rng rng = rng_make(7, (uint64_t)(step * MAX_PARAMS + i));
        int64_t n = tensor_count(p->g), spare = 22 * p->spec->rows * p->spec->cols;
        float times = !v->one_holder ? 1 : b->rank == i % b->world ? (float)b->world : 0;
        float *normal = malloc((size_t)n * sizeof *normal);
        bool padded = !strcmp(p->spec->label, "mlp");
        rng_normals(&rng, 0, n, normal);
        for (int64_t k = 0; k < n; k++) {
            float x = bf16_round(rintf(normal[k] * 41) / 4096) * times;
            if (padded && k >= spare)
                x = 0; /* the padding matrices */
            if (is_table(p->spec) && !has_gradient(k / p->g.cols))
                x = 0;
            x *= tied ? 1 + v->embed : 1;
            x *= tied && v->embed_line ? (float)(step | 1) : 1;
            if (p->g.dtype == DT_F32) {
                float *g = (float *)p->g.data + k;
                *g = p->fresh ? x : *g + x;
            } else {
                uint16_t *g = (uint16_t *)p->g.data + k;
                *g = bf16_from_f32(p->fresh ? x : bf16_to_f32(*g) + x);
            }
        }
        free(normal);
        for (int32_t row = 0; is_table(p->spec) && times && row < p->g.rows; row++)
            if (has_gradient(row))
                optim_touch(z, &row, 1);
        p->fresh = false;
    }
}

/* Puts this rank's units where they belong in the whole; t is in the order of optim_tensors,
 * the same on every rank. */
static void collect(struct rank_arg *a, struct optim *z)
{
    struct optim_tensor t[OPTIM_MAX_TENSORS];
    size_t at = 0;
    int n = optim_tensors(z, t);

    for (int i = 0; i < n; i++) {
        size_t unit = tensor_bytes(t[i].t) / (size_t)t[i].count;
        if (!t[i].replicated || a->comm->rank == 0)
            memcpy(a->out->bytes + at + unit * (size_t)t[i].first, t[i].t.data,
                   tensor_bytes(t[i].t));
        at += unit * (size_t)t[i].total;
        if (a->comm->rank == 0)
            a->out->from[t[i].param + 1] = at;
    }
    CHECK_EQ(at, a->out->size);
    for (int i = 0; i < z->recipe->n_params && a->comm->rank == 0; i++)
        a->out->count[i] = z->p[i].count;
}

/* What is not padding, or is sent all the same. */
static struct tensor sent(const struct param *p, const struct variant *v)
{
    return v->unpadded ? tensor_rows(p->w, 0, p->used * param_unit_rows(p)) : p->w;
}

/* As backward does: a bank's rows a matrix at a time from the last, others whole. */
static void report_final(struct optim *z, int i)
{
    const struct param *p = &z->banks->p[i];
    int64_t n = p->spec->matrices > 1 ? p->spec->rows : p->g.rows;
    for (int64_t first = p->g.rows - n; first >= 0; first -= n)
        optim_reduce_early(z, i, first, n);
}

/* When a step's forward begins all ranks hold the same weights. */
static void check_equal(struct optim *z, const struct variant *v)
{
    double sum[MAX_PARAMS], all[MAX_WORLD * MAX_PARAMS];
    int n = z->recipe->n_params;

    for (int i = 0; i < n; i++) {
        char hex[33];
        struct tensor w = sent(&z->banks->p[i], v);
        xxh_hex_of(w.data, tensor_bytes(w), hex);
        hex[12] = 0; /* 48 bits: exact in a double */
        sum[i] = (double)strtoull(hex, NULL, 16);
    }
    CHECK_OK(z->comm->gather_host(z->comm, sum, n, all));
    for (int r = 1; r < z->comm->world; r++)
        CHECK(!memcmp(all + r * n, all, (size_t)n * sizeof *all));
}

/* Every rank has the whole weight's copy, where there is one. */
static void check_copy(struct optim *z)
{
    const struct param *p = &z->banks->p[z->recipe->order.tied_head];
    const uint16_t *w = p->w.data;
    const uint8_t *code = p->fp8.codes.data;
    long bad = 0;

    for (int64_t i = 0; code && i < tensor_count(p->w); i++)
        bad += code[i] != e4m3_from_f32(bf16_to_f32(w[i]) / p->fp8.scale_inv);
    CHECK_EQ(bad, 0);
}

/* What Adam last wrote on any rank: the largest weight of all. */
static void check_amax(struct optim *z)
{
    const struct param *p = &z->banks->p[z->recipe->order.tied_head];
    double all[MAX_WORLD], found = 0, most = 0;
    if (!p->fp8.codes.data)
        return;
    CHECK_OK(z->comm->gather_host(z->comm, &(double){ *p->fp8.amax }, 1, all));
    for (int r = 0; r < z->comm->world; r++)
        found = fmax(found, all[r]);
    for (int64_t i = 0; i < tensor_count(p->w); i++) {
        double size = fabs((double)bf16_to_f32(((uint16_t *)p->w.data)[i]));
        most = size > most ? size : most; /* fmax: an internal error of GCC 12 for aarch64 */
    }
    CHECK(found == most && most > 448 * (double)p->fp8.scale_inv);
}

/* Every rank's bf16 is the nearest to the weight in f16 or e4m3, of which ranks hold parts; the scales of
 * e4m3 follow it, powers of two with which the largest of a row is just held. */
static void check_compute(struct optim *z, int i, const char *stored)
{
    const struct param *p = &z->banks->p[i];
    const uint16_t *w = p->w.data;
    int64_t n = tensor_count(p->w), cols = p->w.cols;
    long bad = 0, other = 0;
    float top = 0, scale = 1, before = 1;
    bool delayed = recipe_delayed(z->recipe, p->spec);

    for (int64_t k = 0; k < n; k++) {
        float x;
        if (p->spec->stored == DT_F16) {
            x = f16_to_f32(((const uint16_t *)stored)[k]);
        } else {
            before = k ? scale : before;
            memcpy(&scale, stored + n + k / cols * 4, 4);
            bad += delayed && k && scale != before;
            x = e4m3_to_f32(((const uint8_t *)stored)[k]);
            top = k % cols ? fmaxf(top, fabsf(x)) : fabsf(x);
            bad += !delayed && k % cols == cols - 1 && scale > 0x1p-126f &&
                   !(top >= 224 && top <= 448);
        }
        bad += bf16_to_f32(w[k]) != bf16_round(x * scale);
        other += x != 0;
    }
    CHECK_EQ(bad, 0);
    CHECK(other > 0);
}

/* Every rank holds all weights, whole: compared with what the ranks say their parts are. */
static void check_weights(struct rank_arg *a, struct optim *z)
{
    struct optim_tensor t[OPTIM_MAX_TENSORS];
    size_t at = 0;
    int n = optim_tensors(z, t);

    for (int i = 0; i < n; i++) {
        struct tensor w = z->banks->p[t[i].param].w, out = sent(&z->banks->p[t[i].param], a->v);
        size_t whole = tensor_bytes(t[i].t) / (size_t)t[i].count * (size_t)t[i].total;
        if (!strcmp(t[i].kind, "weight") && z->p[t[i].param].stored.data)
            check_compute(z, t[i].param, a->out->bytes + at);
        else if (!strcmp(t[i].kind, "weight"))
            CHECK(whole == tensor_bytes(w) &&
                  !memcmp(a->out->bytes + at, w.data, tensor_bytes(out)));
        at += whole;
    }
}

static double norm_of(const struct optim *z, const struct step_schedule *at)
{
    double sum = 0;
    for (int i = 0; i < z->banks->n; i++) {
        const struct param *p = &z->banks->p[i];
        for (int64_t k = 0; k < tensor_count(p->g) && recipe_moves(p->spec, at->step); k++) {
            double x = p->g.dtype == DT_F32 ? ((float *)p->g.data)[k]
                                            : bf16_to_f32(((uint16_t *)p->g.data)[k]);
            sum += x * x;
        }
    }
    return sqrt(sum);
}

/* All ranks decide alike; a norm has an f32 rounding for each of the ranks and two more. */
static void check_gate(const struct optim *z, const struct variant *v,
                       const struct step_schedule *at, double norm)
{
    struct step_gate g = z->gate->gate;
    CHECK_EQ(g.skip != 0, v->plant && at->step == v->plant);
    CHECK(g.factor == 1);
    if (!g.skip && !at->tied && !v->one_holder)
        CHECK(fabs(g.norm - norm) <= (v->world + 2) * 0x1p-24 * norm);
}

/* What backward leaves on this rank, and what of it is meant to be found. */
static void plant(struct optim *z, const struct variant *v, int step)
{
    if (!v->plant || step != v->plant || z->comm->rank != v->world - 1)
        return;
    struct tensor g = z->banks->p[recipe_param(z->recipe, v->where)].g;
    if (g.dtype == DT_F32)
        *(float *)g.data = NAN;
    else
        *(uint16_t *)g.data = 0x7fc0;
}

static uint32_t moved(const struct recipe *r, int step)
{
    uint32_t set = 0;
    for (int i = 0; i < r->n_params; i++)
        set |= (uint32_t)recipe_moves(&r->params[i], step) << i;
    return set;
}

static void one_step(struct optim *z, const struct variant *v, int step)
{
    struct step_schedule at;
    int table = recipe_param(z->recipe, "ve0");

    schedule_at(z->recipe, step, &at);
    optim_prepare(z, &at);
    optim_begin(z);
    for (int i = 0; i < z->recipe->n_params; i++)
        optim_need(z, i);
    check_equal(z, v);
    check_copy(z);
    feed(z, v, step);
    for (int i = 0; i < z->recipe->n_params; i++)
        z->banks->p[i].fresh = false; /* the backward has written it */
    plant(z, v, step);
    if (v->omit && step == v->omit) {
        banks_clear(z->banks, moved(z->recipe, step));
        return;
    }
    double norm = z->gate ? norm_of(z, &at) : 0;
    for (int i = z->recipe->n_params - 1; i >= 0; i--)
        report_final(z, i);
    CHECK_EQ(optim_exchanges(z),
             v->sparse && v->world > 1 && recipe_moves(&z->recipe->params[table], step));
    if (optim_exchanges(z)) {
        optim_pause(z);
        CHECK_OK(optim_exchange(z));
    }
    optim_step(z);
    optim_finish(z, &at);
    if (z->gate)
        check_gate(z, v, &at, norm);
    for (int i = 0; i < z->recipe->n_params; i++)
        CHECK(z->banks->p[i].fresh == recipe_moves(&z->recipe->params[i], step));
}

/* The bytes that --plan promises of each parameter are those that its states take; where shares differ,
 * by the rank that owns most. */
static void check_memory(const struct optim *z)
{
    struct optim_tensor t[OPTIM_MAX_TENSORS];
    int64_t bytes[MAX_PARAMS] = { 0 };
    int n = optim_tensors(z, t);
    for (int i = 0; i < n; i++)
        bytes[t[i].param] += strcmp(t[i].kind, "weight") ? (int64_t)tensor_bytes(t[i].t) : 0;
    for (int i = 0; i < z->recipe->n_params; i++) {
        int64_t plan = optim_param_bytes(z->recipe, i, z->comm->world);
        if (8 % z->comm->world)
            CHECK(bytes[i] <= plan);
        else
            CHECK_EQ(bytes[i], plan);
    }
}

static size_t state_bytes(const struct recipe *r)
{
    size_t n = 0;
    for (int i = 0; i < r->n_params; i++)
        n += (size_t)(optim_param_bytes(r, i, 1) + (r->params[i].stored == DT_NONE
                                                        ? param_bytes(&r->params[i])
                                                        : optim_stored_bytes(r, i, 1)));
    return n;
}

/* The values that seed 3 draws. */
static int fill(struct banks *b)
{
    struct initial *v;
    int rc = initial_new(&v, b->recipe, 3, NULL);
    if (!rc)
        rc = banks_fill(b, v);
    initial_free(v);
    return rc;
}

static void *run_rank(void *arg)
{
    struct rank_arg *a = arg;
    struct ops *o;
    struct banks b;
    struct optim z;

    if (!CHECK_OK(ops_cpu_new(&o)) ||
        !CHECK_OK(banks_init(&b, a->recipe, o, a->comm->rank, a->comm->world)))
        return NULL;
    if (a->v->fp8)
        banks_keep_fp8(&b, &b.p[a->recipe->order.tied_head], 0.01f / 448);
    if (!CHECK_OK(fill(&b)))
        return NULL;
    if (!CHECK_OK(optim_init(&z, a->recipe, &b, o, a->comm)))
        return NULL;
    check_memory(&z);
    CHECK_OK(optim_masters(&z, NULL));
    for (int s = 0; s <= N_STEPS; s++) {
        struct step_schedule last;
        if (s < N_STEPS)
            one_step(&z, a->v, steps[s]);
        if (s > 0 && z.gate) {
            schedule_at(a->recipe, steps[s - 1], &last);
            optim_outcome(&z, &last, last.step == a->v->plant);
        }
    }
    CHECK_EQ(z.open, 0);
    CHECK_OK(o->status(o));
    CHECK_OK(a->comm->status(a->comm));
    CHECK_EQ(z.sparse != NULL, a->v->sparse && a->v->world > 1);
    if (z.sparse) { /* four odd steps, never the dense way */
        struct sparse_stats s = sparse_stats(z.sparse);
        CHECK(s.exchanges == (a->v->parted ? 8 : 4) && s.dense == 0 && sparse_settled(z.sparse));
        CHECK(s.sent_bytes > 0 && s.sent_bytes < s.dense_bytes / 2);
    }
    optim_settle(&z);
    check_copy(&z);
    check_amax(&z);
    collect(a, &z);
    CHECK_OK(a->comm->barrier(a->comm));
    check_weights(a, &z);
    if (a->v->fp8) { /* as after resuming */
        struct param *p = &b.p[a->recipe->order.tied_head];
        memset(p->fp8.codes.data, 0x7f, tensor_bytes(p->fp8.codes));
        optim_gather_weights(&z);
        check_copy(&z);
        check_amax(&z);
    }
    optim_release(&z);
    o->free(o);
    return NULL;
}

static struct outcome run(const struct variant *v)
{
    struct recipe *r = read_recipe(v);
    struct outcome out = { .size = state_bytes(r) };

    out.bytes = malloc(out.size);
    memset(out.bytes, 0xff, out.size);
    with_ranks(v->world, run_rank, (struct rank_arg){ .v = v, .recipe = r, .out = &out });
    recipe_free(r);
    return out;
}

/* Four odd steps for most; the embedding takes over the head's three at the untie step. */
static void check_counts(const struct outcome *x)
{
    struct recipe *r = read_recipe(&(struct variant){ .polar = DT_BF16 });
    for (int i = 0; i < r->n_params; i++)
        CHECK_EQ(x->count[i], rule_is_adam(&r->params[i].rule) ? 4 : 0);
    recipe_free(r);
}

/* The head takes tied_mix times the embedding's gradient: the same bits as with a mix of 1 and that
 * gradient times the mix (a power of two, or 0). */
static void test_tied_mix(void)
{
    static const double mix[] = { 1, 0.5, -1, 0 };
    struct outcome last = { 0 };
    for (int i = 0; i < 4; i++) {
        double d = mix[i] - 1;
        struct outcome a = run(&(struct variant){ "", 2, .polar = DT_BF16, .mix = d });
        struct outcome b = run(&(struct variant){ "", 1, .polar = DT_BF16, .embed = (float)d });
        if (!CHECK(!memcmp(a.bytes, b.bytes, a.size)))
            printf("    with order.tied_mix = %g\n", mix[i]);
        CHECK(i == 0 || memcmp(a.bytes, last.bytes, a.size));
        free(last.bytes), free(b.bytes);
        last = a;
    }
    free(last.bytes);
    /* The line has the value s in step s, and all of it is exact in f32. */
    struct outcome a =
        run(&(struct variant){ "", 2, .gradients = DT_F32, .polar = DT_F32, .line = true });
    struct outcome b =
        run(&(struct variant){ "", 1, .gradients = DT_F32, .polar = DT_F32, .embed_line = true });
    CHECK(!memcmp(a.bytes, b.bytes, a.size));
    free(a.bytes), free(b.bytes);
}

/* -- NorMuon and Adam in one parameter ----------------------------------------------------------- */

struct single {
    struct recipe *r;
    struct ops *o;
    struct comm *c;
    struct banks b;
    struct optim z;
    struct variant v;
    int bank; /* the MLP's */
};

static void single_of(struct single *s, const struct variant *v)
{
    *s = (struct single){ .v = *v };
    s->r = read_recipe(&s->v);
    s->bank = recipe_param(s->r, "mlp");
    CHECK_OK(ops_cpu_new(&s->o));
    CHECK_OK(comm_threads_new(&s->c, 1));
    CHECK_OK(banks_init(&s->b, s->r, s->o, 0, 1));
    CHECK_OK(fill(&s->b));
    CHECK_OK(optim_init(&s->z, s->r, &s->b, s->o, s->c));
}

static void single_new(struct single *s, const char *rule)
{
    single_of(s,
              &(struct variant){ .world = 1, .gradients = DT_F32, .polar = DT_F32, .rule = rule });
}

static void single_free(struct single *s)
{
    optim_release(&s->z);
    s->c->free(s->c);
    s->o->free(s->o);
    recipe_free(s->r);
}

/* The f32 weights of the bank: both halves. */
static float *weights_of(const struct single *s)
{
    const struct param *p = &s->b.p[s->bank];
    const uint16_t *high = p->w.data, *low = s->z.p[s->bank].mantissa.data;
    int64_t n = tensor_count(p->w);
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = f32_from_bits((uint32_t)high[i] << 16 | low[i]);
    return x;
}

/* Until the change the bits of NorMuon alone, although Adam's moments are kept from step 3 on; then
 * Adam's update, of these moments: worked out here from those that are left, with the largest error in
 * units of the last place of a weight, cut once. */
static void test_change(void)
{
    struct single a, b;
    single_new(&a, "normuon");
    single_new(&b, "normuon>adam");
    for (int s = 0; s < 6; s++) { /* to 1151 */
        one_step(&a.z, &a.v, steps[s]);
        one_step(&b.z, &b.v, steps[s]);
    }
    float *before = weights_of(&b), *other = weights_of(&a);
    int64_t n = tensor_count(b.b.p[b.bank].w);
    CHECK(!memcmp(before, other, (size_t)n * sizeof *before));
    CHECK_EQ(b.z.p[b.bank].count, 3); /* 3, 1150, 1151 */
    one_step(&b.z, &b.v, 1152);
    struct step_schedule at;
    schedule_at(b.r, 1152, &at);
    const struct param_spec *spec = b.b.p[b.bank].spec;
    const float *m = b.z.p[b.bank].exp_avg.t.data, *v = b.z.p[b.bank].exp_avg_sq.t.data;
    double eta = b.r->optimizer.adam.lr * at.lr, worst = 0, moved = 0;
    float *after = weights_of(&b);
    for (int64_t i = 0; i < n; i++) {
        double p = before[i], d = m[i] / (sqrt(v[i]) + b.r->optimizer.adam.eps) * eta *
                                  sqrt(1 - pow(spec->beta2, 4)) / (1 - pow(spec->beta1, 4));
        d += d * p > 0 ? eta * eta * b.r->optimizer.adam.wd * spec->wd_mul * p : 0;
        worst = fmax(worst, fabs(after[i] - (p - d)));
        moved = fmax(moved, fabs(d));
    }
    CHECK(worst <= 2e-6 * moved + 0x1p-24);
    CHECK_EQ(b.z.p[b.bank].count, 4);
    free(before), free(other), free(after);
    single_free(&a), single_free(&b);
}

/* With lr 0 in a bank's list every second matrix keeps its bits, and with lr 0 a table does. */
static void test_frozen(const char *rule)
{
    struct single s;
    single_of(&s,
              &(struct variant){
                  .world = 1, .gradients = DT_F32, .polar = DT_F32, .rule = rule, .frozen = true });
    struct param *mlp = &s.b.p[s.bank], *table = &s.b.p[recipe_param(s.r, "ve0")];
    struct tensor *w[] = { &mlp->w, &table->w };
    char *before[2];
    for (int k = 0; k < 2; k++)
        before[k] = malloc(tensor_bytes(*w[k])), memcpy(before[k], w[k]->data, tensor_bytes(*w[k]));
    ((struct param_spec *)table->spec)->lr_mul[0] = 0;
    one_step(&s.z, &s.v, 0);
    one_step(&s.z, &s.v, 1);
    size_t one = tensor_bytes(*w[0]) / (size_t)mlp->own_count;
    for (size_t i = 0; i < 22; i++)
        CHECK(!memcmp(before[0] + i * one, (char *)w[0]->data + i * one, one) == (i % 2 == 0));
    CHECK(!memcmp(before[1], w[1]->data, tensor_bytes(*w[1])));
    free(before[0]), free(before[1]);
    single_free(&s);
}

/* The embedding's first update of its own, after the untie step: with untie_state = zero from moments
 * of zero, m = (1 - beta1) g and v = (1 - beta2) g^2, so that it is lr g / |g|; else the fourth, from
 * the head's moments. */
static void test_untie_state(bool zero)
{
    struct single s;
    single_new(&s, "normuon");
    s.r->schedule.untie_state = zero ? UNTIE_ZERO : UNTIE_CARRY;
    s.r->optimizer.adam.wd = 0;
    int head = s.r->order.tied_head, embed = s.r->order.tied_embed;
    const struct param_spec *spec = &s.r->params[embed];
    for (int k = 0; k < 6; k++) /* to 1151, the untie step */
        one_step(&s.z, &s.v, steps[k]);
    const float *m = s.z.p[embed].exp_avg.t.data, *v = s.z.p[embed].exp_avg_sq.t.data;
    const float *of_head = s.z.p[head].exp_avg.t.data;
    int64_t n = tensor_count(s.b.p[embed].w), cols = spec->cols, bad = 0, moved = 0;
    for (int64_t i = 0; i < n; i++)
        bad +=
            m[i] != (zero ? 0 : of_head[i % cols * spec->rows + i / cols]) || (zero && v[i] != 0);
    CHECK_EQ(bad, 0);
    CHECK_EQ(s.z.p[embed].count, zero ? 0 : 3);
    uint16_t *before = malloc((size_t)n * 2), *w = s.b.p[embed].w.data;
    memcpy(before, w, (size_t)n * 2);
    one_step(&s.z, &s.v, 1152);
    one_step(&s.z, &s.v, 1153);
    CHECK_EQ(s.z.p[embed].count, zero ? 1 : 4);
    struct step_schedule at;
    schedule_at(s.r, 1153, &at);
    double eta = s.r->optimizer.adam.lr * at.lr * (double)spec->lr_mul[0];
    for (int64_t i = 0; i < n && zero; i++) {
        double g = m[i] / (1 - spec->beta1), old = bf16_to_f32(before[i]);
        double want = old - (g > 0 ? eta : g < 0 ? -eta : 0);
        bad += !(fabs(v[i] - (1 - spec->beta2) * g * g) <= 1e-6 * v[i]);
        bad += !(fabs(bf16_to_f32(w[i]) - want) <= 0x1p-8 * fabs(want) + 1e-6 * eta);
        moved += w[i] != before[i];
    }
    CHECK_EQ(bad, 0);
    CHECK(!zero || moved > n / 2);
    free(before);
    single_free(&s);
}

/* With a weight w of Adam and nothing that masks or decays, the step of the blend is (1 - w) of
 * NorMuon's and w of Adam's. */
static double kept(struct row_scaled s, int64_t r, int64_t c)
{
    int64_t i = r * s.t.cols + c;
    double x = s.t.dtype == DT_F16 ? f16_to_f32(((const uint16_t *)s.t.data)[i])
                                   : e4m3_to_f32(((const uint8_t *)s.t.data)[i]);
    return x * (double)s.scale[r];
}

/* The embedding's moments are the head's, of other rows: within half a unit of what the scale of a row of the
 * embedding can hold, 2^-mantissa of a number and never less than the least; with one scale the same numbers. */
static void test_untie_scaled(enum dtype t, bool whole)
{
    struct single s;
    double unit = t == DT_E4M3 ? 0x1p-3 : 0x1p-10, least = t == DT_E4M3 ? 0x1p-9 : 0x1p-24;
    long bad = 0, other = 0;
    single_of(&s,
              &(struct variant){
                  .world = 1, .gradients = DT_F32, .polar = DT_F32, .states = t, .whole = whole });
    for (int k = 0; k < 6; k++)
        one_step(&s.z, &s.v, steps[k]);
    const struct optim_param *head = &s.z.p[s.r->order.tied_head],
                             *embed = &s.z.p[s.r->order.tied_embed];
    for (int64_t i = 0; i < tensor_count(embed->exp_avg.t); i++) {
        int64_t r = i / embed->exp_avg.t.cols, c = i % embed->exp_avg.t.cols;
        double m = kept(head->exp_avg, c, r), v = kept(head->exp_avg_sq, c, r);
        double got_m = kept(embed->exp_avg, r, c), got_v = kept(embed->exp_avg_sq, r, c);
        double of_m = (double)embed->exp_avg.scale[r], of_v = (double)embed->exp_avg_sq.scale[r];
        bad += !(fabs(got_m - m) <= (whole ? 0 : 0.5 * fmax(unit * fabs(m), least * of_m)));
        bad += !(fabs(got_v - v) <= (whole ? 0 : fmax(0.5 * unit * v, least * of_v)));
        bad += v > 0 && !(got_v > 0);
        other += m != 0;
    }
    CHECK_EQ(bad, 0);
    CHECK(other > 0 && embed->count == head->count);
    single_free(&s);
}

static void test_blend(void)
{
    struct single s[3];
    float *x[3], *start;
    double worst = 0, size = 0;
    for (int k = 0; k < 3; k++) {
        single_new(&s[k], "normuon+adam");
        s[k].r->optimizer.muon.wd = s[k].r->optimizer.adam.wd = 0;
        s[k].r->optimizer.blend.weight[0] = s[k].r->optimizer.blend.weight[1] = k == 2 ? 0.25 : k;
        s[k].r->optimizer.blend.span[1] = 1;
        set_rule(s[k].r, s[k].bank, "normuon+adam");
    }
    start = calloc(1, 1);
    for (int k = 0; k < 3; k++) {
        s[k].o->zero(s[k].o, s[k].z.p[s[k].bank].mantissa);
        free(start);
        start = weights_of(&s[k]);
        one_step(&s[k].z, &s[k].v, 0);
        x[k] = weights_of(&s[k]);
    }
    int64_t n = tensor_count(s[0].b.p[s[0].bank].w);
    for (int64_t i = 0; i < n; i++) {
        double want = 0.75 * ((double)x[0][i] - start[i]) + 0.25 * ((double)x[1][i] - start[i]);
        double off = fabs((double)x[2][i] - start[i] - want);
        worst = off <= worst ? worst : off; /* fmax: as in check_amax() */
        size = fabs(want) > size ? fabs(want) : size;
    }
    CHECK(worst <= 1e-5 * size && size > 0); /* f32 weights, up to 0.5, and steps of 1e-2 */
    free(start);
    for (int k = 0; k < 3; k++)
        free(x[k]), single_free(&s[k]);
}

/* -- branches ------------------------------------------------------------------------------- */

/* What this thread's rank has queued: a branch's number, '-' trunk, 'p' polar, 'j' join. */
static _Thread_local char queued[32];

static void note(char what)
{
    size_t n = strlen(queued);
    if (CHECK(n + 1 < sizeof queued))
        queued[n] = what;
}

static void note_branch(struct ops *o, int i)
{
    (void)o;
    note(i == TRUNK ? '-' : (char)('0' + i));
}

static void note_join(struct ops *o)
{
    (void)o;
    note('j');
}

static void note_polar(struct ops *o, struct tensor x, int n, const double (*coef)[3], int iters,
                       unsigned how)
{
    (void)o, (void)x, (void)n, (void)coef, (void)iters, (void)how;
    note('p');
}

static void *noting_rank(void *arg)
{
    struct rank_arg *a = arg;
    struct ops *o;
    struct banks b;
    struct optim z;

    CHECK_OK(ops_cpu_new(&o));
    CHECK_OK(banks_init(&b, a->recipe, o, a->comm->rank, a->comm->world));
    CHECK_OK(fill(&b));
    CHECK_OK(optim_init(&z, a->recipe, &b, o, a->comm));
    o->branch = note_branch, o->join = note_join, o->polar = note_polar;
    memset(queued, 0, sizeof queued);
    one_step(&z, a->v, 1);
    if (!CHECK(!strcmp(queued, a->queued)))
        printf("    %d ranks: %s, not %s\n", a->comm->world, queued, a->queued);
    optim_settle(&z);
    optim_release(&z);
    o->free(o);
    return NULL;
}

/* In the record's order attn, mlp. late: the MLPs' alone. */
static void test_branches(int world, bool late, const char *want)
{
    struct variant v = { .world = world, .polar = DT_BF16, .rule = "normuon" };
    struct recipe *r = read_recipe(&v);

    if (late)
        r->order.late[r->order.n_late++] = recipe_param(r, "mlp");
    with_ranks(world, noting_rank, (struct rank_arg){ .v = &v, .recipe = r, .queued = want });
    recipe_free(r);
}

/* -- connections --------------------------------------------------------------------------- */

static _Thread_local struct {
    comm_ticket (*call)(struct comm *, struct tensor, const int64_t *, struct tensor,
                        const int64_t *);
    int calls, reached; /* ranks that something is sent to and received from, this one too */
} exchange;

static comm_ticket note_exchange(struct comm *c, struct tensor recv, const int64_t *recv_rows,
                                 struct tensor send, const int64_t *send_rows)
{
    exchange.calls++;
    for (int r = 0; r < c->world; r++)
        exchange.reached += send_rows[r] > 0 && recv_rows[r] > 0;
    return exchange.call(c, recv, recv_rows, send, send_rows);
}

/* queued: "u" the run unties, "x" an exchange is expected. */
static void *connecting_rank(void *arg)
{
    struct rank_arg *a = arg;
    bool expected = strchr(a->queued, 'x') != NULL;
    struct ops *o;
    struct banks b;
    struct optim z;

    CHECK_OK(ops_cpu_new(&o));
    CHECK_OK(banks_init(&b, a->recipe, o, a->comm->rank, a->comm->world));
    CHECK_OK(optim_init(&z, a->recipe, &b, o, a->comm));
    int lent = a->v->sparse ? recipe_sparse(a->recipe) : a->recipe->order.tied_head;
    size_t bytes = tensor_bytes(b.p[lent].g);
    char *before = malloc(bytes);
    memcpy(before, b.p[lent].g.data, bytes);
    exchange.call = a->comm->all_to_all;
    exchange.calls = exchange.reached = 0;
    a->comm->all_to_all = note_exchange;
    CHECK_OK(optim_connect(&z, strchr(a->queued, 'u') != NULL));
    CHECK_EQ(exchange.calls, expected);
    CHECK_EQ(exchange.reached, expected ? a->comm->world : 0);
    CHECK(!memcmp(before, b.p[lent].g.data, bytes));
    free(before);
    optim_release(&z);
    o->free(o);
    return NULL;
}

static void test_connect(int world, bool sparse, const char *what)
{
    struct variant v = { .world = world, .polar = DT_BF16, .sparse = sparse };
    struct recipe *r = read_recipe(&v);

    with_ranks(world, connecting_rank, (struct rank_arg){ .v = &v, .recipe = r, .queued = what });
    recipe_free(r);
}

/* -- what is wrong ---------------------------------------------------------------------------- */

/* Rank 1 fails before its step; rank 0's step returns and says why. */
static void *failing_rank(void *arg)
{
    struct rank_arg *a = arg;
    struct ops *o;
    struct banks b;
    struct optim z;
    struct step_schedule at;

    CHECK_OK(ops_cpu_new(&o));
    CHECK_OK(banks_init(&b, a->recipe, o, a->comm->rank, 2));
    CHECK_OK(fill(&b));
    CHECK_OK(optim_init(&z, a->recipe, &b, o, a->comm));
    double one = 1, each[2];
    int rc = a->comm->gather_host(a->comm, &one, 1, each); /* neither fails before it is ready */
    CHECK(!rc || a->comm->rank == 0); /* which may be told of rank 1 as early as here */
    schedule_at(a->recipe, 1, &at);
    optim_prepare(&z, &at);
    feed(&z, a->v, 1);
    if (a->comm->rank == 1)
        a->comm->abort(a->comm, GPT_DEVICE, "backward: lost");
    else
        optim_step(&z);
    CHECK_ERR(a->comm->status(a->comm), GPT_DEVICE, "rank 1: backward: lost");
    optim_release(&z);
    o->free(o);
    return NULL;
}

/* Ranks that skip a step end with the bits of one that never did it. */
static void test_skips(void)
{
    static const struct variant pair[][2] = {
        { { "3 left out", 1, .polar = DT_BF16, .omit = 3 },
          { "a NaN in a replicated gradient", 4, .polar = DT_BF16, .gated = true, .plant = 3,
            .where = "attn_gate_bank" } },
        { { "1150 left out", 1, .polar = DT_BF16, .omit = 1150 },
          { "a NaN in a bank, in a step without Adam", 4, .polar = DT_BF16, .gated = true,
            .early = true, .late = true, .plant = 1150, .where = "mlp" } },
        { { "1152 left out", 1, .every = 1, .polar = DT_BF16, .omit = 1152 },
          { "a NaN in the head, Adam in each step", 4, .every = 1, .polar = DT_BF16, .gated = true,
            .reversed = true, .plant = 1152, .where = "lm_head" } },
        { { "3 left out, sparse", 1, .polar = DT_BF16, .omit = 3 },
          { "a NaN in sparse rows", 2, .polar = DT_BF16, .gated = true, .sparse = true, .plant = 3,
            .where = "ve0" } },
    };
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
        struct outcome x = run(&pair[i][0]), y = run(&pair[i][1]);
        if (!CHECK(x.size == y.size && !memcmp(x.bytes, y.bytes, x.size)) ||
            !CHECK(!memcmp(x.count, y.count, sizeof x.count)))
            printf("    %s\n", pair[i][1].name);
        free(x.bytes), free(y.bytes);
    }
}

/* Gradients here depend on no weight, so that a parameter ends as where all move as often as it does;
 * the tied ones move every second step. */
static void test_parted(void)
{
    static const struct variant parted[] = {
        { "1 rank, parted", 1, .parted = true, .gradients = DT_F32, .polar = DT_F32 },
        { "3 ranks, parted, early", 3, .parted = true, .early = true, .gradients = DT_F32,
          .polar = DT_F32 },
        { "4 ranks, parted, sparse, reversed", 4, .parted = true, .sparse = true, .reversed = true,
          .gradients = DT_F32, .polar = DT_F32 },
    };
    struct variant even = { "all alike", 1, .gradients = DT_F32, .polar = DT_F32 };
    struct recipe *r = read_recipe(&parted[0]);
    struct outcome want[5];

    CHECK_EQ(recipe_param(r, "scalars") >= 0 && recipe_param(r, "attn_gate_bank") >= 0, 1);
    for (even.every = 1; even.every <= 4; even.every++)
        want[even.every] = run(&even);
    CHECK(memcmp(want[1].bytes, want[3].bytes, want[1].size));
    for (size_t v = 0; v < sizeof parted / sizeof *parted; v++) {
        struct outcome x = run(&parted[v]);
        for (int i = 0; i < r->n_params; i++) {
            const struct outcome *w =
                &want[rule_is_adam(&r->params[i].rule) ? own_every(r->params[i].label) : 1];
            if (!CHECK(
                    x.from[i + 1] > x.from[i] && x.from[i + 1] == w->from[i + 1] &&
                    !memcmp(x.bytes + x.from[i], w->bytes + x.from[i], x.from[i + 1] - x.from[i]) &&
                    x.count[i] == w->count[i]))
                printf("    %s: %s\n", parted[v].name, r->params[i].label);
        }
        free(x.bytes);
    }
    for (int k = 1; k <= 4; k++)
        free(want[k].bytes);
    recipe_free(r);
}

static void test_failure(void)
{
    struct variant v = { .polar = DT_BF16 };
    struct recipe *r = read_recipe(&v);

    with_ranks(2, failing_rank, (struct rank_arg){ .v = &v, .recipe = r });
    recipe_free(r);
}

int main(void)
{
    /* A first row and those that must equal it. */
    static const struct variant table[] = {
        { "1 rank", 1, .polar = DT_BF16 },
        { "2 ranks", 2, .polar = DT_BF16 },
        { "4 ranks", 4, .polar = DT_BF16 },
        { "8 ranks", 8, .polar = DT_BF16 },
        { "4 ranks, gradients on one", 4, .one_holder = true, .polar = DT_BF16 },
        { "8 ranks, gradients on one", 8, .one_holder = true, .polar = DT_BF16 },
        { "1 rank, early", 1, .early = true, .polar = DT_BF16 },
        { "4 ranks, early, reversed", 4, .one_holder = true, .early = true, .reversed = true,
          .polar = DT_BF16 },
        { "2 ranks, reversed", 2, .one_holder = true, .reversed = true, .polar = DT_BF16 },
        { "8 ranks, early", 8, .one_holder = true, .early = true, .polar = DT_BF16 },
        { "2 ranks, early, pieces", 2, .one_holder = true, .early = true, .piece = 1,
          .polar = DT_BF16 },
        { "4 ranks, early, pieces, no padding", 4, .one_holder = true, .early = true, .piece = 5000,
          .unpadded = true, .polar = DT_BF16 },
        { "4 ranks, late", 4, .late = true, .polar = DT_BF16 },
        { "1 rank, late, no padding", 1, .late = true, .unpadded = true, .polar = DT_BF16 },
        { "8 ranks, no padding", 8, .unpadded = true, .polar = DT_BF16 },
        { "8 ranks, early, late, no padding, reversed", 8, .one_holder = true, .early = true,
          .reversed = true, .late = true, .unpadded = true, .polar = DT_BF16 },
        { "1 rank, sparse", 1, .sparse = true, .polar = DT_BF16 },
        { "2 ranks, sparse, early, late", 2, .sparse = true, .early = true, .late = true,
          .polar = DT_BF16 },
        { "4 ranks, sparse, gradients on one", 4, .one_holder = true, .sparse = true,
          .polar = DT_BF16 },
        { "8 ranks, sparse, reversed", 8, .sparse = true, .reversed = true, .polar = DT_BF16 },
        { "1 rank, fp8 copy", 1, .fp8 = true, .polar = DT_BF16 },
        { "2 ranks, fp8 copy", 2, .fp8 = true, .reversed = true, .polar = DT_BF16 },
        { "8 ranks, fp8 copy, late, no padding", 8, .fp8 = true, .late = true, .unpadded = true,
          .polar = DT_BF16 },
        { "1 rank, gated", 1, .gated = true, .polar = DT_BF16 },
        { "4 ranks, gated, early, late", 4, .gated = true, .early = true, .late = true,
          .polar = DT_BF16 },
    };
    static const struct variant f32[] = {
        { "1 rank, f32 gradients and polar", 1, .gradients = DT_F32, .polar = DT_F32 },
        { "2 ranks, f32 gradients and polar", 2, .one_holder = true, .gradients = DT_F32,
          .polar = DT_F32 },
        /* Not all shares are equal. */
        { "3 ranks", 3, .gradients = DT_F32, .polar = DT_F32 },
        { "5 ranks, early, late, no padding", 5, .early = true, .late = true, .unpadded = true,
          .gradients = DT_F32, .polar = DT_F32 },
        { "6 ranks, sparse, reversed", 6, .sparse = true, .reversed = true, .gradients = DT_F32,
          .polar = DT_F32 },
        { "7 ranks, fp8 copy, sparse, early", 7, .fp8 = true, .sparse = true, .early = true,
          .gradients = DT_F32, .polar = DT_F32 },
    };
    static const struct variant bf16[] = {
        { "1 rank, bf16 states", 1, .polar = DT_BF16, .states = DT_BF16 },
        { "4 ranks, bf16 states", 4, .late = true, .polar = DT_BF16, .states = DT_BF16 },
    };
    static const struct variant masters[] = {
        { "1 rank, f32 masters", 1, .polar = DT_BF16, .master = true },
        { "4 ranks, f32 masters", 4, .late = true, .polar = DT_BF16, .master = true },
    };
    static const struct variant rules[][2] = {
        { { "1 rank, stored", 1, .gradients = DT_F32, .polar = DT_F32, .stored = true },
          { "3 ranks, stored, sparse, late", 3, .late = true, .sparse = true, .gradients = DT_F32,
            .polar = DT_F32, .stored = true } },
        { { "1 rank, stored, masters", 1, .gradients = DT_F32, .polar = DT_F32, .stored = true,
            .master = true },
          { "4 ranks, stored, masters", 4, .early = true, .gradients = DT_F32, .polar = DT_F32,
            .stored = true, .master = true } },
        { { "1 rank, one scale", 1, .gradients = DT_F32, .polar = DT_F32, .stored = true,
            .states = DT_E4M3, .whole = true, .gated = true },
          { "3 ranks, one scale, sparse, late", 3, .late = true, .sparse = true,
            .gradients = DT_F32, .polar = DT_F32, .stored = true, .states = DT_E4M3, .whole = true,
            .gated = true } },
        { { "1 rank, one scale, masters", 1, .gradients = DT_F32, .polar = DT_F32, .stored = true,
            .master = true, .states = DT_F16, .whole = true },
          { "4 ranks, one scale, masters", 4, .early = true, .gradients = DT_F32, .polar = DT_F32,
            .stored = true, .master = true, .states = DT_F16, .whole = true } },
        { { "1 rank, scaled", 1, .gradients = DT_F32, .polar = DT_F32, .master = true,
            .f16_master = true, .states = DT_E4M3 },
          { "3 ranks, scaled", 3, .late = true, .gradients = DT_F32, .polar = DT_F32,
            .master = true, .f16_master = true, .states = DT_E4M3 } },
        { { "1 rank, Muon", 1, .gradients = DT_F32, .polar = DT_F32, .rule = "muon" },
          { "5 ranks, Muon", 5, .late = true, .gradients = DT_F32, .polar = DT_F32,
            .rule = "muon" } },
        { { "1 rank, SGD", 1, .gradients = DT_F32, .polar = DT_F32, .rule = "sgd" },
          { "3 ranks, SGD", 3, .early = true, .gradients = DT_F32, .polar = DT_F32,
            .rule = "sgd" } },
        { { "1 rank, changing", 1, .gradients = DT_F32, .polar = DT_F32, .rule = "normuon>adam" },
          { "3 ranks, changing", 3, .early = true, .gradients = DT_F32, .polar = DT_F32,
            .rule = "normuon>adam" } },
        { { "1 rank, blended", 1, .gradients = DT_F32, .polar = DT_F32, .rule = "normuon+adam" },
          { "7 ranks, blended", 7, .gradients = DT_F32, .polar = DT_F32, .rule = "normuon+adam" } },
        { { "1 rank, matched", 1, .gradients = DT_F32, .polar = DT_F32, .match_rms = 0.2 },
          { "3 ranks, matched", 3, .gradients = DT_F32, .polar = DT_F32, .match_rms = 0.2 } },
    };
    struct outcome first = run(&table[0]), wide = run(&f32[0]), narrow = run(&bf16[0]), x;
    struct outcome kept = run(&masters[0]);

    check_counts(&first);
    for (size_t i = 1; i < sizeof table / sizeof *table; i++) {
        x = run(&table[i]);
        if (!CHECK(x.size == first.size && !memcmp(x.bytes, first.bytes, x.size)))
            printf("    %s differs from %s\n", table[i].name, table[0].name);
        CHECK(!memcmp(x.count, first.count, sizeof x.count));
        free(x.bytes);
    }
    for (size_t i = 1; i < sizeof f32 / sizeof *f32; i++) {
        x = run(&f32[i]);
        if (!CHECK(!memcmp(x.bytes, wide.bytes, x.size)))
            printf("    %s differs from %s\n", f32[i].name, f32[0].name);
        free(x.bytes);
    }
    CHECK(memcmp(first.bytes, wide.bytes, first.size)); /* the keys do something */
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct outcome one = run(&rules[i][0]);
        x = run(&rules[i][1]);
        if (!CHECK(x.size == one.size && !memcmp(x.bytes, one.bytes, x.size)))
            printf("    %s differs from %s\n", rules[i][1].name, rules[i][0].name);
        CHECK(x.size != wide.size || memcmp(x.bytes, wide.bytes, x.size));
        free(x.bytes), free(one.bytes);
    }
    x = run(&bf16[1]);
    CHECK(x.size == narrow.size && !memcmp(x.bytes, narrow.bytes, x.size));
    CHECK(narrow.size < first.size);
    free(x.bytes);
    x = run(&masters[1]);
    CHECK(x.size == kept.size && !memcmp(x.bytes, kept.bytes, x.size));
    CHECK(kept.size > first.size);
    free(x.bytes), free(kept.bytes), free(first.bytes), free(wide.bytes), free(narrow.bytes);
    test_tied_mix();
    test_skips();
    test_change();
    test_frozen("normuon");
    test_frozen("sgd");
    test_untie_state(true);
    test_untie_state(false);
    for (int k = 0; k < 4; k++)
        test_untie_scaled(k & 1 ? DT_E4M3 : DT_F16, k & 2);
    test_blend();
    test_parted();
    test_branches(1, false, "0p-1p-j");
    test_branches(1, true, "0p-1p-j");
    test_branches(2, false, "0p-1p-j");
    test_branches(2, true, "pjpj");
    test_failure();
    test_connect(1, false, "u");
    test_connect(3, false, "");
    test_connect(3, false, "ux");
    test_connect(4, true, "x");
    return check_done();
}
