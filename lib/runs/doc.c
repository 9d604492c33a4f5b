/* doc.c - see doc.h. */
#include "runs/doc.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/text.h"

void doc_begin(struct doc *d, FILE *f, enum doc_format format)
{
    *d = (struct doc){ .f = f, .format = format };
    if (format == DOC_JSON)
        fputc('{', f);
}

/* --- text that is safe to show --- */

/* In a cell of Markdown a bar would end it. */
static void put_safe(struct doc *d, const char *s, size_t n, bool cell)
{
    for (size_t k; n; s += k, n -= k) {
        k = text_utf8(s, n);
        k = k ? k : 1;
        if (*s == '\t') {
            fputs(d->format == DOC_JSON ? "\\t" : d->format == DOC_TSV ? "    " : "\t", d->f);
        } else {
            if ((d->format == DOC_JSON && (*s == '"' || *s == '\\')) ||
                (d->format == DOC_MD && cell && *s == '|'))
                fputc('\\', d->f);
            text_plain(d->f, s, k);
        }
    }
}

static int columns_of(const char *s)
{
    int n = 0;
    for (; *s; s++)
        n += (*s & 0xc0) != 0x80;
    return n;
}

static void put_json_text(struct doc *d, const char *s, size_t n)
{
    fputc('"', d->f);
    put_safe(d, s, n, false);
    fputc('"', d->f);
}

/* --- parts --- */

static void close_part(struct doc *d)
{
    if (d->format == DOC_JSON && d->part)
        fputs("]", d->f);
    d->part = NULL;
}

static void open_part(struct doc *d, const char *name)
{
    bool same = d->part && !strcmp(d->part, name);
    if (!same) {
        close_part(d);
        d->first = true;
        if (d->format == DOC_JSON)
            fprintf(d->f, "%s\n\"%s\": [", d->members++ ? "," : "", name);
        else if (d->members++ && d->format != DOC_TSV)
            fputc('\n', d->f);
    }
    d->part = name;
}

static void next_item(struct doc *d)
{
    if (d->format == DOC_JSON)
        fputs(d->first ? "\n" : ",\n", d->f);
    d->first = false;
}

void doc_text(struct doc *d, const char *name, const char *fmt, ...)
{
    char *text;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) {
        d->failed = true;
        return;
    }
    open_part(d, name);
    next_item(d);
    if (d->format == DOC_JSON) {
        put_json_text(d, text, (size_t)n);
    } else {
        if (d->format == DOC_TSV)
            fprintf(d->f, "%s\t", name);
        put_safe(d, text, (size_t)n, false);
        fputs(d->format == DOC_MD ? "  \n" : "\n", d->f);
    }
    free(text);
}

static void put_title(struct doc *d, const char *title)
{
    if (!title || d->format == DOC_TSV || d->format == DOC_JSON)
        return;
    put_safe(d, title, strlen(title), false);
    fputs(d->format == DOC_MD ? "\n\n" : "\n", d->f);
}

void doc_block(struct doc *d, const char *name, const char *title)
{
    open_part(d, name);
    next_item(d);
    if (d->format == DOC_JSON) {
        fputs("{\"title\": ", d->f);
        put_json_text(d, title, strlen(title));
        fputs(", \"lines\": [", d->f);
    } else if (d->format == DOC_TSV) {
        fprintf(d->f, "%s\t", name);
        put_safe(d, title, strlen(title), false);
        fputc('\n', d->f);
    } else {
        put_title(d, title);
        if (d->format == DOC_MD)
            fputs(strcmp(name, "diff") ? "```\n" : "```diff\n", d->f);
    }
    d->rows = 0;
}

void doc_line(struct doc *d, const char *text, size_t n)
{
    if (d->format == DOC_JSON) {
        fputs(d->rows++ ? ", " : "", d->f);
        put_json_text(d, text, n);
        return;
    }
    if (d->format == DOC_TSV)
        fprintf(d->f, "%s\t", d->part);
    put_safe(d, text, n, false);
    fputc('\n', d->f);
}

void doc_block_end(struct doc *d)
{
    if (d->format == DOC_JSON)
        fputs("]}", d->f);
    else if (d->format == DOC_MD)
        fputs("```\n", d->f);
}

/* --- tables --- */

void doc_table(struct doc *d, const char *name, const char *title, const struct doc_column *c,
               int n)
{
    open_part(d, name);
    put_title(d, title);
    d->c = c;
    d->columns = n;
    d->rows = 0;
    d->cells = 0;
    if (d->format != DOC_TSV)
        return;
    fprintf(d->f, "#%s", name);
    for (int i = 0; i < n; i++)
        fprintf(d->f, "\t%s", c[i].key);
    fputc('\n', d->f);
}

static void keep_cell(struct doc *d, const char *text)
{
    if (d->cells == d->room) {
        size_t room = d->room ? 2 * d->room : 256;
        char **p = realloc(d->cell, room * sizeof *p);
        if (!p) {
            d->failed = true;
            return;
        }
        d->cell = p;
        d->room = room;
    }
    d->failed |= !(d->cell[d->cells] = strdup(text));
    d->cells += d->cell[d->cells] != NULL;
}

