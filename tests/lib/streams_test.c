/* streams_test.c - the lists of the residual stream: the printed ones are the ones that run, and no part
 * of one can be wrong unseen.
 *
 * Each line of streams_text is read back, by names and numbers alone, and compared with the call of an
 * op that the forward made at that point: same buffers, same coefficients, in the same order. For the
 * backward, whose gradients backward_test holds to slopes of the loss: each gradient of a list is left
 * out, and each "add" turned round, in buffers full of NaN. A parameter's gradient must then move by a
 * thousandth at least (f32 sums agree to 1e-6): no entry of a list is without effect.
 *
 * With attn = fp8 the codes that a projection takes are those of the input and of the matrices that it is given
 * beside them, whatever lies in between.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "drawn_recipe.h"
#include "element.h"
#include "small_model.h"

static const struct small_size size = { .tokens = 48,
                                        .heads = 2,
                                        .head_dim = 8,
                                        .mlp_width = 40,
                                        .vocab = 61,
                                        .rows = 97,
                                        .document = 17 };

/* -- what runs ------------------------------------------------------------------------------ */

struct one {
    const void *x;
    const real *coef;
    bool minus, plus_one;
    int64_t first;
};
/* A call as its line says it: a sum of a lane, its norm. */
struct call {
    enum { SUM, SKIP, COEFS, ROWS, PRODUCT } kind;
    const void *out, *y;
    int n;
    struct one term[MIX_MAX];
};

enum { MOST = 400 };
static struct call calls[MOST];
static int n_calls;
static struct ops was;
static const struct acts *at_hand;

static struct call *new_call(int kind, const void *out, const void *y)
{
    static struct call none;
    if (!CHECK(n_calls < MOST))
        return &none;
    struct call *c = &calls[n_calls++];
    memset(c, 0, sizeof *c);
    c->kind = kind, c->out = out, c->y = y;
    return c;
}

static void on_mix(struct ops *o, struct tensor out, struct tensor y, int n,
                   const struct mix_term *in)
{
    struct call *c = new_call(SUM, out.data, y.data);
    for (int k = 0; k < n; k++)
        c->term[c->n++] =
            (struct one){ in[k].x.data, in[k].coef, in[k].minus, in[k].plus_one, in[k].first };
    was.mix_norm(o, out, y, n, in);
}

static void on_lanes(struct ops *o, const struct tensor out[2], struct tensor y, int normed, int n,
                     const struct lanes_term *in)
{
    for (int lane = 0; lane < 2; lane++) {
        struct call *c = new_call(SUM, out[lane].data, lane == normed ? y.data : NULL);
        for (int k = 0; k < n; k++)
            if (in[k].lanes >> lane & 1)
                c->term[c->n++] = (struct one){ in[k].x.data, in[k].coef[lane], false, false, 0 };
    }
    was.lanes_mix(o, out, y, normed, n, in);
}

static void on_skip(struct ops *o, struct tensor out, struct tensor x, struct tensor skip,
                    struct tensor x0, struct tensor gate, const real *lambda,
                    const struct token_numbers *number)
{
    struct call *c = new_call(SKIP, out.data, NULL);
    c->term[c->n++].x = x.data, c->term[c->n++].x = skip.data;
    was.skip_gate(o, out, x, skip, x0, gate, lambda, number);
}

static void on_coefs(struct ops *o, struct tensor out, struct tensor pre, struct tensor w,
                     struct tensor b, const real *factor)
{
    new_call(COEFS, out.data, NULL);
    was.token_coefs(o, out, pre, w, b, factor);
}

static void on_gather(struct ops *o, struct tensor out, struct tensor table, const struct lookup *l)
{
    if (out.data != at_hand->x0.data && out.data != at_hand->bigram.data &&
        out.data != at_hand->narrow.data)
        new_call(ROWS, out.data, NULL);
    was.gather(o, out, table, l);
}

/* A norm by itself: with a gain, or of the embedding. */
static void on_norm(struct ops *o, struct tensor y, struct tensor x, struct tensor gain)
{
    if (y.data != at_hand->x0.data) {
        struct call *c = new_call(SUM, x.data, y.data);
        c->term[c->n++].x = x.data;
    }
    was.norm(o, y, x, gain);
}

