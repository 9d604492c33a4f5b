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
 * Tests of ops stand below check_of("qkv"), by which `make check T=qkv` runs them alone.
 * A test that cannot run here says for want of what by `return check_skip("gpu")`: one of the words of
 * needs.bash.
 * Checks may be made from any thread.
 */
#ifndef CHECK_H
#define CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __cplusplus
extern "C" {
#endif
#include "base/err.h"

#define CHECK(cond) check_that(!!(cond), __FILE__, __LINE__, "%s", #cond)
#define CHECK_NEAR(a, b, tol) check_near((a), (b), (tol), __FILE__, __LINE__, #a, #b)
#define CHECK_EQ(a, b) check_eq((long long)(a), (long long)(b), __FILE__, __LINE__, #a, #b)
#define CHECK_STR(a, b) check_str((a), (b), __FILE__, __LINE__, #a)
#define CHECK_OK(call) check_code((call), GPT_OK, NULL, __FILE__, __LINE__, #call)
#define CHECK_ERR(call, code, part) check_code((call), (code), (part), __FILE__, __LINE__, #call)

/* What the macros call: 1 where the check passed. */
__attribute__((format(printf, 4, 5))) int check_that(int ok, const char *file, int line,
                                                     const char *fmt, ...);
int check_near(double a, double b, double tol, const char *file, int line, const char *as,
               const char *bs);
int check_eq(long long a, long long b, const char *file, int line, const char *as, const char *bs);
int check_str(const char *a, const char *b, const char *file, int line, const char *as);
int check_code(int rc, int want, const char *part, const char *file, int line, const char *call);

/* How many checks have failed. */
long check_failures(void);
/* Prints the sum and returns the exit status: 1 where a check failed, or none was made and tests of all ops
 * were asked for. */
int check_done(void);
/* Prints for want of what the test is skipped and returns that exit status. */
int check_skip(const char *word);
/* True if tests of one of these ops, words apart by a space, are asked for: the environment's
 * GPT_TEST_OPS is not set, or has one of the words. */
bool check_of(const char *ops);
/* True if small shapes alone are asked for, because the device is slow (tests/emu). */
bool check_small(void);
/* How many threads the CPU takes that a GPU is held against: all processors, up to 16; one where
 * many tests share a few (tests/emu). */
int check_threads(void);

#ifdef __cplusplus
}
#endif

#endif
