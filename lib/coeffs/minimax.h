/* minimax.h - the best odd polynomial, and greedy chains of them: Polar Express.
 *
 *     struct greedy_options o = GREEDY_DEFAULT;    // record 61's table
 *     struct greedy g;
 *     if ((rc = greedy_derive(&g, &o))) return rc;
 *     for (int t = 0; t < g.n; t++) ... g.row[t].coef[0..g.terms-1], g.row[t].digits
 *
 * Sources: Amsel, Persson, Musco, Gower, "The Polar Express" (arXiv 2505.16932),
 * and its authors' program for cushion and safety. What differs is the
 * arithmetic. There, and in Remez' algorithm as it is usually written, a linear
 * system holds 1, x, x^3 .. at points that move together as the table converges,
 * so that late rows lose all digits. Here the unknowns are the interior extrema
 * in units of the interval's half width, and the equations are integrals of p'
 * between every other extremum, factored so that nothing cancels: as accurate
 * for an interval of width 1e-30 as for [1e-3, 1], and no case apart is needed
 * where the interval closes. In quad, all 17 printed digits are right.
 *
 * Pure functions, safe in any thread.
 */
#ifndef COEFFS_MINIMAX_H
#define COEFFS_MINIMAX_H

#include <stdbool.h>
#include "base/err.h"
#include "coeffs/quad.h"
#include "coeffs/coeffs.h"

enum { MINIMAX_TERMS = 4, GREEDY_ROWS = 64 };

struct minimax {
    int terms; /* coefficients: 2, 3 or 4 for degree 3, 5 or 7 */
    quad coef[MINIMAX_TERMS]; /* of x, x^3, x^5, x^7 */
    quad point[MINIMAX_TERMS + 1]; /* lower, interior extrema, upper: where |1 - p| is error */
    quad error; /* of 1 on [lower, upper]; 1 - p(point[i]) = (-1)^i error */
    quad residual; /* largest | |1 - p(point)| - error |, a measure of rounding */
    int rounds; /* Newton's */
};
/* degree 3, 5 or 7; 0 < lower < upper, at least 1e-30 apart relative to upper. GPT_INPUT: other
 * bounds, or equioscillation is not reached to 1e-28. */
int minimax_odd(struct minimax *m, int degree, quad lower, quad upper) MUST_CHECK;

/* p(x) = coef[0] x + coef[1] x^3 + ... */
quad odd_value(const quad *coef, int terms, quad x);

struct greedy_options {
    int iters, degree;
    double lower, upper; /* singular values to be mapped to 1 */
    double safety; /* rows but the last take arguments (1 + safety) too large */
    double cushion; /* a row's interval begins at cushion * upper at least */
    bool no_rescale_last; /* the last row is not recentred where the cushion acted */
};
#define GREEDY_DEFAULT \
    { \
        5, 5, 1e-3, 1, 0.02, 0.02, false \
    }

struct greedy_row {
    quad coef[MINIMAX_TERMS];
    quad lower, upper; /* image of the interval so far: [lower, upper] */
    struct minimax minimax; /* before recentring and safety */
    bool cushioned;
    int digits; /* correct decimal digits of coef, 17 at most */
};
struct greedy {
    int n, terms;
    struct greedy_row row[GREEDY_ROWS];
};
/* GPT_USAGE: an option out of range (iters 1..64, degree 3|5|7, 0 < lower < upper <= 1e6,
 * safety 0..1, 0 <= cushion < 1). */
int greedy_derive(struct greedy *g, const struct greedy_options *o) MUST_CHECK;
/* True if the rows take the lower end of the interval at least half of the way to 1. */
bool greedy_reaches(const struct greedy *g);
/* Rounds the rows to doubles. */
void greedy_coeffs(const struct greedy *g, struct coeffs *c);
/* Writes a table with 17 digits, with comments on how many are right; the caller checks f. */
void greedy_write(const struct greedy *g, const struct greedy_options *o, FILE *f);

#endif
