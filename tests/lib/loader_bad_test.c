/* loader_bad_test.c - shards that the loader must refuse, each with one message that
 * names file, place, expected and found, and the same again when asked again. */
#include <stdlib.h>

#include "base/file.h"
#include "check.h"
#include "data/loader.h"
#include "scratch.h"
#include "shard_maker.h"

#define VOCAB 50304

static const struct batch_shape small = { .chunks = 4, .tokens = 256, .cap = 96 };

static void expect_failure(const char *data, struct batch_shape shape, int vocab, bool cycle,
                           const char *part)
{
    struct loader_config c = { .data = data,
                               .world = 1,
                               .local_ranks = 1,
                               .vocab = vocab,
                               .bos = -1,
                               .cycle = cycle,
                               .max = shape };
    const struct step_batch *b;
    struct loader *l;
    int rc = loader_new(&l, &c), again;

    if (!rc) {
        for (int s = 0; s < 1000 && !rc; s++)
            rc = loader_next(l, 0, &b);
        again = loader_next(l, 0, &b);
        CHECK_EQ(again, rc);
        CHECK_ERR(rc, GPT_INPUT, part);
        loader_free(l);
        return;
    }
    CHECK_ERR(rc, GPT_INPUT, part);
}

static void test_bad_input(void)
{
    struct tokens t = random_tokens(9, 4000, 30, 0), none = random_tokens(9, 4000, 30, 5000),
                  many = { calloc(4000, 2), 4000 };
    const char *p = scratch("bad.bin");
    char *bytes;
    size_t n;
    int32_t h[256];

    shard_header(h, 4001);
    put_bytes(p, h, 1024, t.v, 8000);
    expect_failure(p, small, VOCAB, false,
                   "bad.bin: truncated: expected 9026 bytes for 4001 tokens, found 9024");
    spill(p, h, 700);
    expect_failure(p, small, VOCAB, false, "a header of 1024 bytes, found 700");
    h[0]++;
    put_bytes(p, h, 1024, t.v, 8000);
    expect_failure(p, small, VOCAB, false,
                   "expected a token shard (numbers 20240520, 1), found 20240521, 1");
    put_shard(p, none);
    expect_failure(p, small, VOCAB, false, "has 4000 tokens and 0 document starts, token 50256)");
    t.v[1234] = 50304;
    put_shard(p, t);
    expect_failure(p, small, VOCAB, true,
                   "offset 3492: token 1234: expected an id below 50304, found 50304");
    t.v[1234] = 1;
    put_shard(p, t);
    expect_failure(p, (struct batch_shape){ .chunks = 8, .tokens = 512 }, VOCAB, true,
                   "for a step, 8 x 512 tokens");
    expect_failure(p, (struct batch_shape){ .chunks = 8, .tokens = 512 }, VOCAB, false,
                   "for a step, 8 x 512 tokens");
    expect_failure(p, small, 50000, false, "expected a document start below the model's 50000 ids");
    for (int i = 0; i < 4000; i++)
        many.v[i] = i % 2 ? 5 : BOS;
    put_shard(p, many);
    expect_failure(p, small, VOCAB, false,
                   "step 1, chunk 0: expected at most 127 documents in 256 tokens");

    /* Damaged and cut .zst: a byte of the middle, the end, the table. */
    p = scratch("bad.bin.zst");
    put_zst(p, t, 1000, true);
    CHECK((bytes = (char *)slurp(p, &n)));
    bytes[n / 2] ^= 16;
    spill(p, bytes, n);
    expect_failure(p, small, VOCAB, true, "bad.bin.zst: offset ");
    bytes[n / 2] ^= 16;
    spill(p, bytes, n - 300);
    expect_failure(p, small, VOCAB, true, "bad.bin.zst: ");
    bytes[n - 40] ^= 1; /* an entry of the table */
    spill(p, bytes, n);
    expect_failure(p, small, VOCAB, true, "damaged");
    free(bytes);
    put_zst(p, t, 1 << 20, false);
    CHECK((bytes = (char *)slurp(p, &n)));
    spill(p, bytes, n - 20);
    expect_failure(p, small, VOCAB, true, "bad.bin.zst: ");
    free(bytes);

    /* An index that is of something else. */
    put_shard(scratch("i.bin"), t);
    put_index(scratch("i.bin"), many);
    expect_failure(scratch("i.bin"), small, VOCAB, true,
                   "expected a document start as the index says");
    many.n--;
    put_index(scratch("i.bin"), many);
    expect_failure(scratch("i.bin"), small, VOCAB, true, "i.idx: is of another shard");
    spill(scratch("i.idx"), "x", 1);
    expect_failure(scratch("i.bin"), small, VOCAB, true, "i.idx: expected an index of a shard");

    CHECK_OK(file_mkdirs(scratch("folder")));
    expect_failure(scratch("folder"), small, VOCAB, true, "expected a MANIFEST, found none");
    expect_failure(scratch("v_val_*"), small, VOCAB, true, "expected a training shard, found none");
    free(t.v);
    free(none.v);
    free(many.v);
}

int main(void)
{
    struct tokens t = random_tokens(3, 600, 20, 4);

    put_shard(scratch("v_val_000000.bin"), t);
    put_shard(scratch("v_val_000001.bin"), t);
    free(t.v);
    test_bad_input();
    return check_done();
}
