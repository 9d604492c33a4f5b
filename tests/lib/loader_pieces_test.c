/* loader_pieces_test.c - data.cut = pieces against a list of all pieces written here from its
 * definition: every token but a shard's last once a pass, on any number of ranks, resumed at every
 * step, from files, with an index, from a stream; and what a pass is foretold and counted to train on. */
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "data/loader.h"
#include "data/shard_index.h"
#include "data/shard_stream.h"
#include "scratch.h"
#include "shard_maker.h"

#define VOCAB 50304
enum { SHARDS = 6, PIECE = 96, STEPS = 60 };

static struct tokens shard[SHARDS];

/* --- the pieces of a pass, from the definition --- */

struct span {
    int shard, begin, end;
};
struct list {
    struct span v[20000];
    int n;
};

static bool add_piece(struct list *l, int s, int begin, int end, int round)
{
    int b = begin + round * PIECE, e = b + PIECE < end ? b + PIECE : end;

    if (e > shard[s].n - 1) /* the last token is a target alone */
        e = shard[s].n - 1;
    if (b < e)
        l->v[l->n++] = (struct span){ s, b, e };
    return b < e;
}

/* Documents of a shard: what stands before the first start is one, too. */
static int documents(int s, int *begin)
{
    int n = 0;

    for (int i = 0; i < shard[s].n; i++)
        if (!i || shard[s].v[i] == BOS)
            begin[n++] = i;
    begin[n] = shard[s].n;
    return n;
}

static void list_pieces(struct list *l, bool stream)
{
    static int begin[40000];

    l->n = 0;
    for (int s = 0; s < SHARDS; s++) {
        int n = documents(s, begin);
        bool more = true;

        for (int d = 0; d < n && stream; d++)
            for (int r = 0; add_piece(l, s, begin[d], begin[d + 1], r); r++)
                ;
        for (int r = 0; more && !stream; r++) {
            more = false;
            for (int d = 0; d < n; d++)
                more |= add_piece(l, s, begin[d], begin[d + 1], r);
        }
    }
}

static struct batch_shape changing(void *ctx, int64_t step)
{
    (void)ctx;
    return (struct batch_shape){ .chunks = 6,
                                 .tokens = step < 7 ? 200 : 333,
                                 .cap = step < 11 ? 64 : 300 };
}

/* The place in the list of pieces, and the tokens since the list began. */
struct place {
    int at, offset;
    int64_t used, epoch;
};

struct expected {
    int docs[6], length[6];
    struct piece piece[6][400];
    int32_t tok[6][333], tgt[6][333];
};

/* Fills one step. drop: one that a shard's end interrupts begins again with the next. */
static void expect_step(const struct list *l, struct place *p, const struct batch_shape *w,
                        bool drop, struct expected *x)
{
    struct place begun = *p;
again:
    memset(x, 0, sizeof *x);
    for (int k = 0; k < w->chunks; k++)
        while (x->length[k] < w->tokens) {
            if (p->at == l->n)
                *p = (struct place){ .epoch = p->epoch + 1 };
            const struct span *s = &l->v[p->at];
            int b = s->begin + p->offset, n = s->end - b;

            if (drop && p->at != begun.at && s->shard != l->v[begun.at].shard) {
                p->offset = 0;
                begun = *p;
                goto again;
            }
            n = n < w->cap ? n : w->cap;
            n = n < w->tokens - x->length[k] ? n : w->tokens - x->length[k];
            x->piece[k][x->docs[k]++] = (struct piece){ (uint32_t)b, (uint32_t)(b + n) };
            for (int i = 0; i < n; i++, x->length[k]++) {
                x->tok[k][x->length[k]] = shard[s->shard].v[b + i];
                x->tgt[k][x->length[k]] = shard[s->shard].v[b + i + 1];
            }
            p->used += n;
            p->offset += n;
            if (b + n == s->end)
                p->at++, p->offset = 0;
        }
}

