/* backward_test.c - the whole model's backward against slopes of its loss, in every form that a
 * recipe can ask for: both records, the keys that turn pieces of one into the other, and recipes
 * drawn at random.
 *
 * Each parameter moves by +-h and +-h/2 along a direction in which every element takes part; the
 * two slopes together are right to h^4. The loss (some 500, in f32: errors of 1e-4) changes by
 * about 1, so that the slope is known to 1e-3; 1e-2 leaves room and shows any wrong or missing
 * term. Where a gradient is zero (dead lambdas have one) the slope must be as small. In drawn
 * recipes the loss may be far from straight (a scalar that all layers share): there the two slopes
 * differ, and their difference bounds what is left of the error.
 */
#include <stdlib.h>
#include "base/rng.h"
#include "check.h"
#include "drawn_recipe.h"
#include "floats.h"
#include "small_model.h"

static const struct small_size size = { .tokens = 48,
                                        .heads = 2,
                                        .head_dim = 8,
                                        .mlp_width = 40,
                                        .vocab = 61,
                                        .rows = 97,
                                        .document = 17 };
static const double tolerance = 1e-2;
static struct rng rng = { 74, 2 };
static uint64_t draws;

static bool open_form(struct small *s, const struct small_form *f, uint64_t seed)
{
    struct ops *o;
    return CHECK_OK(ops_cpu_new(&o)) && CHECK_OK(small_open(s, o, f, DT_F32, &size, seed));
}

/* -- gradients and slopes -------------------------------------------------------------------- */

static double loss_moved(struct small *s, struct param *p, const float *w, const double *d,
                         double h)
{
    int64_t n = tensor_count(p->w);
    for (int64_t k = 0; k < n; k++)
        ((float *)p->w.data)[k] = (float)(w[k] + h * d[k]);
    double loss = small_loss(s);
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
    double length = 0, along = 0;
    for (int64_t k = 0; k < n; k++)
        length += (double)g[k] * g[k];
    length = sqrt(length);
    for (int64_t k = 0; k < n; k++) {
        d[k] = (length > 0 ? g[k] / length : 0) + rng_normal(&rng, draws++) / sqrt((double)n);
        along += d[k] * g[k];
    }
    return along;
}

static void check_param(struct small *s, struct param *p, bool drawn)
{
    int64_t n = tensor_count(p->w);
    float *w = floats_of(s->o, p->w);
    double *d = malloc((size_t)n * sizeof *d);

    small_loss(s);
    float *g = floats_of(s->o, p->g);
    double slope = direction(d, g, n), h = 0.3 / (fabs(slope) + 30);
    double near = slope_of(s, p, w, d, h / 2), far = slope_of(s, p, w, d, h);
    double found = (4 * near - far) / 3;
    double left = drawn ? fabs(near - far) / 3 : 0;
    check_that(fabs(found - slope) <= tolerance * (fabs(slope) + 1) + left, __FILE__, __LINE__,
               "%s: %s: gradient says %g, the loss %g", s->label, p->spec->label, slope, found);
    free(w), free(g), free(d);
}

static void check_model(struct small *s, bool drawn)
{
    for (int i = 0; i < s->b.n; i++)
        if (s->b.p[i].spec->lr_mul[0] > 0) /* signs have no gradient */
            check_param(s, &s->b.p[i], drawn);
    /* Evaluation shares buffers between layers; its loss is that of training with one weight. */
    small_predict(s, 1);
    double train = small_loss(s), eval = small_eval(s);
    check_that(fabs(eval - train) <= 1e-5 * train, __FILE__, __LINE__,
               "%s: loss %.8g in training, %.8g in evaluation", s->label, train, eval);
    CHECK_OK(small_close(s));
}

static void check_form(const struct small_form *f)
{
    struct small s;

    if (open_form(&s, f, 74))
        check_model(&s, false);
}

static void check_drawn(uint64_t seed)
{
    struct small s = { .o = NULL };
    struct small_size z;
    struct ops *o;
    char *text = drawn_recipe(seed, &z);

    snprintf(s.label, sizeof s.label, "drawn recipe %llu", (unsigned long long)seed);
    if (CHECK_OK(recipe_parse(&s.r, s.label, text, NULL, 0)) && CHECK_OK(ops_cpu_new(&o)) &&
        CHECK_OK(small_model(&s, o, &z, seed)))
        check_model(&s, true);
    free(text);
}

/* -- the same function in two forms ------------------------------------------------------------ */

