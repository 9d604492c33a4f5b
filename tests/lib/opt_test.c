/* The command line: GNU conventions, ranges, and a message for each mistake. What
 * --help and --version print is tested in base.bats, through a program. */
#include <stdbool.h>
#include <stdlib.h>
#include "base/opt.h"
#include "check.h"

static struct values {
    bool force, quiet;
    const char *output, *format;
    int64_t threads, any;
    double beta;
    struct opt_list set;
} v;

static const struct opt table[] = { { .kind = OPT_GROUP, .help = "Output" },
                                    OPT_TEXT('o', "output", "DIR", &v.output, "write to DIR"),
                                    OPT_SWITCH('f', "force", &v.force, "overwrite"),
                                    { .name = "format",
                                      .kind = OPT_CHOICE,
                                      .value = &v.format,
                                      .help = "how",
                                      .choices = "text|json" },
                                    { .kind = OPT_GROUP, .help = "Other" },
                                    OPT_NUMBER("threads", "N", &v.threads, 1, 256, "how many"),
                                    OPT_NUMBER("any", "N", &v.any, 0, 0, "any number"),
                                    { .letter = 'b',
                                      .name = "beta",
                                      .arg = "X",
                                      .kind = OPT_F64,
                                      .value = &v.beta,
                                      .help = "decay",
                                      .lo = 0,
                                      .hi = 1 },
                                    { .letter = 's',
                                      .name = "set",
                                      .arg = "KEY=VALUE",
                                      .kind = OPT_LIST,
                                      .value = &v.set,
                                      .help = "may be repeated" },
                                    OPT_SWITCH('q', "quiet", &v.quiet, "errors only"),
                                    OPT_END };
static const struct command cmd = { "gpt-x", "[OPTION]... FILE...", "Tests.", table };

enum { MAX_ARGS = 16 };
static char line[512], *args[MAX_ARGS];
static int nargs, first;

/* Parses "gpt-x WORDS", split at blanks. */
static int parse(const char *words)
{
    opt_list_release(&v.set);
    v = (struct values){ 0 };
    err_clear();
    snprintf(line, sizeof line, "gpt-x %s", words);
    nargs = 0;
    for (char *s = strtok(line, " "); s && nargs < MAX_ARGS - 1; s = strtok(NULL, " "))
        args[nargs++] = s;
    args[nargs] = NULL;
    first = -1;
    return opt_parse(&cmd, nargs, args, &first);
}

static void test_forms(void)
{
    CHECK_OK(parse(""));
    CHECK_EQ(first, 1);
    CHECK_OK(parse("--output=a --threads 4 x y"));
    CHECK_STR(v.output, "a");
    CHECK_EQ(v.threads, 4);
    CHECK_EQ(first, 4);
    CHECK_STR(args[4], "x");
    CHECK_OK(parse("-oa -b 0.5 x"));
    CHECK_STR(v.output, "a");
    CHECK_NEAR(v.beta, 0.5, 0);
    CHECK_OK(parse("-fqo b")); /* bundled, the last with its argument */
    CHECK(v.force && v.quiet);
    CHECK_STR(v.output, "b");
    CHECK_OK(parse("x -f y --quiet z")); /* operands end up last, in their order */
    CHECK(v.force && v.quiet);
    CHECK_EQ(nargs - first, 3);
    CHECK_STR(args[first], "x");
    CHECK_STR(args[first + 2], "z");
    CHECK_OK(parse("-f -- -q --output"));
    CHECK(v.force && !v.quiet && !v.output);
    CHECK_EQ(nargs - first, 2);
    CHECK_OK(parse("- -f")); /* a lone dash is an operand */
    CHECK_EQ(nargs - first, 1);
    CHECK_OK(parse("--out=a --thr 2")); /* prefixes */
    CHECK_STR(v.output, "a");
    CHECK_OK(parse("--force --output --quiet")); /* an argument may look like an option */
    CHECK_STR(v.output, "--quiet");
    CHECK_OK(parse("--output="));
    CHECK_STR(v.output, "");
}

static void test_values(void)
{
    CHECK_OK(parse("--set a=1 -s b=2 -sc=3"));
    CHECK_EQ(v.set.n, 3);
    CHECK_STR(v.set.v[0], "a=1");
    CHECK_STR(v.set.v[2], "c=3");
    CHECK_OK(parse("--format json"));
    CHECK_STR(v.format, "json");
    CHECK_OK(parse("--any -9223372036854775808"));
    CHECK_EQ(v.any, INT64_MIN);
    CHECK_OK(parse("--any 1.5Ki"));
    CHECK_EQ(v.any, 1536);
    CHECK_OK(parse("--threads 1 --threads 256")); /* the last one holds */
    CHECK_EQ(v.threads, 256);
}

static void test_mistakes(void)
{
    static const struct {
        const char *words, *message;
    } bad[] = {
        { "--nope", "unknown option --nope" },
        { "--nope=3", "unknown option --nope" },
        { "-z", "unknown option -z" },
        { "-fzq", "unknown option -z" },
        { "--fo", "option --fo is ambiguous: --force --format" },
        { "--output", "option --output needs an argument" },
        { "-o", "option -o needs an argument" },
        { "-fo", "option -o needs an argument" },
        { "--force=yes", "option --force takes no argument" },
        { "--help=yes", "option --help takes no argument" },
        { "--threads 0", "--threads: expected a whole number from 1 to 256, found '0'" },
        { "--threads=257", "found '257'" },
        { "--threads 3x", "found '3x'" },
        { "--threads=", "found ''" },
        { "--beta 1.1", "--beta: expected a number from 0 to 1, found '1.1'" },
        { "-b nan", "found 'nan'" },
        { "--format yaml", "--format: expected one of text|json, found 'yaml'" },
        { "--format tex", "found 'tex'" },
        { "--format=", "found ''" },
        { "--format text|json", "found 'text|json'" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_ERR(parse(bad[i].words), GPT_USAGE, bad[i].message);
}

static void test_arguments(void)
{
    char *words[] = { "gpt-x", "-o", "a b", "x\ny\t", NULL }, *none[] = { "gpt-x", NULL };
    char *line = opt_arguments(4, words);
    CHECK_STR(line, "-o a b x?y?");
    free(line);
    line = opt_arguments(1, none);
    CHECK_STR(line, "");
    free(line);
}

int main(void)
{
    test_arguments();
    test_forms();
    test_values();
    test_mistakes();
    opt_list_release(&v.set);
    return check_done();
}
