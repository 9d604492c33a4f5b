/* kind_test.c - files of every kind of content that people have, drawn at random: each comes out as the
 * documents that it holds, byte for byte, or is refused with a remedy.
 *
 * KINDS files (500), KINDS_SEED (1); of a file that fails the kind, its number and the seed are printed.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include "base/rng.h"
#include "check.h"
#include "data/corpus.h"
#include "scratch.h"
#include "tokenize/encode.h"

static struct rng rng;
static uint64_t drawn;
static size_t below(size_t n) { return (size_t)rng_below(&rng, drawn++, n); }

/* --- bytes that grow --- */

enum { ROOM = 4 << 20 };
struct bytes {
    unsigned char *s;
    size_t n;
};
static struct bytes file,
    want; /* of the file; of the documents, each behind its start, as uint16 */

static void put(struct bytes *b, const void *s, size_t n)
{
    if (b->n + n > ROOM) /* a text of at most 1 MiB, as uint16 */
        abort();
    memcpy(b->s + b->n, s, n);
    b->n += n;
}
static void puts_to(struct bytes *b, const char *s) { put(b, s, strlen(s)); }

static void want_token(unsigned id)
{
    uint16_t t = (uint16_t)id;
    put(&want, &t, 2);
}
static void want_bytes(const void *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        want_token(((const unsigned char *)s)[i]);
}
static void want_document(const void *s, size_t n)
{
    want_token(256);
    want_bytes(s, n);
}

/* --- pieces of content --- */

static const char *const words[] = { "the",
                                     "cat",
                                     "of",
                                     "Wien",
                                     "na\xc3\xafve",
                                     "\xe6\xbc\xa2\xe5\xad\x97",
                                     "42",
                                     "don't",
                                     "\xf0\x9f\x98\x80",
                                     "{x}",
                                     "a,b",
                                     "[1]",
                                     "e\xcc\x81",
                                     "\xd0\xbc\xd0\xb8\xd1\x80",
                                     "\"q\"",
                                     "\\n" };

/* Up to n words, apart by blanks and line ends `eol`. */
static void prose(struct bytes *b, size_t n, const char *eol)
{
    puts_to(b, "It is");
    for (size_t k = below(n); k; k--) {
        puts_to(b, below(8) ? " " : eol);
        puts_to(b, words[below(sizeof words / sizeof *words)]);
    }
}

/* A string of JSON. */
static void json_text(struct bytes *b, const struct bytes *text)
{
    char escape[8];
    put(b, "\"", 1);
    for (size_t i = 0; i < text->n; i++) {
        unsigned char c = text->s[i];
        if (c < 0x20 || (c == 'a' && !below(9)))
            put(b, escape, (size_t)sprintf(escape, "\\u%04x", c));
        else if (c == '"' || c == '\\')
            put(b, escape, (size_t)sprintf(escape, "\\%c", c));
        else
            put(b, &c, 1);
    }
    put(b, "\"", 1);
}

static struct bytes draft; /* a text before it is in a file */
static void new_text(size_t most)
{
    draft.n = 0;
    prose(&draft, most, "\n");
}

/* A line with the text in `field`, other fields about it, and the line's end. */
static void json_line(struct bytes *b, const char *field, size_t most, const char *eol)
{
    static const char *const before[] = { "", "\"id\": 7, ", "\"meta\": {\"text\": [1, \"x\"]}, ",
                                          "\"url\": \"a\\\"b\", \"x\": null, " };
    char key[64];
    new_text(most);
    puts_to(b, "{");
    puts_to(b, before[below(4)]);
    put(b, key, (size_t)sprintf(key, "\"%s\":%s", field, below(2) ? " " : ""));
    json_text(b, &draft);
    puts_to(b, below(2) ? "}" : ", \"score\": -1.5e3}");
    puts_to(b, eol);
    want_document(draft.s, draft.n);
}