/* A product that a residual is added to; scale: of an MLP's hidden layer. */
static void on_product(struct tensor y, struct tensor x, const real *scale, struct tensor residual)
{
    const real *scaled_by = NULL;
    for (int i = 0; i < MAX_LAYERS; i++)
        if (x.data && x.data == at_hand->layer[i].post.data)
            scaled_by = scale;
    if (residual.data) {
        struct call *c = new_call(PRODUCT, y.data, NULL);
        c->term[0].x = residual.data, c->term[1].coef = scaled_by;
    }
}

static void on_linear_bias(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                           const real *scale, struct tensor b, struct tensor residual, bool relu2)
{
    on_product(y, x, scale, residual);
    was.linear_bias(o, y, x, w, scale, b, residual, relu2);
}

static void on_linear(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                      const real *scale, struct tensor residual)
{
    on_product(y, x, scale, residual);
    was.linear(o, y, x, w, scale, residual);
}

static void on_linear_t(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                        const real *scale, struct tensor residual)
{
    if (residual.data) {
        struct call *c = new_call(PRODUCT, y.data, NULL);
        c->term[0].x = residual.data, c->term[1].coef = scale;
    }
    was.linear_t(o, y, x, w, scale, residual);
}

static void record(struct ops *o)
{
    was = *o;
    o->mix_norm = on_mix, o->lanes_mix = on_lanes, o->skip_gate = on_skip;
    o->token_coefs = on_coefs, o->gather = on_gather;
    o->linear = on_linear, o->linear_t = on_linear_t;
    o->norm = on_norm, o->linear_bias = on_linear_bias;
}

/* -- what is printed -------------------------------------------------------------------------- */

struct reader {
    struct small *s;
    int next, layer;
    char text[600];
    struct call norm; /* of lane 0, which comes behind the sum of lane 1; out NULL: none */
};

/* NAME or NAME[layer]: a buffer's memory. */
static const void *named(const struct reader *r, const char *word)
{
    const struct acts *a = at_hand;
    char name[32] = "";
    int layer = r->layer;
    sscanf(word, "%31[a-z0-9][%d", name, &layer);
    const struct layer_acts *l = &a->layer[layer];
    const struct {
        const char *name;
        const void *data;
    } all[] = { { "in", l->in.data },         { "in1", l->in1.data },
                { "mixed", l->mixed.data },   { "attended", l->attended.data },
                { "o", l->o.data },           { "attended1", l->attended1.data },
                { "m", l->m.data },           { "y", l->y.data },
                { "v", l->v.data },           { "y2", l->y2.data },
                { "rows", l->rows.data },     { "z", a->z.data },
                { "head", a->head.data },     { "x0", a->x0.data },
                { "bigram", a->bigram.data }, { NULL, NULL } };
    int k = 0;
    while (all[k].name && strcmp(all[k].name, name))
        k++;
    check_that(all[k].data != NULL, __FILE__, __LINE__, "%s: no buffer '%s'", r->s->label, word);
    return all[k].data;
}

/* ROLE, ROLE[layer], token[row], token[row.part]: where the number lies. */
static const real *number(const struct reader *r, const char *word)
{
    char name[32] = "";
    int of = 0, part = 0;
    sscanf(word, "%31[a-z_0-9][%d.%d", name, &of, &part);
    if (!strcmp(word, "1/2"))
        return r->s->m.p.half.value;
    if (!strcmp(name, "token")) {
        const struct token_term *t = &r->s->r->token_coefs.term[of];
        return (const real *)at_hand->coefs[t->block].data + t->first + part;
    }
    const struct scalar_spec *s = recipe_scalar(r->s->r, name);
    if (!CHECK(s))
        return NULL;
    return (const real *)r->s->b.p[s->param].w.data + s->first + of * s->stride;
}

