/* shard_test.c - frames, shards and manifests: what is written is read back, by
 * zstd itself too, and damage anywhere is noticed. */
#include <stdlib.h>
#include <zstd.h>

#include "base/file.h"
#include "base/rng.h"
#include "check.h"
#include "data/corpus.h"
#include "data/shard_read.h"
#include "data/shard_write.h"
#include "scratch.h"

/* Writes n random tokens below 1000 in frames of FRAME_TOKENS; returns them. */
static uint16_t *write_shard(int level, int64_t full, int64_t n, struct manifest_shard *line)
{
    struct shard_writer w = {
        .dir = scratch(""), .prefix = "x", .level = level, .shard_tokens = full
    };
    size_t raw_n;
    uint16_t *tok = malloc(2 * (size_t)n + 2);
    ZSTD_CCtx *z = ZSTD_createCCtx();
    struct rng r = rng_make((uint64_t)n, 3);
    char *raw = malloc(shard_pack_room());

    for (int64_t i = 0; i < n; i++)
        tok[i] = (uint16_t)rng_below(&r, (uint64_t)i, 1000);
    CHECK_OK(shard_writer_open(&w, SPLIT_TRAIN, 7));
    for (int64_t at = 0; at < n; at += FRAME_TOKENS) {
        size_t k = 2 * (size_t)(n - at < FRAME_TOKENS ? n - at : FRAME_TOKENS);

        CHECK_OK(shard_pack(z, level ? level : 1, tok + at, k, raw, &raw_n));
        CHECK_OK(shard_writer_put(&w, tok + at, k, raw, raw_n));
    }
    CHECK_OK(shard_writer_finish(&w, n, line));
    line->name = strdup(line->name);
    line->frames = strdup(line->frames);
    shard_writer_abort(&w);
    ZSTD_freeCCtx(z);
    free(raw);
    return tok;
}

/* The plain file, decoded by zstd and not by us. */
static char *plain_file(const char *path, bool packed, size_t *n)
{
    char *file, *plain;

    CHECK((file = (char *)slurp(path, n)));
    if (!packed)
        return file;
    ZSTD_inBuffer in = { file, *n, 0 };
    ZSTD_outBuffer out = { malloc(64 << 20), 64 << 20, 0 };
    ZSTD_DCtx *z = ZSTD_createDCtx();
    size_t rc = 1;

    while (in.pos < in.size && !ZSTD_isError(rc))
        rc = ZSTD_decompressStream(z, &out, &in);
    CHECK_EQ(rc, 0);
    ZSTD_freeDCtx(z);
    free(file);
    *n = out.pos;
    plain = out.dst;
    return plain;
}

