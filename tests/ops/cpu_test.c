/* cpu_test.c - the plain C device: its memory, numbers that are not finite, and failures, which stick. */
#include "hand_tensors.h"
#include "op_test.h"

static void test_memory(void)
{
    struct ops *o = cpu();
    struct tensor t = floats(o, 1, 5, NULL), b = bf16s(o, 3, (float[]){ 1, -2.5f, 1.00390625f });
    struct tensor f = floats(o, 1, 3, NULL);
    float back[5];
    int32_t *bad = o->alloc(o, 4, "bad");

    CHECK_STR(o->device, "cpu");
    CHECK_EQ(o->act, DT_F32);
    CHECK(o->allocated(o) == 5 * 4 + 3 * 2 + 3 * 4 + 3 * 4 + 4);
    for (int i = 0; i < 5; i++)
        CHECK(isnan(f32_at(t, i))); /* what nobody wrote shows itself */
    o->zero(o, t);
    o->download(o, back, t.data, sizeof back);
    for (int i = 0; i < 5; i++)
        CHECK(back[i] == 0);
    o->copy(o, f, b);
    CHECK(f32_at(f, 0) == 1 && f32_at(f, 1) == -2.5f);
    CHECK(f32_at(f, 2) == 1); /* 1 + 2^-8 is halfway: to the even one */
    *bad = 0;
    o->finite(o, bad, f);
    o->finite(o, bad, b);
    CHECK_EQ(*bad, 0);
    for (int i = 0; i < 3; i++) {
        static const float worst[] = { INFINITY, -INFINITY, NAN };
        ((float *)f.data)[2] = worst[i];
        *bad = 0;
        o->finite(o, bad, f);
        CHECK_EQ(*bad, 1);
        o->copy(o, b, f);
        *bad = 0;
        o->finite(o, bad, b);
        CHECK_EQ(*bad, 1);
        o->finite(o, bad, t); /* sticks */
        CHECK_EQ(*bad, 1);
    }
    uint16_t half[] = { 0x7bff, 0xfc00 };
    uint8_t code[] = { 0xfe, 0x7f };
    for (int n = 1; n <= 2; n++) {
        *bad = 0;
        o->finite(o, bad, tensor_of(half, DT_F16, 1, n));
        CHECK_EQ(*bad, n == 2);
        *bad = 0;
        o->finite(o, bad, tensor_of(code, DT_E4M3, 1, n));
        CHECK_EQ(*bad, n == 2);
    }
    CHECK_OK(o->sync(o));
    o->free(o);
}

/* Under the address sanitizer an allocation that cannot be is NULL, as elsewhere. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

static void test_failure_sticks(void)
{
    struct ops *o = cpu();
    struct tensor t = floats(o, 1, 1, (float[]){ 3 });
    struct tensor none = tensor_of(NULL, DT_F32, 1, 1);

    CHECK(!o->alloc(o, (size_t)1 << 60, "the moon"));
    CHECK_ERR(o->status(o), GPT_SYSTEM, "cannot allocate 1152921504606846976 bytes for the moon");
    CHECK(!o->alloc(o, 4, "anything")); /* nothing happens from here on */
    o->zero(o, t);
    o->linear(o, none, t, t, NULL, NO_TENSOR);
    o->mix_norm(o, none, NO_TENSOR, 1, &(struct mix_term){ .x = none });
    CHECK(f32_at(t, 0) == 3);
    CHECK_ERR(o->sync(o), GPT_SYSTEM, "the moon");
    o->free(o);
}

static void by_hand(void)
{
    test_memory();
    test_failure_sticks();
}

const struct op_test cpu_test = {
    .name = "cpu finite",
    .by_hand = by_hand,
};
