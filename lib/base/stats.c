/* stats.c - see stats.h. */
#include "base/stats.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static double normal_cdf(double z) { return 0.5 * erfc(-z * M_SQRT1_2); }

/* ln(Gamma(a + 1/2) / Gamma(a)). For large a the difference of two lgamma() loses digits;
 * there Stirling's series, whose terms are B_2k (2 - 2^(1-2k)) / (2k (2k-1) a^(2k-1)). */
static double log_gamma_step(double a)
{
    if (a < 16)
        return lgamma(a + 0.5) - lgamma(a);
    static const double c[] = { 1.0 / 8, -1.0 / 192, 1.0 / 640, -17.0 / 14336, 31.0 / 18432 };
    double sum = 0, power = 1 / a;
    for (int k = 0; k < 5; k++, power /= a * a)
        sum += c[k] * power;
    return 0.5 * log(a) - sum;
}

/* The continued fraction of I_x(a, b), A&S 26.5.8, by the modified method of Lentz. */
static double beta_fraction(double a, double b, double x)
{
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double h = d;
    for (int m = 1; m < 10000000; m++) {
        double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        d = 1 + even * d;
        c = 1 + even / c;
        d = 1 / (fabs(d) < tiny ? tiny : d);
        c = fabs(c) < tiny ? tiny : c;
        h *= d * c;
        d = 1 + odd * d;
        c = 1 + odd / c;
        d = 1 / (fabs(d) < tiny ? tiny : d);
        c = fabs(c) < tiny ? tiny : c;
        h *= d * c;
        if (fabs(d * c - 1) < 4 * DBL_EPSILON)
            break;
    }
    return h;
}

/* P(T <= t) for t <= 0: half of I_x(df/2, 1/2) at x = df / (df + t^2). */
static double lower_half(double t, double df)
{
    double a = df / 2, r = t / sqrt(df), q = r * r; /* 1 - x = q / (1 + q) */
    double x = 1 / (1 + q), y = q < DBL_MAX ? q / (1 + q) : 1;
    /* x^a (1-x)^(1/2) / B(a, 1/2), from logarithms that stay small */
    double log_x = q < DBL_MAX ? -log1p(q) : -2 * (log(-t) - 0.5 * log(df));
    double front = exp(a * log_x + log_gamma_step(a)) * sqrt(y / M_PI);
    if (x < (a + 1) / (a + 2.5))
        return 0.5 * front * beta_fraction(a, 0.5, x) / a;
    return 0.5 - front * beta_fraction(0.5, a, y); /* I_y(1/2, a) = 2 front h */
}

double t_cdf(double t, double df)
{
    if (!(df > 0) || isnan(t))
        return NAN;
    if (isinf(t))
        return t < 0 ? 0 : 1;
    if (df > 1e12)
        return normal_cdf(t);
    return t <= 0 ? lower_half(t, df) : 1 - lower_half(-t, df);
}

double t_quantile(double p, double df)
{
    if (!(df > 0) || !(p >= 0 && p <= 1))
        return NAN;
    if (p == 0 || p == 1)
        return p == 0 ? -INFINITY : INFINITY;
    if (p >= 0.5)
        return p == 0.5 ? 0 : -t_quantile(1 - p, df);
    double lo = -1, hi = 0;
    while (lo > -1e300 && t_cdf(lo, df) > p) {
        hi = lo;
        lo *= 2;
    }
    for (int i = 0; i < 2000; i++) {
        double mid = lo + (hi - lo) / 2;
        if (!(mid > lo && mid < hi))
            break;
        *(t_cdf(mid, df) < p ? &lo : &hi) = mid;
    }
    return hi;
}

enum { FAR = 3000 };

/* The density of ln sqrt(V / df) is, but for a factor, exp(df (u - (e^(2u) - 1) / 2)); the
 * factor cancels in the mean. Both it and the probability are analytic in u and fall off at
 * both ends, so that the trapezoidal rule converges geometrically; the step is a tenth of
 * the narrowest feature of the integrand. */
double t_noncentral_cdf(double t, double df, double delta)
{
    if (!(df > 0) || isnan(t) || !isfinite(delta))
        return NAN;
    if (isinf(t))
        return t < 0 ? 0 : 1;
    if (df > 1e12)
        return normal_cdf(t - delta);
    if (fabs(delta) > FAR) { /* Z hardly matters: scaling both increases its part */
        t *= FAR / fabs(delta);
        delta = copysign(FAR, delta);
    }
    double step = 0.1 / sqrt(df + delta * delta + 1), sum = 0, weights = 0;
    for (int side = -1; side <= 1; side += 2)
        for (long i = side < 0 ? -1 : 0;; i += side) {
            double u = (double)i * step, w = df * (u - 0.5 * expm1(2 * u));
            if (w < -80)
                break;
            w = exp(w);
            weights += w;
            sum += w * normal_cdf(t * exp(u) - delta);
        }
    return sum / weights;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void stats_sort(double *x, int n) { qsort(x, (size_t)n, sizeof *x, by_value); }

double stats_median(double *x, int n)
{
    if (n < 1)
        return NAN;
    stats_sort(x, n);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}
