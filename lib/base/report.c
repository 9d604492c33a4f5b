#include "base/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "base/text.h"
#include "base/grow.h"

enum report_format report_format_of(const char *word, bool wide)
{
    if (!word)
        return !isatty(STDOUT_FILENO) ? REPORT_TSV : wide ? REPORT_WIDE : REPORT_TEXT;
    return !strcmp(word, "json")  ? REPORT_JSON
           : !strcmp(word, "tsv") ? REPORT_TSV
           : !strcmp(word, "md")  ? REPORT_MARKDOWN
           : wide                 ? REPORT_WIDE
                                  : REPORT_TEXT;
}

/* Text and Markdown: for a reader, not for a program. */
static bool aligned(const struct report *r)
{
    return r->format == REPORT_TEXT || r->format == REPORT_MARKDOWN;
}

static int width_of(FILE *f)
{
    enum { USUAL = 80 };
    struct winsize w;
    int fd = fileno(f);
    if (fd < 0 || !isatty(fd))
        return 0;
    return ioctl(fd, TIOCGWINSZ, &w) || !w.ws_col ? USUAL : w.ws_col;
}

void report_begin(struct report *r, FILE *f, enum report_format format)
{
    bool wide = format == REPORT_WIDE;
    *r = (struct report){ .f = f,
                          .format = wide ? REPORT_TEXT : format,
                          .width = format == REPORT_TEXT ? width_of(f) : 0 };
}

/* --- text that is safe to show --- */

/* A tab, which indents lines of program text, would end a field of TSV. */
static void put_line(struct report *r, const char *s, size_t n, const char *end)
{
    for (const char *tab; (tab = memchr(s, '\t', n)); n -= (size_t)(tab + 1 - s), s = tab + 1) {
        text_plain(r->f, s, (size_t)(tab - s));
        fputs(r->format == REPORT_TSV ? "    " : "\t", r->f);
    }
    text_plain(r->f, s, n);
    fputs(end, r->f);
}

static int columns_of(const char *s)
{
    int n = 0;
    for (; *s; s++)
        n += (*s & 0xc0) != 0x80;
    return n;
}

/* A line of prose: on a terminal broken between words. */
static void put_prose(struct report *r, const char *s, size_t n, const char *end)
{
    while (r->width && columns_of(s) > r->width) {
        size_t last = 0, k = 0;
        for (int columns = 0; k < n && columns <= r->width; k++) {
            columns += (s[k] & 0xc0) != 0x80;
            if (s[k] == ' ' && columns <= r->width + 1)
                last = k;
        }
        if (!last)
            break;
        put_line(r, s, last, "\n");
        s += last + 1, n -= last + 1;
    }
    put_line(r, s, n, end);
}

/* In Markdown a bar would end the cell. */
static void put_cell(struct report *r, const char *s)
{
    for (size_t k; *s; s += k) {
        k = r->format == REPORT_MARKDOWN ? strcspn(s, "|") : strlen(s);
        text_plain(r->f, s, k);
        fputs(s[k] ? "\\|" : "", r->f);
        k += s[k] != 0;
    }
}

/* --- parts --- */

/* Returns cell i of a line of the printed table, transposed or not: line 0 has the headings. */
static const char *cell_at(const struct report *r, int line, int i)
{
    return r->cell[r->transposed ? i * r->columns + line : line * r->columns + i];
}

/* The table as it is printed, transposed or not. */
struct layout {
    int lines, across;
    int key; /* the first columns, which tell lines apart: each block has them */
    int width[REPORT_COLUMNS];
};

static bool alike(const struct report *r, int line, int columns)
{
    for (int i = 0; i < columns; i++)
        if (strcmp(cell_at(r, line, i), cell_at(r, line + 1, i)) != 0)
            return false;
    return true;
}

static struct layout layout_of(const struct report *r)
{
    enum { KEY_MAX = 3 };
    struct layout l = { .lines = r->transposed ? r->columns : r->rows + 1,
                        .across = r->transposed ? r->rows + 1 : r->columns,
                        .key = 1 };
    for (int line = 0; line < l.lines; line++)
        for (int i = 0; i < l.across; i++)
            if (columns_of(cell_at(r, line, i)) > l.width[i])
                l.width[i] = columns_of(cell_at(r, line, i));
    for (int line = 1; line + 1 < l.lines && l.key < KEY_MAX && l.key < l.across; line++)
        if (alike(r, line, l.key)) {
            l.key++;
            line = 0;
        }
    return l;
}

static bool is_left(const struct report *r, int i)
{
    return r->transposed ? i == 0 : r->c[i].type == 's';
}

/* A line's cells in the key columns, where they stand before `first`, and in first .. last-1: text to the
 * left, numbers to the right, no blanks at the end of a line. */
