/* why.c - see why.h. */
#include "runs/why.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runs/linediff.h"

/* Without GPU model and driver, which are lines of the environment. */
static const enum fact kinds[] = { FACT_ENVIRONMENT, FACT_CODE, FACT_DATA, FACT_RECIPE,
                                   FACT_SOURCE };
enum { KINDS = sizeof kinds / sizeof *kinds, OTHERS_MAX = 4, SHORT_HASH = 8 };

static int count_of(const struct group *g, enum fact kind, int variant, int *first)
{
    int n = 0;
    for (int i = g->n - 1; i >= 0; i--)
        if (g->run[i].fact[kind] == variant) {
            n++;
            *first = i;
        }
    return n;
}

/* The next variant of a group in order of appearance, from run *at on; -1 at the end. */
static int next_variant(const struct group *g, enum fact kind, int *at)
{
    while (*at < g->n) {
        int i = (*at)++, v = g->run[i].fact[kind], before = 0;
        while (before < i && g->run[before].fact[kind] != v)
            before++;
        if (v >= 0 && before == i)
            return v;
    }
    return -1;
}

/* --- findings --- */

static void say_mixture(struct report *r, const struct gather *g, const struct group *in,
                        enum fact kind, int different)
{
    char text[1024] = "";
    size_t used = 0;
    int at = 0, v;
    for (int i = 0; i < OTHERS_MAX + 1 && (v = next_variant(in, kind, &at)) >= 0; i++) {
        int first = 0, n = count_of(in, kind, v, &first);
        int k = snprintf(text + used, sizeof text - used, "%s%d x %.*s (%s)", i ? ", " : "", n,
                         SHORT_HASH, g->variants.v[v].hash, in->run[first].path);
        used += k > 0 && (size_t)k < sizeof text - used ? (size_t)k : 0;
    }
    report_line(r, "why", "%s: '%s' mixes %d: %s%s", fact_name[kind], in->name, different, text,
                different > OTHERS_MAX + 1 ? ", ..." : "");
}

static void say_kind(struct report *r, const struct gather *g, enum fact kind)
{
    int base_different, base = group_variant(&g->group[0], kind, true, &base_different);
    bool said = false, known = false;
    for (int i = 0; i < g->n; i++) {
        const struct group *in = &g->group[i];
        int different, v = group_variant(in, kind, true, &different), first, silent = 0;
        silent = count_of(in, kind, -1, &first);
        known |= v >= 0;
        if (different > 1)
            say_mixture(r, g, in, kind, different);
        if (v >= 0 && silent)
            report_line(r, "why", "%s: %d of the %d runs of '%s' do not tell", fact_name[kind],
                        silent, in->n, in->name);
        if (i && (v < 0) != (base < 0))
            report_line(r, "why", "%s: only the logs of '%s' tell", fact_name[kind],
                        v < 0 ? g->group[0].name : in->name);
        else if (i && v != base)
            report_line(r, "why", "%s: differs between '%s' and '%s'", fact_name[kind],
                        g->group[0].name, in->name);
        said |= different > 1 || (v >= 0 && silent) || (i && v != base);
    }
    if (!said && (known || kind != FACT_CODE)) /* that is only in logs of gpt-train */
        report_line(r, "why", "%s: %s", fact_name[kind],
                    known ? "the same in all runs" : "not in these logs");
}

/* --- diffs --- */

/* Writes the first `max` lines of a diff, all where it is 0, and how many there are more. */
static void show_lines(struct report *r, const char *diff, size_t n, long max)
{
    char more[96];
    long lines = 0;
    for (const char *end; n; n -= (size_t)(end + 1 - diff), diff = end + 1) {
        end = memchr(diff, '\n', n);
        if (lines++ < max || !max)
            report_block_line(r, diff, (size_t)(end - diff));
    }
    if (max && lines > max)
        report_block_line(r, more,
                          (size_t)snprintf(more, sizeof more, "(%ld more lines)", lines - max));
}

static const char cut_note[] = "(the texts are longer; compared is what was kept)";

static int show_diff(struct report *r, const struct gather *g, enum fact kind, const char *a_name,
                     int a, const char *b_name, int b, int context, long max)
{
    const struct variant *va = &g->variants.v[a], *vb = &g->variants.v[b];
    char title[512], more[96], *diff = NULL;
    size_t size = 0;
    int rc = 0;
    snprintf(title, sizeof title, "%s: %.200s (%.*s) against %.200s (%.*s)", fact_name[kind],
             a_name, SHORT_HASH, va->hash, b_name, SHORT_HASH, vb->hash);
    report_block(r, "diff", title);
    if (!va->text || !vb->text) {
        int n = snprintf(more, sizeof more, "(more than %d different texts: this one was not kept)",
                         VARIANT_TEXTS);
        report_block_line(r, more, (size_t)n);
    } else {
        FILE *f = open_memstream(&diff, &size);
        rc = f ? linediff(f, va->text, va->n, vb->text, vb->n, context) : err_memory();
        if (f && fclose(f) && !rc)
            rc = err_memory();
    }
    if (!rc)
        show_lines(r, diff, size, max);
    free(diff);
    if (va->cut || vb->cut)
        report_block_line(r, cut_note, sizeof cut_note - 1);
    report_block_end(r);
    return rc;
}

static int show_kind(struct report *r, const struct gather *g, enum fact kind, int context,
                     long max)
{
    int different, base = group_variant(&g->group[0], kind, true, &different), rc = 0;
    for (int i = 0; i < g->n && !rc; i++) {
        const struct group *in = &g->group[i];
        int most = group_variant(in, kind, true, &different), at = 0, v;
        for (int k = 0; k < OTHERS_MAX && !rc && (v = next_variant(in, kind, &at)) >= 0; k++)
            if (v != most)
                rc = show_diff(r, g, kind, in->name, most, in->name, v, context, max);
        if (!rc && i && base >= 0 && most >= 0 && most != base)
            rc = show_diff(r, g, kind, g->group[0].name, base, in->name, most, context, max);
    }
    return rc;
}

int why_report(struct report *r, const struct gather *g, int context, long lines_max)
{
    int rc = 0;
    for (int i = 0; i < KINDS; i++)
        say_kind(r, g, kinds[i]);
    for (int i = 0; i < KINDS && !rc; i++)
        rc = show_kind(r, g, kinds[i], context, lines_max);
    return rc;
}
