#include "base/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/text.h"

enum report_format report_format_of(const char *word)
{
    if (!word)
        return isatty(STDOUT_FILENO) ? REPORT_TABLE : REPORT_TSV;
    return !strcmp(word, "json") ? REPORT_JSON : !strcmp(word, "tsv") ? REPORT_TSV : REPORT_TABLE;
}

void report_begin(struct report *r, FILE *f, enum report_format format, const struct column *c,
                  int n)
{
    memset(r, 0, sizeof *r);
    r->f = f;
    r->format = format;
    r->c = c;
    r->n = n;
    if (format == REPORT_JSON)
        fputc('[', f);
    for (int i = 0; format == REPORT_TSV && i < n; i++)
        fprintf(f, "%s%c", c[i].name, i + 1 < n ? '\t' : '\n');
}

/* A cell's text, in buf unless it is the caller's; *bare: JSON needs no quotes. */
static const char *cell(char buf[64], char type, va_list *ap, enum report_format format, bool *bare)
{
    *bare = true;
    if (type == 'g') {
        double x = va_arg(*ap, double);
        if (!isfinite(x) && format == REPORT_JSON)
            return "null";
        if (isnan(x))
            return "nan"; /* never "-nan" */
        snprintf(buf, 64, format == REPORT_TABLE ? "%.5g" : "%.9g", x);
    } else if (type == 'u') {
        snprintf(buf, 64, "%" PRIu64, va_arg(*ap, uint64_t));
    } else if (type == 'i') {
        snprintf(buf, 64, "%" PRId64, va_arg(*ap, int64_t));
    } else {
        const char *s = va_arg(*ap, const char *);
        *bare = !s;
        return s ? s : format == REPORT_JSON ? "null" : "-";
    }
    return buf;
}

static void keep(struct report *r, const char *text)
{
    size_t at = (size_t)r->rows * (size_t)r->n;
    while (at < r->room && r->cells[at])
        at++;
    if (at >= r->room) {
        size_t more = r->room ? 2 * r->room : 64 * (size_t)r->n;
        char **p = realloc(r->cells, more * sizeof *p);
        if (!p) {
            r->failed = true;
            return;
        }
        memset(p + r->room, 0, (more - r->room) * sizeof *p);
        r->cells = p;
        r->room = more;
    }
    r->cells[at] = strdup(text);
    r->failed |= !r->cells[at];
}

void report_row(struct report *r, ...)
{
    char buf[64];
    bool bare;
    va_list ap;
    va_start(ap, r);
    if (r->format == REPORT_JSON)
        fputs(r->rows ? ",\n{" : "\n{", r->f);
    for (int i = 0; i < r->n; i++) {
        const char *text = cell(buf, r->c[i].type, &ap, r->format, &bare);
        if (r->format == REPORT_TABLE) {
            keep(r, text);
        } else if (r->format == REPORT_TSV) {
            text_plain(r->f, text, strlen(text));
            fputc(i + 1 < r->n ? '\t' : '\n', r->f);
        } else {
            fputs(i ? "," : "", r->f);
            text_json(r->f, r->c[i].name);
            fputc(':', r->f);
            if (bare)
                fputs(text, r->f);
            else
                text_json(r->f, text);
        }
    }
    if (r->format == REPORT_JSON)
        fputc('}', r->f);
    va_end(ap);
    r->rows++;
}

/* Text to the left, numbers to the right, two blanks between; none at the end of a line. */
static void print_table(struct report *r)
{
    int width[REPORT_COLUMNS];
    for (int i = 0; i < r->n; i++) {
        width[i] = (int)strlen(r->c[i].name);
        for (long k = 0; k < r->rows; k++) {
            const char *s = r->cells[k * r->n + i];
            if (s && (int)strlen(s) > width[i])
                width[i] = (int)strlen(s);
        }
    }
    for (long k = -1; k < r->rows; k++)
        for (int i = 0; i < r->n; i++) {
            const char *s = k < 0 ? r->c[i].name : r->cells[k * r->n + i];
            int pad = s ? width[i] - (int)strlen(s) : width[i];
            bool number = r->c[i].type != 's', last = i + 1 == r->n;
            fprintf(r->f, "%*s", number ? pad : 0, "");
            text_plain(r->f, s ? s : "", s ? strlen(s) : 0);
            fprintf(r->f, "%*s%s", number || last ? 0 : pad, "", last ? "\n" : "  ");
        }
}

int report_end(struct report *r)
{
    if (r->format == REPORT_JSON)
        fputs("\n]\n", r->f);
    else if (r->format == REPORT_TABLE && !r->failed)
        print_table(r);
    for (size_t i = 0; i < r->room; i++)
        free(r->cells[i]);
    free(r->cells);
    r->cells = NULL;
    r->room = 0;
    if (r->failed)
        return err_set(GPT_SYSTEM, "out of memory");
    return ferror(r->f) ? err_sys("cannot write the report") : 0;
}
