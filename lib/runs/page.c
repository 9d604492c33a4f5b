/* page.c - see page.h. */
#include "runs/page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/text.h"
#include "runs/plot.h"
#include "runs/rows.h"

/* The file with a zero byte behind it; its path is relative to the top of the tree, where make runs. */
__asm__(".pushsection .rodata\npage_text:\n.incbin \"lib/runs/page.html\"\n.byte 0\n.popsection\n");
extern const char page_text[] __attribute__((visibility("hidden")));

static void put_string(FILE *f, const char *s) { text_json(f, s, strlen(s), false); }

static void put_number(FILE *f, double x) { fprintf(f, isfinite(x) ? "%.10g" : "null", x); }

/* --- data --- */

static bool is_shown(const struct variant *v) { return v->kind != FACT_SOURCE && v->text; }

static void put_facts(FILE *f, const struct gather *g)
{
    const char *between = "";
    for (int i = 0; i < g->variants.n; i++) {
        if (!is_shown(&g->variants.v[i]))
            continue;
        fprintf(f, "%s\n{\"kind\": ", between);
        put_string(f, fact_name[g->variants.v[i].kind]);
        fputs(", \"text\": ", f);
        put_string(f, g->variants.v[i].text);
        fputc('}', f);
        between = ",";
    }
}

/* The numbers that a run's facts have among those shown. */
static void put_fact_numbers(FILE *f, const struct gather *g, const struct run *r)
{
    const char *between = "";
    int number = 0;
    for (int i = 0; i < g->variants.n; i++) {
        if (!is_shown(&g->variants.v[i]))
            continue;
        if (r->fact[g->variants.v[i].kind] == i) {
            fprintf(f, "%s%d", between, number);
            between = ", ";
        }
        number++;
    }
}

/* Writes one column of a run's rows, -1 the step; nothing of a column without values. */
static void put_column(FILE *f, struct rows *o, int column)
{
    struct row row;
    bool any = column < 0;
    const char *between = "";
    rows_rewind(o);
    while (!any && rows_next(o, INT32_MAX, &row))
        any = isfinite(row.value[column]);
    if (!any)
        return;
    fprintf(f, "%s\"%s\": [", column < 0 ? "" : ",\n", column < 0 ? "step" : row_name[column]);
    for (rows_rewind(o); rows_next(o, INT32_MAX, &row); between = ",") {
        fputs(between, f);
        put_number(f, column < 0 ? row.step : row.value[column]);
    }
    fputc(']', f);
}

static int put_run(FILE *f, const struct gather *g, int group, const struct run *r)
{
    struct rows o;
    int rc = rows_open(&o, r, variant_text(&g->variants, r->fact[FACT_RECIPE]));
    fprintf(f, "{\"group\": %d, \"run\": ", group);
    put_string(f, r->path);
    fprintf(f, ", \"trial\": %d, \"facts\": [", r->trial);
    put_fact_numbers(f, g, r);
    fputs("], \"rows\": {\n", f);
    for (int i = -1; i < ROW_VALUES && !rc; i++)
        put_column(f, &o, i);
    fputs("}}", f);
    rows_close(&o);
    return rc;
}

static int put_data(FILE *f, const struct gather *g, double target, const char *report,
                    const char *made)
{
    const char *between = "";
    int rc = 0;
    fputs("{\"made\": ", f);
    put_string(f, made);
    fputs(",\n\"target\": ", f);
    put_number(f, target);
    fputs(",\n\"groups\": [", f);
    for (int i = 0; i < g->n; i++) {
        fputs(i ? ", " : "", f);
        put_string(f, g->group[i].name);
    }
    fputs("],\n\"facts\": [", f);
    put_facts(f, g);
    fputs("],\n\"runs\": [\n", f);
    for (int i = 0; i < g->n && !rc; i++)
        for (int k = 0; k < g->group[i].n && !rc; k++, between = ",\n") {
            fputs(between, f);
            rc = put_run(f, g, i, &g->group[i].run[k]);
        }
    fprintf(f, "],\n\"report\": %s}\n", report);
    return rc;
}

/* In JSON '<' stands in strings alone: escaped, no string ends the element or opens a comment. */
static void put_escaped(FILE *f, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] == '<')
            fputs("\\u003c", f);
        else
            fputc(s[i], f);
}

/* --- the page --- */

int page_write(FILE *f, const struct gather *g, double target, const char *report, const char *made)
{
    static const char plot_mark[] = "<!--PLOT-->\n", data_mark[] = "<!--DATA-->\n";
    const char *plot = strstr(page_text, plot_mark), *data = strstr(page_text, data_mark);
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    if (!to)
        return err_memory();
    int rc = put_data(to, g, target, report, made);
    if (fclose(to) && !rc)
        rc = err_memory();
    fwrite(page_text, 1, (size_t)(plot - page_text), f);
    if (!rc)
        rc = plot_svg(f, g, target);
    plot += strlen(plot_mark);
    fwrite(plot, 1, (size_t)(data - plot), f);
    if (!rc)
        put_escaped(f, text, n);
    fputs(data + strlen(data_mark), f);
    free(text);
    return rc || !ferror(f) ? rc : err_sys("cannot write the page");
}
