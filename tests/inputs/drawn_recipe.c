/* drawn_recipe.c - see drawn_recipe.h. */
#include "drawn_recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/rng.h"

enum { MOST_LAYERS = 5, MOST_TABLES = 2, SCALARS = 120 };
enum { NONE, PLAIN, PAIRED };

struct draw {
    struct rng rng;
    uint64_t n;
    FILE *f;
    struct small_size *size;
    int layers, lanes, tables, gates; /* tables: of value embeddings; gates: rows of each bank */
    bool bigrams, in_x0, post, fold, narrow, after, split, xsa;
    bool own, own_mlp; /* a bank for each of Q, K, V, O; for each of an MLP's matrices */
    bool smear, gates_read; /* gates read the norm; else it may have a gain */
    bool root, halves, qkv_bias;
    bool takes_coefs; /* one lane, inject = after, fold_mlp = no */
    int readers[MOST_TABLES]; /* of each table */
    int backout, from, to; /* taps; to -1: no skip */
    int attend_as;
    char *coefs; /* rows of [token_coefs]; for so many places, of at most so many outputs each */
    int blocks, outputs;
    int given[2], places; /* outputs that other layers use, by place; so many places have some */
    unsigned taken[MOST_LAYERS]; /* bit k: the layer's own coefficients have x0 (0), bigram (1) */
    int attention[MOST_LAYERS], table[MOST_LAYERS]; /* -1: none */
    int bank[MOST_LAYERS + 2], mlp[MOST_LAYERS + 2]; /* two of each are padding, or gaps */
    bool spare[MOST_LAYERS]; /* attention is a matrix of those two MLPs' */
    /* Channels of a head of q and k: of the model, of each layer; those that turn. As head_dim says: 0. */
    int qk, qk_of[MOST_LAYERS], turned;
};

static int below(struct draw *d, int n) { return (int)rng_below(&d->rng, d->n++, (uint64_t)n); }

static const char *either(struct draw *d, const char *a, const char *b)
{
    return below(d, 2) ? a : b;
}

static void shuffled(struct draw *d, int *v, int n)
{
    for (int i = 0; i < n; i++) {
        int j = below(d, i + 1);
        v[i] = v[j];
        v[j] = i;
    }
}

/* -- what belongs together ------------------------------------------------------------------- */

static void draw_size(struct draw *d)
{
    static const int heads[] = { 1, 2, 2, 3, 4 }, head_dim[] = { 4, 8, 12, 16, 32 };
    struct small_size *z = d->size;

    *z = (struct small_size){ .tokens = 33 + below(d, 20),
                              .heads = heads[below(d, 5)],
                              .head_dim = head_dim[below(d, 5)],
                              .mlp_width = 8 + below(d, 40),
                              .vocab = 61,
                              .rows = 97,
                              .document = 5 + below(d, 20) };
    while (z->heads * z->head_dim < GATE_WIDTH)
        z->head_dim *= 2;
    if (z->heads * z->head_dim <= 32 && below(d, 2))
        z->mlp_width = 4 * z->heads * z->head_dim;
}

/* Up to four layers, with what the two MLPs have that no layer uses. */
static void draw_spare(struct draw *d)
{
    int at[4] = { 0, 1, 2, 3 }, n = 0;

    shuffled(d, at, 4);
    if (d->size->mlp_width != 4 * d->size->heads * d->size->head_dim)
        return;
    for (int i = 0; i < d->layers && n < 4; i++)
        if (d->attention[i] != NONE && !d->own_mlp && !d->halves && (d->spare[i] = below(d, 2)))
            d->bank[i] = 2 * d->mlp[d->layers + at[n] / 2] + at[n] % 2, n++;
}

/* Draws heads of q and k that are narrower than those of v. */
static void draw_narrow(struct draw *d)
{
    int most = d->size->head_dim / 4, least;

    if (!(d->own || d->split) || most < 2 || below(d, 2))
        return;
    least = d->qk = 4 * (1 + below(d, most));
    for (int i = 0; i < d->layers; i++) {
        d->qk_of[i] = d->spare[i]                ? d->size->head_dim
                      : d->halves || below(d, 2) ? 0
                                                 : 4 * (1 + below(d, most));
        least = d->qk_of[i] && d->qk_of[i] < least ? d->qk_of[i] : least;
    }
    d->turned = d->halves ? 0 : 2 * (1 + below(d, least / 2));
}