static void check_step(const struct step_batch *b, const struct expected *x)
{
    struct batch_shape w = changing(NULL, b->step);

    CHECK_EQ(b->chunks, w.chunks);
    for (int k = 0; k < w.chunks; k++) {
        const struct chunk *c = &b->chunk[k];
        int at = 0;

        if (!c->tok)
            continue;
        CHECK_EQ(c->tokens, w.tokens);
        CHECK_EQ(c->docs, x->docs[k]);
        CHECK(!memcmp(c->tok, x->tok[k], (size_t)w.tokens * 4));
        CHECK(!memcmp(c->tgt, x->tgt[k], (size_t)w.tokens * 4));
        for (int i = 0; i < c->docs && i < x->docs[k]; i++) {
            CHECK(c->piece[i].begin == x->piece[k][i].begin);
            CHECK(c->piece[i].end == x->piece[k][i].end);
            CHECK_EQ(c->cu[i], at);
            at += (int)(c->piece[i].end - c->piece[i].begin);
        }
        for (int i = c->docs; i < c->bound; i++)
            CHECK_EQ(c->cu[i], w.tokens);
    }
}

/* --- files and a stream of the same shards --- */

static void make_shards(bool indexed)
{
    /* 0 begins in the middle of a document; 1 is one document without a start; 2 has one token and 3
     * two; documents of 4 end where pieces do, in its last token and before it; 5 is long. */
    static const int sizes[] = { 9000, 2500, 1, 2, 7 * PIECE + 1, 15000 };
    static const int leads[] = { 301, 9999, 0, 9999, 0, 5 };
    char name[64];

    for (int s = 0; s < SHARDS; s++) {
        free(shard[s].v);
        shard[s] = random_tokens(70 + (uint64_t)s, sizes[s], s == 4 ? 1 << 30 : 150, leads[s]);
    }
    for (int i = 1; i < 7; i++)
        shard[4].v[i * PIECE] = i % 2 ? BOS : 7;
    for (int i = 3000; i < 9000; i++) /* one document of 60 pieces */
        shard[5].v[i] = (uint16_t)(i % 50000);
    for (int s = 0; s < SHARDS; s++) {
        snprintf(name, sizeof name, "p_train_00000%d.bin%s", s, s == 5 ? ".zst" : "");
        if (s == 5)
            put_zst(scratch(name), shard[s], 1 << 12, true);
        else
            put_shard(scratch(name), shard[s]);
        snprintf(name, sizeof name, "p_train_00000%d.bin", s);
        if (indexed)
            put_index(scratch(name), shard[s]);
    }
}

static void make_stream(void)
{
    FILE *f = fopen(scratch("stream"), "wb");
    int32_t h[256];

    for (int s = 0; s < SHARDS; s++) {
        shard_header(h, shard[s].n);
        fwrite(h, sizeof h, 1, f);
        fwrite(shard[s].v, 2, (size_t)shard[s].n, f);
    }
    CHECK(!fclose(f));
}

static struct loader_config config_of(int world, int repeat)
{
    return (struct loader_config){ .data = scratch("p_train_*.bin*"),
                                   .world = world,
                                   .local_ranks = world,
                                   .vocab = VOCAB,
                                   .bos = -1,
                                   .cut = CUT_PIECES,
                                   .piece = PIECE,
                                   .cycle = true,
                                   .repeat = repeat,
                                   .shape = changing,
                                   .wake = -1,
                                   .max = { .chunks = 6, .tokens = 333 } };
}

static void next_of_all(struct loader *l, const struct loader_config *c,
                        const struct step_batch **b)
{
    for (int r = c->first_rank; r < c->first_rank + c->local_ranks; r++)
        if (!CHECK_OK(loader_next(l, r, b)))
            exit(check_done());
}

/* All steps, and from each third the rest of a few by a loader of another world, half of whose ranks
 * are here. */