/* The words after '=', as a call has them. */
static void read_sum(const struct reader *r, char *words, struct call *c)
{
    struct one e = { 0 };
    bool norm = false;
    for (char *save, *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        bool last = !*save || strchr("+-|", *save);
        if (!strcmp(w, "+") || !strcmp(w, "|")) {
            continue;
        } else if (!strcmp(w, "norm")) {
            norm = true;
        } else if (!strcmp(w, "-")) {
            e.minus = true;
        } else if (norm) {
            c->y = named(r, w);
            break; /* behind it the gain's name */
        } else if (!last) {
            e.plus_one = !strncmp(w, "1+", 2);
            e.coef = number(r, w + 2 * e.plus_one);
        } else {
            const char *range = strchr(w, ':');
            while (range && range > w && range[-1] != '[')
                range--;
            e.first = range ? atoi(range) : 0;
            char *buffer = strdup(w);
            if (range)
                buffer[range - w - 1] = 0;
            e.x = named(r, buffer);
            free(buffer);
            if (CHECK(c->n < MIX_MAX))
                c->term[c->n++] = e;
            e = (struct one){ 0 };
        }
    }
}

/* "(1 + token[5])" is one word. */
static void join_words(char *s)
{
    for (char *at; (at = strstr(s, "(1 + "));) {
        char *end = strchr(at, ')');
        memcpy(at, "1+", 2);
        memmove(at + 2, at + 5, (size_t)(end - at - 5));
        memmove(end - 3, end + 1, strlen(end + 1) + 1);
    }
}

static struct call expected(struct reader *r, char *sum, const char *out)
{
    struct call c = { .kind = SUM };
    char name[32], with[32] = "";
    int row;
    if (!strcmp(out, "token") || !strcmp(out, "rows")) {
        c.kind = *out == 't' ? COEFS : ROWS;
        if (c.kind == ROWS)
            c.out = named(r, out);
        return c;
    }
    c.out = named(r, out);
    if (sscanf(sum, "in + skip gate(x0) %31s", name) == 1 ||
        sscanf(sum, "in + sigmoid(skip) token[%d] %31s", &row, name) == 2) {
        c.kind = SKIP, c.n = 2;
        c.term[0].x = named(r, "in"), c.term[1].x = named(r, name);
    } else if (strstr(sum, ", by the product")) {
        c.kind = PRODUCT;
        sscanf(sum, "%31s + %31s", name, with);
        c.term[0].x = named(r, name);
        c.term[1].coef =
            strncmp(with, "attention", 9) && strncmp(with, "MLP", 3) ? number(r, with) : NULL;
    } else {
        read_sum(r, sum, &c);
    }
    return c;
}

static bool same_call(const struct call *a, const struct call *b)
{
    bool same = a->kind == b->kind && a->y == b->y && a->n == b->n &&
                (a->kind == COEFS || a->out == b->out);
    for (int k = 0; k < MIX_MAX; k++) {
        const struct one *x = &a->term[k], *y = &b->term[k];
        same &= x->x == y->x && x->coef == y->coef && x->minus == y->minus &&
                x->plus_one == y->plus_one && x->first == y->first;
    }
    return same;
}

static void check_call(struct reader *r, const struct call *c, const char *text)
{
    if (CHECK(r->next < n_calls))
        check_that(same_call(c, &calls[r->next]), __FILE__, __LINE__,
                   "%s: call %d of the forward is not '%s'", r->s->label, r->next, text);
    r->next++;
}

static void on_line(void *ctx, const char *text)
{
    struct reader *r = ctx;
    char where[16], out[32];
    int at = 0;

    if (!strcmp(text, "begin in = x0")) { /* one buffer, no call */
        CHECK(at_hand->layer[0].in.data == at_hand->x0.data);
        return;
    }
    snprintf(r->text, sizeof r->text, "%s", text);
    join_words(r->text);
    r->layer = !strncmp(text, "end", 3) ? r->s->r->n_layers : 0;
    if (sscanf(r->text, "layer %d %31s = %n", &r->layer, out, &at) != 2)
        sscanf(r->text, "%15s %31s = %n", where, out, &at);
    struct call c = expected(r, r->text + at, out);
    bool own = c.n == 1 && c.term[0].x == c.out && !c.term[0].coef;
    struct call norm = { .kind = SUM, .out = c.out, .y = c.y, .n = 1, .term = { { .x = c.out } } };
    if (strstr(text, " times ") && !own) { /* the sum, then its norm with a gain */
        c.y = NULL;
        check_call(r, &c, text);
        r->norm = norm;
        if (r->next < n_calls && !same_call(&norm, &calls[r->next]))
            return; /* lane 1 follows */
    } else {
        check_call(r, &c, text);
    }
    if (r->norm.out)
        check_call(r, &r->norm, text);
    r->norm.out = NULL;
}

