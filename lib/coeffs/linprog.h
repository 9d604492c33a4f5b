/* linprog.h - small dense linear programs, many more rows than unknowns.
 *
 *     struct linprog p = { .n = 16, .m = 4000, .a = a, .b = b, .cost = c };
 *     z[..] = a point with a z < b;
 *     if (linprog_solve(&p, z, 1e-9)) ...          // z now minimises cost z, a z <= b
 *
 * Primal-dual interior point method with Mehrotra's corrector (SIAM J. Optim. 2,
 * 1992) from a strictly feasible point. Thread-safe.
 */
#ifndef COEFFS_LINPROG_H
#define COEFFS_LINPROG_H

#include <stdbool.h>

struct linprog {
    int n, m; /* unknowns, rows */
    const double *a, *b, *cost; /* a is m x n, row-major */
};
/* True when s y fell below tol times |cost z| (cost of order one); z is feasible in any case, and
 * no worse than it was. */
bool linprog_solve(const struct linprog *p, double *z, double tol);

#endif
