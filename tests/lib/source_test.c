/* source_test.c - documents of any length: what comes out in units is what one
 * call of bpe_encode makes of the whole, from files and from lines of .jsonl. */
#include <stdlib.h>

#include "base/rng.h"
#include "check.h"
#include "tokenize/bpe.h"
#include "tokenize/encode.h"
#include "scratch.h"

/* A vocabulary with merges of the bytes that the texts below repeat: as vocab.bpe,
 * where the space is U+0120, the line break U+010A, and so on. */
static void put_vocab(void)
{
    FILE *f = fopen(scratch("vocab"), "w");

    fputs("#version: 0.2\na a\naa aa\ns s\nss s\naaaa aaaa\n\xc4\xa0 \xc4\xa0\n"
          "\xc4\xa0\xc4\xa0 \xc4\xa0\xc4\xa0\n\xc4\xa0 a\nb a\na ba\n\xc3\xa6 \xc2\xbc\n"
          "\xc3\xa6\xc2\xbc \xc2\xa2\n- -\n-- --\n---- -\n",
          f);
    CHECK(!fclose(f));
}

/* --- texts --- */

#define MAX_TEXT (20u << 20)
static char *text;
static size_t length;

static void repeat(const char *piece, size_t n)
{
    size_t k = strlen(piece);

    while (n-- && length + k < MAX_TEXT) {
        memcpy(text + length, piece, k);
        length += k;
    }
}

/* Stretches of one kind, mostly short, some longer than a unit. */
static void random_stretches(uint64_t seed, size_t want)
{
    static const char *const piece[] = { "a",
                                         "ab",
                                         " ",
                                         "\n",
                                         "-",
                                         "'s",
                                         "'",
                                         "7",
                                         "\xe6\xbc\xa2",
                                         "\xc2\xa0",
                                         "\xff",
                                         " a",
                                         "\xf0\x9f\x98\x80",
                                         "\\",
                                         "\"",
                                         "\x01",
                                         "ba" };
    struct rng r = rng_make(seed, 8);
    uint64_t draw = 0;

    while (length < want) {
        const char *p = piece[rng_below(&r, draw++, sizeof piece / sizeof *piece)];
        uint64_t kind = rng_below(&r, draw++, 1000);

        repeat(p, kind < 2 ? rng_below(&r, draw++, 3000000) : rng_below(&r, draw++, 9));
    }
}

static const struct {
    const char *name;
    int kind;
} texts[] = {
    { "letters", 0 },
    { "spaces and a word", 1 },
    { "CJK without a space", 2 },
    { "a contraction and letters", 3 },
    { "dashes to the end of a unit", 4 },
    { "spaces only", 5 },
    { "a long line", 6 },
    { "mixed", 7 },
    { "mixed", 8 },
    { "mixed", 9 },
    { "short", 10 },
    { "empty", 11 },
    { "non-breaking spaces", 12 },
};

static void make_text(int kind)
{
    length = 0;
    switch (kind) {
    case 0: repeat("a", 3000001); break;
    case 1:
        repeat(" ", 2500000);
        repeat("word\n ", 3);
        repeat(" ", 1u << 20);
        repeat("x", 1);
        break;
    case 2: repeat("\xe6\xbc\xa2\xe5\xad\x97\xe3\x80\x82", 400000); break;
    case 3:
        repeat("x 's", 1);
        repeat("s", 2200000);
        repeat("'s", 5);
        break;
    case 4: repeat("-", 1u << 20); break;
    case 5: repeat("\n ", 1200000); break;
    case 6:
        repeat("words and words, ", 560000);
        repeat("a", 1500000);
        repeat("\"\\\n\x01", 9);
        break;
    case 10: repeat("it's short", 1); break;
    case 11: break;
    case 12:
        repeat("\xc2\xa0", 700000);
        repeat("a", 2);
        break;
    default: random_stretches((uint64_t)kind, 9000000);
    }
}