static void json_lines(const char *field, const char *eol)
{
    for (size_t n = 1 + below(6); n; n--) {
        json_line(&file, field, 40, eol);
        if (!below(5))
            puts_to(&file, eol);
    }
}

static void noise(size_t n, unsigned low, unsigned count)
{
    for (; n; n--) {
        unsigned char c = (unsigned char)(low + below(count));
        put(&file, &c, 1);
    }
}

/* The file's text in units of `size` bytes, the low byte first or last; with or without a mark. */
static void widen(int size, bool little, bool mark)
{
    static unsigned char wide[ROOM];
    size_t n = 0;
    for (size_t i = mark ? 0 : 1; i <= file.n; i++) { /* 0: the mark */
        unsigned c = i ? file.s[i - 1] : 0xfeff;
        for (int k = 0; k < size; k++)
            wide[n++] = (unsigned char)(c >> 8 * (little ? k : size - 1 - k));
    }
    file.n = 0;
    put(&file, wide, n);
}

static void ascii(size_t most)
{
    puts_to(&file, "Plain letters");
    for (size_t k = 20 + below(most); k; k--)
        puts_to(&file, below(6) ? " word" : "\n");
}

static void compress_gzip(void)
{
    static unsigned char out[ROOM];
    z_stream z = {
        .next_in = file.s, .avail_in = (uInt)file.n, .next_out = out, .avail_out = ROOM
    };
    CHECK(deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END);
    size_t n = z.total_out;
    deflateEnd(&z);
    file.n = 0;
    put(&file, out, n);
}
static void compress_zstd(void)
{
    static unsigned char out[ROOM];
    size_t n = ZSTD_compress(out, ROOM, file.s, file.n, 3);
    CHECK(!ZSTD_isError(n));
    file.n = 0;
    put(&file, out, n);
}
static void compress_some(void) { below(2) ? compress_gzip() : compress_zstd(); }

/* --- the kinds: each fills `file`, and `want` where it is taken --- */

/* The file as it stands is one document. */
static void is_document(void) { want_document(file.s, file.n); }

static void text(void)
{
    prose(&file, 300, "\n");
    is_document();
}
static void text_marked(void)
{
    puts_to(&file, "\xef\xbb\xbf");
    text();
}
static void text_crlf(void)
{
    prose(&file, 300, "\r\n");
    is_document();
}
static void text_one_nul(void)
{
    prose(&file, 100, "\n");
    put(&file, "", 1);
    puts_to(&file, "end");
    is_document();
}
static void text_controls(void)
{
    puts_to(&file, "\033[1mbold\033[0m\f\v\b\a\x7f ");
    prose(&file, 50, "\r");
    want_document(file.s, file.n);
}
static void text_brace(void)
{
    static const char *const first[] = {
        "{{Infobox\n|a=b}}\n",     "{\\bf TeX} ", "{ int x; }\n", "{}\n{ x\n",
        "{\"text\": is no JSON\n", "{'a': 1}\n"
    };
    puts_to(&file, first[below(6)]);
    text();
}
static void text_bracket(void)
{
    static const char *const first[] = { "[Chapter 1]\n", "[1] A note. ", "[section]\na = 1\n",
                                         "[ ] to do ",    "[\"x\", y]\n", "[[Link]] " };
    puts_to(&file, first[below(6)]);
    text();
}
static void text_magic_word(void)
{
    static const char *const first[] = { "ORC hordes ", "ID3 tags ", "PAR1 of ",     "GIF8 is ",
                                         "GGUF: ",      "LZIP or ",  "BZh1 and ",    "7z and ",
                                         "OggS, ",      "AAAAftyp ", "RIFFabcdWAVE " };
    puts_to(&file, first[below(11)]);
    text();
}
static void text_empty(void) { is_document(); }
static void text_byte(void)
{
    noise(1, 'a', 26);
    is_document();
}
static void text_one_line(void)
{
    for (size_t k = 20000 + below(90000); k; k--)
        puts_to(&file, "xy ");
    is_document();
}
static void text_html(void)
{
    puts_to(&file, "<!DOCTYPE html>\n<html><body>\n");
    text();
}
static void text_of_commas(void)
{
    puts_to(&file, "id,text\n1,\"a, b\"\n");
    text();
}
static void text_packed(void)
{
    text();
    compress_some();
}
static void text_latin1(void) /* few characters of it are replaced */
{
    puts_to(&file, "Un caf");
    want_document(file.s, file.n);
    puts_to(&file, "\xe9");
    want_bytes("\xef\xbf\xbd", 3);
    size_t at = file.n;
    prose(&file, 200, "\n");
    want_bytes(file.s + at, file.n - at);
}

