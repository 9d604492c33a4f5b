/* lists.c - see lists.h. */
#include "runs/lists.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"

enum { NUMBER_MAX = 40 };
static const char *const list_name[LISTS] = { "losses", "times" };

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && is_blank(*p))
        p++;
    return p;
}

/* Behind the `[` of `NAME = [`, with the list's index; NULL: another line. */
static const char *list_begin(const char *line, const char *end, int *which)
{
    const char *p = skip_blanks(line, end);
    for (*which = 0; *which < LISTS; ++*which) {
        size_t n = strlen(list_name[*which]);
        if ((size_t)(end - p) < n || memcmp(p, list_name[*which], n))
            continue;
        const char *q = skip_blanks(p + n, end);
        if (q == end || *q != '=')
            continue;
        q = skip_blanks(q + 1, end);
        return q < end && *q == '[' ? q + 1 : NULL;
    }
    return NULL;
}

/* A decimal number and how many digits stand behind its point. */
static bool take_number(const char **at, const char *end, struct printed *out)
{
    char text[NUMBER_MAX + 1], *stop;
    size_t n = 0;
    while (n < NUMBER_MAX && *at + n < end && strchr("0123456789.", (*at)[n]) && (*at)[n])
        n++;
    memcpy(text, *at, n);
    text[n] = '\0';
    const char *point = strchr(text, '.');
    *out = (struct printed){ true, strtod(text, &stop), point ? (int)(text + n - point - 1) : 0 };
    *at += n;
    return n && !*stop && isfinite(out->value);
}

static int take_values(struct lists *l, int which, const char *p, const char *end)
{
    for (l->open = which + 1; l->open && (p = skip_blanks(p, end)) < end && *p != '#';) {
        struct printed x;
        if (*p == ']') {
            l->open = 0;
        } else if (*p == ',') {
            p++;
        } else if (!take_number(&p, end, &x)) {
            snprintf(l->wrong, sizeof l->wrong, "the list '%s': expected a number",
                     list_name[which]);
            l->open = 0;
        } else {
            int rc = grow_one(&l->of[which].v, l->of[which].n, sizeof x);
            if (rc)
                return rc;
            l->of[which].v[l->of[which].n++] = x;
        }
    }
    return 0;
}

int lists_line(struct lists *l, const char *line, size_t n)
{
    const char *end = line + n, *p = line;
    int which = l->open - 1;
    if (*l->wrong || (!l->open && !(p = list_begin(line, end, &which))))
        return 0;
    if (!l->open && l->of[which].seen) {
        snprintf(l->wrong, sizeof l->wrong, "a second list '%s': expected one of a file",
                 list_name[which]);
        return 0;
    }
    l->of[which].seen = true;
    return take_values(l, which, p, end);
}

void lists_release(struct lists *l)
{
    for (int i = 0; i < LISTS; i++)
        free(l->of[i].v);
    memset(l, 0, sizeof *l);
}
