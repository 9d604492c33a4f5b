/* loader_test.c - the training and validation loaders: against the golden
 * batches of the record's own sampler, against a naive sampler written here from
 * the definition, on shards that end inside a step, resumed. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rng.h"
#include "check.h"
#include "data/bigram.h"
#include "base/json.h"
#include "data/loader.h"
#include "scratch.h"
#include "shard_maker.h"

#define VOCAB 50304
#define BIGRAMS 1281

/* --- the golden batches --- */

static int json_numbers(struct json *j, int64_t *v, int room)
{
    int n = 0;
    uint64_t x;

    json_open(j, '[');
    while (n < room && json_element(j) && json_u64(j, &x))
        v[n++] = (int64_t)x;
    return n;
}

/* Golden "starts" and "ends" of a batch, per rank. */
struct golden {
    int64_t start[6][4][32], end[6][4][32];
    int n[6][4], ends[6][4], batches;
};

static void golden_pieces(struct json *j, int64_t v[4][32], int n[4])
{
    int rank = 0;

    json_open(j, '[');
    while (json_element(j) && rank < 4) {
        n[rank] = json_numbers(j, v[rank], 32);
        rank++;
    }
    CHECK_EQ(rank, 4);
}

static void golden_read(struct golden *g)
{
    char *text;
    size_t n;
    struct json_string key;
    struct json j;
    uint64_t x;

    memset(g, 0, sizeof *g);
    if (!CHECK_OK(file_read("tests/golden/r61-loader.json", 0, &text, &n)))
        return;
    j = (struct json){ .at = text, .end = text + n };
    json_open(&j, '{');
    while (json_key(&j, &key)) {
        if (!json_equal(&key, "batches")) {
            CHECK(json_u64(&j, &x));
            CHECK_EQ(x, json_equal(&key, "world")             ? 4
                        : json_equal(&key, "tokens_per_rank") ? 256
                                                              : 96);
            continue;
        }
        json_open(&j, '[');
        while (json_element(&j) && g->batches < 6) {
            json_open(&j, '{');
            while (json_key(&j, &key)) {
                if (json_equal(&key, "starts"))
                    golden_pieces(&j, g->start[g->batches], g->n[g->batches]);
                else
                    golden_pieces(&j, g->end[g->batches], g->ends[g->batches]);
            }
            g->batches++;
        }
    }
    CHECK(!j.bad);
    CHECK_EQ(g->batches, 6);
    free(text);
}

/* start and order list the positions of each row, ascending; each position once. */
static void check_csr(const int32_t *row, const int32_t *start, const int32_t *order, int tokens,
                      int rows)
{
    int seen = 0;

    for (int v = 0; v < rows; v++)
        for (int k = start[v]; k < start[v + 1]; k++, seen++)
            CHECK(row[order[k]] == v && (k == start[v] || order[k] > order[k - 1]));
    CHECK_EQ(start[0], 0);
    CHECK_EQ(seen, tokens);
}

/* The rows that the hash gives, whatever the chunk's place in the step. */
static void check_bigram(const struct chunk *c, bool csr)
{
    int32_t *row = malloc((size_t)c->tokens * sizeof *row);

    bigram_rows(c->tok, c->tokens, BIGRAMS, row);
    CHECK(!memcmp(row, c->bigram, (size_t)c->tokens * sizeof *row));
    CHECK_EQ(c->bigram_start != NULL, csr);
    if (csr)
        check_csr(row, c->bigram_start, c->bigram_order, c->tokens, BIGRAMS);
    free(row);
}

static const struct batch_shape small = { .chunks = 4, .tokens = 256, .cap = 96 };

