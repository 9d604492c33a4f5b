/* report.h - rows of results as an aligned table, as TSV, or as JSON.
 *
 *     static const struct column c[] = { { "name", 's' }, { "rms", 'g' }, { "zeros", 'u' } };
 *     struct report r;
 *     report_begin(&r, stdout, REPORT_TSV, c, 3);
 *     report_row(&r, "attn", 0.125, (uint64_t)0);         // by the columns' letters
 *     rc = report_end(&r);                                 // GPT_SYSTEM: could not be written
 *
 * Letters: s text, g double, u uint64_t, i int64_t. A NaN is "nan" in text and
 * null in JSON; so is text that is NULL ("-"). TSV has a header line; JSON is an
 * array of objects. A table and TSV have '?' for control characters. A table is
 * held until report_end, the others are written row by row. One thread.
 */
#ifndef BASE_REPORT_H
#define BASE_REPORT_H

#include <stdbool.h>
#include <stdio.h>
#include "base/err.h"

enum report_format { REPORT_TABLE, REPORT_TSV, REPORT_JSON };
enum { REPORT_COLUMNS = 24 };
struct column {
    const char *name;
    char type;
};
struct report {
    FILE *f;
    enum report_format format;
    const struct column *c;
    int n;
    long rows;
    char **cells; /* table: rows * n */
    size_t room;
    bool failed;
};

/* Of an option "table|tsv|json"; NULL: a table on a terminal, tsv where stdout is none. */
enum report_format report_format_of(const char *word);
void report_begin(struct report *r, FILE *f, enum report_format format, const struct column *c,
                  int n);
void report_row(struct report *r, ...);
int report_end(struct report *r) MUST_CHECK;

#endif