/* Returns how many groups of four channels the heads of q have in all indices of the banks. */
static int narrow_groups(const struct draw *d)
{
    int n = (d->layers + 2) * d->qk;
    for (int i = 0; i < d->layers; i++)
        if (d->attention[i] != NONE && !d->spare[i] && d->qk_of[i])
            n += d->qk_of[i] - d->qk;
    return d->size->heads * n / 4;
}

/* Tables nobody reads would be refused: those that are read come first. */
static void draw_tables(struct draw *d)
{
    int readers[MOST_TABLES] = { 0 }, place[MOST_TABLES] = { 0 }, n = below(d, MOST_TABLES + 1);

    for (int i = 0; i < d->layers; i++) {
        int t = n && d->attention[i] != NONE && d->gates_read ? below(d, 2 * n) : n;
        d->table[i] = t < n && readers[t] < 2 ? t : -1;
        readers[t < n ? t : 0] += d->table[i] >= 0;
    }
    for (int t = 0; t < n; t++) {
        place[t] = readers[t] ? d->tables++ : -1;
        if (readers[t])
            d->readers[place[t]] = readers[t];
    }
    for (int i = 0; i < d->layers; i++)
        if (d->table[i] >= 0)
            d->table[i] = place[d->table[i]];
}

static void draw_layers(struct draw *d)
{
    d->layers = 1 + below(d, MOST_LAYERS);
    d->lanes = d->takes_coefs || below(d, 3) ? -1 : below(d, d->layers);
    d->gates = 1 + below(d, 3);
    shuffled(d, d->bank, d->layers + 2);
    shuffled(d, d->mlp, d->layers + 2);
    for (int i = 0; i < d->layers; i++) {
        bool two = d->lanes >= 0 && i >= d->lanes;
        bool some = two || below(d, 4);
        d->attention[i] = !some ? NONE : d->size->heads % 2 == 0 && below(d, 2) ? PAIRED : PLAIN;
    }
    draw_spare(d);
    draw_narrow(d);
    draw_tables(d);
}

static void draw_taps(struct draw *d)
{
    d->backout = below(d, 2) ? below(d, d->layers) : -1;
    d->from = below(d, d->layers);
    d->to = below(d, d->layers);
    if (d->to <= d->from + 1 || d->to == d->backout + 1)
        d->to = -1;
    d->after = d->takes_coefs || below(d, 2);
    /* A layer before which the stream is its own, with attention from there on. */
    int least = d->layers;
    while (least > 1 && d->attention[least - 1] != NONE)
        least--;
    d->attend_as =
        d->after && least < d->layers && below(d, 2) ? least + below(d, d->layers - least) : -1;
    if (d->attend_as == d->to)
        d->attend_as = -1;
}

/* Sources of one sum; returns how many outputs they take. */
static int put_sources(struct draw *d, FILE *f, int *row, const char *layer, const char *role,
                       int i, bool *table)
{
    static const int parts_of[] = { 1, 1, 1, 2, 3, 4 };
    int n = 0;

    if (below(d, 2)) {
        fprintf(f, "%d %s %s x0 1\n", (*row)++, layer, role);
        n++;
    }
    if (below(d, 3) == 0) {
        fprintf(f, "%d %s %s start 1\n", (*row)++, layer, role);
        n++;
    }
    for (int k = 0; k < i; k++)
        if (below(d, 3) == 0 && d->to != k + 1 && n < 4 && (i < d->layers || k != d->backout)) {
            fprintf(f, "%d %s %s layer:%d 1\n", (*row)++, layer, role, k);
            n++;
        }
    int t = below(d, MOST_TABLES), parts = parts_of[below(d, 6)];
    bool fresh = t == d->tables;
    if (*table || t > d->tables || (t < d->tables && d->readers[t] > 1))
        return n;
    if (i < d->layers && d->table[i] >= 0)
        return n;
    d->tables += fresh;
    d->readers[t]++;
    *table = true;
    parts = d->size->heads % parts || n + parts > 5 ? 1 : parts;
    fprintf(f, "%d %s %s tables:%d %d\n", (*row)++, layer, role, t, parts);
    return n + parts;
}