/* A chunk against the pieces that it should have been made of. */
static void check_chunk(const struct chunk *c, const uint16_t *file, const int64_t *start,
                        const int64_t *end, int n)
{
    int at = 0;

    CHECK_EQ(c->docs, n);
    CHECK_EQ(c->bound, 128);
    CHECK_EQ(c->cu[0], 0);
    for (int i = 0; i < n && i < c->docs; i++) {
        CHECK_EQ(c->piece[i].begin, start[i]);
        CHECK_EQ(c->piece[i].end, end[i]);
        for (int64_t p = start[i]; p < end[i]; p++, at++) {
            CHECK(at == c->tokens || c->tok[at] == file[p]);
            CHECK(at == 0 || c->tgt[at - 1] == file[p]);
        }
        CHECK_EQ(c->cu[i + 1], at < c->tokens ? at : c->tokens);
    }
    CHECK_EQ(at, c->tokens + 1);
    for (int i = n + 1; i < c->bound; i++)
        CHECK_EQ(c->cu[i], c->tokens);
    check_csr(c->tok, c->start, c->order, c->tokens, VOCAB);
    check_bigram(c, true);
}

static void test_golden(int world)
{
    struct loader_config c = { .data = "tests/golden/r61-loader.bin",
                               .world = world,
                               .local_ranks = world,
                               .vocab = VOCAB,
                               .bos = -1,
                               .csr = true,
                               .bigram_rows = BIGRAMS,
                               .max = small };
    static struct golden g;
    const struct step_batch *b;
    struct loader *l;
    char *file;
    size_t n;

    golden_read(&g);
    if (!CHECK_OK(file_read(c.data, 0, &file, &n)) || !CHECK_OK(loader_new(&l, &c)))
        return;
    for (int s = 0; s < g.batches; s++) {
        for (int r = 0; r < world; r++)
            if (!CHECK_OK(loader_next(l, r, &b)))
                return;
        CHECK_EQ(b->step, s);
        for (int k = 0; k < 4; k++) {
            CHECK_EQ(g.n[s][k], g.ends[s][k]);
            check_chunk(&b->chunk[k], (uint16_t *)(file + 1024), g.start[s][k], g.end[s][k],
                        g.n[s][k]);
        }
    }
    /* The golden list ends because the shard does. */
    for (int again = 0; again < 2; again++)
        for (int r = 0; r < world; r++)
            CHECK_ERR(loader_next(l, r, &b), GPT_INPUT, "used up");
    loader_free(l);
    free(file);
}

/* --- a naive sampler, from the definition --- */

struct naive {
    struct tokens shard[4];
    int shards, s, c;
    int64_t epoch;
    bool cycle;
};

static int naive_boundaries(struct tokens t, int *b)
{
    int n = 0;

    for (int i = 0; i < t.n; i++)
        if (t.v[i] == BOS)
            b[n++] = i;
    return n;
}

/* One step of w->chunks chunks into buf[chunk][T+1]; false when used up. */
static bool naive_step(struct naive *o, const struct batch_shape *w, uint16_t *buf, int *docs)
{
    for (int tries = 0; tries <= o->shards; tries++) {
        struct tokens t = o->shard[o->s];
        int *b = malloc(sizeof *b * (size_t)t.n), nb = naive_boundaries(t, b), c = o->c, k;

        for (k = 0; k < w->chunks; k++) {
            int l = 0;

            for (docs[k] = 0; l <= w->tokens && c < nb; c++, docs[k]++) {
                int start = b[c], end = c + 1 < nb ? b[c + 1] : t.n;

                if (w->cap && end > start + w->cap)
                    end = start + w->cap;
                if (end > start + w->tokens - l + 1)
                    end = start + w->tokens - l + 1;
                for (int i = start; i < end; i++)
                    buf[k * (w->tokens + 1) + l++] = t.v[i];
            }
            if (l <= w->tokens)
                break;
        }
        free(b);
        if (k == w->chunks) {
            o->c = c;
            return true;
        }
        o->c = 0;
        if (++o->s == o->shards) {
            if (!o->cycle)
                return false;
            o->s = 0;
            o->epoch++;
        }
    }
    return false;
}

/* The cap and T change with the step, as the schedules change them. */
static struct batch_shape changing(void *ctx, int64_t step)
{
    struct batch_shape s = { .chunks = 8,
                             .tokens = step < 3 ? 200 : 333,
                             .cap = step < 5 ? 96 : 300 };

    if (ctx && step >= *(int *)ctx)
        s.tokens = 0;
    return s;
}