/* The MLP's lambda on its product or inside it. f32 both, so sums differ in last bits only. */
static void check_fold(void)
{
    static const struct small_form forms[] = { { "record-74", { "model.fold_mlp=no", NULL } },
                                               { "record-74", { "model.fold_mlp=yes", NULL } } };
    struct small s[2];

    if (!open_form(&s[0], &forms[0], 5) || !open_form(&s[1], &forms[1], 5))
        return;
    CHECK_NEAR(small_loss(&s[1]) / small_loss(&s[0]), 1, 1e-5);
    for (int i = 0; i < s[0].b.n; i++) {
        float *a = floats_of(s[0].o, s[0].b.p[i].g), *b = floats_of(s[1].o, s[1].b.p[i].g);
        double off = 0, length = 0;
        for (int64_t k = 0; k < tensor_count(s[0].b.p[i].g); k++) {
            off += pow((double)a[k] - b[k], 2);
            length += pow(a[k], 2);
        }
        check_that(sqrt(off) <= 1e-4 * sqrt(length), __FILE__, __LINE__,
                   "fold_mlp moves the gradient of %s by %g of %g", s[0].b.p[i].spec->label,
                   sqrt(off), sqrt(length));
        free(a), free(b);
    }
    CHECK_OK(small_close(&s[0]));
    CHECK_OK(small_close(&s[1]));
}

/* The same attention in a spare matrix of the MLP bank and in the attention bank: the same bits. */
static void check_spare(void)
{
    static const struct small_form forms[] = {
        { "record-61", { "layers.6=plain mlp:22 short no - - 9 6", NULL } },
        { "record-61",
          { "layers.6=plain 10 short no - - 9 6",
            "parameters.attn=44,d,d f32 zero normuon sharded - 0.95 1 1 no" } }
    };
    struct small_size z = size;
    struct small s[2];
    struct ops *o[2];

    z.mlp_width = 4 * z.heads * z.head_dim;
    for (int i = 0; i < 2; i++)
        if (!CHECK_OK(ops_cpu_new(&o[i])) ||
            !CHECK_OK(small_open(&s[i], o[i], &forms[i], DT_F32, &z, 6)))
            return;
    for (int i = 0; i < s[0].b.n; i++) {
        struct tensor from = s[0].b.p[i].w, to = s[1].b.p[i].w;
        memcpy(to.data, from.data, tensor_bytes(from));
    }
    struct tensor there = bank_rows(s[0].m.p.mlp->w, 64, 22),
                  here = bank_rows(s[1].m.p.attn->w, 64, 10);
    memcpy(here.data, there.data, tensor_bytes(there));
    double loss = small_loss(&s[0]);
    CHECK(small_loss(&s[1]) == loss);
    there = bank_rows(s[0].m.p.mlp->g, 64, 22), here = bank_rows(s[1].m.p.attn->g, 64, 10);
    CHECK(!memcmp(here.data, there.data, tensor_bytes(there)));
    CHECK(!memcmp(s[0].m.p.attn->g.data, s[1].m.p.attn->g.data, tensor_bytes(s[0].m.p.attn->g)));
    memset(there.data, 0, tensor_bytes(there)); /* of the other there is none */
    CHECK(!memcmp(s[0].m.p.mlp->g.data, s[1].m.p.mlp->g.data, tensor_bytes(s[0].m.p.mlp->g)));
    CHECK_EQ(s[0].m.p.mlp->used, 23);
    CHECK_EQ(s[1].m.p.mlp->used, 22);
    CHECK_OK(small_close(&s[0]));
    CHECK_OK(small_close(&s[1]));
}

/* -- heads in another order ---------------------------------------------------------------------- */

enum { HEADS = 6 };
/* Swaps the numbers of heads 0 and 2, and of 3 and 5, of six heads. So in paired attention, of heads h and
 * h + 3, a pair takes another's place, and a head one of the same rotation (record-61.md 2.5, 2.7). */
static void swap_heads(float *x, int64_t width)
{
    static const int with[HEADS] = { 2, 1, 0, 5, 4, 3 };
    size_t bytes = (size_t)width * sizeof *x;
    float *was = malloc(HEADS * bytes);
    memcpy(was, x, HEADS * bytes);
    for (int h = 0; h < HEADS; h++)
        memcpy(x + h * width, was + with[h] * width, bytes);
    free(was);
}

static float *numbers(struct small *s, const char *label, int64_t *n)
{
    int i = recipe_param(s->r, label);
    *n = i < 0 ? 0 : tensor_count(s->b.p[i].w);
    return CHECK(i >= 0) ? s->b.p[i].w.data : NULL;
}

/* Swaps heads in record 89's parameters: rows of Q, K and V, columns of O and of the value tables, and a number a head
 * of each gate (record-89.md 5). Without the last if `forgets`. */
