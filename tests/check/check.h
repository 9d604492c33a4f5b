/* check.h - checks for the C tests: each failure is one line, the program goes on.
 *
 *     int main(void)
 *     {
 *         CHECK(n == 3);
 *         CHECK_EQ(n, 3);                       // integers, both shown
 *         CHECK_NEAR(x, 0.5, 1e-6);             // |x - 0.5| <= 1e-6; NaN fails
 *         CHECK_STR(name, "f32");
 *         CHECK_OK(file_read(...));             // shows err_message()
 *         CHECK_ERR(file_read(...), GPT_SYSTEM, "cannot open");   // and a part of the message
 *         return check_done();                  // "12 passed, 0 failed", the exit status
 *     }
 *
 * A test that cannot run here says why with `return check_skip("no GPU")`.
 * Checks may be made from any thread.
 */
#ifndef CHECK_H
#define CHECK_H

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"

enum { CHECK_SHOWN_MAX = 40 }; /* a loop that fails everywhere says so, not a million times */

static atomic_long check_passed, check_failed;

#define CHECK(cond) check_that(!!(cond), __FILE__, __LINE__, "%s", #cond)
#define CHECK_NEAR(a, b, tol) check_near((a), (b), (tol), __FILE__, __LINE__, #a, #b)
#define CHECK_EQ(a, b) check_eq((long long)(a), (long long)(b), __FILE__, __LINE__, #a, #b)
#define CHECK_STR(a, b) check_str((a), (b), __FILE__, __LINE__, #a)
#define CHECK_OK(call) check_code((call), GPT_OK, NULL, __FILE__, __LINE__, #call)
#define CHECK_ERR(call, code, part) check_code((call), (code), (part), __FILE__, __LINE__, #call)

__attribute__((format(printf, 4, 5), unused)) static int check_that(int ok, const char *file,
                                                                    int line, const char *fmt, ...)
{
    if (ok) {
        atomic_fetch_add(&check_passed, 1);
        return 1;
    }
    long n = atomic_fetch_add(&check_failed, 1);
    if (n < CHECK_SHOWN_MAX) {
        char text[1024];
        __builtin_va_list ap;
        __builtin_va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        __builtin_va_end(ap);
        printf("%s:%d: failed: %s\n", file, line, text);
    } else if (n == CHECK_SHOWN_MAX) {
        printf("(further failures are counted, not shown)\n");
    }
    return 0;
}

__attribute__((unused)) static int check_near(double a, double b, double tol, const char *file,
                                              int line, const char *as, const char *bs)
{
    return check_that(fabs(a - b) <= tol, file, line,
                      "%s = %.17g, %s = %.17g, apart by %.3g, allowed %.3g", as, a, bs, b,
                      fabs(a - b), tol);
}

__attribute__((unused)) static int check_eq(long long a, long long b, const char *file, int line,
                                            const char *as, const char *bs)
{
    return check_that(a == b, file, line, "%s = %lld, %s = %lld", as, a, bs, b);
}

__attribute__((unused)) static int check_str(const char *a, const char *b, const char *file,
                                             int line, const char *as)
{
    return check_that(a && b && !strcmp(a, b), file, line, "%s is \"%s\", not \"%s\"", as,
                      a ? a : "(null)", b ? b : "(null)");
}

__attribute__((unused)) static int check_code(int rc, int want, const char *part, const char *file,
                                              int line, const char *call)
{
    const char *said = err_message();
    int ok = rc == want && (!part || strstr(said, part));
    return check_that(ok, file, line, "%s: code %d, expected %d%s%s%s; message: %s", call, rc, want,
                      part ? " and \"" : "", part ? part : "", part ? "\"" : "", said);
}

__attribute__((unused)) static int check_done(void)
{
    long passed = atomic_load(&check_passed), failed = atomic_load(&check_failed);
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed || !passed;
}

__attribute__((unused)) static int check_skip(const char *why)
{
    printf("skipped: %s\n", why);
    return 77;
}

/* Small shapes alone are asked for: the device is slow (tests/emu). */
__attribute__((unused)) static int check_small(void) { return getenv("GPT_TEST_SMALL") != NULL; }
/* Of the CPU that a GPU is held against: all, but one where many tests share a few (tests/emu). */
__attribute__((unused)) static int check_threads(void)
{
    long n = check_small() ? 1 : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 16 ? 16 : (int)n;
}

#endif
