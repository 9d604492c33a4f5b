/* parsers_fuzz_test.c - damaged files of every kind that is read: each parser takes them or refuses
 * them with one message of a line, and reads no byte that is not there (make asan=1).
 *
 * A file of each kind, with one to four changes, FUZZ_ROUNDS (1000) times for each; FUZZ_SEED (1).
 * A hash at the end is made anew, so that the lines before it are reached. Recipes and run logs
 * have tests of their own (recipe_fuzz_test.c, runs_fuzz_test.c).
 */
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "base/rng.h"
#include "base/zio.h"
#include "check.h"
#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/st_header.h"
#include "coeffs/coeffs.h"
#include "data/corpus.h"
#include "data/manifest.h"
#include "data/shard_index.h"
#include "sample/prompts.h"
#include "scratch.h"
#include "tokenize/json_line.h"
#include "toy_vocab.h"

static struct rng rng;
static uint64_t drawn;
static size_t below(size_t n) { return n ? (size_t)rng_below(&rng, drawn++, n) : 0; }

/* --- changes --- */

static void change(unsigned char *s, size_t *n)
{
    static const char *const words[] = {
        "\"",   "\\ud800", "{",   "[",    "}",  "-1", "\n",
        " ",    "1e999",   "nan", "\xff", "\0", ":",  "18446744073709551616",
        "0x7f", "text"
    };
    size_t at = below(*n), k = 1 + below(16);

    k = k < *n - at ? k : *n - at;
    switch (below(5)) {
    case 0: s[at] ^= (unsigned char)(1 << below(8)); return;
    case 1: s[at] = (unsigned char)below(256); return;
    case 2: /* bytes lost */
        memmove(s + at, s + at + k, *n - at - k);
        *n -= k;
        return;
    case 3: *n = at; return;
    }
    const char *w = words[below(sizeof words / sizeof *words)];
    k = strlen(w) ? strlen(w) : 1;
    memmove(s + at + k, s + at, *n - at);
    memcpy(s + at, w, k);
    *n += k;
}

/* --- parsers: each gets n bytes, in a block of just that size where it reads memory --- */

static const char *spilt(const unsigned char *s, size_t n)
{
    char *path = scratch("damaged");
    spill(path, s, n);
    return path;
}

static int parse_json(unsigned char *s, size_t n)
{
    char *out = malloc(n + JSON_PAD), *in = calloc(1, n + JSON_PAD);
    size_t got;
    memcpy(in, s, n);
    struct json_line l = { .j = { .at = in, .end = in + n }, .begin = in, .field = "text" };
    int rc = json_line_begin(&l) && json_copy_string(&l.j, out, &got) && json_line_end(&l)
                 ? 0
                 : json_line_error(&l);
    free(out);
    free(in);
    return rc;
}

static struct vocab *bytes;

static int parse_prompts(unsigned char *s, size_t n)
{
    struct prompts p = { .vocab = bytes };
    int rc = prompts_read(&p, spilt(s, n), true, false);
    prompts_release(&p);
    return rc;
}

static int parse_tokenizer(unsigned char *s, size_t n)
{
    struct vocab *v;
    int rc = vocab_load(&v, spilt(s, n));
    vocab_free(v);
    return rc;
}

static int parse_header(unsigned char *s, size_t n)
{
    struct st_header h;
    int rc = st_header_parse(&h, "damaged", (char *)s, n);
    st_header_release(&h);
    return rc;
}

/* Appends the last line, key and hash of the text before it, in 64 bytes more. */
static size_t sign(char *text, size_t n, const char *key)
{
    char hash[33];
    size_t end = n;
    while (end && text[end - 1] != '\n') /* a line that was cut */
        end--;
    xxh_hex_of(text, end, hash);
    return end + (size_t)sprintf(text + end, "%s%s\n", key, hash);
}

static int parse_checkpoint(unsigned char *s, size_t n)
{
    struct ckpt_manifest m;
    char *text = calloc(1, n + 64);
    memcpy(text, s, n);
    int rc = ckpt_manifest_parse(&m, "damaged", text, sign(text, n, "end "));
    ckpt_manifest_release(&m);
    free(text);
    return rc;
}