/* As one line between two others, with escapes of all kinds. */
static void put_line(const char *name)
{
    FILE *f = fopen(scratch(name), "wb");

    fputs("{\"text\":\"before\"}\n"
          "{\"skip\":[{\"text\":\"no\",\"n\":-1.5e3},\"\\u12ab\",null],\"text\" : \"",
          f);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c == '"' || c == '\\')
            fprintf(f, "\\%c", c);
        else if (c < 0x20)
            fprintf(f, c == '\n' ? "\\n" : "\\u%04x", c);
        else if (c == 0xf0 && i % 3 && length - i >= 4)
            fputs("\\ud83d\\uDE00", f), i += 3; /* the emoji of the texts */
        else if (c == 'a' && i % 50021 == 0)
            fputs("\\u0061", f);
        else
            fputc(c, f);
    }
    fputs("\", \"more\":{\"text\":\"no\"}}\n{\"text\":\"after\"}", f);
    CHECK(!fclose(f));
}

/* --- both ways --- */

struct result {
    uint16_t *token;
    size_t n;
    int documents, units, runs;
    int64_t skipped;
    char first_skipped[SKIPPED_MESSAGE];
};

static struct result read_units(const struct vocab *v, const char *path, bool skip_bad)
{
    struct source_config sc = { .path = &path, .paths = 1, .skip_bad = skip_bad };
    struct encode_config ec = {
        .vocab = v, .field = "text", .invalid = INVALID_BYTES, .skip_bad = skip_bad
    };
    struct result r = { .token = malloc(2 * (MAX_TEXT + 1000)) };
    struct encoder *e[2]; /* as threads would: runs to one, the rest to any */
    struct source *s;
    struct unit u = { 0 };
    int open = 0;

    CHECK_OK(encoder_new(&e[0], &ec));
    CHECK_OK(encoder_new(&e[1], &ec));
    CHECK_OK(source_open(&s, &sc));
    for (;; r.units++) {
        if (!CHECK_OK(source_next(s, &u)) || u.end)
            break;
        CHECK(u.n <= (2u << 20));
        if (!CHECK_OK(encode_unit(e[u.run ? 0 : 1], &u)))
            break;
        for (int d = 0; d < u.docs; d++) {
            CHECK_EQ(u.doc[d].begins, !open);
            open = !u.doc[d].ends;
            r.documents += u.doc[d].ends;
        }
        if (u.skipped && !r.skipped)
            memcpy(r.first_skipped, u.first_skipped, sizeof r.first_skipped);
        r.skipped += u.skipped;
        r.runs += u.run;
        memcpy(r.token + r.n, u.token, 2 * u.tokens);
        r.n += u.tokens;
    }
    CHECK_EQ(open, 0);
    CHECK_EQ(source_read_bytes(s) > 0 || !length, 1);
    source_close(s);
    unit_release(&u);
    encoder_free(e[0]);
    encoder_free(e[1]);
    return r;
}

static void one_text(const struct vocab *v, struct bpe *b, int i)
{
    uint16_t *want = malloc(2 * (MAX_TEXT + 100));
    size_t n;
    struct result r;

    make_text(texts[i].kind);
    CHECK_OK(bpe_reserve(b, length));
    memset(text + length, 'x', BPE_PAD);
    n = bpe_encode(b, text, length, false, want);

    spill(scratch("t.txt"), text, length);
    r = read_units(v, scratch("t.txt"), false);
    CHECK_EQ(r.documents, 1);
    CHECK_EQ(r.n, n + 1);
    CHECK_EQ(r.token[0], v->bos);
    CHECK(!memcmp(r.token + 1, want, 2 * n) ? 1 : !printf("text: %s\n", texts[i].name));
    CHECK(length < (2u << 20) || r.units > 1);
    CHECK(texts[i].kind > 1 || r.runs > 1);
    free(r.token);

    put_line("t.jsonl");
    for (int skip_bad = 0; skip_bad < 2; skip_bad++) {
        r = read_units(v, scratch("t.jsonl"), skip_bad);
        CHECK_EQ(r.documents, 3);
        CHECK_EQ(r.skipped, 0);
        /* No merge is in "before" and "after". */
        CHECK_EQ(r.n, 1 + 6 + 1 + n + 1 + 5);
        CHECK_EQ(r.token[7], v->bos);
        CHECK(!memcmp(r.token + 8, want, 2 * n) ? 1 : !printf("line: %s\n", texts[i].name));
        free(r.token);
    }
    free(want);
}

