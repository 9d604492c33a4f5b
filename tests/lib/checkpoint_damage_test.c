/* Damaged checkpoints: every byte of every file matters, and the message says where. */
#include <stdlib.h>
#include <unistd.h>
#include "base/hash.h"
#include "check.h"
#include "ckpt_fixture.h"

/* Every file of dir with every byte changed, and cut at every byte: refused,
 * and the message names the file. */
static void each_byte(const char *dir, const char *name, struct model_state *s)
{
    char *path = in(dir, name);
    size_t n;
    unsigned char *data = slurp(path, &n);
    long silent = 0, unnamed = 0, elsewhere = 0;
    for (size_t i = 0; data && i < n; i++) {
        data[i] ^= 1u << (i % 8);
        spill(path, data, n);
        int rc = load_state(dir, s, 1, 1);
        silent += rc == 0;
        unnamed += rc == GPT_INPUT && !strstr(err_message(), name);
        elsewhere += rc && rc != GPT_INPUT;
        data[i] ^= 1u << (i % 8);
        spill(path, data, i);
        rc = load_state(dir, s, 1, 1);
        silent += rc == 0;
        unnamed += rc == GPT_INPUT && !strstr(err_message(), name);
        elsewhere += rc && rc != GPT_INPUT;
    }
    CHECK(data && n > 0);
    CHECK_EQ(silent, 0);
    CHECK_EQ(unnamed, 0);
    CHECK_EQ(elsewhere, 0);
    spill(path, data, n);
    free(data);
}

static void test_damage(void)
{
    struct model_state a = new_state(3), b = new_state(4);
    char *top = strdup(scratch("damage"));
    for (int level = 0; level <= 1; level++) {
        CHECK_OK(save_state(top, &a, 5, 2, level));
        char *dir = ckpt_path(top, 5);
        each_byte(dir, level ? "rank0.safetensors.zst" : "rank0.safetensors", &b);
        each_byte(dir, level ? "rank1.safetensors.zst" : "rank1.safetensors", &b);
        each_byte(dir, "MANIFEST", &b);
        each_byte(dir, "recipe.txt", &b);
        CHECK_OK(load_state(dir, &b, 1, 2));
        CHECK(same_state(&a, &b));
        free(dir);
    }
    free(top);
    free_state(&a);
    free_state(&b);
}

/* The message of a damaged tensor: file, tensor, offset, expected and found. */
static void test_damage_is_named(void)
{
    struct model_state a = new_state(3);
    const struct ckpt_entry *e;
    struct ckpt *c;
    char *top = strdup(scratch("named")), expected[64];
    size_t n;
    CHECK_OK(save_state(top, &a, 5, 4, 0));
    char *dir = ckpt_path(top, 5);
    CHECK_OK(ckpt_open(&c, dir));
    CHECK((e = ckpt_find(c, "attn.momentum")) && e->npieces == 4);
    const struct ckpt_piece *p = &e->pieces[2];
    unsigned char *data = slurp(in(dir, "rank2.safetensors"), &n);
    data[p->at + 17] ^= 4;
    spill(in(dir, "rank2.safetensors"), data, n);
    void *all = malloc(e->unit_bytes * (size_t)e->shape[0]);
    const struct ckpt_want want = { "attn.momentum", e->dtype, 0, e->shape[0], all };
    CHECK_ERR(ckpt_load(c, &want, 1, 2), GPT_INPUT, "rank2.safetensors");
    free(all);
    CHECK(strstr(err_message(), "tensor 'attn.momentum', units 4:6"));
    snprintf(expected, sizeof expected, "offset %llu", (unsigned long long)p->at);
    CHECK(strstr(err_message(), expected));
    CHECK(strstr(err_message(), p->hash));
    ckpt_close(c);

    CHECK(!unlink(in(dir, "rank3.safetensors")));
    CHECK_ERR(ckpt_open(&c, dir), GPT_INPUT, "rank3.safetensors: MANIFEST lists it, but it is");
    CHECK(!unlink(in(dir, "MANIFEST")));
    CHECK_ERR(ckpt_open(&c, dir), GPT_INPUT, "has no MANIFEST: not a complete checkpoint");
    CHECK_ERR(ckpt_open(&c, in(top, "none")), GPT_SYSTEM, "No such file or directory");
    free(data);
    free(dir);
    free(top);
    free_state(&a);
}

