/* ttest.c - see ttest.h.
 *
 * How far rounding can move p: p grows with t(x) = sqrt(n) (m - target) / s, so that the
 * extremes of t over the box of all values that print the same are wanted. dt/dx_i has the
 * sign of 1/n - (m - target)(x_i - m) / ((n-1) s^2), which changes once, at some tau common to
 * all i. Where m < target the sets { t <= c } are convex (m is linear, s convex), so that
 *   - t is least at x_i = tau cut to its interval, for one tau: a search in one variable;
 *   - t is greatest in a corner, x_i at its lower end below tau and at its upper above: n + 1
 *     corners in sorted order.
 * Where m > target the same holds for -t and mirrored values. */
#include "runs/ttest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/stats.h"

struct sample sample_of(const double *x, int n)
{
    struct sample s = { n, NAN, NAN };
    if (n < 1)
        return s;
    double sum = 0, squares = 0, rest = 0;
    for (int i = 0; i < n; i++)
        sum += x[i];
    double mean = sum / n;
    for (int i = 0; i < n; i++) {
        squares += (x[i] - mean) * (x[i] - mean);
        rest += x[i] - mean; /* what the division rounded off */
    }
    s.mean = mean + rest / n;
    if (n > 1)
        s.sd = sqrt(fmax(squares - rest * rest / n, 0) / (n - 1));
    return s;
}

bool sample_spreads(const struct sample *s) { return s->sd > 1e-14 * fabs(s->mean); }

/* numerator / deviation, where both may be 0. Values that print the same differ by an ulp or so
 * after conversion and summing; a deviation as small as that is none. */
static double ratio(double difference, double deviation, double size)
{
    if (deviation > 1e-14 * fabs(size))
        return difference / deviation;
    return fabs(difference) <= 1e-14 * fabs(size) ? NAN
           : difference < 0                       ? -INFINITY
           : difference > 0                       ? INFINITY
                                                  : NAN;
}

static double t_of(const struct sample *s, double target)
{
    return s->n < 2 ? NAN : ratio(s->mean - target, s->sd / sqrt(s->n), s->mean);
}

double mean_below_p(const struct sample *s, double target)
{
    return t_cdf(t_of(s, target), s->n - 1);
}

struct welch welch_test(const struct sample *a, const struct sample *b)
{
    struct welch w = { NAN, NAN, NAN, NAN };
    if (a->n < 2 || b->n < 2)
        return w;
    double va = a->sd * a->sd / a->n, vb = b->sd * b->sd / b->n, v = va + vb;
    w.t = ratio(a->mean - b->mean, sqrt(v), fmax(fabs(a->mean), fabs(b->mean)));
    w.df = v > 0 ? v * v / (va * va / (a->n - 1) + vb * vb / (b->n - 1)) : a->n + b->n - 2;
    w.p_lower = t_cdf(w.t, w.df);
    w.p_two_sided = 2 * t_cdf(-fabs(w.t), w.df);
    return w;
}

double shown_difference(double error, double df, double alpha, int tails, double power)
{
    enum { HALVINGS = 60 };
    double least = t_quantile(alpha / tails, df), lo = 0, hi = 1 - least; /* of the noncentrality */
    if (!(error > 0) || !isfinite(least))
        return NAN;
    while (t_noncentral_cdf(least, df, -hi) < power)
        hi *= 2;
    for (int i = 0; i < HALVINGS; i++) {
        double mid = 0.5 * (lo + hi);
        *(t_noncentral_cdf(least, df, -mid) < power ? &lo : &hi) = mid;
    }
    return hi * error;
}

/* --- how far rounding reaches --- */

/* Values sorted and counted from their mean, which lies `above` the target; sums and squares of the
 * first i. With them t of any cut or corner costs nothing that grows with n. */
struct box {
    const double *x, *sums, *squares;
    int n;
    double half, above, size;
};

/* t where the first `up` values stand at their upper ends, those from `down` on at their
 * lower ends and the rest at tau. *slope gets the sign of dt/dx_i of those at tau. */
static double t_split(const struct box *b, int up, int down, double tau, double *slope)
{
    double h = b->half, mid = down - up, rest = b->n - down;
    double s1 = b->sums[b->n] - b->sums[down], s2 = b->squares[b->n] - b->squares[down];
    double sum = b->sums[up] + up * h + mid * tau + s1 - rest * h;
    double squares = b->squares[up] + 2 * h * b->sums[up] + up * h * h + mid * tau * tau + s2 -
                     2 * h * s1 + rest * h * h;
    double mean = sum / b->n, about = fmax(squares - sum * mean, 0);
    *slope = about / b->n - (mean + b->above) * (tau - mean);
    return ratio(mean + b->above, sqrt(about / (b->n - 1) / b->n), b->size);
}