static void swap_all(struct small *s, bool forgets)
{
    static const int first[2][5] = { { 0, HEADS, 2 * HEADS, -1, -1 },
                                     { 0, HEADS, 2 * HEADS, 3 * HEADS + 11, 4 * HEADS + 11 } };
    int64_t n, m, made = 5 * HEADS + 11, size = s->r->model.head_dim, d = HEADS * size;
    float *x = numbers(s, "qk_bank", &n);
    for (int64_t at = 0; at < n; at += d * d) /* a layer's Q, then its K */
        swap_heads(x + at, size * d);
    x = numbers(s, "vo_bank", &n);
    for (int64_t at = 0; at < n; at += 2 * d * d) {
        swap_heads(x + at, size * d);
        for (int64_t row = 0; row < d; row++)
            swap_heads(x + at + d * d + row * d, size);
    }
    x = numbers(s, "value_embeds", &n);
    for (int64_t at = 0; at < n; at += d)
        swap_heads(x + at, size);
    x = numbers(s, "ve_gate_bank", &n);
    for (int64_t at = 0; at < n; at += HEADS * 12)
        swap_heads(x + at, 12);
    x = numbers(s, "mudd_gate_w2", &n);
    float *b = numbers(s, "mudd_gate_b2", &m);
    for (int k = 0; k < 2 && !forgets; k++)
        for (int i = 0; i < 5 && first[k][i] >= 0; i++) {
            swap_heads(x + (k * made + first[k][i]) * 64, 64);
            swap_heads(b + k * made + first[k][i], 1);
        }
}

/* Removes what ties channels of heads to those of the stream (record-84.md 5): gates of values that read the first
 * channels of the value row, terms of the stream in layer 10's values, and a value row at the end. */
static void part_heads(struct small *s)
{
    static const int tied[6] = { 0, 1, 2, 6, 7, 14 + 3 }; /* of mudd_w2's 14 and 14 */
    int64_t n;
    float *gate = numbers(s, "ve_gate_bank", &n);
    for (int64_t i = 0; i < n; i++)
        gate[i] = i % 12 < 6 ? gate[i] : 0;
    for (int i = 0; i < 6; i++) {
        memset(numbers(s, "mudd_w2", &n) + tied[i] * 64, 0, 64 * sizeof(float));
        numbers(s, "mudd_b2", &n)[tied[i]] = 0;
    }
}

/* Record 89 with six heads of 16: in another order of its heads the model is the same function, but for the order of
 * sums. */
static void check_heads(void)
{
    static const struct small_form form = { "record-89", { NULL } };
    struct small_size z = size;
    struct small s;
    struct ops *o;

    z.heads = HEADS, z.head_dim = 16;
    if (!CHECK_OK(ops_cpu_new(&o)) || !CHECK_OK(small_open(&s, o, &form, DT_F32, &z, 89)))
        return;
    part_heads(&s);
    double loss = small_loss(&s), eval = small_eval(&s);
    swap_all(&s, false);
    CHECK_NEAR(small_loss(&s) / loss, 1, 1e-5);
    CHECK_NEAR(small_eval(&s) / eval, 1, 1e-5);
    swap_all(&s, true); /* of what a head has, its gates stay behind */
    CHECK(fabs(small_loss(&s) / loss - 1) > 1e-4);
    snprintf(s.label, sizeof s.label, "record-89 with six heads of 16");
    check_model(&s, false);
}

/* x0 where no recipe adds it: an entry of one list, which forward, backward and evaluation follow. Its
 * number is that of layer 6, which record 74 does not read. */
static void check_new_term(void)
{
    static const struct small_form form = { "record-74", { NULL } };
    struct small s;

    if (!open_form(&s, &form, 74))
        return;
    struct step_list l = streams_at(&s.m.streams, STREAM_FORWARD, STREAM_LEAVE, 2);
    struct mix *x = &s.m.streams.mix[l.step[l.n - 1].which];
    const real *number = s.m.p.x0[6].grad;

    small_loss(&s);
    CHECK(*number == 0);
    x->term[x->n++] =
        (struct term){ .x = { BUFFER_x0, 0 },
                       .dx = { BUFFER_dx0, 0 },
                       .add = true,
                       .runs = RUN_FORWARD | RUN_BACKWARD,
                       .lanes = LANE0,
                       .coef = { { .kind = COEF_SCALAR, .role = ROLE_x0, .of = 6 } } };
    small_loss(&s);
    CHECK(*number != 0);
    snprintf(s.label, sizeof s.label, "record-74 with x0 after layer 2's MLP");
    check_model(&s, false);
}

int main(int argc, char **argv)
{
    uint64_t drawn = argc > 1 ? strtoull(argv[1], NULL, 0) : 250;

    for (int i = 0; i < n_small_forms; i++)
        check_form(&small_forms[i]);
    check_fold();
    check_spare();
    check_new_term();
    check_heads();
    for (uint64_t seed = 0; seed < drawn; seed++)
        check_drawn(seed);
    return check_done();
}