static void put_cells(struct report *r, const struct layout *l, int line, int first, int last)
{
    bool md = r->format == REPORT_MARKDOWN;
    int shown[REPORT_COLUMNS], n = 0;
    for (int i = 0; i < l->key && i < first; i++)
        shown[n++] = i;
    for (int i = first; i < last; i++)
        shown[n++] = i;
    while (!md && n > 0 && !*cell_at(r, line, shown[n - 1]))
        n--;
    for (int k = 0; k < n; k++) {
        int i = shown[k];
        const char *text = cell_at(r, line, i);
        int pad = l->width[i] - columns_of(text);
        fputs(md ? k ? " | " : "| " : k ? "  " : "", r->f);
        fprintf(r->f, "%*s", is_left(r, i) ? 0 : pad, "");
        put_cell(r, text);
        fprintf(r->f, "%*s", is_left(r, i) && (md || k + 1 < n) ? pad : 0, "");
    }
    fputs(md ? " |\n" : "\n", r->f);
    for (int i = 0; md && line == 0 && i < l->across; i++)
        fprintf(r->f, "%s%s",
                is_left(r, i) ? "| --- " : "| ---: ", i + 1 == l->across ? "|\n" : "");
}

static void put_table(struct report *r)
{
    struct layout l = layout_of(r);
    int key = 0;
    for (int i = 0; i < l.key; i++)
        key += l.width[i] + 2;
    for (int at = 0, end; at < l.across; at = end) {
        int used = (at ? key : 0) + l.width[at];
        for (end = at + 1; end < l.across; end++)
            if ((used += 2 + l.width[end]) > r->width && r->width && end >= l.key)
                break;
        if (at)
            fputc('\n', r->f);
        for (int line = 0; line < l.lines; line++)
            put_cells(r, &l, line, at, end);
    }
}

static void end_table(struct report *r)
{
    if (r->cells && !r->failed)
        put_table(r);
    while (r->cells)
        free(r->cell[--r->cells]);
}

static void close_part(struct report *r)
{
    if (r->format == REPORT_JSON && r->opened)
        fputs("\n]", r->f);
    r->opened = false;
}

static void open_part(struct report *r, const char *part)
{
    end_table(r);
    if (!r->opened || !part || strcmp(r->part, part)) {
        close_part(r);
        r->opened = r->first = true;
        if (r->format == REPORT_JSON && part)
            fprintf(r->f, "%s\n\"%s\": ", r->parts ? "," : "{", part);
        if (r->format == REPORT_JSON)
            fputc('[', r->f);
        else if (r->parts && aligned(r))
            fputc('\n', r->f);
        r->parts++;
    }
    r->part = part;
}

static void next_item(struct report *r)
{
    if (r->format == REPORT_JSON)
        fputs(r->first ? "\n" : ",\n", r->f);
    r->first = false;
}

void report_line(struct report *r, const char *part, const char *fmt, ...)
{
    char *text;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) {
        r->failed = true;
        return;
    }
    open_part(r, part);
    next_item(r);
    if (r->format == REPORT_JSON) {
        text_json(r->f, text, (size_t)n, false);
    } else {
        if (r->format == REPORT_TSV)
            fprintf(r->f, "%s\t", part);
        put_prose(r, text, (size_t)n, r->format == REPORT_MARKDOWN ? "  \n" : "\n");
    }
    free(text);
}

static void put_title(struct report *r, const char *title)
{
    if (!title || !aligned(r))
        return;
    put_prose(r, title, strlen(title), r->format == REPORT_MARKDOWN ? "\n\n" : "\n");
}

void report_block(struct report *r, const char *part, const char *title)
{
    open_part(r, part);
    next_item(r);
    put_title(r, title);
    if (r->format == REPORT_JSON) {
        fputs("{\"title\": ", r->f);
        text_json(r->f, title, strlen(title), false);
        fputs(", \"lines\": [", r->f);
    } else if (r->format == REPORT_TSV) {
        report_block_line(r, title, strlen(title));
    } else if (r->format == REPORT_MARKDOWN) {
        fputs(strcmp(part, "diff") ? "```\n" : "```diff\n", r->f);
    }
    r->rows = 0;
}

void report_block_line(struct report *r, const char *text, size_t n)
{
    if (r->format == REPORT_JSON) {
        fputs(r->rows++ ? ", " : "", r->f);
        text_json(r->f, text, n, false);
        return;
    }
    if (r->format == REPORT_TSV)
        fprintf(r->f, "%s\t", r->part);
    put_line(r, text, n, "\n");
}

void report_block_end(struct report *r)
{
    if (r->format == REPORT_JSON)
        fputs("]}", r->f);
    else if (r->format == REPORT_MARKDOWN)
        fputs("```\n", r->f);
}

/* --- tables --- */

static void keep_cell(struct report *r, const char *text)
{
    if (grow_one(&r->cell, r->cells, sizeof *r->cell)) {
        r->failed = true;
        return;
    }
    r->failed |= !(r->cell[r->cells] = strdup(text));
    r->cells += r->cell[r->cells] != NULL;
}