static void test_files(int repeat)
{
    static struct list list;
    static struct expected x;
    struct place p = { 0 }, at[STEPS], after;
    struct loader_pos pos[STEPS];
    struct loader_config c = config_of(6, repeat);
    const struct step_batch *b = NULL;
    struct loader *l;
    int64_t tokens = 0, ended = 0;

    list_pieces(&list, false);
    for (int s = 0; s < SHARDS; s++)
        tokens += shard[s].n;
    if (!CHECK_OK(loader_new(&l, &c)))
        return;
    for (int s = 0; s < STEPS; s++) {
        struct batch_shape w = changing(NULL, s);
        int64_t last = p.epoch;

        at[s] = after = p;
        next_of_all(l, &c, &b);
        pos[s] = b->at;
        expect_step(&list, &after, &w, false, &x);
        check_step(b, &x);
        if ((s + 1) % repeat == 0)
            p = after;
        CHECK_EQ(b->after.epoch, p.epoch);
        CHECK_EQ(b->after.used, p.used);
        CHECK_NEAR(b->passes, (double)p.epoch + (double)p.used / (double)tokens, 1e-12);
        CHECK_EQ(b->ended.number, p.epoch > last ? p.epoch : 0);
        if (b->ended.number) {
            CHECK_EQ(b->ended.used, tokens - SHARDS);
            CHECK_EQ(b->ended.tokens, tokens);
        }
        ended += b->ended.number > 0;
    }
    CHECK(repeat > 1 || ended >= 3);
    loader_free(l);
    for (int s = 0; s < STEPS; s++) {
        c = config_of(1 + s % 6, repeat);
        c.local_ranks = (c.world + 1) / 2;
        c.first_rank = c.world - c.local_ranks;
        CHECK_OK(loader_new(&l, &c));
        CHECK_OK(loader_seek(l, &pos[s]));
        p = at[s];
        for (int k = 0; k < 4; k++) {
            struct batch_shape w = changing(NULL, s + k);

            after = p;
            next_of_all(l, &c, &b);
            expect_step(&list, &after, &w, false, &x);
            check_step(b, &x);
            if ((s + k + 1) % repeat == 0)
                p = after;
        }
        loader_free(l);
    }
}

static void test_stream(int repeat)
{
    static struct list list;
    static struct expected x;
    enum { MOST = 12 };
    struct place p = { 0 }, at[MOST], after;
    struct loader_pos pos[MOST];
    struct loader_config c = config_of(2, repeat);
    const struct step_batch *b;
    struct loader *l;

    list_pieces(&list, true);
    c.cycle = false;
    for (int first = -1; first < MOST; first++) {
        struct shard_stream *t;

        if (!CHECK_OK(shard_stream_open(&t, scratch("stream"), 0)))
            return;
        c.stream = t;
        CHECK_OK(loader_new(&l, &c));
        if (first >= 0)
            CHECK_OK(loader_seek(l, &pos[first]));
        p = first < 0 ? (struct place){ 0 } : at[first];
        for (int s = first < 0 ? 0 : first; s < MOST; s++) {
            struct batch_shape w = changing(NULL, s);

            after = p;
            next_of_all(l, &c, &b);
            expect_step(&list, &after, &w, repeat > 1, &x);
            check_step(b, &x);
            if (first < 0)
                at[s] = p, pos[s] = b->at;
            if ((s + 1) % repeat == 0)
                p = after;
        }
        loader_free(l);
        shard_stream_close(t);
    }
}

/* --- what a pass trains on --- */

static struct batch_shape steady(void *ctx, int64_t step)
{
    (void)ctx;
    return (struct batch_shape){ .chunks = 4,
                                 .tokens = step < 100000 ? 256 : 0,
                                 .cap = step < 9 ? 100 : 256 };
}

/* The first pass is counted as it was foretold. */
static void test_foretold(enum cut cut)
{
    struct loader_config c = config_of(1, 1);
    const struct step_batch *b;
    struct pass p;
    struct loader *l;

    c.cut = cut;
    c.piece = cut == CUT_PIECES ? PIECE : 0;
    c.shape = steady;
    CHECK_OK(loader_pass(&c, 0, &p));
    CHECK(!p.about && p.used > 0 && p.used < p.tokens);
    CHECK_OK(loader_new(&l, &c));
    do
        if (!CHECK_OK(loader_next(l, 0, &b)))
            return;
    while (!b->ended.number);
    CHECK_EQ(b->ended.number, 1);
    CHECK_EQ(b->ended.used, p.used);
    CHECK_EQ(b->ended.tokens, p.tokens);
    loader_free(l);
}

/* Of two shards of 5 M tokens the front of the first says how it is with both, of one with an index
 * the index exactly. */
