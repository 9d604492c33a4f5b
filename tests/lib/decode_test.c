/* decode_test.c - incremental decoding against the full forward.
 *
 * Logits lie in (0, 23). Both ways compute them in f32 from the same numbers; sums over keys are
 * taken in another order, errors of some 1e-6 that eleven layers and their norms make larger: 1e-4
 * is what is left to them. Which rows a call has must not change a bit.
 */
#include <stdlib.h>
#include "base/rng.h"
#include "check.h"
#include "data/bigram.h"
#include "drawn_recipe.h"
#include "hand_tensors.h"
#include "model/decode.h"
#include "small_model.h"

/* Windows of 20 and 60 tokens in 300, so that the ring of keys is written over. */
enum { PROMPTS = 3, TOKENS = 300, MOST = 64 };
static const struct small_size size = { .tokens = TOKENS,
                                        .heads = 2,
                                        .head_dim = 8,
                                        .mlp_width = 40,
                                        .vocab = 61,
                                        .rows = 97,
                                        .document = 80 };
/* As tiny.recipe has them. */
static const struct small_size tiny = { .tokens = TOKENS,
                                        .heads = 2,
                                        .head_dim = 32,
                                        .mlp_width = 256,
                                        .vocab = 272,
                                        .rows = 5003,
                                        .document = 128 };
static const double tolerance = 1e-4;

static void draw_prompt(int32_t *tok, int vocab, uint64_t seed)
{
    struct rng r = rng_make(seed, 19);
    for (int t = 0; t < TOKENS; t++)
        tok[t] = (int32_t)rng_below(&r, (uint64_t)t, (uint64_t)vocab);
}

/* (TOKENS, vocab) by the full forward of one document. */
static float *full_logits(struct small *s, const int32_t *tok)
{
    struct ops *o = s->o;
    int vocab = s->r->model.vocab, bigrams = s->r->model.bigram.rows;
    struct tensor z = floats(o, TOKENS, vocab, NULL);
    struct head_loss h = model_head(&s->m, &s->batch);
    int32_t cu[] = { 0, TOKENS }, row[TOKENS];
    struct batch b = { .tokens = TOKENS, .cu = cu, .ncu = 2, .token = { TOKENS, tok, NULL, NULL } };
    float *out = malloc(tensor_bytes(z));

    bigram_rows(tok, TOKENS, bigrams ? bigrams : 2, row);
    b.bigram = (struct lookup){ bigrams ? TOKENS : 0, row, NULL, NULL };
    struct acts *a = model_acts(&s->m, TOKENS, false);
    model_forward(&s->m, a, &b);
    o->logits(o, z, a->head, s->m.p.lm_head->w, &h);
    o->download(o, out, z.data, tensor_bytes(z));
    return out;
}

static struct decode_row row_of(const int32_t *tok, int slot, int pos)
{
    return (struct decode_row){
        .slot = slot, .pos = pos, .token = tok[pos], .before = pos ? tok[pos - 1] : -7
    };
}

/* Tokens from .. to - 1 of a prompt into the cache, at most `most` a call. */
static void fill(struct decoder *d, const int32_t *tok, int slot, int from, int to, int most)
{
    struct decode_row row[MOST];
    for (int n; from < to; from += n) {
        n = to - from < most ? to - from : most;
        for (int i = 0; i < n; i++)
            row[i] = row_of(tok, slot, from + i);
        decoder_rows(d, row, n);
        decoder_fill(d);
    }
}

static double most_off(const float *a, const float *b, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++)
        if (!(fabs((double)a[i] - b[i]) <= most))
            most = fabs((double)a[i] - b[i]);
    return most;
}

/* All prompts at once, a token a call, each behind the one before by some tokens. */
static void check_steps(struct small *s, struct decoder *d, int32_t (*tok)[TOKENS],
                        float *const *want)
{
    enum { BEHIND = 37 };
    int vocab = s->r->model.vocab;
    double most = 0;

    for (int t = 0; t < TOKENS + BEHIND * (PROMPTS - 1); t++) {
        struct decode_row row[PROMPTS];
        int n = 0;
        for (int p = 0; p < PROMPTS; p++)
            if (t - BEHIND * p >= 0 && t - BEHIND * p < TOKENS)
                row[n++] = row_of(tok[p], p, t - BEHIND * p);
        decoder_rows(d, row, n);
        decoder_logits(d);
        for (int i = 0; i < n; i++) {
            double off = most_off((float *)d->logits.data + i * vocab,
                                  want[row[i].slot] + row[i].pos * vocab, vocab);
            most = off > most ? off : most;
            check_that(off <= tolerance, __FILE__, __LINE__, "%s: prompt %d, token %d: off by %g",
                       s->label, row[i].slot, row[i].pos, off);
        }
    }
    printf("%-60s most %.1e\n", s->label, most);
}

