/* report.h - results as text, TSV, JSON or Markdown: tables, lines and listings.
 *
 *     struct report r;
 *     report_begin(&r, stdout, REPORT_TEXT);
 *     report_table(&r, "groups", NULL, "runs:i:Runs loss_mean:f4:Loss_μ");
 *     report_row(&r, INT64_C(8), 3.2783);        // by the columns' letters
 *     report_line(&r, "verdict", "%s: a record", name);
 *     rc = report_end(&r);                       // GPT_SYSTEM: could not be written
 *
 * A column is KEY:LETTER, and where text and Markdown have another heading than the key :HEADING,
 * in which '_' is a blank. Letters: s text, i int64_t, u uint64_t, b int (yes or no), and three of
 * double: f4 with four decimals, g5 with five significant digits, p a probability, four decimals
 * and "<0.0001" below. So text and Markdown round; TSV and JSON have ten significant digits.
 *
 * A missing value, a NaN, a text that is NULL or an int64_t REPORT_NONE, is "–" in text and Markdown, empty in TSV and null
 * in JSON. Infinity is null in JSON, too, which has no number for it. A byte that is not UTF-8
 * becomes '?', and so does a control character, which JSON escapes.
 *
 * TSV has a line of headings for each table and begins each line with the name of its part, the
 * headings with '#' before it; JSON is an object with a member for each part, an array. A report of
 * one table alone may leave its name out (NULL): TSV then has the columns only, JSON is the array.
 * Text and Markdown hold a table until it ends, the others write row by row. Text on a terminal has no
 * table that is wider than it: one that would be is printed in blocks of columns, one below the other,
 * each beginning with the columns that tell its rows apart. Elsewhere tables are as wide as they are.
 * One thread.
 */
#ifndef BASE_REPORT_H
#define BASE_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

/* REPORT_WIDE: text that is not broken for the terminal. */
enum report_format { REPORT_TEXT, REPORT_TSV, REPORT_JSON, REPORT_MARKDOWN, REPORT_WIDE };
enum { REPORT_COLUMNS = 72 };
#define REPORT_NONE INT64_MIN
struct column {
    char key[24], head[32], type;
    int digits;
};
struct report {
    FILE *f;
    enum report_format format;
    bool transposed; /* the caller's to set: in text a row of the table is printed as a column */
    int width; /* of the terminal; 0: none, or as wide as it is */
    bool opened, first, failed;
    const char *part; /* that is open; NULL: none, or a table without a name */
    int parts;
    struct column c[REPORT_COLUMNS];
    int columns, at, rows; /* at: cells of the present row so far */
    char **cell; /* text, Markdown: the headings and all rows */
    size_t cells;
};

/* Returns the format for an option "table|text|tsv|json|md"; NULL: text on a terminal, TSV where stdout
 * is none. wide: --wide was given. */
enum report_format report_format_of(const char *word, bool wide);
void report_begin(struct report *r, FILE *f, enum report_format format);
/* At most REPORT_COLUMNS columns. title: a line above the table in text and Markdown; NULL: none.
 * The next part or report_end ends the table. */
void report_table(struct report *r, const char *part, const char *title, const char *columns);
void report_row(struct report *r, ...);
/* A row cell by cell, in place of report_row. */
void report_cell_text(struct report *r, const char *s);
void report_cell_real(struct report *r, double x);
/* A line of text. In JSON a string; lines of one part that follow each other are one array. */
void report_line(struct report *r, const char *part, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Lines as they stand, a diff or a listing, under a title; fenced in Markdown. */
void report_block(struct report *r, const char *part, const char *title);
void report_block_line(struct report *r, const char *text, size_t n);
void report_block_end(struct report *r);
int report_end(struct report *r) MUST_CHECK;

#endif