/* Each batch of documents is there for `repeat` steps. */
static void check_step(const struct step_batch *b, struct naive *o, int repeat)
{
    struct batch_shape w = changing(NULL, b->step);
    struct naive after = *o;
    uint16_t *buf = malloc(sizeof *buf * (size_t)(w.chunks * (w.tokens + 1)));
    int docs[8], bad = 0;

    CHECK(naive_step(&after, &w, buf, docs));
    if (after.s != o->s) /* these begin in another shard */
        *o = after, o->c = 0;
    if ((b->step + 1) % repeat == 0)
        *o = after;
    CHECK_EQ(b->chunks, 8);
    for (int k = 0; k < 8; k++) {
        const struct chunk *c = &b->chunk[k];

        if (!c->tok)
            continue;
        CHECK(!c->bigram && !c->bigram_start && !c->start); /* nobody asked */
        CHECK_EQ(c->tokens, w.tokens);
        CHECK_EQ(c->docs, docs[k]);
        for (int t = 0; t < w.tokens; t++)
            bad += c->tok[t] != buf[k * (w.tokens + 1) + t] ||
                   c->tgt[t] != buf[k * (w.tokens + 1) + t + 1];
    }
    CHECK_EQ(bad, 0);
    CHECK_EQ(b->after.shard, o->s);
    CHECK_EQ(b->after.at.document, o->c);
    CHECK_EQ(b->after.epoch, o->epoch);
    free(buf);
}

/* Four shards (.bin, one frame, many frames, no document start), walked twice over; and every
 * position in between continued from by a loader of another world size. */
static void test_shards(bool indexed, int repeat)
{
    struct naive o = { .shards = 4, .cycle = true }, at[40];
    struct loader_pos pos[40];
    struct loader_config c = { .world = 8,
                               .local_ranks = 8,
                               .vocab = VOCAB,
                               .bos = -1,
                               .cycle = true,
                               .repeat = repeat,
                               .shape = changing,
                               .max = { .chunks = 8, .tokens = 333 } };
    const struct step_batch *b = NULL;
    struct loader *l;
    char id[33];

    for (int i = 0; i < 4; i++)
        o.shard[i] = random_tokens(7 + (uint64_t)i, 15000 + 777 * i, 40, i < 3 ? i * 5 : 20000);
    put_shard(scratch("a_train_000001.bin"), o.shard[0]);
    put_zst(scratch("a_train_000002.bin.zst"), o.shard[1], 1 << 20, false);
    put_zst(scratch("a_train_000003.bin.zst"), o.shard[2], 777, true);
    put_shard(scratch("a_train_000004.bin"), o.shard[3]);
    for (int i = 0; i < 4 && indexed; i++) {
        char name[64];

        snprintf(name, sizeof name, "a_train_00000%d.bin", i + 1);
        put_index(scratch(name), o.shard[i]);
    }
    c.data = scratch("a_train_*.bin*");
    if (!CHECK_OK(loader_new(&l, &c)))
        return;
    snprintf(id, sizeof id, "%s", loader_id(l));
    for (int s = 0; s < 40; s++) {
        at[s] = o;
        for (int r = 0; r < 8; r++)
            CHECK_OK(loader_next(l, r, &b));
        pos[s] = b->at;
        check_step(b, &o, repeat);
    }
    CHECK(o.epoch >= 1 || repeat > 1);
    loader_free(l);
    for (int s = 0; s < 40; s += 3) {
        c.world = 1 << (s % 4);
        c.first_rank = c.world / 2; /* and only half of the ranks here */
        c.local_ranks = (c.world + 1) / 2;
        c.first_rank = c.world - c.local_ranks;
        CHECK_OK(loader_new(&l, &c));
        CHECK_STR(loader_id(l), id);
        CHECK_OK(loader_seek(l, &pos[s]));
        o = at[s];
        for (int k = 0; k < 3 && s + k < 40; k++) {
            for (int r = c.first_rank; r < c.world; r++)
                CHECK_OK(loader_next(l, r, &b));
            CHECK_EQ(b->step, s + k);
            CHECK((b->chunk[0].tok != NULL) == (c.first_rank == 0));
            check_step(b, &o, repeat);
        }
        loader_free(l);
    }
    for (int i = 0; i < 4; i++)
        free(o.shard[i].v);
}

/* --- ranks that run apart --- */

struct rank {
    struct loader *l;
    int rank;
    long sum;
    int steps;
    pthread_t thread;
};

