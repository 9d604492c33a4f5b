/* What is said of a fit, to the user and in the table's comments. */
#include <stdio.h>
#include <string.h>
#include "base/hash.h"
#include "coeffs/fit.h"

void fit_describe(const struct fit *f, const struct coeffs *start, const struct fit_options *o,
                  char *text, size_t size)
{
    int at = snprintf(text, size, "%s |1 - f|%s: %.6g, of the start (%s) %.6g: ",
                      o->objective == FIT_MAX ? "largest" : "rms", o->bf16 ? " in bf16" : "",
                      f->after, start->name, f->before);
    if (f->after < f->before && f->after == 0)
        snprintf(text + at, size - (size_t)at, "exact");
    else if (f->after < f->before)
        snprintf(text + at, size - (size_t)at, "%.4g times less", f->before / f->after);
    else
        snprintf(text + at, size - (size_t)at, "nothing better was found");
}

/* Of the values and the start: of what the fit was made from. */
static int hash_inputs(const struct trials *t, const struct coeffs *start, char hex[33])
{
    struct xxh x;
    int rc = xxh_init(&x);
    if (rc)
        return rc;
    for (int i = 0; i < t->n; i++)
        xxh_add(&x, t->v[i].x, (size_t)t->v[i].n * sizeof *t->v[i].x);
    xxh_add(&x, start->row, sizeof start->row[0] * (size_t)start->n);
    xxh_hex(&x, hex);
    xxh_release(&x);
    return 0;
}

int fit_write(const struct fit *f, const struct coeffs *start, const struct trials *t,
              const struct fit_options *o, FILE *to)
{
    char hex[33], verdict[256];
    int rc = hash_inputs(t, start, hex);
    if (rc)
        return rc;
    fit_describe(f, start, o, verdict, sizeof verdict);
    fprintf(to,
            "# fitted to %ld singular values of %d matrices%s, %.4g to %.4g; xxh3 of values "
            "and start: %s\n# %s\n",
            f->count, t->n, t->v[0].aol ? " after AOL" : "", f->low, f->high, hex, verdict);
    if (o->bf16)
        fprintf(to, "# in exact arithmetic %.6g, of the start %.6g\n", f->exact_after,
                f->exact_before);
    if (f->guard_after > 0)
        fprintf(to, "# leaves the guard by %.3g, as the start does\n", f->guard_after);
    coeffs_write(&f->table, to);
    return 0;
}
