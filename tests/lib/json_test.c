/* json_test.c - what RFC 8259 calls JSON is read, what it does not is refused at its place, and
 * brackets nest only so deep, also of text in pieces. What strings may hold is tried in
 * safetensors_test and source_test. */
#include "base/json.h"
#include "check.h"

/* Text that arrives in pieces of `each` bytes. */
struct pieces {
    const char *s;
    size_t n, each, before;
    char buf[2 * JSON_HELD + JSON_PAD];
};

static bool refill(struct json *j)
{
    struct pieces *p = j->arg;
    size_t left = (size_t)(j->end - j->at), most = 2 * JSON_HELD - left;
    size_t k = p->each < p->n ? p->each : p->n;
    if (!k)
        return false;
    if (!CHECK(most > 0))
        return false;
    k = k < most ? k : most;
    p->before += (size_t)(j->at - p->buf);
    memmove(p->buf, j->at, left);
    memcpy(p->buf + left, p->s, k);
    memset(p->buf + left + k, '"', sizeof p->buf - left - k); /* nothing goes by these */
    p->s += k;
    p->n -= k;
    j->at = p->buf;
    j->end = p->buf + left + k;
    return true;
}

static struct json in_pieces(struct pieces *p, const char *s, size_t n, size_t each)
{
    *p = (struct pieces){ .s = s, .n = n, .each = each };
    return (struct json){ .at = p->buf, .end = p->buf, .refill = refill, .arg = p };
}

/* The same value in pieces is read alike, and refused at the same place for the same reason. */
static void check_pieces(const char *s, size_t n, bool ok, size_t at, const char *bad)
{
    static struct pieces p;
    static const size_t each[] = { 1, 2, 3, 5, 11, 4000, 9000 };
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct json j = in_pieces(&p, s, n, each[i]);
        CHECK_EQ(json_skip(&j) && !json_more(&j), ok);
        CHECK_EQ(p.before + (size_t)(j.at - p.buf), at);
        CHECK(!j.bad == !bad && (!bad || !strcmp(j.bad, bad)));
    }
}

/* One value, from begin to end; *at is where it is wrong. */
static bool whole(const char *s, size_t n, size_t *at)
{
    char *exact = malloc(n + !n); /* so that a read past it is seen */
    memcpy(exact, s, n);
    struct json j = { .at = exact, .end = exact + n };
    bool ok = json_skip(&j) && !json_more(&j);
    CHECK_EQ(ok, !j.bad && j.at == j.end);
    *at = (size_t)(j.at - exact);
    check_pieces(exact, n, ok, *at, j.bad);
    free(exact);
    return ok;
}

static void test_values(void)
{
    static const char *const good[] = {
        "null",
        "true",
        "false",
        "\"\"",
        "[]",
        "{}",
        " [ ] ",
        "\t{\r\n}",
        "0",
        "-0",
        "7",
        "-10",
        "0.5",
        "-1.25",
        "1e5",
        "1E+05",
        "0e0",
        "10.01e-09",
        "[1,[2],{}]",
        "{\"a\":[],\"a\":{}}",
        "[\"[\",\"]\"]",
        "{\"{\":\"}\"}",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\uD800\"",
    };
    static const struct {
        const char *text;
        size_t at;
    } bad[] = {
        { "", 0 },          { " ", 1 },          { "nul", 0 },      { "truth", 0 },
        { "nullx", 4 },     { "NaN", 0 },        { "Infinity", 0 }, { "+1", 0 },
        { "-", 0 },         { "01", 0 },         { "-01", 0 },      { ".5", 0 },
        { "1.", 0 },        { "1.e5", 0 },       { "1e", 0 },       { "1e+", 0 },
        { "1.2.3", 3 },     { "1e5e5", 3 },      { "0x10", 1 },     { "1 2", 2 },
        { "[", 1 },         { "[1", 2 },         { "[1,", 3 },      { "[1,]", 3 },
        { "[,1]", 1 },      { "[1 2]", 3 },      { "[1}", 2 },      { "]", 0 },
        { "[]]", 2 },       { "{", 1 },          { "{1:2}", 1 },    { "{\"a\"}", 4 },
        { "{\"a\":}", 5 },  { "{\"a\":1,}", 7 }, { "{,}", 1 },      { "{\"a\":1]", 6 },
        { "{\"a\" 1}", 5 }, { "'a'", 0 },        { "\"a", 2 },      { "\"\n\"", 1 },
        { "\"\\x\"", 1 },   { "\"\\u12\"", 1 },  { "\"\\", 1 },     { "[[],[]", 6 },
        { "[[]1]", 3 },     { "/**/1", 0 },      { "\v1", 0 },
    };
    size_t at;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!CHECK(whole(good[i], strlen(good[i]), &at)))
            printf("refused: %s\n", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!whole(bad[i].text, strlen(bad[i].text), &at));
        if (!CHECK_EQ(at, bad[i].at))
            printf("in: %s\n", bad[i].text);
    }
    CHECK(!whole("{}\0", 3, &at)); /* a NUL is no end */
    CHECK(!whole("1\0", 2, &at));
    CHECK(!whole("\0", 1, &at));
}