static void lines(void) { json_lines("text", "\n"); }
static void lines_crlf(void) { json_lines("text", "\r\n"); }
static void lines_marked(void)
{
    static const char *const blanks[] = { "\n", " \r\n\t", "  ", "" };
    puts_to(&file, below(3) ? "\xef\xbb\xbf" : "");
    puts_to(&file, blanks[below(4)]);
    lines();
}
static void lines_packed(void)
{
    lines();
    compress_some();
}
static void lines_long(void)
{
    json_line(&file, "text", 60000, "\n");
    lines();
}
static void lines_no_end(void) { json_line(&file, "text", 90, ""); }

static void magic(const char *bytes, size_t n)
{
    put(&file, bytes, n);
    noise(below(400), 0, 256);
}
#define MAGIC(name, bytes) \
    static void name(void) { magic(bytes, sizeof bytes - 1); }
MAGIC(xz, "\xfd"
          "7zXZ\0\0\4")
MAGIC(lz4, "\x04\x22\x4d\x18\x64\x40")
MAGIC(zip, "PK\3\4\x14\0\0\0\x08\0")
MAGIC(seven, "7z\xbc\xaf\x27\x1c\0\4")
MAGIC(parquet, "PAR1\x15\4\x15\0\0")
MAGIC(elf, "\x7f"
           "ELF\2\1\1\0")
MAGIC(png, "\x89PNG\r\n\x1a\n")
MAGIC(jpeg, "\xff\xd8\xff\xe0")
MAGIC(mp3, "ID3\3\0\0\0\0")
MAGIC(sqlite, "SQLite format 3\0\x10\0")
MAGIC(office, "\xd0\xcf\x11\xe0\xa1\xb1")
static void bzip2(void)
{
    puts_to(&file, below(9) ? "BZh91AY&SY" : "BZh9\x17\x72\x45\x38\x50\x90");
    noise(50, 0, 256);
}
static void pdf(void)
{
    puts_to(&file, "%PDF-1.4\n");
    ascii(100);
}
static void tar(void)
{
    prose(&file, 20, " ");
    memset(file.s + file.n, 'x', 300);
    file.n = 257;
    puts_to(&file, "ustar");
    noise(255, 32, 90);
}
static void tar_packed(void)
{
    tar();
    compress_some();
}
static void packed_twice(void)
{
    text();
    compress_some();
    compress_some();
}
static void wide_marked(void)
{
    ascii(300);
    widen(2, below(2), true);
}
static void wide_16(void)
{
    ascii(300);
    widen(2, below(2), false);
}
static void wide_32(void)
{
    ascii(300);
    widen(4, below(2), below(2));
}
static void other_encoding(void) { noise(100 + below(5000), 0xc0, 0x40); }
static void binary(void) { noise(4000 + below(90000), 0, 256); }
static void array(void)
{
    puts_to(&file, below(2) ? "[" : " \n[\n  ");
    json_line(&file, "text", 9000, ",\n");
    json_line(&file, "text", 9, "]");
}
static void arrays(void) { puts_to(&file, "[\"a\", 1]\n[\"b\", 2]\n"); }
static void object(void)
{
    puts_to(&file, "{\n  \"text\": ");
    new_text(30000);
    json_text(&file, &draft);
    puts_to(&file, ",\n  \"n\": [1, 2]\n}\n");
}
static void other_field(void) { json_lines("content", "\n"); }
static void half_lines(void)
{
    json_line(&file, "text", 9, "\n");
    puts_to(&file, "and prose\n");
}
static void lines_of_nan(void)
{
    puts_to(&file, "{\"text\": NaN}\n");
    lines();
}
static void table(void)
{
    puts_to(&file, "id,text\n1,a\n");
    ascii(50);
}
static void shard(void)
{
    int32_t header[256] = { SHARD_MAGIC, SHARD_VERSION, 1 };
    put(&file, header, sizeof header);
    put(&file, "a", 2);
}

