/* linediff.c - a table of the longest common subsequences, and a walk through it. */
#include "runs/linediff.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"

enum { PAIRS_MAX = 1 << 25 }; /* so that a common subsequence has less than 2^16 lines */

struct line {
    const char *s;
    size_t n;
    char mark; /* in the merged text: ' ', '-' or '+' */
    int a, b; /* there: the lines of each text before this one */
};
struct text {
    struct line *line;
    int n, rc;
};

static void put(struct text *t, struct line l)
{
    if (!t->rc && !(t->rc = grow_one(&t->line, (size_t)t->n, sizeof *t->line)))
        t->line[t->n++] = l;
}

static struct text split(const char *s, size_t n)
{
    struct text t = { 0 };
    for (size_t k; n; s += k, n -= k) {
        const char *end = memchr(s, '\n', n);
        k = end ? (size_t)(end - s) : n;
        put(&t, (struct line){ .s = s, .n = k });
        k += !!end;
    }
    return t;
}

static bool same(const struct line *a, const struct line *b)
{
    return a->n == b->n && !memcmp(a->s, b->s, a->n);
}

/* Returns the table, (n + 1) x row, whose element i, j is the number of lines that a from i on and b
 * from j on have in common at most; NULL when out of memory. */
static uint16_t *common(const struct line *a, int n, const struct line *b, size_t row)
{
    uint16_t *t = calloc((size_t)n + 1, row * sizeof *t);
    for (size_t i = (size_t)n; t && i-- > 0;)
        for (size_t j = row - 1; j-- > 0;) {
            uint16_t *c = t + i * row + j;
            *c = same(&a[i], &b[j]) ? (uint16_t)(c[row + 1] + 1) : c[row] > c[1] ? c[row] : c[1];
        }
    return t;
}

/* Merges the texts, what is removed at a place before what is added there. The last line is none: it
 * has but the numbers. */
static struct text merge(const struct text *ta, const struct text *tb)
{
    const struct line *a = ta->line, *b = tb->line;
    int n = ta->n, m = tb->n, head = 0, i = 0, j = 0;
    struct text out = { .rc = ta->rc ? ta->rc : tb->rc };
    while (head < n && head < m && same(&a[head], &b[head]))
        head++;
    for (; n > head && m > head && same(&a[n - 1], &b[m - 1]); n--)
        m--;
    size_t row = (size_t)(m - head) + 1;
    bool large = (size_t)(n - head) > PAIRS_MAX / row;
    uint16_t *t = large ? NULL : common(a + head, n - head, b + head, row);
    if (!t && !large)
        out.rc = err_memory();
    while (!out.rc && (i < ta->n || j < tb->n)) {
        uint16_t *c = t && i >= head && i < n ? t + (size_t)(i - head) * row + (j - head) : NULL;
        char mark = '+';
        if (i < head || (i >= n && j >= m) || (c && j < m && same(&a[i], &b[j])))
            mark = ' ';
        else if (i < n && (j == m || !c || c[row] >= c[1]))
            mark = '-';
        const struct line *l = mark == '+' ? &b[j] : &a[i];
        put(&out, (struct line){ l->s, l->n, mark, i, j });
        i += mark != '+';
        j += mark != '-';
    }
    put(&out, (struct line){ NULL, 0, ' ', i, j });
    free(t);
    return out;
}

int linediff(FILE *f, const char *a, size_t na, const char *b, size_t nb, int context)
{
    struct text ta = split(a, na), tb = split(b, nb), all = merge(&ta, &tb);
    struct line *l = all.line;
    int n = all.rc ? 0 : all.n - 1;
    for (int from = 0, to, end = 0; from < n; from = end) { /* a hunk, from the next change on */
        while (from < n && l[from].mark == ' ')
            from++;
        for (int i = to = from; i < n && i - to <= 2 * context; i++)
            to = l[i].mark == ' ' ? to : i + 1;
        if (to == from)
            break;
        from = from - end > context ? from - context : end;
        end = n - to > context ? to + context : n;
        int removed = l[end].a - l[from].a, added = l[end].b - l[from].b;
        fprintf(f, "@@ -%d,%d +%d,%d @@\n", l[from].a + (removed > 0), removed,
                l[from].b + (added > 0), added);
        for (; from < end; from++) {
            fputc(l[from].mark, f);
            fwrite(l[from].s, 1, l[from].n, f);
            fputc('\n', f);
        }
    }
    free(ta.line);
    free(tb.line);
    free(l);
    return all.rc;
}
