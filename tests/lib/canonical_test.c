/* canonical_test.c - which tokens never follow which: nothing that an encoding has, and all that BPE
 * alone rules out where nothing can be cut. Toy vocabularies, and GPT-2's where its file is. */
#include "tokenize/canonical.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "check.h"
#include "scratch.h"
#include "tokenize/bpe.h"
#include "tokenize/unicode.h"
#include "toy_vocab.h"

static size_t encode(struct bpe *b, const char *s, size_t n, uint16_t *out)
{
    static char padded[1 << 16];

    memcpy(padded, s, n);
    memset(padded + n, 'x', BPE_PAD);
    return bpe_encode(b, padded, n, false, out);
}

static long barred_pairs(const struct token_mask *m, const uint16_t *t, size_t n)
{
    long barred = 0;

    for (size_t i = 1; i < n; i++)
        barred += token_mask_never(m, t[i - 1], t[i]);
    return barred;
}

/* What a pre-tokeniser may do with: pieces of words, contractions, white space, several scripts,
 * halves of characters. */
static size_t draw_text(struct rng *r, uint64_t *draw, char *out, size_t room)
{
    static const char *const piece[] = { "a",   "s",    "the", "ll",       "x",   "'",        "'s",
                                         "'re", "'ll",  " ",   "  ",       "\n",  "\n",       "\t",
                                         "\r",  "7",    "42",  "!",        "--",  "(",        "é",
                                         "ж",   "\xe4", "b",   "\xe2\x80", "中",  "\xc2\xa0", "½",
                                         "ing", "_",    "S",   "'T",       "\x99" };
    size_t n = 0;

    for (;;) {
        const char *s = piece[rng_below(r, (*draw)++, sizeof piece / sizeof *piece)];
        size_t k = strlen(s);
        if (n + k > room)
            return n;
        memcpy(out + n, s, k);
        n += k;
    }
}

static void test_toys(void)
{
    static char text[400];
    static uint16_t tokens[sizeof text + BPE_SLACK];
    long barred = 0, said = 0, more = 0, less = 0;

    for (uint64_t seed = 0; seed < 20; seed++) {
        struct rng r = rng_make(seed, 5);
        uint64_t draw = 0;
        struct token_mask m;
        struct vocab *v;
        struct bpe *b;

        draw_toy(seed);
        CHECK(!put_vocab(scratch("toy"), RANKS));
        if (!CHECK_OK(vocab_load(&v, scratch("toy"))) || !CHECK_OK(bpe_new(&b, v)) ||
            !CHECK_OK(canonical_make(&m, v, v->size + 7)))
            return;
        for (int i = 0; i < 300; i++) {
            for (size_t k = 0; k < sizeof text; k++) {
                const struct toy_token *t = &toy[rng_below(&r, draw++, (uint64_t)toys)];
                text[k] = (char)t->bytes[rng_below(&r, draw++, (uint64_t)t->n)];
            }
            barred += barred_pairs(&m, tokens, encode(b, text, sizeof text, tokens));
        }
        for (int x = 0; x < m.ids; x++)
            for (int y = 0; y < m.ids; y++) {
                bool never = token_mask_never(&m, x, y);
                bool inside = x < v->tokens && y < v->tokens;
                said += never;
                more += never && (!inside || bpe_may_follow(v, (uint32_t)x, (uint32_t)y));
                if (!inside || v->bytes[v->begin[x]] != 'a' || v->bytes[v->begin[y]] != 'a')
                    continue;
                const uint8_t *s = v->bytes + v->begin[x + 1] - 1; /* x ends with a, y begins so */
                less += *s == 'a' && !never && !bpe_may_follow(v, (uint32_t)x, (uint32_t)y);
            }
        canonical_free(&m);
        bpe_free(b);
        vocab_free(v);
    }
    CHECK_EQ(barred, 0);
    CHECK_EQ(more, 0);
    CHECK_EQ(less, 0);
    CHECK(said > 1000);
}

/* Ids that are not ranks: the same pairs. */
static void test_ids(void)
{
    struct token_mask m[2];
    long wrong = 0, said = 0;

    draw_toy(3);
    for (int i = 0; i < 2; i++) {
        struct vocab *v;
        CHECK(!put_vocab(scratch("toy"), i ? JSON_IDS : RANKS));
        if (!CHECK_OK(vocab_load(&v, scratch("toy"))) ||
            !CHECK_OK(canonical_make(&m[i], v, v->size + 5)))
            return;
        vocab_free(v);
    }
    for (int x = 0; x < toys; x++)
        for (int y = 0; y < toys; y++) {
            bool never = token_mask_never(&m[0], x, y);
            said += never;
            wrong += never != token_mask_never(&m[1], toy_id(JSON_IDS, x), toy_id(JSON_IDS, y));
        }
    for (int x = 0; x < 3; x++)
        for (int y = 0; y < m[1].ids; y++)
            wrong += token_mask_never(&m[1], x, y) || token_mask_never(&m[1], y, x);
    CHECK_EQ(wrong, 0);
    CHECK(said > 1000);
    canonical_free(&m[0]);
    canonical_free(&m[1]);
}

static bool never(const struct token_mask *m, struct bpe *b, const char *x, const char *y)
{
    uint16_t one[64], two[64];

    CHECK_EQ(encode(b, x, strlen(x), one), 1);
    CHECK_EQ(encode(b, y, strlen(y), two), 1);
    return token_mask_never(m, one[0], two[0]);
}

static void test_gpt2(void)
{
    static char text[30000];
    static uint16_t tokens[sizeof text + BPE_SLACK];
    struct rng r = rng_make(3, 5);
    struct token_mask m;
    struct vocab *v;
    struct bpe *b;
    uint64_t draw = 0;
    long barred = 0;
    char *path;

    if (vocab_find(&path)) {
        printf("GPT-2's vocabulary is not here (make vocab): its pairs are not tested\n");
        return;
    }
    if (!CHECK_OK(vocab_load(&v, path)) || !CHECK_OK(bpe_new(&b, v)) ||
        !CHECK_OK(canonical_make(&m, v, 50304)))
        return;
    CHECK(never(&m, b, " t", "he"));
    CHECK(never(&m, b, " ", "the"));
    CHECK(never(&m, b, "1", "2"));
    CHECK(!never(&m, b, "\n", "\n")); /* before a word each is alone */
    CHECK(!never(&m, b, "'", "s")); /* behind another sign: "!'" and "s" */
    CHECK(!never(&m, b, "s", "he")); /* behind "'" */
    CHECK(!never(&m, b, " the", " cat"));
    CHECK(!token_mask_never(&m, v->bos, 0) && !token_mask_never(&m, 0, v->bos));
    for (int i = 0; i < 100; i++)
        barred += barred_pairs(&m, tokens,
                               encode(b, text, draw_text(&r, &draw, text, sizeof text), tokens));
    FILE *f = fopen("README.md", "r"); /* some English, too */
    if (CHECK(f != NULL)) {
        barred += barred_pairs(&m, tokens, encode(b, text, fread(text, 1, sizeof text, f), tokens));
        fclose(f);
    }
    CHECK_EQ(barred, 0);
    canonical_free(&m);
    bpe_free(b);
    vocab_free(v);
    free(path);
}

int main(void)
{
    unicode_init();
    test_toys();
    test_ids();
    test_gpt2();
    return check_done();
}
