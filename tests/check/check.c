/* check.c - see check.h. */
#include "check.h"
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>

enum { SHOWN_MAX = 40 }; /* a loop that fails everywhere says so, not a million times */

static atomic_long passed, failed;

int check_that(int ok, const char *file, int line, const char *fmt, ...)
{
    if (ok) {
        atomic_fetch_add(&passed, 1);
        return 1;
    }
    long n = atomic_fetch_add(&failed, 1);
    if (n < SHOWN_MAX) {
        char text[1024];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        printf("%s:%d: failed: %s\n", file, line, text);
    } else if (n == SHOWN_MAX) {
        printf("(further failures are counted, not shown)\n");
    }
    return 0;
}

int check_near(double a, double b, double tol, const char *file, int line, const char *as,
               const char *bs)
{
    return check_that(fabs(a - b) <= tol, file, line,
                      "%s = %.17g, %s = %.17g, apart by %.3g, allowed %.3g", as, a, bs, b,
                      fabs(a - b), tol);
}

int check_eq(long long a, long long b, const char *file, int line, const char *as, const char *bs)
{
    return check_that(a == b, file, line, "%s = %lld, %s = %lld", as, a, bs, b);
}

int check_str(const char *a, const char *b, const char *file, int line, const char *as)
{
    return check_that(a && b && !strcmp(a, b), file, line, "%s is \"%s\", not \"%s\"", as,
                      a ? a : "(null)", b ? b : "(null)");
}

int check_code(int rc, int want, const char *part, const char *file, int line, const char *call)
{
    const char *said = err_message();
    int ok = rc == want && (!part || strstr(said, part));
    return check_that(ok, file, line, "%s: code %d, expected %d%s%s%s; message: %s", call, rc, want,
                      part ? " and \"" : "", part ? part : "", part ? "\"" : "", said);
}

long check_failures(void) { return atomic_load(&failed); }

int check_done(void)
{
    long good = atomic_load(&passed), bad = atomic_load(&failed);
    printf("%ld passed, %ld failed\n", good, bad);
    return bad || (!good && !getenv("GPT_TEST_OPS"));
}

int check_skip(const char *word)
{
    printf("skipped: %s\n", word);
    return 77;
}

/* True if the list has the first n bytes of word as one of its words. */
static bool has_word(const char *list, const char *word, size_t n)
{
    for (; *(list += strspn(list, " ")); list += strcspn(list, " "))
        if (strcspn(list, " ") == n && !strncmp(list, word, n))
            return true;
    return false;
}

bool check_of(const char *ops)
{
    const char *wanted = getenv("GPT_TEST_OPS");

    for (; wanted && *ops; ops += strcspn(ops, " "), ops += strspn(ops, " "))
        if (has_word(wanted, ops, strcspn(ops, " ")))
            return true;
    return !wanted;
}

bool check_small(void) { return getenv("GPT_TEST_SMALL") != NULL; }

int check_threads(void)
{
    long n = check_small() ? 1 : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 16 ? 16 : (int)n;
}