static int parse_shards(unsigned char *s, size_t n)
{
    struct manifest m;
    char *text = calloc(1, n + 64);
    memcpy(text, s, n);
    int rc = manifest_read(&m, spilt((unsigned char *)text, sign(text, n, "manifest: ")));
    if (!rc)
        manifest_release(&m);
    free(text);
    return rc;
}

static int parse_shard(unsigned char *s, size_t n)
{
    int64_t tokens;
    return shard_check_header(spilt(s, n), &tokens);
}

static int parse_index(unsigned char *s, size_t n)
{
    struct shard_index x;
    int rc = shard_index_read(&x, spilt(s, n), 1000, NULL);
    shard_index_release(&x);
    return rc;
}

static int parse_table(unsigned char *s, size_t n)
{
    struct coeffs c;
    return coeffs_read(&c, spilt(s, n));
}

static int parse_stream(unsigned char *s, size_t n)
{
    struct zreader *z;
    char buf[1000];
    size_t got = 1;
    int rc = zreader_open(&z, spilt(s, n));
    if (rc)
        return rc;
    for (int i = 0; !rc && got && i < 10000; i++)
        rc = zreader_read(z, buf, sizeof buf, &got);
    zreader_close(z);
    return rc;
}

/* --- rounds --- */

static void fuzz(const char *what, int (*parse)(unsigned char *, size_t), const void *good,
                 size_t n)
{
    const char *rounds = getenv("FUZZ_ROUNDS");
    long refused = 0, most = rounds ? atol(rounds) : 1000;

    for (long i = 0; i <= most; i++) {
        unsigned char *room = malloc(n + 256), *s;
        size_t m = n;
        memcpy(room, good, n);
        for (size_t k = i ? 1 + below(4) : 0; k && m; k--)
            change(room, &m);
        s = malloc(m ? m : 1);
        memcpy(s, room, m);
        err_clear();
        int rc = parse(s, m);
        refused += rc != 0;
        if (!check_that(rc == 0 || (rc == GPT_INPUT && *err_message()), __FILE__, __LINE__,
                        "%s: round %ld: code %d, '%s'", what, i, rc, err_message()) ||
            !check_that(i || !rc, __FILE__, __LINE__, "%s: sound, but: %s", what, err_message()))
            i = most;
        free(s);
        free(room);
    }
    check_that(refused > most / 10, __FILE__, __LINE__, "%s: only %ld refused", what, refused);
}

static void fuzz_text(const char *what, int (*parse)(unsigned char *, size_t), const char *good)
{
    fuzz(what, parse, good, strlen(good));
}

static void fuzz_file(const char *what, int (*parse)(unsigned char *, size_t), const char *path)
{
    size_t n;
    unsigned char *s = slurp(path, &n);
    if (CHECK(s != NULL))
        fuzz(what, parse, s, n);
    free(s);
}

static void fuzz_stream(int level, const char *gzip)
{
    /* "abc" */
    static const unsigned char gz[] = { 0x1f, 0x8b, 8,    0,    0,    0, 0, 0,
                                        2,    0xff, 0x4b, 0x4c, 0x4a, 6, 0, 0xc2,
                                        0x41, 0x24, 0x35, 3,    0,    0, 0 };
    if (gzip) {
        fuzz(gzip, parse_stream, gz, sizeof gz);
        return;
    }
    char *path = strdup(scratch("stream"));
    FILE *f = fopen(path, "wb");
    struct zwriter *z;
    if (CHECK(f != NULL) && CHECK_OK(zwriter_new(&z, f, path, level))) {
        for (int i = 0; i < 300; i++)
            CHECK_OK(zwriter_write(z, &i, sizeof i));
        CHECK_OK(zwriter_finish(z));
        zwriter_free(z);
    }
    fclose(f);
    fuzz_file("zstd", parse_stream, path);
    free(path);
}

