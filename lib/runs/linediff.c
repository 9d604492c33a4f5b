/* linediff.c - see linediff.h. */
#include "runs/linediff.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COST_MAX = 3000 }; /* edits; stretches that need more are all removed and all added */

struct line {
    const char *s;
    size_t n;
};
struct text {
    struct line *line;
    int *id;
    bool *changed;
    int n;
};
struct work {
    struct text a, b;
    int *room;
}; /* room: two arrays of a.n + b.n + 3 */

/* --- lines, and equal lines by equal numbers --- */

static int split(struct text *t, const char *s, size_t n)
{
    int lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += s[i] == '\n';
    lines += n && s[n - 1] != '\n';
    t->line = calloc((size_t)lines + 1, sizeof *t->line);
    t->id = calloc((size_t)lines + 1, sizeof *t->id);
    t->changed = calloc((size_t)lines + 1, sizeof *t->changed);
    if (!t->line || !t->id || !t->changed)
        return err_memory();
    while (t->n < lines) {
        const char *end = memchr(s, '\n', n);
        size_t k = end ? (size_t)(end - s) : n;
        t->line[t->n++] = (struct line){ s, k };
        s += k + !!end;
        n -= k + !!end;
    }
    return 0;
}

static uint64_t hash_line(const struct line *l)
{
    uint64_t h = 1469598103934665603u; /* FNV-1a */
    for (size_t i = 0; i < l->n; i++)
        h = (h ^ (unsigned char)l->s[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static int number_lines(struct work *w)
{
    size_t size = 64;
    while (size < 2 * (size_t)(w->a.n + w->b.n))
        size *= 2;
    const struct line **slot = calloc(size, sizeof *slot);
    int *id = calloc(size, sizeof *id), next = 0;
    if (!slot || !id) {
        free(slot);
        free(id);
        return err_memory();
    }
    for (int side = 0; side < 2; side++) {
        struct text *t = side ? &w->b : &w->a;
        for (int i = 0; i < t->n; i++) {
            const struct line *l = &t->line[i];
            size_t at = hash_line(l) & (size - 1);
            while (slot[at] && (slot[at]->n != l->n || memcmp(slot[at]->s, l->s, l->n)))
                at = (at + 1) & (size - 1);
            if (!slot[at]) {
                slot[at] = l;
                id[at] = next++;
            }
            t->id[i] = id[at];
        }
    }
    free(slot);
    free(id);
    return 0;
}

/* --- the shortest edit script --- */

struct box {
    int a0, a1, b0, b1;
};

/* Diagonals of one direction: reach[k] is how far along a the best path on k came; -1: nowhere. */
struct front {
    int *reach;
    int n, m;
};

/* Extends diagonal k by one edit; false when it leaves the box. start: where the snake begins. */
static bool advance(struct front *f, int k, int cost, int *start)
{
    int down = f->reach[k + 1], right = f->reach[k - 1], x = -1;
    if (cost == 0)
        x = 0;
    if (cost && down >= 0 && down - k <= f->m)
        x = down;
    if (cost && right >= 0 && right + 1 <= f->n && right + 1 > x)
        x = right + 1;
    f->reach[k] = *start = x;
    return x >= 0;
}

/* All paths of `cost` edits from one corner, where a and b point, with step 1 or -1 along them.
 * True where one meets a path of others_cost edits from the other corner; *x and *y count from this
 * one.
 */
static bool grow_paths(struct front *f, const struct front *other, const int *a, const int *b,
                       int step, int cost, int others_cost, int *x, int *y)
{
    int delta = f->n - f->m;
    for (int k = -cost; k <= cost; k += 2) {
        if (k < -f->m || k > f->n || !advance(f, k, cost, x))
            continue;
        while (*x < f->n && *x - k < f->m && a[step * *x] == b[step * (*x - k)])
            ++*x;
        f->reach[k] = *x;
        *y = *x - k;
        int r = delta - k;
        if (!((delta - cost - others_cost) & 1) && r >= -others_cost && r <= others_cost &&
            r >= -f->m && r <= f->n && other->reach[r] >= 0 && *x + other->reach[r] >= f->n)
            return true;
    }
    return false;
}

/* A point on a shortest path, by growing paths from both corners till they meet. False when
 * that costs more than COST_MAX. */
static bool find_middle(struct work *w, const struct box *c, int *mx, int *my)
{
    const int *a = w->a.id, *b = w->b.id;
    int n = c->a1 - c->a0, m = c->b1 - c->b0, width = n + m + 3, x, y;
    struct front ahead = { w->room + m + 1, n, m }, back = { w->room + width + m + 1, n, m };
    for (int i = 0; i < 2 * width; i++)
        w->room[i] = -1;
    for (int cost = 0; cost <= COST_MAX; cost++) {
        if (grow_paths(&ahead, &back, a + c->a0, b + c->b0, 1, cost, cost - 1, &x, &y)) {
            *mx = c->a0 + x;
            *my = c->b0 + y;
            return true;
        }
        if (grow_paths(&back, &ahead, a + c->a1 - 1, b + c->b1 - 1, -1, cost, cost, &x, &y)) {
            *mx = c->a1 - x;
            *my = c->b1 - y;
            return true;
        }
    }
    return false;
}

static void compare(struct work *w, struct box c)
{
    const int *a = w->a.id, *b = w->b.id;
    while (c.a0 < c.a1 && c.b0 < c.b1 && a[c.a0] == b[c.b0])
        c.a0++, c.b0++;
    while (c.a0 < c.a1 && c.b0 < c.b1 && a[c.a1 - 1] == b[c.b1 - 1])
        c.a1--, c.b1--;
    int x, y;
    if (c.a0 == c.a1 || c.b0 == c.b1 || !find_middle(w, &c, &x, &y)) {
        for (int i = c.a0; i < c.a1; i++)
            w->a.changed[i] = true;
        for (int i = c.b0; i < c.b1; i++)
            w->b.changed[i] = true;
        return;
    }
    compare(w, (struct box){ c.a0, x, c.b0, y });
    compare(w, (struct box){ x, c.a1, y, c.b1 });
}

/* --- hunks --- */

struct out {
    linediff_emit *emit;
    void *arg;
    int rc;
};

static void put(struct out *o, char mark, const struct line *l)
{
    char *s = o->rc ? NULL : malloc(l->n + 1);
    if (!s) {
        o->rc = err_memory();
        return;
    }
    *s = mark;
    memcpy(s + 1, l->s, l->n);
    o->emit(o->arg, s, l->n + 1);
    free(s);
}

/* Moves i and j past one run of changes. */
static void skip_change(const struct work *w, int *i, int *j)
{
    while (*i < w->a.n && w->a.changed[*i])
        ++*i;
    while (*j < w->b.n && w->b.changed[*j])
        ++*j;
}

static bool change_at(const struct work *w, int i, int j)
{
    return (i < w->a.n && w->a.changed[i]) || (j < w->b.n && w->b.changed[j]);
}

/* One hunk from the change at *i, *j on; leaves them behind it. */
static void put_hunk(const struct work *w, int *i, int *j, int context, struct out *o)
{
    int lead = *i < *j ? *i : *j;
    lead = lead < context ? lead : context;
    int a0 = *i - lead, b0 = *j - lead, a1 = *i, b1 = *j, quiet;
    for (;;) { /* take in changes that are near */
        skip_change(w, &a1, &b1);
        for (quiet = 0; a1 + quiet < w->a.n && b1 + quiet < w->b.n && quiet <= 2 * context &&
                        !change_at(w, a1 + quiet, b1 + quiet);)
            quiet++;
        if (quiet > 2 * context || !change_at(w, a1 + quiet, b1 + quiet))
            break;
        a1 += quiet;
        b1 += quiet;
    }
    int tail = quiet < context ? quiet : context;
    char head[96];
    int na = a1 + tail - a0, nb = b1 + tail - b0;
    int n =
        snprintf(head, sizeof head, "@@ -%d,%d +%d,%d @@", a0 + (na > 0), na, b0 + (nb > 0), nb);
    o->emit(o->arg, head, (size_t)n);
    for (int x = a0, y = b0; x < a1 + tail || y < b1 + tail;) {
        if (x < a1 + tail && w->a.changed[x])
            put(o, '-', &w->a.line[x++]);
        else if (y < b1 + tail && w->b.changed[y])
            put(o, '+', &w->b.line[y++]);
        else
            put(o, ' ', &w->a.line[x++]), y++;
    }
    *i = a1 + tail;
    *j = b1 + tail;
}

int linediff(const char *a, size_t na, const char *b, size_t nb, int context, linediff_emit *emit,
             void *arg)
{
    struct work w = { 0 };
    struct out o = { emit, arg, 0 };
    o.rc = split(&w.a, a, na);
    if (!o.rc)
        o.rc = split(&w.b, b, nb);
    if (!o.rc)
        o.rc = number_lines(&w);
    if (!o.rc && !(w.room = malloc(2 * (size_t)(w.a.n + w.b.n + 3) * sizeof *w.room)))
        o.rc = err_memory();
    if (!o.rc)
        compare(&w, (struct box){ 0, w.a.n, 0, w.b.n });
    for (int i = 0, j = 0; !o.rc && (i < w.a.n || j < w.b.n);) {
        if (change_at(&w, i, j))
            put_hunk(&w, &i, &j, context, &o);
        else
            i++, j++;
    }
    for (int side = 0; side < 2; side++) {
        struct text *t = side ? &w.b : &w.a;
        free(t->line);
        free(t->id);
        free(t->changed);
    }
    free(w.room);
    return o.rc;
}
