/* curves.c - see curves.h. */
#include "runs/curves.h"

#include <math.h>

static struct sample point_sample(const struct curve_point *p)
{
    return (struct sample){ p->n, p->n ? p->mean : NAN, curve_sd(p) };
}

struct curves curves_begin(const struct group *base, const struct group *own, double alpha)
{
    struct curves c = { .base = base, .own = own, .parted = -1 };
    for (int i = 0; i < base->points; i++)
        c.rows += group_at(own, base->curve[i].step) != NULL;
    int tested = c.rows - (base->points && base->curve[0].step == 0 && group_at(own, 0));
    c.alpha = alpha / (tested > 1 ? tested : 1);
    return c;
}

bool curves_next(struct curves *c, struct curve_row *row)
{
    const struct curve_point *p = NULL, *q = NULL;
    while (c->at < c->base->points && !q) {
        p = &c->base->curve[c->at++];
        q = group_at(c->own, p->step);
    }
    if (!q)
        return false;
    *row = (struct curve_row){ .step = p->step, .base = point_sample(p), .own = point_sample(q) };
    struct welch w = welch_test(&row->own, &row->base);
    row->difference = row->own.mean - row->base.mean;
    row->error =
        sqrt(row->base.sd * row->base.sd / row->base.n + row->own.sd * row->own.sd / row->own.n);
    row->p = w.p_two_sided;
    c->tested += !isnan(row->p);
    row->parts = c->parted < 0 && row->step > 0 && row->p < c->alpha;
    if (row->parts)
        c->parted = row->step;
    return true;
}

double curve_between(const struct group *g, double step, double *sd)
{
    *sd = NAN;
    for (int i = 0; i < g->points; i++) {
        const struct curve_point *p = &g->curve[i];
        if (p->step == step) {
            *sd = curve_sd(p);
            return p->mean;
        }
        if (p->step > step && i > 0) {
            double share = (step - p[-1].step) / (p->step - p[-1].step);
            *sd = curve_sd(share < 0.5 ? p - 1 : p);
            return p[-1].mean + share * (p->mean - p[-1].mean);
        }
        if (p->step > step)
            break;
    }
    return NAN;
}
