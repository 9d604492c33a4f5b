/* loader_rows_test.c - data.cut = rows against its definition: shards at the edges of the rule, on any
 * number of ranks, resumed at every step, from files, with an index, from a stream; how many steps
 * there are, and what a pass trains on; validation in rows. */
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "data/loader.h"
#include "data/shard_stream.h"
#include "scratch.h"
#include "shard_maker.h"

enum { CHUNKS = 4, ROW = 8, TOKENS = 3 * ROW, B = CHUNKS * TOKENS, SHARDS = 6, MOST = 40 };
/* Tokens of shards, and the steps that they have: p + B + 1 >= n goes on to the next. */
static const int sizes[SHARDS] = { B + 1, B + 2, 2 * B + 1, 3 * B + 2, 5, 2 * B + 2 };
static const int steps[SHARDS] = { 0, 1, 1, 3, 0, 2 };
static struct tokens shard[SHARDS];

static struct batch_shape shape(void *ctx, int64_t step)
{
    (void)ctx;
    return (
        struct batch_shape){ .chunks = CHUNKS, .tokens = step < 100000 ? TOKENS : 0, .cap = ROW };
}

static struct loader_config config_of(int world, bool cycle)
{
    return (struct loader_config){ .data = scratch("r_train_*.bin"),
                                   .world = world,
                                   .local_ranks = world,
                                   .vocab = 50304,
                                   .bos = -1,
                                   .cut = CUT_ROWS,
                                   .cycle = cycle,
                                   .wake = -1,
                                   .shape = shape,
                                   .max = { .chunks = CHUNKS, .tokens = TOKENS } };
}

/* The shard and first token of step i of a pass. */
static void step_of(int i, int *s, int *at)
{
    for (*s = 0; i >= steps[*s]; ++*s)
        i -= steps[*s];
    *at = i * B;
}

static int steps_of_pass(void)
{
    int n = 0;
    for (int s = 0; s < SHARDS; s++)
        n += steps[s];
    return n;
}

static void check_step(const struct step_batch *b, int step, int s, int at)
{
    CHECK_EQ(b->step, step);
    for (int k = 0; k < CHUNKS; k++) {
        const struct chunk *c = &b->chunk[k];
        const uint16_t *v = shard[s].v + at + k * TOKENS;
        int off = 0;
        for (int t = 0; t < TOKENS && c->tok; t++)
            off += c->tok[t] != v[t] || c->tgt[t] != v[t + 1];
        CHECK_EQ(off, 0);
        CHECK_EQ(c->tok ? c->docs : TOKENS / ROW, TOKENS / ROW);
        for (int i = 0; i < c->bound && c->tok; i++)
            off += c->cu[i] != (i * ROW < TOKENS ? i * ROW : TOKENS);
        CHECK_EQ(off, 0);
    }
}

static const struct step_batch *next(struct loader *l, int world)
{
    const struct step_batch *b = NULL;
    for (int r = 0; r < world; r++)
        if (!CHECK_OK(loader_next(l, r, &b)))
            exit(check_done());
    return b;
}

static void test_files(int world)
{
    struct loader_config c = config_of(world, true);
    struct loader_pos pos[MOST];
    struct loader *l;
    int pass = steps_of_pass(), s, at;

    CHECK_OK(loader_new(&l, &c));
    CHECK_EQ(loader_most_steps(l), INT64_MAX);
    for (int i = 0; i < MOST; i++) {
        const struct step_batch *b = next(l, world);
        step_of(i % pass, &s, &at);
        check_step(b, i, s, at);
        pos[i] = b->at;
        CHECK_EQ(b->ended.number, i && i % pass == 0 ? i / pass : 0);
        if (b->ended.number)
            CHECK_EQ(b->ended.used, pass * B);
    }
    loader_free(l);
    for (int i = 0; i < MOST; i++) {
        CHECK_OK(loader_new(&l, &c));
        CHECK_OK(loader_seek(l, &pos[i]));
        for (int k = i; k < i + 3; k++) {
            step_of(k % pass, &s, &at);
            check_step(next(l, world), k, s, at);
        }
        loader_free(l);
    }
}

