/* vocabulary_test.c - tokens' prefixes: of toy vocabularies by their definition, of GPT-2's by the hash that
 * record-89.md 3 gives of the published program's table. */
#include "train/vocabulary.h"

#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "check.h"
#include "scratch.h"
#include "tokenize/vocab.h"
#include "toy_vocab.h"

/* Record 89's recipe at its size, whose losses have prefixes. */
static struct recipe *record(const char *vocab)
{
    const char *share = getenv("GPT_SHARE");
    char path[512];
    struct recipe *r = NULL;
    snprintf(path, sizeof path, "%s/recipes/record-89.recipe", share ? share : "share");
    CHECK_OK(recipe_read(&r, path, &vocab, vocab != NULL));
    return r;
}

/* The rank of the longest token that is shorter than token i and with which it begins; -1: none. */
static int prefix_of(int i)
{
    int best = -1;
    for (int j = 0; j < toys; j++)
        if (toy[j].n < toy[i].n && !memcmp(toy[j].bytes, toy[i].bytes, (size_t)toy[j].n) &&
            (best < 0 || toy[j].n > toy[best].n))
            best = j;
    return best;
}

static void test_toy(enum form form, uint64_t seed)
{
    struct recipe *r = record("model.vocab=1008");
    struct run_vocabulary v;
    const char *path = scratch("toy");
    int some = 0;
    draw_toy(seed);
    CHECK(!put_vocab(path, form));
    if (!r || !CHECK_OK(run_vocabulary_read(&v, path, r)))
        return;
    for (int i = 0; i < toys; i++) {
        int want = prefix_of(i);
        CHECK_EQ(v.prefix[toy_id(form, i)], want < 0 ? -1 : toy_id(form, want));
        some += want >= 0;
    }
    CHECK(some > 0);
    CHECK_EQ(v.prefix[r->model.vocab - 1], -1); /* an id without bytes */
    run_vocabulary_release(&v);
    recipe_free(r);
}

/* Values as little-endian int32. */
static void test_gpt2(void)
{
    struct run_vocabulary v;
    struct recipe *r = record(NULL);
    struct sha256 h;
    char *path, hex[65];
    int some = 0;
    if (vocab_find(&path)) {
        printf("GPT-2's vocabulary is not here (make vocab): its prefixes are not tested\n");
        recipe_free(r);
        return;
    }
    if (!r || !CHECK_OK(run_vocabulary_read(&v, path, r)))
        return;
    CHECK_EQ(r->model.vocab, 50304);
    sha256_init(&h);
    for (int i = 0; i < r->model.vocab; i++) {
        uint32_t x = (uint32_t)v.prefix[i];
        uint8_t bytes[4] = { (uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16),
                             (uint8_t)(x >> 24) };
        sha256_add(&h, bytes, 4);
        some += v.prefix[i] >= 0;
    }
    sha256_hex(&h, hex);
    CHECK_STR(hex, "36281293860d09f2307c3d2cd503f2e595e24c165fbd49b11f89cfaed71b617c");
    CHECK_EQ(some, 50000);
    CHECK(v.prefix[262] == 294 && v.prefix[464] == 817 && v.prefix[0] == -1);
    CHECK_EQ(v.prefix[50256], -1);
    run_vocabulary_release(&v);
    recipe_free(r);
    free(path);
}

int main(void)
{
    for (uint64_t seed = 0; seed < 5; seed++) {
        test_toy(RANKS, seed);
        test_toy(JSON_IDS, seed);
    }
    test_gpt2();
    return check_done();
}
