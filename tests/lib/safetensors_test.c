/* safetensors: each rule of the format has a file that breaks it, with its own
 * message; files are cut everywhere, and the parser is fed noise. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/rng.h"
#include "base/zio.h"
#include "check.h"
#include "scratch.h"
#include "checkpoint/safetensors.h"

/* A file of header text and n bytes of data; size says what its first 8 bytes say. */
static void make(const char *path, uint64_t size, const char *text, size_t text_n, size_t data_n)
{
    size_t n = 8 + text_n + data_n;
    unsigned char *b = calloc(1, n);
    for (int i = 0; i < 8; i++)
        b[i] = (unsigned char)(size >> 8 * i);
    memcpy(b + 8, text, text_n);
    for (size_t i = 0; i < data_n; i++)
        b[8 + text_n + i] = (unsigned char)(i * 7 + 1);
    spill(path, b, n);
    free(b);
}

/* Opens and reads every byte of every tensor. */
static int read_all(const char *path)
{
    struct st_reader *r;
    const struct st_tensor *t;
    unsigned char buf[4096];
    int rc = st_open(&r, path);
    if (rc)
        return rc;
    while (!rc && (t = st_next(r)))
        for (uint64_t at = 0; !rc && at < t->bytes; at += sizeof buf) {
            size_t n = t->bytes - at < sizeof buf ? (size_t)(t->bytes - at) : sizeof buf;
            rc = st_read(r, t, at, buf, n);
        }
    if (!rc)
        rc = st_finish(r);
    st_close(r);
    return rc;
}

static void compress(const char *from, const char *to)
{
    char *data;
    size_t n;
    struct zwriter *z;
    CHECK((data = (char *)slurp(from, &n)));
    FILE *f = fopen(to, "w");
    CHECK_OK(zwriter_new(&z, f, to, 1));
    CHECK_OK(zwriter_write(z, data, n));
    CHECK_OK(zwriter_finish(z));
    zwriter_free(z);
    fclose(f);
    free(data);
}

/* --- a file for each rule --- */

#define T(name, type, shape, a, b) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" a "," b "]}"
#define X T("x", "F32", "[2]", "0", "8")