/* Coefficients of tokens in a layer, or before the head. */
static void put_coefs(struct draw *d, FILE *f, int *row, int i)
{
    static const char *const roles[] = { "residual", "attn_lane0",   "x0",
                                         "bigram",   "residual_mlp", "mlp_lane0" };
    char layer[16];
    int n = 0;
    bool table = false, end = i == d->layers;

    snprintf(layer, sizeof layer, end ? "end" : "%d", i);
    if (end || (i != d->attend_as && below(d, 2)))
        n += put_sources(d, f, row, layer, "stream", i, &table);
    if (!end && below(d, 2))
        n += put_sources(d, f, row, layer, "value", i, &table);
    for (int k = 0; k < 6 && !end; k++)
        if (below(d, 2) && (k != 3 || d->bigrams)) {
            bool start = k == 2 && below(d, 2); /* x0, or the stream that enters layer 0 */
            fprintf(f, "%d %s %s %s 1\n", (*row)++, layer, roles[k], start ? "start" : "-");
            d->taken[i] |= k == 2 ? 1u : k == 3 ? 2u : 0;
            n++;
        }
    d->blocks += n > 0;
    d->outputs = n > d->outputs ? n : d->outputs;
}

/* Coefficients that an MLP of x0, or of an earlier layer's output, makes for layer i. */
static void put_given(struct draw *d, FILE *f, int *row, int i, int from)
{
    static const char *const roles[] = { "x0", "bigram", "skip", "xsa", "gate", "dc1", "dc2" };
    bool here = d->attention[i] != NONE, heads = d->attention[i] == PLAIN && !d->gates_read;
    bool composes = below(d, 2);
    const bool may[] = { here && !(d->taken[i] & 1),
                         here && d->bigrams && !(d->taken[i] & 2) && (i > 0 || !d->in_x0),
                         i == d->to,
                         heads,
                         heads,
                         heads && composes,
                         heads && composes };

    for (int k = 0; k < 7; k++) {
        bool late = from >= 0 && from < i && (d->in_x0 || below(d, 2));
        if (!may[k] || (!late && d->in_x0) || (k < 5 && below(d, 3) == 0))
            continue;
        fprintf(f, "%d %d %s - %s ", (*row)++, i, roles[k], k > 2 ? "h" : "1");
        fprintf(f, late ? "layer:%d\n" : "x0\n", from);
        d->given[late] += k > 2 ? d->size->heads : 1;
    }
}

static void draw_coefs(struct draw *d)
{
    size_t bytes;
    int row = 0;
    FILE *f = open_memstream(&d->coefs, &bytes);

    for (int i = 1; i <= d->layers && d->takes_coefs; i++)
        if ((i == d->layers || d->attention[i] == PLAIN) && below(d, 3))
            put_coefs(d, f, &row, i);
    int from = below(d, d->layers + 1) - 1;
    for (int i = 0; i < d->layers && d->takes_coefs && below(d, 4); i++)
        put_given(d, f, &row, i, from);
    d->places = (d->given[0] > 0) + (d->given[1] > 0);
    fclose(f);
}

/* -- the text -------------------------------------------------------------------------------- */

static void put_taps(struct draw *d)
{
    fprintf(d->f, "backout = %d\nattend_as = %d\n", d->backout, d->attend_as);
    if (d->to >= 0)
        fprintf(d->f, "skip = %d %d\nskip_tap = %s\n", d->from, d->to,
                d->attention[d->from] == NONE ? "layer" : either(d, "layer", "attention"));
    else
        fprintf(d->f, "skip = -\n");
}

