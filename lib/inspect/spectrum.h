/* spectrum.h - singular values of matrices, and measures of them.
 *
 *     struct spectrum sp;
 *     if ((rc = spectrum_of(a, rows, cols, &sp))) return rc;   // a is used up
 *     sp.sigma[0] is the largest of sp.n = min(rows, cols)
 *     spectrum_release(&sp);
 *
 * LAPACK's dgesdd, in double, values only. spectrum_views does many matrices on
 * all processors, reading one after the other.
 */
#ifndef INSPECT_SPECTRUM_H
#define INSPECT_SPECTRUM_H

#include "inspect/views.h"

struct spectrum {
    double *sigma; /* descending */
    int n;
    uint64_t rows, cols;
    double frobenius;
    double condition; /* largest / smallest; infinite for a singular matrix */
    double stable_rank; /* |A|_F^2 / sigma_max^2 (Rudelson and Vershynin, 2007) */
    double effective_rank; /* exp of the entropy of sigma / sum sigma (Roy and
                                   Vetterli, 2007) */
    double alpha; /* exponent of the tail of sigma^2, fitted as Clauset, Shalizi and
                                   Newman (2009) do; NaN below 10 values */
    double orthogonality; /* rms of sigma / rms(sigma) - 1: 0 for an orthogonal matrix */
};

/* a: rows x cols, row-major, finite (else GPT_INPUT); overwritten. */
int spectrum_of(double *a, uint64_t rows, uint64_t cols, struct spectrum *sp) MUST_CHECK;
void spectrum_release(struct spectrum *sp);
/* Fills the numbers from sigma, n. */
void spectrum_measure(struct spectrum *sp);

/* What the odd polynomials c of an orthogonalisation make of sigma, in exact arithmetic:
 * scale sigma goes through a x + b x^3 + c x^5 for each row. In place. */
void spectrum_polar(struct spectrum *sp, double scale, const double (*coef)[3], int n);

/* Spectra of all views that are matrices (rank 2); of A - B for views of `since` with the same
 * names when it is not NULL. sp: views->n; n = 0 where a view is no matrix, or its
 * values cannot be decoded. */
struct spectrum_job {
    struct tensors *s;
    const struct views *v;
    struct tensors *since;
    const struct views *since_v;
    bool aol; /* of what AOL makes of the matrix */
    const struct recipe
        *update; /* not NULL: of what the polar stage of each parameter's rule makes of the
                                    matrix, scaled as that says, by its coefficients in exact arithmetic;
                                    GPT_INPUT: a rule has none */
    void (*done)(void *arg, int i); /* after each, for progress; may be NULL */
    void *arg;
};
int spectrum_views(const struct spectrum_job *j, struct spectrum *sp) MUST_CHECK;

#endif
