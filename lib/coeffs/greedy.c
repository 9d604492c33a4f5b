/* greedy.c - chains of best polynomials: each row is best for the image of the rows before it
 * (polar-express, arXiv 2505.16932, Theorem 4: for cushion = safety = 0 the chain is the best of
 * all chains of that length).
 */
#include "coeffs/minimax.h"

#include <math.h>
#include <string.h>

static int check(const struct greedy_options *o)
{
    if (o->iters < 1 || o->iters > GREEDY_ROWS)
        return err_set(GPT_USAGE, "iters: expected 1 to %d, found %d", GREEDY_ROWS, o->iters);
    if (o->degree != 3 && o->degree != 5 && o->degree != 7)
        return err_set(GPT_USAGE, "degree: expected 3, 5 or 7, found %d", o->degree);
    if (!(o->lower > 0 && isfinite(o->lower)))
        return err_set(GPT_USAGE, "lower: expected a positive number, found %g", o->lower);
    if (!(o->upper > o->lower && o->upper <= 1e6))
        return err_set(GPT_USAGE, "upper: expected more than lower (%g) and at most 1e6, found %g",
                       o->lower, o->upper);
    if (!(o->safety >= 0 && o->safety <= 1))
        return err_set(GPT_USAGE, "safety: expected 0 to 1, found %g", o->safety);
    if (!(o->cushion >= 0 && o->cushion < 1))
        return err_set(GPT_USAGE, "cushion: expected at least 0 and less than 1, found %g",
                       o->cushion);
    return 0;
}

/* The interval has closed to less than quad can hold: p with p(1) = 1 and as many derivatives
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

/* How far rounding can have carried the coefficients is seen by disturbing every row's input by
 * 2^-100, some four thousand times what quad's own rounding does. */
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
    for (int t = 0; t < g->n; t++) {
        char text[64];
        for (int i = 0; i < g->terms; i++)
            fprintf(f, "%s ", quad_text(text, sizeof text, g->row[t].coef[i], 17));
        for (int i = g->terms; i < 3; i++)
            fputs("0 ", f);
        fprintf(f, " # from %.12g on, %d digits\n", (double)g->row[t].lower, g->row[t].digits);
    }
}