static void put_model(struct draw *d)
{
    const struct small_size *z = d->size;

    fprintf(d->f,
            "name = drawn\n[model]\nvocab = %d\nbigram_rows = %d\nheads = %d\n"
            "head_dim = %d\nmlp_width = %d\nblock = %d\nattn_scale = 0.1\nrope_base = 1024\n"
            "softcap = %s\nsoftcap_form = %s\nrope_pairs = %s\n",
            z->vocab, d->bigrams ? z->rows : 0, z->heads, z->head_dim, z->mlp_width,
            1 + below(d, 6), d->root ? "15 1 12" : "23 5 7.5", d->root ? "root" : "sigmoid",
            d->halves ? "halves" : "neighbours");
    if (d->bigrams) {
        if (d->lanes < 0)
            fprintf(d->f, "bigram_width = %d\n", below(d, 1 + z->heads * z->head_dim));
        fprintf(d->f, "bigram_signs = 31\nbigram_in_x0 = %s\n", d->in_x0 ? "yes" : "no");
    }
    fprintf(d->f, "qk_head_dim = %d\nrope_dim = %d\n", d->qk, d->turned);
    fprintf(d->f, "compose_window = %d\n", 1 + below(d, 20));
    fprintf(d->f, "xsa = %s\n", d->xsa ? "yes" : "no");
    fprintf(d->f, "inject = %s\n", d->after ? "after" : "before");
    fprintf(d->f, "inject_bare = %s\n", either(d, "yes", "no"));
    fprintf(d->f, "key_channels = %s\n", either(d, "quarters", "half"));
    fprintf(d->f, "value_input = %s\n",
            d->narrow     ? "input"
            : below(d, 3) ? either(d, "input", "split")
                          : "split_all");
    fprintf(d->f, "gate_table = %d\n", d->narrow ? 8 : 0);
    fprintf(d->f, "lanes = %d\npost_single = %s\nfold_mlp = %s\n", d->lanes, d->post ? "yes" : "no",
            d->fold ? "yes" : "no");
    put_taps(d);
}

static void put_layers(struct draw *d)
{
    fprintf(d->f, "[layers]\n");
    for (int i = 0; i < d->layers; i++) {
        if (d->attention[i] == NONE) {
            fprintf(d->f, "%d none - - no - - - %d\n", i, d->mlp[i]);
            continue;
        }
        fprintf(d->f, "%d %s %s%d ", i, d->attention[i] == PLAIN ? "plain" : "paired",
                d->spare[i] ? "mlp:" : "", d->bank[i]);
        fprintf(d->f, "%s ", either(d, "long", "short"));
        fprintf(d->f, "%s ", d->halves ? "no" : either(d, "yes", "no"));
        if (d->table[i] >= 0)
            fprintf(d->f, "tables:%d %d ", d->table[i], below(d, d->gates));
        else
            fprintf(d->f, "- - ");
        if (d->gates_read)
            fprintf(d->f, "%d %d", below(d, d->gates), d->mlp[i]);
        else
            fprintf(d->f, "- %d", d->mlp[i]);
        if (d->qk_of[i])
            fprintf(d->f, " %d%s", d->qk_of[i], either(d, "", ":0.2"));
        fputs("\n", d->f);
    }
}

static void put_param(struct draw *d, char *labels, const char *label, const char *rule, int times,
                      const char *shape)
{
    fprintf(d->f, "%s %d%s f32 zero %s\n", label, times, shape, rule);
    sprintf(labels + strlen(labels), " %s", label);
}

/* Biases and gains, each or not. */
static void put_vectors(struct draw *d, char *labels, const char *numbers)
{
    if ((d->qkv_bias = d->own && !d->qk && below(d, 2)))
        put_param(d, labels, "qkv_bias", numbers, d->layers, ",3d");
    if (below(d, 2))
        put_param(d, labels, "o_bias", numbers, d->layers, ",d");
    if (d->own_mlp && below(d, 2))
        put_param(d, labels, "up_bias", numbers, d->layers, ",f");
    if (d->own_mlp && below(d, 2))
        put_param(d, labels, "down_bias", numbers, d->layers, ",d");
    if (below(d, 2))
        put_param(d, labels, "head_bias", numbers, 1, ",v");
    if (!d->smear && below(d, 2))
        put_param(d, labels, "embed_gain", numbers, 1, ",d");
    if (!d->gates_read && below(d, 2))
        put_param(d, labels, "attn_gain", numbers, d->layers, ",d");
    if (below(d, 2))
        put_param(d, labels, "mlp_gain", numbers, d->layers, ",d");
    if (below(d, 2))
        put_param(d, labels, "head_gain", numbers, 1, ",d");
}