/* A value in n brackets of both kinds in turn. */
static bool nested(int n)
{
    char *s = malloc((size_t)n * 6 + 1), *p = s;
    size_t at;
    for (int i = 0; i < n; i++)
        p = stpcpy(p, i % 2 ? "{\"\":" : "[");
    *p++ = '7';
    for (int i = n; i-- > 0;)
        *p++ = i % 2 ? '}' : ']';
    bool ok = whole(s, (size_t)(p - s), &at);
    free(s);
    return ok;
}

static void test_depth(void)
{
    CHECK(nested(1) && nested(2) && nested(JSON_DEPTH));
    CHECK(!nested(JSON_DEPTH + 1) && !nested(1000000));
    /* Side by side is not deep. */
    struct json j = { .at = "[[],[],{}]" };
    j.end = j.at + 10;
    j.depth = JSON_DEPTH - 2;
    CHECK(json_skip(&j));
    CHECK_EQ(j.depth, JSON_DEPTH - 2);
}

static void test_u64(void)
{
    static const struct {
        const char *text;
        bool ok;
        uint64_t x;
    } cases[] = {
        { "0", true, 0 },
        { " 10", true, 10 },
        { "18446744073709551615", true, UINT64_MAX },
        { "18446744073709551616", false, 0 },
        { "99999999999999999999999", false, 0 },
        { "-1", false, 0 },
        { "01", false, 0 },
        { "", false, 0 },
        { "x", false, 0 },
        { "\"1\"", false, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json j = { .at = cases[i].text, .end = cases[i].text + strlen(cases[i].text) };
        uint64_t x = 1;
        CHECK_EQ(json_u64(&j, &x), cases[i].ok);
        CHECK(!cases[i].ok || (x == cases[i].x && j.at == j.end));
    }
    struct json j = { .at = "[1.5]" }; /* what follows a number ends it */
    uint64_t x;
    j.end = j.at + 5;
    CHECK(json_open(&j, '[') && json_element(&j) && json_u64(&j, &x) && !json_element(&j));
    CHECK_STR(j.bad, "',' or ']'");
}

/* Text put out in parts, of text that arrives in pieces, against both at once. */
static void test_text(void)
{
    static const char text[] = "\"plain \\\"\\\\\\n \\u0041\\u00e9\\u20ac \\ud83d\\uDE00\\ud83d "
                               "\\ud83d\\u0041 a longer plain stretch of forty bytes and more\"";
    static struct pieces p;
    char want[sizeof text + JSON_PAD], out[sizeof text + 2 * JSON_PAD];
    size_t n, m, k;
    char *exact = calloc(1, sizeof text - 1 + JSON_PAD);
    memcpy(exact, text, sizeof text - 1);
    struct json j = { .at = exact, .end = exact + sizeof text - 1 };
    CHECK(json_copy_string(&j, want, &n) && j.at == j.end);
    CHECK(n > 70 && !memcmp(want, "plain \"\\\n A\u00e9\u20ac \U0001f600\xed\xa0\xbd", 24));
    for (size_t each = 1; each < 100; each++)
        for (size_t room = 4; room < 40; room++) {
            bool ended = false;
            j = in_pieces(&p, text, sizeof text - 1, each);
            CHECK(json_begin_text(&j));
            for (m = 0; !ended && !j.bad; m += k) {
                ended = json_text(&j, out + m, room < n - m ? room : n - m + 4, &k);
                CHECK(ended || k + 4 > (room < n - m ? room : n - m + 4));
            }
            CHECK(ended && m == n && !memcmp(out, want, n) && !json_more(&j));
        }
    free(exact);
}

/* In pieces a long string comes without its bytes, and a long number is refused. */
static void test_long(void)
{
    static struct pieces p;
    static char text[7 * JSON_HELD];
    struct json_string key;
    int n = 0;
    for (int length = 1; length < 3 * JSON_HELD; length += length < JSON_HELD - 20 ? 977 : 13) {
        n = sprintf(text, "{\"%0*d\":[7],\"\\u0061\":\"%0*d\"}", length, 1, length, 2);
        struct json j = in_pieces(&p, text, (size_t)n, 500);
        CHECK(json_open(&j, '{') && json_key(&j, &key));
        if (length < JSON_HELD && CHECK(key.s && key.n == (size_t)length && !key.escaped))
            CHECK(key.s[length - 1] == '1' && (length == 1 || *key.s == '0'));
        CHECK(key.s || !json_equal(&key, ""));
        CHECK(json_skip(&j) && json_key(&j, &key) && json_equal(&key, "a"));
        CHECK(json_skip(&j) && !json_key(&j, &key) && !json_more(&j));
    }
    n = sprintf(text, "[%0*d]", 3 * JSON_HELD, 7);
    text[1] = '1';
    struct json j = in_pieces(&p, text, (size_t)n, sizeof text);
    CHECK(!json_skip(&j));
    CHECK_STR(j.bad, "a shorter number");
    j = (struct json){ .at = text, .end = text + n };
    CHECK(json_skip(&j) && j.at == j.end);
}

int main(void)
{
    test_text();
    test_long();
    test_values();
    test_depth();
    test_u64();
    return check_done();
}
