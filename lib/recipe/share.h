/* share.h - which units of a parameter each rank owns: whole matrices of a bank, rows of a table.
 *
 * Units that divide by the number of ranks are cut into equal parts. Others are dealt: rows so
 * that counts differ by one at most; matrices of NorMuon, over all of its parameters, each to the
 * rank with the least work so far, the costliest first. Matrices of a bank are equal, so a rank's
 * are neighbours in any case, and a rank may have none (optimizers.md 2.1).
 *
 *     struct span own[world];
 *     shares_of(recipe, i, world, own);        // units own[r].first .. own[r].first + own[r].count - 1
 *
 * Pure functions; any thread.
 */
#ifndef RECIPE_SHARE_H
#define RECIPE_SHARE_H

#include "types/tensor.h"
#include "recipe/recipe.h"

static inline int64_t param_units(const struct param_spec *s)
{
    return s->matrices > 1 ? s->matrices : s->rows;
}
/* Returns a rank's part of n units: parts are equal, or the first ranks have one more. */
struct span share_even(int64_t n, int rank, int world);
/* own (world); a replicated parameter is whole on every rank. */
void shares_of(const struct recipe *r, int param, int world, struct span *own);
struct span share_of(const struct recipe *r, int param, int rank, int world);
/* Units that the rank with most of them owns. */
int64_t share_most(const struct recipe *r, int param, int world);
/* FLOPs to orthogonalise one matrix of a parameter, one triangle of symmetric products
 * (orthogonalisation.md 6); 0 for Adam's. */
double share_cost(const struct recipe *r, int param);

#endif
