/* bench_loader.c - how soon training can start, and how fast batches come.
 *
 *     build/tests/bench_loader SHARDS...       (folders with a MANIFEST, or .bin files)
 *
 * First the part of a step that does not depend on the shards: the orders and the
 * hash of 8 chunks. Then for each of SHARDS: milliseconds from nothing to the first
 * batch of record 61 (8 chunks of 16,384 tokens, cut at 2048, with their csr),
 * median, least and most; to the first 20; both again with record 74's bigram rows;
 * to the whole first shard in memory, checked and indexed; and how long one who
 * takes a batch and works on it for STEP_MS waits for the next, on average over
 * STEADY steps behind the first. (A step of so many tokens takes 20 ms on one H200.)
 * The folders take turns. Files come from the page cache if they are in it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/progress.h"
#include "base/rng.h"
#include "data/corpus.h"
#include "data/loader.h"
#include "data/shard_read.h"

#define RUNS 11
#define STEPS 20
#define STEADY 40
#define STEP_MS 5
#define BIGRAM_ROWS 251520 /* record 74 */

static void die(void)
{
    fprintf(stderr, "bench_loader: %s\n", err_message());
    exit(4);
}

static void open_loader(struct loader **l, const char *data, int bigram_rows)
{
    struct loader_config c = { .data = data,
                               .world = 8,
                               .local_ranks = 8,
                               .vocab = 50304,
                               .bos = -1,
                               .bigram_rows = bigram_rows,
                               .cycle = true,
                               .csr = true,
                               .max = { 8, 16384, 2048, 0 } };

    if (loader_new(l, &c))
        die();
}

static void take(struct loader *l)
{
    const struct step_batch *b;

    for (int r = 0; r < 8; r++)
        if (loader_next(l, r, &b))
            die();
}

static void time_batches(const char *data, int bigram_rows, double *first, double *all)
{
    double start = now_seconds();
    struct loader *l;

    open_loader(&l, data, bigram_rows);
    for (int s = 0; s < STEPS; s++) {
        take(l);
        if (s == 0)
            *first = 1e3 * (now_seconds() - start);
    }
    *all = 1e3 * (now_seconds() - start);
    loader_free(l);
}

static double time_waits(const char *data)
{
    struct loader *l;
    double waited = 0;

    open_loader(&l, data, 0);
    take(l);
    for (int s = 0; s < STEADY; s++) {
        double start;

        usleep(1000 * STEP_MS);
        start = now_seconds();
        take(l);
        waited += now_seconds() - start;
    }
    loader_free(l);
    return 1e3 * waited / STEADY;
}

static double time_shard(const char *data, int64_t *tokens)
{
    struct shard_want want = { .vocab = 65536 };
    struct corpus c;
    struct shard *s;
    double start;

    if (corpus_open(&c, data, SPLIT_TRAIN, NULL))
        die();
    want.bos = c.bos;
    start = now_seconds();
    if (shard_open(&s, c.shard[0].path, &want) || shard_wait(s, c.shard[0].tokens))
        die();
    start = 1e3 * (now_seconds() - start);
    *tokens = shard_size(s);
    shard_close(s);
    corpus_release(&c);
    return start;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void show(const char *what, double t[RUNS])
{
    qsort(t, RUNS, sizeof *t, compare);
    printf("  %-28s %9.3f ms  (%.3f to %.3f)\n", what, t[RUNS / 2], t[0], t[RUNS - 1]);
}

/* Tokens with frequencies like 1 / (rank + 10), as text has. */
static void time_index(int tokens)
{
    struct chunk_shape s = { .tokens = tokens,
                             .bound = cu_bound(tokens, 0),
                             .vocab = 50304,
                             .bigram_rows = BIGRAM_ROWS,
                             .csr = true };
    struct rng r = rng_make(1, 1);
    struct chunk c[8];
    double ms[RUNS];
    char what[64];

    for (int k = 0; k < 8; k++) {
        chunk_place(&c[k], malloc(chunk_block_bytes(&s)), &s);
        for (int t = 0; t < tokens; t++)
            ((int32_t *)c[k].tok)[t] =
                (int32_t)(10 *
                          (pow(s.vocab / 10.0, rng_uniform(&r, (uint64_t)(k * tokens + t))) - 1));
    }
    for (int i = 0; i < RUNS; i++) {
        double start = now_seconds();

        for (int k = 0; k < 8; k++)
            chunk_index(&c[k], &s);
        ms[i] = 1e3 * (now_seconds() - start);
    }
    snprintf(what, sizeof what, "index of 8 x %d tokens", tokens);
    show(what, ms);
    for (int k = 0; k < 8; k++)
        free((void *)c[k].block);
}

struct times {
    double first[RUNS], all[RUNS], first74[RUNS], all74[RUNS], shard[RUNS], wait[RUNS];
};

int main(int argc, char **argv)
{
    struct times *t = calloc((size_t)argc, sizeof *t);
    int64_t tokens = 0;

    time_index(16384);
    time_index(49152);
    for (int k = 0; k < RUNS; k++)
        for (int i = 1; i < argc; i++) {
            time_batches(argv[i], 0, &t[i].first[k], &t[i].all[k]);
            time_batches(argv[i], BIGRAM_ROWS, &t[i].first74[k], &t[i].all74[k]);
            t[i].shard[k] = time_shard(argv[i], &tokens);
            t[i].wait[k] = time_waits(argv[i]);
        }
    for (int i = 1; i < argc; i++) {
        printf("%s\n", argv[i]);
        show("first batch", t[i].first);
        show("first 20 batches", t[i].all);
        show("first batch, with bigrams", t[i].first74);
        show("first 20, with bigrams", t[i].all74);
        show("whole first shard", t[i].shard);
        show("waiting, a steady step", t[i].wait);
    }
    printf("a first shard has %lld tokens\n", (long long)tokens);
    free(t);
    return 0;
}
