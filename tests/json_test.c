/* json_test.c - what RFC 8259 calls JSON is read, what it does not is refused at its place, and
 * brackets nest only so deep. What strings may hold is tried in safetensors_test and source_test. */
#include "base/json.h"
#include "check.h"

/* One value, from begin to end; *at is where it is wrong. */
static bool whole(const char *s, size_t n, size_t *at)
{
    char *exact = malloc(n + !n); /* so that a read past it is seen */
    memcpy(exact, s, n);
    struct json j = { .at = exact, .end = exact + n };
    bool ok = json_skip(&j) && !json_more(&j);
    CHECK_EQ(ok, !j.bad && j.at == j.end);
    *at = (size_t)(j.at - exact);
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

int main(void)
{
    test_values();
    test_depth();
    test_u64();
    return check_done();
}