static const struct kind_of_file {
    const char *what, *names; /* one of them is drawn */
    void (*make)(void);
    const char *remedy; /* NULL: it is taken */
} kinds[] = {
    { "text", "a.txt a.md a README a.json", text, NULL },
    { "text with a mark", "a.txt", text_marked, NULL },
    { "text with CR LF", "a.txt a", text_crlf, NULL },
    { "one NUL", "a.txt", text_one_nul, NULL },
    { "control characters", "a.txt", text_controls, NULL },
    { "begins with a brace", "a.txt a.tex", text_brace, NULL },
    { "begins with a bracket", "a.txt a.ini", text_bracket, NULL },
    { "begins as a magic number", "a.txt", text_magic_word, NULL },
    { "empty", "a.txt", text_empty, NULL },
    { "one byte", "a.txt", text_byte, NULL },
    { "one line", "a.txt", text_one_line, NULL },
    { "HTML", "a.html", text_html, NULL },
    { "commas, by no name", "a.txt", text_of_commas, NULL },
    { "compressed text", "a.txt.gz a.zst a", text_packed, NULL },
    { "a little Latin-1", "a.txt", text_latin1, NULL },
    { "JSON lines", "a.jsonl a.json a.jl a.JSONL a.ndjson a a.txt", lines, NULL },
    { "JSON lines with CR LF", "a.jsonl a.json", lines_crlf, NULL },
    { "JSON lines behind a mark and blanks", "a.jsonl a.json a", lines_marked, NULL },
    { "compressed JSON lines", "a.json.gz a.jsonl.zst a", lines_packed, NULL },
    { "a long JSON line", "a.json a.jsonl", lines_long, NULL },
    { "a JSON line without an end", "a.json a.jsonl", lines_no_end, NULL },
    { "xz", "a.txt.xz a.jsonl.xz a.jsonl", xz, "'xz -dc " },
    { "bzip2", "a.bz2 a.txt", bzip2, "'bzip2 -dc " },
    { "lz4", "a.lz4", lz4, "'lz4 -dc " },
    { "zip", "a.zip a.docx", zip, "'unzip " },
    { "7z", "a.7z", seven, "'7z x " },
    { "tar", "a.tar a", tar, "tar -xf " },
    { "compressed tar", "a.tar.gz a.tgz", tar_packed, "tar -xf " },
    { "compressed twice", "a.txt.gz", packed_twice, "', or zstd, decompresses it once" },
    { "parquet", "a.parquet a", parquet, "'duckdb -c " },
    { "SQLite", "a.db", sqlite, "'sqlite3 " },
    { "ELF", "a.txt a", elf, "leave it out" },
    { "PNG", "a.png a.txt", png, "leave it out" },
    { "JPEG", "a.jpg", jpeg, "leave it out" },
    { "MP3", "a.mp3", mp3, "leave it out" },
    { "an Office document", "a.doc", office, "'catdoc " },
    { "PDF", "a.pdf a.txt", pdf, "'pdftotext " },
    { "UTF-16 with a mark", "a.txt a.jsonl", wide_marked, "'iconv -f UTF-16 " },
    { "UTF-16 without", "a.txt a.csv", wide_16, "'iconv -f UTF-16" },
    { "UTF-32", "a.txt", wide_32, "'iconv -f UTF-32" },
    { "another encoding", "a.txt", other_encoding, "'iconv -f ENCODING" },
    { "bytes", "a.txt a.bin", binary, "NUL bytes in the first" },
    { "a JSON array", "a.json a.jsonl a", array, "'jq -c '.[]' " },
    { "JSON arrays", "a.json a.txt", arrays, "'jq -c '.[]' " },
    { "a JSON object", "a.json a", object, "'jq -c . " },
    { "JSON lines without the field", "a.json a", other_field, "--field NAME" },
    { "a JSON line and text", "a.json a", half_lines, "--format jsonl or --format text" },
    { "JSON lines behind one that is none", "a.json a", lines_of_nan,
      "--format jsonl or --format text" },
    { "a table", "a.csv a.tsv a.CSV.gz", table, "csv.DictReader" },
    { "a shard", "a.bin a.txt", shard, "gpt-train -d trains on it" },
};

