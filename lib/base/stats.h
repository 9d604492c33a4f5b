/* stats.h - Student's t, central and noncentral: probabilities and quantiles; sorting, the median.
 *
 *     p = t_cdf(-2.5, 7);                  // P(T <= -2.5), 7 degrees of freedom
 *     t = t_quantile(0.01, 7);             // the t with t_cdf(t, 7) = 0.01
 *     b = t_noncentral_cdf(t, 7, -3.0);    // P(T' <= t), noncentrality -3
 *
 * The degrees of freedom are any number > 0 (Welch's are no integers); infinity is the
 * normal distribution. t_cdf and t_quantile keep ten digits in either tail, so that
 * the upper tail is t_cdf(-t, df) and not 1 - t_cdf(t, df). t_noncentral_cdf is good to 1e-12
 * absolutely, where |delta| > 3000 to 1e-7. Invalid arguments (df <= 0, NaN, p outside 0 .. 1) give
 * NaN.
 * Pure functions, safe in any thread.
 */
#ifndef BASE_STATS_H
#define BASE_STATS_H

/* Abramowitz and Stegun 26.7.1 and 26.5.8 (the incomplete beta function as a continued
 * fraction). */
double t_cdf(double t, double df);
double t_quantile(double p, double df);
/* T' = (Z + delta) / sqrt(V / df), Z normal, V chi-square: the mean over V of the normal
 * probability, by the trapezoidal rule in the logarithm of sqrt(V / df). */
double t_noncentral_cdf(double t, double df, double delta);

void stats_sort(double *x, int n); /* ascending */
/* Returns the median of x (n), which it sorts; NaN of none. */
double stats_median(double *x, int n);

#endif