static void round_trip(int level, int64_t full, int64_t n)
{
    struct manifest_shard line = { 0 };
    uint16_t *tok = write_shard(level, full, n, &line);
    const char *name = level ? "x_train_000007.bin.zst" : "x_train_000007.bin";
    struct shard_want want = {
        .vocab = 1000, .bos = 5, .threads = 3, .expect = n, .frames = line.frames
    };
    struct shard *s;
    int64_t documents = 0, begin, end, at = -1, tokens;
    size_t bytes;
    char *plain, hash[33];
    int wrong = 0;

    CHECK_STR(line.name, name);
    CHECK_EQ(line.tokens, n);
    CHECK_OK(shard_check_header(scratch(name), &tokens));
    CHECK_EQ(tokens, n);
    plain = plain_file(scratch(name), level > 0, &bytes);
    CHECK_EQ(bytes, 1024 + 2 * n);
    CHECK(!memcmp(plain + 1024, tok, 2 * (size_t)n));
    CHECK_EQ(((int32_t *)(void *)plain)[2], n);
    xxh_hex_of(plain, bytes, hash);
    CHECK_STR(line.hash, hash);
    CHECK_EQ(strlen(line.frames), (2 * n + FRAME_BYTES - 1) / FRAME_BYTES * 33 - 1);
    for (size_t at = 1024, k = 0; at < bytes; at += FRAME_BYTES, k += 33) {
        xxh_hex_of(plain + at, bytes - at < FRAME_BYTES ? bytes - at : FRAME_BYTES, hash);
        CHECK(!memcmp(line.frames + k, hash, 32));
    }
    free(plain);

    /* Documents as they stand, and cut at a limit. */
    if (!CHECK_OK(shard_open(&s, scratch(name), &want)))
        return;
    for (;; documents++) {
        int64_t next;

        CHECK_OK(shard_document(s, documents, 300, &begin, &end));
        if (begin < 0)
            break;
        for (at++; at < begin; at++)
            wrong += tok[at] == 5; /* none is left out */
        wrong += tok[begin] != 5;
        for (next = begin + 1; next < n && tok[next] != 5; next++)
            ;
        wrong += end != (next < begin + 300 ? next : begin + 300);
    }
    CHECK_EQ(wrong, 0);
    CHECK_OK(shard_wait(s, n));
    CHECK(!memcmp(shard_tokens(s), tok, 2 * (size_t)n));
    for (int64_t i = 0, k = 0; i <= n; i++) {
        if (i == n)
            CHECK_EQ(documents, k);
        else
            k += tok[i] == 5;
    }
    shard_close(s);

    /* A part from the front is enough for who wants no more. */
    want.limit = n / 3 + 1;
    CHECK_OK(shard_open(&s, scratch(name), &want));
    CHECK_OK(shard_wait(s, n));
    CHECK_EQ(shard_size(s), n / 3 + 1 < n ? n / 3 + 1 : n);
    CHECK(!memcmp(shard_tokens(s), tok, 2 * (size_t)shard_size(s)));
    shard_close(s);
    free(line.name);
    free(line.frames);
    free(tok);
}

/* Whatever bit of a .bin changes: it is noticed before a token of its frame is given out, by who
 * reads to there, from the front or from a document on; 20 places and the ends of frames. */
static void test_changed_bit(void)
{
    enum { TOKENS = 3 * FRAME_TOKENS / 2 };
    struct manifest_shard line = { 0 };
    uint16_t *tok = write_shard(0, TOKENS, TOKENS, &line);
    const char *name = scratch("x_train_000007.bin"), *bad = scratch("changed.bin");
    struct rng r = rng_make(20, 4);
    char *file;
    size_t n;

    CHECK_OK(file_read(name, 0, &file, &n));
    for (uint64_t i = 0; i < 24; i++) {
        size_t ends[] = { 1024, 1023 + FRAME_BYTES, 1024 + FRAME_BYTES, n - 1 };
        size_t at = i < 4 ? ends[i] : 12 + rng_below(&r, i, n - 12);
        bool first = at < 1024 + FRAME_BYTES;

        file[at] ^= (char)(1 << i % 8);
        spill(bad, file, n);
        file[at] ^= (char)(1 << i % 8);
        for (int limit = 0; limit < 2; limit++) {
            struct shard_want want = { .vocab = 65536,
                                       .bos = 5,
                                       .expect = TOKENS,
                                       .limit = limit ? FRAME_TOKENS / 3 : 0,
                                       .frames = line.frames };
            struct shard *s;
            int rc;

            CHECK_OK(shard_open(&s, bad, &want));
            rc = shard_wait(s, TOKENS);
            if (first || !limit)
                CHECK_ERR(rc, GPT_INPUT,
                          at < 1024 ? "expected a zero"
                          : first   ? "frame 1"
                                    : "frame 2");
            else
                CHECK_OK(rc); /* its frame is not read */
            shard_close(s);
        }
        struct shard_want unchecked = { .vocab = 65536, .bos = 5, .expect = TOKENS };
        struct shard *s;

        CHECK_OK(shard_open(&s, bad, &unchecked));
        CHECK_OK(shard_wait(s, TOKENS));
        shard_close(s);
    }
    free(file);
    free(tok);
    free(line.name);
    free(line.frames);
}

/* Whatever byte of a compressed shard changes, it is noticed: by the table, a
 * frame's checksum, or the header's numbers. */