static void *rank_main(void *arg)
{
    struct rank *k = arg;
    const struct step_batch *b;

    while (k->steps < 20 && !loader_next(k->l, k->rank, &b)) {
        for (int m = 0; m < b->chunks / 4; m++)
            for (int t = 0; t < b->chunk[m * 4 + k->rank].tokens; t++)
                k->sum += b->chunk[m * 4 + k->rank].tok[t] % 97 * (t + 1L + k->steps);
        k->steps++;
    }
    return NULL;
}

/* Ranks in threads see the same as one after the other; a batch does not change
 * while a slow rank still reads it. */
static void test_threads(void)
{
    struct loader_config c = { .data = scratch("a_train_*.bin*"),
                               .world = 4,
                               .local_ranks = 4,
                               .vocab = VOCAB,
                               .bos = -1,
                               .cycle = true,
                               .csr = true,
                               .shape = changing,
                               .max = { .chunks = 8, .tokens = 333 } };
    struct rank k[2][4];

    for (int apart = 0; apart < 2; apart++) {
        struct loader *l;

        CHECK_OK(loader_new(&l, &c));
        for (int r = 0; r < 4; r++)
            k[apart][r] = (struct rank){ .l = l, .rank = r };
        for (int r = 0; r < 4 && apart; r++)
            pthread_create(&k[apart][r].thread, NULL, rank_main, &k[apart][r]);
        for (int s = 0; s < 20 && !apart; s++)
            for (int r = 0; r < 4; r++) {
                const struct step_batch *b;

                CHECK_OK(loader_next(l, r, &b));
                for (int m = 0; m < 2; m++)
                    for (int t = 0; t < b->chunk[m * 4 + r].tokens; t++)
                        k[0][r].sum += b->chunk[m * 4 + r].tok[t] % 97 * (t + 1L + s);
            }
        for (int r = 0; r < 4 && apart; r++)
            pthread_join(k[apart][r].thread, NULL);
        loader_free(l);
    }
    for (int r = 0; r < 4; r++) {
        CHECK_EQ(k[1][r].steps, 20);
        CHECK_EQ(k[0][r].sum, k[1][r].sum);
    }
}

/* --- validation --- */

static void test_val(void)
{
    struct tokens t[2] = { random_tokens(3, 8 * 64 * 2 + 1, 20, 4),
                           random_tokens(4, 8 * 64 * 3 + 1, 20, 0) };
    struct val_config c = { .data = scratch("v_val_*"),
                            .ranks = 2,
                            .vocab = VOCAB,
                            .bos = -1,
                            .bigram_rows = BIGRAMS,
                            .shape = { .chunks = 8, .tokens = 64 },
                            .total = 32 };
    struct chunk k;
    struct val *v;

    put_shard(scratch("v_val_000000.bin"), t[0]); /* one group: the record's >= */
    put_zst(scratch("v_val_000001.bin.zst"), t[1], 999, true);
    if (!CHECK_OK(val_new(&v, &c)))
        return;
    for (int i = 0; i < 32; i++) {
        const uint16_t *from = i < 8 ? t[0].v + 64 * i : t[1].v + 64 * (i - 8);
        int n = 1;

        CHECK_OK(val_chunk(v, i & 1, i, &k));
        CHECK_EQ(k.cu[0], 0);
        for (int j = 0; j < 64; j++) {
            CHECK_EQ(k.tok[j], from[j]);
            CHECK_EQ(k.tgt[j], from[j + 1]);
            if (from[j] == BOS)
                CHECK_EQ(k.cu[n++], j);
        }
        CHECK_EQ(k.docs, n);
        for (; n < k.bound; n++)
            CHECK_EQ(k.cu[n], 64);
        check_bigram(&k, false);
    }
    val_free(v);
    c.total = 40;
    CHECK_ERR(val_new(&v, &c), GPT_INPUT, "found 4 groups");
    free(t[0].v);
    free(t[1].v);
}

int main(void)
{
    test_golden(1);
    test_golden(2);
    test_golden(4);
    test_shards(false, 1);
    test_shards(false, 3);
    test_shards(true, 1);
    test_threads();
    test_val();
    return check_done();
}
