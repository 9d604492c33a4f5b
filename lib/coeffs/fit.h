/* fit.h - all rows of a table at once, optimised for given singular values.
 *
 *     struct fit_options o = FIT_DEFAULT;
 *     struct fit f;
 *     if ((rc = fit_table(&f, &start, &trials, &o))) return rc;
 *     f.table, f.before, f.after               // objective of start and of the fit
 *
 * Minimises the rms or the largest |1 - f| over the singular values that the
 * first row sees (trial.h), with Levenberg and Marquardt's method; the largest as
 * the limit of p-norms. The spectrum of a later step may differ from the measured
 * one, so a guard bounds f everywhere: on (0, upper] it stays in 0 .. 1 + swing,
 * and above the median also over 1 - swing, even if the input of every row after
 * the first is larger by a factor 1 + safety. Where the start exceeds the guard,
 * the fit may exceed it as far.
 *
 * The search begins at the start and at greedy tables (minimax.h) for several
 * intervals, so a good local minimum is found, not certainly the global one. Where
 * nothing better than the start is found, the result is the start.
 *
 * With `rounded` set, the objective is that of trial_rounded, `how` (needs TRIAL_VECTORS): the
 * exact fit is improved further, with residuals of the rounded iteration and
 * derivatives of the exact one. One thread.
 */
#ifndef COEFFS_FIT_H
#define COEFFS_FIT_H

#include "coeffs/eval.h"

enum fit_objective { FIT_RMS, FIT_MAX };
struct fit_options {
    enum fit_objective objective;
    bool rounded;
    unsigned how; /* of trial_rounded */
    double lower; /* singular values below are left out */
    double upper; /* the guard ends here */
    double swing, safety;
};
#define FIT_DEFAULT \
    { \
        FIT_RMS, false, 0, 0, 1, 0.3, 0.01 \
    }

struct fit {
    struct coeffs table;
    double before, after; /* the objective, of start and table */
    double exact_before, exact_after; /* the same in exact arithmetic; equal unless rounded */
    double guard_before, guard_after; /* how far outside the guard, 0: inside */
    long count; /* singular values that count */
    double low, high; /* their range */
};
/* GPT_USAGE: an option out of range. */
int fit_check(const struct fit_options *o) MUST_CHECK;
/* Fits a table. GPT_INPUT: what fit_check refuses, or no singular value of at least `lower`. */
int fit_table(struct fit *f, const struct coeffs *start, const struct trials *t,
              const struct fit_options *o) MUST_CHECK;
/* "rms |1 - f|: 0.0783, of the start (polar --iters 5) 0.0952: 1.216 times less". */
void fit_describe(const struct fit *f, const struct coeffs *start, const struct fit_options *o,
                  char *text, size_t size);
/* Table and comments: what was fitted to, a hash of it, fit_describe. The caller checks `to`. */
int fit_write(const struct fit *f, const struct coeffs *start, const struct trials *t,
              const struct fit_options *o, FILE *to) MUST_CHECK;

/* The table to start from: a set's name or a file, or with NULL the greedy one. rows 0 is 5, with
 * aol 4, but any number of rows of a table given without aol. With aol a table of one row more
 * loses its first row, whose work AOL does (pull request 155); so does the greedy one. */
int fit_start(struct coeffs *c, const char *from, int rows, bool aol) MUST_CHECK;

#endif