static void fuzz_manifests(void)
{
    static const char hash[] = "0123456789abcdef0123456789abcdef";
    struct manifest m = { .tool = "gpt-tokshard 0.1.0",
                          .arguments = "-o x",
                          .tokenizer = "bytes",
                          .vocabulary = "none",
                          .unicode = "16.0.0",
                          .settings = "format=auto",
                          .vocab_size = 257,
                          .bos = 256,
                          .tokens = 100 };
    struct manifest_shard line = { .name = "text_train_000001.bin",
                                   .split = SPLIT_TRAIN,
                                   .tokens = 100,
                                   .documents = 3,
                                   .bytes = 1224,
                                   .frames = (char *)"00112233445566778899aabbccddeeff" };
    struct ckpt_info info = { .step = 7,
                              .tokens = 70,
                              .ranks = 2,
                              .tool = "gpt-train 0.1.0",
                              .recipe = "[model]\n",
                              .state = (struct ckpt_kv[]){ { "loader.shard", "3" } },
                              .nstate = 1 };
    char *text, *end;
    size_t n;

    strcpy(line.hash, hash);
    if (CHECK_OK(manifest_add(&m, &line)) && CHECK_OK(manifest_text(&m, &text))) {
        end = strstr(text, "manifest: ");
        fuzz("shard MANIFEST", parse_shards, text, (size_t)(end - text));
        free(text);
    }
    free(m.shard->name);
    free(m.shard->frames);
    free(m.shard);
    char notes[] = "";
    if (CHECK_OK(ckpt_manifest_format(&info, hash, notes, "MANIFEST", &text, &n))) {
        end = memrchr(text, '\n', n - 1); /* before the line of the hash */
        fuzz("checkpoint MANIFEST", parse_checkpoint, text, (size_t)(end + 1 - text));
    }
    free(text);
}

int main(void)
{
    const char *seed = getenv("FUZZ_SEED"), *share = getenv("GPT_SHARE");
    static unsigned char shard[1024 + 100] = { 0 };
    static const uint32_t shard_head[] = { 20240520, 1, 50 },
                          index_head[] = { 20240520, 2, 3, 1000 };
    static const uint32_t starts[] = { 0, 10, 500 };
    char path[512];

    rng = rng_make(seed ? strtoull(seed, NULL, 10) : 1, 0);
    fuzz_text(
        "json", parse_json,
        "{\"id\": [1, -2.5e3, {\"x\": null, \"y\": true}], \"text\": \"a\\u00e9\\ud83d\\ude00\\n b\","
        " \"more\": false}");
    fuzz_text(
        "safetensors", parse_header,
        "{\"__metadata__\": {\"step\": \"12\"}, \"a\": {\"dtype\": \"F32\", \"shape\": [2, 3],"
        " \"data_offsets\": [0, 24]}}");
    if (CHECK_OK(vocab_bytes(&bytes)))
        fuzz_text("prompts", parse_prompts,
                  "{\"id\": 7, \"text\": \"a\\u00e9 \\ud800\", \"x\": [1]}\n\n"
                  "{\"continuation\": \"\\n b\", \"text\": \"\", \"id\": \"b\"}\n");
    vocab_free(bytes);
    draw_toy(1);
    char *toy_file = strdup(scratch("tokenizer.json"));
    CHECK(!put_vocab(toy_file, JSON_IDS));
    fuzz_file("tokenizer.json", parse_tokenizer, toy_file);
    free(toy_file);
    fuzz_manifests();
    memcpy(shard, shard_head, sizeof shard_head);
    fuzz("shard", parse_shard, shard, sizeof shard);
    memset(shard, 0, sizeof shard);
    memcpy(shard, index_head, sizeof index_head);
    memcpy(shard + 1024, starts, sizeof starts);
    fuzz("index", parse_index, shard, 1024 + sizeof starts);
    snprintf(path, sizeof path, "%s/coeffs/spectrum-5.coeffs", share ? share : "share");
    fuzz_file("table", parse_table, path);
    fuzz_stream(3, NULL);
    fuzz_stream(0, "gzip");
    return check_done();
}
