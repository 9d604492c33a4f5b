/* doc.h - a report of tables and lines as text, TSV, JSON or Markdown.
 *
 *     struct doc d;
 *     doc_begin(&d, stdout, DOC_TEXT);
 *     static const struct doc_column c[] = { { "runs", "Runs", 'i', 0 },
 *                                            { "loss", "Loss", 'f', 4 } };
 *     doc_table(&d, "groups", NULL, c, 2);
 *     doc_row(&d, 8L, 3.2783);                     // i long, f double, b int (yes or no), s text
 *     doc_table_end(&d);
 *     doc_text(&d, "verdict", "record: ...");
 *     rc = doc_end(&d);                            // GPT_SYSTEM: could not be written
 *
 * Text and Markdown round to the column's digits; TSV and JSON carry ten. In TSV each line
 * begins with the name of its part, so that grep takes a part out. In JSON a table is an
 * array of objects, texts of one name an array of strings, and a NaN null. Control characters
 * and what is no UTF-8 become '?'. A table is held until its end. One thread.
 */
#ifndef RUNS_DOC_H
#define RUNS_DOC_H

#include <stdbool.h>
#include <stdio.h>
#include "base/err.h"

enum doc_format { DOC_TEXT, DOC_TSV, DOC_JSON, DOC_MD };
enum { DOC_COLUMNS = 24 };
struct doc_column {
    const char *key, *head;
    char type;
    int digits;
};
struct doc {
    FILE *f;
    enum doc_format format;
    const char *part; /* the JSON member that is open; NULL: none */
    bool first, failed;
    int members;
    const struct doc_column *c;
    int columns, rows;
    char **cell;
    size_t cells, room;
};

void doc_begin(struct doc *d, FILE *f, enum doc_format format);
/* title: a heading in text and Markdown; NULL: none. */
void doc_table(struct doc *d, const char *name, const char *title, const struct doc_column *c,
               int n);
void doc_row(struct doc *d, ...);
void doc_table_end(struct doc *d);
/* One line. Lines of one name that follow each other make one array in JSON. */
void doc_text(struct doc *d, const char *name, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Lines as they stand, a diff or a listing; fenced in Markdown. Between them doc_line. */
void doc_block(struct doc *d, const char *name, const char *title);
void doc_line(struct doc *d, const char *text, size_t n);
void doc_block_end(struct doc *d);
int doc_end(struct doc *d) MUST_CHECK;

#endif
