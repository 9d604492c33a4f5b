/* bpe_test.c - the tokenizer against tiktoken's tokens (tests/golden/bpe-units.tsv,
 * made by tests/cmd/tiktoken.mjs), and against the definition written out naively
 * here: a pre-tokeniser that follows the regular expression character by
 * character, and each merge in its turn applied to the whole pre-token.
 *
 * The naive comparison runs with merges drawn at random, so it needs no
 * vocabulary; what needs GPT-2's is left out where its file is not. */
#include <stdlib.h>
#if !__has_include(<utf8proc.h>)
#error "missing package: libutf8proc-dev; 'make deps' installs it"
#endif
#include <utf8proc.h>

#include "base/file.h"
#include "base/file.h"
#include "base/rng.h"
#include "check.h"
#include "tokenize/bpe.h"
#include "base/json.h"
#include "tokenize/pretoken.h"
#include "tokenize/unicode.h"
#include "scratch.h"
#include "toy_vocab.h"

/* --- the definition --- */

struct chars {
    struct {
        uint32_t c;
        int class;
        size_t at;
    } v[1 << 16];
    int n;
};

static void to_chars(const char *s, size_t n, struct chars *k)
{
    k->n = 0;
    for (size_t at = 0; at < n;) {
        uint32_t c = 0xdc00;
        int len = utf8_decode((const unsigned char *)s + at, n - at, &c);

        k->v[k->n].at = at;
        k->v[k->n].c = c;
        k->v[k->n++].class = len ? (int)unicode_class(c) : CLASS_OTHER;
        at += len ? (size_t)len : 1;
    }
    k->v[k->n].at = n;
    k->v[k->n].c = 0;
    k->v[k->n].class = -1; /* the end is of no class */
}

