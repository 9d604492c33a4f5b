/* op_test.h - the tests of one op, tests/ops/NAME_test.c for lib/ops/NAME.c, which ops_test and ops_fd_test run.
 *
 *     static void linear_make(struct ops_case *c, int variant) ...     // ops_case.h
 *     static void by_hand(void) { ... CHECK(...) ... }                 // hand_tensors.h, cpu_tensors.h
 *
 *     const struct op_test linear_test = {
 *         .name = "linear",
 *         .cases = { { linear_make, COUNT(linear_shapes) } },
 *         .by_hand = by_hand,
 *     };
 *
 * and a row in op_tests.c. A case serves three times: its backward against finite differences in double
 * (ops_fd_test), f32 against f64, and one run against others to the bit (ops_test). What these do not see, because
 * forward and backward may be wrong in the same way, is by_hand: masks, maps, rounding, edges.
 * `make check T=linear` runs these tests and those of the op on an emulated GPU.
 */
#ifndef OP_TEST_H
#define OP_TEST_H

#include "check.h"
#include "ops_case.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))
enum { OP_CASES = 2 }; /* tables of cases of an op, at most */

struct op_test {
    const char *name; /* of check_of(): the op, and others that its cases run */
    struct op_cases {
        void (*make)(struct ops_case *c, int variant);
        int variants;
    } cases[OP_CASES];
    void (*by_hand)(void); /* in f32; may be NULL */
    void (*in_double)(void); /* in double; may be NULL */
};

extern const struct op_test *const op_tests[];
extern const int n_op_tests;

/* A case of those that are asked for (check_of). */
struct op_case_at {
    int test, cases, variant;
};
/* Moves to the first case of those that are asked for, from { 0, 0, -1 } on, or to the next; false behind the
 * last one. */
bool op_case_next(struct op_case_at *at);
/* Makes the case on a device, which is the case's from here on: case_release frees it. */
void op_case_make(struct ops_case *c, struct ops *o, const struct op_case_at *at,
                  enum dtype weights, uint64_t seed);
/* Of fresh random inputs: of the clock, or what op_test_begin was given. */
uint64_t op_test_seed(void);
/* Takes the seed from a program's first argument, where there is one, and prints it. */
void op_test_begin(int argc, char **argv);

#endif
