/* share.c - see share.h. */
#include "recipe/share.h"

#include <math.h>
#include <string.h>

struct span share_even(int64_t n, int rank, int world)
{
    int64_t each = n / world, more = n % world;
    return (struct span){ rank * each + (rank < more ? rank : more), each + (rank < more) };
}

double share_cost(const struct recipe *r, int i)
{
    const struct param_spec *s = &r->params[i];
    double rows = (double)s->rows, cols = (double)s->cols;
    double a = chain_flops(&s->rule.chain[0], rows, cols);
    double b = s->rule.join == RULE_SINGLE ? 0 : chain_flops(&s->rule.chain[1], rows, cols);
    return s->rule.join == RULE_THEN ? fmax(a, b) : a + b;
}

static bool is_dealt(const struct recipe *r, int i, int world)
{
    const struct param_spec *s = &r->params[i];
    return s->comms != COMMS_REPLICATED && s->matrices > 1 && share_cost(r, i) > 0 &&
           s->matrices % world;
}

/* Adds the parameter's matrices to the ranks' loads; own: of each rank, packed in their order. */
static void deal(const struct recipe *r, int i, int world, double *load, struct span *own)
{
    memset(own, 0, (size_t)world * sizeof *own);
    for (int64_t m = 0; m < r->params[i].matrices; m++) {
        int least = 0;
        for (int k = 1; k < world; k++)
            if (load[k] < load[least])
                least = k;
        own[least].count++;
        load[least] += share_cost(r, i);
    }
    for (int k = 1; k < world; k++)
        own[k].first = own[k - 1].first + own[k - 1].count;
}

/* The dealt parameter after `last` in falling cost, equal ones by index; -1: none. */
static int next_dealt(const struct recipe *r, int world, int last)
{
    int best = -1;
    for (int i = 0; i < r->n_params; i++) {
        double cost = share_cost(r, i), before = last < 0 ? INFINITY : share_cost(r, last);
        if (is_dealt(r, i, world) && (cost < before || (cost == before && i > last)) &&
            (best < 0 || cost > share_cost(r, best)))
            best = i;
    }
    return best;
}

void shares_of(const struct recipe *r, int param, int world, struct span *own)
{
    const struct param_spec *s = &r->params[param];
    int64_t units = param_units(s);
    double load[world];

    if (!is_dealt(r, param, world)) {
        for (int k = 0; k < world; k++)
            own[k] = s->comms == COMMS_REPLICATED ? (struct span){ 0, units }
                                                  : share_even(units, k, world);
        return;
    }
    memset(load, 0, sizeof load); /* banks that divide load all ranks equally */
    for (int i = next_dealt(r, world, -1); i >= 0; i = next_dealt(r, world, i)) {
        deal(r, i, world, load, own);
        if (i == param)
            return;
    }
}

struct span share_of(const struct recipe *r, int param, int rank, int world)
{
    struct span own[world];
    shares_of(r, param, world, own);
    return own[rank];
}

int64_t share_most(const struct recipe *r, int param, int world)
{
    struct span own[world];
    int64_t most = 0;
    shares_of(r, param, world, own);
    for (int k = 0; k < world; k++)
        most = own[k].count > most ? own[k].count : most;
    return most;
}
