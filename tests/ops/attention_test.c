/* attention_test.c - attention by hand: who sees whom, paired rows. Its cases are qkv's. */
#include "hand_tensors.h"
#include "op_test.h"

/* With queries of zero, attention is the mean of the visible values and lse the log of their
 * number. */
struct visible {
    int rows, heads, mul, window, ncu;
    const int32_t *cu;
};

static void check_visible(const struct visible *w)
{
    struct ops *o = cpu();
    struct tensor q = floats(o, w->rows, w->heads, NULL), v = floats(o, w->rows, w->heads, NULL);
    struct tensor out = floats(o, w->rows, w->heads, NULL);
    struct tensor lse = floats(o, w->heads, w->rows, NULL);
    struct attn_shape s = { .rows = w->rows,
                            .heads = w->heads,
                            .head_dim = 1,
                            .cu = w->cu,
                            .ncu = w->ncu,
                            .cu_mul = w->mul,
                            .window = w->window,
                            .scale = 1 };

    o->zero(o, q);
    for (int i = 0; i < w->rows * w->heads; i++)
        ((float *)v.data)[i] = (float)(i * i % 31);
    o->attention(o, out, lse, q, v, v, &s);
    for (int h = 0; h < w->heads; h++)
        for (int p = 0; p < w->rows; p++) {
            int document = 0, n = 0;
            double sum = 0;
            for (int d = 0; d < w->ncu; d++)
                document = w->cu[d] * w->mul <= p ? w->cu[d] * w->mul : document;
            for (int j = 0; j <= p; j++)
                if (j >= document && j >= p - w->window) {
                    sum += f32_at(v, j * w->heads + h);
                    n++;
                }
            CHECK_NEAR(f32_at(out, p * w->heads + h), sum / n, 1e-4); /* of 31, 100 roundings */
            CHECK_NEAR(f32_at(lse, h * w->rows + p), log(n), 1e-5);
        }
    o->free(o);
}

static void test_visible(void)
{
    check_visible(&(struct visible){ 1, 1, 1, 0, 2, (int32_t[]){ 0, 1 } });
    check_visible(&(struct visible){ 7, 2, 1, 2, 3, (int32_t[]){ 0, 4, 7 } });
    check_visible(&(struct visible){ 7, 1, 1, 9, 7, (int32_t[]){ 0, 0, 3, 3, 6, 7, 7 } });
    check_visible(&(struct visible){ 3, 1, 1, 5, 4, (int32_t[]){ 0, 1, 2, 3 } });
    check_visible(&(struct visible){ 10, 2, 2, 3, 3, (int32_t[]){ 0, 2, 5 } });
    check_visible(&(struct visible){ 200, 1, 1, 63, 3, (int32_t[]){ 0, 150, 200 } });
    check_visible(&(struct visible){ 200, 1, 1, 64, 2, (int32_t[]){ 0, 200 } });
    check_visible(&(struct visible){ 130, 2, 2, 300, 4, (int32_t[]){ 0, 1, 60, 65 } });
}

/* Memory (T,H E) read as (2T,H/2 E): with a window of one row, head c + H/2 of a token sees itself
 * and head c of the same token; head c sees itself and head c + H/2 of the token before. */
static void test_paired_rows(void)
{
    enum { T = 3, H = 4 };
    struct ops *o = cpu();
    struct tensor q = floats(o, T, H, NULL), lse = floats(o, H / 2, 2 * T, NULL);
    struct tensor v =
        floats(o, T, H, (float[]){ 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048 });
    struct tensor out = floats(o, T, H, NULL);
    struct attn_shape s = { .rows = 2 * T,
                            .heads = H / 2,
                            .head_dim = 1,
                            .cu = (int32_t[]){ 0, 2, 3 },
                            .ncu = 3,
                            .cu_mul = 2,
                            .window = 1,
                            .scale = 1 };
    static const float want[T * H] = {
        1,
        2,
        (1 + 4) / 2.f,
        (2 + 8) / 2.f,
        (4 + 16) / 2.f,
        (8 + 32) / 2.f,
        (16 + 64) / 2.f,
        (32 + 128) / 2.f,
        256,
        512,
        (256 + 1024) / 2.f,
        (512 + 2048) / 2.f, /* a document of its own */
    };

    o->zero(o, q);
    o->attention(o, out, lse, q, q, v, &s);
    for (int i = 0; i < T * H; i++)
        CHECK_NEAR(f32_at(out, i), want[i], 1e-3);
    o->free(o);
}

static void by_hand(void)
{
    test_visible();
    test_paired_rows();
}

const struct op_test attention_test = {
    .name = "attention",
    .by_hand = by_hand,
};