/* How many values are less than v. */
static int count_below(const struct box *b, double v)
{
    int lo = 0, hi = b->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (b->x[mid] < v)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static double t_clamped(const struct box *b, double tau, double *slope)
{
    return t_split(b, count_below(b, tau - b->half), count_below(b, tau + b->half), tau, slope);
}

/* Between two taus where t falls at the first and rises at the second. */
static double least_between(const struct box *b, double lo, double hi)
{
    double least = INFINITY, slope;
    for (int i = 0; i < 60; i++) {
        double mid = lo + (hi - lo) / 2;
        least = fmin(least, t_clamped(b, mid, &slope));
        *(slope < 0 ? &lo : &hi) = mid;
    }
    return least;
}

/* knots: room for 2 n. */
static double least_clamped(const struct box *b, double *knots)
{
    int n = 2 * b->n;
    for (int i = 0; i < b->n; i++) {
        knots[2 * i] = b->x[i] - b->half;
        knots[2 * i + 1] = b->x[i] + b->half;
    }
    stats_sort(knots, n);
    double before, slope, least = t_clamped(b, knots[0], &before);
    for (int i = 1; i < n && least > -INFINITY; i++, before = slope) {
        least = fmin(least, t_clamped(b, knots[i], &slope));
        if (before < 0 && slope > 0)
            least = fmin(least, least_between(b, knots[i - 1], knots[i]));
    }
    return least;
}

/* The least t in a corner: the first so many values at their lower ends, the others at their upper
 * ends. That is a split of the mirrored order, so `half` changes its sign. */
static double least_corner(const struct box *b)
{
    struct box mirror = *b;
    double least = INFINITY, slope;
    mirror.half = -b->half;
    for (int below = 0; below <= b->n; below++)
        least = fmin(least, t_split(&mirror, below, below, 0, &slope));
    return least;
}

/* The least t over the box around n sorted values. room: 5 n + 2. */
static double least_t(const double *sorted, int n, double half, double target, double *room)
{
    struct sample s = sample_of(sorted, n);
    double *x = room, *sums = x + n, *squares = sums + n + 1, *knots = squares + n + 1;
    sums[0] = squares[0] = 0;
    for (int i = 0; i < n; i++) {
        x[i] = sorted[i] - s.mean;
        sums[i + 1] = sums[i] + x[i];
        squares[i + 1] = squares[i] + x[i] * x[i];
    }
    struct box b = { x, sums, squares, n, half, s.mean - target, s.mean };
    return b.above - half < 0 ? least_clamped(&b, knots) : least_corner(&b);
}

void mean_below_p_range(const double *x, int n, double half, double target, double *lo, double *hi)
{
    *lo = *hi = NAN;
    for (int i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return;
    double *sorted = n < 2 ? NULL : malloc((6 * (size_t)n + 2) * sizeof *sorted);
    if (!sorted)
        return;
    memcpy(sorted, x, (size_t)n * sizeof *x);
    stats_sort(sorted, n);
    *lo = t_cdf(least_t(sorted, n, half, target, sorted + n), n - 1);
    for (int i = 0; i < n; i++)
        sorted[i] = -sorted[i];
    stats_sort(sorted, n);
    *hi = t_cdf(-least_t(sorted, n, half, -target, sorted + n), n - 1);
    free(sorted);
}

/* --- how many runs --- */

/* The least n in 2 .. RUNS_MAX for which ok(n) holds, when it holds from there on. */
static int least_n(int (*ok)(int n, const double *v), const double *v)
{
    int hi = 2;
    while (hi < RUNS_MAX && !ok(hi, v))
        hi *= 2;
    if (hi > RUNS_MAX)
        hi = RUNS_MAX;
    if (!ok(hi, v))
        return 0;
    int lo = hi > 2 ? hi / 2 : 1; /* not enough */
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        *(ok(mid, v) ? &hi : &lo) = mid;
    }
    return hi;
}

static int shows(int n, const double *v) /* mean, sd, target, alpha */
{
    struct sample s = { n, v[0], v[1] };
    return mean_below_p(&s, v[2]) < v[3];
}

int runs_to_show(double mean, double sd, double target, double alpha)
{
    double v[4] = { mean, sd, target, alpha };
    return mean < target && isfinite(sd) ? least_n(shows, v) : 0;
}

double power_to_show(int n, double mean, double sd, double target, double alpha)
{
    if (n < 2 || !(sd > 0))
        return NAN;
    double delta = sqrt(n) * (mean - target) / sd;
    return t_noncentral_cdf(t_quantile(alpha, n - 1), n - 1, delta);
}

static int has_power(int n, const double *v) /* ..., power */
{
    return power_to_show(n, v[0], v[1], v[2], v[3]) >= v[4];
}

int runs_for_power(double power, double mean, double sd, double target, double alpha)
{
    double v[5] = { mean, sd, target, alpha, power };
    return mean < target && sd > 0 && isfinite(sd) ? least_n(has_power, v) : 0;
}