static void test_damage(void)
{
    struct manifest_shard line = { 0 };
    uint16_t *tok = write_shard(3, 30000, 30000, &line);
    struct shard_want want = { .vocab = 1000, .bos = 5 };
    const char *name = scratch("x_train_000007.bin.zst"), *bad = scratch("bad.bin.zst");
    char *file;
    size_t n;
    int missed = 0, tried = 0;

    CHECK((file = (char *)slurp(name, &n)));
    for (size_t i = 0; i < n; i += i < 20 || i + 60 > n ? 1 : 97) {
        struct shard *s = NULL;
        int rc;

        file[i] ^= 0x55;
        spill(bad, file, n);
        file[i] ^= 0x55;
        rc = shard_open(&s, bad, &want);
        if (!rc)
            rc = shard_wait(s, 30000);
        if (!rc)
            missed += memcmp(shard_tokens(s), tok, 60000) != 0;
        else
            CHECK_EQ(rc, GPT_INPUT);
        tried++;
        shard_close(s);
    }
    CHECK_EQ(missed, 0);
    CHECK(tried > 100);
    free(file);
    free(tok);
    free(line.name);
    free(line.frames);
}

/* --- the manifest --- */

static void fill_manifest(struct manifest *m)
{
    struct manifest_shard s = { .split = SPLIT_VAL,
                                .name = (char *)"a_val_000000.bin",
                                .bytes = 1034,
                                .tokens = 5,
                                .documents = 1,
                                .from = { 0, 0 },
                                .to = { 1, 0 },
                                .hash = "0123456789abcdef0123456789abcdef" };

    memset(m, 0, sizeof *m);
    m->tool = strdup("tool: with a colon");
    m->arguments = strdup("-o x");
    m->tokenizer = strdup("gpt2");
    m->vocabulary = strdup("ab");
    m->unicode = strdup("16.0.0");
    m->settings = strdup("a=b c=d");
    m->vocab_size = 50257;
    m->bos = 50256;
    CHECK_OK(manifest_add(m, &s));
    s.split = SPLIT_TRAIN;
    s.name = (char *)"a_train_000001.bin";
    s.invalid = 3;
    s.to.token = 77;
    for (int i = 0; i < 5; i++)
        CHECK_OK(manifest_add(m, &s));
    m->shard[3].frames = strdup("00112233445566778899aabbccddeeff");
    m->tokens = 30;
    m->documents = 6;
    m->invalid = 15;
    m->skipped = 4;
}

static void test_manifest(void)
{
    struct manifest m, r;
    char *text, *again, *p = scratch("MANIFEST");
    size_t n;
    int missed = 0;

    fill_manifest(&m);
    CHECK_OK(manifest_text(&m, &text));
    n = strlen(text);
    spill(p, text, n);
    CHECK_OK(manifest_read(&r, p));
    CHECK_EQ(r.n, 6);
    CHECK_STR(r.tool, "tool: with a colon");
    CHECK_EQ(r.shard[5].to.token, 77);
    CHECK_EQ(r.shard[0].split, SPLIT_VAL);
    CHECK_EQ(r.skipped, 4);
    CHECK_OK(manifest_text(&r, &again));
    CHECK_STR(again, text);
    CHECK_STR(r.shard[3].frames, m.shard[3].frames);
    CHECK(!r.shard[2].frames && !r.shard[4].frames);
    manifest_release(&r);
    free(again);
    for (size_t i = 0; i < n; i++) { /* any bit, any length */
        text[i] ^= 1;
        spill(p, text, n);
        missed += manifest_read(&r, p) != GPT_INPUT;
        text[i] ^= 1;
        spill(p, text, i);
        missed += manifest_read(&r, p) != GPT_INPUT;
    }
    CHECK_EQ(missed, 0);
    manifest_release(&m);
    free(text);
    CHECK_ERR(manifest_read(&r, scratch("none")), GPT_SYSTEM, "none");
}

int main(void)
{
    for (int level = 0; level < 5; level += 2) {
        round_trip(level, 3000000, 3000000); /* a full one */
        /* smaller ones: another header, another hash */
        round_trip(level, 3000000, FRAME_TOKENS);
        round_trip(level, 3000000, 1);
        round_trip(level, 3000000, 123457);
    }
    test_changed_bit();
    test_damage();
    test_manifest();
    return check_done();
}
