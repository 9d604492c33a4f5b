/* objective.h - what a fit minimises, as a sum of smooth terms; used by fit.c alone.
 *
 *     phi = mean_i w_i (|r_i| / scale)^p  +  weight * mean_g (h_g / scale)^2
 *
 * r_i = 1 - f(x_i) on the points; h_g is how far the table leaves the guard at
 * the point g of a grid. p = 2 with scale 1 is the mean square.
 */
#ifndef COEFFS_OBJECTIVE_H
#define COEFFS_OBJECTIVE_H

#include "coeffs/fit.h"

enum { PARAMS_MAX = COEFFS_ROWS * COEFFS_TERMS, GUARD_POINTS = 400, GUARD_MAX = 640 };

struct objective {
    int n; /* points, */
    double *x, *w; /* their weights sum to 1 */
    double power, scale; /* p above */
    int n_grid; /* points of the guard, ascending; the last is its end */
    double grid[GUARD_MAX];
    double floor_from; /* guard: over 1 - swing from here on */
    double swing, safety, weight;
    const struct trials *trials; /* not NULL: residuals in bf16, of all points in order */
    double lower; /* with trials: points below have weight 0 */
};

/* phi; with grad and hess (row-major, params x params) also its derivatives, the second ones
 * without curvature of f. Infinite when a value cannot be had. */
double objective_value(const struct objective *o, const struct coeffs *c, double *grad,
                       double *hess);
/* Largest |1 - f| over the points, in the arithmetic of the objective. */
double objective_largest(const struct objective *o, const struct coeffs *c);
/* Largest excess over the guard for this swing: on the grid, quickly, and everywhere. */
double guard_excess(const struct objective *o, const struct coeffs *c, double swing);
double guard_excess_all(const struct objective *o, const struct coeffs *c, double swing);
/* Adds to the grid the places between its points where c leaves the guard. */
void guard_refine(struct objective *o, const struct coeffs *c);
/* f at x, with every row's input after the first times `stretch`, and its slopes d by all
 * coefficients, row by row (d NULL: none). Beyond 3 it is f's logarithm, so that an explosion has
 * a slope. */
double objective_point(const struct coeffs *c, double x, double stretch, double *d);
/* Levenberg-Marquardt from c, in place, for at most `rounds` accepted steps; returns phi. */
double objective_minimize(const struct objective *o, struct coeffs *c, int rounds);

/* The largest |1 - f| alone, by linear programs within a trust region: each minimises the
 * largest linearised error while the linearised guard holds. In place, at most `rounds` of them. */
void objective_minimax(const struct objective *o, struct coeffs *c, int rounds);

#endif