/* A MANIFEST with a sound hash that says `to` in place of `from`; what it was is the caller's. */
static char *change_manifest(const char *dir, const char *from, const char *to)
{
    char *path = in(dir, "MANIFEST"), hash[33], *out;
    size_t n;
    char *text = (char *)slurp(path, &n), *at = strstr(text, from);
    CHECK(at != NULL);
    if (at && asprintf(&out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0) {
        *strstr(out, "\nend ") = 0;
        strcat(out, "\n");
        xxh_hex_of(out, strlen(out), hash);
        FILE *f = fopen(path, "w");
        fprintf(f, "%send %s\n", out, hash);
        fclose(f);
        free(out);
    }
    return text;
}

static void with_manifest(const char *dir, const char *from, const char *to, const char *part)
{
    struct ckpt *c;
    char *text = change_manifest(dir, from, to);
    CHECK_ERR(ckpt_open(&c, dir), GPT_INPUT, part);
    spill(in(dir, "MANIFEST"), text, strlen(text));
    free(text);
}

static void test_manifest(void)
{
    struct model_state a = new_state(3);
    char *top = strdup(scratch("manifest"));
    CHECK_OK(save_state(top, &a, 5, 2, 0));
    char *dir = ckpt_path(top, 5);
    with_manifest(dir, "gpt checkpoint 1", "gpt checkpoint 2", "line 1: expected gpt checkpoint 1");
    with_manifest(dir, "\nstep 5", "\nstop 5", "line 3: expected step, found 'stop'");
    with_manifest(dir, "\nstep 5", "\nstep -5", "expected a whole number, found '-5'");
    with_manifest(dir, "\nranks 2", "\nranks 0", "expected a number of ranks");
    with_manifest(dir, "\nstate note", "\nstate seed", "expected each key once, found 'seed'");
    with_manifest(dir, "\nrecipe recipe.txt", "\nfile recipe.txt", "expected a line 'recipe'");
    with_manifest(dir, "file rank1.safetensors", "file ../rank1", "expected the name of a file");
    with_manifest(dir, "file rank1.safetensors", "file rank0.safetensors", "each file once");
    with_manifest(dir, "attn.mantissa u16", "attn.mantissa u17", "expected a dtype, found 'u17'");
    with_manifest(dir, "attn.mantissa u16 8x6x6", "attn.mantissa u16 8x6x", "expected a shape");
    with_manifest(dir, "attn.mantissa u16 8x6x6", "attn.mantissa u16 8x0x6", "expected a shape");
    with_manifest(dir, "attn.mantissa u16 8x6x6 0 4", "aa.a u16 0x4 0 0", "expected a shape");
    with_manifest(dir, "attn.mantissa u16 8x6x6 0 4", "aa.a u16 8x6 0 0", "a number of units");
    with_manifest(dir, "attn.mantissa u16 8x6x6 0 4", "aa.a u16 0x99999999999999999x9999999 0 0",
                  "expected a shape");
    with_manifest(dir, "\nfile rank0.safetensors", "\nrecipe rank0.safetensors",
                  "expected one line 'recipe'");
    with_manifest(dir, "mantissa u16 8x6x6", "mantissa u16 8x6x7", "same dtype and shape");
    with_manifest(dir, "8x6x6 4 4", "8x6x6 3 4", "a piece from unit 4 on, found one from 3");
    with_manifest(dir, "8x6x6 4 4", "8x6x6 4 5", "its pieces go to unit 9 of 8");
    with_manifest(dir, "8x6x6 4 4", "8x6x6 4 3", "its pieces end at unit 7 of 8");
    with_manifest(dir, "tensor embed", "tensor aembed", "expected tensors by name");
    with_manifest(dir, "tensor embed", "tenser embed", "state, recipe, file, tensor or end");
    with_manifest(dir, "8x6x6 0 4 rank0", "8x6x6 0 4 rank9", "a file listed above");
    free(dir);
    free(top);
    free_state(&a);
}

int main(void)
{
    test_manifest();
    test_damage_is_named();
    test_damage();
    return check_done();
}
