/* minimax.c - one best odd polynomial, by Newton's method on its extrema.
 *
 * p of degree 2k+1 that is nearest to 1 on [L, u] has k interior extrema q_1 < .. < q_k, and with
 * q_0 = L, q_{k+1} = u the values alternate: p(q_i) = p(q_{i+2}). As p' = K prod (x^2 - q_j^2),
 *
 *     F_i = int_{q_i}^{q_{i+2}} prod_j (x^2 - q_j^2) dx = 0,   i = 0 .. k-1.
 *
 * With x = m + d t on t in [-1, 1], x^2 - q_j^2 = 2 m d (t - t_j)(1 + rho (t + t_j)), rho = d / 2m:
 * the powers of d are factored out, and what remains is of order one for every interval.
 */
#include "coeffs/minimax.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { K_MAX = MINIMAX_TERMS - 1, NODES = 4, ROUNDS_MAX = 200 };

struct rule {
    quad x[NODES], w[NODES];
};

/* Gauss and Legendre's points for polynomials up to degree 7; ours have at most 6. */
static struct rule gauss(void)
{
    struct rule r;
    quad s = 2 * quad_sqrt((quad)6 / 5) / 7, t = quad_sqrt(30);
    r.x[2] = quad_sqrt((quad)3 / 7 - s);
    r.x[3] = quad_sqrt((quad)3 / 7 + s);
    r.x[1] = -r.x[2];
    r.x[0] = -r.x[3];
    r.w[1] = r.w[2] = (18 + t) / 36;
    r.w[0] = r.w[3] = (18 - t) / 36;
    return r;
}

struct problem {
    int k;
    quad rho, t[K_MAX + 2];
    struct rule rule;
};

/* int_a^b prod_j (t - t_j)(1 + rho (t + t_j)) dt, without factor `but`. */
static quad integral(const struct problem *p, quad a, quad b, int but)
{
    quad sum = 0, mid = (a + b) / 2, half = (b - a) / 2;
    for (int n = 0; n < NODES; n++) {
        quad t = mid + half * p->rule.x[n], g = p->rule.w[n];
        for (int j = 1; j <= p->k; j++)
            if (j != but)
                g *= (t - p->t[j]) * (1 + p->rho * (t + p->t[j]));
        sum += g;
    }
    return half * sum;
}

/* Solves a x = b of n unknowns, with pivots; a and b are used up. */
static bool solve(quad a[K_MAX][K_MAX], quad *b, int n)
{
    for (int c = 0; c < n; c++) {
        int best = c;
        for (int r = c + 1; r < n; r++)
            if (quad_abs(a[r][c]) > quad_abs(a[best][c]))
                best = r;
        if (!(quad_abs(a[best][c]) > 0))
            return false;
        for (int j = 0; j < n; j++) {
            quad s = a[c][j];
            a[c][j] = a[best][j];
            a[best][j] = s;
        }
        quad s = b[c];
        b[c] = b[best];
        b[best] = s;
        for (int r = 0; r < n; r++) {
            quad f = r == c ? 0 : a[r][c] / a[c][c];
            for (int j = c; j < n; j++)
                a[r][j] -= f * a[c][j];
            b[r] -= f * b[c];
        }
    }
    for (int c = 0; c < n; c++)
        b[c] /= a[c][c];
    return true;
}

static bool ordered(const quad *t, int k)
{
    for (int i = 0; i <= k; i++)
        if (!(t[i] < t[i + 1]))
            return false;
    return true;
}

/* Moves the extrema to where F = 0; the number of rounds, or -1. */
static int find_extrema(struct problem *p)
{
    quad last = 4;
    for (int round = 1; round <= ROUNDS_MAX; round++) {
        quad jac[K_MAX][K_MAX], step[K_MAX], moved = 0, t[K_MAX + 2];
        for (int i = 0; i < p->k; i++) {
            step[i] = integral(p, p->t[i], p->t[i + 2], 0);
            /* An end of the integral that moves adds nothing: it is a zero of the integrand. */
            for (int j = 0; j < p->k; j++)
                jac[i][j] =
                    -(1 + 2 * p->rho * p->t[j + 1]) * integral(p, p->t[i], p->t[i + 2], j + 1);
        }
        if (!solve(jac, step, p->k))
            return -1;
        for (quad scale = 1;; scale /= 2) {
            for (int i = 0; i < p->k + 2; i++)
                t[i] = p->t[i] - (i && i <= p->k ? scale * step[i - 1] : 0);
            if (ordered(t, p->k))
                break;
            if (scale < QUAD_EPSILON)
                return -1;
        }
        for (int i = 1; i <= p->k; i++) {
            moved = quad_abs(t[i] - p->t[i]) > moved ? quad_abs(t[i] - p->t[i]) : moved;
            p->t[i] = t[i];
        }
        /* Convergence is quadratic: a small step that no longer shrinks is rounding. */
        if (moved <= 4 * QUAD_EPSILON || (moved < (quad)1e-25 && moved >= last))
            return round;
        last = moved;
    }
    return -1;
}