/* --- one file --- */

static uint16_t found[ROOM];

/* Reads all documents; *n: tokens. */
static int read_all(const struct vocab *v, const char *path, size_t *n)
{
    struct source_config sc = { .path = &path, .paths = 1, .utf8 = true };
    struct encode_config ec = { .vocab = v, .field = "text" };
    struct encoder *e = NULL;
    struct source *s = NULL;
    struct unit u = { 0 };
    int rc = encoder_new(&e, &ec);

    *n = 0;
    if (!rc)
        rc = source_open(&s, &sc);
    while (!rc && !(rc = source_next(s, &u)) && !u.end && !(rc = encode_unit(e, &u))) {
        memcpy(found + *n, u.token, 2 * u.tokens);
        *n += u.tokens;
    }
    source_close(s);
    unit_release(&u);
    encoder_free(e);
    return rc;
}

static const char *draw_name(const char *names)
{
    static char name[32];
    size_t n = 1;
    for (const char *p = names; *p; p++)
        n += *p == ' ';
    for (n = below(n); n; n--)
        names = strchr(names, ' ') + 1;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(names, " "), names);
    return name;
}

static bool one_file(const struct vocab *v, const struct kind_of_file *k)
{
    char *path = scratch(draw_name(k->names));
    bool good;
    size_t n;

    file.n = want.n = 0;
    k->make();
    spill(path, file.s, file.n);
    int rc = read_all(v, path, &n);
    if (k->remedy)
        good = CHECK_EQ(rc, GPT_INPUT) && CHECK(strstr(err_message(), k->remedy) != NULL) &&
               CHECK(!strncmp(err_message(), path, strlen(path)) && !strchr(err_message(), '\n'));
    else
        good = CHECK_EQ(rc, 0) && CHECK_EQ(2 * n, want.n) && CHECK(!memcmp(found, want.s, want.n));
    if (!good)
        printf("%s: %s\n", path, rc ? err_message() : "taken");
    unlink(path);
    return good;
}

int main(void)
{
    const char *count = getenv("KINDS"), *seed = getenv("KINDS_SEED");
    long n = count ? atol(count) : 500, many = sizeof kinds / sizeof *kinds;
    unsigned long first = seed ? strtoul(seed, NULL, 10) : 1;
    struct vocab *v;

    file.s = malloc(ROOM), want.s = malloc(2 * ROOM), draft.s = malloc(ROOM);
    if (!file.s || !want.s || !draft.s || !CHECK_OK(vocab_bytes(&v)))
        return check_done();
    for (long i = 0; i < n; i++) {
        const struct kind_of_file *k = &kinds[i % many];
        rng = rng_make(first, (uint64_t)i);
        drawn = 0;
        if (!one_file(v, k))
            printf("KINDS_SEED=%lu: file %ld, %s\n", first, i, k->what);
    }
    vocab_free(v);
    free(file.s), free(want.s), free(draft.s);
    return check_done();
}
