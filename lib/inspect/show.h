/* show.h - what was found, as tables (report.h) or a picture, on a FILE.
 *
 * Each function writes its whole answer and returns GPT_SYSTEM when it could not.
 * They own nothing; any thread.
 */
#ifndef INSPECT_SHOW_H
#define INSPECT_SHOW_H

#include "inspect/diff.h"
#include "base/report.h"
#include "inspect/spectrum.h"
#include "inspect/tensor_stats.h"

int show_list(FILE *f, enum report_format format, const struct tensors *s,
              const struct views *v) MUST_CHECK;
/* The keys of MANIFEST or of the file's metadata, and sizes by kind. recipe: its name, or NULL. */
int show_info(FILE *f, enum report_format format, const struct tensors *s,
              const char *recipe) MUST_CHECK;
int show_stats(FILE *f, enum report_format format, const struct views *v,
               const struct tensor_stats *rows) MUST_CHECK;
int show_spectra(FILE *f, enum report_format format, const struct views *v,
                 const struct spectrum *sp) MUST_CHECK;
/* "# NAME RxC", then its singular values, one a line, for each matrix; of one that is zero, or of a
 * type that is not decoded, only the comment. */
int show_values(FILE *f, const struct views *v, const struct spectrum *sp) MUST_CHECK;
/* An SVG of sigma / largest; matrices of one role share a colour. */
int show_plot(FILE *f, const struct views *v, const struct spectrum *sp,
              const char *title) MUST_CHECK;
/* Differing rows, or all. */
int show_diff(FILE *f, enum report_format format, const struct diff_row *rows, int n,
              bool all) MUST_CHECK;

#endif