static const struct {
    const char *text;
    int data;
    const char *message;
} broken[] = {
    /* JSON that starts with { and ends with it */
    { "", 0, "offset 8: header: expected '{' as the first byte, found its end" },
    { " {}", 0, "offset 8: header: expected '{' as the first byte, found byte 0x20" },
    { "[]", 0, "expected '{' as the first byte, found '['" },
    { "{", 0, "expected a key in quotes, found its end" },
    { "{" X "} x", 8, "nothing but blanks after the last '}', found 'x'" },
    { "{" X "}}", 8, "nothing but blanks after the last '}'" },
    { "{" X ",}", 8, "expected a key in quotes, found '}'" },
    { "{" X " " X "}", 8, "expected ',' or '}', found '\"'" },
    { "{x:1}", 0, "expected a key in quotes, found 'x'" },
    { "{\"x\"=1}", 0, "expected ':', found '='" },
    { "{\"x\":1}", 0, "expected '{', found '1'" },
    /* UTF-8, strings */
    { "{\"a\xff\":{}}", 0, "expected UTF-8, found byte 0xff" },
    { "{\"\xc0\xaf\":{}}", 0, "expected UTF-8, found byte 0xc0" }, /* overlong '/' */
    { "{\"\xed\xa0\x80\":{}}", 0, "expected UTF-8, found byte 0xed" }, /* a surrogate */
    { "{\"\xf4\x90\x80\x80\":{}}", 0, "expected UTF-8, found byte 0xf4" }, /* above 10FFFF */
    { "{\"\xe2\x82\":{}}", 0, "expected UTF-8, found byte 0xe2" },
    { "{\"a\tb\":{}}", 0, "no control character in a string, found byte 0x09" },
    { "{\"a\\qb\":{}}", 0, "offset 11: header: expected one of \\\" " },
    { "{\"\\u12g4\":{}}", 0, "four hexadecimal digits after \\u, found '\\u12g4'" },
    { "{\"\\ud800x\":{}}", 0, "expected a pair of surrogates, found '\\ud800'" },
    { "{\"\\ud800xxxx\\u0041\":{}}", 0, "expected a pair of surrogates, found '\\ud800'" },
    { "{\"\\ud800\\n1234\":{}}", 0, "expected a pair of surrogates, found '\\ud800'" },
    { "{\"\\udc00\":{}}", 0, "expected a pair of surrogates" },
    { "{\"\\ud83d\\u0041\":{}}", 0, "expected a pair of surrogates" },
    { "{\"\\u0000\":{}}", 0, "expected no U+0000 in a string, found '\\u0000'" },
    { "{\"abc", 0, "expected the closing '\"' of a string, found its end" },
    { "{\"abc\\", 0, "offset 13: header: expected one of \\\" " },
    /* no key twice */
    { "{" X "," T("x", "F32", "[0]", "8", "8") "}", 8, "tensor 'x' comes twice" },
    { "{" X ",\"\\u0078\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]}}", 8,
      "tensor 'x' comes twice" }, /* \u0078 is x */
    { "{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
      "tensor 'x': field 'dtype' comes twice" },
    { "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}," X "}", 8, "__metadata__ key 'a' comes twice" },
    { "{\"__metadata__\":{},\"__metadata__\":{}," X "}", 8, "'__metadata__' comes twice" },
    { "{\"__metadata__\":null,\"__metadata__\":{}," X "}", 8, "'__metadata__' comes twice" },
    { "{\"__metadata__\":nil," X "}", 8, "found 'n'" },
    /* __metadata__ maps strings to strings */
    { "{\"__metadata__\":{\"a\":1}," X "}", 8, "maps strings to strings), found '1'" },
    { "{\"__metadata__\":{\"a\":{}}," X "}", 8, "maps strings to strings), found '{'" },
    { "{\"__metadata__\":[]," X "}", 8, "expected '{', found '['" },
    { "{\"__metadata__\":{1:\"a\"}," X "}", 8, "expected a key in quotes, found '1'" },
    /* what a tensor says */
    { "{\"x\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "tensor 'x': has no 'dtype'" },
    { "{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "tensor 'x': has no 'shape'" },
    { "{\"x\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "tensor 'x': has no 'data_offsets'" },
    { "{\"x\":{}}", 0, "tensor 'x': has no 'dtype'" },
    { "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"y\":z}}", 8,
      "expected a value, found 'z'" },
    { "{" T("x", "F31", "[2]", "0", "8") "}", 8, "tensor 'x': unknown dtype 'F31'" },
    { "{" T("x", "f32", "[2]", "0", "8") "}", 8, "tensor 'x': unknown dtype 'f32'" },
    { "{" T("x", "F32", "[-2]", "0", "8") "}", 8, "expected a whole number, found '-'" },
    { "{" T("x", "F32", "[2.0]", "0", "8") "}", 8, "expected ',' or ']', found '.'" },
    { "{" T("x", "F32", "[2e0]", "0", "8") "}", 8, "expected ',' or ']', found 'e'" },
    { "{" T("x", "F32", "[02]", "0", "8") "}", 8, "expected a whole number, found '0'" },
    { "{" T("x", "F32", "[\"2\"]", "0", "8") "}", 8, "expected a whole number, found '\"'" },
    { "{" T("x", "F32", "[18446744073709551616]", "0", "8") "}", 8, "a whole number below 2^64" },
    { "{" T("x", "F32", "[4294967296,4294967296]", "0", "8") "}", 8, "2^64 - 1 elements" },
    { "{" T("x", "F32", "[9223372036854775808]", "0", "8") "}", 8, "2^64 - 1 bits" },
    { "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}", 8,
      "expected 2 numbers, found 1" },
    { "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4,8]}}", 8,
      "expected 2 numbers, found 3" },
    { "{" T("x", "F32", "[2]", "8", "0") "}", 8, "[8,0]: the end lies before the begin" },
    /* end - begin = product(shape) * bits / 8 */
    { "{" T("x", "F32", "[2]", "0", "7") "}", 7, "F32 take 8 bytes, data_offsets hold 7" },
    { "{" T("x", "F32", "[2]", "0", "12") "}", 12, "take 8 bytes, data_offsets hold 12" },
    { "{" T("x", "F32", "[]", "0", "8") "}", 8, "1 elements of F32 take 4 bytes" },
    { "{" T("x", "F32", "[0]", "0", "4") "}", 4, "0 elements of F32 take 0 bytes" },
    { "{" T("x", "F4", "[3]", "0", "1") "}", 1, "3 elements of F4 are no whole number of bytes" },
    /* contiguous from 0: no hole, no overlap */
    { "{" T("x", "F32", "[2]", "4", "12") "}", 12,
      "'x' begins at 4 of the data, expected 0: a hole" },
    { "{" X "," T("y", "U8", "[2]", "9", "11") "}", 11,
      "'y' begins at 9 of the data, expected 8: a hole" },
    { "{" X "," T("y", "U8", "[2]", "7", "9") "}", 9,
      "'y' begins at 7 of the data, expected 8: an overlap" },
    { "{" X "," T("y", "F32", "[2]", "0", "8") "}", 8,
      "'y' begins at 0 of the data, expected 8: an overlap" },
    { "{" X "," T("y", "U8", "[0]", "5", "5") "}", 8,
      "'y' begins at 5 of the data, expected 8: an overlap" },
    /* the file ends with the data */
    { "{" X "}", 7, "data section: expected 8 bytes, found 7" },
    { "{" X "}", 9, "data section: expected 8 bytes, found 9" },
    { "{}", 1, "data section: expected 0 bytes, found 1" },
};

static void test_rules(void)
{
    char *path = scratch("broken.safetensors"), *zst = scratch("broken.safetensors.zst");
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        size_t n = strlen(broken[i].text);
        make(path, n, broken[i].text, n, (size_t)broken[i].data);
        CHECK_ERR(read_all(path), GPT_INPUT, broken[i].message);
        CHECK(strstr(err_message(), path));
        compress(path, zst); /* refused as a stream, too */
        CHECK_EQ(read_all(zst), GPT_INPUT);
    }
    make(path, 100000001, "{}", 2, 0);
    CHECK_ERR(read_all(path), GPT_INPUT, "offset 0: header size: expected at most 100000000");
    make(path, UINT64_MAX, "{}", 2, 0);
    CHECK_ERR(read_all(path), GPT_INPUT, "found 18446744073709551615");
    make(path, 0x0000001404034b50, "{}", 2, 0); /* a zip begins so, and its version is 20 */
    CHECK_ERR(read_all(path), GPT_INPUT, "an .npz of NumPy, or another zip: expected safetensors");
    compress(path, zst);
    CHECK_ERR(read_all(zst), GPT_INPUT, "an .npz of NumPy, or another zip: expected safetensors");
    make(path, 0x04034b50, "{}", 2, 0); /* a header may have this size */
    CHECK_ERR(read_all(path), GPT_INPUT, "expected 67324752 bytes, found 2");
    make(path, 3, "{}", 2, 0);
    CHECK_ERR(read_all(path), GPT_INPUT, "the file ends in its header: expected 3 bytes, found 2");
    make(path, 1, "{}", 2, 0);
    CHECK_ERR(read_all(path), GPT_INPUT, "expected a key in quotes, found its end");
    spill(path, "\2\0\0\0", 4);
    CHECK_ERR(read_all(path), GPT_INPUT, "in its header size: expected 8 bytes, found 4");
    spill(path, "", 0);
    CHECK_ERR(read_all(path), GPT_INPUT, "expected 8 bytes, found 0");
    CHECK_ERR(read_all(scratch("none")), GPT_SYSTEM, "No such file or directory");
    CHECK_ERR(read_all(scratch("")), GPT_SYSTEM, "Is a directory");
}

/* What the rules allow. */
static void test_allowed(void)
{
    static const struct {
        const char *text;
        int data;
    } good[] = {
        { "{}", 0 },
        { "{ }   ", 0 },
        { "{\"__metadata__\":{}}", 0 },
        { "{\"__metadata__\":null}", 0 },
        { "{" X ",\"__metadata__\" : null }", 8 },
        { "{\"x\":{\"y\":\"z\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"q\":null}}",
          8 },
        { "{\"x\":{\"dtype\":\"F32\",\"q\":{\"block\":[1,{}]},\"shape\":[2],\"data_offsets\":[0,8]}}",
          8 },
        { "{\"__metadata__\":{\"a\":\"\\u00e9\\ud83d\\ude00\\n\"}," X "}", 8 },
        { "{\n\t\"x\" :{\"shape\" : [ 2 ] , \"data_offsets\":[0,8],\"dtype\":\"F32\" }\r\n} ", 8 },
        { "{" T("s", "F64", "[]", "0", "8") "}", 8 }, /* rank 0 */
        { "{" T("e", "F32", "[3,0,2]", "0", "0") "," X "}", 8 }, /* empty */
        { "{" T("e", "F32", "[0]", "8", "8") "," X "}", 8 },
        { "{" T("b", "U8", "[4]", "8", "12") "," X "}", 12 }, /* not in file order */
        { "{" T("f", "F4", "[4]", "0", "2") "}", 2 },
        { "{" T("\xc3\xa9", "BOOL", "[1]", "0", "1") "}", 1 },
    };
    char *path = scratch("good.safetensors"), *zst = scratch("good.safetensors.zst");
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        size_t n = strlen(good[i].text);
        make(path, n, good[i].text, n, (size_t)good[i].data);
        CHECK_OK(read_all(path));
        compress(path, zst);
        CHECK_OK(read_all(zst));
    }
    /* a header whose size reads like gzip's magic: 0x088b1f bytes, mostly blanks */
    size_t n = 0x088b1f;
    char *text = malloc(n);
    memset(text, ' ', n);
    memcpy(text, "{}", 2);
    make(path, n, text, n, 0);
    CHECK_OK(read_all(path));
    free(text);
    struct st_header h;
    const char *meta = "{\"__metadata__\":{\"k\":\"\\u00e9\\ud83d\\ude00\\\"\\/\\n\"}}";
    CHECK_OK(st_header_parse(&h, "text", meta, strlen(meta)));
    CHECK_STR(st_meta(&h, "k"), "\xc3\xa9\xf0\x9f\x98\x80\"/\n");
    CHECK(!st_meta(&h, "absent"));
    st_header_release(&h);
}

/* --- round trip --- */

enum { KINDS = 15 };
static const enum dtype kinds[KINDS] = { DT_F64, DT_I64, DT_U64,  DT_F32,  DT_I32,
                                         DT_U32, DT_F16, DT_BF16, DT_I16,  DT_U16,
                                         DT_I8,  DT_U8,  DT_BOOL, DT_E4M3, DT_E5M2 };

/* One tensor of each dtype, (k, 3), and a large one; written in uneven pieces. */
static int write_file(const char *path, int level, size_t piece)
{
    struct output o;
    struct st_writer *w;
    unsigned char data[6000];
    char name[16];
    size_t total = 0, at = 0;
    int rc = output_open(&o, path, true);
    if (rc || (rc = st_writer_new(&w, o.f, path, level)))
        return rc;
    for (int i = 0; i < KINDS; i++) {
        snprintf(name, sizeof name, "t\"%d\\", i);
        rc = rc ? rc : st_declare(w, name, kinds[i], 2, (uint64_t[]){ (uint64_t)i, 3 });
        total += dtype_size(kinds[i]) * (size_t)i * 3;
    }
    rc = rc ? rc : st_declare(w, "large", DT_U8, 1, (uint64_t[]){ 5000 });
    rc = rc ? rc : st_declare(w, "scalar", DT_U8, 0, NULL);
    rc = rc ? rc : st_note(w, "by", "test\n\x01");
    total += 5001;
    for (size_t i = 0; i < total; i++)
        data[i] = (unsigned char)(i * i % 251);
    for (; !rc && at < total; at += piece)
        rc = st_write(w, data + at, total - at < piece ? total - at : piece);
    rc = rc ? rc : st_writer_finish(w);
    st_writer_free(w);
    return rc ? rc : output_commit(&o);
}

static void check_file(const char *path)
{
    struct st_reader *r;
    unsigned char buf[5000];
    const struct st_tensor *t;
    size_t at = 0;
    int i = 0;
    CHECK_OK(st_open(&r, path));
    CHECK_EQ(st_header(r)->n, KINDS + 2);
    CHECK_EQ(st_header(r)->data_at % 8, 0);
    CHECK_STR(st_meta(st_header(r), "by"), "test\n\x01");
    for (; (t = st_next(r)); i++) {
        memset(buf, 0xee, sizeof buf);
        CHECK_OK(st_read(r, t, 0, buf, t->bytes));
        for (size_t k = 0; k < t->bytes; k++)
            if (buf[k] != (unsigned char)((at + k) * (at + k) % 251)) {
                CHECK(!"a byte differs");
                break;
            }
        at += t->bytes;
        if (i < KINDS) {
            CHECK_EQ(t->dtype, kinds[i]);
            CHECK_EQ(t->rank, 2);
            CHECK_EQ(t->shape[0], i);
            CHECK_EQ(t->elements, 3 * i);
        }
    }
    CHECK_EQ(at, st_header(r)->data_bytes);
    CHECK_OK(st_finish(r));
    t = st_find(st_header(r), "scalar");
    CHECK(t && t->rank == 0 && t->elements == 1);
    st_close(r);
}

static void test_round_trip(void)
{
    char *a = scratch("a.safetensors"), *b = scratch("b.safetensors.zst"), *x, *y;
    size_t n, m;
    for (size_t piece = 1; piece < 8000; piece = 3 * piece + 1) {
        CHECK_OK(write_file(a, 0, piece));
        check_file(a);
        CHECK_OK(write_file(b, 3, piece));
        check_file(b);
    }
    CHECK_OK(write_file(scratch("c"), 3, 9841));
    CHECK((x = (char *)slurp(b, &n)));
    CHECK((y = (char *)slurp(scratch("c"), &m)));
    CHECK(n == m && !memcmp(x, y, n));
    free(x);
    free(y);
}

static void test_writer(void)
{
    struct st_writer *w;
    FILE *f = fopen(scratch("w"), "w");
    CHECK_OK(st_writer_new(&w, f, "w", 0));
    CHECK_OK(st_declare(w, "a", DT_F32, 1, (uint64_t[]){ 3 }));
    CHECK_OK(st_write(w, "12345678", 8));
    CHECK_ERR(st_writer_finish(w), GPT_INPUT, "tensor 'a': 12 bytes declared, 8 given");
    st_writer_free(w);
    CHECK_OK(st_writer_new(&w, f, "w", 0));
    CHECK_OK(st_declare(w, "a", DT_F32, 1, (uint64_t[]){ 0 }));
    CHECK_OK(st_declare(w, "a", DT_F32, 1, (uint64_t[]){ 0 }));
    CHECK_ERR(st_writer_finish(w), GPT_INPUT, "tensor 'a' comes twice");
    st_writer_free(w);
    CHECK_OK(st_writer_new(&w, f, "w", 0));
    CHECK_OK(st_declare(w, "a\xff", DT_F32, 1, (uint64_t[]){ 0 }));
    CHECK_ERR(st_writer_finish(w), GPT_INPUT, "expected UTF-8");
    st_writer_free(w);
    CHECK_OK(st_writer_new(&w, f, "w", 0));
    CHECK_ERR(st_declare(w, "a", DT_F32, 2, (uint64_t[]){ 1ull << 62, 4 }), GPT_INPUT, "2^64 - 1");
    st_writer_free(w);
    fclose(f);
}

/* --- cut files, noise --- */

/* Cut at every byte of the header and at 1,000 places of the data. */
static void test_cut(void)
{
    struct rng r = rng_make(11, 3);
    char *whole, *path = scratch("cut.safetensors");
    size_t n, data_at;
    long taken = 0;
    for (int level = 0; level <= 1; level++) {
        CHECK_OK(write_file(scratch("whole"), level, 1000));
        CHECK((whole = (char *)slurp(scratch("whole"), &n)));
        data_at = level ? n / 4 : 8 + (unsigned char)whole[0] + 256u * (unsigned char)whole[1];
        for (size_t i = 0; i < data_at + 1000; i++) {
            size_t cut = i < data_at ? i : data_at + rng_below(&r, i, n - data_at);
            spill(path, whole, cut);
            taken += read_all(path) != GPT_INPUT;
        }
        free(whole);
    }
    CHECK_EQ(taken, 0);
}

/* Bytes of a good header changed, cut, repeated: no crash, and what is accepted
 * keeps the rules. */
static void test_noise(void)
{
    static const char seed[] = "{\"__metadata__\":{\"a\":\"\\u00e9\\ud83d\\ude00\",\"b\":\"\"}," T(
        "x", "F32", "[2,3]", "0", "24") "," T("y\xc3\xa9", "BF16", "[]", "24",
                                              "26") "," T("z", "U8", "[0,7]", "26", "26") "}  ";
    static const char letters[] = "{}[]\",:\\u0123456789eE.- \t\nF32data_offsetsshape\xff\x80\xc3";
    struct rng r = rng_make((uint64_t)getpid(), 5);
    uint64_t k = 0;
    long good = 0, bad = 0, odd = 0;
    for (int round = 0; round < 200000; round++) {
        char text[512];
        size_t n = sizeof seed - 1;
        memcpy(text, seed, n);
        for (uint64_t edits = 1 + rng_below(&r, k++, 3); edits > 0; edits--) {
            size_t at = rng_below(&r, k++, n), len = rng_below(&r, k++, 12);
            switch (rng_below(&r, k++, 4)) {
            case 0: text[at] = letters[rng_below(&r, k++, sizeof letters - 1)]; break;
            case 1: text[at] ^= (char)(1 << rng_below(&r, k++, 8)); break;
            case 2: /* cut a part out */
                len = len < n - at - 1 ? len : 0;
                memmove(text + at, text + at + len, n - at - len);
                n -= len;
                break;
            case 3: /* repeat a part */
                len = len < n - at && n + len <= sizeof text ? len : 0;
                memmove(text + at + len, text + at, n - at);
                n += len;
                break;
            }
        }
        char *exact = malloc(n); /* so that a read past it is seen */
        memcpy(exact, text, n);
        struct st_header h;
        int rc = st_header_parse(&h, "noise", exact, n);
        if (rc) {
            bad += rc == GPT_INPUT;
            odd += rc != GPT_INPUT;
        } else {
            uint64_t at = 0;
            for (size_t i = 0; i < h.n; i++) {
                odd += h.tensors[i].begin != at;
                at += h.tensors[i].bytes;
            }
            odd += at != h.data_bytes;
            good++;
            st_header_release(&h);
        }
        free(exact);
    }
    CHECK_EQ(odd, 0);
    CHECK(good > 1000 && bad > 1000);
}

/* Files that others wrote. */
static void test_golden(void)
{
    static const char *const names[] = { "r61-forward-small", "r61-optimizer-small" };
    int found = 0;
    for (int i = 0; i < 2; i++) {
        char path[256];
        snprintf(path, sizeof path, "tests/golden/%s.safetensors", names[i]);
        if (access(path, R_OK))
            continue;
        CHECK_OK(read_all(path));
        found++;
    }
    CHECK_EQ(found, 2);
}

int main(void)
{
    test_rules();
    test_allowed();
    test_round_trip();
    test_writer();
    test_cut();
    test_noise();
    test_golden();
    return check_done();
}