static void set_columns(struct report *r, const char *s)
{
    r->columns = 0;
    for (s += strspn(s, " "); *s && r->columns < REPORT_COLUMNS; s += strspn(s, " ")) {
        struct column *c = &r->c[r->columns++];
        int key = (int)strcspn(s, ":"), all = (int)strcspn(s, " ");
        c->type = s[key + 1];
        c->digits = s[key + 2] >= '0' && s[key + 2] <= '9' ? s[key + 2] - '0' : 0;
        const char *head = memchr(s + key + 1, ':', (size_t)(all - key - 1));
        snprintf(c->key, sizeof c->key, "%.*s", key, s);
        if (head)
            snprintf(c->head, sizeof c->head, "%.*s", (int)(s + all - head - 1), head + 1);
        else
            strcpy(c->head, c->key);
        for (char *blank = head ? c->head : ""; (blank = strchr(blank, '_'));)
            *blank = ' ';
        s += all;
    }
}

void report_table(struct report *r, const char *part, const char *title, const char *columns)
{
    open_part(r, part);
    put_title(r, title);
    set_columns(r, columns);
    r->rows = r->at = 0;
    if (r->format == REPORT_TSV && part)
        fprintf(r->f, "#%s\t", part);
    for (int i = 0; i < r->columns; i++)
        if (r->format == REPORT_TSV)
            fprintf(r->f, "%s%c", r->c[i].key, i + 1 < r->columns ? '\t' : '\n');
        else if (aligned(r))
            keep_cell(r, r->c[i].head);
}

/* The next cell of the row; NULL: missing. quoted: JSON needs quotes. */
static void add_cell(struct report *r, const char *text, bool quoted)
{
    const struct column *c = &r->c[r->at];
    bool first = r->at == 0, last = r->at + 1 == r->columns;
    if (first)
        next_item(r);
    if (r->format == REPORT_JSON) {
        fprintf(r->f, "%s\"%s\": ", first ? "{" : ", ", c->key);
        if (quoted && text)
            text_json(r->f, text, strlen(text), false);
        else
            fputs(text ? text : "null", r->f);
        fputs(last ? "}" : "", r->f);
    } else if (r->format == REPORT_TSV) {
        if (first && r->part)
            fprintf(r->f, "%s\t", r->part);
        put_cell(r, text ? text : "");
        fputc(last ? '\n' : '\t', r->f);
    } else {
        keep_cell(r, text ? text : "–");
    }
    r->at = last ? 0 : r->at + 1;
    r->rows += last;
}

void report_cell_text(struct report *r, const char *s) { add_cell(r, s, true); }

void report_cell_real(struct report *r, double x)
{
    const struct column *c = &r->c[r->at];
    char text[64];
    int digits = c->type == 'p' ? 4 : c->digits;
    bool fixed = c->type != 'g' && fabs(x) < 1e15;
    if (isnan(x) || (isinf(x) && r->format == REPORT_JSON)) {
        add_cell(r, NULL, false);
        return;
    }
    if (!aligned(r))
        snprintf(text, sizeof text, "%.10g", x);
    else if (c->type == 'p' && x < 1e-4)
        strcpy(text, "<0.0001");
    else
        snprintf(text, sizeof text, fixed ? "%.*f" : "%.*g", digits, x);
    add_cell(r, text, false);
}

static const char *truth(const struct report *r, bool yes)
{
    if (aligned(r))
        return yes ? "yes" : "no";
    return r->format == REPORT_JSON ? yes ? "true" : "false" : yes ? "1" : "0";
}

void report_row(struct report *r, ...)
{
    char whole[32];
    int64_t n;
    va_list ap;
    va_start(ap, r);
    for (int i = 0; i < r->columns; i++)
        switch (r->c[i].type) {
        case 's': report_cell_text(r, va_arg(ap, const char *)); break;
        case 'b': add_cell(r, truth(r, va_arg(ap, int)), false); break;
        case 'i':
            n = va_arg(ap, int64_t);
            snprintf(whole, sizeof whole, "%" PRId64, n);
            add_cell(r, n == REPORT_NONE ? NULL : whole, false);
            break;
        case 'u':
            snprintf(whole, sizeof whole, "%" PRIu64, va_arg(ap, uint64_t));
            add_cell(r, whole, false);
            break;
        default: report_cell_real(r, va_arg(ap, double));
        }
    va_end(ap);
}

int report_end(struct report *r)
{
    bool named = r->part != NULL;
    end_table(r);
    close_part(r);
    if (r->format == REPORT_JSON)
        fputs(named ? "\n}\n" : "\n", r->f);
    free(r->cell);
    r->cell = NULL;
    if (r->failed)
        return err_memory();
    return ferror(r->f) ? err_sys("cannot write the report") : 0;
}
