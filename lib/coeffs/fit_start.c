#include <stdio.h>
#include <string.h>
#include "coeffs/fit.h"
#include "coeffs/minimax.h"
#include "coeffs/sets.h"

static int greedy_table(struct coeffs *c, int rows)
{
    struct greedy_options opt = GREEDY_DEFAULT;
    struct greedy g;
    opt.iters = rows;
    int rc = greedy_derive(&g, &opt);
    if (rc)
        return rc;
    greedy_coeffs(&g, c);
    snprintf(c->name, sizeof c->name, "polar --iters %d", rows);
    return 0;
}

static void drop_first(struct coeffs *c)
{
    static const char what[] = " without its first";
    memmove(c->row[0], c->row[1], sizeof c->row[0] * (size_t)--c->n);
    size_t at = strnlen(c->name, sizeof c->name - sizeof what);
    memcpy(c->name + at, what, sizeof what);
}

int fit_start(struct coeffs *c, const char *from, int rows, bool aol)
{
    int want = rows ? rows : aol ? 4 : 5;
    int rc = from ? set_or_file(c, from) : greedy_table(c, want + aol);
    if (rc)
        return rc;
    if (aol && c->n == want + 1)
        drop_first(c);
    if ((rows || aol) && c->n != want)
        return err_set(GPT_USAGE, "%s has %d rows, expected %d%s", c->name, c->n, want,
                       aol ? " or one more" : "");
    return 0;
}
