/* paired.c - see paired.h. */
#include "runs/paired.h"

#include <math.h>
#include <stdlib.h>
#include "base/stats.h"
#include "runs/gather.h"

/* Returns the ended run of a group with that seed; NULL: there is none, or *twice: there are several. */
static const struct run *of_seed(const struct group *g, int64_t seed, bool *twice)
{
    const struct run *found = NULL;
    for (int i = 0; i < g->n; i++)
        if (g->run[i].ended && g->run[i].seed == seed) {
            *twice |= found != NULL;
            found = &g->run[i];
        }
    return found;
}

/* True if each ended run of a group has a seed of its own. */
static bool has_seeds(const struct group *g)
{
    bool twice = false;
    for (int i = 0; i < g->n && !twice; i++) {
        if (g->run[i].ended && g->run[i].seed < 0)
            return false;
        if (g->run[i].ended)
            of_seed(g, g->run[i].seed, &twice);
    }
    return !twice;
}

/* Returns the ended run behind *at, which it moves there. */
static const struct run *next_ended(const struct group *g, int *at)
{
    while (++*at < g->n)
        if (g->run[*at].ended)
            return &g->run[*at];
    return NULL;
}

static int ended_in(const struct group *g)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        n += g->run[i].ended;
    return n;
}

/* Sets what the losses of n pairs say: x of the baseline, y of the group, d room for n. */
static void set_sums(struct paired *p, const double *x, const double *y, double *d)
{
    int n = p->pairs;
    for (int i = 0; i < n; i++)
        d[i] = y[i] - x[i];
    struct sample s = sample_of(d, n), a = sample_of(x, n), b = sample_of(y, n);
    p->mean = s.mean;
    p->error = s.sd / sqrt(n);
    p->unpaired = sqrt((a.sd * a.sd + b.sd * b.sd) / n);
    if (n < 2 || !(s.sd > 1e-14 * fmax(fabs(a.mean), fabs(b.mean))))
        return; /* differences of equal losses are of rounding */
    p->p_lower = t_cdf(p->mean / p->error, n - 1);
    p->p_two_sided = 2 * t_cdf(-fabs(p->mean / p->error), n - 1);
}

int paired_of(struct paired *p, const struct gather *g, int group)
{
    const struct group *base = &g->group[0], *own = &g->group[group];
    double *x = malloc((3 * (size_t)own->n + 1) * sizeof *x);
    int k = -1, partner = -1;
    bool twice = false;
    *p = (struct paired){ .mean = NAN,
                          .error = NAN,
                          .unpaired = NAN,
                          .p_lower = NAN,
                          .p_two_sided = NAN,
                          .by_seed = has_seeds(base) && has_seeds(own) };
    if (!x)
        return err_memory();
    for (const struct run *r, *q; (r = next_ended(own, &k));) {
        q = p->by_seed ? of_seed(base, r->seed, &twice) : next_ended(base, &partner);
        if (!q)
            continue;
        x[p->pairs] = q->loss;
        x[own->n + p->pairs++] = r->loss;
    }
    p->left_out = ended_in(base) + ended_in(own) - 2 * p->pairs;
    if (p->pairs)
        set_sums(p, x, x + own->n, x + 2 * own->n);
    free(x);
    return 0;
}