static void check_printed(struct small *s)
{
    struct reader r = { .s = s };
    struct acts *a = model_acts(&s->m, s->batch.tokens, true);

    at_hand = a;
    n_calls = 0;
    record(s->o);
    model_forward(&s->m, a, &s->batch);
    *s->o = was;
    streams_text(&s->m.streams, on_line, &r);
    check_that(r.next == n_calls, __FILE__, __LINE__, "%s: %d lines, %d calls", s->label, r.next,
               n_calls);
}

/* -- codes of projections ------------------------------------------------------------------------ */

static int projections;
static long wrong_codes;

static long differing(struct tensor codes, struct tensor of, float scale)
{
    long n = 0;
    for (int64_t i = 0; i < tensor_count(of); i++)
        n += ((uint8_t *)codes.data)[i] != e4m3_from_f32((float)get(of, i) / scale);
    return n;
}

static void on_qkv(struct ops *o, struct tensor q, struct tensor k, struct tensor v,
                   struct tensor factor, struct tensor raw, struct tensor x, struct tensor w,
                   const real *scale, struct tensor bias, const struct qkv_shape *s, struct rope r,
                   struct tensor y, struct tensor gate, struct tensor table, const struct batch *b)
{
    double most = 0;

    if (CHECK(s->fp8 != NULL)) {
        for (int64_t i = 0; i < tensor_count(w); i++)
            most = fmax(most, fabs(get(w, i)));
        CHECK(*s->fp8->w.scale == (float)most / 448);
        wrong_codes += differing(s->fp8->w.codes, w, *s->fp8->w.scale);
        wrong_codes += differing(s->fp8->x8, x, s->fp8->x_scale);
        projections++;
    }
    was.qkv(o, q, k, v, factor, raw, x, w, scale, bias, s, r, y, gate, table, b);
}

/* The form with the projections in fp8, and the MLPs' products, whose codes share memory with theirs. */
static void check_codes(const struct small_form *form)
{
    static const char *const fp8[] = { "precision.attn=fp8", "precision.mlp=fp8",
                                       "precision.mlp_down=fp8" };
    struct small_form f = *form;
    struct small s;
    struct ops *o;
    int n = 0, attending = 0;

    for (int i = 0; i < 6 && n < 3; i++)
        if (!f.set[i])
            f.set[i] = fp8[n++];
    if (n == 0) /* no room for another key */
        return;
    if (!CHECK_OK(ops_cpu_new(&o)) || !CHECK_OK(small_open(&s, o, &f, DT_BF16, &size, 74)))
        return;
    memset(s.m.arena, 0xff, s.m.arena_bytes);
    was = *o, o->qkv = on_qkv;
    projections = 0, wrong_codes = 0;
    small_loss(&s);
    *o = was;
    for (int i = 0; i < s.r->n_layers; i++)
        attending += layer_attends(s.r, i);
    CHECK_EQ(projections, attending);
    check_that(wrong_codes == 0, __FILE__, __LINE__, "%s: %ld codes", s.label, wrong_codes);
    CHECK_OK(small_close(&s));
}

/* -- what a list may not have wrong -------------------------------------------------------------- */

static void run_poisoned(struct small *s)
{
    memset(s->m.arena, 0xff, s->m.arena_bytes);
    small_loss(s);
}

static void keep_gradients(struct small *s, float *to)
{
    run_poisoned(s);
    for (int i = 0; i < s->b.n; to += tensor_count(s->b.p[i].g), i++)
        memcpy(to, s->b.p[i].g.data, tensor_bytes(s->b.p[i].g));
}