/* A prompt in one way and in another, then its next token alone and beside others: the same bits. */
static void check_bits(struct small *s, struct decoder *d, int32_t (*tok)[TOKENS])
{
    static const int ends[] = { 1, 2, 3, 63, 64, 65, 130, TOKENS - 1 };
    int vocab = s->r->model.vocab;
    size_t bytes = (size_t)vocab * sizeof(float);
    float *alone = malloc(bytes);

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct decode_row beside[] = { row_of(tok[1], 1, 0), row_of(tok[0], 0, ends[i]),
                                       row_of(tok[2], 2, 1) };
        fill(d, tok[0], 0, 0, ends[i], MOST);
        decoder_rows(d, beside + 1, 1);
        decoder_logits(d);
        memcpy(alone, d->logits.data, bytes);
        fill(d, tok[0], 0, 0, ends[i], 1);
        fill(d, tok[2], 2, 0, 1, 1);
        decoder_rows(d, beside, 3);
        decoder_logits(d);
        CHECK(!memcmp(alone, (float *)d->logits.data + vocab, bytes));
    }
    free(alone);
}

static int greatest(const float *z, int n)
{
    int best = 0;
    for (int v = 1; v < n; v++)
        best = z[v] > z[best] ? v : best;
    return best;
}

/* A text by steps whose rows the device makes itself, against the likeliest tokens by the full
 * forward of what was written so far. */
static void check_greedy(struct small *s, struct decoder *d, const int32_t *prompt)
{
    enum { GIVEN = 7, WRITTEN = 40 };
    int32_t tok[TOKENS] = { 0 };
    struct decode_row last;

    memcpy(tok, prompt, GIVEN * sizeof *tok);
    fill(d, tok, 1, 0, GIVEN - 1, MOST);
    last = row_of(tok, 1, GIVEN - 1);
    decoder_rows(d, &last, 1);
    for (int t = GIVEN; t < GIVEN + WRITTEN; t++) {
        float *z = full_logits(s, tok);
        decoder_next(d, &(struct choice){ .classes = s->r->model.vocab });
        tok[t] = d->next.token[0];
        CHECK_EQ(tok[t], greatest(z + (t - 1) * s->r->model.vocab, s->r->model.vocab));
        free(z);
    }
}

static void check_model(struct small *s)
{
    int32_t tok[PROMPTS][TOKENS];
    float *want[PROMPTS];
    struct decoder d;
    struct model m;

    for (int p = 0; p < PROMPTS; p++) {
        draw_prompt(tok[p], s->r->model.vocab, (uint64_t)p);
        want[p] = full_logits(s, tok[p]);
    }
    if (!CHECK_OK(model_init_to(&m, &s->b, 0, MOST, TOKENS)))
        return;
    model_set(&m, &s->m.schedule);
    if (!CHECK_OK(decoder_init(&d, &m, PROMPTS, MOST, TOKENS)))
        return;
    check_steps(s, &d, tok, want);
    check_bits(s, &d, tok);
    check_greedy(s, &d, tok[0]);
    decoder_release(&d);
    for (int p = 0; p < PROMPTS; p++)
        free(want[p]);
}

static void check_form(const struct small_form *f, const struct small_size *z)
{
    struct small s;
    struct ops *o;
    if (!CHECK_OK(ops_cpu_new(&o)) || !CHECK_OK(small_open(&s, o, f, DT_F32, z, 5)))
        return;
    check_model(&s);
    CHECK_OK(small_close(&s));
}

static void test_forms(void)
{
    for (int i = 0; i < n_small_forms; i++) {
        check_form(&small_forms[i], &size);
        if (!small_forms[i].set[0]) /* a record as it is */
            check_form(&small_forms[i], &tiny);
    }
}

static void test_drawn(void)
{
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct small_size z;
        struct small s = { 0 };
        struct ops *o;
        char *text = drawn_recipe(seed, &z);
        z.tokens = TOKENS;
        if (!CHECK_OK(recipe_parse(&s.r, "drawn", text, NULL, 0)) || !CHECK_OK(ops_cpu_new(&o)) ||
            !CHECK_OK(small_model(&s, o, &z, seed)))
            return;
        snprintf(s.label, sizeof s.label, "drawn %d", (int)seed);
        check_model(&s);
        CHECK_OK(small_close(&s));
        free(text);
    }
}

int main(void)
{
    test_forms();
    test_drawn();
    return check_done();
}