/* A line that is long but for its text, alone, so that nothing is left behind it. */
static void test_short_text_of_long_line(void)
{
    FILE *f = fopen(scratch("t.jsonl"), "wb");
    struct vocab *v;
    struct result r;

    fputs("{\"skip\":\"", f);
    for (int i = 0; i < 1000000; i++)
        fputs("abc", f);
    fputs("\",\"text\":\"x\"}", f);
    CHECK(!fclose(f));
    if (!CHECK_OK(vocab_bytes(&v)))
        return;
    r = read_units(v, scratch("t.jsonl"), false);
    CHECK_EQ(r.documents, 1);
    CHECK_EQ(r.n, 2);
    CHECK_EQ(r.token[1], 'x');
    free(r.token);
    vocab_free(v);
}

static void test_texts(void)
{
    struct vocab *v;
    struct bpe *b;

    put_vocab();
    if (!CHECK_OK(vocab_load(&v, scratch("vocab"))) || !CHECK_OK(bpe_new(&b, v)))
        return;
    for (int i = 0; i < (int)(sizeof texts / sizeof *texts); i++)
        one_text(v, b, i);
    bpe_free(b);
    vocab_free(v);
}

/* What is wrong in a line too long to be held is said as for a short one; with skip_bad the lines
 * around it are read. */
static void expect_bad(const char *before, const char *after, const char *part)
{
    struct source_config sc = { .paths = 1 };
    const char *path = scratch("bad.jsonl");
    FILE *f = fopen(path, "wb");
    struct vocab *v;
    struct result r;
    struct source *s;
    struct unit u = { 0 };
    int rc;

    fputs("{\"text\":\"x\"}\n", f);
    fputs(before, f);
    for (int i = 0; i < 1000000; i++)
        fputs("a long text ", f);
    fputs(after, f);
    fputs("\n{\"text\":\"y\"}", f);
    CHECK(!fclose(f));
    sc.path = &path;
    CHECK_OK(source_open(&s, &sc));
    do {
        u.end = false;
        rc = source_next(s, &u);
    } while (!rc && !u.end);
    CHECK_ERR(rc, GPT_INPUT, part);
    source_close(s);
    unit_release(&u);

    if (!CHECK_OK(vocab_bytes(&v)))
        return;
    r = read_units(v, path, true);
    CHECK_EQ(r.documents, 2);
    CHECK_EQ(r.n, 4);
    CHECK_EQ(r.token[1], 'x');
    CHECK_EQ(r.token[3], 'y');
    CHECK_EQ(r.skipped, 1);
    CHECK(strstr(r.first_skipped, "bad.jsonl: line 2: ") && strstr(r.first_skipped, part));
    free(r.token);
    vocab_free(v);
}

static void test_bad_lines(void)
{
    expect_bad("{\"text\":\"", "\"", "line 2: column 12000011: expected ',' or '}'");
    expect_bad("{\"text\":\"", "\n",
               "line 2: column 12000010: expected the closing '\"' of a string");
    expect_bad("{\"text\":\"", "\\q\"}", "line 2: column 12000010: expected one of \\\"");
    expect_bad("{\"text\":\"", "\\ud83d\\uzzzz\"}", "expected four hexadecimal digits");
    expect_bad("{\"text\":\"", "\"]", "expected ',' or '}'");
    expect_bad("{\"text\":\"", "\"} x", "expected the end of the line");
    expect_bad("{\"text\":\"", "\", \"b\": tru}", "expected a value");
    expect_bad("{\"text\":\"", "\",}", "expected a key in quotes");
    expect_bad("{\"txt\":\"", "\"}\n",
               "expected a field 'text', found none: --field NAME says which it is");
    expect_bad("{\"a\":\"", "\",\"text\":7}",
               "column 12000016: expected field 'text' to be a string");
    expect_bad("[\"", "\"]", "line 2: column 1: expected '{'");
    expect_bad("{\"a\":[\"", "\"},\"text\":\"\"}", "expected ',' or ']'");
}

int main(void)
{
    if (!(text = malloc(MAX_TEXT + BPE_PAD)))
        return 4;
    test_texts();
    test_short_text_of_long_line();
    test_bad_lines();
    free(text);
    return check_done();
}