static void put_number(struct doc *d, const struct doc_column *c, double x)
{
    char text[64];
    if (!isfinite(x) && d->format == DOC_JSON)
        snprintf(text, sizeof text, "null");
    else if (isnan(x))
        snprintf(text, sizeof text, "NaN");
    else if (d->format == DOC_TSV || d->format == DOC_JSON)
        snprintf(text, sizeof text, "%.10g", x);
    else
        snprintf(text, sizeof text, fabs(x) < 1e15 ? "%.*f" : "%.*g", c->digits, x);
    if (d->format == DOC_TEXT || d->format == DOC_MD)
        keep_cell(d, text);
    else
        fputs(text, d->f);
}

static const char *truth(enum doc_format format, bool yes)
{
    return format == DOC_JSON  ? yes ? "true" : "false"
           : format == DOC_TSV ? yes ? "1" : "0"
           : yes               ? "yes"
                               : "no";
}

void doc_row(struct doc *d, ...)
{
    char whole[32];
    va_list ap;
    va_start(ap, d);
    next_item(d);
    if (d->format == DOC_JSON)
        fputc('{', d->f);
    else if (d->format == DOC_TSV)
        fputs(d->part, d->f);
    for (int i = 0; i < d->columns; i++) {
        const struct doc_column *c = &d->c[i];
        const char *s = whole;
        if (d->format == DOC_JSON)
            fprintf(d->f, "%s\"%s\": ", i ? ", " : "", c->key);
        else if (d->format == DOC_TSV)
            fputc('\t', d->f);
        if (c->type == 'f') {
            put_number(d, c, va_arg(ap, double));
            continue;
        }
        if (c->type == 'i')
            snprintf(whole, sizeof whole, "%ld", va_arg(ap, long));
        else if (c->type == 'b')
            s = truth(d->format, va_arg(ap, int));
        else
            s = va_arg(ap, const char *);
        if (d->format == DOC_JSON && (c->type != 's' || !s))
            fputs(s ? s : "null", d->f);
        else if (d->format == DOC_JSON)
            put_json_text(d, s, strlen(s));
        else if (d->format == DOC_TSV)
            put_safe(d, s ? s : "", s ? strlen(s) : 0, true);
        else
            keep_cell(d, s ? s : "");
    }
    if (d->format == DOC_JSON)
        fputc('}', d->f);
    else if (d->format == DOC_TSV)
        fputc('\n', d->f);
    d->rows++;
    va_end(ap);
}

static void put_cell(struct doc *d, const char *text, int width, bool left, bool last)
{
    int pad = width - columns_of(text);
    if (!left)
        fprintf(d->f, "%*s", pad > 0 ? pad : 0, "");
    put_safe(d, text, strlen(text), true);
    if (left && (!last || d->format == DOC_MD))
        fprintf(d->f, "%*s", pad > 0 ? pad : 0, "");
}

static void put_table(struct doc *d)
{
    int width[DOC_COLUMNS] = { 0 };
    bool md = d->format == DOC_MD;
    for (int i = 0; i < d->columns; i++)
        width[i] = columns_of(d->c[i].head);
    for (size_t k = 0; k < d->cells; k++)
        if (columns_of(d->cell[k]) > width[k % (size_t)d->columns])
            width[k % (size_t)d->columns] = columns_of(d->cell[k]);
    for (int row = -1; row < d->rows; row++) {
        int shown = d->columns;
        while (!md && shown > 0 &&
               !*(row < 0 ? d->c[shown - 1].head : d->cell[row * d->columns + shown - 1]))
            shown--;
        for (int i = 0; i < shown; i++) {
            const char *text = row < 0 ? d->c[i].head : d->cell[row * d->columns + i];
            fputs(md ? i ? " | " : "| " : i ? "  " : "", d->f);
            put_cell(d, text, width[i], d->c[i].type == 's', i + 1 == d->columns);
        }
        fputs(md ? " |\n" : "\n", d->f);
        for (int i = 0; md && row < 0 && i < d->columns; i++)
            fprintf(d->f, "%s%s",
                    d->c[i].type == 's' ? "| --- " : "| ---: ", i + 1 == d->columns ? "|\n" : "");
    }
}

void doc_table_end(struct doc *d)
{
    if ((d->format == DOC_TEXT || d->format == DOC_MD) && !d->failed)
        put_table(d);
    while (d->cells)
        free(d->cell[--d->cells]);
}

int doc_end(struct doc *d)
{
    close_part(d);
    if (d->format == DOC_JSON)
        fputs("\n}\n", d->f);
    free(d->cell);
    d->cell = NULL;
    if (d->failed)
        return err_set(GPT_SYSTEM, "out of memory");
    return ferror(d->f) ? err_sys("cannot write the report") : 0;
}
