/* corpus_test.c - which of many files are one, which a MANIFEST beside them means, and which neither
 * train nor validate, each held against a search of all pairs. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "check.h"
#include "data/corpus.h"
#include "scratch.h"
#include "shard_maker.h"

enum { FILES = 150, LINKS = 12 };

static struct rng rng;
static uint64_t drawn;

static int below(int n) { return (int)rng_below(&rng, drawn++, (uint64_t)n); }

static struct manifest_shard line_of(const char *name, int tokens, int documents)
{
    struct manifest_shard s = { .split = SPLIT_TRAIN,
                                .name = (char *)name,
                                .bytes = SHARD_HEADER_BYTES + 2 * tokens,
                                .tokens = tokens,
                                .documents = documents };

    snprintf(s.hash, sizeof s.hash, "%032d", 1000 + documents);
    return s;
}

/* Writes shards into `folder`, one in four a test's, one of validation, and a MANIFEST that names most of them
 * and some that are not there, in the order of random names; the documents of a line are the file's tokens and 7. */
static void write_files(const char *folder)
{
    struct manifest m = { .tool = "t",
                          .arguments = "",
                          .tokenizer = "bytes",
                          .vocabulary = "-",
                          .unicode = "-",
                          .settings = "-",
                          .vocab_size = 257,
                          .bos = 256 };
    char name[64], *text;

    CHECK(!mkdir(scratch(folder), 0777));
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "%06d_%s_%d.bin", below(1000000),
                 i == 5       ? "val"
                 : i % 4 == 3 ? "test"
                              : "train",
                 i);
        struct manifest_shard s = line_of(name, 1 + i, 8 + i);
        struct tokens t = random_tokens((uint64_t)i, 1 + i, 5, 0);

        if (i % 10 != 2)
            put_shard(in(scratch(folder), name), t);
        if (i % 7) {
            CHECK_OK(manifest_add(&m, &s));
            m.tokens += s.tokens, m.documents += s.documents;
        }
        free(t.v);
    }
    CHECK_OK(manifest_text(&m, &text));
    spill(in(scratch(folder), "MANIFEST"), text, strlen(text));
    free(text);
    for (int i = 0; i < m.n; i++)
        free(m.shard[i].name);
    free(m.shard);
}

static int number_of(const char *name) { return atoi(strrchr(name, '_') + 1); }

static void test_beside(const struct corpus *c)
{
    int known = 0;

    CHECK_EQ(c->bos, 256);
    for (int i = 0; i < c->n; i++) {
        int k = number_of(c->shard[i].name);

        CHECK_EQ(c->shard[i].tokens, 1 + k);
        CHECK_EQ(c->shard[i].documents, k % 7 ? 8 + k : -1);
        known += c->shard[i].documents >= 0;
    }
    CHECK(known > FILES / 2);
}

/* The tests' files and, where none validates, the one of validation: what training leaves out, each named once
 * though validation leaves it out too. */
static void test_unused(const struct corpus *train, const struct corpus *val)
{
    char text[4096];
    int of_val = 0, n = 0;

    for (int k = 0; k < train->others; k++) {
        const char *name = strrchr(train->other[k], '/') + 1;

        of_val += strstr(name, "_val_") != NULL;
        n += strstr(name, "_test_") || !val;
    }
    CHECK_EQ(of_val, 1);
    CHECK(n > 20);
    CHECK_EQ(corpus_unused(train, val, text, sizeof text), n);
    CHECK(strstr(text, "_test_") && !strstr(text, "_train_"));
}

static bool one_file(const char *a, const char *b)
{
    struct stat x, y;

    return !stat(a, &x) && !stat(b, &y) && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

/* The pair with the smallest *b, and of those with the smallest *a. */
static bool twice(const struct corpus *c, int *a, int *b)
{
    for (*b = 0; *b < c->n; ++*b)
        for (*a = 0; *a < *b; ++*a)
            if (one_file(c->shard[*a].path, c->shard[*b].path))
                return true;
    return false;
}

/* Opens folder's files again after each link to one of them, which may have links already. */
static void test_twice(const char *folder, const char *pattern)
{
    struct corpus c;
    int a, b, x = -1, y = -1;

    CHECK_OK(corpus_open(&c, pattern, SPLIT_TRAIN, NULL));
    CHECK(!corpus_twice(&c, &a, &b));
    for (int i = 0; i < LINKS; i++) {
        const char *from = c.shard[below(c.n)].path;
        char name[64];

        snprintf(name, sizeof name, "%06d_train_%d.bin", below(1000000), FILES + i);
        CHECK(!(i % 2 ? link : symlink)(from, in(scratch(folder), name)));
        corpus_release(&c);
        CHECK_OK(corpus_open(&c, pattern, SPLIT_TRAIN, NULL));
        CHECK(corpus_twice(&c, &a, &b));
        CHECK(twice(&c, &x, &y));
        CHECK_EQ(a, x);
        CHECK_EQ(b, y);
    }
    corpus_release(&c);
}

/* Files that --val names, under other names too, do not train. */
static void test_elsewhere(const char *pattern)
{
    char *val, name[64];
    struct corpus all, c;

    CHECK(asprintf(&val, "%s/links", scratch("")) > 0);
    CHECK(!mkdir(val, 0777));
    CHECK_OK(corpus_open(&all, pattern, SPLIT_TRAIN, NULL));
    for (int i = 0; i < all.n; i += 3) {
        snprintf(name, sizeof name, "%d.bin", i);
        CHECK(!link(all.shard[i].path, in(val, name)));
    }
    free(val);
    CHECK(asprintf(&val, "%s/links/*.bin", scratch("")) > 0);
    CHECK_OK(corpus_open(&c, pattern, SPLIT_TRAIN, &(struct corpus_choice){ .val = val }));
    CHECK_EQ(c.n, all.n - (all.n + 2) / 3);
    for (int i = 0, k = 0; i < all.n; i++)
        if (i % 3)
            CHECK_STR(c.shard[k++].path, all.shard[i].path);
    corpus_release(&c);
    corpus_release(&all);
    free(val);
}

int main(void)
{
    struct corpus train, val;
    char *pattern;

    rng = rng_make(5, 1);
    write_files("a");
    CHECK(asprintf(&pattern, "%s/*.bin", scratch("a")) > 0);
    CHECK_OK(
        corpus_open(&train, pattern, SPLIT_TRAIN, &(struct corpus_choice){ .wants_val = true }));
    CHECK_OK(corpus_open(&val, pattern, SPLIT_VAL, NULL));
    CHECK_EQ(val.n, 1);
    test_beside(&train);
    test_unused(&train, &val);
    test_unused(&train, NULL);
    test_elsewhere(pattern);
    corpus_release(&train);
    corpus_release(&val);
    test_twice("a", pattern);
    free(pattern);
    return check_done();
}