quad odd_value(const quad *coef, int terms, quad x)
{
    quad y = 0, xx = x * x;
    for (int i = terms; i-- > 0;)
        y = y * xx + coef[i];
    return y * x;
}

/* Coefficients of int K prod (x^2 - q_j^2) with p(q_k) + p(u) = 2. */
static void set_coefficients(struct minimax *m, int k)
{
    quad e[K_MAX + 1] = { 1 }; /* elementary symmetric functions of q_j^2 */
    for (int j = 1; j <= k; j++)
        for (int i = j; i >= 1; i--)
            e[i] += e[i - 1] * m->point[j] * m->point[j];
    for (int i = 0; i <= k; i++) /* of x^(2i+1) */
        m->coef[i] = ((k - i) % 2 ? -e[k - i] : e[k - i]) / (2 * i + 1);
    quad sum = odd_value(m->coef, k + 1, m->point[k]) + odd_value(m->coef, k + 1, m->point[k + 1]);
    for (int i = 0; i <= k; i++)
        m->coef[i] *= 2 / sum;
}

int minimax_odd(struct minimax *m, int degree, quad lower, quad upper)
{
    struct problem p = { .k = (degree - 1) / 2, .rule = gauss() };
    if (degree != 3 && degree != 5 && degree != 7)
        return err_set(GPT_INPUT, "degree %d: expected 3, 5 or 7", degree);
    if (!(lower > 0 && upper - lower >= (quad)1e-30 * upper && upper <= (quad)1e100))
        return err_set(GPT_INPUT, "expected 0 < lower < upper, found %.17g and %.17g",
                       (double)lower, (double)upper);
    quad mid = (lower + upper) / 2, half = (upper - lower) / 2;
    p.rho = half / (2 * mid);
    for (int i = 0; i < p.k + 2; i++) /* Chebyshev's: right as the interval closes */
        p.t[i] = -cos(M_PI * i / (p.k + 1));
    if ((m->rounds = find_extrema(&p)) < 0)
        return err_set(GPT_INPUT, "no best polynomial of degree %d found on [%.17g, %.17g]", degree,
                       (double)lower, (double)upper);
    m->terms = p.k + 1;
    m->point[0] = lower;
    for (int i = 1; i <= p.k; i++)
        m->point[i] = mid + half * p.t[i];
    m->point[p.k + 1] = upper;
    set_coefficients(m, p.k);

    /* 2 error = |p(u) - p(q_k)|, again as an integral: right even where it is 1e-90. */
    quad lead = m->coef[p.k] * (2 * p.k + 1), scale = half;
    for (int j = 0; j < p.k; j++)
        scale *= 2 * mid * half;
    m->error = quad_abs(lead * scale * integral(&p, p.t[p.k], p.t[p.k + 1], 0)) / 2;
    m->residual = 0;
    for (int i = 0; i < p.k + 2; i++) {
        quad off = 1 - odd_value(m->coef, m->terms, m->point[i]) - (i % 2 ? -m->error : m->error);
        if (quad_abs(off) > m->residual)
            m->residual = quad_abs(off);
    }
    if (!(m->residual < (quad)1e-28))
        return err_set(GPT_INPUT,
                       "the best polynomial of degree %d on [%.17g, %.17g] does not "
                       "equioscillate: off by %.3g",
                       degree, (double)lower, (double)upper, (double)m->residual);
    return 0;
}

/* --- chains of best polynomials: each row is best for the image of the rows before it
 * (polar-express, arXiv 2505.16932, Theorem 4: for cushion = safety = 0 the chain is the best of
 * all chains of that length). --- */

static int check(const struct greedy_options *o)
{
    if (o->iters < 1 || o->iters > GREEDY_ROWS)
        return err_set(GPT_USAGE, "--iters: expected 1 to %d, found %d", GREEDY_ROWS, o->iters);
    if (o->degree != 3 && o->degree != 5 && o->degree != 7)
        return err_set(GPT_USAGE, "--degree: expected 3, 5 or 7, found %d", o->degree);
    if (!(o->lower > 0 && isfinite(o->lower)))
        return err_set(GPT_USAGE, "--lower: expected a positive number, found %g", o->lower);
    if (!(o->upper > o->lower && o->upper <= 1e6))
        return err_set(GPT_USAGE,
                       "--lower, --upper: expected 0 < lower < upper <= 1e6, found %g and %g",
                       o->lower, o->upper);
    if (!(o->safety >= 0 && o->safety <= 1))
        return err_set(GPT_USAGE, "--safety: expected 0 to 1, found %g", o->safety);
    if (!(o->cushion >= 0 && o->cushion < 1))
        return err_set(GPT_USAGE, "--cushion: expected at least 0 and less than 1, found %g",
                       o->cushion);
    return 0;
}

/* The interval is narrower than quad can represent: p with p(1) = 1 and as many derivatives
 * zero there as it has, the limit of the best ones. */
