/* minimax.c - one best odd polynomial, by Newton's method on its extrema.
 *
 * p of degree 2k+1 that is nearest to 1 on [L, u] has k interior extrema q_1 < .. < q_k, and with
 * q_0 = L, q_{k+1} = u the values alternate: p(q_i) = p(q_{i+2}). As p' = K prod (x^2 - q_j^2),
 *
 *     F_i = int_{q_i}^{q_{i+2}} prod_j (x^2 - q_j^2) dx = 0,   i = 0 .. k-1.
 *
 * With x = m + d t on t in [-1, 1], x^2 - q_j^2 = 2 m d (t - t_j)(1 + rho (t + t_j)), rho = d / 2m:
 * the powers of d come out, and what is left is of order one for every interval.
 */
#include "coeffs/minimax.h"

#include <math.h>
#include <stdlib.h>

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