static void test_ends(void)
{
    struct loader_config c = config_of(1, false);
    const struct step_batch *b;
    struct pass p;
    struct loader *l;
    int pass = steps_of_pass(), tokens = 0;

    for (int s = 0; s < SHARDS; s++)
        tokens += sizes[s];
    CHECK_OK(loader_pass(&c, 0, &p));
    CHECK(!p.about);
    CHECK_EQ(p.used, pass * B);
    CHECK_EQ(p.tokens, tokens);
    CHECK_OK(loader_new(&l, &c));
    CHECK_EQ(loader_most_steps(l), pass);
    for (int i = 0; i < pass; i++)
        next(l, 1);
    CHECK_ERR(loader_next(l, 0, &b), GPT_INPUT, "are used up");
    loader_free(l);
    put_shard(scratch("short.bin"), shard[0]);
    c.data = scratch("short.bin");
    CHECK_OK(loader_new(&l, &c));
    CHECK_ERR(loader_next(l, 0, &b), GPT_INPUT, "expected a shard of more than 97 tokens");
    loader_free(l);
    CHECK_OK(loader_new(&l, &c));
    CHECK_ERR(loader_seek(l, &(struct loader_pos){ .at = { 3, 0, 0 } }), GPT_INPUT,
              "the position is in a document");
    loader_free(l);
}

static void test_stream(void)
{
    struct loader_config c = config_of(2, false);
    struct loader_pos pos[MOST];
    int pass = steps_of_pass(), s, at;

    for (int first = -1; first < pass; first++) {
        struct shard_stream *t;
        struct loader *l;
        CHECK_OK(shard_stream_open(&t, scratch("stream"), 0));
        c.stream = t;
        CHECK_OK(loader_new(&l, &c));
        if (first >= 0)
            CHECK_OK(loader_seek(l, &pos[first]));
        for (int i = first < 0 ? 0 : first; i < pass; i++) {
            const struct step_batch *b = next(l, 2);
            step_of(i, &s, &at);
            check_step(b, i, s, at);
            pos[i] = b->at;
        }
        loader_free(l);
        shard_stream_close(t);
    }
}

static void test_validation(void)
{
    struct val_config c = { .data = scratch("r_train_4.bin"),
                            .only_val = true,
                            .ranks = 1,
                            .vocab = 50304,
                            .bos = -1,
                            .row = ROW,
                            .shape = { .chunks = 2, .tokens = TOKENS },
                            .total = 4 };
    struct val *v;
    struct chunk k;

    CHECK_OK(val_new(&v, &c));
    for (int i = 0; i < 4; i++) {
        CHECK_OK(val_chunk(v, 0, i, &k));
        int off = 0;
        for (int t = 0; t < TOKENS; t++)
            off += k.tok[t] != shard[3].v[i * TOKENS + t] ||
                   k.tgt[t] != shard[3].v[i * TOKENS + t + 1];
        for (int r = 0; r < k.bound; r++)
            off += k.cu[r] != (r * ROW < TOKENS ? r * ROW : TOKENS);
        CHECK_EQ(off, 0);
    }
    val_free(v);
}

int main(void)
{
    FILE *f = fopen(scratch("stream"), "wb");
    for (int s = 0; s < SHARDS; s++) {
        char name[32];
        int32_t h[256];
        shard[s] = random_tokens((uint64_t)s + 3, sizes[s], 5, s % 2 ? 7 : 0);
        snprintf(name, sizeof name, "r_train_%d.bin", s + 1);
        put_shard(scratch(name), shard[s]);
        shard_header(h, sizes[s]);
        fwrite(h, 1, sizeof h, f);
        fwrite(shard[s].v, 2, (size_t)sizes[s], f);
    }
    CHECK(!fclose(f));
    test_files(1);
    test_files(4);
    for (int s = 0; s < SHARDS; s++) {
        char name[32];
        snprintf(name, sizeof name, "r_train_%d.bin", s + 1);
        put_index(scratch(name), shard[s]);
    }
    test_files(3);
    test_ends();
    test_stream();
    test_validation();
    for (int s = 0; s < SHARDS; s++)
        free(shard[s].v);
    return check_done();
}