static void set_limit(struct minimax *m, int degree, quad at)
{
    static const int numerator[3][MINIMAX_TERMS] = {
        { 3, -1 },
        { 15, -10, 3 },
        { 35, -35, 21, -5 },
    };
    static const int denominator[3] = { 2, 8, 16 };
    int k = (degree - 1) / 2;
    quad power = at;
    *m = (struct minimax){ .terms = k + 1 };
    for (int i = 0; i <= k; i++, power *= at * at)
        m->coef[i] = (quad)numerator[k - 1][i] / denominator[k - 1] / power;
    for (int i = 0; i < k + 2; i++)
        m->point[i] = at;
}

static int one_row(struct greedy_row *r, const struct greedy_options *o, quad l, quad u, bool last)
{
    quad from = (quad)o->cushion * u;
    r->cushioned = from > l;
    if (!r->cushioned)
        from = l;
    int terms = (o->degree + 1) / 2;
    if (u - from < (quad)1e-29 * u)
        set_limit(&r->minimax, o->degree, (from + u) / 2);
    else {
        int rc = minimax_odd(&r->minimax, o->degree, from, u);
        if (rc)
            return rc;
    }
    quad scale = 1, stretch = last ? 1 : 1 + (quad)o->safety, power = stretch;
    /* With a cushion, 1 is the middle of the image of [from, u]; make it that of [l, u]. The upper
     * end of that is p(u) for quintics alone, else an extremum. */
    if (r->cushioned && !(last && o->no_rescale_last))
        scale = 2 / (odd_value(r->minimax.coef, terms, l) + 1 + r->minimax.error);
    for (int i = 0; i < terms; i++, power *= stretch * stretch)
        r->coef[i] = r->minimax.coef[i] * scale / power;
    r->lower = odd_value(r->coef, terms, l);
    r->upper = 2 - r->lower;
    if (r->cushioned && last && o->no_rescale_last)
        r->upper = 1 + r->minimax.error;
    return 0;
}

/* The chain, with every number that passes from row to row off by a factor of 1 + noise. */
static int chain(struct greedy *g, const struct greedy_options *o, quad noise)
{
    quad l = (quad)o->lower * (1 + noise), u = o->upper;
    g->n = o->iters;
    g->terms = (o->degree + 1) / 2;
    for (int t = 0; t < g->n; t++) {
        int rc = one_row(&g->row[t], o, l, u, t + 1 == g->n);
        if (rc)
            return err_prefix("row %d", t + 1);
        l = g->row[t].lower * (1 + noise);
        if (l > 1) /* converged, and rounded up */
            l = 1;
        u = 2 - l;
    }
    return 0;
}

/* Derives the rows twice, the second time with every row's input disturbed by 2^-100, which shows
 * how far rounding can have carried them: some four thousand times what quad's own rounding does. */
int greedy_derive(struct greedy *g, const struct greedy_options *o)
{
    struct greedy off;
    int rc = check(o);
    if (rc || (rc = chain(g, o, 0)) || (rc = chain(&off, o, (quad)0x1p-100)))
        return rc;
    for (int t = 0; t < g->n; t++) {
        quad worst = g->row[t].minimax.residual;
        for (int i = 0; i < g->terms; i++) {
            quad d = quad_abs(off.row[t].coef[i] / g->row[t].coef[i] - 1);
            worst = d > worst ? d : worst;
        }
        double digits = worst > 0 ? floor(-log10((double)worst)) : 30;
        g->row[t].digits = digits > 17 ? 17 : digits < 0 ? 0 : (int)digits;
    }
    return 0;
}

bool greedy_reaches(const struct greedy *g) { return g->row[g->n - 1].lower >= (quad)0.5; }

void greedy_coeffs(const struct greedy *g, struct coeffs *c)
{
    memset(c, 0, sizeof *c);
    c->n = g->n;
    c->terms = g->terms > 3 ? g->terms : 3;
    for (int t = 0; t < g->n; t++)
        for (int i = 0; i < g->terms; i++)
            c->row[t][i] = (double)g->row[t].coef[i];
}

void greedy_write(const struct greedy *g, const struct greedy_options *o, FILE *f)
{
    int worst = 17;
    for (int t = 0; t < g->n; t++)
        worst = g->row[t].digits < worst ? g->row[t].digits : worst;
    fprintf(f, "# image of [%g, %g]: [%.9g, %.9g]; %d digits of every number are right\n", o->lower,
            o->upper, (double)g->row[g->n - 1].lower, (double)g->row[g->n - 1].upper, worst);
    if (!greedy_reaches(g))
        fprintf(f, "# %d rows do not reach %g: it stays at %.3g\n", g->n, o->lower,
                (double)g->row[g->n - 1].lower);
    for (int t = 0; t < g->n; t++) {
        char text[64];
        for (int i = 0; i < g->terms; i++)
            fprintf(f, "%s ", quad_text(text, sizeof text, g->row[t].coef[i], 17));
        for (int i = g->terms; i < 3; i++)
            fputs("0 ", f);
        fprintf(f, " # from %.12g on, %d digits\n", (double)g->row[t].lower, g->row[t].digits);
    }
}
