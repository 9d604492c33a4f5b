/* gpt_loader_test.c - the loader of gpt_loader.h: each token in its order, on any number of ranks, and
 * from any position; and what the other headers refuse. */
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "checkpoint/gpt_safetensors.h"
#include "data/gpt_loader.h"
#include "data/gpt_shard.h"
#include "base/gpt_error.h"
#include "scratch.h"
#include "shard_maker.h"

enum { CHUNKS = 6, TOKENS = 64, STEPS = 9, CAP = 48 };

static struct tokens text;
static struct gpt_loader_options options(int rank, int world)
{
    static char data[4096];
    snprintf(data, sizeof data, "%s", scratch("x_train.bin"));
    return (struct gpt_loader_options){ .data = data,
                                        .chunks = CHUNKS,
                                        .tokens = TOKENS,
                                        .cap = CAP,
                                        .pieces = true,
                                        .vocab = 50304,
                                        .rank = rank,
                                        .world = world };
}

/* Steps from `first` on of one rank into its places of `token` and `target`. */
static void read_steps(int rank, int world, int first, const char *position, int32_t *token,
                       int32_t *target, char at[STEPS + 1][160])
{
    struct gpt_loader_options o = options(rank, world);
    struct gpt_loader *l;
    const struct gpt_chunk *c;
    int n;

    CHECK_OK(gpt_loader_open(&l, &o));
    if (position)
        CHECK_OK(gpt_loader_seek(l, position));
    for (int s = first; s < STEPS; s++) {
        CHECK_OK(gpt_loader_next(l, &c, &n));
        CHECK_EQ(n, (CHUNKS - rank + world - 1) / world);
        for (int k = 0; k < n; k++) {
            size_t to = (size_t)(s * CHUNKS + rank + k * world) * TOKENS;
            CHECK(c[k].tokens == TOKENS && c[k].documents > 0);
            CHECK_EQ(c[k].end[c[k].documents - 1], TOKENS);
            memcpy(token + to, c[k].token, TOKENS * sizeof *token);
            memcpy(target + to, c[k].target, TOKENS * sizeof *target);
        }
        if (at)
            gpt_loader_position(l, at[s + 1], 160);
    }
    if (position)
        CHECK_ERR(gpt_loader_seek(l, position), GPT_ERROR_USAGE, "before the first step");
    gpt_loader_close(l);
}

static void test_loader(void)
{
    enum { N = STEPS * CHUNKS * TOKENS };
    static int32_t token[N], target[N], other[N], others[N];
    static char at[STEPS + 1][160];
    int apart = 0;

    read_steps(0, 1, 0, NULL, token, target, at);
    for (int i = 0; i < N; i++) { /* a token and its target stand together in the text */
        bool found = false;
        for (int t = 0; t + 1 < text.n && !found; t++)
            found = text.v[t] == token[i] && text.v[t + 1] == target[i];
        apart += !found;
    }
    CHECK_EQ(apart, 0);
    for (int world = 2; world <= 4; world += 2) {
        memset(other, -1, sizeof other);
        for (int rank = 0; rank < world; rank++)
            read_steps(rank, world, 0, NULL, other, others, NULL);
        CHECK(!memcmp(token, other, sizeof token) && !memcmp(target, others, sizeof target));
    }
    for (int s = 1; s < STEPS; s++) {
        memcpy(other, token, sizeof other);
        memset(other + s * CHUNKS * TOKENS, -1, (size_t)(STEPS - s) * CHUNKS * TOKENS * 4);
        read_steps(0, 1, s, at[s], other, others, NULL);
        CHECK(!memcmp(token, other, sizeof token));
    }
}

static void test_refusals(void)
{
    struct gpt_loader_options o = options(2, 2);
    struct gpt_loader *l;
    CHECK_ERR(gpt_loader_open(&l, &o), GPT_ERROR_USAGE, "a rank below world");
    CHECK(!l);
    o = options(0, 1);
    CHECK_OK(gpt_loader_open(&l, &o));
    CHECK_ERR(gpt_loader_seek(l, "1 2 3"), GPT_ERROR_INPUT, "expected a position");
    CHECK_ERR(gpt_loader_seek(l, "00 1 0 0 1 0 0 5"), GPT_ERROR_INPUT, "in other data");
    CHECK_ERR(gpt_loader_seek(l, "00 1 0 0 1 0 0 5 x"), GPT_ERROR_INPUT, "expected a position");
    gpt_loader_close(l);
    gpt_loader_close(NULL);
    o.data = "/nowhere.bin";
    CHECK_ERR(gpt_loader_open(&l, &o), GPT_ERROR_SYSTEM, "/nowhere.bin");
    CHECK(strstr(gpt_error(), "/nowhere.bin") != NULL);

    struct gpt_shard *s;
    int64_t begin, end;
    CHECK_OK(gpt_shard_open(&s, scratch("x_train.bin"), 50304, BOS));
    CHECK_EQ(gpt_shard_size(s), text.n);
    CHECK_ERR(gpt_shard_wait(s, text.n + 1), GPT_ERROR_USAGE, "tokens");
    CHECK_ERR(gpt_shard_document(s, -1, 0, &begin, &end), GPT_ERROR_USAGE, "document -1");
    CHECK_OK(gpt_shard_wait(s, text.n));
    CHECK(!memcmp(gpt_shard_tokens(s), text.v, (size_t)text.n * 2));
    gpt_shard_close(s);
}

/* Two tensors, written by hand: plain ones are read in any order. */
static void test_tensors(void)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                 "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]},"
                                 "\"__metadata__\":{\"step\":\"12\"}}";
    unsigned char file[8 + sizeof header + 9] = { sizeof header - 1 }, got[8];
    struct gpt_tensors *t;

    memcpy(file + 8, header, sizeof header - 1);
    for (int i = 0; i < 9; i++)
        file[8 + sizeof header - 1 + i] = (unsigned char)(i + 1);
    spill(scratch("x.safetensors"), file, sizeof file - 1);
    CHECK_OK(gpt_tensors_open(&t, scratch("x.safetensors")));
    CHECK_EQ(gpt_tensors_count(t), 2);
    CHECK_STR(gpt_tensors_meta(t, "step"), "12");
    CHECK_EQ(gpt_tensors_find(t, "b"), 1);
    CHECK_EQ(gpt_tensors_find(t, "c"), -1);
    CHECK_STR(gpt_tensors_at(t, 0)->type, "F32");
    CHECK_EQ(gpt_tensors_at(t, 0)->shape[0], 2);
    CHECK(!gpt_tensors_at(t, 2) && !gpt_tensors_at(t, -1));
    CHECK_OK(gpt_tensors_read(t, 1, 0, got, 1));
    CHECK_EQ(got[0], 9);
    CHECK_OK(gpt_tensors_read(t, 0, 3, got, 5));
    CHECK_EQ(got[0], 4);
    CHECK_ERR(gpt_tensors_read(t, 0, 3, got, 6), GPT_ERROR_USAGE, "of 8");
    CHECK_ERR(gpt_tensors_read(t, 2, 0, got, 1), GPT_ERROR_USAGE, "tensor 2 of 2");
    gpt_tensors_close(t);
}

int main(void)
{
    text = random_tokens(5, 20000, 90, 0);
    put_shard(scratch("x_train.bin"), text);
    test_loader();
    test_refusals();
    test_tensors();
    return check_done();
}
