/* verdict.h - all measures of a table in eval.h, as named numbers, printed and drawn.
 *
 *     struct candidate c = { .table = table, .input = table.input, .trials = &t };
 *     struct judge j = { .lower = 1e-3, .upper = 1, .bf16 = true };
 *     struct verdict v;
 *     if ((rc = verdict_of(&v, &c, &j))) return rc;
 *     for (int i = 0; i < v.n; i++) printf("%s %g\n", v.v[i].name, v.v[i].value);
 *
 * The names do not depend on the table, so verdicts can be printed side by side. A measure that
 * is not defined for a table is NaN. Thread-safe.
 */
#ifndef COEFFS_VERDICT_H
#define COEFFS_VERDICT_H

#include "base/report.h"
#include "coeffs/eval.h"

enum { VERDICT_MAX = 32 };
struct judge {
    double lower, upper; /* the interval */
    bool bf16, gram; /* on the trials, too; gram: the Gram form beside bf16 */
    int rows, cols; /* of which the work is counted; 0: not counted */
};
/* A table and what it is judged on. */
struct candidate {
    struct coeffs table;
    const char *drop; /* "first" or "last": the row that was left out; NULL: none */
    enum coeffs_input input; /* by which the trials are scaled */
    const struct trials *trials; /* may be empty */
};
struct verdict {
    int n;
    struct {
        const char *name;
        double value;
    } v[VERDICT_MAX];
};
int verdict_of(struct verdict *v, const struct candidate *c, const struct judge *j) MUST_CHECK;

/* A line a table, in text a column a table. GPT_SYSTEM: could not be written. */
int verdict_print(FILE *f, enum report_format format, const struct candidate *c,
                  const struct verdict *v, int n) MUST_CHECK;

/* f above and |1 - f| below over a logarithmic x from lower / 10 to 1.3 upper, as SVG; the interval
 * is marked. Where there are trials also each one's distance to its own polar factor, a column of points a table.
 * n is at most VERDICT_CURVES. The caller checks the stream. */
enum { VERDICT_CURVES = 8 };
void verdict_plot(FILE *f, const struct candidate *c, int n, double lower, double upper);

#endif