static void put_params(struct draw *d, char *labels)
{
    static const char matrices[] = "normuon sharded - 0.95 1 1 no";
    static const char rows[] = "adam sharded 0.9 0.99 1 0 no";
    static const char fixed[] = "adam replicated 0.9 0.99 0 0 no"; /* a rate of 0 */
    static const char numbers[] = "adam replicated 0.9 0.99 1 0 no";

    fprintf(d->f, "[parameters]\n");
    if (d->own) {
        int n = d->qk ? narrow_groups(d) : d->layers + 2;
        put_param(d, labels, "q_bank", matrices, n, d->qk ? ",4,d" : ",d,d");
        put_param(d, labels, "k_bank", matrices, n, d->qk ? ",4,d" : ",d,d");
        put_param(d, labels, "v_bank", matrices, d->layers + 2, ",d,d");
        put_param(d, labels, "o_bank", matrices, d->layers + 2, ",d,d");
    } else if (d->split) {
        int n = d->qk ? 2 * narrow_groups(d) : 2 * d->size->heads * (d->layers + 2);
        put_param(d, labels, "qk_bank", matrices, n, d->qk ? ",4,d" : ",e,d");
        put_param(d, labels, "vo_bank", matrices, 2 * (d->layers + 2), ",d,d");
    } else {
        put_param(d, labels, "attn", matrices, 4 * (d->layers + 2), ",d,d");
    }
    if (d->own_mlp) {
        put_param(d, labels, "up_bank", matrices, d->layers + 2, ",f,d");
        put_param(d, labels, "down_bank", matrices, d->layers + 2, ",d,f");
    } else {
        put_param(d, labels, "mlp", matrices, 2 * (d->layers + 2), ",f,d");
    }
    put_param(d, labels, "scalars", numbers, 1, ",120");
    if (d->smear)
        put_param(d, labels, "smear_gate", numbers, 1, ",12");
    put_param(d, labels, "skip_gate", numbers, 1, ",12");
    if (d->gates_read) {
        put_param(d, labels, "attn_gate_bank", numbers, d->gates, d->narrow ? ",h,20" : ",h,12");
        put_param(d, labels, "ve_gate_bank", numbers, d->gates, d->narrow ? ",h,20" : ",h,12");
    }
    put_vectors(d, labels, numbers);
    put_param(d, labels, "lm_head", rows, 1, "d,v");
    put_param(d, labels, "embed", rows, 1, "v,d");
    if (d->bigrams)
        put_param(d, labels, "bigram_embed", rows, 1, "b,p");
    if (d->narrow)
        put_param(d, labels, "gate_table", rows, 1, "v,8");
    if (d->bigrams)
        put_param(d, labels, "bigram_sign_table", fixed, 1, "s,p");
    if (d->xsa)
        put_param(d, labels, "xsa_alphas", numbers, d->layers, ",h");
    if (d->blocks) {
        char shape[32];
        put_param(d, labels, "mudd_w1", numbers, d->blocks, ",7,d");
        snprintf(shape, sizeof shape, ",%d,7", d->outputs);
        put_param(d, labels, "mudd_w2", numbers, d->blocks, shape);
        snprintf(shape, sizeof shape, ",%d", d->outputs);
        put_param(d, labels, "mudd_b2", numbers, d->blocks, shape);
    }
    if (d->places) {
        char shape[32];
        int most = d->given[0] > d->given[1] ? d->given[0] : d->given[1];
        put_param(d, labels, "mudd_gate_w1", numbers, d->places, ",5,d");
        snprintf(shape, sizeof shape, ",%d,5", most);
        put_param(d, labels, "mudd_gate_w2", numbers, d->places, shape);
        snprintf(shape, sizeof shape, ",%d", most);
        put_param(d, labels, "mudd_gate_b2", numbers, d->places, shape);
    }
    if (d->tables)
        put_param(d, labels, "tables", rows, d->tables, "v,d");
}