/* How far the gradient of some parameter is from what it was, as a share of it. NaN is far. */
static double moved(struct small *s, const float *right)
{
    double most = 0;
    run_poisoned(s);
    for (int i = 0; i < s->b.n; i++) {
        const float *g = s->b.p[i].g.data;
        double off = 0, length = 1e-30;
        for (int64_t k = 0; k < tensor_count(s->b.p[i].g); k++, right++) {
            off += ((double)g[k] - *right) * ((double)g[k] - *right);
            length += (double)*right * *right;
        }
        double share = sqrt(off / length);
        most = share <= most ? most : share;
        if (share != share)
            return INFINITY;
    }
    return most;
}

static void check_wrong(struct small *s, const float *right, const struct mix *x, int t,
                        const char *what)
{
    const double least = 1e-3;
    double off = moved(s, right);
    check_that(off > least, __FILE__, __LINE__,
               "%s: layer %d, term %d of %d %s: gradients move by %g only", s->label, x->layer, t,
               x->n, what, off);
}

static void check_backward(struct small *s)
{
    int64_t n = 0;
    for (int i = 0; i < s->b.n; i++)
        n += tensor_count(s->b.p[i].g);
    float *right = malloc((size_t)n * sizeof *right);

    keep_gradients(s, right);
    CHECK(moved(s, right) == 0);
    for (int k = 0; k < s->m.streams.n_mixes; k++) {
        struct mix *x = &s->m.streams.mix[k];
        for (int t = 0; t < x->n; t++) {
            struct term *e = &x->term[t], as_it_was = *e;
            if (!e->dx.buffer || !(e->runs & (RUN_BACKWARD | RUN_AT_BEGIN)))
                continue;
            if (e->runs & RUN_AT_BEGIN) /* its op takes the place of all its layers' terms */
                e->runs = RUN_FORWARD;
            else
                e->dx.buffer = BUFFER_NONE;
            check_wrong(s, right, x, t, "without its gradient");
            *e = as_it_was;
            bool parts = e->dx.buffer == BUFFER_dx0 || e->dx.buffer == BUFFER_dbigram ||
                         e->dx.buffer == BUFFER_din;
            e->add = !e->add;
            if (parts && (e->runs & RUN_BACKWARD) && x->dout[0].buffer != e->dx.buffer)
                check_wrong(s, right, x, t, "added for written, or the reverse");
            *e = as_it_was;
        }
    }
    CHECK(moved(s, right) == 0);
    free(right);
}

/* -- shapes ------------------------------------------------------------------------------------- */

/* Buffers are planned when the number of tokens changes, not for each micro-batch: what nothing reads
 * without gate_table stays as it is left. */
static void check_once(struct small *s)
{
    struct acts *a = model_acts(&s->m, s->batch.tokens, true);

    a->narrow.cols = 4321;
    small_loss(s);
    small_eval(s);
    CHECK(model_acts(&s->m, s->batch.tokens, true) == a);
    CHECK_EQ(a->narrow.cols, 4321);
    CHECK(model_acts(&s->m, s->batch.tokens - 1, true) == a);
    CHECK_EQ(a->narrow.cols, 0);
}

int main(int argc, char **argv)
{
    int drawn = argc > 1 ? atoi(argv[1]) : 100;

    for (int i = 0; i < n_small_forms; i++) {
        struct small s;
        struct ops *o;
        if (!CHECK_OK(ops_cpu_new(&o)) ||
            !CHECK_OK(small_open(&s, o, &small_forms[i], DT_F32, &size, 74)))
            continue;
        check_printed(&s);
        if (!small_forms[i].set[0])
            check_backward(&s);
        if (i == 0)
            check_once(&s);
        CHECK_OK(small_close(&s));
        if (strcmp(small_forms[i].recipe, "track-3")) /* whose projections have biases */
            check_codes(&small_forms[i]);
    }
    for (int seed = 0; seed < drawn; seed++) {
        struct small s = { .o = NULL };
        struct small_size z;
        struct ops *o;
        char *text = drawn_recipe((uint64_t)seed, &z);
        snprintf(s.label, sizeof s.label, "drawn recipe %d", seed);
        if (CHECK_OK(recipe_parse(&s.r, s.label, text, NULL, 0)) && CHECK_OK(ops_cpu_new(&o)) &&
            CHECK_OK(small_model(&s, o, &z, (uint64_t)seed))) {
            check_printed(&s);
            CHECK_OK(small_close(&s));
        }
        free(text);
    }
    return check_done();
}
