/* ttest.h - what a few runs show: t tests, the reach of rounding, how many runs are enough.
 *
 *     struct sample a = sample_of(x, 8), b = sample_of(y, 8);
 *     p = mean_below_p(&a, 3.28);                        // one sample, lower tail
 *     struct welch w = welch_test(&b, &a);               // is b's mean below a's?
 *     mean_below_p_range(x, 8, 0.00005, 3.28, &lo, &hi); // x as printed with four digits
 *     n = runs_to_show(a.mean, a.sd, 3.28, 0.01);
 *
 * A p value of fewer than two values is NaN. So is all that follows from a NaN. Where all values
 * are equal p is 0 or 1, or NaN if they also equal what they are held against. Pure functions.
 */
#ifndef RUNS_TTEST_H
#define RUNS_TTEST_H

#include <stdbool.h>

struct sample {
    int n;
    double mean, sd;
}; /* sd with n - 1; NaN where n < 2 */
struct sample sample_of(const double *x, int n);
/* Has it a deviation, beyond that of equal values after summing? Without one a test shows nothing:
 * equal values are mostly one measurement that was given several times. */
bool sample_spreads(const struct sample *s);

/* Student's one-sample test that the mean lies below target: P(T_(n-1) <= t). */
double mean_below_p(const struct sample *s, double target);

/* Welch's test of mean(a) - mean(b), Welch-Satterthwaite degrees of freedom. */
struct welch {
    double t, df, p_lower, p_two_sided;
};
struct welch welch_test(const struct sample *a, const struct sample *b);

/* Returns the difference, of that standard error with df degrees of freedom, that a t test at alpha shows with a
 * probability of `power`; NaN without an error. tails: 1 or 2; of two the far one is left out. */
double shown_difference(double error, double df, double alpha, int tails, double power);

/* The least and the greatest mean_below_p of values within `half` of x[0 .. n-1]. */
void mean_below_p_range(const double *x, int n, double half, double target, double *lo, double *hi);

/* The fewest runs of this mean and sd for which mean_below_p < alpha; 0 when no number is
 * enough (mean not below target) or over RUNS_MAX. */
enum { RUNS_MAX = 100000 };
int runs_to_show(double mean, double sd, double target, double alpha);
/* The probability that n new runs from a normal distribution of this mean and sd show it. */
double power_to_show(int n, double mean, double sd, double target, double alpha);
/* The fewest n of that power. 0 as above. */
int runs_for_power(double power, double mean, double sd, double target, double alpha);

#endif