/* By layer with a stride, or one for all layers; some share elements with others. */
static void put_scalars(struct draw *d)
{
    const struct {
        const char *name;
        bool needed;
    } role[] = {
        { "residual", d->after },
        { "x0", d->after },
        { "qkv", false },
        { "out", false },
        { "bigram", d->bigrams },
        { "residual_mlp", d->lanes >= 0 },
        { "attn_lane0", d->lanes >= 0 || d->post },
        { "attn_lane1", d->lanes >= 0 },
        { "mlp_lane0", d->lanes >= 0 || d->fold },
        { "mlp_lane1", d->lanes >= 0 },
        { "coef_scale", false },
    };
    enum { N = sizeof role / sizeof *role, APART = 2 * MOST_LAYERS };

    fprintf(d->f, "[scalars]\nbackout scalars %d 0\nskip scalars %d 0\n", SCALARS - 2, SCALARS - 3);
    if (d->smear)
        fprintf(d->f, "smear scalars %d 0\n", SCALARS - 1);
    for (int i = 0; i < N; i++) {
        if (!role[i].needed && below(d, 2))
            continue;
        int first = below(d, 4) ? APART * i : below(d, APART * (N - 1));
        fprintf(d->f, "%s scalars %d %d\n", role[i].name, first, below(d, 4) ? 1 + below(d, 2) : 0);
    }
}

char *drawn_recipe(uint64_t seed, struct small_size *size)
{
    struct draw d = { .rng = rng_make(seed, 61), .size = size };
    char *text = NULL, labels[1024] = "";
    size_t bytes;

    if (!(d.f = open_memstream(&text, &bytes)))
        return NULL;
    draw_size(&d);
    d.bigrams = below(&d, 2);
    d.in_x0 = below(&d, 2) && d.bigrams;
    d.post = below(&d, 2);
    d.takes_coefs = below(&d, 3) == 0;
    d.fold = !d.takes_coefs && below(&d, 2);
    d.narrow = below(&d, 2);
    d.split = below(&d, 2);
    d.own = below(&d, 3) == 0;
    d.split &= !d.own;
    d.own_mlp = below(&d, 3) == 0;
    d.smear = below(&d, 3) > 0;
    d.gates_read = below(&d, 3) > 0;
    d.narrow &= d.gates_read;
    d.xsa = d.gates_read && below(&d, 2);
    d.root = below(&d, 2);
    d.halves = (d.own || d.split) && below(&d, 2);
    draw_layers(&d);
    draw_taps(&d);
    draw_coefs(&d);
    put_model(&d);
    put_layers(&d);
    put_params(&d, labels);
    put_scalars(&d);
    fprintf(d.f, "[token_coefs]\n%s", d.coefs);
    free(d.coefs);
    fprintf(d.f, "[order]\ntied = -\nscatter =%s\nwork =%s\n", labels, labels);
    fputs("[optimizer]\nadam_lr = 0.01\nadam_eps = 1e-10\nadam_wd = 0\nadam_every = 2\n"
          "muon_lr = 0.02\nmuon_wd = 1\ncoeffs = 3 -3 1\n"
          "[schedule]\nsteps = 9\nextension = 2\nfinal_window = 5\ncooldown = 0.5\nlr_floor = 0.1\n"
          "momentum_low = 0.8\nmomentum_high = 0.9\nmomentum_warmup = 2\nmomentum_cooldown = 2\n"
          "untie = 0.5\n[stages]\n0 64 3 64 1 1\n1 64 3 64 - 1\n"
          "[data]\nchunks = 1\nval_tokens = 0\nval_chunk = 64\nval_every = 0\n"
          "[precision]\nhead_fp8 = no\nhead_scales = 1 1 1\n",
          d.f);
    if (d.qkv_bias) /* which moves with its matrices */
        fputs("[states]\nqkv_bias - - - - 1\n", d.f);
    fclose(d.f);
    return text;
}