static void test_about(void)
{
    struct tokens t = random_tokens(5, 5000000, 300, 0);
    struct loader_config c = config_of(1, 1);
    struct pass front, exact;
    char text[PASS_TEXT];

    put_shard(scratch("q_train_1.bin"), t);
    put_shard(scratch("q_train_2.bin"), t);
    c.data = scratch("q_train_*.bin");
    c.cut = CUT_DOCUMENT;
    c.shape = steady;
    CHECK_OK(loader_pass(&c, 0, &front));
    put_index(scratch("q_train_1.bin"), t);
    put_index(scratch("q_train_2.bin"), t);
    CHECK_OK(loader_pass(&c, 0, &exact));
    CHECK(front.about && !exact.about);
    CHECK_EQ(front.tokens, 10000000);
    CHECK_EQ(exact.tokens, 10000000);
    /* Some 14,000 documents were looked at; a length differs from their mean by as much as that, so
     * the sum by 1 in 118: three times that, and their like in the pieces, is 3%. */
    CHECK_NEAR((double)front.used / (double)exact.used, 1, 0.03);
    pass_text(&front, text, sizeof text);
    CHECK(*text == '~' && strstr(text, " of 10000000 tokens (~"));
    pass_text(&(struct pass){ .used = 150, .tokens = 400 }, text, sizeof text);
    CHECK_STR(text, "150 of 400 tokens (37.5%)");
    c.cut = CUT_PIECES;
    CHECK_OK(loader_pass(&c, 0, &exact));
    CHECK_EQ(exact.used, 10000000 - 2);
    free(t.v);
}

/* --- many documents in a chunk --- */

static struct batch_shape roomy(void *ctx, int64_t step)
{
    struct batch_shape w = steady(ctx, step);

    w.bound = cu_bound(w.tokens, 256);
    return w;
}

static void test_crowded(enum cut cut)
{
    struct tokens t = random_tokens(5, 5000, 1, 0); /* nothing but document starts */
    struct loader_config c = config_of(1, 1);
    const struct step_batch *b;
    struct pass p;
    struct loader *l;

    put_shard(scratch("tweets.bin"), t);
    c.data = scratch("tweets.bin");
    c.cut = cut;
    c.piece = cut == CUT_PIECES ? PIECE : 0;
    c.shape = steady;
    CHECK_ERR(
        loader_pass(&c, 0, &p), GPT_INPUT,
        "step 1, chunk 0: expected at most 127 documents in 256 tokens, found more: allow for "
        "them (-s data.max_documents=256)");
    CHECK_OK(loader_pass(&c, 5, &p)); /* it begins elsewhere */
    CHECK_OK(loader_new(&l, &c));
    CHECK_ERR(loader_next(l, 0, &b), GPT_INPUT, "(-s data.max_documents=256)");
    loader_free(l);
    c.shape = roomy;
    c.max.bound = cu_bound(333, 256);
    CHECK_OK(loader_pass(&c, 0, &p));
    CHECK_OK(loader_new(&l, &c));
    for (int s = 0; s < 12; s++)
        if (CHECK_OK(loader_next(l, 0, &b)))
            CHECK_EQ(b->chunk[3].docs, cut == CUT_PIECES ? 256 : 257);
    loader_free(l);
    free(t.v);
}

/* --- what is refused --- */

static void test_refused(void)
{
    struct loader_config c = config_of(1, 1);
    const struct step_batch *b;
    struct loader *l;
    struct tokens one = { (uint16_t[]){ 5 }, 1 };

    c.cut = CUT_DOCUMENT;
    CHECK_OK(loader_new(&l, &c));
    CHECK_ERR(loader_seek(l, &(struct loader_pos){ .at = { 3, 1, 0 } }), GPT_INPUT,
              "expected data.cut = pieces, as the run had");
    loader_free(l);
    c.cut = CUT_PIECES;
    CHECK_OK(loader_new(&l, &c));
    CHECK_ERR(loader_seek(l, &(struct loader_pos){ .at = { 3, -1, 0 } }), GPT_INPUT, "piece -1");
    loader_free(l);
    put_shard(scratch("one.bin"), one);
    c.data = scratch("one.bin"); /* whose one token is a target alone */
    CHECK_OK(loader_new(&l, &c));
    CHECK_ERR(loader_next(l, 0, &b), GPT_INPUT, "found none in 1 shard");
    loader_free(l);
}

int main(void)
{
    for (int indexed = 0; indexed < 2; indexed++) {
        make_shards(indexed);
        test_files(1);
        test_files(3);
        test_foretold(CUT_DOCUMENT);
        test_foretold(CUT_PIECES);
    }
    make_stream();
    test_stream(1);
    test_stream(3);
    test_about();
    test_crowded(CUT_DOCUMENT);
    test_crowded(CUT_PIECES);
    test_refused();
    return check_done();
}