static int run_of(const struct chars *k, int i, int class)
{
    int n = 0;

    while (k->v[i + n].class == class)
        n++;
    return n;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ at i. */
static int match(const struct chars *k, int i)
{
    static const char *const contraction[] = { "s", "t", "re", "ve", "m", "ll", "d" };
    int n, sp;

    for (int c = 0; c < 7 && k->v[i].c == '\''; c++) {
        for (n = 0; contraction[c][n] && k->v[i + 1 + n].c == (uint32_t)contraction[c][n]; n++)
            ;
        if (!contraction[c][n])
            return 1 + n;
    }
    for (int class = CLASS_LETTER; class != CLASS_SPACE;
         class = class == CLASS_LETTER   ? CLASS_NUMBER
                 : class == CLASS_NUMBER ? CLASS_OTHER
                                         : CLASS_SPACE) {
        sp = k->v[i].c == ' ' && k->v[i].class == CLASS_SPACE;
        if ((n = run_of(k, i + sp, class)))
            return sp + n;
    }
    n = run_of(k, i, CLASS_SPACE);
    return n > 1 && i + n < k->n ? n - 1 : n;
}

/* --- comparisons --- */

/* Random runs of letters in pieces, with a window so small that much is given
 * out before the end, against the whole. Returns how many came out wrong. */
static int runs_in_pieces(struct bpe *b, struct rng *r, uint64_t *draw)
{
    static const char *const letters[] = { "aabst", "a\xc3\xa9\xe4\xb8" };
    static uint8_t text[6000];
    static uint16_t want[6000], found[6000 + BPE_SLACK];
    struct bpe_run run = { .b = b, .window = 700 };
    int wrong = 0;

    for (int i = 0; i < 60; i++) {
        size_t n = rng_below(r, (*draw)++, sizeof text), m, k = 0, early = 0, got;
        size_t period = 1 + rng_below(r, (*draw)++, i % 2 ? 7 : sizeof text);

        for (size_t at = 0; at < n; at++)
            text[at] = at < period ? (uint8_t)letters[i % 3 == 0][rng_below(r, (*draw)++, 5)]
                                   : text[at - period];
        m = toy_encode(text, n, want);
        for (size_t at = 0, piece; at < n; at += piece) {
            piece = 1 + rng_below(r, (*draw)++, 900);
            piece = piece < n - at ? piece : n - at;
            CHECK_OK(bpe_run_add(&run, text + at, piece, found + k, &got));
            early = k += got;
        }
        bpe_run_end(&run, found + k, &got);
        k += got;
        wrong += m != k || memcmp(want, found, m * sizeof *want);
        wrong += n > 3000 && early < m / 4; /* or nothing was shown */
    }
    bpe_run_release(&run);
    return wrong;
}

/* bpe_encode over text with the padding that it asks for. */
static size_t encode(struct bpe *b, const char *s, size_t n, bool more, uint16_t *out)
{
    char *p = malloc(n + BPE_PAD);
    size_t m;

    memcpy(p, s, n);
    memset(p + n, 'x', BPE_PAD); /* what stands behind must not matter */
    m = bpe_encode(b, p, n, more, out);
    free(p);
    return m;
}

static size_t naive_encode(const char *s, size_t n, uint16_t *out)
{
    static struct chars k;
    size_t m = 0;

    to_chars(s, n, &k);
    for (int i = 0, len; i < k.n; i += len) {
        len = match(&k, i);
        m += toy_encode((const uint8_t *)s + k.v[i].at, k.v[i + len].at - k.v[i].at, out + m);
    }
    return m;
}

/* A run of letters of several bytes, some of which are in tokens together. */
static size_t random_word(struct rng *r, uint64_t *draw, char *s, size_t max)
{
    static const char *const letter[] = {
        "a",
        "b",
        "\xc3\xa9",
        "\xd0\xbe",
        "\xd0\xb2",
        "\xe4\xb8\xad",
        "\xe3\x83\xbc",
        "\xe3\x83\x88",
        "\xe3\x82\xb9",
        "\xe6\x96\x87",
    };
    size_t n = 0;

    for (size_t k, times = rng_below(r, (*draw)++, 60); times; times--, n += k) {
        const char *p = letter[rng_below(r, (*draw)++, sizeof letter / sizeof *letter)];

        k = strlen(p);
        if (n + k > max)
            break;
        memcpy(s + n, p, k);
    }
    return n;
}

/* Words, numbers, spaces of all kinds, apostrophes and broken bytes, in runs. */
static size_t random_text(struct rng *r, uint64_t *draw, char *s, size_t max)
{
    static const char *const piece[] = {
        "a",
        "b",
        "ab",
        "s",
        "t",
        "'s",
        "'t",
        "'re",
        "'ll",
        "'",
        "1",
        "22",
        ".",
        "...",
        "!?",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\xc2\xa0",
        "\xc3\xa9",
        "\xe2\x80\xa8",
        "\xe3\x80\x80",
        "\xe4\xb8\xad",
        "\xf0\x9f\x98\x80",
        "\xc2\xb2",
        "\xd9\xa1",
        "\xff",
        "\xc3",
        "\xe2\x80",
        "\xed\xa0\x80",
        "\x1c",
        "\xe2\x80\x8d",
        "'sa",
        "'v",
        "'ve ",
        "aaaaaaaa",
        "abababab",
        "\xe1\x9a\x80",
        "\xf4\x90\x80\x80",
        "", /* "" is the byte 0 */
    };
    size_t n = 0, want = rng_below(r, (*draw)++, max);

    while (n < want) {
        const char *p = piece[rng_below(r, (*draw)++, sizeof piece / sizeof *piece)];
        size_t k = *p ? strlen(p) : 1, times = 1;

        if (rng_below(r, (*draw)++, 8) == 0)
            times = rng_below(r, (*draw)++, 90);
        if (rng_below(r, (*draw)++, 16) == 0)
            n += random_word(r, draw, s + n, max - n);
        for (; times && n + k <= max; times--, n += k)
            memcpy(s + n, p, k);
    }
    return n;
}

static void test_random(void)
{
    static char text[4096];
    static uint16_t want[4096], found[4096 + BPE_SLACK];

    for (uint64_t seed = 0; seed < 6; seed++) {
        struct rng r = rng_make(seed, 2);
        struct vocab *v;
        struct bpe *b;
        uint64_t draw = 0;
        int wrong = 0, cuts = 0;

        draw_toy(seed);
        CHECK(!put_vocab(scratch("toy"), RANKS));
        if (!CHECK_OK(vocab_load(&v, scratch("toy"))) || !CHECK_OK(bpe_new(&b, v)))
            return;
        CHECK_EQ(v->tokens, toys);
        CHECK(toys > 400);
        for (int i = 0; i < 1000; i++) {
            size_t n = random_text(&r, &draw, text, i % 10 ? 200 : sizeof text), m, k, cut;
            bool more;

            m = naive_encode(text, n, want);
            k = encode(b, text, n, false, found);
            wrong += m != k || memcmp(want, found, m * sizeof *want);
            /* Cut where it may be cut, the halves give the same. */
            for (size_t end = n; (cut = pretoken_cut(text, end, &more)); end = cut) {
                k = encode(b, text, cut, more, found);
                k += encode(b, text + cut, n - cut, false, found + k);
                wrong += m != k || memcmp(want, found, m * sizeof *want);
                if (cuts++ % 4)
                    break;
            }
        }
        CHECK_EQ(wrong, 0);
        CHECK(cuts > 500);
        CHECK_EQ(runs_in_pieces(b, &r, &draw), 0);
        bpe_free(b);
        vocab_free(v);
    }
}

/* The four files of one vocabulary are one vocabulary. */
static void test_forms(void)
{
    struct vocab *v[FORMS];

    draw_toy(99);
    for (int form = 0; form < FORMS; form++) {
        CHECK(!put_vocab(scratch("toy"), (enum form)form));
        if (!CHECK_OK(vocab_load(&v[form], scratch("toy"))))
            return;
        CHECK_EQ(v[form]->tokens, toys);
        CHECK_STR(v[form]->sha256, v[0]->sha256);
        CHECK_STR(v[form]->name, "other");
        for (int k = 0; k < toys; k++) {
            size_t n;

            CHECK(!memcmp(vocab_token(v[form], k, &n), toy[k].bytes, (size_t)toy[k].n));
            CHECK_EQ(n, toy[k].n);
            if (k >= 256)
                CHECK_EQ(v[form]->split[k], (uint32_t)toy[k].left << 16 | (uint32_t)toy[k].right);
        }
    }
    for (int form = 0; form < FORMS; form++)
        vocab_free(v[form]);
}

/* Ids that a tokenizer.json gives are those of the ranks, in place of these; special tokens, one of which
 * is spelt as text is, come from no text. */
static void test_ids(void)
{
    static char text[4096], back[sizeof text];
    static uint16_t want[4096], found[4096 + BPE_SLACK];
    struct rng r = rng_make(7, 2);
    struct vocab *v, *ranks;
    struct bpe *b;
    uint64_t draw = 0;
    int wrong = 0;

    draw_toy(7);
    CHECK(!put_vocab(scratch("toy"), JSON_STRINGS));
    if (!CHECK_OK(vocab_load(&ranks, scratch("toy"))))
        return;
    CHECK(!put_vocab(scratch("toy"), JSON_IDS));
    if (!CHECK_OK(vocab_load(&v, scratch("toy"))) || !CHECK_OK(bpe_new(&b, v)))
        return;
    CHECK_EQ(v->tokens, toys);
    CHECK_EQ(v->bos, 1);
    CHECK_EQ(v->size, toys + 3);
    CHECK(strcmp(v->sha256, ranks->sha256));
    for (int i = 0; i < 1000; i++) {
        size_t n = random_text(&r, &draw, text, i % 10 ? 200 : sizeof text), m, k;

        m = naive_encode(text, n, want);
        for (size_t t = 0; t < m; t++)
            want[t] = (uint16_t)toy_id(JSON_IDS, want[t]);
        k = encode(b, text, n, false, found);
        wrong += m != k || memcmp(want, found, m * sizeof *want);
        wrong += bpe_decode(v, found, k, back, sizeof back) != n || memcmp(text, back, n);
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(bpe_decode(v, (const uint16_t[]){ 0, 1, 2, (uint16_t)v->size, 0xffff }, 5, back, 9),
             0);
    struct bpe_run run = { .b = b, .window = 700 };
    size_t m, k = 0, got;
    for (size_t i = 0; i < 4000; i++)
        text[i] = "aabst"[rng_below(&r, draw++, 5)];
    m = toy_encode((uint8_t *)text, 4000, want);
    for (size_t at = 0; at < 4000; at += 500, k += got)
        CHECK_OK(bpe_run_add(&run, text + at, 500, found + k, &got));
    CHECK(k > 0);
    bpe_run_end(&run, found + k, &got);
    CHECK_EQ(k + got, m);
    for (size_t t = 0; t < m; t++)
        wrong += found[t] != toy_id(JSON_IDS, want[t]);
    CHECK_EQ(wrong, 0);
    bpe_run_release(&run);
    bpe_free(b);
    vocab_free(v);
    vocab_free(ranks);
}

static void expect_bad(const char *text, const char *part)
{
    struct vocab *v;

    spill(scratch("bad"), text, strlen(text));
    CHECK_ERR(vocab_load(&v, scratch("bad")), GPT_INPUT, part);
}

static void test_bad_vocab(void)
{
    expect_bad("", "expected a tiktoken rank file");
    expect_bad("IQ== 0\nIg== 2\n", "line 2: expected rank 1, found 2");
    expect_bad("IQ== 0\nI*== 1\n", "line 2: expected base64, found 'I*=='");
    expect_bad("IQ== 0\nIg==\n", "line 2: expected 'base64 rank'");
    expect_bad("IQ== 0\n", "expected at least 256 tokens, found 1");
    expect_bad("#version: 0.2\na b\na\n", "line 3: expected 'left right'");
    expect_bad("#version: 0.2\na \xe4\xb8\xad\n",
               "line 2: expected characters of GPT-2's byte alphabet");
    expect_bad("#version: 0.2\nab c\n", "token 256: expected the merge of two tokens");
    expect_bad("#version: 0.2\na b\na b\n", "token 257: expected the merge of two tokens");
    expect_bad("{\"model\": {\"vocab\": {}}}", "expected model.vocab and model.merges");
    expect_bad("{\"model\": {\"vocab\": {}}}\n{", "line 2: expected the end of the file");
    expect_bad("{\"model\": {\"merges\": [\n\"a b\",\n\"a \xe4\xb8\xad\"]}}",
               "line 3: expected characters of GPT-2's byte alphabet");
    expect_bad("{\"!\": 0, \"\\\"\": 1}",
               "expected merges beside a vocabulary, as in tokenizer.json or "
               "merges.txt, found ids alone, as in vocab.json");
    expect_bad("{\"model\": {\n\"vocab\" 3", "line 2: expected ':'");
}

/* A sound tokenizer.json with `from` once replaced by `to`. */
static void expect_bad_field(const char *whole, const char *from, const char *to, const char *part)
{
    const char *at = strstr(whole, from);
    size_t n = at ? (size_t)(at - whole) : 0;
    char *text = malloc(strlen(whole) + strlen(to) + 1);

    if (CHECK(at != NULL)) {
        sprintf(text, "%.*s%s%s", (int)n, whole, to, at + strlen(from));
        expect_bad(text, part);
    }
    free(text);
}

static void test_bad_fields(void)
{
    static const struct {
        const char *from, *to, *part;
    } cases[] = {
        { "\"truncation\": null", "\"truncation\": {\"max_length\": 512}",
          "truncation: expected null" },
        { "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}",
          "normalizer: expected null, found {\"type\": \"NFC\"}" },
        { "\"add_prefix_space\": false", "\"add_prefix_space\": true",
          "pre_tokenizer.add_prefix_space: expected false, found true" },
        { "\"add_prefix_space\": false, ", "",
          "pre_tokenizer.add_prefix_space: expected false, found none" },
        { "\"trim_offsets\": true", "\"use_regex\": false",
          "pre_tokenizer.use_regex: expected true, found false" },
        { "\"type\": \"ByteLevel\"", "\"type\": \"Metaspace\"",
          "pre_tokenizer: expected ByteLevel" },
        { "\"pre_tokenizer\": {", "\"decoder\": {",
          "pre_tokenizer: expected ByteLevel, found none" },
        { "\"trim_offsets\": true", "\"spaces\": 1",
          "pre_tokenizer.spaces: expected no such field" },
        { "\"post_processor\": null", "\"post_processor\": {\"type\": \"BertProcessing\"}",
          "post_processor: expected null or ByteLevel" },
        { "\"dropout\": null", "\"dropout\": 0.1",
          "model.dropout: expected null|0|0.0, found 0.1" },
        { "\"dropout\": null", "\"end_of_word_suffix\": \"</w>\"",
          "model.end_of_word_suffix: expected" },
        { "\"dropout\": null", "\"continuing_subword_prefix\": \"##\"",
          "model.continuing_subword_prefix" },
        { "\"dropout\": null", "\"byte_fallback\": true",
          "model.byte_fallback: expected null|false" },
        { "\"type\": \"BPE\"", "\"type\": \"Unigram\"",
          "model.type: expected \"BPE\", found \"Unigram\"" },
        { "\"special\": true", "\"special\": false",
          "added_tokens.special: expected true, found false" },
        { "\"id\": 0", "\"id\": 3", "added_tokens: '<pad>': expected an id of its own, found 3" },
        { "\"id\": 0", "\"id\": 70000", "expected at most 65,535 tokens" },
        { "<|endoftext|>\":1", "<|endoftext|>\":2",
          "'<|endoftext|>': expected the id of added_tokens, 1" },
        { "<|endoftext|>", "<|eot|>", "special token, found '<|endoftext|>'" },
        { "<|endoftext|>\":1", "qqqqq\":1",
          "model.vocab: expected a byte, what a merge makes or a special" },
        { "\"!\":", "\"<pad>\":", "'<pad>': expected the id of added_tokens, 0" },
        { ",\"\\\"\":", ",\"!\":", "model.vocab: '!': expected an id of its own" },
    };
    char *whole = NULL;
    size_t n;
    struct vocab *v;

    draw_toy(7);
    CHECK(!put_vocab(scratch("toy"), JSON_IDS));
    if (!CHECK_OK(file_read(scratch("toy"), 0, &whole, &n)))
        return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_bad_field(whole, cases[i].from, cases[i].to, cases[i].part);
    /* The pattern apart from the bytes, as GPT-4's successors write it, with GPT-2's. */
    static const char steps[] =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
        "\"'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|"
        "\\\\s+\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}]}";
    static const char one[] =
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true}";
    char *at = strstr(whole, one), *text = malloc(n + sizeof steps);
    if (CHECK(at != NULL)) {
        sprintf(text, "%.*s%s%s", (int)(at - whole), whole, steps, at + strlen(one));
        spill(scratch("bad"), text, strlen(text));
        CHECK_OK(vocab_load(&v, scratch("bad")));
        vocab_free(v);
        expect_bad_field(text, "\\\\p{N}+", "\\\\p{N}{1,3}",
                         "pretokenizers.pattern: expected GPT-2's");
        expect_bad_field(text, "Isolated", "Removed", "behavior: expected \"Isolated\"");
    }
    free(text);
    for (char *p = whole; (p = strstr(p, "<|endoftext|>"));)
        memcpy(p, "<|something|>", 13);
    expect_bad(
        whole,
        "added_tokens: expected one that starts documents, as '<|endoftext|>', or one alone, "
        "found 3, the first '<pad>'");
    free(whole);
}

/* --- classes, UTF-8 --- */

/* Against utf8proc, for code points that its older Unicode has assigned. A few
 * changed class since: none of these between 14 and 16 but what is listed. */
static void test_classes(void)
{
    int n[4] = { 0 }, differ = 0;

    unicode_init();
    for (uint32_t c = 0; c < 0x110000; c++) {
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
        int class = unicode_class(c),
            theirs = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO   ? CLASS_LETTER
                     : k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO ? CLASS_NUMBER
                                                                              : CLASS_OTHER;

        n[class]++;
        if (class != CLASS_SPACE && k != UTF8PROC_CATEGORY_CN)
            differ += class != theirs;
    }
    CHECK_EQ(differ, 0);
    CHECK_EQ(n[CLASS_SPACE], 25);
    CHECK_EQ(n[CLASS_LETTER], 141028); /* counted in DerivedGeneralCategory-16.0.0.txt */
    CHECK_EQ(n[CLASS_NUMBER], 1911);
}

static void test_utf8(void)
{
    int bad = 0;

    for (uint32_t c = 0; c < 0x110000; c++) {
        utf8proc_uint8_t s[4];
        uint32_t d = 0;
        int k = (int)utf8proc_encode_char((utf8proc_int32_t)c, s);

        if (c >> 11 == 0x1b) {
            bad += k > 0 && utf8_decode(s, (size_t)k, &d);
            continue;
        }
        bad += utf8_decode(s, (size_t)k, &d) != k || d != c;
        for (int cut = 1; cut < k; cut++)
            bad += utf8_decode(s, (size_t)cut, &d) != 0 || utf8_bad_length(s, (size_t)cut) != cut;
    }
    CHECK_EQ(bad, 0);
    /* The table of Unicode 16, 3.9, "U+FFFD substitution of maximal subparts". */
    const unsigned char s[] = "\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41";
    CHECK_EQ(utf8_bad_length(s, 9), 2);
    CHECK_EQ(utf8_bad_length(s + 2, 7), 1);
    CHECK_EQ(utf8_bad_length(s + 3, 6), 3);
    CHECK_EQ(utf8_bad_length(s + 6, 3), 2);
    CHECK_EQ(utf8_valid_prefix("abcdefgh\xc3\xa9ijklmnop\xff", 19), 18);
}

/* --- GPT-2 --- */

static void test_units(const struct vocab *v, struct bpe *b)
{
    static char text[4096], back[4096];
    static uint16_t want[4096], found[4096 + BPE_SLACK];
    char *file, *next;
    size_t n;
    int lines = 0;

    if (!CHECK_OK(file_read("tests/golden/bpe-units.tsv", 0, &file, &n)))
        return;
    for (char *line = file; *line; line = next, lines++) {
        char *eol = strchr(line, '\n'), *p;
        struct json j = { .at = line, .end = eol };
        struct json_string s;
        size_t m = 0, len, k;

        next = eol + 1;
        CHECK(json_string(&j, &s) && *j.at == '\t');
        len = json_unescape(&s, text);
        for (p = (char *)j.at + 1; p < eol; p++)
            want[m++] = (uint16_t)strtol(p, &p, 10);
        k = encode(b, text, len, false, found);
        CHECK(k == m && !memcmp(want, found, m * sizeof *want)
                  ? 1
                  : !printf("%.*s\n", (int)(eol - line), line));
        CHECK_EQ(bpe_decode(v, found, k, back, sizeof back), len);
        CHECK(!memcmp(back, text, len));
    }
    CHECK_EQ(lines, 28);
    free(file);
}

/* GPT-2's merges as the toy's would need a table of 50,000: here the rank of each
 * pair is looked up instead, lowest and leftmost first. */
static size_t lowest_first(const struct vocab *v, const char *s, size_t n, uint16_t *out)
{
    static struct chars k;
    size_t m = 0;

    to_chars(s, n, &k);
    for (int i = 0, len; i < k.n; i += len) {
        size_t first = m;

        len = match(&k, i);
        for (size_t at = k.v[i].at; at < k.v[i + len].at; at++)
            out[m++] = v->byte_id[(uint8_t)s[at]];
        for (;;) {
            uint32_t best = TOKEN_NONE;
            size_t at = 0;

            for (size_t j = first; j + 1 < m; j++)
                if (vocab_merge(v, out[j], out[j + 1]) < best) {
                    best = vocab_merge(v, out[j], out[j + 1]);
                    at = j;
                }
            if (best == TOKEN_NONE)
                break;
            out[at] = (uint16_t)best;
            memmove(out + at + 1, out + at + 2, (m - at - 2) * sizeof *out);
            m--;
        }
    }
    return m;
}

static void test_gpt2(void)
{
    static char text[4096];
    static uint16_t want[4096], found[4096 + BPE_SLACK];
    struct rng r = rng_make(11, 2);
    struct vocab *v;
    struct bpe *b;
    char *path;
    uint64_t draw = 0;
    int wrong = 0;

    if (vocab_find(&path)) {
        printf("GPT-2's vocabulary is not here (make vocab): its tokens are not tested\n");
        return;
    }
    if (!CHECK_OK(vocab_load(&v, path)) || !CHECK_OK(bpe_new(&b, v)))
        return;
    CHECK_STR(v->name, "gpt2");
    CHECK_STR(v->sha256, GPT2_SHA256);
    CHECK_EQ(v->size, 50257);
    CHECK_EQ(v->bos, 50256);
    CHECK_EQ(v->byte_id[' '], 220);
    CHECK_EQ(v->byte_id['\n'], 198);
    test_units(v, b);
    for (int i = 0; i < 2000; i++) {
        size_t n = random_text(&r, &draw, text, 400), m = lowest_first(v, text, n, want);
        size_t k = encode(b, text, n, false, found);

        wrong += m != k || memcmp(want, found, m * sizeof *want);
    }
    CHECK_EQ(wrong, 0);
    /* Every token is what BPE makes of its bytes, in a pre-token of its own. */
    for (int id = 0; id < v->tokens; id++) {
        size_t n;
        const uint8_t *s = vocab_token(v, id, &n);

        CHECK(id < 256 ||
              !bpe_may_follow(v, vocab_left(v, (uint32_t)id), vocab_right(v, (uint32_t)id)));
        CHECK(n <= TOKEN_MAX_BYTES && n > 0 && s);
    }
    bpe_free(b);
    vocab_free(v);
    free(path);
}

int main(void)
{
    test_classes();
    test_utf8();
    test_forms();
    test_ids();
    test_bad_vocab();
    test_bad_fields();
    test_random();
    test_gpt2();
    return check_done();
}
